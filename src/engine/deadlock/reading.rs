//! A search's readings: this client's registry, the holders in the store, and other clients' entries.

use std::collections::HashMap;
use std::sync::Arc;

use crate::deadlock::{Deadlock, DeadlockStep};
use crate::directory::run::{id_under, read_under};
use crate::directory::{ClientInfo, LockUse};
use crate::engine::core::Core;
use crate::engine::deadlock::graph::{Link, RingKey, Thread, View, Wait, are_held, are_waited_for, youngest};
use crate::engine::directory::unknown;
use crate::engine::stuck::{OwnHold, Stuck};
use crate::error::{Error, ErrorKind};
use crate::ident::{ClientId, LockName, Owner};
use crate::inspect::{Inspection, Location, Mode, ObjectKind};
use crate::seam::{Answer, Failure, Family, Kind};
use crate::time::Moment;

/// Maximum number of threads that a search visits for one wait.
pub(super) const MOST_THREADS: usize = 256;

pub(super) type Rings = HashMap<RingKey, Vec<Link>>;

pub(super) struct Reading<'a> {
    core: &'a Core,
    sees_others: bool,
    deadline: Moment,
    /// This client's waits and holds.
    pub(super) own: Stuck,
    /// The locks read so far, by key and by whether the key is a read-write lock's. `None`: the lock could
    /// not be read.
    locks: HashMap<(String, bool), Option<Arc<Inspection>>>,
    pub(super) clients: HashMap<ClientId, Option<ClientInfo>>,
    /// By owner: the longest waiting thread of a process that works under this owner's hold.
    under: HashMap<Owner, Option<Thread>>,
    pub(super) requests: u64,
    /// Limits while one wait is followed: the total of `requests`, and how many more threads may be visited.
    most: (u64, usize),
    /// Whether something could not be read, so that cycles may have been missed.
    pub(super) has_gaps: bool,
    pub(super) refusal: Option<Error>,
    /// Whether some path was not followed to its end: it had too many threads, or needed too many requests.
    pub(super) is_beyond: bool,
}

impl<'a> Reading<'a> {
    /// `sees_others`: the store may be asked. All answers of the store come by `deadline`.
    pub(super) fn new(core: &'a Core, own: Stuck, sees_others: bool, deadline: Moment) -> Reading<'a> {
        let info = core.announcer.using((own.uses(), 0), core.clock.now());
        Reading {
            core,
            sees_others,
            deadline,
            own,
            locks: HashMap::new(),
            clients: HashMap::from([(core.id, Some(info))]),
            under: HashMap::new(),
            requests: 0,
            most: (u64::MAX, usize::MAX),
            has_gaps: false,
            refusal: None,
            is_beyond: false,
        }
    }

    fn begin_again(&mut self, own: Stuck) {
        let Reading { core, sees_others, deadline, requests, has_gaps, .. } = *self;
        let refusal = self.refusal.take();
        *self = Reading { requests, has_gaps, refusal, ..Reading::new(core, own, sees_others, deadline) };
    }

    pub(super) fn limit(&mut self, requests: u64) {
        self.most = (self.requests.saturating_add(requests), MOST_THREADS);
    }

    /// Keeps the cycles that a second reading shows. That reading reads all holders first, then all waits;
    /// before each part, `stuck` returns this client's waits and holds anew.
    pub(super) fn confirm(&mut self, rings: &mut Rings, stuck: impl Fn() -> Stuck) {
        self.begin_again(stuck());
        rings.retain(|_, ring| are_held(self, ring));
        self.begin_again(stuck());
        self.read_clients(rings.values().flatten().map(|link| link.wait.thread.client));
        rings.retain(|_, ring| are_waited_for(self, ring));
    }

    pub(super) fn shown(&mut self, ring: &[Link]) -> Deadlock {
        let core = self.core;
        let given = |key: &str| key.strip_prefix(&*core.options.key_prefix).unwrap_or(key).to_owned();
        let youngest = youngest(ring).map(|wait| (wait.thread, wait.record.id));
        let before = ring.iter().cycle().skip(ring.len().saturating_sub(1));
        let steps = before.zip(ring).map(|(before, Link { wait, .. })| {
            let (client, thread) = (wait.thread.client, wait.thread.id);
            let info = self.client(client);
            let is_it = |one: &&LockUse| one.by == Some(thread) && one.published.is_some();
            let one = info.and_then(|info| info.uses.iter().find(is_it));
            let nowhere = || Location::new(String::new(), 0, String::new());
            DeadlockStep {
                owner: format!("{client}:{}", wait.number),
                wait_id: wait.record.id,
                location: info.map_or_else(nowhere, |info| info.place_of(one)),
                by_this_client: client == core.id,
                holds: given(&before.wait.key),
                waits_for: given(&wait.key),
                kind: wait.kind.label().to_owned(),
                waiting_for: one.map(|one| one.lasted).unwrap_or_default(),
                is_youngest: youngest == Some((wait.thread, wait.record.id)),
            }
        });
        Deadlock { steps: steps.collect(), is_certain: ring.iter().all(|link| link.is_certain) }
    }

    /// The deadline for one more request. `None`: no more may be sent.
    fn one_more(&mut self) -> Option<Moment> {
        let now = self.core.clock.now();
        let is_beyond = self.requests >= self.most.0;
        let may = self.sees_others && self.refusal.is_none() && !is_beyond && now < self.deadline;
        self.has_gaps |= !may;
        self.is_beyond |= is_beyond;
        self.requests += u64::from(may);
        may.then(|| now.plus(self.core.options.command_timeout).min(self.deadline))
    }

    fn take<T>(&mut self, answer: Answer<T>) -> Option<T> {
        let error = match answer {
            Ok(value) => return Some(value),
            Err(Failure::Refused(error) | Failure::Unknown(error)) => error,
        };
        self.has_gaps = true;
        if matches!(error.kind(), ErrorKind::NoPermission | ErrorKind::Unsupported) {
            self.refusal = Some(error);
        }
        None
    }

    fn read_clients(&mut self, clients: impl Iterator<Item = ClientId>) {
        let wanted = unknown(clients, &self.clients);
        if !wanted.is_empty()
            && let Some(deadline) = self.one_more()
        {
            let answer = self.core.read_entries(&wanted, &mut self.clients, deadline);
            self.requests += self.take(answer).unwrap_or(1).saturating_sub(1);
        }
    }

    fn client(&mut self, client: ClientId) -> Option<&ClientInfo> {
        self.read_clients(std::iter::once(client));
        self.clients.get(&client)?.as_ref()
    }

    fn under(&mut self, holder: Owner) -> Option<Thread> {
        if !self.under.contains_key(&holder)
            && let Some(deadline) = self.one_more()
            && let Some(directory) = &self.core.store.capabilities.directory
        {
            let answer = directory.read(&[id_under(holder)], deadline);
            let posted = self.take(answer)?.found.into_iter().next().flatten();
            let thread = posted.and_then(|posted| read_under(holder, &posted.text));
            self.under.insert(holder, thread.map(|(client, id)| Thread { client, id }));
        }
        self.under.get(&holder).copied().flatten()
    }

    fn hold_of(&mut self, holder: Owner, key: &str) -> Option<&LockUse> {
        let is_it = |one: &&LockUse| !one.is_waiting && one.owner == holder.number() && one.name == key;
        self.client(holder.client())?.uses.iter().find(is_it)
    }

    /// The lock as the store describes it. Only `describe` lists all holders of a read-write lock; for other
    /// kinds `inspect` is enough, which needs fewer rights.
    fn lock(&mut self, key: &str, kind: Kind) -> Option<Arc<Inspection>> {
        let place = (key.to_owned(), kind.other_half().is_some());
        if !self.locks.contains_key(&place)
            && let Some(deadline) = self.one_more()
        {
            let name = LockName::new(&Arc::from(key), key.to_owned()).ok()?;
            let (store, own) = (&self.core.store, Owner::new(self.core.id, 0));
            let answer = match kind.other_half() {
                Some(_) => store.describe(&name, deadline),
                None => store.inspect(kind, &name, own, deadline).map(|held| match held {
                    Some(held) => held.described(kind, &name),
                    None => Inspection::new(name.given(), ObjectKind::Absent),
                }),
            };
            let seen = self.take(answer).map(Arc::new);
            self.locks.insert(place.clone(), seen);
        }
        self.locks.get(&place)?.clone()
    }

    fn held_here(&self, wait: &Wait) -> Vec<Owner> {
        let is_it = |hold: &&OwnHold| {
            let mode = hold.family.mode();
            let is_the_lock = mode.is_some() || hold.family == wait.kind.family();
            hold.shown.name == wait.key && is_the_lock && is_in_the_way(wait.kind, mode)
        };
        let held = self.own.holds.iter().filter(is_it);
        held.map(|hold| Owner::new(self.core.id, hold.shown.owner)).collect()
    }
}

/// Whether this reader must wait for a waiting writer: the reader lets writers go first, the writer has
/// waited long, or the store has one queue, in which the reader is not first.
fn is_behind_a_writer(seen: &Inspection, wait: &Wait) -> bool {
    if wait.record.writers_first && seen.writers_wait || seen.a_writer_waits_long {
        return true;
    }
    let own = Owner::new(wait.thread.client, wait.number);
    let at = seen.waiters.iter().position(|one| Owner::read(&one.owner) == Some(own));
    at.is_some_and(|at| at > 0)
}

/// Whether a hold of this mode (`None`: of no read-write lock) blocks a waiter of this kind.
fn is_in_the_way(kind: Kind, mode: Option<Mode>) -> bool {
    match kind.family() {
        Family::Lock | Family::Token => mode.is_none(),
        Family::Read => mode == Some(Mode::Write),
        Family::Write => mode.is_some(),
        Family::Counted => false,
    }
}

/// The kind with this label, which an entry names. Only kinds with holders.
pub(super) fn kind_of(label: &str) -> Option<Kind> {
    let kinds = [Kind::Mutex, Kind::Fenced, Kind::Fair, Kind::Read, Kind::Write, Kind::Token];
    kinds.into_iter().find(|kind| kind.label() == label)
}

/// The wait that `one` of a client's entry publishes. `None`: a hold, an unpublished wait, an unknown kind.
pub(super) fn entry_wait(client: ClientId, one: &LockUse) -> Option<Wait> {
    let record = one.published.clone().filter(|_| one.is_waiting)?;
    let (thread, kind) = (Thread { client, id: one.by? }, kind_of(&record.kind)?);
    Some(Wait { thread, number: one.owner, key: one.name.clone(), kind, record })
}

impl View for Reading<'_> {
    fn holders(&mut self, wait: &Wait) -> Vec<Owner> {
        let mut holders = self.held_here(wait);
        // A hold here excludes others, so the store is not asked. Only a writer may wait for several holders.
        if !holders.is_empty() && wait.kind.family() != Family::Write {
            return holders;
        }
        let own = self.core.id;
        let Some(seen) = self.lock(&wait.key, wait.kind) else { return holders };
        let shown = |is_it: &dyn Fn(Option<Mode>) -> bool| -> Vec<Owner> {
            let shown = seen.holders.iter().filter(|one| is_it(one.mode));
            shown.filter_map(|one| Owner::read(&one.owner)).collect()
        };
        let mut others = shown(&|mode| is_in_the_way(wait.kind, mode));
        // A reader behind a waiting writer must wait for the readers that the writer waits for.
        if others.is_empty() && wait.kind == Kind::Read && is_behind_a_writer(&seen, wait) {
            others = shown(&|mode| mode == Some(Mode::Read));
        }
        // A hold of this client that is not in its registry is being released, and blocks nobody.
        let stands = |one: &Owner| {
            let is_it = |hold: &OwnHold| hold.shown.owner == one.number() && hold.shown.name == wait.key;
            self.own.holds.iter().any(is_it)
        };
        others.retain(|one| (one.client() != own || stands(one)) && !holders.contains(one));
        holders.append(&mut others);
        holders
    }

    fn keepers_of(&mut self, holder: Owner, key: &str) -> (Vec<Thread>, bool) {
        let thread = |id| Thread { client: holder.client(), id };
        let hold = self.hold_of(holder, key);
        if let Some(id) = hold.and_then(|one| one.by) {
            return (vec![thread(id)], true);
        }
        let mut takers: Vec<Thread> = hold.and_then(|one| one.taker).map(thread).into_iter().collect();
        if self.own.under.contains(&holder) {
            let here = |id| Thread { client: self.core.id, id };
            takers.extend(self.own.waits.iter().filter_map(|own| own.shown.by).map(here));
        } else {
            takers.extend(self.under(holder));
        }
        (takers, false)
    }

    fn wait_of(&mut self, thread: Thread) -> Option<Wait> {
        self.most.1 = self.most.1.saturating_sub(1);
        if self.most.1 == 0 {
            self.is_beyond = true;
            return None;
        }
        let mut uses = self.client(thread.client)?.uses.iter().filter(|one| one.by == Some(thread.id));
        uses.find_map(|one| entry_wait(thread.client, one))
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;
    use crate::engine::deadlock::graph::tests::own_wait;
    use crate::engine::deadlock::graph::{self, key_of, ring_of};

    #[test]
    fn a_reader_with_writers_first_waits_for_waiting_writers() {
        let mut seen = Inspection::new("a", ObjectKind::ReadWriteLock { mode: Mode::Read });
        seen.writers_wait = true;
        let wait = |writers_first| {
            let thread = Thread { client: ClientId::random(), id: 1 };
            let mut wait = Wait { kind: Kind::Read, ..graph::tests::wait(thread, 1, "a", 1) };
            wait.record.writers_first = writers_first;
            wait
        };
        assert_eq!([false, true].map(|first| is_behind_a_writer(&seen, &wait(first))), [false, true]);
    }

    /// Two threads of this client, each of which holds the lock that the other waits for.
    fn crossed(client: ClientId) -> Stuck {
        let hold = |key: &str, number, thread| OwnHold {
            family: Family::Lock,
            shown: LockUse { by: Some(thread), ..LockUse::new(key, number, "", Duration::ZERO) },
        };
        let wait = |key: &str, id, number, thread| {
            let wait = graph::tests::wait(Thread { client, id: thread }, id, key, number);
            let mut own = own_wait(wait);
            own.shown.published.as_mut().unwrap().at_ms = id;
            own
        };
        Stuck {
            waits: vec![wait("b", 101, 11, 1), wait("a", 102, 12, 2)],
            holds: vec![hold("a", 11, 1), hold("b", 12, 2)],
            under: Vec::new(),
            next: Moment::NEVER,
        }
    }

    /// How many of the cycles in `begin` the second reading confirms. The reading asks twice for this
    /// client's waits and holds; `change` alters them each time. No other process takes part.
    fn rings_of(begin: impl Fn(ClientId) -> Stuck, change: impl Fn(usize, &mut Stuck)) -> usize {
        let core = Arc::clone(&crate::LockClient::in_memory().get_lock("a").engine.core);
        let mut reading = Reading::new(&core, begin(core.id), false, Moment::NEVER);
        let wait = entry_wait(core.id, &reading.own.waits[0].shown).unwrap();
        let ring = ring_of(&mut reading, &wait).unwrap();
        let times = Cell::new(0);
        let stuck = || {
            let mut stuck = begin(core.id);
            change(times.replace(times.get() + 1), &mut stuck);
            stuck
        };
        let mut rings = Rings::from([(key_of(&ring), ring)]);
        reading.confirm(&mut rings, stuck);
        assert_eq!(times.get(), 2);
        rings.len()
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
        assert_eq!(rings_where(&another_number(waits)), 0, "the hold has another owner than the wait");
        let another_wait = |time: usize, stuck: &mut Stuck| {
            if time == waits {
                stuck.waits[1].shown.published.as_mut().unwrap().id = 103;
            }
        };
        assert_eq!(rings_where(&another_wait), 0, "the thread waited anew meanwhile");
        let another_thread = |time: usize, stuck: &mut Stuck| {
            if time == waits {
                stuck.holds[1].shown.by = None;
            }
        };
        assert_eq!(rings_where(&another_thread), 0, "any thread may release the hold");
    }

    #[test]
    fn a_writer_waiting_for_a_local_reader_closes_a_cycle() {
        let reads = |client| {
            let mut stuck = crossed(client);
            stuck.waits[0].shown.published.as_mut().unwrap().kind = Kind::Write.label().to_owned();
            stuck.holds[1].family = Family::Read;
            stuck
        };
        assert_eq!(rings_of(reads, |_, _| ()), 1);
        let to_token = |time: usize, stuck: &mut Stuck| {
            if time == 0 {
                stuck.holds[1].family = Family::Token;
            }
        };
        assert_eq!(rings_of(reads, to_token), 0, "a token lock is no half of a read-write lock");
    }
}
