//! A waiter and its client's place in the store's line of waiting clients.
//!
//! The line has one entry for each client, however many of its threads wait: only the head of the local queue
//! asks, and joins it for all of them. A waiter that stands in line sleeps until its client is told that it
//! is next. Others may be told and hang, messages may be lost: so it also asks when the store said that it
//! should, and by the safety poll.
//!
//! Source: docs/decisions/0027.

use std::time::Duration;

use super::{Step, Waiting};
use crate::engine::hold::QueuePlace;
use crate::engine::policy::POLL_COMPLETIONS_EVERY;
use crate::seam::ListensFor;
use crate::time::{Moment, random_between};

impl Waiting<'_> {
    /// Its client stands in the line: sleeps until it is told, or the store has said to ask again.
    pub(super) fn stand_in_line(
        &mut self,
        retry_after: Option<Duration>,
        listens_for: ListensFor,
        is_lookout: bool,
    ) -> Step {
        let now = self.request.engine.clock.now();
        self.note_lookout(is_lookout, now);
        let poll = if self.manner.stands() {
            self.pause()
        } else {
            // So that those who came at the same time do not all ask at the same time.
            random_between((Duration::ZERO, self.request.engine.poll_every(self.request.call.kind).1))
        };
        self.listening.listen_for(listens_for);
        self.request.call.entry.state().in_line = true;
        self.manner.become_standing();
        let retry = retry_after.map_or(Moment::NEVER, |after| now.plus(after));
        Step::Sleep(now.plus(poll).min(retry))
    }

    /// The queue of its election is full: asks each third of its lease, and when the leader's lease may be
    /// over.
    pub(super) fn ask_seldom(&mut self, retry_after: Option<Duration>) -> Step {
        let (now, third) = (self.request.engine.clock.now(), self.request.lease / 3);
        self.end_lookout();
        self.listening.listen_for(ListensFor::Nothing);
        let poll = random_between((third / 2, third)).max(self.pause());
        let retry = retry_after.map_or(Moment::NEVER, |after| now.plus(after));
        Step::Sleep(now.plus(poll).min(retry))
    }

    /// The lock is had: the store's grant took its client out of the line.
    pub(super) fn leave_line_by_grant(&mut self) {
        if self.manner.may_stand() {
            self.request.call.entry.state().in_line = false;
        }
        self.manner.become_granted();
    }

    /// The server refused to let it listen for its turn: it goes by each release, as where there is no line.
    pub(super) fn go_by_releases(&mut self) {
        self.manner.become_deaf();
        self.give_up_place();
        self.request.call.entry.state().in_line = false;
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
        let engine = self.request.engine;
        if let Some(lines) = engine.store.capabilities().lines {
            let claim = self.claim();
            lines.leave_line(&claim, engine.one_command().min(self.request.latest));
            engine.watchdog.look_by(engine.clock.after(POLL_COMPLETIONS_EVERY));
        }
    }
}
