//! Read-write locks, semaphores, latches, and plain and fair locks that Redisson and this crate share.

use redis::Commands;

use crate::agent::Pending;
use crate::java;
use crate::scene::{between, calls, keys, listeners, monotonic, own_time_between, rust, scripts_run, turn};
use crate::support::prelude::*;
use crate::waking::rounds;

const LEASE: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(60);
/// The maximum time until a notified waiter acquires, on a busy machine. A poll would come after a second.
const TOLD: Duration = Duration::from_millis(900);

test_on!(readers_and_writers_exclude_each_other_across_languages, java::set_up(LEASE), |(
    _alone,
    server,
    java,
)| {
    let client = rust(&server.url(), LEASE);
    let lock = client.get_read_write_lock("rw");
    let reading = lock.read().acquire().unwrap();
    assert!(java.is("reader", "read-try", &["rw"]));
    assert!(!java.is("writer", "write-try", &["rw"]));
    assert!(lock.read().is_held_by_current_thread().unwrap());
    java.get("reader", "read-unlock", &["rw"]);
    assert!(!java.is("writer", "write-try", &["rw"]));
    assert!(lock.read().is_held_by_current_thread().unwrap());
    assert!(java.is("reader", "read-try", &["rw"]));
    reading.unlock().unwrap();
    assert!(!lock.write().try_lock().unwrap());
    assert!(java.is("reader", "read-is-mine", &["rw"]));
    java.get("reader", "read-unlock", &["rw"]);
    let writing = lock.write().acquire().unwrap();
    assert!(!java.is("reader", "read-try", &["rw"]) && !java.is("writer", "write-try", &["rw"]));
    assert!(java.is("reader", "write-is-locked", &["rw"]));
    let reading = lock.read().acquire().unwrap();
    writing.unlock().unwrap();
    assert!(java.is("reader", "read-try", &["rw"]));
    java.get("reader", "read-unlock", &["rw"]);
    assert!(!java.is("writer", "write-try", &["rw"]));
    reading.unlock().unwrap();
    assert!(java.is("writer", "write-try", &["rw"]));
    assert!(!lock.read().try_lock().unwrap() && !lock.write().try_lock().unwrap());
    java.get("writer", "write-unlock", &["rw"]);
    assert!(lock.write().try_lock().unwrap());
    lock.write().unlock().unwrap();
    assert_eq!(keys(&mut server.admin()), Vec::<String>::new());
});

#[test]
fn waiting_readers_and_writers_are_woken_by_the_other_language() {
    let Some((_alone, server, java)) = java::set_up(LEASE) else { return };
    let client = rust(&server.url(), LEASE);
    let lock = client.get_read_write_lock("rw");
    let mut admin = server.admin();
    let writing = lock.write().acquire().unwrap();
    let readers: Vec<_> = (0..3).map(|n| java.ask(&format!("r{n}"), "read-lock", &["rw"])).collect();
    // A release wakes all sleeping Java threads, but only one of those that are about to sleep, so the test
    // waits until all three sleep.
    wait_until("all three sleep", LONG, || java.get("main", "asleep", &["r0,r1,r2"]) == "3");
    let reading = lock.read().acquire().unwrap();
    let freed = monotonic();
    writing.unlock().unwrap();
    for reader in readers {
        let got = reader.wait();
        got.result.unwrap();
        let took = own_time_between(freed, got.ended);
        assert!(took < TOLD, "{took:?}");
    }
    reading.unlock().unwrap();
    let before = scripts_run(&mut admin);
    let waiter = turn(lock.write());
    wait_until("the writer waits", LONG, || scripts_run(&mut admin) >= before + 2);
    java.get("r0", "read-unlock", &["rw"]);
    java.get("r1", "read-unlock", &["rw"]);
    assert!(waiter.is_open());
    let freed = monotonic();
    java.get("r2", "read-unlock", &["rw"]);
    assert!(own_time_between(freed, waiter.join()) < TOLD);
}

// Redisson's renewal of a reader sets the key's expiry to its own lease, even if other leases are longer.
test_on!(our_long_read_lease_survives_redissons_shorter_renewals, java::set_up(LEASE), |(
    _alone,
    server,
    java,
)| {
    let client = rust(&server.url(), LEASE);
    let lock = client.get_read_write_lock("rw");
    let mut admin = server.admin();
    for is_renewed in [false, true] {
        let outer = is_renewed.then(|| lock.read().acquire().unwrap());
        let guard = lock.read().acquire_with(&leased(Duration::from_secs(60))).unwrap().unwrap();
        java.get("reader", "read-lock", &["rw"]);
        wait_until("Java's watchdog has cut the time", LONG, || admin.pttl::<_, i64>("rw").unwrap() < 3_100);
        wait_until("our renewal has raised the time", LONG, || admin.pttl::<_, i64>("rw").unwrap() > 30_000);
        guard.check().unwrap();
        java.get("reader", "read-unlock", &["rw"]);
        assert!(!java.is("writer", "write-try", &["rw"]));
        guard.unlock().unwrap();
        drop(outer);
        wait_until("no reader is left", LONG, || java.is("writer", "write-try", &["rw"]));
        java.get("writer", "write-unlock", &["rw"]);
    }
});

#[test]
fn java_respects_the_leases_of_our_readers_and_writers() {
    let Some((_alone, server, java)) = java::set_up(LONG) else { return };
    let client = rust(&server.url(), LONG);
    let lock = client.get_read_write_lock("rw");
    let short = Duration::from_millis(1_500);
    // The inner level gives the hold a long lease, which a Java reader that comes and goes must not shorten.
    let taken = now();
    let outer = lock.read().acquire_with(&leased(short)).unwrap().unwrap();
    lock.read().acquire_with(&leased(LONG)).unwrap().unwrap().unlock().unwrap();
    java.get("reader", "read-lock", &["rw"]);
    java.get("reader", "read-unlock", &["rw"]);
    wait_until("the outer level's time is over", LONG, || taken.elapsed() > short);
    assert!(!java.is("writer", "write-try", &["rw"]));
    outer.check().unwrap();
    outer.unlock().unwrap();
    assert!(java.is("writer", "write-try", &["rw"]));
    java.get("writer", "write-unlock", &["rw"]);
    // Without its write lock, the owner keeps the read lock only for the read lock's own short lease.
    let writing = lock.write().acquire().unwrap();
    lock.read().lock_with_lease(short).unwrap();
    let (read, read_at) = (monotonic(), now());
    writing.unlock().unwrap();
    let got = java.ask("writer", "write-lock", &["rw"]).wait();
    let waited = between(read, got.ended).saturating_sub(stalled_since(read_at));
    assert!(got.result.is_ok() && waited < short + TOLD, "{waited:?}");
    java.get("writer", "write-unlock", &["rw"]);
    assert!(lock.read().unlock().unwrap_err().is_not_held());
    // Once the write lock has expired, Java can read, although the writer never released it and still reads.
    let (written, written_at) = (monotonic(), now());
    let writing = lock.write().acquire_with(&leased(short)).unwrap().unwrap();
    let reading = lock.read().acquire().unwrap();
    let got = java.ask("reader", "read-lock", &["rw"]).wait();
    let waited = between(written, got.ended).saturating_sub(stalled_since(written_at));
    assert!(got.result.is_ok() && waited < short + TOLD, "{waited:?}");
    assert!(writing.check().is_err());
    reading.check().unwrap();
    java.get("reader", "read-unlock", &["rw"]);
    assert!(!java.is("writer", "write-try", &["rw"]));
    reading.unlock().unwrap();
    assert!(java.is("writer", "write-try", &["rw"]));
    java.get("writer", "write-unlock", &["rw"]);
    assert!(writing.unlock().unwrap_err().is_not_held());
}

test_on!(waiters_get_permits_freed_by_the_other_language, java::set_up(LEASE), |(_alone, server, java)| {
    let client = rust(&server.url(), LEASE);
    let semaphore = client.get_semaphore("sem");
    assert!(java.is("main", "semaphore-set", &["sem", "3"]));
    assert!(!semaphore.try_set_permits(9).unwrap());
    let two = semaphore.acquire(2).unwrap();
    assert!(!java.is("main", "semaphore-try-for", &["sem", "2", "0"]));
    assert!(java.is("main", "semaphore-try-for", &["sem", "1", "0"]));
    assert!(semaphore.try_acquire(1).unwrap().is_none());
    let mut admin = server.admin();
    let before = scripts_run(&mut admin);
    let waiting = java.ask("waiter", "semaphore-try-for", &["sem", "2", "10000"]);
    wait_until("Java has asked twice", LONG, || scripts_run(&mut admin) >= before + 2);
    let freed = monotonic();
    two.unlock().unwrap();
    let got = waiting.wait();
    assert_eq!(got.result.as_deref(), Ok("true"));
    assert!(own_time_between(freed, got.ended) < TOLD);
    let before = scripts_run(&mut admin);
    let waiter = call_on(semaphore.clone(), move |semaphore| {
        let permit = semaphore.acquire(1).unwrap();
        let had = monotonic();
        permit.unlock().unwrap();
        had
    });
    wait_until("we have asked twice", LONG, || scripts_run(&mut admin) >= before + 2);
    assert!(waiter.is_open());
    let freed = monotonic();
    java.get("main", "semaphore-release", &["sem", "3"]);
    assert!(own_time_between(freed, waiter.join()) < TOLD);
    assert_eq!(java.get("main", "semaphore-available", &["sem"]), "3");
});

#[test]
fn leased_permits_can_be_released_by_the_other_language() {
    let Some((_alone, server, java)) = java::set_up(LEASE) else { return };
    let client = rust(&server.url(), LEASE);
    let permits = client.get_expirable_semaphore("permits");
    assert!(permits.try_set_permits(2).unwrap());
    let ours = permits.acquire().unwrap();
    let theirs = java.get("main", "permits-try-for", &["permits", "0", "60000"]);
    assert_eq!(theirs.len(), 32, "{theirs}");
    assert_eq!(permits.available_permits().unwrap(), 0);
    assert_eq!(java.get("main", "permits-try-for", &["permits", "0", "60000"]), "null");
    assert!(java.is("main", "permits-release", &["permits", &ours.ids()[0]]));
    assert!(permits.release(&theirs).unwrap());
    assert!(!java.is("main", "permits-release", &["permits", &theirs]));
    assert_eq!(java.get("main", "permits-available", &["permits"]), "2");
    assert!(ours.unlock().is_err());
    // Java's permit expires after 200 ms, so we can then acquire both permits.
    let short = java.get("main", "permits-try-for", &["permits", "0", "200"]);
    let long = permits.acquire().unwrap();
    let next = permits.acquire().unwrap();
    assert!(!permits.release(&short).unwrap());
    long.unlock().unwrap();
    next.unlock().unwrap();
    assert_eq!(java.get("main", "permits-available", &["permits"]), "2");
}

test_on!(a_latch_opens_for_all_waiters_of_both_languages, java::set_up(LEASE), |(_alone, server, java)| {
    let Some(other_java) = java::connect(&server.url(), LEASE) else { return };
    let client = rust(&server.url(), LEASE);
    let mut admin = server.admin();
    for last in ["java", "rust"] {
        let delays = rounds(|round| {
            let name = format!("latch-{last}-{round}");
            let channel = format!("redisson_countdownlatch__channel__{{{name}}}");
            let latch = client.get_count_down_latch(&name);
            if last == "java" {
                assert!(latch.try_set_count(2).unwrap());
                assert!(!java.is("main", "latch-set", &[&name, "5"]));
            } else {
                assert!(java.is("main", "latch-set", &[&name, "2"]));
                assert!(!latch.try_set_count(5).unwrap());
            }
            let before = calls(&mut admin, &["get"]);
            let theirs: Vec<_> = (0..4)
                .map(|number| {
                    let peer = if number % 2 == 0 { &java } else { &other_java };
                    peer.ask(&format!("waiter-{number}"), "latch-wait-for", &[&name, "20000"])
                })
                .collect();
            let ours: Vec<_> = (0..4)
                .map(|_| {
                    let latch = latch.clone();
                    call(move || {
                        latch.wait().unwrap();
                        monotonic()
                    })
                })
                .collect();
            wait_until("all listen and have looked again", Duration::from_secs(20), || {
                listeners(&mut admin, &channel) == 3 && calls(&mut admin, &["get"]) >= before + 16
            });
            let count_down = |by: &str| match by {
                "java" => drop(java.get("main", "latch-down", &[&name])),
                _ => drop(latch.count_down().unwrap()),
            };
            count_down(if last == "java" { "rust" } else { "java" });
            assert_eq!(java.get("main", "latch-count", &[&name]), "1");
            assert!(theirs.iter().all(Pending::is_open) && ours.iter().all(Call::is_open));
            let (opened, opened_at) = (monotonic(), now());
            count_down(last);
            let theirs = theirs.into_iter().map(|waiter| {
                let got = waiter.wait();
                assert_eq!(got.result.as_deref(), Ok("true"));
                got.ended
            });
            let ended = theirs.chain(ours.into_iter().map(Call::join)).max().unwrap();
            assert_eq!(latch.count().unwrap(), 0);
            between(opened, ended).saturating_sub(stalled_since(opened_at))
        });
        // On few cores a JVM or this process often waits for a processor, so the 50 ms apply to the median.
        let (half, worst) = (median(delays.clone()), delays.into_iter().max().unwrap());
        eprintln!("a latch that {last} opens, to the last of eight: median {half:?}, worst {worst:?}");
        assert!(half <= Duration::from_millis(50), "{last}: {half:?}");
        assert!(worst < TOLD, "{last}: not all were notified: {worst:?}");
    }
});

test_on!(java_ignores_the_field_with_the_start_of_our_hold, java::set_up(LEASE), |(_alone, server, java)| {
    let client = rust(&server.url(), LEASE);
    let options = || client.lock_builder("said").max_hold(Duration::from_secs(60));
    for (lock, kind) in [(options().build(), ""), (options().fair().build(), "fair-")] {
        let verb = |verb: &str| format!("{kind}{verb}");
        lock.lock().unwrap();
        assert!(client.inspect("said").unwrap().holders[0].held_for.is_some());
        assert!(!java.is("main", &verb("try"), &["said"]));
        assert!(java.is("main", &verb("is-locked"), &["said"]));
        assert!(java.error("main", &verb("unlock"), &["said"]).contains("IllegalMonitorState"));
        let waiting = java.ask("waiter", &verb("try-for"), &["said", "20000"]);
        wait_until("Java waits", LONG, || {
            let seen = client.inspect("said").unwrap();
            seen.waiting == 1 || seen.listeners.is_some_and(|listeners| listeners > 0)
        });
        let freed = monotonic();
        lock.unlock().unwrap();
        let got = waiting.wait();
        assert_eq!(got.result.as_deref(), Ok("true"));
        assert!(own_time_between(freed, got.ended) < TOLD);
        let seen = client.inspect("said").unwrap();
        assert_eq!((seen.holders.len(), seen.holders[0].held_for), (1, None), "{seen}");
        java.get("waiter", &verb("unlock"), &["said"]);
        lock.lock().unwrap();
        assert!(java.is("main", &verb("force-unlock"), &["said"]));
        assert!(!lock.is_locked().unwrap());
        drop(lock.unlock());
        wait_until("nothing is left", LONG, || keys(&mut server.admin()).is_empty());
    }
});

// In a JVM, a release message wakes only one waiter, even if that waiter wants more permits. Java also
// publishes negative counts, at which the thread that reads Redisson's messages throws.
test_on!(waiters_wake_despite_javas_wrong_permit_messages, java::set_up(LONG), |(_alone, server, java)| {
    let client = rust(&server.url(), LONG);
    let mut admin = server.admin();
    let semaphore = client.get_semaphore("sem");
    assert!(java.is("main", "semaphore-set", &["sem", "0"]));
    let greedy = java.ask("greedy", "semaphore-try-for", &["sem", "3", "60000"]);
    let take = || {
        let semaphore = semaphore.clone();
        call(move || semaphore.acquire(1).unwrap().unlock().unwrap())
    };
    let waiter = take();
    wait_until("both listen", Duration::from_secs(20), || listeners(&mut admin, "redisson_sc:{sem}") == 2);
    java.get("main", "semaphore-release", &["sem", "1"]);
    waiter.join();
    java.get("main", "semaphore-add", &["sem", "-6"]);
    assert_eq!(semaphore.available_permits().unwrap(), -5);
    let waiter = take();
    java.get("main", "semaphore-add", &["sem", "-1"]);
    assert!(greedy.is_open() && waiter.is_open());
    // This crate publishes no negative count, since the thread that reads Redisson's messages would throw.
    assert_eq!(semaphore.add_permits(5).unwrap(), -1);
    assert_eq!(semaphore.add_permits(5).unwrap(), 4);
    waiter.join();
    assert_eq!(greedy.wait_for(LONG).result.as_deref(), Ok("true"));
    assert_eq!(semaphore.available_permits().unwrap(), 1);
});

test_on!(both_languages_can_renew_and_release_permits_by_id, java::set_up(LONG), |(_alone, server, java)| {
    let client = rust(&server.url(), LONG);
    let permits = client.get_expirable_semaphore("permits");
    let says = |verb: &str| java.get("main", verb, &["permits"]);
    java.get("main", "permits-set-to", &["permits", "5"]);
    let ours = permits.acquire_with(2, &leased(Duration::from_secs(300))).unwrap().unwrap();
    let theirs = java.get("main", "permits-many", &["permits", "2"]);
    let theirs: Vec<&str> = theirs.split(',').collect();
    let ids = ours.ids();
    assert_eq!((permits.permits().unwrap(), permits.acquired_permits().unwrap()), (5, 4));
    assert_eq!(
        (says("permits-all"), says("permits-out"), says("permits-available")),
        ("5".into(), "4".into(), "1".into())
    );
    assert_eq!(
        permits.remaining_lease(theirs[0]).unwrap(),
        Some(Duration::MAX),
        "Java's permits have no lease of their own"
    );
    let left: u64 = java.get("main", "permits-lease", &["permits", &ids[0]]).parse().unwrap();
    assert!(left > 200_000 && left <= 300_000, "{left}");
    assert!(permits.update_lease_time(theirs[0], Duration::from_secs(900)).unwrap());
    let left: u64 = java.get("main", "permits-lease", &["permits", theirs[0]]).parse().unwrap();
    assert!(left > 800_000, "{left}");
    assert!(java.is("main", "permits-update", &["permits", &ids[0], "900000"]));
    assert!(permits.remaining_lease(&ids[0]).unwrap().unwrap() > Duration::from_secs(800));
    assert_eq!(permits.set_permits(3).unwrap(), -1);
    assert_eq!((says("permits-all"), says("permits-available")), ("3".into(), "-1".into()));
    java.get("main", "permits-set-to", &["permits", "6"]);
    assert_eq!(permits.available_permits().unwrap(), 2);
    let unknown = "f".repeat(32);
    assert!(!permits.release_many(&[theirs[0], &unknown]).unwrap());
    assert_eq!(java.get("main", "permits-release-many", &["permits", &format!("{},{unknown}", ids[0])]), "0");
    assert_eq!(permits.acquired_permits().unwrap(), 4);
    assert!(permits.release_many(&theirs).unwrap());
    assert_eq!(java.get("main", "permits-release-many", &["permits", &ids.join(",")]), "2");
    assert_eq!((says("permits-out"), permits.available_permits().unwrap()), ("0".into(), 6));
    assert!(ours.unlock().is_err());
    let semaphore = client.get_semaphore("none");
    assert!(!java.is("main", "semaphore-release-if-exists", &["none", "1"]));
    assert!(!semaphore.release_if_exists(1).unwrap());
    assert!(java.is("main", "semaphore-set", &["none", "1"]));
    assert!(semaphore.release_if_exists(2).unwrap());
    assert!(java.is("main", "semaphore-release-if-exists", &["none", "1"]));
    assert_eq!(semaphore.available_permits().unwrap(), 4);
});

test_on!(java_can_lock_while_rust_waits_for_a_condition, java::set_up(LONG), |(_alone, server, java)| {
    let (client, other) = (rust(&server.url(), LONG), rust(&server.url(), LONG));
    let mut admin = server.admin();
    let lock = client.get_lock("shop");
    let waiter = call(move || {
        lock.lock().unwrap();
        let mut guard = lock.acquire().unwrap();
        lock.condition("stock").wait(&mut guard).unwrap();
        let levels = lock.hold_count().unwrap();
        guard.unlock().unwrap();
        lock.unlock().unwrap();
        levels
    });
    wait_until("the thread waits for the condition", Duration::from_secs(20), || {
        !admin.exists::<_, bool>("shop").unwrap()
            && !admin.keys::<_, Vec<String>>("leasehold_condition_queue*").unwrap().is_empty()
    });
    java.get("clerk", "lock", &["shop"]);
    let notifying = call(move || {
        let lock = other.get_lock("shop");
        lock.lock().unwrap();
        assert!(lock.condition("stock").notify_one().unwrap());
        lock.unlock().unwrap();
    });
    assert!(waiter.is_open());
    java.get("clerk", "unlock", &["shop"]);
    notifying.join();
    assert_eq!(waiter.join(), 2, "the hold count differs from before");
    assert!(java.is("clerk", "try", &["shop"]));
    java.get("clerk", "unlock", &["shop"]);
});
