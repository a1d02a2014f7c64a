//! PostgreSQL. Each statement is a transaction of its own at READ COMMITTED. LISTEN/NOTIFY wakes waiters.

mod check;
pub mod in_transaction;
mod link;
mod listener;
mod refusal;
#[cfg(feature = "tls")]
mod secure;
mod url;
mod wait_queue;

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::CancelToken;

use self::link::{Dial, PostgresConnection, STAYS};
use self::listener::{NotificationListener, listener};
use self::refusal::{or_done_unheard, or_without_queue, read_only_now};
use crate::config::ServerOptions;
use crate::error::Result;
use crate::ident::LockName;
use crate::observe::reporter::Reporter;
use crate::seam::capabilities::{CachedCheck, TableInUse};
use crate::seam::subscription::{Subscription, count_of_all};
use crate::seam::{Answer, Attempt, Claim, Failure, Others, QueueMode, Store};
use crate::secrets::Renewable;
use crate::stores::sql::database::{Database, Link};
use crate::stores::sql::lease_ms;
use crate::stores::sql::pool::Pool;
use crate::stores::sql::row_store::RowStore;
use crate::stores::sql::rows::{Change, RowWait, Rows, until_broken};
use crate::stores::sql::sessions::{LeftSession, SessionDatabase, SessionStore};
use crate::stores::sql::statement::{Args, Record, Statements, first};
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment, millis};

/// The longest time that a batch of renewals waits for locked rows. The watchdog soon repeats failed
/// renewals.
const RENEWALS_WAIT: Duration = Duration::from_millis(500);

/// The longest wait for a locked row while other requests need the connection.
const BRIEFLY: Duration = Duration::from_millis(20);

/// The server's `lock_timeout`. After a wait that long, the same call still has time for another request.
fn longest_wait(command_timeout: Duration) -> Duration {
    command_timeout / 2
}

pub(crate) fn open(options: &ServerOptions, reporter: Arc<Reporter>) -> Result<Arc<dyn Store>> {
    let (credentials, dial) = Renewable::new(options, url::dial)?;
    let (dial, setup) = (Dial { credentials: Some(credentials), ..Dial::clone(&dial) }, setup(options));
    let deadline = Clock::System.after(options.connect_timeout);
    let mut first = PostgresConnection::open(Vec::new(), &dial, &setup, deadline)?;
    let failed = |failure: Failure| failure.into_error().during("connect");
    let seen = check::session((&dial, &setup), &mut first, &options.table.name).map_err(failed)?;
    check::server(options, &seen).map_err(failed)?;
    let session_locks = options.table.session_locks;
    let find = || check::find(seen, options, &mut first);
    let place = (!session_locks).then(find).transpose().map_err(failed)?;
    // The realm is part of each channel's name, so locks of the same name in two tables have two channels.
    // It contains no schema, because only some clients of a table name the schema.
    let realm = if session_locks { "" } else { options.table.name.rsplit('.').next().unwrap_or_default() };
    let listener = listener(dial.clone(), reporter, options, &realm.to_ascii_lowercase());
    let table = place.as_ref().map(|place| place.quoted.as_str());
    let queries = Queries::new(table.unwrap_or_default());
    let (queue, command_timeout) = (wait_queue::QueueUse::default(), options.command_timeout);
    let database = Postgres {
        dial,
        setup,
        queries,
        listener,
        queue,
        command_timeout,
        place,
        given_up: Mutex::default(),
    };
    if let Some(place) = &database.place {
        first.table = Some(place.shown.name.as_str().into());
        check::trial(&database, &mut first).and_then(|()| check::queue(place)).map_err(failed)?;
    }
    let pool = Pool::new(database, options.pool_size, first);
    if session_locks { Ok(Arc::new(SessionStore::new(pool))) } else { Ok(Arc::new(RowStore::new(pool))) }
}

/// The first statements on each connection, which replace settings of the server, database and role. Requests
/// that the client has given up must end, and grants must be written to disk. Each connection plans a
/// statement only once, so the plan must use an index even while the table is small.
fn setup(options: &ServerOptions) -> String {
    let (limit, wait) =
        (millis(options.command_timeout), millis(longest_wait(options.command_timeout)).max(1));
    format!(
        "SET default_transaction_isolation = 'read committed'; SET standard_conforming_strings = on; SET lock_timeout = {wait}; \
         SET statement_timeout = {limit}; SET client_min_messages = warning; \
         SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexscan = on; SET jit = off; \
         SET plan_cache_mode = force_generic_plan; {STAYS}; \
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
}

queries!(
    "postgres": sweep, renew_free, take_unreserved, take_in_queue, free_unawaited, old_versions, tell, leave_wait_queue, is_queue_full,
    tidy_queue, recall, mark, check_cached, advisory_try_lock, advisory_prolong, advisory_unlock, advisory_holder, advisory_end, advisory_end_left,
);

struct Postgres {
    dial: Dial,
    setup: String,
    queries: Queries,
    listener: Arc<NotificationListener>,
    queue: wait_queue::QueueUse,
    command_timeout: Duration,
    place: Option<check::Place>,
    given_up: Mutex<Vec<CancelToken>>,
}

impl Database for Postgres {
    type Link = PostgresConnection;

    fn connect(&self, deadline: Moment) -> Result<PostgresConnection> {
        let given_up = std::mem::take(&mut *self.given_up.lock());
        let mut link = PostgresConnection::open(given_up, &self.dial, &self.setup, deadline)?;
        link.table = self.place.as_ref().map(|place| place.shown.name.as_str().into());
        Ok(link)
    }

    fn is_alive(&self, link: &mut PostgresConnection) -> bool {
        link.is_alive()
    }

    fn is_silent(&self, link: &PostgresConnection) -> bool {
        link.silent
    }

    /// A session that did not answer may be in a commit that waits for a standby, which no time-out ends. The
    /// next connection cancels the commit, so that such sessions do not accumulate.
    fn give_up(&self, link: PostgresConnection) {
        if link.silent {
            self.given_up.lock().push(link.client.cancel_token());
        }
    }

    fn note_read_only(&self) {
        self.listener.protocol.changed.notify_one();
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        let places = self.channels(claim).into_iter().map(|channel| self.listener.listen(&channel, waker));
        Subscription::all(places.collect::<Option<_>>()?)
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        let counts =
            self.channels(claim).into_iter().map(|channel| self.listener.message_count(|| Some(channel)));
        count_of_all(counts.collect::<Option<_>>()?)
    }

    fn close(&self) {
        self.listener.close();
    }
}

impl Rows for Postgres {
    const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(1_000), Duration::from_millis(1_200));
    const WAKES: bool = true;
    const HAS_QUEUE: bool = true;

    fn statements(&self) -> &Statements {
        &self.queries.all
    }

    fn keeper(&self, claim: &Claim) -> Option<String> {
        claim.caches.then(|| self.listener.turn_channel(&claim.name, claim.owner.client()))
    }

    fn acquire(&self, link: &mut PostgresConnection, claim: &Claim) -> Answer<Attempt> {
        if claim.queue_mode == QueueMode::Barges || !self.has_queue(claim.kind) {
            return self.acquire_by_row(link, claim);
        }
        self.take_or_join(link, claim)
    }

    fn see_taken(&self, link: &mut PostgresConnection, claim: &Claim, taken: &Change<u64>) {
        self.recall(link, claim, taken);
    }

    fn leave(&self, link: &mut PostgresConnection, claim: &Claim, left: u32) -> Answer<Change<()>> {
        let args = Args::of(claim).and("left", left);
        Ok(self.change_and_notify(link, &self.queries.all.leave, &claim.name, args)?.map(drop))
    }

    fn free(&self, link: &mut PostgresConnection, claim: &Claim) -> Answer<Change<Others>> {
        let plain = |link: &mut _| Ok(self.leave(link, claim, 0)?.map(|()| Others::Nobody));
        if !self.has_queue(claim.kind) {
            return plain(link);
        }
        or_without_queue(self.free_in_queue(link, claim), || plain(link))
    }

    fn leave_wait_queue(&self, link: &mut PostgresConnection, claim: &Claim) -> Answer<()> {
        if self.has_queue(claim.kind) { self.leave_the_queue(link, claim) } else { Ok(()) }
    }

    /// Renews first the rows that no other transaction has locked. Then waits for each locked row only for a
    /// share of the time, so that one row does not use up the time of all.
    fn renew(&self, link: &mut PostgresConnection, claims: &[Claim]) -> Vec<Answer<bool>> {
        let args: Vec<_> = claims.iter().map(Args::of).collect();
        let mut answers = link.each(&self.queries.renew_free, &args);
        // `Ok(false)`: another transaction has locked the row, or the hold is lost.
        let open = answers.iter().zip(claims).filter(|(answer, _)| matches!(answer, Ok(false)));
        let open: Vec<Claim> = open.map(|(_, claim)| claim.clone()).collect();
        let now = Clock::System.now();
        let until = Clock::System.halfway(*link.deadline()).min(now.plus(RENEWALS_WAIT));
        let mut ahead = u32::try_from(open.len()).unwrap_or(u32::MAX);
        let asked = until_broken(link, &open, Ok(()), |link, claim| {
            let share = until.since(Clock::System.now()) / ahead;
            ahead = ahead.saturating_sub(1).max(1);
            // At least 1 ms, because zero would mean no limit.
            let args = Args::of(claim).and("wait_ms", share.max(Duration::from_millis(1)));
            Ok(!link.run(&self.queries.all.renew, &args)?.is_empty())
        });
        let open = answers.iter_mut().filter(|answer| matches!(answer, Ok(false)));
        open.zip(asked).for_each(|(answer, asked)| *answer = asked);
        answers
    }

    fn wait_for_rows(&self, link: &mut PostgresConnection, wait: RowWait) -> Answer<()> {
        let limit = longest_wait(self.command_timeout);
        let limit = if wait == RowWait::Brief { BRIEFLY.min(limit) } else { limit };
        link.execute(&format!("SET lock_timeout = {}", millis(limit)))
    }

    fn check_cached(&self, link: &mut PostgresConnection, claims: &[Claim]) -> Vec<Answer<CachedCheck>> {
        let unmarked = self.mark(link, claims);
        self.look_in_queue(link, claims, &unmarked)
    }

    fn force(&self, link: &mut PostgresConnection, name: &LockName, token: bool) -> Answer<Change<()>> {
        let (force, args) = (&self.queries.all.force, || Args::one("name", name).and("token", token));
        let plain = |link: &mut _| Ok(self.change_and_notify(link, force, name, args())?.map(drop));
        if token {
            return plain(link);
        }
        let told = self.change_and_tell(link, force, name, args()).map(|change| change.map(drop));
        or_without_queue(told, || plain(link))
    }

    fn sweep(&self, link: &mut PostgresConnection, age: Duration) -> Answer<u64> {
        let records = link.run(&self.queries.sweep, &Args::one("age_ms", age))?;
        link.run(&self.queries.tidy_queue, &Args::none())?;
        Ok(u64::try_from(records.len()).unwrap_or(0))
    }

    fn old_versions(&self, link: &mut PostgresConnection, age: Duration) -> Answer<Vec<String>> {
        let records = link.run(&self.queries.old_versions, &Args::one("age_ms", age))?;
        records.iter().map(|record| record.text(0)).collect()
    }

    fn table(&self) -> Option<&TableInUse> {
        self.place.as_ref().map(|place| &place.shown)
    }
}

/// Advisory locks. A lock's key is the first 8 bytes of its name's SHA-256.
impl SessionDatabase for Postgres {
    const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(300));
    const WAKES: bool = true;
    const SEES_ENDS: bool = true;

    fn try_lock(&self, link: &mut PostgresConnection, claim: &Claim) -> Answer<bool> {
        let args = Args::of(claim).and("lease_ms", idle_limit(claim.lease));
        let taken = first(link.run(&self.queries.advisory_try_lock, &args)?)?;
        taken.maybe(0, Record::flag)?.ok_or_else(|| Failure::Refused(read_only_now()))
    }

    fn prolong(&self, link: &mut PostgresConnection, lease: Duration) -> Answer<bool> {
        let args = Args::one("lease_ms", idle_limit(lease));
        first(link.run(&self.queries.advisory_prolong, &args)?)?.flag(0)
    }

    fn unlock(&self, link: &mut PostgresConnection, name: &LockName) -> Answer<bool> {
        let args = Args::one("name", name).and("channel", self.listener.channel(name));
        let freed = link.run(&self.queries.advisory_unlock, &args);
        or_done_unheard(freed.and_then(|freed| first(freed)?.flag(0)), || {
            // The lock is free. The session still has the time-out of the lease, so it is not used again.
            link.ended = true;
            true
        })
    }

    fn holder(&self, link: &mut PostgresConnection, name: &LockName) -> Answer<Option<String>> {
        let holder = link.run(&self.queries.advisory_holder, &Args::one("name", name))?;
        holder.first().map(|holder| holder.text(0)).transpose()
    }

    fn end(&self, link: &mut PostgresConnection, name: &LockName) -> Answer<bool> {
        if link.words("SHOW transaction_read_only")?.first().is_some_and(|word| word == "on") {
            return Err(Failure::Refused(read_only_now()));
        }
        let args = Args::one("name", name).and("channel", self.listener.channel(name));
        let ended = link.run(&self.queries.advisory_end, &args);
        or_done_unheard(ended.map(|ended| !ended.is_empty()), || true)
    }

    fn session(&self, link: &PostgresConnection) -> u32 {
        link.backend.parse().unwrap_or(0) // no process has the number zero
    }

    fn end_left(&self, link: &mut PostgresConnection, claim: &Claim, left: &LeftSession) -> Answer<bool> {
        let args =
            Args::of(claim).and("channel", self.listener.channel(&claim.name)).and("pid", left.session);
        Ok(!link.run(&self.queries.advisory_end_left, &args)?.is_empty())
    }
}

/// The lease in milliseconds, but at most 24 days, because the setting has 31 bits.
fn idle_limit(lease: Duration) -> String {
    lease_ms(lease).clamp(1, i64::from(i32::MAX)).to_string()
}
