//! A gate that opens when a count reaches zero.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::Result;
use crate::interrupt::Interrupt;
use crate::locks::named::RedisLock;
use crate::locks::options::AcquireOptions;
use crate::seam::{Counting, Kind};

/// A count under a name, and waiters for zero: Redisson's `RCountDownLatch`.
/// A latch that was never set up is open, and [`count_down`](Self::count_down) on it does nothing, since an
/// open latch has no key in the store, as in Redisson. Set the latch up before anyone waits.
///
/// # Guarantees
/// When the latch opens, all waiters continue: by a message, or within 1.2 s if the message is lost. A
/// count-down whose answer is lost is repeated, and counted once, for up to ten minutes.
///
/// # Examples
/// ```
/// use std::thread;
///
/// # let client = leasehold::LockClient::in_memory();
/// let ready = client.get_count_down_latch("ready");
/// ready.try_set_count(2)?;
/// thread::scope(|scope| {
///     for _ in 0..2 {
///         scope.spawn(|| ready.count_down().unwrap());
///     }
///     ready.wait().unwrap();
/// });
/// assert_eq!(ready.count()?, 0);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a latch is a handle, which waits for nothing yet: call `wait()`"]
pub struct CountDownLatch {
    core: RedisLock,
}

impl CountDownLatch {
    pub(crate) fn new(engine: &Arc<Engine>, name: &str) -> CountDownLatch {
        CountDownLatch { core: RedisLock::new(engine, Kind::Latch, name) }
    }

    /// The name, as it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// Sets the count up; `false`, with nothing changed, if the latch has not reached zero. Zero leaves the
    /// latch open, without a key.
    ///
    /// # Blocking
    /// One round trip; while the server cannot be used, up to the client's retry time-out.
    ///
    /// # Errors
    /// The name is bad, the key holds something else, or the server could not be used.
    pub fn try_set_count(&self, count: u32) -> Result<bool> {
        Ok(self.core.count("try_set_count", &Counting::SetUp { to: count, lease: None })? == Some(1))
    }

    /// Counts one down, and opens the latch at zero; returns the count. Does nothing to an open latch.
    ///
    /// # Blocking
    /// As [`try_set_count`](Self::try_set_count).
    ///
    /// # Errors
    /// As [`try_set_count`](Self::try_set_count).
    pub fn count_down(&self) -> Result<i64> {
        Ok(self.core.count("count_down", &Counting::CountDown)?.unwrap_or(0))
    }

    /// The count.
    ///
    /// # Blocking
    /// As [`try_set_count`](Self::try_set_count).
    ///
    /// # Errors
    /// As [`try_set_count`](Self::try_set_count).
    pub fn count(&self) -> Result<i64> {
        Ok(self.core.count("count", &Counting::Ask)?.unwrap_or(0))
    }

    /// Waits until the latch is open.
    ///
    /// # Blocking
    /// As long as it takes; one round trip if the latch is open.
    ///
    /// # Errors
    /// The name is bad; the key holds something else; or the server could not be used for the client's retry
    /// time-out.
    pub fn wait(&self) -> Result<()> {
        self.pass("wait", &AcquireOptions::new()).map(drop)
    }

    /// Waits until the latch is open, for `wait` at most; `false` if it is still closed.
    ///
    /// # Blocking
    /// Up to `wait` and one command time-out.
    ///
    /// # Errors
    /// As [`wait`](Self::wait). If the last request failed, its error is returned, not `false`.
    pub fn wait_for(&self, wait: Duration) -> Result<bool> {
        self.pass("wait_for", &AcquireOptions::new().wait(wait))
    }

    /// Waits until the latch is open or `interrupt` is set.
    ///
    /// # Blocking
    /// As [`wait`](Self::wait).
    ///
    /// # Errors
    /// As [`wait`](Self::wait); and one that [`is_interrupted`](crate::Error::is_interrupted).
    pub fn wait_interruptibly(&self, interrupt: &Interrupt) -> Result<()> {
        self.pass("wait_interruptibly", &AcquireOptions::new().interrupt(interrupt)).map(drop)
    }

    /// Removes the latch, which opens it; `false` if there was none. (Java's `delete` wakes no waiter.)
    ///
    /// # Blocking
    /// As [`try_set_count`](Self::try_set_count).
    ///
    /// # Errors
    /// As [`try_set_count`](Self::try_set_count).
    pub fn delete(&self) -> Result<bool> {
        Ok(self.core.count("delete", &Counting::Delete)? == Some(1))
    }

    fn pass(&self, action: &'static str, options: &AcquireOptions) -> Result<bool> {
        Ok(self.core.own(action, options)?.is_some())
    }
}
