//! The poller lock of a name: the client that has it polls this name often.
//!
//! MySQL and MariaDB wake no waiters, so waiters poll every 50–100 ms. Of the clients that wait for a name,
//! the one with the name's poller lock (`GET_LOCK`) also polls every 5 ms, and wakes its own waiter when the
//! lock is free. One thread and one connection of a client do this for up to 64 names. When the connection
//! ends, the server frees its poller locks.
//!
//! The poller lock only adds wake-ups: no grant depends on it, and all waiters keep polling.

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
use crate::stores::sql::mysql::url::settings;
use crate::stores::sql::statement::{Args, Record, Statement};
use crate::sync::Waker;
use crate::time::{Clock, Moment, random_between};

const CHECK_EVERY: Duration = Duration::from_millis(5);
/// The limit of the random pause between two tries for a poller lock: at first, and at most. Each failed try
/// doubles the limit.
const TRIES_EVERY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(320));
/// Maximum number of names polled at a time. Waiters for other names poll only by themselves.
const MOST_NAMES: usize = 64;
const LINGER: Duration = Duration::from_secs(5);
const READ_ONLY: &str = "read-only";
/// The time-out for an answer. After a late answer the connection is dropped, with its poller locks.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct PollerLockQueries {
    /// Tries to take the poller lock of `:name`. If that succeeds, returns the name's id for `look`.
    pub(super) enter: Statement,
    pub(super) leave: Statement,
    /// A statement that returns those ids of the list `IDS` whose locks are held, and `READ_ONLY` if the
    /// server is read-only.
    pub(super) look: String,
    pub(super) list: (&'static str, &'static str),
    pub(super) realm: String,
}

impl PollerLockQueries {
    fn of(&self, name: &str) -> Args {
        Args::one("name", name.as_bytes()).and("realm", &*self.realm)
    }
}

/// A channel for each name. No channel ever counts as working, so waiters also poll by themselves.
pub(super) type PollerHub = Hub<PollerLocks>;

pub(super) struct PollerLocks {
    opts: OptsBuilder,
    dial: Dial,
    queries: PollerLockQueries,
}

struct Watched {
    channel: Arc<Channel>,
    /// The name's id for `look` while this client has the poller lock, else `None`.
    id: Option<String>,
    tries_at: Moment,
    pause: Duration,
}

impl WakeupProtocol for PollerLocks {
    type Note = ();
    type State = ();

    fn serve(&self, hub: &Arc<PollerHub>) -> Result<()> {
        if !hub.wait_for_channels() {
            return Ok(());
        }
        let conn = self.dial.connect(&self.opts, ANSWERS_WITHIN, Moment::NEVER)?;
        hub.state.lock().begin();
        let mut link = MysqlConnection::new(conn, Moment::NEVER);
        self.watch(hub, &mut link).map_err(Failure::into_error)
    }
}

pub(super) fn poller_locks(opts: OptsBuilder, dial: Dial, queries: PollerLockQueries) -> Arc<PollerHub> {
    let opts = opts.read_timeout(Some(ANSWERS_WITHIN)).write_timeout(Some(ANSWERS_WITHIN));
    // The server gets this limit too, because it would wait for a locked table even after a disconnect.
    let opts = opts.init(settings(ANSWERS_WITHIN.as_secs()));
    Hub::new(PollerLocks { opts, dial, queries }, None, Duration::ZERO)
}

impl PollerHub {
    /// Wakes `waker` when a poll finds the lock free. `None` if this client already polls `MOST_NAMES` names.
    pub(super) fn listen_at(self: &Arc<Self>, name: &LockName, waker: &Waker) -> Option<Subscription> {
        let is_full = {
            let names = &self.state.lock().channels;
            names.len() >= MOST_NAMES && !names.contains_key(name.key())
        };
        if is_full { None } else { self.listen(name.key(), waker) }
    }
}

impl PollerLocks {
    /// Polls over one connection. Ends with `Ok` when no waiter has come for a while, the connection is old,
    /// or the client is closed. A read-only server is an error, because its rows do not change any more.
    fn watch(&self, hub: &PollerHub, link: &mut MysqlConnection) -> Answer<()> {
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
                // The pause is random, so that clients that began together do not go on trying together.
                watched.tries_at = now.plus(random_between((watched.pause / 2, watched.pause)));
                watched.pause = (watched.pause * 2).min(TRIES_EVERY.1);
            }
            self.look(link, &watched)?;
            hub.state.lock().stands();
        }
        Ok(())
    }

    fn look(&self, link: &mut MysqlConnection, watched: &HashMap<Box<str>, Watched>) -> Answer<()> {
        let fronts: Vec<_> = watched.values().filter_map(|one| Some((one.id.as_deref()?, one))).collect();
        if fronts.is_empty() {
            return Ok(());
        }
        // The ids consist of hexadecimal digits, so they need no escape.
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

/// Sleeps until a poll or try is due, or waiters come or go. Returns the names that no waiter wants any more,
/// but whose poller locks this client has. `None` if the client is closed, or no waiter came for `LINGER`.
fn next(hub: &PollerHub, watched: &mut HashMap<Box<str>, Watched>) -> Option<Vec<Box<str>>> {
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
