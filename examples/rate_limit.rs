//! At most three simultaneous calls of a downstream service, however many processes call it: a semaphore.
//!
//! The semaphore is expirable: the permits of a process that dies come back when their leases end. `cargo run
//! --example rate_limit` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` run it in two terminals.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use leasehold::{ExpirableSemaphore, LockClient, Result};

const AT_ONCE: u32 = 3;
/// How long a caller waits for a permit at most.
const WAIT: Duration = Duration::from_millis(250);

fn call(slots: &ExpirableSemaphore, under_way: &AtomicU32) -> Result<&'static str> {
    let Some(_permit) = slots.try_acquire_for(WAIT)? else { return Ok("busy, try again later") };
    assert!(under_way.fetch_add(1, SeqCst) < AT_ONCE, "too many requests at the downstream service");
    thread::sleep(Duration::from_millis(100));
    under_way.fetch_sub(1, SeqCst);
    Ok("served")
} // The permit is released here, also after a panic.

fn main() -> Result<()> {
    let client = match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url)?,
        Err(_) => LockClient::in_memory(),
    };
    let slots = client.get_expirable_semaphore("example:downstream");
    // The first process sets the number of permits; later calls change nothing.
    println!("set up here: {}", slots.try_set_permits(AT_ONCE)?);

    let under_way = AtomicU32::new(0);
    thread::scope(|scope| {
        let callers: Vec<_> = (0..12).map(|_| scope.spawn(|| call(&slots, &under_way))).collect();
        for caller in callers {
            println!("{}", caller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok::<(), leasehold::Error>(())
    })?;
    println!("permits left: {}", slots.available_permits()?);
    client.shutdown()
}
