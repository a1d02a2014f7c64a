//! The async task that the calling thread runs, as far as known.
//!
//! A thread owns a hold, and tasks share a thread: to the store they are one owner. So a hold also remembers
//! its task.

/// A task, or none. Without the feature `tokio` none is known, so all are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskMarker {
    #[cfg(feature = "tokio")]
    id: Option<tokio::task::Id>,
}

impl TaskMarker {
    /// The task that this thread runs now; none outside of tasks, as in the future of tokio's `block_on`.
    pub(crate) fn current() -> TaskMarker {
        TaskMarker {
            #[cfg(feature = "tokio")]
            id: tokio::task::try_id(),
        }
    }

    pub(crate) fn is_some(self) -> bool {
        #[cfg(feature = "tokio")]
        let is_some = self.id.is_some();
        #[cfg(not(feature = "tokio"))]
        let is_some = false;
        is_some
    }
}
