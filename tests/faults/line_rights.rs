//! Holders without permissions for the wait queue. Such a holder learns at its first release with
//! a waiter that it lacks them. From its next hold on, waiters subscribe to its releases.

use leasehold::Ring;

use super::line::{listeners, queued_clients};
use super::world::{World, scenario_on};
use crate::support::prelude::*;
use crate::support::server::Builder;

const LEASE: Duration = Duration::from_secs(60);
const NAME: &str = "rights";
const LINE: &str = "leasehold_lock_queue:{rights}";

/// The permissions that sufficed in versions of this crate without a wait queue.
const OLD: &str = "~rights ~leasehold_ring_epoch &redisson_lock__channel:{rights}";
/// All permissions, except for the channel that notifies the first client in the queue.
const MUTE: &str = "~* &redisson_lock__channel:{rights}";
/// All permissions, except for the command that removes the first client from the queue.
const NO_COMMAND: &str = "~* &* -zpopmin";

/// Acquires a lock, and returns a function that releases it.
type Take = fn(&LockClient) -> Box<dyn FnOnce()>;

const TAKES: [(&str, Take); 4] = [
    ("lock", |client| {
        let guard = client.get_lock(NAME).acquire_owned().unwrap();
        Box::new(move || guard.unlock().unwrap())
    }),
    ("try_lock", |client| {
        let lock = client.get_lock(NAME);
        assert!(lock.try_lock().unwrap());
        Box::new(move || lock.unlock().unwrap())
    }),
    ("spin", |client| {
        let guard = client.get_spin_lock(NAME).acquire_owned().unwrap();
        Box::new(move || guard.unlock().unwrap())
    }),
    ("several", |client| {
        let guard = client.get_multi_lock([client.get_lock(NAME)]).acquire_owned().unwrap();
        Box::new(move || guard.unlock().unwrap())
    }),
];

/// Asserts that the first release with a waiter finds the missing permission. The owner id of the next hold
/// then says so (4 as its fifteenth character), and waiters subscribe to all releases.
fn learns_by_its_first_release(rights: &str, builder: fn(&World) -> ClientBuilder) {
    let user = |server: Builder| server.user(&format!("old on >pw resetchannels +@all {rights}"));
    scenario_on(user, |world| {
        let waiter = world.builder_to(&world.server.url()).lease(LEASE).build().unwrap();
        for (way, take) in TAKES {
            let holder = builder(world).lease(LEASE).build().unwrap();
            let release = take(&holder);
            world.does(&["ZADD", LINE, "1", "00000000-0000-8000-8000-000000000000"]);
            release();
            world.does(&["DEL", LINE]);

            let release = take(&holder);
            let owner =
                world.fields(NAME).into_keys().find(|field| !field.starts_with("leasehold:")).unwrap();
            assert_eq!(&owner[14..15], "4", "{way}: {owner} of {}", holder.id());
            let waiting = call(turn(waiter.get_lock(NAME)));
            let listens = || queued_clients(world, NAME) == 1 && listeners(world, NAME) == 1;
            assert!(eventually(LONG, listens), "{way}: the waiter does not listen to releases");
            let released = now();
            release();
            waiting.outcome();
            within(released, ms(100), "taking over");
            world.does(&["DEL", LINE]);
        }
        world.does(&["DEL", "leasehold_ring_epoch"]);
    });
}

fn as_user(world: &World) -> ClientBuilder {
    world.builder_to(&world.server.url_as("old", "pw"))
}

#[test]
fn waiters_notice_releases_of_a_holder_without_queue_rights() {
    learns_by_its_first_release(OLD, as_user);
}

#[test]
fn waiters_notice_releases_of_a_holder_that_cannot_notify() {
    learns_by_its_first_release(MUTE, as_user);
}

#[test]
fn waiters_notice_releases_of_a_holder_without_zpopmin() {
    learns_by_its_first_release(NO_COMMAND, as_user);
}

#[test]
fn waiters_notice_releases_of_a_ring_holder_without_queue_rights() {
    learns_by_its_first_release(OLD, |world| {
        let builder = LockClient::builder().command_timeout(ms(2_000)).unsubscribe_delay(Duration::ZERO);
        builder.ring(Ring::new([world.server.url_as("old", "pw")]))
    });
}

/// Older versions of this crate did not list `+time` among the permissions that a user needs.
#[test]
fn a_redis_user_without_the_time_command_can_wait() {
    let rules = "old on >pw resetchannels ~rights &redisson_lock__channel:{rights} +eval +evalsha +hexists +hset +hdel +pexpire \
                 +pttl +get +set +del +publish +subscribe +unsubscribe";
    scenario_on(
        |server| server.user(rules),
        |world| {
            let holder = world.builder_to(&world.server.url()).lease(LEASE).build().unwrap();
            let waiter = as_user(world).lease(LEASE).build().unwrap();
            let held = holder.get_lock(NAME).acquire().unwrap();
            let waiting = call(turn(waiter.get_lock(NAME)));
            let listens = || listening_clients(NAME, "NUMSUB", |command| world.run(command)) == 1;
            assert!(eventually(LONG, listens), "the waiter does not listen to releases");
            let released = now();
            held.unlock().unwrap();
            waiting.outcome();
            within(released, ms(100), "taking over");
        },
    );
}
