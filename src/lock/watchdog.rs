//! The one thread per client that renews, notices what ended, and cleans up what was left in doubt.
//!
//! Renewals begin with a hold's entry in the table and end with its release beginning, so none is sent for a hold that
//! is not known to be granted or that is being given up. One that is in flight at the release finds the field gone.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::hold::{Hold, Standing};
use crate::lock::park::{Parker, ServiceWaker};
use crate::lock::report::Reporter;
use crate::lock::store::{Answer, Claim, Release, Store};
use crate::lock::table::Table;
use crate::observe::LossReason;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::time::{Clock, Moment};

pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    waker: ServiceWaker,
    clean_ups: CleanUps,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    orders: Mutex<Orders>,
    /// When the thread looks next, as `Moment::nanos`; the maximum while it is looking.
    next_look: AtomicU64,
}

#[derive(Default)]
struct Orders {
    clean_ups: Vec<CleanUp>,
    stop: bool,
}

/// A request of unknown outcome, to be undone or repeated until that is certain.
#[derive(Debug)]
struct CleanUp {
    claim: Claim,
    /// The request can have no effect that outlives this: what it may have set ends with its lease.
    until: Moment,
    next: Moment,
    /// How long to pause after the next failure. Others may be waiting for just this, so at first not long: what
    /// broke the request in doubt has often broken this connection too, and a new one does it.
    pause: Duration,
}

impl Watchdog {
    pub(crate) fn start(
        options: &Options,
        clock: &Clock,
        store: &Arc<dyn Store>,
        table: &Arc<Table>,
        reporter: &Arc<Reporter>,
    ) -> Result<Watchdog> {
        let shared =
            Arc::new(Shared { orders: Mutex::new(Orders::default()), next_look: AtomicU64::new(u64::MAX) });
        let parker = Parker::service(clock);
        let waker = parker.service_waker();
        store.attach(waker.clone());
        let round = Round {
            shared: Arc::clone(&shared),
            lease: options.lease,
            command_timeout: options.command_timeout,
            clock: clock.clone(),
            store: Arc::clone(store),
            table: Arc::clone(table),
            reporter: Arc::clone(reporter),
        };
        let thread = thread::Builder::new()
            .name("leasehold-watch".to_owned())
            .spawn(move || round.run(&parker))
            .map_err(|error| {
                Error::new(ErrorKind::Resource, "connect", "the watchdog thread could not be started")
                    .with_source(error)
            })?;
        let clean_ups = CleanUps { shared: Arc::clone(&shared), waker: waker.clone() };
        Ok(Watchdog { shared, waker, clean_ups, thread: Mutex::new(Some(thread)) })
    }

    /// Has the thread look by `moment`. Costs nothing if it will anyway.
    ///
    /// Whoever calls this has changed what the thread will see first. Pairs with `Round::run`, which opens `next_look`
    /// before it looks and sets it after.
    pub(crate) fn look_by(&self, moment: Moment) {
        if moment.nanos() < self.shared.next_look.load(Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Where claims in doubt are handed in.
    pub(crate) fn clean_ups(&self) -> &CleanUps {
        &self.clean_ups
    }

    /// Ends the thread; returns what was left to clean up. Never waits for itself.
    pub(crate) fn stop(&self) -> Vec<Claim> {
        self.shared.orders.lock().stop = true;
        self.waker.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            // The thread catches nothing and panics nowhere; if it did, there is nothing left to do about it.
            drop(thread.join());
        }
        let clean_ups = std::mem::take(&mut self.shared.orders.lock().clean_ups);
        clean_ups.into_iter().map(|clean_up| clean_up.claim).collect()
    }

    /// For a forked child: see `Engine`'s `Drop`.
    #[expect(clippy::mem_forget, reason = "a channel's end may not be dropped in a forked child")]
    pub(crate) fn leak(&self) {
        crate::lock::engine::leak(&self.shared);
        std::mem::forget(self.waker.clone());
    }
}

/// Where claims in doubt are handed in, from any thread.
#[derive(Clone)]
pub(crate) struct CleanUps {
    shared: Arc<Shared>,
    waker: ServiceWaker,
}

impl CleanUps {
    /// Takes over a claim whose acquire or release has an unknown outcome: until it is certain that the owner holds
    /// nothing, or until `until`, when the lease has run out. The owner number must have been given up.
    pub(crate) fn add(&self, claim: Claim, until: Moment, now: Moment) {
        self.shared.orders.lock().clean_ups.push(CleanUp { claim, until, next: now, pause: RETRY_LEAST });
        self.waker.wake();
    }
}

/// What the thread works with. It keeps no client alive: the engine ends it.
struct Round {
    shared: Arc<Shared>,
    lease: Duration,
    command_timeout: Duration,
    clock: Clock,
    store: Arc<dyn Store>,
    table: Arc<Table>,
    reporter: Arc<Reporter>,
}

impl Round {
    fn run(&self, parker: &Parker) {
        loop {
            self.shared.next_look.store(u64::MAX, Ordering::SeqCst);
            if self.shared.orders.lock().stop {
                return;
            }
            let next = self.round(parker.take_all_now());
            self.shared.next_look.store(next.nanos(), Ordering::SeqCst);
            parker.park(next, None);
        }
    }

    /// Does all that is due, or with `all` renews what is not due as well; says when something is due next.
    fn round(&self, all: bool) -> Moment {
        let holds = self.table.holds();
        let now = self.clock.now();
        let mut due = Vec::new();
        for hold in &holds {
            if self.notice(hold, now)
                && (hold.is_renewed() || hold.is_upheld())
                && (all || hold.due() <= now.plus(hold.slack()))
            {
                due.push(Arc::clone(hold));
            }
        }
        // Where renewals fail is asked last and by itself: its windows, which end soon, are not to cut the others short.
        let failing: Vec<u32> =
            due.iter().filter(|hold| hold.is_troubled()).map(|hold| hold.home()).collect();
        let (last, first): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|hold| failing.contains(&hold.home()));
        self.renew(&first);
        self.renew(&last);
        // The last try may have lasted until the window's end: that is told now, not a third of a lease later.
        let now = self.clock.now();
        for hold in first.iter().chain(&last) {
            self.notice(hold, now);
        }
        let cleaned = self.clean_up();
        let is_tending = self.store.tend();
        self.table.tidy(self.clock.now());
        let now = self.clock.now();
        let mut next = cleaned.min(now.plus(self.lease / 3));
        if is_tending {
            next = next.min(now.plus(TEND_EVERY));
        }
        for hold in &holds {
            if !matches!(hold.standing(now), Standing::Lost(_)) && !hold.is_releasing() {
                next = next.min(hold.until());
                if (hold.is_renewed() || hold.is_upheld()) && !hold.is_orphaned() {
                    next = next.min(hold.due());
                }
            }
        }
        next.max(now.plus(Duration::from_millis(1)))
    }

    /// Notices ends; returns whether the hold is to be kept alive.
    fn notice(&self, hold: &Arc<Hold>, now: Moment) -> bool {
        if hold.is_releasing() {
            return false;
        }
        let orphaned = hold.is_orphaned();
        if orphaned && hold.note_abandoned() {
            let (name, owner) = (hold.name().given().to_owned(), hold.owner());
            self.reporter.tell_later(move |observer| observer.abandoned(&name, owner));
        }
        if !hold.is_live(now, &self.reporter) {
            hold.retire_number();
            if orphaned {
                self.table.remove(hold); // nobody is left to release it
            } else {
                self.table.nudge(hold.kind(), hold.name());
            }
            return false;
        }
        !orphaned
    }

    fn renew(&self, holds: &[Arc<Hold>]) {
        let sent = self.clock.now();
        let (holds, claims): (Vec<_>, Vec<Claim>) =
            holds.iter().filter_map(|hold| Some((hold, hold.renewal(sent)?))).unzip();
        // Most urgent first, and no read lasts beyond the earliest window it serves: a hung server must not keep this
        // thread from telling that a hold has ended.
        let Some(earliest) = holds.iter().map(|hold| hold.until()).min() else { return };
        let by = sent.plus(self.command_timeout).min(earliest);
        let answers = self.store.renew(&claims, by);
        let now = self.clock.now();
        for ((hold, claim), answer) in holds.iter().zip(&claims).zip(answers) {
            match answer {
                Answer::Done(true) if hold.is_renewed() => hold.confirm(sent, claim.lease),
                Answer::Done(true) => hold.note_upheld(sent),
                Answer::Done(false) => {
                    // A hold whose release began meanwhile is rightly gone; its owner hears from the release.
                    if !hold.is_releasing() && hold.lose(LossReason::Gone, &self.reporter) {
                        hold.retire_number();
                        self.table.nudge(hold.kind(), hold.name());
                    }
                }
                // An error is not a loss: tried again until the window ends.
                Answer::Refused(error) | Answer::Unknown(error) => {
                    if error.outcome_unknown() {
                        hold.spend_number(); // it may yet come, and is not to prolong the thread's next hold
                    }
                    hold.note_failed_renewal(now.plus(hold.slack().clamp(RETRY_LEAST, RETRY_MOST)));
                    let error = error.during("renew").on(hold.name().given());
                    let remaining = hold.until().since(self.clock.now());
                    let name = hold.name().given().to_owned();
                    self.reporter
                        .tell_later(move |observer| observer.renewal_failed(&name, &error, remaining));
                }
            }
        }
    }

    /// Goes through the clean-ups that are due; returns when the next one is.
    fn clean_up(&self) -> Moment {
        let now = self.clock.now();
        let (mut due, later): (Vec<_>, Vec<_>) = {
            let mut orders = self.shared.orders.lock();
            std::mem::take(&mut orders.clean_ups).into_iter().partition(|clean_up| clean_up.next <= now)
        };
        let claims: Vec<Claim> = due.iter().map(|clean_up| clean_up.claim.clone()).collect();
        if !claims.is_empty() {
            let answers = self.store.abandon(&claims, now.plus(self.command_timeout));
            let now = self.clock.now();
            let mut answers = answers.into_iter();
            due.retain_mut(|clean_up| {
                let pause = match answers.next() {
                    Some(Answer::Done(Release::Freed { .. })) => {
                        self.table.nudge(clean_up.claim.kind, &clean_up.claim.name);
                        return false; // what was in doubt had happened, once, and is undone
                    }
                    // Nothing there: it never arrived, or may arrive yet. Look again until it could do no harm.
                    Some(Answer::Done(_)) => self.command_timeout,
                    Some(Answer::Refused(_) | Answer::Unknown(_)) | None => {
                        let most = (self.lease / 30).clamp(RETRY_LEAST, RETRY_MOST);
                        let doubled = (clean_up.pause * 2).min(most);
                        std::mem::replace(&mut clean_up.pause, doubled)
                    }
                };
                clean_up.next = now.plus(pause);
                clean_up.next < clean_up.until
            });
        }
        due.extend(later);
        let mut orders = self.shared.orders.lock();
        orders.clean_ups.append(&mut due);
        orders.clean_ups.iter().map(|clean_up| clean_up.next).min().unwrap_or(Moment::NEVER)
    }
}

/// How long the answer of a release that nobody waits for may lie unread.
pub(crate) const TEND_EVERY: Duration = Duration::from_millis(20);

/// How long to pause after a failed renewal: a thirtieth of the lease, but within these. After failed clean-ups it is
/// the least at first, and doubled up to that.
const RETRY_LEAST: Duration = Duration::from_millis(10);
const RETRY_MOST: Duration = Duration::from_secs(1);

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").finish_non_exhaustive()
    }
}
