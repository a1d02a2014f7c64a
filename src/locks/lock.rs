//! The trait over all locks.

use std::time::Duration;

use crate::error::Result;
use crate::interrupt::Interrupt;
use crate::locks::fenced::FencedLock;
use crate::locks::multi::MultiLock;
use crate::locks::named::RedisLock;

/// The vocabulary of Java's `java.util.concurrent.locks.Lock`, for code over any kind of lock. The trait is
/// open: a program may implement it for its own types, and methods added later have a default.
///
/// # Examples
/// ```
/// use leasehold::{Lock, LockClient, Result};
///
/// fn transfer(lock: &impl Lock) -> Result<()> {
///     lock.lock()?;
///     // …
///     match lock.unlock() {
///         Err(error) if error.is_lost() => Err(error), // another may have had the lock meanwhile
///         _ => Ok(()), // the work is done; the client repeats a release that failed
///     }
/// }
///
/// let client = LockClient::in_memory();
/// transfer(&client.get_lock("account:1"))?;
/// transfer(&client.get_fenced_lock("account:2"))?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub trait Lock {
    /// Acquires the lock, waiting as long as it takes.
    ///
    /// # Errors
    /// See [`RedisLock::lock`].
    fn lock(&self) -> Result<()>;

    /// Acquires the lock, waiting until `interrupt` is set at the latest.
    ///
    /// # Errors
    /// See [`RedisLock::lock_interruptibly`].
    fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<()>;

    /// Acquires the lock if nobody else holds it now.
    ///
    /// # Errors
    /// See [`RedisLock::try_lock`].
    fn try_lock(&self) -> Result<bool>;

    /// Acquires the lock, waiting at most `wait`; `false` if the lock stayed busy.
    ///
    /// # Errors
    /// See [`RedisLock::try_lock_for`].
    fn try_lock_for(&self, wait: Duration) -> Result<bool>;

    /// Releases one level of the calling thread's hold.
    ///
    /// # Errors
    /// See [`RedisLock::unlock`].
    fn unlock(&self) -> Result<()>;
}

/// Delegates to the methods of the same names, which a fenced lock has by dereference.
macro_rules! implement_lock {
    ($lock:ident, $methods:ident) => {
        impl Lock for $lock {
            fn lock(&self) -> Result<()> {
                $methods::lock(self)
            }

            fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<()> {
                $methods::lock_interruptibly(self, interrupt)
            }

            fn try_lock(&self) -> Result<bool> {
                $methods::try_lock(self)
            }

            fn try_lock_for(&self, wait: Duration) -> Result<bool> {
                $methods::try_lock_for(self, wait)
            }

            fn unlock(&self) -> Result<()> {
                $methods::unlock(self)
            }
        }
    };
}

implement_lock!(RedisLock, RedisLock);
implement_lock!(FencedLock, RedisLock);
implement_lock!(MultiLock, MultiLock);
