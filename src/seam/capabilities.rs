//! The optional parts of a store.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::ident::{FencingToken, LockName};
use crate::park::ServiceWaker;
use crate::seam::Store;
use crate::seam::answer::{Attempt, Pending, Release, ready};
use crate::seam::claim::{Bound, Claim};
use crate::seam::directory::{Directory, Listing};
use crate::seam::failure::Answer;
use crate::seam::kind::Kind;
use crate::seam::subscription::Subscription;
use crate::sync::Waker;
use crate::time::Moment;

#[derive(Clone, Copy)]
pub(crate) struct Capabilities<'a> {
    /// Whether releases by other clients wake this client's waiters; otherwise waiters poll.
    pub(crate) wakes: bool,
    /// [`expire_in`](super::Store::expire_in) works.
    pub(crate) can_expire_in: bool,
    /// Whether a busy attempt of this kind joins a queue in the store. Then each waiter asks for itself, so
    /// that the store's order is that of arrival; repeated attempts keep the place; and the engine [cleans
    /// up](super::Store::clean_up) the claim of a waiter that gives up.
    pub(crate) queues: fn(Kind) -> bool,
    /// Whether a request in doubt can leave something in the store that outlasts its lease. Its clean-up must
    /// then be repeated until the store answers.
    pub(crate) outlasts_leases: bool,
    pub(crate) cleaned_up_at_a_time: fn(Kind) -> u32,
    /// Shortest and longest sleep of a waiter that no message wakes; each wait draws a random time.
    pub(crate) poll_every: fn(Kind) -> (Duration, Duration),
    pub(crate) homes: Option<&'a dyn HomeNodes>,
    pub(crate) batches: Option<&'a dyn Batches>,
    pub(crate) majority: Option<&'a dyn Majority>,
    pub(crate) sessions: Option<&'a dyn Sessions>,
    pub(crate) connections: Option<&'a dyn ConnectionWatch>,
    pub(crate) sweeping: Option<&'a dyn Sweeping>,
    pub(crate) wait_queues: Option<&'a dyn WaitQueues>,
    pub(crate) hold_caching: Option<&'a dyn HoldCaching>,
    pub(crate) directory: Option<&'a dyn Directory>,
    pub(crate) listing: Option<&'a dyn Listing>,
    pub(crate) table: Option<&'a TableInUse>,
    /// For questions that only one kind of store can answer.
    pub(crate) itself: Option<&'a (dyn Any + Send + Sync)>,
}

/// How often waiters poll although messages wake them: bounds the delay after a lost message.
pub(crate) const SAFETY_POLL: (Duration, Duration) =
    (Duration::from_millis(1_000), Duration::from_millis(1_200));

pub(crate) const PLAIN_POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(100));

impl Default for Capabilities<'_> {
    /// A store that wakes its waiters except for token locks, and has no queue and no optional part.
    fn default() -> Self {
        Capabilities {
            wakes: true,
            can_expire_in: false,
            queues: |_| false,
            outlasts_leases: false,
            cleaned_up_at_a_time: |_| 1,
            poll_every: |kind| if kind.is_token() { PLAIN_POLL } else { SAFETY_POLL },
            homes: None,
            batches: None,
            majority: None,
            sessions: None,
            connections: None,
            sweeping: None,
            wait_queues: None,
            hold_caching: None,
            directory: None,
            listing: None,
            table: None,
            itself: None,
        }
    }
}

/// A database's table of locks, by its full name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableInUse {
    pub(crate) name: String,
    /// Tables of the same name, in which other users of the database may keep locks.
    pub(crate) others: Vec<String>,
}

pub(crate) trait HomeNodes: Send + Sync {
    fn home(&self, name: &LockName) -> u32;
}

/// Requests whose answers are read later, so that a caller can ask several stores at the same time; and
/// requests for several locks at once.
pub(crate) trait Batches: Send + Sync {
    fn begin_attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Box<dyn Pending<Attempt>>;

    fn begin_release(&self, claim: &Claim, left: u32, deadline: Moment) -> Box<dyn Pending<Release>>;

    /// Locks with the same number can be in one request. `None`: this lock needs its own. No I/O.
    fn group(&self, kind: Kind, name: &LockName) -> Option<u32>;

    /// Asks once for locks of one [`group`](Self::group), each with count one. Grants all locks before the
    /// first that another owner holds (with `or_none` all or none), and returns their tokens. The owners must
    /// be new: they hold nothing.
    fn begin_attempts(
        &self,
        claims: &[Claim],
        or_none: bool,
        deadline: Moment,
    ) -> Box<dyn Pending<Vec<Option<FencingToken>>>>;

    /// One answer per claim, in order.
    fn begin_releases(&self, claims: &[Claim], deadline: Moment) -> Box<dyn Pending<Vec<Release>>>;
}

/// A store of several servers that need not agree (Redlock).
pub(crate) trait Majority: Send + Sync {
    /// No later hold may use owner numbers below this. A late request under such a number may still arrive,
    /// although all answers were `Ok`.
    fn first_unspent_number(&self) -> u64;

    /// A hold ended during a renewal. The renewal must not restore it on a server; a server that already
    /// restored it must forget it.
    fn ended_meanwhile(&self, claim: &Claim);

    /// For how long a refused waiter must not ask again, whatever messages arrive, because other clients want
    /// the lock too. A call that makes only one attempt is not delayed.
    fn held_off(&self, claim: &Claim) -> Option<Duration>;

    /// Whether several owners have parts of a lock, so that none can hold it and all may have been refused.
    /// The caller retries after a random part of [`SPLIT_PAUSE`].
    fn is_split(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool>;
}

/// A Redlock caller that got too few servers pauses for a random time between these two.
pub(crate) const SPLIT_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// A store whose holds end with something of its own, such as a session.
pub(crate) trait Sessions: Send + Sync {
    /// Wakes `timer` when a [`Bound`] has ended, or holds may be gone.
    fn attach(&self, timer: ServiceWaker);

    /// The end of a granted hold besides its lease, if there is one. Called once for each grant.
    fn bound(&self, claim: &Claim) -> Option<Arc<dyn Bound>>;
}

pub(crate) trait ConnectionWatch: Send + Sync {
    /// Whether a connection was closed since the last call: the server may have lost everything, which a
    /// renewal finds out. `None`: unknown to this store. Called often while anything is held; does not wait.
    fn hung_up(&self) -> Option<bool>;
}

pub(crate) trait Sweeping: Send + Sync {
    /// Removes some entries of locks that have been free for longer than `age`; returns how many.
    fn sweep(&self, age: Duration, deadline: Moment) -> Answer<u64>;

    /// Why the database keeps old versions of rows, in words, such as transactions that are open for longer
    /// than `age`.
    fn old_versions(&self, age: Duration, deadline: Moment) -> Answer<Vec<String>>;
}

/// A store that queues the clients that wait for a lock, and notifies the first when the lock is free.
pub(crate) trait WaitQueues: Send + Sync {
    /// Whether the server forbade a release to notify the queue; later holds have an id that says so. No I/O.
    fn is_refused(&self) -> bool;

    /// Removes the claim's client from the lock's queue; a reservation for it passes on. Keeps the order of
    /// the client's requests about the lock, and waits only where that order needs it.
    fn leave_wait_queue(&self, claim: &Claim, deadline: Moment);

    /// Ends the subscription to the releases of the claim's lock once no thread here listens. Does not wait.
    fn end_release_watch(&self, claim: &Claim) {
        let _ = claim;
    }
}

/// A store in which a lock's holder learns of waiters: they send a recall, or a check sees them.
pub(crate) trait HoldCaching: Send + Sync {
    /// Whether this store allows cached holds. Otherwise it only tells holders of waiters.
    fn caches(&self) -> bool {
        true
    }

    /// Wakes `waker` when others want a lock that the claim's client caches or [hears](Claim::hears) about.
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription>;

    /// Asks for each claim whether others want the lock; one answer per claim, in order. Changes nothing for
    /// a claim that [`caches`](Claim::caches), so a late check harms no later hold. For a claim that
    /// [`hears`](Claim::hears), also makes the next waiter send a recall.
    fn check_holds(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<CachedCheck>>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CachedCheck {
    Stays,
    /// Others want the lock. For a cached hold also: the store cannot see whether others want it.
    Wanted,
    /// For a hold that [hears](Claim::hears): the store sees no other client, but the mark that makes waiters
    /// send a recall was missing, and is now set. After the first check this means that a waiter sent a
    /// recall and removed the mark.
    Unmarked,
    Lost,
}

/// Sends the request. A store without [`Batches`] answers it before this returns.
pub(crate) fn begin_attempt(
    store: &dyn Store,
    claim: &Claim,
    count: u32,
    deadline: Moment,
) -> Box<dyn Pending<Attempt>> {
    match store.capabilities().batches {
        Some(batches) => batches.begin_attempt(claim, count, deadline),
        None => ready(store.attempt(claim, count, deadline)),
    }
}

pub(crate) fn begin_release(
    store: &dyn Store,
    claim: &Claim,
    left: u32,
    deadline: Moment,
) -> Box<dyn Pending<Release>> {
    match store.capabilities().batches {
        Some(batches) => batches.begin_release(claim, left, deadline),
        None => ready(store.release(claim, left, deadline)),
    }
}

pub(crate) fn any_hung_up<'a>(stores: impl Iterator<Item = &'a dyn Store>) -> Option<bool> {
    let hung_up = |store: &dyn Store| store.capabilities().connections.and_then(ConnectionWatch::hung_up);
    stores.map(hung_up).fold(None, |any, one| any.max(one))
}
