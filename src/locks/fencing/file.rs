//! A file that is replaced as a whole, and the register beside it.
//!
//! Others may write to the folder, and put links where a name is expected. So the path is resolved once, to a
//! name in a folder; how that is kept from being changed differs between the systems.

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

/// A register is no longer than that.
const LONGEST_TOKEN: u64 = 64;

pub(crate) fn write(path: &Path, token: u64, content: &[u8]) -> io::Result<bool> {
    let place = FileLocation::of(path)?;
    let mut register = TokenRegister::beside(&place)?;
    // From here on no other fenced writer replaces the file.
    let old = place.old()?;
    if register.seen()? > token {
        return Ok(false);
    }
    // Before anything is written: an owner that cannot be kept is an error here.
    let mut draft = match TemporaryFile::instead_of(old.as_ref(), &place)
        .and_then(|draft| register.suit(old.as_ref()).map(|()| draft))
    {
        Ok(draft) => draft,
        Err(error) => {
            register.take_back(&place);
            return Err(error);
        }
    };
    // The token first: from here on no older one gets in, whatever becomes of the content.
    register.set(token)?;
    // A new register is on the disk before the content can be: its name is synced with the folder.
    place.sync()?;
    draft.file.write_all(content)?;
    draft.file.sync_all()?;
    draft.replace()?;
    place.sync()?;
    Ok(true)
}

/// The file with the highest token seen. Only one process has it at a time.
struct TokenRegister {
    file: File,
    name: OsString,
    is_new: bool,
}

impl TokenRegister {
    /// `<name>.fence`, locked; made if it is not there.
    fn beside(place: &FileLocation) -> io::Result<TokenRegister> {
        let mut name = place.name.clone();
        name.push(".fence");
        let (file, is_new) = place.open_register(&name)?;
        Ok(TokenRegister { file, name, is_new })
    }

    fn seen(&mut self) -> io::Result<u64> {
        let mut seen = String::new();
        (&self.file).take(LONGEST_TOKEN).read_to_string(&mut seen)?;
        // Zero bytes: made, and cut off by a crash before it was first written.
        match seen.trim_matches(['\0', ' ', '\n']) {
            "" => Ok(0),
            seen => seen.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    /// Gives a new register the permissions of the file: the same users may write both.
    fn suit(&self, old: Option<&OldFile>) -> io::Result<()> {
        old.filter(|_| self.is_new).map_or(Ok(()), |old| old.suit_register(&self.file))
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
            place.remove(&self.name).unwrap_or_default();
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
    /// A new file in the same folder, with the old one's mode and owner.
    fn instead_of<'a>(old: Option<&OldFile>, place: &'a FileLocation) -> io::Result<TemporaryFile<'a>> {
        // Not to be foreseen, so that nobody can be there first.
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
            // It is nobody's, and never read.
            self.place.remove(&self.name).unwrap_or_default();
        }
    }
}
