//! Remembers for a while that a server refused a request. Afterwards the request is tried again, since
//! rights, tables and proxies change while a client runs.

use std::time::Duration;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::Moment;

/// How long a refusal is remembered. Each new try may cost a line in the server's log.
pub(crate) const LASTS: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// Until when the refusal counts, as `Moment::nanos`; 0: there is no refusal.
    until: AtomicU64,
}

impl Refused {
    pub(crate) fn note(&self, now: Moment) {
        self.note_for(now, LASTS);
    }

    pub(crate) fn note_for(&self, now: Moment, lasts: Duration) {
        self.until.store(now.plus(lasts).nanos(), Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn forget(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// Whether the refusal still counts. Calls `now` only if there was a refusal.
    pub(crate) fn stands(&self, now: impl FnOnce() -> Moment) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        until != 0 && now().nanos() < until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_request_is_not_sent_again_for_a_while() {
        let (refused, at) = (Refused::default(), |ms| Moment::from_nanos(1).plus(Duration::from_millis(ms)));
        assert!(!refused.stands(|| at(0)), "nothing was refused");
        refused.note(at(10));
        assert!(refused.stands(|| at(10)));
        let end = at(10).plus(LASTS);
        assert!(refused.stands(|| end.minus(Duration::from_millis(1))));
        assert!(!refused.stands(|| end), "after the pause the request is tried again");
        refused.note(end);
        assert!(refused.stands(|| end), "the request was refused again");
        refused.forget();
        assert!(!refused.stands(|| end));
    }
}
