//! Which members of a cluster a client accepts, and how many requests it sends to them.

use leasehold::ClusterPubSub;

use super::load::{assert_all_was_given_back, builder, on_cluster};
use crate::support::cluster::Cluster;
use crate::support::prelude::*;
#[cfg(feature = "tls")]
use crate::support::server::default_server;

#[test]
fn one_reachable_member_is_enough_to_connect() {
    on_cluster(|cluster| {
        let replica = cluster.members[cluster.replica_of(0)].port();
        // No server listens at the first address, and the second one is a replica's.
        let url = format!("redis-cluster://127.0.0.1:1,127.0.0.1:{replica}/");
        let client = builder(cluster).url(&url).build().unwrap();
        for primary in 0..3 {
            client.get_lock(cluster.name_on(primary, "begin")).acquire().unwrap().unlock().unwrap();
        }
        let error = LockClient::connect("redis-cluster://127.0.0.1:1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    });
}

#[test]
fn cluster_urls_and_server_urls_are_not_interchangeable() {
    alone_within(LONG * 6, || {
        let Some(cluster) = Cluster::start() else { return };
        let Some(server) = RedisServer::start_default() else { return };
        let error = LockClient::connect(format!("redis-cluster://127.0.0.1:{}", server.port())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("redis://"), "{error}");
        let client = LockClient::connect(cluster.members[0].url()).unwrap();
        let error = client.get_lock(cluster.name_on(1, "elsewhere")).try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("cluster"), "{error}");
    });
}

#[test]
fn names_whose_keys_span_slots_are_refused() {
    alone_within(LONG * 6, || {
        let Some(cluster) = Cluster::start() else { return };
        let client = builder(&cluster).build().unwrap();
        let before = scripts_run(&cluster);
        for name in ["a}b", "a{b", "{}x", "x{}y{t}", "}{"] {
            for lock in [client.get_lock(name), leasehold::RedisLock::clone(&client.get_fenced_lock(name))] {
                let error = lock.try_lock().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
                assert!(error.to_string().contains("braces"), "{error}");
                assert!(lock.is_locked().is_err());
            }
        }
        assert_eq!(scripts_run(&cluster), before, "a request was sent");
        for name in ["plain", "a{b}c", "{a}", "a}b{c}", "x{y}{}"] {
            client.get_fenced_lock(name).acquire().unwrap().unlock().unwrap();
        }
        // A token lock has one key only, so its keys cannot span slots.
        client.get_token_lock("a}b").acquire().unwrap().unlock().unwrap();
    });
}

#[cfg(feature = "tls")]
#[test]
fn the_certificate_of_each_tls_member_is_verified() {
    alone_within(LONG * 6, || {
        stalled_since(now());
        let Some(binary) = default_server() else { return };
        if !binary.has_tls() {
            return crate::support::missing("no server that was built with TLS");
        }
        let Some(cluster) = Cluster::start_tls() else { return };
        let builder = || builder(&cluster).tls_ca(cluster.ca().unwrap());
        let (holder, waiter) = (builder().build().unwrap(), builder().build().unwrap());
        for primary in 0..3 {
            let name = cluster.name_on(primary, "tls");
            let held = holder.get_fenced_lock(&name).acquire().unwrap();
            let lock = waiter.get_lock(&name);
            let waiting = call(move || lock.acquire().unwrap().unlock().unwrap());
            let listens =
                || listening_clients(&name, "SHARDNUMSUB", |command| cluster.ask(primary, command)) > 0;
            assert!(eventually(LONG, listens));
            held.unlock().unwrap();
            waiting.outcome();
        }
        // The system's CAs, which the client trusts here, did not sign these certificates.
        let error = super::load::builder(&cluster).build().unwrap_err();
        assert!(!error.is_retryable(), "{error}");
        drop((holder, waiter));
        assert_all_was_given_back(&cluster);
    });
}

/// leasehold avoids the `redis` crate's cluster client, which would send a script up to 17 times.
#[test]
fn a_cluster_grant_runs_one_script_or_two_if_replicas_confirm() {
    alone_within(LONG * 6, || {
        let Some(cluster) = Cluster::start() else { return };
        let patient = || builder(&cluster).command_timeout(LONG).connect_timeout(LONG);
        let (client, careless) = (patient().build().unwrap(), patient().without_replicas().build().unwrap());
        for primary in 0..3 {
            for (client, scripts) in [(&careless, 1), (&client, 2)] {
                let lock = client.get_fenced_lock(cluster.name_on(primary, "once"));
                // The first use also loads all scripts, so it is not counted.
                lock.acquire().unwrap().unlock().unwrap();
                let before = scripts_run(&cluster);
                lock.lock().unwrap();
                assert_eq!(scripts_run(&cluster), before + scripts);
                lock.unlock().unwrap();
                assert_eq!(scripts_run(&cluster), before + scripts + 1);
            }
        }
    });
}

/// The user has the permissions of docs/permissions.md for plain, fenced and token locks in a cluster.
#[test]
fn the_documented_rights_suffice_in_a_cluster() {
    alone_within(LONG * 6, || {
        let rules = "user locks reset resetchannels on >PASSWORD \
            ~app:* ~redisson_lock_token:{app:* &redisson_lock__channel:{app:* \
            +eval +evalsha +hexists +hget +hset +hdel +hkeys +pexpire +pttl +get +set +del +incr +time \
            +publish +subscribe +unsubscribe +cluster|slots +asking +pubsub|shardnumsub +spublish +ssubscribe +sunsubscribe \
            +wait +role";
        let Some(cluster) = Cluster::start_with(&[rules]) else { return };
        for way in [ClusterPubSub::Auto, ClusterPubSub::Plain, ClusterPubSub::Both] {
            let builder = || builder(&cluster).cluster_pub_sub(way).username("locks").password("PASSWORD");
            let (holder, waiter) = (builder().build().unwrap(), builder().build().unwrap());
            let name = fresh("app:");
            let held = holder.get_fenced_lock(&name).acquire().unwrap();
            let waiting = call_on(waiter.get_lock(&name), move |lock| {
                lock.lock().unwrap();
                lock.unlock().unwrap();
            });
            let count = if way == ClusterPubSub::Plain { "NUMSUB" } else { "SHARDNUMSUB" };
            let primary = cluster.primary_of(&name);
            let listens = || listening_clients(&name, count, |command| cluster.ask(primary, command)) > 0;
            assert!(eventually(LONG, listens), "{way:?}");
            held.unlock().unwrap();
            waiting.outcome();
            holder.get_token_lock(fresh("app:")).acquire().unwrap().unlock().unwrap();
            assert!(!holder.get_lock(&name).force_unlock().unwrap());
        }
        assert_all_was_given_back(&cluster);
    });
}

fn scripts_run(cluster: &Cluster) -> u64 {
    (0..cluster.members.len()).map(|index| cluster.scripts_run(index)).sum()
}
