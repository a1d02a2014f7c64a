//! One connection: a socket, the handshake, and replies that are read by a deadline.
//!
//! The redis crate's connection is not used for three reasons. Its time-out limits each *read*, so a server
//! that sends single bytes can block a caller for ever. One thread cannot write on it while another reads. It
//! hides why AUTH failed.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use r2d2::ManageConnection;
use redis::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{Host, Hosts};
use crate::seam::{Answer, Failure};
use crate::stores::redis::conn::ledger::{Ledger, Origin, SentScript};
use crate::stores::redis::conn::replies::Replies;
use crate::stores::redis::reply::{fitness, is_logged_out, is_unknown_script};
use crate::stores::redis::script::Command;
use crate::system::LocalSocket;
use crate::time::{Clock, Moment};
use crate::wire::{Timed, TlsConfig, Wire, broken};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[derive(Clone)]
pub(crate) enum ServerPlace {
    Tcp { host: Host, port: u16, tls: Option<TlsConfig> },
    Unix(PathBuf),
}

impl ServerPlace {
    /// The text by which a provider of credentials knows the server.
    pub(crate) fn address(&self) -> String {
        match self {
            ServerPlace::Tcp { host, port, .. } => format!("{}:{port}", host.name()),
            ServerPlace::Unix(path) => path.display().to_string(),
        }
    }

    pub(crate) fn secured(&self, tls: Option<&TlsConfig>) -> ServerPlace {
        match self {
            ServerPlace::Tcp { host, port, .. } => {
                ServerPlace::Tcp { host: host.clone(), port: *port, tls: tls.cloned() }
            }
            ServerPlace::Unix(_) => self.clone(),
        }
    }
}

impl fmt::Display for ServerPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerPlace::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            ServerPlace::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Connects by `deadline`; but a Unix socket whose backlog is full can block for longer.
pub(super) fn connect(
    place: &ServerPlace,
    hosts: &Arc<Hosts>,
    write_timeout: Duration,
    deadline: Moment,
) -> io::Result<Wire> {
    match place {
        ServerPlace::Tcp { host, port, tls } => {
            Wire::connect(hosts, (host, *port), tls.as_ref(), write_timeout, deadline)
        }
        ServerPlace::Unix(path) => {
            let wire = Wire::Unix(LocalSocket::connect(path)?);
            wire.set_write_timeout(write_timeout)?;
            Ok(wire)
        }
    }
}

/// A connection that was used within this time is not checked before its next use.
pub(crate) const TRUSTED: Duration = Duration::from_millis(100);

pub(crate) struct Connection {
    pub(crate) stream: Arc<Wire>,
    replies: Replies,
    armed: Cell<Duration>,
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
            origin: Origin::new(),
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8], deadline: Moment) -> Result<()> {
        self.stream.write_all(bytes, deadline).map_err(|error| broken("send", error))
    }

    pub(crate) fn receive(&mut self, deadline: Moment) -> Result<Value> {
        let mut timed = Timed::new(&self.stream, deadline, &self.armed);
        let reply = self.replies.next(&mut timed);
        self.used = Clock::System.now();
        reply.map_err(unread)
    }

    /// Whether the server seems to have kept the connection open. Only looks at the local socket.
    pub(crate) fn is_alive(&self) -> bool {
        // An idle connection has nothing to read: bytes, an end or an error show that it is useless.
        Clock::System.now().since(self.used) < TRUSTED || !self.stream.has_bytes()
    }

    pub(crate) fn is_hung_up(&self) -> bool {
        self.stream.has_bytes()
    }

    pub(crate) fn into_stream(self) -> Arc<Wire> {
        self.stream
    }
}

pub(crate) fn unread(error: io::Error) -> Error {
    match error.kind() {
        // The error kind that `Replies` uses for bytes that are no reply.
        io::ErrorKind::Unsupported => Error::new(ErrorKind::Protocol, "read", error.to_string()),
        io::ErrorKind::UnexpectedEof => {
            let words = "the server closed the connection";
            Error::new(ErrorKind::Unreachable, "read", words).with_source(error)
        }
        _ => broken("read", error),
    }
}

/// Makes the items of r2d2's pool: slots, by whose number the pool limits connections. The thread that gets
/// an empty slot connects, so it gets a failure at once; r2d2 would retry, and report only the error's text.
#[derive(Debug)]
pub(crate) struct ConnectionSlots;

/// A slot's connection: `None` before the first use, and after a failure.
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

/// Requests over a connection that one thread has for itself.
pub(crate) struct Dialog<'a> {
    pub(super) connection: &'a mut Connection,
    pub(super) deadline: Moment,
    pub(super) asking: bool,
    pub(super) broken: bool,
    /// Opens a replacement, if the first request was refused because the login had ended.
    pub(super) replace: Option<&'a dyn Fn(Moment) -> Result<Connection>>,
    pub(super) ledger: &'a Ledger,
}

impl Dialog<'_> {
    pub(crate) fn say(&mut self, commands: &[Command]) -> Answer<Vec<Value>> {
        let mut replies = Vec::with_capacity(commands.len());
        self.collect(commands, &mut replies)?;
        replies.into_iter().map(|reply| reply.ok_or_else(no_reply)).collect()
    }

    /// Like [`say`](Self::say), but keeps the replies before a failure: one element for each request up to
    /// the last answered one. An element is `None` if its script was sent again, and got no reply.
    pub(crate) fn collect(&mut self, commands: &[Command], replies: &mut Vec<Option<Value>>) -> Answer<()> {
        let replace = self.replace.take();
        self.exchange(commands, |reply| replies.push(Some(reply)))?;
        // The login had ended, so the server ran no command, and all are sent again over a new connection.
        // Only a dialog's first commands are sent again: a later WAIT needs the connection of its write.
        if let (Some(replace), Some(Some(first))) = (replace, replies.first())
            && is_logged_out(first)
            && let Ok(connection) = replace(self.deadline)
        {
            *self.connection = connection;
            replies.clear();
            self.exchange(commands, |reply| replies.push(Some(reply)))?;
        }
        // After NOSCRIPT, which means that the server ran nothing, the script is sent again, with its body.
        let (mut places, mut again) = (Vec::new(), Vec::new());
        for (place, command) in replies.iter_mut().zip(commands) {
            if place.as_ref().is_some_and(is_unknown_script)
                && let Some(command) = command.with_body()
            {
                *place = None;
                places.push(place);
                again.push(command);
            }
        }
        if again.is_empty() {
            return Ok(());
        }
        let mut places = places.into_iter();
        self.exchange(&again, |reply| {
            if let Some(place) = places.next() {
                *place = Some(reply);
            }
        })
    }

    fn exchange(&mut self, commands: &[Command], mut take: impl FnMut(Value)) -> Answer<()> {
        let mut bytes = Vec::with_capacity(256 * commands.len());
        for command in commands {
            if self.asking {
                Command::new("ASKING").pack_into(&mut bytes);
            }
            command.pack_into(&mut bytes);
        }
        let forgotten = self.ledger.forgotten();
        // Broken until all replies are read: otherwise a later request could take a late reply for its own.
        let was_broken = std::mem::replace(&mut self.broken, true);
        debug_assert!(!was_broken, "a broken connection was used");
        if let Err(error) = self.connection.send(&bytes, self.deadline) {
            // The last request was not sent completely. If it was the only one, nothing was carried out.
            return Err(if commands.len() == 1 && !self.asking {
                Failure::Refused(error)
            } else {
                Failure::Unknown(error)
            });
        }
        for command in commands {
            if self.asking {
                // This reply is ignored: if the server refuses ASKING, it also refuses the request behind it.
                self.connection.receive(self.deadline).map_err(Failure::Unknown)?;
            }
            let reply = self.connection.receive(self.deadline).map_err(Failure::Unknown)?;
            if let Some(script) = command.script {
                let sent = SentScript { script, forgotten };
                self.ledger.note_script(&mut self.connection.origin, sent, &reply);
            }
            if self.ledger.note(&mut self.connection.origin, fitness(&reply)) {
                self.ledger.tell_demoted();
            }
            take(reply);
        }
        self.broken = false;
        Ok(())
    }
}

pub(super) fn no_reply() -> Failure {
    Failure::Unknown(Error::new(ErrorKind::Protocol, "request", "no reply was read"))
}
