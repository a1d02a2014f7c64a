//! Windows: the folder is held open, so that nobody can replace it, and a name that is a reparse point (a
//! link, a junction) is refused.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use winapi_util::file::information;

use crate::system::{file_id, id_of};

const REPARSE_POINT: u32 = 0x0400;
const OPEN_REPARSE_POINT: u32 = 0x0020_0000;
const BACKUP_SEMANTICS: u32 = 0x0200_0000; // folders too
const LIST_DIRECTORY: u32 = 1;
/// Others may read and write, but not delete or rename.
const SHARE_READ_AND_WRITE: u32 = 1 | 2;

pub(super) struct FileLocation {
    /// With the prefix `\\?\`, behind which Windows takes each name literally, also `NUL` or one with a final dot.
    folder: PathBuf,
    pub(super) name: OsString,
    _held: File,
}

pub(super) struct OldFile;

impl FileLocation {
    /// Resolves the path. A link at its end is not followed: Windows does not say whose it is.
    pub(super) fn of(path: &Path) -> io::Result<FileLocation> {
        let unusable = || io::Error::new(io::ErrorKind::InvalidInput, "the path does not name a file");
        let name = path.file_name().ok_or_else(unusable)?.to_owned();
        // A colon precedes the name of a stream within a file.
        if name.to_string_lossy().contains(':') {
            return Err(unusable());
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = fs::canonicalize(parent.unwrap_or(Path::new(".")))?;
        let held = OpenOptions::new()
            .access_mode(LIST_DIRECTORY)
            .share_mode(SHARE_READ_AND_WRITE)
            .custom_flags(BACKUP_SEMANTICS | OPEN_REPARSE_POINT)
            .open(&folder)?;
        // The folder may have been replaced between the two lines above.
        if !is_plain(&held.metadata()?) || !held.metadata()?.is_dir() {
            return Err(refused("the path was changed while it was resolved"));
        }
        Ok(FileLocation { folder, name, _held: held })
    }

    fn at(&self, name: &OsStr) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn old(&self) -> io::Result<Option<OldFile>> {
        match fs::symlink_metadata(self.at(&self.name)) {
            Ok(old) if !is_plain(&old) || !old.is_file() => {
                Err(refused("the path leads to something that is no file"))
            }
            Ok(old) if old.permissions().readonly() => Err(refused("the file is read-only")),
            Ok(_) => Ok(Some(OldFile)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens and locks the register; says whether this call created it.
    pub(super) fn open_register(&self, name: &OsStr) -> io::Result<(File, bool)> {
        let path = self.at(name);
        loop {
            let options = || {
                let mut options = OpenOptions::new();
                options.read(true).write(true).custom_flags(OPEN_REPARSE_POINT);
                options
            };
            let (file, is_new) = match options().open(&path) {
                Ok(file) => (file, false),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match options().create_new(true).open(&path) {
                        Ok(file) => (file, true),
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                        Err(error) => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            };
            let opened = file.metadata()?;
            // A planted register could be a link, or a hard link, to any file.
            if !is_plain(&opened) || !opened.is_file() || information(&file)?.number_of_links() > 1 {
                return Err(refused("the file at the token register's path is not a token register"));
            }
            file.lock()?; // ends with the file
            // A register that was replaced meanwhile excludes nobody.
            if id_of(&file).is_some_and(|opened| file_id(&path) == Some(opened)) {
                return Ok((file, is_new));
            }
        }
    }

    pub(super) fn create(&self, name: &OsStr, _old: Option<&OldFile>) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).open(self.at(name))
    }

    pub(super) fn replace_by(&self, name: &OsStr) -> io::Result<()> {
        fs::rename(self.at(name), self.at(&self.name))
    }

    pub(super) fn remove(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_file(self.at(name))
    }

    /// Does nothing: a folder cannot be synced, and NTFS journals its names.
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "it can fail on Unix")]
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A new file has the owner and the permissions that its folder gives.
#[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "they can fail on Unix")]
impl OldFile {
    pub(super) fn suit_new(&self, _file: &File) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn suit_register(&self, _file: &File) -> io::Result<()> {
        Ok(())
    }
}

fn is_plain(file: &Metadata) -> bool {
    file.file_attributes() & REPARSE_POINT == 0
}

fn refused(words: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, words)
}
