//! The kinds of lock in this process.

use std::time::Duration;

use crate::ident::{LockName, Owner};
use crate::inspect::Mode;
use crate::seam::capabilities::CachedCheck;
use crate::seam::{Answer, Attempt, Claim, Counting, Handoff, Kind, Others, PLACE_LASTS, Release};
use crate::stores::memory::counted::{Counted, CountedKind, FREED, WokenWaiters};
use crate::stores::memory::parties::Parties;
use crate::stores::memory::state::{Access, HeldLock, MemoryKind, rw_channel};
use crate::time::Moment;

pub(super) fn of(kind: Kind) -> &'static dyn MemoryKind {
    match kind {
        Kind::Mutex | Kind::Fenced => &HeldKind::Plain,
        Kind::Fair => &HeldKind::Fair,
        Kind::Token => &HeldKind::Token,
        Kind::Read => &RwKind(Mode::Read),
        Kind::Write => &RwKind(Mode::Write),
        Kind::Semaphore => &CountedKind::Semaphore,
        Kind::Permits => &CountedKind::Permits,
        Kind::Latch => &CountedKind::Latch,
        Kind::Signal => &CountedKind::Signal,
    }
}

/// Locks with one holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldKind {
    Plain,
    Fair,
    Token,
}

impl HeldKind {
    /// Notifies all waiters, or the first of a wait queue.
    fn publish(self, access: &mut Access<'_>, name: &LockName) {
        match self {
            HeldKind::Plain => access.notify(name.key()),
            HeldKind::Fair => {
                if let Some(first) = access.state.first(name.key(), access.now) {
                    access.notify(&fair_channel(name, first));
                }
            }
            HeldKind::Token => {}
        }
    }

    fn busy(self, access: &mut Access<'_>, claim: &Claim, retry_after: Duration) -> Attempt {
        if self == HeldKind::Fair && claim.waits {
            access.state.join_queue(claim.name.key(), claim.owner, access.now);
        }
        Attempt::Busy { retry_after: Some(retry_after) }
    }
}

fn checked(is_wanted: bool) -> CachedCheck {
    if is_wanted { CachedCheck::Wanted } else { CachedCheck::Stays }
}

fn fair_channel(name: &LockName, owner: Owner) -> String {
    format!("{}:{owner}", name.key())
}

fn own<'a>(access: &'a mut Access<'_>, claim: &Claim) -> Option<&'a mut HeldLock> {
    access.state.locks.get_mut(claim.name.key()).filter(|held| held.owner == claim.owner)
}

impl MemoryKind for HeldKind {
    fn channel(&self, claim: &Claim) -> Option<String> {
        match self {
            HeldKind::Plain => Some(claim.name.key().to_owned()),
            HeldKind::Fair => Some(fair_channel(&claim.name, claim.owner)),
            HeldKind::Token => None,
        }
    }

    fn attempt(&self, access: &mut Access<'_>, claim: &Claim, count: u32) -> Answer<Attempt> {
        let (key, now) = (claim.name.key(), access.now);
        let first = if *self == HeldKind::Fair { access.state.first(key, now) } else { None };
        let others_first = first.is_some_and(|first| first != claim.owner);
        match access.state.locks.get_mut(key) {
            Some(held) if held.owner == claim.owner => {
                (held.count, held.until) = (count, held.until.max(now.plus(claim.lease)));
            }
            _ if count > 1 => return Ok(Attempt::Lost),
            Some(held) => {
                let left = held.until.since(now);
                return Ok(self.busy(access, claim, left));
            }
            // A message wakes this waiter, or the end of the waiters in front.
            None if others_first => return Ok(self.busy(access, claim, PLACE_LASTS)),
            None => drop(access.state.locks.insert(key.into(), HeldLock::new(claim, count, now))),
        }
        access.state.leave_queue(key, claim.owner);
        Ok(Attempt::granted(access.fence(key, claim.wants_fence)))
    }

    fn release(&self, access: &mut Access<'_>, claim: &Claim, left: u32) -> Release {
        let key = claim.name.key();
        match access.state.locks.get_mut(key) {
            Some(held) if held.owner == claim.owner && left > 0 => {
                held.count = left;
                Release::StillHeld
            }
            Some(held) if held.owner == claim.owner => {
                access.state.locks.remove(key);
                self.publish(access, &claim.name);
                Release::Freed { others: Others::Nobody }
            }
            Some(held) => Release::NotHeld { holder: Some(held.owner.to_string()) },
            None => Release::NotHeld { holder: None },
        }
    }

    fn clean_up(&self, access: &mut Access<'_>, claim: &Claim) -> Release {
        if *self == HeldKind::Fair {
            let key = claim.name.key();
            let was_first = access.state.first(key, access.now) == Some(claim.owner);
            access.state.leave_queue(key, claim.owner);
            if was_first && !access.state.locks.contains_key(key) {
                self.publish(access, &claim.name);
            }
        }
        self.release(access, claim, 0)
    }

    fn renew(&self, access: &mut Access<'_>, claim: &Claim) -> bool {
        let end = access.now.plus(claim.lease);
        own(access, claim).map(|held| held.until = held.until.max(end)).is_some()
    }

    /// Spinning waiters are not seen.
    fn hear(&self, access: &mut Access<'_>, claim: &Claim) -> CachedCheck {
        let (key, now) = (claim.name.key(), access.now);
        let is_wanted = match self {
            HeldKind::Fair => access.state.first(key, now).is_some(),
            HeldKind::Plain | HeldKind::Token => access.is_listened_to(key),
        };
        own(access, claim).map_or(CachedCheck::Lost, |_| checked(is_wanted))
    }

    fn hand_off(&self, access: &mut Access<'_>, from: &Claim, to: &Claim) -> Handoff {
        let now = access.now;
        match own(access, from) {
            Some(held) => *held = HeldLock::new(to, 1, now),
            None => return Handoff::Lost,
        }
        Handoff::Granted { fence: access.fence(to.name.key(), to.wants_fence) }
    }

    fn expire_at(&self, access: &mut Access<'_>, claim: &Claim, end: Moment) -> bool {
        own(access, claim).map(|held| held.until = end).is_some()
    }

    fn force(&self, access: &mut Access<'_>, name: &LockName) -> bool {
        let was_held = access.state.locks.remove(name.key()).is_some();
        if was_held {
            self.publish(access, name);
        }
        was_held
    }
}

/// Runs a request on a read-write lock, after removing expired leases.
fn with_parties<T>(
    access: &mut Access<'_>,
    name: &LockName,
    request: impl FnOnce(&mut Parties, &mut Access<'_>) -> T,
) -> T {
    let mut parties = access.state.read_writes.remove(name.key()).unwrap_or_default();
    parties.expire(access.now);
    let result = request(&mut parties, access);
    if !parties.is_empty() {
        access.state.read_writes.insert(name.key().into(), parties);
    }
    result
}

/// One half of a read-write lock.
struct RwKind(Mode);

impl MemoryKind for RwKind {
    fn channel(&self, claim: &Claim) -> Option<String> {
        Some(rw_channel(claim.name.key()))
    }

    fn attempt(&self, access: &mut Access<'_>, claim: &Claim, count: u32) -> Answer<Attempt> {
        with_parties(access, &claim.name, |parties, access| {
            Ok(match parties.attempt(self.0, claim, count, access.now) {
                Ok(()) => Attempt::granted(access.fence(claim.name.key(), claim.wants_fence)),
                Err(attempt) => attempt,
            })
        })
    }

    fn release(&self, access: &mut Access<'_>, claim: &Claim, left: u32) -> Release {
        with_parties(access, &claim.name, |parties, access| {
            let lets_readers_in = parties.stop_waiting(self.0, claim);
            let release = parties.release(self.0, claim, left);
            if lets_readers_in || matches!(release, Release::Freed { .. }) {
                let ends_write = self.0 == Mode::Write && matches!(release, Release::Freed { .. });
                let told = parties.pass_on(ends_write, access.now);
                access.notify(&rw_channel(claim.name.key()));
                told.into_iter().for_each(|(client, word)| access.tell(claim.name.key(), client, word));
            }
            release
        })
    }

    fn has_line(&self) -> bool {
        self.0 == Mode::Write
    }

    fn leave_line(&self, access: &mut Access<'_>, claim: &Claim) {
        with_parties(access, &claim.name, |parties, access| {
            if self.0 == Mode::Read {
                return parties.forget_reader(claim.owner.client());
            }
            parties.line.leave(claim.owner.client());
            let told = parties.pass_on(false, access.now);
            access.notify(&rw_channel(claim.name.key()));
            told.into_iter().for_each(|(client, word)| access.tell(claim.name.key(), client, word));
        });
    }

    fn renew(&self, access: &mut Access<'_>, claim: &Claim) -> bool {
        with_parties(access, &claim.name, |parties, access| {
            parties.prolong(self.0, claim, access.now.plus(claim.lease))
        })
    }

    fn hear(&self, access: &mut Access<'_>, claim: &Claim) -> CachedCheck {
        let is_wanted = access.is_listened_to(&rw_channel(claim.name.key()));
        with_parties(access, &claim.name, |parties, access| {
            // For no time: changes nothing.
            let is_held = parties.prolong(self.0, claim, access.now);
            if is_held { checked(is_wanted || !parties.line.is_empty()) } else { CachedCheck::Lost }
        })
    }

    fn force(&self, access: &mut Access<'_>, name: &LockName) -> bool {
        with_parties(access, name, |parties, access| {
            let was_held = parties.force(self.0);
            if was_held {
                let told = parties.pass_on(false, access.now);
                access.notify(&rw_channel(name.key()));
                told.into_iter().for_each(|(client, word)| access.tell(name.key(), client, word));
            }
            was_held
        })
    }
}

fn channel_of_one(kind: CountedKind, key: &str, owner: Owner) -> String {
    format!("{}:{owner}", kind.channel(key))
}

/// Runs a request on a counted object, and wakes the waiters concerned.
fn with_counted<T>(
    kind: CountedKind,
    access: &mut Access<'_>,
    claim: &Claim,
    request: impl FnOnce(&mut Counted, Moment) -> (T, WokenWaiters),
) -> T {
    let key = claim.name.key();
    let counted = access.state.counted.entry((kind, key.into())).or_default();
    let came_back = counted.expire(access.now);
    let (result, woken) = request(counted, access.now);
    match woken {
        WokenWaiters::Nobody if !came_back => {}
        WokenWaiters::Nobody | WokenWaiters::All => access.notify(&kind.channel(key)),
        WokenWaiters::These(owners) => {
            owners.into_iter().for_each(|owner| access.notify(&channel_of_one(kind, key, owner)));
        }
    }
    result
}

/// Notifies the clients for which permits are kept from now on.
fn tell_permits(kind: CountedKind, access: &mut Access<'_>, claim: &Claim, is_refused: bool) {
    let key = claim.name.key();
    let Some(counted) = access.state.counted.get_mut(&(kind, key.into())) else { return };
    let told = counted.told(is_refused.then(|| claim.owner.client()), access.now);
    told.into_iter().for_each(|client| access.tell(key, client, b"next"));
}

impl MemoryKind for CountedKind {
    fn channel(&self, claim: &Claim) -> Option<String> {
        let key = claim.name.key();
        Some(match self {
            CountedKind::Semaphore | CountedKind::Permits | CountedKind::Latch => {
                CountedKind::channel(*self, key)
            }
            CountedKind::Signal => channel_of_one(*self, key, claim.owner),
        })
    }

    fn has_line(&self) -> bool {
        matches!(self, CountedKind::Semaphore | CountedKind::Permits)
    }

    fn leave_line(&self, access: &mut Access<'_>, claim: &Claim) {
        with_counted(*self, access, claim, |counted, _| {
            counted.line.leave(claim.owner.client());
            ((), WokenWaiters::Nobody)
        });
        tell_permits(*self, access, claim, false);
    }

    fn attempt(&self, access: &mut Access<'_>, claim: &Claim, _count: u32) -> Answer<Attempt> {
        let answer = with_counted(*self, access, claim, |counted, now| match self {
            CountedKind::Semaphore => (counted.take(claim, now), WokenWaiters::Nobody),
            CountedKind::Permits => (counted.take_leased(claim, now), WokenWaiters::Nobody),
            CountedKind::Latch => (Ok(counted.pass()), WokenWaiters::Nobody),
            CountedKind::Signal => {
                let (attempt, woken) = counted.notice(claim, now);
                (Ok(attempt), woken)
            }
        });
        tell_permits(*self, access, claim, matches!(answer, Ok(Attempt::InWaitQueue { .. })));
        answer
    }

    fn release(&self, access: &mut Access<'_>, claim: &Claim, _left: u32) -> Release {
        let release = with_counted(*self, access, claim, |counted, _| match self {
            CountedKind::Semaphore => counted.give_back_taken(claim),
            CountedKind::Permits => counted.give_back_leased(claim),
            CountedKind::Latch | CountedKind::Signal => (FREED, WokenWaiters::Nobody),
        });
        tell_permits(*self, access, claim, false);
        release
    }

    fn clean_up(&self, access: &mut Access<'_>, claim: &Claim) -> Release {
        match self {
            CountedKind::Semaphore | CountedKind::Permits | CountedKind::Latch => {
                self.release(access, claim, 0)
            }
            CountedKind::Signal => {
                with_counted(*self, access, claim, |counted, now| (FREED, counted.leave(claim.owner, now)))
            }
        }
    }

    fn renew(&self, access: &mut Access<'_>, claim: &Claim) -> bool {
        with_counted(*self, access, claim, |counted, now| (counted.renew(claim, now), WokenWaiters::Nobody))
    }

    fn count(&self, access: &mut Access<'_>, claim: &Claim, what: &Counting) -> Option<i64> {
        let result =
            with_counted(*self, access, claim, |counted, now| counted.change(*self, claim, what, now));
        tell_permits(*self, access, claim, false);
        result
    }
}
