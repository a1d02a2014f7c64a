//! The clock of all deadlines: it runs on while the machine sleeps, and on Unix all processes of a machine
//! read the same.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An instant, in nanoseconds since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) const NEVER: Moment = Moment(u64::MAX);

    pub(crate) fn now() -> Moment {
        Moment(crate::system::nanos())
    }

    pub(crate) fn plus(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(nanos(span)))
    }

    pub(crate) fn minus(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(nanos(span)))
    }

    /// The time from `earlier` to this; zero if `earlier` is not earlier.
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

/// The time since 1970 by this machine's clock: to be shown, and compared with a server's.
#[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
pub(crate) fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// A time since 1970 as people write it, in UTC: `2026-11-23T08:21:20.125Z`.
pub(crate) fn stamp(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
        since_1970.subsec_millis()
    )
}

/// Year, month and day of a number of days since 1970.
fn date(days: u64) -> (u64, u64, u64) {
    let (mut year, mut rest) = (1970, days);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if rest < length {
            break;
        }
        rest -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_with_its_date_in_utc() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_125, "2000-02-29T00:00:00.125Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (1_798_761_599_000, "2026-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(stamp(Duration::from_millis(millis)), text);
        }
    }
}
