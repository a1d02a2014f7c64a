//! Linux, Android and macOS.

use std::fs;
use std::io;
use std::net::TcpStream;
#[cfg(feature = "sqlite")]
use std::os::unix::ffi::OsStrExt;
#[cfg(feature = "sqlite")]
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
#[cfg(feature = "sqlite")]
use std::path::{Path, PathBuf};

#[cfg(feature = "sqlite")]
use rustix::fs::{Access, Gid};
#[cfg(feature = "sqlite")]
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const RUNS_ON_ASLEEP: ClockId = ClockId::Boottime;
/// A clock that on macOS includes sleep, unlike `Instant` (`CLOCK_UPTIME_RAW`).
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const RUNS_ON_ASLEEP: ClockId = ClockId::Monotonic;

pub(crate) fn nanos() -> u64 {
    let time = clock_gettime(RUNS_ON_ASLEEP);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

pub(crate) type Socket = TcpStream;

#[expect(clippy::unnecessary_wraps, reason = "it can fail on Windows")]
pub(crate) fn socket(socket: TcpStream) -> io::Result<Socket> {
    Ok(socket)
}

pub(crate) type LocalSocket = UnixStream;

pub(crate) const NO_LOCAL_SOCKETS: Option<&str> = None;

pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

pub(crate) fn boot_id() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(boot.trim().to_owned())
}

/// The time namespace of this process; empty if there is none.
#[cfg(feature = "sqlite")]
pub(crate) fn clock_namespace() -> PathBuf {
    fs::read_link("/proc/self/ns/time").unwrap_or_default()
}

pub(crate) fn pid_namespace() -> u64 {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default(); // such as `pid:[4026531836]`
    let text = link.to_str().unwrap_or_default();
    text.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0)
}

/// The process's start, in ticks since boot: field 22 of `stat`, counted from the last bracket, because field
/// 2, in brackets, may contain spaces.
pub(crate) fn process_start() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Device and inode; unique while the file exists or is open.
#[cfg(feature = "sqlite")]
pub(crate) type FileId = (u64, u64);

#[cfg(feature = "sqlite")]
pub(crate) fn file_id(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(feature = "sqlite")]
pub(crate) fn names_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.nlink())
}

#[cfg(feature = "sqlite")]
pub(crate) fn is_mount_point(path: &Path) -> bool {
    let listed = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let escaped: Vec<u8> = path.as_os_str().as_bytes().iter().fold(Vec::new(), |mut escaped, byte| {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => escaped.extend(format!("\\{byte:03o}").bytes()),
            _ => escaped.push(*byte),
        }
        escaped
    });
    let mut places = listed.split(|byte| *byte == b'\n').filter_map(|line| line.split(|b| *b == b' ').nth(4));
    places.any(|place| place == escaped)
}

/// Gives `file` the group of `like`, if this user owns it and the groups differ.
#[cfg(feature = "sqlite")]
pub(crate) fn share_group(file: &Path, like: &Path) {
    let (Ok(file_now), Ok(like)) = (fs::metadata(file), fs::metadata(like)) else { return };
    if file_now.gid() != like.gid() {
        // Only the file's owner may change its group, so a refusal is expected.
        rustix::fs::chown(file, None, Some(Gid::from_raw(like.gid()))).ok();
    }
}

/// Why this user may not write an existing file: `ReadOnlyFilesystem` or `PermissionDenied`.
#[cfg(feature = "sqlite")]
pub(crate) fn writing_refused(path: &Path) -> Option<io::ErrorKind> {
    match rustix::fs::access(path, Access::WRITE_OK) {
        Err(Errno::ROFS) => Some(io::ErrorKind::ReadOnlyFilesystem),
        Err(Errno::ACCESS | Errno::PERM) => Some(io::ErrorKind::PermissionDenied),
        Ok(()) | Err(_) => None,
    }
}

#[cfg(feature = "sqlite")]
pub(crate) fn local_path(path: String) -> PathBuf {
    PathBuf::from(path)
}
