//! How a lock is used, beyond which lock it is: whether it may be re-entered, how long it may be kept, how it
//! is waited for.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::time::{checked_span, random_between};

/// The options of a lock value, for each of its holds. A claim has those that concern the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockConfig {
    pub(crate) reentrant: bool,
    pub(crate) fenced: bool,
    pub(crate) max_hold: Option<Duration>,
    /// For a read-write lock: waiting writers come before later readers.
    pub(crate) writers_first: bool,
    /// Whether it takes a lock again that was given up for a condition: such a wait ends with the lock, not
    /// for a deadlock.
    pub(crate) takes_again: bool,
    pub(crate) leads: bool,
    pub(crate) time_slices: bool,
    pub(crate) cached: bool,
    /// `None`: woken by messages, with a safety poll.
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
/// Each sleep is a random part of its length, between half and all of it, so that those who began together do
/// not go on together. (Redisson's exponential back-off adds a random part, its constant one has none.)
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
