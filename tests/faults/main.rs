//! Faults between a lock and its server: lost, late and garbled replies, cut networks, killed and stopped
//! processes, operators' mistakes, refusals, exhausted resources.
//!
//! Most tests have their own process, server and proxy. At their end no thread, descriptor, connection or
//! subscription may remain, and no lock key that outlives its lease. No hash may ever lack an expiry.
//!
//! Symbols as in `docs/guarantees.md`: **L** lease, **R** = L/3, **T** command time-out, **P** safety poll,
//! **ε** scheduling slack. The tests assert the promised bounds.
#![cfg(unix)] // The tests stop and kill processes by signals, and count threads and descriptors in /proc.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

#[path = "../support/mod.rs"]
mod support;
#[macro_use]
mod world;

mod ambiguous;
mod costs;
mod counted;
mod cuts;
mod cuts_under_load;
mod deadlocks;
mod directory;
mod fork;
mod handoffs;
mod heap;
mod keep;
mod line;
mod line_processes;
mod line_rights;
mod multi;
mod operators;
mod outages;
mod owners;
mod peers;
mod refusals;
mod resources;
mod restarts;
mod secrets;
mod seven;
#[cfg(feature = "tls")]
mod tls;
mod turns;
mod wakeups;
