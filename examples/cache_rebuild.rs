//! Many threads read a cache and one rebuilds it, under a read-write lock.
//!
//! `cargo run --example cache_rebuild` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` the lock is
//! in Redis.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use leasehold::{LockClient, ReadWriteLock, Result};

/// Reads the cache, beside other readers. A reader that finds the cache stale rebuilds it alone, and reads
/// the result before another thread can rebuild the cache again.
fn read(lock: &ReadWriteLock, cache: &AtomicU32, wanted: u32) -> Result<u32> {
    {
        let _reading = lock.read().acquire()?;
        let found = cache.load(SeqCst);
        if found >= wanted {
            return Ok(found);
        }
    } // Releases first: two readers that both waited to write would wait for each other.
    let writing = lock.write().acquire()?;
    // Another thread may have rebuilt the cache first.
    if cache.load(SeqCst) < wanted {
        println!("{:?} rebuilds", thread::current().id());
        thread::sleep(Duration::from_millis(100));
        cache.store(wanted, SeqCst);
    }
    // A downgrade: after `drop(writing)` other readers may read, but nobody can write before this read ends.
    let _reading = lock.read().acquire()?;
    drop(writing);
    Ok(cache.load(SeqCst))
}

fn main() -> Result<()> {
    let client = match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url)?,
        Err(_) => LockClient::in_memory(),
    };
    let lock = client.get_read_write_lock("example:cache");
    let cache = AtomicU32::new(0);
    for version in 1..=2 {
        thread::scope(|scope| {
            let readers: Vec<_> = (0..6).map(|_| scope.spawn(|| read(&lock, &cache, version))).collect();
            for reader in readers {
                let found = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                println!("read version {found}");
            }
            Ok::<(), leasehold::Error>(())
        })?;
    }
    client.shutdown()
}
