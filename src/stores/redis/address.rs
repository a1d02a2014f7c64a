//! The server's address and login, and how connections to it are opened.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{
    Host, HostList, SCHEMES, check_scheme, check_url, needs_feature, parameters, unescaped, unknown_parameter,
};
use crate::secrets::Renewable;
use crate::stores::redis::conn::connection::{Connection, Endpoint, ServerPlace};
use crate::stores::redis::conn::handshake::{Login, Role, open_at};
use crate::stores::redis::sentinel::Sentinels;
use crate::system::NO_LOCAL_SOCKETS;
use crate::time::{Clock, Moment};
use crate::wire::{Wire, tls_config};

/// All that a new connection needs. Not `Debug`, because it contains the password.
#[derive(Clone)]
pub(super) struct RedisAddress {
    pub(super) target: Target,
    pub(super) login: Login,
    pub(super) connect_timeout: Duration,
    pub(super) renewal: Option<Arc<Renewable<RedisAddress>>>,
}

#[derive(Clone)]
pub(super) enum Target {
    Place(ServerPlace),
    Master(Arc<Sentinels>),
}

/// Maximum number of connects until one reaches the master: a host name may stand for its replicas too.
const MOST_DIALS: usize = 8;

impl RedisAddress {
    /// Reads the URL; `options` take precedence. No error repeats the URL, which may have a password.
    pub(super) fn new(options: &ServerOptions) -> Result<RedisAddress> {
        let (form, is_tls) = Form::of(&options.url)?;
        RedisAddress::read(options, form, is_tls)?.pop().ok_or_else(|| form.unusable())
    }

    pub(super) fn cluster(options: &ServerOptions) -> Result<Vec<RedisAddress>> {
        let is_tls = options.url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("rediss"));
        RedisAddress::read(options, Form::Cluster, is_tls)
    }

    fn read(options: &ServerOptions, form: Form, is_tls: bool) -> Result<Vec<RedisAddress>> {
        let bad = || form.unusable();
        check_url(&options.url)?;
        let (url, pairs) = parameters(options.url.trim())?;
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        if is_tls && !cfg!(feature = "tls") {
            return Err(needs_feature(&scheme.to_ascii_lowercase(), "tls"));
        }
        let list = match form {
            Form::Socket => HostList { login: None, places: Vec::new(), path: rest },
            Form::Sentinels => HostList::read(rest, 26379).ok_or_else(bad)?,
            Form::Server | Form::Cluster => HostList::read(rest, 6379).ok_or_else(bad)?,
        };
        let (name, database) = match form {
            Form::Socket => (list.path, ""),
            Form::Sentinels => list.path.split_once('/').unwrap_or((list.path, "")),
            Form::Server | Form::Cluster => ("", list.path.trim_matches('/')),
        };
        let mut read = with_parameters(options, pairs, database)?;
        let login = list.login.unwrap_or_default();
        let (username, password) = login.split_once(':').unwrap_or((login, ""));
        let text = |text: &str| {
            let words = "the URL's user or password has a % that begins no escape: write % as %25";
            unescaped(text).ok_or_else(|| Error::invalid("connect", words))
        };
        read.username = read.username.or(Some(text(username)?).filter(|name| !name.is_empty()));
        read.password = read.password.or(Some(text(password)?).filter(|password| !password.is_empty()));
        let database = match database {
            "" => 0,
            number => number.parse::<i64>().map_err(|_no_number| bad())?,
        };
        let is_first = (database, read.database.unwrap_or(0)) == (0, 0);
        let words = "a cluster has only database 0: leave the number out";
        Error::unless(form != Form::Cluster || is_first, || words)?;
        let database = read.database.unwrap_or(database);
        Error::unless(database >= 0, || format!("a database of {database} cannot be used: the least is 0"))?;
        let is_for_sentinels = read.sentinel_username.is_some()
            || read.sentinel_password.is_some()
            || read.sentinel_credentials.is_some();
        let words =
            "Sentinels' user or password were given, but the URL does not start with redis-sentinel://";
        Error::unless(form == Form::Sentinels || !is_for_sentinels, || words)?;
        if !is_tls && form != Form::Socket {
            let words = "the URL does not start with rediss:// or rediss-sentinel://";
            read.tls.refused_without_tls(words)?;
        }
        // For Sentinel URLs, `Sentinels` has the TLS settings, also those for the master.
        let tls = tls_config(&read.tls, is_tls && form != Form::Sentinels)?;
        let is_anywhere = |host: &Host| host.name().parse().is_ok_and(|host: IpAddr| host.is_unspecified());
        if list.places.iter().any(|(host, _)| is_anywhere(host)) {
            return Err(bad());
        }
        let places = list.places.into_iter().map(|(host, port)| {
            let host = read.hosts.own(host);
            ServerPlace::Tcp { host, port, tls: tls.clone() }
        });
        let places: Vec<ServerPlace> = places.collect();
        let targets = match form {
            Form::Server if places.len() > 1 => return Err(bad()),
            Form::Server | Form::Cluster => places.into_iter().map(Target::Place).collect(),
            Form::Socket => {
                let path = unescaped(name).filter(|path| path.len() > 1 && path.starts_with('/'));
                vec![Target::Place(ServerPlace::Unix(path.ok_or_else(bad)?.into()))]
            }
            Form::Sentinels => {
                // Sentinel allows only these characters in a master's name.
                if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
                    return Err(bad());
                }
                let places = places.into_iter().map(Arc::new).collect();
                vec![Target::Master(Arc::new(Sentinels::new(name, places, &read)?))]
            }
        };
        let role = if form == Form::Cluster { Role::ClusterMember } else { Role::Primary };
        let login = Login {
            username: read.username,
            password: read.password,
            database,
            client_name: read.client_name,
            write_timeout: read.command_timeout,
            role,
            is_durable: read.durable.is_some(),
            hosts: read.hosts,
        };
        let address = |target| RedisAddress {
            target,
            login: login.clone(),
            connect_timeout: read.connect_timeout,
            renewal: None,
        };
        Ok(targets.into_iter().map(address).collect())
    }

    /// As [`new`](Self::new), but later connections use changed passwords and certificates.
    pub(super) fn renewable(options: &ServerOptions) -> Result<RedisAddress> {
        let (renewal, address) = Renewable::new(options, RedisAddress::new)?;
        Ok(RedisAddress { renewal: Some(renewal), ..RedisAddress::clone(&address) })
    }

    /// The address of another server with the same login. `None` if this address has no host and port.
    pub(super) fn at(&self, endpoint: &Endpoint, role: Role) -> Option<RedisAddress> {
        let Target::Place(ServerPlace::Tcp { tls, .. }) = &self.target else { return None };
        let Endpoint { host, port } = endpoint.clone();
        let target = Target::Place(ServerPlace::Tcp { host, port, tls: tls.clone() });
        Some(RedisAddress { target, login: Login { role, ..self.login.clone() }, ..self.clone() })
    }

    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        let Target::Place(ServerPlace::Tcp { host, port, .. }) = &self.target else { return None };
        Some(Endpoint { host: host.clone(), port: *port })
    }

    pub(super) fn open(&self, deadline: Moment) -> Result<Connection> {
        match &self.target {
            Target::Place(place) => self.log_in(place, deadline, MOST_DIALS, &|_| ()),
            Target::Master(sentinels) => {
                sentinels.open(deadline, |place, by, begun| self.log_in(place, by, 1, begun))
            }
        }
    }

    fn log_in(
        &self,
        place: &ServerPlace,
        deadline: Moment,
        dials: usize,
        begun: &dyn Fn(&Arc<Wire>),
    ) -> Result<Connection> {
        let connect = |renewed: &RedisAddress, ends: Option<Moment>| {
            let login = Login { role: self.login.role, ..renewed.login.clone() };
            let place = match &renewed.target {
                Target::Place(ServerPlace::Tcp { tls, .. }) => place.secured(tls.as_ref()),
                Target::Place(ServerPlace::Unix(_)) => place.clone(),
                Target::Master(sentinels) => sentinels.secured(place),
            };
            let mut more = 1..dials;
            let again = |error: &Error| error.kind() == ErrorKind::ReadOnly && Clock::System.now() < deadline;
            let mut connection = loop {
                match open_at(&login, &place, deadline, begun) {
                    Err(error) if again(&error) && more.next().is_some() => {}
                    opened => break opened.map_err(|error| error.during("connect"))?,
                }
            };
            connection.origin.ends = ends;
            Ok(connection)
        };
        match &self.renewal {
            Some(renewal) => renewal.with(&place.address(), deadline, connect),
            None => connect(self, None),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Server,
    Socket,
    Sentinels,
    Cluster,
}

impl Form {
    /// The form of a URL, and whether it asks for TLS. A cluster's URL is refused: `cluster` reads it.
    fn of(url: &str) -> Result<(Form, bool)> {
        check_scheme(url)?;
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        let is_elsewhere = |known: &str| known.trim_start_matches("or ") == format!("{scheme}://");
        Ok(match scheme.as_str() {
            "redis" => (Form::Server, false),
            "rediss" => (Form::Server, true),
            "redis-sentinel" => (Form::Sentinels, false),
            "rediss-sentinel" => (Form::Sentinels, true),
            "redis+unix" | "unix" => match NO_LOCAL_SOCKETS {
                None => (Form::Socket, false),
                Some(words) => return Err(Error::new(ErrorKind::Unsupported, "connect", words)),
            },
            _ if SCHEMES.split(", ").flat_map(|known| known.split(" or ")).any(is_elsewhere) => {
                let words = "a Redlock or ring needs servers of Redis: their URLs begin with redis://, rediss://, redis+unix://, redis-sentinel:// or rediss-sentinel://";
                return Err(Error::invalid("connect", words));
            }
            _ => {
                let words = format!("the scheme of the URL is not known: a URL begins with one of {SCHEMES}");
                return Err(Error::invalid("connect", words));
            }
        })
    }

    fn unusable(self) -> Error {
        let form = match self {
            Form::Server | Form::Socket => {
                "redis://[user:password@]host[:port][/database] or redis+unix:///path"
            }
            Form::Sentinels => {
                "redis-sentinel://[user:password@]host[:port],host[:port],…/master-name[/database]"
            }
            Form::Cluster => "redis-cluster://[user:password@]host[:port][,host[:port]…]",
        };
        let wrong = "a part of the URL is missing or wrong (a port is from 1 to 65535, a database a number)";
        Error::invalid("connect", format!("{wrong}; write it as {form}"))
    }
}

/// The options with the URL's parameters, named as in redis-py, go-redis and node-redis. The fields of
/// `options` take precedence. Unknown parameters are refused: one may be meant to select a database, or TLS.
fn with_parameters(
    options: &ServerOptions,
    pairs: Vec<(&str, &str)>,
    in_path: &str,
) -> Result<ServerOptions> {
    let mut read = options.clone();
    for (name, value) in pairs {
        let bad = || {
            Error::invalid("connect", format!("the URL's parameter {name:?} has a value that cannot be used"))
        };
        let text = || unescaped(&value.replace('+', "%20")).ok_or_else(bad);
        match name {
            "db" => {
                let number: i64 = value.parse().map_err(|_no_number| bad())?;
                let words = "the URL names two databases, one in its path and one by db=: name one";
                Error::unless(in_path.is_empty() || in_path == value, || words)?;
                read.database = options.database.or(Some(number));
            }
            // The parameter has no effect, because the client chooses the protocol itself.
            "protocol" if matches!(value, "2" | "3" | "resp2" | "resp3") => {}
            "protocol" => return Err(bad()),
            "username" | "user" => read.username = options.username.clone().or(Some(text()?)),
            "password" | "pass" => read.password = options.password.clone().or(Some(text()?)),
            "client_name" => read.client_name = options.client_name.clone().or(Some(text()?)),
            _ => return Err(unknown_parameter(Some(name), instead_of(name))),
        }
    }
    read.check_client_name()?;
    Ok(read)
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

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Place(place) => place.fmt(f),
            Target::Master(sentinels) => write!(f, "master {}", sentinels.name),
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
    fn login_address_and_database_are_read_from_a_redis_url() {
        let read = address("redis://me:p%40ss@example.org:7000/3").unwrap();
        assert_eq!(read.target.to_string(), "example.org:7000");
        assert_eq!(read.login.username.as_deref(), Some("me"));
        assert_eq!(read.login.password.as_deref(), Some("p@ss"));
        assert_eq!(read.login.database, 3);
        for url in ["redis://localhost", "redis://localhost\n"] {
            assert_eq!(address(url).unwrap().target.to_string(), "localhost:6379");
        }
        let error = address("redis://:50%off@localhost").err().unwrap();
        assert!(error.to_string().contains("write % as %25"), "{error}");
        #[cfg(unix)]
        for url in ["redis+unix:///run/r.sock?db=2&pass=x", "unix:///run/r.sock?db=2&pass=x"] {
            let read = address(url).unwrap();
            assert_eq!((read.target.to_string().as_str(), read.login.database), ("/run/r.sock", 2));
            assert_eq!(read.login.password.as_deref(), Some("x"));
        }
    }

    #[test]
    fn unknown_url_parameters_are_named_in_the_error() {
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
    fn options_override_the_url() {
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
    fn login_addresses_and_master_are_read_from_a_sentinel_url() {
        let (read, sentinels) =
            sentinels("redis-sentinel://me:p%40ss@one.example:7000,10.0.0.2,[::1],[::2]:7001/my.master-1/3");
        assert_eq!(sentinels.name, "my.master-1");
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
    fn sentinel_credentials_are_refused_without_a_sentinel_url() {
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
    fn a_missing_tls_feature_is_named_in_the_error() {
        for url in ["rediss://localhost", "rediss-sentinel://localhost/m"] {
            let error = address(url).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("feature \"tls\""));
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn no_url_turns_off_certificate_verification() {
        for url in ["rediss-sentinel://one/m#insecure", "rediss://localhost/#insecure"] {
            assert_eq!(address(url).err().unwrap().kind(), ErrorKind::InvalidInput);
        }
    }
}
