//! Locks that their client caches (`lock_builder(name).cached()`), observed by `is_free`.

use std::time::{Duration, Instant};

use leasehold::{LockClient, RedisLock};

use super::{LONG, SLACK, eventually, ms, now, stalled_since};

/// An unused lock is released after this time, which is also the longest time between two checks.
pub const UNUSED: Duration = ms(500);

#[track_caller]
pub fn cycle(lock: &RedisLock) {
    lock.lock().unwrap();
    lock.unlock().unwrap();
}

/// Uses the lock until its client caches it: the first use, and a disturbed one, are not cached.
#[track_caller]
pub fn use_until_cached(lock: &RedisLock, mut is_free: impl FnMut() -> bool) {
    let is_cached = || {
        cycle(lock);
        !is_free()
    };
    assert!(eventually(LONG, is_cached), "it is released each time");
}

#[track_caller]
pub fn cached(client: &LockClient, other: &LockClient, name: &str) -> RedisLock {
    let lock = client.lock_builder(name).cached().build();
    let theirs = other.get_lock(name);
    // One request: between the two of `is_locked` on ZooKeeper an unused hold may end.
    use_until_cached(&lock, || theirs.try_lock().unwrap() && theirs.unlock().is_ok());
    lock
}

/// On a machine that stalls for half a second, the client releases an unused lock.
#[track_caller]
pub fn assert_cached_after(release: impl FnOnce(), is_free: impl FnOnce() -> bool) {
    let used = now();
    release();
    assert!(!is_free() || used.elapsed() >= UNUSED, "it was released");
}

#[track_caller]
pub fn is_free_within(since: Instant, limit: Duration, is_free: impl FnMut() -> bool) {
    assert!(eventually(LONG, is_free), "it is never released");
    let took = since.elapsed();
    assert!(took <= limit + SLACK + stalled_since(since), "it was released after {took:?}");
}
