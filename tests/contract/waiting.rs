//! Waits end at their time limit, or soon after the lock is released. A client's threads are served in order.

use super::harness::Need;
use crate::support::prelude::*;
use crate::support::processes::increments;

const MINUTE: Duration = Duration::from_secs(60);

contract!(a_wait_of_a_nanosecond_acquires_a_free_lock, |store| {
    let moment = Duration::from_nanos(1);
    for kind in &store.kinds {
        let lock = (kind.make)(&store.client(), &fresh(kind.label));
        for _ in 0..3 {
            assert!(lock.try_lock_for(moment).unwrap(), "{}", kind.label);
            lock.unlock().unwrap();
        }
    }
    if !store.lacks.contains(&Need::Counting) {
        let semaphore = store.client().get_semaphore(fresh("moment"));
        semaphore.try_set_permits(1).unwrap();
        for _ in 0..3 {
            drop(semaphore.try_acquire_for(1, moment).unwrap().expect("the permit is free"));
        }
    }
});

contract!(a_timed_try_respects_its_time_limit, |store| {
    let wait = ms(200);
    for (kind, name, [client, stranger]) in store.each() {
        let held = Holding::take(&(kind.make)(&client, &name));
        for lock in [(kind.make)(&client, &name), (kind.make)(&stranger, &name)] {
            let begun = now();
            assert!(!lock.try_lock_for(wait).unwrap());
            let waited = begun.elapsed();
            assert!(waited >= wait && waited <= wait + slack_since(begun), "{}: {waited:?}", kind.label);
            assert!(!lock.is_held_by_current_thread().unwrap());
        }
        held.release();
    }
});

contract!(a_try_without_a_wait_is_one_attempt, |store| {
    let once = AcquireOptions::new().wait(Duration::ZERO);
    for (kind, name, [client, stranger]) in store.each() {
        for lock in [(kind.make)(&client, &name), (kind.make)(&stranger, &name)] {
            let held = Holding::take(&(kind.make)(&client, &name));
            let begun = now();
            assert!(!lock.try_lock().unwrap());
            assert!(!lock.try_lock_for(Duration::ZERO).unwrap());
            assert!(!lock.try_lock_for_with_lease(Duration::ZERO, ms(1_000)).unwrap());
            assert!(lock.try_acquire().unwrap().is_none());
            assert!(lock.try_acquire_for(Duration::ZERO).unwrap().is_none());
            assert!(lock.try_acquire_owned_for(Duration::ZERO).unwrap().is_none());
            assert!(lock.acquire_with(&once).unwrap().is_none());
            assert!(lock.acquire_owned_with(&once).unwrap().is_none());
            assert!(once.with_lock(&lock, |_| panic!("the lock is not free")).unwrap().is_none());
            assert!(begun.elapsed() < slack_since(begun), "{:?}", begun.elapsed());
            held.release();
            assert!(lock.try_lock_for(Duration::ZERO).unwrap(), "one attempt did not get a free lock");
            lock.unlock().unwrap();
            lock.acquire_with(&once).unwrap().unwrap().unlock().unwrap();
            lock.acquire_owned_with(&once).unwrap().unwrap().unlock().unwrap();
        }
    }
});

contract!(a_try_until_an_instant_respects_that_instant, |store| {
    let (name, [client, stranger]) = store.clients("until");
    let held = Holding::take(&client.get_lock(&name));
    for lock in [client.get_lock(&name), stranger.get_lock(&name)] {
        for is_wait in [false, true] {
            let (options, begun) = (AcquireOptions::new(), now());
            let until = begun + ms(200);
            let options = if is_wait { options.wait(ms(200)) } else { options.deadline(until) };
            assert!(lock.acquire_with(&options).unwrap().is_none());
            assert!(now() >= until && now() <= until + slack_since(begun));
        }
    }
    held.release();
});

contract!(a_timed_try_ends_early_when_the_lock_is_released, |store| {
    for (kind, name, [client, stranger]) in store.each() {
        for lock in [(kind.make)(&client, &name), (kind.make)(&stranger, &name)] {
            let held = Holding::take(&(kind.make)(&client, &name));
            let options = AcquireOptions::new();
            let options = [options.clone().wait(MINUTE), options.clone().deadline(now() + MINUTE), options];
            let guarded = options.map(|options| {
                Waiter::on(lock.clone(), move |lock| lock.acquire_with(&options).unwrap().is_some())
            });
            let waiter = Waiter::start(move || {
                let had = lock.try_lock_for(MINUTE).unwrap();
                (had, lock.unlock())
            });
            held.release();
            assert!(guarded.into_iter().all(|waiter| waiter.returns_within(LONG).0));
            let ((had, unlocked), _) = waiter.returns_within(LONG);
            assert!(had);
            unlocked.unwrap();
        }
    }
});

contract!(threads_of_one_client_are_served_in_order_of_arrival, |store| {
    let lock = store.client().get_lock(fresh("order"));
    lock.lock().unwrap();
    let (tell, order) = unbounded();
    let waiters: Vec<_> = (0..6)
        .map(|place| {
            let (lock, tell) = (lock.clone(), tell.clone());
            Waiter::start(move || {
                let guard = lock.acquire().unwrap();
                tell.send(place).unwrap();
                guard.unlock().unwrap();
            })
        })
        .collect();
    lock.unlock().unwrap();
    waiters.into_iter().for_each(|waiter| waiter.returns_within(LONG).0);
    drop(tell);
    assert_eq!(order.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
});

contract!(a_waiter_that_gives_up_does_not_delay_the_next, |store| {
    let (name, [client, stranger]) = store.clients("place");
    for holder in [&client, &stranger] {
        let held = Holding::take(&holder.get_lock(&name));
        let head = Waiter::on(client.get_lock(&name), move |lock| lock.try_lock_for(ms(150)).unwrap());
        let next = Waiter::start(turn(client.get_lock(&name)));
        assert!(!head.returns_within(ms(150) + SLACK).0);
        let released = held.release();
        let (had, _) = next.returns_within(LONG);
        assert!(had.duration_since(released) <= ms(50) + slack_since(released));
    }
});

contract!(a_release_near_the_first_waiters_deadline_wakes_the_next, |store| {
    let (name, [client, stranger]) = store.clients("tie");
    let holder = stranger.get_lock(&name);
    for round in 0..8 {
        holder.lock().unwrap();
        let wait = ms(60);
        let begun = now();
        let head = Waiter::on(client.get_lock(&name), move |lock| {
            lock.try_lock_for(wait).unwrap() && lock.unlock().is_ok()
        });
        let next = Waiter::start(turn(client.get_lock(&name)));
        // The release comes close to the head's deadline, at a different offset in each round.
        let release_at = begun + wait + Duration::from_micros(500) * round;
        comes_true_within(LONG, || now() >= release_at);
        let before = now();
        holder.unlock().unwrap();
        head.returns_within(wait + SLACK);
        let (had, _) = next.returns_within(LONG);
        assert!(had.duration_since(before) <= ms(50) + slack_since(before));
    }
});

contract!(six_clients_with_one_waiter_each_are_all_woken, |store| {
    let name = fresh("many");
    let held = Holding::take(&store.client().get_lock(&name));
    let waiters: Vec<_> = (0..6).map(|_| Waiter::start(turn(store.client().get_lock(&name)))).collect();
    let released = held.release();
    for waiter in waiters {
        let (_, had) = waiter.returns_within(LONG);
        assert!(
            had.duration_since(released) <= ms(300) + slack_since(released),
            "{:?}",
            had.duration_since(released)
        );
    }
});

contract!(two_alternating_clients_lose_no_wake_up, |store| {
    let name = fresh("turns");
    let locks = [store.client().get_lock(&name), store.client().get_lock(&name)];
    let (rounds, begun) = (increments() / 5, now());
    let longest = Mutex::new(Duration::ZERO);
    side_by_side(&locks, |lock| {
        for _ in 0..rounds {
            let begun = now();
            lock.lock().unwrap();
            let took = begun.elapsed();
            lock.unlock().unwrap();
            let mut longest = longest.lock();
            *longest = longest.max(took);
        }
    });
    let longest = longest.into_inner();
    // A lost wake-up would delay the waiter by a second. The limit for a Redlock is longer, because competing
    // clients may pause there several times, each time for up to a quarter of a second.
    let votes = store.lacks.contains(&Need::Fair) && store.kinds[0].traits.wakes;
    let limit = if votes { ms(1_900) } else { ms(900) };
    assert!(longest < limit + stalled_since(begun), "{longest:?}");
});

contract!(a_contended_lock_does_not_delay_locks_of_other_names, |store| {
    for kind in &store.kinds {
        let (name, clients) = store.clients::<3>(kind.label);
        let held = Holding::take(&(kind.make)(&clients[0], &name));
        let waiter = |at: usize| Waiter::start(turn((kind.make)(&clients[at % 3], &name)));
        let waiters: Vec<_> = (0..12).map(waiter).collect();
        let begun = now();
        let spans: Vec<_> = (0..30)
            .map(|round| {
                let other = (kind.make)(&clients[round % 2], &format!("{name}-{}", round % 6));
                let start = now();
                other.lock().unwrap();
                other.unlock().unwrap();
                start.elapsed()
            })
            .collect();
        let stalled = stalled_since(begun);
        assert!(median(spans.clone()) <= ms(50) + stalled / 30, "{}: {spans:?}", kind.label);
        // A call that waited, missed its notification and polled a second later would take over 900 ms.
        assert!(spans.iter().all(|span| *span < ms(900) + stalled), "{}: {spans:?}", kind.label);
        held.release();
        all_return(waiters, LONG);
    }
});
