//! For how long a caller bears failures.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::time::Moment;

/// Caller's pause between failed requests: a random part.
pub(crate) const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));

#[derive(Default)]
pub(crate) struct RetryBudget {
    pub(crate) since: Option<Moment>,
    pub(crate) last: Option<Error>,
}

impl RetryBudget {
    /// Notes a failure. `Err`: it is final, or failures have lasted for `retry_timeout`, or the caller's time
    /// `is_over`.
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

    /// The caller's time is over: busy all along is no error, but a failed last attempt is.
    pub(crate) fn give_up<T>(self) -> Result<Option<T>> {
        self.last.map_or(Ok(None), Err)
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
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
