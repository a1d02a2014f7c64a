//! Faults of one client on a memory store, for unit tests.

use std::sync::Arc;

use crate::client::LockClient;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::stores::memory::{Fault, MemoryAccess, MemoryStore};

impl MemoryStore {
    /// Makes every request of this client fail in this way until [`heal`](Self::heal); other clients
    /// continue.
    ///
    /// # Errors
    /// The client is not on this store.
    pub fn fail_client(&self, client: &LockClient, fault: Fault) -> Result<()> {
        self.access_of("fail_client", client)?.fail(fault);
        Ok(())
    }

    /// Stops this client's own threads until the result is dropped, as if its process were stopped: it
    /// renews nothing, and reports no loss. Afterwards it continues, and finds out.
    ///
    /// The test's own threads continue, unlike those of a stopped process, and callbacks already due still
    /// run.
    ///
    /// # Errors
    /// The client is not on this store.
    ///
    /// # Examples
    /// ```
    /// use leasehold::{LockClient, ManualClock, MemoryStore};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let store = MemoryStore::with_clock(clock.clone());
    /// let client = LockClient::in_memory_with(&store);
    /// let guard = client.get_lock("a").acquire()?;
    /// let paused = store.pause_client(&client)?;
    /// clock.advance(Duration::from_secs(60)); // its lease of 30 s is over
    /// assert!(LockClient::in_memory_with(&store).get_lock("a").try_lock()?);
    /// drop(paused);
    /// assert!(guard.check().unwrap_err().is_lost());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn pause_client(&self, client: &LockClient) -> Result<PausedClient> {
        self.access_of("pause_client", client)?;
        client.engine.stand_still(true);
        Ok(PausedClient { engine: Arc::clone(&client.engine) })
    }

    fn access_of<'a>(&self, action: &'static str, client: &'a LockClient) -> Result<&'a MemoryAccess> {
        let access =
            client.engine.store.capabilities().itself.and_then(|store| store.downcast_ref::<MemoryAccess>());
        let access = access.filter(|access| access.is_of(self));
        access.ok_or_else(|| Error::invalid(action, "the client is not on this memory store"))
    }
}

/// A client whose threads stand still until this is dropped; see [`MemoryStore::pause_client`].
///
/// # Examples
/// ```
/// use leasehold::{HoldState, LockClient, ManualClock, MemoryStore};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let store = MemoryStore::with_clock(clock.clone());
/// let client = LockClient::in_memory_with(&store);
/// let guard = client.get_lock("a").acquire()?;
/// {
///     let _paused = store.pause_client(&client)?;
///     clock.advance(Duration::from_secs(60)); // nothing is renewed
/// }
/// assert_eq!(guard.state(), HoldState::Lost);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the client goes on as soon as this is dropped"]
pub struct PausedClient {
    engine: Arc<Engine>,
}

impl Drop for PausedClient {
    fn drop(&mut self) {
        self.engine.stand_still(false);
    }
}
