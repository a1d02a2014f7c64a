//! Options of one call that acquires a lock.

use std::time::{Duration, Instant};

use crate::config::setters;
use crate::engine::acquire::call::ONCE;
use crate::interrupt::Interrupt;
use crate::time::{Clock, Lease, Moment};

/// How one call acquires a lock: its wait, the lease of the hold, and what interrupts the wait. Used by
/// [`acquire_with`](crate::RedisLock::acquire_with),
/// [`acquire_owned_with`](crate::RedisLock::acquire_owned_with), [`with_lock`](Self::with_lock), and the
/// methods of these names of other types. The defaults are those of [`acquire`](crate::RedisLock::acquire).
///
/// # Examples
/// ```
/// use leasehold::{AcquireOptions, LockClient};
/// use std::time::Duration;
///
/// let client = LockClient::in_memory();
/// let options = AcquireOptions::new().wait(Duration::from_secs(3)).lease(Duration::from_secs(10));
/// match client.get_lock("stock:42").acquire_with(&options)? {
///     Some(guard) => guard.check()?,
///     None => println!("somebody else kept it"),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing before a call is given them"]
pub struct AcquireOptions {
    wait: WaitChoice,
    pub(super) lease: Option<Duration>,
    pub(super) interrupt: Option<Interrupt>,
}

#[derive(Debug, Clone, Copy, Default)]
enum WaitChoice {
    #[default]
    Forever,
    For(Duration),
    Until(Instant),
}

impl AcquireOptions {
    /// The defaults: the call waits without limit, and its hold is renewed until the release.
    pub fn new() -> AcquireOptions {
        AcquireOptions::default()
    }

    pub(super) fn once() -> AcquireOptions {
        AcquireOptions::new().wait(Duration::ZERO)
    }

    pub(super) fn limit(&self, clock: &Clock) -> Moment {
        match self.wait {
            WaitChoice::Forever => Moment::NEVER,
            WaitChoice::For(Duration::ZERO) => ONCE,
            WaitChoice::For(wait) => clock.after(wait),
            WaitChoice::Until(instant) => clock.at(instant),
        }
    }

    pub(super) fn lease_of_hold(&self) -> Lease {
        self.lease.map_or(Lease::Renewed, Lease::Fixed)
    }

    setters! {
    /// Waits for `wait` at most, in place of a [deadline](Self::deadline); zero makes one attempt.
    pub fn wait(mut self, wait: Duration) -> Self = wait: WaitChoice::For(wait);

    /// Waits until `instant` at most, in place of a [wait](Self::wait), so that several calls share one
    /// deadline. An instant in the past makes one attempt.
    pub fn deadline(mut self, instant: Instant) -> Self = wait: WaitChoice::Until(instant);

    /// Holds the lock for `lease` (at least 1 ms), without renewal. Defaults to the client's lease, renewed.
    pub fn lease(mut self, lease: Duration) -> Self = lease: Some(lease);

    /// Ends the wait when `interrupt` is set.
    pub fn interrupt(mut self, interrupt: &Interrupt) -> Self = interrupt: Some(interrupt.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_wait_forever_by_default_and_the_last_limit_wins() {
        let limit = |options: &AcquireOptions| options.limit(&Clock::System);
        let (never, now) = (Moment::NEVER, Clock::System.now());
        let options = AcquireOptions::new();
        assert!(limit(&options) == never && options.lease_of_hold() == Lease::Renewed);
        assert!(options.interrupt.is_none());
        let (minute, instant) = (Duration::from_secs(60), Clock::System.instant(now));
        assert_eq!(limit(&options.clone().wait(Duration::ZERO)), ONCE);
        assert_eq!(limit(&options.clone().wait(Duration::MAX)), never);
        assert!(limit(&options.clone().wait(minute).deadline(instant)) <= Clock::System.now());
        let waits = limit(&options.deadline(instant).wait(minute));
        assert!(waits != never && waits > now);
    }
}
