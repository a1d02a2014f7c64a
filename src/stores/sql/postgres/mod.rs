//! PostgreSQL: one statement on one row for each request, each a transaction of its own at READ COMMITTED,
//! and LISTEN/NOTIFY for wake-ups.

mod advisory;
mod check;
mod driver;
pub mod in_transaction;
mod line;
mod line_use;
mod link;
mod listener;
mod place;
mod refusal;
mod renewal;
#[cfg(feature = "tls")]
mod secure;
mod tls_mode;
mod url;

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::CancelToken;

use self::line_use::LineUse;
use self::link::{Dial, PostgresConnection, STAYS, column, longest_wait};
use self::listener::{NotificationListener, listener};
use self::place::Place;
use self::refusal::{is_of_table, or_unheard};
use crate::config::ServerOptions;
use crate::error::Result;
use crate::ident::LockName;
use crate::inspect::Location;
use crate::observe::reporter::Reporter;
use crate::seam::capabilities::{KeptLook, TableInUse};
use crate::seam::subscription::{Subscription, count_of_all};
use crate::seam::{Answer, Attempt, Claim, Failure, Others, Store, Turn};
use crate::secrets::Renewable;
use crate::stores::sql::database::Database;
use crate::stores::sql::notes::Notes;
use crate::stores::sql::pool::Pool;
use crate::stores::sql::row_store::RowStore;
use crate::stores::sql::rows::{Change, Rows, acquire_by_row};
use crate::stores::sql::sessions::SessionStore;
use crate::stores::sql::statement::{Args, Record, Statement, Statements};
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment, millis};

/// Whether the server takes no writes over this connection: it is a standby, or set so.
const IS_READ_ONLY: &str = "current_setting('transaction_read_only')::boolean";

/// Connects, and checks that the database can keep locks.
pub(crate) fn open(options: &ServerOptions, reporter: Arc<Reporter>) -> Result<Arc<dyn Store>> {
    let (renewal, dial) = Renewable::new(options, url::dial)?;
    let (dial, setup) = (Dial { renewal: Some(renewal), ..Dial::clone(&dial) }, setup(options));
    let deadline = Clock::System.after(options.connect_timeout);
    let mut first = PostgresConnection::open(&dial, &setup, deadline)?;
    let failed = |failure: Failure| failure.into_error().during("connect");
    let seen = check::session((&dial, &setup), &mut first, &options.table.name, deadline).map_err(failed)?;
    check::server(options, &seen).map_err(failed)?;
    let session_locks = options.table.session_locks;
    let found = if session_locks { None } else { Some(place::find(seen, options, &mut first, deadline)) };
    let (place, is_line_usable) = found.transpose().map_err(failed)?.unzip();
    // A table's locks and advisory locks of one name are not the same: each have channels of their own. One
    // table has one set of them, by whichever schema's name it is called.
    let realm = if session_locks { "" } else { options.table.name.rsplit('.').next().unwrap_or_default() };
    let listener = listener(dial.clone(), reporter, options, &realm.to_ascii_lowercase());
    let table = place.as_ref().map(|place| place.quoted.as_str());
    let queries = Queries::new(table.unwrap_or_default());
    let (line, notes, command_timeout) = (LineUse::default(), Notes::default(), options.command_timeout);
    let database = Postgres {
        dial,
        setup,
        queries,
        listener,
        line,
        notes,
        command_timeout,
        place,
        given_up: Mutex::default(),
    };
    if let Some(place) = &database.place {
        first.table = Some(place.shown.name.as_str().into());
        database.line.note_refused(is_line_usable == Some(false));
        check::trial(&database, &mut first, deadline).map_err(failed)?;
    }
    let pool = Pool::new(database, options.pool_size, first);
    if session_locks { Ok(Arc::new(SessionStore::new(pool))) } else { Ok(Arc::new(RowStore::new(pool))) }
}

/// The first statements on each connection: what the statements need, whatever the server, the database and
/// the role are set to. The server gives up when the client does; and grants are on the disk. Each statement
/// finds its rows by a key: a plan that reads the whole table looks good while the table is small, and stays
/// when versions of rows that are gone have made it large. Those few that do read the whole table then look
/// so dear that they would be compiled first, which takes longer than they do. Their plans do not depend on
/// the values, so that they are made once for each connection, and not five times more.
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
    "postgres": sweep, renew_free, take_kept, take_in_line, free_unawaited, old_versions, tell, leave_line, tidy_line, recall,
    look_kept,
);

struct Postgres {
    dial: Dial,
    setup: String,
    queries: Queries,
    listener: Arc<NotificationListener>,
    line: LineUse,
    notes: Notes,
    command_timeout: Duration,
    /// Session locks have none.
    place: Option<Place>,
    /// Sessions whose connections were given up, to be cancelled.
    given_up: Mutex<Vec<CancelToken>>,
}

impl Database for Postgres {
    type Link = PostgresConnection;

    fn connect(&self, deadline: Moment) -> Result<PostgresConnection> {
        let given_up = std::mem::take(&mut *self.given_up.lock());
        let mut link = PostgresConnection::open_instead(given_up, &self.dial, &self.setup, deadline)?;
        link.table = self.place.as_ref().map(|place| place.shown.name.as_str().into());
        Ok(link)
    }

    fn is_alive(&self, link: &mut PostgresConnection) -> bool {
        link.is_alive()
    }

    fn is_silent(&self, link: &PostgresConnection) -> bool {
        link.silent
    }

    /// A commit that waits for a standby is bound by no time-out of the server's. The next connection cancels
    /// it, so that there are no more sessions than connections.
    fn give_up(&self, link: PostgresConnection) {
        if link.silent {
            self.given_up.lock().push(link.cancel_token());
        }
    }

    fn note_read_only(&self) {
        self.listener.look_at_role();
    }
}

impl Rows for Postgres {
    const POLL_EVERY: (Duration, Duration) = (Duration::from_millis(1_000), Duration::from_millis(1_200));
    const WAKES: bool = true;
    const HAS_LINE: bool = true;

    fn statements(&self) -> &Statements {
        &self.queries.all
    }

    fn run(
        &self,
        link: &mut PostgresConnection,
        statement: &Statement,
        args: &Args,
        deadline: Moment,
    ) -> Answer<Vec<Record>> {
        link.run(statement, args, deadline)
    }

    fn here(&self) -> Location {
        self.notes.here()
    }

    fn keeper(&self, claim: &Claim) -> Option<String> {
        claim.keeps.then(|| self.listener.turn_channel(&claim.name, claim.owner.client()))
    }

    fn acquire(&self, link: &mut PostgresConnection, claim: &Claim, deadline: Moment) -> Answer<Attempt> {
        self.notes.without_if_refused(|| {
            // One that takes a free lock whomever it is kept for needs nothing of the line.
            if claim.turn == Turn::Barges || !self.has_line(claim.kind) {
                return acquire_by_row(self, link, claim, deadline);
            }
            self.acquire_in_line(link, claim, deadline)
        })
    }

    fn see_taken(&self, link: &mut PostgresConnection, claim: &Claim, taken: &Change<u64>, deadline: Moment) {
        self.recall(link, claim, taken, deadline);
    }

    fn leave(
        &self,
        link: &mut PostgresConnection,
        claim: &Claim,
        left: u32,
        deadline: Moment,
    ) -> Answer<Change<()>> {
        let changed = or_unheard(&self.listener.channel(&claim.name), |channel| {
            let args = Args::of(claim).and("left", left).and("channel", channel);
            self.change(link, &self.queries.all.leave, &args, deadline)
        });
        Ok(changed?.map(drop))
    }

    fn free(&self, link: &mut PostgresConnection, claim: &Claim, deadline: Moment) -> Answer<Change<Others>> {
        if self.has_line(claim.kind) {
            return self.free_and_tell(link, claim, deadline);
        }
        Ok(self.leave(link, claim, 0, deadline)?.map(|()| Others::Nobody))
    }

    fn is_line_refused(&self) -> bool {
        self.line.is_refused()
    }

    fn leave_line(&self, link: &mut PostgresConnection, claim: &Claim, deadline: Moment) -> Answer<()> {
        if self.has_line(claim.kind) { self.leave_the_line(link, claim, deadline) } else { Ok(()) }
    }

    fn renew(&self, link: &mut PostgresConnection, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        let mut answers = link.each(&self.queries.renew_free, claims.iter().map(Args::of), deadline);
        self.ask_again(link, (claims, &mut answers), deadline);
        answers
    }

    fn wait_for_rows(&self, link: &mut PostgresConnection, briefly: bool, deadline: Moment) -> Answer<()> {
        self.limit_waits(link, briefly, deadline)
    }

    fn look_kept(
        &self,
        link: &mut PostgresConnection,
        claims: &[Claim],
        deadline: Moment,
    ) -> Vec<Answer<KeptLook>> {
        if self.line.is_refused() {
            return claims.iter().map(|_| Ok(KeptLook::Wanted)).collect(); // nobody sees who wants it
        }
        self.look_in_line(link, claims, deadline)
    }

    fn force(
        &self,
        link: &mut PostgresConnection,
        name: &LockName,
        token: bool,
        deadline: Moment,
    ) -> Answer<Change<()>> {
        if token || self.line.is_refused() {
            return self.force_by_row(link, name, token, deadline);
        }
        self.force_and_tell(link, name, deadline)
    }

    fn sweep(&self, link: &mut PostgresConnection, age: Duration, deadline: Moment) -> Answer<u64> {
        let records = link.run(&self.queries.sweep, &Args::one("age_ms", age), deadline)?;
        if !self.line.is_refused() {
            match link.run(&self.queries.tidy_line, &Args::none(), deadline) {
                Err(Failure::Refused(error)) if is_of_table(&error) => self.line.note_refused(true),
                tidied => drop(tidied?),
            }
        }
        Ok(u64::try_from(records.len()).unwrap_or(0))
    }

    fn old_versions(
        &self,
        link: &mut PostgresConnection,
        age: Duration,
        deadline: Moment,
    ) -> Answer<Vec<String>> {
        let records = link.run(&self.queries.old_versions, &Args::one("age_ms", age), deadline)?;
        records.iter().map(|record| record.text(0)).collect()
    }

    fn table(&self) -> Option<&TableInUse> {
        self.place.as_ref().map(|place| &place.shown)
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
