//! The hold of a dropped guard in its client's time slice: cached, used again, and released.

use super::*;
use crate::engine::hold::LocalLock;
use crate::engine::lock::caching::IDLE;

const US: Duration = Duration::from_micros(1);

/// A client in its time slice, with a clock that stands still; its thread came back at once for this guard.
struct InSlice {
    store: Arc<Odd>,
    clock: ManualClock,
    engine: Engine,
    name: Arc<LockName>,
    /// Kept from one hold to the next, as a lock value would.
    local: Arc<LocalLock>,
    guard: Granted,
}

fn begin(local: &LocalLock, clock: &ManualClock) {
    let mut state = local.state();
    let at = state.at(clock.now());
    state.caching.begin(48, at);
}

impl InSlice {
    fn begin() -> InSlice {
        let (store, clock) = (Arc::new(Odd::default()), ManualClock::new());
        let (engine, name) = (engine(&store, &Clock::Manual(clock.clone())), name());
        let local = engine.registry.local(Kind::Mutex, &name);
        let again = || {
            let granted = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
            begin(&local, &clock);
            granted
        };
        let granted = again();
        engine.drop_level(&granted.hold, granted.level);
        assert_eq!(*store.holder.lock(), None, "it is not known yet that the thread comes back");
        let guard = again();
        InSlice { store, clock, engine, name, local, guard }
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
fn a_returning_thread_needs_no_request_in_its_slice() {
    let turn = InSlice::begin();
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
fn a_cached_hold_belongs_to_no_thread() {
    let turn = InSlice::begin();
    turn.drop_guard();
    assert!(turn.engine.own_hold(&turn.local).is_none());
    assert_eq!((turn.engine.stats().holds, turn.engine.registry.uses(9, turn.clock.now()).0.len()), (0, 0));
    let error = unlock(&turn.engine, &turn.name).unwrap_err();
    assert!(error.not_held().is_some(), "{error}");
    turn.engine.shutdown().unwrap();

    let turn = InSlice::begin();
    turn.drop_guard();
    turn.clock.advance(IDLE - US);
    assert!(!turn.is_free());
    turn.clock.advance(US);
    comes_about("the release", || turn.is_free());
    assert_eq!(turn.engine.registry.holds().len(), 0);
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_call_with_another_lease_releases_the_cached_hold_first() {
    let turn = InSlice::begin();
    turn.drop_guard();
    let attempts = turn.attempts();
    let again = turn.lock(Lease::Fixed(Duration::from_secs(5)));
    assert_eq!(turn.attempts(), attempts + 1);
    assert!(!Arc::ptr_eq(&again.hold, &turn.guard.hold));
    // If the old hold were still cached, its release would free the new hold of the same owner.
    turn.clock.advance(IDLE * 20);
    assert_eq!(*turn.store.holder.lock(), Some(again.hold.owner()));
    turn.engine.end_level("unlock", &again.hold, Some(again.level)).unwrap();
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_question_releases_the_cached_hold_first() {
    let turn = InSlice::begin();
    turn.drop_guard();
    turn.engine.inspect("is_locked", Kind::Mutex, &turn.name).unwrap();
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();

    let turn = InSlice::begin();
    turn.drop_guard();
    turn.engine.force("force_unlock", Kind::Mutex, &turn.name).unwrap();
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_conditions_wait_caches_nothing() {
    let turn = InSlice::begin();
    turn.engine.end_all_levels("wait", &turn.guard.hold).unwrap();
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();
}

#[test]
fn the_end_of_a_client_releases_cached_holds() {
    let turn = InSlice::begin();
    turn.drop_guard();
    turn.engine.shutdown().unwrap();
    assert!(turn.is_free());
    assert_eq!(turn.engine.stats().lost_shut_down, 0, "nobody held it");
}

#[test]
fn a_hold_lost_while_cached_is_not_used_again() {
    let turn = InSlice::begin();
    turn.drop_guard();
    turn.engine.lose(&turn.guard.hold, LossReason::Gone);
    assert!(turn.engine.registry.holds().is_empty(), "no thread will end it");
    *turn.store.holder.lock() = None;
    let attempts = turn.attempts();
    let again = turn.lock(Lease::Renewed);
    assert_eq!(turn.attempts(), attempts + 1);
    assert_eq!(*turn.store.holder.lock(), Some(again.hold.owner()));
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_release_by_another_thread_changes_the_number() {
    let turn = InSlice::begin();
    turn.drop_guard();
    let number = ThreadMarker::current().number();
    // The release has begun, but is not sent yet.
    let (leaving, next) = turn.local.give_back(None, turn.engine.clock.now()).unwrap();
    thread::scope(|scope| {
        let give_back = || {
            comes_about("the owner's wait", || sleeps(&turn.engine, &turn.name));
            turn.engine.core.give_back(&leaving, next, turn.engine.clock.now(), Vec::new());
        };
        scope.spawn(give_back);
        let again = turn.lock(Lease::Renewed);
        assert_ne!(again.hold.owner().number(), number);
        assert_eq!(*turn.store.holder.lock(), Some(again.hold.owner()));
        turn.engine.end_level("unlock", &again.hold, Some(again.level)).unwrap();
    });
    assert_eq!(ThreadMarker::current().number(), number, "what else it holds is under that");
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_lost_hold_leaves_the_cached_one() {
    let turn = InSlice::begin();
    turn.engine.lose(&turn.guard.hold, LossReason::Gone);
    *turn.store.holder.lock() = None;
    let next = turn.lock(Lease::Renewed);
    begin(&turn.local, &turn.clock);
    turn.engine.drop_level(&next.hold, next.level);
    turn.drop_guard();
    assert!(!turn.is_free());
    turn.clock.advance(IDLE);
    comes_about("the release", || turn.is_free());
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_try_finds_a_cached_hold_free() {
    let turn = InSlice::begin();
    turn.drop_guard();
    thread::scope(|scope| {
        let tries = || acquire(&turn.engine, &turn.name, WaitLimit::Once, Lease::Renewed).unwrap().is_some();
        assert!(scope.spawn(tries).join().unwrap(), "no thread holds it");
    });
    turn.engine.shutdown().unwrap();

    let turn = InSlice::begin();
    turn.drop_guard();
    let call = AcquireCall::new("lock", Kind::Mutex, (&turn.name, &turn.local), WaitLimit::Once);
    assert!(turn.engine.acquire(&call).unwrap().is_some());
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_local_waiter_gets_an_unused_slice() {
    let turn = InSlice::begin();
    thread::scope(|scope| {
        let wait = || {
            let theirs = turn.lock(Lease::Renewed);
            turn.engine.end_level("unlock", &theirs.hold, Some(theirs.level)).unwrap();
        };
        let waiter = thread::Builder::new().spawn_scoped(scope, wait).unwrap();
        comes_about("the other thread's sleep", || sleeps(&turn.engine, &turn.name));
        turn.drop_guard();
        assert!(!turn.is_free(), "the thread that had it may be back");
        turn.clock.advance(IDLE);
        waiter.join().unwrap();
    });
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_handle_without_time_slices_caches_nothing() {
    let turn = InSlice::begin();
    turn.drop_guard();
    let call = AcquireCall::new("lock", Kind::Mutex, (&turn.name, &turn.local), FOREVER);
    let config = LockConfig { time_slices: false, ..LockConfig::default() };
    let attempts = turn.attempts();
    let granted = turn.engine.acquire(&AcquireCall { config, by_thread: true, ..call }).unwrap().unwrap();
    assert_eq!(turn.attempts(), attempts + 1);
    begin(&turn.local, &turn.clock);
    turn.engine.drop_level(&granted.hold, granted.level);
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();
}

/// To the store, tasks of a thread are one owner; to the client they are not.
#[cfg(feature = "tokio")]
#[test]
fn another_task_gets_a_lock_of_its_own() {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let caches = async {
            let turn = InSlice::begin();
            turn.drop_guard();
            turn
        };
        let turn = tokio::spawn(caches).await.unwrap();
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

/// Observers hear of a cached hold's end when its guard is dropped, otherwise when the hold is released.
#[test]
fn a_drop_after_the_slice_caches_nothing() {
    let turn = InSlice::begin();
    turn.clock.advance(Duration::from_millis(3));
    turn.drop_guard();
    assert!(turn.is_free() && !turn.guard.hold.is_cached());
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_client_that_is_ending_keeps_nothing() {
    let turn = InSlice::begin();
    turn.engine.calls.close();
    turn.drop_guard();
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();
}

#[test]
fn a_slice_ends_despite_local_waiters() {
    let turn = InSlice::begin();
    let _spins = turn.local.join(true);
    turn.engine.end_level("unlock", &turn.guard.hold, Some(turn.guard.level)).unwrap();
    let again = turn.lock(Lease::Renewed);
    turn.engine.drop_level(&again.hold, again.level);
    assert!(turn.is_free());
    turn.engine.shutdown().unwrap();
}
