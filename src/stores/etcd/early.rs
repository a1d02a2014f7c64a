//! Holds whose etcd lease the server revokes too early, and the notification of their holders.
//!
//! A leader with a stalled disk can revoke leases that a newer leader keeps alive (etcd issues 12528 and
//! 15247). On servers with this defect, the client watches the keys of its own holds once they are older than
//! [`SETTLED`].

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::seam::Bound;
use crate::shrink::CrowdMap;
use crate::stores::etcd::message::Front;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::Moment;

/// The age from which holds are watched. Most holds are released earlier; the release would notice a loss.
const SETTLED: Duration = Duration::from_secs(1);

/// Whether servers of this version have the defect; an unknown version counts as having it.
pub(super) fn may_revoke(version: Option<&str>) -> bool {
    let numbers = version.unwrap_or_default().split(['.', '-', '+']).map_while(|number| number.parse().ok());
    match numbers.take(3).collect::<Vec<u32>>()[..] {
        [3, 5, patch] => patch < 13,
        [major, minor, patch] => (major, minor, patch) < (3, 4, 31),
        _ => true,
    }
}

pub(super) fn warning(version: &str) -> String {
    format!(
        "etcd {version} can revoke leases of living holders when a leader's disk stands still (etcd issues 12528, 15247); \
         mended in 3.4.31 and 3.5.13"
    )
}

#[derive(Debug, Default)]
pub(super) struct End(AtomicBool);

impl Bound for End {
    fn until(&self) -> Moment {
        if self.is_gone() { Moment::from_nanos(0) } else { Moment::NEVER }
    }

    fn is_gone(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Default)]
pub(super) struct Holds {
    pub(super) are_watched: bool,
    entries: CrowdMap<String, EarlyEntry>,
}

struct EarlyEntry {
    created: i64,
    settles: Moment,
    end: Weak<End>,
    /// Keeps `end` alive until the hold takes it (`Holds::end`). After that only the hold keeps it alive.
    made: Option<Arc<End>>,
}

impl EarlyEntry {
    fn is_over(&self) -> bool {
        self.end.strong_count() == 0
    }
}

impl Holds {
    pub(super) fn add(&mut self, key: String, created: i64, now: Moment) {
        let made = Arc::default();
        let entry =
            EarlyEntry { created, settles: now.plus(SETTLED), end: Arc::downgrade(&made), made: Some(made) };
        self.entries.insert(key, entry);
    }

    /// Forgets holds that have ended without a release, for example at the end of an explicit lease.
    pub(super) fn sweep(&mut self) {
        self.entries.retain(|_, entry| !entry.is_over());
    }

    /// The flag that tells the hold with this key of its early end. `None`: taken before, or not watched.
    pub(super) fn end(&mut self, key: &str) -> Option<Arc<End>> {
        self.entries.get_mut(key)?.made.take()
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Ends the hold of `key`, if `is_it` accepts the revision of the key's creation. `false` if none ended.
    pub(super) fn lose(&mut self, key: &str, is_it: impl FnOnce(i64) -> bool) -> bool {
        let end = self.entries.get(key).filter(|entry| is_it(entry.created)).map(|entry| entry.end.clone());
        let Some(end) = end else { return false };
        self.entries.remove(key);
        end.upgrade().is_some_and(|end| !end.0.swap(true, Ordering::AcqRel))
    }

    pub(super) fn settled(&self, now: Moment) -> impl Iterator<Item = (&str, i64)> {
        let settled = self.entries.iter().filter(move |(_, entry)| entry.settles <= now && !entry.is_over());
        settled.map(|(key, entry)| (key.as_str(), entry.created))
    }

    pub(super) fn next_settles(&self, now: Moment) -> Option<Moment> {
        let coming = self.entries.values().filter(|entry| entry.settles > now && !entry.is_over());
        coming.map(|entry| entry.settles).min()
    }

    pub(super) fn fronts(&self, now: Moment) -> impl Iterator<Item = Front> {
        self.settled(now).map(|(key, created)| Front { key: key.to_owned(), created })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Moment {
        Moment::from_nanos(1_000_000_000_000)
    }

    #[test]
    fn etcd_versions_that_may_revoke_leases_early_are_recognised() {
        for old in ["3.4.0", "3.4.23", "3.4.30", "3.5.0", "3.5.12", "3.3.27", "2.3.8"] {
            assert!(may_revoke(Some(old)), "{old}");
        }
        for mended in ["3.4.31", "3.4.40", "3.5.13", "3.5.21", "3.6.0", "3.6.0-rc.1", "4.0.0", "3.10.2+x"] {
            assert!(!may_revoke(Some(mended)), "{mended}");
        }
        for unknown in [None, Some(""), Some("not provided"), Some("3.5"), Some("3.x.1")] {
            assert!(may_revoke(unknown), "{unknown:?}");
        }
    }

    #[test]
    fn only_deletion_of_its_own_key_ends_a_hold() {
        let mut holds = Holds::default();
        holds.add("key".to_owned(), 7, now());
        let end = holds.end("key").unwrap();
        // This deletion is older than the hold's key, so it deleted an earlier key of the same name.
        assert!(!holds.lose("key", |created| created < 6) && !end.is_gone());
        assert!(!holds.lose("other", |_| true) && !end.is_gone());
        assert!(holds.lose("key", |created| created < 9) && end.is_gone());
        assert!(end.until() < now());
        assert!(!holds.lose("key", |_| true), "the loss is reported once");
    }

    #[test]
    fn a_hold_that_its_client_releases_is_not_lost() {
        let mut holds = Holds::default();
        holds.add("key".to_owned(), 7, now());
        let end = holds.end("key").unwrap();
        holds.remove("key");
        assert!(!holds.lose("key", |_| true) && !end.is_gone());
        assert_eq!(end.until(), Moment::NEVER);
    }

    #[test]
    fn only_holds_older_than_a_second_are_watched_for_revocation() {
        let mut holds = Holds::default();
        holds.add("lasts".to_owned(), 1, now());
        let _lasts = holds.end("lasts").unwrap();
        for short in 0..100_000 {
            holds.add(format!("{short}"), short, now());
            drop(holds.end(&format!("{short}")));
        }
        holds.sweep();
        assert!(holds.entries.len() == 1 && holds.entries.capacity() < 100, "{}", holds.entries.capacity());
        assert_eq!(holds.settled(now()).count(), 0);
        assert_eq!(holds.next_settles(now()), Some(now().plus(SETTLED)));
        let later = now().plus(SETTLED);
        assert_eq!(holds.settled(later).collect::<Vec<_>>(), [("lasts", 1)]);
        assert_eq!(holds.next_settles(later), None);
    }
}
