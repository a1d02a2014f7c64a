//! What a kind of lock says it can do is what it does, and it does no more.

use std::time::Duration;

use leasehold::{ErrorKind, Lock};

use super::harness::{Store, fresh};
use super::tools::{SLACK, Waiter, elsewhere, median, ms, now, slack_since};

contracts!(
    a_kind_is_reentrant_exactly_if_it_says_so,
    a_kind_is_fenced_exactly_if_it_says_so,
    a_release_wakes_other_clients_exactly_if_the_kind_says_so,
    every_kind_is_a_lock_to_generic_code,
    a_hold_survives_a_restart_exactly_if_the_store_says_so,
);

fn a_kind_is_reentrant_exactly_if_it_says_so(store: &Store) {
    for kind in &store.kinds {
        let client = store.client();
        let lock = (kind.make)(&client, &fresh(kind.label));
        lock.lock().unwrap();
        assert_eq!(lock.try_lock().unwrap(), kind.traits.reentrant, "{}", kind.label);
        if kind.traits.reentrant {
            lock.lock().unwrap();
            assert_eq!(lock.hold_count().unwrap(), 3, "{}", kind.label);
            lock.unlock().unwrap();
            lock.unlock().unwrap();
        } else {
            let begun = now();
            assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::WouldDeadlock, "{}", kind.label);
            assert!(begun.elapsed() < slack_since(begun));
            assert_eq!(lock.hold_count().unwrap(), 1, "{}", kind.label);
        }
        elsewhere(|| assert!(!lock.try_lock().unwrap()));
        lock.unlock().unwrap();
        assert!(!lock.is_locked().unwrap(), "{}", kind.label);
    }
}

fn a_kind_is_fenced_exactly_if_it_says_so(store: &Store) {
    for kind in &store.kinds {
        let client = store.client();
        let guard = (kind.make)(&client, &fresh(kind.label)).acquire().unwrap();
        assert_eq!(guard.fence().is_some(), kind.traits.fenced, "{}", kind.label);
        guard.unlock().unwrap();
    }
}

/// Each round measures from just before the release to the moment at which the waiter has the lock.
fn a_release_wakes_other_clients_exactly_if_the_kind_says_so(store: &Store) {
    for kind in &store.kinds {
        let (client, other) = (store.client(), store.client());
        let name = fresh(kind.label);
        let (lock, waiting) = ((kind.make)(&client, &name), (kind.make)(&other, &name));
        let begun = now();
        let rounds: Vec<Duration> = (0..11)
            .map(|_| {
                lock.lock().unwrap();
                let waiter = Waiter::start({
                    let waiting = waiting.clone();
                    move || {
                        waiting.lock().unwrap();
                        let had = now();
                        waiting.unlock().unwrap();
                        had
                    }
                });
                let before = now();
                lock.unlock().unwrap();
                let (had, _) = waiter.returns_within(kind.traits.polls_within + SLACK);
                had.duration_since(before)
            })
            .collect();
        let worst = *rounds.iter().max().unwrap();
        if kind.traits.wakes {
            // The promise is 50 ms. A wake-up that was lost would cost the rest of a safety poll of a second; the
            // worst round may be late for the machine's reasons, but not that late.
            assert!(median(rounds.clone()) <= ms(50), "{}: {rounds:?}", kind.label);
            assert!(worst <= ms(50) + slack_since(begun), "{}: {rounds:?}", kind.label);
        } else {
            // It comes as polls come: each within one, and in all later than a woken one would.
            assert!(worst <= kind.traits.polls_within + slack_since(begun), "{}: {rounds:?}", kind.label);
            assert!(rounds.iter().sum::<Duration>() >= ms(80), "{}: {rounds:?}", kind.label);
        }
    }
}

fn every_kind_is_a_lock_to_generic_code(store: &Store) {
    fn one_visit(lock: &impl Lock) {
        lock.lock().unwrap();
        lock.unlock().unwrap();
        lock.lock_interruptibly(&leasehold::Interrupt::new()).unwrap();
        lock.unlock().unwrap();
        assert!(lock.try_lock().unwrap());
        lock.unlock().unwrap();
        assert!(lock.try_lock_for(ms(10)).unwrap());
        lock.unlock().unwrap();
        assert!(lock.unlock().unwrap_err().is_not_held());
    }
    let client = store.client();
    one_visit(&client.lock(&fresh("generic")));
    one_visit(&client.fenced_lock(&fresh("generic")));
    one_visit(&client.token_lock(&fresh("generic")));
    let mixed: [Box<dyn Lock>; 2] =
        [Box::new(client.lock(&fresh("boxed"))), Box::new(client.fenced_lock(&fresh("boxed")))];
    for lock in &mixed {
        lock.lock().unwrap();
        lock.unlock().unwrap();
    }
}

fn a_hold_survives_a_restart_exactly_if_the_store_says_so(store: &Store) {
    let (before, restart) = (store.restartable)();
    let name = fresh("restart");
    let client = before.client();
    let guard = client.fenced_lock(&name).acquire().unwrap();
    let after = restart();
    let rival = after.client();
    assert_eq!(rival.lock(&name).is_locked().unwrap(), store.survives_restart);
    if store.survives_restart {
        assert!(!rival.lock(&name).try_lock().unwrap());
        assert!(rival.fenced_lock(&name).try_lock_and_get_token(ms(0)).unwrap().is_none());
        guard.check().unwrap();
        let fence = guard.fence();
        guard.unlock().unwrap();
        assert!(rival.fenced_lock(&name).acquire().unwrap().fence() > fence);
    } else {
        // Tokens go up all the same.
        assert!(rival.fenced_lock(&name).acquire().unwrap().fence() > guard.fence());
    }
}
