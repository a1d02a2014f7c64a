//! A hold that *hears* learns of waiters. This file decides when it is checked, and when its callbacks run.

use std::time::Duration;

use crate::engine::lock::At;
use crate::seam::capabilities::CachedCheck;
use crate::time::Moment;

/// Longest time between two checks of a hold, and shortest time between two runs of its callbacks.
const EVERY: Duration = Duration::from_secs(1);

/// After a message, the next check may come this soon after the last. Not sooner, because ZooKeeper also
/// sends a message for each reader that joins other readers.
const APART: Duration = Duration::from_millis(50);

/// Other clients count as waiting for this long after a check found them, which covers the pause between two
/// of their requests plus the time until the next check.
const COUNTS_FOR: Duration = Duration::from_millis(2_500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Hears {
    since: Moment,
    /// The number of recalls before the last check.
    heard: Option<u64>,
    last_check: Option<Moment>,
    /// Whether a check has set the mark that makes waiters send recalls.
    is_marked: bool,
    /// Whether a check found that other clients want the lock, since the callbacks last ran.
    is_wanted: bool,
    /// Until when other clients count as waiting.
    wanted_until: Moment,
    called: Option<Moment>,
}

impl Hears {
    pub(crate) fn new(since: Moment) -> Hears {
        let (heard, last_check, called) = (None, None, None);
        let wanted_until = Moment::from_nanos(0);
        Hears { since, heard, last_check, is_marked: false, is_wanted: false, wanted_until, called }
    }

    /// Returns whether to check the hold now, whether to run its callbacks, and when to watch next.
    /// `is_waited_for`: a thread of this client waits.
    pub(super) fn watch(&mut self, at: At<'_>, is_waited_for: bool) -> (bool, bool, Moment) {
        let is_due = self.due(at) <= at.now;
        if is_due {
            // Recalls are counted before the check is sent, so that a later recall causes another check.
            (self.heard, self.last_check) = (at.recalls, Some(at.now));
        }
        let is_wanted = self.is_wanted || is_waited_for;
        let is_called = is_wanted && self.next_call() <= at.now;
        if is_called {
            (self.called, self.is_wanted) = (Some(at.now), false);
        }
        let due = self.due(at);
        (is_due, is_called, if is_wanted { due.min(self.next_call()) } else { due })
    }

    /// When the next check is due. The first check sets the mark, so it comes when recalls can be received,
    /// or after `EVERY`. Later a recall brings the check forward, but not before the callbacks may run again:
    /// many waiters send many recalls.
    fn due(&self, at: At<'_>) -> Moment {
        let Some(last) = self.last_check else {
            return if at.recalls.is_some() { self.since } else { self.since.plus(EVERY) };
        };
        let latest = last.plus(EVERY);
        if self.heard == at.recalls { latest } else { latest.min(last.plus(APART).max(self.next_call())) }
    }

    fn next_call(&self) -> Moment {
        self.called.map_or(Moment::from_nanos(0), |called| called.plus(EVERY))
    }

    pub(super) fn note(&mut self, answer: CachedCheck, now: Moment) {
        // The first check sets a mark, and a waiter's recall removes it: later its absence means a waiter.
        if answer == CachedCheck::Wanted || answer == CachedCheck::Unmarked && self.is_marked {
            self.wanted_until = now.plus(COUNTS_FOR);
            self.is_wanted = true;
        }
        self.is_marked = true;
    }

    pub(crate) fn is_wanted(&self, now: Moment) -> bool {
        now < self.wanted_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::lock::caching::RULES;

    /// The state of a hold that hears, and how many recalls its client received.
    struct World {
        hears: Hears,
        recalls: Option<u64>,
        now: Moment,
    }

    impl World {
        fn new() -> World {
            let now = Moment::from_nanos(1 << 40);
            World { hears: Hears::new(now), recalls: None, now }
        }

        fn at(&self) -> At<'static> {
            At { now: self.now, recalls: self.recalls, rules: &RULES }
        }

        fn advance(&mut self, by: Duration) {
            self.now = self.now.plus(by);
        }

        fn due_in(&self) -> Duration {
            self.hears.due(self.at()).since(self.now)
        }

        fn checked(&mut self, answer: CachedCheck) {
            (self.hears.heard, self.hears.last_check) = (self.recalls, Some(self.now));
            self.hears.note(answer, self.now);
        }

        fn calls(&mut self, is_waited_for: bool) -> bool {
            self.hears.watch(self.at(), is_waited_for).1
        }
    }

    #[test]
    fn the_first_contention_check_comes_when_recalls_can_be_received() {
        let mut world = World::new();
        assert_eq!(world.due_in(), EVERY, "without an answer, the recall comes with the first check");
        world.recalls = Some(7);
        assert_eq!(world.due_in(), Duration::ZERO);
        assert_eq!(world.hears.watch(world.at(), false), (true, false, world.now.plus(EVERY)));
    }

    #[test]
    fn a_waiter_message_brings_the_next_contention_check_forward() {
        let mut world = World::new();
        world.recalls = Some(7);
        world.checked(CachedCheck::Unmarked);
        assert!(world.due_in() == EVERY && !world.calls(false), "the first check was taken for a recall");
        world.recalls = Some(8);
        assert_eq!(world.due_in(), APART);
        world.advance(APART);
        assert_eq!(world.due_in(), Duration::ZERO);
        world.checked(CachedCheck::Unmarked);
        assert!(world.calls(false), "the recall has deleted the mark");
        assert!(world.hears.is_wanted(world.now));
        world.recalls = Some(9);
        assert_eq!(world.due_in(), EVERY, "no check is due before the next call");
        world.advance(COUNTS_FOR);
        assert!(!world.hears.is_wanted(world.now));
    }

    #[test]
    fn contention_callbacks_are_a_second_apart() {
        let mut world = World::new();
        world.checked(CachedCheck::Wanted);
        assert_eq!([world.calls(false), world.calls(true)], [true, false]);
        world.advance(EVERY / 2);
        world.checked(CachedCheck::Wanted);
        assert!(!world.calls(false));
        world.advance(EVERY / 2);
        assert_eq!([world.calls(false), world.calls(false)], [true, false]);
        world.advance(EVERY);
        world.checked(CachedCheck::Stays);
        assert_eq!([world.calls(false), world.calls(true)], [false, true], "a thread of this client waits");
    }
}
