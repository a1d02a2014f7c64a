//! Locks that belong to a MySQL or MariaDB transaction of the caller, so that lock and data commit together.
//!
//! Such a lock has no lease, and ends with its transaction. These locks and those of
//! [`LockClient`](crate::LockClient) do not exclude each other.
//!
//! # Examples
//!
//! ```no_run
//! use leasehold::mysql::NameTable;
//! use mysql::TxOpts;
//! use mysql::prelude::Queryable;
//! use std::time::Duration;
//!
//! let mut connection = mysql::Conn::new("mysql://app@localhost/shop")?;
//! let names = NameTable::default();
//! names.create(&mut connection)?;
//!
//! let mut transaction = connection.start_transaction(TxOpts::default())?;
//! if let Some(lock) = names.lock(&mut transaction, "order:42", Duration::from_secs(2))? {
//!     transaction.query_drop("UPDATE orders SET paid = TRUE WHERE id = 42")?;
//!     lock.check(&mut transaction)?;
//!     transaction.commit()?; // the lock ends here
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Error as Driver, Transaction, params};

use crate::config::check_table;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::MAX_NAME_LEN;
use crate::stores::sql::mysql::refusal::{
    LOCK_WAIT_TIMEOUT, NO_SUCH_TABLE, classify, ends_the_session, worded,
};
use crate::stores::sql::refused;

/// A table of lock names. The transaction that locked a name's row holds the lock.
///
/// # Examples
///
/// ```no_run
/// use leasehold::mysql::NameTable;
///
/// let mut client = mysql::Conn::new("mysql://app@localhost/shop")?;
/// NameTable::new("order_locks")?.create(&mut client)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameTable {
    table: String,
}

const NAMES: &str = "leasehold_names";

impl Default for NameTable {
    fn default() -> NameTable {
        NameTable { table: NAMES.to_owned() }
    }
}

impl NameTable {
    /// Names a table, `name` or `database.name`. The default is `leasehold_names`.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for anything but a plain identifier.
    pub fn new(table: &str) -> Result<NameTable> {
        check_table(table)?;
        Ok(NameTable { table: table.to_owned() })
    }

    /// Creates the table if it is missing. Call this outside a transaction: CREATE TABLE commits an open one.
    ///
    /// # Blocking
    ///
    /// At most two round trips.
    ///
    /// # Errors
    ///
    /// The server's answer.
    pub fn create(&self, connection: &mut impl Queryable) -> Result<()> {
        // Tries the table first, because a user without the right to create tables may use an existing one.
        match connection.query_drop(format!("SELECT 1 FROM {} LIMIT 0", self.table)) {
            Err(Driver::MySqlError(error)) if error.code == NO_SUCH_TABLE => {}
            looked => return looked.map_err(|error| failed("create", error)),
        }
        let text = include_str!("../query/mysql/names.sql").replace(NAMES, &self.table);
        connection.query_drop(text).map_err(|error| failed("create", error))
    }

    /// Locks the name's row until the transaction ends, and creates the row if it is missing. Waits at most
    /// `wait`, and returns `None` if the row is still locked after that.
    ///
    /// The server counts whole seconds, so `wait` is rounded up. With zero, MySQL waits for one second, and
    /// MariaDB does not wait.
    ///
    /// # Blocking
    ///
    /// Up to `wait` and a few round trips.
    ///
    /// # Errors
    ///
    /// [`Deadlock`](ErrorKind::Deadlock) if the server broke a deadlock by ending this transaction: run it
    /// again. [`Lost`](ErrorKind::Lost) if the transaction has ended. With `innodb_rollback_on_timeout`, an
    /// unsuccessful wait ends the transaction.
    ///
    /// # Guarantees
    ///
    /// At every isolation level, one transaction at a time has the lock. An unsuccessful wait leaves the
    /// transaction unchanged, unless the call returns `Lost`. At REPEATABLE READ, the transaction's first
    /// ordinary SELECT determines which data it sees, so read after this call, not before.
    pub fn lock(
        &self,
        transaction: &mut Transaction<'_>,
        name: &str,
        wait: Duration,
    ) -> Result<Option<TxLock>> {
        let is_usable = (1..=MAX_NAME_LEN).contains(&name.len());
        Error::require("lock", is_usable, || "the name is empty or too long")?;
        let failed = |error| failed("lock", error).on(name);
        let (before, ends): (u64, bool) = transaction
            .query_first("SELECT @@innodb_lock_wait_timeout, @@innodb_rollback_on_timeout")
            .map_err(failed)?
            .unwrap_or_default();
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        limit(transaction, seconds.min(1_000_000)).map_err(failed)?;
        let take = include_str!("../query/mysql/lock_name.sql").replace(NAMES, &self.table);
        let taken = transaction.exec_drop(take, params! { "name" => name.as_bytes() });
        match taken {
            Ok(()) => {
                limit(transaction, before).map_err(failed)?;
                // `check` tests whether this savepoint exists, because the savepoint ends with the
                // transaction.
                transaction.query_drop("SAVEPOINT leasehold").map_err(failed)?;
                Ok(Some(TxLock { name: name.to_owned() }))
            }
            Err(Driver::MySqlError(error)) if error.code == LOCK_WAIT_TIMEOUT => {
                limit(transaction, before).map_err(failed)?;
                let words = "the wait timed out, and the server then ends the transaction (innodb_rollback_on_timeout)";
                Error::when(ends, ErrorKind::Lost, "lock", || words).map_err(|error| error.on(name))?;
                Ok(None)
            }
            Err(error) => Err(failed(error)),
        }
    }
}

/// A lock held by a transaction.
///
/// # Examples
///
/// ```no_run
/// use leasehold::mysql::NameTable;
/// use std::time::Duration;
///
/// let mut client = mysql::Conn::new("mysql://app@localhost/shop")?;
/// let mut transaction = client.start_transaction(mysql::TxOpts::default())?;
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
    /// Two round trips.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the server has ended the transaction (deadlock, time-out, `KILL`,
    /// shutdown), and after `ROLLBACK TO` a savepoint older than the lock.
    pub fn check(&self, transaction: &mut Transaction<'_>) -> Result<()> {
        let asked = transaction.query_drop("RELEASE SAVEPOINT leasehold");
        asked
            .and_then(|()| transaction.query_drop("SAVEPOINT leasehold"))
            .map_err(|error| failed("check", error).on(&self.name))
    }
}

fn limit(transaction: &mut Transaction<'_>, seconds: u64) -> mysql::Result<()> {
    transaction.query_drop(format!("SET SESSION innodb_lock_wait_timeout = {seconds}"))
}

fn failed(action: &'static str, error: Driver) -> Error {
    const NO_SUCH_SAVEPOINT: u16 = 1305;
    let is_gone = matches!(&error, Driver::MySqlError(error) if error.code == NO_SUCH_SAVEPOINT);
    if is_gone || ends_the_session(&error) {
        let words = "the server has ended the transaction, and the lock with it";
        return Error::new(ErrorKind::Lost, action, words).with_source(error);
    }
    let words = match &error {
        Driver::MySqlError(error) => classify(error.code),
        _ => refused::ANYTHING,
    };
    worded(action, words, error)
}
