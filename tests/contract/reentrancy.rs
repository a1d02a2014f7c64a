//! A hold has levels: each acquire adds a level, and each release ends one.

use leasehold::crossbeam_channel::RecvTimeoutError;

use crate::support::prelude::*;

contract!(nested_locking_shows_hold_counts_0_1_2_1_0, |store| {
    let (name, [client]) = store.clients("count");
    let (lock, rival) = (client.get_lock(&name), store.client().get_lock(&name));
    let seen = |count: u32| {
        assert_eq!(lock.hold_count().unwrap(), count);
        assert_eq!(lock.is_held_by_current_thread().unwrap(), count > 0);
        elsewhere(|| {
            assert_eq!(lock.is_locked().unwrap(), count > 0);
            assert!(!lock.is_held_by_current_thread().unwrap());
            assert_eq!(lock.hold_count().unwrap(), 0);
        });
        assert_eq!(rival.is_locked().unwrap(), count > 0);
        assert_eq!(rival.remaining_lease().unwrap().is_some(), count > 0);
        assert_eq!(rival.hold_count().unwrap(), 0);
    };
    seen(0);
    lock.lock().unwrap();
    seen(1);
    lock.lock().unwrap();
    seen(2);
    lock.unlock().unwrap();
    seen(1);
    lock.unlock().unwrap();
    seen(0);
});

contract!(every_acquire_method_reenters, |store| {
    let lock = store.client().get_lock(fresh("forms"));
    lock.lock().unwrap();
    assert!(lock.try_lock().unwrap());
    assert!(lock.try_lock_for(ms(10)).unwrap());
    assert!(lock.try_lock_for_with_lease(ms(10), ms(20_000)).unwrap());
    lock.lock_with_lease(ms(20_000)).unwrap();
    lock.lock_interruptibly(&leasehold::Interrupt::new()).unwrap();
    let guards = [
        lock.acquire().unwrap(),
        lock.try_acquire().unwrap().unwrap(),
        lock.try_acquire_for(ms(10)).unwrap().unwrap(),
        lock.acquire_with(&leased(ms(20_000)).wait(ms(10))).unwrap().unwrap(),
        lock.acquire_with(&AcquireOptions::new().deadline(crate::support::now())).unwrap().unwrap(),
    ];
    assert_eq!(lock.hold_count().unwrap(), 11);
    drop(guards);
    for left in (0..6).rev() {
        lock.unlock().unwrap();
        assert_eq!(lock.hold_count().unwrap(), left);
    }
    assert!(!lock.is_locked().unwrap());
});

contract!(lock_and_acquire_each_need_their_own_release, |store| {
    let lock = store.client().get_lock(fresh("mixed"));
    lock.lock().unwrap();
    let guard = lock.acquire().unwrap();
    lock.unlock().unwrap();
    assert_eq!(lock.hold_count().unwrap(), 1);
    assert!(guard.check().is_ok());
    drop(guard);
    assert_eq!(lock.hold_count().unwrap(), 0);
    assert!(!lock.is_locked().unwrap());
});

contract!(a_guard_holds_nothing_after_a_call_to_unlock, |store| {
    let lock = store.client().get_lock(fresh("mixed"));
    let guard = lock.acquire().unwrap();
    let early = guard.lost();
    lock.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());
    for lost in [early, guard.lost()] {
        assert_eq!(receive(&lost, SLACK), Err(RecvTimeoutError::Disconnected));
    }
    assert!(guard.check().is_err(), "a guard may not vouch for a lock that was released");
    assert_ne!(guard.state(), leasehold::HoldState::Held);
    assert!(guard.remaining().is_zero());
    let held = Holding::take(&lock);
    assert!(guard.check().is_err());
    assert!(guard.unlock().unwrap_err().is_not_held());
    assert!(lock.is_locked().unwrap());
    held.release();
});
