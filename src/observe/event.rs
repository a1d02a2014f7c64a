//! The events that observers receive, and the loss of a hold.

use std::time::Duration;

use crate::deadlock::Deadlock;
use crate::error::Error;
use crate::ident::Owner;

/// Something that happened to a client's locks.
///
/// `name` is the name that the program gave. `kind` is `"lock"`, `"fenced"`, `"fair"`, `"read"`, `"write"`,
/// `"token"`, `"semaphore"`, `"permits"`, `"latch"` or `"condition"`. More events and fields may come: match
/// with `..` and a last arm for the rest.
///
/// # Examples
/// ```
/// use leasehold::{Event, Observer};
///
/// struct Waits(std::sync::mpsc::Sender<String>);
///
/// impl Observer for Waits {
///     fn event(&self, event: &Event<'_>) {
///         if let Event::GaveUp { name, kind, .. } = event {
///             self.0.send(format!("{kind} {name}")).ok();
///         }
///     }
/// }
/// # leasehold::LockClient::builder().observer(Waits(std::sync::mpsc::channel().0));
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A call begins its first sleep while it waits for a lock. `Acquired` or `GaveUp` follows.
    #[non_exhaustive]
    Waiting {
        /// The lock.
        name: &'a str,
        /// The lock's kind.
        kind: &'static str,
    },
    /// A lock was acquired; a re-entry is not reported.
    #[non_exhaustive]
    Acquired {
        /// The lock.
        name: &'a str,
        /// The lock's kind.
        kind: &'static str,
        /// The new holder.
        owner: Owner,
        /// How long the call took.
        waited: Duration,
        /// The number of attempts (requests for the lock) that the call sent to the store.
        attempts: u32,
    },
    /// The lock just acquired came from a thread that released it to this waiter, in this process or another.
    #[non_exhaustive]
    HandedOff {
        /// The lock.
        name: &'a str,
        /// The lock's kind.
        kind: &'static str,
        /// The new holder.
        owner: Owner,
        /// Whether a thread of this client released the lock.
        is_local: bool,
        /// How long the grant took after the release request of this client's thread (`is_local`), or after
        /// the arrival of the other client's message.
        took: Duration,
    },
    /// A call ended without the lock.
    #[non_exhaustive]
    GaveUp {
        /// The lock.
        name: &'a str,
        /// The lock's kind.
        kind: &'static str,
        /// How long the call took.
        waited: Duration,
        /// The number of attempts (requests for the lock) that the call sent to the store.
        attempts: u32,
        /// Why the call gave up.
        reason: GaveUpReason<'a>,
    },
    /// The store confirmed a renewal request, which renews up to some hundred holds.
    #[non_exhaustive]
    Renewed {
        /// The number of renewed holds.
        holds: u64,
        /// How long the request took.
        took: Duration,
        /// How late the request was for its most overdue hold: zero while renewals are in time.
        lag: Duration,
    },
    /// A request to acquire, release or renew holds has ended. Other requests are not reported.
    #[non_exhaustive]
    Request {
        /// `"acquire"`, `"release"`, `"renew"` or `"hand_off"`: a release that makes another thread of this
        /// client the owner.
        op: &'static str,
        /// The time from sending the request until its answer was read, or the client stopped waiting.
        took: Duration,
        /// The failure, if any. If its [`outcome_unknown`](Error::outcome_unknown) is true, the request may
        /// have been carried out.
        error: Option<&'a Error>,
    },
    /// A hold's renewal failed; the client repeats it. Reported at once, then at growing intervals.
    #[non_exhaustive]
    RenewalFailed {
        /// The lock.
        name: &'a str,
        /// The lock's kind.
        kind: &'static str,
        /// The holder.
        owner: Owner,
        /// The error of the renewal.
        error: &'a Error,
        /// How long the hold still counts as held.
        remaining: Duration,
    },
    /// A lock was released, with all its re-entries.
    #[non_exhaustive]
    Released {
        /// The lock.
        name: &'a str,
        /// The lock's kind.
        kind: &'static str,
        /// The owner that held the lock.
        owner: Owner,
        /// How long the lock was held.
        held: Duration,
    },
    /// A release failed without a caller to report to: the release of a dropped guard, or of
    /// [`with_lock`](crate::AcquireOptions::with_lock), which returns its work's result. The client repeats
    /// the release until it is answered or the lease is over.
    #[non_exhaustive]
    ReleaseFailed {
        /// The lock; possibly empty if a dropped client released several locks in one request.
        name: &'a str,
        /// The error of the release.
        error: &'a Error,
    },
    /// A hold was lost.
    #[non_exhaustive]
    Lost {
        /// The loss.
        loss: &'a Loss,
        /// The kind of the lock.
        kind: &'static str,
        /// The time from the grant to the loss.
        held: Duration,
        /// How long the hold's renewal had been due at the loss; zero if no renewal was due.
        overdue: Duration,
        /// Whether the thread that held the lock had ended without a release.
        is_abandoned: bool,
    },
    /// A thread ended without releasing its lock; the hold ends with its lease.
    #[non_exhaustive]
    Abandoned {
        /// The lock.
        name: &'a str,
        /// The lock's kind.
        kind: &'static str,
        /// The holder.
        owner: Owner,
    },
    /// A failed acquire may have been carried out. The client undoes it; the call tries again if it has time.
    #[non_exhaustive]
    UnknownOutcome {
        /// The lock.
        name: &'a str,
        /// The lock's kind.
        kind: &'static str,
        /// The error of the acquire.
        error: &'a Error,
    },
    /// Threads wait for each other in a cycle; at least one is this client's. Reported once, and not again
    /// before `DeadlockOver`.
    #[non_exhaustive]
    Deadlock {
        /// The cycle.
        deadlock: &'a Deadlock,
    },
    /// A reported deadlock is over: one of its waits or holds has ended.
    #[non_exhaustive]
    DeadlockOver {
        /// The cycle, as it was reported.
        deadlock: &'a Deadlock,
        /// How long the deadlock was known.
        lasted: Duration,
    },
    /// The store's notifications of releases do not arrive; until they do, waiters only poll.
    #[non_exhaustive]
    WakeupsDown {
        /// The error that ended the notifications.
        error: &'a Error,
    },
    /// The store's notifications of releases arrive again.
    WakeupsUp,
    /// A server whose replicas are to acknowledge each grant has no replica that is connected and up to date:
    /// from now on grants count without acknowledgement. Reported once, until a replica is back.
    #[non_exhaustive]
    NoReplica {
        /// The server, or the Sentinels that name it.
        server: &'a str,
    },
    /// A server of [`NoReplica`](Event::NoReplica) has a replica again, which each grant waits for.
    #[non_exhaustive]
    ReplicaBack {
        /// The server, or the Sentinels that name it.
        server: &'a str,
    },
    /// Callbacks are slow, so reports wait for their thread; reports of renewals and releases are dropped
    /// from now on. A new thread reports this event, since the callback thread is busy.
    CallbacksDelayed,
    /// Callbacks keep up again: no report is dropped any more.
    #[non_exhaustive]
    CallbacksCaughtUp {
        /// The number of reports dropped while callbacks were slow.
        dropped: u64,
    },
    /// A setting of the servers, or the program's use of its clients, weakens a promise. No call fails.
    #[non_exhaustive]
    Warning {
        /// The finding, in words.
        text: &'a str,
    },
}

/// Why a call ended without the lock.
///
/// # Examples
/// ```
/// use leasehold::{Event, GaveUpReason};
///
/// let failures = |event: &Event<'_>| {
///     if let Event::GaveUp { name, reason: GaveUpReason::Failed(error), .. } = event {
///         eprintln!("{name} could not be taken: {error}");
///     }
/// };
/// # leasehold::LockClient::builder().observer(failures);
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum GaveUpReason<'a> {
    /// The lock was busy, and the call was not to wait.
    Busy,
    /// The lock stayed busy until the call's time was over.
    TimedOut,
    /// The wait was interrupted.
    Interrupted,
    /// This error ended the call.
    Failed(&'a Error),
}

#[cfg(any(feature = "tracing", feature = "metrics"))]
impl GaveUpReason<'_> {
    pub(crate) fn label(&self) -> &'static str {
        match self {
            GaveUpReason::Busy => "busy",
            GaveUpReason::TimedOut => "timeout",
            GaveUpReason::Interrupted => "interrupted",
            GaveUpReason::Failed(_) => "error",
        }
    }
}

/// A hold that ended without being released.
///
/// # Examples
/// ```
/// let client = leasehold::LockClient::in_memory();
/// let guard = client.get_lock("stock:42").acquire()?;
/// client.shutdown()?; // takes the lock from the guard
/// let loss = guard.lost().recv().unwrap();
/// assert_eq!((loss.name.as_str(), loss.owner), ("stock:42", guard.owner()));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The lock.
    pub name: String,
    /// The holder.
    pub owner: Owner,
    /// Why the hold was lost.
    pub reason: LossReason,
}

/// Why a hold is lost.
///
/// # Examples
/// ```
/// use leasehold::LossReason;
///
/// # let client = leasehold::LockClient::in_memory();
/// client.get_lock("stock:42").acquire()?.on_lost(|loss| match loss.reason {
///     LossReason::Expired => eprintln!("nothing renewed it in time: was this process stopped?"),
///     other => eprintln!("{other:?}"),
/// });
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease ran out without a confirmed renewal.
    Expired,
    /// The server answered that this owner does not hold the lock.
    Gone,
    /// The client was shut down.
    ShutDown,
    /// [`max_hold`](crate::LockBuilder::max_hold) ended the hold.
    HeldTooLong,
}

impl LossReason {
    /// How the hold ended, as spans and metrics name it. `is_abandoned`: the hold's thread had ended.
    pub(crate) fn end(self, is_abandoned: bool) -> &'static str {
        match self {
            LossReason::Expired if is_abandoned => "abandoned",
            LossReason::Expired | LossReason::Gone => "lost",
            LossReason::ShutDown => "shut_down",
            LossReason::HeldTooLong => "max_hold",
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            LossReason::Expired => "its lease ran out",
            LossReason::Gone => "the server says that this owner does not hold the lock",
            LossReason::ShutDown => "the client was shut down",
            LossReason::HeldTooLong => "the lock was held for as long as max_hold allows",
        }
    }
}
