//! One request for several plain locks, with and without fences.

use crate::ident::FencingToken;
use crate::seam::Answer;
use crate::seam::{Claim, Release};
use crate::stores::redis::keys;
use crate::stores::redis::kinds::replies;
use crate::stores::redis::reply::{Tagged, decoded};
use crate::stores::redis::script::{ACQUIRE_ALL, Command, RELEASE_ALL};
use crate::stores::redis::server::LineRights;
use crate::time::millis;

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
pub(crate) fn acquired(reply: &Tagged) -> Answer<Vec<Option<FencingToken>>> {
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
pub(crate) fn removals(claims: &[Claim]) -> Command {
    let locks: Vec<&str> = claims.iter().map(|claim| claim.name.key()).collect();
    claims.iter().fold(RELEASE_ALL.on(&locks), |command, claim| {
        command.arg(claim.owner).arg(keys::channel(claim.name.key()))
    })
}

/// The reply of releases of several locks. `own_listeners`: for each, how many of the receivers are this
/// client itself. `rights` learn what it says of the locks' lines.
pub(crate) fn all_released(
    reply: &Tagged,
    own_listeners: &[i64],
    rights: &LineRights,
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
