use super::*;
use crate::seam::subscription::{Channel, ChannelSource};
use crate::sync::Waker;

// ---- time slices
const US: Duration = Duration::from_micros(1);

fn at(us: u32) -> Moment {
    Moment::from_nanos(0).plus(US * us)
}

/// A lock to which a thread here has come back at once as often as is asked for, in its turn since zero.
fn in_turn(clients: u32, comes_back: u8) -> (Caching<u8>, Arc<u8>) {
    let mut turns = Caching { score: 0, ..Caching::default() };
    for _ in 0..comes_back {
        turns.dropped = Some((at(0), 1));
        turns.note_asked(1, at(0).plus(AT_ONCE));
    }
    turns.begin(clients, at(0));
    (turns, Arc::new(0))
}

fn is_kept(turns: &mut Caching<u8>, hold: &Arc<u8>, waiting: usize, now: Moment) -> bool {
    turns.end_use((hold, 1), true, waiting, now) != Keeping::Ends
}

#[test]
fn a_turn_is_short_and_shorter_the_more_stand_in_line() {
    let of = |clients| length(clients).as_micros();
    assert_eq!([of(1), of(32), of(64), of(500)], [2000, 2000, 1000, 128]);
}

#[test]
fn only_a_short_hold_of_a_thread_that_comes_back_at_once_is_kept_until_the_turn_is_over() {
    let keeps = |comes_back, now| {
        let (mut turns, hold) = in_turn(64, comes_back);
        turns.last = Moment::from_nanos(at(now).nanos() - 1000);
        is_kept(&mut turns, &hold, 0, at(now))
    };
    assert_eq!([keeps(2, 10), keeps(3, 10), keeps(3, 999), keeps(3, 1000)], [false, true, true, false]);
    let (mut turns, hold) = (Caching::default(), Arc::new(0));
    turns.begin(64, at(0));
    assert!(!is_kept(&mut turns, &hold, 0, at(10)), "nothing is known of it");
    turns.note_asked(1, at(20));
    assert!(is_kept(&mut turns, &hold, 0, at(30)), "which one return changes");
    let (mut turns, hold) = in_turn(64, 8);
    assert!(!is_kept(&mut turns, &hold, 0, at(500)), "it was held for half a millisecond");
    let mut turns = Caching { score: MOST, ..Caching::default() };
    assert!(!is_kept(&mut turns, &hold, 0, at(10)), "nobody stood in line");
}

#[test]
fn a_thread_that_stays_away_is_not_counted_on_for_a_while() {
    let (mut turns, hold) = in_turn(64, 8);
    assert!(is_kept(&mut turns, &hold, 0, at(10)));
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
    let keeps = |waiting, now| {
        let (mut turns, hold) = in_turn(32, 8);
        turns.last = Moment::from_nanos(at(now).nanos() - 1000);
        is_kept(&mut turns, &hold, waiting, at(now))
    };
    assert_eq!([keeps(1, 999), keeps(1, 1000), keeps(3, 499), keeps(3, 500)], [true, false, true, false]);
    let (mut turns, hold) = in_turn(32, 8);
    turns.pass_on(at(1000));
    turns.last = at(1400);
    assert!(is_kept(&mut turns, &hold, 1, at(1499)), "half of what is left");
    assert!(!turns.is_over(at(1999)) && turns.is_over(at(2000)));
}

#[test]
fn the_time_in_which_the_process_did_not_run_lengthens_its_next_turn_by_as_much_as_a_turn_at_most() {
    for (paused, until) in [(100, 1000), (700, 1700), (9000, 2000)] {
        let (mut turns, hold) = in_turn(64, 8);
        assert!(is_kept(&mut turns, &hold, 0, at(0)));
        turns.reuse(|_| true, false, at(paused));
        turns.begin(64, at(0));
        assert_eq!(turns.ends, Some(at(until)), "after a pause of {paused} us");
        turns.begin(64, at(0));
        assert_eq!(turns.ends, Some(at(1000)), "once");
    }
}

#[test]
fn a_kept_hold_is_given_back_when_nobody_has_come_or_the_turn_is_over() {
    let (mut turns, hold) = in_turn(64, 8);
    assert_eq!(turns.end_use((&hold, 1), true, 0, at(10)), Keeping::InTurn { is_new: true });
    assert!(matches!(turns.watch(at(309)), Watched::Until(until) if until == at(310)));
    assert!(turns.reuse(|_| true, false, at(309)).is_some());
    assert!(matches!(turns.watch(at(320)), Watched::Until(until) if until == at(620)), "it is held");
    assert_eq!(turns.end_use((&hold, 1), true, 0, at(400)), Keeping::InTurn { is_new: false });
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
    assert_eq!(turns.end_use((&hold, 1), true, 0, at(950)), Keeping::InTurn { is_new: false });
    assert!(matches!(turns.watch(at(960)), Watched::Until(until) if until == at(1000)));
    assert!(matches!(turns.watch(at(1000)), Watched::Idle(_)));
    assert!(matches!(turns.watch(at(1001)), Watched::Over));
    turns.begin(64, at(2000));
    turns.score = MOST;
    assert_eq!(
        turns.end_use((&hold, 1), true, 0, at(2001)),
        Keeping::Ends,
        "the other is not on its way yet"
    );
    turns.forget(&hold);
    assert_eq!(
        turns.end_use((&hold, 1), true, 0, at(2001)),
        Keeping::InTurn { is_new: true },
        "watched anew"
    );
    turns.end();
    assert!(matches!(turns.watch(at(2400)), Watched::Idle(_)), "another hold of the lock went");
}

#[test]
fn the_end_of_another_hold_leaves_the_one_that_is_being_given_back_no_threads() {
    let (mut turns, hold) = in_turn(64, 8);
    assert!(is_kept(&mut turns, &hold, 0, at(10)) && turns.take_to_leave(|_| true).is_some());
    turns.forget(&Arc::new(1));
    assert!(turns.is_unused(&hold));
}

#[test]
fn a_thread_that_was_given_up_on_is_late_once() {
    let (mut turns, hold) = in_turn(64, 8);
    assert!(is_kept(&mut turns, &hold, 0, at(10)));
    assert!(matches!(turns.watch(at(400)), Watched::Idle(_)));
    turns.note_asked(1, at(900));
    assert_eq!(turns.score, MOST - LATE);
}

#[test]
fn a_thread_that_was_handed_the_lock_has_held_it_since_then() {
    let (mut turns, hold) = in_turn(32, 8);
    turns.pass_on(at(1000));
    assert!(is_kept(&mut turns, &hold, 0, at(1010)));
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
fn stays(kept: &mut Caching<u8>, hold: &Arc<u8>, now: Moment) -> bool {
    kept.end_use((hold, 1), false, 0, now) != Keeping::Ends
}

fn reuse(kept: &mut Caching<u8>, keeps: bool, now: Moment) -> Option<Reuse> {
    kept.reuse(|_| true, keeps, now).map(|(_, reuse)| reuse)
}

/// A lock whose recalls are heard, with a hold granted at zero.
fn granted() -> (Caching<u8>, Arc<Channel>, Arc<u8>) {
    let channel = Arc::new(Channel::new("a", true));
    let mut kept = Caching::default();
    let listening = Subscription::new(Arc::clone(&channel), Arc::new(Nobody), &Waker::default());
    assert!(kept.listen(Some(listening)).is_none() && kept.listens());
    let hold = Arc::new(0);
    grant(&mut kept, &hold, ms(0));
    (kept, channel, hold)
}

fn grant(kept: &mut Caching<u8>, hold: &Arc<u8>, now: Moment) {
    let heard = kept.heard(now).unwrap();
    kept.grant(hold, KeepTerms { heard, is_wanted: false }, now);
}

#[test]
fn a_hold_stays_and_is_used_again_until_a_recall() {
    let (mut kept, channel, hold) = granted();
    for now in [1, 3] {
        assert!(stays(&mut kept, &hold, ms(now)) && kept.is_idle());
        assert_eq!(reuse(&mut kept, true, ms(now + 1)), Some(Reuse::UntilAsked));
        assert!(!kept.is_idle());
    }
    assert!(stays(&mut kept, &hold, ms(5)));
    channel.take(b"recall");
    assert_eq!(reuse(&mut kept, true, ms(6)), Some(Reuse::Never), "the thread does not get it again");
    let (mut kept, channel, hold) = granted();
    assert!(stays(&mut kept, &hold, ms(5)));
    channel.take(b"recall");
    assert!(matches!(kept.watch(ms(6)), Watched::Idle(_)));
    assert_eq!(reuse(&mut kept, true, ms(6)), None);
    let (mut kept, channel, hold) = granted();
    channel.take(b"recall");
    assert!(matches!(kept.watch(ms(1)), Watched::Until(_)), "it is in use");
    assert!(!stays(&mut kept, &hold, ms(2)));
    let (mut kept, channel, hold) = granted();
    channel.set_up(false);
    assert!(!stays(&mut kept, &hold, ms(1)), "recalls are not heard");
    assert!(kept.heard(ms(1)).is_none());
    channel.set_up(true);
    assert!(!stays(&mut kept, &hold, ms(2)), "one may have been missed");
}

#[test]
fn a_hold_that_others_wait_for_when_it_is_granted_does_not_stay() {
    let (mut kept, _channel, hold) = granted();
    let heard = kept.heard(ms(1)).unwrap();
    kept.grant(&hold, KeepTerms { heard, is_wanted: true }, ms(1));
    assert!(!stays(&mut kept, &hold, ms(2)));
    assert!(!stays(&mut kept, &Arc::new(0), ms(2)), "nor does another than the granted one");
}

#[test]
fn a_hold_that_was_kept_for_a_turn_is_used_again_though_others_want_it() {
    let (mut kept, channel, hold) = granted();
    (kept.score, kept.ends) = (MOST, Some(ms(9)));
    channel.take(b"recall");
    let in_turn = |kept: &mut Caching<u8>, now| {
        kept.pass_on(now);
        assert_eq!(kept.end_use((&hold, 1), true, 0, now), Keeping::InTurn { is_new: false });
    };
    in_turn(&mut kept, ms(1));
    assert_eq!(reuse(&mut kept, true, ms(1)), Some(Reuse::InTurn));
    assert!(!stays(&mut kept, &hold, ms(2)), "it does not stay beyond the turn");
    in_turn(&mut kept, ms(2));
    assert_eq!(reuse(&mut kept, false, ms(2)), Some(Reuse::Never), "the call would not keep it");
    in_turn(&mut kept, ms(3));
    assert_eq!(reuse(&mut kept, false, ms(3)), Some(Reuse::InTurn), "it is none of those");
    assert!(matches!(kept.watch(ms(10)), Watched::Over));
}

#[test]
fn a_hold_is_looked_at_soon_and_then_less_often_and_goes_when_nobody_has_used_it_for_half_a_second() {
    let (mut kept, _channel, hold) = granted();
    let mut looks = Vec::new();
    for now in 0..1800 {
        if now == 1200 {
            assert!(stays(&mut kept, &hold, ms(now)));
        }
        match kept.watch(ms(now)) {
            Watched::Look(_) => looks.push(now),
            Watched::Idle(_) => {
                assert_eq!(now, 1700, "half a second after it was last used");
                break;
            }
            Watched::Until(next) => assert!(next > ms(now) && next <= ms(now).plus(LAST_LOOK)),
            Watched::Over => panic!("it is granted"),
        }
    }
    // Each a quarter earlier than it must be, since it is watched all the time.
    assert_eq!(looks, [38, 113, 263, 563, 938, 1313, 1688]);
}

#[test]
fn the_half_second_begins_anew_with_each_use() {
    let (mut kept, _channel, hold) = granted();
    for used in [1, 400, 800] {
        assert!(stays(&mut kept, &hold, ms(used)));
        assert!(!matches!(kept.watch(ms(used + 499)), Watched::Idle(_)), "{used}");
        assert_eq!(reuse(&mut kept, true, ms(used + 499)), Some(Reuse::UntilAsked));
    }
    assert!(!matches!(kept.watch(ms(5_000)), Watched::Idle(_)), "it is in use");
    assert!(stays(&mut kept, &hold, ms(6_000)));
    assert!(matches!(kept.watch(ms(6_500)), Watched::Idle(_)));
}

#[test]
fn an_unused_hold_is_watched_again_when_its_half_second_is_over() {
    let (mut kept, _channel, hold) = granted();
    (1..3_000).step_by(100).for_each(|now| drop(kept.watch(ms(now))));
    assert!(stays(&mut kept, &hold, ms(3_000)));
    let (Watched::Look(_) | Watched::Until(_)) = kept.watch(ms(3_400)) else { panic!("too soon") };
    assert!(matches!(kept.watch(ms(3_400)), Watched::Until(until) if until == ms(3_500)));
}

#[test]
fn two_recalls_within_a_tenth_of_a_second_switch_keeping_off_for_a_second() {
    for (second, pauses) in [(99, true), (101, false)] {
        let (mut kept, channel, hold) = granted();
        for now in [1, 1 + second] {
            grant(&mut kept, &hold, ms(now));
            assert!(stays(&mut kept, &hold, ms(now)));
            channel.take(b"recall");
            assert!(matches!(kept.watch(ms(now)), Watched::Idle(_)));
            kept.forget(&hold);
        }
        assert_eq!(kept.heard(ms(1 + second)).is_none(), pauses, "{second}");
        assert!(kept.heard(ms(1001 + second)).is_some());
    }
    let (mut kept, channel, hold) = granted();
    kept.note_wanted(&hold, ms(1));
    assert!(!stays(&mut kept, &hold, ms(2)));
    grant(&mut kept, &hold, ms(3));
    channel.take(b"recall");
    assert!(!stays(&mut kept, &hold, ms(4)));
    assert!(kept.heard(ms(5)).is_none(), "what a look has seen is a recall too");
}

#[test]
fn a_pair_of_recalls_long_after_the_first_switches_keeping_off_too() {
    let (mut kept, channel, hold) = granted();
    for now in [1, 10_000, 10_050] {
        assert!(kept.heard(ms(now)).is_some(), "{now}");
        grant(&mut kept, &hold, ms(now));
        channel.take(b"recall");
        assert!(!stays(&mut kept, &hold, ms(now)));
        kept.forget(&hold);
    }
    assert!(kept.heard(ms(10_060)).is_none());
}

#[test]
fn what_becomes_of_another_hold_is_nothing_to_the_kept_one() {
    let (mut kept, _channel, hold) = granted();
    let other = Arc::new(1);
    assert!(stays(&mut kept, &hold, ms(1)));
    kept.forget(&other);
    kept.note_wanted(&other, ms(2));
    assert!(kept.is_idle() && kept.take_idle(&other).is_none());
    assert_eq!(reuse(&mut kept, true, ms(3)), Some(Reuse::UntilAsked));
    assert!(stays(&mut kept, &hold, ms(4)), "it is kept as before");
}

#[test]
fn the_end_of_the_client_leaves_nothing_kept() {
    let (mut kept, _channel, hold) = granted();
    assert!(stays(&mut kept, &hold, ms(1)));
    assert!(kept.clear().is_some());
    assert!(!kept.is_idle() && !kept.listens() && matches!(kept.watch(ms(2)), Watched::Over));
}

#[test]
fn a_hold_that_is_wanted_is_so_once_however_often_that_is_seen() {
    let (mut kept, _channel, hold) = granted();
    [1, 50].iter().for_each(|now| kept.note_wanted(&hold, ms(*now)));
    assert!(kept.heard(ms(51)).is_some(), "that was one recall");
}
