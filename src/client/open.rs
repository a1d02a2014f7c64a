//! Opens a client's store, by the scheme of its URL or by its list of servers.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Options, RedlockOptions, ServerOptions};
use crate::copies::ReplicaRule;
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::{check_scheme, without_credentials};
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::seam::capabilities::TableInUse;
use crate::seam::ring_member::RingMember;
use crate::seam::{OpenStore, Store};
#[cfg(feature = "etcd")]
use crate::stores::etcd::EtcdStore;
#[cfg(feature = "redis")]
use crate::stores::redis::{RedisStore, open as open_redis};
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
use crate::stores::sql;
#[cfg(feature = "zookeeper")]
use crate::stores::zookeeper::ZooKeeperStore;
use crate::time::Clock;
use crate::topologies::redlock::{self, Redlock, VotingNode};
use crate::topologies::ring::RingStore;
use crate::topologies::ring::plan::Ring;

pub(super) enum Servers {
    /// The server of the URL.
    One,
    Redlock(RedlockOptions),
    Ring(Ring),
}

impl Servers {
    pub(super) fn checked(
        redlock: Option<RedlockOptions>,
        ring: Option<Ring>,
        node_timeout: Option<Duration>,
    ) -> Result<Servers> {
        match (redlock, ring, node_timeout) {
            (Some(_), Some(_), _) => {
                Err(Error::invalid("connect", "both redlock() and ring() were given: give one of them"))
            }
            (Some(redlock), None, timeout) => {
                let node_timeout = timeout.unwrap_or(redlock.node_timeout);
                Ok(Servers::Redlock(RedlockOptions { node_timeout, ..redlock }.checked()?))
            }
            (None, _, Some(_)) => {
                Err(Error::invalid("connect", "node_timeout() was given without redlock()"))
            }
            (None, Some(ring), None) => Ok(Servers::Ring(ring)),
            (None, None, None) => Ok(Servers::One),
        }
    }

    pub(super) fn urls<'a>(&'a self, one: &'a ServerOptions) -> impl Iterator<Item = &'a str> {
        let (redlock, ring) = match self {
            Servers::One => (None, None),
            Servers::Redlock(redlock) => (Some(redlock), None),
            Servers::Ring(ring) => (None, Some(ring)),
        };
        let redlock = redlock.into_iter().flat_map(|redlock| &redlock.nodes).map(|node| &*node.url);
        let ring = ring.into_iter().flat_map(|ring| &ring.nodes).map(|node| &*node.url);
        [&*one.url].into_iter().chain(redlock).chain(ring)
    }
}

/// The kind of store that the URL's scheme names, as messages and features call it; `redis` for all others.
fn kind(url: &str) -> &'static str {
    match scheme(url).as_str() {
        "etcd" | "etcds" => "etcd",
        "postgres" | "postgresql" => "postgres",
        "mysql" | "mariadb" => "mysql",
        "sqlite" => "sqlite",
        "zk" | "zks" => "zookeeper",
        "redis-cluster" | "rediss-cluster" => "redis-cluster",
        "redis-sentinel" | "rediss-sentinel" => "redis-sentinel",
        _ => "redis",
    }
}

fn scheme(url: &str) -> String {
    url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase()
}

/// The kind of store, for messages. Refuses URLs without a scheme, and `durable()` for a store that lacks it.
pub(super) fn checked_kind(server: &ServerOptions, servers: &Servers) -> Result<&'static str> {
    let store = match servers {
        Servers::Redlock(_) => "redlock",
        Servers::Ring(_) => "ring",
        Servers::One => check_scheme(&server.url).map(|()| kind(&server.url))?,
    };
    if server.durable.is_some() && store != "ring" && !store.starts_with("redis") {
        let words = format!(
            "durable() is for a Redis, its Sentinels, a cluster or a ring: {store} has its own settings for what a restart keeps"
        );
        return Err(Error::new(ErrorKind::Unsupported, "connect", words));
    }
    Ok(store)
}

/// Refuses options with which a lazy client could never connect.
pub(super) fn check(server: &ServerOptions, servers: &Servers, store: &str) -> Result<()> {
    match servers {
        Servers::One if matches!(store, "redis" | "redis-sentinel") => check_place(server),
        Servers::One => Ok(()),
        Servers::Redlock(redlock) => redlock
            .nodes
            .iter()
            .try_for_each(|node| check_place(&ServerOptions { url: node.url.clone(), ..server.clone() })),
        Servers::Ring(ring) => ring.clone().checked().map(drop),
    }
}

#[cfg(feature = "redis")]
fn check_place(server: &ServerOptions) -> Result<()> {
    RedisStore::place(server).map(drop)
}

#[cfg(not(feature = "redis"))]
fn check_place(server: &ServerOptions) -> Result<()> {
    Err(no_redis(&server.url))
}

/// The error of a build without Redis, for a URL whose scheme is Redis's or unknown.
#[cfg(not(feature = "redis"))]
fn no_redis(url: &str) -> Error {
    let scheme = scheme(url);
    if scheme.starts_with("redis") || scheme == "unix" {
        return crate::hosts::needs_feature("redis", "redis");
    }
    let words =
        format!("the scheme of the URL is not known: a URL begins with one of {}", crate::hosts::SCHEMES);
    Error::invalid("connect", words)
}

pub(super) fn open(
    server: &ServerOptions,
    servers: &Servers,
    options: &mut Options,
    reporter: &Arc<Reporter>,
) -> Result<OpenStore> {
    let store: Arc<dyn Store> = match servers {
        Servers::One => open_one(server, options, reporter)?,
        #[cfg(feature = "redis")]
        Servers::Redlock(redlock) => Arc::new(connect_redlock(server, redlock.clone(), reporter)?),
        #[cfg(feature = "redis")]
        Servers::Ring(ring) => Arc::new(connect_ring(server.clone(), ring.clone(), reporter)?),
        #[cfg(not(feature = "redis"))]
        Servers::Redlock(_) | Servers::Ring(_) => return Err(crate::hosts::needs_feature("redis", "redis")),
    };
    let store = OpenStore::from(store);
    warn_of_other_tables(&store, reporter);
    Ok(store)
}

/// Warns of further tables, because two programs with different tables could both get the same lock.
fn warn_of_other_tables(store: &OpenStore, reporter: &Reporter) {
    if let Some(TableInUse { name, others }) = &store.capabilities.table
        && !others.is_empty()
    {
        let others = others.join(", ");
        let text = format!(
            "the locks are in {name}, and there is also {others}: a client that uses another table shares no lock with this one; \
             drop the tables that are not used, or name the table with its schema in all clients"
        );
        reporter.observe_later(move |observer| observer.event(&Event::Warning { text: &text }));
    }
}

fn open_one(
    server: &ServerOptions,
    options: &mut Options,
    reporter: &Arc<Reporter>,
) -> Result<Arc<dyn Store>> {
    #[cfg(not(feature = "zookeeper"))]
    let _ = options;
    match kind(&server.url) {
        #[cfg(feature = "etcd")]
        "etcd" => Ok(Arc::new(EtcdStore::connect(server, Arc::clone(reporter))?)),
        #[cfg(feature = "postgres")]
        "postgres" => sql::postgres::open(server.checked_for_database()?, Arc::clone(reporter)),
        #[cfg(feature = "mysql")]
        "mysql" => sql::mysql::open(server.checked_for_database()?),
        #[cfg(feature = "sqlite")]
        "sqlite" => sql::sqlite::open(server.checked_for_database()?),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => {
            let store = ZooKeeperStore::connect(server, options.lease, Arc::clone(reporter))?;
            // A hold ends with its session, whose time-out the servers may have set below the lease.
            options.lease = options.lease.min(store.session_timeout());
            Ok(Arc::new(store))
        }
        #[cfg(feature = "redis")]
        "redis" | "redis-cluster" | "redis-sentinel" => open_redis(server, reporter),
        #[cfg(not(feature = "redis"))]
        "redis" | "redis-cluster" | "redis-sentinel" => Err(no_redis(&server.url)),
        left_out => Err(crate::hosts::needs_feature(&scheme(&server.url), left_out)),
    }
}

pub(super) fn place<'a>(server: &ServerOptions, urls: impl Iterator<Item = &'a str>) -> String {
    let mut places: Vec<String> = urls.map(without_credentials).collect();
    places.sort_unstable();
    let (database, table) = (server.database.unwrap_or(0), &server.table.name);
    format!("{} {database} {table}", places.join(" "))
}

#[cfg(feature = "redis")]
fn connect_redlock(
    server: &ServerOptions,
    redlock: RedlockOptions,
    reporter: &Arc<Reporter>,
) -> Result<Redlock> {
    Error::unless(server.url.is_empty(), || "both url() and redlock() were given: give one of them")?;
    // By default a Redlock waits for no replicas, because a majority of servers grants each lock.
    let replicas = match server.replicas {
        ReplicaRule::ByUrl => ReplicaRule::Nothing,
        given => given,
    };
    let nodes = redlock.nodes.into_iter().enumerate().map(|(at, node)| {
        let options = ServerOptions { url: node.url, replicas, ..server.clone() };
        let place = RedisStore::place(&options)?;
        // The number distinguishes servers whose hosts cannot be shown.
        let place = if place.starts_with('(') { format!("server {} {place}", at + 1) } else { place };
        let reporter = Arc::clone(reporter);
        let open = move |timeout: Duration| {
            let connect_timeout = options.connect_timeout.min(timeout);
            let options = ServerOptions { connect_timeout, ..options.clone() };
            open_member(&options, &reporter)
        };
        Ok(VotingNode::new(place, node.map_names, Box::new(open)))
    });
    let nodes = nodes.collect::<Result<Vec<_>>>()?;
    Redlock::connect(nodes, redlock.node_timeout, server.connect_timeout, reporter)
}

#[cfg(feature = "redis")]
fn open_member(options: &ServerOptions, reporter: &Arc<Reporter>) -> Result<redlock::Voter> {
    let store = RedisStore::connect(options, Arc::clone(reporter))?;
    let mut doubts = Vec::new();
    let identity = match store.about(Clock::System.after(options.connect_timeout)) {
        Ok(about) if about.is_cluster_member => {
            let words = "the server is a member of a cluster, which may move or lose its keys by itself: Redlock needs \
                         servers that stand alone";
            return Err(Error::new(ErrorKind::Unsupported, "connect", words));
        }
        Ok(about) => {
            if about.replicas > 0 {
                doubts.push("the server has replicas: if one of them replaces it, locks that this replica has not received are lost");
            }
            about.run_id
        }
        Err(error) if error.is_retryable() => return Err(error.during("connect")),
        Err(_not_told) => {
            doubts.push("the server hides its identity (INFO): a server that is given twice is not noticed");
            None
        }
    };
    let noter = Arc::new(store);
    let store: Arc<dyn Store> = noter.clone();
    let note_format = Box::new(move |deadline| noter.note_format(deadline));
    Ok(redlock::Voter { store: store.into(), identity, doubts, note_format })
}

#[cfg(feature = "redis")]
fn connect_ring(server: ServerOptions, ring: Ring, reporter: &Arc<Reporter>) -> Result<RingStore> {
    Error::unless(server.url.is_empty(), || "both url() and ring() were given: give one of them")?;
    let (patience, reporter) = (server.connect_timeout, Arc::clone(reporter));
    let open = move |url: &str| -> Result<Arc<dyn RingMember>> {
        let server = ServerOptions { url: url.to_owned(), ..server.clone() };
        Ok(Arc::new(RedisStore::unconnected(&server, Arc::clone(&reporter))?))
    };
    RingStore::open(ring, patience, Box::new(open))
}

#[cfg(not(feature = "redis"))]
#[cfg(test)]
mod without_redis {
    use crate::LockClient;

    #[test]
    fn the_error_of_an_unsupported_url_shows_no_secret() {
        let error = |url: &str| LockClient::connect(url).unwrap_err().to_string();
        for scheme in ["redis", "rediss-sentinel", "redis-cluster", "redis+unix"] {
            let error = error(&format!("{scheme}://u:S3CR3T@127.0.0.1:1/m"));
            assert!(error.contains("feature \"redis\"") && !error.contains("S3CR3T"), "{error}");
        }
        let error = error("S3CR3T://127.0.0.1:1");
        assert!(error.contains("is not known") && !error.contains("S3CR3T"), "{error}");
    }
}

#[cfg(all(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "mysql",
    feature = "sqlite"
))]
#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::client::ClientBuilder;
    use crate::hosts::Hosts;

    const SECRET: &str = "S3CR3T";

    const STORES: &[(&str, &str)] = &[
        ("redis", "/0"),
        ("rediss", "/0"),
        ("redis-sentinel", "/m"),
        ("rediss-sentinel", "/m/0"),
        ("redis-cluster", ""),
        ("rediss-cluster", "/"),
        ("redis+unix", "/no/such/socket"),
        ("unix", "/no/such/socket"),
        ("etcd", "/prefix"),
        ("etcds", ""),
        ("zk", "/root"),
        ("zks", ""),
        ("postgres", "/shop"),
        ("postgresql", "/shop"),
        ("mysql", "/shop"),
        ("mariadb", "/shop"),
        ("sqlite", "/no/such/file"),
        ("http", "/"),
    ];

    /// URLs, correct and mistyped, with the password wherever it can end up.
    const FORMS: &[&str] = &[
        "{s}://u:S3CR3T@127.0.0.1:1{p}",
        "{s}://u:S3CR3T@host.invalid{p}",
        "{s}://u:S3CR3T@host.invalid:1,other.invalid{p}",
        "{s}://S3CR3T@127.0.0.1:1{p}",
        "{s}://:S3CR3T@127.0.0.1:1{p}",
        "{s}://S3CR3T:u@127.0.0.1:1{p}",
        "{s}://S3CR3T{p}",
        "{s}://S3CR3T",
        "{s}://S3CR3T,S3CR3T{p}",
        "{s}://u:S3CR3T{p}",
        "{s}://u:S3CR3T@{p}",
        "{s}://u:S3CR3T@:1{p}",
        "{s}://u:S3CR3T@[::1{p}",
        "{s}://u:S3CR3T@127.0.0.1:99999{p}",
        "{s}://u:S3CR3T@127.0.0.1:port{p}",
        "{s}://u:S3CR3T@local host{p}",
        // For `*` the test puts each character that may end the host or the password too early.
        "{s}://S3CR3T*x@127.0.0.1:1{p}",
        "{s}://x*S3CR3T@127.0.0.1:1{p}",
        "{s}://u:S3CR3T*x@127.0.0.1:1{p}",
        "{s}://u:x*S3CR3T@127.0.0.1:1{p}",
        "{s}://u:S3CR3T@x@host.invalid{p}",
        "{s}://u:x@S3CR3T@host.invalid{p}",
        "{s}://u:x@S3CR3T/y@host.invalid{p}",
        "{s}://u:x@S3CR3T#y@host.invalid{p}",
        "{s}://u:S3CR3T%zz@127.0.0.1:1{p}",
        "{s}://u:%S3CR3T@127.0.0.1:1{p}",
        "{s}://127.0.0.1:1{p}?password=S3CR3T",
        "{s}://127.0.0.1:1{p}?sslmode=S3CR3T&ssl-mode=S3CR3T",
        "{s}://127.0.0.1:1{p}?S3CR3T",
        "{s}://127.0.0.1:1{p}#S3CR3T",
        "{s}:///no/such/file?pass=S3CR3T",
        "{s}:///no/such/file?password=S3CR3T#S3CR3T",
        "{s}//u:S3CR3T@127.0.0.1:1{p}",
        "{s}:u:S3CR3T@127.0.0.1:1{p}",
        "u:S3CR3T@127.0.0.1:1{p}",
        "S3CR3T://127.0.0.1:1{p}",
        "S3CR3T",
    ];

    fn texts(error: &Error) -> String {
        let mut texts = format!("{error} | {error:?} | {error:#?}");
        let mut cause = error.source();
        while let Some(error) = cause {
            texts += &format!(" | {error} | {error:?}");
            cause = error.source();
        }
        texts
    }

    #[test]
    fn durable_is_refused_for_stores_other_than_redis() {
        for url in ["sqlite:///no/such/file", "etcd://127.0.0.1:1", "postgres://u@127.0.0.1:1/d"] {
            let built = ClientBuilder::default().url(url).durable(1, 0).build();
            let error = built.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("durable() is for a Redis"), "{error}");
        }
    }

    #[test]
    fn no_error_shows_a_password_from_a_url() {
        let reporter = Arc::new(Reporter::new(None));
        let wait = Duration::from_millis(200);
        let mut shown = Vec::new();
        let forms = FORMS.iter().flat_map(|form| {
            let ends = if form.contains('*') { "#/?\\ ,:" } else { "*" };
            ends.chars().map(|end| form.replace('*', &end.to_string()))
        });
        for (scheme, path) in STORES {
            for form in forms.clone() {
                let url = form.replace("{s}", scheme).replace("{p}", path);
                assert!(url.contains(SECRET));
                let server = ServerOptions {
                    url,
                    connect_timeout: wait,
                    command_timeout: wait,
                    hosts: Arc::new(Hosts::resolving(|_| Err(std::io::Error::other("no such host")))),
                    ..ServerOptions::default()
                };
                let said = match open_one(&server, &mut Options::default(), &reporter) {
                    Err(error) => texts(&error),
                    Ok(_) => panic!("{} leads to a server", server.url),
                };
                let said = format!("{said} {server:?}");
                if said.contains(SECRET) {
                    shown.push(format!("{}: {said}", server.url));
                }
            }
        }
        assert!(shown.is_empty(), "{} URLs: {shown:#?}", shown.len());
    }
}
