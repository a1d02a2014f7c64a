//! Leader election: one of several processes is the scheduler. When the scheduler leaves, another process
//! takes over, and late orders of the old scheduler are refused.
//!
//! Here each candidate is a client with an id of its own, as in a separate process. `cargo run --example
//! one_scheduler` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` run it in two terminals.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use leasehold::{FencingToken, LeaderEvent, LockClient, MemoryStore};

/// Carries out orders. Refuses an order whose term is older than the newest term seen so far.
#[derive(Default)]
struct Fleet(AtomicU64);

impl Fleet {
    fn order(&self, term: FencingToken, what: &str) {
        let newest = self.0.fetch_max(term.get(), SeqCst).max(term.get());
        println!("{what}: {}", if newest == term.get() { "done" } else { "refused, of an old term" });
    }
}

fn connect(store: &MemoryStore) -> leasehold::Result<LockClient> {
    match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url),
        Err(_) => Ok(LockClient::in_memory_with(store)),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let store = MemoryStore::new();
    let (one, other) = (connect(&store)?, connect(&store)?);
    let fleet = Fleet::default();

    let first = one.leader("example:scheduler")?;
    let LeaderEvent::Elected { term: old } = first.events().recv()? else { return Err("not elected".into()) };
    println!("the first is elected");
    fleet.order(old, "the first starts the backup");

    let second = other.leader("example:scheduler")?;
    println!("the second leads: {}", second.term().is_some());

    // The leader withdraws, as before a planned restart, so that the second candidate leads at once.
    first.withdraw()?;
    let LeaderEvent::Elected { term: new } = second.events().recv()? else {
        return Err("not elected".into());
    };
    println!("the second is elected, of a later term: {}", new > old);
    fleet.order(new, "the second starts the report");
    fleet.order(old, "the first, which has not noticed, starts the backup again");
    second.withdraw()?;
    one.shutdown()?;
    Ok(other.shutdown()?)
}
