//! Tests for MySQL and MariaDB only: late grants, query plans, locked rows, session locks (`GET_LOCK`), and
//! locks in the caller's transaction.

use leasehold::Result;
use leasehold::mysql::{NameTable, TxLock};
use mysql::prelude::Queryable;
use mysql::{Conn, IsolationLevel, Row, Transaction, TxOpts, from_value};

use crate::databases::{Database, Rows as _, connect_session};
use crate::statement;
use crate::support::mysql::MysqlServer;
use crate::support::prelude::*;
use crate::support::processes::LEASE;
use crate::support::relay::{Act, Direction, Relay};

impl Database for MysqlServer {
    same_for_each_database!(MysqlServer, Conn);

    const SCHEMA: &'static str = "locks";
    const TABLES: &'static [&'static str] =
        &["leasehold_locks", "leasehold_locks_clients", "leasehold_names"];
    const COMMENT: &'static str = "ALTER TABLE leasehold_locks COMMENT =";
    const OLD_TABLE: &'static str =
        "CREATE TABLE old_locks LIKE leasehold_locks; ALTER TABLE old_locks DROP since";
    const WITH_PASSWORD: &'static str = "IDENTIFIED BY 'S3CR3T'";
    const WITH_CERTIFICATE: &'static str = "REQUIRE X509";
    const VERIFIED: &'static str = "ssl-mode=VERIFY_IDENTITY";
    const COUNT_TLS: &'static str = "SHOW GLOBAL STATUS LIKE 'Ssl_accepts'";
    const WITH_ONE_CONNECTION: &'static str = "WITH MAX_USER_CONNECTIONS 1";
    const REVOKE_CREATE: &'static str = "DO 0";
    const SESSIONS_OF: &'static str = "information_schema.processlist WHERE user";
    const FEW_CONNECTIONS: &'static [&'static str] = &["--max-connections=12"];
    const LOGGED: &'static [&'static str] = &["--log-bin=binlog", "--server-id=1"];
    const LOCKS_IN_ERRORS: &'static str = "`locks`.`leasehold_locks`";
    const REFUSES_IN_ERRORS: &'static str = ""; // the trigger's error names no table
    const WRITES: &'static [&'static str] = &["lock", "token"];
    const WRONG_URLS: &'static [(&'static str, ErrorKind)] =
        &[("", ErrorKind::InvalidInput), ("/locks?require_ssl=true", ErrorKind::InvalidInput)];
    const ALIAS: &'static str = "mariadb";
    const CONNECT_NEEDS_WRITES: bool = true;
    // A try begins with a query. If the server does not answer the query, the outcome is known: no grant.
    const A_TRY_IS_ONE_REQUEST: bool = false;
    const END_IDLE_TRANSACTIONS: &'static str = "SET SESSION wait_timeout = 1";
    const REFUSE_FREE_ROWS: &'static str = "
        CREATE TRIGGER refuse BEFORE UPDATE ON refuses FOR EACH ROW
        BEGIN IF NEW.owner = '' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no free rows here'; END IF; END";
    const ALLOW_FREE_ROWS: &'static str = "DROP TRIGGER refuse";
    const NARROW: &'static str = "ALTER TABLE refuses MODIFY thread VARCHAR(1) NOT NULL";
    const ADVISORY: &'static [bool] = &[false];
    const RECONNECTS_WITHIN: Duration = LONG;
    // The server counts these times in whole seconds, so short ones become longer.
    const SHORT_WAIT_ENDS_WITHIN: Duration = ms(4_000);
    const IDLE_SESSION_ENDS_WITHIN: Duration = ms(1_000 + 2_500);
    const DEADLOCK_ENDS_TRANSACTION: bool = true;
    const EXHAUSTED: [Duration; 3] = [ms(2_500), ms(2_500), ms(8_000)];

    fn ask_on(connection: &mut Conn, statements: &str) -> Vec<Vec<String>> {
        let (mut answers, mut last) = (connection.query_iter(statements).unwrap(), Vec::new());
        while let Some(rows) = answers.iter() {
            let texts = |row: Row| row.unwrap().into_iter().map(from_value).collect();
            last = rows.map(|row| texts(row.unwrap())).collect();
        }
        last
    }
    fn end_sessions_of(&self, user: &str) {
        let mut admin = self.admin();
        let others = format!("SELECT id FROM {} = '{user}' AND id <> CONNECTION_ID()", Self::SESSIONS_OF);
        for id in admin.query::<u64, _>(others).unwrap() {
            admin.query_drop(format!("KILL {id}")).ok(); // fails if the session has ended by itself
        }
    }
    fn serving_process(&self) -> u32 {
        self.pid()
    }
    fn await_replicas(&self, awaits: bool) -> bool {
        let settings = ["timeout = 600000", "wait_no_slave = 1", &format!("enabled = {awaits}")];
        let set = |setting| self.admin().query_drop(format!("SET GLOBAL rpl_semi_sync_master_{setting}"));
        let [timeout, others @ ..] = settings;
        let can_wait = set(timeout).is_ok(); // fails if the server lacks the plugin for replicas
        others.into_iter().filter(|_| can_wait).for_each(|setting| set(setting).unwrap());
        can_wait
    }
    fn set_read_only(&self, is_read_only: bool) {
        self.execute(&format!("SET GLOBAL read_only = {is_read_only}"));
    }
    fn names_session(holder: &str, _client: &LockClient) -> bool {
        holder.starts_with("connection ")
    }
    fn id(name: &str) -> String {
        format!("UNHEX(SHA2('{name}', 256))")
    }
    fn from_now(time: Duration) -> String {
        format!("UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND", time.as_micros())
    }

    fn begin(connection: &mut Conn) -> Transaction<'_> {
        connection.start_transaction(TxOpts::default()).unwrap()
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

// The server may grant the lock after the client's time-out, so the client must undo the grant. (PostgreSQL
// ends the statement itself.)
test_on!(a_grant_made_after_the_time_out_is_undone, MysqlServer::shared(), |server| {
    let client = connected(|| server.options().command_timeout(ms(800)).retry_timeout(LONG).build());
    let lock = client.get_lock(fresh("late"));
    lock.acquire().unwrap().unlock().unwrap();
    let mut locking = server.lock_row(lock.name());
    let error = fails(lock.try_lock(), ErrorKind::TimedOut);
    assert!(error.outcome_unknown());
    locking.query_drop("ROLLBACK").unwrap();
    assert!(lock.try_lock_for(LONG).unwrap());
    lock.unlock().unwrap();
});

test_on!(every_mysql_statement_finds_its_row_by_primary_key, MysqlServer::shared(), |server| {
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
    let text = statement("mysql", "poller_look").replace("leasehold_locks", "planned");
    let text = text.replace("IDS", "UNHEX(SHA2('7', 256)), UNHEX(SHA2('8', 256))");
    let plan: Row = admin.query_first(text.replacen("SELECT", "EXPLAIN SELECT", 1)).unwrap().unwrap();
    assert_eq!(plan.get::<Option<String>, _>("key").unwrap().as_deref(), Some("PRIMARY"));
    assert_eq!(plan.get::<Option<u64>, _>("rows").unwrap(), Some(2));
});

// If tries waited for the row, the polls of many clients would queue there and burden the server's deadlock
// search.
test_on!(try_lock_does_not_wait_for_a_locked_row, MysqlServer::shared(), |server| {
    let (client, other) = (server.client(), server.client());
    let name = fresh("read");
    let held = client.get_lock(&name).acquire().unwrap();
    let mut locking = server.lock_row(&name);
    assert!(!other.get_lock(&name).try_lock().unwrap());
    locking.query_drop("ROLLBACK").unwrap();
    held.unlock().unwrap();
    assert!(other.get_lock(&name).try_lock().unwrap());
});

fn is_at_risk(held: &OwnedGuard) -> bool {
    matches!(held.state(), HoldState::AtRisk { .. })
}

// A failed renewal loses no session lock, because the session lives on and keeps the lock.
test_on!(a_frozen_server_keeps_session_locks, MysqlServer::start(), |server| {
    let lease = ms(12_000);
    let options = || LockClient::builder().url(server.url()).session_locks();
    let client = connected(|| options().lease(lease).command_timeout(ms(1_500)).build());
    let rival = options().build().unwrap();
    let held: Vec<_> =
        ["a", "b", "c"].iter().map(|name| client.get_lock(name).acquire_owned().unwrap()).collect();
    server.signal("STOP");
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

// A ping only begins the session's present idle limit anew, so a longer lease needs a longer limit.
test_on!(renewals_and_reentries_set_the_sessions_idle_limit, MysqlServer::shared(), |server| {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    let relay = Relay::with("127.0.0.1", server.port(), move |_, piece| {
        if piece.direction == Direction::ToServer {
            heard.lock().extend(piece.bytes);
        }
        Act::Pass
    });
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

test_on!(an_unconfirmed_session_lock_lasts_until_its_window_ends, MysqlServer::shared(), |server| {
    // Answers on connections whose number is below `silent` do not reach the client.
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
    assert!(
        rival.get_lock(&given).try_lock_for(LONG).unwrap(),
        "closing the connection did not free the lock"
    );
    rival.get_lock(&given).unlock().unwrap();
    let loss = lost.lost().recv_timeout(LONG).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(lost.unlock().unwrap_err().is_lost());
    assert!(rival.get_lock(&kept).try_lock_for(LONG).unwrap());
    rival.get_lock(&kept).unlock().unwrap();
});

#[test]
fn a_timed_out_wait_can_end_the_whole_transaction() {
    let Some(server) = MysqlServer::start_with(&["--innodb-rollback-on-timeout"]) else { return };
    let names = server.names();
    let (mut one, mut two) = (server.admin(), server.admin());
    let mut first = MysqlServer::begin(&mut one);
    let _held = names.lock(&mut first, "a", ms(0)).unwrap().unwrap();
    let mut second = MysqlServer::begin(&mut two);
    let other = names.lock(&mut second, "b", ms(0)).unwrap().unwrap();
    other.check(&mut second).unwrap();
    fails(names.lock(&mut second, "a", ms(100)), ErrorKind::Lost);
    assert!(other.check(&mut second).unwrap_err().is_lost(), "the earlier lock is gone too");
    assert!(names.lock(&mut first, "b", ms(0)).unwrap().is_some());
}
