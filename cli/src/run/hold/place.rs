//! The private folder of the sockets of `hold`. The handle that `hold` prints contains its socket's path.

use std::fs::{DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::clock::Moment;
use crate::run::family;
use crate::run::hold::shell::Shell;

const NOTE: &str = "for";

/// The folders that may be the private one, the preferred one first. Another user can take the name below the
/// temporary folder, so the last candidate is one that no other user can create.
fn folders() -> Vec<PathBuf> {
    let user = geteuid();
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let named = named.filter(|folder| folder.is_absolute() && is_own(folder).unwrap_or(false));
    if let Some(named) = named {
        return vec![named.join("leasehold")];
    }
    let run = if user.is_root() { "/run".into() } else { format!("/run/user/{}", user.as_raw()) };
    let temporary = std::env::temp_dir().join(format!("leasehold-{}", user.as_raw()));
    vec![temporary, Path::new(&run).join("leasehold")]
}

/// Whether no process of this user has asked for `text` before, or whether that cannot be known. Each first
/// call leaves a file in the private folder, which most systems remove at boot.
pub(crate) fn is_first(text: &str) -> bool {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let note = |folder: PathBuf| File::create_new(folder.join(format!("said-{:016x}", hasher.finish())));
    !matches!(made().and_then(note), Err(error) if error.kind() == ErrorKind::AlreadyExists)
}

pub(super) fn new() -> std::io::Result<PathBuf> {
    // A process begins only one hold, so pid and time are unique.
    Ok(made()?.join(format!("{}-{:x}", std::process::id(), Moment::now().nanos())))
}

fn made() -> std::io::Result<PathBuf> {
    first_usable(&folders())
}

fn first_usable(folders: &[PathBuf]) -> std::io::Result<PathBuf> {
    let mut refused = None;
    for folder in folders {
        match usable(folder) {
            Ok(()) => return Ok(folder.clone()),
            Err(error) => _ = refused.get_or_insert(error),
        }
    }
    Err(refused.unwrap_or_else(|| ErrorKind::NotFound.into()))
}

fn usable(folder: &Path) -> std::io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(named(folder, &error)),
        _ => {}
    }
    if !is_own(folder)? {
        let words = format!("{} is open to others: remove it, or set XDG_RUNTIME_DIR", folder.display());
        return Err(Error::new(ErrorKind::PermissionDenied, words));
    }
    Ok(())
}

pub(super) struct Socket {
    pub(super) listener: UnixListener,
    file: PathBuf,
}

impl Socket {
    pub(super) fn at(file: &Path) -> std::io::Result<Socket> {
        let listener = UnixListener::bind(file).map_err(|error| named(file, &error))?;
        Ok(Socket { listener, file: file.to_owned() })
    }

    /// Notes the hold's shell and owner in the private folder. Without the note, programs that the shell
    /// starts would find no deadlock through the hold. The text is the target of a symbolic link, since links
    /// are created atomically.
    pub(super) fn note(&self, shell: Shell, owner: &str) {
        std::os::unix::fs::symlink(format!("{} {} {owner}", shell.pid, shell.began), note_of(&self.file))
            .ok();
    }
}

fn note_of(file: &Path) -> PathBuf {
    file.with_extension(NOTE)
}

pub(crate) fn owners_above() -> Vec<String> {
    let own = folders().into_iter().filter(|folder| is_own(folder).unwrap_or(false));
    let entries = own.flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let notes = entries.map(|entry| entry.path());
    let notes = notes.filter(|path| path.extension().is_some_and(|extension| extension == NOTE));
    let texts: Vec<String> =
        notes.filter_map(|note| std::fs::read_link(note).ok()?.into_os_string().into_string().ok()).collect();
    if texts.is_empty() {
        return Vec::new();
    }
    let above: Vec<(i32, u64)> = family::above().map(|member| (member.pid, member.began)).collect();
    texts.iter().filter_map(|text| owner_for(text, &above)).map(str::to_owned).collect()
}

fn owner_for<'a>(note: &'a str, above: &[(i32, u64)]) -> Option<&'a str> {
    let mut words = note.split(' ');
    let shell = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().filter(|_| above.contains(&shell))
}

impl Drop for Socket {
    fn drop(&mut self) {
        remove(&self.file);
    }
}

pub(super) fn remove(file: &Path) {
    std::fs::remove_file(note_of(file)).ok();
    std::fs::remove_file(file).ok();
}

/// Whether `folder` is a folder (no link to one) of this user, which no other user can enter.
fn is_own(folder: &Path) -> std::io::Result<bool> {
    let found = std::fs::symlink_metadata(folder).map_err(|error| named(folder, &error))?;
    Ok(found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0)
}

fn named(folder: &Path, error: &Error) -> Error {
    Error::new(error.kind(), format!("{}: {error}", folder.display()))
}

/// The handle that `hold` prints. It is one word: the path of the hold's socket, a colon, and the fencing
/// token, which is empty if there is none.
pub(super) fn handle(place: &Path, fence: Option<u64>) -> String {
    format!("{}:{}", place.display(), fence.map(|fence| fence.to_string()).unwrap_or_default())
}

pub(super) fn of(handle: &str) -> Option<&Path> {
    let (place, fence) = handle.trim().rsplit_once(':')?;
    let is_one = place.starts_with('/') && fence.chars().all(|digit| digit.is_ascii_digit());
    is_one.then(|| Path::new(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_users_socket_folder_is_skipped() {
        let all = tempfile::tempdir().unwrap();
        let [taken, free] = ["taken", "free"].map(|name| all.path().join(name));
        // A folder that all users may enter stands for another user's, which this test cannot create.
        std::fs::create_dir(&taken).unwrap();
        std::fs::set_permissions(&taken, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(first_usable(&[taken.clone(), free.clone()]).unwrap(), free);
        assert!(is_own(&free).unwrap());
        let refused = first_usable(&[taken.clone(), all.path().join("none/within")]).unwrap_err();
        assert!(refused.to_string().contains(&format!("{} is open to others", taken.display())), "{refused}");
    }

    #[test]
    fn a_folder_open_to_others_is_not_private() {
        let folder = tempfile::tempdir().unwrap();
        let within = |name: &str, mode| {
            let place = folder.path().join(name);
            DirBuilder::new().mode(mode).create(&place).unwrap();
            let set = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&place, set).unwrap(); // regardless of the umask
            is_own(&place).unwrap()
        };
        assert!(within("own", 0o700));
        for mode in [0o701, 0o704, 0o710, 0o720, 0o740] {
            assert!(!within(&format!("{mode:o}"), mode), "{mode:o}");
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("own"), &link).unwrap();
        assert!(!is_own(&link).unwrap() && is_own(&folder.path().join("none")).is_err());
    }
}
