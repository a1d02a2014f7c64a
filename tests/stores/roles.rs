//! PostgreSQL and MySQL behind an address that changes servers, or with few connections: planned switchovers,
//! users with one connection, and links that break silently.

use std::collections::BTreeSet;

use crate::databases::{Database, Rows as _};
use crate::support::prelude::*;
use crate::support::relay::{Act, Direction, Relay};

/// Adds the row of a lock as replication would.
fn add_row<D: Database>(server: &D, name: &str, owner: &str, lease: Duration) {
    let (id, now, end) = (D::id(name), D::from_now(ms(0)), D::from_now(lease));
    server.execute(&format!(
        "INSERT INTO leasehold_locks (id, name, token, owner, holds, expires_at, fence, host, pid, thread, since) \
         VALUES ({id}, '{name}', false, '{owner}', 1, {end}, 0, '', 0, '', {now})"
    ));
}

/// The old master, the new master, and the address that clients use.
fn two<D: Database>() -> Option<(D, D, Relay)> {
    let (old, new) = (D::start()?, D::start()?);
    [&old, &new].iter().for_each(|server| server.make_user("app", ""));
    let relay = Relay::to(old.port());
    Some((old, new, relay))
}

// The old master becomes read-only, and the address leads to the new master. Connections to the old master
// stay open, as behind a proxy or a DNS name.
on_databases!(after_a_planned_switchover_grants_go_on_within_a_second, two::<D>(), |(old, new, relay)| {
    let url = relay.url(&old.url_as("app"), old.port());
    let options = || LockClient::builder().url(&url).lease(RENEWED);
    let client = connected(|| options().build());
    let (copied, gone) = (
        client.get_lock("copied").acquire_owned().unwrap(),
        client.get_lock("gone").acquire_owned().unwrap(),
    );
    // Only the old master has this row. On the new master the lock is free, so after the switchover the
    // waiter must not wait for the end of the row's minute.
    add_row(&old, "foreign", "another:1", ms(60_000));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.get_lock("foreign").try_lock_for(LONG).map(|_| now()));
        // The threads use all connections of the pool, so the client must replace each of them.
        let users: Vec<_> = (0..6)
            .map(|number| {
                let client = &client;
                scope.spawn(move || {
                    client.get_lock(format!("before-{number}")).acquire().unwrap().unlock().unwrap()
                })
            })
            .collect();
        users.into_iter().for_each(|user| user.join().unwrap());
        add_row(&new, "copied", &copied.owner().to_string(), RENEWED);
        relay.lead_to(new.port());
        old.set_read_only(true);
        let start = now();
        let mut number = 0;
        comes_within(start, ms(1_000), "the first grant", || {
            number += 1;
            client.get_lock(format!("after-{number}")).try_lock().is_ok_and(|is_granted| is_granted)
        });
        for number in 0..20 {
            client.get_lock(format!("then-{number}")).acquire().unwrap().unlock().unwrap();
        }
        within(start, ms(2_000), "twenty more grants");
        let granted = waiter.join().unwrap().unwrap();
        // A waiter polls at least every 1.2 s, so it finds the free lock within two polls.
        let late = granted.saturating_duration_since(start);
        assert!(late < ms(3_000) + crate::support::stalled_since(start), "{late:?}");
    });
    throughout(RENEWED + ms(1_000), || copied.check().is_ok());
    copied.unlock().unwrap();
    assert_eq!(receive(&gone.lost(), LONG).unwrap().reason, LossReason::Gone);
    assert!(eventually(LONG, || old.sessions_of("app") == 0), "{} are left", old.sessions_of("app"));
});

// A session lock writes nothing that the old master would refuse. Renewals and the release ask whether the
// server is read-only, so only they notice the switchover.
on_databases!(session_locks_on_a_demoted_server_are_lost, two::<D>(), |(old, new, relay)| {
    let url = relay.url(&old.url_as("app"), old.port());
    let connect = || connected(|| LockClient::builder().url(&url).session_locks().lease(RENEWED).build());
    let (client, rival) = (connect(), connect());
    let renewed = client.get_lock("renewed").acquire_owned().unwrap();
    let leased = client.get_lock("leased").acquire_owned_with(&leased(ms(60_000))).unwrap().unwrap();
    assert!(!rival.get_lock("renewed").try_lock().unwrap());
    relay.lead_to(new.port());
    old.set_read_only(true);
    let start = now();
    comes_within(start, ms(1_000), "the rival's grant", || {
        rival.get_lock("renewed").try_lock().is_ok_and(|is_granted| is_granted)
    });
    let loss = receive(&renewed.lost(), RENEWED).unwrap();
    within(start, RENEWED / 3, "the loss");
    assert_eq!(loss.reason, LossReason::Gone);
    assert!(renewed.unlock().unwrap_err().is_lost());
    assert!(leased.unlock().unwrap_err().is_lost());
    assert!(rival.get_lock("renewed").is_held_by_current_thread().unwrap());
    rival.get_lock("renewed").unlock().unwrap();
    assert!(eventually(LONG, || old.sessions_of("app") == 0), "{} are left", old.sessions_of("app"));
});

on_databases!(a_user_with_one_connection_loses_no_hold, D::start(), |server| {
    server.make_user("one", D::WITH_ONE_CONNECTION);
    for is_session in [false, true] {
        let options = || {
            let options = server.options_as("one").lease(RENEWED);
            if is_session { options.session_locks() } else { options }
        };
        let client = connected(|| options().build());
        let held = client.get_lock(fresh("held")).acquire_owned().unwrap();
        throughout(RENEWED + ms(1_500), || held.check().is_ok());
        if !is_session {
            std::thread::scope(|scope| {
                for name in ["a", "b"] {
                    let client = &client;
                    scope.spawn(move || {
                        for _ in 0..20 {
                            client.get_lock(name).acquire().unwrap().unlock().unwrap();
                        }
                    });
                }
            });
        }
        held.unlock().unwrap();
        client.shutdown().unwrap();
    }
});

// The server does not notice that the connection is cut, so it keeps the session's lock.
on_databases!(unlock_after_a_cut_succeeds_only_when_the_server_confirms, D::start(), |server| {
    server.make_user("app", "");
    let relay = Relay::to(server.port());
    let url = relay.url(&server.url_as("app"), server.port());
    let options = || LockClient::builder().url(&url).session_locks().lease(ms(25_000));
    let client = connected(|| options().command_timeout(ms(1_000)).retry_timeout(ms(3_000)).build());
    let rival = server.options_as("app").session_locks().build().unwrap();
    let (first, second) =
        (client.get_lock("a").acquire_owned().unwrap(), client.get_lock("b").acquire_owned().unwrap());
    relay.freeze();
    relay.refuse(true);
    let error = first.unlock().unwrap_err();
    assert!(error.outcome_unknown(), "{error:?}");
    assert!(!rival.get_lock("a").try_lock().unwrap());
    relay.refuse(false);
    let start = now();
    second.unlock().unwrap();
    assert!(rival.get_lock("b").try_lock().unwrap());
    comes_within(start, ms(5_000), "the clean-up", || rival.get_lock("a").try_lock().unwrap());
});

// At 150 ms each, as between continents, 16 round trips take 2.4 s, less than the connect time-out (3 s).
on_databases!(a_client_is_built_in_a_few_round_trips, D::start(), |server| {
    server.make_user("app", "");
    // A round trip begins when the client sends something after an answer, or for the first time.
    let turns = Arc::new(AtomicUsize::new(0));
    let (counts, asking) = (Arc::clone(&turns), Mutex::new(BTreeSet::new()));
    let relay = Relay::with("127.0.0.1", server.port(), move |_, piece| {
        let mut asking = asking.lock();
        if piece.direction == Direction::ToClient {
            asking.remove(&piece.connection);
        } else if asking.insert(piece.connection) {
            counts.fetch_add(1, Ordering::SeqCst);
        }
        Act::Pass
    });
    for (user, creates) in [("app", false), ("admin", true)] {
        turns.store(0, Ordering::SeqCst);
        let url = relay.url(&server.url_as(user), server.port());
        LockClient::builder().url(url).create_schema(creates).build().unwrap();
        let turns = turns.load(Ordering::SeqCst);
        assert!(turns <= 16, "{turns} round trips to build a client of {user}");
    }
});

// A directory entry is written with a time-out of 0.5 s, a sixth of the lease. The connection's own time-out
// is longer, but the client must not open another connection for each write.
on_databases!(directory_entries_are_written_over_one_connection, D::start(), |server| {
    server.make_user("app", "");
    let relay = Relay::to(server.port());
    let url = relay.url(&server.url_as("app"), server.port());
    let client = LockClient::builder().url(url).lease(ms(3_000)).build().unwrap();
    let _held = client.get_lock("a").acquire().unwrap();
    let other = server.options_as("app").build().unwrap();
    let is_written = || other.clients().count() == 1;
    assert!(eventually(LONG, is_written));
    let before = relay.accepted();
    throughout(ms(5_000), is_written);
    let made = relay.accepted() - before;
    assert!(made <= 2, "{made} connections for five entries");
});

// Directory entries and renewals use the same connection, so a write that waits could delay renewals.
on_databases!(a_locked_directory_row_delays_no_renewal, D::start(), |server| {
    let client = server.options().lease(ms(3_000)).build().unwrap();
    let begun = now();
    let take = |number: u64| {
        let_pass(ms(95), "each hold is renewed later than the one before");
        client.get_lock(number.to_string()).acquire_owned().unwrap()
    };
    let held: Vec<_> = (0..10).map(take).collect();
    assert!(eventually(LONG, || server.count_rows("leasehold_locks_clients") == 1));
    let _locking = server.lock_rows("leasehold_locks_clients");
    throughout(ms(9_000), || held.iter().all(|one| one.check().is_ok()) || stalled_since(begun) > ms(1_500));
});

on_databases!(vacuum_blockers_reports_the_oldest_open_transaction, D::start(), |server| {
    let client = server.client();
    let named = |age| {
        let_pass(
            ms(150),
            "MariaDB reads its transactions anew once nobody has asked for a tenth of a second",
        );
        client.vacuum_blockers(age).unwrap().iter().any(|words| words.contains("a transaction of"))
    };
    assert!(!named(Duration::ZERO));
    client.get_lock("a").lock().unwrap();
    let mut locking = server.lock_row("a");
    assert!(eventually(LONG, || named(Duration::ZERO)));
    assert!(!named(LONG), "the entry is not so old");
    D::ask_on(&mut locking, "ROLLBACK");
    assert!(eventually(LONG, || !named(Duration::ZERO)));
});
