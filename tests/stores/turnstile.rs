//! MySQL and MariaDB: of the clients that wait for a lock, one has the *polling turn*: it is the lock's
//! designated poller, and polls often. The others poll too, but seldom, so no waiter depends on the poller.

use std::sync::mpsc::{Sender, channel};

use mysql::Conn;
use mysql::prelude::Queryable;

use crate::databases::Database;
use crate::support::mysql::MysqlServer;
use crate::support::prelude::*;
use crate::support::stalls::{about_to_end, own_time_since};

fn turn_of(name: &str) -> String {
    format!("CONCAT('leasehold-turn:', LEFT(SHA2(CONCAT('locks/leasehold_locks/', '{name}'), 256), 40))")
}

fn front(admin: &mut Conn, name: &str) -> Option<u64> {
    admin.query_first::<Option<u64>, _>(format!("SELECT IS_USED_LOCK({})", turn_of(name))).unwrap().flatten()
}

#[track_caller]
fn eventual_front(admin: &mut Conn, name: &str) -> u64 {
    let mut seen = None;
    assert!(eventually(LONG, || {
        seen = front(admin, name);
        seen.is_some()
    }));
    seen.unwrap()
}

fn wait(client: &LockClient, name: &str, number: usize, got: &Sender<(usize, OwnedGuard)>) {
    let (client, name, got) = (client.clone(), name.to_owned(), got.clone());
    drop(start(move || {
        let guard = client.get_lock(&name).acquire_owned().unwrap();
        about_to_end(); // records this thread's stalls, which are unknown after its end
        got.send((number, guard)).ok(); // fails if the test is over
    }));
}

fn looks(admin: &mut Conn) -> Vec<(u64, u64)> {
    let text = "SELECT thread_id, COUNT(*) FROM mysql.general_log \
        WHERE argument LIKE '%LOWER(HEX(id))%' AND argument NOT LIKE '%general_log%' GROUP BY thread_id";
    admin.query(text).unwrap()
}

test_on!(only_one_of_many_waiting_mysql_clients_polls_often, MysqlServer::start(), |server| {
    let name = fresh("turn");
    let holder = server.client();
    let held = holder.get_lock(&name).acquire().unwrap();
    let (got, gets) = channel();
    let clients: Vec<_> = (0..4).map(|_| server.client()).collect();
    for (number, client) in clients.iter().enumerate() {
        wait(client, &name, number, &got);
    }
    let mut admin = server.admin();
    let first = eventual_front(&mut admin, &name);
    admin.query_drop("SET GLOBAL log_output = 'TABLE'").unwrap();
    let logged = now();
    admin.query_drop("SET GLOBAL general_log = 1").unwrap();
    let enough = |looks: &[(u64, u64)]| looks.iter().map(|(_, count)| count).sum::<u64>() >= 100;
    assert!(eventually(LONG, || enough(&looks(&mut admin))));
    admin.query_drop("SET GLOBAL general_log = 0").unwrap();
    let span = logged.elapsed();
    let seen = looks(&mut admin);
    assert!(seen.len() == 1 && seen[0].0 == first, "{seen:?}, {first}");
    // The three other waiters poll every 50 to 100 ms; `seldom` allows 40 ms, and eight more requests. On a
    // busy machine even the poller may poll less often than that.
    let others = "SELECT COUNT(*) FROM mysql.general_log WHERE command_type = 'Execute'";
    let others: u64 = admin.query_first(others).unwrap().unwrap();
    let seldom = u64::try_from(span.as_millis() * 3 / 40).unwrap() + 8;
    assert!(others < seen[0].1.max(seldom), "{others} beside {seen:?} in {span:?}");
    admin.query_drop(format!("KILL {first}")).unwrap();
    assert!(eventually(LONG, || front(&mut admin, &name).is_some_and(|front| front != first)));
    held.unlock().unwrap();
    let mut winners: Vec<_> = (0..clients.len()).map(|_| gets.recv_timeout(LONG).unwrap().0).collect();
    winners.sort_unstable();
    assert_eq!(winners, [0, 1, 2, 3]);
    assert!(eventually(LONG, || front(&mut admin, &name).is_none()), "clients are left in the queue");
});

// The first client's connection stays open for a second name, so the client itself must give up the turn.
test_on!(the_turn_to_poll_passes_to_the_next_waiting_client, MysqlServer::start(), |server| {
    let names = ["left", "stays"].map(fresh);
    let holder = server.client();
    let _held = names.each_ref().map(|name| holder.get_lock(name).acquire_owned().unwrap());
    let (first, next, mut admin) = (server.client(), server.client(), server.admin());
    let interrupt = Interrupt::new();
    let (got, _gets) = channel();
    wait(&first, &names[1], 0, &got);
    let session = eventual_front(&mut admin, &names[1]);
    std::thread::scope(|scope| {
        let leaves = scope.spawn(|| first.get_lock(&names[0]).lock_interruptibly(&interrupt).is_err());
        assert_eq!(eventual_front(&mut admin, &names[0]), session);
        interrupt.interrupt();
        assert!(leaves.join().unwrap());
    });
    wait(&next, &names[0], 1, &got);
    let has_next = |front: Option<u64>| front.is_some_and(|front| front != session);
    assert!(eventually(LONG, || has_next(front(&mut admin, &names[0]))));
    assert_eq!(front(&mut admin, &names[1]), Some(session));
});

test_on!(a_waiter_retakes_the_polling_turn_after_each_killed_session, MysqlServer::start(), |server| {
    watch_for_stalls();
    let name = fresh("again");
    let _held = server.client().get_lock(&name).acquire_owned().unwrap();
    let (client, mut admin) = (server.client(), server.admin());
    let (got, _gets) = channel();
    wait(&client, &name, 0, &got);
    for outage in 1..=6 {
        let session = eventual_front(&mut admin, &name);
        admin.query_drop(format!("KILL {session}")).unwrap();
        let begun = now();
        assert!(eventually(LONG, || front(&mut admin, &name).is_some_and(|front| front != session)));
        let took = own_time_since(begun);
        assert!(took < ms(2_000), "{took:?} after outage {outage}");
    }
});

fn hand_off(clients: [&LockClient; 2], name: &str) -> Duration {
    watch_for_stalls();
    let (got, gets) = channel();
    let mut held = Some(clients[0].get_lock(name).acquire_owned().unwrap());
    let hand_offs = (1..=21).map(|round: usize| {
        wait(clients[round % 2], name, round, &got);
        assert!(eventually(LONG, || clients[round % 2].stats().waiters == 1));
        // The waiter's client has time to get the polling turn, so it polls often when the lock is released.
        let_pass(ms(100 + round as u64 * 7 % 50), "nothing is to be seen of a session lock's turnstile");
        let released = now();
        held.take().unwrap().unlock().unwrap();
        held = Some(gets.recv_timeout(LONG).unwrap().1);
        own_time_since(released)
    });
    median(hand_offs.collect())
}

test_on!(a_waiting_mysql_client_acquires_within_20_ms_of_release, MysqlServer::start(), |server| {
    let took = hand_off([&server.client(), &server.client()], &fresh("soon"));
    assert!(took <= ms(20), "{took:?}");
});

test_on!(waiters_acquire_although_a_frozen_session_holds_the_polling_turn, MysqlServer::start(), |server| {
    let name = fresh("stuck");
    let mut admin = server.admin();
    admin.query_drop(format!("SELECT GET_LOCK({}, 0)", turn_of(&name))).unwrap();
    let stuck = front(&mut admin, &name);
    assert!(stuck.is_some());
    let holder = server.client();
    let clients: Vec<_> = (0..2).map(|_| server.client()).collect();
    let (got, gets) = channel();
    let held = holder.get_lock(&name).acquire().unwrap();
    for (number, client) in clients.iter().enumerate() {
        wait(client, &name, number, &got);
    }
    assert!(!clients[0].get_lock(&name).try_lock_for(ms(200)).unwrap());
    held.unlock().unwrap();
    for _ in 0..2 {
        drop(gets.recv_timeout(LONG).unwrap());
    }
    assert_eq!(front(&mut admin, &name), stuck);
});

// While the connection `spare` is open, the user's limit leaves the client `few` no second connection, which
// a poller needs. The client `without`, like earlier versions, never becomes the poller.
test_on!(waiters_that_cannot_take_the_polling_turn_are_served, MysqlServer::start(), |server| {
    let (name, holder, mut admin) = (fresh("beside"), server.client(), server.admin());
    server.make_user("few", "WITH MAX_USER_CONNECTIONS 2");
    let spare = server.try_connect("few").unwrap();
    let few = LockClient::builder().url(server.url_as("few")).pool_size(1).build().unwrap();
    let without = server.options().designated_poller(false).build().unwrap();
    let (got, gets) = channel();
    let held = holder.get_lock(&name).acquire().unwrap();
    wait(&few, &name, 0, &got);
    wait(&without, &name, 1, &got);
    assert!(!without.get_lock(&name).try_lock_for(ms(500)).unwrap());
    assert_eq!(front(&mut admin, &name), None);
    drop(spare); // frees a connection for the poller
    wait(&server.client(), &name, 2, &got);
    eventual_front(&mut admin, &name);
    held.unlock().unwrap();
    let mut winners: Vec<_> = (0..3).map(|_| gets.recv_timeout(LONG).unwrap().0).collect();
    winners.sort_unstable();
    assert_eq!(winners, [0, 1, 2]);
});

test_on!(a_client_that_shuts_down_gives_up_its_polling_turn, MysqlServer::start(), |server| {
    watch_for_stalls();
    let name = fresh("ends");
    let _held = server.client().get_lock(&name).acquire_owned().unwrap();
    let mut admin = server.admin();
    let client = server.client();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.get_lock(&name).try_lock_for(2 * LONG).unwrap_err().kind());
        eventual_front(&mut admin, &name);
        let start = now();
        client.shutdown().unwrap();
        assert_eq!(waiter.join().unwrap(), ErrorKind::ShutDown);
        assert!(own_time_since(start) < ms(500), "{:?}", start.elapsed());
    });
    assert!(eventually(LONG, || front(&mut admin, &name).is_none()));
    let (front_one, other) = (server.client(), server.client());
    std::thread::scope(|scope| {
        for client in [&front_one, &other] {
            scope.spawn(|| {
                let start = now();
                assert!(!client.get_lock(&name).try_lock_for(ms(300)).unwrap());
                let took = own_time_since(start);
                assert!(start.elapsed() >= ms(300) && took < ms(400), "{took:?}");
            });
        }
    });
});
