//! Questions to, and changes of, what is counted: semaphores, latches, conditions.

use std::time::Duration;

/// A question to, or a change of, something that is counted. Each change is made under an owner of its own;
/// asked for again under the same one, within [`REQUEST_LASTS`](super::REQUEST_LASTS), it is not made again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Counting {
    /// How many there are; `None` where nobody has set any up.
    Ask,
    /// How many permits with ids are out.
    AskOut,
    /// How many permits there are, out or not; `None` where nobody has set any up.
    AskAll,
    /// Sets the count up, if nobody has: 1, else 0. With a lease it ends then.
    SetUp { to: u32, lease: Option<Duration> },
    /// Adds, or takes away; the new count.
    Add(i64),
    /// Adds where somebody has set the count up: 1, else 0.
    AddIfSetUp(i64),
    /// Sets the number of permits, those that are out included; returns how many are left.
    SetTo(u32),
    /// Acquires all; how many there were.
    Drain,
    /// One down; how many are left. Nothing happens where none are.
    CountDown,
    /// Releases a permit by its id, whoever has it: 1, or 0 if it is not out.
    GiveBack([u8; 16]),
    /// Releases permits by their ids, whoever has them: how many, or 0 if not all are out.
    GiveBackAll(Vec<[u8; 16]>),
    /// Sets the time for which a permit's lease runs from now on: 1, or 0 if it is not out.
    Lease([u8; 16], Duration),
    /// The milliseconds for which a permit's lease still runs, -1 for one without end; `None` if it is not
    /// out.
    AskLease([u8; 16]),
    /// Removes it altogether: 1, or 0 if there is nothing.
    Delete,
    /// Notifies the first of those who wait for a condition, or all; how many.
    Notify { all: bool },
    /// Joins those who wait for a condition.
    Enlist,
    /// A change under this claim, or what it took, was answered the first time that it was sent, and will not
    /// be asked for again, nor undone: nothing of it need be remembered. Nobody waits for it, so no answer is
    /// read.
    Forget,
}

impl Counting {
    /// Whether nothing is changed.
    pub(crate) fn only_asks(&self) -> bool {
        use Counting::{Ask, AskAll, AskLease, AskOut};
        matches!(self, Ask | AskOut | AskAll | AskLease(_))
    }

    /// Whether it is remembered under its claim that it was made, so that it is not made again.
    pub(crate) fn is_remembered(&self) -> bool {
        use Counting::{Add, AddIfSetUp, CountDown, Delete, Drain, SetTo, SetUp};
        matches!(self, SetUp { .. } | Add(_) | AddIfSetUp(_) | SetTo(_) | Drain | CountDown | Delete)
    }
}
