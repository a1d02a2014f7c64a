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
