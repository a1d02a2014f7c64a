//! How many clients a process has.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The number of clients at a time that is told of, once in a process: a program that makes one for each
/// request or each lock has them, and pays for each with threads and connections.
pub(crate) const MANY_CLIENTS: usize = 32;

static CLIENTS: AtomicUsize = AtomicUsize::new(0);
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// A client and its clones, as long as one of them is there.
pub(crate) struct CountedClient {
    at_a_time: usize,
}

impl CountedClient {
    pub(super) fn new() -> CountedClient {
        CountedClient { at_a_time: CLIENTS.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// Whether this is the first with which there are many.
    pub(crate) fn is_one_too_many(&self) -> bool {
        self.at_a_time >= MANY_CLIENTS && !IS_TOLD.swap(true, Ordering::Relaxed)
    }
}

impl Drop for CountedClient {
    fn drop(&mut self) {
        CLIENTS.fetch_sub(1, Ordering::Relaxed);
    }
}
