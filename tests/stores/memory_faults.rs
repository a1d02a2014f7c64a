//! Injected faults of the memory store: which clients each affects, what callers see, and when it ends.

use leasehold::{Error, Event, Fault, LeaderEvent, Result};

use crate::support::observer::observe;
use crate::support::prelude::*;

const FAULTS: [Fault; 3] = [Fault::Refused, Fault::RequestLost, Fault::AnswerLost];

fn place() -> (ManualClock, MemoryStore) {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    (clock, store)
}

fn client(store: &MemoryStore) -> LockClient {
    ClientBuilder::default().retry_timeout(Duration::ZERO).build_in_memory(store).unwrap()
}

fn every_request(client: &LockClient) -> Vec<(&'static str, Result<()>)> {
    let lock = client.get_lock("asked");
    vec![
        ("try_lock", lock.try_lock().map(drop)),
        ("lock", lock.lock()),
        ("try_lock_for", lock.try_lock_for(ms(1)).map(drop)),
        ("acquire_owned", lock.acquire_owned().map(drop)),
        ("fenced", client.get_fenced_lock("asked").try_acquire().map(drop)),
        ("fair", client.get_fair_lock("asked").try_lock().map(drop)),
        ("token", client.get_token_lock("token").try_lock().map(drop)),
        ("write", client.get_read_write_lock("rw").write().try_lock().map(drop)),
        ("multi", client.get_multi_lock(["a", "b"].map(|name| client.get_lock(name))).try_lock().map(drop)),
        ("semaphore", client.get_semaphore("slots").try_set_permits(1).map(drop)),
        ("latch", client.get_count_down_latch("latch").count().map(drop)),
        ("latch wait", client.get_count_down_latch("latch").wait_for(ms(1)).map(drop)),
        ("permits", client.get_semaphore("slots").available_permits().map(drop)),
        ("is_locked", lock.is_locked().map(drop)),
        ("force_unlock", lock.force_unlock().map(drop)),
        ("inspect", client.inspect("asked").map(drop)),
        ("list", client.list("*").next().transpose().map(drop)),
        ("clients", client.clients().next().transpose().map(drop)),
        ("ping", client.ping().map(drop)),
    ]
}

#[test]
fn injected_faults_last_until_healed() {
    for fault in FAULTS {
        let (clock, store) = place();
        let client = client(&store);
        store.fail(fault);
        for (what, result) in every_request(&client) {
            let error = result.expect_err(what);
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{what}: {error}");
            let questions =
                ["latch", "latch wait", "permits", "is_locked", "inspect", "list", "clients", "ping"];
            let changes = !questions.contains(&what);
            let in_doubt = changes && fault != Fault::Refused;
            assert_eq!(error.outcome_unknown(), in_doubt, "{fault:?} {what}: {error}");
        }
        store.heal();
        // Within this minute the client removes the grant whose reply was lost.
        clock.advance(ms(60_000));
        assert!(!client.get_lock("asked").is_locked().unwrap(), "{fault:?}");
        client.get_lock("asked").lock().unwrap();
        client.get_lock("asked").unlock().unwrap();
    }
}

#[test]
fn a_request_with_a_lost_answer_was_carried_out() {
    for (fault, is_carried_out) in [(Fault::RequestLost, false), (Fault::AnswerLost, true)] {
        let (_clock, store) = place();
        let (client, operator) = (client(&store), client(&store));
        client.get_lock("a").lock().unwrap();
        store.fail_client(&operator, fault).unwrap();
        assert!(operator.get_lock("a").force_unlock().unwrap_err().outcome_unknown());
        assert_eq!(client.get_lock("a").is_locked().unwrap(), !is_carried_out, "{fault:?}");
    }
}

#[test]
fn request_events_say_whether_the_outcome_is_unknown() {
    let (observer, requests) = observe(|event| match event {
        Event::Request { op, error, .. } => Some((*op, error.map(Error::outcome_unknown))),
        _ => None,
    });
    let (clock, store) = place();
    let builder = ClientBuilder::default().retry_timeout(Duration::ZERO).observer(observer);
    let client = builder.build_in_memory(&store).unwrap();
    let lock = client.get_lock("a");
    for (fault, outcome) in [(Fault::Refused, Some(false)), (Fault::AnswerLost, Some(true))] {
        store.fail(fault);
        lock.try_lock().unwrap_err();
        assert_eq!(requests.try_iter().last(), Some(("acquire", outcome)));
        store.heal();
        clock.advance(ms(60_000));
        lock.lock().unwrap();
        store.fail(fault);
        lock.unlock().unwrap_err();
        assert_eq!(requests.try_iter().last(), Some(("release", outcome)));
        store.heal();
        clock.advance(ms(60_000));
    }
}

#[test]
fn a_loss_report_says_how_long_the_lock_was_held() {
    let (observer, losses) = observe(|event| match event {
        Event::Lost { held, is_abandoned, .. } => Some((*held, *is_abandoned)),
        _ => None,
    });
    let (clock, store) = place();
    let client = ClientBuilder::default().observer(observer).build_in_memory(&store).unwrap();
    let guard = client.get_lock("a").acquire().unwrap();
    clock.advance(ms(40_000)); // longer than a lease, so the hold was renewed
    store.fail(Fault::Refused);
    clock.advance(ms(31_000));
    let (held, is_abandoned) = losses.recv().unwrap();
    assert!(held >= ms(60_000) && held <= ms(71_000) && !is_abandoned, "{held:?} {is_abandoned}");
    drop(guard);
    store.heal();
    let other = client.clone();
    elsewhere(|| other.get_lock("b").lock().unwrap());
    clock.advance(ms(31_000));
    let (held, is_abandoned) = losses.recv().unwrap();
    assert!(held >= ms(29_000) && is_abandoned, "{held:?} {is_abandoned}");
}

#[test]
fn cutting_off_one_client_leaves_the_others_connected() {
    let (clock, store) = place();
    let (cut, other) = (client(&store), client(&store));
    let guard = cut.get_lock("a").acquire().unwrap();
    let lost = guard.lost();
    store.fail_client(&cut, Fault::Refused).unwrap();
    assert!(other.get_lock("b").try_lock().unwrap());
    clock.advance(ms(15_000));
    assert!(matches!(guard.state(), HoldState::AtRisk { .. }));
    assert!(!other.get_lock("a").try_lock().unwrap());
    clock.advance(ms(20_000));
    assert_eq!(lost.recv().unwrap().reason, LossReason::Expired);
    assert!(other.get_lock("a").try_lock().unwrap());
    store.heal();
    assert!(!cut.get_lock("a").try_lock().unwrap());
}

#[test]
fn an_answer_slower_than_the_timeout_never_arrives() {
    let (clock, store) = place();
    let client = client(&store);
    store.slow_down(ms(500));
    let lock = client.get_lock("a");
    lock.lock().unwrap();
    assert_eq!(client.ping().unwrap().latency, ms(500));
    // Renewals are answered 500 ms late too, but within the time-out, so the hold lasts.
    clock.advance(ms(120_000));
    assert!(lock.is_held_by_current_thread().unwrap());
    store.slow_down(ms(3_000));
    let error = client.get_lock("b").try_lock().unwrap_err();
    assert!(error.kind() == ErrorKind::TimedOut && error.outcome_unknown(), "{error}");
    let guard = lock.acquire();
    assert!(guard.is_err());
    clock.advance(ms(120_000));
    store.heal();
    clock.advance(ms(1));
    assert!(!client.get_lock("b").is_locked().unwrap());
}

#[test]
fn a_client_whose_renewal_is_slow_can_be_shut_down() {
    for _ in 0..20 {
        let (clock, store) = place();
        let client = client(&store);
        client.get_lock("a").lock().unwrap();
        store.slow_down(ms(2_000));
        clock.advance(ms(10_000)); // the renewal is pending, and the clock stands still now
        client.shutdown().unwrap();
        assert!(!self::client(&store).get_lock("a").is_locked().unwrap());
    }
}

#[test]
fn a_slow_answer_takes_real_time_on_the_system_clock() {
    let store = MemoryStore::new();
    let client = LockClient::in_memory_with(&store);
    store.slow_down(ms(30));
    assert!(client.ping().unwrap().latency >= ms(30));
}

#[test]
fn forgetting_a_lock_keeps_its_token_counter_and_notifies_nobody() {
    let (clock, store) = place();
    let client = client(&store);
    assert!(!store.forget("a"));
    let old = client.get_fenced_lock("a").acquire().unwrap();
    assert!(store.forget("a"));
    assert_eq!(old.state(), HoldState::Held); // only the next renewal finds the loss
    clock.advance(ms(10_000));
    assert_eq!(old.state(), HoldState::Lost);
    assert!(client.get_fenced_lock("a").acquire().unwrap().fencing_token() > old.fencing_token());
    client.get_read_write_lock("rw").read().lock().unwrap();
    client.get_semaphore("slots").try_set_permits(3).unwrap();
    assert!(store.forget("rw") && store.forget("slots"));
    assert!(client.get_read_write_lock("rw").write().try_acquire_owned().is_ok());
    assert!(client.get_semaphore("slots").try_set_permits(1).unwrap());
}

#[test]
fn a_paused_client_neither_renews_nor_reports_a_loss() {
    let (clock, store) = place();
    let (stalled, other) = (client(&store), client(&store));
    let kept = other.get_lock("kept").acquire().unwrap();
    let guard = stalled.get_lock("a").acquire().unwrap();
    let lost = guard.lost();
    let paused = store.pause_client(&stalled).unwrap();
    clock.advance(ms(60_000));
    assert!(lost.try_recv().is_err(), "a stopped process reported a loss");
    assert!(kept.check().is_ok(), "another client lost its hold");
    let successor = other.get_lock("a").try_acquire().unwrap().expect("the lease is over");
    drop(paused);
    assert_eq!(lost.recv().unwrap().reason, LossReason::Expired);
    assert!(guard.check().unwrap_err().is_lost());
    drop(guard); // must not end the other owner's hold
    successor.check().unwrap();
    assert!(other.get_lock("a").is_held_by_current_thread().unwrap());
}

#[test]
fn a_paused_leader_has_no_term_after_its_lease() {
    let (clock, store) = place();
    let client = client(&store);
    let leader = client.leader("a").unwrap();
    let elected = receive(leader.events(), LONG);
    let Ok(LeaderEvent::Elected { term }) = elected else { panic!("{elected:?}") };
    assert_eq!(leader.term(), Some(term));
    let _paused = store.pause_client(&client).unwrap();
    clock.advance(ms(60_000));
    // No thread of the client has noticed the loss, but `term` reads the clock.
    assert_eq!(leader.term(), None);
}

#[test]
fn a_client_paused_for_less_than_its_lease_loses_no_hold() {
    let (clock, store) = place();
    let client = client(&store);
    let guard = client.get_lock("a").acquire().unwrap();
    let paused = store.pause_client(&client).unwrap();
    clock.advance(ms(20_000));
    drop(paused);
    clock.advance(ms(60_000));
    assert_eq!(guard.state(), HoldState::Held);
    let _paused = store.pause_client(&client).unwrap();
    client.shutdown().unwrap();
    assert!(!self::client(&store).get_lock("a").is_locked().unwrap());
}

#[test]
fn pausing_or_failing_a_client_of_another_store_is_refused() {
    let (_, store) = place();
    let elsewhere = LockClient::in_memory();
    let refused: [Error; 2] = [
        store.pause_client(&elsewhere).map(drop).unwrap_err(),
        store.fail_client(&elsewhere, Fault::Refused).unwrap_err(),
    ];
    assert!(refused.iter().all(|error| error.kind() == ErrorKind::InvalidInput));
}

#[test]
fn with_lock_returns_the_result_even_if_the_release_fails() {
    for fault in FAULTS {
        let (_clock, store) = place();
        let (observer, failed) = observe(|event| match event {
            Event::ReleaseFailed { name, .. } => Some((*name).to_owned()),
            _ => None,
        });
        let builder = ClientBuilder::default().retry_timeout(Duration::ZERO).observer(observer);
        let client = builder.build_in_memory(&store).unwrap();
        let charged = |name: &str| {
            store.fail_client(&client, fault).unwrap();
            format!("{name} charged")
        };
        let with_lock = client.with_lock("customer:1", |guard| charged(guard.name()));
        assert_eq!(with_lock.unwrap(), "customer:1 charged", "{fault:?}");
        store.heal();
        let options = AcquireOptions::new().wait(LONG);
        let with_wait = options.with_lock(&client.get_lock("customer:2"), |guard| charged(guard.name()));
        assert_eq!(with_wait.unwrap().unwrap(), "customer:2 charged", "{fault:?}");
        store.heal();
        let write = client.get_read_write_lock("customer:3").write_fenced();
        let at_once = options.wait(Duration::ZERO).with_lock(&write, |guard| charged(guard.name()));
        assert_eq!(at_once.unwrap().unwrap(), "customer:3 charged", "{fault:?}");
        store.heal();
        let seen: Vec<_> = (0..3).map(|_| receive(&failed, LONG).ok()).collect();
        assert_eq!(seen, ["customer:1", "customer:2", "customer:3"].map(|name| Some(name.to_owned())));
    }
}

#[test]
fn an_error_of_with_lock_says_whether_the_work_ran() {
    let (clock, store) = place();
    let client = client(&store);
    store.fail(Fault::Refused);
    let before = client.with_lock("a", |_guard| panic!("the store is away")).unwrap_err();
    assert!(before.is_retryable() && !before.work_ran(), "{before}");
    store.heal();
    let paused = store.pause_client(&client).unwrap();
    let after = client.with_lock("a", |_guard| clock.advance(ms(60_000))).unwrap_err();
    assert!(after.work_ran() && after.is_lost() && !after.is_retryable(), "{after}");
    drop(paused);
}

fn every_release(client: &LockClient, store: &MemoryStore) -> Vec<(&'static str, Error)> {
    let lock = client.get_lock("released");
    let (guard, owned) = (client.get_lock("guard").acquire().unwrap(), client.get_lock("owned"));
    let owned = owned.acquire_owned().unwrap();
    let fenced = client.get_fenced_lock("fenced").acquire().unwrap();
    let reading = client.get_read_write_lock("rw").read().acquire().unwrap();
    let outer = client.get_lock("again").acquire().unwrap();
    let inner = client.get_lock("again").acquire().unwrap();
    let several =
        |of: &str| client.get_multi_lock([of, "more"].map(|name| client.get_lock(format!("{of}:{name}"))));
    let (both, by_thread) = (several("guards").acquire().unwrap(), several("threads"));
    by_thread.lock().unwrap();
    let (slots, leased) = (client.get_semaphore("slots"), client.get_expirable_semaphore("leased"));
    assert!(slots.try_set_permits(2).unwrap() && leased.try_set_permits(3).unwrap());
    let (permit, leased_permit) = (slots.acquire(1).unwrap(), leased.acquire().unwrap());
    slots.acquire(1).unwrap().forget();
    let kept = leased.acquire().unwrap();
    let ids = kept.ids();
    kept.forget();
    lock.lock().unwrap();
    store.fail(Fault::Refused);
    let errors = [
        ("lock", lock.unlock()),
        ("guard", guard.unlock()),
        ("owned guard", owned.unlock()),
        ("fenced", fenced.unlock()),
        ("read", reading.unlock()),
        ("inner level", inner.unlock()),
        ("outer level", outer.unlock()),
        ("several", both.unlock()),
        ("several of a thread", by_thread.unlock()),
        ("permit", permit.unlock()),
        ("permit with a lease", leased_permit.unlock()),
        ("permits by their number", slots.release(1)),
        ("permits, if set up", slots.release_if_exists(1).map(drop)),
        ("a permit by its id", leased.release(&ids[0]).map(drop)),
        ("permits by their ids", leased.release_many(&ids).map(drop)),
    ];
    store.heal();
    errors.into_iter().map(|(what, outcome)| (what, outcome.expect_err(what))).collect()
}

#[test]
fn an_error_of_a_release_is_not_retryable() {
    let (_clock, store) = place();
    for (what, error) in every_release(&client(&store), &store) {
        assert!(error.work_ran() && !error.is_retryable(), "{what}: {error}");
    }
}

#[test]
fn an_error_of_a_dropped_guard_is_not_retryable() {
    let (_clock, store) = place();
    let (observer, seen) = observe(|event| match event {
        Event::ReleaseFailed { error, .. } => Some((error.work_ran(), error.is_retryable())),
        _ => None,
    });
    let builder = ClientBuilder::default().retry_timeout(Duration::ZERO).observer(observer);
    let client = builder.build_in_memory(&store).unwrap();
    let guards =
        [client.get_lock("plain").acquire().unwrap(), client.get_token_lock("token").acquire().unwrap()];
    store.fail(Fault::Refused);
    drop(guards);
    for _ in 0..2 {
        assert_eq!(receive(&seen, LONG), Ok((true, false)), "work ran, is retryable");
    }
}

#[test]
fn a_failed_condition_call_says_whether_work_ran() {
    let (clock, store) = place();
    let client = client(&store);
    let lock = client.get_lock("queue");
    let condition = lock.condition("not_empty");
    let mut guard = lock.acquire().unwrap();
    store.fail(Fault::Refused);
    let error = condition.notify_one().unwrap_err();
    assert!(error.work_ran() && !error.is_retryable(), "{error}");
    // A wait that fails before it begins has not released the lock, so the caller may repeat the wait.
    let error = condition.wait(&mut guard).unwrap_err();
    assert!(!error.work_ran() && error.is_retryable() && guard.check().is_ok(), "{error}");
    store.heal();
    drop(guard);
    let (tell, waits) = unbounded();
    let error = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut guard = lock.acquire().unwrap();
            tell.send(()).unwrap();
            condition.wait_for(&mut guard, ms(200)).unwrap_err()
        });
        receive(&waits, LONG).unwrap();
        wait_until("the wait has released the lock", LONG, || !lock.is_locked().unwrap());
        store.fail(Fault::Refused);
        clock.advance(ms(200));
        waiter.join().unwrap()
    });
    assert!(error.work_ran() && !error.is_retryable(), "{error}");
}
