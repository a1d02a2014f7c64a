//! Tests for PostgreSQL and MySQL: restarts, ended sessions, lock rows, session locks, and locks in the
//! caller's transaction. [`Database`] has the differences.

use std::sync::Barrier;

use leasehold::{Error, MAX_NAME_LEN, Result};

use crate::support::prelude::*;
use crate::support::processes::{
    LEASE, OTHER_NAMES, OTHER_VISITS, none_was_delayed, other_names_are_not_delayed,
};

/// A store that keeps its locks as rows of a table.
pub(crate) trait Rows {
    /// The last columns of the directory entry of a client that ended long ago.
    const EXPIRED: &'static str;

    /// Runs the test on a file, or on a server that it shares with tests that do not disturb it.
    fn with_one(test: impl FnOnce(&Self));
    fn builder(&self) -> ClientBuilder;
    /// The owner, hold count, process, host and thread in a lock's row.
    fn row(&self, table: &str, name: &str) -> (String, u32, u32, String, String);
    fn count_rows(&self, table: &str) -> u64;
    fn execute(&self, statement: &str);
}

macro_rules! rows_tests {
    ($rows:ty) => {
        database_tests!(databases on $rows:
            locks_work_without_a_table_of_clients,
            the_next_client_removes_killed_clients_entries,
            rows_show_holders_and_free_rows_are_swept
        );
    };
}

/// A database server: its connections and transactions, and its differences from the other one.
pub(crate) trait Database: Rows + Sized + Sync + 'static {
    type Connection: Send;
    type Transaction<'c>;
    type Names: Sync;
    type TxLock;

    /// Whether names can be locked by advisory locks instead of the rows of a table.
    const ADVISORY: &'static [bool];
    /// The time after a restart within which a client is connected again.
    const RECONNECTS_WITHIN: Duration;
    /// The time within which a 200 ms wait in a transaction ends.
    const SHORT_WAIT_ENDS_WITHIN: Duration;
    /// The time within which the server ends an unused session with a lease of 700 ms.
    const IDLE_SESSION_ENDS_WITHIN: Duration;
    /// Whether a deadlock error ends the whole transaction.
    const DEADLOCK_ENDS_TRANSACTION: bool;
    const EXHAUSTED: Exhausted;

    fn start() -> Option<Self>;
    /// The server that tests share if they do not disturb it.
    fn shared() -> Option<&'static Self>;
    fn port(&self) -> u16;
    /// The URL for a user, given as `name` or `name:password`.
    fn url_as(&self, user: &str) -> String;
    fn kill(&mut self);
    fn restart(&mut self);
    fn connect(&self) -> Self::Connection;
    fn end_sessions(&self);
    fn names_session(holder: &str, client: &LockClient) -> bool;

    fn begin(connection: &mut Self::Connection) -> Self::Transaction<'_>;
    fn commit(transaction: Self::Transaction<'_>);
    fn rollback(transaction: Self::Transaction<'_>);
    fn lock_row(transaction: &mut Self::Transaction<'_>, name: &str);
    /// The setting that a wait in a transaction changes for its duration.
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
    fn create_names(&self, names: &Self::Names);
    /// Whether the first use of a name also locks the gap beside it, where another name may be awaited.
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
        LockClient::builder().url(self.url()).create_schema(true)
    }

    fn client(&self) -> LockClient {
        self.options().build().unwrap()
    }

    /// The table of names that tests share.
    fn names(&self) -> Self::Names {
        let names = Self::new_names("leasehold_names").unwrap();
        self.create_names(&names);
        names
    }

    /// A separate table of names, for tests in which the lock on a gap would delay other tests.
    fn names_apart(&self) -> Self::Names {
        let names = Self::new_names(&fresh("names").replace('-', "_")).unwrap();
        self.create_names(&names);
        names
    }
}

/// The numbers of [`an_exhausted_pool_loses_no_lease`].
pub(crate) struct Exhausted {
    pub(crate) command_timeout: Duration,
    pub(crate) lease: Duration,
    pub(crate) calls_end_within: Duration,
    pub(crate) lasts: Duration,
}

/// Defines the methods of [`Database`] whose text is the same for both servers' drivers.
macro_rules! same_for_each_database {
    ($server:ident, $connection:ty) => {
        type Connection = $connection;
        type Transaction<'c> = Transaction<'c>;
        type Names = NameTable;
        type TxLock = TxLock;

        fn start() -> Option<$server> {
            $server::start()
        }
        fn shared() -> Option<&'static $server> {
            static SERVER: std::sync::OnceLock<Option<$server>> = std::sync::OnceLock::new();
            SERVER.get_or_init($server::start).as_ref()
        }
        fn url_as(&self, user: &str) -> String {
            self.url_as(user)
        }
        fn port(&self) -> u16 {
            self.port()
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
        fn commit(transaction: Transaction<'_>) {
            transaction.commit().unwrap();
        }
        fn rollback(transaction: Transaction<'_>) {
            transaction.rollback().unwrap();
        }
        fn new_names(table: &str) -> Result<NameTable> {
            NameTable::new(table)
        }
        fn create_names(&self, names: &NameTable) {
            names.create(&mut self.admin()).unwrap();
        }
        fn check(lock: &TxLock, transaction: &mut Transaction<'_>) -> Result<()> {
            lock.check(transaction)
        }
        fn name_of(lock: &TxLock) -> &str {
            lock.name()
        }
    };
}

macro_rules! database_tests {
    ($database:ty) => {
        rows_tests!($database);
        database_tests!(databases on $database:
            a_held_name_never_delays_another_name,
            a_transaction_on_one_name_never_delays_another,
            a_row_whose_lease_expired_is_not_renewed,
            a_killed_server_loses_no_lock_and_grants_none_twice,
            an_exhausted_pool_loses_no_lease,
            a_locked_row_delays_no_other_renewal,
            a_session_lock_is_reentrant_exclusive_and_inspectable,
            a_session_lock_lasts_as_long_as_its_session,
            a_session_ends_after_idling_for_its_lease,
            lock_and_data_are_committed_together,
            transactions_count_exactly_at_every_isolation_level,
            a_database_deadlock_has_its_own_error_kind,
            names_that_cannot_be_used_are_refused
        );
    };
    ($module:ident on $database:ty: $($name:ident),+) => {
        $(
            #[test]
            fn $name() {
                crate::$module::$name::<$database>();
            }
        )+
    };
}

pub(crate) fn connect_session(url: &str, lease: Duration) -> Result<LockClient> {
    LockClient::builder().url(url).lease(lease).session_locks().build()
}

#[track_caller]
pub(crate) fn urls_are_refused(urls: &[(String, ErrorKind)]) {
    for (url, expected) in urls {
        let error = LockClient::builder().url(url).build().unwrap_err();
        assert_eq!(error.kind(), *expected, "{url}: {error:?}");
        assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{error:?}");
    }
}

/// When no connection is left, a client is refused as busy. Earlier clients' connections may end meanwhile.
#[track_caller]
pub(crate) fn too_many_connections_are_busy<C>(url: &str, mut connect: impl FnMut() -> Option<C>) {
    let (mut taken, mut said) = (Vec::new(), None);
    let is_busy = eventually(LONG, || {
        taken.extend((0..20).map_while(|_| connect()));
        said = LockClient::connect(url).err();
        said.as_ref().is_some_and(|error| error.kind() == ErrorKind::Busy && error.is_retryable())
    });
    assert!(is_busy, "{said:?}");
}

pub(crate) fn a_held_name_never_delays_another_name<D: Database>() {
    let Some(server) = D::shared() else { return };
    other_names_are_not_delayed(|| server.client());
    other_names_are_not_delayed(|| connect_session(&server.url(), LEASE).unwrap());
}

pub(crate) fn a_transaction_on_one_name_never_delays_another<D: Database>() {
    let Some(server) = D::shared() else { return };
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
            D::commit(first);
        }
        let mut visit = |kind, round| {
            let start = now();
            let mut visiting = D::begin(&mut two);
            assert!(D::lock(&names, advisory, &mut visiting, &other(kind, round), LONG).unwrap().is_some());
            D::commit(visiting);
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
            D::commit(holding);
            assert!(waiter.join().unwrap().unwrap());
        });
    }
}

pub(crate) fn locks_work_without_a_table_of_clients<R: Rows>() {
    R::with_one(|server| {
        let client = server.builder().table("alone").lease(RENEWED).build().unwrap();
        server.execute("DROP TABLE alone_clients");
        let held = client.get_lock("a").acquire().unwrap();
        // Within this time several renewals run, and several writes of the directory entry fail.
        throughout(RENEWED + ms(200), || held.check().is_ok());
        let other = server.builder().table("alone").directory(false).build().unwrap();
        server.execute("DROP TABLE alone_clients");
        let seen = other.inspect("a").unwrap();
        let place = seen.holders[0].location.as_ref().unwrap();
        assert_eq!((place.pid, &*place.program), (std::process::id(), ""));
        fails(other.clients().next().unwrap(), ErrorKind::Unsupported);
        held.unlock().unwrap();
    });
}

pub(crate) fn the_next_client_removes_killed_clients_entries<R: Rows>() {
    R::with_one(|server| {
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
}

pub(crate) fn rows_show_holders_and_free_rows_are_swept<R: Rows>() {
    R::with_one(|server| {
        let client = server.builder().table("swept").build().unwrap();
        let held = client.get_fenced_lock("held").acquire().unwrap();
        let first = client.get_fenced_lock("free").acquire().unwrap();
        let fence = first.fencing_token();
        first.unlock().unwrap();
        let (owner, holds, pid, host, thread) = server.row("swept", "held");
        assert_eq!((owner, holds, pid), (held.owner().to_string(), 1, std::process::id()));
        assert!(!host.is_empty());
        assert_eq!(Some(thread.as_str()), std::thread::current().name());
        assert_eq!(client.sweep(Duration::from_secs(3_600)).unwrap(), 0);
        assert_eq!(server.count_rows("swept"), 2);
        assert!(eventually(LONG, || client.sweep(ms(1)).unwrap() > 0));
        assert_eq!(server.count_rows("swept"), 1, "a lock that is held is not forgotten");
        let next = client.get_fenced_lock("free").acquire().unwrap();
        assert!(next.fencing_token() > fence, "fences only go up");
        held.unlock().unwrap();
    });
}

/// The server's clock decides whether a lease has expired, and not the client's.
pub(crate) fn a_row_whose_lease_expired_is_not_renewed<D: Database>() {
    let Some(server) = D::shared() else { return };
    let client = server.options().table("ended").lease(Duration::from_secs(3)).build().unwrap();
    let held = client.get_lock("held").acquire().unwrap();
    let lost = held.lost();
    server.execute("UPDATE ended SET expires_at = '2000-01-01 00:00:00'");
    let loss = receive(&lost, LONG).expect("its renewal brought it back");
    assert_eq!(loss.reason, LossReason::Gone);
    assert!(client.get_lock("held").try_lock().unwrap(), "it is free");
}

pub(crate) fn a_killed_server_loses_no_lock_and_grants_none_twice<D: Database>() {
    let Some(mut server) = D::start() else { return };
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
    assert!(waiting.unwrap(), "the waiter of that time acquires it");
}

/// Another transaction has locked the row, and the pool is in use. Calls then fail in time with typed errors,
/// and a hold on another name is renewed over its own connection.
pub(crate) fn an_exhausted_pool_loses_no_lease<D: Database>() {
    let Some(server) = D::shared() else { return };
    let Exhausted { command_timeout, lease, calls_end_within, lasts } = D::EXHAUSTED;
    let options = || server.options().pool_size(1).command_timeout(command_timeout).retry_timeout(ms(100));
    let client = connected(|| options().lease(lease).build());
    let (kept, stuck) = (fresh("kept"), fresh("stuck"));
    client.get_lock(&stuck).acquire().unwrap().unlock().unwrap();
    let begun = now();
    let held = client.get_lock(&kept).acquire().unwrap();
    let mut connection = server.connect();
    let mut transaction = D::begin(&mut connection);
    D::lock_row(&mut transaction, &stuck);
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
        while start.elapsed() < lasts && held.check().is_ok() {
            assert!(client.get_lock(&stuck).try_lock().is_err());
        }
    });
    D::rollback(transaction);
    // The hold may be lost only if the machine's stalls delayed a renewal.
    if let Err(error) = held.unlock() {
        assert!(stalled_since(begun) > lease / 2, "{error}");
    }
    assert!(client.get_lock(&stuck).try_lock_for(LONG).unwrap());
    client.get_lock(&stuck).unlock().unwrap();
}

/// Another transaction has locked the row of the first of many holds. Only that hold is lost.
pub(crate) fn a_locked_row_delays_no_other_renewal<D: Database>() {
    let Some(server) = D::shared() else { return };
    let lease = ms(3_000);
    let client = connected(|| server.options().lease(lease).build());
    let names: Vec<_> = (0..8).map(|_| fresh("beside")).collect();
    let begun = now();
    let held: Vec<_> = names.iter().map(|name| client.get_lock(name).acquire_owned().unwrap()).collect();
    let mut connection = server.connect();
    let mut transaction = D::begin(&mut connection);
    D::lock_row(&mut transaction, &names[0]);
    assert!(eventually(LONG, || held[0].check().is_err()), "nobody can renew it");
    throughout(lease * 2, || {
        for one in &held[1..] {
            if let Err(error) = one.check() {
                assert!(stalled_since(begun) > lease / 2, "{error}");
            }
        }
        true
    });
    D::rollback(transaction);
}

pub(crate) fn a_session_lock_is_reentrant_exclusive_and_inspectable<D: Database>() {
    let Some(server) = D::shared() else { return };
    let [client, rival] = [(); 2].map(|()| connect_session(&server.url(), LEASE).unwrap());
    let name = fresh("session");
    let (lock, other) = (client.get_lock(&name), rival.get_lock(&name));
    lock.lock().unwrap();
    lock.lock().unwrap();
    assert_eq!(lock.hold_count().unwrap(), 2);
    assert!(!other.try_lock().unwrap());
    assert!(rival.get_lock(name.to_uppercase()).try_lock().unwrap(), "case counts");
    rival.get_lock(name.to_uppercase()).unlock().unwrap();
    // Another thread of the client is another owner, although the server sees the same user.
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
}

/// The lock stays held beyond its lease. When the session ends, the hold is lost and the lock is free.
pub(crate) fn a_session_lock_lasts_as_long_as_its_session<D: Database>() {
    let Some(server) = D::start() else { return };
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
    assert!(rival.get_lock("held").is_held_by_current_thread().unwrap(), "a lost hold releases nobody's");
    rival.get_lock("held").unlock().unwrap();
    let held = client.get_lock("held").acquire().unwrap();
    assert!(rival.get_lock("held").force_unlock().unwrap());
    assert!(eventually(LONG, || !rival.get_lock("held").is_locked().unwrap()));
    assert!(!rival.get_lock("held").force_unlock().unwrap());
    assert!(held.unlock().unwrap_err().is_lost());
}

/// A lease cannot expire while its session lives, so the server ends the unused session.
pub(crate) fn a_session_ends_after_idling_for_its_lease<D: Database>() {
    let Some(server) = D::shared() else { return };
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
}

pub(crate) fn lock_and_data_are_committed_together<D: Database>() {
    let Some(server) = D::shared() else { return };
    let names = server.names_apart();
    for &advisory in D::ADVISORY {
        let (name, other) = (fresh("together"), fresh("other"));
        let lock = |transaction: &mut D::Transaction<'_>, name: &str, wait| {
            D::lock(&names, advisory, transaction, name, wait)
        };
        let (mut one, mut two) = (server.connect(), server.connect());
        let mut before = D::begin(&mut one);
        assert!(lock(&mut before, &other, ms(0)).unwrap().is_some());
        D::commit(before);
        // Both transactions are the first to use the name, and still only one gets the lock.
        let mut first = D::begin(&mut one);
        let held = lock(&mut first, &name, ms(0)).unwrap().unwrap();
        assert_eq!(D::name_of(&held), name);
        assert!(lock(&mut first, &name, ms(0)).unwrap().is_some(), "again on the same transaction");
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
            "the wait in vain has left the transaction as it was"
        );
        D::check(&held, &mut first).unwrap();
        D::commit(first);
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
}

pub(crate) fn transactions_count_exactly_at_every_isolation_level<D: Database>() {
    const ROUNDS: usize = 25;
    let Some(server) = D::shared() else { return };
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
}

pub(crate) fn a_database_deadlock_has_its_own_error_kind<D: Database>() {
    let Some(server) = D::shared() else { return };
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
                        "the transaction is gone"
                    );
                }
                return Err(error);
            }
            D::commit(transaction);
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
}

pub(crate) fn names_that_cannot_be_used_are_refused<D: Database>() {
    let Some(server) = D::shared() else { return };
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
}
