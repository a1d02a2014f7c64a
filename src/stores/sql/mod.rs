//! Databases that keep locks: a row for each lock, with the owner, the hold count, the end by the server's
//! clock and the last fence.
//!
//! `rows` is what is the same for all of them; `postgres`, `mysql` and `sqlite` say in which statements. All
//! carry requests over the connections of a `pool`, whose last one is for renewals alone. `sessions` keeps
//! locks without a table: each is a connection's, and ends with it.

#[macro_use]
mod statement;

mod database;
mod listing;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod notes;
mod pool;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod row_store;
mod rows;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sessions;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use std::time::Duration;

#[cfg(any(feature = "mysql", feature = "sqlite"))]
use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind};

/// The table's name in the queries; the configured one is put in its place.
const TABLE: &str = "leasehold_locks";

/// A query with the name of the table in use, and of those beside it. The name is a plain identifier, as
/// `ServerOptions::checked_for_database` has found, or a database's own with its quotes.
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

/// The name of a table beside another: a suffix goes within the quotes.
fn beside(table: &str, suffix: &str) -> String {
    match table.strip_suffix('"') {
        Some(open) => format!("{open}{suffix}\""),
        None => format!("{table}{suffix}"),
    }
}

fn timed_out(detail: &str) -> Error {
    Error::new(ErrorKind::TimedOut, "request", detail)
}

/// The page with the statements that make the tables.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
const MIGRATION: &str = "https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md#migration";

/// The advice about a table that is not there any more.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const TABLE_IS_GONE: &str = "the table is not there: see create_schema() and https://github.com/leasehold/leasehold/blob/v0.1.0/docs/stores.md#migration";

const OTHER_COLUMNS: &str = "the table is not the one of docs/stores.md: its columns differ";

/// The same, and what to do about it.
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

/// A server elsewhere is not spoken to in the clear by accident.
#[cfg(all(any(feature = "postgres", feature = "mysql"), not(feature = "tls")))]
fn no_tls(without: &str) -> Error {
    let words = format!(
        "TLS to a database needs leasehold's feature \"tls\", which this build does not have; to do without it, say \
         {without} in the URL"
    );
    Error::new(ErrorKind::Unsupported, "connect", words)
}

/// Whole milliseconds as the databases take them.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn lease_ms(lease: Duration) -> i64 {
    i64::try_from(lease.as_millis()).unwrap_or(i64::MAX)
}
