//! The hold that a client leaves in the store after its last level, and why: for the client's time slice, or
//! until a recall.
//!
//! To all other clients the lock is held meanwhile, by an owner whose lease runs. In its time slice the
//! client got the lock out of the wait queue in the store, and a thread that comes back at once has the lock
//! again without a request. So a slice needs no keys and no messages, as eventual fairness in parking_lot and
//! the cohort locks of Dice, Marathe and Shavit (2012). `lock_builder(name).cached()` leaves the hold until
//! another client asks for the lock, which recalls it, as the delegations of NFSv4 (RFC 7530, 10.4).
//! docs/decisions/0056 and 0060 have the rules.
//!
//! | slot        | meaning                                                    | ended by                               |
//! |-------------|------------------------------------------------------------|----------------------------------------|
//! | `Open`      | a thread has the hold, or there is none                    | the end of a last level                |
//! | `Cached`    | no thread has the hold, and its own may take it again      | `reuse`, or `take_to_leave` by anybody |
//! | `Returning` | the hold's release is to be sent; the hold is no thread's  | the registry, which takes the hold out |
//!
//! Nothing here is I/O, each moment is passed in, and all is under the mutex of the lock.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::seam::subscription::Subscription;
use crate::time::Moment;

/// All time slices of the clients in the queue together, and the longest single one. A client waits for one
/// slice and one hand-over of each client before it.
const ALL: Duration = Duration::from_millis(64);
const LONGEST: Duration = Duration::from_millis(2);

/// A longer hold is released as usual: the hand-over costs little beside it.
const SHORT: Duration = Duration::from_micros(500);

/// A thread that asks again within this reacquires at once.
const AT_ONCE: Duration = Duration::from_micros(200);

/// A hold that is cached for a time slice is released after this without a user.
pub(crate) const IDLE: Duration = Duration::from_micros(300);

/// The score of a lock rises by one when a thread reacquires at once, and falls by `LATE` when not. From
/// `LEAST` on a hold is cached. From `UNKNOWN` one return is enough: in a crowd of hundreds a client has few
/// grants a second.
const UNKNOWN: u8 = 2;
const LEAST: u8 = 3;
const MOST: u8 = 8;
const LATE: u8 = 4;

/// A longer pause in a time slice means that the thread was descheduled.
const STALL: Duration = Duration::from_micros(600);

/// A hold that is cached until a recall is released after this without a user.
pub(crate) const UNUSED: Duration = Duration::from_millis(500);

/// The first check of a hold comes this long after its grant, each later one after twice as long, up to
/// `LONGEST_CHECK_GAP`. A check finds waiters that send no recalls.
const FIRST_CHECK: Duration = Duration::from_millis(50);
pub(crate) const LONGEST_CHECK_GAP: Duration = Duration::from_millis(500);

/// Two recalls within `SOON` switch caching off for `PAUSE`: clients that alternate gain nothing by it.
const SOON: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_secs(1);

/// The time slice where so many clients are in the queue.
fn length(clients: u32) -> Duration {
    LONGEST.min(ALL / clients.max(1))
}

#[derive(Debug)]
enum Slot<H> {
    Open,
    Cached(Arc<H>, CachedFor),
    Returning(Arc<H>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CachedFor {
    TimeSlice,
    /// Since when no thread here has used the hold.
    UntilRecall(Moment),
}

/// On what terms a grant may be cached until a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheTerms {
    /// The recalls that had come before the lock was asked for.
    pub(crate) heard: u64,
    /// Others waited for the lock when it was granted.
    pub(crate) is_wanted: bool,
}

/// The hold, in use or cached, that stays until a recall.
#[derive(Debug)]
struct Recallable<H> {
    hold: Arc<H>,
    terms: CacheTerms,
    next_check: Moment,
    gap: Duration,
}

/// The cached hold of one lock, its time slices and its recalls.
#[derive(Debug)]
pub(crate) struct Caching<H> {
    slot: Slot<H>,
    /// The end of the present time slice, if there is one.
    ends: Option<Moment>,
    /// Since when the present thread has the lock.
    began: Moment,
    /// When the hold was last taken or released in the slice.
    last: Moment,
    /// The last release that may be cached: when, and by which thread, which has not asked since.
    dropped: Option<(Moment, u64)>,
    score: u8,
    /// How long this process did not run in the last slice: the next one lasts longer by that.
    missed: Duration,
    recalls: Option<Subscription>,
    recallable: Option<Recallable<H>>,
    recalled: Option<Moment>,
    paused_until: Option<Moment>,
    is_watched: bool,
    /// This client has, or had, a time slice or a hold that may stay until a recall.
    may_cache: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CacheOutcome {
    Ends,
    /// Cached for the time slice. `is_new`: the keeper does not watch this lock yet.
    ForTimeSlice {
        is_new: bool,
    },
    UntilRecall,
}

#[derive(Debug)]
pub(crate) enum Watched<H> {
    /// Nobody uses this hold, or others want it: release it.
    Idle(Arc<H>),
    /// Ask the store whether others want this one.
    Check(Arc<H>),
    Until(Moment),
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// It was cached until a recall, and none came.
    UntilRecall,
    ForTimeSlice,
    /// Others want it, or this call would not cache it: release it.
    Never,
}

impl<H> Default for Caching<H> {
    fn default() -> Caching<H> {
        let never = Moment::from_nanos(0);
        Caching {
            slot: Slot::Open,
            ends: None,
            began: never,
            last: never,
            dropped: None,
            score: UNKNOWN,
            missed: Duration::ZERO,
            recalls: None,
            recallable: None,
            recalled: None,
            paused_until: None,
            is_watched: false,
            may_cache: false,
        }
    }
}

impl<H> Caching<H> {
    /// That thread has ended the last level of this hold; so many threads here wait. `by_time_slice`: the
    /// hold may stay for a time slice.
    pub(crate) fn end_use(
        &mut self,
        (hold, thread): (&Arc<H>, u64),
        by_time_slice: bool,
        waiting: usize,
        now: Moment,
    ) -> CacheOutcome {
        if matches!(self.slot, Slot::Returning(_)) {
            return CacheOutcome::Ends; // another hold of the lock: one at a time
        }
        // Pairs with `Waiting::note_join`.
        if waiting == 0 && !self.is_wanted(now) && self.is_recallable(hold) {
            self.slot = Slot::Cached(Arc::clone(hold), CachedFor::UntilRecall(now));
            return CacheOutcome::UntilRecall;
        }
        if !by_time_slice {
            return CacheOutcome::Ends;
        }
        self.dropped = Some((now, thread));
        let Some(ends) = self.ends else { return CacheOutcome::Ends };
        let held = now.since(std::mem::replace(&mut self.last, now));
        // Each of them gets the same part of the rest.
        let share = ends.since(self.began) / u32::try_from(waiting + 1).unwrap_or(u32::MAX);
        if self.score < LEAST || held >= SHORT || now >= self.began.plus(share) {
            return CacheOutcome::Ends;
        }
        self.slot = Slot::Cached(Arc::clone(hold), CachedFor::TimeSlice);
        CacheOutcome::ForTimeSlice { is_new: self.begin_watch() }
    }

    /// Takes the cached hold if `wanted`, for a call that would cache it until a recall (`caches`) or not. In
    /// its time slice the hold is used again although others want it.
    pub(crate) fn reuse(
        &mut self,
        wanted: impl FnOnce(&H) -> bool,
        caches: bool,
        now: Moment,
    ) -> Option<(Arc<H>, Reuse)> {
        let Slot::Cached(hold, why) = &self.slot else { return None };
        let (hold, why) = wanted(hold).then(|| (Arc::clone(hold), *why))?;
        self.slot = Slot::Open;
        let pause = self.ends.map_or(now, |ends| now.min(ends)).since(std::mem::replace(&mut self.last, now));
        if pause >= STALL && self.ends.is_some() {
            self.missed += pause;
        }
        let (is_wanted, is_recallable) = (self.is_wanted(now), self.is_recallable(&hold));
        let is_idle = why != CachedFor::TimeSlice;
        if is_recallable && (!caches || is_idle && is_wanted) {
            self.recallable = None;
            return Some((hold, Reuse::Never));
        }
        Some((hold, if is_idle { Reuse::UntilRecall } else { Reuse::ForTimeSlice }))
    }

    /// This hold is to be released. Its own thread does not find it from now on.
    pub(crate) fn leave(&mut self, hold: &Arc<H>) {
        self.slot = Slot::Returning(Arc::clone(hold));
        self.forget_recalls(hold);
    }

    /// Takes the cached hold out, to be released, if `is_meant`.
    pub(crate) fn take_to_leave(&mut self, is_meant: impl FnOnce(&H) -> bool) -> Option<Arc<H>> {
        let Slot::Cached(hold, _) = &self.slot else { return None };
        let hold = is_meant(hold).then(|| Arc::clone(hold))?;
        self.leave(&hold);
        Some(hold)
    }

    /// The same for this hold, if it is cached until a recall.
    pub(crate) fn take_idle(&mut self, hold: &Arc<H>) -> Option<Arc<H>> {
        if self.is_idle() && self.is_unused(hold) { self.take_to_leave(|_| true) } else { None }
    }

    pub(crate) fn forget(&mut self, hold: &Arc<H>) {
        if self.is_unused(hold) {
            self.slot = Slot::Open;
        }
        self.forget_recalls(hold);
    }

    pub(crate) fn forget_recalls(&mut self, hold: &Arc<H>) {
        self.recallable.take_if(|cached| Arc::ptr_eq(&cached.hold, hold));
    }

    pub(crate) fn is_unused(&self, hold: &Arc<H>) -> bool {
        matches!(&self.slot, Slot::Cached(other, _) | Slot::Returning(other) if Arc::ptr_eq(other, hold))
    }

    /// Whether a hold that is meant is being released.
    pub(crate) fn is_leaving(&self, is_meant: impl FnOnce(&H) -> bool) -> bool {
        matches!(&self.slot, Slot::Returning(hold) if is_meant(hold))
    }

    /// Whether the end of a hold must ask whether to cache it.
    pub(crate) fn may_cache(&self) -> bool {
        self.may_cache
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.slot, Slot::Cached(_, CachedFor::UntilRecall(_)))
    }

    /// The client ends. Returns what must be dropped without any mutex.
    pub(crate) fn clear(&mut self) -> Option<Subscription> {
        (self.ends, self.slot, self.recallable) = (None, Slot::Open, None);
        self.recalls.take()
    }

    /// The store granted the lock to this client, from a queue of so many.
    pub(crate) fn begin(&mut self, clients: u32, now: Moment) {
        let length = length(clients);
        let more = std::mem::take(&mut self.missed).min(length);
        self.ends = Some(now.plus(length).plus(more));
        (self.began, self.last, self.may_cache) = (now, now, true);
    }

    pub(crate) fn note_asked(&mut self, thread: u64, now: Moment) {
        if let Some((dropped, _)) = self.dropped.take_if(|(_, by)| *by == thread) {
            if now.since(dropped) <= AT_ONCE {
                self.score = MOST.min(self.score + 1);
            } else {
                self.note_absence();
            }
        }
    }

    fn note_absence(&mut self) {
        self.score = self.score.saturating_sub(LATE);
    }

    /// That thread waited for the release of its hold, which was not cached: it can come back from now on.
    pub(crate) fn note_return(&mut self, thread: u64, now: Moment) {
        if let Some((dropped, _)) = self.dropped.as_mut().filter(|(_, by)| *by == thread) {
            *dropped = now;
        }
    }

    /// Test hook: assumes that every thread reacquires at once.
    #[cfg(leasehold_shuttle)]
    pub(crate) fn count_on_return(&mut self) {
        self.score = MOST;
    }

    /// Another thread here gets the lock, with the rest of the slice.
    pub(crate) fn pass_on(&mut self, now: Moment) {
        (self.began, self.last) = (now, now);
    }

    /// Whether the slice is over for waiting threads here: this one would come back at once, and others wait.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.score >= LEAST && self.ends.is_some_and(|ends| now >= ends)
    }

    /// The lock went back to the store, or was lost: the slice is over. A cached hold may be another, and
    /// stays.
    pub(crate) fn end(&mut self) {
        self.ends = None;
    }

    /// The recalls so far. `None`: none would be heard now, or too many came, so nothing is to be cached.
    pub(crate) fn heard(&self, now: Moment) -> Option<u64> {
        let is_paused = self.paused_until.is_some_and(|until| now < until);
        self.count().filter(|_| !is_paused)
    }

    pub(crate) fn listens(&self) -> bool {
        self.recalls.is_some()
    }

    /// Returns the subscription that is not needed.
    pub(crate) fn listen(&mut self, recalls: Option<Subscription>) -> Option<Subscription> {
        match &self.recalls {
            None => std::mem::replace(&mut self.recalls, recalls),
            Some(_) => recalls,
        }
    }

    fn count(&self) -> Option<u64> {
        // Looks first, counts second: each change of `is_up` is counted, see `Channel::set_up`.
        self.recalls.as_ref().filter(|recalls| recalls.is_up()).map(Subscription::message_count)
    }

    /// A hold was granted on these terms. Returns when to check it, and whether the keeper does not watch
    /// this lock yet.
    pub(crate) fn grant(&mut self, hold: &Arc<H>, terms: CacheTerms, now: Moment) -> (Moment, bool) {
        self.may_cache = true;
        let next_check = now.plus(FIRST_CHECK);
        let hold = Arc::clone(hold);
        self.recallable = Some(Recallable { hold, terms, next_check, gap: FIRST_CHECK });
        (next_check, self.begin_watch())
    }

    fn is_recallable(&self, hold: &Arc<H>) -> bool {
        self.recallable.as_ref().is_some_and(|cached| Arc::ptr_eq(&cached.hold, hold))
    }

    /// Whether others want the hold; notes a new recall.
    fn is_wanted(&mut self, now: Moment) -> bool {
        let count = self.count();
        match &mut self.recallable {
            None => false,
            Some(cached) if cached.terms.is_wanted => true,
            Some(cached) if Some(cached.terms.heard) == count => false,
            Some(cached) => {
                cached.terms.is_wanted = true;
                // A subscription that is gone says nothing about others.
                if count.is_some() {
                    self.note_recall(now);
                }
                true
            }
        }
    }

    fn note_recall(&mut self, now: Moment) {
        let last = self.recalled.replace(now);
        if last.is_some_and(|last| now.since(last) < SOON) {
            self.paused_until = Some(now.plus(PAUSE));
        }
    }

    pub(crate) fn note_wanted(&mut self, hold: &Arc<H>, now: Moment) {
        let cached = self.recallable.as_mut().filter(|cached| Arc::ptr_eq(&cached.hold, hold));
        if cached.is_some_and(|cached| !std::mem::replace(&mut cached.terms.is_wanted, true)) {
            self.note_recall(now);
        }
    }

    /// Returns whether nobody has watched this lock up to now.
    fn begin_watch(&mut self) -> bool {
        !std::mem::replace(&mut self.is_watched, true)
    }

    pub(crate) fn watch(&mut self, now: Moment) -> Watched<H> {
        let is_wanted = self.is_wanted(now);
        let idle_until = match self.slot {
            Slot::Cached(_, CachedFor::UntilRecall(since)) => Some(since.plus(UNUSED)),
            _ => None,
        };
        if idle_until.is_some_and(|until| is_wanted || now >= until)
            && let Some(hold) = self.take_to_leave(|_| true)
        {
            return Watched::Idle(hold);
        }
        let mut next = Moment::NEVER;
        if let Some(cached) = &mut self.recallable {
            // Up to a quarter of the gap early, so that holds share a check: else ten thousand would be gone
            // through at each of their times.
            if now.plus(cached.gap / 4) >= cached.next_check {
                cached.gap = (cached.gap * 2).min(LONGEST_CHECK_GAP);
                cached.next_check = now.plus(cached.gap);
                return Watched::Check(Arc::clone(&cached.hold));
            }
            next = idle_until.map_or(cached.next_check, |until| until.min(cached.next_check));
        }
        if idle_until.is_some() {
            return Watched::Until(next);
        }
        // A hold that others have recalled is cached for a time slice only.
        let until = self.last.plus(IDLE);
        match (&self.slot, self.ends) {
            (Slot::Cached(..), Some(ends)) if now < until.min(ends) => {
                Watched::Until(until.min(ends).min(next))
            }
            (Slot::Cached(hold, _), _) => {
                let hold = Arc::clone(hold);
                self.leave(&hold);
                self.dropped = None;
                self.note_absence();
                Watched::Idle(hold)
            }
            (_, Some(ends)) if now < ends => Watched::Until(now.plus(IDLE).min(next)),
            _ if next < Moment::NEVER => Watched::Until(next),
            _ => {
                self.is_watched = false;
                Watched::Over
            }
        }
    }
}
