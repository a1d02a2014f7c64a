//! Observers: a trait whose every method does nothing unless overridden.

pub(crate) mod contended;
pub(crate) mod event;
#[cfg(feature = "tracing")]
mod logging;
pub(crate) mod loss;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod reporter;
pub(crate) mod spans;
pub(crate) mod stats;

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::ident::Owner;
use crate::observe::event::Event;
pub use crate::observe::loss::{Loss, LossReason};

/// Receives what happens to a client's locks, as [events](Event); for metrics, logs and alarms.
///
/// Override [`event`](Self::event). The other methods are those of the crate before it had events; they are called by the default
/// of `event`, and will be removed. An observer that overrides both `event` and one of them gets the event alone.
///
/// Events of a call are reported on the calling thread, before the call returns, and should be quick to handle: [`Event::Waiting`],
/// [`Event::Acquired`], [`Event::HandedOver`], [`Event::GaveUp`], [`Event::Released`], [`Event::UnknownOutcome`] and
/// [`Event::Request`]. All others, and those of the release of a dropped guard and of renewals, are reported on the client's
/// callback thread, which delays no renewal. Reports that repeat wait there up to a limit, and are left out above it; a loss never
/// is. A panic is caught.
///
/// # Calling the client back
///
/// An observer that is told on the calling thread is in the middle of a call. All that it asks of the same client there is refused at
/// once, on whatever lock: an error of kind [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock), and nothing is sent. A guard that
/// it drops there is released, and one that it unlocks is released too, although the call returns that error. Numbers and guards
/// may be asked ([`stats`](crate::LockClient::stats), [`contended`](crate::LockClient::contended),
/// [`Guard::check`](crate::Guard::check)), and so may other clients. An observer that wants a lock sends its event to another thread.
///
/// | Told | Events | Calls of the same client |
/// |---|---|---|
/// | on the calling thread | [`Event::Waiting`], [`Event::Acquired`], [`Event::HandedOver`], [`Event::GaveUp`], [`Event::Released`], [`Event::UnknownOutcome`], [`Event::Request`] for `"acquire"`, `"release"` and `"hand_over"`; [`Event::ReleaseFailed`] of a drop that waited for the answer | refused |
/// | on the callback thread | those of a dropped guard's release, [`Event::Request`] for `"renew"`, all others; the callbacks of [`on_lost`](crate::Guard::on_lost) | work, and hold up later reports as long as they take |
///
/// Where the system gives no callback thread, and once the client is shut down, its work is done by the thread that comes by. It is
/// refused there as well.
///
/// # Examples
///
/// A closure observes:
///
/// ```
/// use leasehold::{Event, LockClient, MemoryStore};
///
/// let client = LockClient::builder()
///     .observer(|event: &Event<'_>| {
///         if let Event::Lost { loss, .. } = event {
///             eprintln!("alarm: lost {}, {:?}", loss.name, loss.reason);
///         }
///     })
///     .build_in_memory(&MemoryStore::new())?;
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// So does a type of one's own:
///
/// ```
/// use leasehold::{Event, LockClient, MemoryStore, Observer};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// #[derive(Default)]
/// struct Metrics {
///     acquired: AtomicU64,
/// }
///
/// struct Counting(Arc<Metrics>);
///
/// impl Observer for Counting {
///     fn event(&self, event: &Event<'_>) {
///         match event {
///             Event::Acquired { .. } => {
///                 self.0.acquired.fetch_add(1, Ordering::Relaxed);
///             }
///             Event::Lost { loss, .. } => eprintln!("alarm: lost {}, {:?}", loss.name, loss.reason),
///             _ => {}
///         }
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
    /// Something happened. Defaults to calling the method of the same event below, if it has one.
    #[allow(deprecated, reason = "old observers are called for one more version")]
    fn event(&self, event: &Event<'_>) {
        match *event {
            Event::Acquired { name, owner, waited, attempts, .. } => {
                self.acquired(name, owner, waited, attempts)
            }
            Event::Released { name, owner, held, .. } => self.released(name, owner, held),
            Event::ReleaseFailed { name, error, .. } => self.release_failed(name, error),
            Event::RenewalFailed { name, error, remaining, .. } => {
                self.renewal_failed(name, error, remaining)
            }
            Event::Lost { loss, .. } => self.lost(loss),
            Event::Abandoned { name, owner, .. } => self.abandoned(name, owner),
            Event::WakeupsDown { error, .. } => self.wakeups(Some(error)),
            Event::WakeupsUp => self.wakeups(None),
            Event::CallbacksBehind => self.callbacks_behind(None),
            Event::CallbacksKeepUp { left_out, .. } => self.callbacks_behind(Some(left_out)),
            Event::Warning { text, .. } => self.warning(text),
            Event::Waiting { .. }
            | Event::GaveUp { .. }
            | Event::Renewed { .. }
            | Event::Request { .. }
            | Event::HandedOver { .. }
            | Event::Deadlock { .. }
            | Event::DeadlockOver { .. }
            | Event::UnknownOutcome { .. } => {}
        }
    }
    /// A lock was taken: after waiting `waited`, with `attempts` requests to the store. Not called for re-entry.
    #[deprecated(since = "0.1.0", note = "override `event`: `Event::Acquired`")]
    fn acquired(&self, name: &str, owner: Owner, waited: Duration, attempts: u32) {
        let _ = (name, owner, waited, attempts);
    }
    /// A lock was fully released after being held for `held`.
    #[deprecated(since = "0.1.0", note = "override `event`: `Event::Released`")]
    fn released(&self, name: &str, owner: Owner, held: Duration) {
        let _ = (name, owner, held);
    }
    /// A dropped guard's release failed. The client repeats it until answered or until the lease has run out.
    #[deprecated(since = "0.1.0", note = "override `event`: `Event::ReleaseFailed`")]
    fn release_failed(&self, name: &str, error: &Error) {
        let _ = (name, error);
    }
    /// A renewal failed; the hold is certain for `remaining` more and the watchdog keeps trying.
    #[deprecated(since = "0.1.0", note = "override `event`: `Event::RenewalFailed`")]
    fn renewal_failed(&self, name: &str, error: &Error, remaining: Duration) {
        let _ = (name, error, remaining);
    }
    /// A hold was lost.
    #[deprecated(since = "0.1.0", note = "override `event`: `Event::Lost`")]
    fn lost(&self, loss: &Loss) {
        let _ = loss;
    }
    /// A thread ended without releasing; its hold is no longer renewed and ends with its lease.
    #[deprecated(since = "0.1.0", note = "override `event`: `Event::Abandoned`")]
    fn abandoned(&self, name: &str, owner: Owner) {
        let _ = (name, owner);
    }
    /// Wake-ups are not coming (`Some`: why), so that waiters only poll; or they are back (`None`).
    #[deprecated(since = "0.1.0", note = "override `event`: `Event::WakeupsDown`")]
    fn wakeups(&self, down: Option<&Error>) {
        let _ = down;
    }
    /// Callbacks take so long that reports wait. `None`: from now on reports that repeat (failed renewals and releases, releases
    /// of dropped guards) are left out; reported on a thread of its own, since the callback thread is not free. `Some`: they keep
    /// up again, and so many were left out. A loss never is.
    #[deprecated(since = "0.1.0", note = "override `event`: `Event::CallbacksBehind`")]
    fn callbacks_behind(&self, left_out: Option<u64>) {
        let _ = left_out;
    }
    /// Something about the servers is not as it should be for what is promised; nothing fails because of it.
    #[deprecated(since = "0.1.0", note = "override `event`: `Event::Warning`")]
    fn warning(&self, text: &str) {
        let _ = text;
    }
}

impl<F> Observer for F
where
    F: Fn(&Event<'_>) + Send + Sync + 'static,
{
    fn event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// The observer that writes log lines, with the feature `tracing`.
#[cfg(feature = "tracing")]
pub(crate) fn logging() -> Option<Arc<dyn Observer>> {
    Some(Arc::new(logging::Logging))
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn logging() -> Option<Arc<dyn Observer>> {
    None
}
