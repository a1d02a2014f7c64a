//! Putting the calling thread to sleep until it is woken, interrupted, or out of time.

use std::sync::Arc;

use crate::lock::interrupt::Interrupt;
use crate::sync::Waker;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::{Clock, Moment};

/// Why a parked thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Its waker was used, perhaps for a reason that is gone: look again.
    Signal,
    /// The time came.
    Time,
    /// The interrupt was set.
    Interrupted,
}

/// One thread's place to sleep. Its signal is sticky: a wake-up that comes before the thread sleeps is not lost, two
/// before it looks are one.
#[derive(Debug)]
pub(crate) struct Parker {
    waker: Waker,
    clock: Clock,
    registered: Option<u64>,
    is_service: bool,
    asked: Arc<Asked>,
}

/// What stores have asked of a service.
#[derive(Debug, Default)]
struct Asked {
    bounds_ended: AtomicBool,
}

impl Parker {
    pub(crate) fn new(clock: &Clock) -> Parker {
        let waker = Waker::default();
        let registered = match clock {
            Clock::System => None,
            Clock::Manual(manual) => Some(manual.register(waker.clone())),
        };
        Parker { waker, clock: clock.clone(), registered, is_service: false, asked: Arc::default() }
    }

    /// A parker of a thread that acts by the clock: a manual clock does not move past what it sleeps until.
    pub(crate) fn service(clock: &Clock) -> Parker {
        let mut parker = Parker::new(clock);
        parker.is_service = true;
        parker.tell_clock(None);
        parker
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// What wakes this service from another thread.
    pub(crate) fn service_waker(&self) -> ServiceWaker {
        ServiceWaker {
            waker: self.waker.clone(),
            clock: self.clock.clone(),
            registered: self.registered,
            asked: Arc::clone(&self.asked),
        }
    }

    /// Whether holds may have ended early, since the last look; takes that. See [`ServiceWaker::bounds_ended`].
    pub(crate) fn take_bounds_ended(&self) -> bool {
        self.asked.bounds_ended.swap(false, Ordering::SeqCst)
    }

    /// Sleeps until `until`, a signal, or the interrupt, whichever is first.
    pub(crate) fn park(&self, until: Moment, interrupt: Option<&Interrupt>) -> Woken {
        if interrupt.is_some_and(Interrupt::is_interrupted) {
            return Woken::Interrupted;
        }
        let now = self.clock.now();
        if now >= until {
            return Woken::Time;
        }
        self.tell_clock(Some(until));
        let interrupting = interrupt.map(|interrupt| interrupt.wakes(&self.waker));
        let limit = match &self.clock {
            Clock::System => (until != Moment::NEVER).then(|| until.since(now)),
            // Moving the clock signals; the time is looked at after.
            Clock::Manual(_) => None,
        };
        let is_signal = self.waker.sleep(limit);
        drop(interrupting);
        self.tell_clock(None);
        if interrupt.is_some_and(Interrupt::is_interrupted) {
            Woken::Interrupted
        } else if is_signal && self.clock.now() < until {
            Woken::Signal
        } else {
            Woken::Time
        }
    }

    fn tell_clock(&self, asleep_until: Option<Moment>) {
        if let (true, Clock::Manual(clock), Some(id)) = (self.is_service, &self.clock, self.registered) {
            clock.service(id, asleep_until);
            if asleep_until.is_some_and(|until| self.clock.now() >= until) {
                self.waker.wake(); // the clock moved between the caller's look and this
            }
        }
    }
}

/// Wakes a service's thread. A manual clock does not move before the thread has looked.
#[derive(Debug, Clone)]
pub(crate) struct ServiceWaker {
    waker: Waker,
    clock: Clock,
    registered: Option<u64>,
    asked: Arc<Asked>,
}

impl ServiceWaker {
    /// Says that what holds are bound to (`Store::bound`) may have ended, so that it is told now.
    #[cfg_attr(
        not(any(feature = "zookeeper", feature = "etcd")),
        allow(dead_code, reason = "other stores bind nothing")
    )]
    pub(crate) fn bounds_ended(&self) {
        self.asked.bounds_ended.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        match (&self.clock, self.registered) {
            (Clock::Manual(clock), Some(id)) => clock.wake_service(id, &self.waker),
            _ => self.waker.wake(),
        }
    }
}

impl Drop for Parker {
    fn drop(&mut self) {
        if let (Clock::Manual(clock), Some(id)) = (&self.clock, self.registered) {
            clock.forget(id);
        }
    }
}
