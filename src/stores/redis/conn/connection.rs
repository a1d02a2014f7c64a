//! One connection: a socket, the handshake on it, and replies read within a time.
//!
//! The redis crate's own connection limits each *read*, so a server that drips bytes can hold a caller for
//! ever; it cannot be split into a writing and a reading half; and it hides why AUTH failed.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use r2d2::ManageConnection;
use redis::{RedisError, Value};

use crate::error::{Error, ErrorKind};
use crate::hosts::Hosts;
use crate::stores::redis::conn::ledger::Origin;
use crate::stores::redis::conn::replies::{Replies, TOO_LONG};
use crate::stores::redis::place::ServerPlace;
use crate::system::LocalSocket;
use crate::time::{Clock, Moment};
use crate::wire::{Timed, Wire, broken};

/// Connects by `deadline`; but connecting to a Unix socket whose queue is full cannot be bounded.
pub(super) fn connect(
    place: &ServerPlace,
    hosts: &Arc<Hosts>,
    write_timeout: Duration,
    deadline: Moment,
) -> io::Result<Wire> {
    let wire = match place {
        ServerPlace::Tcp { host, port, tls } => {
            let socket = hosts.connect(host, *port, deadline)?;
            match tls {
                None => Wire::Tcp(socket),
                #[cfg(feature = "tls")]
                Some(config) => {
                    socket.set_write_timeout(Some(write_timeout))?;
                    Wire::tls(host.name(), config, socket, deadline)?
                }
                #[cfg(not(feature = "tls"))]
                Some(never) => match *never {},
            }
        }
        ServerPlace::Unix(path) => Wire::Unix(LocalSocket::connect(path)?),
    };
    wire.set_write_timeout(write_timeout)?;
    Ok(wire)
}

/// A connection used within this time is used again without a look at it.
pub(crate) const TRUSTED: Duration = Duration::from_millis(100);

pub(crate) struct Connection {
    stream: Arc<Wire>,
    replies: Replies,
    armed: Cell<Duration>,
    /// When it was last known to be alive.
    pub(super) used: Moment,
    pub(crate) origin: Origin,
}

impl Connection {
    pub(crate) fn new(stream: Wire) -> Connection {
        Connection {
            stream: Arc::new(stream),
            replies: Replies::default(),
            armed: Cell::default(),
            used: Clock::System.now(),
            origin: Origin::new(None),
        }
    }

    pub(crate) fn stream(&self) -> &Arc<Wire> {
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

    /// Whether the server has not hung up, as far as this machine knows; no round trip. Looks only after a
    /// while: a connection in constant use shows its end by itself.
    pub(crate) fn is_alive(&self) -> bool {
        // An idle connection has nothing to read: its end, an error, or unasked bytes make it useless.
        Clock::System.now().since(self.used) < TRUSTED || !self.stream.has_bytes()
    }

    pub(crate) fn is_hung_up(&self) -> bool {
        self.stream.has_bytes()
    }

    pub(crate) fn into_stream(self) -> Arc<Wire> {
        self.stream
    }
}

pub(crate) fn unread(error: RedisError) -> Error {
    #[cfg(feature = "tls")]
    if let Some(cause) = std::error::Error::source(&error)
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

/// The item of the r2d2 pool. The thread that gets the slot connects, so that errors are typed and immediate;
/// r2d2 would retry in the background and report a string.
#[derive(Debug)]
pub(crate) struct ConnectionSlots;

/// Empty before the first use and after a failure.
pub(crate) struct ConnectionSlot(pub(crate) Option<Connection>);

impl ManageConnection for ConnectionSlots {
    type Connection = ConnectionSlot;
    type Error = std::convert::Infallible;

    fn connect(&self) -> std::result::Result<ConnectionSlot, Self::Error> {
        Ok(ConnectionSlot(None))
    }

    fn is_valid(&self, _slot: &mut ConnectionSlot) -> std::result::Result<(), Self::Error> {
        Ok(())
    }

    fn has_broken(&self, _slot: &mut ConnectionSlot) -> bool {
        false
    }
}
