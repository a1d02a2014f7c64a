//! A waiter and its client's place in the store's line of waiting clients.
//!
//! The line has one entry for each client, however many of its threads wait: only the head of the local queue
//! asks, and joins it for all of them. A waiter that stands in line sleeps until its client is told that it
//! is next. Others may be told and hang, messages may be lost: so it also asks when the store said that it
//! should, and by the safety poll.
//!
//! The holder's id says whether its release tells the line. Java's `forceUnlock` may end that hold too, and
//! the id may be one that only looks like ours: then a message comes on the channel of all releases, and
//! nobody is told. So the first in the line looks out: it listens to that channel as well.
//!
//! If the answer by which it joins the line names it the first, it looks out after [`AFTER`]; if a later
//! answer does, at once. A client that takes turns often has the subscription to its turn still: it asks once
//! and sleeps, so a line that moves fast has no lookout, and costs nothing more. In a slow line the lookout
//! gets a message with each release, which wakes it anyway. Its subscription ends with its wait.
//!
//! Source: docs/decisions/0027 and 0040.

use std::time::Duration;

use super::{Step, Waiting};
use crate::engine::hold::QueuePlace;
use crate::engine::policy::POLL_COMPLETIONS_EVERY;
use crate::park::Parker;
use crate::seam::{Claim, ListensFor};
use crate::time::{Moment, random_between};

/// The time after which a waiter looks out that has just joined the line, unless it asks again before.
const AFTER: Duration = Duration::from_millis(25);

impl Waiting<'_> {
    /// Its client stands in the line: sleeps until it is told, or the store has said to ask again.
    pub(super) fn stand_in_line(
        &mut self,
        retry_after: Option<Duration>,
        listens_for: ListensFor,
        is_lookout: bool,
    ) -> Step {
        let now = self.engine.clock.now();
        self.note_lookout(is_lookout, now);
        let poll = if self.manner.stands() {
            self.pause()
        } else {
            // So that those who came at the same time do not all ask at the same time.
            random_between((Duration::ZERO, (self.capabilities.poll_every)(self.call.kind).1))
        };
        self.listening.listen_for(listens_for);
        self.call.entry.state().in_line = true;
        self.manner.become_standing();
        let retry = retry_after.map_or(Moment::NEVER, |after| now.plus(after));
        Step::Sleep(now.plus(poll).min(retry))
    }

    /// The lock is had: the store's grant took its client out of the line.
    pub(super) fn leave_line_by_grant(&mut self) {
        if self.manner.may_stand() {
            self.call.entry.state().in_line = false;
        }
        self.manner.become_granted();
    }

    /// The server refused to let it listen for its turn: it goes by each release, as where there is no line.
    pub(super) fn go_by_releases(&mut self) {
        self.manner.become_deaf();
        self.give_up_place();
        self.call.entry.state().in_line = false;
        self.listening.listen_for(ListensFor::Releases);
    }

    /// Takes its client out of the line if nobody else here waits for the lock. Asked before the local queue
    /// is left: the next who joins that queue asks behind this request.
    pub(super) fn leave_line(&mut self, place: &QueuePlace) {
        if self.parker.is_none() && !self.manner.may_stand() || !place.takes_line_place() {
            return;
        }
        self.give_up_place();
    }

    fn give_up_place(&mut self) {
        let engine = self.engine;
        if let Some(lines) = self.capabilities.lines {
            let claim = self.claim();
            lines.leave_line(&claim, engine.one_command().min(self.latest));
            engine.watchdog.look_by(engine.clock.after(POLL_COMPLETIONS_EVERY));
        }
    }

    /// Notes whether it is to look out, as the last answer said.
    pub(super) fn note_lookout(&mut self, is_lookout: bool, now: Moment) {
        if !is_lookout {
            self.end_lookout();
        } else if self.lookout.subscription.is_none() && self.call.terms.backoff.is_none() {
            let after = if self.manner.stands() { Duration::ZERO } else { AFTER };
            self.lookout.begins_at = Some(now.plus(after));
        }
    }

    /// Begins to look out, and sleeps on, `until` at most. When the subscription stands, that wakes it, and
    /// it asks once: what came before was not heard.
    pub(super) fn look_out(&mut self, place: &QueuePlace, until: Moment) {
        self.lookout.begins_at = None;
        self.rest.sleep_on(until);
        if place.ticket().is_head() {
            let claim = Claim { listens_for: ListensFor::Releases, ..self.claim() };
            let parker = self.parker.get_or_insert_with(|| Parker::new(&self.engine.clock));
            self.lookout.subscription = self.engine.store.listen(&claim, parker.waker());
        }
    }

    pub(super) fn end_lookout(&mut self) {
        self.lookout.begins_at = None;
        if self.lookout.subscription.take().is_some()
            && let Some(lines) = self.capabilities.lines
        {
            let claim = self.claim();
            lines.end_lookout(&claim);
        }
    }
}
