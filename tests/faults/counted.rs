//! A lost answer falsifies no count of permits or latches. A dead waiter's notification goes to the next one.

use leasehold::Result;

use super::world::{L, P, T, World, about, releases, ways};
use crate::support::prelude::*;
use crate::support::proxy::{Command, Direction, Do, Then, Which};

fn number(world: &World, key: &str) -> Option<i64> {
    world.run(&["GET", key])
}

fn clear(world: &World) {
    world.lock_keys().iter().for_each(|key| world.does(&["DEL", key]));
}

/// The name of a change, the count before it, the call, the call's result, and the count after it.
type Change = (&'static str, &'static str, fn(&LockClient) -> Result<i64>, i64, Option<i64>);

fn changes() -> Vec<Change> {
    vec![
        (
            "try_set_permits",
            "",
            |client| client.get_semaphore("k").try_set_permits(5).map(i64::from),
            1,
            Some(5),
        ),
        ("add_permits", "5", |client| client.get_semaphore("k").add_permits(3), 8, Some(8)),
        ("release", "5", |client| client.get_semaphore("k").release(2).map(|()| 0), 0, Some(7)),
        ("drain_permits", "5", |client| client.get_semaphore("k").drain_permits(), 5, Some(0)),
        ("delete", "5", |client| client.get_semaphore("k").delete().map(i64::from), 1, None),
        (
            "try_set_count",
            "",
            |client| client.get_count_down_latch("k").try_set_count(3).map(i64::from),
            1,
            Some(3),
        ),
        ("count_down", "3", |client| client.get_count_down_latch("k").count_down(), 2, Some(2)),
        ("the last count_down", "1", |client| client.get_count_down_latch("k").count_down(), 0, None),
    ]
}

scenario!(a_semaphore_or_latch_change_with_lost_reply_counts_once, |world| {
    let client = world.client();
    for (what, before, change, result, after) in changes() {
        for (round, how) in ways().into_iter().enumerate() {
            // The first call loads the script, so that later ones send one request, which the fault hits.
            if round == 0 {
                change(&client).unwrap();
            }
            clear(world);
            if !before.is_empty() {
                world.does(&["SET", "k", before]);
            }
            let fault = world.proxy.next(about("{k}"), how.clone());
            assert_eq!(change(&client).unwrap(), result, "{what}, {how:?}");
            assert_eq!(fault.hits(), 1, "{what}, {how:?}");
            assert_eq!(number(world, "k"), after, "{what}, {how:?}");
            fault.repeat(0);
            assert_eq!(number(world, "k"), after, "{what}, {how:?}, repeated");
        }
    }
    drop(client);
    clear(world);
});

scenario!(unanswered_permit_requests_count_once, |world| {
    let client = world.client();
    assert!(client.get_semaphore("k").try_set_permits(5).unwrap());
    client.get_semaphore("k").acquire(1).unwrap().unlock().unwrap();
    for how in ways() {
        let semaphore = client.get_semaphore("k");
        let taking = world.proxy.next(about("{k}"), how.clone());
        let permit = semaphore.acquire(2).unwrap();
        assert_eq!(taking.hits(), 1, "{how:?}");
        // The call has asked again under a new id. The clean-up later removes the first, unanswered grant.
        comes_within(now(), L, "the clean-up", || number(world, "k") == Some(3));
        let giving = world.proxy.next(about("{k}"), how.clone());
        let outcome = in_time(2 * T, "giving back", || permit.unlock());
        assert_eq!(giving.hits(), 1, "{how:?}");
        assert!(outcome.as_ref().map_or_else(leasehold::Error::outcome_unknown, |()| true), "{outcome:?}");
        comes_within(now(), L, "the permits", || number(world, "k") == Some(5));

        let permit = semaphore.acquire(2).unwrap();
        let giving = world.proxy.next(about("{k}"), how.clone());
        drop(permit);
        giving.wait_for(1, LONG);
        comes_within(now(), L, "the permits", || number(world, "k") == Some(5));
        assert_eq!(semaphore.available_permits().unwrap(), 5);
        giving.repeat(0);
        taking.repeat(0);
        assert_eq!(number(world, "k"), Some(5), "{how:?}");
    }
    drop(client);
    clear(world);
});

scenario!(an_unanswered_permit_release_by_id_counts_once, |world| {
    let client = world.client();
    let semaphore = client.get_expirable_semaphore("k");
    semaphore.try_set_permits(2).unwrap();
    let give_back = || {
        let permit = semaphore.acquire_with(1, &leased(Duration::from_secs(60))).unwrap().unwrap();
        let id = permit.ids().remove(0);
        permit.forget();
        semaphore.release(&id).unwrap()
    };
    assert!(give_back());
    for how in ways() {
        let permit = semaphore.acquire_with(1, &leased(Duration::from_secs(60))).unwrap().unwrap();
        let id = permit.ids().remove(0);
        permit.forget();
        let fault = world.proxy.next(about("{k}"), how.clone());
        assert!(semaphore.release(&id).unwrap(), "{how:?}");
        assert_eq!((fault.hits(), number(world, "k")), (1, Some(2)), "{how:?}");
    }
    drop((client, semaphore));
    clear(world);
});

scenario!(notifying_a_dead_condition_waiter_wakes_the_next_one, |world| {
    let (dying, living, notifying) = (world.client(), world.direct(), world.direct());
    let waiting = |client: &LockClient| {
        let lock = client.get_lock("k");
        call(move || {
            let mut guard = lock.acquire()?;
            lock.condition("c").wait(&mut guard)?;
            guard.unlock()
        })
    };
    let in_queue = |many: i64| {
        let queue = "leasehold_condition_queue:{k:c:1}";
        assert!(eventually(LONG, || world.run::<i64>(&["LLEN", queue]) == many), "{many}");
    };
    let first = waiting(&dying);
    in_queue(1);
    let second = waiting(&living);
    in_queue(2);
    // Only `dying` uses the proxy, so to the server this client is silent from here on.
    world.proxy.hold(Direction::ToServer, Which::All);
    world.proxy.hold(Direction::ToClient, Which::All);
    let lock = notifying.get_lock("k");
    lock.lock().unwrap();
    assert!(lock.condition("c").notify_one().unwrap());
    let notified = now();
    lock.unlock().unwrap();
    in_queue(1);
    second.returns_within(notified, Duration::from_secs(6) + P, "the second one's turn").unwrap();
    world.proxy.resume();
    drop(first.outcome());
    drop((dying, living, notifying, lock));
    comes_within(now(), L, "the lock", || world.is_free("k"));
    world.lock_keys().iter().for_each(|key| assert!(world.ttl(key) > 0, "{key} has no end"));
    clear(world);
});

scenario!(a_writer_can_downgrade_after_an_unanswered_renewal, |world| {
    // The lease must outlast all calls that follow an unanswered renewal.
    let client = world.builder().lease(2 * L).build().unwrap();
    // On a busy machine earlier renewals may have failed, so each round waits for one failure more.
    let failures = || client.stats().renewals_failed;
    let other = world.direct().get_read_write_lock("downgrade");
    let lock = client.get_read_write_lock("downgrade");
    for how in ways() {
        lock.write().lock().unwrap();
        let owner = client.current_owner();
        let before = failures();
        // The previous round's renewal may come late, so the fault takes only a renewal of the present owner.
        let renewal = {
            let owner = owner.to_string();
            move |command: &Command| {
                command.contains(&owner) && !command.contains("redisson_rwlock:{downgrade}")
            }
        };
        let fault = world.proxy.next(renewal, how.clone());
        fault.wait_for(1, LONG);
        comes_within(now(), T, "its end", || failures() > before);
        lock.read().lock().unwrap_or_else(|error| panic!("{how:?}: {error}"));
        lock.write().unlock().unwrap();
        assert!(other.read().try_lock().unwrap() && !other.write().try_lock().unwrap());
        other.read().unlock().unwrap();
        lock.read().unlock().unwrap();
        assert!(world.is_free("downgrade"));
        assert_ne!(client.current_owner(), owner, "{how:?}");
        fault.repeat(0);
        assert!(world.is_free("downgrade"));
    }
});

scenario!(fair_waiters_time_out_or_acquire_after_a_server_pause, |world| {
    let client = world.builder().retry_timeout(LONG).build().unwrap();
    let held = world.direct().get_fair_lock("paused").acquire_with(&leased(LONG)).unwrap().unwrap();
    let [first, second] = [ms(1_500), LONG].map(|wait| {
        let lock = client.get_fair_lock("paused");
        call(move || lock.try_acquire_for(wait).map(|guard| guard.is_some()))
    });
    let queue = "redisson_lock_queue:{paused}";
    assert!(eventually(LONG, || world.run::<i64>(&["LLEN", queue]) == 2));
    let paused = now();
    world.does(&["CLIENT", "PAUSE", "2500", "WRITE"]);
    let outcome = first.returns_within(paused, ms(2_500) + T, "a wait that ends during the pause");
    assert!(outcome.is_err() || outcome.is_ok_and(|had| !had));
    comes_within(paused, ms(2_500) + 2 * L, "the end of the pause", || {
        world.run::<i64>(&["LLEN", queue]) <= 1
    });
    held.unlock().unwrap();
    let freed = now();
    assert!(second.returns_within(freed, P + T, "the other's turn").unwrap());
    world.all_are_given_back(T);
});

scenario!(a_failed_condition_wait_leaves_no_queue_place, |world| {
    let client = world.client();
    let lock = client.get_lock("k");
    let mut guard = lock.acquire().unwrap();
    let fault = world.proxy.each(releases("k"), Do::DropRequest(Then::Close));
    let begun = now();
    assert!(lock.condition("c").wait(&mut guard).is_err());
    assert_eq!(guard.state(), HoldState::Lost, "the guard's state");
    within(begun, L + T, "giving up");
    fault.cancel();
    world.is_given_back("leasehold_condition_queue:{k:c:1}", L);
    world.is_given_back("k", L);
    clear(world);
});
