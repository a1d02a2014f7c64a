//! Notifications, over one subscriber connection for each client and server: the *hub* of `seam::hub`.
//!
//! A thread that subscribes adds the command to the outbox under the mutex of the hub's state. The thread
//! then unlocks the mutex, and writes as much as the socket accepts at once: every attempt and release needs
//! the mutex, so a server that does not read must not block a thread that has it. One thread reads, and
//! writes the rest between its reads. Replies come in the order of the commands, with messages between them,
//! so the queue of sent commands shows what each reply answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redis::{ServerError, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::refused;
use crate::seam::hub::{Hub, HubState, News, WakeupProtocol};
use crate::seam::subscription::Channel;
use crate::stores::redis::address::RedisAddress;
use crate::stores::redis::conn::connection::unread;
use crate::stores::redis::conn::replies::Replies;
use crate::stores::redis::reply::{is_temporary, refusal};
use crate::stores::redis::script::Command;
use crate::sync::Outbox;
use crate::time::{Clock, Moment};
use crate::wire::{Wire, broken, is_late};

/// After this time without a message the client sends a PING. After twice this time it reconnects.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct SubscribeMode {
    subscribe: &'static str,
    unsubscribe: &'static str,
}

pub(crate) const PLAIN: SubscribeMode = SubscribeMode { subscribe: "SUBSCRIBE", unsubscribe: "UNSUBSCRIBE" };
/// The mode for clusters: members forward plain messages to all others, but sharded ones only in the shard.
pub(crate) const SHARDED: SubscribeMode =
    SubscribeMode { subscribe: "SSUBSCRIBE", unsubscribe: "SUNSUBSCRIBE" };

pub(crate) type Subscriber = Hub<RedisPubSub>;

pub(crate) struct RedisPubSub {
    pub(super) address: Arc<RedisAddress>,
    /// [`SILENCE`], except in tests.
    pub(super) silence: Duration,
    pub(super) modes: &'static [SubscribeMode],
}

#[derive(Default)]
pub(crate) struct PubSubState {
    pub(super) asks_again: Option<Moment>,
    pub(super) writer: Option<Arc<Wire>>,
    pub(super) awaited: VecDeque<Awaited>,
    out: Outbox,
}

pub(super) enum Awaited {
    /// The reply to the plain subscription, if a sharded one to the same channel was sent after it.
    PartlySubscribed(Arc<Channel>),
    Subscribed(Arc<Channel>),
    Unsubscribed(Box<str>),
    Pong,
}

impl Subscriber {
    /// Writes queued commands, as many as the socket accepts at once. The reading thread writes the rest.
    pub(super) fn flush(&self) {
        let mut state = self.state.lock();
        if state.closed {
            state.own.hang_up();
            return;
        }
        let news = state.take_news();
        state.own.write(news.iter().flat_map(|news| self.protocol.commands(news)));
        let written = Outbox::flush(
            &mut state,
            |state| (state.own.writer.as_ref(), &mut state.own.out),
            Wire::write_now,
        );
        if written.is_err() {
            state.own.hang_up();
        }
    }

    /// Removes channels that are now on another server, and makes their waiters ask the store again. The
    /// caller then calls [`wake`](Self::wake), which unsubscribes from them here.
    pub(crate) fn part_with(
        &self,
        is_elsewhere: impl Fn(&str) -> bool,
    ) -> Vec<(Arc<Channel>, Option<Moment>)> {
        let mut state = self.state.lock();
        let parted: Vec<_> = state.channels.keys().filter(|name| is_elsewhere(name)).cloned().collect();
        let parted = parted.iter().filter_map(|name| state.end(name));
        let parted: Vec<_> = parted.map(|entry| (Arc::clone(&entry.channel), entry.idle_since)).collect();
        if state.channels.is_empty() {
            self.report_up(&mut state);
        }
        // Still under the mutex, so that no late confirmation marks a channel as up again. Pairs with `take`.
        parted.iter().for_each(|(channel, _)| channel.set_up(false));
        parted
    }

    /// Takes over another subscriber's channel. The caller then calls [`wake`](Self::wake), which subscribes.
    pub(crate) fn adopt(self: &Arc<Self>, channel: Arc<Channel>, idle_since: Option<Moment>) {
        let mut state = self.state.lock();
        if !state.closed && !state.channels.contains_key(channel.channel()) {
            state.adopt(channel, idle_since);
            self.run_thread(&mut state);
        }
    }

    /// Ends the subscription without the usual delay, once the channel has no listener.
    pub(crate) fn end_soon(&self, channel: &str) {
        let mut state = self.state.lock();
        if let Some(entry) = state.channels.get_mut(channel) {
            entry.lingers = false;
            if entry.is_over(self.linger, Clock::System.now()) {
                state.end(channel);
            }
        }
        drop(state);
        self.wake();
    }
}

impl RedisPubSub {
    fn commands(&self, news: &News) -> Vec<(Command, Awaited)> {
        let last = self.modes.len().saturating_sub(1);
        let command = |(at, mode): (usize, &SubscribeMode)| match news {
            News::Came(channel) => {
                let awaited = if at == last { Awaited::Subscribed } else { Awaited::PartlySubscribed };
                (Command::new(mode.subscribe).arg(channel.channel()), awaited(Arc::clone(channel)))
            }
            News::Went(channel) => {
                let awaited = Awaited::Unsubscribed(channel.channel().into());
                (Command::new(mode.unsubscribe).arg(channel.channel()), awaited)
            }
        };
        self.modes.iter().enumerate().map(command).collect()
    }
}

impl PubSubState {
    pub(super) fn is_ending(&self, channel: &str) -> bool {
        matches!(self.awaited.front(), Some(Awaited::Unsubscribed(other)) if **other == *channel)
    }

    pub(super) fn connect(&mut self, writer: Option<Arc<Wire>>) {
        self.writer = writer;
        self.out.reset();
        self.awaited.clear();
    }

    pub(super) fn hang_up(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.shutdown();
        }
    }

    pub(super) fn write(&mut self, commands: impl IntoIterator<Item = (Command, Awaited)>) {
        if self.writer.is_none() {
            return;
        }
        let mut bytes = Vec::new();
        for (command, awaited) in commands {
            command.pack_into(&mut bytes);
            self.awaited.push_back(awaited);
        }
        self.out.extend(bytes);
    }
}

impl HubState<RedisPubSub> {
    pub(super) fn note_refused(&mut self, channel: &Arc<Channel>, again: Moment) {
        let entry = self.channels.get_mut(channel.channel());
        if let Some(entry) = entry.filter(|entry| Arc::ptr_eq(&entry.channel, channel)) {
            entry.refused = Some(again);
            self.own.asks_again = Some(self.own.asks_again.map_or(again, |at| at.min(again)));
        }
    }

    #[cfg(test)]
    pub(crate) fn refused_until(&mut self, then: Moment) {
        self.channels.values_mut().for_each(|entry| entry.refused = entry.refused.and(Some(then)));
        self.own.asks_again = Some(then);
    }

    pub(super) fn ask_again(&mut self, now: Moment) -> Option<Moment> {
        if self.own.asks_again.is_some_and(|at| at <= now) {
            let is_due = |at: &mut Moment| *at <= now;
            let due = self
                .channels
                .values_mut()
                .filter_map(|entry| entry.refused.take_if(is_due).map(|_| Arc::clone(&entry.channel)));
            let due: Vec<_> = due.collect();
            due.iter().for_each(|channel| self.came(channel));
            self.own.asks_again = self.channels.values().filter_map(|entry| entry.refused).min();
        }
        self.own.asks_again
    }
}

/// The shortest and the longest pause before subscribing again to a channel whose slot is moving.
const SLOT_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The shortest time-out that systems accept: a write should not wait for space in the socket's buffer.
const WRITE_LIMIT: Duration = Duration::from_millis(1);
const LEAST_TICK: Duration = Duration::from_millis(20);

impl WakeupProtocol for RedisPubSub {
    type Note = Duration;
    type State = PubSubState;

    fn serve(&self, hub: &Arc<Subscriber>) -> Result<()> {
        if !hub.wait_for_channels() {
            return Ok(());
        }
        let connection = self.address.open(Clock::System.after(self.address.connect_timeout))?;
        // A connection is replaced at a certain age, because the address may lead to another server by then.
        let replace_at = connection.origin.replaced_at();
        let stream = connection.into_stream();
        let served = self.read(hub, &stream, replace_at);
        stream.shutdown();
        hub.state.lock().own.connect(None);
        served
    }

    fn changed(&self, hub: &Subscriber) {
        hub.flush();
    }
}

impl RedisPubSub {
    /// Reads until the connection ends; `Ok` if the hub is closed, or the connection is too old.
    fn read(&self, hub: &Subscriber, stream: &Arc<Wire>, replace_at: Moment) -> Result<()> {
        {
            let mut state = hub.state.lock();
            if state.closed {
                return Ok(());
            }
            state.own.connect(Some(Arc::clone(stream)));
            state.own.asks_again = None;
            state.begin();
        }
        let (linger, silence) = (hub.linger, self.silence);
        let tick = if linger.is_zero() { silence } else { linger.max(LEAST_TICK).min(silence) };
        stream.set_write_timeout(WRITE_LIMIT).map_err(|error| broken("subscribe", error))?;
        let mut armed = Duration::ZERO;
        let mut replies = Replies::default();
        let mut last_word = Clock::System.now();
        let mut asked = false;
        let mut next_sweep = Clock::System.after(tick);
        loop {
            let now = Clock::System.now();
            let asks_again = hub.state.lock().ask_again(now);
            let polls_within = asks_again.map_or(tick, |at| at.since(now).max(LEAST_TICK).min(tick));
            // The reader also writes what the socket did not accept before: the server may have read since.
            hub.flush();
            if polls_within != armed {
                stream.set_read_timeout(Some(polls_within)).map_err(|error| broken("subscribe", error))?;
                armed = polls_within;
            }
            let reply = replies.fill(stream.as_ref()).and_then(|()| replies.ready());
            let now = Clock::System.now();
            let mut reply = match reply {
                Err(error) if is_late(&error) => Ok(None),
                other => other,
            };
            // Only complete messages are signs of life, so that a server that sends single bytes times out.
            while let Ok(Some(whole)) = reply {
                (last_word, asked) = (now, false);
                take(hub, whole)?;
                reply = replies.ready();
            }
            reply.map_err(|error| unread(error).during("subscribe"))?;
            if now >= next_sweep {
                next_sweep = now.plus(tick);
                hub.state.lock().sweep(linger, now);
            }
            if now >= replace_at {
                return Ok(());
            }
            if now.since(last_word) >= silence {
                let words = "the server was silent for too long";
                Error::when(asked, ErrorKind::TimedOut, "subscribe", || words)?;
                (last_word, asked) = (now, true);
                hub.state.lock().own.write([(Command::new("PING"), Awaited::Pong)]);
            }
        }
    }
}

fn take(hub: &Subscriber, reply: Value) -> Result<()> {
    let mut state = hub.state.lock();
    if let Value::Array(items) = &reply
        && let [Value::BulkString(kind), Value::BulkString(channel), message] = items.as_slice()
    {
        let name = std::str::from_utf8(channel).unwrap_or_default();
        let channel = state.channels.get(name).map(|entry| Arc::clone(&entry.channel));
        match kind.as_slice() {
            b"message" | b"smessage" => {
                drop(state);
                if let Some(channel) = channel {
                    channel.take(if let Value::BulkString(message) = message { message } else { b"" });
                }
                return Ok(());
            }
            // The server ended the subscription, because the slot has moved away. The waiters ask the store,
            // and find the slot's new member. Subscribes again in case the slot comes back.
            b"sunsubscribe" if !state.own.is_ending(name) => {
                if let Some(channel) = channel {
                    channel.set_up(false);
                    state.came(&channel);
                }
                return Ok(());
            }
            _ => {}
        }
    }
    match (state.own.awaited.pop_front(), reply) {
        (
            Some(Awaited::PartlySubscribed(channel) | Awaited::Subscribed(channel)),
            Value::ServerError(error),
        ) => refused(hub, &mut state, &channel, &error),
        (Some(Awaited::Subscribed(channel)), _) => {
            state.stands();
            if !state.channels.values().any(|entry| entry.refused.is_some()) {
                hub.report_up(&mut state);
            }
            // The channel is up only if no other subscriber has taken it over meanwhile, which is checked
            // under the mutex. Pairs with `Subscriber::part_with`.
            if let Some(entry) = state.channels.get_mut(channel.channel())
                && Arc::ptr_eq(&entry.channel, &channel)
                && entry.refused.is_none()
            {
                entry.note = Duration::ZERO;
                channel.set_up(true);
            }
            Ok(())
        }
        (Some(Awaited::PartlySubscribed(_) | Awaited::Unsubscribed(_) | Awaited::Pong), _) => Ok(()),
        (None, _) => {
            let words = "the server sent a reply to no request";
            Err(Error::new(ErrorKind::Protocol, "subscribe", words))
        }
    }
}

/// Handles a refused subscription: the channel stays down until a later try. If the user has no right to the
/// channel, waiters in the wait queue listen to releases instead, and other waiters poll. A temporary error
/// ends the connection, and the next connection subscribes to all channels again.
fn refused(
    hub: &Subscriber,
    state: &mut HubState<RedisPubSub>,
    channel: &Arc<Channel>,
    error: &ServerError,
) -> Result<()> {
    let now = Clock::System.now();
    if error.code() == "MOVED" {
        // The waiters ask the store at once. If it redirects them too, the client reloads the slot map, and
        // moves the channel. If not, the slot is still moving here, so the client subscribes again later.
        let entry = state.channels.get_mut(channel.channel());
        if let Some(entry) = entry.filter(|entry| Arc::ptr_eq(&entry.channel, channel)) {
            if entry.note.is_zero() {
                channel.set_up(false);
            }
            entry.note = (entry.note * 2).clamp(SLOT_PAUSES.0, SLOT_PAUSES.1);
            let again = now.plus(entry.note);
            state.note_refused(channel, again);
        }
        return Ok(());
    }
    let refusal = refusal(error).during("subscribe");
    if is_temporary(&refusal) {
        return Err(refusal);
    }
    hub.report_down(state, refusal);
    state.note_refused(channel, now.plus(refused::LASTS));
    channel.set_refused();
    state.sweep(hub.linger, now);
    Ok(())
}
