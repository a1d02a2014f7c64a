//! Clean-ups: many claims a command where the kind allows it, and what is to be asked again.

use redis::Value;

use crate::seam::{Answer, Claim, Kind, Release, named};
use crate::stores::redis::kinds::{self, several};
use crate::stores::redis::reply::{Expected, tagged};
use crate::stores::redis::script::Command;
use crate::stores::redis::server::RedisServer;
use crate::time::Moment;

/// Claims in one script, which the server runs in a millisecond.
const TOGETHER: usize = 100;

pub(super) fn at_a_time(kind: Kind) -> u32 {
    if kinds::of(kind).is_batched() { TOGETHER as u32 } else { 1 }
}

/// Ends each owner's hold. With `settles`, asks the server whether anything in doubt can still come.
pub(super) fn clean_up(
    server: &RedisServer,
    claims: &[Claim],
    settles: bool,
    deadline: Moment,
) -> Vec<Answer<Release>> {
    let is_batched = |claim: &Claim| kinds::of(claim.kind).is_batched();
    let (several, single): (Vec<usize>, Vec<usize>) = (0..claims.len())
        .partition(|at| settles && claims.len() > 1 && claims.get(*at).is_some_and(is_batched));
    let pick = |at: &usize| claims.get(*at).cloned();
    let groups: Vec<Vec<Claim>> =
        several.chunks(TOGETHER).map(|group| group.iter().filter_map(pick).collect()).collect();
    let alone: Vec<Claim> = single.iter().filter_map(pick).collect();
    let mut commands: Vec<Command> = groups.iter().map(|group| several::removals(group)).collect();
    commands.extend(alone.iter().map(|claim| kinds::of(claim.kind).leaving(claim)));
    let (replies, is_settled) = if settles {
        server.connections.batch_in_doubt(&commands, deadline)
    } else {
        (server.connections.batch(&commands, deadline), false)
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
            several::all_released(&tagged(reply, Expected::Hash)?, &vec![1; group.len()], &server.line_rights)
        }) {
            Ok(released) => released.into_iter().for_each(|release| put(places.next(), Ok(release))),
            Err(failure) => group.iter().for_each(|_| put(places.next(), Err(failure.copy()))),
        }
    }
    for (at, claim) in single.iter().zip(&alone) {
        let kind = kinds::of(claim.kind);
        let outcome =
            next().and_then(|reply| kind.released(&tagged(reply, kind.expected())?, 1, &server.line_rights));
        put(Some(at), outcome);
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
