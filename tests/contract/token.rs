//! Token locks where they differ from other kinds.

use leasehold::ObjectKind;

use crate::support::prelude::*;

contract!(waiting_for_ones_own_token_lock_is_a_deadlock_error, needs(Token), |store| {
    let lock = store.client().get_token_lock(fresh("own"));
    lock.lock().unwrap();
    let begun = now();
    let interrupt = leasehold::Interrupt::new();
    for error in [
        lock.lock().unwrap_err(),
        lock.lock_with_lease(ms(1_000)).unwrap_err(),
        lock.lock_interruptibly(&interrupt).unwrap_err(),
        lock.acquire().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::WouldDeadlock, "{error}");
        assert_eq!(error.lock_name(), Some(lock.name()));
    }
    assert!(!lock.try_lock().unwrap());
    assert!(!lock.try_lock_for(ms(0)).unwrap());
    assert!(lock.try_acquire().unwrap().is_none());
    assert!(begun.elapsed() < slack_since(begun));
    assert!(lock.is_held_by_current_thread().unwrap());
    lock.unlock().unwrap();
    lock.lock().unwrap();
    lock.unlock().unwrap();
});

// The store compares tokens and counts no levels. If two holds had the same token, a late release of the
// first hold could free the second.
contract!(every_token_hold_has_its_own_owner, needs(Token), |store| {
    let client = store.client();
    let lock = client.get_token_lock(fresh("tokens"));
    let mut owners = std::collections::HashSet::new();
    for _ in 0..5 {
        let guard = lock.acquire().unwrap();
        assert_eq!(guard.owner().client(), client.id());
        let error = elsewhere(|| lock.unlock().unwrap_err());
        assert_eq!(error.not_held(), Some(&NotHeld::HeldBy(guard.owner().to_string())));
        assert!(owners.insert(guard.owner()));
        guard.unlock().unwrap();
    }
});

contract!(a_token_lock_refuses_the_key_of_a_reentrant_lock, needs(Token), |store| {
    let (name, [client, stranger]) = store.clients("type");
    for holder in [client.get_lock(&name), leasehold::RedisLock::clone(&client.get_fenced_lock(&name))] {
        let held = Holding::take(&holder);
        for wrong in [client.get_token_lock(&name), stranger.get_token_lock(&name)] {
            refused_at_once(&wrong);
        }
        held.release();
    }
});

contract!(a_reentrant_lock_refuses_the_key_of_a_token_lock, needs(Token), |store| {
    let (name, [client, stranger]) = store.clients("type");
    let held = Holding::take(&client.get_token_lock(&name));
    for wrong in [client.get_lock(&name), stranger.get_lock(&name)] {
        refused_at_once(&wrong);
    }
    refused_at_once(&client.get_fenced_lock(&name));
    fails(stranger.get_fenced_lock(&name).lock_and_get_token(), ErrorKind::WrongType);
    held.release();
});

/// Asserts that calls fail at once because another kind of lock has the name, even calls that could wait.
fn refused_at_once(wrong: &leasehold::RedisLock) {
    let wrong = wrong.clone();
    let waiter = Waiter::start(move || {
        for error in [
            wrong.lock().unwrap_err(),
            wrong.try_lock().unwrap_err(),
            wrong.try_lock_for(ms(5_000)).unwrap_err(),
            wrong.lock_with_lease(ms(1_000)).unwrap_err(),
            wrong.acquire().unwrap_err(),
            wrong.try_acquire().unwrap_err(),
            wrong.acquire_owned().unwrap_err(),
            wrong.unlock().unwrap_err(),
            wrong.hold_count().unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
            assert_eq!(error.lock_name(), Some(wrong.name()));
            assert!(!error.is_retryable());
        }
    });
    waiter.returns_within(SLACK);
}

contract!(a_released_name_can_be_used_by_another_kind, needs(Token), |store| {
    let (name, [client]) = store.clients("kinds");
    for _ in 0..3 {
        for kind in &store.kinds {
            let guard = (kind.make)(&client, &name).acquire().unwrap();
            assert_eq!(guard.fencing_token().is_some(), kind.traits.fenced);
            guard.unlock().unwrap();
        }
    }
});

contract!(a_token_lock_is_shown_with_its_token, needs(Token), |store| {
    let (name, [client, other]) = store.clients("shown");
    let guard = client.get_token_lock(&name).acquire_with(&leased(ms(20_000))).unwrap().unwrap();
    let seen = other.inspect(&name).unwrap();
    assert_eq!(seen.kind, ObjectKind::TokenLock);
    assert_eq!(seen.holders[0].owner, guard.owner().to_string());
    assert!(seen.remaining.is_some_and(|left| left > ms(1_000) && left <= ms(20_000)), "{seen}");
    guard.unlock().unwrap();
    assert_eq!(other.inspect(&name).unwrap().kind, ObjectKind::Absent);
});
