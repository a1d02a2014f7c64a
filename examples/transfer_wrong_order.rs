//! The mistake that `transfer` avoids: two tellers lock two accounts in opposite orders, and deadlock.
//!
//! In the first part the clients report the deadlock. In the second part a client ends the youngest wait, and
//! the teller makes the transfer again.
//!
//! `cargo run --example transfer_wrong_order` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` the
//! locks are in Redis.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{ErrorKind, LockClient, MemoryStore, Result};

/// Locks one account, then the other. At `meet` both tellers hold their first lock, as can happen by chance.
fn transfer(client: &LockClient, from: &str, to: &str, meet: &Barrier, wait: Duration) -> Result<bool> {
    let first = client.get_lock(format!("example:wrong:{from}")).acquire()?;
    meet.wait();
    // An error ends the function, which drops `first` and so releases it.
    let second = client.get_lock(format!("example:wrong:{to}")).try_acquire_for(wait)?;
    let is_done = second.is_some();
    drop((second, first));
    Ok(is_done)
}

/// Runs both tellers at once. Each has its own client, as in a separate program.
fn both(clients: &[LockClient; 2], wait: Duration) -> [Result<bool>; 2] {
    let meet = Barrier::new(2);
    thread::scope(|scope| {
        let [one, other] = clients;
        let there = scope.spawn(|| transfer(one, "Ada", "Ben", &meet, wait));
        let back = scope.spawn(|| transfer(other, "Ben", "Ada", &meet, wait));
        [there, back].map(|teller| teller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn main() -> Result<()> {
    let (store, url) = (MemoryStore::new(), std::env::var("REDIS_URL"));
    let client = |breaks: bool| {
        let builder = LockClient::builder().break_deadlocks(breaks);
        match &url {
            Ok(url) => builder.url(url).build(),
            Err(_) => builder.build_in_memory(&store),
        }
    };

    // First part: any client can report the deadlock, which ends only by the tellers' own time limit.
    let clients = [client(false)?, client(false)?];
    thread::scope(|scope| {
        let tellers = scope.spawn(|| both(&clients, Duration::from_secs(4)));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(4) {
            if let Some(deadlock) = clients.iter().find_map(|client| client.deadlocks().ok()?.pop()) {
                println!("deadlock: {} threads wait for each other", deadlock.steps.len());
                for step in &deadlock.steps {
                    println!("a teller holds {} and waits for {}", step.holds, step.waits_for);
                }
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let done = tellers.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let given_up = done.iter().filter(|done| matches!(done, Ok(false))).count();
        println!("given up: {}", given_up > 0);
    });

    // Second part: the youngest wait fails. Its teller releases its lock, and the other teller goes on.
    let clients = [client(true)?, client(true)?];
    let mut again = 0;
    for done in both(&clients, Duration::from_secs(30)) {
        match done {
            Ok(is_done) => println!("a transfer was made: {is_done}"),
            Err(error) if error.kind() == ErrorKind::Deadlock => again += 1,
            Err(error) => return Err(error),
        }
    }
    println!("ended for a deadlock: {again}");
    for _ in 0..again {
        // A multi-lock acquires all locks in the same order in every process, so that no deadlock arises.
        let [one, _] = &clients;
        let accounts = ["Ada", "Ben"].map(|name| one.get_lock(format!("example:wrong:{name}")));
        one.get_multi_lock(accounts).acquire()?.unlock()?;
        println!("made again, with both locks at once");
    }
    clients.iter().try_for_each(LockClient::shutdown)
}
