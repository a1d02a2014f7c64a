//! The parts that a client's threads work with: its store, the calls under way, and the work that any thread
//! leaves to others: claims in doubt, holds to renew, and moments to check by.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Options;
use crate::engine::directory::Announcer;
use crate::engine::hold::{Hold, LocalLock};
use crate::engine::pace::POLL_COMPLETIONS_EVERY;
use crate::engine::registry::Registry;
use crate::engine::store::Unopened;
use crate::engine::stuck::{PublishedWaits, Stuck};
use crate::error::{Error, Result};
use crate::ident::{ClientId, LockName};
use crate::observe::LossReason;
use crate::observe::reporter::Reporter;
use crate::park::{Parker, Service, ServiceWaker};
use crate::seam::{Claim, Kind, Store};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, OnceLock, Waker};
use crate::time::{Clock, Moment, wall_ms};

/// The state that a client's threads, its callers and readers of its answers share. A core keeps no client
/// alive: the engine ends the threads and closes the store, which drops missing answers.
pub(crate) struct Core {
    pub(crate) id: ClientId,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) store: StoreCell,
    pub(crate) registry: Registry,
    pub(crate) calls: Arc<Calls>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) announcer: Announcer,
    pub(crate) published_waits: PublishedWaits,
    pub(crate) watchdog: Service,
    pub(crate) timer: Service,
    pub(crate) cache_thread: CacheThread,
    pub(crate) inbox: Mutex<Inbox>,
    /// A connection has ended, and only a sample was renewed: one lost hold makes the watchdog renew all.
    pub(crate) is_sampled: AtomicBool,
}

impl Core {
    /// Also returns the parkers of the watchdog and the timer, which are not started yet.
    pub(crate) fn new(
        options: Options,
        clock: Clock,
        store: StoreCell,
        reporter: Arc<Reporter>,
    ) -> (Arc<Core>, [Parker; 2]) {
        let id = ClientId::random();
        let (watchdog, watchdogs_parker) = Service::new(&clock);
        let (timer, timers_parker) = Service::new(&clock);
        attach(&*store, timer.waker());
        let core = Core {
            id,
            store,
            registry: Registry::default(),
            calls: Arc::default(),
            reporter,
            announcer: Announcer::new(id, &options, &clock),
            published_waits: PublishedWaits::new(options.detect_deadlocks_after),
            watchdog,
            timer,
            cache_thread: CacheThread::default(),
            inbox: Mutex::default(),
            is_sampled: AtomicBool::new(false),
            options,
            clock,
        };
        (Arc::new(core), [watchdogs_parker, timers_parker])
    }

    /// Makes the threads stand still, or go on: see [`Parker::service`].
    pub(crate) fn stand_still(&self, still: bool) {
        self.watchdog.waker().stand_still(still);
        self.timer.waker().stand_still(still);
    }

    /// Ends the threads; returns the claims that are due to be cleaned up. A claim that its owner may still
    /// keep for a while is not among them: it ends with its lease.
    pub(crate) fn stop(&self) -> Vec<Claim> {
        self.watchdog.stop();
        self.timer.stop();
        self.cache_thread.stop();
        let cleanups = std::mem::take(&mut self.inbox.lock().cleanups);
        let now = self.clock.now();
        cleanups.into_iter().filter(|cleanup| cleanup.from <= now).map(|cleanup| cleanup.claim).collect()
    }

    pub(crate) fn watch(&self, hold: &Arc<Hold>) {
        self.timer.run_by(hold.look_in_time(self.clock.now()));
    }

    /// Something is held or waited for: makes the watchdog write the client's entry, if that is due.
    pub(crate) fn announce(&self, now: Moment) {
        if self.announcer.want(now) {
            self.watchdog.wake();
        }
    }

    /// A wait that began at `since` is about to sleep: makes the watchdog check it when it may be part of a
    /// deadlock. Costs nothing if another wait is checked sooner.
    pub(crate) fn note_wait(&self, since: Moment) {
        if let Some(by) = self.published_waits.note_wait(since) {
            self.watchdog.run_by(by);
        }
    }

    /// The waits of this client that have lasted for long enough to be part of a deadlock.
    pub(crate) fn stuck(&self, now: Moment) -> Stuck {
        self.registry.stuck(self.id, (now, wall_ms()), self.published_waits.after, &self.options.under)
    }

    /// Takes over a claim whose acquire or release has an unknown outcome, until the owner certainly holds
    /// nothing, or until `until`, when what was left has expired (see [`Cleanup::until`]). The owner may keep
    /// its hold until `from`, and its number must have been retired.
    pub(crate) fn clean_up(&self, claim: Claim, until: Moment, from: Moment) {
        let cleanup = Cleanup { claim, until, from, next: from, pause: RETRY_LEAST, tries: 0 };
        self.inbox.lock().cleanups.push(cleanup);
        self.watchdog.wake();
    }

    /// A hold is lost here, but a renewal without an answer may have prolonged it in the store, or may yet.
    /// The lock would be held without an owner, so the renewal is undone.
    pub(crate) fn undo_renewal(&self, hold: &Arc<Hold>, now: Moment) {
        hold.retire_owner(); // the hold has expired, perhaps not reported yet
        let claim = hold.claim();
        let until = now.plus(claim.lease).plus(self.options.command_timeout);
        self.clean_up(claim, until, now);
    }

    /// Reports to a store of several servers that the hold of this claim ended during its renewal. A server
    /// that got the release before the renewal has to forget the hold once more. A release that is sent from
    /// here on comes after both. Pairs with `Majority::ended_meanwhile`.
    pub(crate) fn tell_if_ended(&self, hold: &Hold, claim: &Claim, now: Moment) {
        if (hold.is_releasing() || hold.loss_at(now).is_some())
            && let Some(majority) = self.store.capabilities().majority
        {
            majority.ended_meanwhile(claim);
        }
    }

    pub(crate) fn confirm(&self, hold: &Arc<Hold>, sent: Moment, lease: Duration) {
        let in_time = if hold.is_renewed() {
            hold.confirm(sent, lease, &self.clock)
        } else {
            hold.with(|own| own.kept_alive_at = sent);
            true
        };
        let now = self.clock.now();
        if !in_time {
            self.lose_at(hold, LossReason::Expired, now);
        }
        if matches!(hold.loss_at(now), Some(LossReason::Expired | LossReason::HeldTooLong)) {
            self.undo_renewal(hold, now);
        }
    }

    /// Makes the watchdog renew these, unless it already has them. Until the watchdog is done with a hold,
    /// the timer checks only for its end.
    pub(crate) fn renew(&self, mut holds: Vec<Arc<Hold>>, now: Moment) {
        holds.retain(|hold| {
            let is_new = hold.is_first(|own| &mut own.is_queued);
            hold.look_in_time(now);
            is_new
        });
        if !holds.is_empty() {
            self.inbox.lock().renewals.append(&mut holds);
            self.watchdog.wake();
        }
    }

    /// A connection has ended, perhaps with the server of held locks: renews a sample. If one of the sample
    /// is lost, all are renewed (see `Round::renew`).
    pub(crate) fn renew_some(&self, now: Moment) {
        let (some, has_more) = sample(self.registry.renewed(now));
        self.is_sampled.store(has_more, Ordering::SeqCst);
        self.renew(some, now);
    }
}

/// The thread that releases cached holds, started for the first of them, and the locks that it checks.
#[derive(Default)]
pub(crate) struct CacheThread {
    /// `None` inside: the thread could not be started, so nothing is cached.
    pub(crate) service: OnceLock<Option<(Arc<Service>, Waker)>>,
    pub(crate) locks: Mutex<Vec<Arc<LocalLock>>>,
    /// The ending threads that wait for the release of their cached holds.
    pub(crate) ended: Mutex<Vec<Ended>>,
}

pub(crate) struct Ended {
    /// `None`: all threads.
    pub(crate) thread: Option<u64>,
    pub(crate) call: Arc<Call>,
}

impl CacheThread {
    pub(crate) fn watch(&self, service: &Service, lock: &Arc<LocalLock>, moment: Moment) {
        if !lock.is_watched.swap(true, Ordering::SeqCst) {
            // The lock is listed before the thread is woken, which then reads the list.
            self.locks.lock().push(Arc::clone(lock));
        }
        service.run_by(moment);
    }

    pub(crate) fn stop(&self) {
        if let Some(Some((service, _))) = self.service.get() {
            service.stop();
            // The thread is stopped before the list is cleared. Pairs with `Core::end_cached`.
            self.ended.lock().clear();
        }
    }
}

/// The pause after the first failed clean-up. It doubles up to a 30th of the lease, at most `RETRY_MOST`.
pub(crate) const RETRY_LEAST: Duration = Duration::from_millis(10);
pub(crate) const RETRY_MOST: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) renewals: Vec<Arc<Hold>>,
    pub(crate) cleanups: Vec<Cleanup>,
}

/// A request of unknown outcome, to be undone or repeated until that is certain.
#[derive(Debug)]
pub(crate) struct Cleanup {
    pub(crate) claim: Claim,
    /// The request has no effect after this: what it may have set ends with its lease. If the store says
    /// otherwise ([`outlasts_leases`](crate::seam::capabilities::Capabilities)), it has to answer as well.
    pub(crate) until: Moment,
    /// Until this moment the owner may keep what it holds, even if the client ends sooner.
    pub(crate) from: Moment,
    pub(crate) next: Moment,
    /// The pause after the next failure. The first is short: what broke the request in doubt has often broken
    /// this connection too, and others may wait for this clean-up.
    pub(crate) pause: Duration,
    /// How often the owner was found to hold nothing; each time makes a late request less likely.
    pub(crate) tries: u32,
}

/// Counts the calls that may create something of this client's in the store, or have not yet removed it:
/// calls that acquire and release, and releases that nobody waits for.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    under_way: AtomicUsize,
    closed: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// A call is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct Call(Arc<Calls>);

impl Calls {
    /// Counts a call. A thread that asks checks afterwards whether the client [ended](Self::is_closed); if
    /// not, the end waits for this call. Pairs with `close`, which comes before `wait`.
    pub(crate) fn begin(self: &Arc<Calls>) -> Call {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        Call(Arc::clone(self))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Waits until no call is under way, until `until` by the system's clock at most; returns whether none
    /// is. `poll_completions` reads answers that no thread waits for, and returns whether more are to come.
    pub(crate) fn wait(&self, until: Moment, poll_completions: impl Fn() -> bool) -> bool {
        let waker = Waker::default();
        *self.waker.lock() = Some(waker.clone());
        // `closed` and the waker are set before the count is read; `Call`'s `Drop` does the reverse.
        while self.under_way.load(Ordering::SeqCst) > 0 {
            let left = until.since(Clock::System.now());
            if left.is_zero() {
                return false;
            }
            let next = if poll_completions() { Duration::from_millis(1) } else { POLL_COMPLETIONS_EVERY };
            waker.sleep(Some(left.min(next)));
        }
        true
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::SeqCst) == 1
            && self.0.is_closed()
            && let Some(waker) = &*self.0.waker.lock()
        {
            waker.wake();
        }
    }
}

pub(crate) type StoreOpener = Box<dyn Fn() -> Result<Arc<dyn Store>> + Send + Sync>;

/// A store that [`open`](Self::open) connects to before the first use. Until then [`Unopened`] stands for it.
pub(crate) struct StoreCell {
    store: std::sync::OnceLock<Arc<dyn Store>>,
    later: Option<StoreOpener>,
    /// Locked by the one thread that connects; has the last failure.
    opening: Mutex<Option<Error>>,
    failures: AtomicU64,
    closed: AtomicBool,
}

impl StoreCell {
    fn new(store: std::sync::OnceLock<Arc<dyn Store>>, later: Option<StoreOpener>) -> StoreCell {
        let (failures, closed) = (AtomicU64::new(0), AtomicBool::new(false));
        StoreCell { store, later, opening: Mutex::new(None), failures, closed }
    }

    pub(crate) fn later(open: StoreOpener) -> StoreCell {
        StoreCell::new(std::sync::OnceLock::new(), Some(open))
    }

    /// Connects, unless that is done. `timer` is attached to the store's sessions.
    pub(crate) fn open(&self, timer: &ServiceWaker) -> Result<()> {
        match &self.later {
            Some(open) if self.store.get().is_none() => self.connect(open, timer),
            Some(_) | None => Ok(()),
        }
    }

    #[cold]
    fn connect(&self, open: &StoreOpener, timer: &ServiceWaker) -> Result<()> {
        let before = self.failures.load(Ordering::SeqCst);
        let mut last = self.opening.lock();
        if self.store.get().is_some() {
            return Ok(());
        }
        // An earlier caller has just failed: all waiters get its error, not one failure after the other.
        if let (Some(error), true) = (&*last, self.failures.load(Ordering::SeqCst) != before) {
            return Err(error.copy());
        }
        let store = open().inspect_err(|error| {
            *last = Some(error.copy());
            self.failures.fetch_add(1, Ordering::SeqCst);
        })?;
        attach(&*store, timer);
        let store = self.store.get_or_init(|| store);
        // The store is set before `closed` is read. Pairs with `close`.
        if self.closed.load(Ordering::SeqCst) {
            store.close();
        }
        Ok(())
    }

    /// Whether the store can keep a lock of this name, if that was not known when the lock value was made.
    pub(crate) fn check_late(&self, kind: Kind, name: &LockName) -> Result<()> {
        if self.later.is_some() { self.check_name(kind, name) } else { Ok(()) }
    }

    /// Ends connections and threads, also of a store that another thread is just connecting to.
    pub(crate) fn close(&self) {
        // This sets `closed`, then reads the store; `connect` sets the store, then reads `closed`. So at
        // least one of the two closes the store.
        self.closed.store(true, Ordering::SeqCst);
        (**self).close();
    }
}

impl From<Arc<dyn Store>> for StoreCell {
    fn from(store: Arc<dyn Store>) -> StoreCell {
        StoreCell::new(std::sync::OnceLock::from(store), None)
    }
}

impl Deref for StoreCell {
    type Target = dyn Store;

    fn deref(&self) -> &(dyn Store + 'static) {
        match self.store.get() {
            Some(store) => &**store,
            None => &Unopened,
        }
    }
}

/// Makes the store wake `timer` when holds may have ended with one of its sessions.
pub(crate) fn attach(store: &dyn Store, timer: &ServiceWaker) {
    if let Some(sessions) = store.capabilities().sessions {
        sessions.attach(timer.clone());
    }
}

/// How many of each home's holds are renewed when a connection has ended: half of them the newest, which a
/// server that lost its last writes lost first; the other half from all others.
const SAMPLE: usize = 32;

fn sample(holds: Vec<Arc<Hold>>) -> (Vec<Arc<Hold>>, bool) {
    let mut homes: HashMap<u32, Vec<Arc<Hold>>> = HashMap::new();
    for hold in holds {
        homes.entry(hold.home()).or_default().push(hold);
    }
    let (mut chosen, mut has_more) = (Vec::new(), false);
    for mut holds in homes.into_values() {
        if holds.len() > SAMPLE {
            has_more = true;
            holds.sort_by_cached_key(|hold| std::cmp::Reverse(hold.since()));
            let others = holds.split_off(SAMPLE / 2);
            let apart = others.len().div_ceil(SAMPLE / 2).max(1);
            holds.extend(others.into_iter().step_by(apart));
        }
        chosen.append(&mut holds);
    }
    (chosen, has_more)
}
