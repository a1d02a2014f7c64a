//! The poller lock of a name: the one client that looks often whether its lock is free.
//!
//! Nothing wakes the waiters of these servers, so they poll each 50–100 ms. Of the clients that wait for a
//! name, the one that has the name's poller lock, a lock by `GET_LOCK`, looks each few milliseconds besides,
//! and wakes its waiter when the lock is free. One thread and one connection of the client do that for all
//! names. The server takes the poller lock back when that connection ends, however it does.
//!
//! The poller lock only ever adds a wake-up: grants depend on the row, and waiters poll as if there were
//! none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mysql::OptsBuilder;
use mysql::prelude::Queryable;

use crate::error::Result;
use crate::hosts::Lifetime;
use crate::ident::LockName;
use crate::seam::hub::{Hub, News, WakeupProtocol};
use crate::seam::subscription::{Channel, Subscription};
use crate::seam::{Answer, Failure};
use crate::stores::sql::database::Link;
use crate::stores::sql::mysql::dial::Dial;
use crate::stores::sql::mysql::link::MysqlConnection;
use crate::stores::sql::mysql::refusal::{failed, read_only_now};
use crate::stores::sql::mysql::url::{READ_COMMITTED, settings};
use crate::stores::sql::statement::{Args, Record, Statement};
use crate::sync::Waker;
use crate::time::{Clock, Moment, random_between};

/// How often the client that has a poller lock looks.
const CHECK_EVERY: Duration = Duration::from_millis(5);
/// How long another waits until it tries the poller lock again: doubled from the first to the second.
const TRIES_EVERY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(320));
/// The most names that are watched at a time; waiters of others only poll.
const MOST_NAMES: usize = 64;
/// The time for which the connection is kept after the last waiter left.
const LINGER: Duration = Duration::from_secs(5);
/// The word that `look` returns beside the ids.
const READ_ONLY: &str = "read-only";
/// An answer that takes longer costs the connection, and with it the poller locks.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// The statements, for rows or for session locks.
pub(super) struct PollerLockQueries {
    /// Tries the poller lock of `:name`; also returns by which id `look` knows the name.
    pub(super) enter: Statement,
    /// Gives it back.
    pub(super) leave: Statement,
    /// Says which of the ids in the list, in place of `IDS`, are held; also `READ_ONLY` if the server takes
    /// no writes.
    pub(super) look: String,
    /// How that list is made: what stands for each id, in place of `ID`, and what stands between two.
    pub(super) list: (&'static str, &'static str),
    /// The table of the locks; nothing for session locks.
    pub(super) realm: String,
}

impl PollerLockQueries {
    fn of(&self, name: &str) -> Args {
        Args::one("name", name.as_bytes()).and("realm", &*self.realm)
    }
}

/// The channels are the names that are waited for. None is ever up: no waiter relies on a message.
pub(super) type TurnstileHub = Hub<PollerLocks>;

pub(super) struct PollerLocks {
    opts: OptsBuilder,
    dial: Dial,
    queries: PollerLockQueries,
}

/// The thread's knowledge of a name.
struct Watched {
    channel: Arc<Channel>,
    /// By which `look` knows it, once its poller lock is this client's.
    id: Option<String>,
    tries_at: Moment,
    pause: Duration,
}

impl WakeupProtocol for PollerLocks {
    type Note = ();
    type State = ();

    fn serve(&self, hub: &Arc<TurnstileHub>) -> Result<()> {
        if !hub.wait_for_channels() {
            return Ok(());
        }
        let conn = self.dial.connect(&self.opts, ANSWERS_WITHIN, Moment::NEVER)?;
        hub.state.lock().begin();
        let mut link = MysqlConnection::new(conn, ANSWERS_WITHIN, Moment::NEVER);
        self.watch(hub, &mut link).map_err(Failure::into_error)
    }
}

pub(super) fn poller_locks(opts: OptsBuilder, dial: Dial, queries: PollerLockQueries) -> Arc<TurnstileHub> {
    let opts = opts.read_timeout(Some(ANSWERS_WITHIN)).write_timeout(Some(ANSWERS_WITHIN));
    // The server gives up as soon: one that is hung up on while it waits goes on to wait.
    let opts = opts.init(settings(READ_COMMITTED, ANSWERS_WITHIN.as_secs()));
    Hub::new(PollerLocks { opts, dial, queries }, None, Duration::ZERO)
}

impl TurnstileHub {
    /// Has `waker` woken when the lock looks free while the poller lock is this client's. `None`: the waiter
    /// only polls.
    pub(super) fn listen_at(self: &Arc<Self>, name: &LockName, waker: &Waker) -> Option<Subscription> {
        let is_full = {
            let names = &self.state.lock().channels;
            names.len() >= MOST_NAMES && !names.contains_key(name.key())
        };
        if is_full { None } else { self.listen(name.key(), waker) }
    }
}

impl PollerLocks {
    /// Watches over one connection; `Ok` when nobody has listened for a while, the connection is old, or the
    /// client has ended. A server that takes no writes any more is not looked at: its locks are never freed,
    /// or seem free for ever.
    fn watch(&self, hub: &TurnstileHub, link: &mut MysqlConnection) -> Answer<()> {
        let mut watched: HashMap<Box<str>, Watched> = HashMap::new();
        let replaced_at = Clock::System.after(Lifetime::default().some_age());
        while Clock::System.now() < replaced_at {
            let Some(gone) = next(hub, &mut watched) else { return Ok(()) };
            for name in gone {
                link.run(&self.queries.leave, &self.queries.of(&name))?;
            }
            let now = Clock::System.now();
            let is_due = |watched: &Watched| watched.id.is_none() && watched.tries_at <= now;
            for (name, watched) in watched.iter_mut().filter(|(_, watched)| is_due(watched)) {
                let entered = link.run(&self.queries.enter, &self.queries.of(name))?;
                watched.id = entered.first().map_or(Ok(None), |entered| entered.maybe(0, Record::text))?;
                // A random part: waiters that came together do not go on together.
                watched.tries_at = now.plus(random_between((watched.pause / 2, watched.pause)));
                watched.pause = (watched.pause * 2).min(TRIES_EVERY.1);
            }
            self.look(link, &watched)?;
            hub.state.lock().stands();
        }
        Ok(())
    }

    /// Wakes the waiters of the locks that are free.
    fn look(&self, link: &mut MysqlConnection, watched: &HashMap<Box<str>, Watched>) -> Answer<()> {
        let fronts: Vec<_> = watched.values().filter_map(|one| Some((one.id.as_deref()?, one))).collect();
        if fronts.is_empty() {
            return Ok(());
        }
        // The ids are the server's own, of hexadecimal digits.
        let (each, between) = self.queries.list;
        let ids: Vec<_> = fronts.iter().map(|(id, _)| each.replace("ID", id)).collect();
        let text = self.queries.look.replace("IDS", &ids.join(between));
        let held: Vec<String> = link.conn.query(text).map_err(failed)?;
        if held.iter().any(|held| held == READ_ONLY) {
            return Err(Failure::Refused(read_only_now()));
        }
        for (id, one) in fronts {
            if !held.iter().any(|held| held == id) {
                one.channel.notify();
            }
        }
        Ok(())
    }
}

/// Sleeps until there is something to do, and brings `watched` up to date: the names that nobody waits for
/// any more and whose poller lock is still this client's. `None`: it is over.
fn next(hub: &TurnstileHub, watched: &mut HashMap<Box<str>, Watched>) -> Option<Vec<Box<str>>> {
    let mut state = hub.state.lock();
    let until = if watched.is_empty() {
        Clock::System.after(LINGER)
    } else if watched.values().any(|one| one.id.is_some()) {
        Clock::System.after(CHECK_EVERY)
    } else {
        watched.values().map(|one| one.tries_at).min().unwrap_or(Moment::NEVER)
    };
    loop {
        if state.closed {
            return None;
        }
        let news = state.take_news();
        let left = until.since(Clock::System.now());
        if news.is_empty() && left.is_zero() {
            return (!watched.is_empty()).then(Vec::new);
        }
        if news.is_empty() {
            hub.changed.wait_for(&mut state, left);
            continue;
        }
        let mut gone = Vec::new();
        for news in news {
            match news {
                News::Came(channel) => {
                    let (name, tries_at, pause) =
                        (channel.channel().into(), Clock::System.now(), TRIES_EVERY.0);
                    drop(watched.insert(name, Watched { channel, id: None, tries_at, pause }));
                }
                News::Went(channel) => {
                    let had = watched.remove(channel.channel()).is_some_and(|one| one.id.is_some());
                    gone.extend(had.then(|| channel.channel().into()));
                }
            }
        }
        return Some(gone);
    }
}
