//! Observers: what a client reports of its locks, and to whom.

pub(crate) mod event;
#[cfg(feature = "tracing")]
mod logging;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod reporter;
pub(crate) mod spans;
pub(crate) mod stats;

use std::sync::Arc;

use crate::observe::event::Event;
pub use crate::observe::event::{Loss, LossReason};

/// Receives the [events](Event) of a client's locks, for metrics, logs and alarms.
///
/// A panic of an observer is caught. While too many reports wait for the callback thread, those of renewals
/// and releases are dropped; all others come later.
///
/// # Calling the client back
///
/// | Reported | Events | Calls of the same client |
/// |---|---|---|
/// | on the calling thread, before the call returns | [`Event::Waiting`], [`Event::Acquired`], [`Event::HandedOff`], [`Event::GaveUp`], [`Event::Released`], [`Event::UnknownOutcome`], [`Event::Request`] for `"acquire"`, `"release"` and `"hand_off"`; [`Event::ReleaseFailed`] of a drop that waited for the answer | refused |
/// | on the callback thread | the events of a dropped guard's release, [`Event::Request`] for `"renew"`, all others; the callbacks of [`on_lost`](crate::Guard::on_lost) | work, and delay later reports |
///
/// On the calling thread an observer runs in the middle of a call. Therefore every call by which it would
/// send a request through the same client returns [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) at once.
/// A guard that the observer drops or unlocks is released nevertheless. The observer may ask for numbers
/// ([`stats`](crate::LockClient::stats), [`contended`](crate::LockClient::contended)), for
/// [`Guard::check`](crate::Guard::check), and use other clients. An observer that wants a lock sends its
/// event to another thread. If the system gives no callback thread, and once the client is shut down, the
/// thread that reports also runs the callbacks, whose calls are refused in the same way.
///
/// # Examples
/// A closure observes, as does any type with this trait:
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
pub trait Observer: Send + Sync + 'static {
    /// Receives one event.
    fn event(&self, event: &Event<'_>);
}

impl<F> Observer for F
where
    F: Fn(&Event<'_>) + Send + Sync + 'static,
{
    fn event(&self, event: &Event<'_>) {
        self(event);
    }
}

#[cfg(feature = "tracing")]
pub(crate) fn logging() -> Option<Arc<dyn Observer>> {
    Some(Arc::new(logging::Logging))
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn logging() -> Option<Arc<dyn Observer>> {
    None
}

/// Whether the program has ever set a subscriber of `tracing`, so that log lines are not lost.
pub(crate) fn is_logged() -> bool {
    #[cfg(feature = "tracing")]
    let is_logged = tracing::dispatcher::has_been_set();
    #[cfg(not(feature = "tracing"))]
    let is_logged = false;
    is_logged
}
