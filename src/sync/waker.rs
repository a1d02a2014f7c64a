//! A signal that wakes one thread.

use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

/// Wakes one thread. A signal is kept until the thread waits for it; two signals before that are one. All
/// clones share the signal.
///
/// Not a channel: channels spin and yield before they sleep, and most waits here are long.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waker {
    shared: Arc<WakerShared>,
}

#[derive(Debug, Default)]
struct WakerShared {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Waker {
    pub(crate) fn wake(&self) {
        let was_set = std::mem::replace(&mut *self.shared.is_set.lock(), true);
        if !was_set {
            self.shared.changed.notify_one();
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        *self.shared.is_set.lock()
    }

    #[cfg(test)]
    pub(crate) fn take(&self) -> bool {
        std::mem::take(&mut *self.shared.is_set.lock())
    }

    /// Sleeps until there is a signal, and takes it, or until `limit` has passed. Only one thread may sleep.
    /// Returns whether there was a signal; with a limit it may also return early.
    pub(crate) fn sleep(&self, limit: Option<Duration>) -> bool {
        let mut is_set = self.shared.is_set.lock();
        match limit {
            Some(limit) if !*is_set => {
                self.shared.changed.wait_for(&mut is_set, limit);
            }
            Some(_) => {}
            None => {
                while !*is_set {
                    self.shared.changed.wait(&mut is_set);
                }
            }
        }
        std::mem::take(&mut *is_set)
    }
}
