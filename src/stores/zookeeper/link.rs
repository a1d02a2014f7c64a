//! One connection: connects within a deadline, and reads frame by frame.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::stores::zookeeper::address::ZooKeeperAddress;
use crate::stores::zookeeper::jute::{self, Header, LONGEST_FRAME, Welcome, code};
use crate::stores::zookeeper::life::Life;
use crate::time::{Clock, Moment, millis};
use crate::wire::{self, Timed, Wire};

/// The longest time that one write may block. Whatever the socket does not take is written later.
const WRITE_LIMIT: Duration = Duration::from_millis(1);

/// Connects for the session `life`, or for a new one. `None` if `life` has expired.
pub(super) fn connect(
    address: &ZooKeeperAddress,
    at: usize,
    (life, last_transaction, timeout): (Option<&Life>, i64, Duration),
    deadline: Moment,
) -> Result<Option<(Wire, Life)>> {
    let place = || address.servers.place(at);
    let left = deadline.since(Clock::System.now()).max(WRITE_LIMIT);
    let wire = address.servers.connect(at, left, deadline).map_err(|error| {
        let error = wire::broken("connect", error);
        if error.kind() == ErrorKind::Tls {
            return error;
        }
        let words = format!("no connection to {}: check host and port", place());
        Error::new(error.kind(), "connect", words).with_source(error)
    })?;
    let armed = Cell::default();
    let mut stream = Timed::new(&wire, deadline, &armed);
    let (id, password, timeout) = match life {
        Some(life) => (life.id, &*life.password, life.timeout),
        None => (0, [0; 16].as_slice(), timeout),
    };
    let timeout_ms = i32::try_from(millis(timeout)).unwrap_or(i32::MAX);
    let greeting = jute::greeting(last_transaction, timeout_ms, id, password);
    let greeted = stream.write_all(&greeting).map_err(broken);
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
        return Ok(None);
    }
    let granted = Duration::from_millis(granted);
    Error::when(life.is_some_and(|life| granted < life.timeout), ErrorKind::Unreachable, "connect", || {
        format!("{} offers a shorter session time-out than was agreed on", place())
    })?;
    if let Some(login) = &address.login {
        stream.write_all(&jute::authentication(login)).map_err(broken)?;
        authenticated(&mut stream)?;
    }
    // Reads have no time-out from here on, because the thread that keeps the session alive drops connections
    // to silent servers.
    let limits = wire.set_read_timeout(None).and_then(|()| wire.set_write_timeout(WRITE_LIMIT));
    limits.map_err(broken)?;
    Ok(Some((wire, Life::new(welcome.session, welcome.password, granted))))
}

fn authenticated(from: &mut impl Read) -> Result<()> {
    loop {
        let frame = read_frame(from)?;
        let (header, _) = Header::read(&frame)?;
        match (header.number, header.error) {
            (jute::AUTH, 0) => return Ok(()),
            (jute::AUTH, code) => {
                let why = if code == code::AUTH_FAILED { "" } else { ": its digest authentication failed" };
                let words = format!("the server rejected the user name or the password{why}");
                return Err(Error::new(ErrorKind::Authentication, "connect", words));
            }
            _ => {}
        }
    }
}

/// The longest reply that is skipped. A greater length means another protocol, or lost framing.
const LONGEST_SKIPPED: usize = 1 << 29;

fn read_frame(from: &mut impl Read) -> Result<Vec<u8>> {
    let length = read_length(from)?;
    if length > LONGEST_FRAME {
        return Err(foreign());
    }
    read_bytes(from, length)
}

/// The next reply. A reply that is too long is reduced to its header and an error code, so that a long list
/// does not end the connection.
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
    Error::new(
        ErrorKind::Protocol,
        "read",
        "the server does not speak ZooKeeper's protocol: check host and port",
    )
}

fn broken(error: io::Error) -> Error {
    wire::broken("read", error)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::config::ServerOptions;
    use crate::sync::thread;

    /// A server that sends a byte every 20 ms, first the length of a frame of 256 bytes.
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
    fn the_reply_after_a_too_long_one_is_read() {
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
        assert!(read_reply(&mut &sent[..100]).is_err_and(|error| error.kind() == ErrorKind::Unreachable));
        assert!(read_reply(&mut &b"HTTP/1.1"[..]).is_err_and(|error| error.kind() == ErrorKind::Protocol));
    }

    #[test]
    fn a_server_sending_bytewise_does_not_extend_the_connect_timeout() {
        let url = format!("zk://127.0.0.1:{}", dripping());
        let options = ServerOptions { url, ..ServerOptions::default() };
        let address = ZooKeeperAddress::new(&options).unwrap();
        let asked = (None, 0, Duration::from_secs(30));
        let (begun, patience) = (Clock::System.now(), Duration::from_millis(400));
        let failed = connect(&address, 0, asked, begun.plus(patience));
        assert!(failed.is_err_and(|error| error.kind() == ErrorKind::TimedOut));
        // The whole frame would take five seconds.
        assert!(Clock::System.now().since(begun) < patience * 6);
    }
}
