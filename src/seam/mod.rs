//! The seam between engine and stores: the trait of a store, and its values. A store's author needs no more.
//!
//! A store makes single attempts and reports their outcome. The [engine](crate::engine) does everything that
//! is the same for all stores: waiting, queueing, reentrancy, renewal, noticing lost holds, guards.
//!
//! - A [`Claim`] says who wants or holds which lock, and for which lease.
//! - Each request has a `deadline` for its I/O. Its [`Answer`] is a result or one of two failures: `Refused`
//!   (nothing changed, and nothing will) or `Unknown` (the request may have been carried out, or may yet be).
//! - A request names the state to reach, not a change, so a repetition within one hold changes nothing.
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

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite", feature = "etcd"))]
pub(crate) use crate::seam::answer::named_each;
pub(crate) use crate::seam::answer::{Attempt, Handoff, Others, Pending, Release, Releasing, Sink, ready};
pub(crate) use crate::seam::capabilities::{Capabilities, OpenStore};
pub(crate) use crate::seam::claim::{
    AFTER_LEASE, AFTER_RESERVATION, Bound, Claim, HoldNote, ListensFor, QueueMode, ask_groups,
};
pub(crate) use crate::seam::failure::{Answer, Failure, granted_too_late, named, not_set_up};
pub(crate) use crate::seam::inspection::{Inspect, Snapshot};
pub(crate) use crate::seam::kind::{Counting, Family, Kind};
use crate::seam::subscription::Subscription;
use crate::sync::Waker;
use crate::time::Moment;

/// How long a store recognizes repeated requests. Clients stop repeating after about half of this time.
pub(crate) const REQUEST_LASTS: Duration = Duration::from_secs(600);

/// How long an attempt keeps a waiter's place (fair, read-write, condition). Waiters repeat it within 1.2 s.
pub(crate) const PLACE_LASTS: Duration = Duration::from_secs(6);

/// A store never waits for another owner, never repeats a request that may have been carried out, and starts
/// no thread for a request. After its `deadline` a request fails as `Unknown`, or `Refused` if unsent.
pub(crate) trait Store: Inspect + Send + Sync {
    /// The abilities of this store beyond this trait. No I/O.
    fn capabilities(self: Arc<Self>) -> Capabilities {
        Capabilities::default()
    }

    /// Whether this store can keep a lock of this kind and name. No I/O.
    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        let _ = (kind, name);
        Ok(())
    }

    /// Makes one attempt to acquire the lock with hold count `count`.
    ///
    /// `count == 1`: granted if the lock is free, or if the owner already holds it, for example by an attempt
    /// whose answer was lost. `count > 1`: granted if the owner holds the lock, else `Lost`. Never shortens a
    /// lease. A grant carries a new fencing token if the claim wants one.
    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt>;

    /// Sets the owner's hold count to `left`. Zero frees the lock and notifies waiters. Keeps the lease.
    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release>;

    /// As [`release`](Self::release) to zero, but may return before the answer. The thread that reads the
    /// answer passes it to `done`. If the store must repeat the release, it first calls
    /// [`overtaken`](Releasing::overtaken). The store calls `done` or `overtaken` before this client gets a
    /// later answer about the lock. For a claim that waits, leaves the queue instead.
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

    /// Moves the lock from `from` to `to`, with count one, in one step. The request has been sent on return.
    /// Notifies no waiter. `None`: the store cannot do this, or could send nothing.
    fn hand_off(&self, from: &Claim, to: &Claim, deadline: Moment) -> Option<Box<dyn Pending>> {
        let _ = (from, to, deadline);
        None
    }

    /// Extends each claim's lease to at least its full length from now on; `false`: the owner does not hold
    /// the lock. One answer per claim, in order. The failure of one claim does not affect the others.
    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>>;

    /// Makes each owner hold nothing, and removes it from queues. This undoes attempts and completes releases
    /// of unknown outcome, unless the earlier request arrives after this one. One answer per claim, in order.
    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>>;

    /// Sets the remaining lease of a held lock to `rest`, longer or shorter than before; `false`: the owner
    /// does not hold the lock. Notifies no waiter, now or when the lease ends.
    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        let _ = (claim, rest, deadline);
        let words = "this store cannot set when a lock that is held will end";
        Err(Failure::Refused(Error::new(ErrorKind::Unsupported, "unlock", words)))
    }

    /// Frees a lock whoever holds it, and notifies waiters; `false`: the lock was free.
    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool>;

    /// Reads or changes the count with the claim's name. `Ok(None)`: the count does not exist.
    fn count(&self, claim: &Claim, what: &Counting, deadline: Moment) -> Answer<Option<i64>> {
        let _ = (claim, what, deadline);
        let words = "this store has no semaphores, latches or conditions";
        Err(Failure::Refused(Error::new(ErrorKind::Unsupported, "count", words)))
    }

    /// Wakes `waker` at each message for a waiter with this claim, until the result is dropped. `None`: no
    /// messages will come, so the waiter polls. Does not wait for the store.
    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription>;

    /// The number of messages so far for a waiter with this claim; `None` without a confirmed subscription.
    fn message_count(&self, claim: &Claim) -> Option<u64>;

    /// Reads answers for which no thread waits, and gives up those whose deadline has passed. Returns whether
    /// more are expected. The watchdog, which renews, calls this at least a few times in each lease.
    fn poll_completions(&self) -> bool {
        false
    }

    /// Closes all connections and ends all threads. Later requests are refused.
    fn close(&self);
}
