//! A late request touches no later hold, because the thread's later holds have another owner number (in
//! `client:number`). A resumed holder knows that it lost the lock.

use leasehold::Error;

use super::world::{KEPT, L, OWN, PATIENCE, R, T, World, about, play_with_leases, releases, scenario};
use crate::support::netns::Netns;
use crate::support::prelude::*;
use crate::support::proxy::{Do, Proxy, Then, Which};
use crate::support::{Process, reexecuted};

const LEASE: Duration = Duration::from_secs(10);

scenario!(a_release_arriving_after_the_next_acquire_ends_no_hold, |world| {
    let client = world.client();
    let lock = client.get_lock("late");
    for way in ["unlock", "drop"] {
        let first = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        let (old, fault) = (first.owner(), world.proxy.next(releases("late"), Do::HoldRequest));
        end(way, first);
        let second = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        assert_ne!(second.owner(), old, "{way}");
        world.arrives(&fault);
        world.stays_held(ms(100), "late", second.owner(), 1);
        assert_eq!(second.state(), HoldState::Held);
        assert!(!elsewhere(|| lock.try_lock().unwrap()));
        second.unlock().unwrap();
        assert!(world.is_free("late"), "{way}");
    }
});

scenario!(a_failed_unlock_arriving_late_ends_no_later_hold, |world| {
    // With so short a retry time-out, the unlock sends only one request.
    let client = world.builder().retry_timeout(ms(1)).build().unwrap();
    let lock = client.get_lock("given-up");
    lock.lock_with_lease(LEASE).unwrap();
    let old = client.current_owner();
    let fault = world.proxy.next(releases("given-up"), Do::HoldRequest);
    let begun = now();
    match lock.unlock() {
        Ok(()) => {}
        Err(error) => assert!(error.outcome_unknown(), "{error}"),
    }
    within(begun, 2 * T, "an unlock without patience");
    // The client repeats the release in the background.
    comes_within(begun, 2 * T, "the release", || world.is_free("given-up"));
    lock.lock_with_lease(LEASE).unwrap();
    assert_ne!(client.current_owner(), old);
    world.arrives(&fault);
    world.stays_held(ms(100), "given-up", client.current_owner(), 1);
    lock.unlock().unwrap();
    assert!(world.is_free("given-up"));
});

scenario!(a_late_acquire_request_changes_no_later_hold, |world| {
    let client = world.client();
    let lock = client.get_lock("attempt");
    let fault = world.proxy.next(about("attempt"), Do::HoldRequest);
    assert!(lock.try_lock().unwrap_err().outcome_unknown());
    lock.lock_with_lease(LEASE).unwrap();
    let owner = client.current_owner();
    // The client repeats the clean-up until the attempt arrives. The new hold must stay.
    world.stays_held(2 * T, "attempt", owner, 1);
    world.arrives(&fault);
    world.stays_held(ms(100), "attempt", owner, 1);
    lock.unlock().unwrap();
    assert!(world.is_free("attempt"));
});

scenario!(a_late_reentry_request_changes_no_later_hold, |world| {
    for outcome in ["repeated", "failed"] {
        let client = world.client();
        let lock = client.get_lock("re-entry");
        lock.lock_with_lease(LEASE).unwrap();
        let fault = world.proxy.next(about("re-entry"), Do::HoldRequest);
        if outcome == "repeated" {
            lock.lock_with_lease(LEASE).unwrap();
            lock.unlock().unwrap();
        } else {
            assert!(lock.try_lock().unwrap_err().outcome_unknown());
        }
        lock.unlock().unwrap();
        lock.lock_with_lease(LEASE).unwrap();
        let owner = client.current_owner();
        world.assert_held("re-entry", owner, 1);
        world.arrives(&fault);
        world.stays_held(ms(100), "re-entry", owner, 1);
        lock.unlock().unwrap();
        assert!(world.is_free("re-entry"), "{outcome}");
    }
});

scenario!(a_late_inner_unlock_changes_no_count_of_later_holds, |world| {
    let client = world.client();
    let lock = client.get_lock("partial");
    (0..2).for_each(|_| lock.lock_with_lease(LEASE).unwrap());
    let fault = world.proxy.next(releases("partial"), Do::HoldRequest);
    lock.unlock().unwrap();
    lock.unlock().unwrap();
    (0..3).for_each(|_| lock.lock_with_lease(LEASE).unwrap());
    let owner = client.current_owner();
    world.arrives(&fault);
    world.stays_held(ms(100), "partial", owner, 3);
    (0..3).for_each(|_| lock.unlock().unwrap());
    assert!(world.is_free("partial"));
});

scenario!(a_release_sent_before_a_disconnect_ends_no_later_hold, |world| {
    // This proxy aborts connections near the client. Bytes that have passed it still reach the server.
    let near = Proxy::to(world.proxy.address());
    let client = world.builder_to(&near.url()).build().unwrap();
    let lock = client.get_lock("aborted");
    for way in ["unlock", "drop", "drop and wait"] {
        let first = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        let (old, fault) = (first.owner(), world.proxy.next(releases("aborted"), Do::HoldRequest));
        match way {
            "unlock" => std::thread::scope(|scope| {
                scope.spawn(|| {
                    fault.wait_for(1, LONG);
                    near.kill(Which::All, Then::Reset);
                });
                first.unlock().unwrap();
            }),
            _ => {
                drop(first);
                fault.wait_for(1, LONG);
                near.kill(Which::All, Then::Reset);
                if way == "drop and wait" {
                    assert!(eventually(LONG, || near.connections() == 0));
                }
            }
        }
        let second = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        assert_ne!(second.owner(), old, "{way}");
        world.arrives(&fault);
        world.stays_held(ms(100), "aborted", second.owner(), 1);
        assert!(!elsewhere(|| lock.try_lock().unwrap()));
        second.unlock().unwrap();
        assert!(world.is_free("aborted"), "{way}");
    }
    drop((lock, client));
    let closed = eventually(LONG, || near.connections() == 0);
    assert!(closed, "connections are left");
});

#[test]
fn releases_delayed_by_the_kernel_end_no_later_hold() {
    alone(|| {
        let (Some(binary), Some(net)) = (default_server(), Netns::new()) else { return };
        let server = net.start(RedisServer::builder(&binary));
        play_with_leases(LEASE, server, |world| {
            let client = world.direct();
            let lock = client.get_lock("kernel");
            for way in ["unlock", "drop"] {
                let first = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
                let old = first.owner();
                // Until the network is healed, the kernel keeps the bytes of existing connections.
                let cut = net.cut_connections(&world.server);
                end(way, first);
                let second = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
                assert_ne!(second.owner(), old, "{way}");
                let before = world.scripts_run();
                cut.heal();
                assert!(eventually(LONG, || world.scripts_run() > before), "{way}: the kernel gave up");
                throughout(ms(500), || {
                    world.assert_held("kernel", second.owner(), 1);
                    second.check().is_ok()
                });
                second.unlock().unwrap();
                assert!(world.is_free("kernel"), "{way}");
            }
        });
    });
}

scenario!(a_release_repeated_after_script_flush_frees_no_later_hold, |world| {
    let (client, other) = (world.client(), world.direct());
    let lock = client.get_lock("noscript");
    for round in 0..30 {
        let first = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        world.does(&["SCRIPT", "FLUSH"]);
        if round % 4 == 0 {
            // This try loads only the acquire script: the release is repeated, the next acquire is not.
            assert!(!other.get_lock("noscript").try_lock().unwrap());
        }
        let fault = world.proxy.next(releases("noscript"), Do::DelayReply(ms(30)));
        end(["drop", "unlock"][round % 2], first);
        let second = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        fault.wait_for(1, LONG);
        throughout(ms(40), || {
            world.assert_held("noscript", second.owner(), 1);
            second.check().is_ok()
        });
        assert!(!other.get_lock("noscript").try_lock().unwrap());
        second.unlock().unwrap();
        assert!(world.is_free("noscript"));
    }
});

scenario!(reentries_of_an_expired_hold_never_count_for_the_next, |world| {
    let (client, other) = (world.client(), world.direct());
    let lock = client.get_lock("expired");
    let lease = ms(200);
    let outer = lock.acquire_with(&leased(lease)).unwrap().unwrap();
    let inner = lock.acquire_with(&leased(lease)).unwrap().unwrap();
    assert!(eventually(LONG, || world.is_free("expired")));
    let theirs = other.get_lock("expired").acquire().unwrap();
    assert!(!lock.try_lock().unwrap());
    world.assert_held("expired", theirs.owner(), 1);
    theirs.unlock().unwrap();
    let again = lock.acquire().unwrap();
    world.assert_held("expired", again.owner(), 1);
    assert!(inner.unlock().unwrap_err().is_lost() && outer.unlock().unwrap_err().is_lost());
    throughout(T, || world.fields("expired").len() == 1);
    world.assert_held("expired", again.owner(), 1);
    again.unlock().unwrap();
    assert!(matches!(lock.unlock().unwrap_err().not_held(), Some(NotHeld::Free)));
});

/// A write to a resource that refuses smaller fencing tokens than it has seen.
const FENCED_WRITE: &str =
    "if tonumber(ARGV[1]) < tonumber(redis.call('get', KEYS[2]) or '0') then return 0 end
    redis.call('set', KEYS[2], ARGV[1]) redis.call('set', KEYS[1], ARGV[2]) return 1";

fn write(connection: &mut redis::Connection, fence: u64, text: &str) -> bool {
    let (value, newest) = (format!("{OWN}value"), format!("{OWN}newest"));
    let mut command = redis::cmd("EVAL");
    command.arg(FENCED_WRITE).arg(2).arg(value).arg(newest).arg(fence).arg(text).query(connection).unwrap()
}

/// The work of a holding process: reports its hold, and checks the hold until a check fails after a stop.
fn hold_until_stopped(url: &str) {
    let client = leasehold::LockClient::builder()
        .url(url)
        .lease(2 * L)
        .command_timeout(T)
        .retry_timeout(PATIENCE)
        .build()
        .unwrap();
    let mut store = redis::Client::open(url).unwrap().get_connection().unwrap();
    let lock = client.get_fenced_lock("stopped");
    let guard = lock.acquire().unwrap();
    let fence = guard.fencing_token().unwrap().get();
    assert!(write(&mut store, fence, "before"));
    shout(&format!("\nHOLDS {} {fence}", guard.owner()));
    let mut last = now();
    let outcome = loop {
        let this = now();
        // After a stop, this check may run before any thread of the library, and must find the loss itself.
        let outcome = guard.check();
        if outcome.is_err() || this - last > 2 * L {
            break outcome;
        }
        last = this;
        let_pass(ms(1), "between two checks");
    };
    let lost = outcome.as_ref().is_err_and(Error::is_lost);
    shout(&format!("WOKE lost={lost} state={:?}", guard.state()));
    shout(&format!("WROTE {}", write(&mut store, fence, "after")));
    let expired = guard.unlock().unwrap_err();
    shout(&format!("UNLOCKED {:?}", expired.not_held()));
    shout(&format!("AGAIN {:?}", lock.try_lock().map_err(|error| error.kind())));
    client.shutdown().unwrap();
}

/// Starts the program again as a process that holds the lock `stopped`, and runs `work` beside it.
fn beside_a_holder(test: &str, work: impl FnOnce(&World, Process)) {
    const URL: &str = "LEASEHOLD_FAULTS_HOLDER";
    if let Ok(url) = std::env::var(URL) {
        return hold_until_stopped(&url);
    }
    scenario(|world| {
        let holder = reexecuted(test, &[(URL, &world.server.url())]);
        assert!(eventually(LONG, || holder.output().contains("HOLDS")), "{}", holder.output());
        work(world, holder);
    });
}

#[test]
fn a_resumed_holder_knows_its_loss_and_its_write_fails() {
    beside_a_holder("owners::a_resumed_holder_knows_its_loss_and_its_write_fails", |world, holder| {
        let url = world.server.url();
        let says = |word: &str| holder.output().lines().any(|line| line.contains(word));
        holder.signal("STOP");
        let_pass(L / 3, "while the holder is stopped");
        holder.signal("CONT");
        throughout(R, || !says("WOKE"));
        holder.signal("STOP");
        let client = world.builder_to(&url).lease(KEPT).retry_timeout(LONG).build().unwrap();
        let stopped = now();
        let guard = client.get_fenced_lock("stopped").acquire().unwrap();
        within(stopped, 2 * L, "taking over from a stopped holder");
        let fence = guard.fencing_token().unwrap().get();
        let mut store = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
        assert!(write(&mut store, fence, "theirs"));
        let_pass(L, "so that the holder's window is over by far");
        holder.signal("CONT");
        let (good, text) = holder.ends_within(LONG);
        let line = |word: &str| {
            text.lines()
                .find(|line| line.starts_with(word))
                .unwrap_or_else(|| panic!("{word}: {text}"))
                .to_owned()
        };
        assert!(good, "{text}");
        assert_eq!(line("WOKE"), "WOKE lost=true state=Lost");
        assert_eq!(line("WROTE"), "WROTE false");
        assert_eq!(line("UNLOCKED"), "UNLOCKED Some(Expired)");
        assert_eq!(line("AGAIN"), "AGAIN Ok(false)");
        assert_eq!(world.run::<String>(&["GET", &format!("{OWN}value")]), "theirs");
        let older: u64 = line("HOLDS").rsplit(' ').next().unwrap().parse().unwrap();
        assert!(fence > older);
        world.assert_held("stopped", guard.owner(), 1);
        guard.check().unwrap();
        guard.unlock().unwrap();
    });
}

#[test]
fn a_killed_holders_lock_is_taken_over_after_its_lease() {
    beside_a_holder("owners::a_killed_holders_lock_is_taken_over_after_its_lease", |world, holder| {
        let client = world.direct();
        let waiters = [(); 2].map(|()| start(turn(client.get_lock("stopped"))));
        world.await_subscription("stopped");
        throughout(L, || {
            world.fields("stopped").len() == 1 && waiters.iter().all(|waiter| !waiter.is_finished())
        });
        let killed = now();
        drop(holder); // kills the process
        for waiter in waiters {
            let taken = waiter.join().unwrap();
            within(killed, 2 * L, "taking over");
            assert!(taken > killed);
        }
        assert!(world.is_free("stopped"));
    });
}
