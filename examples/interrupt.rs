//! Another thread calls off a wait.
//!
//! `cargo run --example interrupt` needs no server.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{AcquireOptions, Interrupt, LockClient, Result};

fn main() -> Result<()> {
    let client = LockClient::in_memory();
    let lock = client.get_lock("example:interrupt");
    let interrupt = Interrupt::new();
    let guard = lock.acquire()?;

    thread::scope(|scope| {
        scope.spawn(|| {
            let from = Instant::now();
            // Never comes back without the lock and without an error: an interrupted wait is not a grant.
            match lock.acquire_with(&AcquireOptions::new().interrupt(&interrupt)) {
                Ok(guard) => println!("waiter: got it: {}", guard.is_some()),
                Err(e) if e.is_interrupted() => println!("waiter: called off after {:?}", from.elapsed()),
                Err(e) => println!("waiter: {e}"),
            }
        });
        thread::sleep(Duration::from_millis(300));
        println!("main: calling the waiter off");
        interrupt.interrupt();
    });

    // An interrupt stays: a later wait with the same token ends at once. A new wait takes a new token.
    drop(guard);
    let again = lock.lock_interruptibly(&interrupt);
    println!("same token, free lock: {}", if again.is_ok() { "granted" } else { "called off" });
    lock.lock_interruptibly(&Interrupt::new())?;
    lock.unlock()?;
    println!("new token, free lock: granted");
    Ok(())
}
