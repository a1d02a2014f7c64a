//! A multi-lock acquires all of its locks or none, in one order, and within one deadline.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU32;

use leasehold::{Lock, MultiLock};

use super::harness::{Need, Store};
use super::observer::{Seen, watches};
use crate::support::prelude::*;

const SECOND: Duration = ms(1_000);

fn names(count: usize) -> Vec<String> {
    let group = fresh("multi");
    (0..count).map(|number| format!("{group}-{number}")).collect()
}

fn in_one_slot(count: usize) -> Vec<String> {
    let group = fresh("multi");
    (0..count).map(|number| format!("{{{group}}}-{number}")).collect()
}

/// Two clients, `count` new names, and the first client's multi-lock of these names.
fn grouped(store: &Store, count: usize) -> ([LockClient; 2], Vec<String>, MultiLock) {
    let (clients, names) = ([store.client(), store.client()], names(count));
    let multi = group(&clients[0], &names);
    (clients, names, multi)
}

fn group(client: &LockClient, names: &[String]) -> MultiLock {
    client.get_multi_lock(names.iter().rev().map(|name| client.get_lock(name)).collect::<Vec<_>>())
}

/// Asserts that all locks are free now, without a wait, since their releases have been answered.
#[track_caller]
fn all_free_at_once(client: &LockClient, names: &[String]) {
    for name in names {
        assert!(!client.get_lock(name).is_locked().unwrap(), "{name} was not released");
    }
}

#[track_caller]
fn all_free(client: &LockClient, names: &[String]) {
    for name in names {
        // A dropped guard does not wait for its release, so a lock may be free only a little later.
        comes_true_within(SECOND, || !client.get_lock(name).is_locked().unwrap());
    }
}

contract!(a_multi_lock_acquires_and_releases_all_its_locks, |store| {
    let (client, other) = (store.client(), store.client());
    for names in [names(3), in_one_slot(3)] {
        let multi = group(&client, &names);
        assert_eq!(multi.names().collect::<Vec<_>>(), names.iter().map(String::as_str).collect::<Vec<_>>());
        let takes: [fn(&MultiLock); 4] = [
            |multi| multi.lock().unwrap(),
            |multi| assert!(multi.try_lock().unwrap()),
            |multi| assert!(multi.try_lock_for(SECOND).unwrap()),
            |multi| multi.lock_with_lease(SECOND * 20).unwrap(),
        ];
        for take in takes {
            take(&multi);
            assert!(multi.is_held_by_current_thread().unwrap());
            for name in &names {
                assert!(client.get_lock(name).is_held_by_current_thread().unwrap());
                assert!(!other.get_lock(name).try_lock().unwrap());
                elsewhere(|| assert!(!client.get_lock(name).try_lock().unwrap()));
            }
            elsewhere(|| assert!(!multi.try_lock().unwrap()));
            multi.unlock().unwrap();
            assert!(!multi.is_held_by_current_thread().unwrap());
            all_free_at_once(&other, &names);
        }
        let error = multi.unlock().unwrap_err();
        assert!(error.is_not_held() && error.action() == "unlock", "{error}");
        let guard = multi.acquire().unwrap();
        assert_eq!(guard.names().count(), 3);
        assert_eq!((guard.state(), guard.fencing_token()), (HoldState::Held, None));
        guard.check().unwrap();
        drop(guard);
        all_free(&other, &names);
        multi.try_acquire().unwrap().unwrap().unlock().unwrap();
        let by = AcquireOptions::new().deadline(now() + SECOND);
        multi.acquire_with(&by).unwrap().unwrap().unlock().unwrap();
        multi.acquire_owned_with(&by).unwrap().unwrap().unlock().unwrap();
        multi.try_acquire_owned().unwrap().unwrap().unlock().unwrap();
        all_free(&other, &names);
    }
});

contract!(a_multi_lock_with_one_busy_lock_acquires_none, |store| {
    let (client, other) = (store.client(), store.client());
    for names in [names(3), in_one_slot(3)] {
        let multi = group(&client, &names);
        for busy in &names {
            let holding = Holding::take(&other.get_lock(busy));
            assert!(!multi.try_lock().unwrap());
            assert!(multi.try_acquire().unwrap().is_none());
            let begun = now();
            assert!(!multi.try_lock_for(ms(80)).unwrap());
            assert!(begun.elapsed() >= ms(80) && begun.elapsed() < ms(80) + slack_since(begun));
            holding.release();
            all_free(&client, &names);
        }
        assert!(multi.try_lock().unwrap());
        multi.unlock().unwrap();
    }
});

contract!(one_deadline_limits_the_whole_wait_of_a_multi_lock, |store| {
    let ([_client, other], names, multi) = grouped(store, 3);
    let mut holding: Vec<_> = names.iter().map(|name| Holding::take(&other.get_lock(name))).collect();
    let begun = now();
    let waiter = Waiter::start(move || multi.try_lock_for(ms(600)));
    for_each_third(begun, || {
        holding.remove(0).release();
    });
    let (taken, ended) = waiter.returns_within(SECOND * 3);
    assert!(!taken.unwrap());
    let took = ended - begun;
    assert!(took >= ms(600) && took < ms(600) + slack_since(begun), "{took:?}");
    drop(holding);
});

fn for_each_third(begun: std::time::Instant, mut step: impl FnMut()) {
    for third in 1..=2 {
        let_pass((begun + ms(200) * third).saturating_duration_since(now()), "a part of the deadline passes");
        step();
    }
}

contract!(a_waiting_multi_lock_holds_only_its_earlier_locks, |store| {
    let ([client, other], names, multi) = grouped(store, 3);
    let holding = Holding::take(&other.get_lock(&names[1]));
    let waiter = Waiter::start(move || {
        multi.lock().unwrap();
        multi.unlock().unwrap();
    });
    comes_true_within(SECOND, || other.get_lock(&names[0]).is_locked().unwrap());
    throughout(ms(60), || {
        other.get_lock(&names[0]).is_locked().unwrap() && !other.get_lock(&names[2]).is_locked().unwrap()
    });
    let released = holding.release();
    let ((), had) = waiter.returns_within(LONG);
    let limit = store.kinds[0].traits.polls_within + slack_since(released);
    assert!(had - released < limit, "{:?}", had - released);
    all_free(&client, &names);
});

contract!(multi_locks_naming_locks_in_any_order_never_deadlock, |store| {
    const ROUNDS: u32 = 12;
    let names = names(3);
    let counters: Arc<[AtomicU32]> = (0..3).map(|_| AtomicU32::new(0)).collect();
    let waiters: Vec<_> = (0..4_usize)
        .map(|number| {
            let client = store.client();
            let (first, second) = [(0, 1), (1, 0), (2, 1), (0, 2)][number];
            let multi =
                client.get_multi_lock([client.get_lock(&names[first]), client.get_lock(&names[second])]);
            let counters = Arc::clone(&counters);
            Waiter::start(move || {
                for _ in 0..ROUNDS {
                    let guard = multi.acquire().unwrap();
                    for counter in [&counters[first], &counters[second]] {
                        let count = counter.load(Ordering::SeqCst);
                        let_pass(ms(1), "others come");
                        counter.store(count + 1, Ordering::SeqCst);
                    }
                    guard.unlock().unwrap();
                }
            })
        })
        .collect();
    all_return(waiters, LONG * 6);
    let counts: Vec<u32> = counters.iter().map(|counter| counter.load(Ordering::SeqCst)).collect();
    assert_eq!(counts, [3 * ROUNDS, 3 * ROUNDS, 2 * ROUNDS]);
});

contract!(exactly_one_of_many_threads_acquires_the_multi_lock, |store| {
    let clients = [store.client(), store.client()];
    let names = names(2);
    let had = AtomicUsize::new(0);
    let try_for = |wait: Duration| {
        side_by_side(0..10, |number| {
            let multi = group(&clients[number % 2], &names);
            let is_had = multi.try_lock_for_with_lease(wait, SECOND * 20).unwrap();
            had.fetch_add(usize::from(is_had), Ordering::SeqCst);
        });
        had.load(Ordering::SeqCst)
    };
    // Two multi-locks that try at the same time may each hold one of the locks, so perhaps both fail.
    assert!(try_for(Duration::ZERO) <= 1);
    let begun = now();
    assert_eq!(try_for(SECOND * 3), 1);
    assert!(begun.elapsed() < SECOND * 19, "the lease must not have ended");
});

contract!(a_failed_multi_lock_wait_releases_locks_acquired_so_far, |store| {
    let ([client, other], names, multi) = grouped(store, 3);
    let holding = Holding::take(&other.get_lock(&names[2]));
    let interrupt = Interrupt::new();
    let waiter = Waiter::on((multi.clone(), interrupt.clone()), move |(multi, interrupt)| {
        multi.lock_interruptibly(&interrupt)
    });
    comes_true_within(LONG, || names[..2].iter().all(|name| other.get_lock(name).is_locked().unwrap()));
    interrupt.interrupt();
    let (ended, _) = waiter.returns_within(LONG);
    assert!(ended.unwrap_err().is_interrupted());
    all_free(&client, &names[..2]);
    assert!(
        multi.acquire_with(&AcquireOptions::new().interrupt(&interrupt)).unwrap_err().is_interrupted(),
        "the interrupt ends the call before its request"
    );
    let leaving = store.client();
    let waiter = Waiter::on(group(&leaving, &names), move |multi| multi.lock());
    comes_true_within(LONG, || other.get_lock(&names[1]).is_locked().unwrap());
    leaving.shutdown().unwrap();
    let (ended, _) = waiter.returns_within(LONG);
    fails(ended, ErrorKind::ShutDown);
    all_free(&client, &names[..2]);
    holding.release();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = multi.acquire().unwrap();
        quiet_panic();
    }));
    assert!(panicked.is_err());
    all_free(&client, &names);
});

contract!(an_invalid_lock_list_is_refused_before_any_request, |store| {
    let (client, other) = (store.client(), store.client());
    let names = names(2);
    let [a, b] = [client.get_lock(&names[0]), client.get_lock(&names[1])];
    let none: [RedisLock; 0] = [];
    let rw = client.get_read_write_lock(&names[0]);
    let lists = [
        client.get_multi_lock(none),
        client.get_multi_lock([&a, &b, &a]),
        client.get_multi_lock((&a, client.get_fenced_lock(&names[0]))),
        client.get_multi_lock([a.clone(), other.get_lock(&names[0])]),
        client.get_multi_lock([&b, &client.get_lock("")]),
        client.get_multi_lock([rw.read(), rw.write()]),
    ];
    client.shutdown().unwrap(); // after this any call that sends a request would report the shutdown instead
    for (number, list) in lists.iter().enumerate() {
        let lacks_rw = number == 5 && store.lacks.contains(&Need::ReadWrite);
        let kind = if lacks_rw { ErrorKind::Unsupported } else { ErrorKind::InvalidInput };
        for error in [
            list.lock().unwrap_err(),
            list.try_lock_for(ms(1)).unwrap_err(),
            list.acquire_owned().unwrap_err(),
            list.unlock().unwrap_err(),
        ] {
            assert_eq!(error.kind(), kind, "{number}: {error}");
        }
        assert_eq!(list.names().count(), 0);
    }
    assert!(lists[1].lock().unwrap_err().to_string().contains(&names[0]));
    let good = client.get_multi_lock([&a, &b]);
    fails(good.lock(), ErrorKind::ShutDown);
    let client = store.client();
    fails(group(&client, &names).lock_with_lease(Duration::ZERO), ErrorKind::InvalidInput);
    assert!(!client.get_lock(&names[0]).is_locked().unwrap());
});

contract!(a_multi_lock_accepts_locks_of_every_kind, |store| {
    let (name, [client, other]) = store.clients("kinds");
    let make = |client: &LockClient| -> Vec<RedisLock> {
        let named = |label: &str| format!("{name}-{label}");
        let mut locks: Vec<RedisLock> =
            store.kinds.iter().map(|kind| (kind.make)(client, &named(kind.label))).collect();
        if !store.lacks.contains(&Need::ReadWrite) {
            locks.push(client.get_read_write_lock(named("read")).read().clone());
            locks.push(client.get_read_write_lock(named("write")).write_fenced().into());
        }
        locks.push(client.get_spin_lock(named("spin")));
        locks.push(client.lock_builder(named("once")).non_reentrant().build());
        locks
    };
    let multi = client.get_multi_lock(make(&client));
    for round in 0..3 {
        let guard = multi.acquire().unwrap();
        for lock in make(&other) {
            assert_eq!(lock.try_lock().unwrap(), lock.name().ends_with("-read"), "{}", lock.name());
            if lock.name().ends_with("-read") {
                lock.unlock().unwrap();
            }
        }
        assert!(guard.fencing_token_of(&format!("{name}-fenced_lock")).is_some());
        assert!(guard.fencing_token_of(&format!("{name}-lock")).is_none());
        if round == 0 {
            assert!(!multi.try_lock().unwrap());
            fails(multi.lock(), ErrorKind::WouldDeadlock);
        }
        guard.unlock().unwrap();
        for lock in make(&other) {
            assert!(!lock.is_locked().unwrap(), "{}", lock.name());
        }
    }
    for lock in make(&other) {
        if lock.name().ends_with("-read") {
            continue;
        }
        let holding = Holding::take(&lock);
        let multi = multi.clone();
        let waiter = Waiter::start(move || multi.acquire().unwrap().unlock().unwrap());
        let released = holding.release();
        let ((), had) = waiter.returns_within(LONG);
        assert!(had - released < ms(1_250) + slack_since(released), "{}: {:?}", lock.name(), had - released);
    }
    let lock: &dyn Lock = &multi;
    lock.lock().unwrap();
    lock.unlock().unwrap();
});

contract!(a_multi_lock_can_span_several_clients_and_stores, |store| {
    let (first, second, apart) = (store.client(), store.client(), LockClient::in_memory());
    let names = names(3);
    let locks = || [apart.get_lock(&names[1]), second.get_lock(&names[2]), first.get_lock(&names[0])];
    let multi = first.get_multi_lock(locks());
    for _ in 0..2 {
        let guard = multi.acquire().unwrap();
        for lock in locks() {
            elsewhere(|| assert!(!lock.try_lock().unwrap()));
        }
        guard.unlock().unwrap();
    }
    for lock in locks() {
        let holding = Holding::take(&lock);
        assert!(!multi.try_lock_for(ms(50)).unwrap());
        let waiting = multi.clone();
        let waiter = Waiter::start(move || waiting.acquire().unwrap().unlock().unwrap());
        holding.release();
        waiter.returns_within(LONG);
    }
    let guard =
        first.get_multi_lock([first.get_lock(&names[0]), apart.get_lock(&names[0])]).acquire().unwrap();
    assert_eq!(guard.names().count(), 2);
});

contract!(a_multi_lock_is_reentrant_if_its_locks_are, |store| {
    let client = store.client();
    let names = names(2);
    let (multi, single) = (group(&client, &names), client.get_lock(&names[1]));
    single.lock().unwrap();
    multi.lock().unwrap();
    assert!(multi.try_lock().unwrap());
    let guard = multi.acquire().unwrap();
    assert_eq!(single.hold_count().unwrap(), 4);
    assert_eq!(client.get_lock(&names[0]).hold_count().unwrap(), 3);
    multi.unlock().unwrap();
    drop(guard);
    comes_true_within(SECOND, || single.hold_count().unwrap() == 2);
    multi.unlock().unwrap();
    assert!(!client.get_lock(&names[0]).is_locked().unwrap());
    assert_eq!(single.hold_count().unwrap(), 1);
    let error = multi.unlock().unwrap_err();
    assert!(error.is_not_held() && error.lock_name() == Some(&names[0]), "{error}");
    assert!(!single.is_locked().unwrap());
    assert!(multi.unlock().unwrap_err().is_not_held());
});

contract!(a_multi_lock_lease_begins_with_its_last_grant, |store| {
    let lease = ms(2_000);
    let ([_client, other], names, multi) = grouped(store, 3);
    let holding = Holding::take(&other.get_lock(&names[2]));
    let waiter = Waiter::start(move || {
        let guard = multi.acquire_with(&leased(lease).wait(LONG)).unwrap().unwrap();
        let had = now();
        let left = guard.remaining();
        let lost = guard.lost();
        receive(&lost, LONG).unwrap();
        (had, left, guard.check().is_err())
    });
    let_pass(lease * 3 / 5, "more than half of the lease");
    holding.release();
    let left = |name: &String| other.get_lock(name).remaining_lease().unwrap();
    // Until the last grant the earlier locks have the client's lease. Then one request sets the requested
    // lease on all of them.
    let is_leased = |name| left(name).is_some_and(|left| left <= store.freed_within(lease));
    comes_true_within(SECOND, || names.iter().all(is_leased));
    let ((had, remaining, is_lost), ended) = waiter.returns_within(LONG);
    assert!(is_lost);
    assert!(remaining > lease / 2 && remaining <= lease, "{remaining:?}");
    let lasted = ended - had;
    assert!(lasted > lease / 2 && lasted < lease + slack_since(had), "{lasted:?}");
    comes_true_within(store.freed_within(SECOND), || names.iter().all(|name| left(name).is_none()));
});

contract!(a_multi_lock_never_shortens_leases_of_single_locks, |store| {
    let ([client, other], names, multi) = grouped(store, 2);
    let single = client.get_lock(&names[0]);
    let holding = Holding::take(&other.get_lock(&names[1]));
    let waiter = Waiter::start(move || {
        single.lock_with_lease(SECOND * 60).unwrap();
        let guard = multi.acquire_with(&leased(SECOND * 20)).unwrap().unwrap();
        let left = single.remaining_lease().unwrap();
        guard.unlock().unwrap();
        single.unlock().unwrap();
        left
    });
    holding.release();
    let (left, _) = waiter.returns_within(LONG);
    assert!(left > Some(SECOND * 30), "{left:?}");
});

contract!(a_waiting_multi_lock_renews_its_earlier_locks, |store| {
    let lease = ms(2_000);
    let ([_client, other], names, multi) = grouped(store, 2);
    let holding = Holding::take(&other.get_lock(&names[1]));
    let waiter = Waiter::start(move || {
        let guard = multi.acquire_with(&leased(lease)).unwrap().unwrap();
        guard.check().unwrap();
        guard.unlock()
    });
    comes_true_within(LONG, || other.get_lock(&names[0]).is_locked().unwrap());
    throughout(lease * 2, || other.get_lock(&names[0]).is_locked().unwrap());
    holding.release();
    waiter.returns_within(LONG).0.unwrap();
    all_free_at_once(&other, &names);
});

contract!(multi_lock_remaining_time_never_exceeds_the_shortest_lease, |store| {
    let (short, long) = (store.client_with_lease(RENEWED), store.client());
    let names = names(2);
    let guard = long.get_multi_lock([long.get_lock(&names[0]), short.get_lock(&names[1])]).acquire().unwrap();
    assert!(guard.remaining() <= RENEWED, "{:?}", guard.remaining());
    throughout(RENEWED + ms(200), || guard.check().is_ok() && guard.remaining() <= RENEWED);
    for name in &names {
        assert!(long.get_lock(name).is_locked().unwrap());
    }
    guard.unlock().unwrap();
});

contract!(losing_one_lock_loses_the_whole_multi_lock, |store| {
    let (client, operator) = (store.client_with_lease(RENEWED), store.client());
    let names = names(3);
    let guard = group(&client, &names).acquire().unwrap();
    let (tell, told) = unbounded();
    guard.on_lost(move |loss| tell.send(loss.clone()).unwrap());
    let lost = guard.lost();
    assert!(operator.get_lock(&names[1]).force_unlock().unwrap());
    let loss = receive(&told, RENEWED / 3 + SLACK).unwrap();
    assert_eq!((loss.name.as_str(), loss.reason), (names[1].as_str(), LossReason::Gone));
    assert_eq!(receive(&lost, SLACK).unwrap().name, names[1]);
    let error = guard.check().unwrap_err();
    assert!(error.is_lost() && error.lock_name() == Some(&names[1]), "{error}");
    assert_eq!((guard.state(), guard.remaining()), (HoldState::Lost, Duration::ZERO));
    throughout(RENEWED + ms(200), || operator.get_lock(&names[0]).is_locked().unwrap());
    assert!(operator.get_lock(&names[2]).is_locked().unwrap());
    let error = guard.unlock().unwrap_err();
    assert!(error.is_lost() && error.lock_name() == Some(&names[1]), "{error}");
    all_free_at_once(&operator, &names);
    assert!(told.recv().is_err(), "the loss was reported twice");
});

contract!(unlocking_a_multi_lock_frees_its_locks_except_lost_ones, |store| {
    let (client, operator) = (store.client(), store.client());
    for names in [names(3), in_one_slot(3)] {
        let multi = group(&client, &names);
        for lost in &names {
            multi.lock().unwrap();
            assert!(operator.get_lock(lost).force_unlock().unwrap());
            let error = multi.unlock().unwrap_err();
            assert!(error.is_not_held() && error.lock_name() == Some(lost), "{error}");
            all_free_at_once(&operator, &names);
        }
    }
});

contract!(unlocking_a_multi_lock_frees_all_despite_a_client_shutdown, |store| {
    let (client, closed, operator) = (store.client(), store.client(), store.client());
    let names = names(2);
    let multi = client.get_multi_lock([client.get_lock(&names[0]), closed.get_lock(&names[1])]);
    multi.lock().unwrap();
    closed.shutdown().unwrap();
    fails(multi.unlock(), ErrorKind::ShutDown);
    all_free_at_once(&operator, &names);
});

contract!(a_failed_multi_lock_try_leaves_no_queue_place, |store| {
    let (client, operator) = (store.client(), store.client());
    for fair in store.kinds.iter().filter(|kind| kind.traits.fair) {
        let names = names(2);
        let held = (fair.make)(&operator, &names[1]).acquire_owned().unwrap();
        let multi =
            client.get_multi_lock(names.iter().map(|name| (fair.make)(&client, name)).collect::<Vec<_>>());
        assert!(!multi.try_lock().unwrap(), "{}", fair.label);
        assert_eq!(operator.inspect(&names[1]).unwrap().waiting, 0, "{}", fair.label);
        held.unlock().unwrap();
        assert!((fair.make)(&operator, &names[1]).try_lock().unwrap(), "{}", fair.label);
        (fair.make)(&operator, &names[1]).unlock().unwrap();
    }
});

contract!(a_multi_lock_reacquires_a_lock_lost_during_its_wait, |store| {
    let (teller, seen) = watches();
    let client = store.client_with(|options| options.observer(teller).lease(RENEWED));
    let operator = store.client();
    let names = names(2);
    let holding = Holding::take(&operator.get_lock(&names[1]));
    let multi = group(&client, &names);
    let waiter = Waiter::start(move || {
        let guard = multi.acquire().unwrap();
        guard.check().unwrap();
        guard.unlock()
    });
    comes_true_within(LONG, || operator.get_lock(&names[0]).force_unlock().unwrap());
    comes_true_within(LONG, || seen.try_iter().any(|seen| matches!(seen, Seen::Lost(_))));
    holding.release();
    waiter.returns_within(LONG).0.unwrap();
    all_free_at_once(&operator, &names);
});

contract!(max_hold_of_one_lock_ends_the_whole_multi_lock, |store| {
    let client = store.client_with_lease(ms(3_000));
    let names = names(2);
    let limited = client.lock_builder(&names[0]).max_hold(ms(3_600)).build();
    let guard = client.get_multi_lock([limited, client.get_lock(&names[1])]).acquire().unwrap();
    let loss = receive(&guard.lost(), LONG).unwrap();
    assert_eq!((loss.name.as_str(), loss.reason), (names[0].as_str(), LossReason::HeldTooLong));
    assert!(guard.check().unwrap_err().is_lost());
    assert!(guard.unlock().is_err());
    all_free_at_once(&client, &names[1..]);
    all_free(&client, &names[..1]);
});

contract!(fencing_tokens_of_a_multi_lock_increase_with_each_grant, |store| {
    let clients = [store.client(), store.client()];
    for names in [names(3), in_one_slot(3)] {
        let (mut last, mut last_of_third) = (None, None);
        for round in 0..6 {
            let client = &clients[round % 2];
            let locks: [RedisLock; 3] = [
                client.get_lock(&names[0]),
                client.get_fenced_lock(&names[1]).into(),
                client.get_fenced_lock(&names[2]).into(),
            ];
            let guard = client.get_multi_lock(locks).acquire().unwrap();
            assert_eq!(
                guard.fencing_token(),
                guard.fencing_token_of(&names[1]),
                "not the token of the first fenced lock"
            );
            assert!(guard.fencing_token() > last, "{:?} after {last:?}", guard.fencing_token());
            assert!(guard.fencing_token_of(&names[2]) > last_of_third);
            assert_eq!((guard.fencing_token_of(&names[0]), guard.fencing_token_of("another")), (None, None));
            (last, last_of_third) = (guard.fencing_token(), guard.fencing_token_of(&names[2]));
            guard.unlock().unwrap();
            // A fenced lock has its own token counter, so a grant outside the multi-lock continues it.
            let alone = client.get_fenced_lock(&names[2]).acquire().unwrap();
            assert!(alone.fencing_token() > last_of_third);
            last_of_third = alone.fencing_token();
        }
    }
});

contract!(an_owned_multi_lock_guard_can_change_threads, |store| {
    let ([_client, other], names, multi) = grouped(store, 2);
    let guard = multi.acquire_owned().unwrap();
    assert!(!multi.try_lock().unwrap(), "the owned hold counts as the thread's");
    assert!(multi.try_acquire_owned_for(ms(20)).unwrap().is_none());
    elsewhere(move || {
        guard.check().unwrap();
        guard.unlock().unwrap();
    });
    all_free(&other, &names);
    let guard = multi.try_acquire_owned_for(ms(20)).unwrap().unwrap();
    elsewhere(move || drop(guard));
    all_free(&other, &names);
});

contract!(releasing_a_multi_lock_wakes_the_waiters_of_each_lock, |store| {
    let ([client, other], names, multi) = grouped(store, 3);
    for by_drop in [false, true] {
        let guard = multi.acquire().unwrap();
        let waiters: Vec<_> = names.iter().map(|name| Waiter::start(turn(other.get_lock(name)))).collect();
        let here = Waiter::start(turn(client.get_lock(&names[1])));
        let released = now();
        if by_drop {
            drop(guard);
        } else {
            guard.unlock().unwrap();
        }
        let limit =
            if store.kinds[0].traits.wakes { SLACK * 3 } else { store.kinds[0].traits.polls_within * 2 };
        for waiter in waiters.into_iter().chain([here]) {
            let (_, had) = waiter.returns_within(LONG);
            let limit = limit + slack_since(released);
            assert!(had - released < limit, "{:?}", had - released);
        }
        all_free(&client, &names);
    }
});

contract!(late_releases_of_multi_guards_end_no_later_hold, |store| {
    let (teller, seen) = watches();
    let (client, other) = (store.client_with(|options| options.observer(teller)), store.client());
    let names = names(3);
    let multi = group(&client, &names);
    let mut released = 0;
    for round in 0..40 {
        for name in &names {
            drop(client.get_lock(name).acquire().unwrap());
        }
        let guard = multi.acquire().unwrap();
        // After this loop all releases are answered, so a release that ended the new hold would show below.
        while released < 6 * round + 3 {
            match receive(&seen, LONG).expect("a release was not reported") {
                Seen::Acquired { .. } => {}
                Seen::Released { .. } => released += 1,
                other => panic!("{other:?}"),
            }
        }
        guard.check().unwrap();
        for name in &names {
            assert!(other.get_lock(name).is_locked().unwrap(), "a release ended the next hold");
        }
        drop(guard);
    }
    client.shutdown().unwrap();
    all_free(&other, &names);
});
