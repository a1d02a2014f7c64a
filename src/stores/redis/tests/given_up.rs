//! Tests of the connections that the client replaces, and of those that it keeps.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::prelude::*;
use crate::OwnedGuard;
use crate::hosts::Lifetime;
use crate::stores::redis::script::Command;

/// A path that leads first to one server and then to another, as a proxy or a host name may.
struct Place(tempfile::TempDir);

impl Place {
    fn leading_to(server: &Server) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        symlink(server.socket(), place.path()).unwrap();
        place
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("r.sock")
    }

    fn now_leads_to(&self, server: &Server) {
        let next = self.0.path().join("next");
        symlink(server.socket(), &next).unwrap();
        std::fs::rename(next, self.path()).unwrap();
    }

    fn options(&self) -> ServerOptions {
        ServerOptions { url: format!("redis+unix://{}", self.path().display()), ..ServerOptions::default() }
    }
}

fn calls(server: &Server, command: &str) -> i64 {
    let stats = server.text(&["INFO", "commandstats"]).unwrap();
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")).map(str::to_owned));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

fn client(server: &Server, lease: Duration) -> LockClient {
    LockClient::builder().url(server.url()).lease(lease).build().unwrap()
}

fn holds(client: &LockClient, count: usize) -> Vec<OwnedGuard> {
    (0..count).map(|number| client.get_lock(format!("held-{number}")).acquire_owned().unwrap()).collect()
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn every_connection_leaves_a_demoted_server() {
    let (old, new) = (Server::start(&[]), Server::start(&[]));
    let place = Place::leading_to(&old);
    let store = open(&place.options());
    let (held, heard) = (claim(Kind::Mutex, "held", 60_000), claim(Kind::Mutex, "heard", 60_000));
    store.attempt(&held, 1, soon()).granted();
    assert!(store.renew(std::slice::from_ref(&held), soon()).remove(0).done());
    let _subscription = store.listen(&heard, &Waker::default()).unwrap();
    let channels = kinds::for_each_channel(&heard, Some).unwrap();
    let listeners = |server: &Server| {
        let of = |channel: &String| server.run(&["PUBSUB", "NUMSUB", channel]);
        let counts =
            channels.iter().map(|channel| redis::from_redis_value::<(String, i64)>(of(channel)).unwrap().1);
        counts.sum::<i64>()
    };
    eventually(|| listeners(&old) > 0);
    place.now_leads_to(&new);
    old.run(&["REPLICAOF", "127.0.0.1", "1"]);
    // The attempt is refused on its open connection. The connection for renewals must be replaced too,
    // although the server has refused no request on it.
    eventually(|| matches!(store.attempt(&held, 1, soon()), Ok(Attempt::Granted { .. })));
    assert!(
        store.renew(std::slice::from_ref(&held), soon()).remove(0).done(),
        "the renewal went to the old server"
    );
    eventually(|| listeners(&new) > 0);
}

#[test]
fn old_connections_are_replaced_without_a_lost_answer() {
    let server = Server::start(&[]);
    let address = Arc::new(RedisAddress::new(&server.options()).unwrap());
    let lifetime = Lifetime { age: Duration::from_millis(20), idle: LONG };
    let connections = Connections::new(address, 1, Duration::from_secs(10), maintenance()).unwrap();
    let connections = Arc::new(connections.lasting(lifetime));
    let opened = || {
        let info = server.text(&["INFO", "stats"]).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
        line.trim().parse::<i64>().unwrap()
    };
    const THREADS: i64 = 4;
    let before = opened();
    let count = std::sync::atomic::AtomicI64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let until = Clock::System.after(Duration::from_secs(1));
                while Clock::System.now() < until {
                    let reply = connections.call(Command::new("INCR").arg("n"), soon());
                    assert!(matches!(reply, Ok(redis::Value::Int(_))), "{reply:?}");
                    count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                }
            });
        }
    });
    let count = count.into_inner();
    assert_eq!(server.text(&["GET", "n"]), Some(count.to_string()), "not every request arrived once");
    assert!(opened() - before > 6, "no connection was replaced");
    server.run(&["CONFIG", "SET", "maxclients", "1"]);
    let until = Clock::System.after(Duration::from_millis(100));
    while Clock::System.now() < until {
        let reply = connections.call(Command::new("INCR").arg("n"), soon());
        assert!(matches!(reply, Ok(redis::Value::Int(_))), "{reply:?}");
    }
    connections.close(soon());
}

#[test]
fn holds_are_renewed_on_a_server_at_its_client_limit() {
    let (server, store) = served();
    let me = take(&store, claim(Kind::Mutex, "lk", 60_000));
    server.run(&["CONFIG", "SET", "maxclients", "1"]);
    assert!(store.renew(std::slice::from_ref(&me), soon()).remove(0).done());
    assert!(matches!(store.clean_up(&[me], soon()).remove(0).done(), Release::Freed { .. }));
}

/// A proxy that has reached its limit, or a firewall, may drop new connections.
#[test]
fn an_old_connection_serves_if_no_new_one_opens() {
    static IS_FULL: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    let fake = Fake::start_raw(|command| match command {
        "hello" if IS_FULL.swap(true, std::sync::atomic::Ordering::SeqCst) => Act::Nothing,
        "hello" => GREETING,
        _ => Act::Say(":1\r\n"),
    });
    let address = Arc::new(RedisAddress::new(&fake.options()).unwrap());
    let lifetime = Lifetime { age: LONG, idle: Duration::ZERO };
    let connections = Connections::new(address, 1, Duration::from_secs(2), maintenance()).unwrap();
    let connections = Arc::new(connections.lasting(lifetime));
    let command = Command::new("INCR").arg("n");
    for _ in 0..2 {
        assert!(connections.call(command.clone(), soon()).is_ok());
        assert!(connections.batch(vec![command.clone()], soon()).remove(0).is_ok(), "the renewal failed");
    }
    assert!(fake.connects() > 2, "no other connection was tried");
    connections.close(soon());
}

#[test]
fn a_connection_that_breaks_amid_releases_leaves_no_lock() {
    const HOLDS: usize = 2_000;
    let server = Server::start(&[]);
    let client = client(&server, LONG);
    let guards = holds(&client, HOLDS);
    server.run(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    drop(guards);
    server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    server.run(&["CONFIG", "RESETSTAT"]);
    server.run(&["CLIENT", "UNPAUSE"]);
    let is_held = |key: &String| key.starts_with("held-");
    eventually(|| !server.keys().iter().any(is_held));
    let commands = calls(&server, "evalsha") + calls(&server, "eval");
    assert!(commands < 200, "{commands} commands for {HOLDS} releases in doubt");
    let quiet = calls(&server, "evalsha");
    let_pass(Duration::from_secs(4));
    let later = calls(&server, "evalsha") - quiet;
    assert!(later < 50, "{later} commands of a client that does nothing");
    client.shutdown().unwrap();
}

#[test]
fn after_a_disconnect_a_sample_of_holds_is_renewed_first() {
    const HOLDS: usize = 300;
    let server = Server::start(&[]);
    let client = client(&server, 10 * LONG);
    let guards = holds(&client, HOLDS);
    server.run(&["CONFIG", "RESETSTAT"]);
    server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    eventually(|| calls(&server, "evalsha") >= 32);
    let_pass(Duration::from_millis(500));
    let renewed = calls(&server, "evalsha");
    assert!(renewed < 100, "{renewed} renewals for a connection that ended");
    server.run(&["FLUSHALL"]);
    server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    eventually(|| guards.iter().all(|guard| guard.check().is_err()));
    client.shutdown().unwrap();
}

#[test]
fn connections_killed_during_a_job_do_not_fail_it() {
    let server = Server::start(&[]);
    let client = client(&server, LONG);
    let at_least = Duration::from_millis(1_500);
    let result = client.run_once("job", at_least, LONG, |_guard| {
        server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        42
    });
    assert_eq!(result.unwrap(), Some(42));
    let left = server.number(&["PTTL", "job"]);
    assert!(left <= 1_500, "the lock remains for {left} ms");
    client.shutdown().unwrap();
}

#[test]
fn an_unreleased_job_lock_expires_after_the_minimum_time() {
    let server = Server::start(&[]);
    let (failed, failures) = crossbeam_channel::unbounded();
    let observer = move |event: &Event<'_>| {
        if let Event::ReleaseFailed { name, .. } = event {
            failed.send((*name).to_owned()).unwrap();
        }
    };
    let client = LockClient::builder().url(server.url()).observer(observer).build().unwrap();
    let at_least = Duration::from_millis(700);
    let begun = Clock::System.now();
    let result = client.run_once("job", at_least, LONG, |_guard| {
        server.run(&["ACL", "SETUSER", "default", "-pexpire"]);
        42
    });
    assert_eq!(result.unwrap(), Some(42));
    assert_eq!(failures.recv_timeout(LONG).unwrap(), "job");
    eventually(|| server.keys().iter().all(|key| key != "job"));
    assert!(Clock::System.now().since(begun) >= at_least, "the lock was freed too early");
    client.shutdown().unwrap();
}
