//! The claim of an owner to a lock that it wants or holds.

use std::sync::Arc;
use std::time::Duration;

use crate::ident::{LockName, Owner};
use crate::inspect::Location;
use crate::seam::failure::Answer;
use crate::seam::kind::Kind;
use crate::sync::at_once;
use crate::time::Moment;

#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) kind: Kind,
    pub(crate) name: Arc<LockName>,
    pub(crate) owner: Owner,
    /// Whole milliseconds, at least one.
    pub(crate) lease: Duration,
    /// The lock's home node, by [`HomeNodes::home`](super::capabilities::HomeNodes::home).
    pub(crate) home: u32,
    /// Whether the owner keeps asking while the lock is busy: a store with a queue gives it a place.
    pub(crate) waits: bool,
    pub(crate) queue_mode: QueueMode,
    /// The messages that wake a waiter under this claim, as the last answer said.
    pub(crate) listens_for: ListensFor,
    /// Whether the owner stands for election. The queue of an election has three places: answers make further
    /// candidates listen for [`Nothing`](ListensFor::Nothing).
    pub(crate) leads: bool,
    /// For read-write locks: waiting writers go before new readers. A writer with this option announces
    /// itself; a reader with it looks for such writers.
    pub(crate) writers_first: bool,
    /// How long the caller has waited, for read-write locks and permits: zero at its first attempt. The
    /// maximum for a thread that already reads, so that no writer goes before its further reads.
    pub(crate) waited: Duration,
    pub(crate) units: u32,
    /// The note that the store may show to people. The store does not act on it.
    pub(crate) note: Option<HoldNote>,
    /// The number of levels, for renewals: a renewal restores this count on a server that lost the hold.
    pub(crate) levels: u32,
    pub(crate) wants_fence: bool,
    /// Whether the client caches the hold until a recall, on stores that
    /// [can](super::capabilities::HoldCaching).
    pub(crate) caches: bool,
    /// Whether waiters send recalls to this hold, so that it learns of them. The hold's owner number is not
    /// used again: otherwise a late request could make waiters send recalls to another hold.
    pub(crate) hears: bool,
    /// Whether the lock is known to have been granted. If not, a clean-up must also prevent a later grant.
    pub(crate) is_granted: bool,
}

impl Claim {
    pub(crate) fn new(kind: Kind, name: &Arc<LockName>, owner: Owner, lease: Duration) -> Claim {
        Claim {
            kind,
            name: Arc::clone(name),
            owner,
            lease,
            home: 0,
            waits: false,
            queue_mode: QueueMode::Barges,
            listens_for: ListensFor::Releases,
            leads: false,
            writers_first: false,
            waited: Duration::ZERO,
            units: 1,
            note: None,
            levels: 1,
            wants_fence: false,
            caches: false,
            hears: false,
            is_granted: false,
        }
    }

    #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite", leasehold_shuttle))]
    pub(crate) fn by_own_turn(&self) -> Claim {
        Claim { listens_for: ListensFor::OwnTurn, ..self.clone() }
    }

    /// Whether the store may have keys that the release of a group leaves, beside the owner's key.
    pub(crate) fn has_more(&self) -> bool {
        self.note.is_some() || self.caches || self.hears
    }

    /// The claim of the hold that was granted under this claim, and no longer waits.
    pub(crate) fn of_hold(self) -> Claim {
        Claim {
            waits: false,
            queue_mode: QueueMode::Barges,
            listens_for: ListensFor::Releases,
            writers_first: false,
            waited: Duration::ZERO,
            levels: 1,
            wants_fence: false,
            is_granted: true,
            ..self
        }
    }
}

/// Asks about many claims: those with the same key together, each group at the same time as the others. A
/// claim without a key, and one whose group's thread panicked, gets no answer.
pub(crate) fn ask_groups<K: PartialEq + Sync, T: Send>(
    claims: &[Claim],
    keys: &[Option<K>],
    ask: impl Fn(&K, &[Claim]) -> Vec<Answer<T>> + Sync,
) -> Vec<Option<Answer<T>>> {
    let mut groups: Vec<(&K, Vec<usize>, Vec<Claim>)> = Vec::new();
    for (at, (claim, key)) in claims.iter().zip(keys).enumerate() {
        let Some(key) = key else { continue };
        let place = groups.iter().position(|(other, ..)| *other == key).unwrap_or(groups.len());
        if place == groups.len() {
            groups.push((key, Vec::new(), Vec::new()));
        }
        if let Some((_, places, theirs)) = groups.get_mut(place) {
            places.push(at);
            theirs.push(claim.clone());
        }
    }
    let asked = at_once(&groups, |(key, _, theirs)| ask(key, theirs));
    let mut answers: Vec<Option<Answer<T>>> = claims.iter().map(|_| None).collect();
    for ((_, places, _), asked) in groups.iter().zip(asked) {
        for (at, answer) in places.iter().zip(asked.unwrap_or_default()) {
            if let Some(place) = answers.get_mut(*at) {
                *place = Some(answer);
            }
        }
    }
    answers
}

/// How an attempt treats the queue of waiting clients. All threads of a client have one place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueMode {
    /// Takes a free lock even if it is reserved.
    Barges,
    /// Leaves a reserved lock alone, and does not join the queue.
    Yields,
    /// Leaves a reserved lock alone, and joins the queue.
    Waits,
    /// As `Waits`, for a client that may already be in the queue.
    InWaitQueue,
    /// A message says that the client is next. If another has the lock, this client becomes first again.
    IsNext,
}

/// A waiter asks at a random time between these after the holder's lease ends, so that not all ask at once.
pub(crate) const AFTER_LEASE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(200));
/// As [`AFTER_LEASE`], but for a waiter's attempt after the end of a reservation.
pub(crate) const AFTER_RESERVATION: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(20));

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ListensFor {
    /// Each release of the lock; the only messages of a store without a queue.
    Releases,
    /// A message that this client is next in the queue; the default until an answer says otherwise.
    #[default]
    OwnTurn,
    /// Both of the above: the holder's release does not notify the queue.
    OwnTurnAndReleases,
    /// Nothing: the queue of an election is full, and this candidate is not in it.
    Nothing,
}

/// The latest end of a hold, whatever renews it, and the place of its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HoldNote {
    pub(crate) max_hold: Duration,
    pub(crate) place: Arc<Location>,
}

/// The end of a hold that cannot outlive something else in the store, such as a session.
pub(crate) trait Bound: std::fmt::Debug + Send + Sync {
    /// The moment at which the hold ends. Signs of life move the moment on, until it has passed.
    fn until(&self) -> Moment;

    /// Whether the store has said that the hold is gone.
    fn is_gone(&self) -> bool {
        false
    }
}
