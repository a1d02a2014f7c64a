//! One attempt of a waiter: the request, and what follows each answer.

use std::sync::Arc;
use std::time::Duration;

use super::request::is_late;
use super::{Step, Waiting};
use crate::engine::acquire::call::{Granted, WaitLimit};
use crate::engine::handoff::PendingHandoff;
use crate::engine::hold::{Hold, QueuePlace};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::event::GaveUpReason;
use crate::observe::{Loss, LossReason};
use crate::seam::{Answer, Attempt, Claim, Failure, Handoff, Kind, ListensFor, granted_too_late};
use crate::time::{Moment, random_between};

/// As observers hear of the request.
const ATTEMPT: &str = "acquire";
const HANDOFF: &str = "hand_off";

impl Waiting<'_> {
    pub(super) fn attempt(&mut self, claim: Claim) -> Result<Step> {
        let engine = self.engine;
        let sent = engine.clock.now();
        if let Some(left) = self.capabilities.majority.and_then(|all| all.held_off(&claim)) {
            return Ok(Step::Sleep(sent.plus(left + Duration::from_millis(1))));
        }
        let answer = engine.store.attempt(&claim, 1, self.deadline(sent));
        self.answered(ATTEMPT, claim, sent, answer)
    }

    /// Acts on the answer to an attempt that was sent at `sent`, for a caller that does not wait.
    pub(crate) fn came(
        &mut self,
        claim: Claim,
        sent: Moment,
        answer: Answer<Attempt>,
    ) -> Result<Option<Granted>> {
        let call = self.call;
        let ended = self.answered(ATTEMPT, claim, sent, answer).and_then(|step| self.last(step));
        let ended = self.unless_shut_down(ended);
        if call.limit == WaitLimit::Once {
            self.report_given_up(&ended);
        } else if matches!(ended, Ok(None)) {
            self.span.gave_up(&GaveUpReason::Busy, self.attempts); // the caller goes on by itself
        }
        ended.map_err(|error| error.during(call.action).on(call.name.given()))
    }

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

    /// Acts on an answer that was read just now.
    ///
    /// The observers hear of the request last where the lock is had: they take time, and the number may be
    /// given up meanwhile.
    fn answered(
        &mut self,
        op: &'static str,
        claim: Claim,
        sent: Moment,
        answer: Answer<Attempt>,
    ) -> Result<Step> {
        let Waiting { engine, call, thread, .. } = *self;
        let answer = if claim.kind.only_asks() { answer.map_err(Failure::of_reading) } else { answer };
        let is_granted = matches!(answer, Ok(Attempt::Granted { .. }));
        let window = if is_granted { self.window_of(&claim, sent) } else { None };
        if op == ATTEMPT {
            self.attempts = self.attempts.saturating_add(1);
            self.is_answered = answer.is_ok();
        }
        if window.is_none() {
            self.report_asked(op, sent, answer.as_ref().err().map(Failure::error));
        }
        match answer {
            Ok(Attempt::Granted { fence, queued }) => {
                let Some(window) = window else { return self.granted_too_late(claim, sent) };
                if op == ATTEMPT {
                    self.reset_retry_budget();
                    self.leave_queue_by_grant(); // a hand-off knows nothing of the store's queue
                }
                self.queued = None;
                let terms = self.cache_terms(&claim, queued);
                let granted = engine.enter(call, thread, (&claim, window), terms, fence, &mut self.place);
                let Some(granted) = granted else {
                    self.report_asked(op, sent, None);
                    return self.granted_too_late(claim, sent);
                };
                if queued > 0 && call.may_cache_slice() {
                    let mut state = call.local.state();
                    let at = state.at(engine.clock.now());
                    state.caching.begin(queued, at);
                    drop(state);
                    engine.registry.remember(call.local, at.now);
                }
                if engine.writes_here(call, thread) {
                    self.end_writing_in_time(&granted.hold);
                }
                self.report_asked(op, sent, None);
                let wait = (self.begun, self.attempts, self.coming);
                engine.report_granted(call, &granted.hold, wait, &self.span);
                Ok(Step::Granted(granted))
            }
            Ok(Attempt::InWaitQueue { retry_after, listens_for: ListensFor::Nothing, .. }) => {
                self.reset_retry_budget();
                Ok(self.ask_seldom(retry_after))
            }
            Ok(Attempt::InWaitQueue { retry_after, listens_for, watches }) => {
                self.reset_retry_budget();
                Ok(self.stand_in_queue(retry_after, listens_for, watches))
            }
            Ok(Attempt::Busy { retry_after }) => {
                self.reset_retry_budget();
                self.coming = None;
                self.end_release_watch();
                self.listening.listen_for(ListensFor::Releases);
                if claim.kind == Kind::Read && claim.waits && !claim.writers_first {
                    call.local.state().queued = true; // the store has its client among those whose readers wait
                }
                let now = engine.clock.now();
                let poll = now.plus(self.pause());
                // One millisecond behind the end of the lease: the lock is free then, and no loop runs hot.
                let ends =
                    retry_after.map_or(Moment::NEVER, |left| now.plus(left + Duration::from_millis(1)));
                Ok(Step::Sleep(poll.min(ends)))
            }
            Ok(Attempt::Lost) if op == ATTEMPT => {
                let words = "a first hold was answered like a re-entry";
                Err(Error::new(ErrorKind::Protocol, call.action, words))
            }
            Ok(Attempt::Lost) => Ok(Step::Again),
            Err(Failure::Refused(error)) => self.pause_after(error, false),
            Err(Failure::Unknown(error)) => {
                self.report_unknown(&error);
                self.leave_behind(claim, sent);
                self.pause_after(error, false)
            }
        }
    }

    fn granted_too_late(&mut self, claim: Claim, sent: Moment) -> Result<Step> {
        self.leave_behind(claim, sent);
        let took = self.engine.clock.now().since(sent);
        if !is_late(self.lease, took) {
            return Ok(Step::Again); // its session has ended, or its number was given up
        }
        self.pause_after(granted_too_late(self.call.action, self.lease, took), true)
    }

    pub(super) fn pause(&self) -> Duration {
        let poll = random_between((self.capabilities.poll_every)(self.call.kind));
        match self.call.config.backoff {
            // A place in the store's queue expires if the waiter pauses for longer.
            Some(backoff) if self.store_queues() => backoff.pause(self.attempts).min(poll),
            Some(backoff) => backoff.pause(self.attempts),
            None => poll,
        }
    }

    /// A thread that writes may read, as the same owner. If the thread had to give up that owner number
    /// meanwhile, it reads as another owner, and would wait for itself.
    fn would_wait_for_own_writing(&self, claim: &Claim) -> Result<()> {
        let (engine, call) = (self.engine, self.call);
        if !call.by_thread || call.kind != Kind::Read || call.limit.is_over(engine.clock.now()) {
            return Ok(());
        }
        match engine.registry.of_thread(Kind::Write, call.name, self.thread.id()) {
            Some(hold)
                if hold.owner() != claim.owner && hold.is_live(engine.clock.now(), &engine.reporter) =>
            {
                let words = "this thread holds the write lock, but one of its requests had no answer, so \
                    it cannot read as the same owner any more: release the write lock first";
                Err(Error::new(ErrorKind::WouldDeadlock, call.action, words))
            }
            _ => Ok(()),
        }
    }

    /// Sees to it that what this thread writes ends in the store when its own time is over, not with its
    /// reading: the two may share what has the time.
    pub(super) fn end_writing_in_time(&self, reading: &Arc<Hold>) {
        let engine = self.engine;
        let Some(writing) = engine.registry.of_thread(Kind::Write, self.call.name, self.thread.id()) else {
            return;
        };
        if !writing.is_first(|own| &mut own.is_read_beside) {
            return;
        }
        // The core owns the hold, and with it this callback: a strong reference would be a cycle.
        let (claim, reading, core) = (writing.claim(), Arc::clone(reading), Arc::downgrade(&engine.core));
        let end = move |loss: &Loss| {
            if let (LossReason::Expired | LossReason::HeldTooLong, Some(core)) = (loss.reason, core.upgrade())
            {
                let now = core.clock.now();
                let until = now.plus(core.options.lease).max(reading.until());
                core.clean_up(claim, until, now);
            }
        };
        writing.on_lost(Box::new(end), &engine.reporter);
        engine.watch(&writing);
    }

    pub(super) fn receive(&mut self, place: &QueuePlace, handoff: PendingHandoff) -> Result<Step> {
        let (claim, sent, waits) = (handoff.to.clone(), handoff.sent, handoff.releaser.waits);
        let answer = handoff.receive().map(|handoff| match handoff {
            Handoff::Granted { fence } => Attempt::granted(fence),
            Handoff::Lost => Attempt::Lost,
        });
        let is_refused = waits && matches!(answer, Err(Failure::Refused(_)));
        self.coming = Some((sent, true));
        let step = self.answered(HANDOFF, claim, sent, answer);
        // Last: by now the hold is in the registry, or the releaser's number is given up if it had to be.
        // Before that the releaser's thread may not ask under it again. Pairs with `Machine::held_here`.
        drop(place.received(is_refused));
        step
    }
}
