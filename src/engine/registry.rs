//! All that a client has by lock: its holds, and its waiters.
//!
//! The watchdog renews the holds that are here, and no others.

mod stuck;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::directory::LockUse;
use crate::engine::hold::local_lock::{LockKey, Locks, REMEMBERED};
use crate::engine::hold::{Hold, LocalLock, QueuePlace, State};
use crate::engine::lock::CacheTerms;
use crate::engine::timer_queue::{TimerQueue, slot_of};
use crate::fork::is_forked;
use crate::ident::LockName;
use crate::seam::{Kind, Others};
use crate::sync::{Mutex, MutexGuard};
use crate::time::{Clock, Moment};

/// Order of mutexes: a local lock's, the timer queue's, `remembered`. Only [`stuck`](Registry::stuck) locks
/// two entries.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    locks: Arc<Locks>,
    timer_queue: Mutex<TimerQueue>,
    /// How many holds were ever entered.
    grants: AtomicU64,
    /// Holds of threads that ran out, and that their threads may still ask for.
    lapsed: Mutex<VecDeque<Weak<Hold>>>,
    /// Locks that are remembered without any value: other clients waited for them, or this client caches
    /// them.
    remembered: Mutex<Vec<Arc<LocalLock>>>,
    /// When to go through them next, as `Moment::nanos`; zero: there are none.
    tidy_at: AtomicU64,
    /// Held by a thread that locks several local locks.
    several: Mutex<()>,
}

/// The most holds that are remembered after they ran out, so that `unlock` can say why it fails.
const LAPSED: usize = 1024;

impl Registry {
    pub(crate) fn local(&self, kind: Kind, name: &Arc<LockName>) -> Arc<LocalLock> {
        let key = LockKey::new(kind, name);
        if is_forked() {
            return LocalLock::new(key, &Arc::default()); // all that is done with it is refused
        }
        let mut locks = self.locks.lock();
        if let Some(local) = locks.get(&key).and_then(Weak::upgrade) {
            return local;
        }
        let local = LocalLock::new(key.clone(), &self.locks);
        locks.insert(key, Arc::downgrade(&local));
        local
    }

    /// `None`: no value or hold here has one.
    pub(crate) fn found(&self, kind: Kind, name: &Arc<LockName>) -> Option<Arc<LocalLock>> {
        self.locks.lock().get(&LockKey::new(kind, name))?.upgrade()
    }

    pub(crate) fn of_thread(&self, kind: Kind, name: &Arc<LockName>, thread: u64) -> Option<Arc<Hold>> {
        self.found(kind, name)?.of_thread(thread)
    }

    /// Looked at outside of the mutex, which all who make a value wait for.
    fn all(&self) -> Vec<Arc<LocalLock>> {
        self.locks.lock().values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn note_released(&self, hold: &Arc<Hold>, others: Others, now: Moment) {
        hold.local().state().note_released(others, now);
        if others != Others::Nobody {
            self.remember(hold.local(), now);
        }
    }

    /// Remembers what is known of a lock for a while: a program may make a value for each use.
    pub(crate) fn remember(&self, local: &Arc<LocalLock>, now: Moment) {
        if local.remember(now.plus(REMEMBERED)) {
            let mut remembered = self.remembered.lock();
            if remembered.is_empty() {
                self.tidy_at.store(now.plus(REMEMBERED).nanos(), Ordering::Release);
            }
            remembered.push(Arc::clone(local));
        }
    }

    /// Forgets locks that need not be remembered any more; once in `REMEMBERED` at most.
    pub(crate) fn tidy(&self, now: Moment) {
        let due = self.tidy_at.load(Ordering::Acquire);
        if due == 0 || now.nanos() < due {
            return;
        }
        let all = std::mem::take(&mut *self.remembered.lock());
        let mut kept: Vec<_> = all.into_iter().filter(|local| !local.is_forgotten(now)).collect();
        let mut remembered = self.remembered.lock();
        remembered.append(&mut kept);
        let next = if remembered.is_empty() { 0 } else { now.plus(REMEMBERED).nanos() };
        self.tidy_at.store(next, Ordering::Release);
    }

    /// Enters a hold, and returns when to look at it, and whether the keeper is to watch its lock from now
    /// on. `place`: that of the waiter that was granted the lock; it is left. `None`: the grant does not
    /// count, see [`Machine::counts`](crate::engine::lock::Machine::counts).
    pub(crate) fn insert(
        &self,
        (hold, mut own): (&Arc<Hold>, State),
        terms: Option<CacheTerms>,
        place: &mut Option<QueuePlace>,
        clock: &Clock,
    ) -> Option<(Moment, bool)> {
        let slot = slot_of(hold, &own, hold.since());
        let mut state = hold.local().state();
        let at = state.at(clock.now());
        if !state.counts(&own, at.now) {
            return None;
        }
        self.grants.fetch_add(1, Ordering::Relaxed);
        let mut timer_queue = self.timer_queue.lock();
        timer_queue.put(hold, &mut own, slot);
        let (lost, is_new) = state.enter(own, terms, at);
        lost.into_iter().for_each(|lost| timer_queue.remove(lost));
        drop(timer_queue);
        place.take().into_iter().for_each(|place| place.leave_granted(&mut state));
        Some((slot.moment(), is_new))
    }

    pub(crate) fn note_grant(&self) {
        self.grants.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn timer_queue(&self) -> MutexGuard<'_, TimerQueue> {
        self.timer_queue.lock()
    }

    /// Makes the timer look at a hold in time, whatever has changed about it; returns when. `earlier`: unless
    /// it looks sooner anyway.
    pub(crate) fn put(&self, hold: &Arc<Hold>, earlier: bool, now: Moment) -> Moment {
        let put = |state: &mut State| {
            let slot = slot_of(hold, state, now);
            if !earlier || slot.moment() < state.slot.moment() {
                self.timer_queue.lock().put(hold, state, slot);
            }
            slot.moment()
        };
        hold.with(put).unwrap_or_else(|| {
            self.timer_queue.lock().forget(hold);
            Moment::NEVER
        })
    }

    /// Holds that end with something of the store's own.
    pub(crate) fn bound(&self) -> Vec<Arc<Hold>> {
        self.all_holds().into_iter().filter(|hold| hold.is_bound()).collect()
    }

    fn all_holds(&self) -> Vec<Arc<Hold>> {
        let mut holds = Vec::new();
        for local in self.all() {
            holds.extend(local.state().holds.iter().map(|own| Arc::clone(&own.hold)));
        }
        holds
    }

    /// Keeps a thread's hold that ran out, until `LAPSED` more have.
    pub(crate) fn remember_lapsed(&self, hold: &Arc<Hold>) {
        let mut lapsed = self.lapsed.lock();
        lapsed.push_back(Arc::downgrade(hold));
        let oldest = if lapsed.len() > LAPSED { lapsed.pop_front() } else { None };
        drop(lapsed);
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            self.remove(&oldest);
        }
    }

    /// The hand-off to this waiter is settled: see [`Machine::received`](crate::engine::lock::Machine::received).
    pub(crate) fn received(&self, place: &QueuePlace, is_refused: bool) {
        place.received(is_refused).into_iter().for_each(|own| self.timer_queue.lock().remove(own));
    }

    /// Notifies the head of the queue that the lock may be free.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        self.remove_ended(hold, None);
    }

    /// As `remove`. `released`: when a true release ended the hold, and which other clients it notified.
    pub(crate) fn remove_ended(&self, hold: &Arc<Hold>, released: Option<(Others, Moment)>) {
        let mut state = hold.local().state();
        let taken = state.remove(hold.serial(), released);
        taken.into_iter().for_each(|own| self.timer_queue.lock().remove(own));
        state.forget_if_unused();
        drop(state);
        if let Some((_, now)) = released.filter(|(others, _)| *others != Others::Nobody) {
            self.remember(hold.local(), now);
        }
    }

    /// The lock may be free.
    pub(crate) fn nudge(&self, kind: Kind, name: &Arc<LockName>) {
        if let Some(local) = self.found(kind, name) {
            local.nudge();
        }
    }

    #[cfg(test)]
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.all_holds()
    }

    /// At most `most` holds and waits, and how many locks have more. Takes one lock's mutex at a time.
    pub(crate) fn uses(&self, most: usize, now: Moment) -> (Vec<LockUse>, u64) {
        let (mut uses, mut unlisted) = (Vec::new(), 0);
        for local in self.all() {
            let state = local.state();
            if state.holds.is_empty() && state.queue.is_empty() {
                continue; // a value that nobody uses
            }
            let room = most.saturating_sub(uses.len());
            if room == 0 {
                unlisted += 1;
                continue;
            }
            let used = |owner: u64, thread: &str, since: Moment, waits: bool| LockUse {
                is_waiting: waits,
                ..LockUse::new(local.key.name.key(), owner, thread, now.since(since))
            };
            let is_live = |own: &&State| !own.hold.is_cached() && own.hold.loss_at(now).is_none();
            let held = state.holds.iter().take(room).filter(is_live);
            uses.extend(held.map(|state| {
                let hold = &state.hold;
                let thread = hold.holder.thread();
                let name = thread.as_ref().map_or("", |thread| thread.name());
                let used = used(hold.owner().number(), name, hold.since(), false);
                LockUse { is_leader: hold.leads, ends: !hold.is_renewed_in(state), ..used }
            }));
            let room = most.saturating_sub(uses.len());
            let mut waiting = state.queue.iter().filter_map(|ticket| ticket.waiter.sleeper());
            let (named, before) = (waiting.by_ref().take(room), uses.len());
            uses.extend(named.map(|one| used(one.number, one.thread.name(), one.since, true)));
            if let Some(last) = uses.get_mut(before..).and_then(<[LockUse]>::last_mut) {
                last.more_waiters = u64::try_from(waiting.count()).unwrap_or(u64::MAX);
            }
        }
        (uses, unlisted)
    }

    /// All holds now, and how many there ever were.
    pub(crate) fn counted(&self) -> (Vec<Arc<Hold>>, u64) {
        (self.all_holds(), self.grants.load(Ordering::Relaxed))
    }

    pub(crate) fn holds_of(&self, kind: Kind, name: &Arc<LockName>) -> Vec<Arc<Hold>> {
        let holds =
            |local: Arc<LocalLock>| local.state().holds.iter().map(|own| Arc::clone(&own.hold)).collect();
        self.found(kind, name).map(holds).unwrap_or_default()
    }

    /// Takes all holds out and wakes all waiters.
    pub(crate) fn clear(&self) -> Vec<Arc<Hold>> {
        let (mut holds, mut recalls) = (Vec::new(), Vec::new());
        for local in self.all() {
            let mut state = local.state();
            // No hold of the thread, of whichever client, may follow under a number in doubt.
            for own in state.clear() {
                holds.push(Arc::clone(&own.hold));
                self.timer_queue.lock().remove(own);
            }
            recalls.extend(state.end_caching());
            state.queue.wake_all();
        }
        drop(recalls); // where no local lock is locked: a store has locks of its own
        holds
    }
}
