//! Leasehold beside other libraries: on one Redis real Redisson in real JVMs, redis-py, redsync, and a lock as the
//! articles write it; on one ZooKeeper real Curator.
//!
//! Each foreign side is a small program in `tests/interop/` that does what a test tells it and reports the outcome
//! (see `agent.rs`). They are built on first use. Where the tools for that are missing the tests say so on standard
//! error and pass; with `CI=true` they fail.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the helpers below are test code; clippy's own exemption covers only #[test] functions"
)]

#[path = "interop/agent.rs"]
mod agent;
#[path = "interop/cluster.rs"]
mod cluster;
#[path = "interop/crowd.rs"]
mod crowd;
#[cfg(feature = "zookeeper")]
#[path = "interop/curator.rs"]
mod curator;
#[path = "interop/fair.rs"]
mod fair;
#[path = "interop/fenced.rs"]
mod fenced;
#[path = "interop/fleet.rs"]
mod fleet;
#[path = "interop/handwritten.rs"]
mod handwritten;
#[path = "interop/holding.rs"]
mod holding;
#[path = "interop/java.rs"]
mod java;
#[path = "interop/kinds.rs"]
mod kinds;
#[path = "interop/multi.rs"]
mod multi;
#[path = "interop/redlock.rs"]
mod redlock_of_both;
#[path = "interop/scene.rs"]
mod scene;
#[path = "interop/sentinel.rs"]
mod sentinel;
mod support;
#[path = "interop/token.rs"]
mod token;
#[path = "contract/tools.rs"]
mod tools;
#[path = "interop/waking.rs"]
mod waking;
#[path = "interop/watchdog.rs"]
mod watchdog;
#[path = "interop/wire.rs"]
mod wire;
