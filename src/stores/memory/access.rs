//! One client's access to a store in this process. Each request goes to the module of its kind of lock.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ident::{LockName, Owner};
use crate::inspect::Inspection;
use crate::park::take_time;
use crate::seam::capabilities::{CachedCheck, HoldCaching, WaitQueues};
use crate::seam::subscription::{ChannelSource, Subscription};
use crate::seam::{
    Answer, Attempt, Capabilities, Claim, Counting, Failure, Inspect, Kind, ListensFor, Pending, Release,
    Snapshot, Store, ready,
};
use crate::stores::memory::kinds;
use crate::stores::memory::state::{Access, Context, MemoryKind, MemoryState, recall_channel, turn_channel};
use crate::stores::memory::store::{Fault, MemoryShared, MemoryStore};
use crate::sync::Waker;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::Moment;

pub(crate) struct MemoryAccess {
    pub(super) shared: Arc<MemoryShared>,
    /// Identifies the client, so that a test can make only its requests fail.
    pub(super) id: Arc<()>,
    closed: AtomicBool,
}

impl MemoryStore {
    pub(crate) fn open(&self) -> MemoryAccess {
        MemoryAccess { shared: Arc::clone(&self.shared), id: Arc::default(), closed: AtomicBool::new(false) }
    }
}

impl MemoryAccess {
    pub(crate) fn fail(&self, fault: Fault) {
        let mut faults = self.shared.faults.lock();
        faults.of_some.retain(|(id, _)| !Arc::ptr_eq(id, &self.id));
        faults.of_some.push((Arc::clone(&self.id), fault));
    }

    pub(crate) fn is_of(&self, store: &MemoryStore) -> bool {
        Arc::ptr_eq(&self.shared, &store.shared)
    }

    /// Calls `ask` once, as one round trip, unless a fault makes the request fail before it arrives.
    /// Afterwards a fault can drop the answer, or a delay make it late.
    pub(super) fn ask<T>(&self, deadline: Moment, ask: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let (fault, delay) = self.shared.faults.lock().of(&self.id);
        match fault {
            Some(Fault::Refused) => return Failure::refused(Fault::Refused.error()),
            Some(Fault::RequestLost) => return Err(Failure::Unknown(Fault::RequestLost.error())),
            Some(Fault::AnswerLost) => {
                drop(ask());
                return Err(Failure::Unknown(Fault::AnswerLost.error()));
            }
            None if delay.is_zero() => return ask(),
            None => {}
        }
        let answer = ask();
        let clock = &self.shared.clock;
        let left = deadline.since(clock.now());
        take_time(clock, delay.min(left));
        if delay < left {
            return answer;
        }
        let words = "the memory store was made slower than the command time-out";
        Err(Failure::Unknown(Error::new(ErrorKind::TimedOut, "use", words).with_unknown_outcome()))
    }

    pub(super) fn ask_all<T>(
        &self,
        claims: &[Claim],
        deadline: Moment,
        ask: impl Fn(&Claim) -> Answer<T>,
    ) -> Vec<Answer<T>> {
        let answers = self.ask(deadline, || Ok(claims.iter().map(ask).collect()));
        answers.unwrap_or_else(|failure| failure.each(claims.len()))
    }

    pub(super) fn check_open(&self) -> Answer<()> {
        if self.closed.load(Ordering::Acquire) {
            return Failure::refused(Error::new(ErrorKind::ShutDown, "use", "the client was shut down"));
        }
        Ok(())
    }

    fn ask_for<T>(
        &self,
        (kind, name): (Kind, &LockName),
        deadline: Moment,
        request: impl FnOnce(&dyn MemoryKind, &mut Access<'_>) -> T,
    ) -> Answer<T> {
        self.ask(deadline, || self.with(kind, name, request))
    }

    fn with<T>(
        &self,
        kind: Kind,
        name: &LockName,
        request: impl FnOnce(&dyn MemoryKind, &mut Access<'_>) -> T,
    ) -> Answer<T> {
        self.check_open()?;
        let mut state = self.shared.state.lock();
        let now = self.shared.clock.now();
        let is_strange = state.locks.get_mut(name.key()).is_some_and(|lock| {
            lock.expire(now);
            lock.is_strange_to(kind)
        });
        if is_strange {
            let words = "the name is in use by another kind of lock";
            return Failure::refused(Error::new(ErrorKind::WrongType, "use", words));
        }
        let mut access =
            Access { state: &mut state, context: Context { now, channels: &self.shared.channels } };
        Ok(request(kinds::of(kind), &mut access))
    }
}

impl Store for MemoryAccess {
    fn capabilities(self: Arc<Self>) -> Capabilities {
        Capabilities {
            can_expire_in: true,
            queues: Kind::is_in_order,
            wait_queues: Some(self.clone()),
            hold_caching: Some(self.clone()),
            itself: Some(self.clone()),
            directory: Some(self.clone()),
            ..Capabilities::default()
        }
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        self.ask_for((claim.kind, &claim.name), deadline, |kind, access| kind.attempt(access, claim, count))
            .flatten()
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        self.ask_for((claim.kind, &claim.name), deadline, |kind, access| kind.release(access, claim, left))
    }

    fn hand_off(&self, from: &Claim, to: &Claim, deadline: Moment) -> Option<Box<dyn Pending>> {
        let hand_off =
            || self.ask_for((to.kind, &to.name), deadline, |kind, access| kind.hand_off(access, from, to));
        from.kind.has_queue().then(|| ready(hand_off()))
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        let renew =
            |claim: &Claim| self.with(claim.kind, &claim.name, |kind, access| kind.renew(access, claim));
        self.ask_all(claims, deadline, renew)
    }

    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        let clean_up =
            |claim: &Claim| self.with(claim.kind, &claim.name, |kind, access| kind.clean_up(access, claim));
        self.ask_all(claims, deadline, clean_up)
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        self.ask_for((claim.kind, &claim.name), deadline, |kind, access| {
            let end = access.context.now.plus(rest);
            kind.expire_at(access, claim, end)
        })
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        self.ask_for((kind, name), deadline, |kind, access| kind.force(access, name))
    }

    fn count(&self, claim: &Claim, what: &Counting, deadline: Moment) -> Answer<Option<i64>> {
        self.ask_for((claim.kind, &claim.name), deadline, |kind, access| kind.count(access, claim, what))
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        Some(self.listen_to(&channel(claim)?, waker))
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        self.shared.channels.get(&channel(claim)?).map(|channel| channel.message_count())
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

impl WaitQueues for MemoryAccess {
    fn leave_wait_queue(&self, claim: &Claim, deadline: Moment) {
        drop(
            self.ask_for((claim.kind, &claim.name), deadline, |kind, access| kind.leave_line(access, claim)),
        );
    }
}

fn channel(claim: &Claim) -> Option<String> {
    let kind = kinds::of(claim.kind);
    if claim.listens_for == ListensFor::OwnTurn && kind.has_line() {
        return Some(turn_channel(claim.name.key(), claim.owner.client()));
    }
    kind.channel(claim)
}

/// Only reports waiters. No hold is cached, because in this store acquiring again costs next to nothing.
impl HoldCaching for MemoryAccess {
    fn caches(&self) -> bool {
        false
    }

    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        Some(self.listen_to(&recall_channel(claim.name.key()), waker))
    }

    fn check_holds(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<CachedCheck>> {
        let look =
            |claim: &Claim| self.with(claim.kind, &claim.name, |kind, access| kind.hear(access, claim));
        self.ask_all(claims, deadline, look)
    }
}

impl MemoryAccess {
    fn listen_to(&self, name: &str, waker: &Waker) -> Subscription {
        let source: Arc<dyn ChannelSource> = Arc::<MemoryShared>::clone(&self.shared);
        self.shared.channels.listen(name, source, waker)
    }
}

impl Inspect for MemoryAccess {
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        self.ask_for((kind, name), by, |_, access| {
            Snapshot::of(access.state.shown(name, access.context.now, access.context.channels), kind, owner)
        })
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        let shown = |state: &mut MemoryState, now| state.shown(name, now, &self.shared.channels);
        self.ask(deadline, || self.directory(shown))
    }
}
