//! SQLite: a file, for the processes of one machine. Writers take turns by the file's own lock; who waits for
//! a lock only reads.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, Params, params};

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
use crate::inspect::Location;
use crate::seam::{Answer, Claim, Failure, Store};
use crate::stores::sql::database::Database;
use crate::stores::sql::pool::Pool;
use crate::stores::sql::rows::{Change, EntryRow, ListedRow, Row, RowStore, Rows, Told};
use crate::stores::sql::sqlite::connection::{SqliteConnection, end_strays};
use crate::stores::sql::sqlite::file::{Files, boot, check_path, hindrance, long_log, path, share, up_ms};
use crate::stores::sql::sqlite::reading::{entry_row, seen, told};
use crate::stores::sql::sqlite::refusal::{failed, failed_to_open, is_busy, no_directory, replaced};
use crate::stores::sql::sqlite::table::{has_table, made_by};
use crate::stores::sql::{lease_ms, no_table, query};
use crate::sync::{Condvar, Mutex};
use crate::time::{Clock, Moment};

mod connection;
mod file;
mod reading;
mod refusal;
mod table;

/// Opens the file, and checks that it can keep locks.
pub(crate) fn open(options: &ServerOptions) -> Result<Arc<dyn Store>> {
    if options.table.session_locks {
        let words = "SQLite has no session locks: leave session_locks() out";
        return Err(Error::new(ErrorKind::Unsupported, "connect", words));
    }
    options.tls.refused_without_tls("a file is reached without a network")?;
    let database = Sqlite {
        path: path(&options.url)?.into(),
        table: options.table.name.rsplit('.').next().unwrap_or_default().to_owned(),
        queries: Queries::new(&options.table.name),
        boot: boot(),
        seen: Mutex::default(),
    };
    // Asked of each client that is built, and of no later connection: a name that a running client's file gets
    // costs no hold, because nobody can be built with that name.
    check_path(&database.path)?;
    let deadline = Clock::System.after(options.connect_timeout);
    let first = database.open(options.table.create, deadline)?;
    let is_there = |conn: &Connection| {
        let has_table = || has_table(conn, &database.table, &database.queries.take);
        let is_there = has_table()?;
        if options.table.create {
            let make = |text: &str| conn.execute_batch(&query(text, &options.table.name));
            make(include_str!("query/sqlite/schema.sql")).map_err(failed)?;
            // Without it there is no directory, which is not worth a client.
            drop(make(include_str!("query/sqlite/clients.sql")));
        }
        if is_there { Ok(true) } else { has_table() }
    };
    *database.seen.lock() = Some(first.files());
    if !on(&first, deadline, is_there).map_err(|failure| failure.into_error().during("connect"))? {
        return Err(no_table(options));
    }
    // Requests of one process take turns here: they would in the file too, but by sleeping and looking again.
    Ok(Arc::new(RowStore::new(Pool::new(database, 1, first))))
}

queries!(
    "sqlite": take, retake, leave, renew, expire, look, show, list, force, sweep, post, unpost, tidy, entry, entries,
);

struct Sqlite {
    path: Arc<Path>,
    /// The table's name, without that of a schema.
    table: String,
    queries: Queries,
    /// The machine's start, until whose next rows go by the time since then.
    boot: Option<String>,
    /// The files that the path led to when that was last looked at.
    seen: Mutex<Option<Files>>,
}

/// Has `talk` use the connection, whose waits for other writers end by then.
fn on<T>(
    link: &SqliteConnection,
    deadline: Moment,
    talk: impl FnOnce(&Connection) -> Answer<T>,
) -> Answer<T> {
    let conn = link.get();
    let conn = conn.as_ref().ok_or_else(|| Failure::Refused(replaced()))?;
    limit(conn, deadline).map_err(failed)?;
    let outcome = talk(conn);
    if let Err(Failure::Refused(error) | Failure::Unknown(error)) = &outcome
        && matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Protocol)
    {
        link.fail();
    }
    outcome
}

/// Changes the table of clients.
fn written(link: &SqliteConnection, sql: &str, params: impl Params, deadline: Moment) -> Answer<()> {
    on(link, deadline, |conn| Sqlite::changes(conn, sql, params).map(drop).map_err(no_directory))
}

impl Sqlite {
    /// Opens the file. It is made if it is not there only when the client is: a process that took it away
    /// since then may be about to put another in its place.
    fn open(&self, create: bool, deadline: Moment) -> Result<SqliteConnection> {
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
        let open = || {
            let conn = Connection::open_with_flags(&self.path, flags)?;
            // SQLite tries first to open a file for writing, then only for reading. If it is made between the
            // two, the connection would refuse every change from then on; and if the user may only read, its
            // first look would leave a log and an index that keep everybody else out.
            if conn.is_readonly("main")? {
                return Ok(None);
            }
            limit(&conn, deadline)?;
            // Readers and the writer do not wait for each other. Without a sync for each grant: what a power
            // cut loses are locks of processes that it has ended too; and fences go by the clock besides.
            // A reader that others leave open keeps the log growing: 16 MiB of it stay when it starts anew.
            conn.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = 16777216")?;
            // It has the log and its index be there.
            made_by(&conn, &self.table)?;
            share(&self.path);
            Ok(Some(conn))
        };
        loop {
            end_strays(&self.path, deadline);
            let before = Files::own_at(&self.path);
            if let Some(error) = hindrance(&self.path).filter(|_| before.is_some()) {
                return Err(error);
            }
            match open() {
                // Of several that make the file at once one changes its journal, and the others are refused
                // without having waited.
                Err(error) if is_busy(&error) && deadline > Clock::System.now() => pause(),
                Err(error) => {
                    let is_hindered = create || before.is_some();
                    return Err(hindrance(&self.path)
                        .filter(|_| is_hindered)
                        .unwrap_or_else(|| failed_to_open(error)));
                }
                Ok(conn) => {
                    if let Some(link) = conn.and_then(|conn| SqliteConnection::new(conn, &self.path, before))
                    {
                        return Ok(link);
                    }
                    if deadline <= Clock::System.now() {
                        return Err(replaced().during("connect"));
                    }
                    pause();
                }
            }
        }
    }

    /// A grant in a file that was taken away meanwhile keeps nobody out.
    fn in_place<T>(link: &SqliteConnection, change: Change<T>) -> Answer<Change<T>> {
        match change {
            Change::Made(_) if !link.is_in_place() => Err(Failure::Unknown(replaced())),
            change => Ok(change),
        }
    }
}

impl Database for Sqlite {
    type Link = SqliteConnection;

    const HAS_SERVERS: bool = false;

    fn connect(&self, deadline: Moment) -> Result<SqliteConnection> {
        let link = self.open(false, deadline)?;
        // It was there when the client was made. Another program may be about to make it.
        let has_table = on(&link, deadline, |conn| has_table(conn, &self.table, &self.queries.take));
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

    fn give_up(&self, link: SqliteConnection) {
        drop(link);
    }
}

fn pause() {
    Condvar::new().wait_for(&mut Mutex::new(()).lock(), Duration::from_millis(5));
}

/// Waits for other writers end by then.
fn limit(link: &Connection, deadline: Moment) -> rusqlite::Result<()> {
    link.busy_timeout(deadline.since(Clock::System.now()))
}

/// Runs a statement that changes the row or does not; then what the row shows.
fn change<T>(
    link: &SqliteConnection,
    deadline: Moment,
    made: impl FnOnce(&Connection) -> rusqlite::Result<Option<T>>,
    look: impl FnOnce(&Connection) -> rusqlite::Result<Option<Row>>,
) -> Answer<Change<T>> {
    on(link, deadline, |conn| match made(conn).map_err(failed)? {
        Some(made) => Ok(Change::Made(made)),
        // Nothing was changed: what goes wrong from here on is a failure to read.
        None => look(conn).map(Change::None).map_err(|error| failed(error).of_reading()),
    })
}

impl Sqlite {
    fn row(&self, link: &Connection, name: &LockName) -> rusqlite::Result<Option<Row>> {
        link.prepare_cached(&self.queries.look)?
            .query_row(params![name.key().as_bytes(), self.boot, up_ms()], seen)
            .optional()
    }

    /// Whether a statement changed a row.
    fn changes(link: &Connection, sql: &str, params: impl Params) -> rusqlite::Result<Option<()>> {
        Ok((link.prepare_cached(sql)?.execute(params)? > 0).then_some(()))
    }

    /// The fence that a statement returns, which is read to its end: only then it has been committed.
    fn fence(link: &Connection, sql: &str, params: impl Params) -> rusqlite::Result<Option<u64>> {
        let mut statement = link.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let fence = rows.next()?.map(|row| row.get::<_, i64>(0)).transpose()?;
        while rows.next()?.is_some() {}
        Ok(fence.map(|fence| u64::try_from(fence).unwrap_or(0)))
    }
}

impl Rows for Sqlite {
    /// A look is a read of one row, which keeps no writer waiting.
    const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(10));

    /// Looks first: a lock that is held is only read, so any number of waiters keeps no writer waiting.
    fn take(
        &self,
        link: &mut SqliteConnection,
        claim: &Claim,
        fenced: bool,
        deadline: Moment,
    ) -> Answer<Change<u64>> {
        let owner = claim.owner.to_string();
        let look =
            |conn: &Connection| self.row(conn, &claim.name).map_err(|error| failed(error).of_reading());
        let seen = on(link, deadline, look)?;
        if let Some(row) = seen.filter(|row| row.is_live() && row.owner != owner) {
            return Ok(Change::None(Some(row)));
        }
        let here = Location::here();
        let params = params![
            claim.name.key().as_bytes(),
            claim.kind.is_token(),
            owner,
            lease_ms(claim.lease),
            fenced,
            here.host,
            here.pid,
            here.thread,
            self.boot,
            up_ms(),
        ];
        let taken = change(
            link,
            deadline,
            |conn| Self::fence(conn, &self.queries.take, params),
            |conn| self.row(conn, &claim.name),
        )?;
        Self::in_place(link, taken)
    }

    fn retake(
        &self,
        link: &mut SqliteConnection,
        claim: &Claim,
        count: u32,
        fenced: bool,
        deadline: Moment,
    ) -> Answer<Change<u64>> {
        let params = params![
            claim.name.key().as_bytes(),
            claim.kind.is_token(),
            claim.owner.to_string(),
            lease_ms(claim.lease),
            fenced,
            count,
            self.boot,
            up_ms(),
        ];
        let taken = change(
            link,
            deadline,
            |conn| Self::fence(conn, &self.queries.retake, params),
            |conn| self.row(conn, &claim.name),
        )?;
        Self::in_place(link, taken)
    }

    fn leave(
        &self,
        link: &mut SqliteConnection,
        claim: &Claim,
        left: u32,
        deadline: Moment,
    ) -> Answer<Change<()>> {
        let params = params![
            claim.name.key().as_bytes(),
            claim.kind.is_token(),
            claim.owner.to_string(),
            left,
            self.boot,
            up_ms(),
        ];
        let left = change(
            link,
            deadline,
            |conn| Self::changes(conn, &self.queries.leave, params),
            |conn| self.row(conn, &claim.name),
        )?;
        // The hold ended with the file that it was in.
        let is_lost = matches!(left, Change::Made(())) && !link.is_in_place();
        Ok(if is_lost { Change::None(None) } else { left })
    }

    fn renew(&self, link: &mut SqliteConnection, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        let one = |claim: &Claim| {
            let params = params![
                claim.name.key().as_bytes(),
                claim.kind.is_token(),
                claim.owner.to_string(),
                lease_ms(claim.lease),
                self.boot,
                up_ms(),
            ];
            let renew = |conn: &Connection| Self::changes(conn, &self.queries.renew, params).map_err(failed);
            on(link, deadline, renew).map(|changed| changed.is_some())
        };
        let renewed: Vec<_> = claims.iter().map(one).collect();
        if link.is_in_place() {
            return renewed;
        }
        claims.iter().map(|_| Err(Failure::Unknown(replaced()))).collect()
    }

    fn expire_in(
        &self,
        link: &mut SqliteConnection,
        claim: &Claim,
        rest: Duration,
        deadline: Moment,
    ) -> Answer<bool> {
        let params = params![
            claim.name.key().as_bytes(),
            claim.kind.is_token(),
            claim.owner.to_string(),
            lease_ms(rest),
            self.boot,
            up_ms(),
        ];
        let expire = |conn: &Connection| Self::changes(conn, &self.queries.expire, params).map_err(failed);
        on(link, deadline, expire).map(|changed| changed.is_some())
    }

    fn look(&self, link: &mut SqliteConnection, name: &LockName, deadline: Moment) -> Answer<Option<Row>> {
        on(link, deadline, |conn| self.row(conn, name).map_err(failed))
    }

    fn show(
        &self,
        link: &mut SqliteConnection,
        name: &LockName,
        deadline: Moment,
    ) -> Answer<Option<(Row, Told)>> {
        let read = |row: &rusqlite::Row<'_>| Ok((seen(row)?, told(row)?));
        let show = |conn: &Connection| {
            let params = params![name.key().as_bytes(), self.boot, up_ms()];
            conn.prepare_cached(&self.queries.show)?.query_row(params, read).optional()
        };
        on(link, deadline, |conn| show(conn).map_err(failed))
    }

    fn list(&self, link: &mut SqliteConnection, after: &[u8], deadline: Moment) -> Answer<Vec<ListedRow>> {
        let read = |row: &rusqlite::Row<'_>| {
            Ok(ListedRow { id: row.get(9)?, name: row.get(10)?, row: seen(row)?, told: told(row)? })
        };
        let list = |conn: &Connection| -> rusqlite::Result<Vec<ListedRow>> {
            let params = params![after, self.boot, up_ms()];
            conn.prepare_cached(&self.queries.list)?.query_map(params, read)?.collect()
        };
        on(link, deadline, |conn| list(conn).map_err(failed))
    }

    fn force(
        &self,
        link: &mut SqliteConnection,
        name: &LockName,
        token: bool,
        deadline: Moment,
    ) -> Answer<Change<()>> {
        let params = params![name.key().as_bytes(), token, self.boot, up_ms()];
        change(
            link,
            deadline,
            |conn| Self::changes(conn, &self.queries.force, params),
            |conn| self.row(conn, name),
        )
    }

    fn post(
        &self,
        link: &mut SqliteConnection,
        client: &str,
        entry: &str,
        lease: Duration,
        deadline: Moment,
    ) -> Answer<()> {
        written(link, &self.queries.post, params![client, entry, lease_ms(lease)], deadline)
    }

    fn unpost(&self, link: &mut SqliteConnection, client: &str, deadline: Moment) -> Answer<()> {
        written(link, &self.queries.unpost, [client], deadline)
    }

    fn tidy_entries(&self, link: &mut SqliteConnection, deadline: Moment) -> Answer<()> {
        written(link, &self.queries.tidy, [], deadline)
    }

    fn entry(&self, link: &mut SqliteConnection, client: &str, deadline: Moment) -> Answer<Option<EntryRow>> {
        let read = |conn: &Connection| {
            conn.prepare_cached(&self.queries.entry)?.query_row([client], entry_row).optional()
        };
        on(link, deadline, |conn| read(conn).map_err(no_directory))
    }

    fn entries(&self, link: &mut SqliteConnection, after: &str, deadline: Moment) -> Answer<Vec<EntryRow>> {
        let read = |conn: &Connection| -> rusqlite::Result<Vec<EntryRow>> {
            conn.prepare_cached(&self.queries.entries)?.query_map([after], entry_row)?.collect()
        };
        on(link, deadline, |conn| read(conn).map_err(no_directory))
    }

    fn sweep(&self, link: &mut SqliteConnection, age: Duration, deadline: Moment) -> Answer<u64> {
        let params = params![lease_ms(age), self.boot, up_ms()];
        let removed = on(link, deadline, |conn| conn.execute(&self.queries.sweep, params).map_err(failed));
        removed.map(|removed| u64::try_from(removed).unwrap_or(0))
    }

    /// The reader is not known here; only that the log could not begin anew.
    fn old_versions(&self, _: &mut SqliteConnection, _: Duration, _by: Moment) -> Answer<Vec<String>> {
        Ok(long_log(&self.path).into_iter().collect())
    }

    /// There is no connection to a server; what can go away is the file.
    fn hung_up(&self) -> Option<bool> {
        let files = Files::at(&self.path);
        Some(std::mem::replace(&mut *self.seen.lock(), files) != files)
    }

    fn is_gone(&self) -> bool {
        std::fs::metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }
}

// Windows lets nobody move or delete a database that is open.
#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Another program moves the file away and back, all the time.
    #[test]
    fn a_file_that_appears_while_it_is_opened_is_not_opened_only_to_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let database = Sqlite {
            path: path.clone().into(),
            table: "leasehold_locks".to_owned(),
            queries: Queries::new("leasehold_locks"),
            boot: None,
            seen: Mutex::default(),
        };
        let deadline = || Clock::System.after(Duration::from_secs(60));
        // It has the log and its index be there.
        let first = database.open(true, deadline()).unwrap();
        first.get().as_ref().unwrap().execute_batch("CREATE TABLE some (a)").unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let away = folder.path().join("away");
                while !is_over.load(Ordering::Relaxed) {
                    std::fs::rename(&path, &away).unwrap();
                    std::fs::rename(&away, &path).unwrap();
                }
            });
            // Most find the file away. By their number, not by time: a busy machine opens it less often.
            let opened = std::iter::repeat_with(|| database.open(false, deadline()).ok()).flatten().take(200);
            let read_only: Vec<_> =
                opened.map(|link| link.get().as_ref().unwrap().is_readonly("main")).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(read_only.iter().all(|read_only| *read_only == Ok(false)), "opened only to be read");
        });
    }
}
