//! Questions about, and changes of, what is counted: semaphores, latches, conditions.

use std::time::Duration;

/// A question or a change. Each change has an owner of its own; under the same owner it is not made again
/// within [`REQUEST_LASTS`](super::REQUEST_LASTS).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Counting {
    /// The count; `None`: never set up.
    Ask,
    /// How many permits with ids are out.
    AskOut,
    /// How many permits there are, out or not; `None`: never set up.
    AskAll,
    /// Sets the count if there is none: 1, else 0. With a lease it ends then.
    SetUp {
        to: u32,
        lease: Option<Duration>,
    },
    /// Adds or subtracts; the new count.
    Add(i64),
    /// Adds if the count was set up: 1, else 0.
    AddIfSetUp(i64),
    /// Sets the number of permits, including those that are out; returns how many are left.
    SetTo(u32),
    /// Acquires all; how many there were.
    Drain,
    /// Counts down; how many are left. No effect at zero.
    CountDown,
    /// Releases a permit by its id, whoever has it: 1, or 0 if it is not out.
    GiveBack([u8; 16]),
    /// Releases permits by their ids, whoever has them: how many, or 0 if not all are out.
    GiveBackAll(Vec<[u8; 16]>),
    /// Sets the lease of a permit from now on: 1, or 0 if it is not out.
    Lease([u8; 16], Duration),
    /// The rest of a permit's lease in milliseconds, -1 without end; `None`: it is not out.
    AskLease([u8; 16]),
    /// 1, or 0 if there is nothing.
    Delete,
    /// Notifies the first waiter for a condition, or all; how many.
    Notify {
        all: bool,
    },
    Enlist,
    /// A change under this claim was answered the first time, and will not be repeated or undone: the store
    /// need not remember it. No answer is read.
    Forget,
}

impl Counting {
    pub(crate) fn only_asks(&self) -> bool {
        use Counting::{Ask, AskAll, AskLease, AskOut};
        matches!(self, Ask | AskOut | AskAll | AskLease(_))
    }

    /// Whether the store remembers this change, so that it is not made twice.
    pub(crate) fn is_remembered(&self) -> bool {
        use Counting::{Add, AddIfSetUp, CountDown, Delete, Drain, SetTo, SetUp};
        matches!(self, SetUp { .. } | Add(_) | AddIfSetUp(_) | SetTo(_) | Drain | CountDown | Delete)
    }
}
