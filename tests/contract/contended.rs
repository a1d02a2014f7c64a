//! Holders are notified of waiters, through `guard.on_contended` and `guard.is_contended`.

use std::sync::atomic::AtomicU32;

use leasehold::LeaderEvent;

use super::harness::{Need, Store};
use crate::support::prelude::*;

fn kinds_that_report_waiters(store: &Store) -> impl Iterator<Item = fn(&LockClient, &str) -> RedisLock> {
    let heard = store.kinds.iter().filter(|kind| !["token_lock", "spin_lock"].contains(&kind.label));
    heard.map(|kind| kind.make)
}

fn calls(guard: &OwnedGuard) -> Receiver<()> {
    let (sender, calls) = unbounded();
    guard.on_contended(move || sender.send(()).unwrap_or_default()).unwrap();
    calls
}

fn waits_for(lock: RedisLock) -> Waiter<()> {
    Waiter::start(move || lock.acquire().unwrap().unlock().unwrap())
}

#[track_caller]
fn assert_reports_waiter(guard: OwnedGuard, other: RedisLock) {
    let called = calls(&guard);
    assert!(!guard.is_contended().unwrap(), "no thread waits");
    let waiter = waits_for(other);
    called.recv_timeout(LONG).expect("no callback came for the waiter");
    assert!(guard.is_contended().unwrap());
    guard.unlock().unwrap();
    waiter.returns_within(LONG);
}

contract!(a_hold_is_notified_of_a_waiter_in_another_client, needs(Hearing), |store| {
    let (client, other) = (store.client(), store.client());
    for make in kinds_that_report_waiters(store) {
        let name = fresh("wanted");
        assert_reports_waiter(make(&client, &name).acquire_owned().unwrap(), make(&other, &name));
    }
});

contract!(a_hold_is_notified_of_a_waiter_in_its_client, needs(Hearing), |store| {
    let client = store.client();
    for make in kinds_that_report_waiters(store) {
        let lock = make(&client, &fresh("local"));
        assert_reports_waiter(lock.acquire_owned().unwrap(), lock);
    }
});

// Only a message reports a waiter so soon: without one, the hold's next check comes a second after the first.
contract!(on_contended_is_called_soon_after_a_waiter_arrives, needs(Hearing), |store| {
    let (client, other, begun) = (store.client(), store.client(), now());
    let round = |_| {
        let name = fresh("soon");
        let guard = client.get_lock(&name).acquire_owned().unwrap();
        let called = calls(&guard);
        let_pass(ms(300), "the first check");
        let asked = now();
        let waiter = waits_for(other.get_lock(&name));
        called.recv_timeout(LONG).expect("no callback came for the waiter");
        let took = asked.elapsed();
        guard.unlock().unwrap();
        waiter.returns_within(LONG);
        took
    };
    let rounds: Vec<Duration> = (0..5).map(round).collect();
    assert!(median(rounds.clone()) <= ms(350) + stalled_since(begun) / 5, "{rounds:?}");
});

// The holder's mark in the store, which may be set late, names an owner. It must not name the next hold.
contract!(a_hold_after_on_contended_has_a_new_owner_number, needs(Hearing), |store| {
    let lock = store.client().get_lock(fresh("owner"));
    let [first, second] = [0; 2].map(|_| lock.acquire().unwrap().owner());
    assert_eq!(first, second);
    let guard = lock.acquire().unwrap();
    guard.on_contended(|| ()).unwrap();
    guard.unlock().unwrap();
    assert_ne!(lock.acquire().unwrap().owner(), first);
});

contract!(on_contended_reports_a_waiter_that_was_waiting_already, needs(Hearing), |store| {
    let (client, other) = (store.client(), store.client());
    for make in kinds_that_report_waiters(store) {
        let name = fresh("late");
        let guard = make(&client, &name).acquire_owned().unwrap();
        let waiter = waits_for(make(&other, &name));
        assert!(eventually(LONG, || other.stats().waiters > 0), "the other client does not wait");
        calls(&guard).recv_timeout(LONG).expect("no callback came for the waiter");
        guard.unlock().unwrap();
        waiter.returns_within(LONG);
    }
});

contract!(a_hold_is_uncontended_after_its_only_waiter_gave_up, needs(Hearing), |store| {
    let (client, other, name) = (store.client(), store.client(), fresh("gone"));
    let guard = client.get_lock(&name).acquire().unwrap();
    assert!(!guard.is_contended().unwrap());
    let theirs = other.get_lock(&name);
    let waiter = Waiter::start(move || theirs.try_lock_for(ms(1_000)).unwrap());
    assert!(eventually(LONG, || guard.is_contended().unwrap()));
    assert!(!waiter.returns_within(LONG).0);
    assert!(eventually(LONG, || !guard.is_contended().unwrap()));
});

contract!(on_contended_is_called_each_second_while_others_wait, needs(Hearing), |store| {
    let (client, other, name) = (store.client(), store.client(), fresh("often"));
    let guard = client.get_lock(&name).acquire_owned().unwrap();
    let called = calls(&guard);
    let waiters = [waits_for(other.get_lock(&name)), waits_for(client.get_lock(&name))];
    called.recv_timeout(LONG).expect("the first call");
    let first = now();
    for _ in 0..2 {
        called.recv_timeout(LONG).expect("another call");
    }
    // The test may notice the first call late, so the next two may seem to come within less than 2 s.
    assert!(first.elapsed() >= ms(1_500), "{:?}", first.elapsed());
    guard.unlock().unwrap();
    all_return(waiters, LONG);
});

contract!(on_contended_is_not_called_after_its_hold_has_ended, needs(Hearing), |store| {
    let (client, other, name) = (store.client(), store.client(), fresh("over"));
    let lock = client.get_lock(&name);
    let guard = lock.acquire_owned().unwrap();
    let called = calls(&guard);
    guard.unlock().unwrap();
    let next = lock.acquire_owned().unwrap();
    let waiter = waits_for(other.get_lock(&name));
    assert!(eventually(LONG, || next.is_contended().unwrap()));
    assert!(called.try_recv().is_err(), "a callback came for a hold that has ended");
    next.unlock().unwrap();
    waiter.returns_within(LONG);
    assert!(called.recv_timeout(LONG).is_err(), "the callback is dropped");
});

contract!(on_contended_is_still_called_after_a_condition_wait, needs(Hearing), |store| {
    if store.lacks.contains(&Need::Counting) {
        return; // a store without semaphores and latches has no conditions either
    }
    let (client, other, name) = (store.client(), store.client(), fresh("condition"));
    let lock = client.get_lock(&name);
    let mut guard = lock.acquire().unwrap();
    let (sender, called) = unbounded();
    guard.on_contended(move || sender.send(()).unwrap_or_default()).unwrap();
    let condition = lock.condition("ready");
    drop(condition.wait_for(&mut guard, ms(10)));
    let waiter = waits_for(other.get_lock(&name));
    called.recv_timeout(LONG).expect("no callback came for the waiter");
    guard.unlock().unwrap();
    waiter.returns_within(LONG);
});

contract!(on_contended_without_waiters_is_not_called_and_delays_no_release, needs(Hearing), |store| {
    let (client, other) = (store.client(), store.client());
    for make in kinds_that_report_waiters(store) {
        let (name, count) = (fresh("left"), Arc::new(AtomicU32::new(0)));
        let (mine, theirs) = (make(&client, &name), make(&other, &name));
        for _ in 0..3 {
            let guard = mine.acquire_owned().unwrap();
            let counted = Arc::clone(&count);
            guard.on_contended(move || _ = counted.fetch_add(1, Ordering::SeqCst)).unwrap();
            assert!(!guard.is_contended().unwrap());
            guard.unlock().unwrap();
            elsewhere(|| {
                assert!(theirs.try_lock().unwrap());
                theirs.unlock().unwrap();
            });
        }
        assert_eq!(count.load(Ordering::SeqCst), 0);
    }
});

contract!(a_reader_is_notified_of_writers_only, needs(Hearing), |store| {
    if store.lacks.contains(&Need::ReadWrite) {
        return;
    }
    let (client, third, other, name) = (store.client(), store.client(), store.client(), fresh("read"));
    let readers =
        [client, third].map(|client| client.get_read_write_lock(&name).read().acquire_owned().unwrap());
    let called = readers.each_ref().map(calls);
    let theirs = other.get_read_write_lock(&name);
    for _ in 0..20 {
        theirs.read().acquire().unwrap().unlock().unwrap();
    }
    let_pass(ms(1_100), "a check by each");
    assert!(readers.iter().all(|reader| !reader.is_contended().unwrap()), "readers do not wait for readers");
    let waiter = waits_for(theirs.write().clone());
    called.iter().for_each(|called| called.recv_timeout(LONG).expect("a reader got no callback"));
    readers.into_iter().for_each(|reader| reader.unlock().unwrap());
    waiter.returns_within(LONG);
});

contract!(a_writer_is_notified_of_readers, needs(Hearing), |store| {
    if store.lacks.contains(&Need::ReadWrite) {
        return;
    }
    let (client, other, name) = (store.client(), store.client(), fresh("write"));
    for reading in [&other, &client] {
        let guard = client.get_read_write_lock(&name).write().acquire_owned().unwrap();
        assert_reports_waiter(guard, reading.get_read_write_lock(&name).read().clone());
    }
});

contract!(report_contended_tells_a_leader_that_another_candidate_waits, needs(Hearing), |store| {
    let (client, other, name) = (store.client(), store.client(), fresh("leader"));
    let leader = client.leader(&name).unwrap();
    let LeaderEvent::Elected { term } = leader.events().recv_timeout(LONG).unwrap() else {
        panic!("the leader was not elected")
    };
    let rival = other.leader(&name).unwrap();
    assert!(eventually(LONG, || other.stats().waiters > 0), "the rival does not wait");
    let_pass(ms(1_500), "a report");
    assert!(leader.events().is_empty(), "a report came that no program asked for");
    leader.report_contended().unwrap();
    leader.report_contended().unwrap();
    assert_eq!(leader.events().recv_timeout(LONG), Ok(LeaderEvent::Contended { term }));
    let_pass(ms(3_000), "two more reports");
    assert!(leader.events().len() <= 1, "more than one unread event waits");
    leader.withdraw().unwrap();
    assert!(matches!(rival.events().recv_timeout(LONG), Ok(LeaderEvent::Elected { .. })));
});
