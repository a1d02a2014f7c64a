//! Histories of processes that use locks of every kind while processes, servers and connections fail. Two
//! checkers judge them. `./check histories` runs all of this, and writes the figures to
//! docs/figures/histories.md.
#![cfg(unix)] // The tests stop and kill processes by signals.
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
