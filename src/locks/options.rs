//! How a lock is asked for in one call, and what such a call answers.

use std::fmt;
use std::time::Duration;

use crate::engine::acquire::call::{Granted, WaitLimit};
use crate::error::Result;
use crate::interrupt::Interrupt;
use crate::locks::guard::{Guard, OwnedGuard};
use crate::locks::named::{CallOptions, RedisLock};
use crate::time::{Clock, Lease, Moment};

/// How one call asks for a lock: how long it waits, for how long the lock is held, and what ends the wait.
///
/// The same as the calls with two `Duration`s, where neither can be taken for the other, and for what has no call of its own,
/// such as an interruptible wait with a lease. Used by [`RedisLock::try_lock_with`], [`RedisLock::try_acquire_with`],
/// [`RedisLock::try_acquire_owned_with`] and the same calls of [`MultiLock`](crate::MultiLock). Without any setter, a call makes
/// one attempt, and the watchdog renews what it acquired.
///
/// # Examples
///
/// ```
/// use leasehold::{AcquireOptions, LockClient, TryOutcome};
/// use std::time::Duration;
///
/// let client = LockClient::in_memory();
/// let options = AcquireOptions::new().wait(Duration::from_secs(3)).lease(Duration::from_secs(10));
/// match client.lock("stock:42").try_acquire_with(&options)? {
///     TryOutcome::Acquired(guard) => guard.unlock()?,
///     TryOutcome::Busy => println!("somebody else kept it"),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "options do nothing before a call is given them"]
pub struct AcquireOptions {
    wait: WaitChoice,
    lease: Option<Duration>,
    interrupt: Option<Interrupt>,
}

#[derive(Debug, Clone, Copy, Default)]
enum WaitChoice {
    #[default]
    Not,
    For(Duration),
    Forever,
}

impl AcquireOptions {
    /// Options with their defaults: one attempt, renewed until released.
    pub fn new() -> AcquireOptions {
        AcquireOptions::default()
    }

    /// Waits at most so long. Defaults to not waiting.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = if wait.is_zero() { WaitChoice::Not } else { WaitChoice::For(wait) };
        self
    }

    /// Waits as long as it takes. Defaults to not waiting.
    pub fn wait_forever(mut self) -> Self {
        self.wait = WaitChoice::Forever;
        self
    }

    /// Holds the lock for at most so long; it is not renewed. Defaults to the client's lease, renewed until released. At least
    /// 1 ms.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Ends the wait when `interrupt` is set. Defaults to nothing that does.
    pub fn interrupt(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// These options as a call's, with deadlines from now on by `clock`.
    pub(crate) fn take(&self, clock: &Clock) -> CallOptions<'_> {
        let limit = match self.wait {
            WaitChoice::Not => WaitLimit::Once,
            WaitChoice::For(wait) => WaitLimit::Deadline(clock.after(wait)),
            WaitChoice::Forever => WaitLimit::Deadline(Moment::NEVER),
        };
        let lease = self.lease.map_or(Lease::Renewed, Lease::Fixed);
        CallOptions { lease, limit, interrupt: self.interrupt.as_ref(), units: 1 }
    }
}

impl fmt::Debug for AcquireOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AcquireOptions { wait, lease, interrupt } = self;
        f.debug_struct("AcquireOptions")
            .field("wait", wait)
            .field("lease", lease)
            .field("interrupt", &interrupt.is_some())
            .finish()
    }
}

/// The answer of a call that may find the lock busy. The compiler warns where it is dropped, also after `?`, which it does for
/// neither `bool` nor `Option`.
///
/// # Examples
///
/// ```
/// use leasehold::{AcquireOptions, LockClient};
///
/// let client = LockClient::in_memory();
/// let Some(guard) = client.lock("stock:42").try_acquire_with(&AcquireOptions::new())?.acquired() else {
///     return Ok(()); // busy
/// };
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// The answer must be used:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use leasehold::{AcquireOptions, LockClient};
/// let client = LockClient::in_memory();
/// client.lock("stock:42").try_acquire_with(&AcquireOptions::new())?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "if the lock was busy, it is not held and nothing is protected"]
pub enum TryOutcome<T> {
    /// The lock was acquired. For calls that run work under it, with what the work returned.
    Acquired(T),
    /// Somebody else kept the lock.
    Busy,
}

impl<T> TryOutcome<T> {
    /// Whether the lock was acquired.
    #[must_use = "if the lock was busy, it is not held and nothing is protected"]
    pub fn is_acquired(&self) -> bool {
        matches!(self, TryOutcome::Acquired(_))
    }

    /// Whether somebody else kept the lock.
    #[must_use = "if the lock was busy, it is not held and nothing is protected"]
    pub fn is_busy(&self) -> bool {
        !self.is_acquired()
    }

    /// The value that came with the lock; `None` if it was busy.
    #[must_use = "if the lock was busy, it is not held and nothing is protected"]
    pub fn acquired(self) -> Option<T> {
        match self {
            TryOutcome::Acquired(value) => Some(value),
            TryOutcome::Busy => None,
        }
    }

    pub(crate) fn of(acquired: Option<T>) -> TryOutcome<T> {
        acquired.map_or(TryOutcome::Busy, TryOutcome::Acquired)
    }
}

impl<T> From<TryOutcome<T>> for Option<T> {
    fn from(outcome: TryOutcome<T>) -> Option<T> {
        outcome.acquired()
    }
}

impl RedisLock {
    /// Acquires the lock for the calling thread as `options` say.
    ///
    /// # Blocking
    ///
    /// One round trip, or up to the wait that the options name and one command time-out.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for_with_lease`](Self::try_lock_for_with_lease) and [`lock_interruptibly`](Self::lock_interruptibly). Busy
    /// is an answer, never an error.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold::{AcquireOptions, Interrupt, LockClient};
    /// use std::time::Duration;
    ///
    /// let lock = LockClient::in_memory().lock("report");
    /// let stop = Interrupt::new();
    /// // Java's lockInterruptibly(10, SECONDS):
    /// let options = AcquireOptions::new().wait_forever().lease(Duration::from_secs(10)).interrupt(&stop);
    /// if lock.try_lock_with(&options)?.is_acquired() {
    ///     lock.unlock()?;
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn try_lock_with(&self, options: &AcquireOptions) -> Result<TryOutcome<()>> {
        let entered = self.enter_as("try_lock_with", &options.take(&self.engine().clock))?;
        Ok(TryOutcome::of(entered.map(drop)))
    }

    /// Acquires the lock for the calling thread as `options` say, and returns its guard.
    ///
    /// # Blocking
    ///
    /// As [`try_lock_with`](Self::try_lock_with).
    ///
    /// # Errors
    ///
    /// As [`try_lock_with`](Self::try_lock_with).
    pub fn try_acquire_with(&self, options: &AcquireOptions) -> Result<TryOutcome<Guard>> {
        let entered = self.enter_as("try_acquire_with", &options.take(&self.engine().clock))?;
        Ok(TryOutcome::of(entered.map(|entered| self.guard(entered))))
    }

    /// Acquires the lock for the guard, not for the calling thread, as `options` say.
    ///
    /// # Blocking
    ///
    /// As [`try_lock_with`](Self::try_lock_with).
    ///
    /// # Errors
    ///
    /// As [`try_lock_with`](Self::try_lock_with) and [`acquire_owned`](Self::acquire_owned).
    pub fn try_acquire_owned_with(&self, options: &AcquireOptions) -> Result<TryOutcome<OwnedGuard>> {
        let guard = self.take("try_acquire_owned_with", options.take(&self.engine().clock))?;
        Ok(TryOutcome::of(guard))
    }

    /// Acquires the lock for the calling thread; `None` if it stayed busy. Every call that does comes through here.
    pub(crate) fn enter_as(&self, action: &'static str, take: &CallOptions<'_>) -> Result<Option<Granted>> {
        self.engine().acquire(&self.want(action, take.lease, take.limit, take.interrupt)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_set_is_one_attempt_that_is_renewed() {
        let options = AcquireOptions::new();
        let take = options.take(&Clock::System);
        assert!(take.limit == WaitLimit::Once && take.lease == Lease::Renewed && take.interrupt.is_none());
        let options = options.wait(Duration::ZERO);
        assert_eq!(options.take(&Clock::System).limit, WaitLimit::Once);
        let options = options.wait_forever();
        assert_eq!(options.take(&Clock::System).limit, WaitLimit::Deadline(Moment::NEVER));
        let options = options.wait(Duration::MAX);
        assert_eq!(options.take(&Clock::System).limit, WaitLimit::Deadline(Moment::NEVER));
    }
}
