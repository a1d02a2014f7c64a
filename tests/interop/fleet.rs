//! Two JVMs and two Rust processes, of four threads each, increment a number in Redis that only the lock
//! protects.

use redis::Commands;

use crate::java;
use crate::scene::{alone, ends_well, rust};
use crate::support::prelude::*;
use crate::support::{reexecuted, test_name};

const LEASE: Duration = Duration::from_secs(30);
const THREADS: usize = 4;
const TIMES: usize = 1_250;
/// The environment variable that makes this program a worker. Its value is the server's URL.
const WORKER: &str = "LEASEHOLD_INTEROP_WORKER";

#[test]
fn java_and_rust_processes_incrementing_under_locks_lose_no_increment() {
    if let Ok(url) = std::env::var(WORKER) {
        return count_up(&url);
    }
    let _alone = alone();
    let Some(server) = RedisServer::start_default() else { return };
    let Some(first) = java::connect(&server.url(), LEASE) else { return };
    let Some(second) = java::connect(&server.url(), LEASE) else { return };
    let mut admin = server.admin();
    let _: () = admin.set("counter", 0).unwrap();
    let begun = now();
    let work = ["work", "counter", &THREADS.to_string(), &TIMES.to_string()];
    let jvms = [&first, &second].map(|java| java.ask("count", "count-up", &work));
    [(); 2].map(|()| reexecuted(&test_name(), &[(WORKER, &server.url())])).into_iter().for_each(ends_well);
    for jvm in jvms {
        assert_eq!(jvm.wait_for(Duration::from_secs(120)).expect_ok(), (THREADS * TIMES).to_string());
    }
    eprintln!("4 processes, 16 threads: 20000 increments in {:?}", begun.elapsed());
    assert_eq!(admin.get("counter"), Ok(20_000));
}

fn count_up(url: &str) {
    let client = rust(url, LEASE);
    let server = redis::Client::open(url).unwrap();
    let client = &client;
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let server = &server;
            scope.spawn(move || {
                let mut connection = server.get_connection().unwrap();
                let is_cached = number % 2 == 0;
                let lock = if is_cached {
                    client.lock_builder("work").cached().build()
                } else {
                    client.get_lock("work")
                };
                for _ in 0..TIMES {
                    let guard = lock.acquire().unwrap();
                    let so_far: u64 = connection.get("counter").unwrap();
                    let _: () = connection.set("counter", so_far + 1).unwrap();
                    if is_cached {
                        guard.unlock().unwrap();
                    } else {
                        drop(guard);
                    }
                }
            });
        }
    });
    client.shutdown().unwrap();
}
