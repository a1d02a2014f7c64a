//! Cached locks beside Redisson, which sends no recalls.

use std::time::Duration;

use leasehold::{LockClient, RedisLock};
use redis::Commands;

use crate::agent::Peer;
use crate::java;
use crate::scene::{alone, keys, rust};
use crate::support::server::RedisServer;
use crate::support::{LONG, wait_until};

const LEASE: Duration = Duration::from_secs(60);

/// A server, Java on it, and a client of ours that caches a lock for a minute unless it sees a waiter.
fn set_up() -> Option<(RedisServer, Peer, LockClient, RedisLock)> {
    let server = RedisServer::start_default()?;
    let java = java::connect(&server.url(), LEASE)?;
    let client = rust(&server.url(), LEASE);
    let lock = client.lock_builder("stock").cached().build();
    Some((server, java, client, lock))
}

/// Uses the lock until the client caches it: the first use, and a disturbed one, are not cached.
fn use_until_kept(lock: &RedisLock, server: &RedisServer) {
    wait_until("it is kept", LONG, || {
        lock.lock().unwrap();
        lock.unlock().unwrap();
        server.admin().exists("stock").unwrap()
    });
}

#[test]
fn java_gets_our_cached_lock_before_its_lease_ends() {
    let _alone = alone();
    let Some((server, java, client, lock)) = set_up() else { return };
    let mut admin = server.admin();
    // On a busy machine a late check releases the lock.
    wait_until("Java finds it held, and does not wait", LONG, || {
        use_until_kept(&lock, &server);
        let is_free = java.is("passing", "try", &["stock"]);
        if is_free {
            java.get("passing", "unlock", &["stock"]);
        }
        !is_free
    });
    use_until_kept(&lock, &server);
    assert_eq!(java.ask("waiter", "lock", &["stock"]).wait_for(LONG).expect_ok(), "");
    assert!(!lock.try_lock().unwrap());
    let fields: Vec<String> = admin.hkeys("stock").unwrap();
    assert!(!fields.contains(&"leasehold:kept".to_owned()), "nothing of ours is in Java's lock: {fields:?}");
    java.get("waiter", "unlock", &["stock"]);
    client.shutdown().unwrap();
    assert_eq!(keys(&mut admin), [""; 0]);
}
