//! A store that is connected to when it is first used.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{Fence, LockName, Owner};
use crate::inspection::Inspection;
use crate::lock::park::ServiceWaker;
use crate::lock::queue::Wish;
use crate::lock::store::{
    Answer, Attempt, Bound, Claim, Counting, Kind, Known, Pending, Release, Sink, Snapshot, Store,
};
use crate::lock::topic::Listening;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, Waker};
use crate::time::Moment;

/// Connects.
pub(crate) type Opener = Box<dyn Fn() -> Result<Arc<dyn Store>> + Send + Sync>;

/// Every call goes to the store behind it once that is there; [`Store::ready`], which comes before each use, connects to it.
/// Until then nothing is held, so there is nothing to renew or to release.
pub(crate) struct LazyStore {
    open: Opener,
    store: OnceLock<Arc<dyn Store>>,
    /// One thread connects at a time; the last failure.
    opening: Mutex<Option<Error>>,
    /// How many attempts to connect have failed.
    failures: AtomicU64,
    watchdog: Mutex<Option<ServiceWaker>>,
    closed: AtomicBool,
}

impl LazyStore {
    pub(crate) fn new(open: Opener) -> LazyStore {
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
        // Somebody who was before us has just found out: all who wait are told that, not one after the other.
        if let (Some(error), true) = (&*last, self.failures.load(Ordering::SeqCst) != before) {
            return Err(error.copy());
        }
        let store = (self.open)().inspect_err(|error| {
            *last = Some(error.copy());
            self.failures.fetch_add(1, Ordering::SeqCst);
        })?;
        if let Some(watchdog) = &*self.watchdog.lock() {
            store.attach(watchdog.clone());
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
            Err(error) => Answer::Refused(error),
        }
    }
}

impl Store for LazyStore {
    fn ready(&self) -> Result<()> {
        if self.store.get().is_some() { Ok(()) } else { self.connect() }
    }

    fn attach(&self, watchdog: ServiceWaker) {
        *self.watchdog.lock() = Some(watchdog);
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        self.now().check_name(kind, name)
    }

    fn home(&self, name: &LockName) -> u32 {
        self.now().home(name)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.now().as_any()
    }

    fn attempt(&self, claim: &Claim, count: u32, wants_fence: bool, by: Moment) -> Answer<Attempt> {
        self.checked(claim.kind, &claim.name, |store| store.attempt(claim, count, wants_fence, by))
    }

    fn queues(&self, kind: Kind) -> bool {
        self.now().queues(kind)
    }

    fn bound(&self, claim: &Claim) -> Option<Arc<dyn Bound>> {
        self.now().bound(claim)
    }

    fn release(&self, claim: &Claim, left: u32, by: Moment) -> Answer<Release> {
        self.now().release(claim, left, by)
    }

    fn release_later(&self, claim: &Claim, by: Moment, done: Sink) {
        self.now().release_later(claim, by, done);
    }

    fn begin_attempt(
        &self,
        claim: &Claim,
        count: u32,
        wants_fence: bool,
        by: Moment,
    ) -> Box<dyn Pending<Attempt>> {
        match self.check_name(claim.kind, &claim.name) {
            Ok(()) => self.now().begin_attempt(claim, count, wants_fence, by),
            Err(error) => Box::new(Known(Answer::Refused(error))),
        }
    }

    fn begin_release(&self, claim: &Claim, left: u32, by: Moment) -> Box<dyn Pending<Release>> {
        self.now().begin_release(claim, left, by)
    }

    fn together(&self, kind: Kind, name: &LockName) -> Option<u32> {
        self.check_name(kind, name).ok()?;
        self.now().together(kind, name)
    }

    fn begin_attempts(
        &self,
        wishes: &[Wish],
        or_none: bool,
        by: Moment,
    ) -> Box<dyn Pending<Vec<Option<Fence>>>> {
        self.now().begin_attempts(wishes, or_none, by)
    }

    fn begin_releases(&self, claims: &[Claim], by: Moment) -> Box<dyn Pending<Vec<Release>>> {
        self.now().begin_releases(claims, by)
    }

    fn first_unspent_number(&self) -> u64 {
        self.now().first_unspent_number()
    }

    fn hand_over(&self, from: &Claim, to: &Claim, wants_fence: bool, by: Moment) -> Option<Box<dyn Pending>> {
        self.now().hand_over(from, to, wants_fence, by)
    }

    fn tend(&self) -> bool {
        self.now().tend()
    }

    fn hung_up(&self) -> Option<bool> {
        self.now().hung_up()
    }

    fn renew(&self, claims: &[Claim], by: Moment) -> Vec<Answer<bool>> {
        self.now().renew(claims, by)
    }

    fn count(&self, claim: &Claim, what: &Counting, by: Moment) -> Answer<Option<i64>> {
        self.checked(claim.kind, &claim.name, |store| store.count(claim, what, by))
    }

    fn forget(&self, claim: &Claim, by: Moment) {
        self.now().forget(claim, by);
    }

    fn held_off(&self, claim: &Claim) -> Option<Duration> {
        self.now().held_off(claim)
    }

    fn is_split(&self, kind: Kind, name: &LockName, by: Moment) -> Answer<bool> {
        self.now().is_split(kind, name, by)
    }

    fn can_expire_in(&self) -> bool {
        self.now().can_expire_in()
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, by: Moment) -> Answer<bool> {
        self.now().expire_in(claim, rest, by)
    }

    fn abandon(&self, claims: &[Claim], by: Moment) -> Vec<Answer<Release>> {
        self.now().abandon(claims, by)
    }

    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        self.checked(kind, name, |store| store.inspect(kind, name, owner, by))
    }

    fn describe(&self, name: &LockName, by: Moment) -> Answer<Inspection> {
        self.now().describe(name, by)
    }

    fn force(&self, kind: Kind, name: &LockName, by: Moment) -> Answer<bool> {
        self.checked(kind, name, |store| store.force(kind, name, by))
    }

    fn sweep(&self, age: Duration, by: Moment) -> Answer<u64> {
        self.now().sweep(age, by)
    }

    fn poll_every(&self, kind: Kind) -> (Duration, Duration) {
        self.now().poll_every(kind)
    }

    fn wakes(&self) -> bool {
        self.now().wakes()
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Listening> {
        self.now().listen(claim, waker)
    }

    fn heard(&self, claim: &Claim) -> Option<u64> {
        self.now().heard(claim)
    }

    fn close(&self) {
        // Set first, looked second. Pairs with `connect`.
        self.closed.store(true, Ordering::SeqCst);
        if let Some(store) = self.store.get() {
            store.close();
        }
    }
}

/// Stands for a store that nobody has connected to: it has nothing, and grants nothing.
struct Unopened;

fn unopened() -> Error {
    Error::new(ErrorKind::Unreachable, "use", "the store has not been connected to yet")
}

impl Store for Unopened {
    fn check_name(&self, _kind: Kind, _name: &LockName) -> Result<()> {
        Ok(())
    }

    fn attempt(&self, _claim: &Claim, _count: u32, _wants_fence: bool, _by: Moment) -> Answer<Attempt> {
        Answer::Refused(unopened())
    }

    fn release(&self, _claim: &Claim, _left: u32, _by: Moment) -> Answer<Release> {
        Answer::Done(Release::NotHeld { by: None })
    }

    fn renew(&self, claims: &[Claim], _by: Moment) -> Vec<Answer<bool>> {
        claims.iter().map(|_| Answer::Done(false)).collect()
    }

    fn abandon(&self, claims: &[Claim], _by: Moment) -> Vec<Answer<Release>> {
        claims.iter().map(|_| Answer::Done(Release::NotHeld { by: None })).collect()
    }

    fn inspect(&self, _kind: Kind, _name: &LockName, _owner: Owner, _by: Moment) -> Answer<Option<Snapshot>> {
        Answer::Refused(unopened())
    }

    fn force(&self, _kind: Kind, _name: &LockName, _by: Moment) -> Answer<bool> {
        Answer::Refused(unopened())
    }

    fn poll_every(&self, _kind: Kind) -> (Duration, Duration) {
        (Duration::from_secs(1), Duration::from_millis(1_200))
    }

    fn listen(&self, _claim: &Claim, _waker: &Waker) -> Option<Listening> {
        None
    }

    fn heard(&self, _claim: &Claim) -> Option<u64> {
        None
    }

    fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use crate::lock::store::methods_in;

    #[test]
    fn every_call_of_a_store_is_passed_on() {
        let calls = methods_in(include_str!("../lock/store.rs"), "trait Store: ");
        let passed_on = methods_in(include_str!("lazy.rs"), "impl Store for LazyStore ");
        let missing: Vec<_> = calls.iter().filter(|call| !passed_on.contains(call)).collect();
        assert!(calls.len() > 20 && missing.is_empty(), "{missing:?}");
    }
}
