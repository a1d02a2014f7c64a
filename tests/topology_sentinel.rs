//! Locks on the master that three Sentinels name: failovers under load, and answers that must not be believed.
//!
//! Each failover is made `LEASEHOLD_ROUNDS` times (3). What it took is printed, and is what `docs/guarantees.md` says.
//! Symbols as there: **L** lease, **R** = L/3, **T** command time-out, **P** safety poll, **ε** scheduling slack.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

mod support;
#[path = "faults/tools.rs"]
mod tools;

mod topology {
    mod answers;
    mod sentinel;
}
