//! All that a client has by lock: the holds of this process, and who waits here.
//!
//! The table is also the watchdog's registry: what is not in it is not renewed.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ident::LockName;
use crate::lock::hold::{Hold, Standing};
use crate::lock::queue::{Queue, Ticket};
use crate::lock::store::Kind;
use crate::time::Moment;

#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: Mutex<HashMap<Key, Entry>>,
}

/// One lock: kinds that are the same lock to the store are the same here.
#[derive(Debug, Clone)]
struct Key {
    is_token: bool,
    name: Arc<LockName>,
}

impl Key {
    fn new(kind: Kind, name: &Arc<LockName>) -> Key {
        Key { is_token: kind.is_token(), name: Arc::clone(name) }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.is_token == other.is_token && self.name.key() == other.name.key()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.is_token.hash(state);
        self.name.key().hash(state);
    }
}

#[derive(Debug, Default)]
struct Entry {
    holds: Vec<Arc<Hold>>,
    queue: Queue,
}

impl Table {
    /// The hold of this lock that belongs to a thread, live or lost.
    pub(crate) fn of_thread(&self, kind: Kind, name: &Arc<LockName>, thread: u64) -> Option<Arc<Hold>> {
        let entries = self.entries.lock();
        let entry = entries.get(&Key::new(kind, name))?;
        entry.holds.iter().find(|hold| hold.is_of_thread(thread)).cloned()
    }

    /// Until when some hold of this process on the lock stands, if one does.
    pub(crate) fn held_here(&self, kind: Kind, name: &Arc<LockName>, now: Moment) -> Option<Moment> {
        let entries = self.entries.lock();
        let entry = entries.get(&Key::new(kind, name))?;
        let live = entry.holds.iter().filter(|hold| !matches!(hold.standing(now), Standing::Lost(_)));
        live.map(|hold| hold.until()).max()
    }

    /// Enters a hold. A lost one of the same thread on the same lock makes room: its guards still know it.
    pub(crate) fn insert(&self, hold: &Arc<Hold>, thread: Option<u64>) {
        let mut entries = self.entries.lock();
        let entry = entries.entry(Key::new(hold.kind(), hold.name())).or_default();
        if let Some(thread) = thread {
            entry.holds.retain(|other| !other.is_of_thread(thread));
        }
        entry.holds.push(Arc::clone(hold));
    }

    /// Takes a hold out, and tells the head of the queue that the lock may be free.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let mut entries = self.entries.lock();
        let key = Key::new(hold.kind(), hold.name());
        let Some(entry) = entries.get_mut(&key) else { return };
        entry.holds.retain(|other| !Arc::ptr_eq(other, hold));
        if let Some(head) = entry.queue.head() {
            head.nudge();
        } else if entry.holds.is_empty() {
            entries.remove(&key);
        }
    }

    /// Tells the head of a lock's queue that the lock may be free.
    pub(crate) fn nudge(&self, kind: Kind, name: &Arc<LockName>) {
        let entries = self.entries.lock();
        if let Some(head) = entries.get(&Key::new(kind, name)).and_then(|entry| entry.queue.head()) {
            head.nudge();
        }
    }

    /// Joins a lock's queue, until the place is dropped.
    pub(crate) fn join(self: &Arc<Table>, kind: Kind, name: &Arc<LockName>) -> Place {
        let key = Key::new(kind, name);
        let ticket = self.entries.lock().entry(key.clone()).or_default().queue.join();
        Place { table: Arc::clone(self), key, ticket }
    }

    /// All holds, of all locks.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.entries.lock().values().flat_map(|entry| &entry.holds).cloned().collect()
    }

    /// The holds of one lock, of all threads.
    pub(crate) fn holds_of(&self, kind: Kind, name: &Arc<LockName>) -> Vec<Arc<Hold>> {
        let entries = self.entries.lock();
        entries.get(&Key::new(kind, name)).map(|entry| entry.holds.clone()).unwrap_or_default()
    }

    /// Takes all holds out and wakes everyone who waits.
    pub(crate) fn clear(&self) -> Vec<Arc<Hold>> {
        let mut entries = self.entries.lock();
        let mut holds = Vec::new();
        for entry in entries.values_mut() {
            holds.append(&mut entry.holds);
            entry.queue.wake_all();
        }
        entries.retain(|_, entry| !entry.queue.is_empty());
        holds
    }
}

/// A thread's place in a lock's queue; dropping it leaves the queue, on every way out.
#[derive(Debug)]
pub(crate) struct Place {
    table: Arc<Table>,
    key: Key,
    ticket: Arc<Ticket>,
}

impl Place {
    pub(crate) fn ticket(&self) -> &Ticket {
        &self.ticket
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut entries = self.table.entries.lock();
        let Some(entry) = entries.get_mut(&self.key) else { return };
        entry.queue.leave(&self.ticket);
        if entry.queue.is_empty() && entry.holds.is_empty() {
            entries.remove(&self.key);
        }
    }
}
