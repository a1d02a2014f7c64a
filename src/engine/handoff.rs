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

/// A lock on its way from one thread's hold to a waiter.
pub(crate) struct PendingHandoff {
    pub(crate) pending: Option<Box<dyn Pending>>,
    /// Before the request left: the new hold's window opens there.
    pub(crate) sent: Moment,
    /// The claim of the waiter.
    pub(crate) to: Claim,
    /// Until it knows the outcome.
    releaser: Option<Releaser>,
}

/// The thread that hands the lock off.
pub(crate) enum Releaser {
    /// It waits for the outcome, there.
    Waits(HandoffResult),
    /// It has gone on. The thread that reads the answer does this with the outcome.
    HasGoneOn(Box<dyn FnOnce(ReleaseOutcome) + Send>),
}

/// How a releaser's hold ended.
#[derive(Debug)]
pub(crate) enum ReleaseOutcome {
    /// By a true release; `others`: which other clients were notified.
    Freed { others: Others },
    /// The next thread here has the lock. To other processes it was never free, so the burst goes on.
    HandedOff,
    /// The store did not know the hold.
    Lost,
    /// Nothing changed: the owner still holds it there.
    Refused(Error),
    /// It may have ended, or may yet.
    Unknown(Error),
}

impl ReleaseOutcome {
    pub(crate) fn of_release(answer: Answer<Release>) -> ReleaseOutcome {
        match answer {
            Ok(Release::Freed { others }) => ReleaseOutcome::Freed { others },
            Ok(Release::StillHeld | Release::NotHeld { .. } | Release::Never) => ReleaseOutcome::Lost,
            Err(Failure::Refused(error)) => ReleaseOutcome::Refused(error),
            Err(Failure::Unknown(error)) => ReleaseOutcome::Unknown(error),
        }
    }
}

impl PendingHandoff {
    pub(crate) fn new(
        pending: Box<dyn Pending>,
        sent: Moment,
        to: Claim,
        releaser: Releaser,
    ) -> PendingHandoff {
        PendingHandoff { pending: Some(pending), sent, to, releaser: Some(releaser) }
    }

    /// Reads the answer, passes the outcome to the releaser, and returns the answer for the waiter.
    pub(crate) fn receive(mut self) -> Answer<Handoff> {
        let Some(pending) = self.pending.take() else {
            let words = "the hand-off was read already";
            return Err(Failure::Unknown(
                Error::new(crate::ErrorKind::Protocol, "lock", words).with_unknown_outcome(),
            ));
        };
        let answer = pending.wait();
        self.end(match &answer {
            Ok(Handoff::Granted { .. }) => ReleaseOutcome::HandedOff,
            Ok(Handoff::Lost) => ReleaseOutcome::Lost,
            Err(Failure::Refused(error)) => ReleaseOutcome::Refused(error.copy()),
            Err(Failure::Unknown(error)) => ReleaseOutcome::Unknown(error.copy()),
        });
        answer
    }

    fn end(&mut self, outcome: ReleaseOutcome) {
        match self.releaser.take() {
            // It waits with a limit. If it has stopped waiting, it has treated its hold as one of unknown
            // outcome.
            Some(Releaser::Waits(result)) => result.set(outcome),
            Some(Releaser::HasGoneOn(settle)) => settle(outcome),
            None => {}
        }
    }
}

/// The place where a releaser waits for the outcome of its hand-off.
#[derive(Debug, Clone, Default)]
pub(crate) struct HandoffResult {
    outcome: Arc<Mutex<Option<ReleaseOutcome>>>,
    waker: Waker,
}

impl HandoffResult {
    fn set(&self, outcome: ReleaseOutcome) {
        *self.outcome.lock() = Some(outcome);
        self.waker.wake();
    }

    /// `None`: no outcome came within `limit`.
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

impl Drop for PendingHandoff {
    /// A waiter that unwinds leaves the answer unread, or is reading it: its own claim ends with its lease,
    /// the releaser's is unknown.
    fn drop(&mut self) {
        if self.releaser.is_some() {
            let words = "the thread that was handed the lock panicked";
            let error = Error::new(crate::ErrorKind::Resource, "unlock", words).with_unknown_outcome();
            self.end(ReleaseOutcome::Unknown(error));
        }
    }
}

impl fmt::Debug for PendingHandoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingHandoff").field("to", &self.to).finish_non_exhaustive()
    }
}
