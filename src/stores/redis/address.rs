//! The server's address and the login there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{
    Host, SCHEMES, check_scheme, check_url, has_login, has_port, needs_feature, parameters, split_login,
    unescaped, unknown_parameter,
};
use crate::secrets::Renewable;
use crate::stores::redis::place::{Login, Role, ServerPlace, certificates};
use crate::stores::redis::sentinel::Sentinels;
use crate::system::NO_LOCAL_SOCKETS;

/// The facts that a new connection needs. Not `Debug`: it holds the password.
#[derive(Clone)]
pub(super) struct RedisAddress {
    pub(super) target: Target,
    pub(super) login: Login,
    pub(super) connect_timeout: Duration,
    /// Reads the files of secrets again.
    pub(super) renewal: Option<Arc<Renewable<RedisAddress>>>,
}

#[derive(Clone)]
pub(super) enum Target {
    Place(ServerPlace),
    /// The master's place, which Sentinels are asked for at each connection.
    Master(Arc<Sentinels>),
}

const SENTINEL_PORT: u16 = 26379;

impl RedisAddress {
    /// Reads the URL; the options' own fields come before it. No message repeats the URL: it may hold a
    /// password.
    pub(super) fn new(options: &ServerOptions) -> Result<RedisAddress> {
        let scheme = Scheme::of(&options.url)?;
        check_url(&options.url)?;
        let options = &with_parameters(options)?;
        let ServerOptions { sentinel_username, sentinel_password, sentinel_credentials, .. } = options;
        let is_for_sentinels =
            sentinel_username.is_some() || sentinel_password.is_some() || sentinel_credentials.is_some();
        if !scheme.is_sentinel && is_for_sentinels {
            return Err(Error::invalid(
                "connect",
                "Sentinels' user or password were given, but the URL does not start with redis-sentinel://",
            ));
        }
        let (info, target) =
            if scheme.is_sentinel { by_sentinel(options, scheme.is_tls)? } else { direct(options)? };
        let settings = info.redis_settings();
        let database = options.database.unwrap_or(settings.db());
        if database < 0 {
            return Err(Error::invalid(
                "connect",
                format!("a database of {database} cannot be used: the least is 0"),
            ));
        }
        let own = |option: &Option<String>, url: Option<&str>| option.clone().or(url.map(str::to_owned));
        Ok(RedisAddress {
            target,
            login: Login {
                username: own(&options.username, settings.username()),
                password: own(&options.password, settings.password()),
                database,
                client_name: options.client_name.clone(),
                write_timeout: options.command_timeout,
                role: Role::Primary,
                is_durable: options.durable.is_some(),
                hosts: Arc::clone(&options.hosts),
            },
            connect_timeout: options.connect_timeout,
            renewal: None,
        })
    }

    /// As [`new`](Self::new), for connections that outlast a password or a certificate.
    pub(super) fn renewed(options: &ServerOptions) -> Result<RedisAddress> {
        let (renewal, address) = Renewable::new(options, RedisAddress::new)?;
        Ok(RedisAddress { renewal: Some(renewal), ..RedisAddress::clone(&address) })
    }

    /// A server's place, with the certificates that this address has.
    pub(super) fn secured(&self, place: &ServerPlace) -> ServerPlace {
        match &self.target {
            Target::Place(ServerPlace::Tcp { tls, .. }) => place.secured(tls.as_ref()),
            Target::Place(ServerPlace::Unix(_)) => place.clone(),
            Target::Master(sentinels) => sentinels.secured(place),
        }
    }

    /// A cluster's URL: one address for each of its hosts, at least one.
    pub(super) fn cluster(options: &ServerOptions) -> Result<Vec<RedisAddress>> {
        let unusable = || {
            let form = "redis-cluster://[user:password@]host[:port][,host[:port]…]";
            Error::invalid("connect", format!("the URL cannot be used; it has the form {form}"))
        };
        check_url(&options.url)?;
        let options = &with_parameters(options)?;
        let (scheme, rest) = options.url.split_once("://").ok_or_else(unusable)?;
        let scheme = if scheme.eq_ignore_ascii_case("rediss-cluster") { "rediss" } else { "redis" };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !matches!(path, "" | "0") || options.database.is_some_and(|database| database != 0) {
            return Err(Error::invalid("connect", "a cluster has only database 0: leave the number out"));
        }
        let (login, hosts) = split_login(authority);
        let login = login.map(|login| format!("{login}@")).unwrap_or_default();
        let address = |host: &str| {
            let url = format!("{scheme}://{login}{host}/");
            let read =
                RedisAddress::new(&ServerOptions { url, ..options.clone() }).map_err(|error| match error
                    .kind()
                {
                    ErrorKind::InvalidInput if error.detail().starts_with("the URL") => {
                        unusable().with_source(error)
                    }
                    _ => error,
                })?;
            let login = Login { role: Role::ClusterMember, ..read.login };
            Ok(RedisAddress { login, ..read })
        };
        hosts.split(',').map(address).collect()
    }

    /// The same login elsewhere. `None`: not reached by a host's name and a port.
    pub(super) fn at(&self, host: &Host, port: u16, role: Role) -> Option<RedisAddress> {
        let Target::Place(ServerPlace::Tcp { tls, .. }) = &self.target else { return None };
        Some(RedisAddress {
            target: Target::Place(ServerPlace::Tcp { host: host.clone(), port, tls: tls.clone() }),
            login: Login { role, ..self.login.clone() },
            connect_timeout: self.connect_timeout,
            renewal: self.renewal.clone(),
        })
    }

    /// `None`: not reached by these.
    pub(super) fn host_and_port(&self) -> Option<(&Host, u16)> {
        match &self.target {
            Target::Place(ServerPlace::Tcp { host, port, .. }) => Some((host, *port)),
            Target::Place(ServerPlace::Unix(_)) | Target::Master(_) => None,
        }
    }
}

struct Scheme {
    is_sentinel: bool,
    is_tls: bool,
}

impl Scheme {
    fn of(url: &str) -> Result<Scheme> {
        check_scheme(url)?;
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        let (is_sentinel, is_tls) = match scheme.as_str() {
            "redis" | "redis+unix" | "unix" => (false, false),
            "rediss" => (false, true),
            "redis-sentinel" => (true, false),
            "rediss-sentinel" => (true, true),
            _ => {
                let is_elsewhere = |known: &str| known.trim_start_matches("or ") == format!("{scheme}://");
                let words = if SCHEMES.split(", ").flat_map(|known| known.split(" or ")).any(is_elsewhere) {
                    "this option needs Redis servers: their URLs begin with redis://, rediss:// or redis+unix://"
                        .to_owned()
                } else {
                    format!("the scheme of the URL is not known: a URL begins with one of {SCHEMES}")
                };
                return Err(Error::invalid("connect", words));
            }
        };
        if matches!(scheme.as_str(), "redis+unix" | "unix")
            && let Some(words) = NO_LOCAL_SOCKETS
        {
            return Err(Error::new(ErrorKind::Unsupported, "connect", words));
        }
        if is_tls && !cfg!(feature = "tls") {
            return Err(needs_feature(&scheme, "tls"));
        }
        Ok(Scheme { is_sentinel, is_tls })
    }
}

fn unusable(form: &str) -> Error {
    Error::invalid("connect", format!("the URL cannot be used; it has the form {form}"))
}

/// The options with the URL's parameters, in the words of redis-py, go-redis and node-redis; the options' own
/// fields come first. An unknown parameter is refused: ignoring it could mean another database, or no TLS.
fn with_parameters(options: &ServerOptions) -> Result<ServerOptions> {
    let (url, pairs) = parameters(&options.url)?;
    let mut read = ServerOptions { url: url.to_owned(), ..options.clone() };
    let (mut username, mut password) = (None, None);
    for (name, value) in pairs {
        let bad = || {
            Error::invalid("connect", format!("the URL's parameter {name:?} has a value that cannot be used"))
        };
        let text = || unescaped(&value.replace('+', "%20")).ok_or_else(bad);
        match name {
            "db" => {
                let number: i64 = value.parse().map_err(|_no_number| bad())?;
                if in_path(url).is_some_and(|other| other != value) {
                    let words = "the URL names two databases, one in its path and one by db=: name one";
                    return Err(Error::invalid("connect", words));
                }
                read.database = options.database.or(Some(number));
            }
            // Any value: the client speaks RESP2, which nobody else sees.
            "protocol" if matches!(value, "2" | "3" | "resp2" | "resp3") => {}
            "protocol" => return Err(bad()),
            "username" | "user" => username = Some(text()?),
            "password" | "pass" => password = Some(text()?),
            "client_name" => read.client_name = options.client_name.clone().or(Some(text()?)),
            _ => return Err(unknown_parameter(Some(name), instead_of(name))),
        }
    }
    read.username = options.username.clone().or(username);
    read.password = options.password.clone().or(password);
    read.check_client_name()?;
    Ok(read)
}

/// The database in a URL's path, if any.
fn in_path(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    let mut parts = rest.split('/').skip(1);
    if scheme.to_ascii_lowercase().contains("unix") {
        return None;
    }
    if scheme.to_ascii_lowercase().contains("sentinel") {
        parts.next();
    }
    parts.next().filter(|database| !database.is_empty())
}

fn instead_of(name: &str) -> &'static str {
    match name {
        "database" => "write db=, or the database in the path",
        "ssl" | "tls" => "for TLS the URL begins with rediss://",
        name if name.contains("timeout") => "time-outs are options of the client",
        name if name.contains("ssl") || name.contains("tls") => "TLS has options of the client",
        _ => "",
    }
}

fn direct(options: &ServerOptions) -> Result<(ConnectionInfo, Target)> {
    const FORM: &str = "redis://[user:password@]host[:port][/database] or redis+unix:///path";
    let info = options.url.as_str().into_connection_info();
    let info = info.map_err(|error| unusable(FORM).with_source(error))?;
    let given = |host: &str| options.hosts.given(host, has_login(&options.url) || has_port(&options.url));
    let place = match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            no_authorities(options)?;
            ServerPlace::Tcp { host: given(host), port: *port, tls: None }
        }
        ConnectionAddr::TcpTls { host, port, .. } => {
            ServerPlace::Tcp { host: given(host), port: *port, tls: certificates(options, true)? }
        }
        ConnectionAddr::Unix(path) => ServerPlace::Unix(path.clone()),
        _ => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "connect",
                "this build cannot connect to such a URL",
            ));
        }
    };
    Ok((info, Target::Place(place)))
}

/// The master of a name, at a place that Sentinels know. Takes the URL apart; each host, with what precedes
/// the `@`, is then read as a plain URL.
fn by_sentinel(options: &ServerOptions, is_tls: bool) -> Result<(ConnectionInfo, Target)> {
    const FORM: &str = "redis-sentinel://[user:password@]host[:port],host[:port],…/master-name[/database]";
    let bad = || unusable(FORM);
    let (_, rest) = options.url.split_once("://").ok_or_else(bad)?;
    let (authority, path) = rest.split_once('/').ok_or_else(bad)?;
    let (login, hosts) = split_login(authority);
    let login = login.unwrap_or_default();
    let (name, database) = path.split_once('/').unwrap_or((path, ""));
    // The characters that Sentinel allows in a name.
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
        return Err(bad());
    }
    if !database.chars().all(|c| c.is_ascii_digit()) || authority.contains(['?', '#']) {
        return Err(bad());
    }
    let at = if login.is_empty() { String::new() } else { format!("{login}@") };
    let info = format!("redis://{at}sentinel/{database}").into_connection_info();
    let info = info.map_err(|error| bad().with_source(error))?;
    if !is_tls {
        no_authorities(options)?;
    }
    let mut places = Vec::new();
    for host in hosts.split(',') {
        let has_port = has_port(host);
        let port = if has_port { String::new() } else { format!(":{SENTINEL_PORT}") };
        let info = format!("redis://{host}{port}").into_connection_info();
        match info.map_err(|error| bad().with_source(error))?.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let host = options.hosts.given(host, has_port || !login.is_empty());
                places.push(Arc::new(ServerPlace::Tcp { host, port: *port, tls: None }));
            }
            _ => return Err(bad()),
        }
    }
    let sentinels = Sentinels::new(name, places, options)?;
    Ok((info, Target::Master(Arc::new(sentinels))))
}

fn no_authorities(options: &ServerOptions) -> Result<()> {
    options.tls.refused_without_tls("the URL does not start with rediss:// or rediss-sentinel://")
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Place(place) => place.fmt(f),
            Target::Master(sentinels) => write!(f, "master {}", sentinels.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Result<RedisAddress> {
        RedisAddress::new(&ServerOptions { url: url.to_owned(), ..ServerOptions::default() })
    }

    #[test]
    fn a_url_is_read() {
        let read = address("redis://me:p%40ss@example.org:7000/3").unwrap();
        assert_eq!(read.target.to_string(), "example.org:7000");
        assert_eq!(read.login.username.as_deref(), Some("me"));
        assert_eq!(read.login.password.as_deref(), Some("p@ss"));
        assert_eq!(read.login.database, 3);
        assert_eq!(address("redis://localhost").unwrap().target.to_string(), "localhost:6379");
        #[cfg(unix)]
        for url in ["redis+unix:///run/r.sock?db=2&pass=x", "unix:///run/r.sock?db=2&pass=x"] {
            let read = address(url).unwrap();
            assert_eq!((read.target.to_string().as_str(), read.login.database), ("/run/r.sock", 2));
            assert_eq!(read.login.password.as_deref(), Some("x"));
        }
    }

    #[test]
    fn unknown_url_parameters_are_refused_by_name() {
        for url in [
            "redis://h?db=2",
            "redis://h/?db=2",
            "redis://h/2?db=2",
            "redis://h/2?protocol=3",
            "redis://h?protocol=resp3&db=2",
            "redis-sentinel://h/m?db=2",
            "redis-sentinel://h/m/2?protocol=2",
            "redis://h/2?",
        ] {
            assert_eq!(address(url).unwrap().login.database, 2, "{url}");
        }
        let read = address("redis://h?username=me&password=p%40+s&client_name=till").unwrap().login;
        let said = (read.username.as_deref(), read.password.as_deref(), read.client_name.as_deref());
        assert_eq!(said, (Some("me"), Some("p@ s"), Some("till")));
        for (url, word) in [
            ("redis://h/0?db=2", "two databases"),
            ("redis://h?db=x", "\"db\""),
            ("redis://h?database=2", "\"database\""),
            ("redis://h/2?timeout=1s", "\"timeout\""),
            ("redis://h?protocol=4", "\"protocol\""),
            ("redis://h?ssl=true", "rediss://"),
            ("redis://h?ssl_cert_reqs=none", "\"ssl_cert_reqs\""),
            ("redis://h?client_name=a%20b", "client_name"),
            ("redis://h#2", "%23"),
            ("redis-sentinel://h/m?x=1", "\"x\""),
        ] {
            let error = address(url).err().unwrap_or_else(|| panic!("{url} was accepted"));
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(error.to_string().contains(word), "{url}: {error}");
        }
        #[cfg(unix)]
        for url in ["redis+unix:///r.sock?database=2", "unix:///r.sock?virtual_host=2", "unix:///r.sock#2"] {
            assert_eq!(address(url).err().unwrap().kind(), ErrorKind::InvalidInput, "{url}");
        }
        let cluster = |url: &str| {
            RedisAddress::cluster(&ServerOptions { url: url.to_owned(), ..ServerOptions::default() })
        };
        let read = cluster("redis-cluster://h,i?password=x&db=0").unwrap();
        assert!(read.iter().all(|address| address.login.password.as_deref() == Some("x")));
        for url in ["redis-cluster://h?x=1", "redis-cluster://h?db=1", "redis-cluster://h#1"] {
            assert_eq!(cluster(url).err().unwrap().kind(), ErrorKind::InvalidInput, "{url}");
        }
    }

    #[test]
    fn options_go_before_the_url() {
        let options = ServerOptions {
            url: "redis://me:one@example.org/3".to_owned(),
            username: Some("you".to_owned()),
            password: Some("two".to_owned()),
            database: Some(4),
            ..ServerOptions::default()
        };
        let read = RedisAddress::new(&options).unwrap();
        assert_eq!(
            (read.login.username.as_deref(), read.login.password.as_deref()),
            (Some("you"), Some("two"))
        );
        assert_eq!(read.login.database, 4);
    }

    #[test]
    fn bad_redis_urls_are_refused_without_repeating_them() {
        for url in [
            "",
            "localhost",
            "user:S3CR3T@localhost",
            "http://user:S3CR3T@localhost",
            "redis//user:S3CR3T@localhost",
            "redis://user:S3CR3T@localhost:port",
            "redis://user:S3CR3T@localhost:99999",
            "redis://user:S3CR3T@localhost/S3CR3T",
            "redis://user:S3CR3T@",
            "redis://user:S3CR3T@0.0.0.0/",
            "redis://user:S3CR3T@localhost/-1",
            "redis+unix://?pass=S3CR3T",
        ] {
            let error = address(url).err().unwrap_or_else(|| panic!("{url} was accepted"));
            // Any is refused so on a system without Unix sockets.
            let is_refused = url.starts_with("redis+unix") && NO_LOCAL_SOCKETS.is_some();
            let kind = if is_refused { ErrorKind::Unsupported } else { ErrorKind::InvalidInput };
            assert_eq!(error.kind(), kind, "{url}");
            assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{error:?}");
        }
    }

    fn sentinels(url: &str) -> (RedisAddress, Arc<Sentinels>) {
        let address = address(url).unwrap();
        let Target::Master(sentinels) = &address.target else { panic!("{url} names no Sentinels") };
        let sentinels = Arc::clone(sentinels);
        (address, sentinels)
    }

    #[test]
    fn a_url_of_sentinels_is_read() {
        let (read, sentinels) =
            sentinels("redis-sentinel://me:p%40ss@one.example:7000,10.0.0.2,[::1],[::2]:7001/my.master-1/3");
        assert_eq!(sentinels.name(), "my.master-1");
        let places: Vec<_> = sentinels.places().iter().map(ToString::to_string).collect();
        assert_eq!(places, ["one.example:7000", "10.0.0.2:26379", "::1:26379", "::2:7001"]);
        assert_eq!(
            (read.login.username.as_deref(), read.login.password.as_deref()),
            (Some("me"), Some("p@ss"))
        );
        assert_eq!(read.login.database, 3);
        let (read, _) = self::sentinels("redis-sentinel://one/m");
        assert_eq!((read.login.username, read.login.database), (None, 0));
    }

    #[test]
    fn a_bad_sentinel_url_is_refused_without_its_text() {
        for url in [
            "redis-sentinel://user:S3CR3T@localhost",
            "redis-sentinel://user:S3CR3T@localhost/",
            "redis-sentinel://user:S3CR3T@localhost//0",
            "redis-sentinel://user:S3CR3T@/m",
            "redis-sentinel://user:S3CR3T@one,,two/m",
            "redis-sentinel://user:S3CR3T@one:port/m",
            "redis-sentinel://user:S3CR3T@one:99999/m",
            "redis-sentinel://user:S3CR3T@one/m/S3CR3T",
            "redis-sentinel://user:S3CR3T@one/m/-1",
            "redis-sentinel://user:S3CR3T@one/m/0/0",
            "redis-sentinel://user:S3CR3T@one/my master",
            "redis-sentinel://user:S3CR3T@one/m#insecure",
            "redis-sentinel://user:S3CR3T@one/m/2?db=1",
            "redis-sentinel://user:S3CR3T@one?x,two/m",
        ] {
            let error = address(url).err().unwrap_or_else(|| panic!("{url} was accepted"));
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{error:?}");
        }
    }

    #[test]
    fn sentinels_credentials_are_for_sentinels() {
        let options = ServerOptions {
            url: "redis://localhost".to_owned(),
            sentinel_password: Some("S3CR3T".to_owned()),
            ..ServerOptions::default()
        };
        let error = RedisAddress::new(&options).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(!format!("{error:?}").contains("S3CR3T"));
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_the_feature_tls_is_refused_in_words() {
        for url in ["rediss://localhost", "rediss-sentinel://localhost/m"] {
            let error = address(url).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("feature \"tls\""));
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn verification_cannot_be_turned_off() {
        assert_eq!(
            address("rediss-sentinel://one/m#insecure").err().unwrap().kind(),
            ErrorKind::InvalidInput
        );
        assert_eq!(address("rediss://localhost/#insecure").err().unwrap().kind(), ErrorKind::InvalidInput);
    }
}
