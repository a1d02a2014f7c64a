//! The acquiring methods of single locks and multi-locks; `with_lock`; and the trait over all locks.

use std::time::Duration;

use crate::error::Result;
use crate::interrupt::Interrupt;
use crate::locks::group::{MultiGuard, OwnedMultiGuard};
use crate::locks::guard::{Guard, OwnedGuard};
use crate::locks::multi::MultiLock;
use crate::locks::named::{FencedLock, RedisLock};
use crate::locks::options::AcquireOptions;

/// Makes the acquiring methods of a type. The type's `enter` acquires for the calling thread, its `own` for
/// an owned guard; its `leave_open` keeps a level without a guard. The literals are words for the docs.
macro_rules! acquire_methods {
    ($lock:ident, $guard:ident, $owned:ident, $the_lock:literal, $it:literal, $lease:literal, $attempt:literal) => {
        impl $lock {

            #[doc = concat!("Acquires ", $the_lock, ", waiting as long as it takes.")]
            ///
            /// # Blocking
            #[doc = concat!("Until the caller holds ", $the_lock, "; one round trip if nobody else holds ", $it, ".")]
            ///
            /// # Errors
            /// A name is bad; a key holds data of another kind; or a server could not be used for the
            /// client's retry time-out. The call then leaves nothing acquired.
            pub fn lock(&self) -> Result<()> {
                let taken = self.enter("lock", &AcquireOptions::new())?;
                taken.map(Self::leave_open).ok_or_else(|| self.unending("lock"))
            }

            #[doc = concat!("Acquires ", $the_lock, " for at most ", $lease, ", waiting as long as it takes, without renewal.")]
            ///
            /// # Errors
            /// As [`lock`](Self::lock); and, before any I/O, for a lease under 1 ms or over 100 years. A
            /// lease is rounded up to whole milliseconds.
            pub fn lock_with_lease(&self, lease: Duration) -> Result<()> {
                let taken = self.enter("lock_with_lease", &AcquireOptions::new().lease(lease))?;
                taken.map(Self::leave_open).ok_or_else(|| self.unending("lock_with_lease"))
            }

            #[doc = concat!("Acquires ", $the_lock, ", waiting until `interrupt` is set at the latest.")]
            ///
            /// # Blocking
            /// As [`lock`](Self::lock). An interrupt during a request takes effect after it, within one
            /// command time-out.
            ///
            /// # Errors
            /// As [`lock`](Self::lock); [`is_interrupted`](crate::Error::is_interrupted) after an interrupt.
            pub fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<()> {
                let options = AcquireOptions::new().interrupt(interrupt);
                let taken = self.enter("lock_interruptibly", &options)?;
                taken.map(Self::leave_open).ok_or_else(|| self.unending("lock_interruptibly"))
            }

            #[doc = concat!("Acquires ", $the_lock, " if nobody else holds ", $it, " now.")]
            ///
            /// Check the answer: if the lock is busy, `try_lock()?;` goes on without it, and the compiler
            /// does not warn. The other `try_` calls do the same.
            ///
            /// # Blocking
            #[doc = $attempt]
            ///
            /// # Errors
            /// As [`lock`](Self::lock), without a retry. Busy is `false`, never an error.
            pub fn try_lock(&self) -> Result<bool> {
                let taken = self.enter("try_lock", &AcquireOptions::once())?;
                Ok(taken.map(Self::leave_open).is_some())
            }

            #[doc = concat!("Acquires ", $the_lock, ", waiting at most `wait` in all; `false` if somebody else kept ", $it, ".")]
            ///
            /// # Blocking
            /// Up to `wait` and one command time-out. A zero `wait` is [`try_lock`](Self::try_lock).
            ///
            /// # Errors
            /// As [`lock`](Self::lock). If the last attempt failed, its error is returned, not `false`.
            pub fn try_lock_for(&self, wait: Duration) -> Result<bool> {
                let taken = self.enter("try_lock_for", &AcquireOptions::new().wait(wait))?;
                Ok(taken.map(Self::leave_open).is_some())
            }

            #[doc = concat!("Acquires ", $the_lock, " for at most ", $lease, ", waiting at most `wait`; `false` if somebody else kept ", $it, ".")]
            ///
            /// Two durations are easily confused; [`AcquireOptions`] names them.
            ///
            /// # Errors
            /// As [`try_lock_for`](Self::try_lock_for) and [`lock_with_lease`](Self::lock_with_lease).
            pub fn try_lock_for_with_lease(&self, wait: Duration, lease: Duration) -> Result<bool> {
                let options = AcquireOptions::new().wait(wait).lease(lease);
                let taken = self.enter("try_lock_for_with_lease", &options)?;
                Ok(taken.map(Self::leave_open).is_some())
            }


            #[doc = concat!("Acquires ", $the_lock, ", waiting as long as it takes, and returns a guard.")]
            ///
            /// # Errors
            /// As [`lock`](Self::lock).
            pub fn acquire(&self) -> Result<$guard> {
                let taken = self.enter("acquire", &AcquireOptions::new())?;
                taken.map(|taken| self.guard(taken)).ok_or_else(|| self.unending("acquire"))
            }

            #[doc = concat!("Acquires ", $the_lock, " if nobody else holds ", $it, " now.")]
            ///
            /// # Errors
            /// As [`try_lock`](Self::try_lock). Busy is `None`, never an error.
            pub fn try_acquire(&self) -> Result<Option<$guard>> {
                let taken = self.enter("try_acquire", &AcquireOptions::once())?;
                Ok(taken.map(|taken| self.guard(taken)))
            }

            #[doc = concat!("Acquires ", $the_lock, ", waiting at most `wait` in all; `None` if somebody else kept ", $it, ".")]
            ///
            /// # Errors
            /// As [`try_lock_for`](Self::try_lock_for).
            pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<$guard>> {
                let taken = self.enter("try_acquire_for", &AcquireOptions::new().wait(wait))?;
                Ok(taken.map(|taken| self.guard(taken)))
            }

            #[doc = concat!("Acquires ", $the_lock, " as `options` say, and returns a guard; `None` if somebody else kept ", $it, ".")]
            ///
            /// Returns `None` only if the options bound the wait.
            ///
            /// # Blocking
            /// As [`lock`](Self::lock), or up to the wait that the options name and one command time-out.
            ///
            /// # Errors
            /// As [`try_lock_for_with_lease`](Self::try_lock_for_with_lease) and
            /// [`lock_interruptibly`](Self::lock_interruptibly).
            ///
            /// # Examples
            /// ```
            /// use leasehold::{AcquireOptions, Interrupt, LockClient};
            /// use std::time::{Duration, Instant};
            ///
            /// let lock = LockClient::in_memory().get_lock("report");
            /// let stop = Interrupt::new();
            /// // Java's lockInterruptibly(10, SECONDS), with a deadline besides:
            /// let options = AcquireOptions::new().lease(Duration::from_secs(10)).interrupt(&stop);
            /// let options = options.deadline(Instant::now() + Duration::from_secs(60));
            /// if let Some(guard) = lock.acquire_with(&options)? {
            ///     guard.check()?; // held, until the guard is dropped
            /// }
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            pub fn acquire_with(&self, options: &AcquireOptions) -> Result<Option<$guard>> {
                let taken = self.enter("acquire_with", options)?;
                Ok(taken.map(|taken| self.guard(taken)))
            }


            #[doc = concat!("Acquires ", $the_lock, " for the guard, not for the calling thread: the guard may be sent to another thread.")]
            ///
            /// # Blocking
            /// As [`lock`](Self::lock). Not reentrant: this call waits while an owned guard lives.
            ///
            /// # Errors
            /// As [`lock`](Self::lock). Of kind [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) if the
            /// calling thread holds the lock: the guard is another owner, so the caller would wait for
            /// itself. (Calls that do not wait find the lock busy.)
            pub fn acquire_owned(&self) -> Result<$owned> {
                let guard = self.own("acquire_owned", &AcquireOptions::new())?;
                guard.ok_or_else(|| self.unending("acquire_owned"))
            }

            #[doc = concat!("Acquires ", $the_lock, " for the guard if nobody holds ", $it, " now; `None` if somebody does, be it the calling thread.")]
            ///
            /// # Errors
            /// As [`try_lock`](Self::try_lock). Busy is `None`, never an error.
            pub fn try_acquire_owned(&self) -> Result<Option<$owned>> {
                self.own("try_acquire_owned", &AcquireOptions::once())
            }

            #[doc = concat!("Acquires ", $the_lock, " for the guard, waiting at most `wait` in all; `None` if somebody else kept ", $it, ".")]
            ///
            /// # Errors
            /// As [`try_lock_for`](Self::try_lock_for) and [`acquire_owned`](Self::acquire_owned).
            pub fn try_acquire_owned_for(&self, wait: Duration) -> Result<Option<$owned>> {
                self.own("try_acquire_owned_for", &AcquireOptions::new().wait(wait))
            }

            #[doc = concat!("Acquires ", $the_lock, " for the guard as `options` say; `None` if somebody else kept ", $it, ".")]
            ///
            /// # Errors
            /// As [`acquire_with`](Self::acquire_with) and [`acquire_owned`](Self::acquire_owned).
            pub fn acquire_owned_with(&self, options: &AcquireOptions) -> Result<Option<$owned>> {
                self.own("acquire_owned_with", options)
            }
        }
    };
}

acquire_methods! { RedisLock, Guard, OwnedGuard, "the lock", "it", "`lease`",
    "One round trip; none while another thread of this client holds it."
}

acquire_methods! { MultiLock, MultiGuard, OwnedMultiGuard, "all locks", "any of them", "`lease`, counted from the grant of the last",
    "As [`RedisLock::try_lock`]; free locks are acquired at the same time."
}

impl AcquireOptions {
    /// Runs `work` under the lock. Returns `None`, without running `work`, if the lock stayed busy for the
    /// wait of the options. [`LockClient::with_lock`](crate::LockClient::with_lock) waits without a bound.
    ///
    /// # Blocking
    /// As [`RedisLock::acquire_with`], then `work`, then one round trip.
    ///
    /// # Errors
    /// - As [`RedisLock::acquire_with`]: `work` did not run.
    /// - An error with [`work_ran`](crate::Error::work_ran) and [`is_lost`](crate::Error::is_lost): the hold
    ///   did not last until the end of `work`.
    ///
    /// A failed release is no error but an [event](crate::Event::ReleaseFailed): the result of `work` is
    /// returned. To learn of the failure, use a [`Guard`].
    ///
    /// # Panics
    /// When `work` does; the lock is released first.
    ///
    /// # Examples
    /// ```
    /// use leasehold::{AcquireOptions, LockClient};
    /// use std::time::Duration;
    ///
    /// let ledger = LockClient::in_memory().get_fenced_lock("ledger");
    /// let options = AcquireOptions::new().wait(Duration::from_secs(3));
    /// let token = options.with_lock(&ledger, |guard| guard.fencing_token())?;
    /// assert!(token.is_some()); // otherwise busy, and nothing was done
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn with_lock<R>(&self, lock: &RedisLock, work: impl FnOnce(&Guard) -> R) -> Result<Option<R>> {
        const ACTION: &str = "with_lock";
        let Some(entered) = lock.enter(ACTION, self)? else { return Ok(None) };
        let guard = lock.guard(entered);
        let result = work(&guard);
        guard.unlock_after_work(ACTION)?;
        Ok(Some(result))
    }
}

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
///     lock.unlock()
/// }
/// transfer(&LockClient::in_memory().get_fenced_lock("account:2"))?;
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

/// Implements [`Lock`] by the type's own methods, or by those of the type to which it dereferences.
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
