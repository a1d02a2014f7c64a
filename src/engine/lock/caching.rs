//! Caching: whether, and how long, a hold stays in the store after its last level.
//!
//! Other clients see the lock of a cached hold as held. A time slice begins when the store grants the lock
//! from the wait queue. Within the slice, a thread that comes back at once reacquires without a request.
//! Slices resemble eventual fairness in parking_lot and the cohort locks of Dice, Marathe and Shavit (2012).
//! `lock_builder(name).cached()` leaves the hold in the store until another client recalls it, like the
//! delegations of NFSv4 (RFC 7530, 10.4).

use std::time::Duration;

use crate::engine::lock::state::Recallable;
use crate::engine::lock::{At, CachedFor, Handle, HoldState, Machine, Stage, Stale, Waits, state_in};
use crate::seam::capabilities::CachedCheck;
use crate::time::{Lease, Moment};

/// The limits for hand-offs and caching. Tests use others than the engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Maximum number of local hand-offs before other processes get the lock. Higher values make other
    /// processes wait longer; lower values need more requests.
    pub(crate) local_handoffs: u32,
    /// A lock counts as contended for this time after a release that notified other clients.
    pub(crate) contended: Duration,
    pub(crate) longest_slice: Duration,
    /// A hold that is cached for a time slice is released when no thread has used it for this long.
    pub(crate) idle: Duration,
    pub(crate) least_score: i8,
    /// A hold that is cached until a recall is released when no thread has used it for this long.
    pub(crate) unused: Duration,
    /// The first check of a hold, for waiters that send no recalls, comes this long after the grant. The gap
    /// between two checks doubles, up to the longest.
    pub(crate) first_check: Duration,
    pub(crate) longest_check_gap: Duration,
}

pub(crate) const RULES: Rules = Rules {
    local_handoffs: 24,
    contended: Duration::from_secs(1),
    longest_slice: Duration::from_millis(2),
    idle: Duration::from_micros(300),
    least_score: 1,
    unused: Duration::from_millis(500),
    first_check: Duration::from_millis(50),
    longest_check_gap: Duration::from_millis(500),
};
/// Total of the time slices of all clients in the wait queue.
const SLICES: Duration = Duration::from_millis(64);
/// A time slice caches no hold that lasted longer, because a request costs little beside such a hold.
const SHORT: Duration = Duration::from_micros(500);
/// A thread that asks again within this time comes back "at once".
pub(super) const AT_ONCE: Duration = Duration::from_micros(200);
/// Two recalls within `SOON` stop caching for `PAUSE`: clients that alternate gain nothing by caching.
const SOON: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_secs(1);
/// A longer pause within a time slice means that the operating system did not run the thread.
const STALL: Duration = Duration::from_micros(600);

/// The score of a lock rises by one, up to `MOST`, when a thread reacquires at once, and falls by `LATE`,
/// down to `LEAST`, when not. Time slices cache holds from score one on. The score starts at zero, so one
/// quick reacquire is enough: a client among hundreds gets few grants from which it could learn.
pub(super) const LEAST: i8 = -2;
pub(super) const MOST: i8 = 6;
pub(super) const LATE: i8 = 4;

/// The memory of a lock for decisions about caching. The hold's [`Stage`] says whether it is cached, and why.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Caching {
    pub(super) ends: Option<Moment>,
    pub(super) began: Moment,
    /// When a thread last acquired or released the hold in this slice.
    pub(super) last: Moment,
    /// When, and by which thread, the lock was last released; `None` once this thread has asked again.
    pub(super) dropped: Option<(Moment, u64)>,
    pub(super) score: i8,
    /// How long this process did not run in the last slices; lengthens the next slice, at most to double.
    missed: Duration,
    /// The last recall, and whether it came soon after the one before.
    pub(super) recalled: Option<(Moment, bool)>,
    /// Whether this client ever had a time slice, or a hold that could be cached until a recall.
    pub(crate) may_cache: bool,
}

#[derive(Debug)]
pub(crate) enum Watched<H> {
    /// Release the cached hold: no thread uses it, or others want it.
    Idle,
    /// Ask the store whether others want the holds in `checks`, run the callbacks of those in `calls`, and
    /// watch the lock again at `next`.
    Until {
        next: Moment,
        checks: Vec<H>,
        calls: Vec<H>,
    },
    Over,
}

impl Caching {
    /// A time slice begins: the store granted the lock from a wait queue of `clients`.
    pub(crate) fn begin(&mut self, clients: u32, at: At<'_>) {
        let length = at.rules.longest_slice.min(SLICES / clients.max(1));
        let more = std::mem::take(&mut self.missed).min(length);
        self.ends = Some(at.now.plus(length).plus(more));
        (self.began, self.last, self.may_cache) = (at.now, at.now, true);
    }

    pub(super) fn note_asked(&mut self, thread: u64, at: At<'_>) {
        if let Some((dropped, _)) = self.dropped.take_if(|(_, by)| *by == thread) {
            if at.now.since(dropped) <= AT_ONCE {
                self.score = MOST.min(self.score + 1);
            } else {
                self.note_absence();
            }
        }
    }

    fn note_absence(&mut self) {
        self.score = LEAST.max(self.score - LATE);
    }

    /// Until now `thread` waited for the answer to its release. So the time in which its next acquire counts
    /// as "at once" begins now.
    pub(crate) fn note_return(&mut self, thread: u64, now: Moment) {
        if let Some((dropped, _)) = self.dropped.as_mut().filter(|(_, by)| *by == thread) {
            *dropped = now;
        }
    }

    /// Test hook: assumes that every thread reacquires at once.
    #[cfg(test)]
    pub(crate) fn count_on_return(&mut self) {
        self.score = MOST;
    }

    pub(super) fn pass_on(&mut self, now: Moment) {
        (self.began, self.last) = (now, now);
    }

    /// The number of recalls so far. `None`: do not cache, because recalls may be missed, or two recalls
    /// within `SOON` have paused caching.
    pub(crate) fn heard(&self, at: At<'_>) -> Option<u64> {
        let is_paused = self.recalled.is_some_and(|(last, soon)| soon && at.now.since(last) < PAUSE);
        at.recalls.filter(|_| !is_paused)
    }

    /// Whether others want a hold that may be cached until a recall. Yes, if there is no subscription.
    fn is_wanted<H>(&mut self, own: &mut HoldState<H>, at: At<'_>) -> bool {
        let Some(recallable) = &mut own.recallable else { return false };
        if Some(recallable.heard) != at.recalls {
            self.note_wanted(recallable, at);
        }
        recallable.is_wanted
    }

    /// Notes that others want the hold. Without a subscription this is a guess, and counts as no recall.
    fn note_wanted(&mut self, recallable: &mut Recallable, at: At<'_>) {
        if !std::mem::replace(&mut recallable.is_wanted, true) && at.recalls.is_some() {
            let soon = self.recalled.is_some_and(|(last, _)| at.now.since(last) < SOON);
            self.recalled = Some((at.now, soon));
        }
    }

    /// Whether other clients come before waiters here, because a time slice that threads used has ended.
    pub(super) fn is_over(&self, at: At<'_>) -> bool {
        self.score >= at.rules.least_score && self.ends.is_some_and(|ends| at.now >= ends)
    }
}

impl<H: Handle, W: Waits, X> Machine<H, W, X> {
    /// Caches a hold whose last level has ended, if the rules allow it. `by_time_slice`: also for a time
    /// slice, not only until a recall.
    pub(super) fn cache(&mut self, serial: u64, by_time_slice: bool, at: At<'_>) -> Option<CachedFor> {
        let waiting = self.queue.tickets.len();
        // At most one hold of a lock is cached, handed off or being released at a time.
        if self.holds.iter().any(|other| !matches!(other.stage, Stage::Held | Stage::Lost)) {
            return None;
        }
        let Machine { holds, caching, .. } = self;
        let own = state_in(holds, serial)?;
        // A waiter that joins the queue later finds and releases the hold: see `Waiting::take_or_give_up`.
        if waiting == 0 && !caching.is_wanted(own, at) && own.recallable.is_some() {
            let until_recall = CachedFor::UntilRecall(at.now);
            own.set(Stage::Cached(until_recall));
            return Some(until_recall);
        }
        if !by_time_slice {
            return None;
        }
        caching.dropped = Some((at.now, own.thread.unwrap_or_default()));
        let ends = caching.ends?;
        let held = at.now.since(std::mem::replace(&mut caching.last, at.now));
        let share = ends.since(caching.began) / u32::try_from(waiting + 1).unwrap_or(u32::MAX);
        let is_part_over = at.now >= caching.began.plus(share);
        if caching.score < at.rules.least_score || held >= SHORT || is_part_over {
            return None;
        }
        own.set(Stage::Cached(CachedFor::TimeSlice));
        Some(CachedFor::TimeSlice)
    }

    /// Reuses a cached hold, and returns the new level; `None`: the hold must be released. A time slice goes
    /// on even if others want the lock. `caches`: the call may cache the hold until a recall.
    /// `may_use(hold, is_cached_until_recall)`: whether the call can use the hold.
    pub(super) fn reuse(
        &mut self,
        serial: u64,
        caches: bool,
        may_use: impl FnOnce(&H, bool) -> bool,
        at: At<'_>,
    ) -> Option<u64> {
        let Machine { holds, caching, .. } = self;
        let own = state_in(holds, serial)?;
        let is_idle = own.is_cached_until_recall();
        let until = caching.ends.map_or(at.now, |ends| at.now.min(ends));
        let pause = until.since(std::mem::replace(&mut caching.last, at.now));
        if pause >= STALL && caching.ends.is_some() {
            caching.missed += pause;
        }
        let is_wanted = caching.is_wanted(own, at);
        let is_refused = own.recallable.is_some() && (!caches || is_idle && is_wanted);
        if is_refused || !may_use(&own.hold, is_idle) || own.is_over(at.now) {
            return None;
        }
        own.set(Stage::Held);
        own.asks_to_cache = caches;
        Some(own.levels.add(Lease::Renewed))
    }

    /// Begins the release of a hold that is cached for `thread`, or for any thread.
    pub(crate) fn release_cached(&mut self, thread: Option<u64>, at: At<'_>) -> Option<Stale<H>> {
        let is_meant = |own: &&HoldState<H>| own.is_cached() && thread.is_none_or(|thread| own.is_of(thread));
        let hold = self.holds.iter().find(is_meant)?.hold.clone();
        let next = self.begin_release(hold.serial(), at);
        Some((hold, next))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.holds.iter().any(HoldState::is_cached_until_recall)
    }

    /// Handles the answer to a check. If others want a hold that no thread uses, begins its release.
    pub(crate) fn note_checked(&mut self, serial: u64, answer: CachedCheck, at: At<'_>) -> Option<Stale<H>> {
        let Machine { holds, caching, .. } = self;
        let own = state_in(holds, serial)?;
        if let Some(hears) = &mut own.hears {
            hears.note(answer, at.now);
        }
        if answer == CachedCheck::Stays {
            return None;
        }
        own.recallable.iter_mut().for_each(|recallable| caching.note_wanted(recallable, at));
        if own.is_cached_until_recall() { self.release_cached(None, at) } else { None }
    }

    /// Decides what the cache thread does about this lock's holds. `is_waited_for`: a thread of this client
    /// waits, which counts for holds that learn of waiters (`hears`).
    pub(crate) fn watch(&mut self, at: At<'_>, is_waited_for: bool) -> Watched<H> {
        let Machine { holds, caching, .. } = self;
        let (now, mut next) = (at.now, Moment::NEVER);
        match holds.iter_mut().find(|own| own.is_cached()).map(|own| (caching.is_wanted(own, at), own.stage))
        {
            Some((is_wanted, Stage::Cached(CachedFor::UntilRecall(since)))) => {
                next = since.plus(at.rules.unused);
                if is_wanted || now >= next {
                    return Watched::Idle;
                }
            }
            Some(_) => {
                next = caching.last.plus(at.rules.idle).min(caching.ends.unwrap_or(now));
                if now >= next {
                    if caching.dropped.take().is_some() {
                        caching.note_absence();
                    }
                    return Watched::Idle;
                }
            }
            None if caching.ends.is_some_and(|ends| now < ends) => next = now.plus(at.rules.idle),
            None => {}
        }
        // This part follows all early returns, because the caller must carry out the checks noted here.
        let (mut checks, mut calls) = (Vec::new(), Vec::new());
        for own in holds.iter_mut().filter(|own| own.is_live()) {
            if let Some(recallable) = &mut own.recallable {
                // A check may come a quarter of its gap early, so that many holds share one round: otherwise
                // each of ten thousand holds would cause a round of its own.
                if now.plus(recallable.gap / 4) >= recallable.next_check {
                    recallable.gap = (recallable.gap * 2).min(at.rules.longest_check_gap);
                    recallable.next_check = now.plus(recallable.gap);
                    checks.push(own.hold.clone());
                }
                next = next.min(recallable.next_check);
            }
            if let Some(hears) = &mut own.hears {
                let (is_due, is_called, look) = hears.watch(at, is_waited_for);
                checks.extend(is_due.then(|| own.hold.clone()));
                calls.extend(is_called.then(|| own.hold.clone()));
                next = next.min(look);
            }
        }
        if next == Moment::NEVER {
            return Watched::Over;
        }
        Watched::Until { next, checks, calls }
    }
}
