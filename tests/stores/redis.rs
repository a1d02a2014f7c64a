//! Clients of Redis before their server starts, and the script for fenced writes.

use leasehold::fencing;

use crate::support::prelude::*;

test_on!(a_lazy_client_can_start_before_its_server, RedisServer::start_default(), |mut server| {
    server.kill();
    let quick = LockClient::builder().url(server.url()).retry_timeout(Duration::ZERO);
    let client = quick.connect_lazily().build().unwrap();
    let lock = client.get_lock("early");
    for error in [
        lock.lock().unwrap_err(),
        lock.try_lock_for(Duration::from_millis(10)).map(drop).unwrap_err(),
        lock.is_locked().map(drop).unwrap_err(),
        client.ping().map(drop).unwrap_err(),
        client.get_semaphore("early").acquire(1).map(drop).unwrap_err(),
        client.get_multi_lock([&lock]).lock().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.is_retryable() && !error.outcome_unknown(), "{error}");
    }
    server.restart();
    let guard = lock.acquire().unwrap();
    let other = LockClient::connect(server.url()).unwrap();
    assert!(!other.get_lock("early").try_lock().unwrap());
    guard.unlock().unwrap();
    assert_eq!(client.ping().unwrap().store, "redis");
});

/// All threads that find the server down share one attempt to connect.
#[test]
fn threads_that_find_no_server_fail_together() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let wait = Duration::from_millis(300);
    let client = LockClient::builder().url(&url).connect_timeout(wait).connect_lazily().build().unwrap();
    let begun = now();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert!(client.get_lock("silent").lock().is_err()));
        }
    });
    let took = begun.elapsed();
    assert!(took < wait * 6 + stalled_since(begun), "20 threads took {took:?}");
}

test_on!(redis_refuses_a_write_with_an_older_token, RedisServer::start_default(), |server| {
    let lock = LockClient::connect(server.url()).unwrap().get_fenced_lock("stock");
    let fence = || lock.acquire().unwrap().fencing_token().unwrap().get().to_string();
    let (older, newer) = (fence(), fence());
    let mut admin = server.admin();
    let script = fencing::REDIS_SET.to_owned();
    let mut write = |token: &str, value: &str| {
        let eval = &mut redis::cmd("EVAL");
        let eval = eval.arg(&script).arg(2).arg("{stock}").arg("{stock}:fence").arg(token).arg(value);
        let is_written: i32 = eval.query(&mut admin).unwrap();
        let there: String = redis::cmd("GET").arg("{stock}").query(&mut admin).unwrap();
        assert_eq!(there == value, is_written == 1, "{there}");
        is_written == 1
    };
    assert!(write(&older, "a"));
    assert!(write(&older, "b"), "the holder cannot write again");
    assert!(write(&newer, "c"));
    assert!(!write(&older, "d"), "a late write was accepted");
    assert!(write(&newer, "e"));
    // As texts, "9" would be greater than the longer tokens; the script must compare numbers.
    assert!(!write("9", "f"));
    assert!(write(&format!("1{newer}"), "g"));
    assert!(!write(&newer, "h"));
});
