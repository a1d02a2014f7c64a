//! A store in this process, whose requests tests can make fail, and whose answers they can delay.

use std::sync::Arc;
use std::time::Duration;

use crate::config::debug_fields;
use crate::error::{Error, ErrorKind};
use crate::seam::subscription::{Channel, ChannelSource, Channels};
use crate::shrink::Sweeps;
use crate::stores::memory::state::MemoryState;
use crate::sync::Mutex;
use crate::time::{Clock, ManualClock};

/// A lock store in this process that needs no server, for tests.
///
/// Clients of one store, or of its clones, share its locks, as processes share a Redis server. With a
/// [`ManualClock`], a test decides when leases end.
///
/// # Examples
/// ```
/// use leasehold::{LockClient, MemoryStore};
///
/// let store = MemoryStore::new();
/// let (one, other) = (LockClient::in_memory_with(&store), LockClient::in_memory_with(&store));
/// let guard = one.get_lock("a").acquire()?;
/// assert!(!other.get_lock("a").try_lock()?);
/// guard.unlock()?;
/// assert!(other.get_lock("a").try_lock()?);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct MemoryStore {
    pub(super) shared: Arc<MemoryShared>,
}

#[derive(Default)]
pub(super) struct MemoryShared {
    pub(super) clock: Clock,
    pub(super) state: Mutex<MemoryState>,
    pub(super) channels: Channels,
    pub(super) sweeps: Sweeps,
    pub(super) faults: Mutex<Faults>,
}

impl MemoryStore {
    pub(crate) fn place(&self) -> String {
        format!("memory {:p}", Arc::as_ptr(&self.shared))
    }

    /// Makes an empty store with the system's clock.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Makes an empty store. `clock` is the clock of the store and of its clients.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> MemoryStore {
        let shared = MemoryShared { clock: Clock::Manual(clock), ..MemoryShared::default() };
        MemoryStore { shared: Arc::new(shared) }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Makes every request of every client fail in this way, until [`heal`](Self::heal).
    ///
    /// A call that waits retries for the client's `retry_timeout`. On a [`ManualClock`] that stands still
    /// this time never ends, so a test with one thread sets
    /// [`retry_timeout`](crate::ClientBuilder::retry_timeout) to zero and builds the client with
    /// [`build_in_memory`](crate::ClientBuilder::build_in_memory), or uses calls that do not wait. Messages
    /// to waiters still arrive.
    ///
    /// # Examples
    /// ```
    /// use leasehold::{Fault, LockClient, MemoryStore};
    ///
    /// let store = MemoryStore::new();
    /// let client = LockClient::in_memory_with(&store);
    /// store.fail(Fault::Refused);
    /// assert!(client.get_lock("a").try_lock().unwrap_err().is_retryable());
    /// store.heal();
    /// assert!(client.get_lock("a").try_lock()?);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fail(&self, fault: Fault) {
        self.shared.faults.lock().of_all = Some(fault);
    }

    /// Delays every answer, until [`heal`](Self::heal). If an answer is later than the client's command
    /// time-out, the request was carried out, but its outcome is unknown to the client.
    ///
    /// With a [`ManualClock`], each call moves the clock on by the delay, so that tests with one thread do
    /// not wait. Requests of the client's own threads do not move the clock.
    pub fn slow_down(&self, delay: Duration) {
        self.shared.faults.lock().delay = delay;
    }

    /// Ends [`fail`](Self::fail), [`fail_client`](Self::fail_client) and [`slow_down`](Self::slow_down).
    pub fn heal(&self) {
        *self.shared.faults.lock() = Faults::default();
    }

    /// Deletes everything under this key, like a server that lost its data, and returns whether anything
    /// existed. No client is notified: a holder learns of the loss from its next renewal or release. Fencing
    /// tokens continue.
    ///
    /// The key is the lock's name with prefix and mapping applied.
    ///
    /// # Examples
    /// ```
    /// use leasehold::{LockClient, ManualClock, MemoryStore};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let store = MemoryStore::with_clock(clock.clone());
    /// let guard = LockClient::in_memory_with(&store).get_lock("a").acquire()?;
    /// assert!(store.forget("a"));
    /// clock.advance(Duration::from_secs(10)); // the client renews a lease of 30 s by then
    /// assert!(guard.check().unwrap_err().is_lost());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn forget(&self, key: impl AsRef<str>) -> bool {
        self.shared.state.lock().forget(key.as_ref())
    }
}

debug_fields!(MemoryStore, |it| clock: it.shared.clock);

impl ChannelSource for MemoryShared {
    fn left(&self, channel: &Arc<Channel>) {
        self.channels.left(channel);
    }
}

/// How requests to a [`MemoryStore`] fail in unit tests; see [`MemoryStore::fail`](crate::MemoryStore::fail).
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
    /// The store cannot be reached, and nothing is carried out: errors are of kind
    /// [`Unreachable`](ErrorKind::Unreachable).
    Refused,
    /// Requests do not arrive, and the client cannot know: errors have an [unknown
    /// outcome](Error::outcome_unknown).
    RequestLost,
    /// Requests are carried out, but answers do not arrive: errors have an [unknown
    /// outcome](Error::outcome_unknown).
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
    /// Faults of single clients, each with the `id` of the client's access.
    pub(super) of_some: Vec<(Arc<()>, Fault)>,
    pub(super) delay: Duration,
}

impl Faults {
    pub(super) fn of(&self, id: &Arc<()>) -> (Option<Fault>, Duration) {
        let own = self.of_some.iter().find(|(other, _)| Arc::ptr_eq(other, id));
        (own.map(|(_, fault)| *fault).or(self.of_all), self.delay)
    }
}
