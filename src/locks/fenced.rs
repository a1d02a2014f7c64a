//! Locks with fencing tokens.

use std::ops::Deref;
use std::time::Duration;

use crate::engine::acquire::call::Granted;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::FencingToken;
use crate::locks::named::RedisLock;
use crate::locks::options::AcquireOptions;

/// A [`RedisLock`] whose grants each have a fencing token, larger than all before: Redisson's `RFencedLock`.
///
/// The lock is the same as the [`RedisLock`] of the name, and the two exclude each other; but only grants
/// through this type have tokens, so all holders of a fenced lock must use it. A re-entry has its hold's
/// token (Java's has a new one).
///
/// # Guarantees
/// Tokens grow in grant order, even after the server lost its data or a lagging replica was promoted: each is
/// the larger of the counter's next value and the server's time in microseconds. Java sees a counter.
///
/// # Examples
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let lock = client.get_fenced_lock("ledger");
/// let first = lock.lock_and_get_token()?;
/// lock.unlock()?;
/// let guard = lock.acquire()?;
/// assert!(guard.fencing_token() > Some(first));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "`get_fenced_lock` acquires nothing: it makes a handle, whose `acquire()` takes the lock and returns a guard"]
pub struct FencedLock {
    lock: RedisLock,
}

impl FencedLock {
    pub(crate) fn new(lock: RedisLock) -> FencedLock {
        FencedLock { lock }
    }

    /// Acquires the lock, waiting as long as it takes, and returns the hold's token.
    ///
    /// # Blocking
    /// As [`RedisLock::lock`].
    ///
    /// # Errors
    /// As [`RedisLock::lock`].
    pub fn lock_and_get_token(&self) -> Result<FencingToken> {
        let action = "lock_and_get_token";
        let entered = self.lock.enter(action, &AcquireOptions::new())?;
        self.token(action, &entered.ok_or_else(|| self.lock.unending(action))?)
    }

    /// Acquires the lock, waiting at most `wait`, and returns the hold's token; `None` if the lock stayed
    /// busy.
    ///
    /// # Blocking
    /// As [`RedisLock::try_lock_for`].
    ///
    /// # Errors
    /// As [`RedisLock::try_lock_for`].
    pub fn try_lock_and_get_token(&self, wait: Duration) -> Result<Option<FencingToken>> {
        let action = "try_lock_and_get_token";
        let entered = self.lock.enter(action, &AcquireOptions::new().wait(wait))?;
        entered.map(|entered| self.token(action, &entered)).transpose()
    }

    fn token(&self, action: &'static str, entered: &Granted) -> Result<FencingToken> {
        entered.hold.fencing_token().ok_or_else(|| {
            self.lock.engine().drop_level(&entered.hold, entered.level);
            Error::new(ErrorKind::Protocol, action, "the store granted a fenced lock without a token")
                .on(self.lock.name())
        })
    }
}

impl Deref for FencedLock {
    type Target = RedisLock;

    fn deref(&self) -> &RedisLock {
        &self.lock
    }
}

impl From<FencedLock> for RedisLock {
    /// The same lock, whose grants still have tokens.
    fn from(lock: FencedLock) -> RedisLock {
        lock.lock
    }
}

impl From<&FencedLock> for RedisLock {
    fn from(lock: &FencedLock) -> RedisLock {
        lock.lock.clone()
    }
}
