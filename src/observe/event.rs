//! The events of which an observer is notified.

use std::time::Duration;

use crate::deadlock::Deadlock;
use crate::error::Error;
use crate::ident::Owner;
use crate::observe::loss::Loss;

/// Something that happened to a client's locks.
///
/// `name` is the name that the program gave, before prefix and mapping. `kind` is one of `"lock"`,
/// `"fenced"`, `"fair"`, `"read"`, `"write"`, `"token"`, `"semaphore"`, `"permits"`, `"latch"` and
/// `"condition"`. More events and more fields may come: match with `..` and a last arm for the rest.
///
/// # Examples
///
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
    /// A call begins to sleep for a lock: once for each call that sleeps at all. `Acquired` or `GaveUp`
    /// follows.
    #[non_exhaustive]
    Waiting {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
    },
    /// A lock was taken. Not for re-entry.
    #[non_exhaustive]
    Acquired {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
        /// The new holder.
        owner: Owner,
        /// For how long the call had waited.
        waited: Duration,
        /// How many requests it had sent to the store.
        attempts: u32,
    },
    /// The lock that was just taken came from a thread that released it, by a message of the store or within
    /// the process.
    #[non_exhaustive]
    HandedOff {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
        /// The new holder.
        owner: Owner,
        /// Whether it came from a thread of this client.
        is_local: bool,
        /// The time to the grant: from the request of the releasing thread, or from the message of another
        /// process.
        took: Duration,
    },
    /// A call ended without the lock.
    #[non_exhaustive]
    GaveUp {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
        /// For how long it had waited.
        waited: Duration,
        /// How many requests it had sent to the store.
        attempts: u32,
        /// Why.
        reason: GaveUpReason<'a>,
    },
    /// The store has confirmed renewals: one event for each request, with up to some hundred holds.
    #[non_exhaustive]
    Renewed {
        /// How many holds were renewed.
        holds: u64,
        /// How long the request took.
        took: Duration,
        /// How much later it was sent than the latest of them was due: zero while the watchdog keeps up.
        lag: Duration,
    },
    /// The store was asked to change something, and answered or did not.
    #[non_exhaustive]
    Request {
        /// `"acquire"`, `"release"`, `"renew"` or `"hand_off"`, the release that makes another thread of
        /// this client the owner.
        op: &'static str,
        /// From when it was sent until the answer was read, or no longer waited for.
        took: Duration,
        /// Why there was no good answer. If its outcome is unknown, the request may have been carried out.
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
        /// Why.
        error: &'a Error,
        /// For how long the hold is certain still.
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
        /// For how long it was held.
        held: Duration,
    },
    /// A release failed whose outcome no caller gets: that of a dropped guard, or of
    /// [`with_lock`](crate::AcquireOptions::with_lock), which returns the result of its work. The client
    /// repeats it until it is answered or the lease has run out.
    #[non_exhaustive]
    ReleaseFailed {
        /// The lock; empty for those of a client that ended.
        name: &'a str,
        /// Why.
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
        /// For how long its renewal had been due; zero for a hold that is not renewed, or no further.
        overdue: Duration,
        /// Whether the thread that held it had ended without a release.
        is_abandoned: bool,
    },
    /// A thread ended without releasing; its hold is no longer renewed and ends with its lease.
    #[non_exhaustive]
    Abandoned {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
        /// The holder.
        owner: Owner,
    },
    /// An acquire may or may not have been carried out. The client undoes it; the call goes on, if it has
    /// time.
    #[non_exhaustive]
    UnknownOutcome {
        /// The lock.
        name: &'a str,
        /// Its kind.
        kind: &'static str,
        /// Why it is not known.
        error: &'a Error,
    },
    /// Threads wait for each other in a ring, one of this client's among them: once for each ring.
    /// `DeadlockOver` follows.
    #[non_exhaustive]
    Deadlock {
        /// The ring.
        deadlock: &'a Deadlock,
    },
    /// A ring that was told is one no more: a wait of it has ended, or a hold.
    #[non_exhaustive]
    DeadlockOver {
        /// The ring, as it was told.
        deadlock: &'a Deadlock,
        /// For how long it was known.
        lasted: Duration,
    },
    /// Wake-ups are not coming, so that waiters only poll.
    #[non_exhaustive]
    WakeupsDown {
        /// Why.
        error: &'a Error,
    },
    /// Wake-ups are back.
    WakeupsUp,
    /// Callbacks are slow, and reports wait: from now on reports that repeat are left out. Reported on a
    /// thread of its own, since the callback thread is not free.
    CallbacksDelayed,
    /// Callbacks keep up again.
    #[non_exhaustive]
    CallbacksCaughtUp {
        /// How many reports were dropped.
        dropped: u64,
    },
    /// Something about the servers, or about how the program uses its clients, is not as it should be for
    /// what is promised; nothing fails because of it.
    #[non_exhaustive]
    Warning {
        /// The finding, in words.
        text: &'a str,
    },
}

/// Why a call ended without the lock.
///
/// # Examples
///
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
    /// It was taken, and the call was not to wait.
    Busy,
    /// It was taken for as long as the call would wait.
    TimedOut,
    /// The wait was interrupted.
    Interrupted,
    /// Of this error.
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
