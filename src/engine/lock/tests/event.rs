//! The events of a client in a small world, and the effects that they leave.

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// A thread asks for the lock, and makes one attempt or waits.
    Want {
        thread: usize,
        caches: bool,
        once: bool,
    },
    /// A thread takes its next step: it checks again, falls asleep, leaves, or learns of an outcome.
    GoOn {
        thread: usize,
    },
    /// A sleeping thread was woken, or its time has come.
    Look {
        thread: usize,
    },
    /// The time of a waiter is over.
    GiveUp {
        thread: usize,
    },
    Answer {
        thread: usize,
        number: Number,
        sent: Moment,
        answer: Attempt,
    },
    /// The answer to a re-entry.
    Counted {
        id: Id,
        sent: Moment,
        answer: Said,
    },
    /// A thread ends a level, by `unlock` or by a dropped guard.
    End {
        id: Id,
        dropped: bool,
    },
    /// The request is on the wire.
    Sent {
        effect: Effect,
    },
    /// The request was not sent: the store could not, or the thread panicked.
    NotSent {
        effect: Effect,
    },
    HandoffAnswer {
        from: Id,
        to: usize,
        number: Number,
        waits: bool,
        sent: Moment,
        answer: Said,
    },
    ReleaseAnswer {
        id: Id,
        waits: bool,
        answer: Said,
    },
    RenewAnswer {
        id: Id,
        sent: Moment,
        answer: Said,
    },
    CheckAnswer {
        id: Id,
        answer: Checked,
    },
    /// Another process released the lock, or a message said that this client is next.
    Message,
    /// Something is due, or a recall has come.
    Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Attempt {
    /// `queued`: the clients that stood in the wait queue of the store.
    Granted {
        queued: u32,
    },
    Busy,
    /// The attempt changed nothing, and will not.
    Refused,
    Unknown,
}

/// The store's answer about a number: it held the lock; it did not; the request was refused; no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Said {
    Yes,
    No,
    Refused,
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Checked {
    Unwanted,
    Wanted,
    NotHeld,
    Unknown,
}

/// A step that the driver takes later, without the mutex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Effect {
    Ask {
        thread: usize,
        number: Number,
        caches: bool,
        waits: bool,
    },
    /// A re-entry; the store is to have `count` levels.
    AskCount {
        id: Id,
        count: u32,
    },
    /// `waits`: the releaser waits for the outcome.
    HandOff {
        from: Id,
        to: usize,
        number: Number,
        waits: bool,
    },
    Release {
        id: Id,
        left: u32,
        waits: bool,
    },
    Renew {
        id: Id,
    },
    Check {
        id: Id,
    },
    /// The watchdog undoes what may arrive under the number.
    CleanUp {
        number: Number,
    },
    LeaveWaitQueue {
        thread: usize,
    },
    /// Observers, channels and callbacks learn of a loss.
    Lost {
        id: Id,
    },
}
