//! The kinds of lock on Redis, each in a module: its requests, and what their replies mean.

mod condition;
mod counter;
mod fair;
pub(crate) mod kind;
mod latch;
mod mutex;
mod permits;
pub(crate) mod replies;
mod rw;
mod semaphore;
pub(crate) mod several;
mod token;

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
use crate::seam::{Claim, Kind, ListensFor};
use kind::RedisKind;

/// The module of a kind.
pub(crate) fn of(kind: Kind) -> &'static dyn RedisKind {
    match kind {
        Kind::Mutex | Kind::Fenced => &mutex::MutexKind,
        Kind::Fair => &fair::FairKind,
        Kind::Read => &rw::RwHalf::Read,
        Kind::Write => &rw::RwHalf::Write,
        Kind::Token => &token::TokenKind,
        Kind::Semaphore => &semaphore::SemaphoreKind,
        Kind::Permits => &permits::PermitsKind,
        Kind::Latch => &latch::LatchKind,
        Kind::Signal => &condition::ConditionKind,
    }
}

/// The channels that a waiter under this claim listens to.
pub(crate) fn channels(claim: &Claim) -> Vec<String> {
    let kind = of(claim.kind);
    let turn = if claim.listens_for == ListensFor::Releases { None } else { kind.turn_channel(claim) };
    let releases = match (claim.listens_for, &turn) {
        (ListensFor::OwnTurn, Some(_)) => None,
        _ => kind.channel(claim),
    };
    turn.into_iter().chain(releases).collect()
}

/// [`RedisKind::queues`], for the capabilities of a store.
pub(crate) fn queues(kind: Kind) -> bool {
    of(kind).queues()
}

/// [`RedisKind::poll_every`], for the capabilities of a store.
pub(crate) fn poll_every(kind: Kind) -> (Duration, Duration) {
    of(kind).poll_every()
}

/// Refuses a kind that needs scripts where they may not be used.
pub(crate) fn check_scripts(may_use_scripts: bool, kind: Kind, name: &LockName) -> Result<()> {
    if may_use_scripts || !of(kind).needs_scripts() {
        return Ok(());
    }
    let words = "this client is set not to use scripts, which all but token locks need";
    Err(Error::new(ErrorKind::Unsupported, "lock", words).on(name.given()))
}
