//! Putting the calling thread to sleep until it is woken, interrupted, or out of time. A *service* is a
//! thread of the client that works when something is due.

mod service;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use crate::interrupt::Interrupt;
pub(crate) use crate::park::service::Service;
use crate::sync::Waker;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::{Clock, Moment};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The waker was signalled, perhaps for a reason that no longer holds, so the caller checks again.
    Signal,
    Time,
    Interrupted,
}

/// Puts a thread to sleep. A wake-up before the sleep ends the sleep at once; several count as one.
#[derive(Debug)]
pub(crate) struct Parker {
    waker: Waker,
    clock: Clock,
    registered: Option<u64>,
    is_service: bool,
    asked: Arc<ServiceState>,
}

#[derive(Debug, Default)]
struct ServiceState {
    bounds_ended: AtomicBool,
    /// Whether a test makes the service's thread stand still.
    stands_still: AtomicBool,
    /// Whether the client is ending. [`take_time`] then returns at once: the clock may never move again.
    is_ending: AtomicBool,
}

thread_local! {
    /// If this thread is a service: its registration number at a manual clock, its waker, and its state.
    static SERVICE: RefCell<Option<(u64, Waker, Arc<ServiceState>)>> = const { RefCell::new(None) };
}

/// Lets `span` pass. On a manual clock, a service waits until others have moved the clock that far; any other
/// thread moves the clock itself.
pub(crate) fn take_time(clock: &Clock, span: Duration) {
    let Clock::Manual(manual) = clock else {
        Parker::new(clock).park(clock.after(span), None);
        return;
    };
    let Some((id, waker, asked)) = SERVICE.with(|service| service.borrow().clone()) else {
        return manual.advance(span);
    };
    let until = clock.after(span);
    let is_over = || clock.now() >= until || asked.is_ending.load(Ordering::SeqCst);
    while !is_over() {
        manual.service(id, Some(until));
        // If the clock moved, or the client ended, before the registration, nothing would end the sleep.
        if !is_over() {
            waker.sleep(None);
        }
    }
    manual.service(id, None);
    waker.wake(); // the service has not yet acted on the signals taken here
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

    /// A parker for a service: a manual clock does not move past the moment until which the service sleeps.
    pub(crate) fn service(clock: &Clock) -> Parker {
        let mut parker = Parker::new(clock);
        parker.is_service = true;
        parker.note_sleep(None);
        parker
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(crate) fn service_waker(&self) -> ServiceWaker {
        ServiceWaker {
            waker: self.waker.clone(),
            clock: self.clock.clone(),
            registered: self.registered,
            asked: Arc::clone(&self.asked),
        }
    }

    /// Whether [`ServiceWaker::bounds_ended`] was called since the last take: holds may have ended early.
    pub(crate) fn take_bounds_ended(&self) -> bool {
        self.asked.bounds_ended.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn park(&self, until: Moment, interrupt: Option<&Interrupt>) -> Woken {
        if self.is_service {
            self.while_still();
        }
        let woken = self.sleep(until, interrupt);
        if self.is_service {
            self.while_still();
        }
        woken
    }

    /// Sleeps while a test makes this service stand still. The service counts as asleep meanwhile, so a
    /// manual clock does not wait for it.
    fn while_still(&self) {
        let mut has_slept = false;
        while self.asked.stands_still.load(Ordering::SeqCst) {
            self.note_sleep(Some(Moment::NEVER));
            self.waker.sleep(None);
            self.note_sleep(None);
            has_slept = true;
        }
        if has_slept {
            self.waker.wake(); // a signal taken here may be about due work, so the service checks
        }
    }

    pub(crate) fn is_mine(&self) {
        if let Some(id) = self.registered {
            SERVICE.with(|service| {
                service.borrow_mut().get_or_insert_with(|| (id, self.waker.clone(), Arc::clone(&self.asked)));
            });
        }
    }

    fn sleep(&self, until: Moment, interrupt: Option<&Interrupt>) -> Woken {
        if interrupt.is_some_and(Interrupt::is_interrupted) {
            return Woken::Interrupted;
        }
        let now = self.clock.now();
        if now >= until {
            return Woken::Time;
        }
        self.note_sleep(Some(until));
        let interrupting = interrupt.map(|interrupt| interrupt.wakes(&self.waker));
        let limit = match &self.clock {
            Clock::System => (until != Moment::NEVER).then(|| until.since(now)),
            // No time-out: a moved clock sends a signal, and the time is checked after the sleep.
            Clock::Manual(_) => None,
        };
        let is_signal = self.waker.sleep(limit);
        drop(interrupting);
        self.note_sleep(None);
        if interrupt.is_some_and(Interrupt::is_interrupted) {
            Woken::Interrupted
        } else if is_signal && self.clock.now() < until {
            Woken::Signal
        } else {
            Woken::Time
        }
    }

    fn note_sleep(&self, asleep_until: Option<Moment>) {
        if let (true, Clock::Manual(clock), Some(id)) = (self.is_service, &self.clock, self.registered) {
            clock.service(id, asleep_until);
            if asleep_until.is_some_and(|until| self.clock.now() >= until) {
                self.waker.wake(); // the clock moved between the caller's check and this
            }
        }
    }
}

/// Wakes a service's thread. A manual clock then stands still until the thread has done what is due.
#[derive(Debug, Clone)]
pub(crate) struct ServiceWaker {
    waker: Waker,
    clock: Clock,
    registered: Option<u64>,
    asked: Arc<ServiceState>,
}

impl ServiceWaker {
    /// Wakes the service, because the client ends, and perhaps nobody moves its manual clock again.
    pub(crate) fn end(&self) {
        self.asked.is_ending.store(true, Ordering::SeqCst);
        self.stand_still(false);
    }

    pub(crate) fn stand_still(&self, still: bool) {
        self.asked.stands_still.store(still, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the service to check for lost holds: a store's session, with which its holds end, may be over.
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
