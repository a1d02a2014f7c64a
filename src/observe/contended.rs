//! The names that are waited for most, in bounded memory.

use std::collections::HashMap;

use crate::sync::Mutex;

/// Number of counted names. A name with more than one in `MOST_NAMES` of all waits is always among them.
const MOST_NAMES: usize = 256;

/// A lock that calls of this client have waited for, from
/// [`LockClient::contended`](crate::LockClient::contended).
///
/// # Examples
/// ```
/// use leasehold::LockClient;
///
/// let client = LockClient::in_memory();
/// client.get_lock("stock:42").acquire()?.unlock()?; // nobody waited
/// assert!(client.contended(20).is_empty());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contended {
    /// The lock.
    pub name: String,
    /// The number of calls that slept for it, never too low.
    pub waits: u64,
    /// How much too high `waits` may be: the name may have replaced another and taken over its count.
    pub overcount: u64,
}

/// Counts waits by name.
///
/// Source: Space-Saving (Metwally, Agrawal and El Abbadi, 2005). A name that is not counted takes the place,
/// and the count, of the one that was waited for least. So no count is too low, and none is too high by more
/// than all waits divided by the places.
#[derive(Debug, Default)]
pub(super) struct WaitedFor(Mutex<HashMap<String, Count>>);

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    waits: u64,
    overcount: u64,
}

impl WaitedFor {
    /// Counts a wait. Only a new name costs a scan, far less than the wait.
    pub(super) fn note(&self, name: &str) {
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
        counts.insert(name.to_owned(), Count { waits: overcount + 1, overcount });
    }

    pub(super) fn most(&self, most: usize) -> Vec<Contended> {
        let counts = self.0.lock();
        let named = |(name, count): (&String, &Count)| Contended {
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
    fn heavy_names_are_found_in_bounded_memory() {
        let waited_for = WaitedFor::default();
        let heavy = 10;
        for n in 0..100_000_u64 {
            waited_for.note(&format!("once:{n}"));
            waited_for.note(&format!("heavy:{}", n % heavy));
        }
        assert_eq!(waited_for.0.lock().len(), MOST_NAMES);
        // Each wait counts for some name.
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
