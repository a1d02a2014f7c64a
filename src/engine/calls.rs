//! Calls that are under way, so that the end of a client can wait for what they ask and have asked.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::policy::POLL_COMPLETIONS_EVERY;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment};

/// Counts the calls that may have something of this client's come to be, or not yet be gone, in the store: those that
/// take and give back, and releases that nobody waits for.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    under_way: AtomicUsize,
    closed: AtomicBool,
    /// The waker of the thread that waits until none is left.
    waker: Mutex<Option<Waker>>,
}

/// A call that is under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct Call {
    calls: Arc<Calls>,
}

impl Calls {
    /// Counts a call in. A thread that wants to ask for something looks afterwards whether the client
    /// [ended](Self::is_closed): if it had not, its end waits for this call. Pairs with `close`, which comes before
    /// `wait`.
    pub(crate) fn begin(self: &Arc<Calls>) -> Call {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        Call { calls: Arc::clone(self) }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Ends the client for calls to come; `false` if it had ended already.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    /// Waits until no call is under way, until `until` by the system's clock at most; whether none is. Has `poll_completions`
    /// read answers that nobody comes for, and say whether more are to come.
    pub(crate) fn wait(&self, until: Moment, poll_completions: impl Fn() -> bool) -> bool {
        let waker = Waker::default();
        *self.waker.lock() = Some(waker.clone());
        // Set first, looked second. Pairs with `Call`'s `Drop`.
        while self.under_way.load(Ordering::SeqCst) > 0 {
            let left = until.since(Clock::System.now());
            if left.is_zero() {
                return false;
            }
            let next = if poll_completions() { Duration::from_millis(1) } else { POLL_COMPLETIONS_EVERY };
            waker.sleep(Some(left.min(next)));
        }
        true
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.calls.under_way.fetch_sub(1, Ordering::SeqCst) == 1
            && self.calls.is_closed()
            && let Some(waker) = &*self.calls.waker.lock()
        {
            waker.wake();
        }
    }
}
