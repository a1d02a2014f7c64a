//! Waiting for a limited time, and what "busy" looks like.
//!
//! `cargo run --example try_lock_for` needs no server.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{LockClient, Result};

fn main() -> Result<()> {
    let client = LockClient::in_memory();
    let lock = client.get_lock("example:printer");
    let guard = lock.acquire()?;

    thread::scope(|scope| {
        scope.spawn(|| {
            let from = Instant::now();
            let waited = || from.elapsed().as_millis();
            // Busy is an answer, not an error; an error means that the lock could not be asked.
            match lock.try_lock() {
                Ok(got_it) => println!("try_lock                 -> {got_it} after {} ms", waited()),
                Err(e) => println!("try_lock                 -> {e}"),
            }
            match lock.try_lock_for(Duration::from_millis(200)) {
                Ok(got_it) => println!("try_lock_for 200 ms      -> {got_it} after {} ms", waited()),
                Err(e) => println!("try_lock_for 200 ms      -> {e}"),
            }
            // The time is how long to wait. The lease is another matter, and here renewed as with acquire().
            match lock.try_acquire_for(Duration::from_secs(5)) {
                Ok(Some(_guard)) => println!("try_acquire_for 5 s      -> a guard after {} ms", waited()),
                Ok(None) => println!("try_acquire_for 5 s      -> busy after {} ms", waited()),
                Err(e) => println!("try_acquire_for 5 s      -> {e}"),
            }
        });
        thread::sleep(Duration::from_millis(500));
        println!("holder releases");
        drop(guard);
    });
    Ok(())
}
