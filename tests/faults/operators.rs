//! An operator changes or deletes a lock's key while a client holds the lock.

use super::world::{L, P, R, T};
use crate::support::observer::Event;
use crate::support::prelude::*;

scenario!(a_lock_key_removed_by_an_operator_is_reported_lost, |world| {
    let ways: [&[&str]; 6] = [
        &["DEL", "lock"],
        &["UNLINK", "lock"],
        &["FLUSHALL"],
        &["RENAME", "lock", "test:renamed"],
        &["PEXPIRE", "lock", "1"],
        &["HSET", "lock", "somebody:1", "1"],
    ];
    for way in ways {
        let (client, seen) = world.watched();
        let lock = client.get_lock("lock");
        let guard = lock.acquire().unwrap();
        let nested = lock.acquire().unwrap();
        if way[0] == "HSET" {
            world.does(&["DEL", "lock"]); // so that HSET leaves only the other owner
        }
        let taken = now();
        world.does(way);
        if way[0] == "HSET" {
            world.does(&["PEXPIRE", "lock", "5000"]);
        }
        comes_within(taken, R + T, "the loss", || guard.check().is_err() && nested.check().is_err());
        seen.wait_for("the loss", |event| matches!(event, Event::Lost(_)));
        let left = world.fields("lock");
        assert!(nested.unlock().unwrap_err().is_lost(), "{way:?}");
        assert!(guard.unlock().unwrap_err().is_lost(), "{way:?}");
        assert_eq!(world.fields("lock"), left, "{way:?}: an unlock without a hold changes nothing");
        assert_eq!(seen.losses(), 1, "{way:?}: {:?}", seen.events());
        world.does(&["DEL", "lock", "test:renamed"]);
    }
});

scenario!(a_reentry_of_a_deleted_lock_is_a_new_hold, |world| {
    let (client, other) = (world.client(), world.direct());
    let lock = client.get_fenced_lock("re-entered");
    let outer = lock.acquire().unwrap();
    let middle = lock.acquire().unwrap();
    world.does(&["DEL", "re-entered"]);
    let new = lock.acquire().unwrap();
    world.assert_held("re-entered", new.owner(), 1);
    assert!(new.fencing_token() > outer.fencing_token());
    assert!(outer.check().is_err() && middle.check().is_err() && new.check().is_ok());
    drop(middle);
    assert!(outer.unlock().unwrap_err().is_lost());
    throughout(T, || world.fields("re-entered").len() == 1);
    world.assert_held("re-entered", new.owner(), 1);
    world.does(&["DEL", "re-entered"]);
    let theirs = other.get_fenced_lock("re-entered").acquire().unwrap();
    assert!(!lock.try_lock().unwrap());
    assert!(!lock.try_lock_for(ms(200)).unwrap());
    world.assert_held("re-entered", theirs.owner(), 1);
    assert!(new.check().is_err());
    theirs.unlock().unwrap();
    let last = lock.acquire().unwrap();
    world.assert_held("re-entered", last.owner(), 1);
    assert!(new.unlock().unwrap_err().is_lost());
    world.assert_held("re-entered", last.owner(), 1);
    last.unlock().unwrap();
    assert!(world.is_free("re-entered"));
});

scenario!(a_lock_whose_expiry_an_operator_removed_gets_one_again, |world| {
    let (client, seen) = world.watched();
    let guard = client.get_lock("persisted").acquire().unwrap();
    world.does(&["PERSIST", "persisted"]);
    let begun = now();
    comes_within(begun, R + T, "a new end", || world.ttl("persisted") > 0);
    throughout(L, || guard.check().is_ok());
    let inner = client.get_lock("persisted").acquire().unwrap();
    world.does(&["PERSIST", "persisted"]);
    inner.unlock().unwrap();
    assert!(world.ttl("persisted") > 0);
    world.does(&["PERSIST", "persisted"]);
    guard.unlock().unwrap();
    assert!(world.is_free("persisted"));
    assert_eq!(seen.losses(), 0);
});

scenario!(a_lease_shortened_by_an_operator_is_renewed, |world| {
    let client = world.client();
    let guard = client.get_lock("shortened").acquire().unwrap();
    world.does(&["PEXPIRE", "shortened", "1200"]);
    let begun = now();
    comes_within(begun, R + T, "the renewal", || world.ttl("shortened") > 1200);
    guard.check().unwrap();
    guard.unlock().unwrap();
});

scenario!(lock_calls_leave_other_programs_hash_fields_unchanged, |world| {
    let client = world.client();
    let lock = client.get_lock("foreign");
    world.does(&["HSET", "foreign", "u:1", "abc", "u:2", "9223372036854775807"]);
    world.does(&["PEXPIRE", "foreign", "3000"]);
    let before = world.fields("foreign");
    assert!(!lock.try_lock().unwrap());
    assert!(!lock.is_held_by_current_thread().unwrap());
    assert_eq!(lock.hold_count().unwrap(), 0);
    let error = lock.unlock().unwrap_err();
    assert!(matches!(error.not_held(), Some(NotHeld::HeldBy(owner)) if !owner.contains(':')), "{error}");
    fails(lock.force_unlock(), ErrorKind::WrongType);
    assert_eq!(world.fields("foreign"), before);
    assert!(world.ttl("foreign") > 0);
    world.does(&["DEL", "foreign"]);
    lock.lock_with_lease(Duration::from_secs(5)).unwrap();
    let owner = client.current_owner().to_string();
    for nonsense in ["abc", "1.5", "9223372036854775808", "-1", ""] {
        world.does(&["HSET", "foreign", &owner, nonsense]);
        let error = lock.hold_count().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongType, "{nonsense:?}: {error}");
        assert_eq!(world.fields("foreign")[&owner], nonsense);
    }
    // A release does not read the stored count, so a text there does no harm.
    lock.unlock().unwrap();
    assert!(world.is_free("foreign"));
});

scenario!(a_key_of_another_type_fails_every_call, |world| {
    let client = world.builder().command_timeout(LONG).build().unwrap();
    world.does(&["SET", "test:string", "data"]);
    let lock = client.get_lock("test:string");
    let begun = now();
    let errors = [
        lock.lock().unwrap_err(),
        lock.try_lock().unwrap_err(),
        lock.try_lock_for(L).unwrap_err(),
        lock.acquire().map(drop).unwrap_err(),
        lock.force_unlock().map(drop).unwrap_err(),
        lock.hold_count().map(drop).unwrap_err(),
        client.get_fenced_lock("test:string").lock().unwrap_err(),
    ];
    within(begun, T, "seven refusals");
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        assert!(!error.is_retryable() && !error.outcome_unknown(), "{error}");
    }
    assert_eq!(world.run::<String>(&["GET", "test:string"]), "data");
    assert_eq!(world.run::<i64>(&["EXISTS", "redisson_lock_token:{test:string}"]), 0, "no fence is used up");
    let guard = lock_on_hash(world);
    fails(client.get_token_lock("hash").lock(), ErrorKind::WrongType);
    guard.unlock().unwrap();
});

fn lock_on_hash(world: &super::world::World) -> leasehold::Guard {
    world.client().get_lock("hash").acquire().unwrap()
}

scenario!(a_waiter_whose_owner_number_changes_has_one_queue_place, |world| {
    let held = world.direct().get_fair_lock("queue").acquire_with(&leased(LONG)).unwrap().unwrap();
    let client = world.client();
    let waiter = call(move || {
        // While the thread holds `taken`, its owner number stays. The loss of `taken` changes the number.
        client.get_lock("taken").lock().unwrap();
        client.get_fair_lock("queue").acquire().unwrap().unlock().unwrap();
    });
    let places = || world.run::<Vec<String>>(&["LRANGE", "redisson_lock_queue:{queue}", "0", "-1"]);
    assert!(eventually(LONG, || places().len() == 1));
    let before = places();
    world.does(&["DEL", "taken"]);
    comes_within(now(), R + P + T, "a place under another number", || {
        let places = places();
        assert!(places.len() <= 1, "{places:?}");
        places.len() == 1 && places != before
    });
    throughout(P, || places().len() == 1);
    let freed = now();
    held.unlock().unwrap();
    waiter.returns_within(freed, ms(50), "the waiter's turn");
});
