//! The loss of a hold that Redisson ends, and fencing tokens of both languages. A token of Java is the next
//! value of a counter. A token of Rust is the larger of that value and the server's time in microseconds.

use redis::Commands;

use crate::java;
use crate::scene::{rust, scripts_run, somebody_waits};
use crate::support::prelude::*;

const LEASE: Duration = Duration::from_secs(3);
/// The maximum time until a holder knows its loss: a third of the lease until the renewal, and slack.
const LOSS_IS_KNOWN: Duration = Duration::from_millis(1_000 + 500 + 250);

test_on!(javas_force_unlock_is_reported_as_a_loss, java::set_up(LEASE), |(_alone, server, java)| {
    let client = rust(&server.url(), LEASE);

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

    let guard = client.get_lock("forced-too").acquire().unwrap();
    let lost = guard.lost();
    assert!(java.is("breaker", "force-unlock", &["forced-too"]));
    let loss = receive(&lost, LOSS_IS_KNOWN).expect("the loss is reported");
    assert_eq!((loss.name.as_str(), loss.owner), ("forced-too", guard.owner()));
    assert!(guard.check().unwrap_err().is_lost());
    assert!(guard.unlock().is_err());
    assert!(!java.is("breaker", "force-unlock", &["forced-too"]));
});

test_on!(tokens_of_java_and_rust_rise_with_every_grant, java::set_up(LEASE), |(_alone, server, java)| {
    let lock = rust(&server.url(), LEASE).get_fenced_lock("fenced");
    let mut tokens: Vec<u64> = Vec::new();
    for grant in 0..12 {
        // Java locks in these rounds, so each language's tokens follow tokens of both.
        if [0, 1, 4, 6, 8, 9].contains(&grant) {
            tokens.push(java.get("t", "fenced-lock-token", &["fenced"]).parse().unwrap());
            assert_eq!(lock.try_lock_and_get_token(Duration::ZERO).unwrap(), None);
            java.get("t", "fenced-unlock", &["fenced"]);
        } else {
            let token = lock.lock_and_get_token().unwrap().get();
            assert_eq!(java.get("t", "fenced-token", &["fenced"]), token.to_string());
            assert_eq!(java.get("t", "fenced-try-token-for", &["fenced", "500"]), "null");
            tokens.push(token);
            lock.unlock().unwrap();
        }
    }
    assert_eq!(tokens[0], 1, "Java counts from one");
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
});

test_on!(tokens_still_grow_after_their_counter_is_deleted, java::set_up(LEASE), |(_alone, server, java)| {
    let lock = rust(&server.url(), LEASE).get_fenced_lock("fenced");
    let before = lock.acquire().unwrap();
    let earlier = before.fencing_token().expect("a fenced guard has a fence").get();
    before.unlock().unwrap();
    let removed: u64 = server.admin().del("redisson_lock_token:{fenced}").unwrap();
    assert_eq!(removed, 1);
    let after = lock.acquire().unwrap();
    let later = after.fencing_token().expect("a fenced guard has a fence").get();
    after.unlock().unwrap();
    assert!(earlier < later, "{earlier} then {later}");
    assert_eq!(java.get("t", "fenced-lock-token", &["fenced"]), (later + 1).to_string());
    java.get("t", "fenced-unlock", &["fenced"]);
});
