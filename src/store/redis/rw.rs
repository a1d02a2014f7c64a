//! The read-write lock: two halves of one hash, and for each read hold a marker by which Redisson tells the living
//! readers from the dead. Writers that are to come before readers are in a key that Redisson does not know.

use super::keys::{self, Part};
use super::mutex::{self, Outcome, decoded};
use super::reply::Expected;
use super::script::{RENEW, RW_ACQUIRE, RW_FORCE, RW_INSPECT, RW_RELEASE, RW_RENEW, Request};
use super::tell::Tell;
use super::wire::Wire;
use crate::ident::{LockName, Owner};
use crate::lock::store::{Claim, Kind, PLACE_LASTS, Release, Snapshot};
use crate::time::{Moment, millis};

pub(super) fn acquisition(claim: &Claim, count: u32, wants_fence: bool) -> Request {
    let lock = claim.name.key();
    let marker = format!("{}{count}", markers(&claim.name, claim.owner));
    let (waiting, counter) = (waiting(claim), keys::fence_counter(lock));
    let keys = [lock, &marker, waiting.as_deref().unwrap_or(lock), &counter];
    let keys = if wants_fence { &keys[..] } else { &keys[..3] };
    let request = RW_ACQUIRE.on(keys).arg(half(claim.kind)).arg(claim.owner);
    let alive_ms = if claim.waits { millis(PLACE_LASTS) } else { 0 };
    request.arg(count).arg(millis(claim.lease)).arg(alive_ms)
}

/// Where the writers are named that come before readers, if the claim is one that goes by that.
fn waiting(claim: &Claim) -> Option<String> {
    claim.writers_first.then(|| keys::before(Part::RwWaiting, claim.name.key()))
}

pub(super) fn release(wire: &Wire, claim: &Claim, left: u32, tell: Tell, by: Moment) -> Outcome<Release> {
    Ok(match mutex::released(&mutex::run(wire, &removal(claim, left, tell), by)?, 0)? {
        Release::NotHeld { by: Some(by) } => Release::NotHeld { by: Some(holder_of(by)) },
        other => other,
    })
}

/// Who holds either half, as clients are told: the field of a writer has an ending.
fn holder_of(field: String) -> String {
    field.strip_suffix(":write").map(str::to_owned).unwrap_or(field)
}

pub(super) fn removal(claim: &Claim, left: u32, tell: Tell) -> Request {
    let lock = claim.name.key();
    tell.on(&RW_RELEASE, lock, &keys::rw_channel(lock), |request| {
        let request = request.arg(half(claim.kind)).arg(claim.owner).arg(left);
        let request = request.arg(millis(claim.lease)).arg(&*keys::tagged(lock));
        request.arg(waiting(claim).unwrap_or_default())
    })
}

pub(super) fn renewal(claim: &Claim) -> Request {
    let lock = claim.name.key();
    if claim.kind == Kind::Write {
        return RENEW.on(&[lock]).arg(format!("{}:write", claim.owner)).arg(millis(claim.lease));
    }
    let request = RW_RENEW.on(&[lock]).arg(claim.owner).arg(millis(claim.lease));
    request.arg(markers(&claim.name, claim.owner))
}

pub(super) fn inspect(
    wire: &Wire,
    kind: Kind,
    name: &LockName,
    owner: Owner,
    by: Moment,
) -> Outcome<Option<Snapshot>> {
    let request = RW_INSPECT.on(&[name.key()]).arg(half(kind)).arg(owner).arg(markers(name, owner));
    let snapshot = mutex::inspected(&mutex::run(wire, &request, by)?)?;
    Ok(snapshot.map(|snapshot| Snapshot { holder: holder_of(snapshot.holder), ..snapshot }))
}

pub(super) fn force(wire: &Wire, kind: Kind, name: &LockName, tell: Tell, by: Moment) -> Outcome<bool> {
    let lock = name.key();
    let request = tell.on(&RW_FORCE, lock, &keys::rw_channel(lock), |request| request.arg(half(kind)));
    let reply = mutex::tagged(wire.call(&request, by)?, Expected::Hash)?;
    decoded(match reply.tag() {
        b"freed" => Ok(true),
        b"free" => Ok(false),
        _ => Err(reply.unexpected()),
    })
}

fn half(kind: Kind) -> &'static str {
    if kind == Kind::Write { "write" } else { "read" }
}

/// What the markers of an owner's read holds begin with; 1, 2, … follow.
fn markers(name: &LockName, owner: Owner) -> String {
    keys::rw_markers(name.key(), owner)
}
