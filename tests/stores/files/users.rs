//! `fencing::write_file`: modes, owners and links, also in folders in which other users may write.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::fencing;
use tempfile::TempDir;

use super::{beside, fences, names, refused};
use crate::support::programs::prefix;
use crate::support::{LONG, missing, now, run, test_name};

const NEEDS_ROOT: &str = "only root can act for two users";
const STRANGER: u32 = 54_321;

fn shared() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o1777);
    folder
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn is_root(folder: &Path) -> bool {
    fs::metadata(folder).unwrap().uid() == 0
}

#[test]
fn a_fenced_write_keeps_mode_and_owner_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let (_, fence) = fences();
    for kept in [0o600, 0o640, 0o444, 0o666] {
        fs::write(&path, "old").unwrap();
        set_mode(&path, kept);
        assert!(fencing::write_file(&path, fence, b"new").unwrap());
        assert_eq!(mode(&path), kept);
        assert_eq!(mode(&beside(&path, ".fence")), kept & 0o666 | 0o600, "the token file's mode");
        fs::remove_file(&path).unwrap();
        fs::remove_file(beside(&path, ".fence")).unwrap();
    }
    // The write clears the set-user-ID and set-group-ID bits: new content must not run as another user.
    fs::write(&path, "old").unwrap();
    set_mode(&path, 0o6755);
    assert!(fencing::write_file(&path, fence, b"new").unwrap());
    assert_eq!(mode(&path), 0o755);
    if !is_root(folder.path()) {
        return missing(NEEDS_ROOT);
    }
    let path = folder.path().join("another's");
    fs::write(&path, "old").unwrap();
    chown(&path, Some(STRANGER), Some(STRANGER + 1)).unwrap();
    set_mode(&path, 0o600);
    assert!(fencing::write_file(&path, fence, b"new").unwrap());
    for path in [path.clone(), beside(&path, ".fence")] {
        let kept = fs::metadata(&path).unwrap();
        assert_eq!((kept.uid(), kept.gid(), kept.mode() & 0o7777), (STRANGER, STRANGER + 1, 0o600));
    }
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn a_fenced_write_that_cannot_keep_the_owner_is_refused() {
    const FOLDER: &str = "LEASEHOLD_TEST_FOLDER";
    let (_, fence) = fences();
    if let Some(folder) = std::env::var_os(FOLDER) {
        let folder = PathBuf::from(folder);
        refused(fencing::write_file(&folder.join("root's"), fence, b"new"), "owner and group cannot be kept");
        refused(
            fencing::write_file(&folder.join("group's"), fence, b"new"),
            "owner and group cannot be kept",
        );
        assert!(fencing::write_file(&folder.join("own"), fence, b"new").unwrap());
        return;
    }
    let user = prefix(&["nobody", "daemon"]);
    if user.is_empty() {
        return missing(NEEDS_ROOT);
    }
    let folder = tempfile::tempdir().unwrap();
    // The other user may be unable to read this test program, and so runs a copy.
    let program = folder.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    set_mode(&program, 0o755);
    let number = |option: &str| -> u32 {
        let at = user.iter().position(|word| word == option).unwrap() + 1;
        let (_, text) = run(&["id", "-u", &user[at]], |command| command);
        text.trim().parse().or_else(|_| user[at].parse()).unwrap()
    };
    let uid = number("--reuid");
    for (name, owner, group) in [("root's", 0, 0), ("group's", uid, 0), ("own", uid, u32::MAX)] {
        let path = folder.path().join(name);
        fs::write(&path, "old").unwrap();
        let at = user.iter().position(|word| word == "--regid").unwrap() + 1;
        let own: u32 = user[at].parse().unwrap();
        chown(&path, Some(owner), Some(if group == u32::MAX { own } else { group })).unwrap();
        set_mode(&path, 0o666);
    }
    set_mode(folder.path(), 0o777);
    let name = test_name();
    let command: Vec<&str> = user.iter().map(String::as_str).collect();
    let command = [command, vec![program.to_str().unwrap(), "--exact", &name, "--nocapture"]].concat();
    let (good, text) = run(&command, |command| command.env(FOLDER, folder.path()).current_dir(folder.path()));
    assert!(good && text.contains("1 passed"), "{text}");
    assert_eq!(fs::read(folder.path().join("root's")).unwrap(), b"old");
    assert_eq!(fs::read(folder.path().join("own")).unwrap(), b"new");
    assert_eq!(names(folder.path()), ["group's", "own", "own.fence", "root's", "test"]);
    assert!(fencing::write_file(&folder.path().join("root's"), fence, b"new").unwrap());
}

#[test]
fn a_fenced_write_follows_no_planted_link() {
    let folder = shared();
    let safe = tempfile::tempdir().unwrap();
    let (_, fence) = fences();
    let victim = safe.path().join("victim");
    fs::write(&victim, "").unwrap(); // empty, like a token file before the first token
    let planted = |name: &str, ending: &str| {
        let path = folder.path().join(name);
        symlink(&victim, beside(&path, ending)).unwrap();
        path
    };
    // The writer's temporary file has a random name, so the writer does not open a link with a guessed name.
    let path = planted("by its draft", ".draft");
    assert!(fencing::write_file(&path, fence, b"new").unwrap());
    assert_eq!((fs::read(&path).unwrap(), fs::read(&victim).unwrap()), (b"new".to_vec(), vec![]));
    let path = planted("by its register", ".fence");
    assert!(fencing::write_file(&path, fence, b"new").is_err());
    assert!(!path.exists());
    let path = folder.path().join("by a hard link");
    let inside = folder.path().join("victim");
    fs::write(&inside, "").unwrap();
    fs::hard_link(&inside, beside(&path, ".fence")).unwrap();
    refused(fencing::write_file(&path, fence, b"new"), "no register of this file's owner");
    for victim in [&victim, &inside] {
        assert_eq!(fs::read(victim).unwrap(), b"");
    }
    let path = folder.path().join("pipe");
    let (good, text) =
        run(&["mkfifo", path.to_str().unwrap(), beside(&path, "2.fence").to_str().unwrap()], |command| {
            command
        });
    assert!(good, "{text}");
    refused(fencing::write_file(&path, fence, b"new"), "no file");
    refused(fencing::write_file(&beside(&path, "2"), fence, b"new"), "no register of this file's owner");
    refused(fencing::write_file(folder.path(), fence, b"new"), "no file");
    if !is_root(safe.path()) {
        return missing(NEEDS_ROOT);
    }
    let path = planted("by itself", "");
    lchown(&path, Some(STRANGER), None).unwrap();
    refused(fencing::write_file(&path, fence, b"new"), "a link");
    let path = folder.path().join("by another's register");
    fs::write(beside(&path, ".fence"), "0").unwrap();
    chown(beside(&path, ".fence"), Some(STRANGER), None).unwrap();
    refused(fencing::write_file(&path, fence, b"new"), "no register of this file's owner");
    assert_eq!(fs::read(&victim).unwrap(), b"");
    assert_eq!(names(safe.path()), ["victim"]);
}

#[test]
fn a_link_that_appears_meanwhile_cannot_redirect_a_fenced_write() {
    let (folder, safe) = (shared(), tempfile::tempdir().unwrap());
    if !is_root(safe.path()) {
        return missing(NEEDS_ROOT);
    }
    let (_, fence) = fences();
    let victim = safe.path().join("victim");
    fs::write(&victim, "the victim's").unwrap();
    let path = folder.path().join("report");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = crate::support::Raise(&over);
        scope.spawn(|| {
            let link = folder.path().join("link");
            while !over.load(Ordering::SeqCst) {
                symlink(&victim, &link).unwrap();
                lchown(&link, Some(STRANGER), None).unwrap();
                fs::rename(&link, &path).unwrap();
                fs::write(&link, "a file").unwrap();
                fs::rename(&link, &path).unwrap();
            }
        });
        let (mut wrote, mut did_not, begun) = (0, 0, now());
        while wrote < 50 || did_not < 50 {
            let has_written = fencing::write_file(&path, fence, b"new").is_ok();
            *(if has_written { &mut wrote } else { &mut did_not }) += 1;
            assert!(begun.elapsed() < LONG, "{wrote} written, {did_not} refused");
        }
    });
    assert_eq!(fs::read(&victim).unwrap(), b"the victim's");
    assert_eq!(names(safe.path()), ["victim"]);
}

#[test]
fn fenced_writes_follow_a_linked_folder_but_no_linked_file() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let (old, new) = fences();
    let links = ["file", "folder", "circle"].map(|name| folder.path().join(name));
    symlink("inner/report", &links[0]).unwrap();
    symlink("inner", &links[1]).unwrap();
    symlink("circle", &links[2]).unwrap();
    for link in [&links[0], &links[2]] {
        refused(fencing::write_file(link, new, b"x"), "a link");
    }
    assert!(fencing::write_file(&links[1].join("report"), new, b"new").unwrap());
    assert!(!fencing::write_file(&inner.join("report"), old, b"old").unwrap());
    refused(fencing::write_file(&links[0], new, b"x"), "a link");
    assert_eq!(names(&inner), ["report", "report.fence"]);
    assert_eq!(names(folder.path()), ["circle", "file", "folder", "inner"]);
}

#[test]
fn a_new_fenced_file_gets_the_default_mode() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report");
    assert!(fencing::write_file(&path, fences().0, b"first").unwrap());
    fs::write(folder.path().join("plain"), "").unwrap();
    assert_eq!(mode(&path), mode(&folder.path().join("plain")));
}
