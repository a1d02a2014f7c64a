//! The file that a path leads to.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::hosts::unescaped;

/// `sqlite:///path`, where bytes may be written as `%20`.
pub(super) fn path(url: &str) -> Result<PathBuf> {
    let unusable =
        || Error::invalid("connect", "the URL cannot be used; it has the form sqlite:///path/of/the/file");
    let (_, path) = url.split_once("://").ok_or_else(unusable)?;
    if !path.starts_with('/') || path.len() < 2 || path.contains(['?', '#', '\0']) {
        return Err(unusable());
    }
    let path = unescaped(path).ok_or_else(unusable)?;
    if path.contains('\0') { Err(unusable()) } else { Ok(PathBuf::from(path)) }
}

/// The file that the path leads to, by device and inode. It is never opened: closing it would end SQLite's own locks on it.
pub(super) fn inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Whether somebody has said that the file is not to be written.
pub(super) fn is_write_protected(path: &Path) -> bool {
    let may_write = rustix::fs::access(path, rustix::fs::Access::WRITE_OK);
    may_write.is_err_and(|error| error != rustix::io::Errno::NOENT)
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
