//! Options of a lock handle: no re-entry, a maximum time for a hold, and waits by polling only.

use leasehold::Backoff;

use crate::support::prelude::*;

contract!(a_non_reentrant_lock_refuses_its_holder, |store| {
    let client = store.client();
    let lock = client.lock_builder(fresh("once")).non_reentrant().build();
    lock.lock().unwrap();
    let begun = now();
    let refused = lock.lock().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldDeadlock);
    fails(lock.try_lock_for(LONG), ErrorKind::WouldDeadlock);
    assert!(begun.elapsed() < slack_since(begun));
    assert!(!lock.try_lock().unwrap(), "a busy lock is no error");
    assert_eq!(lock.hold_count().unwrap(), 1);
    lock.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());
});

contract!(reentrant_and_non_reentrant_handles_share_a_lock, |store| {
    let (name, [client]) = store.clients("same");
    let (once, often) = (client.lock_builder(&name).non_reentrant().build(), client.get_lock(&name));
    once.lock().unwrap();
    assert!(often.try_lock().unwrap(), "this lock value may re-enter");
    assert_eq!(once.hold_count().unwrap(), 2);
    elsewhere(|| assert!(!once.try_lock().unwrap() && !often.try_lock().unwrap()));
    once.unlock().unwrap();
    often.unlock().unwrap();
    assert!(!often.is_locked().unwrap());
});

contract!(max_hold_ends_a_renewed_hold, |store| {
    let (client, other) = (store.client_with_lease(ms(3_000)), store.client());
    let name = fresh("most");
    let taken = now();
    let guard = client.lock_builder(&name).max_hold(ms(4_000)).build().acquire().unwrap();
    let waiter = Waiter::start(turn(other.get_lock(&name)));
    let loss = receive(&guard.lost(), ms(4_000) + SLACK).unwrap();
    assert_eq!(loss.reason, LossReason::HeldTooLong);
    assert!(taken.elapsed() >= ms(3_950), "{:?}", taken.elapsed());
    let (had, _) = waiter.returns_within(store.freed_within(SLACK * 2));
    assert!(had.duration_since(taken) >= ms(3_950));
    assert!(guard.check().unwrap_err().is_lost());
    assert!(guard.unlock().is_err());
});

contract!(a_reentry_does_not_extend_max_hold, |store| {
    let client = store.client_with_lease(ms(3_000));
    let name = fresh("again");
    let lock = client.lock_builder(&name).max_hold(ms(3_600)).build();
    let taken = now();
    let outer = lock.acquire().unwrap();
    let lost = outer.lost();
    let _inner = lock.acquire().unwrap();
    let _other = client.get_lock(&name).acquire_with(&leased(Duration::from_secs(60))).unwrap().unwrap();
    assert_eq!(receive(&lost, ms(3_600) + SLACK).unwrap().reason, LossReason::HeldTooLong);
    assert!(taken.elapsed() < ms(3_600) + slack_since(taken), "{:?}", taken.elapsed());
    crate::support::comes_true_within(store.freed_within(SLACK), || !lock.is_locked().unwrap());
});

contract!(a_max_hold_below_the_lease_shortens_the_lease, |store| {
    let (name, [client]) = store.clients("short");
    let taken = now();
    let guard = client.lock_builder(&name).max_hold(ms(300)).build_fenced().acquire().unwrap();
    assert!(guard.fencing_token().is_some());
    match store.client().get_lock(&name).remaining_lease().unwrap() {
        Some(remaining) => assert!(remaining <= ms(300), "{remaining:?}"),
        None => assert!(taken.elapsed() >= ms(300), "the lease ended after {:?}", taken.elapsed()),
    }
    assert_eq!(receive(&guard.lost(), ms(300) + SLACK).unwrap().reason, LossReason::HeldTooLong);
});

contract!(unusable_lock_options_are_refused, |store| {
    let (name, [client]) = store.clients("bad");
    for lock in [
        client.lock_builder(&name).max_hold(Duration::ZERO).build(),
        client.lock_builder(&name).spin(Backoff::constant(Duration::ZERO)).build(),
        client.lock_builder(&name).spin(Backoff::exponential(ms(2), ms(1))).build(),
    ] {
        assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::InvalidInput, "{lock:?}");
        assert_eq!(lock.try_acquire().unwrap_err().kind(), ErrorKind::InvalidInput, "{lock:?}");
    }
    assert!(!client.get_lock(&name).is_locked().unwrap());
});

contract!(a_spin_lock_excludes_and_wakes_subscribed_waiters, |store| {
    let (name, [client, other]) = store.clients("spin");
    let spin = client.get_spin_lock(&name);
    let guard = spin.acquire().unwrap();
    assert!(!other.get_lock(&name).try_lock().unwrap() && !other.get_spin_lock(&name).try_lock().unwrap());
    let waiter = Waiter::start(turn(other.get_lock(&name)));
    waiter.settle();
    let freed = now();
    guard.unlock().unwrap();
    let (had, _) = waiter.returns_within(SLACK * 4);
    // The waiter was notified: its safety poll would have come a second later.
    assert!(had.duration_since(freed) < ms(50) + slack_since(freed), "{:?}", had.duration_since(freed));
});

contract!(a_waiter_behind_a_spinning_waiter_is_not_delayed, |store| {
    if store.kinds.iter().any(|kind| kind.label == "lock" && kind.traits.fair) {
        return; // this store serves the spinning waiter first
    }
    let (name, [client, other]) = store.clients("pace");
    let held = Holding::take(&client.get_lock(&name));
    let spinning =
        Waiter::on(other.lock_builder(&name).spin(Backoff::constant(LONG * 6)).build(), move |lock| {
            lock.acquire().and_then(leasehold::Guard::unlock)
        });
    let waiter = Waiter::start(turn(other.get_lock(&name)));
    let freed = held.release();
    let (had, _) = waiter.returns_within(LONG);
    // The waiter behind the spinning one is served as if it were alone: by a message, or by its poll.
    let polls = store.kinds.iter().find(|kind| kind.label == "lock").unwrap().traits;
    let promised = if polls.wakes { ms(50) } else { polls.polls_within };
    assert!(had.duration_since(freed) < promised + slack_since(freed), "{:?}", had.duration_since(freed));
    spinning.returns_within(LONG).0.unwrap();
});
