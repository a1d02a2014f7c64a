//! The faults that a test can have the memory store show.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// How requests to a [`MemoryStore`](crate::MemoryStore) fail, for the unit tests of a program; see
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

/// The faults of a store now.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) of_all: Option<Fault>,
    /// Of some clients, each by its access's id.
    pub(super) of_some: Vec<(Arc<()>, Fault)>,
    /// How much later answers come.
    pub(super) delay: Duration,
}

impl Faults {
    /// The fault and the delay of a request that this client begins now.
    pub(super) fn of(&self, id: &Arc<()>) -> (Option<Fault>, Duration) {
        let own = self.of_some.iter().find(|(other, _)| Arc::ptr_eq(other, id));
        (own.map(|(_, fault)| *fault).or(self.of_all), self.delay)
    }
}
