//! One request for several plain locks, with and without fences, and clean-ups of many claims.

use redis::Value;

use crate::ident::FencingToken;
use crate::seam::{Answer, Claim, Kind, Release, named};
use crate::stores::redis::keys;
use crate::stores::redis::kinds::kind::expected;
use crate::stores::redis::kinds::{self, replies};
use crate::stores::redis::reply::{Expected, Tagged, decoded, tagged};
use crate::stores::redis::script::{ACQUIRE_ALL, Command, RELEASE_ALL};
use crate::stores::redis::server::{QueueRights, RedisServer};
use crate::time::{Moment, millis};

/// Claims in one script, which the server runs in a millisecond.
const TOGETHER: usize = 100;

/// Whether the scripts for several locks take and release this kind.
pub(super) fn is_batched(kind: Kind) -> bool {
    kind.has_queue()
}

pub(super) fn at_a_time(kind: Kind) -> u32 {
    if is_batched(kind) { TOGETHER as u32 } else { 1 }
}

pub(super) fn acquisitions(claims: &[Claim], or_none: bool) -> Command {
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
pub(super) fn acquired(reply: &Tagged) -> Answer<Vec<Option<FencingToken>>> {
    let fence = |text: Option<String>| match text.as_deref() {
        None | Some("") => Ok(None),
        Some(number) => number.parse().map(|number| Some(FencingToken::new(number))),
    };
    decoded(match reply.tag() {
        b"granted" => (1..=reply.len())
            .map(|index| fence(reply.text(index)?).map_err(|_not_a_number| reply.unexpected()))
            .collect(),
        _ => Err(reply.unexpected()),
    })
}

pub(super) fn removals<'a>(claims: impl Iterator<Item = &'a Claim> + Clone) -> Command {
    let locks: Vec<&str> = claims.clone().map(|claim| claim.name.key()).collect();
    claims.fold(RELEASE_ALL.on(&locks), |command, claim| {
        command.arg(claim.owner).arg(keys::channel(claim.name.key()))
    })
}

/// The reply of releases of several locks. `own_listeners`: for each, how many of the receivers are this
/// client itself. `rights` learn what it says of the locks' lines.
pub(super) fn all_released(
    reply: &Tagged,
    own_listeners: &[i64],
    rights: &QueueRights,
) -> Answer<Vec<Release>> {
    rights.learn(reply);
    let release = |(index, own): (usize, &i64)| {
        Ok(match reply.number(index + 1)? {
            -2 => Release::NotHeld { holder: None },
            listeners => replies::freed(listeners, *own),
        })
    };
    decoded(match reply.tag() {
        b"freed" => own_listeners.iter().enumerate().map(release).collect(),
        _ => Err(reply.unexpected()),
    })
}

/// Ends each owner's hold. With `settles`, asks the server whether anything in doubt can still come.
pub(super) fn clean_up(
    server: &RedisServer,
    claims: &[Claim],
    settles: bool,
    deadline: Moment,
) -> Vec<Answer<Release>> {
    let is_grouped = |claim: &Claim| settles && claims.len() > 1 && is_batched(claim.kind);
    let (grouped, alone): (Vec<_>, Vec<_>) =
        claims.iter().enumerate().partition(|(_, claim)| is_grouped(claim));
    let requests: Vec<&[(usize, &Claim)]> = grouped.chunks(TOGETHER).chain(alone.chunks(1)).collect();
    let command = |group: &&[(usize, &Claim)]| match group {
        [(_, claim)] if !is_grouped(claim) => kinds::of(claim.kind).leaving(claim),
        group => removals(group.iter().map(|(_, claim)| *claim)),
    };
    let commands = requests.iter().map(command).collect();
    let (replies, is_settled) = if settles {
        server.connections.batch_in_doubt(commands, deadline)
    } else {
        (server.connections.batch(commands, deadline), false)
    };
    let read = |group: &[(usize, &Claim)], reply: Value| match group {
        [(_, claim)] if !is_grouped(claim) => {
            let reply = tagged(reply, expected(claim.kind))?;
            kinds::of(claim.kind).released(&reply, 1, &server.queue_rights).map(|release| vec![release])
        }
        group => all_released(&tagged(reply, Expected::Hash)?, &vec![1; group.len()], &server.queue_rights),
    };
    let settled = |release: Release| match release {
        Release::NotHeld { .. } if is_settled => Release::Never,
        other => other,
    };
    let mut outcomes: Vec<Answer<Release>> =
        claims.iter().map(|_| Ok(settled(Release::NotHeld { holder: None }))).collect();
    for (group, reply) in requests.iter().zip(replies) {
        let mut released = reply.and_then(|reply| read(group, reply)).map(Vec::into_iter);
        for (at, claim) in group.iter() {
            let release = match &mut released {
                Ok(released) => released.next().map(|release| Ok(settled(release))),
                Err(failure) => Some(Err(failure.copy())),
            };
            if let (Some(release), Some(outcome)) = (release, outcomes.get_mut(*at)) {
                *outcome = named(release, "unlock", claim.name.given());
            }
        }
    }
    outcomes
}
