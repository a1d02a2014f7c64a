//! Permits with ids and leases.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::locks::guard::Permit;
use crate::locks::named::RedisLock;
use crate::locks::options::AcquireOptions;
use crate::seam::Counting;
use crate::time::checked_lease;

/// A [`Semaphore`](crate::Semaphore) whose permits have ids and leases: Redisson's
/// `RPermitExpirableSemaphore`.
///
/// The watchdog renews a permit until it is released, unless the call named a lease; the permits of a dead
/// process come back with the client's lease. (Redisson renews none.) Set the number of permits before
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
    pub(super) core: RedisLock,
}

impl ExpirableSemaphore {
    /// Acquires a permit, waiting as long as it takes, and renews it until it is released.
    ///
    /// # Blocking
    /// Until it is acquired; one round trip if one is available.
    ///
    /// # Errors
    /// The name is bad; the semaphore was not set up, or was deleted (kind
    /// [`NotSetUp`](crate::ErrorKind::NotSetUp)); the key holds something else; or the server could not be
    /// used for the client's retry time-out.
    pub fn acquire(&self) -> Result<Permit> {
        let permit = self.take("acquire", 1, &AcquireOptions::new())?;
        permit.ok_or_else(|| self.core.unending("acquire"))
    }

    /// Acquires a permit if one is available now.
    ///
    /// # Blocking
    /// One round trip.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), at once.
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        self.take("try_acquire", 1, &AcquireOptions::once())
    }

    /// Acquires a permit, waiting at most `wait`.
    ///
    /// # Blocking
    /// Up to `wait` and one command time-out.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). If the last attempt failed, its error is returned.
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>> {
        self.take("try_acquire_for", 1, &AcquireOptions::new().wait(wait))
    }

    /// Acquires several permits at once, or none, by `options`; `None` if they did not become available,
    /// which needs a bound on the wait.
    ///
    /// # Blocking
    /// As [`acquire`](Self::acquire), or up to the wait that the options name and one command time-out.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); for no permits or more than 1,000; for a lease under 1 ms or over 100
    /// years; and one that [`is_interrupted`](Error::is_interrupted).
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
    /// assert_eq!(two.ids().len(), 2);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn acquire_with(&self, permits: u32, options: &AcquireOptions) -> Result<Option<Permit>> {
        self.take("acquire_with", permits, options)
    }

    /// Releases a permit by its id, whoever took it; `false` if it is not taken.
    ///
    /// # Blocking
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits); and, before any I/O, for an id that is not 32 hex
    /// digits.
    pub fn release(&self, id: &str) -> Result<bool> {
        let id = self.parsed("release", id)?;
        Ok(self.core.count("release", &Counting::GiveBack(id)).map_err(Error::after_work)? == Some(1))
    }

    /// Releases permits by their ids, whoever took them, all or none; `false` if not all are taken.
    ///
    /// # Blocking
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    /// As [`release`](Self::release), and for no ids or more than 1,000.
    ///
    /// # Examples
    /// ```
    /// use leasehold::{AcquireOptions, LockClient};
    ///
    /// let slots = LockClient::in_memory().get_expirable_semaphore("workers");
    /// slots.try_set_permits(3)?;
    /// let two = slots.acquire_with(2, &AcquireOptions::new())?.unwrap();
    /// assert!(slots.release_many(&two.ids())?);
    /// assert_eq!(slots.available_permits()?, 3);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn release_many(&self, ids: &[impl AsRef<str>]) -> Result<bool> {
        let action = "release_many";
        if ids.is_empty() {
            return Err(Error::invalid(action, "no permit ids were given").on(self.name()));
        }
        self.few(action, u32::try_from(ids.len()).unwrap_or(u32::MAX))?;
        let ids = ids.iter().map(|id| self.parsed(action, id.as_ref())).collect::<Result<Vec<_>>>()?;
        Ok(self.core.count(action, &Counting::GiveBackAll(ids)).map_err(Error::after_work)? != Some(0))
    }

    /// Makes a permit's lease end `lease` from now, whoever took it; `false` if it is not taken. The
    /// watchdog continues to renew a permit that it renews; a holder with an explicit lease is not notified.
    ///
    /// # Blocking
    /// As [`try_set_permits`](Self::try_set_permits).
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
    /// has no end, as Java's without a lease.
    ///
    /// # Blocking
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub fn remaining_lease(&self, id: &str) -> Result<Option<Duration>> {
        let action = "remaining_lease";
        let id = self.parsed(action, id)?;
        let left = self.core.count(action, &Counting::AskLease(id))?;
        Ok(left.map(|left_ms| u64::try_from(left_ms).map_or(Duration::MAX, Duration::from_millis)))
    }

    /// Sets the number of permits, taken ones included, whether or not it was set up; returns the number
    /// available, below zero while more are taken.
    ///
    /// # Blocking
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn set_permits(&self, permits: u32) -> Result<i64> {
        Ok(self.core.count("set_permits", &Counting::SetTo(permits))?.unwrap_or(0))
    }

    /// The number of permits, taken or not.
    ///
    /// # Blocking
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn permits(&self) -> Result<i64> {
        Ok(self.core.count("permits", &Counting::AskAll)?.unwrap_or(0))
    }

    /// The number of permits taken.
    ///
    /// # Blocking
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn acquired_permits(&self) -> Result<i64> {
        Ok(self.core.count("acquired_permits", &Counting::AskOut)?.unwrap_or(0))
    }

    fn few(&self, action: &'static str, permits: u32) -> Result<()> {
        if permits > MOST_AT_ONCE {
            let words = format!("{permits} permits at once are too many: the most is {MOST_AT_ONCE}");
            return Err(Error::invalid(action, words).on(self.name()));
        }
        Ok(())
    }

    fn parsed(&self, action: &'static str, id: &str) -> Result<[u8; 16]> {
        let bad = || {
            Error::invalid(action, "the permit id cannot be used: a permit id has 32 hexadecimal digits")
                .on(self.name())
        };
        parse_id(id).ok_or_else(bad)
    }

    fn take(&self, action: &'static str, permits: u32, options: &AcquireOptions) -> Result<Option<Permit>> {
        self.few(action, permits)?;
        Ok(self.core.take(action, permits, options)?.map(|entered| Permit::new(self.core.engine(), entered)))
    }
}

/// Each permit has its own id, and one request carries them all.
const MOST_AT_ONCE: u32 = 1_000;

fn parse_id(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_thirty_two_hex_digits() {
        assert_eq!(parse_id("000102030405060708090a0b0c0d0e0F").unwrap()[15], 15);
        for bad in ["", "0", "g00102030405060708090a0b0c0d0e0f", "+00102030405060708090a0b0c0d0e0f"] {
            assert_eq!(parse_id(bad), None, "{bad}");
        }
    }
}
