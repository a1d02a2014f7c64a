//! Whether this client goes by the lines of a table of locks, and when it last removed what killed clients
//! left in them.

use std::time::Duration;

use crate::refused::Refused;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::{Clock, Moment};

/// A client that waits removes the entries of clients that were killed so often.
const TIDY_EVERY: Duration = Duration::from_secs(60);
/// For how long this client does without a table that another transaction had locked.
const LOCKED_LASTS: Duration = Duration::from_secs(10);

/// How a client goes by the lines of a table of locks.
#[derive(Default)]
pub(super) struct LineUse {
    /// The table is not there or of another shape, or the user lacks the permissions. After a while the next
    /// request about a line finds out anew.
    refused: Refused,
    /// The last release of this client's that looked found a client in line. Only which statements are tried
    /// first goes by it.
    awaited: AtomicBool,
    /// When this client last removed the entries of others that were killed.
    tidied: Mutex<Option<Moment>>,
}

impl LineUse {
    pub(super) fn is_refused(&self) -> bool {
        self.refused.stands(|| Clock::System.now())
    }

    /// Another transaction has locked the table: clients that go on without it are woken by no release in
    /// line.
    pub(super) fn note_locked(&self) {
        self.refused.note_for(Clock::System.now(), LOCKED_LASTS);
    }

    pub(super) fn note_refused(&self, is_refused: bool) {
        if is_refused {
            self.refused.note(Clock::System.now());
        } else {
            self.refused.forget();
        }
    }

    pub(super) fn was_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    pub(super) fn note_awaited(&self, was_awaited: bool) {
        self.awaited.store(was_awaited, Ordering::Relaxed);
    }

    pub(super) fn is_to_be_tidied(&self, now: Moment) -> bool {
        let mut tidied = self.tidied.lock();
        let is_due = tidied.is_none_or(|at| now.since(at) >= TIDY_EVERY);
        if is_due {
            *tidied = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_tidied_once_a_minute() {
        let (line, begun) = (LineUse::default(), Moment::from_nanos(0));
        let at = |seconds| line.is_to_be_tidied(begun.plus(Duration::from_secs(seconds)));
        assert_eq!(
            [at(0), at(59), at(60), at(61), at(119), at(120)],
            [true, false, true, false, false, true]
        );
    }
}
