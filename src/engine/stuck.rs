//! This client's part in possible deadlocks: its threads that hold something and have waited for a while, and
//! their holds. The client's entry shows them.
//!
//! A process works *under* a hold if another client holds the lock for it, as `leasehold run` does for its
//! command. Then all waits of this process delay that hold's release.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::directory::{LockUse, MAX_REPORTED, MAX_REPORTED_BYTES, WaitRecord};
use crate::engine::hold::{LocalLock, State};
use crate::engine::registry::{Registry, shown};
use crate::engine::waiter::Wait;
use crate::ident::{Owner, unbound_number};
use crate::seam::Family;
use crate::time::{Moment, millis};

/// A wait that may be part of a deadlock. `shown` is its form in the client's entry.
#[derive(Debug, Clone)]
pub(crate) struct OwnWait {
    pub(crate) shown: LockUse,
    pub(crate) known: Arc<Wait>,
}

/// A hold of a thread that waits, or a hold for whose end a thread waits.
#[derive(Debug, Clone)]
pub(crate) struct OwnHold {
    pub(crate) family: Family,
    pub(crate) shown: LockUse,
}

#[derive(Debug)]
pub(crate) struct Stuck {
    pub(crate) waits: Vec<OwnWait>,
    pub(crate) holds: Vec<OwnHold>,
    /// The holds of other clients under which this process works.
    pub(crate) under: Vec<Owner>,
    /// When the next wait will have lasted long enough to be listed here.
    pub(crate) next: Moment,
}

impl OwnWait {
    pub(crate) fn id(&self) -> Option<u64> {
        self.shown.published.as_ref().map(|record| record.id)
    }
}

impl Stuck {
    pub(crate) fn ids(&self) -> Vec<u64> {
        ids_of(self.waits.iter().map(|wait| &wait.shown))
    }

    pub(crate) fn uses(&self) -> Vec<LockUse> {
        let waits = self.waits.iter().map(|wait| &wait.shown);
        waits.chain(self.holds.iter().map(|hold| &hold.shown)).cloned().collect()
    }

    /// The part that fits into an entry: the oldest waits, each before the holds of its thread. A wait is
    /// left out if the holds do not fit, because a search needs both.
    pub(crate) fn named(&self) -> Vec<LockUse> {
        let mut waits: Vec<&OwnWait> = self.waits.iter().collect();
        waits.sort_unstable_by_key(|wait| Reverse(wait.shown.lasted));
        let mut holds_of: HashMap<Option<u64>, Vec<&LockUse>> = HashMap::new();
        for OwnHold { shown, .. } in &self.holds {
            holds_of.entry(shown.by.or(shown.taker)).or_default().push(shown);
        }
        let mut named = Vec::new();
        let (mut room, mut bytes) = (MAX_REPORTED, MAX_REPORTED_BYTES);
        for wait in waits {
            let mut block = vec![&wait.shown];
            block.extend(holds_of.remove(&wait.shown.by).unwrap_or_default());
            let names = block.iter().map(|one| one.name.len()).sum();
            let left = (room.checked_sub(block.len()), bytes.checked_sub(names));
            if let (Some(room_left), Some(bytes_left)) = left {
                (room, bytes) = (room_left, bytes_left);
                named.extend(block.into_iter().cloned());
            }
        }
        named
    }
}

/// The ids of the published waits, sorted.
pub(crate) fn ids_of<'a>(uses: impl IntoIterator<Item = &'a LockUse>) -> Vec<u64> {
    let published = uses.into_iter().filter_map(|one| one.published.as_ref());
    let mut ids: Vec<u64> = published.map(|record| record.id).collect();
    ids.sort_unstable();
    ids
}

impl Registry {
    /// The locks that threads wait for, and those that these threads hold. Takes one mutex at a time, so that
    /// this thread blocks nobody while it waits for the next mutex.
    fn concerned(&self) -> Vec<Arc<LocalLock>> {
        let (mut used, mut awaited, mut threads) = (Vec::new(), HashSet::new(), HashSet::new());
        for local in self.all().filter(|local| local.key.family != Family::Counted) {
            let state = local.state();
            for one in state.queue.tickets.iter().filter_map(|ticket| ticket.waiter.sleeper.as_ref()) {
                awaited.insert(Arc::clone(&local.key.name));
                threads.insert(Some(one.thread.id()));
            }
            let holders = state.holds.iter().map(|own| own.keeper().or(own.hold.holder.taker()));
            let holders: Vec<_> = holders.collect();
            drop(state);
            used.push((local, holders));
        }
        let is_theirs = |holders: &[_]| holders.iter().any(|one| threads.contains(one));
        used.retain(|(local, holders)| awaited.contains(&local.key.name) || is_theirs(holders));
        used.into_iter().map(|(local, _)| local).collect()
    }

    /// Returns the waits that have lasted for `least`, and the holds that their threads have or wait for. A
    /// thread without a hold counts only if the process works `under` holds of other clients. Gives each wait
    /// an id for the client's entry. The mutexes of these locks are locked together, so the result is of one
    /// moment.
    pub(crate) fn stuck(&self, (now, wall_ms): (Moment, u64), least: Duration, under: &[Owner]) -> Stuck {
        let all = self.concerned();
        let _alone = self.several.lock();
        let entries: Vec<_> = all.iter().map(|local| (&local.key, local.state())).collect();
        let (mut waits, mut awaited, mut next) = (Vec::new(), HashSet::new(), Moment::NEVER);
        for (key, local) in &entries {
            for ticket in local.queue.tickets.iter() {
                awaited.insert(key.name.key());
                let Some(one) = ticket.waiter.sleeper.as_ref() else { continue };
                // A hold is entered before its waiter leaves the queue, so this waiter may be the holder.
                let is_granted = |state: &State| {
                    let is_own = state.keeper() == Some(one.thread.id()) || state.number == one.number;
                    is_own && !state.is_cached() && state.hold.stands(now)
                };
                if local.holds.iter().any(is_granted) {
                    continue;
                }
                let ripe = one.since.plus(least);
                if ripe > now {
                    next = next.min(ripe);
                } else {
                    waits.push((*key, &ticket.waiter.wait, one));
                }
            }
        }
        if waits.is_empty() {
            return Stuck { waits: Vec::new(), holds: Vec::new(), under: Vec::new(), next };
        }
        let threads: HashSet<u64> = waits.iter().map(|(_, _, one)| one.thread.id()).collect();
        let (mut holds, mut holding) = (Vec::new(), HashSet::new());
        for (key, local) in &entries {
            for state in local.holds.iter().filter(|state| !state.is_cached() && state.hold.stands(now)) {
                let (by, taker) = (state.keeper(), state.hold.holder.taker());
                let waiter = by.or(taker).filter(|thread| threads.contains(thread));
                // Compares names, not kinds: a reader may wait for a writer, and a writer for a reader.
                if waiter.is_some() || awaited.contains(key.name.key()) {
                    holding.extend(waiter);
                    let shown = LockUse { by, taker, ..shown(key, state, now) };
                    holds.push(OwnHold { family: key.family, shown });
                }
            }
        }
        let waits =
            waits.into_iter().filter(|(.., one)| !under.is_empty() || holding.contains(&one.thread.id()));
        let waits = waits.map(|(key, known, one)| {
            let lasted = now.since(one.since);
            let record = known.publish(|| WaitRecord {
                id: unbound_number(),
                at_ms: wall_ms.saturating_sub(millis(lasted)),
                kind: one.kind.label().to_owned(),
                takes_again: one.takes_again,
                writers_first: one.writers_first,
            });
            let shown = LockUse {
                is_waiting: true,
                by: Some(one.thread.id()),
                published: Some(record),
                ..LockUse::new(key.name.key(), one.number, one.thread.name(), lasted)
            };
            OwnWait { shown, known: Arc::clone(known) }
        });
        Stuck { waits: waits.collect(), holds, under: under.to_vec(), next }
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::deadlock::graph::tests::own_wait;
    use crate::engine::deadlock::graph::{self, Thread};
    use crate::ident::ClientId;

    fn wait(id: u64, since: u64) -> OwnWait {
        let thread = Thread { client: ClientId::random(), id };
        let mut wait = own_wait(graph::tests::wait(thread, id, &format!("wanted:{id}"), id));
        wait.shown.lasted = Duration::from_nanos(1_000 - since);
        wait
    }

    fn hold(thread: u64, key: String) -> OwnHold {
        let shown = LockUse { by: Some(thread), ..LockUse::new(&key, thread, "", Duration::ZERO) };
        OwnHold { family: Family::Lock, shown }
    }

    /// A client with `threads` waiting threads, each with `each` holds. The first has waited longest.
    fn stuck(threads: u64, each: usize) -> Stuck {
        let holds = (1..=threads).flat_map(|id| (0..each).map(move |at| hold(id, format!("held:{id}:{at}"))));
        Stuck {
            waits: (1..=threads).map(|id| wait(id, id)).collect(),
            holds: holds.collect(),
            under: Vec::new(),
            next: Moment::NEVER,
        }
    }

    #[test]
    fn a_full_directory_entry_names_the_oldest_waits() {
        let all = stuck(5, 2).named();
        assert_eq!((ids_of(&all), all.len()), (vec![1, 2, 3, 4, 5], 15));
        let full = stuck(300, 1).named();
        assert_eq!((ids_of(&full), full.len()), ((1..=256).collect(), MAX_REPORTED));
        assert!(
            full.iter().step_by(2).all(|one| one.published.is_some()),
            "a wait comes before its thread's holds"
        );
        assert!(stuck(1, 600).named().is_empty(), "a wait is listed without all its thread's holds");
    }

    #[test]
    fn a_directory_entry_with_long_names_lists_fewer_waits() {
        let mut stuck = stuck(3, 1);
        stuck.holds.iter_mut().for_each(|hold| hold.shown.name = "x".repeat(MAX_REPORTED_BYTES / 2 - 100));
        assert_eq!(ids_of(&stuck.named()), [1, 2]);
    }
}
