//! The faults that a test can have the memory store show.

use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// How requests to a [`MemoryStore`](crate::MemoryStore) fail, for the unit tests of a program; see
/// [`MemoryStore::fail`](crate::MemoryStore::fail).
///
/// # Examples
///
/// ```
/// use leasehold::{Fault, LockClient, MemoryStore};
///
/// let store = MemoryStore::new();
/// let client = LockClient::in_memory_with(&store);
/// store.fail(Fault::AnswerLost);
/// // The lock may have been taken: the caller cannot know.
/// assert!(client.lock("a").try_lock().unwrap_err().outcome_unknown());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The store cannot be reached: no request is carried out, and the client knows that. Errors are of kind
    /// [`Unreachable`](ErrorKind::Unreachable).
    Refused,
    /// Requests do not arrive, and the client does not know that: errors have an
    /// [unknown outcome](Error::outcome_unknown).
    RequestLost,
    /// Requests are carried out, and their answers do not arrive: errors have an
    /// [unknown outcome](Error::outcome_unknown).
    AnswerLost,
}

impl Fault {
    pub(super) fn error(self) -> Error {
        match self {
            Fault::Refused => {
                Error::new(ErrorKind::Unreachable, "use", "the memory store was made unreachable")
            }
            Fault::RequestLost | Fault::AnswerLost => Error::new(
                ErrorKind::Unreachable,
                "use",
                "the connection to the memory store was made to break",
            )
            .with_unknown_outcome(),
        }
    }
}

/// A fault and a delay, for all clients or for one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wrong {
    pub(super) fault: Option<Fault>,
    pub(super) delay: Duration,
}
