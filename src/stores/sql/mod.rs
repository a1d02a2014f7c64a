//! Stores locks in databases, in one of two ways:
//!
//! - `row_store`: a lock is a row of a table, with its owner, hold count, end of the lease by the server's
//!   clock, and last fencing token. `rows` has what PostgreSQL, MySQL and SQLite share. A second table, the
//!   *directory*, has a row for each client, its *entry*.
//! - `sessions`: a lock without a table, which belongs to a connection and ends with it.

#[macro_use]
mod statement;

macro_rules! answered_by_pool {
    () => {
        fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
            self.pool.database().listen(claim, waker)
        }

        fn message_count(&self, claim: &Claim) -> Option<u64> {
            self.pool.database().message_count(claim)
        }

        fn poll_completions(&self) -> bool {
            self.pool.tidy();
            false
        }
    };
}

mod database;
mod listing;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
mod pool;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod row_store;
mod rows;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sessions;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod url;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use std::time::Duration;

#[cfg(any(feature = "mysql", feature = "sqlite"))]
use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind};

const TABLE: &str = "leasehold_locks";

/// Puts `table` in place of `leasehold_locks` in a query. `table` needs no quotes: it has them, or is a plain
/// identifier, as `ServerOptions::checked_for_database` ensures.
fn query(text: &str, table: &str) -> String {
    let mut parts = text.split(TABLE);
    let mut query = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
        let (suffix, rest) = part.split_at(end);
        query.push_str(&beside(table, suffix));
        query.push_str(rest);
    }
    query
}

/// Appends `suffix` to a table's name, before a closing quote.
fn beside(table: &str, suffix: &str) -> String {
    match table.strip_suffix('"') {
        Some(open) => format!("{open}{suffix}\""),
        None => format!("{table}{suffix}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn timed_out(detail: &str) -> Error {
    Error::new(ErrorKind::TimedOut, "request", detail)
}

#[cfg(any(feature = "mysql", feature = "sqlite"))]
const MIGRATION: &str = "https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md#migration";

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod refused {
    use crate::error::ErrorKind::{
        self, Authentication, Busy, InvalidInput, NoPermission, OutOfMemory, Refused, Unsupported,
    };

    pub(super) type Words = (ErrorKind, &'static str);

    pub(super) const LOGIN: Words =
        (Authentication, "the server rejected the user name, the password or the client certificate");
    pub(super) const RIGHT: Words = (NoPermission, "permission denied for this user");
    pub(super) const DATABASE: Words = (InvalidInput, "there is no such database");
    pub(super) const CONNECTION: Words = (Busy, "the server has reached its limit of connections");
    pub(super) const DISK: Words = (OutOfMemory, "the server's disk is full");
    pub(super) const MEMORY: Words = (OutOfMemory, "the server is out of memory");
    pub(super) const COLUMNS: Words = (Unsupported, super::OTHER_COLUMNS);
    pub(super) const TABLE: Words = (
        Unsupported,
        "the table is not there: see create_schema() and https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md#migration",
    );
    pub(super) const ANYTHING: Words = (Refused, "the server refused");
}

const OTHER_COLUMNS: &str = "the table is not the one of docs/stores.md: its columns differ";

fn other_table(table: &str) -> String {
    format!(
        "{OTHER_COLUMNS}; if an earlier version of leasehold made it, end all its clients and run DROP TABLE {table}, then \
         connect with create_schema() or run the statements of that page"
    )
}

#[cfg(any(feature = "mysql", feature = "sqlite"))]
fn no_table(options: &ServerOptions) -> Error {
    let words = format!(
        "there is no table {:?}: make it once by create_schema(), or with the statements of {MIGRATION}",
        options.table.name
    );
    Error::new(ErrorKind::Unsupported, "connect", words)
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn lease_ms(lease: Duration) -> i64 {
    i64::try_from(lease.as_millis()).unwrap_or(i64::MAX)
}
