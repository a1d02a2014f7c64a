//! The driver of the machines in a small world: what each action of the explorer does.

use super::mistakes::Mistake;
use super::store::Request;
use super::world::{Action, At, Cleaning, Client, KEEPER, NOW, NUMBERS, Setup, TICK, User, World};
use crate::engine::tests::machine::*;

impl World {
    pub(super) fn apply(&mut self, setup: &Setup, action: Action) -> Result<(), String> {
        match action {
            Action::Want { client, thread, once } => {
                let (id, caches) = (thread as u64, setup.caches);
                self.event(setup, client, thread, Event::Want { ticket: id, thread: id, caches, once })?;
            }
            Action::Look(c, t) => {
                self.clients[c].users[t].is_woken = false;
                self.event(setup, c, t, Event::Look { ticket: t as u64 })?;
            }
            Action::GiveUp(c, t) => {
                self.clients[c].users[t].is_woken = false;
                self.event(setup, c, t, Event::GiveUp { ticket: t as u64 })?;
            }
            Action::End { client, thread, dropped, reacquires } => {
                let number = self.clients[client].users[thread].held;
                self.event_that(setup, client, thread, Event::End { number, dropped }, reacquires)?;
            }
            Action::Send(c, t) => self.send(setup, c, t)?,
            Action::FailToSend(c, t) => {
                self.fail();
                if let Effect::HandOff { from: number, .. } | Effect::Release { number, .. } =
                    self.outbox(c, t).remove(0)
                {
                    self.event(setup, c, t, Event::NotSent { number })?;
                }
            }
            Action::Deliver(c, wire) => {
                let request = self.clients[c].wires[wire].remove(0);
                self.carry_out(setup, c, request, true);
            }
            Action::Reject(c, wire) => {
                self.fail();
                let request = self.clients[c].wires[wire].remove(0);
                self.clients[c].answers.push((request, request.refused()));
            }
            Action::Read(c, i) => {
                let (request, event) = self.clients[c].answers.remove(i);
                self.read(setup, c, request, event)?;
            }
            Action::Message(c) => {
                self.clients[c].message = false;
                self.event(setup, c, KEEPER, Event::Message)?;
            }
            Action::Recall(c) => {
                let client = &mut self.clients[c];
                (client.recall, client.is_keeper_woken, client.recalls) = (false, true, client.recalls + 1);
            }
            Action::LoseMessage(c) => {
                self.fail();
                self.clients[c].message = false;
            }
            Action::LoseRecall(c) => {
                self.fail();
                self.clients[c].recall = false;
            }
            Action::Time(c) => {
                self.clients[c].is_keeper_woken = false;
                self.event(setup, c, KEEPER, Event::Time)?;
            }
            Action::CleanUp(c, i) => {
                let client = &mut self.clients[c];
                client.cleanups[i].2 = Cleaning::Asked;
                let number = client.cleanups[i].0;
                client.wires[1].push(Request::CleanUp { number });
            }
            Action::Stray(i) => {
                let (c, request) = self.strays.remove(i);
                self.carry_out(setup, c, request, false);
            }
            Action::Break(c, wire) => self.break_connection(setup, c, wire)?,
            Action::Tick => self.tick(),
            Action::Stall => {
                self.fail();
                self.tick();
            }
            Action::Force => {
                self.fail();
                self.was_forced = true;
                let told = self.store.free();
                self.tell((told, None));
            }
            Action::RetireElsewhere(c, t) => {
                self.fail();
                self.clients[c].numbers[t] += 1;
            }
        }
        self.forget_strays_without_effect();
        self.clients.iter_mut().for_each(Client::begin_counting_anew);
        self.check(setup)
    }

    fn event(&mut self, setup: &Setup, c: usize, actor: usize, event: Event) -> Result<(), String> {
        self.event_that(setup, c, actor, event, true)
    }

    /// Gives a machine an event, and begins with the effects.
    fn event_that(
        &mut self,
        setup: &Setup,
        c: usize,
        actor: usize,
        event: Event,
        reacquires: bool,
    ) -> Result<(), String> {
        super::table::note_seen(&self.clients[c].machine, &event);
        let client = &mut self.clients[c];
        let (number, recalls) =
            (client.numbers.get(actor).copied().unwrap_or_default(), Some(client.recalls));
        let mut inputs = Inputs { rules: &setup.rules, now: NOW, number, recalls, reacquires };
        if let Some(mistake) = setup.mistake {
            mistake.before(&mut client.machine, &event, &mut inputs);
        }
        let mut effects = client.machine.on(event, inputs);
        if let Some(mistake) = setup.mistake {
            mistake.after(&mut client.machine, &event, &mut effects);
        }
        effects.into_iter().try_for_each(|effect| self.take(setup, c, actor, effect))
    }

    fn take(&mut self, setup: &Setup, c: usize, actor: usize, effect: Effect) -> Result<(), String> {
        let had_fault = self.had_fault;
        let client = &mut self.clients[c];
        match effect {
            Effect::Reply(reply) => {
                if let Some(user) = client.users.get_mut(actor) {
                    user.reply(reply);
                }
                if matches!(reply, Reply::Entered(_)) && self.counts_on(c, actor).is_none() {
                    return Err(format!("client {c} got a hold that has ended"));
                }
            }
            Effect::Retire { number } => {
                let current = &mut client.numbers[(number / NUMBERS - 1) as usize];
                *current += u64::from(*current == number);
                assert!(!current.is_multiple_of(NUMBERS), "the numbers ran out");
            }
            Effect::Wake { ticket } => client.users[ticket as usize].is_woken = true,
            Effect::Settled { thread } => {
                let user = &mut client.users[thread as usize];
                if user.at != At::EndingLast {
                    return Err(format!(
                        "thread {thread} of client {c} learns of a release that it does not wait for"
                    ));
                }
                user.end_cycle();
            }
            Effect::Lost { .. } if !had_fault => {
                return Err(format!("a hold of client {c} was lost without a fault"));
            }
            Effect::Lost { .. } => {}
            Effect::CleanUp { number } => {
                let until = NOW.plus(setup.rules.lease + TICK);
                match client.cleanups.iter_mut().find(|(other, _, _)| *other == number) {
                    Some(cleanup) => cleanup.1 = until,
                    None => client.cleanups.push((number, until, Cleaning::Due)),
                }
                client.cleanups.sort_by_key(|(number, _, _)| *number);
            }
            other => self.outbox(c, actor).push(other),
        }
        Ok(())
    }

    fn outbox(&mut self, c: usize, actor: usize) -> &mut Vec<Effect> {
        let Client { users, outbox, .. } = &mut self.clients[c];
        users.get_mut(actor).map_or(outbox, |user| &mut user.outbox)
    }

    fn send(&mut self, setup: &Setup, c: usize, t: usize) -> Result<(), String> {
        let effect = self.outbox(c, t).remove(0);
        let thread = t as u64;
        let (request, then) = match effect {
            Effect::Ask { ticket, number, caches } => {
                (Request::Attempt { ticket, number, caches, sent: NOW }, None)
            }
            Effect::AskCount { number, count } => (Request::Count { thread, number, count, sent: NOW }, None),
            Effect::HandOff { from, to, ticket } => {
                (Request::HandOff { from, to, ticket, sent: NOW }, Some(Event::Sent { number: from }))
            }
            Effect::Release { number, left, waits, reports } => {
                (Request::Release { thread, number, left, waits }, reports.then_some(Event::Sent { number }))
            }
            Effect::Renew { number } => (Request::Renew { number, sent: NOW }, None),
            Effect::Check { number } => (Request::Check { number }, None),
            Effect::LeaveWaitQueue { ticket } => {
                (Request::LeaveWaitQueue, Some(Event::WaitQueueLeft { ticket }))
            }
            other => return Err(format!("{other:?} is not to be sent")),
        };
        self.clients[c].wires[request.wire()].push(request);
        let then = then.filter(|_| {
            setup.mistake != Some(Mistake::LeavesBeforeSent) || request != Request::LeaveWaitQueue
        });
        then.map_or(Ok(()), |event| self.event(setup, c, t, event))
    }

    fn carry_out(&mut self, setup: &Setup, c: usize, request: Request, is_answered: bool) {
        let (event, told) = self.store.take(c, request, &setup.rules);
        if self.store.owner.is_none() {
            self.idle_wait = 0;
        }
        if is_answered {
            self.clients[c].answers.push((request, event));
        }
        self.tell(told);
    }

    fn read(
        &mut self,
        setup: &Setup,
        c: usize,
        request: Request,
        event: Option<Event>,
    ) -> Result<(), String> {
        let client = &mut self.clients[c];
        let actor = match request {
            Request::Attempt { ticket, .. } | Request::HandOff { ticket, .. } => ticket as usize,
            Request::Count { thread, .. } => thread as usize,
            Request::Release { thread, left, waits, .. } => {
                if left > 0 {
                    client.users[thread as usize].at = At::Working;
                    if !matches!(event, Some(Event::ReleaseAnswer { answer: Said::Unknown, .. })) {
                        return Ok(());
                    }
                }
                if waits { thread as usize } else { KEEPER }
            }
            _ => KEEPER,
        };
        match (request, event) {
            (Request::CleanUp { number }, Some(Event::ReleaseAnswer { answer, .. })) => {
                client.cleaned_up(number, answer);
                Ok(())
            }
            (_, Some(event)) => self.event(setup, c, actor, event),
            (_, None) => Ok(()),
        }
    }

    /// Requests on the connection may arrive later, and are not answered.
    fn break_connection(&mut self, setup: &Setup, c: usize, wire: usize) -> Result<(), String> {
        self.fail();
        let client = &mut self.clients[c];
        let on_wire = std::mem::take(&mut client.wires[wire]);
        let of_wire = client.answers.extract_if(.., |(request, _)| request.wire() == wire);
        let unanswered: Vec<_> = of_wire.map(|(request, _)| request).chain(on_wire.iter().copied()).collect();
        for mut request in on_wire {
            if let Some(sent) = request.sent() {
                *sent = NOW; // matters no more
            }
            self.strays.push((c, request));
        }
        self.strays.sort_by_key(|stray| format!("{stray:?}"));
        let (settled, waited): (Vec<_>, Vec<_>) =
            unanswered.into_iter().partition(Request::is_settled_by_others);
        self.clients[c].answers.extend(waited.into_iter().map(|request| (request, request.unanswered())));
        // Before there is another connection.
        settled.into_iter().try_for_each(|request| self.read(setup, c, request, request.unanswered()))
    }

    fn fail(&mut self) {
        self.faults -= 1;
        self.had_fault = true;
    }

    fn tell(&mut self, (told, recalled): super::store::Told) {
        told.into_iter().for_each(|client| self.clients[client].message = true);
        recalled.into_iter().for_each(|client| self.clients[client].recall = true);
    }

    /// States that differ by strays alone that can change nothing are one.
    fn forget_strays_without_effect(&mut self) {
        let strays = std::mem::take(&mut self.strays);
        let may_own = |c: usize, number: Number| {
            let client = &self.clients[c];
            let grants = |request: &Request| request.grants() == Some(number);
            let will_grant = |effect: &Effect| match effect {
                Effect::Ask { number: other, .. } | Effect::HandOff { to: other, .. } => *other == number,
                _ => false,
            };
            self.store.owner == Some((c, number))
                || client.numbers.contains(&number)
                || client.wires.iter().flatten().any(grants)
                || client.users.iter().flat_map(|user| &user.outbox).chain(&client.outbox).any(will_grant)
                || strays.iter().any(|(other, request)| *other == c && grants(request))
        };
        let has_effect =
            |(c, request): &&(usize, Request)| request.concerns().is_none_or(|number| may_own(*c, number));
        self.strays = strays.iter().filter(has_effect).copied().collect();
    }
}

impl Client {
    fn cleaned_up(&mut self, number: Number, answer: Said) {
        let Some(place) = self.cleanups.iter().position(|(other, _, _)| *other == number) else { return };
        match answer {
            Said::No if self.cleanups[place].1 > NOW => self.cleanups[place].2 = Cleaning::Pauses,
            Said::Yes | Said::No => drop(self.cleanups.remove(place)),
            Said::Refused | Said::Unknown => self.cleanups[place].2 = Cleaning::Due,
        }
    }
}

impl User {
    fn reply(&mut self, reply: Reply) {
        match reply {
            Reply::Entered(number) => {
                (self.at, self.held, self.levels) = (At::Working, number, self.levels + 1);
                self.saw_end &= self.levels > 1;
            }
            Reply::Asked => self.at = if self.levels > 0 { At::Counting } else { At::Asking },
            Reply::Sleep(_) => self.at = At::Sleeping,
            Reply::Receive => self.at = At::Receiving,
            Reply::Ending => {
                self.levels -= 1;
                self.at = if self.levels > 0 { At::EndingInner } else { At::EndingLast };
            }
            Reply::Lost | Reply::Left if self.at == At::Counting => self.at = At::Working,
            Reply::Lost if self.levels > 1 => (self.levels, self.at) = (self.levels - 1, At::Working),
            Reply::Lost | Reply::Left | Reply::Ended => self.end_cycle(),
        }
    }

    fn end_cycle(&mut self) {
        (self.levels, self.held, self.is_woken, self.saw_end) = (0, 0, false, false);
        self.cycles -= 1;
        self.at = if self.cycles == 0 { At::Done } else { At::Idle };
    }
}
