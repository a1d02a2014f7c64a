//! The thread that keeps a hold: without it nobody releases the lock.

use crate::engine::hold::{Hold, Holder};

impl Hold {
    /// Whether the holding thread has ended.
    pub(crate) fn is_orphaned(&self) -> bool {
        matches!(&self.holder, Holder::Thread { mark, .. } if mark.strong_count() == 0)
    }

    /// Notes the thread that acquires more locks before anybody gets the guard of this one; zero: the guard
    /// is there.
    pub(crate) fn note_acquiring(&self, thread: u64) {
        self.state.lock().acquires_more = Some(thread).filter(|thread| *thread != 0);
    }

    /// The thread without which it is not released: its holder, or the one that acquires more to go with it.
    /// `None`: whichever has the guard.
    pub(crate) fn kept_by(&self) -> Option<u64> {
        match &self.holder {
            Holder::Thread { id, .. } => Some(*id),
            Holder::Guard { .. } => self.state.lock().acquires_more,
        }
    }

    /// Whether this call is the first to say that the holding thread has ended.
    pub(crate) fn note_abandoned(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().is_abandoned, true)
    }
}
