//! Who hears of a release, by which way of telling.

use std::time::Duration;

use leasehold::{ClusterPubSub, LockClient};

use crate::load::{POLL, assert_nothing_is_left, builder};
use crate::support::cluster::Cluster;
use crate::support::{eventually, now, shout};
use crate::tools::{LONG, alone_within, call, ms, stalled_since};

use ClusterPubSub::{Auto, Both, Plain, Sharded};

fn client(cluster: &Cluster, way: ClusterPubSub) -> LockClient {
    builder(cluster).cluster_pub_sub(way).build().unwrap()
}

/// Whether somebody listens to the lock's channel at its member, by the command.
fn listens(cluster: &Cluster, name: &str, command: &str) -> bool {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    let (_, count): (String, i64) = cluster.ask(cluster.primary_of(name), &["PUBSUB", command, &channel]);
    count > 0
}

/// How long after a release by `from` a waiter at `to` has the lock.
fn woken(cluster: &Cluster, from: &LockClient, to: &LockClient, ways: &[&str]) -> Duration {
    let name = crate::support::fresh("wake");
    let held = from.lock(&name).acquire().unwrap();
    let lock = to.lock(&name);
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
fn each_way_of_telling_wakes_those_who_listen_that_way() {
    alone_within(LONG * 6, || {
        stalled_since(now());
        let Some(cluster) = Cluster::start() else { return };
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
            let (teller, waiter) = (client(&cluster, from), client(&cluster, to));
            let mut took: Vec<_> = (0..11).map(|_| woken(&cluster, &teller, &waiter, ways)).collect();
            took.sort_unstable();
            shout(&format!(
                "COUNTED cluster, woken {from:?} to {to:?}: median {:?}, worst {:?}",
                took[5], took[10]
            ));
            assert!(took[5] <= ms(50) + stalled_since(begun), "{from:?} to {to:?}: {took:?}");
        }
        // Who listens otherwise is told nothing, and finds out by polling.
        let took = woken(&cluster, &client(&cluster, Plain), &client(&cluster, Sharded), &sharded);
        assert!(took <= POLL + stalled_since(begun), "{took:?}");
        assert_nothing_is_left(&cluster);
    });
}

/// One connection for wake-ups on each member that has a channel, and a thread for each; none before.
#[test]
fn a_member_is_listened_to_when_somebody_waits_for_a_lock_of_its() {
    alone_within(LONG * 6, || {
        stalled_since(now());
        let Some(cluster) = Cluster::start() else { return };
        let (holder, waiter) = (client(&cluster, Auto), client(&cluster, Auto));
        let hubs = || {
            let names = crate::support::epilogue::threads().unwrap_or_default();
            names.iter().filter(|name| name.starts_with("leasehold-hub")).count()
        };
        let names: Vec<_> = (0..3).map(|primary| cluster.name_on(primary, "hubs")).collect();
        let held: Vec<_> = names.iter().map(|name| holder.lock(name).acquire().unwrap()).collect();
        assert_eq!(hubs(), 0);
        let waiting: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(at, name)| {
                let lock = waiter.lock(name);
                let waiting = call(move || {
                    lock.lock().unwrap();
                    lock.unlock().unwrap();
                });
                assert!(eventually(LONG, || listens(&cluster, name, "SHARDNUMSUB")));
                assert_eq!(hubs(), at + 1);
                waiting
            })
            .collect();
        held.into_iter().for_each(|guard| guard.unlock().unwrap());
        waiting.into_iter().for_each(|waiting| waiting.outcome().0);
        drop((holder, waiter));
        assert_nothing_is_left(&cluster);
    });
}
