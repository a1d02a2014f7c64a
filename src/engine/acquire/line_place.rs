//! The state of a waiter that stands in the store's line of waiting clients, or might.

use std::time::Duration;

use crate::seam::subscription::Subscription;
use crate::seam::{Turn, Wakeups};
use crate::time::Moment;

/// The first of those who were not told asks when so long has passed, in case the one who was told does not come.
const STANDBY: Duration = Duration::from_millis(25);

/// The state of a waiter by the line.
#[derive(Debug)]
pub(crate) struct LinePlace {
    /// Whether its client may stand in the line.
    pub(crate) may_stand: bool,
    /// Whether the last answer said that it does.
    pub(crate) stands: bool,
    /// The messages that the last answer said to listen for.
    pub(crate) wakeups: Wakeups,
    /// It was told that its client is next, and has not asked since.
    pub(crate) is_next: bool,
    /// The message counts of its subscription when it was last looked at.
    pub(crate) turns: Option<u64>,
    pub(crate) standbys: Option<u64>,
    /// Until when it sleeps on, although it was woken.
    sleeps_until: Option<Moment>,
    /// It may not listen for its turn: then it does not join the line.
    pub(crate) is_deaf: bool,
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
    pub(crate) fn turn(&self, turn: Turn) -> Turn {
        match turn {
            Turn::Waits if self.is_deaf => Turn::Yields,
            Turn::Waits if self.is_next => Turn::IsNext,
            Turn::Waits if self.may_stand => Turn::StandsInLine,
            other => other,
        }
    }

    /// Before an attempt: whether it was told since the last that its client is next.
    pub(crate) fn note_turns(&mut self, subscription: &Subscription) {
        let turns = Some(subscription.turn_count());
        self.is_next = self.turns.is_some() && self.turns != turns;
        self.turns = turns;
        self.standbys = Some(subscription.standby_count());
    }

    /// A new subscription: what it has counted so far is no news.
    pub(crate) fn listens(&mut self, subscription: &Subscription) {
        self.turns = Some(subscription.turn_count());
        self.standbys = Some(subscription.standby_count());
    }

    /// Whether it was only told that it may be next soon; then it sleeps on for a while, `until` at most.
    pub(crate) fn stand_by(&mut self, subscription: &Subscription, now: Moment, until: Moment) {
        let standbys = Some(subscription.standby_count());
        if self.standbys != standbys {
            self.standbys = standbys;
            self.sleeps_until = Some(until.min(now.plus(STANDBY)));
        }
    }

    /// Until when it sleeps on.
    pub(crate) fn stands_by(&mut self, now: Moment) -> Option<Moment> {
        self.sleeps_until.take().filter(|until| now < *until)
    }
}
