//! Holder, hold count, and the end of a hold are the same on both sides.

use std::time::Duration;

use leasehold::{ErrorKind, NotHeld};

use crate::java;
use crate::scene::{alone, rust, scripts_run, somebody_waits};
use crate::support::server::RedisServer;
use crate::support::{call, receive};

const LEASE: Duration = Duration::from_secs(3);
/// One that ends by itself on no machine, however busy.
const UNENDED: Duration = Duration::from_secs(60);
/// A third of the lease until the watchdog looks, one command time-out, slack.
const LOSS_IS_KNOWN: Duration = Duration::from_millis(1_000 + 500 + 250);

#[test]
fn java_gets_in_only_after_the_last_of_rusts_unlocks() {
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let Some(java) = java::connect(&server.url(), UNENDED) else { return };
    let lock = rust(&server.url(), UNENDED).get_lock("nested");
    lock.lock().unwrap();
    lock.lock().unwrap();
    assert_eq!(lock.hold_count().unwrap(), 2);
    assert!(java.is("other", "is-locked", &["nested"]));
    assert!(!java.is("other", "is-mine", &["nested"]));
    assert_eq!(java.get("other", "hold-count", &["nested"]), "0");
    assert!(!java.is("other", "try", &["nested"]));
    lock.unlock().unwrap();
    assert_eq!(lock.hold_count().unwrap(), 1);
    assert!(!java.is("other", "try", &["nested"]));
    assert!(java.is("other", "is-locked", &["nested"]));
    lock.unlock().unwrap();
    assert!(java.is("other", "try", &["nested"]));
    java.get("other", "unlock", &["nested"]);
}

#[test]
fn rust_gets_in_only_after_the_last_of_javas_unlocks() {
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let Some(java) = java::connect(&server.url(), UNENDED) else { return };
    let lock = rust(&server.url(), UNENDED).get_lock("nested");
    java.get("holder", "lock", &["nested"]);
    java.get("holder", "lock", &["nested"]);
    assert_eq!(java.get("holder", "hold-count", &["nested"]), "2");
    assert!(lock.is_locked().unwrap());
    assert!(!lock.is_held_by_current_thread().unwrap());
    assert_eq!(lock.hold_count().unwrap(), 0);
    let left = lock.remaining_lease().unwrap().expect("it is locked");
    assert!(left > Duration::ZERO && left <= UNENDED, "{left:?} left of {UNENDED:?}");
    assert!(!lock.try_lock().unwrap());
    java.get("holder", "unlock", &["nested"]);
    assert!(!lock.try_lock().unwrap());
    java.get("holder", "unlock", &["nested"]);
    assert_eq!(lock.remaining_lease().unwrap(), None);
    assert!(lock.try_lock().unwrap());
    lock.unlock().unwrap();
}

#[test]
fn an_unlock_of_the_others_lock_is_refused_and_changes_nothing() {
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let Some(java) = java::connect(&server.url(), UNENDED) else { return };
    let lock = rust(&server.url(), UNENDED).get_lock("not-yours");
    java.get("holder", "lock", &["not-yours"]);
    let refused = lock.unlock().unwrap_err();
    assert!(
        matches!(refused.not_held(), Some(NotHeld::HeldBy(owner)) if *owner == java.owner("holder")),
        "{refused}: {:?}",
        refused.not_held(),
    );
    assert!(java.is("holder", "is-mine", &["not-yours"]));
    java.get("holder", "unlock", &["not-yours"]);

    lock.lock().unwrap();
    let refused = java.error("holder", "unlock", &["not-yours"]);
    assert!(refused.starts_with("IllegalMonitorStateException"), "{refused}");
    assert!(lock.is_held_by_current_thread().unwrap());
    lock.unlock().unwrap();
}

#[test]
fn a_hold_that_rust_passed_to_another_thread_still_keeps_java_out() {
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let Some(java) = java::connect(&server.url(), UNENDED) else { return };
    let guard = rust(&server.url(), UNENDED).get_lock("passed-on").acquire_owned().unwrap();
    let guard = call(move || guard).join();
    assert!(!java.is("other", "try", &["passed-on"]));
    call(move || guard.unlock().unwrap()).join();
    assert!(java.is("other", "try", &["passed-on"]));
    java.get("other", "unlock", &["passed-on"]);
}

#[test]
fn a_key_of_the_other_kind_is_an_error_on_either_side() {
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let Some(java) = java::connect(&server.url(), UNENDED) else { return };
    let client = rust(&server.url(), UNENDED);
    let token = client.get_token_lock("kind");
    token.lock().unwrap();
    let refused = java.error("other", "try", &["kind"]);
    assert!(refused.contains("WRONGTYPE"), "{refused}");
    assert_eq!(client.get_lock("kind").try_lock().unwrap_err().kind(), ErrorKind::WrongType);
    token.unlock().unwrap();

    java.get("other", "lock", &["kind"]);
    assert_eq!(token.try_lock().unwrap_err().kind(), ErrorKind::WrongType);
    assert!(java.is("other", "is-mine", &["kind"]));
    java.get("other", "unlock", &["kind"]);
}

#[test]
fn a_lock_that_java_forces_open_is_lost_for_rust_and_reported() {
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let Some(java) = java::connect(&server.url(), LEASE) else { return };
    let client = rust(&server.url(), LEASE);

    // Told at the next unlock: it was held, and is no longer.
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

    // Told by the watchdog, without asking.
    let guard = client.get_lock("forced-too").acquire().unwrap();
    let lost = guard.lost();
    assert!(java.is("breaker", "force-unlock", &["forced-too"]));
    let loss = receive(&lost, LOSS_IS_KNOWN).expect("the loss is reported");
    assert_eq!((loss.name.as_str(), loss.owner), ("forced-too", guard.owner()));
    assert!(guard.check().unwrap_err().is_lost());
    assert!(guard.unlock().is_err());
    assert!(!java.is("breaker", "force-unlock", &["forced-too"]));
}

#[test]
fn a_lock_that_rust_forces_open_is_lost_for_java_and_reported() {
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let Some(java) = java::connect(&server.url(), LEASE) else { return };
    let lock = rust(&server.url(), LEASE).get_lock("forced");
    java.get("holder", "lock", &["forced"]);
    let before = scripts_run(&mut server.admin());
    let waiter = java.ask("waiter", "lock", &["forced"]);
    somebody_waits(&mut server.admin(), "forced", before);
    assert!(lock.force_unlock().unwrap());
    assert_eq!(waiter.wait().result, Ok(String::new()));
    assert!(!java.is("holder", "is-mine", &["forced"]));
    let told = java.error("holder", "unlock", &["forced"]);
    assert!(told.starts_with("IllegalMonitorStateException"), "{told}");
    java.get("waiter", "unlock", &["forced"]);
    assert!(!lock.force_unlock().unwrap());
}
