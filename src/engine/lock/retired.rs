//! Owner numbers that no hold of a lock follows under.

use std::collections::VecDeque;

/// The last owner numbers under which a request about the lock may still come. Later numbers are greater.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Retired {
    pub(super) last: VecDeque<u64>,
    /// This number and all before count as retired: there were too many.
    until: u64,
}

pub(super) const MOST_RETIRED: usize = 32;

impl Retired {
    /// Something may still come under that number.
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

    /// Whether that number is one of the last, as one that was retired a moment ago is.
    pub(super) fn has_lately(&self, number: u64) -> bool {
        self.last.contains(&number)
    }

    /// Whether a grant under that number may meet a late request.
    pub(crate) fn has(&self, number: u64) -> bool {
        number <= self.until || self.last.contains(&number)
    }
}
