//! Putting the calling thread to sleep until it is woken, interrupted, or out of time.

use crate::lock::interrupt::Interrupt;
use crate::sync::channel::{Receiver, Sender, after, bounded, never, select};
use crate::time::{Clock, Moment, wake};

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
    signal: Receiver<()>,
    waker: Sender<()>,
    clock: Clock,
    registered: Option<u64>,
    is_service: bool,
}

impl Parker {
    pub(crate) fn new(clock: &Clock) -> Parker {
        let (waker, signal) = bounded(1);
        let registered = match clock {
            Clock::System => None,
            Clock::Manual(manual) => Some(manual.register(waker.clone())),
        };
        Parker { signal, waker, clock: clock.clone(), registered, is_service: false }
    }

    /// A parker of a thread that acts by the clock: a manual clock does not move past what it sleeps until.
    pub(crate) fn service(clock: &Clock) -> Parker {
        let mut parker = Parker::new(clock);
        parker.is_service = true;
        parker.tell_clock(None);
        parker
    }

    pub(crate) fn waker(&self) -> &Sender<()> {
        &self.waker
    }

    /// What wakes this service from another thread.
    pub(crate) fn service_waker(&self) -> ServiceWaker {
        ServiceWaker { waker: self.waker.clone(), clock: self.clock.clone(), registered: self.registered }
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
        let woken = match &self.clock {
            Clock::System => self.sleep(interrupt, (until != Moment::NEVER).then(|| until.since(now))),
            // Moving the clock signals; the time is looked at after.
            Clock::Manual(_) => self.sleep(interrupt, None),
        };
        self.tell_clock(None);
        if woken == Woken::Signal && self.clock.now() >= until { Woken::Time } else { woken }
    }

    fn sleep(&self, interrupt: Option<&Interrupt>, at_most: Option<std::time::Duration>) -> Woken {
        let nothing = never();
        let interrupted = interrupt.map_or(&nothing, Interrupt::receiver);
        let timer = at_most.map_or_else(never, after);
        select! {
            recv(self.signal) -> _ => Woken::Signal,
            recv(interrupted) -> _ => Woken::Interrupted,
            recv(timer) -> _ => Woken::Time,
        }
    }

    fn tell_clock(&self, asleep_until: Option<Moment>) {
        if let (true, Clock::Manual(clock), Some(id)) = (self.is_service, &self.clock, self.registered) {
            clock.service(id, asleep_until);
            if asleep_until.is_some_and(|until| self.clock.now() >= until) {
                wake(&self.waker); // the clock moved between the caller's look and this
            }
        }
    }
}

/// Wakes a service's thread. A manual clock does not move before the thread has looked.
#[derive(Debug, Clone)]
pub(crate) struct ServiceWaker {
    waker: Sender<()>,
    clock: Clock,
    registered: Option<u64>,
}

impl ServiceWaker {
    pub(crate) fn wake(&self) {
        match (&self.clock, self.registered) {
            (Clock::Manual(clock), Some(id)) => clock.wake_service(id, &self.waker),
            _ => wake(&self.waker),
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
