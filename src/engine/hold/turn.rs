//! The turn of this client at a lock that others stand in line for: until it is over, a guard that is dropped
//! leaves the hold in the store, and the thread takes it again without a request.
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
const ALL: Duration = Duration::from_millis(96);
const LONGEST: Duration = Duration::from_millis(2);

/// A hold that lasts longer is given back as ever: the hand-over is little beside it.
const SHORT: Duration = Duration::from_micros(500);

/// A thread that asks again within this comes back at once.
const AT_ONCE: Duration = Duration::from_micros(200);

/// A kept hold that nobody has come for in this time is given back.
pub(crate) const IDLE: Duration = Duration::from_micros(300);

/// The score of a lock goes up by one when a thread here comes back at once, down by `LATE` when not, and
/// stays at `MOST` at most. From `LEAST` on a hold is kept.
const LEAST: u8 = 3;
const MOST: u8 = 8;
const LATE: u8 = 4;

/// A pause in a turn that is longer than this was not the program's: its processor did something else.
const STALL: Duration = Duration::from_micros(600);

/// How long a turn lasts while so many other clients stand in line.
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
    /// A guard was dropped then, and nobody has asked since.
    dropped: Option<Moment>,
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
}

/// The next step of whoever watches a lock in its turn.
#[derive(Debug)]
pub(crate) enum Watched<H> {
    /// Nobody came for this hold: it is to be given back.
    Idle(Arc<H>),
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
            score: 0,
            missed: Duration::ZERO,
            kept: None,
            leaving: None,
            is_watched: false,
        }
    }
}

impl<H> Turns<H> {
    /// The store granted the lock to this client, and so many others stand in line for it yet.
    pub(crate) fn begin(&mut self, clients: u32, now: Moment) {
        let length = length(clients);
        let more = std::mem::take(&mut self.missed).min(length);
        self.ends = Some(now.plus(length).plus(more));
        (self.began, self.last) = (now, now);
    }

    /// A thread of this client asks for the lock.
    pub(crate) fn note_asked(&mut self, now: Moment) {
        if let Some(dropped) = self.dropped.take() {
            self.score = if now.since(dropped) <= AT_ONCE {
                MOST.min(self.score + 1)
            } else {
                self.score.saturating_sub(LATE)
            };
        }
    }

    /// The lock goes to another thread here, which has what is left of the turn.
    pub(crate) fn pass_on(&mut self, now: Moment) {
        (self.began, self.last) = (now, now);
    }

    /// A guard of this hold, its last, is dropped; so many threads here wait for the lock.
    pub(crate) fn dropped(&mut self, hold: &Arc<H>, waiting: usize, now: Moment) -> Keeping {
        self.dropped = Some(now);
        let Some(ends) = self.ends else { return Keeping::Ends };
        let held = now.since(self.last);
        self.note_pause(now, ends);
        // Each of them has the same part of what is left.
        let share = ends.since(self.began) / u32::try_from(waiting + 1).unwrap_or(u32::MAX);
        if self.score < LEAST || held >= SHORT || now >= self.began.plus(share) {
            return Keeping::Ends;
        }
        self.kept = Some(Arc::clone(hold));
        Keeping::Kept { is_new: !std::mem::replace(&mut self.is_watched, true) }
    }

    /// Takes the kept hold out to be given back. Its own thread does not find it from now on.
    pub(crate) fn take_to_leave(&mut self) -> Option<Arc<H>> {
        self.leaving = self.kept.take();
        self.leaving.clone()
    }

    /// The hold is not here any more.
    pub(crate) fn forget(&mut self, hold: &Arc<H>) {
        self.kept.take_if(|kept| Arc::ptr_eq(kept, hold));
        self.leaving.take_if(|leaving| Arc::ptr_eq(leaving, hold));
    }

    /// Takes the kept hold, if it is one that is wanted: it is its thread's again.
    pub(crate) fn take(&mut self, now: Moment, wanted: impl FnOnce(&H) -> bool) -> Option<Arc<H>> {
        let kept = self.kept.take_if(|kept| wanted(kept))?;
        if let Some(ends) = self.ends {
            self.note_pause(now, ends);
        }
        Some(kept)
    }

    /// Whether the turn is over for threads here that wait: others wait for the lock that this one comes back
    /// to at once.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.score >= LEAST && self.ends.is_some_and(|ends| now >= ends)
    }

    /// Whether this hold is no thread's at the moment.
    pub(crate) fn is_kept(&self, hold: &Arc<H>) -> bool {
        let is_this = |other: &Arc<H>| Arc::ptr_eq(other, hold);
        self.kept.as_ref().is_some_and(is_this) || self.leaving.as_ref().is_some_and(is_this)
    }

    /// The lock was given back to the store: the turn is over.
    pub(crate) fn end(&mut self) {
        (self.ends, self.kept, self.leaving) = (None, None, None);
    }

    /// Looks whether somebody has come for the kept hold.
    pub(crate) fn watch(&mut self, now: Moment) -> Watched<H> {
        let until = self.last.plus(IDLE);
        match (&self.kept, self.ends) {
            (Some(_), Some(ends)) if now < until.min(ends) => Watched::Until(until.min(ends)),
            (Some(_), _) => match self.take_to_leave() {
                Some(hold) => Watched::Idle(hold),
                None => Watched::Over,
            },
            (None, Some(ends)) if now < ends => Watched::Until(now.plus(IDLE)),
            (None, _) => {
                self.is_watched = false;
                Watched::Over
            }
        }
    }

    fn note_pause(&mut self, now: Moment, ends: Moment) {
        let pause = now.min(ends).since(self.last);
        if pause >= STALL {
            self.missed += pause;
        }
        self.last = now;
    }
}
