//! Semaphores, those with leases too, and latches: numbers, kept as Redisson keeps them.
//!
//! A number cannot be set to what it shall be, as a hold count can, so each change is made under the id of its request
//! and is not made again for [`REQUEST_LASTS`].

use redis::Value;

use super::keys;
use super::mutex::{self, Outcome, decoded};
use super::reply::Expected;
use super::script::{
    COUNTER, LATCH_ATTEMPT, PERMITS_ACQUIRE, PERMITS_BY_ID, PERMITS_COUNT, PERMITS_RELEASE, PERMITS_RENEW,
    Request, SEMAPHORE_ACQUIRE, SEMAPHORE_RELEASE,
};
use super::wire::Wire;
use crate::error::{Error, ErrorKind};
use crate::lock::store::{Attempt, Claim, Counting, Kind, REQUEST_LASTS, Release};
use crate::time::{Moment, millis};

pub(super) fn attempt(wire: &Wire, claim: &Claim, by: Moment) -> Outcome<Attempt> {
    let key = claim.name.key();
    let request = match claim.kind {
        Kind::Semaphore => {
            SEMAPHORE_ACQUIRE.on(&[key, &request_key(claim)]).arg(claim.units).arg(millis(REQUEST_LASTS))
        }
        Kind::Permits => with_ids(
            PERMITS_ACQUIRE
                .on(&[key, &keys::permits_out(key), &keys::permits_channel(key)])
                .arg(millis(claim.lease)),
            claim,
        ),
        _ => LATCH_ATTEMPT.on(&[key]),
    };
    mutex::attempted(&run(wire, &request, by)?, false)
}

pub(super) fn release(wire: &Wire, claim: &Claim, by: Moment) -> Outcome<Release> {
    let released = mutex::released(&run(wire, &removal(claim), by)?, 0)?;
    if claim.kind == Kind::Semaphore {
        forget(wire, claim, by);
    }
    Ok(released)
}

/// What was answered, and will not be sent again, nothing need remember.
pub(super) fn forget(wire: &Wire, claim: &Claim, by: Moment) {
    wire.post(&forgetting(claim), by, Box::new(drop));
}

pub(super) fn forgetting(claim: &Claim) -> Request {
    Request::new("DEL").arg(request_key(claim))
}

pub(super) fn removal(claim: &Claim) -> Request {
    let key = claim.name.key();
    let channel = keys::permits_channel(key);
    if claim.kind == Kind::Latch {
        return LATCH_ATTEMPT.on(&[key]); // whoever passed it took nothing that could be given back
    }
    if claim.kind == Kind::Permits {
        return with_ids(PERMITS_RELEASE.on(&[key, &keys::permits_out(key), &channel]), claim);
    }
    let way = if claim.is_granted { "release" } else { "undo" };
    let request = SEMAPHORE_RELEASE.on(&[key, &request_key(claim), &channel]);
    request.arg(claim.units).arg(millis(REQUEST_LASTS)).arg(way)
}

pub(super) fn renewal(claim: &Claim) -> Request {
    let out = keys::permits_out(claim.name.key());
    with_ids(PERMITS_RENEW.on(&[&out]).arg(millis(claim.lease)), claim)
}

pub(super) fn count(wire: &Wire, claim: &Claim, what: &Counting, by: Moment) -> Outcome<Option<i64>> {
    let key = claim.name.key();
    let is_latch = claim.kind == Kind::Latch;
    let channel = if is_latch { keys::latch_channel(key) } else { keys::permits_channel(key) };
    let (word, amount, lease) = match what {
        Counting::GiveBack(id) => {
            let request = PERMITS_RELEASE.on(&[key, &keys::permits_out(key), &channel]).arg(&id[..]);
            let released = mutex::released(&run(wire, &request, by)?, 0)?;
            return Ok(Some(i64::from(matches!(released, Release::Freed { .. }))));
        }
        Counting::GiveBackAll(ids) => return by_id(wire, key, "give_back", 0, ids, by),
        Counting::Lease(id, lease) => {
            return by_id(wire, key, "lease", millis(*lease), std::slice::from_ref(id), by);
        }
        Counting::AskLease(id) => return by_id(wire, key, "ask", 0, std::slice::from_ref(id), by),
        Counting::Ask if claim.kind == Kind::Permits => return ask_permits(wire, key, "free", by),
        Counting::AskOut => return ask_permits(wire, key, "out", by),
        Counting::AskAll => return ask_permits(wire, key, "all", by),
        Counting::Ask => ("ask", 0, None),
        Counting::SetUp { to, lease } => ("set_up", i64::from(*to), *lease),
        Counting::Add(amount) => ("add", *amount, None),
        Counting::AddIfSetUp(amount) => ("add_if_set_up", *amount, None),
        Counting::SetTo(count) => ("set_to", i64::from(*count), None),
        Counting::Drain => ("drain", 0, None),
        Counting::CountDown => ("count_down", 0, None),
        Counting::Delete => ("delete", 0, None),
        Counting::Notify { .. } | Counting::Enlist => {
            let words = "a counter notifies nobody";
            return Err(super::Failure::Refused(Error::new(ErrorKind::Unsupported, "count", words)));
        }
    };
    let (request, out) = (request_key(claim), keys::permits_out(key));
    let keys = [key, &request, &channel, &out];
    // The last one only where it can exist: a user's rights need not go further.
    let keys = if claim.kind == Kind::Permits { &keys[..] } else { &keys[..3] };
    let request = COUNTER.on(keys).arg(word).arg(amount);
    let request = request.arg(lease.map_or(0, millis)).arg(millis(REQUEST_LASTS)).arg(u8::from(is_latch));
    counted(wire.call(&request, by)?)
}

fn ask_permits(wire: &Wire, key: &str, which: &str, by: Moment) -> Outcome<Option<i64>> {
    let keys = [key, &keys::permits_out(key), &keys::permits_channel(key)];
    counted(wire.call(&PERMITS_COUNT.on(&keys).arg(which), by)?)
}

fn by_id(
    wire: &Wire,
    key: &str,
    what: &str,
    lease_ms: u64,
    ids: &[[u8; 16]],
    by: Moment,
) -> Outcome<Option<i64>> {
    let keys = [key, &keys::permits_out(key), &keys::permits_channel(key)];
    let request = PERMITS_BY_ID.on(&keys).arg(what).arg(lease_ms);
    counted(wire.call(&ids.iter().fold(request, |request, id| request.arg(&id[..])), by)?)
}

/// The reply of something that counts.
pub(super) fn counted(reply: Value) -> Outcome<Option<i64>> {
    let reply = mutex::tagged(reply, Expected::Nothing)?;
    decoded(match reply.tag() {
        b"count" => reply.number(1).map(Some),
        b"none" => Ok(None),
        _ => Err(reply.unexpected()),
    })
}

/// Where whoever waits listens.
pub(super) fn channel(claim: &Claim) -> String {
    let key = claim.name.key();
    if claim.kind == Kind::Latch { keys::latch_channel(key) } else { keys::permits_channel(key) }
}

fn with_ids(request: Request, claim: &Claim) -> Request {
    (0..claim.units).fold(request, |request, index| request.arg(&claim.owner.permit(index)[..]))
}

fn request_key(claim: &Claim) -> String {
    keys::request(claim.name.key(), &claim.owner.to_string())
}

fn run(wire: &Wire, request: &Request, by: Moment) -> Outcome<super::reply::Tagged> {
    mutex::tagged(wire.call(request, by)?, Expected::Nothing)
}
