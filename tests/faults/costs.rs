//! What each kind of lock costs: the requests that its calls send, and the keys that they leave.

use std::collections::BTreeSet;

use super::world::{ENTRIES, T, World};
use crate::support::epilogue::not_given_back;
use crate::support::prelude::*;
use crate::support::proxy::{Command, Do, verb};

/// A label, the number of scripts that one use of a lock sends, and the use.
type Use = (&'static str, usize, Act);
type Act = fn(&LockClient);

fn cycle(lock: &RedisLock) {
    lock.lock().unwrap();
    lock.unlock().unwrap();
}

fn discard<T>(_answer: T) {}

fn guarded(lock: &RedisLock) {
    drop(lock.acquire().unwrap());
}

/// One use of each kind. [`set_up`] has created the semaphores and the latch.
fn uses() -> Vec<Use> {
    const MOST: Duration = Duration::from_secs(60);
    vec![
        ("lock", 2, |client| cycle(&client.get_lock("lock"))),
        ("a dropped guard", 2, |client| guarded(&client.get_lock("dropped"))),
        ("fenced", 2, |client| cycle(&client.get_fenced_lock("fenced"))),
        ("fair", 2, |client| cycle(&client.get_fair_lock("fair"))),
        ("fair, dropped", 2, |client| guarded(&client.get_fair_lock("fair"))),
        ("fair and fenced", 2, |client| cycle(&client.lock_builder("fair-fenced").fair().build_fenced())),
        ("read", 2, |client| cycle(client.get_read_write_lock("read").read())),
        ("read, dropped", 2, |client| guarded(client.get_read_write_lock("read").read())),
        ("write", 2, |client| cycle(client.get_read_write_lock("write").write())),
        ("write, fenced", 2, |client| cycle(&client.get_read_write_lock("write-fenced").write_fenced())),
        ("spin", 2, |client| cycle(&client.get_spin_lock("spin"))),
        ("non-reentrant", 2, |client| cycle(&client.lock_builder("once").non_reentrant().build())),
        ("with a longest hold", 2, |client| cycle(&client.lock_builder("most").max_hold(MOST).build())),
        ("semaphore", 2, |client| client.get_semaphore("sem").acquire(2).unwrap().unlock().unwrap()),
        ("semaphore, dropped", 2, |client| drop(client.get_semaphore("sem").acquire(1).unwrap())),
        ("permit", 2, |client| {
            client.get_expirable_semaphore("permits").acquire().unwrap().unlock().unwrap()
        }),
        ("permits", 2, |client| {
            let semaphore = client.get_expirable_semaphore("permits");
            drop(semaphore.acquire_with(2, &AcquireOptions::new().wait(T)).unwrap().unwrap());
        }),
        ("a latch that is open", 1, |client| client.get_count_down_latch("open").wait().unwrap()),
        ("a latch that is shut", 1, |client| {
            assert!(!client.get_count_down_latch("latch").wait_for(Duration::ZERO).unwrap());
        }),
        // A wait on a condition sends five scripts: join, release the lock, poll, leave, reacquire.
        ("a condition", 2 + 5, |client| {
            let lock = client.get_lock("condition");
            let mut guard = lock.acquire().unwrap();
            assert!(!lock.condition("c").wait_for(&mut guard, Duration::ZERO).unwrap());
            guard.unlock().unwrap();
        }),
        ("a notification", 2 + 1, |client| {
            let lock = client.get_lock("condition");
            lock.lock().unwrap();
            assert!(!lock.condition("c").notify_one().unwrap());
            lock.unlock().unwrap();
        }),
        ("a lock that is busy", 1, |client| assert!(!client.get_lock("busy").try_lock().unwrap())),
        ("a fair lock that is busy", 1, |client| {
            assert!(!client.get_fair_lock("busy-fair").try_lock_for(Duration::ZERO).unwrap());
        }),
        ("a fair lock that is busy, until a moment ago", 1, |client| {
            let is_over = AcquireOptions::new().deadline(now());
            assert!(client.get_fair_lock("busy-fair").acquire_with(&is_over).unwrap().is_none());
        }),
    ]
}

fn changes() -> Vec<Use> {
    vec![
        ("try_set_permits", 1, |client| assert!(!client.get_semaphore("sem").try_set_permits(9).unwrap())),
        ("available_permits", 1, |client| discard(client.get_semaphore("sem").available_permits().unwrap())),
        ("add_permits", 1, |client| discard(client.get_semaphore("sem").add_permits(1).unwrap())),
        ("release", 1, |client| client.get_semaphore("sem").release(1).unwrap()),
        ("drain_permits", 1, |client| discard(client.get_semaphore("sem").drain_permits().unwrap())),
        ("delete", 1, |client| discard(client.get_semaphore("sem").delete().unwrap())),
        ("permits", 1, |client| {
            discard(client.get_expirable_semaphore("permits").available_permits().unwrap())
        }),
        ("try_set_count", 1, |client| {
            assert!(!client.get_count_down_latch("latch").try_set_count(9).unwrap())
        }),
        ("count", 1, |client| discard(client.get_count_down_latch("latch").count().unwrap())),
        ("count_down", 1, |client| discard(client.get_count_down_latch("latch").count_down().unwrap())),
    ]
}

fn set_up(client: &LockClient) -> [leasehold::OwnedGuard; 2] {
    client.get_semaphore("sem").try_set_permits(5).unwrap();
    client.get_expirable_semaphore("permits").try_set_permits(5).unwrap();
    client.get_count_down_latch("latch").try_set_count(5_000).unwrap();
    ["busy", "busy-fair"].map(|name| {
        let lock = if name == "busy" { client.get_lock(name) } else { client.get_fair_lock(name) };
        lock.acquire_owned().unwrap()
    })
}

/// Removes keys that would outlast the test: of semaphores, of the latch, and records of requests' outcomes.
fn clear(world: &World) {
    for key in world.lock_keys() {
        if key.starts_with("leasehold_request:") {
            let left = world.ttl(&key);
            assert!((-2..=600_000).contains(&left) && left != -1, "{key} for {left} ms");
        }
        world.does(&["DEL", &key]);
    }
}

/// The commands after the first `since`, except those that open a connection or write a directory entry.
fn sent(world: &World, since: usize) -> Vec<Command> {
    let mut commands = world.proxy.commands().split_off(since);
    commands.retain(|command| !["HELLO", "AUTH", "SELECT", "CLIENT"].contains(&&*command.verb()));
    commands.retain(|command| !command.contains(ENTRIES));
    commands
}

/// Waits until the proxy gets no more commands, since a call may return before its last command is sent.
/// Returns how many the proxy got.
fn settled(world: &World) -> usize {
    let (mut count, mut since) = (world.proxy.commands().len(), now());
    assert!(eventually(LONG, || {
        let seen = world.proxy.commands().len();
        if seen != count {
            (count, since) = (seen, now());
        }
        since.elapsed() > ms(60) + stalled_since(since).min(ms(500))
    }));
    count
}

scenario!(each_lock_kind_sends_the_expected_number_of_scripts, |world| {
    // A long lease and time-out, so that no renewal and no repeated request is counted.
    let builder = world.builder().lease(Duration::from_secs(60)).command_timeout(LONG);
    let client = builder.build().unwrap();
    let other = world.direct();
    let busy = set_up(&other);
    for (what, scripts, use_it) in uses().into_iter().chain(changes()) {
        let first = settled(world);
        // The first use also loads the scripts.
        use_it(&client);
        let scripts_of = |commands: &[Command]| commands.iter().filter(|command| command.is_script()).count();
        let came = |since: usize| {
            assert!(eventually(LONG, || scripts_of(&sent(world, since)) >= scripts), "{what}");
            settled(world)
        };
        let before = came(first);
        use_it(&client);
        came(before);
        let commands = sent(world, before);
        let verbs: Vec<String> = commands.iter().map(Command::verb).collect();
        assert_eq!(scripts_of(&commands), scripts, "{what}: {verbs:?}");
        // The client may also send a DEL, for which no caller waits: it deletes the record of a request.
        let rest = verbs.iter().filter(|verb| !["EVALSHA", "EVAL"].contains(&verb.as_str()));
        assert!(rest.clone().count() <= 1, "{what}: {verbs:?}");
        assert!(rest.clone().all(|verb| verb == "DEL"), "{what}: {verbs:?}");
    }
    drop(busy);
    other.shutdown().unwrap();
    clear(world);
});

scenario!(semaphore_calls_do_not_await_the_deletion_of_request_records, |world| {
    let client = world.client();
    drop(set_up(&world.direct()));
    let uses: [(&str, Act); 3] = [
        ("DEL", |client| client.get_semaphore("sem").acquire(1).unwrap().unlock().unwrap()),
        ("DEL", |client| drop(client.get_semaphore("sem").acquire(1).unwrap())),
        ("DEL", |client| discard(client.get_semaphore("sem").add_permits(1).unwrap())),
    ];
    for (word, use_it) in uses {
        let before = world.proxy.count(verb(word));
        use_it(&client);
        assert!(eventually(LONG, || world.proxy.count(verb(word)) > before), "{word} is sent");
        let fault = world.proxy.next(verb(word), Do::HoldReply);
        let begun = now();
        use_it(&client);
        within(begun, ms(100), word);
        fault.wait_for(1, LONG);
        fault.release();
    }
    drop(client);
    clear(world);
});

scenario!(using_every_kind_of_lock_leaves_no_keys, |world| {
    let unhurried = || {
        let builder = world.builder_to(&world.server.url()).lease(Duration::from_secs(20));
        builder.command_timeout(LONG).build().unwrap()
    };
    let (client, other) = (unhurried(), unhurried());
    let busy = set_up(&other);
    let standing: BTreeSet<String> =
        ["sem", "permits", "latch", "busy", "busy-fair"].map(str::to_owned).into();
    clear_requests(world);
    let more: [Act; 4] = [
        |client| cycle(&client.get_token_lock("token")),
        |client| guarded(&client.get_fenced_lock("fenced")),
        |client| drop(client.get_lock("owned").acquire_owned().unwrap()),
        |client| {
            let locks = [client.get_lock("lock"), client.get_fair_lock("fair"), client.get_lock("last")];
            drop(client.get_multi_lock(locks).acquire().unwrap());
        },
    ];
    let descriptors = || std::fs::read_dir("/proc/self/fd").map(Iterator::count).unwrap_or(0);
    let before = descriptors();
    for use_it in uses().into_iter().map(|(_, _, use_it)| use_it).chain(more) {
        (0..400).for_each(|_| use_it(&client));
    }
    for round in 0..20 {
        assert!(!client.get_lock("busy").try_lock_for(ms(1)).unwrap());
        assert!(!client.get_fair_lock("busy-fair").try_lock_for(ms(1)).unwrap());
        assert!(client.get_semaphore("sem").try_acquire_for(99, ms(1)).unwrap().is_none());
        assert!(
            client
                .get_expirable_semaphore("permits")
                .acquire_with(99, &AcquireOptions::new().wait(ms(1)))
                .unwrap()
                .is_none()
        );
        assert!(!client.get_count_down_latch("latch").wait_for(ms(1)).unwrap());
        let lock = client.get_lock("condition");
        let mut guard = lock.acquire().unwrap();
        assert!(!lock.condition("c").wait_for(&mut guard, ms(1)).unwrap());
        guard.unlock().unwrap();
        let rw = other.get_read_write_lock("rw");
        let writing = rw.write().acquire().unwrap();
        let waiting = client.get_read_write_lock("rw");
        assert!(
            !waiting.read().try_lock_for(ms(1)).unwrap() && !waiting.write().try_lock_for(ms(1)).unwrap()
        );
        let reader = call(move || waiting.read().acquire().unwrap().unlock().unwrap());
        writing.unlock().unwrap();
        reader.outcome();
        if round % 5 == 0 {
            let guest = unhurried();
            let _lost = guest.get_lock("lock").acquire().unwrap().lost();
            guest.get_fair_lock("fair").lock().unwrap();
            guest.get_read_write_lock("read").read().lock().unwrap();
            guest.get_read_write_lock("write").write().lock().unwrap();
            let waiter = guest.get_fair_lock("busy-fair");
            let waiting = call(move || waiter.lock());
            assert!(eventually(LONG, || !world.is_free("redisson_lock_queue:{busy-fair}")));
            guest.shutdown().unwrap();
            assert!(waiting.outcome().0.is_err());
            assert!(world.is_free("redisson_lock_queue:{busy-fair}"), "a queue place was left behind");
        }
    }
    let after = descriptors();
    assert!(after <= before + 24, "{before} descriptors before, {after} after");
    let mut left = Vec::new();
    let gone = eventually(LONG, || {
        let mut keys = world.lock_keys();
        keys.retain(|key| !standing.contains(key));
        // `not_given_back` removes the keys' expiry, so a key that goes away was released.
        let found = not_given_back(&world.server, keys.iter().map(String::as_str));
        left = found.into_iter().map(str::to_owned).collect();
        left.is_empty()
    });
    assert!(gone, "{left:?}");
    for (_, _, use_it) in changes() {
        (0..100).for_each(|_| use_it(&client));
    }
    for _ in 0..500 {
        client.get_semaphore("sem").release(1).unwrap();
        client.get_semaphore("sem").acquire(1).unwrap().forget();
    }
    let is_request = |key: &String| key.starts_with("leasehold_request:");
    let gone = eventually(LONG, || {
        left = world.lock_keys().into_iter().filter(is_request).collect();
        left.is_empty()
    });
    assert!(gone, "{} requests are remembered", left.len());
    drop((busy, client));
    other.shutdown().unwrap();
    clear(world);
});

fn clear_requests(world: &World) {
    for key in world.lock_keys() {
        if key.starts_with("leasehold_request:") {
            world.does(&["DEL", &key]);
        }
    }
}

scenario!(a_lease_below_the_round_trip_fails_after_few_requests, |world| {
    const LEASE: Duration = ms(20);
    let client = world.builder().lease(LONG).retry_timeout(ms(1_500)).command_timeout(LONG).build().unwrap();
    client.get_lock("slow").acquire().unwrap().unlock().unwrap();
    world.proxy.delay_replies(LEASE + LEASE / 2);
    let lock = client.get_lock("slow");
    let once = || lock.try_lock_for_with_lease(Duration::ZERO, LEASE).map(drop);
    let timed = || lock.try_lock_for_with_lease(ms(500), LEASE).map(drop);
    let endless = || lock.lock_with_lease(LEASE);
    type Acquire<'a> = &'a dyn Fn() -> leasehold::Result<()>;
    let ways: [(&str, Acquire<'_>, Duration); 3] =
        [("once", &once, LEASE), ("timed", &timed, ms(500)), ("endless", &endless, ms(1_500))];
    for (way, acquire, least) in ways {
        let (begun, before) = (now(), world.scripts_run());
        let error = acquire().unwrap_err();
        let took = begun.elapsed();
        assert_eq!(error.kind(), leasehold::ErrorKind::TimedOut, "{way}: {error}");
        assert!(error.to_string().contains("a lease of 20ms, but the answer took "), "{way}: {error}");
        assert!(took >= least, "{way}: {took:?}");
        assert!(took < least + ms(1_000) + stalled_since(begun), "{way}: {took:?}");
        // An attempt costs at most 3 scripts (its own, and a clean-up that may be sent twice) and takes 50 ms
        // or more (30 for the reply, 20 for a pause). `most` allows two attempts more.
        let (ran, most) = (world.scripts_run() - before, 6 + 3 * took.as_millis() as u64 / 50);
        assert!(ran <= most, "{way}: {ran} scripts in {took:?}");
    }
    world.proxy.delay_replies(Duration::ZERO);
    assert!(lock.try_lock_for_with_lease(LONG, LONG).unwrap(), "a late grant was left behind");
    lock.unlock().unwrap();
});

/// A client that writes no directory entry, and ends no subscription during the test.
fn client(world: &World) -> LockClient {
    let builder = world.builder_to(&world.server.url()).lease(Duration::from_secs(60)).directory(false);
    builder.unsubscribe_delay(Duration::from_secs(60)).build().unwrap()
}

/// Returns how many commands the server has run, without those that open connections or read this number.
/// The text is the server's statistics, for a failed assertion.
fn commands_run(world: &World) -> (u64, String) {
    let said: String = world.run(&["INFO", "commandstats"]);
    let calls = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let others = ["info", "hello", "auth", "select", "ping", "client"];
        let is_other = others.iter().any(|other| name.split('|').next() == Some(other));
        rest.split(',').next()?.parse::<u64>().ok().filter(|_| !is_other)
    };
    (said.lines().filter_map(calls).sum(), said)
}

scenario!(uncontended_acquire_and_release_run_nine_commands_on_redis_7, |world| {
    const CYCLES: u64 = 50;
    // Before Redis 7 a script cannot query its user's permissions, and tries two more commands instead.
    let most = if world.server.binary().version() < (7, 0, 0) { 11 } else { 9 };
    let client = client(world);
    let lock = client.get_lock("alone");
    lock.acquire().unwrap().unlock().unwrap(); // loads the scripts
    let (before, _) = commands_run(world);
    (0..CYCLES).for_each(|_| lock.acquire().unwrap().unlock().unwrap());
    let (after, run) = commands_run(world);
    assert!(after - before <= most * CYCLES, "{} commands in {CYCLES} cycles: {run}", after - before);
});
