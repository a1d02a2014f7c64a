//! One connection to a member, with the part of HTTP/1.1 that etcd's gateway uses. `httparse` parses heads
//! and chunk sizes; this module limits size and time.
//!
//! No HTTP client crate is used, because three things are needed: a deadline for the whole exchange, a way
//! for another thread to end a long read, and knowing whether a request was sent.

use std::cell::Cell;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use httparse::{EMPTY_HEADER, Header, Status, parse_chunk_size, parse_headers};

use crate::stores::etcd::address::EtcdAddress;
use crate::time::Moment;
use crate::wire::{Timed, Wire, is_late};

/// Longest answer accepted: enough for a batch of a hundred locks with names of the greatest length.
const LONGEST: usize = 32 * 1024 * 1024;
const LONGEST_HEAD: usize = 64 * 1024;
const MOST_HEADERS: usize = 100;
const PIECE: usize = 8 * 1024;
const WRITE_LIMIT: Duration = Duration::from_secs(3);

pub(super) struct Connection {
    /// The member's index in the list of members; `member` is its host and port.
    pub(super) at: usize,
    pub(super) member: String,
    pub(super) wire: Arc<Wire>,
    armed: Cell<Duration>,
    /// The bytes from `start` on were read from the socket, but not yet used.
    buffer: Vec<u8>,
    start: usize,
}

pub(super) struct Response {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    pub(super) stays: bool,
}

struct Head {
    status: u16,
    /// `None` if the body comes in chunks.
    length: Option<usize>,
    stays: bool,
}

impl Connection {
    pub(super) fn open(at: usize, address: &EtcdAddress, deadline: Moment) -> io::Result<Connection> {
        let wire = Arc::new(address.members.connect(at, WRITE_LIMIT, deadline)?);
        let member = address.members.place(at);
        Ok(Connection { at, member, wire, armed: Cell::default(), buffer: Vec::new(), start: 0 })
    }

    /// Whether the server seems to have kept the connection open. Only looks at the local socket.
    pub(super) fn is_alive(&self) -> bool {
        // A healthy idle connection has nothing to read: no end of the stream, no error, and no bytes.
        self.rest().is_empty() && !self.wire.has_bytes()
    }

    pub(super) fn send(&self, request: &[u8], deadline: Moment) -> io::Result<()> {
        self.wire.write_all(request, deadline)
    }

    pub(super) fn receive(&mut self, deadline: Moment) -> io::Result<Response> {
        let Head { status, length, stays } = self.head(deadline)?;
        Ok(Response { status, body: self.body(length, deadline)?, stays })
    }

    /// Reads the head of an answer whose body comes in chunks, for [`chunk`](Self::chunk). Returns any other
    /// answer, which is the server's error, as a whole.
    pub(super) fn receive_begun(&mut self, deadline: Moment) -> io::Result<Option<Response>> {
        let Head { status, length, .. } = self.head(deadline)?;
        if status == 200 && length.is_none() {
            return Ok(None);
        }
        Ok(Some(Response { status, body: self.body(length, deadline)?, stays: false }))
    }

    fn body(&mut self, length: Option<usize>, deadline: Moment) -> io::Result<Vec<u8>> {
        if let Some(length) = length {
            return self.take(length, deadline);
        }
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk(deadline)? {
            body.extend_from_slice(&chunk);
            check_length(body.len())?;
        }
        Ok(body)
    }

    /// The next chunk; `None` after the last one. After a time-out, the call can be repeated.
    pub(super) fn chunk(&mut self, deadline: Moment) -> io::Result<Option<Vec<u8>>> {
        let (begins, length) = self.parsed(chunk_size, deadline)?;
        if length == 0 {
            self.start += begins;
            let (trailer, ()) = self.parsed(trailer, deadline)?;
            self.start += trailer;
            return Ok(None);
        }
        check_length(length)?;
        let end = begins + length;
        while self.rest().len() < end + 2 {
            self.fill(deadline)?;
        }
        let chunk = self.rest().get(begins..end).unwrap_or_default().to_vec();
        self.start += end + 2;
        Ok(Some(chunk))
    }

    fn head(&mut self, deadline: Moment) -> io::Result<Head> {
        let (length, head) = self.parsed(head, deadline)?;
        self.start += length;
        Ok(head)
    }

    /// Reads until the unused bytes begin with a complete head or chunk size, as `parse` says; returns its
    /// length and value. `parse` returns `None` for bytes that are malformed.
    fn parsed<T>(
        &mut self,
        parse: impl Fn(&[u8]) -> Option<Status<(usize, T)>>,
        deadline: Moment,
    ) -> io::Result<(usize, T)> {
        let mut seen = 0;
        loop {
            let rest = self.rest();
            // Parses only at the end of a line, so that single bytes do not cause a parse each.
            let line_ends = rest.get(seen..).unwrap_or_default().windows(2).any(|pair| pair == b"\r\n");
            if line_ends && let Status::Complete(part) = parse(rest).ok_or_else(unreadable)? {
                return Ok(part);
            }
            // The last byte may be the CR of a `CRLF`, so the next search includes this byte.
            seen = rest.len().saturating_sub(1);
            if seen > LONGEST_HEAD {
                return Err(unreadable());
            }
            self.fill(deadline)?;
        }
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

    fn fill(&mut self, deadline: Moment) -> io::Result<()> {
        self.buffer.drain(..self.start.min(self.buffer.len()));
        self.start = 0;
        check_length(self.buffer.len())?;
        let mut piece = [0; PIECE];
        match Timed::new(&self.wire, deadline, &self.armed).read(&mut piece) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.buffer.extend_from_slice(piece.get(..read).unwrap_or_default());
                Ok(())
            }
            Err(error) if is_late(&error) => Err(io::ErrorKind::TimedOut.into()),
            Err(error) => Err(error),
        }
    }
}

fn head(bytes: &[u8]) -> Option<Status<(usize, Head)>> {
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let Status::Complete(length) = response.parse(bytes).ok()? else { return Some(Status::Partial) };
    let stays = response.version == Some(1);
    let mut head = Head { status: response.code?, length: Some(0), stays };
    for Header { name, value } in response.headers.iter() {
        let value = std::str::from_utf8(value).unwrap_or_default();
        match (name.to_ascii_lowercase().as_str(), value) {
            ("content-length", length) => head.length = Some(length.parse().ok()?),
            ("transfer-encoding", "chunked") => head.length = None,
            ("connection", "close") => head.stays = false,
            _ => {}
        }
    }
    Some(Status::Complete((length, head)))
}

fn chunk_size(bytes: &[u8]) -> Option<Status<(usize, usize)>> {
    // `httparse` reads a line without digits as size zero, which would end the answer.
    bytes.first().filter(|first| first.is_ascii_hexdigit())?;
    Some(match parse_chunk_size(bytes).ok()? {
        Status::Complete((begins, length)) => Status::Complete((begins, usize::try_from(length).ok()?)),
        Status::Partial => Status::Partial,
    })
}

fn trailer(bytes: &[u8]) -> Option<Status<(usize, ())>> {
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    Some(match parse_headers(bytes, &mut headers).ok()? {
        Status::Complete((length, _)) => Status::Complete((length, ())),
        Status::Partial => Status::Partial,
    })
}

fn unreadable() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn check_length(length: usize) -> io::Result<()> {
    if length > LONGEST { Err(unreadable()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::config::ServerOptions;
    use crate::time::Clock;
    use std::net::TcpListener;

    fn connection(answer: &'static [u8]) -> Connection {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        crate::sync::thread::Builder::new()
            .spawn(move || server.accept().unwrap().0.write_all(answer).unwrap())
            .unwrap();
        let options = ServerOptions { url: format!("etcd://127.0.0.1:{port}"), ..ServerOptions::default() };
        Connection::open(0, &EtcdAddress::new(&options).unwrap(), deadline()).unwrap()
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
    fn malformed_answers_are_errors() {
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
    fn an_http_response_head_beyond_its_limit_is_refused() {
        let line = vec![b'x'; LONGEST_HEAD + PIECE].leak();
        let headers = format!("HTTP/1.1 200 OK\r\n{}", "A: b\r\n".repeat(MOST_HEADERS + 1)).leak();
        for answer in [&*line, headers.as_bytes()] {
            let mut connection = connection(answer);
            let error = connection.receive(deadline()).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(connection.buffer.len() <= LONGEST_HEAD + PIECE, "{}", connection.buffer.len());
        }
    }

    #[test]
    fn an_incomplete_http_head_is_parsed_only_at_line_ends() {
        let mut connection = connection(b"\r\n");
        connection.buffer.extend_from_slice(b"one\r\ntwo\r");
        let parses = std::cell::Cell::new(0);
        let parse = |bytes: &[u8]| {
            parses.set(parses.get() + 1);
            Some(if bytes.ends_with(b"\r\r\n") { Status::Complete((0, ())) } else { Status::Partial })
        };
        connection.parsed(parse, deadline()).unwrap();
        assert_eq!(parses.get(), 2);
    }

    #[test]
    fn chunked_bodies_may_have_trailers() {
        let begins = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
        for (rest, is_answer) in
            [("0\r\n\r\n", true), ("0\r\nA: b\r\nC: d\r\n\r\n", true), ("\r\n", false), (";x\r\n", false)]
        {
            let answer = format!("{begins}{rest}").leak();
            let mut connection = connection(answer.as_bytes());
            match connection.receive(deadline()) {
                Ok(response) => assert!(is_answer && response.body == b"a" && connection.rest().is_empty()),
                Err(error) => assert!(!is_answer && error.kind() == io::ErrorKind::InvalidData, "{error}"),
            }
        }
    }

    #[test]
    fn reading_a_chunk_can_continue_after_a_timeout() {
        let mut connection = connection(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab");
        assert!(connection.receive_begun(deadline()).unwrap().is_none());
        let late = connection.chunk(Clock::System.now()).err().unwrap();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        connection.buffer.extend_from_slice(b"c\r\n");
        assert_eq!(connection.chunk(deadline()).unwrap().as_deref(), Some(b"abc".as_slice()));
    }
}

#[cfg(all(test, leasehold_fuzz))]
mod fuzz {
    use std::hint::black_box;

    use super::*;
    use crate::fuzz::{each, nearly};

    const SEEDS: &[&[u8]] = &[
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"A;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
    ];

    #[test]
    fn any_answer_is_read_or_refused() {
        each(nearly(SEEDS), Vec::len, |bytes| {
            if let Some(Status::Complete((length, _))) = head(bytes) {
                assert!(length <= bytes.len(), "the head was said to be longer than the answer");
            }
            black_box((chunk_size(bytes), trailer(bytes)));
        });
    }
}
