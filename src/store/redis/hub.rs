//! Wake-ups: one subscriber connection per client, opened when the first waiter comes.
//!
//! Any thread writes SUBSCRIBE, under a lock; one thread reads. Replies come in the order of the commands, so a queue
//! of what was sent says which reply is whose; messages come in between.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::Sender;
use parking_lot::{Condvar, Mutex, MutexGuard};
use redis::{Parser, ServerError, Value};

use super::address::Address;
use super::handshake;
use super::link::{Stream, unread};
use super::reply::{Expected, refusal};
use super::script::Request;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::report::Reporter;
use crate::lock::topic::{Listening, Source, Topic};
use crate::time::{Clock, Moment};

/// After so long without a word the server is asked for one; after as long again the link counts as dead.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// Waits between connects: at least, at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The reader looks up no more often than this while nothing comes.
const LEAST_TICK: Duration = Duration::from_millis(20);
/// How long [`Hub::close`] waits for the reading thread, which may be connecting.
const LAST_WAIT: Duration = Duration::from_secs(1);

pub(super) struct Hub {
    address: Arc<Address>,
    reporter: Arc<Reporter>,
    /// How long a subscription that nobody needs stays.
    linger: Duration,
    /// [`SILENCE`], but in tests.
    silence: Duration,
    state: Mutex<State>,
    /// Signalled when there is a first topic, and on closing.
    changed: Condvar,
    /// For handing itself out as a topic's source.
    me: Weak<Hub>,
}

#[derive(Default)]
struct State {
    closed: bool,
    topics: HashMap<Box<str>, Entry>,
    /// The writing half, while connected.
    writer: Option<Arc<Stream>>,
    /// What the replies to come are for, in order.
    awaited: VecDeque<Awaited>,
    reader: Option<JoinHandle<()>>,
    /// The observer was told that wake-ups are not coming.
    told_down: bool,
}

struct Entry {
    topic: Arc<Topic>,
    /// The server refused this subscription.
    refused: bool,
    /// Since when nobody listens.
    idle_since: Option<Moment>,
}

enum Awaited {
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

    fn tell_down(&self, state: &mut State, error: Error) {
        if !std::mem::replace(&mut state.told_down, true) {
            self.reporter.tell_later(move |observer| observer.wakeups(Some(&error)));
        }
    }

    fn tell_up(&self, state: &mut State) {
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
    fn write(&mut self, requests: impl IntoIterator<Item = (Request, Awaited)>) {
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

    fn subscribe(&mut self, topics: impl IntoIterator<Item = Arc<Topic>>) {
        self.write(
            topics
                .into_iter()
                .map(|topic| (Request::new("SUBSCRIBE").arg(topic.channel()), Awaited::Subscribed(topic))),
        );
    }

    /// Ends the topics that nobody has listened to for `linger`, and refused ones at once.
    fn sweep(&mut self, linger: Duration, now: Moment) {
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
            Reader { hub: &hub, back_off: BACK_OFF.0 }.run();
            hub.changed.notify_all();
        })
        .map_err(|error| {
            Error::new(ErrorKind::Resource, "subscribe", "the system gives no thread").with_source(error)
        })?;
    state.reader = Some(reader);
    Ok(())
}

/// The reading thread.
struct Reader<'a> {
    hub: &'a Hub,
    back_off: Duration,
}

impl Reader<'_> {
    fn run(mut self) {
        while self.is_needed() {
            let by = Clock::System.after(self.hub.address.connect_timeout);
            let error = match handshake::open(&self.hub.address, by) {
                Ok(link) => {
                    let stream = Arc::new(link.into_stream());
                    let Some(error) = self.serve(&stream) else { return };
                    stream.shutdown();
                    error
                }
                Err(error) => error,
            };
            self.disconnected(error);
        }
    }

    /// Waits until there is a topic; `false`: the hub was closed.
    fn is_needed(&self) -> bool {
        let mut state = self.hub.state.lock();
        while !state.closed && state.topics.is_empty() {
            self.hub.changed.wait(&mut state);
        }
        !state.closed
    }

    /// Takes all topics down and lets some time pass, so that a server in trouble is not stormed.
    fn disconnected(&mut self, error: Error) {
        let mut state = self.hub.state.lock();
        state.writer = None;
        state.awaited.clear();
        state.sweep(self.hub.linger, Clock::System.now());
        let topics: Vec<_> = state.topics.values().map(|entry| Arc::clone(&entry.topic)).collect();
        if !state.closed && !topics.is_empty() {
            self.hub.tell_down(&mut state, error);
        }
        MutexGuard::unlocked(&mut state, || {
            topics.iter().filter(|topic| topic.is_up()).for_each(|topic| topic.set_up(false));
        });
        let until = Clock::System.after(self.back_off + jitter(self.back_off));
        self.back_off = (self.back_off * 2).min(BACK_OFF.1);
        while !state.closed {
            let left = until.since(Clock::System.now());
            if left.is_zero() {
                return;
            }
            self.hub.changed.wait_for(&mut state, left);
        }
    }

    /// Reads until the connection ends, and says why; `None`: the hub was closed.
    fn serve(&mut self, stream: &Arc<Stream>) -> Option<Error> {
        {
            let mut state = self.hub.state.lock();
            if state.closed {
                return None;
            }
            state.writer = Some(Arc::clone(stream));
            for entry in state.topics.values_mut() {
                entry.refused = false;
            }
            let topics: Vec<_> = state.topics.values().map(|entry| Arc::clone(&entry.topic)).collect();
            state.subscribe(topics);
        }
        let mut parser = Parser::new();
        let mut heard = Clock::System.now();
        let mut asked = false;
        // Short enough to end idle subscriptions in time.
        let (linger, silence) = (self.hub.linger, self.hub.silence);
        let tick = if linger.is_zero() { silence } else { linger.max(LEAST_TICK).min(silence) };
        let mut next_sweep = Clock::System.after(tick);
        loop {
            if let Err(error) = stream.set_read_timeout(tick) {
                return self.ended(super::link::broken("subscribe", error));
            }
            let reply = parser.parse_value(stream.as_ref());
            let now = Clock::System.now();
            match reply {
                Ok(reply) => {
                    (heard, asked) = (now, false);
                    if let Err(error) = self.take(reply) {
                        return self.ended(error);
                    }
                }
                Err(error) if error.is_timeout() => {}
                Err(error) => return self.ended(unread(error).during("subscribe")),
            }
            if now >= next_sweep {
                next_sweep = now.plus(tick);
                self.hub.state.lock().sweep(linger, now);
            }
            if now.since(heard) >= silence {
                if asked {
                    let words = "the server was silent for too long";
                    return self.ended(Error::new(ErrorKind::TimedOut, "subscribe", words));
                }
                // Any answer will do, a refusal too.
                (heard, asked) = (now, true);
                self.hub.state.lock().write([(Request::new("PING"), Awaited::Pong)]);
            }
        }
    }

    fn ended(&self, error: Error) -> Option<Error> {
        (!self.hub.state.lock().closed).then_some(error)
    }

    /// Acts on one message or reply.
    fn take(&mut self, reply: Value) -> Result<()> {
        if let Value::Array(items) = &reply
            && let [Value::BulkString(kind), Value::BulkString(channel), _] = items.as_slice()
            && kind == b"message"
        {
            let topic = std::str::from_utf8(channel).ok().and_then(|channel| {
                self.hub.state.lock().topics.get(channel).map(|entry| Arc::clone(&entry.topic))
            });
            if let Some(topic) = topic {
                topic.deliver();
            }
            return Ok(());
        }
        let mut state = self.hub.state.lock();
        match (state.awaited.pop_front(), reply) {
            (Some(Awaited::Subscribed(topic)), Value::ServerError(error)) => {
                self.refused(&mut state, &topic, &error);
            }
            (Some(Awaited::Subscribed(topic)), _) => {
                self.back_off = BACK_OFF.0;
                self.hub.tell_up(&mut state);
                drop(state);
                topic.set_up(true);
            }
            (Some(Awaited::Unsubscribed | Awaited::Pong), _) => {}
            (None, _) => {
                let words = "the server sent what nobody asked for";
                return Err(Error::new(ErrorKind::Protocol, "subscribe", words));
            }
        }
        Ok(())
    }

    /// The topic stays down; its waiters poll.
    fn refused(&self, state: &mut State, topic: &Arc<Topic>, error: &ServerError) {
        let error = refusal(error, Expected::Nothing).during("subscribe");
        self.hub.tell_down(state, error);
        if let Some(entry) = state.topics.get_mut(topic.channel())
            && Arc::ptr_eq(&entry.topic, topic)
        {
            entry.refused = true;
        }
        state.sweep(self.hub.linger, Clock::System.now());
    }
}

/// Some part of `most`, different each time, so that clients of a server that was down do not come back as one.
fn jitter(most: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 1024;
    most * u32::try_from(random).unwrap_or_default() / 1024
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}
