//! PostgreSQL: unusual settings, schemas, tables that others made or changed, and errors that end a session.

use std::collections::BTreeSet;

use leasehold::Result;
use leasehold::postgres::NameTable;
use postgres::{Client, NoTls};

use crate::databases::{Database as _, Rows as _};
use crate::support::observer::{Event, Seen};
use crate::support::postgres::{Bouncer, PostgresServer};
use crate::support::prelude::*;
use crate::support::relay::{Act, Direction, Relay};

fn at(url: &str) -> ClientBuilder {
    LockClient::builder().url(url).create_schema(true).connect_timeout(Duration::from_secs(15))
}

fn database(server: &PostgresServer, label: &str, like: &str) -> (String, Client) {
    let name = fresh(label).replace('-', "_").to_lowercase();
    server.admin().batch_execute(&format!("CREATE DATABASE {name} {like}")).unwrap();
    let admin = Client::connect(&url_of(server, &name, "admin"), NoTls).unwrap();
    (name, admin)
}

fn url_of(server: &PostgresServer, database: &str, role: &str) -> String {
    format!("postgres://{role}@127.0.0.1:{}/{database}", server.port())
}

/// Makes two roles, each with its own schema first in its search path.
fn two_roles(server: &PostgresServer, admin: &mut Client) -> [String; 2] {
    [(); 2].map(|()| {
        let role = fresh("role").replace('-', "_").to_lowercase();
        server.admin().batch_execute(&format!("CREATE ROLE {role} LOGIN")).unwrap();
        admin.batch_execute(&format!("CREATE SCHEMA {role} AUTHORIZATION {role}")).unwrap();
        role
    })
}

test_on!(roles_with_their_own_schemas_share_one_table, PostgresServer::shared(), |server| {
    let (name, mut admin) = database(server, "roles", "");
    let roles = two_roles(server, &mut admin);
    at(&url_of(server, &name, "admin")).build().unwrap();
    for role in &roles {
        let tables = "leasehold_locks, leasehold_locks_wait_queue, leasehold_locks_clients";
        admin.batch_execute(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role}")).unwrap();
    }
    let [one, other] = roles.each_ref().map(|role| at(&url_of(server, &name, role)).build().unwrap());
    let held = one.get_lock("a").acquire().unwrap();
    assert!(!other.get_lock("a").try_lock().unwrap(), "both clients hold the lock");
    for client in [&one, &other] {
        let health = client.ping().unwrap();
        assert_eq!(health.table.as_deref(), Some("public.leasehold_locks"));
        assert_eq!(health.other_tables, [""; 0]);
    }
    // Running clients keep their table when a table in another schema becomes visible first.
    let mut owner = Client::connect(&url_of(server, &name, &roles[1]), NoTls).unwrap();
    let copy = "CREATE TABLE leasehold_locks (LIKE public.leasehold_locks INCLUDING ALL)";
    owner.batch_execute(copy).unwrap();
    assert!(!other.get_lock("a").try_lock().unwrap(), "both clients hold the lock");
    let seen = Seen::default();
    let later = at(&url_of(server, &name, &roles[1])).observer(seen.clone()).build().unwrap().ping().unwrap();
    seen.wait_for("the other table", |event| {
        matches!(event, Event::Warning(text) if text.contains(&roles[1]) && text.contains("public.leasehold_locks"))
    });
    assert_eq!(later.table, Some(format!("{}.leasehold_locks", roles[1])));
    assert_eq!(later.other_tables, ["public.leasehold_locks"]);
    held.unlock().unwrap();
});

test_on!(no_table_is_created_if_another_schema_has_one, PostgresServer::shared(), |server| {
    let (name, mut admin) = database(server, "beside", "");
    let roles = two_roles(server, &mut admin);
    let url = |role: usize| url_of(server, &name, &roles[role]);
    let first = at(&url(0)).build().unwrap();
    let error = fails(at(&url(1)).build(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains(&roles[0]) && error.to_string().contains("table("), "{error}");
    let named = at(&url(1)).table(format!("{}.leasehold_locks", roles[1])).build().unwrap();
    assert_eq!(named.ping().unwrap().other_tables, [format!("{}.leasehold_locks", roles[0])]);
    for client in [&first, &named] {
        client.get_lock("a").acquire().unwrap().unlock().unwrap();
    }
    let [mut one, mut other] = [0, 1].map(|role| Client::connect(&url(role), NoTls).unwrap());
    NameTable::default().create(&mut one).unwrap();
    NameTable::default().create(&mut one).unwrap();
    fails(NameTable::default().create(&mut other), ErrorKind::InvalidInput);
    at(&url(0)).table("order").build().unwrap().get_lock("a").acquire().unwrap().unlock().unwrap();
});

fn uses_in_thread(thread: &str, client: &LockClient, rival: &LockClient, url: &str) {
    let (client, rival, url) = (client.clone(), rival.clone(), url.to_owned());
    let work = move || {
        at(&url).build().unwrap().get_lock("c").acquire().unwrap().unlock().unwrap();
        client.get_lock("a").lock().unwrap();
        client.get_fenced_lock("b").acquire().unwrap().unlock().unwrap();
        assert!(!rival.get_lock("a").try_lock_for(ms(50)).unwrap());
        client.get_lock("a").unlock().unwrap();
    };
    thread::Builder::new().name(thread.to_owned()).spawn(work).unwrap().join().unwrap();
}

test_on!(a_thread_with_any_name_can_acquire_a_lock, PostgresServer::shared(), |server| {
    let latin = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    let (name, mut admin) = database(server, "words", latin);
    let builder = || at(&url_of(server, &name, "admin")).label("Kästchen 箱");
    let [client, rival] = [(); 2].map(|()| builder().build().unwrap());
    uses_in_thread("工作-1", &client, &rival, &url_of(server, &name, "admin"));
    let row = "SELECT thread FROM leasehold_locks WHERE id = sha256('a')";
    let thread: String = admin.query_one(row, &[]).unwrap().get(0);
    assert_eq!(thread, "??-1");
    let held = client.get_lock("c").acquire().unwrap();
    let label = || {
        let clients: Result<Vec<_>> = rival.clients().collect();
        clients.unwrap().into_iter().find(|one| one.id == client.id()).and_then(|one| one.label)
    };
    assert!(eventually(LONG, || label().as_deref() == Some("Kästchen 箱")), "{:?}", label());
    held.unlock().unwrap();
});

/// Settings that could end a request, or change its outcome, if the client relied on the usual values.
const SETTINGS: &str = "\
    default_transaction_isolation = 'serializable'; default_transaction_deferrable = on; \
    idle_in_transaction_session_timeout = '1ms'; statement_timeout = '10s'; lock_timeout = '10ms'; \
    synchronous_commit = off; search_path = '$user', public, pg_catalog; \
    standard_conforming_strings = off; timezone = 'Asia/Kathmandu'; datestyle = 'SQL, DMY'; \
    intervalstyle = 'sql_standard'; bytea_output = 'escape'; extra_float_digits = 0; \
    quote_all_identifiers = on; transform_null_equals = on; row_security = off; jit_above_cost = 0; \
    enable_indexscan = off; enable_sort = off; plan_cache_mode = 'force_custom_plan'; \
    default_tablespace = 'pg_default'; track_activities = off; client_min_messages = 'debug5'";

test_on!(locks_do_not_depend_on_the_settings_of_the_database, PostgresServer::shared(), |server| {
    let (name, mut admin) = database(server, "settings", "");
    for setting in SETTINGS.split("; ") {
        admin.batch_execute(&format!("ALTER DATABASE {name} SET {setting}")).unwrap();
    }
    let builder = || at(&url_of(server, &name, "admin")).lease(ms(3_000));
    let with_session = || builder().session_locks();
    let ways: [&dyn Fn() -> ClientBuilder; 2] = [&builder, &with_session];
    for way in ways {
        let [client, rival] = [(); 2].map(|()| way().build().unwrap());
        let held = client.get_lock("a").acquire().unwrap();
        throughout(ms(4_000), || !rival.get_lock("a").try_lock_for(ms(50)).unwrap());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| elsewhere_takes(&rival));
            held.check().unwrap();
            held.unlock().unwrap();
            assert!(waiter.join().unwrap());
        });
        let held = client.get_lock("a").acquire().unwrap();
        assert!(rival.get_lock("a").force_unlock().unwrap());
        drop(held);
    }
    let commits =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'";
    assert_eq!(admin.query_one(commits, &[]).unwrap().get::<_, i64>(0), 0);
});

fn elsewhere_takes(client: &LockClient) -> bool {
    client.get_lock("a").try_lock_for(LONG).unwrap() && client.get_lock("a").unlock().is_ok()
}

test_on!(an_idle_session_limit_does_not_interrupt_wake_ups, PostgresServer::shared(), |server| {
    let role = fresh("idle").replace('-', "_").to_lowercase();
    server.execute(&format!("CREATE USER {role} SUPERUSER"));
    server.execute(&format!("ALTER USER {role} SET idle_session_timeout = '300ms'"));
    let seen = Seen::default();
    let url = server.url_as(&role);
    let [client, rival] = [(); 2].map(|()| at(&url).table("idle").observer(seen.clone()).build().unwrap());
    let held = client.get_lock("a").acquire().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| rival.get_lock("a").try_lock_for(LONG));
        throughout(ms(1_500), || seen.count(|event| matches!(event, Event::NoWakeups(_))) == 0);
        held.unlock().unwrap();
        assert!(waiter.join().unwrap().unwrap());
    });
});

/// A pooler. The returned counter says how many more requests get an error that ends their session.
fn pooler(server: &PostgresServer, code: &'static str) -> (String, Arc<AtomicUsize>) {
    let fatal = Arc::new(AtomicUsize::new(0));
    let left = Arc::clone(&fatal);
    let relay = Relay::with("127.0.0.1", server.port(), move |_, piece| {
        let is_execute = piece.direction == Direction::ToServer && piece.bytes[0] == b'B';
        let less = |left: usize| left.checked_sub(1);
        if is_execute && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            let fields = format!("SFATAL\0C{code}\0Mserver conn crashed?\0\0");
            let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
            return Act::Answer([b"E", &length[..], fields.as_bytes()].concat());
        }
        Act::Pass
    });
    (format!("postgres://admin@127.0.0.1:{}/postgres", relay.port()), fatal)
}

/// Imitates pgpool-II in raw mode: while `begins` is set, it sends BEGIN before a prepared statement, and
/// never COMMIT. The client does not see the answer to BEGIN.
fn begins_transactions(upstream: u16, begins: &Arc<AtomicBool>) -> Relay {
    const READY: &[u8] = b"Z\0\0\0\x05";
    let (begins, asked) = (Arc::clone(begins), Mutex::new(BTreeSet::new()));
    Relay::with("127.0.0.1", upstream, move |_, piece| {
        if piece.direction == Direction::ToServer {
            if piece.bytes[0] != b'B' || !begins.load(Ordering::SeqCst) {
                return Act::Pass;
            }
            asked.lock().insert(piece.connection);
            return Act::Replace([&b"Q\0\0\0\x0aBEGIN\0"[..], piece.bytes].concat());
        }
        if !asked.lock().contains(&piece.connection) {
            return Act::Pass;
        }
        let ready = piece.bytes.windows(READY.len()).position(|part| part == READY);
        let Some(ready) = ready else { return Act::Lose };
        asked.lock().remove(&piece.connection);
        Act::Replace(piece.bytes[ready + READY.len() + 1..].to_vec())
    })
}

// Behind a pooler that leaves transactions open, a release would seem done before the server commits it.
test_on!(a_pooler_that_leaves_transactions_open_is_refused, PostgresServer::shared(), |server| {
    let (database, mut admin) = database(server, "begun", "");
    let begins = Arc::new(AtomicBool::new(true));
    let direct = url_of(server, &database, "admin");
    let url = begins_transactions(server.port(), &begins).url(&direct, server.port());
    fails_saying(at(&url).build(), ErrorKind::Unsupported, "pgpool-II");
    for session_locks in [false, true] {
        begins.store(false, Ordering::SeqCst);
        let name = fresh("begun");
        let with = |url| if session_locks { at(url).session_locks() } else { at(url) };
        let (client, rival) = (with(&url).build().unwrap(), with(&direct).build().unwrap());
        let lock = client.get_lock(&name);
        lock.acquire().unwrap().unlock().unwrap();
        begins.store(true, Ordering::SeqCst);
        let others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
        admin.batch_execute(&format!("SELECT pg_terminate_backend(pid) {others}")).unwrap();
        fails_saying(lock.lock(), ErrorKind::Unsupported, "pgpool-II");
        assert!(rival.get_lock(&name).try_lock_for(LONG).unwrap(), "the lock is not free");
    }
});

// The error comes from a pooler, and its code does not tell whether the server carried out the request.
test_on!(a_session_ending_error_leaves_the_outcome_unknown, PostgresServer::shared(), |server| {
    server.admin();
    for code in ["XX999", "08P01"] {
        let (url, fatal) = pooler(server, code);
        let client = at(&url).table("fatal").build().unwrap();
        let rival = at(&server.url()).table("fatal").build().unwrap();
        let lock = client.get_lock("a");
        lock.acquire().unwrap().unlock().unwrap();
        fatal.store(2, Ordering::SeqCst);
        assert!(lock.try_lock_for(LONG).unwrap(), "the wait did not go on over another connection");
        fatal.store(1, Ordering::SeqCst);
        let unlocked = lock.unlock();
        assert!(unlocked.as_ref().map_or_else(crate::support::may_pass, |()| true), "{unlocked:?}");
        assert!(rival.get_lock("a").try_lock_for(LONG).unwrap());
        rival.get_lock("a").unlock().unwrap();
    }
});

test_on!(a_pooler_with_one_session_is_refused, PostgresServer::shared(), |server| {
    let Some(bouncer) = Bouncer::before_with(server, "session", "default_pool_size = 1") else { return };
    let begun = now();
    let error = at(&bouncer.url()).connect_timeout(ms(2_500)).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "after {:?}: {error}", begun.elapsed());
    assert!(error.to_string().contains("PgBouncer"), "{error}");
});

/// Statements that make commits with a notification fail, as with a full queue. Really filling it takes 8 GB.
const FULL: &str = "
    CREATE SCHEMA full_queue;
    CREATE TABLE full_queue.messages (channel text);
    CREATE FUNCTION full_queue.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE program_limit_exceeded USING MESSAGE = 'too many notifications in the NOTIFY queue'; END $$;
    CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON full_queue.messages DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION full_queue.refuse();
    CREATE FUNCTION full_queue.pg_notify(channel text, payload text) RETURNS void LANGUAGE sql AS
        $$ INSERT INTO full_queue.messages VALUES (channel) $$;
    SET search_path = full_queue, pg_catalog, public";

test_on!(a_release_succeeds_with_a_full_notification_queue, PostgresServer::shared(), |server| {
    let (name, mut admin) = database(server, "queue", "");
    let url = url_of(server, &name, "admin");
    at(&url).build().unwrap();
    admin.batch_execute(FULL).unwrap();
    admin
        .batch_execute(&format!("ALTER DATABASE {name} SET search_path = full_queue, pg_catalog, public"))
        .unwrap();
    assert!(admin.execute("SELECT pg_notify('a', '')", &[]).is_err());
    let builder = || at(&url).lease(LONG);
    let with_session = || builder().session_locks();
    let ways: [&dyn Fn() -> ClientBuilder; 2] = [&builder, &with_session];
    for way in ways {
        let [client, rival] = [(); 2].map(|()| way().build().unwrap());
        let is_free = |lock: &leasehold::RedisLock| lock.try_lock().map(|had| had && lock.unlock().is_ok());
        for _ in 0..2 {
            let held = client.get_lock("a").acquire().unwrap();
            held.unlock().unwrap();
            assert!(is_free(&rival.get_lock("a")).unwrap());
        }
        let held = client.get_lock("a").acquire().unwrap();
        thread::scope(|scope| {
            let waiter =
                scope.spawn(|| rival.get_lock("a").try_lock_for(LONG).map(|_| rival.get_lock("a").unlock()));
            assert!(!rival.get_lock("a").try_lock_for(ms(300)).unwrap());
            held.unlock().unwrap();
            waiter.join().unwrap().unwrap().unwrap();
        });
        let held = client.get_lock("a").acquire().unwrap();
        assert!(rival.get_lock("a").force_unlock().unwrap());
        assert!(is_free(&rival.get_lock("a")).unwrap());
        drop(held);
    }
    let client = builder().build().unwrap();
    client.get_token_lock("t").acquire().unwrap().unlock().unwrap();
    client.get_token_lock("t").acquire().unwrap().unlock().unwrap();
});
