//! Taking a lock in one thread and releasing it in another.
//!
//! A `Guard` belongs to its thread and cannot leave it: the thread is the owner. An `OwnedGuard` is an owner
//! by itself and may travel; in return it is not reentrant. `cargo run --example hand_over` needs no server.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;
use std::thread;

use leasehold::crossbeam_channel::bounded;
use leasehold::{LockClient, OwnedGuard};

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let client = LockClient::in_memory();
    let (jobs, inbox) = bounded::<(OwnedGuard, String)>(1);

    let worker = thread::Builder::new().name("worker".into()).spawn(move || {
        for (guard, job) in inbox {
            // The guard came with the job, and says whether it still holds.
            guard.check()?;
            println!("worker: {job} under {} of {}", guard.name(), guard.owner());
            drop(guard);
        }
        Ok::<(), leasehold::Error>(())
    })?;

    for night in ["Monday", "Tuesday"] {
        // Waits until the worker has released the night before.
        let guard = client.get_lock("example:backup").acquire_owned()?;
        println!("main: took {} as {}, handing it over", guard.name(), guard.owner());
        jobs.send((guard, format!("backup of {night}")))?;
    }

    drop(jobs);
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    println!("main: free again, {}", !client.get_lock("example:backup").is_locked()?);
    Ok(())
}
