//! A wait for a condition releases the lock, and acquires the lock again when the wait ends.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::support::prelude::*;

/// Starts a thread that acquires the lock and runs `what`, which waits for the condition. Returns once the
/// thread holds the lock, so the caller can acquire the lock only during the wait.
fn waiting<T: Send + 'static>(
    lock: RedisLock,
    what: impl FnOnce(&RedisLock, Guard) -> T + Send + 'static,
) -> Waiter<T> {
    let (tell, told) = bounded(1);
    let waiter = Waiter::start(move || {
        let guard = lock.acquire().unwrap();
        tell.send(()).unwrap();
        what(&lock, guard)
    });
    told.recv_timeout(LONG).expect("the other thread has the lock");
    waiter
}

contract!(a_condition_wait_releases_and_reacquires_the_lock, needs(Counting), |store| {
    let [lock, other] = store.two("cond", |client, name| client.get_lock(name));
    let waiter = waiting(other.clone(), |lock, mut guard| {
        lock.condition("changed").wait(&mut guard).unwrap();
        assert!(lock.is_held_by_current_thread().unwrap());
        guard.check().unwrap();
        guard.unlock().unwrap();
    });
    lock.lock().unwrap();
    let notified = now();
    assert!(lock.condition("changed").notify_one().unwrap());
    throughout(ms(30), || !waiter.is_over());
    lock.unlock().unwrap();
    let (_, returned) = waiter.returns_within(SLACK * 4);
    assert!(returned.duration_since(notified) < ms(100) + slack_since(notified));
    assert!(!lock.is_locked().unwrap());
});

contract!(a_notified_waiter_regains_its_full_hold_count, needs(Counting), |store| {
    let [lock, other] = store.two("cond", |client, name| client.get_lock(name));
    let waiter = waiting(other.clone(), |lock, mut guard| {
        (0..2).for_each(|_| lock.lock().unwrap());
        lock.condition("c").wait(&mut guard).unwrap();
        assert_eq!(lock.hold_count().unwrap(), 3);
        (0..2).for_each(|_| lock.unlock().unwrap());
        guard.check().unwrap();
        guard.unlock().unwrap();
    });
    assert!(lock.try_lock_for(LONG).unwrap(), "the wait released all three levels");
    assert!(lock.condition("c").notify_one().unwrap());
    lock.unlock().unwrap();
    waiter.returns_within(LONG);
    assert!(!lock.is_locked().unwrap());
});

contract!(waiters_are_notified_in_order_of_arrival, needs(Counting), |store| {
    let (name, clients) = store.clients::<2>("cond");
    let (tell, told) = unbounded();
    let waiters: Vec<_> = (0..5)
        .map(|turn| {
            let tell = tell.clone();
            waiting(clients[turn % 2].get_lock(&name), move |lock, mut guard| {
                lock.condition("c").wait(&mut guard).unwrap();
                tell.send(turn).unwrap();
                guard.unlock().unwrap();
            })
        })
        .collect();
    let lock = clients[0].get_lock(&name);
    for turn in 0..5 {
        lock.lock().unwrap();
        assert!(lock.condition("c").notify_one().unwrap());
        lock.unlock().unwrap();
        assert_eq!(told.recv_timeout(LONG), Ok(turn));
    }
    all_return(waiters, LONG);
});

contract!(notify_all_lets_waiters_proceed_one_by_one, needs(Counting), |store| {
    let (name, clients) = store.clients::<2>("cond");
    let inside = Arc::new(Mutex::new(()));
    let waiters: Vec<_> = (0..4)
        .map(|at| {
            let inside = Arc::clone(&inside);
            waiting(clients[at % 2].get_lock(&name), move |lock, mut guard| {
                lock.condition("c").wait(&mut guard).unwrap();
                drop(inside.try_lock().expect("one thread at a time holds the lock"));
                guard.unlock().unwrap();
            })
        })
        .collect();
    let lock = store.client().get_lock(&name);
    lock.lock().unwrap();
    assert_eq!(lock.condition("c").notify_all().unwrap(), 4);
    lock.unlock().unwrap();
    all_return(waiters, LONG);
});

contract!(a_condition_wait_that_times_out_reacquires_the_lock, needs(Counting), |store| {
    let client = store.client();
    let lock = client.get_lock(fresh("cond"));
    lock.lock().unwrap();
    let mut guard = lock.acquire().unwrap();
    assert!(!lock.condition("c").notify_one().unwrap(), "no thread waits");
    assert_eq!(lock.condition("c").notify_all().unwrap(), 0, "no thread waits");
    let begun = now();
    assert!(!lock.condition("c").wait_for(&mut guard, ms(60)).unwrap());
    assert!(begun.elapsed() >= ms(60) && begun.elapsed() < ms(60) + slack_since(begun));
    assert_eq!(lock.hold_count().unwrap(), 2);
    assert!(!lock.condition("c").wait_until(&mut guard, now()).unwrap());
    assert!(!lock.condition("c").wait_for(&mut guard, Duration::from_nanos(1)).unwrap());
    assert_eq!(lock.hold_count().unwrap(), 2);
    guard.check().unwrap();
    assert!(!lock.condition("c").notify_one().unwrap());
});

contract!(an_interrupted_condition_wait_reacquires_the_lock, needs(Counting), |store| {
    let (name, [client]) = store.clients("cond");
    let interrupt = Interrupt::new();
    let waiter = Waiter::on((client.get_lock(&name), interrupt.clone()), move |(lock, interrupt)| {
        let mut guard = lock.acquire().unwrap();
        let ended = lock.condition("c").wait_interruptibly(&mut guard, &interrupt);
        assert!(lock.is_held_by_current_thread().unwrap());
        guard.unlock().unwrap();
        ended
    });
    interrupt.interrupt();
    assert!(waiter.returns_within(SLACK * 4).0.unwrap_err().is_interrupted());
    let lock = client.get_lock(&name);
    let mut guard = lock.acquire().unwrap();
    assert!(lock.condition("c").wait_interruptibly(&mut guard, &interrupt).unwrap_err().is_interrupted());
    assert!(lock.is_held_by_current_thread().unwrap());
    assert!(!lock.condition("c").notify_one().unwrap(), "a thread that does not wait was notified");
    guard.unlock().unwrap();
});

contract!(the_notification_of_an_interrupted_waiter_goes_to_the_next, needs(Counting), |store| {
    let (name, [client, other]) = store.clients("cond");
    let interrupt = Interrupt::new();
    let first = waiting(client.get_lock(&name), {
        let interrupt = interrupt.clone();
        move |lock, mut guard| {
            let ended = lock.condition("c").wait_interruptibly(&mut guard, &interrupt);
            guard.unlock().unwrap();
            ended.is_ok()
        }
    });
    let second = waiting(other.get_lock(&name), |lock, mut guard| {
        lock.condition("c").wait(&mut guard).unwrap();
        guard.unlock().unwrap();
    });
    let lock = store.client().get_lock(&name);
    lock.lock().unwrap();
    // The first waiter is interrupted and notified at about the same time. Either the first waiter reports
    // that it took the notification, or the second waiter receives the notification.
    interrupt.interrupt();
    lock.condition("c").notify_one().unwrap();
    lock.unlock().unwrap();
    if first.returns_within(LONG).0 {
        lock.lock().unwrap();
        assert!(lock.condition("c").notify_one().unwrap());
        lock.unlock().unwrap();
    }
    second.returns_within(SLACK * 4);
});

contract!(only_the_holder_can_wait_for_a_condition_or_notify, needs(Counting), |store| {
    let (client, operator) = (store.client(), store.client());
    let lock = client.get_lock(fresh("cond"));
    let condition = lock.condition("c");
    assert!(condition.notify_one().unwrap_err().is_not_held());
    assert!(condition.notify_all().unwrap_err().is_not_held());
    let mut guard = lock.acquire().unwrap();
    fails(lock.condition("").notify_one(), ErrorKind::InvalidInput);
    let mut others = client.get_lock(fresh("other")).acquire().unwrap();
    let mut strangers = operator.get_lock(fresh("other")).acquire().unwrap();
    for wrong in [&mut others, &mut strangers] {
        fails(condition.wait_for(wrong, ms(10)), ErrorKind::InvalidInput);
        wrong.check().unwrap();
    }
    operator.get_lock(lock.name()).force_unlock().unwrap();
    assert!(!lock.is_held_by_current_thread().unwrap());
    assert!(condition.wait_for(&mut guard, ms(10)).unwrap_err().is_lost());
    drop(guard);
    let mut guard = lock.acquire().unwrap();
    lock.unlock().unwrap();
    assert!(condition.wait_for(&mut guard, ms(10)).unwrap_err().is_not_held());
    drop(guard);
    assert!(!lock.is_locked().unwrap());
});

contract!(a_condition_wait_refuses_a_hold_shared_with_another_guard, needs(Counting), |store| {
    let lock = store.client().get_lock(fresh("cond"));
    let outer = lock.acquire().unwrap();
    let mut guard = lock.acquire().unwrap();
    let refused = lock.condition("c").wait_for(&mut guard, ms(10)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    outer.check().unwrap();
    guard.check().unwrap();
    assert_eq!(lock.hold_count().unwrap(), 2);
    drop(outer);
    assert!(!lock.condition("c").wait_for(&mut guard, ms(10)).unwrap());
    guard.unlock().unwrap();
});

contract!(wait_while_waits_until_the_predicate_is_false, needs(Counting), |store| {
    let [lock, other] = store.two("cond", |client, name| client.get_lock(name));
    let (items, asked) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let waiter = waiting(other.clone(), {
        let (items, asked) = (Arc::clone(&items), Arc::clone(&asked));
        move |lock, mut guard| {
            let is_missing = |guard: &Guard| {
                guard.check().unwrap();
                lock.acquire().unwrap().unlock().unwrap();
                asked.fetch_add(1, Ordering::SeqCst);
                items.load(Ordering::SeqCst) < 2
            };
            lock.condition("c").wait_while(&mut guard, is_missing).unwrap();
            guard.unlock().unwrap();
        }
    });
    let put = || {
        let guard = lock.acquire().unwrap();
        items.fetch_add(1, Ordering::SeqCst);
        assert!(lock.condition("c").notify_one().unwrap());
        guard.unlock().unwrap();
    };
    put();
    comes_true_within(SLACK * 4, || asked.load(Ordering::SeqCst) >= 2);
    throughout(ms(30), || !waiter.is_over());
    put();
    waiter.returns_within(SLACK * 4);
    assert!(asked.load(Ordering::SeqCst) >= 3);
    let mut guard = lock.acquire().unwrap();
    let condition = lock.condition("c");
    condition.wait_while(&mut guard, |_| false).unwrap();
    assert!(condition.wait_while_for(&mut guard, |_| false, ms(1)).unwrap());
    let begun = now();
    assert!(!condition.wait_while_for(&mut guard, |_| true, ms(60)).unwrap());
    assert!(begun.elapsed() >= ms(60) && begun.elapsed() < ms(60) + slack_since(begun));
    guard.unlock().unwrap();
});

contract!(guards_are_renewed_and_report_losses_after_a_condition_wait, needs(Counting), |store| {
    let (client, other) = (store.client_with(|options| options.lease(RENEWED)), store.client());
    let name = fresh("cond");
    let lock = client.get_lock(&name);
    let mut guard = lock.acquire().unwrap();
    let (told, tell) = (guard.lost(), bounded(2));
    guard.on_lost(move |loss| tell.0.send(loss.clone()).unwrap());
    assert!(!lock.condition("c").wait_for(&mut guard, ms(10)).unwrap());
    assert!(!lock.condition("c").wait_for(&mut guard, ms(10)).unwrap());
    throughout(RENEWED, || guard.check().is_ok());
    assert!(!other.get_lock(&name).try_lock().unwrap());
    assert!(told.is_empty() && tell.1.is_empty(), "the waits released the lock, and no hold was lost");
    assert!(other.get_lock(&name).force_unlock().unwrap());
    assert_eq!(receive(&told, RENEWED / 3 + SLACK).unwrap().owner, guard.owner());
    assert_eq!(receive(&tell.1, SLACK).unwrap().owner, guard.owner());
    assert!(guard.unlock().unwrap_err().is_lost());
    let fenced = client.get_fenced_lock(fresh("fenced"));
    let mut guard = fenced.acquire().unwrap();
    let token = guard.fencing_token().unwrap();
    assert!(!client.get_lock(fenced.name()).condition("c").wait_for(&mut guard, ms(10)).unwrap());
    assert!(guard.fencing_token().is_some_and(|new| new > token));
    guard.unlock().unwrap();
    {
        let _guard = lock.acquire().unwrap();
        assert!(lock.condition("").notify_one().is_err());
    }
    comes_true_within(SLACK, || !lock.is_locked().unwrap());
});

contract!(a_notification_wakes_no_waiter_of_another_condition, needs(Counting), |store| {
    let (name, [client, other]) = store.clients("cond");
    let waiter = waiting(other.get_lock(&name), |lock, mut guard| {
        lock.condition("one").wait(&mut guard).unwrap();
        guard.unlock().unwrap();
    });
    let lock = client.get_lock(&name);
    lock.lock().unwrap();
    assert!(!lock.condition("other").notify_one().unwrap());
    throughout(ms(100), || !waiter.is_over());
    assert!(lock.condition("one").notify_one().unwrap());
    lock.unlock().unwrap();
    waiter.returns_within(LONG);
});

contract!(a_notification_skips_a_waiter_whose_client_shut_down, needs(Counting), |store| {
    let (name, [client, ending]) = store.clients("cond");
    let waits = |client: &leasehold::LockClient| {
        waiting(client.get_lock(&name), |lock, mut guard| {
            lock.condition("c").wait(&mut guard)?;
            guard.unlock()
        })
    };
    let first = waits(&ending);
    let second = waits(&client);
    // Each thread releases the lock only by its wait, so after this acquire both threads wait.
    client.get_lock(&name).acquire().unwrap().unlock().unwrap();
    ending.shutdown().unwrap();
    assert!(first.returns_within(SLACK * 2).0.is_err());
    let lock = store.client().get_lock(&name);
    lock.lock().unwrap();
    assert!(lock.condition("c").notify_one().unwrap());
    assert!(!lock.condition("c").notify_one().unwrap(), "the waiter that gave up was notified");
    let notified = now();
    lock.unlock().unwrap();
    let (outcome, returned) = second.returns_within(LONG);
    outcome.unwrap();
    assert!(returned.duration_since(notified) < ms(100) + slack_since(notified));
});

contract!(waiting_by_a_non_reentrant_handle_restores_the_hold_count, needs(Counting), |store| {
    let (name, [client]) = store.clients("cond");
    let (once, often) = (client.lock_builder(&name).non_reentrant().build(), client.get_lock(&name));
    let mut guard = once.acquire().unwrap();
    often.lock().unwrap();
    assert!(!once.condition("c").wait_for(&mut guard, ms(10)).unwrap());
    assert_eq!(once.hold_count().unwrap(), 2);
    assert_eq!(once.lock().unwrap_err().kind(), ErrorKind::WouldDeadlock, "this lock value may not re-enter");
    often.unlock().unwrap();
    guard.unlock().unwrap();
});

contract!(producers_and_consumers_lose_no_item, needs(Counting), |store| {
    const EACH: usize = 20;
    let (name, clients) = store.clients::<4>("queue");
    let queue = Mutex::new(VecDeque::new());
    let begun = now();
    side_by_side(clients.iter().enumerate(), |(at, client)| {
        let lock = client.get_lock(&name);
        let (not_empty, not_full) = (lock.condition("not_empty"), lock.condition("not_full"));
        for item in 0..EACH {
            let mut guard = lock.acquire().unwrap();
            if at % 2 == 0 {
                let is_full = |_: &Guard| queue.lock().unwrap().len() >= 2;
                let came = not_full.wait_while_for(&mut guard, is_full, LONG);
                assert!(came.unwrap(), "no thread made room");
                queue.lock().unwrap().push_back(item);
                not_empty.notify_one().unwrap();
            } else {
                let is_empty = |_: &Guard| queue.lock().unwrap().is_empty();
                let came = not_empty.wait_while_for(&mut guard, is_empty, LONG);
                assert!(came.unwrap(), "no thread put an item");
                queue.lock().unwrap().pop_front().unwrap();
                not_full.notify_one().unwrap();
            }
            guard.unlock().unwrap();
        }
    });
    assert!(queue.lock().unwrap().is_empty());
    comes_true_within(SLACK, || !clients[0].get_lock(&name).is_locked().unwrap());
    assert!(begun.elapsed() < ms(5_000) + slack_since(begun), "{:?}", begun.elapsed());
});
