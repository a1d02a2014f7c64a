//! The state of one lock in this process: its holds, and the threads that wait for it.
//!
//! One entry for each lock, however many values stand for it. Each value and each hold has it.

use std::collections::VecDeque;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::hold::caching::{Caching, Keeping, Reuse};
use crate::engine::hold::{Hold, State};
use crate::engine::queue::{Queue, Ticket};
use crate::error::Error;
use crate::fork::is_forked;
use crate::ident::LockName;
use crate::room::CrowdMap;
use crate::seam::subscription::Subscription;
use crate::seam::{Claim, Family, Kind, Others};
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
pub(crate) type Locks = Mutex<CrowdMap<LockKey, Weak<LockEntry>, BuildHasherDefault<OwnHash>>>;

#[derive(Debug)]
pub(crate) struct LockEntry {
    pub(crate) key: LockKey,
    state: Mutex<LockState>,
    pub(crate) given_up: GivenUp,
    /// The registry's map, which this entry leaves when it is dropped.
    locks: Arc<Locks>,
}

/// All that changes about a lock in this process.
#[derive(Debug, Default)]
pub(crate) struct LockState {
    /// In the order of serial numbers.
    pub(crate) holds: Vec<Entered>,
    pub(crate) queue: Queue,
    burst: Burst,
    pub(crate) caching: Caching<Hold>,
    /// This client may be in the store's queue.
    pub(crate) in_line: bool,
    /// Since when the head has had only failures, and the last one. The waiters behind it share them.
    failure: Option<(Moment, Error)>,
    /// When this process last released the lock while others waited for it, and who was notified.
    pub(crate) contended: Option<(Moment, Others)>,
    /// Until when the registry keeps the entry without any value.
    remembered_until: Option<Moment>,
}

#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) hold: Arc<Hold>,
    pub(crate) state: State,
}

/// Hand-offs since the last true release, and when the first of them was.
#[derive(Debug, Default)]
struct Burst {
    handed: u32,
    began: Option<Moment>,
}

/// The most hand-offs, and the longest time of them, before other processes get the lock. More makes the
/// others wait longer; less costs more true releases.
const BURST: u32 = 24;
const BURST_TIME: Duration = Duration::from_millis(3);

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
    pub(crate) keeps: bool,
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
    Calm(Option<QueuePlace>),
    /// Anything else.
    Used,
}

impl LockEntry {
    pub(crate) fn new(key: LockKey, locks: &Arc<Locks>) -> Arc<LockEntry> {
        Arc::new(LockEntry {
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
        self: &Arc<LockEntry>,
        thread: Option<u64>,
        Wish { keeps, asks, waits }: Wish,
        may_use: impl FnOnce(&Hold, Reuse) -> bool,
        now: Moment,
    ) -> Found {
        let mut state = self.state();
        if let Some(thread) = thread {
            state.caching.note_asked(thread, now);
            if let Some(hold) = state.of_thread(thread) {
                return Found::Own(hold);
            }
            if let Some((hold, reuse)) = state.caching.reuse(|kept| kept.is_of_thread(thread), keeps, now) {
                let may_use = may_use(&hold, reuse) && hold.loss_at(now).is_none();
                let own = state.state_of(&hold).filter(|_| may_use);
                if let Some(level) = own.and_then(|own| hold.begin_again(own, now, keeps)) {
                    return Found::Cached(hold, level);
                }
                state.caching.leave(&hold);
                return Found::Stale(hold);
            }
            // Under the mutex. Pairs with `take_kept` and `watch`: a thread finds its hold before they take
            // it, or finds here that they have.
            if state.caching.is_leaving(|leaving| leaving.is_of_thread(thread)) {
                return Found::Leaving;
            }
        }
        if !asks || !state.is_calm(now) {
            return Found::Used;
        }
        Found::Calm(waits.then(|| self.place(state.queue.join(false))))
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
    pub(crate) fn is_calm(&self, now: Moment) -> bool {
        self.state().is_calm(now)
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
    /// for, or, `by_turn`, for the rest of the time slice.
    pub(crate) fn keep(&self, (hold, thread): (&Arc<Hold>, u64), by_turn: bool, now: Moment) -> Keeping {
        let mut state = self.state();
        let waiting = state.queue.len();
        if state.state_of(hold).is_none() {
            return Keeping::Ends;
        }
        match state.caching.end_use((hold, thread), by_turn, waiting, now) {
            Keeping::Ends => Keeping::Ends,
            keeping if hold.cache() => keeping,
            _lost => {
                state.caching.forget(hold);
                Keeping::Ends
            }
        }
    }

    /// Takes out the cached hold, of this thread or of any, to be released. Pairs with `find`.
    pub(crate) fn take_kept(&self, thread: Option<u64>) -> Option<Arc<Hold>> {
        let is_of = |kept: &Hold| thread.is_none_or(|thread| kept.is_of_thread(thread));
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

    /// Keeps the entry until then without any value; returns whether it was not kept yet.
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

    pub(crate) fn join(self: &Arc<LockEntry>, spins: bool) -> QueuePlace {
        let ticket = self.state().queue.join(spins);
        self.place(ticket)
    }

    fn place(self: &Arc<LockEntry>, ticket: Arc<Ticket>) -> QueuePlace {
        QueuePlace { entry: Arc::clone(self), ticket, has_left: false }
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
    pub(crate) fn spent_retry_budget(&self, patience: Duration, now: Moment) -> Option<Error> {
        let state = self.state();
        let (since, error) = state.failure.as_ref()?;
        (now.since(*since) >= patience).then(|| error.copy())
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

    fn is_calm(&self, now: Moment) -> bool {
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
        let LockState { queue, burst, caching, .. } = self;
        let Some(head) = queue.head() else { return Next::Nobody };
        let began = *burst.began.get_or_insert(now);
        if burst.handed >= BURST || now.since(began) >= BURST_TIME || caching.is_over(now) {
            return Next::Others;
        }
        let Some(claim) = head.promise() else { return Next::Nobody };
        burst.handed += 1;
        caching.pass_on(now);
        Next::Local(Arc::clone(head), claim)
    }

    pub(crate) fn take_out(&mut self, hold: &Arc<Hold>) -> Option<Entered> {
        self.caching.forget(hold);
        self.holds.extract_if(.., |entered| Arc::ptr_eq(&entered.hold, hold)).next()
    }

    /// A hold ended by a true release that notified `others`; whether that is to be remembered.
    pub(crate) fn note_released(&mut self, others: Others, now: Moment) -> bool {
        self.burst = Burst::default();
        self.contended = (others != Others::Nobody).then_some((now, others));
        self.contended.is_some()
    }

    /// Forgets what concerns only holders and waiters, if there are none.
    pub(crate) fn forget_if_unused(&mut self) {
        if self.queue.is_empty() {
            self.failure = None;
            if self.holds.is_empty() {
                self.caching.end();
                (self.burst, self.in_line) = (Burst::default(), false);
            }
        }
    }
}

impl Drop for LockEntry {
    fn drop(&mut self) {
        if is_forked() {
            return; // another thread of the parent may have had the mutex
        }
        let mut locks = self.locks.lock();
        // Another entry may have been made for the lock meanwhile.
        if locks.get(&self.key).is_some_and(|entry| entry.strong_count() == 0) {
            locks.remove(&self.key);
        }
    }
}

/// A thread's place in a lock's queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    entry: Arc<LockEntry>,
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
    pub(crate) fn takes_line_place(&self) -> bool {
        let mut state = self.entry.state();
        state.queue.len() == 1 && std::mem::take(&mut state.in_line)
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        let mut state = self.entry.state();
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
    use crate::engine::hold::caching::{KeepTerms, Watched};
    use crate::engine::hold::{Grant, Holder};
    use crate::ident::{ClientId, Owner};
    use crate::time::Lease;

    fn entry() -> Arc<LockEntry> {
        let name = Arc::new(LockName::new(&"a".into(), "a".to_owned()).unwrap());
        LockEntry::new(LockKey::new(Kind::Mutex, &name), &Arc::default())
    }

    /// A hold on the lock, asked for at the beginning.
    fn entered(entry: &Arc<LockEntry>) -> Arc<Hold> {
        let owner = Owner::new(ClientId::random(), 1);
        let lease = Duration::from_secs(30);
        let grant = Grant {
            claim: Claim::new(Kind::Mutex, &entry.key.name, owner, lease),
            holder: Holder::Guard { taker: None },
            sent: at(0),
            lease: Lease::Renewed,
            renewed_lease: lease,
            ceiling: None,
            fence: None,
            bound: None,
            may_be_kept: true,
            asks_to_keep: false,
            until_asked: false,
            leads: false,
        };
        let (hold, state, _level) = Hold::new(grant, entry);
        let hold = Arc::new(hold);
        entry.state().enter(&hold, state);
        hold
    }

    /// A lock in its time slice, to which its thread comes back at once.
    fn in_turn() -> (Arc<LockEntry>, Arc<Hold>) {
        let entry = entry();
        let hold = entered(&entry);
        entry.state().caching.end_use((&hold, 1), true, 0, at(0));
        entry.state().caching.note_asked(1, at(0));
        entry.state().caching.begin(2, at(0));
        (entry, hold)
    }

    #[test]
    fn what_may_be_kept_until_others_ask_goes_at_the_end_of_its_turn_where_they_have() {
        let at = |us| Moment::from_nanos(0).plus(Duration::from_micros(us));
        let (entry, hold) = in_turn();
        let terms = KeepTerms { heard: 0, is_wanted: true };
        assert_eq!(entry.state().caching.grant(&hold, terms, at(0)), (at(50_000), true));
        assert!(
            matches!(entry.state().caching.watch(at(10)), Watched::Until(next) if next == at(310)),
            "it is in use"
        );
        assert_eq!(entry.keep((&hold, 1), true, at(20)), Keeping::InTurn { is_new: false });
        assert!(matches!(entry.state().caching.watch(at(30)), Watched::Until(next) if next == at(320)));
        assert!(
            matches!(entry.state().caching.watch(at(320)), Watched::Idle(idle) if Arc::ptr_eq(&idle, &hold))
        );
        assert!(
            matches!(entry.state().caching.watch(at(2_000)), Watched::Over),
            "and with it what could be kept"
        );
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(0).plus(Duration::from_millis(ms))
    }

    #[test]
    fn a_hold_that_was_taken_out_meanwhile_is_not_kept() {
        let (entry, hold) = in_turn();
        entry.state().take_out(&hold);
        assert_eq!(entry.keep((&hold, 1), true, at(0)), Keeping::Ends);
        assert!(entry.take_kept(None).is_none());
    }

    #[test]
    fn the_failure_of_waiters_that_have_left_ends_no_later_wait() {
        let entry = entry();
        let failure = || Some((at(0), Error::new(crate::error::ErrorKind::Unreachable, "lock", "not there")));
        let patience = Duration::from_millis(10);
        let first = entry.join(false);
        entry.note_failure(failure());
        assert!(entry.spent_retry_budget(patience, at(10)).is_some());
        entry.note_failure(None);
        assert!(entry.spent_retry_budget(patience, at(10)).is_none(), "the store answers");
        entry.note_failure(failure());
        drop(first);
        entry.note_failure(failure()); // of a caller that has left the queue
        let _later = entry.join(false);
        assert!(entry.spent_retry_budget(patience, at(10)).is_none());
    }

    #[test]
    fn a_lock_is_contended_as_its_last_release_says_and_is_to_be_remembered_each_time_anew() {
        let (entry, forgotten) = (entry(), 2 * u64::try_from(CONTENDED.as_millis()).unwrap());
        for begun in [0, forgotten] {
            assert!(
                entry.state().note_released(Others::Listen(2), at(begun)),
                "the entry is to be kept for it"
            );
            assert!(entry.remember(at(begun).plus(REMEMBERED)));
            assert!(!entry.remember(at(begun + 1).plus(REMEMBERED)), "which it is already");
            assert!(!entry.is_forgotten(at(begun + 2)) && !entry.is_calm(at(begun + 2)));
            assert!(entry.is_forgotten(at(begun + forgotten)));
        }
        entry.state().note_released(Others::Listen(2), at(forgotten * 3));
        entry.state().note_released(Others::Nobody, at(forgotten * 3 + 1));
        assert!(entry.state().contended.is_none() && entry.is_calm(at(forgotten * 3 + 2)));
    }

    #[test]
    fn the_clients_place_in_the_line_is_given_up_once_and_by_no_later_waiter() {
        let entry = entry();
        entry.state().in_line = true;
        let place = entry.join(false);
        assert!(place.takes_line_place() && !place.takes_line_place());
        entry.state().in_line = true;
        let other = entry.join(false);
        assert!(!place.takes_line_place(), "others here wait in it");
        drop((place, other));
        assert!(!entry.join(false).takes_line_place(), "it was left with the last of them");
    }

    #[test]
    fn a_turn_is_over_when_the_last_that_waited_has_left_and_nobody_holds() {
        let (entry, hold) = in_turn();
        entry.state().take_out(&hold);
        drop(entry.join(false));
        let hold = entered(&entry);
        assert_eq!(entry.keep((&hold, 1), true, at(0)), Keeping::Ends);
    }

    #[test]
    fn of_several_holds_the_others_stay_when_one_is_taken_out() {
        let entry = entry();
        let holds = [entered(&entry), entered(&entry)];
        entry.state().take_out(&holds[0]);
        assert!(entry.held_here(at(0)).is_some());
        entry.state().take_out(&holds[1]);
        assert!(entry.held_here(at(0)).is_none());
    }

    #[test]
    fn a_number_that_was_given_up_stays_so_however_many_follow() {
        let given_up = GivenUp::default();
        [9, 7, 7].iter().for_each(|number| given_up.add(*number));
        assert_eq!([6, 7, 8, 9, 10].map(|number| given_up.has(number)), [false, true, false, true, false]);
        (100..100 + MOST_GIVEN_UP as u64).for_each(|number| given_up.add(number));
        assert_eq!([7, 9, 10, 100, 200].map(|number| given_up.has(number)), [true, true, false, true, false]);
    }
}
