//! Locks that belong to a PostgreSQL transaction of the caller, so that lock and data commit together.
//!
//! Such a lock has no lease, and ends with its transaction. Locks of a [`NameTable`] and of [`lock_advisory`]
//! exclude neither each other nor the locks of [`LockClient`](crate::LockClient).
//!
//! All calls use the caller's `postgres::Client`, which blocks the thread, and panics in a task of an async
//! runtime. Call them in `spawn_blocking` there.
//!
//! # Examples
//!
//! ```no_run
//! use leasehold::postgres::NameTable;
//! use std::time::Duration;
//!
//! let mut client = postgres::Client::connect("postgres://app@localhost/shop", postgres::NoTls)?;
//! let names = NameTable::default();
//! names.create(&mut client)?;
//!
//! let mut transaction = client.transaction()?;
//! if let Some(lock) = names.lock(&mut transaction, "order:42", Duration::from_secs(2))? {
//!     transaction.execute("UPDATE orders SET paid = true WHERE id = 42", &[])?;
//!     lock.check(&mut transaction)?;
//!     transaction.commit()?; // the lock ends here
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

use postgres::error::SqlState;
use postgres::{GenericClient, Transaction};

use crate::config::check_table;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::MAX_NAME_LEN;
use crate::stores::sql::postgres::check::{quoted, unless_in_sight};
use crate::stores::sql::postgres::refusal::{classify, worded};
use crate::stores::sql::refused;
use crate::time::{Clock, Moment, millis};

/// A table of lock names. The transaction that locked a name's row holds the lock.
///
/// # Examples
///
/// ```no_run
/// use leasehold::postgres::NameTable;
///
/// let mut client = postgres::Client::connect("postgres://app@localhost/shop", postgres::NoTls)?;
/// NameTable::new("order_locks")?.create(&mut client)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameTable {
    table: String,
}

impl Default for NameTable {
    fn default() -> NameTable {
        NameTable { table: NAMES.to_owned() }
    }
}

const NAMES: &str = "leasehold_names";

impl NameTable {
    /// Names a table, `name` or `schema.name`. The default is `leasehold_names`.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for anything but a plain identifier.
    pub fn new(table: &str) -> Result<NameTable> {
        check_table(table)?;
        Ok(NameTable { table: table.to_owned() })
    }

    /// Creates the table, unless the connection's search path finds a table of this name.
    ///
    /// # Blocking
    ///
    /// One round trip.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if the name has no schema, and a schema outside the search
    /// path has such a table, which other programs may use. Otherwise the server's answer.
    pub fn create(&self, client: &mut impl GenericClient) -> Result<()> {
        let table = quoted(&self.table);
        let create = include_str!("../query/postgres/names.sql").replace(NAMES, &table);
        client.batch_execute(&unless_in_sight(&create, &table)).map_err(|error| failed("create", error))
    }

    /// Locks the name's row until the transaction ends, and creates the row if it is missing. Waits at most
    /// `wait`, and returns `None` if the row is still locked after that.
    ///
    /// # Blocking
    ///
    /// Up to `wait` and a few round trips.
    ///
    /// # Errors
    ///
    /// [`Deadlock`](ErrorKind::Deadlock) if the server broke a deadlock; [`Busy`](ErrorKind::Busy) if the
    /// isolation level hides a row that was created meanwhile. In both cases roll back, and run the
    /// transaction again. [`Lost`](ErrorKind::Lost) if the transaction has ended.
    ///
    /// # Guarantees
    ///
    /// At every isolation level, one transaction at a time has the lock. Use READ COMMITTED: at a higher
    /// level the transaction reads data from before the lock, and the server refuses to overwrite newer data
    /// (40001). An unsuccessful wait leaves the transaction and its `lock_timeout` unchanged.
    pub fn lock(
        &self,
        transaction: &mut Transaction<'_>,
        name: &str,
        wait: Duration,
    ) -> Result<Option<TxLock>> {
        let table = quoted(&self.table);
        let insert =
            format!("INSERT INTO {table} (id, name) VALUES (sha256($1), $1) ON CONFLICT (id) DO NOTHING");
        let select = format!("SELECT 1 FROM {table} WHERE id = sha256($1) FOR UPDATE");
        waiting(transaction, name, wait, |inner, deadline| {
            let name = name.as_bytes();
            // This limit covers the INSERT too, which waits if another transaction is inserting the row.
            limit(inner, deadline)?;
            if inner.query(&select, &[&name])?.is_empty() {
                inner.execute(&insert, &[&name])?;
                limit(inner, deadline)?;
                inner.query_one(&select, &[&name])?;
            }
            Ok(())
        })
    }
}

/// Acquires the transaction's advisory lock (`pg_advisory_xact_lock`) of this name. Waits at most `wait`, and
/// returns `None` if the lock is still busy after that. Needs no table.
///
/// The key is the first 8 bytes of the name's SHA-256, so two names may share a lock: among a million names,
/// with a probability of 3 in 10⁸.
///
/// # Blocking
///
/// Up to `wait` and a few round trips.
///
/// # Errors
///
/// [`Deadlock`](ErrorKind::Deadlock) if the server broke a deadlock: roll back and run the transaction again.
/// [`Lost`](ErrorKind::Lost) if the transaction has ended.
///
/// # Guarantees
///
/// One transaction of this database at a time has the lock. A failed wait leaves the transaction unchanged.
pub fn lock_advisory(
    transaction: &mut Transaction<'_>,
    name: &str,
    wait: Duration,
) -> Result<Option<TxLock>> {
    waiting(transaction, name, wait, |inner, deadline| {
        limit(inner, deadline)?;
        inner.query(
            "SELECT pg_advisory_xact_lock(('x' || encode(substring(sha256($1) FOR 8), 'hex'))::bit(64)::bigint)",
            &[&name.as_bytes()],
        )?;
        Ok(())
    })
}

/// A lock held by a transaction.
///
/// # Examples
///
/// ```no_run
/// use leasehold::postgres::NameTable;
/// use std::time::Duration;
///
/// let mut client = postgres::Client::connect("postgres://app@localhost/shop", postgres::NoTls)?;
/// let mut transaction = client.transaction()?;
/// let names = NameTable::default();
/// match names.lock(&mut transaction, "order:42", Duration::from_secs(2))? {
///     Some(lock) => lock.check(&mut transaction)?, // before the commit: the transaction still stands
///     None => println!("others have it"),
/// }
/// transaction.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "None would mean that others have the lock"]
pub struct TxLock {
    name: String,
}

impl TxLock {
    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks that the transaction has not ended, and so still has the lock.
    ///
    /// # Blocking
    ///
    /// One round trip.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the transaction has ended, for example by a time-out or an administrator.
    pub fn check(&self, transaction: &mut Transaction<'_>) -> Result<()> {
        transaction.query("SELECT 1", &[]).map(drop).map_err(|error| failed("check", error).on(&self.name))
    }
}

type Driver<T> = std::result::Result<T, postgres::Error>;

/// Runs `take` in a savepoint, so that an unsuccessful wait does not fail the transaction.
fn waiting(
    transaction: &mut Transaction<'_>,
    name: &str,
    wait: Duration,
    take: impl FnOnce(&mut Transaction<'_>, Moment) -> Driver<()>,
) -> Result<Option<TxLock>> {
    let is_usable = (1..=MAX_NAME_LEN).contains(&name.len());
    Error::require("lock", is_usable, || "the name is empty or too long")?;
    let failed = |error| failed("lock", error).on(name);
    let deadline = Clock::System.after(wait);
    let mut inner = transaction.savepoint("leasehold").map_err(failed)?;
    let before: String = match inner.query_one("SELECT current_setting('lock_timeout')", &[]) {
        Ok(row) => row.try_get(0).map_err(failed)?,
        Err(error) => return Err(failed(error)),
    };
    let taken = take(&mut inner, deadline).and_then(|()| {
        // Restores `lock_timeout`, because the commit of the savepoint below would not.
        inner.query("SELECT set_config('lock_timeout', $1, true)", &[&before]).map(drop)
    });
    match taken {
        Ok(()) => {
            inner.commit().map_err(failed)?;
            Ok(Some(TxLock { name: name.to_owned() }))
        }
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            inner.rollback().map_err(failed)?;
            Ok(None)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Limits each wait of the transaction, so that it ends by `deadline`.
fn limit(transaction: &mut Transaction<'_>, deadline: Moment) -> Driver<()> {
    // At least 1 ms, because zero would mean no limit.
    let left = millis(deadline.since(Clock::System.now())).clamp(1, 2_000_000_000);
    transaction.query("SELECT set_config('lock_timeout', $1, true)", &[&left.to_string()]).map(drop)
}

fn failed(action: &'static str, error: postgres::Error) -> Error {
    let ended = ["25P03", "25P04", "57P01", "57P02", "57P05"]; // time-outs, termination, crash
    let code = error.code().map(SqlState::code);
    if code.is_none_or(|code| ended.contains(&code)) {
        let words = "the server has ended the transaction, and the lock with it";
        return Error::new(ErrorKind::Lost, action, words).with_source(error);
    }
    let words = error.code().map_or(refused::ANYTHING, classify);
    worded(action, words, error)
}
