//! PostgreSQL: what the contracts do not ask, since it is a database's and not a lock's: its death, ended sessions, plans,
//! rights; advisory locks; locks on the caller's own transaction.
#![cfg(feature = "postgres")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

mod support;

use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Duration;

use leasehold::postgres::{NameTable, lock_advisory};
use leasehold::{ClientBuilder, Error, ErrorKind, HoldState, LockClient, LossReason, Result};
use postgres::{Client, IsolationLevel, NoTls};
use support::postgres::{Bouncer, PostgresServer};
use support::processes::{
    LEASE, OTHER_NAMES, OTHER_VISITS, Worker, a_killed_holder_frees_within, count_across_processes,
    none_was_delayed, other_names_are_not_delayed,
};
use support::stalls::{own_time_since, stalled_since};
use support::{eventually, fresh, now};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What should have happened long ago.
const LONG: Duration = Duration::from_secs(20);

/// One for the tests that do it no harm.
fn shared() -> Option<&'static PostgresServer> {
    static SERVER: OnceLock<Option<PostgresServer>> = OnceLock::new();
    SERVER.get_or_init(PostgresServer::start).as_ref()
}

fn options(server: &PostgresServer) -> ClientBuilder {
    LockClient::builder().url(&server.url()).create_schema(true)
}

fn client(server: &PostgresServer) -> LockClient {
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
    // A server of its own: the tests for processes use one name.
    let Some(server) = PostgresServer::start() else { return };
    a_killed_holder_frees_within(LEASE, &server.url(), &client(&server));
}

#[test]
fn a_killed_holders_session_lock_is_free_at_once() {
    if let Some(worker) = Worker::here() {
        return worker.work(connect_session);
    }
    let Some(server) = PostgresServer::start() else { return };
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
    for advisory in [false, true] {
        let lock = |transaction: &mut postgres::Transaction<'_>, name: &str, wait| {
            if advisory {
                lock_advisory(transaction, name, wait)
            } else {
                names.lock(transaction, name, wait)
            }
        };
        let tag = fresh("other");
        let (mut one, mut two, mut three) = (server.admin(), server.admin(), server.admin());
        let mut visit = |kind, round| {
            let start = now();
            let mut transaction = two.transaction().unwrap();
            let other = format!("{tag}-{kind}-{}", round % OTHER_NAMES);
            assert!(lock(&mut transaction, &other, LONG).unwrap().is_some());
            transaction.commit().unwrap();
            own_time_since(start)
        };
        let alone = (0..OTHER_VISITS).map(|round| visit("alone", round)).collect();
        let mut holding = one.transaction().unwrap();
        let _held = lock(&mut holding, &tag, ms(0)).unwrap().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut waiting = three.transaction().unwrap();
                lock(&mut waiting, &tag, LONG).map(|held| held.is_some())
            });
            none_was_delayed(alone, (0..OTHER_VISITS).map(|round| visit("beside", round)).collect());
            holding.commit().unwrap();
            assert!(waiter.join().unwrap().unwrap());
        });
    }
}

// ---- plans and the row

#[test]
fn every_statement_finds_its_row_by_the_key() {
    let Some(server) = shared() else { return };
    options(server).table("planned").build().unwrap();
    let mut admin = server.admin();
    let fill =
        "INSERT INTO planned SELECT sha256(n::text::bytea), '', false, '', 0, now(), 0, '', 0, '', now()
        FROM generate_series(1, 20000) AS n; ANALYZE planned";
    admin.batch_execute(fill).unwrap();
    let name = "'\\x61'";
    for (text, arguments) in [
        (
            include_str!("../src/stores/sql/query/postgres/take.sql"),
            format!("{name}, false, 'o', 1000, true, 'h', 1, 't'"),
        ),
        (
            include_str!("../src/stores/sql/query/postgres/retake.sql"),
            format!("{name}, false, 'o', 1000, true, 2"),
        ),
        (include_str!("../src/stores/sql/query/postgres/leave.sql"), format!("{name}, false, 'o', 0, 'c'")),
        (include_str!("../src/stores/sql/query/postgres/renew.sql"), format!("{name}, false, 'o', 1000")),
        (include_str!("../src/stores/sql/query/postgres/expire.sql"), format!("{name}, false, 'o', 1000")),
        (include_str!("../src/stores/sql/query/postgres/look.sql"), name.to_owned()),
        (include_str!("../src/stores/sql/query/postgres/force.sql"), format!("{name}, false, 'c'")),
        // On the caller's own transaction.
        ("SELECT 1 FROM leasehold_names WHERE id = sha256($1) FOR UPDATE", name.to_owned()),
    ] {
        let text = text.replace("leasehold_locks", "planned").replace("leasehold_names", "planned");
        // Both plans: for these values, and for any.
        for mode in ["force_custom_plan", "force_generic_plan"] {
            admin.batch_execute(&format!("SET plan_cache_mode = {mode}; PREPARE planned AS {text}")).unwrap();
            let plan = admin.query(&format!("EXPLAIN EXECUTE planned({arguments})"), &[]).unwrap();
            let plan: String = plan.iter().map(|row| row.get::<_, String>(0) + "\n").collect();
            assert!(plan.contains("planned_pkey"), "{text}\n{plan}");
            assert!(!plan.contains("Seq Scan"), "{text}\n{plan}");
            admin.batch_execute("DEALLOCATE planned").unwrap();
        }
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
    let row = admin
        .query_one("SELECT owner, holds, pid, host, thread FROM swept WHERE id = sha256('held'::bytea)", &[])
        .unwrap();
    assert_eq!(row.get::<_, String>(0), held.owner().to_string());
    assert_eq!((row.get::<_, i32>(1), row.get::<_, i64>(2)), (1, i64::from(std::process::id())));
    assert!(!row.get::<_, String>(3).is_empty());
    assert_eq!(Some(row.get::<_, String>(4).as_str()), std::thread::current().name());
    let mut rows = || admin.query_one("SELECT count(*) FROM swept", &[]).unwrap().get::<_, i64>(0);
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
    let Some(mut server) = PostgresServer::start() else { return };
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
        assert!(client.lock("a").try_lock().unwrap(), "the next call connects again");
        client.lock("a").unlock().unwrap();
        assert!(!client.fenced_lock("held").is_locked().unwrap() || held.check().is_ok());
        held.check().unwrap();
        held.unlock().unwrap();
        waiter.join().unwrap()
    });
    assert!(waiting.unwrap(), "who waited meanwhile gets it");
}

/// All sessions are ended while locks are held and waited for: rows do not mind, and wake-ups come back.
#[test]
fn terminated_backends_are_replaced() {
    let Some(server) = PostgresServer::start() else { return };
    let (client, rival) = (client(&server), client(&server));
    let held = client.lock("held").acquire().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            rival.lock("held").lock().unwrap();
            let had = now();
            rival.lock("held").unlock().unwrap();
            had
        });
        let mut admin = server.admin();
        assert!(eventually(LONG, || listeners(&mut admin) == 1));
        terminate_all(&mut admin);
        assert!(eventually(LONG, || listeners(&mut admin) == 1), "it listens again");
        held.check().unwrap();
        let before = now();
        held.unlock().unwrap();
        let woken = waiter.join().unwrap().duration_since(before);
        assert!(woken < ms(700), "by a wake-up, not by a poll: {woken:?}");
    });
}

fn listeners(admin: &mut Client) -> i64 {
    // The only sessions whose last word is LISTEN.
    let text = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN leasehold%'";
    admin.query_one(text, &[]).unwrap().get(0)
}

fn terminate_all(admin: &mut Client) {
    let text = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    admin.query(text, &[]).unwrap();
}

/// A process of the server's that stands still: the call ends, its outcome is unknown, and it is cleaned up.
#[test]
fn a_backend_that_stands_still_costs_one_command_timeout() {
    let Some(server) = PostgresServer::start() else { return };
    let client = options(&server).pool_size(1).command_timeout(ms(400)).build().unwrap();
    client.lock("a").lock().unwrap();
    client.lock("a").unlock().unwrap();
    let backend =
        "SELECT pid FROM pg_stat_activity WHERE query LIKE '-- Leaves an owner%' AND pid <> pg_backend_pid()";
    let pid: i32 = server.admin().query_one(backend, &[]).unwrap().get(0);
    support::signal(pid.unsigned_abs(), "STOP");
    let start = now();
    let error = client.lock("a").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.outcome_unknown());
    assert!(own_time_since(start) < ms(2_000), "{:?}", start.elapsed());
    support::signal(pid.unsigned_abs(), "CONT");
    // What it may have been granted after all is undone.
    assert!(client.lock("a").try_lock_for(LONG).unwrap());
    client.lock("a").unlock().unwrap();
}

/// Somebody's transaction has the row, and the pool is in use: calls end typed and in time; a hold on another name is
/// renewed all the while, by its own connection.
#[test]
fn an_exhausted_pool_loses_no_lease() {
    let Some(server) = shared() else { return };
    let options = || options(server).pool_size(1).command_timeout(ms(600)).patience(ms(100));
    let client = options().lease(ms(2_400)).build().unwrap();
    let (kept, stuck) = (fresh("kept"), fresh("stuck"));
    client.lock(&stuck).lock().unwrap();
    client.lock(&stuck).unlock().unwrap();
    let held = client.lock(&kept).acquire().unwrap();
    let mut admin = server.admin();
    let mut transaction = admin.transaction().unwrap();
    let row = "SELECT 1 FROM leasehold_locks WHERE id = sha256($1) FOR UPDATE";
    transaction.query_one(row, &[&stuck.as_bytes()]).unwrap();
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
        assert!(own_time_since(start) < ms(5_000), "{:?}", start.elapsed());
        while start.elapsed() < ms(5_000) {
            held.check().unwrap();
            let lock = client.lock(&stuck);
            assert!(lock.try_lock().is_err());
        }
    });
    transaction.rollback().unwrap();
    held.unlock().unwrap();
    assert!(client.lock(&stuck).try_lock_for(LONG).unwrap());
    client.lock(&stuck).unlock().unwrap();
}

#[test]
fn what_is_wrong_is_known_at_once_and_typed() {
    let Some(server) = PostgresServer::start() else { return };
    let kind = |builder: ClientBuilder| builder.build().unwrap_err().kind();
    let at = |url: &str| LockClient::builder().url(url);
    let error = at(&server.url()).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("create_schema"), "{error}");
    let first = client(&server);
    let mut admin = server.admin();
    admin
        .batch_execute(
            "CREATE USER secretive PASSWORD 'S3CR3T'; CREATE USER reader; GRANT SELECT ON leasehold_locks TO reader",
        )
        .unwrap();
    for (url, expected) in [
        (server.url_as("secretive"), ErrorKind::Authentication),
        (server.url_as("secretive:S3CR3T-not"), ErrorKind::Authentication),
        (server.url().replace("/postgres?", "/none?").replace("/postgres", "/none"), ErrorKind::InvalidInput),
        ("postgres://127.0.0.1:1/x".to_owned(), ErrorKind::Unreachable),
        ("postgres://".to_owned(), ErrorKind::InvalidInput),
        ("postgres://a:S3CR3T@host:port".to_owned(), ErrorKind::InvalidInput),
        (format!("{}?sslmode=require", server.url()), ErrorKind::Unsupported),
    ] {
        let error = at(&url).build().unwrap_err();
        let url = url.replace("postgresql", "");
        assert_eq!(error.kind(), expected, "{url}: {error:?}");
        assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{error:?}");
    }
    assert_eq!(kind(at(&server.url()).database(1)), ErrorKind::InvalidInput);
    // A user who may look but not write.
    let reader = at(&server.url_as("reader")).build().unwrap();
    assert!(!reader.lock("a").is_locked().unwrap());
    assert_eq!(reader.lock("a").try_lock().unwrap_err().kind(), ErrorKind::NoPermission);
    // The password, by option and by URL.
    admin.batch_execute("GRANT ALL ON leasehold_locks TO secretive").unwrap();
    let by_option = at(&server.url_as("secretive")).password("S3CR3T").build().unwrap();
    let by_url = at(&server.url_as("secretive:S3CR3T")).build().unwrap();
    assert!(by_option.lock("a").try_lock().unwrap());
    assert!(!by_url.lock("a").try_lock().unwrap());
    by_option.lock("a").unlock().unwrap();
    // Read-only, and the table gone while in use.
    admin.batch_execute("ALTER DATABASE postgres SET default_transaction_read_only = on").unwrap();
    let read_only = at(&server.url()).build().unwrap();
    let error = read_only.lock("a").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    admin.batch_execute("SET default_transaction_read_only = off; DROP TABLE leasehold_locks").unwrap();
    assert_eq!(first.lock("a").try_lock().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn too_many_connections_are_busy() {
    let Some(server) = PostgresServer::start_with(&["max_connections=6", "superuser_reserved_connections=0"])
    else {
        return;
    };
    client(&server);
    // Connections of the first client may end meanwhile, and leave room.
    let (mut taken, mut said) = (Vec::new(), None);
    let is_busy = eventually(LONG, || {
        taken.extend((0..20).map_while(|_| Client::connect(&server.url(), NoTls).ok()));
        said = LockClient::connect(&server.url()).err();
        said.as_ref().is_some_and(|error| error.kind() == ErrorKind::Busy && error.is_retryable())
    });
    assert!(is_busy, "{said:?}");
    drop(taken);
    assert!(eventually(LONG, || LockClient::connect(&server.url()).is_ok()));
}

/// In words, at once and always; not by whatever fails first, and only where the pooler's sessions happened to differ.
#[test]
fn a_pooler_that_gives_each_transaction_another_session_is_refused_in_words() {
    let Some(server) = PostgresServer::start() else { return };
    client(&server);
    for mode in ["transaction", "statement", "session"] {
        let Some(bouncer) = Bouncer::before(&server, mode) else { return };
        // Idle sessions of the pool, of which any may be given.
        let mut several: Vec<Client> =
            (0..4).map(|_| Client::connect(&bouncer.url(), NoTls).unwrap()).collect();
        std::thread::scope(|scope| {
            for one in &mut several {
                scope.spawn(|| one.batch_execute("SELECT pg_sleep(0.2)").unwrap());
            }
        });
        for _ in 0..3 {
            for session_locks in [false, true] {
                let options = LockClient::builder().url(&bouncer.url());
                let options = if session_locks { options.session_locks() } else { options };
                if mode == "session" {
                    let client = options.build().unwrap();
                    let held = client.lock("a").acquire().unwrap();
                    assert!(!connect(&bouncer.url(), LEASE).unwrap().lock("b").is_locked().unwrap());
                    held.unlock().unwrap();
                } else {
                    let error = options.build().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{mode}: {error:?}");
                    assert!(error.to_string().contains("PgBouncer"), "{mode}: {error}");
                }
            }
        }
    }
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
    // Another thread of the same client is another holder, although the server sees one user.
    std::thread::scope(|scope| assert!(!scope.spawn(|| lock.try_lock().unwrap()).join().unwrap()));
    let error = other.unlock().unwrap_err();
    assert_eq!(error.not_held(), Some(&leasehold::NotHeld::HeldBy(client.current_owner().to_string())));
    lock.unlock().unwrap();
    assert!(!other.try_lock().unwrap());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            other.lock().unwrap();
            now()
        });
        assert!(eventually(LONG, || listeners(&mut server.admin()) > 0));
        let before = now();
        lock.unlock().unwrap();
        let took = waiter.join().unwrap().duration_since(before);
        assert!(took < ms(1_000) + stalled_since(before), "{took:?}");
    });
    // The waiter's thread has ended with it, so its session ends with the lease.
    assert!(lock.try_lock_for(LEASE + LONG).unwrap());
    lock.unlock().unwrap();
    for refused in [client.token_lock(&name).lock(), client.fenced_lock(&name).lock()] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

/// Held over many leases; told when the session is ended; free for others then.
#[test]
fn a_session_lock_lives_and_dies_with_its_session() {
    let Some(server) = PostgresServer::start() else { return };
    let client = LockClient::builder().url(&server.url()).session_locks().lease(ms(2_400)).build().unwrap();
    let rival = connect_session(&server.url(), LEASE).unwrap();
    let held = client.lock("held").acquire().unwrap();
    let start = now();
    while start.elapsed() < ms(5_000) {
        held.check().unwrap();
        assert!(!rival.lock("held").try_lock().unwrap());
    }
    let lost = held.lost();
    terminate_all(&mut server.admin());
    lost.recv_timeout(LONG).unwrap();
    assert_eq!(held.state(), HoldState::Lost);
    assert!(rival.lock("held").try_lock_for(LONG).unwrap());
    assert!(held.unlock().unwrap_err().is_lost());
    assert!(rival.lock("held").is_held_by_current_thread().unwrap(), "a lost hold releases nobody's");
    rival.lock("held").unlock().unwrap();
    // Forced: the holder's session is ended.
    let held = client.lock("held").acquire().unwrap();
    assert!(rival.lock("held").force_unlock().unwrap());
    assert!(!rival.lock("held").force_unlock().unwrap());
    assert!(held.unlock().unwrap_err().is_lost());
}

/// No renewal is due for long: the connection tells, and that of no other hold.
#[test]
fn a_session_that_the_server_ends_is_noticed_at_once() {
    let Some(server) = shared() else { return };
    let client = connect_session(&server.url(), Duration::from_secs(60)).unwrap();
    let mut admin = server.admin();
    for round in 0..3 {
        let held = client.lock(&fresh("ended")).acquire().unwrap();
        let lock = client.lock(&fresh("other"));
        let other = std::thread::scope(|scope| scope.spawn(|| lock.acquire_owned()).join().unwrap().unwrap());
        let lost = held.lost();
        let end = "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = $1";
        let rows = admin.query(end, &[&format!("leasehold {}", held.owner())]).unwrap();
        assert_eq!(rows.len(), 1);
        // It takes the server's process a while to come to it; by now it is gone.
        let ended = now();
        assert_eq!(lost.recv_timeout(LONG).unwrap().reason, LossReason::Gone);
        let (took, stalled) = (ended.elapsed(), stalled_since(ended));
        assert!(took < ms(100 + 250) + stalled, "round {round}: {took:?}, of which stalled {stalled:?}");
        assert!(held.unlock().unwrap_err().is_lost());
        other.check().unwrap();
        other.unlock().unwrap();
    }
}

/// A fixed lease is kept by the server, which ends the session that nobody talks over.
#[test]
fn a_session_ends_when_it_was_idle_for_its_lease() {
    let Some(server) = shared() else { return };
    let (client, rival) =
        (connect_session(&server.url(), LEASE).unwrap(), connect_session(&server.url(), LEASE).unwrap());
    let lock = client.lock(&fresh("fixed"));
    lock.lock_with_lease(ms(700)).unwrap();
    let start = now();
    assert!(rival.lock(lock.name()).try_lock_for(LONG).unwrap());
    assert!(start.elapsed() >= ms(650), "{:?}", start.elapsed());
    assert!(own_time_since(start) < ms(700 + 1_500), "{:?}", start.elapsed());
    assert!(lock.unlock().unwrap_err().is_lost());
    rival.lock(lock.name()).unlock().unwrap();
}

// ---- on the caller's own transaction

fn names(server: &PostgresServer) -> NameTable {
    let names = NameTable::default();
    names.create(&mut server.admin()).unwrap();
    names
}

#[test]
fn many_can_create_the_table_of_names_at_the_same_time() {
    let Some(server) = shared() else { return };
    for _ in 0..5 {
        let names = NameTable::new(&fresh("names").replace('-', "_")).unwrap();
        let start = Barrier::new(8);
        thread::scope(|scope| {
            for _ in 0..8 {
                let mut client = server.admin();
                let (names, start) = (&names, &start);
                scope.spawn(move || {
                    start.wait();
                    names.create(&mut client).unwrap();
                });
            }
        });
    }
}

#[test]
fn lock_and_data_are_committed_together() {
    let Some(server) = shared() else { return };
    let names = names(server);
    for advisory in [false, true] {
        let name = fresh("together");
        let lock = |transaction: &mut postgres::Transaction<'_>, wait| {
            if advisory {
                lock_advisory(transaction, &name, wait)
            } else {
                names.lock(transaction, &name, wait)
            }
        };
        let (mut one, mut two) = (server.admin(), server.admin());
        // Also when both are the first to use the name.
        let mut first = one.transaction().unwrap();
        let held = lock(&mut first, ms(0)).unwrap().unwrap();
        assert_eq!(held.name(), name);
        assert!(lock(&mut first, ms(0)).unwrap().is_some(), "again on the same transaction");
        let mut second = two.transaction().unwrap();
        assert!(lock(&mut second, ms(0)).unwrap().is_none());
        let start = now();
        assert!(lock(&mut second, ms(200)).unwrap().is_none());
        assert!(start.elapsed() >= ms(190) && own_time_since(start) < ms(2_000), "{:?}", start.elapsed());
        // The wait in vain has left the transaction as it was.
        let setting: String = second.query_one("SHOW lock_timeout", &[]).unwrap().get(0);
        assert_eq!(setting, "0");
        held.check(&mut first).unwrap();
        first.commit().unwrap();
        let held = lock(&mut second, ms(2_000)).unwrap().unwrap();
        held.check(&mut second).unwrap();
        second.rollback().unwrap();
        let mut third = one.transaction().unwrap();
        assert!(lock(&mut third, ms(0)).unwrap().is_some());
    }
}

/// Above READ COMMITTED a transaction may have looked before it got the lock: then the server refuses what it writes.
#[test]
fn transactions_count_exactly_at_every_isolation_level() {
    let Some(server) = shared() else { return };
    let names = names(server);
    server.admin().batch_execute("CREATE TABLE counter AS SELECT 0 AS number").unwrap();
    let name = fresh("counted");
    let rounds = 25;
    let levels =
        [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];
    let once = |client: &mut Client, level| -> std::result::Result<bool, postgres::Error> {
        let mut transaction = client.build_transaction().isolation_level(level).start()?;
        let lock = names.lock(&mut transaction, &name, LONG);
        if !matches!(level, IsolationLevel::ReadCommitted)
            && lock.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy)
        {
            // Another made the row after this one's first look: to be run again, as is said.
            return Ok(false);
        }
        let _lock = lock.unwrap().unwrap();
        // Read and written apart: only the lock protects it.
        let number: i32 = transaction.query_one("SELECT number FROM counter", &[])?.get(0);
        transaction.execute("UPDATE counter SET number = $1", &[&(number + 1)])?;
        transaction.commit().map(|()| true)
    };
    std::thread::scope(|scope| {
        for level in levels {
            let once = &once;
            scope.spawn(move || {
                let mut client = server.admin();
                for _ in 0..rounds {
                    loop {
                        match once(&mut client, level) {
                            Ok(true) => break,
                            Ok(false) => {}
                            Err(error) => {
                                assert!(!matches!(level, IsolationLevel::ReadCommitted), "{error}");
                                let code = error.code().map(postgres::error::SqlState::code);
                                assert_eq!(code, Some("40001"), "{error}");
                            }
                        }
                    }
                }
            });
        }
    });
    let number: i32 = server.admin().query_one("SELECT number FROM counter", &[]).unwrap().get(0);
    assert_eq!(number, 3 * rounds);
}

#[test]
fn a_transaction_that_the_server_ends_is_lost() {
    let Some(server) = shared() else { return };
    let names = names(server);
    let name = fresh("ended");
    let mut client = server.admin();
    client.batch_execute("SET idle_in_transaction_session_timeout = 200").unwrap();
    let mut transaction = client.transaction().unwrap();
    let held = names.lock(&mut transaction, &name, ms(0)).unwrap().unwrap();
    // Another gets it once the server has ended the transaction.
    let mut other = server.admin();
    let mut second = other.transaction().unwrap();
    assert!(names.lock(&mut second, &name, LONG).unwrap().is_some());
    let error = held.check(&mut transaction).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.is_lost());
    assert!(names.lock(&mut transaction, &name, ms(0)).unwrap_err().is_lost());
    assert!(lock_advisory(&mut transaction, &name, ms(0)).unwrap_err().is_lost());
    assert!(transaction.commit().is_err());
}

#[test]
fn a_deadlock_is_typed() {
    let Some(server) = shared() else { return };
    let names = names(server);
    let (a, b) = (fresh("a"), fresh("b"));
    for advisory in [false, true] {
        let (names, a, b) = (&names, &a, &b);
        let lock = move |transaction: &mut postgres::Transaction<'_>, name: &str| {
            if advisory {
                lock_advisory(transaction, name, LONG)
            } else {
                names.lock(transaction, name, LONG)
            }
        };
        let barrier = std::sync::Barrier::new(2);
        let both = |first: &str, second: &str| -> std::result::Result<(), Error> {
            let mut client = server.admin();
            let mut transaction = client.transaction().unwrap();
            let _one = lock(&mut transaction, first)?;
            barrier.wait();
            let _two = lock(&mut transaction, second)?;
            transaction.commit().unwrap();
            Ok(())
        };
        let ended = std::thread::scope(|scope| {
            let one = scope.spawn(|| both(a, b));
            let two = scope.spawn(|| both(b, a));
            [one.join().unwrap(), two.join().unwrap()]
        });
        let failed: Vec<_> = ended.into_iter().filter_map(std::result::Result::err).collect();
        assert_eq!(failed.len(), 1, "one goes on, one is told: {failed:?}");
        assert_eq!(failed[0].kind(), ErrorKind::Deadlock, "{}", failed[0]);
    }
}

#[test]
fn names_that_cannot_be_used_are_refused() {
    let Some(server) = shared() else { return };
    assert_eq!(NameTable::new("a; b").unwrap_err().kind(), ErrorKind::InvalidInput);
    let names = names(server);
    let mut client = server.admin();
    let mut transaction = client.transaction().unwrap();
    for bad in [String::new(), "x".repeat(leasehold::LONGEST_NAME + 1)] {
        let error = names.lock(&mut transaction, &bad, ms(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(lock_advisory(&mut transaction, &bad, ms(0)).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    // Any other text will do, and case counts.
    let longest = "x".repeat(leasehold::LONGEST_NAME);
    for name in ["a", "A", "nul\0", "'; DROP TABLE leasehold_names", &longest] {
        assert!(names.lock(&mut transaction, name, ms(0)).unwrap().is_some());
    }
}
