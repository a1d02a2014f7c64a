//! Releases a thread's cached holds when the thread ends: the process may end too, and other processes would
//! then wait for the end of the leases.
//!
//! The destructor of a thread-local does this. It also runs in a thread that calls `exit` of the C library
//! (glibc and macOS, not musl). A destructor must not run the program's callbacks, nor take a mutex under
//! which they run. So the cache thread releases; the ending thread waits for one command time-out at most.

use std::cell::Cell;
use std::sync::{Arc, Weak};

use crate::engine::core::{Calls, Core, Ended};
use crate::fork::is_forked;
use crate::ident::thread_name;
use crate::sync::{Mutex, thread_local};
use crate::time::Clock;

static CORES: Mutex<Vec<Weak<Core>>> = Mutex::new(Vec::new());

thread_local! {
    static END: End = End { is_main: &*thread_name() == "main", thread: Cell::new(None) };
}

struct End {
    /// Whether this is the main thread, with which the process ends.
    is_main: bool,
    thread: Cell<Option<u64>>,
}

pub(crate) fn note_client(core: &Arc<Core>) {
    if cfg!(leasehold_shuttle) {
        return;
    }
    let mut cores = CORES.lock();
    cores.retain(|core| core.strong_count() > 0);
    cores.push(Arc::downgrade(core));
}

/// Called by a thread that makes a client. Creates the thread's `End`. When the `End` of the main thread is
/// dropped, it releases all cached holds.
pub(crate) fn note_thread() {
    END.try_with(|_| ()).unwrap_or_default();
}

/// Called by `thread` before it caches a hold. `false`: the thread is ending, and must not cache.
pub(crate) fn note_cached(thread: u64) -> bool {
    END.try_with(|end| end.thread.set(Some(thread))).is_ok()
}

impl Drop for End {
    fn drop(&mut self) {
        // The cache thread cannot release holds now on Windows, which kills other threads before it runs
        // destructors, nor in models, whose threads share one system thread.
        let is_possible = cfg!(not(any(windows, leasehold_shuttle))) && !is_forked();
        if !is_possible || !self.is_main && self.thread.get().is_none() {
            return;
        }
        let cores: Vec<_> = CORES.lock().iter().filter_map(Weak::upgrade).collect();
        let thread = self.thread.get().filter(|_| !self.is_main);
        let ending: Vec<_> = cores.iter().filter_map(|core| Some((core, core.end_cached(thread)?))).collect();
        // All clients' time-outs begin here, because their cache threads work at the same time.
        let begun = Clock::System.now();
        for (core, releases) in ending {
            releases.wait(begun.plus(core.options.command_timeout), || {
                core.watchdog.wake(); // reads the answers
                true
            });
        }
    }
}

impl Core {
    /// Makes the cache thread release the holds that are cached for `thread`, or all cached holds if `None`.
    /// Returns the releases as calls that the caller can await; `None`: there is no cache thread.
    pub(crate) fn end_cached(&self, thread: Option<u64>) -> Option<Arc<Calls>> {
        let (service, _) = self.cache_thread.service.get()?.as_ref()?;
        let releases: Arc<Calls> = Arc::default();
        releases.close(); // makes the last of these calls wake the ending thread
        self.cache_thread.ended.lock().push(Ended { thread, call: Arc::new(releases.begin()) });
        // This adds, then checks; `CacheThread::stop` stops, then clears. So one of them clears the list.
        if service.is_stopped() {
            self.cache_thread.ended.lock().clear();
        }
        service.wake();
        Some(releases)
    }
}
