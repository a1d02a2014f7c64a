//! The faults that a test can choose for the memory store.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// A way for requests to a [`MemoryStore`](crate::MemoryStore) to fail in a program's unit tests; see
/// [`MemoryStore::fail`](crate::MemoryStore::fail).
///
/// # Examples
/// ```
/// use leasehold::{Fault, LockClient, MemoryStore};
///
/// let store = MemoryStore::new();
/// let client = LockClient::in_memory_with(&store);
/// store.fail(Fault::AnswerLost);
/// // The lock may have been taken: the caller cannot know.
/// assert!(client.get_lock("a").try_lock().unwrap_err().outcome_unknown());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The store cannot be reached, and the client knows that no request is carried out. Errors are of kind
    /// [`Unreachable`](ErrorKind::Unreachable).
    Refused,
    /// Requests do not arrive, which the client cannot know: errors have an
    /// [unknown outcome](Error::outcome_unknown).
    RequestLost,
    /// Requests are carried out, and their answers are lost: errors have an
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

#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) of_all: Option<Fault>,
    /// Faults of single clients, by the id of their access.
    pub(super) of_some: Vec<(Arc<()>, Fault)>,
    pub(super) delay: Duration,
}

impl Faults {
    pub(super) fn of(&self, id: &Arc<()>) -> (Option<Fault>, Duration) {
        let own = self.of_some.iter().find(|(other, _)| Arc::ptr_eq(other, id));
        (own.map(|(_, fault)| *fault).or(self.of_all), self.delay)
    }
}
