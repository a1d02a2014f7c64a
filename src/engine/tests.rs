//! Tests of the engine on a store whose answers each test prescribes.

mod answers;
mod cached;
mod later;
mod rare;
mod time_slices;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::config::Options;
use crate::engine::Engine;
use crate::engine::acquire::call::LockConfig;
use crate::engine::acquire::call::{AcquireCall, Granted, ONCE};
use crate::engine::core::StoreCell;
use crate::engine::hold::{self, QueuePlace};
use crate::engine::waiter::Sleeper;
use crate::error::{Error, ErrorKind, NotHeld, Result};
use crate::ident::{LockName, Owner, ThreadMarker};
use crate::interrupt::Interrupt;
use crate::observe::reporter::Reporter;
use crate::observe::{LossReason, Observer};
use crate::seam::capabilities::CachedCheck;
use crate::seam::subscription::Channel;
use crate::seam::{
    Attempt, Bound, Claim, Counting, Failure, Handoff, Kind, Others, REQUEST_LASTS, Release, Snapshot, Store,
};
use crate::stores::memory::MemoryStore;
use crate::sync::Waker;
use crate::tests::scripted::{
    Question, Scripted, busy, freed, granted, in_doubt, not_held, notifying, refusal, refused, scripted,
};
use crate::tests::{claim, name as named};
use crate::time::{Clock, Lease, ManualClock, Moment};

/// An engine, which is shut down on drop. The shutdown must succeed, or must fail after `ends_badly`.
struct Running {
    engine: Arc<Engine>,
    ends_badly: AtomicBool,
}

impl Running {
    fn start(options: Options, clock: Clock, store: impl Into<StoreCell>) -> Running {
        Running::observed(options, clock, store, None)
    }

    fn observed(
        options: Options,
        clock: Clock,
        store: impl Into<StoreCell>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Running {
        let reporter = Arc::new(Reporter::new(observer));
        let engine = Arc::new(Engine::start(options, clock, store, reporter).unwrap());
        Running { engine, ends_badly: AtomicBool::new(false) }
    }

    /// Makes the drop expect a failed shutdown: the test leaves holds that the store does not release.
    fn ends_badly(&self) {
        self.ends_badly.store(true, Ordering::SeqCst);
    }
}

impl Deref for Running {
    type Target = Arc<Engine>;

    fn deref(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let (ended, ends_well) = (self.engine.shutdown(), !self.ends_badly.load(Ordering::SeqCst));
        assert!(ended.is_ok() == ends_well || thread::panicking(), "{ended:?}");
    }
}

/// A client of this store, with a manual clock.
fn standing(store: Scripted) -> (Arc<Scripted>, ManualClock, Running, Arc<LockName>) {
    standing_with(Options::default(), store)
}

fn standing_with(options: Options, store: Scripted) -> (Arc<Scripted>, ManualClock, Running, Arc<LockName>) {
    let (store, clock) = (Arc::new(store), ManualClock::new());
    let engine = Running::start(options, Clock::Manual(clock.clone()), Arc::clone(&store) as Arc<dyn Store>);
    (store, clock, engine, named("a"))
}

fn running(store: Scripted) -> (Arc<Scripted>, Running, Arc<LockName>) {
    let store = Arc::new(store);
    let engine = Running::start(Options::default(), Clock::System, Arc::clone(&store) as Arc<dyn Store>);
    (store, engine, named("a"))
}

/// A client of the memory store, with a manual clock that both use.
fn on_memory() -> (ManualClock, Running) {
    let clock = ManualClock::new();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::with_clock(clock.clone()).open());
    let engine = Running::start(Options::default(), Clock::Manual(clock.clone()), store);
    (clock, engine)
}

/// A hook that sends a message and waits for one; with the channels for both.
fn gate() -> (impl FnOnce() + Send + 'static, Receiver<()>, Sender<()>) {
    let ((begun, has_begun), (go_on, may_go_on)) = (bounded(1), bounded::<()>(1));
    let hook = move || {
        begun.send(()).unwrap();
        may_go_on.recv().unwrap();
    };
    (hook, has_begun, go_on)
}

/// The end of a session, as `Moment::nanos`.
#[derive(Debug)]
struct SessionEnd(AtomicU64);

impl Bound for SessionEnd {
    fn until(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

fn acquire(engine: &Engine, name: &Arc<LockName>, limit: Moment, lease: Lease) -> Result<Option<Granted>> {
    acquire_as(Kind::Mutex, engine, name, limit, lease)
}

fn acquire_as(
    kind: Kind,
    engine: &Engine,
    name: &Arc<LockName>,
    limit: Moment,
    lease: Lease,
) -> Result<Option<Granted>> {
    let local = engine.registry.local(kind, name);
    let call = AcquireCall::new("lock", kind, (name, &local), limit);
    engine.acquire(&AcquireCall { lease, by_thread: true, ..call })
}

fn lock(engine: &Engine, name: &Arc<LockName>) -> Granted {
    acquire(engine, name, FOREVER, Lease::Renewed).unwrap().unwrap()
}

fn lock_with(engine: &Engine, name: &Arc<LockName>, config: LockConfig) -> Granted {
    let local = engine.registry.local(Kind::Mutex, name);
    let call = AcquireCall::new("lock", Kind::Mutex, (name, &local), FOREVER);
    engine.acquire(&AcquireCall { config, by_thread: true, ..call }).unwrap().unwrap()
}

/// As [`acquire`], but waits until `interrupt`.
fn wait(engine: &Engine, name: &Arc<LockName>, interrupt: &Interrupt) -> Result<Option<Granted>> {
    let local = engine.registry.local(Kind::Mutex, name);
    let call = AcquireCall::new("lock", Kind::Mutex, (name, &local), FOREVER);
    engine.acquire(&AcquireCall { interrupt: Some(interrupt), by_thread: true, ..call })
}

fn release(engine: &Engine, granted: &Granted) -> Result<()> {
    engine.end_level("unlock", &granted.hold, Some(granted.level))
}

fn drop_guard(engine: &Engine, granted: &Granted) {
    engine.drop_level(&granted.hold, granted.level);
}

/// Whether something has changed for the waiter since the last call.
fn has_word(place: &QueuePlace) -> bool {
    place.local.state().queue.get_mut(place.ticket).is_some_and(|ticket| std::mem::take(&mut ticket.word))
}

fn sleeper(engine: &Engine) -> Sleeper {
    let (thread, since) = (ThreadMarker::current(), engine.clock.now());
    let (number, kind) = (thread.number(), Kind::Mutex);
    Sleeper { number, thread, since, kind, takes_again: false, writers_first: false }
}

const FOREVER: Moment = Moment::NEVER;

fn unlock(engine: &Engine, name: &Arc<LockName>) -> Result<()> {
    engine.unlock("unlock", (Kind::Mutex, name), &engine.registry.local(Kind::Mutex, name))
}

/// Waits until another thread has made `cond` true.
#[track_caller]
fn comes_about(what: &str, mut cond: impl FnMut() -> bool) {
    let deadline = Clock::System.after(Duration::from_secs(10));
    while !cond() {
        assert!(Clock::System.now() < deadline, "{what} has not come about");
        thread::yield_now();
    }
}

/// The result of a call on another thread. Runs `meanwhile` each millisecond until the call returns.
fn while_called<T: Send>(call: impl FnOnce() -> T + Send, meanwhile: impl Fn()) -> T {
    let (told, is_told) = bounded(1);
    thread::scope(|scope| {
        scope.spawn(move || told.send(call()).unwrap_or_default());
        loop {
            match is_told.recv_timeout(Duration::from_millis(1)) {
                Ok(result) => break result,
                Err(_none) => meanwhile(),
            }
        }
    })
}

/// Whether the first waiter in the local queue sleeps, so that it can be handed the lock.
fn sleeps(engine: &Engine, name: &Arc<LockName>) -> bool {
    let local = engine.registry.found(Kind::Mutex, name);
    local.is_some_and(|local| local.state().queue.tickets.iter().next().is_some_and(|head| head.is_asleep))
}

/// Makes another thread wait for a held lock, and calls `release_it` once that thread sleeps. Returns whether
/// that thread acquired and released the lock, or its panic.
fn while_another_waits(
    engine: &Engine,
    name: &Arc<LockName>,
    release_it: impl FnOnce(),
) -> thread::Result<Result<bool>> {
    let until = Clock::System.after(Duration::from_secs(10));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| match acquire(engine, name, until, Lease::Renewed)? {
            Some(theirs) => release(engine, &theirs).map(|()| true),
            None => Ok(false),
        });
        comes_about("the other thread's sleep", || sleeps(engine, name));
        release_it();
        waiter.join()
    })
}

/// A guard was dropped, and the hand-off to a waiter was refused; the waiter is just reading that answer.
struct FailingHandoff {
    store: Arc<Scripted>,
    engine: Running,
    name: Arc<LockName>,
    go_on: Sender<()>,
}

/// When dropped by a test that panics, lets the test's threads end: they would wait for each other for ever.
struct Ends<'a>(&'a FailingHandoff);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.go_on.try_send(()).ok(); // an error: the waiter may go on already, or is gone
            drop(self.0.engine.shutdown());
        }
    }
}

/// Drops a guard whose hand-off to a waiter is refused, and runs `meanwhile` while the waiter reads that.
/// Then a plain request, not the watchdog, must release the guard's hold, and the waiter gets the lock.
fn while_a_hand_off_fails(meanwhile: impl FnOnce(&FailingHandoff)) {
    let (reads, reading, go_on) = gate();
    let (store, engine, name) = running(notifying());
    store.handoffs.say(move || {
        reads();
        refused()
    });
    let mine = lock(&engine, &name);
    let failing = FailingHandoff { store, engine, name, go_on };
    let (engine, name) = (&failing.engine, &failing.name);
    thread::scope(|scope| {
        let _ends = Ends(&failing);
        let waiter = scope.spawn(|| release(engine, &lock(engine, name)).unwrap());
        comes_about("the other thread's sleep", || sleeps(engine, name));
        drop_guard(engine, &mine);
        reading.recv_timeout(Duration::from_secs(10)).expect("the lock is handed off");
        meanwhile(&failing);
        waiter.join().unwrap();
    });
    engine.shutdown().unwrap();
    assert_eq!(failing.store.cleanups.count(), 0, "the release was left to the watchdog");
    assert_eq!(engine.stats().releases_failed, 0, "the release was reported as failed");
}

#[test]
fn a_thread_sends_no_attempt_while_its_hand_off_fails() {
    while_a_hand_off_fails(|failing| {
        // The store still has the lock under this thread's number, so it would grant an attempt. The release
        // that follows the failed hand-off would then free the lock.
        let attempts = failing.store.attempts.count();
        let again = acquire(&failing.engine, &failing.name, ONCE, Lease::Renewed);
        let attempts_since = failing.store.attempts.count() - attempts;
        failing.go_on.send(()).unwrap();
        assert!(again.unwrap().is_none());
        assert_eq!(attempts_since, 0);
    });
}

#[test]
fn fair_locks_send_no_attempt_while_a_hand_off_fails() {
    while_a_hand_off_fails(|failing| {
        let FailingHandoff { store, engine, name, go_on } = failing;
        let attempts = store.attempts.count();
        let (again, (many, attempts_since)) = thread::scope(|scope| {
            let judging = scope.spawn(|| {
                let _ends = Ends(failing);
                let waits = || {
                    let Some(local) = engine.registry.found(Kind::Mutex, name) else { return false };
                    local.state().queue.tickets.iter().any(|ticket| ticket.woken_after_hand_off)
                };
                comes_about("an attempt, or the waiter's wait", || {
                    store.attempts.count() > attempts || waits()
                });
                let wakes = || engine.stats().woken_locally + engine.stats().woken_by_message;
                let before = wakes();
                let (_never, nothing) = bounded::<()>(0);
                let many = (0..30).map(|_| {
                    assert!(nothing.recv_timeout(Duration::from_millis(1)).is_err());
                    wakes() - before
                });
                let many = many.max();
                let attempts_since = store.attempts.count() - attempts;
                go_on.send(()).unwrap();
                (many, attempts_since)
            });
            let again = acquire_as(Kind::Fair, engine, name, FOREVER, Lease::Renewed).unwrap().unwrap();
            (again, judging.join().unwrap())
        });
        let (owner, holder) = (again.hold.owner().to_string(), store.holder());
        // The lock is released before the assertions: if one fails, other threads must not wait for the lock.
        let ended = release(engine, &again);
        assert!(many < Some(10), "the thread asked again and again instead of waiting: {many:?}");
        assert_eq!(attempts_since, 0, "the thread asked for a lock that is about to be released");
        assert_eq!(holder, Some(owner));
        ended.unwrap();
    });
}

#[test]
fn unanswered_add_permits_is_repeated_while_the_store_remembers_it() {
    let options = Options { retry_timeout: REQUEST_LASTS * 6, ..Options::default() };
    let timeout = options.command_timeout;
    let (store, clock, engine, name) = standing_with(options, scripted());
    store.counts.always(in_doubt);
    let begun = engine.clock.now();
    let claim =
        engine.claim(&engine.store.capabilities, (Kind::Semaphore, &name), 7, Duration::from_secs(30));
    thread::scope(|scope| {
        let adding = scope.spawn(|| engine.count("add_permits", &claim, &Counting::Add(1)).unwrap_err());
        let mut seen = 0;
        loop {
            comes_about("a request", || store.counts.count() != seen || adding.is_finished());
            if adding.is_finished() {
                break;
            }
            seen = store.counts.count();
            let mut steps = 0;
            while store.counts.count() == seen && !adding.is_finished() {
                clock.advance(Duration::from_millis(100));
                steps += 1;
                if steps > 2 {
                    // Without a sleep the clock would run far ahead of a thread that the system does not run.
                    Waker::default().sleep(Some(Duration::from_millis(1)));
                }
                thread::yield_now();
            }
        }
        assert!(adding.join().unwrap().outcome_unknown());
    });
    let last = store.counts.all().last().unwrap().deadline.since(begun);
    assert!(last > REQUEST_LASTS / 4 && last < REQUEST_LASTS - timeout, "{last:?}");
}

#[test]
fn a_failed_release_is_repeated_until_the_lease_ends() {
    let (store, clock, engine, name) = standing(scripted());
    store.releases.always(refused);
    let hour = Duration::from_secs(3600);
    let mine = acquire(&engine, &name, FOREVER, Lease::Fixed(hour)).unwrap().unwrap();
    drop_guard(&engine, &mine);
    clock.advance(hour / 2);
    let cleanups = store.cleanups.count();
    clock.advance(Duration::from_secs(10));
    assert!(store.cleanups.count() > cleanups, "half an hour before the lease ends");
    clock.advance(hour);
    let cleanups = store.cleanups.count();
    clock.advance(Duration::from_secs(60));
    assert_eq!(store.cleanups.count(), cleanups, "the clean-up has ended");
}

#[test]
fn if_data_outlasts_its_lease_a_failed_release_is_repeated_until_answered() {
    let (store, clock, engine, name) = standing(Scripted { outlasts_leases: true, ..scripted() });
    store.releases.always(refused);
    let hour = Duration::from_secs(3600);
    let mine = acquire(&engine, &name, FOREVER, Lease::Fixed(hour)).unwrap().unwrap();
    drop_guard(&engine, &mine);
    clock.advance(hour);
    clock.advance(hour);
    let cleanups = store.cleanups.count();
    clock.advance(Duration::from_secs(10));
    assert!(store.cleanups.count() > cleanups, "an hour after the lease ended");
    assert!(store.holder().is_some());
    store.releases.rightly();
    clock.advance(Duration::from_secs(10));
    assert!(store.is_free());
    let cleanups = store.cleanups.count();
    clock.advance(hour);
    assert_eq!(store.cleanups.count(), cleanups, "the clean-up was answered");
}

#[test]
fn a_failed_release_is_repeated_soon_and_then_less_often() {
    let (store, clock, engine, name) = standing(scripted());
    store.releases.always(refused);
    let mine = lock(&engine, &name);
    drop_guard(&engine, &mine);
    clock.advance(Duration::from_millis(100));
    let soon = store.cleanups.count();
    assert!((3..10).contains(&soon), "{soon} in the first tenth of a second");
    clock.advance(Duration::from_secs(10));
    let later = store.cleanups.count() - soon;
    assert!((9..20).contains(&later), "{later} in the next ten seconds");
    engine.ends_badly();
}

/// A timed-out waiter must leave within one command time-out: its call may exceed its limit by no more.
#[test]
fn a_failed_or_timed_out_fair_waiter_leaves_the_queue() {
    let wait = Duration::from_millis(20);
    for has_failed in [false, true] {
        let (store, engine, name) = running(scripted());
        store.give(claim(Kind::Mutex, "a", wait).owner);
        if has_failed {
            store.attempts.say(refused);
        }
        let latest = engine.clock.after(wait);
        let until = latest;
        let outcome = acquire_as(Kind::Fair, &engine, &name, until, Lease::Renewed);
        assert_eq!(outcome.is_err(), has_failed);
        comes_about("a clean-up", || store.cleanups.count() > 0);
        let Question { by, deadline, .. } = store.cleanups.all().remove(0);
        assert_eq!(by.as_deref() == Some("leasehold-watch"), has_failed, "{by:?}");
        assert!(has_failed || deadline <= latest.plus(engine.options.command_timeout));
    }
}

#[test]
fn a_grant_during_a_shutdown_is_released() {
    let (store, engine, name) = running(scripted());
    let (asks, has_begun, go_on) = gate();
    store.attempts.before(asks);
    thread::scope(|scope| {
        let trying = scope.spawn(|| acquire(&engine, &name, ONCE, Lease::Renewed).map(drop));
        has_begun.recv().unwrap();
        let ending = scope.spawn(|| engine.shutdown());
        comes_about("the end of calls", || engine.calls.is_closed());
        go_on.send(()).unwrap();
        assert_eq!(trying.join().unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
        ending.join().unwrap().unwrap();
    });
    assert!(store.is_free());
    assert!(engine.registry.holds().is_empty());
}

#[test]
fn a_shutdown_times_out_if_a_call_does_not_end() {
    let options = Options { command_timeout: Duration::from_millis(100), ..Options::default() };
    let store = Arc::new(scripted());
    let engine = Running::start(options, Clock::System, Arc::clone(&store) as Arc<dyn Store>);
    let name = named("a");
    let (asks, has_begun, go_on) = gate();
    store.attempts.before(asks);
    thread::scope(|scope| {
        let trying = scope.spawn(|| acquire(&engine, &name, ONCE, Lease::Renewed).map(drop));
        has_begun.recv().unwrap();
        assert_eq!(engine.shutdown().unwrap_err().kind(), ErrorKind::TimedOut);
        go_on.send(()).unwrap();
        assert_eq!(trying.join().unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
    });
    assert_eq!(engine.stats().holds, 0, "the call failed, so there is no hold");
}

#[test]
fn a_late_reentry_does_not_revive_an_expired_hold() {
    let lease = Duration::from_secs(1);
    let (store, clock, engine, name) = standing(notifying());
    let outer = acquire(&engine, &name, FOREVER, Lease::Fixed(lease)).unwrap().unwrap();
    // The store grants the re-entry for an hour, but its answer comes after the end of the outer hold.
    store.attempts.before(move || clock.advance(lease * 2));
    let inner = acquire(&engine, &name, FOREVER, Lease::Fixed(lease * 3600)).unwrap().unwrap();
    assert!(!Arc::ptr_eq(&outer.hold, &inner.hold));
    assert_eq!(outer.hold.standing(engine.clock.now()), hold::Standing::Lost(LossReason::Expired));
    assert_ne!(outer.hold.owner(), inner.hold.owner());
    assert_eq!((outer.hold.count(), inner.hold.count()), (0, 1));
    assert_eq!(store.holder(), Some(inner.hold.owner().to_string()));
    release(&engine, &inner).unwrap();
    assert!(store.is_free());
}

#[test]
fn a_loss_callback_is_dropped_on_the_callback_thread() {
    struct Tells(Sender<Option<String>>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(thread::current().name().map(str::to_owned)).unwrap();
        }
    }
    let (_store, engine, name) = running(scripted());
    let mine = lock(&engine, &name);
    let (sender, dropped_on) = bounded(1);
    let tells = Tells(sender);
    mine.hold.listen(hold::Listener::OnLost(Box::new(move |_| drop(tells))), &engine.reporter);
    drop_guard(&engine, &mine);
    let thread = dropped_on.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(thread.as_deref(), Some("leasehold-calls"));
}

/// One thread makes 5,000 holds, which expire because it never releases them.
#[test]
fn memory_for_expired_unreleased_holds_is_bounded() {
    let (clock, engine) = on_memory();
    let name = |n: usize| named(&format!("a-{n}"));
    const HOLDS: usize = 5_000;
    let lease = Duration::from_secs(1);
    for n in 0..HOLDS {
        assert!(acquire(&engine, &name(n), ONCE, Lease::Fixed(lease)).unwrap().is_some());
    }
    let cached = acquire(&engine, &name(HOLDS), ONCE, Lease::Renewed).unwrap().unwrap();
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
    release(&engine, &cached).unwrap();
}

#[test]
fn an_unanswered_renewal_is_undone_after_the_hold_expires() {
    let (store, clock, engine, name) = standing(scripted());
    store.renewals.always(in_doubt);
    let mine = lock(&engine, &name);
    clock.advance(engine.options.lease - Duration::from_secs(1));
    assert!(store.holder().is_some(), "the lock was not renewed");
    assert_eq!(store.cleanups.count(), 0);
    let failed = store.renewals.count();
    assert!((10..100).contains(&failed), "{failed} renewals in two thirds of a lease");
    clock.advance(Duration::from_secs(2));
    assert!(matches!(mine.hold.standing(engine.clock.now()), hold::Standing::Lost(_)));
    assert!(store.is_free(), "the store still holds a lock that was lost");
}
