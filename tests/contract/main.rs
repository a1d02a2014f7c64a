//! The contracts: what every lock promises on every store.
//!
//! Each contract is a function over a [`Store`](harness::Store) and runs on every store. A new store is one
//! function in `contract/stores.rs` and one line in `contracts!`. The harness lists the capabilities of stores
//! and kinds. A contract asserts that a store with a capability supports it and that any other refuses it.
//! The scenarios are taken from the tests of Redisson's locks, Curator's mutexes and `DistributedLock`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]
#![cfg_attr(
    not(feature = "redis"),
    allow(dead_code, reason = "the stores that are made of servers of Redis")
)]

macro_rules! on_each_store {
    ($do:ident $arguments:tt) => {
        $do!(memory $arguments);
        #[cfg(feature = "redis")]
        $do!(redis $arguments);
        #[cfg(feature = "redis")]
        $do!(cluster $arguments);
        #[cfg(feature = "redis")]
        $do!(sentinel $arguments);
        #[cfg(feature = "redis")]
        $do!(redlock $arguments);
        #[cfg(feature = "redis")]
        $do!(ring $arguments);
        #[cfg(feature = "etcd")]
        $do!(etcd $arguments);
        #[cfg(feature = "postgres")]
        $do!(postgres $arguments);
        #[cfg(feature = "mysql")]
        $do!(mysql $arguments);
        #[cfg(feature = "sqlite")]
        $do!(sqlite $arguments);
        #[cfg(feature = "zookeeper")]
        $do!(zookeeper $arguments);
    };
}

macro_rules! contracts_on {
    ($store:ident ($need:ident: $($name:ident),+)) => {
        mod $store {
            // Each contract is compiled once for each store, so the logic is in the harness.
            $(#[test] fn $name() {
                crate::harness::Need::$need.on(crate::stores::$store, super::$name);
            })+
        }
    };
}

/// Runs each listed contract on every store.
macro_rules! contracts {
    (needs $need:ident: $($name:ident),+ $(,)?) => {
        on_each_store!(contracts_on ($need: $($name),+));
    };
    ($($name:ident),+ $(,)?) => {
        on_each_store!(contracts_on (Nothing: $($name),+));
    };
}

#[path = "../support/mod.rs"]
mod support;

mod harness;
mod stores;

mod capabilities;
mod condition;
mod contended;
mod deadlock;
mod directory;
mod exclusion;
mod fair;
mod fenced;
mod guards;
mod input;
mod inspect;
mod interrupts;
mod keep;
mod latch;
mod leader;
mod leases;
mod lifecycle;
mod loss;
mod multi;
mod names;
mod observer;
mod options;
mod reentrancy;
mod run_once;
mod rw;
mod semaphore;
mod terms;
mod token;
mod unlock;
mod waiting;

/// The names of the contracts in `tests/contract/`, written `file::name`.
fn written() -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract");
    let mut written = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_stem().unwrap().to_str().unwrap().to_owned();
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            if let Some(rest) = line.strip_prefix("fn ")
                && let Some((name, _)) = rest.split_once("(store: &Store) {")
            // a function with a return type is a helper and not a contract
            {
                written.push(format!("{file}::{name}"));
            }
        }
    }
    written
}

fn listed(extra: &[&str]) -> String {
    let program = std::env::current_exe().unwrap();
    let list = [&[program.to_str().unwrap(), "--list"], extra].concat();
    support::run(&list, |command| command).1
}

#[test]
fn every_store_runs_every_contract() {
    let mut stores = Vec::new();
    macro_rules! listed_store {
        ($store:ident ()) => {
            stores.push(stringify!($store))
        };
    }
    on_each_store!(listed_store());
    let (written, listed) = (written(), listed(&[]));
    assert!(written.len() > 50, "only {} contracts were found in the source", written.len());
    let mut skipped = Vec::new();
    for contract in written {
        let (file, name) = contract.split_once("::").unwrap();
        for store in &stores {
            let test = format!("{file}::{store}::{name}: test");
            if !listed.lines().any(|line| line == test) {
                skipped.push(test);
            }
        }
    }
    assert!(skipped.is_empty(), "contracts that are not run:\n{}", skipped.join("\n"));
}

#[test]
fn no_contract_is_ignored() {
    let ignored = listed(&["--ignored"]);
    assert!(!ignored.contains(": test"), "{ignored}");
}
