//! A hold that is cached after its last level, and the keeper's thread, which releases what nobody uses.
//!
//! `hold/caching.rs` has the rules. A cached hold stays among the lock's holds, so that the lock counts as
//! held here, but is no thread's until its own takes it again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted};
use crate::engine::calls::{Call, Calls};
use crate::engine::core::{Core, Ended};
use crate::engine::exit;
use crate::engine::hold::caching::{CacheOutcome, CacheTerms, IDLE, LONGEST_CHECK_GAP, Watched};
use crate::engine::hold::local_lock::LevelEnd;
use crate::engine::hold::{Hold, LocalLock};
use crate::engine::renewals::CHUNK;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::ThreadMarker;
use crate::observe::LossReason;
use crate::observe::spans::WaitSpan;
use crate::park::Service;
use crate::seam::capabilities::{CachedCheck, HoldCaching};
use crate::seam::{Claim, Kind};
use crate::sync::Waker;
use crate::time::Moment;

/// Releases take at most this long before the other locks are checked.
const SLICE: Duration = Duration::from_millis(100);

impl Engine {
    /// Caches a hold whose last level ended at `now`: until a recall, or, for a dropped guard or a `cached`
    /// lock, for the time slice if the thread is likely to be back at once. `false`: release it.
    pub(super) fn caches(&self, hold: &Arc<Hold>, ended: &LevelEnd, is_dropped: bool, now: Moment) -> bool {
        if ended.left > 0 || ended.next.is_some() || !ended.may_cache {
            return false;
        }
        let Some(by_time_slice) = hold.can_be_cached(is_dropped) else { return false };
        if hold.loss_at(now).is_some() || self.calls.is_closed() {
            return false;
        }
        let Some((cache_thread, _)) = self.cache_thread() else { return false };
        let thread = ThreadMarker::current().id();
        if !exit::note_cached(thread) {
            return false;
        }
        let held = now.since(hold.since());
        let local = hold.local();
        // From then on others may release it.
        match local.cache((hold, thread), by_time_slice, now) {
            CacheOutcome::Ends => return false,
            CacheOutcome::UntilRecall => {} // watched since it was granted
            CacheOutcome::ForTimeSlice { is_new } => {
                self.core.cache_thread.watch(cache_thread, local, is_new, now.plus(IDLE))
            }
        }
        self.report_released(hold, held);
        true
    }

    pub(in crate::engine) fn cache_thread(&self) -> Option<&(Arc<Service>, Waker)> {
        let start = || {
            let (service, parker) = Service::new(&self.clock);
            let (service, core, calls) = (Arc::new(service), Arc::clone(&self.core), Arc::clone(&self.calls));
            let (own, waker) = (Arc::clone(&service), parker.waker().clone());
            let work = move || own.run(&parker, |_| core.watch_cached(&calls));
            service.start("leasehold-turn", work).ok()?;
            exit::note_client(&self.core);
            Some((service, waker))
        };
        let cache_thread = &self.core.cache_thread;
        if let Some(service) = cache_thread.service.get() {
            return service.as_ref();
        }
        // One thread starts it, and none waits in `get_or_init`, where the model does not see a thread wait.
        let _alone = cache_thread.locks.lock();
        cache_thread.service.get_or_init(start).as_ref()
    }

    /// Whether this call can cache holds until a recall; if not, why.
    pub(crate) fn can_cache(&self, call: &AcquireCall<'_>) -> Result<()> {
        let hold_caching = self.store.capabilities().hold_caching;
        if matches!(call.kind, Kind::Mutex | Kind::Fenced) && hold_caching.is_some_and(HoldCaching::caches) {
            return Ok(());
        }
        let words = "`cached` is for plain and fenced locks on one Redis, with Sentinels or in a cluster, in a table of PostgreSQL, on etcd \
                     and on ZooKeeper: elsewhere a waiter cannot recall the lock. Leave `cached` out";
        Err(Error::new(ErrorKind::Unsupported, call.action, words))
    }

    /// The recalls so far, if all are heard.
    pub(crate) fn heard(&self, local: &Arc<LocalLock>, claim: &Claim) -> Option<u64> {
        let hold_caching = self.store.capabilities().hold_caching?;
        let (_, waker) = self.cache_thread()?;
        let now = self.clock.now();
        self.registry.remember(local, now);
        local.heard(now, || hold_caching.hear(claim, waker))
    }

    /// Caches a hold that was just granted, from the end of its use until a recall.
    pub(crate) fn cache_until_recall(&self, hold: &Arc<Hold>, terms: CacheTerms) {
        let (next, is_new) = hold.local().state().caching.grant(hold, terms, self.clock.now());
        if let Some((cache_thread, _)) = self.cache_thread() {
            self.core.cache_thread.watch(cache_thread, hold.local(), is_new, next);
        }
    }

    /// The thread has its cached hold again, without a request.
    pub(crate) fn reuse_cached(
        &self,
        call: &AcquireCall<'_>,
        granted: Granted,
        begun: Moment,
    ) -> Result<Granted> {
        if !granted.hold.is_until_recall() {
            self.watch(&granted.hold); // without a level it was not to be renewed
        }
        self.registry.note_grant();
        let span = WaitSpan::open(call.name.given(), call.kind.label());
        self.report_granted(call, &granted.hold, (begun, 0, None), &span);
        self.unless_shut_down(call, granted)
    }

    /// Releases the cached hold: to the program the lock is not held. This thread's next request goes behind
    /// the release.
    pub(crate) fn release_cached(&self, local: &LocalLock) {
        if let Some(hold) = local.take_cached(None) {
            let now = self.clock.now();
            self.core.give_back(&hold, now, self.calls.begin().detached());
        }
    }
}

impl Core {
    /// Releases a cached hold that was taken out for this.
    pub(crate) fn give_back(self: &Arc<Core>, hold: &Arc<Hold>, now: Moment, call: Call) {
        let Some(next) = self.still_held(hold, LevelEnd::LAST, now) else { return };
        let settled = || self.settle_later(hold, call.another());
        if self.start_handoff(hold, next, now, settled).is_some() {
            let until_out = call.another();
            self.release_later(hold, now, call);
            // As in `drop_level`.
            self.registry.remove(hold);
            drop(until_out);
        }
    }

    /// On the keeper's thread: releases what nobody uses or others want, and returns when to look next.
    fn watch_cached(self: &Arc<Core>, calls: &Arc<Calls>) -> Moment {
        let mut leaving = std::mem::take(&mut *self.cache_thread.leaving.lock());
        self.take_of_ended(&mut leaving);
        let locks = std::mem::take(&mut *self.cache_thread.locks.lock());
        let (begun, mut next) = (self.clock.now(), Moment::NEVER);
        let (mut watched, mut checks) = (Vec::new(), Vec::new());
        for local in locks {
            let now = self.clock.now();
            let step = local.state().caching.watch(now);
            match step {
                Watched::Over => continue,
                Watched::Until(moment) => next = next.min(moment),
                Watched::Idle(hold) => {
                    leaving.push_back((hold, None));
                    next = next.min(now.plus(IDLE));
                }
                Watched::Check(hold) => {
                    next = next.min(now); // it says when by the next round, a check later
                    checks.push(hold);
                }
            }
            watched.push(local);
        }
        self.cache_thread.locks.lock().append(&mut watched);
        // In slices: where each release waits for its answer, many of them would delay the checks of holds in
        // use.
        while let Some((hold, waited_for)) = leaving.pop_front() {
            let now = self.clock.now();
            let call = calls.begin().detached();
            self.give_back(&hold, now, waited_for.into_iter().fold(call, Call::and));
            if now.since(begun) >= SLICE {
                break;
            }
        }
        if !leaving.is_empty() {
            next = self.clock.now();
            *self.cache_thread.leaving.lock() = leaving;
        }
        for checks in checks.chunks(CHUNK) {
            self.check_holds(checks, calls);
        }
        next.min(self.watch_hearers())
    }

    /// Puts first what ending threads wait for.
    fn take_of_ended(&self, leaving: &mut VecDeque<(Arc<Hold>, Option<Call>)>) {
        let ended = std::mem::take(&mut *self.cache_thread.ended.lock());
        if ended.is_empty() {
            return;
        }
        let locks = self.cache_thread.locks.lock().clone();
        for Ended { thread, call } in &ended {
            let is_meant = |hold: &Hold| thread.is_none_or(|thread| hold.is_of_thread(thread));
            for (_, waited_for) in leaving.iter_mut().filter(|(hold, _)| is_meant(hold)) {
                *waited_for = Some(waited_for.take().into_iter().fold(call.another(), Call::and));
            }
            let cached = locks.iter().filter_map(|local| local.take_cached(*thread));
            leaving.extend(cached.map(|hold| (hold, Some(call.another()))));
        }
        leaving.make_contiguous().sort_by_key(|(_, waited_for)| waited_for.is_none());
    }

    /// Asks the store whether others want these cached holds. An answer about a hold that is released
    /// meanwhile changes nothing: see `is_releasing`, `note_wanted` and `take_idle`.
    fn check_holds(self: &Arc<Core>, holds: &[Arc<Hold>], calls: &Arc<Calls>) {
        let Some(hold_caching) = self.store.capabilities().hold_caching else { return };
        let (sent, limit) = (self.clock.now(), self.options.command_timeout.min(LONGEST_CHECK_GAP));
        let claims: Vec<Claim> = holds.iter().map(|hold| hold.claim()).collect();
        for (hold, answer) in holds.iter().zip(hold_caching.check_holds(&claims, sent.plus(limit))) {
            let now = self.clock.now();
            let idle = match answer {
                Ok(CachedCheck::Wanted | CachedCheck::Unmarked) => hold.local().note_wanted(hold, now),
                Ok(CachedCheck::Lost) => {
                    // As a renewal that finds that.
                    if !hold.is_releasing() && hold.lose(LossReason::Gone, sent, &self.reporter) {
                        hold.local().nudge();
                    }
                    hold.local().state().caching.take_idle(hold)
                }
                Ok(CachedCheck::Stays) | Err(_) => None, // what nobody uses goes all the same
            };
            idle.into_iter().for_each(|hold| self.give_back(&hold, now, calls.begin().detached()));
        }
    }

    /// The hold is released with its last level, as any other.
    pub(crate) fn end_until_recall(&self, hold: &Arc<Hold>) {
        hold.end_until_recall();
        hold.local().state().caching.forget_recalls(hold);
    }
}
