//! Leasehold beside other libraries: on one Redis real Redisson in real JVMs, redis-py, redsync, and a lock
//! as the articles write it; on one ZooKeeper real Curator.
//!
//! Each foreign side is a small program in `tests/interop/` that does what a test tells it and reports the
//! outcome (see `agent.rs`). They are built on first use. If the tools for that are missing, the tests say so
//! on standard error and pass; with `CI=true` they fail.

#![cfg(unix)] // The other side is started by a shell.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the helpers below are test code; clippy's own exemption covers only #[test] functions"
)]

#[path = "../support/mod.rs"]
mod support;

mod agent;
mod fleet;
mod java;
mod scene;

mod cluster;
mod crowd;
#[cfg(feature = "zookeeper")]
mod curator;
mod fair;
mod fenced;
mod handwritten;
mod holding;
mod kept;
mod kinds;
mod multi;
mod redlock;
mod token;
mod waking;
mod watchdog;
mod wire;
