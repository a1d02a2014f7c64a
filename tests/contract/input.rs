//! Unusable names, leases and options are refused before the client sends a request.

use leasehold::{Error, MAX_NAME_LEN, Result};

use crate::support::prelude::*;

const NO_LEASES: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_nanos(999_999),
    Duration::from_millis(u64::MAX),
    Duration::from_secs(u64::MAX),
    Duration::from_secs(101 * 366 * 24 * 3_600),
    Duration::MAX,
];

fn refused(error: &Error, action: &str, lock: &RedisLock) {
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(error.action(), action, "{error}");
    if !lock.name().is_empty() {
        let named = error.lock_name().unwrap_or_else(|| panic!("the error names no lock: {error}"));
        assert!(lock.name().starts_with(named.trim_end_matches('…')), "{error}");
    }
    assert!(!error.is_retryable() && !error.is_lost() && !error.outcome_unknown());
}

contract!(unusable_leases_are_refused_without_leftovers, |store| {
    let client = store.client();
    for kind in &store.kinds {
        let lock = (kind.make)(&client, &fresh(kind.label));
        for lease in NO_LEASES {
            refused(&lock.lock_with_lease(lease).unwrap_err(), "lock_with_lease", &lock);
            let tried = lock.try_lock_for_with_lease(ms(10), lease);
            refused(&tried.unwrap_err(), "try_lock_for_with_lease", &lock);
            refused(&lock.acquire_with(&leased(lease)).unwrap_err(), "acquire_with", &lock);
            let tried = lock.acquire_owned_with(&leased(lease).wait(Duration::ZERO));
            refused(&tried.unwrap_err(), "acquire_owned_with", &lock);
            assert!(!lock.is_locked().unwrap(), "{lease:?}");
            assert_eq!(lock.remaining_lease().unwrap(), None, "{lease:?}");
        }
    }
});

contract!(a_refused_lease_does_not_disturb_a_hold, |store| {
    let lock = store.client().get_lock(fresh("held"));
    let taken = now();
    lock.lock_with_lease(ms(10_000)).unwrap();
    for lease in NO_LEASES {
        fails(lock.lock_with_lease(lease), ErrorKind::InvalidInput);
    }
    assert_eq!(lock.hold_count().unwrap(), 1);
    let remaining = lock.remaining_lease().unwrap();
    let expected = ms(10_000).saturating_sub(taken.elapsed());
    assert!(remaining.unwrap_or_default() + ms(1) >= expected, "{remaining:?}, expected {expected:?}");
    lock.unlock().unwrap();
});

pub(crate) fn every_call(lock: &RedisLock) -> Vec<(&'static str, Result<()>)> {
    let interrupt = Interrupt::new();
    let options = AcquireOptions::new().deadline(now() + ms(10));
    vec![
        ("lock", lock.lock()),
        ("lock_with_lease", lock.lock_with_lease(ms(100))),
        ("lock_interruptibly", lock.lock_interruptibly(&interrupt)),
        ("try_lock", lock.try_lock().map(drop)),
        ("try_lock_for", lock.try_lock_for(ms(10)).map(drop)),
        ("try_lock_for_with_lease", lock.try_lock_for_with_lease(ms(10), ms(100)).map(drop)),
        ("unlock", lock.unlock()),
        ("force_unlock", lock.force_unlock().map(drop)),
        ("is_locked", lock.is_locked().map(drop)),
        ("is_held_by_current_thread", lock.is_held_by_current_thread().map(drop)),
        ("hold_count", lock.hold_count().map(drop)),
        ("remaining_lease", lock.remaining_lease().map(drop)),
        ("acquire", lock.acquire().map(drop)),
        ("try_acquire", lock.try_acquire().map(drop)),
        ("try_acquire_for", lock.try_acquire_for(ms(10)).map(drop)),
        ("acquire_owned", lock.acquire_owned().map(drop)),
        ("try_acquire_owned_for", lock.try_acquire_owned_for(ms(10)).map(drop)),
        ("try_acquire_owned", lock.try_acquire_owned().map(drop)),
        ("acquire_with", lock.acquire_with(&options).map(drop)),
        ("acquire_owned_with", lock.acquire_owned_with(&options).map(drop)),
        ("with_lock", options.with_lock(lock, |_| ()).map(drop)),
    ]
}

contract!(every_call_refuses_an_unusable_name, |store| {
    let client = store.client();
    let too_long = "x".repeat(MAX_NAME_LEN + 1);
    let too_many_bytes = "鍵".repeat(MAX_NAME_LEN / 3 + 1);
    let bad = [
        "",
        too_long.as_str(),
        too_many_bytes.as_str(),
        "redisson_lock__channel",
        "redisson_lock__channel:{a}",
        "redisson_lock_token:{a}",
        "redisson_lock_queue:{a}",
        "redisson_lock_timeout:{a}",
        "redisson_unlock_latch:{a}:b",
        "leasehold_rwlock_waiting:{a}",
        "{a}:timeout",
        "a{b}c:timeout",
        "{a}:6b3a1c58-1f6e-4c0e-9a5e-2f6f1c9d7e11:1:rwlock_timeout:1",
        "leasehold_ring_epoch",
    ];
    let begun = now();
    for name in bad {
        for kind in &store.kinds {
            let lock = (kind.make)(&client, name); // making the handle neither fails nor sends a request
            assert_eq!(lock.name(), name);
            for (action, result) in every_call(&lock) {
                refused(&result.unwrap_err(), action, &lock);
            }
        }
        let lock = client.get_fenced_lock(name);
        refused(&lock.lock_and_get_token().unwrap_err(), "lock_and_get_token", &lock);
        refused(&lock.try_lock_and_get_token(ms(10)).unwrap_err(), "try_lock_and_get_token", &lock);
        fails(client.with_lock(name, |_| ()), ErrorKind::InvalidInput);
    }
    assert!(begun.elapsed() < ms(1_000) + slack_since(begun), "a refused call waited: {:?}", begun.elapsed());
});

contract!(key_prefix_or_map_names_can_make_a_name_unusable, |store| {
    let long = store.client_with(|options| options.key_prefix("p".repeat(MAX_NAME_LEN)));
    let emptied = store.client_with(|options| options.map_names(|_| String::new()));
    let reserved = store.client_with(|options| options.key_prefix("redisson_lock_token:"));
    for client in [long, emptied, reserved] {
        let lock = client.get_lock("a");
        for (action, result) in every_call(&lock) {
            refused(&result.unwrap_err(), action, &lock);
        }
    }
});
