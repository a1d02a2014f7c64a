//! One attempt of a waiter: the claim, the request, and what follows each answer.

use std::sync::Arc;
use std::time::Duration;

use super::{Progress, Waiting};
use crate::engine::acquire::call::{Granted, WaitLimit};
use crate::engine::acquire::outcome::AttemptOutcome;
use crate::engine::acquire::terms::Terms;
use crate::engine::handoff::PendingHandoff;
use crate::engine::hold::QueuePlace;
use crate::error::{Error, ErrorKind, Result};
use crate::inspect::Whereabouts;
use crate::observe::event::GaveUpReason;
use crate::seam::{Answer, Attempt, Claim, Failure, HoldNote, Kind, Wakeups, granted_too_late};
use crate::time::{Moment, random_between, window};

impl Waiting<'_> {
    /// The claim of this caller. Made anew for each request: the number may have been given up since the
    /// last.
    pub(super) fn claim(&mut self) -> Claim {
        let number = self.engine.next_number(self.thread, &mut self.unbound);
        let claim = self.engine.claim(self.call.kind, self.call.name, number, self.asked);
        let Terms { units, writers_first, max_hold, .. } = self.call.terms;
        let place = || Arc::new(Whereabouts::here());
        let note = max_hold.map(|max_hold| HoldNote { max_hold, place: place() });
        let wants_fence = self.call.wants_fence();
        let turn = self.line.turn(self.turn);
        let wakeups = self.line.wakeups;
        Claim { waits: self.waits, turn, wakeups, units, writers_first, note, wants_fence, ..claim }
    }

    pub(super) fn attempt(&mut self, claim: Claim) -> Result<Progress> {
        let engine = self.engine;
        let sent = engine.clock.now();
        if let Some(left) = engine.store.capabilities().majority.and_then(|all| all.held_off(&claim)) {
            return Ok(Progress::Later(sent.plus(left + Duration::from_millis(1))));
        }
        let deadline = sent.plus(engine.options.command_timeout).min(self.latest);
        let answer = engine.store.attempt(&claim, 1, deadline);
        self.answered(claim, sent, answer)
    }

    /// Acts on the answer to an attempt that was sent at `sent`, for a caller that does not wait.
    pub(crate) fn came(
        &mut self,
        claim: Claim,
        sent: Moment,
        answer: Answer<Attempt>,
    ) -> Result<Option<Granted>> {
        let ended = self.answered(claim, sent, answer).and_then(|progress| self.last(progress));
        let ended = self.unless_shut_down(ended);
        if self.call.limit == WaitLimit::Once {
            self.tell_given_up(&ended);
        } else if matches!(ended, Ok(None)) {
            self.span.gave_up(&GaveUpReason::Busy, self.attempts); // the caller goes on by itself
        }
        ended.map_err(|error| error.during(self.call.action).on(self.call.name.given()))
    }

    /// The claim of the next attempt.
    pub(crate) fn next_claim(&mut self) -> Result<Claim> {
        let claim = self.claim();
        self.would_wait_for_own_writing(&claim)?;
        if std::mem::replace(&mut self.home, claim.home) != claim.home {
            self.subscription = None; // it is released elsewhere from now on
        }
        if (self.store_queues || self.announces) && claim.waits {
            self.queue_as(&claim);
        }
        Ok(claim)
    }

    /// Acts on the answer to an attempt.
    pub(super) fn answered(
        &mut self,
        claim: Claim,
        sent: Moment,
        answer: Answer<Attempt>,
    ) -> Result<Progress> {
        let call = self.call;
        self.attempts = self.attempts.saturating_add(1);
        self.engine.reporter.tell_request(
            "acquire",
            sent,
            &self.engine.clock,
            answer.as_ref().err().map(Failure::error),
        );
        self.is_answered = answer.is_ok();
        let outcome = self.judge(&claim, sent, answer);
        // A grant that came too late is of no more use than no answer.
        if self.is_answered && !matches!(outcome, AttemptOutcome::TooLate) {
            self.reset_retry_budget();
        }
        match outcome {
            AttemptOutcome::Lost => {
                Err(Error::new(ErrorKind::Protocol, call.action, "a first hold was answered like a re-entry"))
            }
            outcome => {
                self.note_ration(&outcome, sent);
                // Not after a hand-off, which knows nothing of the line.
                if matches!(outcome, AttemptOutcome::Granted { .. }) {
                    self.leave_line_by_grant();
                }
                self.follow(claim, sent, outcome)
            }
        }
    }

    /// The outcome of an answer that was read just now.
    pub(super) fn judge(&mut self, claim: &Claim, sent: Moment, answer: Answer<Attempt>) -> AttemptOutcome {
        let engine = self.engine;
        let is_granted = matches!(answer, Ok(Attempt::Granted { .. }));
        // Asked once for each grant, and never of a claim that has none: the hold keeps the answer.
        self.bound = match engine.store.capabilities().sessions {
            Some(sessions) if is_granted => sessions.bound(claim),
            _ => None,
        };
        let bound = self.bound.as_ref().map_or(Moment::NEVER, |bound| bound.until());
        let ends = bound.min(sent.plus(window(self.asked)));
        // A release under this number failed meanwhile, and will be repeated: it must not find this hold.
        let is_given_up = self.unbound.is_none() && self.thread.number() != claim.owner.number();
        let answer = if claim.kind.only_asks() { answer.map_err(Failure::of_reading) } else { answer };
        AttemptOutcome::of(answer, engine.clock.now() < ends && !is_given_up)
    }

    /// Acts on what an answer means.
    pub(super) fn follow(&mut self, claim: Claim, sent: Moment, outcome: AttemptOutcome) -> Result<Progress> {
        let engine = self.engine;
        match outcome {
            AttemptOutcome::Granted { fence } => {
                self.queued = None;
                Ok(Progress::Granted(self.enter(&claim, sent, fence)))
            }
            AttemptOutcome::TooLate => {
                self.leave_behind(claim, sent);
                let took = engine.clock.now().since(sent);
                if took < window(self.asked) {
                    return Ok(Progress::Again); // its session has ended, or its number was given up
                }
                self.pause_alone(granted_too_late(self.call.action, self.asked, took))
            }
            AttemptOutcome::InLine { retry_after, wakeups, is_lookout } => {
                Ok(self.stand_in_line(retry_after, wakeups, is_lookout))
            }
            AttemptOutcome::Busy { retry_after } => {
                self.coming = None;
                self.end_lookout();
                self.listen_for(Wakeups::Releases);
                let now = engine.clock.now();
                let poll = now.plus(self.pause());
                // Not before the holder's lease can have ended, nor in a hot loop when it is about to.
                let ends =
                    retry_after.map_or(Moment::NEVER, |left| now.plus(left + Duration::from_millis(1)));
                Ok(Progress::Later(poll.min(ends)))
            }
            AttemptOutcome::Lost => Ok(Progress::Again),
            AttemptOutcome::Failed(error) => self.pause_after(error),
            AttemptOutcome::Unknown(error) => {
                self.tell_unknown(&error);
                self.leave_behind(claim, sent);
                self.pause_after(error)
            }
        }
    }

    /// How long after an attempt the next one is made at the latest.
    pub(super) fn pause(&self) -> Duration {
        let poll = random_between(self.engine.poll_every(self.call.kind));
        match self.call.terms.backoff {
            // A place in the store's queue does not last longer.
            Some(backoff) if self.store_queues => backoff.pause(self.attempts).min(poll),
            Some(backoff) => backoff.pause(self.attempts),
            None => poll,
        }
    }

    /// A thread that writes may read, as the same owner. Under a number that it had to give up meanwhile it
    /// is another, and would wait for itself.
    fn would_wait_for_own_writing(&self, claim: &Claim) -> Result<()> {
        let (engine, call) = (self.engine, self.call);
        if !call.by_thread || call.kind != Kind::Read || call.limit.is_over(engine.clock.now()) {
            return Ok(());
        }
        match engine.registry.of_thread(Kind::Write, call.name, self.thread.id()) {
            Some(hold)
                if hold.owner() != claim.owner && hold.is_live(engine.clock.now(), &engine.reporter) =>
            {
                let words = "this thread holds the write lock, but a request of it had no answer, so it cannot read as \
                             the same owner any more: release the write lock first";
                Err(Error::new(ErrorKind::WouldDeadlock, call.action, words))
            }
            _ => Ok(()),
        }
    }

    /// Reads the answer of a hand-off to this thread.
    pub(super) fn receive(&mut self, place: &QueuePlace, handoff: PendingHandoff) -> Result<Progress> {
        let (claim, sent) = (handoff.to.clone(), handoff.sent);
        let answer: Answer<Attempt> = handoff.receive().map(Attempt::from);
        self.engine.reporter.tell_request(
            "hand_over",
            sent,
            &self.engine.clock,
            answer.as_ref().err().map(Failure::error),
        );
        let outcome = self.judge(&claim, sent, answer);
        self.coming = Some((sent, true));
        let progress = self.follow(claim, sent, outcome);
        // Last: by now the hold is in the registry, or the releaser's number is given up if it had to be. Before that
        // the releaser's thread may not ask under it again. Pairs with `Entry::held_here`.
        place.ticket().received();
        progress
    }
}
