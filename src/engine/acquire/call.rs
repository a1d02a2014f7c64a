//! One call that acquires a lock: its options, its time limits, and its result.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::hold::{Hold, LocalLock};
use crate::engine::lock::Reuse;
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
    pub(crate) limit: WaitLimit,
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
        limit: WaitLimit,
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

    /// Whether this call's hold may be cached for a time slice, and this call may reuse such a hold: only if
    /// the client renews the hold, and no token, limit or back-off distinguishes its grants.
    pub(crate) fn may_cache_slice(&self) -> bool {
        let LockConfig { time_slices, fenced, max_hold, backoff, .. } = self.config;
        let is_plain = !fenced && max_hold.is_none() && backoff.is_none();
        let is_threads = self.by_thread && self.number.is_none();
        self.kind == Kind::Mutex && self.lease == Lease::Renewed && time_slices && is_plain && is_threads
    }

    pub(crate) fn caches(&self) -> bool {
        self.config.cached && self.by_thread && self.number.is_none() && self.lease == Lease::Renewed
    }

    pub(crate) fn may_use(&self, hold: &Hold, reuse: Reuse) -> bool {
        let is_meant = match reuse {
            // Plain and fenced locks share holds, so the cached hold may lack the token.
            Reuse::UntilRecall => !self.wants_fence() || hold.fencing_token().is_some(),
            Reuse::ForTimeSlice => self.may_cache_slice(),
            Reuse::Never => false,
        };
        is_meant && hold.holder.is_this_task()
    }

    pub(crate) fn wants_fence(&self) -> bool {
        self.kind.is_fenced() || self.config.fenced
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    Once,
    Deadline(Moment),
}

impl WaitLimit {
    pub(crate) fn is_over(self, now: Moment) -> bool {
        match self {
            WaitLimit::Once => true,
            WaitLimit::Deadline(deadline) => now >= deadline,
        }
    }

    pub(crate) fn moment(self, now: Moment) -> Moment {
        match self {
            WaitLimit::Once => now,
            WaitLimit::Deadline(deadline) => deadline,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) hold: Arc<Hold>,
    pub(crate) level: u64,
}

pub(crate) fn interrupted(call: &AcquireCall<'_>) -> Error {
    Error::new(ErrorKind::Interrupted, call.action, "the wait was interrupted").on(call.name.given())
}

/// The options of a lock value. A claim contains those that the store must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockConfig {
    pub(crate) reentrant: bool,
    pub(crate) fenced: bool,
    pub(crate) max_hold: Option<Duration>,
    /// For a read-write lock: waiting writers go before later readers.
    pub(crate) writers_first: bool,
    /// Whether the call reacquires the lock after a condition. No search for deadlocks ends such a wait.
    pub(crate) takes_again: bool,
    pub(crate) leads: bool,
    pub(crate) time_slices: bool,
    pub(crate) cached: bool,
    /// `None`: the waiter does not spin; messages wake it, and it polls seldom.
    pub(crate) backoff: Option<Backoff>,
}

impl Default for LockConfig {
    fn default() -> LockConfig {
        LockConfig {
            reentrant: true,
            fenced: false,
            writers_first: false,
            takes_again: false,
            leads: false,
            time_slices: true,
            cached: false,
            max_hold: None,
            backoff: None,
        }
    }
}

impl LockConfig {
    pub(crate) fn checked(mut self, action: &'static str) -> Result<LockConfig> {
        if let Some(most) = self.max_hold {
            self.max_hold = Some(checked_span(action, "a max_hold", most)?);
        }
        if self.cached && (self.max_hold.is_some() || self.backoff.is_some()) {
            let words = "`cached` cannot be combined with `max_hold` or `spin`: leave one of them out";
            return Err(Error::invalid(action, words));
        }
        if let Some(backoff) = self.backoff
            && (backoff.first.is_zero() || backoff.first > backoff.max)
        {
            let Backoff { first, max } = backoff;
            let detail = format!(
                "a back-off from {first:?} to {max:?} cannot be used: its first sleep must be above zero and not longer than its \
                 longest"
            );
            return Err(Error::invalid(action, detail));
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

#[derive(Default)]
pub(crate) struct RetryBudget {
    pub(crate) since: Option<Moment>,
    pub(crate) last: Option<Error>,
}

impl RetryBudget {
    /// Notes a failure, and returns it as `Ok` if the caller should retry. `Err`: the error is final, or the
    /// caller's time or `retry_timeout` is over.
    pub(crate) fn note(
        &mut self,
        retry_timeout: Duration,
        error: Error,
        now: Moment,
        is_over: bool,
    ) -> Result<Error> {
        let since = *self.since.get_or_insert(now);
        let is_spent = now.since(since) >= retry_timeout || is_over;
        if is_spent || !error.is_retryable() { Err(error) } else { Ok(error) }
    }

    /// The result after the caller's time: the failure of the last attempt, or `None` for a busy lock.
    pub(crate) fn give_up<T>(self) -> Result<Option<T>> {
        self.last.map_or(Ok(None), Err)
    }
}

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

#[cfg(test)]
mod retry_tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn only_passing_failures_are_retried() {
        let (retry_timeout, begun) = (Duration::from_secs(10), Moment::from_nanos(1));
        let passing = || Error::new(ErrorKind::Unreachable, "lock", "not there");
        let mut budget = RetryBudget::default();
        for since in [Duration::ZERO, retry_timeout - Duration::from_millis(1)] {
            assert!(budget.note(retry_timeout, passing(), begun.plus(since), false).is_ok());
        }
        assert!(budget.note(retry_timeout, passing(), begun.plus(retry_timeout), false).is_err());
        let mut budget = RetryBudget::default();
        assert!(budget.note(retry_timeout, passing(), begun, true).is_err(), "the caller's time is over");
        let lasting = Error::new(ErrorKind::WrongType, "lock", "something else");
        assert!(RetryBudget::default().note(retry_timeout, lasting, begun, false).is_err());
    }
}
