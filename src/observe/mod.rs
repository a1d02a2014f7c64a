//! Observers: a trait whose every method does nothing unless overridden.

pub(crate) mod reporter;

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::ident::Owner;

/// Receives what happens to a client's locks; for metrics, logs and alarms.
///
/// `acquired` and `released` run on the calling thread and should be quick. All others run on the client's callback
/// thread. A failing renewal is reported when it fails first and then less and less often. A panic in any of them is caught.
///
/// # Examples
///
/// ```
/// use leasehold::{LockClient, Loss, MemoryStore, Observer, Owner};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::time::Duration;
///
/// #[derive(Default)]
/// struct Metrics {
///     acquired: AtomicU64,
/// }
///
/// struct Counting(Arc<Metrics>);
///
/// impl Observer for Counting {
///     fn acquired(&self, _name: &str, _owner: Owner, _waited: Duration, _attempts: u32) {
///         self.0.acquired.fetch_add(1, Ordering::Relaxed);
///     }
///
///     fn lost(&self, loss: &Loss) {
///         eprintln!("alarm: lost {}, {:?}", loss.name, loss.reason);
///     }
/// }
///
/// let metrics = Arc::new(Metrics::default());
/// let builder = LockClient::builder().observer(Counting(Arc::clone(&metrics)));
/// let client = builder.build_in_memory(&MemoryStore::new())?;
/// client.lock("stock:42").acquire()?.unlock()?;
/// assert_eq!(metrics.acquired.load(Ordering::Relaxed), 1);
/// # Ok::<(), leasehold::Error>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// A lock was taken: after waiting `waited`, with `attempts` requests to the store. Not called for re-entry.
    fn acquired(&self, name: &str, owner: Owner, waited: Duration, attempts: u32) {
        let _ = (name, owner, waited, attempts);
    }
    /// A lock was fully released after being held for `held`.
    fn released(&self, name: &str, owner: Owner, held: Duration) {
        let _ = (name, owner, held);
    }
    /// A dropped guard's release failed. The client repeats it until answered or until the lease has run out.
    fn release_failed(&self, name: &str, error: &Error) {
        let _ = (name, error);
    }
    /// A renewal failed; the hold is certain for `remaining` more and the watchdog keeps trying.
    fn renewal_failed(&self, name: &str, error: &Error, remaining: Duration) {
        let _ = (name, error, remaining);
    }
    /// A hold was lost.
    fn lost(&self, loss: &Loss) {
        let _ = loss;
    }
    /// A thread ended without releasing; its hold is no longer renewed and ends with its lease.
    fn abandoned(&self, name: &str, owner: Owner) {
        let _ = (name, owner);
    }
    /// Wake-ups are not coming (`Some`: why), so that waiters only poll; or they are back (`None`).
    fn wakeups(&self, down: Option<&Error>) {
        let _ = down;
    }
    /// Callbacks take so long that reports wait. `None`: from now on reports that repeat (failed renewals and releases, releases
    /// of dropped guards) are left out; reported on a thread of its own, since the callback thread is not free. `Some`: they keep
    /// up again, and so many were left out. A loss never is.
    fn callbacks_behind(&self, left_out: Option<u64>) {
        let _ = left_out;
    }
    /// Something about the servers is not as it should be for what is promised; nothing fails because of it.
    fn warning(&self, text: &str) {
        let _ = text;
    }
}

/// A hold that ended without being released.
///
/// # Examples
///
/// ```
/// use leasehold::LockClient;
///
/// let client = LockClient::in_memory();
/// let guard = client.lock("stock:42").acquire()?;
/// let lost = guard.lost();
/// client.shutdown()?; // takes the lock from the guard
/// let loss = lost.recv().unwrap();
/// assert_eq!((loss.name.as_str(), loss.owner), ("stock:42", guard.owner()));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The lock.
    pub name: String,
    /// The holder's owner id.
    pub owner: Owner,
    /// How it is known.
    pub reason: LossReason,
}

/// How it is known that a hold is lost.
///
/// # Examples
///
/// ```
/// use leasehold::{LockClient, LossReason};
///
/// let client = LockClient::in_memory();
/// let guard = client.lock("stock:42").acquire()?;
/// guard.on_lost(|loss| match loss.reason {
///     LossReason::Expired => eprintln!("nothing renewed it in time: was this process stopped?"),
///     LossReason::Gone => eprintln!("the store has it no longer: forced, evicted, or failed over"),
///     other => eprintln!("{other:?}"),
/// });
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// Its lease ran out unconfirmed.
    Expired,
    /// The server answered that this owner does not hold it.
    Gone,
    /// The client was shut down.
    ShutDown,
    /// It was held as long as [`max_hold`](crate::LockOptions::max_hold) allows.
    HeldTooLong,
}

impl LossReason {
    pub(crate) fn words(self) -> &'static str {
        match self {
            LossReason::Expired => "its lease ran out",
            LossReason::Gone => "the server says that this owner does not hold it",
            LossReason::ShutDown => "the client was shut down",
            LossReason::HeldTooLong => "it was held for as long as max_hold allows",
        }
    }
}

/// The observer that writes log lines, with the feature `tracing`.
#[cfg(feature = "tracing")]
pub(crate) fn logging() -> Option<Arc<dyn Observer>> {
    Some(Arc::new(Logging))
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn logging() -> Option<Arc<dyn Observer>> {
    None
}

/// Levels: `error` a hold was lost; `warn` something may be about to be; `info` it is well again; `trace` every grant
/// and release. Lines have lock names and owner ids, never URLs or passwords.
#[cfg(feature = "tracing")]
struct Logging;

#[cfg(feature = "tracing")]
impl Observer for Logging {
    fn acquired(&self, name: &str, owner: Owner, waited: Duration, attempts: u32) {
        tracing::trace!(name, %owner, ?waited, attempts, "acquired");
    }

    fn released(&self, name: &str, owner: Owner, held: Duration) {
        tracing::trace!(name, %owner, ?held, "released");
    }

    fn release_failed(&self, name: &str, error: &Error) {
        tracing::warn!(name, %error, "a release failed and is being repeated");
    }

    fn renewal_failed(&self, name: &str, error: &Error, remaining: Duration) {
        tracing::warn!(name, %error, ?remaining, "a renewal failed and is being repeated");
    }

    fn lost(&self, loss: &Loss) {
        tracing::error!(name = loss.name, owner = %loss.owner, reason = ?loss.reason, "a hold was lost");
    }

    fn abandoned(&self, name: &str, owner: Owner) {
        tracing::warn!(name, %owner, "a thread ended without releasing; its hold is no longer renewed");
    }

    fn wakeups(&self, down: Option<&Error>) {
        match down {
            Some(error) => tracing::warn!(%error, "no wake-ups: waiters only poll"),
            None => tracing::info!("wake-ups are back"),
        }
    }

    fn callbacks_behind(&self, left_out: Option<u64>) {
        match left_out {
            None => tracing::warn!("callbacks take too long: news that repeats is left out"),
            Some(left_out) => tracing::info!(left_out, "callbacks keep up again"),
        }
    }

    fn warning(&self, text: &str) {
        tracing::warn!("{text}");
    }
}
