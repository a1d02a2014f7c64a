//! The events of which an observer is notified.

use std::time::Duration;

use crate::deadlock::Deadlock;
use crate::error::Error;
use crate::ident::Owner;
use crate::observe::loss::Loss;

/// Something that happened to a client's locks.
///
/// `name` is the name that the program gave. `kind` is `"lock"`, `"fenced"`, `"fair"`, `"read"`, `"write"`,
/// `"token"`, `"semaphore"`, `"permits"`, `"latch"` or `"condition"`. More events and fields may come: match
/// with `..` and a last arm for the rest.
///
/// # Examples
/// ```
/// use leasehold::{Event, LockClient, MemoryStore, Observer};
/// use std::sync::mpsc::{Sender, channel};
///
/// struct Waits(Sender<String>);
///
/// impl Observer for Waits {
///     fn event(&self, event: &Event<'_>) {
///         if let Event::GaveUp { name, kind, .. } = event {
///             self.0.send(format!("{kind} {name}")).ok();
///         }
///     }
/// }
///
/// let (sender, given_up) = channel();
/// let store = MemoryStore::new();
/// let held = LockClient::builder().build_in_memory(&store)?.get_lock("import").acquire()?;
/// let client = LockClient::builder().observer(Waits(sender)).build_in_memory(&store)?;
/// assert!(!client.get_lock("import").try_lock()?);
/// assert_eq!(given_up.recv().unwrap(), "lock import");
/// # drop(held);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A call begins to sleep for a lock; once a call. `Acquired` or `GaveUp` follows.
    #[non_exhaustive]
    Waiting {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
    },
    /// A lock was acquired. Not for a re-entry.
    #[non_exhaustive]
    Acquired {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
        /// The new holder.
        owner: Owner,
        /// The time that the call waited.
        waited: Duration,
        /// The number of requests that it sent to the store.
        attempts: u32,
    },
    /// The lock that was just acquired came from a thread that released it, by a message of the store or
    /// within the process.
    #[non_exhaustive]
    HandedOff {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
        /// The new holder.
        owner: Owner,
        /// Whether a thread of this client released it.
        is_local: bool,
        /// The time to the grant: from the release request, or from the message of another process.
        took: Duration,
    },
    /// A call ended without the lock.
    #[non_exhaustive]
    GaveUp {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
        /// The time that the call waited.
        waited: Duration,
        /// The number of requests that it sent to the store.
        attempts: u32,
        /// The reason.
        reason: GaveUpReason<'a>,
    },
    /// The store confirmed renewals: one event a request, with up to some hundred holds.
    #[non_exhaustive]
    Renewed {
        /// The number of renewed holds.
        holds: u64,
        /// The time of the request.
        took: Duration,
        /// How late the request was for the hold that was due last: zero while the watchdog keeps up.
        lag: Duration,
    },
    /// A request that changes something in the store ended.
    #[non_exhaustive]
    Request {
        /// `"acquire"`, `"release"`, `"renew"` or `"hand_off"`: a release that makes another thread of this
        /// client the owner.
        op: &'static str,
        /// From sending the request until its answer was read, or no longer awaited.
        took: Duration,
        /// Why there was no good answer. With an unknown outcome, the request may have been carried out.
        error: Option<&'a Error>,
    },
    /// A renewal failed, and is repeated. Reported for each hold at its first failure, and then less and less
    /// often.
    #[non_exhaustive]
    RenewalFailed {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
        /// The holder.
        owner: Owner,
        /// The reason.
        error: &'a Error,
        /// How long the hold is still certain.
        remaining: Duration,
    },
    /// A lock was fully released.
    #[non_exhaustive]
    Released {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
        /// The holder until then.
        owner: Owner,
        /// How long it was held.
        held: Duration,
    },
    /// A release failed that no caller hears of: a dropped guard's, or that of
    /// [`with_lock`](crate::AcquireOptions::with_lock), which returns the result of its work. The client
    /// repeats the release until it is answered or the lease is over.
    #[non_exhaustive]
    ReleaseFailed {
        /// The lock; empty for those of a client that ended.
        name: &'a str,
        /// The reason.
        error: &'a Error,
    },
    /// A hold was lost.
    #[non_exhaustive]
    Lost {
        /// The loss.
        loss: &'a Loss,
        /// The kind of the lock.
        kind: &'static str,
        /// From the grant to the loss.
        held: Duration,
        /// How long its renewal had been due; zero for a hold that is not renewed, or no further.
        overdue: Duration,
        /// Whether the thread that held it had ended without a release.
        is_abandoned: bool,
    },
    /// A thread ended without a release; its hold ends with its lease.
    #[non_exhaustive]
    Abandoned {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
        /// The holder.
        owner: Owner,
    },
    /// An acquire may or may not have been carried out. The client undoes it; the call goes on if it has
    /// time.
    #[non_exhaustive]
    UnknownOutcome {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
        /// The reason.
        error: &'a Error,
    },
    /// Threads wait for each other in a cycle, one of this client's among them; once a cycle. `DeadlockOver`
    /// follows.
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
        /// How long it was known.
        lasted: Duration,
    },
    /// Wake-ups do not come; waiters only poll.
    #[non_exhaustive]
    WakeupsDown {
        /// The reason.
        error: &'a Error,
    },
    /// Wake-ups are back.
    WakeupsUp,
    /// A server whose replicas are to acknowledge each grant has none that is connected and up to date: from
    /// now on grants count without. Reported once, until one is back.
    #[non_exhaustive]
    NoReplica {
        /// The server, or the Sentinels that name it.
        server: &'a str,
    },
    /// Such a server has a replica again, and each grant waits for it.
    #[non_exhaustive]
    ReplicaBack {
        /// The server, or the Sentinels that name it.
        server: &'a str,
    },
    /// Callbacks are slow and reports wait: repeated reports are dropped from now on. Reported on its own
    /// thread, since the callback thread is busy.
    CallbacksDelayed,
    /// Callbacks keep up again.
    #[non_exhaustive]
    CallbacksCaughtUp {
        /// The number of dropped reports.
        dropped: u64,
    },
    /// Something about the servers, or about how the program uses its clients, weakens what is promised;
    /// nothing fails because of it.
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
/// use leasehold::{Event, GaveUpReason, Observer};
///
/// struct Failures;
///
/// impl Observer for Failures {
///     fn event(&self, event: &Event<'_>) {
///         if let Event::GaveUp { name, reason: GaveUpReason::Failed(error), .. } = event {
///             eprintln!("{name} could not be taken: {error}");
///         }
///     }
/// }
/// # leasehold::LockClient::builder().observer(Failures);
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
