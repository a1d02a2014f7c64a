//! The steps of a client's threads with a lock, as in `acquire/`, `release/`, the timer and the watchdog. A
//! step stands for code that runs under the lock's mutex, and returns the requests that the thread sends
//! afterwards. "Models `f`": the step stands for the engine's function `f`.

use super::event::{Answer, Effect, Event, Request, Said};
use super::world::{At, BACKGROUND, Client, NOW, NUMBERS, Rules};
use super::*;
use crate::engine::lock::caching::Watched;
use crate::engine::lock::{Found, Look, Next, Withdrawn};
use crate::seam::capabilities::CachedCheck;
use crate::time::Lease;

fn ticket(thread: usize) -> TicketId {
    TicketId(thread as u64)
}

/// The client that handles an event, and the effects so far.
struct Step<'a> {
    client: &'a mut Client,
    rules: &'a Rules,
    effects: Vec<Effect>,
}

impl Client {
    pub(super) fn on(&mut self, rules: &Rules, event: Event) -> Vec<Effect> {
        let mut step = Step { client: self, rules, effects: Vec::new() };
        step.on(event);
        step.effects
    }
}

impl<'a> Step<'a> {
    fn at(&self) -> crate::engine::lock::At<'a> {
        self.client.at(self.rules)
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Want { thread, caches, once } => self.want(thread, caches, once),
            Event::GoOn(thread) => self.go_on(thread),
            Event::Look(thread) => self.look(thread),
            Event::GiveUp(thread) => self.give_up(thread),
            Event::Answer(request, answer) => self.read(request, answer),
            Event::End { id, dropped } => self.end(id, dropped),
            Event::Sent(effect) => self.sent(effect),
            Event::NotSent(effect) => self.not_sent(effect),
            Event::Message => {
                let Client { lock, users, .. } = &mut *self.client;
                for (thread, user) in users.iter_mut().enumerate() {
                    let waits = lock.queue.get(ticket(thread)).is_some();
                    (user.message, user.is_woken) = (user.message | waits, user.is_woken | waits);
                }
            }
            Event::Time => self.time(),
        }
    }

    fn read(&mut self, Request { effect, sent }: Request, answer: Answer) {
        let (said, queued) = answer;
        match effect {
            Effect::Ask { thread, number, .. } => self.answered(thread, number, sent, answer),
            Effect::AskCount { id, .. } => self.counted(id, sent, said),
            Effect::HandOff { from, to, number, waits } => {
                self.handed_off(from, waits, said);
                self.client.users[to].is_handed = true;
                self.answered(to, number, sent, answer);
                self.client.users[to].settles = Some(waits && said == Said::Refused);
            }
            Effect::Release { id, waits, .. } => self.released(id, waits, said),
            Effect::Renew { id } => self.renewed(id, sent, said),
            Effect::Check { id } => self.checked(id, said, queued > 0),
            Effect::CleanUp { .. } | Effect::LeaveWaitQueue { .. } | Effect::Lost { .. } => {}
        }
    }

    fn lock(&mut self) -> &mut Lock {
        &mut self.client.lock
    }

    fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// For a number that may still have the lock in the store: retires it, and makes the watchdog clean up.
    fn leave_behind(&mut self, number: Number) {
        self.lock().retired.add(number);
        self.client.give_numbers_up();
        self.effect(Effect::CleanUp { number });
    }

    /// Models `Core::lose_at`.
    fn lose(&mut self, id: Id, reason: LossReason) {
        let is_cached = self.lock().state_of(id.serial).is_some_and(|own| own.is_cached());
        if self.lock().lose(id.serial, reason) {
            if is_cached {
                self.lock().remove(id.serial, None);
            } else {
                self.effect(Effect::Lost { id });
            }
        }
    }

    /// Models `Core::forget_lost`, for a hold whose last level has ended.
    fn forget_lost(&mut self, id: Id) {
        self.lose(id, LossReason::Expired);
        self.lock().remove(id.serial, None);
        self.effect(Effect::CleanUp { number: id.number });
    }

    fn number(&mut self, thread: usize) -> Number {
        let own = self.client.numbers[thread];
        let user = &mut self.client.users[thread];
        user.number = user.unbound.unwrap_or(own);
        user.number
    }

    fn want(&mut self, thread: usize, caches: bool, once: bool) {
        let (at, asks) = (self.at(), !self.rules.all_ask);
        let user = &mut self.client.users[thread];
        (user.caches, user.once, user.unbound, user.is_uncontended) = (caches, once, None, false);
        (user.poll_at, user.pause_until) = (Moment::NEVER, None);
        match self.lock().find(Some(thread as u64), caches, asks, |_, _| true, at) {
            Found::Own(TestHold(id)) => {
                let own =
                    self.lock().state_of(id.serial).map(|own| (own.is_over(NOW), own.levels.open.len()));
                match own {
                    Some((false, levels)) => {
                        self.client.users[thread].at = At::Counting;
                        self.effect(Effect::AskCount { id, count: levels as u32 + 1 });
                    }
                    // The hold is over. The engine would now wait for the lock; the model only ends the hold.
                    _ => self.lose(id, LossReason::Expired),
                }
            }
            Found::Cached(TestHold(id), _) => self.entered(thread, id),
            Found::Stale((TestHold(id), next)) => {
                self.send_cached_release(id, next);
                self.client.users[thread].at = At::Going;
            }
            Found::Leaving => {
                let client = &mut *self.client;
                client.unbound[thread] += 1;
                client.users[thread].unbound = Some(client.unbound[thread]);
                self.client.users[thread].at = At::Going;
                self.go_on(thread);
            }
            Found::Uncontended => {
                self.client.users[thread].is_uncontended = !once;
                if !once {
                    self.lock().queue.join(ticket(thread), TestWaiter::default(), false);
                }
                self.ask(thread);
            }
            Found::Used => {
                self.client.users[thread].at = At::Going;
                self.go_on(thread);
            }
        }
    }

    /// Models `find_or_ask` and `take_or_give_up`: a waiter joins the local queue, a try does not. Either may
    /// have to release another thread's cached hold before it asks.
    fn join(&mut self, thread: usize) {
        let is_first = self.lock().queue.get(ticket(thread)).is_none();
        let once = self.client.users[thread].once;
        if is_first && !once {
            self.lock().queue.join(ticket(thread), TestWaiter::default(), false);
        }
        if once || self.lock().is_idle() {
            let at = self.at();
            if let Some((TestHold(id), next)) = self.lock().release_cached(None, at) {
                return self.send_cached_release(id, next);
            }
        }
        if !once {
            return self.look(thread);
        }
        if self.lock().held_here(NOW).is_some() { self.left(thread) } else { self.ask(thread) }
    }

    /// Models `Core::send_cached_release`.
    fn send_cached_release(&mut self, id: Id, next: Option<Next>) {
        match next {
            None => self.forget_lost(id),
            Some(Next::Local(to)) => self.hand_off(id, to, false),
            Some(_) => self.effect(Effect::Release { id, left: 0, waits: false }),
        }
    }

    fn hand_off(&mut self, from: Id, TicketId(to): TicketId, waits: bool) {
        let to = to as usize;
        let number = self.client.users[to].number;
        self.effect(Effect::HandOff { from, to, number, waits });
    }

    fn go_on(&mut self, thread: usize) {
        if let Some(is_refused) = self.client.users[thread].settles.take() {
            self.lock().received(ticket(thread), is_refused);
            return;
        }
        let user = &mut self.client.users[thread];
        match user.at {
            At::Going => self.join(thread),
            At::FallingAsleep { for_head } => self.fall_asleep(thread, for_head),
            At::Leaving => self.leave(thread),
            At::EndingLast => self.learn(thread),
            _ => {}
        }
    }

    fn look(&mut self, thread: usize) {
        let all_ask = self.rules.all_ask;
        let user = &mut self.client.users[thread];
        (user.is_woken, user.wake_at) = (false, Moment::NEVER);
        if let Some(ticket) = self.lock().queue.get_mut(ticket(thread)) {
            ticket.waiter.is_woken = false;
        }
        match self.lock().look(ticket(thread), all_ask, all_ask, NOW) {
            Look::Behind => return self.sleep(thread, Moment::NEVER, true),
            Look::OnItsWay => {
                self.client.users[thread].message = false; // as `Listening::pass_over`
                return self.sleep(thread, NOW.plus(self.rules.poll), false);
            }
            Look::HeldHere(until) => {
                let poll = NOW.plus(self.rules.poll);
                let user = &mut self.client.users[thread];
                if user.poll_at == Moment::NEVER {
                    user.poll_at = poll;
                }
                if NOW < user.poll_at {
                    let until = until.min(user.poll_at);
                    return self.sleep(thread, until, false);
                }
            }
            Look::Receive | Look::Free => {}
        }
        if let Some(until) = self.client.users[thread].pause_until.filter(|until| NOW < *until) {
            self.client.users[thread].message = false;
            return self.sleep(thread, until, false);
        }
        match self.lock().withdraw(ticket(thread)) {
            Withdrawn::Given => self.client.users[thread].at = At::Receiving,
            Withdrawn::Promised => {
                let user = &mut self.client.users[thread];
                (user.at, user.wake_at) = (At::Sleeping, Moment::NEVER);
            }
            Withdrawn::Free => self.ask(thread),
        }
    }

    fn ask(&mut self, thread: usize) {
        let heard = self.at().recalls;
        let number = self.number(thread);
        let user = &mut self.client.users[thread];
        (user.at, user.message, user.poll_at, user.pause_until) = (At::Asking, false, Moment::NEVER, None);
        user.heard = heard.filter(|_| user.caches && user.unbound.is_none());
        let (caches, waits) = (user.heard.is_some(), !user.once);
        self.effect(Effect::Ask { thread, number, caches, waits });
    }

    /// The thread falls asleep in a later step, unless it is woken before. A try, which never sleeps, ends.
    fn sleep(&mut self, thread: usize, until: Moment, for_head: bool) {
        self.number(thread);
        let user = &mut self.client.users[thread];
        if user.once {
            return self.left(thread);
        }
        (user.at, user.wake_at) = (At::FallingAsleep { for_head }, until);
    }

    fn fall_asleep(&mut self, thread: usize, for_head: bool) {
        let all_ask = self.rules.all_ask;
        let sleeps = self.lock().sleep(ticket(thread), !all_ask, for_head);
        let is_head = self.lock().queue.get(ticket(thread)).is_some_and(|ticket| ticket.is_head);
        let listens = all_ask || is_head && self.lock().held_here(NOW).is_none();
        if !sleeps || listens && self.client.users[thread].message {
            return self.look(thread);
        }
        self.client.users[thread].at = At::Sleeping;
    }

    fn give_up(&mut self, thread: usize) {
        match self.lock().withdraw(ticket(thread)) {
            Withdrawn::Given => self.client.users[thread].at = At::Receiving,
            Withdrawn::Promised => self.client.users[thread].wake_at = Moment::NEVER,
            Withdrawn::Free => self.left(thread),
        }
    }

    /// The call ends without the lock.
    fn left(&mut self, thread: usize) {
        self.client.users[thread].held = None;
        self.begin_leaving(thread);
    }

    fn begin_leaving(&mut self, thread: usize) {
        self.client.users[thread].at = At::Leaving;
        if self.lock().queue.get(ticket(thread)).is_none() {
            self.has_left(thread);
        }
    }

    fn leave(&mut self, thread: usize) {
        if self.lock().takes_queue_place() {
            return self.effect(Effect::LeaveWaitQueue { thread }); // once sent, the thread leaves
        }
        self.lock().leave(ticket(thread));
        self.has_left(thread);
    }

    fn has_left(&mut self, thread: usize) {
        match self.client.users[thread].held {
            Some(_) => self.client.users[thread].begin_work(),
            None => self.client.users[thread].end_cycle(),
        }
    }

    fn entered(&mut self, thread: usize, id: Id) {
        self.client.users[thread].held = Some(id);
        self.client.users[thread].begin_work();
    }

    fn answered(&mut self, thread: usize, number: Number, sent: Moment, (said, queued): Answer) {
        let (at, lease) = (self.at(), self.rules.lease);
        let is_handed = std::mem::take(&mut self.client.users[thread].is_handed);
        match said {
            Said::Yes => {
                let id = Id { serial: self.client.grants + 1, number };
                let own = HoldState::new(TestHold(id), Some(thread as u64), number, sent, sent.plus(lease));
                if !self.lock().counts(&own, NOW) {
                    self.mark_in_doubt(thread, number);
                    let until = NOW.plus(self.rules.pause);
                    self.client.users[thread].pause_until = Some(until);
                    return self.sleep(thread, until, false);
                }
                self.client.grants += 1;
                let user = &mut self.client.users[thread];
                let heard = user.heard.take().filter(|_| !is_handed);
                let (mut own, is_uncontended) = (own, user.is_uncontended);
                own.asks_to_cache = user.caches;
                own.levels.add(Lease::Renewed);
                heard
                    .into_iter()
                    .for_each(|heard| own.until_recall(heard, queued > 1, NOW, at.rules.first_check));
                let _lost = self.lock().enter(own);
                if heard.is_some() {
                    self.client.watch_by(NOW.plus(at.rules.first_check));
                }
                let renew_at = NOW.plus(self.rules.renew_after);
                self.client.renewals.push((id.serial, renew_at));
                if !is_handed {
                    // A granted try need not end the client's place in the store's queue, so `queued` stays.
                    let keeps_place = self.client.users[thread].once && self.lock().queued;
                    self.lock().queued = keeps_place;
                    if queued > 0 && !self.rules.lock.longest_slice.is_zero() {
                        self.lock().caching.begin(queued, at);
                    }
                }
                self.client.users[thread].held = Some(id);
                if is_uncontended {
                    self.lock().leave(ticket(thread));
                    return self.has_left(thread);
                }
                self.begin_leaving(thread);
            }
            Said::No if is_handed => self.client.users[thread].at = At::Going,
            Said::No => {
                let waits = !self.client.users[thread].once;
                self.lock().queued |= waits;
                let until = NOW.plus(self.rules.poll);
                self.sleep(thread, until, false);
            }
            Said::Refused => {
                let until = NOW.plus(self.rules.pause);
                self.sleep(thread, until, false);
            }
            Said::Unknown => {
                self.mark_in_doubt(thread, number);
                let until = NOW.plus(self.rules.pause);
                self.sleep(thread, until, false);
            }
        }
        self.client.users[thread].is_uncontended = false;
    }

    /// Models `Waiting::leave_behind`.
    fn mark_in_doubt(&mut self, thread: usize, number: Number) {
        let waits = !self.client.users[thread].once;
        self.lock().queued |= waits;
        let client = &mut *self.client;
        if client.users[thread].unbound.is_some() {
            client.unbound[thread] += 1;
            client.users[thread].unbound = Some(client.unbound[thread]);
            self.effect(Effect::CleanUp { number });
        } else {
            self.leave_behind(number);
        }
    }

    /// Models `Engine::reenter`.
    fn counted(&mut self, id: Id, sent: Moment, answer: Said) {
        let until = sent.plus(self.rules.lease);
        let thread = id.thread();
        let mut stands = self.lock().state_of(id.serial).is_some_and(|own| !own.is_over(NOW));
        if stands && answer == Said::Yes {
            stands = self.lock().state_of(id.serial).is_some_and(|own| own.confirm(until, NOW));
        }
        self.client.users[thread].at = At::Working;
        if !stands {
            self.lose(id, LossReason::Expired);
            if matches!(answer, Said::Yes | Said::Unknown) {
                self.effect(Effect::CleanUp { number: id.number }); // no thread releases a lost hold
            }
            return;
        }
        match answer {
            Said::Yes => {
                self.lock().state_of(id.serial).into_iter().for_each(|own| {
                    own.levels.add(Lease::Renewed);
                });
                self.client.users[thread].levels += 1;
            }
            Said::No => self.lose(id, LossReason::Gone),
            Said::Refused => {}
            Said::Unknown => self.lock().spend(id.serial),
        }
    }

    fn end(&mut self, id: Id, dropped: bool) {
        let (at, has_slices) = (self.at(), !self.rules.lock.longest_slice.is_zero());
        let thread = id.thread();
        let may_stay = |own: &HoldState<TestHold>| own.can_stay(has_slices, dropped);
        let Some(ended) = self.lock().end(id.serial, None, may_stay, at) else {
            return self.client.users[thread].end_level(); // the hold was lost and removed
        };
        match ended.next {
            None if ended.left > 0 => {
                self.lose(id, LossReason::Expired);
                self.client.users[thread].end_level();
            }
            None => {
                self.forget_lost(id);
                self.client.users[thread].end_cycle();
            }
            Some(_) if ended.left > 0 => {
                self.client.users[thread].end_level();
                self.client.users[thread].at = At::EndingInner;
                self.effect(Effect::Release { id, left: ended.left, waits: true });
            }
            Some(Next::Cached(_)) => {
                self.client.watch_by(NOW.plus(at.rules.idle));
                self.client.users[thread].end_cycle();
            }
            Some(next) => {
                let waits = !dropped || next == Next::Others;
                match next {
                    Next::Local(to) => self.hand_off(id, to, waits),
                    _ => self.effect(Effect::Release { id, left: 0, waits }),
                }
                if waits {
                    self.client.users[thread].at = At::EndingLast;
                } else {
                    self.client.users[thread].end_cycle();
                }
            }
        }
    }

    fn sent(&mut self, effect: Effect) {
        match effect {
            Effect::HandOff { from, .. } => drop(self.lock().sent(from.serial)),
            // No thread waits for this release, so the lock counts as free once the release is sent.
            Effect::Release { id, left: 0, waits: false } => drop(self.lock().remove(id.serial, None)),
            _ => {}
        }
    }

    fn not_sent(&mut self, effect: Effect) {
        match effect {
            Effect::HandOff { from, waits, .. } => {
                self.lock().not_sent(from.serial);
                self.effect(Effect::Release { id: from, left: 0, waits });
            }
            Effect::Release { id, left: 0, waits } => {
                self.released(id, waits, Said::Unknown);
                if !waits {
                    self.lock().remove(id.serial, None);
                }
            }
            _ => {}
        }
    }

    /// The receiver has read the outcome of a hand-off. A releaser that waits handles it in a later step;
    /// otherwise the receiver does.
    fn handed_off(&mut self, from: Id, waits: bool, answer: Said) {
        if waits {
            self.client.users[from.thread()].outcome = Some(answer);
            return;
        }
        match answer {
            Said::Yes => {}
            Said::No => self.effect(Effect::Lost { id: from }),
            Said::Refused => self.effect(Effect::Release { id: from, left: 0, waits: false }),
            Said::Unknown => self.leave_behind(from.number),
        }
    }

    /// Models `Engine::handed_off`.
    fn learn(&mut self, thread: usize) {
        let Some(outcome) = self.client.users[thread].outcome.take() else { return };
        let Some(id) = self.client.users[thread].held else { return };
        match outcome {
            Said::Yes => self.client.users[thread].end_cycle(),
            Said::No => self.released(id, true, Said::No),
            Said::Refused => self.effect(Effect::Release { id, left: 0, waits: true }),
            Said::Unknown => {
                self.lock().spend(id.serial);
                self.lock().retired.add(id.number);
                self.effect(Effect::Release { id, left: 0, waits: true });
            }
        }
    }

    fn released(&mut self, id: Id, waits: bool, answer: Said) {
        let thread = id.thread();
        if self.client.users[thread].at == At::EndingInner && self.client.users[thread].held == Some(id) {
            self.client.users[thread].at = At::Working;
            if answer == Said::Unknown {
                self.lock().spend(id.serial);
            }
            return;
        }
        match (waits, answer) {
            (true, Said::Yes) => drop(self.lock().remove(id.serial, Some((Others::Nobody, NOW)))),
            (true, _) => drop(self.lock().remove(id.serial, None)),
            (false, Said::Yes) => self.lock().note_released(Others::Nobody, NOW),
            (false, _) => {}
        }
        match answer {
            Said::Yes => {}
            Said::No => self.effect(Effect::Lost { id }),
            Said::Refused | Said::Unknown => self.leave_behind(id.number),
        }
        if waits {
            self.client.users[thread].end_cycle();
        }
    }

    fn time(&mut self) {
        let over = |own: &&HoldState<TestHold>| own.is_live() && own.is_over(NOW);
        let over: Vec<_> =
            self.client.lock.holds.iter().filter(over).map(|own| (own.hold.0, own.is_in_doubt())).collect();
        for (id, is_in_doubt) in over {
            self.lose(id, LossReason::Expired);
            if is_in_doubt {
                self.leave_behind(id.number); // as `Core::undo_renewal`
            }
        }
        for serial in self.client.due_renewals() {
            let Some(own) = self.client.lock.state_of(serial) else { continue };
            if own.begin_renewal(true) {
                let id = own.hold.0;
                self.effects.push(Effect::Renew { id });
            }
        }
        if self.client.is_background_woken || self.client.watch_at <= NOW {
            self.watch();
        }
    }

    /// Models `Core::watch_cached`.
    fn watch(&mut self) {
        let at = self.at();
        (self.client.is_background_woken, self.client.watch_at) = (false, Moment::NEVER);
        match self.lock().watch(at, false) {
            Watched::Over => {}
            Watched::Until { next, checks, .. } => {
                self.client.watch_by(next);
                checks.into_iter().for_each(|TestHold(id)| self.effect(Effect::Check { id }));
            }
            Watched::Idle => {
                if let Some((TestHold(id), next)) = self.lock().release_cached(None, at) {
                    self.send_cached_release(id, next);
                }
                self.client.watch_by(NOW.plus(at.rules.idle));
            }
        }
    }

    /// Models `Round::renew` and `Core::renewed`.
    fn renewed(&mut self, id: Id, sent: Moment, answer: Said) {
        let until = sent.plus(self.rules.lease);
        let due = NOW.plus(if answer == Said::Yes { self.rules.renew_after } else { self.rules.pause });
        let renewals = self.client.renewals.iter_mut();
        renewals.filter(|(serial, _)| *serial == id.serial).for_each(|(_, at)| *at = due);
        let Some(own) = self.lock().state_of(id.serial) else { return };
        own.is_under_way = false;
        match answer {
            Said::Yes => {
                let is_in_time = own.confirm(until, NOW);
                if !is_in_time {
                    self.lose(id, LossReason::Expired);
                    self.leave_behind(id.number);
                }
            }
            Said::No if own.is_live() => self.lose(id, LossReason::Gone),
            Said::No => {}
            Said::Refused | Said::Unknown => {
                own.renewal_has_failed = true;
                self.lock().spend(id.serial);
            }
        }
    }

    /// Models `Core::check_holds`.
    fn checked(&mut self, id: Id, said: Said, is_wanted: bool) {
        let at = self.at();
        let found = if is_wanted { CachedCheck::Wanted } else { CachedCheck::Stays };
        match said {
            Said::Yes => {
                if let Some((TestHold(id), next)) = self.lock().note_checked(id.serial, found, at) {
                    self.send_cached_release(id, next);
                }
            }
            Said::No if self.lock().state_of(id.serial).is_some_and(|own| own.is_live()) => {
                self.lose(id, LossReason::Gone);
            }
            Said::No | Said::Refused | Said::Unknown => {}
        }
    }
}

/// The thread that sends an event's effects: the event's own thread, or the background thread.
pub(super) fn actor(event: &Event) -> usize {
    match event {
        Event::Want { thread, .. } | Event::GoOn(thread) | Event::Look(thread) | Event::GiveUp(thread) => {
            *thread
        }
        Event::End { id, .. } => id.thread(),
        Event::Answer(request, _) => match request.effect {
            Effect::Ask { thread, .. } | Effect::HandOff { to: thread, .. } => thread,
            Effect::AskCount { id, .. } | Effect::Release { id, waits: true, .. } => id.thread(),
            _ => BACKGROUND,
        },
        _ => BACKGROUND,
    }
}

impl Id {
    pub(super) fn thread(self) -> usize {
        (self.number / NUMBERS - 1) as usize
    }
}
