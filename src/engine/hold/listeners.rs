//! Callbacks and channels that are notified of a loss.

use crossbeam_channel::Sender;

use crate::observe::Loss;
use crate::observe::reporter::OnLost;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(super) struct Listeners {
    /// There may be some; else nobody takes the mutex.
    pub(super) are_there: AtomicBool,
    /// The hold ended by release: there will be no loss.
    pub(super) released: AtomicBool,
    pub(super) list: Mutex<List>,
}

#[derive(Default)]
pub(super) struct List {
    /// They are for the hold that follows this one.
    pub(super) cached: bool,
    pub(super) callbacks: Vec<OnLost>,
    pub(super) senders: Vec<Sender<Loss>>,
}

impl List {
    fn take(&mut self) -> (Vec<OnLost>, Vec<Sender<Loss>>) {
        (std::mem::take(&mut self.callbacks), std::mem::take(&mut self.senders))
    }
}

impl Listeners {
    pub(super) fn is_any(&self) -> bool {
        self.are_there.load(Ordering::SeqCst)
    }

    /// Takes them out, unless `stay`.
    pub(super) fn take(&self, stay: impl FnOnce(&List) -> bool) -> (Vec<OnLost>, Vec<Sender<Loss>>) {
        if !self.is_any() {
            return Default::default();
        }
        let mut list = self.list.lock();
        if stay(&list) {
            return Default::default();
        }
        self.are_there.store(false, Ordering::SeqCst);
        list.take()
    }
}
