//! Spans of waits and holds, for the crate `tracing`; empty without that feature.

#[cfg(feature = "tracing")]
pub(crate) use with::{HoldSpan, WaitSpan};
#[cfg(not(feature = "tracing"))]
pub(crate) use without::{HoldSpan, WaitSpan};

#[cfg(feature = "tracing")]
mod with {
    use tracing::field::{Empty, debug, display};
    use tracing::{Span, debug_span};

    use crate::ident::{FencingToken, Owner};
    use crate::observe::event::GaveUpReason;
    use crate::sync::Mutex;

    /// `lock.acquire`: from a call to its grant, or to its end without one.
    ///
    /// The span is not entered: the call's thread only waits, and a hold is no part of its wait.
    pub(crate) struct WaitSpan(Span);

    impl WaitSpan {
        pub(crate) fn open(name: &str, kind: &'static str) -> WaitSpan {
            WaitSpan(debug_span!(
                "lock.acquire",
                lock.name = name,
                lock.kind = kind,
                lock.outcome = Empty,
                lock.owner = Empty,
                lock.fence = Empty,
                lock.attempts = Empty,
                error.type = Empty,
            ))
        }

        pub(crate) fn granted(&self, owner: Owner, fence: Option<FencingToken>, attempts: u32) {
            self.0.record("lock.outcome", "granted");
            self.0.record("lock.owner", display(owner));
            self.0.record("lock.fence", fence.map(FencingToken::get));
            self.0.record("lock.attempts", attempts);
        }

        pub(crate) fn gave_up(&self, reason: &GaveUpReason<'_>, attempts: u32) {
            self.0.record("lock.outcome", reason.label());
            if let GaveUpReason::Failed(error) = reason {
                self.0.record("error.type", debug(error.kind()));
            }
            self.0.record("lock.attempts", attempts);
        }
    }

    /// `lock.hold`: from the grant to the release or the loss. It belongs to the span in which the lock was
    /// asked for.
    pub(crate) struct HoldSpan(Mutex<Option<Span>>);

    impl HoldSpan {
        pub(crate) fn none() -> HoldSpan {
            HoldSpan(Mutex::new(None))
        }

        pub(crate) fn open(&self, name: &str, kind: &'static str, owner: Owner, fence: Option<FencingToken>) {
            let span = debug_span!(
                "lock.hold",
                lock.name = name,
                lock.kind = kind,
                lock.owner = %owner,
                lock.fence = fence.map(FencingToken::get),
                lock.end = Empty,
            );
            if !span.is_disabled() {
                *self.0.lock() = Some(span);
            }
        }

        pub(crate) fn is_open(&self) -> bool {
            self.0.lock().is_some()
        }

        /// Runs the report of an event inside the hold's span, on any thread.
        pub(crate) fn around(&self) -> impl Fn(&dyn Fn()) + Send + use<> {
            let span = self.0.lock().clone();
            move |tell| span.as_ref().map_or_else(tell, |span| span.in_scope(tell))
        }

        /// Ends the hold; the span ends when the result, used like that of `around`, is dropped.
        pub(crate) fn end(&self, how: &'static str) -> impl Fn(&dyn Fn()) + Send + use<> {
            let span = self.0.lock().take();
            if let Some(span) = &span {
                span.record("lock.end", how);
            }
            move |tell| span.as_ref().map_or_else(tell, |span| span.in_scope(tell))
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod without {
    use crate::ident::{FencingToken, Owner};
    use crate::observe::event::GaveUpReason;

    pub(crate) struct WaitSpan;

    impl WaitSpan {
        pub(crate) fn open(_name: &str, _kind: &'static str) -> WaitSpan {
            WaitSpan
        }

        pub(crate) fn granted(&self, _owner: Owner, _fence: Option<FencingToken>, _attempts: u32) {}

        pub(crate) fn gave_up(&self, _reason: &GaveUpReason<'_>, _attempts: u32) {}
    }

    pub(crate) struct HoldSpan;

    impl HoldSpan {
        pub(crate) fn none() -> HoldSpan {
            HoldSpan
        }

        pub(crate) fn open(
            &self,
            _name: &str,
            _kind: &'static str,
            _owner: Owner,
            _fence: Option<FencingToken>,
        ) {
        }

        pub(crate) fn is_open(&self) -> bool {
            false
        }

        pub(crate) fn around(&self) -> impl Fn(&dyn Fn()) + Send + use<> {
            |tell: &dyn Fn()| tell()
        }

        pub(crate) fn end(&self, _how: &'static str) -> impl Fn(&dyn Fn()) + Send + use<> {
            |tell: &dyn Fn()| tell()
        }
    }
}
