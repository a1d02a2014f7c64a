//! The seam between the engine and the stores: all that the author of a store needs to know.
//!
//! A store makes single attempts and says how each ended. The engine has the policy, the same for all stores:
//! waiting, queueing, reentrancy, renewal, loss, guards.
//!
//! - A [`Claim`] says who asks for a lock, or holds it, and for how long at a time.
//! - Each request has a `deadline` for its I/O. Its [`Answer`] is a result, or one of two failures: `Refused`
//!   (nothing changed, and nothing will), `Unknown` (it may have been carried out, or still may be).
//! - A request says what the state shall be, not how to change it. Within one hold, repeating it changes
//!   nothing.
//! - Optional parts are in [`Capabilities`]; questions that people ask are in [`Inspect`].

pub(crate) mod answer;
pub(crate) mod capabilities;
pub(crate) mod claim;
pub(crate) mod directory;
pub(crate) mod failure;
pub(crate) mod format;
pub(crate) mod hub;
pub(crate) mod inspection;
pub(crate) mod kind;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) mod pool;
pub(crate) mod ring_member;
pub(crate) mod subscription;

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite", feature = "etcd"))]
pub(crate) use crate::seam::answer::named_each;
pub(crate) use crate::seam::answer::{Attempt, Handoff, Others, Pending, Release, Releasing, Sink, ready};
pub(crate) use crate::seam::capabilities::Capabilities;
pub(crate) use crate::seam::claim::{
    AFTER_LEASE, AFTER_RESERVATION, Bound, Claim, HoldNote, ListensFor, QueueMode, ask_groups,
};
pub(crate) use crate::seam::failure::{Answer, Failure, granted_too_late, named, not_set_up};
pub(crate) use crate::seam::inspection::{Inspect, Snapshot};
pub(crate) use crate::seam::kind::{Counting, Family, Kind};
use crate::seam::subscription::Subscription;
use crate::sync::Waker;
use crate::time::Moment;

/// How long a store remembers requests that must not be carried out twice. None is repeated after that.
pub(crate) const REQUEST_LASTS: Duration = Duration::from_secs(600);

/// A place in a store's queue expires after this without another attempt. Waiters ask at least every 1.2 s.
pub(crate) const PLACE_LASTS: Duration = Duration::from_secs(6);

/// A store never waits for another owner, never repeats a request that may have been carried out, and starts
/// no thread for a request. After its `deadline` a request is `Unknown` or `Refused`.
pub(crate) trait Store: Inspect + Send + Sync {
    /// No I/O.
    fn capabilities(&self) -> Capabilities<'_>;

    /// Whether this store can keep a lock of this name. No I/O.
    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()>;

    /// Asks once for the lock with hold count `count`.
    ///
    /// `count == 1`: granted if the lock is free, or if the owner holds it (adopting what an earlier attempt
    /// of unknown outcome left). `count > 1`: granted if the owner holds it, else `Lost`. Never shortens a
    /// lease. A grant carries a new fencing token if the claim wants one.
    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt>;

    /// Leaves `left` levels to the owner; zero frees the lock and notifies waiters. Never changes the lease.
    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release>;

    /// As [`release`](Self::release) with nothing left, but may return before the answer. The thread that
    /// reads the answer passes it to `done` before the answer of any later request of this client on the same
    /// lock, or has called [`overtaken`](Releasing::overtaken) by then. A claim that waits leaves its place,
    /// as by [`clean_up`](Self::clean_up).
    fn release_later(&self, claim: &Claim, deadline: Moment, done: Sink) {
        done.answer(self.release_or_leave(claim, deadline));
    }

    fn release_or_leave(&self, claim: &Claim, deadline: Moment) -> Answer<Release> {
        if !claim.waits {
            return self.release(claim, 0, deadline);
        }
        let nothing = Release::NotHeld { holder: None };
        self.clean_up(std::slice::from_ref(claim), deadline).pop().unwrap_or(Ok(nothing))
    }

    /// Passes the lock from `from` to `to`, with count one, in one step; the request is on its way on return.
    /// Notifies no waiters. `None`: not possible here.
    fn hand_off(&self, from: &Claim, to: &Claim, deadline: Moment) -> Option<Box<dyn Pending>> {
        let _ = (from, to, deadline);
        None
    }

    /// Makes each lease run for at least its full time from now on; `false`: the owner does not hold the
    /// lock. One answer per claim, in order. A claim that fails does not fail the others.
    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>>;

    /// Ends each owner's hold and its place in any queue: undoes attempts and repeats releases of unknown
    /// outcome, which were sent before this call. Sent like renewals; one answer per claim, in order.
    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>>;

    /// Makes a held lock end by itself after `rest`, sooner or later than it would; `false`: the owner does
    /// not hold it. Notifies no waiters, now or then.
    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        let _ = (claim, rest, deadline);
        let words = "this store cannot set when a lock that is held will end";
        Err(Failure::Refused(Error::new(ErrorKind::Unsupported, "unlock", words)))
    }

    /// Frees a lock whoever holds it, and notifies waiters; `false`: it was free.
    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool>;

    /// Asks about, or changes, a count under the claim's name. `Ok(None)`: there is none.
    fn count(&self, claim: &Claim, what: &Counting, deadline: Moment) -> Answer<Option<i64>> {
        let _ = (claim, what, deadline);
        let words = "this store has no semaphores, latches or conditions";
        Err(Failure::Refused(Error::new(ErrorKind::Unsupported, "count", words)))
    }

    /// Wakes `waker` at each message for a waiter under this claim while the result lives; `None`: the store
    /// sends none. Does not wait for the store.
    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription>;

    /// The number of such messages so far; `None` without a confirmed subscription.
    fn message_count(&self, claim: &Claim) -> Option<u64>;

    /// Reads answers of releases that no thread waits for, and forgets expired ones; returns whether more
    /// are to come. Called at least a few times in each lease.
    fn poll_completions(&self) -> bool {
        false
    }

    /// Ends connections and threads. Later calls are refused.
    fn close(&self);
}
