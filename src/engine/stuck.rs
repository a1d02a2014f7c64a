//! This client's part in possible deadlocks: its threads that hold something and have waited for a while, and
//! their holds. The client's directory entry shows them.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::directory::{ClientInfo, LockUse, MAX_REPORTED, MAX_REPORTED_BYTES, WaitRecord};
use crate::engine::deadlock::graph::{Thread, Wait};
use crate::engine::hold::local_lock::LockKey;
use crate::engine::hold::{Hold, State};
use crate::engine::registry::{Registry, shown};
use crate::engine::waiter::{PublishedWait, Sleeper, Wait as KnownWait};
use crate::ident::{ClientId, Owner, unbound_number};
use crate::seam::Family;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::{Moment, millis};

/// A wait of a thread that holds something. `shown` is its form in the client's entry.
#[derive(Debug, Clone)]
pub(crate) struct OwnWait {
    pub(crate) wait: Wait,
    pub(crate) shown: LockUse,
    pub(crate) known: Arc<KnownWait>,
}

/// A hold of such a thread, or one that it waits for.
#[derive(Debug, Clone)]
pub(crate) struct OwnHold {
    pub(crate) family: Family,
    pub(crate) shown: LockUse,
}

#[derive(Debug, Default)]
pub(crate) struct Stuck {
    pub(crate) waits: Vec<OwnWait>,
    pub(crate) holds: Vec<OwnHold>,
    /// The holds of other clients under which this process works, which its waits delay.
    pub(crate) under: Vec<Owner>,
    /// When the next wait will have lasted long enough.
    pub(crate) next: Option<Moment>,
}

impl Stuck {
    pub(crate) fn ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.waits.iter().map(|wait| wait.wait.id).collect();
        ids.sort_unstable();
        ids
    }

    pub(crate) fn within(&self, here: &ClientInfo) -> ClientInfo {
        let waits = self.waits.iter().map(|wait| &wait.shown);
        let uses = waits.chain(self.holds.iter().map(|hold| &hold.shown)).cloned().collect();
        ClientInfo { uses, ..here.clone() }
    }

    /// The part that fits into an entry: the oldest waits, each before the holds of its thread. A wait is
    /// left out if the holds do not fit, because a search needs both.
    pub(crate) fn named(&self) -> Named {
        let mut waits: Vec<&OwnWait> = self.waits.iter().collect();
        waits.sort_unstable_by_key(|wait| Reverse(wait.shown.lasted));
        let mut holds_of: HashMap<u64, Vec<&OwnHold>> = HashMap::new();
        for hold in &self.holds {
            if let Some(thread) = hold.shown.by.or(hold.shown.taker) {
                holds_of.entry(thread).or_default().push(hold);
            }
        }
        let mut named = Named::default();
        let (mut room, mut bytes) = (MAX_REPORTED, MAX_REPORTED_BYTES);
        for wait in waits {
            let holds = holds_of.remove(&wait.wait.thread.id).unwrap_or_default();
            let holds = holds.into_iter().map(|hold| hold.shown.clone());
            let mut block: Vec<LockUse> = std::iter::once(wait.shown.clone()).chain(holds).collect();
            let names = block.iter().map(|one| one.name.len()).sum();
            let left = (room.checked_sub(block.len()), bytes.checked_sub(names));
            if let (Some(room_left), Some(bytes_left)) = left {
                (room, bytes) = (room_left, bytes_left);
                named.ids.push(wait.wait.id);
                named.uses.append(&mut block);
            }
        }
        named.ids.sort_unstable();
        named
    }
}

impl OwnWait {
    pub(crate) fn new(wait: Wait, thread: &str, lasted: Duration, known: &Arc<KnownWait>) -> OwnWait {
        let shown = LockUse {
            is_waiting: true,
            by: Some(wait.thread.id),
            published: Some(WaitRecord {
                id: wait.id,
                at_ms: wait.at_ms,
                kind: wait.kind.label().to_owned(),
                takes_again: wait.takes_again,
                writers_first: wait.writers_first,
            }),
            ..LockUse::new(&wait.key, wait.number, thread, lasted)
        };
        OwnWait { wait, shown, known: Arc::clone(known) }
    }
}

/// The published waits and holds of an entry.
#[derive(Debug, Default)]
pub(crate) struct Named {
    pub(crate) uses: Vec<LockUse>,
    pub(crate) ids: Vec<u64>,
}

/// What waiting threads and the watchdog share about the waits to be published.
pub(crate) struct PublishedWaits {
    pub(crate) after: Duration,
    /// When the watchdog checks waits next, as `Moment::nanos`; the maximum if there are none.
    pub(crate) due: AtomicU64,
}

impl PublishedWaits {
    pub(crate) fn new(after: Duration) -> PublishedWaits {
        PublishedWaits { after, due: AtomicU64::new(u64::MAX) }
    }

    /// A wait that began at `since` is about to sleep. `Some`: the watchdog must be told to check by then.
    ///
    /// The waiter is in its queue by now. Pairs with `Finder::round`, which resets `due` and reads the
    /// queues.
    pub(crate) fn note_wait(&self, since: Moment) -> Option<Moment> {
        let ripe = since.plus(self.after);
        let is_news = ripe.nanos() < self.due.load(Ordering::SeqCst);
        is_news.then(|| {
            self.due.fetch_min(ripe.nanos(), Ordering::SeqCst);
            ripe
        })
    }

    /// A published wait has ended and left its queue. `true`: the caller must wake the watchdog, which writes
    /// the entry. The caller does not wait for the write: see `Finder::search`.
    pub(crate) fn note_end(&self) -> bool {
        self.due.swap(0, Ordering::SeqCst) != 0
    }
}

impl Registry {
    /// Returns the waits that have lasted for `least`, of threads that hold something, and the holds that
    /// these threads have or wait for. Publishes the waits. If the process works `under` holds of other
    /// clients, the waits of all threads count. Apart from locks without holds and waiters, the result is of
    /// one moment.
    ///
    /// Reads all local locks, so it is called at most once a second while no thread is stuck.
    pub(crate) fn stuck(
        &self,
        client: ClientId,
        (now, wall_ms): (Moment, u64),
        least: Duration,
        under: &[Owner],
    ) -> Stuck {
        let all = self.all();
        let _alone = self.several.lock();
        let entries: Vec<_> = all
            .iter()
            .filter(|local| local.key.family != Family::Counted)
            .map(|local| (&local.key, local.state()))
            .filter(|(_, local)| !local.holds.is_empty() || !local.queue.is_empty())
            .collect();
        let (mut waits, mut next) = (Vec::new(), None::<Moment>);
        for (key, local) in &entries {
            for ticket in local.queue.iter() {
                let Some(one) = ticket.waiter.sleeper.as_ref() else { continue };
                // A hold is entered before its waiter leaves the queue, so this one may be granted.
                let is_granted = |state: &State| {
                    let hold = &state.hold;
                    let is_own =
                        hold.kept_by(state) == Some(one.thread.id()) || hold.owner().number() == one.number;
                    is_own && stands(hold, now)
                };
                if local.holds.iter().any(is_granted) {
                    continue;
                }
                let ripe = one.since.plus(least);
                if ripe > now {
                    next = Some(next.map_or(ripe, |next| next.min(ripe)));
                } else {
                    waits.push((*key, &ticket.waiter.wait, one));
                }
            }
        }
        if waits.is_empty() {
            return Stuck { next, ..Stuck::default() };
        }
        let threads: HashSet<u64> = waits.iter().map(|(_, _, one)| one.thread.id()).collect();
        let awaited = waits.iter().map(|(key, ..)| *key);
        let halves: HashSet<&str> = awaited.filter(|key| is_half(key)).map(|key| key.name.key()).collect();
        let (mut holds, mut holding) = (Vec::new(), HashSet::new());
        for (key, local) in &entries {
            let is_awaited = !local.queue.is_empty() || is_half(key) && halves.contains(key.name.key());
            for state in &local.holds {
                let hold = &state.hold;
                let (thread, taker) = (hold.kept_by(state), hold.holder.taker());
                let waiter = thread.or(taker).filter(|thread| threads.contains(thread));
                let is_of_waiter = waiter.is_some();
                if !stands(hold, now) || !is_of_waiter && !is_awaited {
                    continue;
                }
                holding.extend(waiter);
                let shown = LockUse { by: thread, taker, ..shown(key, state, now) };
                holds.push(OwnHold { family: key.family, shown });
            }
        }
        let waits =
            waits.into_iter().filter(|(.., one)| !under.is_empty() || holding.contains(&one.thread.id()));
        let waits = waits.map(|(key, known, one)| {
            let at_ms = wall_ms.saturating_sub(millis(now.since(one.since)));
            let PublishedWait { id, at_ms } = known.publish(|| PublishedWait { id: unbound_number(), at_ms });
            let Sleeper { number, kind, takes_again, writers_first, since, .. } = *one;
            let (thread, key) = (Thread { client, id: one.thread.id() }, key.name.key().to_owned());
            let wait = Wait { thread, id, key, kind, number, at_ms, takes_again, writers_first };
            OwnWait::new(wait, one.thread.name(), now.since(since), known)
        });
        Stuck { waits: waits.collect(), holds, under: under.to_vec(), next }
    }
}

fn is_half(key: &LockKey) -> bool {
    matches!(key.family, Family::Read | Family::Write)
}

fn stands(hold: &Hold, now: Moment) -> bool {
    !hold.is_cached() && !hold.is_releasing() && hold.loss_at(now).is_none()
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::deadlock::graph;

    fn wait(id: u64, since: u64) -> OwnWait {
        let thread = Thread { client: ClientId::random(), id };
        let wait = graph::tests::wait(thread, id, &format!("wanted:{id}"), id);
        OwnWait::new(wait, "", Duration::from_nanos(1_000 - since), &Arc::default())
    }

    fn hold(thread: u64, key: String) -> OwnHold {
        let shown = LockUse { by: Some(thread), ..LockUse::new(&key, thread, "", Duration::ZERO) };
        OwnHold { family: Family::Lock, shown }
    }

    /// Waits of that many threads, the first of which has waited longest, each with `each` holds.
    fn stuck(threads: u64, each: usize) -> Stuck {
        let holds = (1..=threads).flat_map(|id| (0..each).map(move |at| hold(id, format!("held:{id}:{at}"))));
        Stuck {
            waits: (1..=threads).map(|id| wait(id, id)).collect(),
            holds: holds.collect(),
            under: Vec::new(),
            next: None,
        }
    }

    #[test]
    fn a_full_entry_names_the_oldest_waits() {
        let all = stuck(5, 2).named();
        assert_eq!((all.ids, all.uses.len()), (vec![1, 2, 3, 4, 5], 15));
        let full = stuck(300, 1).named();
        assert_eq!((full.ids, full.uses.len()), ((1..=256).collect(), MAX_REPORTED));
        assert!(full.uses.iter().step_by(2).all(|one| one.published.is_some()), "each before what it holds");
        assert!(stuck(1, 600).named().ids.is_empty(), "not without all holds of its thread");
    }

    #[test]
    fn long_names_leave_room_for_fewer_waits() {
        let mut stuck = stuck(3, 1);
        stuck.holds.iter_mut().for_each(|hold| hold.shown.name = "x".repeat(MAX_REPORTED_BYTES / 2 - 100));
        assert_eq!(stuck.named().ids, [1, 2]);
    }
}
