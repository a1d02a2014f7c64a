//! The re-entries of one hold.

use std::collections::VecDeque;

use crate::time::Lease;

#[derive(Default)]
pub(crate) struct Levels {
    next_id: u64,
    /// By ids, which go up: guards are dropped from either end, and however many there are, that costs the
    /// same.
    pub(crate) open: VecDeque<Level>,
    /// How many open ones asked for renewal.
    pub(super) renewed: usize,
    /// Some level has asked for renewals, open or not.
    pub(super) was_renewed: bool,
}

pub(crate) struct Level {
    pub(super) id: u64,
    pub(crate) lease: Lease,
    /// A guard ends it; `unlock()` does only if there is no other.
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

    /// Takes a level out; if none is named, the innermost that no guard ends, or else the innermost.
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

    /// A level that was kept until other locks were acquired ends by itself from now on; whether it was one.
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
