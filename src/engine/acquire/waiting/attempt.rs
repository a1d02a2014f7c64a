//! One attempt of a waiter: the claim, the request, and what follows each answer.

use std::time::Duration;

use super::{Step, Waiting};
use crate::engine::acquire::call::{Granted, WaitLimit};
use crate::engine::acquire::outcome::AttemptOutcome;
use crate::engine::acquire::request::is_late;
use crate::engine::handoff::PendingHandoff;
use crate::engine::hold::QueuePlace;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::event::GaveUpReason;
use crate::seam::{Answer, Attempt, Claim, Kind, ListensFor, granted_too_late};
use crate::time::{Moment, random_between};

impl Waiting<'_> {
    /// The claim of this caller, as it waits now.
    pub(super) fn claim(&mut self) -> Claim {
        self.request.claim(self.manner.waits(), self.manner.turn(), self.listening.listens_for())
    }

    pub(super) fn attempt(&mut self, claim: Claim) -> Result<Step> {
        let engine = self.request.engine;
        let sent = engine.clock.now();
        if let Some(left) = engine.store.capabilities().majority.and_then(|all| all.held_off(&claim)) {
            return Ok(Step::Sleep(sent.plus(left + Duration::from_millis(1))));
        }
        let answer = engine.store.attempt(&claim, 1, self.request.deadline(sent));
        let outcome = self.request.judge(&claim, sent, answer);
        self.answered(claim, sent, outcome)
    }

    /// Acts on the answer to an attempt that was sent at `sent`, for a caller that does not wait.
    pub(crate) fn came(
        &mut self,
        claim: Claim,
        sent: Moment,
        answer: Answer<Attempt>,
    ) -> Result<Option<Granted>> {
        let call = self.request.call;
        let outcome = self.request.judge(&claim, sent, answer);
        let ended = self.answered(claim, sent, outcome).and_then(|step| self.last(step));
        let ended = self.unless_shut_down(ended);
        if call.limit == WaitLimit::Once {
            self.tell_given_up(&ended);
        } else if matches!(ended, Ok(None)) {
            self.report.span.gave_up(&GaveUpReason::Busy, self.report.attempts); // the caller goes on by itself
        }
        ended.map_err(|error| error.during(call.action).on(call.name.given()))
    }

    /// The claim of the next attempt.
    pub(crate) fn next_claim(&mut self) -> Result<Claim> {
        let claim = self.claim();
        self.would_wait_for_own_writing(&claim)?;
        if std::mem::replace(&mut self.home, claim.home) != claim.home {
            self.listening.end(); // it is released elsewhere from now on
        }
        if (self.store_queues() || self.announces()) && claim.waits {
            self.queue_as(&claim);
        }
        Ok(claim)
    }

    /// Acts on what came of an attempt, which has just been judged.
    pub(super) fn answered(&mut self, claim: Claim, sent: Moment, outcome: AttemptOutcome) -> Result<Step> {
        self.report.attempts = self.report.attempts.saturating_add(1);
        self.is_answered = outcome.error().is_none();
        // A grant that came too late is of no more use than no answer.
        if self.is_answered && !matches!(outcome, AttemptOutcome::TooLate) {
            self.reset_retry_budget();
        }
        self.note_ration(&outcome, sent);
        match outcome {
            AttemptOutcome::Lost => {
                self.tell_asked("acquire", sent, None);
                let words = "a first hold was answered like a re-entry";
                Err(Error::new(ErrorKind::Protocol, self.request.call.action, words))
            }
            AttemptOutcome::Granted { .. } => {
                // Not after a hand-off, which knows nothing of the line.
                self.leave_line_by_grant();
                self.follow("acquire", claim, sent, outcome)
            }
            outcome => self.follow("acquire", claim, sent, outcome),
        }
    }

    /// Acts on what an answer means.
    ///
    /// The observers hear of the request last where the lock is had: they take time, and the number may be
    /// given up meanwhile.
    fn follow(
        &mut self,
        op: &'static str,
        claim: Claim,
        sent: Moment,
        outcome: AttemptOutcome,
    ) -> Result<Step> {
        let engine = self.request.engine;
        if !matches!(outcome, AttemptOutcome::Granted { .. }) {
            self.tell_asked(op, sent, outcome.error());
        }
        match outcome {
            AttemptOutcome::Granted { fence, since, in_line, bound } => {
                self.queued = None;
                if in_line > 0 && self.request.call.may_keep() {
                    let now = engine.clock.now();
                    self.request.call.entry.state().caching.begin(in_line, now);
                    engine.registry.remember(self.request.call.entry, now);
                }
                Ok(Step::Granted(self.enter((op, sent), (&claim, since), in_line, fence, bound)))
            }
            AttemptOutcome::TooLate => {
                self.leave_behind(claim, sent);
                let took = engine.clock.now().since(sent);
                if !is_late(self.request.lease, took) {
                    return Ok(Step::Again); // its session has ended, or its number was given up
                }
                self.pause_alone(granted_too_late(self.request.call.action, self.request.lease, took))
            }
            AttemptOutcome::InLine { retry_after, listens_for: ListensFor::Nothing, .. } => {
                Ok(self.ask_seldom(retry_after))
            }
            AttemptOutcome::InLine { retry_after, listens_for, is_lookout } => {
                Ok(self.stand_in_line(retry_after, listens_for, is_lookout))
            }
            AttemptOutcome::Busy { retry_after } => {
                self.report.coming = None;
                self.end_lookout();
                self.listening.listen_for(ListensFor::Releases);
                let now = engine.clock.now();
                let poll = now.plus(self.pause());
                // Not before the holder's lease can have ended, nor in a hot loop when it is about to.
                let ends =
                    retry_after.map_or(Moment::NEVER, |left| now.plus(left + Duration::from_millis(1)));
                Ok(Step::Sleep(poll.min(ends)))
            }
            AttemptOutcome::Lost => Ok(Step::Again),
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
        let poll = random_between(self.request.engine.poll_every(self.request.call.kind));
        match self.request.call.terms.backoff {
            // A place in the store's queue does not last longer.
            Some(backoff) if self.store_queues() => backoff.pause(self.report.attempts).min(poll),
            Some(backoff) => backoff.pause(self.report.attempts),
            None => poll,
        }
    }

    /// A thread that writes may read, as the same owner. Under a number that it had to give up meanwhile it
    /// is another, and would wait for itself.
    fn would_wait_for_own_writing(&self, claim: &Claim) -> Result<()> {
        let (engine, call) = (self.request.engine, self.request.call);
        if !call.by_thread || call.kind != Kind::Read || call.limit.is_over(engine.clock.now()) {
            return Ok(());
        }
        match engine.registry.of_thread(Kind::Write, call.name, self.request.thread.id()) {
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
    pub(super) fn receive(&mut self, place: &QueuePlace, handoff: PendingHandoff) -> Result<Step> {
        let (claim, sent) = (handoff.to.clone(), handoff.sent);
        let answer: Answer<Attempt> = handoff.receive().map(Attempt::from);
        let outcome = self.request.judge(&claim, sent, answer);
        self.report.coming = Some((sent, true));
        let step = self.follow("hand_off", claim, sent, outcome);
        // Last: by now the hold is in the registry, or the releaser's number is given up if it had to be.
        // Before that the releaser's thread may not ask under it again. Pairs with `Entry::held_here`.
        place.ticket().received();
        step
    }
}
