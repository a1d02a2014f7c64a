//! The contracts: what every lock promises on every store.
//!
//! Each contract is a function over a [`Store`](harness::Store), and a test runs it on each store. A new
//! store needs a function in `contract/stores.rs` and a line in `contract!`. Stores and kinds declare their
//! capabilities; a contract asserts that a declared capability works, and that any other is refused. The
//! scenarios come from the tests of Redisson's locks, Curator's mutexes and `DistributedLock`.
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

/// Defines a contract, and a test of it for each store: `file::contract::store`.
macro_rules! contract {
    ($name:ident, |$store:ident| $body:block) => {
        contract!($name, needs(Nothing), |$store| $body);
    };
    ($name:ident, needs($need:ident), |$store:ident| $body:block) => {
        fn $name($store: &crate::harness::Store) $body

        mod $name {
            contract! {
                @on $need $name:
                memory,
                #[cfg(feature = "redis")] redis,
                #[cfg(feature = "redis")] cluster,
                #[cfg(feature = "redis")] sentinel,
                #[cfg(feature = "redis")] redlock,
                #[cfg(feature = "redis")] ring,
                #[cfg(feature = "etcd")] etcd,
                #[cfg(feature = "postgres")] postgres,
                #[cfg(feature = "mysql")] mysql,
                #[cfg(feature = "sqlite")] sqlite,
                #[cfg(feature = "zookeeper")] zookeeper
            }
        }
    };
    (@on $need:ident $name:ident: $($(#[$with:meta])? $store:ident),+) => {
        // This text is compiled for each contract and store, so to compile fast it only calls the harness.
        $(
            $(#[$with])?
            #[test]
            fn $store() {
                crate::harness::Need::$need.on(crate::stores::$store, super::$name);
            }
        )+
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
mod deadlock_possible;
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
