//! The state of one lock in this process: its holds, and the threads that wait for it.
//!
//! One local lock for each lock, however many values stand for it. Each value and each hold has it.

use std::collections::VecDeque;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::hold::caching::{CacheOutcome, Caching, Reuse};
use crate::engine::hold::{Hold, State};
use crate::engine::queue::{Queue, Ticket};
use crate::error::Error;
use crate::fork::is_forked;
use crate::ident::LockName;
use crate::seam::subscription::Subscription;
use crate::seam::{Claim, Family, Kind, Others};
use crate::shrink::CrowdMap;
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

/// By lock, found by the hash that each name has.
pub(crate) type Locks = Mutex<CrowdMap<LockKey, Weak<LocalLock>, BuildHasherDefault<OwnHash>>>;

#[derive(Debug)]
pub(crate) struct LocalLock {
    pub(crate) key: LockKey,
    state: Mutex<LockState>,
    pub(crate) given_up: GivenUp,
    /// The registry's map, which this local lock leaves when it is dropped.
    locks: Arc<Locks>,
}

/// All that changes about a lock in this process.
#[derive(Debug, Default)]
pub(crate) struct LockState {
    /// In the order of serial numbers.
    pub(crate) holds: Vec<Entered>,
    pub(crate) queue: Queue,
    local_handoffs: LocalHandoffs,
    pub(crate) caching: Caching<Hold>,
    /// This client may be in the store's queue.
    pub(crate) queued: bool,
    /// Since when the head has had only failures, and the last one. The waiters behind it share them.
    failure: Option<(Moment, Error)>,
    /// When this process last released the lock while others waited for it, and who was notified.
    pub(crate) contended: Option<(Moment, Others)>,
    /// Until when the registry keeps the local lock without any value.
    remembered_until: Option<Moment>,
}

#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) hold: Arc<Hold>,
    pub(crate) state: State,
}

/// Hand-offs since the last true release, and when the first of them was.
#[derive(Debug, Default)]
struct LocalHandoffs {
    handed: u32,
    began: Option<Moment>,
}

/// The most hand-offs, and the longest time of them, before other processes get the lock. More makes the
/// others wait longer; less costs more true releases.
const MAX_LOCAL_HANDOFFS: u32 = 24;
const LOCAL_HANDOFF_TIME: Duration = Duration::from_millis(3);

/// A lock counts as contended for this time after its last release here.
const CONTENDED: Duration = Duration::from_secs(1);

/// A lock is remembered at least for this time after it was contended or cached.
pub(crate) const REMEMBERED: Duration = CONTENDED;

/// The next owner of a lock whose last level has ended.
pub(crate) enum Next {
    /// No thread here sleeps for it.
    Nobody,
    /// A thread does, but others' processes come first.
    Others,
    /// This waiter has been promised the lock.
    Local(Arc<Ticket>, Claim),
}

pub(crate) struct LevelEnd {
    /// How many levels are left.
    pub(crate) left: u32,
    /// Set when the release has begun.
    pub(crate) next: Option<Next>,
    /// This client may cache holds of the lock.
    pub(crate) may_cache: bool,
}

/// The wishes of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// It would cache the hold until a recall.
    pub(crate) caches: bool,
    /// It asks at once if the lock is uncontended.
    pub(crate) asks: bool,
    /// It waits if the lock is busy.
    pub(crate) waits: bool,
}

impl LevelEnd {
    pub(crate) const LAST: LevelEnd = LevelEnd { left: 0, next: None, may_cache: false };
}

/// How a thread that wants the lock finds it here.
pub(crate) enum Found {
    /// This thread's hold, live or lost.
    Own(Arc<Hold>),
    /// This thread's cached hold, in use again, with a level.
    Cached(Arc<Hold>, u64),
    /// The same, but it must be released: it is lost, others want it, or this call asks for something else.
    Stale(Arc<Hold>),
    /// Another thread is releasing that one. This thread's own request could arrive before the release, which
    /// would then free the new grant; and the lock could be handed from the owner to itself. So it asks under
    /// another number.
    Leaving,
    /// Nobody here has the lock or wants it, and no other process wanted it a moment ago: the thread asks, at
    /// the head of the queue if it would wait.
    Uncontended(Option<QueuePlace>),
    /// Anything else.
    Used,
}

impl LocalLock {
    pub(crate) fn new(key: LockKey, locks: &Arc<Locks>) -> Arc<LocalLock> {
        Arc::new(LocalLock {
            key,
            state: Mutex::default(),
            given_up: GivenUp::default(),
            locks: Arc::clone(locks),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LockState> {
        self.state.lock()
    }

    pub(crate) fn of_thread(&self, thread: u64) -> Option<Arc<Hold>> {
        self.state().of_thread(thread)
    }

    /// The state that a thread finds before it asks at `now`; `thread` is `None` where a guard is to be the
    /// owner. `may_use`: whether the call can use a cached hold again.
    pub(crate) fn find(
        self: &Arc<LocalLock>,
        thread: Option<u64>,
        Wish { caches, asks, waits }: Wish,
        may_use: impl FnOnce(&Hold, Reuse) -> bool,
        now: Moment,
    ) -> Found {
        let mut state = self.state();
        if let Some(thread) = thread {
            state.caching.note_asked(thread, now);
            if let Some(hold) = state.of_thread(thread) {
                return Found::Own(hold);
            }
            if let Some((hold, reuse)) =
                state.caching.reuse(|cached| cached.is_of_thread(thread), caches, now)
            {
                let may_use = may_use(&hold, reuse) && hold.loss_at(now).is_none();
                let own = state.state_of(&hold).filter(|_| may_use);
                if let Some(level) = own.and_then(|own| hold.begin_again(own, now, caches)) {
                    return Found::Cached(hold, level);
                }
                state.caching.leave(&hold);
                return Found::Stale(hold);
            }
            // Under the mutex. Pairs with `take_cached` and `watch`: a thread finds its hold before they take
            // it, or finds here that they have.
            if state.caching.is_leaving(|leaving| leaving.is_of_thread(thread)) {
                return Found::Leaving;
            }
        }
        if !asks || !state.is_uncontended(now) {
            return Found::Used;
        }
        Found::Uncontended(waits.then(|| self.place(state.queue.join(false))))
    }

    /// Until when any hold of this process stands.
    pub(crate) fn held_here(&self, now: Moment) -> Option<Moment> {
        let state = self.state();
        let held = state.holds.iter().filter_map(|entered| entered.hold.stands_until(now)).max();
        // A lock on its way to a waiter here is held here too. Until that is settled nothing may be asked
        // under the releaser's number, which the releaser may be about to use again.
        let is_receiving = state.queue.head().is_some_and(|head| head.is_receiving());
        held.or_else(|| is_receiving.then_some(Moment::NEVER))
    }

    /// Whether nobody here has the lock or wants it, and no other process wanted it a moment ago.
    pub(crate) fn is_uncontended(&self, now: Moment) -> bool {
        self.state().is_uncontended(now)
    }

    #[cfg(all(test, not(leasehold_shuttle)))]
    pub(crate) fn head(&self) -> Option<Arc<Ticket>> {
        self.state().queue.head().cloned()
    }

    /// The head of the queue, if the lock is on its way to it.
    pub(crate) fn receiving(&self) -> Option<Arc<Ticket>> {
        let state = self.state();
        let head = state.queue.head()?;
        head.is_receiving().then(|| Arc::clone(head))
    }

    /// Ends a level of the hold of this thread and task, as [`Hold::end_level`] does; `None`: there is no
    /// such hold.
    pub(crate) fn end_of_thread(&self, thread: u64, now: Moment) -> Option<(Arc<Hold>, Option<LevelEnd>)> {
        let mut state = self.state();
        let hold = state.of_thread(thread).filter(|hold| hold.holder.is_this_task())?;
        let ended = state.end(&hold, None, now);
        Some((hold, ended))
    }

    /// Caches a hold whose last level has ended, if the lock has it still: until a recall if that was asked
    /// for, or, `by_time_slice`, for the rest of the time slice.
    pub(crate) fn cache(
        &self,
        (hold, thread): (&Arc<Hold>, u64),
        by_time_slice: bool,
        now: Moment,
    ) -> CacheOutcome {
        let mut state = self.state();
        let waiting = state.queue.len();
        if state.state_of(hold).is_none() {
            return CacheOutcome::Ends;
        }
        match state.caching.end_use((hold, thread), by_time_slice, waiting, now) {
            CacheOutcome::Ends => CacheOutcome::Ends,
            keeping if hold.cache() => keeping,
            _lost => {
                state.caching.forget(hold);
                CacheOutcome::Ends
            }
        }
    }

    /// Takes out the cached hold, of this thread or of any, to be released. Pairs with `find`.
    pub(crate) fn take_cached(&self, thread: Option<u64>) -> Option<Arc<Hold>> {
        let is_of = |cached: &Hold| thread.is_none_or(|thread| cached.is_of_thread(thread));
        self.state().caching.take_to_leave(is_of)
    }

    /// The recalls so far, if all are heard. `listen` begins to listen if nobody does; then none is heard
    /// yet.
    pub(crate) fn heard(&self, now: Moment, listen: impl FnOnce() -> Option<Subscription>) -> Option<u64> {
        let state = self.state();
        if state.caching.listens() {
            return state.caching.heard(now);
        }
        drop(state); // a store has locks of its own
        let recalls = listen();
        let not_needed = self.state().caching.listen(recalls);
        drop(not_needed);
        None
    }

    /// Others want this hold. If no thread uses it, it is taken out to be released.
    pub(crate) fn note_wanted(&self, hold: &Arc<Hold>, now: Moment) -> Option<Arc<Hold>> {
        let mut state = self.state();
        state.caching.note_wanted(hold, now);
        state.caching.take_idle(hold)
    }

    /// Keeps the local lock until then without any value; returns whether it was not kept yet.
    pub(crate) fn remember(&self, until: Moment) -> bool {
        let mut state = self.state();
        let before = state.remembered_until;
        state.remembered_until = before.max(Some(until));
        before.is_none()
    }

    /// Whether it need not be kept any more.
    pub(crate) fn is_forgotten(&self, now: Moment) -> bool {
        let mut state = self.state();
        if !state.is_contended(now) {
            state.contended = None;
        }
        state.remembered_until.take_if(|until| *until <= now);
        state.remembered_until.is_none()
    }

    /// The lock may be free.
    pub(crate) fn nudge(&self) {
        self.state().queue.nudge();
    }

    pub(crate) fn join(self: &Arc<LocalLock>, spins: bool) -> QueuePlace {
        let ticket = self.state().queue.join(spins);
        self.place(ticket)
    }

    fn place(self: &Arc<LocalLock>, ticket: Arc<Ticket>) -> QueuePlace {
        QueuePlace { local: Arc::clone(self), ticket, has_left: false }
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

impl LockState {
    pub(crate) fn state_of(&mut self, hold: &Hold) -> Option<&mut State> {
        let at = self.holds.binary_search_by_key(&hold.serial, |entered| entered.hold.serial).ok()?;
        self.holds.get_mut(at).map(|entered| &mut entered.state)
    }

    pub(crate) fn enter(&mut self, hold: &Arc<Hold>, state: State) {
        let at = self.holds.partition_point(|other| other.hold.serial < hold.serial);
        self.holds.insert(at, Entered { hold: Arc::clone(hold), state });
    }

    fn of_thread(&self, thread: u64) -> Option<Arc<Hold>> {
        let mut holds = self.holds.iter().map(|entered| &entered.hold);
        holds.find(|hold| hold.is_of_thread(thread) && !self.caching.is_unused(hold)).cloned()
    }

    fn is_uncontended(&self, now: Moment) -> bool {
        self.holds.is_empty() && self.queue.is_empty() && !self.is_contended(now)
    }

    fn is_contended(&self, now: Moment) -> bool {
        self.contended.is_some_and(|(since, _)| now.since(since) < CONTENDED)
    }

    /// Ends a level as [`Hold::end_level`] does. If that was the last, and the hold is neither lost nor may
    /// be cached, its release begins.
    pub(crate) fn end(&mut self, hold: &Arc<Hold>, level: Option<u64>, now: Moment) -> Option<LevelEnd> {
        let may_cache = self.caching.may_cache();
        let left = hold.end_level_in(self.state_of(hold)?, level)?;
        let ends = left == 0 && !may_cache && hold.loss_at(now).is_none();
        let next = if ends { self.begin_release(hold, now) } else { None };
        Some(LevelEnd { left, next, may_cache })
    }

    /// Begins the release of a hold that nothing else has ended, and promises the lock to the next waiter.
    pub(crate) fn begin_release(&mut self, hold: &Arc<Hold>, now: Moment) -> Option<Next> {
        let state = self.state_of(hold)?;
        hold.begin_release_in(state).then(|| self.promise(now))
    }

    /// Promises the lock to the head of the queue, if it sleeps and other processes do not come first.
    pub(crate) fn promise(&mut self, now: Moment) -> Next {
        let LockState { queue, local_handoffs, caching, .. } = self;
        let Some(head) = queue.head() else { return Next::Nobody };
        let began = *local_handoffs.began.get_or_insert(now);
        if local_handoffs.handed >= MAX_LOCAL_HANDOFFS
            || now.since(began) >= LOCAL_HANDOFF_TIME
            || caching.is_over(now)
        {
            return Next::Others;
        }
        let Some(claim) = head.promise() else { return Next::Nobody };
        local_handoffs.handed += 1;
        caching.pass_on(now);
        Next::Local(Arc::clone(head), claim)
    }

    pub(crate) fn take_out(&mut self, hold: &Arc<Hold>) -> Option<Entered> {
        self.caching.forget(hold);
        self.holds.extract_if(.., |entered| Arc::ptr_eq(&entered.hold, hold)).next()
    }

    /// A hold ended by a true release that notified `others`; whether that is to be remembered.
    pub(crate) fn note_released(&mut self, others: Others, now: Moment) -> bool {
        self.local_handoffs = LocalHandoffs::default();
        self.contended = (others != Others::Nobody).then_some((now, others));
        self.contended.is_some()
    }

    /// Forgets what concerns only holders and waiters, if there are none.
    pub(crate) fn forget_if_unused(&mut self) {
        if self.queue.is_empty() {
            self.failure = None;
            if self.holds.is_empty() {
                self.caching.end();
                (self.local_handoffs, self.queued) = (LocalHandoffs::default(), false);
            }
        }
    }
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        if is_forked() {
            return; // another thread of the parent may have had the mutex
        }
        let mut locks = self.locks.lock();
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
    ticket: Arc<Ticket>,
    has_left: bool,
}

impl QueuePlace {
    pub(crate) fn ticket(&self) -> &Arc<Ticket> {
        &self.ticket
    }

    /// Leaves the queue by a grant. The hold is already in `state`, which the caller has locked: the next
    /// head sees a hold to wait for.
    pub(crate) fn leave_granted(mut self, state: &mut LockState) {
        state.queue.leave(&self.ticket);
        self.has_left = true;
    }

    /// Whether this waiter must give up the client's place in the store's queue: there is one, and no other
    /// thread here waits.
    pub(crate) fn takes_queue_place(&self) -> bool {
        let mut state = self.local.state();
        state.queue.len() == 1 && std::mem::take(&mut state.queued)
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        let mut state = self.local.state();
        state.queue.leave(&self.ticket);
        state.forget_if_unused();
    }
}

/// The last owner numbers under which a request about the lock may still come. Later numbers are greater.
#[derive(Debug, Default)]
pub(crate) struct GivenUp(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    last: VecDeque<u64>,
    /// This number and all before count as given up: there were too many.
    until: u64,
}

const MOST_GIVEN_UP: usize = 32;

impl GivenUp {
    /// Something may still come under that number.
    pub(crate) fn add(&self, number: u64) {
        let mut numbers = self.0.lock();
        if !numbers.last.contains(&number) {
            numbers.last.push_back(number);
        }
        if numbers.last.len() > MOST_GIVEN_UP
            && let Some(oldest) = numbers.last.pop_front()
        {
            numbers.until = numbers.until.max(oldest);
        }
    }

    /// Whether a grant under that number may meet a late request.
    pub(crate) fn has(&self, number: u64) -> bool {
        let numbers = self.0.lock();
        number <= numbers.until || numbers.last.contains(&number)
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
    use crate::engine::hold::caching::{CacheTerms, Watched};
    use crate::engine::hold::{Grant, Holder};
    use crate::ident::{ClientId, Owner};
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
            until_recall: false,
            leads: false,
        };
        let (hold, state, _level) = Hold::new(grant, local);
        let hold = Arc::new(hold);
        local.state().enter(&hold, state);
        hold
    }

    /// A lock in its time slice, to which its thread comes back at once.
    fn in_time_slice() -> (Arc<LocalLock>, Arc<Hold>) {
        let local = local();
        let hold = entered(&local);
        local.state().caching.end_use((&hold, 1), true, 0, at(0));
        local.state().caching.note_asked(1, at(0));
        local.state().caching.begin(2, at(0));
        (local, hold)
    }

    #[test]
    fn a_recalled_hold_ends_with_its_slice() {
        let at = |us| Moment::from_nanos(0).plus(Duration::from_micros(us));
        let (local, hold) = in_time_slice();
        let terms = CacheTerms { heard: 0, is_wanted: true };
        assert_eq!(local.state().caching.grant(&hold, terms, at(0)), (at(50_000), true));
        assert!(
            matches!(local.state().caching.watch(at(10)), Watched::Until(next) if next == at(310)),
            "it is in use"
        );
        assert_eq!(local.cache((&hold, 1), true, at(20)), CacheOutcome::ForTimeSlice { is_new: false });
        assert!(matches!(local.state().caching.watch(at(30)), Watched::Until(next) if next == at(320)));
        assert!(
            matches!(local.state().caching.watch(at(320)), Watched::Idle(idle) if Arc::ptr_eq(&idle, &hold))
        );
        assert!(
            matches!(local.state().caching.watch(at(2_000)), Watched::Over),
            "and with it what could be kept"
        );
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(0).plus(Duration::from_millis(ms))
    }

    #[test]
    fn a_hold_that_was_taken_out_meanwhile_is_not_kept() {
        let (local, hold) = in_time_slice();
        local.state().take_out(&hold);
        assert_eq!(local.cache((&hold, 1), true, at(0)), CacheOutcome::Ends);
        assert!(local.take_cached(None).is_none());
    }

    #[test]
    fn earlier_waiters_failures_end_no_later_wait() {
        let local = local();
        let failure = || Some((at(0), Error::new(crate::error::ErrorKind::Unreachable, "lock", "not there")));
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
        let (local, forgotten) = (local(), 2 * u64::try_from(CONTENDED.as_millis()).unwrap());
        for begun in [0, forgotten] {
            assert!(
                local.state().note_released(Others::Listen(2), at(begun)),
                "the entry is to be kept for it"
            );
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
    fn a_slice_ends_without_waiters_and_holders() {
        let (local, hold) = in_time_slice();
        local.state().take_out(&hold);
        drop(local.join(false));
        let hold = entered(&local);
        assert_eq!(local.cache((&hold, 1), true, at(0)), CacheOutcome::Ends);
    }

    #[test]
    fn removing_a_hold_leaves_the_others() {
        let local = local();
        let holds = [entered(&local), entered(&local)];
        local.state().take_out(&holds[0]);
        assert!(local.held_here(at(0)).is_some());
        local.state().take_out(&holds[1]);
        assert!(local.held_here(at(0)).is_none());
    }

    #[test]
    fn a_retired_number_stays_retired() {
        let given_up = GivenUp::default();
        [9, 7, 7].iter().for_each(|number| given_up.add(*number));
        assert_eq!([6, 7, 8, 9, 10].map(|number| given_up.has(number)), [false, true, false, true, false]);
        (100..100 + MOST_GIVEN_UP as u64).for_each(|number| given_up.add(number));
        assert_eq!([7, 9, 10, 100, 200].map(|number| given_up.has(number)), [true, true, false, true, false]);
    }
}
