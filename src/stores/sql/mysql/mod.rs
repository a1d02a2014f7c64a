//! MySQL and MariaDB: one statement on one row for each request, each a transaction of its own at READ
//! COMMITTED. The server wakes no waiters, so they look now and then, and one client of each name often
//! (`turnstile`).

mod check;
mod dial;
mod get_lock;
pub mod in_transaction;
mod link;
mod refusal;
mod turnstile;
mod url;

use std::sync::Arc;
use std::time::Duration;

use mysql::OptsBuilder;

use self::link::MysqlConnection;
use self::refusal::read_only_now;
use self::turnstile::{TurnstileHub, TurnstileQueries};
use self::url::{READ_COMMITTED, limit_in_seconds, settings};
use crate::config::ServerOptions;
use crate::error::{ErrorKind, Result};
use crate::inspect::Location;
use crate::seam::capabilities::TableInUse;
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Attempt, Claim, Failure, Store};
use crate::secrets::Renewable;
use crate::stores::sql::database::Database;
use crate::stores::sql::mysql::dial::Dial;
use crate::stores::sql::notes::Notes;
use crate::stores::sql::pool::Pool;
use crate::stores::sql::row_store::RowStore;
use crate::stores::sql::rows::{Change, Row, Rows, acquire_by_row};
use crate::stores::sql::sessions::SessionStore;
use crate::stores::sql::statement::{Args, Record, Statement, Statements};
use crate::stores::sql::timed_out;
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment};

/// A connection that has been idle for longer is asked whether it still stands.
const IDLE: Duration = Duration::from_secs(1);

/// Connects, and checks that the server can keep locks.
pub(crate) fn open(options: &ServerOptions) -> Result<Arc<dyn Store>> {
    let (renewal, made) = Renewable::new(options, url::opts)?;
    let (opts, mut dial) = <(OptsBuilder, Dial)>::clone(&made);
    dial.renewal = Some(renewal);
    let queries = Queries::new(&options.table.name);
    let turns = if options.table.session_locks { get_lock::turnstile() } else { queries.turnstile() };
    let turnstiles = options.table.designated_poller;
    let turnstiles = turnstiles.then(|| turnstile::turnstiles(opts.clone(), dial.clone(), turns));
    let mut database = Mysql {
        opts,
        dial,
        isolation: READ_COMMITTED,
        command_timeout: options.command_timeout,
        least_wait: 1,
        queries,
        turnstiles,
        notes: Notes::default(),
        table: None,
        given_up: Mutex::default(),
    };
    let deadline = Clock::System.after(options.connect_timeout);
    let mut first = database.connect(deadline)?;
    check::server(&mut database, &mut first)
        .and_then(|()| check::isolation(&mut database, &mut first))
        .and_then(|()| match options.table.session_locks {
            true => Ok(()),
            false => check::tables(&mut database, options, &mut first, deadline),
        })
        .map_err(|failure| failure.into_error().during("connect"))?;
    let pool = Pool::new(database, options.pool_size, first);
    if options.table.session_locks {
        Ok(Arc::new(SessionStore::new(pool)))
    } else {
        Ok(Arc::new(RowStore::new(pool)))
    }
}

queries!("mysql": add, long_free, forget, old_versions, turn_enter, turn_leave, turn_look);

impl Queries {
    fn turnstile(&self) -> TurnstileQueries {
        TurnstileQueries {
            enter: self.turn_enter.text.clone(),
            leave: self.turn_leave.text.clone(),
            look: self.turn_look.text.clone(),
            list: ("UNHEX('ID')", ","),
        }
    }
}

struct Mysql {
    opts: OptsBuilder,
    dial: Dial,
    isolation: &'static str,
    command_timeout: Duration,
    /// The shortest wait for a locked row that the server knows, in seconds: none with MariaDB, one with
    /// MySQL.
    least_wait: u64,
    queries: Queries,
    turnstiles: Option<Arc<TurnstileHub>>,
    notes: Notes,
    /// Session locks have none.
    table: Option<TableInUse>,
    /// Sessions whose connections were given up, to be ended, and when.
    given_up: Mutex<Vec<(u32, Moment)>>,
}

impl Database for Mysql {
    type Link = MysqlConnection;

    fn connect(&self, deadline: Moment) -> Result<MysqlConnection> {
        let conn = self.dial.connect(&self.opts, self.command_timeout, deadline)?;
        let mut link = MysqlConnection::new(conn);
        let given_up = std::mem::take(&mut *self.given_up.lock());
        for (session, since) in given_up {
            link.end_given_up(session, since).map_err(|failure| failure.into_error().during("connect"))?;
        }
        Ok(link)
    }

    /// Over those of the pool.
    fn ends_within(&self, span: Duration) -> bool {
        self.command_timeout <= span
    }

    fn connect_briefly(&self, deadline: Moment) -> Result<MysqlConnection> {
        let left = deadline.since(Clock::System.now());
        if left.is_zero() {
            return Err(timed_out("no time was left to connect"));
        }
        // Less than half, so that the next request with about as much time may use it, after a ping.
        let answer = left.mul_f32(0.375);
        let opts = self.opts.clone().read_timeout(Some(answer)).write_timeout(Some(answer));
        let opts = opts.init(settings(self.isolation, 1));
        let conn = self.dial.connect(&opts, answer, deadline)?;
        Ok(MysqlConnection { answer, ..MysqlConnection::new(conn) })
    }

    fn is_brief(&self, link: &MysqlConnection, span: Duration) -> bool {
        link.answer * 2 <= span
    }

    fn is_silent(&self, link: &MysqlConnection) -> bool {
        link.silent
    }

    /// A commit that waits for a replica is bound by no time-out. The next connection ends its session, so
    /// that there are no more sessions than connections.
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
}

impl Rows for Mysql {
    const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(100));

    fn statements(&self) -> &Statements {
        &self.queries.all
    }

    fn run(
        &self,
        link: &mut MysqlConnection,
        statement: &Statement,
        args: &Args,
        _by: Moment,
    ) -> Answer<Vec<Record>> {
        link.run(statement, args)
    }

    fn here(&self) -> Location {
        self.notes.here()
    }

    fn refuse_read_only(&self, link: &mut MysqlConnection) -> Answer<()> {
        link.refuse_read_only()
    }

    fn acquire(&self, link: &mut MysqlConnection, claim: &Claim, deadline: Moment) -> Answer<Attempt> {
        self.notes.without_if_refused(|| acquire_by_row(self, link, claim, deadline))
    }

    /// A row that another owner holds is only read: an UPDATE would wait for the row's lock, and with
    /// hundreds who look now and then the server does nothing but search their queue for deadlocks. That
    /// would go on for a lease at a server that takes no writes any more, whose rows nobody changes: the look
    /// asks for that too.
    fn look_before(
        &self,
        link: &mut MysqlConnection,
        claim: &Claim,
        deadline: Moment,
    ) -> Answer<Option<Change<u64>>> {
        let args = Args::one("name", &*claim.name);
        let records = link.run(&self.queries.all.look, &args).map_err(Failure::of_reading)?;
        let seen = match records.first() {
            Some(record) if record.flag(4)? => return Err(Failure::Refused(read_only_now())),
            Some(record) => Some(Row::read(record, 0)?),
            None => {
                link.refuse_read_only()?;
                None
            }
        };
        let is_over = deadline.since(Clock::System.now()).is_zero();
        if is_over || seen.as_ref().is_some_and(|row| row.is_of_another(claim)) {
            return Ok(Some(Change::None(seen)));
        }
        if seen.is_none() {
            // A name's first use. That of another, in between, makes no difference.
            link.run(&self.queries.add, &args).map_err(Failure::of_reading)?;
        }
        Ok(None)
    }

    fn wait_for_rows(&self, link: &mut MysqlConnection, briefly: bool, _by: Moment) -> Answer<()> {
        if link.silent || link.ended {
            return Ok(()); // nobody uses it again
        }
        let limit = if briefly { self.least_wait } else { limit_in_seconds(self.command_timeout) };
        let set = link.wait_for_rows(limit);
        link.ended |= set.is_err() && !briefly;
        set
    }

    /// One by one: a DELETE that looks for its rows would lock those that it passes.
    fn sweep(&self, link: &mut MysqlConnection, age: Duration, deadline: Moment) -> Answer<u64> {
        let mut removed = 0;
        for record in link.run(&self.queries.long_free, &Args::one("age_ms", age))? {
            if deadline.since(Clock::System.now()).is_zero() {
                break;
            }
            let args = Args::one("id", &*record.bytes(0)?).and("age_ms", age);
            removed += u64::from(!link.run(&self.queries.forget, &args)?.is_empty());
        }
        Ok(removed)
    }

    fn old_versions(&self, link: &mut MysqlConnection, age: Duration, _by: Moment) -> Answer<Vec<String>> {
        match link.run(&self.queries.old_versions, &Args::one("age_ms", age)) {
            // Without the right PROCESS nothing is to be seen.
            Err(Failure::Refused(error)) if error.kind() == ErrorKind::NoPermission => Ok(Vec::new()),
            found => found?.iter().map(|record| record.text(0)).collect(),
        }
    }

    fn table(&self) -> Option<&TableInUse> {
        self.table.as_ref()
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.turnstiles.as_ref()?.listen_at(&claim.name, waker)
    }

    fn close(&self) {
        self.turnstiles.iter().for_each(|turnstiles| turnstiles.close());
    }
}
