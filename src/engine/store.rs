//! A client's store, which may be connected to when it is first used.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::inspect::Inspection;
use crate::park::ServiceWaker;
use crate::seam::inspection::Inspect;
use crate::seam::inspection::describe_by_kinds;
use crate::seam::subscription::Subscription;
use crate::seam::{Answer, Attempt, Capabilities, Claim, Failure, Kind, Release, Snapshot, Store};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, Waker};
use crate::time::Moment;

pub(crate) type StoreOpener = Box<dyn Fn() -> Result<Arc<dyn Store>> + Send + Sync>;

/// [`open`](Self::open), which comes before each use, connects. Until then [`Unopened`] stands for the store.
pub(crate) struct StoreCell {
    store: OnceLock<Arc<dyn Store>>,
    later: Option<StoreOpener>,
    /// Held by the one thread that connects; has the last failure.
    opening: Mutex<Option<Error>>,
    failures: AtomicU64,
    closed: AtomicBool,
}

impl StoreCell {
    fn new(store: OnceLock<Arc<dyn Store>>, later: Option<StoreOpener>) -> StoreCell {
        let (failures, closed) = (AtomicU64::new(0), AtomicBool::new(false));
        StoreCell { store, later, opening: Mutex::new(None), failures, closed }
    }

    pub(crate) fn later(open: StoreOpener) -> StoreCell {
        StoreCell::new(OnceLock::new(), Some(open))
    }

    /// Connects, unless that is done. `timer` is attached to the store's sessions.
    pub(crate) fn open(&self, timer: &ServiceWaker) -> Result<()> {
        match &self.later {
            Some(open) if self.store.get().is_none() => self.connect(open, timer),
            Some(_) | None => Ok(()),
        }
    }

    #[cold]
    fn connect(&self, open: &StoreOpener, timer: &ServiceWaker) -> Result<()> {
        let before = self.failures.load(Ordering::SeqCst);
        let mut last = self.opening.lock();
        if self.store.get().is_some() {
            return Ok(());
        }
        // An earlier caller has just failed: all waiters get its error at once, instead of trying one
        // after the other.
        if let (Some(error), true) = (&*last, self.failures.load(Ordering::SeqCst) != before) {
            return Err(error.copy());
        }
        let store = open().inspect_err(|error| {
            *last = Some(error.copy());
            self.failures.fetch_add(1, Ordering::SeqCst);
        })?;
        attach(&*store, timer);
        let store = self.store.get_or_init(|| store);
        // The store is set before `closed` is read. Pairs with `close`.
        if self.closed.load(Ordering::SeqCst) {
            store.close();
        }
        Ok(())
    }

    /// Whether the store can keep a lock of this name, if that was not known when the lock value was made.
    pub(crate) fn check_late(&self, kind: Kind, name: &LockName) -> Result<()> {
        if self.later.is_some() { self.check_name(kind, name) } else { Ok(()) }
    }

    /// Ends connections and threads, also of a store that is just being connected to.
    pub(crate) fn close(&self) {
        // `closed` is set before the store is read. `connect` does the reverse, so one of them closes the store.
        self.closed.store(true, Ordering::SeqCst);
        (**self).close();
    }
}

impl From<Arc<dyn Store>> for StoreCell {
    fn from(store: Arc<dyn Store>) -> StoreCell {
        StoreCell::new(OnceLock::from(store), None)
    }
}

impl Deref for StoreCell {
    type Target = dyn Store;

    fn deref(&self) -> &(dyn Store + 'static) {
        match self.store.get() {
            Some(store) => &**store,
            None => &Unopened,
        }
    }
}

/// Has `timer` woken when holds may have ended with a session of the store's.
pub(crate) fn attach(store: &dyn Store, timer: &ServiceWaker) {
    if let Some(sessions) = store.capabilities().sessions {
        sessions.attach(timer.clone());
    }
}

/// Stands for a store that nobody has connected to: it has nothing, and grants nothing.
struct Unopened;

fn unopened<T>() -> Answer<T> {
    Failure::refused(Error::new(ErrorKind::Unreachable, "use", "there is no connection to the store yet"))
}

impl Store for Unopened {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities::default()
    }

    fn check_name(&self, _kind: Kind, _name: &LockName) -> Result<()> {
        Ok(())
    }

    fn attempt(&self, _claim: &Claim, _count: u32, _by: Moment) -> Answer<Attempt> {
        unopened()
    }

    fn release(&self, _claim: &Claim, _left: u32, _by: Moment) -> Answer<Release> {
        Ok(Release::NotHeld { holder: None })
    }

    fn renew(&self, claims: &[Claim], _by: Moment) -> Vec<Answer<bool>> {
        claims.iter().map(|_| Ok(false)).collect()
    }

    fn clean_up(&self, claims: &[Claim], by: Moment) -> Vec<Answer<Release>> {
        claims.iter().map(|claim| self.release(claim, 0, by)).collect()
    }

    fn force(&self, _kind: Kind, _name: &LockName, _by: Moment) -> Answer<bool> {
        unopened()
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
        unopened()
    }

    fn describe(&self, name: &LockName, by: Moment) -> Answer<Inspection> {
        describe_by_kinds(self, name, by)
    }
}
