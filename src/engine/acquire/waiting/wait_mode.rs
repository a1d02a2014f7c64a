//! How a waiter waits, and by that how it goes by the store's wait queue.

use crate::seam::QueueMode;

/// How a waiter waits. Changed by the `become_` methods here, and by nothing else.
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
/// Of the wait queue are `QueuesHere`, `MaybeInWaitQueue`, `InWaitQueue` and `IsNext`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitMode {
    /// Makes one attempt by this turn; `keeps_place`: it has one in the store's queue, under its number.
    AsksOnce {
        queue_mode: QueueMode,
        keeps_place: bool,
    },
    /// Sleeps for its back-off between attempts, and listens to nothing.
    Spins,
    /// Stands in the store's queue, which grants in its own order.
    StandsInQueue,
    /// Queues in this process. The store has no wait queue, or its client is not in it.
    QueuesHere,
    MaybeInWaitQueue,
    InWaitQueue,
    IsNext,
    /// The waiter may not listen for its turn: it joins no wait queue, and wakes with each release and by
    /// polls.
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

    /// Whether it goes by the wait queue: an attempt without an answer may have its client join it.
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

    /// To be called before an attempt: whether this client was notified since the last one that it is next.
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

#[cfg(test)]
mod tests {
    use super::*;
    use WaitMode::{
        AsksOnce, GoesByReleases, InWaitQueue, IsNext, MaybeInWaitQueue, QueuesHere, Spins, StandsInQueue,
    };

    type Change = fn(&mut WaitMode);

    const ONCE: WaitMode = AsksOnce { queue_mode: QueueMode::Yields, keeps_place: false };

    /// Of each wait mode what it is after each change, in this order: in doubt, standing, told, not told,
    /// granted, deaf.
    #[test]
    fn each_change_leads_to_one_wait_mode() {
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
