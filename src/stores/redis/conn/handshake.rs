//! The first requests on every connection: login, and the check of the server's identity.

use std::sync::Arc;
use std::time::Duration;

use redis::{ServerError, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::hosts::Hosts;
use crate::stores::redis::conn::connection::{Connection, ServerPlace, connect};
use crate::stores::redis::reply::{WRONG_PASSWORD, accepted, field, is_unknown_command, refusal, text};
use crate::stores::redis::script::Command;
use crate::time::{Clock, Moment};
use crate::wire::Wire;

const OLDEST: (u32, u32) = (6, 2);
const WAITAOF_SINCE: (u32, u32) = (7, 2);
/// How long to wait for the version of a server without HELLO. Only the error's words need this version.
const INFO_WITHIN: Duration = Duration::from_millis(200);

/// The handshake's requests and expected answers. Not `Debug`, because it contains the password.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    pub(crate) client_name: Option<String>,
    pub(crate) write_timeout: Duration,
    pub(crate) role: Role,
    /// Whether grants wait for append-only files, so that the server must know WAITAOF.
    pub(crate) is_durable: bool,
    pub(crate) hosts: Arc<Hosts>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Primary,
    ClusterPrimary,
    /// A member of a cluster, in any role, which is asked only about the cluster and what it supports.
    ClusterMember,
}

/// Connects by `deadline`, logs in, and checks that the server can keep locks.
///
/// Every connection is checked, because the address may now lead to another server, or the server may have
/// become a replica. All commands are sent in one write, so that the handshake costs one round trip. `begun`
/// gets the socket first, so that another thread can shut it down.
pub(crate) fn open_at(
    login: &Login,
    place: &ServerPlace,
    deadline: Moment,
    begun: impl Fn(&Arc<Wire>),
) -> Result<Connection> {
    let mut connection = dial(place, &login.hosts, login.write_timeout, deadline)?;
    begun(&connection.stream);
    let auth = auth(login.username.as_deref(), login.password.as_deref());
    let select = (login.database != 0).then(|| Command::new("SELECT").arg(login.database.to_string()));
    let name = login.client_name.as_ref().map(|name| Command::new("CLIENT").arg("SETNAME").arg(name));
    let mut bytes = Vec::new();
    for command in auth.iter().chain([&Command::new("HELLO")]).chain(&select).chain(&name) {
        command.pack_into(&mut bytes);
    }
    let sent = Clock::System.now();
    connection.send(&bytes, deadline)?;
    let mut next = || {
        let reply = connection.receive(deadline).map(accepted);
        if connection.origin.round_trip.is_zero() {
            connection.origin.round_trip = Clock::System.now().since(sent);
        }
        reply
    };
    if auth.is_some() {
        next()?.map_err(|error| auth_refused(&error))?;
    }
    match next()? {
        Ok(greeting) => check_server(&greeting, login.role, login.is_durable)?,
        Err(error) if is_lacking(&error) => {
            let owed = usize::from(select.is_some()) + usize::from(name.is_some());
            return Err(without_hello(connection, owed, deadline));
        }
        Err(error) => return Err(refusal(&error)),
    }
    if select.is_some() {
        next()?.map_err(|error| refusal(&error))?;
    }
    // A refused name is ignored: it only serves readers of CLIENT LIST, and some users may not set a name.
    name.map_or(Ok(()), |_| next().map(drop))?;
    Ok(connection)
}

pub(crate) fn dial(
    place: &ServerPlace,
    hosts: &Arc<Hosts>,
    write_timeout: Duration,
    deadline: Moment,
) -> Result<Connection> {
    if let ServerPlace::Tcp { host, .. } = place {
        hosts.check(host)?;
    }
    let stream = connect(place, hosts, write_timeout, deadline);
    Ok(Connection::new(stream.map_err(|error| unreachable(place, error))?))
}

pub(crate) fn auth(username: Option<&str>, password: Option<&str>) -> Option<Command> {
    let command = Command::new("AUTH");
    match (username, password) {
        (None, None) => None,
        (None, Some(password)) => Some(command.arg(password)),
        // For a user without a password (nopass), the server accepts any password, even an empty one.
        (Some(name), password) => Some(command.arg(name).arg(password.unwrap_or_default())),
    }
}

/// Whether the error says, in the words of a server or a proxy, that the command is unknown.
fn is_lacking(error: &ServerError) -> bool {
    let text = error.details().unwrap_or_default().to_lowercase();
    let says = |words: &str| text.contains(words) || error.code().to_lowercase().contains(words);
    is_unknown_command(error)
        || ["unsupported", "not supported", "not allowed", "invalid"].iter().any(|words| says(words))
}

/// The error of a server without HELLO, which came with Redis 6.0: an old server, or a proxy. `owed`: how
/// many replies are still to come.
fn without_hello(mut connection: Connection, owed: usize, deadline: Moment) -> Error {
    let deadline = deadline.min(Clock::System.after(INFO_WITHIN));
    let mut bytes = Vec::new();
    Command::new("INFO").arg("server").pack_into(&mut bytes);
    let sent = connection.send(&bytes, deadline);
    let last = sent.and_then(|()| (0..owed).try_for_each(|_| connection.receive(deadline).map(drop)));
    match last.and_then(|()| connection.receive(deadline)).ok().and_then(|info| version_in(&info)) {
        Some(version) if is_before(&version, OLDEST) => too_old(&version),
        _ => {
            let words = "the server does not know HELLO: it is older than Redis 6.0, or a proxy stands in \
                front of it; give the address of the server itself";
            Error::new(ErrorKind::Unsupported, "connect", words)
        }
    }
}

fn version_in(info: &Value) -> Option<String> {
    let version = text(info)?.lines().find_map(|line| line.strip_prefix("redis_version:"))?;
    Some(version.trim().to_owned())
}

fn too_old(version: &str) -> Error {
    let (major, minor) = OLDEST;
    let words = format!("the server is Redis {version}; the oldest supported is {major}.{minor}");
    Error::new(ErrorKind::TooOld, "connect", words)
}

/// The error of a refused login. The server's text is not repeated: a server that does not know AUTH includes
/// the password in its text.
pub(crate) fn auth_refused(error: &ServerError) -> Error {
    if error.details().is_some_and(|text| text.contains("max number of clients")) {
        return refusal(error);
    }
    let words = match (error.code(), error.details().unwrap_or_default()) {
        ("WRONGPASS", _) => WRONG_PASSWORD,
        ("DENIED", _) => "the server is in protected mode: it accepts connections from its own machine only",
        (_, text) if text.contains("without any password") => {
            "a password was given, but the server has no password for this user: leave it out"
        }
        _ => "the server refused the login (AUTH)",
    };
    Error::new(ErrorKind::Authentication, "connect", words)
}

fn check_server(greeting: &Value, wanted: Role, is_durable: bool) -> Result<()> {
    let words = "the answer to HELLO is not that of a Redis: check host and port";
    Error::when(!matches!(greeting, Value::Array(_)), ErrorKind::Protocol, "connect", || words)?;
    let field = |name: &str| field(greeting, name).and_then(text).unwrap_or_default();
    let words = "the server is a Sentinel, which keeps no locks: give a URL of the form \
            redis-sentinel://…/master-name";
    Error::when(field("mode") == "sentinel", ErrorKind::Unsupported, "connect", || words)?;
    let words = "the server is not a member of a cluster: give its address as redis://…";
    let is_no_member = wanted != Role::Primary && field("mode") != "cluster";
    Error::when(is_no_member, ErrorKind::Unsupported, "connect", || words)?;
    let version = field("version");
    let lacks = |least| field("server") != "valkey" && is_before(version, least);
    Error::when(is_durable && lacks(WAITAOF_SINCE), ErrorKind::Unsupported, "connect", || {
        format!("durable() needs WAITAOF, which came with Redis 7.2 and Valkey 7.2; the server is {version}")
    })?;
    if lacks(OLDEST) {
        return Err(too_old(version));
    }
    let is_replica = wanted != Role::ClusterMember && matches!(field("role"), "replica" | "slave");
    Error::when(is_replica, ErrorKind::ReadOnly, "connect", || "the server is a read-only replica")
}

fn is_before(version: &str, least: (u32, u32)) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < least,
        // A server that hides its version counts as new enough; what it lacks fails later.
        _ => false,
    }
}

fn unreachable(place: &ServerPlace, error: std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    #[cfg(feature = "tls")]
    if let Some((kind, words)) = crate::tls::refusal(&error) {
        return Error::new(kind, "connect", format!("{place}: {words}")).with_source(error);
    }
    let (kind, words) = match error.kind() {
        Io::ConnectionRefused | Io::NotFound => {
            (ErrorKind::Unreachable, format!("no server listens at {place}"))
        }
        Io::TimedOut | Io::WouldBlock => (ErrorKind::Unreachable, format!("{place} did not answer in time")),
        _ => (ErrorKind::Unreachable, format!("{place} cannot be reached: check host, port and network")),
    };
    Error::new(kind, "connect", words).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(server: &str, version: &str, mode: &str, role: &str) -> Value {
        let pairs = [("server", server), ("version", version), ("mode", mode), ("role", role)];
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        Value::Array(pairs.iter().flat_map(|(name, value)| [text(name), text(value)]).collect())
    }

    #[test]
    fn unsuitable_servers_are_refused_with_the_reason() {
        let check = |server, version, mode, role| {
            check_server(&greeting(server, version, mode, role), Role::Primary, false)
                .map_err(|error| error.kind())
        };
        assert_eq!(check("redis", "6.2.0", "standalone", "master"), Ok(()));
        assert_eq!(check("redis", "10.0.1", "standalone", "master"), Ok(()));
        assert_eq!(check("valkey", "9.1.2", "standalone", "master"), Ok(()));
        assert_eq!(check("redis", "6.0.16", "standalone", "master"), Err(ErrorKind::TooOld));
        assert_eq!(check("redis", "7.0.15", "sentinel", ""), Err(ErrorKind::Unsupported));
        assert_eq!(check("redis", "7.0.15", "standalone", "replica"), Err(ErrorKind::ReadOnly));
        let error = check_server(&greeting("redis", "6.0.16", "standalone", "master"), Role::Primary, false)
            .unwrap_err();
        assert!(error.to_string().contains("6.0.16") && error.to_string().contains("6.2"), "{error}");
    }

    #[test]
    fn the_durable_option_needs_redis_7_2() {
        let check = |server, version| {
            let greeting = greeting(server, version, "standalone", "master");
            check_server(&greeting, Role::Primary, true).map_err(|error| error.kind())
        };
        assert_eq!(check("redis", "7.2.0"), Ok(()));
        assert_eq!(check("valkey", "8.0.1"), Ok(()));
        assert_eq!(check("redis", "7.0.15"), Err(ErrorKind::Unsupported));
    }

    #[test]
    fn a_cluster_url_is_accepted_by_clusters_only() {
        let check = |mode, role, wanted| {
            check_server(&greeting("redis", "7.0.15", mode, role), wanted, false)
                .map_err(|error| error.kind())
        };
        for wanted in [Role::ClusterPrimary, Role::ClusterMember] {
            assert_eq!(check("standalone", "master", wanted), Err(ErrorKind::Unsupported));
            assert_eq!(check("cluster", "master", wanted), Ok(()));
        }
        assert_eq!(check("cluster", "replica", Role::ClusterMember), Ok(()));
        assert_eq!(check("cluster", "replica", Role::ClusterPrimary), Err(ErrorKind::ReadOnly));
    }

    #[test]
    fn a_server_that_repeats_the_password_is_not_quoted() {
        let reply = b"-ERR unknown command 'AUTH', with args beginning with: 'S3CR3T' \r\n";
        let reply = redis::parse_redis_value(reply).unwrap();
        let error = auth_refused(&accepted(reply).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Authentication);
        assert!(!format!("{error} {error:?}").contains("S3CR3T"));
    }
}
