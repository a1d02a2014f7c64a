//! A waiter and its client's place in the store's wait queue.
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

use std::time::Duration;

use super::{Step, Waiting};
use crate::engine::hold::QueuePlace;
use crate::engine::policy::POLL_COMPLETIONS_EVERY;
use crate::park::Parker;
use crate::seam::{Claim, Kind, ListensFor};
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

    pub(super) fn leave_queue_by_grant(&mut self) {
        if self.wait_mode.may_stand() || self.call.kind == Kind::Read {
            let mut state = self.call.local.state();
            state.queued = false;
            if self.call.kind.is_counted() {
                state.queue.nudge_apart();
            }
        }
        self.wait_mode.become_granted();
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
