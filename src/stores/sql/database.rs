//! The pool's view of a database: how to connect, and whether a connection can be used after a request.

use std::ops::{Deref, DerefMut};

use crate::error::{ErrorKind, Result};
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Claim, Failure};
use crate::stores::sql::statement::{Args, Record, Statement};
use crate::sync::Waker;
use crate::time::Moment;

pub(super) trait Link: Send + 'static {
    fn deadline(&mut self) -> &mut Moment;

    /// Runs a statement and returns its rows. A statement without a result set returns no row if it changed
    /// nothing, else one row with one number: the insert id (MySQL), or zero.
    fn run(&mut self, statement: &Statement, args: &Args) -> Answer<Vec<Record>>;
}

pub(super) trait Database: Send + Sync + 'static {
    type Link: Link;

    /// Whether a new connection may reach another server, so that old connections are to be replaced.
    const HAS_SERVERS: bool = true;

    fn connect(&self, deadline: Moment) -> Result<Self::Link>;

    fn is_alive(&self, link: &mut Self::Link) -> bool;

    /// Whether the last answer was late. The pool then drops the connection: its server may still be busy.
    fn is_silent(&self, _link: &Self::Link) -> bool {
        false
    }

    /// Drops a connection whose last request has an unknown outcome: the server may still be busy with the
    /// request.
    fn give_up(&self, link: Self::Link) {
        drop(link);
    }

    /// Called when a server has become read-only, so that PostgreSQL's listener checks its server too.
    fn note_read_only(&self) {}

    fn listen(&self, _claim: &Claim, _waker: &Waker) -> Option<Subscription> {
        None
    }

    fn message_count(&self, _claim: &Claim) -> Option<u64> {
        None
    }

    fn close(&self) {}
}

pub(super) struct PooledLink<L> {
    pub(super) link: L,
    /// When connecting began. The server's address was looked up later, so it is not older than this moment.
    pub(super) made: Moment,
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

/// The state of a connection after a request, the worst last. After several requests the worst counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shown {
    Sound,
    ReadOnly,
    /// A request may still be running, so the connection is dropped.
    InDoubt,
}

pub(super) trait Outcome {
    fn shown(&self) -> Shown;
}

impl<T> Outcome for Answer<T> {
    fn shown(&self) -> Shown {
        match self {
            Err(Failure::Unknown(_)) => Shown::InDoubt,
            Err(Failure::Refused(error)) if error.kind() == ErrorKind::ReadOnly => Shown::ReadOnly,
            Ok(_) | Err(Failure::Refused(_)) => Shown::Sound,
        }
    }
}

impl<T> Outcome for Vec<Answer<T>> {
    fn shown(&self) -> Shown {
        self.iter().map(Outcome::shown).max().unwrap_or(Shown::Sound)
    }
}
