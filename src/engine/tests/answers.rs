//! Answers that are late, lost or missing.

use super::*;
use crate::engine::batch::{LevelRelease, leave_all, prolong};
use crate::engine::lock::Next;

#[test]
fn an_unanswered_release_counts_as_done_only_within_the_lease() {
    let lease = Duration::from_secs(10);
    let (store, clock, engine, name) = standing(scripted());
    for takes in [Duration::ZERO, lease] {
        let mine = acquire(&engine, &name, FOREVER, Lease::Fixed(lease)).unwrap().unwrap();
        store.forget();
        store.releases.say(in_doubt);
        let later = clock.clone();
        store.releases.say(move || {
            later.advance(takes);
            not_held()
        });
        let end_pause = || clock.advance(Duration::from_millis(20));
        let released = while_called(|| release(&engine, &mine), end_pause);
        assert_eq!(released.is_ok(), takes.is_zero(), "{released:?}");
    }
}

#[test]
fn an_unanswered_attempt_that_arrives_late_is_undone() {
    let (store, clock, engine, name) = standing(scripted());
    store.attempts.say(in_doubt);
    let number = ThreadMarker::current().number();
    acquire(&engine, &name, ONCE, Lease::Renewed).unwrap_err();
    assert_ne!(ThreadMarker::current().number(), number, "the request may still arrive under the old number");
    clock.advance(engine.options.command_timeout);
    let cleanups = store.cleanups.count();
    assert!(cleanups > 0);
    let place = engine.registry.local(Kind::Mutex, &name).join(false);
    assert!(!has_word(&place));
    // The unanswered request arrives now, after a clean-up that found nothing.
    store.give(Owner::new(engine.id, number));
    clock.advance(engine.options.command_timeout * 2);
    assert!(store.is_free());
    comes_about("a local waiter is woken", || has_word(&place));
    drop(place);
}

#[test]
fn a_grant_read_too_late_is_no_hold() {
    let lease = Duration::from_secs(1);
    let (store, clock, engine, name) = standing(scripted());
    let number = ThreadMarker::current().number();
    let late = Owner::new(engine.id, number);
    let (holder, later) = (Arc::clone(&store), clock.clone());
    store.attempts.say(move || {
        later.advance(lease * 2);
        holder.give(late);
        granted()
    });
    let error = acquire(&engine, &name, ONCE, Lease::Fixed(lease)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(!error.outcome_unknown());
    clock.advance(Duration::from_secs(1));
    assert!(store.is_free(), "the late grant was not undone");
    assert_ne!(ThreadMarker::current().number(), number);
}

/// The answer took so long, perhaps because the thread waited for a connection, that the watchdog could not
/// renew the lease in time.
#[test]
fn a_grant_read_with_little_lease_left_is_no_hold() {
    let lease = Duration::from_secs(8);
    for took in [5, 7] {
        let options = Options { lease, ..Options::default() };
        let (store, clock, engine, name) = standing_with(options, scripted());
        let number = ThreadMarker::current().number();
        let (owner, begun) = (Owner::new(engine.id, number), engine.clock.now());
        let (holder, later) = (Arc::clone(&store), clock.clone());
        store.attempts.say(move || {
            // The time passes before the grant, while the watchdog has no hold to renew.
            later.advance(Duration::from_secs(took));
            holder.give(owner);
            granted()
        });
        match acquire(&engine, &name, ONCE, Lease::Renewed) {
            Ok(granted) => {
                assert_eq!(
                    (granted.unwrap().hold.until(), took),
                    (begun.plus(crate::time::window(lease)), 5)
                );
            }
            Err(error) => {
                assert_eq!((error.kind(), took), (ErrorKind::TimedOut, 7), "{error}");
                assert_ne!(ThreadMarker::current().number(), number);
            }
        }
    }
}

/// A waiter repeats a request that failed for a passing reason until `retry_timeout` has passed; other
/// failures end the wait at once.
#[test]
fn only_temporary_failures_are_retried_until_the_retry_timeout() {
    let retry_timeout = Duration::from_millis(300);
    let failing = |kind| {
        let store = Arc::new(scripted());
        let options = Options { retry_timeout, ..Options::default() };
        let engine = Running::start(options, Clock::System, Arc::clone(&store) as Arc<dyn Store>);
        for _ in 0..1_000 {
            store.attempts.say(move || Err(Failure::Refused(Error::new(kind, "lock", "not now"))));
        }
        let (begun, until) = (engine.clock.now(), engine.clock.after(Duration::from_secs(10)));
        let error = acquire(&engine, &named("a"), until, Lease::Renewed).unwrap_err();
        assert_eq!(error.kind(), kind);
        (store.attempts.count(), engine.clock.now().since(begun))
    };
    assert_eq!(failing(ErrorKind::WrongType).0, 1);
    let (times, took) = failing(ErrorKind::Unreachable);
    assert!(times > 2 && took >= retry_timeout && took < retry_timeout * 10, "{times} in {took:?}");
}

/// A grant that comes too late is released. The store then sends a message, which must not wake the caller
/// for another attempt.
#[test]
fn an_answer_that_takes_longer_than_the_lease_is_an_error() {
    let (lease, ms) = (Duration::from_millis(2), Duration::from_millis);
    let channel = Arc::new(Channel::new("a", true));
    let store = Arc::new(Scripted { channel: Some(Arc::clone(&channel)), ..scripted() });
    let options = Options { retry_timeout: ms(300), ..Options::default() };
    let engine = Running::start(options, Clock::System, Arc::clone(&store) as Arc<dyn Store>);
    let name = named("a");
    for limit in [engine.clock.after(ms(200)), FOREVER] {
        let before = store.attempts.count();
        for _ in 0..10_000 {
            let channel = Arc::clone(&channel);
            store.attempts.say(move || {
                thread::park_timeout(lease * 2);
                channel.notify();
                granted()
            });
        }
        let begun = engine.clock.now();
        let error = acquire(&engine, &name, limit, Lease::Fixed(lease)).unwrap_err();
        let took = engine.clock.now().since(begun);
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("a lease of 2ms, but the answer took "), "{error}");
        assert!(took >= ms(150), "{took:?}");
        let attempts = store.attempts.count() - before;
        // One attempt at first, one after each pause of at least 20 ms, and one to spare.
        let most = 2 + (took.as_millis() / 20) as usize;
        assert!(attempts <= most, "{attempts} attempts in {took:?}");
        store.attempts.forget_scripts();
    }
    let granted = acquire(&engine, &name, FOREVER, Lease::Fixed(Duration::from_secs(60))).unwrap().unwrap();
    release(&engine, &granted).unwrap();
}

#[test]
fn a_reentry_refused_after_the_retry_timeout_is_not_repeated() {
    let (store, clock, engine, name) = standing(scripted());
    let (later, retry_timeout) = (clock.clone(), engine.options.retry_timeout);
    let end_pause = || clock.advance(Duration::from_millis(20));
    let reenter = || {
        let outer = lock(&engine, &name);
        store.attempts.say(move || {
            later.advance(retry_timeout);
            refused()
        });
        let inner = acquire(&engine, &name, FOREVER, Lease::Renewed).map(drop);
        release(&engine, &outer).and(inner)
    };
    assert_eq!(while_called(reenter, end_pause).unwrap_err().kind(), refusal().kind());
    assert_eq!(store.attempts.count(), 2);
}

#[test]
fn an_interrupt_stops_the_repeats_of_a_refused_reentry() {
    let (store, engine, name) = running(scripted());
    let outer = lock(&engine, &name);
    store.attempts.always(refused);
    let interrupt = Interrupt::new();
    let attempts = store.attempts.count();
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            comes_about("a second try", || store.attempts.count() > attempts + 1);
            interrupt.interrupt();
        });
        wait(&engine, &name, &interrupt).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert_eq!(outer.hold.count(), 1);
    release(&engine, &outer).unwrap();
}

#[test]
fn a_waiter_polls_although_its_process_seems_to_hold_the_lock() {
    let hour = Duration::from_secs(3600);
    let (store, clock, engine, name) = standing(scripted());
    let mine = acquire(&engine, &name, FOREVER, Lease::Fixed(hour * 1000)).unwrap().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            // The lease is so long that moving the clock does not end it.
            let theirs = acquire(&engine, &name, FOREVER, Lease::Fixed(hour * 1000)).unwrap().unwrap();
            release(&engine, &theirs).unwrap();
        });
        comes_about("the other thread's sleep", || sleeps(&engine, &name));
        store.forget();
        // Three hours exceed a waiter's longest sleep, two hours.
        clock.advance(hour * 3);
        let is_done = || waiter.is_finished();
        let deadline = Clock::System.after(Duration::from_secs(10));
        while !is_done() && Clock::System.now() < deadline {
            thread::yield_now();
        }
        let has_polled = is_done();
        // Lets the waiter end, even if the test fails.
        drop(release(&engine, &mine));
        assert!(has_polled, "the waiter slept until the end of a lost hold's lease");
    });
}

#[test]
fn an_unlock_whose_hand_off_is_refused_releases_the_lock() {
    let (store, engine, name) = running(notifying());
    store.handoffs.say(refused);
    let mine = lock(&engine, &name);
    let waited = while_another_waits(&engine, &name, || release(&engine, &mine).unwrap());
    assert!(waited.unwrap().unwrap(), "the waiter did not get the lock");
    assert_eq!(store.handoffs.left(), 0, "no hand-off was tried");
    assert!(store.is_free());
}

#[test]
fn a_shutdown_stops_the_repeats_of_a_refused_reentry() {
    let (store, engine, name) = running(scripted());
    lock(&engine, &name);
    store.attempts.always(refused);
    let attempts = store.attempts.count();
    thread::scope(|scope| {
        let ending = scope.spawn(|| {
            comes_about("a second try", || store.attempts.count() > attempts + 1);
            engine.shutdown()
        });
        let error = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ShutDown);
        ending.join().unwrap().unwrap();
    });
}

#[test]
fn max_hold_begins_at_the_request() {
    let second = Duration::from_secs(1);
    let (store, clock, engine, name) = standing(scripted());
    let later = clock.clone();
    store.attempts.before(move || later.advance(second * 3));
    let config = LockConfig { max_hold: Some(second * 10), ..LockConfig::default() };
    let hold = lock_with(&engine, &name, config).hold;
    assert_eq!(hold.within_ceiling(second * 100, clock.now()), second * 7);
}

#[test]
fn a_release_between_an_attempt_and_the_listening_is_noticed() {
    let channel = Arc::new(Channel::new("a", true));
    let (store, engine, name) = running(Scripted { channel: Some(Arc::clone(&channel)), ..scripted() });
    store.attempts.say(move || {
        channel.notify();
        busy()
    });
    // Only the notification can wake the waiter in time: this store's safety poll comes after an hour.
    let until = engine.clock.after(Duration::from_secs(10));
    assert!(acquire(&engine, &name, until, Lease::Renewed).unwrap().is_some());
}

#[test]
fn a_client_that_just_released_lets_others_go_first() {
    let (store, clock, engine, name) = standing(scripted());
    let mine = lock(&engine, &name);
    store.forget();
    store.releases.say(|| Ok(Release::Freed { others: Others::Listen(2) }));
    release(&engine, &mine).unwrap();
    let attempts = store.attempts.count();
    let (told, is_told) = bounded(1);
    thread::scope(|scope| {
        scope.spawn(|| told.send(acquire(&engine, &name, FOREVER, Lease::Renewed).map(drop)).unwrap());
        assert!(is_told.recv_timeout(Duration::from_millis(50)).is_err());
        assert_eq!(store.attempts.count(), attempts);
        clock.advance(Duration::from_millis(10));
        is_told.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
    });
}

#[test]
fn the_number_of_successive_local_hand_offs_is_limited() {
    let (_store, clock, engine, name) = standing(scripted());
    let mine = lock(&engine, &name);
    let place = engine.registry.local(Kind::Mutex, &name).join(false);
    let mut times = 0;
    let next = || {
        assert!(place.sleep(sleeper(&engine), Some(Box::new(mine.hold.claim())), false).is_some());
        let mut state = mine.hold.local.state();
        let at = state.at(clock.now());
        state.promise(at)
    };
    while let Next::Local(_) = next() {
        times += 1;
        assert!(times < 1_000, "other clients never get the lock");
    }
    assert!(times > 1, "{times}");
    engine.registry.note_released(&mine.hold, Others::Listen(2), clock.now());
    assert!(matches!(next(), Next::Local(_)));
    let is_remembered = || engine.registry.remembered.lock().contains_key(&mine.hold.local.key);
    assert!(is_remembered());
    engine.registry.tidy(clock.now().plus(Duration::from_secs(60)));
    assert!(!is_remembered());
    assert!(!has_word(&place));
    engine.registry.remove(&mine.hold);
    assert!(has_word(&place));
    drop(place);
}

#[test]
fn an_explicit_lease_ends_on_time() {
    let lease = Duration::from_secs(9);
    let (_store, clock, engine, name) = standing(scripted());
    let local = engine.registry.local(Kind::Mutex, &name);
    let call = AcquireCall::new("lock", Kind::Mutex, (&name, &local), ONCE);
    let granted = engine.acquire(&AcquireCall { lease: Lease::Fixed(lease), ..call });
    let mine = granted.unwrap().unwrap();
    let lost = mine.hold.loss_channel();
    engine.watch(&mine.hold);
    clock.advance(lease * 98 / 100);
    assert!(lost.is_empty());
    clock.advance(lease / 100 + Duration::from_millis(2));
    assert_eq!(lost.try_recv().unwrap().reason, LossReason::Expired);
}

#[test]
fn a_hanging_renewal_leaves_time_to_repeat_it() {
    let lease = Duration::from_secs(3);
    let options = Options { lease, command_timeout: Duration::from_secs(60), ..Options::default() };
    let (store, clock, engine, name) = standing_with(options, scripted());
    let mine = lock(&engine, &name);
    let until = mine.hold.until();
    clock.advance(lease / 2);
    let deadline = store.renewals.all().first().expect("no renewal after a third of the lease").deadline;
    assert!(deadline.plus(lease / 6) < until, "{:?} of the lease are left then", until.since(deadline));
}

#[test]
fn a_renewal_during_a_release_reports_no_loss() {
    let (store, clock, engine, name) = standing(scripted());
    let mine = lock(&engine, &name);
    let (hold, there) = (Arc::clone(&mine.hold), Arc::clone(&store));
    store.renewals.before(move || {
        assert!(hold.begin_return());
        there.forget();
    });
    let lost = mine.hold.loss_channel();
    clock.advance(engine.options.lease / 2);
    assert_eq!(store.renewals.count(), 1);
    assert!(lost.is_empty(), "a loss was reported, though the release was to report it");
    assert!(!matches!(mine.hold.standing(clock.now()), hold::Standing::Lost(_)));
}

#[test]
fn the_store_learns_which_holds_ended_during_a_renewal() {
    let (store, clock, engine, name) = standing(Scripted { is_several: true, ..scripted() });
    let mine = lock(&engine, &name);
    clock.advance(engine.options.lease / 2);
    assert_eq!(store.renewals.count(), 1);
    assert!(store.ended_meanwhile.lock().is_empty());
    let hold = Arc::clone(&mine.hold);
    store.renewals.before(move || assert!(hold.begin_return()));
    clock.advance(engine.options.lease / 2);
    assert_eq!(*store.ended_meanwhile.lock(), [mine.hold.owner()]);
    prolong(std::iter::once((&*engine, &mine.hold)), engine.options.lease);
    assert_eq!(store.ended_meanwhile.lock().len(), 2);
}

#[test]
fn a_dropped_guard_whose_lock_is_gone_reports_a_loss() {
    let (store, engine, name) = running(scripted());
    let mine = lock(&engine, &name);
    let lost = mine.hold.loss_channel();
    store.forget();
    drop_guard(&engine, &mine);
    assert_eq!(lost.recv_timeout(Duration::from_secs(10)).unwrap().reason, LossReason::Gone);
    assert!(engine.registry.holds().is_empty());
}

#[test]
fn a_hanging_clean_up_leaves_time_for_renewals() {
    let lease = Duration::from_secs(3);
    let options = Options { lease, command_timeout: Duration::from_secs(60), ..Options::default() };
    let (store, clock, engine, name) = standing_with(options, scripted());
    lock(&engine, &name);
    let other = named("b");
    store.attempts.say(in_doubt);
    let begun = clock.now();
    acquire(&engine, &other, ONCE, Lease::Renewed).unwrap_err();
    clock.advance(Duration::from_millis(100));
    let deadline = store.cleanups.all().first().expect("no clean-up was sent at once").deadline;
    assert!(deadline <= begun.plus(lease / 2), "{:?}", deadline.since(begun));
}

#[test]
fn a_forced_unlock_notifies_local_holders() {
    let ((_clock, engine), name) = (on_memory(), named("a"));
    let mine = lock(&engine, &name);
    let lost = mine.hold.loss_channel();
    // The clock stands still, so no renewal can report the loss.
    assert!(engine.force("force_unlock", Kind::Mutex, &name).unwrap());
    assert_eq!(lost.try_recv().unwrap().reason, LossReason::Gone);
}

#[test]
fn a_paused_client_revives_no_expired_hold() {
    let lease = Duration::from_secs(1);
    let (store, clock, engine, name) = standing(scripted());
    for way in 0..4 {
        store.forget();
        // Ways to use the expired hold: 0 acquires its lock again, 1 releases it, 2 releases it as a group,
        // and 3 prolongs it as a multi-lock does, whose holds have a `Lease::Kept`.
        let asked = if way == 3 { Lease::Kept(lease) } else { Lease::Fixed(lease) };
        let mine = acquire(&engine, &name, ONCE, asked).unwrap().unwrap();
        let level = || LevelRelease {
            engine: Arc::clone(&engine),
            hold: Arc::clone(&mine.hold),
            level: Some(mine.level),
        };
        let expired = |ended: Result<()>| assert_eq!(ended.unwrap_err().not_held(), Some(&NotHeld::Expired));
        engine.stand_still(true);
        clock.advance(lease);
        match way {
            0 => {
                store.forget();
                let next = acquire(&engine, &name, ONCE, Lease::Renewed).unwrap().unwrap();
                assert_ne!(next.hold.owner(), mine.hold.owner(), "the late request may name the old owner");
                release(&engine, &next).unwrap();
            }
            1 => expired(release(&engine, &mine)),
            2 => expired(leave_all("unlock", vec![level()])),
            _ => {
                prolong([(&*engine, &mine.hold)].into_iter(), lease);
                let standing = mine.hold.standing(clock.now());
                assert_eq!(standing, hold::Standing::Lost(LossReason::Expired));
            }
        }
        engine.stand_still(false);
    }
}

#[test]
fn the_lease_of_a_multi_lock_starts_at_the_request() {
    let second = Duration::from_secs(1);
    let (store, clock, engine, name) = standing(scripted());
    let mine = acquire(&engine, &name, ONCE, Lease::Kept(second * 10)).unwrap().unwrap();
    let (asked, later) = (clock.now(), clock.clone());
    store.renewals.before(move || later.advance(second * 3));
    prolong([(&*engine, &mine.hold)].into_iter(), second * 20);
    assert_eq!(mine.hold.until(), asked.plus(crate::time::window(second * 20)), "counted from the request");
}

/// While the waiter lets others go first after its own release, its time runs out.
#[test]
fn a_waiter_out_of_time_still_makes_one_attempt() {
    let (store, clock, engine, name) = standing(notifying());
    let mine = acquire_as(Kind::Write, &engine, &name, ONCE, Lease::Renewed).unwrap().unwrap();
    release(&engine, &mine).unwrap();
    engine.registry.note_released(&mine.hold, Others::Listen(2), clock.now());
    // Longer than the time for which a client lets others go first.
    let wait = Duration::from_millis(10);
    let attempts = store.attempts.count();
    let limit = clock.now().plus(wait);
    let ask = || acquire_as(Kind::Write, &engine, &name, limit, Lease::Renewed).unwrap();
    let granted = while_called(ask, || clock.advance(wait * 2));
    assert_eq!(store.attempts.count(), attempts + 1);
    assert!(granted.is_some());
}

/// `retry_timeout` limits each outage: two outages with an answer between them are not one.
#[test]
fn each_outage_gets_the_full_retry_timeout() {
    let (store, clock, engine, name) = standing(scripted());
    let patience = engine.options.retry_timeout;
    let later = clock.clone();
    store.attempts.say(busy);
    store.attempts.say(refused);
    store.attempts.say(move || {
        later.advance(patience * 2);
        busy()
    });
    store.attempts.say(refused);
    store.attempts.say(granted);
    let local = engine.registry.local(Kind::Mutex, &name);
    let wait = || acquire(&engine, &name, FOREVER, Lease::Renewed).map(drop);
    let waited = while_called(wait, || local.state().queue.nudge()); // makes the waiter ask at once
    assert_eq!(store.attempts.left(), 0, "it gave up: {waited:?}");
    waited.unwrap();
}

/// A try has not waited, so its failure does not begin the `retry_timeout` of waiters.
#[test]
fn a_failed_try_leaves_waiters_their_whole_retry_timeout() {
    let (store, clock, engine, name) = standing(scripted());
    let local = engine.registry.local(Kind::Mutex, &name);
    let place = local.join(false); // as a waiter
    store.attempts.say(refused);
    let error = acquire(&engine, &name, ONCE, Lease::Renewed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(local.spent_retry_budget(Duration::ZERO, clock.now()).is_none());
    let later = clock.now().plus(engine.options.retry_timeout * 2);
    assert!(local.spent_retry_budget(engine.options.retry_timeout, later).is_none());
    drop(place);
}

/// The repeated request may reach the store when the thread has its next hold.
#[test]
fn a_repeated_request_gives_the_thread_a_new_owner_number() {
    let (store, engine, name) = running(scripted());
    let number = || ThreadMarker::current().number();
    let before = number();
    let held = lock(&engine, &name);
    store.releases.say(in_doubt);
    release(&engine, &held).unwrap();
    assert_ne!(number(), before, "after a release in doubt the number stayed the same");
    let before = number();
    let held = lock(&engine, &name);
    store.attempts.say(in_doubt);
    let again = lock(&engine, &name);
    assert_eq!(number(), before, "the thread's number changed during its hold");
    store.releases.say(|| Ok(Release::StillHeld));
    for level in [again.level, held.level] {
        engine.end_level("unlock", &held.hold, Some(level)).unwrap();
    }
    assert_ne!(number(), before, "after a re-entry in doubt the number stayed the same");
}

/// A store recognizes a repeated release of permits, which have no lease, for some minutes only. So the call
/// does not repeat the release, and fails; the watchdog, which knows that limit, repeats it.
#[test]
fn an_unanswered_permit_release_returns_an_unknown_outcome() {
    let (store, engine, name) = running(scripted());
    store.attempts.say(granted);
    let held = acquire_as(Kind::Semaphore, &engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    engine.stand_still(true);
    store.releases.say(in_doubt);
    let error = engine.end_level("release", &held.hold, Some(held.level)).unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
}

#[test]
fn a_failed_release_gives_the_thread_a_new_owner_number() {
    let (store, _clock, engine, name) = standing(scripted());
    store.releases.always(refused);
    engine.ends_badly();
    let number = ThreadMarker::current().number();
    let mine = lock(&engine, &name);
    drop_guard(&engine, &mine);
    assert_ne!(ThreadMarker::current().number(), number, "the watchdog would free the next hold with it");
}

#[test]
fn hold_count_reports_what_the_client_counts_not_the_store() {
    let (store, _clock, engine, name) = standing(scripted());
    store.releases.always(refused);
    engine.ends_badly();
    let mine = lock(&engine, &name);
    let held = Snapshot { holder: mine.hold.owner().to_string(), count: 2, remaining: None };
    let counted = || {
        store.inspections.say({
            let held = held.clone();
            move || Ok(Some(held))
        });
        engine.inspect("hold_count", Kind::Mutex, &name).unwrap().unwrap().count
    };
    assert_eq!(counted(), 1, "a level that has ended is still counted");
    drop_guard(&engine, &mine);
    assert_eq!(counted(), 0);
}

#[test]
fn a_hold_is_at_risk_between_failed_and_repeated_renewal() {
    let (store, clock, engine, name) = standing(scripted());
    let mine = lock(&engine, &name);
    engine.stand_still(true);
    clock.advance(engine.options.lease / 3);
    let (checks, is_looked) = bounded(1);
    let (hold, now) = (Arc::clone(&mine.hold), clock.clone());
    store.renewals.say(in_doubt);
    store.renewals.before(move || checks.send(hold.standing(now.now())).unwrap());
    engine.stand_still(false);
    clock.advance(engine.options.lease / 3);
    let before = is_looked.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(matches!(before, hold::Standing::AtRisk(_)), "{before:?}");
    comes_about("the second renewal", || mine.hold.standing(clock.now()) == hold::Standing::Held);
}

/// On a busy machine a thread may not run for a long time while it has a lock's mutex.
#[test]
fn a_thread_stopped_under_a_mutex_delays_no_other_renewal() {
    let options = Options { directory: false, ..Options::default() };
    let (store, clock, engine, _) = standing_with(options, scripted());
    let held: Vec<_> = (0..3).map(|n| lock(&engine, &named(&n.to_string()))).collect();
    for stopped in &held {
        let (state, before) = (stopped.hold.local.state(), store.renewals.count());
        thread::scope(|scope| {
            scope.spawn(|| clock.advance(engine.options.lease / 3));
            comes_about("the other renewals", || store.renewals.count() == before + 2);
            drop(state);
        });
        assert_eq!(store.renewals.count(), before + 3);
    }
}

/// The client must wake its own waiters after a loss: no other client knows of it, and a message may be lost.
#[test]
fn a_loss_that_a_renewal_finds_wakes_local_waiters() {
    let (store, clock, engine, name) = standing(scripted());
    let mine = lock(&engine, &name);
    let place = mine.hold.local.join(false);
    store.forget();
    clock.advance(engine.options.lease / 2);
    assert_eq!(mine.hold.standing(clock.now()), hold::Standing::Lost(LossReason::Gone));
    assert!(has_word(&place));
    drop(place);
}

#[test]
fn clean_ups_of_an_unanswered_request_become_rarer() {
    let options = Options { command_timeout: Duration::from_millis(100), ..Options::default() };
    let (store, clock, engine, name) = standing_with(options, scripted());
    let minute = Duration::from_secs(60);
    store.attempts.say(in_doubt);
    acquire(&engine, &name, ONCE, Lease::Fixed(minute)).unwrap_err();
    clock.advance(minute);
    // A fruitless clean-up is repeated after 0.1 s (the command time-out), 0.2 s, 0.4 s … up to two seconds.
    let checks = store.cleanups.count();
    assert!((25..60).contains(&checks), "{checks} clean-ups in a minute");
}

/// A late request under the lost hold's owner number can affect only the lost lock and its other half. So the
/// client accepts another plain lock under this number; a read or write lock might be that half.
#[test]
fn after_a_loss_the_owner_number_serves_only_other_plain_locks() {
    let (store, engine, name) = running(scripted());
    let other = named("b");
    let reporter = Arc::clone(&engine.reporter);
    for (asked, kind, is_granted) in
        [(&other, Kind::Mutex, true), (&name, Kind::Mutex, false), (&other, Kind::Write, false)]
    {
        let held = lock(&engine, &name).hold;
        let number = ThreadMarker::current().number();
        let reporter = Arc::clone(&reporter);
        store.attempts.say(move || {
            held.lose(LossReason::Gone, Moment::from_nanos(1), &reporter);
            granted()
        });
        // Without its hold the thread makes a first attempt, under the number of the hold that gets lost.
        if asked.key() == "a" {
            engine.registry.local(kind, asked).state().holds.clear();
        }
        let had = acquire_as(kind, &engine, asked, ONCE, Lease::Renewed);
        assert_eq!(had.unwrap().is_some(), is_granted, "{kind:?} {}", asked.key());
        assert_ne!(ThreadMarker::current().number(), number, "the next hold has the number of the lost one");
        store.forget();
        engine.registry.local(Kind::Mutex, &other).state().holds.clear();
    }
}

/// So many numbers are retired afterwards that the list of the lock has no room for the first one.
#[test]
fn a_grant_under_a_long_retired_owner_number_is_released() {
    let (store, engine, name) = running(scripted());
    let (local, thread) = (engine.registry.local(Kind::Mutex, &name), ThreadMarker::current());
    let asked = Arc::clone(&local);
    store.attempts.say(move || {
        let number = thread.number();
        thread.retire(number);
        (number..number + 40).for_each(|number| asked.state().retired.add(number));
        granted()
    });
    assert!(acquire(&engine, &name, ONCE, Lease::Renewed).unwrap().is_none());
    assert!(store.is_free());
}

/// The first thread's request is answered only after the second thread has sent its own.
#[test]
fn threads_ask_for_permits_side_by_side() {
    let (store, engine, name) = running(scripted());
    let (tell, told) = bounded(1);
    store.attempts.say(move || {
        told.recv_timeout(Duration::from_secs(10)).expect("another thread asks");
        granted()
    });
    store.attempts.say(move || {
        tell.send(()).unwrap();
        granted()
    });
    let limit = engine.clock.after(Duration::from_secs(60));
    let ask = || acquire_as(Kind::Semaphore, &engine, &name, limit, Lease::Renewed).unwrap().is_some();
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(ask));
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    });
}
