use super::*;
use crate::seam::subscription::{Channel, ChannelSource};
use crate::sync::Waker;

// ---- time slices
const US: Duration = Duration::from_micros(1);

fn at(us: u32) -> Moment {
    Moment::from_nanos(0).plus(US * us)
}

/// A lock to which a thread here has come back at once as often as is asked for, in its turn since zero.
fn in_time_slice(clients: u32, comes_back: u8) -> (Caching<u8>, Arc<u8>) {
    let mut turns = Caching { score: 0, ..Caching::default() };
    for _ in 0..comes_back {
        turns.dropped = Some((at(0), 1));
        turns.note_asked(1, at(0).plus(AT_ONCE));
    }
    turns.begin(clients, at(0));
    (turns, Arc::new(0))
}

fn is_cached(turns: &mut Caching<u8>, hold: &Arc<u8>, waiting: usize, now: Moment) -> bool {
    turns.end_use((hold, 1), true, waiting, now) != CacheOutcome::Ends
}

#[test]
fn a_time_slice_shrinks_with_the_queue() {
    let of = |clients| length(clients).as_micros();
    assert_eq!([of(1), of(32), of(64), of(500)], [2000, 2000, 1000, 128]);
}

#[test]
fn only_a_returning_threads_short_hold_is_cached() {
    let caches = |comes_back, now| {
        let (mut turns, hold) = in_time_slice(64, comes_back);
        turns.last = Moment::from_nanos(at(now).nanos() - 1000);
        is_cached(&mut turns, &hold, 0, at(now))
    };
    assert_eq!([caches(2, 10), caches(3, 10), caches(3, 999), caches(3, 1000)], [false, true, true, false]);
    let (mut turns, hold) = (Caching::default(), Arc::new(0));
    turns.begin(64, at(0));
    assert!(!is_cached(&mut turns, &hold, 0, at(10)), "nothing is known of it");
    turns.note_asked(1, at(20));
    assert!(is_cached(&mut turns, &hold, 0, at(30)), "which one return changes");
    let (mut turns, hold) = in_time_slice(64, 8);
    assert!(!is_cached(&mut turns, &hold, 0, at(500)), "it was held for half a millisecond");
    let mut turns = Caching { score: MOST, ..Caching::default() };
    assert!(!is_cached(&mut turns, &hold, 0, at(10)), "nobody stood in line");
}

#[test]
fn an_absent_threads_hold_is_not_cached() {
    let (mut turns, hold) = in_time_slice(64, 8);
    assert!(is_cached(&mut turns, &hold, 0, at(10)));
    turns.note_asked(2, at(10));
    assert_eq!(turns.score, MOST, "another thread is no return");
    turns.note_asked(1, at(10).plus(AT_ONCE).plus(US));
    assert_eq!(turns.score, MOST - LATE);
    turns.end_use((&hold, 1), true, 0, at(3000));
    turns.note_return(2, at(4000));
    turns.note_return(1, at(4900));
    turns.note_asked(1, at(5000));
    assert_eq!(turns.score, MOST - LATE + 1, "it waited for its release until then");
    turns.note_asked(1, at(9000));
    assert_eq!(turns.score, MOST - LATE + 1, "another question is no return");
}

#[test]
fn threads_here_that_wait_have_equal_parts_of_the_turn() {
    let caches = |waiting, now| {
        let (mut turns, hold) = in_time_slice(32, 8);
        turns.last = Moment::from_nanos(at(now).nanos() - 1000);
        is_cached(&mut turns, &hold, waiting, at(now))
    };
    assert_eq!([caches(1, 999), caches(1, 1000), caches(3, 499), caches(3, 500)], [true, false, true, false]);
    let (mut turns, hold) = in_time_slice(32, 8);
    turns.pass_on(at(1000));
    turns.last = at(1400);
    assert!(is_cached(&mut turns, &hold, 1, at(1499)), "half of what is left");
    assert!(!turns.is_over(at(1999)) && turns.is_over(at(2000)));
}

#[test]
fn a_descheduled_process_gets_a_longer_slice() {
    for (paused, until) in [(100, 1000), (700, 1700), (9000, 2000)] {
        let (mut turns, hold) = in_time_slice(64, 8);
        assert!(is_cached(&mut turns, &hold, 0, at(0)));
        turns.reuse(|_| true, false, at(paused));
        turns.begin(64, at(0));
        assert_eq!(turns.ends, Some(at(until)), "after a pause of {paused} us");
        turns.begin(64, at(0));
        assert_eq!(turns.ends, Some(at(1000)), "once");
    }
}

#[test]
fn an_unused_cached_hold_is_released() {
    let (mut turns, hold) = in_time_slice(64, 8);
    assert_eq!(turns.end_use((&hold, 1), true, 0, at(10)), CacheOutcome::ForTimeSlice { is_new: true });
    assert!(matches!(turns.watch(at(309)), Watched::Until(until) if until == at(310)));
    assert!(turns.reuse(|_| true, false, at(309)).is_some());
    assert!(matches!(turns.watch(at(320)), Watched::Until(until) if until == at(620)), "it is held");
    assert_eq!(turns.end_use((&hold, 1), true, 0, at(400)), CacheOutcome::ForTimeSlice { is_new: false });
    assert!(matches!(turns.watch(at(700)), Watched::Idle(idle) if Arc::ptr_eq(&idle, &hold)));
    assert_eq!(turns.score, MOST - LATE, "it stayed away");
    assert!(turns.take_to_leave(|_| true).is_none(), "a question finds nothing to give back");
    assert!(turns.is_unused(&hold), "no thread finds it until its release is on its way");
    assert!(turns.reuse(|_| true, false, at(701)).is_none(), "nor takes it");
    turns.end();
    assert!(turns.is_unused(&hold), "nor when another hold of the lock goes");
    turns.forget(&hold);
    assert!(!turns.is_unused(&hold));
    turns.begin(64, at(0));
    turns.last = at(900);
    assert_eq!(turns.end_use((&hold, 1), true, 0, at(950)), CacheOutcome::ForTimeSlice { is_new: false });
    assert!(matches!(turns.watch(at(960)), Watched::Until(until) if until == at(1000)));
    assert!(matches!(turns.watch(at(1000)), Watched::Idle(_)));
    assert!(matches!(turns.watch(at(1001)), Watched::Over));
    turns.begin(64, at(2000));
    turns.score = MOST;
    assert_eq!(
        turns.end_use((&hold, 1), true, 0, at(2001)),
        CacheOutcome::Ends,
        "the other is not on its way yet"
    );
    turns.forget(&hold);
    assert_eq!(
        turns.end_use((&hold, 1), true, 0, at(2001)),
        CacheOutcome::ForTimeSlice { is_new: true },
        "watched anew"
    );
    turns.end();
    assert!(matches!(turns.watch(at(2400)), Watched::Idle(_)), "another hold of the lock went");
}

#[test]
fn a_returning_hold_stays_no_threads() {
    let (mut turns, hold) = in_time_slice(64, 8);
    assert!(is_cached(&mut turns, &hold, 0, at(10)) && turns.take_to_leave(|_| true).is_some());
    turns.forget(&Arc::new(1));
    assert!(turns.is_unused(&hold));
}

#[test]
fn a_thread_that_was_given_up_on_is_late_once() {
    let (mut turns, hold) = in_time_slice(64, 8);
    assert!(is_cached(&mut turns, &hold, 0, at(10)));
    assert!(matches!(turns.watch(at(400)), Watched::Idle(_)));
    turns.note_asked(1, at(900));
    assert_eq!(turns.score, MOST - LATE);
}

#[test]
fn a_handed_lock_is_held_since_the_hand_off() {
    let (mut turns, hold) = in_time_slice(32, 8);
    turns.pass_on(at(1000));
    assert!(is_cached(&mut turns, &hold, 0, at(1010)));
}

// ---- recalls

const MS: Duration = Duration::from_millis(1);

struct Nobody;

impl ChannelSource for Nobody {
    fn left(&self, _channel: &Arc<Channel>) {}
}

fn ms(ms: u32) -> Moment {
    Moment::from_nanos(0).plus(MS * ms)
}

/// Whether the hold stays after its last level, though no time slice is left.
fn stays(cached: &mut Caching<u8>, hold: &Arc<u8>, now: Moment) -> bool {
    cached.end_use((hold, 1), false, 0, now) != CacheOutcome::Ends
}

fn reuse(cached: &mut Caching<u8>, caches: bool, now: Moment) -> Option<Reuse> {
    cached.reuse(|_| true, caches, now).map(|(_, reuse)| reuse)
}

/// A lock whose recalls are heard, with a hold granted at zero.
fn granted() -> (Caching<u8>, Arc<Channel>, Arc<u8>) {
    let channel = Arc::new(Channel::new("a", true));
    let mut cached = Caching::default();
    let listening = Subscription::new(Arc::clone(&channel), Arc::new(Nobody), &Waker::default());
    assert!(cached.listen(Some(listening)).is_none() && cached.listens());
    let hold = Arc::new(0);
    grant(&mut cached, &hold, ms(0));
    (cached, channel, hold)
}

fn grant(cached: &mut Caching<u8>, hold: &Arc<u8>, now: Moment) {
    let heard = cached.heard(now).unwrap();
    cached.grant(hold, CacheTerms { heard, is_wanted: false }, now);
}

#[test]
fn a_hold_stays_and_is_used_again_until_a_recall() {
    let (mut cached, channel, hold) = granted();
    for now in [1, 3] {
        assert!(stays(&mut cached, &hold, ms(now)) && cached.is_idle());
        assert_eq!(reuse(&mut cached, true, ms(now + 1)), Some(Reuse::UntilRecall));
        assert!(!cached.is_idle());
    }
    assert!(stays(&mut cached, &hold, ms(5)));
    channel.take(b"recall");
    assert_eq!(reuse(&mut cached, true, ms(6)), Some(Reuse::Never), "the thread does not get it again");
    let (mut cached, channel, hold) = granted();
    assert!(stays(&mut cached, &hold, ms(5)));
    channel.take(b"recall");
    assert!(matches!(cached.watch(ms(6)), Watched::Idle(_)));
    assert_eq!(reuse(&mut cached, true, ms(6)), None);
    let (mut cached, channel, hold) = granted();
    channel.take(b"recall");
    assert!(matches!(cached.watch(ms(1)), Watched::Until(_)), "it is in use");
    assert!(!stays(&mut cached, &hold, ms(2)));
    let (mut cached, channel, hold) = granted();
    channel.set_up(false);
    assert!(!stays(&mut cached, &hold, ms(1)), "recalls are not heard");
    assert!(cached.heard(ms(1)).is_none());
    channel.set_up(true);
    assert!(!stays(&mut cached, &hold, ms(2)), "one may have been missed");
}

#[test]
fn a_hold_wanted_at_its_grant_is_not_cached() {
    let (mut cached, _channel, hold) = granted();
    let heard = cached.heard(ms(1)).unwrap();
    cached.grant(&hold, CacheTerms { heard, is_wanted: true }, ms(1));
    assert!(!stays(&mut cached, &hold, ms(2)));
    assert!(!stays(&mut cached, &Arc::new(0), ms(2)), "nor does another than the granted one");
}

#[test]
fn a_slice_reuses_its_hold_despite_waiters() {
    let (mut cached, channel, hold) = granted();
    (cached.score, cached.ends) = (MOST, Some(ms(9)));
    channel.take(b"recall");
    let in_time_slice = |cached: &mut Caching<u8>, now| {
        cached.pass_on(now);
        assert_eq!(cached.end_use((&hold, 1), true, 0, now), CacheOutcome::ForTimeSlice { is_new: false });
    };
    in_time_slice(&mut cached, ms(1));
    assert_eq!(reuse(&mut cached, true, ms(1)), Some(Reuse::ForTimeSlice));
    assert!(!stays(&mut cached, &hold, ms(2)), "it does not stay beyond the turn");
    in_time_slice(&mut cached, ms(2));
    assert_eq!(reuse(&mut cached, false, ms(2)), Some(Reuse::Never), "the call would not keep it");
    in_time_slice(&mut cached, ms(3));
    assert_eq!(reuse(&mut cached, false, ms(3)), Some(Reuse::ForTimeSlice), "it is none of those");
    assert!(matches!(cached.watch(ms(10)), Watched::Over));
}

#[test]
fn checks_get_rarer_and_an_idle_hold_is_released() {
    let (mut cached, _channel, hold) = granted();
    let mut checks = Vec::new();
    for now in 0..1800 {
        if now == 1200 {
            assert!(stays(&mut cached, &hold, ms(now)));
        }
        match cached.watch(ms(now)) {
            Watched::Check(_) => checks.push(now),
            Watched::Idle(_) => {
                assert_eq!(now, 1700, "half a second after it was last used");
                break;
            }
            Watched::Until(next) => assert!(next > ms(now) && next <= ms(now).plus(LONGEST_CHECK_GAP)),
            Watched::Over => panic!("it is granted"),
        }
    }
    // Each a quarter earlier than it must be, since it is watched all the time.
    assert_eq!(checks, [38, 113, 263, 563, 938, 1313, 1688]);
}

#[test]
fn the_half_second_begins_anew_with_each_use() {
    let (mut cached, _channel, hold) = granted();
    for used in [1, 400, 800] {
        assert!(stays(&mut cached, &hold, ms(used)));
        assert!(!matches!(cached.watch(ms(used + 499)), Watched::Idle(_)), "{used}");
        assert_eq!(reuse(&mut cached, true, ms(used + 499)), Some(Reuse::UntilRecall));
    }
    assert!(!matches!(cached.watch(ms(5_000)), Watched::Idle(_)), "it is in use");
    assert!(stays(&mut cached, &hold, ms(6_000)));
    assert!(matches!(cached.watch(ms(6_500)), Watched::Idle(_)));
}

#[test]
fn an_idle_hold_is_watched_until_its_release() {
    let (mut cached, _channel, hold) = granted();
    (1..3_000).step_by(100).for_each(|now| drop(cached.watch(ms(now))));
    assert!(stays(&mut cached, &hold, ms(3_000)));
    let (Watched::Check(_) | Watched::Until(_)) = cached.watch(ms(3_400)) else { panic!("too soon") };
    assert!(matches!(cached.watch(ms(3_400)), Watched::Until(until) if until == ms(3_500)));
}

#[test]
fn two_quick_recalls_pause_caching() {
    for (second, pauses) in [(99, true), (101, false)] {
        let (mut cached, channel, hold) = granted();
        for now in [1, 1 + second] {
            grant(&mut cached, &hold, ms(now));
            assert!(stays(&mut cached, &hold, ms(now)));
            channel.take(b"recall");
            assert!(matches!(cached.watch(ms(now)), Watched::Idle(_)));
            cached.forget(&hold);
        }
        assert_eq!(cached.heard(ms(1 + second)).is_none(), pauses, "{second}");
        assert!(cached.heard(ms(1001 + second)).is_some());
    }
    let (mut cached, channel, hold) = granted();
    cached.note_wanted(&hold, ms(1));
    assert!(!stays(&mut cached, &hold, ms(2)));
    grant(&mut cached, &hold, ms(3));
    channel.take(b"recall");
    assert!(!stays(&mut cached, &hold, ms(4)));
    assert!(cached.heard(ms(5)).is_none(), "what a look has seen is a recall too");
}

#[test]
fn a_later_pair_of_recalls_pauses_caching() {
    let (mut cached, channel, hold) = granted();
    for now in [1, 10_000, 10_050] {
        assert!(cached.heard(ms(now)).is_some(), "{now}");
        grant(&mut cached, &hold, ms(now));
        channel.take(b"recall");
        assert!(!stays(&mut cached, &hold, ms(now)));
        cached.forget(&hold);
    }
    assert!(cached.heard(ms(10_060)).is_none());
}

#[test]
fn other_holds_do_not_affect_the_cached_one() {
    let (mut cached, _channel, hold) = granted();
    let other = Arc::new(1);
    assert!(stays(&mut cached, &hold, ms(1)));
    cached.forget(&other);
    cached.note_wanted(&other, ms(2));
    assert!(cached.is_idle() && cached.take_idle(&other).is_none());
    assert_eq!(reuse(&mut cached, true, ms(3)), Some(Reuse::UntilRecall));
    assert!(stays(&mut cached, &hold, ms(4)), "it is kept as before");
}

#[test]
fn the_end_of_the_client_leaves_nothing_kept() {
    let (mut cached, _channel, hold) = granted();
    assert!(stays(&mut cached, &hold, ms(1)));
    assert!(cached.clear().is_some());
    assert!(!cached.is_idle() && !cached.listens() && matches!(cached.watch(ms(2)), Watched::Over));
}

#[test]
fn a_recall_counts_once() {
    let (mut cached, _channel, hold) = granted();
    [1, 50].iter().for_each(|now| cached.note_wanted(&hold, ms(*now)));
    assert!(cached.heard(ms(51)).is_some(), "that was one recall");
}
