//! Calls that are under way, so that the end of a client can wait for what they ask and have asked.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::policy::POLL_COMPLETIONS_EVERY;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, Waker, thread_local};
use crate::time::{Clock, Moment};

/// Counts the calls that may have something of this client's come to be, or not yet be gone, in the store:
/// those that take and release, and releases that nobody waits for.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    under_way: AtomicUsize,
    closed: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// Under way until this is dropped.
#[derive(Debug)]
pub(crate) struct Call {
    calls: Arc<Calls>,
    /// The call is listed among those of its thread, and is dropped on that thread.
    is_of_thread: bool,
}

thread_local! {
    /// The calls that the thread is in, by the place of their client's [`Calls`] in memory.
    static OF_THREAD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Calls {
    /// Counts a call in. A thread that wants to ask for something looks afterwards whether the client
    /// [ended](Self::is_closed): if it had not, its end waits for this call. Pairs with `close`, which comes
    /// before `wait`.
    pub(crate) fn begin(self: &Arc<Calls>) -> Call {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let address = Arc::as_ptr(self).addr();
        let is_of_thread = OF_THREAD.try_with(|calls| calls.borrow_mut().push(address)).is_ok();
        Call { calls: Arc::clone(self), is_of_thread }
    }

    /// Whether the calling thread is in a call of this client: an observer runs there, and a wait for all
    /// calls would wait for itself.
    pub(crate) fn is_caller_in_one(self: &Arc<Calls>) -> bool {
        let address = Arc::as_ptr(self).addr();
        OF_THREAD.try_with(|calls| calls.borrow().contains(&address)).unwrap_or(false)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Waits until no call is under way, until `until` by the system's clock at most; whether none is. Has
    /// `poll_completions` read answers that nobody comes for, and say whether more are to come.
    pub(crate) fn wait(&self, until: Moment, poll_completions: impl Fn() -> bool) -> bool {
        let waker = Waker::default();
        *self.waker.lock() = Some(waker.clone());
        // Ends calls first, reads the count second. Pairs with `Call`'s `Drop`.
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

impl Call {
    /// The same call, no longer listed among the thread's: another thread may end it.
    pub(crate) fn detached(mut self) -> Call {
        self.leave_thread();
        self
    }

    fn leave_thread(&mut self) {
        if std::mem::take(&mut self.is_of_thread) {
            let address = Arc::as_ptr(&self.calls).addr();
            let remove = |calls: &RefCell<Vec<usize>>| {
                let mut calls = calls.borrow_mut();
                if let Some(at) = calls.iter().rposition(|other| *other == address) {
                    calls.swap_remove(at);
                }
            };
            OF_THREAD.try_with(remove).unwrap_or_default(); // an error: the thread ends, and its list has gone
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.leave_thread();
        if self.calls.under_way.fetch_sub(1, Ordering::SeqCst) == 1
            && self.calls.is_closed()
            && let Some(waker) = &*self.calls.waker.lock()
        {
            waker.wake();
        }
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_call_leaves_other_clients_calls() {
        let (one, other) = (Arc::new(Calls::default()), Arc::new(Calls::default()));
        let (first, second) = (one.begin(), other.begin());
        drop(first);
        assert!(!one.is_caller_in_one() && other.is_caller_in_one());
        drop(second.detached());
        assert!(!other.is_caller_in_one());
    }
}
