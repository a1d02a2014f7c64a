//! A program with three seats: a semaphore, and the drawback that its permits have no owner.
//!
//! `cargo run --example licence_seats` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` run it in two
//! terminals.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::thread;
use std::time::Duration;

use leasehold::{LockClient, Result};

fn main() -> Result<()> {
    let client = match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url)?,
        Err(_) => LockClient::in_memory(),
    };
    let seats = client.get_semaphore("example:seats");
    // The first process sets the semaphore up; the others use it.
    seats.try_set_permits(3)?;

    let group = seats.acquire(2)?;
    println!("a group of two sits down; seats left: {}", seats.available_permits()?);
    println!("another two may sit down: {}", seats.try_acquire(2)?.is_some());
    thread::scope(|scope| {
        // A request for one permit does not wait behind a request for several.
        let waiting =
            scope.spawn(|| seats.try_acquire_for(3, Duration::from_secs(5)).map(|table| table.is_some()));
        println!("somebody alone may: {}", seats.try_acquire(1)?.is_some());
        thread::sleep(Duration::from_millis(50));
        drop(group);
        let all = waiting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        println!("who waited for all three got them: {all}");
        Ok::<(), leasehold::Error>(())
    })?;

    // A process that dies with a seat keeps the seat for ever, because permits have no owner. If that can
    // happen, use `client.get_expirable_semaphore`, as in `rate_limit`. Here the seat is released by hand:
    seats.acquire(1)?.forget();
    println!("one is left behind; seats left: {}", seats.available_permits()?);
    seats.release(1)?;
    println!("an operator gives it back; seats left: {}", seats.available_permits()?);
    seats.delete()?;
    client.shutdown()
}
