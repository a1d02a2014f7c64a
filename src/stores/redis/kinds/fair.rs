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

use crate::ident::LockName;
use crate::seam::{Claim, PLACE_LASTS, Release};
use crate::stores::redis::conn::connections::Connections;
use crate::stores::redis::keys::{self, Part};
use crate::stores::redis::kinds::mutex::{self, Outcome};
use crate::stores::redis::script::{Command, FAIR_ACQUIRE, FAIR_RELEASE};
use crate::time::{Moment, millis};

/// What becomes of an owner's place in the queue, and of the lock.
#[derive(Debug, Clone, Copy)]
enum PlaceEnd {
    Release,
    Leave,
    Force,
}

pub(crate) fn acquisition(claim: &Claim, count: u32) -> Command {
    let lock = claim.name.key();
    let mut keys = keys_of(lock);
    if claim.wants_fence {
        keys.push(keys::fence_counter(lock));
    }
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let command = FAIR_ACQUIRE.on(&keys).arg(claim.owner).arg(count).arg(millis(claim.lease));
    let command = command.arg(u8::from(claim.waits)).arg(millis(PLACE_LASTS));
    let command = command.arg(channels(lock));
    match &claim.note {
        Some(note) if count == 1 => mutex::saying(command, note),
        _ => command,
    }
}

pub(crate) fn release(
    connections: &Connections,
    claim: &Claim,
    left: u32,
    deadline: Moment,
) -> Outcome<Release> {
    mutex::released(&mutex::run(connections, &removal(claim, left), deadline)?, 0)
}

pub(crate) fn removal(claim: &Claim, left: u32) -> Command {
    ending(claim.name.key(), &claim.owner.to_string(), left, claim.lease, PlaceEnd::Release)
}

/// Has the owner hold nothing and wait for nothing.
pub(crate) fn leaving(claim: &Claim) -> Command {
    ending(claim.name.key(), &claim.owner.to_string(), 0, claim.lease, PlaceEnd::Leave)
}

pub(crate) fn force(connections: &Connections, name: &LockName, deadline: Moment) -> Outcome<bool> {
    let command = ending(name.key(), "", 0, Duration::ZERO, PlaceEnd::Force);
    let release = mutex::released(&mutex::run(connections, &command, deadline)?, 0)?;
    Ok(matches!(release, Release::Freed { .. }))
}

/// Where a waiter listens.
pub(crate) fn channel(claim: &Claim) -> String {
    format!("{}{}", channels(claim.name.key()), claim.owner)
}

fn channels(lock: &str) -> String {
    keys::channel(lock) + ":"
}

fn keys_of(lock: &str) -> Vec<String> {
    let parts = [Part::FairQueue, Part::FairTimeouts, Part::FairHeartbeats];
    [lock.to_owned()].into_iter().chain(parts.map(|part| keys::before(part, lock))).collect()
}

fn ending(lock: &str, owner: &str, left: u32, lease: Duration, way: PlaceEnd) -> Command {
    let keys = keys_of(lock);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let way = match way {
        PlaceEnd::Release => "release",
        PlaceEnd::Leave => "leave",
        PlaceEnd::Force => "force",
    };
    FAIR_RELEASE.on(&keys).arg(owner).arg(left).arg(millis(lease)).arg(way).arg(channels(lock))
}
