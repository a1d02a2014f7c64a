//! The async task that the calling thread runs, as far as known.
//!
//! Tasks share a thread, which owns their holds in the store. Therefore a hold also remembers its task.

#[cfg(feature = "tokio")]
use tokio::task::{Id, try_id};

#[cfg(not(feature = "tokio"))]
type Id = ();

#[cfg(not(feature = "tokio"))]
fn try_id() -> Option<Id> {
    None
}

/// A task, or no task. Without the feature `tokio` every marker means no task, so all markers are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskMarker(Option<Id>);

impl TaskMarker {
    /// The task that this thread runs now; none outside of tasks, as in the future of tokio's `block_on`.
    pub(crate) fn current() -> TaskMarker {
        TaskMarker(try_id())
    }

    pub(crate) fn is_some(self) -> bool {
        self.0.is_some()
    }
}
