//! One at a time: threads, clients, handles; and sums that come out exact.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{LockClient, RedisLock};

use super::harness::{Store, fresh};
use crate::support::processes::increments;
use crate::support::{Holding, RENEWED, elsewhere, leased, ms, throughout};

contracts!(
    threads_of_one_client_exclude_each_other,
    clients_exclude_each_other,
    two_clients_are_two_owners_even_on_one_thread,
    every_handle_for_a_name_is_the_same_lock,
    all_kinds_exclude_threads_and_clients,
    exactly_one_of_two_clients_holds,
    sixteen_clients_count_exactly,
    sixteen_threads_of_one_client_count_exactly,
    ten_threads_on_one_handle_are_never_two_inside,
    functions_that_lock_and_call_each_other_nest_on_two_threads,
    many_threads_over_few_names_all_get_through,
    a_storm_of_try_lock_keeps_exclusion_and_renewal,
);

/// Notices when two are inside at once.
#[derive(Default)]
struct Room {
    inside: AtomicUsize,
    visits: AtomicUsize,
}

impl Room {
    fn visit(&self, work: impl FnOnce()) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "somebody else is inside");
        work();
        self.visits.fetch_add(1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A counter that loses additions made at the same time.
#[derive(Default)]
struct Unprotected(AtomicU64);

impl Unprotected {
    fn add_one(&self) {
        let value = self.0.load(Ordering::Relaxed);
        thread::yield_now();
        self.0.store(value + 1, Ordering::Relaxed);
    }
}

fn threads_of_one_client_exclude_each_other(store: &Store) {
    let lock = store.client().get_lock(fresh("threads"));
    let held = Holding::take(&lock);
    assert!(!lock.try_lock().unwrap());
    assert!(!lock.try_lock_for(ms(30)).unwrap());
    assert!(lock.is_locked().unwrap());
    held.release();
    assert!(lock.try_lock().unwrap());
    lock.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());
}

fn clients_exclude_each_other(store: &Store) {
    let name = fresh("clients");
    let (one, other) = (store.client().get_lock(&name), store.client().get_lock(&name));
    for (holder, rival) in [(&one, &other), (&other, &one)] {
        holder.lock().unwrap();
        elsewhere(|| assert!(!rival.try_lock().unwrap()));
        assert!(!rival.try_lock_for(ms(30)).unwrap());
        assert!(rival.is_locked().unwrap());
        holder.unlock().unwrap();
        assert!(rival.try_lock().unwrap());
        rival.unlock().unwrap();
    }
}

fn two_clients_are_two_owners_even_on_one_thread(store: &Store) {
    let name = fresh("owners");
    let (one, other) = (store.client(), store.client());
    assert_ne!(one.id(), other.id());
    assert_ne!(one.current_owner(), other.current_owner());
    one.get_lock(&name).lock().unwrap();
    assert!(one.get_lock(&name).is_held_by_current_thread().unwrap());
    assert!(!other.get_lock(&name).is_held_by_current_thread().unwrap());
    assert_eq!(other.get_lock(&name).hold_count().unwrap(), 0);
    assert!(!other.get_lock(&name).try_lock().unwrap());
    assert!(other.get_lock(&name).unlock().unwrap_err().is_not_held());
    assert_eq!(one.get_lock(&name).hold_count().unwrap(), 1);
    one.get_lock(&name).unlock().unwrap();
}

fn every_handle_for_a_name_is_the_same_lock(store: &Store) {
    let client = store.client();
    let name = fresh("handles");
    let first = client.get_lock(&name);
    let (second, third, fourth) = (client.get_lock(&name), first.clone(), client.clone().get_lock(&name));
    first.lock().unwrap();
    second.lock().unwrap();
    assert_eq!(third.hold_count().unwrap(), 2);
    elsewhere(|| assert!(!fourth.try_lock().unwrap()));
    third.unlock().unwrap();
    fourth.unlock().unwrap();
    assert!(!first.is_locked().unwrap());
    assert!(elsewhere(|| second.try_lock().unwrap() && second.unlock().is_ok()));
}

fn all_kinds_exclude_threads_and_clients(store: &Store) {
    for kind in &store.kinds {
        let name = fresh(kind.label);
        let (client, stranger) = (store.client(), store.client());
        let (lock, rival) = ((kind.make)(&client, &name), (kind.make)(&stranger, &name));
        let held = Holding::take(&lock);
        assert!(!lock.try_lock().unwrap(), "{}", kind.label);
        assert!(!rival.try_lock().unwrap(), "{}", kind.label);
        assert!(!rival.try_lock_for(ms(30)).unwrap(), "{}", kind.label);
        held.release();
        assert!(rival.try_lock().unwrap(), "{}", kind.label);
        assert!(!lock.try_lock().unwrap(), "{}", kind.label);
        rival.unlock().unwrap();
    }
}

fn exactly_one_of_two_clients_holds(store: &Store) {
    for _ in 0..20 {
        let name = fresh("either");
        let locks = [store.client().get_lock(&name), store.client().get_lock(&name)];
        let held: Vec<bool> = thread::scope(|scope| {
            let tries: Vec<_> = locks
                .iter()
                .map(|lock| scope.spawn(|| (lock.try_lock().unwrap(), lock.is_held_by_current_thread())))
                .collect();
            tries
                .into_iter()
                .map(|attempt| {
                    let (held, seen) = attempt.join().unwrap();
                    assert_eq!(seen.unwrap(), held);
                    held
                })
                .collect()
        });
        assert_eq!(held.iter().filter(|held| **held).count(), 1, "{held:?}");
    }
}

/// Each lock's thread adds `rounds` times.
fn count(locks: &[RedisLock], rounds: u64) {
    let (counter, room) = (Unprotected::default(), Room::default());
    thread::scope(|scope| {
        for lock in locks {
            scope.spawn(|| {
                for _ in 0..rounds {
                    lock.lock().unwrap();
                    room.visit(|| counter.add_one());
                    lock.unlock().unwrap();
                }
            });
        }
    });
    assert_eq!(counter.0.load(Ordering::SeqCst), locks.len() as u64 * rounds);
}

fn sixteen_clients_count_exactly(store: &Store) {
    let name = fresh("counter");
    let locks: Vec<_> = (0..16).map(|_| store.client().get_lock(&name)).collect();
    count(&locks, 20);
}

fn sixteen_threads_of_one_client_count_exactly(store: &Store) {
    let lock = store.client().get_lock(fresh("counter"));
    count(&vec![lock; 16], increments() / 25);
}

fn ten_threads_on_one_handle_are_never_two_inside(store: &Store) {
    let lock = &store.client().get_lock(fresh("room"));
    let room = &Room::default();
    thread::scope(|scope| {
        for index in 0..10_u32 {
            scope.spawn(move || {
                for round in 0..20 {
                    // Every way in, in every order.
                    let guard = match (index + round) % 4 {
                        0 => lock.acquire().unwrap(),
                        1 => lock.try_acquire_for(Duration::MAX).unwrap().unwrap(),
                        2 => lock.acquire_with(&leased(ms(20_000))).unwrap().unwrap(),
                        _ => match lock.try_acquire().unwrap() {
                            Some(guard) => guard,
                            None => continue,
                        },
                    };
                    room.visit(thread::yield_now);
                    guard.unlock().unwrap();
                }
            });
        }
    });
    assert!(room.visits.load(Ordering::SeqCst) >= 10 * 15);
}

fn functions_that_lock_and_call_each_other_nest_on_two_threads(store: &Store) {
    fn foo(lock: &RedisLock, room: &Room) {
        let guard = lock.acquire().unwrap();
        room.visit(|| bar(lock));
        assert_eq!(lock.hold_count().unwrap(), 1);
        drop(guard);
    }
    fn bar(lock: &RedisLock) {
        let _guard = lock.acquire().unwrap();
        assert_eq!(lock.hold_count().unwrap(), 2);
        snafu(lock);
        assert_eq!(lock.hold_count().unwrap(), 2);
    }
    fn snafu(lock: &RedisLock) {
        lock.lock().unwrap();
        assert_eq!(lock.hold_count().unwrap(), 3);
        lock.unlock().unwrap();
    }
    let name = fresh("nest");
    let clients: [LockClient; 2] = [store.client(), store.client()];
    let room = &Room::default();
    thread::scope(|scope| {
        for client in &clients {
            let lock = client.get_lock(&name);
            scope.spawn(move || (0..10).for_each(|_| foo(&lock, room)));
        }
    });
    assert_eq!(room.visits.load(Ordering::SeqCst), 20);
}

fn many_threads_over_few_names_all_get_through(store: &Store) {
    let names: Vec<_> = (0..3).map(|_| fresh("few")).collect();
    let rooms: Vec<_> = names.iter().map(|_| Room::default()).collect();
    let clients = [store.client(), store.client()];
    thread::scope(|scope| {
        for thread in 0..24 {
            let (client, names, rooms) = (&clients[thread % 2], &names, &rooms);
            scope.spawn(move || {
                for round in 0..8 {
                    let place = (thread + round) % names.len();
                    // Two names at a time, always in the same order.
                    let outer = client.get_lock(&names[place]);
                    assert!(outer.try_lock_for(4 * crate::support::LONG).unwrap());
                    rooms[place].visit(|| {
                        if let Some(next) = names.get(place + 1) {
                            let inner = client.get_lock(next).acquire().unwrap();
                            rooms[place + 1].visit(thread::yield_now);
                            inner.unlock().unwrap();
                        }
                    });
                    outer.unlock().unwrap();
                }
            });
        }
    });
    assert!(names.iter().all(|name| !clients[0].get_lock(name).is_locked().unwrap()));
}

fn a_storm_of_try_lock_keeps_exclusion_and_renewal(store: &Store) {
    let client = store.client_with_lease(RENEWED);
    let name = fresh("storm");
    let lock = &client.get_lock(&name);
    let room = &Room::default();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(move || {
                for _ in 0..150 {
                    if lock.try_lock().unwrap() {
                        room.visit(|| ());
                        lock.unlock().unwrap();
                    }
                }
            });
        }
    });
    assert!(room.visits.load(Ordering::SeqCst) > 0);
    assert!(!lock.is_locked().unwrap());
    // The watchdog's registry still works after the storm's entries.
    let guard = lock.acquire().unwrap();
    let rival = store.client().get_lock(&name);
    throughout(RENEWED + ms(200), || rival.is_locked().unwrap() && guard.check().is_ok());
    guard.unlock().unwrap();
}
