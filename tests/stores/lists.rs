//! Lists of locks on Redis: their cost to the server, and what they leave out.

use std::collections::BTreeSet;

use leasehold::ObjectKind;
use redis::Value;

use crate::support::calls;
use crate::support::prelude::*;

fn run(server: &RedisServer, words: &[&str]) -> Value {
    redis::cmd(words[0]).arg(&words[1..]).query(&mut server.admin()).unwrap()
}

/// Asserts that the median call took the server at most `micros`, by its log of slow commands. An average
/// would include the system's interruptions, and so measure how busy the machine is.
#[track_caller]
fn assert_median(server: &RedisServer, slow: &[(String, i64)], command: &str, micros: i64) {
    let calls = calls(&mut server.admin(), &[command]);
    let slower = slow.iter().filter(|(name, took)| name == command && *took > micros).count();
    assert!(2 * (slower as u64) < calls, "{command}: {slower} of {calls} took more than {micros} us");
}

#[test]
fn listing_many_locks_does_not_block_the_server() {
    const LOCKS: u32 = 100_000;
    let Some(server) = RedisServer::start_default() else { return };
    let script = "for n = ARGV[1], ARGV[2] do local key = 'lock:' .. string.format('%.0f', n) \
                  redis.call('hset', key, '8a3f0e0e-0000-4000-8000-000000000001:' .. string.format('%.0f', n), 1) \
                  redis.call('pexpire', key, 600000) redis.call('set', 'data:' .. string.format('%.0f', n), 'x') end";
    for chunk in (0..LOCKS).step_by(1_000) {
        run(&server, &["EVAL", script, "0", &chunk.to_string(), &(chunk + 999).to_string()]);
    }
    run(&server, &["CONFIG", "SET", "slowlog-log-slower-than", "100"]);
    run(&server, &["CONFIG", "SET", "slowlog-max-len", "200000"]);
    run(&server, &["SLOWLOG", "RESET"]);
    watch_for_stalls();
    run(&server, &["CONFIG", "RESETSTAT"]);
    let (client, other) =
        (LockClient::connect(server.url()).unwrap(), LockClient::connect(server.url()).unwrap());

    let begun = now();
    let mut locks = client.list("lock:*");
    let (mut names, over) = (BTreeSet::new(), AtomicBool::new(false));
    let mut waited = std::thread::scope(|scope| {
        let pings = scope.spawn(|| {
            let mut waited = Vec::new();
            while !over.load(Ordering::SeqCst) {
                let asked = now();
                other.ping().unwrap();
                let took = asked.elapsed();
                waited.push((took.saturating_sub(stalled_since(asked)), took));
                let_pass(ms(5), "the processor is for the list");
            }
            waited
        });
        for lock in locks.by_ref() {
            let lock = lock.unwrap();
            assert_eq!((&lock.kind, lock.holders.len()), (&ObjectKind::Lock, 1));
            names.insert(lock.name);
        }
        over.store(true, Ordering::SeqCst);
        pings.join().unwrap()
    });
    let (took, cost) = (begun.elapsed(), locks.cost());
    waited.sort();
    let (median, _) = waited[waited.len() / 2];
    waited.sort_by_key(|(_, took)| *took);
    let (_, with_stalls) = waited[waited.len() / 2];
    assert_eq!(names.len(), LOCKS as usize);
    // Half of a page's 500 keys are locks. A page costs the SCAN, a request for each group of 50 locks, and
    // perhaps two more: for a smaller last group, and for keys that SCAN repeats while the table grows.
    let (locks, pages) = (u64::from(LOCKS), 2 * u64::from(LOCKS) / 500);
    assert!((locks..2 * locks).contains(&cost.keys) && cost.requests < 3 * pages + locks / 50, "{cost:?}");
    type Slow = (i64, i64, i64, Vec<String>, String, String);
    let slow: Vec<Slow> = redis::cmd("SLOWLOG").arg(&["GET", "200000"]).query(&mut server.admin()).unwrap();
    let slow: Vec<(String, i64)> =
        slow.into_iter().map(|(_, _, took, words, ..)| (words[0].to_lowercase(), took)).collect();
    let slowest = slow.iter().map(|(_, took)| *took).max().unwrap_or(0);
    println!(
        "{took:?} for {LOCKS} locks, {cost:?}; the slowest {slowest} us; {} pings, median {median:?}, \
         with the machine's stalls {with_stalls:?}",
        waited.len(),
    );
    // The server runs up to 50 inspections together: 100 us each are 5 ms. A SCAN may take half of that.
    assert_median(&server, &slow, "scan", 2_500);
    assert_median(&server, &slow, "evalsha", 100);
    assert!(slow.iter().filter(|(_, took)| *took > 5_000).count() < (LOCKS / 100) as usize, "{slow:?}");
    assert!(median < Duration::from_millis(5), "{median:?}");
}

test_on!(a_listing_contains_only_locks, RedisServer::start_default(), |server| {
    let client = LockClient::builder().url(server.url()).lease(Duration::from_secs(3)).build().unwrap();
    for words in [
        &["SET", "text", "x"][..],
        &["SET", "number", "3"],
        &["SET", "session", "abc", "PX", "60000"],
        &["HSET", "person", "name", "ada"],
        &["HSET", "visits", "7", "12", "day:7", "1", "8a3f0e0e-0000-4000-8000-000000000001:", "1"],
        &["RPUSH", "list", "a"],
        &["HSET", "odd", "somebody:1", "1"],
        &["SET", "redisson_lock_queue:{odd}", "x"],
        &["RPUSH", "redisson_lock_queue:{java}", "somebody:2"],
        &["SET", "redisson_lock_token:{java}", "7"],
        &["HSET", "java", "8a3f0e0e-0000-4000-8000-000000000001:7", "1"],
    ] {
        run(&server, words);
    }
    redis::cmd("SET").arg(b"\xff\xfe").arg("x").exec(&mut server.admin()).unwrap();
    let fenced = client.get_fenced_lock("ours").acquire().unwrap();
    let token = client.get_token_lock("token").acquire().unwrap();
    let mut listed: Vec<_> = client.list("*").map(|lock| lock.unwrap()).collect();
    listed.sort_by(|one, other| one.name.cmp(&other.name));
    let kinds: Vec<_> = listed.iter().map(|lock| (&*lock.name, lock.kind.clone(), lock.waiting)).collect();
    assert_eq!(
        kinds,
        [
            ("java", ObjectKind::FairLock, 1),
            ("ours", ObjectKind::FencedLock, 0),
            ("token", ObjectKind::TokenLock, 0),
        ]
    );
    let java = &listed[0].holders[0];
    assert_eq!((&*java.owner, &java.location), ("8a3f0e0e-0000-4000-8000-000000000001:7", &None));
    assert_eq!(listed[1].holders[0].location.as_ref().unwrap().pid, std::process::id());
    fenced.unlock().unwrap();
    token.unlock().unwrap();
});

test_on!(listing_among_other_programs_keys_sends_few_scripts, RedisServer::start_default(), |server| {
    let script = "for n = 1, tonumber(ARGV[1]) do redis.call('set', 'text:' .. n, 'x') redis.call('set', 'count:' .. n, n) \
                  redis.call('hset', 'person:' .. n, 'name', 'ada', 'email', 'ada@example.org') \
                  redis.call('set', 'session:' .. n, string.rep('0123456789abcdef', 3)) redis.call('sadd', 'set:' .. n, 'x') end";
    run(&server, &["EVAL", script, "0", "2000"]);
    let client = LockClient::builder().url(server.url()).directory(false).build().unwrap();
    let permits = client.get_expirable_semaphore("permits");
    permits.try_set_permits(3).unwrap();
    let braced = client.get_expirable_semaphore("{permits}:2");
    braced.try_set_permits(3).unwrap();
    let readers = client.get_read_write_lock("readers");
    let held = (
        (client.get_lock("plain").acquire().unwrap(), client.get_token_lock("token").acquire().unwrap()),
        (client.get_fair_lock("fair").acquire().unwrap(), readers.read().acquire().unwrap()),
        (permits.acquire().unwrap(), braced.acquire().unwrap()),
    );
    run(&server, &["CONFIG", "RESETSTAT"]);
    let mut locks = client.list("*");
    let mut names: Vec<_> = locks.by_ref().map(|lock| lock.unwrap().name).collect();
    names.sort_unstable();
    assert_eq!(names, ["fair", "permits", "plain", "readers", "token", "{permits}:2"]);
    assert!(locks.cost().keys >= 10_000, "{:?}", locks.cost());
    let scripts = calls(&mut server.admin(), &["evalsha"]);
    assert!(scripts < 10_000 / 250, "{scripts} scripts for six locks among 10,000 keys");
    drop(held);
});

test_on!(lists_work_for_users_without_getrange_and_hscan, RedisServer::start_default(), |server| {
    let client = LockClient::builder().url(server.url()).build().unwrap();
    let guard = client.get_lock("held").acquire().unwrap();
    run(&server, &["SET", "text", "x"]);
    run(&server, &["ACL", "SETUSER", "lister", "on", ">p", "~*", "&*", "+@all", "-getrange", "-hscan"]);
    let lister = LockClient::builder().url(server.url()).username("lister").password("p").build().unwrap();
    let names: Vec<_> = lister.list("*").map(|lock| lock.unwrap().name).collect();
    assert_eq!(names, ["held"]);
    guard.unlock().unwrap();
});

test_on!(malformed_directory_entries_break_no_listing_of_clients, RedisServer::start_default(), |server| {
    let client = LockClient::connect(server.url()).unwrap();
    let id = |n: u32| format!("8a3f0e0e-0000-8000-8000-00000000000{n}");
    let whole = "host=h\\1b;[31m\npid=7\nlease_ms=30000\nnew=[1.5]\nlock=a\nowner=3\nthread=t\nsince_ms=1000\nwaits=false\n";
    for (n, text) in [(1, whole), (2, "host"), (3, "null"), (4, "host=\\1\npid=1\nlease_ms=1\n"), (5, "")] {
        run(&server, &["SET", &format!("leasehold_client:{}", id(n)), text, "PX", "20000"]);
        run(&server, &["HSET", "a", &format!("{}:3", id(n)), "1"]);
    }
    run(&server, &["RPUSH", &format!("leasehold_client:{}", id(6)), "x"]);
    run(&server, &["SET", "leasehold_client:nobody", whole]);
    let listed: Vec<_> = client.clients().map(|one| one.unwrap()).collect();
    let [one] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((one.id.to_string(), &*one.host, one.pid), (id(1), "h[31m", 7));
    // The entry was written 10 s ago (20 of 30 s are left), so each age in it has grown by 10 s.
    assert!((10..20).contains(&one.written_ago.as_secs()), "{one:?}");
    assert!((11..21).contains(&one.uses[0].lasted.as_secs()), "{one:?}");
    let seen = client.inspect("a").unwrap();
    let known = seen.holders.iter().filter(|holder| holder.location.is_some());
    assert_eq!(known.map(|holder| &*holder.owner).collect::<Vec<_>>(), [format!("{}:3", id(1))]);
});

test_on!(inspect_counts_waiters_not_named_in_directory_entries, RedisServer::start_default(), |server| {
    let client = LockClient::connect(server.url()).unwrap();
    // 16 clients with 312 waiting readers each, among many keys of other programs.
    let script = "for n = 1, 16 do local id = string.format('8a3f0e0e-0000-8000-8000-%012x', n) local uses = {} \
                  for at = 1, 64 do uses[at] = 'lock=rw\\nowner=' .. at .. '\\nwaits=true\\nsince_ms=1\\n' end \
                  uses[64] = uses[64] .. 'more=248\\n' \
                  redis.call('set', 'leasehold_client:' .. id, 'host=ada\\npid=7\\nlease_ms=600000\\n' .. \
                  table.concat(uses), 'PX', 600000) end \
                  for n = 1, 40000 do redis.call('set', 'data:' .. n, 'x') end";
    run(&server, &["EVAL", script, "0"]);
    let writer = client.get_read_write_lock("rw").write().acquire().unwrap();
    let mut admin = server.admin();
    let mut listens = admin.as_pubsub();
    listens.subscribe("redisson_rwlock:{rw}").unwrap();
    let seen = client.inspect("rw").unwrap();
    assert_eq!((seen.waiting, seen.waiters.len(), seen.waiting_at_least), (16 * 312, 100, false), "{seen}");
    assert!(seen.to_string().ends_with("and 4892 more"), "{seen}");
    drop(listens);
    writer.unlock().unwrap();
});
