//! Explicit leases expire, and the client renews all other leases.

use crate::support::prelude::*;

fn remaining(lock: &leasehold::RedisLock) -> Duration {
    lock.remaining_lease().unwrap().expect("the lock is held")
}

contract!(a_waiter_acquires_the_lock_when_the_lease_ends, |store| {
    let name = fresh("expires");
    let lease = ms(400);
    let clients = (store.client(), store.client());
    for next in [clients.0.get_lock(&name), clients.1.get_lock(&name)] {
        let lock = clients.0.get_lock(&name);
        let before = now();
        lock.lock_with_lease(lease).unwrap();
        let after = now();
        let waiter = Waiter::start(move || {
            let guard = next.acquire().unwrap();
            let had = now();
            (had, guard.unlock())
        });
        let ((had, unlocked), _) = waiter.returns_within(store.freed_within(lease) + SLACK);
        unlocked.unwrap();
        // Some stores count from the start of the request's millisecond, so a lease may end a little early.
        assert!(had.duration_since(before) >= lease - ms(2), "{:?}", had.duration_since(before));
        let latest = store.freed_within(lease) + slack_since(after);
        assert!(had.duration_since(after) <= latest, "{:?}", had.duration_since(after));
        let is_late = had.duration_since(after) > lease + SLACK;
        assert!(store.late.is_zero() || is_late, "the store is declared late, but ended the lease in time");
        let held = crate::support::Holding::take(&clients.1.get_lock(&name));
        let late = lock.unlock().unwrap_err();
        assert_eq!(late.not_held(), Some(&NotHeld::Expired), "{late}");
        assert!(lock.is_locked().unwrap());
        held.release();
    }
});

contract!(an_explicit_lease_is_never_renewed, |store| {
    let client = store.client_with_lease(ms(120));
    let lock = client.get_lock(fresh("explicit"));
    let lease = ms(600);
    let asked = now();
    lock.lock_with_lease(lease).unwrap();
    let taken = now();
    let mut least = lease;
    while let Some(left) = lock.remaining_lease().unwrap() {
        assert!(left <= least, "the lease grew from {least:?} to {left:?}");
        least = left;
        assert!(taken.elapsed() <= store.freed_within(lease) + slack_since(taken), "the lock is still held");
        let_pass(ms(10), "between two checks of the lease");
    }
    assert!(asked.elapsed() >= lease - ms(2));
    assert_eq!(lock.unlock().unwrap_err().not_held(), Some(&NotHeld::Expired));
});

contract!(a_renewed_hold_outlives_its_lease, |store| {
    // The lease is long, because the queries below may delay a renewal by seconds.
    const LEASE: Duration = ms(10_000);
    let (client, stranger) = (store.client_with_lease(LEASE), store.client());
    let holds: Vec<_> = store
        .kinds
        .iter()
        .map(|kind| {
            let name = fresh(kind.label);
            let guard = (kind.make)(&client, &name).acquire().unwrap();
            (guard, (kind.make)(&stranger, &name))
        })
        .collect();
    throughout(store.freed_within(LEASE) + ms(200), || {
        holds.iter().all(|(guard, rival)| {
            let left = rival.remaining_lease().unwrap();
            // A store that counts leases in whole seconds may show zero for a lease that is still running.
            let runs = left.is_some_and(|left| left <= LEASE && (!left.is_zero() || !store.late.is_zero()));
            let (checked, taken) = (guard.check(), rival.try_lock().unwrap());
            let is_kept = runs && checked.is_ok() && !taken;
            if !is_kept {
                eprintln!("{}: {left:?} left, {checked:?}, taken by another: {taken}", rival.name());
            }
            is_kept
        })
    });
    for (guard, rival) in holds {
        guard.unlock().unwrap();
        assert!(rival.try_lock().unwrap());
        rival.unlock().unwrap();
    }
});

contract!(reentering_never_shortens_the_lease, |store| {
    let lock = store.client_with_lease(ms(1_000)).get_lock(fresh("nested"));
    lock.lock_with_lease(ms(20_000)).unwrap();
    lock.lock_with_lease(ms(60_000)).unwrap();
    let long = remaining(&lock);
    assert!(long > ms(30_000) && long <= ms(60_000), "the lease was not prolonged: {long:?}");
    lock.unlock().unwrap();
    let left = remaining(&lock);
    assert!(left > ms(30_000) && left <= long, "{left:?} after {long:?}");
    lock.lock_with_lease(ms(10)).unwrap();
    lock.unlock().unwrap();
    lock.lock_with_lease(ms(100)).unwrap();
    lock.lock().unwrap();
    assert!(lock.try_lock_for_with_lease(ms(1), ms(5_000)).unwrap());
    let after = remaining(&lock);
    assert!(after > ms(30_000) && after <= left, "{after:?}");
    (0..4).for_each(|_| lock.unlock().unwrap());
    assert!(!lock.is_locked().unwrap());
});

contract!(a_renewed_reentry_keeps_an_explicitly_leased_hold_alive, |store| {
    let client = store.client_with_lease(RENEWED);
    let lock = client.get_lock(fresh("levels"));
    let outer = lock.acquire_with(&leased(RENEWED - ms(300))).unwrap().unwrap();
    let inner = lock.acquire().unwrap();
    throughout(RENEWED + ms(200), || lock.is_locked().unwrap() && outer.check().is_ok());
    inner.unlock().unwrap();
    comes_true_within(store.freed_within(RENEWED) + SLACK, || !lock.is_locked().unwrap());
    assert!(outer.unlock().unwrap_err().is_lost());
});

contract!(a_reentry_with_an_explicit_lease_does_not_end_renewals, |store| {
    let client = store.client_with_lease(RENEWED);
    let lock = client.get_lock(fresh("levels"));
    lock.lock().unwrap();
    lock.lock_with_lease(ms(150)).unwrap();
    throughout(RENEWED + ms(200), || lock.is_locked().unwrap());
    lock.unlock().unwrap();
    throughout(RENEWED + ms(200), || lock.is_locked().unwrap());
    assert_eq!(lock.hold_count().unwrap(), 1);
    lock.unlock().unwrap();
});

contract!(the_remaining_level_decides_whether_a_hold_is_renewed, |store| {
    let client = store.client_with_lease(RENEWED);
    let (ends, lives) = (client.get_lock(fresh("ends")), client.get_lock(fresh("lives")));
    let renewed = ends.acquire().unwrap();
    let brief = ends.acquire_with(&leased(RENEWED + ms(100))).unwrap().unwrap();
    drop(renewed);
    let outer = lives.acquire_with(&leased(RENEWED + ms(100))).unwrap().unwrap();
    let inner = lives.acquire().unwrap();
    drop(outer);
    comes_true_within(store.freed_within(RENEWED + ms(100)) + SLACK, || !ends.is_locked().unwrap());
    assert!(brief.unlock().unwrap_err().is_lost());
    throughout(ms(1_000), || lives.is_locked().unwrap() && inner.check().is_ok());
    inner.unlock().unwrap();
});

contract!(short_explicit_leases_of_reentries_do_not_delay_the_renewal, |store| {
    let lock = store.client_with_lease(RENEWED).get_lock(fresh("levels"));
    let guard = lock.acquire().unwrap();
    throughout(RENEWED + ms(200), || {
        lock.lock_with_lease(ms(20)).unwrap();
        lock.unlock().unwrap();
        guard.check().is_ok() && lock.hold_count().unwrap() == 1
    });
    guard.unlock().unwrap();
});

contract!(released_nested_holds_do_not_stop_the_next_holders_renewal, |store| {
    let client = store.client_with_lease(RENEWED);
    let lock = &client.get_lock(fresh("renewed"));
    elsewhere(|| {
        lock.lock().unwrap();
        lock.lock().unwrap();
        let_pass(RENEWED / 2, "so that the watchdog has renewed the nested hold");
        lock.unlock().unwrap();
        lock.unlock().unwrap();
    });
    elsewhere(|| {
        let guard = lock.acquire().unwrap();
        throughout(RENEWED + ms(200), || lock.is_held_by_current_thread().unwrap());
        guard.unlock().unwrap();
    });
});

contract!(the_hold_after_a_lost_nested_hold_is_renewed, |store| {
    let (client, operator) = (store.client_with_lease(RENEWED), store.client());
    let lock = &client.get_lock(fresh("stale"));
    (0..8).for_each(|_| lock.lock().unwrap());
    assert!(operator.get_lock(lock.name()).force_unlock().unwrap());
    elsewhere(|| {
        let guard = lock.acquire().unwrap();
        throughout(RENEWED + ms(200), || lock.is_held_by_current_thread().unwrap());
        guard.unlock().unwrap();
    });
    assert!(lock.unlock().unwrap_err().is_not_held());
});

// Redisson's lock object would use the lease of the last call for the next hold too.
contract!(an_explicit_lease_applies_only_to_its_own_acquire, |store| {
    let lock = &store.client().get_lock(fresh("shared"));
    elsewhere(|| {
        lock.lock_with_lease(ms(5_000)).unwrap();
        lock.unlock().unwrap();
    });
    lock.lock().unwrap();
    assert!(remaining(lock) > Duration::from_secs(15), "{:?}", remaining(lock));
    lock.lock_with_lease(ms(5_000)).unwrap();
    lock.unlock().unwrap();
    assert!(remaining(lock) > Duration::from_secs(15), "{:?}", remaining(lock));
    lock.unlock().unwrap();
});

contract!(the_hold_of_a_finished_thread_ends_with_its_lease, |store| {
    // The lease is long enough for all calls of this test on a busy machine.
    let lease = ms(2_000);
    let (client, stranger) = (store.client_with_lease(lease), store.client());
    let name = fresh("orphan");
    let leave: [fn(&leasehold::RedisLock); 2] = [
        |lock| {
            lock.lock().unwrap();
            lock.lock().unwrap();
        },
        #[expect(clippy::mem_forget, reason = "what is tested")]
        |lock| std::mem::forget(lock.acquire().unwrap()),
    ];
    for leave in leave {
        let (lock, asked) = (client.get_lock(&name), now());
        elsewhere(|| leave(&lock));
        let ended = now();
        for next in [client.get_lock(&name), stranger.get_lock(&name)] {
            let (_, had) = Waiter::start(turn(next)).returns_within(lease + LONG);
            assert!(had.duration_since(asked) >= lease - ms(2), "another thread released this hold");
            assert!(
                had.duration_since(ended) <= store.freed_within(lease) + slack_since(ended),
                "{:?}",
                had.duration_since(ended)
            );
        }
    }
});

contract!(a_timed_try_holds_for_its_explicit_lease, |store| {
    let lock = store.client_with_lease(ms(120)).get_lock(fresh("timed"));
    let taken = now();
    assert!(lock.try_lock_for_with_lease(ms(10), ms(1_000)).unwrap());
    let freed = comes_true_within(store.freed_within(ms(1_000)) + SLACK, || !lock.is_locked().unwrap());
    assert!(taken.elapsed() >= ms(998), "{freed:?}");
    let guard = lock.acquire_with(&leased(ms(1_000)).wait(ms(10))).unwrap().unwrap();
    comes_true_within(ms(1_000) + SLACK, || guard.check().is_err());
    assert!(lock.unlock().is_err());
});

contract!(the_remaining_lease_matches_the_requested_lease, |store| {
    let client = store.client();
    let lock = client.get_lock(fresh("remaining"));
    assert_eq!(lock.remaining_lease().unwrap(), None);
    lock.lock_with_lease(ms(3_600_000)).unwrap();
    assert!(remaining(&lock) > ms(3_590_000) && remaining(&lock) <= ms(3_600_000));
    assert!(elsewhere(|| remaining(&lock)) > ms(3_590_000));
    lock.unlock().unwrap();
    assert_eq!(lock.remaining_lease().unwrap(), None);
    lock.lock().unwrap();
    assert!(remaining(&lock) > ms(15_000) && remaining(&lock) <= ms(20_000));
    lock.unlock().unwrap();
});

contract!(a_lease_is_rounded_up_to_milliseconds, |store| {
    let lock = store.client().get_lock(fresh("tiny"));
    let lease = ms(3_000) + Duration::from_nanos(1);
    let guard = lock.acquire_with(&leased(lease)).unwrap().unwrap();
    assert!(guard.remaining() > ms(2_000));
    guard.unlock().unwrap();
    // The lease may end before the grant arrives. The call then holds the lock briefly or not at all, and
    // leaves nothing in the store.
    match lock.try_lock_for_with_lease(ms(50), Duration::from_micros(1_001)) {
        Ok(true) => match lock.unlock() {
            Ok(()) => {}
            Err(error) => assert!(error.is_lost(), "{error}"),
        },
        Ok(false) => {}
        // A Redlock gives each server only a part of such a short lease to answer, and may therefore fail.
        Err(error) => assert!(error.is_retryable(), "{error}"),
    }
    comes_true_within(store.freed_within(SLACK), || !lock.is_locked().unwrap());
});
