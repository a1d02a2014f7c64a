//! Wake-ups by name: the waiters that listen to a channel, and its messages.
//!
//! A store that can wake keeps `Channel`s; a waiter has a `Subscription`. A message only counts and signals,
//! so any number of messages costs a waiter at most one check.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, Waker};
use crate::time::random_between;

#[derive(Debug)]
pub(crate) struct Channel {
    channel: Box<str>,
    message_count: AtomicU64,
    /// Of those, the messages that this client is next.
    turn_count: AtomicU64,
    /// Messages that this client may be next soon; not counted above.
    standby_count: AtomicU64,
    up: AtomicBool,
    /// The server refused the subscription.
    refused: AtomicBool,
    wakers: Mutex<Vec<Listener>>,
    next_id: AtomicU64,
    listeners: AtomicUsize,
    /// How many of [`ALL`] messages make this client ask, where a release frees something shared.
    share: AtomicU32,
    /// The recent duration of such an attempt, in microseconds.
    ask_micros: AtomicU64,
}

#[derive(Debug)]
struct Listener {
    id: u64,
    waker: Waker,
    /// Whether it polls soon anyway, so that not every message need wake it.
    polls_soon: Arc<AtomicBool>,
}

/// Every message makes the client ask.
const ALL: u32 = 1 << 16;
const LEAST_SHARE: u32 = ALL / 256;
/// How much a successful attempt raises the share.
const SHARE_STEP: u32 = ALL / 32;

/// Longer attempts count as this long: the link alone seldom makes one longer.
const LONGEST_ASK: Duration = Duration::from_millis(50);

/// Sent by `line.lua` to the client that is next in the queue.
const IS_NEXT: &[u8] = b"next";
/// Sent to the client behind it.
const STANDBY: &[u8] = b"standby";

/// Distance between the first counts of channels: a recreated channel must not show an old channel's count,
/// or a waiter that compares the two would miss messages.
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
            share: AtomicU32::new(ALL),
            ask_micros: AtomicU64::new(0),
        }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// Takes a message about a release or to a client in the queue.
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
            _ => self.notify_throttled(),
        }
    }

    fn wake(&self) {
        for listener in self.wakers.lock().iter() {
            listener.waker.wake();
        }
    }

    /// As [`notify`](Self::notify), but a listener that polls soon is woken only with the wake probability.
    fn notify_throttled(&self) {
        // Counts first and checks the listener second; races with `Subscription::polls_soon`, which does the
        // opposite. So this wakes the listener, or the listener sees the count.
        self.message_count.fetch_add(1, Ordering::SeqCst);
        let one_in = self.one_in();
        for listener in self.wakers.lock().iter() {
            if one_in == 1 || !listener.polls_soon.load(Ordering::SeqCst) || is_drawn(one_in) {
                listener.waker.wake();
            }
        }
    }

    /// The lock may be free.
    pub(crate) fn notify(&self) {
        // Counts first and wakes second: a waiter that has read the old count is signalled later, and checks
        // again. Races with the waiting loop, which reads the count before its attempt.
        self.message_count.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// The subscription was confirmed, which ends a refusal, or is gone. Either way every waiter polls: a
    /// release before the confirmation may not have been heard.
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

    /// The server refused the subscription: waiters choose another.
    pub(crate) fn set_refused(&self) {
        self.refused.store(true, Ordering::SeqCst);
        self.notify();
    }

    pub(crate) fn message_count(&self) -> u64 {
        self.message_count.load(Ordering::SeqCst)
    }

    /// Adjusts the share after an attempt that a message triggered: half after a failure, a step more after a
    /// success. So all waiters come to about the same share, and none keeps others away (additive increase,
    /// multiplicative decrease; Chiu and Jain, 1989). The next attempt makes up for an update that two
    /// threads lost.
    fn note_asked(&self, is_granted: bool, took: Duration) {
        let before = Duration::from_micros(self.ask_micros.load(Ordering::Relaxed));
        let took = took.min(LONGEST_ASK);
        // Up by a quarter, down by half: one delayed attempt is soon forgotten.
        let ask = if took > before { (before * 3 + took) / 4 } else { (before + took) / 2 };
        self.ask_micros.store(ask.as_micros() as u64, Ordering::Relaxed);
        let share = self.share.load(Ordering::Relaxed);
        let next = if is_granted { (share + SHARE_STEP).min(ALL) } else { (share / 2).max(LEAST_SHARE) };
        self.share.store(next, Ordering::Relaxed);
    }

    /// Recent duration of an attempt: over a slow link a freed lock changes hands as slowly.
    fn ask_time(&self) -> Duration {
        Duration::from_micros(self.ask_micros.load(Ordering::Relaxed))
    }

    /// One of how many messages makes the client ask.
    fn one_in(&self) -> u32 {
        ALL / self.share.load(Ordering::Relaxed).max(LEAST_SHARE)
    }

    pub(crate) fn listeners(&self) -> usize {
        self.listeners.load(Ordering::SeqCst)
    }
}

/// True in one of `one_in` cases.
fn is_drawn(one_in: u32) -> bool {
    random_between((Duration::ZERO, Duration::from_nanos(u64::from(one_in)))).is_zero()
}

/// Notified when a listener leaves, to end subscriptions that are not needed.
pub(crate) trait ChannelSource: Send + Sync {
    fn left(&self, channel: &Arc<Channel>);
}

/// A waiter's places at one or several channels, perhaps on several servers. Dropping it ends them.
pub(crate) struct Subscription {
    places: Vec<ChannelPlace>,
    /// How many channels must be up.
    enough: usize,
}

struct ChannelPlace {
    channel: Arc<Channel>,
    source: Arc<dyn ChannelSource>,
    id: u64,
    polls_soon: Arc<AtomicBool>,
}

impl Subscription {
    /// Counts the listener before returning: a source that holds its own mutex here and in its sweep never
    /// ends a channel just joined.
    pub(crate) fn new(channel: Arc<Channel>, source: Arc<dyn ChannelSource>, waker: &Waker) -> Subscription {
        channel.listeners.fetch_add(1, Ordering::SeqCst);
        let id = channel.next_id.fetch_add(1, Ordering::Relaxed);
        let polls_soon = Arc::new(AtomicBool::new(false));
        let listener = Listener { id, waker: waker.clone(), polls_soon: Arc::clone(&polls_soon) };
        channel.wakers.lock().push(listener);
        Subscription { places: vec![ChannelPlace { channel, source, id, polls_soon }], enough: 1 }
    }

    /// Listens to several channels; up when all are up. `None`: there are none.
    pub(crate) fn all(parts: Vec<Subscription>) -> Option<Subscription> {
        let enough = parts.len();
        (enough > 0).then(|| Subscription::several(parts, enough))
    }

    /// Listens to one channel at each of several servers; up when `enough` of them are.
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

    /// One of how many messages makes the client ask.
    pub(crate) fn one_in(&self) -> u32 {
        self.channels().map(Channel::one_in).max().unwrap_or(1)
    }

    /// The recent duration of an attempt, if known.
    pub(crate) fn ask_time(&self) -> Duration {
        self.channels().map(Channel::ask_time).max().unwrap_or_default()
    }

    /// Whether to ask after this message, by the wake probability.
    pub(crate) fn draws(&self) -> bool {
        is_drawn(self.one_in())
    }

    /// Says whether the waiter reads the counts soon, woken or not. After `false` it must read them once
    /// more.
    pub(crate) fn polls_soon(&self, looks: bool) {
        self.places.iter().for_each(|place| place.polls_soon.store(looks, Ordering::SeqCst));
    }

    /// Notes the outcome and the duration of an attempt that a message triggered.
    pub(crate) fn note_asked(&self, is_granted: bool, took: Duration) {
        self.channels().for_each(|channel| channel.note_asked(is_granted, took));
    }

    /// Whether the server refused any part of the subscription.
    pub(crate) fn is_refused(&self) -> bool {
        self.channels().any(|channel| channel.refused.load(Ordering::SeqCst))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.channels().filter(|channel| channel.is_up()).count() >= self.enough
    }
}

/// One count for several channels; changes with a message, and when a subscription comes up or goes down.
pub(crate) fn count_of_several(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::wrapping_add)
}

/// As [`count_of_several`], where all must be up; `None`: there are none.
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
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;

    struct Nobody;

    impl ChannelSource for Nobody {
        fn left(&self, _channel: &Arc<Channel>) {}
    }

    fn listening() -> (Arc<Channel>, Waker, Subscription) {
        let (channel, waker) = (Arc::new(Channel::new("a", true)), Waker::default());
        let subscription = Subscription::new(Arc::clone(&channel), Arc::new(Nobody), &waker);
        (channel, waker, subscription)
    }

    /// How many of a thousand messages wake the listener.
    fn woken(channel: &Channel, waker: &Waker) -> usize {
        let is_woken = |_: &i32| {
            channel.take(b"1");
            waker.sleep(Some(Duration::ZERO))
        };
        (0..1000).filter(is_woken).count()
    }

    #[test]
    fn only_polling_listeners_are_throttled() {
        let (channel, waker, subscription) = listening();
        subscription.polls_soon(true);
        assert_eq!(woken(&channel, &waker), 1000, "nothing was in vain yet");
        (0..20).for_each(|_| subscription.note_asked(false, AT_ONCE));
        assert_eq!(subscription.one_in(), 256, "no less readily than that");
        let few = woken(&channel, &waker);
        assert!(few < 100, "{few}");
        subscription.polls_soon(false);
        assert_eq!(woken(&channel, &waker), 1000, "it would not look by itself");
    }

    #[test]
    fn who_is_granted_what_was_freed_asks_more_readily_again() {
        let (_channel, _waker, subscription) = listening();
        (0..20).for_each(|_| subscription.note_asked(false, AT_ONCE));
        let mut last = subscription.one_in();
        for _ in 0..32 {
            subscription.note_asked(true, AT_ONCE);
            assert!(subscription.one_in() <= last);
            last = subscription.one_in();
        }
        assert_eq!(last, 1);
    }

    #[test]
    fn the_ask_time_follows_the_link() {
        let (_channel, _waker, subscription) = listening();
        assert_eq!(subscription.ask_time(), Duration::ZERO);
        let ms = Duration::from_millis;
        subscription.note_asked(false, ms(4));
        assert_eq!(subscription.ask_time(), ms(1));
        (0..40).for_each(|_| subscription.note_asked(true, ms(20)));
        assert_eq!(subscription.ask_time().as_millis(), 19, "nearly the 20 of all the last ones");
        subscription.note_asked(false, ms(5_000));
        assert!(subscription.ask_time() < ms(30), "one that was held up: {:?}", subscription.ask_time());
        (0..3).for_each(|_| subscription.note_asked(false, ms(1)));
        assert!(subscription.ask_time() < ms(5), "soon forgotten: {:?}", subscription.ask_time());
        (0..40).for_each(|_| subscription.note_asked(false, ms(5_000)));
        assert!(subscription.ask_time() <= LONGEST_ASK);
    }

    #[test]
    fn queue_messages_are_never_throttled() {
        let (channel, waker, subscription) = listening();
        subscription.polls_soon(true);
        (0..20).for_each(|_| subscription.note_asked(false, AT_ONCE));
        for _ in 0..50 {
            channel.take(b"next");
            assert!(waker.sleep(Some(Duration::ZERO)));
            channel.set_up(true);
            assert!(waker.sleep(Some(Duration::ZERO)));
        }
    }

    #[test]
    fn a_subscription_that_was_refused_is_not_once_it_stands() {
        let (channel, waker, subscription) = listening();
        channel.set_up(false);
        channel.set_refused();
        assert!(subscription.is_refused() && waker.sleep(Some(Duration::ZERO)));
        channel.set_up(true);
        assert!(!subscription.is_refused() && subscription.is_up());
    }

    #[test]
    fn who_leaves_a_channel_leaves_the_others_there() {
        let (channel, waker, subscription) = listening();
        let other = Waker::default();
        drop(Subscription::new(Arc::clone(&channel), Arc::new(Nobody), &other));
        assert_eq!(channel.listeners(), 1);
        channel.notify();
        assert!(waker.sleep(Some(Duration::ZERO)) && !other.sleep(Some(Duration::ZERO)));
        drop(subscription);
        assert_eq!(channel.listeners(), 0);
    }
}
