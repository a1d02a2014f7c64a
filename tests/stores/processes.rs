//! Processes share the locks of a store. Each process runs this test program.

mod deadlock;

use leasehold::Result;

use deadlock::two_processes_deadlock_is_reported_and_broken;

use crate::databases::connect_session;
use crate::support::prelude::*;
use crate::support::processes::{
    LEASE, Worker, a_killed_holder_frees_within, connect, count_across_processes,
};
use crate::support::running::{self, Start};
use crate::support::zookeeper::Sessions;
use crate::support::{reexecuted, test_name};

/// Defines the listed tests for each store. Each test starts a new server.
macro_rules! on {
    ([$($place:ident: $start:expr;)*] $tests:tt) => {
        $(on!(@ $place, $start, $tests);)*
    };
    (@ $place:ident, $start:expr, ($($test:ident),+)) => {
        mod $place {
            use super::*;
            $(#[test] fn $test() { super::$test(stringify!($place), $start); })+
        }
    };
}

// `./check` selects tests by the store's name, so the names for session locks contain it.
on!([
    redis: running::redis;
    postgres: running::postgres;
    sessions_postgres: running::postgres;
    mysql: running::mysql;
    sessions_mysql: running::mysql;
    sqlite: running::sqlite;
    etcd: running::etcd;
    // ZooKeeper looks for ended sessions once a tick, so short ticks free a killed holder's lock soon.
    zookeeper: || running::zookeeper_with(Sessions { tick_ms: 200, least_ms: 2_000, most_ms: 60_000 });
] (four_processes_incrementing_under_the_lock_lose_no_increment, a_killed_holder_frees_the_lock_within_its_lease));

mod two {
    use super::*;

    on!([
        redis: running::redis;
        postgres: running::postgres;
        etcd: running::etcd;
        zookeeper: running::zookeeper;
    ] (two_processes_deadlock_is_reported_and_broken, a_long_job_gives_way_to_another_process));
}

type Connect = fn(&str, Duration) -> Result<LockClient>;

fn four_processes_incrementing_under_the_lock_lose_no_increment(place: &str, start: Start) {
    let connect: Connect = if place.starts_with("sessions") { connect_session } else { connect };
    if let Some(worker) = Worker::here() {
        return worker.work(connect);
    }
    let Some(server) = start() else { return };
    count_across_processes(&server.url);
}

fn a_killed_holder_frees_the_lock_within_its_lease(place: &str, start: Start) {
    let (connect, most): (Connect, _) = match place {
        "sessions_postgres" | "sessions_mysql" => (connect_session, ms(400)),
        // docs/decisions/0016-etcd.md explains the added time.
        "etcd" => (connect, LEASE + ms(1_500)),
        "zookeeper" => (connect, LEASE + ms(200 * 2)),
        _ => (connect, LEASE),
    };
    if let Some(worker) = Worker::here() {
        return worker.work(connect);
    }
    let Some(server) = start() else { return };
    a_killed_holder_frees_within(most, &server.url, &connect(&server.url, LEASE).unwrap());
}

const URL: &str = "LEASEHOLD_CONTENDED_URL";

/// The number of parts of a job, which takes ten seconds and can stop after each part.
const PARTS: u32 = 100;
const PART: Duration = ms(100);

#[expect(clippy::print_stdout, reason = "the other process reads it")]
fn works_until_others_wait(url: &str) {
    let client = connect(url, LEASE).unwrap();
    let guard = client.get_lock("job").acquire().unwrap();
    println!("HAS IT");
    let mut parts = 0;
    while parts < PARTS && !guard.is_contended().unwrap() {
        let_pass(PART, "a part of the job");
        parts += 1;
    }
    println!("PARTS {parts}");
    guard.unlock().unwrap();
}

/// Asserts only an order: this process gets the lock before the other process has done its whole job.
fn a_long_job_gives_way_to_another_process(store: &str, start: Start) {
    if let Ok(url) = std::env::var(URL) {
        return works_until_others_wait(&url);
    }
    let Some(server) = start() else { return };
    let client = connect(&server.url, LEASE).unwrap();
    let lock = client.get_lock("job");
    let mut rounds = Vec::new();
    for _ in 0..5 {
        let process = reexecuted(&test_name(), &[(URL, &server.url)]);
        assert!(eventually(LONG, || process.output().contains("HAS IT")), "{}", process.output());
        let asked = now();
        lock.lock().unwrap();
        rounds.push(asked.elapsed());
        lock.unlock().unwrap();
        let (good, text) = process.ends_within(LONG);
        let said = text.lines().find_map(|line| line.strip_prefix("PARTS ")?.parse::<u32>().ok());
        assert!(good && said.is_some_and(|parts| parts < PARTS), "{text}");
    }
    rounds.sort();
    shout(&format!(
        "MEASURED {store}: a waiter has the lock of a job with parts of {PART:?} after {rounds:?}"
    ));
}
