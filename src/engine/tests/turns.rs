//! The hold of a dropped guard in its client's turn: kept, taken again, and given back.

use super::*;
use crate::engine::hold::LockEntry;

const US: Duration = Duration::from_micros(1);

/// A client whose turn it is at the lock, by a clock that stands still, and to which the thread has come back
/// at once before. The guard that it has is the second.
struct InTurn {
    store: Arc<Odd>,
    clock: ManualClock,
    engine: Engine,
    name: Arc<LockName>,
    /// As a lock value has it: it lasts from one hold to the next.
    entry: Arc<LockEntry>,
    guard: Granted,
}

impl InTurn {
    fn begin() -> InTurn {
        let (store, clock) = (Arc::new(Odd::default()), ManualClock::new());
        let (engine, name) = (engine(&store, &Clock::Manual(clock.clone())), name());
        let entry = engine.registry.entry(Kind::Mutex, &name);
        let again = || {
            let granted = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
            entry.state().caching.begin(48, clock.now());
            granted
        };
        let granted = again();
        engine.drop_level(&granted.hold, granted.level);
        assert_eq!(*store.holder.lock(), None, "it is not known yet that the thread comes back");
        let guard = again();
        InTurn { store, clock, engine, name, entry, guard }
    }

    fn drop_guard(&self) {
        self.engine.drop_level(&self.guard.hold, self.guard.level);
    }

    fn lock(&self, lease: Lease) -> Granted {
        acquire(&self.engine, &self.name, FOREVER, lease).unwrap().unwrap()
    }

    fn attempts(&self) -> usize {
        self.store.attempts.load(Ordering::SeqCst)
    }

    fn is_free(&self) -> bool {
        self.store.holder.lock().is_none()
    }
}

#[test]
fn a_thread_that_comes_back_in_its_turn_has_the_lock_without_a_request() {
    let turn = InTurn::begin();
    let (attempts, grants) = (turn.attempts(), turn.engine.stats().grants);
    turn.drop_guard();
    for _ in 0..5 {
        assert!(!turn.is_free());
        let again = turn.lock(Lease::Renewed);
        assert!(Arc::ptr_eq(&again.hold, &turn.guard.hold));
        assert_eq!(again.hold.count(), 1);
        turn.engine.drop_level(&again.hold, again.level);
    }
    let again = turn.lock(Lease::Renewed);
    turn.engine.end_level("unlock", &again.hold, Some(again.level)).unwrap();
    assert!(turn.is_free(), "unlock() promises that");
    assert_eq!(turn.attempts(), attempts);
    assert_eq!(turn.engine.stats().grants, grants + 6, "each is counted");
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_kept_hold_is_no_threads_and_is_given_back_when_nobody_comes() {
    let turn = InTurn::begin();
    turn.drop_guard();
    assert!(turn.engine.own_hold(&turn.entry).is_none());
    assert_eq!((turn.engine.stats().holds, turn.engine.registry.uses(9, turn.clock.now()).0.len()), (0, 0));
    let error = unlock(&turn.engine, &turn.name).unwrap_err();
    assert!(error.not_held().is_some(), "{error}");
    turn.engine.shutdown().unwrap();

    let turn = InTurn::begin();
    turn.drop_guard();
    turn.clock.advance(hold::caching::IDLE - US);
    assert!(!turn.is_free());
    turn.clock.advance(US);
    comes_about("the release", || turn.is_free());
    assert_eq!(turn.engine.registry.holds().len(), 0);
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_call_that_asks_for_something_else_gives_the_kept_hold_back_first() {
    let turn = InTurn::begin();
    turn.drop_guard();
    let attempts = turn.attempts();
    let again = turn.lock(Lease::Fixed(Duration::from_secs(5)));
    assert_eq!(turn.attempts(), attempts + 1);
    assert!(!Arc::ptr_eq(&again.hold, &turn.guard.hold));
    // Were the old one kept yet, its release would free this one, which has the same owner.
    turn.clock.advance(hold::caching::IDLE * 20);
    assert_eq!(*turn.store.holder.lock(), Some(again.hold.owner()));
    turn.engine.end_level("unlock", &again.hold, Some(again.level)).unwrap();
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_question_about_the_lock_gives_the_kept_hold_back_first() {
    let turn = InTurn::begin();
    turn.drop_guard();
    turn.engine.inspect("is_locked", Kind::Mutex, &turn.name).unwrap();
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();

    let turn = InTurn::begin();
    turn.drop_guard();
    turn.engine.force("force_unlock", Kind::Mutex, &turn.name).unwrap();
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();
}

#[test]
fn the_end_of_a_client_gives_back_what_it_keeps() {
    let turn = InTurn::begin();
    turn.drop_guard();
    turn.engine.shutdown().unwrap();
    assert!(turn.is_free());
    assert_eq!(turn.engine.stats().lost_shut_down, 0, "nobody held it");
}

#[test]
fn a_hold_that_was_lost_while_it_was_kept_is_not_taken_again() {
    let turn = InTurn::begin();
    turn.drop_guard();
    turn.engine.lose(&turn.guard.hold, LossReason::Gone);
    *turn.store.holder.lock() = None;
    let attempts = turn.attempts();
    let again = turn.lock(Lease::Renewed);
    assert_eq!(turn.attempts(), attempts + 1);
    assert_eq!(*turn.store.holder.lock(), Some(again.hold.owner()));
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_thread_whose_hold_another_gives_back_asks_under_another_number_and_keeps_its_own() {
    let turn = InTurn::begin();
    turn.drop_guard();
    let number = ThreadMark::current().number();
    // Taken out, and not on its way yet.
    let leaving = turn.entry.take_kept(None).unwrap();
    thread::scope(|scope| {
        let give_back = || {
            comes_about("the owner's wait", || turn.entry.head().is_some_and(|head| head.is_open()));
            turn.engine.core.give_back(
                &leaving,
                turn.engine.clock.now(),
                turn.engine.calls.begin().detached(),
            );
        };
        scope.spawn(give_back);
        let again = turn.lock(Lease::Renewed);
        assert_ne!(again.hold.owner().number(), number);
        assert_eq!(*turn.store.holder.lock(), Some(again.hold.owner()));
        turn.engine.end_level("unlock", &again.hold, Some(again.level)).unwrap();
    });
    assert_eq!(ThreadMark::current().number(), number, "what else it holds is under that");
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_lost_hold_that_goes_leaves_the_kept_one_to_be_given_back() {
    let turn = InTurn::begin();
    turn.engine.lose(&turn.guard.hold, LossReason::Gone);
    *turn.store.holder.lock() = None;
    let next = turn.lock(Lease::Renewed);
    turn.entry.state().caching.begin(48, turn.clock.now());
    turn.engine.drop_level(&next.hold, next.level);
    turn.drop_guard();
    assert!(!turn.is_free());
    turn.clock.advance(hold::caching::IDLE);
    comes_about("the release", || turn.is_free());
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_caller_that_does_not_wait_finds_a_kept_hold_free_and_an_owned_guard_does_too() {
    let turn = InTurn::begin();
    turn.drop_guard();
    thread::scope(|scope| {
        let tries = || acquire(&turn.engine, &turn.name, WaitLimit::Once, Lease::Renewed).unwrap().is_some();
        assert!(scope.spawn(tries).join().unwrap(), "no thread holds it");
    });
    turn.engine.shutdown().unwrap();

    let turn = InTurn::begin();
    turn.drop_guard();
    let call = AcquireCall::new("lock", Kind::Mutex, (&turn.name, &turn.entry), WaitLimit::Once);
    assert!(turn.engine.acquire(&call).unwrap().is_some());
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_thread_here_that_waits_gets_the_lock_when_the_one_that_had_it_stays_away() {
    let turn = InTurn::begin();
    thread::scope(|scope| {
        let wait = || {
            let theirs = turn.lock(Lease::Renewed);
            turn.engine.end_level("unlock", &theirs.hold, Some(theirs.level)).unwrap();
        };
        let waiter = thread::Builder::new().spawn_scoped(scope, wait).unwrap();
        comes_about("the other thread's sleep", || turn.entry.head().is_some_and(|head| head.is_open()));
        turn.drop_guard();
        assert!(!turn.is_free(), "the thread that had it may be back");
        turn.clock.advance(hold::caching::IDLE);
        waiter.join().unwrap();
    });
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_lock_value_without_turns_keeps_nothing() {
    let turn = InTurn::begin();
    turn.drop_guard();
    let call = AcquireCall::new("lock", Kind::Mutex, (&turn.name, &turn.entry), FOREVER);
    let terms = Terms { turns: false, ..Terms::default() };
    let attempts = turn.attempts();
    let granted = turn.engine.acquire(&AcquireCall { terms, by_thread: true, ..call }).unwrap().unwrap();
    assert_eq!(turn.attempts(), attempts + 1);
    turn.entry.state().caching.begin(48, turn.clock.now());
    turn.engine.drop_level(&granted.hold, granted.level);
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();
}

/// To the store tasks of a thread are one owner, and to the client they are not.
#[cfg(feature = "tokio")]
#[test]
fn another_task_of_the_thread_takes_a_lock_that_it_can_unlock() {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let keeps = async {
            let turn = InTurn::begin();
            turn.drop_guard();
            turn
        };
        let turn = tokio::spawn(keeps).await.unwrap();
        assert!(!turn.is_free());
        let attempts = turn.attempts();
        let theirs = turn.lock(Lease::Renewed);
        assert_eq!(turn.attempts(), attempts + 1);
        assert!(!Arc::ptr_eq(&theirs.hold, &turn.guard.hold));
        unlock(&turn.engine, &turn.name).unwrap();
        assert!(turn.is_free());
        turn.engine.shutdown().unwrap();
    });
}

/// The observers hear of the end of what was kept when its guard is dropped, and of all else when it is
/// released.
#[test]
fn a_guard_that_is_dropped_when_the_turn_is_over_leaves_no_kept_hold() {
    let turn = InTurn::begin();
    turn.clock.advance(Duration::from_millis(3));
    turn.drop_guard();
    assert!(turn.is_free() && !turn.guard.hold.is_kept());
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_client_that_is_ending_keeps_nothing() {
    let turn = InTurn::begin();
    turn.engine.calls.close();
    turn.drop_guard();
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_turn_is_over_with_a_true_release_although_others_here_want_the_lock() {
    let turn = InTurn::begin();
    let _spins = turn.entry.join(true);
    turn.engine.end_level("unlock", &turn.guard.hold, Some(turn.guard.level)).unwrap();
    let again = turn.lock(Lease::Renewed);
    turn.engine.drop_level(&again.hold, again.level);
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();
}
