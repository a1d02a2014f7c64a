//! A condition of a lock: releases the lock, waits until a holder notifies, and acquires the lock again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::acquire::call::{AcquireCall, LockConfig};
use crate::engine::hold::Hold;
use crate::error::{Error, NotHeld, Result};
use crate::ident::LockName;
use crate::interrupt::Interrupt;
use crate::locks::guard::Guard;
use crate::locks::named::{RedisLock, unbound_claim, unending};
use crate::observe::reporter::Reporter;
use crate::seam::{Counting, Kind};
use crate::time::{Lease, Moment};

/// A condition of a lock, by name, across processes: a `Condvar` for the threads of many machines.
///
/// A thread that holds the lock waits with its guard: the wait releases the lock, whatever its hold count,
/// sleeps until notified, and acquires the lock again with that count. Another thread anywhere that holds the
/// lock notifies. Waiters are notified in order of arrival. During a wait every client, Java's included, may
/// acquire the lock; Java knows nothing of the condition.
///
/// A thread that took the lock by [`lock`](RedisLock::lock) must acquire a guard to wait: one more level.
///
/// # Guarantees
/// A notification given while a thread waits is not lost: if its waiter dies or gives up at that moment, the
/// next waiter gets it, within about 6 s after a death. A waiter may also wake without a notification: test
/// the condition in a loop, as [`wait_while`](Self::wait_while) does.
///
/// # Examples
/// ```
/// use std::thread;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// # let client = leasehold::LockClient::in_memory();
/// let lock = client.get_lock("queue");
/// let not_empty = lock.condition("not_empty");
/// let has_work = AtomicBool::new(false);
/// thread::scope(|scope| {
///     let worker = scope.spawn(|| -> leasehold::Result<()> {
///         let mut guard = lock.acquire()?;
///         not_empty.wait_while(&mut guard, |_guard| !has_work.load(Ordering::SeqCst))?;
///         // … take the work …
///         Ok(())
///     });
///     let guard = lock.acquire()?;
///     has_work.store(true, Ordering::SeqCst);
///     not_empty.notify_one()?; // if this fails, the guard releases all the same
///     drop(guard);
///     worker.join().unwrap()
/// })?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a condition is a handle, which waits for nothing yet: call `wait_while()`"]
pub struct Condition {
    lock: RedisLock,
    /// If the name is bad: the error, which each use returns.
    name: std::result::Result<Arc<LockName>, Arc<Error>>,
    given: Arc<str>,
}

impl RedisLock {
    /// A condition of this lock, by name: Java's `Lock.newCondition()`.
    ///
    /// No I/O; a bad name is an error at first use.
    pub fn condition(&self, name: impl AsRef<str>) -> Condition {
        Condition::new(self, name.as_ref())
    }
}

impl Condition {
    pub(crate) fn new(lock: &RedisLock, given: &str) -> Condition {
        let name = lock.derived(Kind::Signal, given).map_err(Arc::new);
        // After the wait the thread acquires each level again, so the handle must be able to re-enter.
        let lock = lock.clone().reentrant();
        Condition { lock, name, given: Arc::from(given) }
    }

    /// Releases the lock of `guard`, waits for a notification, and acquires the lock again for the guard.
    ///
    /// The guard then has a new hold: a [fenced](crate::FencedLock) hold has a new token. The guard's
    /// callbacks and channels for a loss stay, and then tell of a loss of the new hold.
    ///
    /// # Blocking
    /// Until notified, and until the lock is acquired again: two round trips before the wait, two or more
    /// after.
    ///
    /// # Errors
    /// - [`is_lost`](Error::is_lost): the guard's hold was lost before the wait.
    /// - Of kind [`InvalidInput`](crate::ErrorKind::InvalidInput): the guard is of another lock, or the
    ///   thread has a second guard of this lock, which the wait cannot release.
    /// - The server could not be used. If the wait had begun, the lock is not held any more, the guard is
    ///   [`Lost`](crate::HoldState::Lost), and the error says [`work_ran`](Error::work_ran).
    pub fn wait(&self, guard: &mut Guard) -> Result<()> {
        self.wait_with("wait", guard, Moment::NEVER, None).map(drop)
    }

    /// As [`wait`](Self::wait), for `wait` at most; `false` if not notified. In both cases the lock is
    /// acquired again, however long that takes.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_for(&self, guard: &mut Guard, wait: Duration) -> Result<bool> {
        self.wait_with("wait_for", guard, self.lock.engine.clock.after(wait), None)
    }

    /// As [`wait_for`](Self::wait_for), until `instant`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_until(&self, guard: &mut Guard, instant: Instant) -> Result<bool> {
        self.wait_with("wait_until", guard, self.lock.engine.clock.at(instant), None)
    }

    /// As [`wait`](Self::wait), until `interrupt` is set. The lock is acquired again also after an interrupt.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); [`is_interrupted`](Error::is_interrupted) after an interrupt.
    pub fn wait_interruptibly(&self, guard: &mut Guard, interrupt: &Interrupt) -> Result<()> {
        self.wait_with("wait_interruptibly", guard, Moment::NEVER, Some(interrupt)).map(drop)
    }

    /// Waits repeatedly while `condition` is true; evaluates it with the lock held, first before any wait.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_while(&self, guard: &mut Guard, mut condition: impl FnMut(&Guard) -> bool) -> Result<()> {
        while condition(guard) {
            self.wait_with("wait_while", guard, Moment::NEVER, None)?;
        }
        Ok(())
    }

    /// As [`wait_while`](Self::wait_while), for `wait` at most; returns whether `condition` is false now. In
    /// both cases the lock is acquired again.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_while_for(
        &self,
        guard: &mut Guard,
        mut condition: impl FnMut(&Guard) -> bool,
        wait: Duration,
    ) -> Result<bool> {
        let limit = self.lock.engine.clock.after(wait);
        while condition(guard) {
            let was_notified = self.wait_with("wait_while_for", guard, limit, None)?;
            if !was_notified {
                return Ok(!condition(guard));
            }
        }
        Ok(true)
    }

    /// Wakes the waiter that has waited longest; `false` if there is none.
    ///
    /// # Blocking
    /// One round trip; while the server cannot be used, up to the client's retry time-out.
    ///
    /// # Errors
    /// [`is_not_held`](Error::is_not_held) on a thread without the lock; or the server could not be used.
    pub fn notify_one(&self) -> Result<bool> {
        self.notify("notify_one", false).map(|count| count > 0)
    }

    /// Wakes all waiters; returns their number.
    ///
    /// # Errors
    /// As [`notify_one`](Self::notify_one).
    pub fn notify_all(&self) -> Result<i64> {
        self.notify("notify_all", true)
    }

    fn notify(&self, action: &'static str, all: bool) -> Result<i64> {
        self.own_hold(action)?;
        let (engine, name) = (&self.lock.engine, self.checked(action)?);
        let claim = unbound_claim(engine, Kind::Signal, name);
        let notified = engine.count(action, &claim, &Counting::Notify { all }).map_err(Error::after_work)?;
        Ok(notified.unwrap_or(0))
    }

    fn wait_with(
        &self,
        action: &'static str,
        guard: &mut Guard,
        limit: Moment,
        interrupt: Option<&Interrupt>,
    ) -> Result<bool> {
        let (engine, name) = (&self.lock.engine, self.checked(action)?);
        let _call = engine.calls.begin();
        let hold = self.hold_of(action, guard)?;
        let Some(levels) = hold.levels_beside(guard.level.entered.level) else {
            let words = "this thread has a second guard of the lock, which the wait cannot release: drop one of the two first";
            return Err(Error::invalid(action, words).on(self.lock.name()));
        };
        // The waiter joins the queue under the lock. Notifiers must hold it too, so none misses the waiter.
        let claim = unbound_claim(engine, Kind::Signal, name);
        let number = claim.owner.number();
        let joined = engine.count(action, &claim, &Counting::Enlist);
        let released = joined.and_then(|_| {
            hold.keep_listeners(true);
            engine.end_all_levels(action, &hold).inspect_err(|_| drop_listeners(&hold, &engine.reporter))
        });
        if let Err(error) = released {
            // This thread will not wait, so a notification sent to it would be lost: it leaves the queue.
            engine.clean_up(claim, engine.clock.after(engine.options.lease), engine.clock.now());
            return Err(error);
        }
        let local = engine.registry.local(Kind::Signal, name);
        let want = AcquireCall::new(action, Kind::Signal, (name, &local), limit);
        let waited = engine.acquire(&AcquireCall { interrupt, number: Some(number), ..want });
        let waited = waited.map(|entered| match entered {
            Some(entered) => {
                engine.drop_level(&entered.hold, entered.level);
                true
            }
            None => false,
        });
        self.enter_again(action, guard, &hold, levels)?;
        waited
    }

    /// Acquires the lock with as many levels as were released, and gives the guard its own level.
    fn enter_again(
        &self,
        action: &'static str,
        guard: &mut Guard,
        released: &Hold,
        levels: Vec<(bool, Lease)>,
    ) -> Result<()> {
        let engine = &self.lock.engine;
        let mut regained = None;
        for (is_guards, lease) in levels {
            // The condition may be of the plain lock, the guard of the fenced one: the guard's kind decides.
            let want = self.lock.want(action, lease, Moment::NEVER, None)?;
            let fenced = want.config.fenced || released.fencing_token().is_some();
            let want = AcquireCall {
                kind: released.kind(),
                config: LockConfig { fenced, takes_again: true, ..want.config },
                ..want
            };
            let entered = engine.acquire(&want);
            match entered.and_then(|entered| entered.ok_or_else(|| unending(action, self.lock.name()))) {
                Ok(entered) => {
                    // Moves the loss listeners to the new hold; after the first level there are none left.
                    engine.hand_listeners(action, released, &entered.hold);
                    if is_guards {
                        entered.hold.guard_level(entered.level);
                        regained = Some(entered);
                    }
                }
                Err(error) => {
                    drop_listeners(released, &engine.reporter);
                    // The error says that the thread holds nothing, so the levels acquired so far must end.
                    if let Ok(part) = self.own_hold(action) {
                        drop(engine.end_all_levels(action, &part));
                    }
                    return Err(error.after_work());
                }
            }
        }
        if let Some(entered) = regained {
            engine.watch(&entered.hold); // so that the timer tells the moved listeners of a loss
            guard.level.entered = entered;
        }
        Ok(())
    }

    fn hold_of(&self, action: &'static str, guard: &Guard) -> Result<Arc<Hold>> {
        let (engine, name) = (&self.lock.engine, self.lock.checked(action)?);
        let (level, hold) = (&guard.level, guard.level.hold());
        let is_of_this = Arc::ptr_eq(&level.engine, engine)
            && hold.kind().family() == self.lock.kind.family()
            && hold.name().key() == name.key();
        Error::require(action, is_of_this, || {
            let (given, wanted) = (guard.name(), self.lock.name());
            format!("the guard belongs to {given:?}: pass a guard of {wanted:?}, the condition's lock")
        })
        .map_err(|error| error.on(self.lock.name()))?;
        engine.usable(action)?;
        level.check().map_err(|_lost| Error::not_holding(action, name.given(), NotHeld::Expired))?;
        Ok(Arc::clone(hold))
    }

    fn own_hold(&self, action: &'static str) -> Result<Arc<Hold>> {
        let engine = &self.lock.engine;
        engine.usable(action)?;
        let hold = engine.own_hold(self.lock.found(action)?.1);
        match hold.filter(|hold| hold.is_live(engine.clock.now(), &engine.reporter)) {
            Some(hold) => Ok(hold),
            None => Err(engine.not_holding(action, self.lock.kind, self.lock.checked(action)?)),
        }
    }

    fn checked(&self, action: &'static str) -> Result<&Arc<LockName>> {
        self.name.as_ref().map_err(|bad| bad.copy().during(action).on(&self.given))
    }
}

/// Drops the loss callbacks and channels of a hold, if a wait could not release the lock or reacquire it.
fn drop_listeners(released: &Hold, reporter: &Reporter) {
    released.keep_listeners(false);
    released.forget_listeners(reporter);
}
