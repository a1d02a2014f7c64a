//! Chains that end at a holder which says nothing of itself, such as Java's: they may be deadlocks.
//!
//! It is not known whether such a holder waits. There are two signs that it does, both about a lock that the
//! chain's first thread holds: the holder's client stands in the store's queue for it, or an unknown client
//! listens for its release.

use crate::engine::deadlock::graph::{Link, MOST_OWNERS, RingKey, View, Wait, key_of};
use crate::engine::deadlock::reading::{Reading, holder_of};
use crate::inspect::ObjectKind;

/// The most of the first thread's locks that are looked at.
const MOST_LOOKS: usize = 4;

/// A chain to a holder that says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Maybe {
    pub(super) links: Vec<Link>,
    /// The lock of the first thread for which the last holder may wait.
    pub(super) held: String,
    /// Whether that holder's client is seen to wait for it.
    pub(super) is_named: bool,
}

impl Maybe {
    pub(super) fn key(&self) -> RingKey {
        let mut key = key_of(&self.links);
        key.extend(self.links.last().map(|last| (last.holder.client.as_u128(), 0)));
        key
    }
}

/// The chain from this wait, if it ends so.
pub(super) fn maybe_ring(view: &mut Reading<'_>, origin: &Wait) -> Option<Maybe> {
    let mut links: Vec<Link> = Vec::new();
    let mut wait = origin.clone();
    for _ in 0..MOST_OWNERS {
        let holder = view.holders(&wait).into_iter().next()?;
        links.push(Link { wait: wait.clone(), holder, is_certain: false });
        if view.is_unknown(holder.client) {
            let (held, is_named) = sign(view, origin, &links)?;
            return Some(Maybe { links, held, is_named });
        }
        let thread = view.thread_of(holder, &wait.key)?;
        if links.iter().any(|link| link.wait.thread == thread) {
            return None;
        }
        wait = view.wait_of(thread)?;
    }
    None
}

/// A lock of the first thread for which the last holder may wait, and whether it is seen to.
fn sign(view: &mut Reading<'_>, origin: &Wait, links: &[Link]) -> Option<(String, bool)> {
    let last = links.last()?;
    let mut listened = None;
    for key in view.held_by(origin.thread).into_iter().take(MOST_LOOKS) {
        let Some(seen) = view.described(&key) else { continue };
        let is_it = |owner: &str| holder_of(owner).is_some_and(|one| one.client == last.holder.client);
        if seen.waiters.iter().any(|one| is_it(&one.owner)) {
            return Some((key, true));
        }
        // Clients of this crate stand in the line of such a lock; Java only listens.
        let has_line = view.has_lines() && matches!(seen.kind, ObjectKind::Lock | ObjectKind::FencedLock);
        if has_line && seen.waiting == 0 && seen.listeners.is_some_and(|listeners| listeners > 0) {
            listened = listened.or(Some((key, false)));
        }
    }
    listened
}
