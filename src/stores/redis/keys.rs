//! The keys and channels that belong to a lock's name on Redis. `ident/derived.rs` lists them.

use std::fmt::Display;

use crate::ident::ClientId;
pub(super) use crate::ident::derived::{Part, in_braces};

pub(super) fn before(part: Part, name: &str) -> String {
    in_parts(part, name).concat()
}

/// The parts of a key or channel, which [`Command::arg`](super::script::Command::arg) joins without a copy.
pub(super) fn in_parts(part: Part, name: &str) -> [&str; 5] {
    let text = part.text();
    let colon = if text.ends_with(':') { "" } else { ":" };
    let [open, name, close] = in_braces(name);
    [text, colon, open, name, close]
}

pub(super) fn channel(lock: &str) -> String {
    before(Part::LockChannel, lock)
}

pub(super) fn turn_channel(lock: &str, client: ClientId) -> String {
    format!("{}:{client}", before(Part::LockWake, lock))
}

pub(super) fn fence_counter(lock: &str) -> String {
    before(Part::FenceCounter, lock)
}

pub(super) fn rw_channel(lock: &str) -> String {
    before(Part::RwChannel, lock)
}

/// The prefix of the keys that mark the levels of an owner's read hold. The level follows: 1, 2, …
pub(super) fn rw_markers(lock: &str, owner: impl Display) -> String {
    format!("{}:{owner}{}", in_braces(lock).concat(), Part::RwMarker.text())
}

pub(super) fn permits_channel(semaphore: &str) -> String {
    before(Part::PermitsChannel, semaphore)
}

pub(super) fn permits_out(semaphore: &str) -> String {
    let [open, name, close] = in_braces(semaphore);
    [open, name, close, Part::PermitsOut.text()].concat()
}

/// The channel has the latch's name in braces even if the name contains braces, as in Redisson.
pub(super) fn latch_channel(latch: &str) -> String {
    [Part::LatchChannel.text(), "{", latch, "}"].concat()
}

/// The key in which the server records a request that must take effect only once.
pub(super) fn request_record(name: &str, id: &str) -> String {
    [&before(Part::Request, name), ":", id].concat()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ident::LockName;

    fn is_refused(key: &str) -> bool {
        LockName::new(&Arc::from(key), key.to_owned()).is_err()
    }

    #[test]
    fn keys_and_channels_are_named_as_in_redisson() {
        assert_eq!(channel("lk"), "redisson_lock__channel:{lk}");
        assert_eq!(fence_counter("lk"), "redisson_lock_token:{lk}");
        assert_eq!(channel("a{b}c"), "redisson_lock__channel:a{b}c");
        assert_eq!(fence_counter("a{b}c"), "redisson_lock_token:a{b}c");
        assert_eq!(permits_out("lk"), "{lk}:timeout");
        assert_eq!(rw_markers("a{b}c", "o:1"), "a{b}c:o:1:rwlock_timeout:");
        assert_eq!(latch_channel("a{b}c"), "redisson_countdownlatch__channel__{a{b}c}");
    }

    #[test]
    fn a_name_with_an_opening_brace_gets_no_hash_tag() {
        assert_eq!(channel("a{b"), "redisson_lock__channel:a{b");
        assert_eq!(channel("a}b"), "redisson_lock__channel:{a}b}");
        assert_eq!(channel("{}"), "redisson_lock__channel:{}");
    }

    #[test]
    fn keys_derived_from_a_name_are_refused_as_names() {
        for name in ["x", "{x}", "a{b}c", "a{b", "a}b", "{}", "x:timeout"] {
            let mut made: Vec<String> = Part::ALL.iter().map(|part| before(*part, name)).collect();
            made.retain(|key| !key.starts_with(':') && !key.starts_with(Part::RingMark.text()));
            assert!(made.len() + 3 == Part::ALL.len(), "three parts do not precede a name");
            made.extend([
                channel(name),
                fence_counter(name),
                rw_channel(name),
                rw_markers(name, "owner:1") + "1",
                rw_markers(name, "owner:1") + "20",
                permits_channel(name),
                permits_out(name),
                latch_channel(name),
                request_record(name, "owner:1"),
                Part::RingMark.text().to_owned(),
            ]);
            for key in made {
                assert!(is_refused(&key), "{key}");
                let again = made_of(&key);
                assert!(again.iter().all(|key| is_refused(key)), "{again:?}");
            }
        }
    }

    /// Names derived from `key`, which users must not use as lock names.
    fn made_of(key: &str) -> [String; 2] {
        [permits_out(key), rw_markers(key, "owner:1") + "1"]
    }

    #[test]
    fn names_that_only_resemble_reserved_ones_are_accepted() {
        let names = [
            "job:timeout",
            "{job}:timeouts",
            "timeout",
            ":timeout",
            "{job}",
            "a:rwlock_timeout:1",
            "{a}:rwlock_timeout:one",
            "{a}:rwlock_timeout:",
            "redisson_rwlock",
            "redisson_sc",
            "redisson_lock_tokens",
            "leasehold_ring_epochs",
            // Redisson's name for the lock of a map's entry.
            "{map}:t6rZwibGo2uy1OSmNVe8pg:lock",
        ];
        for name in names {
            assert!(!is_refused(name), "{name}");
        }
    }

    #[test]
    fn queue_scripts_and_client_agree_on_key_names() {
        let scripts = [
            (
                include_str!("lua/wait_queue.lua"),
                [Part::LockQueue, Part::LockNext, Part::LockWake].as_slice(),
            ),
            (include_str!("lua/standby.lua"), &[Part::LockQueue, Part::LockWake]),
            (include_str!("lua/reserved.lua"), &[Part::LockNext]),
            (include_str!("lua/acquire.lua"), &[Part::LockNext]),
            (include_str!("lua/acquire_rest.lua"), &[Part::LockQueue, Part::LockNext]),
            (include_str!("lua/release.lua"), &[Part::LockQueue]),
            (include_str!("lua/leave_wait_queue.lua"), &[Part::LockQueue, Part::LockNext]),
            (include_str!("lua/show.lua"), &[Part::LockQueue]),
            (include_str!("lua/stand.lua"), &[Part::LockQueue]),
            (include_str!("lua/readers.lua"), &[Part::RwReaders]),
            (include_str!("lua/rw_acquire.lua"), &[Part::LockQueue, Part::LockNext, Part::RwReaders]),
            (include_str!("lua/rw_release.lua"), &[Part::LockQueue, Part::RwReaders]),
            (include_str!("lua/rw_leave.lua"), &[Part::LockQueue, Part::LockNext, Part::RwReaders]),
            (include_str!("lua/permits_queue.lua"), &[Part::LockQueue, Part::LockNext, Part::LockWake]),
            (include_str!("lua/permits_leave.lua"), &[Part::LockQueue, Part::LockNext]),
            (include_str!("lua/permits_stand.lua"), &[Part::LockQueue, Part::LockNext]),
        ];
        for (script, parts) in scripts {
            for part in parts {
                assert!(script.contains(&format!("'{}'", part.text())), "{part:?}");
            }
        }
    }

    #[test]
    fn scripts_and_client_agree_on_the_timeout_key_of_readers() {
        for script in [include_str!("lua/rw_release.lua"), include_str!("lua/show.lua")] {
            assert!(script.contains(&format!("'{}'", Part::RwMarker.text())));
        }
    }
}
