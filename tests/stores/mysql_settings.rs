//! MySQL and MariaDB with unusual settings, tables that others made or changed, and read-locked tables.

use mysql::prelude::Queryable;

use crate::databases::{DOCUMENTED, Database as _, Rows as _};
use crate::support::mysql::MysqlServer;
use crate::support::observer::{Event, Seen};
use crate::support::prelude::*;

fn at(url: &str) -> ClientBuilder {
    LockClient::builder().url(url).create_schema(true).connect_timeout(Duration::from_secs(15))
}

/// Makes calls of most sorts with two clients of `url`.
fn uses(url: &str) {
    let [client, rival] = [(); 2].map(|()| at(url).build().unwrap());
    for name in ["a", "b"] {
        let held = client.get_fenced_lock(name).acquire().unwrap();
        assert!(!rival.get_lock(name).try_lock_for(ms(100)).unwrap());
        assert!(client.get_lock(name).is_locked().unwrap());
        held.unlock().unwrap();
        assert!(rival.get_lock(name).try_lock().unwrap());
        assert!(rival.get_lock(name).try_lock().unwrap(), "again");
        rival.get_lock(name).unlock().unwrap();
        rival.get_lock(name).unlock().unwrap();
    }
    let held: Vec<_> = ["a", "b"].iter().map(|name| client.get_lock(name).acquire_owned().unwrap()).collect();
    assert_eq!(client.list("*").count(), 2);
    let listed = || rival.clients().any(|one| one.is_ok_and(|one| one.id == client.id()));
    assert!(eventually(LONG, listed), "the client's entry was not written");
    assert!(rival.get_lock("a").force_unlock().unwrap());
    drop(held);
    client.sweep(ms(1)).unwrap();
}

#[test]
fn locks_work_with_unusual_server_settings() {
    let log = ["--log-bin=binlog", "--binlog-format=MIXED", "--server-id=1"];
    let Some(server) = MysqlServer::start_with(&log) else { return };
    let mut admin = server.admin();
    admin.query_drop("CREATE USER app").unwrap();
    server.grant(&format!("{DOCUMENTED}, CREATE"), "*", "app");
    let url = server.url_as("app");
    uses(&url);
    let version: String = admin.query_first("SELECT VERSION()").unwrap().unwrap();
    let is_mariadb = version.contains("MariaDB");
    let modes = if is_mariadb {
        ["STRICT_TRANS_TABLES,EMPTY_STRING_IS_NULL", "ORACLE,EMPTY_STRING_IS_NULL", ""]
    } else {
        ["ANSI", "TRADITIONAL", ""]
    };
    for mode in modes {
        admin.query_drop(format!("SET GLOBAL sql_mode = '{mode}'")).unwrap();
        admin.query_drop("SET GLOBAL sql_safe_updates = 1, GLOBAL sql_select_limit = 1").unwrap();
        uses(&url);
    }
    for value in [1, 2] {
        admin.query_drop(format!("SET GLOBAL completion_type = {value}")).unwrap();
        uses(&url);
    }
    // Errors are ignored, because some servers lack some of these settings.
    let settings = "\
        autocommit = 0; time_zone = '+05:45'; sql_auto_is_null = 1; max_statement_time = 0.001; \
        max_execution_time = 1; lock_wait_timeout = 1; innodb_lock_wait_timeout = 0; \
        innodb_snapshot_isolation = 1; unique_checks = 0; group_concat_max_len = 4; old_mode = ''; \
        div_precision_increment = 0; max_length_for_sort_data = 4; max_sort_length = 64; \
        query_cache_type = 1; collation_connection = 'utf8mb4_bin'; default_week_format = 7; \
        lc_time_names = 'ne_NP'; transaction_isolation = 'SERIALIZABLE'";
    for setting in settings.split("; ") {
        drop(admin.query_drop(format!("SET GLOBAL {setting}")));
    }
    uses(&url);
    admin.query_drop("SET GLOBAL binlog_format = 'STATEMENT'").unwrap();
    fails_saying(at(&url).build(), ErrorKind::Unsupported, "binlog_format");
    admin.query_drop("SET GLOBAL binlog_format = 'MIXED'").unwrap();
    for word in ["tx_read_only", "transaction_read_only"] {
        drop(admin.query_drop(format!("SET GLOBAL {word} = 1")));
    }
    fails(at(&url).build().and_then(|client| client.get_lock("a").try_lock()), ErrorKind::ReadOnly);
}

// `max_prepared_stmt_count = 0` has the effect of other sessions that use up all prepared statements.
test_on!(a_hold_survives_a_lack_of_prepared_statements, MysqlServer::start(), |server| {
    let mut admin = server.admin();
    let lease = ms(1_500);
    let client = connected(|| at(&server.url()).lease(lease).build());
    let other = client.get_lock("other");
    // After some requests a connection prepares its statements, which then stay prepared.
    (0..20).for_each(|_| other.acquire().unwrap().unlock().unwrap());
    let begun = now();
    let held = client.get_lock("held").acquire().unwrap();
    admin.query_drop("SET GLOBAL max_prepared_stmt_count = 0").unwrap();
    throughout(lease * 3, || held.check().is_ok() || stalled_since(begun) > lease / 2);
    held.unlock().unwrap();
    // Each of these statements is new to the connection. The server refuses to prepare it, so the client
    // must send it as text.
    assert!(!other.is_locked().unwrap() && other.remaining_lease().unwrap().is_none());
    uses(&server.url());
});

test_on!(a_thread_with_an_unstorable_name_can_acquire_a_lock, MysqlServer::shared(), |server| {
    let build = || server.options().table("latin").build().unwrap();
    build();
    server.execute("ALTER TABLE latin MODIFY thread VARCHAR(64) CHARACTER SET latin1 NOT NULL");
    let client = build();
    let work = move || client.get_lock("a").acquire().unwrap().unlock().unwrap();
    thread::Builder::new().name("工作-1".to_owned()).spawn(work).unwrap().join().unwrap();
});

test_on!(a_read_locked_server_blocks_no_session_for_long, MysqlServer::start(), |server| {
    server.make_user("app", "");
    let client =
        connected(|| at(&server.url_as("app")).command_timeout(ms(1_500)).retry_timeout(ms(100)).build());
    client.get_lock("a").acquire().unwrap().unlock().unwrap();
    let mut locked = server.admin();
    locked.query_drop("FLUSH TABLES WITH READ LOCK").unwrap();
    thread::scope(|scope| {
        let tries = || assert!(client.get_lock("a").try_lock().unwrap_err().is_retryable());
        (0..4).for_each(|_| drop(scope.spawn(tries)));
    });
    drop(client); // without `shutdown`, which would fail and keep a connection
    let text =
        "SELECT command, time, COALESCE(info, '') FROM information_schema.processlist WHERE user = 'app'";
    assert!(eventually(LONG, || server.ask(text).is_empty()), "left: {:?}", server.ask(text));
    locked.query_drop("UNLOCK TABLES").unwrap();
});

// On Linux the server distinguishes upper and lower case in table names, so both tables can exist.
test_on!(a_table_name_differing_only_in_case_is_reported, MysqlServer::start(), |server| {
    at(&server.url()).build().unwrap();
    let seen = Seen::default();
    let other = at(&server.url()).table("Leasehold_Locks").observer(seen.clone()).build().unwrap();
    assert_eq!(other.ping().unwrap().other_tables, ["locks.leasehold_locks"]);
    seen.wait_for(
        "the other table",
        |event| matches!(event, Event::Warning(text) if text.contains("locks.leasehold_locks")),
    );
});
