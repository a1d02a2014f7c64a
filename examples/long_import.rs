//! A long import that must not be started twice. A second operator is refused at once, and learns who holds
//! the lock, since when, and when the hold ends at the latest.
//!
//! `cargo run --example long_import` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` the lock is in
//! Redis, and an operator in a second terminal is refused as well. If a Java program holds the lock, the
//! operator learns the holder and the remaining lease, but not since when, which Redisson does not store.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::thread;
use std::time::Duration;

use leasehold::crossbeam_channel::{Sender, bounded};
use leasehold::{LockClient, LossReason, MemoryStore, Result};

const NAME: &str = "example:import";
/// An import that takes longer is assumed to hang, although the client still renews.
const MAX_HOLD: Duration = Duration::from_secs(3);

fn connect(store: &MemoryStore) -> Result<LockClient> {
    match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url),
        Err(_) => Ok(LockClient::in_memory_with(store)),
    }
}

/// Imports; `false` if another import is under way.
fn import(client: &LockClient, operator: &str, started: Option<Sender<()>>) -> Result<bool> {
    let lock = client.lock_builder(NAME).non_reentrant().max_hold(MAX_HOLD).build();
    let Some(guard) = lock.try_acquire()? else {
        refused(client, operator)?;
        return Ok(false);
    };
    println!("{operator} imports, as {}", guard.owner());
    let lost = guard.lost();
    drop(started);
    // The import hangs. A real import would call `guard.check()` before each batch.
    if let Ok(loss) = lost.recv() {
        let too_long = loss.reason == LossReason::HeldTooLong;
        println!("{operator} is stopped; held too long: {too_long}");
    }
    Ok(true)
}

/// Prints who holds the lock, or that the import is over by now.
fn refused(client: &LockClient, operator: &str) -> Result<()> {
    let seen = client.inspect(NAME)?;
    let Some(holder) = seen.holders.first() else {
        println!("{operator} is refused, but it is over: try again");
        return Ok(());
    };
    let place = holder.location.as_ref();
    let place = place.map_or("somewhere".to_owned(), |place| format!("{} ({place})", place.thread));
    println!("{operator} is refused: {place} imports, as {}", holder.owner);
    match (holder.held_for, holder.ends_within) {
        (Some(held_for), Some(ends)) => {
            println!("  for {} ms now, {} ms more at most", held_for.as_millis(), ends.as_millis());
        }
        _ => println!("  since when is not known"),
    }
    println!("{seen}");
    Ok(())
}

fn main() -> Result<()> {
    let store = MemoryStore::new();
    let (first, second) = (connect(&store)?, connect(&store)?);
    let (starting, started) = bounded(0);
    thread::scope(|scope| {
        let ada = thread::Builder::new().name("ada".into());
        let ada = ada.spawn_scoped(scope, || import(&first, "ada", Some(starting)));
        // The channel gets no message; it closes when the import has started or was refused.
        started.recv().ok();
        import(&second, "bob", None)?;
        // The operator need not kill the import: `max_hold` ends its hold, and this wait then succeeds.
        if second.get_lock(NAME).try_acquire_for(MAX_HOLD * 2)?.is_some() {
            println!("bob may now");
        }
        if let Ok(ada) = ada {
            ada.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok::<(), leasehold::Error>(())
    })?;
    first.shutdown()?;
    second.shutdown()
}
