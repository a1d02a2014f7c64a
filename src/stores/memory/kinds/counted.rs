//! Semaphores, latches and conditions, which have no holder.

use crate::ident::{LockName, Owner};
use crate::seam::{Answer, Attempt, Claim, Counting, Release, Snapshot};
use crate::stores::memory::counted::{Counted, CountedKind, FREED, WokenWaiters};
use crate::stores::memory::kinds::kind::MemoryKind;
use crate::stores::memory::state::Turn;
use crate::time::Moment;

fn channel_of_one(kind: CountedKind, key: &str, owner: Owner) -> String {
    format!("{}:{owner}", kind.channel(key))
}

/// Runs one request on a counted object, and wakes the waiters that it concerns.
fn with_counted<T>(
    kind: CountedKind,
    turn: &mut Turn<'_>,
    claim: &Claim,
    request: impl FnOnce(&mut Counted, Moment) -> (T, WokenWaiters),
) -> T {
    let key = claim.name.key();
    let counted = turn.state.counted.entry((kind, key.into())).or_default();
    let came_back = counted.expire(turn.now);
    let (result, woken) = request(counted, turn.now);
    match woken {
        WokenWaiters::Nobody if !came_back => {}
        WokenWaiters::Nobody | WokenWaiters::All => turn.notify(&kind.channel(key)),
        WokenWaiters::These(owners) => {
            owners.into_iter().for_each(|owner| turn.notify(&channel_of_one(kind, key, owner)));
        }
    }
    result
}

impl MemoryKind for CountedKind {
    fn queues(&self) -> bool {
        *self == CountedKind::Signal
    }

    fn channel(&self, claim: &Claim) -> Option<String> {
        let key = claim.name.key();
        Some(match self {
            CountedKind::Semaphore | CountedKind::Permits | CountedKind::Latch => {
                CountedKind::channel(*self, key)
            }
            CountedKind::Signal => channel_of_one(*self, key, claim.owner),
        })
    }

    fn attempt(&self, turn: &mut Turn<'_>, claim: &Claim, _count: u32) -> Answer<Attempt> {
        with_counted(*self, turn, claim, |counted, now| match self {
            CountedKind::Semaphore => (counted.take(claim), WokenWaiters::Nobody),
            CountedKind::Permits => (counted.take_leased(claim, now), WokenWaiters::Nobody),
            CountedKind::Latch => (Ok(counted.pass()), WokenWaiters::Nobody),
            CountedKind::Signal => {
                let (attempt, woken) = counted.notice(claim, now);
                (Ok(attempt), woken)
            }
        })
    }

    fn release(&self, turn: &mut Turn<'_>, claim: &Claim, _left: u32) -> Release {
        with_counted(*self, turn, claim, |counted, _| match self {
            CountedKind::Semaphore => counted.give_back_taken(claim),
            CountedKind::Permits => counted.give_back_leased(claim),
            CountedKind::Latch | CountedKind::Signal => (FREED, WokenWaiters::Nobody),
        })
    }

    fn clean_up(&self, turn: &mut Turn<'_>, claim: &Claim) -> Release {
        match self {
            CountedKind::Semaphore | CountedKind::Permits | CountedKind::Latch => {
                self.release(turn, claim, 0)
            }
            CountedKind::Signal => {
                with_counted(*self, turn, claim, |counted, now| (FREED, counted.leave(claim.owner, now)))
            }
        }
    }

    fn renew(&self, turn: &mut Turn<'_>, claim: &Claim) -> bool {
        with_counted(*self, turn, claim, |counted, now| (counted.renew(claim, now), WokenWaiters::Nobody))
    }

    fn count(&self, turn: &mut Turn<'_>, claim: &Claim, what: &Counting) -> Option<i64> {
        with_counted(*self, turn, claim, |counted, now| counted.change(*self, claim, what, now))
    }

    fn inspect(&self, _turn: &mut Turn<'_>, _name: &LockName, _owner: Owner) -> Option<Snapshot> {
        None
    }

    fn force(&self, _turn: &mut Turn<'_>, _name: &LockName) -> bool {
        false
    }
}
