//! Locks exclude threads, clients and handles. A counter that only a lock protects loses no increment.

use crate::support::prelude::*;
use crate::support::processes::increments;

#[derive(Default)]
struct Room {
    inside: AtomicUsize,
    visits: AtomicUsize,
}

impl Room {
    fn visit(&self, work: impl FnOnce()) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "another thread has the lock");
        work();
        self.visits.fetch_add(1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Unprotected(AtomicU64);

impl Unprotected {
    fn add_one(&self) {
        let value = self.0.load(Ordering::Relaxed);
        thread::yield_now();
        self.0.store(value + 1, Ordering::Relaxed);
    }
}

contract!(all_kinds_exclude_threads_and_clients, |store| {
    for (kind, name, [client, stranger]) in store.each() {
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
});

contract!(exactly_one_of_two_simultaneous_tries_acquires_the_lock, |store| {
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
});

fn count(locks: &[RedisLock], rounds: u64) {
    let (counter, room) = (Unprotected::default(), Room::default());
    side_by_side(locks, |lock| {
        for _ in 0..rounds {
            lock.lock().unwrap();
            room.visit(|| counter.add_one());
            lock.unlock().unwrap();
        }
    });
    assert_eq!(counter.0.load(Ordering::SeqCst), locks.len() as u64 * rounds);
}

contract!(sixteen_clients_incrementing_under_the_lock_lose_no_increment, |store| {
    let name = fresh("counter");
    let locks: Vec<_> = (0..16).map(|_| store.client().get_lock(&name)).collect();
    count(&locks, 20);
});

contract!(sixteen_threads_incrementing_under_the_lock_lose_no_increment, |store| {
    let lock = store.client().get_lock(fresh("counter"));
    count(&vec![lock; 16], increments() / 25);
});
