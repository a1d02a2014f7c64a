//! Handing a lock from one local thread to the next in one round trip.
//!
//! The releaser sends the request. The next owner reads the answer, and passes the result on to the releaser.
//! So the next owner's waking up and the round trip happen at the same time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::seam::{Answer, Claim, Failure, Handoff, Others, Pending, Release};
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment};

pub(crate) struct PendingHandoff {
    pub(crate) pending: Box<dyn Pending>,
    /// The moment before the request left, when the new hold's window opens.
    pub(crate) sent: Moment,
    pub(crate) to: Claim,
    pub(crate) releaser: Releaser,
}

/// The effect of a hand-off's outcome on the thread that handed the lock off, until that thread knows it.
pub(crate) struct Releaser {
    settle: Option<Box<dyn FnOnce(ReleaseOutcome) + Send>>,
    /// The releaser waits, and releases what was refused.
    pub(crate) waits: bool,
}

#[derive(Debug)]
pub(crate) enum ReleaseOutcome {
    Freed {
        others: Others,
    },
    /// The next thread here has the lock. To other processes it was never free, so the run of local hand-offs
    /// goes on.
    HandedOff,
    Lost,
    Refused(Error),
    Unknown(Error),
}

impl ReleaseOutcome {
    pub(crate) fn of_release(answer: Answer<Release>) -> ReleaseOutcome {
        match answer {
            Ok(Release::Freed { others }) => ReleaseOutcome::Freed { others },
            Ok(Release::StillHeld | Release::NotHeld { .. }) => ReleaseOutcome::Lost,
            Err(Failure::Refused(error)) => ReleaseOutcome::Refused(error),
            Err(Failure::Unknown(error)) => ReleaseOutcome::Unknown(error),
        }
    }
}

impl PendingHandoff {
    pub(crate) fn receive(self) -> Answer<Handoff> {
        let PendingHandoff { pending, mut releaser, .. } = self;
        let answer = pending.wait();
        releaser.settle(match &answer {
            Ok(Handoff::Granted { .. }) => ReleaseOutcome::HandedOff,
            Ok(Handoff::Lost) => ReleaseOutcome::Lost,
            Err(Failure::Refused(error)) => ReleaseOutcome::Refused(error.copy()),
            Err(Failure::Unknown(error)) => ReleaseOutcome::Unknown(error.copy()),
        });
        answer
    }
}

impl Releaser {
    pub(crate) fn new(waits: bool, settle: impl FnOnce(ReleaseOutcome) + Send + 'static) -> Releaser {
        Releaser { settle: Some(Box::new(settle)), waits }
    }

    fn settle(&mut self, outcome: ReleaseOutcome) {
        if let Some(settle) = self.settle.take() {
            settle(outcome);
        }
    }
}

impl Drop for Releaser {
    /// A waiter that unwinds leaves the answer unread, or is reading it: its own claim ends with its lease,
    /// the releaser's is unknown.
    fn drop(&mut self) {
        if self.settle.is_some() {
            let words = "the thread that was handed the lock panicked";
            let error = Error::new(crate::ErrorKind::Resource, "unlock", words).with_unknown_outcome();
            self.settle(ReleaseOutcome::Unknown(error));
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct HandoffResult {
    outcome: Arc<Mutex<Option<ReleaseOutcome>>>,
    waker: Waker,
}

impl HandoffResult {
    /// The thread waits with a limit. If it has stopped waiting, it has treated its hold as one of unknown
    /// outcome.
    pub(crate) fn releaser(&self) -> Releaser {
        let HandoffResult { outcome, waker } = self.clone();
        Releaser::new(true, move |ended| {
            *outcome.lock() = Some(ended);
            waker.wake();
        })
    }

    pub(crate) fn wait(&self, limit: Duration) -> Option<ReleaseOutcome> {
        let until = Clock::System.after(limit);
        loop {
            let outcome = self.outcome.lock().take();
            let left = until.since(Clock::System.now());
            if outcome.is_some() || left.is_zero() {
                return outcome;
            }
            self.waker.sleep(Some(left));
        }
    }
}

impl fmt::Debug for PendingHandoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingHandoff").field("to", &self.to).finish_non_exhaustive()
    }
}
