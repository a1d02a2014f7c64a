//! One lock in this process: the holds on it, and the threads that wait for it.
//!
//! There is one entry for each lock, however many values stand for it. Each value has it, and each hold: the
//! registry is asked for it when it is made, and told when it goes.

use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::hold::given_up::GivenUp;
use crate::engine::hold::own_hash::OwnHash;
use crate::engine::hold::turn::{Keeping, Turns, Watched};
use crate::engine::hold::until_asked::{KeepTerms, KeptStep, Reuse, UntilAsked};
use crate::engine::queue::{Queue, Ticket};
use crate::error::Error;
use crate::fork::is_forked;
use crate::ident::LockName;
use crate::room::CrowdMap;
use crate::seam::subscription::Subscription;
use crate::seam::{Claim, Family, Kind, Others};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::time::Moment;

/// One lock: kinds that are the same lock to the store are the same here.
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

/// The questions that an entry asks of a hold. It knows nothing else of one, since a hold has its entry.
pub(crate) trait Held {
    fn is_of_thread(&self, thread: u64) -> bool;

    /// Until when it stands, if it stands now.
    fn stands_until(&self, now: Moment) -> Option<Moment>;
}

/// The entries by lock, found by the hash that each name has.
pub(crate) type Locks<H> = Mutex<CrowdMap<LockKey, Weak<Entry<H>>, BuildHasherDefault<OwnHash>>>;

/// One lock in this process.
#[derive(Debug)]
pub(crate) struct Entry<H> {
    pub(crate) key: LockKey,
    /// This client has, or had, a turn at the lock or a hold that may be kept: to be looked at without the
    /// mutex.
    has_turn: AtomicBool,
    state: Mutex<LockState<H>>,
    pub(crate) given_up: GivenUp,
    /// The registry's, to be taken out of in the end.
    locks: Arc<Locks<H>>,
}

/// The part under the entry's mutex.
#[derive(Debug)]
pub(crate) struct LockState<H> {
    pub(crate) holds: Vec<Arc<H>>,
    pub(crate) queue: Queue,
    burst: Burst,
    pub(crate) turns: Turns<H>,
    pub(crate) until_asked: UntilAsked<H>,
    /// This client may stand in the store's line.
    in_line: bool,
    /// Since when the head has had nothing but failures, and the last: those behind it have waited through
    /// the same.
    failure: Option<(Moment, Error)>,
    /// When this process last released the lock, if others waited for it then, and who was notified.
    contended: Option<(Moment, Others)>,
    /// Until when the registry keeps the entry, although no value may be left.
    remembered_until: Option<Moment>,
}

/// Hand-offs since the last true release, and when the first of them was.
#[derive(Debug, Default)]
struct Burst {
    handed: u32,
    began: Option<Moment>,
}

/// A burst: the number of hand-offs, and the time, before other processes get their turn. More makes the
/// others wait longer; less costs more true releases.
const BURST: u32 = 24;
const BURST_TIME: Duration = Duration::from_millis(3);

/// The time after its last release here for which a lock counts as contended.
const CONTENDED: Duration = Duration::from_secs(1);

/// The time for which a lock is remembered, at least, after it was contended, had a turn, or was to be kept.
pub(crate) const REMEMBERED: Duration = CONTENDED;

/// An attempt that is made before there is a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstAttempt {
    /// The caller makes no other.
    Only,
    /// The caller waits if the lock is busy.
    Waits,
}

/// The next owner that a releaser may hand the lock to.
pub(crate) enum Next {
    /// Nobody sleeps for it here.
    Nobody,
    /// Somebody does, but it is other processes' turn.
    Others,
    /// This waiter, which has been promised it.
    Local(Arc<Ticket>, Claim),
}

/// How a thread that wants the lock finds it in this process.
pub(crate) enum Found<H: Held> {
    /// This thread's hold, live or lost.
    Own(Arc<H>),
    /// This thread's last hold, which was kept. It is the thread's again, without a level.
    Kept(Arc<H>, Reuse),
    /// Another thread is giving that one back. This thread's request could come before the release, which would
    /// then free what was granted; and the lock could be handed to it from itself. So it asks under another
    /// number.
    Leaving,
    /// Nobody here has it or wants it, and no other process wanted it a moment ago: the thread asks. If it
    /// would wait, those who come now queue behind it.
    Calm(Option<Asking<H>>),
    /// Anything else.
    Used,
}

impl<H: Held> Entry<H> {
    pub(crate) fn new(key: LockKey, locks: &Arc<Locks<H>>) -> Arc<Entry<H>> {
        let state = LockState {
            holds: Vec::new(),
            queue: Queue::default(),
            burst: Burst::default(),
            turns: Turns::default(),
            until_asked: UntilAsked::default(),
            in_line: false,
            failure: None,
            contended: None,
            remembered_until: None,
        };
        Arc::new(Entry {
            key,
            has_turn: AtomicBool::new(false),
            state: Mutex::new(state),
            given_up: GivenUp::default(),
            locks: Arc::clone(locks),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, LockState<H>> {
        self.state.lock()
    }

    /// The hold that belongs to a thread, live or lost.
    pub(crate) fn of_thread(&self, thread: u64) -> Option<Arc<H>> {
        self.state().of_thread(thread)
    }

    /// How a thread finds the lock that is about to ask for it; `thread` is none where a guard is to be the
    /// owner. It is found calm only by one that `asks`, and then waits or does not. `keeps`: it would keep the lock
    /// until others ask.
    pub(crate) fn find(
        self: &Arc<Entry<H>>,
        thread: Option<u64>,
        asks: Option<FirstAttempt>,
        keeps: bool,
        now: Moment,
    ) -> Found<H> {
        let mut state = self.state();
        if let Some(thread) = thread {
            state.turns.note_asked(thread, now);
            if let Some(hold) = state.of_thread(thread) {
                return Found::Own(hold);
            }
            if let Some(hold) = state.turns.take(now, |kept| kept.is_of_thread(thread)) {
                let reuse = state.until_asked.use_again(&hold, keeps, now);
                return Found::Kept(hold, reuse);
            }
            // Looked at under the mutex. Pairs with `take_kept` and `watch`: a thread finds its hold before
            // they take it, or finds here that they have.
            if state.turns.is_leaving(|leaving| leaving.is_of_thread(thread)) {
                return Found::Leaving;
            }
        }
        match asks.filter(|_| state.is_calm(now)) {
            Some(FirstAttempt::Only) => Found::Calm(None),
            Some(FirstAttempt::Waits) => {
                state.queue.begin_asking();
                Found::Calm(Some(Asking(Some(Arc::clone(self)))))
            }
            None => Found::Used,
        }
    }

    /// Until when some hold of this process stands, if one does.
    pub(crate) fn held_here(&self, now: Moment) -> Option<Moment> {
        let state = self.state();
        let held = state.holds.iter().filter_map(|hold| hold.stands_until(now)).max();
        // On its way to a waiter here is held here too. Until that is settled nothing may be asked under the
        // releaser's number, which it may be about to use again.
        let is_receiving = state.queue.head().is_some_and(|head| head.is_receiving());
        held.or_else(|| is_receiving.then_some(Moment::NEVER))
    }

    /// Whether nobody of this process has the lock or wants it, nor did another process a moment ago.
    pub(crate) fn is_calm(&self, now: Moment) -> bool {
        self.state().is_calm(now)
    }

    /// The head of the queue.
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

    /// Promises the lock to the head of its queue, if that sleeps, and it is not other processes' turn.
    pub(crate) fn promise(&self, now: Moment) -> Next {
        let mut state = self.state();
        let LockState { queue, burst, turns, .. } = &mut *state;
        let Some(head) = queue.head() else { return Next::Nobody };
        let began = *burst.began.get_or_insert(now);
        if burst.handed >= BURST || now.since(began) >= BURST_TIME || turns.is_over(now) {
            return Next::Others;
        }
        let Some(claim) = head.promise() else { return Next::Nobody };
        burst.handed += 1;
        turns.pass_on(now);
        Next::Local(Arc::clone(head), claim)
    }

    // ---- turns

    /// The store granted the lock to this client, out of a line in which so many stood.
    pub(crate) fn begin_turn(&self, clients: u32, now: Moment) {
        self.state().turns.begin(clients, now);
        self.has_turn.store(true, Ordering::Relaxed);
    }

    /// Has each thread here be taken for one that comes back at once.
    #[cfg(leasehold_shuttle)]
    pub(crate) fn count_on_return(&self) {
        self.state().turns.count_on_return();
    }

    /// Whether the end of a hold is to ask whether that is [kept](Self::keep). Read by the thread
    /// that began the turn, or was handed the lock since.
    pub(crate) fn has_turn(&self) -> bool {
        self.has_turn.load(Ordering::Relaxed)
    }

    /// Keeps a hold whose last level has ended, if it is still here: until others ask for it if that was asked
    /// for, or, `by_turn`, if it is this client's turn yet.
    pub(crate) fn keep(&self, (hold, thread): (&Arc<H>, u64), by_turn: bool, now: Moment) -> Keeping {
        let mut state = self.state();
        let LockState { turns, until_asked, queue, holds, .. } = &mut *state;
        if !holds.iter().any(|other| Arc::ptr_eq(other, hold)) {
            return Keeping::Ends;
        }
        // Pairs with `Waiting::note_join`.
        if queue.is_empty() && until_asked.may_stay(hold, now) {
            turns.keep(hold);
            return Keeping::UntilAsked;
        }
        if by_turn { turns.dropped((hold, thread), queue.len(), now) } else { Keeping::Ends }
    }

    /// As [`Turns::note_return`].
    pub(crate) fn note_return(&self, thread: u64, now: Moment) {
        self.state().turns.note_return(thread, now);
    }

    /// Takes the hold that is kept, whichever thread had it: it is to be given back. Pairs with `find`.
    pub(crate) fn take_kept(&self) -> Option<Arc<H>> {
        self.has_turn().then(|| self.state().take_to_leave()).flatten()
    }

    /// The same, if it is this thread's, or any's.
    pub(crate) fn take_kept_of(&self, thread: Option<u64>) -> Option<Arc<H>> {
        let mut state = self.state();
        let is_of = |kept: &H| thread.is_none_or(|thread| kept.is_of_thread(thread));
        if state.turns.has_kept(is_of) { state.take_to_leave() } else { None }
    }

    /// The next step of whoever watches this lock.
    pub(crate) fn watch(&self, now: Moment) -> Watched<H> {
        let mut state = self.state();
        let next_look = match state.until_asked.watch(now) {
            Some(KeptStep::GiveBack) => {
                if let Some(hold) = state.take_to_leave() {
                    return Watched::Idle(hold);
                }
                None
            }
            Some(KeptStep::Look(hold)) => return Watched::Look(hold),
            Some(KeptStep::Until(moment)) if state.until_asked.is_idle() => return Watched::Until(moment),
            Some(KeptStep::Until(moment)) => Some(moment),
            None => None,
        };
        // One that may be kept until others ask is kept for a turn where they have.
        let step = state.turns.watch(now);
        if let Watched::Idle(hold) = &step {
            state.until_asked.forget(hold);
        }
        match (step, next_look) {
            (Watched::Until(moment), Some(next_look)) => Watched::Until(moment.min(next_look)),
            (Watched::Over, Some(next_look)) => {
                state.turns.begin_watch();
                Watched::Until(next_look)
            }
            (step, _) => step,
        }
    }

    // ---- kept until asked for

    /// The recalls of this lock that have come so far, if all are heard. `listen` begins to listen, if nobody
    /// does yet; then none is heard at once.
    pub(crate) fn heard(&self, now: Moment, listen: impl FnOnce() -> Option<Subscription>) -> Option<u64> {
        let state = self.state();
        if state.until_asked.listens() {
            return state.until_asked.heard(now);
        }
        drop(state); // a store has locks of its own
        let recalls = listen();
        let not_needed = self.state().until_asked.listen(recalls);
        drop(not_needed);
        None
    }

    /// A hold was granted that is to be kept; when it is to be looked at, and whether nobody watches this lock
    /// yet.
    pub(crate) fn keep_until_asked(&self, hold: &Arc<H>, terms: KeepTerms, now: Moment) -> (Moment, bool) {
        self.has_turn.store(true, Ordering::Relaxed);
        let mut state = self.state();
        (state.until_asked.begin(hold, terms, now), state.turns.begin_watch())
    }

    /// Others want this hold; if nobody uses it, it is taken out to be given back.
    pub(crate) fn note_wanted(&self, hold: &Arc<H>, now: Moment) -> Option<Arc<H>> {
        self.state().until_asked.note_wanted(hold, now);
        self.take_idle(hold)
    }

    /// Takes this hold out to be given back, if nobody uses it.
    pub(crate) fn take_idle(&self, hold: &Arc<H>) -> Option<Arc<H>> {
        let mut state = self.state();
        state.until_asked.is_idle_hold(hold).then(|| state.take_to_leave()).flatten()
    }

    /// Whether a hold is kept here until others ask for it, and not in use.
    pub(crate) fn is_kept_idle(&self) -> bool {
        self.has_turn() && self.state().until_asked.is_idle()
    }

    /// Has the entry be kept until then, although no value may be left; whether it is not kept yet.
    pub(crate) fn remember(&self, until: Moment) -> bool {
        let mut state = self.state();
        let before = state.remembered_until;
        state.remembered_until = before.max(Some(until));
        before.is_none()
    }

    /// When this process last released the lock, if others waited for it then, and who was notified.
    pub(crate) fn contended_since(&self) -> Option<(Moment, Others)> {
        self.state().contended
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

    /// Notifies the heads of the queue that the lock may be free.
    pub(crate) fn nudge(&self) {
        self.state().queue.nudge();
    }

    /// Joins the queue, until the place is dropped.
    pub(crate) fn join(self: &Arc<Entry<H>>, spins: bool) -> QueuePlace<H> {
        let ticket = self.state().queue.join(spins);
        QueuePlace { entry: Arc::clone(self), ticket }
    }

    /// Whether this client stands in the store's line for the lock, as far as is known.
    pub(crate) fn note_in_line(&self, is_in_line: bool) {
        self.state().in_line = is_in_line;
    }

    /// How many wait here.
    #[cfg(leasehold_shuttle)]
    pub(crate) fn waiting(&self) -> usize {
        self.state().queue.len()
    }

    /// The head of the queue could not use the store since then; `None`: it can.
    pub(crate) fn note_failure(&self, failure: Option<(Moment, Error)>) {
        let mut state = self.state();
        if !state.queue.is_empty() {
            state.failure = failure;
        }
    }

    /// The retry budget of the head is spent: so is that of the waiters behind it.
    pub(crate) fn wake_queue(&self) {
        self.state().queue.wake_all();
    }

    /// The last failure, if the head has had nothing but failures for as long as `retry_timeout`.
    pub(crate) fn spent_retry_budget(&self, patience: Duration, now: Moment) -> Option<Error> {
        let state = self.state();
        let (since, error) = state.failure.as_ref()?;
        (now.since(*since) >= patience).then(|| error.copy())
    }
}

impl<H: Held> LockState<H> {
    fn of_thread(&self, thread: u64) -> Option<Arc<H>> {
        self.holds.iter().find(|hold| hold.is_of_thread(thread) && !self.turns.is_kept(hold)).cloned()
    }

    /// As [`Entry::is_calm`].
    fn is_calm(&self, now: Moment) -> bool {
        self.holds.is_empty() && self.queue.is_idle() && !self.is_contended(now)
    }

    fn is_contended(&self, now: Moment) -> bool {
        self.contended.is_some_and(|(since, _)| now.since(since) < CONTENDED)
    }

    /// Takes the kept hold out to be given back. What is idle until others ask is kept, too: the two change
    /// together.
    fn take_to_leave(&mut self) -> Option<Arc<H>> {
        let hold = self.turns.take_to_leave()?;
        self.until_asked.forget(&hold);
        Some(hold)
    }

    /// Takes a hold out.
    pub(crate) fn take_out(&mut self, hold: &Arc<H>) {
        self.holds.retain(|other| !Arc::ptr_eq(other, hold));
        self.turns.forget(hold);
        self.until_asked.forget(hold);
    }

    /// A hold ended by a true release, of which `others` were notified; whether that is to be remembered.
    pub(crate) fn note_released(&mut self, others: Others, now: Moment) -> bool {
        self.burst = Burst::default();
        self.contended = (others != Others::Nobody).then_some((now, others));
        self.contended.is_some()
    }

    /// Forgets what concerns only those who had the lock or waited for it, if none is left.
    pub(crate) fn forget_if_unused(&mut self) {
        if self.queue.is_empty() {
            self.failure = None;
            if self.holds.is_empty() {
                self.turns.end();
                (self.burst, self.in_line) = (Burst::default(), false);
            }
        }
    }
}

impl<H> Drop for Entry<H> {
    fn drop(&mut self) {
        if is_forked() {
            return; // another thread of the parent may have had the mutex
        }
        let mut locks = self.locks.lock();
        // Another may have been made for the lock since this one was on its way out.
        if locks.get(&self.key).is_some_and(|entry| entry.strong_count() == 0) {
            locks.remove(&self.key);
        }
    }
}

/// A thread that asks for a lock without a place in its queue. Those who come now queue behind it, and none
/// of them is the head until this is dropped.
#[derive(Debug)]
pub(crate) struct Asking<H: Held>(Option<Arc<Entry<H>>>);

impl<H: Held> Asking<H> {
    /// Joins the queue instead. `None`: the question has ended.
    pub(crate) fn into_place(mut self) -> Option<QueuePlace<H>> {
        let entry = self.0.take()?;
        let ticket = entry.state().queue.join_asked();
        Some(QueuePlace { entry, ticket })
    }

    /// Ends the question by a grant. The entry's state, which the caller has locked, has the hold already.
    pub(crate) fn end_granted(mut self, state: &mut LockState<H>) {
        state.queue.end_asking();
        self.0 = None;
    }
}

impl<H: Held> Drop for Asking<H> {
    fn drop(&mut self) {
        if let Some(entry) = &self.0 {
            entry.state().queue.end_asking();
        }
    }
}

/// A thread's place in a lock's queue; dropping it leaves the queue, on every way out.
#[derive(Debug)]
pub(crate) struct QueuePlace<H: Held> {
    entry: Arc<Entry<H>>,
    ticket: Arc<Ticket>,
}

impl<H: Held> QueuePlace<H> {
    pub(crate) fn ticket(&self) -> &Arc<Ticket> {
        &self.ticket
    }

    /// Whether the client's place in the store's line is this waiter's to give up: it has one, and nobody
    /// else waits here.
    pub(crate) fn takes_line_place(&self) -> bool {
        let mut state = self.entry.state();
        state.queue.len() == 1 && std::mem::take(&mut state.in_line)
    }
}

impl<H: Held> Drop for QueuePlace<H> {
    fn drop(&mut self) {
        let mut state = self.entry.state();
        state.queue.leave(&self.ticket);
        state.forget_if_unused();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;

    impl Held for One {
        fn is_of_thread(&self, thread: u64) -> bool {
            thread == 1
        }

        fn stands_until(&self, now: Moment) -> Option<Moment> {
            Some(now)
        }
    }

    #[test]
    fn what_may_be_kept_until_others_ask_goes_at_the_end_of_its_turn_where_they_have() {
        let at = |us| Moment::from_nanos(0).plus(Duration::from_micros(us));
        let key = LockKey::new(Kind::Mutex, &Arc::new(LockName::new(&"a".into(), "a".to_owned()).unwrap()));
        let (entry, hold) = (Entry::new(key, &Arc::default()), Arc::new(One));
        entry.state().holds.push(Arc::clone(&hold));
        entry.state().turns.dropped((&hold, 1), 0, at(0));
        entry.state().turns.note_asked(1, at(0));
        entry.begin_turn(2, at(0));
        let terms = KeepTerms { heard: 0, is_wanted: true };
        assert_eq!(entry.keep_until_asked(&hold, terms, at(0)), (at(50_000), true));
        assert!(matches!(entry.watch(at(10)), Watched::Until(next) if next == at(310)), "it is in use");
        assert_eq!(entry.keep((&hold, 1), true, at(20)), Keeping::Kept { is_new: false });
        assert!(matches!(entry.watch(at(30)), Watched::Until(next) if next == at(320)));
        assert!(matches!(entry.watch(at(320)), Watched::Idle(idle) if Arc::ptr_eq(&idle, &hold)));
        assert!(matches!(entry.watch(at(2_000)), Watched::Over), "and with it what could be kept");
    }

    fn entry() -> Arc<Entry<One>> {
        let key = LockKey::new(Kind::Mutex, &Arc::new(LockName::new(&"a".into(), "a".to_owned()).unwrap()));
        Entry::new(key, &Arc::default())
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(0).plus(Duration::from_millis(ms))
    }

    #[test]
    fn a_hold_that_was_taken_out_meanwhile_is_not_kept() {
        let (entry, hold) = (entry(), Arc::new(One));
        entry.state().turns.dropped((&hold, 1), 0, at(0));
        entry.state().turns.note_asked(1, at(0));
        entry.begin_turn(2, at(0));
        entry.state().holds.push(Arc::clone(&hold));
        entry.state().take_out(&hold);
        assert_eq!(entry.keep((&hold, 1), true, at(0)), Keeping::Ends);
        assert!(entry.take_kept().is_none());
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
        assert!(entry.contended_since().is_none() && entry.is_calm(at(forgotten * 3 + 2)));
    }

    #[test]
    fn the_clients_place_in_the_line_is_given_up_once_and_by_no_later_waiter() {
        let entry = entry();
        entry.note_in_line(true);
        let place = entry.join(false);
        assert!(place.takes_line_place() && !place.takes_line_place());
        entry.note_in_line(true);
        let other = entry.join(false);
        assert!(!place.takes_line_place(), "others here wait in it");
        drop((place, other));
        assert!(!entry.join(false).takes_line_place(), "it was left with the last of them");
    }

    #[test]
    fn a_turn_is_over_when_the_last_that_waited_has_left_and_nobody_holds() {
        let (entry, hold) = (entry(), Arc::new(One));
        entry.state().turns.dropped((&hold, 1), 0, at(0));
        entry.state().turns.note_asked(1, at(0));
        entry.begin_turn(2, at(0));
        drop(entry.join(false));
        entry.state().holds.push(Arc::clone(&hold));
        assert_eq!(entry.keep((&hold, 1), true, at(0)), Keeping::Ends);
    }

    #[test]
    fn of_several_holds_the_others_stay_when_one_is_taken_out() {
        let (entry, holds) = (entry(), [Arc::new(One), Arc::new(One)]);
        entry.state().holds.extend(holds.iter().cloned());
        entry.state().take_out(&holds[0]);
        assert!(entry.held_here(at(0)).is_some());
        entry.state().take_out(&holds[1]);
        assert!(entry.held_here(at(0)).is_none());
    }
}
