//! Names that Redisson derives from a lock's name.

use std::borrow::Cow;

/// Where a lock's waiters listen.
pub(super) fn channel(lock: &str) -> String {
    prefixed("redisson_lock__channel", lock)
}

/// The counter of a lock's fences.
pub(super) fn fence_counter(lock: &str) -> String {
    prefixed("redisson_lock_token", lock)
}

/// The owners that wait for a fair lock, in order.
pub(super) fn fair_queue(lock: &str) -> String {
    prefixed("redisson_lock_queue", lock)
}

/// Until when each of them counts as alive.
pub(super) fn fair_timeouts(lock: &str) -> String {
    prefixed("redisson_lock_timeout", lock)
}

/// Until when those of them that are ours do: a key that Redisson does not have.
pub(super) fn fair_heartbeats(lock: &str) -> String {
    prefixed("leasehold_lock_heartbeat", lock)
}

/// Where those who wait for either half of a read-write lock listen.
pub(super) fn rw_channel(lock: &str) -> String {
    prefixed("redisson_rwlock", lock)
}

/// The writers that wait for a read-write lock and are to come before readers: a key that Redisson does not have.
pub(super) fn rw_waiting(lock: &str) -> String {
    prefixed("leasehold_rwlock_waiting", lock)
}

/// Where those who wait for permits listen.
pub(super) fn permits_channel(semaphore: &str) -> String {
    prefixed("redisson_sc", semaphore)
}

/// The permits of an expirable semaphore that are out.
pub(super) fn permits_out(semaphore: &str) -> String {
    format!("{}:timeout", tagged(semaphore))
}

/// Where those who wait for a latch listen. Always in braces, whatever the name has: Redisson's odd one out.
pub(super) fn latch_channel(latch: &str) -> String {
    format!("redisson_countdownlatch__channel__{{{latch}}}")
}

/// What became of a request that must not be carried out twice: a key that Redisson does not have.
pub(super) fn request(name: &str, id: &str) -> String {
    format!("{}:{id}", prefixed("leasehold_request", name))
}

/// What a condition consists of: keys that Redisson does not have.
pub(super) fn condition(part: &str, condition: &str) -> String {
    prefixed(part, condition)
}

/// In a cluster the derived key must share the lock's slot: the name in braces, unless it brings braces of its own.
/// Redisson's rule is "contains a brace", not "has a valid hash tag".
fn prefixed(prefix: &str, name: &str) -> String {
    [prefix, ":", &tagged(name)].concat()
}

/// The name as a part of derived keys.
pub(super) fn tagged(name: &str) -> Cow<'_, str> {
    if name.contains('{') { Cow::Borrowed(name) } else { Cow::Owned(["{", name, "}"].concat()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_derived_as_redisson_does() {
        assert_eq!(channel("lk"), "redisson_lock__channel:{lk}");
        assert_eq!(fence_counter("lk"), "redisson_lock_token:{lk}");
        assert_eq!(channel("a{b}c"), "redisson_lock__channel:a{b}c");
        assert_eq!(fence_counter("a{b}c"), "redisson_lock_token:a{b}c");
    }

    #[test]
    fn any_opening_brace_counts_and_a_closing_one_does_not() {
        assert_eq!(channel("a{b"), "redisson_lock__channel:a{b");
        assert_eq!(channel("a}b"), "redisson_lock__channel:{a}b}");
        assert_eq!(channel("{}"), "redisson_lock__channel:{}");
    }
}
