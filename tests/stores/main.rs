//! The promises of single stores, which concern a database, a server or a file more than the locks in it.
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
#[cfg(feature = "redis")]
mod contended;
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
#[cfg(all(
    feature = "postgres",
    feature = "mysql",
    feature = "sqlite",
    feature = "etcd",
    feature = "zookeeper"
))]
mod processes;
#[cfg(feature = "redis")]
mod redis;
#[cfg(all(
    feature = "redis",
    feature = "postgres",
    feature = "mysql",
    feature = "sqlite",
    feature = "etcd",
    feature = "zookeeper"
))]
mod rights;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod roles;
#[cfg(all(feature = "tls", feature = "postgres", feature = "mysql"))]
mod secrets;
#[cfg(feature = "redis")]
mod silence;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod sqlite;
mod tasks;
#[cfg(all(feature = "tls", feature = "postgres", feature = "mysql", feature = "zookeeper"))]
mod tls;
#[cfg(feature = "tracing")]
mod tracing;
#[cfg(feature = "mysql")]
mod turnstile;
#[cfg(all(
    feature = "postgres",
    feature = "mysql",
    feature = "sqlite",
    feature = "etcd",
    feature = "zookeeper"
))]
mod versions;
#[cfg(feature = "zookeeper")]
mod zookeeper;

/// The text of a statement's file, with its placeholders (`{name}`) replaced by the parts in `parts.sql`.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn statement(database: &str, name: &str) -> String {
    let folder = format!("{}/src/stores/sql/query/{database}", env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}.sql")).unwrap();
    let mut text = read(name);
    for part in read("parts").split("\n-- {").skip(1) {
        let (name, part) = part.split_once("}\n").unwrap();
        let part: Vec<_> = part.trim_end().lines().filter(|line| !line.starts_with("--")).collect();
        text = text.replace(&format!("{{{name}}}"), &part.join("\n"));
    }
    text
}
