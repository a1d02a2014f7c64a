//! The memory store with a clock that only the test moves, so that hours pass at once. Real time only bounds
//! how long the test waits for a thread.

use leasehold::Event;

use crate::support::observer::observe;
use crate::support::prelude::*;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const HOUR: Duration = secs(3_600);
const LEASE: Duration = secs(30);

fn world() -> (ManualClock, MemoryStore) {
    let clock = ManualClock::new();
    (clock.clone(), MemoryStore::with_clock(clock))
}

#[test]
fn a_release_wakes_a_waiter_while_the_clock_stands_still() {
    let (_clock, store) = world();
    let [first, second] = [0; 2].map(|_| LockClient::in_memory_with(&store));
    let guard = first.get_lock("a").acquire().unwrap();
    let lock = second.get_lock("a");
    let waiter = Waiter::start(move || lock.acquire_owned().unwrap());
    comes_true_within(LONG, || second.stats().waiters > 0);
    guard.unlock().unwrap();
    drop(waiter.returns_within(LONG));
}

#[test]
fn on_contended_is_called_while_the_clock_stands_still() {
    let (_clock, store) = world();
    let client = LockClient::in_memory_with(&store);
    let lock = client.get_read_write_lock("a");
    for (held, wanted) in
        [(lock.read(), lock.write()), (lock.write(), lock.read()), (lock.write(), lock.write())]
    {
        let guard = held.acquire_owned().unwrap();
        let (sender, called) = unbounded();
        guard.on_contended(move || sender.send(()).unwrap_or_default()).unwrap();
        assert!(!guard.is_contended().unwrap());
        let_pass(ms(50), "the check that the callback's registration starts");
        let wanted = wanted.clone();
        let waiter = Waiter::start(move || wanted.acquire_owned().unwrap());
        called.recv_timeout(LONG).expect("no callback came for the thread");
        guard.unlock().unwrap();
        drop(waiter.returns_within(LONG));
    }
}

#[test]
fn a_hold_is_renewed_after_a_third_of_its_lease() {
    let (clock, store) = world();
    let lock = LockClient::in_memory_with(&store).get_lock("a");
    lock.lock().unwrap();
    assert_eq!(lock.remaining_lease().unwrap(), Some(LEASE));
    for _ in 0..3 {
        clock.advance(ms(9_999));
        // `advance` returns when all due work is done, so nothing happens until the clock moves again.
        throughout(ms(30), || lock.remaining_lease().unwrap() == Some(ms(20_001)));
        clock.advance(ms(1));
        assert_eq!(lock.remaining_lease().unwrap(), Some(LEASE));
    }
}

#[test]
fn a_hold_is_renewed_until_its_max_hold_ends() {
    let (clock, store) = world();
    let (client, other) = (LockClient::in_memory_with(&store), LockClient::in_memory_with(&store));
    let guard = client.lock_builder("a").max_hold(LEASE + LEASE / 2).build().acquire().unwrap();
    clock.advance(LEASE + LEASE / 2 - secs(1));
    guard.check().unwrap();
    assert!(!elsewhere(|| other.get_lock("a").try_lock().unwrap()));
    clock.advance(secs(1));
    assert!(guard.check().is_err());
    // The last renewal was for the rest of the maximum time, so the store frees the lock in time.
    assert!(other.get_lock("a").try_lock().unwrap());
}

#[test]
fn an_explicit_lease_is_exact_to_the_millisecond() {
    let (clock, store) = world();
    let (lock, rival) =
        (LockClient::in_memory_with(&store).get_lock("a"), LockClient::in_memory_with(&store).get_lock("a"));
    lock.lock_with_lease(ms(5_000)).unwrap();
    assert_eq!(rival.remaining_lease().unwrap(), Some(ms(5_000)));
    clock.advance(ms(1_234));
    assert_eq!(rival.remaining_lease().unwrap(), Some(ms(3_766)));
    clock.advance(ms(3_765));
    assert_eq!(rival.remaining_lease().unwrap(), Some(ms(1)));
    assert!(!rival.try_lock().unwrap());
    clock.advance(ms(1));
    assert_eq!(rival.remaining_lease().unwrap(), None);
    assert!(!rival.is_locked().unwrap());
    assert!(rival.try_lock().unwrap());
    assert_eq!(lock.unlock().unwrap_err().not_held(), Some(&NotHeld::Expired));
    rival.unlock().unwrap();
}

#[test]
fn a_guard_is_lost_one_percent_before_its_lease_ends() {
    let (clock, store) = world();
    let (client, rival) = (LockClient::in_memory_with(&store), LockClient::in_memory_with(&store));
    let guard = client.get_lock("a").acquire_with(&leased(secs(10))).unwrap().unwrap();
    assert_eq!(guard.remaining(), ms(9_900));
    clock.advance(ms(9_899));
    assert_eq!((guard.remaining(), guard.state()), (ms(1), HoldState::Held));
    guard.check().unwrap();
    clock.advance(ms(1));
    assert_eq!((guard.remaining(), guard.state()), (Duration::ZERO, HoldState::Lost));
    assert!(guard.check().unwrap_err().is_lost());
    // The client stops counting the hold 1 % early, but the store excludes other owners until the lease ends.
    assert!(!rival.get_lock("a").try_lock().unwrap());
    clock.advance(ms(100));
    assert!(rival.get_lock("a").try_lock().unwrap());
    assert!(guard.unlock().unwrap_err().is_lost());
    assert!(rival.get_lock("a").is_held_by_current_thread().unwrap());
}

/// In the lease's last percent the client counts the hold as lost, but the store still has it until `unlock`.
#[test]
fn unlocking_just_before_the_lease_ends_frees_the_lock() {
    let (clock, store) = world();
    let (client, rival) = (LockClient::in_memory_with(&store), LockClient::in_memory_with(&store));
    client.get_lock("a").lock_with_lease(secs(10)).unwrap();
    clock.advance(ms(9_950));
    assert!(rival.get_lock("a").is_locked().unwrap());
    assert!(client.get_lock("a").unlock().unwrap_err().is_lost());
    clock.advance(ms(1)); // lets the client send the release
    assert!(!rival.get_lock("a").is_locked().unwrap());
}

#[test]
fn clients_created_and_dropped_while_the_clock_moves_never_hang() {
    let (clock, store) = world();
    let all = Waiter::start(move || {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            // Ends the clock's thread also after a failed assertion; otherwise the scope would wait for ever.
            let _done = crate::support::Raise(&done);
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    clock.advance(secs(7));
                }
            });
            for _ in 0..40 {
                let client = LockClient::in_memory_with(&store);
                let guard = client.get_lock("a").acquire().unwrap();
                drop(client);
                // The clock may jump over the whole lease, so the hold may be lost.
                if let Err(error) = guard.unlock() {
                    assert!(error.is_lost(), "{error}");
                }
            }
        });
    });
    all.returns_within(LONG);
}

#[test]
fn the_manual_clock_can_advance_while_no_client_exists() {
    let (clock, store) = world();
    let alone = Waiter::on(clock.clone(), move |clock| clock.advance(HOUR));
    alone.returns_within(LONG);
    let client = LockClient::in_memory_with(&store);
    client.get_lock("a").lock_with_lease(secs(9)).unwrap();
    client.shutdown().unwrap();
    drop(client);
    let left = Waiter::on(clock.clone(), move |clock| clock.advance(HOUR));
    left.returns_within(LONG);
    let next = LockClient::in_memory_with(&store);
    assert!(next.get_lock("a").try_lock().unwrap());
}

#[test]
fn a_renewal_notices_a_forced_release() {
    let (clock, store) = world();
    let (client, operator) = (LockClient::in_memory_with(&store), LockClient::in_memory_with(&store));
    let guard = client.get_lock("a").acquire().unwrap();
    clock.advance(secs(4));
    assert!(operator.get_lock("a").force_unlock().unwrap());
    clock.advance(ms(5_999));
    assert_eq!(guard.state(), HoldState::Held);
    clock.advance(ms(1));
    assert_eq!(guard.state(), HoldState::Lost);
    assert!(guard.check().unwrap_err().is_lost());
}

#[test]
fn a_multi_lock_counts_its_lease_from_the_last_grant() {
    let (clock, store) = world();
    let (client, rival) = (LockClient::in_memory_with(&store), LockClient::in_memory_with(&store));
    let multi = client.get_multi_lock([client.get_lock("a"), client.get_lock("b"), client.get_lock("c")]);
    let held = Holding::take(&rival.get_lock("b"));
    let waiter = Waiter::start(move || {
        let guard = multi.acquire_with(&leased(secs(9))).unwrap().unwrap();
        guard.remaining()
    });
    // While the multi-lock waits for `b`, the client renews its hold of `a`, each time for at most the lease.
    for _ in 0..8 {
        clock.advance(ms(1_100));
        assert!(rival.get_lock("a").is_locked().unwrap());
        assert!(rival.get_lock("a").remaining_lease().unwrap() <= Some(secs(9)));
    }
    held.release();
    let (remaining, _) = waiter.returns_within(LONG);
    assert_eq!(remaining, ms(8_910));
}

#[test]
fn a_multi_lock_releases_its_locks_in_reverse_order() {
    let store = MemoryStore::new();
    let (observer, seen) = observe(|event| match event {
        Event::Released { name, .. } => Some((*name).to_owned()),
        _ => None,
    });
    let client = LockClient::builder().observer(observer).build_in_memory(&store).unwrap();
    let rival = LockClient::in_memory_with(&store);
    let names = ["b", "d", "a", "c"];
    let multi = client.get_multi_lock(names.map(|name| client.get_lock(name)));
    let released =
        |count: usize| -> Vec<String> { (0..count).map(|_| seen.recv_timeout(LONG).unwrap()).collect() };
    multi.lock().unwrap();
    multi.unlock().unwrap();
    assert_eq!(released(4), ["d", "c", "b", "a"]);
    multi.acquire().unwrap().unlock().unwrap();
    assert_eq!(released(4), ["d", "c", "b", "a"]);
    drop(multi.acquire().unwrap());
    assert_eq!(released(4), ["d", "c", "b", "a"]);
    let held = Holding::take(&rival.get_lock("d"));
    assert!(!multi.try_lock_for(ms(20)).unwrap());
    assert_eq!(released(3), ["c", "b", "a"]);
    assert!(!multi.try_lock().unwrap());
    assert_eq!(released(3), ["c", "b", "a"]);
    held.release();
    assert!(seen.try_recv().is_err());
}

#[test]
fn a_command_timeout_above_the_lease_causes_a_warning() {
    for (timeout, is_told) in [(secs(5), true), (ms(300), false)] {
        let (observer, told) = observe(|event| match event {
            Event::Warning { text, .. } => Some((*text).to_owned()),
            _ => None,
        });
        let builder = LockClient::builder().url("redis://127.0.0.1:1").connect_lazily().lease(secs(1));
        let client = builder.command_timeout(timeout).observer(observer).build().unwrap();
        client.shutdown().unwrap();
        drop(client);
        // With the client its observer is gone, so the iteration over the channel ends.
        let told: Vec<String> = told.iter().filter(|text| text.contains("command_timeout")).collect();
        assert_eq!(told.len(), usize::from(is_told), "{told:?}");
    }
}

/// This test runs in its own process, because other tests also make clients.
#[test]
fn many_clients_in_one_process_cause_one_warning() {
    const INSIDE: &str = "LEASEHOLD_TEST_MANY_CLIENTS";
    if std::env::var_os(INSIDE).is_none() {
        let command = crate::support::test_command("memory::many_clients_in_one_process_cause_one_warning");
        let (good, said) = crate::support::run(&command, |command| command.env(INSIDE, "1"));
        assert!(good && said.contains("1 passed"), "{said}");
        return;
    }
    let (store, (tell, told)) = (MemoryStore::new(), unbounded());
    let make = || {
        let tell = tell.clone();
        let observer = move |event: &Event<'_>| {
            if let Event::Warning { text, .. } = event {
                tell.send((*text).to_owned()).unwrap();
            }
        };
        LockClient::builder().observer(observer).build_in_memory(&store).unwrap()
    };
    // Clients that exist one after the other, and clones, do not count as many clients.
    for _ in 0..100 {
        let client = make();
        let _clones = [client.clone(), client.clone()];
    }
    let few: Vec<_> = (0..31).map(|_| make()).collect();
    let many: Vec<_> = (0..40).map(|_| make()).collect();
    for client in few.iter().chain(&many) {
        client.shutdown().unwrap();
    }
    drop((few, many, tell));
    let told: Vec<String> = told.iter().collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("32 clients"), "{told:?}");
}
