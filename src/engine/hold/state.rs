//! The changing part of a hold, under the mutex of its lock: its levels, and the requests about it.

use std::collections::VecDeque;

use crate::time::{Lease, Moment};

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(super) levels: Levels,
    /// When the store was last asked to keep the hold; see `needs_keepalive`.
    pub(super) kept_alive_at: Moment,
    pub(super) renewal_has_failed: bool,
    /// A renewal is under way.
    pub(super) is_under_way: bool,
    /// The watchdog will renew the hold next.
    pub(crate) is_queued: bool,
    /// A request under the hold's number may still arrive; see `retire_owner_on_end`.
    pub(super) is_spent: bool,
    /// The owner reads as well; see `note_reading`.
    pub(super) is_read_beside: bool,
    /// The end of the holding thread was reported.
    pub(super) is_abandoned: bool,
    /// The steps after a loss have been done; see `timer.rs`.
    pub(crate) has_lapsed: bool,
    /// The call of the present use asked for caching.
    pub(super) asks_to_cache: bool,
    /// Cached until a recall, and renewed meanwhile without a level.
    pub(super) until_recall: bool,
    /// The thread that acquires more locks together with this one.
    pub(super) acquires_more: Option<u64>,
    /// Changed under the timer queue's mutex too.
    pub(crate) slot: TimerSlot,
}

impl State {
    /// Whether a request about the hold may still arrive.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.is_spent || self.is_under_way
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimerSlot {
    #[default]
    Out,
    Renewal(Moment),
    /// The window, or the thread, may have ended by then.
    Check(Moment),
}

impl TimerSlot {
    pub(crate) fn moment(self) -> Moment {
        match self {
            TimerSlot::Out => Moment::NEVER,
            TimerSlot::Renewal(at) | TimerSlot::Check(at) => at,
        }
    }
}

/// The re-entries of one hold.
#[derive(Debug, Default)]
pub(super) struct Levels {
    next_id: u64,
    /// By rising ids: dropping a guard costs the same from either end, however many there are.
    pub(super) open: VecDeque<Level>,
    /// How many open levels asked for renewal.
    pub(super) renewed: usize,
    /// A level, open or not, has asked for renewals.
    pub(super) was_renewed: bool,
}

#[derive(Debug)]
pub(super) struct Level {
    pub(super) id: u64,
    pub(super) lease: Lease,
    /// A guard ends it; `unlock()` does only if there is no other level.
    pub(super) guarded: bool,
}

impl Levels {
    pub(super) fn add(&mut self, lease: Lease) -> u64 {
        self.next_id += 1;
        self.renewed += usize::from(lease.is_renewed());
        self.was_renewed |= lease.is_renewed();
        self.open.push_back(Level { id: self.next_id, lease, guarded: false });
        self.next_id
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Level> {
        let at = self.place(id)?;
        self.open.get_mut(at)
    }

    /// By default the innermost that no guard ends, or else the innermost.
    pub(super) fn take(&mut self, id: Option<u64>) -> Option<Level> {
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

    /// A level that was kept while other locks were acquired ends by itself from now on; whether it was one.
    pub(super) fn settle(&mut self, id: u64) -> bool {
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
