//! Callbacks and channels of a hold: what is notified of its loss, and what is called when others want its lock.

use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::observe::Loss;
use crate::observe::reporter::{OnLost, Reporter};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

pub(crate) type OnContended = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
pub(super) struct Listeners {
    /// There may be some; else nobody takes the mutex.
    pub(super) are_there: AtomicBool,
    /// The hold ended by release: there will be no loss.
    pub(super) released: AtomicBool,
    pub(super) list: Mutex<List>,
    /// A callback for contention is yet to run, or runs.
    pub(super) is_calling: AtomicBool,
}

#[derive(Default)]
pub(crate) struct List {
    /// They are for the hold that follows this one.
    pub(super) are_kept: bool,
    pub(crate) callbacks: Vec<OnLost>,
    pub(crate) senders: Vec<Sender<Loss>>,
    pub(crate) contended: Vec<OnContended>,
}

impl Listeners {
    pub(super) fn is_any(&self) -> bool {
        self.are_there.load(Ordering::SeqCst)
    }

    /// Takes them out, unless they are to `stay` for the hold that follows.
    pub(super) fn take(&self, stay: bool) -> List {
        if !self.is_any() {
            return List::default();
        }
        let mut list = self.list.lock();
        if stay && list.are_kept {
            return List::default();
        }
        self.are_there.store(false, Ordering::SeqCst);
        std::mem::take(&mut *list)
    }
}

/// Callbacks may own the client, so they are dropped where they would have run.
pub(super) fn forget(contended: Vec<OnContended>, reporter: &Reporter) {
    if !contended.is_empty() {
        reporter.run_later(move || drop(contended));
    }
}
