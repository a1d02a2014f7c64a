//! Cached holds, and the cache thread, which releases those that no thread uses.
//!
//! `lock/caching.rs` has the rules. A cached hold stays in the machine, so the lock counts as held in this
//! process. Only the hold's own thread can reuse it.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::acquire::call::{AcquireCall, Granted};
use crate::engine::core::{Call, Core, Ended};
use crate::engine::hold::{Hold, LocalLock, State, free_first};
use crate::engine::lock::caching::RULES;
use crate::engine::lock::{CachedFor, Stale, Watched};
use crate::engine::release::completion::released;
use crate::engine::renewals::CHUNK;
use crate::engine::{Engine, exit};
use crate::error::{Error, ErrorKind, Result};
use crate::ident::ThreadMarker;
use crate::observe::LossReason;
use crate::observe::spans::WaitSpan;
use crate::park::Service;
use crate::seam::capabilities::CachedCheck;
use crate::seam::{Claim, Kind};
use crate::sync::Waker;
use crate::time::Moment;

/// After this time, a round of the cache thread begins no more releases, and checks the other holds.
const SLICE: Duration = Duration::from_millis(100);

impl Engine {
    /// How the hold may be cached: as `State::can_stay`, but `None` also for a hold that the client could not
    /// release later, or whose next use would inherit something, such as a listener.
    pub(super) fn may_stay(&self, own: &State, is_dropped: bool) -> Option<bool> {
        let by_time_slice = own.hold.can_be_cached(own, is_dropped)?;
        let can_release = !self.calls.is_closed()
            && self.cache_thread().is_some()
            && exit::note_cached(ThreadMarker::current().id());
        can_release.then_some(by_time_slice)
    }

    pub(super) fn cached(&self, hold: &Arc<Hold>, cached: CachedFor, now: Moment) {
        // A hold cached until a recall needs no such call: the cache thread watches it from its grant on.
        if cached == CachedFor::TimeSlice {
            self.core.cache_thread.watch(&hold.local, now.plus(RULES.idle));
        }
        self.reporter.report(released(hold, now));
    }

    pub(in crate::engine) fn cache_thread(&self) -> Option<&(Arc<Service>, Waker)> {
        let start = || {
            let (service, parker) = Service::new(&self.clock);
            let (service, core) = (Arc::new(service), Arc::clone(&self.core));
            let (own, waker) = (Arc::clone(&service), parker.waker().clone());
            let work = move || own.run(&parker, |_| core.watch_cached());
            service.start("leasehold-turn", work).ok()?;
            exit::note_client(&self.core);
            Some((service, waker))
        };
        let cache_thread = &self.core.cache_thread;
        if let Some(service) = cache_thread.service.get() {
            return service.as_ref();
        }
        // Only one thread starts the service. The others wait for this mutex, because the model checker
        // cannot see a thread that waits in `get_or_init`.
        let _alone = cache_thread.locks.lock();
        cache_thread.service.get_or_init(start).as_ref()
    }

    pub(crate) fn can_cache(&self, call: &AcquireCall<'_>) -> Result<()> {
        let hold_caching = &self.store.capabilities.hold_caching;
        if matches!(call.kind, Kind::Mutex | Kind::Fenced)
            && hold_caching.as_ref().is_some_and(|cached| cached.caches())
        {
            return Ok(());
        }
        let words = "`cached` is for plain and fenced locks on one Redis, with Sentinels or in a cluster, in a table of PostgreSQL, on etcd \
                     and on ZooKeeper: elsewhere a waiter cannot recall the lock. Leave `cached` out";
        Err(Error::new(ErrorKind::Unsupported, call.action, words))
    }

    pub(crate) fn heard(&self, local: &Arc<LocalLock>, claim: &Claim) -> Option<u64> {
        let hold_caching = self.store.capabilities.hold_caching.as_ref()?;
        let (_, waker) = self.cache_thread()?;
        let now = self.clock.now();
        self.registry.remember(local, now);
        let heard = local.on(now, |lock, at| lock.caching.heard(at));
        local.listen(true, || hold_caching.hear(claim, waker));
        heard
    }

    pub(crate) fn reuse_cached(
        &self,
        call: &AcquireCall<'_>,
        granted: Granted,
        begun: Moment,
    ) -> Result<Granted> {
        if granted.hold.with(|own| own.recallable.is_none()) {
            self.watch(&granted.hold); // the hold was not renewed while it was cached
        }
        let span = WaitSpan::open(call.name.given(), call.kind.label());
        self.report_granted(call, &granted.hold, (begun, 0, None), &span);
        self.unless_shut_down(call, granted)
    }
}

impl Core {
    /// Releases the cached hold, if any; for an `ended` thread only that thread's. Races with `find`,
    /// which may reuse the hold: the mutex decides which comes first.
    pub(crate) fn release_cached(self: &Arc<Core>, local: &LocalLock, ended: Option<&Ended>) {
        let thread = ended.and_then(|ended| ended.thread);
        let given = local.on(self.clock.now(), |lock, at| lock.release_cached(thread, at));
        self.send_cached_release(given, ended.map(|ended| Arc::clone(&ended.call)));
    }

    /// Hands off or releases the cached hold `given`, if any, or forgets it if it is lost. The call `ending`
    /// ends when the answer has been read.
    pub(crate) fn send_cached_release(
        self: &Arc<Core>,
        given: Option<Stale<Arc<Hold>>>,
        ending: Option<Arc<Call>>,
    ) {
        let Some((hold, next)) = given else { return };
        let (_until_out, now) = (self.calls.begin(), self.clock.now());
        if let Some(next) = self.unless_lost(&hold, 0, next, now) {
            self.leave_later(&hold, next, now, ending);
        }
    }

    /// One round of the cache thread: releases unused and wanted holds and those of ended threads, and checks
    /// the others. Returns when the next round is.
    pub(in crate::engine) fn watch_cached(self: &Arc<Core>) -> Moment {
        let mut ended = std::mem::take(&mut *self.cache_thread.ended.lock());
        let locks = std::mem::take(&mut *self.cache_thread.locks.lock());
        let (begun, mut next) = (self.clock.now(), Moment::NEVER);
        // Ending threads wait for these releases, so these releases come first.
        let mut release = |local: &Arc<LocalLock>, ended: &Ended| {
            let now = self.clock.now();
            let is_over = now.since(begun) >= SLICE;
            if is_over {
                next = now; // the next round goes on
            } else {
                self.release_cached(local, Some(ended));
            }
            !is_over
        };
        if !ended.iter().all(|ended| locks.iter().all(|local| release(local, ended))) {
            self.cache_thread.ended.lock().append(&mut ended);
        }
        drop(ended); // wakes ending threads before the checks
        let (mut watched, mut checks) = (Vec::new(), Vec::new());
        for local in free_first(locks, |local| local) {
            let now = self.clock.now();
            let is_waited_for = local.hears() && self.is_waited_for_here(&local);
            match local.watch(is_waited_for, now) {
                Watched::Over => {}
                // After a `SLICE` the next round must release the hold: in a store where each release waits
                // for its answer, many releases would delay the checks.
                Watched::Idle if now.since(begun) >= SLICE => {
                    next = now;
                    watched.push(local);
                }
                Watched::Idle => {
                    self.release_cached(&local, None);
                    next = next.min(now.plus(RULES.idle));
                    watched.push(local);
                }
                Watched::Until { next: look, checks: mut due, calls } => {
                    next = next.min(look);
                    checks.append(&mut due);
                    calls.iter().for_each(|hold| hold.call_back(&self.reporter, &self.clock));
                    watched.push(local);
                }
            }
        }
        self.cache_thread.locks.lock().append(&mut watched);
        for checks in checks.chunks(CHUNK) {
            self.check_holds(checks);
            next = self.clock.now(); // callbacks may be due now
        }
        next
    }

    /// Asks the store whether other clients want these holds. If a hold is released meanwhile, the answer
    /// changes nothing: see `is_releasing` and `note_checked`.
    fn check_holds(self: &Arc<Core>, holds: &[Arc<Hold>]) {
        let Some(hold_caching) = &self.store.capabilities.hold_caching else { return };
        let (sent, limit) = (self.clock.now(), self.options.command_timeout.min(RULES.longest_check_gap));
        let claims: Vec<Claim> = holds.iter().map(|hold| hold.claim()).collect();
        for (hold, answer) in holds.iter().zip(hold_caching.check_holds(&claims, sent.plus(limit))) {
            let (now, local) = (self.clock.now(), &hold.local);
            let idle = match answer {
                Ok(CachedCheck::Lost) => {
                    if !hold.is_releasing() {
                        self.lose_at(hold, LossReason::Gone, sent);
                    }
                    None
                }
                Ok(answer) => local.on(now, |lock, at| lock.note_checked(hold.serial, answer, at)),
                Err(_) => None, // the next check asks again
            };
            self.send_cached_release(idle, None);
        }
    }
}
