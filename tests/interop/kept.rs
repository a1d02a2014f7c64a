//! A lock that a client of ours keeps until others ask for it, beside Redisson, which asks for nothing.

use std::time::Duration;

use leasehold::{LockClient, RedisLock};
use redis::Commands;

use crate::agent::Peer;
use crate::java;
use crate::scene::{alone, keys, rust};
use crate::support::server::RedisServer;
use crate::support::{LONG, wait_until};

const LEASE: Duration = Duration::from_secs(60);

/// A server, Java on it, and a client of ours with a lock that it keeps for a minute if nobody is seen to wait.
fn set_up() -> Option<(RedisServer, Peer, LockClient, RedisLock)> {
    let server = RedisServer::start_default()?;
    let java = java::connect(&server.url(), LEASE)?;
    let client = rust(&server.url(), LEASE);
    let lock = client.lock_builder("stock").cached().build();
    Some((server, java, client, lock))
}

/// Uses the lock until the client keeps it: the first use, and one that something disturbed, are not kept.
fn use_until_kept(lock: &RedisLock, server: &RedisServer) {
    wait_until("it is kept", LONG, || {
        lock.lock().unwrap();
        lock.unlock().unwrap();
        server.admin().exists("stock").unwrap()
    });
}

#[test]
fn java_gets_a_lock_that_rust_keeps_and_does_not_wait_for_the_lease() {
    let _alone = alone();
    let Some((server, java, client, lock)) = set_up() else { return };
    let mut admin = server.admin();
    // On a busy machine a look may come too late, and the lock is given back.
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

#[test]
fn java_forces_a_kept_lock_open_and_rust_asks_for_it_again() {
    let _alone = alone();
    let Some((server, java, _client, lock)) = set_up() else { return };
    use_until_kept(&lock, &server);
    java.get("operator", "force-unlock", &["stock"]);
    java.get("holder", "lock", &["stock"]);
    wait_until("Rust finds that it is not its own", LONG, || match lock.try_lock() {
        Ok(taken) => {
            if taken {
                // It used what it kept: a look tells it within half a second, and then its unlock.
                drop(lock.unlock());
            }
            !taken
        }
        Err(error) => panic!("{error}"),
    });
    java.get("holder", "unlock", &["stock"]);
    lock.lock().unwrap();
    lock.unlock().unwrap();
}
