//! The mutex through Sentinels: both sides find the same master, and the next one.

use std::time::Duration;

use leasehold::LockClient;

use crate::agent::Peer;
use crate::java;
use crate::scene::{alone, between, monotonic, scripts_run, somebody_waits};
use crate::support::sentinel::{MASTER, SentinelSet};
use crate::support::server::{RedisServer, default_server};
use crate::support::{call, ms, now, stalled_since, wait_until};

/// A Java waiter that is not told finds the lock free at this lease's end; one of ours after a second.
const LEASE: Duration = Duration::from_secs(30);
const TOLD: Duration = ms(700);
/// A switch, and whatever the clients make of it.
const SWITCHED: Duration = Duration::from_secs(60);

fn exclude_each_other(java: &Peer, client: &LockClient, name: &str) {
    let lock = client.get_fenced_lock(name);
    assert!(java.is("holder", "try-for", &[name, "10000"]));
    assert!(!lock.try_lock().unwrap());
    let error = lock.unlock().unwrap_err();
    assert!(error.to_string().contains(&java.owner("holder")), "{error}");
    java.get("holder", "unlock", &[name]);
    let guard = lock.acquire().unwrap();
    assert!(!java.is("holder", "try", &[name]));
    guard.unlock().unwrap();
}

fn wake_each_other(set: &SentinelSet, java: &Peer, client: &LockClient) {
    let mut admin = set.servers[set.master()].admin();
    let mut quickest = Duration::MAX;
    for round in 0..5 {
        let name = format!("woken-{round}");
        let lock = client.get_lock(&name);
        java.get("holder", "lock", &[&name]);
        let before = scripts_run(&mut admin);
        let waiter = call({
            let lock = lock.clone();
            move || {
                lock.lock().unwrap();
                let got = (monotonic(), now());
                lock.unlock().unwrap();
                got
            }
        });
        somebody_waits(&mut admin, &name, before);
        assert!(waiter.is_open(), "Rust has what Java holds");
        let begun = now();
        let unlock = java.ask("holder", "unlock", &[&name]).wait();
        assert_eq!(unlock.result, Ok(String::new()));
        quickest = quickest.min(between(unlock.begun, waiter.join().0).saturating_sub(stalled_since(begun)));

        lock.lock().unwrap();
        let before = scripts_run(&mut admin);
        let waiter = java.ask("waiter", "lock", &[&name]);
        somebody_waits(&mut admin, &name, before);
        assert!(waiter.is_open(), "Java has what Rust holds");
        let begun = monotonic();
        lock.unlock().unwrap();
        let got = waiter.wait();
        assert_eq!(got.result, Ok(String::new()));
        assert!(between(begun, got.ended) < LEASE / 2, "Java was not told");
        java.get("waiter", "unlock", &[&name]);
    }
    eprintln!("through Sentinels a release by Java woke Rust within {quickest:?} at best");
    assert!(quickest < TOLD, "Rust was not told: {quickest:?}");
}

#[test]
fn through_sentinels_java_and_rust_share_a_lock_before_and_after_a_failover() {
    let _alone = alone();
    let Some(binary) = default_server() else { return };
    let set = SentinelSet::start(&binary);
    let sentinels: Vec<String> = set.sentinels.iter().map(RedisServer::url).collect();
    let Some(java) = java::connect_to_sentinels(&sentinels, MASTER, LEASE) else { return };
    let options = LockClient::builder().url(set.url()).lease(LEASE);
    let client = options.command_timeout(ms(500)).retry_timeout(SWITCHED).build().unwrap();
    exclude_each_other(&java, &client, "before");
    wake_each_other(&set, &java, &client);

    // Holds of both sides are on the new master too: the switch is a planned one.
    java.get("steady", "lock", &["of-java"]);
    let ours = client.get_lock("of-rust").acquire().unwrap();
    set.await_replicas();
    let old = set.master();
    set.fail_over();
    let new = set.await_switch(old);
    set.await_health();
    wait_until("Java has found the new master", SWITCHED, || {
        let held = java.ask("after", "try-for", &["after", "1000"]).wait_for(SWITCHED);
        held.result.as_deref() == Ok("true")
    });
    let fields: u32 = redis::cmd("HLEN").arg("after").query(&mut set.servers[new].admin()).unwrap();
    assert_eq!(fields, 1, "it is the one that the Sentinels name");
    assert!(!client.get_lock("after").try_lock().unwrap());
    java.get("after", "force-unlock", &["after"]);
    assert!(!client.get_lock("of-java").try_lock().unwrap());
    assert!(!java.is("after", "try", &["of-rust"]));
    ours.unlock().unwrap();
    java.get("steady", "unlock", &["of-java"]);
    exclude_each_other(&java, &client, "later");
}
