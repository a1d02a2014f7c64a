//! A connection, and the files that it has open.
//!
//! All connections of a process to one inode share the index of SQLite's log. If an old connection's log or
//! index was deleted, a new connection would combine the old index with the new log, and damage data.
//! Therefore a table lists the process's connections, and those whose files are no longer in place are closed
//! before another is opened.

use std::cell::Cell;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, Row};

use crate::error::{Error, ErrorKind};
use crate::seam::{Answer, Failure};
use crate::stores::sql::MIGRATION;
use crate::stores::sql::database::Link;
use crate::stores::sql::sqlite::file::{Files, boot, up_ms};
use crate::stores::sql::statement::{Args, Record, Statement, Value};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, thread_local};
use crate::system::FileId;
use crate::time::{Clock, Moment, random_between};

/// Contains a connection until a thread, perhaps not its user's, takes it out and closes it.
type Place = Mutex<Option<Connection>>;

type Table = Vec<(Files, Weak<Place>)>;

static OPEN: Mutex<Table> = Mutex::new(Table::new());

pub(super) struct SqliteConnection {
    pub(super) place: Arc<Place>,
    pub(super) files: Files,
    path: Arc<Path>,
    has_failed: AtomicBool,
    pub(super) deadline: Moment,
    boot: Value,
}

impl Link for SqliteConnection {
    fn deadline(&mut self) -> &mut Moment {
        &mut self.deadline
    }

    fn run(&mut self, statement: &Statement, args: &Args) -> Answer<Vec<Record>> {
        let up = Value::from(up_ms());
        let value = |name: &&str| match *name {
            "boot" => &self.boot,
            "up_ms" => &up,
            name => args.get(name),
        };
        let run = |conn: &Connection| {
            let mut prepared = conn.prepare_cached(&statement.text)?;
            let params = rusqlite::params_from_iter(statement.names.iter().map(value));
            if prepared.column_count() == 0 {
                let is_changed = prepared.execute(params)? > 0;
                return Ok(Vec::from_iter(is_changed.then(|| Record(vec![Value::Int(0)]))));
            }
            // All rows are read, because SQLite commits only after the last one.
            let read = |row: &Row<'_>| -> rusqlite::Result<Record> {
                let columns = 0..row.as_ref().column_count();
                columns.map(|at| row.get(at)).collect::<rusqlite::Result<_>>().map(Record)
            };
            prepared.query_map(params, read)?.collect::<rusqlite::Result<_>>()
        };
        self.on(|conn| run(conn).map_err(failed))
    }
}

impl SqliteConnection {
    /// Adds a connection to the table `OPEN`. The caller has read the database over it, so that log and index
    /// exist. `before` is the file that was at the path before the caller opened the connection. Returns
    /// `None` if the connection may have other files open than those now at the path.
    pub(super) fn new(
        conn: Connection,
        path: &Arc<Path>,
        before: Option<FileId>,
        deadline: Moment,
    ) -> Option<SqliteConnection> {
        SqliteConnection::among(&mut OPEN.lock(), conn, path, before, deadline)
    }

    fn among(
        open: &mut Table,
        conn: Connection,
        path: &Arc<Path>,
        before: Option<FileId>,
        deadline: Moment,
    ) -> Option<SqliteConnection> {
        open.retain(|(_, other)| other.strong_count() > 0);
        // A new connection would share an open one's index (`-shm`): unsound if that one's log was replaced.
        let is_sound = |files: &Files| {
            files.is_whole()
                && before.is_none_or(|before| files.is_of(before))
                && !open.iter().any(|(other, _)| files.is_stray(other))
        };
        let Some(files) = Files::at(path).filter(is_sound) else {
            leave(Some(conn));
            return None;
        };
        let place = Arc::new(Mutex::new(Some(conn)));
        open.push((files, Arc::downgrade(&place)));
        let (path, has_failed, boot) = (Arc::clone(path), AtomicBool::new(false), Value::from(boot()));
        Some(SqliteConnection { place, files, path, has_failed, deadline, boot })
    }

    pub(super) fn on<T>(&self, request: impl FnOnce(&Connection) -> Answer<T>) -> Answer<T> {
        let conn = self.place.lock();
        let conn = conn.as_ref().ok_or_else(|| Failure::Refused(replaced()))?;
        wait_until(self.deadline);
        let outcome = request(conn);
        if let Err(failure) = &outcome
            && matches!(failure.error().kind(), ErrorKind::Unreachable | ErrorKind::Protocol)
        {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// Whether a process that opens the path now gets the files that this connection has open.
    pub(super) fn is_in_place(&self) -> bool {
        Files::at(&self.path) == Some(self.files)
    }

    /// Whether the connection can be used again. After a failed read it cannot: it may have combined the old
    /// index with a new log.
    pub(super) fn is_sound(&self) -> bool {
        !self.has_failed.load(Ordering::Relaxed) && self.place.lock().is_some() && self.is_in_place()
    }
}

impl Drop for SqliteConnection {
    /// When the last connection to a file is closed, SQLite deletes the log by name. If another log has this
    /// name now, its changes would be lost, so `leave` closes the connection without that.
    fn drop(&mut self) {
        if !self.is_in_place() {
            leave(self.place.lock().take());
        }
    }
}

/// Closes this process's connections to `path` whose log or index is no longer the one in place.
pub(super) fn end_strays(path: &Path, deadline: Moment) {
    let strays: Vec<Arc<Place>> = {
        let open = OPEN.lock();
        // The files are looked up while the mutex of `OPEN` is held. Otherwise another thread could open
        // newer files and add its connection after the look-up, and that connection would seem stray.
        let Some(files) = Files::at(path) else { return };
        let strays = open.iter().filter(|(other, _)| files.is_stray(other));
        strays.filter_map(|(_, place)| place.upgrade()).collect()
    };
    for stray in &strays {
        let Some(mut place) = stray.try_lock_for(deadline.since(Clock::System.now())) else { continue };
        leave(place.take());
        drop(place);
        OPEN.lock().retain(|(_, place)| !std::ptr::eq(place.as_ptr(), Arc::as_ptr(stray)));
    }
}

fn leave(conn: Option<Connection>) {
    if let Some(conn) = conn {
        // The connection is closed even if SQLite refuses the setting.
        drop(conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true));
    }
}

thread_local! {
    static WAITS_UNTIL: Cell<Moment> = const { Cell::new(Moment::from_nanos(0)) };
}

/// Limits of the random pauses before another try to become the writer: of the first pause, and of all. A
/// request lasts some 50 µs, so SQLite's own pauses, which begin with 1 ms, are too long.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(2)];

/// Makes the connection wait for other writers, as long as [`wait_until`] says.
pub(super) fn let_wait(conn: &mut Connection) -> rusqlite::Result<()> {
    conn.busy_handler(Some(|tries| {
        let goes_on = Clock::System.now() < WAITS_UNTIL.with(Cell::get);
        if goes_on {
            let longest = PAUSES[1].min(PAUSES[0].saturating_mul(u32::try_from(tries).unwrap_or(0) + 1));
            pause(random_between((longest / 2, longest)));
        }
        goes_on
    }))
}

pub(super) fn pause(length: Duration) {
    Condvar::new().wait_for(&mut Mutex::new(()).lock(), length);
}

/// Until when requests of this thread wait for other writers.
pub(super) fn wait_until(deadline: Moment) {
    WAITS_UNTIL.with(|until| until.set(deadline));
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Bool(value) => ValueRef::Integer((*value).into()),
            Value::Int(value) => ValueRef::Integer(*value),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl FromSql for Value {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Value> {
        Ok(match value {
            ValueRef::Integer(value) => Value::Int(value),
            ValueRef::Text(_) => Value::from(value.as_str()?),
            ValueRef::Blob(bytes) => Value::from(bytes),
            ValueRef::Null | ValueRef::Real(_) => Value::Null,
        })
    }
}

pub(super) fn failed_to_open(error: rusqlite::Error) -> Error {
    refused(error).during("connect")
}

pub(super) fn replaced() -> Error {
    Error::new(ErrorKind::Unreachable, "request", "the file, or its -wal or -shm, was deleted or replaced")
}

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// SQLite rolls back a statement that fails, so only a commit that failed on the disk has an unknown outcome.
/// SQLite has no code for a missing table, so the message is searched for the directory's table.
pub(super) fn failed(error: rusqlite::Error) -> Failure {
    let said = error.to_string();
    if said.contains("no such table") && said.contains("_clients") {
        let words = format!("the table of clients is not there: see create_schema() and {MIGRATION}");
        return Failure::Refused(Error::new(ErrorKind::Unsupported, "directory", words).with_source(error));
    }
    if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) {
        Failure::Unknown(refused(error))
    } else {
        Failure::Refused(refused(error))
    }
}

fn refused(error: rusqlite::Error) -> Error {
    let (kind, words) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Busy, "other connections kept the file locked (SQLITE_BUSY)")
        }
        Some(ErrorCode::DiskFull) => (ErrorKind::OutOfMemory, "the disk is full, or the file may not grow"),
        Some(ErrorCode::OutOfMemory) => (ErrorKind::OutOfMemory, "out of memory"),
        Some(ErrorCode::ReadOnly) => (ErrorKind::ReadOnly, "the file is read-only"),
        Some(ErrorCode::PermissionDenied) => (ErrorKind::NoPermission, "permission denied for the file"),
        Some(ErrorCode::CannotOpen) => {
            (ErrorKind::Unreachable, "the SQLite file cannot be opened: does its folder exist?")
        }
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Unreachable, "the file cannot be read or written"),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            (ErrorKind::Protocol, "the file is not a SQLite database, or is damaged")
        }
        _ => (ErrorKind::Refused, "SQLite refused"),
    };
    Error::new(kind, "request", words).with_source(error)
}

#[cfg(not(leasehold_shuttle))]
// Only on Unix, because Windows can neither move nor delete an open database.
#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;
    use crate::system::file_id;

    /// A database without log and index, as after its last connection was closed.
    fn at_rest() -> (TempDir, Arc<Path>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let made = Connection::open(&path).unwrap();
        made.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE some (a)").unwrap();
        drop(made);
        assert!(Files::at(&path).is_some_and(|files| !files.is_whole()));
        (folder, path.into())
    }

    /// A connection that has read, so that its log and index exist.
    fn opened(path: &Path) -> Connection {
        let conn = Connection::open(path).unwrap();
        conn.query_row("SELECT count(*) FROM some", [], |_| Ok(())).unwrap();
        conn
    }

    fn soon() -> Moment {
        Clock::System.after(Duration::from_secs(60))
    }

    /// Another thread searches for stray connections, and waits for the mutex of `OPEN`, held by the test.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_new_connection_is_not_closed_as_stray() {
        let (_folder, path) = at_rest();
        let (sender, thread) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let mut open = OPEN.lock();
            let looks = scope.spawn(|| {
                sender.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                end_strays(&path, soon());
            });
            let status = Path::new("/proc").join(thread.recv().unwrap()).join("status");
            let is_asleep = || {
                let status = std::fs::read_to_string(&status).unwrap();
                let state = status.lines().find_map(|line| line.strip_prefix("State:"));
                state.is_some_and(|state| state.trim().starts_with('S'))
            };
            while !is_asleep() {
                std::thread::yield_now();
            }
            let link = SqliteConnection::among(&mut open, opened(&path), &path, None, soon()).unwrap();
            drop(open);
            looks.join().unwrap();
            assert!(
                link.is_sound() && link.place.lock().is_some(),
                "a connection was ended whose files are in place"
            );
        });
    }

    #[test]
    fn a_connection_closed_for_missing_files_is_not_used_again() {
        let (folder, path) = at_rest();
        let link = SqliteConnection::new(opened(&path), &path, None, soon()).unwrap();
        let log = folder.path().join("locks.db-wal");
        let away = folder.path().join("away");
        std::fs::rename(&log, &away).unwrap();
        end_strays(&path, soon());
        std::fs::rename(&away, &log).unwrap();
        assert!(link.is_in_place());
        assert!(!link.is_sound(), "the connection is still usable");
    }

    #[test]
    fn a_database_replaced_during_opening_is_refused() {
        let ((_folder, path), (_other_folder, other)) = (at_rest(), at_rest());
        let before = file_id(&path);
        let (conn, _stands) = (opened(&path), opened(&other));
        for end in ["", "-wal", "-shm"] {
            let at = |path: &Path| format!("{}{end}", path.display());
            std::fs::rename(at(&other), at(&path)).unwrap();
        }
        assert!(Files::at(&path).is_some_and(|files| files.is_whole()));
        assert!(
            SqliteConnection::new(conn, &path, before, soon()).is_none(),
            "the connection was taken for one to the other database"
        );
    }
}
