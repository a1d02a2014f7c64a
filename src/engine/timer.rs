//! The one thread per client that notices, and does nothing that could hold it up: no I/O that is waited for,
//! nobody else's code.
//!
//! It sees to it that the end of a window, or of a holding thread, is reported when it comes, and that
//! renewals go to the watchdog when they are due. A request that hangs there, or a callback, delays nothing
//! here.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::agenda::slot_of;
use crate::engine::cleanup::RenewalOrders;
use crate::engine::directory::Announcer;
use crate::engine::hold::{Hold, Standing};
use crate::engine::policy::{renewal_period, renewal_slack};
use crate::engine::registry::Registry;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::LossReason;
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::park::{Parker, ServiceWaker};
use crate::seam::Store;
use crate::seam::capabilities::ConnectionWatch;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::time::{Clock, Moment};

pub(crate) struct Timer {
    alarm: Alarm,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Sets the timer, from any thread.
#[derive(Clone)]
pub(crate) struct Alarm {
    shared: Arc<TimerShared>,
    waker: ServiceWaker,
}

struct TimerShared {
    stop: AtomicBool,
    /// When the thread looks next, as `Moment::nanos`; the maximum while it is looking.
    next_look: AtomicU64,
    /// The earliest moment that it was woken for since it last looked. It looks then even if nothing is due
    /// by then any more: where holds come and go, each would wake it else.
    woken_for: AtomicU64,
}

/// The state of the thread. It keeps no client alive.
pub(crate) struct Looks {
    pub(crate) lease: Duration,
    pub(crate) clock: Clock,
    /// Asked for what it sees without waiting, and for nothing else.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) announcer: Arc<Announcer>,
    pub(crate) orders: RenewalOrders,
}

/// The most holds that are taken from the registry under its mutex at a time.
const AT_A_TIME: usize = 256;

/// Looks that lie closer together than this are one.
const LEAST: Duration = Duration::from_millis(1);

/// A sleeping thread does not notice that the machine was suspended: an end meanwhile is reported this much
/// later at most.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The time between two looks at connections while anything is held.
const HUNG_UP_EVERY: Duration = Duration::from_millis(50);

/// The time for which connections are looked at still after something was held: locks that come and go wake
/// this thread once, not each.
const HELD_LATELY: Duration = Duration::from_secs(1);

/// After one was hung up it is not done again sooner: what is connected anew may be hung up again and again.
const HUNG_UP_APART: Duration = Duration::from_secs(1);

impl Alarm {
    pub(crate) fn new(parker: &Parker) -> Alarm {
        let shared = TimerShared {
            stop: AtomicBool::new(false),
            next_look: AtomicU64::new(u64::MAX),
            woken_for: AtomicU64::new(u64::MAX),
        };
        Alarm { shared: Arc::new(shared), waker: parker.service_waker() }
    }

    /// Has the thread look by `moment`. Costs nothing if it will anyway.
    ///
    /// The caller has changed first what the thread will see. Pairs with `Looks::run`, which opens
    /// `next_look` before it looks and sets it after.
    pub(crate) fn look_by(&self, moment: Moment) {
        if moment.nanos() < self.shared.next_look.load(Ordering::SeqCst) {
            self.shared.woken_for.fetch_min(moment.nanos(), Ordering::SeqCst);
            self.waker.wake();
        }
    }

    pub(crate) fn waker(&self) -> &ServiceWaker {
        &self.waker
    }
}

impl Timer {
    pub(crate) fn start(alarm: Alarm, parker: Parker, looks: Looks) -> Result<Timer> {
        let shared = Arc::clone(&alarm.shared);
        let thread = thread::Builder::new()
            .name("leasehold-time".to_owned())
            .spawn(move || looks.run(&shared, &parker))
            .map_err(|error| {
                Error::new(ErrorKind::Resource, "connect", "the timer thread could not be started")
                    .with_source(error)
            })?;
        Ok(Timer { alarm, thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Ends the thread. Never waits for itself.
    pub(crate) fn stop(&self) {
        self.alarm.shared.stop.store(true, Ordering::SeqCst);
        self.alarm.waker.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            // The thread catches nothing and panics nowhere; if it did, there is nothing left to do about it.
            drop(thread.join());
        }
    }

    /// For a forked child: see `Engine`'s `Drop`.
    #[expect(clippy::mem_forget, reason = "a channel's end may not be dropped in a forked child")]
    pub(crate) fn leak(&self) {
        crate::fork::leak(&self.alarm.shared);
        std::mem::forget(self.alarm.waker.clone());
    }
}

impl Looks {
    fn run(&self, shared: &TimerShared, parker: &Parker) {
        let mut next_hung_up = self.clock.now();
        let mut held_until = next_hung_up;
        loop {
            shared.next_look.store(u64::MAX, Ordering::SeqCst);
            if shared.stop.load(Ordering::SeqCst) {
                return;
            }
            if parker.take_bounds_ended() {
                self.look_at(self.registry.bound(), self.clock.now());
            }
            let woken_for = Moment::from_nanos(shared.woken_for.swap(u64::MAX, Ordering::SeqCst));
            let mut next = self.look(woken_for);
            let now = self.clock.now();
            if self.registry.first_due() != Moment::NEVER || woken_for != Moment::NEVER {
                held_until = now.plus(HELD_LATELY);
            }
            if now < held_until {
                next_hung_up = self.look_at_connections(next_hung_up);
                next = next.min(next_hung_up);
                if self.announcer.want(now) {
                    self.orders.cleanups.waker.wake();
                }
            } else if next_hung_up != Moment::NEVER || self.announcer.is_on() {
                // The next hold wakes it, so that it looks at connections again, and has the client's entry
                // be written.
                next = Moment::NEVER;
            }
            shared.next_look.store(next.nanos(), Ordering::SeqCst);
            parker.park(next, None);
        }
    }

    /// Sees to all that is due, and says when to look next.
    fn look(&self, woken_for: Moment) -> Moment {
        loop {
            let now = self.clock.now();
            let due = self.registry.due(now, renewal_slack(self.lease), AT_A_TIME);
            if due.is_empty() {
                break;
            }
            self.look_at(due, now);
        }
        let now = self.clock.now();
        let first = self.registry.first_due();
        let longest = match self.clock {
            Clock::System if first != Moment::NEVER => LONGEST_SLEEP.min(renewal_period(self.lease)),
            // Each renewal is due later than that.
            Clock::System | Clock::Manual(_) => renewal_period(self.lease),
        };
        let asked = if woken_for > now { woken_for } else { Moment::NEVER };
        first.min(asked).min(now.plus(longest)).max(now.plus(LEAST))
    }

    /// Has some be renewed at once when what they rest on may be gone with a connection. Says when that is
    /// looked for next.
    fn look_at_connections(&self, due: Moment) -> Moment {
        let now = self.clock.now();
        if now < due {
            return due;
        }
        match self.store.capabilities().connections.and_then(ConnectionWatch::hung_up) {
            None => Moment::NEVER,
            Some(false) => now.plus(HUNG_UP_EVERY),
            Some(true) => {
                self.orders.renew_some(&self.registry, self.lease, now);
                now.plus(HUNG_UP_APART)
            }
        }
    }

    fn look_at(&self, holds: Vec<Arc<Hold>>, now: Moment) {
        let mut renewals = Vec::new();
        for hold in holds {
            if self.is_to_be_kept(&hold, now) && hold.due() <= now.plus(hold.slack()) && hold.is_renewable() {
                renewals.push(Arc::clone(&hold));
            } else {
                self.registry.put(&hold, slot_of(&hold, now));
            }
        }
        self.orders.queue(&self.registry, renewals, now);
    }

    /// Notices ends; returns whether the hold is to be kept alive.
    fn is_to_be_kept(&self, hold: &Arc<Hold>, now: Moment) -> bool {
        if hold.is_releasing() {
            return false;
        }
        let orphaned = hold.is_orphaned();
        if orphaned && hold.note_abandoned() {
            let (name, kind, owner) = (Arc::clone(hold.name()), hold.kind().label(), hold.owner());
            self.reporter.observe_later(move |observer| {
                observer.event(&Event::Abandoned { name: name.given(), kind, owner });
            });
        }
        if hold.is_live(now, &self.reporter) {
            return !orphaned;
        }
        self.let_lapse(hold, now);
        false
    }

    /// The end of a hold that was lost and not released.
    fn let_lapse(&self, hold: &Arc<Hold>, now: Moment) {
        let is_first = hold.note_lapsed();
        if is_first
            && hold.is_in_doubt()
            && matches!(hold.standing(now), Standing::Lost(LossReason::Expired | LossReason::HeldTooLong))
        {
            // A renewal that went without an answer may yet have come in time: the lock would be taken by
            // nobody.
            self.orders.undo_renewal(hold, now);
        }
        if !hold.is_of_any_thread() || hold.is_orphaned() {
            self.registry.remove(hold); // nobody would ask the registry for it
        } else if is_first {
            hold.entry().nudge();
            if !hold.was_renewed() {
                self.registry.remember_lapsed(hold);
            }
        }
    }
}
