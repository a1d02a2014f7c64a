//! Collections that free memory once most of their entries are gone.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::Moment;

/// Collections below this many entries keep their memory.
const MIN_CAPACITY: usize = 4096;

/// A map that frees memory once most of its entries are gone.
///
/// A [`HashMap`]'s capacity leaves out the slots of removed entries, which may be nearly all slots. Therefore
/// this type remembers the largest number of entries that it has had.
#[derive(Debug)]
pub(crate) struct CrowdMap<K, V, S = RandomState> {
    map: HashMap<K, V, S>,
    /// The largest number of entries since memory was last freed; updated before entries are removed.
    most: usize,
}

impl<K, V, S: Default> Default for CrowdMap<K, V, S> {
    fn default() -> CrowdMap<K, V, S> {
        CrowdMap { map: HashMap::default(), most: 0 }
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> CrowdMap<K, V, S> {
    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.most = self.most.max(self.map.len());
        let value = self.map.remove(key);
        self.shrink_if_sparse();
        value
    }

    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&K, &mut V) -> bool) {
        self.most = self.most.max(self.map.len());
        self.map.retain(is_kept);
        self.shrink_if_sparse();
    }

    fn shrink_if_sparse(&mut self) {
        if is_mostly_empty(self.most, self.map.len()) {
            self.map.shrink_to(self.map.len() * 2);
            self.most = self.map.len() * 2;
        }
    }
}

impl<K, V, S> Deref for CrowdMap<K, V, S> {
    type Target = HashMap<K, V, S>;

    fn deref(&self) -> &HashMap<K, V, S> {
        &self.map
    }
}

/// Removals other than by [`CrowdMap::remove`] and [`CrowdMap::retain`] free no memory.
impl<K, V, S> DerefMut for CrowdMap<K, V, S> {
    fn deref_mut(&mut self) -> &mut HashMap<K, V, S> {
        &mut self.map
    }
}

pub(crate) trait Shrink {
    /// Frees memory if less than an eighth of it is used; call this after a removal. Many entries come or go
    /// between two reallocations, so the cost of a removal stays small on average.
    fn shrink_if_sparse(&mut self);
}

impl<T> Shrink for Vec<T> {
    fn shrink_if_sparse(&mut self) {
        if is_mostly_empty(self.capacity(), self.len()) {
            self.shrink_to(self.len() * 2);
        }
    }
}

fn is_mostly_empty(room: usize, len: usize) -> bool {
    room > MIN_CAPACITY && len < room / 8
}

/// Shortest interval between two searches for entries that have expired.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Says when to search a collection for expired entries: at most once each [`SWEEP_EVERY`].
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    next: AtomicU64,
}

impl Sweeps {
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        let (next, again) = (self.next.load(Ordering::Acquire), now.plus(SWEEP_EVERY).nanos());
        now.nanos() >= next
            && self.next.compare_exchange(next, again, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collections_free_memory_in_few_steps_when_mostly_empty() {
        let mut map: CrowdMap<_, _> = CrowdMap::default();
        map.extend((0..100_000).map(|n| (n, n)));
        let mut times = 0;
        for n in 0..100_000 {
            let most = map.most;
            map.remove(&n);
            times += u32::from(map.most < most);
        }
        assert!(
            map.capacity() <= MIN_CAPACITY && (1..=6).contains(&times),
            "{}, after {times} times",
            map.capacity()
        );
        let mut list: Vec<u32> = (0..100_000).collect();
        list.truncate(20_000);
        list.shrink_if_sparse();
        assert!(list.capacity() >= 100_000, "the list may become as long again");
        list.clear();
        list.shrink_if_sparse();
        assert_eq!(list.capacity(), 0);
    }
}
