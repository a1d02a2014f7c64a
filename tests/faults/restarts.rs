//! Servers that stop, stall, lose their data and return.

use super::world::{KEPT, L, OWN, P, R, T, World, about, await_renewal, scenario_on};
use crate::support::observer::{Event, Seen};
use crate::support::prelude::*;
use crate::support::proxy::Which;

scenario!(a_short_server_stop_loses_no_hold, |world| {
    // The lease is longer than the stop and the delays of a busy machine together.
    let (lease, seen) = (4 * L, Seen::default());
    let options = world.builder().lease(lease).retry_timeout(LONG).observer(seen.clone());
    let client = options.build().unwrap();
    let guard = client.get_lock("stopped").acquire().unwrap();
    let waiter = call(turn(client.get_lock("stopped")));
    for _ in 0..2 {
        world.server.stop();
        let_pass(lease / 2, "while the server stands still");
        world.server.cont();
        throughout(R + T, || guard.check().is_ok());
    }
    world.assert_held("stopped", guard.owner(), 1);
    let unlocked = now();
    guard.unlock().unwrap();
    waiter.returns_within(unlocked, P, "taking over");
    assert_eq!(seen.losses(), 0);
});

scenario!(a_long_server_stop_loses_the_hold, |world| {
    let (client, seen) = world.watched();
    let guard = client.get_lock("frozen").acquire().unwrap();
    let stopped = now();
    world.server.stop();
    comes_within(stopped, L, "the loss", || guard.check().is_err());
    seen.wait_for("the loss", |event| matches!(event, Event::Lost(_)));
    let_pass(L, "so that the server finds every lease over");
    world.server.cont();
    throughout(R + T, || guard.state() == HoldState::Lost && world.is_free("frozen"));
    assert_eq!(guard.unlock().unwrap_err().not_held(), Some(&NotHeld::Expired));
    let again = client.get_lock("frozen").acquire().unwrap();
    world.assert_held("frozen", again.owner(), 1);
    again.unlock().unwrap();
});

#[test]
fn waits_and_renewals_continue_after_a_blocking_script_ends() {
    let busy = |builder: crate::support::server::Builder| builder.config("lua-time-limit 50");
    scenario_on(busy, |world| {
        let seen = Seen::default();
        let builder = world.builder().lease(KEPT).command_timeout(LONG).retry_timeout(LONG);
        let client = builder.observer(seen.clone()).build().unwrap();
        let guard = client.get_lock("held").acquire().unwrap();
        let mut killer = world.server.admin();
        let mut runner = world.server.admin();
        let script = start(move || {
            redis::cmd("EVAL").arg("while true do end").arg(0).query::<redis::Value>(&mut runner).unwrap_err()
        });
        let is_busy = || {
            let asked = redis::cmd("PING").query::<String>(&mut killer);
            asked.is_err_and(|error| error.code() == Some("BUSY"))
        };
        assert!(eventually(LONG, is_busy), "the script does not block");
        let error = fails(client.get_lock("other").try_lock(), ErrorKind::Busy);
        assert!(error.is_retryable() && !error.outcome_unknown(), "{error}");
        fails(
            in_time(ms(200) + T, "a wait for a busy server", || {
                client.get_lock("other").try_lock_for(ms(200))
            }),
            ErrorKind::Busy,
        );
        let waiter = call(turn(client.get_lock("other")));
        throughout(ms(200), || !waiter.is_over());
        let killed = now();
        redis::cmd("SCRIPT").arg("KILL").exec(&mut killer).unwrap();
        waiter.returns_within(killed, P, "getting through");
        script.join().unwrap();
        await_renewal(&guard);
        guard.unlock().unwrap();
        assert_eq!(seen.losses(), 0);
    });
}

scenario!(flushed_scripts_cause_no_error, |world| {
    let client = || world.builder_to(&world.server.url()).lease(KEPT).command_timeout(LONG).build().unwrap();
    let clients = [client(), client()];
    let (done, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let threads: Vec<_> = (0..6)
        .map(|number| {
            let client = clients[number % 2].clone();
            let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
            start(move || {
                let (own, shared) =
                    (client.get_lock(format!("own-{number}")), client.get_fenced_lock("shared"));
                while !stop.load(Ordering::Relaxed) {
                    let outer = own.acquire().unwrap();
                    let inner = own.acquire().unwrap();
                    assert_eq!(own.hold_count().unwrap(), 2);
                    inner.unlock().unwrap();
                    drop(outer);
                    let guard = shared.acquire().unwrap();
                    guard.check().unwrap();
                    if number < 4 {
                        guard.unlock().unwrap()
                    } else {
                        drop(guard)
                    }
                    done.fetch_add(7, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut flushed = 0;
    let enough = || done.load(Ordering::Relaxed) >= 7000;
    assert!(eventually(LONG_RUN, || {
        let_pass(ms(20), "the pause between two flushes");
        world.does(&["SCRIPT", "FLUSH"]);
        flushed += 1;
        enough() && flushed >= 30
    }));
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
});

const LONG_RUN: Duration = Duration::from_secs(60);

#[test]
fn a_server_restart_with_data_loses_no_hold() {
    let durable = |builder: crate::support::server::Builder| builder.append_only("always");
    scenario_on(durable, |world| {
        let seen = crate::support::observer::Seen::default();
        let lease = 4 * L;
        let client = world.builder().lease(lease).observer(seen.clone()).build().unwrap();
        let guard = client.get_lock("durable").acquire().unwrap();
        let waiter = call(turn(world.client().get_lock("durable")));
        world.await_subscription("durable");
        world.server.kill();
        world.server.restart();
        world.assert_held("durable", guard.owner(), 1);
        throughout(lease, || guard.check().is_ok());
        assert!(!waiter.is_over());
        let unlocked = now();
        guard.unlock().unwrap();
        waiter.returns_within(unlocked, P, "taking over");
        assert_eq!(seen.losses(), 0, "{:?}", seen.events());
    });
}

scenario!(fencing_tokens_grow_after_a_server_restart_without_data, |world| {
    let (client, seen) = world.watched();
    let other = world.direct();
    let lock = client.get_fenced_lock("forgotten");
    let guard = lock.acquire().unwrap();
    let nested = lock.acquire().unwrap();
    world.server.kill();
    world.server.restart();
    let back = now();
    assert_eq!(world.lock_keys(), [""; 0]);
    let theirs = other.get_fenced_lock("forgotten").acquire().unwrap();
    comes_within(back, R + T, "the loss", || guard.check().is_err());
    seen.wait_for("the loss", |event| matches!(event, Event::Lost(_)));
    assert!(
        theirs.fencing_token() > guard.fencing_token(),
        "{:?} after {:?}",
        theirs.fencing_token(),
        guard.fencing_token()
    );
    assert!(nested.unlock().unwrap_err().is_lost() && guard.unlock().unwrap_err().is_lost());
    world.assert_held("forgotten", theirs.owner(), 1);
    theirs.unlock().unwrap();
    let again = lock.acquire().unwrap();
    world.assert_held("forgotten", again.owner(), 1);
    again.unlock().unwrap();
});

/// The maximum time until a client renews its holds after its connections ended or the server returned: the
/// interval of the connection check, or a failed attempt and the pause after it.
const NOTICED: Duration = ms(300);

// No renewal is due for long, so only the end of the connections makes the client check its holds.
scenario!(a_client_notices_the_servers_data_loss_when_connections_end, |world| {
    for url in [world.server.url(), world.proxy.url()] {
        let client = world.builder_to(&url).lease(3 * LONG).build().unwrap();
        // This hold opens the client's connections before the test.
        client.get_lock("earlier").acquire().unwrap().unlock().unwrap();
        let guard = client.get_lock("forgotten").acquire().unwrap();
        world.server.kill();
        world.server.restart();
        let back = now();
        comes_within(back, NOTICED, "the loss", || guard.check().is_err());
        assert!(guard.unlock().unwrap_err().is_lost());
    }
});

scenario!(a_hold_is_renewed_when_its_connections_end, |world| {
    let client = world.builder_to(&world.server.url()).lease(3 * LONG).build().unwrap();
    let guard = client.get_lock("kept").acquire().unwrap();
    // A permit of a plain semaphore has no lease, so it is neither renewed nor lost.
    client.get_semaphore("counted").try_set_permits(1).unwrap();
    let permit = client.get_semaphore("counted").acquire(1).unwrap();
    let_pass(ms(1_000), "so that a renewal shows");
    let before = guard.remaining();
    let ended = now();
    world.does(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    comes_within(ended, NOTICED, "the renewal", || guard.remaining() > before);
    guard.check().unwrap();
    guard.unlock().unwrap();
    permit.check().unwrap();
    permit.unlock().unwrap();
    drop(client);
    world.lock_keys().iter().for_each(|key| world.does(&["DEL", key]));
});

#[test]
fn a_waiter_retries_until_a_server_has_loaded_its_data() {
    // The server waits 20 ms for each key that it loads, so it loads for minutes unless the test ends that.
    let slow = |builder: crate::support::server::Builder| {
        builder
            .config("rdbcompression no")
            .config("loading-process-events-interval-bytes 1024")
            .config("key-load-delay 20000")
            .while_loading()
    };
    scenario_on(slow, |world| {
        // The time-outs are long, so that the error is about loading even if the answer comes late.
        let unhurried =
            |builder: ClientBuilder| builder.retry_timeout(LONG).command_timeout(LONG).connect_timeout(LONG);
        let client = unhurried(world.builder()).build().unwrap();
        client.get_lock("loaded").acquire().unwrap().unlock().unwrap();
        let mut pipeline = redis::pipe();
        let filler = "x".repeat(2_048);
        for number in 0..6_000 {
            pipeline.set(format!("{OWN}{number}"), &filler).ignore();
        }
        pipeline.cmd("SAVE").ignore();
        pipeline.exec(&mut world.server.admin()).unwrap();
        world.server.kill();
        world.server.restart();
        let is_loading = || {
            let info: String = world.run(&["INFO", "persistence"]);
            info.contains("\r\nloading:1\r\n")
        };
        assert!(is_loading(), "the server is loading");
        let error = client.get_lock("loaded").try_lock().unwrap_err();
        let refused = unhurried(world.builder()).build().unwrap_err();
        assert!(is_loading(), "the server has finished loading");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.is_retryable(), "{error}");
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        let (asked, waiting) = (world.proxy.count(about("loaded")), client.get_lock("loaded"));
        let waiter = call(move || waiting.acquire_owned().unwrap());
        assert!(
            eventually(LONG, || world.proxy.count(about("loaded")) > asked + 1),
            "the waiter does not retry"
        );
        assert!(is_loading() && !waiter.is_over());
        world.does(&["CONFIG", "SET", "key-load-delay", "0"]);
        let (guard, _) = waiter.outcome();
        assert!(!is_loading());
        world.assert_held_by("loaded", &client, 1);
        guard.unlock().unwrap();
    });
}

scenario!(an_unlimited_wait_ends_after_the_retry_timeout, |world| {
    let client = world.builder().retry_timeout(ms(800)).build().unwrap();
    world.proxy.hold(crate::support::proxy::Direction::ToServer, Which::All);
    let begun = now();
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let lock = client.get_lock("patience");
            call(move || lock.lock())
        })
        .collect();
    for waiter in waiters {
        // The client notices the failure within T, retries for 800 ms, and its last attempt takes up to T.
        let promised = T + ms(800) + T;
        let error = waiter.returns_within(begun, promised, "an endless wait without a server").unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }
    world.proxy.resume();
});

/// Acquires and drops guards of the first `count` kinds while `forget` disturbs the server. No key may
/// remain, and no release may be reported as failed.
fn each_dropped_guard_is_released(world: &mut World, count: usize, forget: impl Fn(&mut World, &LockClient)) {
    let (client, seen) = world.watched_keeping();
    let (semaphore, expirable) =
        (client.get_semaphore("test:permits"), client.get_expirable_semaphore("test:expirable"));
    assert!(semaphore.try_set_permits(1).unwrap() && expirable.try_set_permits(1).unwrap());
    let (fenced, rw) = (client.get_fenced_lock("test:fenced"), client.get_read_write_lock("rw"));
    let (plain, other) = (client.get_lock("plain"), client.get_lock("other"));
    let group = client.get_multi_lock([&plain, &other]);
    let (fair, token) = (client.get_fair_lock("fair"), client.get_token_lock("token"));
    let (reads, writes) = (rw.read(), rw.write());
    type Take<'a> = Box<dyn Fn() -> Box<dyn std::any::Any> + 'a>;
    let kinds: [(&str, Take<'_>); 9] = [
        ("plain", Box::new(|| Box::new(plain.acquire().unwrap()))),
        ("fair", Box::new(|| Box::new(fair.acquire().unwrap()))),
        ("fenced", Box::new(|| Box::new(fenced.acquire().unwrap()))),
        ("token", Box::new(|| Box::new(token.acquire().unwrap()))),
        ("read", Box::new(|| Box::new(reads.acquire().unwrap()))),
        ("write", Box::new(|| Box::new(writes.acquire().unwrap()))),
        ("several", Box::new(|| Box::new(group.acquire().unwrap()))),
        ("permit", Box::new(|| Box::new(semaphore.acquire(1).unwrap()))),
        ("expirable permit", Box::new(|| Box::new(expirable.acquire().unwrap()))),
    ];
    let failed = || seen.count(|event| matches!(event, Event::ReleaseFailed(..)));
    let released = || seen.count(|event| matches!(event, Event::Released(_)));
    for (kind, take) in kinds.into_iter().take(count) {
        let settled = || seen.count(|event| matches!(event, Event::Acquired(_))) == released() + failed();
        drop(take()); // tells the client that the server has the script
        assert!(eventually(LONG, settled), "{kind}: no release was reported");
        let guard = take();
        forget(world, &client);
        drop(guard);
        // The dropped guard's release may be repeated after this acquire, and must not end the new hold.
        drop(take());
        assert!(eventually(LONG, settled), "{kind}: no release was reported");
        assert_eq!(failed(), 0, "{kind}: {:?}", seen.events());
    }
    assert_eq!((failed(), client.stats().releases_failed), (0, 0), "{:?}", seen.events());
}

scenario!(dropped_guards_release_locks_despite_flushed_scripts, |world| each_dropped_guard_is_released(
    world,
    9,
    |world, _| world.does(&["SCRIPT", "FLUSH"])
));

#[test]
fn dropped_guards_release_locks_despite_a_server_restart() {
    let durable = |builder: crate::support::server::Builder| builder.append_only("always");
    scenario_on(durable, |world| {
        // The last two kinds, with permits, are left out. The server records each change of permits, and the
        // restart may lose the request that deletes a record, which would then stay for minutes.
        each_dropped_guard_is_released(world, 7, |world, client| {
            world.server.kill();
            world.server.restart();
            assert!(eventually(LONG, || client.get_lock("test").is_locked().is_ok()));
            // A request within 100 ms of the previous one would use the broken connection, and might be lost.
            let_pass(ms(120), "until the client checks its connections");
        });
    });
}
