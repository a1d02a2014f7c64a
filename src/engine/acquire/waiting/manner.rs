//! How a waiter waits, and by that how it goes by the store's line of waiting clients.

use crate::seam::Turn;

/// How a waiter waits. Changed by the `become_` methods here, and by nothing else.
///
/// | from                             | to                | by                                                        |
/// |----------------------------------|-------------------|-----------------------------------------------------------|
/// | `QueuesHere`                     | `MayStandInLine`  | a thread before it, or an attempt without an answer       |
/// | all of the line                  | `StandsInLine`    | an answer                                                 |
/// | all of the line                  | `IsNext`          | a message; it lasts for one attempt                       |
/// | `IsNext`                         | `StandsInLine`    | the next attempt without such a message                   |
/// | all of the line                  | `QueuesHere`      | a grant, which took its client out of the line            |
/// | all of the line                  | `GoesByReleases`  | the server, which refused its subscription; for good      |
/// | any                              | `AsksOnce`        | a caller that does not wait (any more)                    |
///
/// Of the line are `QueuesHere`, `MayStandInLine`, `StandsInLine` and `IsNext`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Makes one attempt by this turn; `keeps_place`: it has one in the store's queue, under its number.
    AsksOnce { turn: Turn, keeps_place: bool },
    /// Sleeps for its back-off between attempts, and listens to nothing.
    Spins,
    /// Stands in the store's queue, which grants in its own order.
    StandsInQueue,
    /// Queues in this process. The store has no line, or its client is not in it.
    QueuesHere,
    /// The same, but its client may be in the line.
    MayStandInLine,
    /// Its client stands in the store's line.
    StandsInLine,
    /// Its client was told that it is next.
    IsNext,
    /// It may not listen for its turn: it wakes with each release, and by polls, and joins no line.
    GoesByReleases,
}

impl Manner {
    pub(super) fn new(spins: bool, store_queues: bool) -> Manner {
        match (spins, store_queues) {
            (true, _) => Manner::Spins,
            (false, true) => Manner::StandsInQueue,
            (false, false) => Manner::QueuesHere,
        }
    }

    /// Whether it goes by the line: an attempt without an answer may have its client join it.
    pub(super) fn is_of_line(self) -> bool {
        use Manner::{IsNext, MayStandInLine, QueuesHere, StandsInLine};
        matches!(self, QueuesHere | MayStandInLine | StandsInLine | IsNext)
    }

    fn change(&mut self, changes: bool, to: Manner) {
        if changes {
            *self = to;
        }
    }

    pub(super) fn become_once(&mut self, turn: Turn, keeps_place: bool) {
        *self = Manner::AsksOnce { turn, keeps_place };
    }

    pub(super) fn become_in_doubt(&mut self) {
        self.change(*self == Manner::QueuesHere, Manner::MayStandInLine);
    }

    pub(super) fn become_standing(&mut self) {
        self.change(self.is_of_line(), Manner::StandsInLine);
    }

    /// Before an attempt: whether its client was told since the last that it is next.
    pub(super) fn become_next(&mut self, is_told: bool) {
        self.change(is_told && self.is_of_line(), Manner::IsNext);
        self.change(!is_told && *self == Manner::IsNext, Manner::StandsInLine);
    }

    pub(super) fn become_granted(&mut self) {
        self.change(self.is_of_line(), Manner::QueuesHere);
    }

    pub(super) fn become_deaf(&mut self) {
        self.change(self.is_of_line(), Manner::GoesByReleases);
    }

    pub(super) fn turn(self) -> Turn {
        match self {
            Manner::AsksOnce { turn, .. } => turn,
            Manner::Spins => Turn::Barges,
            Manner::StandsInQueue | Manner::QueuesHere => Turn::Waits,
            Manner::MayStandInLine | Manner::StandsInLine => Turn::StandsInLine,
            Manner::IsNext => Turn::IsNext,
            Manner::GoesByReleases => Turn::Yields,
        }
    }

    /// Whether a store that queues is to give the caller a place.
    pub(super) fn waits(self) -> bool {
        !matches!(self, Manner::AsksOnce { keeps_place: false, .. })
    }

    pub(super) fn stands(self) -> bool {
        matches!(self, Manner::StandsInLine | Manner::IsNext)
    }

    /// Whether its client may be in the line by what this waiter knows.
    pub(super) fn may_stand(self) -> bool {
        self == Manner::MayStandInLine || self.stands()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Manner::{
        AsksOnce, GoesByReleases, IsNext, MayStandInLine, QueuesHere, Spins, StandsInLine, StandsInQueue,
    };

    type Change = fn(&mut Manner);

    const ONCE: Manner = AsksOnce { turn: Turn::Yields, keeps_place: false };

    /// Of each manner what it is after each change, in this order: in doubt, standing, told, not told,
    /// granted, deaf.
    #[test]
    fn each_change_leads_to_one_manner() {
        let changes: [Change; 6] = [
            Manner::become_in_doubt,
            Manner::become_standing,
            |manner| manner.become_next(true),
            |manner| manner.become_next(false),
            Manner::become_granted,
            Manner::become_deaf,
        ];
        let table = [
            (QueuesHere, [MayStandInLine, StandsInLine, IsNext, QueuesHere, QueuesHere, GoesByReleases]),
            (
                MayStandInLine,
                [MayStandInLine, StandsInLine, IsNext, MayStandInLine, QueuesHere, GoesByReleases],
            ),
            (StandsInLine, [StandsInLine, StandsInLine, IsNext, StandsInLine, QueuesHere, GoesByReleases]),
            (IsNext, [IsNext, StandsInLine, IsNext, StandsInLine, QueuesHere, GoesByReleases]),
            (GoesByReleases, [GoesByReleases; 6]),
            (StandsInQueue, [StandsInQueue; 6]),
            (Spins, [Spins; 6]),
            (ONCE, [ONCE; 6]),
        ];
        for (from, after) in table {
            for (change, to) in changes.iter().zip(after) {
                let mut manner = from;
                change(&mut manner);
                assert_eq!(manner, to, "from {from:?}");
            }
        }
    }

    #[test]
    fn the_store_is_told_how_it_waits() {
        let table = [
            (Manner::new(false, false), Turn::Waits, true),
            (Manner::new(false, true), Turn::Waits, true),
            (Manner::new(true, true), Turn::Barges, true),
            (ONCE, Turn::Yields, false),
            (AsksOnce { turn: Turn::Barges, keeps_place: true }, Turn::Barges, true),
            (MayStandInLine, Turn::StandsInLine, true),
            (StandsInLine, Turn::StandsInLine, true),
            (IsNext, Turn::IsNext, true),
            (GoesByReleases, Turn::Yields, true),
        ];
        for (manner, turn, waits) in table {
            assert_eq!((manner.turn(), manner.waits()), (turn, waits), "{manner:?}");
        }
    }
}
