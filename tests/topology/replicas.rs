//! Grants that need acknowledgements of replicas (`require_replicas`), and are undone without them.

use std::time::Duration;

use leasehold::{ClientBuilder, ErrorKind, LockClient, RedisLock};

use crate::support::server::{RedisServer, default_server};
use crate::support::{LONG, eventually, ms, now, stalled_since, within};

/// The replicas' time.
const GIVEN: Duration = ms(150);
/// A busy server may be this late, well below the command time-out.
const LATE: Duration = ms(1_000);

struct Servers {
    master: RedisServer,
    replicas: Vec<RedisServer>,
}

impl Servers {
    fn start(replicas: usize) -> Option<Servers> {
        stalled_since(now()); // measured from here on
        let binary = default_server()?;
        let master = RedisServer::builder(&binary)
            .config("repl-diskless-sync-delay 0")
            .config("repl-ping-replica-period 1")
            .start();
        let mut servers = Servers { master, replicas: Vec::new() };
        (0..replicas).for_each(|_| servers.add_replica());
        Some(servers)
    }

    fn add_replica(&mut self) {
        let of = format!("replicaof 127.0.0.1 {}", self.master.port());
        self.replicas.push(RedisServer::builder(self.master.binary()).config(&of).start());
        // Not when the master says "online": a loading replica acknowledges nothing for a while.
        let there = || have_all(&self.master, self.replicas.len());
        assert!(eventually(LONG, there), "the replica acknowledges nothing");
    }

    fn options(&self) -> ClientBuilder {
        LockClient::builder().url(self.master.url())
    }

    fn master_says(&self, words: &[&str]) -> String {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut self.master.admin()).unwrap()
    }
}

/// Whether `replicas` replicas acknowledge the latest write within a second.
fn have_all(master: &RedisServer, replicas: usize) -> bool {
    let mut wrote = redis::pipe();
    wrote.cmd("SET").arg("probe").arg(1).arg("PX").arg(10).ignore();
    wrote.cmd("WAIT").arg(replicas).arg(1000);
    let (count,): (usize,) = wrote.query(&mut master.admin()).unwrap();
    count == replicas
}

fn exists(server: &RedisServer, key: &str) -> bool {
    redis::cmd("EXISTS").arg(key).query(&mut server.admin()).unwrap()
}

fn kinds(client: &LockClient, name: &str) -> Vec<RedisLock> {
    let (read, write) = (format!("{name}:read"), format!("{name}:write"));
    vec![
        client.get_lock(format!("{name}:lock")),
        RedisLock::clone(&client.get_fenced_lock(format!("{name}:fenced"))),
        RedisLock::clone(&client.get_fair_lock(format!("{name}:fair"))),
        RedisLock::clone(client.get_read_write_lock(&read).read()),
        RedisLock::clone(client.get_read_write_lock(&write).write()),
        client.get_token_lock(format!("{name}:token")),
    ]
}

#[test]
fn a_granted_lock_is_on_the_replicas() {
    let Some(servers) = Servers::start(2) else { return };
    let client = servers.options().require_replicas(2, ms(2000)).build().unwrap();
    for round in 0..20 {
        for lock in kinds(&client, &format!("granted:{round}")) {
            assert!(lock.try_lock().unwrap());
            for replica in &servers.replicas {
                assert!(exists(replica, lock.name()), "{}", lock.name());
            }
            lock.unlock().unwrap();
        }
    }
    // The same thread's next grant, after dropped guards, re-entry and other threads.
    let lock = client.get_lock("again");
    for _ in 0..200 {
        let guard = lock.acquire().unwrap();
        let nested = lock.acquire().unwrap();
        drop((nested, guard));
    }
    let guard = lock.acquire().unwrap();
    assert!(exists(&servers.master, "again"));
    guard.unlock().unwrap();
    assert!(!exists(&servers.master, "again"));
}

#[test]
fn a_grant_on_too_few_replicas_is_undone() {
    let Some(servers) = Servers::start(1) else { return };
    let client = servers.options().require_replicas(2, GIVEN).build().unwrap();
    let without_scripts = servers.options().require_replicas(2, GIVEN).without_scripts().build().unwrap();
    let mut locks = kinds(&client, "short");
    locks.push(without_scripts.get_token_lock("short:plain"));
    for lock in &locks {
        let begun = now();
        let error = lock.try_lock().unwrap_err();
        assert!(begun.elapsed() >= GIVEN);
        within(begun, GIVEN + LATE, "being refused");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.is_retryable() && !error.outcome_unknown(), "{error:?}");
        assert!(error.to_string().contains(" of 2 replicas"), "{error}");
        assert!(!exists(&servers.master, lock.name()), "{} was left", lock.name());
        let begun = now();
        assert!(lock.try_lock_for(ms(400)).is_err());
        within(begun, ms(400) + GIVEN + LATE, "a wait that ends without replicas");
    }
}

#[test]
fn a_reloaded_script_waits_for_replicas() {
    let Some(servers) = Servers::start(1) else { return };
    let client = servers.options().require_replicas(1, GIVEN).build().unwrap();
    client.get_lock("known").lock().unwrap(); // once the replica has come
    servers.replicas[0].stop();
    servers.master_says(&["SCRIPT", "FLUSH"]);
    // Other writes, such as the client's entry, may keep the first WAIT from counting. The unit test
    // `a_script_that_was_sent_again_is_waited_for_again` shows that there is a second.
    for name in ["forgotten:1", "forgotten:2"] {
        let error = client.get_lock(name).try_lock().unwrap_err();
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        servers.master_says(&["SCRIPT", "FLUSH"]);
    }
    servers.replicas[0].cont();
    assert!(client.get_lock("forgotten:1").try_lock_for(LONG).unwrap());
    client.get_lock("forgotten:1").unlock().unwrap();
    client.get_lock("known").unlock().unwrap();
}

#[test]
fn many_threads_count_to_the_end_with_replicas() {
    let Some(servers) = Servers::start(1) else { return };
    let client = servers.options().require_replicas(1, ms(2000)).build().unwrap();
    let inside = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let lock = client.get_lock("counted");
                for _ in 0..50 {
                    let guard = lock.acquire().unwrap();
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
    });
    let unlocked = now();
    assert!(client.get_lock("counted").try_lock_for(LONG).unwrap());
    within(unlocked, Duration::ZERO, "taking what everybody has released");
    client.get_lock("counted").unlock().unwrap();
}

#[test]
fn impossible_requirements_are_refused_before_anything_is_sent() {
    let build = |count, within| {
        let options = LockClient::builder().url("redis://127.0.0.1:1").command_timeout(ms(1000));
        options.require_replicas(count, within).build().unwrap_err()
    };
    for error in [build(0, GIVEN), build(1, Duration::ZERO), build(1, ms(1000))] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(build(1, GIVEN).kind(), ErrorKind::Unreachable);
}
