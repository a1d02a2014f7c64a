//! The state that a client's callers and threads share: the store, the calls, the work for the threads.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Options;
use crate::directory::{ClientInfo, LockUse, shown};
use crate::engine::hold::{Hold, LocalLock};
use crate::engine::pace::{POLL_COMPLETIONS_EVERY, Repeat};
use crate::engine::registry::Registry;
use crate::engine::stuck::Stuck;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ClientId, LockName};
use crate::observe::LossReason;
use crate::observe::reporter::Reporter;
use crate::park::{Parker, Service, ServiceWaker};
use crate::refused::Refused;
use crate::seam::{Answer, Claim, Kind, OpenStore};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, OnceLock, Waker};
use crate::time::{Clock, Moment, wall_ms};

/// The state for writing this client's entry: when the entry is due, and the part of it that never changes.
pub(crate) struct Announcer {
    identity: ClientInfo,
    began: Moment,
    /// From when on the entry may be written again, as `Moment::nanos`; the maximum if the client writes
    /// none.
    pub(super) due: AtomicU64,
    refused: Refused,
    pub(super) is_written: AtomicBool,
}

impl Announcer {
    pub(crate) fn new(id: ClientId, options: &Options, clock: &Clock) -> Announcer {
        Announcer {
            identity: ClientInfo::here(id, options.label.as_deref().map(shown)),
            began: clock.now(),
            due: AtomicU64::new(if options.directory { 0 } else { u64::MAX }),
            refused: Refused::default(),
            is_written: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_due(&self, now: Moment) -> bool {
        now.nanos() >= self.due.load(Ordering::SeqCst) && !self.refused.stands(|| now)
    }

    pub(crate) fn is_seen(&self, now: Moment) -> bool {
        self.due.load(Ordering::SeqCst) != u64::MAX && !self.refused.stands(|| now)
    }

    /// After a refusal (see the kinds below), the client writes no entry for a while: the server would log
    /// each further try.
    pub(super) fn note(&self, answer: &Answer<()>, now: Moment) {
        if let Err(failure) = answer
            && matches!(
                failure.error().kind(),
                ErrorKind::NoPermission | ErrorKind::Unsupported | ErrorKind::WrongType
            )
        {
            self.refused.note(now);
            self.is_written.store(false, Ordering::SeqCst);
        }
    }

    /// The content of the entry, with these holds and waits.
    pub(crate) fn using(&self, (uses, unlisted): (Vec<LockUse>, u64), now: Moment) -> ClientInfo {
        ClientInfo { age: now.since(self.began), uses, unlisted, ..self.identity.clone() }
    }
}

/// The state that a client's callers and threads share. The threads have no `Engine`, so that its drop ends them.
pub(crate) struct Core {
    pub(crate) id: ClientId,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) store: StoreCell,
    pub(crate) registry: Registry,
    pub(crate) calls: Arc<Calls>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) announcer: Announcer,
    /// When the watchdog next writes the client's entry or searches for deadlocks, as `Moment::nanos`.
    pub(crate) finder_due: AtomicU64,
    pub(crate) watchdog: Service,
    pub(crate) timer: Service,
    pub(crate) cache_thread: CacheThread,
    pub(crate) inbox: Mutex<Inbox>,
    /// Whether only a sample of the holds was renewed after a connection ended; see `renew_some`.
    pub(crate) is_sampled: AtomicBool,
}

impl Core {
    /// Makes the shared state of a new client. Also returns the parkers of the watchdog and of the timer,
    /// which are not started yet.
    pub(crate) fn new(
        options: Options,
        clock: Clock,
        store: StoreCell,
        reporter: Arc<Reporter>,
    ) -> (Arc<Core>, [Parker; 2]) {
        let id = ClientId::random();
        let (watchdog, watchdogs_parker) = Service::new(&clock);
        let (timer, timers_parker) = Service::new(&clock);
        attach(&store, timer.waker());
        let core = Core {
            id,
            store,
            registry: Registry::default(),
            calls: Arc::default(),
            reporter,
            announcer: Announcer::new(id, &options, &clock),
            finder_due: AtomicU64::new(u64::MAX),
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

    /// For tests: makes the watchdog and the timer pause between two rounds, or lets them go on.
    pub(crate) fn stand_still(&self, still: bool) {
        self.watchdog.waker().stand_still(still);
        self.timer.waker().stand_still(still);
    }

    /// Ends the threads; returns the claims to be cleaned up now. Claims with a later
    /// [`Cleanup::from`] are left out: their holds end with their leases.
    pub(crate) fn stop(&self) -> Vec<Claim> {
        self.watchdog.stop();
        self.timer.stop();
        self.cache_thread.stop();
        let cleanups = std::mem::take(&mut self.inbox.lock().cleanups);
        let now = self.clock.now();
        cleanups.into_iter().filter(|cleanup| cleanup.from <= now).map(|cleanup| cleanup.claim).collect()
    }

    pub(crate) fn watch(&self, hold: &Arc<Hold>) {
        self.timer.run_by(hold.plan_check(self.clock.now()));
    }

    /// Makes the watchdog write the client's entry, if the entry is due. Called while anything is held or
    /// waited for.
    pub(crate) fn announce(&self, now: Moment) {
        if self.announcer.is_due(now) {
            self.find_by(now);
        }
    }

    /// Makes the watchdog run `Finder::round` at `moment`, for the client's entry and deadlocks. The caller
    /// joins a local queue, or changes the entry's due time, before this call, so that the round sees that.
    pub(crate) fn find_by(&self, moment: Moment) {
        if moment.nanos() < self.finder_due.fetch_min(moment.nanos(), Ordering::SeqCst) {
            self.watchdog.run_by(moment);
        }
    }

    pub(crate) fn stuck(&self, now: Moment) -> Stuck {
        let Options { detect_deadlocks_after, under, .. } = &self.options;
        self.registry.stuck((now, wall_ms()), *detect_deadlocks_after, under)
    }

    /// Makes the watchdog clean up after a request of unknown outcome; [`Cleanup`] explains the times. The
    /// caller has retired the owner number.
    pub(crate) fn clean_up(&self, claim: Claim, until: Moment, from: Moment) {
        let cleanup = Cleanup { claim, until, from, repeat: Repeat::new(from, Duration::ZERO) };
        self.inbox.lock().cleanups.push(cleanup);
        self.watchdog.wake();
    }

    /// Cleans up after a lost hold: a late renewal would make the store keep the lock for nobody.
    pub(crate) fn undo_renewal(&self, hold: &Arc<Hold>, now: Moment) {
        hold.retire_owner(); // the loss may not be recorded yet
        let claim = hold.claim();
        let until = now.plus(claim.lease).plus(self.options.command_timeout);
        self.clean_up(claim, until, now);
    }

    /// Handles the answer to a renewal that was sent at `sent`. Returns whether this answer is the first to
    /// show that the hold is lost in the store; `false` also if its release has begun.
    pub(crate) fn renewed(&self, hold: &Arc<Hold>, claim: &Claim, sent: Moment, is_held: bool) -> bool {
        // The hold may have ended meanwhile. A server of a Redlock that received the renewal after the
        // release has restored the hold, so the Redlock must remove it there again.
        if !hold.stands(self.clock.now())
            && let Some(majority) = &self.store.capabilities.majority
        {
            majority.ended_meanwhile(claim);
        }
        if !is_held {
            // If the release has begun, the release's answer says whether the hold was lost, not this one.
            return !hold.is_releasing() && self.lose_at(hold, LossReason::Gone, sent);
        }
        let in_time = if hold.with(|own| own.is_renewed()) {
            hold.confirm(sent, claim.lease, &self.clock)
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
        false
    }

    /// Makes the watchdog renew these holds, unless they are queued for renewal already.
    pub(crate) fn renew(&self, mut holds: Vec<Arc<Hold>>) {
        holds.retain(|hold| hold.is_first(|own| &mut own.is_queued));
        self.renew_queued(holds);
    }

    pub(crate) fn renew_queued(&self, mut holds: Vec<Arc<Hold>>) {
        if !holds.is_empty() {
            self.inbox.lock().renewals.append(&mut holds);
            self.watchdog.wake();
        }
    }

    /// Renews a sample of the holds after a connection ended, because the server may have lost them. If one
    /// of the sample is lost, the watchdog renews all (see `Round::renew`).
    pub(crate) fn renew_some(&self, now: Moment) {
        let (some, has_more) = sample(self.registry.renewed(now));
        self.is_sampled.store(has_more, Ordering::SeqCst);
        self.renew(some);
    }
}

/// The thread that releases cached holds, and the locks that it checks. It starts when first needed.
#[derive(Default)]
pub(crate) struct CacheThread {
    /// The inner `None`: the thread could not be started, so the client caches nothing.
    pub(crate) service: OnceLock<Option<(Arc<Service>, Waker)>>,
    pub(crate) locks: Mutex<Vec<Arc<LocalLock>>>,
    /// Threads that are ending and wait until their cached holds are released.
    pub(crate) ended: Mutex<Vec<Ended>>,
}

pub(crate) struct Ended {
    /// The thread whose cached holds are to be released; `None`: those of all threads.
    pub(crate) thread: Option<u64>,
    pub(crate) call: Arc<Call>,
}

impl CacheThread {
    /// Makes the thread, which has been started, watch this lock.
    pub(crate) fn watch(&self, lock: &Arc<LocalLock>, moment: Moment) {
        if !lock.is_watched.swap(true, Ordering::SeqCst) {
            self.locks.lock().push(Arc::clone(lock));
        }
        self.service.get().into_iter().flatten().for_each(|(service, _)| service.run_by(moment));
    }

    pub(crate) fn stop(&self) {
        if let Some(Some((service, _))) = self.service.get() {
            service.stop();
            // Pairs with `Core::end_cached`: one of the two clears the list, so no ending thread waits in vain.
            self.ended.lock().clear();
        }
    }
}

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) renewals: Vec<Arc<Hold>>,
    pub(crate) cleanups: Vec<Cleanup>,
}

/// A request of unknown outcome. The watchdog cleans up until the owner certainly holds nothing.
#[derive(Debug)]
pub(crate) struct Cleanup {
    pub(crate) claim: Claim,
    /// By then everything that the request may have set has expired, so the clean-up ends. In a store that
    /// [`outlasts_leases`](crate::seam::capabilities::Capabilities) it ends only with an answer.
    pub(crate) until: Moment,
    /// The first clean-up is not sent before this; until then the owner may keep its hold.
    pub(crate) from: Moment,
    pub(crate) repeat: Repeat,
}

/// Counts acquires and releases under way, also releases for which no thread waits. `shutdown` awaits them.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    under_way: AtomicUsize,
    closed: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

#[derive(Debug)]
pub(crate) struct Call(Arc<Calls>);

impl Calls {
    /// Counts a call. The caller then checks [`is_closed`](Self::is_closed). If the client is open, its end
    /// will wait for this call, because the end calls `close` before `wait`.
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

    /// Waits until no call is under way; `false`: some still were at `until`, by the system's clock.
    /// `poll_completions` reads answers for which no thread waits, and returns whether more are expected.
    pub(crate) fn wait(&self, until: Moment, poll_completions: impl Fn() -> bool) -> bool {
        let waker = Waker::default();
        *self.waker.lock() = Some(waker.clone());
        // The waker is set before the count is read. A dropped `Call` lowers the count before it reads the
        // waker, so no end is missed.
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

pub(crate) type StoreOpener = Box<dyn Fn() -> Result<OpenStore> + Send + Sync>;

/// A store to which [`open`](Self::open) connects before its first use; until then it refuses all requests.
#[derive(Default)]
pub(crate) struct StoreCell {
    store: std::sync::OnceLock<OpenStore>,
    unopened: OpenStore,
    later: Option<StoreOpener>,
    /// The last failure, and when it came. Locked by the thread that connects.
    opening: Mutex<Option<(Moment, Error)>>,
    closed: AtomicBool,
}

impl StoreCell {
    pub(crate) fn later(open: StoreOpener) -> StoreCell {
        StoreCell { later: Some(open), ..StoreCell::default() }
    }

    /// Connects, unless connected already, and attaches `timer` to the store's sessions.
    pub(crate) fn open(&self, timer: &ServiceWaker) -> Result<()> {
        match &self.later {
            Some(open) if self.store.get().is_none() => self.connect(open, timer),
            Some(_) | None => Ok(()),
        }
    }

    #[cold]
    fn connect(&self, open: &StoreOpener, timer: &ServiceWaker) -> Result<()> {
        let begun = Clock::System.now();
        let mut last = self.opening.lock();
        if self.store.get().is_some() {
            return Ok(());
        }
        // If another thread failed to connect while this one waited for the mutex, both return its error:
        // callers should not try and fail one after the other.
        if let Some((_, error)) = last.as_ref().filter(|(at, _)| *at > begun) {
            return Err(error.copy());
        }
        let store = open().inspect_err(|error| *last = Some((Clock::System.now(), error.copy())))?;
        attach(&store, timer);
        let store = self.store.get_or_init(|| store);
        // Pairs with `close`, which may have run before the store was set.
        if self.closed.load(Ordering::SeqCst) {
            store.close();
        }
        Ok(())
    }

    /// Checks the name by the store's rules, if these were unknown when the lock value was made.
    pub(crate) fn check_late(&self, kind: Kind, name: &LockName) -> Result<()> {
        if self.later.is_some() { self.check_name(kind, name) } else { Ok(()) }
    }

    pub(crate) fn close(&self) {
        // This sets `closed`, then reads the store. `connect` sets the store, then reads `closed`. So at
        // least one of the two closes the store.
        self.closed.store(true, Ordering::SeqCst);
        (***self).close();
    }
}

impl<S: Into<OpenStore>> From<S> for StoreCell {
    fn from(store: S) -> StoreCell {
        StoreCell { store: store.into().into(), ..StoreCell::default() }
    }
}

impl Deref for StoreCell {
    type Target = OpenStore;

    fn deref(&self) -> &OpenStore {
        self.store.get().unwrap_or(&self.unopened)
    }
}

pub(crate) fn attach(store: &OpenStore, timer: &ServiceWaker) {
    if let Some(sessions) = &store.capabilities.sessions {
        sessions.attach(timer.clone());
    }
}

/// How many holds of one server (a ring has several) are renewed after a connection ended. Half are the
/// newest, which a server that lost its last writes lost first; the rest are spread over the older ones.
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
