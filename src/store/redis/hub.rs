//! Wake-ups: one subscriber connection per client, opened when the first waiter comes.
//!
//! Any thread writes SUBSCRIBE, under a lock; one thread reads. Replies come in the order of the commands, so a queue
//! of what was sent says which reply is whose; messages come in between.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::address::Address;
use super::link::Stream;
use super::reader::Reader;
use super::script::Request;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::report::Reporter;
use crate::lock::topic::{Listening, Source, Topic};
use crate::sync::channel::Sender;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::time::{Clock, Moment};

/// After so long without a word the server is asked for one; after as long again the link counts as dead.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// How long [`Hub::close`] waits for the reading thread, which may be connecting.
const LAST_WAIT: Duration = Duration::from_secs(1);

pub(super) struct Hub {
    pub(super) address: Arc<Address>,
    reporter: Arc<Reporter>,
    /// How long a subscription that nobody needs stays.
    pub(super) linger: Duration,
    /// [`SILENCE`], but in tests.
    pub(super) silence: Duration,
    pub(super) state: Mutex<State>,
    /// Signalled when there is a first topic, and on closing.
    pub(super) changed: Condvar,
    /// For handing itself out as a topic's source.
    me: Weak<Hub>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) closed: bool,
    pub(super) topics: HashMap<Box<str>, Entry>,
    /// The writing half, while connected.
    pub(super) writer: Option<Arc<Stream>>,
    /// What the replies to come are for, in order.
    pub(super) awaited: VecDeque<Awaited>,
    reader: Option<JoinHandle<()>>,
    /// The observer was told that wake-ups are not coming.
    told_down: bool,
}

pub(super) struct Entry {
    pub(super) topic: Arc<Topic>,
    /// The server refused this subscription.
    pub(super) refused: bool,
    /// Since when nobody listens.
    idle_since: Option<Moment>,
}

pub(super) enum Awaited {
    Subscribed(Arc<Topic>),
    Unsubscribed,
    Pong,
}

impl Hub {
    pub(super) fn new(
        address: Arc<Address>,
        reporter: Arc<Reporter>,
        linger: Duration,
        silence: Duration,
    ) -> Arc<Hub> {
        Arc::new_cyclic(|me| Hub {
            address,
            reporter,
            linger,
            silence,
            state: Mutex::default(),
            changed: Condvar::new(),
            me: me.clone(),
        })
    }

    /// Has `waker` woken at each message on `channel`. Never waits for the server: the reading thread connects.
    pub(super) fn listen(&self, channel: &str, waker: &Sender<()>) -> Option<Listening> {
        let me = self.me.upgrade()?;
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        // Joined under the lock that `sweep` and `left` also take: a topic that has just been joined is not ended.
        if let Some(entry) = state.topics.get_mut(channel) {
            entry.idle_since = None;
            let topic = Arc::clone(&entry.topic);
            return Some(Listening::new(topic, me, waker));
        }
        let topic = Arc::new(Topic::new(channel, false));
        let listening = Listening::new(Arc::clone(&topic), Arc::clone(&me) as Arc<dyn Source>, waker);
        let entry = Entry { topic: Arc::clone(&topic), refused: false, idle_since: None };
        state.topics.insert(channel.into(), entry);
        if state.writer.is_some() {
            state.subscribe([topic]);
        } else {
            self.changed.notify_all();
        }
        let failed = (state.reader.is_none()).then(|| start(me, &mut state).err()).flatten();
        if let Some(error) = failed {
            self.tell_down(&mut state, error);
        }
        drop(state);
        Some(listening)
    }

    /// How many messages were counted on `channel`, if a subscription stands.
    pub(super) fn heard(&self, channel: &str) -> Option<u64> {
        let state = self.state.lock();
        state.topics.get(channel).filter(|entry| entry.topic.is_up()).map(|entry| entry.topic.seen())
    }

    /// Hangs up and lets the reading thread end. Waits for it, but not for ever, and not if it is the caller.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        if let Some(writer) = state.writer.take() {
            writer.shutdown();
        }
        let reader = state.reader.take();
        self.changed.notify_all();
        let topics: Vec<_> = state.topics.drain().map(|(_, entry)| entry.topic).collect();
        MutexGuard::unlocked(&mut state, || topics.iter().for_each(|topic| topic.set_up(false)));
        let Some(reader) = reader.filter(|reader| reader.thread().id() != thread::current().id()) else {
            return;
        };
        let by = Clock::System.after(LAST_WAIT);
        while !reader.is_finished() {
            let left = by.since(Clock::System.now());
            if left.is_zero() {
                return;
            }
            // The reader signals as its last act; a little later it has ended.
            self.changed.wait_for(&mut state, left.min(Duration::from_millis(1)));
        }
        drop(state);
        drop(reader.join());
    }

    pub(super) fn tell_down(&self, state: &mut State, error: Error) {
        if !std::mem::replace(&mut state.told_down, true) {
            self.reporter.tell_later(move |observer| observer.wakeups(Some(&error)));
        }
    }

    pub(super) fn tell_up(&self, state: &mut State) {
        if state.told_down && !state.topics.values().any(|entry| entry.refused) {
            state.told_down = false;
            self.reporter.tell_later(|observer| observer.wakeups(None));
        }
    }
}

impl Source for Hub {
    fn left(&self, topic: &Arc<Topic>) {
        let mut state = self.state.lock();
        let now = Clock::System.now();
        let Some(entry) = state.topics.get_mut(topic.channel()) else { return };
        // Somebody may have joined since the listener left, even a new topic of this name.
        if !Arc::ptr_eq(&entry.topic, topic) || topic.listeners() > 0 {
            return;
        }
        entry.idle_since = Some(now);
        // A refused subscription does not linger, so that the next waiter asks again.
        if self.linger.is_zero() || entry.refused {
            state.sweep(Duration::ZERO, now);
        }
    }
}

impl State {
    /// Writes commands; a failed write ends the connection, which the reader notices.
    pub(super) fn write(&mut self, requests: impl IntoIterator<Item = (Request, Awaited)>) {
        let Some(writer) = self.writer.clone() else { return };
        let mut bytes = Vec::new();
        for (request, awaited) in requests {
            request.pack_into(&mut bytes);
            self.awaited.push_back(awaited);
        }
        if !bytes.is_empty() && writer.write_all(&bytes, Clock::System.after(SILENCE)).is_err() {
            writer.shutdown();
            self.writer = None;
        }
    }

    pub(super) fn subscribe(&mut self, topics: impl IntoIterator<Item = Arc<Topic>>) {
        self.write(
            topics
                .into_iter()
                .map(|topic| (Request::new("SUBSCRIBE").arg(topic.channel()), Awaited::Subscribed(topic))),
        );
    }

    /// Ends the topics that nobody has listened to for `linger`, and refused ones at once.
    pub(super) fn sweep(&mut self, linger: Duration, now: Moment) {
        let mut ended = Vec::new();
        self.topics.retain(|channel, entry| {
            let idle = entry.topic.listeners() == 0;
            let over = entry.idle_since.is_some_and(|since| entry.refused || now.since(since) >= linger);
            if !(idle && over) {
                return true;
            }
            if !entry.refused {
                ended.push((Request::new("UNSUBSCRIBE").arg(&**channel), Awaited::Unsubscribed));
            }
            false
        });
        self.write(ended);
    }
}

fn start(hub: Arc<Hub>, state: &mut State) -> Result<()> {
    let reader = thread::Builder::new()
        .name("leasehold-hub".to_owned())
        .spawn(move || {
            Reader::new(&hub).run();
            hub.changed.notify_all();
        })
        .map_err(|error| {
            Error::new(ErrorKind::Resource, "subscribe", "the system gives no thread").with_source(error)
        })?;
    state.reader = Some(reader);
    Ok(())
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}
