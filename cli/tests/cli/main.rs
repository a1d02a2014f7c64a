//! The program as a process, with a server for each test.

#![cfg(unix)] // the tests start servers, run commands and send signals
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    missing_docs
)]

mod basics;
mod browser;
mod dead_before_next;
mod deadlocks;
mod deploying;
mod descendants;
mod doctor;
mod elect;
mod hold;
mod leader;
mod named;
mod not_a_lock;
mod once;
mod page;
mod readme;
mod said;
mod secrets;
mod secured;
mod serve;
mod signals;
mod site;
mod terminal;
mod tls;
mod top;
mod watch;
mod world;
