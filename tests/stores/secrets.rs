//! Passwords and authorities that change in their files while a client runs.

use std::fs;
use std::path::Path;

use leasehold::{ErrorKind, LockClient};
use mysql::prelude::Queryable;

use crate::support::mysql::MysqlServer;
use crate::support::postgres::PostgresServer;
use crate::support::server::{RedisServer, default_server};
use crate::support::{LONG, eventually, ms};

/// `change` sets the user's password on the server, and ends the user's sessions.
#[track_caller]
fn follows_a_changed_password(url: &str, change: impl Fn(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let says = |password: &str| fs::write(&file, format!("{password}\n")).unwrap();
    says("first");
    change("first");
    let client = LockClient::builder().url(url).password_file(&file).retry_timeout(ms(200)).build().unwrap();
    let lock = client.get_lock("a");
    let locks = || lock.try_lock().and_then(|_| lock.unlock());
    locks().unwrap();
    change("second");
    let is_refused = || locks().is_err_and(|error| error.kind() == ErrorKind::Authentication);
    assert!(eventually(LONG, is_refused), "the file has the first");
    says("second");
    assert!(eventually(ms(2_000), || locks().is_ok()), "{:?}", locks());
    change("third");
    says("third");
    // A request over a broken connection has an unknown outcome; nothing is refused.
    assert!(eventually(LONG, || {
        let outcome = locks();
        let is_refused = outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Authentication);
        assert!(!is_refused, "{outcome:?}");
        outcome.is_ok()
    }));
}

#[test]
fn redis_is_logged_in_to_by_the_password_that_the_file_has() {
    let Some(binary) = default_server() else { return };
    let server = RedisServer::builder(&binary).user("app on nopass ~* &* +@all").start();
    let run = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut server.admin()).unwrap();
    };
    let url = format!("redis://app@127.0.0.1:{}", server.port());
    follows_a_changed_password(&url, |password| {
        run(&format!("ACL SETUSER app resetpass >{password}"));
        run("CLIENT KILL USER app");
    });
}

#[test]
fn postgres_is_logged_in_to_by_the_password_that_the_file_has() {
    let Some(server) = PostgresServer::start() else { return };
    LockClient::builder().url(server.url()).create_schema(true).build().unwrap();
    let mut admin = server.admin();
    admin
        .batch_execute("CREATE USER secretive; GRANT ALL ON ALL TABLES IN SCHEMA public TO secretive")
        .unwrap();
    let admin = parking_lot::Mutex::new(admin);
    follows_a_changed_password(&server.url_as("secretive"), |password| {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'secretive'";
        admin.lock().batch_execute(&format!("ALTER USER secretive PASSWORD '{password}'; {end}")).unwrap();
    });
}

#[test]
fn mysql_is_logged_in_to_by_the_password_that_the_file_has() {
    let Some(server) = MysqlServer::start() else { return };
    LockClient::builder().url(server.url()).create_schema(true).build().unwrap();
    let run = |text: &str| server.admin().query_drop(text).unwrap();
    run("CREATE USER secretive IDENTIFIED BY 'first'");
    run("GRANT ALL ON locks.* TO secretive");
    follows_a_changed_password(&server.url_as("secretive"), |password| {
        run(&format!("ALTER USER secretive IDENTIFIED BY '{password}'"));
        let mut admin = server.admin();
        let sessions = "SELECT id FROM information_schema.processlist WHERE user = 'secretive'";
        let sessions: Vec<u64> = admin.query(sessions).unwrap();
        for session in sessions {
            admin.query_drop(format!("KILL {session}")).ok(); // it may have ended by itself
        }
    });
}

/// `renew` gives the first authority's servers certificates of the second, and ends their connections.
#[track_caller]
fn follows_renewed_certificates(url: &str, [first, second]: [&Path; 2], renew: impl FnOnce()) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let trusts = |ca: &Path| assert!(fs::copy(ca, &file).unwrap() > 0);
    trusts(first);
    let client = LockClient::builder().url(url).tls_ca(&file).retry_timeout(ms(200)).build().unwrap();
    let lock = client.get_lock("a");
    let locks = || lock.try_lock().and_then(|_| lock.unlock());
    locks().unwrap();
    renew();
    assert!(eventually(LONG, || locks().is_err_and(|error| error.kind() == ErrorKind::Tls)), "{:?}", locks());
    trusts(second);
    assert!(eventually(ms(2_000), || locks().is_ok()), "{:?}", locks());
}

const CERTIFICATE: [&str; 3] = ["server.crt", "server.key", "ca.crt"];

#[test]
fn a_renewed_certificate_is_believed_by_the_authorities_in_the_file() {
    let Some(binary) = default_server().filter(|binary| binary.has_tls()) else { return };
    let [server, other] = [(); 2].map(|()| RedisServer::builder(&binary).tls().start());
    follows_renewed_certificates(&server.url(), [&server.ca(), &other.ca()], || {
        let [certificate, key, ca] = CERTIFICATE.map(|name| other.folder().join(name).display().to_string());
        let mut admin = server.admin();
        let set = ["SET", "tls-cert-file", &certificate, "tls-key-file", &key, "tls-ca-cert-file", &ca];
        redis::cmd("CONFIG").arg(&set).exec(&mut admin).unwrap();
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).exec(&mut admin).unwrap();
    });
}

#[test]
fn renewed_certificates_of_a_sentinel_and_its_master_are_believed() {
    let Some(binary) = default_server().filter(|binary| binary.has_tls()) else { return };
    let [mut master, other] = [(); 2].map(|()| RedisServer::builder(&binary).tls().start());
    let sentinel = RedisServer::builder(&binary).sentinel().tls_of(&master).config("tls-replication yes");
    let mut sentinel = sentinel.config(&format!("sentinel monitor m 127.0.0.1 {} 1", master.port())).start();
    let url = format!("rediss-sentinel://127.0.0.1:{}/m", sentinel.port());
    let (first, second) = (master.ca(), other.ca());
    follows_renewed_certificates(&url, [&first, &second], || {
        for server in [&mut master, &mut sentinel] {
            for name in CERTIFICATE {
                fs::copy(other.folder().join(name), server.folder().join(name)).unwrap();
            }
            server.restart();
        }
    });
}
