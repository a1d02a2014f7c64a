//! One lock in this process: its state under its mutex, and what its values, holds and waiters do with it.
//!
//! One local lock for each lock, however many values stand for it. Each value and each hold has it.

use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::handoff::PendingHandoff;
use crate::engine::hold::{Hold, State};
use crate::engine::lock::caching::RULES;
use crate::engine::lock::{At, End, Found, Look, Machine, Next, Reuse, TicketId, Watched, Wish, Withdrawn};
use crate::engine::timer_table::TimerTable;
use crate::engine::waiter::{LocalWaiter, Sleeper, Wait};
use crate::error::Error;
use crate::fork::is_forked;
use crate::ident::LockName;
use crate::seam::capabilities::CachedCheck;
use crate::seam::subscription::Subscription;
use crate::seam::{Claim, Family, Kind};
use crate::shrink::CrowdMap;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::time::Moment;

/// A lock: kinds that are one lock in the store are one here.
#[derive(Debug, Clone)]
pub(crate) struct LockKey {
    pub(crate) family: Family,
    pub(crate) name: Arc<LockName>,
}

impl LockKey {
    pub(crate) fn new(kind: Kind, name: &Arc<LockName>) -> LockKey {
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

#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// Found by the hash that each name has.
    pub(crate) by_key: Mutex<CrowdMap<LockKey, Weak<LocalLock>, BuildHasherDefault<OwnHash>>>,
    pub(crate) timer_table: Mutex<TimerTable<LocalLock>>,
}

#[derive(Debug)]
pub(crate) struct LocalLock {
    pub(crate) key: LockKey,
    state: Mutex<LockState>,
    /// The keeper watches the lock. Cleared under the mutex.
    is_watched: AtomicBool,
    /// The registry's, which this local lock leaves when it is dropped.
    locks: Arc<Locks>,
}

#[derive(Debug, Default)]
pub(crate) struct LockState {
    machine: Machine<Arc<Hold>, LocalWaiter>,
    /// The channel of recalls, once holds may stay until one.
    recalls: Option<Subscription>,
    /// Since when the head has had only failures, and the last one. The waiters behind it share them.
    failure: Option<(Moment, Error)>,
    /// The registry keeps the local lock until then, even if no value refers to it.
    remembered_until: Option<Moment>,
    look_at: Option<Moment>,
}

/// A lock is remembered at least for this time after it was contended or cached.
pub(crate) const REMEMBERED: Duration = RULES.contended;

impl Deref for LockState {
    type Target = Machine<Arc<Hold>, LocalWaiter>;

    fn deref(&self) -> &Machine<Arc<Hold>, LocalWaiter> {
        &self.machine
    }
}

impl DerefMut for LockState {
    fn deref_mut(&mut self) -> &mut Machine<Arc<Hold>, LocalWaiter> {
        &mut self.machine
    }
}

impl LocalLock {
    pub(crate) fn new(key: LockKey, locks: &Arc<Locks>) -> Arc<LocalLock> {
        let (state, is_watched) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(LocalLock { key, state, is_watched, locks: Arc::clone(locks) })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LockState> {
        self.state.lock()
    }

    pub(crate) fn look_by(self: &Arc<LocalLock>, state: &mut LockState, moment: Moment) {
        if state.look_at.is_none_or(|at| moment < at) {
            self.locks.timer_table.lock().put(self, &mut state.look_at, Some(moment));
        }
    }

    /// Has the timer look at the lock when the first of its holds needs that.
    pub(crate) fn look_in_time(self: &Arc<LocalLock>) {
        let mut state = self.state();
        let next = state.holds.iter().map(|own| own.look_at).min();
        self.locks.timer_table.lock().put(self, &mut state.look_at, next);
    }

    pub(crate) fn of_thread(&self, thread: u64) -> Option<Arc<Hold>> {
        self.state().machine.of_thread(thread).cloned()
    }

    /// See [`Machine::find`]. With the result comes the caller's place at the head of the queue of an
    /// uncontended lock, if it waits.
    pub(crate) fn find(
        self: &Arc<LocalLock>,
        thread: Option<u64>,
        wish: Wish,
        may_use: impl FnOnce(&Hold, Reuse) -> bool,
        now: Moment,
    ) -> (Found<Arc<Hold>>, Option<QueuePlace>) {
        let mut state = self.state();
        let at = state.at(now);
        let found = state.find(thread, wish, |hold, reuse| may_use(hold, reuse), at);
        if let Found::Cached(hold, _) = &found {
            hold.begin_again(now);
        }
        let joins = wish.waits && matches!(found, Found::Uncontended);
        let place = joins.then(|| self.place(&mut state, false));
        (found, place)
    }

    pub(crate) fn is_uncontended(&self, now: Moment) -> bool {
        let state = self.state();
        state.is_uncontended(state.at(now))
    }

    /// Ends a level of the hold of this thread and task, as [`Machine::end`] does; `None`: there is no such
    /// hold.
    pub(crate) fn end_of_thread(
        &self,
        thread: u64,
        may_stay: impl FnOnce(&State) -> Option<bool>,
        now: Moment,
    ) -> Option<(Arc<Hold>, Option<End>)> {
        let mut state = self.state();
        let hold = state.machine.of_thread(thread).filter(|hold| hold.holder.is_this_task()).cloned()?;
        let ended = state.end_level(&hold, None, may_stay, now);
        Some((hold, ended))
    }

    pub(crate) fn end(
        &self,
        hold: &Arc<Hold>,
        level: Option<u64>,
        may_stay: impl FnOnce(&State) -> Option<bool>,
        now: Moment,
    ) -> Option<End> {
        self.state().end_level(hold, level, may_stay, now)
    }

    /// Pairs with `find`.
    pub(crate) fn give_back(&self, thread: Option<u64>, now: Moment) -> Option<(Arc<Hold>, Option<Next>)> {
        let mut state = self.state();
        let at = state.at(now);
        state.machine.give_back(thread, at)
    }

    /// The recalls so far, if all are heard. `listen` begins to listen if nobody does; then none is heard
    /// yet.
    pub(crate) fn heard(&self, now: Moment, listen: impl FnOnce() -> Option<Subscription>) -> Option<u64> {
        let state = self.state();
        if state.recalls.is_some() {
            return state.caching.heard(state.at(now));
        }
        drop(state);
        self.listen(listen);
        None
    }

    pub(crate) fn listen(&self, listen: impl FnOnce() -> Option<Subscription>) {
        if self.state().recalls.is_some() {
            return;
        }
        let recalls = listen(); // without the mutex: a store has locks of its own
        let mut state = self.state();
        let not_needed = match &state.recalls {
            None => std::mem::replace(&mut state.recalls, recalls),
            Some(_) => recalls,
        };
        drop(state);
        drop(not_needed);
    }

    pub(crate) fn hears(&self) -> bool {
        self.state().holds.iter().any(|own| own.hears.is_some())
    }

    /// Whether the keeper does not watch the lock yet, which has something to be watched.
    pub(crate) fn begin_watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn watch(&self, is_waited_for: bool, now: Moment) -> Watched<Arc<Hold>> {
        let mut state = self.state();
        let is_deaf = state.recalls.as_ref().is_none_or(Subscription::is_refused);
        let at = state.at(now);
        let watched = state.machine.watch(at, is_deaf, is_waited_for);
        let is_over = matches!(watched, Watched::Over);
        if is_over {
            self.is_watched.store(false, Ordering::SeqCst);
        }
        let not_needed = if is_over && !state.caching.may_cache { state.recalls.take() } else { None };
        drop(state);
        drop(not_needed);
        watched
    }

    pub(crate) fn note_checked(
        &self,
        hold: &Hold,
        answer: CachedCheck,
        now: Moment,
    ) -> Option<(Arc<Hold>, Option<Next>)> {
        let mut state = self.state();
        let at = state.at(now);
        state.machine.note_checked(hold.serial(), answer, at)
    }

    /// Keeps the local lock until then without any value; returns whether it was not kept yet.
    pub(crate) fn remember(&self, until: Moment) -> bool {
        let mut state = self.state();
        let before = state.remembered_until;
        state.remembered_until = before.max(Some(until));
        before.is_none()
    }

    pub(crate) fn is_forgotten(&self, now: Moment) -> bool {
        let mut state = self.state();
        if !state.is_contended(state.at(now)) {
            state.contended = None;
        }
        state.remembered_until.take_if(|until| *until <= now);
        state.remembered_until.is_none()
    }

    pub(crate) fn offer_of(&self, ticket: TicketId) -> Option<Claim> {
        self.state().queue.get(ticket)?.waiter.offer.clone()
    }

    /// The hand-off of this hold is on its way. `Some`: its waiter has gone, by a panic.
    pub(crate) fn sent(&self, hold: &Hold, handoff: PendingHandoff) -> Option<PendingHandoff> {
        match self.state().machine.sent(hold.serial()) {
            Some(waiter) => {
                waiter.handed = Some(handoff);
                None
            }
            None => Some(handoff),
        }
    }

    pub(crate) fn join(self: &Arc<LocalLock>, spins: bool) -> QueuePlace {
        self.place(&mut self.state(), spins)
    }

    fn place(self: &Arc<LocalLock>, state: &mut LockState, spins: bool) -> QueuePlace {
        let ticket = TicketId(TICKETS.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let waiter = LocalWaiter::default();
        let wait = Arc::clone(&waiter.wait);
        state.queue.join(ticket, waiter, spins);
        QueuePlace { local: Arc::clone(self), ticket, wait, has_left: false }
    }

    #[cfg(leasehold_shuttle)]
    pub(crate) fn waiting(&self) -> usize {
        self.state().queue.len()
    }

    /// The head of the queue has had only failures since then; `None`: the store answers.
    pub(crate) fn note_failure(&self, failure: Option<(Moment, Error)>) {
        let mut state = self.state();
        if !state.queue.is_empty() {
            state.failure = failure;
        }
    }

    /// The last failure, if the head has had only failures for as long as `retry_timeout`.
    pub(crate) fn spent_retry_budget(&self, retry_timeout: Duration, now: Moment) -> Option<Error> {
        let state = self.state();
        let (since, error) = state.failure.as_ref()?;
        (now.since(*since) >= retry_timeout).then(|| error.copy())
    }
}

static TICKETS: AtomicU64 = AtomicU64::new(0);

impl LockState {
    pub(crate) fn at(&self, now: Moment) -> At<'static> {
        // Looks first, counts second: each change of `is_up` is counted, see `Channel::set_up`.
        let recalls =
            self.recalls.as_ref().filter(|recalls| recalls.is_up()).map(Subscription::message_count);
        At { now, recalls, rules: &RULES }
    }

    fn end_level(
        &mut self,
        hold: &Arc<Hold>,
        level: Option<u64>,
        may_stay: impl FnOnce(&State) -> Option<bool>,
        now: Moment,
    ) -> Option<End> {
        let at = self.at(now);
        let end = self.machine.end(hold.serial(), level, may_stay, at)?;
        if end.is_guards {
            hold.note_spent_guard();
        }
        Some(end)
    }

    pub(crate) fn forget_if_unused(&mut self) {
        if self.queue.is_empty() {
            self.failure = None;
        }
        self.machine.forget_if_unused();
    }

    /// The client ends. Returns what must be dropped without any mutex.
    pub(crate) fn end_caching(&mut self) -> Option<Subscription> {
        self.recalls.take()
    }
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        if is_forked() {
            return; // another thread of the parent may have had the mutex
        }
        let look_at = self.state().look_at;
        self.locks.timer_table.lock().remove(self, look_at);
        let mut locks = self.locks.by_key.lock();
        // Another entry may have been made for the lock meanwhile.
        if locks.get(&self.key).is_some_and(|local| local.strong_count() == 0) {
            locks.remove(&self.key);
        }
    }
}

/// A thread's place in a lock's queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    local: Arc<LocalLock>,
    ticket: TicketId,
    wait: Arc<Wait>,
    has_left: bool,
}

impl QueuePlace {
    pub(crate) fn wait(&self) -> &Arc<Wait> {
        &self.wait
    }

    pub(crate) fn is_head(&self) -> bool {
        self.local.state().queue.get(self.ticket).is_some_and(|ticket| ticket.is_head)
    }

    pub(crate) fn note_sleeper(&self, sleeper: Sleeper) -> bool {
        let mut state = self.local.state();
        state.queue.get_mut(self.ticket).is_some_and(|ticket| ticket.waiter.note_sleeper(sleeper))
    }

    pub(crate) fn look(&self, all_ask: bool, asks_for_itself: bool, now: Moment) -> Look {
        let mut state = self.local.state();
        // Also if the releaser no longer waits for the outcome.
        let is_handed = state.queue.get(self.ticket).is_some_and(|ticket| ticket.waiter.handed.is_some());
        if is_handed { Look::Receive } else { state.look(self.ticket, all_ask, asks_for_itself, now) }
    }

    /// See [`Machine::sleep`]. `offer`: the claim under which the lock can be handed to it. Returns whether it is
    /// the head; `None`: something has changed since it looked.
    pub(crate) fn sleep(&self, offer: Option<Claim>, for_head: bool) -> Option<bool> {
        let mut state = self.local.state();
        if !state.sleep(self.ticket, offer.is_some(), for_head) {
            return None;
        }
        let ticket = state.queue.get_mut(self.ticket)?;
        ticket.waiter.offer = offer;
        Some(ticket.is_head)
    }

    /// Whether something has changed since it looked.
    #[cfg(all(test, not(leasehold_shuttle)))]
    pub(crate) fn has_word(&self) -> bool {
        self.local.state().queue.get_mut(self.ticket).is_some_and(|ticket| std::mem::take(&mut ticket.word))
    }

    /// See [`Machine::withdraw`]. The lock, if it is on its way, is to be received.
    pub(crate) fn withdraw(&self) -> (Withdrawn, Option<PendingHandoff>) {
        let mut state = self.local.state();
        let withdrawn = state.withdraw(self.ticket);
        (withdrawn, state.queue.get_mut(self.ticket).and_then(|ticket| ticket.waiter.handed.take()))
    }

    pub(crate) fn received(&self, is_refused: bool) -> Option<State> {
        self.local.state().received(self.ticket, is_refused)
    }

    /// Leaves the queue by a grant. The hold is already in `state`, which the caller has locked: the next
    /// head sees a hold to wait for.
    pub(crate) fn leave_granted(mut self, state: &mut LockState) {
        drop(state.queue.leave(self.ticket));
        self.has_left = true;
    }

    pub(crate) fn takes_queue_place(&self) -> bool {
        self.local.state().takes_queue_place()
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        let mut state = self.local.state();
        let left = state.machine.leave(self.ticket);
        state.forget_if_unused();
        drop(state);
        drop(left); // a hand-off that was not received settles its releaser, without the mutex
    }
}

/// Uses the hash that a key brings along.
#[derive(Debug, Default)]
pub(crate) struct OwnHash(u64);

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::hold::{Grant, Holder};
    use crate::engine::lock::Then;
    use crate::error::ErrorKind;
    use crate::ident::{ClientId, Owner};
    use crate::seam::Others;
    use crate::time::Lease;

    fn local() -> Arc<LocalLock> {
        let name = Arc::new(LockName::new(&"a".into(), "a".to_owned()).unwrap());
        LocalLock::new(LockKey::new(Kind::Mutex, &name), &Arc::default())
    }

    /// A hold on the lock, asked for at the beginning.
    fn entered(local: &Arc<LocalLock>) -> Arc<Hold> {
        let owner = Owner::new(ClientId::random(), 1);
        let lease = Duration::from_secs(30);
        let grant = Grant {
            claim: Claim::new(Kind::Mutex, &local.key.name, owner, lease),
            holder: Holder::Guard { taker: None },
            sent: at(0),
            lease: Lease::Renewed,
            renewed_lease: lease,
            ceiling: None,
            fence: None,
            bound: None,
            may_be_cached: true,
            asks_to_cache: false,
            leads: false,
        };
        let (hold, own, _level) = Hold::new(grant, local);
        let at = local.state().at(at(0));
        let _entered = local.state().enter(own, None, at);
        hold
    }

    /// The end of the hold's last level, in a time slice in which its thread comes back at once.
    fn end(local: &Arc<LocalLock>, hold: &Arc<Hold>) -> Then {
        let mut state = local.state();
        let at = state.at(at(0));
        state.caching.begin(2, at);
        state.caching.count_on_return();
        drop(state);
        local.end(hold, None, |_| Some(true), at.now).unwrap().then
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(0).plus(Duration::from_millis(ms))
    }

    #[test]
    fn a_hold_that_was_taken_out_is_not_cached() {
        let local = local();
        let hold = entered(&local);
        assert!(matches!(end(&local, &hold), Then::Cached(_)));
        local.state().take_out(hold.serial());
        assert!(local.end(&hold, None, |_| Some(true), at(0)).is_none());
        assert!(local.give_back(None, at(0)).is_none());
    }

    #[test]
    fn earlier_waiters_failures_end_no_later_wait() {
        let local = local();
        let failure = || Some((at(0), Error::new(ErrorKind::Unreachable, "lock", "not there")));
        let retry_timeout = Duration::from_millis(10);
        let first = local.join(false);
        local.note_failure(failure());
        assert!(local.spent_retry_budget(retry_timeout, at(10)).is_some());
        local.note_failure(None);
        assert!(local.spent_retry_budget(retry_timeout, at(10)).is_none(), "the store answers");
        local.note_failure(failure());
        drop(first);
        local.note_failure(failure()); // of a caller that has left the queue
        let _later = local.join(false);
        assert!(local.spent_retry_budget(retry_timeout, at(10)).is_none());
    }

    #[test]
    fn the_last_release_decides_whether_a_lock_is_contended() {
        let (local, forgotten) = (local(), 2 * u64::try_from(RULES.contended.as_millis()).unwrap());
        for begun in [0, forgotten] {
            local.state().note_released(Others::Listen(2), at(begun));
            assert!(local.remember(at(begun).plus(REMEMBERED)));
            assert!(!local.remember(at(begun + 1).plus(REMEMBERED)), "which it is already");
            assert!(!local.is_forgotten(at(begun + 2)) && !local.is_uncontended(at(begun + 2)));
            assert!(local.is_forgotten(at(begun + forgotten)));
        }
        local.state().note_released(Others::Listen(2), at(forgotten * 3));
        local.state().note_released(Others::Nobody, at(forgotten * 3 + 1));
        assert!(local.state().contended.is_none() && local.is_uncontended(at(forgotten * 3 + 2)));
    }

    #[test]
    fn the_queue_place_is_left_once() {
        let local = local();
        local.state().queued = true;
        let place = local.join(false);
        assert!(place.takes_queue_place() && !place.takes_queue_place());
        local.state().queued = true;
        let other = local.join(false);
        assert!(!place.takes_queue_place(), "others here wait in it");
        drop((place, other));
        assert!(!local.join(false).takes_queue_place(), "it was left with the last of them");
    }

    #[test]
    fn the_timer_wakes_when_the_first_hold_is_due() {
        let local = local();
        let locks = Arc::clone(&local.locks);
        let first = || locks.timer_table.lock().first().map(|(at, _)| at);
        for (look, by) in [(9, 9), (5, 5), (7, 5)] {
            local.look_by(&mut local.state(), at(look));
            assert_eq!(first(), Some(at(by)));
        }
        assert!(local.locks.timer_table.lock().take_due(at(4), 1).is_empty());
        assert_eq!(local.locks.timer_table.lock().take_due(at(5), 1).len(), 1);
        let holds = [entered(&local), entered(&local)];
        for (hold, look) in holds.iter().zip([8, 6]) {
            hold.with(|own| own.look_at = at(look));
        }
        local.look_in_time();
        assert_eq!(first(), Some(at(6)));
        holds.iter().for_each(|hold| drop(local.state().take_out(hold.serial())));
        assert_eq!(first(), Some(at(6)), "a hold that ends touches nothing");
        local.look_in_time();
        assert_eq!(first(), None);
        local.look_by(&mut local.state(), at(1));
        drop((holds, local));
        assert!(locks.timer_table.lock().first().is_none(), "it has left with its last value");
    }

    #[test]
    fn removing_a_hold_leaves_the_others() {
        let local = local();
        let holds = [entered(&local), entered(&local)];
        local.state().take_out(holds[0].serial());
        assert!(local.state().held_here(at(0)).is_some());
        local.state().take_out(holds[1].serial());
        assert!(local.state().held_here(at(0)).is_none());
    }
}
