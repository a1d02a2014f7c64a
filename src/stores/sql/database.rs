//! How a database is connected to, how long a connection is used, and what a request showed of it.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::error::{ErrorKind, Result};
use crate::seam::{Answer, Failure};
use crate::time::Moment;

/// How a database is connected to.
pub(super) trait Database: Send + Sync + 'static {
    type Link: Send + 'static;

    /// Whether a new connection may lead to another server. A file stays the same, however old its
    /// connections are.
    const HAS_SERVERS: bool = true;

    fn connect(&self, deadline: Moment) -> Result<Self::Link>;

    /// Whether a request over any connection ends within `span`, by its deadline or by the driver's
    /// time-outs.
    fn ends_within(&self, span: Duration) -> bool {
        let _ = span;
        true
    }

    /// A connection for requests that have as little time as this one, which ends by `deadline`.
    fn connect_briefly(&self, deadline: Moment) -> Result<Self::Link> {
        self.connect(deadline)
    }

    /// Whether a question and a request over such a connection end within `span`.
    fn is_brief(&self, link: &Self::Link, span: Duration) -> bool {
        let _ = (link, span);
        true
    }

    /// Whether a connection that lay idle still stands, as far as can be known without asking the server.
    fn is_alive(&self, link: &mut Self::Link) -> bool;

    /// Whether an answer over the connection did not come in time, whatever became of the request that waited
    /// for it. Such a connection is not used again.
    fn is_silent(&self, _link: &Self::Link) -> bool {
        false
    }

    /// Ends a connection over which a request is in doubt. The server may go on with that request for a long
    /// time, and keep the session for it.
    fn give_up(&self, link: Self::Link);

    /// The server was found to take no writes any more: connections outside the pool are to look too.
    fn note_read_only(&self) {}
}

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
