//! The state of a lock in one process, and the facts that decide on it.

use std::time::Duration;

use crate::time::Moment;

/// A thread, by the number of its mark.
pub(crate) type Thread = u64;
/// A wait for the lock. A thread can have several at once, by an observer that takes locks.
pub(crate) type TicketId = u64;
/// The number by which the store knows an owner. No retired number is used for another hold.
pub(crate) type Number = u64;

/// The times and limits of a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) lease: Duration,
    pub(crate) renew_after: Duration,
    /// A waiter asks the store without a reason this long after its last attempt.
    pub(crate) poll: Duration,
    /// The pause of a waiter after a failed attempt.
    pub(crate) pause: Duration,
    /// The time slice of a client that got the lock out of the wait queue of the store.
    pub(crate) slice: Duration,
    /// An unused hold is released so long after its use: cached for a time slice, and cached until a recall.
    pub(crate) unused: [Duration; 2],
    pub(crate) check_after: Duration,
    /// The most hand-offs before other processes get the lock.
    pub(crate) local_handoffs: u32,
    /// Every waiter asks the store, which queues waiters itself. Otherwise the first one asks for all.
    pub(crate) all_ask: bool,
}

/// The facts that the driver reads under the mutex, for each event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) now: Moment,
    /// The present owner number of the calling thread.
    pub(crate) number: Number,
    /// The recalls received so far; `None` while none would be received.
    pub(crate) recalls: Option<u64>,
    /// The calling thread is likely to reacquire the lock at once.
    pub(crate) reacquires: bool,
}

/// One grant in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    pub(super) thread: Thread,
    pub(super) number: Number,
    pub(super) levels: u32,
    pub(super) until: Moment,
    pub(super) renew_at: Moment,
    pub(super) is_renewing: bool,
    /// A request under the number ended without an answer, and may still arrive.
    pub(super) is_in_doubt: bool,
    /// The call asked to cache the hold.
    pub(super) caches: bool,
    /// The number of recalls at the grant, as long as no other client wants the lock.
    pub(super) unrecalled: Option<u64>,
    pub(super) check_at: Moment,
}

/// The one hold of this process, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Slot {
    Free,
    Held(Hold),
    Cached { hold: Hold, why: CachedFor, since: Moment },
    // `number` is the waiter's. The waiter reads the answer once the request is `sent`.
    HandingOff { from: Hold, to: TicketId, number: Number, waits: bool, sent: bool },
    // If the releaser `waits`, the slot stays so until the answer; otherwise until the request is sent.
    Returning { hold: Hold, waits: bool },
}

/// The first reason for which a waiter is to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Word {
    /// Something changed in this process.
    Here,
    /// Another process released the lock.
    Message,
}

/// A waiting thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    pub(super) id: TicketId,
    pub(super) thread: Thread,
    /// The number under which the waiter can be handed the lock.
    pub(super) number: Number,
    pub(super) caches: bool,
    /// The call makes one attempt.
    pub(super) once: bool,
    /// The wait has ended. The ticket stays until the client has left the wait queue of the store.
    pub(super) leaving: bool,
    /// The number of an attempt without an answer yet.
    pub(super) asks: Option<Number>,
    /// The recalls before that attempt, if the hold is to be cached.
    pub(super) recalls: Option<u64>,
    pub(super) is_asleep: bool,
    pub(super) word: Option<Word>,
    pub(super) poll_at: Moment,
}

/// A request to check whether other clients want a cached hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Check {
    None,
    Sent,
    /// The checked hold has ended.
    Stale,
}

/// One lock in one process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Machine {
    pub(super) slot: Slot,
    /// The waiters in order of arrival.
    pub(super) queue: Vec<Ticket>,
    /// Hand-offs since the last release in the store.
    pub(super) handed_off: u32,
    pub(super) slice: Option<Slice>,
    pub(super) check: Check,
    /// Releases that block nothing here, and the thread that waits for the answer.
    pub(super) settling: Vec<(Number, Option<Thread>)>,
    /// Numbers of this lock under which a request may still arrive.
    pub(super) retired: Vec<Number>,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine {
            slot: Slot::Free,
            queue: Vec::new(),
            handed_off: 0,
            slice: None,
            check: Check::None,
            settling: Vec::new(),
            retired: Vec::new(),
        }
    }
}

/// The reason for which a hold stays without a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CachedFor {
    /// The time slice of this client, which other clients wait out.
    TimeSlice,
    /// No other client wants the lock.
    UntilRecall,
}

/// The time slice of this client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Slice {
    /// The present thread's part begins here.
    pub(super) began: Moment,
    pub(super) ends: Moment,
}

impl Slice {
    /// The end of one of `parts` equal parts of what is left.
    pub(super) fn part_ends(&self, parts: u32) -> Moment {
        self.began.plus(self.ends.since(self.began) / parts.max(1))
    }
}
