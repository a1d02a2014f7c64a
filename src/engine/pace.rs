//! How often the engine sends requests: the numbers that its parts share, and a budget.

use std::time::Duration;

use crate::time::Moment;

/// The time of the next try (`at`). The pause between two tries doubles each time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Repeat {
    pub(crate) at: Moment,
    pause: Duration,
}

impl Repeat {
    pub(crate) fn new(at: Moment, pause: Duration) -> Repeat {
        Repeat { at, pause }
    }

    pub(crate) fn plan(&mut self, least: Duration, most: Duration, now: Moment) {
        let pause = self.pause.clamp(least, most);
        (self.at, self.pause) = (now.plus(pause), pause.saturating_mul(2));
    }
}

/// Limits the rate of requests: each one spends a share of the passing time. Unspent time is saved, up to a
/// limit.
#[derive(Debug, Default)]
pub(super) struct Budget {
    spent_until: Option<Moment>,
}

impl Budget {
    /// The time that may be spent at `now`: at most `ahead`, less what requests have spent in advance.
    pub(super) fn left(&self, ahead: Duration, now: Moment) -> Duration {
        now.plus(ahead).since(self.spent_until.unwrap_or(now).max(now))
    }

    pub(super) fn spend(&mut self, time: Duration, now: Moment) {
        self.spent_until = Some(self.spent_until.unwrap_or(now).max(now).plus(time));
    }

    pub(super) fn take(&mut self, time: Duration, ahead: Duration, now: Moment) -> bool {
        let is_there = self.left(ahead, now) >= time;
        if is_there {
            self.spend(time, now);
        }
        is_there
    }
}

/// The time that a clean-up command takes from the budget: 25 are sent in a second, and up to 25 more at once
/// after a time without any. Without budget a clean-up waits, and its claim's lease may end meanwhile.
pub(super) const CLEANUP: Duration = Duration::from_millis(40);
pub(super) const CLEANUPS_AHEAD: Duration = Duration::from_secs(1);

/// Longest pause between two reads of answers to releases for which no thread waits.
pub(crate) const POLL_COMPLETIONS_EVERY: Duration = Duration::from_millis(20);

/// Holds are renewed after each third of a lease, as by Redisson's watchdog.
pub(crate) fn renewal_period(lease: Duration) -> Duration {
    lease / 3
}

pub(crate) fn renewal_slack(lease: Duration) -> Duration {
    lease / 30
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::ManualClock;

    #[test]
    fn at_most_fifty_clean_ups_are_sent_in_a_second() {
        let start = ManualClock::new().now();
        let mut pace = Budget::default();
        let mut sent: Vec<u64> = Vec::new();
        for milli in 0..5_000 {
            while pace.take(CLEANUP, CLEANUPS_AHEAD, start.plus(Duration::from_millis(milli))) {
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
    fn clean_ups_in_one_command_share_the_budget_of_one() {
        let (mut pace, now) = (Budget::default(), ManualClock::new().now());
        assert_eq!((0..).take_while(|_| pace.take(CLEANUP / 100, CLEANUPS_AHEAD, now)).count(), 2_500);
    }
}
