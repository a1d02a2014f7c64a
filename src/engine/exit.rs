//! The end of a thread that caches holds: they are released first, since the process may end with the thread.
//!
//! `exit` of the C library runs the destructors of the calling thread's thread-locals (glibc and macOS; not
//! musl), as the end of a thread does, while all other threads go on. So the cache thread releases the holds.
//! The ending thread asks for that and waits, for one command time-out at most: it sends nothing, runs no
//! code of the program's, and takes no mutex under which such code runs.

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
    /// Whether the process ends with this thread.
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

/// The calling thread has a client: its `End` releases cached holds if the process ends with the thread.
pub(crate) fn note_thread() {
    END.try_with(|_| ()).unwrap_or_default();
}

/// The calling thread, `thread`, is about to cache a hold; `false`: it is ending, and would not release it.
pub(crate) fn note_cached(thread: u64) -> bool {
    END.try_with(|end| end.thread.set(Some(thread))).is_ok()
}

impl Drop for End {
    fn drop(&mut self) {
        // On Windows the threads that send the releases are killed before destructors run. The model's
        // threads share one system thread.
        let is_possible = cfg!(not(any(windows, leasehold_shuttle))) && !is_forked();
        if !is_possible || !self.is_main && self.thread.get().is_none() {
            return;
        }
        let cores: Vec<_> = CORES.lock().iter().filter_map(Weak::upgrade).collect();
        let thread = self.thread.get().filter(|_| !self.is_main);
        let ending: Vec<_> = cores.iter().filter_map(|core| Some((core, core.end_cached(thread)?))).collect();
        // All requests are sent by now, so the waits overlap.
        let longest = ending.iter().map(|(core, _)| core.options.command_timeout).max().unwrap_or_default();
        let until = Clock::System.after(longest);
        for (core, releases) in ending {
            releases.wait(until, || {
                core.watchdog.wake(); // reads the answers
                true
            });
        }
    }
}

impl Core {
    /// Makes the cache thread release what this thread, or any, caches; returns the calls that end then.
    pub(crate) fn end_cached(&self, thread: Option<u64>) -> Option<Arc<Calls>> {
        let (service, _) = self.cache_thread.service.get()?.as_ref()?;
        let releases: Arc<Calls> = Arc::default();
        releases.close(); // no call follows: the last one wakes the ending thread
        self.cache_thread.ended.lock().push(Ended { thread, call: Arc::new(releases.begin()) });
        // The request is pushed before `is_stopped` is read. Pairs with `CacheThread::stop`.
        if service.is_stopped() {
            self.cache_thread.ended.lock().clear();
        }
        service.wake();
        Some(releases)
    }
}
