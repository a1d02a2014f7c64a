//! Collections give back the room that a crowd needed once the crowd has gone.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::Moment;

/// Room for so many is kept.
const KEPT: usize = 4096;

/// A collection that keeps its room when it gets empty.
pub(crate) trait Roomy {
    /// Gives back room of which less than an eighth is used. To be called after something was removed: so much has to come
    /// or go before there is anything to do again that it costs each removal next to nothing.
    fn give_back_room(&mut self);
}

impl<K: Eq + Hash, V> Roomy for HashMap<K, V> {
    fn give_back_room(&mut self) {
        if is_mostly_empty(self.capacity(), self.len()) {
            self.shrink_to(self.len() * 2);
        }
    }
}

impl<T> Roomy for Vec<T> {
    fn give_back_room(&mut self) {
        if is_mostly_empty(self.capacity(), self.len()) {
            self.shrink_to(self.len() * 2);
        }
    }
}

fn is_mostly_empty(room: usize, len: usize) -> bool {
    room > KEPT && len < room / 8
}

/// Entries that end by themselves, without a message, are looked for this often at most.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// When a collection is looked through for entries that have ended by themselves.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    next: AtomicU64,
}

impl Sweeps {
    /// Whether it is to be done now, by the caller.
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
    fn room_is_given_back_when_most_of_it_is_empty_and_seldom() {
        let mut map: HashMap<u32, u32> = (0..100_000).map(|n| (n, n)).collect();
        let mut times = 0;
        for n in 0..100_000 {
            map.remove(&n);
            let room = map.capacity();
            map.give_back_room();
            times += u32::from(map.capacity() < room);
        }
        assert!(
            map.capacity() <= KEPT && (1..=6).contains(&times),
            "{}, after {times} times",
            map.capacity()
        );
        let mut list: Vec<u32> = (0..100_000).collect();
        list.truncate(20_000);
        list.give_back_room();
        assert!(list.capacity() >= 100_000, "it may well be needed again");
        list.clear();
        list.give_back_room();
        assert_eq!(list.capacity(), 0);
    }
}
