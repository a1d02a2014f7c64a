//! The events of the machine, and the effects that its driver carries out.

use crate::engine::tests::machine::state::{Number, Thread, TicketId};
use crate::time::Moment;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    // A thread asks for the lock. `caches`: the hold may be cached until a recall.
    Want { ticket: TicketId, thread: Thread, caches: bool, once: bool },
    // A waiter was woken, or its time has come.
    Look { ticket: TicketId },
    // The answer to an attempt that was sent at `sent`.
    Answer { ticket: TicketId, number: Number, sent: Moment, answer: Attempt },
    // The answer to a request that changes the count of levels.
    Counted { number: Number, sent: Moment, answer: Said },
    // A thread ends a level, by `unlock` or by a dropped guard.
    End { number: Number, dropped: bool },
    // The time of a waiter is over.
    GiveUp { ticket: TicketId },
    // A hand-off of this number, or a release that reports, is on the wire.
    Sent { number: Number },
    // A hand-off or release was not sent: the store could not, or the thread panicked.
    NotSent { number: Number },
    // The request to leave the wait queue of the store is on the wire.
    WaitQueueLeft { ticket: TicketId },
    HandoffAnswer { ticket: TicketId, sent: Moment, answer: Said },
    ReleaseAnswer { number: Number, answer: Said },
    RenewAnswer { number: Number, sent: Moment, answer: Said },
    CheckAnswer { number: Number, answer: Checked },
    // Another process released the lock, or told this client that it is next.
    Message,
    // A moment of [`Machine::next`] has come, or a recall.
    Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Attempt {
    // `queued`: the clients that stood in the wait queue of the store.
    Granted { queued: u32 },
    Busy,
    // The attempt changed nothing, and will not.
    Refused,
    Unknown,
}

/// The store's answer about a number: it held the lock, it did not, nothing changed, or nothing came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Said {
    Yes,
    No,
    Refused,
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Checked {
    Unwanted,
    Wanted,
    NotHeld,
    Unknown,
}

/// A step that the driver takes for the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    // Before the mutex is released: no thread uses the number for another hold from now on.
    Retire { number: Number },
    // All that follow: after the mutex is released, in their order.
    Ask { ticket: TicketId, number: Number, caches: bool },
    // A re-entry; `count` levels are to be in the store.
    AskCount { number: Number, count: u32 },
    HandOff { from: Number, to: Number, ticket: TicketId },
    // `waits`: the caller waits for the answer. `reports`: the driver reports `Sent`.
    Release { number: Number, left: u32, waits: bool, reports: bool },
    Renew { number: Number },
    Check { number: Number },
    // The watchdog undoes what may arrive under the number.
    CleanUp { number: Number },
    LeaveWaitQueue { ticket: TicketId },
    Wake { ticket: TicketId },
    // Another thread's `unlock` has its outcome.
    Settled { thread: Thread },
    // Observers, channels and callbacks learn of a loss.
    Lost { number: Number },
    // The next step of the calling thread.
    Reply(Reply),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    // The thread has the lock, or one more level of it, under this number.
    Entered(Number),
    // An answer follows.
    Asked,
    Sleep(Moment),
    // The thread reads the answer of the hand-off to it.
    Receive,
    // The level has ended.
    Ended,
    // The level ends with the answer of a release or a hand-off.
    Ending,
    // The level was lost.
    Lost,
    // The call did not get the lock, or no further level.
    Left,
}
