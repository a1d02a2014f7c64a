//! How often the engine asks: the numbers that its parts share, and the pace of clean-ups.

use std::time::Duration;

use crate::time::Moment;

/// Clean-up commands of one second; after a rest as many more at once, so never more than fifty a second.
/// Claims that cannot share a command wait for their turn, or end with their lease.
const COMMANDS: u64 = 25;
/// The cost of one command, in thousandths: a claim in a batch costs a part of a command.
const COMMAND: u64 = 1_000;

const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The pause of a clean-up that found nothing: it doubles each time.
pub(super) fn longer(first: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.min(20)).min(LONGEST_PAUSE.max(first))
}

#[derive(Debug)]
pub(super) struct CleanupPace {
    left: u64,
    counted_at: Moment,
}

impl CleanupPace {
    pub(super) fn new(now: Moment) -> CleanupPace {
        CleanupPace { left: COMMANDS * COMMAND, counted_at: now }
    }

    pub(super) fn count(&mut self, now: Moment) {
        let millis = u64::try_from(now.since(self.counted_at).as_millis()).unwrap_or(u64::MAX);
        if millis > 0 {
            let added = millis.saturating_mul(COMMANDS * COMMAND / 1_000);
            self.left = self.left.saturating_add(added).min(COMMANDS * COMMAND);
            self.counted_at = now;
        }
    }

    /// Takes the part of a command that one of `together` claims needs; `false`: none is left.
    pub(super) fn take(&mut self, together: u32) -> bool {
        let part = (COMMAND / u64::from(together.max(1))).max(1);
        let is_there = self.left >= part;
        self.left -= if is_there { part } else { 0 };
        is_there
    }

    pub(super) fn next(now: Moment) -> Moment {
        now.plus(Duration::from_millis(1_000 / COMMANDS))
    }
}

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

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::ManualClock;

    #[test]
    fn no_second_has_more_than_fifty_clean_ups() {
        let start = ManualClock::new().now();
        let mut pace = CleanupPace::new(start);
        let mut sent: Vec<u64> = Vec::new();
        for milli in 0..5_000 {
            pace.count(start.plus(Duration::from_millis(milli)));
            while pace.take(1) {
                sent.push(milli);
            }
        }
        for (index, at) in sent.iter().enumerate() {
            let within_a_second = sent.iter().skip(index).take_while(|other| **other < at + 1_000).count();
            assert!(within_a_second <= 50, "{within_a_second} from {at} ms on");
        }
        assert!(sent.len() > 100, "{}", sent.len());
    }

    #[test]
    fn claims_that_share_a_command_count_as_one() {
        let mut pace = CleanupPace::new(ManualClock::new().now());
        assert_eq!((0..).take_while(|_| pace.take(100)).count(), 2_500);
    }
}
