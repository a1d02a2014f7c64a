//! MySQL and MariaDB: one statement on one row for each request, each a transaction of its own at READ
//! COMMITTED. The server wakes no waiters, so they look now and then, and one client of each name often
//! (`turnstile`).

mod check;
mod dial;
mod get_lock;
pub mod in_transaction;
mod link;
mod refusal;
mod role;
mod turnstile;
mod url;

use std::sync::Arc;
use std::time::Duration;

use mysql::{OptsBuilder, Params, params};

use self::link::MysqlConnection;
use self::role::read_only_now;
use self::turnstile::{TurnstileQueries, Turnstiles};
use self::url::{READ_COMMITTED, limit_in_seconds, settings};
use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
use crate::seam::capabilities::TableInUse;
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Attempt, Claim, Failure, Store};
use crate::secrets::Renewable;
use crate::stores::sql::database::Database;
use crate::stores::sql::mysql::dial::Dial;
use crate::stores::sql::notes::Notes;
use crate::stores::sql::pool::Pool;
use crate::stores::sql::rows::{Change, EntryRow, ListedRow, Row, RowStore, Rows, Told, acquire_by_row};
use crate::stores::sql::sessions::SessionStore;
use crate::stores::sql::timed_out;
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment};

/// A connection that has been idle for longer is asked whether it still stands.
const IDLE: Duration = Duration::from_secs(1);

/// Connects, and checks that the server can keep locks.
pub(crate) fn open(options: &ServerOptions) -> Result<Arc<dyn Store>> {
    let (opts, mut dial) = url::opts(options)?;
    dial.renewal = Some(Renewable::new(options, |options| url::opts(options).map(|(opts, _)| opts))?);
    let queries = Queries::new(&options.table.name);
    let turns = if options.table.session_locks { get_lock::turnstile() } else { queries.turnstile() };
    let turnstiles = options.table.designated_poller;
    let turnstiles = turnstiles.then(|| Turnstiles::new(opts.clone(), dial.clone(), turns));
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

queries!(
    "mysql": add, take, retake, leave, renew, expire, look, show, list, force, long_free, forget, old_versions, turn_enter, turn_leave,
    turn_look, post, unpost, tidy, entry, entries,
);

impl Queries {
    fn turnstile(&self) -> TurnstileQueries {
        TurnstileQueries {
            enter: self.turn_enter.clone(),
            leave: self.turn_leave.clone(),
            look: self.turn_look.clone(),
            list: ("UNHEX('ID')", ","),
        }
    }
}

struct Mysql {
    opts: OptsBuilder,
    dial: Dial,
    isolation: &'static str,
    command_timeout: Duration,
    /// The shortest wait for a locked row that the server knows, in seconds: none with MariaDB, one with MySQL.
    least_wait: u64,
    queries: Queries,
    turnstiles: Option<Arc<Turnstiles>>,
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

    /// A commit that waits for a replica is bound by no time-out. The next connection ends its session, so that
    /// there are no more sessions than connections.
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

fn lease_us(lease: Duration) -> u64 {
    u64::try_from(lease.as_micros()).unwrap_or(u64::MAX)
}

impl Mysql {
    /// The row that the statement made, or else the row as it is after it.
    fn change<T>(
        &self,
        link: &mut MysqlConnection,
        name: &LockName,
        made: Answer<(u64, u64)>,
        take: impl FnOnce(u64) -> T,
    ) -> Answer<Change<T>> {
        let (rows, id) = made?;
        if rows > 0 {
            return Ok(Change::Made(take(id)));
        }
        self.row(link, name).map(Change::None)
    }

    fn row(&self, link: &mut MysqlConnection, name: &LockName) -> Answer<Option<Row>> {
        Ok(self.row_and_role(link, name)?.map(|(row, _)| row))
    }

    /// The row, and whether the server takes no writes.
    fn row_and_role(&self, link: &mut MysqlConnection, name: &LockName) -> Answer<Option<(Row, bool)>> {
        let params = params! { "name" => name.key().as_bytes() };
        let row: Option<(bool, String, i64, i64, bool)> =
            link.first(&self.queries.look, params).map_err(Failure::of_reading)?;
        Ok(row.map(|(token, owner, holds, remaining_ms, is_read_only)| {
            (Row { token, owner, holds, remaining_ms }, is_read_only)
        }))
    }
}

impl Rows for Mysql {
    const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(100));

    fn acquire(&self, link: &mut MysqlConnection, claim: &Claim, deadline: Moment) -> Answer<Attempt> {
        self.notes.without_if_refused(|| acquire_by_row(self, link, claim, deadline))
    }

    fn table(&self) -> Option<&TableInUse> {
        self.table.as_ref()
    }

    fn take(
        &self,
        link: &mut MysqlConnection,
        claim: &Claim,
        fenced: bool,
        deadline: Moment,
    ) -> Answer<Change<u64>> {
        let here = self.notes.here();
        let take = |link: &mut MysqlConnection| {
            link.run(
                &self.queries.take,
                params! {
                    "name" => claim.name.key().as_bytes(),
                    "token" => claim.kind.is_token(),
                    "owner" => claim.owner.to_string(),
                    "lease_us" => lease_us(claim.lease),
                    "fenced" => fenced,
                    "host" => &here.host,
                    "pid" => here.pid,
                    "thread" => &here.thread,
                },
            )
        };
        // A row that another owner holds is only read: an UPDATE would wait for the row's lock, and with
        // hundreds who look now and then the server does nothing but search their queue for deadlocks. That
        // would go on for a lease at a server that takes no writes any more, whose rows nobody changes: it is
        // asked.
        let seen = match self.row_and_role(link, &claim.name)? {
            Some((_, true)) => return Err(Failure::Refused(read_only_now())),
            Some((row, false)) => Some(row),
            None => {
                link.refuse_read_only()?;
                None
            }
        };
        let is_anothers = |row: &Row| row.is_live() && row.owner != claim.owner.to_string();
        if seen.as_ref().is_some_and(is_anothers) || deadline.since(Clock::System.now()).is_zero() {
            return Ok(Change::None(seen));
        }
        if seen.is_none() {
            // A name's first use. That of another, in between, makes no difference.
            link.run(&self.queries.add, params! { "name" => claim.name.key().as_bytes() })
                .map_err(Failure::of_reading)?;
        }
        let made = take(link);
        self.change(link, &claim.name, made, |fence| fence)
    }

    fn retake(
        &self,
        link: &mut MysqlConnection,
        claim: &Claim,
        count: u32,
        fenced: bool,
        _by: Moment,
    ) -> Answer<Change<u64>> {
        let made = link.run(
            &self.queries.retake,
            params! {
                "name" => claim.name.key().as_bytes(),
                "token" => claim.kind.is_token(),
                "owner" => claim.owner.to_string(),
                "lease_us" => lease_us(claim.lease),
                "fenced" => fenced,
                "count" => count,
            },
        );
        self.change(link, &claim.name, made, |fence| fence)
    }

    fn leave(&self, link: &mut MysqlConnection, claim: &Claim, left: u32, _by: Moment) -> Answer<Change<()>> {
        let made = link.run(
            &self.queries.leave,
            params! {
                "name" => claim.name.key().as_bytes(),
                "token" => claim.kind.is_token(),
                "owner" => claim.owner.to_string(),
                "left" => left,
            },
        );
        self.change(link, &claim.name, made, drop)
    }

    fn renew(&self, link: &mut MysqlConnection, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        // A user who may write all the same would keep the hold at a server that others have left.
        let mut broken: Option<Error> = link.refuse_read_only().err().map(Failure::into_error);
        // A row that another transaction has locked must not cost the holds behind it: nobody waits for it here,
        // and the engine soon asks again.
        if broken.is_none() {
            broken = self.wait_for_rows(link, true, deadline).err().map(Failure::into_error);
        }
        let mut one = |claim: &Claim| {
            if let Some(error) = &broken {
                return Err(Failure::Refused(error.copy()));
            }
            if deadline.since(Clock::System.now()).is_zero() {
                return Err(Failure::Refused(timed_out("those before took all the time")));
            }
            let renewed = link.run(
                &self.queries.renew,
                params! {
                    "name" => claim.name.key().as_bytes(),
                    "token" => claim.kind.is_token(),
                    "owner" => claim.owner.to_string(),
                    "lease_us" => lease_us(claim.lease),
                },
            );
            if let Err(Failure::Unknown(error)) = &renewed {
                broken = Some(error.copy());
            }
            renewed.map(|(rows, _)| rows > 0)
        };
        let renewed = claims.iter().map(&mut one).collect();
        drop(self.wait_for_rows(link, false, deadline));
        renewed
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

    fn expire_in(
        &self,
        link: &mut MysqlConnection,
        claim: &Claim,
        rest: Duration,
        _by: Moment,
    ) -> Answer<bool> {
        let ran = link.run(
            &self.queries.expire,
            params! {
                "name" => claim.name.key().as_bytes(),
                "token" => claim.kind.is_token(),
                "owner" => claim.owner.to_string(),
                "rest_us" => lease_us(rest),
            },
        );
        ran.map(|(rows, _)| rows > 0)
    }

    fn look(&self, link: &mut MysqlConnection, name: &LockName, _by: Moment) -> Answer<Option<Row>> {
        self.row(link, name)
    }

    fn show(&self, link: &mut MysqlConnection, name: &LockName, _by: Moment) -> Answer<Option<(Row, Told)>> {
        type Shown = (bool, String, i64, i64, i64, String, i64, String, i64);
        let params = params! { "name" => name.key().as_bytes() };
        let row: Option<Shown> = link.first(&self.queries.show, params).map_err(Failure::of_reading)?;
        Ok(row.map(|(token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms)| {
            let told = Told { fence, host, pid, thread, held_ms };
            (Row { token, owner, holds, remaining_ms }, told)
        }))
    }

    fn list(&self, link: &mut MysqlConnection, after: &[u8], _by: Moment) -> Answer<Vec<ListedRow>> {
        type Shown = (bool, String, i64, i64, i64, String, i64, String, i64, Vec<u8>, Vec<u8>);
        let rows = link.rows::<Shown>(&self.queries.list, params! { "after" => after });
        let rows = rows.map_err(Failure::of_reading)?;
        let read = |(token, owner, holds, remaining_ms, fence, host, pid, thread, held_ms, id, name)| {
            let told = Told { fence, host, pid, thread, held_ms };
            ListedRow { id, name, row: Row { token, owner, holds, remaining_ms }, told }
        };
        Ok(rows.into_iter().map(read).collect())
    }

    fn force(
        &self,
        link: &mut MysqlConnection,
        name: &LockName,
        token: bool,
        _by: Moment,
    ) -> Answer<Change<()>> {
        let params = params! { "name" => name.key().as_bytes(), "token" => token };
        let made = link.run(&self.queries.force, params);
        self.change(link, name, made, drop)
    }

    fn post(
        &self,
        link: &mut MysqlConnection,
        client: &str,
        entry: &str,
        lease: Duration,
        _by: Moment,
    ) -> Answer<()> {
        let params = params! { client, entry, "lease_us" => lease_us(lease) };
        link.run(&self.queries.post, params).map(drop)
    }

    fn unpost(&self, link: &mut MysqlConnection, client: &str, _by: Moment) -> Answer<()> {
        link.run(&self.queries.unpost, params! { client }).map(drop)
    }

    fn tidy_entries(&self, link: &mut MysqlConnection, _by: Moment) -> Answer<()> {
        link.run(&self.queries.tidy, Params::Empty).map(drop)
    }

    fn entry(&self, link: &mut MysqlConnection, client: &str, _by: Moment) -> Answer<Option<EntryRow>> {
        let row: Option<(String, String, i64)> = link.first(&self.queries.entry, params! { client })?;
        Ok(row.map(entry_row))
    }

    fn entries(&self, link: &mut MysqlConnection, after: &str, _by: Moment) -> Answer<Vec<EntryRow>> {
        let rows = link.rows::<(String, String, i64)>(&self.queries.entries, params! { after });
        let rows = rows.map_err(Failure::of_reading)?;
        Ok(rows.into_iter().map(entry_row).collect())
    }

    /// One by one: a DELETE that looks for its rows would lock those that it passes.
    fn sweep(&self, link: &mut MysqlConnection, age: Duration, deadline: Moment) -> Answer<u64> {
        let age_us = lease_us(age);
        let ids: Vec<Vec<u8>> = link.rows(&self.queries.long_free, params! { age_us })?;
        let mut removed = 0;
        for id in ids {
            if deadline.since(Clock::System.now()).is_zero() {
                break;
            }
            removed += link.run(&self.queries.forget, params! { id, age_us })?.0;
        }
        Ok(removed)
    }

    fn old_versions(&self, link: &mut MysqlConnection, age: Duration, _by: Moment) -> Answer<Vec<String>> {
        match link.rows(&self.queries.old_versions, params! { "age_s" => age.as_secs() }) {
            // Without the right PROCESS nothing is to be seen.
            Err(Failure::Refused(error)) if error.kind() == ErrorKind::NoPermission => Ok(Vec::new()),
            found => found,
        }
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.turnstiles.as_ref()?.listen(&claim.name, waker)
    }

    fn close(&self) {
        self.turnstiles.iter().for_each(|turnstiles| turnstiles.close());
    }
}

fn entry_row((client, text, remaining_ms): (String, String, i64)) -> EntryRow {
    EntryRow { client, text, remaining_ms }
}
