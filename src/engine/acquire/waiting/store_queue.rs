//! A waiter's traces in the store: its client's place in the wait queue, and unanswered attempts.
//!
//! The wait queue has one place for each client, however many of its threads wait. Only the head of the local
//! queue sends attempts, so it joins the wait queue for all of them, and sleeps until the store notifies its
//! client that it is next. Because the notified client may hang and messages may be lost, the waiter also
//! polls, at the time that the store's last answer gave and at each safety poll.
//!
//! The client id of a holder whose release will notify the wait queue is a UUID of version 8. Sometimes the
//! version misleads: Java's `forceUnlock` may end the hold, or another program's id may look like ours. Then
//! the release sends a message only on the channel of all releases. So the first client in the wait queue
//! also listens to that channel; the code calls this to *watch releases*.
//!
//! A client that joins an empty wait queue watches releases after [`AFTER`]; a client that becomes first
//! later does so at once. In a fast queue clients are granted the lock before they begin to watch. In a slow
//! queue each release wakes the first client twice. The subscription ends with the wait.
//!
//! Source: docs/decisions/0027 and 0040.

use std::sync::Arc;
use std::time::Duration;

use super::{Step, Waiting};
use crate::engine::acquire::call::{RETRY_PAUSE, interrupted};
use crate::engine::hold::QueuePlace;
use crate::engine::pace::POLL_COMPLETIONS_EVERY;
use crate::error::{Error, Result};
use crate::park::{Parker, Woken};
use crate::seam::{Answer, Claim, ListensFor, PLACE_LASTS, QueueMode, REQUEST_LASTS, Release, Sink};
use crate::time::{Moment, random_between};

/// How long after joining the wait queue the first client begins to watch releases.
const AFTER: Duration = Duration::from_millis(25);

impl Waiting<'_> {
    pub(super) fn stand_in_queue(
        &mut self,
        retry_after: Option<Duration>,
        listens_for: ListensFor,
        watches: bool,
    ) -> Step {
        // An election's queue has room for three candidates. A further one has no place, and polls seldom.
        let has_place = listens_for != ListensFor::Nothing;
        if !watches || !has_place {
            self.end_release_watch();
        } else if self.release_watch.subscription.is_none() && self.call.config.backoff.is_none() {
            let after = if self.wait_mode.stands { Duration::ZERO } else { AFTER };
            self.watch_releases_at = Some(self.engine.clock.after(after));
        }
        let third = self.lease / 3;
        let poll = match self.wait_mode.stands {
            _ if !has_place => random_between((third / 2, third)).max(self.pause()),
            true => self.pause(),
            false => random_between((Duration::ZERO, (self.capabilities.poll_every)(self.call.kind).1)),
        };
        self.listening.listen_for(listens_for);
        if has_place {
            self.call.local.state().queued = true;
            self.wait_mode.change(QueueMode::InWaitQueue, true);
        }
        self.sleep_for(poll, retry_after)
    }

    /// Listens to releases, because the server refused the subscription to messages that this client is next.
    pub(super) fn go_by_releases(&mut self) {
        self.wait_mode.change(QueueMode::Yields, false);
        self.give_up_place();
        self.call.local.state().queued = false;
        self.listening.listen_for(ListensFor::Releases);
    }

    /// Removes the client from the wait queue if no other thread here waits. This happens before the thread
    /// leaves the local queue, so that the next thread's attempt is sent after this request.
    pub(super) fn leave_wait_queue(&mut self, place: &QueuePlace) {
        let may_stand = self.parker.is_some() || self.wait_mode.may_stand();
        if may_stand && place.local.state().takes_queue_place() {
            self.give_up_place();
        }
    }

    fn give_up_place(&mut self) {
        let engine = self.engine;
        if let Some(wait_queues) = &self.capabilities.wait_queues {
            let claim = self.claim();
            wait_queues.leave_wait_queue(&claim, engine.one_command().min(self.latest));
            engine.watchdog.run_by(engine.clock.after(POLL_COMPLETIONS_EVERY));
        }
    }

    pub(super) fn end_release_watch(&mut self) {
        self.watch_releases_at = None;
        if self.release_watch.subscription.take().is_some()
            && let Some(wait_queues) = &self.capabilities.wait_queues
        {
            let claim = self.claim();
            wait_queues.end_release_watch(&claim);
        }
    }
}

impl Waiting<'_> {
    /// Leaves an attempt of unknown outcome to the watchdog, and continues under another owner number.
    pub(super) fn leave_behind(&mut self, claim: Claim, sent: Moment) {
        if self.wait_mode.uses_wait_queue() {
            self.wait_mode.become_in_doubt();
            self.call.local.state().queued = true;
        }
        self.queued = None;
        if self.store_queues() {
            self.listening.subscription = None;
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
            // A place in the store's queue may outlast a short lease.
            true if self.store_queues() => self.lease.max(PLACE_LASTS),
            true => self.lease,
            false => REQUEST_LASTS / 2,
        };
        sent.plus(lasts).plus(self.engine.options.command_timeout)
    }

    /// Notes that the store may have queued this caller. Removes an earlier place under another number or
    /// home node: nobody would use that place, and a lock reserved for it would stay unused.
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

    /// Leaves the store's queue, without waiting for the answer. The watchdog cleans up if this request
    /// fails, or if the outcome of the last attempt is unknown.
    pub(super) fn leave_queue(&mut self, claim: Claim) {
        self.listening.subscription = None;
        let engine = self.engine;
        let sent = engine.clock.now();
        let deadline = engine.one_command().min(self.latest);
        if !self.is_answered || sent >= deadline {
            return self.leave_behind(claim, sent);
        }
        let (left, until, core) = (claim.clone(), self.left_until(&claim, sent), Arc::clone(&engine.core));
        let (mark, local) = (Arc::clone(self.thread), Arc::clone(self.call.local));
        let is_threads = self.unbound.is_none();
        let call = engine.calls.begin();
        let done = move |answer: Answer<Release>| {
            if answer.is_err() && !left.kind.only_asks() {
                // The lock retires the number first, so that no later grant under the number counts; see
                // `window_of`.
                if is_threads {
                    local.retire(&mark, left.owner);
                }
                core.clean_up(left, until, core.clock.now());
            }
            drop(call);
        };
        engine.store.release_later(&claim, deadline, Sink::new(done));
        engine.watchdog.run_by(engine.clock.after(POLL_COMPLETIONS_EVERY));
    }

    /// Pauses after a failure. `is_own`: the grant came too late for this caller's lease. That concerns no
    /// other waiter, and messages do not end the pause, because the clean-up of the late grant sends one.
    pub(super) fn pause_after(&mut self, error: Error, is_own: bool) -> Result<Step> {
        let (engine, call) = (self.engine, self.call);
        let now = engine.clock.now();
        let since = self.failure.as_ref().map_or(now, |(since, _)| *since);
        let is_over = now >= call.limit;
        let is_spent = now.since(since) >= engine.options.retry_timeout;
        let is_final = is_over || is_spent || !error.is_retryable();
        // The waiters behind this one share its outage, but not the end of this call's time.
        if !is_own && !is_over {
            call.local.note_failure(Some((since, error.copy())));
            if is_final {
                call.local.state().queue.wake_all();
            }
        }
        if is_final {
            return Err(error);
        }
        self.failure = Some((since, error));
        let until = now.plus(random_between(RETRY_PAUSE));
        Ok(if is_own { Step::Pause(until) } else { Step::Sleep(until) })
    }

    pub(super) fn pause_until(&self, until: Moment) -> Result<()> {
        let call = self.call;
        let woken = Parker::new(&self.engine.clock).park(until.min(call.limit), call.interrupt);
        if woken == Woken::Interrupted { Err(interrupted(call.action)) } else { Ok(()) }
    }
}
