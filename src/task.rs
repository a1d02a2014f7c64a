//! The task of an async runtime that the calling thread is running, as far as that can be known.
//!
//! The owner of a hold is a thread, and tasks share one: to the store they are one owner. So a hold remembers
//! its task too.

/// A task, or none. Without the feature `tokio` none is known, and all are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskMarker {
    #[cfg(feature = "tokio")]
    id: Option<tokio::task::Id>,
}

impl TaskMarker {
    /// The task that runs on this thread now. Outside of tasks, as in the future of tokio's `block_on`, there
    /// is none.
    pub(crate) fn current() -> TaskMarker {
        TaskMarker {
            #[cfg(feature = "tokio")]
            id: tokio::task::try_id(),
        }
    }

    /// Whether a task is known.
    pub(crate) fn is_some(self) -> bool {
        #[cfg(feature = "tokio")]
        let is_some = self.id.is_some();
        #[cfg(not(feature = "tokio"))]
        let is_some = false;
        is_some
    }
}
