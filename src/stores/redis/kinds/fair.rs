//! The fair lock: Redisson's queue and timeouts, maintained so that neither a dead waiter nor Redisson's
//! arithmetic costs another waiter its place.
//!
//! Redisson goes by a waiter's time in `timeouts`. Whenever one of Redisson's waiters gets the lock or gives
//! up, Redisson subtracts that waiter's maximum wait from all times. The time of each of our waiters therefore
//! ends [`PLACE_LASTS`] after that of its predecessor: this offsets the subtraction, however long Redisson's
//! waits are, and a dead waiter, first or last in the queue, costs only seconds. Only we use `heartbeats`:
//! within [`PLACE_LASTS`] a missing heartbeat shows that our waiter is dead, and a fresh one that it lives,
//! even if Redisson took it for dead. Redisson's waiters have no heartbeat and keep their own times. All times
//! are the server's.

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
            Some(note) if count == 1 => mutex::saying(command, note),
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
