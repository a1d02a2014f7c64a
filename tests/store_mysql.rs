//! MySQL and MariaDB: what the contracts do not ask, since it is a database's and not a lock's: its death, killed
//! connections, plans, rights; `GET_LOCK`; locks on the caller's own transaction.
#![cfg(feature = "mysql")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

mod support;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold::mysql::NameTable;
use leasehold::{ClientBuilder, Error, ErrorKind, HoldState, LockClient, LossReason, OwnedGuard, Result};
use mysql::prelude::Queryable;
use mysql::{Conn, IsolationLevel, Row, Transaction, TxOpts};
use support::mysql::MysqlServer;
use support::processes::{
    LEASE, OTHER_NAMES, OTHER_VISITS, Worker, a_killed_holder_frees_within, count_across_processes,
    none_was_delayed, other_names_are_not_delayed,
};
use support::stalls::own_time_since;
use support::{eventually, fresh, now};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What should have happened long ago.
const LONG: Duration = Duration::from_secs(20);

/// One for the tests that do it no harm.
fn shared() -> Option<&'static MysqlServer> {
    static SERVER: OnceLock<Option<MysqlServer>> = OnceLock::new();
    SERVER.get_or_init(MysqlServer::start).as_ref()
}

fn options(server: &MysqlServer) -> ClientBuilder {
    LockClient::builder().url(&server.url()).create_schema(true)
}

fn client(server: &MysqlServer) -> LockClient {
    options(server).build().unwrap()
}

fn connect(url: &str, lease: Duration) -> Result<LockClient> {
    LockClient::builder().url(url).lease(lease).build()
}

fn connect_session(url: &str, lease: Duration) -> Result<LockClient> {
    LockClient::builder().url(url).lease(lease).session_locks().build()
}

// ---- processes

#[test]
fn four_processes_count_exactly() {
    if let Some(worker) = Worker::here() {
        return worker.work(connect);
    }
    let Some(server) = shared() else { return };
    client(server);
    count_across_processes(&server.url());
}

#[test]
fn four_processes_count_exactly_under_session_locks() {
    if let Some(worker) = Worker::here() {
        return worker.work(connect_session);
    }
    let Some(server) = shared() else { return };
    count_across_processes(&server.url());
}

#[test]
fn a_killed_holder_frees_the_lock_within_its_lease() {
    if let Some(worker) = Worker::here() {
        return worker.work(connect);
    }
    let Some(server) = MysqlServer::start() else { return };
    a_killed_holder_frees_within(LEASE, &server.url(), &client(&server));
}

#[test]
fn a_killed_holders_session_lock_is_free_at_once() {
    if let Some(worker) = Worker::here() {
        return worker.work(connect_session);
    }
    let Some(server) = MysqlServer::start() else { return };
    a_killed_holder_frees_within(ms(400), &server.url(), &connect_session(&server.url(), LEASE).unwrap());
}

#[test]
fn holding_one_name_never_delays_another() {
    let Some(server) = shared() else { return };
    other_names_are_not_delayed(|| client(server));
    other_names_are_not_delayed(|| connect_session(&server.url(), LEASE).unwrap());
}

#[test]
fn a_transaction_that_has_one_name_never_delays_another() {
    let Some(server) = shared() else { return };
    let names = names(server);
    let tag = fresh("other");
    let (mut one, mut two, mut three) = (server.admin(), server.admin(), server.admin());
    let other = |kind, number| format!("{tag}-{kind}-{}", number % OTHER_NAMES);
    let version: String = two.query_first("SELECT VERSION()").unwrap().unwrap();
    if !version.contains("MariaDB") {
        // There the gap before a row that is waited for is locked too, and the first use of a name may fall into it.
        let mut transaction = begin(&mut two);
        for name in (0..OTHER_NAMES).map(|number| other("beside", number)).chain([tag.clone()]) {
            assert!(names.lock(&mut transaction, &name, LONG).unwrap().is_some());
        }
        transaction.commit().unwrap();
    }
    let mut visit = |kind, round| {
        let start = now();
        let mut transaction = begin(&mut two);
        assert!(names.lock(&mut transaction, &other(kind, round), LONG).unwrap().is_some());
        transaction.commit().unwrap();
        own_time_since(start)
    };
    let alone = (0..OTHER_VISITS).map(|round| visit("alone", round)).collect();
    let mut holding = begin(&mut one);
    let _held = names.lock(&mut holding, &tag, ms(0)).unwrap().unwrap();
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| names.lock(&mut begin(&mut three), &tag, LONG).map(|held| held.is_some()));
        none_was_delayed(alone, (0..OTHER_VISITS).map(|round| visit("beside", round)).collect());
        holding.commit().unwrap();
        assert!(waiter.join().unwrap().unwrap());
    });
}

/// Names are made and used for the first time by many at once, which is where gaps would be locked.
#[test]
fn first_uses_of_many_names_do_not_disturb_each_other() {
    let Some(server) = shared() else { return };
    let clients: Vec<_> = (0..3).map(|_| client(server)).collect();
    let tag = fresh("first");
    std::thread::scope(|scope| {
        for client in &clients {
            for _ in 0..2 {
                let tag = &tag;
                scope.spawn(move || {
                    for number in 0..60 {
                        let guard = client.fenced_lock(&format!("{tag}-{number}")).acquire().unwrap();
                        guard.unlock().unwrap();
                    }
                });
            }
        }
    });
}

// ---- plans and the row

#[test]
fn every_statement_finds_its_row_by_the_key() {
    let Some(server) = shared() else { return };
    options(server).table("planned").build().unwrap();
    let mut admin = server.admin();
    let fill =
        "INSERT INTO planned (id, name, token, owner, holds, expires_at, fence, host, pid, thread, since)
        VALUES (UNHEX(SHA2(?, 256)), '', 0, '', 0, UTC_TIMESTAMP(6), 0, '', 0, '', UTC_TIMESTAMP(6))";
    admin.exec_batch(fill, (0..3_000).map(|number| (number,))).unwrap();
    NameTable::new("planned_names").unwrap().create(&mut admin).unwrap();
    admin.query_drop("ANALYZE TABLE planned").unwrap();
    for text in [
        include_str!("../src/stores/sql/query/mysql/take.sql"),
        include_str!("../src/stores/sql/query/mysql/retake.sql"),
        include_str!("../src/stores/sql/query/mysql/leave.sql"),
        include_str!("../src/stores/sql/query/mysql/renew.sql"),
        include_str!("../src/stores/sql/query/mysql/expire.sql"),
        include_str!("../src/stores/sql/query/mysql/look.sql"),
        include_str!("../src/stores/sql/query/mysql/force.sql"),
        include_str!("../src/stores/sql/query/mysql/forget.sql"),
    ] {
        let mut text = text.replace("leasehold_locks", "planned");
        // Values in place of the parameters, and an id as it is.
        text = text.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
        text = text.replace(":id", "UNHEX(SHA2('7', 256))").replace(":name", "'7'");
        for parameter in [
            ":token",
            ":owner",
            ":lease_us",
            ":age_us",
            ":rest_us",
            ":fenced",
            ":host",
            ":pid",
            ":thread",
            ":count",
            ":left",
        ] {
            text = text.replace(parameter, "1");
        }
        let plan: Vec<Row> = admin.query(format!("EXPLAIN {text}")).unwrap();
        assert_eq!(plan.len(), 1, "{text}");
        let (access, key): (Option<String>, Option<String>) =
            (plan[0].get("type").unwrap(), plan[0].get("key").unwrap());
        assert_eq!(key.as_deref(), Some("PRIMARY"), "{text}");
        assert!(["const", "range"].contains(&access.as_deref().unwrap()), "{access:?} {text}");
        let rows: Option<u64> = plan[0].get("rows").unwrap();
        assert_eq!(rows, Some(1), "{text}");
    }
}

#[test]
fn the_row_tells_who_holds_and_the_sweep_forgets_what_is_long_free() {
    let Some(server) = shared() else { return };
    let client = options(server).table("swept").build().unwrap();
    let held = client.fenced_lock("held").acquire().unwrap();
    let first = client.fenced_lock("free").acquire().unwrap();
    let fence = first.fence();
    first.unlock().unwrap();
    let mut admin = server.admin();
    let row: (String, u32, u32, String, String) = admin
        .query_first("SELECT owner, holds, pid, host, thread FROM swept WHERE id = UNHEX(SHA2('held', 256))")
        .unwrap()
        .unwrap();
    assert_eq!((row.0, row.1, row.2), (held.owner().to_string(), 1, std::process::id()));
    assert!(!row.3.is_empty());
    assert_eq!(Some(row.4.as_str()), std::thread::current().name());
    let mut rows = || admin.query_first::<u32, _>("SELECT COUNT(*) FROM swept").unwrap().unwrap();
    assert_eq!(client.sweep(Duration::from_secs(3_600)).unwrap(), 0);
    assert_eq!(rows(), 2);
    assert!(eventually(ms(2_000), || client.sweep(ms(1)).unwrap() > 0));
    assert_eq!(rows(), 1, "a lock that is held is not forgotten");
    assert!(client.fenced_lock("free").acquire().unwrap().fence() > fence, "fences only go up");
    held.unlock().unwrap();
}

// ---- faults

#[test]
fn a_killed_server_loses_no_lock_and_grants_none_twice() {
    let Some(mut server) = MysqlServer::start() else { return };
    let (client, rival) = (client(&server), client(&server));
    let held = client.fenced_lock("held").acquire().unwrap();
    let waiting = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| rival.lock("held").try_lock_for(LONG));
        server.kill();
        let error = client.lock("a").try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.is_retryable());
        held.check().unwrap();
        server.restart();
        assert!(client.lock("a").try_lock_for(LONG).unwrap(), "the next call connects again");
        client.lock("a").unlock().unwrap();
        held.check().unwrap();
        held.unlock().unwrap();
        waiter.join().unwrap()
    });
    assert!(waiting.unwrap(), "who waited meanwhile gets it");
}

fn kill_all(admin: &mut Conn) {
    let others =
        "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'admin'";
    let ids: Vec<u64> = admin.query(others).unwrap();
    for id in ids {
        admin.query_drop(format!("KILL {id}")).ok(); // it may be gone
    }
}

#[test]
fn killed_connections_are_replaced() {
    let Some(server) = MysqlServer::start() else { return };
    let (client, rival) = (client(&server), client(&server));
    let held = client.lock("held").acquire().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| rival.lock("held").lock());
        kill_all(&mut server.admin());
        held.check().unwrap();
        held.unlock().unwrap_or_else(|error| assert!(error.is_retryable(), "{error}"));
        waiter.join().unwrap().unwrap();
    });
    // The waiter's thread has ended; its hold ends with its lease, at the latest.
    assert!(rival.lock("held").force_unlock().is_ok());
    assert!(client.lock("held").try_lock_for(LONG).unwrap());
}

#[test]
fn a_server_that_stands_still_costs_one_command_timeout() {
    let Some(server) = MysqlServer::start() else { return };
    let client = options(&server).command_timeout(ms(400)).build().unwrap();
    client.lock("a").lock().unwrap();
    client.lock("a").unlock().unwrap();
    server.signal("STOP");
    let start = now();
    let error = client.lock("a").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    assert!(!error.outcome_unknown(), "it has only read so far");
    assert!(own_time_since(start) < ms(2_000), "{:?}", start.elapsed());
    server.signal("CONT");
    assert!(client.lock("a").try_lock_for(LONG).unwrap());
    client.lock("a").unlock().unwrap();
}

#[test]
fn a_grant_whose_answer_does_not_come_is_undone() {
    let Some(server) = shared() else { return };
    let client = options(server).command_timeout(ms(400)).patience(LONG).build().unwrap();
    let name = fresh("late");
    client.lock(&name).lock().unwrap();
    client.lock(&name).unlock().unwrap();
    let mut admin = server.admin();
    let mut transaction = admin.start_transaction(TxOpts::default()).unwrap();
    let row = "SELECT 1 FROM leasehold_locks WHERE id = UNHEX(SHA2(?, 256)) FOR UPDATE";
    transaction.exec_drop(row, (name.as_bytes(),)).unwrap();
    let error = client.lock(&name).try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    assert!(error.outcome_unknown());
    transaction.rollback().unwrap();
    assert!(client.lock(&name).try_lock_for(LONG).unwrap());
    client.lock(&name).unlock().unwrap();
}

/// Hundreds who look now and then would otherwise queue for the row, and the server search that queue for deadlocks.
#[test]
fn who_asks_for_what_another_holds_waits_for_no_lock_of_the_servers() {
    let Some(server) = shared() else { return };
    let (client, other) = (client(server), client(server));
    let name = fresh("read");
    let held = client.lock(&name).acquire().unwrap();
    let mut admin = server.admin();
    let mut transaction = admin.start_transaction(TxOpts::default()).unwrap();
    let row = "SELECT 1 FROM leasehold_locks WHERE id = UNHEX(SHA2(?, 256)) FOR UPDATE";
    transaction.exec_drop(row, (name.as_bytes(),)).unwrap();
    assert!(!other.lock(&name).try_lock().unwrap());
    transaction.rollback().unwrap();
    held.unlock().unwrap();
    assert!(other.lock(&name).try_lock().unwrap());
}

/// Somebody's transaction has the row, and the pool is in use: calls end typed and in time; a hold on another name is
/// renewed all the while, by its own connection.
#[test]
fn an_exhausted_pool_loses_no_lease() {
    let Some(server) = shared() else { return };
    let options = || options(server).pool_size(1).command_timeout(ms(2_500)).patience(ms(100));
    let client = options().lease(ms(2_500)).build().unwrap();
    let (kept, stuck) = (fresh("kept"), fresh("stuck"));
    client.lock(&stuck).lock().unwrap();
    client.lock(&stuck).unlock().unwrap();
    let held = client.lock(&kept).acquire().unwrap();
    let mut admin = server.admin();
    let mut transaction = admin.start_transaction(TxOpts::default()).unwrap();
    let row = "SELECT 1 FROM leasehold_locks WHERE id = UNHEX(SHA2(?, 256)) FOR UPDATE";
    transaction.exec_drop(row, (stuck.as_bytes(),)).unwrap();
    std::thread::scope(|scope| {
        let start = now();
        let calls: Vec<_> = (0..3)
            .map(|_| {
                let lock = client.lock(&stuck);
                scope.spawn(move || lock.try_lock())
            })
            .collect();
        for call in calls {
            let error = call.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            assert!(error.is_retryable());
        }
        assert!(own_time_since(start) < ms(8_000), "{:?}", start.elapsed());
        while start.elapsed() < ms(6_000) {
            held.check().unwrap();
            assert!(client.lock(&stuck).try_lock().is_err());
        }
    });
    transaction.rollback().unwrap();
    held.unlock().unwrap();
    assert!(client.lock(&stuck).try_lock_for(LONG).unwrap());
    client.lock(&stuck).unlock().unwrap();
}

#[test]
fn what_is_wrong_is_known_at_once_and_typed() {
    let Some(server) = MysqlServer::start() else { return };
    let at = |url: &str| LockClient::builder().url(url);
    let error = at(&server.url()).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("create_schema"), "{error}");
    let first = client(&server);
    let mut admin = server.admin();
    for text in [
        "CREATE USER secretive IDENTIFIED BY 'S3CR3T'",
        "CREATE USER reader",
        "GRANT SELECT ON locks.leasehold_locks TO reader",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON locks.leasehold_locks TO secretive",
    ] {
        admin.query_drop(text).unwrap();
    }
    for (url, expected) in [
        (server.url_as("secretive"), ErrorKind::Authentication),
        (server.url_as("secretive:S3CR3T-not"), ErrorKind::Authentication),
        (server.url().replace("/locks", "/none"), ErrorKind::InvalidInput),
        (server.url().replace("/locks", ""), ErrorKind::InvalidInput),
        ("mysql://127.0.0.1:1/x".to_owned(), ErrorKind::Unreachable),
        ("mysql://".to_owned(), ErrorKind::InvalidInput),
        ("mysql://a:S3CR3T@host:port/x".to_owned(), ErrorKind::InvalidInput),
        (format!("{}?require_ssl=true", server.url()), ErrorKind::InvalidInput),
    ] {
        let error = at(&url).build().unwrap_err();
        assert_eq!(error.kind(), expected, "{url}: {error:?}");
        assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{error:?}");
    }
    let reader = at(&server.url_as("reader")).build().unwrap();
    assert!(!reader.lock("a").is_locked().unwrap());
    assert_eq!(reader.lock("a").try_lock().unwrap_err().kind(), ErrorKind::NoPermission);
    // The password, by option and by URL; the rights that the docs name suffice; both schemes.
    let by_option = at(&server.url_as("secretive")).password("S3CR3T").build().unwrap();
    let by_url = at(&server.url_as("secretive:S3CR3T").replace("mysql:", "mariadb:")).build().unwrap();
    assert!(by_option.lock("a").try_lock().unwrap());
    assert!(!by_url.lock("a").try_lock().unwrap());
    by_option.lock("a").unlock().unwrap();
    by_option.sweep(ms(1)).unwrap();
    // Read-only, and the table gone while in use.
    admin.query_drop("SET GLOBAL read_only = 1").unwrap();
    assert_eq!(at(&server.url()).build().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(by_option.lock("a").try_lock().unwrap_err().kind(), ErrorKind::ReadOnly);
    admin.query_drop("SET GLOBAL read_only = 0").unwrap();
    admin.query_drop("DROP TABLE leasehold_locks").unwrap();
    assert_eq!(first.lock("a").try_lock().unwrap_err().kind(), ErrorKind::Unsupported);
    // No room for one more.
    admin.query_drop("SET GLOBAL max_connections = 12").unwrap();
    let mut taken = Vec::new();
    let mut said = None;
    // Connections that were closed before make room for a little while.
    let is_busy = eventually(LONG, || {
        taken.extend((0..20).map_while(|_| server.try_admin().ok()));
        said = LockClient::connect(&server.url()).err();
        said.as_ref().is_some_and(|error| error.kind() == ErrorKind::Busy && error.is_retryable())
    });
    assert!(is_busy, "{said:?}");
    drop(taken);
}

// ---- session locks

#[test]
fn a_session_lock_is_reentrant_exclusive_and_seen() {
    let Some(server) = shared() else { return };
    let (client, rival) =
        (connect_session(&server.url(), LEASE).unwrap(), connect_session(&server.url(), LEASE).unwrap());
    let name = fresh("session");
    let (lock, other) = (client.lock(&name), rival.lock(&name));
    lock.lock().unwrap();
    lock.lock().unwrap();
    assert_eq!(lock.hold_count().unwrap(), 2);
    assert!(!other.try_lock().unwrap());
    assert!(rival.lock(&name.to_uppercase()).try_lock().unwrap(), "case counts");
    rival.lock(&name.to_uppercase()).unlock().unwrap();
    // Another thread of the same client is another holder, although the server sees one user.
    std::thread::scope(|scope| assert!(!scope.spawn(|| lock.try_lock().unwrap()).join().unwrap()));
    let error = other.unlock().unwrap_err();
    assert!(
        matches!(error.not_held(), Some(leasehold::NotHeld::HeldBy(by)) if by.starts_with("connection "))
    );
    lock.unlock().unwrap();
    assert!(!other.try_lock().unwrap());
    lock.unlock().unwrap();
    assert!(other.try_lock().unwrap());
    other.unlock().unwrap();
    for refused in [client.token_lock(&name).lock(), client.fenced_lock(&name).lock()] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

/// Held over many leases; told when the connection is killed; free for others then.
#[test]
fn a_session_lock_lives_and_dies_with_its_session() {
    let Some(server) = MysqlServer::start() else { return };
    let client = LockClient::builder().url(&server.url()).session_locks().lease(ms(2_500)).build().unwrap();
    let rival = connect_session(&server.url(), LEASE).unwrap();
    let held = client.lock("held").acquire().unwrap();
    let start = now();
    while start.elapsed() < ms(6_000) {
        held.check().unwrap();
        assert!(!rival.lock("held").try_lock().unwrap());
    }
    let lost = held.lost();
    kill_all(&mut server.admin());
    lost.recv_timeout(LONG).unwrap();
    assert_eq!(held.state(), HoldState::Lost);
    assert!(rival.lock("held").try_lock_for(LONG).unwrap());
    assert!(held.unlock().unwrap_err().is_lost());
    assert!(rival.lock("held").is_locked().unwrap(), "a lost hold releases nobody's");
    rival.lock("held").unlock().unwrap();
    // Forced: the holder's connection is killed.
    let held = client.lock("held").acquire().unwrap();
    assert!(rival.lock("held").force_unlock().unwrap());
    assert!(eventually(LONG, || !rival.lock("held").is_locked().unwrap()));
    assert!(held.unlock().unwrap_err().is_lost());
}

fn is_at_risk(held: &OwnedGuard) -> bool {
    matches!(held.state(), HoldState::AtRisk { .. })
}

/// An error is no loss: the server has the lock for the session all the while, and the session goes on.
#[test]
fn a_server_that_stands_still_while_session_locks_are_renewed_ends_no_hold() {
    let Some(server) = MysqlServer::start() else { return };
    let lease = ms(12_000);
    let options = || LockClient::builder().url(&server.url()).session_locks();
    let client = options().lease(lease).command_timeout(ms(500)).build().unwrap();
    let rival = options().build().unwrap();
    let held: Vec<_> =
        ["a", "b", "c"].iter().map(|name| client.lock(name).acquire_owned().unwrap()).collect();
    server.signal("STOP");
    // Each renewal fails until then.
    assert!(eventually(LONG, || held.iter().all(|held| held.state() != HoldState::Held)));
    assert!(held.iter().all(is_at_risk), "{held:?}");
    server.signal("CONT");
    assert!(eventually(LONG, || held.iter().all(|held| held.state() == HoldState::Held)), "{held:?}");
    for held in held {
        held.check().unwrap();
        assert!(!rival.lock(held.name()).try_lock().unwrap());
        held.unlock().unwrap();
    }
}

/// Passes bytes on between a client and the server.
struct Relay {
    port: u16,
    connections: Arc<AtomicUsize>,
    silent: Arc<AtomicUsize>,
}

impl Relay {
    fn before(server: &MysqlServer) -> Relay {
        let (upstream, listener) = (server.port(), TcpListener::bind("127.0.0.1:0").unwrap());
        let relay = Relay {
            port: listener.local_addr().unwrap().port(),
            connections: Arc::default(),
            silent: Arc::default(),
        };
        let (connections, silent) = (Arc::clone(&relay.connections), Arc::clone(&relay.silent));
        in_background(move || {
            for client in listener.incoming().flatten() {
                let number = connections.fetch_add(1, Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else { continue };
                let silent = Arc::clone(&silent);
                let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
                in_background(move || pass_on(&ends.0, &ends.1, || true));
                in_background(move || pass_on(&server, &client, || number >= silent.load(Ordering::SeqCst)));
            }
        });
        relay
    }

    /// What the server says over the connections that stand now is not passed on any more.
    fn silence(&self) {
        self.silent.store(self.connections.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

/// Ends with the connections, or the process.
fn in_background(work: impl FnOnce() + Send + 'static) {
    drop(std::thread::Builder::new().spawn(work).unwrap());
}

fn pass_on(mut from: &TcpStream, mut to: &TcpStream, does: impl Fn() -> bool) {
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if does() && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // Either may be closed already.
    to.shutdown(Shutdown::Both).ok();
    from.shutdown(Shutdown::Both).ok();
}

#[test]
fn a_session_whose_connection_falls_silent_is_held_to_the_end_of_its_window_or_until_it_is_given_back() {
    let Some(server) = shared() else { return };
    let relay = Relay::before(server);
    let url = format!("mysql://admin@127.0.0.1:{}/locks", relay.port);
    let lease = ms(6_000);
    let options = || LockClient::builder().url(&url).session_locks().lease(lease).command_timeout(ms(400));
    let (client, rival) = (options().build().unwrap(), connect_session(&server.url(), LEASE).unwrap());
    let (kept, given) = (fresh("kept"), fresh("given"));
    let lost = client.lock(&kept).acquire_owned().unwrap();
    let unlocked = client.lock(&given).acquire_owned().unwrap();
    relay.silence();
    let at_risk = || [&lost, &unlocked].iter().all(|held| is_at_risk(held));
    assert!(eventually(LONG, at_risk), "{lost:?} {unlocked:?}");
    assert!(!rival.lock(&kept).try_lock().unwrap() && !rival.lock(&given).try_lock().unwrap());
    unlocked.unlock().unwrap();
    assert!(rival.lock(&given).try_lock_for(LONG).unwrap(), "hanging up frees it");
    rival.lock(&given).unlock().unwrap();
    let loss = lost.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(lost.unlock().unwrap_err().is_lost());
    assert!(rival.lock(&kept).try_lock_for(LONG).unwrap());
    rival.lock(&kept).unlock().unwrap();
}

/// A fixed lease is kept by the server, which ends the connection that nobody talks over.
#[test]
fn a_session_ends_when_it_was_idle_for_its_lease() {
    let Some(server) = shared() else { return };
    let (client, rival) =
        (connect_session(&server.url(), LEASE).unwrap(), connect_session(&server.url(), LEASE).unwrap());
    let lock = client.lock(&fresh("fixed"));
    lock.lock_with_lease(ms(700)).unwrap();
    let start = now();
    assert!(rival.lock(lock.name()).try_lock_for(LONG).unwrap());
    // The server counts whole seconds.
    assert!(start.elapsed() >= ms(650), "{:?}", start.elapsed());
    assert!(own_time_since(start) < ms(1_000 + 2_500), "{:?}", start.elapsed());
    assert!(lock.unlock().unwrap_err().is_lost());
    rival.lock(lock.name()).unlock().unwrap();
}

// ---- on the caller's own transaction

fn names(server: &MysqlServer) -> NameTable {
    let names = NameTable::default();
    names.create(&mut server.admin()).unwrap();
    names
}

fn begin(connection: &mut Conn) -> Transaction<'_> {
    connection.start_transaction(TxOpts::default()).unwrap()
}

#[test]
fn lock_and_data_are_committed_together() {
    let Some(server) = shared() else { return };
    // A table of its own: in MySQL a new name may wait for those who wait for its neighbour.
    let names = NameTable::new(&fresh("names").replace('-', "_")).unwrap();
    names.create(&mut server.admin()).unwrap();
    let (name, other) = (fresh("together"), fresh("other"));
    let (mut one, mut two) = (server.admin(), server.admin());
    // Used before: in MySQL the first use may also wait for whoever has its neighbour.
    let mut before = begin(&mut one);
    assert!(names.lock(&mut before, &other, ms(0)).unwrap().is_some());
    before.commit().unwrap();
    let setting = |transaction: &mut Transaction<'_>| {
        transaction.query_first::<u64, _>("SELECT @@innodb_lock_wait_timeout").unwrap().unwrap()
    };
    // Also when both are the first to use the name.
    let mut first = begin(&mut one);
    let held = names.lock(&mut first, &name, ms(0)).unwrap().unwrap();
    assert_eq!(held.name(), name);
    assert!(names.lock(&mut first, &name, ms(0)).unwrap().is_some(), "again on the same transaction");
    let mut second = begin(&mut two);
    let before = setting(&mut second);
    assert!(names.lock(&mut second, &name, ms(0)).unwrap().is_none());
    let start = now();
    assert!(names.lock(&mut second, &name, ms(200)).unwrap().is_none());
    assert!(start.elapsed() >= ms(190) && own_time_since(start) < ms(4_000), "{:?}", start.elapsed());
    assert_eq!(setting(&mut second), before, "the wait in vain has left the transaction as it was");
    held.check(&mut first).unwrap();
    first.commit().unwrap();
    let held = names.lock(&mut second, &name, ms(5_000)).unwrap().unwrap();
    held.check(&mut second).unwrap();
    second.rollback().unwrap();
    let mut third = begin(&mut one);
    assert!(names.lock(&mut third, &name, ms(0)).unwrap().is_some());
    // Another name is free all the while.
    let mut fourth = begin(&mut two);
    let start = now();
    assert!(names.lock(&mut fourth, &other, ms(5_000)).unwrap().is_some());
    assert!(own_time_since(start) < ms(500), "{:?}", start.elapsed());
}

#[test]
fn transactions_count_exactly_at_every_isolation_level() {
    let Some(server) = shared() else { return };
    let names = names(server);
    server.admin().query_drop("CREATE TABLE counter ENGINE = InnoDB AS SELECT 0 AS number").unwrap();
    let name = fresh("counted");
    let rounds = 25;
    let levels =
        [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];
    std::thread::scope(|scope| {
        for level in levels {
            let (names, name) = (&names, &name);
            scope.spawn(move || {
                let mut connection = server.admin();
                for _ in 0..rounds {
                    let options = TxOpts::default().set_isolation_level(Some(level));
                    let mut transaction = connection.start_transaction(options).unwrap();
                    let lock = names.lock(&mut transaction, name, LONG).unwrap().unwrap();
                    // Read and written apart: only the lock protects it.
                    let number: u32 = transaction.query_first("SELECT number FROM counter").unwrap().unwrap();
                    transaction.exec_drop("UPDATE counter SET number = ?", (number + 1,)).unwrap();
                    lock.check(&mut transaction).unwrap();
                    transaction.commit().unwrap();
                }
            });
        }
    });
    let number: u32 = server.admin().query_first("SELECT number FROM counter").unwrap().unwrap();
    assert_eq!(number, 3 * rounds);
}

#[test]
fn a_transaction_that_the_server_ends_is_lost() {
    let Some(server) = MysqlServer::start_with(&["--innodb-rollback-on-timeout"]) else { return };
    let names = names(&server);
    let (mut one, mut two) = (server.admin(), server.admin());
    // By a wait in vain, where the server is set so.
    let mut first = begin(&mut one);
    let _held = names.lock(&mut first, "a", ms(0)).unwrap().unwrap();
    let mut second = begin(&mut two);
    let other = names.lock(&mut second, "b", ms(0)).unwrap().unwrap();
    other.check(&mut second).unwrap();
    let error = names.lock(&mut second, "a", ms(100)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(other.check(&mut second).unwrap_err().is_lost(), "the earlier lock is gone too");
    assert!(names.lock(&mut first, "b", ms(0)).unwrap().is_some());
    drop((first, second));
    // By an administrator.
    let mut first = begin(&mut one);
    let held = names.lock(&mut first, "a", ms(2_000)).unwrap().unwrap();
    kill_all(&mut server.admin());
    assert!(eventually(LONG, || held.check(&mut first).is_err_and(|error| error.is_lost())));
    assert!(names.lock(&mut first, "b", ms(0)).unwrap_err().is_lost());
    assert!(first.commit().is_err());
    let mut three = server.admin();
    assert!(names.lock(&mut begin(&mut three), "a", ms(2_000)).unwrap().is_some());
    // By its idleness.
    let mut four = server.admin();
    four.query_drop("SET SESSION wait_timeout = 1").unwrap();
    let mut idle = begin(&mut four);
    let held = names.lock(&mut idle, "idle", ms(0)).unwrap().unwrap();
    let mut five = server.admin();
    assert!(names.lock(&mut begin(&mut five), "idle", LONG).unwrap().is_some(), "the next one has it");
    assert!(held.check(&mut idle).unwrap_err().is_lost());
}

#[test]
fn a_deadlock_is_typed() {
    let Some(server) = shared() else { return };
    let names = names(server);
    let (a, b) = (fresh("a"), fresh("b"));
    let barrier = std::sync::Barrier::new(2);
    let both = |first: &str, second: &str| -> std::result::Result<(), Error> {
        let mut connection = server.admin();
        let mut transaction = begin(&mut connection);
        let one = names.lock(&mut transaction, first, LONG)?.unwrap();
        barrier.wait();
        if let Err(error) = names.lock(&mut transaction, second, LONG) {
            assert!(one.check(&mut transaction).unwrap_err().is_lost(), "the transaction is gone");
            return Err(error);
        }
        transaction.commit().unwrap();
        Ok(())
    };
    let ended = std::thread::scope(|scope| {
        let one = scope.spawn(|| both(&a, &b));
        let two = scope.spawn(|| both(&b, &a));
        [one.join().unwrap(), two.join().unwrap()]
    });
    let failed: Vec<_> = ended.into_iter().filter_map(std::result::Result::err).collect();
    assert_eq!(failed.len(), 1, "one goes on, one is told: {failed:?}");
    assert_eq!(failed[0].kind(), ErrorKind::Deadlock, "{}", failed[0]);
}

#[test]
fn names_that_cannot_be_used_are_refused() {
    let Some(server) = shared() else { return };
    assert_eq!(NameTable::new("a; b").unwrap_err().kind(), ErrorKind::InvalidInput);
    // Nobody else's rows are beside these: see `a_transaction_that_has_one_name_never_delays_another`.
    let names = NameTable::new(&fresh("names").replace('-', "_")).unwrap();
    names.create(&mut server.admin()).unwrap();
    let mut connection = server.admin();
    let mut transaction = begin(&mut connection);
    for bad in [String::new(), "x".repeat(leasehold::LONGEST_NAME + 1)] {
        let error = names.lock(&mut transaction, &bad, ms(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    let longest = "x".repeat(leasehold::LONGEST_NAME);
    for name in ["a", "A", "nul\0", "'; DROP TABLE leasehold_names", &longest] {
        assert!(names.lock(&mut transaction, name, ms(0)).unwrap().is_some());
    }
}
