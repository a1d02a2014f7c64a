//! The stores that run the contracts, each a function named like its module in `contracts!`.

use std::sync::OnceLock;
use std::time::Duration;

use leasehold::{ClientBuilder, MemoryStore, Ring};
#[cfg(feature = "sqlite")]
use leasehold::{LockClient, Result};
#[cfg(feature = "sqlite")]
use tempfile::TempDir;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
use super::harness::kinds_alike;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use super::harness::queueing_kinds;
use super::harness::{EndSessions, Need, Open, Restart, Sessions, Store, usual_kinds};
use crate::support::cluster::Cluster;
#[cfg(feature = "etcd")]
use crate::support::etcd::Etcd;
#[cfg(feature = "mysql")]
use crate::support::mysql::MysqlServer;
#[cfg(feature = "postgres")]
use crate::support::postgres::PostgresServer;
#[cfg(feature = "sqlite")]
use crate::support::programs;
use crate::support::sentinel::SentinelSet;
use crate::support::server::{RedisServer, admin_of, given, matrix};
#[cfg(feature = "zookeeper")]
use crate::support::zookeeper::{CALM, Relay, ZooKeeper};

pub(crate) fn memory() -> Option<Store> {
    Some(memory_store())
}

fn memory_store() -> Store {
    let store = MemoryStore::new();
    Store {
        kinds: usual_kinds(),
        late: Duration::ZERO,
        lacks: &[Need::Keeping],
        rows_say_who: false,
        survives_restart: false,
        sessions: Sessions::None,
        restartable: || (memory_store(), Box::new(memory_store)),
        open: Box::new(move |options| options.build_in_memory(&store)),
    }
}

pub(crate) fn redis() -> Option<Store> {
    static SERVER: OnceLock<Option<RedisServer>> = OnceLock::new();
    let start = || SERVER.get_or_init(|| Some(RedisServer::builder(matrix().first()?).start())).as_ref();
    let Some(url) = given(0).or_else(|| start().map(RedisServer::url)) else {
        crate::support::missing("no redis-server and no valkey-server");
        return None;
    };
    Some(redis_with(Box::new(move |options| options.url(&url).build())))
}

pub(crate) fn sentinel() -> Option<Store> {
    static SET: OnceLock<Option<SentinelSet>> = OnceLock::new();
    let set = SET.get_or_init(|| Some(SentinelSet::start(matrix().first()?))).as_ref();
    if set.is_none() {
        crate::support::missing("no redis-server and no valkey-server");
    }
    let url = set?.url();
    Some(sentinel_with(&url))
}

fn sentinel_with(url: &str) -> Store {
    let url = url.to_owned();
    Store {
        kinds: usual_kinds(),
        lacks: &[],
        rows_say_who: false,
        survives_restart: true,
        sessions: Sessions::None,
        late: Duration::ZERO,
        restartable: || {
            // The master is killed, and a replica with the same data takes its place.
            let mut set = SentinelSet::start(&matrix()[0]);
            let before = sentinel_with(&set.url());
            let restart = move || {
                let old = set.master();
                set.await_replicas();
                set.servers[old].kill();
                set.await_switch(old);
                // The Sentinels and servers live as long as the store.
                let open = move |options: ClientBuilder| set.url_of(options).build();
                Store { open: Box::new(open), ..sentinel_with("") }
            };
            (before, Box::new(restart))
        },
        open: Box::new(move |options| options.url(&url).build()),
    }
}

pub(crate) fn redlock() -> Option<Store> {
    static SERVERS: OnceLock<Vec<RedisServer>> = OnceLock::new();
    let servers = SERVERS.get_or_init(|| match matrix().first() {
        Some(binary) => (0..5).map(|_| RedisServer::builder(binary).start()).collect(),
        None => Vec::new(),
    });
    if servers.is_empty() {
        crate::support::missing("no redis-server and no valkey-server");
        return None;
    }
    let urls: Vec<String> = servers.iter().map(RedisServer::url).collect();
    Some(redlock_on(Box::new(move || urls.clone())))
}

fn redlock_on(urls: Box<dyn Fn() -> Vec<String> + Send + Sync>) -> Store {
    Store {
        // Only one server can have an order of arrival, and count readers.
        kinds: usual_kinds()
            .into_iter()
            .filter(|kind| !["fair_lock", "write_lock"].contains(&kind.label))
            .collect(),
        lacks: &[Need::Fair, Need::ReadWrite, Need::Counting, Need::Keeping, Need::Hearing],
        rows_say_who: false,
        late: Duration::ZERO,
        survives_restart: true,
        sessions: Sessions::None,
        restartable: || {
            let mut servers: Vec<RedisServer> =
                (0..3).map(|_| RedisServer::builder(&matrix()[0]).append_only("always").start()).collect();
            let urls: Vec<String> = servers.iter().map(RedisServer::url).collect();
            let restart = move || {
                servers.iter_mut().for_each(RedisServer::restart);
                redlock_on(Box::new(move || servers.iter().map(RedisServer::url).collect()))
            };
            (redlock_on(Box::new(move || urls.clone())), Box::new(restart))
        },
        // A busy machine may stall a server for longer than the default.
        open: Box::new(move |options| options.redlock(urls()).node_timeout(Duration::from_secs(2)).build()),
    }
}

fn redis_without_connections() -> (Store, EndSessions) {
    let end_all = |admin: &mut redis::Connection| {
        for which in ["normal", "pubsub"] {
            let mut kill = redis::cmd("CLIENT");
            kill.arg(&["KILL", "TYPE", which, "SKIPME", "yes"]);
            let killed: u32 = kill.query(admin).unwrap();
            assert!(which == "pubsub" || killed > 0, "nobody was there");
        }
    };
    let at = |url: String| redis_with(Box::new(move |options| options.url(&url).build()));
    if let Some(url) = given(1) {
        return (at(url.clone()), Box::new(move || end_all(&mut admin_of(&url))));
    }
    let server = RedisServer::builder(&matrix()[0]).start();
    let store = at(server.url());
    let end = move || {
        end_all(&mut server.admin());
        keep(server);
    };
    (store, Box::new(end))
}

/// A server that restarts itself, in place of a kill and a start.
fn redis_that_starts_itself(url: &str) -> (Store, Restart) {
    let at = |url: &str| {
        let url = url.to_owned();
        redis_with(Box::new(move |options| options.url(&url).build()))
    };
    let (before, url) = (at(url), url.to_owned());
    let restart = move || {
        // The server drops the connection instead of answering.
        redis::cmd("DEBUG").arg("RESTART").exec(&mut admin_of(&url)).unwrap_err();
        let is_there = || redis::Client::open(&*url).and_then(|client| client.get_connection()).is_ok();
        assert!(crate::support::eventually(crate::support::LONG, is_there));
        at(&url)
    };
    (before, Box::new(restart))
}

/// Keeps a server until this program ends.
fn keep<T: Send + 'static>(server: T) {
    static KEPT: parking_lot::Mutex<Vec<Box<dyn std::any::Any + Send>>> = parking_lot::Mutex::new(Vec::new());
    KEPT.lock().push(Box::new(server));
}

fn redis_with(open: Open) -> Store {
    Store {
        kinds: usual_kinds(),
        late: Duration::ZERO,
        lacks: &[],
        rows_say_who: false,
        survives_restart: true,
        sessions: Sessions::Outlived(redis_without_connections),
        restartable: || {
            if let Some(url) = given(2) {
                return redis_that_starts_itself(&url);
            }
            // Acknowledged writes are in its file, and there again after a kill.
            let mut server = RedisServer::builder(&matrix()[0]).append_only("always").start();
            let url = server.url();
            let before = redis_with(Box::new(move |options| options.url(&url).build()));
            let restart = move || {
                server.restart();
                redis_with(Box::new(move |options| options.url(server.url()).build()))
            };
            (before, Box::new(restart))
        },
        open,
    }
}

pub(crate) fn cluster() -> Option<Store> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    let url = CLUSTER.get_or_init(Cluster::start).as_ref()?.url();
    Some(cluster_with(Box::new(move |options| options.url(&url).build())))
}

fn cluster_with(open: Open) -> Store {
    Store {
        kinds: usual_kinds(),
        lacks: &[],
        rows_say_who: false,
        late: Duration::ZERO,
        survives_restart: true,
        sessions: Sessions::None,
        restartable: || {
            let mut cluster =
                Cluster::start_with(&["appendonly yes", "appendfsync always"]).expect("it started before");
            let url = cluster.url();
            let before = cluster_with(Box::new({
                let url = url.clone();
                move |options| options.url(&url).build()
            }));
            let restart = move || {
                cluster.restart();
                cluster_with(Box::new(move |options| options.url(cluster.url()).build()))
            };
            (before, Box::new(restart))
        },
        open,
    }
}

pub(crate) fn ring() -> Option<Store> {
    static SERVERS: OnceLock<Vec<RedisServer>> = OnceLock::new();
    let binary = crate::support::server::default_server()?;
    let servers = SERVERS.get_or_init(|| (0..3).map(|_| RedisServer::builder(&binary).start()).collect());
    Some(ring_of(servers))
}

fn ring_of(servers: &[RedisServer]) -> Store {
    let nodes: Vec<String> = servers.iter().map(RedisServer::url).collect();
    Store {
        kinds: usual_kinds(),
        lacks: &[Need::Counting, Need::Keeping, Need::Hearing],
        rows_say_who: false,
        late: Duration::ZERO,
        survives_restart: true,
        sessions: Sessions::None,
        restartable: || {
            let start = || RedisServer::builder(&matrix()[0]).append_only("always").start();
            let mut servers: Vec<RedisServer> = (0..3).map(|_| start()).collect();
            let before = ring_of(&servers);
            let restart = move || {
                servers.iter_mut().for_each(RedisServer::kill);
                servers.iter_mut().for_each(RedisServer::restart);
                let ring = ring_of(&servers);
                let reopen = ring.open;
                // The servers live as long as the store.
                let open = move |options| {
                    let _kept = &servers;
                    reopen(options)
                };
                Store { open: Box::new(open), ..ring }
            };
            (before, Box::new(restart))
        },
        open: Box::new(move |options| options.ring(Ring::new(nodes.iter().map(String::as_str))).build()),
    }
}

#[cfg(feature = "etcd")]
pub(crate) fn etcd() -> Option<Store> {
    static SERVER: OnceLock<Option<Etcd>> = OnceLock::new();
    let server = SERVER.get_or_init(Etcd::start).as_ref();
    if server.is_none() {
        crate::support::etcd::say_missing();
    }
    let url = server?.url();
    Some(etcd_with(Box::new(move |options| options.url(&url).build())))
}

#[cfg(feature = "etcd")]
fn etcd_with(open: Open) -> Store {
    Store {
        kinds: queueing_kinds().into_iter().filter(|kind| kind.label != "write_lock").collect(),
        lacks: &[Need::ReadWrite, Need::RunOnce, Need::Counting, Need::Token],
        rows_say_who: false,
        // Leases of whole seconds, rounded up, and the server's check for expired leases each half a second.
        late: Duration::from_millis(1_000 + 500),
        survives_restart: true,
        sessions: Sessions::None,
        restartable: || {
            let mut server = Etcd::start().expect("there was one for the other tests");
            let url = server.url();
            let before = etcd_with(Box::new(move |options| options.url(&url).build()));
            let restart = move || {
                server.restart();
                etcd_with(Box::new(move |options| options.url(server.url()).build()))
            };
            (before, Box::new(restart))
        },
        open,
    }
}

#[cfg(feature = "zookeeper")]
pub(crate) fn zookeeper() -> Option<Store> {
    static SERVER: OnceLock<Option<ZooKeeper>> = OnceLock::new();
    let url = SERVER.get_or_init(|| ZooKeeper::start(CALM)).as_ref()?.url();
    Some(zookeeper_with(Box::new(move |options| options.url(&url).build())))
}

#[cfg(feature = "zookeeper")]
fn zookeeper_with(open: Open) -> Store {
    Store {
        kinds: queueing_kinds(),
        lacks: &[Need::Counting, Need::RunOnce, Need::Token],
        rows_say_who: true,
        late: Duration::ZERO,
        survives_restart: true,
        sessions: Sessions::Bind(zookeeper_without_session),
        restartable: || {
            let mut server = ZooKeeper::start(CALM).expect("it was there a moment ago");
            let url = server.url();
            let before = zookeeper_with(Box::new(move |options| options.url(&url).build()));
            let restart = move || {
                server.launch_again();
                zookeeper_with(Box::new(move |options| options.url(server.url()).build()))
            };
            (before, Box::new(restart))
        },
        open,
    }
}

/// The first client loses its session.
#[cfg(feature = "zookeeper")]
fn zookeeper_without_session() -> (Store, EndSessions) {
    let server = ZooKeeper::start(CALM).expect("it was there a moment ago");
    let relay = Relay::before(&server);
    let url = relay.url();
    let store = zookeeper_with(Box::new(move |options| options.url(&url).build()));
    let end = move || {
        relay.end_session(&server);
        keep(server);
    };
    (store, Box::new(end))
}

#[cfg(any(feature = "mysql", feature = "sqlite"))]
const DATABASES_LACK: &[Need] = &[Need::Fair, Need::ReadWrite, Need::Counting, Need::Keeping, Need::Hearing];

#[cfg(feature = "postgres")]
pub(crate) fn postgres() -> Option<Store> {
    static SERVER: OnceLock<Option<PostgresServer>> = OnceLock::new();
    let url = SERVER.get_or_init(PostgresServer::start).as_ref()?.url();
    Some(postgres_with(Box::new(move |options| options.url(&url).create_schema(true).build())))
}

#[cfg(feature = "postgres")]
fn postgres_with(open: Open) -> Store {
    Store {
        kinds: kinds_alike(true, Duration::from_millis(1_200)),
        lacks: &[Need::Fair, Need::ReadWrite, Need::Counting],
        rows_say_who: true,
        late: Duration::ZERO,
        survives_restart: true,
        sessions: Sessions::Outlived(postgres_without_connections),
        restartable: || {
            let mut server = PostgresServer::start().unwrap();
            let url = server.url();
            let before =
                postgres_with(Box::new(move |options| options.url(&url).create_schema(true).build()));
            let restart = move || {
                server.restart();
                postgres_with(Box::new(move |options| options.url(server.url()).build()))
            };
            (before, Box::new(restart))
        },
        open,
    }
}

#[cfg(feature = "postgres")]
fn postgres_without_connections() -> (Store, EndSessions) {
    let server = PostgresServer::start().unwrap();
    let url = server.url();
    let store = postgres_with(Box::new(move |options| options.url(&url).create_schema(true).build()));
    let end = move || {
        let text = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        assert!(!server.admin().query(text, &[]).unwrap().is_empty(), "nobody was there");
        keep(server);
    };
    (store, Box::new(end))
}

#[cfg(feature = "mysql")]
pub(crate) fn mysql() -> Option<Store> {
    static SERVER: OnceLock<Option<MysqlServer>> = OnceLock::new();
    let url = SERVER.get_or_init(MysqlServer::start).as_ref()?.url();
    Some(mysql_with(Box::new(move |options| options.url(&url).create_schema(true).build())))
}

#[cfg(feature = "mysql")]
fn mysql_with(open: Open) -> Store {
    Store {
        kinds: kinds_alike(false, Duration::from_millis(100)),
        lacks: DATABASES_LACK,
        rows_say_who: true,
        late: Duration::ZERO,
        survives_restart: true,
        sessions: Sessions::Outlived(mysql_without_connections),
        restartable: || {
            let mut server = MysqlServer::start().unwrap();
            let url = server.url();
            let before = mysql_with(Box::new(move |options| options.url(&url).create_schema(true).build()));
            let restart = move || {
                server.restart();
                mysql_with(Box::new(move |options| options.url(server.url()).build()))
            };
            (before, Box::new(restart))
        },
        open,
    }
}

#[cfg(feature = "mysql")]
fn mysql_without_connections() -> (Store, EndSessions) {
    use mysql::prelude::Queryable;
    let server = MysqlServer::start().unwrap();
    let url = server.url();
    let store = mysql_with(Box::new(move |options| options.url(&url).create_schema(true).build()));
    let end = move || {
        let mut admin = server.admin();
        let others =
            "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'admin'";
        let ids: Vec<u64> = admin.query(others).unwrap();
        assert!(!ids.is_empty(), "nobody was there");
        for id in ids {
            admin.query_drop(format!("KILL {id}")).ok(); // it may be gone
        }
        keep(server);
    };
    (store, Box::new(end))
}

#[cfg(feature = "sqlite")]
pub(crate) fn sqlite() -> Option<Store> {
    // A file has one writer at a time: contracts on one file would keep each other's renewals waiting.
    let folder = programs::in_memory();
    Some(sqlite_with(Box::new(move |options| in_file(options, &folder))))
}

#[cfg(feature = "sqlite")]
fn sqlite_with(open: Open) -> Store {
    Store {
        kinds: kinds_alike(false, Duration::from_millis(50)),
        lacks: DATABASES_LACK,
        rows_say_who: true,
        late: Duration::ZERO,
        survives_restart: true,
        sessions: Sessions::None,
        // Only the processes that use the file can be killed, which tests/stores/sqlite.rs does.
        restartable: || {
            let folder = std::sync::Arc::new(programs::in_memory());
            let same = std::sync::Arc::clone(&folder);
            let before = sqlite_with(Box::new(move |options| in_file(options, &same)));
            (before, Box::new(move || sqlite_with(Box::new(move |options| in_file(options, &folder)))))
        },
        open,
    }
}

#[cfg(feature = "sqlite")]
fn in_file(options: ClientBuilder, folder: &TempDir) -> Result<LockClient> {
    options.url(programs::sqlite_url(&folder.path().join("locks.db"))).create_schema(true).build()
}
