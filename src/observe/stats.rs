//! The numbers of a client.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::observe::contended::{Contended, WaitedFor};
use crate::observe::event::LossReason;

/// The numbers of a client, from [`LockClient::stats`](crate::LockClient::stats). Counters begin with the
/// client.
///
/// # Examples
/// ```
/// use leasehold::LockClient;
///
/// let client = LockClient::in_memory();
/// let guard = client.get_lock("stock:42").acquire()?;
/// let stats = client.stats();
/// assert_eq!((stats.grants, stats.holds, stats.waiters), (1, 1, 0));
/// # drop(guard);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Current holds, those at risk included.
    pub holds: u64,
    /// Holds whose last renewal failed or is overdue.
    pub holds_at_risk: u64,
    /// Lost holds that their threads have not released yet.
    pub holds_lost: u64,
    /// How long the hold that ends first is still certain; `None` without holds.
    pub shortest_window: Option<Duration>,
    /// How long the most overdue renewal has been due; zero while all are in time.
    pub longest_overdue: Duration,
    /// Calls that have slept for a lock and have not returned.
    pub waiters: u64,
    /// Whether releases elsewhere wake waiters here, as far as is known.
    pub subscription_up: bool,
    /// Locks taken, without re-entries.
    pub grants: u64,
    /// Calls that slept for a lock.
    pub waits: u64,
    /// Calls that ended without the lock, for whatever reason.
    pub gave_up: u64,
    /// Holds lost because the lease ran out.
    pub lost_expired: u64,
    /// Holds lost because the store no longer had them.
    pub lost_gone: u64,
    /// Holds lost because the client was shut down.
    pub lost_shut_down: u64,
    /// Holds lost because `max_hold` ended them.
    pub lost_held_too_long: u64,
    /// Renewals that the store confirmed.
    pub renewals: u64,
    /// Renewals that failed; each is repeated.
    pub renewals_failed: u64,
    /// Failed releases, those of dropped guards included.
    pub releases_failed: u64,
    /// Acquires whose outcome was unknown at first.
    pub unknown_outcomes: u64,
    /// Deadlocks with a thread of this client.
    pub deadlocks: u64,
    /// Waiters woken by a message of the store.
    pub woken_by_message: u64,
    /// Waiters woken by a release of this client, or as the next in its queue.
    pub woken_locally: u64,
    /// Waiters that polled.
    pub woken_by_time: u64,
}

impl Stats {
    /// All lost holds.
    pub fn lost(&self) -> u64 {
        self.lost_expired + self.lost_gone + self.lost_shut_down + self.lost_held_too_long
    }
}

/// Counted where a call waits, fails or loses, never in an uncontended acquire or release. The registry
/// counts grants under a mutex that it locks anyway.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    waited_for: WaitedFor,
    waiters: Count,
    waits: Count,
    gave_up: Count,
    lost: [Count; 4],
    pub(crate) renewals: Count,
    pub(crate) renewals_failed: Count,
    pub(crate) releases_failed: Count,
    pub(crate) unknown_outcomes: Count,
    pub(crate) deadlocks: Count,
    pub(crate) by_message: Count,
    pub(crate) locally: Count,
    pub(crate) by_time: Count,
}

/// A counter that orders nothing else.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn begin_wait(&self, name: &str) {
        self.waiters.add(1);
        self.waits.add(1);
        self.waited_for.note(name);
    }

    pub(crate) fn end_wait(&self) {
        self.waiters.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn note_given_up(&self) {
        self.gave_up.add(1);
    }

    pub(crate) fn note_loss(&self, reason: LossReason) {
        let [expired, gone, shut_down, held_too_long] = &self.lost;
        match reason {
            LossReason::Expired => expired,
            LossReason::Gone => gone,
            LossReason::ShutDown => shut_down,
            LossReason::HeldTooLong => held_too_long,
        }
        .add(1);
    }

    pub(crate) fn contended(&self, most: usize) -> Vec<Contended> {
        self.waited_for.most(most)
    }

    /// Without holds and grants, which the registry has.
    pub(crate) fn stats(&self) -> Stats {
        let [expired, gone, shut_down, held_too_long] = &self.lost;
        Stats {
            waiters: self.waiters.get(),
            waits: self.waits.get(),
            gave_up: self.gave_up.get(),
            lost_expired: expired.get(),
            lost_gone: gone.get(),
            lost_shut_down: shut_down.get(),
            lost_held_too_long: held_too_long.get(),
            renewals: self.renewals.get(),
            renewals_failed: self.renewals_failed.get(),
            releases_failed: self.releases_failed.get(),
            unknown_outcomes: self.unknown_outcomes.get(),
            deadlocks: self.deadlocks.get(),
            woken_by_message: self.by_message.get(),
            woken_locally: self.locally.get(),
            woken_by_time: self.by_time.get(),
            ..Stats::default()
        }
    }
}
