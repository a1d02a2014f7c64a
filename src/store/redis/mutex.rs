//! The reentrant lock, with and without fences: one script per operation, keys as Redisson's.

use redis::Value;

use super::keys;
use super::reply::{Expected, Failure, Tagged, accepted, refusal, ttl};
use super::script::{ACQUIRE, FORCE, HAND_OVER, INSPECT, RELEASE, RENEW, Request};
use super::wire::{Started, Wire};
use crate::error::{Error, ErrorKind};
use crate::ident::{Fence, LockName, Owner};
use crate::lock::store::{Attempt, Claim, HandOver, Release, Snapshot};
use crate::time::{Moment, millis};

type Outcome<T> = std::result::Result<T, Failure>;

pub(super) fn attempt(
    wire: &Wire,
    claim: &Claim,
    count: u32,
    wants_fence: bool,
    by: Moment,
) -> Outcome<Attempt> {
    let lock = claim.name.key();
    let counter = wants_fence.then(|| keys::fence_counter(lock));
    let request = match &counter {
        Some(counter) => ACQUIRE.on(&[lock, counter]),
        None => ACQUIRE.on(&[lock]),
    };
    let reply = run(wire, &request.arg(claim.owner.to_string()).arg(count).arg(millis(claim.lease)), by)?;
    decoded(match reply.tag() {
        b"granted" => fence(&reply, wants_fence).map(|fence| Attempt::Granted { fence }),
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

pub(super) fn release(
    wire: &Wire,
    claim: &Claim,
    left: u32,
    own_listeners: i64,
    by: Moment,
) -> Outcome<Release> {
    released(&run(wire, &removal(claim, left), by)?, own_listeners)
}

pub(super) fn hand_over(
    wire: &Wire,
    from: &Claim,
    to: &Claim,
    wants_fence: bool,
    by: Moment,
) -> std::result::Result<Started, Failure> {
    let lock = from.name.key();
    let counter = wants_fence.then(|| keys::fence_counter(lock));
    let request = match &counter {
        Some(counter) => HAND_OVER.on(&[lock, counter]),
        None => HAND_OVER.on(&[lock]),
    };
    let request = request.arg(from.owner.to_string()).arg(to.owner.to_string()).arg(millis(to.lease));
    wire.start(&request, by)
}

/// The reply of a hand-over.
pub(super) fn handed(reply: Value, wanted_fence: bool) -> Outcome<HandOver> {
    let reply = tagged(reply, Expected::Hash)?;
    decoded(match reply.tag() {
        b"granted" => fence(&reply, wanted_fence).map(|fence| HandOver::Granted { fence }),
        b"lost" => Ok(HandOver::Lost),
        _ => Err(reply.unexpected()),
    })
}

pub(super) fn removal(claim: &Claim, left: u32) -> Request {
    let lock = claim.name.key();
    let request = RELEASE.on(&[lock, &keys::channel(lock)]);
    request.arg(claim.owner.to_string()).arg(left).arg(millis(claim.lease))
}

/// The reply of a release. `own_listeners`: how many of those who heard are this client itself.
pub(super) fn released(reply: &Tagged, own_listeners: i64) -> Outcome<Release> {
    decoded(match reply.tag() {
        b"freed" => reply.number(1).map(|listeners| Release::Freed {
            others: u32::try_from(listeners - own_listeners).unwrap_or(0),
        }),
        b"still_held" => Ok(Release::StillHeld),
        b"not_held" => reply.text(1).map(|by| Release::NotHeld { by: by.map(known) }),
        _ => Err(reply.unexpected()),
    })
}

fn known(holder: String) -> String {
    if holder.is_empty() { "another owner (the user may not ask whom)".to_owned() } else { holder }
}

pub(super) fn renewal(claim: &Claim) -> Request {
    RENEW.on(&[claim.name.key()]).arg(claim.owner.to_string()).arg(millis(claim.lease))
}

/// The reply of a renewal, of a token lock too: whether the owner holds it.
pub(super) fn renewed(reply: Value, expected: Expected) -> Outcome<bool> {
    let reply = tagged(reply, expected)?;
    decoded(match reply.tag() {
        b"renewed" => Ok(true),
        b"lost" => Ok(false),
        _ => Err(reply.unexpected()),
    })
}

pub(super) fn inspect(wire: &Wire, name: &LockName, owner: Owner, by: Moment) -> Outcome<Option<Snapshot>> {
    let reply = run(wire, &INSPECT.on(&[name.key()]).arg(owner.to_string()), by)?;
    decoded(match reply.tag() {
        b"free" => Ok(None),
        b"held" => snapshot(&reply).map(Some),
        _ => Err(reply.unexpected()),
    })
}

fn snapshot(reply: &Tagged) -> Result<Snapshot, Error> {
    let count = reply.text(2)?.unwrap_or_default();
    let Ok(count) = count.parse() else {
        return Err(Error::new(
            ErrorKind::WrongType,
            "inspect",
            format!("the hold count in the key is no number but {count:?}"),
        ));
    };
    Ok(Snapshot { holder: reply.text(3)?.unwrap_or_default(), count, remaining: ttl(reply.number(1)?) })
}

pub(super) fn force(wire: &Wire, name: &LockName, by: Moment) -> Outcome<bool> {
    let lock = name.key();
    let reply = run(wire, &FORCE.on(&[lock, &keys::channel(lock)]), by)?;
    decoded(match reply.tag() {
        b"freed" => Ok(true),
        b"free" => Ok(false),
        _ => Err(reply.unexpected()),
    })
}

fn run(wire: &Wire, request: &Request, by: Moment) -> Outcome<Tagged> {
    tagged(wire.call(request, by)?, Expected::Hash)
}

pub(super) fn tagged(reply: Value, expected: Expected) -> Outcome<Tagged> {
    let reply = accepted(reply).map_err(|error| Failure::Refused(refusal(&error, expected)))?;
    decoded(Tagged::new(reply))
}

/// A reply that makes no sense leaves open what was done.
pub(super) fn decoded<T>(result: Result<T, Error>) -> Outcome<T> {
    result.map_err(Failure::Unknown)
}
