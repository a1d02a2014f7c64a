//! The seam between the locks and the stores that keep them.
//!
//! A store makes single attempts and answers what came of each. Policy (waiting, queueing, reentrancy, renewal, loss,
//! guards) lives above and is the same for all stores.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ident::{Fence, LockName, Owner};
use crate::lock::topic::Listening;
use crate::sync::channel::Sender;
use crate::time::Moment;

/// The kinds of lock a store may be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Reentrant, Redisson's `RLock`.
    Mutex,
    /// The same lock, each new grant with a fence: Redisson's `RFencedLock`.
    Fenced,
    /// One string key with a token; not reentrant.
    Token,
}

impl Kind {
    /// Whether it is the lock by token. The other kinds of one name are one lock: a thread that holds one holds the
    /// other.
    pub(crate) fn is_token(self) -> bool {
        self == Kind::Token
    }
}

/// Who wants or has which lock, and for how long at a time.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) kind: Kind,
    pub(crate) name: Arc<LockName>,
    pub(crate) owner: Owner,
    /// Whole milliseconds, at least one.
    pub(crate) lease: Duration,
}

/// How a request ended.
#[derive(Debug)]
pub(crate) enum Answer<T> {
    /// Carried out, with this result.
    Done(T),
    /// Not carried out: nothing changed, and nothing will.
    Refused(Error),
    /// It may have been carried out, or still may be. The error says so by `outcome_unknown()`.
    Unknown(Error),
}

/// What came of asking for a lock once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The claim's owner holds it with the count asked for, for at least the claim's lease from now on.
    Granted {
        /// A new fence, where one was asked for.
        fence: Option<Fence>,
    },
    /// Another owner holds it.
    Busy {
        /// How long the holder's lease still runs; `None` if it has no end.
        retry_after: Option<Duration>,
    },
    /// A count above one was asked for, but the owner holds nothing (any more). Nothing changed.
    Lost,
}

/// What came of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Release {
    /// The owner held it and now holds nothing; waiters were told.
    Freed {
        /// How many clients other than this one were among them, as far as the store tells.
        others: u32,
    },
    /// The owner holds it with the count that was to be left.
    StillHeld,
    /// The owner did not hold it; nothing changed.
    NotHeld {
        /// Who does, where the store can tell; `None` if it is free.
        by: Option<String>,
    },
}

/// What came of handing a lock over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HandOver {
    /// The new owner holds it with count one, for its claim's lease; the old one holds nothing. No waiter was told.
    Granted {
        /// A new fence, where one was asked for.
        fence: Option<Fence>,
    },
    /// The old owner did not hold it; nothing changed.
    Lost,
}

/// A request that was sent and whose answer is still to be read, by whoever waits for it.
pub(crate) trait Pending: Send {
    /// Reads the answer; not beyond the time that the request was given.
    fn wait(self: Box<Self>) -> Answer<HandOver>;
}

/// What is done with the answer of a release that nobody waits for.
pub(crate) type Sink = Box<dyn FnOnce(Answer<Release>) + Send>;

/// What the store shows of a lock that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// A holder as the store writes it; empty if the store would not say.
    pub(crate) holder: String,
    /// The hold count of the owner that was asked about; zero if it is not a holder.
    pub(crate) count: u32,
    /// What remains of the lease; `None` if it has no end.
    pub(crate) remaining: Option<Duration>,
}

/// Single attempts. Never waits for another owner, never re-sends what may have been carried out, never starts threads
/// for a request. `by` bounds the I/O of one call: past it the answer is `Unknown` or `Refused`.
///
/// Requests say what the state shall be, not how to change it, so within one hold repeating one changes nothing.
pub(crate) trait Store: Send + Sync {
    /// Whether a lock of this name can be kept here. No I/O.
    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()>;

    /// Asks once for the lock with hold count `count`.
    ///
    /// `count == 1`: granted if the lock is free, or if the owner is its holder (adopting what an earlier attempt of
    /// unknown outcome left). `count > 1`: granted if the owner is its holder, else `Lost`. A lease that already
    /// runs longer is not shortened. With `wants_fence` a grant carries a new fence.
    fn attempt(&self, claim: &Claim, count: u32, wants_fence: bool, by: Moment) -> Answer<Attempt>;

    /// Leaves `left` holds to the owner; zero frees the lock and tells waiters. Never changes how long it runs.
    fn release(&self, claim: &Claim, left: u32, by: Moment) -> Answer<Release>;

    /// As [`release`](Self::release) with nothing left, but may return before the answer is there. `done` then gets it
    /// from whatever thread reads it, before any later request on the same lock of this client's is answered.
    fn release_later(&self, claim: &Claim, by: Moment, done: Sink) {
        done(self.release(claim, 0, by));
    }

    /// Has `to` hold the lock with count one in place of `from`, in one step; the request is on its way on return.
    /// Waiters are not told. `None`: this cannot be done here.
    fn hand_over(&self, from: &Claim, to: &Claim, wants_fence: bool, by: Moment) -> Option<Box<dyn Pending>> {
        let _ = (from, to, wants_fence, by);
        None
    }

    /// Reads answers that nobody has come for; returns whether some are still to come.
    fn tend(&self) -> bool {
        false
    }

    /// For each claim, has it run for at least its lease from now on; `false`: its owner does not hold it.
    /// One answer per claim, in order. A claim that fails does not fail its neighbours.
    fn renew(&self, claims: &[Claim], by: Moment) -> Vec<Answer<bool>>;

    /// For each claim, has its owner hold nothing: undoes attempts and repeats releases of unknown outcome. Goes out
    /// like renewals, one answer per claim, in order.
    fn abandon(&self, claims: &[Claim], by: Moment) -> Vec<Answer<Release>>;

    /// What is known of a lock; `None` if it is free.
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>>;

    /// Frees a lock whoever holds it and tells waiters; `false` if it was free.
    fn force(&self, kind: Kind, name: &LockName, by: Moment) -> Answer<bool>;

    /// How long a waiter may sleep without being woken: at least, at most (each wait takes a random time between).
    fn poll_every(&self, kind: Kind) -> (Duration, Duration);

    /// Has `waker` woken at each message about the lock, as long as the result lives; `None` if the store sends none.
    /// Does not wait for the store.
    fn listen(&self, kind: Kind, name: &LockName, waker: &Sender<()>) -> Option<Listening>;

    /// How many messages about the lock have been counted, if a confirmed subscription to them stands already.
    fn heard(&self, kind: Kind, name: &LockName) -> Option<u64>;

    /// Ends connections and threads. Later calls are refused.
    fn close(&self);
}

impl<T> Answer<T> {
    /// For questions that change nothing: an unknown outcome is just a failure.
    pub(crate) fn into_result(self) -> Result<T> {
        match self {
            Answer::Done(value) => Ok(value),
            Answer::Refused(error) | Answer::Unknown(error) => Err(error),
        }
    }
}
