//! Tests for PostgreSQL only: query plans, ended and silent sessions, wake-ups, poolers, and calls inside a
//! tokio task.

use leasehold::Result;
use leasehold::postgres::{NameTable, TxLock, lock_advisory};
use postgres::{Client, IsolationLevel, NoTls, SimpleQueryMessage, Transaction};

use crate::databases::{Database, Rows, connect_session};
use crate::support::observer::{Event, Seen};
use crate::support::postgres::{Bouncer, PostgresServer};
use crate::support::prelude::*;
use crate::support::processes::{LEASE, connect};

impl Database for PostgresServer {
    same_for_each_database!(PostgresServer, Client);

    const SCHEMA: &'static str = "public";
    const TABLES: &'static [&'static str] =
        &["leasehold_locks", "leasehold_locks_wait_queue", "leasehold_locks_clients", "leasehold_names"];
    const COMMENT: &'static str = "COMMENT ON TABLE leasehold_locks IS";
    const OLD_TABLE: &'static str =
        "CREATE TABLE old_locks (LIKE leasehold_locks INCLUDING ALL); ALTER TABLE old_locks DROP keeper";
    const WITH_PASSWORD: &'static str = "PASSWORD 'S3CR3T'";
    // Empty, because this server's pg_hba.conf already demands a certificate of the user `client`.
    const WITH_CERTIFICATE: &'static str = "";
    const VERIFIED: &'static str = "sslmode=verify-full";
    const COUNT_TLS: &'static str = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE ssl AND backend_type = 'client backend'";
    const WITH_ONE_CONNECTION: &'static str = "CONNECTION LIMIT 1";
    const REVOKE_CREATE: &'static str = "REVOKE CREATE ON SCHEMA public FROM PUBLIC";
    const SESSIONS_OF: &'static str = "pg_stat_activity WHERE usename";
    const FEW_CONNECTIONS: &'static [&'static str] =
        &["max_connections=6", "superuser_reserved_connections=0"];
    const LOGGED: &'static [&'static str] = &[];
    const LOCKS_IN_ERRORS: &'static str = "public.leasehold_locks";
    const REFUSES_IN_ERRORS: &'static str = "public.refuses";
    const WRITES: &'static [&'static str] = &["lock", "token", "try"];
    const WRONG_URLS: &'static [(&'static str, ErrorKind)] =
        &[("/postgres?sslmode=require", ErrorKind::Unsupported)];
    const ALIAS: &'static str = "postgresql";
    const CONNECT_NEEDS_WRITES: bool = false;
    const A_TRY_IS_ONE_REQUEST: bool = true;
    const END_IDLE_TRANSACTIONS: &'static str = "SET idle_in_transaction_session_timeout = 200";
    const REFUSE_FREE_ROWS: &'static str = "
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN IF NEW.owner = '' THEN RAISE 'no free rows here'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON refuses FOR EACH ROW EXECUTE FUNCTION refuse()";
    const ALLOW_FREE_ROWS: &'static str = "DROP TRIGGER refuse ON refuses";
    const NARROW: &'static str = "ALTER TABLE refuses ALTER thread TYPE varchar(1)";
    const ADVISORY: &'static [bool] = &[false, true];
    const RECONNECTS_WITHIN: Duration = Duration::ZERO;
    const SHORT_WAIT_ENDS_WITHIN: Duration = ms(2_000);
    const IDLE_SESSION_ENDS_WITHIN: Duration = ms(700 + 1_500);
    const DEADLOCK_ENDS_TRANSACTION: bool = false;
    const EXHAUSTED: [Duration; 3] = [ms(2_000), ms(4_000), ms(7_000)];

    fn ask_on(connection: &mut Client, statements: &str) -> Vec<Vec<String>> {
        let answers = connection.simple_query(statements).unwrap();
        let rows = answers.iter().filter_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        rows.map(|row| (0..row.len()).map(|at| row.get(at).unwrap().to_owned()).collect()).collect()
    }
    fn end_sessions_of(&self, user: &str) {
        let others = format!(
            "{} = '{user}' AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
            Self::SESSIONS_OF
        );
        self.execute(&format!("SELECT pg_terminate_backend(pid, 5000) FROM {others}"));
    }
    fn serving_process(&self) -> u32 {
        let released = "SELECT pid FROM pg_stat_activity WHERE query LIKE '-- Frees a lock%' AND pid <> pg_backend_pid()";
        self.ask(released)[0][0].parse().unwrap()
    }
    fn await_replicas(&self, awaits: bool) -> bool {
        let standby = if awaits { "away" } else { "" };
        self.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{standby}'"));
        self.execute("SELECT pg_reload_conf()");
        true
    }
    fn set_read_only(&self, is_read_only: bool) {
        self.execute(&format!("ALTER SYSTEM SET default_transaction_read_only = {is_read_only}"));
        self.execute("SELECT pg_reload_conf()");
        let set = if is_read_only { "on" } else { "off" };
        assert!(eventually(LONG, || self.ask("SHOW default_transaction_read_only") == [[set]]));
    }
    fn names_session(holder: &str, client: &LockClient) -> bool {
        holder == client.current_owner().to_string()
    }
    fn id(name: &str) -> String {
        format!("sha256('{name}')")
    }
    fn from_now(time: Duration) -> String {
        format!("clock_timestamp() + interval '{} us'", time.as_micros())
    }

    fn begin(connection: &mut Client) -> Transaction<'_> {
        connection.transaction().unwrap()
    }
    fn wait_setting(transaction: &mut Transaction<'_>) -> String {
        transaction.query_one("SHOW lock_timeout", &[]).unwrap().get(0)
    }

    /// Above READ COMMITTED the transaction may see the number as it was before the lock was granted. Then
    /// the write fails, and the caller must repeat the transaction.
    fn count_once(&self, client: &mut Client, level: usize, names: &NameTable, name: &str) -> bool {
        let levels =
            [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];
        let mut once = || -> std::result::Result<bool, postgres::Error> {
            let mut transaction = client.build_transaction().isolation_level(levels[level]).start()?;
            let lock = names.lock(&mut transaction, name, LONG);
            if level > 0 && lock.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy) {
                // Another transaction made the lock's row, invisible to this one, so the caller must repeat.
                return Ok(false);
            }
            let _lock = lock.unwrap().unwrap();
            // The number is read and written by two statements, so only the lock protects it.
            let number: i32 = transaction.query_one("SELECT number FROM counter", &[])?.get(0);
            transaction.execute("UPDATE counter SET number = $1", &[&(number + 1)])?;
            transaction.commit().map(|()| true)
        };
        once().unwrap_or_else(|error| {
            let code = error.code().map(postgres::error::SqlState::code);
            assert!(level > 0 && code == Some("40001"), "{error}");
            false
        })
    }
    fn first_use_locks_neighbours(&self) -> bool {
        false
    }
    fn lock(
        names: &NameTable,
        advisory: bool,
        transaction: &mut Transaction<'_>,
        name: &str,
        wait: Duration,
    ) -> Result<Option<TxLock>> {
        if advisory { lock_advisory(transaction, name, wait) } else { names.lock(transaction, name, wait) }
    }
}

test_on!(a_locked_expired_directory_entry_blocks_no_other_entry, PostgresServer::shared(), |server| {
    let client = server.options().table("kept_out").build().unwrap();
    let killed = "INSERT INTO kept_out_clients VALUES ('8a3f0e0e-0000-8000-8000-000000000001', '{}', ";
    server.execute(&format!("{killed}{})", PostgresServer::EXPIRED));
    let _locking = server.lock_rows("kept_out_clients");
    let held = client.get_lock("a").acquire().unwrap();
    assert!(eventually(LONG, || client.clients().map(|one| one.unwrap().id).eq([client.id()])));
    held.unlock().unwrap();
});

test_on!(every_postgres_statement_finds_its_row_by_an_index, PostgresServer::shared(), |server| {
    server.options().table("planned").build().unwrap();
    let mut admin = server.admin();
    let fill =
        "INSERT INTO planned SELECT sha256(n::text::bytea), '', false, '', 0, now(), 0, '', 0, '', now(), NULL
        FROM generate_series(1, 20000) AS n; ANALYZE planned;
        INSERT INTO planned_wait_queue SELECT sha256((n % 20)::text::bytea), n::text, '', now(), now(), false, NULL
        FROM generate_series(1, 20000) AS n; ANALYZE planned_wait_queue";
    admin.batch_execute(fill).unwrap();
    let name = "'\\x61'";
    let taken = format!("{name}, false, 'o', 1000, true, 'h', 1, 't', NULL");
    for (statement, arguments) in [
        ("take", taken.clone()),
        ("retake", format!("{name}, false, 'o', 1000, true, 2")),
        ("leave", format!("{name}, false, 'o', 0, 'c'")),
        ("renew", format!("{name}, false, 'o', 1000, 1")),
        ("renew_free", format!("{name}, false, 'o', 1000")),
        ("expire", format!("{name}, false, 'o', 1000")),
        ("look", name.to_owned()),
        ("force", format!("{name}, false, 'c'")),
        ("take_in_queue", format!("{taken}, 'c', 'd', 10")),
        ("take_unreserved", format!("{taken}, 'c'")),
        ("free_unawaited", format!("{name}, false, 'o', 'c'")),
        ("tell", format!("{name}, 'c'")),
        ("leave_wait_queue", format!("{name}, 'c'")),
        ("is_queue_full", name.to_owned()),
        ("recall", format!("{name}, 'c'")),
        ("check_cached", "'61', 'false', 'o', 'c'".to_owned()),
        ("", name.to_owned()),
    ] {
        let text = match statement {
            "" => "SELECT 1 FROM leasehold_names WHERE id = sha256($1) FOR UPDATE".to_owned(),
            name => crate::statement("postgres", name),
        };
        let text = text.replace("leasehold_locks", "planned").replace("leasehold_names", "planned");
        // The server may use a plan for these values or a generic plan, so both must use an index.
        for mode in ["force_custom_plan", "force_generic_plan"] {
            admin.batch_execute(&format!("SET plan_cache_mode = {mode}; PREPARE planned AS {text}")).unwrap();
            let plan = admin.query(&format!("EXPLAIN EXECUTE planned({arguments})"), &[]).unwrap();
            let plan: String = plan.iter().map(|row| row.get::<_, String>(0) + "\n").collect();
            assert!(plan.contains("planned_pkey") || plan.contains("planned_wait_queue_"), "{text}\n{plan}");
            assert!(!plan.contains("Seq Scan") && !plan.contains("Sort"), "{text}\n{plan}");
            admin.batch_execute("DEALLOCATE planned").unwrap();
        }
    }
});

test_on!(sessions_ended_by_the_server_lose_no_row_lock, PostgresServer::start(), |server| {
    let (client, rival) = (server.client(), server.client());
    let held = client.get_lock("held").acquire().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(turn(rival.get_lock("held")));
        assert!(eventually(LONG, || listeners(&mut server.admin()) == 1));
        server.end_sessions();
        assert!(eventually(LONG, || listeners(&mut server.admin()) == 1), "the client does not listen again");
        held.check().unwrap();
        let before = now();
        held.unlock().unwrap();
        let woken = waiter.join().unwrap().duration_since(before);
        assert!(woken < ms(700), "a poll found the release, not a wake-up: {woken:?}");
    });
});

test_on!(each_interruption_of_wake_ups_is_reported, PostgresServer::start(), |server| {
    let seen = Seen::default();
    let client = server.options().observer(seen.clone()).build().unwrap();
    let _held = server.client().get_lock("a").acquire_owned().unwrap();
    let waiter = client.get_lock("a");
    let waits = Interrupt::new();
    thread::scope(|scope| {
        let ends = waits.clone();
        scope.spawn(move || waiter.lock_interruptibly(&ends).unwrap_err());
        let mut admin = server.admin();
        assert!(eventually(LONG, || listeners(&mut admin) == 1));
        for outage in 1..=8 {
            let text = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
                WHERE pid <> pg_backend_pid() AND query LIKE '%SHOW transaction_read_only'";
            let begun = now();
            admin.query(text, &[]).unwrap();
            let told = |seen: &Seen| {
                let down = seen.count(|event| matches!(event, Event::NoWakeups(_)));
                (down, seen.count(|event| matches!(event, Event::WakeupsBack)))
            };
            assert!(eventually(LONG, || told(&seen) == (outage, outage)), "{:?} of {outage}", told(&seen));
            let took = own_time_since(begun);
            assert!(took < ms(1_900), "{took:?} after outage {outage}");
        }
        waits.interrupt();
    });
});

fn listeners(admin: &mut Client) -> i64 {
    let text = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN leasehold%'";
    admin.query_one(text, &[]).unwrap().get(0)
}

// The server did not even prepare the statement, so it certainly did not run. Yet the client must not use
// the silent connection again.
test_on!(a_connection_that_is_silent_during_a_prepare_is_dropped, PostgresServer::start(), |server| {
    let options = || server.options().pool_size(1).directory(false);
    let client = connected(|| options().command_timeout(ms(400)).build());
    let backend =
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let mut admin = server.admin();
    let pid: i32 = admin.query_one(backend, &[]).unwrap().get(0);
    crate::support::signal(pid.unsigned_abs(), "STOP");
    let error = client.get_lock("a").is_locked().unwrap_err();
    assert_eq!((error.kind(), error.outcome_unknown()), (ErrorKind::TimedOut, false), "{error}");
    let worked = eventually(LONG, || client.get_lock("a").is_locked().is_ok());
    crate::support::signal(pid.unsigned_abs(), "CONT");
    assert!(worked, "another connection did not work");
});

test_on!(transaction_pooling_is_refused_with_the_reason, PostgresServer::start(), |server| {
    server.client();
    for mode in ["transaction", "statement", "session"] {
        let Some(bouncer) = Bouncer::before(&server, mode) else { return };
        // Queries at the same time make the pooler open several sessions, any of which it may use later.
        let mut several: Vec<Client> =
            (0..4).map(|_| Client::connect(&bouncer.url(), NoTls).unwrap()).collect();
        std::thread::scope(|scope| {
            for one in &mut several {
                scope.spawn(|| one.batch_execute("SELECT pg_sleep(0.2)").unwrap());
            }
        });
        for _ in 0..3 {
            for session_locks in [false, true] {
                let options = LockClient::builder().url(bouncer.url());
                let options = if session_locks { options.session_locks() } else { options };
                if mode == "session" {
                    let client = options.build().unwrap();
                    let held = client.get_lock("a").acquire().unwrap();
                    assert!(!connect(&bouncer.url(), LEASE).unwrap().get_lock("b").is_locked().unwrap());
                    held.unlock().unwrap();
                } else {
                    let error = options.build().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{mode}: {error:?}");
                    assert!(error.to_string().contains("PgBouncer"), "{mode}: {error}");
                }
            }
        }
    }
});

test_on!(releasing_a_session_lock_wakes_its_waiter, PostgresServer::shared(), |server| {
    let [client, rival] = [(); 2].map(|()| connect_session(&server.url(), LEASE).unwrap());
    let name = fresh("woken");
    let (lock, other) = (client.get_lock(&name), rival.get_lock(&name));
    lock.lock().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| other.lock().map(|()| now()).unwrap());
        assert!(eventually(LONG, || listeners(&mut server.admin()) > 0));
        let before = now();
        lock.unlock().unwrap();
        let took = waiter.join().unwrap().duration_since(before);
        assert!(took < ms(1_000) + stalled_since(before), "{took:?}");
    });
    // The waiter's thread has ended without a release. The client no longer renews its hold, so the server
    // ends the idle session after the lease.
    assert!(lock.try_lock_for(LEASE + LONG).unwrap());
    lock.unlock().unwrap();
});

// No renewal is due for long, so only the end of the connection can show the loss of this hold.
test_on!(a_server_ended_session_is_noticed_at_once, PostgresServer::shared(), |server| {
    let mut admin = server.admin();
    for round in 0..3 {
        // A new client for each round, because a client checks its sessions at most once a second.
        let client = connect_session(&server.url(), Duration::from_secs(60)).unwrap();
        let held = client.get_lock(fresh("ended")).acquire().unwrap();
        let lock = client.get_lock(fresh("other"));
        let other = std::thread::scope(|scope| scope.spawn(|| lock.acquire_owned()).join().unwrap().unwrap());
        let lost = held.lost();
        let end = "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = $1";
        let rows = admin.query(end, &[&format!("leasehold {}", held.owner())]).unwrap();
        assert_eq!(rows.len(), 1);
        // The query above waited for the end of the session, so the time begins here.
        let ended = now();
        assert_eq!(lost.recv_timeout(LONG).unwrap().reason, LossReason::Gone);
        let (took, stalled) = (ended.elapsed(), stalled_since(ended));
        assert!(took < ms(100 + 250) + stalled, "round {round}: {took:?}, of which stalled {stalled:?}");
        assert!(held.unlock().unwrap_err().is_lost());
        other.check().unwrap();
        let lost = other.lost();
        assert_eq!(admin.query(end, &[&format!("leasehold {}", other.owner())]).unwrap().len(), 1);
        let ended = now();
        assert_eq!(lost.recv_timeout(LONG).unwrap().reason, LossReason::Gone);
        let (took, stalled) = (ended.elapsed(), stalled_since(ended));
        assert!(took < ms(1_100 + 250) + stalled, "the second: {took:?}, of which stalled {stalled:?}");
    }
});

// Inside a task tokio panics when a second runtime, such as the driver's own, runs or is dropped.
test_on!(every_call_works_inside_a_tokio_task, PostgresServer::shared(), |server| {
    let (outside, url) = (server.client(), server.url());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for session_locks in [false, true] {
        let options = || {
            let options = LockClient::builder().url(&url).lease(LEASE);
            if session_locks { options.session_locks() } else { options }
        };
        let rival = options().build().unwrap();
        let name = fresh("in-a-task");
        let task = |work: fn(&LockClient, &str)| {
            let (options, locked) = (options(), name.clone());
            let ended = runtime.block_on(runtime.spawn(async move {
                let client = options.build().unwrap();
                work(&client, &locked);
            }));
            let is_free = eventually(LONG, || !rival.get_lock(&name).is_locked().unwrap());
            assert!(is_free, "the task did not release its lock");
            ended.map_err(tokio::task::JoinError::into_panic)
        };
        task(|client, name| {
            let guard = client.get_lock(name).try_acquire_owned().unwrap().unwrap();
            assert!(client.get_lock(name).is_locked().unwrap());
            drop(guard);
            assert!(client.get_lock(name).try_lock().unwrap());
            client.get_lock(name).unlock().unwrap();
            client.shutdown().unwrap();
        })
        .unwrap();
        task(|client, name| drop(client.get_lock(name).acquire_owned().unwrap())).unwrap();
        let unwound = task(|client, name| {
            let _guard = client.get_lock(name).acquire_owned().unwrap();
            quiet_panic();
        });
        assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"meant to panic"));

        let held = rival.get_lock(&name).acquire().unwrap();
        let (client, waited) = (options().build().unwrap(), name.clone());
        let waits = runtime.spawn(async move { client.get_lock(&waited).try_lock_for(ms(100)).unwrap() });
        assert!(!runtime.block_on(waits).unwrap());
        held.unlock().unwrap();
        let nowhere = "postgres://user@127.0.0.1:1/shop";
        let connects = runtime.spawn(async move { LockClient::connect(nowhere).map(drop) });
        fails(runtime.block_on(connects).unwrap(), ErrorKind::Unreachable);
    }
    drop(outside);
});
