//! The reference store: in this process, for tests, examples, and users' own unit tests.

use std::collections::HashMap;
use std::collections::hash_map;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{Fence, LockName, Owner};
use crate::lock::store::{Answer, Attempt, Claim, HandOver, Kind, Pending, Release, Snapshot, Store};
use crate::lock::topic::{Listening, Source, Topic};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::channel::Sender;
use crate::time::{Clock, ManualClock, Moment};

/// Locks kept in this process: what a server is to clients that have one.
///
/// Clients made on clones of one store share its locks, as several processes share a Redis; each has its own
/// watchdog. With a [`ManualClock`] a test decides when leases end.
///
/// # Examples
///
/// ```
/// use leasehold::{LockClient, MemoryStore};
///
/// let store = MemoryStore::new();
/// let (one, other) = (LockClient::in_memory_with(&store), LockClient::in_memory_with(&store));
/// let guard = one.lock("a").acquire()?;
/// assert!(!other.lock("a").try_lock()?);
/// guard.unlock()?;
/// assert!(other.lock("a").try_lock()?);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    clock: Clock,
    state: Mutex<State>,
    topics: Mutex<HashMap<Box<str>, Arc<Topic>>>,
}

#[derive(Default)]
struct State {
    locks: HashMap<Box<str>, Held>,
    fences: HashMap<Box<str>, u64>,
}

impl State {
    fn next_fence(&mut self, key: &str, now: Moment) -> Fence {
        let counter = self.fences.entry(key.into()).or_default();
        *counter = (*counter + 1).max(now.nanos() / 1_000);
        Fence::new(*counter)
    }
}

/// An answer that is there already.
struct Known(Answer<HandOver>);

impl Pending for Known {
    fn wait(self: Box<Self>) -> Answer<HandOver> {
        self.0
    }
}

struct Held {
    is_token: bool,
    owner: Owner,
    count: u32,
    until: Moment,
}

impl MemoryStore {
    /// Makes an empty store that goes by the system's clock.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Makes an empty store that goes by `clock`, as will the clients on it.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> MemoryStore {
        let shared = Shared { clock: Clock::Manual(clock), ..Shared::default() };
        MemoryStore { shared: Arc::new(shared) }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// One client's access.
    pub(crate) fn open(&self) -> MemoryAccess {
        MemoryAccess { shared: Arc::clone(&self.shared), closed: AtomicBool::new(false) }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("clock", &self.shared.clock).finish_non_exhaustive()
    }
}

/// One client's access to a store; closing it does not close the store.
pub(crate) struct MemoryAccess {
    shared: Arc<Shared>,
    closed: AtomicBool,
}

impl MemoryAccess {
    /// Runs one request on the lock of `name`, after what has run out by now is gone.
    fn with<T>(
        &self,
        kind: Kind,
        name: &LockName,
        request: impl FnOnce(&mut State, Moment) -> T,
    ) -> Answer<T> {
        if self.closed.load(Ordering::Acquire) {
            return Answer::Refused(Error::new(ErrorKind::ShutDown, "use", "the client was shut down"));
        }
        let mut state = self.shared.state.lock();
        let now = self.shared.clock.now();
        if let hash_map::Entry::Occupied(held) = state.locks.entry(name.key().into()) {
            if held.get().until <= now {
                held.remove();
            } else if held.get().is_token != kind.is_token() {
                let detail = "the name is in use by another kind of lock";
                return Answer::Refused(Error::new(ErrorKind::WrongType, "use", detail));
            }
        }
        Answer::Done(request(&mut state, now))
    }

    /// Tells the lock's waiters; under the lock's state, as a script publishes.
    fn publish(&self, kind: Kind, name: &LockName) {
        if !kind.is_token()
            && let Some(topic) = self.shared.topics.lock().get(name.key())
        {
            topic.deliver();
        }
    }

    fn release_now(&self, claim: &Claim, left: u32) -> Answer<Release> {
        let key = claim.name.key();
        self.with(claim.kind, &claim.name, |state, _| match state.locks.get_mut(key) {
            Some(held) if held.owner == claim.owner => {
                if left > 0 {
                    held.count = left;
                    return Release::StillHeld;
                }
                state.locks.remove(key);
                self.publish(claim.kind, &claim.name);
                Release::Freed { others: 0 }
            }
            Some(held) => Release::NotHeld { by: Some(held.owner.to_string()) },
            None => Release::NotHeld { by: None },
        })
    }
}

impl Store for MemoryAccess {
    fn check_name(&self, _kind: Kind, _name: &LockName) -> Result<()> {
        Ok(())
    }

    fn attempt(&self, claim: &Claim, count: u32, wants_fence: bool, _by: Moment) -> Answer<Attempt> {
        let key = claim.name.key();
        self.with(claim.kind, &claim.name, |state, now| {
            let until = now.plus(claim.lease);
            let lasting = match state.locks.get(key) {
                Some(held) if held.owner == claim.owner => held.until.max(until),
                _ if count > 1 => return Attempt::Lost,
                Some(held) => return Attempt::Busy { retry_after: Some(held.until.since(now)) },
                None => until,
            };
            let is_token = claim.kind.is_token();
            let held = Held { is_token, owner: claim.owner, count, until: lasting };
            state.locks.insert(key.into(), held);
            Attempt::Granted { fence: wants_fence.then(|| state.next_fence(key, now)) }
        })
    }

    fn release(&self, claim: &Claim, left: u32, _by: Moment) -> Answer<Release> {
        self.release_now(claim, left)
    }

    fn hand_over(
        &self,
        from: &Claim,
        to: &Claim,
        wants_fence: bool,
        _by: Moment,
    ) -> Option<Box<dyn Pending>> {
        if from.kind.is_token() {
            return None;
        }
        let key = to.name.key();
        let answer = self.with(to.kind, &to.name, |state, now| match state.locks.get_mut(key) {
            Some(held) if held.owner == from.owner => {
                *held = Held { is_token: false, owner: to.owner, count: 1, until: now.plus(to.lease) };
                HandOver::Granted { fence: wants_fence.then(|| state.next_fence(key, now)) }
            }
            _ => HandOver::Lost,
        });
        Some(Box::new(Known(answer)))
    }

    fn renew(&self, claims: &[Claim], _by: Moment) -> Vec<Answer<bool>> {
        let renew = |claim: &Claim| {
            self.with(claim.kind, &claim.name, |state, now| match state.locks.get_mut(claim.name.key()) {
                Some(held) if held.owner == claim.owner => {
                    held.until = held.until.max(now.plus(claim.lease));
                    true
                }
                _ => false,
            })
        };
        claims.iter().map(renew).collect()
    }

    fn abandon(&self, claims: &[Claim], _by: Moment) -> Vec<Answer<Release>> {
        claims.iter().map(|claim| self.release_now(claim, 0)).collect()
    }

    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, _by: Moment) -> Answer<Option<Snapshot>> {
        self.with(kind, name, |state, now| {
            state.locks.get(name.key()).map(|held| Snapshot {
                holder: held.owner.to_string(),
                count: if held.owner == owner { held.count } else { 0 },
                remaining: Some(held.until.since(now)),
            })
        })
    }

    fn force(&self, kind: Kind, name: &LockName, _by: Moment) -> Answer<bool> {
        self.with(kind, name, |state, _| {
            let was_held = state.locks.remove(name.key()).is_some();
            if was_held {
                self.publish(kind, name);
            }
            was_held
        })
    }

    fn poll_every(&self, kind: Kind) -> (Duration, Duration) {
        if kind.is_token() {
            (Duration::from_millis(50), Duration::from_millis(100))
        } else {
            (Duration::from_millis(1_000), Duration::from_millis(1_200))
        }
    }

    fn listen(&self, kind: Kind, name: &LockName, waker: &Sender<()>) -> Option<Listening> {
        if kind.is_token() {
            return None;
        }
        let mut topics = self.shared.topics.lock();
        let topic = topics.entry(name.key().into()).or_insert_with(|| Arc::new(Topic::new(name.key(), true)));
        let source: Arc<dyn Source> = Arc::<Shared>::clone(&self.shared);
        Some(Listening::new(Arc::clone(topic), source, waker))
    }

    fn heard(&self, _kind: Kind, name: &LockName) -> Option<u64> {
        self.shared.topics.lock().get(name.key()).map(|topic| topic.seen())
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

impl Source for Shared {
    fn left(&self, topic: &Arc<Topic>) {
        let mut topics = self.topics.lock();
        if topic.listeners() == 0
            && topics.get(topic.channel()).is_some_and(|current| Arc::ptr_eq(current, topic))
        {
            topics.remove(topic.channel());
        }
    }
}
