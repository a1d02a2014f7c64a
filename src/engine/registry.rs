//! All local locks of a client, with their holds and waiters.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::directory::LockUse;
use crate::engine::hold::local_lock::{LockKey, Locks, REMEMBERED, free_first};
use crate::engine::hold::{Hold, LocalLock, State};
use crate::fork::is_forked;
use crate::ident::LockName;
use crate::seam::{Kind, Others};
use crate::shrink::CrowdMap;
use crate::sync::Mutex;
use crate::time::Moment;

/// A client's local locks. Mutexes are locked in this order: a local lock's, the timer table's, `remembered`.
/// Only [`stuck`](Registry::stuck) locks the mutexes of several local locks at once.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    locks: Arc<Locks>,
    lapsed: Mutex<VecDeque<Weak<Hold>>>,
    /// Local locks that are kept for a while, and until when.
    pub(super) remembered: Mutex<CrowdMap<LockKey, (Moment, Arc<LocalLock>)>>,
    pub(super) several: Mutex<()>,
}

/// Maximum number of expired holds that are remembered, so that `unlock` can explain why it fails.
const LAPSED: usize = 1024;

impl Registry {
    pub(crate) fn local(&self, kind: Kind, name: &Arc<LockName>) -> Arc<LocalLock> {
        let key = LockKey::new(kind, name);
        if is_forked() {
            return LocalLock::new(key, &Arc::default()); // each request will be refused
        }
        let mut locks = self.locks.by_key.lock();
        if let Some(local) = locks.get(&key).and_then(Weak::upgrade) {
            return local;
        }
        let local = LocalLock::new(key.clone(), &self.locks);
        locks.insert(key, Arc::downgrade(&local));
        local
    }

    /// The local lock, if any lock value or hold uses it.
    pub(crate) fn found(&self, kind: Kind, name: &Arc<LockName>) -> Option<Arc<LocalLock>> {
        self.locks.by_key.lock().get(&LockKey::new(kind, name))?.upgrade()
    }

    pub(crate) fn of_thread(&self, kind: Kind, name: &Arc<LockName>, thread: u64) -> Option<Arc<Hold>> {
        self.found(kind, name)?.of_thread(thread)
    }

    /// All local locks, read from a copy of the table, whose mutex is then free for threads that make lock
    /// values.
    pub(super) fn all(&self) -> impl Iterator<Item = Arc<LocalLock>> + use<> {
        let all = self.locks.by_key.lock().values().filter_map(Weak::upgrade).collect();
        free_first(all, |local: &Arc<LocalLock>| local)
    }

    pub(crate) fn note_released(&self, hold: &Arc<Hold>, others: Others, now: Moment) {
        hold.local.state().note_released(others, now);
        if others != Others::Nobody {
            self.remember(&hold.local, now);
        }
    }

    /// Keeps the local lock, and what it knows, for a while: a program may make a lock value for each use.
    pub(crate) fn remember(&self, local: &Arc<LocalLock>, now: Moment) {
        let kept = (now.plus(REMEMBERED), Arc::clone(local));
        self.remembered.lock().insert(local.key.clone(), kept);
    }

    pub(crate) fn tidy(&self, now: Moment) {
        let mut remembered = self.remembered.lock();
        let mut over = Vec::new();
        remembered.retain(|_, (until, local)| {
            over.extend((*until <= now).then(|| Arc::clone(local)));
            *until > now
        });
        drop(remembered); // a local lock that is dropped takes other mutexes
        drop(over);
    }

    pub(crate) fn take_due(&self, by: Moment, most: usize) -> Vec<Arc<LocalLock>> {
        self.locks.timer_table.lock().take_due(by, most)
    }

    /// When the timer's next check is due. Removes locks without holds from the timer table.
    pub(crate) fn first_check(&self) -> Moment {
        loop {
            let first = self.locks.timer_table.lock().first();
            let Some((at, local)) = first else { return Moment::NEVER };
            match local.upgrade() {
                Some(local) if local.is_locked() || !local.state().holds.is_empty() => return at,
                Some(local) => local.plan_check(),
                None => self.locks.timer_table.lock().remove(local.as_ptr(), Some(at)), // it is being dropped
            }
        }
    }

    pub(crate) fn renewed(&self, now: Moment) -> Vec<Arc<Hold>> {
        let is_renewed =
            |hold: &Arc<Hold>| hold.with(|own| own.is_renewable()) && hold.stands(now) && !hold.is_orphaned();
        self.all().flat_map(|local| local.holds()).filter(is_renewed).collect()
    }

    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        let mut holds = Vec::new();
        self.all().for_each(|local| holds.extend(local.holds()));
        holds
    }

    pub(crate) fn remember_lapsed(&self, hold: &Arc<Hold>) {
        let mut lapsed = self.lapsed.lock();
        lapsed.push_back(Arc::downgrade(hold));
        let oldest = if lapsed.len() > LAPSED { lapsed.pop_front() } else { None };
        drop(lapsed);
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            self.remove(&oldest);
        }
    }

    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        self.remove_ended(hold, None);
    }

    /// Removes a hold. `released`: whom the store notified when it freed the lock, and when; `None`: unknown.
    pub(crate) fn remove_ended(&self, hold: &Arc<Hold>, released: Option<(Others, Moment)>) {
        let mut state = hold.local.state();
        let taken = state.remove(hold.serial, released);
        drop(state);
        drop(taken);
        if let Some((_, now)) = released.filter(|(others, _)| *others != Others::Nobody) {
            self.remember(&hold.local, now);
        }
    }

    pub(crate) fn nudge(&self, kind: Kind, name: &Arc<LockName>) {
        self.found(kind, name).iter().for_each(|local| local.state().queue.nudge());
    }

    /// Returns at most `most` holds and waits, and the number of locks left out. Takes one mutex at a time.
    pub(crate) fn uses(&self, most: usize, now: Moment) -> (Vec<LockUse>, u64) {
        let (mut uses, mut unlisted) = (Vec::new(), 0);
        for local in self.all() {
            let state = local.state();
            if state.holds.is_empty() && state.queue.tickets.is_empty() {
                continue; // an unused lock value
            }
            let room = most.saturating_sub(uses.len());
            if room == 0 {
                unlisted += 1;
                continue;
            }
            let is_live = |own: &&State| !own.hold.is_cached() && own.hold.loss_at(now).is_none();
            let held = state.holds.iter().take(room).filter(is_live);
            uses.extend(held.map(|state| shown(&local.key, state, now)));
            let room = most.saturating_sub(uses.len());
            let mut waiting = state.queue.tickets.iter().filter_map(|ticket| ticket.waiter.sleeper.as_ref());
            let (named, before) = (waiting.by_ref().take(room), uses.len());
            uses.extend(named.map(|one| LockUse {
                is_waiting: true,
                ..LockUse::new(local.key.name.key(), one.number, one.thread.name(), now.since(one.since))
            }));
            if let Some(last) = uses.get_mut(before..).and_then(<[LockUse]>::last_mut) {
                last.more_waiters = u64::try_from(waiting.count()).unwrap_or(u64::MAX);
            }
        }
        (uses, unlisted)
    }

    pub(crate) fn clear(&self) -> Vec<Arc<Hold>> {
        let (mut holds, mut recalls) = (Vec::new(), Vec::new());
        for local in self.all() {
            let mut state = local.state();
            holds.extend(state.clear().into_iter().map(|own| own.hold));
            recalls.extend(state.beside.recalls.take());
            state.queue.wake_all();
        }
        drop(recalls); // without any mutex here: a store has mutexes of its own
        holds
    }
}

pub(super) fn shown(key: &LockKey, state: &State, now: Moment) -> LockUse {
    let hold = &state.hold;
    let thread = hold.holder.thread();
    let name = thread.as_ref().map_or("", |thread| thread.name());
    let used = LockUse::new(key.name.key(), hold.owner().number(), name, now.since(hold.since()));
    LockUse { is_leader: hold.leads, ends: !state.is_renewed(), ..used }
}
