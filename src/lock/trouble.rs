//! For how long a caller has had nothing but failures, and when that is enough.

use crate::error::{Error, Result};
use crate::lock::engine::Engine;
use crate::lock::wait::{Entered, Until};
use crate::time::Moment;

/// What a caller has been through since its last good answer.
#[derive(Default)]
pub(crate) struct Trouble {
    pub(super) since: Option<Moment>,
    pub(super) last: Option<Error>,
}

impl Trouble {
    /// Takes note of a failure. `Err`: it is final, or has lasted as long as the caller waits for such.
    pub(crate) fn note(&mut self, engine: &Engine, error: Error, now: Moment, until: Until) -> Result<Error> {
        let since = *self.since.get_or_insert(now);
        let is_enough = now.since(since) >= engine.options.patience || until.is_over(now);
        if is_enough || !error.is_retryable() { Err(error) } else { Ok(error) }
    }

    /// The caller's time is over: busy all along is no error, but a failed last attempt is.
    pub(super) fn give_up(self) -> Result<Option<Entered>> {
        self.last.map_or(Ok(None), Err)
    }
}
