//! The thread that gives back what is kept: see `release/keep.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::engine::calls::Call;
use crate::engine::hold::{Hold, LockEntry};
use crate::park::Service;
use crate::sync::{Mutex, OnceLock, Waker};
use crate::time::Moment;

/// The thread that gives back kept holds, once there was one, and the locks it looks at.
#[derive(Default)]
pub(crate) struct Keeper {
    /// `None` inside: it could not be started, so nothing is kept.
    pub(crate) service: OnceLock<Option<(Arc<Service>, Waker)>>,
    pub(crate) locks: Mutex<Vec<Arc<LockEntry>>>,
    /// Taken out to be given back, the oldest first, but for what a thread that ends waits for.
    pub(crate) leaving: Mutex<VecDeque<(Arc<Hold>, Option<Call>)>>,
    /// The threads that wait for what they keep to be given back.
    pub(crate) ended: Mutex<Vec<Ended>>,
}

/// A thread that waits for what it keeps to be given back, before it ends.
pub(crate) struct Ended {
    /// `None`: what all threads keep.
    pub(crate) thread: Option<u64>,
    /// Over with the last release.
    pub(crate) call: Call,
}

impl Keeper {
    /// Has the thread look at the lock by `moment`; `is_new`: it does not look at it yet.
    pub(crate) fn watch(&self, service: &Service, lock: &Arc<LockEntry>, is_new: bool, moment: Moment) {
        if is_new {
            // Listed first, woken second: it looks at what is listed.
            self.locks.lock().push(Arc::clone(lock));
        }
        service.look_by(moment);
    }

    pub(crate) fn stop(&self) {
        if let Some(Some((service, _))) = self.service.get() {
            service.stop();
            // Stopped first, cleared second. Pairs with `Core::end_kept`.
            self.ended.lock().clear();
        }
    }
}
