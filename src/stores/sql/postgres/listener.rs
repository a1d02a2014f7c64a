//! Wake-ups: one listening connection per client, opened when the first waiter comes.
//!
//! Waiters only change the set of channels and wake the one thread, which LISTENs and UNLISTENs. A channel is
//! up once the server has confirmed its LISTEN: messages committed after that are received.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client};

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ClientId, LockName};
use crate::observe::reporter::Reporter;
use crate::room::CrowdMap;
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::stores::sql::postgres::driver::{Driver, within};
use crate::stores::sql::postgres::link::{Dial, STAYS, last_word};
use crate::stores::sql::postgres::refusal::{read_only_now, unreachable};
use crate::stores::sql::timed_out;
use crate::sync::Waker;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};
use crate::time::{Clock, Moment};

/// The time without a word after which the server is asked for one; after as long again the connection counts
/// as dead.
const SILENCE: Duration = Duration::from_secs(5);
/// A connection is not kept for longer, for the reasons of the pool's.
const OLDEST: Duration = Duration::from_secs(30 * 60);
/// Pauses between attempts to connect: doubled from the first to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

pub(super) struct NotificationListener {
    dial: Dial,
    /// The locks' realm: the same name elsewhere has another channel.
    realm: String,
    connect_timeout: Duration,
    /// How long a channel that nobody needs stays.
    linger: Duration,
    reporter: Arc<Reporter>,
    state: Mutex<ListenerState>,
    /// Notifies the thread that channels came or went, or that it is over.
    changed: Notify,
    ended: Condvar,
    me: Weak<NotificationListener>,
}

#[derive(Default)]
struct ListenerState {
    closed: bool,
    channels: CrowdMap<Box<str>, ListenEntry>,
    thread: Option<JoinHandle<()>>,
    /// The observer was notified that wake-ups are not coming.
    told_down: bool,
}

struct ListenEntry {
    channel: Arc<Channel>,
    /// Since when nobody listens.
    idle_since: Option<Moment>,
}

impl NotificationListener {
    pub(super) fn new(
        dial: Dial,
        reporter: Arc<Reporter>,
        options: &ServerOptions,
        realm: &str,
    ) -> Arc<NotificationListener> {
        Arc::new_cyclic(|me| NotificationListener {
            dial,
            realm: realm.to_owned(),
            connect_timeout: options.connect_timeout,
            linger: options.unsubscribe_delay,
            reporter,
            state: Mutex::default(),
            changed: Notify::new(),
            ended: Condvar::new(),
            me: me.clone(),
        })
    }

    /// The lock's channel. Names that share one only wake each other.
    pub(super) fn channel(&self, name: &LockName) -> String {
        self.hashed(name.key().bytes())
    }

    /// The channel on which a client is told that it is next in the lock's line.
    pub(super) fn turn_channel(&self, name: &LockName, client: ClientId) -> String {
        self.hashed(name.key().bytes().chain([0]).chain(client.to_string().bytes()))
    }

    fn hashed(&self, parts: impl Iterator<Item = u8>) -> String {
        // FNV-1a: the same in every program, unlike the standard library's hashes.
        let bytes = self.realm.bytes().chain([0]).chain(parts);
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("leasehold_{hash:016x}")
    }

    /// Has `waker` woken at each message on `channel`. Never waits for the server: the thread connects.
    pub(super) fn listen(&self, channel: &str, waker: &Waker) -> Option<Subscription> {
        let me = self.me.upgrade()?;
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        // Joined under the lock that `sweep` also takes: a channel that has just been joined is not ended.
        let entry = state.channels.entry(channel.into()).or_insert_with(|| ListenEntry {
            channel: Arc::new(Channel::new(channel, false)),
            idle_since: None,
        });
        entry.idle_since = None;
        let listening =
            Subscription::new(Arc::clone(&entry.channel), Arc::clone(&me) as Arc<dyn ChannelSource>, waker);
        let up = entry.channel.is_up();
        if state.thread.is_none() {
            match start(me) {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => self.tell_down(&mut state, error),
            }
        } else if !up {
            self.changed.notify_one();
        }
        drop(state);
        Some(listening)
    }

    /// How many messages were counted on `channel`, if a confirmed LISTEN stands.
    pub(super) fn message_count(&self, channel: &str) -> Option<u64> {
        let state = self.state.lock();
        state
            .channels
            .get(channel)
            .filter(|entry| entry.channel.is_up())
            .map(|entry| entry.channel.message_count())
    }

    /// Has the thread ask soon whether its server still takes writes.
    pub(super) fn look_at_role(&self) {
        self.changed.notify_one();
    }

    /// Hangs up and lets the thread end. Waits for it for a moment, but not if it is the caller.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let channels: Vec<_> = state.channels.drain().map(|(_, entry)| entry.channel).collect();
        let thread = state.thread.take();
        self.changed.notify_one();
        drop(state);
        channels.iter().for_each(|channel| channel.set_up(false));
        let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) else {
            return;
        };
        let deadline = Clock::System.after(Duration::from_secs(1));
        let mut state = self.state.lock();
        while !thread.is_finished() {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                return;
            }
            self.ended.wait_for(&mut state, left.min(Duration::from_millis(1)));
        }
        drop(state);
        drop(thread.join());
    }

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    fn tell_down(&self, state: &mut ListenerState, error: Error) {
        if !std::mem::replace(&mut state.told_down, true) {
            self.reporter.wakeups(Some(error));
        }
    }

    /// The thread's loop until the listener is closed.
    async fn run(&self) {
        let mut pause = PAUSES.0;
        while !self.is_closed() {
            let error = match self.connected(&mut pause).await {
                Ok(()) if self.is_closed() => return,
                Ok(()) => {
                    self.fell_silent(None);
                    continue;
                }
                Err(error) => error,
            };
            self.fell_silent(Some(error));
            within(Clock::System.after(pause), self.until_closed()).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Waiters look now, and poll until messages come again. Without an error that is but a moment, and told
    /// to nobody.
    fn fell_silent(&self, error: Option<Error>) {
        let mut state = self.state.lock();
        let channels: Vec<_> = state.channels.values().map(|entry| Arc::clone(&entry.channel)).collect();
        if let Some(error) = error.filter(|_| !state.closed) {
            self.tell_down(&mut state, error);
        }
        drop(state);
        channels.iter().filter(|channel| channel.is_up()).for_each(|channel| channel.set_up(false));
    }

    async fn until_closed(&self) {
        while !self.is_closed() {
            self.changed.notified().await;
        }
    }

    /// Listens over one connection; `Ok` when the listener is closed, or the connection is old.
    async fn connected(&self, pause: &mut Duration) -> Result<()> {
        let (deadline, replaced_at) =
            (Clock::System.after(self.connect_timeout), Clock::System.after(OLDEST));
        let (client, mut connection) = self.dial.connect(deadline).await?;
        let me = self.me.clone();
        let reader = async move {
            loop {
                match std::future::poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(message))) => {
                        if let Some(listener) = me.upgrade() {
                            listener.deliver(message.channel(), message.payload());
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Some(error),
                    None => return None,
                }
            }
        };
        let mut reader = std::pin::pin!(tokio::spawn(reader));
        let stays = within(deadline, client.batch_execute(STAYS)).await;
        let stays = stays.ok_or_else(|| timed_out("connecting took too long"))?;
        stays.map_err(|error| unreachable(error).during("subscribe"))?;
        loop {
            // Registered before the look at the channels: what changes after that look is not missed.
            let changed = self.changed.notified();
            if !self.arrange(&client).await? || Clock::System.now() >= replaced_at {
                return Ok(());
            }
            *pause = PAUSES.0;
            let mut changed = std::pin::pin!(changed);
            let event = std::future::poll_fn(|context| {
                if let std::task::Poll::Ready(ended) = reader.as_mut().poll(context) {
                    return std::task::Poll::Ready(Some(ended.ok().flatten()));
                }
                changed.as_mut().poll(context).map(|()| None)
            });
            if let Some(Some(ended)) = within(Clock::System.after(self.next_look()), event).await {
                let broke = Error::new(ErrorKind::Unreachable, "subscribe", "the connection broke");
                return Err(match ended {
                    Some(error) => broke.with_source(error),
                    None => broke,
                });
            }
        }
    }

    fn next_look(&self) -> Duration {
        let state = self.state.lock();
        let is_idle = state.channels.values().any(|entry| entry.idle_since.is_some());
        if is_idle { self.linger.clamp(Duration::from_millis(10), SILENCE) } else { SILENCE }
    }

    /// LISTENs to what is new and ends what nobody needs; also asks the server for a word. `false`: it is
    /// over.
    async fn arrange(&self, client: &Client) -> Result<bool> {
        let now = Clock::System.now();
        let (mut commands, mut fresh) = (String::new(), Vec::new());
        {
            let mut state = self.state.lock();
            if state.closed {
                return Ok(false);
            }
            state.channels.retain(|channel, entry| {
                // `listen` unsets that under this lock.
                if entry.idle_since.is_some_and(|since| now.since(since) >= self.linger) {
                    commands.push_str(&format!("UNLISTEN {channel}; "));
                    return false;
                }
                if !entry.channel.is_up() {
                    commands.push_str(&format!("LISTEN {channel}; "));
                    fresh.push(Arc::clone(&entry.channel));
                }
                true
            });
        }
        // Nobody releases at a server that takes no writes any more.
        commands.push_str("SHOW transaction_read_only");
        let answer = within(Clock::System.after(SILENCE), client.simple_query(&commands)).await;
        let answer = answer.ok_or_else(|| timed_out("the server fell silent"))?;
        let answer = answer.map_err(|error| unreachable(error).during("subscribe"))?;
        if last_word(&answer) == "on" {
            return Err(read_only_now().during("subscribe"));
        }
        // Each wakes its waiters: before the LISTEN a release could pass unheard.
        fresh.iter().for_each(|channel| channel.set_up(true));
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.told_down, false) {
            self.reporter.wakeups(None);
        }
        Ok(true)
    }

    fn deliver(&self, channel: &str, message: &str) {
        let channel = self.state.lock().channels.get(channel).map(|entry| Arc::clone(&entry.channel));
        if let Some(channel) = channel {
            channel.take(message.as_bytes());
        }
    }
}

impl ChannelSource for NotificationListener {
    fn left(&self, channel: &Arc<Channel>) {
        let mut state = self.state.lock();
        let now = Clock::System.now();
        let Some(entry) = state.channels.get_mut(channel.channel()) else { return };
        // Somebody may have joined since the listener left, even a new channel of this name.
        if !Arc::ptr_eq(&entry.channel, channel) || channel.listeners() > 0 {
            return;
        }
        entry.idle_since = Some(now);
        drop(state);
        if self.linger.is_zero() {
            self.changed.notify_one();
        }
    }
}

fn start(listener: Arc<NotificationListener>) -> Result<JoinHandle<()>> {
    let driver = Driver::new()?;
    thread::Builder::new()
        .name("leasehold-hub".to_owned())
        .spawn(move || {
            drop(driver.wait(listener.run())); // on its own thread nothing keeps it from waiting
            drop(driver);
            listener.ended.notify_all();
        })
        .map_err(|error| {
            Error::new(ErrorKind::Resource, "subscribe", "the system could not start a thread")
                .with_source(error)
        })
}

impl fmt::Debug for NotificationListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}
