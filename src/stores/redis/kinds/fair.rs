//! The fair lock, with Redisson's queue and timeouts. A waiter that dies or gives up does not cost another
//! waiter its place.
//!
//! Redisson removes a waiter after its time in `timeouts`, by the server's clock. When a Redisson waiter gets
//! the lock or gives up, Redisson subtracts that waiter's maximum wait from the times of the waiters behind
//! it. So a waiter of ours behind a Redisson waiter gets a time [`PLACE_LASTS`] later than that waiter's,
//! which is still ahead after the subtraction. Our waiters also have a heartbeat, which Redisson does not
//! read: a waiter of ours is alive for [`PLACE_LASTS`] after its last attempt, even if Redisson removed it.

use std::time::Duration;

use crate::ident::LockName;
use crate::seam::{Answer, Claim, PLACE_LASTS, Release};
use crate::stores::redis::keys::{self, Part};
use crate::stores::redis::kinds::kind::{RedisCall, RedisKind};
use crate::stores::redis::kinds::{mutex, replies};
use crate::stores::redis::script::{Command, FAIR_ACQUIRE, FAIR_HEAR, FAIR_RELEASE};
use crate::time::millis;

pub(super) struct FairKind;

impl RedisKind for FairKind {
    fn channel(&self, claim: &Claim) -> Option<String> {
        Some(format!("{}{}", channels(claim.name.key()), claim.owner))
    }

    fn acquisition(&self, claim: &Claim, count: u32, _link: u32) -> Command {
        let lock = claim.name.key();
        let mut keys = keys_of(lock);
        if claim.wants_fence {
            keys.push(keys::fence_counter(lock));
        }
        let command = FAIR_ACQUIRE.on(&keys).arg(claim.owner).arg(count).arg(millis(claim.lease));
        let command = command.arg(u8::from(claim.waits)).arg(millis(PLACE_LASTS));
        let command = command.arg(channels(lock));
        match &claim.note {
            Some(note) if count == 1 => mutex::with_note(command, note),
            _ => command,
        }
    }

    fn removal(&self, claim: &Claim, left: u32) -> Command {
        ending(claim.name.key(), &claim.owner.to_string(), left, claim.lease, "release")
    }

    fn leaving(&self, claim: &Claim) -> Command {
        ending(claim.name.key(), &claim.owner.to_string(), 0, claim.lease, "leave")
    }

    fn check_cached(&self, claim: &Claim, _own_listeners: i64) -> Option<Command> {
        Some(FAIR_HEAR.on(&keys_of(claim.name.key())).arg(claim.owner))
    }

    fn force(&self, call: &RedisCall<'_>, name: &LockName) -> Answer<bool> {
        let command = ending(name.key(), "", 0, Duration::ZERO, "force");
        let reply = call.ask(command)?;
        Ok(matches!(replies::released(&reply, 0)?, Release::Freed { .. }))
    }
}

fn channels(lock: &str) -> String {
    keys::channel(lock) + ":"
}

fn keys_of(lock: &str) -> Vec<String> {
    let parts = [Part::FairQueue, Part::FairTimeouts, Part::FairHeartbeats];
    [lock.to_owned()].into_iter().chain(parts.map(|part| keys::before(part, lock))).collect()
}

fn ending(lock: &str, owner: &str, left: u32, lease: Duration, way: &str) -> Command {
    FAIR_RELEASE.on(&keys_of(lock)).arg(owner).arg(left).arg(millis(lease)).arg(way).arg(channels(lock))
}
