//! Unix: all work happens inside the folder that was opened, by names that must not be links.

use std::ffi::OsStr;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RawMode, Stat, Uid, fchmod, fchown, fstat, openat, readlinkat,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The maximum number of links followed, as on Linux.
const LINKS: usize = 40;
/// The mode of a file that replaces none, less the process's umask.
const OPEN_TO_ALL: RawMode = 0o666;
const FOR_THE_OWNER: RawMode = 0o600;

pub(super) struct FileLocation {
    folder: File,
    pub(super) name: OsString,
}

pub(super) struct OldFile(Stat);

impl FileLocation {
    /// Resolves the path. A link at its end is followed only if this user or root owns it: another user's
    /// link could name any file that this user may write.
    pub(super) fn of(path: &Path) -> io::Result<FileLocation> {
        let mut place = FileLocation::from(CWD, path)?;
        for _ in 0..LINKS {
            let Some(link) = place.stat(&place.name)?.filter(|stat| is(stat, FileType::Symlink)) else {
                return Ok(place);
            };
            if !is_trusted(link.st_uid) {
                return Err(refused("the path is another user's link, which is not followed"));
            }
            let target = readlinkat(&place.folder, &place.name, Vec::new())?;
            // The link that was read is the one that was checked.
            let again = place.stat(&place.name)?;
            if again.is_none_or(|again| !is_unchanged(&again, &link)) {
                return Err(refused("the path was changed while it was resolved"));
            }
            place = FileLocation::from(&place.folder, Path::new(OsStr::from_bytes(target.as_bytes())))?;
        }
        Err(Errno::LOOP.into())
    }

    fn from(folder: impl AsFd, path: &Path) -> io::Result<FileLocation> {
        let unusable = || io::Error::new(io::ErrorKind::InvalidInput, "the path does not name a file");
        let name = path.file_name().ok_or_else(unusable)?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(folder, parent.unwrap_or(Path::new(".")), flags, Mode::empty())?;
        Ok(FileLocation { folder: File::from(folder), name })
    }

    fn stat(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        match statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn old(&self) -> io::Result<Option<OldFile>> {
        let old = self.stat(&self.name)?;
        if old.is_some_and(|old| !is(&old, FileType::RegularFile)) {
            return Err(refused("the path leads to something that is no file"));
        }
        Ok(old.map(OldFile))
    }

    /// Opens and locks the register; says whether this call created it.
    pub(super) fn open_register(&self, name: &OsStr) -> io::Result<(File, bool)> {
        // Does not block if the name is a pipe or a device.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        loop {
            let old = self.old()?;
            let (file, is_new) = match openat(&self.folder, name, flags, Mode::empty()) {
                Ok(file) => (file, false),
                Err(Errno::NOENT) => {
                    let mode = if old.is_some() { FOR_THE_OWNER } else { OPEN_TO_ALL };
                    match openat(
                        &self.folder,
                        name,
                        flags | OFlags::CREATE | OFlags::EXCL,
                        Mode::from_raw_mode(mode),
                    ) {
                        Ok(file) => (file, true),
                        Err(Errno::EXIST) => continue,
                        Err(error) => return Err(error.into()),
                    }
                }
                Err(error) => return Err(error.into()),
            };
            let file = File::from(file);
            let opened = fstat(&file)?;
            // A planted register could hold any number, be locked for ever, or be a hard link to any file.
            let is_owned = is_trusted(opened.st_uid) || old.is_some_and(|old| old.0.st_uid == opened.st_uid);
            if !is(&opened, FileType::RegularFile) || opened.st_nlink > 1 || !is_owned {
                return Err(refused(
                    "the file at the token register's path is not a token register of this file's owner",
                ));
            }
            file.lock()?; // ends with the file
            // A register that was replaced meanwhile excludes nobody.
            if self.stat(name)?.is_some_and(|there| is_same(&there, &opened)) {
                return Ok((file, is_new));
            }
        }
    }

    /// Readable by nobody else if it is to replace a file.
    pub(super) fn create(&self, name: &OsStr, old: Option<&OldFile>) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = if old.is_some() { FOR_THE_OWNER } else { OPEN_TO_ALL };
        Ok(File::from(openat(&self.folder, name, flags, Mode::from_raw_mode(mode))?))
    }

    pub(super) fn replace_by(&self, name: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.folder, name, &self.folder, &self.name)?)
    }

    pub(super) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.folder, name, AtFlags::empty())?)
    }

    /// Returns once the folder's names are on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.folder.sync_all()
    }
}

impl OldFile {
    pub(super) fn suit_new(&self, file: &File) -> io::Result<()> {
        suit(file, &self.0, self.0.st_mode)
    }

    /// The same users may write the register and the file.
    pub(super) fn suit_register(&self, file: &File) -> io::Result<()> {
        suit(file, &self.0, self.0.st_mode & OPEN_TO_ALL | FOR_THE_OWNER)
    }
}

/// Gives the file that owner, and the mode without set-user-id and set-group-id bits.
fn suit(file: &File, old: &Stat, mode: RawMode) -> io::Result<()> {
    let made = fstat(file)?;
    let owner = (made.st_uid != old.st_uid).then(|| Uid::from_raw(old.st_uid));
    let group = (made.st_gid != old.st_gid).then(|| Gid::from_raw(old.st_gid));
    if owner.is_some() || group.is_some() {
        fchown(file, owner, group).map_err(|error| {
            let error = io::Error::from(error);
            io::Error::new(error.kind(), format!("the file's owner and group cannot be kept: {error}"))
        })?;
    }
    Ok(fchmod(file, Mode::from_raw_mode(mode & 0o777))?)
}

fn is(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// A name that was replaced and restored has another time.
fn is_unchanged(now: &Stat, before: &Stat) -> bool {
    let is_as_old = (now.st_ctime, now.st_ctime_nsec) == (before.st_ctime, before.st_ctime_nsec);
    is_same(now, before) && is_as_old
}

fn is_trusted(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

fn refused(words: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, words)
}
