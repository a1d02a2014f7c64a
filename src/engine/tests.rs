//! The policy above the seam, on a store whose answers a test scripts.

mod answers;
mod cached;
mod later;
mod rare;
mod time_slices;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::config::Options;
use crate::engine::Engine;
use crate::engine::acquire::call::LockConfig;
use crate::engine::acquire::call::{AcquireCall, Granted, WaitLimit};
use crate::engine::hold;
use crate::error::{Error, ErrorKind, NotHeld, Result};
use crate::ident::{LockName, Owner, ThreadMarker};
use crate::inspect::Inspection;
use crate::observe::LossReason;
use crate::observe::reporter::Reporter;
use crate::park::ServiceWaker;
use crate::seam::capabilities::{CachedCheck, Capabilities, HoldCaching, Majority, Sessions};
use crate::seam::inspection::Inspect;
use crate::seam::inspection::describe_by_kinds;
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::seam::{
    Answer, Attempt, Bound, Claim, Counting, Failure, Handoff, Kind, Others, Pending, REQUEST_LASTS, Release,
    Snapshot, Store,
};
use crate::stores::memory::MemoryStore;
use crate::sync::Waker;
use crate::time::{Clock, Lease, ManualClock, Moment};

/// A store of one lock, which is right except for what a test scripts.
#[derive(Default)]
struct Odd {
    holder: Mutex<Option<Owner>>,
    outlasts_leases: bool,
    cleanups: AtomicUsize,
    renewals: AtomicUsize,
    /// The number of renewals that are carried out without an answer.
    deaf: AtomicUsize,
    /// The threads that have asked for a clean-up, and their deadlines.
    cleaned_up: Mutex<Vec<(Option<String>, Moment)>>,
    attempts: AtomicUsize,
    /// Reports each attempt, and grants it when allowed to.
    granting: Option<(Sender<()>, Receiver<()>)>,
    /// The number of attempts that are refused.
    failing: AtomicUsize,
    /// The time that re-entries take.
    reenters_in: Option<(ManualClock, Duration)>,
    /// Refuses releases and clean-ups, in any case after the store was closed.
    closed: AtomicBool,
    /// The deadlines of changes of counts, none of which is answered.
    counted: Mutex<Vec<Moment>>,
    /// The answers to the next attempts, releases and clean-ups, each instead of the right one.
    attempting: Scripted<Attempt>,
    releasing: Scripted<Release>,
    /// The answers to the next questions; a lock is free otherwise.
    inspecting: Scripted<Option<Snapshot>>,
    /// The answers to the next hand-offs, as their readers find them; further hand-offs are not sent.
    handing: Scripted<Handoff>,
    /// Run while the next renewals are made; and the deadlines of those.
    renewing: Mutex<VecDeque<Box<dyn FnOnce() + Send>>>,
    renewed_by: Mutex<Vec<Moment>>,
    /// Run while waiters begin to listen.
    listening: Mutex<VecDeque<Box<dyn FnOnce() + Send>>>,
    /// The channel on which the store reports releases, if it does: otherwise a waiter sleeps for an hour.
    channel: Option<Arc<Channel>>,
    /// The store has a queue for each kind, not for the fair lock alone.
    queues_all: bool,
    /// The store is made of several servers; and the holds that ended while they were renewed.
    is_several: bool,
    ended_meanwhile: Mutex<Vec<Owner>>,
    keeps_no_names: bool,
    has_sessions: bool,
    /// The end of the session that all holds depend on, if they do.
    session: Option<Arc<SessionEnd>>,
    attached: Mutex<Option<ServiceWaker>>,
    /// The store can cache holds until a recall; the answers to the next checks, and how many there were.
    caches: bool,
    checking: Scripted<CachedCheck>,
    checks: AtomicUsize,
}

type Scripted<T> = Mutex<VecDeque<Script<T>>>;
type Script<T> = Box<dyn FnOnce() -> Answer<T> + Send>;

/// A source whose channels never end.
struct Standing;

impl ChannelSource for Standing {
    fn left(&self, _: &Arc<Channel>) {}
}

fn refusal() -> Error {
    Error::new(ErrorKind::Busy, "request", "not now")
}

/// Reports that a hand-off's answer, a refusal, is being read, and reads it when allowed to.
fn refused_when_read(reading: Sender<()>, go_on: Receiver<()>) -> Scripted<Handoff> {
    let refuse = move || {
        reading.send(()).unwrap();
        go_on.recv().unwrap();
        Err(Failure::Refused(refusal()))
    };
    Mutex::new([Box::new(refuse) as Script<Handoff>].into())
}

struct Handing(Script<Handoff>);

impl Pending for Handing {
    fn wait(self: Box<Self>) -> Answer<Handoff> {
        self.0()
    }
}

/// The end of a session, as `Moment::nanos`.
#[derive(Debug)]
struct SessionEnd(AtomicU64);

impl Bound for SessionEnd {
    fn until(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

impl Majority for Odd {
    fn first_unspent_number(&self) -> u64 {
        0
    }

    fn ended_meanwhile(&self, claim: &Claim) {
        self.ended_meanwhile.lock().push(claim.owner);
    }

    fn held_off(&self, _: &Claim) -> Option<Duration> {
        None
    }

    fn is_split(&self, _: Kind, _: &LockName, _: Moment) -> Answer<bool> {
        Ok(false)
    }
}

impl Sessions for Odd {
    fn attach(&self, timer: ServiceWaker) {
        *self.attached.lock() = Some(timer);
    }

    fn bound(&self, _: &Claim) -> Option<Arc<dyn Bound>> {
        Some(Arc::clone(self.session.as_ref()?) as _)
    }
}

impl Store for Odd {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            queues: if self.queues_all { |_| true } else { |kind| kind == Kind::Fair },
            outlasts_leases: self.outlasts_leases,
            majority: self.is_several.then_some(self as &dyn Majority),
            sessions: self.has_sessions.then_some(self as &dyn Sessions),
            hold_caching: self.caches.then_some(self as &dyn HoldCaching),
            poll_every: |_| (Duration::from_secs(3600), Duration::from_secs(7200)),
            ..Capabilities::default()
        }
    }

    fn check_name(&self, _: Kind, _: &LockName) -> Result<()> {
        if self.keeps_no_names { Err(Error::invalid("use", "no name can be kept")) } else { Ok(()) }
    }

    fn attempt(&self, claim: &Claim, count: u32, _: Moment) -> Answer<Attempt> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        let scripted = self.attempting.lock().pop_front();
        if let Some(answer) = scripted {
            return answer();
        }
        let one_less = |left: usize| left.checked_sub(1);
        if self.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            return Err(Failure::Refused(refusal()));
        }
        if let Some((begun, go_on)) = &self.granting {
            begun.send(()).unwrap();
            go_on.recv().unwrap();
        }
        if let (Some((clock, time)), true) = (&self.reenters_in, count > 1) {
            clock.advance(*time);
        }
        let mut holder = self.holder.lock();
        match *holder {
            Some(other) if other != claim.owner => Ok(Attempt::Busy { retry_after: None }),
            _ => {
                *holder = Some(claim.owner);
                Ok(Attempt::granted(None))
            }
        }
    }

    fn release(&self, claim: &Claim, _: u32, _: Moment) -> Answer<Release> {
        let scripted = self.releasing.lock().pop_front();
        if let Some(answer) = scripted {
            return answer();
        }
        if self.closed.load(Ordering::SeqCst) {
            return Err(Failure::Refused(refusal()));
        }
        let mut holder = self.holder.lock();
        if *holder == Some(claim.owner) {
            *holder = None;
            drop(holder);
            if let Some(channel) = &self.channel {
                channel.notify();
            }
            return Ok(Release::Freed { others: Others::Nobody });
        }
        Ok(Release::NotHeld { holder: None })
    }

    fn hand_off(&self, _: &Claim, _: &Claim, _: Moment) -> Option<Box<dyn Pending>> {
        let answer = self.handing.lock().pop_front()?;
        Some(Box::new(Handing(answer)))
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        self.renewed_by.lock().push(deadline);
        let meanwhile = self.renewing.lock().pop_front();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        let one_less = |left: usize| left.checked_sub(1);
        if self.deaf.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            return claims.iter().map(|_| Err(Failure::Unknown(refusal().with_unknown_outcome()))).collect();
        }
        claims.iter().map(|claim| Ok(*self.holder.lock() == Some(claim.owner))).collect()
    }

    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        self.cleanups.fetch_add(1, Ordering::SeqCst);
        self.cleaned_up.lock().push((thread::current().name().map(str::to_owned), deadline));
        claims.iter().map(|claim| self.release(claim, 0, deadline)).collect()
    }

    fn force(&self, _: Kind, _: &LockName, _: Moment) -> Answer<bool> {
        Ok(false)
    }

    fn count(&self, _: &Claim, _: &Counting, deadline: Moment) -> Answer<Option<i64>> {
        self.counted.lock().push(deadline);
        Err(Failure::Unknown(refusal().with_unknown_outcome()))
    }

    fn listen(&self, _: &Claim, waker: &Waker) -> Option<Subscription> {
        let event = self.listening.lock().pop_front();
        if let Some(event) = event {
            event();
        }
        Some(Subscription::new(Arc::clone(self.channel.as_ref()?), Arc::new(Standing), waker))
    }

    fn message_count(&self, _: &Claim) -> Option<u64> {
        Some(self.channel.as_ref()?.message_count())
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }
}

impl Inspect for Odd {
    fn inspect(&self, _: Kind, _: &LockName, _: Owner, _: Moment) -> Answer<Option<Snapshot>> {
        self.inspecting.lock().pop_front().map_or(Ok(None), |answer| answer())
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        describe_by_kinds(self, name, deadline)
    }
}

fn engine(store: &Arc<Odd>, clock: &Clock) -> Engine {
    engine_with(Options::default(), store, clock)
}

fn engine_with(options: Options, store: &Arc<Odd>, clock: &Clock) -> Engine {
    let store: Arc<dyn Store> = Arc::clone(store) as _;
    Engine::start(options, clock.clone(), store, Arc::new(Reporter::new(None))).unwrap()
}

/// A client of this store, with a clock that stands still.
fn standing(store: Odd) -> (Arc<Odd>, ManualClock, Engine, Arc<LockName>) {
    let (store, clock) = (Arc::new(store), ManualClock::new());
    let engine = engine(&store, &Clock::Manual(clock.clone()));
    (store, clock, engine, name())
}

fn running(store: Odd) -> (Arc<Odd>, Engine, Arc<LockName>) {
    let store = Arc::new(store);
    let engine = engine(&store, &Clock::System);
    (store, engine, name())
}

fn name() -> Arc<LockName> {
    Arc::new(LockName::new(&Arc::from("a"), "a".to_owned()).unwrap())
}

fn acquire(engine: &Engine, name: &Arc<LockName>, limit: WaitLimit, lease: Lease) -> Result<Option<Granted>> {
    acquire_as(Kind::Mutex, engine, name, limit, lease)
}

fn acquire_as(
    kind: Kind,
    engine: &Engine,
    name: &Arc<LockName>,
    limit: WaitLimit,
    lease: Lease,
) -> Result<Option<Granted>> {
    let local = engine.registry.local(kind, name);
    let call = AcquireCall::new("lock", kind, (name, &local), limit);
    engine.acquire(&AcquireCall { lease, by_thread: true, ..call })
}

const FOREVER: WaitLimit = WaitLimit::Deadline(Moment::NEVER);

/// A guard was dropped, and the thread that the lock was handed to is reading that the hand-off was refused.
struct FailingHandoff {
    store: Arc<Odd>,
    engine: Engine,
    name: Arc<LockName>,
    go_on: Sender<()>,
}

/// Ends the threads of a failed test, which would wait for each other for ever.
struct Ends<'a>(&'a FailingHandoff);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.go_on.try_send(()).ok(); // allowed already, or not asked yet
            drop(self.0.engine.shutdown());
        }
    }
}

fn unlock(engine: &Engine, name: &Arc<LockName>) -> Result<()> {
    engine.unlock("unlock", (Kind::Mutex, name), &engine.registry.local(Kind::Mutex, name))
}

/// Waits for an effect of another thread.
#[track_caller]
fn comes_about(what: &str, mut cond: impl FnMut() -> bool) {
    let deadline = Clock::System.after(Duration::from_secs(10));
    while !cond() {
        assert!(Clock::System.now() < deadline, "{what} has not come about");
        thread::yield_now();
    }
}

/// Whether the first waiter in the local queue sleeps, and so may be handed the lock.
fn sleeps(engine: &Engine, name: &Arc<LockName>) -> bool {
    let local = engine.registry.found(Kind::Mutex, name);
    local.is_some_and(|local| local.state().queue.iter().next().is_some_and(|head| head.is_asleep))
}

/// Runs `meanwhile` while the next owner reads the refusal on a thread of its own; then that thread acquires
/// the lock too. The lock is released the plain way all the same, and nothing is left to the watchdog.
fn while_a_hand_off_fails(meanwhile: impl FnOnce(&FailingHandoff)) {
    let ((is_reading, reading), (go_on, may_read)) = (bounded(1), bounded(1));
    let store = Arc::new(Odd {
        handing: refused_when_read(is_reading, may_read),
        channel: Some(Arc::new(Channel::new("a", true))),
        ..Odd::default()
    });
    let (engine, name) = (engine(&store, &Clock::System), name());
    let mine = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    let failing = FailingHandoff { store, engine, name, go_on };
    let (engine, name) = (&failing.engine, &failing.name);
    thread::scope(|scope| {
        let wait = || {
            let theirs = acquire(engine, name, FOREVER, Lease::Renewed).unwrap().unwrap();
            engine.end_level("unlock", &theirs.hold, Some(theirs.level)).unwrap();
        };
        let _ends = Ends(&failing);
        let waiter = thread::Builder::new().spawn_scoped(scope, wait).unwrap();
        comes_about("the other thread's sleep", || sleeps(engine, name));
        engine.drop_level(&mine.hold, mine.level);
        reading.recv_timeout(Duration::from_secs(10)).expect("the lock is handed off");
        meanwhile(&failing);
        waiter.join().unwrap();
    });
    engine.shutdown().unwrap();
    assert_eq!(failing.store.cleanups.load(Ordering::SeqCst), 0, "it was left to the watchdog");
    assert_eq!(engine.stats().releases_failed, 0, "it is told to have failed");
}

#[test]
fn a_failed_hand_off_blocks_the_droppers_reacquisition() {
    while_a_hand_off_fails(|failing| {
        // The store still has the lock under this thread's number: it would grant the attempt, and the
        // release that follows the failed hand-off would then free the lock.
        let attempts = failing.store.attempts.load(Ordering::SeqCst);
        let again = acquire(&failing.engine, &failing.name, WaitLimit::Once, Lease::Renewed);
        let attempts_since = failing.store.attempts.load(Ordering::SeqCst) - attempts;
        failing.go_on.send(()).unwrap();
        assert!(again.unwrap().is_none());
        assert_eq!(attempts_since, 0);
    });
}

#[test]
fn a_failed_hand_off_blocks_fair_reacquisition_too() {
    while_a_hand_off_fails(|failing| {
        let FailingHandoff { store, engine, name, go_on } = failing;
        let attempts = store.attempts.load(Ordering::SeqCst);
        let (again, (many, attempts_since)) = thread::scope(|scope| {
            let judge = || {
                let _ends = Ends(failing);
                let waits = || {
                    let local = engine.registry.found(Kind::Mutex, name);
                    local.is_some_and(|local| local.state().queue.iter().any(|one| one.follows))
                };
                comes_about("an attempt, or its wait", || {
                    store.attempts.load(Ordering::SeqCst) > attempts || waits()
                });
                let wakes = || engine.stats().woken_locally + engine.stats().woken_by_message;
                let before = wakes();
                let (_never, nothing) = bounded::<()>(0);
                let many = (0..30).map(|_| {
                    assert!(nothing.recv_timeout(Duration::from_millis(1)).is_err());
                    wakes() - before
                });
                let many = many.max();
                let attempts_since = store.attempts.load(Ordering::SeqCst) - attempts;
                go_on.send(()).unwrap();
                (many, attempts_since)
            };
            let judging = thread::Builder::new().spawn_scoped(scope, judge).unwrap();
            let again = acquire_as(Kind::Fair, engine, name, FOREVER, Lease::Renewed).unwrap().unwrap();
            (again, judging.join().unwrap())
        });
        let (owner, holder) = (again.hold.owner(), *store.holder.lock());
        // In either order the waiter is granted the lock. Released before the assertions, since all threads
        // wait.
        let ended = engine.end_level("unlock", &again.hold, Some(again.level));
        assert!(many < Some(10), "it looks again and again instead of waiting: {many:?}");
        assert_eq!(attempts_since, 0, "it asks for what is about to be released");
        assert_eq!(holder, Some(owner));
        ended.unwrap();
    });
}

#[test]
fn an_unanswered_change_is_repeated_within_the_stores_memory() {
    let clock = ManualClock::new();
    let store = Arc::new(Odd::default());
    let options = Options { retry_timeout: REQUEST_LASTS * 6, ..Options::default() };
    let timeout = options.command_timeout;
    let engine = engine_with(options, &store, &Clock::Manual(clock.clone()));
    let begun = engine.clock.now();
    let claim =
        engine.claim(&engine.store.capabilities(), (Kind::Semaphore, &name()), 7, Duration::from_secs(30));
    thread::scope(|scope| {
        let add = || engine.count("add_permits", &claim, &Counting::Add(1)).unwrap_err();
        let adding = thread::Builder::new().spawn_scoped(scope, add).unwrap();
        let mut seen = 0;
        loop {
            // A pause is a tenth of a second at most, so one step of the clock ends it.
            comes_about("a request", || store.counted.lock().len() != seen || adding.is_finished());
            if adding.is_finished() {
                break;
            }
            seen = store.counted.lock().len();
            let mut steps = 0;
            while store.counted.lock().len() == seen && !adding.is_finished() {
                clock.advance(Duration::from_millis(100));
                steps += 1;
                if steps > 2 {
                    // The thread is descheduled; without this sleep the clock would run far ahead of it.
                    Waker::default().sleep(Some(Duration::from_millis(1)));
                }
                thread::yield_now();
            }
        }
        assert!(adding.join().unwrap().outcome_unknown());
    });
    let last = store.counted.lock().last().unwrap().since(begun);
    assert!(last > REQUEST_LASTS / 4 && last < REQUEST_LASTS - timeout, "{last:?}");
    engine.shutdown().unwrap();
}

#[test]
fn a_failed_release_is_repeated_until_the_lease_ends() {
    let clock = ManualClock::new();
    let store = Arc::new(Odd { closed: true.into(), ..Odd::default() });
    let engine = engine(&store, &Clock::Manual(clock.clone()));
    let hour = Duration::from_secs(3600);
    let mine = acquire(&engine, &name(), FOREVER, Lease::Fixed(hour)).unwrap().unwrap();
    engine.drop_level(&mine.hold, mine.level);
    clock.advance(hour / 2);
    let cleanups = store.cleanups.load(Ordering::SeqCst);
    clock.advance(Duration::from_secs(10));
    assert!(store.cleanups.load(Ordering::SeqCst) > cleanups, "half an hour before the lease ends");
    clock.advance(hour);
    let cleanups = store.cleanups.load(Ordering::SeqCst);
    clock.advance(Duration::from_secs(60));
    assert_eq!(store.cleanups.load(Ordering::SeqCst), cleanups, "it has ended");
    engine.shutdown().unwrap();
}

#[test]
fn a_failed_release_of_an_endless_lock_is_repeated() {
    let clock = ManualClock::new();
    let store = Arc::new(Odd { closed: true.into(), outlasts_leases: true, ..Odd::default() });
    let engine = engine(&store, &Clock::Manual(clock.clone()));
    let hour = Duration::from_secs(3600);
    let mine = acquire(&engine, &name(), FOREVER, Lease::Fixed(hour)).unwrap().unwrap();
    engine.drop_level(&mine.hold, mine.level);
    clock.advance(hour);
    clock.advance(hour);
    let cleanups = store.cleanups.load(Ordering::SeqCst);
    clock.advance(Duration::from_secs(10));
    assert!(store.cleanups.load(Ordering::SeqCst) > cleanups, "an hour after the lease ended");
    assert!(store.holder.lock().is_some());
    store.closed.store(false, Ordering::SeqCst);
    clock.advance(Duration::from_secs(10));
    assert!(store.holder.lock().is_none());
    let cleanups = store.cleanups.load(Ordering::SeqCst);
    clock.advance(hour);
    assert_eq!(store.cleanups.load(Ordering::SeqCst), cleanups, "it has been answered");
    engine.shutdown().unwrap();
}

#[test]
fn a_failed_release_is_repeated_soon_and_then_less_often() {
    let clock = ManualClock::new();
    let store = Arc::new(Odd { closed: true.into(), ..Odd::default() });
    let engine = engine(&store, &Clock::Manual(clock.clone()));
    let mine = acquire(&engine, &name(), FOREVER, Lease::Renewed).unwrap().unwrap();
    engine.drop_level(&mine.hold, mine.level);
    clock.advance(Duration::from_millis(100));
    let soon = store.cleanups.load(Ordering::SeqCst);
    assert!((3..10).contains(&soon), "{soon} in the first tenth of a second");
    clock.advance(Duration::from_secs(10));
    let later = store.cleanups.load(Ordering::SeqCst) - soon;
    assert!((9..20).contains(&later), "{later} in the next ten seconds");
    engine.shutdown().unwrap_err();
}

#[test]
fn a_failed_try_does_not_shorten_waiters_retry_time() {
    let ((begun, has_begun), (go_on, may_go_on)) = (bounded(1), bounded(1));
    let (store, engine, name) = running(Odd { granting: Some((begun, may_go_on)), ..Odd::default() });
    thread::scope(|scope| {
        let wait = || acquire(&engine, &name, FOREVER, Lease::Renewed).map(|entered| entered.is_some());
        let waiter = thread::Builder::new().spawn_scoped(scope, wait).unwrap();
        has_begun.recv().unwrap();
        // The waiter's attempt is unanswered, so it knows nothing about the store's state yet.
        store.failing.store(1, Ordering::SeqCst);
        let error = acquire(&engine, &name, WaitLimit::Once, Lease::Renewed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let noted = engine
            .registry
            .found(Kind::Mutex, &name)
            .and_then(|local| local.spent_retry_budget(Duration::ZERO, Clock::System.now()));
        go_on.send(()).unwrap();
        assert!(waiter.join().unwrap().unwrap());
        assert!(noted.is_none(), "what a try ran into was noted for the queue");
    });
    engine.shutdown().unwrap();
}

/// A second time-out would exceed the caller's time.
#[test]
fn a_queue_place_is_always_left() {
    let wait = Duration::from_millis(20);
    for has_failed in [false, true] {
        let other = Owner::new(crate::ident::ClientId::random(), 1);
        let store = Arc::new(Odd { holder: Mutex::new(Some(other)), ..Odd::default() });
        store.failing.store(usize::from(has_failed), Ordering::SeqCst);
        let engine = engine(&store, &Clock::System);
        let latest = engine.clock.after(wait);
        let until = WaitLimit::Deadline(latest);
        let outcome = acquire_as(Kind::Fair, &engine, &name(), until, Lease::Renewed);
        assert_eq!(outcome.is_err(), has_failed);
        comes_about("a clean-up", || store.cleanups.load(Ordering::SeqCst) > 0);
        let (thread, deadline) = store.cleaned_up.lock().first().cloned().unwrap();
        assert_eq!(thread.as_deref() == Some("leasehold-watch"), has_failed, "{thread:?}");
        assert!(has_failed || deadline <= latest.plus(engine.options.command_timeout));
        engine.shutdown().unwrap();
    }
}

#[test]
fn a_grant_during_a_shutdown_is_released() {
    let ((begun, has_begun), (go_on, may_go_on)) = (bounded(1), bounded(1));
    let (store, engine, name) = running(Odd { granting: Some((begun, may_go_on)), ..Odd::default() });
    thread::scope(|scope| {
        let attempt =
            || acquire(&engine, &name, WaitLimit::Once, Lease::Renewed).map(|entered| entered.is_some());
        let trying = thread::Builder::new().spawn_scoped(scope, attempt).unwrap();
        has_begun.recv().unwrap();
        let ending = thread::Builder::new().spawn_scoped(scope, || engine.shutdown()).unwrap();
        comes_about("the end of calls", || engine.calls.is_closed());
        go_on.send(()).unwrap();
        assert_eq!(trying.join().unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
        ending.join().unwrap().unwrap();
    });
    // A closed store answers no release.
    assert_eq!(*store.holder.lock(), None);
    assert!(engine.registry.holds().is_empty());
}

#[test]
fn a_blocked_shutdown_fails_in_time() {
    let ((begun, has_begun), (go_on, may_go_on)) = (bounded(1), bounded(1));
    let store = Arc::new(Odd { granting: Some((begun, may_go_on)), ..Odd::default() });
    let options = Options { command_timeout: Duration::from_millis(100), ..Options::default() };
    let engine = engine_with(options, &store, &Clock::System);
    let name = name();
    thread::scope(|scope| {
        let attempt =
            || acquire(&engine, &name, WaitLimit::Once, Lease::Renewed).map(|entered| entered.is_some());
        let trying = thread::Builder::new().spawn_scoped(scope, attempt).unwrap();
        has_begun.recv().unwrap();
        // The store takes longer than its deadline.
        assert_eq!(engine.shutdown().unwrap_err().kind(), ErrorKind::TimedOut);
        go_on.send(()).unwrap();
        assert_eq!(trying.join().unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
    });
    assert_eq!(engine.stats().holds, 0, "the caller was told that it has nothing");
}

#[test]
fn a_late_reentry_does_not_revive_an_expired_hold() {
    let (lease, clock) = (Duration::from_secs(1), ManualClock::new());
    let store = Arc::new(Odd {
        reenters_in: Some((clock.clone(), lease * 2)),
        channel: Some(Arc::new(Channel::new("a", true))),
        ..Odd::default()
    });
    let (engine, name) = (engine(&store, &Clock::Manual(clock)), name());
    let outer = acquire(&engine, &name, FOREVER, Lease::Fixed(lease)).unwrap().unwrap();
    // The store grants the re-entry for an hour, but its answer comes after the end of the outer hold.
    let inner = acquire(&engine, &name, FOREVER, Lease::Fixed(lease * 3600)).unwrap().unwrap();
    assert!(!Arc::ptr_eq(&outer.hold, &inner.hold));
    assert_eq!(outer.hold.standing(engine.clock.now()), hold::Standing::Lost(LossReason::Expired));
    assert_ne!(outer.hold.owner(), inner.hold.owner());
    assert_eq!((outer.hold.count(), inner.hold.count()), (0, 1));
    assert_eq!(*store.holder.lock(), Some(inner.hold.owner()));
    engine.end_level("unlock", &inner.hold, Some(inner.level)).unwrap();
    assert_eq!(*store.holder.lock(), None);
    engine.shutdown().unwrap();
}

#[test]
fn a_loss_callback_is_dropped_on_its_thread() {
    struct Tells(Sender<Option<String>>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(thread::current().name().map(str::to_owned)).unwrap();
        }
    }
    let store = Arc::new(Odd::default());
    let engine = engine(&store, &Clock::System);
    let mine = acquire(&engine, &name(), FOREVER, Lease::Renewed).unwrap().unwrap();
    let (sender, dropped_on) = bounded(1);
    let tells = Tells(sender);
    mine.hold.on_lost(Box::new(move |_| drop(tells)), &engine.reporter);
    engine.drop_level(&mine.hold, mine.level);
    let thread = dropped_on.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(thread.as_deref(), Some("leasehold-calls"));
    engine.shutdown().unwrap();
}

/// Holds of one thread that it never releases.
#[test]
fn only_the_last_expired_holds_are_remembered() {
    let clock = ManualClock::new();
    let memory = MemoryStore::with_clock(clock.clone());
    let store: Arc<dyn Store> = Arc::new(memory.open());
    let reporter = Arc::new(Reporter::new(None));
    let engine =
        Engine::start(Options::default(), Clock::Manual(clock.clone()), store, Arc::clone(&reporter))
            .unwrap();
    let name = |n: usize| Arc::new(LockName::new(&Arc::from("a"), format!("a-{n}")).unwrap());
    const HOLDS: usize = 5_000;
    let lease = Duration::from_secs(1);
    for n in 0..HOLDS {
        assert!(acquire(&engine, &name(n), WaitLimit::Once, Lease::Fixed(lease)).unwrap().is_some());
    }
    let cached = acquire(&engine, &name(HOLDS), WaitLimit::Once, Lease::Renewed).unwrap().unwrap();
    assert_eq!(engine.registry.holds().len(), HOLDS + 1);
    clock.advance(lease);
    let left = engine.registry.holds().len();
    assert!(left <= 1_025, "{left} holds are kept");
    let why = |n: usize| unlock(&engine, &name(n)).unwrap_err().not_held().cloned();
    let known = (0..HOLDS).filter(|n| why(*n) == Some(NotHeld::Expired)).count();
    assert_eq!(known, left - 1);
    assert_eq!((0..HOLDS).filter(|n| why(*n) == Some(NotHeld::Free)).count(), HOLDS);
    assert_eq!(engine.registry.holds().len(), 1);
    clock.advance(Duration::from_secs(3_600));
    engine.end_level("unlock", &cached.hold, Some(cached.level)).unwrap();
    engine.shutdown().unwrap();
}

#[test]
fn an_unanswered_renewal_is_cleaned_up_after_the_expiry() {
    let clock = ManualClock::new();
    let store = Arc::new(Odd { deaf: AtomicUsize::new(usize::MAX), ..Odd::default() });
    let engine = engine(&store, &Clock::Manual(clock.clone()));
    let mine = acquire(&engine, &name(), FOREVER, Lease::Renewed).unwrap().unwrap();
    clock.advance(engine.options.lease - Duration::from_secs(1));
    assert!(store.holder.lock().is_some(), "it is held");
    assert_eq!(store.cleanups.load(Ordering::SeqCst), 0);
    let failed = store.renewals.load(Ordering::SeqCst);
    assert!((10..100).contains(&failed), "{failed} renewals in two thirds of a lease");
    clock.advance(Duration::from_secs(2));
    assert!(matches!(mine.hold.standing(engine.clock.now()), hold::Standing::Lost(_)));
    assert_eq!(*store.holder.lock(), None, "nobody has it, and the store says that somebody does");
    engine.shutdown().unwrap();
}
