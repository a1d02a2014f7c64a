//! The reentrant lock, with and without fences: one script per operation, keys as Redisson's.

use std::time::Duration;

use redis::Value;

use super::keys;
use super::reply::{Expected, Failure, Tagged, accepted, refusal, ttl};
use super::script::{
    ACQUIRE, ACQUIRE_ALL, EXPIRE_IN, FORCE, HAND_OVER, INSPECT, RELEASE, RELEASE_ALL, RENEW, Request,
};
use super::tell::Tell;
use super::wire::{Started, Wire};
use crate::error::{Error, ErrorKind};
use crate::ident::{Fence, LockName, Owner};
use crate::lock::queue::Wish;
use crate::lock::store::{Attempt, Claim, HandOver, Notice, Release, Snapshot};
use crate::time::{Moment, millis};

pub(super) type Outcome<T> = std::result::Result<T, Failure>;

/// The request of an attempt.
pub(super) fn acquisition(claim: &Claim, count: u32, wants_fence: bool) -> Request {
    let lock = claim.name.key();
    let counter = wants_fence.then(|| keys::fence_counter(lock));
    let request = match &counter {
        Some(counter) => ACQUIRE.on(&[lock, counter]),
        None => ACQUIRE.on(&[lock]),
    };
    let request = request.arg(claim.owner).arg(count).arg(millis(claim.lease));
    match &claim.notice {
        // What is said of a hold stays with it.
        Some(notice) if count == 1 => saying(request, notice),
        _ => request,
    }
}

/// The request of a grant that also says, for people to read, when it ends at the latest, and where its owner is.
pub(super) fn saying(request: Request, notice: &Notice) -> Request {
    let place = &notice.place;
    request.arg(millis(notice.max_hold)).arg(format!("{} {} {}", place.pid, place.host, place.thread))
}

/// The reply of an attempt, for any lock but one by token.
pub(super) fn attempted(reply: &Tagged, wants_fence: bool) -> Outcome<Attempt> {
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
pub(super) fn acquisitions(wishes: &[Wish], or_none: bool) -> Request {
    let counters: Vec<Option<String>> = wishes
        .iter()
        .map(|wish| wish.wants_fence.then(|| keys::fence_counter(wish.claim.name.key())))
        .collect();
    let locks = wishes.iter().map(|wish| wish.claim.name.key());
    let all: Vec<&str> = locks.chain(counters.iter().flatten().map(String::as_str)).collect();
    let mut request = ACQUIRE_ALL.on(&all).arg(u32::from(or_none)).arg(wishes.len());
    let mut last = wishes.len();
    for (wish, counter) in wishes.iter().zip(&counters) {
        let number = counter.as_ref().map_or(0, |_| {
            last += 1;
            last
        });
        request = request.arg(wish.claim.owner).arg(millis(wish.claim.lease)).arg(number);
    }
    request
}

/// The reply of attempts at several locks: the fences of those that were taken.
pub(super) fn acquired(reply: &Tagged) -> Outcome<Vec<Option<Fence>>> {
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
pub(super) fn removals(claims: &[Claim]) -> Request {
    let locks: Vec<&str> = claims.iter().map(|claim| claim.name.key()).collect();
    claims.iter().fold(RELEASE_ALL.on(&locks), |request, claim| {
        request.arg(claim.owner).arg(keys::channel(claim.name.key()))
    })
}

/// The reply of releases of several locks. `own_listeners`: for each, how many of those who heard are this client itself.
pub(super) fn all_released(reply: &Tagged, own_listeners: &[i64]) -> Outcome<Vec<Release>> {
    let release = |(index, own): (usize, &i64)| {
        Ok(match reply.number(index + 1)? {
            -2 => Release::NotHeld { by: None },
            listeners => Release::Freed { others: u32::try_from(listeners - own).unwrap_or(0) },
        })
    };
    decoded(match reply.tag() {
        b"freed" => own_listeners.iter().enumerate().map(release).collect(),
        _ => Err(reply.unexpected()),
    })
}

pub(super) fn hand_over(
    wire: &Wire,
    from: &Claim,
    to: &Claim,
    wants_fence: bool,
    by: Moment,
) -> std::result::Result<Started, Failure> {
    wire.start(succession(from, to, wants_fence), by)
}

/// The same, waiting for the answer.
pub(super) fn hand_over_now(
    wire: &Wire,
    from: &Claim,
    to: &Claim,
    wants_fence: bool,
    by: Moment,
) -> Outcome<HandOver> {
    handed(wire.call(&succession(from, to, wants_fence), by)?, wants_fence)
}

fn succession(from: &Claim, to: &Claim, wants_fence: bool) -> Request {
    let lock = from.name.key();
    let counter = wants_fence.then(|| keys::fence_counter(lock));
    let request = match &counter {
        Some(counter) => HAND_OVER.on(&[lock, counter]),
        None => HAND_OVER.on(&[lock]),
    };
    let request = request.arg(from.owner).arg(to.owner).arg(millis(to.lease));
    match (&from.notice, &to.notice) {
        (_, Some(notice)) => saying(request, notice),
        (Some(_), None) => request.arg("").arg(""),
        (None, None) => request,
    }
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

pub(super) fn removal(claim: &Claim, left: u32, tell: Tell) -> Request {
    let lock = claim.name.key();
    tell.on(&RELEASE, lock, &keys::channel(lock), |request| {
        let request = request.arg(claim.owner).arg(left).arg(millis(claim.lease));
        request.arg(u8::from(claim.notice.is_some()))
    })
}

/// The reply of a release. `own_listeners`: how many of those who heard are this client itself.
pub(super) fn released(reply: &Tagged, own_listeners: i64) -> Outcome<Release> {
    decoded(match reply.tag() {
        b"freed" if reply.is_tag_alone() => Ok(Release::Freed { others: 0 }),
        b"freed" => reply.number(1).map(|listeners| Release::Freed {
            others: u32::try_from(listeners - own_listeners).unwrap_or(0),
        }),
        b"still_held" => Ok(Release::StillHeld),
        b"not_held" => reply.text(1).map(|by| Release::NotHeld { by: by.map(known) }),
        _ => Err(reply.unexpected()),
    })
}

fn known(holder: String) -> String {
    if holder.is_empty() { "another owner (this user may not read whom)".to_owned() } else { holder }
}

pub(super) fn renewal(claim: &Claim) -> Request {
    RENEW.on(&[claim.name.key()]).arg(claim.owner).arg(millis(claim.lease))
}

pub(super) fn expire_in(wire: &Wire, claim: &Claim, rest: Duration, by: Moment) -> Outcome<bool> {
    let request = EXPIRE_IN.on(&[claim.name.key()]).arg(claim.owner).arg(millis(rest).max(1));
    renewed(wire.call(&request, by)?, Expected::Hash)
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
    inspected(&run(wire, &INSPECT.on(&[name.key()]).arg(owner), by)?)
}

pub(super) fn inspected(reply: &Tagged) -> Outcome<Option<Snapshot>> {
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

pub(super) fn force(wire: &Wire, name: &LockName, tell: Tell, by: Moment) -> Outcome<bool> {
    let lock = name.key();
    let reply = run(wire, &tell.on(&FORCE, lock, &keys::channel(lock), |request| request), by)?;
    decoded(match reply.tag() {
        b"freed" => Ok(true),
        b"free" => Ok(false),
        _ => Err(reply.unexpected()),
    })
}

pub(super) fn run(wire: &Wire, request: &Request, by: Moment) -> Outcome<Tagged> {
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
