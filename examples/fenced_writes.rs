//! A holder is stopped for longer than its lease, continues, and writes; the fenced file refuses the write.
//!
//! No lock can keep such a holder from writing, but the resource can, by comparing fencing tokens. `cargo run
//! --example fenced_writes` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` the lock is in Redis.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::error::Error;
use std::thread;
use std::time::Duration;

use leasehold::{AcquireOptions, LockClient, MemoryStore, fencing};

const LEASE: Duration = Duration::from_millis(300);

fn connect(store: &MemoryStore) -> leasehold::Result<LockClient> {
    match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url),
        Err(_) => Ok(LockClient::in_memory_with(store)),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report.txt");
    let store = MemoryStore::new();
    let (slow, quick) = (connect(&store)?, connect(&store)?);

    // The lease is not renewed, as if the whole process were stopped.
    let not_renewed = AcquireOptions::new().lease(LEASE);
    let paused = slow.get_fenced_lock("example:report").acquire_with(&not_renewed)?.ok_or("busy")?;
    let old = paused.fencing_token().ok_or("no fence")?;
    println!("slow has it, with token {old}, and stops");
    thread::sleep(LEASE * 2);

    let guard = quick.get_fenced_lock("example:report").acquire()?;
    let new = guard.fencing_token().ok_or("no fence")?;
    println!(
        "quick has it, with token {new}; written: {}",
        fencing::write_file(&report, new, b"quick's report")?
    );
    drop(guard);

    // This holder does not check its hold before it writes; `paused.check()` would return an error.
    println!("slow goes on;  written: {}", fencing::write_file(&report, old, b"slow's report")?);
    println!("the file has:  {}", std::fs::read_to_string(&report)?);
    println!("slow unlocks:  {}", paused.unlock().err().ok_or("it was still held")?);
    slow.shutdown()?;
    Ok(quick.shutdown()?)
}
