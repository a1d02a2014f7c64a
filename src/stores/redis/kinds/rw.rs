//! The read-write lock: two halves of one hash, and for each read hold a marker by which Redisson tells the living
//! readers from the dead. Writers that are to come before readers are in a key that Redisson does not know.

use crate::ident::{LockName, Owner};
use crate::seam::{Claim, Kind, PLACE_LASTS, Release, Snapshot};
use crate::stores::redis::conn::connections::Connections;
use crate::stores::redis::keys::{self, Part};
use crate::stores::redis::kinds::mutex::{self, Outcome, decoded};
use crate::stores::redis::pubsub::publish::PublishMode;
use crate::stores::redis::reply::Expected;
use crate::stores::redis::script::{Command, RENEW, RW_ACQUIRE, RW_FORCE, RW_INSPECT, RW_RELEASE, RW_RENEW};
use crate::time::{Moment, millis};

pub(crate) fn acquisition(claim: &Claim, count: u32) -> Command {
    let lock = claim.name.key();
    let marker = format!("{}{count}", markers(&claim.name, claim.owner));
    let (waiting, counter) = (waiting(claim), keys::fence_counter(lock));
    let keys = [lock, &marker, waiting.as_deref().unwrap_or(lock), &counter];
    let keys = if claim.wants_fence { &keys[..] } else { &keys[..3] };
    let command = RW_ACQUIRE.on(keys).arg(half(claim.kind)).arg(claim.owner);
    let alive_ms = if claim.waits { millis(PLACE_LASTS) } else { 0 };
    command.arg(count).arg(millis(claim.lease)).arg(alive_ms)
}

/// Where the writers are named that come before readers, if the claim is one that goes by that.
fn waiting(claim: &Claim) -> Option<String> {
    claim.writers_first.then(|| keys::before(Part::RwWaiting, claim.name.key()))
}

pub(crate) fn release(
    connections: &Connections,
    claim: &Claim,
    left: u32,
    publish_mode: PublishMode,
    deadline: Moment,
) -> Outcome<Release> {
    Ok(match mutex::released(&mutex::run(connections, &removal(claim, left, publish_mode), deadline)?, 0)? {
        Release::NotHeld { holder: Some(holder) } => Release::NotHeld { holder: Some(holder_of(holder)) },
        other => other,
    })
}

/// Who holds either half, as clients are told: the field of a writer has an ending.
fn holder_of(field: String) -> String {
    field.strip_suffix(":write").map(str::to_owned).unwrap_or(field)
}

pub(crate) fn removal(claim: &Claim, left: u32, publish_mode: PublishMode) -> Command {
    let lock = claim.name.key();
    publish_mode.on(&RW_RELEASE, lock, &keys::rw_channel(lock), |command| {
        let command = command.arg(half(claim.kind)).arg(claim.owner).arg(left);
        let command = command.arg(millis(claim.lease)).arg(&*keys::tagged(lock));
        command.arg(waiting(claim).unwrap_or_default())
    })
}

pub(crate) fn renewal(claim: &Claim) -> Command {
    let lock = claim.name.key();
    if claim.kind == Kind::Write {
        return RENEW.on(&[lock]).arg(format!("{}:write", claim.owner)).arg(millis(claim.lease));
    }
    let command = RW_RENEW.on(&[lock]).arg(claim.owner).arg(millis(claim.lease));
    command.arg(markers(&claim.name, claim.owner))
}

pub(crate) fn inspect(
    connections: &Connections,
    kind: Kind,
    name: &LockName,
    owner: Owner,
    deadline: Moment,
) -> Outcome<Option<Snapshot>> {
    let command = RW_INSPECT.on(&[name.key()]).arg(half(kind)).arg(owner).arg(markers(name, owner));
    let snapshot = mutex::inspected(&mutex::run(connections, &command, deadline)?)?;
    Ok(snapshot.map(|snapshot| Snapshot { holder: holder_of(snapshot.holder), ..snapshot }))
}

pub(crate) fn force(
    connections: &Connections,
    kind: Kind,
    name: &LockName,
    publish_mode: PublishMode,
    deadline: Moment,
) -> Outcome<bool> {
    let lock = name.key();
    let command =
        publish_mode.on(&RW_FORCE, lock, &keys::rw_channel(lock), |command| command.arg(half(kind)));
    let reply = mutex::tagged(connections.call(&command, deadline)?, Expected::Hash)?;
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
