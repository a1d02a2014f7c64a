//! The state of a waiter that stands in the store's line of waiting clients, or might.

use std::time::Duration;

use crate::seam::subscription::Subscription;
use crate::seam::{Turn, Wakeups};
use crate::time::Moment;

/// The first of those who were not told asks when so long has passed, in case the one who was told does not
/// come.
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
    /// The messages that the channel for its turn had, where nobody listens but its subscription stands,
    /// before the last attempt.
    before: Option<u64>,
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
            before: None,
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

    /// Before an attempt of one that does not listen yet: the messages of its channel, if a subscription to
    /// it stands still. Pairs with [`listens`](Self::listens): it may be told between the two.
    pub(crate) fn note_before(&mut self, message_count: Option<u64>) {
        self.before = message_count;
    }

    /// A new subscription: what it has counted so far is no news, but for what came since
    /// [`note_before`](Self::note_before). On a channel for its turn alone that was its turn.
    pub(crate) fn listens(&mut self, subscription: &Subscription) {
        let before = self.before.take().filter(|_| self.wakeups == Wakeups::OwnTurn && subscription.is_up());
        let is_told = before.is_some_and(|before| before != subscription.message_count());
        let turns = subscription.turn_count();
        self.turns = Some(if is_told { turns.wrapping_sub(1) } else { turns });
        self.standbys = Some(subscription.standby_count());
    }

    /// It listens to other messages from now on.
    pub(crate) fn listens_anew(&mut self) {
        (self.turns, self.standbys, self.before) = (None, None, None);
    }

    /// Whether it was only told that it may be next soon; then it sleeps on for a while, `until` at most.
    pub(crate) fn stand_by(&mut self, subscription: &Subscription, now: Moment, until: Moment) {
        let standbys = Some(subscription.standby_count());
        if self.standbys != standbys {
            self.standbys = standbys;
            self.sleeps_until = Some(until.min(now.plus(STANDBY)));
        }
    }

    /// It was woken by itself, with nothing to ask for: sleeps on, `until` at most.
    pub(crate) fn sleep_on(&mut self, until: Moment) {
        self.sleeps_until = Some(until);
    }

    /// Until when it sleeps on.
    pub(crate) fn stands_by(&mut self, now: Moment) -> Option<Moment> {
        self.sleeps_until.take().filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::seam::subscription::{Channel, ChannelSource};
    use crate::sync::Waker;

    struct Nobody;

    impl ChannelSource for Nobody {
        fn left(&self, _channel: &Arc<Channel>) {}
    }

    /// A subscription that stood still while nobody listened; what happens between the attempt and the
    /// listening; and how the next attempt goes by the line.
    fn turn_after(between: impl FnOnce(&Channel, &mut LinePlace)) -> Turn {
        let channel = Arc::new(Channel::new("a", true));
        let mut place = LinePlace::default();
        channel.take(b"next"); // of an earlier wait
        place.note_before(Some(channel.message_count()));
        place.may_stand = true;
        between(&channel, &mut place);
        let subscription = Subscription::new(channel, Arc::new(Nobody), &Waker::default());
        place.listens(&subscription);
        place.note_turns(&subscription);
        place.turn(Turn::Waits)
    }

    #[test]
    fn a_turn_that_came_before_it_listened_is_its_turn() {
        assert_eq!(turn_after(|_, _| {}), Turn::StandsInLine);
        assert_eq!(turn_after(|channel, _| channel.take(b"next")), Turn::IsNext);
        assert_eq!(turn_after(|channel, _| channel.take(b"standby")), Turn::StandsInLine);
        let other = |channel: &Channel, place: &mut LinePlace| {
            place.listens_anew(); // to releases, say
            channel.take(b"0");
        };
        assert_eq!(turn_after(other), Turn::StandsInLine);
    }
}
