//! A thread that works when something is due, and sleeps in between.

use crate::error::{Error, ErrorKind, Result};
use crate::park::{Parker, ServiceWaker};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::time::{Clock, Moment};

pub(crate) struct Service {
    waker: ServiceWaker,
    /// When the thread works next, as `Moment::nanos`; the maximum while it works.
    next_check: AtomicU64,
    /// Earliest moment that the thread was woken for since it last worked.
    woken_for: AtomicU64,
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Service {
    pub(crate) fn new(clock: &Clock) -> (Service, Parker) {
        let parker = Parker::service(clock);
        let service = Service {
            waker: parker.service_waker(),
            next_check: AtomicU64::new(u64::MAX),
            woken_for: AtomicU64::new(u64::MAX),
            stop: AtomicBool::new(false),
            thread: Mutex::new(None),
        };
        (service, parker)
    }

    pub(crate) fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work).map_err(|error| {
            Error::new(ErrorKind::Resource, "connect", "the system could not start a thread")
                .with_source(error)
        })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// The thread's loop, until the service stops: `work` does what is due and returns when to continue. The
    /// argument of `work` is the earliest moment that the thread was woken for.
    pub(crate) fn run(&self, parker: &Parker, mut work: impl FnMut(Moment) -> Moment) {
        parker.is_mine();
        loop {
            // The maximum during `work`, so that each `run_by` meanwhile sends a signal.
            self.next_check.store(u64::MAX, Ordering::SeqCst);
            if self.is_stopped() {
                return;
            }
            let next = work(Moment::from_nanos(self.woken_for.swap(u64::MAX, Ordering::SeqCst)));
            self.next_check.store(next.nanos(), Ordering::SeqCst);
            parker.park(next, None);
        }
    }

    /// Makes the thread work by `moment`; sends no signal if it works earlier anyway. The caller must change
    /// the data before this call, so that the `work` that follows the call reads the new data.
    pub(crate) fn run_by(&self, moment: Moment) {
        if moment.nanos() < self.next_check.load(Ordering::SeqCst) {
            self.woken_for.fetch_min(moment.nanos(), Ordering::SeqCst);
            self.waker.wake();
        }
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    pub(crate) fn waker(&self) -> &ServiceWaker {
        &self.waker
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Ends the thread; waits for it unless called on it.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.end();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            drop(thread.join());
        }
    }
}
