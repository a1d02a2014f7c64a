//! A ring, in which each server has a part of the names: a lost node, and grants while the ring changes.
//!
//! `LEASEHOLD_ROUNDS` (by default 2) is how often nodes come and go in the test under load.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

use leasehold::{Ring, RingNode};

use crate::support::prelude::*;
use crate::support::random;

const MARK: &str = "leasehold_ring_epoch";

fn servers(count: usize) -> Option<Vec<RedisServer>> {
    watch_for_stalls();
    let binary = default_server()?;
    Some((0..count).map(|_| RedisServer::builder(&binary).append_only("everysec").start()).collect())
}

/// Nodes for the servers at these indexes. Their labels keep each name on its node, whatever the ports.
fn nodes(servers: &[RedisServer], places: impl IntoIterator<Item = usize>) -> Vec<RingNode> {
    places
        .into_iter()
        .map(|place| RingNode::new(servers[place].url()).label(format!("node-{place}")))
        .collect()
}

fn client(ring: Ring) -> LockClient {
    builder(ring).build().unwrap()
}

/// A client with a long time-out, for steps in which answers are slow.
fn unhurried(ring: Ring) -> LockClient {
    builder(ring).command_timeout(ms(10_000)).build().unwrap()
}

fn builder(ring: Ring) -> ClientBuilder {
    LockClient::builder()
        .lease(ms(20_000))
        .command_timeout(ms(1_000))
        .connect_timeout(ms(5_000))
        .retry_timeout(ms(1_500))
        .ring(ring)
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|name| format!("name-{name}")).collect()
}

/// A server's keys, except the mark (the ring's version) and directory entries.
fn keys(server: &RedisServer) -> Vec<String> {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.admin()).unwrap();
    keys.retain(|key| key != MARK && !key.starts_with("leasehold_client:"));
    keys
}

fn places(servers: &[RedisServer]) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (place, server) in servers.iter().enumerate() {
        for key in keys(server) {
            assert_eq!(found.insert(key, place), None, "a name is held on two servers");
        }
    }
    found
}

fn homes(client: &LockClient, names: &[String], servers: &[RedisServer]) -> BTreeMap<String, usize> {
    let guards: Vec<Guard> = names.iter().map(|name| client.get_lock(name).acquire().unwrap()).collect();
    let found = places(servers);
    guards.into_iter().for_each(|guard| guard.unlock().unwrap());
    assert_eq!(found.len(), names.len());
    found
}

test_on!(a_moved_name_is_granted_only_after_its_hold_ends, servers(3), |servers| {
    let (two, three) = (nodes(&servers, 0..2), nodes(&servers, 0..3));
    let moving = || Ring::new(three.clone()).epoch(2).moving_from(two.clone());
    let slow = LockClient::builder()
        .lease(ms(3_000))
        .retry_timeout(ms(300))
        .ring(Ring::new(two.clone()))
        .build()
        .unwrap();
    let (quick, asleep) = (client(Ring::new(two.clone())), client(Ring::new(two.clone())));
    let names = names(60);
    let guards: Vec<Guard> = names.iter().map(|name| slow.get_lock(name).acquire().unwrap()).collect();
    let before = places(&servers);

    quick.change_ring(moving()).unwrap();
    let fresh = client(moving());
    let none_is_free = || {
        for client in [&quick, &fresh] {
            assert!(names.iter().all(|name| !client.get_lock(name).try_lock().unwrap()));
            assert!(names.iter().all(|name| client.get_lock(name).is_locked().unwrap()));
            assert!(names.iter().all(|name| !client.get_token_lock(name).try_lock().unwrap_or(false)));
        }
    };
    none_is_free();
    throughout(ms(3_500), || guards.iter().all(|guard| guard.check().is_ok()));
    assert!(slow.get_lock(&names[0]).try_lock().unwrap());
    slow.get_lock(&names[0]).unlock().unwrap();
    fails_saying(slow.get_lock("another").try_lock(), ErrorKind::StaleRing, "change_ring");
    assert!(slow.get_lock("another").try_lock_for(ms(50)).is_err());
    none_is_free();
    assert_eq!(places(&servers), before, "a hold has moved");
    slow.change_ring(moving()).unwrap();
    throughout(ms(3_500), || guards.iter().all(|guard| guard.check().is_ok()));
    for name in &names {
        assert!(slow.get_lock(name).try_lock().unwrap());
        assert_eq!(slow.get_lock(name).hold_count().unwrap(), 2);
        slow.get_lock(name).unlock().unwrap();
    }
    none_is_free();
    assert_eq!(places(&servers), before, "a hold has moved");

    guards.into_iter().for_each(|guard| guard.unlock().unwrap());
    let after = homes(&quick, &names, &servers);
    let moved = names.iter().filter(|name| before[*name] != after[*name]).count();
    assert!(moved > 5, "only {moved} names moved: this shows nothing");
    assert!(names.iter().all(|name| before[name] == after[name] || after[name] == 2));

    fails(LockClient::builder().ring(Ring::new(two.clone())).build(), ErrorKind::StaleRing);
    assert_eq!(homes(&slow, &names, &servers), after);
    // This list has no `moving_from`, so the move is over, and each name belongs to one node again.
    for client in [&slow, &quick, &fresh] {
        client.change_ring(Ring::new(three.clone()).epoch(3)).unwrap();
    }
    assert_eq!(homes(&fresh, &names, &servers), after);
    fails(asleep.get_lock("another").try_lock(), ErrorKind::StaleRing);
    asleep.change_ring(Ring::new(three.clone()).epoch(3)).unwrap();
    assert_eq!(homes(&asleep, &names, &servers), after);
    // A new list needs a higher epoch than the client's present list.
    fails(asleep.change_ring(moving()), ErrorKind::InvalidInput);
});

test_on!(a_ring_change_frees_no_fair_token_or_read_write_lock, servers(3), |servers| {
    let (two, three) = (nodes(&servers, 0..2), nodes(&servers, 0..3));
    let (holder, other) = (client(Ring::new(two.clone())), client(Ring::new(two.clone())));
    type Make = fn(&LockClient, &str) -> RedisLock;
    let kinds: [(&str, Make); 4] = [
        ("fair", |client, name| client.get_fair_lock(name)),
        ("read", |client, name| client.get_read_write_lock(name).read().clone()),
        ("write", |client, name| client.get_read_write_lock(name).write().clone()),
        ("token", |client, name| client.get_token_lock(name)),
    ];
    let names = names(20);
    let of = |kind: &str, name: &str| format!("{kind}-{name}");
    for (kind, make) in kinds {
        names.iter().for_each(|name| make(&holder, &of(kind, name)).lock().unwrap());
    }
    for client in [&holder, &other] {
        client.change_ring(Ring::new(three.clone()).epoch(2).moving_from(two.clone())).unwrap();
    }
    let mut would_deadlock = 0;
    for name in &names {
        for (kind, make) in kinds {
            let taken = make(&other, &of(kind, name)).try_lock().unwrap();
            // A second reader is granted too, unless the name has moved to another node.
            assert!(!taken || kind == "read", "{kind} {name} was granted twice");
        }
        // A writer may also read. But a read on the name's new node would wait for the writer's own hold on
        // the old node.
        match holder.get_read_write_lock(of("write", name)).read().try_lock() {
            Ok(taken) => assert!(taken),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldDeadlock);
                would_deadlock += 1;
            }
        }
    }
    assert!(would_deadlock > 0 && would_deadlock < names.len(), "{would_deadlock} names moved");
    for (kind, make) in kinds {
        names.iter().for_each(|name| make(&holder, &of(kind, name)).unlock().unwrap());
    }
    for name in &names {
        assert!(other.get_fair_lock(of("fair", name)).try_lock().unwrap());
        assert!(other.get_token_lock(of("token", name)).try_lock().unwrap());
        assert!(other.get_read_write_lock(of("read", name)).read().try_lock().unwrap());
    }
});

test_on!(waiters_are_woken_by_the_new_node_after_a_ring_change, servers(3), |servers| {
    let (two, three) = (nodes(&servers, 0..2), nodes(&servers, 0..3));
    let moving = || Ring::new(three.clone()).epoch(2).moving_from(two.clone());
    // Until the waiter learns of the change, its attempts fail, so its retry time-out is long.
    let waiting = builder(Ring::new(two.clone())).retry_timeout(LONG * 3).build().unwrap();
    let holder = client(Ring::new(two.clone()));
    let names = names(24);
    let guards: Vec<Guard> = names.iter().map(|name| holder.get_lock(name).acquire().unwrap()).collect();
    let before = places(&servers);
    let (got, told) = unbounded();
    thread::scope(|scope| {
        for name in &names {
            let (lock, got) = (waiting.get_lock(name), got.clone());
            scope.spawn(move || {
                let guard = lock.acquire().unwrap();
                got.send((name, now())).unwrap();
                guard.unlock().unwrap();
            });
        }
        // Counts one channel for each waiter. The first waiter in a queue may also listen to Redisson's
        // channel, so counting that channel would count the waiter twice.
        let listening = |server: &RedisServer| -> usize {
            let channels: Vec<String> =
                redis::cmd("PUBSUB").arg("CHANNELS").query(&mut server.admin()).unwrap();
            channels.iter().filter(|channel| !channel.starts_with("redisson_lock__channel")).count()
        };
        comes_true_within(LONG, || listening(&servers[0]) + listening(&servers[1]) == names.len());
        holder.change_ring(moving()).unwrap();
        guards.into_iter().for_each(|guard| guard.unlock().unwrap());
        let again: Vec<(&String, Guard)> = names
            .iter()
            .filter_map(|name| Some((name, holder.get_lock(name).try_acquire().unwrap()?)))
            .filter(|(name, _)| places(&servers).get(*name) != before.get(*name))
            .collect();
        assert!(again.len() > 1, "nothing moved: this shows nothing");
        waiting.change_ring(moving()).unwrap();
        comes_true_within(LONG, || listening(&servers[2]) >= again.len());
        for (name, guard) in again {
            let released = now();
            guard.unlock().unwrap();
            let (_, at) = told.iter().find(|(got, _)| got == &name).unwrap();
            assert!(
                at - released < slack_since(released),
                "{name}: woken {:?} after its release",
                at - released
            );
        }
    });
});

test_on!(fencing_tokens_keep_rising_when_a_name_moves, servers(3), |servers| {
    let (two, three) = (nodes(&servers, 0..2), nodes(&servers, 0..3));
    let client = client(Ring::new(two.clone()));
    let names = names(30);
    let mut last = BTreeMap::new();
    for name in &names {
        // This puts the old node's fencing tokens an hour ahead, as a clock an hour fast would.
        client.get_fenced_lock(name).acquire().unwrap().unlock().unwrap();
        let counter = format!("redisson_lock_token:{{{name}}}");
        for server in &servers[..2] {
            let ahead =
                "if redis.call('exists', KEYS[1]) == 1 then redis.call('incrby', KEYS[1], 3600000000) end";
            redis::cmd("EVAL").arg(ahead).arg(1).arg(&counter).exec(&mut server.admin()).unwrap();
        }
        let guard = client.get_fenced_lock(name).acquire().unwrap();
        last.insert(name, guard.fencing_token().unwrap());
        guard.unlock().unwrap();
    }
    client.change_ring(Ring::new(three).epoch(2).moving_from(two)).unwrap();
    for name in &names {
        let guard = client.get_fenced_lock(name).acquire().unwrap();
        assert!(guard.fencing_token().unwrap() > last[name], "{name}");
        guard.unlock().unwrap();
    }
    assert!(!keys(&servers[2]).is_empty(), "no name moved");
});

test_on!(a_hanging_ring_node_affects_only_its_names, servers(3), |servers| {
    let client = LockClient::builder()
        .lease(ms(6_000))
        .command_timeout(ms(2_000))
        .connect_timeout(ms(5_000))
        .retry_timeout(ms(100))
        .ring(Ring::new(nodes(&servers, 0..3)))
        .build()
        .unwrap();
    let names = names(60);
    let homes = homes(&client, &names, &servers);
    let (held, free) = names.split_at(30);
    let guards: Vec<(usize, Guard)> =
        held.iter().map(|name| (homes[name], client.get_lock(name).acquire().unwrap())).collect();

    // The node is stopped and not killed, since a kill would end the connections at once.
    servers[1].stop();
    let mut slowest = Duration::ZERO;
    let start = now();
    while start.elapsed() < ms(9_000) {
        for name in free.iter().filter(|name| homes[*name] != 1) {
            let began = now();
            let guard = client.get_lock(name).acquire().unwrap();
            guard.unlock().unwrap();
            slowest = slowest.max(began.elapsed().saturating_sub(stalled_since(began)));
            for (home, guard) in &guards {
                let state = guard.state();
                let stalled = stalled_since(start) > ms(300);
                assert!(
                    *home == 1 || stalled || state == HoldState::Held,
                    "a name of node {home} is {state:?}"
                );
            }
        }
    }
    // A call that waited for the stopped node would take as long as the command time-out.
    assert!(slowest < ms(1_000) + stalled_since(start), "a name of a live node took {slowest:?}");
    shout(&format!("ring: one of three nodes hangs: slowest acquire and release elsewhere {slowest:?}"));
    for (home, guard) in guards {
        match home {
            1 => assert!(guard.check().is_err(), "a hold outlived its node"),
            _ => assert!(guard.unlock().is_ok() || stalled_since(start) > ms(1_500), "lost at node {home}"),
        }
    }
    let of_the_lost = free.iter().find(|name| homes[*name] == 1).unwrap();
    let error = client.get_lock(of_the_lost).try_lock().unwrap_err();
    assert!(error.is_retryable(), "{error}");
    servers[1].cont();
    comes_true_within(LONG, || client.get_lock(of_the_lost).try_lock().unwrap_or(false));
});

test_on!(a_ring_client_connects_while_one_node_is_down, servers(3), |mut servers| {
    let ring = Ring::new(nodes(&servers, 0..3));
    let (everybody, names) = (client(ring.clone()), names(60));
    let homes = homes(&everybody, &names, &servers);
    servers[2].kill();
    let client = client(ring);
    for name in &names {
        match client.get_lock(name).try_lock() {
            Ok(taken) => assert!(taken && homes[name] != 2),
            Err(error) => assert!(homes[name] == 2 && error.is_retryable(), "{name}: {error}"),
        }
    }
    servers[2].restart();
    for name in names.iter().filter(|name| homes[*name] == 2) {
        comes_true_within(LONG, || client.get_lock(name).try_lock().unwrap_or(false));
    }
});

test_on!(a_node_down_during_a_ring_change_blocks_its_names, servers(3), |mut servers| {
    let (two, three) = (nodes(&servers, 0..2), nodes(&servers, 0..3));
    let (slow, quick) = (client(Ring::new(two.clone())), client(Ring::new(two.clone())));
    let names = names(60);
    let before = homes(&slow, &names, &servers);

    servers[1].kill();
    quick.change_ring(Ring::new(three.clone()).epoch(2).moving_from(two.clone())).unwrap();
    let mut held_up = Vec::new();
    for name in &names {
        match quick.get_lock(name).try_acquire() {
            Ok(guard) => {
                assert_eq!(before[name], 0, "{name} was granted although its home could not be asked");
                guard.unwrap().unlock().unwrap();
            }
            Err(error) => {
                assert!(before[name] == 1 && error.is_retryable(), "{name}: {error}");
                held_up.push(name);
            }
        }
    }
    // This node knows only the old ring, so it grants locks to a client with that ring.
    servers[1].restart();
    for name in &held_up {
        comes_true_within(LONG, || slow.get_lock(name).try_lock().unwrap_or(false));
    }
    for name in &held_up {
        let mut taken = None;
        comes_true_within(LONG, || {
            taken = quick.get_lock(name).try_lock().ok();
            taken.is_some()
        });
        assert_eq!(taken, Some(false), "{name} was granted twice");
        slow.get_lock(name).unlock().unwrap();
        assert!(quick.get_lock(name).try_lock().unwrap());
    }
    fails(slow.get_lock("yet another").try_lock(), ErrorKind::StaleRing);
});

test_on!(a_removed_ring_node_blocks_its_names_until_declared_lost, servers(3), |mut servers| {
    let three = nodes(&servers, 0..3);
    let client = client(Ring::new(three.clone()));
    let names = names(60);
    let before = homes(&client, &names, &servers);
    let named = names.iter().find(|name| before[*name] == 2).unwrap();
    let held = client.get_lock(named).acquire_owned().unwrap();
    servers[2].kill();
    let mut from = three;
    let left = from[..2].to_vec();
    client.change_ring(Ring::new(left.clone()).epoch(2).moving_from(from.clone())).unwrap();
    let (theirs, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| before[*name] == 2);
    assert!(others.iter().all(|name| client.with_lock(name, |_guard| ()).is_ok()));
    for name in &theirs {
        let answer = client.get_lock(name).try_lock();
        // A lock that this client holds is busy, whichever node the name belongs to.
        assert!(if *name == named { !answer.unwrap() } else { answer.is_err() }, "granted without asking");
    }
    // `lost()` is the operator's word that no lock of this node is held any more.
    from[2] = from[2].clone().lost();
    let ring = Ring::new(left).epoch(2).moving_from(from);
    let other = self::client(ring.clone());
    client.change_ring(ring).unwrap();
    assert_eq!(receive(&held.lost(), LONG).unwrap().reason, LossReason::Gone);
    comes_true_within(LONG, || other.get_lock(named).try_lock().unwrap());
    assert!(others.iter().all(|name| client.get_lock(name).try_lock().unwrap()));
    let waits = |name: &&String| *name != named && !client.get_lock(name).try_lock().unwrap();
    comes_true_within(LONG, || !theirs.iter().any(&waits));
    client.shutdown().unwrap();
    assert!(held.check().is_err());
});

test_on!(an_emptied_ring_node_accepts_only_the_current_ring, servers(3), |servers| {
    let (two, three) = (nodes(&servers, 0..2), nodes(&servers, 0..3));
    let (slow, quick) = (client(Ring::new(two.clone())), client(Ring::new(two.clone())));
    quick.change_ring(Ring::new(three).epoch(2).moving_from(two)).unwrap();
    redis::cmd("FLUSHALL").exec(&mut servers[0].admin()).unwrap();
    for name in names(20) {
        assert_eq!(slow.get_lock(&name).try_lock().unwrap_err().kind(), ErrorKind::StaleRing, "{name}");
    }
    assert!(names(20).iter().all(|name| quick.get_lock(name).try_lock().unwrap()));
    assert!(redis::cmd("GET").arg(MARK).query::<String>(&mut servers[0].admin()).unwrap().starts_with("2 "));
    // A client that has heard of a newer ring does not use its own again, even if the nodes lose the mark.
    servers.iter().for_each(|server| redis::cmd("DEL").arg(MARK).exec(&mut server.admin()).unwrap());
    for name in names(20) {
        assert_eq!(slow.get_lock(&name).try_lock().unwrap_err().kind(), ErrorKind::StaleRing, "{name}");
    }
    let older = quick.change_ring(Ring::new(nodes(&servers, 0..2)).epoch(1));
    fails(older, ErrorKind::InvalidInput);
});

#[derive(Default)]
struct Tally {
    inside: Vec<AtomicU32>,
    grants: AtomicU64,
    stale: AtomicU64,
    stop: AtomicBool,
}

impl Tally {
    /// Acquires random names until `stop`, and panics if a name has two holders.
    fn work(&self, client: &LockClient, names: &[String]) {
        while !self.stop.load(Ordering::SeqCst) {
            let at = random() as usize % names.len();
            match client.get_lock(&names[at]).try_acquire_for(ms(20)) {
                Ok(Some(guard)) => {
                    assert_eq!(
                        self.inside[at].fetch_add(1, Ordering::SeqCst),
                        0,
                        "{} was granted twice",
                        names[at]
                    );
                    for _ in 0..random() % 20 {
                        thread::yield_now();
                    }
                    self.grants.fetch_add(1, Ordering::SeqCst);
                    self.inside[at].fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().unwrap();
                }
                Ok(None) => {}
                Err(error) => {
                    assert!(error.kind() == ErrorKind::StaleRing || error.is_retryable(), "{error}");
                    self.stale.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    }
}

#[test]
fn no_name_is_granted_twice_while_nodes_change_under_load() {
    const NAMES: usize = 1_000;
    let rounds = crate::rounds();
    let Some(servers) = servers(9) else { return };
    let names = names(NAMES);
    let (eight, nine) = (nodes(&servers, 0..8), nodes(&servers, 0..9));
    let clients: Vec<LockClient> = (0..4).map(|_| unhurried(Ring::new(eight.clone()))).collect();
    let mut epoch = 1;
    let mut before = homes(&clients[0], &names, &servers);
    let (mut grants, mut stale, mut least, mut most) = (0, 0, 1.0_f64, 0.0_f64);
    for round in 0..rounds {
        for (from, to, coming) in [(&eight, &nine, true), (&nine, &eight, false)] {
            let tally =
                Tally { inside: names.iter().map(|_| AtomicU32::new(0)).collect(), ..Tally::default() };
            thread::scope(|scope| {
                // `Raise` ends the workers even if this thread panics, so that the scope ends too.
                let ends = Raise(&tally.stop);
                for client in &clients {
                    for _ in 0..3 {
                        scope.spawn(|| tally.work(client, &names));
                    }
                }
                let progress = |more: u64| {
                    let reached = tally.grants.load(Ordering::SeqCst) + more;
                    comes_true_within(LONG, || tally.grants.load(Ordering::SeqCst) >= reached);
                };
                progress(300);
                // A client with the old list holds these locks until all clients have the new list.
                let mine: Vec<(usize, Guard)> = (0..NAMES)
                    .step_by(10)
                    .filter_map(|at| {
                        let guard = clients[3].get_lock(&names[at]).try_acquire_for(ms(500)).unwrap()?;
                        assert_eq!(tally.inside[at].fetch_add(1, Ordering::SeqCst), 0);
                        Some((at, guard))
                    })
                    .collect();
                assert!(mine.len() > NAMES / 20);
                epoch += 1;
                for client in &clients {
                    client.change_ring(Ring::new(to.clone()).epoch(epoch).moving_from(from.clone())).unwrap();
                    progress(100);
                }
                for (at, guard) in mine {
                    tally.inside[at].fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().unwrap();
                }
                progress(300);
                drop(ends);
            });
            epoch += 1;
            for client in &clients {
                client.change_ring(Ring::new(to.clone()).epoch(epoch)).unwrap();
            }
            let after = homes(&clients[random() as usize % 4], &names, &servers);
            let moved = names.iter().filter(|name| before[*name] != after[*name]).count();
            let due = NAMES as f64 / 9.0;
            let share = moved as f64 / due;
            assert!((share - 1.0).abs() < 0.20, "{moved} of {NAMES} names moved, {due} were due");
            let moves = names.iter().filter(|name| before[*name] != after[*name]);
            let changed = if coming { &after } else { &before };
            assert!(moves.clone().all(|name| changed[name] == 8), "a name moved between nodes that stayed");
            (least, most) = (least.min(share), most.max(share));
            grants += tally.grants.load(Ordering::SeqCst);
            stale += tally.stale.load(Ordering::SeqCst);
            before = after;
        }
        assert!(stale > 0, "round {round}: no client ever was stale: this shows nothing");
    }
    shout(&format!(
        "ring: {} changes of 8 to 9 nodes and back, 1,000 names, 4 clients: {grants} grants, none twice; {stale} calls \
         were told of the change; moved {least:.2} to {most:.2} of 1/N",
        rounds * 2
    ));
}
