//! `get_token_lock` and the locks of redis-py and redsync use one key, and so exclude each other.

use std::path::PathBuf;
use std::process::Command;

use redis::{Commands, Connection};

use crate::agent::{Agent, Peer};
use crate::scene::{alone, build_once, calls, kept, monotonic, own_time_between, rust, source, turn};
use crate::support::prelude::*;

const LEASE: Duration = Duration::from_secs(2);
/// The maximum time until a waiter polls. The release of a token lock notifies nobody, so only polls find it.
const FOUND: Duration = Duration::from_millis(1_450);
const REDIS_PY: &str = "8.1.0";

fn redis_py() -> Option<Arc<Agent>> {
    let folder = kept(&format!("redis-py-{REDIS_PY}")).join("venv");
    let python = folder.join("bin/python");
    build_once("redis-py by venv and pip", &folder, &[], || {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv", "--clear"]).arg(&folder);
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", &format!("redis=={REDIS_PY}")]);
        vec![venv, pip]
    })?;
    Agent::start("Python", Command::new(&python).arg(source("redis_py.py")))
}

fn redsync() -> Option<Arc<Agent>> {
    let program = kept("redsync").join("agent");
    let project = source("go");
    let made_of = ["go.mod", "go.sum", "main.go"].map(|file| project.join(file));
    let built = build_once("redsync by Go", &program, &made_of.each_ref().map(PathBuf::as_path), || {
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&program).arg(".").current_dir(&project);
        vec![go]
    })?;
    Agent::start("redsync", &mut Command::new(built))
}

/// The agent's lock and our token lock exclude each other, and neither side deletes the other's key.
fn token_locks_are_shared(agent: Option<Arc<Agent>>) {
    let Some((agent, server)) = agent.zip(RedisServer::start_default()) else { return };
    let peer = agent.connect("peer", &server.url(), &[]);
    keep_each_other_out(&server, &peer, server.admin());
    never_delete_each_others_key(&server, &peer, server.admin());
}

#[test]
fn redis_py_and_token_locks_exclude_each_other() {
    let _alone = alone();
    token_locks_are_shared(redis_py());
}

#[test]
fn redsync_and_token_locks_exclude_each_other() {
    let _alone = alone();
    token_locks_are_shared(redsync());
}

fn keep_each_other_out(server: &RedisServer, peer: &Peer, mut admin: Connection) {
    let client = rust(&server.url(), LEASE);
    let lock = client.get_token_lock("token");

    assert!(peer.is("holder", "try-lease", &["token", "20000"]));
    assert!(!lock.try_lock().unwrap());
    assert!(!lock.try_lock_for(Duration::from_millis(100)).unwrap());
    assert!(lock.is_locked().unwrap());
    let before = calls(&mut admin, &["set"]);
    let waiter = turn(&client.get_token_lock("token"));
    wait_until("ours has tried", LONG, || calls(&mut admin, &["set"]) > before);
    assert!(waiter.is_open());
    let begun = monotonic();
    peer.get("holder", "unlock", &["token"]);
    let delay = own_time_between(begun, waiter.join());
    assert!(delay <= FOUND, "found free after {delay:?}");

    lock.lock().unwrap();
    let kind: String = redis::cmd("TYPE").arg("token").query(&mut admin).unwrap();
    assert_eq!(kind, "string");
    let left: i64 = admin.pttl("token").unwrap();
    assert!((1..=2_000).contains(&left), "{left} ms left of two seconds");
    assert!(!peer.is("holder", "try-lease", &["token", "20000"]));
    assert!(!peer.is("holder", "try-for-lease", &["token", "4200", "20000"]));
    assert!(lock.is_held_by_current_thread().unwrap());
    let waiter = peer.ask("waiter", "try-for-lease", &["token", "20000", "20000"]);
    let before = calls(&mut admin, &["set"]);
    wait_until("the peer has tried", LONG, || calls(&mut admin, &["set"]) > before);
    assert!(waiter.is_open());
    lock.unlock().unwrap();
    assert_eq!(waiter.wait().result.as_deref(), Ok("true"));
    assert!(!lock.try_lock().unwrap());
    peer.get("waiter", "unlock", &["token"]);
    assert_eq!(admin.exists("token"), Ok(false));
}

fn never_delete_each_others_key(server: &RedisServer, peer: &Peer, mut admin: Connection) {
    let lock = rust(&server.url(), LEASE).get_token_lock("token");
    let mut expired = server.admin();
    let mut expires = || wait_until("the lease ends", LONG, || expired.exists("token") == Ok(false));

    assert!(peer.is("late", "try-lease", &["token", "150"]));
    expires();
    lock.lock().unwrap();
    let refused = peer.error("late", "unlock", &["token"]);
    assert!(lock.is_held_by_current_thread().unwrap(), "after {refused:?}");
    lock.unlock().unwrap();

    lock.lock_with_lease(Duration::from_millis(150)).unwrap();
    expires();
    assert!(peer.is("next", "try-lease", &["token", "20000"]));
    let token: Vec<u8> = admin.get("token").unwrap();
    let refused = lock.unlock().unwrap_err();
    assert!(refused.not_held().is_some(), "{refused}");
    assert_eq!(admin.get("token"), Ok(token));

    let refused = lock.unlock().unwrap_err();
    assert!(refused.not_held().is_some(), "{refused}");
    peer.get("next", "unlock", &["token"]);
    assert_eq!(admin.exists("token"), Ok(false));
}
