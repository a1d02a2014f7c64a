//! Support for tests of cached locks (`lock_builder(name).cached()`). The parameter `is_free` asks the store
//! whether the lock is free.

use std::time::{Duration, Instant};

use leasehold::{LockClient, RedisLock};

use super::{LONG, SLACK, eventually, ms, now, stalled_since};

/// A client releases a cached lock that is unused for this time, and checks for waiters at least this often.
pub const UNUSED: Duration = ms(500);

#[track_caller]
pub fn cycle(lock: &RedisLock) {
    lock.lock().unwrap();
    lock.unlock().unwrap();
}

/// Uses the lock until its client caches it. The first use is not enough for that.
#[track_caller]
pub fn use_until_cached(lock: &RedisLock, mut is_free: impl FnMut() -> bool) {
    let is_cached = || {
        cycle(lock);
        !is_free()
    };
    assert!(eventually(LONG, is_cached), "the lock was never cached");
}

#[track_caller]
pub fn cached(client: &LockClient, other: &LockClient, name: &str) -> RedisLock {
    let lock = client.lock_builder(name).cached().build();
    let theirs = other.get_lock(name);
    // A try would recall the lock on ZooKeeper, so this only asks whether the lock is held.
    use_until_cached(&lock, || !theirs.is_locked().unwrap());
    lock
}

/// Asserts that the lock is still cached after `release`. Asserts nothing after a stall of the machine for
/// `UNUSED`, since the client may then have released the unused lock.
#[track_caller]
pub fn assert_cached_after(release: impl FnOnce(), is_free: impl FnOnce() -> bool) {
    let used = now();
    release();
    assert!(!is_free() || used.elapsed() >= UNUSED, "the lock was released too early");
}

#[track_caller]
pub fn is_free_within(since: Instant, limit: Duration, is_free: impl FnMut() -> bool) {
    assert!(eventually(LONG, is_free), "the lock is never released");
    let took = since.elapsed();
    assert!(took <= limit + SLACK + stalled_since(since), "the lock was released after {took:?}");
}
