//! The choice of the renewals to send next, and the time that the watchdog waits for their answers.
//!
//! The most urgent renewals are sent first, some hundreds in a batch, each batch with a time limit. A home
//! node that does not answer delays no others: it gets a batch now and then, when no other renewals wait.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::hold::Hold;
use crate::engine::pace::Repeat;
use crate::shrink::Shrink;
use crate::time::Moment;

/// Maximum number of renewals in a batch; a server answers them within a few milliseconds.
pub(crate) const CHUNK: usize = 500;

/// Shortest time limit for an answer; if the lease is short, a sixth of it. After slow answers it is at
/// least four times their time.
const LEAST_LIMIT: Duration = Duration::from_millis(300);
/// The time between the beginnings of failing tries: fewer than five a second. Shorter if the lease is short.
const LEAST_GAP: Duration = Duration::from_millis(230);
const MOST_GAP: Duration = Duration::from_secs(1);
/// After this many failed tries, the pauses are longer, up to `MOST_GAP`: most outages are short.
const QUICK_TRIES: u32 = 12;
/// The pause after the first failure. Perhaps only one connection is broken, so the next try is soon.
const FIRST_GAP: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) hold: Arc<Hold>,
    has_failed: bool,
    report: Repeat,
}

#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) items: Vec<Item>,
    /// The home nodes that answered a renewal, and those where one failed.
    pub(crate) answered: HashSet<u32>,
    pub(crate) failed: HashSet<u32>,
    pub(crate) limit: Duration,
    is_probe: bool,
    sent: Moment,
    left: Duration,
}

#[derive(Debug)]
struct NodeFailure {
    is_down: bool,
    tries: u32,
    again_at: Moment,
}

#[derive(Debug, Default)]
pub(crate) struct Due {
    lease: Duration,
    command_timeout: Duration,
    items: Vec<Item>,
    is_sorted: bool,
    failures: HashMap<u32, NodeFailure>,
    pace: Duration,
}

impl Due {
    pub(crate) fn new(lease: Duration, command_timeout: Duration) -> Due {
        Due { lease, command_timeout, ..Due::default() }
    }

    pub(crate) fn add(&mut self, holds: Vec<Arc<Hold>>) {
        self.is_sorted &= holds.is_empty();
        let report = Repeat::new(Moment::from_nanos(0), self.lease / 10);
        self.items.extend(holds.into_iter().map(|hold| Item { hold, has_failed: false, report }));
    }

    /// Puts back a renewal that failed. Returns whether to report the failure: the first one at once, later
    /// ones less and less often.
    pub(crate) fn put_back(&mut self, batch: &mut Batch, mut item: Item, now: Moment) -> bool {
        batch.failed.insert(item.hold.home());
        let is_reported = now >= item.report.at;
        if is_reported {
            item.report.plan(Duration::ZERO, Duration::MAX, now);
        }
        self.items.push(Item { has_failed: true, ..item });
        self.is_sorted = false;
        is_reported
    }

    pub(crate) fn let_go(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let gone = |item: &mut Item| !item.hold.stands(now) || item.hold.is_orphaned();
        let gone = self.items.extract_if(.., gone).map(|item| item.hold).collect();
        self.items.shrink_if_sparse();
        let items = &self.items;
        self.failures.retain(|home, _| items.iter().any(|item| item.hold.home() == *home));
        gone
    }

    pub(crate) fn is_well(&self) -> bool {
        self.failures.is_empty()
    }

    pub(crate) fn is_down(&self, home: u32) -> bool {
        self.failures.get(&home).is_some_and(|failure| failure.is_down)
    }

    /// Puts back renewals that were not sent.
    pub(crate) fn put_off(&mut self, items: &mut Vec<Item>) {
        self.is_sorted &= items.is_empty();
        self.items.append(items);
    }

    /// Returns the batch to send now, or the time of the next one. The caller returns each renewal by
    /// [`put_back`](Self::put_back), unless it is done.
    pub(crate) fn next(&mut self, now: Moment) -> Result<Batch, Moment> {
        if !self.is_sorted {
            self.items.sort_by_cached_key(|item| item.hold.until());
            self.is_sorted = true;
        }
        let failures = &self.failures;
        let is_well = |item: &Item| match failures.get(&item.hold.home()) {
            Some(failure) => !failure.is_down && !item.has_failed,
            None => true,
        };
        let mut items = take(&mut self.items, CHUNK, is_well);
        let is_probe = items.is_empty();
        if is_probe {
            let may =
                |item: &Item| failures.get(&item.hold.home()).is_none_or(|failure| failure.again_at <= now);
            items = take(&mut self.items, CHUNK / 2, may);
            // All urgent ones may be for a dead server, so half of the batch is for those that never failed.
            let is_other = |item: &Item| may(item) && !item.has_failed;
            let others = self.items.iter().filter(|item| is_other(item)).count();
            let (each, nth) = (others.div_ceil(CHUNK / 2), Cell::new(0));
            let is_chosen = |item: &Item| is_other(item) && nth.replace(nth.get() + 1) % each == 0;
            items.extend(take(&mut self.items, CHUNK / 2, is_chosen));
            let room = CHUNK.saturating_sub(items.len());
            items.extend(take(&mut self.items, room, may));
        }
        if items.is_empty() {
            let again = self.items.iter().filter_map(|item| failures.get(&item.hold.home()));
            return Err(again.map(|failure| failure.again_at).min().unwrap_or(Moment::NEVER));
        }
        let left = items.iter().map(|item| item.hold.until().since(now)).min().unwrap_or_default();
        // A request may take a part of the time until the first of these holds ends, so that time for another
        // request remains, perhaps on another connection.
        let share = if is_probe {
            left / 4
        } else if items.iter().any(|item| failures.contains_key(&item.hold.home())) {
            Duration::ZERO // so that one dead member of a cluster does not delay the holds of the others
        } else {
            left / 2
        };
        let least = (self.lease / 6).min(LEAST_LIMIT).max(self.pace * 4);
        let limit = share.max(least).min(self.command_timeout);
        let (answered, failed) = (HashSet::new(), HashSet::new());
        Ok(Batch { items, answered, failed, limit, is_probe, sent: now, left })
    }

    pub(crate) fn report(&mut self, batch: &Batch, now: Moment) {
        if batch.is_probe {
            let Batch { answered, failed, .. } = batch;
            self.failures.retain(|home, _| failed.contains(home) || !answered.contains(home));
        }
        let least = (self.lease / 15).clamp(FIRST_GAP, LEAST_GAP);
        for home in &batch.failed {
            let failure =
                self.failures.entry(*home).or_insert(NodeFailure { is_down: false, tries: 0, again_at: now });
            failure.is_down = !batch.answered.contains(home);
            failure.tries = failure.tries.saturating_add(1);
            let gap = match failure.tries {
                1 => FIRST_GAP,
                ..=QUICK_TRIES => least,
                _ => (batch.left / 20).clamp(least, MOST_GAP),
            };
            failure.again_at = batch.sent.plus(gap).max(now.plus(FIRST_GAP));
        }
        if batch.failed.is_empty() {
            self.pace = now.since(batch.sent).max(self.pace - self.pace / 8);
        }
    }
}

fn take(items: &mut Vec<Item>, most: usize, wanted: impl Fn(&Item) -> bool) -> Vec<Item> {
    items.extract_if(.., |item| wanted(item)).take(most).collect()
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::hold::Holder;
    use crate::engine::registry::Registry;
    use crate::ident::{ClientId, Owner};
    use crate::seam::{Claim, Kind};
    use crate::time::{Lease, ManualClock};

    const LEASE: Duration = Duration::from_secs(30);
    const TIMEOUT: Duration = Duration::from_secs(3);

    fn hold(home: u32, sent: Moment) -> Arc<Hold> {
        let name = crate::tests::name("a");
        let local = Registry::default().local(Kind::Mutex, &name);
        let claim = Claim::new(Kind::Mutex, &name, Owner::new(ClientId::random(), 1), LEASE);
        let hold = Hold::new(&Claim { home, ..claim }, Holder::Guard { taker: None }, sent, LEASE, &local);
        let (hold, state, _level) = hold.begin(Lease::Renewed);
        let _entered = local.state().enter(state);
        hold
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Sends the batch at `now`. If any renewal fails, the batch takes its whole time limit. Returns when it
    /// ends.
    fn send(due: &mut Due, mut batch: Batch, now: Moment, answers: impl Fn(&Hold) -> bool) -> Moment {
        for item in std::mem::take(&mut batch.items) {
            if answers(&item.hold) {
                batch.answered.insert(item.hold.home());
            } else {
                due.put_back(&mut batch, item, now);
            }
        }
        let over = now.plus(if batch.failed.is_empty() { millis(1) } else { batch.limit });
        due.report(&batch, over);
        over
    }

    #[test]
    fn the_most_urgent_renewals_go_first() {
        let start = ManualClock::new().now();
        let mut due = Due::new(LEASE, TIMEOUT);
        let sent = |n: u64| start.plus(millis(n * 7 % 2_000));
        due.add((0..2_000).map(|n| hold(0, sent(n))).collect());
        let (now, mut last, mut seen) = (start.plus(LEASE / 2), start, 0);
        while let Ok(batch) = due.next(now) {
            assert!(batch.items.len() <= CHUNK && batch.limit == TIMEOUT);
            for item in &batch.items {
                assert!(item.hold.until() >= last);
                last = item.hold.until();
            }
            seen += batch.items.len();
            send(&mut due, batch, now, |_| true);
        }
        assert_eq!(seen, 2_000);
    }

    #[test]
    fn renewals_try_a_dead_server_at_most_five_times_a_second() {
        let start = ManualClock::new().now();
        let mut due = Due::new(LEASE, TIMEOUT);
        // One hold expires every 5 ms, from about 20 s after `begun` on.
        due.add((0..2_000).map(|n| hold(0, start.plus(millis(n * 5)))).collect());
        let (begun, back) = (start.plus(millis(10_000)), start.plus(millis(33_000)));
        let (mut now, mut tries) = (begun, Vec::new());
        while now < back {
            due.let_go(now);
            match due.next(now) {
                Ok(batch) => {
                    let left = batch.items.iter().map(|item| item.hold.until().since(now)).min().unwrap();
                    assert!(batch.limit <= (left / 2).max(millis(300)), "{:?} of {left:?}", batch.limit);
                    tries.push(now);
                    now = send(&mut due, batch, now, |_| false);
                }
                Err(again) => now = again,
            }
        }
        for (n, at) in tries.iter().enumerate() {
            let within_a_second = tries[n..].iter().take_while(|other| other.since(*at) < millis(1_000));
            assert!(within_a_second.count() <= 5);
        }
        // A batch sent before the server came back may still fail, but within `LEAST_LIMIT`, 300 ms.
        assert!(now.since(back) <= millis(320), "{:?}", now.since(back));
        due.let_go(now);
        let mut left = 0;
        while let Ok(batch) = due.next(now) {
            left += batch.items.len();
            now = send(&mut due, batch, now, |_| true);
        }
        assert!(now.since(back) <= millis(330) && left > 0, "{left} within {:?}", now.since(back));
    }

    #[test]
    fn a_refused_renewal_is_not_repeated_at_once() {
        let start = ManualClock::new().now();
        let mut due = Due::new(LEASE, TIMEOUT);
        due.add(vec![hold(0, start)]);
        let mut now = start.plus(LEASE / 2);
        for _ in 0..5 {
            let mut batch = due.next(now).unwrap();
            for item in std::mem::take(&mut batch.items) {
                assert!(due.put_back(&mut batch, item, now) == (now == start.plus(LEASE / 2)));
            }
            due.report(&batch, now);
            let again = due.next(now).unwrap_err();
            assert!(again >= now.plus(FIRST_GAP) && again < now.plus(MOST_GAP), "{:?}", again.since(now));
            now = again;
        }
    }

    #[test]
    fn unanswered_renewals_do_not_delay_other_renewals() {
        let start = ManualClock::new().now();
        // Two home nodes, as in a ring, or one, as in a cluster in which one member is down.
        for homes in [2, 1] {
            let mut due = Due::new(LEASE, TIMEOUT);
            let is_gone = |hold: &Hold| hold.since() < start.plus(millis(1_000));
            let holds = (0..2_000).map(|n| hold(u32::from(n >= 1_000) % homes, start.plus(millis(n))));
            due.add(holds.collect());
            let (mut now, mut renewed) = (start.plus(LEASE / 3), 0);
            while renewed < 1_000 {
                match due.next(now) {
                    Ok(batch) => {
                        renewed += batch.items.iter().filter(|item| !is_gone(&item.hold)).count();
                        now = send(&mut due, batch, now, |hold| !is_gone(hold));
                    }
                    Err(again) => now = again,
                }
            }
            assert!(now <= start.plus(LEASE * 2 / 3), "{:?}", now.since(start));
        }
    }

    #[test]
    fn repeated_failures_are_reported_less_and_less_often() {
        let start = ManualClock::new().now();
        let mut due = Due::new(LEASE, TIMEOUT);
        due.add(vec![hold(0, start)]);
        let mut batch = due.next(start).unwrap();
        let mut fails = |n| {
            let item = batch.items.pop().unwrap_or_else(|| due.items.remove(0));
            due.put_back(&mut batch, item, start.plus(millis(n)))
        };
        let reported = (0..30_000).filter(|n| fails(*n)).count();
        assert_eq!(reported, 4, "at 0, 3, 9 and 21 s");
    }

    #[test]
    fn an_answer_clears_earlier_failures() {
        let start = ManualClock::new().now();
        let mut due = Due::new(LEASE, TIMEOUT);
        let mut now = start.plus(LEASE / 3);
        for outage in 1..=2 {
            due.add(vec![hold(0, start)]);
            let batch = due.next(now).unwrap();
            assert!(!batch.is_probe, "in outage {outage} nothing has failed yet");
            let over = send(&mut due, batch, now, |_| false);
            assert!(!due.is_well() && due.is_down(0));
            now = due.next(over).unwrap_err();
            let probe = due.next(now).unwrap();
            now = send(&mut due, probe, now, |_| true);
            assert!(due.is_well() && !due.is_down(0));
        }
    }

    #[test]
    fn quick_answers_shorten_the_time_limit_of_renewals_again() {
        let start = ManualClock::new().now();
        let mut due = Due::new(LEASE, TIMEOUT);
        due.pace = TIMEOUT;
        for _ in 0..100 {
            due.add(vec![hold(0, start)]);
            let batch = due.next(start).unwrap();
            send(&mut due, batch, start, |_| true);
        }
        assert!(due.pace < TIMEOUT / 100, "{:?}", due.pace);
    }
}
