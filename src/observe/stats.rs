//! The numbers of a client, and the names that are waited for most, in bounded memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::observe::event::LossReason;
use crate::sync::Mutex;

/// A client's numbers since its start, from [`LockClient::stats`](crate::LockClient::stats).
///
/// # Examples
/// ```
/// let client = leasehold::LockClient::in_memory();
/// let guard = client.get_lock("stock:42").acquire()?;
/// let stats = client.stats();
/// assert_eq!((stats.grants, stats.holds, stats.lost()), (1, 1, 0));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Current holds, those at risk included.
    pub holds: u64,
    /// Holds that the client renews, but whose last renewal failed, or whose lease is more than half over.
    pub holds_at_risk: u64,
    /// Lost holds that their threads have not released yet.
    pub holds_lost: u64,
    /// How long the hold that ends first still counts as held; `None` without holds.
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
    /// Deadlocks that are certain and include a thread of this client.
    pub deadlocks: u64,
    /// How often a message of the store woke a waiter.
    pub woken_by_message: u64,
    /// How often a waiter was woken by a release of this client, or as the next in this client's queue.
    pub woken_locally: u64,
    /// How often a waiter woke by time, to poll.
    pub woken_by_time: u64,
}

impl Stats {
    /// All lost holds.
    pub fn lost(&self) -> u64 {
        self.lost_expired + self.lost_gone + self.lost_shut_down + self.lost_held_too_long
    }
}

macro_rules! counters {
    ($($count:ident)+) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            waited_for: WaitedFor,
            $(pub(crate) $count: Count,)+
        }

        impl Counters {
            /// All numbers but those about current holds, which the registry of holds knows.
            pub(crate) fn stats(&self) -> Stats {
                Stats { $($count: self.$count.get(),)+ ..Stats::default() }
            }
        }
    };
}

counters! {
    grants waiters waits gave_up lost_expired lost_gone lost_shut_down lost_held_too_long renewals renewals_failed
    releases_failed unknown_outcomes deadlocks woken_by_message woken_locally woken_by_time
}

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

    pub(crate) fn note_loss(&self, reason: LossReason) {
        match reason {
            LossReason::Expired => &self.lost_expired,
            LossReason::Gone => &self.lost_gone,
            LossReason::ShutDown => &self.lost_shut_down,
            LossReason::HeldTooLong => &self.lost_held_too_long,
        }
        .add(1);
    }

    pub(crate) fn contended(&self, most: usize) -> Vec<Contended> {
        self.waited_for.most(most)
    }
}

/// Maximum number of counted names. Every name with more than a 256th of all waits is among them.
const MOST_NAMES: usize = 256;

/// A lock that calls of this client have waited for, from
/// [`LockClient::contended`](crate::LockClient::contended).
///
/// # Examples
/// ```
/// for lock in leasehold::LockClient::in_memory().contended(20) {
///     println!("{} was waited for {} times", lock.name, lock.waits);
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contended {
    /// The lock.
    pub name: String,
    /// The number of calls that slept for the lock, never too low.
    pub waits: u64,
    /// How much too high `waits` may be: the name may have replaced another and taken over its count.
    pub overcount: u64,
}

/// Counts waits by name.
///
/// Source: Space-Saving (Metwally, Agrawal and El Abbadi, 2005). A new name takes the place, and the count,
/// of the name with the fewest waits. Therefore no count is too low, and none is too high by more than the
/// number of all waits divided by the number of places.
#[derive(Debug, Default)]
struct WaitedFor(Mutex<HashMap<String, Waits>>);

#[derive(Debug, Clone, Copy, Default)]
struct Waits {
    waits: u64,
    overcount: u64,
}

impl WaitedFor {
    /// Counts a wait. Only a new name needs a scan of all names, which takes far less time than the wait.
    fn note(&self, name: &str) {
        let mut counts = self.0.lock();
        if let Some(count) = counts.get_mut(name) {
            count.waits += 1;
            return;
        }
        let mut overcount = 0;
        if counts.len() >= MOST_NAMES {
            let least = counts.iter().min_by_key(|(_, count)| count.waits);
            if let Some((least, count)) = least.map(|(least, count)| (least.clone(), *count)) {
                counts.remove(&least);
                overcount = count.waits;
            }
        }
        counts.insert(name.to_owned(), Waits { waits: overcount + 1, overcount });
    }

    fn most(&self, most: usize) -> Vec<Contended> {
        let counts = self.0.lock();
        let named = |(name, count): (&String, &Waits)| Contended {
            name: name.clone(),
            waits: count.waits,
            overcount: count.overcount,
        };
        let mut all: Vec<_> = counts.iter().map(named).collect();
        drop(counts);
        all.sort_by(|one, other| other.waits.cmp(&one.waits).then_with(|| one.name.cmp(&other.name)));
        all.truncate(most);
        all
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_awaited_names_are_found_in_bounded_memory() {
        let waited_for = WaitedFor::default();
        let heavy = 10;
        for n in 0..100_000_u64 {
            waited_for.note(&format!("once:{n}"));
            waited_for.note(&format!("heavy:{}", n % heavy));
        }
        assert_eq!(waited_for.0.lock().len(), MOST_NAMES);
        let counted: u64 = waited_for.0.lock().values().map(|count| count.waits).sum();
        assert_eq!(counted, 200_000);
        let most = waited_for.most(usize::try_from(heavy).unwrap());
        assert!(most.iter().all(|found| found.name.starts_with("heavy:")), "{most:?}");
        for found in most {
            assert!(found.waits >= 10_000 && found.waits - found.overcount <= 10_000, "{found:?}");
            assert!(found.overcount <= 200_000 / MOST_NAMES as u64, "{found:?}");
        }
    }
}
