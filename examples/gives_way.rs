//! A long rebuild releases its lock when another client waits for the lock, and returns where to continue.
//!
//! `cargo run --example gives_way` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` the lock is in Redis.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::thread;
use std::time::Duration;

use leasehold::{LockClient, MemoryStore, Result};

const NAME: &str = "example:catalogue";
const PARTS: u32 = 1_000;

fn connect(store: &MemoryStore) -> Result<LockClient> {
    match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url),
        Err(_) => Ok(LockClient::in_memory_with(store)),
    }
}

/// Rebuilds parts from `first` on until all are done or another client waits; returns the next part.
fn rebuild(client: &LockClient, first: u32) -> Result<u32> {
    let guard = client.get_lock(NAME).acquire()?;
    let mut part = first;
    while part < PARTS && !guard.is_contended()? {
        thread::sleep(Duration::from_millis(10)); // a part of the work, after which the data are consistent
        part += 1;
    }
    if let Err(error) = guard.unlock()
        && error.is_lost()
    {
        return Err(error);
    }
    Ok(part)
}

fn main() -> Result<()> {
    let store = MemoryStore::new();
    let (client, other) = (connect(&store)?, connect(&store)?);
    let editor = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        let guard = other.get_lock(NAME).acquire()?;
        println!("the editor has the catalogue");
        guard.unlock()
    });
    let next = rebuild(&client, 0)?;
    println!("the rebuild gave way with parts left: {}", next < PARTS);
    editor.join().unwrap_or(Ok(()))?;
    println!("the rest is next");
    client.shutdown()
}
