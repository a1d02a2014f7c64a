//! Cached locks, made by `lock_builder(name).cached()`. A waiter *recalls* such a lock: a message asks the
//! caching client to release it.

use leasehold::Backoff;

use super::world::{KEPT, P, PATIENCE, T, World, scenario_on};
use crate::support::caching::{UNUSED, assert_cached_after, cycle, is_free_within, use_until_cached};
use crate::support::channel;
use crate::support::prelude::*;
use crate::support::proxy::{Direction, Then, Which};

#[track_caller]
fn cached_lock(world: &World, client: &LockClient, name: &str) -> RedisLock {
    let lock = client.lock_builder(name).cached().build();
    use_until_held(world, &lock);
    lock
}

#[track_caller]
fn use_until_held(world: &World, lock: &RedisLock) {
    use_until_cached(lock, || world.is_free(lock.name()));
}

fn use_until_checked(world: &World, lock: &RedisLock, checks: u64) {
    let until = world.scripts_run() + checks;
    assert!(eventually(LONG, || {
        cycle(lock);
        world.scripts_run() >= until
    }));
}

fn client(world: &World) -> LockClient {
    world.builder_to(&world.server.url()).lease(KEPT).command_timeout(LONG).build().unwrap()
}

scenario!(a_recalled_cached_lock_reaches_the_waiter_within_50_ms, |world| {
    let (keeper, other) = (client(world), client(world));
    let lock = cached_lock(world, &keeper, "stock");
    for is_in_use in [false, true] {
        if is_in_use {
            lock.lock().unwrap();
        } else {
            // After five checks for waiters the next is half a second away, so only the recall is in time.
            use_until_checked(world, &lock, 5);
        }
        let asked = now();
        let waiter = call(turn(other.get_lock("stock")));
        if is_in_use {
            let in_line = || world.run::<u64>(&["ZCARD", "leasehold_lock_queue:{stock}"]) == 1;
            assert!(eventually(LONG, in_line));
            assert!(!waiter.is_over());
            let ended = now();
            lock.unlock().unwrap();
            waiter.returns_within(ended, ms(50), "taking over at the end of a use");
        } else {
            waiter.returns_within(asked, ms(50), "taking over what is kept");
        }
        use_until_held(world, &lock);
    }
});

// Redisson's waiters send no recall. So the client counts the subscribers of the lock's channel.
scenario!(a_cached_lock_is_freed_for_a_subscribed_redisson_waiter, |world| {
    let client = client(world);
    let lock = cached_lock(world, &client, "stock");
    let mut theirs = world.server.admin();
    let mut theirs = theirs.as_pubsub();
    let listens = now();
    theirs.subscribe(channel("stock")).unwrap();
    is_free_within(listens, UNUSED, || world.is_free("stock"));
    cycle(&lock);
    let granted = now();
    is_free_within(granted, ms(50), || world.is_free("stock"));
    theirs.unsubscribe(channel("stock")).unwrap();
});

#[test]
fn a_user_without_the_pubsub_command_caches_a_lock_only_briefly() {
    let user = |builder: crate::support::server::Builder| {
        builder
            .user("blind on >pw ~* &* +@all -pubsub")
            .user("keeps on >pw ~* &* +@all -pubsub +pubsub|numsub")
    };
    scenario_on(user, |world| {
        let as_user = |name: &str| {
            let builder = world.builder_to(&world.server.url()).lease(KEPT).command_timeout(LONG);
            builder.username(name).password("pw").build().unwrap()
        };
        let lock = cached_lock(world, &as_user("blind"), "stock");
        let used = now();
        is_free_within(used, ms(50), || world.is_free("stock"));
        drop(lock);
        // Of PUBSUB, this user may run only the subcommand that docs/permissions.md names for caching.
        let lock = cached_lock(world, &as_user("keeps"), "other");
        lock.lock().unwrap();
        let checks = world.scripts_run() + 4;
        assert!(eventually(LONG, || world.scripts_run() >= checks));
        assert_cached_after(|| lock.unlock().unwrap(), || world.is_free("other"));
        drop(lock);
    });
}

scenario!(a_waiter_gets_a_cached_lock_despite_a_lost_recall, |world| {
    let keeper = world.builder().lease(KEPT).command_timeout(LONG).build().unwrap();
    let other = client(world);
    let lock = cached_lock(world, &keeper, "stock");
    world.proxy.drop_messages(true);
    let (asked, waiter) = (now(), call(turn(other.get_lock("stock"))));
    while !waiter.is_over() {
        cycle(&lock); // keeps the lock in use, since an unused lock would be released
    }
    waiter.returns_within(asked, UNUSED, "taking the lock");
    world.proxy.drop_messages(false);
    drop(lock);
});

scenario!(a_client_that_loses_its_subscription_frees_cached_locks, |world| {
    let keeper = world.builder().lease(KEPT).command_timeout(LONG).build().unwrap();
    let lock = cached_lock(world, &keeper, "stock");
    let cut = now();
    world.proxy.kill(Which::Subscribers, Then::Close);
    is_free_within(cut, ms(50), || world.is_free("stock"));
    use_until_held(world, &lock);
});

scenario!(a_cached_lock_of_a_cut_off_client_is_free_after_its_lease, |world| {
    let keeper = world.builder().lease(KEPT).command_timeout(T).retry_timeout(PATIENCE).build().unwrap();
    let other = client(world);
    let lock = cached_lock(world, &keeper, "stock");
    world.proxy.hold(Direction::ToServer, Which::All);
    let (theirs, cut) = (other.get_lock("stock"), now());
    let waiter = call(move || theirs.lock().map(|()| theirs));
    // A waiter polls within 200 ms after the lease has expired.
    drop(waiter.returns_within(cut, KEPT + ms(200), "taking the lock").unwrap());
    world.proxy.resume();
    assert!(!lock.try_lock_for(P).unwrap(), "the lock belongs to the other client");
    other.get_lock("stock").force_unlock().unwrap();
});

scenario!(a_cached_lock_stays_cached_across_new_handles, |world| {
    let client = client(world);
    let cycle = || cycle(&client.lock_builder("stock").cached().build());
    let is_kept = || {
        cycle();
        !world.is_free("stock")
    };
    assert!(eventually(LONG, is_kept), "the lock was never cached");
    let (begun, asked) = (now(), world.scripts_run());
    (0..1000).for_each(|_| cycle());
    let checks = u64::try_from(begun.elapsed().as_millis() / 50).unwrap() + 5;
    assert!(world.scripts_run() - asked <= checks);
    // The use of a handle without `cached` must not end caching for cached handles.
    assert!(client.get_lock("stock").is_locked().is_ok());
    assert_cached_after(cycle, || world.is_free("stock"));
});

scenario!(a_caching_client_notices_a_forced_release_within_50_ms, |world| {
    let (keeper, other) = (client(world), client(world));
    let lock = cached_lock(world, &keeper, "stock");
    for _ in 0..10 {
        use_until_held(world, &lock);
        let begun = now();
        let theirs = other.get_lock("stock");
        // The loss of `theirs` changes its thread's owner number. This thread needs its number to find the
        // cached hold, so another thread acquires `theirs`.
        elsewhere(|| {
            theirs.force_unlock().unwrap();
            theirs.lock().unwrap();
        });
        // The recall comes over another connection, so it may arrive after the answer to the forced release.
        let is_asked_for = || !lock.try_lock().unwrap() || lock.unlock().is_err();
        assert!(eventually(LONG, is_asked_for), "no loss was noticed while two clients held the lock");
        let took = begun.elapsed();
        assert!(took <= ms(50) + SLACK + stalled_since(begun), "two clients held the lock for {took:?}");
        theirs.force_unlock().unwrap();
    }
});

scenario!(an_unlocked_guard_stays_lost_when_its_lock_is_reacquired, |world| {
    let client = client(world);
    let lock = cached_lock(world, &client, "stock");
    let guard = lock.acquire().unwrap();
    assert_eq!(guard.state(), HoldState::Held);
    lock.unlock().unwrap();
    for is_again in [false, true] {
        assert_eq!(guard.state(), HoldState::Lost, "{is_again}");
        assert!(guard.check().unwrap_err().is_lost() && guard.remaining().is_zero());
        assert!(is_again || lock.try_lock().unwrap());
    }
    drop(guard);
    assert!(lock.is_held_by_current_thread().unwrap(), "the guard ended other levels too");
    lock.unlock().unwrap();
});

scenario!(waiting_on_a_condition_frees_a_cached_lock, |world| {
    let client = client(world);
    let (waits, tries) = (cached_lock(world, &client, "stock"), world.client().get_lock("stock"));
    for _ in 0..5 {
        use_until_held(world, &waits);
        let lock = waits.clone();
        let waiter = start(move || {
            let condition = lock.condition("filled");
            let mut guard = lock.acquire().unwrap();
            condition.wait(&mut guard).unwrap();
            drop(guard);
        });
        let notify = || {
            let is_mine = tries.try_lock().unwrap();
            if is_mine {
                let waiting = tries.condition("filled").notify_one().unwrap();
                tries.unlock().unwrap();
                return waiting;
            }
            false
        };
        assert!(eventually(LONG, notify), "the trying client never gets the lock");
        waiter.join().unwrap();
    }
});

scenario!(a_spinning_waiter_gets_a_cached_lock, |world| {
    let (keeper, other) = (client(world), client(world));
    let lock = cached_lock(world, &keeper, "stock");
    let spin = Backoff::exponential(ms(1), ms(5));
    let theirs = other.lock_builder("stock").spin(spin).build();
    for is_in_use in [false, true] {
        use_until_held(world, &lock);
        if is_in_use {
            lock.lock().unwrap();
        }
        let (asked, waiter) = (now(), call(turn(theirs.clone())));
        if is_in_use {
            assert!(
                eventually(LONG, || !world.run::<bool>(&["HEXISTS", "stock", "leasehold:cached"])),
                "the waiter sent no recall"
            );
            lock.unlock().unwrap();
        }
        waiter.returns_within(asked, UNUSED, "taking the lock");
    }
});

scenario!(a_cached_lock_whose_key_was_deleted_is_acquired_anew, |world| {
    let client = client(world);
    let lock = cached_lock(world, &client, "stock");
    world.does(&["DEL", "stock"]);
    // The client counts the loss only if it finds the loss while the thread uses the lock.
    let mut lost = 0;
    let is_kept = || {
        lock.lock().unwrap();
        lost += u64::from(lock.unlock().is_err_and(|error| error.not_held().is_some()));
        !world.is_free("stock")
    };
    assert!(eventually(LONG, is_kept), "the lock was not cached");
    assert_eq!(client.stats().lost_gone, lost, "the loss of an unused hold was counted");
});

scenario!(only_a_hold_without_an_explicit_lease_is_cached, |world| {
    let client = client(world);
    let lock = cached_lock(world, &client, "stock");
    lock.lock().unwrap();
    lock.lock().unwrap();
    lock.unlock().unwrap();
    assert!(lock.is_held_by_current_thread().unwrap());
    assert_cached_after(|| lock.unlock().unwrap(), || world.is_free("stock"));
    lock.lock().unwrap();
    let inner = lock.acquire_with(&leased(LONG)).unwrap().unwrap();
    let least = i64::try_from(LONG.as_millis()).unwrap() / 2;
    assert!(world.ttl("stock") > least);
    inner.unlock().unwrap();
    lock.unlock().unwrap();
    assert!(world.is_free("stock"), "a hold with a long explicit lease was cached");
});

scenario!(a_fenced_lock_gets_a_token_despite_caching, |world| {
    let client = client(world);
    let _plain = cached_lock(world, &client, "stock");
    let fenced = client.lock_builder("stock").cached().build_fenced();
    let first = fenced.lock_and_get_token().unwrap();
    fenced.unlock().unwrap();
    use_until_held(world, &fenced);
    assert!(fenced.lock_and_get_token().unwrap() >= first);
    fenced.unlock().unwrap();
});

scenario!(cached_is_refused_for_fair_spin_and_max_hold_locks, |world| {
    let kinds = |client: &LockClient| {
        [
            client.lock_builder("a").cached().max_hold(LONG).build(),
            client.lock_builder("a").cached().spin(leasehold::Backoff::default()).build(),
            client.lock_builder("a").cached().fair().build(),
        ]
        .map(|lock| lock.lock().unwrap_err().kind())
    };
    use ErrorKind::{InvalidInput, Unsupported};
    let client = client(world);
    let asked = world.scripts_run();
    assert_eq!(kinds(&client), [InvalidInput, InvalidInput, Unsupported]);
    assert_eq!(world.scripts_run(), asked);
    let memory = LockClient::in_memory();
    fails_saying(memory.lock_builder("a").cached().build().lock(), Unsupported, "Leave `cached` out");
});
