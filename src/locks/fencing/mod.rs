//! Fenced writes: the resource refuses a writer whose token is older than one it has seen.
//!
//! A holder that was stopped for longer than its lease can still write after the lock is lost. No lease can
//! prevent that, but the resource can: it stores the highest token beside the data and compares. This module
//! does so for Redis keys, SQL rows and files. All writers of a resource must use it with tokens of one lock.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::FencingToken;

/// A Redis script that sets a key unless a newer token set it: `EVAL script 2 key token-key token value`.
///
/// | | |
/// |---|---|
/// | `KEYS[1]` | the data, a string |
/// | `KEYS[2]` | the highest token seen; in a cluster in the same slot, as `{stock}:fence` beside `{stock}` |
/// | `ARGV[1]` | the writer's token: [`FencingToken::get`] in decimal |
/// | `ARGV[2]` | the value |
///
/// Returns 1 if the script wrote, 0 if a newer token wrote before. For data of other types write a script
/// that also compares the tokens and writes.
pub const REDIS_SET: &str = include_str!("fenced_set.lua");

/// The `WHERE` condition of an `UPDATE`, which must also set the column to the writer's token. If the update
/// changes no row, the write was refused.
///
/// `column` keeps the highest token seen (a 64-bit integer; may be null at first), `parameter` stands for
/// the writer's token: `$2`, `?`, `:fence`.
///
/// Neither argument can inject SQL. A column is an identifier, plain or quoted (`fence`, `stock.fence`,
/// `"Fence"`); a parameter is `?`, or a number or name after `$`, `?`, `:` or `@`, or a decimal token, each
/// with or without a type after `::`. Any other text makes a condition that is never true.
///
/// # Examples
/// ```
/// use leasehold::fencing;
///
/// let statement = format!(
///     "UPDATE stock SET amount = $1, fence = $2 WHERE item = $3 AND {}",
///     fencing::sql_condition("fence", "$2"),
/// );
/// assert!(statement.ends_with("AND (fence IS NULL OR fence <= $2)"));
/// ```
#[must_use]
pub fn sql_condition(column: &str, parameter: &str) -> String {
    if !is_column(column) || !is_parameter(parameter) {
        return "(1 = 0)".to_owned();
    }
    format!("({column} IS NULL OR {column} <= {parameter})")
}

fn is_column(text: &str) -> bool {
    let is_quoted = |part: &str| {
        [('"', '"'), ('`', '`'), ('[', ']')].into_iter().any(|(first, last)| {
            let within = part.strip_prefix(first).and_then(|rest| rest.strip_suffix(last));
            let is_ending = |c: char| c == first || c == last || c == '.' || c == '\\' || c.is_control();
            within.is_some_and(|name| !name.is_empty() && !name.contains(is_ending))
        })
    };
    text.split('.').all(|part| is_identifier(part) || is_quoted(part))
}

fn is_parameter(text: &str) -> bool {
    let (parameter, cast) = text.split_once("::").map_or((text, None), |(text, cast)| (text, Some(cast)));
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_named = parameter.strip_prefix(['$', '?', ':', '@']).is_some_and(is_word);
    let is_token = !parameter.is_empty() && parameter.bytes().all(|byte| byte.is_ascii_digit());
    (parameter == "?" || is_named || is_token) && cast.is_none_or(is_identifier)
}

fn is_identifier(text: &str) -> bool {
    let starts_well = text.starts_with(|c: char| c.is_alphabetic() || c == '_');
    starts_well && text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$')
}

/// Replaces a file's content unless a newer token wrote it: then returns `false`, with nothing changed.
///
/// A second file, the register `<name>.fence`, keeps the highest token seen and is locked during the write. A
/// third file, with a random name, takes the content and then replaces the file by a rename, so readers see
/// the old content or the new, never a part. A process killed in between leaves the third file,
/// `.leasehold-<32 digits>`, which may be deleted.
///
/// The new file has the mode, owner and group of the old one, as does a new register, without execute bits.
/// If this user may not set them, nothing is written. The new file lacks set-user-id and set-group-id bits,
/// access control lists, other attributes, and hard links of the old one.
///
/// The folder may be one to which other users write. A path that ends in a link is refused, and links at the
/// names of the register and the third file are never followed. A register must belong to this user, root or
/// the file's owner.
///
/// On Windows a read-only file and an alternate data stream are refused too. The new file gets the folder's
/// permissions for new files. While another process reads the file without sharing its deletion, the file
/// cannot be replaced.
///
/// # Blocking
/// While another process writes the same file; and for the disk: token and content are synced.
///
/// # Errors
/// Of kind [`Resource`](ErrorKind::Resource), with the cause: a file could not be opened, locked, read or
/// written. The content is the old or the new. No token older than the content's will be accepted.
///
/// # Examples
/// ```
/// use leasehold::{LockClient, fencing};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let report = folder.path().join("report.txt");
/// let lock = LockClient::in_memory().get_fenced_lock("report");
/// let old = lock.lock_and_get_token()?;
/// lock.unlock()?;
/// let new = lock.lock_and_get_token()?;
/// assert!(fencing::write_file(&report, new, b"new")?);
/// assert!(!fencing::write_file(&report, old, b"old")?);
/// assert_eq!(std::fs::read(&report).unwrap(), b"new");
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn write_file(path: &Path, fence: FencingToken, content: &[u8]) -> Result<bool> {
    let failed = |error: io::Error| {
        let words = format!("the file, or its token register beside it, could not be written: {error}");
        Error::new(ErrorKind::Resource, "write_file", words).with_source(error)
    };
    replace(path, fence.get(), content).map_err(failed)
}

// Other users may write to the folder and plant links. Therefore the folder's path is resolved once, and each
// name in the folder is checked to be a file, not a link, before its use.

fn replace(path: &Path, token: u64, content: &[u8]) -> io::Result<bool> {
    let path = in_folder(path)?;
    let mut register = TokenRegister::beside(&path)?;
    // The register is locked from here on, so no other fenced writer replaces the file.
    let old = old(&path)?;
    if register.seen()? > token {
        return Ok(false);
    }
    // If the new file cannot have the old file's owner, this fails before anything is written.
    let mut draft = match TemporaryFile::instead_of(old.as_ref(), &path)
        .and_then(|draft| register.copy_owner(old.as_ref()).map(|()| draft))
    {
        Ok(draft) => draft,
        Err(error) => {
            register.remove_if_new();
            return Err(error);
        }
    };
    // Stores the token before the content: even after a crash in between no older token is accepted.
    register.set(token)?;
    // Syncs the name of a new register too, so that a crash leaves no new content without its register.
    system::sync_folder(&path)?;
    draft.file.write_all(content)?;
    draft.file.sync_all()?;
    fs::rename(&draft.path, &path)?;
    draft.is_in_place = true;
    system::sync_folder(&path)?;
    Ok(true)
}

fn in_folder(path: &Path) -> io::Result<PathBuf> {
    let unusable = || io::Error::new(io::ErrorKind::InvalidInput, "the path does not name a file");
    // On Windows a colon precedes the name of a stream within a file.
    let is_stream = |name: &OsStr| cfg!(windows) && name.to_string_lossy().contains(':');
    let name = path.file_name().filter(|name| !is_stream(name)).ok_or_else(unusable)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok(fs::canonicalize(parent.unwrap_or(Path::new(".")))?.join(name))
}

fn there(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(there) => Ok(Some(there)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn old(path: &Path) -> io::Result<Option<Metadata>> {
    let old = there(path)?;
    match &old {
        Some(old) if !old.is_file() => {
            Err(refused("the path names a link or something else that is no file"))
        }
        // Only on Windows: on Unix the folder's permissions decide whether a file can be replaced.
        Some(old) if cfg!(windows) && old.permissions().readonly() => Err(refused("the file is read-only")),
        _ => Ok(()),
    }?;
    Ok(old)
}

fn refused(words: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, words)
}

/// The mode of a new file. If there is an `old` file, only the owner can read the new one until `copy_owner`
/// sets the old file's mode. Otherwise the umask limits the mode.
fn mode(old: Option<&Metadata>) -> u32 {
    if old.is_some() { FOR_THE_OWNER } else { FOR_ALL }
}

const FOR_ALL: u32 = 0o666;
const FOR_THE_OWNER: u32 = 0o600;
const LONGEST_TOKEN: u64 = 64;

/// The file with the highest token seen; one process at a time locks it.
struct TokenRegister {
    file: File,
    path: PathBuf,
    is_new: bool,
}

impl TokenRegister {
    /// Opens and locks the register `<name>.fence` beside the file, and creates it if missing.
    fn beside(file: &Path) -> io::Result<TokenRegister> {
        let mut path = OsString::from(file);
        path.push(".fence");
        let path = PathBuf::from(path);
        loop {
            let old = old(file)?;
            let mut options = system::opening(mode(old.as_ref()));
            options.read(true).write(true);
            let (file, is_new) = match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match options.create_new(true).open(&path) {
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                        opened => (opened?, true),
                    }
                }
                opened => (opened?, false),
            };
            let opened = file.metadata()?;
            // Another user's register could hold any number, stay locked, or be a hard link to a file that
            // the token would overwrite.
            if !opened.is_file() || !system::is_only_name(&file)? || !system::is_owned(&opened, old.as_ref())
            {
                return Err(refused("the file at the register's path is no register of this file's owner"));
            }
            file.lock()?; // closing the file unlocks it
            // Starts again if another file replaced the register meanwhile: this lock then excludes nobody.
            if system::is_at(&file, &path) {
                return Ok(TokenRegister { file, path, is_new });
            }
        }
    }

    fn seen(&mut self) -> io::Result<u64> {
        let mut seen = String::new();
        (&self.file).take(LONGEST_TOKEN).read_to_string(&mut seen)?;
        // Empty or only NUL bytes: a crash came before the first token was on the disk.
        match seen.trim_matches(['\0', ' ', '\n']) {
            "" => Ok(0),
            seen => seen.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    /// Gives a new register the file's owner, group and permissions, so that the same users can write both.
    fn copy_owner(&self, old: Option<&Metadata>) -> io::Result<()> {
        let old = old.filter(|_| self.is_new);
        old.map_or(Ok(()), |old| system::copy_owner(&self.file, old, |mode| mode & FOR_ALL | FOR_THE_OWNER))
    }

    fn set(&mut self, token: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        write!(self.file, "{token:020}")?;
        self.file.sync_all()
    }

    fn remove_if_new(&self) {
        if self.is_new {
            // If the removal fails, an empty register remains, which counts as token zero.
            fs::remove_file(&self.path).unwrap_or_default();
        }
    }
}

/// A file that is removed on drop, unless it was renamed to the final name.
struct TemporaryFile {
    path: PathBuf,
    file: File,
    is_in_place: bool,
}

impl TemporaryFile {
    /// Creates a file in the folder of `path`, with the mode and owner of `old`, if given.
    fn instead_of(old: Option<&Metadata>, path: &Path) -> io::Result<TemporaryFile> {
        // The name is unpredictable, so that no one can create the file first.
        let path = path.with_file_name(format!(".leasehold-{}", Uuid::new_v4().simple()));
        let file = system::opening(mode(old)).write(true).create_new(true).open(&path)?;
        let draft = TemporaryFile { path, file, is_in_place: false };
        old.map_or(Ok(()), |old| system::copy_owner(&draft.file, old, |mode| mode))?;
        Ok(draft)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.is_in_place {
            fs::remove_file(&self.path).unwrap_or_default();
        }
    }
}

#[cfg(unix)]
mod system {
    use std::fs::{self, File, Metadata, OpenOptions, Permissions};
    use std::io;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
    use std::path::Path;

    use rustix::fs::OFlags;
    use rustix::process::geteuid;

    /// Options that open a file, follow no link, and do not block if the name is a pipe or a device.
    pub(super) fn opening(mode: u32) -> OpenOptions {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let mut options = OpenOptions::new();
        options.mode(mode).custom_flags(flags.cast_signed());
        options
    }

    /// Whether the file has at most one name; a file that was just removed has none.
    pub(super) fn is_only_name(file: &File) -> io::Result<bool> {
        Ok(file.metadata()?.nlink() <= 1)
    }

    pub(super) fn is_owned(opened: &Metadata, old: Option<&Metadata>) -> bool {
        is_trusted(opened.uid()) || old.is_some_and(|old| old.uid() == opened.uid())
    }

    fn is_trusted(user: u32) -> bool {
        user == 0 || user == geteuid().as_raw()
    }

    pub(super) fn is_at(file: &File, path: &Path) -> bool {
        let id = |found: io::Result<Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
        id(fs::symlink_metadata(path)).is_some_and(|there| id(file.metadata()) == Some(there))
    }

    /// Gives `file` the owner and group of `old`, and the mode that `mode` makes of the old one, without the
    /// set-user-id and set-group-id bits.
    pub(super) fn copy_owner(file: &File, old: &Metadata, mode: impl Fn(u32) -> u32) -> io::Result<()> {
        let made = file.metadata()?;
        let owner = (made.uid() != old.uid()).then(|| old.uid());
        let group = (made.gid() != old.gid()).then(|| old.gid());
        if owner.or(group).is_some() {
            fchown(file, owner, group).map_err(|error| {
                io::Error::new(error.kind(), format!("the file's owner and group cannot be kept: {error}"))
            })?;
        }
        file.set_permissions(Permissions::from_mode(mode(old.mode()) & 0o777))
    }

    pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
        File::open(path.parent().unwrap_or(path))?.sync_all()
    }
}

/// The same functions on Windows. A new file has its folder's owner and permissions, so none are copied. A
/// folder cannot be synced, and need not be, since NTFS journals its names.
#[cfg(windows)]
#[expect(clippy::unnecessary_wraps, reason = "they can fail on Unix")]
mod system {
    use std::fs::{File, Metadata, OpenOptions};
    use std::io;
    use std::os::windows::fs::OpenOptionsExt;
    use std::path::Path;

    use winapi_util::file::information;

    use crate::system::{file_id, id_of};

    pub(super) fn opening(_mode: u32) -> OpenOptions {
        const OPEN_REPARSE_POINT: u32 = 0x0020_0000;
        let mut options = OpenOptions::new();
        options.custom_flags(OPEN_REPARSE_POINT);
        options
    }

    pub(super) fn is_only_name(file: &File) -> io::Result<bool> {
        Ok(information(file)?.number_of_links() <= 1)
    }

    pub(super) fn is_owned(_opened: &Metadata, _old: Option<&Metadata>) -> bool {
        true
    }

    pub(super) fn is_at(file: &File, path: &Path) -> bool {
        id_of(file).is_some_and(|opened| file_id(path) == Some(opened))
    }

    pub(super) fn copy_owner(_file: &File, _old: &Metadata, _mode: impl Fn(u32) -> u32) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn sync_folder(_path: &Path) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_column_or_parameter_makes_a_condition_never_true() {
        for column in [
            "fence",
            "stock.fence",
            "shop.stock.fence",
            "_f1",
            "\"Fence no\"",
            "`fence`",
            "s.[fence]",
            "größe",
        ] {
            for parameter in ["?", "?3", "$2", ":fence", "@P1", "$2::bigint", "42"] {
                let condition = sql_condition(column, parameter);
                assert_eq!(condition, format!("({column} IS NULL OR {column} <= {parameter})"));
            }
        }
        let never = "(1 = 0)";
        for column in [
            "",
            ".",
            "fence.",
            "1fence",
            "fence OR 1=1",
            "fence;DROP TABLE stock",
            "fence--",
            "fence/*",
            "\"a\"b\"",
            "\"",
            "\"\"",
            "'fence'",
            "f(x)",
            "fence\n",
            "\"a\" OR \"b\"",
            "[a]]",
            "`a``b`",
            "\"a\\\"",
        ] {
            assert_eq!(sql_condition(column, "?"), never, "{column:?}");
        }
        for parameter in [
            "",
            "$",
            ":",
            "? OR 1=1",
            "$1)",
            "0 OR 1=1",
            "-1",
            "'1'",
            "fence",
            "$1::",
            "$1::int4 OR 1",
            "??",
            "1;--",
        ] {
            assert_eq!(sql_condition("fence", parameter), never, "{parameter:?}");
        }
    }
}
