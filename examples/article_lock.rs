//! A token lock, shared with a program that does `SET name token NX PX …`, as articles describe it and
//! redis-py does.
//!
//! `cargo run --example article_lock` needs no server. With `REDIS_URL=redis://127.0.0.1:6379` the lock is in
//! Redis: enter `SET example:article mine NX PX 5000` in redis-cli before you start this program.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::time::Duration;

use leasehold::{ErrorKind, LockClient, Result};

fn main() -> Result<()> {
    let client = match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url)?,
        Err(_) => LockClient::in_memory(),
    };
    let lock = client.get_token_lock("example:article");
    // A program that uses SET does not publish its releases, so this waiter polls every 50–100 ms.
    let Some(guard) = lock.try_acquire_for(Duration::from_secs(10))? else {
        println!("somebody keeps it");
        return client.shutdown();
    };
    println!("taken; the key's value is {}", guard.owner());
    println!("{}", client.inspect("example:article")?.kind);

    // Unlike a plain lock, a token lock is not reentrant: a thread that waits for its own lock gets an error.
    match lock.acquire() {
        Err(e) if e.kind() == ErrorKind::WouldDeadlock => println!("again, by the same thread: {e}"),
        other => println!("again, by the same thread: {:?}", other.is_ok()),
    }

    // Unlike a key that a program sets by `SET … PX`, this lock is renewed while the guard lives.
    guard.check()?;
    drop(guard);
    println!("free: {}", !lock.is_locked()?);
    client.shutdown()
}
