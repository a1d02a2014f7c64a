//! The re-entries of one hold.

use std::collections::VecDeque;

use crate::time::Lease;

#[derive(Default)]
pub(crate) struct Levels {
    next_id: u64,
    /// By ids, which go up: guards are dropped from either end, and however many there are, that costs the
    /// same.
    pub(crate) open: VecDeque<Level>,
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
        self.open.remove(at)
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.open.binary_search_by_key(&id, |level| level.id).ok()
    }
}
