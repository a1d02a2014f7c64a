//! A thread that looks when something is due, and sleeps in between.

use crate::error::{Error, ErrorKind, Result};
use crate::park::{Parker, ServiceWaker};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::time::{Clock, Moment};

/// The handle of such a thread, for those who give it work. Its owner stops it.
pub(crate) struct Service {
    waker: ServiceWaker,
    /// When the thread looks next, as `Moment::nanos`; the maximum while it is looking.
    next_look: AtomicU64,
    /// The earliest moment that it was woken for since it last looked.
    woken_for: AtomicU64,
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Service {
    /// The handle, and the place where the thread sleeps.
    pub(crate) fn new(clock: &Clock) -> (Service, Parker) {
        let parker = Parker::service(clock);
        let service = Service {
            waker: parker.service_waker(),
            next_look: AtomicU64::new(u64::MAX),
            woken_for: AtomicU64::new(u64::MAX),
            stop: AtomicBool::new(false),
            thread: Mutex::new(None),
        };
        (service, parker)
    }

    /// Starts the thread. It does `work`, which calls [`run`](Self::run).
    pub(crate) fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work).map_err(|error| {
            Error::new(ErrorKind::Resource, "connect", "the system could not start a thread")
                .with_source(error)
        })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// The thread's: has `look` do what is due and say when to look next, until the service is stopped.
    /// `look` is given the earliest moment that it was woken for.
    pub(crate) fn run(&self, parker: &Parker, mut look: impl FnMut(Moment) -> Moment) {
        parker.is_mine();
        loop {
            // Opened before the look, set after it. Pairs with `look_by`.
            self.next_look.store(u64::MAX, Ordering::SeqCst);
            if self.is_stopped() {
                return;
            }
            let next = look(Moment::from_nanos(self.woken_for.swap(u64::MAX, Ordering::SeqCst)));
            self.next_look.store(next.nanos(), Ordering::SeqCst);
            parker.park(next, None);
        }
    }

    /// Has the thread look by `moment`. Costs nothing if it will anyway.
    ///
    /// The caller has changed first what the thread will see. Pairs with `run`, which opens `next_look`
    /// before it looks and sets it after.
    pub(crate) fn look_by(&self, moment: Moment) {
        if moment.nanos() < self.next_look.load(Ordering::SeqCst) {
            self.woken_for.fetch_min(moment.nanos(), Ordering::SeqCst);
            self.waker.wake();
        }
    }

    /// Has the thread look now.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    pub(crate) fn waker(&self) -> &ServiceWaker {
        &self.waker
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Ends the thread, which does not look again. Never waits for itself.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.end();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            // The thread catches nothing and panics nowhere; if it did, there is nothing left to do about it.
            drop(thread.join());
        }
    }
}
