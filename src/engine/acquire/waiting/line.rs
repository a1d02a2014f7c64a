//! A waiter and its client's place in the store's line of waiting clients.
//!
//! The line has one entry for each client, however many of its threads wait: only the head of the local queue asks, and joins
//! it for all of them. A waiter that stands in line sleeps until its client is told that it is next. Others may be told and
//! hang, messages may be lost: so it also asks when the store said that it should, and by the safety poll.
//!
//! Source: docs/decisions/0027.

use std::time::Duration;

use super::{Progress, Waiting};
use crate::engine::registry::QueuePlace;
use crate::seam::subscription::Subscription;
use crate::seam::{Claim, Turn, Wakeups};
use crate::time::{Moment, random_between};

/// The first of those who were not told asks when so long has passed, in case the one who was told does not come.
const STANDBY: Duration = Duration::from_millis(25);

/// The state of a waiter by the line.
#[derive(Debug)]
pub(super) struct LinePlace {
    /// Whether its client may stand in the line.
    pub(super) may_stand: bool,
    /// Whether the last answer said that it does.
    pub(super) stands: bool,
    /// The messages that the last answer said to listen for.
    pub(super) wakeups: Wakeups,
    /// It was told that its client is next, and has not asked since.
    is_next: bool,
    /// The message counts of its subscription when it was last looked at.
    turns: Option<u64>,
    standbys: Option<u64>,
    /// Until when it sleeps on, although it was woken.
    sleeps_until: Option<Moment>,
    /// It may not listen for its turn: then it does not join the line.
    is_deaf: bool,
}

impl Default for LinePlace {
    /// A store without a line knows one channel for each lock, whatever is asked for.
    fn default() -> LinePlace {
        LinePlace {
            may_stand: false,
            stands: false,
            wakeups: Wakeups::OwnTurn,
            is_next: false,
            turns: None,
            standbys: None,
            sleeps_until: None,
            is_deaf: false,
        }
    }
}

impl LinePlace {
    /// For the claim of the next attempt of one who would go by the line like `turn`.
    pub(super) fn turn(&self, turn: Turn) -> Turn {
        match turn {
            Turn::Waits if self.is_deaf => Turn::Yields,
            Turn::Waits if self.is_next => Turn::IsNext,
            Turn::Waits if self.may_stand => Turn::StandsInLine,
            other => other,
        }
    }

    /// Before an attempt: whether it was told since the last that its client is next.
    pub(super) fn note_turns(&mut self, subscription: &Subscription) {
        let turns = Some(subscription.turn_count());
        self.is_next = self.turns.is_some() && self.turns != turns;
        self.turns = turns;
        self.standbys = Some(subscription.standby_count());
    }

    /// A new subscription: what it has counted so far is no news.
    pub(super) fn listens(&mut self, subscription: &Subscription) {
        self.turns = Some(subscription.turn_count());
        self.standbys = Some(subscription.standby_count());
    }

    /// Whether it was only told that it may be next soon; then it sleeps on for a while, `until` at most.
    pub(super) fn stand_by(&mut self, subscription: &Subscription, now: Moment, until: Moment) {
        let standbys = Some(subscription.standby_count());
        if self.standbys != standbys {
            self.standbys = standbys;
            self.sleeps_until = Some(until.min(now.plus(STANDBY)));
        }
    }

    /// Until when it sleeps on.
    pub(super) fn stands_by(&mut self, now: Moment) -> Option<Moment> {
        self.sleeps_until.take().filter(|until| now < *until)
    }
}

impl Waiting<'_> {
    /// Its client stands in the line: sleeps until it is told, or the store has said to ask again.
    pub(super) fn stand_in_line(&mut self, retry_after: Option<Duration>, wakeups: Wakeups) -> Progress {
        let now = self.engine.clock.now();
        let poll = if self.line.stands {
            self.pause()
        } else {
            // So that those who came at the same time do not all ask at the same time.
            random_between((Duration::ZERO, self.engine.poll_every(self.call.kind).1))
        };
        self.listen_for(wakeups);
        self.engine.registry.note_in_line(self.call.kind, self.call.name, true);
        (self.line.may_stand, self.line.stands, self.line.is_next) = (true, true, false);
        let retry = retry_after.map_or(Moment::NEVER, |after| now.plus(after));
        Progress::Later(now.plus(poll).min(retry))
    }

    /// The lock is had: a grant takes its client out of the line.
    pub(super) fn leave_line_by_grant(&mut self) {
        if self.line.may_stand {
            self.engine.registry.note_in_line(self.call.kind, self.call.name, false);
        }
        (self.line.may_stand, self.line.stands, self.line.is_next) = (false, false, false);
    }

    /// What wakes it from now on.
    pub(super) fn listen_for(&mut self, wakeups: Wakeups) {
        if std::mem::replace(&mut self.line.wakeups, wakeups) != wakeups {
            self.subscription = None;
            (self.line.turns, self.line.standbys) = (None, None);
        }
    }

    /// The server refused to let it listen for its turn: it goes by each release, as where there is no line.
    pub(super) fn go_by_releases(&mut self) {
        self.line.is_deaf = true;
        self.give_up_place();
        self.listen_for(Wakeups::Releases);
    }

    /// Takes its client out of the line if nobody else here waits for the lock. Asked before the local queue is left: the
    /// next who joins that queue asks behind this request.
    pub(super) fn leave_line(&mut self, place: &QueuePlace) {
        if self.parker.is_none() && !self.line.may_stand || !place.takes_line_place() {
            return;
        }
        self.give_up_place();
    }

    fn give_up_place(&mut self) {
        let engine = self.engine;
        if let Some(lines) = engine.store.capabilities().lines {
            let claim: Claim = self.claim();
            lines.leave_line(&claim, engine.one_command());
        }
    }
}
