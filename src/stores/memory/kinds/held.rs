//! Locks with one holder: plain, fenced, fair, and by token.

use std::time::Duration;

use crate::ident::{LockName, Owner};
use crate::seam::capabilities::{PLAIN_POLL, SAFETY_POLL};
use crate::seam::{Answer, Attempt, Claim, Handoff, Others, PLACE_LASTS, Release, Snapshot};
use crate::stores::memory::held::HeldLock;
use crate::stores::memory::kinds::kind::MemoryKind;
use crate::stores::memory::state::Turn;
use crate::time::Moment;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeldKind {
    Plain,
    Fair,
    Token,
}

impl HeldKind {
    /// Notifies all waiters, or the first where they queue.
    fn publish(self, turn: &mut Turn<'_>, name: &LockName) {
        match self {
            HeldKind::Plain => turn.notify(name.key()),
            HeldKind::Fair => {
                if let Some(first) = turn.state.first(name.key(), turn.now) {
                    turn.notify(&fair_channel(name, first));
                }
            }
            HeldKind::Token => {}
        }
    }

    fn busy(self, turn: &mut Turn<'_>, claim: &Claim, retry_after: Duration) -> Attempt {
        if self.queues() && claim.waits {
            turn.state.join_queue(claim.name.key(), claim.owner, turn.now);
        }
        Attempt::Busy { retry_after: Some(retry_after) }
    }
}

fn fair_channel(name: &LockName, owner: Owner) -> String {
    format!("{}:{owner}", name.key())
}

fn own<'a>(turn: &'a mut Turn<'_>, claim: &Claim) -> Option<&'a mut HeldLock> {
    turn.state.locks.get_mut(claim.name.key()).filter(|held| held.owner == claim.owner)
}

impl MemoryKind for HeldKind {
    fn queues(&self) -> bool {
        *self == HeldKind::Fair
    }

    fn poll_every(&self) -> (Duration, Duration) {
        match self {
            HeldKind::Plain | HeldKind::Fair => SAFETY_POLL,
            HeldKind::Token => PLAIN_POLL,
        }
    }

    fn channel(&self, claim: &Claim) -> Option<String> {
        match self {
            HeldKind::Plain => Some(claim.name.key().to_owned()),
            HeldKind::Fair => Some(fair_channel(&claim.name, claim.owner)),
            HeldKind::Token => None,
        }
    }

    fn attempt(&self, turn: &mut Turn<'_>, claim: &Claim, count: u32) -> Answer<Attempt> {
        let (key, now) = (claim.name.key(), turn.now);
        let first = if self.queues() { turn.state.first(key, now) } else { None };
        let others_first = first.is_some_and(|first| first != claim.owner);
        match turn.state.locks.get_mut(key) {
            Some(held) if held.owner == claim.owner => {
                (held.count, held.until) = (count, held.until.max(now.plus(claim.lease)));
            }
            _ if count > 1 => return Ok(Attempt::Lost),
            Some(held) => {
                let left = held.until.since(now);
                return Ok(self.busy(turn, claim, left));
            }
            // A message wakes this waiter, or the death of the waiters before it.
            None if others_first => return Ok(self.busy(turn, claim, PLACE_LASTS)),
            None => drop(turn.state.locks.insert(key.into(), HeldLock::new(claim, count, now))),
        }
        turn.state.leave_queue(key, claim.owner);
        Ok(Attempt::granted(turn.fence(key, claim.wants_fence)))
    }

    fn release(&self, turn: &mut Turn<'_>, claim: &Claim, left: u32) -> Release {
        let key = claim.name.key();
        match turn.state.locks.get_mut(key) {
            Some(held) if held.owner == claim.owner && left > 0 => {
                held.count = left;
                Release::StillHeld
            }
            Some(held) if held.owner == claim.owner => {
                turn.state.locks.remove(key);
                self.publish(turn, &claim.name);
                Release::Freed { others: Others::Nobody }
            }
            Some(held) => Release::NotHeld { holder: Some(held.owner.to_string()) },
            None => Release::NotHeld { holder: None },
        }
    }

    fn clean_up(&self, turn: &mut Turn<'_>, claim: &Claim) -> Release {
        if self.queues() {
            let key = claim.name.key();
            let was_first = turn.state.first(key, turn.now) == Some(claim.owner);
            turn.state.leave_queue(key, claim.owner);
            if was_first && !turn.state.locks.contains_key(key) {
                self.publish(turn, &claim.name);
            }
        }
        self.release(turn, claim, 0)
    }

    fn renew(&self, turn: &mut Turn<'_>, claim: &Claim) -> bool {
        let end = turn.now.plus(claim.lease);
        own(turn, claim).map(|held| held.until = held.until.max(end)).is_some()
    }

    fn hand_off(&self, turn: &mut Turn<'_>, from: &Claim, to: &Claim) -> Handoff {
        let now = turn.now;
        match own(turn, from) {
            Some(held) => *held = HeldLock::new(to, 1, now),
            None => return Handoff::Lost,
        }
        Handoff::Granted { fence: turn.fence(to.name.key(), to.wants_fence) }
    }

    fn expire_at(&self, turn: &mut Turn<'_>, claim: &Claim, end: Moment) -> bool {
        own(turn, claim).map(|held| held.until = end).is_some()
    }

    fn inspect(&self, turn: &mut Turn<'_>, name: &LockName, owner: Owner) -> Option<Snapshot> {
        turn.state.locks.get(name.key()).map(|held| Snapshot {
            holder: held.owner.to_string(),
            count: if held.owner == owner { held.count } else { 0 },
            remaining: Some(held.until.since(turn.now)),
        })
    }

    fn force(&self, turn: &mut Turn<'_>, name: &LockName) -> bool {
        let was_held = turn.state.locks.remove(name.key()).is_some();
        if was_held {
            self.publish(turn, name);
        }
        was_held
    }
}
