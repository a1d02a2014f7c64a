//! One connection: a socket, the handshake on it, and replies read within a time.
//!
//! The crate's own `redis::Connection` gives each *read* a time-out, so that a server which drips bytes can
//! hold a caller for ever; it cannot be split into a writing and a reading half; and it hides why AUTH
//! failed. So the sockets are ours.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, Value};

use crate::error::{Error, ErrorKind};
use crate::hosts::Hosts;
use crate::stores::redis::conn::ledger::Origin;
use crate::stores::redis::conn::replies::{Replies, TOO_LONG};
use crate::stores::redis::place::ServerPlace;
use crate::system::{LocalSocket, PollFd, Socket, any_ready, for_bytes, has_room};
use crate::time::{Clock, Moment};

/// A socket that one thread may read while others write.
pub(crate) enum RedisStream {
    Tcp(Socket),
    Unix(LocalSocket),
    #[cfg(feature = "tls")]
    Tls(Box<crate::tls::TlsStream>),
    #[cfg(leasehold_shuttle)]
    Model(super::model::Pipe),
}

impl RedisStream {
    /// Connects until `deadline` at the latest; but connecting to a Unix socket whose queue is full cannot be
    /// bounded.
    pub(crate) fn connect(
        place: &ServerPlace,
        hosts: &Arc<Hosts>,
        write_timeout: Duration,
        deadline: Moment,
    ) -> io::Result<RedisStream> {
        let stream = match place {
            ServerPlace::Tcp { host, port } => RedisStream::Tcp(hosts.connect(host, *port, deadline)?),
            #[cfg(feature = "tls")]
            ServerPlace::Tls { host, port, config } => {
                let socket = hosts.connect(host, *port, deadline)?;
                let half = RedisStream::Tcp(socket.try_clone()?);
                half.set_write_timeout(write_timeout)?;
                let tls = crate::tls::TlsStream::connect(
                    host.name(),
                    config,
                    socket,
                    Timed::new(&half, deadline, &Cell::default()),
                )?;
                RedisStream::Tls(Box::new(tls))
            }
            ServerPlace::Unix(path) => RedisStream::Unix(LocalSocket::connect(path)?),
        };
        stream.set_write_timeout(write_timeout)?;
        Ok(stream)
    }

    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            RedisStream::Tcp(socket) => { socket }.read(buf),
            RedisStream::Unix(socket) => { socket }.read(buf),
            #[cfg(feature = "tls")]
            RedisStream::Tls(tls) => tls.read(buf),
            #[cfg(leasehold_shuttle)]
            RedisStream::Model(pipe) => pipe.read(buf),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            RedisStream::Tcp(socket) => { socket }.write(bytes),
            RedisStream::Unix(socket) => { socket }.write(bytes),
            #[cfg(feature = "tls")]
            RedisStream::Tls(tls) => tls.write(bytes),
            #[cfg(leasehold_shuttle)]
            RedisStream::Model(pipe) => pipe.write(bytes),
        }
    }

    /// Writes as much of `bytes` as the socket takes now; an error of kind `WouldBlock`: nothing.
    ///
    /// For a socket whose writes have a short time-out: it may take less than the system said that it would.
    pub(crate) fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        let may_be_written = match self {
            RedisStream::Tcp(socket) => has_room(socket, Duration::ZERO),
            RedisStream::Unix(socket) => has_room(socket, Duration::ZERO),
            #[cfg(feature = "tls")]
            RedisStream::Tls(tls) => has_room(tls.socket(), Duration::ZERO),
            #[cfg(leasehold_shuttle)]
            RedisStream::Model(pipe) => return pipe.write(bytes),
        };
        if !may_be_written {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let written = match self {
            #[cfg(feature = "tls")]
            RedisStream::Tls(tls) => tls.write_now(bytes),
            _ => self.write(bytes),
        };
        match written {
            Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::TimedOut) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            written => written,
        }
    }

    /// Writes all of `bytes`, until `deadline` and one write's time-out at the latest.
    pub(crate) fn write_all(&self, bytes: &[u8], deadline: Moment) -> io::Result<()> {
        Timed::new(self, deadline, &Cell::default()).write_all(bytes)
    }

    pub(crate) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            RedisStream::Tcp(socket) => socket.set_read_timeout(Some(timeout)),
            RedisStream::Unix(socket) => socket.set_read_timeout(Some(timeout)),
            #[cfg(feature = "tls")]
            RedisStream::Tls(tls) => tls.socket().set_read_timeout(Some(timeout)),
            #[cfg(leasehold_shuttle)]
            RedisStream::Model(pipe) => pipe.set_read_timeout(timeout),
        }
    }

    pub(crate) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            RedisStream::Tcp(socket) => socket.set_write_timeout(Some(timeout)),
            RedisStream::Unix(socket) => socket.set_write_timeout(Some(timeout)),
            #[cfg(feature = "tls")]
            RedisStream::Tls(tls) => tls.socket().set_write_timeout(Some(timeout)),
            #[cfg(leasehold_shuttle)]
            RedisStream::Model(_) => Ok(()),
        }
    }

    /// Whether a read would return at once: with bytes, or with the end of the connection.
    pub(crate) fn has_bytes(&self) -> bool {
        match self.unread() {
            #[cfg(any(feature = "tls", leasehold_shuttle))]
            Unread::There => true,
            Unread::MayBeAt(socket) => any_ready(&mut [socket], Duration::ZERO),
            #[cfg(leasehold_shuttle)]
            Unread::Nothing => false,
        }
    }

    fn unread(&self) -> Unread<'_> {
        match self {
            RedisStream::Tcp(socket) => Unread::MayBeAt(for_bytes(socket)),
            RedisStream::Unix(socket) => Unread::MayBeAt(for_bytes(socket)),
            #[cfg(feature = "tls")]
            RedisStream::Tls(tls) if tls.has_plaintext() => Unread::There,
            #[cfg(feature = "tls")]
            RedisStream::Tls(tls) => Unread::MayBeAt(for_bytes(tls.socket())),
            #[cfg(leasehold_shuttle)]
            RedisStream::Model(pipe) if pipe.has_bytes() => Unread::There,
            #[cfg(leasehold_shuttle)]
            RedisStream::Model(_) => Unread::Nothing,
        }
    }

    /// Wakes the thread that reads.
    pub(crate) fn shutdown(&self) {
        // An error says that it is down already.
        drop(match self {
            RedisStream::Tcp(socket) => socket.shutdown(Shutdown::Both),
            RedisStream::Unix(socket) => socket.shutdown(Shutdown::Both),
            #[cfg(feature = "tls")]
            RedisStream::Tls(tls) => tls.socket().shutdown(Shutdown::Both),
            #[cfg(leasehold_shuttle)]
            RedisStream::Model(pipe) => pipe.shutdown(),
        });
    }
}

/// The place of bytes that a stream has received and nobody has read.
enum Unread<'a> {
    /// In memory, some of it.
    #[cfg(any(feature = "tls", leasehold_shuttle))]
    There,
    /// In the socket.
    MayBeAt(PollFd<'a>),
    #[cfg(leasehold_shuttle)]
    Nothing,
}

/// Waits until one of the streams has bytes, or has ended, for `limit` at most.
pub(crate) fn await_any<'a>(streams: impl Iterator<Item = &'a RedisStream>, limit: Duration) {
    let mut sockets = Vec::new();
    for stream in streams {
        match stream.unread() {
            #[cfg(any(feature = "tls", leasehold_shuttle))]
            Unread::There => return,
            Unread::MayBeAt(socket) => sockets.push(socket),
            #[cfg(leasehold_shuttle)]
            Unread::Nothing => {}
        }
    }
    any_ready(&mut sockets, limit);
}

/// For the subscriber's reader, which waits without a deadline of its own.
impl Read for &RedisStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // A read with a time-out is also ended by a signal, as when a child process ends. That says nothing
        // about the connection; to the reader it is as if the time-out had come.
        RedisStream::read(self, buf).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => io::ErrorKind::WouldBlock.into(),
            _ => error,
        })
    }
}

/// The time left until `deadline`, never zero: as a socket's time-out, zero is refused.
fn remaining(deadline: Moment) -> io::Result<Duration> {
    let remaining = deadline.since(Clock::System.now());
    if remaining.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(remaining) }
}

/// Reads and writes of a stream that all end at one moment, however many they are.
pub(crate) struct Timed<'a> {
    stream: &'a RedisStream,
    deadline: Moment,
    /// Reads only what is there already.
    pub(crate) only_ready: bool,
    /// A read was refused because nothing was there.
    pub(crate) was_not_ready: bool,
    /// The time-out that the socket has.
    armed: &'a Cell<Duration>,
}

impl<'a> Timed<'a> {
    pub(crate) fn new(stream: &'a RedisStream, deadline: Moment, armed: &'a Cell<Duration>) -> Timed<'a> {
        Timed { stream, deadline, only_ready: false, was_not_ready: false, armed }
    }

    /// Gives the socket what is left of the time; not if it has hardly more: that would be a system call more
    /// for each reply.
    fn arm(&self) -> io::Result<()> {
        let (left, armed) = (remaining(self.deadline)?, self.armed.get());
        if armed < left || armed > left + left / 16 {
            self.stream.set_read_timeout(left)?;
            self.armed.set(left);
        }
        Ok(())
    }

    /// The time is over, but what is there already may be read.
    fn hurry(&self) -> io::Result<()> {
        const HARDLY: Duration = Duration::from_millis(1);
        if self.armed.replace(HARDLY) == HARDLY { Ok(()) } else { self.stream.set_read_timeout(HARDLY) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.only_ready && !self.stream.has_bytes() {
            self.was_not_ready = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        loop {
            match self.arm() {
                Err(_late) if self.only_ready => self.hurry()?,
                armed => armed?,
            }
            match self.stream.read(buf) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        remaining(self.deadline)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The time since its last use within which a connection is used again without a look at it.
pub(crate) const TRUSTED: Duration = Duration::from_millis(100);

/// A connection that one thread uses at a time.
pub(crate) struct Connection {
    stream: Arc<RedisStream>,
    replies: Replies,
    /// The socket's read time-out.
    armed: Cell<Duration>,
    /// When it was last known to be alive.
    pub(super) used: Moment,
    pub(crate) origin: Origin,
}

impl Connection {
    pub(crate) fn new(stream: RedisStream) -> Connection {
        Connection {
            stream: Arc::new(stream),
            replies: Replies::default(),
            armed: Cell::default(),
            used: Clock::System.now(),
            origin: Origin::new(None),
        }
    }

    pub(crate) fn stream(&self) -> &Arc<RedisStream> {
        &self.stream
    }

    pub(crate) fn send(&mut self, bytes: &[u8], deadline: Moment) -> Result<(), Error> {
        self.stream.write_all(bytes, deadline).map_err(|error| broken("send", error))
    }

    /// The next reply, whole by `deadline`.
    pub(crate) fn receive(&mut self, deadline: Moment) -> Result<Value, Error> {
        let mut timed = Timed::new(&self.stream, deadline, &self.armed);
        let reply = self.replies.next(&mut timed);
        self.used = Clock::System.now();
        reply.map_err(unread)
    }

    /// Whether the server has not hung up, as far as this machine knows; no round trip. Asks only after a
    /// while, since a connection in constant use shows its end by itself.
    pub(crate) fn is_alive(&self) -> bool {
        // Nothing to read is as it should be. The end, an error, and bytes that nobody asked for are not.
        Clock::System.now().since(self.used) < TRUSTED || !self.stream.has_bytes()
    }

    /// The same, asked of the socket at once.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.stream.has_bytes()
    }

    /// Gives the socket away, to be read by a parser of its own.
    pub(crate) fn into_stream(self) -> Arc<RedisStream> {
        self.stream
    }
}

/// The error of a write or a connection.
pub(crate) fn broken(action: &'static str, error: io::Error) -> Error {
    #[cfg(feature = "tls")]
    if let Some((kind, words)) = crate::tls::refusal(&error) {
        return Error::new(kind, action, words).with_source(error);
    }
    let (kind, words) = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            (ErrorKind::TimedOut, "the server did not answer in time")
        }
        io::ErrorKind::InvalidData => (ErrorKind::Protocol, "what the server sent cannot be read"),
        _ => (ErrorKind::Unreachable, "the connection broke"),
    };
    Error::new(kind, action, words).with_source(error)
}

/// The error of a reply that could not be read.
pub(crate) fn unread(error: RedisError) -> Error {
    #[cfg(feature = "tls")]
    if let Some(cause) = std::error::Error::source(&error)
        // As the redis crate keeps what the socket said.
        && let Some(cause) = cause.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()
        && let Some((kind, words)) = cause.downcast_ref().and_then(crate::tls::refusal)
    {
        return Error::new(kind, "read", words).with_source(error);
    }
    let (kind, words) = if error.is_timeout() {
        (ErrorKind::TimedOut, "the server did not answer in time")
    } else if error.is_connection_dropped() {
        (ErrorKind::Unreachable, "the server closed the connection")
    } else if error.detail() == Some(TOO_LONG) {
        (ErrorKind::Protocol, TOO_LONG)
    } else if error.kind() == redis::ErrorKind::Parse {
        (ErrorKind::Protocol, "the server does not speak Redis's protocol")
    } else {
        return Error::new(ErrorKind::Unreachable, "read", "the connection broke").with_source(error);
    };
    Error::new(kind, "read", words).with_source(error)
}
