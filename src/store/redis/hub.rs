//! Wake-ups: one subscriber connection per client, opened when the first waiter comes.
//!
//! Any thread adds commands to what is to be written, under a lock, and then writes as much as the socket takes at once,
//! without the lock: each attempt and each release takes it, and a server that does not read holds up none of them. What
//! is left is written when the server has answered something. One thread reads. Replies come in the order of the commands,
//! so a queue of what was sent says which reply is whose; messages come in between.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
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
use crate::sync::{Condvar, Mutex, MutexGuard, Waker};
use crate::time::{Clock, Moment};

/// After so long without a word the server is asked for one; after as long again the link counts as dead.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// So much is given to the socket at once.
const PIECE: usize = 64 * 1024;
/// How long [`Hub::close`] waits for the reading thread, which may be connecting.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// How a channel is listened to, and left.
#[derive(Debug)]
pub(super) struct Way {
    subscribe: &'static str,
    unsubscribe: &'static str,
}

pub(super) const PLAIN: Way = Way { subscribe: "SUBSCRIBE", unsubscribe: "UNSUBSCRIBE" };
/// On the members of a cluster that have the channel's slot.
pub(super) const SHARDED: Way = Way { subscribe: "SSUBSCRIBE", unsubscribe: "SUNSUBSCRIBE" };

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
    ways: &'static [Way],
    pub(super) closed: bool,
    pub(super) topics: HashMap<Box<str>, Entry>,
    /// The writing half, while connected.
    pub(super) writer: Option<Arc<Stream>>,
    /// What the replies to come are for, in order.
    pub(super) awaited: VecDeque<Awaited>,
    /// Commands that are still to be written, the first perhaps in part.
    out: VecDeque<u8>,
    is_writing: bool,
    /// Meanwhile another thread found something to write, or a sign that there is room for it.
    again: bool,
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
    /// One of several ways to listen to it, not the last.
    Half(Arc<Topic>),
    Subscribed(Arc<Topic>),
    Unsubscribed(Box<str>),
    Pong,
}

impl Hub {
    pub(super) fn new(
        address: Arc<Address>,
        reporter: Arc<Reporter>,
        linger: Duration,
        silence: Duration,
        ways: &'static [Way],
    ) -> Arc<Hub> {
        Arc::new_cyclic(|me| Hub {
            address,
            reporter,
            linger,
            silence,
            state: Mutex::new(State { ways, ..State::default() }),
            changed: Condvar::new(),
            me: me.clone(),
        })
    }

    /// Has `waker` woken at each message on `channel`. Never waits for the server: the reading thread connects.
    pub(super) fn listen(&self, channel: &str, waker: &Waker) -> Option<Listening> {
        let me = self.me.upgrade()?;
        let listening = self.listen_for(channel, waker, me);
        self.flush();
        listening
    }

    /// The same, on behalf of `source`, which passes on to [`Source::left`] whoever leaves. Writes nothing: that is left to
    /// [`flush`](Self::flush).
    pub(super) fn listen_for(
        &self,
        channel: &str,
        waker: &Waker,
        source: Arc<dyn Source>,
    ) -> Option<Listening> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        // Joined under the lock that `sweep` and `left` also take: a topic that has just been joined is not ended.
        if let Some(entry) = state.topics.get_mut(channel) {
            entry.idle_since = None;
            let topic = Arc::clone(&entry.topic);
            return Some(Listening::new(topic, source, waker));
        }
        let topic = Arc::new(Topic::new(channel, false));
        let listening = Listening::new(Arc::clone(&topic), source, waker);
        self.enter(&mut state, topic, None);
        drop(state);
        Some(listening)
    }

    /// Subscribes to a new topic, or has the reading thread do so when it is connected.
    fn enter(&self, state: &mut State, topic: Arc<Topic>, idle_since: Option<Moment>) {
        let entry = Entry { topic: Arc::clone(&topic), refused: false, idle_since };
        state.topics.insert(topic.channel().into(), entry);
        if state.writer.is_some() {
            state.subscribe([topic]);
        } else {
            self.changed.notify_all();
        }
        let me = self.me.upgrade().filter(|_| state.reader.is_none());
        if let Some(error) = me.and_then(|me| start(me, state).err()) {
            self.tell_down(state, error);
        }
    }

    /// Writes what there is to write, as much as the socket takes at once. The rest is left to the reading thread: there
    /// is no room because the server has not read what went before, and that will be answered.
    pub(super) fn flush(&self) {
        let mut state = self.state.lock();
        loop {
            let Some(writer) = state.writer.clone() else { return };
            // Said under the lock: the one who writes looks again. Pairs with the end of this loop.
            state.again |= state.is_writing;
            if state.is_writing || state.out.is_empty() {
                return;
            }
            let bytes: Vec<u8> = state.out.iter().take(PIECE).copied().collect();
            (state.is_writing, state.again) = (true, false);
            let written = MutexGuard::unlocked(&mut state, || writer.write_now(&bytes));
            if !state.writer.as_ref().is_some_and(|now| Arc::ptr_eq(now, &writer)) {
                return; // ended meanwhile; what there is to write is another connection's
            }
            state.is_writing = false;
            match written {
                Ok(count) => drop(state.out.drain(..count.min(bytes.len()))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !state.again {
                        return;
                    }
                }
                Err(_) => {
                    writer.shutdown(); // which the reader notices
                    state.writer = None;
                    state.out.clear();
                    return;
                }
            }
        }
    }

    /// Gives up the topics of the channels that another server has now; their waiters look again. Writes nothing, as
    /// [`listen_for`](Self::listen_for).
    pub(super) fn part_with(&self, is_elsewhere: impl Fn(&str) -> bool) -> Vec<(Arc<Topic>, Option<Moment>)> {
        let (mut parted, mut ended) = (Vec::new(), Vec::new());
        let mut state = self.state.lock();
        let ways = state.ways;
        state.topics.retain(|channel, entry| {
            let stays = !is_elsewhere(channel);
            if !stays {
                parted.push((Arc::clone(&entry.topic), entry.idle_since));
                ended.extend(ways.iter().map(|way| way.leave(channel)));
            }
            stays
        });
        state.write(ended);
        if state.topics.is_empty() {
            self.tell_up(&mut state);
        }
        // Under the lock: a confirmation that is being read must not come after. Pairs with `Reader::take`.
        parted.iter().for_each(|(topic, _)| topic.set_up(false));
        parted
    }

    /// Takes topics over that another hub has parted with. Writes nothing, as [`listen_for`](Self::listen_for).
    pub(super) fn adopt(&self, topic: Arc<Topic>, idle_since: Option<Moment>) {
        let mut state = self.state.lock();
        if !state.closed && !state.topics.contains_key(topic.channel()) {
            self.enter(&mut state, topic, idle_since);
        }
    }

    /// Hangs up and lets the reading thread end, without waiting for it.
    pub(super) fn dismiss(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        if let Some(writer) = state.writer.take() {
            writer.shutdown();
        }
        self.changed.notify_all();
    }

    /// How many messages were counted on `channel`, if a subscription stands.
    pub(super) fn heard(&self, channel: impl FnOnce() -> String) -> Option<u64> {
        let state = self.state.lock();
        if state.topics.is_empty() {
            return None; // as mostly, and the name need not be made
        }
        state.topics.get(&*channel()).filter(|entry| entry.topic.is_up()).map(|entry| entry.topic.seen())
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
            self.reporter.wakeups(Some(error));
        }
    }

    pub(super) fn tell_up(&self, state: &mut State) {
        if state.told_down && !state.topics.values().any(|entry| entry.refused) {
            state.told_down = false;
            self.reporter.wakeups(None);
        }
    }
}

impl Entry {
    /// Whether it is up or not by that topic, and by both ways if there are two.
    pub(super) fn is_of(&self, topic: &Arc<Topic>) -> bool {
        Arc::ptr_eq(&self.topic, topic) && !self.refused
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
            drop(state);
            self.flush();
        }
    }
}

impl State {
    /// Whether the next reply is to this client's own leaving of `channel`.
    pub(super) fn is_ending(&self, channel: &str) -> bool {
        matches!(self.awaited.front(), Some(Awaited::Unsubscribed(other)) if **other == *channel)
    }

    /// There is another connection, or none.
    pub(super) fn connect(&mut self, writer: Option<Arc<Stream>>) {
        self.writer = writer;
        // Who is still writing to the one before finds that out, and leaves these alone. Pairs with `Hub::flush`.
        (self.is_writing, self.again) = (false, false);
        self.awaited.clear();
        self.out.clear();
    }

    /// Has commands written by the next [`flush`](Hub::flush).
    pub(super) fn write(&mut self, requests: impl IntoIterator<Item = (Request, Awaited)>) {
        if self.writer.is_none() {
            return;
        }
        let mut bytes = Vec::new();
        for (request, awaited) in requests {
            request.pack_into(&mut bytes);
            self.awaited.push_back(awaited);
        }
        self.out.extend(bytes);
    }

    pub(super) fn subscribe(&mut self, topics: impl IntoIterator<Item = Arc<Topic>>) {
        let Some((last, others)) = self.ways.split_last() else { return };
        let mut requests = Vec::new();
        for topic in topics {
            let request = |way: &Way| Request::new(way.subscribe).arg(topic.channel());
            requests.extend(others.iter().map(|way| (request(way), Awaited::Half(Arc::clone(&topic)))));
            requests.push((request(last), Awaited::Subscribed(topic)));
        }
        self.write(requests);
    }

    /// Ends the topics that nobody has listened to for `linger`, and refused ones at once.
    pub(super) fn sweep(&mut self, linger: Duration, now: Moment) {
        let mut ended = Vec::new();
        let ways = self.ways;
        self.topics.retain(|channel, entry| {
            let idle = entry.topic.listeners() == 0;
            let over = entry.idle_since.is_some_and(|since| entry.refused || now.since(since) >= linger);
            if !(idle && over) {
                return true;
            }
            if !entry.refused {
                ended.extend(ways.iter().map(|way| way.leave(channel)));
            }
            false
        });
        self.write(ended);
    }
}

impl Way {
    fn leave(&self, channel: &str) -> (Request, Awaited) {
        (Request::new(self.unsubscribe).arg(channel), Awaited::Unsubscribed(channel.into()))
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
            Error::new(ErrorKind::Resource, "subscribe", "the system could not start a thread")
                .with_source(error)
        })?;
    state.reader = Some(reader);
    Ok(())
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}
