//! Wake-ups: one subscriber connection per client, opened when the first waiter comes.
//!
//! Any thread adds commands to what is to be written, under a lock, and then writes as much as the socket
//! takes at once, without the lock: each attempt and each release takes it, and a server that does not read
//! holds up none of them. The rest is written when the server has answered something. One thread reads.
//! Replies come in the order of the commands, so a queue of what was sent says which reply is whose; messages
//! come in between.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::reporter::Reporter;
use crate::room::CrowdMap;
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::stores::redis::address::RedisAddress;
use crate::stores::redis::script::Command;
use crate::sync::{Condvar, Mutex, MutexGuard, Outbox, Waker};
use crate::time::{Clock, Moment};
use crate::wire::Wire;

/// The time without a word after which the server is asked for one; after as long again the connection counts
/// as dead.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);
/// How long [`Subscriber::close`] waits for the reading thread, which may be connecting.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// How a channel is listened to, and left.
#[derive(Debug)]
pub(crate) struct SubscribeMode {
    subscribe: &'static str,
    unsubscribe: &'static str,
}

pub(crate) const PLAIN: SubscribeMode = SubscribeMode { subscribe: "SUBSCRIBE", unsubscribe: "UNSUBSCRIBE" };
/// On the members of a cluster that have the channel's slot.
pub(crate) const SHARDED: SubscribeMode =
    SubscribeMode { subscribe: "SSUBSCRIBE", unsubscribe: "SUNSUBSCRIBE" };

pub(crate) struct Subscriber {
    pub(crate) address: Arc<RedisAddress>,
    reporter: Arc<Reporter>,
    /// How long a subscription that nobody needs stays.
    pub(crate) linger: Duration,
    /// [`SILENCE`], but in tests.
    pub(crate) silence: Duration,
    pub(crate) state: Mutex<SubscriberState>,
    /// Signalled when there is a first channel, and on closing.
    pub(crate) changed: Condvar,
    /// The body of the reading thread.
    read: fn(&Subscriber),
    /// For handing itself out as a channel's source.
    me: Weak<Subscriber>,
}

#[derive(Default)]
pub(crate) struct SubscriberState {
    modes: &'static [SubscribeMode],
    pub(crate) closed: bool,
    pub(crate) channels: CrowdMap<Box<str>, ChannelEntry>,
    /// No refused subscription is to be asked for again before this.
    asks_again: Option<Moment>,
    /// The writing half, while connected.
    pub(crate) writer: Option<Arc<Wire>>,
    /// The purposes of the replies to come, in order.
    pub(crate) awaited: VecDeque<Awaited>,
    /// Commands that are still to be written.
    out: Outbox,
    reader: Option<JoinHandle<()>>,
    /// The observer was notified that wake-ups are not coming.
    told_down: bool,
}

pub(crate) struct ChannelEntry {
    pub(crate) channel: Arc<Channel>,
    /// The server refused this subscription. The reading thread asks for it again then, or over the next
    /// connection.
    pub(crate) refused: Option<Moment>,
    /// Between two such tries, while the channel's slot moves.
    pub(crate) pause: Duration,
    /// Since when nobody listens.
    idle_since: Option<Moment>,
    /// Whether it stays for a while when nobody listens any more.
    lingers: bool,
}

pub(crate) enum Awaited {
    /// One of several ways to listen to it, not the last.
    Half(Arc<Channel>),
    Subscribed(Arc<Channel>),
    Unsubscribed(Box<str>),
    Pong,
}

impl Subscriber {
    pub(super) fn new(
        address: Arc<RedisAddress>,
        reporter: Arc<Reporter>,
        linger: Duration,
        silence: Duration,
        modes: &'static [SubscribeMode],
        read: fn(&Subscriber),
    ) -> Arc<Subscriber> {
        Arc::new_cyclic(|me| Subscriber {
            address,
            reporter,
            linger,
            silence,
            state: Mutex::new(SubscriberState { modes, ..SubscriberState::default() }),
            changed: Condvar::new(),
            read,
            me: me.clone(),
        })
    }

    /// Has `waker` woken at each message on `channel`. Never waits for the server: the reading thread
    /// connects.
    pub(crate) fn listen(&self, channel: &str, waker: &Waker) -> Option<Subscription> {
        let me = self.me.upgrade()?;
        let listening = self.listen_for(channel, waker, me);
        self.flush();
        listening
    }

    /// The same, on behalf of `source`, which passes leaving listeners on to [`ChannelSource::left`]. Writes
    /// nothing: that is left to [`flush`](Self::flush).
    pub(crate) fn listen_for(
        &self,
        channel: &str,
        waker: &Waker,
        source: Arc<dyn ChannelSource>,
    ) -> Option<Subscription> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        // Joined under the lock that `sweep` and `left` also take: a channel that has just been joined is not
        // ended.
        if let Some(entry) = state.channels.get_mut(channel) {
            (entry.idle_since, entry.lingers) = (None, true);
            let channel = Arc::clone(&entry.channel);
            return Some(Subscription::new(channel, source, waker));
        }
        let channel = Arc::new(Channel::new(channel, false));
        let listening = Subscription::new(Arc::clone(&channel), source, waker);
        self.enter(&mut state, channel, None);
        drop(state);
        Some(listening)
    }

    /// Subscribes to a new channel, or has the reading thread do so when it is connected.
    fn enter(&self, state: &mut SubscriberState, channel: Arc<Channel>, idle_since: Option<Moment>) {
        let entry = ChannelEntry {
            channel: Arc::clone(&channel),
            refused: None,
            pause: Duration::ZERO,
            idle_since,
            lingers: true,
        };
        state.channels.insert(channel.channel().into(), entry);
        if state.writer.is_some() {
            state.subscribe([channel]);
        } else {
            self.changed.notify_all();
        }
        let me = self.me.upgrade().filter(|_| state.reader.is_none());
        if let Some(error) = me.and_then(|me| start(me, state).err()) {
            self.tell_down(state, error);
        }
    }

    /// Writes what there is to write, as much as the socket takes at once. The rest is left to the reading
    /// thread.
    pub(crate) fn flush(&self) {
        let mut state = self.state.lock();
        let written =
            Outbox::flush(&mut state, |state| (state.writer.as_ref(), &mut state.out), Wire::write_now);
        if written.is_err()
            && let Some(writer) = state.writer.take()
        {
            writer.shutdown(); // which the reader notices
        }
    }

    /// Gives up the channels that another server has now; their waiters look again. Writes nothing, as
    /// [`listen_for`](Self::listen_for).
    pub(crate) fn part_with(
        &self,
        is_elsewhere: impl Fn(&str) -> bool,
    ) -> Vec<(Arc<Channel>, Option<Moment>)> {
        let (mut parted, mut ended) = (Vec::new(), Vec::new());
        let mut state = self.state.lock();
        let modes = state.modes;
        state.channels.retain(|channel, entry| {
            let stays = !is_elsewhere(channel);
            if !stays {
                parted.push((Arc::clone(&entry.channel), entry.idle_since));
                ended.extend(modes.iter().map(|mode| mode.leave(channel)));
            }
            stays
        });
        state.write(ended);
        if state.channels.is_empty() {
            self.tell_up(&mut state);
        }
        // Under the lock: a confirmation that is being read must not come after. Pairs with
        // `ReplyReader::take`.
        parted.iter().for_each(|(channel, _)| channel.set_up(false));
        parted
    }

    /// Takes a channel over that another subscriber has parted with. Writes nothing, as
    /// [`listen_for`](Self::listen_for).
    pub(crate) fn adopt(&self, channel: Arc<Channel>, idle_since: Option<Moment>) {
        let mut state = self.state.lock();
        if !state.closed && !state.channels.contains_key(channel.channel()) {
            self.enter(&mut state, channel, idle_since);
        }
    }

    /// Hangs up and lets the reading thread end, without waiting for it.
    pub(crate) fn dismiss(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        if let Some(writer) = state.writer.take() {
            writer.shutdown();
        }
        self.changed.notify_all();
    }

    /// Has the subscription to `channel` end as soon as nobody here listens, unless somebody comes to it
    /// anew.
    pub(crate) fn end_soon(&self, channel: &str) {
        let mut state = self.state.lock();
        if let Some(entry) = state.channels.get_mut(channel) {
            entry.lingers = false;
            state.sweep(self.linger, Clock::System.now());
            drop(state);
            self.flush();
        }
    }

    /// Ends the connection: the server that it leads to is not the one to listen to any more. The reading
    /// thread looks up another, and all waiters look again.
    pub(crate) fn look_up_anew(&self) {
        let writer = self.state.lock().writer.take();
        if let Some(writer) = writer {
            writer.shutdown(); // which the reader notices
        }
    }

    /// Whether it listens to nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().channels.is_empty()
    }

    /// How many messages were counted on `channel`, if there is one and a subscription stands.
    pub(crate) fn message_count(&self, channel: impl FnOnce() -> Option<String>) -> Option<u64> {
        let state = self.state.lock();
        if state.channels.is_empty() {
            return None; // as mostly, and the name need not be made
        }
        state
            .channels
            .get(&*channel()?)
            .filter(|entry| entry.channel.is_up())
            .map(|entry| entry.channel.message_count())
    }

    /// Hangs up and lets the reading thread end. Waits for it, but not for ever, and not if it is the caller.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        if let Some(writer) = state.writer.take() {
            writer.shutdown();
        }
        let reader = state.reader.take();
        self.changed.notify_all();
        let channels: Vec<_> = state.channels.drain().map(|(_, entry)| entry.channel).collect();
        MutexGuard::unlocked(&mut state, || channels.iter().for_each(|channel| channel.set_up(false)));
        let Some(reader) = reader.filter(|reader| reader.thread().id() != thread::current().id()) else {
            return;
        };
        let deadline = Clock::System.after(LAST_WAIT);
        while !reader.is_finished() {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                return;
            }
            // The reader signals as its last act; a little later it has ended.
            self.changed.wait_for(&mut state, left.min(Duration::from_millis(1)));
        }
        drop(state);
        drop(reader.join());
    }

    pub(crate) fn tell_down(&self, state: &mut SubscriberState, error: Error) {
        if !std::mem::replace(&mut state.told_down, true) {
            self.reporter.wakeups(Some(error));
        }
    }

    pub(crate) fn tell_up(&self, state: &mut SubscriberState) {
        if state.told_down && !state.channels.values().any(|entry| entry.refused.is_some()) {
            state.told_down = false;
            self.reporter.wakeups(None);
        }
    }
}

impl ChannelEntry {
    /// Whether it is up or not by that channel, and by both ways if there are two.
    pub(crate) fn is_of(&self, channel: &Arc<Channel>) -> bool {
        Arc::ptr_eq(&self.channel, channel) && self.refused.is_none()
    }
}

impl ChannelSource for Subscriber {
    fn left(&self, channel: &Arc<Channel>) {
        let mut state = self.state.lock();
        let now = Clock::System.now();
        let Some(entry) = state.channels.get_mut(channel.channel()) else { return };
        // Somebody may have joined since the listener left, even a new channel of this name.
        if !Arc::ptr_eq(&entry.channel, channel) || channel.listeners() > 0 {
            return;
        }
        entry.idle_since = Some(now);
        // A refused subscription does not linger, so that the next waiter asks again.
        if self.linger.is_zero() || entry.refused.is_some() || !entry.lingers {
            state.sweep(self.linger, now);
            drop(state);
            self.flush();
        }
    }
}

impl SubscriberState {
    /// Whether the next reply is to this client's own leaving of `channel`.
    pub(crate) fn is_ending(&self, channel: &str) -> bool {
        matches!(self.awaited.front(), Some(Awaited::Unsubscribed(other)) if **other == *channel)
    }

    /// There is another connection, or none.
    pub(crate) fn connect(&mut self, writer: Option<Arc<Wire>>) {
        self.writer = writer;
        self.out.reset();
        self.awaited.clear();
    }

    /// Has commands written by the next [`flush`](Subscriber::flush).
    pub(crate) fn write(&mut self, commands: impl IntoIterator<Item = (Command, Awaited)>) {
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

    /// Notes that a subscription was refused, which is to be asked for again then.
    pub(crate) fn note_refused(
        &mut self,
        channel: &Arc<Channel>,
        again: impl FnOnce(&mut ChannelEntry) -> Moment,
    ) {
        if let Some(entry) = self.channels.get_mut(channel.channel())
            && Arc::ptr_eq(&entry.channel, channel)
        {
            let again = again(entry);
            entry.refused = Some(again);
            self.asks_again = Some(self.asks_again.map_or(again, |at| at.min(again)));
        }
    }

    /// Has the refused subscriptions be asked for again then.
    #[cfg(test)]
    pub(crate) fn refused_until(&mut self, then: Moment) {
        self.channels.values_mut().for_each(|entry| entry.refused = entry.refused.and(Some(then)));
        self.asks_again = Some(then);
    }

    /// Asks again for the refused subscriptions whose time has come; returns when to come again.
    pub(crate) fn ask_again(&mut self, now: Moment) -> Option<Moment> {
        if self.asks_again.is_none_or(|at| now < at) {
            return self.asks_again;
        }
        let is_due = |entry: &&mut ChannelEntry| entry.refused.is_some_and(|at| at <= now);
        let due = self.channels.values_mut().filter(is_due);
        let channels: Vec<_> = due
            .map(|entry| {
                entry.refused = None;
                Arc::clone(&entry.channel)
            })
            .collect();
        self.subscribe(channels);
        self.asks_again = self.channels.values().filter_map(|entry| entry.refused).min();
        self.asks_again
    }

    pub(crate) fn subscribe(&mut self, channels: impl IntoIterator<Item = Arc<Channel>>) {
        let Some((last, others)) = self.modes.split_last() else { return };
        let mut commands = Vec::new();
        for channel in channels {
            let command = |mode: &SubscribeMode| Command::new(mode.subscribe).arg(channel.channel());
            commands.extend(others.iter().map(|mode| (command(mode), Awaited::Half(Arc::clone(&channel)))));
            commands.push((command(last), Awaited::Subscribed(channel)));
        }
        self.write(commands);
    }

    /// Ends the channels that nobody has listened to for `unsubscribe_delay`; refused ones, and those that do not
    /// linger, at once.
    pub(crate) fn sweep(&mut self, linger: Duration, now: Moment) {
        let mut ended = Vec::new();
        let modes = self.modes;
        self.channels.retain(|channel, entry| {
            let idle = entry.channel.listeners() == 0;
            let is_over = |since| entry.refused.is_some() || !entry.lingers || now.since(since) >= linger;
            let over = entry.idle_since.is_some_and(is_over);
            if !(idle && over) {
                return true;
            }
            if entry.refused.is_none() {
                ended.extend(modes.iter().map(|mode| mode.leave(channel)));
            }
            false
        });
        self.write(ended);
    }
}

impl SubscribeMode {
    fn leave(&self, channel: &str) -> (Command, Awaited) {
        (Command::new(self.unsubscribe).arg(channel), Awaited::Unsubscribed(channel.into()))
    }
}

fn start(subscriber: Arc<Subscriber>, state: &mut SubscriberState) -> Result<()> {
    let reader = thread::Builder::new()
        .name("leasehold-hub".to_owned())
        .spawn(move || {
            (subscriber.read)(&subscriber);
            subscriber.changed.notify_all();
        })
        .map_err(|error| {
            Error::new(ErrorKind::Resource, "subscribe", "the system could not start a thread")
                .with_source(error)
        })?;
    state.reader = Some(reader);
    Ok(())
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").finish_non_exhaustive()
    }
}
