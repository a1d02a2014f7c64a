//! Semaphores, latches and conditions in this process.

use std::collections::HashMap;

use crate::ident::{ClientId, Owner};
use crate::inspect::{ObjectKind, PermitInfo};
use crate::seam::{Answer, Attempt, Claim, Counting, Others, PLACE_LASTS, QueueMode, Release, not_set_up};
use crate::stores::memory::wait_queue::{TimedQueue, WaitQueue};
use crate::time::Moment;

#[derive(Default)]
pub(super) struct Counted {
    /// `None` before the count is set up, and after it is deleted.
    count: Option<i64>,
    ends: Option<Moment>,
    /// `true` while the owner has permits; after their release `false`, so a repeated release does nothing.
    taken: HashMap<Owner, bool>,
    /// The ends of permits with leases, by the permits' ids.
    leased: HashMap<[u8; 16], Moment>,
    /// The results of requests, so that a repeated request changes nothing.
    results: HashMap<Owner, i64>,
    queue: TimedQueue<Owner>,
    /// Waiters for a condition that were notified, and have sent no request since.
    notified: TimedQueue<Owner>,
    /// Waiters to which the request being carried out sends a message.
    signalled: Vec<Owner>,
    pub(super) wait_queue: WaitQueue,
    /// The client whose request is being carried out, if it got no permits and waits.
    refused: Option<ClientId>,
}

const GRANTED: Attempt = Attempt::granted(None);
pub(super) const FREED: Release = Release::Freed { others: Others::Nobody };

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CountedKind {
    Permits,
    Semaphore,
    Latch,
    Signal,
}

impl CountedKind {
    /// All counted kinds, in the order in which `inspect` searches.
    pub(super) const ALL: [CountedKind; 4] =
        [CountedKind::Permits, CountedKind::Semaphore, CountedKind::Latch, CountedKind::Signal];

    pub(super) fn shown_as(self) -> Option<ObjectKind> {
        match self {
            CountedKind::Permits => Some(ObjectKind::ExpirableSemaphore),
            CountedKind::Semaphore => Some(ObjectKind::Semaphore),
            CountedKind::Latch => Some(ObjectKind::CountDownLatch),
            CountedKind::Signal => None,
        }
    }

    pub(super) fn channel(self, key: &str) -> String {
        format!("{key}:{self:?}")
    }
}

impl Counted {
    /// Deletes the count if its time has ended, and puts back permits whose leases have ended. Returns the
    /// count as it was before these changes.
    pub(super) fn expire(&mut self, now: Moment) -> Option<i64> {
        let before = self.count;
        if self.ends.is_some_and(|ends| ends <= now) {
            (self.count, self.ends) = (None, None);
        }
        self.wait_queue.expire(now);
        let out = self.leased.len();
        self.leased.retain(|_, until| *until > now);
        self.give_back(number(out - self.leased.len()));
        before
    }

    /// Returns whom a request wakes: whether all listeners, which waiters for a condition, and for which
    /// clients permits are now reserved. `before` is the count before the request. If this request refused a
    /// client, only clients behind it in the queue get reservations, because they may want fewer permits.
    pub(super) fn news(&mut self, before: Option<i64>, now: Moment) -> (bool, Vec<Owner>, Vec<ClientId>) {
        let has_fewer = self.count.is_some() && self.count <= before;
        let free = usize::try_from(self.count.unwrap_or(0)).unwrap_or(0);
        let behind = self.refused.take().map_or(0, |client| self.wait_queue.position_of(client));
        let signalled = std::mem::take(&mut self.signalled);
        (self.count != before && !has_fewer, signalled, self.wait_queue.take_next(free, behind, now))
    }

    fn give_back(&mut self, amount: i64) {
        if self.count.is_some() {
            self.add(amount);
        }
    }

    pub(super) fn shown(&self, now: Moment) -> Option<(i64, Option<Moment>)> {
        let back = self.leased.values().filter(|until| **until <= now).count();
        let count = self.count.filter(|_| self.ends.is_none_or(|ends| ends > now))?;
        Some((count.saturating_add(number(back)), self.ends))
    }

    pub(super) fn lent(&self, now: Moment) -> Vec<PermitInfo> {
        let mut out: Vec<_> = self.leased.iter().filter(|(_, until)| **until > now).collect();
        out.sort_by_key(|(_, until)| **until);
        let shown = out.into_iter().map(|(id, until)| PermitInfo {
            id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
            by_this_client: false,
            remaining: until.since(now),
        });
        shown.collect()
    }

    fn add(&mut self, amount: i64) {
        self.count = Some(self.count.unwrap_or(0).saturating_add(amount));
    }

    pub(super) fn take(&mut self, claim: &Claim, now: Moment) -> Answer<Attempt> {
        match self.taken.get(&claim.owner) {
            Some(true) => return Ok(GRANTED),
            Some(false) => return Ok(Attempt::Busy { retry_after: None }),
            None => {}
        }
        let attempt = self.take_units(claim, now)?;
        if attempt == GRANTED {
            self.taken.insert(claim.owner, true);
        }
        Ok(attempt)
    }

    pub(super) fn take_leased(&mut self, claim: &Claim, now: Moment) -> Answer<Attempt> {
        if !self.leased.contains_key(&claim.owner.permit(0)) {
            let attempt = self.take_units(claim, now)?;
            if attempt != GRANTED {
                return Ok(attempt);
            }
        }
        self.prolong(claim, now);
        Ok(GRANTED)
    }

    fn take_units(&mut self, claim: &Claim, now: Moment) -> Answer<Attempt> {
        if self.count.is_none() {
            return Err(not_set_up());
        }
        let client = claim.owner.client();
        let kept = match claim.queue_mode {
            QueueMode::Barges => 0,
            _ => self.wait_queue.kept_for_others(Some(client)),
        };
        if self.has(claim.units.saturating_add(u32::try_from(kept).unwrap_or(u32::MAX))) {
            self.add(-i64::from(claim.units));
            self.wait_queue.leave(client);
            return Ok(GRANTED);
        }
        let first = self.leased.values().min().map(|until| until.since(now));
        let attempt = self.wait_queue.refuse(claim, now, first);
        self.refused = Some(client).filter(|_| matches!(attempt, Attempt::InWaitQueue { .. }));
        Ok(attempt)
    }

    pub(super) fn pass(&self) -> Attempt {
        if self.has(1) { Attempt::Busy { retry_after: None } } else { GRANTED }
    }

    /// Grants if the waiter was notified, or has lost its place in the queue (waking without notification is
    /// allowed). First notifies others in place of notified waiters that did not ask in time.
    pub(super) fn notice(&mut self, claim: &Claim, now: Moment) -> Attempt {
        let before = self.notified.len();
        self.notified.expire(now);
        self.notify(before - self.notified.len(), now);
        if self.notified.leave(claim.owner) || !self.queue.iter().any(|(owner, _)| owner == claim.owner) {
            return GRANTED;
        }
        self.queue.join_or_renew(claim.owner, now.plus(PLACE_LASTS));
        Attempt::Busy { retry_after: None }
    }

    fn has(&self, units: u32) -> bool {
        self.count.unwrap_or(0) >= i64::from(units)
    }

    fn ids(claim: &Claim) -> impl Iterator<Item = [u8; 16]> + '_ {
        (0..claim.units).map(|index| claim.owner.permit(index))
    }

    fn prolong(&mut self, claim: &Claim, now: Moment) {
        for id in Self::ids(claim) {
            let until = self.leased.entry(id).or_insert(now);
            *until = (*until).max(now.plus(claim.lease));
        }
    }

    pub(super) fn renew(&mut self, claim: &Claim, now: Moment) -> bool {
        let are_out = Self::ids(claim).all(|id| self.leased.contains_key(&id));
        if are_out {
            self.prolong(claim, now);
        }
        are_out
    }

    pub(super) fn give_back_taken(&mut self, claim: &Claim) -> Release {
        let was_taken = self.taken.insert(claim.owner, false);
        if was_taken == Some(true) {
            self.give_back(i64::from(claim.units));
        }
        if was_taken.is_some() { FREED } else { Release::NotHeld { holder: None } }
    }

    pub(super) fn give_back_leased(&mut self, claim: &Claim) -> Release {
        let back = Self::ids(claim).filter(|id| self.leased.remove(id).is_some()).count();
        self.give_back(number(back));
        let all = u32::try_from(back).ok() == Some(claim.units);
        if all { FREED } else { Release::NotHeld { holder: None } }
    }

    /// Removes a waiter. If it was notified and has not asked since, the next waiter is notified.
    pub(super) fn leave(&mut self, owner: Owner, now: Moment) {
        self.queue.leave(owner);
        if self.notified.leave(owner) {
            self.notify(1, now);
        }
    }

    fn notify(&mut self, most: usize, now: Moment) -> i64 {
        let woken: Vec<Owner> = (0..most).map_while(|_| self.queue.next(now)).collect();
        self.notified.join(woken.iter().copied(), now.plus(PLACE_LASTS));
        self.signalled.extend(&woken);
        number(woken.len())
    }

    pub(super) fn change(
        &mut self,
        kind: CountedKind,
        claim: &Claim,
        what: &Counting,
        now: Moment,
    ) -> Option<i64> {
        let (count, are_out) = (self.count.unwrap_or(0), number(self.leased.len()));
        if let Some(done) = self.results.get(&claim.owner).filter(|_| what.is_remembered()) {
            return Some(*done);
        }
        let result = match what {
            Counting::Ask => return self.count,
            Counting::AskAll => return self.count.map(|count| count + are_out),
            Counting::AskLease(id) => {
                let left = self.leased.get(id).map(|until| until.since(now).as_millis());
                return left.map(|left| i64::try_from(left).unwrap_or(i64::MAX));
            }
            Counting::AskOut => are_out,
            Counting::Forget => count,
            Counting::SetUp { to, lease } => {
                let is_new = self.count.is_none();
                if is_new {
                    // A latch of zero is stored as no count, which means open.
                    self.count = Some(i64::from(*to)).filter(|to| *to > 0 || kind != CountedKind::Latch);
                    self.ends = lease.map(|lease| now.plus(lease));
                }
                is_new.into()
            }
            Counting::Add(amount) => {
                self.add(*amount);
                count.saturating_add(*amount)
            }
            Counting::AddIfSetUp(amount) => {
                self.give_back(*amount);
                self.count.is_some().into()
            }
            Counting::SetTo(to) => {
                let free = i64::from(*to) - are_out;
                self.count = Some(free);
                free
            }
            Counting::Drain => {
                self.count = self.count.map(|_| 0);
                count
            }
            Counting::CountDown => {
                let left = (count - 1).max(0);
                self.count = Some(left).filter(|left| *left > 0);
                left
            }
            Counting::GiveBack(id) => {
                let back = i64::from(self.leased.remove(id).is_some());
                self.give_back(back);
                back
            }
            Counting::GiveBackAll(ids) => {
                let are_all_out = ids.iter().all(|id| self.leased.contains_key(id));
                let back = ids.iter().filter(|id| are_all_out && self.leased.remove(*id).is_some()).count();
                self.give_back(number(back));
                number(back)
            }
            Counting::Lease(id, lease) => {
                let until = self.leased.get_mut(id).map(|until| *until = now.plus(*lease));
                until.is_some().into()
            }
            Counting::Delete => {
                self.leased.clear();
                self.ends = None;
                self.count.take().is_some().into()
            }
            Counting::Notify { all } => self.notify(if *all { usize::MAX } else { 1 }, now),
            Counting::Enlist => {
                self.queue.join_or_renew(claim.owner, now.plus(PLACE_LASTS));
                0
            }
        };
        if what.is_remembered() {
            self.results.insert(claim.owner, result);
        }
        Some(result)
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
