//! Windows 10 and later.

#[cfg(feature = "sqlite")]
use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsSocket, BorrowedSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use winapi_util::file::information;
use winapi_util::sysinfo::{ComputerNameKind, get_computer_name};

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::system::poll::{has_bytes, has_room};

/// Nanoseconds of a clock that never steps and includes sleep.
///
/// `Instant` reads the performance counter, which includes sleep (`docs/decisions/0057`). The counter's
/// origin is unknown, so processes cannot compare readings. The first reading here is one day, so that
/// callers can subtract from it.
#[expect(clippy::disallowed_methods, reason = "the clock of leases on this system")]
pub(crate) fn nanos() -> u64 {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let begun = *BEGUN;
    u64::try_from((DAY + Instant::now().saturating_duration_since(begun)).as_nanos()).unwrap_or(u64::MAX)
}

/// A TCP connection that survives time-outs of reads and writes.
///
/// After Winsock's own time-outs (`SO_RCVTIMEO`, `SO_SNDTIMEO`) a socket's state is undefined, so the socket
/// never blocks, and each call waits by `poll`.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: TcpStream,
    shared: Arc<SocketState>,
}

#[derive(Debug)]
struct SocketState {
    /// The time-out of reads in milliseconds; `u64::MAX`: none.
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
    is_shut: AtomicBool,
}

pub(crate) fn socket(socket: TcpStream) -> io::Result<Socket> {
    socket.set_nonblocking(true)?;
    let shared = SocketState {
        read_timeout: AtomicU64::new(u64::MAX),
        write_timeout: AtomicU64::new(u64::MAX),
        is_shut: AtomicBool::new(false),
    };
    Ok(Socket { socket, shared: Arc::new(shared) })
}

impl Socket {
    pub(crate) fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        set(&self.shared.read_timeout, limit)
    }

    pub(crate) fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        set(&self.shared.write_timeout, limit)
    }

    pub(crate) fn connect(_path: &Path) -> io::Result<LocalSocket> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "Unix sockets are not supported on Windows"))
    }

    pub(crate) fn try_clone(&self) -> io::Result<Socket> {
        Ok(Socket { socket: self.socket.try_clone()?, shared: Arc::clone(&self.shared) })
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        // This flag ends the reads of threads in `wait`, which a shutdown of writes alone must not end.
        if !matches!(how, Shutdown::Write) {
            self.shared.is_shut.store(true, Ordering::SeqCst);
        }
        self.socket.shutdown(how)
    }

    /// Waits until `is_ready` or the time-out. Winsock does not say whether `shutdown` wakes a polling
    /// thread, so this method checks for a shutdown itself.
    fn wait(&self, limit: &AtomicU64, is_ready: impl Fn(&TcpStream, Duration) -> bool) -> io::Result<()> {
        const CHECK_EVERY: u64 = 100;
        let mut left = limit.load(Ordering::Relaxed);
        loop {
            let part = left.min(CHECK_EVERY);
            if is_ready(&self.socket, Duration::from_millis(part))
                || self.shared.is_shut.load(Ordering::SeqCst)
            {
                return Ok(());
            }
            left -= part;
            if left == 0 {
                return Err(io::ErrorKind::WouldBlock.into()); // the error of a time-out on Unix
            }
        }
    }
}

/// Rounds up to milliseconds. Refuses zero, as the system does.
fn set(timeout: &AtomicU64, limit: Option<Duration>) -> io::Result<()> {
    if limit.is_some_and(|limit| limit.is_zero()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a time-out of zero"));
    }
    let millis = |limit: Duration| u64::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    timeout.store(limit.map_or(u64::MAX, millis), Ordering::Relaxed);
    Ok(())
}

impl Read for &Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            self.wait(&self.shared.read_timeout, |socket, part| has_bytes(socket, part))?;
            match (&self.socket).read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.shared.is_shut.load(Ordering::SeqCst) {
                        return Ok(0);
                    }
                }
                read => return read,
            }
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match (&self.socket).write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.shared.is_shut.load(Ordering::SeqCst) {
                        return Err(io::ErrorKind::BrokenPipe.into());
                    }
                    self.wait(&self.shared.write_timeout, |socket, part| has_room(socket, part))?;
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsSocket for Socket {
    fn as_socket(&self) -> BorrowedSocket<'_> {
        self.socket.as_socket()
    }
}

/// Local connections: the standard library has no Unix sockets here, so none can be made.
pub(crate) type LocalSocket = Socket;

pub(crate) const NO_LOCAL_SOCKETS: Option<&str> =
    Some("Unix sockets are not supported on Windows: name a host and a port");

pub(crate) fn host_name() -> String {
    let name = get_computer_name(ComputerNameKind::DnsHostname).unwrap_or_default();
    name.to_string_lossy().into_owned()
}

pub(crate) fn boot_id() -> Option<String> {
    None
}

#[cfg(feature = "sqlite")]
pub(crate) fn clock_namespace() -> PathBuf {
    PathBuf::new()
}

pub(crate) fn pid_namespace() -> u64 {
    0
}

pub(crate) fn process_start() -> Option<u64> {
    None
}

/// Volume and index; unique while the file exists or is open.
pub(crate) type FileId = (u64, u64);

/// Opens the file for its attributes only. Closing this handle frees no lock that another handle has.
pub(crate) fn file_id(path: &Path) -> Option<FileId> {
    id_of(&for_attributes(path)?)
}

fn for_attributes(path: &Path) -> Option<File> {
    const BACKUP_SEMANTICS: u32 = 0x0200_0000; // needed for folders
    OpenOptions::new().access_mode(0).custom_flags(BACKUP_SEMANTICS).open(path).ok()
}

#[cfg(feature = "sqlite")]
pub(crate) fn names_of(path: &Path) -> u64 {
    for_attributes(path).and_then(|file| information(file).ok()).map_or(0, |found| found.number_of_links())
}

#[cfg(feature = "sqlite")]
pub(crate) fn is_mount_point(_path: &Path) -> bool {
    false
}

pub(crate) fn id_of(file: &File) -> Option<FileId> {
    let found = information(file).ok()?;
    Some((found.volume_serial_number(), found.file_index()))
}

#[cfg(feature = "sqlite")]
pub(crate) fn share_group(_file: &Path, _like: &Path) {}

#[cfg(feature = "sqlite")]
pub(crate) fn writing_refused(path: &Path) -> Option<io::ErrorKind> {
    let found = fs::metadata(path).ok()?;
    let is_refused = || match OpenOptions::new().write(true).open(path) {
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        Ok(_) => false,
    };
    (found.is_file() && is_refused()).then_some(io::ErrorKind::PermissionDenied)
}

#[cfg(feature = "sqlite")]
pub(crate) fn local_path(path: String) -> PathBuf {
    let is_on_a_drive = matches!(path.as_bytes(), [b'/', drive, b':', ..] if drive.is_ascii_alphabetic());
    PathBuf::from(if is_on_a_drive { path.get(1..).unwrap_or_default() } else { path.as_str() })
}
