//! The data of a store in this process, and one request's access to the data.

use std::collections::HashMap;

use crate::ident::{ClientId, FencingToken, LockName};
use crate::seam::capabilities::CachedCheck;
use crate::seam::subscription::Channels;
use crate::seam::{Answer, Attempt, Claim, Counting, Handoff, Release};
use crate::shrink::CrowdMap;
use crate::stores::memory::counted::{Counted, CountedKind};
use crate::stores::memory::lock::Lock;
use crate::time::Moment;

#[derive(Default)]
pub(super) struct MemoryState {
    pub(super) locks: CrowdMap<Box<str>, Lock>,
    pub(super) counted: HashMap<(CountedKind, Box<str>), Counted>,
    pub(super) fences: HashMap<Box<str>, u64>,
    pub(super) clients: CrowdMap<ClientId, (String, Moment)>,
}

impl MemoryState {
    /// Frees the memory of expired data. Requests need no sweep, because they check leases themselves.
    pub(super) fn sweep(&mut self, now: Moment) {
        self.clients.retain(|_, (_, until)| *until > now);
        self.locks.retain(|_, lock| {
            lock.expire(now);
            !lock.is_empty()
        });
    }

    /// Deletes everything under this key except fencing tokens. Returns whether anything existed.
    pub(super) fn forget(&mut self, key: &str) -> bool {
        let had = self.locks.remove(key).is_some_and(|lock| !lock.is_empty());
        let before = self.counted.len();
        self.counted.retain(|(_, name), _| **name != *key);
        had | (self.counted.len() < before)
    }
}

pub(super) fn rw_channel(key: &str) -> String {
    format!("{key}:rw")
}

pub(super) fn turn_channel(key: &str, client: ClientId) -> String {
    format!("{key}:turn:{client}")
}

/// The channel of recalls: messages that tell a holder that others want the lock.
pub(super) fn recall_channel(key: &str) -> String {
    format!("{key}\0recall")
}

pub(super) struct Access<'a> {
    pub(super) state: &'a mut MemoryState,
    pub(super) context: Context<'a>,
}

/// The time of a request, and the channels. Waiters are woken under the state's mutex, so that publishing and
/// the change are one step, as in a script on Redis.
pub(super) struct Context<'a> {
    pub(super) now: Moment,
    pub(super) channels: &'a Channels,
}

impl Context<'_> {
    pub(super) fn notify(&self, channel: &str) {
        self.channels.notify(channel);
    }

    pub(super) fn tell(&self, key: &str, client: ClientId, word: &[u8]) {
        if let Some(channel) = self.channels.get(&turn_channel(key, client)) {
            channel.take(word);
        }
    }

    pub(super) fn is_listened_to(&self, channel: &str) -> bool {
        self.channels.get(channel).is_some_and(|channel| channel.listeners() > 0)
    }
}

impl Access<'_> {
    pub(super) fn fence(&mut self, key: &str, is_wanted: bool) -> Option<FencingToken> {
        is_wanted.then(|| {
            let counter = self.state.fences.entry(key.into()).or_default();
            *counter = (*counter + 1).max(self.context.now.nanos() / 1_000);
            FencingToken::new(*counter)
        })
    }
}

pub(super) trait MemoryKind: Sync {
    /// The channel on which this claim waits. `None` if waiters of this kind poll.
    fn channel(&self, claim: &Claim) -> Option<String>;

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

    /// Whether the hold still exists, and others want its lock. Kinds without cached holds answer `Lost`.
    fn hear(&self, _access: &mut Access<'_>, _claim: &Claim) -> CachedCheck {
        CachedCheck::Lost
    }

    fn hand_off(&self, _turn: &mut Access<'_>, _from: &Claim, _to: &Claim) -> Handoff {
        Handoff::Lost
    }

    fn expire_at(&self, _turn: &mut Access<'_>, _claim: &Claim, _end: Moment) -> bool {
        false
    }

    fn count(&self, _turn: &mut Access<'_>, _claim: &Claim, _what: &Counting) -> Option<i64> {
        None
    }

    fn force(&self, _turn: &mut Access<'_>, _name: &LockName) -> bool {
        false
    }
}
