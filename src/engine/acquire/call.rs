//! One call that acquires a lock: its options, its time limits, and its result.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::hold::{Hold, LocalLock};
use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
use crate::interrupt::Interrupt;
use crate::seam::Kind;
use crate::time::{Lease, Moment, checked_span, random_between};

#[derive(Debug, Clone, Copy)]
pub(crate) struct AcquireCall<'a> {
    pub(crate) action: &'static str,
    pub(crate) kind: Kind,
    pub(crate) name: &'a Arc<LockName>,
    pub(crate) local: &'a Arc<LocalLock>,
    pub(crate) lease: Lease,
    /// Until when the call may wait. [`ONCE`]: one attempt without a wait; [`Moment::NEVER`]: no limit.
    pub(crate) limit: Moment,
    pub(crate) interrupt: Option<&'a Interrupt>,
    pub(crate) config: LockConfig,
    pub(crate) units: u32,
    /// The owner number of the place that the caller already has in the store's queue, if any.
    pub(crate) number: Option<u64>,
    pub(crate) by_thread: bool,
}

impl<'a> AcquireCall<'a> {
    /// A call for a transferable guard, for one unit, with a renewed lease and no interrupt.
    pub(crate) fn new(
        action: &'static str,
        kind: Kind,
        (name, local): (&'a Arc<LockName>, &'a Arc<LocalLock>),
        limit: Moment,
    ) -> AcquireCall<'a> {
        AcquireCall {
            action,
            kind,
            name,
            local,
            lease: Lease::Renewed,
            limit,
            interrupt: None,
            config: LockConfig::default(),
            units: 1,
            number: None,
            by_thread: false,
        }
    }

    /// Whether a time slice may cache this call's hold, and the call may reuse a hold that a slice caches.
    /// Not for an explicit lease, nor for a call with special options, such as a token or `max_hold`.
    pub(crate) fn may_cache_slice(&self) -> bool {
        let LockConfig { no_time_slices, fenced, max_hold, backoff, .. } = self.config;
        let is_plain = self.kind == Kind::Mutex && !fenced && max_hold.is_none() && backoff.is_none();
        is_plain && !no_time_slices && self.is_renewed_for_thread()
    }

    pub(crate) fn caches(&self) -> bool {
        self.config.cached && self.is_renewed_for_thread()
    }

    fn is_renewed_for_thread(&self) -> bool {
        self.by_thread && self.number.is_none() && self.lease == Lease::Renewed
    }

    pub(crate) fn may_use(&self, hold: &Hold, is_until_recall: bool) -> bool {
        // Plain and fenced locks share holds, so the cached hold may lack the token.
        let has_token = !self.wants_fence() || hold.fencing_token().is_some();
        let is_meant = if is_until_recall { has_token } else { self.may_cache_slice() };
        is_meant && hold.holder.is_this_task()
    }

    pub(crate) fn wants_fence(&self) -> bool {
        self.kind.is_fenced() || self.config.fenced
    }
}

/// The time limit of a call that makes one attempt, and does not wait.
pub(crate) const ONCE: Moment = Moment::from_nanos(0);

#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) hold: Arc<Hold>,
    pub(crate) level: u64,
}

pub(crate) fn interrupted(action: &'static str) -> Error {
    Error::new(ErrorKind::Interrupted, action, "the wait was interrupted")
}

/// The options of a lock value. A claim contains those that the store must know.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockConfig {
    pub(crate) non_reentrant: bool,
    pub(crate) fenced: bool,
    pub(crate) max_hold: Option<Duration>,
    /// Whether readers of a read-write lock let waiting writers go first.
    pub(crate) writers_first: bool,
    /// Whether the call reacquires its lock after a wait for a condition. Deadlock searches end no such call.
    pub(crate) takes_again: bool,
    pub(crate) leads: bool,
    pub(crate) no_time_slices: bool,
    pub(crate) cached: bool,
    /// `None`: the waiter does not spin; messages wake it, and it polls seldom.
    pub(crate) backoff: Option<Backoff>,
}

impl LockConfig {
    pub(crate) fn checked(mut self, action: &'static str) -> Result<LockConfig> {
        if let Some(most) = self.max_hold {
            self.max_hold = Some(checked_span(action, "a max_hold", most)?);
        }
        Error::require(
            action,
            !self.cached || self.max_hold.is_none() && self.backoff.is_none(),
            || "`cached` cannot be combined with `max_hold` or `spin`: leave one of them out",
        )?;
        if let Some(Backoff { first, max }) = self.backoff {
            Error::require(action, !first.is_zero() && first <= max, || {
                format!(
                    "a back-off from {first:?} to {max:?} cannot be used: its first sleep must be above zero and not longer \
                     than its longest"
                )
            })?;
        }
        Ok(self)
    }
}

/// How long a [spin lock](crate::LockClient::get_spin_lock) sleeps between its attempts.
///
/// Each sleep is random, between half of its length and all of it, so that waiters that began together spread
/// out. (Redisson's exponential back-off adds a random part; its constant back-off adds none.)
///
/// # Examples
///
/// ```
/// use leasehold::{Backoff, LockClient};
/// use std::time::Duration;
///
/// let client = LockClient::in_memory();
/// let pause = Backoff::exponential(Duration::from_millis(5), Duration::from_millis(200));
/// let lock = client.lock_builder("number_blocks").spin(pause).build();
/// lock.lock()?;
/// lock.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    max: Duration,
}

impl Backoff {
    /// Sleeps `first` after the first attempt and twice as long after each further one, `max` at most.
    #[must_use]
    pub fn exponential(first: Duration, max: Duration) -> Backoff {
        Backoff { first, max }
    }

    /// Sleeps equally long after each attempt.
    #[must_use]
    pub fn constant(pause: Duration) -> Backoff {
        Backoff { first: pause, max: pause }
    }

    pub(crate) fn pause(self, attempts: u32) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let length = self.first.saturating_mul(1 << doublings).min(self.max);
        random_between((length / 2, length))
    }
}

impl Default for Backoff {
    /// Redisson's: from 1 ms to 128 ms.
    fn default() -> Backoff {
        Backoff::exponential(Duration::from_millis(1), Duration::from_millis(128))
    }
}

/// Shortest and longest pause after a failed request; each pause is random.
pub(crate) const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_off_doubles_up_to_its_maximum() {
        let ms = Duration::from_millis;
        let backoff = Backoff::exponential(ms(1), ms(128));
        for (attempts, most) in [(1, 1), (2, 2), (3, 4), (8, 128), (9, 128), (u32::MAX, 128)] {
            for _ in 0..100 {
                let pause = backoff.pause(attempts);
                assert!(pause >= ms(most) / 2 && pause <= ms(most), "{attempts}: {pause:?}");
            }
        }
        assert!(Backoff::constant(ms(64)).pause(5) <= ms(64));
    }
}
