//! The files of the database at a path.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{no_parameters, unescaped};
use crate::stores::sql::lease_ms;
use crate::system::{self, FileId, file_id};
use crate::time::Clock;

pub(super) fn path(url: &str) -> Result<PathBuf> {
    let unusable =
        || Error::invalid("connect", "the URL cannot be used; write it as sqlite:///path/of/the/file");
    let (_, path) = url.split_once("://").ok_or_else(unusable)?;
    no_parameters(url)?;
    let path = path.trim_end_matches('?');
    if !path.starts_with('/') || path.len() < 2 || path.contains('\0') {
        return Err(unusable());
    }
    let path = unescaped(path).ok_or_else(unusable)?;
    if path.contains('\0') { Err(unusable()) } else { Ok(system::local_path(path)) }
}

/// A database file and, while a connection is open, its log of changes (`-wal`) and the log's index (`-shm`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Files {
    own: FileId,
    beside: [Option<FileId>; 2],
}

impl Files {
    /// The files at the path. They are never opened, because closing a file would end SQLite's locks on it.
    pub(super) fn at(path: &Path) -> Option<Files> {
        Some(Files { own: file_id(path)?, beside: beside(path).each_ref().map(|path| file_id(path)) })
    }

    pub(super) fn is_of(&self, own: FileId) -> bool {
        self.own == own
    }

    pub(super) fn is_whole(&self) -> bool {
        self.beside.iter().all(Option::is_some)
    }

    /// Whether a connection with the files `open` has this database, but another log or index.
    pub(super) fn is_stray(&self, open: &Files) -> bool {
        self.own == open.own && self.beside != open.beside
    }
}

/// The target of a symbolic link, because SQLite puts the log and index beside the target.
fn itself(path: &Path) -> Cow<'_, Path> {
    let target = path.is_symlink().then(|| std::fs::canonicalize(path).ok()).flatten();
    target.map_or(Cow::Borrowed(path), Cow::Owned)
}

fn beside(path: &Path) -> [PathBuf; 2] {
    let path = itself(path);
    ["-wal", "-shm"].map(|end| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    })
}

/// A warning if the log of changes has 32 MiB or more: twice the `journal_size_limit` of 16 MiB.
pub(super) fn long_log(path: &Path) -> Option<String> {
    let [log, _] = beside(path);
    let size = std::fs::metadata(log).ok()?.len();
    (size >= 32 << 20).then(|| format!("the log (-wal) has {} MiB", size >> 20))
}

/// Gives this user's log and index the database's group. SQLite copies only the mode, so other members of the
/// group would be locked out, and for ever if this process died without deleting the files.
pub(super) fn share(path: &Path) {
    for beside in beside(path) {
        system::share_group(&beside, path);
    }
}

/// The error that explains why this user cannot write the database, if a reason is visible.
pub(super) fn hindrance(path: &Path) -> Option<Error> {
    let refused = |path: &Path| Some((path.to_owned(), system::writing_refused(path)?));
    let is_complete = || Files::at(path).is_some_and(|files| files.is_whole());
    let (path, kind) = refused(path)
        .or_else(|| beside(path).iter().find_map(|beside| refused(beside)))
        .or_else(|| refused(itself(path).parent()?).filter(|_| !is_complete()))?;
    let (kind, why) = match kind {
        io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::ReadOnly, "is on a file system that is mounted to be read only")
        }
        _ => (
            ErrorKind::NoPermission,
            "may not be written by this user: keeping a lock, and waiting for one, changes the file and those beside it, which \
             need its owner, group and mode; SQLite makes them in its folder",
        ),
    };
    Some(Error::new(kind, "connect", format!("{} {why}", path.display())))
}

/// Refuses a file that is seen to have a second path (hard link or mount). SQLite puts the log and index
/// beside the path, so clients with two paths would not see each other's locks.
pub(super) fn check_path(path: &Path) -> Result<()> {
    let Ok(itself) = std::fs::canonicalize(path) else { return Ok(()) };
    let why = if system::is_mount_point(&itself) {
        "is mounted alone, as a file (docker -v FILE:FILE, a subPath): clients of the file's own folder and of other \
         mounts would not see each other's locks; mount the whole folder"
    } else if system::names_of(&itself) > 1 {
        "has another name (a hard link): clients of the two names would not see each other's locks; remove one \
         name, or use a symbolic link"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Unsupported, "connect", format!("{} {why}", path.display())))
}

/// The milliseconds since the machine started. Read before a statement, which may then wait for the file. If
/// the time is old by then, the new lease ends earlier, and other leases count as alive for longer.
pub(super) fn up_ms() -> i64 {
    lease_ms(Duration::from_nanos(Clock::System.now().nanos()))
}

/// Identifies the machine's start and its time namespace, to which times in rows refer. `None` if unknown.
pub(super) fn boot() -> Option<String> {
    Some(format!("{} {}", system::boot_id()?, system::clock_namespace().display()))
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn the_database_path_is_read_from_the_url() {
        assert_eq!(path("sqlite:///var/lib/a%20b.db").unwrap().to_str(), Some("/var/lib/a b.db"));
        for bad in [
            "sqlite://",
            "sqlite:///",
            "sqlite://a.db",
            "sqlite::memory:",
            "sqlite:///a%2",
            "sqlite:///a?b",
            "sqlite:///%00",
        ] {
            assert!(path(bad).is_err(), "{bad}");
        }
    }
}
