//! One request and one answer per connection, with limits on all that a client can make large or slow.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;

use crate::clock::Moment;
use crate::say::{Exit, Say};

const MOST_CONNECTIONS: usize = 64;
const MOST_BYTES: usize = 8 * 1024;
const MOST_HEADERS: usize = 64;
/// Time limit for the arrival of the whole request, in however many pieces.
const TO_ASK: Duration = Duration::from_secs(5);
const TO_TAKE: Duration = Duration::from_secs(10);
const TO_CLOSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// `None`: a client of HTTP/1.0 sent no `Host`. Browsers always send it.
    pub(crate) host: Option<String>,
    pub(crate) local: SocketAddr,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) headers: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn text(status: u16, words: &str) -> Answer {
        let content_type = "text/plain; charset=utf-8";
        Answer { status, content_type, headers: String::new(), body: format!("{words}\n") }
    }

    fn bytes(&self, has_body: bool) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            421 => "Misdirected Request",
            431 => "Request Header Fields Too Large",
            _ => "Service Unavailable",
        };
        let mut bytes = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n{}\r\n",
            self.status,
            self.content_type,
            self.body.len(),
            self.headers,
        )
        .into_bytes();
        if has_body {
            bytes.extend_from_slice(self.body.as_bytes());
        }
        bytes
    }
}

pub(crate) fn listen(address: &str, say: Say) -> Result<TcpListener, Exit> {
    TcpListener::bind(address).map_err(|error| {
        let is_wrong = error.kind() == io::ErrorKind::InvalidInput;
        let exit = if is_wrong { Exit::Usage } else { Exit::Internal };
        say.error(&format!("cannot listen on {address}: {error}"), exit);
        exit
    })
}

pub(crate) fn announce(address: SocketAddr, say: Say) {
    let words = format!("serving http://{address}/");
    say.notice("serving", &words, &json!({"address": address.to_string()}));
}

/// Refuses all methods except GET and HEAD, which monitoring programs use.
pub(crate) fn refusal(request: &Request) -> Option<Answer> {
    let refused = !matches!(request.method.as_str(), "GET" | "HEAD");
    refused.then(|| {
        let words = Answer::text(405, "nothing can be changed here");
        Answer { headers: "Allow: GET, HEAD\r\n".to_owned(), ..words }
    })
}

pub(crate) fn start(
    listener: TcpListener,
    answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    say: Say,
) -> Result<(), Exit> {
    let accepts =
        std::thread::Builder::new().name("accept".to_owned()).spawn(move || serve(&listener, answer));
    accepts.map(drop).map_err(|error| say.no_thread(&error))
}

fn serve(listener: &TcpListener, answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    let connections = Arc::new(Connections::default());
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // The usual reason is too many open files, so try again a little later.
            std::thread::park_timeout(Duration::from_millis(50));
            continue;
        };
        let Ok(place) = connections.enter(&stream) else { continue };
        let answer = Arc::clone(&answer);
        // If no thread can be started, the connection is dropped, and so closed.
        let started = std::thread::Builder::new().name("connection".to_owned()).spawn(move || {
            drop(converse(stream, &place, &*answer)); // on an error the client has gone
        });
        drop(started);
    }
}

fn converse(mut stream: TcpStream, place: &InUse, answer: &dyn Fn(&Request) -> Answer) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (answer, has_body) = match request(&mut stream)? {
        Ok(request) => {
            place.set_waits_for_us(true);
            (answer(&request), request.method != "HEAD")
        }
        Err(refusal) => (refusal, true),
    };
    place.set_waits_for_us(false);
    let mut rest = &*answer.bytes(has_body);
    let end = Moment::now().plus(TO_TAKE);
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        match stream.write(rest) {
            Ok(0) => return Ok(()),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    // A close with unread bytes would reset the connection and lose the answer, so read what still comes.
    stream.shutdown(Shutdown::Write)?;
    let (end, mut unread) = (Moment::now().plus(TO_CLOSE), [0; 1024]);
    for _ in 0..64 {
        stream.set_read_timeout(Some(left(end)?))?;
        if stream.read(&mut unread)? == 0 {
            break;
        }
    }
    Ok(())
}

fn left(end: Moment) -> io::Result<Duration> {
    let left = end.since(Moment::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn request(stream: &mut TcpStream) -> io::Result<Result<Request, Answer>> {
    let local = stream.local_addr()?;
    let end = Moment::now().plus(TO_ASK);
    let (mut bytes, mut length) = (vec![0; MOST_BYTES], 0);
    loop {
        let Some(room) = bytes.get_mut(length..).filter(|room| !room.is_empty()) else {
            return Ok(Err(Answer::text(431, "the headers are too long")));
        };
        let read = left(end).and_then(|left| {
            stream.set_read_timeout(Some(left))?;
            stream.read(room)
        });
        match read {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                return Ok(Err(Answer::text(408, "the request took too long")));
            }
            Err(error) => return Err(error),
        }
        if let Some(request) = parse(bytes.get(..length).unwrap_or_default(), local).transpose() {
            return Ok(request);
        }
    }
}

fn parse(bytes: &[u8], local: SocketAddr) -> Result<Option<Request>, Answer> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    match head.parse(bytes) {
        Ok(httparse::Status::Partial) => return Ok(None),
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(Answer::text(431, "there are too many headers")),
        Err(_) => return Err(Answer::text(400, "this is no request of HTTP/1")),
    }
    let mut hosts = head.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let host = match (hosts.next(), hosts.next()) {
        (None, _) if head.version == Some(0) => None,
        (Some(host), None) => Some(String::from_utf8_lossy(host.value).into_owned()),
        _ => return Err(Answer::text(400, "a request has one Host")),
    };
    // A whole URL, which clients send to proxies, is refused: its host could differ from the checked `Host`.
    let path = head.path.unwrap_or_default();
    if !path.starts_with('/') {
        return Err(Answer::text(400, "a path begins with /"));
    }
    let path = path.split('?').next().unwrap_or_default().to_owned();
    Ok(Some(Request { method: head.method.unwrap_or_default().to_owned(), path, host, local }))
}

#[derive(Default)]
struct Connections {
    open: Mutex<Open>,
    one_ended: Condvar,
}

#[derive(Default)]
struct Open {
    next: u64,
    by_age: BTreeMap<u64, Connection>,
}

struct Connection {
    stream: TcpStream,
    /// Whether this server is computing the answer. Such a connection is never cut in favor of a new one.
    waits_for_us: bool,
    is_cut: bool,
}

struct InUse {
    connections: Arc<Connections>,
    number: u64,
}

impl Connections {
    /// Registers a connection. If there are too many, cuts the oldest one whose answer is not being computed,
    /// and waits until one ends.
    fn enter(self: &Arc<Self>, stream: &TcpStream) -> io::Result<InUse> {
        let stream = stream.try_clone()?;
        let mut open = self.lock();
        while open.by_age.len() >= MOST_CONNECTIONS {
            let slow = open.by_age.values_mut().find(|one| !one.waits_for_us && !one.is_cut);
            if let Some(slow) = slow {
                slow.is_cut = true;
                slow.stream.shutdown(Shutdown::Both).ok(); // ends its thread's read or write
            }
            open = self.one_ended.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
        let number = open.next;
        open.next += 1;
        open.by_age.insert(number, Connection { stream, waits_for_us: false, is_cut: false });
        Ok(InUse { connections: Arc::clone(self), number })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InUse {
    fn set_waits_for_us(&self, waits: bool) {
        if let Some(one) = self.connections.lock().by_age.get_mut(&self.number) {
            one.waits_for_us = waits;
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.connections.lock().by_age.remove(&self.number);
        self.connections.one_ended.notify_one();
    }
}

// Another site's page can point its own name at a loopback address (DNS rebinding), and read what a server there
// answers. Its requests have that name in `Host`, so this server refuses unknown names.

/// The host name in a `Host` header. The port is left out: it differs behind a tunnel, and an attacker can
/// choose it. `None` if the header is malformed.
pub(crate) fn host_name(host: &str) -> Option<String> {
    let host = host.trim();
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            is_port(port).then_some(address)?
        }
        // An IPv6 address without brackets has no port.
        None if host.matches(':').count() > 1 => host,
        None => match host.split_once(':') {
            Some((name, port)) => is_port(&format!(":{port}")).then_some(name)?,
            None => host,
        },
    };
    if let Ok(address) = name.parse::<IpAddr>() {
        return Some(address.to_canonical().to_string());
    }
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

fn is_port(text: &str) -> bool {
    text.is_empty()
        || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|digit| digit.is_ascii_digit()))
}

pub(super) fn is_known(host: &str, local: SocketAddr, given: &[String]) -> bool {
    let Some(name) = host_name(host) else { return false };
    let is_here = |address: IpAddr| address.is_loopback() || address == local.ip().to_canonical();
    name == "localhost" || given.contains(&name) || name.parse().is_ok_and(is_here)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<Request>, u16> {
        parse(text.as_bytes(), "127.0.0.1:1".parse().unwrap()).map_err(|answer| answer.status)
    }

    #[test]
    fn malformed_or_ambiguous_http_requests_are_refused() {
        for bad in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
            "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\u{16}\u{3}\u{1}",
        ] {
            assert_eq!(parsed(bad).unwrap_err(), 400, "{bad:?}");
        }
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(MOST_HEADERS));
        assert_eq!(parsed(&many).unwrap_err(), 431);
    }

    #[test]
    fn a_host_is_compared_without_case_port_and_last_dot() {
        for (text, host) in [
            ("localhost", "localhost"),
            ("LocalHost:9477", "localhost"),
            ("locks.example.com.:80", "locks.example.com"),
            ("127.0.0.1:9477", "127.0.0.1"),
            ("[::1]:9477", "::1"),
            ("[0:0:0:0:0:0:0:1]", "::1"),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1"),
            ("::1", "::1"),
        ] {
            assert_eq!(host_name(text).as_deref(), Some(host), "{text}");
        }
        for bad in
            ["", ":80", "a b", "a/b", "a:b", "[::1", "[::1]x", "user@localhost", "localhost:80:80", "é"]
        {
            assert_eq!(host_name(bad), None, "{bad}");
        }
    }
}
