//! Fair locks serve waiters in order of arrival across clients, and a waiter that leaves delays no other
//! waiter.

use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use leasehold::ObjectKind;

use crate::support::prelude::*;

fn queue_up(client: &LockClient, name: &str, done: impl FnOnce() + Send + 'static) -> Waiter<()> {
    let lock = client.get_fair_lock(name);
    queued(client, name, move || {
        let guard = lock.acquire().unwrap();
        done();
        guard.unlock().unwrap();
    })
}

fn queued<T: Send + 'static>(
    client: &LockClient,
    name: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> Waiter<T> {
    let before = client.inspect(name).unwrap().waiting;
    let waiter = Waiter::start(call);
    // `Waiter::start` may return before the store has put the waiter into the queue.
    comes_true_within(LONG, || client.inspect(name).unwrap().waiting > before);
    waiter
}

contract!(clients_are_served_in_order_of_arrival, needs(Fair), |store| {
    let (name, clients) = store.clients::<3>("order");
    let held = Holding::take(&store.client().get_fair_lock(&name));
    let (tell, told) = unbounded();
    let waiters: Vec<_> = (0..7)
        .map(|turn| {
            let tell = tell.clone();
            queue_up(&clients[turn % 3], &name, move || tell.send(turn).unwrap())
        })
        .collect();
    held.release();
    all_return(waiters, LONG);
    let order: Vec<usize> = told.try_iter().collect();
    assert_eq!(order, (0..7).collect::<Vec<_>>());
});

contract!(a_try_does_not_overtake_waiters, needs(Fair), |store| {
    let (name, [client, other]) = store.clients("barge");
    let held = Holding::take(&client.get_fair_lock(&name));
    let (go, gone) = unbounded::<()>();
    let waiter = queue_up(&other, &name, move || while gone.recv().is_ok() {});
    held.release();
    throughout(ms(100), || !client.get_fair_lock(&name).try_lock().unwrap());
    drop(go);
    waiter.returns_within(LONG);
    comes_true_within(SLACK, || client.get_fair_lock(&name).try_acquire().unwrap().is_some());
});

contract!(a_single_try_leaves_no_place_in_the_queue, needs(Fair), |store| {
    let [lock, other] = store.two("once", |client, name| client.get_fair_lock(name));
    let held = Holding::take(&lock);
    assert!(!other.try_lock().unwrap());
    assert!(!other.try_lock_for(ms(0)).unwrap());
    let is_over = AcquireOptions::new().deadline(now());
    assert!(other.acquire_with(&is_over).unwrap().is_none());
    held.release();
    assert!(elsewhere(|| lock.try_acquire().unwrap().is_some()));
});

contract!(a_timed_out_waiter_delays_nobody, needs(Fair), |store| {
    let (name, [client, other]) = store.clients("deadline");
    let held = Holding::take(&client.get_fair_lock(&name));
    assert!(!other.get_fair_lock(&name).try_lock_for(ms(50)).unwrap());
    // If the waiter's last request was not answered, the client removes the queue place some time later.
    comes_true_within(LONG, || client.inspect(&name).unwrap().waiting == 0);
    let waiter = queue_up(&client, &name, || ());
    let freed = held.release();
    waiter.woken_since(freed);
});

contract!(an_interrupted_or_shut_down_waiter_delays_nobody, needs(Fair), |store| {
    for by_shutdown in [false, true] {
        let (client, other, interrupt) = (store.client(), store.client(), Interrupt::new());
        let name = fresh("leaves");
        let held = Holding::take(&client.get_fair_lock(&name));
        let first = queued(&client, &name, {
            let (lock, interrupt) = (other.get_fair_lock(&name), interrupt.clone());
            move || lock.lock_interruptibly(&interrupt)
        });
        let second = queue_up(&client, &name, || ());
        if by_shutdown {
            other.shutdown().unwrap()
        } else {
            interrupt.interrupt()
        }
        let error = first.returns_within(SLACK * 2).0.unwrap_err();
        assert_eq!(error.is_interrupted(), !by_shutdown, "{error}");
        let freed = held.release();
        second.woken_since(freed);
    }
});

contract!(waiters_are_served_in_order_as_leases_expire, needs(Fair), |store| {
    let (name, clients) = store.clients::<2>("leases");
    let lease = ms(1_000);
    let held = Holding::take(&store.client().get_fair_lock(&name));
    let (tell, told) = unbounded();
    let begun = now();
    let waiters: Vec<_> = (0..6)
        .map(|turn| {
            let (lock, tell) = (clients[turn % 2].get_fair_lock(&name), tell.clone());
            queued(&clients[0], &name, move || {
                lock.lock_with_lease(lease).unwrap();
                tell.send(turn).unwrap();
            })
        })
        .collect();
    held.release();
    all_return(waiters, LONG);
    let order: Vec<_> = told.try_iter().collect();
    // If the machine stalls for a whole lease, a grant may arrive after its lease has ended. The waiter then
    // queues again at the end, and the order differs.
    if stalled_since(begun) < lease {
        assert_eq!(order, (0..6).collect::<Vec<_>>());
    }
    assert_eq!(order.len(), 6);
    assert!(begun.elapsed() >= lease * 5);
});

contract!(the_holder_reenters_before_the_waiters, needs(Fair), |store| {
    let (name, [client, other]) = store.clients("again");
    let lock = client.get_fair_lock(&name);
    lock.lock().unwrap();
    let waiter = queue_up(&other, &name, || ());
    assert!(lock.try_lock().unwrap());
    assert_eq!(lock.hold_count().unwrap(), 2);
    lock.unlock().unwrap();
    lock.unlock().unwrap();
    waiter.returns_within(LONG);
});

contract!(a_fair_lock_can_have_fencing_tokens, needs(Fair), |store| {
    let (name, [client]) = store.clients("fence");
    let lock = client.lock_builder(&name).fair().build_fenced();
    let first = lock.lock_and_get_token().unwrap();
    lock.unlock().unwrap();
    assert!(lock.try_lock_and_get_token(ms(10)).unwrap().unwrap() > first);
    lock.unlock().unwrap();
    assert_eq!(client.get_fair_lock(&name).acquire().unwrap().fencing_token(), None);
});

contract!(a_fair_lock_serves_every_one_of_many_threads, needs(Fair), |store| {
    let name = fresh("many");
    let (inside, granted) = (AtomicU32::new(0), Mutex::new(Vec::new()));
    let begun = now();
    let clients: Vec<_> = (0..3).map(|_| store.client()).collect();
    let (tell, told) = unbounded();
    thread::scope(|scope| {
        for client in &clients {
            for _ in 0..4 {
                let (inside, granted, tell, name) = (&inside, &granted, tell.clone(), &name);
                scope.spawn(move || {
                    for _ in 0..10 {
                        let guard = client.get_fair_lock(name).acquire().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        granted.lock().unwrap().push(now());
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(guard);
                    }
                    tell.send(()).unwrap();
                });
            }
        }
        for _ in 0..12 {
            receive(&told, LONG).unwrap();
        }
    });
    let mut granted = granted.into_inner().unwrap();
    granted.sort();
    assert_eq!(granted.len(), 120);
    // A lost wake-up would delay a grant by up to a second, and a lost queue place by several seconds.
    let longest = granted.windows(2).map(|two| two[1] - two[0]).max().unwrap();
    assert!(longest < ms(900) + stalled_since(begun), "{longest:?}");
});

contract!(waiters_are_shown_in_order_of_arrival, needs(Fair), |store| {
    let (name, clients) = store.clients::<2>("shown");
    let held = Holding::take(&clients[0].get_fair_lock(&name));
    let waiters: Vec<_> = (0..4).map(|turn| queue_up(&clients[turn % 2], &name, || ())).collect();
    comes_true_within(LONG, || clients[0].inspect(&name).unwrap().waiting == 4);
    let seen = clients[0].inspect(&name).unwrap();
    assert_eq!(seen.kind, ObjectKind::FairLock);
    assert_eq!(seen.holders[0].owner, held.owner().to_string());
    let own: Vec<_> = seen.waiters.iter().map(|waiter| waiter.by_this_client).collect();
    assert_eq!(own, [true, false, true, false], "{seen}");
    assert!(seen.waiters.iter().all(|waiter| waiter.remaining.is_none_or(|left| !left.is_zero())), "{seen}");
    held.release();
    all_return(waiters, LONG);
    let seen = clients[1].inspect(&name).unwrap();
    assert!(seen.waiting == 0 && seen.waiters.is_empty() && !seen.is_held(), "{seen}");
});
