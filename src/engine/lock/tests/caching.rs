//! Time slices, and caching until a recall.

use super::*;
use crate::engine::lock::caching::{AT_ONCE, LATE, LEAST, MOST, RULES, Watched};
use crate::seam::capabilities::CachedCheck;
use crate::time::Lease;

const US: Duration = Duration::from_micros(1);

fn at(us: u32) -> Moment {
    Moment::from_nanos(0).plus(US * us)
}

/// A lock with one hold, of thread 1. `recalls`: the number of recalls; `None` if none can be received.
struct One {
    lock: Lock,
    recalls: Option<u64>,
    waiting: usize,
}

const HOLD: TestHold = TestHold(Id { serial: 1, number: 16 });
const OTHER: TestHold = TestHold(Id { serial: 2, number: 17 });

impl One {
    fn new() -> One {
        let mut one = One { lock: Lock::default(), recalls: Some(0), waiting: 0 };
        one.enter(HOLD, None, at(0));
        one
    }

    fn at(&self, now: Moment) -> At<'static> {
        At { now, recalls: self.recalls, rules: &RULES }
    }

    fn enter(&mut self, hold: TestHold, recalls: Option<u64>, now: Moment) {
        let mut own = HoldState::new(hold, Some(1), hold.0.number, now, Moment::NEVER);
        recalls.into_iter().for_each(|heard| own.until_recall(heard, false, now, RULES.first_check));
        drop(self.lock.enter(own));
    }

    fn own(&mut self) -> &mut HoldState<TestHold> {
        self.lock.state_of(1).unwrap()
    }

    /// Ends the last level, with this number of waiters.
    fn end_use(&mut self, by_time_slice: bool, waiting: usize, now: Moment) -> Option<CachedFor> {
        for ticket in self.waiting..waiting {
            self.lock.queue.join(TicketId(ticket as u64), TestWaiter::default(), false);
        }
        self.waiting = self.waiting.max(waiting);
        let at = self.at(now);
        self.lock.cache(1, by_time_slice, at)
    }

    fn watch(&mut self, now: Moment) -> Watched<TestHold> {
        let at = self.at(now);
        self.lock.watch(at, false)
    }

    fn is_watched_until(&mut self, now: Moment, next: Moment) -> bool {
        matches!(self.watch(now), Watched::Until { next: until, .. } if until == next)
    }

    fn begin(&mut self, clients: u32, now: Moment) {
        let at = self.at(now);
        self.lock.caching.begin(clients, at);
    }

    fn note_asked(&mut self, thread: u64, now: Moment) {
        let at = self.at(now);
        self.lock.caching.note_asked(thread, at);
    }

    /// Reuses the cached hold, if there is one. `Some(None)`: it must be released; else returns whether it was
    /// cached until a recall.
    fn reuse(&mut self, caches: bool, now: Moment) -> Option<Option<bool>> {
        let at = self.at(now);
        if !self.lock.holds.iter().any(HoldState::is_cached) {
            return None;
        }
        let mut found = None;
        let level = self.lock.reuse(
            1,
            caches,
            |_, is_until_recall| {
                found = Some(is_until_recall);
                true
            },
            at,
        );
        if level.is_none() {
            self.lock.begin_release(1, at);
        }
        Some(found)
    }

    fn release_cached(&mut self, now: Moment) -> bool {
        let at = self.at(now);
        self.lock.release_cached(None, at).is_some()
    }

    fn ends(&self) -> Option<Moment> {
        self.lock.caching.ends
    }

    fn score(&mut self) -> &mut i8 {
        &mut self.lock.caching.score
    }
}

/// A lock whose time slice began at zero, after a thread came back at once `comes_back` times.
fn in_time_slice(clients: u32, comes_back: u8) -> One {
    let mut one = One::new();
    *one.score() = LEAST;
    for _ in 0..comes_back {
        one.lock.caching.dropped = Some((at(0), 1));
        one.note_asked(1, at(0).plus(AT_ONCE));
    }
    one.begin(clients, at(0));
    one
}

fn is_cached(one: &mut One, waiting: usize, now: Moment) -> bool {
    one.end_use(true, waiting, now).is_some()
}

#[test]
fn more_waiting_clients_shorten_the_time_a_lock_is_cached() {
    let of = |clients| {
        let mut one = One::new();
        one.begin(clients, at(0));
        one.ends().unwrap().since(at(0)).as_micros()
    };
    assert_eq!([of(1), of(32), of(64), of(500)], [2000, 2000, 1000, 128]);
}

#[test]
fn a_hold_is_cached_only_for_threads_that_soon_relock() {
    let caches = |comes_back, now| {
        let mut one = in_time_slice(64, comes_back);
        one.lock.caching.last = Moment::from_nanos(at(now).nanos() - 1000);
        is_cached(&mut one, 0, at(now))
    };
    assert_eq!([caches(2, 10), caches(3, 10), caches(3, 999), caches(3, 1000)], [false, true, true, false]);
    let mut one = One::new();
    one.begin(64, at(0));
    assert!(!is_cached(&mut one, 0, at(10)), "nothing is known of the lock");
    one.note_asked(1, at(20));
    assert!(is_cached(&mut one, 0, at(30)), "one return of the thread changes that");
    let mut one = in_time_slice(64, 8);
    assert!(!is_cached(&mut one, 0, at(500)), "the lock was held for half a millisecond");
    let mut one = One::new();
    *one.score() = MOST;
    assert!(!is_cached(&mut one, 0, at(10)), "no client was in the wait queue");
}

#[test]
fn a_thread_releases_only_its_own_cached_hold() {
    let mut one = in_time_slice(64, 8);
    assert!(is_cached(&mut one, 0, at(10)));
    let now = one.at(at(20));
    assert_eq!([2, 1].map(|thread| one.lock.release_cached(Some(thread), now).is_some()), [false, true]);
}

#[test]
fn an_expired_cached_hold_is_not_used_again() {
    let is_reused = |until| {
        let mut one = in_time_slice(64, 8);
        one.own().until = until;
        assert!(is_cached(&mut one, 0, at(10)));
        let at = one.at(at(20));
        one.lock.reuse(1, false, |_, _| true, at).is_some()
    };
    assert_eq!([at(20), at(21)].map(is_reused), [false, true]);
}

#[test]
fn only_a_thread_that_reacquires_changes_the_caching_score() {
    let mut one = in_time_slice(64, 8);
    assert!(is_cached(&mut one, 0, at(10)));
    one.note_asked(2, at(10));
    assert_eq!(*one.score(), MOST, "another thread was taken for a return");
    one.note_asked(1, at(10).plus(AT_ONCE).plus(US));
    assert_eq!(*one.score(), MOST - LATE);
    one.own().stage = Stage::Held;
    one.end_use(true, 0, at(3000));
    one.lock.caching.note_return(2, at(4000));
    one.lock.caching.note_return(1, at(4900));
    one.note_asked(1, at(5000));
    assert_eq!(*one.score(), MOST - LATE + 1, "the thread waited for the release until then");
    one.note_asked(1, at(9000));
    assert_eq!(*one.score(), MOST - LATE + 1, "a second request was taken for a return");
}

#[test]
fn waiting_threads_of_one_client_share_its_time_slice_equally() {
    let caches = |waiting, now| {
        let mut one = in_time_slice(32, 8);
        one.lock.caching.last = Moment::from_nanos(at(now).nanos() - 1000);
        is_cached(&mut one, waiting, at(now))
    };
    assert_eq!([caches(1, 999), caches(1, 1000), caches(3, 499), caches(3, 500)], [true, false, true, false]);
    let mut one = in_time_slice(32, 8);
    one.lock.caching.pass_on(at(1000));
    one.lock.caching.last = at(1400);
    assert!(is_cached(&mut one, 1, at(1499)), "the hold is cached for half of the time that is left");
    assert!(!one.lock.caching.is_over(one.at(at(1999))) && one.lock.caching.is_over(one.at(at(2000))));
}

#[test]
fn time_without_a_processor_extends_only_the_next_time_slice() {
    for (paused, until) in [(100, 1000), (700, 1700), (9000, 2000)] {
        let mut one = in_time_slice(64, 8);
        assert!(is_cached(&mut one, 0, at(0)));
        one.reuse(false, at(paused));
        one.begin(64, at(0));
        assert_eq!(one.ends(), Some(at(until)), "after a pause of {paused} us");
        one.begin(64, at(0));
        assert_eq!(one.ends(), Some(at(1000)), "once");
    }
}

#[test]
fn an_idle_cached_hold_is_released_within_its_time_slice() {
    let mut one = in_time_slice(64, 8);
    assert_eq!(one.end_use(true, 0, at(10)), Some(CachedFor::TimeSlice));
    assert!(one.is_watched_until(at(309), at(310)));
    assert!(one.reuse(false, at(309)).is_some());
    assert!(one.is_watched_until(at(320), at(620)), "the lock is held");
    one.own().levels.take(None);
    assert_eq!(one.end_use(true, 0, at(400)), Some(CachedFor::TimeSlice));
    assert!(matches!(one.watch(at(700)), Watched::Idle));
    assert_eq!(*one.score(), MOST - LATE, "the thread did not come back");
    assert!(one.release_cached(at(700)) && !one.release_cached(at(700)), "once");
    assert_eq!(one.own().stage, Stage::Returning, "no thread finds the hold until its release is sent");
    assert!(one.reuse(false, at(701)).is_none(), "no thread reuses the hold either");
    one.enter(OTHER, None, at(701));
    one.begin(64, at(701));
    *one.score() = MOST;
    let at_now = one.at(at(702));
    assert!(one.lock.cache(2, true, at_now).is_none(), "the other hold's release is not sent yet");
    one.lock.remove(1, None);
    one.begin(64, at(701));
    assert!(one.lock.cache(2, true, at_now).is_some());
    one.lock.caching.ends = None;
    assert!(matches!(one.watch(at(703)), Watched::Idle), "another hold of the lock was released");
    assert!(one.release_cached(at(703)) && one.lock.remove(2, None).is_some());
    assert!(matches!(one.watch(at(1001)), Watched::Over));
}

#[test]
fn a_cached_hold_is_released_when_its_time_slice_ends() {
    let mut one = in_time_slice(64, 8);
    one.lock.caching.last = at(900);
    assert_eq!(one.end_use(true, 0, at(950)), Some(CachedFor::TimeSlice));
    assert!(one.is_watched_until(at(960), at(1000)));
    assert!(matches!(one.watch(at(1000)), Watched::Idle));
}

#[test]
fn a_late_reacquire_lowers_the_caching_score_only_once() {
    let mut one = in_time_slice(64, 8);
    assert!(is_cached(&mut one, 0, at(10)));
    assert!(matches!(one.watch(at(400)), Watched::Idle));
    one.note_asked(1, at(900));
    assert_eq!(*one.score(), MOST - LATE);
}

#[test]
fn after_a_hand_off_the_hold_time_is_measured_anew() {
    let mut one = in_time_slice(32, 8);
    one.lock.caching.pass_on(at(1000));
    assert!(is_cached(&mut one, 0, at(1010)));
}

#[test]
fn a_wanted_hold_is_cached_only_for_a_time_slice() {
    let mut one = in_time_slice(2, 8);
    let now = one.at(at(0));
    one.own().until_recall(0, true, now.now, RULES.first_check);
    one.lock.caching.may_cache = true;
    assert!(one.is_watched_until(at(10), at(310)), "the hold is in use");
    assert_eq!(one.end_use(true, 0, at(20)), Some(CachedFor::TimeSlice));
    assert!(one.is_watched_until(at(30), at(320)));
    assert!(matches!(one.watch(at(320)), Watched::Idle));
    assert!(one.release_cached(at(320)));
    assert!(matches!(one.watch(at(2_000)), Watched::Over), "the cached hold is gone");
}

#[test]
fn releasing_a_cached_hold_skips_no_check_of_another_hold() {
    let mut one = One::new();
    one.own().until_recall(0, false, at(0), RULES.first_check);
    assert_eq!(one.end_use(false, 0, at(0)), Some(CachedFor::UntilRecall(at(0))));
    let other = TestHold(Id { serial: 0, number: 9 });
    one.enter(other, None, at(0));
    one.lock.state_of(other.serial()).unwrap().hears = Some(Box::new(Hears::new(at(0))));
    let unused = Moment::from_nanos(0).plus(RULES.unused);
    assert!(matches!(one.watch(unused), Watched::Idle));
    assert!(one.release_cached(unused));
    assert!(matches!(one.watch(unused), Watched::Until { checks, .. } if checks == [other]));
}

const MS: Duration = Duration::from_millis(1);

fn ms(ms: u32) -> Moment {
    Moment::from_nanos(0).plus(MS * ms)
}

/// Ends the hold's last level. Returns whether the hold is now cached until a recall.
fn stays(one: &mut One, now: Moment) -> bool {
    one.end_use(false, 0, now).is_some()
}

/// A lock that can receive recalls, with a hold granted at zero.
fn granted() -> One {
    let mut one = One::new();
    grant(&mut one, ms(0));
    one
}

fn grant(one: &mut One, now: Moment) {
    one.lock.take_out(1);
    one.enter(HOLD, one.recalls, now);
}

fn recall(one: &mut One) {
    one.recalls = one.recalls.map(|recalls| recalls + 1);
}

#[test]
fn a_cached_hold_is_reused_until_a_waiter_recalls_it() {
    let mut one = granted();
    for now in [1, 3] {
        assert!(stays(&mut one, ms(now)) && one.lock.is_idle());
        assert_eq!(one.reuse(true, ms(now + 1)), Some(Some(true)));
        assert!(!one.lock.is_idle());
    }
    assert!(stays(&mut one, ms(5)));
    recall(&mut one);
    assert_eq!(one.reuse(true, ms(6)), Some(None), "the thread reused a recalled hold");
    let mut one = granted();
    assert!(stays(&mut one, ms(5)));
    recall(&mut one);
    assert!(matches!(one.watch(ms(6)), Watched::Idle) && one.release_cached(ms(6)));
    assert_eq!(one.reuse(true, ms(6)), None);
    let mut one = granted();
    recall(&mut one);
    assert!(matches!(one.watch(ms(1)), Watched::Until { .. }), "the hold is in use");
    assert!(!stays(&mut one, ms(2)));
    let mut one = granted();
    one.recalls = None;
    assert!(!stays(&mut one, ms(1)), "the client does not listen to recalls");
    one.recalls = Some(0);
    assert!(!stays(&mut one, ms(2)), "a recall may have been missed");
}

#[test]
fn outside_a_time_slice_a_wanted_hold_is_not_cached() {
    let mut one = granted();
    let now = one.at(ms(1));
    one.own().until_recall(0, true, now.now, RULES.first_check);
    assert!(!stays(&mut one, ms(2)));
}

#[test]
fn a_time_slice_allows_reuse_despite_a_recall() {
    let mut one = granted();
    (one.lock.caching.score, one.lock.caching.ends) = (MOST, Some(ms(9)));
    recall(&mut one);
    let in_time_slice = |one: &mut One, now| {
        one.lock.caching.pass_on(now);
        assert_eq!(one.end_use(true, 0, now), Some(CachedFor::TimeSlice));
    };
    in_time_slice(&mut one, ms(1));
    assert_eq!(one.reuse(true, ms(1)), Some(Some(false)));
    assert!(!stays(&mut one, ms(2)), "the hold was cached beyond the time slice");
    in_time_slice(&mut one, ms(2));
    assert_eq!(one.reuse(false, ms(2)), Some(None), "a call without caching reused the hold");
    one.own().stage = Stage::Held;
    in_time_slice(&mut one, ms(3));
    assert_eq!(one.reuse(false, ms(3)), Some(Some(false)), "the hold is not cached");
    one.own().levels.take(None);
    assert!(matches!(one.watch(ms(10)), Watched::Over));
}

#[test]
fn checks_whether_others_want_a_cached_hold_become_rarer() {
    let mut one = granted();
    let mut checks = Vec::new();
    for now in 0..1800 {
        if now == 1200 {
            assert!(stays(&mut one, ms(now)));
        }
        match one.watch(ms(now)) {
            Watched::Idle => {
                assert_eq!(now, 1700, "the hold was last used half a second ago");
                break;
            }
            Watched::Until { next, checks: due, .. } => {
                checks.extend(due.iter().map(|_| now));
                assert!(next > ms(now) && next <= ms(now).plus(RULES.longest_check_gap));
            }
            Watched::Over => panic!("a granted lock is no longer watched"),
        }
    }
    // The lock is watched in each millisecond, so each check comes a quarter of its gap early.
    assert_eq!(checks, [38, 113, 263, 563, 938, 1313, 1688]);
}

#[test]
fn each_use_of_a_cached_hold_restarts_its_idle_time() {
    let mut one = granted();
    for used in [1, 400, 800] {
        assert!(stays(&mut one, ms(used)));
        assert!(!matches!(one.watch(ms(used + 499)), Watched::Idle), "{used}");
        assert_eq!(one.reuse(true, ms(used + 499)), Some(Some(true)));
    }
    assert!(!matches!(one.watch(ms(5_000)), Watched::Idle), "the hold is in use");
    assert!(stays(&mut one, ms(6_000)));
    assert!(matches!(one.watch(ms(6_500)), Watched::Idle));
}

#[test]
fn a_cached_hold_is_watched_until_its_idle_time_ends() {
    let mut one = granted();
    for now in (1..3_000).step_by(100) {
        one.watch(ms(now));
    }
    assert!(stays(&mut one, ms(3_000)));
    assert!(matches!(one.watch(ms(3_400)), Watched::Until { .. }), "the hold was released too soon");
    assert!(one.is_watched_until(ms(3_400), ms(3_500)));
}

#[test]
fn two_recalls_within_100_ms_pause_caching_for_a_second() {
    for (second, pauses) in [(99, true), (101, false)] {
        let mut one = granted();
        for now in [1, 1 + second] {
            grant(&mut one, ms(now));
            assert!(stays(&mut one, ms(now)));
            recall(&mut one);
            assert!(matches!(one.watch(ms(now)), Watched::Idle) && one.release_cached(ms(now)));
        }
        assert_eq!(one.lock.caching.heard(one.at(ms(1 + second))).is_none(), pauses, "{second}");
        assert!(one.lock.caching.heard(one.at(ms(1001 + second))).is_some());
    }
}

#[test]
fn a_waiter_found_by_two_checks_counts_as_one_recall() {
    let mut one = granted();
    for now in [1, 2] {
        let now = one.at(ms(now));
        assert!(one.lock.note_checked(1, CachedCheck::Wanted, now).is_none(), "the hold is in use");
        assert!(one.lock.caching.heard(now).is_some(), "both checks found the same waiter");
    }
    assert!(!stays(&mut one, ms(2)));
    grant(&mut one, ms(3));
    recall(&mut one);
    assert!(!stays(&mut one, ms(4)));
    assert!(one.lock.caching.heard(one.at(ms(5))).is_none());
}

#[test]
fn recalls_pause_caching_only_within_100_ms_of_each_other() {
    let mut one = granted();
    for now in [1, 10_000, 10_050] {
        assert!(one.lock.caching.heard(one.at(ms(now))).is_some(), "{now}");
        grant(&mut one, ms(now));
        recall(&mut one);
        assert!(!stays(&mut one, ms(now)));
    }
    assert!(one.lock.caching.heard(one.at(ms(10_060))).is_none());
}

#[test]
fn events_of_other_holds_do_not_affect_a_cached_hold() {
    let mut one = granted();
    assert!(stays(&mut one, ms(1)));
    let now = one.at(ms(2));
    assert!(
        one.lock.note_checked(2, CachedCheck::Wanted, now).is_none() && one.lock.remove(2, None).is_none()
    );
    assert!(one.lock.is_idle());
    assert_eq!(one.reuse(true, ms(3)), Some(Some(true)));
    assert!(stays(&mut one, ms(4)), "the hold is cached as before");
}

#[test]
fn a_check_that_finds_waiters_releases_the_cached_hold() {
    let mut one = granted();
    assert!(stays(&mut one, ms(1)));
    let now = one.at(ms(2));
    assert!(one.lock.note_checked(1, CachedCheck::Wanted, now).is_some());
    assert_eq!(one.own().stage, Stage::Returning);
}

#[test]
fn the_end_of_the_client_leaves_nothing_cached() {
    let mut one = granted();
    assert!(stays(&mut one, ms(1)));
    assert_eq!(one.lock.clear().len(), 1);
    assert!(!one.lock.is_idle() && matches!(one.watch(ms(2)), Watched::Over));
}

#[test]
fn a_release_during_a_renewal_retires_the_owner_number() {
    let mut one = granted();
    one.own().levels.add(Lease::Renewed);
    assert!(one.own().begin_renewal(true));
    let now = one.at(ms(1));
    assert!(one.lock.begin_release(1, now).is_some() && one.lock.retired.has(16));
}
