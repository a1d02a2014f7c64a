//! SQLite: a database file for the processes of one machine, of which one writes at a time.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::seam::format::check_format;
use crate::seam::{Answer, Claim, Failure, Store};
use crate::stores::sql::database::{Database, Link};
use crate::stores::sql::pool::Pool;
use crate::stores::sql::row_store::RowStore;
use crate::stores::sql::rows::{Change, Rows};
use crate::stores::sql::sqlite::connection::{
    SqliteConnection, end_strays, failed, failed_to_open, is_busy, let_wait, pause, replaced, wait_until,
};
use crate::stores::sql::sqlite::file::{Files, check_path, hindrance, long_log, path, share};
use crate::stores::sql::statement::{Args, Statements};
use crate::stores::sql::{no_table, other_table, query};
use crate::sync::Mutex;
use crate::system::file_id;
use crate::time::{Clock, Moment};

mod connection;
mod file;

pub(crate) fn open(options: &ServerOptions) -> Result<Arc<dyn Store>> {
    let words = "SQLite has no session locks: leave session_locks() out";
    Error::when(options.table.session_locks, ErrorKind::Unsupported, "connect", || words)?;
    options.tls.refused_without_tls("a file is reached without a network")?;
    let database = Sqlite {
        path: path(&options.url)?.into(),
        table: options.table.name.rsplit('.').next().unwrap_or_default().to_owned(),
        queries: Queries::new(&options.table.name),
        seen: Mutex::default(),
    };
    // Refuses a file that is a mount or has several hard links. Only a new client checks, because a later
    // link must not cost a running client its holds.
    check_path(&database.path)?;
    let deadline = Clock::System.after(options.connect_timeout);
    let first = database.open(options.table.create, deadline)?;
    let is_there = |conn: &Connection| {
        let has_table = || has_table(conn, &database.table, &database.queries.all.take.text);
        let is_there = has_table()?;
        if options.table.create {
            let make = |text: &str| conn.execute_batch(&query(text, &options.table.name));
            make(include_str!("query/sqlite/schema.sql")).map_err(failed)?;
            // Locks work without the directory's table, so a failure to create it is ignored.
            drop(make(include_str!("query/sqlite/clients.sql")));
        }
        if is_there { Ok(true) } else { has_table() }
    };
    *database.seen.lock() = Some(first.files);
    if !first.on(is_there).map_err(|failure| failure.into_error().during("connect"))? {
        return Err(no_table(options));
    }
    // The pool has one connection for requests, so threads wait in the pool. In SQLite they would poll.
    Ok(Arc::new(RowStore::new(Pool::new(database, 1, first))))
}

queries!("sqlite": sweep);

struct Sqlite {
    path: Arc<Path>,
    table: String,
    queries: Queries,
    seen: Mutex<Option<Files>>,
}

impl Sqlite {
    /// Opens the file. Only a new client may create it: later, a missing file was moved away by somebody who
    /// may be about to replace it.
    fn open(&self, create: bool, deadline: Moment) -> Result<SqliteConnection> {
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
        let open = || {
            let mut conn = Connection::open_with_flags(&self.path, flags)?;
            // If SQLite cannot open the file for writing, it opens the file for reading. Such a connection is
            // dropped before it reads, because a read can create files that other users cannot write.
            if conn.is_readonly("main")? {
                return Ok(None);
            }
            wait_until(deadline);
            let_wait(&mut conn)?;
            // In WAL mode, readers and the writer do not wait for each other. NORMAL does not sync each grant
            // to disk: a power cut that loses locks also ends their holders, and tokens follow the clock, so
            // they still grow. The log grows while others read; afterwards SQLite cuts it to 16 MiB.
            conn.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = 16777216")?;
            // This first read creates the `-wal` and `-shm` files, and keeps them open. `share` needs them.
            made_by(&conn, &self.table)?;
            share(&self.path);
            Ok(Some(conn))
        };
        loop {
            end_strays(&self.path, deadline);
            let before = file_id(&self.path);
            if let Some(error) = hindrance(&self.path).filter(|_| before.is_some()) {
                return Err(error);
            }
            match open() {
                // While another process changes a new file's journal mode, SQLite refuses instead of waiting.
                Err(error) if is_busy(&error) && deadline > Clock::System.now() => {
                    pause(Duration::from_millis(5))
                }
                Err(error) => {
                    let is_hindered = create || before.is_some();
                    return Err(hindrance(&self.path)
                        .filter(|_| is_hindered)
                        .unwrap_or_else(|| failed_to_open(error)));
                }
                Ok(conn) => {
                    if let Some(link) =
                        conn.and_then(|conn| SqliteConnection::new(conn, &self.path, before, deadline))
                    {
                        return Ok(link);
                    }
                    if deadline <= Clock::System.now() {
                        return Err(replaced().during("connect"));
                    }
                    pause(Duration::from_millis(5));
                }
            }
        }
    }
}

impl Database for Sqlite {
    type Link = SqliteConnection;

    const HAS_SERVERS: bool = false;

    fn connect(&self, deadline: Moment) -> Result<SqliteConnection> {
        let link = self.open(false, deadline)?;
        // Another program may be about to create the table in a new file, so the error is retryable.
        let has_table = link.on(|conn| has_table(conn, &self.table, &self.queries.all.take.text));
        if has_table.map_err(|failure| failure.into_error().during("connect"))? {
            Ok(link)
        } else {
            let words = "the file was replaced by one without the table";
            Err(Error::new(ErrorKind::Unreachable, "connect", words))
        }
    }

    fn is_alive(&self, link: &mut SqliteConnection) -> bool {
        link.is_sound()
    }
}

impl Rows for Sqlite {
    const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(10));

    fn statements(&self) -> &Statements {
        &self.queries.all
    }

    /// Reads before writing, so that waiters for a held lock do not delay a writer.
    fn look_before(&self, link: &mut SqliteConnection, claim: &Claim) -> Answer<Option<Change<u64>>> {
        let seen = self.look(link, &Args::one("name", &*claim.name)).map_err(Failure::of_reading)?;
        Ok(seen.filter(|row| row.is_of_another(claim)).map(|row| Change::None(Some(row))))
    }

    fn displaced(&self, link: &SqliteConnection) -> Option<Error> {
        (!link.is_in_place()).then(replaced)
    }

    fn sweep(&self, link: &mut SqliteConnection, age: Duration) -> Answer<u64> {
        let removed = link.run(&self.queries.sweep, &Args::one("age_ms", age))?;
        Ok(u64::try_from(removed.len()).unwrap_or(0))
    }

    /// Warns of a long log: SQLite does not list old transactions, but the log grows while they read.
    fn old_versions(&self, _: &mut SqliteConnection, _: Duration) -> Answer<Vec<String>> {
        Ok(long_log(&self.path).into_iter().collect())
    }

    fn hung_up(&self) -> Option<bool> {
        let files = Files::at(&self.path);
        Some(std::mem::replace(&mut *self.seen.lock(), files) != files)
    }

    fn is_gone(&self) -> bool {
        std::fs::metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }
}

fn made_by(conn: &Connection, table: &str) -> rusqlite::Result<Option<String>> {
    let made = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE";
    conn.query_row(made, [table], |row| row.get(0)).optional()
}

/// Whether the table exists. Refuses a table whose CREATE statement has another format, and one without the
/// columns that `take` needs.
fn has_table(conn: &Connection, table: &str, take: &str) -> Answer<bool> {
    let Some(made) = made_by(conn, table).map_err(failed)? else { return Ok(false) };
    check_format(&made, &format!("the table {table}"))?;
    match conn.prepare(take) {
        // SQLite has no error code for a missing column.
        Err(error) if error.to_string().contains("column") => {
            let error = Error::new(ErrorKind::Unsupported, "connect", other_table(table)).with_source(error);
            Err(Failure::Refused(error))
        }
        prepared => prepared.map(|_| true).map_err(failed),
    }
}

// Only on Unix, because Windows can neither move nor delete an open database.
#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_file_moved_away_during_an_open_is_never_opened_read_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let database = Sqlite {
            path: path.clone().into(),
            table: "leasehold_locks".to_owned(),
            queries: Queries::new("leasehold_locks"),
            seen: Mutex::default(),
        };
        let deadline = || Clock::System.after(Duration::from_secs(60));
        let first = database.open(true, deadline()).unwrap();
        first.place.lock().as_ref().unwrap().execute_batch("CREATE TABLE some (a)").unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let away = folder.path().join("away");
                while !is_over.load(Ordering::Relaxed) {
                    std::fs::rename(&path, &away).unwrap();
                    std::fs::rename(&away, &path).unwrap();
                }
            });
            // Most opens fail, because the file is away, so the test goes on until 200 have succeeded.
            let opened = std::iter::repeat_with(|| database.open(false, deadline()).ok()).flatten().take(200);
            let read_only: Vec<_> =
                opened.map(|link| link.place.lock().as_ref().unwrap().is_readonly("main")).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(
                read_only.iter().all(|read_only| *read_only == Ok(false)),
                "the files were opened only for reading"
            );
        });
    }
}
