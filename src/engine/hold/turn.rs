//! The turn of this client at a lock that others stand in line for: until it is over, a guard that is dropped,
//! or an `unlock` with `cached`, leaves the hold in the store, and the thread takes it again without a request.
//!
//! To all others the lock is held meanwhile, by an owner whose lease runs. So a turn needs no keys and no
//! messages, and the release that ends it hands over as any other. As eventual fairness in parking_lot and
//! the cohort locks of Dice, Marathe and Shavit (2012): a hand-over once per turn, not once per grant.
//! docs/decisions/0056 has the figures.
//!
//! Nothing here is I/O, and each moment is passed in.

use std::sync::Arc;
use std::time::Duration;

use crate::time::Moment;

/// All turns of those in line together last this long at most, and one no longer than `LONGEST`: a client
/// waits for one turn, and one hand-over, of each client before it.
const ALL: Duration = Duration::from_millis(64);
const LONGEST: Duration = Duration::from_millis(2);

/// A hold that lasts longer is given back as ever: the hand-over is little beside it.
const SHORT: Duration = Duration::from_micros(500);

/// A thread that asks again within this comes back at once.
const AT_ONCE: Duration = Duration::from_micros(200);

/// A kept hold that nobody has come for in this time is given back.
pub(crate) const IDLE: Duration = Duration::from_micros(300);

/// The score of a lock goes up by one when a thread here comes back at once, down by `LATE` when not, and
/// stays at `MOST` at most. From `LEAST` on a hold is kept. Where nothing is known yet one return is enough:
/// in a crowd of hundreds a client has few grants a second.
const UNKNOWN: u8 = 2;
const LEAST: u8 = 3;
const MOST: u8 = 8;
const LATE: u8 = 4;

/// A pause in a turn that is longer than this was not the program's: its processor did something else.
const STALL: Duration = Duration::from_micros(600);

/// How long a turn lasts where so many clients stand in line.
fn length(clients: u32) -> Duration {
    LONGEST.min(ALL / clients.max(1))
}

/// The turns at one lock.
#[derive(Debug)]
pub(crate) struct Turns<H> {
    /// Until when the present one lasts, if there is one.
    ends: Option<Moment>,
    /// Since when the thread has it that has the lock now.
    began: Moment,
    /// When the hold was taken, or given back: the last that happened in the turn.
    last: Moment,
    /// This thread gave the lock back then, in a way that may keep it, and has not asked since.
    dropped: Option<(Moment, u64)>,
    score: u8,
    /// The part of the last turn in which this process did not run: the next one lasts longer by it.
    missed: Duration,
    /// The hold that is kept. It is among the entry's holds too, so that the lock counts as held here.
    kept: Option<Arc<H>>,
    /// A hold that was kept and is being given back. Until that is on its way it is among the entry's holds,
    /// and no thread's.
    leaving: Option<Arc<H>>,
    /// The thread that gives back what nobody comes for looks at this lock.
    is_watched: bool,
}

/// Whether a hold is kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// It is to be given back.
    Ends,
    /// It is kept. `is_new`: nobody watches this lock yet.
    Kept { is_new: bool },
    /// It is kept until others ask for it.
    UntilAsked,
}

/// The next step of whoever watches a lock in its turn.
#[derive(Debug)]
pub(crate) enum Watched<H> {
    /// Nobody came for this hold: it is to be given back.
    Idle(Arc<H>),
    /// The store is to be asked whether others want this one, which is kept until they ask for it.
    Look(Arc<H>),
    /// To be looked at again then.
    Until(Moment),
    /// The turn is over.
    Over,
}

impl<H> Default for Turns<H> {
    fn default() -> Turns<H> {
        let never = Moment::from_nanos(0);
        Turns {
            ends: None,
            began: never,
            last: never,
            dropped: None,
            score: UNKNOWN,
            missed: Duration::ZERO,
            kept: None,
            leaving: None,
            is_watched: false,
        }
    }
}

impl<H> Turns<H> {
    /// The store granted the lock to this client, out of a line in which so many stood.
    pub(crate) fn begin(&mut self, clients: u32, now: Moment) {
        let length = length(clients);
        let more = std::mem::take(&mut self.missed).min(length);
        self.ends = Some(now.plus(length).plus(more));
        (self.began, self.last) = (now, now);
    }

    /// A thread of this client asks for the lock.
    pub(crate) fn note_asked(&mut self, thread: u64, now: Moment) {
        if let Some((dropped, _)) = self.dropped.take_if(|(_, by)| *by == thread) {
            if now.since(dropped) <= AT_ONCE {
                self.score = MOST.min(self.score + 1);
            } else {
                self.note_absence();
            }
        }
    }

    fn note_absence(&mut self) {
        self.score = self.score.saturating_sub(LATE);
    }

    #[cfg(leasehold_shuttle)]
    pub(crate) fn count_on_return(&mut self) {
        self.score = MOST;
    }

    /// The lock goes to another thread here, which has what is left of the turn.
    pub(crate) fn pass_on(&mut self, now: Moment) {
        (self.began, self.last) = (now, now);
    }

    /// The last level of this hold is ended by that thread, by a guard that is dropped or where `cached` was asked
    /// for; so many threads here wait for the lock.
    pub(crate) fn dropped(&mut self, (hold, thread): (&Arc<H>, u64), waiting: usize, now: Moment) -> Keeping {
        self.dropped = Some((now, thread));
        let Some(ends) = self.ends else { return Keeping::Ends };
        let held = now.since(std::mem::replace(&mut self.last, now));
        // Each of them has the same part of what is left.
        let share = ends.since(self.began) / u32::try_from(waiting + 1).unwrap_or(u32::MAX);
        if self.score < LEAST || held >= SHORT || now >= self.began.plus(share) {
            return Keeping::Ends;
        }
        self.kept = Some(Arc::clone(hold));
        Keeping::Kept { is_new: self.begin_watch() }
    }

    /// That thread waited for the release of its hold, which was not kept, and goes on: it can come back from now
    /// on.
    pub(crate) fn note_return(&mut self, thread: u64, now: Moment) {
        if let Some((dropped, _)) = self.dropped.as_mut().filter(|(_, by)| *by == thread) {
            *dropped = now;
        }
    }

    /// Keeps a hold for another reason than a turn: see `until_asked.rs`.
    pub(crate) fn keep(&mut self, hold: &Arc<H>) {
        self.kept = Some(Arc::clone(hold));
    }

    /// Whether nobody has watched this lock up to now; from now on somebody does.
    pub(crate) fn begin_watch(&mut self) -> bool {
        !std::mem::replace(&mut self.is_watched, true)
    }

    /// Takes the kept hold out to be given back. Its own thread does not find it from now on.
    pub(crate) fn take_to_leave(&mut self) -> Option<Arc<H>> {
        let hold = self.kept.take()?;
        self.leaving = Some(Arc::clone(&hold));
        Some(hold)
    }

    /// The hold is not here any more.
    pub(crate) fn forget(&mut self, hold: &Arc<H>) {
        self.kept.take_if(|kept| Arc::ptr_eq(kept, hold));
        self.leaving.take_if(|leaving| Arc::ptr_eq(leaving, hold));
    }

    /// Takes the kept hold, if it is one that is wanted: it is its thread's again.
    pub(crate) fn take(&mut self, now: Moment, wanted: impl FnOnce(&H) -> bool) -> Option<Arc<H>> {
        let kept = self.kept.take_if(|kept| wanted(kept))?;
        let pause = self.ends.map_or(now, |ends| now.min(ends)).since(std::mem::replace(&mut self.last, now));
        if pause >= STALL && self.ends.is_some() {
            self.missed += pause;
        }
        Some(kept)
    }

    /// Whether the turn is over for threads here that wait: others wait for the lock that this one comes back
    /// to at once.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.score >= LEAST && self.ends.is_some_and(|ends| now >= ends)
    }

    /// Whether such a hold is kept.
    pub(crate) fn has_kept(&self, is_meant: impl FnOnce(&H) -> bool) -> bool {
        self.kept.as_ref().is_some_and(|kept| is_meant(kept))
    }

    /// Whether such a hold is being given back.
    pub(crate) fn is_leaving(&self, is_meant: impl FnOnce(&H) -> bool) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| is_meant(leaving))
    }

    /// Whether this hold is no thread's at the moment.
    pub(crate) fn is_kept(&self, hold: &Arc<H>) -> bool {
        let is_this = |other: &Arc<H>| Arc::ptr_eq(other, hold);
        self.kept.as_ref().is_some_and(is_this) || self.leaving.as_ref().is_some_and(is_this)
    }

    /// The lock was given back to the store, or lost: the turn is over. A hold that is kept is not affected: it
    /// may be another than the one that went.
    pub(crate) fn end(&mut self) {
        self.ends = None;
    }

    /// All holds are taken out by the end of the client.
    pub(crate) fn clear(&mut self) {
        (self.ends, self.kept, self.leaving) = (None, None, None);
    }

    /// Looks whether somebody has come for the kept hold.
    pub(crate) fn watch(&mut self, now: Moment) -> Watched<H> {
        let until = self.last.plus(IDLE);
        match (&self.kept, self.ends) {
            (Some(_), Some(ends)) if now < until.min(ends) => Watched::Until(until.min(ends)),
            (Some(_), _) => match self.take_to_leave() {
                Some(hold) => {
                    self.dropped = None;
                    self.note_absence();
                    Watched::Idle(hold)
                }
                None => Watched::Over,
            },
            (None, Some(ends)) if now < ends => Watched::Until(now.plus(IDLE)),
            (None, _) => {
                self.is_watched = false;
                Watched::Over
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn at(us: u32) -> Moment {
        Moment::from_nanos(0).plus(US * us)
    }

    /// A lock to which a thread here has come back at once as often as is asked for, in its turn since zero.
    fn in_turn(clients: u32, comes_back: u8) -> (Turns<u8>, Arc<u8>) {
        let mut turns = Turns { score: 0, ..Turns::default() };
        for _ in 0..comes_back {
            turns.dropped = Some((at(0), 1));
            turns.note_asked(1, at(0).plus(AT_ONCE));
        }
        turns.begin(clients, at(0));
        (turns, Arc::new(0))
    }

    fn is_kept(turns: &mut Turns<u8>, hold: &Arc<u8>, waiting: usize, now: Moment) -> bool {
        turns.dropped((hold, 1), waiting, now) != Keeping::Ends
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
        let (mut turns, hold) = (Turns::default(), Arc::new(0));
        turns.begin(64, at(0));
        assert!(!is_kept(&mut turns, &hold, 0, at(10)), "nothing is known of it");
        turns.note_asked(1, at(20));
        assert!(is_kept(&mut turns, &hold, 0, at(30)), "which one return changes");
        let (mut turns, hold) = in_turn(64, 8);
        assert!(!is_kept(&mut turns, &hold, 0, at(500)), "it was held for half a millisecond");
        let mut turns = Turns { score: MOST, ..Turns::default() };
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
        turns.dropped((&hold, 1), 0, at(3000));
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
            turns.take(at(paused), |_| true);
            turns.begin(64, at(0));
            assert_eq!(turns.ends, Some(at(until)), "after a pause of {paused} us");
            turns.begin(64, at(0));
            assert_eq!(turns.ends, Some(at(1000)), "once");
        }
    }

    #[test]
    fn a_kept_hold_is_given_back_when_nobody_has_come_or_the_turn_is_over() {
        let (mut turns, hold) = in_turn(64, 8);
        assert_eq!(turns.dropped((&hold, 1), 0, at(10)), Keeping::Kept { is_new: true });
        assert!(matches!(turns.watch(at(309)), Watched::Until(until) if until == at(310)));
        assert!(turns.take(at(309), |_| true).is_some());
        assert!(matches!(turns.watch(at(320)), Watched::Until(until) if until == at(620)), "it is held");
        assert_eq!(turns.dropped((&hold, 1), 0, at(400)), Keeping::Kept { is_new: false });
        assert!(matches!(turns.watch(at(700)), Watched::Idle(idle) if Arc::ptr_eq(&idle, &hold)));
        assert_eq!(turns.score, MOST - LATE, "it stayed away");
        assert!(turns.take_to_leave().is_none(), "a question finds nothing to give back");
        assert!(turns.is_kept(&hold), "no thread finds it until its release is on its way");
        assert!(turns.take(at(701), |_| true).is_none(), "nor takes it");
        turns.end();
        assert!(turns.is_kept(&hold), "nor when another hold of the lock goes");
        turns.forget(&hold);
        assert!(!turns.is_kept(&hold));
        turns.begin(64, at(0));
        turns.last = at(900);
        assert_eq!(turns.dropped((&hold, 1), 0, at(950)), Keeping::Kept { is_new: false });
        assert!(matches!(turns.watch(at(960)), Watched::Until(until) if until == at(1000)));
        assert!(matches!(turns.watch(at(1000)), Watched::Idle(_)));
        assert!(matches!(turns.watch(at(1001)), Watched::Over));
        turns.begin(64, at(2000));
        turns.score = MOST;
        assert_eq!(turns.dropped((&hold, 1), 0, at(2001)), Keeping::Kept { is_new: true }, "watched anew");
        turns.end();
        assert!(matches!(turns.watch(at(2400)), Watched::Idle(_)), "another hold of the lock went");
    }

    #[test]
    fn the_end_of_another_hold_leaves_the_one_that_is_being_given_back_no_threads() {
        let (mut turns, hold) = in_turn(64, 8);
        assert!(is_kept(&mut turns, &hold, 0, at(10)) && turns.take_to_leave().is_some());
        turns.forget(&Arc::new(1));
        assert!(turns.is_kept(&hold));
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
}
