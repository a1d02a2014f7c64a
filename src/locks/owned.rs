//! Taking a lock for a guard that may change threads.

use std::time::Duration;

use crate::engine::acquire::call::WaitLimit;
use crate::error::Result;
use crate::interrupt::Interrupt;
use crate::locks::guard::OwnedGuard;
use crate::locks::named::{CallOptions, RedisLock, forever, unending};
use crate::time::Lease;

impl RedisLock {
    /// Acquires the lock for the guard, not for the calling thread: the guard may be sent to another thread.
    ///
    /// # Blocking
    ///
    /// As [`lock`](Self::lock). Not reentrant: while such a guard lives, this waits.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock). Of kind [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) if the calling thread holds the lock:
    /// the guard is another owner, so this would wait for the caller itself. (The calls that do not wait find the lock busy
    /// then.)
    pub fn acquire_owned(&self) -> Result<OwnedGuard> {
        self.own("acquire_owned", Lease::Renewed, None)
    }

    /// Acquires the lock for the guard, for at most `lease`, waiting as long as it takes. It is not renewed.
    ///
    /// # Blocking
    ///
    /// As [`acquire_owned`](Self::acquire_owned).
    ///
    /// # Errors
    ///
    /// As [`acquire_owned`](Self::acquire_owned) and [`lock_with_lease`](Self::lock_with_lease).
    pub fn acquire_owned_with_lease(&self, lease: Duration) -> Result<OwnedGuard> {
        self.own("acquire_owned_with_lease", Lease::Fixed(lease), None)
    }

    /// Acquires the lock for the guard, waiting until `interrupt` is set at the latest.
    ///
    /// # Blocking
    ///
    /// As [`lock_interruptibly`](Self::lock_interruptibly).
    ///
    /// # Errors
    ///
    /// As [`acquire_owned`](Self::acquire_owned) and [`lock_interruptibly`](Self::lock_interruptibly).
    pub fn acquire_owned_interruptibly(&self, interrupt: &Interrupt) -> Result<OwnedGuard> {
        self.own("acquire_owned_interruptibly", Lease::Renewed, Some(interrupt))
    }

    /// Acquires the lock for the guard if nobody else holds it now; `None` if somebody does, be it the calling thread.
    ///
    /// # Blocking
    ///
    /// As [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock). Busy is `None`, never an error.
    ///
    /// # Examples
    ///
    /// ```
    /// # let client = leasehold::LockClient::in_memory();
    /// let lock = client.lock("upload");
    /// let guard = lock.try_acquire_owned()?.expect("it is free");
    /// assert!(lock.try_acquire_owned()?.is_none());
    /// std::thread::spawn(move || guard.unlock()).join().unwrap()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn try_acquire_owned(&self) -> Result<Option<OwnedGuard>> {
        self.try_own("try_acquire_owned", Lease::Renewed, WaitLimit::Once)
    }

    /// Acquires the lock for the guard, waiting at most `wait`; `None` if somebody else kept it.
    ///
    /// # Blocking
    ///
    /// As [`try_lock_for`](Self::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for) and [`acquire_owned`](Self::acquire_owned).
    pub fn try_acquire_owned_for(&self, wait: Duration) -> Result<Option<OwnedGuard>> {
        self.try_own("try_acquire_owned_for", Lease::Renewed, self.after(wait))
    }

    /// Acquires the lock for the guard, for at most `lease`, waiting at most `wait`; `None` if somebody else kept it.
    ///
    /// # Blocking
    ///
    /// As [`try_lock_for`](Self::try_lock_for).
    ///
    /// # Errors
    ///
    /// As [`try_acquire_owned_for`](Self::try_acquire_owned_for) and [`lock_with_lease`](Self::lock_with_lease).
    pub fn try_acquire_owned_for_with_lease(
        &self,
        wait: Duration,
        lease: Duration,
    ) -> Result<Option<OwnedGuard>> {
        self.try_own("try_acquire_owned_for_with_lease", Lease::Fixed(lease), self.after(wait))
    }

    fn try_own(&self, action: &'static str, lease: Lease, limit: WaitLimit) -> Result<Option<OwnedGuard>> {
        self.take(action, CallOptions { lease, limit, interrupt: None, units: 1 })
    }

    fn own(&self, action: &'static str, lease: Lease, interrupt: Option<&Interrupt>) -> Result<OwnedGuard> {
        let guard = self.take(action, CallOptions { lease, limit: forever(), interrupt, units: 1 })?;
        guard.ok_or_else(|| unending(action, self.name()))
    }
}
