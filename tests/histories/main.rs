//! Histories: what processes did to locks of every kind while they, their servers and their connections met
//! faults, judged by two checkers. `./check histories` runs all of it, for as long as it is told to, and
//! writes the figures into docs/figures/histories.md.
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
