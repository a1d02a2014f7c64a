//! Wrong answers of Sentinels, logins of clients at Sentinels, and holds that a failover loses.

use super::failover::{T, assert_all_was_given_back, options, query};
use crate::support::observer::{Event, Seen, texts};
use crate::support::prelude::*;
use crate::support::sentinel::{FakeSentinel, MASTER, SentinelSet, is_master};

/// A lease, and the third of it after which the client renews. A renewal after a failover finds the loss.
const L: Duration = ms(6000);
const R: Duration = ms(2000);
const PASSWORD: &str = "S3CR3T-of-the-data";
const SENTINELS: &str = "S3CR3T-of-the-sentinels";

#[test]
fn a_hold_lost_by_a_failover_is_reported() {
    alone(|| {
        let Some(binary) = default_server() else { return };
        let set = SentinelSet::start(&binary);
        let old = set.master();
        forgotten(set, old);
    });
}

fn forgotten(mut set: SentinelSet, old: usize) {
    let (client, other) = (options(&set).lease(L).build().unwrap(), options(&set).build().unwrap());
    let careful = options(&set).require_replicas(1, ms(100)).build().unwrap();
    set.cut_off_the_master();
    let guard = client.get_fenced_lock("forgotten").acquire().unwrap();
    let refused = careful.get_lock("refused").try_lock().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    set.servers[old].kill();
    set.replicas(old).for_each(RedisServer::cont);
    let new = set.await_switch(old);
    let switched = now();
    let second = other.get_fenced_lock("forgotten").acquire().unwrap();
    comes_within(switched, R + T, "the loss", || guard.check().is_err());
    assert!(
        second.fencing_token() > guard.fencing_token(),
        "{:?} after {:?}",
        second.fencing_token(),
        guard.fencing_token()
    );
    assert!(guard.unlock().unwrap_err().is_lost());
    assert!(careful.get_lock("refused").try_lock_for(LONG).unwrap());
    careful.get_lock("refused").unlock().unwrap();
    let owner: Option<u32> = query(&set.servers[new], &["HGET", "forgotten", &second.owner().to_string()]);
    assert_eq!(owner, Some(1));
    second.unlock().unwrap();
    set.heal();
    drop((client, other, careful));
    assert_all_was_given_back(&set);
}

#[test]
fn a_sentinel_that_missed_the_failover_is_not_trusted() {
    alone(|| {
        let Some(binary) = default_server() else { return };
        let mut set = SentinelSet::start(&binary);
        let old = set.master();
        let stale = FakeSentinel::start(0, set.servers[old].port());
        let url = set.url().replace("//", &format!("//{},", stale.place()));
        let before = options(&set).url(&url).build().unwrap();
        assert!(before.get_lock("before").try_lock().unwrap());
        set.servers[old].kill();
        set.await_switch(old);
        set.servers[old].restart();
        assert!(is_master(&set.servers[old]));
        let after = options(&set).url(&url).build().unwrap();
        for (client, name) in [(&before, "one"), (&after, "two")] {
            assert!(client.get_lock(name).try_lock_for(LONG).unwrap());
            client.get_lock(name).unlock().unwrap();
            for round in 0..5 {
                let new = set.named_by(0);
                query::<i64>(&set.servers[new], &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                let name = format!("{name}:{round}");
                assert!(client.get_lock(&name).try_lock_for(LONG).unwrap());
                let holds = query::<i64>(&set.servers[new], &["EXISTS", &name]);
                let unlocked = client.get_lock(&name).unlock();
                // On a busy machine the Sentinels may have switched once more, which may have lost the lock.
                let is_at_master = holds == 1 && unlocked.is_ok();
                assert!(
                    is_at_master || set.named_by(0) != new,
                    "{name}: {holds} at the master, {unlocked:?}"
                );
            }
        }
        assert!(is_master(&set.servers[old]), "it was demoted before this could be seen");
        let stats: String = query(&set.servers[old], &["INFO", "commandstats"]);
        assert!(!stats.contains("cmdstat_eval"), "the old master was asked: {stats}");
        before.get_lock("before").unlock().unwrap();
        set.heal();
        drop((before, after));
        assert_all_was_given_back(&set);
    });
}

#[test]
fn a_replica_that_sentinels_name_as_master_is_refused() {
    alone(|| {
        let Some(binary) = default_server() else { return };
        let master = RedisServer::builder(&binary).start();
        let of = format!("replicaof 127.0.0.1 {}", master.port());
        let replica = RedisServer::builder(&binary).config(&of).start();
        let fake = FakeSentinel::start(1, replica.port());
        let url = format!("redis-sentinel://{}/{MASTER}", fake.place());
        let build =
            || LockClient::builder().url(&url).connect_timeout(ms(2_000)).command_timeout(ms(2_000)).build();
        let mut admin = replica.admin();
        let mut connects = || {
            let info: redis::InfoDict = redis::cmd("INFO").arg("stats").query(&mut admin).unwrap();
            info.get::<u64>("total_connections_received").unwrap()
        };
        for falls_silent in [false, true] {
            let (begun, before) = (now(), connects());
            let error = std::thread::scope(|scope| {
                let connecting = scope.spawn(build);
                if falls_silent {
                    assert!(eventually(LONG, || connects() > before));
                    fake.falls_silent();
                }
                connecting.join().unwrap().unwrap_err()
            });
            within(begun, ms(2_000), "connecting");
            assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
            let said = error.to_string();
            assert!(said.contains(MASTER) && said.contains(&replica.port().to_string()), "{said}");
        }
        fake.says(1, replica.port());
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| LockClient::builder().url(&url).connect_timeout(LONG).build());
            throughout(ms(200), || !connecting.is_finished());
            fake.says(2, master.port());
            let client = connecting.join().unwrap().unwrap();
            assert!(client.get_lock("named").try_lock().unwrap());
            // The client ignores the answer of the older epoch 1, so it has no master until epoch 2 is back.
            fake.says(1, replica.port());
            query::<i64>(&master, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            let other = client.get_lock("other");
            let refused = || other.try_lock().is_err_and(|error| error.kind() == ErrorKind::Busy);
            assert!(eventually(LONG, refused), "the connection goes to the server in the old answer");
            fake.says(2, master.port());
            client.get_lock("named").unlock().unwrap();
        });
    });
}

#[test]
fn sentinels_can_have_their_own_credentials() {
    alone(|| {
        let Some(binary) = default_server() else { return };
        let set = SentinelSet::start_with(
            &binary,
            |server| server.requirepass(PASSWORD).config(&format!("masterauth {PASSWORD}")),
            |sentinel| {
                sentinel
                    .config(&format!("sentinel auth-pass {MASTER} {PASSWORD}"))
                    .config(&format!("sentinel sentinel-pass {SENTINELS}"))
                    .requirepass(SENTINELS)
                    .user(LEAST_RIGHTS)
            },
        );
        let login = set.url_with(&format!(":{PASSWORD}@"), "/2");
        let with = |url: &str, sentinels: Option<&str>| {
            let options = LockClient::builder().url(url).connect_timeout(ms(2000));
            sentinels.into_iter().fold(options, ClientBuilder::sentinel_password).build()
        };
        let client = with(&login, Some(SENTINELS)).unwrap();
        assert!(client.get_lock("two passwords").try_lock().unwrap());
        let mut admin = set.servers[set.master()].admin();
        redis::cmd("SELECT").arg(2).exec(&mut admin).unwrap();
        assert!(redis::cmd("EXISTS").arg("two passwords").query::<bool>(&mut admin).unwrap());
        client.get_lock("two passwords").unlock().unwrap();
        for (url, sentinels, of) in [
            (login.as_str(), None, "Sentinel"),
            (login.as_str(), Some("S3CR3T-wrong"), "Sentinel"),
            (set.url().as_str(), Some(SENTINELS), "master"),
            (set.url_with(":S3CR3T-wrong@", "").as_str(), Some(SENTINELS), "master"),
        ] {
            let begun = now();
            let error = with(url, sentinels).unwrap_err();
            within(begun, ms(500), "being refused");
            assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
            assert!(error.to_string().contains(of), "{error}");
            assert!(!texts(&error).contains("S3CR3T"), "{}", texts(&error));
        }
        drop(client);
        let options = LockClient::builder().url(&login).client_name("topology").lease(L);
        let client =
            options.sentinel_username("locks").sentinel_password("S3CR3T-of-a-user").build().unwrap();
        let is_told = |sentinel: &RedisServer| {
            let list: String = query(sentinel, &["CLIENT", "LIST"]);
            list.lines().any(|line| line.contains(" user=locks") && line.contains(" sub=3"))
        };
        assert!(eventually(LONG, || set.sentinels.iter().all(is_told)));
        drop(client);
        assert_all_was_given_back(&set);
    });
}

/// An ACL user on the Sentinels with exactly the rights that `docs/permissions.md` lists.
const LEAST_RIGHTS: &str = "locks on >S3CR3T-of-a-user resetchannels &+selected-slave &+promoted-slave &+switch-master \
                            -@all +hello +subscribe +sentinel|get-master-addr-by-name +sentinel|master";

#[test]
fn guards_dropped_after_a_failover_still_release_their_locks() {
    alone(|| {
        let Some(binary) = default_server() else { return };
        let (mut set, seen) = (SentinelSet::start(&binary), Seen::default());
        let client = options(&set).observer(seen.clone()).build().unwrap();
        let names: Vec<String> = (0..8).map(|number| format!("dropped:{number}")).collect();
        let take = |name: &String| client.get_lock(name).acquire().unwrap();
        // By these grants the client learns that this server has the scripts, which the next master may lack.
        names.iter().for_each(|name| drop(take(name)));
        let held: Vec<_> = names.iter().map(take).collect();
        let old = set.master();
        set.await_replicas();
        set.fail_over();
        set.await_switch(old);
        names.iter().for_each(|name| assert!(eventually(LONG, || client.get_lock(name).is_locked().is_ok())));
        drop(held);
        names.iter().for_each(|name| drop(take(name)));
        let over = || seen.count(|event| matches!(event, Event::Released(_) | Event::ReleaseFailed(..)));
        assert!(eventually(LONG, || over() == 3 * names.len()), "{:?}", seen.events());
        let failed = seen.count(|event| matches!(event, Event::ReleaseFailed(..)));
        assert_eq!((failed, client.stats().releases_failed), (0, 0), "{:?}", seen.events());
        set.heal();
        drop(client);
        assert_all_was_given_back(&set);
    });
}
