//! How long the killed waiters of one language delay the other language's waiters for a fair lock.

use redis::{Commands, Connection};

use crate::agent::{Peer, Pending};
use crate::java;
use crate::scene::{alone, monotonic, own_time_between, turn};
use crate::support::prelude::*;
use crate::support::{reexecuted, test_name};

const LEASE: Duration = Duration::from_secs(3);
/// How long a place of our waiter in a fair lock's queue lasts if the waiter does not renew it.
const PLACE: Duration = Duration::from_secs(6);
/// The maximum delay by a dead waiter at the queue's head: the time that its place lasts, and slack.
const HEAD_DELAYS: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(60);
/// Values of Redisson's `fairLockWaitTimeout`: its old default, its present one, and a configured one.
const WAITS: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(300), Duration::from_secs(600)];
/// The environment variable that makes this program a waiting process. Its value is the server's URL.
const WAITER: &str = "LEASEHOLD_INTEROP_FAIR_WAITER";

const QUEUE: &str = "redisson_lock_queue:{fair}";
const TIMES: &str = "redisson_lock_timeout:{fair}";

/// A client with a long command time-out, because a waiter whose request times out loses its place.
fn patient(url: &str) -> LockClient {
    LockClient::builder().url(url).lease(LEASE).command_timeout(LONG / 4).build().unwrap()
}

fn queue(admin: &mut Connection) -> Vec<String> {
    admin.lrange(QUEUE, 0, -1).unwrap()
}

fn comes<T>(admin: &mut Connection, come: impl FnOnce() -> T) -> (T, String) {
    let before = queue(admin).pop();
    let comer = come();
    wait_until("the new waiter is in the queue", LONG, || queue(admin).pop() != before);
    (comer, queue(admin).pop().unwrap())
}

fn java_takes_turn(java: &Peer, thread: &str) -> Pending {
    java.ask(thread, "fair-turn", &["fair", "turns", thread])
}

/// Kills our three waiters, which stand at the queue's places 1, 3 and 5, between waiters of Java.
#[test]
fn our_killed_waiters_delay_java_for_seconds_only() {
    if let Ok(url) = std::env::var(WAITER) {
        patient(&url).get_fair_lock("fair").lock().unwrap();
        return thread::park_timeout(LONG);
    }
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let Some(agent) = java::start() else { return };
    let client = patient(&server.url());
    let mut admin = server.admin();
    for wait in WAITS {
        let name = format!("wait-{wait:?}");
        let java = java::client_with_fair_wait(&agent, &name, &server.url(), LEASE, wait);
        let guard = client.get_fair_lock("fair").acquire().unwrap();
        let doomed = || reexecuted(&test_name(), &[(WAITER, &server.url())]);
        let (first, first_id) = comes(&mut admin, doomed);
        let (one, _) = comes(&mut admin, || java_takes_turn(&java, "one"));
        let (middle, middle_id) = comes(&mut admin, doomed);
        let (two, _) = comes(&mut admin, || java_takes_turn(&java, "two"));
        let (last, last_id) = comes(&mut admin, doomed);
        drop((first, middle, last));
        let killed = now();
        let server_ms = |admin: &mut Connection| {
            let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(admin).unwrap();
            seconds * 1_000 + micros / 1_000
        };
        // At its grant, each Java waiter ahead of `id` will subtract one `wait` from `id`'s time.
        let wait_ms = i64::try_from(wait.as_millis()).unwrap();
        let most = i64::try_from((PLACE * 4 + LEASE).as_millis()).unwrap();
        for (id, ahead) in [(&first_id, 0), (&middle_id, 1), (&last_id, 2)] {
            let time: f64 = admin.zscore(TIMES, id).unwrap();
            let left = time as i64 - ahead * wait_ms - server_ms(&mut admin);
            assert!(left <= most, "{wait:?}: the place behind {ahead} would last for {left} ms");
        }
        let freed = monotonic();
        guard.unlock().unwrap();
        let three = java_takes_turn(&java, "three");
        let first = one.wait_for(LONG);
        let waited = own_time_between(freed, first.ended);
        assert!(waited < HEAD_DELAYS, "{wait:?}: a dead waiter at the head delayed Java by {waited:?}");
        for turn in [first, two.wait_for(LONG), three.wait_for(LONG)] {
            turn.expect_ok();
        }
        let held_up = killed.elapsed().saturating_sub(stalled_since(killed));
        eprintln!("three dead Rust waiters among Java's, which wait for {wait:?}: {held_up:?}");
        assert!(held_up < PLACE * 4 + LEASE, "{wait:?}: {held_up:?}");
        java.get("main", "shutdown", &[]);
        wait_until("nothing is left", LONG, || admin.keys::<_, Vec<String>>("*fair*").unwrap().is_empty());
    }
}

test_on!(
    a_killed_java_waiter_delays_our_waiters_until_its_timeout,
    alone(),
    RedisServer::start_default(),
    |server| {
        let mut admin = server.admin();
        let lock = patient(&server.url()).get_fair_lock("fair");
        let [ahead, behind] = [(); 2].map(|()| patient(&server.url()).get_fair_lock("fair"));
        for is_first in [true, false] {
            let Some(agent) = java::start() else { return };
            let java = java::client_with_fair_wait(&agent, "dies", &server.url(), LEASE, WAITS[0]);
            let guard = lock.acquire().unwrap();
            let before = (!is_first).then(|| comes(&mut admin, || turn(&ahead)).0);
            let (_doomed, _) = comes(&mut admin, || java_takes_turn(&java, "dead"));
            let (after, _) = comes(&mut admin, || turn(&behind));
            drop((java, agent)); // kills the process: an agent with an open request is not reused
            let freed = monotonic();
            guard.unlock().unwrap();
            before.map(Call::join);
            let waited = own_time_between(freed, after.join());
            eprintln!("a dead Java waiter, the first: {is_first}, delayed ours by {waited:?}");
            assert!(waited < if is_first { HEAD_DELAYS } else { WAITS[0] + PLACE * 4 + LEASE }, "{waited:?}");
        }
    }
);
