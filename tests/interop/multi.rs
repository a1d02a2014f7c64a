//! Groups of locks shared with Redisson's multi-lock, and that lock's effects on ours.

use redis::Commands;

use crate::java;
use crate::scene::{between, keys, monotonic, own_time_between, rust, scripts_run};
use crate::support::prelude::*;

const LEASE: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(10);
/// A message on a busy machine; the safety poll comes after a second.
const TOLD: Duration = Duration::from_millis(900);

fn locks(client: &LockClient, names: &[&str]) -> Vec<RedisLock> {
    names.iter().map(|name| client.get_lock(name)).collect()
}

#[test]
fn multi_locks_exclude_each_other_across_languages() {
    let Some((_alone, server, java)) = java::set_up(LEASE) else { return };
    let mut admin = server.admin();
    let client = rust(&server.url(), LEASE);
    let multi = client.get_multi_lock(locks(&client, &["a", "b", "c"]));
    // Java's groups, in another order, with some locks in common.
    for group in ["c,b,a", "b,other", "c"] {
        java.get("t", "multi-lock", &[group]);
        assert!(!multi.try_lock().unwrap(), "{group}");
        assert!(!multi.try_lock_for(Duration::from_millis(50)).unwrap(), "{group}");
        for name in ["a", "b", "c"] {
            let is_javas = group.split(',').any(|member| member == name);
            let by_java = client.get_lock(name).is_locked().unwrap();
            assert_eq!(by_java, is_javas, "{group}: {name}");
        }
        let before = scripts_run(&mut admin);
        let waiter = call_on(multi.clone(), move |multi| {
            let guard = multi.acquire().unwrap();
            (monotonic(), guard.unlock().unwrap())
        });
        let javas = group.split(',').min().unwrap();
        wait_until("it waits", LONG, || {
            let channel = format!("redisson_lock__channel:{{{javas}}}");
            let (_, listeners): (String, u64) =
                redis::cmd("PUBSUB").arg("NUMSUB").arg(&channel).query(&mut admin).unwrap();
            listeners > 0 && scripts_run(&mut admin) >= before + 2
        });
        let released_at = now();
        let freed = java.ask("t", "multi-unlock", &[group]).wait();
        freed.result.unwrap();
        let (had, ()) = waiter.join();
        let waited = between(freed.begun, had);
        assert!(waited < TOLD + stalled_since(released_at), "{group}: {waited:?}");
    }
    // While we hold the group, Java gets none of its locks, whether it requests one or all.
    let guard = multi.acquire().unwrap();
    for group in ["a,b,c", "c,a", "b"] {
        assert!(!java.is("t", "multi-try", &[group]), "{group}");
        assert!(!java.is("t", "multi-try-for", &[group, "300"]), "{group}");
    }
    for name in ["a", "b", "c"] {
        assert!(!java.is("t", "try", &[name]), "{name}");
        let fields: Vec<(String, String)> = admin.hgetall(name).unwrap();
        assert_eq!(fields.len(), 1);
        assert!(fields[0].0.starts_with(&client.id().to_string()) && fields[0].1 == "1", "{fields:?}");
    }
    let waiting = java.ask("t", "multi-try-for", &["c,b,a", "8000"]);
    wait_until("Java waits", LONG, || {
        let channel = "redisson_lock__channel:{c}";
        let (_, listeners): (String, u64) =
            redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query(&mut admin).unwrap();
        listeners > 0
    });
    let freed = monotonic();
    guard.unlock().unwrap();
    let had = waiting.wait();
    assert_eq!(had.result.as_deref(), Ok("true"));
    let took = own_time_between(freed, had.ended);
    assert!(took < TOLD, "{took:?}");
    java.get("t", "multi-unlock", &["c,b,a"]);
    wait_until("nothing is left", LONG, || keys(&mut admin).is_empty());
}

/// Ours are given in opposite orders and taken in one. Java takes locks as given, and two opposite groups of
/// its own delay each other again and again, so its group is in the order of names.
#[test]
fn opposite_multi_locks_of_both_languages_finish() {
    const EACH: u32 = 12;
    let Some((_alone, server, java)) = java::set_up(LEASE) else { return };
    let java = Arc::new(java);
    let (to_tell, told) = leasehold::crossbeam_channel::unbounded();
    let mut tasks = Vec::new();
    for thread in ["one", "another"] {
        let (java, to_tell) = (Arc::clone(&java), to_tell.clone());
        tasks.push(call(move || {
            for _ in 0..EACH {
                let took = java.ask(thread, "multi-lock", &["one,two"]).wait_for(Duration::from_secs(25));
                took.result.unwrap();
                let ended = java.ask(thread, "multi-unlock", &["one,two"]).wait();
                ended.result.unwrap();
                to_tell.send((took.ended, ended.begun)).unwrap();
            }
        }));
    }
    for order in [["one", "two"], ["two", "one"]] {
        let to_tell = to_tell.clone();
        let client = rust(&server.url(), LEASE);
        tasks.push(call(move || {
            let multi = client.get_multi_lock(locks(&client, &order));
            for _ in 0..EACH {
                let guard = multi.try_acquire_for(Duration::from_secs(25)).unwrap().expect("in time");
                let from = monotonic();
                guard.check().unwrap();
                to_tell.send((from, monotonic())).unwrap();
                guard.unlock().unwrap();
            }
        }));
    }
    for task in tasks {
        task.join();
    }
    let mut held: Vec<_> = told.try_iter().collect();
    held.sort_unstable();
    assert_eq!(held.len(), 4 * EACH as usize);
    for pair in held.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two at once: {pair:?}");
    }
}

/// Java's last step sets the end of all keys of a fenced lock, its counter included, and after a second round
/// in other units. Ours does neither, and copes with what Java did.
#[test]
fn javas_multi_lock_leases_do_not_confuse_ours() {
    let Some((_alone, server, java)) = java::set_up(LEASE) else { return };
    let mut admin = server.admin();
    let client = rust(&server.url(), LEASE);
    let counter = "redisson_lock_token:{f}";
    let ours = client.get_multi_lock([RedisLock::from(client.get_fenced_lock("f")), client.get_lock("m")]);
    let first = {
        let guard = ours.acquire_with(&leased(Duration::from_millis(700)).wait(LONG)).unwrap().unwrap();
        assert_eq!(admin.pttl::<_, i64>(counter).unwrap(), -1, "the counter has no end");
        guard.fencing_token().unwrap()
    };
    assert!(java.is("t", "multi-try-for-lease", &["fenced:f,m", "1000", "600"]));
    assert!(!ours.try_lock().unwrap());
    let javas: u64 = admin.get(counter).unwrap();
    assert!(javas > first.get());
    // Java's lease ends the counter too; our next token is larger all the same.
    let guard = ours.try_acquire_for(LONG).unwrap().expect("Java's lease is over");
    assert!(guard.fencing_token().unwrap().get() > javas, "{:?} after {javas}", guard.fencing_token());
    guard.unlock().unwrap();
    // After a first vain wait: our lease ends when it should.
    let held = client.get_lock("m").acquire_owned().unwrap();
    let waiter = call_on(rust(&server.url(), LEASE), move |client| {
        let multi = client.get_multi_lock([client.get_lock("f"), client.get_lock("m")]);
        multi.lock_with_lease(Duration::from_secs(2)).unwrap();
        multi.remaining_lease().unwrap()
    });
    wait_until("it waits", LONG, || client.get_lock("f").is_locked().unwrap());
    held.unlock().unwrap();
    let left = waiter.join().unwrap();
    assert!(left <= Duration::from_secs(2) && left > Duration::from_secs(1), "{left:?}");
}
