//! Inspection shows details that only some stores know, and the types of other programs' keys.

use leasehold::{Mode, ObjectKind};
use redis::Connection;

use crate::support::calls;
use crate::support::prelude::*;

const MOST: Duration = Duration::from_secs(20);

fn run(admin: &mut Connection, command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    redis::cmd(words[0]).arg(&words[1..]).exec(admin).unwrap();
}

fn says_since_when_and_who(client: &LockClient, other: &LockClient) {
    for fair in [false, true] {
        let name = crate::support::fresh("import");
        let options = client.lock_builder(&name).max_hold(MOST);
        let lock = if fair { options.fair() } else { options }.build();
        thread::scope(|scope| {
            let ada = thread::Builder::new().name("ada the first".into());
            ada.spawn_scoped(scope, || {
                lock.lock().unwrap();
                lock.lock().unwrap();
                let seen = other.inspect(&name).unwrap();
                let [holder] = &seen.holders[..] else { panic!("{seen}") };
                assert_eq!(holder.hold_count, Some(2));
                assert!(holder.held_for.is_some_and(|held| held < Duration::from_secs(10)), "{seen}");
                let ends = holder.ends_within.unwrap();
                assert!(ends <= MOST && ends > MOST - Duration::from_secs(10), "{seen}");
                let place = holder.location.as_ref().unwrap();
                assert_eq!((place.pid, &*place.thread), (std::process::id(), "ada the first"));
                assert!(!place.host.is_empty() && seen.to_string().contains("ada the first"), "{seen}");
                let by = other.get_lock(&name).unlock().unwrap_err();
                assert!(by.to_string().contains(&holder.owner), "{by}");
                assert!(lock.is_held_by_current_thread().unwrap());
                lock.unlock().unwrap();
                lock.unlock().unwrap();
            })
            .unwrap();
        });
        assert_eq!(other.inspect(&name).unwrap().kind, ObjectKind::Absent);
        // A hold without `max_hold` stores no location, and inspection must not show that of the hold before.
        let guard = other.get_lock(&name).acquire().unwrap();
        let seen = client.inspect(&name).unwrap();
        assert_eq!((seen.holders[0].ends_within, &seen.holders[0].location), (None, &None), "{seen}");
        guard.unlock().unwrap();
    }
}

#[test]
fn inspecting_a_hold_with_max_hold_shows_its_times_and_place() {
    let store = MemoryStore::new();
    // Without directory entries, only the lock itself can tell its holder's place.
    let builder = || LockClient::builder().directory(false);
    let open = || builder().build_in_memory(&store).unwrap();
    says_since_when_and_who(&open(), &open());
    let Some(server) = RedisServer::start_default() else { return };
    let connect = || builder().url(server.url()).build().unwrap();
    says_since_when_and_who(&connect(), &connect());
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.admin()).unwrap();
    assert_eq!(left, [""; 0], "the hold's description outlived the hold");
}

test_on!(inspection_shows_the_new_holder_after_a_local_hand_off, RedisServer::start_default(), |server| {
    let client = LockClient::builder().url(server.url()).directory(false).build().unwrap();
    let (plain, ending) = (client.get_lock("handed"), client.lock_builder("handed").max_hold(MOST).build());
    for (first, second, says) in [(&plain, &ending, true), (&ending, &plain, false), (&ending, &ending, true)]
    {
        thread::scope(|scope| {
            first.lock().unwrap();
            let next = thread::Builder::new().name("next".into());
            let next = next.spawn_scoped(scope, || {
                second.lock().unwrap();
                let seen = client.inspect("handed").unwrap();
                let holder = &seen.holders[0];
                // A client knows its own holds even without an entry in the directory of clients.
                let thread = holder.location.as_ref().map(|place| place.thread.clone());
                assert_eq!(thread.as_deref(), Some("next"), "{seen}");
                assert_eq!(holder.ends_within.is_some(), says, "{seen}");
                second.unlock().unwrap();
            });
            let next = next.unwrap();
            // If the thread `next` were still awake, the unlock would be a release and not a hand-off.
            assert!(!crate::support::eventually(Duration::from_millis(50), || next.is_finished()));
            first.unlock().unwrap();
            next.join().unwrap();
        });
        assert!(!plain.is_locked().unwrap(), "an entry kept a lock that no client holds");
    }
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.admin()).unwrap();
    assert_eq!(left, [""; 0]);
});

test_on!(inspection_shows_the_type_of_other_programs_keys, RedisServer::start_default(), |server| {
    let client = LockClient::connect(server.url()).unwrap();
    let mut admin = server.admin();
    let mut kind = |name: &str, command: &str| {
        run(&mut admin, command);
        client.inspect(name).unwrap().kind
    };
    let foreign = |what: &str| ObjectKind::Foreign { what: what.to_owned() };
    assert_eq!(kind("list", "RPUSH list a"), foreign("a list"));
    assert_eq!(kind("set", "SADD set a"), foreign("a set"));
    assert_eq!(kind("person", "HSET person name ada"), foreign("a hash"));
    assert_eq!(kind("odd", "HSET odd mode sideways a 1"), foreign("a hash"));
    assert_eq!(kind("flag", "HSET flag mode read"), foreign("a hash"));
    assert_eq!(kind("cart", "HSET cart item:1 2 item:2 1"), foreign("a hash"));
    assert_eq!(kind("session", "SET session Bearer-S3CR3T PX 60000"), foreign("a string"));
    let token = "SET token 8a3f0e0e-0000-4000-8000-000000000001:7 PX 60000";
    assert_eq!(kind("token", token), ObjectKind::TokenLock);
    assert_eq!(kind("number", "SET number 3"), ObjectKind::Counter);
    assert_eq!(kind("none", "SET none 0"), ObjectKind::Semaphore);
    assert_eq!(kind("lock", "HSET lock 8a3f0e0e-0000-4000-8000-000000000001:1 2"), ObjectKind::Lock);
    assert_eq!(
        kind("queue", "RPUSH redisson_lock_queue:{queue} 8a3f0e0e-0000-4000-8000-000000000001:2"),
        ObjectKind::FairLock
    );
    assert_eq!(kind("fenced", "SET redisson_lock_token:{fenced} 17"), ObjectKind::FencedLock);
    let seen = client.inspect("lock").unwrap();
    assert_eq!((seen.remaining, seen.holders[0].hold_count), (Some(Duration::MAX), Some(2)), "{seen}");
    assert_eq!(client.inspect("queue").unwrap().waiters[0].remaining, Some(Duration::ZERO));
    let seen = client.inspect("fenced").unwrap();
    assert_eq!((seen.fencing_token.map(leasehold::FencingToken::get), seen.is_held()), (Some(17), false));
    // A `RedissonFasterMultiLock`, and a read lock with two readers. The lease of the first has expired.
    run(
        &mut admin,
        "HSET group v 8a3f0e0e-0000-4000-8000-000000000001:3 v:8a3f0e0e-0000-4000-8000-000000000001:3:lock_count 1 v:8a3f0e0e-0000-4000-8000-000000000001:3:expire_time 99999999999999",
    );
    let seen = client.inspect("group").unwrap();
    assert_eq!(
        (&seen.kind, &*seen.holders[0].owner),
        (&ObjectKind::GroupLock, "8a3f0e0e-0000-4000-8000-000000000001:3")
    );
    run(
        &mut admin,
        "HSET rw mode read 8a3f0e0e-0000-4000-8000-000000000001:4 1 8a3f0e0e-0000-4000-8000-000000000001:5 1",
    );
    run(&mut admin, "SET {rw}:8a3f0e0e-0000-4000-8000-000000000001:5:rwlock_timeout:1 1 PX 50000");
    let seen = client.inspect("rw").unwrap();
    assert_eq!(seen.kind, ObjectKind::ReadWriteLock { mode: Mode::Read });
    let left = |owner: &str| seen.holders.iter().find(|one| one.owner == owner).unwrap().remaining.unwrap();
    assert_eq!(left("8a3f0e0e-0000-4000-8000-000000000001:4"), Duration::ZERO);
    assert!(left("8a3f0e0e-0000-4000-8000-000000000001:5") > Duration::from_secs(10));
});

test_on!(inspect_is_one_request_and_cuts_long_lists, RedisServer::start_default(), |server| {
    let client = LockClient::connect(server.url()).unwrap();
    let mut admin = server.admin();
    for number in 0..250 {
        run(&mut admin, &format!("RPUSH redisson_lock_queue:{{lock}} waiter:{number}"));
    }
    client.inspect("lock").unwrap(); // loads the script, which would count as a call below
    let before = calls(&mut admin, &["evalsha", "eval"]);
    let seen = client.inspect("lock").unwrap();
    assert_eq!(calls(&mut admin, &["evalsha", "eval"]), before + 1);
    assert_eq!((seen.waiting, seen.waiters.len()), (250, 100));
    assert_eq!(seen.waiters[99].owner, "waiter:99");
    assert!(seen.to_string().ends_with("and 150 more"), "{seen}");
});

test_on!(inspection_and_force_unlock_reveal_no_foreign_data, RedisServer::start_default(), |server| {
    let client = LockClient::connect(server.url()).unwrap();
    let mut admin = server.admin();
    let owner = "8a3f0e0e-0000-4000-8000-000000000001:1";
    run(&mut admin, "HSET cart item:S3CR3T 2 item:2 1");
    run(&mut admin, "HSET settings mode read theme S3CR3T");
    run(&mut admin, &format!("HSET mixed {owner} 1 item:S3CR3T 2"));
    run(&mut admin, "SET session Bearer-S3CR3T PX 60000");
    let before: u64 = redis::cmd("DBSIZE").query(&mut admin).unwrap();
    for name in ["cart", "settings", "mixed", "session"] {
        let seen = client.inspect(name).unwrap();
        assert!(matches!(seen.kind, ObjectKind::Foreign { .. }) && !seen.is_held(), "{seen}");
        let rw = client.get_read_write_lock(name);
        let mut errors = vec![
            client.get_lock(name).force_unlock().unwrap_err(),
            client.get_fair_lock(name).force_unlock().unwrap_err(),
            client.get_lock(name).unlock().unwrap_err(),
            client.get_fair_lock(name).unlock().unwrap_err(),
            rw.read().unlock().unwrap_err(),
            rw.write().unlock().unwrap_err(),
            client.get_token_lock(name).unlock().unwrap_err(),
        ];
        errors.extend(
            [rw.read().force_unlock(), rw.write().force_unlock()].into_iter().filter_map(Result::err),
        );
        for error in &errors[..2] {
            assert_eq!(error.kind(), leasehold::ErrorKind::WrongType, "{name}: {error}");
        }
        for error in errors {
            assert!(!format!("{error} {error:?}").contains("S3CR3T"), "{name}: {error:?}");
        }
    }
    assert!(client.get_read_write_lock("settings").read().force_unlock().is_err());
    let after: u64 = redis::cmd("DBSIZE").query(&mut admin).unwrap();
    assert_eq!(after, before);
    run(&mut admin, &format!("HSET java {owner} 1"));
    assert!(client.get_lock("java").force_unlock().unwrap());
    let token = client.get_token_lock("session");
    assert_eq!(token.holder().unwrap().unwrap().owner, "Bearer-S3CR3T");
    assert!(token.force_unlock().unwrap());
    assert!(token.holder().unwrap().is_none());
});

test_on!(inspection_of_another_programs_large_key_stays_short, RedisServer::start_default(), |server| {
    let client = LockClient::connect(server.url()).unwrap();
    let mut admin = server.admin();
    run(&mut admin, "HSET config mode prod created 1732230000000");
    run(&mut admin, "HSET readers mode read x 999999999999");
    run(&mut admin, "SETRANGE text 3000000 x");
    for number in 0..3000 {
        run(&mut admin, &format!("HSET table field:{number} {}", "v".repeat(1000)));
    }
    let guard = client.get_lock("lock").acquire().unwrap();
    for name in ["config", "text", "table"] {
        let seen = client.inspect(name).unwrap();
        assert!(matches!(seen.kind, ObjectKind::Foreign { .. }) && !seen.is_held(), "{seen}");
        assert!(seen.to_string().len() < 2_000, "{name}");
    }
    client.inspect("readers").unwrap();
    guard.unlock().unwrap();
});

// Each re-entry of a reader has a key, so a forged count would make inspection read a million keys.
test_on!(inspection_reads_a_limited_number_of_reader_reentries, RedisServer::start_default(), |server| {
    let client = LockClient::connect(server.url()).unwrap();
    let mut admin = server.admin();
    let script = "redis.call('hset', 'forged', 'mode', 'read') for n = 1, 900 do \
                  redis.call('hset', 'forged', '8a3f0e0e-0000-4000-8000-000000000001:' .. n, 1000) end";
    redis::cmd("EVAL").arg(script).arg(0).exec(&mut admin).unwrap();
    redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut admin).unwrap();
    let seen = client.inspect("forged").unwrap();
    let looks = calls(&mut admin, &["pttl"]);
    // Inspection reads the expiry (PTTL) of at most 2,000 re-entries, and of a few other keys.
    assert!((2_000..2_010).contains(&looks), "{looks}");
    // Beyond the limit, inspection does not know when the readers' leases end.
    let of = |remaining| seen.holders.iter().filter(|holder| holder.remaining == remaining).count();
    assert_eq!((seen.holders.len(), of(Some(Duration::ZERO)), of(None)), (900, 2, 898));
});
