//! Panics, leaked guards, small connection pools, hung connections, shutdowns, and many holds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::world::{KEPT, L, R, T, about};
use crate::support::epilogue::threads;
use crate::support::observer::{Event, Seen};
use crate::support::prelude::*;
use crate::support::proxy::{Do, Then};

scenario!(a_guard_dropped_in_a_panic_neither_panics_nor_blocks, |world| {
    let client = world.client();
    let begun = catch_unwind(AssertUnwindSafe(|| {
        let _guard = client.get_lock("hangs").acquire_with(&leased(L)).unwrap().unwrap();
        world.server.stop();
        std::panic::resume_unwind(Box::new(now()))
    }))
    .map(|(): ()| ())
    .unwrap_err();
    let begun = *begun.downcast::<std::time::Instant>().unwrap();
    within(begun, T, "dropping a guard");
    world.server.cont();
    world.is_given_back("hangs", L);
});

scenario!(a_leaked_guards_lock_is_freed_after_its_thread_ends, |world| {
    let (client, seen) = world.watched();
    elsewhere(|| {
        let guard = client.get_lock("leaked").acquire().unwrap();
        throughout(L + R, || guard.check().is_ok());
        #[expect(clippy::mem_forget, reason = "a leaked guard is the matter here")]
        std::mem::forget(guard);
    });
    let ended = now();
    assert!(!world.is_free("leaked"));
    comes_within(ended, L, "the end of the lock", || world.is_free("leaked"));
    seen.wait_for("the end of the thread", |event| *event == Event::Abandoned("leaked".to_owned()));
    // The leaked guard keeps a clone of its client alive, so the test shuts the client down.
    client.shutdown().unwrap();
    drop(client);
});

scenario!(shutdown_frees_locks_connections_and_threads_despite_living_clones, |world| {
    let client = world.client();
    let guard = client.get_lock("held").acquire().unwrap();
    let lost = guard.lost();
    let waiting = client.get_lock("waited");
    let blocker = world.direct();
    let blocked = blocker.get_lock("waited").acquire().unwrap();
    let waiter = call(move || waiting.lock());
    world.await_subscription("waited");
    blocked.unlock().unwrap();
    drop(blocker);
    waiter.outcome().0.unwrap();
    in_time(2 * T, "a shutdown", || client.shutdown().unwrap());
    assert!(world.is_free("held") && world.is_free("waited"));
    assert_eq!(lost.recv_timeout(LONG).unwrap().reason, LossReason::ShutDown);
    fails(client.get_lock("held").lock(), ErrorKind::ShutDown);
    assert_eq!(guard.state(), HoldState::Lost);
    assert!(guard.unlock().is_err());
    comes_within(now(), T, "the end of the connections", || world.proxy.connections() == 0);
    comes_within(now(), T, "the end of the threads", || threads().is_none_or(|threads| threads.is_empty()));
    client.shutdown().unwrap();
});

scenario!(a_pool_of_one_connection_serves_many_threads, |world| {
    let client = world.builder().pool_size(1).command_timeout(LONG).build().unwrap();
    let done = AtomicUsize::new(0);
    side_by_side(0..64, |number| {
        let (own, shared) = (client.get_lock(format!("own-{number}")), client.get_lock("shared"));
        for _ in 0..5 {
            let guard = own.acquire().unwrap();
            shared.lock().unwrap();
            done.fetch_add(1, Ordering::Relaxed);
            shared.unlock().unwrap();
            guard.unlock().unwrap();
        }
    });
    assert_eq!(done.into_inner(), 64 * 5);
    assert!(world.proxy.connections() <= 3);
});

scenario!(renewals_succeed_while_requests_for_other_locks_hang, |world| {
    let seen = Seen::default();
    // The lease leaves time to repeat a renewal that a busy machine delays.
    let (lease, limit) = (ms(4_000), 2 * T);
    let builder = world.builder().pool_size(1).lease(lease).command_timeout(limit);
    let client = builder.observer(seen.clone()).build().unwrap();
    let guards: Vec<_> =
        (0..5).map(|number| client.get_lock(format!("kept-{number}")).acquire().unwrap()).collect();
    // At any time an unanswered request occupies the only connection for requests.
    let fault = world.proxy.each(about("hung-"), Do::SwallowReply(Then::Silent));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (client, stop) = (&client, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    in_time(limit, "a try that gets no answer, or no connection", || {
                        client.get_lock(format!("hung-{number}")).try_lock().unwrap_err()
                    });
                }
            });
        }
        let held = catch_unwind(AssertUnwindSafe(|| {
            throughout(2 * lease, || guards.iter().all(|guard| guard.check().is_ok()));
        }));
        stop.store(true, Ordering::Relaxed);
        held.unwrap();
    });
    assert!(fault.hits() > 5);
    fault.cancel();
    assert_eq!(seen.losses(), 0, "{:?}", seen.events());
    guards.into_iter().for_each(|guard| guard.unlock().unwrap());
});

scenario!(a_client_of_a_hanging_server_shuts_down_in_time, |world| {
    for way in ["shutdown", "drop"] {
        let (client, seen) = world.watched();
        let other = world.direct();
        let guard = client.get_lock("held").acquire().unwrap();
        let blocked = other.get_lock("waited").acquire_with(&leased(L)).unwrap().unwrap();
        let waiting = client.get_lock("waited");
        let waiter = call(move || waiting.lock());
        world.await_subscription("waited");
        world.server.stop();
        let begun = now();
        if way == "shutdown" {
            let error = client.shutdown().unwrap_err();
            within(begun, 3 * T, "a shutdown");
            assert!(error.is_retryable() && error.lock_name() == Some("held"), "{error}");
            fails(waiter.returns_within(begun, 2 * T, "the waiter's end"), ErrorKind::ShutDown);
            assert!(guard.check().is_err());
            drop(guard);
            drop(client);
        } else {
            drop(guard);
            within(begun, T, "dropping a guard");
            in_time(3 * T, "dropping a client", || drop(client));
            world.server.cont();
            // The waiter keeps its client alive, and gets the lock when the other client's lease ends.
            waiter.outcome().0.unwrap();
        }
        world.server.cont();
        drop(blocked);
        comes_within(now(), 2 * L, "the end of the locks", || world.lock_keys().is_empty());
        drop(seen);
    }
});

scenario!(a_shutdown_awaits_pending_requests_and_releases_their_locks, |world| {
    for way in ["try", "wait", "drop", "unlock", "pass on"] {
        let client = world.builder().lease(LONG).command_timeout(LONG).build().unwrap();
        let lock = client.get_lock(way);
        let fault;
        let working = if ["try", "wait"].contains(&way) {
            fault = world.proxy.next(about(way), Do::HoldReply);
            call(move || if way == "try" { lock.try_lock().map(drop) } else { lock.lock() })
        } else {
            let guard = lock.acquire_owned().unwrap();
            let waiter = (way == "pass on").then(|| {
                let lock = lock.clone();
                let waiter = call(move || lock.lock());
                assert!(eventually(LONG, || client.stats().waiters == 1), "the other thread does not wait");
                waiter
            });
            fault = world.proxy.next(about(way), Do::HoldReply);
            call(move || {
                let ended = if way == "drop" {
                    drop(guard);
                    Ok(())
                } else {
                    guard.unlock()
                };
                waiter.map_or(ended, |waiter| waiter.outcome().0)
            })
        };
        fault.wait_for(1, LONG);
        let ending = call_on(client.clone(), move |client| client.shutdown());
        // This call needs no server, so it can show whether the shutdown has begun.
        let no_lease = || client.get_lock("other").try_lock_for_with_lease(ms(0), ms(0)).unwrap_err().kind();
        assert!(eventually(LONG, || no_lease() == ErrorKind::ShutDown), "{way}: the shutdown has not begun");
        fault.release();
        ending.outcome().0.unwrap();
        assert_eq!(world.lock_keys(), Vec::<String>::new(), "{way}");
        let outcome = working.outcome().0;
        let ended = outcome.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::ShutDown);
        assert!(ended, "{way}: {outcome:?}");
    }
});

scenario!(a_shutdown_of_a_busy_client_leaves_no_lock, |world| {
    for round in 0..40 {
        let client = world.builder_to(&world.server.url()).lease(LONG).command_timeout(LONG).build().unwrap();
        let threads: Vec<_> = (0..32)
            .map(|number| {
                let own = client.get_lock(format!("own-{number}"));
                let shared = client.get_lock(format!("shared-{}", number % 3));
                call(move || -> leasehold::Result<()> {
                    loop {
                        match number % 4 {
                            0 => drop(shared.acquire()?),
                            1 => shared.acquire()?.unlock()?,
                            2 => drop(own.try_acquire()?),
                            _ => own.acquire_owned()?.unlock()?,
                        }
                    }
                })
            })
            .collect();
        let_pass(ms(10 + round % 5), "while they work");
        client.shutdown().unwrap();
        assert_eq!(world.lock_keys(), Vec::<String>::new(), "round {round}");
        for thread in threads {
            let error = thread.outcome().0.unwrap_err();
            assert!(error.kind() == ErrorKind::ShutDown || error.is_lost(), "{error}");
        }
    }
});

scenario!(a_thousand_holds_are_kept_and_then_released_in_time, |world| {
    let client = world.builder_to(&world.server.url()).lease(KEPT).build().unwrap();
    let guards: Vec<_> =
        (0..1000).map(|number| client.get_lock(format!("many-{number}")).acquire_owned().unwrap()).collect();
    throughout(KEPT + R, || guards.iter().all(|guard| guard.check().is_ok()));
    in_time(2 * T, "a shutdown that gives back a thousand locks", || client.shutdown().unwrap());
    assert!(world.lock_keys().is_empty());
    drop(guards);
});
