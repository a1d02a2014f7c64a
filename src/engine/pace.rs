//! How much may be asked that nobody waits for: clean-ups, and renewals because a connection has ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::hold::Hold;
use crate::time::Moment;

/// The clean-ups of one second, in commands. As many go at once after a rest: so no second has more than
/// fifty. A thousand in doubt are a few batches; what cannot go in batches is asked for in its turn, or ends
/// with its lease.
const COMMANDS: u64 = 25;
/// The price of one command, in thousandths: a claim in a batch costs a part of a command.
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

    /// Takes the part of a command that one claim needs, if `together` claims share one; `false`: none is
    /// left.
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

/// The number of each home's holds that are renewed when a connection has ended: the newest half, which a
/// server that lost its last writes has lost first, and others from all.
const SAMPLE: usize = 32;

pub(super) fn sample(holds: Vec<Arc<Hold>>) -> (Vec<Arc<Hold>>, bool) {
    let mut homes: HashMap<u32, Vec<Arc<Hold>>> = HashMap::new();
    for hold in holds {
        homes.entry(hold.home()).or_default().push(hold);
    }
    let (mut chosen, mut has_more) = (Vec::new(), false);
    for mut holds in homes.into_values() {
        if holds.len() > SAMPLE {
            has_more = true;
            holds.sort_by_cached_key(|hold| std::cmp::Reverse(hold.since()));
            let others = holds.split_off(SAMPLE / 2);
            let apart = others.len().div_ceil(SAMPLE / 2).max(1);
            holds.extend(others.into_iter().step_by(apart));
        }
        chosen.append(&mut holds);
    }
    (chosen, has_more)
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
