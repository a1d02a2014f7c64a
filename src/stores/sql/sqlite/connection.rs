//! A connection, and which files it has open.
//!
//! SQLite shares the log's index among a process's connections to a file, by the file's inode: a connection that is opened while
//! one stands whose log or index was deleted gets that one's index beside a new log. So the connections of a process are known
//! here, and those whose files are no more in their places are ended before another is opened.

use std::path::Path;
use std::sync::{Arc, Weak};

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::stores::sql::sqlite::file::Files;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::time::{Clock, Moment};

/// A connection's place, from which another thread may take it to end it.
type Place = Mutex<Option<Connection>>;

/// All connections of this process.
static OPEN: Mutex<Vec<(Files, Weak<Place>)>> = Mutex::new(Vec::new());

/// A connection, and the files that it has open.
pub(super) struct SqliteConnection {
    place: Arc<Place>,
    files: Files,
    path: Arc<Path>,
    /// Its files could not be read, or not made sense of.
    has_failed: AtomicBool,
}

impl SqliteConnection {
    /// Takes in a connection that has read, so that its files are there. `None`: it has not got those that are in their places.
    pub(super) fn new(conn: Connection, path: &Arc<Path>) -> Option<SqliteConnection> {
        let mut open = OPEN.lock();
        open.retain(|(_, other)| other.strong_count() > 0);
        // Pairs with `end_strays`: one that stood while this was opened shares its index with it.
        let is_sound =
            |files: &Files| files.is_whole() && !open.iter().any(|(other, _)| files.is_stray(other));
        let Some(files) = Files::at(path).filter(is_sound) else {
            leave(Some(conn));
            return None;
        };
        let place = Arc::new(Mutex::new(Some(conn)));
        open.push((files, Arc::downgrade(&place)));
        Some(SqliteConnection { place, files, path: Arc::clone(path), has_failed: AtomicBool::new(false) })
    }

    /// Whether the path still leads to the files that it has open. A process that opens the path now is to get the same.
    pub(super) fn is_in_place(&self) -> bool {
        Files::at(&self.path) == Some(self.files)
    }

    /// Whether it is to be used again. One that could not read may have an index to another log: that of a log which somebody deleted
    /// stays until all connections to it have ended.
    pub(super) fn is_sound(&self) -> bool {
        !self.has_failed.load(Ordering::Relaxed) && self.is_in_place()
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
    /// The last connection to a file writes what its log has into the file, and deletes the log by its name. One whose log is gone
    /// would write over what others have done since, and delete theirs.
    fn drop(&mut self) {
        if !self.is_in_place() {
            leave(self.place.lock().take());
        }
    }
}

/// Ends the connections of this process to the file at `path` that have other files beside it open than those that are there.
pub(super) fn end_strays(path: &Path, deadline: Moment) {
    let Some(files) = Files::at(path) else { return };
    let strays: Vec<Arc<Place>> = {
        let open = OPEN.lock();
        let strays = open.iter().filter(|(other, _)| files.is_stray(other));
        strays.filter_map(|(_, place)| place.upgrade()).collect()
    };
    for stray in &strays {
        // Its request ends within its own time.
        if let Some(mut stray) = stray.try_lock_for(deadline.since(Clock::System.now())) {
            leave(stray.take());
        }
    }
    OPEN.lock().retain(|(other, place)| {
        let is_ended =
            || place.upgrade().is_none_or(|place| place.try_lock().is_some_and(|place| place.is_none()));
        !files.is_stray(other) || !is_ended()
    });
}

/// Ends a connection and leaves the files as they are.
fn leave(conn: Option<Connection>) {
    if let Some(conn) = conn {
        // One that refuses this is closed all the same.
        drop(conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true));
    }
}
