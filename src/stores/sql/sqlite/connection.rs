//! A connection, and which files it has open.
//!
//! SQLite shares the log's index among a process's connections to a file, by the file's inode: a connection
//! that is opened while one stands whose log or index was deleted gets that one's index beside a new log. So
//! the connections of a process are known here, and those whose files are no more in their places are ended
//! before another is opened.

use std::path::Path;
use std::sync::{Arc, Weak};

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::stores::sql::sqlite::file::Files;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::system::FileId;
use crate::time::{Clock, Moment};

/// A connection's place, from which another thread may take it to end it.
type Place = Mutex<Option<Connection>>;

type Table = Vec<(Files, Weak<Place>)>;

/// All connections of this process.
static OPEN: Mutex<Table> = Mutex::new(Table::new());

/// A connection, and the files that it has open.
pub(super) struct SqliteConnection {
    place: Arc<Place>,
    files: Files,
    path: Arc<Path>,
    /// Its files could not be read, or not made sense of.
    has_failed: AtomicBool,
}

impl SqliteConnection {
    /// Takes in a connection that has read, so that its files are there. `before`: the database that was
    /// there before it was opened. `None`: it has not got those files that are in their places.
    pub(super) fn new(
        conn: Connection,
        path: &Arc<Path>,
        before: Option<FileId>,
    ) -> Option<SqliteConnection> {
        SqliteConnection::among(&mut OPEN.lock(), conn, path, before)
    }

    /// The same, with the table locked.
    fn among(
        open: &mut Table,
        conn: Connection,
        path: &Arc<Path>,
        before: Option<FileId>,
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
        Some(SqliteConnection { place, files, path: Arc::clone(path), has_failed: AtomicBool::new(false) })
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

    pub(super) fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
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

/// Ends a connection and leaves the files as they are.
fn leave(conn: Option<Connection>) {
    if let Some(conn) = conn {
        // One that refuses this is closed all the same.
        drop(conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true));
    }
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
    fn a_connection_that_was_opened_while_another_thread_looks_for_strays_is_none() {
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
            let link = SqliteConnection::among(&mut open, opened(&path), &path, None).unwrap();
            drop(open);
            looks.join().unwrap();
            assert!(link.is_sound() && link.get().is_some(), "ended, though its files are in their places");
        });
    }

    /// The files that it had open may have been put back since: that they are in their places is not enough.
    #[test]
    fn a_connection_that_was_ended_is_not_used_again() {
        let (folder, path) = at_rest();
        let link = SqliteConnection::new(opened(&path), &path, None).unwrap();
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
    fn a_connection_to_a_database_that_was_replaced_as_it_was_opened_is_refused() {
        let ((_folder, path), (_other_folder, other)) = (at_rest(), at_rest());
        let before = Files::own_at(&path);
        let (conn, _stands) = (opened(&path), opened(&other));
        for end in ["", "-wal", "-shm"] {
            let at = |path: &Path| format!("{}{end}", path.display());
            std::fs::rename(at(&other), at(&path)).unwrap();
        }
        assert!(Files::at(&path).is_some_and(|files| files.is_whole()));
        assert!(SqliteConnection::new(conn, &path, before).is_none(), "taken for one to the other database");
    }
}
