//! Tests for PostgreSQL and MySQL: restarts, ended sessions, lock rows, session locks, locks in the caller's
//! transaction, users, settings, limits, and tables that cannot be used. [`Database`] has the differences.

use std::sync::Barrier;

use leasehold::{Error, MAX_NAME_LEN, Result};

use crate::support::prelude::*;
use crate::support::processes::{
    LEASE, OTHER_NAMES, OTHER_VISITS, none_was_delayed, other_names_are_not_delayed,
};
use crate::support::server::Certificates;

/// A store that keeps its locks as rows of a table.
pub(crate) trait Rows {
    /// The values of a directory row's last columns, for a client that ended long ago.
    const EXPIRED: &'static str;

    /// Runs `test` on a new file, or on the server that tests share; without a server, skips it.
    fn with_one(test: impl FnOnce(&Self));
    fn builder(&self) -> ClientBuilder;
    /// Executes the statements. Returns the rows that they give, each value as text.
    fn ask(&self, statements: &str) -> Vec<Vec<String>>;
    /// The condition that finds a lock's row, as SQL.
    fn has_name(name: &str) -> String;

    fn execute(&self, statements: &str) {
        self.ask(statements);
    }
    fn count_rows(&self, table: &str) -> u64 {
        self.ask(&format!("SELECT count(*) FROM {table}"))[0][0].parse().unwrap()
    }
}

impl<D: Database> Rows for D {
    const EXPIRED: &'static str = "'2001-01-01 00:00:00'";

    fn with_one(test: impl FnOnce(&D)) {
        if let Some(server) = D::shared() {
            test(server);
        }
    }
    fn builder(&self) -> ClientBuilder {
        self.options()
    }
    fn ask(&self, statements: &str) -> Vec<Vec<String>> {
        D::ask_on(&mut self.connect(), statements)
    }
    fn has_name(name: &str) -> String {
        format!("id = {}", D::id(name))
    }
}

/// The rights that docs/stores.md gives a user.
pub(crate) const DOCUMENTED: &str = "SELECT, INSERT, UPDATE, DELETE";

/// A server of PostgreSQL or MySQL: its connections and transactions, and how it differs from the other one.
pub(crate) trait Database: Sized + Sync + 'static {
    type Connection: Send;
    type Transaction<'c>;
    type Names: Sync;
    type TxLock;

    const SCHEMA: &'static str;
    const TABLES: &'static [&'static str];
    /// The beginning of the statement that sets the comment of the table of locks.
    const COMMENT: &'static str;
    /// A statement that creates the table `old_locks` with the columns of an earlier version.
    const OLD_TABLE: &'static str;
    /// The end of `CREATE USER` that sets a password.
    const WITH_PASSWORD: &'static str;
    /// The end of `CREATE USER` that demands a client certificate.
    const WITH_CERTIFICATE: &'static str;
    /// The end of `CREATE USER` that allows one connection.
    const WITH_ONE_CONNECTION: &'static str;
    /// The statement that takes away everybody's right to create tables.
    const REVOKE_CREATE: &'static str;
    /// The parameter of a URL that makes a client use TLS.
    const VERIFIED: &'static str;
    /// A query that counts the clients that use TLS; on MySQL also those that have left.
    const COUNT_TLS: &'static str;
    /// A table of sessions and `WHERE COLUMN`. With ` = 'NAME'` appended, it selects a user's sessions.
    const SESSIONS_OF: &'static str;
    /// The settings of a server that allows few connections.
    const FEW_CONNECTIONS: &'static [&'static str];
    /// The settings of a server that writes a log for replicas.
    const LOGGED: &'static [&'static str];
    /// How errors name the table of locks.
    const LOCKS_IN_ERRORS: &'static str;
    /// How errors name the table `refuses`, which a test makes unusable.
    const REFUSES_IN_ERRORS: &'static str;
    /// The calls of `rights.rs` that fail for a user who may only read.
    const WRITES: &'static [&'static str];
    /// Endings of URLs that a client of this database refuses, with the error's kind.
    const WRONG_URLS: &'static [(&'static str, ErrorKind)];
    /// Another scheme of this database's URLs.
    const ALIAS: &'static str;
    /// Whether a client refuses a read-only server already when it connects.
    const CONNECT_NEEDS_WRITES: bool;
    /// Whether a try is a single request, so that a try without an answer may have been granted.
    const A_TRY_IS_ONE_REQUEST: bool;
    /// The statement that makes the server soon end this session's transaction, if the session is idle.
    const END_IDLE_TRANSACTIONS: &'static str;
    /// Statements after which no row of the table `refuses` can become free.
    const REFUSE_FREE_ROWS: &'static str;
    /// The statement that undoes `REFUSE_FREE_ROWS`.
    const ALLOW_FREE_ROWS: &'static str;
    /// The statement that makes the column for a thread's name too narrow in the table `refuses`.
    const NARROW: &'static str;
    /// What `advisory` may be in [`Database::lock`]: `true` for an advisory lock, `false` for a row lock.
    const ADVISORY: &'static [bool];
    /// The time after a restart within which a client is connected again.
    const RECONNECTS_WITHIN: Duration;
    /// The time within which a 200 ms wait in a transaction ends.
    const SHORT_WAIT_ENDS_WITHIN: Duration;
    /// The time within which the server ends an unused session with a lease of 700 ms.
    const IDLE_SESSION_ENDS_WITHIN: Duration;
    /// Whether a deadlock error ends the whole transaction.
    const DEADLOCK_ENDS_TRANSACTION: bool;
    /// The command time-out, the lease, and the longest time of a call, for a test with an exhausted pool.
    const EXHAUSTED: [Duration; 3];

    fn start() -> Option<Self> {
        Self::start_with(&[])
    }
    fn start_with(settings: &[&str]) -> Option<Self>;
    fn start_tls() -> Option<Self>;
    /// The server that tests share if they do not disturb it.
    fn shared() -> Option<&'static Self>;
    fn port(&self) -> u16;
    fn certificates(&self) -> Certificates;
    /// The URL for a user, given as `name` or `name:password`.
    fn url_as(&self, user: &str) -> String;
    fn kill(&mut self);
    fn restart(&mut self);
    fn connect(&self) -> Self::Connection;
    fn connect_as(&self, user: &str) -> Option<Self::Connection>;
    /// As [`Rows::ask`], over `connection`.
    fn ask_on(connection: &mut Self::Connection, statements: &str) -> Vec<Vec<String>>;
    fn end_sessions_of(&self, user: &str);
    /// The server's process for the client that has just released a lock.
    fn serving_process(&self) -> u32;
    /// Sets whether commits wait for a replica, of which there is none. Returns `false` if the server cannot.
    fn await_replicas(&self, awaits: bool) -> bool;
    /// Makes the server read-only, as before a switchover. Open connections stay.
    fn set_read_only(&self, is_read_only: bool);
    fn names_session(holder: &str, client: &LockClient) -> bool;
    /// The id of a lock's row, as SQL.
    fn id(name: &str) -> String;
    /// The server's present time plus `time`, as SQL.
    fn from_now(time: Duration) -> String;

    fn begin(connection: &mut Self::Connection) -> Self::Transaction<'_>;
    /// Commits, and returns whether that succeeded.
    fn commit(transaction: Self::Transaction<'_>) -> bool;
    fn rollback(transaction: Self::Transaction<'_>);
    /// The current value of the time-out setting that a wait in a transaction changes until the wait ends.
    fn wait_setting(transaction: &mut Self::Transaction<'_>) -> String;

    /// Adds one to the number in the table `counter`, under the lock, in a transaction of this isolation
    /// level (0 is READ COMMITTED). Returns `false` if the server demands a repetition.
    fn count_once(
        &self,
        connection: &mut Self::Connection,
        level: usize,
        names: &Self::Names,
        name: &str,
    ) -> bool;
    fn new_names(table: &str) -> Result<Self::Names>;
    fn create_names(names: &Self::Names, connection: &mut Self::Connection) -> Result<()>;
    /// Whether a transaction that waits for a name's row also locks the gap beside it, so that a neighbouring
    /// name's first use waits.
    fn first_use_locks_neighbours(&self) -> bool;
    fn lock(
        names: &Self::Names,
        advisory: bool,
        transaction: &mut Self::Transaction<'_>,
        name: &str,
        wait: Duration,
    ) -> Result<Option<Self::TxLock>>;
    fn check(lock: &Self::TxLock, transaction: &mut Self::Transaction<'_>) -> Result<()>;
    fn name_of(lock: &Self::TxLock) -> &str;

    fn url(&self) -> String {
        self.url_as("admin")
    }

    fn options(&self) -> ClientBuilder {
        self.options_as("admin").create_schema(true)
    }

    fn options_as(&self, user: &str) -> ClientBuilder {
        LockClient::builder().url(self.url_as(user))
    }

    fn client(&self) -> LockClient {
        self.options().build().unwrap()
    }

    /// Creates the tables, and a user with the documented rights on them. `more` ends the `CREATE USER`.
    fn make_user(&self, user: &str, more: &str) {
        self.client();
        self.names();
        self.execute(&format!("CREATE USER {user} {more}"));
        Self::TABLES.iter().for_each(|table| self.grant(DOCUMENTED, table, user));
    }

    fn grant(&self, rights: &str, table: &str, user: &str) {
        self.execute(&format!("GRANT {rights} ON {}.{table} TO {user}", Self::SCHEMA));
    }

    fn sessions_of(&self, user: &str) -> u64 {
        self.count_rows(&format!("{} = '{user}'", Self::SESSIONS_OF))
    }

    fn end_sessions(&self) {
        self.end_sessions_of("admin");
    }

    /// Locks the only row of `rows` (a table and perhaps WHERE), in a transaction of the returned connection.
    fn lock_rows(&self, rows: &str) -> Self::Connection {
        let mut connection = self.connect();
        let locked = Self::ask_on(&mut connection, &format!("BEGIN; SELECT 1 FROM {rows} FOR UPDATE"));
        assert_eq!(locked.len(), 1);
        connection
    }

    fn lock_row(&self, name: &str) -> Self::Connection {
        self.lock_rows(&format!("leasehold_locks WHERE {}", Self::has_name(name)))
    }

    /// The table of lock names, for locks in transactions, that tests share.
    fn names(&self) -> Self::Names {
        self.names_in("leasehold_names")
    }

    /// A separate table of names, for tests in which the lock on a gap would delay other tests.
    fn names_apart(&self) -> Self::Names {
        self.names_in(&fresh("names").replace('-', "_"))
    }

    fn names_in(&self, table: &str) -> Self::Names {
        let names = Self::new_names(table).unwrap();
        Self::create_names(&names, &mut self.connect()).unwrap();
        names
    }
}

/// Defines the tests `file::test::mysql` and `file::test::postgres`. In the body, `D` is the database's type.
macro_rules! on_databases {
    ($name:ident, $server:expr, |$given:pat_param| $body:block) => {
        fn $name<D: crate::databases::Database>() {
            let Some($given) = $server else { return };
            $body
        }
        on_databases!(@tests $name {});
    };
    (@tests $name:ident { $($more:item)? }) => {
        mod $name {
            #[cfg(feature = "mysql")]
            #[test]
            fn mysql() {
                super::$name::<crate::support::mysql::MysqlServer>();
            }
            #[cfg(feature = "postgres")]
            #[test]
            fn postgres() {
                super::$name::<crate::support::postgres::PostgresServer>();
            }
            $($more)?
        }
    };
}

/// As [`on_databases`], also on SQLite. In the body, `R` is the store's type.
macro_rules! on_rows {
    ($name:ident, |$server:ident| $body:block) => {
        fn $name<R: Rows>() {
            R::with_one(|$server| $body);
        }
        on_databases!(@tests $name {
            #[cfg(all(feature = "postgres", feature = "sqlite"))]
            #[test]
            fn sqlite() {
                super::$name::<crate::sqlite::File>();
            }
        });
    };
}

/// Defines the methods of [`Database`] whose text is the same for both servers' drivers.
macro_rules! same_for_each_database {
    ($server:ident, $connection:ty) => {
        type Connection = $connection;
        type Transaction<'c> = Transaction<'c>;
        type Names = NameTable;
        type TxLock = TxLock;

        fn start_with(settings: &[&str]) -> Option<$server> {
            $server::start_with(settings)
        }
        fn shared() -> Option<&'static $server> {
            static SERVER: std::sync::OnceLock<Option<$server>> = std::sync::OnceLock::new();
            SERVER.get_or_init($server::start).as_ref()
        }
        fn url_as(&self, user: &str) -> String {
            self.url_as(user)
        }
        fn start_tls() -> Option<$server> {
            $server::start_tls()
        }
        fn port(&self) -> u16 {
            self.port()
        }
        fn certificates(&self) -> crate::support::server::Certificates {
            self.certificates()
        }
        fn kill(&mut self) {
            self.kill();
        }
        fn restart(&mut self) {
            self.restart();
        }
        fn connect(&self) -> $connection {
            self.admin()
        }
        fn connect_as(&self, user: &str) -> Option<$connection> {
            self.try_connect(user).ok()
        }
        fn commit(transaction: Transaction<'_>) -> bool {
            transaction.commit().is_ok()
        }
        fn rollback(transaction: Transaction<'_>) {
            transaction.rollback().unwrap();
        }
        fn new_names(table: &str) -> Result<NameTable> {
            NameTable::new(table)
        }
        fn create_names(names: &NameTable, connection: &mut $connection) -> Result<()> {
            names.create(connection)
        }
        fn check(lock: &TxLock, transaction: &mut Transaction<'_>) -> Result<()> {
            lock.check(transaction)
        }
        fn name_of(lock: &TxLock) -> &str {
            lock.name()
        }
    };
}

pub(crate) fn connect_session(url: &str, lease: Duration) -> Result<LockClient> {
    LockClient::builder().url(url).lease(lease).session_locks().build()
}

on_databases!(a_held_lock_never_delays_a_lock_of_another_name, D::shared(), |server| {
    other_names_are_not_delayed(|| server.client());
    other_names_are_not_delayed(|| connect_session(&server.url(), LEASE).unwrap());
});

on_databases!(a_lock_in_a_transaction_delays_no_other_lock_that_has_a_row, D::shared(), |server| {
    let names = server.names();
    for &advisory in D::ADVISORY {
        let tag = fresh("other");
        let (mut one, mut two, mut three) = (server.connect(), server.connect(), server.connect());
        let other = |kind, number| format!("{tag}-{kind}-{}", number % OTHER_NAMES);
        if server.first_use_locks_neighbours() {
            let mut first = D::begin(&mut two);
            for name in (0..OTHER_NAMES).map(|number| other("beside", number)).chain([tag.clone()]) {
                assert!(D::lock(&names, advisory, &mut first, &name, LONG).unwrap().is_some());
            }
            assert!(D::commit(first));
        }
        let mut visit = |kind, round| {
            let start = now();
            let mut visiting = D::begin(&mut two);
            assert!(D::lock(&names, advisory, &mut visiting, &other(kind, round), LONG).unwrap().is_some());
            assert!(D::commit(visiting));
            own_time_since(start)
        };
        let alone = (0..OTHER_VISITS).map(|round| visit("alone", round)).collect();
        let mut holding = D::begin(&mut one);
        let _held = D::lock(&names, advisory, &mut holding, &tag, ms(0)).unwrap().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut waiting = D::begin(&mut three);
                D::lock(&names, advisory, &mut waiting, &tag, LONG).map(|held| held.is_some())
            });
            none_was_delayed(alone, (0..OTHER_VISITS).map(|round| visit("beside", round)).collect());
            assert!(D::commit(holding));
            assert!(waiter.join().unwrap().unwrap());
        });
    }
});

on_rows!(a_hold_survives_a_dropped_directory_table, |server| {
    let client = server.builder().table("alone").lease(RENEWED).build().unwrap();
    server.execute("DROP TABLE alone_clients");
    let held = client.get_lock("a").acquire().unwrap();
    // Meanwhile the hold is renewed several times, and several writes of the directory entry fail.
    throughout(RENEWED + ms(200), || held.check().is_ok());
    let other = server.builder().table("alone").directory(false).build().unwrap();
    server.execute("DROP TABLE alone_clients");
    let seen = other.inspect("a").unwrap();
    let place = seen.holders[0].location.as_ref().unwrap();
    assert_eq!((place.pid, &*place.program), (std::process::id(), ""));
    fails(other.clients().next().unwrap(), ErrorKind::Unsupported);
    held.unlock().unwrap();
});

on_rows!(a_client_removes_killed_clients_from_the_directory, |server| {
    let client = server.builder().table("tidied").build().unwrap();
    let killed = "INSERT INTO tidied_clients VALUES ('8a3f0e0e-0000-8000-8000-000000000001', '{}', ";
    server.execute(&format!("{killed}{})", R::EXPIRED));
    let held = client.get_lock("a").acquire().unwrap();
    let listed = || client.clients().map(|one| one.unwrap().id).collect::<Vec<_>>();
    assert!(eventually(LONG, || listed() == [client.id()]));
    assert_eq!(server.count_rows("tidied_clients"), 1);
    held.unlock().unwrap();
    client.shutdown().unwrap();
    assert_eq!(server.count_rows("tidied_clients"), 0);
});

on_rows!(a_row_names_its_holder_and_sweep_deletes_free_rows, |server| {
    let client = server.builder().table("swept").build().unwrap();
    let held = client.get_fenced_lock("held").acquire().unwrap();
    let first = client.get_fenced_lock("free").acquire().unwrap();
    let fence = first.fencing_token();
    first.unlock().unwrap();
    let row = "SELECT owner, holds, pid, thread, host FROM swept WHERE";
    let row = &server.ask(&format!("{row} {}", R::has_name("held")))[0];
    let (owner, pid) = (held.owner().to_string(), std::process::id());
    assert_eq!(row[..4], [&owner, "1", &pid.to_string(), &crate::support::shown_thread()]);
    assert!(!row[4].is_empty());
    assert_eq!(client.sweep(Duration::from_secs(3_600)).unwrap(), 0);
    assert_eq!(server.count_rows("swept"), 2);
    assert!(eventually(LONG, || client.sweep(ms(1)).unwrap() > 0));
    assert_eq!(server.count_rows("swept"), 1, "a lock that is held is not forgotten");
    let next = client.get_fenced_lock("free").acquire().unwrap();
    assert!(next.fencing_token() > fence, "the fencing token did not grow");
    held.unlock().unwrap();
});

on_databases!(a_row_whose_lease_expired_is_not_renewed, D::shared(), |server| {
    let client = server.options().table("ended").lease(Duration::from_secs(3)).build().unwrap();
    let held = client.get_lock("held").acquire().unwrap();
    let lost = held.lost();
    server.execute("UPDATE ended SET expires_at = '2000-01-01 00:00:00'");
    let loss = receive(&lost, LONG).expect("the renewal restored an expired row");
    assert_eq!(loss.reason, LossReason::Gone);
    assert!(client.get_lock("held").try_lock().unwrap(), "the lock is free");
});

on_databases!(a_killed_server_loses_no_lock_and_grants_none_twice, D::start(), |mut server| {
    let (client, rival) = (server.client(), server.client());
    let held = client.get_fenced_lock("held").acquire().unwrap();
    let waiting = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| rival.get_lock("held").try_lock_for(LONG));
        server.kill();
        let error = fails(client.get_lock("a").try_lock(), ErrorKind::Unreachable);
        assert!(error.is_retryable());
        held.check().unwrap();
        server.restart();
        assert!(
            client.get_lock("a").try_lock_for(D::RECONNECTS_WITHIN).unwrap(),
            "the next call connects again"
        );
        client.get_lock("a").unlock().unwrap();
        held.check().unwrap();
        held.unlock().unwrap();
        waiter.join().unwrap()
    });
    assert!(waiting.unwrap(), "the waiter did not acquire the lock");
});

// Another transaction locks the row of one lock, and calls that wait for this row use up the pool. Renewals
// have a connection outside the pool, so the hold of another lock lasts.
on_databases!(holds_are_renewed_although_the_connection_pool_is_exhausted, D::shared(), |server| {
    let [command_timeout, lease, calls_end_within] = D::EXHAUSTED;
    let options = || server.options().pool_size(1).command_timeout(command_timeout).retry_timeout(ms(100));
    let client = connected(|| options().lease(lease).build());
    let (kept, stuck) = (fresh("kept"), fresh("stuck"));
    client.get_lock(&stuck).acquire().unwrap().unlock().unwrap();
    let begun = now();
    let held = client.get_lock(&kept).acquire().unwrap();
    let mut locking = server.lock_row(&stuck);
    std::thread::scope(|scope| {
        let start = now();
        let calls: Vec<_> = (0..3)
            .map(|_| {
                let lock = client.get_lock(&stuck);
                scope.spawn(move || lock.try_lock())
            })
            .collect();
        for call in calls {
            let error = fails(call.join().unwrap(), ErrorKind::TimedOut);
            assert!(error.is_retryable());
        }
        assert!(own_time_since(start) < calls_end_within, "{:?}", start.elapsed());
        while start.elapsed() < ms(6_000) && held.check().is_ok() {
            assert!(client.get_lock(&stuck).try_lock().is_err());
        }
    });
    D::ask_on(&mut locking, "ROLLBACK");
    if let Err(error) = held.unlock() {
        assert!(stalled_since(begun) > lease / 2, "{error}");
    }
    assert!(client.get_lock(&stuck).try_lock_for(LONG).unwrap());
    client.get_lock(&stuck).unlock().unwrap();
});

on_databases!(a_locked_row_delays_no_renewal_of_another_lock, D::shared(), |server| {
    let lease = ms(3_000);
    let client = connected(|| server.options().lease(lease).build());
    let names: Vec<_> = (0..8).map(|_| fresh("beside")).collect();
    let begun = now();
    let held: Vec<_> = names.iter().map(|name| client.get_lock(name).acquire_owned().unwrap()).collect();
    let _locking = server.lock_row(&names[0]);
    assert!(
        eventually(LONG, || held[0].check().is_err()),
        "the hold is lost, because no request can renew it"
    );
    throughout(lease * 2, || {
        for one in &held[1..] {
            if let Err(error) = one.check() {
                assert!(stalled_since(begun) > lease / 2, "{error}");
            }
        }
        true
    });
});

on_databases!(a_session_lock_is_reentrant_exclusive_and_inspectable, D::shared(), |server| {
    let [client, rival] = [(); 2].map(|()| connect_session(&server.url(), LEASE).unwrap());
    let name = fresh("session");
    let (lock, other) = (client.get_lock(&name), rival.get_lock(&name));
    lock.lock().unwrap();
    lock.lock().unwrap();
    assert_eq!(lock.hold_count().unwrap(), 2);
    assert!(!other.try_lock().unwrap());
    assert!(
        rival.get_lock(name.to_uppercase()).try_lock().unwrap(),
        "upper and lower case are the same name"
    );
    rival.get_lock(name.to_uppercase()).unlock().unwrap();
    std::thread::scope(|scope| assert!(!scope.spawn(|| lock.try_lock().unwrap()).join().unwrap()));
    let error = other.unlock().unwrap_err();
    let Some(NotHeld::HeldBy(holder)) = error.not_held() else { panic!("{error:?}") };
    assert!(D::names_session(holder, &client), "{error:?}");
    lock.unlock().unwrap();
    assert!(!other.try_lock().unwrap());
    lock.unlock().unwrap();
    assert!(other.try_lock().unwrap());
    other.unlock().unwrap();
    for refused in [client.get_token_lock(&name).lock(), client.get_fenced_lock(&name).lock()] {
        fails(refused, ErrorKind::Unsupported);
    }
});

on_databases!(a_session_lock_lasts_as_long_as_its_session, D::start(), |server| {
    let client = connect_session(&server.url(), RENEWED).unwrap();
    let rival = connect_session(&server.url(), LEASE).unwrap();
    let held = client.get_lock("held").acquire().unwrap();
    throughout(RENEWED + ms(2_000), || held.check().is_ok() && !rival.get_lock("held").try_lock().unwrap());
    let lost = held.lost();
    server.end_sessions();
    lost.recv_timeout(LONG).unwrap();
    assert_eq!(held.state(), HoldState::Lost);
    assert!(rival.get_lock("held").try_lock_for(LONG).unwrap());
    assert!(held.unlock().unwrap_err().is_lost());
    assert!(
        rival.get_lock("held").is_held_by_current_thread().unwrap(),
        "a lost hold released another's lock"
    );
    rival.get_lock("held").unlock().unwrap();
    let held = client.get_lock("held").acquire().unwrap();
    assert!(rival.get_lock("held").force_unlock().unwrap());
    assert!(eventually(LONG, || !rival.get_lock("held").is_locked().unwrap()));
    assert!(!rival.get_lock("held").force_unlock().unwrap());
    assert!(held.unlock().unwrap_err().is_lost());
});

// A session lock ends only with its session, so the server ends a session that idled for a whole lease.
on_databases!(the_server_ends_a_session_that_is_idle_for_a_whole_lease, D::shared(), |server| {
    let [client, rival] = [(); 2].map(|()| connect_session(&server.url(), LEASE).unwrap());
    let lock = client.get_lock(fresh("fixed"));
    let asked = now();
    lock.lock_with_lease(ms(700)).unwrap();
    let start = now();
    assert!(rival.get_lock(lock.name()).try_lock_for(LONG).unwrap());
    assert!(asked.elapsed() >= ms(650), "{:?}", asked.elapsed());
    assert!(own_time_since(start) < D::IDLE_SESSION_ENDS_WITHIN, "{:?}", start.elapsed());
    assert!(lock.unlock().unwrap_err().is_lost());
    rival.get_lock(lock.name()).unlock().unwrap();
});

on_databases!(a_lock_in_a_transaction_lasts_until_the_transaction_ends, D::shared(), |server| {
    let names = server.names_apart();
    for &advisory in D::ADVISORY {
        let (name, other) = (fresh("together"), fresh("other"));
        let lock = |transaction: &mut D::Transaction<'_>, name: &str, wait| {
            D::lock(&names, advisory, transaction, name, wait)
        };
        let (mut one, mut two) = (server.connect(), server.connect());
        let mut before = D::begin(&mut one);
        assert!(lock(&mut before, &other, ms(0)).unwrap().is_some());
        assert!(D::commit(before));
        // Neither transaction finds a row for this new name, and still only one of them gets the lock.
        let mut first = D::begin(&mut one);
        let held = lock(&mut first, &name, ms(0)).unwrap().unwrap();
        assert_eq!(D::name_of(&held), name);
        assert!(
            lock(&mut first, &name, ms(0)).unwrap().is_some(),
            "the same transaction could not lock again"
        );
        let mut second = D::begin(&mut two);
        let setting = D::wait_setting(&mut second);
        assert!(lock(&mut second, &name, ms(0)).unwrap().is_none());
        let start = now();
        assert!(lock(&mut second, &name, ms(200)).unwrap().is_none());
        assert!(start.elapsed() >= ms(190), "{:?}", start.elapsed());
        assert!(own_time_since(start) < D::SHORT_WAIT_ENDS_WITHIN, "{:?}", start.elapsed());
        assert_eq!(
            D::wait_setting(&mut second),
            setting,
            "the failed wait changed the transaction's settings"
        );
        D::check(&held, &mut first).unwrap();
        assert!(D::commit(first));
        let held = lock(&mut second, &name, ms(5_000)).unwrap().unwrap();
        D::check(&held, &mut second).unwrap();
        D::rollback(second);
        let mut third = D::begin(&mut one);
        assert!(lock(&mut third, &name, ms(0)).unwrap().is_some());
        let mut fourth = D::begin(&mut two);
        let start = now();
        assert!(lock(&mut fourth, &other, ms(5_000)).unwrap().is_some());
        assert!(own_time_since(start) < ms(500), "{:?}", start.elapsed());
    }
});

on_databases!(no_isolation_level_loses_increments_made_under_the_lock, D::shared(), |server| {
    const ROUNDS: usize = 25;
    let (names, name) = (&server.names(), &fresh("counted"));
    server.execute("CREATE TABLE counter (number integer NOT NULL)");
    server.execute("INSERT INTO counter VALUES (0)");
    thread::scope(|scope| {
        for level in 0..3 {
            scope.spawn(move || {
                let mut connection = server.connect();
                (0..ROUNDS).for_each(|_| while !server.count_once(&mut connection, level, names, name) {});
            });
        }
    });
    let left = format!("DELETE FROM counter WHERE number = {}", 3 * ROUNDS);
    server.execute(&left);
    assert_eq!(server.count_rows("counter"), 0, "a step was lost");
});

on_databases!(a_database_deadlock_has_its_own_error_kind, D::shared(), |server| {
    let names = server.names();
    let (a, b) = (fresh("a"), fresh("b"));
    for &advisory in D::ADVISORY {
        let barrier = Barrier::new(2);
        let both = |first: &str, second: &str| -> std::result::Result<(), Error> {
            let mut connection = server.connect();
            let mut transaction = D::begin(&mut connection);
            let one = D::lock(&names, advisory, &mut transaction, first, LONG)?.unwrap();
            barrier.wait();
            if let Err(error) = D::lock(&names, advisory, &mut transaction, second, LONG) {
                if D::DEADLOCK_ENDS_TRANSACTION {
                    assert!(
                        D::check(&one, &mut transaction).unwrap_err().is_lost(),
                        "the transaction has ended"
                    );
                }
                return Err(error);
            }
            assert!(D::commit(transaction));
            Ok(())
        };
        let ended = std::thread::scope(|scope| {
            let one = scope.spawn(|| both(&a, &b));
            let two = scope.spawn(|| both(&b, &a));
            [one.join().unwrap(), two.join().unwrap()]
        });
        let failed: Vec<_> = ended.into_iter().filter_map(std::result::Result::err).collect();
        assert_eq!(failed.len(), 1, "one goes on, one fails: {failed:?}");
        assert_eq!(failed[0].kind(), ErrorKind::Deadlock, "{}", failed[0]);
    }
});

on_databases!(unusable_names_of_locks_in_transactions_are_refused, D::shared(), |server| {
    assert!(D::new_names("a; b").is_err_and(|error| error.kind() == ErrorKind::InvalidInput));
    let names = server.names_apart();
    let mut connection = server.connect();
    let mut transaction = D::begin(&mut connection);
    for &advisory in D::ADVISORY {
        for bad in [String::new(), "x".repeat(MAX_NAME_LEN + 1)] {
            let refused = D::lock(&names, advisory, &mut transaction, &bad, ms(0));
            assert!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidInput));
        }
    }
    let longest = "x".repeat(MAX_NAME_LEN);
    for name in ["a", "A", "nul\0", "'; DROP TABLE leasehold_names", &longest] {
        assert!(D::lock(&names, false, &mut transaction, name, ms(0)).unwrap().is_some());
    }
});

on_databases!(a_lock_in_a_server_ended_transaction_is_lost, D::start(), |server| {
    let names = server.names();
    for is_killed in [false, true] {
        let (mut one, mut two, name) = (server.connect(), None, fresh("ended"));
        if !is_killed {
            D::ask_on(&mut one, D::END_IDLE_TRANSACTIONS);
        }
        let mut first = D::begin(&mut one);
        let held = D::lock(&names, false, &mut first, &name, ms(0)).unwrap().unwrap();
        if is_killed {
            server.end_sessions();
        }
        let mut second = D::begin(two.insert(server.connect()));
        assert!(D::lock(&names, false, &mut second, &name, LONG).unwrap().is_some());
        assert!(fails(D::check(&held, &mut first), ErrorKind::Lost).is_lost());
        for &advisory in D::ADVISORY {
            for name in [&name, "other"] {
                assert!(
                    D::lock(&names, advisory, &mut first, name, ms(0)).is_err_and(|error| error.is_lost())
                );
            }
        }
        assert!(!D::commit(first));
    }
});

on_databases!(connections_can_create_the_same_table_of_lock_names_at_once, D::shared(), |server| {
    for _ in 0..5 {
        let (table, start) = (fresh("names").replace('-', "_"), Barrier::new(8));
        let (names, connections) = (D::new_names(&table).unwrap(), (0..8).map(|_| server.connect()));
        let connections: Vec<_> = connections.collect(); // a thread that fails would block all at the barrier
        thread::scope(|scope| {
            for mut connection in connections {
                let (names, start) = (&names, &start);
                scope.spawn(move || {
                    start.wait();
                    D::create_names(names, &mut connection).unwrap();
                });
            }
        });
    }
});

// The test stops the server's process for the client. The call fails in time, and the client undoes the grant
// that the process may make later.
on_databases!(tries_on_a_frozen_server_fail_after_one_command_timeout, D::start(), |server| {
    // Without directory entries, the next statement of the stopped process is the try.
    let options = || server.options().pool_size(1).directory(false);
    let client = connected(|| options().command_timeout(ms(1_500)).build());
    // The first uses also prepare statements. After them a try can be one request (`A_TRY_IS_ONE_REQUEST`).
    for _ in 0..2 {
        assert!(client.get_lock("a").try_lock().unwrap());
        client.get_lock("a").unlock().unwrap();
    }
    let process = server.serving_process();
    crate::support::signal(process, "STOP");
    let start = now();
    let error = fails(client.get_lock("a").try_lock(), ErrorKind::TimedOut);
    assert_eq!(error.outcome_unknown(), D::A_TRY_IS_ONE_REQUEST, "{error:?}");
    assert!(own_time_since(start) < ms(3_000), "{:?}", start.elapsed());
    crate::support::signal(process, "CONT");
    assert!(client.get_lock("a").try_lock_for(LONG).unwrap());
    client.get_lock("a").unlock().unwrap();
});

// No server time-out ends a commit that waits for a replica, so the client must limit its waiting sessions.
on_databases!(sessions_that_await_a_missing_replica_do_not_accumulate, D::start_with(D::LOGGED), |server| {
    server.make_user("app", "");
    let options = || server.options_as("app").pool_size(2);
    let client = connected(|| options().command_timeout(ms(300)).retry_timeout(ms(100)).build());
    if !server.await_replicas(true) {
        return; // without these settings, commits cannot be made to wait
    }
    let mut most = 0;
    assert!(eventually(LONG, || client.get_lock(fresh("doubt")).try_lock().is_err()));
    for _ in 0..12 {
        assert!(client.get_lock(fresh("doubt")).try_lock().is_err());
        most = most.max(server.sessions_of("app"));
    }
    server.await_replicas(false);
    // Without a limit there would be more than 12 sessions, since each of the 12 tries would leave one.
    assert!(most <= 6, "{most} sessions");
    assert!(eventually(LONG, || client.get_lock("a").try_lock().unwrap_or(false)));
});

on_databases!(wrong_settings_fail_with_specific_errors, D::start(), |server| {
    let (url, at) = (server.url(), |url: &str| LockClient::builder().url(url));
    fails_saying(at(&url).build(), ErrorKind::Unsupported, "create_schema");
    fails(at(&url).database(1).build(), ErrorKind::InvalidInput);
    let first = server.client();
    server.make_user("secretive", D::WITH_PASSWORD);
    let (before, database) = url.rsplit_once('/').unwrap();
    let scheme = before.split_once("://").unwrap().0;
    let wrong = [
        (server.url_as("secretive"), ErrorKind::Authentication),
        (server.url_as("secretive:S3CR3T-not"), ErrorKind::Authentication),
        (format!("{before}/none"), ErrorKind::InvalidInput),
        (format!("{scheme}://127.0.0.1:1/x"), ErrorKind::Unreachable),
        (format!("{scheme}://"), ErrorKind::InvalidInput),
        (format!("{scheme}://a:S3CR3T@host:port/{database}"), ErrorKind::InvalidInput),
    ];
    let of_this = D::WRONG_URLS.iter().map(|(end, kind)| (format!("{before}{end}"), *kind));
    for (url, expected) in wrong.into_iter().chain(of_this) {
        let error = fails(at(&url).build(), expected);
        assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{error:?}");
    }
    let by_option = server.options_as("secretive").password("S3CR3T").build().unwrap();
    let by_url = server.url_as("secretive:S3CR3T").replace(&format!("{scheme}:"), &format!("{}:", D::ALIAS));
    let by_url = at(&by_url).build().unwrap();
    assert!(by_option.get_lock("a").try_lock().unwrap());
    assert!(!by_url.get_lock("a").try_lock().unwrap());
    by_option.get_lock("a").unlock().unwrap();
    by_option.sweep(ms(1)).unwrap();
    server.set_read_only(true);
    let late = at(&url).build();
    assert_eq!(late.is_err(), D::CONNECT_NEEDS_WRITES, "{late:?}");
    fails(late.and_then(|late| late.get_lock("a").try_lock()), ErrorKind::ReadOnly);
    fails(by_option.get_lock("a").try_lock(), ErrorKind::ReadOnly);
    server.set_read_only(false);
    server.execute("DROP TABLE leasehold_locks");
    fails(first.get_lock("a").try_lock(), ErrorKind::Unsupported);
});

// Connections of earlier clients may end meanwhile, so the test opens more until a client is refused.
on_databases!(exceeding_max_connections_fails_as_busy, D::start_with(D::FEW_CONNECTIONS), |server| {
    server.client();
    let (mut taken, mut said) = (Vec::new(), None);
    let is_busy = eventually(LONG, || {
        taken.extend((0..20).map_while(|_| server.connect_as("admin")));
        said = LockClient::connect(server.url()).err();
        said.as_ref().is_some_and(|error| error.kind() == ErrorKind::Busy && error.is_retryable())
    });
    assert!(is_busy, "{said:?}");
    drop(taken);
    assert!(eventually(LONG, || LockClient::connect(server.url()).is_ok()));
});

on_databases!(with_existing_tables_a_user_needs_no_create_right, D::start(), |server| {
    server.make_user("few", "");
    server.execute(D::REVOKE_CREATE);
    let client = server.options_as("few").create_schema(true).build().unwrap();
    client.get_lock("a").acquire().unwrap().unlock().unwrap();
    assert_eq!(client.ping().unwrap().table, Some(format!("{}.leasehold_locks", D::SCHEMA)));
    let names = D::new_names("leasehold_names").unwrap();
    D::create_names(&names, &mut server.connect_as("few").unwrap()).unwrap();
});

on_databases!(an_unusable_table_is_refused_at_connect, D::start(), |server| {
    let build = || server.options().table("refuses").build();
    build().unwrap();
    server.execute(D::REFUSE_FREE_ROWS);
    let error = fails_saying(build(), ErrorKind::Refused, "no free rows here");
    assert!(error.to_string().contains(D::REFUSES_IN_ERRORS), "{error}");
    server.execute(D::ALLOW_FREE_ROWS);
    assert_eq!(server.count_rows("refuses"), 0, "the check left rows");
    server.execute(D::NARROW);
    fails(build(), ErrorKind::Refused);
    server.execute("ALTER TABLE refuses DROP fence");
    fails(build(), ErrorKind::Unsupported);
    assert_eq!(server.count_rows("refuses"), 0, "the check left rows");
});
