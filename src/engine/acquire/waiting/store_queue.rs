//! What a waiter leaves behind: attempts in doubt, and its client's place in the store's wait queue.
//!
//! The wait queue has one entry for each client, however many of its threads wait: only the head of the local
//! queue asks, and joins it for all of them. A waiter that stands in the wait queue sleeps until its client
//! is notified that it is next. Others may be notified and hang, messages may be lost: so it also asks when
//! the store said that it should, and by the safety poll.
//!
//! The holder's id says whether its release notifies the wait queue. Java's `forceUnlock` may end that hold
//! too, and the id may be one that only looks like ours: then a message comes on the channel of all releases,
//! and nobody is notified. So the first in the wait queue watches releases: it listens to that channel as
//! well.
//!
//! If the answer by which it joins the wait queue names it the first, it watches releases after [`AFTER`]; if
//! a later answer does, at once. A client that takes turns often has the subscription to its turn still: it
//! asks once and sleeps, so a wait queue that moves fast has no release watch, and costs nothing more. In a
//! slow wait queue the release watch gets a message with each release, which wakes it anyway. Its
//! subscription ends with its wait.
//!
//! Source: docs/decisions/0027 and 0040.

use std::sync::Arc;
use std::time::Duration;

use super::{Step, Waiting};
use crate::engine::acquire::call::RETRY_PAUSE;
use crate::engine::hold::QueuePlace;
use crate::engine::pace::POLL_COMPLETIONS_EVERY;
use crate::error::{Error, Result};
use crate::park::Parker;
use crate::seam::{Answer, Claim, ListensFor, PLACE_LASTS, REQUEST_LASTS, Release, Sink};
use crate::time::{Moment, random_between};

/// The time after which a waiter watches releases that has just joined the wait queue, unless it asks again
/// before.
const AFTER: Duration = Duration::from_millis(25);

impl Waiting<'_> {
    pub(super) fn stand_in_queue(
        &mut self,
        retry_after: Option<Duration>,
        listens_for: ListensFor,
        watches: bool,
    ) -> Step {
        let now = self.engine.clock.now();
        self.note_release_watch(watches, now);
        let poll = if self.wait_mode.stands() {
            self.pause()
        } else {
            random_between((Duration::ZERO, (self.capabilities.poll_every)(self.call.kind).1))
        };
        self.listening.listen_for(listens_for);
        self.call.local.state().queued = true;
        self.wait_mode.become_standing();
        let retry = retry_after.map_or(Moment::NEVER, |after| now.plus(after));
        Step::Sleep(now.plus(poll).min(retry))
    }

    /// The queue of its election is full: asks each third of its lease, and when the leader's lease may be
    /// over.
    pub(super) fn ask_seldom(&mut self, retry_after: Option<Duration>) -> Step {
        let (now, third) = (self.engine.clock.now(), self.lease / 3);
        self.end_release_watch();
        self.listening.listen_for(ListensFor::Nothing);
        let poll = random_between((third / 2, third)).max(self.pause());
        let retry = retry_after.map_or(Moment::NEVER, |after| now.plus(after));
        Step::Sleep(now.plus(poll).min(retry))
    }

    /// The server refused to let it listen for its turn: it goes by each release, as where there is no wait
    /// queue.
    pub(super) fn go_by_releases(&mut self) {
        self.wait_mode.become_deaf();
        self.give_up_place();
        self.call.local.state().queued = false;
        self.listening.listen_for(ListensFor::Releases);
    }

    /// Takes its client out of the wait queue if nobody else here waits for the lock. Asked before the local
    /// queue is left: the next who joins that queue asks behind this request.
    pub(super) fn leave_wait_queue(&mut self, place: &QueuePlace) {
        if self.parker.is_none() && !self.wait_mode.may_stand() || !place.takes_queue_place() {
            return;
        }
        self.give_up_place();
    }

    fn give_up_place(&mut self) {
        let engine = self.engine;
        if let Some(wait_queues) = self.capabilities.wait_queues {
            let claim = self.claim();
            wait_queues.leave_wait_queue(&claim, engine.one_command().min(self.latest));
            engine.watchdog.run_by(engine.clock.after(POLL_COMPLETIONS_EVERY));
        }
    }

    pub(super) fn note_release_watch(&mut self, watches: bool, now: Moment) {
        if !watches {
            self.end_release_watch();
        } else if self.release_watch.subscription.is_none() && self.call.config.backoff.is_none() {
            let after = if self.wait_mode.stands() { Duration::ZERO } else { AFTER };
            self.release_watch.begins_at = Some(now.plus(after));
        }
    }

    /// Begins to watch releases, and sleeps on, `until` at most. When the subscription stands, that wakes it,
    /// and it asks once: what came before was not heard.
    pub(super) fn watch_releases(&mut self, place: &QueuePlace, until: Moment) {
        self.release_watch.begins_at = None;
        self.poll_pause.sleep_on(until);
        if place.is_head() {
            let claim = Claim { listens_for: ListensFor::Releases, ..self.claim() };
            let parker = self.parker.get_or_insert_with(|| Parker::new(&self.engine.clock));
            self.release_watch.subscription = self.engine.store.listen(&claim, parker.waker());
        }
    }

    pub(super) fn end_release_watch(&mut self) {
        self.release_watch.begins_at = None;
        if self.release_watch.subscription.take().is_some()
            && let Some(wait_queues) = self.capabilities.wait_queues
        {
            let claim = self.claim();
            wait_queues.end_release_watch(&claim);
        }
    }
}

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
        let is_same = |queued: &Claim| (queued.owner, queued.home) == (claim.owner, claim.home);
        if self.queued.as_ref().is_some_and(is_same) {
            return;
        }
        if let Some(queued) = self.queued.take() {
            self.leave_queue(queued);
        }
        self.queued = Some(claim.clone());
    }

    /// Waits no more for the store. The request is sent as a dropped guard's release is, and the caller does
    /// not wait for the answer. Where the last request failed, or this one does, the watchdog sees to it.
    pub(super) fn leave_queue(&mut self, claim: Claim) {
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
}
