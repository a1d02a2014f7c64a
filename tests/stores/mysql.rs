//! MySQL and MariaDB beyond the contracts: restarts, killed connections, query plans, permissions,
//! `GET_LOCK`, and locks in the caller's transaction.

use leasehold::Result;
use leasehold::mysql::{NameTable, TxLock};
use mysql::prelude::Queryable;
use mysql::{Conn, IsolationLevel, Row, Transaction, TxOpts};

use crate::databases::{
    Database, Exhausted, Rows, connect_session, too_many_connections_are_busy, urls_are_refused,
};
use crate::statement;
use crate::support::mysql::MysqlServer;
use crate::support::prelude::*;
use crate::support::processes::LEASE;
use crate::support::relay::{Act, Direction, Relay};

impl Rows for MysqlServer {
    const EXPIRED: &'static str = "'2001-01-01 00:00:00'";

    fn with_one(test: impl FnOnce(&MysqlServer)) {
        if let Some(server) = shared() {
            test(server);
        }
    }
    fn builder(&self) -> ClientBuilder {
        self.options()
    }
    fn row(&self, table: &str, name: &str) -> (String, u32, u32, String, String) {
        let text =
            format!("SELECT owner, holds, pid, host, thread FROM {table} WHERE id = UNHEX(SHA2(?, 256))");
        self.admin().exec_first(text, (name,)).unwrap().unwrap()
    }
    fn count_rows(&self, table: &str) -> u64 {
        self.admin().query_first(format!("SELECT COUNT(*) FROM {table}")).unwrap().unwrap()
    }
    fn execute(&self, statement: &str) {
        self.admin().query_drop(statement).unwrap();
    }
}

impl Database for MysqlServer {
    same_for_each_database!(MysqlServer, Conn);

    const ADVISORY: &'static [bool] = &[false];
    const RECONNECTS_WITHIN: Duration = LONG;
    // The server counts these times in whole seconds.
    const SHORT_WAIT_ENDS_WITHIN: Duration = ms(4_000);
    const IDLE_SESSION_ENDS_WITHIN: Duration = ms(1_000 + 2_500);
    const DEADLOCK_ENDS_TRANSACTION: bool = true;
    const EXHAUSTED: Exhausted = Exhausted {
        command_timeout: ms(2_500),
        lease: ms(2_500),
        calls_end_within: ms(8_000),
        lasts: ms(6_000),
    };

    fn end_sessions(&self) {
        kill_all(&mut self.admin());
    }
    fn names_session(holder: &str, _client: &LockClient) -> bool {
        holder.starts_with("connection ")
    }

    fn begin(connection: &mut Conn) -> Transaction<'_> {
        connection.start_transaction(TxOpts::default()).unwrap()
    }
    fn lock_row(transaction: &mut Transaction<'_>, name: &str) {
        let row = "SELECT 1 FROM leasehold_locks WHERE id = UNHEX(SHA2(?, 256)) FOR UPDATE";
        transaction.exec_drop(row, (name.as_bytes(),)).unwrap();
    }
    fn wait_setting(transaction: &mut Transaction<'_>) -> String {
        let setting: Option<u64> = transaction.query_first("SELECT @@innodb_lock_wait_timeout").unwrap();
        setting.unwrap().to_string()
    }

    fn count_once(&self, connection: &mut Conn, level: usize, names: &NameTable, name: &str) -> bool {
        let levels =
            [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];
        let options = TxOpts::default().set_isolation_level(Some(levels[level]));
        let mut transaction = connection.start_transaction(options).unwrap();
        let lock = names.lock(&mut transaction, name, LONG).unwrap().unwrap();
        // The number is read and written by two statements, so only the lock protects it.
        let number: u32 = transaction.query_first("SELECT number FROM counter").unwrap().unwrap();
        transaction.exec_drop("UPDATE counter SET number = ?", (number + 1,)).unwrap();
        lock.check(&mut transaction).unwrap();
        transaction.commit().unwrap();
        true
    }
    /// MySQL locks the gap before an awaited row, and MariaDB does not.
    fn first_use_locks_neighbours(&self) -> bool {
        let version: String = self.admin().query_first("SELECT VERSION()").unwrap().unwrap();
        !version.contains("MariaDB")
    }
    fn lock(
        names: &NameTable,
        _advisory: bool,
        transaction: &mut Transaction<'_>,
        name: &str,
        wait: Duration,
    ) -> Result<Option<TxLock>> {
        names.lock(transaction, name, wait)
    }
}

database_tests!(MysqlServer);

fn shared() -> Option<&'static MysqlServer> {
    MysqlServer::shared()
}

// The server may grant the lock after the client's time-out. So the outcome is unknown, and the client undoes the
// grant. (PostgreSQL ends the statement itself, so there the outcome is known.)
test_on!(an_unanswered_grant_is_undone, shared(), |server| {
    let client = connected(|| server.options().command_timeout(ms(800)).retry_timeout(LONG).build());
    let lock = client.get_lock(fresh("late"));
    lock.acquire().unwrap().unlock().unwrap();
    let mut connection = server.connect();
    let mut transaction = MysqlServer::begin(&mut connection);
    MysqlServer::lock_row(&mut transaction, lock.name());
    let error = fails(lock.try_lock(), ErrorKind::TimedOut);
    assert!(error.outcome_unknown());
    MysqlServer::rollback(transaction);
    assert!(lock.try_lock_for(LONG).unwrap());
    lock.unlock().unwrap();
});

test_on!(every_statement_finds_its_row_by_primary_key, shared(), |server| {
    server.options().table("planned").build().unwrap();
    let mut admin = server.admin();
    let fill =
        "INSERT INTO planned (id, name, token, owner, holds, expires_at, fence, host, pid, thread, since)
        VALUES (UNHEX(SHA2(?, 256)), '', 0, '', 0, UTC_TIMESTAMP(6), 0, '', 0, '', UTC_TIMESTAMP(6))";
    admin.exec_batch(fill, (0..3_000).map(|number| (number,))).unwrap();
    NameTable::new("planned_names").unwrap().create(&mut admin).unwrap();
    admin.query_drop("ANALYZE TABLE planned").unwrap();
    for name in ["take", "retake", "leave", "renew", "expire", "look", "force", "forget"] {
        let mut text = statement("mysql", name).replace("leasehold_locks", "planned");
        // EXPLAIN needs values in place of the parameters, and the id as an expression.
        text = text.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
        text = text.replace(":id", "UNHEX(SHA2('7', 256))").replace(":name", "'7'");
        let parameters = ":token :owner :lease_ms :age_ms :rest_ms :fenced :host :pid :thread :count :left";
        for parameter in parameters.split(' ') {
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
    // This statement reads several ids at once.
    let text = statement("mysql", "poller_look").replace("leasehold_locks", "planned");
    let text = text.replace("IDS", "UNHEX(SHA2('7', 256)), UNHEX(SHA2('8', 256))");
    let plan: Row = admin.query_first(text.replacen("SELECT", "EXPLAIN SELECT", 1)).unwrap().unwrap();
    assert_eq!(plan.get::<Option<String>, _>("key").unwrap().as_deref(), Some("PRIMARY"));
    assert_eq!(plan.get::<Option<u64>, _>("rows").unwrap(), Some(2));
});

fn kill_all(admin: &mut Conn) {
    let others =
        "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'admin'";
    let ids: Vec<u64> = admin.query(others).unwrap();
    for id in ids {
        admin.query_drop(format!("KILL {id}")).ok(); // it may be gone
    }
}

test_on!(a_frozen_server_costs_one_command_timeout, MysqlServer::start(), |server| {
    let client = connected(|| server.options().command_timeout(ms(1_500)).build());
    client.get_lock("a").acquire().unwrap().unlock().unwrap();
    server.signal("STOP");
    let start = now();
    let error = fails(client.get_lock("a").try_lock(), ErrorKind::TimedOut);
    assert!(!error.outcome_unknown(), "it has only read so far");
    assert!(own_time_since(start) < ms(3_000), "{:?}", start.elapsed());
    server.signal("CONT");
    assert!(client.get_lock("a").try_lock_for(LONG).unwrap());
    client.get_lock("a").unlock().unwrap();
});

// If tries waited, hundreds of polls would queue for the row and burden the server's deadlock search.
test_on!(a_try_waits_for_no_row_lock, shared(), |server| {
    let (client, other) = (server.client(), server.client());
    let name = fresh("read");
    let held = client.get_lock(&name).acquire().unwrap();
    let mut admin = server.admin();
    let mut transaction = admin.start_transaction(TxOpts::default()).unwrap();
    MysqlServer::lock_row(&mut transaction, &name);
    assert!(!other.get_lock(&name).try_lock().unwrap());
    transaction.rollback().unwrap();
    held.unlock().unwrap();
    assert!(other.get_lock(&name).try_lock().unwrap());
});

test_on!(wrong_settings_and_rights_fail_with_specific_errors, MysqlServer::start(), |server| {
    let at = |url: &str| LockClient::builder().url(url);
    fails_saying(at(&server.url()).build(), ErrorKind::Unsupported, "create_schema");
    let first = server.client();
    let mut admin = server.admin();
    for text in [
        "CREATE USER secretive IDENTIFIED BY 'S3CR3T'",
        "CREATE USER reader",
        "GRANT SELECT ON locks.leasehold_locks TO reader",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON locks.leasehold_locks TO secretive",
    ] {
        admin.query_drop(text).unwrap();
    }
    urls_are_refused(&[
        (server.url_as("secretive"), ErrorKind::Authentication),
        (server.url_as("secretive:S3CR3T-not"), ErrorKind::Authentication),
        (server.url().replace("/locks", "/none"), ErrorKind::InvalidInput),
        (server.url().replace("/locks", ""), ErrorKind::InvalidInput),
        ("mysql://127.0.0.1:1/x".to_owned(), ErrorKind::Unreachable),
        ("mysql://".to_owned(), ErrorKind::InvalidInput),
        ("mysql://a:S3CR3T@host:port/x".to_owned(), ErrorKind::InvalidInput),
        (format!("{}?require_ssl=true", server.url()), ErrorKind::InvalidInput),
    ]);
    let reader = at(&server.url_as("reader")).build().unwrap();
    assert!(!reader.get_lock("a").is_locked().unwrap());
    fails(reader.get_lock("a").try_lock(), ErrorKind::NoPermission);
    // The password works by option and in the URL, and the documented permissions suffice.
    let by_option = at(&server.url_as("secretive")).password("S3CR3T").build().unwrap();
    let by_url = at(&server.url_as("secretive:S3CR3T").replace("mysql:", "mariadb:")).build().unwrap();
    assert!(by_option.get_lock("a").try_lock().unwrap());
    assert!(!by_url.get_lock("a").try_lock().unwrap());
    by_option.get_lock("a").unlock().unwrap();
    by_option.sweep(ms(1)).unwrap();
    admin.query_drop("SET GLOBAL read_only = 1").unwrap();
    fails(at(&server.url()).build(), ErrorKind::ReadOnly);
    fails(by_option.get_lock("a").try_lock(), ErrorKind::ReadOnly);
    admin.query_drop("SET GLOBAL read_only = 0").unwrap();
    admin.query_drop("DROP TABLE leasehold_locks").unwrap();
    fails(first.get_lock("a").try_lock(), ErrorKind::Unsupported);
    admin.query_drop("SET GLOBAL max_connections = 12").unwrap();
    too_many_connections_are_busy(&server.url(), || server.try_admin().ok());
});

fn is_at_risk(held: &OwnedGuard) -> bool {
    matches!(held.state(), HoldState::AtRisk { .. })
}

// A failed renewal loses no session lock: the server keeps the lock, and the session continues.
test_on!(a_frozen_server_keeps_session_locks, MysqlServer::start(), |server| {
    let lease = ms(12_000);
    let options = || LockClient::builder().url(server.url()).session_locks();
    let client = connected(|| options().lease(lease).command_timeout(ms(1_500)).build());
    let rival = options().build().unwrap();
    let held: Vec<_> =
        ["a", "b", "c"].iter().map(|name| client.get_lock(name).acquire_owned().unwrap()).collect();
    server.signal("STOP");
    // Renewals fail until every hold is at risk.
    assert!(eventually(LONG, || held.iter().all(|held| held.state() != HoldState::Held)));
    assert!(held.iter().all(is_at_risk), "{held:?}");
    server.signal("CONT");
    assert!(eventually(LONG, || held.iter().all(|held| held.state() == HoldState::Held)), "{held:?}");
    for held in held {
        held.check().unwrap();
        assert!(!rival.get_lock(held.name()).try_lock().unwrap());
        held.unlock().unwrap();
    }
});

// A ping would keep the session alive too, but only for the limit that it had at first.
test_on!(renewals_and_reentries_set_the_idle_limit, shared(), |server| {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    let relay = Relay::with("127.0.0.1", server.port(), move |_, piece| {
        if piece.direction == Direction::ToServer {
            heard.lock().extend(piece.bytes);
        }
        Act::Pass
    });
    // How often the client has set this idle limit.
    let idle_limits_set = |seconds: u32| {
        let asked = String::from_utf8_lossy(&asked.lock()).into_owned();
        asked.matches(&format!("SET SESSION wait_timeout = {seconds}")).count()
    };
    let client = connect_session(&relay.url(&server.url(), server.port()), ms(3_000)).unwrap();
    let lock = client.get_lock(fresh("longer"));
    lock.lock_with_lease(ms(40_000)).unwrap();
    lock.lock_with_lease(ms(90_000)).unwrap();
    assert_eq!((idle_limits_set(40), idle_limits_set(90)), (1, 1));
    lock.unlock().unwrap();
    lock.unlock().unwrap();
    let renewed = client.get_lock(fresh("renewed")).acquire().unwrap();
    assert!(eventually(LONG, || idle_limits_set(3) >= 3), "{renewed:?}");
});

test_on!(a_silent_sessions_hold_lasts_until_its_window_ends, shared(), |server| {
    // Answers on connections with lower numbers no longer reach the client.
    let silent = Arc::new(AtomicUsize::new(0));
    let is_silent = Arc::clone(&silent);
    let relay = Relay::with("127.0.0.1", server.port(), move |_, piece| {
        let is_answer = piece.direction == Direction::ToClient;
        let is_lost = is_answer && piece.connection < is_silent.load(Ordering::SeqCst);
        if is_lost { Act::Lose } else { Act::Pass }
    });
    let (url, lease) = (relay.url(&server.url(), server.port()), ms(6_000));
    let options = || LockClient::builder().url(&url).session_locks().lease(lease).command_timeout(ms(1_000));
    let (client, rival) = (connected(|| options().build()), connect_session(&server.url(), LEASE).unwrap());
    let (kept, given) = (fresh("kept"), fresh("given"));
    let lost = client.get_lock(&kept).acquire_owned().unwrap();
    let unlocked = client.get_lock(&given).acquire_owned().unwrap();
    silent.store(relay.accepted(), Ordering::SeqCst);
    let at_risk = || [&lost, &unlocked].iter().all(|held| is_at_risk(held));
    assert!(eventually(LONG, at_risk), "{lost:?} {unlocked:?}");
    assert!(!rival.get_lock(&kept).try_lock().unwrap() && !rival.get_lock(&given).try_lock().unwrap());
    unlocked.unlock().unwrap();
    assert!(rival.get_lock(&given).try_lock_for(LONG).unwrap(), "hanging up frees it");
    rival.get_lock(&given).unlock().unwrap();
    let loss = lost.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(lost.unlock().unwrap_err().is_lost());
    assert!(rival.get_lock(&kept).try_lock_for(LONG).unwrap());
    rival.get_lock(&kept).unlock().unwrap();
});

#[test]
fn a_lock_in_a_server_ended_transaction_is_lost() {
    let Some(server) = MysqlServer::start_with(&["--innodb-rollback-on-timeout"]) else { return };
    let names = server.names();
    let (mut one, mut two) = (server.admin(), server.admin());
    // With this setting of the server, a wait that times out ends the whole transaction.
    let mut first = MysqlServer::begin(&mut one);
    let _held = names.lock(&mut first, "a", ms(0)).unwrap().unwrap();
    let mut second = MysqlServer::begin(&mut two);
    let other = names.lock(&mut second, "b", ms(0)).unwrap().unwrap();
    other.check(&mut second).unwrap();
    fails(names.lock(&mut second, "a", ms(100)), ErrorKind::Lost);
    assert!(other.check(&mut second).unwrap_err().is_lost(), "the earlier lock is gone too");
    assert!(names.lock(&mut first, "b", ms(0)).unwrap().is_some());
    drop((first, second));
    let mut first = MysqlServer::begin(&mut one);
    let held = names.lock(&mut first, "a", ms(2_000)).unwrap().unwrap();
    kill_all(&mut server.admin());
    assert!(eventually(LONG, || held.check(&mut first).is_err_and(|error| error.is_lost())));
    assert!(names.lock(&mut first, "b", ms(0)).unwrap_err().is_lost());
    assert!(first.commit().is_err());
    let mut three = server.admin();
    assert!(names.lock(&mut MysqlServer::begin(&mut three), "a", ms(2_000)).unwrap().is_some());
    let mut four = server.admin();
    four.query_drop("SET SESSION wait_timeout = 1").unwrap();
    let mut idle = MysqlServer::begin(&mut four);
    let held = names.lock(&mut idle, "idle", ms(0)).unwrap().unwrap();
    let mut five = server.admin();
    assert!(
        names.lock(&mut MysqlServer::begin(&mut five), "idle", LONG).unwrap().is_some(),
        "the next one has it"
    );
    assert!(held.check(&mut idle).unwrap_err().is_lost());
}
