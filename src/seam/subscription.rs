//! Wake-ups by name: the waiters that listen to each channel, and the messages that each channel got.
//!
//! A store that can wake (Redis's subscriber, the memory store) keeps `Channel`s; a waiter holds a `Subscription`. A message only
//! counts and signals, so any number of them costs a waiter at most one look each.

use std::fmt;
use std::sync::Arc;

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, Waker};

/// One lock's channel.
#[derive(Debug)]
pub(crate) struct Channel {
    channel: Box<str>,
    message_count: AtomicU64,
    up: AtomicBool,
    wakers: Mutex<Vec<(u64, Waker)>>,
    next_id: AtomicU64,
    listeners: AtomicUsize,
}

/// How far apart channels begin to count. A channel that ended and was made again must not show a count that the old one
/// showed: a waiter that compares the two would believe that nothing was missed in between.
const APART: u64 = 1 << 40;

impl Channel {
    pub(crate) fn new(channel: &str, up: bool) -> Channel {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        Channel {
            channel: channel.into(),
            message_count: AtomicU64::new(NEXT.fetch_add(APART, Ordering::Relaxed)),
            up: AtomicBool::new(up),
            wakers: Mutex::new(Vec::new()),
            next_id: AtomicU64::new(0),
            listeners: AtomicUsize::new(0),
        }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// A message came.
    pub(crate) fn notify(&self) {
        // Count first, wake second: a waiter that reads the old count has its waker signalled after, so it looks
        // again. Pairs with the waiting loop, which reads the count before its attempt.
        self.message_count.fetch_add(1, Ordering::SeqCst);
        for (_, waker) in self.wakers.lock().iter() {
            waker.wake();
        }
    }

    /// The subscription was confirmed, or is gone. Either way every waiter looks again: before a confirmation
    /// a release could pass unheard.
    pub(crate) fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::SeqCst);
        self.notify();
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::SeqCst)
    }

    pub(crate) fn message_count(&self) -> u64 {
        self.message_count.load(Ordering::SeqCst)
    }

    pub(crate) fn listeners(&self) -> usize {
        self.listeners.load(Ordering::SeqCst)
    }
}

/// Told when a listener leaves, to end subscriptions that nobody needs.
pub(crate) trait ChannelSource: Send + Sync {
    fn left(&self, channel: &Arc<Channel>);
}

/// A waiter's place at a channel, or at one on each of several servers; ends when dropped.
pub(crate) struct Subscription(ChannelPlaces);

enum ChannelPlaces {
    One(ChannelPlace),
    Several { parts: Vec<Subscription>, enough: usize },
}

struct ChannelPlace {
    channel: Arc<Channel>,
    source: Arc<dyn ChannelSource>,
    id: u64,
}

impl Subscription {
    /// Counts the listener before returning, so that a source that holds its own lock around this call and around its
    /// sweep never ends a channel that has just been joined.
    pub(crate) fn new(channel: Arc<Channel>, source: Arc<dyn ChannelSource>, waker: &Waker) -> Subscription {
        channel.listeners.fetch_add(1, Ordering::SeqCst);
        let id = channel.next_id.fetch_add(1, Ordering::Relaxed);
        channel.wakers.lock().push((id, waker.clone()));
        Subscription(ChannelPlaces::One(ChannelPlace { channel, source, id }))
    }

    /// Listens at several servers; up when `enough` of them are.
    pub(crate) fn several(parts: Vec<Subscription>, enough: usize) -> Subscription {
        Subscription(ChannelPlaces::Several { parts, enough })
    }

    pub(crate) fn message_count(&self) -> u64 {
        match &self.0 {
            ChannelPlaces::One(place) => place.channel.message_count(),
            ChannelPlaces::Several { parts, .. } => {
                count_of_several(parts.iter().filter(|part| part.is_up()).map(Subscription::message_count))
            }
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        match &self.0 {
            ChannelPlaces::One(place) => place.channel.is_up(),
            ChannelPlaces::Several { parts, enough } => {
                parts.iter().filter(|part| part.is_up()).count() >= *enough
            }
        }
    }
}

/// One count for the channels of those servers whose subscription stands. It changes when one of theirs does, and when
/// another subscription stands or falls.
pub(crate) fn count_of_several(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::wrapping_add)
}

impl Drop for ChannelPlace {
    fn drop(&mut self) {
        self.channel.wakers.lock().retain(|(id, _)| *id != self.id);
        self.channel.listeners.fetch_sub(1, Ordering::SeqCst);
        self.source.left(&self.channel);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ChannelPlaces::One(place) => {
                f.debug_struct("Listening").field("topic", &place.channel).finish_non_exhaustive()
            }
            ChannelPlaces::Several { parts, .. } => f.debug_list().entries(parts).finish(),
        }
    }
}
