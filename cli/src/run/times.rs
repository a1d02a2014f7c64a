//! How long before the end of a window a command gets TERM and KILL. A window: how long the lock stays held
//! if no renewal follows.

use std::time::Duration;

use crate::args::Terms;
use crate::clock::Moment;

#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) grace: Duration,
    /// Time between KILL and the end of the window: enough to end a process group, even on a busy machine.
    pub(super) margin: Duration,
    pub(super) tick: Duration,
}

/// The default grace is a tenth of the window, at most this. A longer one means an earlier TERM in an outage.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);
const DEFAULT_PART: u32 = 10;
const SHORTEST: Duration = Duration::from_secs(1);

impl Times {
    /// A renewal begins after the first third of the window and needs time for its answer, so the grace is at
    /// most the last third. A `grace` of a third of the lease is cut, since the window is 1 % shorter.
    pub(super) fn of(window: Duration, grace: Option<Duration>) -> Times {
        Times {
            grace: grace.unwrap_or(DEFAULT_GRACE.min(window / DEFAULT_PART)).min(window / 3),
            margin: (window / 10).clamp(Duration::from_millis(100), Duration::from_millis(500)),
            tick: (window / 40).clamp(Duration::from_millis(20), Duration::from_millis(250)),
        }
    }
}

/// How long a store may be down before the command gets TERM. In the worst case the store fails just before a
/// renewal, when a third of the lease is over.
pub(crate) fn outlasts(lease: Duration, grace: Option<Duration>) -> Duration {
    let window = lease.mul_f64(0.99);
    let times = Times::of(window, grace);
    window.saturating_sub(times.margin + times.grace + lease / 3)
}

/// Why a command cannot be ended in time under a lock of this lease; `None` if it can. The answer depends on
/// the options alone, so the same options are always refused or always accepted.
pub(super) fn why_too_short(asked: Duration, terms: &Terms) -> Option<String> {
    if asked < SHORTEST {
        return Some("too short to end a command in time: the least is 1s".to_owned());
    }
    let grace = terms.kill_grace.filter(|grace| *grace > asked / 3)?;
    let least = grace.saturating_mul(3);
    Some(format!("--kill-grace {grace:?} is over a third of the lease, which must be at least {least:?}"))
}

/// Whether the helper ended the command because of `--max-hold`, not for a missing renewal: then `until` is
/// near `ceiling`. The two may differ, since the library's window ends up to 1 % earlier, and begins with the
/// request, which may have been slow.
pub(super) fn is_set_by(until: Moment, ceiling: Moment, most: Duration) -> bool {
    until.plus(most / 10) >= ceiling
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OnLost;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_hold_ending_well_before_max_hold_counts_as_lost() {
        let start = Moment::from_nanos(7);
        let ceiling = start.plus(10 * SECOND);
        assert!(is_set_by(ceiling, ceiling, 10 * SECOND));
        assert!(is_set_by(ceiling.minus(SECOND / 10), ceiling, 10 * SECOND));
        assert!(!is_set_by(ceiling.minus(2 * SECOND), ceiling, 10 * SECOND));
    }

    /// docs/command-line.md promises what this test shows.
    #[test]
    fn a_command_outlasts_an_outage_of_nearly_half_its_lease() {
        let millis = |lease: u32| outlasts(lease * SECOND, None).as_millis();
        assert_eq!([2, 10, 30, 60].map(millis), [917, 5_076, 16_230, 33_900]);
        assert!((2..120).all(|lease| outlasts(lease * SECOND, None) > (lease * SECOND).mul_f64(0.45)));
        assert_eq!(outlasts(10 * SECOND, Some(3 * SECOND)).as_millis(), 3_066);
    }

    #[test]
    fn a_kill_grace_over_a_third_of_the_lease_is_refused() {
        let terms = |grace: u32| Terms {
            command: Vec::new(),
            on_lost: OnLost::Kill,
            kill_grace: Some(grace * SECOND / 10),
            lost_exit_code: 79,
            label: None,
        };
        assert_eq!(why_too_short(15 * SECOND, &terms(50)), None);
        assert!(why_too_short(15 * SECOND, &terms(51)).is_some());
        assert!(why_too_short(SECOND / 2, &terms(0)).is_some());
        // The window of a lease of 15 s, which is 1 % shorter than the lease.
        let window = Duration::from_millis(14_850);
        assert_eq!(Times::of(window, terms(50).kill_grace).grace, window / 3);
        assert_eq!(Times::of(window, terms(10).kill_grace).grace, SECOND);
    }
}
