//! Semaphores, latches and conditions in this process.

use std::collections::{HashMap, VecDeque};

use crate::ident::{ClientId, Owner};
use crate::inspect::{ObjectKind, PermitInfo};
use crate::seam::{Answer, Attempt, Claim, Counting, Others, PLACE_LASTS, QueueMode, Release, not_set_up};
use crate::stores::memory::line::Line;
use crate::time::Moment;

#[derive(Default)]
pub(super) struct Counted {
    /// `None`: never set up.
    count: Option<i64>,
    ends: Option<Moment>,
    /// Whether each permit is still taken, by request. Released ones stay, so that none is released twice.
    taken: HashMap<Owner, bool>,
    /// Permits with leases, by id.
    out: HashMap<[u8; 16], Moment>,
    done: HashMap<Owner, i64>,
    /// Waiters for a condition, and until when each counts as alive.
    queue: VecDeque<(Owner, Moment)>,
    notified: HashMap<Owner, Moment>,
    /// The clients that wait for permits.
    pub(super) line: Line,
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
    /// In the order in which `inspect` searches.
    pub(super) const ALL: [CountedKind; 4] =
        [CountedKind::Permits, CountedKind::Semaphore, CountedKind::Latch, CountedKind::Signal];

    /// `None`: `inspect` does not show it.
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

pub(super) enum WokenWaiters {
    Nobody,
    All,
    These(Vec<Owner>),
}

impl Counted {
    /// Returns expired permits; whether there were any.
    pub(super) fn expire(&mut self, now: Moment) -> bool {
        if self.ends.is_some_and(|ends| ends <= now) {
            (self.count, self.ends) = (None, None);
        }
        self.line.expire(now);
        let before = self.out.len();
        self.out.retain(|_, until| *until > now);
        let back = before - self.out.len();
        self.give_back(i64::try_from(back).unwrap_or(i64::MAX));
        back > 0
    }

    /// A deleted count stays deleted.
    fn give_back(&mut self, amount: i64) {
        if self.count.is_some() {
            self.add(amount);
        }
    }

    /// Count and expiry; `None`: never set up.
    pub(super) fn shown(&self, now: Moment) -> Option<(i64, Option<Moment>)> {
        let back = self.out.values().filter(|until| **until <= now).count();
        let count = self.count.filter(|_| self.ends.is_none_or(|ends| ends > now))?;
        Some((count.saturating_add(i64::try_from(back).unwrap_or(0)), self.ends))
    }

    /// Permits with leases, the earliest end first.
    pub(super) fn lent(&self, now: Moment) -> Vec<PermitInfo> {
        let mut out: Vec<_> = self.out.iter().filter(|(_, until)| **until > now).collect();
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
            Some(true) => Ok(GRANTED),
            Some(false) => Ok(Attempt::Busy { retry_after: None }),
            None if self.count.is_none() => Err(not_set_up()),
            None if self.may_take(claim) => {
                self.add(-i64::from(claim.units));
                self.taken.insert(claim.owner, true);
                self.line.leave(claim.owner.client());
                Ok(GRANTED)
            }
            None => Ok(self.line.stand(claim, now, None)),
        }
    }

    /// Whether there are enough besides those that are kept for others.
    fn may_take(&self, claim: &Claim) -> bool {
        let kept = match claim.queue_mode {
            QueueMode::Barges => 0,
            _ => self.line.kept_for_others(Some(claim.owner.client())),
        };
        self.has(claim.units.saturating_add(u32::try_from(kept).unwrap_or(u32::MAX)))
    }

    /// The clients to notify after a request. Behind a client that was `refused`, others may want fewer.
    pub(super) fn told(&mut self, refused: Option<ClientId>, now: Moment) -> Vec<ClientId> {
        let free = usize::try_from(self.count.unwrap_or(0)).unwrap_or(0);
        let behind = refused.map_or(0, |client| self.line.up_to(client));
        self.line.tell(free, behind, now)
    }

    pub(super) fn take_leased(&mut self, claim: &Claim, now: Moment) -> Answer<Attempt> {
        let is_out = self.out.contains_key(&claim.owner.permit(0));
        if !is_out && self.count.is_none() {
            return Err(not_set_up());
        }
        if !is_out && !self.may_take(claim) {
            let first = self.out.values().min().map(|until| until.since(now));
            return Ok(self.line.stand(claim, now, first));
        }
        if !is_out {
            self.add(-i64::from(claim.units));
            self.line.leave(claim.owner.client());
        }
        self.prolong(claim, now);
        Ok(GRANTED)
    }

    pub(super) fn pass(&self) -> Attempt {
        if self.has(1) { Attempt::Busy { retry_after: None } } else { GRANTED }
    }

    pub(super) fn notice(&mut self, claim: &Claim, now: Moment) -> (Attempt, WokenWaiters) {
        let is_over = |until: &Moment| *until <= now;
        let dead: Vec<Owner> =
            self.notified.iter().filter(|(_, until)| is_over(until)).map(|(owner, _)| *owner).collect();
        let mut woken = Vec::new();
        for owner in dead {
            self.notified.remove(&owner);
            woken.extend(self.notify(now));
        }
        let was_notified = self.notified.remove(&claim.owner).is_some();
        let place = self.queue.iter_mut().find(|(owner, _)| *owner == claim.owner);
        let attempt = match place {
            Some(place) if !was_notified => {
                place.1 = now.plus(PLACE_LASTS);
                Attempt::Busy { retry_after: None }
            }
            _ => GRANTED,
        };
        (attempt, WokenWaiters::These(woken))
    }

    fn has(&self, units: u32) -> bool {
        self.count.unwrap_or(0) >= i64::from(units)
    }

    fn ids(claim: &Claim) -> impl Iterator<Item = [u8; 16]> + '_ {
        (0..claim.units).map(|index| claim.owner.permit(index))
    }

    fn prolong(&mut self, claim: &Claim, now: Moment) {
        for id in Self::ids(claim) {
            let until = self.out.entry(id).or_insert(now);
            *until = (*until).max(now.plus(claim.lease));
        }
    }

    pub(super) fn renew(&mut self, claim: &Claim, now: Moment) -> bool {
        let are_out = Self::ids(claim).all(|id| self.out.contains_key(&id));
        if are_out {
            self.prolong(claim, now);
        }
        are_out
    }

    pub(super) fn give_back_taken(&mut self, claim: &Claim) -> (Release, WokenWaiters) {
        match self.taken.insert(claim.owner, false) {
            Some(true) => {
                self.give_back(i64::from(claim.units));
                (FREED, WokenWaiters::All)
            }
            Some(false) => (FREED, WokenWaiters::Nobody),
            None => (Release::NotHeld { holder: None }, WokenWaiters::Nobody),
        }
    }

    pub(super) fn give_back_leased(&mut self, claim: &Claim) -> (Release, WokenWaiters) {
        let back = Self::ids(claim).filter(|id| self.out.remove(id).is_some()).count();
        self.give_back(i64::try_from(back).unwrap_or(0));
        let all = u32::try_from(back).ok() == Some(claim.units);
        (if all { FREED } else { Release::NotHeld { holder: None } }, WokenWaiters::All)
    }

    /// Removes a waiter; a notification that it did not read passes to the next.
    pub(super) fn leave(&mut self, owner: Owner, now: Moment) -> WokenWaiters {
        self.queue.retain(|(other, _)| *other != owner);
        let passed_on = self.notified.remove(&owner).and_then(|_| self.notify(now));
        WokenWaiters::These(passed_on.into_iter().collect())
    }

    fn notify(&mut self, now: Moment) -> Option<Owner> {
        while let Some((next, until)) = self.queue.pop_front() {
            if until > now {
                self.notified.insert(next, now.plus(PLACE_LASTS));
                return Some(next);
            }
        }
        None
    }

    pub(super) fn change(
        &mut self,
        kind: CountedKind,
        claim: &Claim,
        what: &Counting,
        now: Moment,
    ) -> (Option<i64>, WokenWaiters) {
        let (count, are_out) = (self.count.unwrap_or(0), i64::try_from(self.out.len()).unwrap_or(i64::MAX));
        let done = self.done.get(&claim.owner).filter(|_| what.is_remembered());
        if let Some(done) = done {
            return (Some(*done), WokenWaiters::Nobody);
        }
        let (result, woken) = match what {
            Counting::Ask => return (self.count, WokenWaiters::Nobody),
            Counting::AskAll => return (self.count.map(|count| count + are_out), WokenWaiters::Nobody),
            Counting::AskLease(id) => {
                let left = self.out.get(id).map(|until| until.since(now).as_millis());
                return (left.map(|left| i64::try_from(left).unwrap_or(i64::MAX)), WokenWaiters::Nobody);
            }
            Counting::AskOut => (are_out, WokenWaiters::Nobody),
            Counting::Forget => (count, WokenWaiters::Nobody),
            Counting::SetUp { to, lease } => match self.count {
                Some(_) => (0, WokenWaiters::Nobody),
                None => {
                    // Without a count a latch is open.
                    self.count = Some(i64::from(*to)).filter(|to| *to > 0 || kind != CountedKind::Latch);
                    self.ends = lease.map(|lease| now.plus(lease));
                    (1, WokenWaiters::All)
                }
            },
            Counting::Add(amount) => {
                self.add(*amount);
                (count.saturating_add(*amount), WokenWaiters::All)
            }
            Counting::AddIfSetUp(amount) => match self.count {
                Some(_) => {
                    self.add(*amount);
                    (1, WokenWaiters::All)
                }
                None => (0, WokenWaiters::Nobody),
            },
            Counting::SetTo(to) => {
                let free = i64::from(*to) - are_out;
                self.count = Some(free);
                (free, WokenWaiters::All)
            }
            Counting::Drain => {
                self.count = self.count.map(|_| 0);
                (count, WokenWaiters::Nobody)
            }
            Counting::CountDown => {
                let left = (count - 1).max(0);
                self.count = Some(left).filter(|left| *left > 0);
                (left, if left == 0 { WokenWaiters::All } else { WokenWaiters::Nobody })
            }
            Counting::GiveBack(id) => match self.out.remove(id) {
                Some(_) => {
                    self.give_back(1);
                    (1, WokenWaiters::All)
                }
                None => (0, WokenWaiters::Nobody),
            },
            Counting::GiveBackAll(ids) => {
                let mut back = 0;
                if ids.iter().all(|id| self.out.contains_key(id)) {
                    for id in ids {
                        back += i64::from(self.out.remove(id).is_some());
                    }
                    self.add(back);
                }
                (back, if back > 0 { WokenWaiters::All } else { WokenWaiters::Nobody })
            }
            Counting::Lease(id, lease) => match self.out.get_mut(id) {
                Some(until) => {
                    *until = now.plus(*lease);
                    (1, WokenWaiters::Nobody)
                }
                None => (0, WokenWaiters::Nobody),
            },
            Counting::Delete => {
                self.out.clear();
                self.ends = None;
                (i64::from(self.count.take().is_some()), WokenWaiters::All)
            }
            Counting::Notify { all } => {
                let most = if *all { self.queue.len() } else { 1 };
                let woken: Vec<Owner> = (0..most).map_while(|_| self.notify(now)).collect();
                (i64::try_from(woken.len()).unwrap_or(0), WokenWaiters::These(woken))
            }
            Counting::Enlist => {
                if !self.queue.iter().any(|(owner, _)| *owner == claim.owner) {
                    self.queue.push_back((claim.owner, now.plus(PLACE_LASTS)));
                }
                (0, WokenWaiters::Nobody)
            }
        };
        if what.is_remembered() {
            self.done.insert(claim.owner, result);
        }
        (Some(result), woken)
    }
}
