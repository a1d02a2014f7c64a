//! Permits with ids and leases.

use std::time::Duration;

use crate::engine::acquire::call::WaitLimit;
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::locks::guard::OwnedGuard;
use crate::locks::named::{CallOptions, RedisLock, forever, unending};
use crate::seam::Counting;
use crate::time::{Lease, checked_lease};

/// Permits that were acquired, released when dropped; see [`OwnedGuard`].
///
/// A permit belongs to this value, not to a thread. One of a [`Semaphore`](crate::Semaphore) never ends by itself; one of an
/// [`ExpirableSemaphore`] has a lease, as a lock's hold.
///
/// # Examples
///
/// ```
/// use leasehold::{LockClient, Permit};
///
/// let client = LockClient::in_memory();
/// let seats = client.semaphore("seats");
/// seats.try_set_permits(2)?;
/// let seat: Permit = seats.acquire(1)?;
/// std::thread::spawn(move || seat.unlock()).join().unwrap()?; // from any thread
/// assert_eq!(seats.available_permits()?, 2);
/// # Ok::<(), leasehold::Error>(())
/// ```
pub type Permit = OwnedGuard;

/// As [`Semaphore`](crate::Semaphore), but each permit has an id and a lease: Redisson's `RPermitExpirableSemaphore`.
///
/// A permit without a lease of its own is renewed by the watchdog until it is released; when its process dies, it
/// comes back with the client's lease. (Redisson renews none.)
///
/// # Examples
///
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let slots = client.expirable_semaphore("workers");
/// slots.try_set_permits(1)?;
/// let permit = slots.acquire()?;
/// let id = permit.permit_ids().remove(0); // any process may release it by this
/// assert!(slots.release(&id)?);
/// assert!(slots.try_acquire()?.is_some());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct ExpirableSemaphore {
    pub(super) core: RedisLock,
}

impl ExpirableSemaphore {
    /// Acquires a permit, waiting as long as it takes, and renews it until it is released.
    ///
    /// # Blocking
    ///
    /// Until it is acquired; one round trip if it is available.
    ///
    /// # Errors
    ///
    /// The name is bad; the key holds something else; or the server could not be used for the client's patience.
    pub fn acquire(&self) -> Result<Permit> {
        self.take("acquire", Lease::Renewed, forever(), 1)?.ok_or_else(|| unending("acquire", self.name()))
    }

    /// As [`acquire`](Self::acquire), until `interrupt` is set at the latest.
    ///
    /// # Blocking
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); and one that [`is_interrupted`](Error::is_interrupted).
    pub fn acquire_interruptibly(&self, interrupt: &Interrupt) -> Result<Permit> {
        let action = "acquire_interruptibly";
        let take =
            CallOptions { lease: Lease::Renewed, limit: forever(), interrupt: Some(interrupt), units: 1 };
        self.core.take(action, take)?.ok_or_else(|| unending(action, self.name()))
    }

    /// As [`acquire`](Self::acquire), for at most `lease` and without renewal.
    ///
    /// # Blocking
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and for a lease under 1 ms or over 100 years.
    pub fn acquire_with_lease(&self, lease: Duration) -> Result<Permit> {
        let action = "acquire_with_lease";
        self.take(action, Lease::Fixed(lease), forever(), 1)?.ok_or_else(|| unending(action, self.name()))
    }

    /// Acquires several permits at once, waiting as long as it takes, and renews them until they are released.
    ///
    /// # Blocking
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and if none or more than 1,000 were asked for.
    pub fn acquire_many(&self, permits: u32) -> Result<Permit> {
        let action = "acquire_many";
        self.take(action, Lease::Renewed, forever(), permits)?.ok_or_else(|| unending(action, self.name()))
    }

    /// As [`acquire_many`](Self::acquire_many), for at most `lease` and without renewal.
    ///
    /// # Blocking
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many), and for a lease under 1 ms or over 100 years.
    pub fn acquire_many_with_lease(&self, permits: u32, lease: Duration) -> Result<Permit> {
        let action = "acquire_many_with_lease";
        let taken = self.take(action, Lease::Fixed(lease), forever(), permits)?;
        taken.ok_or_else(|| unending(action, self.name()))
    }

    /// Acquires several permits at once if they are there now, or none.
    ///
    /// # Blocking
    ///
    /// One round trip.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many), at once.
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Permit>> {
        self.take("try_acquire_many", Lease::Renewed, WaitLimit::Once, permits)
    }

    /// Acquires several permits at once for at most `lease`, or none, waiting at most `wait`.
    ///
    /// # Blocking
    ///
    /// Up to `wait` and one command time-out.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_many_for`](Self::try_acquire_many_for), and for a lease under 1 ms or over 100 years.
    pub fn try_acquire_many_for_with_lease(
        &self,
        permits: u32,
        wait: Duration,
        lease: Duration,
    ) -> Result<Option<Permit>> {
        let action = "try_acquire_many_for_with_lease";
        self.take(action, Lease::Fixed(lease), self.core.after(wait), permits)
    }

    /// Acquires several permits at once, or none, waiting at most `wait`.
    ///
    /// # Blocking
    ///
    /// Up to `wait` and one command time-out.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and if none or more than 1,000 were asked for.
    pub fn try_acquire_many_for(&self, permits: u32, wait: Duration) -> Result<Option<Permit>> {
        self.take("try_acquire_many_for", Lease::Renewed, self.core.after(wait), permits)
    }

    /// Acquires a permit if one is there now.
    ///
    /// # Blocking
    ///
    /// One round trip.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), at once.
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        self.take("try_acquire", Lease::Renewed, WaitLimit::Once, 1)
    }

    /// Acquires a permit, waiting at most `wait`.
    ///
    /// # Blocking
    ///
    /// Up to `wait` and one command time-out.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). If the last attempt failed, its error is returned.
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>> {
        self.take("try_acquire_for", Lease::Renewed, self.core.after(wait), 1)
    }

    /// Acquires a permit for at most `lease`, waiting at most `wait`.
    ///
    /// # Blocking
    ///
    /// Up to `wait` and one command time-out.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_for`](Self::try_acquire_for) and [`acquire_with_lease`](Self::acquire_with_lease).
    pub fn try_acquire_for_with_lease(&self, wait: Duration, lease: Duration) -> Result<Option<Permit>> {
        self.take("try_acquire_for_with_lease", Lease::Fixed(lease), self.core.after(wait), 1)
    }

    /// Releases a permit by its id, whoever took it; `false` if it is not out (any more).
    ///
    /// # Blocking
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits); and, before any I/O, for an id that is not 32 hex digits.
    pub fn release(&self, id: &str) -> Result<bool> {
        let id = self.parsed("release", id)?;
        Ok(self.core.count("release", &Counting::GiveBack(id))? == Some(1))
    }

    /// Releases permits by their ids, whoever took them, all or none; `false` if not all are out (any more).
    ///
    /// # Blocking
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release), and if there are no ids, or more than 1,000.
    ///
    /// # Examples
    ///
    /// ```
    /// # let client = leasehold::LockClient::in_memory();
    /// let slots = client.expirable_semaphore("workers");
    /// slots.try_set_permits(3)?;
    /// let two = slots.acquire_many(2)?;
    /// assert!(slots.release_many(&two.permit_ids())?);
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
        Ok(self.core.count(action, &Counting::GiveBackAll(ids))? != Some(0))
    }

    /// Has a permit's lease end so long from now, sooner or later than it would, whoever took it; `false` if it is not
    /// out (any more).
    ///
    /// A permit that is renewed is renewed all the same. A holder with a lease of its own goes by that lease: it
    /// is not notified that it was cut or made longer.
    ///
    /// # Blocking
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release), and for a lease under 1 ms or over 100 years.
    pub fn update_lease_time(&self, id: &str, lease: Duration) -> Result<bool> {
        let action = "update_lease_time";
        let id = self.parsed(action, id)?;
        let lease = checked_lease(action, lease).map_err(|error| error.on(self.name()))?;
        Ok(self.core.count(action, &Counting::Lease(id, lease))? == Some(1))
    }

    /// How long a permit's lease still runs, whoever took it: `None` if it is not out (any more), `Some(Duration::MAX)`
    /// if it has no end, as those have that Java takes without a lease.
    ///
    /// # Blocking
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub fn remaining_lease(&self, id: &str) -> Result<Option<Duration>> {
        let action = "remaining_lease";
        let id = self.parsed(action, id)?;
        let left = self.core.count(action, &Counting::AskLease(id))?;
        Ok(left.map(|left_ms| u64::try_from(left_ms).map_or(Duration::MAX, Duration::from_millis)))
    }

    /// Sets the number of permits, those that are out included, whether it was set up before or not; returns how
    /// many are available now. That is below zero while more are out than the new number.
    ///
    /// # Blocking
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn set_permits(&self, permits: u32) -> Result<i64> {
        Ok(self.core.count("set_permits", &Counting::SetTo(permits))?.unwrap_or(0))
    }

    /// How many permits there are, out or not.
    ///
    /// # Blocking
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn permits(&self) -> Result<i64> {
        Ok(self.core.count("permits", &Counting::AskAll)?.unwrap_or(0))
    }

    /// How many permits are out.
    ///
    /// # Blocking
    ///
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    ///
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
        let bad = || Error::invalid(action, "a permit id has 32 hex digits").on(self.name());
        parse_id(id).ok_or_else(bad)
    }

    fn take(
        &self,
        action: &'static str,
        lease: Lease,
        limit: WaitLimit,
        units: u32,
    ) -> Result<Option<Permit>> {
        self.few(action, units)?;
        self.core.take(action, CallOptions { lease, limit, interrupt: None, units })
    }
}

/// Each has an id of its own, and all go in one request.
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
