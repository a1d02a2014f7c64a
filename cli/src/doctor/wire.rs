//! Connections to Redis servers, for questions that the library does not ask, and these servers' addresses.

use std::collections::HashMap;
use std::time::Duration;

use leasehold::program::Settings;
use redis::{
    Client, ClientTlsConfig, Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError,
    TlsCertificates, Value,
};

use crate::clock::Moment;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    NoRight,
    Unknown,
    /// Another reason, as the first word of the server's error. The other words may repeat a password.
    Other(String),
    Silent,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::NoRight => f.write_str("the user lacks the right"),
            Refusal::Unknown => f.write_str("the server does not know the command"),
            Refusal::Other(code) => write!(f, "the server refused it ({code})"),
            Refusal::Silent => f.write_str("no answer came in time, or the connection broke"),
        }
    }
}

impl From<&RedisError> for Refusal {
    fn from(error: &RedisError) -> Refusal {
        let code = error.code().unwrap_or_default();
        let details = error.detail().unwrap_or_default();
        if error.is_io_error() || code.is_empty() {
            Refusal::Silent
        } else if code == "NOPERM" || details.contains("can't run this command or subcommand") {
            Refusal::NoRight
        } else if details.to_ascii_lowercase().contains("unknown command")
            || details.to_ascii_lowercase().contains("unknown subcommand")
        {
            Refusal::Unknown
        } else {
            Refusal::Other(code.chars().filter(char::is_ascii_uppercase).take(20).collect())
        }
    }
}

#[derive(Clone)]
pub(super) struct Place {
    pub(super) label: Option<String>,
    info: ConnectionInfo,
    certificates: Option<TlsCertificates>,
}

pub(super) struct Access {
    certificates: Option<TlsCertificates>,
    username: Option<String>,
    password: Option<String>,
    database: Option<i64>,
    sentinel: (Option<String>, Option<String>),
}

impl Access {
    pub(super) fn of(given: Settings) -> Access {
        let root_cert = given.tls_ca.as_ref().and_then(|file| std::fs::read(file).ok());
        let client_tls = given.tls_identity.as_ref().and_then(|(certificate, key)| {
            Some(ClientTlsConfig {
                client_cert: std::fs::read(certificate).ok()?,
                client_key: std::fs::read(key).ok()?,
            })
        });
        let (database, sentinel) =
            (given.database, (given.sentinel_username.clone(), given.sentinel_password.clone()));
        let (username, password): (Option<String>, Option<String>) = given.into();
        let is_given = root_cert.is_some() || client_tls.is_some();
        Access {
            certificates: is_given.then_some(TlsCertificates { client_tls, root_cert }),
            username,
            password,
            database,
            sentinel,
        }
    }

    fn at_sentinels(&self) -> Access {
        let (username, password) = self.sentinel.clone();
        let certificates = self.certificates.clone();
        Access { certificates, username, password, database: None, sentinel: (None, None) }
    }
}

pub(super) struct Wire {
    connection: Connection,
}

impl Place {
    fn new(url: &str, access: &Access, label: Option<String>) -> Option<Place> {
        let info = url.into_connection_info().ok()?;
        // A restricted user may lack the right to CLIENT SETINFO (the library's name), so it is not sent.
        let mut settings = info.redis_settings().clone().set_skip_set_lib_name();
        settings = access.username.iter().fold(settings, |settings, name| settings.set_username(name));
        settings =
            access.password.iter().fold(settings, |settings, password| settings.set_password(password));
        settings = access.database.into_iter().fold(settings, |settings, number| settings.set_db(number));
        let is_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        let certificates = access.certificates.clone().filter(|_| is_tls);
        Some(Place { label, info: info.set_redis_settings(settings), certificates })
    }

    pub(super) fn labelled(self) -> Place {
        let label = self.label.or_else(|| Some(self.info.addr().to_string()));
        Place { label, ..self }
    }

    pub(super) fn connect(&self, limit: Duration) -> Result<Wire, Refusal> {
        let connect = || {
            let client = match self.certificates.clone() {
                Some(certificates) => Client::build_with_tls(self.info.clone(), certificates)?,
                None => Client::open(self.info.clone())?,
            };
            let connection = client.get_connection_with_timeout(limit)?;
            connection.set_read_timeout(Some(limit))?;
            connection.set_write_timeout(Some(limit))?;
            Ok(Wire { connection })
        };
        connect().map_err(|error: RedisError| Refusal::from(&error))
    }
}

impl Wire {
    pub(super) fn ask(&mut self, words: &[&str]) -> Result<Value, Refusal> {
        let Some((name, arguments)) = words.split_first() else { return Err(Refusal::Unknown) };
        let mut command = redis::cmd(name);
        for word in arguments {
            command.arg(*word);
        }
        let answer = command.query::<Value>(&mut self.connection);
        answer.map_err(|error| Refusal::from(&error))
    }

    pub(super) fn timed(&mut self, words: &[&str]) -> Result<(Value, Duration), Refusal> {
        let begun = Moment::now();
        let answer = self.ask(words)?;
        Ok((answer, Moment::now().since(begun)))
    }

    pub(super) fn info(&mut self, section: &str) -> Result<HashMap<String, String>, Refusal> {
        let answer = text(&self.ask(&["INFO", section])?);
        let fields = answer.lines().filter_map(|line| line.split_once(':'));
        Ok(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    pub(super) fn setting(&mut self, name: &str) -> Option<String> {
        pairs(&self.ask(&["CONFIG", "GET", name]).ok()?).remove(name)
    }

    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::VerbatimString { text, .. } => text.clone(),
        Value::Int(number) => number.to_string(),
        Value::Okay => "OK".to_owned(),
        _ => String::new(),
    }
}

pub(super) fn list(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        _ => &[],
    }
}

pub(super) fn pairs(value: &Value) -> HashMap<String, String> {
    let pairs = list(value).chunks_exact(2);
    pairs
        .filter_map(|pair| if let [name, value] = pair { Some((text(name), text(value))) } else { None })
        .collect()
}

/// The Redis servers that the URL leads to. `None`: not a Redis URL. `Err`: they cannot be found.
pub(super) fn places(url: &str, access: &Access, limit: Duration) -> Option<Result<Vec<Place>, Refusal>> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let kind = if scheme.starts_with("rediss") { "rediss" } else { "redis" };
    match scheme.as_str() {
        "redis" | "rediss" | "redis+unix" | "unix" => {
            Some(Place::new(url, access, None).map(|place| vec![place]).ok_or(Refusal::Silent))
        }
        "redis-sentinel" | "rediss-sentinel" => Some(by_sentinel(kind, rest, access, limit)),
        "redis-cluster" | "rediss-cluster" => Some(of_cluster(kind, rest, access, limit)),
        _ => None,
    }
}

/// Splits a URL after its `://` into the login (`user:password@` or empty), the hosts, and the path.
fn parts(rest: &str) -> (String, Vec<&str>, &str) {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    match authority.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts.split(',').collect(), path),
        None => (String::new(), authority.split(',').collect(), path),
    }
}

fn host_and_port(host: &str, port: &str) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn by_sentinel(kind: &str, rest: &str, access: &Access, limit: Duration) -> Result<Vec<Place>, Refusal> {
    let (login, hosts, path) = parts(rest);
    let (name, database) = path.split_once('/').unwrap_or((path, ""));
    let asked = access.at_sentinels();
    for host in hosts {
        let has_port = host.rsplit_once(']').map_or(host, |(_, rest)| rest).contains(':');
        let port = if has_port { "" } else { ":26379" };
        let Some(sentinel) = Place::new(&format!("{kind}://{host}{port}"), &asked, None) else { continue };
        let Ok(mut wire) = sentinel.connect(limit) else { continue };
        let Ok(answer) = wire.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name]) else { continue };
        if let [host, port] = list(&answer) {
            let at = host_and_port(&text(host), &text(port));
            let place = Place::new(&format!("{kind}://{login}{at}/{database}"), access, None);
            return place.map(|place| vec![place]).ok_or(Refusal::Silent);
        }
    }
    Err(Refusal::Silent)
}

fn of_cluster(kind: &str, rest: &str, access: &Access, limit: Duration) -> Result<Vec<Place>, Refusal> {
    let (login, hosts, _) = parts(rest);
    let mut failure = Refusal::Silent;
    for seed in hosts {
        let Some(place) = Place::new(&format!("{kind}://{login}{seed}"), access, None) else { continue };
        let slots = place.connect(limit).and_then(|mut wire| wire.ask(&["CLUSTER", "SLOTS"]));
        let slots = match slots {
            Ok(slots) => slots,
            Err(refusal) => {
                failure = refusal;
                continue;
            }
        };
        let own = seed.rsplit_once(':').map_or(seed, |(host, _)| host);
        let mut primaries: Vec<String> =
            list(&slots).iter().filter_map(|range| primary(range, own)).collect();
        primaries.sort();
        primaries.dedup();
        let place = |at: String| Place::new(&format!("{kind}://{login}{at}"), access, Some(at));
        return Ok(primaries.into_iter().filter_map(place).collect());
    }
    Err(failure)
}

/// The address of a slot range's primary. A primary that does not know its own host is taken to be at
/// `asked`, the host of the server that was asked.
fn primary(range: &Value, asked: &str) -> Option<String> {
    let member = list(list(range).get(2)?);
    let (host, port) = (text(member.first()?), text(member.get(1)?));
    if host.is_empty() || host == "?" {
        Some(format!("{asked}:{port}"))
    } else {
        Some(host_and_port(&host, &port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_primary_without_host_is_at_the_queried_address() {
        let word = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let range = |host: &str| {
            Value::Array(vec![
                Value::Int(0),
                Value::Int(9),
                Value::Array(vec![word(host), Value::Int(7001), word("id")]),
            ])
        };
        assert_eq!(primary(&range(""), "[::1]").as_deref(), Some("[::1]:7001"));
        assert_eq!(primary(&range("10.0.0.1"), "a").as_deref(), Some("10.0.0.1:7001"));
        assert_eq!(primary(&Value::Nil, "a"), None);
    }
}
