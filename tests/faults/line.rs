//! The wait queue: a release wakes one waiter, in order of arrival. After any fault, a lock that
//! somebody waits for is free for at most one poll interval.

use std::collections::BTreeMap;
use std::net::TcpStream;

use redis::Commands;

use super::world::{P, T, World, scenario, scenario_on};
use crate::support::channel;
use crate::support::prelude::*;
use crate::support::proxy::{Command, Do, Proxy, Then};
use crate::support::server::Builder;

/// A lease that outlasts the test, so only a notification or a poll can end a wait.
const LEASE: Duration = Duration::from_secs(60);
/// A wait that was shorter than this was ended by a notification, since polls are further apart.
const BELOW_A_POLL: Duration = ms(500);

fn client(world: &World) -> LockClient {
    world.builder_to(&world.server.url()).lease(LEASE).build().unwrap()
}

fn queue_key(name: &str) -> String {
    format!("leasehold_lock_queue:{{{name}}}")
}

pub(crate) fn queued_clients(world: &World, name: &str) -> usize {
    world.run(&["ZCARD", &queue_key(name)])
}

pub(crate) fn listeners(world: &World, name: &str) -> i64 {
    world.run::<(String, i64)>(&["PUBSUB", "NUMSUB", &channel(name)]).1
}

fn await_queued(world: &World, name: &str, count: usize) {
    let stand = || {
        queued_clients(world, name) == count
            && listening_clients(name, "NUMSUB", |command| world.run(command)) >= count
    };
    assert!(eventually(LONG, stand), "{} wait in the queue", queued_clients(world, name));
}

scenario!(a_waiting_clients_queue_place_records_its_round_trip, |world| {
    let holder = client(world);
    let proxy = Proxy::before(&world.server);
    proxy.delay_replies(ms(20));
    let [near, far] = [world.server.url(), proxy.url()].map(|url| {
        let client = world.builder_to(&url).lease(LEASE).build().unwrap();
        let held = holder.get_lock("far").acquire().unwrap();
        let waiting = call(turn(client.get_lock("far")));
        await_queued(world, "far", 1);
        let place: Vec<(String, u64)> = world.run(&["ZRANGE", &queue_key("far"), "0", "-1", "WITHSCORES"]);
        held.unlock().unwrap();
        waiting.outcome();
        place[0].1 % 1000 / 100
    });
    assert!(far >= 3 && far > near || near == 6, "{far} and {near}");
});

scenario!(each_release_wakes_one_of_many_waiting_clients, |world| {
    const CLIENTS: usize = 24;
    let holder = client(world).get_lock("crowd").acquire().unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(|_| client(world)).collect();
    let waiting: Vec<_> = clients.iter().map(|client| call(turn(client.get_lock("crowd")))).collect();
    await_queued(world, "crowd", CLIENTS);
    let before = world.scripts_run();
    let begun = now();
    holder.unlock().unwrap();
    for waiter in waiting {
        waiter.outcome();
    }
    let (took, ran) = (begun.elapsed(), world.scripts_run() - before);
    // On average half of the clients still wait, and each of them polls once a second.
    let polls = CLIENTS as u64 * (took.as_secs() + 1) / 2;
    assert!(ran <= 1 + 2 * CLIENTS as u64 + polls, "{ran} scripts for {CLIENTS} grants in {took:?}");
});

scenario!(waiting_clients_are_served_in_order, |world| {
    let holder = client(world).get_lock("order").acquire().unwrap();
    let clients: Vec<_> = (0..8).map(|_| client(world)).collect();
    let mut waiting = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        waiting.push(call(turn(client.get_lock("order"))));
        await_queued(world, "order", number + 1);
    }
    assert!(!clients[7].get_lock("order").try_lock().unwrap());
    holder.unlock().unwrap();
    let turns: Vec<_> = waiting.into_iter().map(|waiter| waiter.outcome().0).collect();
    assert!(turns.is_sorted(), "{turns:?}");
});

scenario!(a_client_leaves_the_queue_with_its_last_waiter, |world| {
    let holder = client(world).get_lock("left").acquire().unwrap();
    let other = client(world);
    for _ in 0..5 {
        let waits = |limit| {
            let lock = other.get_lock("left");
            call(move || lock.try_acquire_for(limit).unwrap().is_none())
        };
        let (longer, shorter) = (waits(ms(300)), waits(ms(100)));
        await_queued(world, "left", 1);
        assert!(shorter.outcome().0);
        assert_eq!(queued_clients(world, "left"), 1, "another thread of the client still waits");
        let given_up = longer.outcome();
        assert!(given_up.0);
        crate::support::comes_within(given_up.1, T, "leaving the line", || {
            queued_clients(world, "left") == 0
        });
    }
    holder.unlock().unwrap();
});

// The client's request to leave the queue is lost, so the client stays in the queue. It unsubscribes, because
// a release skips a queued client that does not listen.
scenario!(a_client_unsubscribes_though_its_request_to_leave_was_lost, |world| {
    let held = client(world).get_lock("lost").acquire().unwrap();
    let leaver = world.builder().lease(LEASE).unsubscribe_delay(LEASE).build().unwrap();
    // This use loads the scripts, so that no request below is sent twice, as after NOSCRIPT.
    assert!(leaver.get_lock("lost").try_acquire_for(ms(100)).unwrap().is_none());
    assert!(eventually(LONG, || queued_clients(world, "lost") == 0));
    let is_leaving = |command: &Command| {
        let is_attempt = ["wait", "stand", "next"].into_iter().any(|turn| command.contains(turn));
        command.is_script() && command.contains("lost") && !is_attempt
    };
    let fault = world.proxy.next(is_leaving, Do::DropRequest(Then::Close));
    let lock = leaver.get_lock("lost");
    let leaving = call(move || lock.try_acquire_for(ms(300)).unwrap().is_none());
    await_queued(world, "lost", 1);
    assert!(leaving.outcome().0);
    fault.wait_for(1, LONG);
    let listeners = || listening_clients("lost", "NUMSUB", |command| world.run(command));
    assert!(eventually(LONG, || listeners() == 0), "the client still listens");
    assert_eq!(queued_clients(world, "lost"), 1);
    held.unlock().unwrap();
    assert_eq!(queued_clients(world, "lost"), 0);
    assert!(world.is_free("leasehold_lock_next:{lost}"));
});

fn absent(world: &World, name: &str, client: &str) {
    world.does(&["ZADD", &queue_key(name), "1", client]);
    world.does(&["PEXPIRE", &queue_key(name), "60000"]);
}

/// How long the queue's second client waits after a release, for each of a hundred releases. The first client
/// is dead, or, if `is_connected`, stopped: its subscription remains.
fn waits_behind_an_absent_client(is_connected: bool) -> Vec<Duration> {
    let mut took = Vec::new();
    scenario(|world| {
        let (holder, waiter) = (client(world), client(world));
        let stopped = "00000000-0000-8000-8000-000000000000";
        let mut connection = TcpStream::connect(("127.0.0.1", world.server.port())).unwrap();
        if is_connected {
            let channel = format!("leasehold_wake:{{first}}:{stopped}");
            let subscribe = redis::cmd("SUBSCRIBE").arg(&channel).get_packed_command();
            std::io::Write::write_all(&mut connection, &subscribe).unwrap();
            let stands =
                || world.run::<BTreeMap<String, i64>>(&["PUBSUB", "NUMSUB", &channel])[&channel] == 1;
            assert!(eventually(LONG, stands));
        }
        for _ in 0..100 {
            let held = holder.get_lock("first").acquire().unwrap();
            let waiting = call(turn(waiter.get_lock("first")));
            await_queued(world, "first", 1);
            absent(world, "first", stopped);
            let released = now();
            held.unlock().unwrap();
            let had = waiting.outcome().0;
            took.push(had.saturating_duration_since(released).saturating_sub(stalled_since(released)));
        }
    });
    took
}

#[test]
fn a_killed_first_waiter_does_not_delay_the_next() {
    let took = waits_behind_an_absent_client(false);
    if let Some(middle) = (!took.is_empty()).then(|| median(took.clone())) {
        assert!(middle < ms(20), "{middle:?}");
        assert!(took.iter().all(|took| *took < BELOW_A_POLL), "{took:?}");
    }
}

#[test]
fn median_delay_by_stopped_first_waiter_is_under_60_ms() {
    let took = waits_behind_an_absent_client(true);
    if let Some(middle) = (!took.is_empty()).then(|| median(took.clone())) {
        assert!(middle < ms(60), "{middle:?}");
        assert!(took.iter().all(|took| *took < BELOW_A_POLL), "{took:?}");
    }
}

// A queue drops clients without a recent attempt. The 1000 dead clients attempted recently, so the release
// itself must pass them over.
scenario!(median_delay_by_1000_dead_waiters_is_under_50_ms, |world| {
    let (holder, waiter) = (client(world), client(world));
    let mut took = Vec::new();
    for round in 0..5 {
        let name = format!("thousand-{round}");
        let held = holder.get_lock(&name).acquire().unwrap();
        let waiting = call(turn(waiter.get_lock(&name)));
        await_queued(world, &name, 1);
        let line = queue_key(&name);
        let (seconds, _micros): (u64, u64) = world.run(&["TIME"]);
        let score = ((seconds - 60 - 1_700_000_000) * 10_000_000 + seconds % 100).to_string();
        let dead: Vec<String> =
            (0..1_000).map(|number| format!("00000000-0000-8000-8000-{number:012}")).collect();
        let places = dead.iter().flat_map(|dead| [score.as_str(), dead]);
        let add: Vec<&str> = ["ZADD", &line].into_iter().chain(places).collect();
        world.does(&add);
        let released = now();
        held.unlock().unwrap();
        let had = waiting.outcome().0;
        took.push(had.saturating_duration_since(released).saturating_sub(stalled_since(released)));
    }
    shout(&format!("MEASURED behind a thousand that are dead: {took:?}"));
    assert!(median(took.clone()) < ms(50), "{took:?}");
    assert!(took.iter().all(|took| *took < BELOW_A_POLL), "{took:?}");
});

// Redisson's `forceUnlock` deletes the key and publishes on the release channel, and does not notify the wait
// queue. One waiter of the queue listens to that channel.
scenario!(redissons_force_unlock_is_noticed_within_50_ms, |world| {
    const ROUNDS: usize = 20;
    let holder = client(world);
    let waiters: Vec<_> = (0..3).map(|_| client(world)).collect();
    let mut took = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("forced-{round}");
        let listeners = || listeners(world, &name);
        let held = holder.get_lock(&name).acquire().unwrap();
        let waiting: Vec<_> = waiters.iter().map(|waiter| call(turn(waiter.get_lock(&name)))).collect();
        await_queued(world, &name, waiting.len());
        if round % 2 == 0 {
            assert!(eventually(LONG, || listeners() == 1), "{} clients listen", listeners());
        }
        let forced = now();
        let removed: i64 = world.server.admin().del(&name).unwrap();
        assert_eq!(removed, 1);
        world.does(&["PUBLISH", &channel(&name), "0"]);
        let had = waiting.into_iter().map(|waiting| waiting.outcome().0).min().unwrap();
        took.push(had.saturating_duration_since(forced).saturating_sub(stalled_since(forced)));
        assert!(eventually(LONG, || listeners() == 0), "a client that was served still listens");
        drop(held);
    }
    took.sort_unstable();
    let (middle, nine_of_ten) = (took[ROUNDS / 2], took[ROUNDS * 9 / 10 - 1]);
    shout(&format!(
        "MEASURED after a lock was forced open: {middle:?} at the middle, {nine_of_ten:?} in nine of ten"
    ));
    assert!(nine_of_ten <= ms(50), "{took:?}");
});

// The holder's id is a UUID of version 8, as our clients' ids are, but its release does not notify the queue.
scenario!(releases_by_other_programs_with_our_id_format_are_noticed, |world| {
    const ROUNDS: usize = 20;
    let waiter = client(world);
    let mut took = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("stranger-{round}");
        world.does(&["HSET", &name, "8a3f0e0e-0000-8000-8000-000000000001:7", "1"]);
        world.does(&["PEXPIRE", &name, "60000"]);
        let waiting = call(turn(waiter.get_lock(&name)));
        await_queued(world, &name, 1);
        let released = now();
        world.does(&["DEL", &name]);
        world.does(&["PUBLISH", &channel(&name), "0"]);
        let had = waiting.outcome().0;
        took.push(had.saturating_duration_since(released).saturating_sub(stalled_since(released)));
    }
    took.sort_unstable();
    assert!(took[ROUNDS * 9 / 10 - 1] <= ms(50), "{took:?}");
});

/// The holder has all permissions. The waiter lacks those for the queue, or only that for its own channel.
#[test]
fn a_waiter_without_rights_to_the_queue_is_woken() {
    let old = "~* resetkeys ~rights &redisson_lock__channel:{rights}";
    let deaf = "~* &redisson_lock__channel:{rights}";
    for rights in [old, deaf] {
        let user = move |builder: Builder| builder.user(&format!("old on >pw resetchannels +@all {rights}"));
        scenario_on(user, |world| {
            let holder = client(world);
            let builder = world.builder_to(&world.server.url()).lease(LEASE);
            let limited = builder.username("old").password("pw").build().unwrap();
            for _ in 0..5 {
                let (before, begun) = (world.scripts_run(), now());
                let held = holder.get_lock("rights").acquire().unwrap();
                let waiting = call(turn(limited.get_lock("rights")));
                let listens = || listeners(world, "rights") == 1;
                assert!(eventually(LONG, listens), "the waiter does not listen to releases");
                let released = now();
                held.unlock().unwrap();
                waiting.outcome();
                within(released, ms(100), "taking over");
                let (ran, polls) = (world.scripts_run() - before, begun.elapsed().as_secs());
                assert!(ran <= 12 + polls, "{ran} scripts for two grants");
            }
        });
    }
}

scenario!(a_waiter_joining_while_server_memory_is_full_is_woken, |world| {
    let (holder, waiter) = (client(world), client(world));
    let held = holder.get_lock("full").acquire().unwrap();
    world.does(&["CONFIG", "SET", "maxmemory", "1"]);
    let waiting = call(turn(waiter.get_lock("full")));
    assert!(eventually(LONG, || listeners(world, "full") == 1), "the waiter does not listen to releases");
    world.does(&["CONFIG", "SET", "maxmemory", "0"]);
    let released = now();
    held.unlock().unwrap();
    waiting.outcome();
    within(released, ms(100), "taking over");
});

scenario!(waiters_are_served_after_the_server_loses_all_data, |world| {
    for _ in 0..3 {
        let held = client(world).get_lock("data").acquire().unwrap();
        let clients: Vec<_> = (0..4).map(|_| client(world)).collect();
        let waiting: Vec<_> = clients.iter().map(|client| call(turn(client.get_lock("data")))).collect();
        await_queued(world, "data", 4);
        let lost = now();
        world.does(&["FLUSHALL"]);
        let mut turns: Vec<_> = waiting.into_iter().map(|waiter| waiter.outcome().0).collect();
        turns.sort_unstable();
        let mut free_since = lost;
        for had in turns {
            let gap = had.saturating_duration_since(free_since);
            assert!(gap <= P + SLACK + stalled_since(lost), "the lock was free for {gap:?}");
            free_since = had;
        }
        drop(held);
    }
});

scenario!(a_waiter_for_a_deleted_key_takes_over_within_a_poll, |world| {
    let held = client(world).get_lock("deleted").acquire().unwrap();
    let waiter = client(world);
    let waiting = call(turn(waiter.get_lock("deleted")));
    await_queued(world, "deleted", 1);
    let deleted = now();
    let removed: i64 = world.server.admin().del("deleted").unwrap();
    assert_eq!(removed, 1);
    waiting.returns_within(deleted, P, "taking over");
    drop(held);
});

/// The release removes the first client from the queue, has no right to notify it, and puts it back. The
/// queue must still expire. Found by `tests/proof`.
#[test]
fn a_release_without_right_to_notify_leaves_an_expiring_queue() {
    let user =
        |builder: Builder| builder.user("mute on >pw resetchannels +@all ~* &redisson_lock__channel:{mute}");
    scenario_on(user, |world| {
        let builder = world.builder_to(&world.server.url()).lease(LEASE);
        let holder = builder.username("mute").password("pw").build().unwrap();
        let held = holder.get_lock("mute").acquire().unwrap();
        world.does(&["ZADD", &queue_key("mute"), "1", "8a3f0e0e-0000-8000-8000-000000000001"]);
        world.does(&["PEXPIRE", &queue_key("mute"), "30000"]);
        held.unlock().unwrap();
        assert_eq!(queued_clients(world, "mute"), 1);
        let left: i64 = world.run(&["PTTL", &queue_key("mute")]);
        assert!((1..=60_000).contains(&left), "{left}");
        world.does(&["DEL", &queue_key("mute")]);
    });
}

// A hand-off does not touch the queue, so the new holder removes its client's queue place itself.
scenario!(a_waiter_served_locally_removes_its_clients_queue_place, |world| {
    for _ in 0..5 {
        let held = client(world).get_lock("handed").acquire().unwrap();
        let other = client(world);
        let ((had, is_had), (go, may_go)) = (bounded(1), bounded::<()>(1));
        let waiting = call_on(other.get_lock("handed"), move |lock| {
            let guard = lock.acquire().unwrap();
            had.send(()).unwrap();
            may_go.recv().unwrap();
            guard.unlock().unwrap();
        });
        await_queued(world, "handed", 1);
        // Deleting the key notifies nobody. This try acquires the lock and hands it to the waiter, unless the
        // waiter polls first.
        world.does(&["DEL", "handed"]);
        if let Some(tried) = other.get_lock("handed").try_acquire().unwrap() {
            tried.unlock().unwrap();
        }
        drop(held);
        is_had.recv().unwrap();
        crate::support::comes_within(now(), T, "leaving the line", || queued_clients(world, "handed") == 0);
        go.send(()).unwrap();
        waiting.outcome();
    }
});

// Both ways are tested: plain locks are acquired by one script, but beside a fair lock by a request each.
scenario!(trying_a_multi_lock_acquires_locks_reserved_for_others, |world| {
    let client = client(world);
    let reserve = |name: &str| {
        let next = format!("leasehold_lock_next:{{{name}}}");
        let stranger = "00000000-0000-8000-8000-000000000000";
        world.run::<()>(&["SET", &next, stranger, "PX", "50"]);
    };
    for other in [client.get_lock("other"), client.get_fair_lock("fair")] {
        reserve("kept");
        let group = client.get_multi_lock([client.get_lock("kept"), other]);
        assert!(group.try_lock().unwrap());
        group.unlock().unwrap();
    }
    reserve("kept");
    assert!(client.get_lock("kept").try_lock().unwrap());
    client.get_lock("kept").unlock().unwrap();
});
