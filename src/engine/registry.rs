//! All that a client has by lock: its holds, and its waiters.
//!
//! The watchdog renews the holds that are here, and no others.

mod stuck;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::directory::LockUse;
use crate::engine::hold::local_lock::{LockKey, Locks, REMEMBERED};
use crate::engine::hold::{Hold, LocalLock, QueuePlace, State};
use crate::engine::lock::CacheTerms;
use crate::engine::policy::renewal_period;
use crate::fork::is_forked;
use crate::ident::LockName;
use crate::seam::{Kind, Others};
use crate::sync::Mutex;
use crate::time::{Clock, Moment};

/// Order of mutexes: a local lock's, the timer table's, `remembered`. Only [`stuck`](Registry::stuck) locks
/// two entries.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    locks: Arc<Locks>,
    grants: AtomicU64,
    /// Holds of threads that ran out, and that their threads may still ask for.
    lapsed: Mutex<VecDeque<Weak<Hold>>>,
    /// Locks that are remembered without any value: other clients waited for them, or this client caches
    /// them.
    remembered: Mutex<Vec<Arc<LocalLock>>>,
    /// When to go through them next, as `Moment::nanos`; zero: there are none.
    tidy_at: AtomicU64,
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
        let mut locks = self.locks.by_key.lock();
        if let Some(local) = locks.get(&key).and_then(Weak::upgrade) {
            return local;
        }
        let local = LocalLock::new(key.clone(), &self.locks);
        locks.insert(key, Arc::downgrade(&local));
        local
    }

    /// `None`: no value or hold here has one.
    pub(crate) fn found(&self, kind: Kind, name: &Arc<LockName>) -> Option<Arc<LocalLock>> {
        self.locks.by_key.lock().get(&LockKey::new(kind, name))?.upgrade()
    }

    pub(crate) fn of_thread(&self, kind: Kind, name: &Arc<LockName>, thread: u64) -> Option<Arc<Hold>> {
        self.found(kind, name)?.of_thread(thread)
    }

    /// Looked at outside of the mutex, which all who make a value wait for.
    fn all(&self) -> Vec<Arc<LocalLock>> {
        self.locks.by_key.lock().values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn note_released(&self, hold: &Arc<Hold>, others: Others, now: Moment) {
        hold.local().state().note_released(others, now);
        if others != Others::Nobody {
            self.remember(hold.local(), now);
        }
    }

    /// A program may make a value for each use.
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

    /// Enters a hold, and returns when to look at it. `place`: that of the waiter that was granted the lock; it is left. `None`: the grant does not
    /// count, see [`Machine::counts`](crate::engine::lock::Machine::counts).
    pub(crate) fn insert(
        &self,
        (hold, mut own): (&Arc<Hold>, State),
        terms: Option<CacheTerms>,
        place: &mut Option<QueuePlace>,
        clock: &Clock,
    ) -> Option<Moment> {
        own.look_at = next_look(hold, &own, hold.since());
        let look = own.look_at;
        let mut state = hold.local().state();
        let at = state.at(clock.now());
        if !state.counts(&own, at.now) {
            return None;
        }
        self.grants.fetch_add(1, Ordering::Relaxed);
        let lost = state.enter(own, terms, at);
        hold.local().look_by(&mut state, look);
        place.take().into_iter().for_each(|place| place.leave_granted(&mut state));
        drop(state);
        drop(lost);
        Some(look)
    }

    pub(crate) fn note_grant(&self) {
        self.grants.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns when the timer looks.
    pub(crate) fn look_in_time(&self, hold: &Arc<Hold>, now: Moment) -> Moment {
        let mut state = hold.local().state();
        let Some(own) = state.state_of(hold.serial()) else { return Moment::NEVER };
        let look = next_look(hold, own, now);
        own.look_at = look;
        hold.local().look_by(&mut state, look);
        look
    }

    pub(crate) fn take_due(&self, by: Moment, most: usize) -> Vec<Arc<LocalLock>> {
        self.locks.timer_table.lock().take_due(by, most)
    }

    /// When the timer looks at the first lock that is held. Others are taken out of its table.
    pub(crate) fn first_look(&self) -> Moment {
        loop {
            let first = self.locks.timer_table.lock().first();
            let Some((at, local)) = first else { return Moment::NEVER };
            match local.upgrade() {
                Some(local) if !local.state().holds.is_empty() => return at,
                Some(local) => local.look_in_time(),
                None => self.locks.timer_table.lock().remove(local.as_ptr(), Some(at)), // it is being dropped
            }
        }
    }

    pub(crate) fn renewed(&self, now: Moment) -> Vec<Arc<Hold>> {
        let is_renewed = |hold: &Arc<Hold>| hold.is_renewable() && hold.stands(now) && !hold.is_orphaned();
        self.all_holds().into_iter().filter(is_renewed).collect()
    }

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

    pub(crate) fn remember_lapsed(&self, hold: &Arc<Hold>) {
        let mut lapsed = self.lapsed.lock();
        lapsed.push_back(Arc::downgrade(hold));
        let oldest = if lapsed.len() > LAPSED { lapsed.pop_front() } else { None };
        drop(lapsed);
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            self.remove(&oldest);
        }
    }

    /// Notifies the head of the queue that the lock may be free.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        self.remove_ended(hold, None);
    }

    /// As `remove`. `released`: when a true release ended the hold, and which other clients it notified.
    pub(crate) fn remove_ended(&self, hold: &Arc<Hold>, released: Option<(Others, Moment)>) {
        let mut state = hold.local().state();
        let taken = state.remove(hold.serial(), released);
        state.forget_if_unused();
        drop(state);
        drop(taken);
        if let Some((_, now)) = released.filter(|(others, _)| *others != Others::Nobody) {
            self.remember(hold.local(), now);
        }
    }

    pub(crate) fn nudge(&self, kind: Kind, name: &Arc<LockName>) {
        if let Some(local) = self.found(kind, name) {
            local.state().queue.nudge();
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
            let is_live = |own: &&State| !own.hold.is_cached() && own.hold.loss_at(now).is_none();
            let held = state.holds.iter().take(room).filter(is_live);
            uses.extend(held.map(|state| shown(&local.key, state, now)));
            let room = most.saturating_sub(uses.len());
            let mut waiting = state.queue.iter().filter_map(|ticket| ticket.waiter.sleeper());
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

    pub(crate) fn counted(&self) -> (Vec<Arc<Hold>>, u64) {
        (self.all_holds(), self.grants.load(Ordering::Relaxed))
    }

    pub(crate) fn holds_of(&self, kind: Kind, name: &Arc<LockName>) -> Vec<Arc<Hold>> {
        let holds =
            |local: Arc<LocalLock>| local.state().holds.iter().map(|own| Arc::clone(&own.hold)).collect();
        self.found(kind, name).map(holds).unwrap_or_default()
    }

    pub(crate) fn clear(&self) -> Vec<Arc<Hold>> {
        let (mut holds, mut recalls) = (Vec::new(), Vec::new());
        for local in self.all() {
            let mut state = local.state();
            holds.extend(state.clear().into_iter().map(|own| own.hold));
            recalls.extend(state.end_caching());
            state.queue.wake_all();
        }
        drop(recalls); // where no local lock is locked: a store has locks of its own
        holds
    }
}

/// A hold, as an entry shows it.
fn shown(key: &LockKey, state: &State, now: Moment) -> LockUse {
    let hold = &state.hold;
    let thread = hold.holder.thread();
    let name = thread.as_ref().map_or("", |thread| thread.name());
    let used = LockUse::new(key.name.key(), hold.owner().number(), name, now.since(hold.since()));
    LockUse { is_leader: hold.leads, ends: !hold.is_renewed_in(state), ..used }
}

/// When the timer has to look at a hold, as of `now`.
fn next_look(hold: &Hold, state: &State, now: Moment) -> Moment {
    let (soon, lease) = (now.plus(Duration::from_millis(1)), hold.renewed_lease());
    if state.has_lapsed {
        return now.plus(lease); // its thread may end without asking for it
    }
    if hold.is_releasing() {
        return now.plus(renewal_period(lease));
    }
    let until = hold.until();
    // The watchdog renews it, and does not have it yet.
    let (due, is_renewed) = (hold.due_in(state), hold.is_renewable_in(state) && !state.is_queued);
    if is_renewed && due < until && !hold.is_orphaned() {
        return due.max(soon);
    }
    if !hold.is_of_any_thread() {
        return until.max(soon);
    }
    // Now and then whether the thread lives: less and less often the longer it still has.
    let check = now.plus(renewal_period(lease).max(until.since(now) / 16));
    until.min(check).max(soon)
}
