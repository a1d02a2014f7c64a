//! Wake-ups by name: which waiters listen to which topic, and what each topic has heard.
//!
//! A store that can wake (Redis's hub, the memory store) keeps `Topic`s; a waiter holds a `Listening`. A message only
//! counts and signals, so any number of them costs a waiter at most one look each.

use std::fmt;
use std::sync::Arc;

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, Waker};

/// One lock's channel.
#[derive(Debug)]
pub(crate) struct Topic {
    channel: Box<str>,
    seen: AtomicU64,
    up: AtomicBool,
    wakers: Mutex<Vec<(u64, Waker)>>,
    next_id: AtomicU64,
    listeners: AtomicUsize,
}

/// How far apart topics begin to count. A topic that ended and was made again must not show a count that the old one
/// showed: who compares the two would believe that nothing was missed in between.
const APART: u64 = 1 << 40;

impl Topic {
    pub(crate) fn new(channel: &str, up: bool) -> Topic {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        Topic {
            channel: channel.into(),
            seen: AtomicU64::new(NEXT.fetch_add(APART, Ordering::Relaxed)),
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
    pub(crate) fn deliver(&self) {
        // Count first, wake second: a waiter that reads the old count has its waker signalled after, so it looks
        // again. Pairs with the waiting loop, which reads the count before its attempt.
        self.seen.fetch_add(1, Ordering::SeqCst);
        for (_, waker) in self.wakers.lock().iter() {
            waker.wake();
        }
    }

    /// The subscription was confirmed, or is gone. Either way every waiter looks again: before a confirmation
    /// a release could pass unheard.
    pub(crate) fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::SeqCst);
        self.deliver();
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::SeqCst)
    }

    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::SeqCst)
    }

    pub(crate) fn listeners(&self) -> usize {
        self.listeners.load(Ordering::SeqCst)
    }
}

/// Told when a listener leaves, to end subscriptions that nobody needs.
pub(crate) trait Source: Send + Sync {
    fn left(&self, topic: &Arc<Topic>);
}

/// A waiter's place at a topic, or at one on each of several servers; ends when dropped.
pub(crate) struct Listening(Places);

enum Places {
    One(Place),
    Several { parts: Vec<Listening>, enough: usize },
}

struct Place {
    topic: Arc<Topic>,
    source: Arc<dyn Source>,
    id: u64,
}

impl Listening {
    /// Counts the listener before returning, so that a source that holds its own lock around this call and around its
    /// sweep never ends a topic that has just been joined.
    pub(crate) fn new(topic: Arc<Topic>, source: Arc<dyn Source>, waker: &Waker) -> Listening {
        topic.listeners.fetch_add(1, Ordering::SeqCst);
        let id = topic.next_id.fetch_add(1, Ordering::Relaxed);
        topic.wakers.lock().push((id, waker.clone()));
        Listening(Places::One(Place { topic, source, id }))
    }

    /// Listens at several servers; up when `enough` of them are.
    pub(crate) fn several(parts: Vec<Listening>, enough: usize) -> Listening {
        Listening(Places::Several { parts, enough })
    }

    pub(crate) fn seen(&self) -> u64 {
        match &self.0 {
            Places::One(place) => place.topic.seen(),
            Places::Several { parts, .. } => {
                count_of_several(parts.iter().filter(|part| part.is_up()).map(Listening::seen))
            }
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        match &self.0 {
            Places::One(place) => place.topic.is_up(),
            Places::Several { parts, enough } => parts.iter().filter(|part| part.is_up()).count() >= *enough,
        }
    }
}

/// One count for the topics of those servers whose subscription stands. It changes when one of theirs does, and when
/// another subscription stands or falls.
pub(crate) fn count_of_several(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::wrapping_add)
}

impl Drop for Place {
    fn drop(&mut self) {
        self.topic.wakers.lock().retain(|(id, _)| *id != self.id);
        self.topic.listeners.fetch_sub(1, Ordering::SeqCst);
        self.source.left(&self.topic);
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Places::One(place) => {
                f.debug_struct("Listening").field("topic", &place.topic).finish_non_exhaustive()
            }
            Places::Several { parts, .. } => f.debug_list().entries(parts).finish(),
        }
    }
}
