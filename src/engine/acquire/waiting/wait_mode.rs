//! How a waiter waits: how it treats the wait queue, and the messages that it has received.

use crate::seam::subscription::Subscription;
use crate::seam::{ListensFor, QueueMode};

/// How a waiter treats the store's wait queue. The modes `Waits`, `InWaitQueue` and `IsNext` use the queue
/// (*any* below). A waiter that spins, or that has a place of its own in the store's queue, keeps its mode.
///
/// | from     | to                         | by                                                           |
/// |----------|----------------------------|--------------------------------------------------------------|
/// | `Waits`  | `InWaitQueue`              | a local waiter before this one, or an attempt without answer |
/// | any      | `InWaitQueue` and `stands` | an answer: the client has a place in the queue               |
/// | any      | `IsNext` and `stands`      | a message that the client is next; for one attempt           |
/// | `IsNext` | `InWaitQueue` and `stands` | the next attempt without such a message                      |
/// | any      | `Waits`                    | a grant, which took the client out of the queue              |
/// | any      | `Yields`                   | the server, which refused the subscription; for good         |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaitMode {
    pub(super) queue_mode: QueueMode,
    /// Whether the store has said that the client has a place in the wait queue.
    pub(super) stands: bool,
    is_fixed: bool,
}

impl WaitMode {
    pub(super) fn new(queue_mode: QueueMode, is_fixed: bool) -> WaitMode {
        WaitMode { queue_mode, stands: false, is_fixed }
    }

    pub(super) fn uses_wait_queue(self) -> bool {
        !self.is_fixed && !matches!(self.queue_mode, QueueMode::Barges | QueueMode::Yields)
    }

    /// Whether the client may have a place in the wait queue.
    pub(super) fn may_stand(self) -> bool {
        matches!(self.queue_mode, QueueMode::InWaitQueue | QueueMode::IsNext)
    }

    pub(super) fn change(&mut self, to: QueueMode, stands: bool) {
        if self.uses_wait_queue() {
            (self.queue_mode, self.stands) = (to, stands);
        }
    }

    pub(super) fn become_in_doubt(&mut self) {
        if self.queue_mode == QueueMode::Waits {
            self.change(QueueMode::InWaitQueue, false);
        }
    }

    /// The waiter calls this before an attempt. `is_notified`: since the last attempt, a message said that
    /// the client is next.
    pub(super) fn become_next(&mut self, is_notified: bool) {
        if is_notified {
            self.change(QueueMode::IsNext, true);
        } else if self.queue_mode == QueueMode::IsNext {
            self.change(QueueMode::InWaitQueue, true);
        }
    }
}

/// The subscription of a waiter, and the message counts at its last attempt.
#[derive(Default)]
pub(super) struct Listening {
    pub(super) subscription: Option<Subscription>,
    pub(super) listens_for: ListensFor,
    /// The message count before the last attempt. `None`: no subscription was confirmed then.
    pub(super) message_count: Option<u64>,
    /// Of a waiter that does not listen yet: the message count of others' subscription before its last
    /// attempt. `listen` compares this count, and so notices a message that came meanwhile.
    pub(super) unheard: Option<u64>,
    turns: u64,
    standbys: u64,
}

impl Listening {
    /// Called before an attempt of a waiter that listens. Returns whether a message since the last call said
    /// that this client is next; `None`: the waiter does not listen yet.
    pub(super) fn note_heard(&mut self) -> Option<bool> {
        let subscription = self.subscription.as_ref()?;
        self.message_count = subscription.is_up().then(|| subscription.message_count());
        self.standbys = subscription.standby_count();
        let turns = subscription.turn_count();
        Some(std::mem::replace(&mut self.turns, turns) != turns)
    }

    /// Begins to listen. If a message that this client is next came since `unheard` was counted, the next
    /// [`note_heard`](Self::note_heard) reports that message.
    pub(super) fn listen(&mut self, subscription: Option<Subscription>) {
        if let Some(subscription) = &subscription {
            let own_turn = self.listens_for == ListensFor::OwnTurn && subscription.is_up();
            let unheard = self.unheard.take().filter(|_| own_turn);
            let was_notified = unheard.is_some_and(|count| count != subscription.message_count());
            self.turns = subscription.turn_count().wrapping_sub(u64::from(was_notified));
            self.standbys = subscription.standby_count();
        }
        self.subscription = subscription;
    }

    pub(super) fn listen_for(&mut self, listens_for: ListensFor) {
        if std::mem::replace(&mut self.listens_for, listens_for) != listens_for {
            (self.subscription, self.unheard) = (None, None);
        }
    }

    pub(super) fn pass_over(&mut self) {
        self.message_count = self.subscription.as_ref().map(Subscription::message_count);
    }

    pub(super) fn has_message(&self) -> bool {
        self.subscription.as_ref().is_some_and(|at| Some(at.message_count()) != self.message_count)
    }

    /// Whether to attempt: a message came, or the subscription was confirmed, since the last attempt.
    pub(super) fn has_moved(&self) -> bool {
        self.subscription.as_ref().is_some_and(Subscription::is_up) && self.has_message()
    }

    /// Whether the server refused the subscription to messages for this client's turn.
    pub(super) fn is_refused(&self) -> bool {
        self.listens_for != ListensFor::Releases
            && self.subscription.as_ref().is_some_and(Subscription::is_refused)
    }

    /// Whether a `standby` message came since the last call (this client is second), and no other message.
    pub(super) fn stands_by(&mut self) -> bool {
        let Some(subscription) = &self.subscription else { return false };
        if self.has_message() {
            return false;
        }
        let standbys = subscription.standby_count();
        std::mem::replace(&mut self.standbys, standbys) != standbys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use QueueMode::{Barges, InWaitQueue, IsNext, Waits, Yields};

    type Change = fn(&mut WaitMode);

    /// Each row of `table` has a mode, and the mode after each of the `changes`.
    #[test]
    fn the_queue_mode_after_each_change_matches_the_table() {
        let changes: [Change; 6] = [
            WaitMode::become_in_doubt,
            |wait_mode| wait_mode.change(InWaitQueue, true),
            |wait_mode| wait_mode.become_next(true),
            |wait_mode| wait_mode.become_next(false),
            |wait_mode| wait_mode.change(Waits, false),
            |wait_mode| wait_mode.change(Yields, false),
        ];
        let (stands, next) = ((InWaitQueue, true), (IsNext, true));
        let (waits, in_doubt, yields) = ((Waits, false), (InWaitQueue, false), (Yields, false));
        let table = [
            (waits, [in_doubt, stands, next, waits, waits, yields]),
            (in_doubt, [in_doubt, stands, next, in_doubt, waits, yields]),
            (stands, [stands, stands, next, stands, waits, yields]),
            (next, [next, stands, next, stands, waits, yields]),
            (yields, [yields; 6]),
            ((Barges, false), [(Barges, false); 6]),
        ];
        for ((queue_mode, stands), after) in table {
            for (change, to) in changes.iter().zip(after) {
                let mut wait_mode = WaitMode { stands, ..WaitMode::new(queue_mode, false) };
                change(&mut wait_mode);
                assert_eq!((wait_mode.queue_mode, wait_mode.stands), to, "from {queue_mode:?}");
                let mut fixed = WaitMode::new(Waits, true);
                change(&mut fixed);
                assert_eq!(fixed, WaitMode::new(Waits, true), "a waiter with an own place changed its mode");
            }
        }
    }
}

#[cfg(test)]
mod listening_tests {
    use std::sync::Arc;

    use super::*;
    use crate::seam::subscription::Channel;
    use crate::seam::subscription::tests::Nobody;
    use crate::sync::Waker;

    fn listens(channel: &Arc<Channel>) -> Subscription {
        Subscription::new(Arc::clone(channel), Arc::new(Nobody), &Waker::default())
    }

    /// Whether a waiter learns that it is next if `between` runs after its attempt and before it listens.
    /// Another waiter's subscription stands all the time.
    fn is_next_after(between: impl FnOnce(&Channel, &mut Listening)) -> bool {
        let channel = Arc::new(Channel::new("a", true));
        let mut listening = Listening { listens_for: ListensFor::OwnTurn, ..Listening::default() };
        channel.take(b"next"); // of an earlier wait
        let count = Some(channel.message_count());
        (listening.unheard, listening.message_count) = (count, count);
        between(&channel, &mut listening);
        listening.listen(Some(listens(&channel)));
        listening.note_heard().expect("the waiter listens")
    }

    #[test]
    fn a_message_before_the_waiter_listens_still_reaches_the_waiter() {
        assert!(!is_next_after(|_, _| {}));
        assert!(is_next_after(|channel, _| channel.take(b"next")));
        assert!(!is_next_after(|channel, _| channel.take(b"standby")));
        assert!(!is_next_after(|channel, listening| {
            listening.listen_for(ListensFor::Releases);
            channel.take(b"0");
        }));
    }

    #[test]
    fn a_waiter_notices_each_received_message_once() {
        let channel = Arc::new(Channel::new("a", true));
        let mut listening = Listening::default();
        assert!(listening.note_heard().is_none(), "the waiter does not listen yet");
        listening.listen(Some(listens(&channel)));
        assert!(listening.has_moved(), "the subscription was set up only now");
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
        assert!(listening.has_message() && !listening.has_moved(), "the subscription is down");
    }
}
