//! A store that is connected to when it is first used.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{Fence, LockName, Owner};
use crate::inspect::Inspection;
use crate::park::ServiceWaker;
use crate::seam::capabilities::{Batches, Capabilities, Opening, Pipeline, Sessions};
use crate::seam::fallbacks::{begin_attempt, begin_release, describe_by_kinds};
use crate::seam::inspection::Inspect;
use crate::seam::subscription::Subscription;
use crate::seam::{
    Answer, Answered, Attempt, Bound, Claim, Counting, Failure, Kind, Pending, Release, Sink, Snapshot, Store,
};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, Waker};
use crate::time::Moment;

/// Connects.
pub(crate) type StoreOpener = Box<dyn Fn() -> Result<Arc<dyn Store>> + Send + Sync>;

/// Every call goes to the store behind it once that is there; [`Opening::open`], which comes before each use,
/// connects to it. Until then nothing is held, so there is nothing to renew or to release.
pub(crate) struct LazyStore {
    open: StoreOpener,
    store: OnceLock<Arc<dyn Store>>,
    /// One thread connects at a time; the last failure.
    opening: Mutex<Option<Error>>,
    /// How many attempts to connect have failed.
    failures: AtomicU64,
    watchdog: Mutex<Option<ServiceWaker>>,
    closed: AtomicBool,
}

impl LazyStore {
    pub(crate) fn new(open: StoreOpener) -> LazyStore {
        LazyStore {
            open,
            store: OnceLock::new(),
            opening: Mutex::new(None),
            failures: AtomicU64::new(0),
            watchdog: Mutex::new(None),
            closed: AtomicBool::new(false),
        }
    }

    fn now(&self) -> &dyn Store {
        match self.store.get() {
            Some(store) => store.as_ref(),
            None => &Unopened,
        }
    }

    fn connect(&self) -> Result<()> {
        let before = self.failures.load(Ordering::SeqCst);
        let mut last = self.opening.lock();
        if self.store.get().is_some() {
            return Ok(());
        }
        // An earlier caller has just found out: all waiters get its error at once, not one after the other.
        if let (Some(error), true) = (&*last, self.failures.load(Ordering::SeqCst) != before) {
            return Err(error.copy());
        }
        let store = (self.open)().inspect_err(|error| {
            *last = Some(error.copy());
            self.failures.fetch_add(1, Ordering::SeqCst);
        })?;
        if let Some(watchdog) = &*self.watchdog.lock()
            && let Some(sessions) = store.capabilities().sessions
        {
            sessions.attach(watchdog.clone());
        }
        let store = self.store.get_or_init(|| store);
        // Set first, looked second. Pairs with `close`.
        if self.closed.load(Ordering::SeqCst) {
            store.close();
        }
        Ok(())
    }

    /// A lock value may have been made before it was known what names this store can keep.
    fn checked<T>(
        &self,
        kind: Kind,
        name: &LockName,
        ask: impl FnOnce(&dyn Store) -> Answer<T>,
    ) -> Answer<T> {
        let store = self.now();
        match store.check_name(kind, name) {
            Ok(()) => ask(store),
            Err(error) => Err(Failure::Refused(error)),
        }
    }
}

impl Store for LazyStore {
    fn capabilities(&self) -> Capabilities<'_> {
        let behind = self.now().capabilities();
        Capabilities {
            opening: Some(self),
            sessions: Some(self),
            pipeline: behind.pipeline.map(|_| -> &dyn Pipeline { self }),
            batches: behind.batches.map(|_| -> &dyn Batches { self }),
            ..behind
        }
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        self.now().check_name(kind, name)
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        self.checked(claim.kind, &claim.name, |store| store.attempt(claim, count, deadline))
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        self.now().release(claim, left, deadline)
    }

    fn release_later(&self, claim: &Claim, deadline: Moment, done: Sink) {
        self.now().release_later(claim, deadline, done);
    }

    fn hand_off(&self, from: &Claim, to: &Claim, deadline: Moment) -> Option<Box<dyn Pending>> {
        self.now().hand_off(from, to, deadline)
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        self.now().renew(claims, deadline)
    }

    fn abandon(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        self.now().abandon(claims, deadline)
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        self.now().expire_in(claim, rest, deadline)
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        self.checked(kind, name, |store| store.force(kind, name, deadline))
    }

    fn count(&self, claim: &Claim, what: &Counting, deadline: Moment) -> Answer<Option<i64>> {
        self.checked(claim.kind, &claim.name, |store| store.count(claim, what, deadline))
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.now().listen(claim, waker)
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        self.now().message_count(claim)
    }

    fn poll_completions(&self) -> bool {
        self.now().poll_completions()
    }

    fn close(&self) {
        // Set first, looked second. Pairs with `connect`.
        self.closed.store(true, Ordering::SeqCst);
        if let Some(store) = self.store.get() {
            store.close();
        }
    }
}

impl Inspect for LazyStore {
    fn inspect(
        &self,
        kind: Kind,
        name: &LockName,
        owner: Owner,
        deadline: Moment,
    ) -> Answer<Option<Snapshot>> {
        self.checked(kind, name, |store| store.inspect(kind, name, owner, deadline))
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        self.now().describe(name, deadline)
    }
}

impl Opening for LazyStore {
    fn open(&self) -> Result<()> {
        if self.store.get().is_some() { Ok(()) } else { self.connect() }
    }
}

impl Sessions for LazyStore {
    fn attach(&self, watchdog: ServiceWaker) {
        *self.watchdog.lock() = Some(watchdog);
    }

    fn bound(&self, claim: &Claim) -> Option<Arc<dyn Bound>> {
        self.now().capabilities().sessions?.bound(claim)
    }
}

impl Pipeline for LazyStore {
    fn begin_attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Box<dyn Pending<Attempt>> {
        match self.check_name(claim.kind, &claim.name) {
            Ok(()) => begin_attempt(self.now(), claim, count, deadline),
            Err(error) => Box::new(Answered(Err(Failure::Refused(error)))),
        }
    }

    fn begin_release(&self, claim: &Claim, left: u32, deadline: Moment) -> Box<dyn Pending<Release>> {
        begin_release(self.now(), claim, left, deadline)
    }
}

impl Batches for LazyStore {
    fn group(&self, kind: Kind, name: &LockName) -> Option<u32> {
        self.check_name(kind, name).ok()?;
        self.now().capabilities().batches?.group(kind, name)
    }

    fn begin_attempts(
        &self,
        claims: &[Claim],
        or_none: bool,
        deadline: Moment,
    ) -> Box<dyn Pending<Vec<Option<Fence>>>> {
        match self.now().capabilities().batches {
            Some(batches) => batches.begin_attempts(claims, or_none, deadline),
            None => Box::new(Answered(Err(Failure::Refused(unopened())))),
        }
    }

    fn begin_releases(&self, claims: &[Claim], deadline: Moment) -> Box<dyn Pending<Vec<Release>>> {
        match self.now().capabilities().batches {
            Some(batches) => batches.begin_releases(claims, deadline),
            None => Box::new(Answered(Err(Failure::Refused(unopened())))),
        }
    }
}

/// Stands for a store that nobody has connected to: it has nothing, and grants nothing.
struct Unopened;

fn unopened() -> Error {
    Error::new(ErrorKind::Unreachable, "use", "the store has not been connected to yet")
}

impl Store for Unopened {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities::default()
    }

    fn check_name(&self, _kind: Kind, _name: &LockName) -> Result<()> {
        Ok(())
    }

    fn attempt(&self, _claim: &Claim, _count: u32, _by: Moment) -> Answer<Attempt> {
        Err(Failure::Refused(unopened()))
    }

    fn release(&self, _claim: &Claim, _left: u32, _by: Moment) -> Answer<Release> {
        Ok(Release::NotHeld { holder: None })
    }

    fn renew(&self, claims: &[Claim], _by: Moment) -> Vec<Answer<bool>> {
        claims.iter().map(|_| Ok(false)).collect()
    }

    fn abandon(&self, claims: &[Claim], _by: Moment) -> Vec<Answer<Release>> {
        claims.iter().map(|_| Ok(Release::NotHeld { holder: None })).collect()
    }

    fn force(&self, _kind: Kind, _name: &LockName, _by: Moment) -> Answer<bool> {
        Err(Failure::Refused(unopened()))
    }

    fn listen(&self, _claim: &Claim, _waker: &Waker) -> Option<Subscription> {
        None
    }

    fn message_count(&self, _claim: &Claim) -> Option<u64> {
        None
    }

    fn close(&self) {}
}

impl Inspect for Unopened {
    fn inspect(&self, _kind: Kind, _name: &LockName, _owner: Owner, _by: Moment) -> Answer<Option<Snapshot>> {
        Err(Failure::Refused(unopened()))
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        describe_by_kinds(self, name, deadline)
    }
}

#[cfg(test)]
mod tests {
    use crate::seam::methods_in;

    #[test]
    fn every_call_of_a_store_is_passed_on() {
        let calls = methods_in(include_str!("../seam/mod.rs"), "trait Store: ");
        let passed_on = methods_in(include_str!("lazy.rs"), "impl Store for LazyStore ");
        let missing: Vec<_> = calls.iter().filter(|call| !passed_on.contains(call)).collect();
        assert!(calls.len() > 12 && missing.is_empty(), "{missing:?}");
    }
}
