//! One call's options and answers, work under a lock, guards that may change threads, health, and clients that connect late.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use leasehold::{AcquireOptions, ErrorKind, Interrupt, TryOutcome, Wakeups};

use super::harness::{Store, fresh};
use crate::support::{
    Holding, LONG, SLACK, Waiter, comes_true_within, elsewhere, ms, now, quiet_panic, slack_since,
};

contracts!(
    options_without_a_wait_make_one_attempt,
    options_with_a_wait_wait_and_no_longer,
    options_with_a_lease_are_not_renewed,
    options_with_an_interrupt_end_a_wait_that_has_a_lease,
    options_that_cannot_be_used_are_refused_by_the_call,
    work_is_run_under_the_lock_or_not_at_all,
    work_with_a_wait_gets_the_lock_when_it_is_free,
    work_that_panics_frees_the_lock,
    every_way_to_an_owned_guard_has_the_lock,
    an_owned_guard_is_refused_to_a_thread_that_holds_the_lock,
    a_ping_is_answered,
    a_client_that_connects_lazily_is_like_any_other,
);

const MINUTE: Duration = Duration::from_secs(60);

fn options_without_a_wait_make_one_attempt(store: &Store) {
    let client = store.client();
    for kind in &store.kinds {
        let lock = (kind.make)(&client, &fresh(kind.label));
        let once = AcquireOptions::new();
        let guard = lock.try_acquire_with(&once).unwrap().acquired().unwrap();
        elsewhere(|| {
            assert!(lock.try_lock_with(&once).unwrap().is_busy());
            assert!(lock.try_acquire_with(&once).unwrap().is_busy());
            assert!(lock.try_acquire_owned_with(&once).unwrap().is_busy());
        });
        guard.unlock().unwrap();
        assert!(lock.try_lock_with(&once).unwrap().is_acquired());
        lock.unlock().unwrap();
        lock.try_acquire_owned_with(&once).unwrap().acquired().unwrap().unlock().unwrap();
    }
}

fn options_with_a_wait_wait_and_no_longer(store: &Store) {
    let lock = store.client().lock(&fresh("waits"));
    let holding = Holding::take(&lock);
    let begun = now();
    assert!(lock.try_lock_with(&AcquireOptions::new().wait(ms(50))).unwrap().is_busy());
    assert!(begun.elapsed() >= ms(50));
    let waiters = [AcquireOptions::new().wait(MINUTE), AcquireOptions::new().wait_forever()].map(|options| {
        let lock = lock.clone();
        Waiter::start(move || lock.try_acquire_with(&options).unwrap().is_acquired())
    });
    holding.release();
    for waiter in waiters {
        assert!(waiter.returns_within(LONG).0);
    }
}

fn options_with_a_lease_are_not_renewed(store: &Store) {
    let client = store.client();
    let lock = client.lock(&fresh("leased"));
    let lease = ms(400);
    let options = AcquireOptions::new().lease(lease);
    let guard = lock.try_acquire_owned_with(&options).unwrap().acquired().unwrap();
    comes_true_within(store.freed_within(lease) + SLACK, || guard.check().is_err());
    comes_true_within(store.freed_within(lease) + SLACK, || !lock.is_locked().unwrap());
    assert!(guard.unlock().unwrap_err().is_lost());
}

/// Java's `lockInterruptibly(lease, unit)`, for which there is no call with durations.
fn options_with_an_interrupt_end_a_wait_that_has_a_lease(store: &Store) {
    let lock = store.client().lock(&fresh("interrupted"));
    let holding = Holding::take(&lock);
    let interrupt = Interrupt::new();
    let waiter = Waiter::start({
        let lock = lock.clone();
        let options = AcquireOptions::new().wait_forever().lease(MINUTE).interrupt(&interrupt);
        move || lock.try_lock_with(&options).map(|outcome| outcome.is_acquired())
    });
    interrupt.interrupt();
    let (ended, _) = waiter.returns_within(LONG);
    assert!(ended.unwrap_err().is_interrupted());
    holding.release();
}

fn options_that_cannot_be_used_are_refused_by_the_call(store: &Store) {
    let lock = store.client().lock(&fresh("refused"));
    let options = AcquireOptions::new().wait(MINUTE).lease(Duration::ZERO);
    for (action, error) in [
        ("try_lock_with", lock.try_lock_with(&options).unwrap_err()),
        ("try_acquire_with", lock.try_acquire_with(&options).map(drop_outcome).unwrap_err()),
        ("try_acquire_owned_with", lock.try_acquire_owned_with(&options).map(drop_outcome).unwrap_err()),
    ] {
        assert_eq!((error.kind(), error.action()), (ErrorKind::InvalidInput, action));
    }
}

fn drop_outcome<T>(outcome: TryOutcome<T>) {
    drop(outcome.acquired());
}

fn work_is_run_under_the_lock_or_not_at_all(store: &Store) {
    let client = store.client();
    for kind in &store.kinds {
        let lock = (kind.make)(&client, &fresh(kind.label));
        let fence = lock.with_lock(|guard| {
            guard.check().unwrap();
            elsewhere(|| {
                assert!(lock.try_with_lock(|_| panic!("it is not free")).unwrap().is_busy());
                assert!(lock.with_lock_for(ms(10), |_| panic!("it is not free")).unwrap().is_busy());
            });
            guard.fence()
        });
        assert_eq!(fence.unwrap().is_some(), kind.traits.fenced, "{}", kind.label);
        assert_eq!(lock.try_with_lock(|_| 7).unwrap(), TryOutcome::Acquired(7));
        assert_eq!(lock.with_lock_for(MINUTE, |_| 8).unwrap(), TryOutcome::Acquired(8));
        assert!(!lock.is_locked().unwrap());
    }
    let name = fresh("by name");
    assert_eq!(client.try_with_lock(&name, |_| 7).unwrap(), TryOutcome::Acquired(7));
    assert_eq!(client.with_lock_for(&name, MINUTE, |_| 8).unwrap().acquired(), Some(8));
    let fenced =
        client.with_lock(&name, |_| elsewhere(|| client.try_with_lock(&name, |_| ()).unwrap().is_busy()));
    assert!(fenced.unwrap());
}

fn work_with_a_wait_gets_the_lock_when_it_is_free(store: &Store) {
    let lock = store.client().lock(&fresh("work"));
    let holding = Holding::take(&lock);
    let waiter = Waiter::start({
        let lock = lock.clone();
        move || lock.with_lock_for(MINUTE, |guard| guard.check().is_ok())
    });
    holding.release();
    assert_eq!(waiter.returns_within(LONG).0.unwrap(), TryOutcome::Acquired(true));
}

fn work_that_panics_frees_the_lock(store: &Store) {
    let lock = store.client().lock(&fresh("panic"));
    let results = [
        catch_unwind(AssertUnwindSafe(|| drop(lock.with_lock(|_| quiet_panic())))),
        catch_unwind(AssertUnwindSafe(|| drop(lock.try_with_lock(|_| quiet_panic())))),
        catch_unwind(AssertUnwindSafe(|| drop(lock.with_lock_for(MINUTE, |_| quiet_panic())))),
    ];
    assert!(results.iter().all(Result::is_err));
    comes_true_within(SLACK, || !lock.is_locked().unwrap());
}

fn every_way_to_an_owned_guard_has_the_lock(store: &Store) {
    let client = store.client();
    for kind in &store.kinds {
        let lock = (kind.make)(&client, &fresh(kind.label));
        let options = AcquireOptions::new().wait(MINUTE);
        let ways: [(&str, &dyn Fn() -> leasehold::OwnedGuard); 7] = [
            ("acquire_owned", &|| lock.acquire_owned().unwrap()),
            ("acquire_owned_with_lease", &|| lock.acquire_owned_with_lease(MINUTE).unwrap()),
            ("acquire_owned_interruptibly", &|| lock.acquire_owned_interruptibly(&Interrupt::new()).unwrap()),
            ("try_acquire_owned", &|| lock.try_acquire_owned().unwrap().unwrap()),
            ("try_acquire_owned_for", &|| lock.try_acquire_owned_for(MINUTE).unwrap().unwrap()),
            ("try_acquire_owned_for_with_lease", &|| {
                lock.try_acquire_owned_for_with_lease(MINUTE, MINUTE).unwrap().unwrap()
            }),
            ("try_acquire_owned_with", &|| {
                lock.try_acquire_owned_with(&options).unwrap().acquired().unwrap()
            }),
        ];
        for (way, take) in ways {
            let guard = take();
            assert!(!lock.is_held_by_current_thread().unwrap(), "{way}");
            assert!(lock.try_acquire_owned().unwrap().is_none(), "{way}");
            elsewhere(move || guard.unlock().unwrap());
        }
    }
    let lock = client.lock(&fresh("bounded"));
    let lease = ms(400);
    let guard = lock.acquire_owned_with_lease(lease).unwrap();
    comes_true_within(store.freed_within(lease) + SLACK, || guard.check().is_err());
    let holding = lock.acquire_owned().unwrap();
    let interrupt = Interrupt::new();
    let waiter = Waiter::start({
        let (lock, interrupt) = (lock.clone(), interrupt.clone());
        move || lock.acquire_owned_interruptibly(&interrupt)
    });
    interrupt.interrupt();
    assert!(waiter.returns_within(LONG).0.unwrap_err().is_interrupted());
    holding.unlock().unwrap();
}

fn an_owned_guard_is_refused_to_a_thread_that_holds_the_lock(store: &Store) {
    let client = store.client();
    for kind in &store.kinds {
        let name = fresh(kind.label);
        let lock = (kind.make)(&client, &name);
        let guard = lock.acquire().unwrap();
        let begun = now();
        let multi = client.multi_lock([lock.clone()]);
        for error in [
            lock.acquire_owned().map(drop).unwrap_err(),
            lock.acquire_owned_with_lease(MINUTE).map(drop).unwrap_err(),
            lock.try_acquire_owned_for(MINUTE).map(drop).unwrap_err(),
            lock.try_acquire_owned_with(&AcquireOptions::new().wait_forever()).map(drop_outcome).unwrap_err(),
            multi.acquire_owned().map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::WouldDeadlock, "{}: {error}", kind.label);
            assert_eq!(error.lock_name(), Some(&*name));
        }
        assert!(
            begun.elapsed() < ms(2_000) + slack_since(begun),
            "nothing of this waits: {:?}",
            begun.elapsed()
        );
        // Those that do not wait find it busy.
        assert!(lock.try_acquire_owned().unwrap().is_none());
        guard.check().unwrap();
        guard.unlock().unwrap();
        lock.acquire_owned().unwrap().unlock().unwrap();
    }
}

fn a_ping_is_answered(store: &Store) {
    let client = store.client_with(|options| options.key_prefix("ping:"));
    let health = client.ping().unwrap();
    let known = [
        "redis",
        "redis-sentinel",
        "redis-cluster",
        "redlock",
        "ring",
        "postgres",
        "mysql",
        "sqlite",
        "etcd",
        "zookeeper",
        "memory",
    ];
    assert!(known.contains(&health.store), "{health:?}");
    assert!(health.latency < LONG, "{health:?}");
    // MySQL and SQLite wake nobody.
    let wakes = store.kinds.iter().any(|kind| kind.label == "lock" && kind.traits.wakes);
    assert_eq!(health.wakeups, if wakes { Wakeups::Working } else { Wakeups::Polled }, "{health:?}");
    client.shutdown().unwrap();
    assert_eq!(client.ping().unwrap_err().kind(), ErrorKind::ShutDown);
}

fn a_client_that_connects_lazily_is_like_any_other(store: &Store) {
    let other = store.client();
    for kind in &store.kinds {
        let name = fresh(kind.label);
        let client = store.client_with(|options| options.connect_lazily());
        // The first use of this client is to wait.
        let holding = Holding::take(&(kind.make)(&other, &name));
        let waiter = Waiter::start({
            let lock = (kind.make)(&client, &name);
            move || lock.acquire_owned().unwrap().unlock()
        });
        holding.release();
        waiter.returns_within(LONG).0.unwrap();
        let lock = (kind.make)(&client, &name);
        let guard = lock.acquire().unwrap();
        assert!(!(kind.make)(&other, &name).try_lock().unwrap());
        guard.unlock().unwrap();
        client.shutdown().unwrap();
        assert_eq!(lock.try_lock().unwrap_err().kind(), ErrorKind::ShutDown);
    }
    let unused = store.client_with(|options| options.connect_lazily());
    unused.shutdown().unwrap();
    let pinged = store.client_with(|options| options.connect_lazily());
    assert_eq!(pinged.ping().unwrap().store, other.ping().unwrap().store);
    assert!(pinged.lock("").lock().is_err());
}
