//! Tests of the project itself: its layers, public API, pages and their code, examples, and test tools.
#![cfg(unix)] // the tests start servers and scripts
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "metrics")]
mod alerts;
mod api;
mod api_list;
mod architecture;
mod demo;
mod docs;
#[cfg(all(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite",
    feature = "tls",
    feature = "tokio",
    feature = "zookeeper"
))]
mod errors;
mod examples;
#[cfg(feature = "metrics")]
mod fleet;
mod mutations;
mod operating;
mod pages;
mod rendered;
mod sizes;
mod support_selftest;
mod traps;
