//! Redis put to what the other stores' processes are put to: several that count under one lock, and one that is killed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

mod support;

use std::time::Duration;

use leasehold::{LockClient, Result};
use support::processes::{LEASE, Worker, a_killed_holder_frees_within, count_across_processes};
use support::server::RedisServer;

fn connect(url: &str, lease: Duration) -> Result<LockClient> {
    LockClient::builder().url(url).lease(lease).build()
}

#[test]
fn four_processes_count_exactly() {
    if let Some(worker) = Worker::here() {
        return worker.work(connect);
    }
    let Some(server) = RedisServer::start_default() else { return };
    count_across_processes(&server.url());
}

#[test]
fn a_killed_holder_frees_the_lock_within_its_lease() {
    if let Some(worker) = Worker::here() {
        return worker.work(connect);
    }
    let Some(server) = RedisServer::start_default() else { return };
    a_killed_holder_frees_within(LEASE, &server.url(), &connect(&server.url(), LEASE).unwrap());
}
