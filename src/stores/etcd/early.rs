//! Leases that end before their time: the servers that allow it, and how their holders are notified.
//!
//! A leader whose disk stands still can revoke leases that a newer leader keeps alive (etcd issues 12528 and
//! 15247). So on servers that may do so the keys of this client's holds are watched as well, once they have
//! been held for a while.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::seam::Bound;
use crate::shrink::CrowdMap;
use crate::stores::etcd::message::Front;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::time::Moment;

/// A hold that is over sooner is not worth a watch: its release reports as much.
const SETTLED: Duration = Duration::from_secs(1);

/// Whether a server of this version may revoke a lease that is kept alive; one that does not say may be of
/// any.
pub(super) fn may_revoke(version: Option<&str>) -> bool {
    let numbers = version.unwrap_or_default().split(['.', '-', '+']).map_while(|number| number.parse().ok());
    match numbers.take(3).collect::<Vec<u32>>()[..] {
        [3, 5, patch] => patch < 13,
        [major, minor, patch] => (major, minor, patch) < (3, 4, 31),
        _ => true,
    }
}

/// The warning about such a server.
pub(super) fn warning(version: &str) -> String {
    format!(
        "etcd {version} can revoke leases of living holders when a leader's disk stands still (etcd issues 12528, 15247); \
         mended in 3.4.31 and 3.5.13"
    )
}

/// Ends a hold whose key has gone.
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

/// The keys of a client's holds.
#[derive(Default)]
pub(super) struct Holds {
    entries: CrowdMap<String, EarlyEntry>,
}

struct EarlyEntry {
    created: i64,
    settles: Moment,
    end: Weak<End>,
    /// Until the hold takes it.
    made: Option<Arc<End>>,
}

impl EarlyEntry {
    fn is_over(&self) -> bool {
        self.end.strong_count() == 0
    }
}

impl Holds {
    /// A lock was granted by this key.
    pub(super) fn add(&mut self, key: String, created: i64, now: Moment) {
        let made = Arc::default();
        let entry =
            EarlyEntry { created, settles: now.plus(SETTLED), end: Arc::downgrade(&made), made: Some(made) };
        self.entries.insert(key, entry);
    }

    /// Forgets those whose hold is over: of leases that were left to run out nobody says so.
    pub(super) fn sweep(&mut self) {
        self.entries.retain(|_, entry| !entry.is_over());
    }

    /// The handle that ends the hold granted by this key, once.
    pub(super) fn end(&mut self, key: &str) -> Option<Arc<End>> {
        self.entries.get_mut(key)?.made.take()
    }

    /// The key is about to be taken away by this client: that it goes is no news.
    pub(super) fn remove(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Ends the hold with this key if it was `created` when `is_it` says so; whether it did.
    pub(super) fn lose(&mut self, key: &str, is_it: impl FnOnce(i64) -> bool) -> bool {
        let end = self.entries.get(key).filter(|entry| is_it(entry.created)).map(|entry| entry.end.clone());
        let Some(end) = end else { return false };
        self.entries.remove(key);
        end.upgrade().is_some_and(|end| !end.0.swap(true, Ordering::AcqRel))
    }

    /// Those that are to be watched.
    pub(super) fn settled(&self, now: Moment) -> impl Iterator<Item = (&str, i64)> {
        let settled = self.entries.iter().filter(move |(_, entry)| entry.settles <= now && !entry.is_over());
        settled.map(|(key, entry)| (key.as_str(), entry.created))
    }

    /// When the next one is to be.
    pub(super) fn next_settles(&self, now: Moment) -> Option<Moment> {
        let coming = self.entries.values().filter(|entry| entry.settles > now && !entry.is_over());
        coming.map(|entry| entry.settles).min()
    }

    /// Those that are to be watched, as one looks for others.
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
    fn versions_are_told_apart() {
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
    fn only_its_own_keys_end_ends_a_hold() {
        let mut holds = Holds::default();
        holds.add("key".to_owned(), 7, now());
        let end = holds.end("key").unwrap();
        // The end of the key's life before, reported late.
        assert!(!holds.lose("key", |created| created < 6) && !end.is_gone());
        assert!(!holds.lose("other", |_| true) && !end.is_gone());
        assert!(holds.lose("key", |created| created < 9) && end.is_gone());
        assert!(end.until() < now());
        assert!(!holds.lose("key", |_| true), "it is told once");
    }

    #[test]
    fn what_this_client_takes_away_itself_is_no_loss() {
        let mut holds = Holds::default();
        holds.add("key".to_owned(), 7, now());
        let end = holds.end("key").unwrap();
        holds.remove("key");
        assert!(!holds.lose("key", |_| true) && !end.is_gone());
        assert_eq!(end.until(), Moment::NEVER);
    }

    #[test]
    fn only_lasting_holds_are_watched() {
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
