//! The parts of a lock's state: the holds, the local queue, and the retired owner numbers.
//!
//! Waiters that [spin](crate::LockClient::get_spin_lock), or want several permits, have a head of their own:
//! others must not wait for a head's back-off or permits. A hand-off goes to the first waiter of either sort.

use std::collections::VecDeque;
use std::time::Duration;

use crate::engine::lock::hearing::Hears;
use crate::engine::lock::{Handle, Waits};
use crate::time::{Lease, Moment};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    Held,
    /// No thread has a level, but the hold's own thread may reuse the hold.
    Cached(CachedFor),
    /// A request makes a waiter the owner. The waiter reads the answer once the request is `sent`.
    HandingOff {
        to: TicketId,
        sent: bool,
    },
    /// The hold is being released. It stays until the release was sent, or answered if the releaser waits, so
    /// that later requests of this process follow the release.
    Returning,
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CachedFor {
    TimeSlice,
    /// The moment is when the last level ended.
    UntilRecall(Moment),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Recallable {
    pub(crate) heard: u64,
    pub(crate) is_wanted: bool,
    pub(crate) next_check: Moment,
    pub(crate) gap: Duration,
}

/// The changing state of a hold, under the lock's mutex.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct HoldState<H> {
    pub(crate) hold: H,
    pub(crate) thread: Option<u64>,
    pub(crate) number: u64,
    pub(crate) stage: Stage,
    pub(crate) until: Moment,
    pub(crate) levels: Levels,
    /// When the request was sent that last granted or renewed the hold; see `needs_keepalive`.
    pub(crate) kept_alive_at: Moment,
    pub(crate) renewal_has_failed: bool,
    pub(crate) is_under_way: bool,
    pub(crate) is_queued: bool,
    /// Whether a request under the hold's number may still arrive; see `spend`.
    pub(crate) is_spent: bool,
    /// Whether the owner of this write hold also reads; see `Engine::end_writing_in_time`.
    pub(crate) is_read_beside: bool,
    pub(crate) is_abandoned: bool,
    /// Whether the timer has handled the loss; see `timer.rs`.
    pub(crate) has_lapsed: bool,
    pub(crate) asks_to_cache: bool,
    /// `Some`: the hold may be cached until a recall, so it is renewed even without a level.
    pub(crate) recallable: Option<Recallable>,
    pub(crate) hears: Option<Box<Hears>>,
    pub(crate) acquires_more: Option<u64>,
    pub(crate) check_at: Moment,
}

impl<H: Handle> HoldState<H> {
    pub(crate) fn new(hold: H, thread: Option<u64>, number: u64, sent: Moment, until: Moment) -> Self {
        HoldState {
            hold,
            thread,
            number,
            stage: Stage::Held,
            until,
            levels: Levels::default(),
            kept_alive_at: sent,
            renewal_has_failed: false,
            is_under_way: false,
            is_queued: false,
            is_spent: false,
            is_read_beside: false,
            is_abandoned: false,
            has_lapsed: false,
            asks_to_cache: false,
            recallable: None,
            hears: None,
            acquires_more: None,
            check_at: Moment::NEVER,
        }
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.is_spent || self.is_under_way
    }

    pub(crate) fn is_of(&self, thread: u64) -> bool {
        self.thread == Some(thread)
    }

    /// The one thread that can release the hold: its holder, or the thread that is still acquiring the other
    /// locks of a multi-lock. `None`: any thread with the guard.
    pub(crate) fn keeper(&self) -> Option<u64> {
        self.thread.or(self.acquires_more)
    }

    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.stage == Stage::Lost || now >= self.until.min(self.hold.session_ends())
    }

    pub(crate) fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Held | Stage::Cached(_))
    }

    pub(crate) fn is_cached(&self) -> bool {
        matches!(self.stage, Stage::Cached(_))
    }

    pub(crate) fn is_cached_until_recall(&self) -> bool {
        matches!(self.stage, Stage::Cached(CachedFor::UntilRecall(_)))
    }

    pub(super) fn set(&mut self, stage: Stage) {
        self.stage = stage;
        self.hold.publish(stage);
    }

    /// How the hold may be cached after its last level. `None`: not at all. `Some(false)`: until a recall.
    /// `Some(true)`: for a time slice, and until a recall if it is `recallable`. A slice needs `has_slices`,
    /// and a dropped guard or a call that asks to cache. During a renewal only a `recallable` hold is cached.
    pub(crate) fn can_stay(&self, has_slices: bool, is_dropped: bool) -> Option<bool> {
        let by_time_slice = has_slices && (is_dropped || self.asks_to_cache);
        let until_recall = self.recallable.is_some();
        let is_sound =
            !self.renewal_has_failed && if until_recall { !self.is_spent } else { !self.is_in_doubt() };
        ((until_recall || by_time_slice) && is_sound).then_some(by_time_slice)
    }

    /// A request was confirmed at `now`: moves the end of the window to `until`, but never back. `false`: the
    /// window had ended before, which a thread may have seen.
    pub(crate) fn confirm(&mut self, until: Moment, now: Moment) -> bool {
        let is_in_time = now < self.until;
        self.until = self.until.max(until);
        self.renewal_has_failed = false;
        is_in_time
    }

    /// Notes that a renewal is about to be sent: a release before its answer then retires the owner number.
    /// `false`: the caller must send no renewal.
    pub(crate) fn begin_renewal(&mut self, is_wanted: bool) -> bool {
        self.is_under_way = is_wanted && self.is_live();
        self.is_under_way
    }

    /// Lets the hold be cached until a recall. `heard`: the number of recalls before the attempt;
    /// `is_wanted`: others waited at the grant; `gap`: the time until the first check.
    pub(crate) fn until_recall(&mut self, heard: u64, is_wanted: bool, now: Moment, gap: Duration) {
        self.recallable = Some(Recallable { heard, is_wanted, next_check: now.plus(gap), gap });
    }
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Levels {
    next_id: u64,
    /// Sorted by id, so that a guard's level is found quickly among many.
    pub(crate) open: VecDeque<Level>,
    /// Number of open levels that ask for renewals.
    pub(crate) renewed: usize,
    /// Whether any level, ended or not, asked for renewals; see `Timer::let_lapse`.
    pub(crate) was_renewed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Level {
    pub(crate) id: u64,
    pub(crate) lease: Lease,
    /// Whether a guard ends this level. `unlock` ends such a level only if all levels have guards.
    pub(crate) guarded: bool,
}

impl Levels {
    pub(crate) fn add(&mut self, lease: Lease) -> u64 {
        self.next_id += 1;
        self.renewed += usize::from(lease.is_renewed());
        self.was_renewed |= lease.is_renewed();
        self.open.push_back(Level { id: self.next_id, lease, guarded: false });
        self.next_id
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Level> {
        let at = self.place(id)?;
        self.open.get_mut(at)
    }

    pub(crate) fn take(&mut self, id: Option<u64>) -> Option<Level> {
        let at = match id {
            Some(id) => self.place(id)?,
            None => {
                let unguarded = self.open.iter().rposition(|level| !level.guarded);
                unguarded.or_else(|| self.open.len().checked_sub(1))?
            }
        };
        let level = self.open.remove(at)?;
        self.renewed -= usize::from(level.lease.is_renewed());
        Some(level)
    }

    /// Ends the renewals of a multi-lock's level, because all locks are acquired now. `false`: no change.
    pub(crate) fn settle(&mut self, id: u64) -> bool {
        let Some(level) = self.get_mut(id) else { return false };
        let Lease::Kept(lease) = level.lease else { return false };
        level.lease = Lease::Fixed(lease);
        self.renewed -= 1;
        true
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.open.binary_search_by_key(&id, |level| level.id).ok()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TicketId(pub(crate) u64);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Ticket<W> {
    pub(crate) id: TicketId,
    pub(crate) waiter: W,
    spins: bool,
    /// Whether this is the first waiter that spins, or the first that does not.
    pub(crate) is_head: bool,
    /// Whether the waiter sleeps, and may be handed the lock.
    pub(crate) is_asleep: bool,
    /// Whether to wake this waiter after a hand-off: the waiter attempts although the process has a hold, and
    /// found the lock on its way to another waiter.
    pub(crate) woken_after_hand_off: bool,
    /// The note that something has changed since the waiter last checked. Cleared before each attempt.
    pub(crate) word: bool,
}

impl<W: Waits> Ticket<W> {
    pub(super) fn tell(&mut self) {
        self.word = true;
        self.waiter.wake();
    }
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Queue<W> {
    /// In order of arrival. A hand-off goes to the first.
    pub(crate) tickets: VecDeque<Ticket<W>>,
    spinning: usize,
}

impl<W: Waits> Queue<W> {
    pub(crate) fn join(&mut self, id: TicketId, waiter: W, spins: bool) {
        let alike = if spins { self.spinning } else { self.tickets.len() - self.spinning };
        self.spinning += usize::from(spins);
        let (is_head, is_asleep, woken_after_hand_off, word) = (alike == 0, false, false, false);
        self.tickets.push_back(Ticket { id, waiter, spins, is_head, is_asleep, woken_after_hand_off, word });
    }

    /// Removes and returns a waiter. If the waiter was a head, the next of its sort (spinning or not) becomes
    /// the head and is woken. A new head attempts first, so no wake-up of the old head is lost.
    pub(crate) fn leave(&mut self, id: TicketId) -> Option<Ticket<W>> {
        let at = self.tickets.iter().position(|ticket| ticket.id == id)?;
        let left = self.tickets.remove(at)?;
        self.spinning -= usize::from(left.spins);
        if left.is_head
            && let Some(next) = self.tickets.iter_mut().find(|other| other.spins == left.spins)
        {
            next.is_head = true;
            next.tell();
        }
        // The head of the other sort (spinning or not) may wait for the end of a hand-off to `left`.
        if at == 0
            && let Some(first) = self.tickets.front_mut()
            && first.spins != left.spins
        {
            first.tell();
        }
        Some(left)
    }

    pub(crate) fn get(&self, id: TicketId) -> Option<&Ticket<W>> {
        self.tickets.iter().find(|ticket| ticket.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: TicketId) -> Option<&mut Ticket<W>> {
        self.tickets.iter_mut().find(|ticket| ticket.id == id)
    }

    /// Wakes the first waiter that spins and the first that does not, because the lock may be free.
    pub(crate) fn nudge(&mut self) {
        self.tickets.iter_mut().filter(|ticket| ticket.is_head).for_each(Ticket::tell);
    }

    /// If waiters spin or want several permits, wakes all of these and the heads, because the client has lost
    /// its place in the store's queue.
    pub(crate) fn nudge_apart(&mut self) {
        if self.spinning > 0 {
            let asking = |ticket: &&mut Ticket<W>| ticket.spins || ticket.is_head;
            self.tickets.iter_mut().filter(asking).for_each(Ticket::tell);
        }
    }

    pub(super) fn wake_after_hand_off(&mut self) {
        for ticket in self.tickets.iter_mut().filter(|ticket| ticket.woken_after_hand_off) {
            ticket.woken_after_hand_off = false;
            ticket.tell();
        }
    }

    pub(crate) fn wake_all(&mut self) {
        self.tickets.iter_mut().for_each(|ticket| ticket.waiter.wake());
    }
}

/// Retired owner numbers, under which a request may still arrive. Later numbers are greater.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Retired {
    pub(super) last: VecDeque<u64>,
    /// All numbers up to this one count as retired, because `last` has room for [`MOST_RETIRED`] only.
    until: u64,
}

pub(super) const MOST_RETIRED: usize = 32;

impl Retired {
    pub(crate) fn add(&mut self, number: u64) {
        if !self.last.contains(&number) {
            self.last.push_back(number);
        }
        if self.last.len() > MOST_RETIRED
            && let Some(oldest) = self.last.pop_front()
        {
            self.until = self.until.max(oldest);
        }
    }

    pub(super) fn has_lately(&self, number: u64) -> bool {
        self.last.contains(&number)
    }

    /// Whether a late request may still arrive under this number.
    pub(crate) fn has(&self, number: u64) -> bool {
        number <= self.until || self.last.contains(&number)
    }
}
