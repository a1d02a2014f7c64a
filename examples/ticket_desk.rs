//! Customers come in by two doors, and one desk serves them in the order of arrival: a fair lock.
//!
//! Here each door is a client with an id of its own; with Redis the doors may be processes, also in Java.
//! `cargo run --example ticket_desk` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` the queue is in
//! Redis.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::thread;
use std::time::Duration;

use leasehold::crossbeam_channel::bounded;
use leasehold::{LockClient, MemoryStore, Result};

fn connect(store: &MemoryStore) -> Result<LockClient> {
    match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url),
        Err(_) => Ok(LockClient::in_memory_with(store)),
    }
}

fn main() -> Result<()> {
    let store = MemoryStore::new();
    let doors = [connect(&store)?, connect(&store)?];
    let [front, back] = &doors;
    let desk = "example:desk";
    let busy = front.get_fair_lock(desk).acquire()?;
    let (looking, looked) = bounded::<()>(0);
    thread::scope(|scope| {
        let mut customers = Vec::new();
        for (number, door) in (0..6).zip(doors.iter().cycle()) {
            let (lock, looked) = (door.get_fair_lock(desk), looked.clone());
            customers.push(scope.spawn(move || {
                let _turn = lock.acquire()?;
                println!("customer {number} is served");
                looked.recv().ok(); // waits until the sender is dropped
                Ok::<(), leasehold::Error>(())
            }));
            // The customer is in the queue once `inspect` counts one more waiter.
            while front.inspect(desk)?.waiting <= number {
                thread::sleep(Duration::from_millis(5));
            }
        }
        println!("they wait: {}", back.inspect(desk)?.waiting);
        drop(busy);
        println!("one who only looks in is served: {}", back.get_fair_lock(desk).try_lock()?);
        drop(looking);
        for customer in customers {
            customer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok::<(), leasehold::Error>(())
    })?;
    doors.iter().try_for_each(LockClient::shutdown)
}
