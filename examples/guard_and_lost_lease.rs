//! A lease can be lost: how a guard reports it, and what to do then.
//!
//! `cargo run --example guard_and_lost_lease` needs no server: the program moves its store's clock.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::time::Duration;

use leasehold::crossbeam_channel::{RecvTimeoutError, bounded, select};
use leasehold::{AcquireOptions, LockClient, ManualClock, MemoryStore, Result};

fn main() -> Result<()> {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let ours = LockClient::in_memory_with(&store);
    let theirs = LockClient::in_memory_with(&store);

    // An explicit lease is never renewed. (The lease of `acquire()` is renewed while this process runs.)
    let options = AcquireOptions::new().lease(Duration::from_secs(10));
    let Some(guard) = ours.get_lock("example:report").acquire_with(&options)? else { return Ok(()) };
    println!("granted: {:?}, {:?} left", guard.state(), guard.remaining());
    let (told, heard) = bounded::<()>(0);
    // The callback runs once, on a thread of the client.
    guard.on_lost(move |loss| {
        println!("told by callback: {} is lost ({:?})", loss.name, loss.reason);
        drop(told);
    });
    let lost = guard.lost();

    clock.advance(Duration::from_secs(11));
    println!("eleven seconds later: {:?}", guard.state());
    let other = theirs.get_lock("example:report").try_acquire()?;
    println!("another client gets it: {}", other.is_some());

    // Check before a step that cannot be undone. The check reads the clock and sends nothing.
    if let Err(e) = guard.check() {
        println!("check says: {e} (lost: {})", e.is_lost());
    }

    // Another way is to wait for the loss together with other channels.
    select! {
        recv(lost) -> loss => match loss {
            Ok(loss) => println!("told by channel: {:?}", loss.reason),
            Err(_) => println!("the guard is gone"),
        },
        default(Duration::from_secs(5)) => println!("no loss was reported"),
    }

    // The channel `heard` gets no message; it closes when the callback has run and is dropped.
    println!(
        "the callback has run: {}",
        heard.recv_timeout(Duration::from_secs(5)) == Err(RecvTimeoutError::Disconnected)
    );

    // The release also reports the loss, and does not touch the other client's hold.
    match guard.unlock() {
        Ok(()) => println!("released"),
        Err(e) => println!("unlock says: {e}"),
    }
    println!("the other client still has it: {}", other.is_some_and(|guard| guard.check().is_ok()));
    Ok(())
}
