//! Releasing by handing the lock to the next local thread.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::core::Core;
use crate::engine::handoff::{HandoffResult, PendingHandoff, ReleaseOutcome, Releaser};
use crate::engine::hold::Hold;
use crate::engine::lock::Next;
use crate::error::{Error, ErrorKind, Result};
use crate::seam::{Claim, Failure};
use crate::time::Moment;

impl Engine {
    /// `None`: nobody is next, or the hand-off could not be sent.
    pub(super) fn hand_off(&self, hold: &Arc<Hold>, next: Next, begun: Moment) -> Option<ReleaseOutcome> {
        let Next::Local(_) = next else { return None };
        let result = HandoffResult::default();
        let is_sent = self.start_handoff(hold, next, begun, || result.releaser()).is_none();
        is_sent.then(|| self.wait_for_handoff(&result))
    }

    pub(crate) fn wait_for_handoff(&self, result: &HandoffResult) -> ReleaseOutcome {
        // The thread that reads the answer gives up after a command time-out. After twice that it has lost
        // its processor.
        let limit = self.options.command_timeout * 2;
        result.wait(limit).unwrap_or_else(|| {
            let words = "the thread that was handed the lock did not tell what came of it";
            ReleaseOutcome::Unknown(Error::new(ErrorKind::TimedOut, "unlock", words).with_unknown_outcome())
        })
    }

    /// The result for a caller that has handed its lock off since `begun`.
    ///
    /// An unanswered hand-off is asked again as a plain release, which cannot hurt a later owner: it is for
    /// the old owner's number alone. If that holds nothing any more, it was the hand-off; if it did, a
    /// hand-off that comes later finds nothing to pass on, since the number is not used again. The next owner
    /// has given its own number up too.
    pub(crate) fn handed_off(
        &self,
        action: &'static str,
        hold: &Arc<Hold>,
        outcome: ReleaseOutcome,
        begun: Moment,
    ) -> Result<()> {
        let give_up = begun.plus(self.options.retry_timeout);
        let outcome = match outcome {
            ReleaseOutcome::Freed { .. } | ReleaseOutcome::HandedOff => {
                let held = self.note_ended(hold);
                self.report_released(hold, held);
                return Ok(());
            }
            ReleaseOutcome::Lost => Ok(None),
            ReleaseOutcome::Refused(_) => self.send_release(hold, 0, give_up, None),
            ReleaseOutcome::Unknown(error) => {
                self.send_release(hold, 0, give_up, Some(Err(Failure::Unknown(error))))
            }
        };
        self.released(action, hold, 0, outcome)
    }
}

impl Core {
    /// Sends the hand-off, if there is a waiter to hand to; else says why not. The window of the next hold
    /// opens at `sent`.
    pub(crate) fn start_handoff(
        &self,
        hold: &Arc<Hold>,
        next: Next,
        sent: Moment,
        releaser: impl FnOnce() -> Releaser,
    ) -> Option<Next> {
        let Next::Local(waiter) = next else { return Some(next) };
        let from = hold.claim();
        // The lock stays where it was granted, wherever that name is asked for by now.
        let to = hold.local().offer_of(waiter).map(|offer| Claim { home: from.home, ..offer });
        let deadline = sent.plus(self.options.command_timeout);
        match to.and_then(|to| Some((self.store.hand_off(&from, &to, deadline)?, to))) {
            Some((pending, to)) => {
                let handoff = PendingHandoff { pending, sent, to, releaser: releaser() };
                if let Some(unread) = hold.local().sent(hold, handoff) {
                    self.registry.remove(hold);
                    drop(unread);
                }
                None
            }
            None => {
                hold.local().state().not_sent(hold.serial());
                Some(Next::Nobody)
            }
        }
    }

    /// For a releaser that goes on: the outcome is settled by the thread that reads it, before it
    /// [says](crate::engine::lock::Machine::received) that the hand-off is over.
    pub(crate) fn settle_later(self: &Arc<Core>, hold: &Arc<Hold>, calls: impl Send + 'static) -> Releaser {
        let (core, ended) = (Arc::clone(self), Arc::clone(hold));
        Releaser::new(false, move |outcome| match outcome {
            // As in `handed_off`. What the releaser's thread asks from then on goes behind it.
            ReleaseOutcome::Refused(_) => core.release_later(&ended, core.clock.now(), calls),
            outcome => core.settle(&ended, outcome),
        })
    }
}
