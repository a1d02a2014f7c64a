//! PostgreSQL: cached locks, and *recalls*, by which waiting clients ask for them.

use std::time::SystemTime;

use postgres::Client;
use postgres::fallible_iterator::FallibleIterator;

use crate::databases::Database;
use crate::postgres_line::{line, stand, version};
use crate::support::caching::{UNUSED, is_free_within, use_until_cached};
use crate::support::postgres::PostgresServer;
use crate::support::prelude::*;

/// The time from the grant of a cached lock to the client's first check for waiters.
const FIRST_LOOK: Duration = ms(50);

fn is_free(lock: &RedisLock, admin: &mut Client) -> bool {
    let text = "SELECT NOT EXISTS (SELECT FROM leasehold_locks WHERE id = sha256($1) AND owner <> '' AND expires_at > now())";
    admin.query_one(text, &[&lock.name().as_bytes()]).unwrap().get(0)
}

#[track_caller]
fn use_until_held(lock: &RedisLock, admin: &mut Client) {
    use_until_cached(lock, || is_free(lock, admin));
}

fn cached_by(client: &LockClient, label: &str, admin: &mut Client) -> RedisLock {
    let lock = client.lock_builder(fresh(label)).cached().build();
    use_until_held(&lock, admin);
    lock
}

fn keeper(name: &str, admin: &mut Client) -> Option<String> {
    let text = "SELECT keeper FROM leasehold_locks WHERE id = sha256($1)";
    admin.query_one(text, &[&name.as_bytes()]).unwrap().get(0)
}

/// Waits until the client has ended three more checks for waiters. The last of them began after this call.
fn await_checks(admin: &mut Client) {
    let text = "SELECT max(query_start) FROM pg_stat_activity WHERE state = 'idle' AND query LIKE '-- Checks whether%'";
    let mut last = || admin.query_one(text, &[]).unwrap().get::<_, Option<SystemTime>>(0);
    for _ in 0..3 {
        let before = last();
        assert!(eventually(LONG, || last() > before), "no check came");
    }
}

test_on!(a_lock_row_shows_whether_its_holder_caches_the_lock, PostgresServer::start(), |server| {
    let (keeps, plain, mut admin) = (server.client(), server.client(), server.admin());
    // A try and a wait acquire a free lock by different statements.
    let tries = |theirs: &RedisLock| theirs.try_lock().unwrap();
    let waits = |theirs: &RedisLock| theirs.lock().is_ok();
    for takes in [&tries as &(dyn Fn(&RedisLock) -> bool + Sync), &waits] {
        // Each round uses a new lock: after two recalls within 100 ms a client stops caching a lock for 1 s.
        let kept = cached_by(&keeps, "row", &mut admin);
        let (name, theirs) = (kept.name(), plain.get_lock(kept.name()));
        kept.lock().unwrap();
        assert!(keeper(name, &mut admin).is_some());
        kept.unlock().unwrap();
        // `force_unlock` ends this thread's hold of `kept`. When the thread notices that, it may get a new
        // owner number, by which it could not unlock `theirs`, so another thread locks.
        elsewhere(|| {
            theirs.force_unlock().unwrap();
            assert!(takes(&theirs));
            assert_eq!(keeper(name, &mut admin), None);
            theirs.unlock().unwrap();
        });
        use_until_held(&kept, &mut admin);
    }
    let kept = cached_by(&keeps, "queued", &mut admin);
    let (name, theirs) = (kept.name().to_owned(), plain.get_lock(kept.name()));
    theirs.lock().unwrap();
    let waiter = start(move || kept.lock().map(|()| kept));
    assert!(eventually(LONG, || line(&mut admin, &name).len() == 1));
    theirs.unlock().unwrap();
    drop(waiter.join().unwrap().unwrap());
    assert!(keeper(&name, &mut admin).is_some());
});

test_on!(many_waiters_send_one_recall_for_a_cached_lock, PostgresServer::start(), |server| {
    let (client, mut admin) = (server.client(), server.admin());
    let lock = cached_by(&client, "once", &mut admin);
    lock.lock().unwrap();
    let channel = keeper(lock.name(), &mut admin).unwrap();
    admin.batch_execute(&format!("LISTEN {channel}")).unwrap();
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let theirs = server.client().get_lock(lock.name());
            start(move || theirs.lock().and_then(|()| theirs.unlock()))
        })
        .collect();
    assert!(eventually(LONG, || line(&mut admin, lock.name()).len() == 4));
    lock.unlock().unwrap();
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap().unwrap());
    let told = admin.notifications().iter().map(|told| Ok(told.payload().to_owned())).collect::<Vec<_>>();
    assert_eq!(told.unwrap(), ["recall"]);
});

// A queued client may be of a version without recalls, or have died before its recall. So the holder must
// look into the queue itself.
test_on!(a_cached_lock_is_freed_for_queued_clients_without_recall, PostgresServer::start(), |server| {
    let (client, mut admin) = (server.client(), server.admin());
    let lock = cached_by(&client, "unasked", &mut admin);
    lock.lock().unwrap();
    // Last seen a minute in the future, the client `silent` counts as alive even on a busy machine.
    stand(&mut admin, lock.name(), "silent", "-1 minute");
    await_checks(&mut admin);
    lock.unlock().unwrap();
    assert!(is_free(&lock, &mut admin), "the lock was not released");
    // The holder's own client and a dead client do not count as waiting.
    let lock = cached_by(&client, "own", &mut admin);
    let text = "SELECT split_part(owner, ':', 1) FROM leasehold_locks WHERE id = sha256($1)";
    let own: String = admin.query_one(text, &[&lock.name().as_bytes()]).unwrap().get(0);
    stand(&mut admin, lock.name(), &own, "-1 minute");
    stand(&mut admin, lock.name(), "dead", "6 seconds");
    lock.lock().unwrap();
    let before = version(&mut admin, lock.name());
    await_checks(&mut admin);
    assert_eq!(version(&mut admin, lock.name()), before, "a check wrote to the row");
    let used = now();
    lock.unlock().unwrap();
    // After half a second without use, the client may have released the lock.
    assert!(!is_free(&lock, &mut admin) || used.elapsed() >= UNUSED, "the lock was released too early");
    // A recall removes the holder's channel from the row and sends a message. The test only removes the
    // channel, so only a check can find the recall.
    lock.lock().unwrap();
    let text = "UPDATE leasehold_locks SET keeper = NULL WHERE id = sha256($1)";
    admin.execute(text, &[&lock.name().as_bytes()]).unwrap();
    await_checks(&mut admin);
    lock.unlock().unwrap();
    assert!(is_free(&lock, &mut admin), "the lock was not released");
});

test_on!(a_client_that_loses_its_listening_session_frees_cached_locks, PostgresServer::start(), |server| {
    let (client, mut admin) = (server.client(), server.admin());
    let lock = cached_by(&client, "deaf", &mut admin);
    let text = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND query LIKE '%SHOW transaction_read_only'";
    let cut = now();
    assert_eq!(admin.query_one(text, &[]).unwrap().get::<_, i64>(0), 1);
    is_free_within(cut, FIRST_LOOK, || is_free(&lock, &mut admin));
    use_until_held(&lock, &mut admin);
});

test_on!(a_locked_row_delays_no_renewal_of_another_cached_lock, PostgresServer::shared(), |server| {
    let (mut admin, lease) = (server.admin(), ms(3_000));
    let client = server.options().lease(lease).build().unwrap();
    let [stuck, beside] = ["stuck", "beside"].map(|label| cached_by(&client, label, &mut admin));
    [&stuck, &beside].iter().for_each(|lock| lock.lock().unwrap());
    let _locking = server.lock_row(stuck.name());
    let begun = now();
    throughout(lease * 2, || !is_free(&beside, &mut admin) || stalled_since(begun) > lease / 2);
});

test_on!(a_lock_row_has_the_recall_channel_of_its_owner_only, PostgresServer::start(), |server| {
    let (client, other, mut admin) = (server.client(), server.client(), server.admin());
    let name = &fresh("mark");
    let guard = client.get_lock(name).acquire_owned().unwrap();
    assert_eq!(keeper(name, &mut admin), None);
    let mut locking = server.lock_row(name);
    assert!(!guard.is_contended().unwrap());
    await_checks(&mut admin);
    assert!(!guard.is_contended().unwrap(), "a locked row counted as a waiter");
    locking.batch_execute("COMMIT").unwrap();
    assert!(eventually(LONG, || keeper(name, &mut admin).is_some()));
    guard.unlock().unwrap();
    let theirs = other.get_lock(name).acquire_owned().unwrap();
    assert_eq!(keeper(name, &mut admin), None, "the mark is of another hold");
    theirs.unlock().unwrap();
});
