//! Work under a lock, which is released at its end.

use std::time::Duration;

use crate::engine::acquire::call::WaitLimit;
use crate::error::Result;
use crate::locks::guard::Guard;
use crate::locks::named::{CallOptions, RedisLock, forever, unending};
use crate::locks::options::TryOutcome;
use crate::time::Lease;

impl RedisLock {
    /// Runs `work` under the lock, waiting for it as long as it takes.
    ///
    /// On a [`FencedLock`](crate::FencedLock) the guard has the token: [`Guard::fence`].
    ///
    /// # Blocking
    ///
    /// As [`lock`](Self::lock), then `work`, then one round trip.
    ///
    /// # Errors
    ///
    /// - As [`lock`](Self::lock): `work` did not run.
    /// - One whose [`work_ran`](crate::Error::work_ran) and [`is_lost`](crate::Error::is_lost): the hold did not last until
    ///   the end of `work`. It is never retryable, since a second call would run `work` again.
    ///
    /// A release that fails is no error: the result of `work` comes back, the observer is notified
    /// ([`Event::ReleaseFailed`](crate::Event::ReleaseFailed)), and the client repeats the release until it is answered or the
    /// lease has run out. Until then the lock may stay taken. To know how the release went, use a [`Guard`].
    ///
    /// # Panics
    ///
    /// When `work` does; the lock is released first.
    ///
    /// # Examples
    ///
    /// ```
    /// # let client = leasehold::LockClient::in_memory();
    /// let ledger = client.fenced_lock("ledger");
    /// let token = ledger.with_lock(|guard| guard.fence())?;
    /// assert!(token.is_some());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn with_lock<R>(&self, work: impl FnOnce(&Guard) -> R) -> Result<R> {
        let done = self.run("with_lock", forever(), work)?;
        done.ok_or_else(|| unending("with_lock", self.name()))
    }

    /// Runs `work` under the lock, waiting for it at most `wait`; [`TryOutcome::Busy`] if somebody else kept it, and `work` was
    /// not run.
    ///
    /// # Blocking
    ///
    /// As [`try_lock_for`](Self::try_lock_for), then `work`, then one round trip.
    ///
    /// # Errors
    ///
    /// As [`with_lock`](Self::with_lock), and as [`try_lock_for`](Self::try_lock_for), when `work` was not run.
    ///
    /// # Panics
    ///
    /// As [`with_lock`](Self::with_lock).
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold::TryOutcome;
    /// use std::time::Duration;
    ///
    /// # let client = leasehold::LockClient::in_memory();
    /// match client.lock("sum").with_lock_for(Duration::from_secs(3), |_guard| 1 + 1)? {
    ///     TryOutcome::Acquired(sum) => assert_eq!(sum, 2),
    ///     TryOutcome::Busy => println!("try later"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn with_lock_for<R>(&self, wait: Duration, work: impl FnOnce(&Guard) -> R) -> Result<TryOutcome<R>> {
        self.run("with_lock_for", self.after(wait), work).map(TryOutcome::of)
    }

    /// Runs `work` under the lock if nobody else holds it now; else [`TryOutcome::Busy`], and `work` was not run.
    ///
    /// # Blocking
    ///
    /// As [`try_lock`](Self::try_lock), then `work`, then one round trip.
    ///
    /// # Errors
    ///
    /// As [`with_lock`](Self::with_lock).
    ///
    /// # Panics
    ///
    /// As [`with_lock`](Self::with_lock).
    pub fn try_with_lock<R>(&self, work: impl FnOnce(&Guard) -> R) -> Result<TryOutcome<R>> {
        self.run("try_with_lock", WaitLimit::Once, work).map(TryOutcome::of)
    }

    fn run<R>(
        &self,
        action: &'static str,
        limit: WaitLimit,
        work: impl FnOnce(&Guard) -> R,
    ) -> Result<Option<R>> {
        let take = CallOptions { lease: Lease::Renewed, limit, interrupt: None, units: 1 };
        let Some(entered) = self.enter_as(action, &take)? else { return Ok(None) };
        let guard = self.guard(entered);
        let result = work(&guard);
        guard.unlock_after_work(action)?;
        Ok(Some(result))
    }
}
