//! Java's RedissonRedLock and our Redlock exclude each other on three servers, because both use a plain lock
//! on each server. Java's calls name a lease, so that Java renews nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agent::{Agent, Peer};
use crate::java;
use crate::scene::{alone, listeners};
use crate::support::prelude::*;

const LEASE: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(10);
/// Java's wait in milliseconds: enough to acquire a free lock.
const ENOUGH: &str = "15000";
const MEMBERS: &str = "one,two,three";

fn fields(server: &RedisServer, name: &str) -> BTreeMap<String, u64> {
    redis::cmd("HGETALL").arg(name).query(&mut server.admin()).unwrap()
}

fn client(servers: &[RedisServer]) -> LockClient {
    let options = LockClient::builder().redlock(servers.iter().map(RedisServer::url));
    options.lease(LEASE).node_timeout(Duration::from_secs(2)).build().unwrap()
}

fn peers(agent: &Arc<Agent>, servers: &[RedisServer]) -> Vec<Peer> {
    let each = MEMBERS.split(',').zip(servers);
    each.map(|(name, server)| java::client(agent, name, &server.url(), LEASE)).collect()
}

test_on!(redlocks_exclude_each_other_across_languages, alone(), default_server(), |binary| {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::builder(&binary).start()).collect();
    let Some(agent) = java::start() else { return };
    let peers = peers(&agent, &servers);
    let client = client(&servers);
    let lock = client.get_lock("both");
    let java = &peers[0];
    // Java gives each of the three servers a third of the wait: with `ENOUGH` each gets 5 s.
    let java_takes = |wait_ms| java.is("t", "redlock-try-for-lease", &[MEMBERS, "both", wait_ms, "20000"]);

    assert!(java_takes(ENOUGH));
    assert!(servers.iter().all(|server| fields(server, "both").len() == 1));
    assert!(!lock.try_lock().unwrap());
    assert!(lock.is_locked().unwrap());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.acquire().map(|guard| guard.unlock().unwrap()));
        wait_until("the waiter listens on every server", LIMIT, || {
            servers.iter().all(|server| listeners(&mut server.admin(), "redisson_lock__channel:{both}") > 0)
        });
        assert!(!waiter.is_finished());
        java.get("t", "redlock-unlock", &[MEMBERS, "both"]);
        waiter.join().unwrap().unwrap();
    });

    let guard = lock.acquire().unwrap();
    let owner = BTreeMap::from([(guard.owner().to_string(), 1)]);
    assert!(servers.iter().all(|server| fields(server, "both") == owner));
    assert!(!java_takes("900"));
    assert!(servers.iter().all(|server| fields(server, "both") == owner), "Java's failed try left an entry");
    guard.unlock().unwrap();
    assert!(java_takes(ENOUGH));
    java.get("t", "redlock-unlock", &[MEMBERS, "both"]);
    wait_until("nothing is left", LIMIT, || servers.iter().all(|server| fields(server, "both").is_empty()));
});

test_on!(java_cannot_acquire_a_redlock_while_rust_holds_a_majority, alone(), default_server(), |binary| {
    let mut servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::builder(&binary).start()).collect();
    let Some(agent) = java::start() else { return };
    let client = client(&servers);
    let guard = client.get_lock("two-of-three").acquire().unwrap();
    servers[2].restart(); // loses its data; a renewal then restores the lock
    let peers = peers(&agent, &servers);
    let java = &peers[0];
    assert!(java.is("t", "redlock-try-for-lease", &[MEMBERS, "free", ENOUGH, "20000"]));
    assert!(!java.is("t", "redlock-try-for-lease", &[MEMBERS, "two-of-three", "900", "20000"]));
    let owner = guard.owner().to_string();
    let has_only_ours =
        |server: &RedisServer| fields(server, "two-of-three").keys().all(|field| *field == owner);
    wait_until("Java released what it had got", LIMIT, || servers.iter().all(has_only_ours));
    guard.check().unwrap();
    guard.unlock().unwrap();
});
