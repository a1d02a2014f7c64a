//! Spans of waits and holds, for the crate `tracing`; empty without that feature.
#![cfg_attr(
    not(feature = "tracing"),
    allow(dead_code, unused_variables, clippy::unused_self, reason = "there are no spans")
)]

#[cfg(feature = "tracing")]
use tracing::Span;
#[cfg(feature = "tracing")]
use tracing::field::{Empty, debug, display};

use crate::ident::{FencingToken, Owner};
use crate::observe::event::GaveUpReason;
use crate::sync::Mutex;

#[cfg(not(feature = "tracing"))]
#[derive(Clone)]
struct Span;

/// `lock.acquire`: from a call to its grant, or to its end without one.
///
/// The span is not entered, so that the caller's span is the parent of `lock.hold` too.
pub(crate) struct WaitSpan(Span);

impl WaitSpan {
    pub(crate) fn open(name: &str, kind: &'static str) -> WaitSpan {
        #[cfg(feature = "tracing")]
        let span = tracing::debug_span!(
            "lock.acquire",
            lock.name = name,
            lock.kind = kind,
            lock.outcome = Empty,
            lock.owner = Empty,
            lock.fence = Empty,
            lock.attempts = Empty,
            error.type = Empty,
        );
        #[cfg(not(feature = "tracing"))]
        let span = Span;
        WaitSpan(span)
    }

    pub(crate) fn granted(&self, owner: Owner, fence: Option<FencingToken>, attempts: u32) {
        #[cfg(feature = "tracing")]
        self.0
            .record("lock.outcome", "granted")
            .record("lock.owner", display(owner))
            .record("lock.fence", fence.map(FencingToken::get))
            .record("lock.attempts", attempts);
    }

    pub(crate) fn gave_up(&self, reason: &GaveUpReason<'_>, attempts: u32) {
        #[cfg(feature = "tracing")]
        {
            self.0.record("lock.outcome", reason.label()).record("lock.attempts", attempts);
            if let GaveUpReason::Failed(error) = reason {
                self.0.record("error.type", debug(error.kind()));
            }
        }
    }
}

/// `lock.hold`: from the grant to the release or the loss. Its parent is the span in which the call began.
pub(crate) struct HoldSpan(Mutex<Option<Span>>);

impl HoldSpan {
    pub(crate) fn none() -> HoldSpan {
        HoldSpan(Mutex::new(None))
    }

    pub(crate) fn open(&self, name: &str, kind: &'static str, owner: Owner, fence: Option<FencingToken>) {
        #[cfg(feature = "tracing")]
        {
            let span = tracing::debug_span!(
                "lock.hold",
                lock.name = name,
                lock.kind = kind,
                lock.owner = %owner,
                lock.fence = fence.map(FencingToken::get),
                lock.end = Empty,
            );
            *self.0.lock() = Some(span).filter(|span| !span.is_disabled());
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        cfg!(feature = "tracing") && self.0.lock().is_some()
    }

    /// Returns a function that runs an event's report inside the hold's span, on the thread that calls it.
    pub(crate) fn around(&self) -> impl Fn(&dyn Fn()) + Send + use<> {
        within(self.0.lock().clone())
    }

    /// Notes how the hold ended. The returned function runs a report inside the span. The span ends when that
    /// function is dropped.
    pub(crate) fn end(&self, how: &'static str) -> impl Fn(&dyn Fn()) + Send + use<> {
        let span = if cfg!(feature = "tracing") { self.0.lock().take() } else { None };
        #[cfg(feature = "tracing")]
        if let Some(span) = &span {
            span.record("lock.end", how);
        }
        within(span)
    }
}

fn within(span: Option<Span>) -> impl Fn(&dyn Fn()) + Send {
    move |tell| {
        #[cfg(feature = "tracing")]
        if let Some(span) = &span {
            return span.in_scope(tell);
        }
        tell();
    }
}
