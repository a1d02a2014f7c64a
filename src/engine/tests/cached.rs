//! The checks of holds that are cached until a recall.

use super::*;
use crate::engine::core::{Calls, Core, Ended};
use crate::engine::hold::{Hold, Holder, LocalLock};
use crate::engine::lock::caching::RULES;
use crate::engine::registry::Registry;
use crate::engine::renewals::CHUNK;
use crate::observe::event::Event;
use crate::park::take_time;

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);
/// Longer than the time until the second check.
const CHECKED: Duration = Duration::from_millis(200);

/// A client that caches holds, with a clock that stands still.
struct CachingClient {
    store: Arc<Scripted>,
    clock: ManualClock,
    engine: Running,
    /// How many failed renewals the client reported to its observer.
    told: Arc<AtomicUsize>,
}

impl CachingClient {
    fn begin() -> CachingClient {
        CachingClient::with_lease(Options::default().lease)
    }

    fn with_lease(lease: Duration) -> CachingClient {
        let (store, clock) = (Arc::new(Scripted { caches: true, ..notifying() }), ManualClock::new());
        let told = Arc::new(AtomicUsize::new(0));
        let tells = Arc::clone(&told);
        let observer = move |event: &Event<'_>| {
            tells.fetch_add(usize::from(matches!(event, Event::RenewalFailed { .. })), Ordering::SeqCst);
        };
        let (options, time) = (Options { lease, ..Options::default() }, Clock::Manual(clock.clone()));
        let open: Arc<dyn Store> = Arc::clone(&store) as _;
        let engine = Running::observed(options, time, open, Some(Arc::new(observer)));
        CachingClient { store, clock, engine, told }
    }

    fn lock(&self, name: &Arc<LockName>) -> Granted {
        lock_with(&self.engine, name, LockConfig { cached: true, ..LockConfig::default() })
    }

    fn unlock(&self, granted: &Granted) {
        release(&self.engine, granted).unwrap();
    }

    /// A lock that the calling thread holds, and that will be cached after its last level.
    fn used(&self, name: &Arc<LockName>) -> Granted {
        let first = self.lock(name);
        self.unlock(&first); // from now on the client listens for recalls
        let second = self.lock(name);
        assert!(second.hold.with(|own| own.recallable.is_some()));
        second
    }

    /// Makes this many unused cached holds. The caller must keep the returned local locks, as a user's lock
    /// values do; otherwise the client would forget the holds.
    fn cache_many(&self, many: usize) -> Vec<Arc<LocalLock>> {
        let names: Vec<_> = (0..many).map(|at| named(&format!("many {at}"))).collect();
        let entries = names.iter().map(|name| self.engine.registry.local(Kind::Mutex, name)).collect();
        // The first use of a lock subscribes to its recalls, the second caches the lock. All first uses
        // come first: this store has one channel, so a release would recall all locks that are cached already.
        let before = self.engine.registry.holds().len();
        for _ in 0..2 {
            names.iter().for_each(|name| self.unlock(&self.lock(name)));
        }
        assert_eq!(self.engine.registry.holds().len(), before + many);
        entries
    }

    /// Makes each of the next `many` releases take all the time that the cache thread has in a round.
    fn slow_releases(&self, many: usize) {
        for _ in 0..many {
            let clock = self.engine.clock.clone();
            self.store.releases.say(move || {
                take_time(&clock, MS * 100);
                freed()
            });
        }
    }
}

#[test]
fn an_unanswered_check_for_waiters_does_not_end_caching() {
    let client = CachingClient::begin();
    let (used, number) = (client.used(&named("a")), ThreadMarker::current().number());
    client.store.checks.say(in_doubt);
    client.clock.advance(CHECKED);
    assert!(client.store.checks.count() > 0);
    client.unlock(&used);
    assert!(client.store.holder().is_some(), "the hold is not cached");
    let next = client.lock(&named("a"));
    assert_eq!((Arc::ptr_eq(&next.hold, &used.hold), ThreadMarker::current().number()), (true, number));
    client.unlock(&next);
}

#[test]
fn an_unused_cached_hold_is_released_though_checks_go_unanswered() {
    let client = CachingClient::begin();
    client.unlock(&client.used(&named("a")));
    client.store.checks.always(in_doubt);
    client.clock.advance(RULES.unused - MS * 10);
    assert!(client.store.holder().is_some());
    client.clock.advance(MS * 10);
    comes_about("the release", || client.store.is_free());
}

/// The client renews the hold between two uses too, each time for its lease of 300 ms.
#[test]
fn a_reused_cached_hold_has_at_least_half_its_lease_left() {
    let client = CachingClient::with_lease(MS * 300);
    let mut last = client.used(&named("a"));
    for _ in 0..4 {
        client.unlock(&last);
        client.clock.advance(RULES.unused - MS * 50);
        last = client.lock(&named("a"));
        assert!(last.hold.until().since(client.clock.now()) >= MS * 150);
    }
    client.unlock(&last);
}

#[test]
fn failed_renewals_of_unused_holds_are_not_reported() {
    let client = CachingClient::with_lease(MS * 600);
    let failures = |used: &Granted, is_used: bool| {
        if !is_used {
            client.unlock(used);
        }
        client.store.renewals.say(in_doubt);
        client.clock.advance(MS * 250);
        assert_eq!(client.store.renewals.left(), 0, "the cached hold was not renewed");
        client.engine.stats().renewals_failed
    };
    let used = client.used(&named("a"));
    assert_eq!((failures(&used, false), client.told.load(Ordering::SeqCst)), (0, 0));
    client.clock.advance(RULES.unused);
    comes_about("the release", || client.store.is_free());
    let used = client.used(&named("a"));
    assert_eq!(failures(&used, true), 1);
    comes_about("the event", || client.told.load(Ordering::SeqCst) == 1);
    client.unlock(&used);
    assert!(client.store.is_free(), "a hold with a request of unknown outcome was cached");
}

#[test]
fn a_lock_is_forgotten_one_second_after_its_last_use() {
    let (registry, at) = (Registry::default(), |ms| Moment::from_nanos(0).plus(MS * ms));
    let remember = |name, now| registry.remember(&registry.local(Kind::Mutex, &named(name)), at(now));
    let is_known = |name| registry.found(Kind::Mutex, &named(name)).is_some();
    remember("first", 1);
    remember("second", 500);
    registry.tidy(at(1000));
    assert!(is_known("first"));
    registry.tidy(at(1001));
    assert_eq!(["first", "second"].map(is_known), [false, true]);
    remember("second", 900);
    registry.tidy(at(1500));
    registry.tidy(at(1899));
    assert!(is_known("second"), "the lock's state is known for a second after its last use");
    registry.tidy(at(1900));
    assert!(!is_known("second"));
}

#[test]
fn a_cache_check_notices_lost_holds_and_releases_wanted_ones() {
    let client = CachingClient::begin();
    let used = client.used(&named("a"));
    client.store.forget();
    client.store.checks.say(|| Ok(CachedCheck::Lost));
    client.clock.advance(CHECKED);
    let standing = used.hold.standing(client.clock.now());
    assert_eq!(standing, hold::Standing::Lost(LossReason::Gone));
    let error = release(&client.engine, &used).unwrap_err();
    assert_eq!(error.not_held(), Some(&NotHeld::Expired));
    for wanted in [false, true] {
        let used = client.used(&named("a"));
        client.unlock(&used);
        assert!(client.store.holder().is_some());
        let answer = if wanted { CachedCheck::Wanted } else { CachedCheck::Stays };
        client.store.checks.say(move || Ok(answer));
        client.clock.advance(MS * 60);
        assert_eq!(client.store.is_free(), wanted);
        let again = client.lock(&named("a"));
        client.engine.end_level("force", &again.hold, Some(again.level)).unwrap();
        client.engine.core.release_cached(&again.hold.local, None);
        comes_about("the release", || client.store.is_free());
    }
}

#[test]
fn many_cached_holds_are_released_even_if_releases_are_slow() {
    const HOLDS: usize = 4;
    let client = CachingClient::begin();
    let _values = client.cache_many(HOLDS);
    client.slow_releases(HOLDS);
    client.clock.advance(RULES.unused + CHECKED * 10);
    assert_eq!(client.store.releases.left(), 0, "the holds stay cached for good");
    assert_eq!(client.engine.registry.holds().len(), 0);
}

#[test]
fn one_round_of_checks_covers_every_cached_hold() {
    let client = CachingClient::begin();
    let _values = client.cache_many(CHUNK + 1);
    client.clock.advance(MS * 60);
    assert_eq!(client.store.checks.count(), CHUNK + 1);
    assert_eq!(client.engine.registry.holds().len(), CHUNK + 1);
}

#[test]
fn checks_that_find_the_lock_gone_do_not_pause_caching() {
    let client = CachingClient::begin();
    for is_used in [false, true, true] {
        let used = client.used(&named("a"));
        if !is_used {
            client.unlock(&used);
        }
        client.store.forget();
        client.store.checks.say(|| Ok(CachedCheck::Lost));
        client.clock.advance(MS * 60);
        assert_eq!(client.store.checks.left(), 0);
    }
    client.unlock(&client.used(&named("a")));
}

#[test]
fn a_waiter_releases_an_idle_hold_cached_for_another_thread() {
    let client = CachingClient::begin();
    client.unlock(&client.used(&named("a")));
    let (gets, got) = bounded(1);
    thread::scope(|scope| {
        let engine = &client.engine;
        scope.spawn(move || gets.send(acquire(engine, &named("a"), FOREVER, Lease::Renewed)).unwrap());
        let got = got.recv_timeout(LONG);
        drop(client.engine.shutdown()); // wakes the waiter, if it sleeps
        assert!(got.expect("the waiter waited for a check").unwrap().is_some());
    });
}

#[test]
fn a_lock_whose_subscription_is_down_is_not_cached() {
    let client = CachingClient::begin();
    client.unlock(&client.used(&named("a")));
    client.clock.advance(RULES.unused);
    comes_about("the release", || client.store.is_free());
    client.store.channel.as_ref().unwrap().set_up(false);
    let next = client.lock(&named("a"));
    assert!(next.hold.with(|own| own.recallable.is_none()));
    client.unlock(&next);
}

#[test]
fn an_ending_thread_releases_its_own_cached_holds() {
    let client = CachingClient::begin();
    let mine = client.used(&named("a"));
    client.unlock(&mine);
    let other = named("b");
    thread::scope(|scope| {
        let cached = scope.spawn(|| {
            for _ in 0..2 {
                client.store.attempts.say(granted);
                client.store.releases.say(freed);
            }
            client.unlock(&client.used(&other));
            assert_eq!(client.engine.registry.holds().len(), 2);
        });
        cached.join().unwrap();
    });
    assert_eq!(client.store.releases.left(), 0, "the ended thread's hold was not released");
    assert_eq!(client.engine.registry.holds().len(), 1);
    let attempts = client.store.attempts.count();
    client.unlock(&client.lock(&named("a")));
    assert_eq!(client.store.attempts.count(), attempts, "another thread's cached hold was released");
}

#[test]
fn ending_threads_each_release_their_cached_holds() {
    let client = CachingClient::begin();
    client.unlock(&client.used(&named("a")));
    let releases: Arc<Calls> = Arc::default();
    for thread in [0, ThreadMarker::current().id()] {
        let call = Arc::new(releases.begin());
        client.engine.cache_thread.ended.lock().push(Ended { thread: Some(thread), call });
    }
    drop(client.engine.core.end_cached(Some(0)));
    assert!(releases.wait(Clock::System.after(LONG), || false));
    assert!(client.store.is_free());
}

#[test]
fn slow_releases_for_an_ending_thread_delay_no_check() {
    const HOLDS: usize = 4;
    let client = CachingClient::begin();
    let used = client.used(&named("in use")); // first, because the release in it recalls all cached holds
    let _values = client.cache_many(HOLDS);
    client.slow_releases(HOLDS);
    let (store, (told, is_told)) = (Arc::clone(&client.store), bounded(1));
    client.store.checks.say(move || {
        told.send(store.releases.left()).unwrap();
        Ok(CachedCheck::Stays)
    });
    drop(client.engine.core.end_cached(Some(ThreadMarker::current().id())));
    let passes = |what, cond: &dyn Fn() -> bool| {
        comes_about(what, || {
            client.clock.advance(MS * 10);
            cond()
        });
    };
    passes("a check", &|| is_told.try_recv().is_ok_and(|left| left == HOLDS - 1));
    passes("the other releases", &|| client.store.releases.left() == 0);
    client.unlock(&used);
}

#[test]
fn after_shutdown_an_ending_thread_does_not_wait() {
    let client = CachingClient::begin();
    client.unlock(&client.used(&named("a")));
    client.engine.shutdown().unwrap();
    let releases = client.engine.core.end_cached(None).unwrap();
    assert!(releases.wait(Clock::System.after(LONG), || false));
}

/// One round of the cache thread, with an ending thread and a hold to be checked.
#[test]
fn an_ending_thread_does_not_wait_for_a_cache_check() {
    let (store, clock) = (Arc::new(Scripted { caches: true, ..scripted() }), ManualClock::new());
    let (open, reporter) = (Arc::<Scripted>::clone(&store) as Arc<dyn Store>, Arc::new(Reporter::new(None)));
    let (core, _parkers) = Core::new(Options::default(), Clock::Manual(clock.clone()), open.into(), reporter);
    let (name, lease) = (named("a"), core.options.lease);
    let (local, now) = (core.registry.local(Kind::Mutex, &name), clock.now());
    let claim = Claim::new(Kind::Mutex, &name, Owner::new(core.id, 1), lease);
    let hold = Hold::new(&claim, Holder::Guard { taker: None }, now, lease, &local);
    let (_hold, mut state, _level) = hold.begin(Lease::Renewed);
    state.until_recall(0, false, now, Duration::ZERO);
    local.enter(state, &mut None, &core.clock).unwrap();
    core.cache_thread.locks.lock().push(local);
    let calls: Arc<Calls> = Arc::default();
    let ended = Ended { thread: Some(u64::MAX), call: Arc::new(calls.begin()) };
    core.cache_thread.ended.lock().push(ended);
    let (told, is_told) = bounded(1);
    store.checks.say(move || {
        told.send(calls.wait(Clock::System.now(), || false)).unwrap();
        Ok(CachedCheck::Stays)
    });
    core.watch_cached();
    assert!(is_told.try_recv().unwrap());
}

#[test]
fn is_contended_registers_its_hold_before_subscribing() {
    let (keeps, name) = (CachingClient::begin(), named("a"));
    let held = lock(&keeps.engine, &name);
    let (told, is_told) = bounded(1);
    let local = Arc::clone(&held.hold.local);
    keeps.store.listens.before(move || told.send(local.hears()).unwrap());
    assert!(!keeps.engine.is_contended("is_contended", &held.hold).unwrap());
    assert!(is_told.try_recv().unwrap());
}

#[test]
fn is_contended_on_a_read_hold_ignores_local_readers() {
    let (keeps, name) = (CachingClient::begin(), named("a"));
    let read = || acquire_as(Kind::Read, &keeps.engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    let held = read();
    let (told, is_told) = bounded(1);
    let (engine, hold) = (Arc::clone(&keeps.engine), Arc::clone(&held.hold));
    keeps.store.attempts.before(move || told.send(engine.is_contended("is_contended", &hold)).unwrap());
    thread::scope(|scope| drop(scope.spawn(read)));
    assert!(!is_told.try_recv().unwrap().unwrap());
}
