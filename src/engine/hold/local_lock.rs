//! One lock in this process. All lock values and holds of the same lock share it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::hold::{Hold, State};
use crate::engine::lock::caching::RULES;
use crate::engine::lock::{At, Found, Machine, TicketId, Watched};
use crate::engine::waiter::{LocalWaiter, Wait};
use crate::error::Error;
use crate::fork::is_forked;
use crate::ident::{LockName, Owner, ThreadMarker};
use crate::seam::subscription::Subscription;
use crate::seam::{Family, Kind};
use crate::shrink::CrowdMap;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::time::{Clock, Moment};

/// The key of a lock. Kinds of one family are one lock in the store, so they have the same key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LockKey {
    pub(crate) family: Family,
    pub(crate) name: Arc<LockName>,
}

impl LockKey {
    pub(crate) fn new(kind: Kind, name: &Arc<LockName>) -> LockKey {
        LockKey { family: kind.family(), name: Arc::clone(name) }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Locks {
    pub(crate) by_key: Mutex<CrowdMap<LockKey, Weak<LocalLock>>>,
    pub(crate) timer_table: Mutex<TimerTable>,
}

#[derive(Debug)]
pub(crate) struct LocalLock {
    pub(crate) key: LockKey,
    state: Mutex<LockState>,
    /// Whether the cache thread watches the lock. Cleared under the mutex.
    pub(crate) is_watched: AtomicBool,
    /// The registry's table, which this local lock leaves when it is dropped.
    locks: Arc<Locks>,
}

pub(crate) type LockState = Machine<Arc<Hold>, LocalWaiter, Beside>;

#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// The subscription to recalls, while a hold may be cached until a recall, or hears of waiters.
    pub(crate) recalls: Option<Subscription>,
    /// Whether the lock caches holds until a recall, so that the subscription stays between two holds.
    keeps_recalls: bool,
    /// Since when the queue's head has had only failures, and the last failure. All waiters share both.
    failure: Option<(Moment, Error)>,
    check_at: Option<Moment>,
}

/// For this long after a lock was contended or cached, the client keeps its local lock, even unused.
pub(crate) const REMEMBERED: Duration = RULES.contended;

impl LocalLock {
    pub(crate) fn new(key: LockKey, locks: &Arc<Locks>) -> Arc<LocalLock> {
        let (state, is_watched) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(LocalLock { key, state, is_watched, locks: Arc::clone(locks) })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LockState> {
        self.state.lock()
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.state.is_locked()
    }

    /// Retires an owner number of a thread, because a request under the number may still arrive.
    pub(crate) fn retire(&self, thread: &ThreadMarker, owner: Owner) {
        self.state().retired.add(owner.number());
        thread.retire(owner.number());
    }

    pub(crate) fn on<R>(&self, now: Moment, event: impl FnOnce(&mut LockState, At<'static>) -> R) -> R {
        let mut state = self.state();
        let at = state.at(now);
        event(&mut state, at)
    }

    pub(crate) fn check_by(self: &Arc<LocalLock>, state: &mut LockState, moment: Moment) {
        if state.beside.check_at.is_none_or(|at| moment < at) {
            self.locks.timer_table.lock().put(self, &mut state.beside.check_at, Some(moment));
        }
    }

    /// Enters a hold, gives up the waiter's `place` in the queue, and returns when the timer checks the hold.
    /// `None`: the grant cannot be used, see [`Machine::counts`].
    pub(crate) fn enter(
        self: &Arc<LocalLock>,
        mut own: State,
        place: &mut Option<QueuePlace>,
        clock: &Clock,
    ) -> Option<Moment> {
        let look = own.next_check(own.hold.since());
        own.check_at = look;
        let mut state = self.state();
        if !state.counts(&own, clock.now()) {
            return None;
        }
        let lost = state.enter(own);
        self.check_by(&mut state, look);
        // The hold is in `state` already, so the next head finds it and waits.
        if let Some(mut place) = place.take() {
            drop(state.queue.leave(place.ticket));
            place.has_left = true;
        }
        drop(state);
        drop(lost);
        Some(look)
    }

    pub(crate) fn plan_check(self: &Arc<LocalLock>) {
        let mut state = self.state();
        let next = state.holds.iter().map(|own| own.check_at).min();
        self.locks.timer_table.lock().put(self, &mut state.beside.check_at, next);
    }

    pub(crate) fn holds_to_check(&self, by: Moment) -> Vec<Arc<Hold>> {
        let state = self.state();
        let due = state.holds.iter().filter(|own| own.check_at <= by);
        due.map(|own| Arc::clone(&own.hold)).collect()
    }

    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.state().holds.iter().map(|own| Arc::clone(&own.hold)).collect()
    }

    pub(crate) fn of_thread(&self, thread: u64) -> Option<Arc<Hold>> {
        self.state().of_thread(thread).cloned()
    }

    /// See [`Machine::find`]. If the lock is uncontended and the call may wait, the caller joins the local
    /// queue, and this also returns its place there.
    pub(crate) fn find(
        self: &Arc<LocalLock>,
        thread: Option<u64>,
        [caches, asks, waits]: [bool; 3],
        may_use: impl FnOnce(&Hold, bool) -> bool,
        now: Moment,
    ) -> (Found<Arc<Hold>>, Option<QueuePlace>) {
        let mut state = self.state();
        let at = state.at(now);
        let found = state.find(thread, caches, asks, |hold, is_idle| may_use(hold, is_idle), at);
        if let Found::Cached(hold, _) = &found {
            hold.since.store(now.nanos(), Ordering::Relaxed);
        }
        let joins = waits && matches!(found, Found::Uncontended);
        let place = joins.then(|| self.place(&mut state, false));
        (found, place)
    }

    /// Subscribes to recalls, unless that was done before. `stays`: the subscription stays between two holds.
    pub(crate) fn listen(&self, stays: bool, listen: impl FnOnce() -> Option<Subscription>) {
        let mut state = self.state();
        state.beside.keeps_recalls |= stays;
        if state.beside.recalls.is_some() {
            return;
        }
        drop(state);
        let recalls = listen(); // without the mutex, since the store takes mutexes of its own
        let mut state = self.state();
        let not_needed = match &state.beside.recalls {
            None => std::mem::replace(&mut state.beside.recalls, recalls),
            Some(_) => recalls,
        };
        drop(state);
        drop(not_needed);
    }

    pub(crate) fn hears(&self) -> bool {
        self.state().holds.iter().any(|own| own.hears.is_some())
    }

    pub(crate) fn watch(&self, is_waited_for: bool, now: Moment) -> Watched<Arc<Hold>> {
        let mut state = self.state();
        let at = state.at(now);
        let watched = state.watch(at, is_waited_for);
        let is_over = matches!(watched, Watched::Over);
        if is_over {
            self.is_watched.store(false, Ordering::SeqCst);
        }
        let not_needed =
            if is_over && !state.beside.keeps_recalls { state.beside.recalls.take() } else { None };
        drop(state);
        drop(not_needed);
        watched
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

    /// Notes the last failure of the queue's head; `None`: the store answered.
    pub(crate) fn note_failure(&self, failure: Option<(Moment, Error)>) {
        let mut state = self.state();
        if !state.queue.tickets.is_empty() {
            state.beside.failure = failure;
        }
    }

    /// The last failure, if the failures have lasted for `retry_timeout`.
    pub(crate) fn spent_retry_budget(&self, retry_timeout: Duration, now: Moment) -> Option<Error> {
        let state = self.state();
        let (since, error) = state.beside.failure.as_ref()?;
        (now.since(*since) >= retry_timeout).then(|| error.copy())
    }
}

/// Takes out the items whose lock's mutex is free; if none is free, any one item. See [`free_first`].
pub(crate) fn take_free<T>(items: &mut Vec<T>, lock_of: impl Fn(&T) -> &LocalLock) -> Vec<T> {
    let mut free: Vec<T> = items.extract_if(.., |item| !lock_of(item).is_locked()).collect();
    if free.is_empty() {
        free.extend(items.pop());
    }
    free
}

/// Yields the items whose lock's mutex is free before the others. On a busy machine many threads do not run
/// although they have a mutex, and waiting for one after the other would delay renewals by seconds.
pub(crate) fn free_first<T>(items: Vec<T>, lock_of: impl Fn(&T) -> &LocalLock) -> impl Iterator<Item = T> {
    let mut items = VecDeque::from(items);
    std::iter::from_fn(move || {
        let at = items.iter().position(|item| !lock_of(item).is_locked());
        items.remove(at.unwrap_or_default())
    })
}

static TICKETS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

impl LockState {
    pub(crate) fn at(&self, now: Moment) -> At<'static> {
        // `is_up` is read first: if the connection ends after that, the count rises, as by a recall.
        let recalls =
            self.beside.recalls.as_ref().filter(|recalls| recalls.is_up()).map(Subscription::message_count);
        At { now, recalls, rules: &RULES }
    }
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        if is_forked() {
            return; // a thread of the parent may have locked the mutex
        }
        let check_at = self.state().beside.check_at;
        self.locks.timer_table.lock().remove(self, check_at);
        let mut locks = self.locks.by_key.lock();
        // The entry may be that of a new local lock with the same key, and must then stay.
        if locks.get(&self.key).is_some_and(|local| local.strong_count() == 0) {
            locks.remove(&self.key);
        }
    }
}

/// A thread's place in the local queue, which the thread leaves on drop.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    pub(crate) local: Arc<LocalLock>,
    pub(crate) ticket: TicketId,
    pub(crate) wait: Arc<Wait>,
    has_left: bool,
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        let mut state = self.local.state();
        let left = state.leave(self.ticket);
        if state.queue.tickets.is_empty() {
            state.beside.failure = None;
        }
        drop(state);
        drop(left); // without the mutex: a pending hand-off notifies its releaser
    }
}

/// The timer's next check of each lock, ordered by time, so that the timer reads only the locks that are due.
/// A lock has at most one entry, for the hold that is due first. The entry stays when that hold ends, so that
/// short holds do not change the table all the time; the check then plans the next one.
///
/// The key is the moment, and the lock's address for locks with the same moment.
#[derive(Debug, Default)]
pub(crate) struct TimerTable(BTreeMap<(Moment, usize), Weak<LocalLock>>);

impl TimerTable {
    /// Moves the lock's entry from `at` to `next`. The caller has the lock's mutex.
    pub(crate) fn put(&mut self, local: &Arc<LocalLock>, at: &mut Option<Moment>, next: Option<Moment>) {
        self.remove(&**local, *at);
        if let Some(next) = next {
            self.0.insert((next, Arc::as_ptr(local).addr()), Arc::downgrade(local));
        }
        *at = next;
    }

    pub(crate) fn remove(&mut self, local: *const LocalLock, at: Option<Moment>) {
        at.into_iter().for_each(|at| drop(self.0.remove(&(at, local.addr()))));
    }

    /// Takes out up to `most` locks that are due at `by`. `LocalLock::plan_check` puts them back.
    pub(crate) fn take_due(&mut self, by: Moment, most: usize) -> Vec<Arc<LocalLock>> {
        let mut due = Vec::new();
        while due.len() < most
            && let Some(first) = self.0.first_entry()
            && first.key().0 <= by
        {
            due.extend(first.remove().upgrade());
        }
        due
    }

    pub(crate) fn first(&self) -> Option<(Moment, Weak<LocalLock>)> {
        self.0.first_key_value().map(|((at, _), local)| (*at, Weak::clone(local)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::hold::Holder;
    use crate::engine::lock::{Hears, Next};
    use crate::error::ErrorKind;
    use crate::ident::ClientId;
    use crate::seam::subscription::Channel;
    use crate::seam::subscription::tests::Nobody;
    use crate::seam::{Claim, Others};
    use crate::sync::Waker;
    use crate::time::Lease;

    fn local() -> Arc<LocalLock> {
        let name = crate::tests::name("a");
        LocalLock::new(LockKey::new(Kind::Mutex, &name), &Arc::default())
    }

    fn entered(local: &Arc<LocalLock>) -> Arc<Hold> {
        let owner = Owner::new(ClientId::random(), 1);
        let lease = Duration::from_secs(30);
        let claim = Claim::new(Kind::Mutex, &local.key.name, owner, lease);
        let hold = Hold::new(&claim, Holder::Guard { taker: None }, at(0), lease, local);
        let (hold, own, _level) = hold.begin(Lease::Renewed);
        let _entered = local.state().enter(own);
        hold
    }

    /// Ends the hold's last level in a time slice, as if the thread always reacquired at once.
    fn end(local: &Arc<LocalLock>, hold: &Arc<Hold>) -> Option<Next> {
        let mut state = local.state();
        let at = state.at(at(0));
        state.caching.begin(2, at);
        state.caching.count_on_return();
        state.end(hold.serial, None, |_| Some(true), at).unwrap().next
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(0).plus(Duration::from_millis(ms))
    }

    #[test]
    fn a_removed_hold_is_not_cached() {
        let local = local();
        let hold = entered(&local);
        assert!(matches!(end(&local, &hold), Some(Next::Cached(_))));
        local.state().take_out(hold.serial);
        assert!(local.on(at(0), |lock, at| lock.end(hold.serial, None, |_| Some(true), at)).is_none());
        assert!(local.on(at(0), |lock, at| lock.release_cached(None, at)).is_none());
    }

    #[test]
    fn failures_of_earlier_waiters_do_not_end_later_waits() {
        let local = local();
        let failure = || Some((at(0), Error::new(ErrorKind::Unreachable, "lock", "not there")));
        let retry_timeout = Duration::from_millis(10);
        let first = local.join(false);
        local.note_failure(failure());
        assert!(local.spent_retry_budget(retry_timeout, at(10)).is_some());
        local.note_failure(None);
        assert!(local.spent_retry_budget(retry_timeout, at(10)).is_none(), "the store has answered since");
        local.note_failure(failure());
        drop(first);
        local.note_failure(failure()); // of a caller that has left the queue
        let _later = local.join(false);
        assert!(local.spent_retry_budget(retry_timeout, at(10)).is_none());
    }

    #[test]
    fn the_latest_release_decides_whether_a_lock_is_contended() {
        let (local, over) = (local(), u64::try_from(RULES.contended.as_millis()).unwrap());
        let is_uncontended = |ms| local.on(at(ms), |lock, at| lock.is_uncontended(at));
        local.state().note_released(Others::Listen(2), at(0));
        assert_eq!([2, over].map(is_uncontended), [false, true]);
        local.state().note_released(Others::Listen(2), at(over));
        local.state().note_released(Others::Nobody, at(over + 1));
        assert!(local.state().contended.is_none() && is_uncontended(over + 2));
    }

    #[test]
    fn the_timer_wakes_at_the_earliest_check_of_any_hold() {
        let local = local();
        let locks = Arc::clone(&local.locks);
        let first = || locks.timer_table.lock().first().map(|(at, _)| at);
        for (look, by) in [(9, 9), (5, 5), (7, 5)] {
            local.check_by(&mut local.state(), at(look));
            assert_eq!(first(), Some(at(by)));
        }
        assert!(local.locks.timer_table.lock().take_due(at(4), 1).is_empty());
        assert_eq!(local.locks.timer_table.lock().take_due(at(5), 1).len(), 1);
        let holds = [entered(&local), entered(&local)];
        for (hold, look) in holds.iter().zip([8, 6]) {
            hold.with(|own| own.check_at = at(look));
        }
        local.plan_check();
        assert_eq!(first(), Some(at(6)));
        holds.iter().for_each(|hold| drop(local.state().take_out(hold.serial)));
        assert_eq!(first(), Some(at(6)), "the end of a hold changes the timer table only later");
        local.plan_check();
        assert_eq!(first(), None);
        local.check_by(&mut local.state(), at(1));
        drop((holds, local));
        assert!(locks.timer_table.lock().first().is_none(), "an unused lock is in the timer table");
    }

    #[test]
    fn a_recall_subscription_outlasts_its_hold_only_for_caching_locks() {
        for keeps_recalls in [false, true] {
            let local = local();
            let hold = entered(&local);
            let now = local.state().at(at(0));
            local.state().caching.begin(2, now);
            let channel = Arc::new(Channel::new("a", true));
            let listen = || Some(Subscription::new(channel, Arc::new(Nobody), &Waker::default()));
            local.listen(keeps_recalls, listen);
            hold.with(|own| own.hears = Some(Box::new(Hears::new(at(0)))));
            assert!(matches!(local.watch(false, at(0)), Watched::Until { .. }));
            drop(local.state().remove(hold.serial, None));
            assert!(matches!(local.watch(false, at(9)), Watched::Over));
            assert_eq!(local.state().beside.recalls.is_some(), keeps_recalls);
        }
    }

    #[test]
    fn locks_whose_mutex_is_taken_are_served_last() {
        let locks = [local(), local(), local()];
        let serials = |rest: &mut dyn Iterator<Item = Arc<LocalLock>>| {
            rest.map(|local| locks.iter().position(|one| Arc::ptr_eq(one, &local)).unwrap())
                .collect::<Vec<_>>()
        };
        let mut all = free_first(locks.to_vec(), |local| local);
        let taken = [locks[0].state(), locks[1].state()];
        assert_eq!(serials(&mut all.by_ref().take(1)), [2]);
        drop(taken);
        assert_eq!(serials(&mut all), [0, 1]);
        let mut all = locks.to_vec();
        let _taken = locks[1].state();
        assert_eq!(take_free(&mut all, |local| local).len(), 2);
        assert_eq!(take_free(&mut all, |local| local).len(), 1, "nothing is served while all are taken");
    }

    #[test]
    fn removing_a_hold_keeps_other_holds_of_its_lock() {
        let local = local();
        let holds = [entered(&local), entered(&local)];
        local.state().take_out(holds[0].serial);
        assert!(local.state().held_here(at(0)).is_some());
        local.state().take_out(holds[1].serial);
        assert!(local.state().held_here(at(0)).is_none());
    }
}
