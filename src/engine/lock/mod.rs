//! One lock in this process, as a state machine: each method is an event, and returns what to do.
//!
//! [`Machine`] only decides: it has no I/O, no threads, no mutex and no clock. Its caller holds the lock's
//! mutex during an event, unlocks it, and then does what the event returned.
//!
//! | stage        | meaning                                                        | ended by                           |
//! |--------------|----------------------------------------------------------------|------------------------------------|
//! | `Held`       | a thread has levels of the hold                                | `end`, `lose`                      |
//! | `Cached`     | the store still has the hold; no thread here has a level       | `find`, `release_cached`, `lose`   |
//! | `HandingOff` | a request moves the lock to a waiter's number                  | `received`, `not_sent`             |
//! | `Returning`  | a release that goes before all later requests of this process  | `remove`                           |
//! | `Lost`       | the store has the hold no more, and its levels are to be ended | `remove`, a grant of the same thread |
//!
//! A lock without holds, or with lost ones only, is free here. Exclusive locks have at most one hold that is
//! not lost; read locks and counted kinds have several, each with its own stage.
//!
//! `tests/table.txt` lists what each event does in each stage, and which events never happen in a stage. The
//! tests compare that table with the code, and explore all states of small worlds with several machines.

pub(crate) mod caching;
mod hearing;
mod state;
#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::time::Duration;

pub(crate) use crate::engine::lock::caching::{Caching, Rules, Watched};
pub(crate) use crate::engine::lock::hearing::Hears;
pub(crate) use crate::engine::lock::state::{CachedFor, HoldState, Queue, Retired, Stage, Ticket, TicketId};
use crate::observe::LossReason;
use crate::seam::Others;
use crate::time::Moment;

/// Maximum total time of local hand-offs before other processes get the lock.
const LOCAL_HANDOFF_TIME: Duration = Duration::from_millis(3);

/// The shared part of a hold: the machine writes there what threads read without the mutex.
pub(crate) trait Handle: Clone + Debug {
    fn serial(&self) -> u64;

    /// Makes the thread use another owner number. `false`: no living thread has this hold's number.
    fn retire(&mut self) -> bool;

    fn publish(&mut self, stage: Stage);

    fn lost(&mut self, reason: LossReason);

    /// Notes that `unlock` has ended a level that has a guard.
    fn note_spent_guard(&mut self) {}

    /// When the hold's session ends; `Moment::NEVER` without one.
    fn session_ends(&self) -> Moment;
}

pub(crate) trait Waits {
    fn wake(&mut self);
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) now: Moment,
    /// The number of recalls so far; `None` while recalls may be missed.
    pub(crate) recalls: Option<u64>,
    pub(crate) rules: &'a Rules,
}

/// `H`: the shared part of a hold. `W`: a waiter. `X`: what the caller keeps under the same mutex.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Machine<H, W, X = ()> {
    /// Sorted by serial number.
    pub(crate) holds: Vec<HoldState<H>>,
    pub(crate) queue: Queue<W>,
    pub(crate) caching: Caching,
    /// The number of local hand-offs since the lock was last free in the store, and when this count began.
    pub(super) local_handoffs: Option<(u32, Moment)>,
    /// Whether this client may have a place in the store's queue.
    pub(crate) queued: bool,
    /// The last release by this process: when it was, and which other clients the store notified of it.
    /// `None`: it notified none.
    pub(crate) contended: Option<(Moment, Others)>,
    pub(crate) retired: Retired,
    pub(crate) beside: X,
}

/// The lock's way after the end of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Cached(CachedFor),
    Nobody,
    /// Threads wait here, but other processes go first.
    Others,
    Local(TicketId),
}

/// A cached hold whose release has begun, and the lock's next owner; `None`: the hold is lost.
pub(crate) type Stale<H> = (H, Option<Next>);

#[derive(Debug)]
pub(crate) struct End {
    pub(crate) left: u32,
    /// `None`: the hold is lost, or its window has ended.
    pub(crate) next: Option<Next>,
    pub(crate) may_cache: bool,
}

#[derive(Debug)]
pub(crate) enum Found<H> {
    Own(H),
    Cached(H, u64),
    /// This call cannot use the cached hold.
    Stale(Stale<H>),
    /// Another thread is releasing this thread's hold, so this thread must ask under another number: under
    /// the same number its request could arrive before the release, which would then free the new grant.
    Leaving,
    /// No thread here has or wants the lock, and no other process wanted it lately: the thread attempts at
    /// once. If its call may wait, the thread joins the local queue before, as the head.
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
    /// A releaser is sending the hand-off to this waiter, and wakes it afterwards.
    Promised,
    Given,
}

impl<H, W: Default, X: Default> Default for Machine<H, W, X> {
    fn default() -> Machine<H, W, X> {
        Machine {
            holds: Vec::new(),
            queue: Queue::default(),
            caching: Caching::default(),
            local_handoffs: None,
            queued: false,
            contended: None,
            retired: Retired::default(),
            beside: X::default(),
        }
    }
}

/// The state of the hold with this serial number: [`Machine::state_of`] for callers that use other fields of
/// the machine meanwhile.
fn state_in<H: Handle>(holds: &mut [HoldState<H>], serial: u64) -> Option<&mut HoldState<H>> {
    let at = holds.binary_search_by_key(&serial, |own| own.hold.serial()).ok()?;
    holds.get_mut(at)
}

impl<H: Handle, W: Waits, X> Machine<H, W, X> {
    pub(crate) fn state_of(&mut self, serial: u64) -> Option<&mut HoldState<H>> {
        state_in(&mut self.holds, serial)
    }

    pub(crate) fn of_thread(&self, thread: u64) -> Option<&H> {
        let is_own =
            |own: &&HoldState<H>| own.is_of(thread) && matches!(own.stage, Stage::Held | Stage::Lost);
        self.holds.iter().find(is_own).map(|own| &own.hold)
    }

    /// Finds the lock's state for a call that has sent nothing yet; reuses the thread's cached hold or begins
    /// its release. `thread` is `None` for a guard. `caches`: the call may cache the hold until a recall.
    /// `asks`: the call can attempt at once. `may_use`: as for [`reuse`](Self::reuse).
    pub(crate) fn find(
        &mut self,
        thread: Option<u64>,
        caches: bool,
        asks: bool,
        may_use: impl FnOnce(&H, bool) -> bool,
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
                        Found::Stale((hold, next))
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
        let is_contended = self.contended.is_some_and(|(since, _)| at.now.since(since) < at.rules.contended);
        self.holds.is_empty() && self.queue.tickets.is_empty() && !is_contended
    }

    /// The waiter to which the lock is being handed off, and whether the request was sent.
    fn handing(&self) -> Option<(TicketId, bool)> {
        self.holds.iter().find_map(|own| match own.stage {
            Stage::HandingOff { to, sent } => Some((to, sent)),
            _ => None,
        })
    }

    pub(crate) fn held_here(&self, now: Moment) -> Option<Moment> {
        // During a hand-off the lock counts as held: the store could grant the releaser's thread a re-entry.
        if self.handing().is_some() {
            return Some(Moment::NEVER);
        }
        let stands = self.holds.iter().filter(|own| !own.is_over(now));
        stands.map(|own| own.until.min(own.hold.session_ends())).max()
    }

    /// Decides the next step of a waiter. `all_ask`: each waiter attempts, not only the head.
    /// `asks_for_itself`: this waiter attempts although this process has a hold.
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
            ticket.woken_after_hand_off = handing.is_some();
            return if ticket.woken_after_hand_off { Look::OnItsWay } else { Look::Free };
        }
        self.held_here(now).map_or(Look::Free, Look::HeldHere)
    }

    /// The waiter is about to sleep; returns `false` if it must not, because something has changed since its
    /// last check. `is_open`: the lock may be handed to it. `for_head`: it sleeps until it is the head.
    pub(crate) fn sleep(&mut self, id: TicketId, is_open: bool, for_head: bool) -> bool {
        let Some(ticket) = self.queue.get_mut(id) else { return false };
        if std::mem::take(&mut ticket.word) || for_head && ticket.is_head {
            return false;
        }
        ticket.is_asleep = is_open;
        true
    }

    /// The waiter accepts no hand-off from now on. Clears its `word`, so that `sleep` notices later changes.
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

    /// Whether the client has a place in the store's queue that this waiter, as the last one here, must give
    /// up. The waiter does so before it leaves the local queue, so that this client's next attempt follows.
    pub(crate) fn takes_queue_place(&mut self) -> bool {
        self.queue.tickets.len() == 1 && std::mem::take(&mut self.queued)
    }

    /// Whether a grant counts: its window is open, and no earlier request under its number may still arrive.
    pub(crate) fn counts(&self, own: &HoldState<H>, now: Moment) -> bool {
        !own.is_over(now) && !self.retired.has_lately(own.number)
    }

    /// Enters a grant that [counts](Self::counts). Removes and returns the thread's earlier holds, now over.
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

    /// The waiter has handled the answer to the hand-off. Returns the hold that ended by it. `is_refused`:
    /// the hand-off changed nothing, and the releaser will release.
    pub(crate) fn received(&mut self, id: TicketId, is_refused: bool) -> Option<HoldState<H>> {
        let is_own = |own: &HoldState<H>| matches!(own.stage, Stage::HandingOff { to, .. } if to == id);
        let over = if is_refused {
            self.holds.iter_mut().filter(|own| is_own(own)).for_each(|own| own.set(Stage::Returning));
            None
        } else {
            self.holds.extract_if(.., |own| is_own(own)).next()
        };
        self.queue.wake_after_hand_off();
        over
    }

    /// Removes the waiter. Also returns the hold of a hand-off that the waiter did not receive.
    pub(crate) fn leave(&mut self, id: TicketId) -> (Option<Ticket<W>>, Option<HoldState<H>>) {
        let over = if self.handing() == Some((id, true)) { self.received(id, false) } else { None };
        let left = self.queue.leave(id);
        self.forget_if_unused();
        (left, over)
    }

    /// Ends `level`; by default the innermost without a guard, or else the innermost. After the last level,
    /// the hold is cached if it `may_stay` (see [`HoldState::can_stay`]), or its release begins. `None`:
    /// there is no such level.
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
        let is_over = own.is_over(at.now);
        if left > 0 {
            return Some(End { left, next: (!is_over).then_some(Next::Others), may_cache });
        }
        let by_time_slice = if may_cache && own.is_live() && !is_over { may_stay(own) } else { None };
        let cached = by_time_slice.and_then(|by_time_slice| self.cache(serial, by_time_slice, at));
        let next = cached.map(Next::Cached).or_else(|| self.begin_release(serial, at));
        Some(End { left, next, may_cache })
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

    /// As [`begin_release`](Self::begin_release), but hands the lock to no waiter. `false`: the hold is lost,
    /// or being released. If a request may arrive late, retires the number, to protect the next hold.
    pub(crate) fn begin_return(&mut self, serial: u64) -> bool {
        let Some(own) = self.state_of(serial).filter(|own| own.is_live()) else { return false };
        own.set(Stage::Returning);
        own.recallable = None;
        if own.is_in_doubt() {
            self.retire(serial);
        }
        true
    }

    /// Promises the lock to the head of the queue, if the head sleeps, unless other processes go first.
    pub(crate) fn promise(&mut self, at: At<'_>) -> Next {
        let is_handing = self.handing().is_some();
        let Machine { queue, local_handoffs, caching, .. } = self;
        let Some(head) = queue.tickets.front_mut() else { return Next::Nobody };
        let (handed, began) = local_handoffs.get_or_insert((0, at.now));
        if *handed >= at.rules.local_handoffs
            || at.now.since(*began) >= LOCAL_HANDOFF_TIME
            || caching.is_over(at)
        {
            return Next::Others;
        }
        if is_handing || !std::mem::take(&mut head.is_asleep) {
            return Next::Nobody;
        }
        *handed += 1;
        caching.pass_on(at.now);
        Next::Local(head.id)
    }

    /// The hand-off was sent, and the waiter will read the answer. `None`: the waiter panicked and is gone.
    pub(crate) fn sent(&mut self, serial: u64) -> Option<&mut W> {
        let Stage::HandingOff { to, sent } = &mut self.state_of(serial)?.stage else { return None };
        *sent = true;
        let to = *to;
        let ticket = self.queue.get_mut(to)?;
        ticket.tell();
        Some(&mut ticket.waiter)
    }

    pub(crate) fn not_sent(&mut self, serial: u64) {
        let Some(own) = self.state_of(serial) else { return };
        if let Stage::HandingOff { to, .. } = own.stage {
            own.set(Stage::Returning);
            if let Some(ticket) = self.queue.get_mut(to) {
                ticket.is_asleep = true;
                ticket.tell(); // the waiter may want to leave
            }
            self.queue.wake_after_hand_off();
        }
    }

    /// Removes an ended hold, and wakes the queue's heads. `released`: whom the store notified, and when.
    pub(crate) fn remove(&mut self, serial: u64, released: Option<(Others, Moment)>) -> Option<HoldState<H>> {
        // The release is noted before the next waiter wakes, who may have to let other processes go first.
        released.into_iter().for_each(|(others, now)| self.note_released(others, now));
        let taken = self.take_out(serial);
        self.caching.ends = None;
        self.queue.nudge();
        self.forget_if_unused();
        taken
    }

    pub(crate) fn take_out(&mut self, serial: u64) -> Option<HoldState<H>> {
        let at = self.holds.binary_search_by_key(&serial, |own| own.hold.serial()).ok()?;
        Some(self.holds.remove(at))
    }

    pub(crate) fn note_released(&mut self, others: Others, now: Moment) {
        self.local_handoffs = None;
        self.contended = (others != Others::Nobody).then_some((now, others));
    }

    pub(crate) fn forget_if_unused(&mut self) {
        if self.queue.tickets.is_empty() && self.holds.is_empty() {
            self.caching.ends = None;
            (self.local_handoffs, self.queued) = (None, false);
        }
    }

    /// The client ends: removes all holds, and retires the numbers under which requests may still arrive. A
    /// hold that is being handed off stays until its waiter has received and released it.
    pub(crate) fn clear(&mut self) -> Vec<HoldState<H>> {
        let doubtful = self.holds.iter().filter(|own| own.is_in_doubt()).map(|own| own.hold.serial());
        doubtful.collect::<Vec<_>>().into_iter().for_each(|serial| self.retire(serial));
        self.caching.ends = None;
        let is_over = |own: &mut HoldState<H>| !matches!(own.stage, Stage::HandingOff { .. });
        self.holds.extract_if(.., is_over).collect()
    }

    /// Records a loss. `false`: the hold was lost before, or is being released. Retires the number, because a
    /// request under it may be on its way, and the guard may still try to release. A shutdown releases the
    /// hold itself. So it retires only a number in doubt: the thread also uses the number in other clients.
    pub(crate) fn lose(&mut self, serial: u64, reason: LossReason) -> bool {
        let Some(own) = self.state_of(serial).filter(|own| own.stage != Stage::Lost) else { return false };
        let (is_live, is_in_doubt) = (own.is_live(), own.is_in_doubt());
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

    /// Retires the number when the hold ends, because a request about this hold may still arrive. While the
    /// hold lives its thread keeps the number, so that a writer can also acquire the read lock.
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
