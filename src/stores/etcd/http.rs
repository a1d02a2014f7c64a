//! One connection to a member: HTTP/1.1, as much of it as etcd's gateway speaks.
//!
//! The socket is the crate's own, for the reasons that hold for Redis too: an exchange ends at one moment, not each read
//! of it; another thread can hang up on one that reads for long; and it is known whether a request has left.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use crate::hosts::Hosts;
use crate::stores::etcd::address::EtcdMember;
use crate::time::{Clock, Moment};

/// The longest answer that is read: a batch of a hundred locks whose names are all as long as can be.
const LONGEST: usize = 32 * 1024 * 1024;
/// The longest line of a head, and of what says how long a chunk is.
const LONGEST_LINE: usize = 64 * 1024;
/// How much is asked of the socket at once.
const PIECE: usize = 8 * 1024;
/// How long one write may block.
const WRITE_LIMIT: Duration = Duration::from_secs(3);

/// A connection that one thread uses at a time.
pub(super) struct Connection {
    stream: HttpStream,
    /// What was read and not yet used, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    /// Up to here no line ends that begins at `start`.
    no_line: usize,
}

enum HttpStream {
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<crate::tls::TlsStream>),
}

/// How an answer's body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Bytes(usize),
    Chunked,
}

/// An answer, whole.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    /// The server keeps the connection.
    pub(super) stays: bool,
}

/// The beginning of an answer.
struct Head {
    status: u16,
    length: Length,
    stays: bool,
}

impl Connection {
    /// Connects until `deadline` at the latest.
    pub(super) fn open(member: &EtcdMember, hosts: &Arc<Hosts>, deadline: Moment) -> io::Result<Connection> {
        let socket = hosts.connect(&member.host, member.port, deadline)?;
        socket.set_write_timeout(Some(WRITE_LIMIT))?;
        let stream = HttpStream::over(socket, member, deadline)?;
        Ok(Connection { stream, buffer: Vec::new(), start: 0, no_line: 0 })
    }

    /// Whether the server has not hung up, as far as this machine knows; no round trip.
    pub(super) fn is_alive(&self) -> bool {
        let mut asked =
            [rustix::event::PollFd::from_borrowed_fd(self.socket().as_fd(), rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // Nothing to read is as it should be. The end, an error, and bytes that nobody asked for are not.
        self.rest().is_empty() && matches!(rustix::event::poll(&mut asked, Some(&now)), Ok(0))
    }

    /// A second handle, by which another thread can hang up.
    pub(super) fn hanger_up(&self) -> io::Result<HangerUp> {
        self.socket().try_clone().map(HangerUp)
    }

    pub(super) fn send(&mut self, request: &[u8], deadline: Moment) -> io::Result<()> {
        let mut rest = request;
        while !rest.is_empty() {
            remaining(deadline)?;
            let written = match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
            rest = rest.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// The answer, whole by `deadline`.
    pub(super) fn receive(&mut self, deadline: Moment) -> io::Result<Response> {
        let head = self.head(deadline)?;
        let body = match head.length {
            Length::Bytes(length) => self.take(length, deadline)?,
            Length::Chunked => {
                let mut body = Vec::new();
                while let Some(chunk) = self.chunk(deadline)? {
                    body.extend_from_slice(&chunk);
                    check_length(body.len())?;
                }
                body
            }
        };
        Ok(Response { status: head.status, body, stays: head.stays })
    }

    /// The beginning of an answer that comes bit by bit; what follows is read by [`chunk`](Self::chunk). An answer that
    /// is whole, which only an error is, comes as such.
    pub(super) fn receive_begun(&mut self, deadline: Moment) -> io::Result<Option<Response>> {
        let head = self.head(deadline)?;
        if head.status == 200 && head.length == Length::Chunked {
            return Ok(None);
        }
        let body = match head.length {
            Length::Bytes(length) => self.take(length, deadline)?,
            Length::Chunked => self.chunk(deadline)?.unwrap_or_default(),
        };
        Ok(Some(Response { status: head.status, body, stays: false }))
    }

    /// The next part of an answer that comes bit by bit; `None`: that was all. When the time is over before the part is
    /// whole, nothing of it is lost, and it can be asked for again.
    pub(super) fn chunk(&mut self, deadline: Moment) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(line) = self.whole_line()? {
                let digits = line.split(|&byte| byte == b';').next().unwrap_or_default();
                let length = std::str::from_utf8(digits)
                    .ok()
                    .and_then(|digits| usize::from_str_radix(digits.trim(), 16).ok())
                    .ok_or_else(unreadable)?;
                check_length(length)?;
                let begins = line.len() + 2;
                if length == 0 {
                    self.start += begins;
                    while !self.line(deadline)?.is_empty() {} // the trailer
                    return Ok(None);
                }
                if let Some(chunk) = self.rest().get(begins..begins + length)
                    && self.rest().len() >= begins + length + 2
                {
                    let chunk = chunk.to_vec();
                    self.start += begins + length + 2;
                    return Ok(Some(chunk));
                }
            }
            self.fill(deadline)?;
        }
    }

    fn head(&mut self, deadline: Moment) -> io::Result<Head> {
        let first = self.line(deadline)?;
        let mut words = first.split(' ');
        let stays = words.next() == Some("HTTP/1.1");
        let status = words.next().and_then(|status| status.parse().ok()).ok_or_else(unreadable)?;
        let mut head = Head { status, length: Length::Bytes(0), stays };
        loop {
            let line = self.line(deadline)?;
            if line.is_empty() {
                return Ok(head);
            }
            let (name, value) = line.split_once(':').ok_or_else(unreadable)?;
            match (name.to_ascii_lowercase().as_str(), value.trim()) {
                ("content-length", length) => {
                    head.length = Length::Bytes(length.parse().ok().ok_or_else(unreadable)?);
                }
                ("transfer-encoding", "chunked") => head.length = Length::Chunked,
                ("connection", "close") => head.stays = false,
                _ => {}
            }
        }
    }

    /// The next line, without its end.
    fn line(&mut self, deadline: Moment) -> io::Result<String> {
        loop {
            if let Some(line) = self.whole_line()? {
                let text = String::from_utf8_lossy(&line).into_owned();
                self.start += line.len() + 2;
                return Ok(text);
            }
            self.fill(deadline)?;
        }
    }

    /// The bytes before the first end of a line. Looks at no byte twice, however many reads it takes.
    fn whole_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let from = self.no_line.max(self.start);
        let unseen = self.buffer.get(from..).unwrap_or_default();
        let Some(end) = unseen.windows(2).position(|pair| pair == b"\r\n") else {
            // The last byte may be the first of two.
            self.no_line = self.buffer.len().saturating_sub(1).max(self.start);
            let length = self.no_line - self.start;
            return if length > LONGEST_LINE { Err(unreadable()) } else { Ok(None) };
        };
        self.no_line = from + end;
        Ok(self.buffer.get(self.start..self.no_line).map(<[u8]>::to_vec))
    }

    fn take(&mut self, length: usize, deadline: Moment) -> io::Result<Vec<u8>> {
        check_length(length)?;
        loop {
            if let Some(bytes) = self.rest().get(..length) {
                let bytes = bytes.to_vec();
                self.start += length;
                return Ok(bytes);
            }
            self.fill(deadline)?;
        }
    }

    fn rest(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// Reads something more, until `deadline`.
    fn fill(&mut self, deadline: Moment) -> io::Result<()> {
        self.buffer.drain(..self.start.min(self.buffer.len()));
        self.no_line = self.no_line.saturating_sub(self.start);
        self.start = 0;
        check_length(self.buffer.len())?;
        let mut piece = [0; PIECE];
        loop {
            self.socket().set_read_timeout(Some(remaining(deadline)?))?;
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.buffer.extend_from_slice(piece.get(..read).unwrap_or_default());
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What the system calls this differs.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn socket(&self) -> &TcpStream {
        match &self.stream {
            HttpStream::Tcp(socket) => socket,
            #[cfg(feature = "tls")]
            HttpStream::Tls(tls) => tls.socket(),
        }
    }
}

impl HttpStream {
    #[cfg(feature = "tls")]
    fn over(socket: TcpStream, member: &EtcdMember, deadline: Moment) -> io::Result<HttpStream> {
        let Some(config) = &member.tls else { return Ok(HttpStream::Tcp(socket)) };
        let half = socket.try_clone()?;
        let tls = crate::tls::TlsStream::connect(
            member.host.name(),
            config,
            socket,
            Shaking { socket: half, deadline },
        )?;
        Ok(HttpStream::Tls(Box::new(tls)))
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unnecessary_wraps, reason = "a handshake can fail")]
    fn over(socket: TcpStream, _member: &EtcdMember, _by: Moment) -> io::Result<HttpStream> {
        Ok(HttpStream::Tcp(socket))
    }

    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            HttpStream::Tcp(socket) => { socket }.read(buf),
            #[cfg(feature = "tls")]
            HttpStream::Tls(tls) => tls.read(buf),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            HttpStream::Tcp(socket) => { socket }.write(bytes),
            #[cfg(feature = "tls")]
            HttpStream::Tls(tls) => tls.write(bytes),
        }
    }
}

/// A socket whose reads all end at one moment, for a handshake.
#[cfg(feature = "tls")]
struct Shaking {
    socket: TcpStream,
    deadline: Moment,
}

#[cfg(feature = "tls")]
impl Read for Shaking {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(remaining(self.deadline)?))?;
        self.socket.read(buf)
    }
}

#[cfg(feature = "tls")]
impl Write for Shaking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        remaining(self.deadline)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends a connection that another thread reads.
pub(super) struct HangerUp(TcpStream);

impl HangerUp {
    pub(super) fn hang_up(&self) {
        drop(self.0.shutdown(Shutdown::Both)); // an error says that it is down already
    }
}

fn unreadable() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn check_length(length: usize) -> io::Result<()> {
    if length > LONGEST { Err(unreadable()) } else { Ok(()) }
}

/// What is left until `deadline`, never zero: as a socket's time-out, zero is refused.
fn remaining(deadline: Moment) -> io::Result<Duration> {
    let remaining = deadline.since(Clock::System.now());
    if remaining.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(remaining) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::Host;
    use std::net::TcpListener;

    /// A connection to a server that answers any request with `answer` and hangs up.
    fn connection(answer: &'static [u8]) -> Connection {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        crate::sync::thread::Builder::new()
            .spawn(move || server.accept().unwrap().0.write_all(answer).unwrap())
            .unwrap();
        let member = EtcdMember::new(Host::named("127.0.0.1"), port);
        Connection::open(&member, &Arc::default(), deadline()).unwrap()
    }

    fn deadline() -> Moment {
        Clock::System.after(Duration::from_secs(5))
    }

    #[test]
    fn a_whole_answer_is_read_by_its_length() {
        let mut connection = connection(
            b"HTTP/1.1 404 Not Found\r\nA: b\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\n",
        );
        let response = connection.receive(deadline()).unwrap();
        assert_eq!((response.status, response.body.as_slice()), (404, b"hello".as_slice()));
        assert!(response.stays);
        assert_eq!(connection.receive(deadline()).unwrap().status, 200);
        let ended = connection.receive(deadline()).err().unwrap();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn chunks_are_put_together_and_the_trailer_is_skipped() {
        let mut connection = connection(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nConnection: close\r\n\r\n\
              3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nHTTP/1.1 201 Created\r\n\r\n",
        );
        let response = connection.receive(deadline()).unwrap();
        assert_eq!(response.body, b"abc0123456789");
        assert!(!response.stays);
        assert_eq!(connection.receive(deadline()).unwrap().status, 201);
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for answer in [
            b"SSH-2.0-OpenSSH\r\n".as_slice(),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        ] {
            let error = connection(answer).receive(deadline()).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{}", String::from_utf8_lossy(answer));
        }
    }

    #[test]
    fn a_line_without_an_end_is_looked_at_once_and_not_kept() {
        let mut connection = connection(b"");
        while connection.whole_line().is_ok_and(|line| line.is_none()) {
            connection.buffer.push(b'x');
            let unseen = connection.buffer.len() - connection.no_line;
            assert!(unseen <= 2, "{unseen} bytes are looked at again");
        }
        assert!(connection.buffer.len() <= LONGEST_LINE + 2, "{}", connection.buffer.len());
        connection.start = connection.buffer.len();
        connection.buffer.extend_from_slice(b"next\r\n");
        assert_eq!(connection.whole_line().unwrap().as_deref(), Some(b"next".as_slice()));
    }

    #[test]
    fn a_chunk_that_is_late_can_be_asked_for_again() {
        let mut connection = connection(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab");
        assert!(connection.receive_begun(deadline()).unwrap().is_none());
        let late = connection.chunk(Clock::System.now()).err().unwrap();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        connection.buffer.extend_from_slice(b"c\r\n");
        assert_eq!(connection.chunk(deadline()).unwrap().as_deref(), Some(b"abc".as_slice()));
    }
}
