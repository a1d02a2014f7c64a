//! Transfers between accounts, in all directions at the same time: a multi-lock.
//!
//! `cargo run --example transfer` needs no server; with `REDIS_URL=redis://127.0.0.1:6379` the locks are in
//! Redis.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example talks and takes its time")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use leasehold::{FencingToken, LockClient, Result};

/// The bank's record of an account, which refuses a token older than the newest that it has seen.
#[derive(Default)]
struct Account {
    cents: i64,
    newest: Option<FencingToken>,
}

#[derive(Default)]
struct Bank(Mutex<BTreeMap<&'static str, Account>>);

impl Bank {
    fn read(&self, name: &str) -> i64 {
        self.0
            .lock()
            .unwrap_or_else(|broken| broken.into_inner())
            .get(name)
            .map_or(0, |account| account.cents)
    }

    fn write(&self, name: &'static str, cents: i64, token: Option<FencingToken>) -> bool {
        let mut accounts = self.0.lock().unwrap_or_else(|broken| broken.into_inner());
        let account = accounts.entry(name).or_default();
        let is_new = token >= account.newest;
        if is_new {
            *account = Account { cents, newest: token };
        }
        is_new
    }
}

/// Each account has its own lock, so that transfers between other accounts go on meanwhile. The multi-lock
/// acquires its locks in the same order in every process, however the program orders them, so no two
/// transfers deadlock.
fn transfer(
    client: &LockClient,
    bank: &Bank,
    from: &'static str,
    to: &'static str,
    cents: i64,
) -> Result<bool> {
    let locks = [from, to].map(|name| client.get_fenced_lock(format!("example:account:{name}")));
    let Some(both) = client.get_multi_lock(locks).try_acquire_for(Duration::from_secs(10))? else {
        return Ok(false);
    };
    // Read, think, write: without the lock this would overwrite a write by another thread in between.
    let (left, right) = (bank.read(from), bank.read(to));
    thread::sleep(Duration::from_millis(2));
    both.check()?; // an error if one of the two locks is lost
    let token = |name: &str| both.fencing_token_of(&format!("example:account:{name}"));
    let is_done = left >= cents
        && bank.write(from, left - cents, token(from))
        && bank.write(to, right + cents, token(to));
    Ok(is_done) // the dropped guard releases both locks
}

fn main() -> Result<()> {
    let client = match std::env::var("REDIS_URL") {
        Ok(url) => LockClient::connect(&url)?,
        Err(_) => LockClient::in_memory(),
    };
    let bank = Bank::default();
    let names = ["Ada", "Ben", "Cleo"];
    for name in names {
        bank.write(name, 1_000, None);
    }
    thread::scope(|scope| {
        let pairs = [
            ("Ada", "Ben"),
            ("Ben", "Ada"),
            ("Ben", "Cleo"),
            ("Cleo", "Ben"),
            ("Cleo", "Ada"),
            ("Ada", "Cleo"),
        ];
        let tellers = pairs.map(|(from, to)| {
            let (client, bank) = (&client, &bank);
            scope.spawn(move || {
                let mut done = 0;
                for cents in 1..=20 {
                    done += u32::from(transfer(client, bank, from, to, cents)?);
                }
                println!("{from} to {to}: {done} transfers");
                Ok::<(), leasehold::Error>(())
            })
        });
        for teller in tellers {
            teller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok::<(), leasehold::Error>(())
    })?;
    let total: i64 = names.into_iter().map(|name| bank.read(name)).sum();
    for name in names {
        println!("{name} has {}", bank.read(name));
    }
    println!("together {total}: nothing was lost, and nobody waited for ever");
    assert_eq!(total, 3_000);
    client.shutdown()
}
