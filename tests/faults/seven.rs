//! Faults under which the locks of Redisson 4.7 failed when they were measured.

use super::world::{KEPT, L, T, about, await_renewal};
use crate::support::epilogue::assert_every_hash_has_a_ttl;
use crate::support::prelude::*;
use crate::support::proxy::{Do, Then};

scenario!(an_unusable_lease_is_refused_before_anything_is_sent, |world| {
    let lock = world.client().get_lock("unusable");
    let too_short = [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(500)];
    let too_long = [Duration::MAX, Duration::from_millis(u64::MAX), Duration::from_secs(1 << 43)];
    for lease in too_short.into_iter().chain(too_long) {
        for error in [
            lock.lock_with_lease(lease).unwrap_err(),
            lock.try_lock_for_with_lease(Duration::ZERO, lease).unwrap_err(),
            lock.acquire_with(&leased(lease)).map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
    }
    assert_eq!(world.proxy.count(|command| command.contains("unusable")), 0);
    assert!(world.is_free("unusable"));
    let begun = now();
    let taken = lock.try_lock_for_with_lease(ms(200), ms(1));
    within(begun, ms(200) + T, "a wait for a lease of one millisecond");
    match taken {
        Ok(taken) => assert!(taken || begun.elapsed() >= ms(200)),
        // Each answer took longer than the lease, so no grant was valid.
        Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
    }
});

scenario!(a_server_out_of_memory_refuses_only_acquires, |world| {
    let client = world.builder().lease(KEPT).command_timeout(LONG).build().unwrap();
    let (held, nested) = (client.get_lock("held"), client.get_lock("nested"));
    let guard = held.acquire().unwrap();
    let outer = nested.acquire().unwrap();
    let inner = nested.acquire().unwrap();
    world.does(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = fails(client.get_lock("another").try_lock(), ErrorKind::OutOfMemory);
    assert!(error.is_retryable() && !error.outcome_unknown(), "{error}");
    let patient = world.builder().retry_timeout(ms(300)).build().unwrap();
    fails(patient.get_lock("another").lock(), ErrorKind::OutOfMemory);
    assert!(world.is_free("another"));
    await_renewal(&guard);
    await_renewal(&outer);
    let owner = outer.owner();
    inner.unlock().unwrap();
    world.assert_held("nested", owner, 1);
    outer.unlock().unwrap();
    guard.unlock().unwrap();
    assert!(world.is_free("nested") && world.is_free("held"));
    world.does(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(client.get_lock("another").try_lock().unwrap());
    client.get_lock("another").unlock().unwrap();
});

fn losses_of_a_reply() -> [Do; 4] {
    [
        Do::DelayReply(2 * T),
        Do::SwallowReply(Then::Silent),
        Do::SwallowReply(Then::Close),
        Do::SwallowReply(Then::Reset),
    ]
}

scenario!(a_grant_with_a_lost_reply_counts_once, |world| {
    for (how, client, lock) in world.each(losses_of_a_reply(), "granted") {
        let what = format!("{how:?}");
        let fault = world.proxy.next(about(lock.name()), how);
        lock.lock().unwrap();
        assert_eq!(fault.hits(), 1, "{what}");
        assert_eq!(lock.hold_count().unwrap(), 1, "{what}");
        world.assert_held_by(lock.name(), &client, 1);
        let held = world.fields(lock.name());
        throughout(3 * T, || world.fields(lock.name()) == held);
        lock.unlock().unwrap();
        assert!(world.is_free(lock.name()), "{what}: one unlock did not free the lock");
    }
});

scenario!(a_failed_try_with_lost_grant_reply_leaves_no_hold, |world| {
    for (how, _client, lock) in world.each(losses_of_a_reply(), "failed") {
        let what = format!("{how:?}");
        let fault = world.proxy.next(about(lock.name()), how);
        let begun = now();
        let error = lock.try_lock_for_with_lease(Duration::ZERO, 10 * L).unwrap_err();
        within(begun, T, "a try");
        assert!(error.outcome_unknown() && error.is_retryable(), "{what}: {error}");
        assert_eq!(fault.hits(), 1, "{what}");
        assert_every_hash_has_a_ttl(&world.server);
        comes_within(begun, 2 * T, "the end of the orphan", || world.is_free(lock.name()));
        lock.lock().unwrap();
        assert_eq!(lock.hold_count().unwrap(), 1, "{what}");
        lock.unlock().unwrap();
        assert!(world.is_free(lock.name()), "{what}");
    }
});
