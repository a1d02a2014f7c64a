//! The reference store: in this process, for tests, examples, and users' own unit tests.
//!
//! Long because one store answers for all kinds of locks.

mod channels;
mod counted;
mod faults;
mod held;
mod rw;
mod shown;

use std::collections::hash_map;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{Fence, LockName, Owner};
use crate::inspect::Inspection;
use crate::room::{Roomy, Sweeps};
use crate::seam::capabilities::{Capabilities, PLAIN_POLL, SAFETY_POLL};
use crate::seam::inspection::Inspect;
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::seam::{
    Answer, Answered, Attempt, Claim, Counting, Kind, PLACE_LASTS, Pending, Release, Snapshot, Store,
};
use crate::sync::Mutex;
use crate::sync::Waker;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::{Clock, ManualClock, Moment};
use channels::{counted_topic, fair_topic, rw_topic, topic_of, waiter_topic};
use counted::{Counted, WokenWaiters};
pub use faults::Fault;
pub(crate) use faults::FaultyAccess;
use faults::Wrong;
use held::HeldLock;
use rw::Parties;

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
    shared: Arc<MemoryShared>,
}

#[derive(Default)]
struct MemoryShared {
    clock: Clock,
    state: Mutex<MemoryState>,
    channels: Mutex<HashMap<Box<str>, Arc<Channel>>>,
    sweeps: Sweeps,
    /// What goes wrong for all clients.
    wrong: Mutex<Wrong>,
    /// What goes wrong for some, each by its access's id.
    cut_off: Mutex<Vec<(Arc<()>, Fault)>>,
}

#[derive(Default)]
struct MemoryState {
    locks: HashMap<Box<str>, HeldLock>,
    read_writes: HashMap<Box<str>, Parties>,
    /// By kind and name.
    counted: HashMap<(Kind, Box<str>), Counted>,
    /// Who waits for a fair lock, in order, and until when each counts as alive.
    queues: HashMap<Box<str>, VecDeque<(Owner, Moment)>>,
    fences: HashMap<Box<str>, u64>,
}

impl MemoryState {
    /// Forgets the locks whose leases have run out, as a server does. Requests go by the time all the same.
    fn sweep(&mut self, now: Moment) {
        self.locks.retain(|_, held| held.until > now);
        self.locks.give_back_room();
        self.read_writes.retain(|_, parties| {
            parties.expire(now);
            !parties.is_empty()
        });
        self.read_writes.give_back_room();
    }

    /// Drops waiters that are dead from the head of a fair lock's queue; says who is first now.
    fn first(&mut self, key: &str, now: Moment) -> Option<Owner> {
        let queue = self.queues.get_mut(key)?;
        while queue.front().is_some_and(|(_, until)| *until <= now) {
            queue.pop_front();
        }
        let first = queue.front().map(|(owner, _)| *owner);
        if first.is_none() {
            self.queues.remove(key);
        }
        first
    }

    fn leave_queue(&mut self, key: &str, owner: Owner) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.retain(|(other, _)| *other != owner);
        }
    }

    /// Gives one who goes on waiting for a fair lock a place, or keeps it alive.
    fn queue_if_waiting(&mut self, claim: &Claim, now: Moment) {
        if claim.kind != Kind::Fair || !claim.waits {
            return;
        }
        let until = now.plus(PLACE_LASTS);
        let queue = self.queues.entry(claim.name.key().into()).or_default();
        match queue.iter_mut().find(|(other, _)| *other == claim.owner) {
            Some(place) => place.1 = until,
            None => queue.push_back((claim.owner, until)),
        }
    }

    fn next_fence(&mut self, key: &str, now: Moment) -> Fence {
        let counter = self.fences.entry(key.into()).or_default();
        *counter = (*counter + 1).max(now.nanos() / 1_000);
        Fence::new(*counter)
    }
}

impl MemoryStore {
    /// Which store of this process it is.
    pub(crate) fn place(&self) -> String {
        format!("memory {:p}", Arc::as_ptr(&self.shared))
    }

    /// Makes an empty store that goes by the system's clock.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Makes an empty store that goes by `clock`, as will the clients on it.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> MemoryStore {
        let shared = MemoryShared { clock: Clock::Manual(clock), ..MemoryShared::default() };
        MemoryStore { shared: Arc::new(shared) }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// One client's access, without faults.
    pub(crate) fn access(&self) -> MemoryAccess {
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
    shared: Arc<MemoryShared>,
    closed: AtomicBool,
}

impl MemoryAccess {
    /// Runs one request on the lock of `name`, after what has run out by now is gone.
    fn with<T>(
        &self,
        kind: Kind,
        name: &LockName,
        request: impl FnOnce(&mut MemoryState, Moment) -> T,
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

    /// Tells the lock's waiters, or the first of them where they queue; under the lock's state, as a script publishes.
    fn publish(&self, state: &mut MemoryState, now: Moment, kind: Kind, name: &LockName) {
        let channel = match kind {
            Kind::Mutex | Kind::Fenced => name.key().to_owned(),
            Kind::Read | Kind::Write => rw_topic(name),
            Kind::Fair => match state.first(name.key(), now) {
                Some(first) => fair_topic(name, first),
                None => return,
            },
            Kind::Token | Kind::Semaphore | Kind::Permits | Kind::Latch | Kind::Signal => return,
        };
        if let Some(channel) = self.shared.channels.lock().get(&*channel) {
            channel.notify();
        }
    }

    /// Runs one request on the read-write lock of `name`, after what has run out by now is gone.
    fn with_parties<T>(
        &self,
        name: &LockName,
        request: impl FnOnce(&mut Parties, &mut MemoryState, Moment) -> T,
    ) -> Answer<T> {
        self.with(Kind::Mutex, name, |state, now| {
            let mut parties = state.read_writes.remove(name.key()).unwrap_or_default();
            parties.expire(now);
            let result = request(&mut parties, state, now);
            if !parties.is_empty() {
                state.read_writes.insert(name.key().into(), parties);
            }
            result
        })
    }

    /// Runs one request on what is counted under the claim's name, and wakes who is to be woken by it.
    fn with_counted<T>(
        &self,
        claim: &Claim,
        request: impl FnOnce(&mut Counted, Moment) -> (T, WokenWaiters),
    ) -> Answer<T> {
        self.with(Kind::Mutex, &claim.name, |state, now| {
            let counted = state.counted.entry((claim.kind, claim.name.key().into())).or_default();
            let came_back = counted.expire(now);
            let (result, woken) = request(counted, now);
            let channels = match woken {
                WokenWaiters::Nobody if !came_back => vec![],
                WokenWaiters::Nobody | WokenWaiters::All => vec![counted_topic(claim.kind, &claim.name)],
                WokenWaiters::These(owners) => {
                    owners.into_iter().map(|owner| waiter_topic(claim, owner)).collect()
                }
            };
            for channel in channels {
                if let Some(channel) = self.shared.channels.lock().get(channel.as_str()) {
                    channel.notify();
                }
            }
            result
        })
    }

    fn release_now(&self, claim: &Claim, left: u32) -> Answer<Release> {
        if claim.kind.is_counted() {
            return self.with_counted(claim, |counted, _| counted.release(claim));
        }
        if is_rw(claim.kind) {
            return self.with_parties(&claim.name, |parties, state, now| {
                let lets_readers_in = parties.stop_waiting(claim);
                let release = parties.release(claim, left);
                if lets_readers_in || matches!(release, Release::Freed { .. }) {
                    self.publish(state, now, claim.kind, &claim.name);
                }
                release
            });
        }
        let key = claim.name.key();
        self.with(claim.kind, &claim.name, |state, now| match state.locks.get_mut(key) {
            Some(held) if held.owner == claim.owner => {
                if left > 0 {
                    held.count = left;
                    return Release::StillHeld;
                }
                state.locks.remove(key);
                self.publish(state, now, claim.kind, &claim.name);
                Release::Freed { others: 0 }
            }
            Some(held) => Release::NotHeld { holder: Some(held.owner.to_string()) },
            None => Release::NotHeld { holder: None },
        })
    }
}

impl Store for MemoryAccess {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            can_expire_in: true,
            queues: |kind| matches!(kind, Kind::Fair | Kind::Signal),
            poll_every: |kind| if kind.is_token() { PLAIN_POLL } else { SAFETY_POLL },
            ..Capabilities::default()
        }
    }

    fn check_name(&self, _kind: Kind, _name: &LockName) -> Result<()> {
        Ok(())
    }

    fn attempt(&self, claim: &Claim, count: u32, _by: Moment) -> Answer<Attempt> {
        let key = claim.name.key();
        if claim.kind.is_counted() {
            return self.with_counted(claim, |counted, now| counted.attempt(claim, now));
        }
        if is_rw(claim.kind) {
            return self.with_parties(&claim.name, |parties, state, now| {
                match parties.attempt(claim, count, now) {
                    Ok(()) => {
                        Attempt::Granted { fence: claim.wants_fence.then(|| state.next_fence(key, now)) }
                    }
                    Err(attempt) => attempt,
                }
            });
        }
        self.with(claim.kind, &claim.name, |state, now| {
            let first = if claim.kind == Kind::Fair { state.first(key, now) } else { None };
            let others_first = first.is_some_and(|first| first != claim.owner);
            match state.locks.get_mut(key) {
                Some(held) if held.owner == claim.owner => {
                    (held.count, held.until) = (count, held.until.max(now.plus(claim.lease)));
                }
                _ if count > 1 => return Attempt::Lost,
                Some(held) => {
                    let retry_after = Some(held.until.since(now));
                    state.queue_if_waiting(claim, now);
                    return Attempt::Busy { retry_after };
                }
                None if others_first => {
                    // Its turn comes with a message, or when those before it are dead.
                    state.queue_if_waiting(claim, now);
                    return Attempt::Busy { retry_after: Some(PLACE_LASTS) };
                }
                None => drop(state.locks.insert(key.into(), HeldLock::new(claim, count, now))),
            }
            state.leave_queue(key, claim.owner);
            Attempt::Granted { fence: claim.wants_fence.then(|| state.next_fence(key, now)) }
        })
    }

    fn release(&self, claim: &Claim, left: u32, _by: Moment) -> Answer<Release> {
        self.release_now(claim, left)
    }

    fn hand_off(&self, from: &Claim, to: &Claim, _by: Moment) -> Option<Box<dyn Pending>> {
        let answer = || -> Box<dyn Pending> { Box::new(Answered(self.hand_off_now(from, to))) };
        from.kind.is_handed_off().then(answer)
    }

    fn renew(&self, claims: &[Claim], _by: Moment) -> Vec<Answer<bool>> {
        let renew = |claim: &Claim| {
            if claim.kind.is_counted() {
                return self
                    .with_counted(claim, |counted, now| (counted.renew(claim, now), WokenWaiters::Nobody));
            }
            if is_rw(claim.kind) {
                return self.with_parties(&claim.name, |parties, _, now| {
                    parties.prolong(claim, now.plus(claim.lease))
                });
            }
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
        let leave = |claim: &Claim| {
            if claim.kind == Kind::Signal {
                let freed = Release::Freed { others: 0 };
                return self.with_counted(claim, |counted, now| (freed, counted.leave(claim.owner, now)));
            }
            if claim.kind.is_counted() {
                return self.release_now(claim, 0);
            }
            let key = claim.name.key();
            let left = self.with(claim.kind, &claim.name, |state, now| {
                let was_first = state.first(key, now);
                state.leave_queue(key, claim.owner);
                if was_first == Some(claim.owner) && !state.locks.contains_key(key) {
                    self.publish(state, now, claim.kind, &claim.name);
                }
            });
            match left {
                Answer::Done(()) => self.release_now(claim, 0),
                Answer::Refused(error) => Answer::Refused(error),
                Answer::Unknown(error) => Answer::Unknown(error),
            }
        };
        claims.iter().map(leave).collect()
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, _by: Moment) -> Answer<bool> {
        self.with(claim.kind, &claim.name, |state, now| match state.locks.get_mut(claim.name.key()) {
            Some(held) if held.owner == claim.owner => {
                held.until = now.plus(rest);
                true
            }
            _ => false,
        })
    }

    fn force(&self, kind: Kind, name: &LockName, _by: Moment) -> Answer<bool> {
        if is_rw(kind) {
            return self.with_parties(name, |parties, state, now| {
                let was_held = parties.force(kind);
                if was_held {
                    self.publish(state, now, kind, name);
                }
                was_held
            });
        }
        self.with(kind, name, |state, now| {
            let was_held = state.locks.remove(name.key()).is_some();
            if was_held {
                self.publish(state, now, kind, name);
            }
            was_held
        })
    }

    fn count(&self, claim: &Claim, what: &Counting, _by: Moment) -> Answer<Option<i64>> {
        self.with_counted(claim, |counted, now| counted.change(claim, what, now))
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        if claim.kind.is_token() {
            return None;
        }
        let name = topic_of(claim);
        let mut channels = self.shared.channels.lock();
        let channel =
            channels.entry(name.as_str().into()).or_insert_with(|| Arc::new(Channel::new(&name, true)));
        let source: Arc<dyn ChannelSource> = Arc::<MemoryShared>::clone(&self.shared);
        Some(Subscription::new(Arc::clone(channel), source, waker))
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        self.shared.channels.lock().get(topic_of(claim).as_str()).map(|channel| channel.message_count())
    }

    fn poll_completions(&self) -> bool {
        let now = self.shared.clock.now();
        if self.shared.sweeps.is_due(now) {
            self.shared.state.lock().sweep(now);
        }
        false
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

impl Inspect for MemoryAccess {
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, _by: Moment) -> Answer<Option<Snapshot>> {
        if is_rw(kind) {
            return self.with_parties(name, |parties, _, now| parties.inspect(kind, owner, now));
        }
        self.with(kind, name, |state, now| {
            state.locks.get(name.key()).map(|held| Snapshot {
                holder: held.owner.to_string(),
                count: if held.owner == owner { held.count } else { 0 },
                remaining: Some(held.until.since(now)),
            })
        })
    }

    fn describe(&self, name: &LockName, _by: Moment) -> Answer<Inspection> {
        if self.closed.load(Ordering::Acquire) {
            return Answer::Refused(Error::new(ErrorKind::ShutDown, "use", "the client was shut down"));
        }
        let state = self.shared.state.lock();
        Answer::Done(state.shown(name, self.shared.clock.now(), &self.shared.channels.lock()))
    }
}

fn is_rw(kind: Kind) -> bool {
    matches!(kind, Kind::Read | Kind::Write)
}
