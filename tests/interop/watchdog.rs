//! Both sides keep their locks beyond the lease, while the other waits.

use std::time::Duration;

use redis::Commands;

use crate::java;
use crate::scene::rust;

const LEASE: Duration = Duration::from_secs(3);
/// More than two leases.
const HELD: Duration = Duration::from_millis(6_500);

#[test]
fn our_watchdog_excludes_java_beyond_the_lease() {
    let Some((_alone, server, java)) = java::set_up(LEASE) else { return };
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
