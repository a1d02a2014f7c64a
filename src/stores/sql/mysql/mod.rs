//! MySQL and MariaDB. Each statement is a transaction of its own at READ COMMITTED. The server wakes no
//! waiters, so all waiters poll. For each name, one of the waiting clients polls more often (`poller_lock`).

mod check;
mod dial;
mod get_lock;
pub mod in_transaction;
mod link;
mod poller_lock;
mod refusal;
mod url;

use std::sync::Arc;
use std::time::Duration;

use mysql::OptsBuilder;

use self::link::MysqlConnection;
use self::poller_lock::{PollerHub, PollerLockQueries};
use self::refusal::read_only_now;
use self::url::limit_in_seconds;
use crate::config::{ServerOptions, TableOptions};
use crate::error::{ErrorKind, Result};
use crate::seam::capabilities::TableInUse;
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Claim, Failure, Store};
use crate::secrets::Renewable;
use crate::stores::sql::database::{Database, Link};
use crate::stores::sql::mysql::dial::Dial;
use crate::stores::sql::pool::Pool;
use crate::stores::sql::row_store::RowStore;
use crate::stores::sql::rows::{Change, Row, RowWait, Rows};
use crate::stores::sql::sessions::SessionStore;
use crate::stores::sql::statement::{Args, Statements};
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment};

const IDLE: Duration = Duration::from_secs(1);

pub(crate) fn open(options: &ServerOptions) -> Result<Arc<dyn Store>> {
    let (credentials, made) = Renewable::new(options, url::opts)?;
    let (opts, mut dial) = <(OptsBuilder, Dial)>::clone(&made);
    dial.credentials = Some(credentials);
    let queries = Queries::new(&options.table.name);
    let poller_locks = options
        .table
        .designated_poller
        .then(|| poller_lock::poller_locks(opts.clone(), dial.clone(), queries.poller_lock(&options.table)));
    let mut database = Mysql {
        opts,
        dial,
        command_timeout: options.command_timeout,
        least_wait: 1,
        queries,
        poller_locks,
        table: None,
        given_up: Mutex::default(),
    };
    let deadline = Clock::System.after(options.connect_timeout);
    let mut first = database.connect(deadline)?;
    check::server(&mut database, &mut first)
        .and_then(|()| match options.table.session_locks {
            true => Ok(()),
            false => check::tables(&mut database, options, &mut first),
        })
        .map_err(|failure| failure.into_error().during("connect"))?;
    let pool = Pool::new(database, options.pool_size, first);
    if options.table.session_locks {
        Ok(Arc::new(SessionStore::new(pool)))
    } else {
        Ok(Arc::new(RowStore::new(pool)))
    }
}

queries!(
    "mysql": add, long_free, forget, old_versions, server, read_only, poller_enter, poller_leave, poller_look, session_poller_look,
    session_take, session_free, session_holder, session_idle, session_busy,
);

impl Queries {
    fn poller_lock(&self, table: &TableOptions) -> PollerLockQueries {
        let (enter, leave) = (self.poller_enter.clone(), self.poller_leave.clone());
        let (look, list, realm) = if table.session_locks {
            (&self.session_poller_look, ("SELECT 'ID' AS id", " UNION ALL "), "")
        } else {
            (&self.poller_look, ("UNHEX('ID')", ","), &*table.name)
        };
        PollerLockQueries { enter, leave, look: look.text.clone(), list, realm: realm.to_owned() }
    }
}

/// Whether a session's state, which by the server's clock has lasted `seconds`, began at `since` or earlier.
/// Adds one second to `seconds`, because the clocks of client and server differ.
fn has_lasted_since(since: Moment, seconds: i64) -> bool {
    let span = Clock::System.now().since(since).as_secs();
    u64::try_from(seconds.saturating_add(1)).is_ok_and(|seconds| seconds >= span)
}

struct Mysql {
    opts: OptsBuilder,
    dial: Dial,
    command_timeout: Duration,
    /// The shortest wait for a locked row, in seconds: zero on MariaDB, one on MySQL.
    least_wait: u64,
    queries: Queries,
    poller_locks: Option<Arc<PollerHub>>,
    table: Option<TableInUse>,
    given_up: Mutex<Vec<(u32, Moment)>>,
}

impl Database for Mysql {
    type Link = MysqlConnection;

    fn connect(&self, deadline: Moment) -> Result<MysqlConnection> {
        let conn = self.dial.connect(&self.opts, self.command_timeout, deadline)?;
        let mut link = MysqlConnection::new(conn, deadline);
        let given_up = std::mem::take(&mut *self.given_up.lock());
        for (session, since) in given_up {
            self.end_given_up(&mut link, session, since)
                .map_err(|failure| failure.into_error().during("connect"))?;
        }
        Ok(link)
    }

    fn is_silent(&self, link: &MysqlConnection) -> bool {
        link.silent
    }

    /// If the answer was late, notes the session, because no time-out ends a commit that waits for a replica.
    /// The next connection ends the session, so that sessions do not accumulate.
    fn give_up(&self, link: MysqlConnection) {
        if link.silent {
            self.given_up.lock().push((link.conn.connection_id(), link.used));
        }
    }

    fn is_alive(&self, link: &mut MysqlConnection) -> bool {
        let is_sound = |link: &MysqlConnection| !link.ended && !link.silent;
        is_sound(link)
            && (Clock::System.now().since(link.used) <= IDLE || link.ping().is_ok() && is_sound(link))
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.poller_locks.as_ref()?.listen_at(&claim.name, waker)
    }

    fn close(&self) {
        self.poller_locks.iter().for_each(|poller_locks| poller_locks.close());
    }
}

impl Mysql {
    /// Ends a session that was given up, if it is still busy with its request. A session that became busy
    /// after `since` is another one, to which a restarted server gave the same number.
    fn end_given_up(&self, link: &mut MysqlConnection, session: u32, since: Moment) -> Answer<()> {
        let busy = link.number(&self.queries.session_busy, &Args::one("session", session))?;
        if busy.is_some_and(|busy| has_lasted_since(since, busy))
            && let Err(Failure::Unknown(error)) = link.command(format!("KILL {session}"))
        {
            return Err(Failure::Unknown(error));
        }
        Ok(())
    }
}

impl Rows for Mysql {
    const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(100));

    fn statements(&self) -> &Statements {
        &self.queries.all
    }

    fn refuse_read_only(&self, link: &mut MysqlConnection) -> Answer<()> {
        match link.number(&self.queries.read_only, &Args::none()).map_err(Failure::of_reading)? {
            Some(0) => Ok(()),
            _ => Err(Failure::Refused(read_only_now())),
        }
    }

    /// Reads the row, and changes nothing if another owner holds it. An UPDATE would wait for the row's lock,
    /// and with hundreds of waiters the server would search their queue for deadlocks most of the time.
    /// Reading also notices a server that has become read-only.
    fn look_before(&self, link: &mut MysqlConnection, claim: &Claim) -> Answer<Option<Change<u64>>> {
        let args = Args::one("name", &*claim.name);
        let records = link.run(&self.queries.all.look, &args).map_err(Failure::of_reading)?;
        let seen = match records.first() {
            Some(record) if record.flag(4)? => return Err(Failure::Refused(read_only_now())),
            Some(record) => Some(Row::read(record, 0)?),
            None => {
                self.refuse_read_only(link)?;
                None
            }
        };
        let is_over = *link.deadline() <= Clock::System.now();
        if is_over || seen.as_ref().is_some_and(|row| row.is_of_another(claim)) {
            return Ok(Some(Change::None(seen)));
        }
        if seen.is_none() {
            link.run(&self.queries.add, &args).map_err(Failure::of_reading)?;
        }
        Ok(None)
    }

    fn wait_for_rows(&self, link: &mut MysqlConnection, wait: RowWait) -> Answer<()> {
        if link.silent || link.ended {
            return Ok(()); // the connection is not used again
        }
        let limit = match wait {
            RowWait::Brief => self.least_wait,
            RowWait::Full => limit_in_seconds(self.command_timeout),
        };
        let set = link.command(format!("SET SESSION innodb_lock_wait_timeout = {limit}"));
        link.ended |= set.is_err() && wait == RowWait::Full;
        set
    }

    /// Deletes the rows of locks that have been free for `age`, one by one, because a DELETE with a condition
    /// would lock every row that it reads.
    fn sweep(&self, link: &mut MysqlConnection, age: Duration) -> Answer<u64> {
        let mut removed = 0;
        for record in link.run(&self.queries.long_free, &Args::one("age_ms", age))? {
            if *link.deadline() <= Clock::System.now() {
                break;
            }
            let args = Args::one("id", &*record.bytes(0)?).and("age_ms", age);
            removed += u64::from(!link.run(&self.queries.forget, &args)?.is_empty());
        }
        Ok(removed)
    }

    fn old_versions(&self, link: &mut MysqlConnection, age: Duration) -> Answer<Vec<String>> {
        match link.run(&self.queries.old_versions, &Args::one("age_ms", age)) {
            Err(Failure::Refused(error)) if error.kind() == ErrorKind::NoPermission => Ok(Vec::new()),
            found => found?.iter().map(|record| record.text(0)).collect(),
        }
    }

    fn table(&self) -> Option<&TableInUse> {
        self.table.as_ref()
    }
}
