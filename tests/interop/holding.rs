//! Holder, hold count, and the end of a hold are the same on both sides.

use std::time::Duration;

use leasehold::NotHeld;

use crate::java;
use crate::scene::{rust, scripts_run, somebody_waits};
use crate::support::receive;

const LEASE: Duration = Duration::from_secs(3);
/// A hold that no busy machine lets end.
/// A third of the lease until the watchdog's renewal, one command time-out, and slack.
const LOSS_IS_KNOWN: Duration = Duration::from_millis(1_000 + 500 + 250);

#[test]
fn javas_force_unlock_is_reported_as_a_loss() {
    let Some((_alone, server, java)) = java::set_up(LEASE) else { return };
    let client = rust(&server.url(), LEASE);

    // The next unlock says that the lock was held, and is no longer.
    let lock = client.get_lock("forced");
    lock.lock().unwrap();
    let before = scripts_run(&mut server.admin());
    let waiter = java.ask("waiter", "lock", &["forced"]);
    somebody_waits(&mut server.admin(), "forced", before);
    assert!(java.is("breaker", "force-unlock", &["forced"]));
    assert_eq!(waiter.wait().result, Ok(String::new()));
    let told = lock.unlock().unwrap_err();
    assert_eq!(told.not_held(), Some(&NotHeld::Expired), "{told}");
    assert!(java.is("waiter", "is-mine", &["forced"]));
    java.get("waiter", "unlock", &["forced"]);

    // The watchdog reports the loss without a question.
    let guard = client.get_lock("forced-too").acquire().unwrap();
    let lost = guard.lost();
    assert!(java.is("breaker", "force-unlock", &["forced-too"]));
    let loss = receive(&lost, LOSS_IS_KNOWN).expect("the loss is reported");
    assert_eq!((loss.name.as_str(), loss.owner), ("forced-too", guard.owner()));
    assert!(guard.check().unwrap_err().is_lost());
    assert!(guard.unlock().is_err());
    assert!(!java.is("breaker", "force-unlock", &["forced-too"]));
}
