//! A claim: who wants or holds which lock, and how. Each request to a store carries one.

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
    /// A whole number of milliseconds, at least one.
    pub(crate) lease: Duration,
    /// The ring's node to which the name belongs ([`home`](super::capabilities::HomeNodes::home)), else zero.
    pub(crate) home: u32,
    /// Whether the owner waits if the lock is busy. A store with a queue then gives the owner a place.
    pub(crate) waits: bool,
    pub(crate) queue_mode: QueueMode,
    /// The messages that this waiter listens for, as the store's last answer said.
    pub(crate) listens_for: ListensFor,
    /// Whether the owner is a candidate in an election. An election's queue has room for three, so that a
    /// fleet sends few requests; further candidates listen for [`Nothing`](ListensFor::Nothing).
    pub(crate) leads: bool,
    /// For read-write locks: waiting writers go before new readers. A writer with this option registers in
    /// the store that it waits; a reader with this option lets registered writers go first.
    pub(crate) writers_first: bool,
    /// How long the caller has waited; decides the place in the queue of read-write locks and permits.
    /// `Duration::MAX` for a thread that already reads: its further reads do not queue behind a writer.
    pub(crate) waited: Duration,
    /// How many permits the owner wants.
    pub(crate) units: u32,
    /// Facts about the hold that the store shows to people. They do not change what the store does.
    pub(crate) note: Option<HoldNote>,
    /// The hold count, for renewals: Redlock restores it on a server that lost the hold.
    pub(crate) levels: u32,
    pub(crate) wants_fence: bool,
    /// Whether the client caches the hold when its last level ends, until another client's waiter recalls it
    /// (see [`HoldCaching`](super::capabilities::HoldCaching)).
    pub(crate) caches: bool,
    /// Whether the holder wants to learn of waiters, by their recalls. Its owner number is then not reused: a
    /// late request under the number could make waiters send recalls to a later hold.
    pub(crate) hears: bool,
    /// Whether the client has read the grant. If not, a clean-up must also prevent a late grant.
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

    /// Whether the store may have notes about this hold. Its release then is a request of its own.
    pub(crate) fn has_notes(&self) -> bool {
        self.note.is_some() || self.caches || self.hears
    }

    /// The claim of the hold that was granted to this waiter.
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

/// Groups the claims by key, calls `ask` for all groups at the same time, and returns the answers in the
/// order of the claims. `None`: the claim has no key, or the thread of its group panicked.
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

/// How an attempt treats the wait queue, where each client has one place for all its threads. A release
/// reserves the lock for the first client for some ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueMode {
    /// Takes a free lock even if it is reserved for another client.
    Barges,
    /// Does not take a lock that is reserved for another client, and does not join the queue.
    Yields,
    /// As `Yields`, but joins the queue if the lock is not granted.
    Waits,
    /// As `Waits`, for a client that may already have a place in the queue.
    InWaitQueue,
    /// The client received the message that it is next. If another client has the lock nevertheless, the
    /// store puts this client back to the front of the queue.
    IsNext,
}

/// How long after the end of the holder's lease a waiter asks: random, so that not all ask at once.
pub(crate) const AFTER_LEASE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(200));
/// How long after the end of a reservation a waiter asks, at random too.
pub(crate) const AFTER_RESERVATION: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(20));

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ListensFor {
    /// A message for each release of the lock. A store without a queue sends no others.
    Releases,
    /// The message that this client is next in the queue. A waiter assumes this until the first answer.
    #[default]
    OwnTurn,
    /// Both of the above, because the holder's release perhaps does not notify the queue.
    OwnTurnAndReleases,
    /// No messages: the queue of an election is full, and this candidate has no place.
    Nothing,
}

/// The maximum duration of a hold, and where its owner runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HoldNote {
    pub(crate) max_hold: Duration,
    pub(crate) place: Arc<Location>,
}

/// Something besides the lease that ends a hold, such as a session.
pub(crate) trait Bound: std::fmt::Debug + Send + Sync {
    /// When the hold ends. Answers of the server move this moment forward, but never once it has passed.
    fn until(&self) -> Moment;

    /// Whether the store has said that the hold is gone.
    fn is_gone(&self) -> bool {
        false
    }
}
