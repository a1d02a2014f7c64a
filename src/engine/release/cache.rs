//! A hold that is cached after its last level, and the keeper's thread, which releases what nobody uses.
//!
//! `lock/caching.rs` has the rules. A cached hold stays among the lock's holds, so that the lock counts as
//! held here, but is no thread's until its own takes it again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::call::{AcquireCall, Granted};
use crate::engine::calls::{Call, Calls};
use crate::engine::core::{Core, Ended, Leaving};
use crate::engine::exit;
use crate::engine::hold::{Hold, LocalLock, Next, State};
use crate::engine::lock::caching::{IDLE, LONGEST_CHECK_GAP, RULES};
use crate::engine::lock::{CacheOutcome, Watched};
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
    /// Whether this client may cache a hold whose last level ends now, and then whether for a time slice too;
    /// for a dropped guard, or by `unlock`.
    pub(super) fn may_stay(&self, hold: &Arc<Hold>, own: &State, is_dropped: bool) -> Option<bool> {
        let by_time_slice = hold.can_be_cached(own, is_dropped)?;
        let can_give_back = !self.calls.is_closed()
            && self.cache_thread().is_some()
            && exit::note_cached(ThreadMarker::current().id());
        can_give_back.then_some(by_time_slice)
    }

    /// The hold has been cached at `now`; others may release it.
    pub(super) fn cached(&self, hold: &Arc<Hold>, outcome: CacheOutcome, now: Moment) {
        // A hold cached until a recall has been watched since its grant.
        if let (CacheOutcome::ForTimeSlice { is_new }, Some((cache_thread, _))) =
            (outcome, self.cache_thread())
        {
            self.core.cache_thread.watch(cache_thread, hold.local(), is_new, now.plus(IDLE));
        }
        self.report_released(hold, now.since(hold.since()));
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

    /// Has the keeper check a hold that was just granted, and that may stay until a recall.
    pub(crate) fn watch_cached_hold(&self, hold: &Arc<Hold>, is_new: bool) {
        if let Some((cache_thread, _)) = self.cache_thread() {
            let check = self.clock.now().plus(RULES.first_check);
            self.core.cache_thread.watch(cache_thread, hold.local(), is_new, check);
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
        let now = self.clock.now();
        if let Some((hold, next)) = local.give_back(None, now) {
            self.core.give_back(&hold, next, now, self.calls.begin().detached());
        }
    }
}

impl Core {
    /// Sends the release of a cached hold, which has begun if `next` says so; else the hold is lost.
    pub(crate) fn give_back(self: &Arc<Core>, hold: &Arc<Hold>, next: Option<Next>, now: Moment, call: Call) {
        let Some(next) = self.leaves(hold, next, now) else { return };
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
            let mut state = local.state();
            let at = state.at(self.clock.now());
            let step = state.watch(at);
            drop(state);
            match step {
                Watched::Over => continue,
                Watched::Until(moment) => next = next.min(moment),
                Watched::Idle => {
                    leaving.push_back((local, None, None));
                    continue;
                }
                Watched::Check(hold) => {
                    next = next.min(at.now); // it says when by the next round, a check later
                    checks.push(hold);
                }
            }
            watched.push(local);
        }
        // Bounded: on a store whose releases wait for the answer, many would delay the checks of holds in use.
        // The rest stays cached, and its threads may reacquire it.
        while let Some((local, thread, waited_for)) = leaving.pop_front() {
            let now = self.clock.now();
            if let Some((hold, to)) = local.give_back(thread, now) {
                let call = calls.begin().detached();
                self.give_back(&hold, to, now, waited_for.into_iter().fold(call, Call::and));
            }
            next = next.min(now.plus(IDLE));
            watched.push(local);
            if now.since(begun) >= SLICE {
                break;
            }
        }
        self.cache_thread.locks.lock().append(&mut watched);
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
    fn take_of_ended(&self, leaving: &mut VecDeque<Leaving>) {
        let ended = std::mem::take(&mut *self.cache_thread.ended.lock());
        if ended.is_empty() {
            return;
        }
        let mut locks = self.cache_thread.locks.lock();
        for Ended { thread, call } in &ended {
            let is_meant = |local: &LocalLock| local.state().caches(*thread);
            for (_, _, waited_for) in leaving.iter_mut().filter(|(local, ..)| is_meant(local)) {
                *waited_for = Some(waited_for.take().into_iter().fold(call.another(), Call::and));
            }
            let cached = locks.extract_if(.., |local| is_meant(local));
            leaving.extend(cached.map(|local| (local, *thread, Some(call.another()))));
        }
        leaving.make_contiguous().sort_by_key(|(_, _, waited_for)| waited_for.is_none());
    }

    /// Asks the store whether others want these cached holds. An answer about a hold that is released
    /// meanwhile changes nothing: see `is_releasing` and `note_wanted`.
    fn check_holds(self: &Arc<Core>, holds: &[Arc<Hold>], calls: &Arc<Calls>) {
        let Some(hold_caching) = self.store.capabilities().hold_caching else { return };
        let (sent, limit) = (self.clock.now(), self.options.command_timeout.min(LONGEST_CHECK_GAP));
        let claims: Vec<Claim> = holds.iter().map(|hold| hold.claim()).collect();
        for (hold, answer) in holds.iter().zip(hold_caching.check_holds(&claims, sent.plus(limit))) {
            let now = self.clock.now();
            let idle = match answer {
                Ok(CachedCheck::Wanted | CachedCheck::Unmarked) => hold.local().note_wanted(hold, now),
                Ok(CachedCheck::Lost) => {
                    // Treated like a renewal answered "not yours".
                    if !hold.is_releasing() {
                        self.lose_at(hold, LossReason::Gone, sent);
                    }
                    None
                }
                Ok(CachedCheck::Stays) | Err(_) => None, // what nobody uses goes all the same
            };
            let call = || calls.begin().detached();
            idle.into_iter().for_each(|(hold, next)| self.give_back(&hold, next, now, call()));
        }
    }

    /// The hold is released with its last level, as any other.
    pub(crate) fn end_until_recall(&self, hold: &Arc<Hold>) {
        hold.end_until_recall();
    }
}
