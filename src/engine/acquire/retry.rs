//! For how long a caller bears failures.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::time::Moment;

/// Between failed requests a caller pauses for a random part of this.
pub(crate) const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));

/// The failures of a caller since its last good answer.
#[derive(Default)]
pub(crate) struct RetryBudget {
    pub(crate) since: Option<Moment>,
    pub(crate) last: Option<Error>,
}

impl RetryBudget {
    /// Notes a failure. `Err`: it is final, or failures have lasted for `patience`, or the caller's time `is_over`.
    pub(crate) fn note(
        &mut self,
        patience: Duration,
        error: Error,
        now: Moment,
        is_over: bool,
    ) -> Result<Error> {
        let since = *self.since.get_or_insert(now);
        let is_spent = now.since(since) >= patience || is_over;
        if is_spent || !error.is_retryable() { Err(error) } else { Ok(error) }
    }

    /// The caller's time is over: busy all along is no error, but a failed last attempt is.
    pub(crate) fn give_up<T>(self) -> Result<Option<T>> {
        self.last.map_or(Ok(None), Err)
    }
}
