//! Every store records the number of its format, and refuses clients of another format when they are built. A
//! client that may not write the number works.

use std::net::Ipv4Addr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold::{Ring, RingNode};

use crate::databases::Rows as _;
use crate::support::cluster::Cluster;
use crate::support::etcd::Etcd;
use crate::support::observer::{Event, Seen};
use crate::support::prelude::*;
use crate::support::programs;
use crate::support::proxy::Proxy;
use crate::support::zookeeper::{CALM, ZooKeeper};

/// Asserts that clients can be built, but not while the store has another format's number. `note` writes a
/// number into the store.
#[track_caller]
fn keeps_to_the_format(build: impl Fn() -> leasehold::Result<LockClient>, note: impl Fn(&str)) {
    let locks = || assert!(build().unwrap().get_lock("format").try_lock().unwrap());
    locks();
    note("leasehold format 2");
    let error = fails(build(), ErrorKind::IncompatibleFormat);
    assert!(error.to_string().contains("format 2") && !error.is_retryable(), "{error}");
    note("leasehold format 1");
    locks();
}

/// Asserts that the error about the table `old_locks`, which lacks columns, contains the statement that drops
/// the table. After `drop` has executed the statement, a client can be built.
#[track_caller]
fn says_what_to_do_about_an_old_table(url: &str, table: &str, drop: impl FnOnce(&str)) {
    let build = || LockClient::builder().url(url).table("old_locks").create_schema(true).build();
    let error = fails(build(), ErrorKind::Unsupported);
    let statement = format!("DROP TABLE {table}");
    assert!(error.to_string().contains(&statement), "{error}");
    drop(&statement);
    assert!(build().unwrap().get_lock("a").try_lock().unwrap());
}

const KEY: &str = "leasehold_client:format";

fn set(server: &RedisServer, text: &str) {
    redis::cmd("SET").arg(KEY).arg(text).exec(&mut server.admin()).unwrap();
}

test_on!(a_client_refuses_redis_with_another_data_format, default_server(), |binary| {
    let server = RedisServer::builder(&binary)
        .user("locks on >S3CR3T ~app:* &* +@all")
        .user("reader on >S3CR3T ~* &* +@read +@connection +eval")
        .start();
    keeps_to_the_format(|| LockClient::connect(server.url()), |text| set(&server, text));
    // `locks` may neither read nor write the format number, `reader` may only read it, and both can connect.
    redis::cmd("DEL").arg(KEY).exec(&mut server.admin()).unwrap();
    let own = LockClient::builder().url(server.url_as("locks", "S3CR3T")).key_prefix("app:").build().unwrap();
    assert!(own.get_lock("a").try_lock().unwrap());
    let url = server.url_as("reader", "S3CR3T");
    let reader = || LockClient::connect(&url);
    reader().unwrap();
    set(&server, "leasehold format 2");
    fails(reader(), ErrorKind::IncompatibleFormat);
});

fn patient(urls: [String; 3]) -> ClientBuilder {
    LockClient::builder().redlock(urls).node_timeout(ms(3_000))
}

#[track_caller]
fn are_empty(servers: &[RedisServer]) {
    for server in servers {
        assert_eq!(redis::cmd("DBSIZE").query::<u64>(&mut server.admin()).unwrap(), 0);
    }
}

// If one server has another format, the client writes to none, since another version may use them all.
test_on!(a_client_reads_the_format_of_all_servers_before_writing, default_server(), |binary| {
    let servers = [(); 3].map(|()| RedisServer::builder(&binary).start());
    let redlock = || patient(servers.each_ref().map(RedisServer::url)).build();
    let ring = || {
        let nodes = Ring::new(servers.iter().map(|server| RingNode::new(server.url())));
        LockClient::builder().ring(nodes).build()
    };
    let ways: [&dyn Fn() -> leasehold::Result<LockClient>; 2] = [&redlock, &ring];
    for build in ways {
        set(&servers[1], "leasehold format 2");
        for _ in 0..3 {
            fails(build(), ErrorKind::IncompatibleFormat);
        }
        are_empty(&servers[..1]);
        are_empty(&servers[2..]);
        redis::cmd("DEL").arg(KEY).exec(&mut servers[1].admin()).unwrap();
        assert!(build().unwrap().get_lock("format").try_lock().unwrap());
        for server in &servers {
            let noted: String = redis::cmd("GET").arg(KEY).query(&mut server.admin()).unwrap();
            assert_eq!(noted, "leasehold format 1");
            redis::cmd("FLUSHALL").exec(&mut server.admin()).unwrap();
        }
    }
});

test_on!(the_data_format_of_a_returning_server_is_checked, default_server(), |binary| {
    let servers = [(); 3].map(|()| RedisServer::builder(&binary).start());
    let proxy = Proxy::plain((Ipv4Addr::LOCALHOST, servers[2].port()));
    let url =
        |at: usize| if at == 2 { format!("redis://127.0.0.1:{}", proxy.port()) } else { servers[at].url() };
    let urls = [0, 1, 2].map(url);
    proxy.refuse();
    let seen = Seen::default();
    let redlock = patient(urls.clone()).observer(seen.clone()).build().unwrap();
    let ring = LockClient::builder().ring(Ring::new(urls.iter().map(RingNode::new))).build().unwrap();
    set(&servers[2], "leasehold format 2");
    proxy.accept();
    seen.wait_for("the format", |event| matches!(event, Event::Warning(text) if text.contains("format 2")));
    redlock.get_lock("a").acquire().unwrap().unlock().unwrap();
    // At least one of these names belongs to the refused node.
    let kind_of = |number: i32| ring.get_lock(format!("name-{number}")).try_lock().err();
    let is_refused = |error: leasehold::Error| {
        let is_other_format = error.kind() == ErrorKind::IncompatibleFormat;
        assert!(is_other_format || error.is_retryable(), "{error}");
        is_other_format
    };
    let is_looked_at = || (0..30).filter_map(kind_of).any(is_refused);
    assert!(eventually(LONG, is_looked_at), "the ring's client did not use its node again");
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut servers[2].admin()).unwrap();
    assert_eq!(keys, [KEY]);
});

test_on!(a_client_refuses_a_cluster_with_another_data_format, Cluster::start(), |cluster| {
    keeps_to_the_format(
        || LockClient::connect(cluster.url()),
        |text| drop(cluster.on(cluster.primary_of(KEY), &["SET", KEY, text])),
    );
});

test_on!(a_client_refuses_a_ring_node_with_another_data_format, default_server(), |binary| {
    let servers = [(); 2].map(|()| RedisServer::builder(&binary).start());
    let ring = || Ring::new(servers.iter().map(|server| RingNode::new(server.url())));
    keeps_to_the_format(|| LockClient::builder().ring(ring()).build(), |text| set(&servers[1], text));
});

test_on!(a_client_refuses_etcd_with_another_data_format, Etcd::start(), |server| {
    let note = |text: &str| {
        let (key, value) = (STANDARD.encode("leasehold/%format"), STANDARD.encode(text));
        server.must("/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#));
    };
    keeps_to_the_format(|| LockClient::connect(server.url()), note);
    // The format number under one prefix does not apply to another prefix.
    note("leasehold format 2");
    assert!(LockClient::connect(format!("{}/shop", server.url())).is_ok());
});

test_on!(a_client_refuses_zookeeper_with_another_data_format, ZooKeeper::start(CALM), |server| {
    keeps_to_the_format(
        || LockClient::connect(server.url()),
        |text| server.set_data("/leasehold/%format", text.as_bytes()),
    );
});

on_databases!(a_client_refuses_a_database_with_another_data_format, D::start(), |server| {
    let build = || server.options().build();
    let comment = |text: &str| server.execute(&format!("{} '{text}'", D::COMMENT));
    keeps_to_the_format(build, comment);
    // The test drops these tables; the refused client must not create them again.
    let beside = || D::TABLES.iter().filter(|table| table.starts_with("leasehold_locks_"));
    beside().for_each(|table| server.execute(&format!("DROP TABLE {table}")));
    comment("leasehold format 2");
    fails(build(), ErrorKind::IncompatibleFormat);
    beside().for_each(|table| server.execute(&format!("CREATE TABLE {table} (a int); DROP TABLE {table}")));
    // An administrator's own comment is no format number, and `app` may not replace it: the client works.
    comment("of the shop");
    server.make_user("app", "");
    assert!(server.options_as("app").build().unwrap().get_lock("a").try_lock().unwrap());
    server.execute(D::OLD_TABLE);
    let table = format!("{}.old_locks", D::SCHEMA);
    says_what_to_do_about_an_old_table(&server.url(), &table, |drop| server.execute(drop));
});

#[test]
fn a_client_refuses_a_sqlite_file_with_another_data_format() {
    let folder = programs::in_memory();
    let path = folder.path().join("locks.db");
    let url = programs::sqlite_url(&path);
    let raw = || rusqlite::Connection::open(&path).unwrap();
    let note = |text: &str| {
        let made = "UPDATE sqlite_schema SET sql = replace(replace(sql, 'leasehold format 1', ?1), 'leasehold format 2', ?1) \
                    WHERE name = 'leasehold_locks'";
        let raw = raw();
        raw.execute_batch("PRAGMA writable_schema = ON").unwrap();
        assert_eq!(raw.execute(made, [text]).unwrap(), 1);
    };
    let build = || LockClient::builder().url(&url).create_schema(true).build();
    keeps_to_the_format(build, note);
    raw().execute_batch("DROP TABLE leasehold_locks_clients").unwrap();
    note("leasehold format 2");
    fails(build(), ErrorKind::IncompatibleFormat);
    raw().execute_batch("CREATE TABLE leasehold_locks_clients (a)").unwrap();
    let old = "CREATE TABLE old_locks (name BLOB PRIMARY KEY, token INTEGER NOT NULL, owner TEXT NOT NULL, \
               holds INTEGER NOT NULL, expires_at INTEGER NOT NULL, fence INTEGER NOT NULL, host TEXT NOT NULL, \
               pid INTEGER NOT NULL, thread TEXT NOT NULL, since INTEGER NOT NULL) STRICT, WITHOUT ROWID";
    raw().execute_batch(old).unwrap();
    says_what_to_do_about_an_old_table(&url, "old_locks", |drop| raw().execute_batch(drop).unwrap());
}
