//! The reentrant lock, with and without fences: one script per operation, keys as Redisson's.

use std::time::Duration;

use redis::Value;

use crate::error::{Error, ErrorKind};
use crate::ident::{Fence, LockName, Owner};
use crate::seam::{Attempt, Claim, Handoff, HoldNote, Release, Snapshot};
use crate::stores::redis::conn::connections::{Connections, Started};
use crate::stores::redis::keys;
use crate::stores::redis::pubsub::publish::PublishMode;
use crate::stores::redis::reply::{Expected, Failure, Tagged, accepted, refusal, ttl};
use crate::stores::redis::script::{
    ACQUIRE, ACQUIRE_ALL, Command, EXPIRE_IN, FORCE, HAND_OVER, INSPECT, RELEASE, RELEASE_ALL, RENEW,
};
use crate::time::{Moment, millis};

pub(crate) use crate::seam::Outcome;

/// The request of an attempt.
pub(crate) fn acquisition(claim: &Claim, count: u32) -> Command {
    let lock = claim.name.key();
    let counter = claim.wants_fence.then(|| keys::fence_counter(lock));
    let command = match &counter {
        Some(counter) => ACQUIRE.on(&[lock, counter]),
        None => ACQUIRE.on(&[lock]),
    };
    let command = command.arg(claim.owner).arg(count).arg(millis(claim.lease));
    match &claim.note {
        // What is said of a hold stays with it.
        Some(note) if count == 1 => saying(command, note),
        _ => command,
    }
}

/// The request of a grant that also says, for people to read, when it ends at the latest, and where its owner is.
pub(crate) fn saying(command: Command, note: &HoldNote) -> Command {
    let place = &note.place;
    command.arg(millis(note.max_hold)).arg(format!("{} {} {}", place.pid, place.host, place.thread))
}

/// The reply of an attempt, for any lock but one by token.
pub(crate) fn attempted(reply: &Tagged, wants_fence: bool) -> Outcome<Attempt> {
    decoded(match reply.tag() {
        b"granted" => fence(reply, wants_fence).map(|fence| Attempt::Granted { fence }),
        b"busy" => reply.number(1).map(|ttl_ms| Attempt::Busy { retry_after: ttl(ttl_ms) }),
        b"lost" => Ok(Attempt::Lost),
        _ => Err(reply.unexpected()),
    })
}

fn fence(reply: &Tagged, wanted: bool) -> Result<Option<Fence>, Error> {
    if !wanted {
        return Ok(None);
    }
    let text = reply.text(1)?.unwrap_or_default();
    let number = text.parse().map_err(|_not_a_number| reply.unexpected())?;
    Ok(Some(Fence::new(number)))
}

/// The request of attempts at several locks.
pub(crate) fn acquisitions(claims: &[Claim], or_none: bool) -> Command {
    let counters: Vec<Option<String>> =
        claims.iter().map(|claim| claim.wants_fence.then(|| keys::fence_counter(claim.name.key()))).collect();
    let locks = claims.iter().map(|claim| claim.name.key());
    let all: Vec<&str> = locks.chain(counters.iter().flatten().map(String::as_str)).collect();
    let mut command = ACQUIRE_ALL.on(&all).arg(u32::from(or_none)).arg(claims.len());
    let mut last = claims.len();
    for (claim, counter) in claims.iter().zip(&counters) {
        let number = counter.as_ref().map_or(0, |_| {
            last += 1;
            last
        });
        command = command.arg(claim.owner).arg(millis(claim.lease)).arg(number);
    }
    command
}

/// The reply of attempts at several locks: the fences of those that were taken.
pub(crate) fn acquired(reply: &Tagged) -> Outcome<Vec<Option<Fence>>> {
    let fence = |text: Option<String>| match text.as_deref() {
        None | Some("") => Ok(None),
        Some(number) => number.parse().map(|number| Some(Fence::new(number))),
    };
    decoded(match reply.tag() {
        b"granted" => (1..=reply.len())
            .map(|index| fence(reply.text(index)?).map_err(|_not_a_number| reply.unexpected()))
            .collect(),
        _ => Err(reply.unexpected()),
    })
}

/// The request of releases of several locks.
pub(crate) fn removals(claims: &[Claim]) -> Command {
    let locks: Vec<&str> = claims.iter().map(|claim| claim.name.key()).collect();
    claims.iter().fold(RELEASE_ALL.on(&locks), |command, claim| {
        command.arg(claim.owner).arg(keys::channel(claim.name.key()))
    })
}

/// The reply of releases of several locks. `own_listeners`: for each, how many of those who heard are this client itself.
pub(crate) fn all_released(reply: &Tagged, own_listeners: &[i64]) -> Outcome<Vec<Release>> {
    let release = |(index, own): (usize, &i64)| {
        Ok(match reply.number(index + 1)? {
            -2 => Release::NotHeld { holder: None },
            listeners => Release::Freed { others: u32::try_from(listeners - own).unwrap_or(0) },
        })
    };
    decoded(match reply.tag() {
        b"freed" => own_listeners.iter().enumerate().map(release).collect(),
        _ => Err(reply.unexpected()),
    })
}

pub(crate) fn hand_off(
    connections: &Connections,
    from: &Claim,
    to: &Claim,
    deadline: Moment,
) -> std::result::Result<Started, Failure> {
    connections.start(succession(from, to), deadline)
}

/// The same, waiting for the answer.
pub(crate) fn hand_off_now(
    connections: &Connections,
    from: &Claim,
    to: &Claim,
    deadline: Moment,
) -> Outcome<Handoff> {
    handed(connections.call(&succession(from, to), deadline)?, to.wants_fence)
}

fn succession(from: &Claim, to: &Claim) -> Command {
    let lock = from.name.key();
    let counter = to.wants_fence.then(|| keys::fence_counter(lock));
    let command = match &counter {
        Some(counter) => HAND_OVER.on(&[lock, counter]),
        None => HAND_OVER.on(&[lock]),
    };
    let command = command.arg(from.owner).arg(to.owner).arg(millis(to.lease));
    match (&from.note, &to.note) {
        (_, Some(note)) => saying(command, note),
        (Some(_), None) => command.arg("").arg(""),
        (None, None) => command,
    }
}

/// The reply of a hand-over.
pub(crate) fn handed(reply: Value, wanted_fence: bool) -> Outcome<Handoff> {
    let reply = tagged(reply, Expected::Hash)?;
    decoded(match reply.tag() {
        b"granted" => fence(&reply, wanted_fence).map(|fence| Handoff::Granted { fence }),
        b"lost" => Ok(Handoff::Lost),
        _ => Err(reply.unexpected()),
    })
}

pub(crate) fn removal(claim: &Claim, left: u32, publish_mode: PublishMode) -> Command {
    let lock = claim.name.key();
    publish_mode.on(&RELEASE, lock, &keys::channel(lock), |command| {
        let command = command.arg(claim.owner).arg(left).arg(millis(claim.lease));
        command.arg(u8::from(claim.note.is_some()))
    })
}

/// The reply of a release. `own_listeners`: how many of those who heard are this client itself.
pub(crate) fn released(reply: &Tagged, own_listeners: i64) -> Outcome<Release> {
    decoded(match reply.tag() {
        b"freed" if reply.is_tag_alone() => Ok(Release::Freed { others: 0 }),
        b"freed" => reply.number(1).map(|listeners| Release::Freed {
            others: u32::try_from(listeners - own_listeners).unwrap_or(0),
        }),
        b"still_held" => Ok(Release::StillHeld),
        b"not_held" => reply.text(1).map(|holder| Release::NotHeld { holder: holder.map(known) }),
        _ => Err(reply.unexpected()),
    })
}

fn known(holder: String) -> String {
    if holder.is_empty() { "another owner (this user may not read whom)".to_owned() } else { holder }
}

pub(crate) fn renewal(claim: &Claim) -> Command {
    RENEW.on(&[claim.name.key()]).arg(claim.owner).arg(millis(claim.lease))
}

pub(crate) fn expire_in(
    connections: &Connections,
    claim: &Claim,
    rest: Duration,
    deadline: Moment,
) -> Outcome<bool> {
    let command = EXPIRE_IN.on(&[claim.name.key()]).arg(claim.owner).arg(millis(rest).max(1));
    renewed(connections.call(&command, deadline)?, Expected::Hash)
}

/// The reply of a renewal, of a token lock too: whether the owner holds it.
pub(crate) fn renewed(reply: Value, expected: Expected) -> Outcome<bool> {
    let reply = tagged(reply, expected)?;
    decoded(match reply.tag() {
        b"renewed" => Ok(true),
        b"lost" => Ok(false),
        _ => Err(reply.unexpected()),
    })
}

pub(crate) fn inspect(
    connections: &Connections,
    name: &LockName,
    owner: Owner,
    deadline: Moment,
) -> Outcome<Option<Snapshot>> {
    inspected(&run(connections, &INSPECT.on(&[name.key()]).arg(owner), deadline)?)
}

pub(crate) fn inspected(reply: &Tagged) -> Outcome<Option<Snapshot>> {
    decoded(match reply.tag() {
        b"free" => Ok(None),
        b"held" => snapshot(reply).map(Some),
        _ => Err(reply.unexpected()),
    })
}

fn snapshot(reply: &Tagged) -> Result<Snapshot, Error> {
    let count = reply.text(2)?.unwrap_or_default();
    let Ok(count) = count.parse() else {
        return Err(Error::new(
            ErrorKind::WrongType,
            "inspect",
            format!("the hold count in the key is not an integer: {count:?}"),
        ));
    };
    Ok(Snapshot { holder: reply.text(3)?.unwrap_or_default(), count, remaining: ttl(reply.number(1)?) })
}

pub(crate) fn force(
    connections: &Connections,
    name: &LockName,
    publish_mode: PublishMode,
    deadline: Moment,
) -> Outcome<bool> {
    let lock = name.key();
    let reply =
        run(connections, &publish_mode.on(&FORCE, lock, &keys::channel(lock), |command| command), deadline)?;
    decoded(match reply.tag() {
        b"freed" => Ok(true),
        b"free" => Ok(false),
        _ => Err(reply.unexpected()),
    })
}

pub(crate) fn run(connections: &Connections, command: &Command, deadline: Moment) -> Outcome<Tagged> {
    tagged(connections.call(command, deadline)?, Expected::Hash)
}

pub(crate) fn tagged(reply: Value, expected: Expected) -> Outcome<Tagged> {
    let reply = accepted(reply).map_err(|error| Failure::Refused(refusal(&error, expected)))?;
    decoded(Tagged::new(reply))
}

/// A reply that makes no sense leaves open what was done.
pub(crate) fn decoded<T>(result: Result<T, Error>) -> Outcome<T> {
    result.map_err(Failure::Unknown)
}
