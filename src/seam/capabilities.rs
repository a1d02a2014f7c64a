//! The optional parts of a store: each is a value that the store gives if it has that part.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::ident::{FencingToken, LockName};
use crate::park::ServiceWaker;
use crate::seam::answer::{Attempt, Pending, Release};
use crate::seam::claim::{Bound, Claim};
use crate::seam::directory::{Directory, Listing};
use crate::seam::failure::Answer;
use crate::seam::kind::Kind;
use crate::seam::subscription::Subscription;
use crate::sync::Waker;
use crate::time::Moment;

/// The optional abilities of a store. No I/O: it is asked often.
#[derive(Clone, Copy)]
pub(crate) struct Capabilities<'a> {
    /// Releases elsewhere wake waiters here. Otherwise they poll.
    pub(crate) wakes: bool,
    /// [`expire_in`](super::Store::expire_in) can be done.
    pub(crate) can_expire_in: bool,
    /// Whether a busy attempt for this kind stands in a queue of the store's from then on. Then each waiter
    /// asks for itself, so that the store's order is the order of arrival, repeating an attempt keeps the
    /// place, and a waiter that gives up has its claim [cleaned up](super::Store::clean_up).
    pub(crate) queues: fn(Kind) -> bool,
    /// Whether what a request in doubt may have left in the store stays after its lease, so that it has to be
    /// taken away however long the store does not answer.
    pub(crate) outlasts_leases: bool,
    /// How many claims of a kind one command cleans up.
    pub(crate) cleaned_up_at_a_time: fn(Kind) -> u32,
    /// How long a waiter may sleep without being woken: at least, at most. Each wait takes a random time
    /// between.
    pub(crate) poll_every: fn(Kind) -> (Duration, Duration),
    pub(crate) homes: Option<&'a dyn Homes>,
    pub(crate) pipeline: Option<&'a dyn Pipeline>,
    pub(crate) batches: Option<&'a dyn Batches>,
    pub(crate) majority: Option<&'a dyn Majority>,
    pub(crate) sessions: Option<&'a dyn Sessions>,
    pub(crate) connections: Option<&'a dyn ConnectionWatch>,
    pub(crate) sweeping: Option<&'a dyn Sweeping>,
    pub(crate) lines: Option<&'a dyn Lines>,
    pub(crate) keeping: Option<&'a dyn Keeping>,
    pub(crate) directory: Option<&'a dyn Directory>,
    pub(crate) listing: Option<&'a dyn Listing>,
    /// The table of a database that keeps the locks.
    pub(crate) table: Option<&'a TableInUse>,
    /// The store itself, for questions that only its own kind of store can answer.
    pub(crate) itself: Option<&'a (dyn Any + Send + Sync)>,
}

/// How long a waiter sleeps that is woken by messages: this only bounds a lost one.
pub(crate) const SAFETY_POLL: (Duration, Duration) =
    (Duration::from_millis(1_000), Duration::from_millis(1_200));

/// How long a waiter sleeps between its attempts where nothing wakes it.
pub(crate) const PLAIN_POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(100));

impl Default for Capabilities<'_> {
    /// A store that wakes its waiters, queues none of them, and has no optional part.
    fn default() -> Self {
        Capabilities {
            wakes: true,
            can_expire_in: false,
            queues: |_| false,
            outlasts_leases: false,
            cleaned_up_at_a_time: |_| 1,
            poll_every: |_| SAFETY_POLL,
            homes: None,
            pipeline: None,
            batches: None,
            majority: None,
            sessions: None,
            connections: None,
            sweeping: None,
            lines: None,
            keeping: None,
            directory: None,
            listing: None,
            table: None,
            itself: None,
        }
    }
}

impl fmt::Debug for Capabilities<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capabilities").field("wakes", &self.wakes).finish_non_exhaustive()
    }
}

/// The table of a database that keeps the locks, by its full name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableInUse {
    pub(crate) name: String,
    /// Others of the same name, in which other users of the database may keep theirs.
    pub(crate) others: Vec<String>,
}

/// A store that keeps locks in several places.
pub(crate) trait Homes: Send + Sync {
    /// The place of a lock of this name. No I/O.
    fn home(&self, name: &LockName) -> u32;
}

/// Requests whose answers are read later: several stores can be asked at the same time.
pub(crate) trait Pipeline: Send + Sync {
    /// As [`attempt`](super::Store::attempt).
    fn begin_attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Box<dyn Pending<Attempt>>;

    /// As [`release`](super::Store::release).
    fn begin_release(&self, claim: &Claim, left: u32, deadline: Moment) -> Box<dyn Pending<Release>>;
}

/// Requests for several locks at a time.
pub(crate) trait Batches: Send + Sync {
    /// Locks with the same number can be taken, and released, by one request. `None`: this one cannot. No
    /// I/O.
    fn group(&self, kind: Kind, name: &LockName) -> Option<u32>;

    /// Asks once for locks of one [`group`](Self::group), each with count one; the answer is read later.
    /// Granted are all before the first that another owner has (with `or_none`, all or none of them): their
    /// fences. The owners must be new ones, which hold nothing.
    fn begin_attempts(
        &self,
        claims: &[Claim],
        or_none: bool,
        deadline: Moment,
    ) -> Box<dyn Pending<Vec<Option<FencingToken>>>>;

    /// Releases locks of one group; one answer per claim, in order.
    fn begin_releases(&self, claims: &[Claim], deadline: Moment) -> Box<dyn Pending<Vec<Release>>>;
}

/// A store of several servers that need not agree (Redlock).
pub(crate) trait Majority: Send + Sync {
    /// Owner numbers below this are not to be used for another hold: something that was asked under them may
    /// still arrive, although every answer so far was `Ok`.
    fn first_unspent_number(&self) -> u64;

    /// A hold ended while it was being renewed: no server is to be given it again, and one that was is to
    /// forget it.
    fn ended_meanwhile(&self, claim: &Claim);

    /// For how long a waiter that was refused is still not to ask again, whatever message it gets: it met
    /// others who want the lock too. A single try is not held off.
    fn held_off(&self, claim: &Claim) -> Option<Duration>;

    /// Whether parts of a lock are several owners', so that none of them may have it, and all who tried at
    /// the same time may have been refused. The caller tries again after a random part of [`SPLIT_PAUSE`].
    fn is_split(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool>;
}

/// After some servers granted and too few, a caller pauses for a random part of this (Redlock).
pub(crate) const SPLIT_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// A store whose holds end with something of its own, such as a session.
pub(crate) trait Sessions: Send + Sync {
    /// `timer` is woken when a [`Bound`] has ended, so that holders are notified at once, and when
    /// something has happened by which holds may be gone.
    fn attach(&self, timer: ServiceWaker);

    /// The end of a hold that was just granted, besides its lease; `None`: there is none. Asked once for each
    /// grant.
    fn bound(&self, claim: &Claim) -> Option<Arc<dyn Bound>>;
}

/// A store that sees its connections end.
pub(crate) trait ConnectionWatch: Send + Sync {
    /// Whether a connection was hung up since the last call: the server may be gone with all that is held,
    /// and a renewal finds that out. `None`: this store does not see that. Asked often while anything is
    /// held; does not wait.
    fn hung_up(&self) -> Option<bool>;
}

/// A store that keeps an entry for a lock that is free.
pub(crate) trait Sweeping: Send + Sync {
    /// Removes the entries of locks that have been free for longer than `age`, some at a time; how many.
    fn sweep(&self, age: Duration, deadline: Moment) -> Answer<u64>;

    /// The causes for which old versions of rows are kept, in words: transactions that are open for longer than `age`, and the like.
    fn old_versions(&self, age: Duration, deadline: Moment) -> Answer<Vec<String>>;
}

/// A store that keeps a line of the clients that wait for a lock, and tells the first of them when it is
/// free.
pub(crate) trait Lines: Send + Sync {
    /// Whether a release of this client's has turned out not to tell the line: the server does not let it.
    /// Later holds are under an id that says so. No I/O.
    fn is_refused(&self) -> bool;

    /// Has the claim's client stand in no line for the lock any more; if the lock is kept for it, the next is
    /// told. Sent in order with the client's other requests about the lock. Its outcome is not waited for
    /// where the order needs no wait.
    fn leave_line(&self, claim: &Claim, deadline: Moment);

    /// Has no subscription to the releases of the claim's lock stay when nobody here listens to them. Does
    /// not wait.
    fn end_lookout(&self, claim: &Claim) {
        let _ = claim;
    }
}

/// A store in which those who wait for a lock can ask its holder for it: by a recall, or by standing there.
pub(crate) trait Keeping: Send + Sync {
    /// Has `waker` woken when others ask for what the claim's client keeps of this lock.
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription>;

    /// For each claim that [`keeps`](Claim::keeps): whether others want it. Changes nothing, so that a look that
    /// comes late concerns nobody's next hold. One answer per claim, in order.
    fn look(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<KeptLook>>;
}

/// The result of a look at a kept hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptLook {
    /// Nobody else wants it.
    Stays,
    /// Others want it, or it cannot be seen whether they do.
    Wanted,
    /// Its owner does not hold it.
    Lost,
}
