//! Workers fetch blocks of invoice numbers from a shared counter: a spin lock, for very short work.
//!
//! A spin lock needs neither a connection for wake-ups nor the right to subscribe. `cargo run --example
//! number_blocks` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` the lock is in Redis.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use leasehold::{Backoff, LockClient, RedisLock, Result};

const BLOCK: u32 = 100;

/// Takes the next block. It reads and writes the counter in two steps, which only the lock keeps together.
fn fetch(lock: &RedisLock, counter: &AtomicU32) -> Result<u32> {
    let _guard = lock.acquire()?;
    let first = counter.load(SeqCst);
    thread::yield_now();
    counter.store(first + BLOCK, SeqCst);
    Ok(first)
}

fn main() -> Result<()> {
    let client = match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url)?,
        Err(_) => LockClient::in_memory(),
    };
    // A waiter of `get_spin_lock(name)` sleeps 1–128 ms between attempts, as in Redisson; here at most 16 ms.
    let backoff = Backoff::exponential(Duration::from_millis(1), Duration::from_millis(16));
    let lock = client.lock_builder("example:numbers").spin(backoff).build();
    let counter = AtomicU32::new(1);
    let blocks = thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(|| fetch(&lock, &counter))).collect();
        let blocks = workers.into_iter();
        blocks
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Result<BTreeSet<u32>>>()
    })?;
    for first in &blocks {
        println!("invoices {first} to {}", first + BLOCK - 1);
    }
    println!("blocks that nobody else has: {}", blocks.len());
    client.shutdown()
}
