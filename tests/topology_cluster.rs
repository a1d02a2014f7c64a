//! A Redis Cluster: its members fail, change places and pass slots on while locks are used.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

#[path = "topology_cluster/failover.rs"]
mod failover;
#[path = "topology_cluster/load.rs"]
mod load;
#[path = "topology_cluster/members.rs"]
mod members;
#[path = "topology_cluster/migration.rs"]
mod migration;
mod support;
#[path = "faults/tools.rs"]
mod tools;
#[path = "topology_cluster/waking.rs"]
mod waking;
