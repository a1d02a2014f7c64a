//! The messages that a waiter listens for, and what it has heard.

use crate::seam::ListensFor;
use crate::seam::subscription::Subscription;
use crate::time::Moment;

/// The subscription of a waiter, and the counts of its channel when they were last looked at.
///
/// A store without a wait queue knows one channel for each lock, whatever is asked for.
#[derive(Default)]
pub(super) struct Listening {
    subscription: Option<Subscription>,
    listens_for: ListensFor,
    /// The message count of the channel before the last attempt. `None`: no subscription stood then.
    message_count: Option<u64>,
    /// The count of a standing subscription before this waiter listened.
    unheard: Option<u64>,
    turns: Option<u64>,
    standbys: Option<u64>,
}

impl Listening {
    pub(super) fn subscription(&self) -> Option<&Subscription> {
        self.subscription.as_ref()
    }

    pub(super) fn listens_for(&self) -> ListensFor {
        self.listens_for
    }

    /// To be called before an attempt of a listening waiter. Returns whether a message since the last call
    /// said that this client is next; `None`: the waiter does not listen yet.
    pub(super) fn note_heard(&mut self) -> Option<bool> {
        let subscription = self.subscription.as_ref()?;
        self.message_count = subscription.is_up().then(|| subscription.message_count());
        let turns = Some(subscription.turn_count());
        let is_next = self.turns.is_some() && self.turns != turns;
        (self.turns, self.standbys) = (turns, Some(subscription.standby_count()));
        Some(is_next)
    }

    /// To be called before an attempt of a waiter that does not listen yet: notes the messages of a standing
    /// subscription. Pairs with [`listen`](Self::listen): a message may arrive between the two.
    pub(super) fn note_unheard(&mut self, count: Option<u64>) {
        (self.unheard, self.message_count) = (count, count);
    }

    /// A new subscription: what it has counted so far is no news, but for what came since
    /// [`note_unheard`](Self::note_unheard). On a channel for its turn alone that was its turn.
    pub(super) fn listen(&mut self, subscription: Option<Subscription>) {
        if let Some(subscription) = &subscription {
            let own_turn = self.listens_for == ListensFor::OwnTurn && subscription.is_up();
            let unheard = self.unheard.take().filter(|_| own_turn);
            let was_notified = unheard.is_some_and(|count| count != subscription.message_count());
            let turns = subscription.turn_count();
            self.turns = Some(if was_notified { turns.wrapping_sub(1) } else { turns });
            self.standbys = Some(subscription.standby_count());
        }
        self.subscription = subscription;
    }

    pub(super) fn end(&mut self) {
        self.subscription = None;
    }

    pub(super) fn listen_for(&mut self, listens_for: ListensFor) {
        if std::mem::replace(&mut self.listens_for, listens_for) != listens_for {
            (self.subscription, self.turns, self.standbys, self.unheard) = (None, None, None, None);
        }
    }

    pub(super) fn pass_over(&mut self) {
        self.message_count = self.subscription.as_ref().map(Subscription::message_count);
    }

    pub(super) fn has_message(&self) -> bool {
        self.subscription.as_ref().is_some_and(|at| Some(at.message_count()) != self.message_count)
    }

    /// Whether there is reason to ask: a message, or a subscription that stands only now.
    pub(super) fn has_moved(&self) -> bool {
        self.subscription.as_ref().is_some_and(Subscription::is_up) && self.has_message()
    }

    /// Whether the server refused to let it listen to other messages than releases.
    pub(super) fn is_refused(&self) -> bool {
        self.listens_for != ListensFor::Releases
            && self.subscription.as_ref().is_some_and(Subscription::is_refused)
    }

    /// Whether it was only told, since the last look, that it may be next soon.
    pub(super) fn stands_by(&mut self) -> bool {
        let Some(subscription) = &self.subscription else { return false };
        if self.has_message() {
            return false;
        }
        let standbys = Some(subscription.standby_count());
        std::mem::replace(&mut self.standbys, standbys) != standbys
    }
}

#[derive(Default)]
pub(super) struct ReleaseWatch {
    pub(super) begins_at: Option<Moment>,
    pub(super) subscription: Option<Subscription>,
    /// The messages that it had before the last attempt. `None`: it did not stand then.
    message_count: Option<u64>,
}

impl ReleaseWatch {
    /// To be called before an attempt: a message between this and the sleep is reason for another attempt.
    pub(super) fn note_count(&mut self) {
        self.message_count = self.count();
    }

    pub(super) fn has_moved(&self) -> bool {
        let count = self.count();
        count.is_some() && count != self.message_count
    }

    fn count(&self) -> Option<u64> {
        self.subscription.as_ref().filter(|at| at.is_up()).map(Subscription::message_count)
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

    fn listens(channel: &Arc<Channel>) -> Subscription {
        Subscription::new(Arc::clone(channel), Arc::new(Nobody), &Waker::default())
    }

    /// Whether a waiter takes what `between` does, after its attempt and before it listens, for its turn. The
    /// subscription is up all the time, although nobody listened.
    fn is_next_after(between: impl FnOnce(&Channel, &mut Listening)) -> bool {
        let channel = Arc::new(Channel::new("a", true));
        let mut listening = Listening { listens_for: ListensFor::OwnTurn, ..Listening::default() };
        channel.take(b"next"); // of an earlier wait
        listening.note_unheard(Some(channel.message_count()));
        between(&channel, &mut listening);
        listening.listen(Some(listens(&channel)));
        listening.note_heard().expect("it listens")
    }

    #[test]
    fn a_wake_up_before_listening_counts() {
        assert!(!is_next_after(|_, _| {}));
        assert!(is_next_after(|channel, _| channel.take(b"next")));
        assert!(!is_next_after(|channel, _| channel.take(b"standby")));
        assert!(!is_next_after(|channel, listening| {
            listening.listen_for(ListensFor::Releases);
            channel.take(b"0");
        }));
    }

    #[test]
    fn each_message_is_read_once() {
        let channel = Arc::new(Channel::new("a", true));
        let mut listening = Listening::default();
        assert!(listening.note_heard().is_none(), "it does not listen");
        listening.listen(Some(listens(&channel)));
        assert!(listening.has_moved(), "the subscription stands only now");
        assert_eq!(listening.note_heard(), Some(false));
        assert!(!listening.has_message() && !listening.stands_by());
        channel.take(b"standby");
        assert!(!listening.has_message());
        assert!(listening.stands_by() && !listening.stands_by());
        channel.take(b"next");
        assert!(listening.has_message() && !listening.stands_by());
        assert_eq!(listening.note_heard(), Some(true));
        assert_eq!(listening.note_heard(), Some(false));
        channel.take(b"0");
        assert!(listening.has_moved());
        listening.pass_over();
        assert!(!listening.has_moved());
        channel.set_up(false);
        assert!(listening.has_message() && !listening.has_moved(), "nothing is heard until it stands again");
    }
}
