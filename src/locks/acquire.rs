//! The methods that acquire a lock for the calling thread, the same for one lock and for several.

use std::time::{Duration, Instant};

use crate::engine::acquire::call::WaitLimit;
use crate::error::Result;
use crate::interrupt::Interrupt;
use crate::locks::group::MultiGuard;
use crate::locks::guard::Guard;
use crate::locks::multi::MultiLock;
use crate::locks::named::{RedisLock, forever};
use crate::time::Lease;

/// Both lock types have `enter` and `try_enter`, which acquire; `leave_open`, which leaves the levels to the thread, and
/// `guard`, which makes a guard of them. The literals are the words by which the documentation differs.
macro_rules! acquire_methods {
    ($lock:ident, $guard:ident, $the_lock:literal, $it:literal, $lease:literal, $attempt:literal) => {
        impl $lock {
            // ---- the Java way

            #[doc = concat!("Acquires ", $the_lock, ", waiting as long as it takes.")]
            ///
            /// # Blocking
            ///
            #[doc = concat!("Until the caller holds ", $the_lock, "; one round trip if nobody else holds ", $it, ".")]
            ///
            /// # Errors
            ///
            /// A name is bad; a key holds something else; or a server could not be used for the client's patience. The
            /// call then leaves nothing acquired.
            pub fn lock(&self) -> Result<()> {
                self.enter("lock", Lease::Renewed, forever(), None).map(Self::leave_open)
            }

            #[doc = concat!("Acquires ", $the_lock, " for at most ", $lease, ", waiting as long as it takes, without renewal.")]
            ///
            /// # Blocking
            ///
            /// As [`lock`](Self::lock).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock); and, before any I/O, for a lease under 1 ms or over 100 years. Parts of a
            /// millisecond are rounded up.
            pub fn lock_with_lease(&self, lease: Duration) -> Result<()> {
                self.enter("lock_with_lease", Lease::Fixed(lease), forever(), None).map(Self::leave_open)
            }

            #[doc = concat!("Acquires ", $the_lock, ", waiting until `interrupt` is set at the latest.")]
            ///
            /// # Blocking
            ///
            /// As [`lock`](Self::lock). An interrupt during a request takes effect after it, within one command
            /// time-out.
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock); and one that [`is_interrupted`](crate::Error::is_interrupted).
            pub fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<()> {
                let taken = self.enter("lock_interruptibly", Lease::Renewed, forever(), Some(interrupt));
                taken.map(Self::leave_open)
            }

            #[doc = concat!("Acquires ", $the_lock, " if nobody else holds ", $it, " now.")]
            ///
            /// Look at the answer: after `try_lock()?;` the code goes on without the lock if it was busy, and the compiler
            /// does not warn.
            ///
            /// # Blocking
            ///
            #[doc = $attempt]
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock), at once. Busy is `false`, never an error.
            pub fn try_lock(&self) -> Result<bool> {
                let taken = self.try_enter("try_lock", Lease::Renewed, WaitLimit::Once)?;
                Ok(taken.map(Self::leave_open).is_some())
            }

            #[doc = concat!("Acquires ", $the_lock, ", waiting at most `wait` in all; `false` if somebody else kept ", $it, ".")]
            ///
            /// Look at the answer: after `try_lock_for(wait)?;` the code goes on without the lock if it was busy, and the
            /// compiler does not warn.
            ///
            /// # Blocking
            ///
            /// Up to `wait` and one command time-out. A zero `wait` is [`try_lock`](Self::try_lock).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock). If the last attempt failed, its error is returned, not `false`.
            pub fn try_lock_for(&self, wait: Duration) -> Result<bool> {
                let taken = self.try_enter("try_lock_for", Lease::Renewed, self.after(wait))?;
                Ok(taken.map(Self::leave_open).is_some())
            }

            #[doc = concat!("Acquires ", $the_lock, " for at most ", $lease, ", waiting at most `wait`; `false` if somebody else kept ", $it, ".")]
            ///
            /// # Blocking
            ///
            /// As [`try_lock_for`](Self::try_lock_for).
            ///
            /// # Errors
            ///
            /// As [`try_lock_for`](Self::try_lock_for) and [`lock_with_lease`](Self::lock_with_lease).
            pub fn try_lock_for_with_lease(&self, wait: Duration, lease: Duration) -> Result<bool> {
                let taken = self.try_enter("try_lock_for_with_lease", Lease::Fixed(lease), self.after(wait))?;
                Ok(taken.map(Self::leave_open).is_some())
            }

            #[doc = concat!("Acquires ", $the_lock, ", waiting until `instant` at most; `false` if somebody else kept ", $it, ".")]
            ///
            /// # Blocking
            ///
            /// As [`try_lock_for`](Self::try_lock_for). An `instant` that has passed is [`try_lock`](Self::try_lock).
            ///
            /// # Errors
            ///
            /// As [`try_lock_for`](Self::try_lock_for).
            pub fn try_lock_until(&self, instant: Instant) -> Result<bool> {
                let taken = self.try_enter("try_lock_until", Lease::Renewed, self.at(instant))?;
                Ok(taken.map(Self::leave_open).is_some())
            }

            // ---- the Rust way

            #[doc = concat!("Acquires ", $the_lock, ", waiting as long as it takes, and returns a guard.")]
            ///
            /// # Blocking
            ///
            /// As [`lock`](Self::lock).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock).
            pub fn acquire(&self) -> Result<$guard> {
                Ok(self.guard(self.enter("acquire", Lease::Renewed, forever(), None)?))
            }

            #[doc = concat!("Acquires ", $the_lock, " for at most ", $lease, ", waiting as long as it takes, without renewal.")]
            ///
            /// # Blocking
            ///
            /// As [`lock`](Self::lock).
            ///
            /// # Errors
            ///
            /// As [`lock_with_lease`](Self::lock_with_lease).
            pub fn acquire_with_lease(&self, lease: Duration) -> Result<$guard> {
                Ok(self.guard(self.enter("acquire_with_lease", Lease::Fixed(lease), forever(), None)?))
            }

            #[doc = concat!("Acquires ", $the_lock, ", waiting until `interrupt` is set at the latest.")]
            ///
            /// # Blocking
            ///
            /// As [`lock_interruptibly`](Self::lock_interruptibly).
            ///
            /// # Errors
            ///
            /// As [`lock_interruptibly`](Self::lock_interruptibly).
            pub fn acquire_interruptibly(&self, interrupt: &Interrupt) -> Result<$guard> {
                let taken = self.enter("acquire_interruptibly", Lease::Renewed, forever(), Some(interrupt))?;
                Ok(self.guard(taken))
            }

            #[doc = concat!("Acquires ", $the_lock, " if nobody else holds ", $it, " now.")]
            ///
            /// # Blocking
            ///
            /// As [`try_lock`](Self::try_lock).
            ///
            /// # Errors
            ///
            /// As [`try_lock`](Self::try_lock). Busy is `None`, never an error.
            pub fn try_acquire(&self) -> Result<Option<$guard>> {
                let taken = self.try_enter("try_acquire", Lease::Renewed, WaitLimit::Once)?;
                Ok(taken.map(|taken| self.guard(taken)))
            }

            #[doc = concat!("Acquires ", $the_lock, ", waiting at most `wait` in all; `None` if somebody else kept ", $it, ".")]
            ///
            /// Look at the answer: after `try_acquire_for(wait)?;` the code goes on without the lock if it was busy, and the
            /// compiler does not warn.
            ///
            /// # Blocking
            ///
            /// As [`try_lock_for`](Self::try_lock_for).
            ///
            /// # Errors
            ///
            /// As [`try_lock_for`](Self::try_lock_for).
            pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<$guard>> {
                let taken = self.try_enter("try_acquire_for", Lease::Renewed, self.after(wait))?;
                Ok(taken.map(|taken| self.guard(taken)))
            }

            #[doc = concat!("Acquires ", $the_lock, " for at most ", $lease, ", waiting at most `wait`; `None` if somebody else kept ", $it, ".")]
            ///
            /// # Blocking
            ///
            /// As [`try_lock_for`](Self::try_lock_for).
            ///
            /// # Errors
            ///
            /// As [`try_lock_for_with_lease`](Self::try_lock_for_with_lease).
            pub fn try_acquire_for_with_lease(&self, wait: Duration, lease: Duration) -> Result<Option<$guard>> {
                let action = "try_acquire_for_with_lease";
                let taken = self.try_enter(action, Lease::Fixed(lease), self.after(wait))?;
                Ok(taken.map(|taken| self.guard(taken)))
            }

            #[doc = concat!("Acquires ", $the_lock, ", waiting until `instant` at most; `None` if somebody else kept ", $it, ".")]
            ///
            /// # Blocking
            ///
            /// As [`try_lock_until`](Self::try_lock_until).
            ///
            /// # Errors
            ///
            /// As [`try_lock_for`](Self::try_lock_for).
            pub fn try_acquire_until(&self, instant: Instant) -> Result<Option<$guard>> {
                let taken = self.try_enter("try_acquire_until", Lease::Renewed, self.at(instant))?;
                Ok(taken.map(|taken| self.guard(taken)))
            }
        }
    };
}

acquire_methods! { RedisLock, Guard, "the lock", "it", "`lease`",
    "One round trip; none while another thread of this client holds it."
}

acquire_methods! { MultiLock, MultiGuard, "all locks", "any of them", "`lease`, counted from the grant of the last",
    "As [`RedisLock::try_lock`]; free locks are acquired at the same time."
}
