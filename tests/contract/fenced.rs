//! Fencing tokens: the token of each grant is larger than all earlier tokens of the lock.

use std::sync::Mutex;

use crate::support::prelude::*;

contract!(every_acquire_method_of_a_fenced_lock_gives_a_token, |store| {
    let lock = store.client().get_fenced_lock(fresh("ways"));
    let mut tokens = vec![lock.lock_and_get_token().unwrap()];
    lock.unlock().unwrap();
    tokens.push(lock.try_lock_and_get_token(ms(10)).unwrap().unwrap());
    lock.unlock().unwrap();
    tokens.push(lock.acquire().unwrap().fencing_token().unwrap());
    tokens.push(lock.acquire_with(&leased(ms(5_000))).unwrap().unwrap().fencing_token().unwrap());
    tokens.push(lock.try_acquire().unwrap().unwrap().fencing_token().unwrap());
    tokens.push(lock.try_acquire_for(ms(10)).unwrap().unwrap().fencing_token().unwrap());
    tokens.push(lock.acquire_owned().unwrap().fencing_token().unwrap());
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert_eq!(tokens[0].to_string(), tokens[0].get().to_string());
});

contract!(reentry_keeps_the_token, |store| {
    let lock = store.client().get_fenced_lock(fresh("reentry"));
    let token = lock.lock_and_get_token().unwrap();
    assert_eq!(lock.lock_and_get_token().unwrap(), token);
    assert_eq!(lock.try_lock_and_get_token(ms(10)).unwrap(), Some(token));
    let guard = lock.acquire().unwrap();
    assert_eq!(guard.fencing_token(), Some(token));
    assert_eq!(lock.hold_count().unwrap(), 4);
    guard.unlock().unwrap();
    (0..3).for_each(|_| lock.unlock().unwrap());
    assert!(lock.lock_and_get_token().unwrap() > token);
    lock.unlock().unwrap();
});

contract!(the_token_of_a_holder_is_shown, |store| {
    let name = fresh("shown");
    let guard = store.client().get_fenced_lock(&name).acquire().unwrap();
    let seen = store.client().inspect(&name).unwrap();
    assert_eq!(seen.fencing_token, guard.fencing_token(), "{seen}");
    guard.unlock().unwrap();
});

contract!(a_plain_and_a_fenced_handle_are_one_lock, |store| {
    let (name, [client, stranger]) = store.clients("one");
    let (plain, fenced) = (client.get_lock(&name), client.get_fenced_lock(&name));
    let held = Holding::take(&plain);
    assert_eq!(fenced.try_lock_and_get_token(ms(10)).unwrap(), None);
    assert!(!stranger.get_fenced_lock(&name).try_lock().unwrap());
    held.release();
    let held = Holding::take(&fenced);
    assert!(!plain.try_lock().unwrap());
    assert!(!stranger.get_lock(&name).try_lock().unwrap());
    held.release();
    fenced.lock_and_get_token().unwrap();
    plain.lock().unwrap();
    assert_eq!((plain.hold_count().unwrap(), fenced.hold_count().unwrap()), (2, 2));
    fenced.unlock().unwrap();
    plain.unlock().unwrap();
    assert!(!fenced.is_locked().unwrap());
});

contract!(a_fenced_reentry_of_a_plain_hold_gets_a_token, |store| {
    let (name, [client]) = store.clients("late");
    let first = client.get_fenced_lock(&name).acquire().unwrap().fencing_token();
    client.get_lock(&name).lock().unwrap();
    let token = client.get_fenced_lock(&name).lock_and_get_token().unwrap();
    assert!(Some(token) > first);
    assert_eq!(client.get_fenced_lock(&name).lock_and_get_token().unwrap(), token);
    (0..3).for_each(|_| client.get_lock(&name).unlock().unwrap());
    assert!(client.get_fenced_lock(&name).acquire().unwrap().fencing_token() > Some(token));
});

contract!(a_reentry_gets_a_smaller_token_than_the_next_grant, |store| {
    let (name, [client, other]) = store.clients("behind");
    client.get_lock(&name).lock().unwrap();
    let waiter = Waiter::on(other.get_fenced_lock(&name), move |lock| {
        let token = lock.lock_and_get_token().unwrap();
        lock.unlock().unwrap();
        token
    });
    let token = client.get_fenced_lock(&name).lock_and_get_token().unwrap();
    (0..2).for_each(|_| client.get_lock(&name).unlock().unwrap());
    let (next, _) = waiter.returns_within(LONG);
    assert!(next > token, "{next} after {token}");
});

contract!(tokens_increase_after_expiry_and_after_a_forced_release, |store| {
    let (name, [client, stranger]) = store.clients("over");
    let expired = client.get_fenced_lock(&name).acquire_with(&leased(ms(50))).unwrap().unwrap();
    let next = stranger.get_fenced_lock(&name).acquire().unwrap();
    assert!(next.fencing_token() > expired.fencing_token());
    assert!(client.get_fenced_lock(&name).force_unlock().unwrap());
    let last = client.get_fenced_lock(&name).acquire().unwrap();
    assert!(last.fencing_token() > next.fencing_token());
    last.unlock().unwrap();
});

contract!(tokens_of_contending_threads_increase_in_order_of_grants, |store| {
    let (name, clients) = store.clients::<4>("contended");
    let granted = Mutex::new(Vec::new());
    side_by_side(clients.iter().chain(&clients), |client| {
        let lock = client.get_fenced_lock(&name);
        for _ in 0..10 {
            let guard = lock.acquire().unwrap();
            granted.lock().unwrap().push(guard.fencing_token().unwrap());
            guard.unlock().unwrap();
        }
    });
    let granted = granted.into_inner().unwrap();
    assert_eq!(granted.len(), 80);
    assert!(granted.is_sorted_by(|a, b| a < b), "{granted:?}");
    // Integers below 2^53 stay exact in JSON and in the scripts of Redisson.
    assert!(granted.last().unwrap().get() < 1 << 53);
});
