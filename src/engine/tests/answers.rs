//! Answers that are late, lost or missing, time slices, and clients that stood still.

use super::*;
use crate::engine::batch::{LevelRelease, leave_all, prolong};
use crate::engine::lock::Next;
use crate::interrupt::Interrupt;
use crate::seam::{Answer, Failure};

pub(super) fn in_doubt<T>() -> Answer<T> {
    Err(Failure::Unknown(refusal().with_unknown_outcome()))
}

#[test]
fn an_expired_lock_is_not_reported_as_released() {
    let lease = Duration::from_secs(10);
    let (store, clock, engine, name) = standing(Odd::default());
    for takes in [Duration::ZERO, lease] {
        let mine = acquire(&engine, &name, FOREVER, Lease::Fixed(lease)).unwrap().unwrap();
        let (told, later) = (bounded(1), clock.clone());
        *store.holder.lock() = None;
        store.releasing.lock().extend::<[Script<Release>; 2]>([
            Box::new(in_doubt),
            Box::new(move || {
                later.advance(takes);
                Ok(Release::NotHeld { holder: None })
            }),
        ]);
        thread::scope(|scope| {
            let end = || told.0.send(engine.end_level("unlock", &mine.hold, Some(mine.level))).unwrap();
            thread::Builder::new().spawn_scoped(scope, end).unwrap();
            // Moving the clock ends the pause between two requests.
            let released = loop {
                match told.1.recv_timeout(Duration::from_millis(1)) {
                    Ok(released) => break released,
                    Err(_none) => clock.advance(Duration::from_millis(20)),
                }
            };
            // Within the lease only the first request can have freed the lock; later its expiry can have.
            assert_eq!(released.is_ok(), takes.is_zero(), "{released:?}");
        });
    }
    engine.shutdown().unwrap();
}

#[test]
fn a_doubtful_request_is_cleaned_up_until_harmless() {
    let (store, clock, engine, name) = standing(Odd::default());
    store.attempting.lock().push_back(Box::new(in_doubt));
    let number = ThreadMarker::current().number();
    acquire(&engine, &name, WaitLimit::Once, Lease::Renewed).unwrap_err();
    assert_ne!(ThreadMarker::current().number(), number, "it may yet be carried out under the old number");
    clock.advance(engine.options.command_timeout);
    let cleanups = store.cleanups.load(Ordering::SeqCst);
    assert!(cleanups > 0);
    let place = engine.registry.local(Kind::Mutex, &name).join(false);
    assert!(!place.has_word());
    // The lost request arrives now, after a clean-up that found nothing.
    *store.holder.lock() = Some(Owner::new(engine.id, number));
    clock.advance(engine.options.command_timeout * 2);
    assert_eq!(*store.holder.lock(), None);
    comes_about("a waiter here hears that it was freed", || place.has_word());
    drop(place);
    engine.shutdown().unwrap();
}

#[test]
fn a_grant_read_too_late_is_no_hold() {
    let lease = Duration::from_secs(1);
    let (store, clock, engine, name) = standing(Odd::default());
    let number = ThreadMarker::current().number();
    let late = Some(Owner::new(engine.id, number));
    let (holder, later) = (Arc::clone(&store), clock.clone());
    store.attempting.lock().push_back(Box::new(move || {
        later.advance(lease * 2);
        *holder.holder.lock() = late;
        Ok(Attempt::granted(None))
    }));
    let error = acquire(&engine, &name, WaitLimit::Once, Lease::Fixed(lease)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(!error.outcome_unknown());
    clock.advance(Duration::from_secs(1));
    assert_eq!(*store.holder.lock(), None, "it is undone");
    assert_ne!(ThreadMarker::current().number(), number);
    engine.shutdown().unwrap();
}

/// The grant took long, because its thread waited for a connection, say. The watchdog would find next to
/// nothing left of the window.
#[test]
fn a_grant_near_its_end_is_renewed_first() {
    let lease = Duration::from_secs(8);
    for (took, renewals, deaf) in [(5, 0, 0), (7, 1, 0), (7, 1, 1)] {
        let (clock, store) = (ManualClock::new(), Arc::new(Odd::default()));
        let options = Options { lease, ..Options::default() };
        let engine = engine_with(options, &store, &Clock::Manual(clock.clone()));
        let number = ThreadMarker::current().number();
        let (owner, begun) = (Owner::new(engine.id, number), engine.clock.now());
        let (holder, later) = (Arc::clone(&store), clock.clone());
        store.attempting.lock().push_back(Box::new(move || {
            // The time passes before the grant, when the watchdog has no hold to renew.
            later.advance(Duration::from_secs(took));
            *holder.holder.lock() = Some(owner);
            Ok(Attempt::granted(None))
        }));
        store.deaf.store(deaf, Ordering::SeqCst);
        let granted = acquire(&engine, &name(), WaitLimit::Once, Lease::Renewed);
        let at_once = store.renewals.load(Ordering::SeqCst);
        match granted {
            Ok(granted) => {
                let since = Duration::from_secs(took) * renewals;
                assert_eq!(
                    (granted.unwrap().hold.until(), deaf),
                    (begun.plus(since + crate::time::window(lease)), 0)
                );
            }
            Err(error) => {
                assert_eq!((error.kind(), deaf), (ErrorKind::TimedOut, 1), "{error}");
                assert_ne!(ThreadMarker::current().number(), number, "the renewal may yet come");
            }
        }
        assert_eq!(at_once, renewals as usize, "after {took} s");
        drop(engine.shutdown());
    }
}

/// The error does not depend on the caller's time limit. When the grant is released, the store frees the lock
/// at once, and sends a message.
#[test]
fn a_lease_below_the_answer_time_is_an_error() {
    let (lease, ms) = (Duration::from_millis(2), Duration::from_millis);
    let channel = Arc::new(Channel::new("a", true));
    let store = Arc::new(Odd { channel: Some(Arc::clone(&channel)), ..Odd::default() });
    let options = Options { retry_timeout: ms(300), ..Options::default() };
    let engine = engine_with(options, &store, &Clock::System);
    let name = name();
    for limit in [WaitLimit::Deadline(engine.clock.after(ms(200))), FOREVER] {
        let before = store.attempts.load(Ordering::SeqCst);
        store.attempting.lock().extend((0..10_000).map(|_| -> Script<Attempt> {
            let channel = Arc::clone(&channel);
            Box::new(move || {
                thread::park_timeout(lease * 2);
                channel.notify();
                Ok(Attempt::granted(None))
            })
        }));
        let begun = engine.clock.now();
        let error = acquire(&engine, &name, limit, Lease::Fixed(lease)).unwrap_err();
        let took = engine.clock.now().since(begun);
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("a lease of 2ms, but the answer took "), "{error}");
        assert!(took >= ms(150), "{took:?}");
        let attempts = store.attempts.load(Ordering::SeqCst) - before;
        // One attempt at first, and one after each pause, which is 20 ms at least.
        let most = 2 + (took.as_millis() / 20) as usize;
        assert!(attempts <= most, "{attempts} attempts in {took:?}");
        store.attempting.lock().clear();
    }
    // The short lease alone was refused: with a longer one the same thread is granted the lock.
    let granted = acquire(&engine, &name, FOREVER, Lease::Fixed(Duration::from_secs(60))).unwrap().unwrap();
    engine.end_level("unlock", &granted.hold, Some(granted.level)).unwrap();
    engine.shutdown().unwrap();
}

#[test]
fn an_interrupt_ends_a_repeated_reentry() {
    let (store, engine, name) = running(Odd::default());
    let outer = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    store.failing.store(usize::MAX, Ordering::SeqCst);
    let interrupt = Interrupt::new();
    let attempts = store.attempts.load(Ordering::SeqCst);
    let error = thread::scope(|scope| {
        let interrupts = || {
            comes_about("a second try", || store.attempts.load(Ordering::SeqCst) > attempts + 1);
            interrupt.interrupt();
        };
        thread::Builder::new().spawn_scoped(scope, interrupts).unwrap();
        let local = engine.registry.local(Kind::Mutex, &name);
        let call = AcquireCall::new("lock", Kind::Mutex, (&name, &local), FOREVER);
        let again = engine.acquire(&AcquireCall { interrupt: Some(&interrupt), by_thread: true, ..call });
        again.unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert_eq!(outer.hold.count(), 1);
    engine.end_level("unlock", &outer.hold, Some(outer.level)).unwrap();
    engine.shutdown().unwrap();
}

#[test]
fn a_waiter_polls_behind_a_silently_lost_hold() {
    let hour = Duration::from_secs(3600);
    let (store, clock, engine, name) = standing(Odd::default());
    let mine = acquire(&engine, &name, FOREVER, Lease::Fixed(hour * 1000)).unwrap().unwrap();
    thread::scope(|scope| {
        let wait = || {
            // The lease is so long that moving the clock does not end it.
            let theirs = acquire(&engine, &name, FOREVER, Lease::Fixed(hour * 1000)).unwrap().unwrap();
            engine.end_level("unlock", &theirs.hold, Some(theirs.level)).unwrap();
        };
        let waiter = thread::Builder::new().spawn_scoped(scope, wait).unwrap();
        comes_about("the other thread's sleep", || sleeps(&engine, &name));
        *store.holder.lock() = None;
        // Three hours exceed the longest sleep of a waiter, which is two.
        clock.advance(hour * 3);
        let is_done = || waiter.is_finished();
        let deadline = Clock::System.after(Duration::from_secs(10));
        while !is_done() && Clock::System.now() < deadline {
            thread::yield_now();
        }
        let has_polled = is_done();
        // The thread must end, whether the test fails or not.
        drop(engine.end_level("unlock", &mine.hold, Some(mine.level)));
        assert!(has_polled, "it sleeps until the lease of a hold that is gone");
    });
    engine.shutdown().unwrap();
}

#[test]
fn a_refused_hand_off_becomes_a_plain_release() {
    let ((is_reading, _reading), (go_on, may_read)) = (bounded(1), bounded(1));
    go_on.send(()).unwrap();
    let store = Arc::new(Odd {
        handing: refused_when_read(is_reading, may_read),
        channel: Some(Arc::new(Channel::new("a", true))),
        ..Odd::default()
    });
    let (engine, name) = (engine(&store, &Clock::System), name());
    let mine = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    let until = WaitLimit::Deadline(engine.clock.after(Duration::from_secs(10)));
    thread::scope(|scope| {
        let wait = || {
            let theirs = acquire(&engine, &name, until, Lease::Renewed).unwrap();
            theirs.map(|theirs| engine.end_level("unlock", &theirs.hold, Some(theirs.level)).unwrap())
        };
        let waiter = thread::Builder::new().spawn_scoped(scope, wait).unwrap();
        comes_about("the other thread's sleep", || sleeps(&engine, &name));
        engine.end_level("unlock", &mine.hold, Some(mine.level)).unwrap();
        assert!(waiter.join().unwrap().is_some(), "the store has it under the one who unlocked it");
    });
    assert!(store.handing.lock().is_empty(), "it was to be handed off");
    assert_eq!(*store.holder.lock(), None);
    engine.shutdown().unwrap();
}

#[test]
fn a_shutdown_ends_a_repeated_reentry() {
    let (store, engine, name) = running(Odd::default());
    acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    store.failing.store(usize::MAX, Ordering::SeqCst);
    let attempts = store.attempts.load(Ordering::SeqCst);
    thread::scope(|scope| {
        let end = || {
            comes_about("a second try", || store.attempts.load(Ordering::SeqCst) > attempts + 1);
            engine.shutdown()
        };
        let ending = thread::Builder::new().spawn_scoped(scope, end).unwrap();
        let error = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ShutDown);
        ending.join().unwrap().unwrap();
    });
}

#[test]
fn max_hold_counts_from_the_request() {
    let second = Duration::from_secs(1);
    let (store, clock, engine, name) = standing(Odd::default());
    let later = clock.clone();
    store.attempting.lock().push_back(Box::new(move || {
        later.advance(second * 3);
        Ok(Attempt::granted(None))
    }));
    let local = engine.registry.local(Kind::Mutex, &name);
    let call = AcquireCall::new("lock", Kind::Mutex, (&name, &local), WaitLimit::Once);
    let config = LockConfig { max_hold: Some(second * 10), ..LockConfig::default() };
    let granted = engine.acquire(&AcquireCall { config, by_thread: true, ..call });
    let hold = granted.unwrap().unwrap().hold;
    assert_eq!(hold.within_ceiling(second * 100, clock.now()), second * 7);
    drop(engine.shutdown());
}

#[test]
fn a_release_between_an_attempt_and_the_listening_is_noticed() {
    let channel = Arc::new(Channel::new("a", true));
    let (store, engine, name) = running(Odd { channel: Some(Arc::clone(&channel)), ..Odd::default() });
    store.attempting.lock().push_back(Box::new(move || {
        channel.notify();
        Ok(Attempt::Busy { retry_after: None })
    }));
    // Without the notification the waiter would sleep for an hour.
    let until = WaitLimit::Deadline(engine.clock.after(Duration::from_secs(10)));
    assert!(acquire(&engine, &name, until, Lease::Renewed).unwrap().is_some());
    engine.shutdown().unwrap();
}

#[test]
fn a_client_that_just_released_lets_others_go_first() {
    let (store, clock, engine, name) = standing(Odd::default());
    let mine = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    *store.holder.lock() = None;
    store.releasing.lock().push_back(Box::new(|| Ok(Release::Freed { others: Others::Listen(2) })));
    engine.end_level("unlock", &mine.hold, Some(mine.level)).unwrap();
    let attempts = store.attempts.load(Ordering::SeqCst);
    let (told, is_told) = bounded(1);
    thread::scope(|scope| {
        let again = || told.send(acquire(&engine, &name, FOREVER, Lease::Renewed).map(drop)).unwrap();
        thread::Builder::new().spawn_scoped(scope, again).unwrap();
        // The stand-back ends only when the clock is moved.
        assert!(is_told.recv_timeout(Duration::from_millis(50)).is_err());
        assert_eq!(store.attempts.load(Ordering::SeqCst), attempts);
        clock.advance(Duration::from_millis(10));
        is_told.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
    });
    drop(engine.shutdown());
}

#[test]
fn local_hand_offs_are_limited() {
    let (_store, clock, engine, name) = standing(Odd::default());
    let mine = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    let place = engine.registry.local(Kind::Mutex, &name).join(false);
    let mut times = 0;
    let next = || {
        assert!(place.sleep(Some(mine.hold.claim()), false).is_some());
        let mut state = mine.hold.local().state();
        let at = state.at(clock.now());
        state.promise(at)
    };
    while let Next::Local(_) = next() {
        times += 1;
        assert!(times < 1_000, "others never have a turn");
    }
    assert!(times > 1, "{times}");
    // A release that others hear starts their turn; the registry remembers for a while that others listen.
    engine.registry.note_released(&mine.hold, Others::Listen(2), clock.now());
    assert!(matches!(next(), Next::Local(_)));
    assert!(mine.hold.local().state().contended.is_some());
    engine.registry.tidy(clock.now().plus(Duration::from_secs(60)));
    assert!(mine.hold.local().state().contended.is_none());
    // A waiter here is notified when the hold is removed.
    assert!(!place.has_word());
    engine.registry.remove(&mine.hold);
    assert!(place.has_word());
    drop(place);
    drop(engine.shutdown());
}

#[test]
fn an_explicit_lease_ends_on_time() {
    let lease = Duration::from_secs(9);
    let (_store, clock, engine, name) = standing(Odd::default());
    let local = engine.registry.local(Kind::Mutex, &name);
    let call = AcquireCall::new("lock", Kind::Mutex, (&name, &local), WaitLimit::Once);
    let granted = engine.acquire(&AcquireCall { lease: Lease::Fixed(lease), ..call });
    let mine = granted.unwrap().unwrap();
    let lost = mine.hold.loss_channel();
    engine.watch(&mine.hold);
    clock.advance(lease * 98 / 100);
    assert!(lost.is_empty());
    clock.advance(lease / 100 + Duration::from_millis(2));
    assert_eq!(lost.try_recv().unwrap().reason, LossReason::Expired);
    drop(engine.shutdown());
}

#[test]
fn a_hanging_renewal_leaves_time_for_another() {
    let (lease, clock) = (Duration::from_secs(3), ManualClock::new());
    let store = Arc::new(Odd::default());
    let options = Options { lease, command_timeout: Duration::from_secs(60), ..Options::default() };
    let engine = engine_with(options, &store, &Clock::Manual(clock.clone()));
    let mine = acquire(&engine, &name(), FOREVER, Lease::Renewed).unwrap().unwrap();
    let until = mine.hold.until();
    clock.advance(lease / 2);
    let deadline = *store.renewed_by.lock().first().expect("it is renewed after a third");
    assert!(deadline.plus(lease / 6) < until, "{:?} are left then", until.since(deadline));
    drop(engine.shutdown());
}

#[test]
fn a_renewal_during_a_release_reports_no_loss() {
    let (store, clock, engine, name) = standing(Odd::default());
    let mine = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    let (hold, there) = (Arc::clone(&mine.hold), Arc::clone(&store));
    store.renewing.lock().push_back(Box::new(move || {
        assert!(hold.begin_release());
        *there.holder.lock() = None;
    }));
    let lost = mine.hold.loss_channel();
    clock.advance(engine.options.lease / 2);
    assert_eq!(store.renewals.load(Ordering::SeqCst), 1);
    assert!(lost.is_empty(), "its release says what became of it");
    assert!(!matches!(mine.hold.standing(clock.now()), hold::Standing::Lost(_)));
    drop(engine.shutdown());
}

#[test]
fn the_store_learns_of_holds_ended_during_renewals() {
    let (store, clock, engine, name) = standing(Odd { is_several: true, ..Odd::default() });
    let engine = Arc::new(engine);
    let mine = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    clock.advance(engine.options.lease / 2);
    assert_eq!(store.renewals.load(Ordering::SeqCst), 1);
    assert!(store.ended_meanwhile.lock().is_empty());
    let hold = Arc::clone(&mine.hold);
    store.renewing.lock().push_back(Box::new(move || assert!(hold.begin_release())));
    clock.advance(engine.options.lease / 2);
    assert_eq!(*store.ended_meanwhile.lock(), [mine.hold.owner()]);
    // `prolong` on the caller's thread does as the watchdog.
    prolong(std::iter::once((&engine, &mine.hold)), engine.options.lease);
    assert_eq!(store.ended_meanwhile.lock().len(), 2);
    drop(engine.shutdown());
}

#[test]
fn a_dropped_release_that_finds_nothing_is_a_loss() {
    let (store, engine, name) = running(Odd::default());
    let mine = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    let lost = mine.hold.loss_channel();
    *store.holder.lock() = None;
    engine.drop_level(&mine.hold, mine.level);
    assert_eq!(lost.recv_timeout(Duration::from_secs(10)).unwrap().reason, LossReason::Gone);
    assert!(engine.registry.holds().is_empty());
    engine.shutdown().unwrap();
}

#[test]
fn a_clean_up_ends_before_the_next_renewal() {
    let (lease, clock) = (Duration::from_secs(3), ManualClock::new());
    let store = Arc::new(Odd::default());
    let options = Options { lease, command_timeout: Duration::from_secs(60), ..Options::default() };
    let engine = engine_with(options, &store, &Clock::Manual(clock.clone()));
    acquire(&engine, &name(), FOREVER, Lease::Renewed).unwrap().unwrap();
    let other = Arc::new(LockName::new(&Arc::from("b"), "b".to_owned()).unwrap());
    store.attempting.lock().push_back(Box::new(in_doubt));
    let begun = clock.now();
    acquire(&engine, &other, WaitLimit::Once, Lease::Renewed).unwrap_err();
    clock.advance(Duration::from_millis(100));
    let (_, deadline) = store.cleaned_up.lock().first().cloned().expect("it is cleaned up at once");
    assert!(deadline <= begun.plus(lease / 2), "{:?}", deadline.since(begun));
    drop(engine.shutdown());
}

#[test]
fn a_forced_unlock_notifies_local_holders() {
    let clock = ManualClock::new();
    let memory = MemoryStore::with_clock(clock.clone());
    let store: Arc<dyn Store> = Arc::new(memory.open());
    let reporter = Arc::new(Reporter::new(None));
    let clocked = Clock::Manual(clock.clone());
    let engine = Engine::start(Options::default(), clocked, store, reporter).unwrap();
    let mine = acquire(&engine, &name(), FOREVER, Lease::Renewed).unwrap().unwrap();
    let lost = mine.hold.loss_channel();
    // The clock stands still, so no renewal can report the loss.
    assert!(engine.force("force_unlock", Kind::Mutex, &name()).unwrap());
    assert_eq!(lost.try_recv().unwrap().reason, LossReason::Gone);
    engine.shutdown().unwrap();
}

#[test]
fn a_paused_client_revives_no_expired_hold() {
    let (lease, clock) = (Duration::from_secs(1), ManualClock::new());
    let store = Arc::new(Odd::default());
    let (engine, name) = (Arc::new(engine(&store, &Clock::Manual(clock.clone()))), name());
    for way in 0..4 {
        *store.holder.lock() = None;
        let mine = acquire(&engine, &name, WaitLimit::Once, Lease::Fixed(lease)).unwrap().unwrap();
        let release = || LevelRelease {
            engine: Arc::clone(&engine),
            hold: Arc::clone(&mine.hold),
            level: Some(mine.level),
        };
        let expired = |ended: Result<()>| assert_eq!(ended.unwrap_err().not_held(), Some(&NotHeld::Expired));
        engine.stand_still(true);
        clock.advance(lease);
        match way {
            0 => {
                *store.holder.lock() = None;
                let next = acquire(&engine, &name, WaitLimit::Once, Lease::Renewed).unwrap().unwrap();
                assert_ne!(next.hold.owner(), mine.hold.owner(), "what is late may be about that one");
                engine.end_level("unlock", &next.hold, Some(next.level)).unwrap();
            }
            1 => expired(engine.end_level("unlock", &mine.hold, Some(mine.level))),
            2 => expired(leave_all("unlock", vec![release()])),
            _ => {
                prolong([(&engine, &mine.hold)].into_iter(), lease);
                let standing = mine.hold.standing(clock.now());
                assert_eq!(standing, hold::Standing::Lost(LossReason::Expired));
            }
        }
        engine.stand_still(false);
    }
    drop(engine.shutdown());
}

#[test]
fn a_groups_lease_counts_from_the_request() {
    let (second, clock) = (Duration::from_secs(1), ManualClock::new());
    let store = Arc::new(Odd::default());
    let (engine, name) = (Arc::new(engine(&store, &Clock::Manual(clock.clone()))), name());
    let mine = acquire(&engine, &name, WaitLimit::Once, Lease::Fixed(second * 10)).unwrap().unwrap();
    let (asked, later) = (clock.now(), clock.clone());
    store.renewing.lock().push_back(Box::new(move || later.advance(second * 3)));
    prolong([(&engine, &mine.hold)].into_iter(), second * 20);
    assert_eq!(mine.hold.until(), asked.plus(crate::time::window(second * 20)), "not from the reply");
    drop(engine.shutdown());
}

/// A waiter that lets others go first, since it has just released the lock, and whose time is over by then.
#[test]
fn an_overdue_wait_still_makes_one_attempt() {
    let channel = Arc::new(Channel::new("a", true));
    let (store, clock, engine, name) = standing(Odd { channel: Some(channel), ..Odd::default() });
    let mine = acquire_as(Kind::Write, &engine, &name, WaitLimit::Once, Lease::Renewed).unwrap().unwrap();
    engine.end_level("unlock", &mine.hold, Some(mine.level)).unwrap();
    engine.registry.note_released(&mine.hold, Others::Listen(2), clock.now());
    // The wait is longer than a client stands back after its own release.
    let wait = Duration::from_millis(10);
    let attempts = store.attempts.load(Ordering::SeqCst);
    let limit = WaitLimit::Deadline(clock.now().plus(wait));
    let granted = thread::scope(|scope| {
        let asking = scope.spawn(|| acquire_as(Kind::Write, &engine, &name, limit, Lease::Renewed).unwrap());
        while !asking.is_finished() {
            clock.advance(wait * 2);
            thread::yield_now();
        }
        asking.join().unwrap()
    });
    assert_eq!(store.attempts.load(Ordering::SeqCst), attempts + 1);
    assert!(granted.is_some());
    drop(engine.shutdown());
}

/// The retry time is for one outage, and not for two that are an hour apart.
#[test]
fn each_outage_gets_the_full_retry_time() {
    let (store, clock, engine, name) = standing(Odd::default());
    let patience = engine.options.retry_timeout;
    let fails = || -> Script<Attempt> { Box::new(|| Err(Failure::Refused(refusal()))) };
    let (answers, later) = (|| Ok(Attempt::Busy { retry_after: None }), clock.clone());
    store.attempting.lock().extend([
        Box::new(answers) as Script<Attempt>,
        fails(),
        Box::new(move || {
            later.advance(patience * 2);
            answers()
        }),
        fails(),
        Box::new(|| Ok(Attempt::granted(None))),
    ]);
    let ((told, is_told), local) = (bounded(1), engine.registry.local(Kind::Mutex, &name));
    let waited = thread::scope(|scope| {
        let wait = || told.send(acquire(&engine, &name, FOREVER, Lease::Renewed).map(drop)).unwrap();
        thread::Builder::new().spawn_scoped(scope, wait).unwrap();
        loop {
            match is_told.recv_timeout(Duration::from_millis(1)) {
                Ok(waited) => break waited,
                Err(_none) => local.state().queue.nudge(), // makes the waiter ask at once
            }
        }
    });
    assert!(store.attempting.lock().is_empty(), "it gave up: {waited:?}");
    waited.unwrap();
    drop(engine.shutdown());
}

/// A try has not waited, so its failure says nothing about the retry time of waiters.
#[test]
fn a_failed_try_does_not_start_waiters_retry_time() {
    let (store, clock, engine, name) = standing(Odd::default());
    let local = engine.registry.local(Kind::Mutex, &name);
    let place = local.join(false); // as a waiter
    store.failing.store(1, Ordering::SeqCst);
    acquire(&engine, &name, WaitLimit::Once, Lease::Renewed).unwrap_err();
    let later = clock.now().plus(engine.options.retry_timeout * 2);
    assert!(local.spent_retry_budget(engine.options.retry_timeout, later).is_none());
    drop(place);
    engine.shutdown().unwrap();
}

/// The second request may reach the store when the thread has the next hold.
#[test]
fn a_repeated_request_retires_the_holds_owner_number() {
    let (store, engine, name) = running(Odd::default());
    let number = || ThreadMarker::current().number();
    let before = number();
    let held = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    store.releasing.lock().push_back(Box::new(in_doubt));
    engine.end_level("unlock", &held.hold, Some(held.level)).unwrap();
    assert_ne!(number(), before, "a release");
    let before = number();
    let held = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    store.attempting.lock().push_back(Box::new(in_doubt));
    let again = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    assert_eq!(number(), before, "it holds the lock under that");
    store.releasing.lock().push_back(Box::new(|| Ok(Release::StillHeld)));
    for level in [again.level, held.level] {
        engine.end_level("unlock", &held.hold, Some(level)).unwrap();
    }
    assert_ne!(number(), before, "a re-entry");
    engine.shutdown().unwrap();
}

/// A store recognizes a repeated release without a lease for some minutes only.
#[test]
fn a_doubtful_endless_release_goes_to_the_watchdog() {
    let (store, engine, name) = running(Odd::default());
    let held = acquire_as(Kind::Semaphore, &engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    engine.stand_still(true);
    store.releasing.lock().push_back(Box::new(in_doubt));
    let error = engine.end_level("release", &held.hold, Some(held.level)).unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    drop(engine.shutdown());
}

#[test]
fn a_failed_release_retires_its_number() {
    let store = Arc::new(Odd { closed: true.into(), ..Odd::default() });
    let engine = engine(&store, &Clock::Manual(ManualClock::new()));
    let number = ThreadMarker::current().number();
    let mine = acquire(&engine, &name(), FOREVER, Lease::Renewed).unwrap().unwrap();
    engine.drop_level(&mine.hold, mine.level);
    assert_ne!(ThreadMarker::current().number(), number, "the watchdog would free the next hold with it");
    drop(engine.shutdown());
}

#[test]
fn the_store_cannot_invent_a_threads_hold() {
    let store = Arc::new(Odd { closed: true.into(), ..Odd::default() });
    let engine = engine(&store, &Clock::Manual(ManualClock::new()));
    let mine = acquire(&engine, &name(), FOREVER, Lease::Renewed).unwrap().unwrap();
    let held = Snapshot { holder: mine.hold.owner().to_string(), count: 2, remaining: None };
    let counted = || {
        store.inspecting.lock().push_back(Box::new({
            let held = held.clone();
            move || Ok(Some(held))
        }));
        engine.inspect("hold_count", Kind::Mutex, &name()).unwrap().unwrap().count
    };
    assert_eq!(counted(), 1, "a level that was left is counted");
    engine.drop_level(&mine.hold, mine.level);
    assert_eq!(counted(), 0);
    drop(engine.shutdown());
}

#[test]
fn a_failed_renewal_puts_a_hold_at_risk() {
    let clock = ManualClock::new();
    let store = Arc::new(Odd { deaf: 1.into(), ..Odd::default() });
    let engine = engine(&store, &Clock::Manual(clock.clone()));
    let mine = acquire(&engine, &name(), FOREVER, Lease::Renewed).unwrap().unwrap();
    engine.stand_still(true);
    clock.advance(engine.options.lease / 3);
    let (checks, is_looked) = bounded(1);
    let (hold, now) = (Arc::clone(&mine.hold), clock.clone());
    store.renewing.lock().extend([
        Box::new(|| ()) as Box<dyn FnOnce() + Send>,
        Box::new(move || checks.send(hold.standing(now.now())).unwrap()),
    ]);
    engine.stand_still(false);
    clock.advance(engine.options.lease / 3);
    let before = is_looked.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(matches!(before, hold::Standing::AtRisk(_)), "{before:?}");
    comes_about("the second renewal", || mine.hold.standing(clock.now()) == hold::Standing::Held);
    drop(engine.shutdown());
}

/// A message may be lost, and no other client knows of the loss.
#[test]
fn a_renewals_loss_wakes_local_waiters() {
    let (store, clock, engine, name) = standing(Odd::default());
    let mine = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    let place = mine.hold.local().join(false);
    *store.holder.lock() = None;
    clock.advance(engine.options.lease / 2);
    assert_eq!(mine.hold.standing(clock.now()), hold::Standing::Lost(LossReason::Gone));
    assert!(place.has_word());
    drop(place);
    drop(engine.shutdown());
}

#[test]
fn clean_ups_of_an_unanswered_request_back_off() {
    let clock = ManualClock::new();
    let store = Arc::new(Odd::default());
    let options = Options { command_timeout: Duration::from_millis(100), ..Options::default() };
    let engine = engine_with(options, &store, &Clock::Manual(clock.clone()));
    let minute = Duration::from_secs(60);
    store.attempting.lock().push_back(Box::new(in_doubt));
    acquire(&engine, &name(), WaitLimit::Once, Lease::Fixed(minute)).unwrap_err();
    clock.advance(minute);
    // Clean-ups follow after 0.1 s, 0.2 s, 0.4 s …, and then every two seconds.
    let checks = store.cleanups.load(Ordering::SeqCst);
    assert!((25..60).contains(&checks), "{checks} looks in a minute");
    engine.shutdown().unwrap();
}

/// A late request concerns the lock that was lost, and no other.
#[test]
fn a_try_survives_the_loss_of_an_older_hold() {
    let store = Arc::new(Odd::default());
    let engine = engine(&store, &Clock::System);
    let other = Arc::new(LockName::new(&Arc::from("b"), "b".to_owned()).unwrap());
    let reporter = Arc::clone(&engine.reporter);
    for (asked, kind, is_granted) in
        [(&other, Kind::Mutex, true), (&name(), Kind::Mutex, false), (&other, Kind::Write, false)]
    {
        let held = acquire(&engine, &name(), FOREVER, Lease::Renewed).unwrap().unwrap().hold;
        let number = ThreadMarker::current().number();
        let reporter = Arc::clone(&reporter);
        store.attempting.lock().push_back(Box::new(move || {
            held.lose(LossReason::Gone, Moment::from_nanos(1), &reporter);
            Ok(Attempt::granted(None))
        }));
        // The lost lock is asked for under the number that it had: its loss is not known yet.
        if asked.key() == "a" {
            engine.registry.local(kind, asked).state().holds.clear();
        }
        let had = acquire_as(kind, &engine, asked, WaitLimit::Once, Lease::Renewed);
        assert_eq!(had.unwrap().is_some(), is_granted, "{kind:?} {}", asked.key());
        assert_ne!(ThreadMarker::current().number(), number, "it is not that of the next hold");
        *store.holder.lock() = None;
        engine.registry.local(Kind::Mutex, &other).state().holds.clear();
    }
    drop(engine.shutdown());
}

/// So many numbers are retired later that the lock knows the first one only by them.
#[test]
fn a_retired_number_stays_retired_after_many_others() {
    let store = Arc::new(Odd::default());
    let engine = engine(&store, &Clock::System);
    let (local, thread) = (engine.registry.local(Kind::Mutex, &name()), ThreadMarker::current());
    let asked = Arc::clone(&local);
    store.attempting.lock().push_back(Box::new(move || {
        let number = thread.number();
        thread.retire(number);
        (number..number + 40).for_each(|number| asked.state().retired.add(number));
        Ok(Attempt::granted(None))
    }));
    assert!(acquire(&engine, &name(), WaitLimit::Once, Lease::Renewed).unwrap().is_none());
    assert_eq!(*store.holder.lock(), None);
    drop(engine.shutdown());
}

/// The first thread is answered after the second has asked.
#[test]
fn threads_ask_for_permits_side_by_side() {
    let (store, engine, name) = running(Odd::default());
    let (tell, told) = bounded(1);
    store.attempting.lock().extend([
        Box::new(move || {
            told.recv_timeout(Duration::from_secs(10)).expect("another thread asks");
            Ok(Attempt::granted(None))
        }) as Script<Attempt>,
        Box::new(move || {
            tell.send(()).unwrap();
            Ok(Attempt::granted(None))
        }),
    ]);
    let limit = WaitLimit::Deadline(engine.clock.after(Duration::from_secs(60)));
    let ask = || acquire_as(Kind::Semaphore, &engine, &name, limit, Lease::Renewed).unwrap().is_some();
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(ask));
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    });
    drop(engine.shutdown());
}
