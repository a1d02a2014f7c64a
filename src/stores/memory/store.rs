//! A store in this process, for several clients. A test can have requests refused, lost or answered late.

use std::sync::Arc;
use std::time::Duration;

use crate::config::debug_fields;
use crate::error::{Error, ErrorKind};
use crate::seam::subscription::{Channel, ChannelSource, Channels};
use crate::shrink::Sweeps;
use crate::stores::memory::state::MemoryState;
use crate::sync::Mutex;
use crate::time::{Clock, ManualClock};

/// Locks kept in this process, in place of a server.
///
/// Clients on clones of one store share its locks, as processes share a Redis; each has its own watchdog.
/// With a [`ManualClock`] a test decides when leases end.
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

    /// Makes an empty store with `clock` as its clock, and its clients' clock.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> MemoryStore {
        let shared = MemoryShared { clock: Clock::Manual(clock), ..MemoryShared::default() };
        MemoryStore { shared: Arc::new(shared) }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Makes every request of every client fail in this way until [`heal`](Self::heal).
    ///
    /// Calls that wait retry for the client's `retry_timeout`, which never ends on a [`ManualClock`] that
    /// stands still. A test with one thread sets [`retry_timeout`](crate::ClientBuilder::retry_timeout) to
    /// zero and makes the client by [`build_in_memory`](crate::ClientBuilder::build_in_memory), or uses
    /// calls that do not wait. Messages to waiters are not affected.
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

    /// Delays every answer until [`heal`](Self::heal). An answer later than the client's command time-out is
    /// lost: the store carries out the request, and its outcome is unknown.
    ///
    /// Each call moves a [`ManualClock`] on by the delay, so that tests with one thread do not wait. The
    /// watchdog's requests do not move the clock.
    pub fn slow_down(&self, delay: Duration) {
        self.shared.faults.lock().delay = delay;
    }

    /// Ends [`fail`](Self::fail), [`fail_client`](Self::fail_client) and [`slow_down`](Self::slow_down).
    pub fn heal(&self) {
        *self.shared.faults.lock() = Faults::default();
    }

    /// Deletes everything under this key, as a server that lost its data does, and returns whether there was
    /// anything. No client is notified: a holder learns it from a renewal or release. Fencing tokens
    /// continue.
    ///
    /// The key is the lock's name after prefix and mapping.
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
    /// clock.advance(Duration::from_secs(10)); // the watchdog renews a lease of 30 s by then
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

/// A way in which requests to a [`MemoryStore`] fail, for unit tests; see
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
    /// The store cannot be reached and the client knows that nothing is carried out: errors are of kind
    /// [`Unreachable`](ErrorKind::Unreachable).
    Refused,
    /// Requests are lost, unknown to the client: errors have an [unknown outcome](Error::outcome_unknown).
    RequestLost,
    /// Requests are carried out and their answers are lost: errors have an [unknown
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
    /// The faults of single clients, by the id of a client's access.
    pub(super) of_some: Vec<(Arc<()>, Fault)>,
    pub(super) delay: Duration,
}

impl Faults {
    pub(super) fn of(&self, id: &Arc<()>) -> (Option<Fault>, Duration) {
        let own = self.of_some.iter().find(|(other, _)| Arc::ptr_eq(other, id));
        (own.map(|(_, fault)| *fault).or(self.of_all), self.delay)
    }
}
