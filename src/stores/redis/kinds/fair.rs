//! The fair lock, with Redisson's queue and timeouts. Neither a dead waiter nor Redisson's arithmetic costs
//! another waiter its place.
//!
//! Redisson treats a waiter as dead after its time in `timeouts`. When one of Redisson's waiters gets the
//! lock or gives up, Redisson subtracts that waiter's maximum wait from all times. Each of our waiters gets a
//! time [`PLACE_LASTS`] after that of the waiter before it, which makes up for the subtraction. Our waiters
//! also have a heartbeat, which only this crate reads: without one for [`PLACE_LASTS`] our waiter is dead,
//! and with one it lives, even if Redisson has removed it. Redisson's waiters have no heartbeat, and keep
//! their times. All times are by the server's clock.

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
