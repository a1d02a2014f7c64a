//! A release in one language wakes a waiter of the other within 50 ms of the unlock call. One round in ten
//! may take longer, but none as long as 700 ms: a waiter that missed the message sleeps for longer than that.

use crate::agent::Peer;
use crate::java;
use crate::scene::{between, monotonic, rust, scripts_run, somebody_waits, turn};
use crate::support::prelude::*;
use crate::support::stalls::{stalled_since, watch};

const ROUNDS: usize = 20;
const PROMISED: Duration = Duration::from_millis(50);
const MESSAGE_WAS_LOST: Duration = Duration::from_millis(700);
const LEASE: Duration = Duration::from_secs(30);

/// How a test sees that a waiter sleeps: the first function counts the scripts that have run; the second
/// waits until the lock has a subscriber, and more scripts have run.
pub(crate) type Sees<'a> = (&'a dyn Fn() -> u64, &'a dyn Fn(&str, u64));

pub(crate) fn javas_unlock_wakes_rust(java: &Peer, rust: &LockClient, sees: Sees<'_>) -> Vec<Duration> {
    rounds(|name| {
        java.get("holder", "lock", &[name]);
        let waiter = rust_waits(rust, name, sees);
        let unlock = java.ask("holder", "unlock", &[name]).wait();
        assert_eq!(unlock.result, Ok(String::new()));
        between(unlock.begun, waiter.join())
    })
}

/// Starts a thread that waits for a held lock. The thread's result is the time of its grant.
fn rust_waits(rust: &LockClient, name: &str, (before, waits): Sees<'_>) -> Call<u64> {
    let before = before();
    let waiter = turn(&rust.get_lock(name));
    waits(name, before);
    assert!(waiter.is_open(), "two threads hold the lock");
    waiter
}

pub(crate) fn our_unlock_wakes_java(java: &Peer, rust: &LockClient, sees: Sees<'_>) -> Vec<Duration> {
    rounds(|name| {
        let lock = rust.get_lock(name);
        lock.lock().unwrap();
        let before = sees.0();
        let waiter = java.ask("waiter", "lock", &[name]);
        sees.1(name, before);
        assert!(waiter.is_open(), "Java got a lock that Rust holds");
        let begun = monotonic();
        lock.unlock().unwrap();
        let got = waiter.wait();
        assert_eq!(got.result, Ok(String::new()));
        java.get("waiter", "unlock", &[name]);
        between(begun, got.ended)
    })
}

fn measured(what: &str, measure: impl FnOnce(&Peer, &RedisServer, Sees<'_>) -> Vec<Duration>) {
    let Some((_alone, server, java)) = java::set_up(LEASE) else { return };
    let scripts = || scripts_run(&mut server.admin());
    let waits = |name: &str, before| somebody_waits(&mut server.admin(), name, before);
    kept_the_promise(what, measure(&java, &server, (&scripts, &waits)));
}

#[test]
fn javas_unlock_wakes_rust_within_50_ms() {
    measured("Java to Rust", |java, server, sees| {
        javas_unlock_wakes_rust(java, &rust(&server.url(), LEASE), sees)
    });
}

#[test]
fn our_unlock_wakes_java_within_50_ms() {
    measured("Rust to Java", |java, server, sees| {
        our_unlock_wakes_java(java, &rust(&server.url(), LEASE), sees)
    });
}

/// Java's `forceUnlock` notifies Redisson's channel, but not our wait queue, so our waiter must hear both.
#[test]
fn javas_force_unlock_wakes_rust_within_50_ms() {
    measured("forced by Java", |java, server, sees| {
        let (holder, rust) = (rust(&server.url(), LEASE), rust(&server.url(), LEASE));
        rounds(|name| {
            let _held = holder.get_lock(name).acquire().unwrap();
            let waiter = rust_waits(&rust, name, sees);
            let forced = java.ask("breaker", "force-unlock", &[name]).wait();
            assert_eq!(forced.result, Ok("true".to_owned()));
            between(forced.begun, waiter.join())
        })
    });
}

/// A Java reader that has attempted but does not sleep yet would miss a message that wakes only sleepers.
#[test]
fn a_write_unlock_wakes_java_readers_before_they_sleep() {
    let Some((_alone, server, java)) = java::set_up(LEASE) else { return };
    // With this lease, a waiter that misses the message sleeps for much longer than the test allows.
    let rust = rust(&server.url(), MESSAGE_WAS_LOST * 3);
    let mut admin = server.admin();
    let delays = rounds(|name| {
        let lock = rust.get_read_write_lock(name);
        let writing = lock.write().acquire().unwrap();
        let before = scripts_run(&mut admin);
        let waiter = java.ask("reader", "read-lock", &[name]);
        // The waiter goes to sleep after its second attempt, so the unlock below comes at about that moment.
        let asked = now();
        while scripts_run(&mut admin) < before + 2 {
            assert!(asked.elapsed() < LONG, "the waiter does not ask");
            std::thread::yield_now();
        }
        let begun = monotonic();
        writing.unlock().unwrap();
        let got = waiter.wait();
        assert_eq!(got.result, Ok(String::new()));
        java.get("reader", "read-unlock", &[name]);
        between(begun, got.ended)
    });
    let missed = delays.iter().filter(|delay| **delay >= MESSAGE_WAS_LOST).count();
    assert_eq!(missed, 0, "{delays:?}");
}

/// The delays of [`ROUNDS`] rounds after a warm-up, each with a new name, minus the machine's stalls.
pub(crate) fn rounds(mut round: impl FnMut(&str) -> Duration) -> Vec<Duration> {
    watch();
    round("warm-up");
    let measured = |number| {
        let begun = now();
        let delay = round(&format!("round-{number}"));
        delay.saturating_sub(stalled_since(begun))
    };
    (0..ROUNDS).map(measured).collect()
}

pub(crate) fn kept_the_promise(what: &str, mut delays: Vec<Duration>) {
    delays.sort_unstable();
    let (median, ninth_of_ten, worst) = (delays[ROUNDS / 2], delays[ROUNDS * 9 / 10 - 1], delays[ROUNDS - 1]);
    eprintln!("{what}: median {median:?}, 90 % within {ninth_of_ten:?}, worst {worst:?}");
    assert!(ninth_of_ten <= PROMISED, "90 % of the waiters were woken within {ninth_of_ten:?} only");
    assert!(worst < MESSAGE_WAS_LOST, "a waiter was not woken at all: {worst:?}");
}
