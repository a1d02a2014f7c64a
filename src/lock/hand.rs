//! Passing a lock from one local thread to the next in one round trip, and what follows a release that nobody waits
//! for.
//!
//! The one who releases sends the request; the one who comes reads the answer, and tells the other what it heard. So
//! the new owner's waking up and the round trip happen at the same time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::error::Error;
use crate::lock::hold::Hold;
use crate::lock::report::Reporter;
use crate::lock::store::{Answer, Claim, HandOver, Pending, Release};
use crate::lock::table::Table;
use crate::lock::watchdog::CleanUps;
use crate::observe::{LossReason, Observer};
use crate::time::{Clock, Moment};

/// A lock on its way from one thread's hold to a waiter.
pub(crate) struct Handed {
    pub(crate) pending: Option<Box<dyn Pending>>,
    /// Before the request left: the new hold's window opens there.
    pub(crate) sent: Moment,
    /// What the waiter had wished for.
    pub(crate) to: Claim,
    from: Arc<Hold>,
    aftermath: Aftermath,
    /// Where the releaser waits, if it does.
    told: Option<Sender<Parted>>,
}

/// How a releaser's hold ended.
#[derive(Debug)]
pub(crate) enum Parted {
    Freed {
        others: bool,
    },
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
        aftermath: &Aftermath,
        told: Option<Sender<Parted>>,
    ) -> Handed {
        Handed {
            pending: Some(pending),
            sent,
            to,
            from: Arc::clone(from),
            aftermath: aftermath.clone(),
            told,
        }
    }

    /// Reads the answer, tells the releaser, and returns what there is for the waiter.
    pub(crate) fn receive(mut self, by: Moment) -> Answer<HandOver> {
        let Some(pending) = self.pending.take() else {
            let words = "the hand-over was read already";
            return Answer::Unknown(
                Error::new(crate::ErrorKind::Protocol, "lock", words).with_unknown_outcome(),
            );
        };
        let answer = pending.wait(by);
        self.part(match &answer {
            Answer::Done(HandOver::Granted { .. }) => Parted::Freed { others: false },
            Answer::Done(HandOver::Lost) => Parted::Lost,
            Answer::Refused(error) => Parted::Refused(error.copy()),
            Answer::Unknown(error) => Parted::Unknown(error.copy()),
        });
        answer
    }

    fn part(&mut self, parted: Parted) {
        match self.told.take() {
            // It waits with a limit; if it has gone, it has seen to its hold as one of unknown outcome.
            Some(told) => drop(told.try_send(parted)),
            None => self.aftermath.settle(&self.from, parted),
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
#[derive(Clone)]
pub(crate) struct Aftermath {
    pub(crate) clock: Clock,
    pub(crate) lease: Duration,
    pub(crate) table: Arc<Table>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) clean_ups: CleanUps,
}

impl Aftermath {
    /// For a hold whose releaser has gone on: what came of it.
    pub(crate) fn settle(&self, hold: &Arc<Hold>, parted: Parted) {
        match parted {
            Parted::Freed { others } => self.note_released(hold, others),
            Parted::Lost => self.lose(hold, LossReason::Gone),
            Parted::Refused(error) | Parted::Unknown(error) => {
                self.leave_behind(hold);
                let error = error.during("unlock").on(hold.name().given());
                self.reporter.tell(|observer: &dyn Observer| {
                    observer.release_failed(hold.name().given(), &error);
                });
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
        hold.forget_listeners();
        let now = self.clock.now();
        let until = now.plus(self.lease).min(hold.until().plus(self.lease));
        self.clean_ups.add(hold.claim(), until, now);
    }

    pub(crate) fn note_released(&self, hold: &Arc<Hold>, others: bool) {
        hold.forget_listeners();
        let now = self.clock.now();
        self.table.note_released(hold, others, now);
        let held = now.since(hold.since());
        self.reporter.tell(|observer| observer.released(hold.name().given(), hold.owner(), held));
    }
}

impl fmt::Debug for Aftermath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aftermath").finish_non_exhaustive()
    }
}
