//! A connection, plain or TLS, that one thread reads while others write.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use crate::config::TlsOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{Host, Hosts};
use crate::system::{LocalSocket, PollFd, Socket, any_ready, for_bytes, has_room};
use crate::time::{Clock, Moment};

#[cfg(leasehold_shuttle)]
mod model;
#[cfg(leasehold_shuttle)]
pub(crate) use self::model::Pipe;

macro_rules! on_socket {
    ($wire:expr, $socket:ident => $do:expr, $pipe:pat => $model:expr) => {
        match $wire {
            Wire::Tcp($socket) => $do,
            Wire::Unix($socket) => $do,
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => {
                let $socket = tls.socket();
                $do
            }
            #[cfg(leasehold_shuttle)]
            Wire::Model($pipe) => $model,
        }
    };
}

pub(crate) enum Wire {
    Tcp(Socket),
    Unix(LocalSocket),
    #[cfg(feature = "tls")]
    Tls(Box<crate::tls::TlsStream>),
    #[cfg(leasehold_shuttle)]
    Model(Pipe),
}

#[cfg(feature = "tls")]
pub(crate) use crate::tls::Config as TlsConfig;
/// Without the feature `tls` no value of this type exists.
#[cfg(not(feature = "tls"))]
#[derive(Clone)]
pub(crate) enum TlsConfig {}

pub(crate) fn tls_config(options: &TlsOptions, is_tls: bool) -> Result<Option<TlsConfig>> {
    #[cfg(feature = "tls")]
    if is_tls {
        return crate::tls::config(options).map(Some);
    }
    let _ = (options, is_tls);
    Ok(None)
}

impl Wire {
    /// Connects by TCP, and with `tls` by TLS. `write_limit`: the longest time that one write may block.
    pub(crate) fn connect(
        names: &Hosts,
        (host, port): (&Host, u16),
        tls: Option<&TlsConfig>,
        write_limit: Duration,
        deadline: Moment,
    ) -> io::Result<Wire> {
        let socket = names.connect(host, port, deadline)?;
        socket.set_write_timeout(Some(write_limit))?;
        match tls {
            None => Ok(Wire::Tcp(socket)),
            #[cfg(feature = "tls")]
            Some(config) => {
                let (half, armed) = (Wire::Tcp(socket.try_clone()?), Cell::default());
                let timed = Timed::new(&half, deadline, &armed);
                let stream = crate::tls::TlsStream::connect(host.name(), config, socket, timed)?;
                Ok(Wire::Tls(Box::new(stream)))
            }
            #[cfg(not(feature = "tls"))]
            Some(never) => match *never {},
        }
    }

    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Tcp(socket) => { socket }.read(buf),
            Wire::Unix(socket) => { socket }.read(buf),
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => tls.read(buf),
            #[cfg(leasehold_shuttle)]
            Wire::Model(pipe) => pipe.read(buf),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Tcp(socket) => { socket }.write(bytes),
            Wire::Unix(socket) => { socket }.write(bytes),
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => tls.write(bytes),
            #[cfg(leasehold_shuttle)]
            Wire::Model(pipe) => pipe.write(bytes),
        }
    }

    /// Writes what the socket takes now. `WouldBlock`: the socket takes nothing.
    ///
    /// The socket needs a short write time-out: a write blocks if there is less room than the system said.
    pub(crate) fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        if !on_socket!(self, socket => has_room(socket, Duration::ZERO), _ => true) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let written = match self {
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => tls.write_now(bytes),
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

    pub(crate) fn write_all(&self, bytes: &[u8], deadline: Moment) -> io::Result<()> {
        Timed::new(self, deadline, &Cell::default()).write_all(bytes)
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        on_socket!(self, socket => socket.set_read_timeout(timeout), pipe => pipe.set_read_timeout(timeout))
    }

    pub(crate) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        on_socket!(self, socket => socket.set_write_timeout(Some(timeout)), _ => Ok(()))
    }

    /// Whether a read would return at once, with bytes or the end of the connection.
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
            Wire::Tcp(socket) => Unread::MayBeAt(for_bytes(socket)),
            Wire::Unix(socket) => Unread::MayBeAt(for_bytes(socket)),
            #[cfg(feature = "tls")]
            Wire::Tls(tls) if tls.has_plaintext() => Unread::There,
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => Unread::MayBeAt(for_bytes(tls.socket())),
            #[cfg(leasehold_shuttle)]
            Wire::Model(pipe) if pipe.has_bytes() => Unread::There,
            #[cfg(leasehold_shuttle)]
            Wire::Model(_) => Unread::Nothing,
        }
    }

    pub(crate) fn shutdown(&self) {
        drop(on_socket!(self, socket => socket.shutdown(Shutdown::Both), pipe => pipe.shutdown()));
    }
}

enum Unread<'a> {
    #[cfg(any(feature = "tls", leasehold_shuttle))]
    There,
    MayBeAt(PollFd<'a>),
    #[cfg(leasehold_shuttle)]
    Nothing,
}

/// Waits up to `limit` until one of the wires has bytes or has ended.
pub(crate) fn await_any<'a>(wires: impl Iterator<Item = &'a Wire>, limit: Duration) {
    let mut sockets = Vec::new();
    for wire in wires {
        match wire.unread() {
            #[cfg(any(feature = "tls", leasehold_shuttle))]
            Unread::There => return,
            Unread::MayBeAt(socket) => sockets.push(socket),
            #[cfg(leasehold_shuttle)]
            Unread::Nothing => {}
        }
    }
    any_ready(&mut sockets, limit);
}

impl Read for &Wire {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Wire::read(self, buf)
    }
}

/// The time left. An error instead of zero, because sockets refuse zero as a time-out.
fn remaining(deadline: Moment) -> io::Result<Duration> {
    let remaining = deadline.since(Clock::System.now());
    if remaining.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(remaining) }
}

pub(crate) struct Timed<'a> {
    wire: &'a Wire,
    deadline: Moment,
    /// Whether to read only bytes that have arrived.
    pub(crate) only_ready: bool,
    pub(crate) was_not_ready: bool,
    armed: &'a Cell<Duration>,
}

impl<'a> Timed<'a> {
    pub(crate) fn new(wire: &'a Wire, deadline: Moment, armed: &'a Cell<Duration>) -> Timed<'a> {
        Timed { wire, deadline, only_ready: false, was_not_ready: false, armed }
    }

    /// Sets the socket's time-out to the time left, unless it is nearly that already: otherwise every reply
    /// would cost a system call.
    fn arm(&self) -> io::Result<()> {
        let (left, armed) = (remaining(self.deadline)?, self.armed.get());
        if armed < left || armed > left + left / 16 {
            self.wire.set_read_timeout(Some(left))?;
            self.armed.set(left);
        }
        Ok(())
    }

    /// Sets the shortest read time-out, so that a read after the deadline returns only what has arrived.
    fn hurry(&self) -> io::Result<()> {
        const HARDLY: Duration = Duration::from_millis(1);
        let is_armed = self.armed.replace(HARDLY) == HARDLY;
        if is_armed { Ok(()) } else { self.wire.set_read_timeout(Some(HARDLY)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.only_ready && !self.wire.has_bytes() {
            self.was_not_ready = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        loop {
            match self.arm() {
                Err(_late) if self.only_ready => self.hurry()?,
                armed => armed?,
            }
            match self.wire.read(buf) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        remaining(self.deadline)?;
        self.wire.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether an error means a time-out; operating systems report different kinds.
pub(crate) fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

pub(crate) fn broken(action: &'static str, error: io::Error) -> Error {
    #[cfg(feature = "tls")]
    if let Some((kind, words)) = crate::tls::refusal(&error) {
        return Error::new(kind, action, words).with_source(error);
    }
    let (kind, words) = match error.kind() {
        _ if is_late(&error) => (ErrorKind::TimedOut, "the server did not answer in time"),
        io::ErrorKind::InvalidData => (ErrorKind::Protocol, "what the server sent cannot be read"),
        _ => (ErrorKind::Unreachable, "the connection broke"),
    };
    Error::new(kind, action, words).with_source(error)
}
