//! One client's access to a store in this process: each request is put to its kind of lock.

use std::collections::hash_map;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::inspect::Inspection;
use crate::seam::capabilities::Capabilities;
use crate::seam::inspection::Inspect;
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::seam::{
    Answer, Answered, Attempt, Claim, Counting, Failure, Family, Handoff, Kind, Pending, Release, Snapshot,
    Store,
};
use crate::stores::memory::kinds;
use crate::stores::memory::kinds::kind::MemoryKind;
use crate::stores::memory::parties::Parties;
use crate::stores::memory::state::Turn;
use crate::stores::memory::store::{MemoryShared, MemoryStore};
use crate::sync::Waker;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::Moment;

/// One client's access to a store; closing it does not close the store.
pub(crate) struct MemoryAccess {
    pub(super) shared: Arc<MemoryShared>,
    closed: AtomicBool,
}

impl MemoryStore {
    /// One client's access, without faults.
    pub(crate) fn access(&self) -> MemoryAccess {
        MemoryAccess { shared: Arc::clone(&self.shared), closed: AtomicBool::new(false) }
    }
}

impl MemoryAccess {
    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ShutDown, "use", "the client was shut down"));
        }
        Ok(())
    }

    /// Runs one request on the lock of `name`, after what has run out by now is gone.
    fn with<T>(
        &self,
        kind: Kind,
        name: &LockName,
        request: impl FnOnce(&dyn MemoryKind, &mut Turn<'_>) -> T,
    ) -> Answer<T> {
        if let Err(error) = self.check_open() {
            return Err(Failure::Refused(error));
        }
        let mut state = self.shared.state.lock();
        let now = self.shared.clock.now();
        if let hash_map::Entry::Occupied(held) = state.locks.entry(name.key().into()) {
            if held.get().until <= now {
                held.remove();
            } else if held.get().is_token != kind.is_token() {
                return Err(Failure::Refused(strange()));
            }
        }
        if matches!(kind.family(), Family::Read | Family::Write) && state.locks.contains_key(name.key()) {
            return Err(Failure::Refused(strange()));
        }
        let is_read_or_written = |parties: &mut Parties| {
            parties.expire(now);
            !parties.is_empty()
        };
        if matches!(kind.family(), Family::Lock | Family::Token)
            && state.read_writes.get_mut(name.key()).is_some_and(is_read_or_written)
        {
            return Err(Failure::Refused(strange()));
        }
        let mut turn = Turn { state: &mut state, now, channels: &self.shared.channels };
        Ok(request(kinds::of(kind), &mut turn))
    }

    /// Has `to` hold the lock in place of `from`.
    pub(super) fn hand_off_now(&self, from: &Claim, to: &Claim) -> Answer<Handoff> {
        self.with(to.kind, &to.name, |kind, turn| kind.hand_off(turn, from, to))
    }
}

fn strange() -> Error {
    Error::new(ErrorKind::WrongType, "use", "the name is in use by another kind of lock")
}

impl Store for MemoryAccess {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            can_expire_in: true,
            queues: |kind| kinds::of(kind).queues(),
            poll_every: |kind| kinds::of(kind).poll_every(),
            directory: Some(self),
            listing: Some(self),
            ..Capabilities::default()
        }
    }

    fn check_name(&self, _kind: Kind, _name: &LockName) -> Result<()> {
        Ok(())
    }

    fn attempt(&self, claim: &Claim, count: u32, _deadline: Moment) -> Answer<Attempt> {
        self.with(claim.kind, &claim.name, |kind, turn| kind.attempt(turn, claim, count))
    }

    fn release(&self, claim: &Claim, left: u32, _deadline: Moment) -> Answer<Release> {
        self.with(claim.kind, &claim.name, |kind, turn| kind.release(turn, claim, left))
    }

    fn hand_off(&self, from: &Claim, to: &Claim, _deadline: Moment) -> Option<Box<dyn Pending>> {
        let answer = || -> Box<dyn Pending> { Box::new(Answered(self.hand_off_now(from, to))) };
        from.kind.is_handed_off().then(answer)
    }

    fn renew(&self, claims: &[Claim], _deadline: Moment) -> Vec<Answer<bool>> {
        let renew = |claim: &Claim| self.with(claim.kind, &claim.name, |kind, turn| kind.renew(turn, claim));
        claims.iter().map(renew).collect()
    }

    fn abandon(&self, claims: &[Claim], _deadline: Moment) -> Vec<Answer<Release>> {
        let abandon =
            |claim: &Claim| self.with(claim.kind, &claim.name, |kind, turn| kind.abandon(turn, claim));
        claims.iter().map(abandon).collect()
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, _deadline: Moment) -> Answer<bool> {
        self.with(claim.kind, &claim.name, |kind, turn| {
            let end = turn.now.plus(rest);
            kind.expire_at(turn, claim, end)
        })
    }

    fn force(&self, kind: Kind, name: &LockName, _deadline: Moment) -> Answer<bool> {
        self.with(kind, name, |kind, turn| kind.force(turn, name))
    }

    fn count(&self, claim: &Claim, what: &Counting, _deadline: Moment) -> Answer<Option<i64>> {
        self.with(claim.kind, &claim.name, |kind, turn| kind.count(turn, claim, what))
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        let name = kinds::of(claim.kind).channel(claim)?;
        let mut channels = self.shared.channels.lock();
        let channel =
            channels.entry(name.as_str().into()).or_insert_with(|| Arc::new(Channel::new(&name, true)));
        let source: Arc<dyn ChannelSource> = Arc::<MemoryShared>::clone(&self.shared);
        Some(Subscription::new(Arc::clone(channel), source, waker))
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        let name = kinds::of(claim.kind).channel(claim)?;
        self.shared.channels.lock().get(name.as_str()).map(|channel| channel.message_count())
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
    fn inspect(
        &self,
        kind: Kind,
        name: &LockName,
        owner: Owner,
        _deadline: Moment,
    ) -> Answer<Option<Snapshot>> {
        self.with(kind, name, |kind, turn| kind.inspect(turn, name, owner))
    }

    fn describe(&self, name: &LockName, _deadline: Moment) -> Answer<Inspection> {
        if let Err(error) = self.check_open() {
            return Err(Failure::Refused(error));
        }
        let state = self.shared.state.lock();
        Ok(state.shown(name, self.shared.clock.now(), &self.shared.channels.lock()))
    }
}
