//! The kinds of lock on Redis, each with a module for its requests and replies.

mod counted;
mod fair;
pub(crate) mod kind;
mod mutex;
pub(crate) mod replies;
mod rw;
mod token;

use crate::inspect::Mode;
use crate::seam::{Claim, Kind, ListensFor};
use counted::CountedKind;
use kind::RedisKind;
use rw::RwKind;

pub(crate) fn of(kind: Kind) -> &'static dyn RedisKind {
    match kind {
        Kind::Mutex | Kind::Fenced => &mutex::MutexKind,
        Kind::Fair => &fair::FairKind,
        Kind::Read => &RwKind(Mode::Read),
        Kind::Write => &RwKind(Mode::Write),
        Kind::Token => &token::TokenKind,
        Kind::Semaphore => &CountedKind::Semaphore,
        Kind::Permits => &CountedKind::Permits,
        Kind::Latch => &CountedKind::Latch,
        Kind::Signal => &CountedKind::Condition,
    }
}

/// Calls `ask` with each channel that the waiter listens to. `None` if a call returns `None`.
pub(crate) fn for_each_channel<T>(claim: &Claim, ask: impl FnMut(String) -> Option<T>) -> Option<Vec<T>> {
    let kind = of(claim.kind);
    let turn = if claim.listens_for == ListensFor::Releases { None } else { kind.turn_channel(claim) };
    let releases = match (claim.listens_for, &turn) {
        (ListensFor::OwnTurn, Some(_)) => None,
        _ => kind.channel(claim),
    };
    turn.into_iter().chain(releases).map(ask).collect()
}
