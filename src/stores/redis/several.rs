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

/// The request of attempts at several locks.
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

/// The request of releases of several locks.
pub(super) fn removals(claims: &[Claim]) -> Command {
    let locks: Vec<&str> = claims.iter().map(|claim| claim.name.key()).collect();
    claims.iter().fold(RELEASE_ALL.on(&locks), |command, claim| {
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
    let (several, single): (Vec<usize>, Vec<usize>) = (0..claims.len()).partition(|at| {
        settles && claims.len() > 1 && claims.get(*at).is_some_and(|claim| is_batched(claim.kind))
    });
    let pick = |at: &usize| claims.get(*at).cloned();
    let groups: Vec<Vec<Claim>> =
        several.chunks(TOGETHER).map(|group| group.iter().filter_map(pick).collect()).collect();
    let alone: Vec<Claim> = single.iter().filter_map(pick).collect();
    let mut commands: Vec<Command> = groups.iter().map(|group| removals(group)).collect();
    commands.extend(alone.iter().map(|claim| kinds::of(claim.kind).leaving(claim)));
    let (replies, is_settled) = if settles {
        server.connections.batch_in_doubt(commands, deadline)
    } else {
        (server.connections.batch(commands, deadline), false)
    };
    let mut replies = replies.into_iter();
    let mut next = || replies.next().unwrap_or_else(|| Ok(Value::Nil));
    let mut outcomes: Vec<Option<Answer<Release>>> = claims.iter().map(|_| None).collect();
    let mut put = |at: Option<&usize>, outcome: Answer<Release>| {
        if let Some(place) = at.and_then(|at| outcomes.get_mut(*at)) {
            *place = Some(outcome);
        }
    };
    let mut places = several.iter();
    for group in &groups {
        match next().and_then(|reply| {
            all_released(&tagged(reply, Expected::Hash)?, &vec![1; group.len()], &server.queue_rights)
        }) {
            Ok(released) => released.into_iter().for_each(|release| put(places.next(), Ok(release))),
            Err(failure) => group.iter().for_each(|_| put(places.next(), Err(failure.copy()))),
        }
    }
    for (at, claim) in single.iter().zip(&alone) {
        let released = |reply| {
            let reply = tagged(reply, expected(claim.kind))?;
            kinds::of(claim.kind).released(&reply, 1, &server.queue_rights)
        };
        put(Some(at), next().and_then(released));
    }
    let settled = |release: Release| match release {
        Release::NotHeld { .. } if is_settled => Release::Never,
        other => other,
    };
    claims
        .iter()
        .zip(outcomes)
        .map(|(claim, outcome)| {
            let outcome = outcome.unwrap_or_else(|| Ok(Release::NotHeld { holder: None }));
            named(outcome.map(settled), "unlock", claim.name.given())
        })
        .collect()
}
