//! The numbers that the parts of the engine share.

use std::time::Duration;

/// How often the answers of releases that nobody waits for are read, at least.
pub(crate) const POLL_COMPLETIONS_EVERY: Duration = Duration::from_millis(20);

/// How often a hold is renewed: each third of its lease, as Redisson's watchdog does.
pub(crate) fn renewal_period(lease: Duration) -> Duration {
    lease / 3
}

pub(crate) fn renewal_slack(lease: Duration) -> Duration {
    lease / 30
}

/// A renewed hold with less than this left is at risk: a renewal is overdue.
pub(crate) fn at_risk(lease: Duration) -> Duration {
    lease / 2
}
