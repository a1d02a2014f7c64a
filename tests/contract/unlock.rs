//! Releases by threads that do not hold the lock, and forced releases.

use leasehold::Result;

use crate::support::prelude::*;

contract!(unlocking_a_free_lock_fails_as_free, |store| {
    for (kind, name, [client]) in store.each() {
        let lock = (kind.make)(&client, &name);
        let error = lock.unlock().unwrap_err();
        assert_eq!(error.not_held(), Some(&NotHeld::Free), "{error}");
        assert_eq!(error.kind(), ErrorKind::NotHeld);
        assert!(error.is_not_held() && !error.is_lost() && !error.is_retryable() && !error.outcome_unknown());
        assert_eq!(error.lock_name(), Some(lock.name()));
        assert_eq!(error.action(), "unlock");
        lock.lock().unwrap();
        lock.unlock().unwrap();
        assert_eq!(lock.unlock().unwrap_err().not_held(), Some(&NotHeld::Free), "an unlock without a lock");
    }
});

contract!(unlocking_by_another_owner_names_the_holder_and_changes_nothing, |store| {
    for (kind, name, [client, stranger]) in store.each() {
        let lock = (kind.make)(&client, &name);
        let held = Holding::take(&lock);
        for other in [lock.clone(), (kind.make)(&stranger, &name)] {
            let error = other.unlock().unwrap_err();
            let Some(NotHeld::HeldBy(holder)) = error.not_held() else { panic!("{error}") };
            assert_eq!(*holder, held.owner().to_string(), "{}", kind.label);
            assert!(error.is_not_held() && !error.is_lost());
            assert!(!other.try_lock().unwrap());
        }
        assert!(lock.is_locked().unwrap());
        held.release(); // panics if the stranger's call released this hold
    }
});

contract!(unlocking_an_expired_hold_reports_expiry_once, |store| {
    for (kind, name, [client]) in store.each() {
        let lock = (kind.make)(&client, &name);
        lock.lock_with_lease(ms(60)).unwrap();
        comes_true_within(store.freed_within(ms(60)) + SLACK, || !lock.is_locked().unwrap());
        let error = lock.unlock().unwrap_err();
        assert_eq!(error.not_held(), Some(&NotHeld::Expired), "{error}");
        assert!(error.is_lost() && error.is_not_held() && !error.is_retryable());
        assert_eq!(error.lock_name(), Some(lock.name()));
        assert_eq!(lock.unlock().unwrap_err().not_held(), Some(&NotHeld::Free));
        let guard = lock.acquire_with(&leased(ms(60))).unwrap().unwrap();
        comes_true_within(ms(60) + SLACK, || guard.state() == HoldState::Lost);
        let error = guard.unlock().unwrap_err();
        assert!(error.is_lost() && error.is_not_held(), "{error}");
        assert_eq!(error.not_held(), Some(&NotHeld::Expired));
        assert_eq!((error.lock_name(), error.action()), (Some(lock.name()), "unlock"));
    }
});

contract!(every_unlock_of_an_expired_reentered_hold_says_expired, |store| {
    let lock = store.client().get_lock(fresh("levels"));
    // The lease is long enough for three acquires on a slow store.
    (0..3).for_each(|_| lock.lock_with_lease(ms(2_000)).unwrap());
    comes_true_within(store.freed_within(ms(2_000)) + SLACK, || !lock.is_locked().unwrap());
    for _ in 0..3 {
        assert_eq!(lock.unlock().unwrap_err().not_held(), Some(&NotHeld::Expired));
    }
    assert_eq!(lock.unlock().unwrap_err().not_held(), Some(&NotHeld::Free));
});

contract!(force_unlock_frees_the_lock_from_any_holder, |store| {
    for (kind, name, [client, stranger]) in store.each() {
        let (lock, operator) = ((kind.make)(&client, &name), (kind.make)(&stranger, &name));
        assert!(!operator.force_unlock().unwrap(), "the lock was free");
        lock.lock().unwrap();
        if kind.traits.reentrant {
            lock.lock().unwrap();
        }
        assert!(elsewhere(|| operator.force_unlock().unwrap()));
        assert!(!operator.is_locked().unwrap());
        assert!(!operator.force_unlock().unwrap(), "the lock is free");
        Holding::take(&operator).release();
        assert_eq!(lock.unlock().unwrap_err().not_held(), Some(&NotHeld::Expired), "{}", kind.label);
    }
});

contract!(force_unlock_wakes_the_waiters, |store| {
    for kind in &store.kinds {
        let name = fresh(kind.label);
        let clients = (store.client(), store.client());
        for forced_by in [&clients.0, &clients.1] {
            let lock = (kind.make)(&clients.0, &name);
            lock.lock().unwrap();
            let waiter = Waiter::start(turn((kind.make)(&clients.1, &name)));
            let before = now();
            assert!((kind.make)(forced_by, &name).force_unlock().unwrap());
            let (_, had) = waiter.returns_within(LONG);
            let limit = if kind.traits.wakes { ms(50) } else { kind.traits.polls_within };
            assert!(
                had.duration_since(before) <= limit + slack_since(before),
                "{}: {:?}",
                kind.label,
                had.duration_since(before)
            );
            assert!(lock.unlock().unwrap_err().is_lost());
        }
    }
});

contract!(force_unlock_is_reported_to_the_holder, |store| {
    for kind in &store.kinds {
        let name = fresh(kind.label);
        let (client, stranger) = (store.client_with_lease(RENEWED), store.client());
        let guard = (kind.make)(&client, &name).acquire().unwrap();
        let lost = guard.lost();
        guard.check().unwrap();
        assert!((kind.make)(&stranger, &name).force_unlock().unwrap());
        let loss = receive(&lost, RENEWED / 3 + SLACK).expect("the holder got no loss report");
        assert_eq!(loss.reason, leasehold::LossReason::Gone);
        assert_eq!((loss.name.as_str(), loss.owner), (name.as_str(), guard.owner()));
        assert_eq!(guard.state(), leasehold::HoldState::Lost);
        assert!(guard.check().unwrap_err().is_lost());
        assert_eq!(guard.unlock().unwrap_err().not_held(), Some(&NotHeld::Expired));
    }
});

contract!(a_forced_out_holder_does_not_unlock_its_successor, |store| {
    for (kind, name, [client, stranger]) in store.each() {
        for (heir, operator) in [(&client, &client), (&stranger, &stranger)] {
            let lock = (kind.make)(&client, &name);
            let (by_unlock, by_drop) =
                (lock.acquire().unwrap(), kind.traits.reentrant.then(|| lock.acquire()));
            assert!((kind.make)(operator, &name).force_unlock().unwrap());
            let held = Holding::take(&(kind.make)(heir, &name));
            drop(by_drop.transpose().unwrap());
            assert!(by_unlock.unlock().unwrap_err().is_lost());
            assert!(lock.is_locked().unwrap());
            assert!(lock.unlock().unwrap_err().is_not_held());
            held.release(); // panics if the old holder's call released this hold
        }
    }
});

contract!(a_thread_can_lock_in_its_thread_local_destructors, |store| {
    /// A thread-local whose destructor uses locks after the crate's own thread-locals are destroyed.
    struct Last {
        before: RedisLock,
        within: RedisLock,
        tell: Sender<Result<u32>>,
    }
    impl Drop for Last {
        fn drop(&mut self) {
            let again = || {
                self.within.lock()?;
                self.within.lock()?; // re-enters only if the owner is still the same
                let levels = self.within.hold_count()?;
                self.within.unlock()?;
                self.within.unlock()?;
                self.within.acquire()?.unlock()?;
                Ok(levels)
            };
            // A panic in this destructor would abort the process.
            for outcome in [self.before.unlock().map(|()| 1), again()] {
                self.tell.send(outcome).ok();
            }
        }
    }
    // This toolchain destroys thread-locals in any order: the owner number may be gone before `LAST` is.
    if cfg!(all(windows, target_env = "gnu")) {
        return;
    }
    std::thread_local! {
        static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
    }
    let client = store.client();
    let (before, within) = (client.get_lock(fresh("before")), client.get_lock(fresh("within")));
    let (tell, told) = unbounded();
    let last = Last { before: before.clone(), within: within.clone(), tell };
    let taken = before.clone();
    let thread = crate::support::start(move || {
        LAST.set(Some(last));
        taken.lock()
    });
    thread.join().unwrap().unwrap();
    let outcomes = [receive(&told, LONG).unwrap(), receive(&told, LONG).unwrap()];
    // Both calls may fail on a store whose driver itself needs thread-locals.
    if outcomes.iter().all(|outcome| matches!(outcome, Err(error) if error.kind() == ErrorKind::Resource)) {
        return;
    }
    assert_eq!(outcomes.map(Result::unwrap), [1, 2], "levels");
    assert!(!before.is_locked().unwrap() && !within.is_locked().unwrap());
});
