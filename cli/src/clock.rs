//! The clock of all deadlines. It runs while the machine sleeps, and on Unix all processes of a machine share
//! it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) const NEVER: Moment = Moment(u64::MAX);

    pub(crate) fn now() -> Moment {
        Moment(leasehold::program::NANOS())
    }

    pub(crate) fn plus(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(nanos(span)))
    }

    pub(crate) fn minus(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(nanos(span)))
    }

    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn nanos(self) -> u64 {
        self.0
    }

    pub(crate) fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }
}

/// Time since 1970 by this machine's clock: for display, and to compare with a server's.
#[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
pub(crate) fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

pub(crate) fn stamp(since_1970: Duration) -> String {
    humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + since_1970).to_string()
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
