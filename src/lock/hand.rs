//! Passing a lock from one local thread to the next in one round trip, and what follows a release that nobody waits
//! for.
//!
//! The one who releases sends the request; the one who comes reads the answer, and tells the other what it heard. So
//! the new owner's waking up and the round trip happen at the same time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::lock::hold::Hold;
use crate::lock::report::Reporter;
use crate::lock::store::{Answer, Claim, HandOver, Pending, REQUEST_LASTS, Release};
use crate::lock::table::Table;
use crate::lock::watchdog::CleanUps;
use crate::observe::{LossReason, Observer};
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment};

/// A lock on its way from one thread's hold to a waiter.
pub(crate) struct Handed {
    pub(crate) pending: Option<Box<dyn Pending>>,
    /// Before the request left: the new hold's window opens there.
    pub(crate) sent: Moment,
    /// What the waiter had wished for.
    pub(crate) to: Claim,
    from: Arc<Hold>,
    aftermath: Arc<Aftermath>,
    /// Where the releaser waits, if it does.
    told: Option<Told>,
}

/// How a releaser's hold ended.
#[derive(Debug)]
pub(crate) enum Parted {
    /// Truly; `others`: other clients heard of it.
    Freed { others: u32 },
    /// The next thread here has the lock; to other processes it was never free, so whose turn it is goes on counting.
    HandedOn,
    /// The store did not know the hold.
    Lost,
    /// Nothing changed: the owner still holds it there.
    Refused(Error),
    /// It may have ended, or may yet.
    Unknown(Error),
}

impl Parted {
    pub(crate) fn of_release(answer: Answer<Release>) -> Parted {
        match answer {
            Answer::Done(Release::Freed { others }) => Parted::Freed { others },
            Answer::Done(Release::StillHeld | Release::NotHeld { .. }) => Parted::Lost,
            Answer::Refused(error) => Parted::Refused(error),
            Answer::Unknown(error) => Parted::Unknown(error),
        }
    }
}

impl Handed {
    pub(crate) fn new(
        pending: Box<dyn Pending>,
        sent: Moment,
        to: Claim,
        from: &Arc<Hold>,
        aftermath: &Arc<Aftermath>,
        told: Option<Told>,
    ) -> Handed {
        Handed {
            pending: Some(pending),
            sent,
            to,
            from: Arc::clone(from),
            aftermath: Arc::clone(aftermath),
            told,
        }
    }

    /// Reads the answer, tells the releaser, and returns what there is for the waiter.
    pub(crate) fn receive(mut self) -> Answer<HandOver> {
        let Some(pending) = self.pending.take() else {
            let words = "the hand-over was read already";
            return Answer::Unknown(
                Error::new(crate::ErrorKind::Protocol, "lock", words).with_unknown_outcome(),
            );
        };
        let answer = pending.wait();
        self.part(match &answer {
            Answer::Done(HandOver::Granted { .. }) => Parted::HandedOn,
            Answer::Done(HandOver::Lost) => Parted::Lost,
            Answer::Refused(error) => Parted::Refused(error.copy()),
            Answer::Unknown(error) => Parted::Unknown(error.copy()),
        });
        answer
    }

    fn part(&mut self, parted: Parted) {
        match self.told.take() {
            // It waits with a limit; if it has gone, it has seen to its hold as one of unknown outcome.
            Some(told) => told.tell(parted),
            None => self.aftermath.settle(&self.from, parted),
        }
    }
}

/// Where a releaser waits to be told how its hold ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    word: Arc<Mutex<Option<Parted>>>,
    waker: Waker,
}

impl Told {
    fn tell(&self, parted: Parted) {
        *self.word.lock() = Some(parted);
        self.waker.wake();
    }

    /// `None`: nothing was said within `limit`.
    pub(crate) fn wait(&self, limit: Duration) -> Option<Parted> {
        let until = Clock::System.after(limit);
        loop {
            let word = self.word.lock().take();
            let left = until.since(Clock::System.now());
            if word.is_some() || left.is_zero() {
                return word;
            }
            self.waker.sleep(Some(left));
        }
    }
}

impl Drop for Handed {
    /// A waiter that unwinds leaves the answer unread: its own claim ends with its lease, the releaser's is unknown.
    fn drop(&mut self) {
        if self.pending.is_some() {
            let words = "the thread that was handed the lock panicked";
            let error = Error::new(crate::ErrorKind::Resource, "unlock", words).with_unknown_outcome();
            self.part(Parted::Unknown(error));
        }
    }
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handed").field("from", &self.from).finish_non_exhaustive()
    }
}

/// What follows the end of a hold, for whichever thread learns of it. Keeps no client alive.
pub(crate) struct Aftermath {
    pub(crate) clock: Clock,
    pub(crate) lease: Duration,
    pub(crate) table: Arc<Table>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) clean_ups: CleanUps,
}

impl Aftermath {
    /// For a hold whose releaser has gone on: what came of it. May run on any thread, while that reads replies for
    /// others; so what the program wants to know is told on the callback thread.
    pub(crate) fn settle(&self, hold: &Arc<Hold>, parted: Parted) {
        match parted {
            Parted::Freed { .. } | Parted::HandedOn => {
                let held = match parted {
                    Parted::Freed { others } => self.note_released(hold, others),
                    _ => self.note_ended(hold),
                };
                let (name, owner) = (Arc::clone(hold.name()), hold.owner());
                self.reporter.tell_news(move |observer| observer.released(name.given(), owner, held));
            }
            Parted::Lost => self.lose(hold, LossReason::Gone),
            Parted::Refused(error) | Parted::Unknown(error) => {
                self.leave_behind(hold);
                let name = hold.name().given().to_owned();
                let error = error.during("unlock").on(&name);
                self.reporter
                    .tell_news(move |observer: &dyn Observer| observer.release_failed(&name, &error));
            }
        }
    }

    /// Records that a hold is lost. Its number is given up: a request under it may be on its way, and the old guard
    /// may still try to release.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LossReason) {
        if hold.lose(reason, &self.reporter) {
            hold.retire_number();
        }
    }

    /// A release did not get through: the watchdog repeats it until it is answered or the lease has run out.
    pub(crate) fn leave_behind(&self, hold: &Arc<Hold>) {
        hold.retire_number();
        hold.forget_listeners(&self.reporter);
        let now = self.clock.now();
        // A renewal that is on its way may have it run for a lease from now; a lease of its own may be longer.
        let until = if hold.kind().is_leased() {
            now.plus(self.lease).max(hold.until())
        } else {
            now.plus(REQUEST_LASTS / 2)
        };
        self.clean_ups.add(hold.claim(), until, now);
    }

    /// A hold ended by a true release; returns how long it lasted.
    pub(crate) fn note_released(&self, hold: &Arc<Hold>, others: u32) -> Duration {
        self.table.note_released(hold, others, self.clock.now());
        self.note_ended(hold)
    }

    /// A hold ended without loss; returns how long it lasted.
    pub(crate) fn note_ended(&self, hold: &Arc<Hold>) -> Duration {
        hold.forget_listeners(&self.reporter);
        self.clock.now().since(hold.since())
    }
}

impl fmt::Debug for Aftermath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aftermath").finish_non_exhaustive()
    }
}
