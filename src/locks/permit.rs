//! Permits of a semaphore as a value.

use std::fmt;
use std::ops::Deref;

use crate::error::Result;
use crate::locks::guard::OwnedGuard;

/// Permits that were acquired, released when dropped: an [`OwnedGuard`] with what only permits have.
///
/// A permit belongs to this value, not to a thread. One of a [`Semaphore`](crate::Semaphore) never ends by
/// itself; one of an [`ExpirableSemaphore`](crate::ExpirableSemaphore) has a lease, as a lock's hold.
///
/// # Examples
///
/// ```
/// use leasehold::{LockClient, Permit};
///
/// let client = LockClient::in_memory();
/// let seats = client.get_semaphore("seats");
/// seats.try_set_permits(2)?;
/// let seat: Permit = seats.acquire(1)?;
/// std::thread::spawn(move || seat.unlock()).join().unwrap()?; // from any thread
/// assert_eq!(seats.available_permits()?, 2);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "the permits are released as soon as this is dropped: bind it to a name, `let _permit = …`"]
pub struct Permit {
    guard: OwnedGuard,
}

impl Permit {
    pub(super) fn new(guard: OwnedGuard) -> Permit {
        Permit { guard }
    }

    /// The ids of the permits, 32 hex digits each, if they are of an
    /// [`ExpirableSemaphore`](crate::ExpirableSemaphore): any process may release them by these. None, if
    /// they are of a [`Semaphore`](crate::Semaphore).
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        self.guard.permit_ids()
    }

    /// Keeps the permits: they are not released when this value goes, and not renewed. For permits that
    /// others release.
    pub fn forget(self) {
        self.guard.keep_permits();
    }

    /// Releases the permits, and says whether they were out until then.
    ///
    /// # Blocking
    ///
    /// As [`OwnedGuard::unlock`].
    ///
    /// # Errors
    ///
    /// As [`OwnedGuard::unlock`].
    pub fn unlock(self) -> Result<()> {
        self.guard.unlock()
    }
}

impl Deref for Permit {
    type Target = OwnedGuard;

    fn deref(&self) -> &OwnedGuard {
        &self.guard
    }
}

impl From<Permit> for OwnedGuard {
    /// The same hold, for code that keeps guards of locks and permits alike.
    fn from(permit: Permit) -> OwnedGuard {
        permit.guard
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("name", &self.name())
            .field("owner", &self.owner())
            .finish_non_exhaustive()
    }
}
