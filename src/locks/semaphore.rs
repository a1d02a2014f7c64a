//! Permits without owners and leases: a number of them under a name.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::locks::guard::Permit;
use crate::locks::named::RedisLock;
use crate::locks::options::AcquireOptions;
use crate::seam::Counting;
use crate::time::checked_lease;

/// A number of permits under a name, shared by threads, processes and languages: Redisson's `RSemaphore`.
///
/// The store only counts, so the permits of a dead process do not come back; an
/// [`ExpirableSemaphore`](crate::ExpirableSemaphore)'s do.
///
/// Each process calls [`try_set_permits`](Self::try_set_permits) first: the first call sets the number, later
/// calls change nothing. Without it acquiring, waiting or not, is an error of kind
/// [`NotSetUp`](crate::ErrorKind::NotSetUp). (Redisson's calls wait.)
///
/// # Guarantees
/// Never more permits are out than were set up and added. Clients that wait are served in order of arrival. A
/// waiter for three permits does not hold up one for one permit, and may wait as long as others take what comes
/// back. A lost wake-up costs a waiter up to 1.2 s. A request whose answer is lost is repeated and counted once, for up to ten minutes.
///
/// # Examples
/// ```
/// # let client = leasehold::LockClient::in_memory();
/// let slots = client.get_semaphore("downstream");
/// slots.try_set_permits(2)?;
/// let one = slots.acquire(1)?;
/// let other = slots.acquire(1)?;
/// assert!(slots.try_acquire(1)?.is_none());
/// drop((one, other));
/// assert!(slots.try_acquire(2)?.is_some());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "`get_semaphore` acquires nothing: it makes a handle, whose `acquire(1)` takes a permit and returns a guard"]
pub struct Semaphore {
    pub(super) core: RedisLock,
}

impl Semaphore {
    /// Acquires `permits` permits, waiting as long as it takes.
    ///
    /// # Blocking
    /// Until they are acquired; one round trip if they are available.
    ///
    /// # Errors
    /// `permits` is zero; the name is bad; the semaphore was not set up, or was deleted or has ended (kind
    /// [`NotSetUp`](crate::ErrorKind::NotSetUp)); the key holds something else; or the server could not be
    /// used for the client's retry time-out.
    pub fn acquire(&self, permits: u32) -> Result<Permit> {
        let permit = self.take("acquire", permits, &AcquireOptions::new())?;
        permit.ok_or_else(|| self.core.unending("acquire"))
    }

    /// Acquires `permits` permits if they are available now.
    ///
    /// # Blocking
    /// One round trip.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), at once.
    pub fn try_acquire(&self, permits: u32) -> Result<Option<Permit>> {
        self.take("try_acquire", permits, &AcquireOptions::once())
    }

    /// Acquires `permits` permits, waiting at most `wait`.
    ///
    /// # Blocking
    /// Up to `wait` and one command time-out.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). If the last attempt failed, its error is returned.
    pub fn try_acquire_for(&self, permits: u32, wait: Duration) -> Result<Option<Permit>> {
        self.take("try_acquire_for", permits, &AcquireOptions::new().wait(wait))
    }

    /// Acquires `permits` permits as `options` say; `None` if they did not become available, which needs a
    /// bound on the wait.
    ///
    /// # Blocking
    /// As [`acquire`](Self::acquire), or up to the wait that the options name and one command time-out.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); one that [`is_interrupted`](crate::Error::is_interrupted); and, before
    /// any I/O, of kind [`InvalidInput`](crate::ErrorKind::InvalidInput) if the options name a lease, which
    /// these permits do not have.
    pub fn acquire_with(&self, permits: u32, options: &AcquireOptions) -> Result<Option<Permit>> {
        const ACTION: &str = "acquire_with";
        if options.lease.is_some() {
            let words = "permits of a plain semaphore have no lease: leave the lease out, or use an \
                expirable semaphore";
            return Err(Error::invalid(ACTION, words).on(self.name()));
        }
        self.take(ACTION, permits, options)
    }

    /// Releases permits that were acquired elsewhere, by code that called [`Permit::forget`], or adds new
    /// ones: the store does not distinguish the two.
    ///
    /// # Blocking
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn release(&self, permits: u32) -> Result<()> {
        self.core.count("release", &Counting::Add(i64::from(permits))).map(drop).map_err(Error::after_work)
    }

    /// As [`release`](Self::release), but `false`, with nothing made, if the semaphore does not exist.
    ///
    /// # Blocking
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn release_if_exists(&self, permits: u32) -> Result<bool> {
        let what = Counting::AddIfSetUp(i64::from(permits));
        Ok(self.core.count("release_if_exists", &what).map_err(Error::after_work)? == Some(1))
    }

    /// Acquires all available permits for good; returns their number.
    ///
    /// # Blocking
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub fn drain_permits(&self) -> Result<i64> {
        Ok(self.core.count("drain_permits", &Counting::Drain)?.unwrap_or(0))
    }

    /// As [`try_set_permits`](Self::try_set_permits), and the semaphore ends after `lease`.
    ///
    /// # Blocking
    /// As [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits), and for a lease under 1 ms or over 100 years.
    pub fn try_set_permits_with_lease(&self, permits: u32, lease: Duration) -> Result<bool> {
        let action = "try_set_permits_with_lease";
        let lease = Some(checked_lease(action, lease).map_err(|error| error.on(self.name()))?);
        Ok(self.core.count(action, &Counting::SetUp { to: permits, lease })? == Some(1))
    }

    fn take(&self, action: &'static str, permits: u32, options: &AcquireOptions) -> Result<Option<Permit>> {
        Ok(self.core.take(action, permits, options)?.map(|entered| Permit::new(self.core.engine(), entered)))
    }
}
