//! All that a client has by lock: the holds of this process, and who waits here.
//!
//! The watchdog renews the holds that are in it, and no others.

mod stuck;

use std::collections::VecDeque;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::directory::LockUse;
use crate::engine::agenda::{Agenda, slot_of};
use crate::engine::hold::slot::AgendaSlot;
use crate::engine::hold::{Hold, Standing};
use crate::engine::queue::{Queue, Ticket};
use crate::error::Error;
use crate::ident::LockName;
use crate::room::CrowdMap;
use crate::seam::{Claim, Family, Kind, Others};
use crate::sync::Mutex;
use crate::time::Moment;

#[derive(Debug, Default)]
pub(crate) struct Registry {
    entries: Mutex<Entries>,
    /// Holds of threads that were left to run out, and that their threads may still ask for.
    lapsed: Mutex<VecDeque<Weak<Hold>>>,
    /// Locks that other clients waited for when this one last released them: when that was, and who was notified.
    contended: Mutex<LockMap<(Moment, Others)>>,
    /// How many there are, to be read without the mutex: mostly none.
    contended_count: AtomicUsize,
}

/// The part under one mutex.
#[derive(Debug, Default)]
struct Entries {
    by_key: LockMap<LockEntry>,
    agenda: Agenda,
    /// How many holds were ever entered.
    grants: u64,
}

/// So many holds that were left to run out are remembered, so that their threads' `unlock` can say why it fails.
const LAPSED: usize = 1024;

/// One lock: kinds that are the same lock to the store are the same here.
#[derive(Debug, Clone)]
struct LockKey {
    family: Family,
    name: Arc<LockName>,
}

impl LockKey {
    fn new(kind: Kind, name: &Arc<LockName>) -> LockKey {
        LockKey { family: kind.family(), name: Arc::clone(name) }
    }
}

impl PartialEq for LockKey {
    fn eq(&self, other: &LockKey) -> bool {
        self.family == other.family && self.name.key() == other.name.key()
    }
}

impl Eq for LockKey {}

impl Hash for LockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.name.hash().wrapping_add(self.family as u64));
    }
}

/// Something for each lock, found by the hash that its name has.
type LockMap<V> = CrowdMap<LockKey, V, BuildHasherDefault<OwnHash>>;

/// Takes the hash that a key brings along as it is.
#[derive(Debug, Default)]
struct OwnHash(u64);

impl Hasher for OwnHash {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug, Default)]
struct LockEntry {
    holds: Vec<Arc<Hold>>,
    queue: Queue,
    burst: Burst,
    /// This client may stand in the store's line.
    in_line: bool,
    /// Since when the head has had nothing but failures, and the last: those behind it have waited through the same.
    failure: Option<(Moment, Error)>,
}

/// Hand-offs since the last true release, and when the first of them was.
#[derive(Debug, Default)]
struct Burst {
    handed: u32,
    began: Option<Moment>,
}

/// A process hands a lock on so many times, and for so long, before others get their turn. More makes
/// the others wait longer; less costs more true releases.
const BURST: u32 = 24;
const BURST_TIME: Duration = Duration::from_millis(3);

/// A lock is forgotten to be contended when it has not been released here for so long.
const CONTENDED: Duration = Duration::from_secs(1);

/// The next owner that a releaser may hand the lock to.
pub(crate) enum Next {
    /// Nobody sleeps for it here.
    Nobody,
    /// Somebody does, but it is other processes' turn.
    Others,
    /// This waiter, which has been promised it.
    Local(Arc<Ticket>, Claim),
}

impl Registry {
    /// The hold of this lock that belongs to a thread, live or lost.
    pub(crate) fn of_thread(&self, kind: Kind, name: &Arc<LockName>, thread: u64) -> Option<Arc<Hold>> {
        let entries = self.entries.lock();
        let entry = entries.by_key.get(&LockKey::new(kind, name))?;
        entry.holds.iter().find(|hold| hold.is_of_thread(thread)).cloned()
    }

    /// Until when some hold of this process on the lock stands, if one does.
    pub(crate) fn held_here(&self, kind: Kind, name: &Arc<LockName>, now: Moment) -> Option<Moment> {
        let entries = self.entries.lock();
        let entry = entries.by_key.get(&LockKey::new(kind, name))?;
        let live = entry.holds.iter().filter(|hold| !matches!(hold.standing(now), Standing::Lost(_)));
        let held = live.map(|hold| hold.until()).max();
        // On its way to a waiter here is held here too. Until that is settled nothing may be asked under the
        // releaser's number, which it may be about to use again.
        let is_receiving = entry.queue.head().is_some_and(|head| head.is_receiving());
        held.or_else(|| is_receiving.then_some(Moment::NEVER))
    }

    /// Whether nobody of this process has the lock or waits for it, and no other process listened when this one last
    /// released it.
    pub(crate) fn is_calm(&self, kind: Kind, name: &Arc<LockName>) -> bool {
        let is_used = self.entries.lock().by_key.contains_key(&LockKey::new(kind, name));
        !is_used && self.contended_since(kind, name).is_none()
    }

    /// The head of a lock's queue.
    #[cfg(all(test, not(leasehold_shuttle)))]
    pub(crate) fn head(&self, kind: Kind, name: &Arc<LockName>) -> Option<Arc<Ticket>> {
        self.entries.lock().by_key.get(&LockKey::new(kind, name))?.queue.head().cloned()
    }

    /// The head of a lock's queue, if the lock is on its way to it.
    pub(crate) fn receiving(&self, kind: Kind, name: &Arc<LockName>) -> Option<Arc<Ticket>> {
        let entries = self.entries.lock();
        let head = entries.by_key.get(&LockKey::new(kind, name))?.queue.head()?;
        head.is_receiving().then(|| Arc::clone(head))
    }

    /// Promises the lock to the head of its queue, if that sleeps, and it is not other processes' turn.
    pub(crate) fn promise(&self, hold: &Arc<Hold>, now: Moment) -> Next {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.by_key.get_mut(&LockKey::new(hold.kind(), hold.name())) else {
            return Next::Nobody;
        };
        let Some(head) = entry.queue.head() else { return Next::Nobody };
        let began = *entry.burst.began.get_or_insert(now);
        if entry.burst.handed >= BURST || now.since(began) >= BURST_TIME {
            return Next::Others;
        }
        let Some(claim) = head.promise() else { return Next::Nobody };
        entry.burst.handed += 1;
        Next::Local(Arc::clone(head), claim)
    }

    /// A hold of the lock ended by a true release, of which `others` were notified.
    pub(crate) fn note_released(&self, hold: &Arc<Hold>, others: Others, now: Moment) {
        let key = LockKey::new(hold.kind(), hold.name());
        if let Some(entry) = self.entries.lock().by_key.get_mut(&key) {
            entry.burst = Burst::default();
        }
        if others != Others::Nobody || self.contended_count.load(Ordering::Acquire) > 0 {
            let mut contended = self.contended.lock();
            if others != Others::Nobody {
                contended.insert(key, (now, others));
            } else {
                contended.remove(&key);
            }
            self.contended_count.store(contended.len(), Ordering::Release);
        }
    }

    /// When this process last released the lock, if others waited for it then, and who was notified.
    pub(crate) fn contended_since(&self, kind: Kind, name: &Arc<LockName>) -> Option<(Moment, Others)> {
        if self.contended_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.contended.lock().get(&LockKey::new(kind, name)).copied()
    }

    /// Forgets locks that have not been contended for a while.
    pub(crate) fn tidy(&self, now: Moment) {
        if self.contended_count.load(Ordering::Acquire) > 0 {
            let mut contended = self.contended.lock();
            contended.retain(|_, (since, _)| now.since(*since) < CONTENDED);
            self.contended_count.store(contended.len(), Ordering::Release);
        }
    }

    /// Enters a hold, and says when it is to be looked at. A lost one of the same thread on the same lock makes room: its
    /// guards still know it.
    pub(crate) fn insert(&self, hold: &Arc<Hold>, thread: Option<u64>) -> Moment {
        let mut entries = self.entries.lock();
        let Entries { by_key, agenda, grants } = &mut *entries;
        *grants += 1;
        let entry = by_key.entry(LockKey::new(hold.kind(), hold.name())).or_default();
        if let Some(thread) = thread {
            for lost in entry.holds.extract_if(.., |other| other.is_of_thread(thread)) {
                agenda.remove(&lost);
            }
        }
        entry.holds.push(Arc::clone(hold));
        let slot = slot_of(hold, hold.since());
        agenda.put(hold, slot);
        slot.moment()
    }

    // ---- the agenda

    /// Has a hold that is here be looked at then.
    pub(crate) fn put(&self, hold: &Arc<Hold>, slot: AgendaSlot) {
        let mut entries = self.entries.lock();
        if hold.slot() != AgendaSlot::Out {
            entries.agenda.put(hold, slot);
        }
    }

    /// The same, unless it is looked at sooner anyway.
    pub(crate) fn put_earlier(&self, hold: &Arc<Hold>, slot: AgendaSlot) {
        if slot.moment() < hold.slot().moment() {
            self.put(hold, slot);
        }
    }

    /// Some of those whose time has come; see [`Agenda::due`].
    pub(crate) fn due(&self, now: Moment, slack: Duration, most: usize) -> Vec<Arc<Hold>> {
        self.entries.lock().agenda.due(now, slack, most)
    }

    pub(crate) fn renewed(&self) -> Vec<Arc<Hold>> {
        self.entries.lock().agenda.renewed()
    }

    pub(crate) fn first_due(&self) -> Moment {
        self.entries.lock().agenda.first()
    }

    pub(crate) fn first_renewal(&self) -> Moment {
        self.entries.lock().agenda.first_renewal()
    }

    /// All that are bound to something of the store's.
    pub(crate) fn bound(&self) -> Vec<Arc<Hold>> {
        let entries = self.entries.lock();
        entries
            .by_key
            .values()
            .flat_map(|entry| &entry.holds)
            .filter(|hold| hold.is_bound())
            .cloned()
            .collect()
    }

    /// Keeps a thread's hold that was left to run out for a while: until so many more have.
    pub(crate) fn remember_lapsed(&self, hold: &Arc<Hold>) {
        let mut lapsed = self.lapsed.lock();
        lapsed.push_back(Arc::downgrade(hold));
        let oldest = if lapsed.len() > LAPSED { lapsed.pop_front() } else { None };
        drop(lapsed);
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            self.remove(&oldest);
        }
    }

    /// Takes a hold out and notifies nobody: the lock is on its way to the head already.
    pub(crate) fn remove_handed(&self, hold: &Arc<Hold>) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.by_key.get_mut(&LockKey::new(hold.kind(), hold.name())) {
            entry.holds.retain(|other| !Arc::ptr_eq(other, hold));
        }
        entries.agenda.remove(hold);
    }

    /// Takes a hold out, and notifies the head of the queue that the lock may be free.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let mut entries = self.entries.lock();
        let key = LockKey::new(hold.kind(), hold.name());
        entries.agenda.remove(hold);
        let Some(entry) = entries.by_key.get_mut(&key) else { return };
        entry.holds.retain(|other| !Arc::ptr_eq(other, hold));
        entry.queue.nudge();
        if entry.queue.is_empty() && entry.holds.is_empty() {
            entries.by_key.remove(&key);
        }
    }

    /// Notifies the heads of a lock's queue that the lock may be free.
    pub(crate) fn nudge(&self, kind: Kind, name: &Arc<LockName>) {
        if let Some(entry) = self.entries.lock().by_key.get(&LockKey::new(kind, name)) {
            entry.queue.nudge();
        }
    }

    /// Joins a lock's queue, until the place is dropped.
    pub(crate) fn join(self: &Arc<Registry>, kind: Kind, name: &Arc<LockName>, spins: bool) -> QueuePlace {
        let key = LockKey::new(kind, name);
        let ticket = self.entries.lock().by_key.entry(key.clone()).or_default().queue.join(spins);
        QueuePlace { registry: Arc::clone(self), key, ticket }
    }

    /// Whether this client stands in the store's line for a lock, as far as is known.
    pub(crate) fn note_in_line(&self, kind: Kind, name: &Arc<LockName>, is_in_line: bool) {
        if let Some(entry) = self.entries.lock().by_key.get_mut(&LockKey::new(kind, name)) {
            entry.in_line = is_in_line;
        }
    }

    /// How many wait here for a lock.
    #[cfg(leasehold_shuttle)]
    pub(crate) fn waiting(&self, kind: Kind, name: &Arc<LockName>) -> usize {
        self.entries.lock().by_key.get(&LockKey::new(kind, name)).map_or(0, |entry| entry.queue.len())
    }

    /// The head of a lock's queue could not use the store since then; `None`: it can.
    pub(crate) fn note_failure(&self, kind: Kind, name: &Arc<LockName>, failure: Option<(Moment, Error)>) {
        if let Some(entry) = self.entries.lock().by_key.get_mut(&LockKey::new(kind, name)) {
            entry.failure = failure;
        }
    }

    /// The retry budget of the head is spent: so is that of the waiters behind it.
    pub(crate) fn wake_queue(&self, kind: Kind, name: &Arc<LockName>) {
        if let Some(entry) = self.entries.lock().by_key.get(&LockKey::new(kind, name)) {
            entry.queue.wake_all();
        }
    }

    /// The last failure, if a lock's head has had nothing but failures for as long as `patience`.
    pub(crate) fn spent_retry_budget(
        &self,
        kind: Kind,
        name: &Arc<LockName>,
        patience: Duration,
        now: Moment,
    ) -> Option<Error> {
        let entries = self.entries.lock();
        let (since, error) = entries.by_key.get(&LockKey::new(kind, name))?.failure.as_ref()?;
        (now.since(*since) >= patience).then(|| error.copy())
    }

    /// All holds, of all locks.
    #[cfg(test)]
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.entries.lock().by_key.values().flat_map(|entry| &entry.holds).cloned().collect()
    }

    /// The holds and waits of this process, `most` at most, and of how many more locks there are some. Looks at a bounded number
    /// of each, since all who acquire wait for it.
    pub(crate) fn uses(&self, most: usize, now: Moment) -> (Vec<LockUse>, u64) {
        let entries = self.entries.lock();
        let (mut uses, mut locks) = (Vec::new(), 0);
        for (key, entry) in entries.by_key.iter().take(most) {
            let room = most.saturating_sub(uses.len());
            if room == 0 {
                break;
            }
            locks += 1;
            let used = |owner: u64, thread: &str, since: Moment, waits: bool| LockUse {
                name: key.name.key().to_owned(),
                owner,
                thread: thread.to_owned(),
                since: now.since(since),
                waits,
                more: 0,
                by: None,
                told: None,
            };
            let is_live = |hold: &&Arc<Hold>| !matches!(hold.standing(now), Standing::Lost(_));
            let held = entry.holds.iter().take(room).filter(is_live);
            uses.extend(held.map(|hold| {
                let thread = hold.holder.thread();
                let name = thread.as_ref().map_or("", |thread| thread.name());
                used(hold.owner().number(), name, hold.since(), false)
            }));
            let room = most.saturating_sub(uses.len());
            let mut waiting = entry.queue.sleepers();
            let (named, before) = (waiting.by_ref().take(room), uses.len());
            uses.extend(named.map(|(_, one)| used(one.number, one.thread.name(), one.since, true)));
            if let Some(last) = uses.get_mut(before..).and_then(<[LockUse]>::last_mut) {
                last.more = u64::try_from(waiting.count()).unwrap_or(u64::MAX);
            }
        }
        let unlisted = entries.by_key.len().saturating_sub(locks);
        (uses, u64::try_from(unlisted).unwrap_or(u64::MAX))
    }

    /// All holds now, and how many there ever were. They are looked at outside of the mutex, which all who acquire wait for.
    pub(crate) fn counted(&self) -> (Vec<Arc<Hold>>, u64) {
        let entries = self.entries.lock();
        let holds = entries.by_key.values().flat_map(|entry| &entry.holds).cloned().collect();
        (holds, entries.grants)
    }

    /// The holds of one lock, of all threads.
    pub(crate) fn holds_of(&self, kind: Kind, name: &Arc<LockName>) -> Vec<Arc<Hold>> {
        let entries = self.entries.lock();
        entries.by_key.get(&LockKey::new(kind, name)).map(|entry| entry.holds.clone()).unwrap_or_default()
    }

    /// Takes all holds out and wakes everyone who waits.
    pub(crate) fn clear(&self) -> Vec<Arc<Hold>> {
        let mut entries = self.entries.lock();
        let mut holds = Vec::new();
        for entry in entries.by_key.values_mut() {
            holds.append(&mut entry.holds);
            entry.queue.wake_all();
        }
        entries.by_key.retain(|_, entry| !entry.queue.is_empty());
        holds.iter().for_each(|hold| entries.agenda.remove(hold));
        holds
    }
}

/// A thread's place in a lock's queue; dropping it leaves the queue, on every way out.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    registry: Arc<Registry>,
    key: LockKey,
    ticket: Arc<Ticket>,
}

impl QueuePlace {
    pub(crate) fn ticket(&self) -> &Arc<Ticket> {
        &self.ticket
    }

    /// Whether the client's place in the store's line is this waiter's to give up: it has one, and nobody else waits here.
    pub(crate) fn takes_line_place(&self) -> bool {
        let mut entries = self.registry.entries.lock();
        let entry = entries.by_key.get_mut(&self.key).filter(|entry| entry.queue.len() == 1);
        entry.is_some_and(|entry| std::mem::take(&mut entry.in_line))
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let mut entries = self.registry.entries.lock();
        let Some(entry) = entries.by_key.get_mut(&self.key) else { return };
        entry.queue.leave(&self.ticket);
        if entry.queue.is_empty() {
            entry.failure = None;
        }
        if entry.queue.is_empty() && entry.holds.is_empty() {
            entries.by_key.remove(&self.key);
        }
    }
}
