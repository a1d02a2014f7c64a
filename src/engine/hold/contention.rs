//! A hold's part of hearing that others want its lock.

use std::sync::Arc;
use std::time::Duration;

use crate::observe::reporter::Reporter;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::time::Moment;

/// Other clients count as waiting for this long after their last sign: a waiter's pause between two requests, and
/// the time until the next check.
const COUNTS_FOR: Duration = Duration::from_millis(2_500);

pub(crate) type OnContended = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
pub(crate) struct Contention {
    /// Others are to send the hold recalls, so the store may have more of the hold than its owner.
    hears: AtomicBool,
    /// Until when other clients count as waiting, as `Moment::nanos`.
    until: AtomicU64,
    callbacks: Mutex<Vec<OnContended>>,
}

impl Contention {
    pub(crate) fn hears(&self) -> bool {
        self.hears.load(Ordering::SeqCst)
    }

    /// From now on it does; whether it did before.
    pub(crate) fn begin(&self, callback: Option<OnContended>) -> bool {
        self.callbacks.lock().extend(callback);
        self.hears.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn callbacks(&self) -> Vec<OnContended> {
        self.callbacks.lock().clone()
    }

    pub(crate) fn note_wanted(&self, now: Moment) {
        self.until.store(now.plus(COUNTS_FOR).nanos(), Ordering::SeqCst);
    }

    pub(crate) fn is_wanted(&self, now: Moment) -> bool {
        now.nanos() < self.until.load(Ordering::SeqCst)
    }

    pub(crate) fn take(&self) -> Vec<OnContended> {
        std::mem::take(&mut *self.callbacks.lock())
    }

    /// Drops callbacks where they would have run: they may own the client.
    pub(crate) fn forget(&self, reporter: &Reporter) {
        let callbacks = self.take();
        if !callbacks.is_empty() {
            reporter.run_later(move || drop(callbacks));
        }
    }
}
