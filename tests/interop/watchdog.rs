//! Both sides keep their locks beyond the lease, each against the other's patience.

use std::time::Duration;

use redis::Commands;

use crate::java;
use crate::scene::{alone, rust};
use crate::support::server::RedisServer;
use crate::support::stalls::own_time_since;
use crate::support::{LONG, now};

const LEASE: Duration = Duration::from_secs(3);
/// More than two leases.
const HELD: Duration = Duration::from_millis(6_500);

#[test]
fn a_lock_that_java_holds_for_two_leases_stays_out_of_reach_of_rust() {
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let Some(java) = java::connect(&server.url(), LEASE) else { return };
    let lock = rust(&server.url(), LEASE).get_lock("kept");
    java.get("holder", "lock", &["kept"]);
    let begun = now();
    assert!(!lock.try_lock_for(HELD).unwrap());
    assert!(begun.elapsed() >= HELD, "gave up after {:?}", begun.elapsed());
    assert!(java.is("holder", "is-mine", &["kept"]));
    java.get("holder", "unlock", &["kept"]);
    assert!(lock.try_lock().unwrap());
    lock.unlock().unwrap();
}

#[test]
fn a_lock_that_rust_holds_for_two_leases_stays_out_of_reach_of_java() {
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let Some(java) = java::connect(&server.url(), LEASE) else { return };
    let lock = rust(&server.url(), LEASE).get_lock("kept");
    let guard = lock.acquire().unwrap();
    let wait = HELD.as_millis().to_string();
    let answer = java.ask("other", "try-for", &["kept", &wait]).wait();
    assert_eq!(answer.result.as_deref(), Ok("false"));
    guard.check().unwrap();
    let left: u64 = server.admin().pttl("kept").unwrap();
    assert!((1..=3_000).contains(&left), "a renewed lock has {left} ms left of its 3000");
    guard.unlock().unwrap();
    assert!(java.is("other", "try", &["kept"]));
    java.get("other", "unlock", &["kept"]);
}

#[test]
fn a_lease_of_its_own_ends_on_time_for_either_side() {
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let Some(java) = java::connect(&server.url(), LEASE) else { return };
    let lock = rust(&server.url(), LEASE).get_lock("leased");
    let lease = Duration::from_millis(1_200);
    let late = lease + Duration::from_millis(1_450);

    let begun = now();
    java.get("holder", "lock-lease", &["leased", "1200"]);
    assert!(lock.try_lock_for(LONG).unwrap());
    assert!(begun.elapsed() >= lease && own_time_since(begun) < late, "Rust: after {:?}", begun.elapsed());
    assert!(!java.is("holder", "is-mine", &["leased"]));
    lock.unlock().unwrap();

    let begun = now();
    lock.lock_with_lease(lease).unwrap();
    assert!(java.is("other", "try-for", &["leased", "30000"]));
    assert!(begun.elapsed() >= lease && own_time_since(begun) < late, "Java: after {:?}", begun.elapsed());
    let lost = lock.unlock().unwrap_err();
    assert!(lost.not_held().is_some(), "{lost}");
    // And did Java no harm.
    assert!(java.is("other", "is-mine", &["leased"]));
    java.get("other", "unlock", &["leased"]);
}
