//! A store in this process, which several clients may share.

use std::fmt;
use std::sync::Arc;

use crate::room::Sweeps;
use crate::seam::subscription::{Channel, ChannelSource};
use crate::stores::memory::fault::Faults;
use crate::stores::memory::state::{Channels, MemoryState};
use crate::sync::Mutex;
use crate::time::{Clock, ManualClock};

/// Locks kept in this process, in place of a server.
///
/// Clients made on clones of one store share its locks, as several processes share a Redis; each has its own
/// watchdog. With a [`ManualClock`] a test decides when leases end.
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
    pub(super) channels: Mutex<Channels>,
    pub(super) sweeps: Sweeps,
    pub(super) faults: Mutex<Faults>,
}

impl MemoryStore {
    pub(crate) fn place(&self) -> String {
        format!("memory {:p}", Arc::as_ptr(&self.shared))
    }

    /// Makes an empty store that goes by the system's clock.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Makes an empty store that goes by `clock`, as will the clients on it.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> MemoryStore {
        let shared = MemoryShared { clock: Clock::Manual(clock), ..MemoryShared::default() };
        MemoryStore { shared: Arc::new(shared) }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.clock
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("clock", &self.shared.clock).finish_non_exhaustive()
    }
}

impl ChannelSource for MemoryShared {
    fn left(&self, channel: &Arc<Channel>) {
        let mut channels = self.channels.lock();
        if channel.listeners() == 0
            && channels.get(channel.channel()).is_some_and(|current| Arc::ptr_eq(current, channel))
        {
            channels.remove(channel.channel());
        }
    }
}
