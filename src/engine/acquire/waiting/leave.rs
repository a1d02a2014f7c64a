//! Failures of a waiter, and what it leaves behind: attempts in doubt and places in the store's queue.

use std::sync::Arc;

use super::{Step, Waiting};
use crate::engine::acquire::retry::{RETRY_PAUSE, RetryBudget};
use crate::engine::policy::POLL_COMPLETIONS_EVERY;
use crate::error::{Error, Result};
use crate::seam::{Answer, Claim, PLACE_LASTS, REQUEST_LASTS, Release, Sink};
use crate::time::{Moment, random_between};

impl Waiting<'_> {
    /// Hands an attempt that may have been, or may yet be, carried out to the watchdog, and goes on under a
    /// number that it cannot touch.
    pub(super) fn leave_behind(&mut self, claim: Claim, sent: Moment) {
        if self.wait_mode.uses_wait_queue() {
            self.wait_mode.become_in_doubt();
            self.call.local.state().queued = true;
        }
        self.queued = None;
        if self.store_queues() {
            self.listening.end();
        }
        let until = self.left_until(&claim, sent);
        self.give_up_number(&claim);
        if !claim.kind.only_asks() {
            let engine = self.engine;
            engine.clean_up(claim, until, engine.clock.now());
        }
    }

    fn left_until(&self, claim: &Claim, sent: Moment) -> Moment {
        let lasts = match claim.kind.is_leased() {
            // A place in the store's queue may last longer than a short lease.
            true if self.store_queues() => self.lease.max(PLACE_LASTS),
            true => self.lease,
            false => REQUEST_LASTS / 2,
        };
        sent.plus(lasts).plus(self.engine.options.command_timeout)
    }

    /// Notes that the store may have this caller among those who wait, and has it forget the place under a
    /// number, or at a home, that was given up: nobody would come for that, and the lock would wait for it.
    pub(super) fn queue_as(&mut self, claim: &Claim) {
        match &self.queued {
            Some(queued) if (queued.owner, queued.home) == (claim.owner, claim.home) => return,
            Some(_) => self.leave_queue(),
            None => {}
        }
        self.queued = Some(claim.clone());
    }

    /// Waits no more for the store. The request is sent as a dropped guard's release is, and the caller does
    /// not wait for the answer. Where the last request failed, or this one does, the watchdog sees to it.
    pub(super) fn leave_queue(&mut self) {
        let Some(claim) = self.queued.take() else { return };
        self.listening.end();
        let engine = self.engine;
        let sent = engine.clock.now();
        let deadline = engine.one_command().min(self.latest);
        if !self.is_answered || sent >= deadline {
            return self.leave_behind(claim, sent);
        }
        let (left, until, core) = (claim.clone(), self.left_until(&claim, sent), Arc::clone(&engine.core));
        let (mark, local) = (Arc::clone(self.thread), Arc::clone(self.call.local));
        let is_threads = self.unbound.is_none();
        let call = engine.calls.begin().detached();
        let done = move |answer: Answer<Release>| {
            if answer.is_err() && !left.kind.only_asks() {
                // Retired first, so that a later grant under the number does not count: see `window_of`.
                if is_threads {
                    local.state().retired.add(left.owner.number());
                    mark.retire(left.owner.number());
                }
                core.clean_up(left, until, core.clock.now());
            }
            drop(call);
        };
        engine.store.release_later(&claim, deadline, Sink::new(done));
        engine.watchdog.run_by(engine.clock.after(POLL_COMPLETIONS_EVERY));
    }

    /// `is_own`: a grant came too late. That is this caller's own, by its lease: others here may ask for a longer
    /// one. No message shortens the pause: to give the grant back makes one, and asked at once the next would come
    /// too late too.
    pub(super) fn pause_after(&mut self, error: Error, is_own: bool) -> Result<Step> {
        let (engine, call) = (self.engine, self.call);
        let now = engine.clock.now();
        let (noted, is_over) = (error.copy(), call.limit.is_over(now));
        let outcome = self.retry_budget.note(engine.options.retry_timeout, error, now, is_over);
        // Waiters behind this one shared its outage: their retry budget ends with this one's. A caller
        // that only ran out of time, or never waited, shares nothing with them.
        if !is_own && !is_over {
            call.local.note_failure(self.retry_budget.since.map(|since| (since, noted)));
            if outcome.is_err() {
                call.local.state().queue.wake_all();
            }
        }
        self.retry_budget.last = Some(outcome?);
        let until = now.plus(random_between(RETRY_PAUSE));
        if is_own {
            self.poll_pause.pause(until);
        }
        Ok(Step::Sleep(until))
    }

    pub(super) fn reset_retry_budget(&mut self) {
        if self.retry_budget.since.is_some() || self.parker.is_some() {
            self.retry_budget = RetryBudget::default();
            self.call.local.note_failure(None);
        }
    }
}
