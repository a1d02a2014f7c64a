//! Options and results of calls: code that runs under a lock, guards that change threads, health checks,
//! clients that connect late.

use leasehold::Wakeups;

use crate::support::prelude::*;

const MINUTE: Duration = Duration::from_secs(60);

contract!(with_lock_runs_its_work_only_under_the_lock, |store| {
    let client = store.client();
    for kind in &store.kinds {
        let lock = (kind.make)(&client, &fresh(kind.label));
        let options = AcquireOptions::new();
        let (once, brief) = (options.clone().wait(Duration::ZERO), options.clone().wait(ms(10)));
        let fence = options.with_lock(&lock, |guard| {
            guard.check().unwrap();
            elsewhere(|| {
                assert!(once.with_lock(&lock, |_| panic!("the lock is not free")).unwrap().is_none());
                assert!(brief.with_lock(&lock, |_| panic!("the lock is not free")).unwrap().is_none());
            });
            guard.fencing_token()
        });
        assert_eq!(fence.unwrap().unwrap().is_some(), kind.traits.fenced, "{}", kind.label);
        assert_eq!(once.with_lock(&lock, |_| 7).unwrap(), Some(7));
        assert_eq!(options.wait(MINUTE).with_lock(&lock, |_| 8).unwrap(), Some(8));
        assert!(!lock.is_locked().unwrap());
    }
    let name = fresh("by name");
    let is_kept =
        client.with_lock(&name, |_| elsewhere(|| client.get_lock(&name).try_acquire().unwrap().is_none()));
    assert!(is_kept.unwrap());
});

contract!(every_owned_acquire_method_holds_the_lock, |store| {
    let client = store.client();
    for kind in &store.kinds {
        let lock = (kind.make)(&client, &fresh(kind.label));
        let options = AcquireOptions::new().wait(MINUTE);
        let ways: [(&str, &dyn Fn() -> leasehold::OwnedGuard); 4] = [
            ("acquire_owned", &|| lock.acquire_owned().unwrap()),
            ("try_acquire_owned", &|| lock.try_acquire_owned().unwrap().unwrap()),
            ("try_acquire_owned_for", &|| lock.try_acquire_owned_for(MINUTE).unwrap().unwrap()),
            ("acquire_owned_with", &|| lock.acquire_owned_with(&options).unwrap().unwrap()),
        ];
        for (way, take) in ways {
            let guard = take();
            assert_ne!(guard.owner(), client.current_owner(), "{way}");
            assert!(lock.is_locked().unwrap() && !lock.is_held_by_current_thread().unwrap(), "{way}");
            assert_eq!(lock.hold_count().unwrap(), 0, "{way}");
            assert!(!lock.try_lock().unwrap() && !lock.try_lock_for(ms(30)).unwrap(), "{way}");
            assert!(lock.try_acquire_owned().unwrap().is_none(), "{way}");
            assert!(lock.try_acquire_owned_for(ms(30)).unwrap().is_none(), "{way}");
            let held_by = NotHeld::HeldBy(guard.owner().to_string());
            assert_eq!(lock.unlock().unwrap_err().not_held(), Some(&held_by), "{way}");
            elsewhere(move || guard.unlock().unwrap());
        }
    }
    let lock = client.get_lock(fresh("bounded"));
    let lease = ms(400);
    let guard = lock.acquire_owned_with(&leased(lease)).unwrap().unwrap();
    comes_true_within(store.freed_within(lease) + SLACK, || guard.check().is_err());
    let holding = lock.acquire_owned().unwrap();
    let interrupt = Interrupt::new();
    let waiter = Waiter::on((lock.clone(), interrupt.clone()), move |(lock, interrupt)| {
        lock.acquire_owned_with(&AcquireOptions::new().interrupt(&interrupt))
    });
    interrupt.interrupt();
    assert!(waiter.returns_within(LONG).0.unwrap_err().is_interrupted());
    holding.unlock().unwrap();
});

contract!(an_owned_guard_is_refused_to_the_holding_thread, |store| {
    let client = store.client();
    for kind in &store.kinds {
        let name = fresh(kind.label);
        let lock = (kind.make)(&client, &name);
        let guard = lock.acquire().unwrap();
        let begun = now();
        let multi = client.get_multi_lock([lock.clone()]);
        for error in [
            lock.acquire_owned().map(drop).unwrap_err(),
            lock.acquire_owned_with(&leased(MINUTE)).map(drop).unwrap_err(),
            lock.try_acquire_owned_for(MINUTE).map(drop).unwrap_err(),
            lock.acquire_owned_with(&AcquireOptions::new()).map(drop).unwrap_err(),
            multi.acquire_owned().map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::WouldDeadlock, "{}: {error}", kind.label);
            assert_eq!(error.lock_name(), Some(&*name));
        }
        assert!(
            begun.elapsed() < ms(2_000) + slack_since(begun),
            "a refused call waited: {:?}",
            begun.elapsed()
        );
        assert!(lock.try_acquire_owned().unwrap().is_none());
        assert_eq!(lock.hold_count().unwrap(), 1);
        guard.check().unwrap();
        guard.unlock().unwrap();
        lock.acquire_owned().unwrap().unlock().unwrap();
    }
});

contract!(a_ping_is_answered, |store| {
    let client = store.client_with(|options| options.key_prefix("ping:"));
    let health = client.ping().unwrap();
    let known = "redis redis-sentinel redis-cluster redlock ring postgres mysql sqlite etcd zookeeper memory";
    assert!(known.split(' ').any(|store| store == health.store), "{health:?}");
    assert!(health.latency < LONG, "{health:?}");
    let wakes = store.kinds.iter().any(|kind| kind.label == "lock" && kind.traits.wakes);
    assert_eq!(health.wakeups, if wakes { Wakeups::Working } else { Wakeups::Polled }, "{health:?}");
    client.shutdown().unwrap();
    fails(client.ping(), ErrorKind::ShutDown);
});

contract!(a_lazily_connected_client_can_lock_wait_and_shut_down, |store| {
    let other = store.client();
    for kind in &store.kinds {
        let name = fresh(kind.label);
        let client = store.client_with(|options| options.connect_lazily());
        let holding = Holding::take(&(kind.make)(&other, &name));
        let waiter =
            Waiter::on((kind.make)(&client, &name), move |lock| lock.acquire_owned().unwrap().unlock());
        holding.release();
        waiter.returns_within(LONG).0.unwrap();
        let lock = (kind.make)(&client, &name);
        let guard = lock.acquire().unwrap();
        assert!(!(kind.make)(&other, &name).try_lock().unwrap());
        guard.unlock().unwrap();
        client.shutdown().unwrap();
        fails(lock.try_lock(), ErrorKind::ShutDown);
    }
    let unused = store.client_with(|options| options.connect_lazily());
    unused.shutdown().unwrap();
    let pinged = store.client_with(|options| options.connect_lazily());
    assert_eq!(pinged.ping().unwrap().store, other.ping().unwrap().store);
    assert!(pinged.get_lock("").lock().is_err());
});
