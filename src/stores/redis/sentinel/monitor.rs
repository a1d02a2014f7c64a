//! The thread that looks out for another master.
//!
//! It keeps a connection to each Sentinel, over which it is notified of switches at once, and asks them all
//! each second in case the message is lost. Its news goes to `Sentinels`, which ends the connections to the
//! old master.

use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use redis::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::stores::redis::conn::connection::{Connection, ServerPlace};
use crate::stores::redis::reply::{Expected, accepted, refusal};
use crate::stores::redis::script::Command;
use crate::stores::redis::sentinel::{CHANNELS, Sentinels};
use crate::sync::{Condvar, Mutex};
use crate::time::{Clock, Moment};
use crate::wire::{Wire, await_any};

/// How often all Sentinels are asked.
const EVERY: Duration = Duration::from_secs(1);
/// How long one Sentinel may keep the others waiting.
const MOST: Duration = Duration::from_secs(1);
/// Before a Sentinel that failed is connected to again: at least, at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(16));
/// How long [`SentinelMonitor::close`] waits for the thread, which may be connecting.
const LAST_WAIT: Duration = Duration::from_secs(1);

pub(crate) struct SentinelMonitor {
    shared: Arc<MonitorShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct MonitorShared {
    sentinels: Arc<Sentinels>,
    state: Mutex<MonitorState>,
    /// Signalled on closing, and at the end of the thread.
    changed: Condvar,
}

#[derive(Default)]
struct MonitorState {
    closed: bool,
    /// The connections to Sentinels, for ending them.
    open: Vec<Weak<Wire>>,
}

struct Post {
    place: Arc<ServerPlace>,
    connection: Option<Connection>,
    next: Moment,
    back_off: Duration,
}

impl SentinelMonitor {
    pub(crate) fn start(sentinels: &Arc<Sentinels>) -> Result<SentinelMonitor> {
        let shared = Arc::new(MonitorShared {
            sentinels: Arc::clone(sentinels),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("leasehold-sentinel".to_owned())
            .spawn(move || {
                theirs.run();
                theirs.changed.notify_all();
            })
            .map_err(|error| {
                Error::new(ErrorKind::Resource, "connect", "the system could not start a thread")
                    .with_source(error)
            })?;
        Ok(SentinelMonitor { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Has the thread end, and waits for that, but not for ever.
    pub(crate) fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        for stream in state.open.drain(..).filter_map(|stream| stream.upgrade()) {
            stream.shutdown();
        }
        self.shared.changed.notify_all();
        let Some(thread) = self.thread.lock().take() else { return };
        let deadline = Clock::System.after(LAST_WAIT);
        while !thread.is_finished() {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                return;
            }
            // The thread signals as its last act; a little later it has ended.
            self.shared.changed.wait_for(&mut state, left.min(Duration::from_millis(1)));
        }
        drop(state);
        drop(thread.join());
    }
}

impl Drop for SentinelMonitor {
    /// For a store that was never put to use: else it was closed.
    fn drop(&mut self) {
        self.close();
    }
}

impl MonitorShared {
    fn run(&self) {
        let post = |place| Post { place, connection: None, next: Clock::System.now(), back_off: BACK_OFF.0 };
        let mut posts: Vec<Post> = self.sentinels.places().into_iter().map(post).collect();
        loop {
            let next = Clock::System.after(EVERY);
            self.round(&mut posts);
            if !self.rest(&posts, next) {
                return;
            }
        }
    }

    fn round(&self, posts: &mut [Post]) {
        let deadline = Clock::System.after(MOST);
        for post in posts.iter_mut() {
            post.talk(|connection| self.sentinels.send_question(connection, deadline));
        }
        let said: Vec<_> = posts
            .iter_mut()
            .filter_map(|post| post.talk(|connection| self.sentinels.read_answer(connection, deadline)))
            .collect();
        self.sentinels.learn_from_all(&said, Clock::System.now());
        // Last, since it may take long.
        for post in posts.iter_mut() {
            let now = Clock::System.now();
            if post.connection.is_none() && now >= post.next {
                post.connection = self.connect(&post.place, now.plus(MOST)).ok();
                post.note(post.connection.is_some());
            }
        }
    }

    /// RESP3, in which messages and replies come over one connection.
    fn connect(&self, place: &ServerPlace, deadline: Moment) -> Result<Connection> {
        let mut commands = vec![Command::new("HELLO").arg(3_u32)];
        commands.extend(CHANNELS.map(|channel| Command::new("SUBSCRIBE").arg(channel)));
        // Known before anything is said: closing does not wait for a Sentinel that says nothing.
        let mut connection =
            self.sentinels.greet(place, &commands, deadline, |stream| self.register(stream))?;
        accepted(connection.receive(deadline)?).map_err(|error| refusal(&error, Expected::Nothing))?;
        for _ in CHANNELS {
            // Confirmed, or refused: without a subscription the Sentinel is asked each second.
            let _either: Value = connection.receive(deadline)?;
        }
        Ok(connection)
    }

    /// Has the connection ended on closing; that may be now.
    fn register(&self, stream: &Arc<Wire>) {
        let mut state = self.state.lock();
        if state.closed {
            return stream.shutdown();
        }
        state.open.retain(|stream| stream.strong_count() > 0);
        state.open.push(Arc::downgrade(stream));
    }

    /// Waits for a word of a Sentinel, until `next` at most; `false`: the client was shut down.
    fn rest(&self, posts: &[Post], next: Moment) -> bool {
        let streams: Vec<_> =
            posts.iter().filter_map(|post| Some(&**post.connection.as_ref()?.stream())).collect();
        if !streams.is_empty() {
            // On closing they end, which ends this too.
            await_any(streams.into_iter(), next.since(Clock::System.now()));
        }
        let mut state = self.state.lock();
        while posts.iter().all(|post| post.connection.is_none()) && !state.closed {
            let left = next.since(Clock::System.now());
            if left.is_zero() {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        !state.closed
    }
}

impl Post {
    /// Uses the connection, if there is one; a failure ends it.
    fn talk<T>(&mut self, talk: impl FnOnce(&mut Connection) -> Result<T>) -> Option<T> {
        let result = talk(self.connection.as_mut()?).ok();
        if result.is_none() {
            self.connection = None;
            self.note(false);
        }
        result
    }

    fn note(&mut self, is_well: bool) {
        if is_well {
            self.back_off = BACK_OFF.0;
        } else {
            self.next = Clock::System.after(self.back_off);
            self.back_off = (self.back_off * 2).min(BACK_OFF.1);
        }
    }
}
