//! Leasehold beside other libraries: real Redisson in JVMs, redis-py and redsync on one Redis, and real
//! Curator on one ZooKeeper.
//!
//! Each foreign side is a small program in `tests/interop/` that obeys a test (see `agent.rs`). The tests
//! build it on first use. Without the tools for that, they say so on standard error and pass, or fail in CI.

#![cfg(unix)] // a shell starts the foreign programs
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
mod holding;
mod kinds;
mod multi;
mod redlock;
mod token;
mod waking;
mod wire;
