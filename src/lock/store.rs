//! The seam between the locks and the stores that keep them.
//!
//! A store makes single attempts and answers what came of each. Policy (waiting, queueing, reentrancy, renewal, loss,
//! guards) lives above and is the same for all stores.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ClientId, Fence, LockName, Owner};
use crate::inspection::{Holder, Inspection, Mode, ObjectKind, Whereabouts};
use crate::lock::park::ServiceWaker;
use crate::lock::queue::Wish;
use crate::lock::topic::Listening;
use crate::sync::Waker;
use crate::time::Moment;

/// The kinds of lock a store may be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Reentrant, Redisson's `RLock`.
    Mutex,
    /// The same lock, each new grant with a fence: Redisson's `RFencedLock`.
    Fenced,
    /// Reentrant, and granted in the order in which it was asked for, across clients: Redisson's fair `RLock`.
    Fair,
    /// The half of a read-write lock that many may hold at a time: Redisson's `RReadWriteLock.readLock()`.
    Read,
    /// The half that one may hold, while nobody else holds either.
    Write,
    /// One string key with a token; not reentrant.
    Token,
    /// Permits that nobody owns and that never end: Redisson's `RSemaphore`.
    Semaphore,
    /// Permits with ids and leases: Redisson's `RPermitExpirableSemaphore`.
    Permits,
    /// Granted to everybody while a count is zero: Redisson's `RCountDownLatch`.
    Latch,
    /// Granted to those who wait for a condition and are notified, in order.
    Signal,
}

impl Kind {
    /// Whether it is the lock by token.
    pub(crate) fn is_token(self) -> bool {
        self == Kind::Token
    }

    /// Which kinds of one name are one lock: a thread that holds the one holds the other.
    pub(crate) fn family(self) -> Family {
        match self {
            Kind::Mutex | Kind::Fenced | Kind::Fair => Family::Lock,
            Kind::Read => Family::Read,
            Kind::Write => Family::Write,
            Kind::Token => Family::Token,
            Kind::Semaphore | Kind::Permits | Kind::Latch | Kind::Signal => Family::Counted,
        }
    }

    /// Whether several owners may hold it at a time.
    pub(crate) fn is_shared(self) -> bool {
        self == Kind::Read || self.family() == Family::Counted
    }

    /// Whether those who wait want different things, so that each asks for itself: what the first must wait for may be
    /// there for the second.
    pub(crate) fn is_counted(self) -> bool {
        self.family() == Family::Counted
    }

    /// Whether what is granted ends with a lease.
    pub(crate) fn is_leased(self) -> bool {
        !matches!(self, Kind::Semaphore | Kind::Latch | Kind::Signal)
    }

    /// Whether a thread may be given it by the one that lets go of it.
    pub(crate) fn is_handed_over(self) -> bool {
        matches!(self, Kind::Mutex | Kind::Fenced)
    }
}

/// Kinds that are the same lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Lock,
    Read,
    Write,
    Token,
    /// No thread holds these.
    Counted,
}

/// Who wants or has which lock, and for how long at a time.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) kind: Kind,
    pub(crate) name: Arc<LockName>,
    pub(crate) owner: Owner,
    /// Whole milliseconds, at least one.
    pub(crate) lease: Duration,
    /// Where the store keeps it, as [`Store::home`] said when this was first asked for.
    pub(crate) home: u32,
    /// Whether the owner goes on asking while others come first: a store that queues gives it a place.
    pub(crate) waits: bool,
    /// Of a read-write lock: whether a writer that waits comes before readers that do not read yet. A writer then says that
    /// it waits, and a reader looks whether one does.
    pub(crate) writers_first: bool,
    /// How many permits; one for locks.
    pub(crate) units: u32,
    /// What the store may tell people of the hold. It ends nothing by it.
    pub(crate) notice: Option<Notice>,
    /// Whether it is known to have been granted. What is abandoned otherwise must not be granted later either.
    pub(crate) is_granted: bool,
}

/// What a hold says of itself: after how long it ends however it is renewed, and where its owner is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) max_hold: Duration,
    pub(crate) place: Arc<Whereabouts>,
}

/// A question to, or a change of, something that is counted. Each change is made under an owner of its own; asked for
/// again under the same one, within [`REQUEST_LASTS`], it is not made again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Counting {
    /// How many there are; `None` where nobody has set any up.
    Ask,
    /// How many permits with ids are out.
    AskOut,
    /// How many permits there are, out or not; `None` where nobody has set any up.
    AskAll,
    /// Sets the count up, if nobody has: 1, else 0. With a lease it ends then.
    SetUp { to: u32, lease: Option<Duration> },
    /// Adds, or takes away; the new count.
    Add(i64),
    /// Adds where somebody has set the count up: 1, else 0.
    AddIfSetUp(i64),
    /// Has so many permits be there, those that are out among them; how many are left to be had.
    SetTo(u32),
    /// Takes all; how many there were.
    Drain,
    /// One down; how many are left. Nothing happens where none are.
    CountDown,
    /// Gives back a permit by its id, whoever has it: 1, or 0 if it is not out.
    GiveBack([u8; 16]),
    /// Gives back permits by their ids, whoever has them: how many, or 0 if not all are out.
    GiveBackAll(Vec<[u8; 16]>),
    /// Has a permit's lease end so long from now, sooner or later than it would: 1, or 0 if it is not out.
    Lease([u8; 16], Duration),
    /// The milliseconds for which a permit's lease still runs, -1 for one without end; `None` if it is not out.
    AskLease([u8; 16]),
    /// Removes it altogether: 1, or 0 if there is nothing.
    Delete,
    /// Notifies the first of those who wait for a condition, or all; how many.
    Notify { all: bool },
    /// Joins those who wait for a condition.
    Enlist,
}

impl Counting {
    /// Whether it is remembered under its claim that it was made, so that it is not made again.
    pub(crate) fn is_remembered(&self) -> bool {
        use Counting::{Add, AddIfSetUp, CountDown, Delete, Drain, SetTo, SetUp};
        matches!(self, SetUp { .. } | Add(_) | AddIfSetUp(_) | SetTo(_) | Drain | CountDown | Delete)
    }
}

/// How a request ended.
#[derive(Debug)]
pub(crate) enum Answer<T> {
    /// Carried out, with this result.
    Done(T),
    /// Not carried out: nothing changed, and nothing will.
    Refused(Error),
    /// It may have been carried out, or still may be. The error says so by `outcome_unknown()`.
    Unknown(Error),
}

/// What came of asking for a lock once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The claim's owner holds it with the count asked for, for at least the claim's lease from now on.
    Granted {
        /// A new fence, where one was asked for.
        fence: Option<Fence>,
    },
    /// Another owner holds it.
    Busy {
        /// How long the holder's lease still runs; `None` if it has no end.
        retry_after: Option<Duration>,
    },
    /// A count above one was asked for, but the owner holds nothing (any more). Nothing changed.
    Lost,
}

/// What came of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Release {
    /// The owner held it and now holds nothing; waiters were told.
    Freed {
        /// How many clients other than this one were among them, as far as the store tells.
        others: u32,
    },
    /// The owner holds it with the count that was to be left.
    StillHeld,
    /// The owner did not hold it; nothing changed.
    NotHeld {
        /// Who does, where the store can tell; `None` if it is free.
        by: Option<String>,
    },
}

/// What came of handing a lock over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HandOver {
    /// The new owner holds it with count one, for its claim's lease; the old one holds nothing. No waiter was told.
    Granted {
        /// A new fence, where one was asked for.
        fence: Option<Fence>,
    },
    /// The old owner did not hold it; nothing changed.
    Lost,
}

/// A request that was sent and whose answer is still to be read, by whoever waits for it.
pub(crate) trait Pending<T = HandOver>: Send {
    /// Reads the answer; not beyond the time that the request was given. One that has come by then is read.
    fn wait(self: Box<Self>) -> Answer<T>;
}

/// An answer that is there already.
pub(crate) struct Known<T>(pub(crate) Answer<T>);

impl<T: Send> Pending<T> for Known<T> {
    fn wait(self: Box<Self>) -> Answer<T> {
        self.0
    }
}

/// What is done with the answer of a release that nobody waits for.
pub(crate) type Sink = Box<dyn FnOnce(Answer<Release>) + Send>;

/// What the store shows of a lock that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// A holder as the store writes it; empty if the store would not say.
    pub(crate) holder: String,
    /// The hold count of the owner that was asked about; zero if it is not a holder.
    pub(crate) count: u32,
    /// What remains of the lease; `None` if it has no end.
    pub(crate) remaining: Option<Duration>,
}

impl Snapshot {
    /// The same as it is shown to users.
    fn described(self, kind: Kind, name: &LockName) -> Inspection {
        let mode = match kind {
            Kind::Read => Some(Mode::Read),
            Kind::Write => Some(Mode::Write),
            _ => None,
        };
        let kind = match mode {
            Some(mode) => ObjectKind::ReadWriteLock { mode },
            None if kind.is_token() => ObjectKind::TokenLock,
            None => ObjectKind::Lock,
        };
        let mut seen = Inspection::new(name.given(), kind);
        seen.remaining = Some(self.remaining.unwrap_or(Duration::MAX));
        seen.holders.push(Holder { mode, remaining: self.remaining, ..Holder::new(self.holder) });
        seen
    }
}

/// How long a hold can be counted on that lives no longer than something of the store's own, such as a session.
pub(crate) trait Bound: std::fmt::Debug + Send + Sync {
    /// Signs of life move it on; what has ended stays in the past.
    fn until(&self) -> Moment;

    /// The store has said that the hold is gone; then it ends at once.
    fn is_gone(&self) -> bool {
        false
    }
}

/// For so long a store remembers what it was asked under which owner, where repeating would do harm. Nothing is repeated
/// for longer.
pub(crate) const REQUEST_LASTS: Duration = Duration::from_secs(600);

/// After some servers granted and too few, a caller pauses for a random part of this (Redlock).
pub(crate) const SPLIT_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

/// Where a store queues by itself, a place that is not asked for again in so long is given up. Waiters ask at least
/// every 1.2 s.
pub(crate) const PLACE_LASTS: Duration = Duration::from_secs(6);

/// Single attempts. Never waits for another owner, never re-sends what may have been carried out, never starts threads
/// for a request. `by` bounds the I/O of one call: past it the answer is `Unknown` or `Refused`.
///
/// Requests say what the state shall be, not how to change it, so within one hold repeating one changes nothing.
pub(crate) trait Store: Send + Sync {
    /// What to tell when a [`Bound`] has ended, so that holders are told at once, and when something has happened by which
    /// holds may be gone.
    fn attach(&self, watchdog: ServiceWaker) {
        drop(watchdog);
    }

    /// Whether a lock of this name can be kept here. No I/O.
    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()>;

    /// Where a lock of this name is to be asked for, for stores that keep locks in several places. No I/O.
    fn home(&self, name: &LockName) -> u32 {
        let _ = name;
        0
    }

    /// The store itself, for what only one kind of store can be told.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Asks once for the lock with hold count `count`.
    ///
    /// `count == 1`: granted if the lock is free, or if the owner is its holder (adopting what an earlier attempt of
    /// unknown outcome left). `count > 1`: granted if the owner is its holder, else `Lost`. A lease that already
    /// runs longer is not shortened. With `wants_fence` a grant carries a new fence.
    fn attempt(&self, claim: &Claim, count: u32, wants_fence: bool, by: Moment) -> Answer<Attempt>;

    /// Whether a busy attempt stands in a queue of the store's from then on. Then each waiter asks for itself, so that
    /// the store's order is the order in which they came, repeating an attempt keeps the place, and whoever stops
    /// waiting has it [`abandon`](Self::abandon)ed.
    fn queues(&self, kind: Kind) -> bool {
        let _ = kind;
        false
    }

    /// What ends a hold that was just granted, besides its lease; `None`: nothing does. Asked once for each grant.
    fn bound(&self, claim: &Claim) -> Option<Arc<dyn Bound>> {
        let _ = claim;
        None
    }

    /// Leaves `left` holds to the owner; zero frees the lock and tells waiters. Never changes how long it runs.
    fn release(&self, claim: &Claim, left: u32, by: Moment) -> Answer<Release>;

    /// As [`release`](Self::release) with nothing left, but may return before the answer is there. `done` then gets it
    /// from whatever thread reads it, before any later request on the same lock of this client's is answered.
    fn release_later(&self, claim: &Claim, by: Moment, done: Sink) {
        done(self.release(claim, 0, by));
    }

    /// As [`attempt`](Self::attempt), but the answer is read by whoever waits for it: several stores can be asked at the
    /// same time. A store that cannot send without reading asks at once.
    fn begin_attempt(
        &self,
        claim: &Claim,
        count: u32,
        wants_fence: bool,
        by: Moment,
    ) -> Box<dyn Pending<Attempt>> {
        Box::new(Known(self.attempt(claim, count, wants_fence, by)))
    }

    /// As [`release`](Self::release), in the same way.
    fn begin_release(&self, claim: &Claim, left: u32, by: Moment) -> Box<dyn Pending<Release>> {
        Box::new(Known(self.release(claim, left, by)))
    }

    /// Locks for which this is the same can be taken, and released, by one request. `None`: each has its own. No I/O.
    fn together(&self, kind: Kind, name: &LockName) -> Option<u32> {
        let _ = (kind, name);
        None
    }

    /// Asks once, by one request, for locks that go [`together`](Self::together), each with count one; the answer is read
    /// later. Granted are all before the first that somebody has (with `or_none`, all or none of them): their fences. The
    /// owners must be new ones, which hold nothing.
    fn begin_attempts(
        &self,
        wishes: &[Wish],
        or_none: bool,
        by: Moment,
    ) -> Box<dyn Pending<Vec<Option<Fence>>>> {
        let _ = (wishes, or_none, by);
        Box::new(Known(Answer::Refused(one_by_one("lock"))))
    }

    /// Releases, by one request, locks that go together; one answer per claim, in order.
    fn begin_releases(&self, claims: &[Claim], by: Moment) -> Box<dyn Pending<Vec<Release>>> {
        let _ = (claims, by);
        Box::new(Known(Answer::Refused(one_by_one("unlock"))))
    }

    /// Owner numbers below this are not to be used for another hold: something that was asked under them may still
    /// arrive, although every answer so far was `Done`. That can be where a store consists of several.
    fn first_unspent_number(&self) -> u64 {
        0
    }

    /// Has `to` hold the lock with count one in place of `from`, in one step; the request is on its way on return.
    /// Waiters are not told. `None`: this cannot be done here.
    fn hand_over(&self, from: &Claim, to: &Claim, wants_fence: bool, by: Moment) -> Option<Box<dyn Pending>> {
        let _ = (from, to, wants_fence, by);
        None
    }

    /// Reads answers that nobody has come for, and forgets what has ended by itself; returns whether answers are still to
    /// come. Called now and then, a few times a lease at least.
    fn tend(&self) -> bool {
        false
    }

    /// Whether a connection was hung up, since this was last asked, by whoever is to keep what is held: it may be gone, and
    /// a renewal finds that out. `None`: this store does not see that. Asked often while anything is held; does not wait.
    fn hung_up(&self) -> Option<bool> {
        None
    }

    /// For each claim, has it run for at least its lease from now on; `false`: its owner does not hold it.
    /// One answer per claim, in order. A claim that fails does not fail its neighbours.
    fn renew(&self, claims: &[Claim], by: Moment) -> Vec<Answer<bool>>;

    /// Asks about, or changes, what is counted under the claim's name. `Done(None)`: there is no such thing.
    fn count(&self, claim: &Claim, what: &Counting, by: Moment) -> Answer<Option<i64>> {
        let _ = (claim, what, by);
        Answer::Refused(Error::new(
            ErrorKind::Unsupported,
            "count",
            "this store has no semaphores, latches or conditions",
        ))
    }

    /// A change under this claim, or what it took, was answered the first time that it was sent, and will not be asked for
    /// again, nor undone: nothing of it need be remembered. Nobody waits for it.
    fn forget(&self, claim: &Claim, by: Moment) {
        let _ = (claim, by);
    }

    /// For how long a waiter that was refused is still not to ask again, whatever it hears: it met others who want the
    /// lock too. A single try is not held off.
    fn held_off(&self, claim: &Claim) -> Option<Duration> {
        let _ = claim;
        None
    }

    /// Whether parts of a lock are several owners', so that nobody may have it, and all who tried at the same time may
    /// have been refused. Who has to know tries again after a random part of [`SPLIT_PAUSE`].
    fn is_split(&self, kind: Kind, name: &LockName, by: Moment) -> Answer<bool> {
        let _ = (kind, name, by);
        Answer::Done(false)
    }

    /// Whether [`expire_in`](Self::expire_in) can be done here.
    fn can_expire_in(&self) -> bool {
        false
    }

    /// Has a held lock end by itself so long from now, sooner or later than it would; `false`: its owner does not hold
    /// it. Waiters are not told, now or then.
    fn expire_in(&self, claim: &Claim, rest: Duration, by: Moment) -> Answer<bool> {
        let _ = (claim, rest, by);
        let words = "this store cannot set when a lock that is held will end";
        Answer::Refused(Error::new(ErrorKind::Unsupported, "unlock", words))
    }

    /// For each claim, has its owner hold nothing and stand in no queue, nor as a writer that waits: undoes attempts and
    /// repeats releases of unknown outcome. Goes out like renewals, one answer per claim, in order.
    fn abandon(&self, claims: &[Claim], by: Moment) -> Vec<Answer<Release>>;

    /// What is known of a lock; `None` if it is free.
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>>;

    /// Whatever there is under a name. By default what [`inspect`](Self::inspect) tells, asked for each kind of lock that
    /// the store keeps, one after the other; a store that knows more tells more.
    fn describe(&self, name: &LockName, by: Moment) -> Answer<Inspection> {
        let nobody = Owner::new(ClientId::random(), 0);
        let mut kind = ObjectKind::Absent;
        for asked in [Kind::Mutex, Kind::Token, Kind::Write, Kind::Read] {
            if self.check_name(asked, name).is_err() {
                continue;
            }
            match self.inspect(asked, name, nobody, by) {
                Answer::Done(Some(snapshot)) => return Answer::Done(snapshot.described(asked, name)),
                Answer::Done(None) => {}
                Answer::Refused(error) | Answer::Unknown(error) if error.kind() == ErrorKind::WrongType => {
                    kind = ObjectKind::Foreign { what: "something else".to_owned() };
                }
                Answer::Refused(error) | Answer::Unknown(error) => return Answer::Refused(error),
            }
        }
        Answer::Done(Inspection::new(name.given(), kind))
    }

    /// Frees a lock whoever holds it and tells waiters; `false` if it was free.
    fn force(&self, kind: Kind, name: &LockName, by: Moment) -> Answer<bool>;

    /// Forgets locks that have been free for longer than `age`, some at a time; how many. Nothing to do where the server
    /// forgets them itself.
    fn sweep(&self, age: Duration, by: Moment) -> Answer<u64> {
        let _ = (age, by);
        Answer::Done(0)
    }

    /// How long a waiter may sleep without being woken: at least, at most (each wait takes a random time between).
    fn poll_every(&self, kind: Kind) -> (Duration, Duration);

    /// Whether releases elsewhere wake those who wait here; otherwise they poll.
    fn wakes(&self) -> bool {
        true
    }

    /// Connects, where that was put off until the first use; what is asked about names is known from then on.
    fn ready(&self) -> Result<()> {
        Ok(())
    }

    /// Has `waker` woken at each message that concerns one who waits under this claim, as long as the result lives;
    /// `None` if the store sends none. Does not wait for the store.
    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Listening>;

    /// How many such messages have been counted, if a confirmed subscription to them stands already.
    fn heard(&self, claim: &Claim) -> Option<u64>;

    /// Ends connections and threads. Later calls are refused.
    fn close(&self);
}

/// What several stores say to [`Store::hung_up`]. All are asked.
pub(crate) fn any_hung_up(stores: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    stores.fold(None, |any, one| any.max(one))
}

fn one_by_one(action: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, action, "this store has a request for each lock")
}

impl<T> Answer<T> {
    /// For questions that change nothing: an unknown outcome is just a failure.
    pub(crate) fn into_result(self) -> Result<T> {
        match self {
            Answer::Done(value) => Ok(value),
            Answer::Refused(error) | Answer::Unknown(error) => Err(error),
        }
    }
}

/// The names of the methods of a block of source. A store in front of another has to pass on each call, and the compiler does
/// not miss those that have a default.
#[cfg(test)]
pub(crate) fn methods_in<'a>(source: &'a str, block: &str) -> Vec<&'a str> {
    let text = source.split_once(block).map_or("", |(_, after)| after);
    let text = text.split("\n}\n").next().unwrap_or_default();
    let name = |line: &'a str| line.strip_prefix("    fn ")?.split(['(', '<']).next();
    text.lines().filter_map(name).collect()
}
