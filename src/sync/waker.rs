//! A thread's signal, and what sets it.

use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

/// Wakes one thread. The signal is sticky: one that comes before the thread waits is not lost, two before it
/// looks are one. All clones are one signal.
///
/// Not a channel: those spin and yield before they sleep, and here somebody nearly always sleeps.
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

    /// Whether the signal is set and not taken.
    pub(crate) fn is_set(&self) -> bool {
        *self.shared.is_set.lock()
    }

    /// Takes the signal, if it is set.
    #[cfg(test)]
    pub(crate) fn take(&self) -> bool {
        std::mem::take(&mut *self.shared.is_set.lock())
    }

    /// Sleeps until there is a signal, and takes it, or until `limit` has passed. Only one thread may.
    /// Returns whether it was the signal; with a limit it may also end for no reason.
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
