//! The second reading of what a first has shown. It begins after the first ended: see `graph`.

use crate::deadlock::Deadlock;
use crate::directory::ClientInfo;
use crate::engine::deadlock::graph::{Link, View, are_held, are_waited_for};
use crate::engine::deadlock::maybe::{Maybe, maybe_ring};
use crate::engine::deadlock::reading::{Asked, Reading};
use crate::engine::deadlock::shown::{shown, shown_maybe};
use crate::engine::stuck::Stuck;
use crate::error::Error;
use crate::ident::ClientId;

/// Those that it shows too, each as it is told.
pub(super) struct Again {
    pub(super) rings: Vec<(Vec<Link>, Deadlock)>,
    pub(super) maybes: Vec<(Maybe, Deadlock)>,
    /// This client's own waits, as they were read last.
    pub(super) own: Stuck,
    pub(super) requests: u64,
    pub(super) has_gaps: bool,
    pub(super) refusal: Option<Error>,
}

/// Reads all holders first, and all waits last. `stuck` gives this client's own part as it is then.
pub(super) fn read_again(
    asked: &Asked<'_>,
    stuck: &dyn Fn() -> Stuck,
    (mut rings, maybes): (Vec<Vec<Link>>, Vec<Maybe>),
    (here, prefix): (&ClientInfo, &str),
) -> Again {
    let own = stuck();
    let mut holds = Reading::new(asked, &own);
    rings.retain(|ring| are_held(&mut holds, ring));
    let (gaps, sent, refusal) = (holds.has_gaps, holds.requests, holds.refusal.take());
    drop(holds);
    let own = stuck();
    let mut second = Reading::new(asked, &own);
    let clients: Vec<ClientId> = rings.iter().flatten().map(|link| link.wait.thread.client).collect();
    second.read_clients(&clients);
    rings.retain(|ring| are_waited_for(&mut second, ring));
    let told = |ring: Vec<Link>| {
        let deadlock = shown(&ring, &mut second, here, prefix);
        (ring, deadlock)
    };
    let rings = rings.into_iter().map(told).collect();
    let mut still = Vec::new();
    for maybe in maybes {
        let Some(first) = maybe.links.first().map(|link| &link.wait) else { continue };
        let is_there = second.wait_of(first.thread).as_ref() == Some(first);
        if is_there && maybe_ring(&mut second, first).as_ref() == Some(&maybe) {
            let deadlock = shown_maybe(&maybe, &mut second, here, prefix);
            still.push((maybe, deadlock));
        }
    }
    let (has_gaps, requests) = (gaps || second.has_gaps, sent + second.requests);
    let refusal = refusal.or_else(|| second.refusal.take());
    drop(second);
    Again { rings, maybes: still, own, requests, has_gaps, refusal }
}
