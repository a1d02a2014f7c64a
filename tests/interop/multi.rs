//! Locks that our multi-lock shares with Redisson's multi-lock.

use redis::Commands;

use crate::java;
use crate::scene::{between, keys, listeners, monotonic, own_time_between, rust, scripts_run};
use crate::support::prelude::*;

const LEASE: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(10);
/// The maximum time until a notified waiter acquires, on a busy machine. A poll would come after a second.
const TOLD: Duration = Duration::from_millis(900);

test_on!(multi_locks_exclude_each_other_across_languages, java::set_up(LEASE), |(_alone, server, java)| {
    let mut admin = server.admin();
    let client = rust(&server.url(), LEASE);
    let multi = client.get_multi_lock(["a", "b", "c"].map(|name| client.get_lock(name)));
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
        wait_until("our thread waits", LONG, || {
            let listeners = listeners(&mut admin, &format!("redisson_lock__channel:{{{javas}}}"));
            listeners > 0 && scripts_run(&mut admin) >= before + 2
        });
        let released_at = now();
        let freed = java.ask("t", "multi-unlock", &[group]).wait();
        freed.result.unwrap();
        let (had, ()) = waiter.join();
        let waited = between(freed.begun, had);
        assert!(waited < TOLD + stalled_since(released_at), "{group}: {waited:?}");
    }
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
    wait_until("Java waits", LONG, || listeners(&mut admin, "redisson_lock__channel:{c}") > 0);
    let freed = monotonic();
    guard.unlock().unwrap();
    let had = waiting.wait();
    assert_eq!(had.result.as_deref(), Ok("true"));
    let took = own_time_between(freed, had.ended);
    assert!(took < TOLD, "{took:?}");
    java.get("t", "multi-unlock", &["c,b,a"]);
    wait_until("nothing is left", LONG, || keys(&mut admin).is_empty());
});
