//! The turnstile of a name: the one client that looks often whether its lock is free.
//!
//! Nothing wakes the waiters of these servers, so they poll each 50–100 ms. Of the clients that wait for a
//! name, the one that has the name's turnstile, a lock by `GET_LOCK`, looks each few milliseconds besides,
//! and wakes its waiter when the lock is free. One thread and one connection of the client do that for all
//! names. The server takes the turnstile back when that connection ends, however it does.
//!
//! The turnstile only ever adds a wake-up: grants depend on the row, and waiters poll as if there were none.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder, params};

use crate::ident::LockName;
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::stores::sql::mysql::dial::Dial;
use crate::stores::sql::mysql::url::{READ_COMMITTED, settings};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, Waker};
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
/// Pauses between attempts to connect: doubled from the first to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

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

pub(super) struct Turnstiles {
    opts: OptsBuilder,
    dial: Dial,
    queries: TurnstileQueries,
    state: Mutex<TurnstileState>,
    /// Notifies the thread that names came or went, or that it is over; and `close` that it has ended.
    changed: Condvar,
    me: Weak<Turnstiles>,
}

#[derive(Default)]
struct TurnstileState {
    is_closed: bool,
    names: HashMap<Box<str>, Arc<Channel>>,
    thread: Option<JoinHandle<()>>,
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

impl Turnstiles {
    pub(super) fn new(opts: OptsBuilder, dial: Dial, queries: TurnstileQueries) -> Arc<Turnstiles> {
        let opts = opts.read_timeout(Some(ANSWERS_WITHIN)).write_timeout(Some(ANSWERS_WITHIN));
        // The server gives up as soon: one that is hung up on while it waits goes on to wait.
        let opts = opts.init(settings(READ_COMMITTED, ANSWERS_WITHIN.as_secs()));
        Arc::new_cyclic(|me| Turnstiles {
            opts,
            dial,
            queries,
            state: Mutex::default(),
            changed: Condvar::new(),
            me: me.clone(),
        })
    }

    /// Has `waker` woken when the lock looks free while the turnstile is this client's. Never waits for the
    /// server. `None`: the waiter only polls.
    pub(super) fn listen(&self, name: &LockName, waker: &Waker) -> Option<Subscription> {
        let me = self.me.upgrade()?;
        let mut state = self.state.lock();
        if state.is_closed || state.names.len() >= MOST_NAMES && !state.names.contains_key(name.key()) {
            return None;
        }
        if state.thread.is_none() {
            state.thread = start(Arc::clone(&me)).ok();
            state.thread.as_ref()?;
        }
        // Joined under the lock that `left` also takes: a name that has just been joined is not forgotten.
        // Never up: no waiter relies on a message.
        let channel = Arc::clone(
            state.names.entry(name.key().into()).or_insert_with(|| Arc::new(Channel::new(name.key(), false))),
        );
        let listening = Subscription::new(channel, me as Arc<dyn ChannelSource>, waker);
        drop(state);
        self.changed.notify_all();
        Some(listening)
    }

    /// Lets the thread end, which hangs up. Waits for it for a moment, but not if it is the caller.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let thread = state.thread.take();
        self.changed.notify_all();
        let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) else {
            return;
        };
        let deadline = Clock::System.after(ANSWERS_WITHIN);
        while !thread.is_finished() {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                return;
            }
            self.changed.wait_for(&mut state, left.min(Duration::from_millis(1)));
        }
        drop(state);
        drop(thread.join());
    }

    /// The thread's loop until the client ends. A failure costs the connection, and waiters poll meanwhile.
    fn run(&self) {
        let mut pause = PAUSES.0;
        while self.has_work() {
            let watched = self.connect().is_ok_and(|mut conn| self.watch(&mut conn, &mut pause).is_ok());
            if !watched {
                let mut state = self.state.lock();
                let deadline = Clock::System.after(pause);
                pause = (pause * 2).min(PAUSES.1);
                while !state.is_closed && deadline > Clock::System.now() {
                    self.changed.wait_for(&mut state, deadline.since(Clock::System.now()));
                }
            }
        }
    }

    /// Waits until somebody listens; `false`: the client has ended.
    fn has_work(&self) -> bool {
        let mut state = self.state.lock();
        while !state.is_closed && state.names.is_empty() {
            self.changed.wait(&mut state);
        }
        !state.is_closed
    }

    fn connect(&self) -> crate::error::Result<Conn> {
        self.dial.connect(&self.opts, ANSWERS_WITHIN, Moment::NEVER)
    }

    /// Watches over one connection; `Ok` when nobody has listened for a while, the connection is old, or the
    /// client has ended. A server that takes no writes any more is not looked at: its locks are never freed,
    /// or seem free for ever.
    fn watch(&self, conn: &mut Conn, pause: &mut Duration) -> mysql::Result<()> {
        let mut watched: HashMap<Box<str>, Watched> = HashMap::new();
        let replaced_at = Clock::System.after(OLDEST);
        while Clock::System.now() < replaced_at {
            let Some(gone) = self.next(&mut watched) else { return Ok(()) };
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
            *pause = PAUSES.0;
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

    /// Sleeps until there is something to do, and brings `watched` up to date: the names that nobody waits
    /// for any more and whose turnstile is still this client's. `None`: it is over.
    fn next(&self, watched: &mut HashMap<Box<str>, Watched>) -> Option<Vec<Box<str>>> {
        let mut state = self.state.lock();
        let until = if watched.is_empty() {
            Clock::System.after(if state.names.is_empty() { LINGER } else { Duration::ZERO })
        } else if watched.values().any(|one| one.id.is_some()) {
            Clock::System.after(LOOKS_EVERY)
        } else {
            let soonest = watched.values().map(|one| one.tries_at).min();
            soonest.unwrap_or(Moment::NEVER)
        };
        loop {
            if state.is_closed {
                return None;
            }
            let is_same = |name: &str, one: &Watched| {
                state.names.get(name).is_some_and(|channel| Arc::ptr_eq(channel, &one.channel))
            };
            let gone: Vec<_> = watched
                .iter()
                .filter(|(name, one)| !is_same(name, one))
                .map(|(name, _)| name.clone())
                .collect();
            let came = state.names.iter().filter(|(name, _)| !watched.contains_key(*name));
            let came: Vec<_> = came.map(|(name, channel)| (name.clone(), Arc::clone(channel))).collect();
            if gone.is_empty() && came.is_empty() {
                let left = until.since(Clock::System.now());
                if left.is_zero() {
                    return (!watched.is_empty()).then(Vec::new);
                }
                self.changed.wait_for(&mut state, left);
                continue;
            }
            let had = |name: Box<str>| watched.remove(&name).and_then(|one| one.id).map(|_| name);
            let gone = gone.into_iter().filter_map(had).collect();
            watched.extend(came.into_iter().map(|(name, channel)| (name, Watched::new(channel))));
            return Some(gone);
        }
    }
}

fn params(name: &str) -> mysql::Params {
    params! { "name" => name.as_bytes() }
}

impl ChannelSource for Turnstiles {
    fn left(&self, channel: &Arc<Channel>) {
        let mut state = self.state.lock();
        // Somebody may have joined since the listener left, even a new channel of this name.
        let is_over = |known: &Arc<Channel>| Arc::ptr_eq(known, channel) && channel.listeners() == 0;
        if state.names.get(channel.channel()).is_some_and(is_over) {
            state.names.remove(channel.channel());
            drop(state);
            self.changed.notify_all();
        }
    }
}

fn start(turnstiles: Arc<Turnstiles>) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("leasehold-turns".to_owned()).spawn(move || turnstiles.run())
}

impl fmt::Debug for Turnstiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turnstiles").finish_non_exhaustive()
    }
}
