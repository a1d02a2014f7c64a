//! No worker serves before all workers have loaded their data: a count-down latch.
//!
//! `cargo run --example start_gate` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` the latch is in
//! Redis, and the workers could be processes.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::thread;
use std::time::Duration;

use leasehold::{CountDownLatch, LockClient, Result};

const WORKERS: u32 = 3;

fn worker(number: u32, loaded: &CountDownLatch) -> Result<()> {
    thread::sleep(Duration::from_millis(100) * number);
    println!("worker {number} has loaded; {} to go", loaded.count_down()?);
    // The wait has a limit, since a worker that died before its count-down would keep the gate shut.
    if loaded.wait_for(Duration::from_secs(5))? {
        println!("worker {number} serves");
    } else {
        println!("worker {number} gives up: somebody did not load");
    }
    Ok(())
}

fn main() -> Result<()> {
    let client = match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url)?,
        Err(_) => LockClient::in_memory(),
    };
    let loaded = client.get_count_down_latch("example:loaded");
    // The latch is set up before any worker waits, since a latch that was never set up is open.
    loaded.try_set_count(WORKERS)?;
    thread::scope(|scope| {
        let workers: Vec<_> = (1..=WORKERS).map(|number| (number, loaded.clone())).collect();
        let workers = workers.into_iter().map(|(number, latch)| scope.spawn(move || worker(number, &latch)));
        for worker in workers.collect::<Vec<_>>() {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok::<(), leasehold::Error>(())
    })?;
    client.shutdown()
}
