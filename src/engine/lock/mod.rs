//! One lock in this process as a state machine: each method is an event, and returns what is to be done.
//!
//! [`Machine`] decides and does nothing else. The machine has no I/O, no threads, no mutex and no clock. Its
//! caller holds the lock's mutex during an event, releases it, and carries out what the event returned.
//!
//! | stage        | meaning                                                        | ended by                           |
//! |--------------|----------------------------------------------------------------|------------------------------------|
//! | `Held`       | a thread has levels of the hold                                | `end`, `lose`                      |
//! | `Cached`     | the store still has the hold; no thread here has a level       | `find`, `give_back`, `lose`        |
//! | `HandingOff` | a request moves the lock to a waiter's number                  | `received`, `not_sent`             |
//! | `Returning`  | a release that goes before all later requests of this process  | `remove`                           |
//! | `Lost`       | the store has the hold no more, and its levels are to be ended | `remove`, a grant of the same thread |
//!
//! A lock whose holds are all gone or lost is free here. Locks with one holder have one hold that is not
//! lost; read locks and counted kinds have several, each with a stage of its own.
//!
//! `tests/table.txt` lists what each event does in each stage, and the events that an exploration never saw
//! there. The tests compare that table with the code, and explore all states of small worlds of several
//! machines and a store.

pub(crate) mod caching;
mod hearing;
mod state;
#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;

use std::fmt::Debug;

pub(crate) use crate::engine::lock::caching::{Caching, Reuse, Rules, Watched};
pub(crate) use crate::engine::lock::state::{CachedFor, HoldState, Queue, Retired, Stage, Ticket, TicketId};
use crate::observe::LossReason;
use crate::seam::Others;
use crate::time::Moment;

/// The part of a hold that its threads share: the machine publishes there what they read without the mutex.
pub(crate) trait Handle: Clone + Debug {
    fn serial(&self) -> u64;

    /// Makes the thread use another owner number for its next hold. `false`: no thread would use this number.
    fn retire(&mut self) -> bool;

    fn publish(&mut self, stage: Stage);

    fn lost(&mut self, reason: LossReason);

    /// Something other than its guard has ended a guard's level.
    fn note_spent_guard(&mut self) {}

    /// The end of the hold by its session.
    fn session_ends(&self) -> Moment;
}

pub(crate) trait Waits {
    fn wake(&mut self);
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) now: Moment,
    /// The recalls received so far; `None` while none would be received.
    pub(crate) recalls: Option<u64>,
    pub(crate) rules: &'a Rules,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Machine<H, W> {
    /// In the order of serial numbers.
    pub(crate) holds: Vec<HoldState<H>>,
    pub(crate) queue: Queue<W>,
    pub(crate) caching: Caching,
    pub(super) local_handoffs: LocalHandoffs,
    /// This client may be in the store's queue.
    pub(crate) queued: bool,
    /// When this process last released the lock while others waited for it, and who was notified.
    pub(crate) contended: Option<(Moment, Others)>,
    pub(crate) retired: Retired,
}

/// Hand-offs since the last true release, and when the first of them was.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LocalHandoffs {
    pub(super) handed: u32,
    pub(super) began: Option<Moment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Nobody,
    /// A thread waits here, but other processes come first.
    Others,
    Local(TicketId),
}

#[derive(Debug)]
pub(crate) struct End {
    pub(crate) left: u32,
    pub(crate) then: Then,
    pub(crate) may_cache: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    StillHeld,
    Cached(CachedFor),
    Leaves(Next),
    /// The hold is lost, or its time is over.
    Over,
}

#[derive(Debug)]
pub(crate) enum Found<H> {
    Own(H),
    Cached(H, u64),
    /// A cached hold whose release has begun, since this call cannot use it. `None`: the hold is lost.
    Stale(H, Option<Next>),
    /// Another thread is releasing this thread's hold. A request under the same number could arrive before
    /// the release, which would then free the new grant; or the owner could hand the lock to itself. So the
    /// thread asks under another number.
    Leaving,
    /// Nobody here has the lock or wants it, and no other process wanted it a moment ago: the thread asks, at
    /// the head of the queue if it would wait.
    Uncontended,
    Used,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Receive,
    Behind,
    OnItsWay,
    HeldHere(Moment),
    Free,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Withdrawn {
    Free,
    /// A releaser has promised the lock and is sending the request: look again when woken.
    Promised,
    Given,
}

impl<H, W: Default> Default for Machine<H, W> {
    fn default() -> Machine<H, W> {
        Machine {
            holds: Vec::new(),
            queue: Queue::default(),
            caching: Caching::default(),
            local_handoffs: LocalHandoffs::default(),
            queued: false,
            contended: None,
            retired: Retired::default(),
        }
    }
}

impl<H: Handle, W: Waits> Machine<H, W> {
    pub(crate) fn state_of(&mut self, serial: u64) -> Option<&mut HoldState<H>> {
        let at = self.holds.binary_search_by_key(&serial, |own| own.hold.serial()).ok()?;
        self.holds.get_mut(at)
    }

    pub(crate) fn of_thread(&self, thread: u64) -> Option<&H> {
        let is_own =
            |own: &&HoldState<H>| own.is_of(thread) && matches!(own.stage, Stage::Held | Stage::Lost);
        self.holds.iter().find(is_own).map(|own| &own.hold)
    }

    /// The state that a thread finds before it asks; `thread` is `None` where a guard is to be the owner.
    /// `caches`: the call would cache the hold until a recall; `asks`: it asks at once for an uncontended
    /// lock; `may_use`: it can use a cached hold again.
    pub(crate) fn find(
        &mut self,
        thread: Option<u64>,
        caches: bool,
        asks: bool,
        may_use: impl FnOnce(&H, Reuse) -> bool,
        at: At<'_>,
    ) -> Found<H> {
        if let Some(thread) = thread {
            if self.caching.may_cache {
                self.caching.note_asked(thread, at);
            }
            if let Some(hold) = self.of_thread(thread) {
                return Found::Own(hold.clone());
            }
            let own = |own: &&HoldState<H>| own.is_of(thread);
            if let Some(cached) = self.holds.iter().filter(own).find(|own| own.is_cached()) {
                let hold = cached.hold.clone();
                return match self.reuse(hold.serial(), caches, may_use, at) {
                    Some(level) => Found::Cached(hold, level),
                    None => {
                        let next = self.begin_release(hold.serial(), at);
                        Found::Stale(hold, next)
                    }
                };
            }
            if self.holds.iter().filter(own).any(|own| own.stage == Stage::Returning) {
                return Found::Leaving;
            }
        }
        if asks && self.is_uncontended(at) { Found::Uncontended } else { Found::Used }
    }

    pub(crate) fn is_uncontended(&self, at: At<'_>) -> bool {
        self.holds.is_empty() && self.queue.is_empty() && !self.is_contended(at)
    }

    pub(crate) fn is_contended(&self, at: At<'_>) -> bool {
        self.contended.is_some_and(|(since, _)| at.now.since(since) < at.rules.contended)
    }

    /// The waiter that the lock is handed to, and whether the request was sent.
    fn handing(&self) -> Option<(TicketId, bool)> {
        self.holds.iter().find_map(|own| match own.stage {
            Stage::HandingOff { to, sent } => Some((to, sent)),
            _ => None,
        })
    }

    pub(crate) fn held_here(&self, now: Moment) -> Option<Moment> {
        // A lock on its way to a waiter here is held: meanwhile no request may use the releaser's number.
        if self.handing().is_some() {
            return Some(Moment::NEVER);
        }
        let stands = self.holds.iter().filter(|own| !own.is_over(now));
        stands.map(|own| own.until.min(own.hold.session_ends())).max()
    }

    /// The next step of a waiter. `all_ask`: each waiter asks the store; `asks_for_itself`: this one asks
    /// despite a hold of this process.
    pub(crate) fn look(&mut self, id: TicketId, all_ask: bool, asks_for_itself: bool, now: Moment) -> Look {
        let handing = self.handing();
        if handing == Some((id, true)) {
            return Look::Receive;
        }
        let Some(ticket) = self.queue.get_mut(id) else { return Look::Behind };
        if !all_ask && !ticket.is_head {
            return Look::Behind;
        }
        if asks_for_itself {
            ticket.follows = handing.is_some();
            return if ticket.follows { Look::OnItsWay } else { Look::Free };
        }
        self.held_here(now).map_or(Look::Free, Look::HeldHere)
    }

    /// The waiter is about to sleep. `is_open`: it can be handed the lock from now on; `for_head`: it sleeps
    /// until it is the head. `false`: something has changed since it looked.
    pub(crate) fn sleep(&mut self, id: TicketId, is_open: bool, for_head: bool) -> bool {
        let Some(ticket) = self.queue.get_mut(id) else { return false };
        if std::mem::take(&mut ticket.word) || for_head && ticket.is_head {
            return false;
        }
        ticket.is_asleep = is_open;
        true
    }

    /// The waiter accepts no hand-off any more, to ask or to leave. Each later change leaves it a word.
    pub(crate) fn withdraw(&mut self, id: TicketId) -> Withdrawn {
        match self.handing() {
            Some((to, true)) if to == id => return Withdrawn::Given,
            Some((to, false)) if to == id => return Withdrawn::Promised,
            _ => {}
        }
        if let Some(ticket) = self.queue.get_mut(id) {
            (ticket.is_asleep, ticket.word) = (false, false);
        }
        Withdrawn::Free
    }

    /// Whether this waiter must give up the client's place in the store's queue: no other thread here waits.
    /// The waiter leaves the local queue after it sent that request, so that other requests follow it.
    pub(crate) fn takes_queue_place(&mut self) -> bool {
        self.queue.len() == 1 && std::mem::take(&mut self.queued)
    }

    /// Whether a grant under this number counts: its window is open, and no earlier request may still arrive.
    pub(crate) fn counts(&self, own: &HoldState<H>, now: Moment) -> bool {
        !own.is_over(now) && !self.retired.has_lately(own.number)
    }

    /// Enters a grant that [counts](Self::counts), and returns the lost holds of the same thread, which it
    /// replaces. Their guards still know them.
    pub(crate) fn enter(&mut self, own: HoldState<H>) -> Vec<HoldState<H>> {
        let thread = own.thread;
        let makes_room = |other: &mut HoldState<H>| {
            thread.is_some_and(|thread| other.is_of(thread))
                && matches!(other.stage, Stage::Held | Stage::Lost)
        };
        let lost = self.holds.extract_if(.., makes_room).collect();
        self.caching.may_cache |= own.recallable.is_some();
        let serial = own.hold.serial();
        let place = self.holds.partition_point(|other| other.hold.serial() < serial);
        self.holds.insert(place, own);
        lost
    }

    /// The waiter has acted on the answer to the hand-off. Returns the hold that the hand-off ended.
    /// `is_refused`: nothing has changed, and the releaser releases.
    pub(crate) fn received(&mut self, id: TicketId, is_refused: bool) -> Option<HoldState<H>> {
        let is_own = |own: &HoldState<H>| matches!(own.stage, Stage::HandingOff { to, .. } if to == id);
        let at = self.holds.iter().position(is_own);
        let over = match at {
            Some(at) if is_refused => {
                self.holds.get_mut(at).into_iter().for_each(|own| own.set(Stage::Returning));
                None
            }
            Some(at) => Some(self.holds.remove(at)),
            None => None,
        };
        self.queue.tell_followers();
        over
    }

    /// Also returns the hold of a hand-off that the waiter has not received.
    pub(crate) fn leave(&mut self, id: TicketId) -> (Option<Ticket<W>>, Option<HoldState<H>>) {
        let over = if self.handing() == Some((id, true)) { self.received(id, false) } else { None };
        let left = self.queue.leave(id);
        self.forget_if_unused();
        (left, over)
    }

    /// Ends `level`; by default the innermost without a guard, or else the innermost; `None`: there is none.
    /// The last level's hold is cached if it `may_stay` (`Some(true)`: for a time slice too), or released.
    pub(crate) fn end(
        &mut self,
        serial: u64,
        level: Option<u64>,
        may_stay: impl FnOnce(&HoldState<H>) -> Option<bool>,
        at: At<'_>,
    ) -> Option<End> {
        let may_cache = self.caching.may_cache;
        let own = self.state_of(serial)?;
        let ended = own.levels.take(level)?;
        let left = u32::try_from(own.levels.open.len()).ok()?;
        if level.is_none() && ended.guarded {
            own.hold.note_spent_guard();
        }
        let end = |then| Some(End { left, then, may_cache });
        if left > 0 {
            return end(Then::StillHeld);
        }
        let by_time_slice =
            if may_cache && own.is_live() && !own.is_over(at.now) { may_stay(own) } else { None };
        if let Some(cached) = by_time_slice.and_then(|by_time_slice| self.cache(serial, by_time_slice, at)) {
            return end(Then::Cached(cached));
        }
        end(self.begin_release(serial, at).map_or(Then::Over, Then::Leaves))
    }

    pub(crate) fn begin_release(&mut self, serial: u64, at: At<'_>) -> Option<Next> {
        if self.state_of(serial)?.is_over(at.now) || !self.begin_return(serial) {
            return None;
        }
        let next = self.promise(at);
        if let Next::Local(to) = next {
            self.state_of(serial)?.set(Stage::HandingOff { to, sent: false });
        }
        Some(next)
    }

    /// As [`begin_release`](Self::begin_release), but no waiter here gets the lock. `false`: the hold is
    /// lost, or being released. A number in doubt is retired: a late renewal would prolong the next hold.
    pub(crate) fn begin_return(&mut self, serial: u64) -> bool {
        let Some(own) = self.state_of(serial).filter(|own| own.is_live()) else { return false };
        own.set(Stage::Returning);
        own.recallable = None;
        if own.is_in_doubt() {
            self.retire(serial);
        }
        true
    }

    /// Promises the lock to the head of the queue, if it sleeps and other processes do not come first.
    pub(crate) fn promise(&mut self, at: At<'_>) -> Next {
        let is_handing = self.handing().is_some();
        let Machine { queue, local_handoffs, caching, .. } = self;
        let Some(head) = queue.head() else { return Next::Nobody };
        let began = *local_handoffs.began.get_or_insert(at.now);
        if local_handoffs.handed >= at.rules.local_handoffs
            || at.now.since(began) >= at.rules.local_handoff_time
            || caching.is_over(at)
        {
            return Next::Others;
        }
        if is_handing || !std::mem::take(&mut head.is_asleep) {
            return Next::Nobody;
        }
        local_handoffs.handed += 1;
        caching.pass_on(at.now);
        Next::Local(head.id)
    }

    /// The hand-off was sent: its waiter reads the answer. `None`: the waiter panicked and is gone.
    pub(crate) fn sent(&mut self, serial: u64) -> Option<&mut W> {
        let Machine { holds, queue, .. } = self;
        let at = holds.binary_search_by_key(&serial, |own| own.hold.serial()).ok()?;
        let own = holds.get_mut(at)?;
        let Stage::HandingOff { to, .. } = own.stage else { return None };
        let ticket = queue.get_mut(to)?;
        own.stage = Stage::HandingOff { to, sent: true };
        ticket.tell();
        Some(&mut ticket.waiter)
    }

    pub(crate) fn not_sent(&mut self, serial: u64) {
        let Some(own) = self.state_of(serial) else { return };
        if let Stage::HandingOff { to, .. } = own.stage {
            own.set(Stage::Returning);
            if let Some(ticket) = self.queue.get_mut(to) {
                ticket.is_asleep = true;
                ticket.tell(); // it may be waiting to leave
            }
            self.queue.tell_followers();
        }
    }

    /// Removes a hold that is over here, and wakes the queue's head. `released`: whom it notified, and when.
    pub(crate) fn remove(&mut self, serial: u64, released: Option<(Others, Moment)>) -> Option<HoldState<H>> {
        // The release is noted before the removal wakes the next waiter: other processes come first.
        released.into_iter().for_each(|(others, now)| self.note_released(others, now));
        let taken = self.take_out(serial);
        self.caching.end();
        self.queue.nudge();
        self.forget_if_unused();
        taken
    }

    pub(crate) fn take_out(&mut self, serial: u64) -> Option<HoldState<H>> {
        let at = self.holds.binary_search_by_key(&serial, |own| own.hold.serial()).ok()?;
        Some(self.holds.remove(at))
    }

    pub(crate) fn note_released(&mut self, others: Others, now: Moment) {
        self.local_handoffs = LocalHandoffs::default();
        self.contended = (others != Others::Nobody).then_some((now, others));
    }

    pub(crate) fn forget_if_unused(&mut self) {
        if self.queue.is_empty() && self.holds.is_empty() {
            self.caching.end();
            (self.local_handoffs, self.queued) = (LocalHandoffs::default(), false);
        }
    }

    /// The client ends: takes out all holds, and retires the numbers of those in doubt for all clients of the
    /// thread. A lock on its way to a waiter here stays until the waiter has received and released it.
    pub(crate) fn clear(&mut self) -> Vec<HoldState<H>> {
        let doubtful = self.holds.iter().filter(|own| own.is_in_doubt()).map(|own| own.hold.serial());
        doubtful.collect::<Vec<_>>().into_iter().for_each(|serial| self.retire(serial));
        self.caching.end();
        let is_over = |own: &mut HoldState<H>| !matches!(own.stage, Stage::HandingOff { .. });
        self.holds.extract_if(.., is_over).collect()
    }

    /// Records a loss. `false`: the loss is known, or the hold is being released, and only the store can say
    /// whether it is gone. Retires the number, since a request under it may be on its way, and the old guard
    /// may still try to release. At the end of the client, which releases the hold, the number is retired
    /// only if it is in doubt: a thread has the same number in all clients.
    pub(crate) fn lose(&mut self, serial: u64, reason: LossReason) -> bool {
        let Some(own) = self.state_of(serial) else { return false };
        let (is_live, is_in_doubt) = (own.is_live(), own.is_in_doubt());
        if own.stage == Stage::Lost {
            return false;
        }
        if reason != LossReason::ShutDown || is_in_doubt {
            self.retire(serial);
        }
        if is_live && let Some(own) = self.state_of(serial) {
            own.stage = Stage::Lost;
            own.hold.lost(reason);
            self.queue.nudge();
        }
        is_live
    }

    /// A request about this hold alone may still arrive: the thread's next hold needs another number. While
    /// this hold lives the thread keeps the number, so that a writer can still acquire the read lock.
    pub(crate) fn spend(&mut self, serial: u64) {
        if let Some(own) = self.state_of(serial) {
            own.is_spent = true;
            if !own.is_live() {
                self.retire(serial);
            }
        }
    }

    pub(crate) fn retire(&mut self, serial: u64) {
        if let Some(own) = self.state_of(serial)
            && own.hold.retire()
        {
            let number = own.number;
            self.retired.add(number);
        }
    }
}
