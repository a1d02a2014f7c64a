//! A connection of a pool, how long it is used, and what a request showed of it.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::error::ErrorKind;
use crate::seam::{Answer, Failure};
use crate::time::Moment;

/// How long a connection is used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// From its making on; a time between these two, so that connections that were made together do not end
    /// together. It bounds how long a changed address, a revoked password, or settings of the server before
    /// they were changed stay in use where nothing else shows the change.
    pub(super) age: (Duration, Duration),
    /// Without a request. Address translation and load balancers forget a connection that is idle for four
    /// minutes and more, without a word to either end. The bound also limits what an idle client costs the
    /// server.
    pub(super) idle: Duration,
}

pub(super) const LIMITS: Limits = Limits {
    age: (Duration::from_secs(27 * 60), Duration::from_secs(30 * 60)),
    idle: Duration::from_secs(3 * 60),
};

/// A connection, and since when it is there.
pub(super) struct PooledLink<L> {
    pub(super) link: L,
    /// When its making began: what it leads to was looked up after that.
    pub(super) made: Moment,
    /// From then on another is to take its place.
    pub(super) replace_at: Moment,
    pub(super) used: Moment,
}

impl<L> Deref for PooledLink<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.link
    }
}

impl<L> DerefMut for PooledLink<L> {
    fn deref_mut(&mut self) -> &mut L {
        &mut self.link
    }
}

/// The state of its connection that a request showed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Sound,
    /// A failed request may still be on its way: the connection is dropped, never reused.
    InDoubt,
    ReadOnly,
}

impl Shown {
    pub(super) fn by<T>(outcome: &Answer<T>) -> Shown {
        match outcome {
            Err(Failure::Unknown(_)) => Shown::InDoubt,
            Err(Failure::Refused(error)) if error.kind() == ErrorKind::ReadOnly => Shown::ReadOnly,
            Ok(_) | Err(Failure::Refused(_)) => Shown::Sound,
        }
    }

    pub(super) fn by_all<T>(outcomes: &[Answer<T>]) -> Shown {
        let is = |shown| outcomes.iter().any(|outcome| Shown::by(outcome) == shown);
        if is(Shown::InDoubt) {
            Shown::InDoubt
        } else if is(Shown::ReadOnly) {
            Shown::ReadOnly
        } else {
            Shown::Sound
        }
    }
}
