//! `on_contended` on Redis. It marks the lock, so that waiters send a message; the mark ends with the hold.

use redis::{Commands, Connection};

use crate::support::prelude::*;

fn calls(guard: &OwnedGuard) -> Receiver<()> {
    let (sender, calls) = unbounded();
    guard.on_contended(move || sender.send(()).unwrap_or_default()).unwrap();
    calls
}

fn fields(admin: &mut Connection, key: &str) -> Vec<String> {
    let mut fields: Vec<String> = admin.hkeys(key).unwrap();
    fields.sort();
    fields
}

fn scripts_run(admin: &mut Connection) -> u64 {
    crate::support::calls(admin, &["evalsha", "eval", "subscribe", "ssubscribe"])
}

#[test]
fn a_hold_without_contention_callback_sends_no_extra_requests() {
    let Some(server) = RedisServer::start_default() else { return };
    let (client, mut admin) = (LockClient::connect(server.url()).unwrap(), server.admin());
    // This first use loads the scripts, which would count as calls later.
    let guard = client.get_lock("before").acquire_owned().unwrap();
    let _calls = calls(&guard);
    assert!(eventually(LONG, || fields(&mut server.admin(), "before").len() == 2));
    guard.unlock().unwrap();
    let before = scripts_run(&mut admin);
    let guard = client.get_lock("plain").acquire().unwrap();
    let_pass(ms(1_500), "longer than the time between two checks");
    assert_eq!(fields(&mut admin, "plain"), [guard.owner().to_string()]);
    guard.unlock().unwrap();
    assert_eq!(scripts_run(&mut admin) - before, 2, "not only the grant and the release");
    let before = scripts_run(&mut admin);
    let guard = client.get_lock("heard").acquire_owned().unwrap();
    let _calls = calls(&guard);
    let is_marked = || fields(&mut server.admin(), "heard").len() == 2;
    assert!(eventually(LONG, is_marked));
    assert_eq!(fields(&mut admin, "heard"), [guard.owner().to_string(), "leasehold:cached".to_owned()]);
    assert_eq!(scripts_run(&mut admin) - before, 3, "not only the grant, the subscription and the mark");
    guard.unlock().unwrap();
}

// If the field `leasehold:cached` outlived its hold, Redisson would regard the lock as held.
test_on!(the_redis_mark_of_on_contended_ends_with_its_hold, RedisServer::start_default(), |server| {
    let (client, other) =
        (LockClient::connect(server.url()).unwrap(), LockClient::connect(server.url()).unwrap());
    let mut admin = server.admin();
    let marked = |name: &str, guard: OwnedGuard| {
        let _calls = calls(&guard);
        assert!(
            eventually(LONG, || fields(&mut server.admin(), name).contains(&"leasehold:cached".to_owned()))
        );
        guard
    };
    let mut is_free = |name: &str| {
        let is_there: bool = admin.exists(name).unwrap();
        !is_there
    };
    for name in ["plain", "noted"] {
        let builder = client.lock_builder(name);
        let lock = if name == "noted" { builder.max_hold(LONG).build() } else { builder.build() };
        marked(name, lock.acquire_owned().unwrap()).unlock().unwrap();
        assert!(is_free(name), "a release left the mark");
        drop(marked(name, lock.acquire_owned().unwrap()));
        assert!(eventually(LONG, || is_free(name)), "a drop left the mark");
        let held = marked(name, lock.acquire_owned().unwrap());
        assert!(other.get_lock(name).force_unlock().unwrap());
        assert!(is_free(name), "force_unlock left the mark");
        drop(held);
        let held = marked(name, lock.acquire_owned().unwrap());
        let mine = lock.clone();
        let next = Waiter::start(move || mine.acquire_owned().unwrap());
        held.unlock().unwrap();
        let (next, _) = next.returns_within(LONG);
        let mut expected = vec![next.owner().to_string()];
        expected.extend((name == "noted").then(|| "leasehold:about".to_owned()));
        assert_eq!(fields(&mut server.admin(), name), expected, "a hand-off left the mark");
        next.unlock().unwrap();
        assert!(is_free(name), "the next owner's release left the mark");
    }
    let held = marked("fair", client.get_fair_lock("fair").acquire_owned().unwrap());
    held.unlock().unwrap();
    assert!(is_free("fair"));
    let short = AcquireOptions::new().lease(ms(900));
    let ends = client.get_lock("short").acquire_owned_with(&short).unwrap().unwrap();
    let ends = marked("short", ends);
    assert!(eventually(LONG, || is_free("short")), "the end of the lease left the mark");
    drop(ends);
});

// A waiter of Redisson 4.7 subscribes to a plain lock's channel, or enters a fair lock's queue.
test_on!(on_contended_is_called_for_redissons_waiters, RedisServer::start_default(), |server| {
    let (client, mut admin) = (LockClient::connect(server.url()).unwrap(), server.admin());
    let plain = client.get_lock("plain").acquire_owned().unwrap();
    let fair = client.get_fair_lock("fair").acquire_owned().unwrap();
    let called = [calls(&plain), calls(&fair)];
    let_pass(ms(1_200), "a check");
    assert!(called.iter().all(Receiver::is_empty), "no thread waits");
    let mut java = server.admin();
    let mut subscribed = java.as_pubsub();
    subscribed.subscribe("redisson_lock__channel:{plain}").unwrap();
    let waiter = "03c6b7e5-0000-4000-8000-000000000e5a:1";
    let _: () = admin.rpush("redisson_lock_queue:{fair}", waiter).unwrap();
    let _: () = admin.zadd("redisson_lock_timeout:{fair}", waiter, 9_000_000_000_000_i64).unwrap();
    called.iter().for_each(|called| called.recv_timeout(LONG).expect("no callback came for the waiter"));
    // Redisson counts the fields of a read-write lock as its holders, so the mark is a key of its own.
    let writer = client.get_read_write_lock("rw").write().acquire_owned().unwrap();
    let _calls = calls(&writer);
    let has_hearers = || server.admin().exists("leasehold_rwlock_hearers:{rw}").unwrap();
    assert!(eventually(LONG, has_hearers));
    assert_eq!(fields(&mut admin, "rw").len(), 2);
});
