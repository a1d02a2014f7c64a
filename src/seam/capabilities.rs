//! The optional parts of a store.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::ident::{FencingToken, LockName};
use crate::park::ServiceWaker;
use crate::seam::Store;
use crate::seam::answer::{Attempt, Pending, Release, ready};
use crate::seam::claim::{Bound, Claim};
use crate::seam::directory::Directory;
use crate::seam::failure::Answer;
use crate::seam::kind::Kind;
use crate::seam::subscription::Subscription;
use crate::sync::Waker;
use crate::time::Moment;

/// The optional parts that a store has. They do not change, so [`OpenStore`] reads them once.
#[derive(Clone)]
pub(crate) struct Capabilities {
    /// Whether the store sends messages about other clients' releases. Without messages, waiters poll.
    pub(crate) wakes: bool,
    pub(crate) can_expire_in: bool,
    /// Whether a busy attempt (of a fair lock, a condition) joins a queue of waiters in the store, in order
    /// of arrival. Repeated attempts keep the place. Each local waiter sends attempts of its own, and the
    /// engine [cleans up](super::Store::clean_up) the claim of a waiter that gives up.
    pub(crate) queues: fn(Kind) -> bool,
    /// Whether a request of unknown outcome can leave data that stays after its lease. The engine then
    /// repeats the clean-up until the store answers.
    pub(crate) outlasts_leases: bool,
    /// Maximum number of claims of this kind in one request of `clean_up`.
    pub(crate) cleaned_up_at_a_time: fn(Kind) -> u32,
    /// Shortest and longest time between two polls of a waiter; each wait draws a random time.
    pub(crate) poll_every: fn(Kind) -> (Duration, Duration),
    pub(crate) homes: Option<Arc<dyn HomeNodes>>,
    pub(crate) batches: Option<Arc<dyn Batches>>,
    pub(crate) majority: Option<Arc<dyn Majority>>,
    pub(crate) sessions: Option<Arc<dyn Sessions>>,
    pub(crate) connections: Option<Arc<dyn ConnectionWatch>>,
    pub(crate) sweeping: Option<Arc<dyn Sweeping>>,
    pub(crate) wait_queues: Option<Arc<dyn WaitQueues>>,
    pub(crate) hold_caching: Option<Arc<dyn HoldCaching>>,
    pub(crate) directory: Option<Arc<dyn Directory>>,
    pub(crate) table: Option<TableInUse>,
    /// The store itself, for callers (in `client`) that downcast it to its own type.
    pub(crate) itself: Option<Arc<dyn Any + Send + Sync>>,
}

/// Time between polls of waiters that also get messages. A waiter whose message was lost waits this long.
pub(crate) const SAFETY_POLL: (Duration, Duration) =
    (Duration::from_millis(1_000), Duration::from_millis(1_200));

pub(crate) const PLAIN_POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(100));

impl Default for Capabilities {
    /// A store that sends messages for all kinds but token locks, and has no optional part.
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
            table: None,
            itself: None,
        }
    }
}

impl Capabilities {
    /// Whether a connection was closed: as [`ConnectionWatch::hung_up`]; `None` also without `connections`.
    pub(crate) fn hung_up(&self) -> Option<bool> {
        self.connections.as_ref()?.hung_up()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableInUse {
    pub(crate) name: String,
    /// Tables of this name in other schemas or letter case; clients that use them do not exclude this client.
    pub(crate) others: Vec<String>,
}

pub(crate) trait HomeNodes: Send + Sync {
    fn home(&self, name: &LockName) -> u32;
}

/// Requests whose answers can be read later, so that a caller can send to several stores at the same time,
/// and requests for several locks at once.
pub(crate) trait Batches: Send + Sync {
    fn begin_attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Box<dyn Pending<Attempt>>;

    fn begin_release(&self, claim: &Claim, left: u32, deadline: Moment) -> Box<dyn Pending<Release>>;

    /// Locks with the same number can share a request. `None`: this lock needs its own. No I/O.
    fn group(&self, kind: Kind, name: &LockName) -> Option<u32>;

    /// Sends one request for locks of one [`group`](Self::group), each with count one and a new owner. The
    /// store grants them in order until one is busy; with `or_none`, all or none. Returns one element, the
    /// token if wanted, for each granted lock.
    fn begin_attempts(
        &self,
        claims: &[Claim],
        or_none: bool,
        deadline: Moment,
    ) -> Box<dyn Pending<Vec<Option<FencingToken>>>>;

    /// One answer per claim, in order.
    fn begin_releases(&self, claims: &[Claim], deadline: Moment) -> Box<dyn Pending<Vec<Release>>>;
}

/// A store in which a majority of several servers decides, such as Redlock.
pub(crate) trait Majority: Send + Sync {
    /// Owner numbers (of `client:number`) below the result must not be used for new holds: some servers have
    /// answered, but a late request under such a number may still reach another server.
    fn first_unspent_number(&self) -> u64;

    /// Notes that a hold ended while its renewal was under way. The renewal may have restored the hold on a
    /// server after the release, so the store must remove the hold again.
    fn ended_meanwhile(&self, claim: &Claim);

    /// How long a waiter that was granted the lock by too few servers must not ask again, even if messages
    /// arrive, so that other clients get the lock. `None`: no pause, as for calls that make only one attempt.
    fn held_off(&self, claim: &Claim) -> Option<Duration>;

    /// Whether several owners each hold the lock on some servers, and none on a majority. All of them were
    /// refused, and each retries after a random time within [`SPLIT_PAUSE`].
    fn is_split(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool>;
}

/// Shortest and longest pause of a Redlock caller that was granted the lock by too few servers.
pub(crate) const SPLIT_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// A store whose holds can end before their lease, for example with a session.
pub(crate) trait Sessions: Send + Sync {
    /// Registers the engine's timer thread, which the store wakes when a [`Bound`] has ended, or may have.
    fn attach(&self, timer: ServiceWaker);

    /// The reason, besides the lease, for which this granted hold can end, such as a session. Called once for
    /// each grant.
    fn bound(&self, claim: &Claim) -> Option<Arc<dyn Bound>>;
}

pub(crate) trait ConnectionWatch: Send + Sync {
    /// Whether a connection was closed since the last call, so that the server may have lost this client's
    /// holds; `None`: unknown. Called often while anything is held; does not wait.
    fn hung_up(&self) -> Option<bool>;
}

pub(crate) trait Sweeping: Send + Sync {
    /// Removes some rows or keys of locks that have been free for longer than `age`; returns how many.
    fn sweep(&self, age: Duration, deadline: Moment) -> Answer<u64>;

    /// Describes what prevents the removal of old row versions, such as a transaction older than `age`.
    fn old_versions(&self, age: Duration, deadline: Moment) -> Answer<Vec<String>>;
}

/// A store with a wait queue: a release notifies the first waiting client.
pub(crate) trait WaitQueues: Send + Sync {
    /// Whether the server refuses this client the right to notify the queue. Then the owners of later holds
    /// contain [another client id](crate::ident::ClientId::without_queue), which shows the refusal to others.
    fn is_refused(&self) -> bool {
        false
    }

    /// Removes the claim's client from the lock's queue, and passes on its reservation. The request arrives
    /// before this client's later requests about the lock. Waits for the answer only if that order needs it.
    fn leave_wait_queue(&self, claim: &Claim, deadline: Moment);

    /// Ends this client's subscription to releases of the lock, once no thread here listens. Does not wait.
    fn end_release_watch(&self, claim: &Claim) {
        let _ = claim;
    }
}

/// A store in which a holder learns of waiters: by messages that ask for the lock (recalls), or by a check.
pub(crate) trait HoldCaching: Send + Sync {
    /// Whether this store supports caching. If not, holders can only learn that others wait.
    fn caches(&self) -> bool {
        true
    }

    /// Wakes `waker` when other clients want this lock, which this client caches or [`hears`](Claim::hears).
    /// `None`: the store cannot listen, or has stopped.
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription>;

    /// Asks for each claim whether other clients want the lock; one answer per claim, in order. For a claim
    /// that [`hears`](Claim::hears), also makes the next waiter send a recall; otherwise only reads.
    fn check_holds(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<CachedCheck>>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CachedCheck {
    Stays,
    /// Other clients want the lock; for a cached hold also if the store cannot tell.
    Wanted,
    /// For a hold that [hears](Claim::hears): the mark that asks waiters for a recall was missing, so the
    /// store set it. After the first check, this means that a waiter sent a recall and removed the mark.
    Unmarked,
    Lost,
}

/// A store and its capabilities, which do not change.
pub(crate) struct OpenStore {
    store: Arc<dyn Store>,
    pub(crate) capabilities: Capabilities,
}

impl From<Arc<dyn Store>> for OpenStore {
    fn from(store: Arc<dyn Store>) -> OpenStore {
        OpenStore { capabilities: Arc::clone(&store).capabilities(), store }
    }
}

impl Deref for OpenStore {
    type Target = dyn Store;

    fn deref(&self) -> &(dyn Store + 'static) {
        &*self.store
    }
}

impl OpenStore {
    pub(crate) fn downcast<T: 'static>(&self) -> Option<&T> {
        self.capabilities.itself.as_ref()?.downcast_ref()
    }

    /// Sends an attempt without waiting, if the store supports [`Batches`]; otherwise waits for the answer.
    pub(crate) fn begin_attempt(
        &self,
        claim: &Claim,
        count: u32,
        deadline: Moment,
    ) -> Box<dyn Pending<Attempt>> {
        match &self.capabilities.batches {
            Some(batches) => batches.begin_attempt(claim, count, deadline),
            None => ready(self.attempt(claim, count, deadline)),
        }
    }

    pub(crate) fn begin_release(
        &self,
        claim: &Claim,
        left: u32,
        deadline: Moment,
    ) -> Box<dyn Pending<Release>> {
        match &self.capabilities.batches {
            Some(batches) => batches.begin_release(claim, left, deadline),
            None => ready(self.release(claim, left, deadline)),
        }
    }
}

pub(crate) fn any_hung_up<'a>(stores: impl Iterator<Item = &'a Capabilities>) -> Option<bool> {
    stores.map(Capabilities::hung_up).fold(None, |any, one| any.max(one))
}
