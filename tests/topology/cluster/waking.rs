//! Which waiters a release wakes, if clients publish and subscribe by plain commands, sharded ones or both.

use leasehold::ClusterPubSub;

use super::load::{POLL, builder, on_cluster};
use crate::support::cluster::Cluster;
use crate::support::prelude::*;

use ClusterPubSub::{Auto, Both, Plain, Sharded};

fn client(cluster: &Cluster, way: ClusterPubSub) -> LockClient {
    builder(cluster).cluster_pub_sub(way).build().unwrap()
}

/// The time from a release to a waiter's grant. The release comes after each PUBSUB subcommand in `ways` has
/// shown the waiter's subscription.
fn woken(cluster: &Cluster, [from, to]: [&LockClient; 2], ways: &[&str]) -> Duration {
    let name = fresh("wake");
    let held = from.get_lock(&name).acquire().unwrap();
    let waiter = call(turn(to.get_lock(&name)));
    let ask = |asked: &[&str]| cluster.ask(cluster.primary_of(&name), asked);
    let listens = || ways.iter().all(|way| listening_clients(&name, way, ask) > 0);
    assert!(eventually(LONG, listens), "the client does not listen by {ways:?}");
    let released = now();
    held.unlock().unwrap();
    waiter.join().saturating_duration_since(released)
}

#[test]
fn plain_and_sharded_messages_wake_their_subscribers_on_a_cluster() {
    on_cluster(|cluster| {
        let woken = |from, to, times| {
            let ways: &[_] = match to {
                Plain => &["NUMSUB"],
                Both => &["SHARDNUMSUB", "NUMSUB"],
                _ => &["SHARDNUMSUB"],
            };
            let clients = [from, to].map(|way| client(cluster, way));
            median((0..times).map(|_| woken(cluster, clients.each_ref(), ways)).collect())
        };
        let same = [Auto, Sharded, Plain, Both].map(|way| (way, way));
        for (from, to) in same.into_iter().chain([(Both, Sharded), (Both, Plain), (Plain, Both)]) {
            let begun = now();
            let took = woken(from, to, 11);
            shout(&format!("COUNTED cluster, woken {from:?} to {to:?}: median {took:?}"));
            assert!(took <= ms(50) + stalled_since(begun), "{from:?} to {to:?}: {took:?}");
        }
        // A waiter on a sharded channel gets no plain message, so it polls.
        let begun = now();
        assert!(woken(Plain, Sharded, 1) <= POLL + stalled_since(begun));
    });
}

/// Two writers of other clients wait behind a writer or a reader. They would poll only each second.
#[test]
fn each_release_wakes_a_waiting_writer_within_50_ms() {
    on_cluster(|cluster| {
        let clients = [(); 3].map(|()| client(cluster, Auto));
        for round in 0..30 {
            let name = fresh("writers");
            let lock = |place: usize| clients[(round + place) % 3].get_read_write_lock(&name);
            let held = if round % 2 == 0 { lock(0).write().acquire() } else { lock(0).read().acquire() };
            let held = held.unwrap();
            let writers = [1, 2].map(|place| call(turn(lock(place).write().clone())));
            let line = format!("leasehold_lock_queue:{{{name}}}");
            let turns = format!("leasehold_wake:{{{name}}}:*");
            let wait = || {
                let home = cluster.primary_of(&name);
                cluster.ask::<i64>(home, &["ZCARD", &line]) == 2
                    && cluster.ask::<Vec<String>>(home, &["PUBSUB", "SHARDCHANNELS", &turns]).len() == 2
            };
            assert!(eventually(LONG, wait), "the clients do not wait in the queue");
            let mut freed = now();
            held.unlock().unwrap();
            let mut had = writers.map(Call::outcome);
            had.sort_unstable();
            for (had, released) in had {
                let took = had.saturating_duration_since(freed);
                assert!(took <= ms(50) + slack_since(freed), "round {round}: {took:?} after the release");
                freed = released;
            }
        }
    });
}
