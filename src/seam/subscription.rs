//! Channels of messages, and the waiters that listen to them.
//!
//! A store that sends messages has a `Channel` for each name; a waiter has a `Subscription`. A message only
//! raises the channel's count and wakes listeners, so many messages cost a waiter one check.

use std::fmt;
use std::sync::Arc;

use crate::shrink::CrowdMap;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, Waker};

#[derive(Debug)]
pub(crate) struct Channel {
    channel: Box<str>,
    message_count: AtomicU64,
    /// The number of messages that say "this client is next"; `message_count` includes them.
    turn_count: AtomicU64,
    /// The number of standby messages, which ask for an attempt a little later; not in `message_count`.
    standby_count: AtomicU64,
    up: AtomicBool,
    refused: AtomicBool,
    wakers: Mutex<Vec<Listener>>,
    next_id: AtomicU64,
    listeners: AtomicUsize,
}

#[derive(Debug)]
struct Listener {
    id: u64,
    waker: Waker,
}

/// The message of `wait_queue.lua` to the client that is next in the queue.
const IS_NEXT: &[u8] = b"next";
/// The message to the second client, which attempts a little later, in case the first one hangs.
const STANDBY: &[u8] = b"standby";

/// Distance between the initial counts of channels. A channel that ended and was created again must not reach
/// the old count: a waiter that compares counts would miss messages.
const APART: u64 = 1 << 40;

impl Channel {
    pub(crate) fn new(channel: &str, up: bool) -> Channel {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        Channel {
            channel: channel.into(),
            message_count: AtomicU64::new(NEXT.fetch_add(APART, Ordering::Relaxed)),
            turn_count: AtomicU64::new(0),
            standby_count: AtomicU64::new(0),
            up: AtomicBool::new(up),
            refused: AtomicBool::new(false),
            wakers: Mutex::new(Vec::new()),
            next_id: AtomicU64::new(0),
            listeners: AtomicUsize::new(0),
        }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    pub(crate) fn take(&self, message: &[u8]) {
        match message {
            IS_NEXT => {
                self.turn_count.fetch_add(1, Ordering::SeqCst);
                self.notify();
            }
            STANDBY => {
                self.standby_count.fetch_add(1, Ordering::SeqCst);
                self.wake();
            }
            _ => self.notify(),
        }
    }

    fn wake(&self) {
        for listener in self.wakers.lock().iter() {
            listener.waker.wake();
        }
    }

    pub(crate) fn notify(&self) {
        // The count is raised before the listeners are woken, so a waiter that has read the old count is
        // woken afterwards. Pairs with `engine::acquire::waiting`, which reads the count before each attempt.
        self.message_count.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// Notes that the server confirmed the subscription (`up`), or that the subscription ended. Makes every
    /// waiter poll, because a release before the confirmation sent no message here.
    pub(crate) fn set_up(&self, up: bool) {
        if up {
            self.refused.store(false, Ordering::SeqCst);
        }
        self.up.store(up, Ordering::SeqCst);
        self.notify();
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::SeqCst)
    }

    pub(crate) fn set_refused(&self) {
        self.refused.store(true, Ordering::SeqCst);
        self.notify();
    }

    pub(crate) fn message_count(&self) -> u64 {
        self.message_count.load(Ordering::SeqCst)
    }

    pub(crate) fn listeners(&self) -> usize {
        self.listeners.load(Ordering::SeqCst)
    }
}

pub(crate) trait ChannelSource: Send + Sync {
    /// Called when a listener leaves, to end a channel that nobody needs.
    fn left(&self, channel: &Arc<Channel>);
}

/// Channels of a store that needs no confirmed subscriptions. A channel ends with its last listener.
#[derive(Debug, Default)]
pub(crate) struct Channels(Mutex<CrowdMap<Box<str>, Arc<Channel>>>);

impl Channels {
    /// Listens to a channel. The `source` must call [`left`](Self::left) when a listener leaves.
    pub(crate) fn listen(&self, name: &str, source: Arc<dyn ChannelSource>, waker: &Waker) -> Subscription {
        // `left` takes the same mutex, so it cannot remove the channel before this listener is counted.
        let mut channels = self.0.lock();
        let channel = channels.entry(name.into()).or_insert_with(|| Arc::new(Channel::new(name, true)));
        Subscription::new(Arc::clone(channel), source, waker)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Channel>> {
        self.0.lock().get(name).cloned()
    }

    /// Wakes the channel's listeners under the mutex of all channels. With 64 waiters on one lock this was
    /// measured as faster than waking them after unlocking.
    pub(crate) fn notify(&self, name: &str) {
        self.0.lock().get(name).into_iter().for_each(|channel| channel.notify());
    }

    #[cfg(feature = "zookeeper")]
    pub(crate) fn notify_all(&self) {
        let all: Vec<_> = self.0.lock().values().cloned().collect();
        all.iter().for_each(|channel| channel.notify());
    }

    pub(crate) fn left(&self, channel: &Arc<Channel>) {
        let mut channels = self.0.lock();
        let own = channels.get(channel.channel());
        if own.is_some_and(|own| Arc::ptr_eq(own, channel) && channel.listeners() == 0) {
            channels.remove(channel.channel());
        }
    }
}

/// The registration of one waiter at one or several channels, which may be on several servers. Ends on drop.
pub(crate) struct Subscription {
    places: Vec<ChannelPlace>,
    enough: usize,
}

struct ChannelPlace {
    channel: Arc<Channel>,
    source: Arc<dyn ChannelSource>,
    id: u64,
}

impl Subscription {
    /// The caller has locked the channels, so that no thread removes this one before its listener is counted.
    pub(crate) fn new(channel: Arc<Channel>, source: Arc<dyn ChannelSource>, waker: &Waker) -> Subscription {
        channel.listeners.fetch_add(1, Ordering::SeqCst);
        let id = channel.next_id.fetch_add(1, Ordering::Relaxed);
        channel.wakers.lock().push(Listener { id, waker: waker.clone() });
        Subscription { places: vec![ChannelPlace { channel, source, id }], enough: 1 }
    }

    /// Listens to several channels; up when all of them are up. `None`: `parts` is empty.
    pub(crate) fn all(parts: Vec<Subscription>) -> Option<Subscription> {
        let enough = parts.len();
        (enough > 0).then(|| Subscription::several(parts, enough))
    }

    /// Listens to several channels, one on each server; up when `enough` of them are up.
    pub(crate) fn several(parts: Vec<Subscription>, enough: usize) -> Subscription {
        Subscription { places: parts.into_iter().flat_map(|part| part.places).collect(), enough }
    }

    fn channels(&self) -> impl Iterator<Item = &Channel> {
        self.places.iter().map(|place| &*place.channel)
    }

    pub(crate) fn message_count(&self) -> u64 {
        let is_only = self.places.len() == 1;
        let counted = self.channels().filter(|channel| is_only || channel.is_up());
        count_of_several(counted.map(Channel::message_count))
    }

    pub(crate) fn turn_count(&self) -> u64 {
        self.channels().map(|channel| channel.turn_count.load(Ordering::SeqCst)).sum()
    }

    pub(crate) fn standby_count(&self) -> u64 {
        self.channels().map(|channel| channel.standby_count.load(Ordering::SeqCst)).sum()
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.channels().any(|channel| channel.refused.load(Ordering::SeqCst))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.channels().filter(|channel| channel.is_up()).count() >= self.enough
    }
}

/// The sum of several channels' counts. It changes whenever one of the counts does.
pub(crate) fn count_of_several(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::wrapping_add)
}

/// As [`count_of_several`]; `None` if `counts` is empty.
pub(crate) fn count_of_all(counts: Vec<u64>) -> Option<u64> {
    (!counts.is_empty()).then(|| count_of_several(counts.into_iter()))
}

impl Drop for ChannelPlace {
    fn drop(&mut self) {
        self.channel.wakers.lock().retain(|listener| listener.id != self.id);
        self.channel.listeners.fetch_sub(1, Ordering::SeqCst);
        self.source.left(&self.channel);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.channels().map(Channel::channel)).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;

    pub(crate) struct Nobody;

    impl ChannelSource for Nobody {
        fn left(&self, _channel: &Arc<Channel>) {}
    }

    fn listening() -> (Arc<Channel>, Waker, Subscription) {
        let (channel, waker) = (Arc::new(Channel::new("a", true)), Waker::default());
        let subscription = Subscription::new(Arc::clone(&channel), Arc::new(Nobody), &waker);
        (channel, waker, subscription)
    }

    #[test]
    fn establishing_a_subscription_clears_its_refusal() {
        let (channel, waker, subscription) = listening();
        channel.set_up(false);
        channel.set_refused();
        assert!(subscription.is_refused() && waker.sleep(Some(Duration::ZERO)));
        channel.set_up(true);
        assert!(!subscription.is_refused() && subscription.is_up());
    }

    #[test]
    fn a_leaving_listener_keeps_the_channel_for_others() {
        let (channel, waker, subscription) = listening();
        let other = Waker::default();
        drop(Subscription::new(Arc::clone(&channel), Arc::new(Nobody), &other));
        assert_eq!(channel.listeners(), 1);
        channel.notify();
        assert!(waker.sleep(Some(Duration::ZERO)) && !other.sleep(Some(Duration::ZERO)));
        drop(subscription);
        assert_eq!(channel.listeners(), 0);
    }

    #[test]
    fn a_message_channel_ends_with_its_last_listener() {
        let channels = Channels::default();
        let hear = || channels.listen("a", Arc::new(Nobody), &Waker::default());
        let (one, other) = (hear(), hear());
        let channel = channels.get("a").unwrap();
        drop(one);
        channels.left(&channel);
        assert!(channels.get("a").is_some() && channels.get("b").is_none());
        drop(other);
        channels.left(&channel);
        assert!(channels.get("a").is_none());
    }
}
