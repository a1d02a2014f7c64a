//! A connection, and which files it has open.
//!
//! SQLite shares the log's index among a process's connections to a file, by the file's inode: a connection
//! that is opened while one stands whose log or index was deleted gets that one's index beside a new log. So
//! the connections of a process are known here, and those whose files are no more in their places are ended
//! before another is opened.

use std::path::Path;
use std::sync::{Arc, Weak};

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
use crate::sync::{Mutex, MutexGuard};
use crate::system::FileId;
use crate::time::{Clock, Moment};

/// A connection's place, from which another thread may take it to end it.
type Place = Mutex<Option<Connection>>;

type Table = Vec<(Files, Weak<Place>)>;

static OPEN: Mutex<Table> = Mutex::new(Table::new());

pub(super) struct SqliteConnection {
    place: Arc<Place>,
    files: Files,
    path: Arc<Path>,
    /// Its files could not be read, or not made sense of.
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
            // Read to the end: only then it has been committed.
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
    /// Takes in a connection that has read, so that its files are there. `before`: the database that was
    /// there before it was opened. `None`: it has not got those files that are in their places.
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
        // Pairs with `end_strays`: one that stood while this was opened shares its index with it.
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

    /// Has `talk` use the connection, whose waits for other writers end by its deadline.
    pub(super) fn on<T>(&self, talk: impl FnOnce(&Connection) -> Answer<T>) -> Answer<T> {
        let conn = self.get();
        let conn = conn.as_ref().ok_or_else(|| Failure::Refused(replaced()))?;
        limit(conn, self.deadline).map_err(failed)?;
        let outcome = talk(conn);
        if let Err(failure) = &outcome
            && matches!(failure.error().kind(), ErrorKind::Unreachable | ErrorKind::Protocol)
        {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// Whether the path still leads to the files that it has open. A process that opens the path now is to
    /// get the same.
    pub(super) fn is_in_place(&self) -> bool {
        Files::at(&self.path) == Some(self.files)
    }

    /// Whether it is to be used again. One that could not read may have an index to another log: that of a
    /// log which somebody deleted stays until all connections to it have ended. One that was ended is none,
    /// though its files may be back in their places.
    pub(super) fn is_sound(&self) -> bool {
        !self.has_failed.load(Ordering::Relaxed) && self.get().is_some() && self.is_in_place()
    }

    pub(super) fn files(&self) -> Files {
        self.files
    }

    /// The connection, for one use; within it nothing, if it was ended since it was looked at.
    pub(super) fn get(&self) -> MutexGuard<'_, Option<Connection>> {
        self.place.lock()
    }
}

impl Drop for SqliteConnection {
    /// The last connection to a file writes what its log has into the file, and deletes the log by its name.
    /// One whose log is gone would write over what others have done since, and delete theirs.
    fn drop(&mut self) {
        if !self.is_in_place() {
            leave(self.place.lock().take());
        }
    }
}

/// Ends the connections of this process to the file at `path` that have other files beside it open than those
/// that are there.
pub(super) fn end_strays(path: &Path, deadline: Moment) {
    let strays: Vec<Arc<Place>> = {
        let open = OPEN.lock();
        // Looked for under the lock: while a connection in the table stands, SQLite deletes nothing of its
        // files. Before it was opened they may not have been there, or been those of an earlier one, and it
        // would be taken for a stray. Pairs with `among`.
        let Some(files) = Files::at(path) else { return };
        let strays = open.iter().filter(|(other, _)| files.is_stray(other));
        strays.filter_map(|(_, place)| place.upgrade()).collect()
    };
    for stray in &strays {
        // Its request ends within its own time.
        let Some(mut place) = stray.try_lock_for(deadline.since(Clock::System.now())) else { continue };
        leave(place.take());
        drop(place);
        OPEN.lock().retain(|(_, place)| !std::ptr::eq(place.as_ptr(), Arc::as_ptr(stray)));
    }
}

fn leave(conn: Option<Connection>) {
    if let Some(conn) = conn {
        // One that refuses this is closed all the same.
        drop(conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true));
    }
}

/// Waits for other writers end by then.
pub(super) fn limit(conn: &Connection, deadline: Moment) -> rusqlite::Result<()> {
    conn.busy_timeout(deadline.since(Clock::System.now()))
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
    Error::new(
        ErrorKind::Unreachable,
        "request",
        "the file, or what SQLite keeps beside it, was deleted or replaced",
    )
}

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// The file's errors. SQLite rolls a statement back that it cannot carry out; only of what the disk did to a
/// commit it is not sure itself. SQLite has no code for a table that is not there: without that of the
/// clients only the directory does not work.
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
        Some(ErrorCode::CannotOpen) => (ErrorKind::Unreachable, "the file cannot be opened"),
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Unreachable, "the file cannot be read or written"),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            (ErrorKind::Protocol, "the file is not a SQLite database, or is damaged")
        }
        _ => (ErrorKind::Refused, "SQLite refused"),
    };
    Error::new(kind, "request", words).with_source(error)
}

#[cfg(not(leasehold_shuttle))]
// Windows lets nobody move or delete a database that is open.
#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;

    /// A database beside which there is nothing, as after its last connection was closed.
    fn at_rest() -> (TempDir, Arc<Path>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let made = Connection::open(&path).unwrap();
        made.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE some (a)").unwrap();
        drop(made);
        assert!(Files::at(&path).is_some_and(|files| !files.is_whole()));
        (folder, path.into())
    }

    /// A connection that has read, so that its log and index are there.
    fn opened(path: &Path) -> Connection {
        let conn = Connection::open(path).unwrap();
        conn.query_row("SELECT count(*) FROM some", [], |_| Ok(())).unwrap();
        conn
    }

    fn soon() -> Moment {
        Clock::System.after(Duration::from_secs(60))
    }

    /// The other thread has begun to look before the connection was opened, and goes on after it is in the
    /// table.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_new_connection_is_no_stray() {
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
            // It waits for the table.
            while !is_asleep() {
                std::thread::yield_now();
            }
            let link = SqliteConnection::among(&mut open, opened(&path), &path, None, soon()).unwrap();
            drop(open);
            looks.join().unwrap();
            assert!(link.is_sound() && link.get().is_some(), "ended, though its files are in their places");
        });
    }

    /// The files that it had open may have been put back since: that they are in their places is not enough.
    #[test]
    fn a_connection_that_was_ended_is_not_used_again() {
        let (folder, path) = at_rest();
        let link = SqliteConnection::new(opened(&path), &path, None, soon()).unwrap();
        let log = folder.path().join("locks.db-wal");
        let away = folder.path().join("away");
        std::fs::rename(&log, &away).unwrap();
        end_strays(&path, soon());
        std::fs::rename(&away, &log).unwrap();
        assert!(link.is_in_place());
        assert!(!link.is_sound(), "it has been ended");
    }

    /// The file that the path leads to afterwards is whole, and is not the one that was opened.
    #[test]
    fn a_database_replaced_during_opening_is_refused() {
        let ((_folder, path), (_other_folder, other)) = (at_rest(), at_rest());
        let before = Files::own_at(&path);
        let (conn, _stands) = (opened(&path), opened(&other));
        for end in ["", "-wal", "-shm"] {
            let at = |path: &Path| format!("{}{end}", path.display());
            std::fs::rename(at(&other), at(&path)).unwrap();
        }
        assert!(Files::at(&path).is_some_and(|files| files.is_whole()));
        assert!(
            SqliteConnection::new(conn, &path, before, soon()).is_none(),
            "taken for one to the other database"
        );
    }
}
