//! Names that Redisson derives from a lock's name.

/// Where a lock's waiters listen.
pub(super) fn channel(lock: &str) -> String {
    prefixed("redisson_lock__channel", lock)
}

/// The counter of a lock's fences.
pub(super) fn fence_counter(lock: &str) -> String {
    prefixed("redisson_lock_token", lock)
}

/// In a cluster the derived key must share the lock's slot: the name in braces, unless it brings braces of its own.
/// Redisson's rule is "contains a brace", not "has a valid hash tag".
fn prefixed(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
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
