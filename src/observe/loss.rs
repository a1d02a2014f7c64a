//! The loss of a hold, and how it is known.

use crate::ident::Owner;

/// A hold that ended without being released.
///
/// # Examples
/// ```
/// use leasehold::LockClient;
///
/// let client = LockClient::in_memory();
/// let guard = client.get_lock("stock:42").acquire()?;
/// let lost = guard.lost();
/// client.shutdown()?; // takes the lock from the guard
/// let loss = lost.recv().unwrap();
/// assert_eq!((loss.name.as_str(), loss.owner), ("stock:42", guard.owner()));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The lock.
    pub name: String,
    /// The holder.
    pub owner: Owner,
    /// The reason.
    pub reason: LossReason,
}

/// Why a hold is lost.
///
/// # Examples
/// ```
/// use leasehold::{LockClient, LossReason};
///
/// let client = LockClient::in_memory();
/// let guard = client.get_lock("stock:42").acquire()?;
/// guard.on_lost(|loss| match loss.reason {
///     LossReason::Expired => eprintln!("nothing renewed it in time: was this process stopped?"),
///     LossReason::Gone => eprintln!("the store has it no longer: forced, evicted, or failed over"),
///     other => eprintln!("{other:?}"),
/// });
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease ran out without a confirmed renewal.
    Expired,
    /// The server answered that this owner does not hold the lock.
    Gone,
    /// The client was shut down.
    ShutDown,
    /// [`max_hold`](crate::LockBuilder::max_hold) ended the hold.
    HeldTooLong,
}

impl LossReason {
    /// How the hold ended, in a word. `is_abandoned`: its thread had ended.
    pub(crate) fn end(self, is_abandoned: bool) -> &'static str {
        match self {
            LossReason::Expired if is_abandoned => "abandoned",
            LossReason::Expired | LossReason::Gone => "lost",
            LossReason::ShutDown => "shut_down",
            LossReason::HeldTooLong => "max_hold",
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            LossReason::Expired => "its lease ran out",
            LossReason::Gone => "the server says that this owner does not hold it",
            LossReason::ShutDown => "the client was shut down",
            LossReason::HeldTooLong => "it was held for as long as max_hold allows",
        }
    }
}
