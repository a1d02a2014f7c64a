//! The seam between the engine and the stores that keep locks: all that the author of a store needs to know.
//!
//! A store makes single attempts and says how each ended. Policy (waiting, queueing, reentrancy, renewal,
//! loss, guards) is the engine's, and the same for all stores.
//!
//! - A [`Claim`] says who asks for which lock, or holds it, and for how long at a time.
//! - Each request has a `deadline` for its I/O. Its [`Answer`] is a result, or one of two failures: `Refused`
//!   (nothing changed, and nothing will), `Unknown` (it may have been carried out, or still may be).
//! - A request says what the state shall be, not how to change it. Within one hold, repeating it changes
//!   nothing.
//! - Optional parts are in [`Capabilities`]; questions that people ask are in [`Inspect`].

pub(crate) mod answer;
pub(crate) mod capabilities;
pub(crate) mod claim;
pub(crate) mod count;
pub(crate) mod directory;
pub(crate) mod failure;
pub(crate) mod fallbacks;
pub(crate) mod format;
pub(crate) mod hub;
pub(crate) mod inspection;
pub(crate) mod kind;
pub(crate) mod ring_member;
pub(crate) mod subscription;

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::LockName;
pub(crate) use crate::seam::answer::{Answered, Attempt, Handoff, Others, Pending, Release, Releasing, Sink};
pub(crate) use crate::seam::capabilities::Capabilities;
pub(crate) use crate::seam::claim::{AFTER_KEPT, AFTER_LEASE, Bound, Claim, HoldNote, ListensFor, Turn};
pub(crate) use crate::seam::count::Counting;
pub(crate) use crate::seam::failure::{Answer, Failure, granted_too_late, named, not_set_up};
pub(crate) use crate::seam::inspection::{Inspect, Snapshot};
pub(crate) use crate::seam::kind::{Family, Kind};
use crate::seam::subscription::Subscription;
use crate::sync::Waker;
use crate::time::Moment;

/// The time for which a store remembers what it was asked under which owner, where repeating would do harm.
/// Nothing is repeated for longer.
pub(crate) const REQUEST_LASTS: Duration = Duration::from_secs(600);

/// The time after which a place in a store's queue is given up that nobody has asked for again. Waiters ask
/// at least every 1.2 s.
pub(crate) const PLACE_LASTS: Duration = Duration::from_secs(6);

/// A place that keeps locks.
///
/// A store never waits for another owner, never sends again what may have been carried out, and starts no
/// thread for a request. Past its `deadline` a request is answered `Unknown` or `Refused`.
pub(crate) trait Store: Inspect + Send + Sync {
    /// The store's abilities and its optional parts. No I/O.
    fn capabilities(&self) -> Capabilities<'_>;

    /// Whether a lock of this name can be kept here. No I/O.
    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()>;

    /// Asks once for the lock with hold count `count`.
    ///
    /// `count == 1`: granted if the lock is free, or if the owner is its holder (adopting what an earlier
    /// attempt of unknown outcome left). `count > 1`: granted if the owner is its holder, else `Lost`. A
    /// lease that already runs longer is not shortened. A grant carries a new fencing token if the claim
    /// wants one.
    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt>;

    /// Leaves `left` holds to the owner; zero frees the lock and notifies waiters. Never changes how long it
    /// runs.
    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release>;

    /// As [`release`](Self::release) with nothing left, but may return before the answer is there. `done`
    /// then gets it from the thread that reads it, before any later request on the same lock of this client's
    /// is answered; or has the hold [notified](Releasing::overtaken) by then. A claim that waits leaves its place, as by [`clean_up`](Self::clean_up).
    fn release_later(&self, claim: &Claim, deadline: Moment, done: Sink) {
        done.answer(self.release_or_leave(claim, deadline));
    }

    /// The same with its answer.
    fn release_or_leave(&self, claim: &Claim, deadline: Moment) -> Answer<Release> {
        if !claim.waits {
            return self.release(claim, 0, deadline);
        }
        let nothing = Release::NotHeld { holder: None };
        self.clean_up(std::slice::from_ref(claim), deadline).pop().unwrap_or(Ok(nothing))
    }

    /// Has `to` hold the lock with count one in place of `from`, in one step; the request is on its way on
    /// return. Waiters are not notified. `None`: this cannot be done here.
    fn hand_off(&self, from: &Claim, to: &Claim, deadline: Moment) -> Option<Box<dyn Pending>> {
        let _ = (from, to, deadline);
        None
    }

    /// For each claim, has it run for at least its lease from now on; `false`: its owner does not hold it.
    /// One answer per claim, in order. A claim that fails does not fail its neighbours.
    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>>;

    /// For each claim, has its owner hold nothing and stand in no queue, nor as a writer that waits: undoes
    /// attempts and repeats releases of unknown outcome. Goes out like renewals, one answer per claim, in
    /// order. The requests in doubt were sent before this call. [`Release::Never`]: none of them can arrive any
    /// more.
    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>>;

    /// Has a held lock end by itself when `rest` has passed, sooner or later than it would; `false`: its
    /// owner does not hold it. Waiters are not notified, now or then.
    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        let _ = (claim, rest, deadline);
        let words = "this store cannot set when a lock that is held will end";
        Err(Failure::Refused(Error::new(ErrorKind::Unsupported, "unlock", words)))
    }

    /// Frees a lock whoever holds it and notifies waiters; `false` if it was free.
    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool>;

    /// Asks about, or changes, a count under the claim's name. `Ok(None)`: there is no such thing.
    fn count(&self, claim: &Claim, what: &Counting, deadline: Moment) -> Answer<Option<i64>> {
        let _ = (claim, what, deadline);
        let words = "this store has no semaphores, latches or conditions";
        Err(Failure::Refused(Error::new(ErrorKind::Unsupported, "count", words)))
    }

    /// Has `waker` woken at each message that concerns a waiter under this claim, as long as the result
    /// lives; `None` if the store sends none. Does not wait for the store.
    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription>;

    /// How many such messages have been counted, if a confirmed subscription to them stands already.
    fn message_count(&self, claim: &Claim) -> Option<u64>;

    /// Reads answers of releases that nobody waits for, and forgets what has ended by itself; whether answers
    /// are still to come. Called now and then, a few times a lease at least.
    fn poll_completions(&self) -> bool {
        false
    }

    /// Ends connections and threads. Later calls are refused.
    fn close(&self);
}
