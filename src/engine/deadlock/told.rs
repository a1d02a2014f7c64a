//! The waits that the client's entry may tell of, as those who wait have to do with them.

use std::time::Duration;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::time::Moment;

pub(crate) struct ToldWaits {
    /// How long a wait lasts before it is looked at.
    pub(crate) after: Duration,
    /// When there is something to look at, as `Moment::nanos`: the maximum while there is nothing.
    pub(super) due: AtomicU64,
    /// The entry may tell of waits.
    pub(super) tells: AtomicBool,
}

impl ToldWaits {
    pub(crate) fn new(after: Duration) -> ToldWaits {
        ToldWaits { after, due: AtomicU64::new(u64::MAX), tells: AtomicBool::new(false) }
    }

    /// A wait that has lasted since then begins to sleep. `Some`: the watchdog is to look by this moment,
    /// which it does not know of.
    ///
    /// The waiter has noted itself first. Pairs with `Finder::round`, which opens `due` before it looks and
    /// sets it after.
    pub(crate) fn note_wait(&self, since: Moment) -> Option<Moment> {
        let ripe = since.plus(self.after);
        let is_news = ripe.nanos() < self.due.load(Ordering::SeqCst);
        is_news.then(|| {
            self.due.fetch_min(ripe.nanos(), Ordering::SeqCst);
            ripe
        })
    }

    /// A wait that the entry may tell of is over, and has left its queue. `true`: the watchdog is to be woken
    /// to write the entry. The caller does not wait for that: see `Finder::look`.
    pub(crate) fn note_end(&self) -> bool {
        self.due.swap(0, Ordering::SeqCst) != 0
    }

    /// Whether the entry tells of waits, so that the finder writes it.
    pub(crate) fn tells(&self) -> bool {
        self.tells.load(Ordering::SeqCst)
    }
}
