//! Each store's own promises, which the contracts do not ask for since they are a database's, a server's or a
//! file's, and not a lock's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

#[path = "../support/mod.rs"]
mod support;

#[cfg(any(feature = "postgres", feature = "mysql"))]
#[macro_use]
mod databases;

mod callbacks;
mod deadlock_log;
#[cfg(all(feature = "postgres", feature = "etcd", feature = "zookeeper"))]
mod deadlock_processes;
mod deadlocks;
#[cfg(feature = "etcd")]
mod etcd;
mod files;
#[cfg(all(
    feature = "etcd",
    feature = "postgres",
    feature = "mysql",
    feature = "sqlite",
    feature = "zookeeper"
))]
mod formats;
#[cfg(feature = "redis")]
mod inspect;
#[cfg(feature = "redis")]
mod lists;
mod memory;
mod memory_faults;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "mysql")]
mod mysql_settings;
#[cfg(all(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod orders;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_keep;
#[cfg(feature = "postgres")]
mod postgres_line;
#[cfg(feature = "postgres")]
mod postgres_settings;
#[cfg(feature = "redis")]
mod redis;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod roles;
#[cfg(all(feature = "tls", feature = "postgres", feature = "mysql"))]
mod secrets;
#[cfg(feature = "redis")]
mod silence;
#[cfg(feature = "sqlite")]
mod sqlite;
mod tasks;
#[cfg(all(feature = "tls", feature = "postgres", feature = "mysql", feature = "zookeeper"))]
mod tls;
#[cfg(feature = "tracing")]
mod tracing;
#[cfg(feature = "mysql")]
mod turnstile;
#[cfg(feature = "zookeeper")]
mod zookeeper;
