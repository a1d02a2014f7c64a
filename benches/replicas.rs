//! The cost of grants that wait for a replica, beside grants that do not: `cargo bench --bench replicas`, or
//! with `-- redis://HOST:PORT` on a master that has a replica already.
//!
//! The two alternate, so that other load on the machine affects both. The figures are cycles of lock and
//! unlock per second, and their ratio.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a program that measures"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::LockClient;
use support::server::{RedisServer, default_server};
use support::{let_pass, now};

const ROUNDS: usize = 5;
const RUN: Duration = Duration::from_secs(1);
const WITHIN: Duration = Duration::from_secs(1);

fn main() {
    let given = std::env::args().find(|argument| argument.starts_with("redis://"));
    let Some(binary) = default_server() else { return };
    let master = RedisServer::builder(&binary).config("repl-diskless-sync-delay 0").start();
    let of = format!("replicaof 127.0.0.1 {}", master.port());
    let _replica = RedisServer::builder(&binary).config(&of).start();
    let url = given.unwrap_or_else(|| master.url());
    let connect = |count: u32| {
        let options = LockClient::builder().url(&url).retry_timeout(Duration::from_secs(30));
        let options = if count > 0 { options.require_replicas(count, WITHIN) } else { options };
        options.build().unwrap()
    };
    let clients = [connect(0), connect(1)];
    drop(clients[1].get_lock("ready").acquire().unwrap());
    for (what, threads, locks) in [
        ("one thread", 1, 1),
        ("16 threads, a lock each", 16, 16),
        ("64 threads, a lock each", 64, 64),
        ("16 threads, one lock", 16, 1),
    ] {
        let mut rates: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
        for round in 0..=ROUNDS {
            for (client, rates) in clients.iter().zip(&mut rates) {
                let cycles = cycles(client, threads, locks);
                if round > 0 {
                    rates.push(cycles); // the first round only warms up
                }
            }
        }
        let [without, with] = rates.map(|mut rates| {
            rates.sort_unstable();
            rates[rates.len() / 2]
        });
        println!(
            "{what}: {without} cycles a second without, {with} with a replica: {:.2}",
            with as f64 / without as f64
        );
    }
}

fn cycles(client: &LockClient, threads: usize, locks: usize) -> u64 {
    let (ended, all) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (ended, all) = (&ended, &all);
            scope.spawn(move || {
                let lock = client.get_lock(format!("bench:{}", thread % locks));
                let mut count = 0;
                while !ended.load(Ordering::Relaxed) {
                    lock.lock().unwrap();
                    lock.unlock().unwrap();
                    count += 1;
                }
                all.fetch_add(count, Ordering::Relaxed);
            });
        }
        let_pass(RUN, "the run lasts so long");
        ended.store(true, Ordering::Relaxed);
    });
    (all.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()) as u64
}
