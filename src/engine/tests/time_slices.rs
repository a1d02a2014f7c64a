//! The hold of a dropped guard in a time slice: cached, reused, and released.

use super::*;
use crate::engine::hold::LocalLock;
use crate::engine::lock::caching::RULES;

const US: Duration = Duration::from_micros(1);

/// A client in its time slice, with a manual clock. Its thread reacquired the lock at once, so a
/// drop of `guard` caches the hold.
struct InSlice {
    store: Arc<Scripted>,
    clock: ManualClock,
    engine: Running,
    name: Arc<LockName>,
    /// Keeps the local lock alive between two holds, as a lock value would.
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
        let (store, clock, engine, name) = standing(scripted());
        let local = engine.registry.local(Kind::Mutex, &name);
        let again = || {
            let granted = lock(&engine, &name);
            begin(&local, &clock);
            granted
        };
        let granted = again();
        drop_guard(&engine, &granted);
        assert!(store.is_free(), "the hold was cached before the thread had come back");
        let guard = again();
        InSlice { store, clock, engine, name, local, guard }
    }

    /// As `begin`, after the guard was dropped.
    fn ended() -> InSlice {
        let turn = InSlice::begin();
        turn.drop_guard();
        turn
    }

    fn drop_guard(&self) {
        drop_guard(&self.engine, &self.guard);
    }

    fn lock(&self, lease: Lease) -> Granted {
        acquire(&self.engine, &self.name, FOREVER, lease).unwrap().unwrap()
    }

    fn attempts(&self) -> usize {
        self.store.attempts.count()
    }

    fn is_free(&self) -> bool {
        self.store.is_free()
    }
}

#[test]
fn reacquiring_a_cached_lock_within_milliseconds_sends_no_request() {
    let turn = InSlice::begin();
    let (attempts, grants) = (turn.attempts(), turn.engine.stats().grants);
    turn.drop_guard();
    for _ in 0..5 {
        assert!(!turn.is_free());
        let again = turn.lock(Lease::Renewed);
        assert!(Arc::ptr_eq(&again.hold, &turn.guard.hold));
        assert_eq!(again.hold.count(), 1);
        drop_guard(&turn.engine, &again);
    }
    let again = turn.lock(Lease::Renewed);
    release(&turn.engine, &again).unwrap();
    assert!(turn.is_free(), "the lock is not free after unlock()");
    assert_eq!(turn.attempts(), attempts);
    assert_eq!(turn.engine.stats().grants, grants + 6, "each grant is counted");
}

#[test]
fn a_cached_hold_is_no_hold_of_its_thread() {
    let turn = InSlice::ended();
    assert!(turn.engine.own_hold(&turn.local).is_none());
    assert_eq!((turn.engine.stats().holds, turn.engine.registry.uses(9, turn.clock.now()).0.len()), (0, 0));
    let error = unlock(&turn.engine, &turn.name).unwrap_err();
    assert!(error.not_held().is_some(), "{error}");

    let turn = InSlice::ended();
    turn.clock.advance(RULES.idle - US);
    assert!(!turn.is_free());
    turn.clock.advance(US);
    comes_about("the release", || turn.is_free());
    assert_eq!(turn.engine.registry.holds().len(), 0);
}

#[test]
fn a_call_with_another_lease_releases_the_cached_hold_first() {
    let turn = InSlice::ended();
    let attempts = turn.attempts();
    let again = turn.lock(Lease::Fixed(Duration::from_secs(5)));
    assert_eq!(turn.attempts(), attempts + 1);
    assert!(!Arc::ptr_eq(&again.hold, &turn.guard.hold));
    // If the old hold were still cached, its release would now free the new hold of the same owner.
    turn.clock.advance(RULES.idle * 20);
    assert_eq!(turn.store.holder(), Some(again.hold.owner().to_string()));
    release(&turn.engine, &again).unwrap();
}

#[test]
fn is_locked_and_force_unlock_release_the_cached_hold_first() {
    let turn = InSlice::ended();
    turn.engine.inspect("is_locked", Kind::Mutex, &turn.name).unwrap();
    assert!(turn.is_free());

    let turn = InSlice::ended();
    turn.engine.force("force_unlock", Kind::Mutex, &turn.name).unwrap();
    assert!(turn.is_free());
}

#[test]
fn the_end_of_a_client_releases_cached_holds() {
    let turn = InSlice::ended();
    turn.engine.shutdown().unwrap();
    assert!(turn.is_free());
    assert_eq!(turn.engine.stats().lost_shut_down, 0, "the end of an unused hold was counted as a loss");
}

#[test]
fn a_hold_lost_while_cached_is_not_used_again() {
    let turn = InSlice::ended();
    turn.engine.lose(&turn.guard.hold, LossReason::Gone);
    assert!(turn.engine.registry.holds().is_empty(), "a lost cached hold is still in the registry");
    turn.store.forget();
    let attempts = turn.attempts();
    let again = turn.lock(Lease::Renewed);
    assert_eq!(turn.attempts(), attempts + 1);
    assert_eq!(turn.store.holder(), Some(again.hold.owner().to_string()));
}

#[test]
fn relocking_while_a_cached_hold_is_released_uses_another_number() {
    let turn = InSlice::ended();
    let number = ThreadMarker::current().number();
    let given = turn.local.on(turn.engine.clock.now(), |lock, at| lock.release_cached(None, at));
    assert!(given.is_some());
    thread::scope(|scope| {
        scope.spawn(|| {
            comes_about("the owner's wait", || sleeps(&turn.engine, &turn.name));
            turn.engine.core.send_cached_release(given, None);
        });
        let again = turn.lock(Lease::Renewed);
        assert_ne!(again.hold.owner().number(), number);
        assert_eq!(turn.store.holder(), Some(again.hold.owner().to_string()));
        release(&turn.engine, &again).unwrap();
    });
    assert_eq!(ThreadMarker::current().number(), number, "another hold has this number");
}

#[test]
fn dropping_a_lost_guard_releases_no_later_cached_hold() {
    let turn = InSlice::begin();
    turn.engine.lose(&turn.guard.hold, LossReason::Gone);
    turn.store.forget();
    let next = turn.lock(Lease::Renewed);
    begin(&turn.local, &turn.clock);
    drop_guard(&turn.engine, &next);
    turn.drop_guard();
    assert!(!turn.is_free());
    turn.clock.advance(RULES.idle);
    comes_about("the release", || turn.is_free());
}

#[test]
fn a_try_of_any_local_thread_gets_a_cached_lock() {
    let turn = InSlice::ended();
    thread::scope(|scope| {
        let tries = || acquire(&turn.engine, &turn.name, ONCE, Lease::Renewed).unwrap().is_some();
        assert!(scope.spawn(tries).join().unwrap(), "a try did not get a lock that no thread holds");
    });

    let turn = InSlice::ended();
    let call = AcquireCall::new("lock", Kind::Mutex, (&turn.name, &turn.local), ONCE);
    assert!(turn.engine.acquire(&call).unwrap().is_some());
}

#[test]
fn a_local_waiter_gets_the_lock_of_an_idle_cached_hold() {
    let turn = InSlice::begin();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let theirs = turn.lock(Lease::Renewed);
            release(&turn.engine, &theirs).unwrap();
        });
        comes_about("the other thread's sleep", || sleeps(&turn.engine, &turn.name));
        turn.drop_guard();
        assert!(!turn.is_free(), "the cached hold was released before its thread could come back");
        turn.clock.advance(RULES.idle);
        waiter.join().unwrap();
    });
    assert!(turn.is_free());
}

#[test]
fn a_handle_without_caching_neither_uses_nor_leaves_cached_holds() {
    let turn = InSlice::ended();
    let config = LockConfig { no_time_slices: true, ..LockConfig::default() };
    let attempts = turn.attempts();
    let granted = lock_with(&turn.engine, &turn.name, config);
    assert_eq!(turn.attempts(), attempts + 1);
    begin(&turn.local, &turn.clock);
    drop_guard(&turn.engine, &granted);
    assert!(turn.is_free());
}

/// For the store, all tasks of a thread are one owner. For the client each task is its own.
#[cfg(feature = "tokio")]
#[test]
fn no_task_reuses_a_hold_cached_for_another_task() {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let turn = tokio::spawn(async { InSlice::ended() }).await.unwrap();
        assert!(!turn.is_free());
        let attempts = turn.attempts();
        let theirs = turn.lock(Lease::Renewed);
        assert_eq!(turn.attempts(), attempts + 1);
        assert!(!Arc::ptr_eq(&theirs.hold, &turn.guard.hold));
        unlock(&turn.engine, &turn.name).unwrap();
        assert!(turn.is_free());
    });
}

/// If the released hold still counted as cached, observers would not hear of its release.
#[test]
fn condition_waits_shutdowns_and_passed_time_leave_no_cached_hold() {
    let ends: [fn(&InSlice); 3] = [
        |turn| turn.engine.end_all_levels("wait", &turn.guard.hold).unwrap(),
        |turn| {
            turn.clock.advance(Duration::from_millis(3));
            turn.drop_guard();
        },
        |turn| {
            turn.engine.calls.close();
            turn.drop_guard();
        },
    ];
    for end in ends {
        let turn = InSlice::begin();
        end(&turn);
        assert!(turn.is_free() && !turn.guard.hold.is_cached());
    }
}

#[test]
fn unlock_ends_the_time_slice_despite_local_waiters() {
    let turn = InSlice::begin();
    let _spins = turn.local.join(true);
    release(&turn.engine, &turn.guard).unwrap();
    let again = turn.lock(Lease::Renewed);
    drop_guard(&turn.engine, &again);
    assert!(turn.is_free());
}
