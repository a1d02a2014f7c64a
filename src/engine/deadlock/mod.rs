//! Deadlocks: threads that wait for each other in a ring, across processes. They are looked for, told, and on
//! request broken.
//!
//! A wait that has lasted for a while, of a thread that holds something, is written into the client's entry
//! in the directory, with an id. The watchdog then follows it: who holds the lock, for what that owner's
//! thread waits, and so on (`graph`). Other clients' part is read from the directory and the store
//! (`reading`), at a pace (`pace`).
//!
//! The directory must not say that a wait goes on which is over: it is taken out of the entry before its call
//! returns ([`Finder::take_out`]).

mod again;
pub(crate) mod ask;
pub(crate) mod graph;
mod maybe;
#[cfg(all(test, not(leasehold_shuttle)))]
mod model;
mod pace;
mod reading;
mod shown;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::config::Options;
use crate::deadlock::Deadlock;
use crate::engine::deadlock::again::read_again;
use crate::engine::deadlock::graph::{Link, RingKey, key_of, ring_of, youngest};
use crate::engine::deadlock::maybe::{Maybe, maybe_ring};
use crate::engine::deadlock::pace::Pace;
use crate::engine::deadlock::reading::{Asked, Reading, own_wait};
use crate::engine::directory::{Announcer, Posting};
use crate::engine::policy::POLL_COMPLETIONS_EVERY;
use crate::engine::registry::Registry;
use crate::engine::stuck::Stuck;
use crate::ident::ClientId;
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::park::{Parker, Woken};
use crate::seam::Store;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment, wall_ms};

/// Entries are written no closer together than this for the sake of deadlocks.
const WRITES_APART: Duration = Duration::from_millis(100);

/// After a write that failed.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// The most requests of one reading: to see who holds the lock, and what that client says of itself, for each
/// owner on the way.
const MOST_REQUESTS: u64 = 2 * graph::MOST_OWNERS as u64;

/// Looks for rings. The watchdog's, but for what a waiter says of itself.
pub(crate) struct Finder {
    id: ClientId,
    prefix: String,
    /// How long a wait lasts before it is looked at.
    after: Duration,
    /// Whether waits of this client end for a deadlock.
    breaks: bool,
    store: Arc<dyn Store>,
    registry: Arc<Registry>,
    reporter: Arc<Reporter>,
    announcer: Arc<Announcer>,
    clock: Clock,
    /// When there is something to look at, as `Moment::nanos`: the maximum while there is nothing.
    due: AtomicU64,
    /// The entry may tell of waits.
    tells: AtomicBool,
    ended: Mutex<EndedWaits>,
    state: Mutex<FinderState>,
}

/// Waits that are over and have to be taken out of the entry.
#[derive(Default)]
struct EndedWaits {
    waiting: Vec<Arc<EndedWait>>,
    /// Nobody takes them out any more.
    is_closed: bool,
}

struct EndedWait {
    is_taken_out: AtomicBool,
    waker: Waker,
}

impl EndedWait {
    fn is_done(&self) {
        self.is_taken_out.store(true, Ordering::SeqCst);
        self.waker.wake();
    }
}

#[derive(Default)]
struct FinderState {
    pace: Pace,
    /// The waits that the entry tells of.
    written: Vec<u64>,
    /// Before this no entry is written.
    next_write: Option<Moment>,
    /// Rings that were told and are not known to be over.
    told: HashMap<RingKey, Told>,
    /// It was said that other processes are not seen.
    is_blind_told: bool,
    /// The store refuses what is needed to see others.
    is_refused: bool,
}

struct Told {
    ring: Arc<Deadlock>,
    since: Moment,
}

impl Finder {
    pub(crate) fn new(
        (id, options, clock): (ClientId, &Options, &Clock),
        store: &Arc<dyn Store>,
        registry: &Arc<Registry>,
        reporter: &Arc<Reporter>,
        announcer: &Arc<Announcer>,
    ) -> Finder {
        Finder {
            id,
            prefix: options.key_prefix.clone(),
            after: options.deadlocks_after,
            breaks: options.break_deadlocks,
            store: Arc::clone(store),
            registry: Arc::clone(registry),
            reporter: Arc::clone(reporter),
            announcer: Arc::clone(announcer),
            clock: clock.clone(),
            due: AtomicU64::new(u64::MAX),
            tells: AtomicBool::new(false),
            ended: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// A wait that has lasted since then begins to sleep. `Some`: the watchdog is to look by this moment,
    /// which it does not know of.
    ///
    /// The waiter has noted itself first. Pairs with `round`, which opens `due` before it looks and sets it
    /// after.
    pub(crate) fn note_wait(&self, since: Moment) -> Option<Moment> {
        let ripe = since.plus(self.after);
        let is_news = ripe.nanos() < self.due.load(Ordering::SeqCst);
        is_news.then(|| {
            self.due.fetch_min(ripe.nanos(), Ordering::SeqCst);
            ripe
        })
    }

    /// Whether the entry tells of waits, so that it is written here.
    pub(crate) fn tells(&self) -> bool {
        self.tells.load(Ordering::SeqCst)
    }

    /// Has a wait taken out of the entry that is over and has left its queue. Returns when the entry is
    /// written without it, when it cannot be written, or at `deadline`. `wake` wakes the watchdog.
    pub(crate) fn take_out(&self, deadline: Moment, wake: impl FnOnce()) {
        let parker = Parker::new(&self.clock);
        let wait =
            Arc::new(EndedWait { is_taken_out: AtomicBool::new(false), waker: parker.waker().clone() });
        {
            let mut ended = self.ended.lock();
            if ended.is_closed {
                return;
            }
            ended.waiting.push(Arc::clone(&wait));
        }
        self.due.store(0, Ordering::SeqCst);
        wake();
        while !wait.is_taken_out.load(Ordering::SeqCst) {
            if parker.park(deadline, None) == Woken::Time {
                break;
            }
        }
    }

    /// Lets those go on that wait for the entry: it cannot be written now. The client counts as it was when
    /// it was heard last, as one that died does.
    pub(crate) fn let_go(&self) {
        let waiting = std::mem::take(&mut self.ended.lock().waiting);
        waiting.iter().for_each(|wait| wait.is_done());
    }

    /// The watchdog ends.
    pub(crate) fn close(&self) {
        self.ended.lock().is_closed = true;
        self.let_go();
    }

    /// The watchdog's: does what is due, with all requests by `deadline`, and says when it is to come again.
    pub(crate) fn round(&self, deadline: Moment) -> Moment {
        let now = self.clock.now();
        let due = Moment::from_nanos(self.due.load(Ordering::SeqCst));
        let is_renewed = self.tells() && self.announcer.is_wanted();
        if now < due && !is_renewed {
            return due;
        }
        let mut state = self.state.lock();
        if let Some(next) = state.next_write.filter(|next| now < *next) {
            return next;
        }
        if self.announcer.is_under_way() {
            // It might come after the next, which is not to be told of what is over.
            return now.plus(POLL_COMPLETIONS_EVERY);
        }
        self.due.store(u64::MAX, Ordering::SeqCst);
        let ended = std::mem::take(&mut self.ended.lock().waiting);
        let stuck = self.registry.stuck(now, self.after, wall_ms());
        self.write(&mut state, &stuck, is_renewed, (now, deadline));
        ended.iter().for_each(|wait| wait.is_done());
        self.end_rings(&mut state, &stuck, now);
        state.pace.keep(&stuck.ids(), now);
        let due = state.pace.due(now);
        if !due.is_empty() {
            self.look(&mut state, &stuck, &due, (now, deadline));
        }
        let now = self.clock.now();
        let mut next = stuck.next.unwrap_or(Moment::NEVER);
        next = next.min(state.pace.next(now).unwrap_or(Moment::NEVER));
        if state.written != stuck.ids() && !state.is_refused && self.announcer.is_on() {
            next = next.min(now.plus(WRITE_AGAIN)); // it could not be written
        }
        let next = next.max(now.plus(Duration::from_millis(1)));
        // Opened before the look: what came meanwhile stays.
        Moment::from_nanos(self.due.fetch_min(next.nanos(), Ordering::SeqCst).min(next.nanos()))
    }

    /// Writes the entry if it would tell of other waits than it does.
    fn write(
        &self,
        state: &mut FinderState,
        stuck: &Stuck,
        is_renewed: bool,
        (now, deadline): (Moment, Moment),
    ) {
        let ids = stuck.ids();
        if ids == state.written && !is_renewed {
            return;
        }
        // From here on the other way of writing is closed, which knows of no waits that others rely on.
        self.tells.store(true, Ordering::SeqCst);
        match self.announcer.write_stuck(&*self.store, &self.registry, stuck, (now, deadline)) {
            Posting::Done => {
                state.next_write = Some(now.plus(WRITES_APART));
                state.pace.spend(1, now);
                self.tells.store(!ids.is_empty(), Ordering::SeqCst);
                state.written = ids;
            }
            Posting::Never => {
                self.tells.store(false, Ordering::SeqCst);
                state.written = ids;
            }
            // It may tell of any of them now.
            Posting::Failed => state.next_write = Some(now.plus(WRITE_AGAIN)),
        }
    }

    /// Tells the end of rings in which no thread of this client waits any more as it did.
    fn end_rings(&self, state: &mut FinderState, stuck: &Stuck, now: Moment) {
        let ids: HashSet<u64> = stuck.ids().into_iter().collect();
        let own = self.id.as_u128();
        let stays = |key: &RingKey| key.iter().all(|(client, id)| *client != own || ids.contains(id));
        let over: Vec<RingKey> = state.told.keys().filter(|key| !stays(key)).cloned().collect();
        over.iter().for_each(|key| self.tell_over(state, key, now));
    }

    fn tell_over(&self, state: &mut FinderState, key: &RingKey, now: Moment) {
        let Some(told) = state.told.remove(key) else { return };
        let lasted = now.since(told.since);
        self.reporter.observe_later(move |observer| {
            observer.event(&Event::DeadlockOver { deadlock: &told.ring, lasted });
        });
    }

    /// Whether there is a way to see other processes.
    fn sees_others(&self, state: &mut FinderState) -> bool {
        let directory = self.store.capabilities().directory;
        directory.is_some() && self.announcer.is_on() && !state.is_refused
    }

    fn tell_blind(&self, state: &mut FinderState) {
        if !std::mem::replace(&mut state.is_blind_told, true) {
            let text = "a thread that holds a lock waits for another one, and deadlocks with other processes cannot be seen: the \
                        directory of clients is off, or refused, or the store has none";
            self.reporter.observe_later(move |observer| observer.event(&Event::Warning { text }));
        }
    }

    /// Looks at these waits, by one reading for all; and at the rings that it shows by another, begun after
    /// the first ended.
    fn look(&self, state: &mut FinderState, stuck: &Stuck, due: &[u64], (now, deadline): (Moment, Moment)) {
        let sees_others = self.sees_others(state);
        let each = deadline.since(now);
        let asked =
            Asked { store: &*self.store, id: self.id, clock: &self.clock, sees_others, deadline, each };
        let room = state.pace.room(now);
        let mut first = Reading::new(&asked, stuck);
        let (mut rings, mut met): (Vec<Vec<Link>>, HashSet<RingKey>) = (Vec::new(), HashSet::new());
        let (mut looked, mut leaves, mut maybes) = (Vec::new(), false, Vec::<Maybe>::new());
        for wait in due.iter().filter_map(|id| stuck.waits.iter().find(|wait| wait.told.id == *id)) {
            if sees_others && first.requests >= room {
                break; // its turn comes when there is room for more
            }
            let before = first.has_gaps;
            first.limit(MOST_REQUESTS);
            let ring = ring_of(&mut first, &own_wait(self.id, wait));
            leaves |= first.has_gaps && !before;
            looked.push(wait.told.id);
            match ring {
                Some(ring) if met.insert(key_of(&ring)) => rings.push(ring),
                Some(_) => {}
                None => maybes.extend(maybe_ring(&mut first, &own_wait(self.id, wait))),
            }
        }
        let (mut refusal, mut has_gaps, mut requests) =
            (first.refusal.take(), first.has_gaps, first.requests);
        drop(first);
        let ended = self.clock.now();
        looked.iter().for_each(|id| state.pace.looked(*id, ended));
        // Rings of these waits that all of it would have shown.
        let mut found: HashSet<RingKey> = HashSet::new();
        if !rings.is_empty() || !maybes.is_empty() {
            let stuck = || self.registry.stuck(self.clock.now(), self.after, wall_ms());
            let here = self.announcer.here(ended);
            let again = read_again(&asked, &stuck, (rings, maybes), (&here, &self.prefix));
            for (ring, deadlock) in again.rings {
                found.insert(key_of(&ring));
                self.tell(state, &ring, deadlock, &again.own, ended);
            }
            for (maybe, deadlock) in again.maybes {
                found.insert(maybe.key());
                self.tell_once(state, maybe.key(), &Arc::new(deadlock), ended);
            }
            refusal = refusal.or(again.refusal);
            has_gaps |= again.has_gaps;
            requests += again.requests;
        }
        state.pace.spend(requests, ended);
        if refusal.is_some() {
            state.is_refused = true;
        }
        if state.is_refused || !sees_others && leaves {
            self.tell_blind(state);
        }
        let own = self.id.as_u128();
        let was_looked = |key: &RingKey| key.iter().any(|(client, id)| *client == own && looked.contains(id));
        if !has_gaps {
            let over = state.told.keys().filter(|key| was_looked(key) && !found.contains(*key));
            let over: Vec<RingKey> = over.cloned().collect();
            over.iter().for_each(|key| self.tell_over(state, key, ended));
        }
    }

    /// Tells a ring once, and ends its youngest wait if that is this client's to do.
    fn tell(&self, state: &mut FinderState, ring: &[Link], deadlock: Deadlock, stuck: &Stuck, now: Moment) {
        let deadlock = Arc::new(deadlock);
        self.tell_once(state, key_of(ring), &deadlock, now);
        if let Some(wait) = youngest(ring).filter(|wait| self.breaks && wait.thread.client == self.id)
            && let Some(own) = stuck.waits.iter().find(|own| own.told.id == wait.id)
        {
            own.ticket.end_for(&deadlock);
        }
    }

    fn tell_once(&self, state: &mut FinderState, key: RingKey, deadlock: &Arc<Deadlock>, now: Moment) {
        if let Entry::Vacant(place) = state.told.entry(key) {
            place.insert(Told { ring: Arc::clone(deadlock), since: now });
            // A chain that may be a ring alarms nobody.
            self.reporter.counters.deadlocks.add(u64::from(deadlock.is_certain));
            let told = Arc::clone(deadlock);
            self.reporter.observe_later(move |observer| observer.event(&Event::Deadlock { deadlock: &told }));
        }
    }
}
