//! PostgreSQL: the wait queue.

use std::sync::atomic::AtomicU32;
use std::time::SystemTime;

use postgres::{Client, Row};

use crate::databases::{Database, Rows as _};
use crate::statement;
use crate::support::observer::attempts;
use crate::support::postgres::PostgresServer;
use crate::support::prelude::*;

/// An owner whose client id is a UUID of version 8: a client with such an id notifies the queue at a release.
const OWNER: &str = "6d1bf0a5-7b55-8f0e-8a3c-0a2f4c1d9e77:1";

/// A wait below this was ended by a message, since polls are a second apart.
const BY_MESSAGE: Duration = ms(300);
/// The longest wait after a fault: until the next safety poll, and for its request.
const IN_ANY_CASE: Duration = ms(1_450);

fn shared() -> Option<&'static PostgresServer> {
    let server = PostgresServer::shared()?;
    server.client();
    Some(server)
}

fn channel(name: &str) -> String {
    let bytes = "leasehold_locks".bytes().chain([0]).chain(name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("leasehold_{hash:016x}")
}

pub(crate) fn line(admin: &mut Client, name: &str) -> Vec<(String, bool)> {
    let text =
        "SELECT client, is_next FROM leasehold_locks_wait_queue WHERE id = sha256($1) ORDER BY since, client";
    let rows = admin.query(text, &[&name.as_bytes()]).unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn await_queued(admin: &mut Client, name: &str, count: usize) {
    assert!(eventually(LONG, || line(admin, name).len() == count), "{:?}", line(admin, name));
}

/// Adds a client to the queue, as if its last request was sent `asked` (an interval, as SQL) ago. No recall
/// is sent.
pub(crate) fn stand(admin: &mut Client, name: &str, client: &str, asked: &str) {
    let text = "INSERT INTO leasehold_locks_wait_queue (id, client, channel, since, seen, is_next)
        VALUES (sha256($1), $2, 'nobody', now() - interval '1 hour', clock_timestamp() - $3::text::interval, false)";
    admin.execute(text, &[&name.as_bytes(), &client, &asked]).unwrap();
}

#[test]
fn a_release_does_not_wake_all_waiting_clients() {
    // Only the log shows each release; `pg_stat_activity` shows only the last statement of a session.
    let Some(server) = PostgresServer::start_with(&["log_statement=all"]) else { return };
    let (name, count) = (fresh("one"), 16);
    let (holder, mut admin) = (server.client(), server.admin());
    let held = holder.get_lock(&name).acquire().unwrap();
    let before = server.log().len();
    held.unlock().unwrap();
    let log = server.log();
    let head = |name: &str| statement("postgres", name).lines().next().unwrap().to_owned();
    let releases = ["free_unawaited", "leave", "tell"].map(head);
    let sent = log[before..].lines().filter_map(|line| releases.iter().find(|head| line.contains(&***head)));
    assert_eq!(sent.collect::<Vec<_>>(), [&head("free_unawaited")]);
    let held = holder.get_lock(&name).acquire().unwrap();
    let asked = Arc::new(AtomicU32::new(0));
    let begun = now();
    let waiters: Vec<_> = (0..count)
        .map(|_| {
            let client = server.options().observer(attempts(&asked)).build().unwrap();
            start(turn(client.get_lock(&name)))
        })
        .collect();
    await_queued(&mut admin, &name, count);
    held.unlock().unwrap();
    waiters.into_iter().for_each(|waiter| assert!(waiter.join().is_ok()));
    // If each release woke all clients, wake-ups alone would cause 136 attempts (16 + 15 + … + 1). The limit
    // is five attempts for each client, plus polls.
    let polls = u32::try_from(begun.elapsed().as_secs() + 1).unwrap() * 16;
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked <= 5 * 16 + polls, "{asked} requests in {:?}", begun.elapsed());
    assert_eq!(line(&mut admin, &name), [], "clients are left in the queue");
}

// A client `dead-…` is notified but has stopped. The client `silent` is skipped, as it last asked 10 s ago.
test_on!(a_notified_client_that_stays_away_blocks_no_other_client, shared(), |server| {
    watch_for_stalls();
    let name = fresh("dead");
    let mut admin = server.admin();
    let (holder, waiter) = (server.client(), server.client());
    for dead in ["dead-1", "dead-2"] {
        let held = holder.get_lock(&name).acquire().unwrap();
        stand(&mut admin, &name, dead, "0");
        stand(&mut admin, &name, "silent", "10 s");
        let waiting = start(turn(waiter.get_lock(&name)));
        assert!(eventually(LONG, || {
            line(&mut admin, &name).iter().any(|(client, _)| client.len() == 36)
        }));
        let before = now();
        held.unlock().unwrap();
        let took = waiting.join().unwrap().saturating_duration_since(before);
        assert!(took <= IN_ANY_CASE + stalled_since(before), "{took:?}");
        let left = line(&mut admin, &name);
        assert!(left.contains(&(dead.to_owned(), true)), "{left:?}");
        assert!(left.contains(&("silent".to_owned(), false)), "{left:?}");
        admin
            .execute("DELETE FROM leasehold_locks_wait_queue WHERE id = sha256($1)", &[&name.as_bytes()])
            .unwrap();
    }
});

test_on!(clients_that_stop_waiting_leave_no_queue_row, PostgresServer::start(), |server| {
    let name = fresh("left");
    let holder = server.client();
    let held = holder.get_lock(&name).acquire().unwrap();
    let mut admin = server.admin();
    stand(&mut admin, &name, "killed", "2 minutes");
    let clients: Vec<_> = (0..4).map(|_| server.client()).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| assert!(!client.get_lock(&name).try_lock_for(ms(400)).unwrap()));
        }
    });
    assert_eq!(line(&mut admin, &name), []);
    stand(&mut admin, "another", "killed", "2 minutes");
    stand(&mut admin, "another", "waits", "30 s");
    holder.sweep(Duration::from_secs(3_600)).unwrap();
    assert_eq!(line(&mut admin, "another"), [("waits".to_owned(), false)]);
    held.unlock().unwrap();
});

/// Acquires a free lock as any client would.
fn take(connection: &mut Client, name: &str, owner: &str, lease_ms: i64) {
    let row = connection
        .query_one(
            &statement("postgres", "take"),
            &[
                &name.as_bytes(),
                &false,
                &owner,
                &lease_ms,
                &false,
                &"host",
                &1_i64,
                &"thread",
                &None::<String>,
            ],
        )
        .unwrap();
    assert!(row.get::<_, Option<i64>>(0).is_some());
}

test_on!(releasing_a_token_lock_wakes_its_waiter, shared(), |server| {
    watch_for_stalls();
    let (name, holder, waiter) = (fresh("token"), server.client(), server.client());
    let held = holder.get_token_lock(&name);
    let round = |_| {
        held.lock().unwrap();
        let waiting = start(turn(waiter.get_token_lock(&name)));
        let_pass(ms(150), "a waiter that cannot be seen on the server");
        let before = now();
        held.unlock().unwrap();
        let had = waiting.join().unwrap();
        had.saturating_duration_since(before).saturating_sub(stalled_since(before))
    };
    let took = median((0..5).map(round).collect());
    assert!(took <= BY_MESSAGE, "{took:?}");
});

test_on!(contended_postgres_clients_reacquire_without_a_request, shared(), |server| {
    let (name, inside, stop) = (fresh("hot"), AtomicU32::new(0), AtomicBool::new(false));
    let client = || {
        let asked = Arc::new(AtomicU32::new(0));
        (server.options().observer(attempts(&asked)).build().unwrap(), asked)
    };
    let clients: Vec<_> = (0..3).map(|_| client()).collect();
    std::thread::scope(|scope| {
        let _end = crate::support::Raise(&stop);
        for (client, _) in &clients {
            scope.spawn(|| {
                let lock = client.get_lock(&name);
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.acquire().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two threads hold the lock");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
        let has_turns = |(client, asked): &(LockClient, Arc<AtomicU32>)| {
            client.stats().grants > 500 + u64::from(asked.load(Ordering::SeqCst))
        };
        assert!(eventually(LONG, || clients.iter().all(has_turns)));
    });
    drop(clients);
    assert!(
        !server.client().get_lock(&name).is_locked().unwrap(),
        "the end of a client releases its cached holds"
    );
});

/// Sends one client's request. Returns whether it was granted, how long the lock is reserved for another
/// client, and whether the lock was freed while the request wrote to the queue.
fn ask(connection: &mut Client, name: &str, client: &str) -> (bool, Option<i64>, bool) {
    let row = asked(connection, name, client);
    (row.get::<_, Option<i64>>(0).is_some(), row.get(6), row.get(7))
}

fn asked(connection: &mut Client, name: &str, client: &str) -> Row {
    let owner = format!("{client}:1");
    connection
        .query_one(
            &statement("postgres", "take_in_queue"),
            &[
                &name.as_bytes(),
                &false,
                &owner,
                &30_000_i64,
                &false,
                &"host",
                &1_i64,
                &"thread",
                &None::<String>,
                &client,
                &client,
                &320_i64,
            ],
        )
        .unwrap()
}

pub(crate) fn version(admin: &mut Client, name: &str) -> String {
    let text = "SELECT xmin::text FROM leasehold_locks WHERE id = sha256($1)";
    admin.query_one(text, &[&name.as_bytes()]).unwrap().get(0)
}

fn session(connection: &mut Client) -> i32 {
    connection.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0)
}

fn has_blocked(admin: &mut Client, session: i32) {
    let text = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1::integer = ANY (pg_blocking_pids(pid)))";
    assert!(
        eventually(LONG, || admin.query_one(text, &[&session]).unwrap().get(0)),
        "no session waits for the row"
    );
}

fn leave(connection: &mut Client, name: &str, client: &str) {
    let owner = format!("{client}:1");
    let row = connection
        .query_one(&statement("postgres", "leave"), &[&name.as_bytes(), &false, &owner, &0_i32, &""])
        .unwrap();
    assert!(row.get::<_, Option<i64>>(0).is_some());
}

fn tell(connection: &mut Client, name: &str) -> Option<String> {
    connection.query_one(&statement("postgres", "tell"), &[&name.as_bytes(), &channel(name)]).unwrap().get(0)
}

test_on!(clients_are_notified_in_order_of_arrival, shared(), |server| {
    let (name, mut admin) = (fresh("order"), server.admin());
    assert!(ask(&mut admin, &name, "a").0);
    for client in ["d", "c", "b"] {
        assert_eq!(ask(&mut admin, &name, client), (false, None, false), "{client}");
    }
    // With `seen` in the future, no client counts as gone on a busy machine.
    let asked_lately = |admin: &mut Client| {
        let text = "UPDATE leasehold_locks_wait_queue SET seen = clock_timestamp() + interval '1 minute' WHERE id = sha256($1)";
        assert!(admin.execute(text, &[&name.as_bytes()]).unwrap() > 0);
    };
    asked_lately(&mut admin);
    let before = version(&mut admin, &name);
    assert_eq!(ask(&mut admin, &name, "d"), (false, None, false));
    assert_eq!(version(&mut admin, &name), before, "the waiter wrote instead of only reading");
    assert_eq!(tell(&mut admin, &name).as_deref(), Some("d"));
    assert_eq!(ask(&mut admin, &name, "d"), (false, None, false));
    assert_ne!(version(&mut admin, &name), before);
    assert_eq!(line(&mut admin, &name)[0], ("d".to_owned(), false));
    asked_lately(&mut admin);
    for client in ["d", "c"] {
        assert_eq!(tell(&mut admin, &name).as_deref(), Some(client));
    }
    for (client, was_told) in [("c", true), ("b", false)] {
        let gone =
            admin.query(&statement("postgres", "leave_wait_queue"), &[&name.as_bytes(), &client]).unwrap();
        assert_eq!(gone[0].get::<_, bool>(0), was_told, "{client}");
    }
    assert_eq!(tell(&mut admin, &name), None);
    leave(&mut admin, &name, "a");
    assert!(ask(&mut admin, &name, "d").0);
    assert_eq!(line(&mut admin, &name), []);
});

test_on!(a_freed_lock_is_briefly_reserved_for_the_notified_client, shared(), |server| {
    let (name, mut admin) = (fresh("kept"), server.admin());
    stand(&mut admin, &name, "told", "0");
    let keep =
        "UPDATE leasehold_locks_wait_queue SET is_next = true, reserved_until = clock_timestamp() + $2::text::interval
        WHERE id = sha256($1) AND client = 'told'";
    let keep = |admin: &mut Client, time: &str| admin.execute(keep, &[&name.as_bytes(), &time]).unwrap();
    // On a busy machine the reservation may already be over, so the test repeats the request.
    assert!(eventually(LONG, || {
        keep(&mut admin, "40 ms");
        let (is_granted, kept, _) = ask(&mut admin, &name, "other");
        if is_granted {
            leave(&mut admin, &name, "other");
        }
        kept.is_some_and(|kept| kept <= 40) && !is_granted
    }));
    keep(&mut admin, "40 ms");
    assert!(ask(&mut admin, &name, "told").0, "the lock is reserved for this client");
    leave(&mut admin, &name, "told");
    // A reservation that ends in an hour counts as a mistake of a clock that was set back, so it is ignored.
    stand(&mut admin, &name, "told", "0");
    keep(&mut admin, "1 hour");
    assert!(ask(&mut admin, &name, "other").0);
});

// `ask` requests a reservation of 320 ms, so the reservation must end 320 ms after the release.
test_on!(a_reservation_lasts_as_long_as_the_waiting_client_requested, shared(), |server| {
    let (name, mut admin) = (fresh("reserved"), server.admin());
    let held = server.client().get_lock(&name).acquire_owned().unwrap();
    assert_eq!(ask(&mut admin, &name, "b"), (false, None, false));
    let mut time =
        |text: &str| -> SystemTime { admin.query_one(&text.replace("NAME", &name), &[]).unwrap().get(0) };
    // With `seen` in the future, the client does not count as gone on a busy machine.
    time(
        "UPDATE leasehold_locks_wait_queue SET seen = clock_timestamp() + interval '1 minute' WHERE id = sha256('NAME')
        RETURNING seen",
    );
    let begun = time("SELECT clock_timestamp()");
    held.unlock().unwrap();
    let ended = time("SELECT clock_timestamp()");
    let until = time("SELECT reserved_until FROM leasehold_locks_wait_queue WHERE id = sha256('NAME')");
    assert!(begun + ms(320) <= until && until <= ended + ms(320), "{begun:?} {until:?} {ended:?}");
});

// The client's row is committed after the release's statement began, so that statement misses the row.
test_on!(a_release_notifies_a_client_that_joins_meanwhile, shared(), |server| {
    let (name, mut admin, mut joining) = (fresh("meet"), server.admin(), server.admin());
    let (client, joins) = (server.client(), session(&mut joining));
    // The first release tries one statement first; the second sends two, since the first notified somebody.
    for waiter in ["b", "c"] {
        let held = client.get_lock(&name).acquire().unwrap();
        joining.batch_execute("BEGIN").unwrap();
        assert_eq!(ask(&mut joining, &name, waiter), (false, None, false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                has_blocked(&mut admin, joins);
                joining.batch_execute("COMMIT").unwrap();
            });
            held.unlock().unwrap();
        });
        let left = line(&mut admin, &name);
        assert!(left.contains(&(waiter.to_owned(), true)), "{left:?}");
    }
});

// The release began earlier, so it cannot see the client. But the client's request waits at the lock's row
// until the release is committed, and then acquires the lock.
test_on!(a_client_joining_during_a_release_gets_the_lock, shared(), |server| {
    let (name, mut admin, mut releasing) = (fresh("meet"), server.admin(), server.admin());
    let releases = session(&mut releasing);
    take(&mut releasing, &name, OWNER, 30_000);
    releasing.batch_execute("BEGIN").unwrap();
    let freed = releasing
        .query_one(
            &statement("postgres", "free_unawaited"),
            &[&name.as_bytes(), &false, &OWNER, &channel(&name)],
        )
        .unwrap();
    assert!(freed.get::<_, Option<i64>>(0).is_some());
    let asked = Arc::new(AtomicU32::new(0));
    let client = server.options().observer(attempts(&asked)).build().unwrap();
    let waiting = start(turn(client.get_lock(&name)));
    has_blocked(&mut admin, releases);
    releasing.batch_execute("COMMIT").unwrap();
    waiting.join().unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1, "the waiter asked again");
});

test_on!(a_release_skips_a_locked_queue_row, shared(), |server| {
    let (name, mut releasing) = (fresh("over"), server.admin());
    releasing.batch_execute("SET lock_timeout = '20s'").unwrap();
    assert!(ask(&mut releasing, &name, "a").0);
    for client in ["c", "d"] {
        assert_eq!(ask(&mut releasing, &name, client), (false, None, false));
    }
    let row =
        format!("leasehold_locks_wait_queue WHERE {} AND client = 'c'", PostgresServer::has_name(&name));
    let mut other = server.lock_rows(&row);
    assert_eq!(tell(&mut releasing, &name).as_deref(), Some("d"));
    other.batch_execute("COMMIT").unwrap();
});

test_on!(locks_are_released_without_the_wait_queue_table, PostgresServer::start(), |server| {
    let mut admin = server.admin();
    let watcher = server.client();
    server.make_user("few", "");
    let client = server.options_as("few").build().unwrap();
    let locks = ["revoked", "dropped", "forced"].map(|name| client.get_lock(name));
    locks.iter().for_each(|lock| lock.lock().unwrap());
    admin.batch_execute("REVOKE ALL ON leasehold_locks_wait_queue FROM few").unwrap();
    locks[0].unlock().unwrap();
    assert!(!watcher.get_lock("revoked").is_locked().unwrap());
    fails(locks[0].try_lock_for(ms(100)), ErrorKind::NoPermission);
    admin.batch_execute("DROP TABLE leasehold_locks_wait_queue").unwrap();
    locks[1].unlock().unwrap();
    assert!(locks[2].force_unlock().unwrap());
    for name in ["dropped", "forced"] {
        assert!(!watcher.get_lock(name).is_locked().unwrap(), "{name}");
    }
});

test_on!(a_locked_queue_table_delays_no_release, PostgresServer::start(), |server| {
    watch_for_stalls();
    let (client, mut admin) = (server.client(), server.admin());
    let locks = ["released", "forced"].map(|name| client.get_lock(name));
    locks.iter().for_each(|lock| lock.lock().unwrap());
    admin.batch_execute("BEGIN; LOCK TABLE leasehold_locks_wait_queue").unwrap();
    let begun = now();
    locks[0].unlock().unwrap();
    assert!(own_time_since(begun) < ms(2_500), "{:?}", begun.elapsed());
    let begun = now();
    assert!(locks[1].force_unlock().unwrap());
    assert!(own_time_since(begun) < ms(2_500), "{:?}", begun.elapsed());
    locks.iter().for_each(|lock| assert!(!lock.is_locked().unwrap()));
    fails(locks[0].try_lock_for(ms(100)), ErrorKind::TimedOut);
    admin.batch_execute("COMMIT").unwrap();
});
