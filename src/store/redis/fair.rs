//! The fair lock: Redisson's queue and its times, kept so that neither a dead waiter nor a Java peer's arithmetic costs
//! anybody else's place.
//!
//! A waiter's time in `timeouts` is what Redisson goes by. Whenever one of its own gets the lock or gives up, Redisson takes
//! as much off everybody's time as that one waits at most, so one of ours outlasts the time of the one before it by
//! [`PLACE_LASTS`]: that cancels, however long Redisson's waits are, and one that died first or last costs seconds.
//! `heartbeats` is ours alone: by it we see within [`PLACE_LASTS`] that one of ours is dead, and that one lives whom
//! Redisson took for dead. Redisson's waiters have no heartbeat and keep the time that they gave themselves. All times are
//! the server's.

use std::time::Duration;

use super::keys::{self, Part};
use super::mutex::{self, Outcome};
use super::script::{FAIR_ACQUIRE, FAIR_RELEASE, Request};
use super::wire::Wire;
use crate::ident::LockName;
use crate::lock::store::{Claim, PLACE_LASTS, Release};
use crate::time::{Moment, millis};

/// What becomes of an owner's place in the queue, and of the lock.
#[derive(Debug, Clone, Copy)]
enum Way {
    Release,
    Leave,
    Force,
}

pub(super) fn acquisition(claim: &Claim, count: u32, wants_fence: bool) -> Request {
    let lock = claim.name.key();
    let mut keys = keys_of(lock);
    if wants_fence {
        keys.push(keys::fence_counter(lock));
    }
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let request = FAIR_ACQUIRE.on(&keys).arg(claim.owner).arg(count).arg(millis(claim.lease));
    let request = request.arg(u8::from(claim.waits)).arg(millis(PLACE_LASTS));
    let request = request.arg(channels(lock));
    match &claim.notice {
        Some(notice) if count == 1 => mutex::saying(request, notice),
        _ => request,
    }
}

pub(super) fn release(wire: &Wire, claim: &Claim, left: u32, by: Moment) -> Outcome<Release> {
    mutex::released(&mutex::run(wire, &removal(claim, left), by)?, 0)
}

pub(super) fn removal(claim: &Claim, left: u32) -> Request {
    ending(claim.name.key(), &claim.owner.to_string(), left, claim.lease, Way::Release)
}

/// Has the owner hold nothing and wait for nothing.
pub(super) fn leaving(claim: &Claim) -> Request {
    ending(claim.name.key(), &claim.owner.to_string(), 0, claim.lease, Way::Leave)
}

pub(super) fn force(wire: &Wire, name: &LockName, by: Moment) -> Outcome<bool> {
    let request = ending(name.key(), "", 0, Duration::ZERO, Way::Force);
    let release = mutex::released(&mutex::run(wire, &request, by)?, 0)?;
    Ok(matches!(release, Release::Freed { .. }))
}

/// Where a waiter listens.
pub(super) fn channel(claim: &Claim) -> String {
    format!("{}{}", channels(claim.name.key()), claim.owner)
}

fn channels(lock: &str) -> String {
    keys::channel(lock) + ":"
}

fn keys_of(lock: &str) -> Vec<String> {
    let parts = [Part::FairQueue, Part::FairTimeouts, Part::FairHeartbeats];
    [lock.to_owned()].into_iter().chain(parts.map(|part| keys::before(part, lock))).collect()
}

fn ending(lock: &str, owner: &str, left: u32, lease: Duration, way: Way) -> Request {
    let keys = keys_of(lock);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let way = match way {
        Way::Release => "release",
        Way::Leave => "leave",
        Way::Force => "force",
    };
    FAIR_RELEASE.on(&keys).arg(owner).arg(left).arg(millis(lease)).arg(way).arg(channels(lock))
}
