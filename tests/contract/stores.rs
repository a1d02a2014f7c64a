//! The stores on which contracts run. Each `pub(crate)` function makes one; `contract!` names tests after it.

use std::sync::OnceLock;
use std::time::Duration;

use leasehold::{MemoryStore, Ring};
#[cfg(feature = "sqlite")]
use tempfile::TempDir;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
use super::harness::kinds_alike;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use super::harness::queueing_kinds;
use super::harness::{EndSessions, Need, Restart, Sessions, Store, usual_kinds};
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

/// The store of a server at a URL, with all kinds of locks. It lacks no [`Need`].
fn store_at(url: String) -> Store {
    Store {
        kinds: usual_kinds(),
        late: Duration::ZERO,
        lacks: &[],
        rows_say_who: false,
        survives_restart: true,
        sessions: Sessions::None,
        // Each store replaces this placeholder, which connects to no server.
        restartable: || (store_at(String::new()), Box::new(|| store_at(String::new()))),
        open: Box::new(move |options| options.url(&url).build()),
    }
}

/// Ties `server` to the store, so that the server runs as long as the store exists.
fn lasting<S: Send + Sync + 'static>(server: S, store: Store) -> Store {
    let open = store.open;
    let open = move |options| {
        let _kept = &server;
        open(options)
    };
    Store { open: Box::new(open), ..store }
}

/// The store of a server, and a function that kills and restarts the server and returns its new store.
fn restarting<S: Send + Sync + 'static>(
    mut server: S,
    restart: impl FnOnce(&mut S) + 'static,
    store: impl Fn(&S) -> Store + 'static,
) -> (Store, Restart) {
    let before = store(&server);
    let restart = move || {
        restart(&mut server);
        let after = store(&server);
        lasting(server, after)
    };
    (before, Box::new(restart))
}

pub(crate) fn memory() -> Option<Store> {
    Some(memory_store())
}

fn memory_store() -> Store {
    let store = MemoryStore::new();
    Store {
        lacks: &[Need::Keeping],
        survives_restart: false,
        restartable: || (memory_store(), Box::new(memory_store)),
        open: Box::new(move |options| options.build_in_memory(&store)),
        ..store_at(String::new())
    }
}

pub(crate) fn redis() -> Option<Store> {
    static SERVER: OnceLock<Option<RedisServer>> = OnceLock::new();
    let start = || SERVER.get_or_init(|| Some(RedisServer::builder(matrix().first()?).start())).as_ref();
    let Some(url) = given(0).or_else(|| start().map(RedisServer::url)) else {
        crate::support::missing("no redis-server and no valkey-server");
        return None;
    };
    Some(redis_at(url))
}

pub(crate) fn sentinel() -> Option<Store> {
    static SET: OnceLock<Option<SentinelSet>> = OnceLock::new();
    let set = SET.get_or_init(|| Some(SentinelSet::start(matrix().first()?).patient())).as_ref();
    if set.is_none() {
        crate::support::missing("no redis-server and no valkey-server");
    }
    Some(sentinel_at(set?.url()))
}

fn sentinel_at(url: String) -> Store {
    Store {
        restartable: || {
            // The restart kills the master, and a replica with the same data takes its place.
            let switch = |set: &mut SentinelSet| {
                let old = set.master();
                set.await_replicas();
                set.servers[old].kill();
                set.await_switch(old);
            };
            restarting(SentinelSet::start(&matrix()[0]), switch, |set| sentinel_at(set.url()))
        },
        ..store_at(url)
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
    Some(redlock_on(servers))
}

fn redlock_on(servers: &[RedisServer]) -> Store {
    let urls: Vec<String> = servers.iter().map(RedisServer::url).collect();
    let mut kinds = usual_kinds();
    // A Redlock has no fair and no read-write locks, since those need a single server.
    kinds.retain(|kind| !["fair_lock", "write_lock"].contains(&kind.label));
    Store {
        kinds,
        lacks: &[Need::Fair, Need::ReadWrite, Need::Counting, Need::Keeping, Need::Hearing],
        restartable: || {
            restarting(three_servers(), |servers| restart_all(servers), |servers| redlock_on(servers))
        },
        // A busy machine may stall a server for longer than the default node time-out.
        open: Box::new(move |options| options.redlock(&urls).node_timeout(Duration::from_secs(2)).build()),
        ..store_at(String::new())
    }
}

fn three_servers() -> Vec<RedisServer> {
    let start = |_| RedisServer::builder(&matrix()[0]).append_only("always").start();
    (0..3).map(start).collect()
}

fn restart_all(servers: &mut [RedisServer]) {
    servers.iter_mut().for_each(RedisServer::kill);
    servers.iter_mut().for_each(RedisServer::restart);
}

fn redis_without_connections() -> (Store, EndSessions) {
    let end_all = |admin: &mut redis::Connection| {
        for which in ["normal", "pubsub"] {
            let mut kill = redis::cmd("CLIENT");
            kill.arg(&["KILL", "TYPE", which, "SKIPME", "yes"]);
            let killed: u32 = kill.query(admin).unwrap();
            assert!(which == "pubsub" || killed > 0, "no connection was killed");
        }
    };
    if let Some(url) = given(1) {
        return (redis_at(url.clone()), Box::new(move || end_all(&mut admin_of(&url))));
    }
    let server = RedisServer::builder(&matrix()[0]).start();
    let store = redis_at(server.url());
    let end = move || {
        end_all(&mut server.admin());
        keep(server);
    };
    (store, Box::new(end))
}

/// The store of a server that a test cannot kill (see [`given`]). A command of the server restarts it.
fn redis_that_starts_itself(url: String) -> (Store, Restart) {
    let restart = |url: &mut String| {
        // The command has no answer: the server closes the connection when it restarts.
        redis::cmd("DEBUG").arg("RESTART").exec(&mut admin_of(url)).unwrap_err();
        let is_there = || redis::Client::open(&**url).and_then(|client| client.get_connection()).is_ok();
        assert!(crate::support::eventually(crate::support::LONG, is_there));
    };
    restarting(url, restart, |url| redis_at(url.clone()))
}

fn keep<T: Send + 'static>(server: T) {
    static KEPT: parking_lot::Mutex<Vec<Box<dyn std::any::Any + Send>>> = parking_lot::Mutex::new(Vec::new());
    KEPT.lock().push(Box::new(server));
}

fn redis_at(url: String) -> Store {
    Store {
        sessions: Sessions::Outlived(redis_without_connections),
        restartable: || {
            if let Some(url) = given(2) {
                return redis_that_starts_itself(url);
            }
            // The server writes each change to a file before it answers, so a kill loses no answered change.
            let server = RedisServer::builder(&matrix()[0]).append_only("always").start();
            restarting(server, RedisServer::restart, |server| redis_at(server.url()))
        },
        ..store_at(url)
    }
}

pub(crate) fn cluster() -> Option<Store> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    Some(cluster_at(CLUSTER.get_or_init(Cluster::start).as_ref()?.url()))
}

fn cluster_at(url: String) -> Store {
    Store {
        restartable: || {
            let cluster = Cluster::start_with(&["appendonly yes", "appendfsync always"]);
            restarting(cluster.expect("the cluster has started before"), Cluster::restart, |cluster| {
                cluster_at(cluster.url())
            })
        },
        ..store_at(url)
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
        lacks: &[Need::Counting, Need::Keeping, Need::Hearing],
        restartable: || {
            restarting(three_servers(), |servers| restart_all(servers), |servers| ring_of(servers))
        },
        open: Box::new(move |options| options.ring(Ring::new(nodes.iter().map(String::as_str))).build()),
        ..store_at(String::new())
    }
}

#[cfg(feature = "etcd")]
pub(crate) fn etcd() -> Option<Store> {
    static SERVER: OnceLock<Option<Etcd>> = OnceLock::new();
    Some(etcd_at(SERVER.get_or_init(Etcd::start).as_ref()?.url()))
}

#[cfg(feature = "etcd")]
fn etcd_at(url: String) -> Store {
    Store {
        kinds: queueing_kinds().into_iter().filter(|kind| kind.label != "write_lock").collect(),
        lacks: &[Need::ReadWrite, Need::RunOnce, Need::Counting, Need::Token],
        // The server rounds leases up to whole seconds, and looks for expired leases every half second.
        late: Duration::from_millis(1_000 + 500),
        restartable: || {
            let server = Etcd::start().expect("etcd started for the other tests");
            restarting(server, Etcd::restart, |server| etcd_at(server.url()))
        },
        ..store_at(url)
    }
}

#[cfg(feature = "zookeeper")]
pub(crate) fn zookeeper() -> Option<Store> {
    static SERVER: OnceLock<Option<ZooKeeper>> = OnceLock::new();
    Some(zookeeper_at(SERVER.get_or_init(|| ZooKeeper::start(CALM)).as_ref()?.url()))
}

#[cfg(feature = "zookeeper")]
fn zookeeper_at(url: String) -> Store {
    Store {
        kinds: queueing_kinds(),
        lacks: &[Need::Counting, Need::RunOnce, Need::Token],
        rows_say_who: true,
        sessions: Sessions::Bind(zookeeper_without_session),
        restartable: || {
            let server = ZooKeeper::start(CALM).expect("ZooKeeper started a moment ago");
            restarting(server, ZooKeeper::launch_again, |server| zookeeper_at(server.url()))
        },
        ..store_at(url)
    }
}

/// A store, and a function that ends the session of the store's first client.
#[cfg(feature = "zookeeper")]
fn zookeeper_without_session() -> (Store, EndSessions) {
    let server = ZooKeeper::start(CALM).expect("ZooKeeper started a moment ago");
    let relay = Relay::before(&server);
    let store = zookeeper_at(relay.url());
    let end = move || {
        relay.end_session(&server);
        keep(server);
    };
    (store, Box::new(end))
}

/// The store of a database, in which its first client creates the tables.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn database_at(url: String) -> Store {
    Store {
        rows_say_who: true,
        open: Box::new(move |options| options.url(&url).create_schema(true).build()),
        ..store_at(String::new())
    }
}

#[cfg(any(feature = "mysql", feature = "sqlite"))]
const DATABASES_LACK: &[Need] = &[Need::Fair, Need::ReadWrite, Need::Counting, Need::Keeping, Need::Hearing];

#[cfg(feature = "postgres")]
pub(crate) fn postgres() -> Option<Store> {
    static SERVER: OnceLock<Option<PostgresServer>> = OnceLock::new();
    Some(postgres_at(SERVER.get_or_init(PostgresServer::start).as_ref()?.url()))
}

#[cfg(feature = "postgres")]
fn postgres_at(url: String) -> Store {
    Store {
        kinds: kinds_alike(true, Duration::from_millis(1_200)),
        lacks: &[Need::Fair, Need::ReadWrite, Need::Counting],
        sessions: Sessions::Outlived(postgres_without_connections),
        restartable: || {
            let server = PostgresServer::start().unwrap();
            restarting(server, PostgresServer::restart, |server| postgres_at(server.url()))
        },
        ..database_at(url)
    }
}

#[cfg(feature = "postgres")]
fn postgres_without_connections() -> (Store, EndSessions) {
    let server = PostgresServer::start().unwrap();
    let store = postgres_at(server.url());
    let end = move || {
        let text = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        assert!(!server.admin().query(text, &[]).unwrap().is_empty(), "no session was ended");
        keep(server);
    };
    (store, Box::new(end))
}

#[cfg(feature = "mysql")]
pub(crate) fn mysql() -> Option<Store> {
    static SERVER: OnceLock<Option<MysqlServer>> = OnceLock::new();
    Some(mysql_at(SERVER.get_or_init(MysqlServer::start).as_ref()?.url()))
}

#[cfg(feature = "mysql")]
fn mysql_at(url: String) -> Store {
    Store {
        kinds: kinds_alike(false, Duration::from_millis(100)),
        lacks: DATABASES_LACK,
        sessions: Sessions::Outlived(mysql_without_connections),
        restartable: || {
            let server = MysqlServer::start().unwrap();
            restarting(server, MysqlServer::restart, |server| mysql_at(server.url()))
        },
        ..database_at(url)
    }
}

#[cfg(feature = "mysql")]
fn mysql_without_connections() -> (Store, EndSessions) {
    use mysql::prelude::Queryable;
    let server = MysqlServer::start().unwrap();
    let store = mysql_at(server.url());
    let end = move || {
        let mut admin = server.admin();
        let others =
            "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'admin'";
        let ids: Vec<u64> = admin.query(others).unwrap();
        assert!(!ids.is_empty(), "no session was ended");
        for id in ids {
            admin.query_drop(format!("KILL {id}")).ok(); // the session may have ended by itself
        }
        keep(server);
    };
    (store, Box::new(end))
}

#[cfg(feature = "sqlite")]
pub(crate) fn sqlite() -> Option<Store> {
    // A file allows one writer at a time, so contracts that shared a file would delay each other's renewals.
    let folder = programs::in_memory();
    let store = sqlite_in(&folder);
    Some(lasting(folder, store))
}

#[cfg(feature = "sqlite")]
fn sqlite_in(folder: &TempDir) -> Store {
    Store {
        kinds: kinds_alike(false, Duration::from_millis(50)),
        lacks: DATABASES_LACK,
        // SQLite has no server to restart. tests/stores/sqlite.rs kills processes that use the file.
        restartable: || restarting(programs::in_memory(), |_| {}, sqlite_in),
        ..database_at(programs::sqlite_url(&folder.path().join("locks.db")))
    }
}
