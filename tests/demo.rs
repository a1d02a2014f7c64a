//! The stock demo as a user runs it: its JSON, the exact last row, and nothing left behind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy.toml exempts test functions only, and these have helpers"
)]

mod support;

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use serde_json::Value;
use support::eventually;
use support::examples::example;
use support::server::RedisServer;

const ROWS: [&str; 7] = [
    "none",
    "local_mutex",
    "setnx_ttl_del",
    "owner_checked_del",
    "lua_no_renewal",
    "redis_lock",
    "redis_lock_fenced",
];
const STOCK: i64 = 40;

#[test]
fn the_demo_prints_one_json_object_per_row_and_the_fenced_row_is_exact() {
    let Some(server) = RedisServer::start_default() else { return };
    let demo = Demo::start(&server, &[]);
    let (out, success) = demo.finish();

    let rows: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let names: Vec<_> = rows.iter().map(|row| row["lock"].as_str().unwrap()).collect();
    assert_eq!(names, ROWS);
    for row in &rows {
        let object = row.as_object().unwrap();
        let fields = ["lock", "sold", "oversold", "lost", "orders_per_s", "wait_p50_ms", "wait_p99_ms"];
        assert_eq!(object.len(), fields.len(), "{row}");
        assert!(
            fields[1..].iter().all(|field| row[field].as_f64().is_some_and(|number| number >= 0.0)),
            "{row}"
        );
        assert_eq!(
            row["oversold"].as_i64().unwrap(),
            (row["sold"].as_i64().unwrap() - STOCK).max(0),
            "{row}"
        );
    }
    let [none, .., fenced] = &rows[..] else { panic!("no rows in {out}") };
    assert!(none["oversold"].as_i64().unwrap() > 0, "sellers without a lock sold nothing twice: {none}");
    assert_eq!(fenced["sold"], STOCK);
    assert_eq!(fenced["oversold"], 0);
    assert_eq!(fenced["lost"], 0);
    assert!(success, "the demo failed though its last row is exact");
    assert_eq!(keys(&server), 0, "the demo left keys behind");
}

/// The last row with the lock on servers of its own, the one that has it killed half-way.
fn is_exact_on(topology: &str) {
    let Some(server) = RedisServer::start_default() else { return };
    let (out, success) =
        Demo::start(&server, &["--rows", "redis_lock_fenced", "--topology", topology]).finish();
    let row: Value = serde_json::from_str(&out).expect(&out);
    assert_eq!(
        (&row["sold"], &row["oversold"], &row["lost"]),
        (&STOCK.into(), &0.into(), &0.into()),
        "{row}"
    );
    assert!(success, "the demo failed though its row is exact");
    assert_eq!(keys(&server), 0, "the demo left keys behind");
}

#[test]
fn the_fenced_row_is_exact_when_its_server_is_killed_and_started_again() {
    is_exact_on("single");
}

#[test]
fn the_fenced_row_is_exact_when_one_of_five_servers_of_a_redlock_is_killed() {
    is_exact_on("redlock");
}

#[test]
fn the_fenced_row_is_exact_when_its_master_is_killed_and_replaced() {
    is_exact_on("sentinel");
}

#[test]
fn the_fenced_row_is_exact_when_its_primary_of_a_cluster_is_killed() {
    is_exact_on("cluster");
}

#[test]
fn the_fenced_row_is_exact_when_its_node_of_a_ring_is_killed_and_given_up() {
    is_exact_on("ring");
}

#[test]
fn an_interrupted_demo_ends_its_workers_and_removes_its_keys() {
    let Some(server) = RedisServer::start_default() else { return };
    let demo = Demo::start(&server, &["--rows", "redis_lock_fenced"]);
    // Whoever claims this fault is being stopped: the hardest moment to leave nothing behind.
    let mut admin = server.admin();
    let mut stopping =
        || !redis::cmd("KEYS").arg("*:stop").query::<Vec<String>>(&mut admin).unwrap().is_empty();
    assert!(eventually(Duration::from_secs(30), &mut stopping), "no worker was stopped");
    kill_process(Pid::from_child(&demo.child), Signal::INT).unwrap();
    let (_, success) = demo.finish();

    assert!(!success, "an interrupted demo must not report success");
    assert_eq!(keys(&server), 0, "the interrupted demo left keys behind");
}

fn keys(server: &RedisServer) -> u64 {
    redis::cmd("DBSIZE").query(&mut server.admin()).unwrap()
}

/// The running example, in a process group of its own so that its workers can be found.
struct Demo {
    child: Child,
    group: Pid,
    ended: bool,
}

impl Demo {
    fn start(server: &RedisServer, more: &[&str]) -> Demo {
        let child = Command::new(example("stock"))
            .args(["--json", "--processes", "3", "--threads", "2", "--stock", &STOCK.to_string()])
            .args(more)
            .env("REDIS_URL", server.url())
            .env("LEASEHOLD_DEMO_SERVER", &server.binary().path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let group = Pid::from_child(&child);
        Demo { child, group, ended: false }
    }

    /// Standard output and whether it succeeded; no process of the demo is left then.
    fn finish(mut self) -> (String, bool) {
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let success = self.child.wait().unwrap().success();
        assert!(test_kill_process_group(self.group).is_err(), "the demo left processes running");
        self.ended = true;
        (out, success)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // After a failed assertion the whole group; after `finish` its number may already be another's.
        if !self.ended && kill_process_group(self.group, Signal::KILL).is_ok() {
            drop(self.child.wait());
        }
    }
}
