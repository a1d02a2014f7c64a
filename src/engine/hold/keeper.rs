//! The thread that keeps a hold: without it nobody releases the lock.

use crate::engine::hold::{Hold, Holder};
use crate::sync::atomic::Ordering;

impl Hold {
    /// Whether the holding thread has ended.
    pub(crate) fn is_orphaned(&self) -> bool {
        matches!(&self.holder, Holder::Thread { mark, .. } if mark.strong_count() == 0)
    }

    /// Notes the thread that acquires more locks before anybody gets the guard of this one; zero: the guard
    /// is there.
    pub(crate) fn note_acquiring(&self, thread: u64) {
        self.acquires_more.store(thread, Ordering::Release);
    }

    /// The thread without which it is not released: its holder, or the one that acquires more to go with it.
    /// `None`: whichever has the guard.
    pub(crate) fn kept_by(&self) -> Option<u64> {
        match &self.holder {
            Holder::Thread { id, .. } => Some(*id),
            Holder::Guard => Some(self.acquires_more.load(Ordering::Acquire)).filter(|thread| *thread != 0),
        }
    }

    /// Whether this call is the first to say that the holding thread has ended.
    pub(crate) fn note_abandoned(&self) -> bool {
        !self.abandoned.swap(true, Ordering::AcqRel)
    }
}
