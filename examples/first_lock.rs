//! The first lock: acquire it, work, release it.
//!
//! `cargo run --example first_lock` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` the lock is in
//! Redis, and the same program in a second terminal waits for the first.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::time::Duration;

use leasehold::{LockClient, Result};

fn main() -> Result<()> {
    let client = match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url)?,
        Err(_) => LockClient::in_memory(),
    };
    let lock = client.get_lock("example:first");

    // The Rust way: the guard stands for the hold, and dropping the guard releases the lock.
    println!("{} waits for {}", client.current_owner(), lock.name());
    let guard = lock.acquire()?;
    println!("{} has it for the next {:?}, and renewed from then on", guard.owner(), guard.remaining());
    std::thread::sleep(Duration::from_secs(2));
    drop(guard);

    // The Java way: the thread is the owner, and must call `unlock`.
    lock.lock()?;
    println!("locked: {}, by this thread: {}", lock.is_locked()?, lock.is_held_by_current_thread()?);
    lock.unlock()?;

    // The short way: a closure runs under the lock.
    let answer = client.with_lock("example:first", |_guard| 6 * 7)?;
    println!("worked out under the lock: {answer}");

    println!("locked: {}", lock.is_locked()?);
    client.shutdown()
}
