//! The claim of an owner on a lock: asked for, or held.

use std::sync::Arc;
use std::time::Duration;

use crate::ident::{LockName, Owner};
use crate::inspect::Location;
use crate::seam::kind::Kind;
use crate::time::Moment;

/// An owner that wants or holds a lock, and the lease for each time.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) kind: Kind,
    pub(crate) name: Arc<LockName>,
    pub(crate) owner: Owner,
    /// Whole milliseconds, at least one.
    pub(crate) lease: Duration,
    /// The place where the store keeps it, as [`Homes::home`](super::capabilities::Homes::home) said when
    /// this was first asked for.
    pub(crate) home: u32,
    /// Whether the owner goes on asking while others come first: a store that queues gives it a place.
    pub(crate) waits: bool,
    /// How it goes by the line of waiting clients, where the store keeps one for the lock.
    pub(crate) turn: Turn,
    /// The messages that a waiter under this claim listens for, as the last answer said.
    pub(crate) listens_for: ListensFor,
    /// Of a read-write lock: whether a writer that waits comes before readers that do not read yet. A writer
    /// then says that it waits, and a reader looks whether one does.
    pub(crate) writers_first: bool,
    /// How many permits; one for locks.
    pub(crate) units: u32,
    /// Information on the hold that the store may show to people. The store ends nothing by it.
    pub(crate) note: Option<HoldNote>,
    /// How many levels the owner has in it, where it is to be renewed: a server that has lost it is told this
    /// number.
    pub(crate) levels: u32,
    /// Whether a grant is to carry a new fencing token.
    pub(crate) wants_fence: bool,
    /// Whether its client keeps the hold until others ask for it. A store that [can](super::capabilities::Keeping)
    /// has those who wait send a recall.
    pub(crate) keeps: bool,
    /// Whether it is known to have been granted. A claim cleaned up before that must not be granted later
    /// either.
    pub(crate) is_granted: bool,
}

impl Claim {
    /// A claim to one of it that does not wait.
    pub(crate) fn new(kind: Kind, name: &Arc<LockName>, owner: Owner, lease: Duration) -> Claim {
        Claim {
            kind,
            name: Arc::clone(name),
            owner,
            lease,
            home: 0,
            waits: false,
            turn: Turn::Barges,
            listens_for: ListensFor::Releases,
            writers_first: false,
            units: 1,
            note: None,
            levels: 1,
            wants_fence: false,
            keeps: false,
            is_granted: false,
        }
    }

    /// The same, listening for its client's own turn.
    pub(crate) fn by_own_turn(&self) -> Claim {
        Claim { listens_for: ListensFor::OwnTurn, ..self.clone() }
    }

    /// Whether the store may keep more of the hold than its owner: a request for several locks does not see to
    /// that.
    pub(crate) fn has_more(&self) -> bool {
        self.note.is_some() || self.keeps
    }

    /// The claim to what was granted under this one: nobody waits under it.
    pub(crate) fn of_hold(self) -> Claim {
        Claim {
            waits: false,
            turn: Turn::Barges,
            listens_for: ListensFor::Releases,
            writers_first: false,
            levels: 1,
            wants_fence: false,
            is_granted: true,
            ..self
        }
    }
}

/// How an attempt goes by a lock's line of waiting clients. A client stands in it once, however many of its
/// threads wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Takes a free lock, whomever it is kept for.
    Barges,
    /// Leaves a free lock to the client that it is kept for, and does not join the line.
    Yields,
    /// The same, and joins the line.
    Waits,
    /// The same; its client may stand in the line already.
    StandsInLine,
    /// Its client was told that it is next. If another has the lock all the same, it is first in the line
    /// again.
    IsNext,
}

/// A waiter in line asks a random time between these two after the holder's lease ends, so that not all ask at
/// once.
pub(crate) const AFTER_LEASE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(200));
/// The same, after a free lock has stopped being kept for another client.
pub(crate) const AFTER_KEPT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(20));

/// The messages that wake a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ListensFor {
    /// Each release of the lock; all that there is where a store keeps no line.
    Releases,
    /// That its client is next in the line: until an answer says another.
    #[default]
    OwnTurn,
    /// Both: the holder's release tells nobody in the line.
    OwnTurnAndReleases,
}

/// A hold's own description: after how long it ends however it is renewed, and where its owner is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HoldNote {
    pub(crate) max_hold: Duration,
    pub(crate) place: Arc<Location>,
}

/// How long a hold can be counted on that lives no longer than something of the store's own, such as a
/// session.
pub(crate) trait Bound: std::fmt::Debug + Send + Sync {
    /// Signs of life move it on; what has ended stays in the past.
    fn until(&self) -> Moment;

    /// The store has said that the hold is gone; then it ends at once.
    fn is_gone(&self) -> bool {
        false
    }
}
