//! The data of a store in this process, and a request's access to it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::ident::{ClientId, FencingToken, LockName, Owner};
use crate::inspect::Holder;
use crate::seam::capabilities::CachedCheck;
use crate::seam::subscription::Channel;
use crate::seam::{Answer, Attempt, Claim, Counting, Handoff, HoldNote, PLACE_LASTS, Release};
use crate::shrink::CrowdMap;
use crate::stores::memory::counted::{Counted, CountedKind};
use crate::stores::memory::parties::Parties;
use crate::sync::Mutex;
use crate::time::Moment;

pub(super) type Channels = CrowdMap<Box<str>, Arc<Channel>>;

#[derive(Default)]
pub(super) struct MemoryState {
    pub(super) locks: CrowdMap<Box<str>, HeldLock>,
    pub(super) read_writes: CrowdMap<Box<str>, Parties>,
    pub(super) counted: HashMap<(CountedKind, Box<str>), Counted>,
    /// Waiters for fair locks, and until when each counts as alive.
    pub(super) queues: CrowdMap<Box<str>, VecDeque<(Owner, Moment)>>,
    pub(super) fences: HashMap<Box<str>, u64>,
    /// Directory entries, and until when each is valid.
    pub(super) clients: CrowdMap<ClientId, (String, Moment)>,
}

impl MemoryState {
    /// Frees memory only: requests check leases themselves.
    pub(super) fn sweep(&mut self, now: Moment) {
        self.clients.retain(|_, (_, until)| *until > now);
        self.locks.retain(|_, held| held.until > now);
        self.read_writes.retain(|_, parties| {
            parties.expire(now);
            !parties.is_empty()
        });
    }

    /// Removes dead waiters from the head of a fair lock's queue; returns the first living one.
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

    /// Queues a waiter for a fair lock, or renews its place.
    pub(super) fn join_queue(&mut self, key: &str, owner: Owner, now: Moment) {
        let until = now.plus(PLACE_LASTS);
        let queue = self.queues.entry(key.into()).or_default();
        match queue.iter_mut().find(|(other, _)| *other == owner) {
            Some(place) => place.1 = until,
            None => queue.push_back((owner, until)),
        }
    }

    /// Deletes everything under this key except fencing tokens; returns whether there was anything.
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

pub(super) fn turn_channel(key: &str, client: ClientId) -> String {
    format!("{key}:turn:{client}")
}

/// The channel of holders that hear of others who wait for their lock.
pub(super) fn recall_channel(key: &str) -> String {
    format!("{key}\0recall")
}

pub(super) struct Access<'a> {
    pub(super) state: &'a mut MemoryState,
    pub(super) now: Moment,
    pub(super) channels: &'a Mutex<Channels>,
}

impl Access<'_> {
    /// Publishes under the state's mutex, as a script does.
    pub(super) fn notify(&self, channel: &str) {
        if let Some(channel) = self.channels.lock().get(channel) {
            channel.notify();
        }
    }

    /// A message for a client that stands in the line.
    pub(super) fn tell(&self, key: &str, client: ClientId, word: &[u8]) {
        if let Some(channel) = self.channels.lock().get(turn_channel(key, client).as_str()) {
            channel.take(word);
        }
    }

    pub(super) fn is_listened_to(&self, channel: &str) -> bool {
        self.channels.lock().get(channel).is_some_and(|channel| channel.listeners() > 0)
    }

    pub(super) fn fence(&mut self, key: &str, is_wanted: bool) -> Option<FencingToken> {
        let now = self.now;
        is_wanted.then(|| self.state.next_fence(key, now))
    }
}

pub(super) struct HeldLock {
    pub(super) is_token: bool,
    pub(super) owner: Owner,
    pub(super) count: u32,
    pub(super) until: Moment,
    pub(super) since: Moment,
    pub(super) note: Option<HoldNote>,
}

impl HeldLock {
    pub(super) fn new(claim: &Claim, count: u32, now: Moment) -> HeldLock {
        HeldLock {
            is_token: claim.kind.is_token(),
            owner: claim.owner,
            count,
            until: now.plus(claim.lease),
            since: now,
            note: claim.note.clone(),
        }
    }

    pub(super) fn shown(&self, now: Moment) -> Holder {
        Holder {
            hold_count: Some(self.count),
            remaining: Some(self.until.since(now)),
            held_for: Some(now.since(self.since)),
            ends_within: self.note.as_ref().map(|note| self.since.plus(note.max_hold).since(now)),
            location: self.note.as_ref().map(|note| note.place.as_ref().clone()),
            ..Holder::new(self.owner.to_string())
        }
    }
}

/// The answers are those of [`Store`](crate::seam::Store). The default methods fit most kinds.
pub(super) trait MemoryKind: Sync {
    /// `None`: waiters of this kind get no messages, and poll.
    fn channel(&self, claim: &Claim) -> Option<String>;

    /// Whether its waiters stand in a line, and are notified of their turn.
    fn has_line(&self) -> bool {
        false
    }

    fn leave_line(&self, _access: &mut Access<'_>, _claim: &Claim) {}

    fn attempt(&self, access: &mut Access<'_>, claim: &Claim, count: u32) -> Answer<Attempt>;

    fn release(&self, access: &mut Access<'_>, claim: &Claim, left: u32) -> Release;

    fn clean_up(&self, access: &mut Access<'_>, claim: &Claim) -> Release {
        self.release(access, claim, 0)
    }

    fn renew(&self, access: &mut Access<'_>, claim: &Claim) -> bool;

    /// Whether others wait for the lock of a hold; `Lost`, too, for a kind of which nobody hears that.
    fn hear(&self, _access: &mut Access<'_>, _claim: &Claim) -> CachedCheck {
        CachedCheck::Lost
    }

    /// `Lost`, too, for a kind that is not handed off.
    fn hand_off(&self, _turn: &mut Access<'_>, _from: &Claim, _to: &Claim) -> Handoff {
        Handoff::Lost
    }

    /// `false` also for a kind whose end cannot be set.
    fn expire_at(&self, _turn: &mut Access<'_>, _claim: &Claim, _end: Moment) -> bool {
        false
    }

    /// `None` also for a kind without a count.
    fn count(&self, _turn: &mut Access<'_>, _claim: &Claim, _what: &Counting) -> Option<i64> {
        None
    }

    fn force(&self, _turn: &mut Access<'_>, _name: &LockName) -> bool {
        false
    }
}
