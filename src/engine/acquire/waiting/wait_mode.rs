//! How a waiter waits: its mode, the messages that it has received, and its pauses between polls.

use crate::seam::subscription::Subscription;
use crate::seam::{ListensFor, QueueMode};
use crate::time::Moment;

/// How a waiter waits. Only the `become_` methods change the mode:
///
/// | from                  | to                 | by                                                   |
/// |-----------------------|--------------------|------------------------------------------------------|
/// | `QueuesHere`          | `MaybeInWaitQueue` | a thread before it, or an attempt without an answer  |
/// | all of the wait queue | `InWaitQueue`      | an answer                                            |
/// | all of the wait queue | `IsNext`           | a message; it lasts for one attempt                  |
/// | `IsNext`              | `InWaitQueue`      | the next attempt without such a message              |
/// | all of the wait queue | `QueuesHere`       | a grant, which took its client out of the wait queue |
/// | all of the wait queue | `GoesByReleases`   | the server, which refused its subscription; for good |
/// | any                   | `AsksOnce`         | a caller that does not wait (any more)               |
///
/// The modes of the wait queue are `QueuesHere`, `MaybeInWaitQueue`, `InWaitQueue` and `IsNext`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitMode {
    /// Makes one attempt in `queue_mode`. `keeps_place`: the caller has a place in the store's queue.
    AsksOnce {
        queue_mode: QueueMode,
        keeps_place: bool,
    },
    /// Sleeps for its back-off between attempts, and does not listen for messages.
    Spins,
    /// Has a place in the store's queue, and the store grants in order of arrival.
    StandsInQueue,
    /// Waits in the local queue. The client is not in the store's wait queue, or the store has none.
    QueuesHere,
    MaybeInWaitQueue,
    InWaitQueue,
    IsNext,
    /// The server refused messages for the client's turn. The waiter listens to all releases, and polls.
    GoesByReleases,
}

impl WaitMode {
    pub(super) fn new(spins: bool, store_queues: bool) -> WaitMode {
        match (spins, store_queues) {
            (true, _) => WaitMode::Spins,
            (false, true) => WaitMode::StandsInQueue,
            (false, false) => WaitMode::QueuesHere,
        }
    }

    /// Whether the waiter uses the wait queue, if the store has one.
    pub(super) fn uses_wait_queue(self) -> bool {
        use WaitMode::{InWaitQueue, IsNext, MaybeInWaitQueue, QueuesHere};
        matches!(self, QueuesHere | MaybeInWaitQueue | InWaitQueue | IsNext)
    }

    fn change(&mut self, changes: bool, to: WaitMode) {
        if changes {
            *self = to;
        }
    }

    pub(super) fn become_once(&mut self, queue_mode: QueueMode, keeps_place: bool) {
        *self = WaitMode::AsksOnce { queue_mode, keeps_place };
    }

    pub(super) fn become_in_doubt(&mut self) {
        self.change(*self == WaitMode::QueuesHere, WaitMode::MaybeInWaitQueue);
    }

    pub(super) fn become_standing(&mut self) {
        self.change(self.uses_wait_queue(), WaitMode::InWaitQueue);
    }

    /// Called before an attempt. `is_notified`: since the last one, the client was told that it is next.
    pub(super) fn become_next(&mut self, is_notified: bool) {
        self.change(is_notified && self.uses_wait_queue(), WaitMode::IsNext);
        self.change(!is_notified && *self == WaitMode::IsNext, WaitMode::InWaitQueue);
    }

    pub(super) fn become_granted(&mut self) {
        self.change(self.uses_wait_queue(), WaitMode::QueuesHere);
    }

    pub(super) fn become_deaf(&mut self) {
        self.change(self.uses_wait_queue(), WaitMode::GoesByReleases);
    }

    pub(super) fn queue_mode(self) -> QueueMode {
        match self {
            WaitMode::AsksOnce { queue_mode, .. } => queue_mode,
            WaitMode::Spins => QueueMode::Barges,
            WaitMode::StandsInQueue | WaitMode::QueuesHere => QueueMode::Waits,
            WaitMode::MaybeInWaitQueue | WaitMode::InWaitQueue => QueueMode::InWaitQueue,
            WaitMode::IsNext => QueueMode::IsNext,
            WaitMode::GoesByReleases => QueueMode::Yields,
        }
    }

    pub(super) fn waits(self) -> bool {
        !matches!(self, WaitMode::AsksOnce { keeps_place: false, .. })
    }

    pub(super) fn stands(self) -> bool {
        matches!(self, WaitMode::InWaitQueue | WaitMode::IsNext)
    }

    pub(super) fn may_stand(self) -> bool {
        self == WaitMode::MaybeInWaitQueue || self.stands()
    }
}

/// The subscription of a waiter, and the message counts at its last attempt.
#[derive(Default)]
pub(super) struct Listening {
    pub(super) subscription: Option<Subscription>,
    pub(super) listens_for: ListensFor,
    /// The message count before the last attempt. `None`: no subscription was confirmed then.
    message_count: Option<u64>,
    /// The message count, before the last attempt, of a subscription that other waiters had made.
    unheard: Option<u64>,
    turns: Option<u64>,
    standbys: Option<u64>,
}

impl Listening {
    /// Called before an attempt of a waiter that listens. Returns whether a message since the last call said
    /// that this client is next; `None`: the waiter does not listen yet.
    pub(super) fn note_heard(&mut self) -> Option<bool> {
        let subscription = self.subscription.as_ref()?;
        self.message_count = subscription.is_up().then(|| subscription.message_count());
        let turns = Some(subscription.turn_count());
        let is_next = self.turns.is_some() && self.turns != turns;
        (self.turns, self.standbys) = (turns, Some(subscription.standby_count()));
        Some(is_next)
    }

    /// Called before an attempt of a waiter that does not listen yet. `count` is the message count of a
    /// subscription of other waiters. Pairs with [`listen`](Self::listen): a message may come between both.
    pub(super) fn note_unheard(&mut self, count: Option<u64>) {
        (self.unheard, self.message_count) = (count, count);
    }

    /// Begins to listen. If a message came since [`note_unheard`](Self::note_unheard), on a channel that has
    /// only messages for this client's turn, this client is next.
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

    /// Returns whether there was a subscription.
    pub(super) fn end(&mut self) -> bool {
        self.subscription.take().is_some()
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

    /// Whether to attempt: a message came, or the subscription was confirmed, since the last attempt.
    pub(super) fn has_moved(&self) -> bool {
        self.subscription.as_ref().is_some_and(Subscription::is_up) && self.has_message()
    }

    /// Whether the server refused the subscription to messages for this client's turn.
    pub(super) fn is_refused(&self) -> bool {
        self.listens_for != ListensFor::Releases
            && self.subscription.as_ref().is_some_and(Subscription::is_refused)
    }

    /// Whether a standby message, and no other message, came since the last call.
    pub(super) fn stands_by(&mut self) -> bool {
        let Some(subscription) = &self.subscription else { return false };
        if self.has_message() {
            return false;
        }
        let standbys = Some(subscription.standby_count());
        std::mem::replace(&mut self.standbys, standbys) != standbys
    }
}

#[derive(Debug, Default)]
pub(super) struct PollPause {
    until: Option<Moment>,
    /// `true`: no wake-up ends the pause. `false`: the next wake-up ends it.
    pub(super) is_firm: bool,
    /// When the waiter polls although this process has a hold.
    next_poll: Option<Moment>,
}

impl PollPause {
    pub(super) fn sleep_on(&mut self, until: Moment) {
        if !self.is_firm {
            self.until = Some(until);
        }
    }

    pub(super) fn pause(&mut self, until: Moment) {
        (self.until, self.is_firm) = (Some(until), true);
    }

    pub(super) fn take(&mut self, now: Moment) -> Option<Moment> {
        let until = self.until.filter(|until| now < *until);
        if until.is_none() || !self.is_firm {
            (self.until, self.is_firm) = (None, false);
        }
        until
    }

    pub(super) fn poll_by(&mut self, first: Moment) -> Moment {
        *self.next_poll.get_or_insert(first)
    }

    pub(super) fn end_polls(&mut self) {
        self.next_poll = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use WaitMode::{
        AsksOnce, GoesByReleases, InWaitQueue, IsNext, MaybeInWaitQueue, QueuesHere, Spins, StandsInQueue,
    };

    type Change = fn(&mut WaitMode);

    const ONCE: WaitMode = AsksOnce { queue_mode: QueueMode::Yields, keeps_place: false };

    /// Each row of `table` has a mode, and the mode after each of the `changes`.
    #[test]
    fn the_wait_mode_table_covers_every_change() {
        let changes: [Change; 6] = [
            WaitMode::become_in_doubt,
            WaitMode::become_standing,
            |wait_mode| wait_mode.become_next(true),
            |wait_mode| wait_mode.become_next(false),
            WaitMode::become_granted,
            WaitMode::become_deaf,
        ];
        let table = [
            (QueuesHere, [MaybeInWaitQueue, InWaitQueue, IsNext, QueuesHere, QueuesHere, GoesByReleases]),
            (
                MaybeInWaitQueue,
                [MaybeInWaitQueue, InWaitQueue, IsNext, MaybeInWaitQueue, QueuesHere, GoesByReleases],
            ),
            (InWaitQueue, [InWaitQueue, InWaitQueue, IsNext, InWaitQueue, QueuesHere, GoesByReleases]),
            (IsNext, [IsNext, InWaitQueue, IsNext, InWaitQueue, QueuesHere, GoesByReleases]),
            (GoesByReleases, [GoesByReleases; 6]),
            (StandsInQueue, [StandsInQueue; 6]),
            (Spins, [Spins; 6]),
            (ONCE, [ONCE; 6]),
        ];
        for (from, after) in table {
            for (change, to) in changes.iter().zip(after) {
                let mut wait_mode = from;
                change(&mut wait_mode);
                assert_eq!(wait_mode, to, "from {from:?}");
            }
        }
    }

    #[test]
    fn the_store_gets_the_wait_mode() {
        let table = [
            (WaitMode::new(false, false), QueueMode::Waits, true),
            (WaitMode::new(false, true), QueueMode::Waits, true),
            (WaitMode::new(true, true), QueueMode::Barges, true),
            (ONCE, QueueMode::Yields, false),
            (AsksOnce { queue_mode: QueueMode::Barges, keeps_place: true }, QueueMode::Barges, true),
            (MaybeInWaitQueue, QueueMode::InWaitQueue, true),
            (InWaitQueue, QueueMode::InWaitQueue, true),
            (IsNext, QueueMode::IsNext, true),
            (GoesByReleases, QueueMode::Yields, true),
        ];
        for (wait_mode, queue_mode, waits) in table {
            assert_eq!((wait_mode.queue_mode(), wait_mode.waits()), (queue_mode, waits), "{wait_mode:?}");
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

#[cfg(test)]
mod poll_pause_tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_wake_up_cancels_sleeps_but_not_pauses() {
        let now = Moment::from_nanos(1);
        let later = now.plus(Duration::from_millis(20));
        let mut poll_pause = PollPause::default();
        assert_eq!(poll_pause.take(now), None);
        poll_pause.sleep_on(later);
        assert_eq!((poll_pause.take(now), poll_pause.take(now)), (Some(later), None));
        poll_pause.pause(later);
        poll_pause.sleep_on(now);
        assert_eq!((poll_pause.take(now), poll_pause.take(now)), (Some(later), Some(later)));
        assert_eq!((poll_pause.take(later), poll_pause.is_firm), (None, false));
        poll_pause.sleep_on(now);
        assert_eq!(poll_pause.take(now), None, "that time has come");
    }

    #[test]
    fn the_next_polls_time_stays_fixed_until_polls_end() {
        let (first, second) = (Moment::from_nanos(1), Moment::from_nanos(2));
        let mut poll_pause = PollPause::default();
        assert_eq!((poll_pause.poll_by(first), poll_pause.poll_by(second)), (first, first));
        poll_pause.end_polls();
        assert_eq!(poll_pause.poll_by(second), second);
    }
}
