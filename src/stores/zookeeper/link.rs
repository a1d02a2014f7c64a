//! One connection: made by a time, and read frame by frame.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::hosts::Host;
use crate::stores::zookeeper::address::ZooKeeperAddress;
use crate::stores::zookeeper::jute::{self, Greeting, Header, LONGEST_FRAME, Welcome, code};
use crate::stores::zookeeper::life::Life;
use crate::system::{Socket, has_room};
use crate::time::{Clock, Moment, millis};

/// How long one write may block: it is tried only where the socket takes something, and that may be less than
/// is written.
const WRITE_LIMIT: Duration = Duration::from_millis(1);

/// A socket that one thread reads while others write, one at a time.
pub(super) enum ZooKeeperStream {
    Tcp(Socket),
    #[cfg(feature = "tls")]
    Tls(Box<crate::tls::TlsStream>),
}

impl ZooKeeperStream {
    fn socket(&self) -> &Socket {
        match self {
            ZooKeeperStream::Tcp(socket) => socket,
            #[cfg(feature = "tls")]
            ZooKeeperStream::Tls(tls) => tls.socket(),
        }
    }

    /// Wakes the reader.
    pub(super) fn shutdown(&self) {
        drop(self.socket().shutdown(Shutdown::Both)); // an error says that it is down already
    }

    /// Writes as much of `bytes` as the socket takes now; an error of kind `WouldBlock`: nothing.
    pub(super) fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        if !has_room(self.socket(), Duration::ZERO) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let written = match self {
            ZooKeeperStream::Tcp(socket) => { socket }.write(bytes),
            #[cfg(feature = "tls")]
            ZooKeeperStream::Tls(tls) => tls.write_now(bytes),
        };
        match written {
            Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::TimedOut) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            written => written,
        }
    }
}

impl Read for &ZooKeeperStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            ZooKeeperStream::Tcp(socket) => { socket }.read(buf),
            #[cfg(feature = "tls")]
            ZooKeeperStream::Tls(tls) => tls.read(buf),
        }
    }
}

impl Write for &ZooKeeperStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ZooKeeperStream::Tcp(socket) => { socket }.write(bytes),
            #[cfg(feature = "tls")]
            ZooKeeperStream::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads and writes of a connection that is being made: all end at one moment, however many they are.
struct TimedStream<'a, S> {
    stream: S,
    socket: &'a Socket,
    deadline: Moment,
}

impl<S: Read> Read for TimedStream<'_, S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(remaining(self.deadline)?))?;
        self.stream.read(buf)
    }
}

impl<S: Write> Write for TimedStream<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(remaining(self.deadline)?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The request to a server on connecting.
pub(super) struct AskedFor<'a> {
    /// The session to go on with.
    pub(super) life: Option<&'a Life>,
    /// The server shall know this one.
    pub(super) last_transaction: i64,
    /// The time-out to ask for.
    pub(super) timeout: Duration,
}

pub(super) enum NewConnection {
    /// With the session that was asked for, or with a new one.
    New(ZooKeeperStream, Life),
    /// The session is over.
    Expired,
}

/// Connects to one server and takes up a session.
pub(super) fn connect(
    address: &ZooKeeperAddress,
    (host, port): (&Host, u16),
    asked: &AskedFor<'_>,
    deadline: Moment,
) -> Result<NewConnection> {
    let place = || format!("{host}:{port}");
    let socket = address.names.connect(host, port, deadline).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => ErrorKind::TimedOut,
            _ => ErrorKind::Unreachable,
        };
        Error::new(kind, "connect", format!("no connection to {}", place())).with_source(error)
    })?;
    let secured =
        secured(address, host.name(), socket, deadline).map_err(|error| broken(error).during("connect"))?;
    let mut stream = TimedStream { stream: &secured, socket: secured.socket(), deadline };
    let timeout = asked.life.map_or(asked.timeout, |life| life.timeout);
    let greeting = Greeting {
        last_transaction: asked.last_transaction,
        timeout_ms: i32::try_from(millis(timeout)).unwrap_or(i32::MAX),
        session: asked.life.map_or(0, |life| life.id),
        password: asked.life.map_or(&[0; 16], |life| &life.password),
    };
    let greeted = stream.write_all(&greeting.frame()).map_err(broken);
    let answer = greeted.and_then(|()| read_frame(&mut stream)).map_err(|error| match error.kind() {
        ErrorKind::Unreachable => {
            let words = format!(
                "{} closed the connection: it does not serve clients now, it is behind what this client has seen, or this \
                 address has as many connections as maxClientCnxns allows",
                place()
            );
            Error::new(ErrorKind::Unreachable, "connect", words).with_source(error)
        }
        _ => error.during("connect"),
    })?;
    let welcome = Welcome::read(&answer)?;
    let granted = u64::try_from(welcome.timeout_ms).unwrap_or(0);
    if granted == 0 {
        return Ok(NewConnection::Expired);
    }
    let granted = Duration::from_millis(granted);
    if asked.life.is_some_and(|life| granted < life.timeout) {
        let words = format!("{} would end the session sooner than was agreed on", place());
        return Err(Error::new(ErrorKind::Unreachable, "connect", words));
    }
    if let Some(login) = &address.login {
        stream.write_all(&jute::authentication(login)).map_err(broken)?;
        authenticated(&mut stream)?;
    }
    // From here on the reading thread waits as long as it takes: the keeping thread hangs up on a dead
    // server.
    let socket = secured.socket();
    let limits = socket.set_read_timeout(None).and_then(|()| socket.set_write_timeout(Some(WRITE_LIMIT)));
    limits.map_err(broken)?;
    Ok(NewConnection::New(secured, Life::new(welcome.session, welcome.password, granted)))
}

#[cfg(feature = "tls")]
fn secured(
    address: &ZooKeeperAddress,
    host: &str,
    socket: Socket,
    deadline: Moment,
) -> io::Result<ZooKeeperStream> {
    let Some(config) = &address.tls else { return Ok(ZooKeeperStream::Tcp(socket)) };
    let half = socket.try_clone()?;
    let wire = TimedStream { stream: &half, socket: &half, deadline };
    Ok(ZooKeeperStream::Tls(Box::new(crate::tls::TlsStream::connect(host, config, socket, wire)?)))
}

#[cfg(not(feature = "tls"))]
#[expect(clippy::unnecessary_wraps, reason = "a handshake can fail")]
fn secured(
    _address: &ZooKeeperAddress,
    _host: &str,
    socket: Socket,
    _by: Moment,
) -> io::Result<ZooKeeperStream> {
    Ok(ZooKeeperStream::Tcp(socket))
}

fn authenticated(from: &mut impl Read) -> Result<()> {
    loop {
        let frame = read_frame(from)?;
        let (header, _) = Header::read(&frame)?;
        match (header.number, header.error) {
            (jute::AUTH, 0) => return Ok(()),
            (jute::AUTH, code) => {
                let why = if code == code::AUTH_FAILED {
                    ""
                } else {
                    ": its provider of digests did not take them"
                };
                let words = format!("the server rejected the user name or the password{why}");
                return Err(Error::new(ErrorKind::Authentication, "connect", words));
            }
            _ => {}
        }
    }
}

/// The time left until `deadline`, never zero: as a socket's time-out, zero is refused.
fn remaining(deadline: Moment) -> io::Result<Duration> {
    let left = deadline.since(Clock::System.now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The next message.
fn read_frame(from: &mut impl Read) -> Result<Vec<u8>> {
    let length = read_length(from)?;
    if length > LONGEST_FRAME {
        return Err(foreign());
    }
    read_bytes(from, length)
}

/// The next reply on a connection on which the server has been heard. Of one that is too long only the header
/// is kept, with an error code: the connection and what is held over it do not end for a long list.
pub(super) fn read_reply(from: &mut impl Read) -> Result<Vec<u8>> {
    let length = read_length(from)?;
    if length <= LONGEST_FRAME {
        return read_bytes(from, length);
    }
    let Some(rest) = length.checked_sub(Header::BYTES).filter(|_| length <= LONGEST_SKIPPED) else {
        return Err(foreign());
    };
    let mut header = read_bytes(from, Header::BYTES)?;
    let rest = u64::try_from(rest).unwrap_or(u64::MAX);
    if io::copy(&mut from.take(rest), &mut io::sink()).map_err(broken)? < rest {
        return Err(broken(io::ErrorKind::UnexpectedEof.into()));
    }
    header.truncate(Header::BYTES - size_of::<i32>());
    header.extend(code::TOO_LONG.to_be_bytes());
    Ok(header)
}

/// A length beyond this is no length: another protocol, or a stream out of step.
const LONGEST_SKIPPED: usize = 1 << 29;

fn read_length(from: &mut impl Read) -> Result<usize> {
    let mut length = [0; 4];
    from.read_exact(&mut length).map_err(broken)?;
    Ok(usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX))
}

fn read_bytes(from: &mut impl Read, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).map_err(broken)?;
    Ok(bytes)
}

fn foreign() -> Error {
    Error::new(ErrorKind::Protocol, "read", "the server does not speak ZooKeeper's protocol")
}

fn broken(error: io::Error) -> Error {
    #[cfg(feature = "tls")]
    if let Some((kind, words)) = crate::tls::refusal(&error) {
        return Error::new(kind, "read", words).with_source(error);
    }
    let (kind, words) = match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            (ErrorKind::TimedOut, "the server did not answer in time")
        }
        _ => (ErrorKind::Unreachable, "the connection broke"),
    };
    Error::new(kind, "read", words).with_source(error)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::config::ServerOptions;
    use crate::sync::thread;

    /// A server that sends a byte each 20 ms for as long as somebody listens, as if there were no end to a
    /// greeting.
    fn dripping() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let drip = move || {
            let mut client = listener.accept().unwrap().0;
            let mut bytes = [0, 0, 1, 0].into_iter().chain(std::iter::repeat(0));
            while client.write_all(&[bytes.next().unwrap()]).is_ok() {
                crossbeam_channel::after(Duration::from_millis(20)).recv().unwrap();
            }
        };
        thread::Builder::new().spawn(drip).unwrap();
        port
    }

    #[test]
    fn a_reply_that_is_too_long_is_an_error_of_its_own_and_the_next_is_read() {
        let header = |error: i32| {
            let fields = [&7_i32.to_be_bytes()[..], &9_i64.to_be_bytes(), &error.to_be_bytes()];
            fields.concat()
        };
        let long = u32::try_from(LONGEST_FRAME + 1).unwrap();
        let body = vec![b'x'; LONGEST_FRAME + 1 - Header::BYTES];
        let next = [&16_u32.to_be_bytes()[..], &header(-101)].concat();
        let sent = [&long.to_be_bytes()[..], &header(0), &body, &next].concat();
        let mut from = &sent[..];
        for error in [code::TOO_LONG, -101] {
            assert_eq!(read_reply(&mut from).unwrap(), header(error));
        }
        assert!(from.is_empty());
        // Cut short, and of another protocol.
        assert!(read_reply(&mut &sent[..100]).is_err_and(|error| error.kind() == ErrorKind::Unreachable));
        assert!(read_reply(&mut &b"HTTP/1.1"[..]).is_err_and(|error| error.kind() == ErrorKind::Protocol));
    }

    #[test]
    fn a_server_that_drips_has_no_more_time_than_one_that_is_silent() {
        let options = ServerOptions { url: "zk://127.0.0.1".to_owned(), ..ServerOptions::default() };
        let address = ZooKeeperAddress::new(&options).unwrap();
        let asked = AskedFor { life: None, last_transaction: 0, timeout: Duration::from_secs(30) };
        let (begun, patience) = (Clock::System.now(), Duration::from_millis(400));
        let failed = connect(&address, (&Host::named("127.0.0.1"), dripping()), &asked, begun.plus(patience));
        assert!(failed.is_err_and(|error| error.kind() == ErrorKind::TimedOut));
        // Dripped to its end the frame would take five seconds.
        assert!(Clock::System.now().since(begun) < patience * 6);
    }
}
