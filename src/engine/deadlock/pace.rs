//! How often each wait is searched, and how many requests all searches may send.

use std::collections::HashMap;
use std::time::Duration;

use crate::engine::pace::{Budget, Repeat};
use crate::time::Moment;

/// The pause after the first search for a wait. Later pauses double up to `LONGEST_PAUSE`. The second search
/// is soon, because the first may miss the newest entries of other clients.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The time that one request takes from the client's budget: at most 33 requests a second.
const EACH: Duration = Duration::from_millis(30);
/// How much of the budget a client may use in advance: 32 requests at once after a time without requests.
const AHEAD: Duration = Duration::from_millis(960);

#[derive(Debug, Clone, Copy)]
struct Due {
    repeat: Repeat,
    rank: Rank,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// A search has shown a cycle that the next search is to confirm.
    Urgent,
    New,
    Again,
}

#[derive(Debug, Default)]
pub(super) struct Pace {
    next: HashMap<u64, Due>,
    budget: Budget,
}

impl Pace {
    /// Forgets ended waits. A new wait is due at once.
    pub(super) fn keep(&mut self, ids: &[u64], now: Moment) {
        self.next.retain(|id, _| ids.binary_search(id).is_ok());
        for id in ids {
            self.next.entry(*id).or_insert(Due { repeat: Repeat::new(now, FIRST_PAUSE), rank: Rank::New });
        }
    }

    /// The waits that are due: first those with a cycle to confirm; then new waits, the newest first, because
    /// the last wait of a cycle closes it; then the others, the longest due first.
    pub(super) fn due(&self, now: Moment) -> Vec<u64> {
        let order = |due: &Due| {
            let at = due.repeat.at;
            if due.rank == Rank::New { now.since(at) } else { at.since(Moment::from_nanos(0)) }
        };
        let mut due: Vec<(&u64, &Due)> = self.next.iter().filter(|(_, due)| due.repeat.at <= now).collect();
        due.sort_by_key(|(id, due)| (due.rank, order(due), **id));
        due.into_iter().map(|(id, _)| *id).collect()
    }

    /// Plans the next search for a wait that was just searched: after `FIRST_PAUSE` if a new cycle is to be
    /// confirmed, or if the entry does not show the wait to other clients. Otherwise the pauses double.
    pub(super) fn searched(&mut self, id: u64, has_new_cycle: bool, is_named: bool, now: Moment) {
        if let Some(due) = self.next.get_mut(&id) {
            due.rank = if has_new_cycle { Rank::Urgent } else { Rank::Again };
            let most = if is_named && !has_new_cycle { LONGEST_PAUSE } else { FIRST_PAUSE };
            due.repeat.plan(FIRST_PAUSE, most, now);
        }
    }

    pub(super) fn room(&self, now: Moment) -> u64 {
        u64::try_from(self.budget.left(AHEAD, now).as_millis() / EACH.as_millis()).unwrap_or(0)
    }

    pub(super) fn spend(&mut self, requests: u64, now: Moment) {
        self.budget.spend(EACH.saturating_mul(u32::try_from(requests).unwrap_or(u32::MAX)), now);
    }

    pub(super) fn next(&self, now: Moment) -> Moment {
        let first = self.next.values().map(|due| due.repeat.at).min().unwrap_or(Moment::NEVER);
        // If the budget is used up, the next search waits until half of `AHEAD` is available again.
        let has_room = now.plus((AHEAD / 2).saturating_sub(self.budget.left(AHEAD, now)));
        first.max(if self.room(now) > 0 { now } else { has_room })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_searches_for_a_wait_become_rarer() {
        let (mut pace, mut now) = (Pace::default(), Moment::from_nanos(0));
        pace.keep(&[7], now);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            assert_eq!(pace.due(now), [7]);
            pace.searched(7, false, true, now);
            let next = pace.next(now);
            pauses.push(next.since(now).as_secs());
            now = next;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30]);
        pace.keep(&[], now);
        assert_eq!(pace.next(now), Moment::NEVER);
    }

    #[test]
    fn deadlock_searches_confirm_cycles_first_then_search_new_waits() {
        let (mut pace, at) = (Pace::default(), |second: u64| Moment::from_nanos(second * 1_000_000_000));
        pace.keep(&[1, 2, 3], at(0));
        pace.searched(1, false, true, at(1));
        pace.searched(2, false, true, at(2));
        pace.searched(3, false, false, at(2));
        pace.keep(&[1, 2, 3, 4], at(4));
        pace.keep(&[1, 2, 3, 4, 5], at(5));
        assert_eq!(pace.due(at(5)), [5, 4, 1, 2, 3]);
        pace.searched(2, true, true, at(5));
        assert_eq!(pace.due(at(6)), [2, 5, 4, 1, 3], "a new cycle is confirmed after a second");
        // A wait that the entry does not name is searched each second: its pause does not grow.
        pace.keep(&[3], at(6));
        (6..9).for_each(|second| pace.searched(3, false, false, at(second)));
        assert_eq!(pace.next(at(8)), at(9));
    }

    #[test]
    fn deadlock_search_requests_are_limited_however_many_threads_wait() {
        let (mut pace, begun) = (Pace::default(), Moment::from_nanos(0));
        let ids: Vec<u64> = (0..1_000).collect();
        pace.keep(&ids, begun);
        let (mut now, mut sent) = (begun, 0);
        while now < begun.plus(Duration::from_secs(10)) {
            let room = pace.room(now);
            for id in pace.due(now).into_iter().take(usize::try_from(room).unwrap()) {
                pace.searched(id, false, true, now);
                pace.spend(1, now);
                sent += 1;
            }
            now = now.plus(Duration::from_millis(10));
        }
        assert!((300..=32 + 334).contains(&sent), "{sent} in ten seconds");
    }
}
