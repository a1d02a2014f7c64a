//! `fencing::write_file`: only the newest token may write. A *token file* beside the file has that token.

#[cfg(unix)]
mod users;

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use leasehold::{FencingToken, fencing};

use crate::support::prelude::*;

fn fences() -> (FencingToken, FencingToken) {
    let lock = LockClient::in_memory().get_fenced_lock("file");
    let next = || {
        let guard = lock.acquire().unwrap();
        guard.fencing_token().unwrap()
    };
    (next(), next())
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn names(folder: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

#[track_caller]
fn refused(written: leasehold::Result<bool>, cause: &str) {
    let error = fails(written, ErrorKind::Resource);
    let text = std::error::Error::source(&error).unwrap().to_string();
    assert!(text.contains(cause), "{text}");
}

#[test]
fn only_the_newest_token_writes_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report");
    let (old, new) = fences();
    assert!(fencing::write_file(&path, old, b"first").unwrap());
    assert!(fencing::write_file(&path, new, b"second").unwrap());
    assert!(!fencing::write_file(&path, old, b"late").unwrap());
    assert!(fencing::write_file(&path, new, b"third").unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"third");
    assert_eq!(names(folder.path()), ["report", "report.fence"]);
}

#[test]
fn a_fenced_write_with_a_linked_token_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (victim, path) = (folder.path().join("victim"), folder.path().join("report"));
    fs::write(&victim, "0").unwrap();
    fs::hard_link(&victim, beside(&path, ".fence")).unwrap();
    refused(fencing::write_file(&path, fences().0, b"new"), "no register of this file's owner");
    assert_eq!(fs::read(&victim).unwrap(), b"0");
    fs::create_dir(folder.path().join("inner")).unwrap();
    refused(fencing::write_file(&folder.path().join("inner"), fences().0, b"new"), "no file");
    assert!(!path.exists());
}

#[cfg(windows)]
#[test]
fn fenced_writes_refuse_read_only_files_and_alternate_streams() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report");
    fs::write(&path, "old").unwrap();
    refused(fencing::write_file(&folder.path().join("report:stream"), fences().0, b"new"), "does not name");
    let set = |is_read_only| {
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(is_read_only);
        fs::set_permissions(&path, permissions).unwrap();
    };
    set(true);
    refused(fencing::write_file(&path, fences().0, b"new"), "read-only");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    set(false);
    assert!(fencing::write_file(&path, fences().0, b"new").unwrap());
}

/// The writer locks the token file until the file is written, and does not use a token file that was replaced
/// before it got the lock.
#[test]
fn a_fenced_write_heeds_a_token_file_replaced_meanwhile() {
    let (older, newer) = fences();
    for is_replaced in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(fencing::write_file(&path, older, b"old").unwrap());
        let register = beside(&path, ".fence");
        let locked = fs::OpenOptions::new().read(true).write(true).open(&register).unwrap();
        locked.lock().unwrap();
        let (told, is_told) = unbounded();
        std::thread::scope(|scope| {
            let writing = || told.send(fencing::write_file(&path, older, b"late").unwrap()).unwrap();
            std::thread::Builder::new().spawn_scoped(scope, writing).unwrap();
            assert!(is_told.recv_timeout(ms(50)).is_err(), "the write did not wait for the token file");
            let token = format!("{:020}", newer.get());
            if is_replaced {
                fs::remove_file(&register).unwrap();
                fs::write(&register, token).unwrap();
            } else {
                // On Windows only the handle that has the lock may write to the file.
                (&locked).write_all(token.as_bytes()).unwrap();
            }
            drop(locked);
            assert!(!is_told.recv_timeout(LONG).unwrap(), "the older write was accepted");
        });
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}
