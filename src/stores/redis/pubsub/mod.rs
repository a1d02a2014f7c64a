//! Wake-ups: the commands on the subscriber connection, one connection per client.
//!
//! Any thread adds commands to what is to be written, under a lock, and then writes as much as the socket
//! takes at once, without the lock: each attempt and each release takes it, and a server that does not read
//! holds up none of them. The rest is written when the server has answered something. One thread reads.
//! Replies come in the order of the commands, so a queue of what was sent says which reply is whose; messages
//! come in between.

mod reader;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::observe::reporter::Reporter;
use crate::seam::hub::{Hub, HubState, News};
use crate::seam::subscription::Channel;
use crate::stores::redis::address::RedisAddress;
use crate::stores::redis::script::Command;
use crate::sync::Outbox;
use crate::time::{Clock, Moment};
use crate::wire::Wire;

/// The time without a word after which the server is asked for one; after as long again the connection counts
/// as dead.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

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

pub(crate) type Subscriber = Hub<RedisPubSub>;

pub(crate) struct RedisPubSub {
    pub(super) address: Arc<RedisAddress>,
    /// [`SILENCE`], but in tests.
    pub(super) silence: Duration,
    pub(super) modes: &'static [SubscribeMode],
}

#[derive(Default)]
pub(crate) struct PubSubState {
    /// No refused subscription is to be asked for again before this.
    pub(super) asks_again: Option<Moment>,
    pub(super) writer: Option<Arc<Wire>>,
    /// The connection that replaces the last one, which was old, and when it is replaced itself.
    pub(super) next: Option<(Arc<Wire>, Moment)>,
    /// The purposes of the replies to come, in order.
    pub(super) awaited: VecDeque<Awaited>,
    out: Outbox,
}

pub(super) enum Awaited {
    /// One of several ways to listen to it, not the last.
    Half(Arc<Channel>),
    Subscribed(Arc<Channel>),
    Unsubscribed(Box<str>),
    Pong,
}

impl Subscriber {
    /// Connects with the first waiter. `linger`: how long a subscription that nobody needs stays. `silence`: the
    /// time without a word after which the server is asked for one.
    pub(super) fn of(
        address: Arc<RedisAddress>,
        reporter: Arc<Reporter>,
        linger: Duration,
        silence: Duration,
        modes: &'static [SubscribeMode],
    ) -> Arc<Subscriber> {
        Hub::new(RedisPubSub { address, silence, modes }, Some(reporter), linger)
    }

    /// Writes the news, as much as the socket takes at once. The rest is left to the reading thread.
    pub(super) fn flush(&self) {
        let mut state = self.state.lock();
        if state.closed {
            state.own.hang_up();
            return;
        }
        let news = state.take_news();
        state.own.write(news.into_iter().flat_map(|news| self.protocol.commands(news)));
        let written = Outbox::flush(
            &mut state,
            |state| (state.own.writer.as_ref(), &mut state.own.out),
            Wire::write_now,
        );
        if written.is_err() {
            state.own.hang_up();
        }
    }

    /// Gives up the channels that another server has now; their waiters look again. As after
    /// [`listen_for`](Self::listen_for) the caller wakes the hub.
    pub(crate) fn part_with(
        &self,
        is_elsewhere: impl Fn(&str) -> bool,
    ) -> Vec<(Arc<Channel>, Option<Moment>)> {
        let mut state = self.state.lock();
        let parted: Vec<_> = state.channels.keys().filter(|name| is_elsewhere(name)).cloned().collect();
        let parted = parted.iter().filter_map(|name| state.end(name));
        let parted: Vec<_> = parted.map(|entry| (Arc::clone(&entry.channel), entry.idle_since())).collect();
        if state.channels.is_empty() {
            self.report_up(&mut state);
        }
        // Under the lock: a confirmation that is being read must not come after. Pairs with
        // `ReplyReader::take`.
        parted.iter().for_each(|(channel, _)| channel.set_up(false));
        parted
    }

    /// Takes a channel over that another subscriber has parted with. As after
    /// [`listen_for`](Self::listen_for) the caller wakes the hub.
    pub(crate) fn adopt(self: &Arc<Self>, channel: Arc<Channel>, idle_since: Option<Moment>) {
        let mut state = self.state.lock();
        if !state.closed && !state.channels.contains_key(channel.channel()) {
            state.adopt(channel, idle_since);
            self.run_thread(&mut state);
        }
    }

    /// Has the subscription to `channel` end as soon as nobody here listens, unless somebody comes to it
    /// anew.
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

    /// Ends the connection: the server that it leads to is not the one to listen to any more. The reading
    /// thread looks up another, and all waiters look again.
    pub(crate) fn look_up_anew(&self) {
        self.state.lock().own.hang_up();
    }
}

impl RedisPubSub {
    fn commands(&self, news: News) -> Vec<(Command, Awaited)> {
        let channel = match news {
            News::Came(channel) => channel,
            News::Went(channel) => {
                let left = |mode: &SubscribeMode| {
                    let command = Command::new(mode.unsubscribe).arg(channel.channel());
                    (command, Awaited::Unsubscribed(channel.channel().into()))
                };
                return self.modes.iter().map(left).collect();
            }
        };
        let last = self.modes.len().saturating_sub(1);
        let modes = self.modes.iter().enumerate();
        let command = |(at, mode): (usize, &SubscribeMode)| {
            let awaited = if at == last { Awaited::Subscribed } else { Awaited::Half };
            (Command::new(mode.subscribe).arg(channel.channel()), awaited(Arc::clone(&channel)))
        };
        modes.map(command).collect()
    }
}

impl PubSubState {
    /// Whether the next reply is to this client's own leaving of `channel`.
    pub(super) fn is_ending(&self, channel: &str) -> bool {
        matches!(self.awaited.front(), Some(Awaited::Unsubscribed(other)) if **other == *channel)
    }

    pub(super) fn connect(&mut self, writer: Option<Arc<Wire>>) {
        self.writer = writer;
        self.out.reset();
        self.awaited.clear();
    }

    fn hang_up(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.shutdown();
        }
    }

    /// Has commands written by the next [`flush`](Subscriber::flush).
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
    /// Notes that a subscription was refused, which is to be asked for again at `again`.
    pub(super) fn note_refused(&mut self, channel: &Arc<Channel>, again: Moment) {
        let entry = self.channels.get_mut(channel.channel());
        if let Some(entry) = entry.filter(|entry| Arc::ptr_eq(&entry.channel, channel)) {
            entry.refused = Some(again);
            self.own.asks_again = Some(self.own.asks_again.map_or(again, |at| at.min(again)));
        }
    }

    /// Has the refused subscriptions be asked for again then.
    #[cfg(test)]
    pub(crate) fn refused_until(&mut self, then: Moment) {
        self.channels.values_mut().for_each(|entry| entry.refused = entry.refused.and(Some(then)));
        self.own.asks_again = Some(then);
    }

    /// Asks again for the refused subscriptions whose time has come; returns when to come again.
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
