//! A kind of lock in this process.

use std::time::Duration;

use crate::ident::{LockName, Owner};
use crate::seam::capabilities::SAFETY_POLL;
use crate::seam::{Answer, Attempt, Claim, Counting, Handoff, Release, Snapshot};
use crate::stores::memory::state::Turn;
use crate::time::Moment;

/// The answers are those of [`Store`](crate::seam::Store). Default methods fit most kinds.
pub(in crate::stores::memory) trait MemoryKind: Sync {
    /// Whether a busy attempt joins a queue in the store.
    fn queues(&self) -> bool {
        false
    }

    /// The shortest and the longest sleep of a waiter that no message wakes.
    fn poll_every(&self) -> (Duration, Duration) {
        SAFETY_POLL
    }

    /// `None`: waiters of this kind get no messages, and poll.
    fn channel(&self, claim: &Claim) -> Option<String>;

    fn attempt(&self, turn: &mut Turn<'_>, claim: &Claim, count: u32) -> Answer<Attempt>;

    fn release(&self, turn: &mut Turn<'_>, claim: &Claim, left: u32) -> Release;

    fn clean_up(&self, turn: &mut Turn<'_>, claim: &Claim) -> Release {
        self.release(turn, claim, 0)
    }

    fn renew(&self, turn: &mut Turn<'_>, claim: &Claim) -> bool;

    /// `Lost`, too, for a kind that is not handed off.
    fn hand_off(&self, turn: &mut Turn<'_>, from: &Claim, to: &Claim) -> Handoff {
        let _ = (turn, from, to);
        Handoff::Lost
    }

    /// `false`, too, for a kind whose end cannot be set.
    fn expire_at(&self, turn: &mut Turn<'_>, claim: &Claim, end: Moment) -> bool {
        let _ = (turn, claim, end);
        false
    }

    /// `None`, too, for a kind that counts nothing.
    fn count(&self, turn: &mut Turn<'_>, claim: &Claim, what: &Counting) -> Option<i64> {
        let _ = (turn, claim, what);
        None
    }

    fn inspect(&self, turn: &mut Turn<'_>, name: &LockName, owner: Owner) -> Option<Snapshot>;

    fn force(&self, turn: &mut Turn<'_>, name: &LockName) -> bool;
}
