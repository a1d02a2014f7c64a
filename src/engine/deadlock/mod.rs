//! Deadlocks: threads of any process that wait for each other in a cycle. The watchdog finds and reports
//! them, and breaks them if the program asked for that.
//!
//! The store has a *directory* with an entry for each client, which names the client's holds and waits. When
//! a thread that holds a lock has waited for a while, the watchdog publishes the wait, with an id, in the
//! entry of its client. Then the watchdog follows the wait: who holds the lock, what that owner's thread
//! waits for, and so on (`graph`). It reads other clients' waits and holds from the directory and the store
//! (`reading`), at a limited rate (`pace`).
//!
//! When a wait ends, its call returns at once, and the watchdog removes the wait from the entry later.
//! Because entries can be out of date, a cycle counts only when it was seen twice, [`SEEN_FOR`] apart: by
//! then each client that can write has removed the waits that had ended.

pub(crate) mod graph;
#[cfg(all(test, not(leasehold_shuttle)))]
mod model;
mod pace;
mod reading;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::deadlock::Deadlock;
use crate::directory::{ClientInfo, LockUse};
use crate::engine::Engine;
use crate::engine::core::Core;
use crate::engine::deadlock::graph::{Link, RingKey, Wait, key_of, ring_of, youngest};
use crate::engine::deadlock::pace::Pace;
use crate::engine::deadlock::reading::{MOST_THREADS, Reading, Rings, entry_wait};
use crate::engine::stuck::{Stuck, ids_of};
use crate::error::{Error, Result};
use crate::observe::event::Event;
use crate::park::Parker;
use crate::refused::Refused;
use crate::seam::Failure;
use crate::sync::atomic::Ordering;
use crate::time::Moment;

/// The time between the two searches that must both show a cycle: enough for a client to remove an ended wait
/// from its entry, which takes `WRITES_APART` and a request, even on a busy machine.
const SEEN_FOR: Duration = Duration::from_secs(1);

/// Shortest time from one successful write of the client's entry to the next.
const WRITES_APART: Duration = Duration::from_millis(100);

const WRITE_AGAIN: Duration = Duration::from_secs(1);

const MOST_CLIENTS: u64 = 64;

/// Maximum number of requests for one wait. Each client on the path takes two: for the holder of a lock, and
/// for the entry of the holder's client.
const MOST_REQUESTS: u64 = 2 * MOST_CLIENTS;

/// Maximum number of pages of the directory that [`Engine::deadlocks`] reads.
const MOST_PAGES: usize = 100;

pub(crate) struct Finder {
    core: Arc<Core>,
    pace: Pace,
    /// The ids of the waits in the entry as last written.
    written: Vec<u64>,
    next_write: Moment,
    /// Cycles that were seen and are not known to be over.
    seen: HashMap<RingKey, Seen>,
    warned: HashSet<String>,
    refused: Refused,
}

struct Seen {
    first: Moment,
    reported: Option<(Arc<Deadlock>, Moment)>,
}

impl Finder {
    pub(crate) fn new(core: &Arc<Core>) -> Finder {
        Finder {
            core: Arc::clone(core),
            pace: Pace::default(),
            written: Vec::new(),
            next_write: Moment::from_nanos(0),
            seen: HashMap::new(),
            warned: HashSet::new(),
            refused: Refused::default(),
        }
    }

    /// Writes the client's entry and searches for deadlocks, if due, with all requests done by `deadline`.
    /// Returns the time of the next round.
    pub(crate) fn round(&mut self, deadline: Moment) -> Moment {
        let core = Arc::clone(&self.core);
        let due = Moment::from_nanos(core.finder_due.load(Ordering::SeqCst)).max(self.next_write);
        let now = core.clock.now();
        if now < due {
            core.remove_unused_entry(now, deadline);
            return due;
        }
        core.finder_due.store(u64::MAX, Ordering::SeqCst);
        // The reset may discard a time that another thread has just set by `Core::find_by`. So the clock, the
        // due entry and the waits are read after the reset: this round covers what that time was set for.
        let now = core.clock.now();
        let is_entry_due = core.take_due_entry(now);
        let stuck = core.stuck(now);
        let (named, ids, mut next) = (stuck.named(), stuck.ids(), stuck.next);
        let named_ids = ids_of(&named);
        if self.written != named_ids || is_entry_due {
            self.write(named, &stuck, (now, deadline));
        }
        let own = core.id.as_u128();
        let is_here = |(client, id): &(u128, u64)| *client != own || ids.binary_search(id).is_ok();
        self.forget(|key| !key.iter().all(is_here), now);
        self.pace.keep(&ids, now);
        let due = self.pace.due(now);
        if !due.is_empty() {
            self.search(stuck, &due, (now, deadline));
        }
        let now = core.clock.now();
        next = next.min(self.pace.next(now));
        if self.written != named_ids && self.sees_others(now) {
            next = next.min(self.next_write); // the last write failed, so it is repeated
        }
        let next = next.max(now.plus(Duration::from_millis(1)));
        // Keeps an earlier time that a waiter has set.
        next.min(Moment::from_nanos(core.finder_due.fetch_min(next.nanos(), Ordering::SeqCst)))
    }

    fn write(&mut self, named: Vec<LockUse>, stuck: &Stuck, (now, deadline): (Moment, Moment)) {
        let ids = ids_of(&named);
        // Of two clients in a cycle, the one that searches last must find the other's waits. So the write is
        // answered before a search begins here, unless neither the old nor the new entry names a wait.
        let is_awaited = !(ids.is_empty() && self.written.is_empty());
        match self.core.write_entry(named, stuck, is_awaited, (now, deadline)) {
            Some(Ok(())) => {
                self.next_write = now.plus(WRITES_APART);
                self.pace.spend(1, now);
                self.written = ids;
            }
            // The server refuses entries for a while. The first round afterwards must write the waits again.
            None => self.written.clear(),
            Some(Err(_)) => self.next_write = self.core.clock.after(WRITE_AGAIN),
        }
    }

    /// Forgets cycles that are over, and reports the end of reported ones.
    fn forget(&mut self, is_over: impl Fn(&RingKey) -> bool, now: Moment) {
        for (_, seen) in self.seen.extract_if(|key, _| is_over(key)) {
            let Some((deadlock, since)) = seen.reported else { continue };
            let lasted = now.since(since);
            self.core.reporter.observe_later(move |observer| {
                observer.event(&Event::DeadlockOver { deadlock: &deadlock, lasted });
            });
        }
    }

    fn is_ripe(&mut self, key: &RingKey, now: Moment) -> bool {
        let seen = self.seen.entry(key.clone()).or_insert(Seen { first: now, reported: None });
        now >= seen.first.plus(SEEN_FOR)
    }

    fn sees_others(&self, now: Moment) -> bool {
        let directory = &self.core.store.capabilities.directory;
        directory.is_some() && self.core.announcer.is_seen(now) && !self.refused.stands(|| now)
    }

    fn warn_once(&mut self, text: String) {
        if self.warned.insert(text.clone()) {
            self.core.reporter.observe_later(move |observer| observer.event(&Event::Warning { text: &text }));
        }
    }

    /// Follows the waits `due` in one reading. A second reading, begun after the first ended, checks cycles
    /// that were seen long enough ago.
    fn search(&mut self, stuck: Stuck, due: &[u64], (now, deadline): (Moment, Moment)) {
        let sees_others = self.sees_others(now);
        let (core, room) = (Arc::clone(&self.core), self.pace.room(now));
        let mut reading = Reading::new(&core, stuck, sees_others, deadline);
        let (mut rings, mut searched) = (Rings::new(), HashMap::new());
        for id in due {
            if sees_others && reading.requests >= room {
                break; // a later round searches the rest
            }
            let own = reading.own.waits.iter().find(|own| own.id() == Some(*id));
            let Some(wait) = own.and_then(|own| entry_wait(core.id, &own.shown)) else { continue };
            reading.limit(MOST_REQUESTS);
            let ring = ring_of(&mut reading, &wait);
            searched.insert(*id, ring.as_deref().map(key_of));
            rings.extend(ring.map(|ring| (key_of(&ring), ring)));
        }
        let (ended, leaves) = (core.clock.now(), reading.has_gaps);
        if reading.is_beyond {
            self.warn_once(format!(
                "a thread that holds a lock waits, and the chain of threads that it waits for is too long to be followed: deadlocks of \
                 more than {MOST_CLIENTS} clients, or {MOST_THREADS} threads, are not found"
            ));
        }
        let own = core.id.as_u128();
        let was_searched =
            |key: &RingKey| key.iter().any(|(client, id)| *client == own && searched.contains_key(id));
        if !leaves {
            self.forget(|key| was_searched(key) && !rings.contains_key(key), ended);
        }
        for (id, key) in &searched {
            let is_new = key.as_ref().is_some_and(|key| !self.is_ripe(key, ended));
            self.pace.searched(*id, is_new, self.written.binary_search(id).is_ok(), ended);
        }
        rings.retain(|key, _| self.is_ripe(key, ended));
        if !rings.is_empty() {
            let ripe: HashSet<RingKey> = rings.keys().cloned().collect();
            reading.confirm(&mut rings, || core.stuck(core.clock.now()));
            for ring in rings.values() {
                let deadlock = reading.shown(ring);
                self.report(ring, deadlock, &reading.own, ended);
            }
            if !reading.has_gaps {
                self.forget(|key| ripe.contains(key) && !rings.contains_key(key), ended);
            }
        }
        self.pace.spend(reading.requests, ended);
        if reading.refusal.is_some() {
            self.refused.note(ended);
        }
        if self.refused.stands(|| ended) || !sees_others && leaves {
            let words = "a thread that holds a lock waits for another one, and deadlocks with other processes cannot be seen: the \
                         directory of clients is off, or refused, or the store has none";
            self.warn_once(words.to_owned());
        }
    }

    fn report(&mut self, ring: &[Link], deadlock: Deadlock, stuck: &Stuck, now: Moment) {
        let (core, deadlock) = (&self.core, Arc::new(deadlock));
        if let Some(seen @ Seen { reported: None, .. }) = self.seen.get_mut(&key_of(ring)) {
            seen.reported = Some((Arc::clone(&deadlock), now));
            // Uncertain deadlocks are not counted: a thread outside of the cycle may end them.
            core.reporter.counters.deadlocks.add(u64::from(deadlock.is_certain));
            let reported = Arc::clone(&deadlock);
            core.reporter
                .observe_later(move |observer| observer.event(&Event::Deadlock { deadlock: &reported }));
            core.reporter.warn_if_unheard(|| format!("deadlock: {deadlock}"));
        }
        let breaks = core.options.break_deadlocks && deadlock.is_certain;
        let is_ours = |wait: &&Wait| breaks && wait.thread.client == core.id;
        if let Some(wait) = youngest(ring).filter(is_ours)
            && let Some(own) = stuck.waits.iter().find(|own| own.id() == Some(wait.record.id))
        {
            own.known.end_for(&deadlock);
        }
    }
}

impl Engine {
    /// Searches for all deadlocks, of threads of any client.
    pub(crate) fn deadlocks(&self) -> Result<Vec<Deadlock>> {
        let during = |error: Error| error.during("deadlocks");
        self.usable("deadlocks")?;
        let (own, sees_others) = (self.stuck(self.clock.now()), self.store.capabilities.directory.is_some());
        let mut reading = Reading::new(self, own, sees_others, Moment::NEVER);
        for page in self.pages_of_clients(|| self.one_command()).take(MOST_PAGES) {
            let infos = page.map_err(Failure::into_read_error).map_err(during)?;
            reading.clients.extend(infos.into_iter().map(|info| (info.id, Some(info))));
        }
        let waits_of =
            |info: &ClientInfo| info.uses.iter().filter_map(|one| entry_wait(info.id, one)).collect();
        let origins: Vec<Vec<Wait>> = reading.clients.values().flatten().map(waits_of).collect();
        let found = origins.iter().flatten().filter_map(|origin| {
            reading.limit(u64::MAX);
            ring_of(&mut reading, origin)
        });
        let mut rings: Rings = found.map(|ring| (key_of(&ring), ring)).collect();
        let answered =
            |reading: &mut Reading<'_>| reading.refusal.take().map_or(Ok(()), |error| Err(during(error)));
        answered(&mut reading)?;
        if rings.is_empty() {
            return Ok(Vec::new());
        }
        // After this pause each client has removed ended waits from its entry: see `SEEN_FOR`.
        Parker::new(&self.clock).park(self.clock.after(SEEN_FOR), None);
        reading.confirm(&mut rings, || self.stuck(self.clock.now()));
        answered(&mut reading)?;
        Ok(rings.values().map(|ring| reading.shown(ring)).collect())
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadlock_is_reported_after_lasting_a_second() {
        let mut finder = Finder::new(&crate::LockClient::in_memory().get_lock("a").engine.core);
        let (begun, key): (Moment, RingKey) = (finder.core.clock.now(), vec![(7, 1), (8, 2)]);
        let almost = SEEN_FOR.saturating_sub(Duration::from_millis(1));
        assert!(!finder.is_ripe(&key, begun));
        assert!(!finder.is_ripe(&key, begun.plus(almost)));
        assert!(finder.is_ripe(&key, begun.plus(SEEN_FOR)));
        let own: RingKey = vec![(finder.core.id.as_u128(), 1), (8, 2)];
        assert!(!finder.is_ripe(&own, begun));
        finder.forget(|key| *key == own, begun);
        assert!(!finder.is_ripe(&own, begun.plus(SEEN_FOR)));
    }
}
