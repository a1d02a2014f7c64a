//! `lock_builder(name).cached()` lets a client cache a released lock, so that its next use needs no request.

use std::sync::atomic::AtomicU32;

use super::harness::Store;
use crate::support::caching::{UNUSED, assert_cached_after, cycle, is_free_within, use_until_cached};
use crate::support::observer::attempts;
use crate::support::prelude::*;

#[track_caller]
fn use_until_held(lock: &RedisLock, other: &LockClient) {
    use_until_cached(lock, || !other.get_lock(lock.name()).is_locked().unwrap());
}

fn use_for(lock: &RedisLock, time: Duration) {
    let begun = now();
    while begun.elapsed() < time {
        cycle(lock);
    }
}

#[track_caller]
fn cached_lock(store: &Store) -> (RedisLock, LockClient) {
    let other = store.client();
    let lock = store.client().lock_builder(fresh("kept")).cached().build();
    use_until_held(&lock, &other);
    (lock, other)
}

#[track_caller]
fn assert_is_cached_after(release: impl FnOnce(), theirs: &RedisLock) {
    assert_cached_after(release, || !theirs.is_locked().unwrap());
}

#[track_caller]
fn is_freed_when_unused(lock: &RedisLock, other: &LockClient) {
    let theirs = other.get_lock(lock.name());
    is_free_within(now(), UNUSED, || !theirs.is_locked().unwrap());
}

contract!(a_thread_reuses_its_cached_lock_without_a_request, needs(Keeping), |store| {
    let asked = Arc::new(AtomicU32::new(0));
    let (client, other) = (store.client_with(|options| options.observer(attempts(&asked))), store.client());
    let lock = client.lock_builder(fresh("again")).cached().build();
    use_until_held(&lock, &other);
    let (before, grants) = (asked.load(Ordering::SeqCst), client.stats().grants);
    for _ in 0..500 {
        cycle(&lock);
        drop(lock.acquire().unwrap());
    }
    assert_eq!(client.stats().grants - grants, 1000, "each grant is counted");
    let asked = asked.load(Ordering::SeqCst) - before;
    // If a busy machine delays the client's check of the cached hold, the next use costs a request.
    assert!(asked <= 50, "asked {asked} times for 1,000 grants");
    assert_eq!(client.stats().holds, 0, "no thread holds the lock");
    client.shutdown().unwrap();
    assert!(
        !other.get_lock(lock.name()).is_locked().unwrap(),
        "the end of a client releases its cached holds"
    );
});

contract!(a_waiter_gets_an_idle_cached_lock_within_100_ms, needs(Keeping), |store| {
    let (lock, other) = cached_lock(store);
    let begun = now();
    let round = |_| {
        use_for(&lock, ms(1_000)); // afterwards the client checks for waiters only every half second
        let (theirs, asked) = (other.get_lock(lock.name()), now());
        elsewhere(|| cycle(&theirs));
        let took = asked.elapsed();
        use_until_held(&lock, &other);
        took
    };
    let rounds: Vec<Duration> = (0..5).map(round).collect();
    assert!(median(rounds.clone()) <= ms(100) + stalled_since(begun) / 5, "{rounds:?}");
});

contract!(a_waiter_gets_a_cached_lock_soon_after_the_unlock, needs(Keeping), |store| {
    let (lock, other) = cached_lock(store);
    let round = |_| {
        lock.lock().unwrap();
        let waiter = Waiter::start(turn(other.get_lock(lock.name())));
        let ended = now();
        lock.unlock().unwrap();
        let (had, _) = waiter.returns_within(UNUSED);
        use_until_held(&lock, &other);
        had.saturating_duration_since(ended)
    };
    let begun = now();
    let rounds: Vec<Duration> = (0..5).map(round).collect();
    assert!(median(rounds.clone()) <= ms(50) + stalled_since(begun) / 5, "{rounds:?}");
});

contract!(other_clients_find_a_cached_lock_busy, needs(Keeping), |store| {
    let (lock, other) = cached_lock(store);
    let theirs = other.get_lock(lock.name());
    let is_kept_out = || {
        cycle(&lock);
        !theirs.try_lock().unwrap() || theirs.unlock().is_err()
    };
    assert!(eventually(LONG, is_kept_out));
    let mine = lock.clone();
    let (taken, _) = call(move || mine.try_lock().inspect(|_| mine.unlock().unwrap())).outcome();
    assert!(taken.unwrap(), "the cached lock was busy for another thread");
    use_until_held(&lock, &other);
    assert!(!lock.is_locked().unwrap(), "the cached lock counts as held in its program");
    assert!(!theirs.is_locked().unwrap(), "the cached lock was not released");
});

contract!(a_cached_lock_unused_for_half_a_second_is_free, needs(Keeping), |store| {
    let (lock, other) = cached_lock(store);
    is_freed_when_unused(&lock, &other);
    assert_is_cached_after(|| cycle(&lock), &other.get_lock(lock.name()));
});

contract!(the_cached_lock_of_an_ended_thread_is_freed_soon, needs(Keeping), |store| {
    let other = store.client();
    let lock = store.client().lock_builder(fresh("ended")).cached().build();
    let (mine, theirs) = (lock.clone(), other.clone());
    start(move || use_until_held(&mine, &theirs)).join().unwrap();
    is_freed_when_unused(&lock, &other);
});

contract!(a_lock_is_cached_again_after_a_long_hold, needs(Keeping), |store| {
    let (lock, other) = cached_lock(store);
    let theirs = other.get_lock(lock.name());
    for _ in 0..2 {
        lock.lock().unwrap();
        let_pass(UNUSED * 2, "longer than an unused lock stays cached");
        assert!(!theirs.try_lock().unwrap());
        assert!(lock.is_held_by_current_thread().unwrap());
        assert_is_cached_after(|| lock.unlock().unwrap(), &theirs);
    }
});

contract!(a_cached_lock_keeps_its_token_until_another_owner_acquires, needs(Keeping), |store| {
    let (keeper, other) = (store.client(), store.client());
    let lock = keeper.lock_builder(fresh("fenced")).cached().build_fenced();
    let token = || {
        let guard = lock.acquire().unwrap();
        guard.fencing_token()
    };
    let mut last = token();
    let stays = || token() == std::mem::replace(&mut last, token());
    assert!(eventually(LONG, stays));
    let theirs = other.get_fenced_lock(lock.name()).acquire().unwrap();
    assert!(theirs.fencing_token() > last);
    let last = theirs.fencing_token();
    theirs.unlock().unwrap();
    assert!(token() > last);
});

contract!(two_clients_that_contend_for_a_cached_lock_both_progress, needs(Keeping), |store| {
    let (clients, name) = ([store.client(), store.client()], fresh("turns"));
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = clients
        .iter()
        .map(|client| {
            let (lock, stop) = (client.lock_builder(&name).cached().build(), Arc::clone(&stop));
            start(move || {
                while !stop.load(Ordering::SeqCst) {
                    cycle(&lock);
                }
            })
        })
        .collect();
    let have = || clients.iter().all(|client| client.stats().grants > 50);
    let had = eventually(LONG, have);
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(had, "{:?}", clients.each_ref().map(|client| client.stats().grants));
});

// The soak runs this contract for longer. Only lost holds fail it; unanswered calls are counted and printed.
contract!(a_cached_lock_in_use_survives_heavy_load, needs(Keeping), |store| {
    let seconds = std::env::var("LEASEHOLD_KEEP_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let losses = Arc::new(parking_lot::Mutex::new((Vec::new(), Duration::ZERO)));
    let noted = Arc::clone(&losses);
    let note = move |event: &leasehold::Event<'_>| match event {
        leasehold::Event::Lost { loss, held, overdue, .. } => {
            noted.lock().0.push(format!("{loss:?}, held for {held:?}, renewal overdue for {overdue:?}"));
        }
        leasehold::Event::Renewed { lag, .. } => {
            let mut noted = noted.lock();
            noted.1 = noted.1.max(*lag);
        }
        _ => {}
    };
    let (time, client, begun) = (
        Duration::from_secs(seconds.unwrap_or(1)),
        store.client_with(|options| options.observer(note)),
        now(),
    );
    let uses = |_| {
        let client = client.clone();
        start(move || {
            let lock = |_| client.lock_builder(fresh("busy")).cached().build();
            let locks: Vec<RedisLock> = (0..31).map(lock).collect();
            let (mut lost, mut unanswered) = (0, 0);
            for lock in locks.iter().cycle().take_while(|_| begun.elapsed() < time) {
                match lock.lock().and_then(|()| lock.unlock()) {
                    Err(error) if error.kind() == ErrorKind::NotHeld => lost += 1,
                    outcome => unanswered += u32::from(outcome.is_err()),
                }
            }
            (lost, unanswered)
        })
    };
    let threads: Vec<_> = (0..64).map(uses).collect();
    let ended: Vec<(u32, u32)> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let (lost, unanswered) = ended.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let uses = client.stats().grants;
    let (losses, lag) = &*losses.lock();
    shout(&format!(
        "MEASURED {uses} uses, {unanswered} unanswered, {lost} lost, renewals up to {lag:?} late"
    ));
    assert_eq!(lost, 0, "{losses:?}");
    assert!(client.stats().grants > 0, "no lock was acquired");
});
