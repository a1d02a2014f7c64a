//! Deadlocks: threads that wait for each other in a cycle, across processes. The watchdog searches for
//! cycles, reports them, and on request breaks them.
//!
//! When a thread that holds something has waited for a while, the watchdog writes the wait into the client's
//! entry in the directory, with an id. The watchdog then follows the wait: who holds the lock, what that
//! owner's thread waits for, and so on (`graph`). Other clients' part is read from the directory and the
//! store (`reading`), at a pace (`pace`).
//!
//! A call whose wait is over does not wait for the entry: the watchdog removes the wait afterwards. So
//! entries may be stale, and a cycle counts when it has been seen for [`SEEN_FOR`]: in this time a client
//! that can write has removed each wait that was over before.

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

/// Entries are written at least this far apart for the sake of deadlocks.
const WRITES_APART: Duration = Duration::from_millis(100);

const WRITE_AGAIN: Duration = Duration::from_secs(1);

const MOST_CLIENTS: u64 = 64;

/// Maximum number of requests of one reading. Each client on the way takes two: who holds the lock, and the
/// entry of the holder's client.
const MOST_REQUESTS: u64 = 2 * MOST_CLIENTS;

pub(crate) struct Finder {
    core: Arc<Core>,
    pace: Pace,
    /// The waits that the entry names.
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

    /// Writes the client's entry and searches for deadlocks, if that is due, with all requests by `deadline`;
    /// returns the time of the next round.
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
        if self.written != stuck.named().ids && !self.is_refused(now) && core.announcer.is_seen(now) {
            // The last entry could not be written.
            next = next.min(self.next_write.unwrap_or(now));
        }
        let next = next.max(now.plus(Duration::from_millis(1)));
        // Keeps an earlier time that a wait has set meanwhile. Pairs with `PublishedWaits::note_wait`.
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
        let written = named.ids.clone();
        match core.announcer.write(&*core.store, &core.registry, (named, stuck), (now, deadline)) {
            Posting::Done => {
                self.next_write = Some(now.plus(WRITES_APART));
                self.pace.spend(1, now);
                self.written = written;
            }
            // The first round after the store accepts entries again writes it.
            Posting::Never => self.written.clear(),
            Posting::Failed => self.next_write = Some(core.clock.now().plus(WRITE_AGAIN)),
        }
    }

    /// Reports the end of cycles that a wait of this client has left.
    fn end_rings(&mut self, stuck: &Stuck, now: Moment) {
        let ids: HashSet<u64> = stuck.ids().into_iter().collect();
        let own = self.core.id.as_u128();
        let stays = |key: &RingKey| key.iter().all(|(client, id)| *client != own || ids.contains(id));
        self.seen.retain(|key, _| stays(key));
        let over: Vec<RingKey> = self.reported.keys().filter(|key| !stays(key)).cloned().collect();
        over.iter().for_each(|key| self.report_over(key, now));
    }

    /// Whether a cycle has been seen for long enough. If not, its waits here are searched again later.
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

    /// Follows these waits in one reading. A second one, begun after the first ended, checks the cycles that
    /// are ripe. Pairs with `PublishedWaits::note_end`: the entries of one search may name ended waits.
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
                break; // the wait's turn comes when there is room for more
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
        // The cycles that the second reading shows too.
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
            // A cycle that an outside thread may end is no alarm.
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
        let mut finder = Finder::new(&crate::LockClient::in_memory().get_lock("a").engine().core);
        let (begun, key): (Moment, RingKey) = (finder.core.clock.now(), vec![(7, 1), (8, 2)]);
        let almost = SEEN_FOR.saturating_sub(Duration::from_millis(1));
        assert!(!finder.is_ripe(&key, begun));
        assert!(!finder.is_ripe(&key, begun.plus(almost)));
        assert!(finder.is_ripe(&key, begun.plus(SEEN_FOR)));
        // Nothing of a cycle that is over is remembered.
        let own: RingKey = vec![(finder.core.id.as_u128(), 1), (8, 2)];
        assert!(!finder.is_ripe(&own, begun));
        finder.end_rings(&Stuck::default(), begun);
        assert!(!finder.is_ripe(&own, begun.plus(SEEN_FOR)));
    }
}
