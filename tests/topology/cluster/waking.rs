//! The waiters that a release wakes, by publish mode.

use leasehold::ClusterPubSub;

use super::load::{POLL, builder, on_cluster};
use crate::support::cluster::Cluster;
use crate::support::prelude::*;

use ClusterPubSub::{Auto, Both, Plain, Sharded};

fn client(cluster: &Cluster, way: ClusterPubSub) -> LockClient {
    builder(cluster).cluster_pub_sub(way).build().unwrap()
}

fn listens(cluster: &Cluster, name: &str, command: &str) -> bool {
    listening_clients(name, command, |asked| cluster.ask(cluster.primary_of(name), asked)) > 0
}

fn listeners(cluster: &Cluster, name: &str, command: &str, channel: &str) -> i64 {
    let (_, count): (String, i64) = cluster.ask(cluster.primary_of(name), &["PUBSUB", command, channel]);
    count
}

/// The time from a release by `from` to the grant to a waiter at `to`.
fn woken(cluster: &Cluster, from: &LockClient, to: &LockClient, ways: &[&str]) -> Duration {
    let name = crate::support::fresh("wake");
    let held = from.get_lock(&name).acquire().unwrap();
    let lock = to.get_lock(&name);
    let waiting = call(move || {
        lock.lock().unwrap();
        let at = now();
        lock.unlock().unwrap();
        at
    });
    let listens = || ways.iter().all(|way| listens(cluster, &name, way));
    assert!(eventually(LONG, listens), "it does not listen by {ways:?}");
    let released = now();
    held.unlock().unwrap();
    let (at, _) = waiting.outcome();
    at.saturating_duration_since(released)
}

#[test]
fn each_publish_mode_wakes_its_subscribers() {
    on_cluster(|cluster| {
        let begun = now();
        let (sharded, plain, both) = (["SHARDNUMSUB"], ["NUMSUB"], ["SHARDNUMSUB", "NUMSUB"]);
        let pairs: [(_, _, &[&str]); 7] = [
            (Auto, Auto, &sharded),
            (Sharded, Sharded, &sharded),
            (Plain, Plain, &plain),
            (Both, Both, &both),
            (Both, Sharded, &sharded),
            (Both, Plain, &plain),
            (Plain, Both, &both),
        ];
        for (from, to, ways) in pairs {
            let (teller, waiter) = (client(cluster, from), client(cluster, to));
            let mut took: Vec<_> = (0..11).map(|_| woken(cluster, &teller, &waiter, ways)).collect();
            took.sort_unstable();
            shout(&format!(
                "COUNTED cluster, woken {from:?} to {to:?}: median {:?}, worst {:?}",
                took[5], took[10]
            ));
            assert!(took[5] <= ms(50) + stalled_since(begun), "{from:?} to {to:?}: {took:?}");
        }
        // Waiters of the other mode get no message, and poll.
        let took = woken(cluster, &client(cluster, Plain), &client(cluster, Sharded), &sharded);
        assert!(took <= POLL + stalled_since(begun), "{took:?}");
    });
}

/// Two writers of other clients wait behind a writer or a reader. A release wakes one; the poll would come a
/// second after they began to listen.
#[test]
fn a_release_wakes_waiting_writers() {
    on_cluster(|cluster| {
        let clients: Vec<_> = (0..3).map(|_| client(cluster, Auto)).collect();
        for round in 0..30 {
            let name = crate::support::fresh("writers");
            let home = cluster.primary_of(&name);
            let lock = clients[round % 3].get_read_write_lock(&name);
            let half = if round % 2 == 0 { lock.write() } else { lock.read() };
            let held = half.acquire().unwrap();
            let waiting: Vec<_> = (1..3)
                .map(|next| {
                    let lock = clients[(round + next) % 3].get_read_write_lock(&name);
                    call(move || {
                        let guard = lock.write().acquire().unwrap();
                        let had = now();
                        guard.unlock().unwrap();
                        (had, now())
                    })
                })
                .collect();
            let line = format!("leasehold_lock_queue:{{{name}}}");
            let in_line = || cluster.ask::<i64>(cluster.primary_of(&name), &["ZCARD", &line]);
            let turns: Vec<_> =
                clients.iter().map(|client| format!("leasehold_wake:{{{name}}}:{}", client.id())).collect();
            let hear =
                || turns.iter().map(|turn| listeners(cluster, &name, "SHARDNUMSUB", turn)).sum::<i64>();
            assert!(eventually(LONG, || in_line() == 2 && hear() == 2), "they wait for their turns");
            let mut freed = now();
            held.unlock().unwrap();
            let mut turns: Vec<_> = waiting.into_iter().map(|waiting| waiting.outcome().0).collect();
            turns.sort_unstable();
            for (had, released) in turns {
                let (took, stalled) = (had.saturating_duration_since(freed), stalled_since(freed));
                assert!(
                    took <= ms(50) + SLACK + stalled,
                    "round {round}: {took:?} after the release (the machine itself stalled {stalled:?}); its member was \
                     {home} and is {}",
                    cluster.primary_of(&name)
                );
                freed = released;
            }
        }
    });
}
