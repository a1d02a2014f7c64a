//! Waiting, with a lock given up meanwhile, for somebody who holds it to say that something has changed.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::acquire::call::{AcquireCall, WaitLimit};
use crate::engine::acquire::terms::Terms;
use crate::engine::hold::Hold;
use crate::error::{Error, Result};
use crate::ident::{LockName, unbound_number};
use crate::interrupt::Interrupt;
use crate::locks::named::{RedisLock, forever};
use crate::seam::{Counting, Kind};
use crate::time::Lease;

/// A condition of a lock, by name, across processes: what Java's `Lock.newCondition()` gives, and Redisson's throws at.
///
/// A thread that holds the lock waits: it gives the lock up, whatever its hold count, sleeps until it is notified, and
/// has the lock again with that count when the call returns. Another thread, anywhere, that holds the lock notifies.
/// Waiters are notified in order of arrival. The lock may be acquired by anybody in between, Java included; only the
/// condition's own keys are unknown to Java.
///
/// # Guarantees
///
/// A notification that is given while somebody waits is not lost: if its waiter dies, or gives up at that moment, the next
/// one gets it, within about 6 s where it died. A waiter may also wake for no reason, as with every condition: test
/// what you wait for in a loop.
///
/// # Examples
///
/// ```
/// use std::thread;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// # let client = leasehold::LockClient::in_memory();
/// let lock = client.lock("queue");
/// let not_empty = lock.condition("not_empty");
/// let has_work = AtomicBool::new(false);
/// thread::scope(|scope| {
///     scope.spawn(|| {
///         lock.lock().unwrap();
///         while !has_work.load(Ordering::SeqCst) {
///             not_empty.wait().unwrap();
///         }
///         lock.unlock().unwrap();
///     });
///     lock.lock().unwrap();
///     has_work.store(true, Ordering::SeqCst);
///     not_empty.notify_one().unwrap();
///     lock.unlock().unwrap();
/// });
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Condition {
    lock: RedisLock,
    /// A bad name is an error at first use.
    name: std::result::Result<Arc<LockName>, Arc<Error>>,
    given: Arc<str>,
}

impl RedisLock {
    /// A condition of this lock, by name: what Java's `Lock.newCondition()` is. See [`Condition`].
    ///
    /// No I/O and no error: a bad name is an error at first use.
    #[must_use]
    pub fn condition(&self, name: &str) -> Condition {
        Condition::new(self, name)
    }
}

impl Condition {
    pub(crate) fn new(lock: &RedisLock, given: &str) -> Condition {
        let name = lock.derived(Kind::Signal, given).map_err(Arc::new);
        // All levels are acquired again, however many there were.
        let lock = lock.clone().reentrant();
        Condition { lock, name, given: Arc::from(given) }
    }

    /// Gives the lock up, waits to be notified, and acquires the lock again.
    ///
    /// # Blocking
    ///
    /// Until it is notified, and then until the lock is acquired again. Two round trips before the wait, two or more after.
    ///
    /// # Errors
    ///
    /// - [`is_not_held`](Error::is_not_held): the calling thread does not hold the lock.
    /// - Of kind [`InvalidInput`](crate::ErrorKind::InvalidInput): a guard has a level of the hold. Its end could not be
    ///   distinguished from the wait's; use `lock()` and `unlock()` around conditions.
    /// - The server could not be used. Unless that was before the wait, the lock is not held then, which
    ///   [`is_held_by_current_thread`](RedisLock::is_held_by_current_thread) shows.
    pub fn wait(&self) -> Result<()> {
        self.wait_with("wait", forever(), None).map(drop)
    }

    /// As [`wait`](Self::wait), for at most so long; `false`: it was not notified. The lock is acquired again either way.
    ///
    /// # Blocking
    ///
    /// Up to `wait`, and then until the lock is acquired again.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_for(&self, wait: Duration) -> Result<bool> {
        self.wait_with("wait_for", WaitLimit::Deadline(self.lock.engine().clock.after(wait)), None)
    }

    /// As [`wait_for`](Self::wait_for), until `instant`.
    ///
    /// # Blocking
    ///
    /// As [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_until(&self, instant: Instant) -> Result<bool> {
        self.wait_with("wait_until", WaitLimit::Deadline(self.lock.engine().clock.at(instant)), None)
    }

    /// As [`wait`](Self::wait), until `interrupt` is set at the latest. The lock is acquired again either way.
    ///
    /// # Blocking
    ///
    /// As [`wait`](Self::wait).
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait); and one that [`is_interrupted`](Error::is_interrupted).
    pub fn wait_interruptibly(&self, interrupt: &Interrupt) -> Result<()> {
        self.wait_with("wait_interruptibly", forever(), Some(interrupt)).map(drop)
    }

    /// Wakes the one who has waited longest, if anybody waits; `false`: nobody does.
    ///
    /// # Blocking
    ///
    /// One round trip; while the server cannot be used, up to the client's patience.
    ///
    /// # Errors
    ///
    /// [`is_not_held`](Error::is_not_held): the calling thread does not hold the lock. Or the server could not be used.
    pub fn notify_one(&self) -> Result<bool> {
        self.notify("notify_one", false).map(|count| count > 0)
    }

    /// Wakes all who wait; returns how many.
    ///
    /// # Blocking
    ///
    /// As [`notify_one`](Self::notify_one).
    ///
    /// # Errors
    ///
    /// As [`notify_one`](Self::notify_one).
    pub fn notify_all(&self) -> Result<i64> {
        self.notify("notify_all", true)
    }

    fn notify(&self, action: &'static str, all: bool) -> Result<i64> {
        self.own_hold(action)?;
        let (engine, name) = (self.lock.engine(), self.checked(action)?);
        let claim = engine.claim(Kind::Signal, name, unbound_number(), engine.options.lease);
        Ok(engine.count(action, &claim, &Counting::Notify { all })?.unwrap_or(0))
    }

    fn wait_with(
        &self,
        action: &'static str,
        limit: WaitLimit,
        interrupt: Option<&Interrupt>,
    ) -> Result<bool> {
        let (engine, name) = (self.lock.engine(), self.checked(action)?);
        let _call = engine.calls.begin();
        let hold = self.own_hold(action)?;
        let Some(levels) = hold.unguarded_levels() else {
            let words =
                "a guard holds a level of the lock: around conditions use lock() and unlock(), not guards";
            return Err(Error::invalid(action, words).on(self.lock.name()));
        };
        // Joined while the lock is held: who notifies holds it too, so nobody notifies in between.
        let number = unbound_number();
        let claim = engine.claim(Kind::Signal, name, number, engine.options.lease);
        let joined = engine.count(action, &claim, &Counting::Enlist);
        if let Err(error) = joined.and_then(|_| engine.end_all_levels(action, &hold)) {
            // It may have joined all the same, and is not to be notified in another's place.
            engine.watchdog.cleanups().add(
                claim,
                engine.clock.after(engine.options.lease),
                engine.clock.now(),
            );
            return Err(error);
        }
        let waited = engine.acquire(&AcquireCall {
            action,
            kind: Kind::Signal,
            name,
            lease: Lease::Renewed,
            limit,
            interrupt,
            terms: Terms { number: Some(number), ..Terms::default() },
            by_thread: false,
        });
        let waited = waited.map(|entered| match entered {
            Some(entered) => {
                engine.drop_level(&entered.hold, entered.level);
                true
            }
            None => false,
        });
        for lease in levels {
            if let Err(error) = self.lock.enter(action, lease, forever(), None) {
                // Part of the levels would be held, although the caller's error says that none are.
                if let Ok(part) = self.own_hold(action) {
                    drop(engine.end_all_levels(action, &part));
                }
                return Err(error);
            }
        }
        waited
    }

    fn own_hold(&self, action: &'static str) -> Result<Arc<Hold>> {
        let engine = self.lock.engine();
        let hold = engine.own_hold(self.lock.kind(), self.lock.checked(action)?);
        engine.usable(action)?;
        match hold.filter(|hold| hold.is_live(engine.clock.now(), &engine.reporter)) {
            Some(hold) => Ok(hold),
            None => Err(engine.not_holding(action, self.lock.kind(), self.lock.checked(action)?)),
        }
    }

    fn checked(&self, action: &'static str) -> Result<&Arc<LockName>> {
        let bad = |bad: &Arc<Error>| Error::new(bad.kind(), action, bad.detail().to_owned()).on(&self.given);
        self.name.as_ref().map_err(bad)
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condition").field("lock", &self.lock.name()).field("name", &self.given).finish()
    }
}
