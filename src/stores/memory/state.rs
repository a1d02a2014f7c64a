//! The data of a store in this process, and one request's access to it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::ident::{ClientId, FencingToken, Owner};
use crate::room::CrowdMap;
use crate::seam::PLACE_LASTS;
use crate::seam::subscription::Channel;
use crate::stores::memory::counted::{Counted, CountedKind};
use crate::stores::memory::held::HeldLock;
use crate::stores::memory::parties::Parties;
use crate::sync::Mutex;
use crate::time::Moment;

pub(super) type Channels = CrowdMap<Box<str>, Arc<Channel>>;

#[derive(Default)]
pub(super) struct MemoryState {
    pub(super) locks: CrowdMap<Box<str>, HeldLock>,
    pub(super) read_writes: CrowdMap<Box<str>, Parties>,
    pub(super) counted: HashMap<(CountedKind, Box<str>), Counted>,
    /// Waiters for a fair lock, and until when each counts as alive.
    pub(super) queues: CrowdMap<Box<str>, VecDeque<(Owner, Moment)>>,
    pub(super) fences: HashMap<Box<str>, u64>,
    /// The directory's entries, and until when each is valid.
    pub(super) clients: CrowdMap<ClientId, (String, Moment)>,
}

impl MemoryState {
    /// Forgets locks whose leases are over. Requests look at leases themselves; this only frees memory.
    pub(super) fn sweep(&mut self, now: Moment) {
        self.clients.retain(|_, (_, until)| *until > now);
        self.locks.retain(|_, held| held.until > now);
        self.read_writes.retain(|_, parties| {
            parties.expire(now);
            !parties.is_empty()
        });
    }

    /// Drops dead waiters from the head of a fair lock's queue; returns the first living one.
    pub(super) fn first(&mut self, key: &str, now: Moment) -> Option<Owner> {
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

    pub(super) fn leave_queue(&mut self, key: &str, owner: Owner) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.retain(|(other, _)| *other != owner);
        }
    }

    /// Queues a waiter for a fair lock, or keeps its place alive.
    pub(super) fn join_queue(&mut self, key: &str, owner: Owner, now: Moment) {
        let until = now.plus(PLACE_LASTS);
        let queue = self.queues.entry(key.into()).or_default();
        match queue.iter_mut().find(|(other, _)| *other == owner) {
            Some(place) => place.1 = until,
            None => queue.push_back((owner, until)),
        }
    }

    /// Forgets everything under this key except fencing tokens; whether there was anything.
    pub(super) fn forget(&mut self, key: &str) -> bool {
        let mut had = self.locks.remove(key).is_some();
        had |= self.read_writes.remove(key).is_some();
        had |= self.queues.remove(key).is_some();
        let before = self.counted.len();
        self.counted.retain(|(_, name), _| **name != *key);
        had | (self.counted.len() < before)
    }

    pub(super) fn next_fence(&mut self, key: &str, now: Moment) -> FencingToken {
        let counter = self.fences.entry(key.into()).or_default();
        *counter = (*counter + 1).max(now.nanos() / 1_000);
        FencingToken::new(*counter)
    }
}

pub(super) fn rw_channel(key: &str) -> String {
    format!("{key}:rw")
}

pub(super) struct Turn<'a> {
    pub(super) state: &'a mut MemoryState,
    pub(super) now: Moment,
    pub(super) channels: &'a Mutex<Channels>,
}

impl Turn<'_> {
    /// Under the state's mutex, as a script publishes.
    pub(super) fn notify(&self, channel: &str) {
        if let Some(channel) = self.channels.lock().get(channel) {
            channel.notify();
        }
    }

    pub(super) fn fence(&mut self, key: &str, is_wanted: bool) -> Option<FencingToken> {
        let now = self.now;
        is_wanted.then(|| self.state.next_fence(key, now))
    }
}
