//! The file that a path leads to.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{no_parameters, unescaped};
use crate::stores::sql::lease_ms;
use crate::system::{self, FileId, file_id};
use crate::time::Clock;

/// `sqlite:///path`, where bytes may be written as `%20`.
pub(super) fn path(url: &str) -> Result<PathBuf> {
    let unusable =
        || Error::invalid("connect", "the URL cannot be used; it has the form sqlite:///path/of/the/file");
    let (_, path) = url.split_once("://").ok_or_else(unusable)?;
    no_parameters(url)?;
    let path = path.trim_end_matches('?');
    if !path.starts_with('/') || path.len() < 2 || path.contains('\0') {
        return Err(unusable());
    }
    let path = unescaped(path).ok_or_else(unusable)?;
    if path.contains('\0') { Err(unusable()) } else { Ok(system::local_path(path)) }
}

/// The files of a database: its own, and the log of changes and its index, which are there while a connection
/// stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Files {
    own: FileId,
    beside: [Option<FileId>; 2],
}

impl Files {
    /// Those that the path leads to, one looked up after the other. They are never opened: closing them would
    /// end SQLite's own locks on them.
    pub(super) fn at(path: &Path) -> Option<Files> {
        Some(Files { own: file_id(path)?, beside: beside(path).each_ref().map(|path| file_id(path)) })
    }

    /// The database alone.
    pub(super) fn own_at(path: &Path) -> Option<FileId> {
        file_id(path)
    }

    /// Whether the database is this one.
    pub(super) fn is_of(&self, own: FileId) -> bool {
        self.own == own
    }

    /// Whether all are there.
    pub(super) fn is_whole(&self) -> bool {
        self.beside.iter().all(Option::is_some)
    }

    /// Whether a connection with these files open has the same database, and not what is beside it now.
    pub(super) fn is_stray(&self, open: &Files) -> bool {
        self.own == open.own && self.beside != open.beside
    }
}

/// The database itself, where the path is a symbolic link to it: SQLite has its files beside that.
fn itself(path: &Path) -> Cow<'_, Path> {
    let target = path.is_symlink().then(|| std::fs::canonicalize(path).ok()).flatten();
    target.map_or(Cow::Borrowed(path), Cow::Owned)
}

/// The log of changes, and its index.
fn beside(path: &Path) -> [PathBuf; 2] {
    let path = itself(path);
    ["-wal", "-shm"].map(|end| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    })
}

/// Says that the log of changes has twice of what stays of it by `journal_size_limit`, or more.
pub(super) fn long_log(path: &Path) -> Option<String> {
    let [log, _] = beside(path);
    let size = std::fs::metadata(log).ok()?.len();
    (size >= 32 << 20).then(|| format!("the log (-wal) has {} MiB", size >> 20))
}

/// Gives the files beside the database its group, as far as they are this user's. SQLite gives them its mode:
/// without its group, those who may write it by that would be kept out, for good if this process ends without
/// taking them away.
pub(super) fn share(path: &Path) {
    for beside in beside(path) {
        system::share_group(&beside, path);
    }
}

/// Whether this user may not write a file that is there, and why.
fn refuses_writing(path: &Path) -> Option<ErrorKind> {
    match system::writing_refused(path)? {
        io::ErrorKind::ReadOnlyFilesystem => Some(ErrorKind::ReadOnly),
        _ => Some(ErrorKind::NoPermission),
    }
}

/// The reason, in words, why this user cannot write the database; `None`: nothing that can be seen.
pub(super) fn hindrance(path: &Path) -> Option<Error> {
    let said = |path: &Path, kind: ErrorKind, why: &str, then: &str| {
        let is_mount = kind == ErrorKind::ReadOnly;
        let why = if is_mount { "is on a file system that is mounted to be read only" } else { why };
        let then = if is_mount { "" } else { then };
        Error::new(kind, "connect", format!("{} {why}{then}", path.display()))
    };
    const NO_WRITING: &str = "may not be written by this user";
    if let Some(kind) = refuses_writing(path) {
        return Some(said(path, kind, NO_WRITING, ": keeping a lock, and waiting for one, changes the file"));
    }
    for beside in beside(path) {
        if let Some(kind) = refuses_writing(&beside) {
            let then = ": give it the owner, the group and the mode of the database that it is beside";
            return Some(said(&beside, kind, NO_WRITING, then));
        }
    }
    let itself = itself(path);
    let folder = itself.parent()?;
    let is_complete = Files::at(path).is_some_and(|files| files.is_whole());
    let kind = refuses_writing(folder).filter(|_| !is_complete)?;
    Some(said(folder, kind, NO_WRITING, ": SQLite makes files beside the database"))
}

/// Refuses a file that other processes may have by another path, as far as that can be seen. SQLite keeps the
/// log and its index beside the path, so clients of two paths would not see each other's locks.
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

/// Since the machine's start. Read before the statement that it is for, which may wait: so a lease never ends
/// later by it than its holder counts on, and another's never sooner.
pub(super) fn up_ms() -> i64 {
    lease_ms(Duration::from_nanos(Clock::System.now().nanos()))
}

/// The start of the machine, until whose next rows go by the time since then, and which of its time namespaces
/// this is, whose clocks differ; `None`: it does not say.
pub(super) fn boot() -> Option<String> {
    Some(format!("{} {}", system::boot_id()?, system::clock_namespace().display()))
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn a_path_is_read_from_the_url() {
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
