//! Semaphores, those with leases too, and latches: numbers, kept as Redisson keeps them.
//!
//! A number cannot be set to what it shall be, as a hold count can, so each change is made under the id of its request
//! and is not made again for [`REQUEST_LASTS`].

use redis::Value;

use crate::error::{Error, ErrorKind};
use crate::seam::{Attempt, Claim, Counting, Kind, REQUEST_LASTS, Release};
use crate::stores::redis::conn::connections::Connections;
use crate::stores::redis::keys;
use crate::stores::redis::kinds::mutex::{self, Outcome, decoded};
use crate::stores::redis::reply::Expected;
use crate::stores::redis::script::{
    COUNTER, Command, LATCH_ATTEMPT, PERMITS_ACQUIRE, PERMITS_BY_ID, PERMITS_COUNT, PERMITS_RELEASE,
    PERMITS_RENEW, SEMAPHORE_ACQUIRE, SEMAPHORE_RELEASE,
};
use crate::time::{Moment, millis};

pub(crate) fn attempt(connections: &Connections, claim: &Claim, deadline: Moment) -> Outcome<Attempt> {
    let key = claim.name.key();
    let command = match claim.kind {
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
    mutex::attempted(&run(connections, &command, deadline)?, false)
}

pub(crate) fn release(connections: &Connections, claim: &Claim, deadline: Moment) -> Outcome<Release> {
    let released = mutex::released(&run(connections, &removal(claim), deadline)?, 0)?;
    if claim.kind == Kind::Semaphore {
        forget(connections, claim, deadline);
    }
    Ok(released)
}

/// What was answered, and will not be sent again, nothing need remember.
pub(crate) fn forget(connections: &Connections, claim: &Claim, deadline: Moment) {
    connections.post(&forgetting(claim), deadline, Box::new(drop));
}

pub(crate) fn forgetting(claim: &Claim) -> Command {
    Command::new("DEL").arg(request_key(claim))
}

pub(crate) fn removal(claim: &Claim) -> Command {
    let key = claim.name.key();
    let channel = keys::permits_channel(key);
    if claim.kind == Kind::Latch {
        return LATCH_ATTEMPT.on(&[key]); // whoever passed it took nothing that could be given back
    }
    if claim.kind == Kind::Permits {
        return with_ids(PERMITS_RELEASE.on(&[key, &keys::permits_out(key), &channel]), claim);
    }
    let way = if claim.is_granted { "release" } else { "undo" };
    let command = SEMAPHORE_RELEASE.on(&[key, &request_key(claim), &channel]);
    command.arg(claim.units).arg(millis(REQUEST_LASTS)).arg(way)
}

pub(crate) fn renewal(claim: &Claim) -> Command {
    let out = keys::permits_out(claim.name.key());
    with_ids(PERMITS_RENEW.on(&[&out]).arg(millis(claim.lease)), claim)
}

pub(crate) fn count(
    connections: &Connections,
    claim: &Claim,
    what: &Counting,
    deadline: Moment,
) -> Outcome<Option<i64>> {
    let key = claim.name.key();
    let is_latch = claim.kind == Kind::Latch;
    let channel = if is_latch { keys::latch_channel(key) } else { keys::permits_channel(key) };
    let (word, amount, lease) = match what {
        Counting::GiveBack(id) => {
            let command = PERMITS_RELEASE.on(&[key, &keys::permits_out(key), &channel]).arg(&id[..]);
            let released = mutex::released(&run(connections, &command, deadline)?, 0)?;
            return Ok(Some(i64::from(matches!(released, Release::Freed { .. }))));
        }
        Counting::GiveBackAll(ids) => return by_id(connections, key, "give_back", 0, ids, deadline),
        Counting::Lease(id, lease) => {
            return by_id(connections, key, "lease", millis(*lease), std::slice::from_ref(id), deadline);
        }
        Counting::AskLease(id) => {
            return by_id(connections, key, "ask", 0, std::slice::from_ref(id), deadline);
        }
        Counting::Ask if claim.kind == Kind::Permits => {
            return ask_permits(connections, key, "free", deadline);
        }
        Counting::AskOut => return ask_permits(connections, key, "out", deadline),
        Counting::AskAll => return ask_permits(connections, key, "all", deadline),
        Counting::Ask => ("ask", 0, None),
        Counting::SetUp { to, lease } => ("set_up", i64::from(*to), *lease),
        Counting::Add(amount) => ("add", *amount, None),
        Counting::AddIfSetUp(amount) => ("add_if_set_up", *amount, None),
        Counting::SetTo(count) => ("set_to", i64::from(*count), None),
        Counting::Drain => ("drain", 0, None),
        Counting::CountDown => ("count_down", 0, None),
        Counting::Delete => ("delete", 0, None),
        Counting::Notify { .. } | Counting::Enlist | Counting::Forget => {
            let words = "a counter notifies nobody";
            return Err(crate::stores::redis::reply::Failure::Refused(Error::new(
                ErrorKind::Unsupported,
                "count",
                words,
            )));
        }
    };
    let (command, out) = (request_key(claim), keys::permits_out(key));
    let keys = [key, &command, &channel, &out];
    // The last one only where it can exist: a user's rights need not go further.
    let keys = if claim.kind == Kind::Permits { &keys[..] } else { &keys[..3] };
    let command = COUNTER.on(keys).arg(word).arg(amount);
    let command = command.arg(lease.map_or(0, millis)).arg(millis(REQUEST_LASTS)).arg(u8::from(is_latch));
    counted(connections.call(&command, deadline)?)
}

fn ask_permits(connections: &Connections, key: &str, which: &str, deadline: Moment) -> Outcome<Option<i64>> {
    let keys = [key, &keys::permits_out(key), &keys::permits_channel(key)];
    counted(connections.call(&PERMITS_COUNT.on(&keys).arg(which), deadline)?)
}

fn by_id(
    connections: &Connections,
    key: &str,
    what: &str,
    lease_ms: u64,
    ids: &[[u8; 16]],
    deadline: Moment,
) -> Outcome<Option<i64>> {
    let keys = [key, &keys::permits_out(key), &keys::permits_channel(key)];
    let command = PERMITS_BY_ID.on(&keys).arg(what).arg(lease_ms);
    counted(connections.call(&ids.iter().fold(command, |command, id| command.arg(&id[..])), deadline)?)
}

/// The reply of something that counts.
pub(crate) fn counted(reply: Value) -> Outcome<Option<i64>> {
    let reply = mutex::tagged(reply, Expected::Nothing)?;
    decoded(match reply.tag() {
        b"count" => reply.number(1).map(Some),
        b"none" => Ok(None),
        _ => Err(reply.unexpected()),
    })
}

/// Where whoever waits listens.
pub(crate) fn channel(claim: &Claim) -> String {
    let key = claim.name.key();
    if claim.kind == Kind::Latch { keys::latch_channel(key) } else { keys::permits_channel(key) }
}

fn with_ids(command: Command, claim: &Claim) -> Command {
    (0..claim.units).fold(command, |command, index| command.arg(&claim.owner.permit(index)[..]))
}

fn request_key(claim: &Claim) -> String {
    keys::command(claim.name.key(), &claim.owner.to_string())
}

fn run(
    connections: &Connections,
    command: &Command,
    deadline: Moment,
) -> Outcome<crate::stores::redis::reply::Tagged> {
    mutex::tagged(connections.call(command, deadline)?, Expected::Nothing)
}
