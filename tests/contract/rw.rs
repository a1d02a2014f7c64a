//! A read-write lock has many readers or one writer.

use std::sync::Mutex;
use std::sync::atomic::AtomicI32;

use leasehold::{Mode, ObjectKind, ReadWriteLock};

use super::harness::Store;
use crate::support::prelude::*;

// While a plain lock has the name, calls fail instead of waiting, because neither kind's release would wake
// the waiters of the other kind.
contract!(a_name_held_by_a_plain_lock_is_refused, needs(ReadWrite), |store| {
    let (name, [client, other]) = store.clients("plain");
    let held = client.get_lock(&name).acquire().unwrap();
    for asking in [&client, &other] {
        let lock = asking.get_read_write_lock(&name);
        for half in [lock.read(), lock.write()] {
            for wait in [Duration::ZERO, LONG] {
                let error = elsewhere(|| half.try_lock_for(wait).unwrap_err());
                assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
                assert!(!error.outcome_unknown() && !error.is_retryable(), "{error}");
            }
        }
    }
    held.unlock().unwrap();
    let lock = other.get_read_write_lock(&name);
    assert!(lock.write().try_lock().unwrap());
    lock.write().unlock().unwrap();
});

contract!(readers_share_the_lock_and_exclude_writers, needs(ReadWrite), |store| {
    let [mine, other] = store.two("rw", |client, name| client.get_read_write_lock(name));
    let first = mine.read().acquire().unwrap();
    let second = elsewhere(|| mine.read().acquire_owned().unwrap());
    let third = other.read().try_acquire().unwrap().unwrap();
    for lock in [mine.clone(), other.clone()] {
        elsewhere(|| assert!(!lock.write().try_lock().unwrap()));
    }
    first.unlock().unwrap();
    second.unlock().unwrap();
    elsewhere(|| assert!(!mine.write().try_lock().unwrap()));
    third.unlock().unwrap();
    assert!(mine.write().try_acquire().unwrap().is_some());
});

contract!(a_writer_excludes_all_other_owners, needs(ReadWrite), |store| {
    let [mine, other] = store.two("rw", |client, name| client.get_read_write_lock(name));
    let writing = mine.write().acquire().unwrap();
    for lock in [mine.clone(), other.clone()] {
        elsewhere(|| {
            assert!(!lock.read().try_lock().unwrap());
            assert!(!lock.write().try_lock().unwrap());
        });
    }
    writing.unlock().unwrap();
    assert!(other.read().try_acquire().unwrap().is_some());
});

contract!(read_and_write_halves_are_reentrant, needs(ReadWrite), |store| {
    let client = store.client();
    let lock = client.get_read_write_lock(fresh("rw"));
    for half in [lock.read(), lock.write()] {
        for count in 1..=3 {
            half.lock().unwrap();
            assert_eq!(half.hold_count().unwrap(), count);
        }
        for left in [2, 1, 0] {
            elsewhere(|| assert!(!lock.write().try_lock().unwrap()));
            half.unlock().unwrap();
            assert_eq!(half.hold_count().unwrap(), left);
        }
        assert!(half.unlock().unwrap_err().is_not_held());
        assert!(!half.is_locked().unwrap());
    }
});

contract!(a_writer_can_read_and_downgrade, needs(ReadWrite), |store| {
    let [lock, foreign] = locks(store, false);
    let writing = lock.write().acquire().unwrap();
    let reading = lock.read().acquire().unwrap();
    assert!(!foreign.read().try_lock().unwrap());
    writing.unlock().unwrap();
    assert!(!foreign.write().try_lock().unwrap());
    assert!(foreign.read().try_acquire().unwrap().is_some());
    reading.unlock().unwrap();
    assert!(foreign.write().try_acquire().unwrap().is_some());
    let writing = lock.write().acquire().unwrap();
    lock.read().acquire().unwrap().unlock().unwrap();
    assert!(!foreign.read().try_lock().unwrap());
    assert_eq!(lock.write().hold_count().unwrap(), 1);
    writing.unlock().unwrap();
    assert!(!lock.write().is_locked().unwrap());
});

contract!(a_downgrade_lets_waiting_readers_in, needs(ReadWrite), |store| {
    let [lock, other] = store.two("rw", |client, name| client.get_read_write_lock(name));
    let writing = lock.write().acquire().unwrap();
    let reading = lock.read().acquire().unwrap();
    let waiter = Waiter::on(other.clone(), move |foreign| foreign.read().lock().unwrap());
    waiter.settle();
    let freed = now();
    writing.unlock().unwrap();
    waiter.woken_since(freed);
    reading.unlock().unwrap();
});

contract!(a_writer_can_read_ahead_of_waiting_readers, needs(ReadWrite), |store| {
    let client = store.client();
    let lock = client.get_read_write_lock(fresh("rw"));
    let writing = lock.write().acquire().unwrap();
    let waiter = Waiter::on(lock.clone(), move |lock| lock.read().acquire().unwrap().unlock().unwrap());
    waiter.settle();
    let reading = lock.read().try_acquire_for(LONG).unwrap().expect("a writer may read");
    writing.unlock().unwrap();
    waiter.returns_within(SLACK * 4);
    reading.unlock().unwrap();
});

contract!(a_reader_cannot_become_the_writer, needs(ReadWrite), |store| {
    let client = store.client();
    let lock = client.get_read_write_lock(fresh("rw"));
    let reading = lock.read().acquire().unwrap();
    let begun = now();
    fails(lock.write().lock(), ErrorKind::WouldDeadlock);
    fails(lock.write().try_lock_for(LONG), ErrorKind::WouldDeadlock);
    assert!(begun.elapsed() < slack_since(begun));
    assert!(!lock.write().try_lock().unwrap());
    assert!(lock.write().try_acquire().unwrap().is_none());
    // Another client in this thread is another owner, so its write would wait for the first client's read.
    assert!(!store.client().get_read_write_lock(lock.read().name()).write().try_lock_for(ms(20)).unwrap());
    reading.unlock().unwrap();
    assert!(lock.write().try_acquire().unwrap().is_some());
});

contract!(an_owned_acquire_blocked_by_its_own_thread_fails, needs(ReadWrite), |store| {
    let lock = store.client().get_read_write_lock(fresh("rw"));
    let begun = now();
    let reading = lock.read().acquire().unwrap();
    fails(lock.write().acquire_owned().map(drop), ErrorKind::WouldDeadlock);
    let timed = lock.write().try_acquire_owned_for(LONG).map(drop);
    fails(timed, ErrorKind::WouldDeadlock);
    assert!(lock.write().try_acquire_owned_for(ms(0)).unwrap().is_none());
    reading.unlock().unwrap();
    let writing = lock.write().acquire().unwrap();
    fails(lock.read().acquire_owned().map(drop), ErrorKind::WouldDeadlock);
    lock.read().acquire().unwrap().unlock().unwrap();
    assert!(begun.elapsed() < slack_since(begun));
    let waiter = Waiter::on(lock.clone(), move |lock| lock.read().acquire_owned().unwrap().unlock().unwrap());
    writing.unlock().unwrap();
    waiter.returns_within(SLACK * 4);
});

contract!(a_dead_reader_loses_its_hold_beside_a_renewed_reader, needs(ReadWrite), |store| {
    let (client, other) = (store.client_with_lease(RENEWED), store.client());
    let name = fresh("zombie");
    let lease = RENEWED + ms(200);
    elsewhere(|| client.get_read_write_lock(&name).read().lock_with_lease(lease).unwrap());
    let reading = elsewhere(|| client.get_read_write_lock(&name).read().acquire_owned().unwrap());
    let taken = now();
    throughout(lease + ms(300), || reading.check().is_ok());
    let waiter = write(&other.get_read_write_lock(&name));
    throughout(ms(30), || !waiter.is_over());
    let freed = now();
    assert!(freed.duration_since(taken) > lease);
    reading.unlock().unwrap();
    waiter.woken_since(freed);
});

contract!(expired_leases_admit_waiting_readers_and_writers, needs(ReadWrite), |store| {
    let (name, clients) = store.clients::<2>("leases");
    let lock = store.client().get_read_write_lock(&name);
    let begun = now();
    lock.write().lock_with_lease(ms(200)).unwrap();
    let readers: Vec<_> = [ms(100), ms(400)]
        .into_iter()
        .zip(&clients)
        .map(|(lease, client)| {
            let lock = client.get_read_write_lock(&name);
            Waiter::start(move || lock.read().lock_with_lease(lease).unwrap())
        })
        .collect();
    for reader in readers {
        let (_, returned) = reader.returns_within(store.freed_within(ms(200)) + SLACK);
        assert!(returned.duration_since(begun) >= ms(195), "{:?}", returned.duration_since(begun));
    }
    let read = now();
    let writer = Waiter::on(clients[0].get_read_write_lock(&name), move |lock| lock.write().lock().unwrap());
    let (_, returned) = writer.returns_within(store.freed_within(ms(400)) + SLACK);
    assert!(returned.duration_since(begun) >= ms(590), "{:?}", returned.duration_since(begun));
    assert!(returned.duration_since(read) < store.freed_within(ms(450)) + slack_since(read));
});

contract!(writers_that_read_exclude_each_other_under_names_with_braces, needs(ReadWrite), |store| {
    let name = format!("{{{}}}:abc:key", fresh("tag"));
    let client = store.client();
    let count = AtomicI32::new(0);
    side_by_side(0..10, |_| {
        let lock = client.get_read_write_lock(&name);
        for _ in 0..10 {
            let writing = lock.write().acquire().unwrap();
            let seen = count.load(Ordering::SeqCst);
            let reading = lock.read().acquire().unwrap();
            count.store(seen + 1, Ordering::SeqCst);
            writing.unlock().unwrap();
            reading.unlock().unwrap();
        }
    });
    assert_eq!(count.into_inner(), 100);
    assert!(!client.get_read_write_lock(&name).read().is_locked().unwrap());
});

contract!(each_half_shows_its_own_holds, needs(ReadWrite), |store| {
    let [lock, foreign] = locks(store, false);
    let locked = || (foreign.read().is_locked().unwrap(), foreign.write().is_locked().unwrap());
    assert_eq!(locked(), (false, false));
    let reading = lock.read().acquire().unwrap();
    assert_eq!(locked(), (true, false));
    assert!(lock.read().is_held_by_current_thread().unwrap());
    assert!(!lock.write().is_held_by_current_thread().unwrap());
    assert!(!foreign.read().is_held_by_current_thread().unwrap());
    assert!(foreign.read().remaining_lease().unwrap().is_some());
    reading.unlock().unwrap();
    let writing = lock.write().acquire().unwrap();
    assert_eq!(locked(), (false, true));
    let reading = lock.read().acquire().unwrap();
    assert_eq!(locked(), (true, true));
    drop((reading, writing));
    comes_true_within(SLACK, || locked() == (false, false));
});

contract!(the_last_reader_wakes_the_writer, needs(ReadWrite), |store| {
    let [lock, other] = store.two("rw", |client, name| client.get_read_write_lock(name));
    let readers = [lock.read().acquire_owned().unwrap(), lock.read().acquire_owned().unwrap()];
    let waiter = Waiter::on(other.clone(), move |foreign| foreign.write().lock().unwrap());
    let [first, last] = readers;
    first.unlock().unwrap();
    throughout(ms(30), || !waiter.is_over());
    let freed = now();
    last.unlock().unwrap();
    waiter.woken_since(freed);
});

contract!(a_writer_wakes_all_readers, needs(ReadWrite), |store| {
    let [writing, one, other] = locks(store, false);
    let held = writing.write().acquire_owned().unwrap();
    let waiters = readers_that_meet([&one, &other, &one, &other, &one, &other]);
    let freed = now();
    held.unlock().unwrap();
    all_return(waiters, SLACK * 4);
    assert!(freed.elapsed() < ms(300) + slack_since(freed), "{:?}", freed.elapsed());
});

/// Starts `N` waiting readers. Each releases only when all of them hold the lock at once.
fn readers_that_meet<const N: usize>(locks: [&ReadWriteLock; N]) -> [Waiter<()>; N] {
    let inside = Arc::new(AtomicUsize::new(0));
    locks.map(|lock| {
        Waiter::on((lock.clone(), Arc::clone(&inside)), |(lock, inside)| {
            let guard = lock.read().acquire().unwrap();
            inside.fetch_add(1, Ordering::SeqCst);
            comes_true_within(LONG, || inside.load(Ordering::SeqCst) == N);
            drop(guard);
        })
    })
}

contract!(a_release_by_one_reader_leaves_other_readers_holding, needs(ReadWrite), |store| {
    let [mine, other] = store.two("rw", |client, name| client.get_read_write_lock(name));
    let staying = mine.read().acquire().unwrap();
    for _ in 0..3 {
        let foreign = other.clone();
        foreign.read().lock_with_lease(ms(60_000)).unwrap();
        foreign.read().lock().unwrap();
        foreign.read().unlock().unwrap();
        foreign.read().unlock().unwrap();
    }
    staying.check().unwrap();
    assert!(mine.read().is_held_by_current_thread().unwrap());
    elsewhere(|| assert!(!other.write().try_lock().unwrap()));
    assert_eq!(staying.state(), HoldState::Held);
});

contract!(read_holds_are_renewed, needs(ReadWrite), |store| {
    let (client, other) = (store.client_with_lease(RENEWED), store.client());
    let name = fresh("rw");
    let lock = client.get_read_write_lock(&name);
    let guards = (lock.read().acquire().unwrap(), lock.read().acquire().unwrap());
    let foreign = other.get_read_write_lock(&name);
    throughout(RENEWED + ms(200), || !foreign.write().try_lock().unwrap());
    guards.0.check().unwrap();
    assert_eq!(lock.read().hold_count().unwrap(), 2);
});

contract!(a_read_lease_outlasts_another_readers_shorter_lease, needs(ReadWrite), |store| {
    let (name, [client, other]) = store.clients("rw");
    let lock = client.get_read_write_lock(&name);
    let (lease, taken) = (ms(2_000), now());
    let leased = lock.read().acquire_with(&leased(lease)).unwrap().unwrap();
    let foreign = other.get_read_write_lock(&name);
    foreign.read().lock_with_lease(ms(100)).unwrap();
    comes_true_within(SLACK, || {
        !foreign.read().is_held_by_current_thread().unwrap() || taken.elapsed() > ms(300)
    });
    leased.check().unwrap();
    let (_, returned) =
        Waiter::on(store.client().get_read_write_lock(&name), move |lock| lock.write().lock().unwrap())
            .returns_within(lease + SLACK * 4);
    let after = returned.duration_since(taken);
    assert!(after >= lease - ms(10) && after < lease + ms(50) + slack_since(taken), "{after:?}");
});

contract!(releasing_an_inner_read_keeps_the_outer_lease, needs(ReadWrite), |store| {
    let [lock, other] = store.two("inner", |client, name| client.get_read_write_lock(name));
    let taken = now();
    let short = ms(1_500);
    let outer = lock.read().acquire_with(&leased(short)).unwrap().unwrap();
    let middle = lock.read().acquire_with(&leased(LONG * 2)).unwrap().unwrap();
    let inner = lock.read().acquire_with(&leased(short)).unwrap().unwrap();
    inner.unlock().unwrap();
    middle.unlock().unwrap();
    // The other client's acquire and release recompute the lock's expiry. The new expiry must cover the outer
    // level, which keeps the longer lease of the middle level.
    other.read().acquire().unwrap().unlock().unwrap();
    comes_true_within(short * 2, || taken.elapsed() > short + ms(100));
    outer.check().unwrap();
    elsewhere(|| assert!(!other.write().try_lock().unwrap(), "it reads"));
    other.read().acquire().unwrap().unlock().unwrap();
    elsewhere(|| assert!(!other.write().try_lock().unwrap(), "it reads on"));
    outer.unlock().unwrap();
    assert!(other.write().try_acquire().unwrap().is_some());
});

contract!(a_downgraded_reader_keeps_its_own_lease, needs(ReadWrite), |store| {
    let [lock, other] = store.two("down", |client, name| client.get_read_write_lock(name));
    let lease = ms(700);
    for read_is_over in [false, true] {
        let writing = lock.write().acquire().unwrap();
        lock.read().lock_with_lease(lease).unwrap();
        let read = now();
        if read_is_over {
            comes_true_within(lease * 2, || read.elapsed() > store.freed_within(lease));
        }
        let freed = now();
        writing.unlock().unwrap();
        let writer = write(&other);
        let (_, returned) = writer.returns_within(LONG);
        let (since, lasts) = if read_is_over { (freed, ms(0)) } else { (read, store.freed_within(lease)) };
        let waited = returned.duration_since(since);
        assert!(waited < lasts + SLACK * 3 + slack_since(since), "{waited:?} with {read_is_over}");
        assert!(lock.read().unlock().unwrap_err().is_not_held());
    }
});

contract!(an_expired_write_hold_no_longer_excludes_readers, needs(ReadWrite), |store| {
    let [lock, foreign] = store.two("beside", |client, name| client.get_read_write_lock(name));
    let lease = ms(700);
    let taken = now();
    let writing = lock.write().acquire_with(&leased(lease)).unwrap().unwrap();
    let reading = lock.read().acquire().unwrap();
    let reader = Waiter::on(foreign.clone(), move |foreign| foreign.read().acquire_owned().unwrap());
    let (theirs, returned) = reader.returns_within(LONG);
    let waited = returned.duration_since(taken);
    assert!(waited > lease - lease / 50, "{waited:?}");
    assert!(waited < store.freed_within(lease) + SLACK * 3 + slack_since(taken), "{waited:?}");
    assert!(writing.check().is_err());
    reading.check().unwrap();
    theirs.unlock().unwrap();
    elsewhere(|| assert!(!foreign.write().try_lock().unwrap(), "it reads on"));
    assert!(writing.unlock().unwrap_err().is_not_held());
    assert!(foreign.read().try_acquire().unwrap().is_some());
    elsewhere(|| assert!(!foreign.write().try_lock().unwrap(), "it reads on"));
    reading.unlock().unwrap();
    assert!(foreign.write().try_acquire().unwrap().is_some());
});

contract!(force_unlock_frees_a_hold_only_through_its_own_half, needs(ReadWrite), |store| {
    let [lock, foreign] = store.two("rw", |client, name| client.get_read_write_lock(name));
    lock.read().lock().unwrap();
    assert!(!foreign.write().force_unlock().unwrap());
    assert!(foreign.read().force_unlock().unwrap());
    assert!(!lock.read().is_held_by_current_thread().unwrap());
    lock.write().lock().unwrap();
    assert!(!foreign.read().force_unlock().unwrap());
    assert!(foreign.write().force_unlock().unwrap());
    assert!(foreign.read().try_lock().unwrap());
});

contract!(writers_get_increasing_fencing_tokens, needs(ReadWrite), |store| {
    let client = store.client();
    let lock = client.get_read_write_lock(fresh("rw"));
    let mut last = None;
    for _ in 0..3 {
        let guard = lock.write_fenced().acquire().unwrap();
        assert!(guard.fencing_token() > last);
        last = guard.fencing_token();
        guard.unlock().unwrap();
    }
    assert_eq!(lock.write().acquire().unwrap().fencing_token(), None);
});

contract!(readers_and_writers_never_hold_at_once, needs(ReadWrite), |store| {
    let (name, clients) = store.clients::<3>("rw");
    // Readers add 1 and writers subtract 1,000, so a reader beside a writer sees a negative number.
    let inside = AtomicI32::new(0);
    let until = now() + Duration::from_millis(700);
    side_by_side(0..12, |number| {
        let lock = clients[number % 3].get_read_write_lock(&name);
        while now() < until {
            if number < 3 {
                let guard = lock.write().acquire().unwrap();
                assert_eq!(inside.fetch_sub(1_000, Ordering::SeqCst), 0);
                inside.fetch_add(1_000, Ordering::SeqCst);
                drop(guard);
            } else {
                let guard = lock.read().acquire().unwrap();
                assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0);
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(guard);
            }
        }
    });
    assert_eq!(inside.load(Ordering::SeqCst), 0);
    let foreign = store.client().get_read_write_lock(&name);
    comes_true_within(SLACK, || foreign.write().try_acquire().unwrap().is_some());
});

contract!(readers_and_the_writer_are_shown, needs(ReadWrite), |store| {
    let (name, [client, other]) = store.clients("shown");
    let lock = client.get_read_write_lock(&name);
    let writing = lock.write().acquire().unwrap();
    let reading = lock.read().acquire().unwrap();
    let seen = other.inspect(&name).unwrap();
    assert_eq!(seen.kind, ObjectKind::ReadWriteLock { mode: Mode::Write });
    let mut modes: Vec<_> = seen.holders.iter().map(|holder| (holder.owner.clone(), holder.mode)).collect();
    modes.sort_by_key(|(_, mode)| *mode == Some(Mode::Read));
    let owner = writing.owner().to_string();
    assert_eq!(modes, [(owner.clone(), Some(Mode::Write)), (owner.clone(), Some(Mode::Read))]);
    writing.unlock().unwrap();
    let theirs = other.get_read_write_lock(&name).read().acquire().unwrap();
    let seen = client.inspect(&name).unwrap();
    assert_eq!(seen.kind, ObjectKind::ReadWriteLock { mode: Mode::Read });
    let mut readers: Vec<_> =
        seen.holders.iter().map(|one| (one.by_this_client, one.owner.clone())).collect();
    readers.sort();
    assert_eq!(readers, [(false, theirs.owner().to_string()), (true, owner)], "{seen}");
    assert!(seen.holders.iter().all(|one| one.mode == Some(Mode::Read)), "{seen}");
    assert!(seen.holders.iter().all(|one| one.remaining.is_none_or(|left| !left.is_zero())), "{seen}");
    reading.unlock().unwrap();
    theirs.unlock().unwrap();
    assert!(!client.inspect(&name).unwrap().is_held());
});

fn is_refused(lock: &ReadWriteLock) -> bool {
    let guard = lock.read().try_acquire_owned_for(Duration::ZERO).unwrap();
    guard.map(|guard| guard.unlock().unwrap()).is_none()
}

/// Handles of one lock with a new name, each of its own client, with or without `writers_first`.
fn locks<const N: usize>(store: &Store, writers_first: bool) -> [ReadWriteLock; N] {
    let name = fresh("rw");
    [(); N].map(|()| {
        let lock = store.client().get_read_write_lock(&name);
        if writers_first { lock.writers_first() } else { lock }
    })
}

fn write(lock: &ReadWriteLock) -> Waiter<()> {
    Waiter::on(lock.clone(), |lock| lock.write().acquire().unwrap().unlock().unwrap())
}

contract!(a_waiting_writer_precedes_later_readers, needs(ReadWrite), |store| {
    let [reading, writing, late] = locks(store, true);
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = reading.read().acquire_owned().unwrap();
    assert!(!is_refused(&late), "no writer waits yet");
    let writer = Waiter::on((writing.clone(), Arc::clone(&order)), move |(writing, order)| {
        let guard = writing.write_fenced().acquire().unwrap();
        order.lock().unwrap().push("writer");
        guard.unlock().unwrap();
    });
    comes_true_within(SLACK * 4, || is_refused(&late));
    assert!(is_refused(&reading), "a reader of the writer's client was let in");
    let reader = Waiter::on((late.clone(), Arc::clone(&order)), move |(late, order)| {
        let guard = late.read().acquire().unwrap();
        order.lock().unwrap().push("reader");
        guard.unlock().unwrap();
    });
    assert!(!writer.is_over() && !reader.is_over());
    let freed = now();
    first.unlock().unwrap();
    writer.returns_within(SLACK * 4);
    let (_, returned) = reader.returns_within(SLACK * 4);
    assert_eq!(*order.lock().unwrap(), ["writer", "reader"]);
    assert!(returned.duration_since(freed) < ms(100) + slack_since(freed), "not both waiters were woken");
    assert!(!is_refused(&late), "the writer still counts as waiting");
});

contract!(a_reader_or_writer_reenters_before_a_waiting_writer, needs(ReadWrite), |store| {
    for writers_first in [false, true] {
        let [lock, writing, late] = locks(store, writers_first);
        let outer = lock.read().acquire().unwrap();
        let writer = write(&writing);
        comes_true_within(SLACK * 4, || is_refused(&late));
        lock.read().try_acquire().unwrap().expect("a thread that reads may read again").unlock().unwrap();
        lock.read()
            .try_acquire_for(LONG)
            .unwrap()
            .expect("a thread that reads may read again")
            .unlock()
            .unwrap();
        assert!(!writer.is_over());
        outer.unlock().unwrap();
        writer.returns_within(SLACK * 4);

        let outer = lock.write().acquire().unwrap();
        let writer = write(&writing);
        let reading = lock.read().try_acquire_for(LONG).unwrap().expect("a writer may read");
        outer.unlock().unwrap();
        comes_true_within(SLACK * 4, || is_refused(&late));
        assert!(!writer.is_over());
        lock.read().try_acquire().unwrap().expect("the reader cannot re-enter").unlock().unwrap();
        reading.unlock().unwrap();
        writer.returns_within(SLACK * 4);
    }
});

contract!(readers_enter_after_a_waiting_writer_gives_up, needs(ReadWrite), |store| {
    for writers_first in [false, true] {
        let [lock, writing, late] = locks(store, writers_first);
        let reading = lock.read().acquire_owned().unwrap();
        let interrupt = Interrupt::new();
        let writer = Waiter::on((writing.clone(), interrupt.clone()), |(writing, interrupt)| {
            writing.write().lock_interruptibly(&interrupt)
        });
        comes_true_within(SLACK * 4, || is_refused(&late));
        let reader = Waiter::on(late.clone(), move |late| late.read().acquire().unwrap().unlock().unwrap());
        throughout(ms(30), || !reader.is_over());
        let gave_up = now();
        interrupt.interrupt();
        assert!(writer.returns_within(SLACK * 4).0.unwrap_err().is_interrupted());
        reader.woken_since(gave_up);
        assert!(!writing.write().try_lock_for(ms(100)).unwrap());
        comes_true_within(SLACK * 4, || !is_refused(&late));
        reading.unlock().unwrap();
    }
});

contract!(readers_do_not_overtake_a_long_waiting_writer, needs(ReadWrite), |store| {
    for writers_first in [false, true] {
        let [first, second, writing] = locks(store, writers_first);
        // Each reader releases only after the next has acquired, so the lock is never free for a writer.
        let mut reading = first.read().acquire_owned().unwrap();
        for round in 0..3 {
            let writer = write(&writing);
            let mut turns = [&first, &second].into_iter().cycle();
            comes_true_within(SLACK * 4, || {
                let next = turns.next().unwrap().read().try_acquire_owned_for(Duration::ZERO).unwrap();
                next.map(|next| std::mem::replace(&mut reading, next).unlock().unwrap()).is_none()
            });
            for (reader, lock) in turns.take(50).enumerate() {
                assert!(is_refused(lock), "{writers_first}, round {round}: reader {reader} was let in");
            }
            reading.unlock().unwrap();
            writer.returns_within(SLACK * 4);
            reading = first.read().try_acquire_owned_for(LONG).unwrap().expect("the readers were not let in");
        }
    }
});

contract!(readers_that_waited_for_a_write_enter_together, needs(ReadWrite), |store| {
    let [writing, one, other, next] = locks(store, false);
    let held = writing.write().acquire_owned().unwrap();
    let readers = readers_that_meet([&one, &other]);
    let next = write(&next);
    held.unlock().unwrap();
    all_return(readers.into_iter().chain([next]), SLACK * 4);
});
