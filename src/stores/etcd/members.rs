//! The members of an etcd cluster, the pool of connections to them, and the meaning of their errors.

use std::io;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::seam::pool::{Connector, Pool, Rank};
use crate::seam::{Answer, Failure};
use crate::secrets::Renewable;
use crate::stores::etcd::address::EtcdAddress;
use crate::stores::etcd::http::{Connection, Response};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::time::{Clock, Moment};
use crate::wire::is_late;

/// The text of the error for a request that was not carried out because its lease had ended.
const LEASE_OVER: &str = "the lease ended during the request";

pub(super) fn is_lease_over(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused(error) if error.detail() == LEASE_OVER)
}

pub(super) struct Members {
    pub(super) address: Arc<EtcdAddress>,
    renewal: Arc<Renewable<EtcdAddress>>,
    /// User and password, which are read again from their source after a refusal.
    logins: Arc<Renewable<EtcdAddress>>,
    has_login: bool,
    /// The member to try first, modulo the number of members. Advanced when that member fails.
    first: AtomicUsize,
    token: Mutex<Option<String>>,
}

impl Members {
    pub(super) fn new(options: &ServerOptions) -> Result<Members> {
        let (logins, address) = Renewable::new(options, EtcdAddress::new)?;
        let without_login = ServerOptions { credentials: None, ..options.clone() };
        let (renewal, _) = Renewable::new(&without_login, EtcdAddress::new)?;
        let has_login = address.members.login.is_some() || options.credentials.is_some();
        let (first, token) = (AtomicUsize::new(0), Mutex::new(None));
        Ok(Members { address, renewal, logins, has_login, first, token })
    }

    fn first(&self) -> usize {
        self.first.load(Ordering::Relaxed) % self.address.members.hosts.len().max(1)
    }

    fn pass_over(&self, at: usize) {
        if self.first() == at {
            self.first.store(at.wrapping_add(1), Ordering::Relaxed);
        }
    }

    pub(super) fn request(&self, member: &str, path: &str, body: &str, extra: &str) -> Vec<u8> {
        let token = self.token.lock();
        let authorization =
            token.as_ref().map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nHost: {member}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{authorization}{extra}\r\n{body}"
        )
        .into_bytes()
    }
}

impl Connector for Arc<Members> {
    type Link = Connection;

    fn connect(&self, deadline: Moment) -> Result<Connection> {
        let (first, count) = (self.first(), self.address.members.hosts.len());
        let mut last = None;
        for turn in 0..count {
            let at = first.wrapping_add(turn) % count;
            // A silent member may use only its share of the time, so that the next members can be tried.
            let now = Clock::System.now();
            let left = u32::try_from(count - turn).unwrap_or(u32::MAX);
            let share = (deadline.since(now) / left).min(self.address.connect_timeout);
            let open = |renewed: &EtcdAddress, _ends: Option<Moment>| {
                let opened = Connection::open(at, renewed, now.plus(share));
                opened.map_err(|error| broken(&self.address.members.place(at), error))
            };
            match self.renewal.with("", deadline, open) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error.or_answer(last)),
            }
            self.pass_over(at);
        }
        Err(last.unwrap_or_else(|| Error::new(ErrorKind::Unreachable, "connect", "the URL names no member")))
    }

    fn is_alive(&self, link: &mut Connection) -> bool {
        link.is_alive()
    }

    /// Whether requests now prefer another member, because this one failed after the connection was opened.
    fn is_old(&self, link: &Connection) -> bool {
        link.at != self.first()
    }
}

/// A pool of connections, of which a thread uses one for each exchange.
pub(super) struct Transport {
    pub(super) pool: Arc<Pool<Arc<Members>>>,
    rank: Rank,
}

impl Transport {
    pub(super) fn new(members: Arc<Members>, most: u32) -> Transport {
        Transport { pool: Arc::new(Pool::new(members, most, Vec::new())), rank: Rank::Request }
    }

    /// A transport over the same pool, with the connection that only [`Rank::Renewal`] may use.
    pub(super) fn for_renewals(&self) -> Transport {
        Transport { pool: Arc::clone(&self.pool), rank: Rank::Renewal }
    }

    pub(super) fn call(&self, path: &str, body: &Value, deadline: Moment) -> Answer<Value> {
        let answer = self.call_raw(path, &body.to_string(), deadline)?;
        serde_json::from_slice(&answer).map_err(|error| Failure::Unknown(unreadable().with_source(error)))
    }

    pub(super) fn call_raw(&self, path: &str, body: &str, deadline: Moment) -> Answer<Vec<u8>> {
        let mut response = self.exchange(path, body, deadline)?;
        // A server that refuses an ended login token has not carried out the request, so after a new login
        // the request is sent again.
        if self.pool.connector.has_login && wants_token(&response) {
            self.authenticate(deadline)?;
            response = self.exchange(path, body, deadline)?;
        }
        if response.status == 200 { Ok(response.body) } else { Err(refusal(&response)) }
    }

    pub(super) fn authenticate(&self, deadline: Moment) -> Answer<()> {
        if !self.pool.connector.has_login {
            return Ok(());
        }
        let members: Vec<_> = self.pool.connector.address.members.addresses().collect();
        let log_in = |address: &EtcdAddress, _ends: Option<Moment>| {
            self.authenticate_as(address, deadline).map_err(Failure::into_error)
        };
        self.pool.connector.logins.with(&members.join(","), deadline, log_in).map_err(Failure::Refused)
    }

    fn authenticate_as(&self, address: &EtcdAddress, deadline: Moment) -> Answer<()> {
        let Some((name, password)) = &address.members.login else { return Ok(()) };
        *self.pool.connector.token.lock() = None;
        let body = json!({ "name": name, "password": password }).to_string();
        let response =
            self.exchange("/v3/auth/authenticate", &body, deadline).map_err(Failure::of_reading)?;
        if response.status == 200 {
            let answer: Value = serde_json::from_slice(&response.body)
                .map_err(|error| Failure::Refused(unreadable().with_source(error)))?;
            let token = answer.get("token").and_then(Value::as_str).filter(|token| is_plain(token));
            let token = token.ok_or_else(|| Failure::Refused(unreadable()))?;
            *self.pool.connector.token.lock() = Some(token.to_owned());
            return Ok(());
        }
        let (_, message) = said(&response.body);
        if message.contains("authentication is not enabled") {
            return Ok(());
        }
        Err(refusal(&response).of_reading())
    }

    fn exchange(&self, path: &str, body: &str, deadline: Moment) -> Answer<Response> {
        let (mut place, mut connection) = self.pool.lend(self.rank, deadline)?;
        let request = self.pool.connector.request(&connection.member, path, body, "");
        let response = connection.send(&request, deadline).and_then(|()| connection.receive(deadline));
        let response = response.map_err(|error| {
            self.pool.connector.pass_over(connection.at);
            Failure::Unknown(broken(&connection.member, error))
        })?;
        // The member may have no leader, or be shutting down. The next request connects to another member.
        if response.status >= 500 {
            self.pool.connector.pass_over(connection.at);
        } else if response.stays {
            place.put(connection);
        }
        Ok(response)
    }
}

fn is_plain(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())
}

fn broken(member: &str, error: io::Error) -> Error {
    #[cfg(feature = "tls")]
    if let Some((kind, words)) = crate::tls::refusal(&error) {
        return Error::new(kind, "ask", format!("{member}: {words}")).with_source(error);
    }
    let (kind, words) = match error.kind() {
        _ if is_late(&error) => (ErrorKind::TimedOut, "did not answer in time"),
        io::ErrorKind::InvalidData => (ErrorKind::Protocol, "does not speak HTTP as etcd does"),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            (ErrorKind::Unreachable, "cannot be reached: check host and port in the URL")
        }
        _ => (ErrorKind::Unreachable, "broke the connection"),
    };
    Error::new(kind, "ask", format!("{member} {words}")).with_source(error)
}

pub(super) fn unreadable() -> Error {
    Error::new(ErrorKind::Protocol, "ask", "the server's answer is not what etcd's gateway sends")
}

/// The code and message of an error. Their place in the body depends on the gateway's version.
fn said(body: &[u8]) -> (u64, String) {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = body.get("error").filter(|error| error.is_object()).unwrap_or(&body);
    let text = |field: &str| error.get(field).and_then(Value::as_str);
    let code = ["code", "grpc_code"].iter().find_map(|field| error.get(field)?.as_u64()).unwrap_or(0);
    (code, text("message").or(text("error")).unwrap_or_default().to_owned())
}

fn wants_token(response: &Response) -> bool {
    let (code, message) = said(&response.body);
    response.status != 200
        && (code == UNAUTHENTICATED
            || message.contains("invalid auth token")
            || message.contains("user name is empty")
            || message.contains("revision of auth store is old"))
}

const DEADLINE_EXCEEDED: u64 = 4;
const NOT_FOUND: u64 = 5;
const PERMISSION_DENIED: u64 = 7;
const UNAUTHENTICATED: u64 = 16;
/// gRPC codes after which the request may have been carried out: canceled, unknown, deadline exceeded,
/// aborted, internal, unavailable, data loss.
const UNCERTAIN: [u64; 7] = [1, 2, DEADLINE_EXCEEDED, 10, 13, 14, 15];

pub(super) fn refusal(response: &Response) -> Failure {
    let (code, message) = said(&response.body);
    if message.is_empty() {
        if response.status == 404 {
            let words = "the server has no gateway at /v3; etcd 3.4 is the oldest that can be used";
            return Failure::Refused(Error::new(ErrorKind::TooOld, "ask", words));
        }
        let status = response.status;
        let words = format!("the answer (HTTP status {status}) is not etcd's: check the URL's host and port");
        return Failure::Unknown(Error::new(ErrorKind::Protocol, "ask", words));
    }
    // The answer is a proxy's (502, 503 or 504), and the proxy does not know the outcome.
    if code == 0 && (502..=504).contains(&response.status) {
        return Failure::Unknown(Error::new(
            ErrorKind::TimedOut,
            "ask",
            format!("the server answered: {message}"),
        ));
    }
    meant(code, &message)
}

/// The error in a line of an answer that comes in chunks, if the line is an error.
pub(super) fn refusal_in(answer: &Value) -> Option<Failure> {
    let error = answer.get("error")?;
    let (code, message) = said(error.to_string().as_bytes());
    Some(meant(code, &message))
}

fn meant(code: u64, message: &str) -> Failure {
    let error = |kind| Error::new(kind, "ask", format!("the server answered: {message}"));
    let has = |words: &str| message.contains(words);
    if has("requested lease not found") {
        Failure::Refused(Error::new(ErrorKind::Busy, "ask", LEASE_OVER))
    } else if code == PERMISSION_DENIED || has("permission denied") {
        Failure::Refused(error(ErrorKind::NoPermission))
    } else if code == UNAUTHENTICATED || has("user name is empty") || has("authentication failed") {
        Failure::Refused(error(ErrorKind::Authentication))
    } else if has("database space exceeded") {
        Failure::Refused(error(ErrorKind::OutOfMemory))
    } else if has("too many requests") || has("no leader") {
        Failure::Refused(error(ErrorKind::Busy))
    } else if UNCERTAIN.contains(&code) {
        let is_late = code == DEADLINE_EXCEEDED || has("timed out");
        Failure::Unknown(error(if is_late { ErrorKind::TimedOut } else { ErrorKind::Unreachable }))
    } else if code == NOT_FOUND {
        Failure::Refused(error(ErrorKind::Unsupported))
    } else {
        Failure::Refused(error(ErrorKind::Refused))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::ServerOptions;

    fn refused(status: u16, body: &str) -> Failure {
        refusal(&Response { status, body: body.as_bytes().to_vec(), stays: true })
    }

    #[test]
    fn error_replies_of_each_gateway_version_get_the_right_kind() {
        let cases = [
            (403, r#"{"error":"etcdserver: permission denied","code":7}"#, ErrorKind::NoPermission),
            (400, r#"{"error":"etcdserver: user name is empty","code":3}"#, ErrorKind::Authentication),
            (401, r#"{"code":16,"message":"etcdserver: invalid auth token"}"#, ErrorKind::Authentication),
            (
                429,
                r#"{"message":"etcdserver: mvcc: database space exceeded","code":8}"#,
                ErrorKind::OutOfMemory,
            ),
            (429, r#"{"error":"etcdserver: too many requests","code":8}"#, ErrorKind::Busy),
            (503, r#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#, ErrorKind::Busy),
            (404, "404 page not found", ErrorKind::TooOld),
            (400, r#"{"error":"etcdserver: request is too large","code":3}"#, ErrorKind::Refused),
        ];
        for (status, body, kind) in cases {
            let Failure::Refused(error) = refused(status, body) else {
                panic!("{body}: the outcome is unknown")
            };
            assert_eq!(error.kind(), kind, "{body}");
        }
        let gone = refused(404, r#"{"error":"etcdserver: requested lease not found","code":5}"#);
        assert!(is_lease_over(&gone));
    }

    #[test]
    fn a_request_without_a_connection_is_refused_unsent() {
        let options = ServerOptions { url: "etcd://127.0.0.1:1".to_owned(), ..ServerOptions::default() };
        let wire = Transport::new(Arc::new(Members::new(&options).unwrap()), 0);
        let deadline = Clock::System.after(Duration::from_millis(5));
        let Err(Failure::Refused(error)) = wire.call("/", &json!({}), deadline) else {
            panic!("the outcome is unknown")
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("pool_size"), "{error}");
    }

    #[test]
    fn renewals_have_a_reserved_connection() {
        let options = ServerOptions { url: "etcd://127.0.0.1:1".to_owned(), ..ServerOptions::default() };
        let wire = Transport::new(Arc::new(Members::new(&options).unwrap()), 1);
        let renewals = wire.for_renewals();
        assert_eq!((wire.rank, renewals.rank), (Rank::Request, Rank::Renewal));
        assert!(Arc::ptr_eq(&wire.pool, &renewals.pool));
    }

    #[test]
    fn an_ambiguous_refusal_has_an_unknown_outcome() {
        let cases = [
            (503, r#"{"error":"etcdserver: request timed out","code":14}"#, ErrorKind::TimedOut),
            (503, r#"{"error":"transport is closing","code":14}"#, ErrorKind::Unreachable),
            (503, r#"{"error":"etcdserver: leader changed","code":14}"#, ErrorKind::Unreachable),
            (499, r#"{"error":"context canceled","code":1}"#, ErrorKind::Unreachable),
            (502, "<html>", ErrorKind::Protocol),
            (504, r#"{"message":"The upstream server is timing out"}"#, ErrorKind::TimedOut),
        ];
        for (status, body, kind) in cases {
            let Failure::Unknown(error) = refused(status, body) else {
                panic!("{body}: the outcome is known")
            };
            assert_eq!(error.kind(), kind, "{body}");
        }
    }
}
