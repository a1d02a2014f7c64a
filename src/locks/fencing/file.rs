//! A file that is replaced as a whole, and the register beside it.
//!
//! Others may write to the folder, and put links where a name is expected. So the path is resolved once. From
//! then on everything is done inside the folder that was opened, by names that are refused if they are links.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RawMode, Stat, Uid, fchmod, fchown, fstat, openat, readlinkat,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use uuid::Uuid;

/// The number of links that are followed, as by Linux.
const LINKS: usize = 40;
/// Of a file that takes nobody's place: as the process's umask has it.
const OPEN_TO_ALL: RawMode = 0o666;
const FOR_THE_OWNER: RawMode = 0o600;
/// A register is no longer than that.
const LONGEST_TOKEN: u64 = 64;

pub(crate) fn write(path: &Path, token: u64, content: &[u8]) -> io::Result<bool> {
    let place = FileLocation::of(path)?;
    let mut register = place.register()?;
    // From here on no other fenced writer replaces the file.
    let old = place.old()?;
    if register.seen()? > token {
        return Ok(false);
    }
    // Before anything is written: an owner that cannot be kept is an error here.
    let mut draft =
        match place.draft(old.as_ref()).and_then(|draft| register.suit(old.as_ref()).map(|()| draft)) {
            Ok(draft) => draft,
            Err(error) => {
                register.take_back(&place);
                return Err(error);
            }
        };
    // The token first: from here on no older one gets in, whatever becomes of the content.
    register.set(token)?;
    // A new register is on the disk before the content can be: its name is synced with the folder.
    place.folder.sync_all()?;
    draft.file.write_all(content)?;
    draft.file.sync_all()?;
    draft.replace()?;
    place.folder.sync_all()?;
    Ok(true)
}

/// A name in an open folder.
struct FileLocation {
    folder: File,
    name: OsString,
}

impl FileLocation {
    /// The location that the path leads to. A link at its end is followed if it is this user's or root's:
    /// another's could name any file that this user may write to.
    fn of(path: &Path) -> io::Result<FileLocation> {
        let mut place = FileLocation::from(CWD, path)?;
        for _ in 0..LINKS {
            let Some(link) = place.stat(&place.name)?.filter(|stat| is(stat, FileType::Symlink)) else {
                return Ok(place);
            };
            if !is_trusted(link.st_uid) {
                return Err(refused("the path is another user's link, which is not followed"));
            }
            let target = readlinkat(&place.folder, &place.name, Vec::new())?;
            // The link that was read is the one that was judged.
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

    /// The file that is to be replaced, if there is one.
    fn old(&self) -> io::Result<Option<Stat>> {
        let old = self.stat(&self.name)?;
        if old.is_some_and(|old| !is(&old, FileType::RegularFile)) {
            return Err(refused("the path leads to something that is no file"));
        }
        Ok(old)
    }

    /// `<name>.fence`, locked; made if it is not there.
    fn register(&self) -> io::Result<TokenRegister> {
        let mut name = self.name.clone();
        name.push(".fence");
        // Something that is no file is not waited for.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        loop {
            let old = self.old()?;
            let (file, is_new) = match openat(&self.folder, &name, flags, Mode::empty()) {
                Ok(file) => (file, false),
                Err(Errno::NOENT) => {
                    let mode = if old.is_some() { FOR_THE_OWNER } else { OPEN_TO_ALL };
                    match openat(
                        &self.folder,
                        &name,
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
            // A planted one could hold any number, be locked for ever, or be a second name of any file.
            let is_owned = is_trusted(opened.st_uid) || old.is_some_and(|old| old.st_uid == opened.st_uid);
            if !is(&opened, FileType::RegularFile) || opened.st_nlink > 1 || !is_owned {
                return Err(refused("what lies at the register's name is no register of this file's owner"));
            }
            file.lock()?; // ends with the file
            // One that was taken away meanwhile keeps nobody out.
            if self.stat(&name)?.is_some_and(|there| is_same(&there, &opened)) {
                return Ok(TokenRegister { file, name, is_new });
            }
        }
    }

    /// A new file in the same folder, with the old one's mode and owner.
    fn draft(&self, old: Option<&Stat>) -> io::Result<TemporaryFile<'_>> {
        // Not to be foreseen, so that nobody can be there first.
        let name = OsString::from(format!(".leasehold-{}", Uuid::new_v4().simple()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = if old.is_some() { FOR_THE_OWNER } else { OPEN_TO_ALL };
        let file = File::from(openat(&self.folder, &name, flags, Mode::from_raw_mode(mode))?);
        let draft = TemporaryFile { place: self, name, file, is_in_place: false };
        if let Some(old) = old {
            suit(&draft.file, old, old.st_mode)?;
        }
        Ok(draft)
    }
}

/// The file with the highest token seen. Only one process has it at a time.
struct TokenRegister {
    file: File,
    name: OsString,
    is_new: bool,
}

impl TokenRegister {
    fn seen(&mut self) -> io::Result<u64> {
        let mut seen = String::new();
        (&self.file).take(LONGEST_TOKEN).read_to_string(&mut seen)?;
        // Zero bytes: made, and cut off by a crash before it was first written.
        match seen.trim_matches(['\0', ' ', '\n']) {
            "" => Ok(0),
            seen => seen.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    /// Gives the register the permissions of the file: the same users may write both.
    fn suit(&self, old: Option<&Stat>) -> io::Result<()> {
        match old {
            Some(old) if self.is_new => suit(&self.file, old, old.st_mode & OPEN_TO_ALL | FOR_THE_OWNER),
            _ => Ok(()),
        }
    }

    fn set(&mut self, token: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        write!(self.file, "{token:020}")?;
        self.file.sync_all()
    }

    /// Leaves no register of this user's beside a file that it may not write.
    fn take_back(&self, place: &FileLocation) {
        if self.is_new {
            // At worst a register without a token stays.
            unlinkat(&place.folder, &self.name, AtFlags::empty()).unwrap_or_default();
        }
    }
}

/// Removed again unless it takes its place.
struct TemporaryFile<'a> {
    place: &'a FileLocation,
    name: OsString,
    file: File,
    is_in_place: bool,
}

impl TemporaryFile<'_> {
    fn replace(&mut self) -> io::Result<()> {
        let folder = &self.place.folder;
        renameat(folder, &self.name, folder, &self.place.name)?;
        self.is_in_place = true;
        Ok(())
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if !self.is_in_place {
            // It is nobody's, and never read.
            unlinkat(&self.place.folder, &self.name, AtFlags::empty()).unwrap_or_default();
        }
    }
}

/// Gives a file of this user's the owner of another, and a mode without what makes programs run as somebody
/// else.
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

/// A name that was given to something else and back has another time.
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
