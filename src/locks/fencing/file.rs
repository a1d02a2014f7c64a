//! Replacing a whole file, and the register beside it.
//!
//! Other users may write to the folder and plant links. So the path is resolved once, to a name in an open
//! folder, and each system has its own way to keep that from changing.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use uuid::Uuid;

#[cfg(unix)]
use self::unix::{FileLocation, OldFile};
#[cfg(windows)]
use self::windows::{FileLocation, OldFile};

const LONGEST_TOKEN: u64 = 64;

pub(crate) fn write(path: &Path, token: u64, content: &[u8]) -> io::Result<bool> {
    let place = FileLocation::of(path)?;
    let mut register = TokenRegister::beside(&place)?;
    // From here on no other fenced writer replaces the file.
    let old = place.old()?;
    if register.seen()? > token {
        return Ok(false);
    }
    // Fails here, before anything is written, if the owner cannot be kept.
    let mut draft = match TemporaryFile::instead_of(old.as_ref(), &place)
        .and_then(|draft| register.suit(old.as_ref()).map(|()| draft))
    {
        Ok(draft) => draft,
        Err(error) => {
            register.take_back(&place);
            return Err(error);
        }
    };
    // The token comes first: whatever becomes of the content, no older token is accepted.
    register.set(token)?;
    // Syncs the folder, so that a new register is on the disk before the content.
    place.sync()?;
    draft.file.write_all(content)?;
    draft.file.sync_all()?;
    draft.replace()?;
    place.sync()?;
    Ok(true)
}

/// The file with the highest token seen; one process at a time locks it.
struct TokenRegister {
    file: File,
    name: OsString,
    is_new: bool,
}

impl TokenRegister {
    /// `<name>.fence`, locked; created if missing.
    fn beside(place: &FileLocation) -> io::Result<TokenRegister> {
        let mut name = place.name.clone();
        name.push(".fence");
        let (file, is_new) = place.open_register(&name)?;
        Ok(TokenRegister { file, name, is_new })
    }

    fn seen(&mut self) -> io::Result<u64> {
        let mut seen = String::new();
        (&self.file).take(LONGEST_TOKEN).read_to_string(&mut seen)?;
        // Zero bytes: a crash preceded the first write.
        match seen.trim_matches(['\0', ' ', '\n']) {
            "" => Ok(0),
            seen => seen.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    fn suit(&self, old: Option<&OldFile>) -> io::Result<()> {
        old.filter(|_| self.is_new).map_or(Ok(()), |old| old.suit_register(&self.file))
    }

    fn set(&mut self, token: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        write!(self.file, "{token:020}")?;
        self.file.sync_all()
    }

    /// Removes a register beside a file that this user may not write.
    fn take_back(&self, place: &FileLocation) {
        if self.is_new {
            // If the removal fails, a register without a token remains, which does no harm.
            place.remove(&self.name).unwrap_or_default();
        }
    }
}

/// Removed on drop unless renamed to its place.
struct TemporaryFile<'a> {
    place: &'a FileLocation,
    name: OsString,
    file: File,
    is_in_place: bool,
}

impl TemporaryFile<'_> {
    /// A new file in the same folder, with the old one's mode and owner.
    fn instead_of<'a>(old: Option<&OldFile>, place: &'a FileLocation) -> io::Result<TemporaryFile<'a>> {
        // Unpredictable, so that no one can create it first.
        let name = OsString::from(format!(".leasehold-{}", Uuid::new_v4().simple()));
        let file = place.create(&name, old)?;
        let draft = TemporaryFile { place, name, file, is_in_place: false };
        old.map_or(Ok(()), |old| old.suit_new(&draft.file))?;
        Ok(draft)
    }

    fn replace(&mut self) -> io::Result<()> {
        self.place.replace_by(&self.name)?;
        self.is_in_place = true;
        Ok(())
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if !self.is_in_place {
            // A temporary file that cannot be removed does no harm: nothing reads it.
            self.place.remove(&self.name).unwrap_or_default();
        }
    }
}
