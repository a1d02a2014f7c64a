//! Histories of processes that use locks of every kind under faults of processes, servers and connections,
//! judged by two checkers. `./check histories` runs all of it, and writes the figures into
//! docs/figures/histories.md.
#![cfg(unix)] // They stop and kill processes by signals.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

#[path = "../support/mod.rs"]
mod support;

mod bad;
mod judge;
#[cfg(all(feature = "postgres", feature = "etcd", feature = "zookeeper"))]
mod soak;
#[cfg(all(feature = "postgres", feature = "etcd", feature = "zookeeper"))]
mod trouble;
mod worker;
