//! Locks on several servers: a Redis Cluster, Sentinels, replicas that must acknowledge, Redlock and the
//! ring.
//!
//! Members fail, change places and pass on slots while locks are used. Failovers under load happen twice, or
//! as often as `LEASEHOLD_ROUNDS` says.
#![cfg(unix)] // the tests start servers, and stop and kill them by signals
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod forgotten;
mod redlock;
mod replicas;
mod ring;
mod sentinel;

fn rounds() -> usize {
    std::env::var("LEASEHOLD_ROUNDS")
        .map_or(2, |rounds| rounds.parse().expect("LEASEHOLD_ROUNDS is a number"))
}
