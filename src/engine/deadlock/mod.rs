//! Deadlocks: threads of any process that wait for each other in a cycle. The watchdog finds and reports
//! them, and breaks them if the program asked for that.
//!
//! When a thread that holds a lock has waited for a while, the watchdog publishes the wait with an id in the
//! client's directory entry. Then it follows the wait: who holds the lock, what that owner's thread waits
//! for, and so on (`graph`). It reads other clients' waits and holds from the directory and the store
//! (`reading`), at a limited rate (`pace`).
//!
//! When a wait ends, its call returns at once, and the watchdog removes the wait from the entry later.
//! Because entries can be out of date, a cycle counts only when it was seen twice, [`SEEN_FOR`] apart: by
//! then each client that can write has removed the waits that had ended.

mod again;
pub(crate) mod graph;
#[cfg(all(test, not(leasehold_shuttle)))]
mod model;
mod pace;
mod reading;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::deadlock::Deadlock;
use crate::engine::core::Core;
use crate::engine::deadlock::again::{SEEN_FOR, read_again};
use crate::engine::deadlock::graph::{Link, RingKey, Wait, key_of, ring_of, youngest};
use crate::engine::deadlock::pace::Pace;
use crate::engine::deadlock::reading::{Asked, Reading};
use crate::engine::directory::Posting;
use crate::engine::stuck::Stuck;
use crate::observe::event::Event;
use crate::refused::Refused;
use crate::sync::atomic::Ordering;
use crate::time::Moment;

/// Shortest time between two writes of the entry that only deadlock searches need.
const WRITES_APART: Duration = Duration::from_millis(100);

const WRITE_AGAIN: Duration = Duration::from_secs(1);

const MOST_CLIENTS: u64 = 64;

/// Maximum number of requests for one wait. Each client on the path takes two: for the holder of a lock, and
/// for the entry of the holder's client.
const MOST_REQUESTS: u64 = 2 * MOST_CLIENTS;

pub(crate) struct Finder {
    core: Arc<Core>,
    pace: Pace,
    /// The ids of the waits in the entry as last written.
    written: Vec<u64>,
    next_write: Option<Moment>,
    seen: HashMap<RingKey, Moment>,
    /// Cycles that were reported and are not known to be over.
    reported: HashMap<RingKey, Reported>,
    warned: HashSet<String>,
    refused: Refused,
}

struct Reported {
    ring: Arc<Deadlock>,
    since: Moment,
}

impl Finder {
    pub(crate) fn new(core: &Arc<Core>) -> Finder {
        Finder {
            core: Arc::clone(core),
            pace: Pace::default(),
            written: Vec::new(),
            next_write: None,
            seen: HashMap::new(),
            reported: HashMap::new(),
            warned: HashSet::new(),
            refused: Refused::default(),
        }
    }

    /// Writes the client's entry and searches for deadlocks, if due, with all requests done by `deadline`.
    /// Returns the time of the next round.
    pub(crate) fn round(&mut self, deadline: Moment) -> Moment {
        let core = Arc::clone(&self.core);
        let now = core.clock.now();
        let due = Moment::from_nanos(core.published_waits.due.load(Ordering::SeqCst));
        let is_wanted = core.announcer.is_wanted.load(Ordering::SeqCst);
        if !is_wanted {
            core.announcer.end(&*core.store, now, deadline);
            if now < due {
                return due;
            }
        }
        if let Some(next) = self.next_write.filter(|next| now < *next) {
            return next;
        }
        core.published_waits.due.store(u64::MAX, Ordering::SeqCst);
        let stuck = core.stuck(now);
        self.write(&stuck, is_wanted, (now, deadline));
        self.end_rings(&stuck, now);
        self.pace.keep(&stuck.ids(), now);
        let due = self.pace.due(now);
        if !due.is_empty() {
            self.search(&stuck, &due, (now, deadline));
        }
        let now = core.clock.now();
        let mut next = stuck.next.unwrap_or(Moment::NEVER);
        next = next.min(self.pace.next(now).unwrap_or(Moment::NEVER));
        if self.written != stuck.named().ids && self.sees_others(now) {
            // The last write failed, so it is repeated.
            next = next.min(self.next_write.unwrap_or(now));
        }
        let next = next.max(now.plus(Duration::from_millis(1)));
        // Keeps an earlier time that a waiter has set. Pairs with `PublishedWaits::note_wait`.
        Moment::from_nanos(
            core.published_waits.due.fetch_min(next.nanos(), Ordering::SeqCst).min(next.nanos()),
        )
    }

    fn write(&mut self, stuck: &Stuck, is_wanted: bool, (now, deadline): (Moment, Moment)) {
        let core = &self.core;
        let named = stuck.named();
        if self.written == named.ids && !is_wanted {
            return;
        }
        // Other clients' searches must find waits in the entry when a search here begins, and no waits that have
        // ended.
        let is_awaited = !(named.ids.is_empty() && self.written.is_empty());
        let (uses, times) = ((named.uses, stuck), (now, deadline));
        match core.announcer.write(&*core.store, &core.registry, uses, is_awaited, times) {
            Posting::Done => {
                self.next_write = Some(now.plus(WRITES_APART));
                self.pace.spend(1, now);
                self.written = named.ids;
            }
            // Empty, so that the first round after the refusal writes the entry again.
            Posting::Never => self.written.clear(),
            Posting::Failed => self.next_write = Some(core.clock.now().plus(WRITE_AGAIN)),
        }
    }

    /// Forgets cycles that lack one of their waits here by now, and reports the end of reported ones.
    fn end_rings(&mut self, stuck: &Stuck, now: Moment) {
        let ids: HashSet<u64> = stuck.ids().into_iter().collect();
        let own = self.core.id.as_u128();
        let stays = |key: &RingKey| key.iter().all(|(client, id)| *client != own || ids.contains(id));
        self.seen.retain(|key, _| stays(key));
        let over: Vec<RingKey> = self.reported.keys().filter(|key| !stays(key)).cloned().collect();
        over.iter().for_each(|key| self.report_over(key, now));
    }

    /// Whether a cycle was first seen [`SEEN_FOR`] ago. If not, plans another search of its waits for that
    /// time.
    fn is_ripe(&mut self, key: &RingKey, now: Moment) -> bool {
        let ripe = self.seen.entry(key.clone()).or_insert(now).plus(SEEN_FOR);
        if now < ripe {
            let own = self.core.id.as_u128();
            key.iter()
                .filter(|(client, _)| *client == own)
                .for_each(|(_, id)| self.pace.confirm_by(*id, ripe));
        }
        now >= ripe
    }

    fn report_over(&mut self, key: &RingKey, now: Moment) {
        let Some(reported) = self.reported.remove(key) else { return };
        let lasted = now.since(reported.since);
        self.core.reporter.observe_later(move |observer| {
            observer.event(&Event::DeadlockOver { deadlock: &reported.ring, lasted });
        });
    }

    fn sees_others(&self, now: Moment) -> bool {
        let directory = self.core.store.capabilities().directory;
        directory.is_some() && self.core.announcer.is_seen(now) && !self.is_refused(now)
    }

    fn is_refused(&self, now: Moment) -> bool {
        self.refused.stands(|| now)
    }

    fn warn_once(&mut self, text: String) {
        if self.warned.insert(text.clone()) {
            self.core.reporter.observe_later(move |observer| observer.event(&Event::Warning { text: &text }));
        }
    }

    /// Follows the waits `due` in one reading. A second reading, begun after the first ended, checks cycles
    /// that were seen long enough ago. Pairs with `PublishedWaits::note_end`.
    fn search(&mut self, stuck: &Stuck, due: &[u64], (now, deadline): (Moment, Moment)) {
        let sees_others = self.sees_others(now);
        let core = Arc::clone(&self.core);
        let each = deadline.since(now);
        let here = core.announcer.here(now);
        let asked =
            Asked { store: &*core.store, here: &here, clock: &core.clock, sees_others, deadline, each };
        let room = self.pace.room(now);
        let mut first = Reading::new(&asked, stuck);
        let (mut rings, mut met): (Vec<Vec<Link>>, HashSet<RingKey>) = (Vec::new(), HashSet::new());
        let (mut searched, mut leaves) = (Vec::new(), false);
        for wait in due.iter().filter_map(|id| stuck.waits.iter().find(|wait| wait.wait.id == *id)) {
            if sees_others && first.requests >= room {
                break; // a later round searches the rest
            }
            let before = first.has_gaps;
            first.limit(MOST_REQUESTS);
            rings.extend(ring_of(&mut first, &wait.wait).filter(|ring| met.insert(key_of(ring))));
            leaves |= first.has_gaps && !before;
            searched.push(wait.wait.id);
        }
        let (mut refusal, mut has_gaps, mut requests) =
            (first.refusal.take(), first.has_gaps, first.requests);
        let is_beyond = first.is_beyond;
        drop(first);
        if is_beyond {
            self.warn_once(format!(
                "a thread that holds a lock waits, and the chain of threads that it waits for is too long to be followed: deadlocks of \
                 more than {MOST_CLIENTS} clients, or {} threads, are not found",
                graph::MOST_OWNERS
            ));
        }
        let ended = core.clock.now();
        let named = &self.written;
        searched.iter().for_each(|id| self.pace.searched(*id, named.binary_search(id).is_ok(), ended));
        let own = core.id.as_u128();
        let was_searched =
            |key: &RingKey| key.iter().any(|(client, id)| *client == own && searched.contains(id));
        self.seen.retain(|key, _| has_gaps || !was_searched(key) || met.contains(key));
        rings.retain(|ring| self.is_ripe(&key_of(ring), ended));
        // The cycles that the second reading confirmed.
        let mut found: HashSet<RingKey> = HashSet::new();
        if !rings.is_empty() {
            let stuck = || core.stuck(core.clock.now());
            let again = read_again(&asked, &stuck, rings, &core.options.key_prefix);
            for (ring, deadlock) in again.rings {
                found.insert(key_of(&ring));
                self.report(&ring, deadlock, &again.own, ended);
            }
            refusal = refusal.or(again.refusal);
            has_gaps |= again.has_gaps;
            requests += again.requests;
        }
        self.pace.spend(requests, ended);
        if refusal.is_some() {
            self.refused.note(ended);
        }
        if self.is_refused(ended) || !sees_others && leaves {
            let words = "a thread that holds a lock waits for another one, and deadlocks with other processes cannot be seen: the \
                         directory of clients is off, or refused, or the store has none";
            self.warn_once(words.to_owned());
        }
        if !has_gaps {
            let over = self.reported.keys().filter(|key| was_searched(key) && !found.contains(*key));
            let over: Vec<RingKey> = over.cloned().collect();
            over.iter().for_each(|key| self.report_over(key, ended));
        }
    }

    fn report(&mut self, ring: &[Link], deadlock: Deadlock, stuck: &Stuck, now: Moment) {
        let (core, deadlock) = (&self.core, Arc::new(deadlock));
        if let Entry::Vacant(place) = self.reported.entry(key_of(ring)) {
            place.insert(Reported { ring: Arc::clone(&deadlock), since: now });
            // Uncertain ones are not counted: a thread outside of the cycle may end them.
            core.reporter.counters.deadlocks.add(u64::from(deadlock.is_certain));
            let reported = Arc::clone(&deadlock);
            core.reporter
                .observe_later(move |observer| observer.event(&Event::Deadlock { deadlock: &reported }));
            core.reporter.warn_if_unheard(|| format!("deadlock: {deadlock}"));
        }
        let breaks = core.options.break_deadlocks && deadlock.is_certain;
        let is_ours = |wait: &&Wait| breaks && wait.thread.client == core.id;
        if let Some(wait) = youngest(ring).filter(is_ours)
            && let Some(own) = stuck.waits.iter().find(|own| own.wait.id == wait.id)
        {
            own.known.end_for(&deadlock);
        }
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_counts_after_a_second() {
        let mut finder = Finder::new(&crate::LockClient::in_memory().get_lock("a").engine.core);
        let (begun, key): (Moment, RingKey) = (finder.core.clock.now(), vec![(7, 1), (8, 2)]);
        let almost = SEEN_FOR.saturating_sub(Duration::from_millis(1));
        assert!(!finder.is_ripe(&key, begun));
        assert!(!finder.is_ripe(&key, begun.plus(almost)));
        assert!(finder.is_ripe(&key, begun.plus(SEEN_FOR)));
        // A cycle that has ended is forgotten.
        let own: RingKey = vec![(finder.core.id.as_u128(), 1), (8, 2)];
        assert!(!finder.is_ripe(&own, begun));
        finder.end_rings(&Stuck::default(), begun);
        assert!(!finder.is_ripe(&own, begun.plus(SEEN_FOR)));
    }
}
