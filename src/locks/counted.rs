//! Counters: permits without owners, permits with leases, and a gate that opens at zero.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::locks::guard::Permit;
use crate::locks::named::RedisLock;
use crate::locks::options::AcquireOptions;
use crate::seam::{Counting, Kind};
use crate::time::checked_lease;

/// A number of permits under a name, shared by threads, processes and languages: Redisson's `RSemaphore`.
///
/// The store only counts: unlike an [`ExpirableSemaphore`]'s, the permits of a dead process do not come back.
///
/// Each process calls [`try_set_permits`](Self::try_set_permits) first: the first call sets the number, later
/// calls change nothing. Without this call every acquisition, waiting or not, is an error of kind
/// [`NotSetUp`](crate::ErrorKind::NotSetUp). (Redisson's calls wait.)
///
/// # Blocking
/// One round trip, unless a method waits; while the server cannot be used, up to the client's retry time-out.
///
/// # Guarantees
/// At no time are more permits taken than were set up and added. Waiting clients are served in order of
/// arrival, but a waiter for three permits does not hold up a waiter for one permit, and may wait for as long
/// as others take the permits that are released. A lost wake-up costs a waiter up to 1.2 s. A request whose
/// answer is lost counts once: it is repeated until the retry time-out, for at most five minutes.
///
/// # Examples
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let slots = client.get_semaphore("downstream");
/// slots.try_set_permits(2)?;
/// let one = slots.acquire(1)?;
/// assert!(slots.try_acquire(2)?.is_none());
/// drop(one);
/// assert!(slots.try_acquire(2)?.is_some());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "`get_semaphore` acquires nothing: it makes a handle, whose `acquire(1)` takes a permit and returns a guard"]
pub struct Semaphore {
    core: RedisLock,
}

impl Semaphore {
    /// Acquires `permits` permits, waiting as long as it takes.
    ///
    /// # Errors
    /// `permits` is zero; the name is bad; the semaphore was not set up, or was deleted or has ended (kind
    /// [`NotSetUp`](crate::ErrorKind::NotSetUp)); the key holds data of another kind; or the server could not
    /// be used for the client's retry time-out.
    pub fn acquire(&self, permits: u32) -> Result<Permit> {
        let permit = self.take("acquire", permits, &AcquireOptions::new())?;
        permit.ok_or_else(|| self.core.unending("acquire"))
    }

    /// Acquires `permits` permits if they are available now; otherwise returns `None`.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without a retry.
    pub fn try_acquire(&self, permits: u32) -> Result<Option<Permit>> {
        self.take("try_acquire", permits, &AcquireOptions::once())
    }

    /// Acquires `permits` permits, waiting at most `wait`, and one command time-out more; otherwise `None`.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). If the last attempt failed, its error is returned.
    pub fn try_acquire_for(&self, permits: u32, wait: Duration) -> Result<Option<Permit>> {
        self.take("try_acquire_for", permits, &AcquireOptions::new().wait(wait))
    }

    /// Acquires `permits` permits as `options` say; `None` if they are not available within the options'
    /// wait.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); [`is_interrupted`](crate::Error::is_interrupted) after an interrupt;
    /// before any I/O, of kind [`InvalidInput`](crate::ErrorKind::InvalidInput) if the options name a lease:
    /// these permits have none.
    pub fn acquire_with(&self, permits: u32, options: &AcquireOptions) -> Result<Option<Permit>> {
        const ACTION: &str = "acquire_with";
        let words = "permits of a plain semaphore have no lease: leave the lease out, or use an \
                expirable semaphore";
        Error::require(ACTION, options.lease.is_none(), || words).map_err(|error| error.on(self.name()))?;
        self.take(ACTION, permits, options)
    }

    /// Releases permits that were acquired elsewhere, by code that called [`Permit::forget`], or adds new
    /// ones: the store does not distinguish the two.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn release(&self, permits: u32) -> Result<()> {
        self.core.count("release", &Counting::Add(i64::from(permits))).map(drop).map_err(Error::after_work)
    }

    /// As [`release`](Self::release), but returns `false` and creates nothing if there is no semaphore.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn release_if_exists(&self, permits: u32) -> Result<bool> {
        let what = Counting::AddIfSetUp(i64::from(permits));
        Ok(self.core.count("release_if_exists", &what).map_err(Error::after_work)? == Some(1))
    }

    /// Takes all available permits, without a [`Permit`] that would release them; returns their number.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn drain_permits(&self) -> Result<i64> {
        Ok(self.core.count("drain_permits", &Counting::Drain)?.unwrap_or(0))
    }

    /// As [`try_set_permits`](Self::try_set_permits), and the store deletes the semaphore after `lease`.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits), and for a lease under 1 ms or over 100 years.
    pub fn try_set_permits_with_lease(&self, permits: u32, lease: Duration) -> Result<bool> {
        let action = "try_set_permits_with_lease";
        let lease = Some(checked_lease(action, lease).map_err(|error| error.on(self.name()))?);
        Ok(self.core.count(action, &Counting::SetUp { to: permits, lease })? == Some(1))
    }

    fn take(&self, action: &'static str, permits: u32, options: &AcquireOptions) -> Result<Option<Permit>> {
        Ok(self.core.take(action, permits, options)?.map(|entered| Permit::new(&self.core.engine, entered)))
    }
}

/// A [`Semaphore`] whose permits have ids and leases: Redisson's `RPermitExpirableSemaphore`.
///
/// The client renews a permit until it is released, unless the call named a lease; the permits of a dead
/// process come back when their lease ends. (Redisson renews none.) Set the number of permits before
/// acquiring; [`set_permits`](Self::set_permits) changes it later.
///
/// # Examples
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let slots = client.get_expirable_semaphore("workers");
/// slots.try_set_permits(1)?;
/// let permit = slots.acquire()?;
/// let id = permit.ids().remove(0); // any process may release it by this
/// assert!(slots.release(&id)?);
/// assert!(slots.try_acquire()?.is_some());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "`get_expirable_semaphore` acquires nothing: it makes a handle, whose `acquire()` takes a permit and returns a guard"]
pub struct ExpirableSemaphore {
    core: RedisLock,
}

impl ExpirableSemaphore {
    /// Acquires a permit, waiting as long as it takes, and renews it until it is released.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`].
    pub fn acquire(&self) -> Result<Permit> {
        let permit = self.take("acquire", 1, &AcquireOptions::new())?;
        permit.ok_or_else(|| self.core.unending("acquire"))
    }

    /// Acquires a permit if one is available now; otherwise returns `None`.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without a retry.
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        self.take("try_acquire", 1, &AcquireOptions::once())
    }

    /// Acquires a permit, waiting at most `wait`, and one command time-out more; otherwise `None`.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). If the last attempt failed, its error is returned.
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>> {
        self.take("try_acquire_for", 1, &AcquireOptions::new().wait(wait))
    }

    /// Acquires several permits at once, or none, as `options` say. Returns `None` only if the options bound
    /// the wait, and the permits did not become available in that time.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). Also for zero permits or more than 1,000, and for a lease under 1 ms or
    /// over 100 years. [`is_interrupted`](Error::is_interrupted) after an interrupt.
    ///
    /// # Examples
    /// ```
    /// use leasehold::{AcquireOptions, LockClient};
    /// use std::time::Duration;
    ///
    /// let slots = LockClient::in_memory().get_expirable_semaphore("workers");
    /// slots.try_set_permits(3)?;
    /// let options = AcquireOptions::new().wait(Duration::from_secs(1)).lease(Duration::from_secs(60));
    /// let two = slots.acquire_with(2, &options)?.expect("three are there");
    /// assert!(slots.release_many(&two.ids())?);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn acquire_with(&self, permits: u32, options: &AcquireOptions) -> Result<Option<Permit>> {
        self.take("acquire_with", permits, options)
    }

    /// Releases a permit by its id, whoever took it; `false` if it is not taken.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits); before any I/O, for an id that is not 32 hex digits.
    pub fn release(&self, id: &str) -> Result<bool> {
        let id = self.parsed("release", id)?;
        Ok(self.core.count("release", &Counting::GiveBack(id)).map_err(Error::after_work)? == Some(1))
    }

    /// Releases permits by their ids, whoever took them, all or none; `false` if not all are taken.
    ///
    /// # Errors
    /// As [`release`](Self::release), and for no ids or more than 1,000.
    pub fn release_many(&self, ids: &[impl AsRef<str>]) -> Result<bool> {
        let action = "release_many";
        let words = || "no permit ids were given";
        Error::require(action, !ids.is_empty(), words).map_err(|error| error.on(self.name()))?;
        self.few(action, u32::try_from(ids.len()).unwrap_or(u32::MAX))?;
        let ids = ids.iter().map(|id| self.parsed(action, id.as_ref())).collect::<Result<Vec<_>>>()?;
        Ok(self.core.count(action, &Counting::GiveBackAll(ids)).map_err(Error::after_work)? != Some(0))
    }

    /// Makes a permit's lease end `lease` from now, whoever took it; `false` if it is not taken. A client
    /// that renews the permit continues to renew it; a client that does not renew it is not told of the
    /// new end.
    ///
    /// # Errors
    /// As [`release`](Self::release), and for a lease under 1 ms or over 100 years.
    pub fn update_lease_time(&self, id: &str, lease: Duration) -> Result<bool> {
        let action = "update_lease_time";
        let id = self.parsed(action, id)?;
        let lease = checked_lease(action, lease).map_err(|error| error.on(self.name()))?;
        Ok(self.core.count(action, &Counting::Lease(id, lease))? == Some(1))
    }

    /// A permit's remaining lease, whoever took it; `None` if it is not taken, `Some(Duration::MAX)` if it
    /// has no end, like a permit of Java's without a lease.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub fn remaining_lease(&self, id: &str) -> Result<Option<Duration>> {
        let action = "remaining_lease";
        let id = self.parsed(action, id)?;
        let left = self.core.count(action, &Counting::AskLease(id))?;
        Ok(left.map(|left_ms| u64::try_from(left_ms).map_or(Duration::MAX, Duration::from_millis)))
    }

    /// Sets the total number of permits, free and taken, whether or not the semaphore was set up. Returns the
    /// number available, which is negative while more permits are taken than there are.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn set_permits(&self, permits: u32) -> Result<i64> {
        Ok(self.core.count("set_permits", &Counting::SetTo(permits))?.unwrap_or(0))
    }

    /// The total number of permits, free and taken.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn permits(&self) -> Result<i64> {
        Ok(self.core.count("permits", &Counting::AskAll)?.unwrap_or(0))
    }

    /// The number of permits taken.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn acquired_permits(&self) -> Result<i64> {
        Ok(self.core.count("acquired_permits", &Counting::AskOut)?.unwrap_or(0))
    }

    fn few(&self, action: &'static str, permits: u32) -> Result<()> {
        let words = || format!("{permits} permits at once are too many: the most is {MOST_AT_ONCE}");
        Error::require(action, permits <= MOST_AT_ONCE, words).map_err(|error| error.on(self.name()))
    }

    fn parsed(&self, action: &'static str, id: &str) -> Result<[u8; 16]> {
        let words = "a permit id must have 32 hex digits";
        let bad = || Error::invalid(action, words).on(self.name());
        parse_id(id).ok_or_else(bad)
    }

    fn take(&self, action: &'static str, permits: u32, options: &AcquireOptions) -> Result<Option<Permit>> {
        self.few(action, permits)?;
        Ok(self.core.take(action, permits, options)?.map(|entered| Permit::new(&self.core.engine, entered)))
    }
}

/// Maximum number of permits in one request, which carries an id for each.
const MOST_AT_ONCE: u32 = 1_000;

fn parse_id(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

/// A count under a name that is counted down, and at zero lets all waiters continue: Redisson's
/// `RCountDownLatch`. A latch that was never set up is open, as in Redisson: set it up before anyone waits.
///
/// # Blocking
/// As [`Semaphore`].
///
/// # Guarantees
/// When the latch opens, all waiters continue: by a message, or within 1.2 s if the message is lost. A
/// count-down whose answer is lost counts once: it is repeated as a [`Semaphore`]'s requests are.
///
/// # Examples
/// ```
/// use std::thread;
///
/// # let client = leasehold::LockClient::in_memory();
/// let ready = client.get_count_down_latch("ready");
/// ready.try_set_count(2)?;
/// thread::scope(|scope| {
///     for _ in 0..2 {
///         scope.spawn(|| ready.count_down().unwrap());
///     }
///     ready.wait().unwrap();
/// });
/// assert_eq!(ready.count()?, 0);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a latch is a handle, which waits for nothing yet: call `wait()`"]
pub struct CountDownLatch {
    core: RedisLock,
}

impl CountDownLatch {
    pub(crate) fn new(engine: &Arc<Engine>, name: &str) -> CountDownLatch {
        CountDownLatch { core: RedisLock::new(engine, Kind::Latch, name) }
    }

    /// The name, as it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// Sets the count. Returns `false` and changes nothing if the latch has not reached zero. A count of zero
    /// leaves the latch open, without a key.
    ///
    /// # Errors
    /// The name is bad, the key holds data of another kind, or the server could not be used.
    pub fn try_set_count(&self, count: u32) -> Result<bool> {
        Ok(self.core.count("try_set_count", &Counting::SetUp { to: count, lease: None })? == Some(1))
    }

    /// Counts one down, and opens the latch at zero; returns the new count. Does nothing to an open latch.
    ///
    /// # Errors
    /// As [`try_set_count`](Self::try_set_count).
    pub fn count_down(&self) -> Result<i64> {
        Ok(self.core.count("count_down", &Counting::CountDown)?.unwrap_or(0))
    }

    /// The count: how many count-downs are left until the latch opens; 0 if the latch is open.
    ///
    /// # Errors
    /// As [`try_set_count`](Self::try_set_count).
    pub fn count(&self) -> Result<i64> {
        Ok(self.core.count("count", &Counting::Ask)?.unwrap_or(0))
    }

    /// Waits until the latch is open, as long as it takes.
    ///
    /// # Errors
    /// As [`try_set_count`](Self::try_set_count).
    pub fn wait(&self) -> Result<()> {
        self.pass("wait", &AcquireOptions::new()).map(drop)
    }

    /// Waits until the latch is open, for `wait` and one command time-out at most; `false` if it
    /// stayed closed.
    ///
    /// # Errors
    /// As [`wait`](Self::wait). If the last request failed, its error is returned, not `false`.
    pub fn wait_for(&self, wait: Duration) -> Result<bool> {
        self.pass("wait_for", &AcquireOptions::new().wait(wait))
    }

    /// Waits until the latch is open or `interrupt` is set.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); [`is_interrupted`](crate::Error::is_interrupted) after an interrupt.
    pub fn wait_interruptibly(&self, interrupt: &Interrupt) -> Result<()> {
        self.pass("wait_interruptibly", &AcquireOptions::new().interrupt(interrupt)).map(drop)
    }

    /// Removes the latch, which opens it; `false` if there was none. (Java's `delete` wakes no waiter.)
    ///
    /// # Errors
    /// As [`try_set_count`](Self::try_set_count).
    pub fn delete(&self) -> Result<bool> {
        Ok(self.core.count("delete", &Counting::Delete)? == Some(1))
    }

    fn pass(&self, action: &'static str, options: &AcquireOptions) -> Result<bool> {
        Ok(self.core.own(action, options)?.is_some())
    }
}

/// The bound for numbers of permits: numbers in Redis's scripts are exact only below it.
const MOST: u64 = 1 << 53;

macro_rules! counted {
    ($semaphore:ident, $kind:ident) => {
        impl $semaphore {
            pub(crate) fn new(engine: &Arc<Engine>, name: &str) -> $semaphore {
                $semaphore { core: RedisLock::new(engine, Kind::$kind, name) }
            }

            /// The name, as it was given.
            #[must_use]
            pub fn name(&self) -> &str {
                self.core.name()
            }

            /// Sets the number of permits. Returns `false` and changes nothing if the number was set before.
            ///
            /// # Errors
            /// The name is bad, the key holds data of another kind, or the server could not be used.
            pub fn try_set_permits(&self, permits: u32) -> Result<bool> {
                let what = Counting::SetUp { to: permits, lease: None };
                Ok(self.core.count("try_set_permits", &what)? == Some(1))
            }

            /// Adds permits, or removes permits if the number is negative. Returns the number available,
            /// which may fall below zero.
            ///
            /// # Errors
            /// As [`try_set_permits`](Self::try_set_permits); and of kind
            /// [`InvalidInput`](crate::ErrorKind::InvalidInput), with nothing changed, if the number would
            /// reach 2^53 or -2^53.
            pub fn add_permits(&self, permits: i64) -> Result<i64> {
                Error::require("add_permits", permits.unsigned_abs() < MOST, || {
                    format!("{permits} permits are too many: the number has to be below 2^53")
                })
                .map_err(|error| error.on(self.name()))?;
                Ok(self.core.count("add_permits", &Counting::Add(permits))?.unwrap_or(0))
            }

            /// The number of permits available now; 0 if none were set up.
            ///
            /// # Errors
            /// As [`try_set_permits`](Self::try_set_permits).
            pub fn available_permits(&self) -> Result<i64> {
                Ok(self.core.count("available_permits", &Counting::Ask)?.unwrap_or(0))
            }

            /// Removes the semaphore with all its permits; `false` if there was none.
            ///
            /// # Errors
            /// As [`try_set_permits`](Self::try_set_permits).
            pub fn delete(&self) -> Result<bool> {
                Ok(self.core.count("delete", &Counting::Delete)? == Some(1))
            }
        }
    };
}

counted!(Semaphore, Semaphore);
counted!(ExpirableSemaphore, Permits);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_id_has_thirty_two_hex_digits() {
        assert_eq!(parse_id("000102030405060708090a0b0c0d0e0F").unwrap()[15], 15);
        for bad in ["", "0", "g00102030405060708090a0b0c0d0e0f", "+00102030405060708090a0b0c0d0e0f"] {
            assert_eq!(parse_id(bad), None, "{bad}");
        }
    }
}
