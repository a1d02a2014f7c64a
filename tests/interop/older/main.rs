//! One process of an older version: takes and releases a lock for a while, and prints when it had it.
//!
//! Arguments: the server's URL, the lock's name, for how many milliseconds, and how long to pause between two turns at
//! most. Prints `begun-ended,begun-ended,…` in nanoseconds of the machine's monotonic clock.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use leasehold::LockClient;

fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, name, lasts_ms, pause_ms] = arguments.as_slice() else { panic!("{arguments:?}?") };
    let (lasts_ms, pause_ms): (u64, u64) = (lasts_ms.parse().unwrap(), pause_ms.parse().unwrap());
    let client = LockClient::builder().url(url).lease(Duration::from_secs(60)).build().unwrap();
    let lock = client.lock(name);
    let end = monotonic() + lasts_ms * 1_000_000;
    let mut had = Vec::new();
    while monotonic() < end {
        let pause = RandomState::new().hash_one(0_u8) % (pause_ms + 1);
        std::thread::sleep(Duration::from_millis(pause));
        let guard = lock.acquire().unwrap();
        let begun = monotonic();
        std::thread::sleep(Duration::from_millis(1));
        let ended = monotonic();
        guard.unlock().unwrap();
        had.push(format!("{begun}-{ended}"));
    }
    client.shutdown().unwrap();
    println!("{}", had.join(","));
}
