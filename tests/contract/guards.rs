//! A guard releases its level (one acquire or re-entry) exactly once, however its scope ends.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::prelude::*;

contract!(dropping_a_guard_releases, |store| {
    for (kind, name, [client]) in store.each() {
        let lock = (kind.make)(&client, &name);
        for take in [
            |lock: &leasehold::RedisLock| lock.acquire().map(Some),
            |lock: &leasehold::RedisLock| lock.acquire_with(&leased(ms(9_000))),
        ] {
            let guard = take(&lock).unwrap().unwrap();
            elsewhere(|| assert!(!lock.try_lock().unwrap()));
            drop(guard);
            Holding::take(&lock).release();
        }
        drop(lock.try_acquire().unwrap().unwrap());
        drop(lock.try_acquire_for(ms(10)).unwrap().unwrap());
        drop(lock.acquire_owned().unwrap());
        drop(lock.try_acquire_owned_for(ms(10)).unwrap().unwrap());
        comes_true_within(SLACK, || !lock.is_locked().unwrap());
    }
});

contract!(a_guard_dropped_by_a_panic_releases, |store| {
    let (client, name) = (store.client(), fresh("panic"));
    let (lock, options) = (client.get_lock(&name), AcquireOptions::new());
    let once = options.clone().wait(Duration::ZERO);
    let ways: [&dyn Fn(); 5] = [
        &|| {
            let _outer = lock.acquire().unwrap();
            let _inner = lock.acquire().unwrap();
            assert_eq!(lock.hold_count().unwrap(), 2);
            quiet_panic()
        },
        &|| {
            let _owned = lock.acquire_owned().unwrap();
            quiet_panic()
        },
        &|| drop(client.with_lock(&name, |_| quiet_panic())),
        &|| drop(options.with_lock(&lock, |_| quiet_panic())),
        &|| drop(once.with_lock(&lock, |_| quiet_panic())),
    ];
    for way in ways {
        assert!(catch_unwind(AssertUnwindSafe(way)).is_err());
        comes_true_within(SLACK, || !lock.is_locked().unwrap());
        assert_eq!(lock.hold_count().unwrap(), 0);
        Holding::take(&lock).release();
    }
});

contract!(a_thread_local_guard_releases_when_its_thread_ends, |store| {
    thread_local! {
        static EARLY: RefCell<Option<Guard>> = const { RefCell::new(None) };
        static LATE: RefCell<Option<Guard>> = const { RefCell::new(None) };
    }
    let client = store.client();
    let (early, late) = (client.get_lock(fresh("early")), client.get_lock(fresh("late")));
    elsewhere(|| {
        // `EARLY` is registered before the library's thread-local, and `LATE` after it. In either order of
        // destruction, one of the two guards is dropped after the library's thread-local.
        EARLY.with_borrow(|_| ());
        late.lock().unwrap();
        late.unlock().unwrap();
        LATE.with_borrow_mut(|guard| *guard = Some(late.acquire().unwrap()));
        EARLY.with_borrow_mut(|guard| *guard = Some(early.acquire().unwrap()));
    });
    comes_true_within(SLACK, || !early.is_locked().unwrap() && !late.is_locked().unwrap());
});

contract!(a_guard_knows_its_lock_its_owner_and_its_state, |store| {
    let (name, [client]) = store.clients("knows");
    let guard = client.get_lock(&name).acquire().unwrap();
    assert_eq!(guard.name(), name);
    assert_eq!(guard.owner(), client.current_owner());
    assert_eq!(guard.owner().client(), client.id());
    assert_eq!(guard.state(), HoldState::Held);
    guard.check().unwrap();
    assert!(format!("{guard:?}").contains(&name));
    let inner = client.get_lock(&name).acquire().unwrap();
    assert_eq!(inner.owner(), guard.owner());
    drop(inner);
    let error = elsewhere(|| client.get_lock(&name).unlock().unwrap_err());
    assert_eq!(error.not_held(), Some(&NotHeld::HeldBy(guard.owner().to_string())));
    guard.unlock().unwrap();
});

contract!(the_remaining_time_goes_down_and_a_renewal_raises_it, |store| {
    let client = store.client_with_lease(RENEWED);
    let leased = client.get_lock(fresh("leased")).acquire_with(&leased(ms(400))).unwrap().unwrap();
    let mut least = ms(400);
    comes_true_within(ms(400) + SLACK, || {
        let left = leased.remaining();
        assert!(left <= least, "an explicit lease grew from {least:?} to {left:?}");
        least = left;
        left.is_zero()
    });
    assert!(leased.check().is_err());
    let renewed = client.get_lock(fresh("renewed")).acquire().unwrap();
    let mut last = renewed.remaining();
    assert!(last <= RENEWED);
    comes_true_within(RENEWED / 3 + SLACK, || {
        let left = renewed.remaining();
        let was_renewed = left > last;
        last = left;
        was_renewed
    });
    renewed.unlock().unwrap();
});

contract!(dropping_a_lost_guard_affects_no_other_holder, |store| {
    let (name, [client, stranger]) = store.clients("lost");
    for heir in [&client, &stranger] {
        let lock = client.get_lock(&name);
        let (dropped, unlocked) = (
            lock.acquire_with(&leased(ms(60))).unwrap().unwrap(),
            lock.acquire_with(&leased(ms(60))).unwrap().unwrap(),
        );
        let held = Holding::take(&heir.get_lock(&name));
        drop(dropped);
        assert!(unlocked.unlock().unwrap_err().is_lost());
        assert!(lock.is_locked().unwrap());
        held.release(); // panics if the dropped guard released this hold
    }
});

contract!(an_owned_guard_is_renewed_after_its_thread_has_ended, |store| {
    let client = store.client_with_lease(RENEWED);
    let lock = client.get_lock(fresh("owned"));
    let guard = elsewhere(|| lock.acquire_owned().unwrap());
    throughout(RENEWED + ms(200), || lock.is_locked().unwrap() && guard.check().is_ok());
    guard.unlock().unwrap();
});

contract!(with_lock_reports_a_hold_lost_during_the_work, |store| {
    let (name, [client, operator]) = store.clients("with");
    let result = client.with_lock(&name, |_| assert!(operator.get_lock(&name).force_unlock().unwrap()));
    assert!(result.unwrap_err().is_lost());
});
