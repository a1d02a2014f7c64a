//! A thread that holds a lock may acquire it again; the lock is free after as many releases.
//!
//! `cargo run --example reentrancy`; with REDIS_URL set, watch `redis-cli hgetall example:account` meanwhile.
#![allow(clippy::print_stdout, reason = "an example talks")]

use leasehold::{LockClient, RedisLock, Result};

/// Acquires the lock itself, although a caller may already hold it.
fn deposit(account: &RedisLock, amount: u32) -> Result<()> {
    let _guard = account.acquire()?;
    println!("  deposit {amount}: held {} times by this thread", account.hold_count()?);
    Ok(())
}

fn transfer(account: &RedisLock) -> Result<()> {
    let _guard = account.acquire()?;
    println!("transfer: held {} time by this thread", account.hold_count()?);
    deposit(account, 10)?;
    deposit(account, 20)?;
    println!("transfer: held {} time again", account.hold_count()?);
    Ok(())
}

fn main() -> Result<()> {
    let client = match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url)?,
        Err(_) => LockClient::in_memory(),
    };
    let account = client.get_lock("example:account");
    transfer(&account)?;
    println!("afterwards: locked {}", account.is_locked()?);

    // Another thread is another owner, even with a clone of the same handle.
    let _guard = account.acquire()?;
    std::thread::scope(|scope| {
        scope.spawn(|| match account.try_lock() {
            Ok(got_it) => println!("another thread gets it meanwhile: {got_it}"),
            Err(e) => println!("another thread could not ask: {e}"),
        });
    });
    Ok(())
}
