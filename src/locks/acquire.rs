//! The methods that acquire a lock, shared by single locks and multi-locks, and `with_lock`.

use std::time::Duration;

use crate::error::Result;
use crate::interrupt::Interrupt;
use crate::locks::group::{MultiGuard, OwnedMultiGuard};
use crate::locks::guard::{Guard, OwnedGuard};
use crate::locks::multi::MultiLock;
use crate::locks::named::RedisLock;
use crate::locks::options::AcquireOptions;

/// `enter` and `own` acquire for the thread and for a guard; `leave_open` leaves the levels to the thread;
/// `guard` wraps them; `unending` is the error of an endless wait without a result. The literals are the
/// words that differ in the documentation.
macro_rules! acquire_methods {
    ($lock:ident, $guard:ident, $owned:ident, $the_lock:literal, $it:literal, $lease:literal, $attempt:literal) => {
        impl $lock {

            #[doc = concat!("Acquires ", $the_lock, ", waiting as long as it takes.")]
            ///
            /// # Blocking
            #[doc = concat!("Until the caller holds ", $the_lock, "; one round trip if nobody else holds ", $it, ".")]
            ///
            /// # Errors
            /// A name is bad; a key holds something else; or a server could not be used for the client's
            /// retry time-out. The call then leaves nothing acquired.
            pub fn lock(&self) -> Result<()> {
                let taken = self.enter("lock", &AcquireOptions::new())?;
                taken.map(Self::leave_open).ok_or_else(|| self.unending("lock"))
            }

            #[doc = concat!("Acquires ", $the_lock, " for at most ", $lease, ", waiting as long as it takes, without renewal.")]
            ///
            /// # Blocking
            /// As [`lock`](Self::lock).
            ///
            /// # Errors
            /// As [`lock`](Self::lock); and, before any I/O, for a lease under 1 ms or over 100 years. Parts
            /// of a millisecond are rounded up.
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
            /// As [`lock`](Self::lock); and one that [`is_interrupted`](crate::Error::is_interrupted).
            pub fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<()> {
                let options = AcquireOptions::new().interrupt(interrupt);
                let taken = self.enter("lock_interruptibly", &options)?;
                taken.map(Self::leave_open).ok_or_else(|| self.unending("lock_interruptibly"))
            }

            #[doc = concat!("Acquires ", $the_lock, " if nobody else holds ", $it, " now.")]
            ///
            /// Check the answer: after `try_lock()?;` on a busy lock the code continues without the lock,
            /// and the compiler does not warn.
            ///
            /// # Blocking
            #[doc = $attempt]
            ///
            /// # Errors
            /// As [`lock`](Self::lock), at once. Busy is `false`, never an error.
            pub fn try_lock(&self) -> Result<bool> {
                let taken = self.enter("try_lock", &AcquireOptions::once())?;
                Ok(taken.map(Self::leave_open).is_some())
            }

            #[doc = concat!("Acquires ", $the_lock, ", waiting at most `wait` in all; `false` if somebody else kept ", $it, ".")]
            ///
            /// Check the answer: after `try_lock_for(wait)?;` on a busy lock the code continues without the
            /// lock, and the compiler does not warn.
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
            /// # Blocking
            /// As [`try_lock_for`](Self::try_lock_for).
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
            /// # Blocking
            /// As [`lock`](Self::lock).
            ///
            /// # Errors
            /// As [`lock`](Self::lock).
            pub fn acquire(&self) -> Result<$guard> {
                let taken = self.enter("acquire", &AcquireOptions::new())?;
                taken.map(|taken| self.guard(taken)).ok_or_else(|| self.unending("acquire"))
            }

            #[doc = concat!("Acquires ", $the_lock, " if nobody else holds ", $it, " now.")]
            ///
            /// # Blocking
            /// As [`try_lock`](Self::try_lock).
            ///
            /// # Errors
            /// As [`try_lock`](Self::try_lock). Busy is `None`, never an error.
            pub fn try_acquire(&self) -> Result<Option<$guard>> {
                let taken = self.enter("try_acquire", &AcquireOptions::once())?;
                Ok(taken.map(|taken| self.guard(taken)))
            }

            #[doc = concat!("Acquires ", $the_lock, ", waiting at most `wait` in all; `None` if somebody else kept ", $it, ".")]
            ///
            /// Check the answer: after `try_acquire_for(wait)?;` on a busy lock the code continues without
            /// the lock, and the compiler does not warn.
            ///
            /// # Blocking
            /// As [`try_lock_for`](Self::try_lock_for).
            ///
            /// # Errors
            /// As [`try_lock_for`](Self::try_lock_for).
            pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<$guard>> {
                let taken = self.enter("try_acquire_for", &AcquireOptions::new().wait(wait))?;
                Ok(taken.map(|taken| self.guard(taken)))
            }

            #[doc = concat!("Acquires ", $the_lock, " as `options` say, and returns a guard; `None` if somebody else kept ", $it, ".")]
            ///
            /// Without a bound on the wait it is never `None`.
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
            /// As [`lock`](Self::lock). Not reentrant: while such a guard lives, this waits.
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
            /// # Blocking
            /// As [`try_lock`](Self::try_lock).
            ///
            /// # Errors
            /// As [`try_lock`](Self::try_lock). Busy is `None`, never an error.
            pub fn try_acquire_owned(&self) -> Result<Option<$owned>> {
                self.own("try_acquire_owned", &AcquireOptions::once())
            }

            #[doc = concat!("Acquires ", $the_lock, " for the guard, waiting at most `wait` in all; `None` if somebody else kept ", $it, ".")]
            ///
            /// # Blocking
            /// As [`try_lock_for`](Self::try_lock_for).
            ///
            /// # Errors
            /// As [`try_lock_for`](Self::try_lock_for) and [`acquire_owned`](Self::acquire_owned).
            pub fn try_acquire_owned_for(&self, wait: Duration) -> Result<Option<$owned>> {
                self.own("try_acquire_owned_for", &AcquireOptions::new().wait(wait))
            }

            #[doc = concat!("Acquires ", $the_lock, " for the guard as `options` say; `None` if somebody else kept ", $it, ".")]
            ///
            /// Without a bound on the wait it is never `None`.
            ///
            /// # Blocking
            /// As [`acquire_with`](Self::acquire_with).
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
    /// Runs `work` under the lock; `None`, without running `work`, if the lock stayed busy, which needs a
    /// bound on the wait.
    ///
    /// On a [`FencedLock`](crate::FencedLock) the guard has the token: [`Guard::fencing_token`].
    /// [`LockClient::with_lock`](crate::LockClient::with_lock) waits for the plain lock of a name as long as
    /// it takes.
    ///
    /// # Blocking
    /// As [`RedisLock::acquire_with`], then `work`, then one round trip.
    ///
    /// # Errors
    /// - As [`RedisLock::acquire_with`]: `work` did not run.
    /// - One whose [`work_ran`](crate::Error::work_ran) and [`is_lost`](crate::Error::is_lost): the hold did
    ///   not last until the end of `work`. It is never retryable, since a second call would run `work` again.
    ///
    /// A failed release is no error: the result of `work` is returned, the observer is notified
    /// ([`Event::ReleaseFailed`](crate::Event::ReleaseFailed)), and the client repeats the release until it
    /// is answered or the lease has run out. Until then the lock may stay taken. To learn of a failed
    /// release, use a [`Guard`].
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
    /// let Some(token) = options.with_lock(&ledger, |guard| guard.fencing_token())? else {
    ///     return Ok(()); // busy, and nothing was done
    /// };
    /// assert!(token.is_some());
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
