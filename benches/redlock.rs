//! The cost of a lock on five servers beside a lock on one: `cargo bench --bench redlock`.
//!
//! Both alternate on this machine, so that other load affects both. The figure is the ratio.

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

use std::time::Duration;

use leasehold::{LockClient, RedisLock};
use support::now;
use support::server::{RedisServer, default_server};

const ROUNDS: usize = 40;
const CYCLES: u32 = 200;

fn main() {
    let Some(binary) = default_server() else { return };
    let servers: Vec<RedisServer> = (0..5).map(|_| RedisServer::builder(&binary).start()).collect();
    let one = LockClient::connect(servers[0].url()).unwrap();
    let five = LockClient::redlock(servers.iter().map(RedisServer::url)).unwrap();
    let (one, five) = (one.get_lock("bench-one"), five.get_lock("bench-five"));
    let unlock = |lock: &RedisLock| {
        lock.lock().unwrap();
        lock.unlock().unwrap();
    };
    let guard = |lock: &RedisLock| drop(lock.acquire().unwrap());
    compare("lock and unlock", &one, &five, unlock);
    compare("acquire and drop", &one, &five, guard);
}

fn compare(what: &str, one: &RedisLock, five: &RedisLock, cycle: impl Fn(&RedisLock)) {
    let mut spans: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        for (lock, spans) in [one, five].into_iter().zip(&mut spans) {
            let begun = now();
            (0..CYCLES).for_each(|_| cycle(lock));
            if round > 0 {
                spans.push(begun.elapsed() / CYCLES); // the first round only warms up
            }
        }
    }
    let [one, five] = spans.map(|mut spans| {
        spans.sort_unstable();
        spans[spans.len() / 2]
    });
    println!(
        "{what}: one server {one:?}, five {five:?}: {:.2} times",
        five.as_secs_f64() / one.as_secs_f64()
    );
}
