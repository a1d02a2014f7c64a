//! The answer to a program that asks for deadlocks; and the second reading of found cycles (see `graph`).

use std::collections::HashSet;
use std::time::Duration;

use crate::deadlock::{Deadlock, DeadlockStep};
use crate::directory::{ClientInfo, LockUse};
use crate::engine::Engine;
use crate::engine::deadlock::graph::{
    Link, RingKey, Wait, are_held, are_waited_for, key_of, ring_of, youngest,
};
use crate::engine::deadlock::reading::{Asked, Reading, entry_wait};
use crate::engine::stuck::Stuck;
use crate::error::{Error, Result};
use crate::ident::ClientId;
use crate::inspect::Location;
use crate::park::Parker;
use crate::seam::Failure;
use crate::seam::directory::Place;
use crate::time::Moment;

/// The time between the two searches that must both show a cycle: enough for a client to remove an ended wait
/// from its entry, which takes `WRITES_APART` and a request, even on a busy machine.
pub(super) const SEEN_FOR: Duration = Duration::from_secs(1);

pub(super) struct Again {
    pub(super) rings: Vec<(Vec<Link>, Deadlock)>,
    pub(super) own: Stuck,
    pub(super) requests: u64,
    pub(super) has_gaps: bool,
    pub(super) refusal: Option<Error>,
}

/// Reads all holders first, then all waits. `stuck` returns this client's own waits and holds at that moment.
pub(super) fn read_again(
    asked: &Asked<'_>,
    stuck: &dyn Fn() -> Stuck,
    mut rings: Vec<Vec<Link>>,
    prefix: &str,
) -> Again {
    let own = stuck();
    let mut holds = Reading::new(asked, &own);
    rings.retain(|ring| are_held(&mut holds, ring));
    let (gaps, sent, refusal) = (holds.has_gaps, holds.requests, holds.refusal.take());
    drop(holds);
    let own = stuck();
    let mut second = Reading::new(asked, &own);
    let clients: Vec<ClientId> = rings.iter().flatten().map(|link| link.wait.thread.client).collect();
    second.read_clients(&clients);
    rings.retain(|ring| are_waited_for(&mut second, ring));
    let published = |ring: Vec<Link>| {
        let deadlock = shown(&ring, &mut second, asked.here.id, prefix);
        (ring, deadlock)
    };
    let rings = rings.into_iter().map(published).collect();
    let (has_gaps, requests) = (gaps || second.has_gaps, sent + second.requests);
    let refusal = refusal.or_else(|| second.refusal.take());
    drop(second);
    Again { rings, own, requests, has_gaps, refusal }
}

fn shown(ring: &[Link], seen: &mut Reading<'_>, here: ClientId, prefix: &str) -> Deadlock {
    let given = |key: &str| key.strip_prefix(prefix).unwrap_or(key).to_owned();
    let youngest = youngest(ring).map(|wait| (wait.thread, wait.id));
    let before = ring.iter().cycle().skip(ring.len().saturating_sub(1));
    let steps = before.zip(ring).map(|(before, link)| {
        let wait = &link.wait;
        let (client, thread) = (wait.thread.client, wait.thread.id);
        let info = seen.client(client);
        let is_it = |one: &&LockUse| one.by == Some(thread) && one.published.is_some();
        let one = info.and_then(|info| info.uses.iter().find(is_it));
        let name = one.map(|one| one.thread.clone()).unwrap_or_default();
        let nowhere = || Location::new(String::new(), 0, String::new());
        let location = info.map_or_else(nowhere, |info| place(info, name));
        let waiting_for = one.map(|one| one.lasted).unwrap_or_default();
        DeadlockStep {
            owner: format!("{client}:{}", wait.number),
            wait_id: wait.id,
            location,
            by_this_client: client == here,
            holds: given(&before.wait.key),
            waits_for: given(&wait.key),
            kind: wait.kind.label().to_owned(),
            waiting_for,
            is_youngest: youngest == Some((wait.thread, wait.id)),
        }
    });
    Deadlock { steps: steps.collect(), is_certain: ring.iter().all(|link| link.is_certain) }
}

fn place(info: &ClientInfo, thread: String) -> Location {
    Location {
        program: info.program.clone(),
        label: info.label.clone(),
        ..Location::new(info.host.clone(), info.pid, thread)
    }
}

const MOST_PAGES: usize = 100;

impl Engine {
    /// Searches for all deadlocks, of threads of any client.
    pub(crate) fn deadlocks(&self) -> Result<Vec<Deadlock>> {
        self.usable("deadlocks")?;
        let own = self.stuck(self.clock.now());
        let directory = self.store.capabilities().directory;
        let here = self.announcer.here(self.clock.now());
        let asked = Asked {
            store: &*self.store,
            here: &here,
            clock: &self.clock,
            sees_others: directory.is_some(),
            deadline: Moment::NEVER,
            each: self.options.command_timeout,
        };
        let mut origins: Vec<Wait> = own.waits.iter().map(|own| own.wait.clone()).collect();
        let mut first = Reading::new(&asked, &own);
        let mut next = directory.map(|directory| (directory, Place::default()));
        for _ in 0..MOST_PAGES {
            let Some((directory, place)) = next.take() else { break };
            let page = directory.clients(&place, self.one_command()).map_err(Failure::into_read_error);
            let page = page.map_err(|error| error.during("deadlocks"))?;
            for (id, posted) in page.found.into_iter().filter(|(id, _)| *id != self.id) {
                let Some(info) = ClientInfo::read(id, &posted.text, posted.remaining) else { continue };
                origins.extend(info.uses.iter().filter_map(|one| entry_wait(id, one)));
                first.clients.insert(id, Some(info));
            }
            next = page.next.map(|place| (directory, place));
        }
        let (mut rings, mut met): (Vec<Vec<Link>>, HashSet<RingKey>) = (Vec::new(), HashSet::new());
        for origin in &origins {
            rings.extend(ring_of(&mut first, origin).filter(|ring| met.insert(key_of(ring))));
        }
        if let Some(error) = first.refusal.take() {
            return Err(error.during("deadlocks"));
        }
        drop(first);
        if rings.is_empty() {
            return Ok(Vec::new());
        }
        // After this pause each client has removed ended waits from its entry: see `SEEN_FOR`.
        Parker::new(&self.clock).park(self.clock.after(SEEN_FOR), None);
        let stuck = || self.stuck(self.clock.now());
        let again = read_again(&asked, &stuck, rings, &self.options.key_prefix);
        if let Some(error) = again.refusal {
            return Err(error.during("deadlocks"));
        }
        Ok(again.rings.into_iter().map(|(_, deadlock)| deadlock).collect())
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;
    use crate::engine::deadlock::graph::{self, Thread};
    use crate::engine::stuck::{OwnHold, OwnWait};
    use crate::seam::{Family, Kind};
    use crate::stores::memory::MemoryStore;
    use crate::time::Clock;

    fn here() -> ClientId {
        ClientId::of_text(&["here"])
    }

    fn own_wait(wait: Wait) -> OwnWait {
        OwnWait::new(wait, "", Duration::ZERO, &Arc::default())
    }

    /// Two threads of this client, each of which holds the lock that the other waits for.
    fn crossed() -> Stuck {
        let client = here();
        let hold = |key: &str, number, thread| OwnHold {
            family: Family::Lock,
            shown: LockUse { by: Some(thread), ..LockUse::new(key, number, "", Duration::ZERO) },
        };
        let wait = |key: &str, id, number, thread| {
            let wait = graph::tests::wait(Thread { client, id: thread }, id, key, number);
            own_wait(Wait { at_ms: id, ..wait })
        };
        Stuck {
            waits: vec![wait("b", 101, 11, 1), wait("a", 102, 12, 2)],
            holds: vec![hold("a", 11, 1), hold("b", 12, 2)],
            under: Vec::new(),
            next: None,
        }
    }

    /// How many of the cycles in `begin` the second reading confirms. The reading asks twice for this
    /// client's waits and holds; `change` alters them each time. No other process takes part.
    fn rings_of(begin: impl Fn() -> Stuck, change: impl Fn(usize, &mut Stuck)) -> usize {
        let (store, clock, id) = (MemoryStore::new().open(), Clock::System, here());
        let (deadline, each) = (Moment::NEVER, Duration::from_secs(1));
        let entry = "host=here\npid=1\nlease_ms=1000\n";
        let here = ClientInfo::read(id, entry, Duration::ZERO).unwrap();
        let asked = Asked { store: &store, here: &here, clock: &clock, sees_others: false, deadline, each };
        let own = begin();
        let ring = ring_of(&mut Reading::new(&asked, &own), &own.waits[0].wait).unwrap();
        let times = Cell::new(0);
        let stuck = || {
            let mut stuck = begin();
            change(times.replace(times.get() + 1), &mut stuck);
            stuck
        };
        let again = read_again(&asked, &stuck, vec![ring], "");
        assert_eq!(times.get(), 2);
        again.rings.len()
    }

    #[test]
    fn a_changed_cycle_is_not_reported() {
        let (holders, waits) = (0, 1);
        let rings_where = |change: &dyn Fn(usize, &mut Stuck)| rings_of(crossed, change);
        assert_eq!(rings_where(&|_, _| ()), 1);
        let another_number = |at| {
            move |time: usize, stuck: &mut Stuck| {
                if time == at {
                    stuck.holds[1].shown.owner = 13;
                }
            }
        };
        assert_eq!(rings_where(&another_number(holders)), 0, "the lock has another owner");
        assert_eq!(rings_where(&another_number(waits)), 0, "the owner is no more the thread that waits");
        let another_wait = |time: usize, stuck: &mut Stuck| {
            if time == waits {
                stuck.waits[1] = own_wait(Wait { id: 103, ..stuck.waits[1].wait.clone() });
            }
        };
        assert_eq!(rings_where(&another_wait), 0, "the thread was out of its wait");
        let another_thread = |time: usize, stuck: &mut Stuck| {
            if time == waits {
                stuck.holds[1].shown.by = None;
            }
        };
        assert_eq!(rings_where(&another_thread), 0, "any thread may release it");
    }

    #[test]
    fn a_writer_waits_for_a_reader_of_its_own_client() {
        let reads = || {
            let mut stuck = crossed();
            stuck.waits[0] = own_wait(Wait { kind: Kind::Write, ..stuck.waits[0].wait.clone() });
            stuck.holds[1].family = Family::Read;
            stuck
        };
        assert_eq!(rings_of(reads, |_, _| ()), 1);
        let to_token = |time: usize, stuck: &mut Stuck| {
            if time == 0 {
                stuck.holds[1].family = Family::Token;
            }
        };
        assert_eq!(rings_of(reads, to_token), 0, "it is no half of a read-write lock");
    }
}
