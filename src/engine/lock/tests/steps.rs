//! The effect of each action of the explorer in a small world.

use super::driver::actor;
use super::event::{Answer, Effect, Event, Request, Said};
use super::world::{Action, At, Cleaning, Client, NOW, Setup, TICK, User, World};
use super::*;

impl World {
    pub(super) fn apply(&mut self, setup: &Setup, action: Action) -> Result<(), String> {
        match action {
            Action::Want { client, thread, once } => {
                self.event(setup, client, Event::Want { thread, caches: setup.caches, once })?;
            }
            Action::GoOn(c, thread) => self.event(setup, c, Event::GoOn(thread))?,
            Action::Look(c, thread) => self.event(setup, c, Event::Look(thread))?,
            Action::GiveUp(c, thread) => self.event(setup, c, Event::GiveUp(thread))?,
            Action::End { client, thread, dropped, reacquires } => {
                if let Some(id) = self.clients[client].users[thread].held {
                    self.event_that(setup, client, Event::End { id, dropped }, reacquires)?;
                }
            }
            Action::Send(c, t) => self.send(setup, c, t)?,
            Action::FailToSend(c, t) => {
                self.fail();
                let effect = self.outbox(c, t).remove(0);
                self.event_of(setup, (c, t), Event::NotSent(effect), true)?;
            }
            Action::Deliver(c, wire) => {
                let request = self.clients[c].wires[wire].remove(0);
                self.carry_out(setup, c, request, true);
            }
            Action::Reject(c, wire) => {
                self.fail();
                let request = self.clients[c].wires[wire].remove(0);
                self.clients[c].answers.push((request, (Said::Refused, 0)));
            }
            Action::Read(c, i) => {
                let answered = self.clients[c].answers.remove(i);
                self.read(setup, c, answered)?;
            }
            Action::Message(c) => {
                self.clients[c].message = false;
                self.event(setup, c, Event::Message)?;
            }
            Action::Recall(c) => {
                let client = &mut self.clients[c];
                (client.recall, client.is_background_woken, client.recalls) =
                    (false, true, client.recalls + 1);
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
                self.event(setup, c, Event::Time)?;
            }
            Action::CleanUp(c, i) => {
                let client = &mut self.clients[c];
                client.cleanups[i].2 = Cleaning::Asked;
                let number = client.cleanups[i].0;
                client.wires[1].push(Request::new(Effect::CleanUp { number }, NOW));
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
        self.clients.iter_mut().for_each(Client::forget_what_is_past);
        self.check(setup)
    }

    fn event(&mut self, setup: &Setup, c: usize, event: Event) -> Result<(), String> {
        self.event_that(setup, c, event, true)
    }

    fn event_that(&mut self, setup: &Setup, c: usize, event: Event, reacquires: bool) -> Result<(), String> {
        self.event_of(setup, (c, actor(&event)), event, reacquires)
    }

    /// Applies an event to a client. The `actor`, a thread's number or `BACKGROUND`, sends the effects later.
    fn event_of(
        &mut self,
        setup: &Setup,
        (c, actor): (usize, usize),
        event: Event,
        reacquires: bool,
    ) -> Result<(), String> {
        super::table::note_seen(&self.clients[c], &event);
        let before = super::table::stage(&self.clients[c].lock);
        let mut rules = setup.rules;
        rules.lock.least_score = if reacquires { i8::MIN } else { i8::MAX };
        let client = &mut self.clients[c];
        let held: Vec<_> = client.users.iter().map(|user| user.held).collect();
        let event = setup.mistake.map_or(event, |mistake| mistake.event(event));
        setup.mistake.into_iter().for_each(|mistake| mistake.before(client, &event));
        let effects = client.on(&rules, event);
        setup.mistake.into_iter().for_each(|mistake| mistake.after(client, &event, &effects));
        client.give_numbers_up();
        super::table::note_moved(before, &client.lock);
        for (t, before) in held.into_iter().enumerate() {
            let user = &self.clients[c].users[t];
            if user.held.is_some() && user.held != before && self.counts_on(c, t).is_none() {
                return Err(format!("client {c} got a hold that has ended"));
            }
        }
        effects.into_iter().try_for_each(|effect| self.take(setup, (c, actor), effect))
    }

    fn take(&mut self, setup: &Setup, (c, actor): (usize, usize), effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Lost { .. } if !self.had_fault => {
                return Err(format!("a hold of client {c} was lost without a fault"));
            }
            Effect::Lost { .. } => {}
            Effect::CleanUp { number } => {
                let client = &mut self.clients[c];
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
        let request = Request::new(effect, NOW);
        self.clients[c].wires[request.wire()].push(request);
        let reports =
            matches!(effect, Effect::HandOff { .. } | Effect::Release { left: 0, waits: false, .. });
        if reports { self.event_of(setup, (c, t), Event::Sent(effect), true) } else { Ok(()) }
    }

    fn carry_out(&mut self, setup: &Setup, c: usize, request: Request, is_answered: bool) {
        let (answer, told) = self.store.take(c, request, &setup.rules);
        if self.store.owner.is_none() {
            self.idle_wait = 0;
        }
        if is_answered {
            self.clients[c].answers.push((request, answer));
        }
        self.tell(told);
    }

    fn read(&mut self, setup: &Setup, c: usize, (request, answer): (Request, Answer)) -> Result<(), String> {
        match request.effect {
            Effect::CleanUp { number } => {
                self.clients[c].cleaned_up(number, answer.0);
                Ok(())
            }
            Effect::LeaveWaitQueue { .. } => Ok(()),
            _ => self.event(setup, c, Event::Answer(request, answer)),
        }
    }

    /// The connection breaks: its requests get no answer, and may arrive later.
    fn break_connection(&mut self, setup: &Setup, c: usize, wire: usize) -> Result<(), String> {
        self.fail();
        let client = &mut self.clients[c];
        let on_wire = std::mem::take(&mut client.wires[wire]);
        let of_wire = client.answers.extract_if(.., |(request, _)| request.wire() == wire);
        let unanswered: Vec<_> = of_wire.map(|(request, _)| request).chain(on_wire.iter().copied()).collect();
        for mut request in on_wire {
            if let Some(sent) = request.sent() {
                *sent = NOW; // no rule reads it any more
            }
            self.strays.push((c, request));
        }
        self.strays.sort_by_key(|stray| format!("{stray:?}"));
        let (settled, waited): (Vec<_>, Vec<_>) =
            unanswered.into_iter().partition(Request::is_settled_by_others);
        let unanswered = |request| (request, (Said::Unknown, 0));
        self.clients[c].answers.extend(waited.into_iter().map(unanswered));
        // A client handles the loss of these answers before it connects again, so this step does so too.
        settled.into_iter().try_for_each(|request| self.read(setup, c, unanswered(request)))
    }

    fn fail(&mut self) {
        self.faults -= 1;
        self.had_fault = true;
    }

    fn tell(&mut self, (told, recalled): super::store::Told) {
        told.into_iter().for_each(|client| self.clients[client].message = true);
        recalled.into_iter().for_each(|client| self.clients[client].recall = true);
    }

    /// Forgets late requests without an effect, so that states that differ only in them count as one.
    fn forget_strays_without_effect(&mut self) {
        let strays = std::mem::take(&mut self.strays);
        let may_own = |c: usize, number: Number| {
            let client = &self.clients[c];
            let grants = |request: &Request| request.grants() == Some(number);
            let will_grant = |effect: &Effect| match effect {
                Effect::Ask { number: other, .. } | Effect::HandOff { number: other, .. } => *other == number,
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
    /// Moves the threads on to numbers that are not retired.
    pub(super) fn give_numbers_up(&mut self) {
        for number in &mut self.numbers {
            while self.lock.retired.has(*number) {
                *number += 1;
            }
        }
    }

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
    pub(super) fn begin_work(&mut self) {
        self.forget_wait();
        (self.at, self.levels) = (At::Working, 1);
        self.saw_end = false;
    }

    fn forget_wait(&mut self) {
        let fresh = (Moment::NEVER, Moment::NEVER, None, None);
        (self.wake_at, self.poll_at, self.pause_until, self.heard) = fresh;
        (self.unbound, self.number) = (None, 0);
        (self.is_woken, self.message, self.is_uncontended, self.once) = (false, false, false, false);
    }

    pub(super) fn end_level(&mut self) {
        self.levels = self.levels.saturating_sub(1);
        match self.levels {
            0 => self.end_cycle(),
            _ => self.at = At::Working,
        }
    }

    pub(super) fn end_cycle(&mut self) {
        self.forget_wait();
        (self.levels, self.held, self.saw_end) = (0, None, false);
        self.cycles -= 1;
        self.at = if self.cycles == 0 { At::Done } else { At::Idle };
    }
}
