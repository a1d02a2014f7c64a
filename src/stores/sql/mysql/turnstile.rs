//! The turnstile of a name: the one client that looks often whether its lock is free.
//!
//! Nothing wakes the waiters of these servers, so they poll each 50–100 ms. Of the clients that wait for a
//! name, the one that has the name's turnstile, a lock by `GET_LOCK`, looks each few milliseconds besides,
//! and wakes its waiter when the lock is free. One thread and one connection of the client do that for all
//! names. The server takes the turnstile back when that connection ends, however it does.
//!
//! The turnstile only ever adds a wake-up: grants depend on the row, and waiters poll as if there were none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder, params};

use crate::error::Result;
use crate::ident::LockName;
use crate::seam::hub::{Hub, News, WakeupProtocol};
use crate::seam::subscription::{Channel, Subscription};
use crate::stores::sql::mysql::dial::Dial;
use crate::stores::sql::mysql::refusal::refused;
use crate::stores::sql::mysql::url::{READ_COMMITTED, settings};
use crate::sync::Waker;
use crate::time::{Clock, Moment, random_between};

/// How often the client that has a turnstile looks.
const LOOKS_EVERY: Duration = Duration::from_millis(5);
/// How long another waits until it tries the turnstile again: doubled from the first to the second.
const TRIES_EVERY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(320));
/// The most names that are watched at a time; waiters of others only poll.
const MOST_NAMES: usize = 64;
/// The time for which the connection is kept after the last waiter left.
const LINGER: Duration = Duration::from_secs(5);
/// A connection is not kept for longer, for the reasons of the pool's.
const OLDEST: Duration = Duration::from_secs(30 * 60);
/// The word that `look` returns beside the ids.
const READ_ONLY: &str = "read-only";
/// An answer that takes longer costs the connection, and with it the turnstiles.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// The statements, for rows or for session locks.
pub(super) struct TurnstileQueries {
    /// Tries the turnstile of `:name`; also returns by which id `look` knows the name.
    pub(super) enter: String,
    /// Gives it back.
    pub(super) leave: String,
    /// Says which of the ids in the list, in place of `IDS`, are held; also `READ_ONLY` if the server takes
    /// no writes.
    pub(super) look: String,
    /// How that list is made: what stands for each id, in place of `ID`, and what stands between two.
    pub(super) list: (&'static str, &'static str),
}

/// The channels are the names that are waited for. None is ever up: no waiter relies on a message.
pub(super) type TurnstileHub = Hub<Turnstiles>;

pub(super) struct Turnstiles {
    opts: OptsBuilder,
    dial: Dial,
    queries: TurnstileQueries,
}

/// The thread's knowledge of a name.
struct Watched {
    channel: Arc<Channel>,
    /// By which `look` knows it, once its turnstile is this client's.
    id: Option<String>,
    tries_at: Moment,
    pause: Duration,
}

impl Watched {
    fn new(channel: Arc<Channel>) -> Watched {
        Watched { channel, id: None, tries_at: Clock::System.now(), pause: TRIES_EVERY.0 }
    }
}

impl WakeupProtocol for Turnstiles {
    type Note = ();
    type State = ();

    fn serve(&self, hub: &Arc<TurnstileHub>) -> Result<()> {
        if !hub.wait_for_channels() {
            return Ok(());
        }
        let mut conn = self.dial.connect(&self.opts, ANSWERS_WITHIN, Moment::NEVER)?;
        hub.state.lock().begin();
        self.watch(hub, &mut conn).map_err(refused)
    }
}

pub(super) fn turnstiles(opts: OptsBuilder, dial: Dial, queries: TurnstileQueries) -> Arc<TurnstileHub> {
    let opts = opts.read_timeout(Some(ANSWERS_WITHIN)).write_timeout(Some(ANSWERS_WITHIN));
    // The server gives up as soon: one that is hung up on while it waits goes on to wait.
    let opts = opts.init(settings(READ_COMMITTED, ANSWERS_WITHIN.as_secs()));
    Hub::new(Turnstiles { opts, dial, queries }, None, Duration::ZERO)
}

impl TurnstileHub {
    /// Has `waker` woken when the lock looks free while the turnstile is this client's. `None`: the waiter
    /// only polls.
    pub(super) fn listen_at(self: &Arc<Self>, name: &LockName, waker: &Waker) -> Option<Subscription> {
        let is_full = {
            let names = &self.state.lock().channels;
            names.len() >= MOST_NAMES && !names.contains_key(name.key())
        };
        if is_full { None } else { self.listen(name.key(), waker) }
    }
}

impl Turnstiles {
    /// Watches over one connection; `Ok` when nobody has listened for a while, the connection is old, or the
    /// client has ended. A server that takes no writes any more is not looked at: its locks are never freed,
    /// or seem free for ever.
    fn watch(&self, hub: &TurnstileHub, conn: &mut Conn) -> mysql::Result<()> {
        let mut watched: HashMap<Box<str>, Watched> = HashMap::new();
        let replaced_at = Clock::System.after(OLDEST);
        while Clock::System.now() < replaced_at {
            let Some(gone) = next(hub, &mut watched) else { return Ok(()) };
            for name in gone {
                conn.exec_drop(&self.queries.leave, params(&name))?;
            }
            let now = Clock::System.now();
            let is_due = |watched: &Watched| watched.id.is_none() && watched.tries_at <= now;
            for (name, watched) in watched.iter_mut().filter(|(_, watched)| is_due(watched)) {
                let entered: Option<(Option<i64>, String)> =
                    conn.exec_first(&self.queries.enter, params(name))?;
                watched.id = entered.and_then(|(entered, id)| (entered == Some(1)).then_some(id));
                // A random part: waiters that came together do not go on together.
                watched.tries_at = now.plus(random_between((watched.pause / 2, watched.pause)));
                watched.pause = (watched.pause * 2).min(TRIES_EVERY.1);
            }
            self.look(conn, &watched)?;
            hub.state.lock().stands();
        }
        Ok(())
    }

    /// Wakes the waiters of the locks that are free.
    fn look(&self, conn: &mut Conn, watched: &HashMap<Box<str>, Watched>) -> mysql::Result<()> {
        let fronts: Vec<_> = watched.values().filter_map(|one| Some((one.id.as_deref()?, one))).collect();
        if fronts.is_empty() {
            return Ok(());
        }
        // The ids are the server's own, of hexadecimal digits.
        let (each, between) = self.queries.list;
        let ids: Vec<_> = fronts.iter().map(|(id, _)| each.replace("ID", id)).collect();
        let held: Vec<String> = conn.query(self.queries.look.replace("IDS", &ids.join(between)))?;
        if held.iter().any(|held| held == READ_ONLY) {
            return Err(mysql::Error::IoError(std::io::Error::other("the server is read-only")));
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
/// any more and whose turnstile is still this client's. `None`: it is over.
fn next(hub: &TurnstileHub, watched: &mut HashMap<Box<str>, Watched>) -> Option<Vec<Box<str>>> {
    let mut state = hub.state.lock();
    let until = if watched.is_empty() {
        Clock::System.after(LINGER)
    } else if watched.values().any(|one| one.id.is_some()) {
        Clock::System.after(LOOKS_EVERY)
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
                    drop(watched.insert(channel.channel().into(), Watched::new(channel)));
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

fn params(name: &str) -> mysql::Params {
    params! { "name" => name.as_bytes() }
}
