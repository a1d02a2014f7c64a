//! A model of three *workers* (threads, each of its own client) and three locks, while one worker searches
//! for a deadlock: each reported cycle existed, and a cycle that exists all the time is reported.
//!
//! If an entry has no room for a worker's wait, it names neither the wait nor the worker's holds, until a
//! later entry does. A wait that has ended stays in its client's entry for a while. Between the two readings
//! each live client has time to remove such waits.
//!
//! Before each read of a search, any one step may come: a grant, a time-out, a release, a crash, the end of a
//! lease, a new entry. The model explores all orders, up to a number of steps. The search is the engine's own
//! (`graph`).

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a model that cannot go on shall stop there; its workers and locks are three"
)]

use std::collections::{HashMap, HashSet};

use super::graph::{self, Link, Thread, View, Wait, are_held, are_waited_for, ring_of};
use crate::ident::{ClientId, Owner};

const THREADS: usize = 3;
const LOCKS: usize = 3;

/// A mistake in the search, which the engine does not make.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fault {
    None,
    /// A cycle counts as soon as one reading shows it.
    OneReading,
    /// The second reading follows the first at once.
    NoPause,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Entry {
    wait: Option<(u64, usize)>,
    holds: [Option<u64>; LOCKS],
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Worker {
    number: u64,
    wait: Option<(u64, usize)>,
    is_dead: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    workers: [Worker; THREADS],
    /// The owner of each lock in the store: worker and number.
    locks: [Option<(usize, u64)>; LOCKS],
    entries: [Option<Entry>; THREADS],
    last: u64,
    fault: Fault,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Acquire(usize, usize),
    Wait(usize, usize),
    Write(usize),
    /// Writes an entry that has no room for the client's wait.
    WriteCut(usize),
    TimeOut(usize),
    Grant(usize),
    Release(usize, usize),
    Crash(usize),
    LeaseEnds(usize),
    EntryEnds(usize),
}

impl World {
    fn new(fault: Fault) -> World {
        let worker = |at: usize| Worker { number: at as u64 + 1, wait: None, is_dead: false };
        World {
            workers: std::array::from_fn(worker),
            locks: [None; LOCKS],
            entries: [const { None }; THREADS],
            last: 100,
            fault,
        }
    }

    fn fresh(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn entry(&self, worker: usize) -> Entry {
        let held = |lock: usize| self.locks[lock].filter(|(by, _)| *by == worker).map(|(_, number)| number);
        Entry { wait: self.workers[worker].wait, holds: std::array::from_fn(held) }
    }

    fn can(&self, step: Step) -> bool {
        let alive = |worker: usize| !self.workers[worker].is_dead;
        let runs = |worker: usize| alive(worker) && self.workers[worker].wait.is_none();
        let is_held = |lock: usize| self.locks[lock].is_some();
        let is_own = |worker: usize, lock: usize| self.locks[lock].is_some_and(|(by, _)| by == worker);
        match step {
            Step::Acquire(worker, lock) => runs(worker) && !is_held(lock),
            Step::Wait(worker, lock) => {
                let holds = (0..LOCKS).any(|lock| is_own(worker, lock));
                runs(worker) && holds && is_held(lock) && !is_own(worker, lock)
            }
            Step::Write(worker) => alive(worker) && self.entries[worker] != Some(self.entry(worker)),
            Step::WriteCut(worker) => {
                let waits = self.workers[worker].wait.is_some();
                alive(worker) && waits && self.entries[worker] != Some(Entry::default())
            }
            Step::TimeOut(worker) => alive(worker) && self.workers[worker].wait.is_some(),
            Step::Grant(worker) => {
                alive(worker) && self.workers[worker].wait.is_some_and(|(_, lock)| !is_held(lock))
            }
            Step::Release(worker, lock) => runs(worker) && is_own(worker, lock),
            Step::Crash(worker) => alive(worker),
            Step::LeaseEnds(lock) => is_held(lock),
            Step::EntryEnds(worker) => !alive(worker) && self.entries[worker].is_some(),
        }
    }

    fn go(&mut self, step: Step) {
        match step {
            Step::Acquire(worker, lock) => self.locks[lock] = Some((worker, self.workers[worker].number)),
            Step::Wait(worker, lock) => self.workers[worker].wait = Some((self.fresh(), lock)),
            Step::Write(worker) => self.entries[worker] = Some(self.entry(worker)),
            Step::WriteCut(worker) => self.entries[worker] = Some(Entry::default()),
            Step::TimeOut(worker) => self.workers[worker].wait = None,
            Step::Grant(worker) => {
                if let Some((_, lock)) = self.workers[worker].wait.take() {
                    self.locks[lock] = Some((worker, self.workers[worker].number));
                }
            }
            Step::Release(_, lock) => self.locks[lock] = None,
            Step::Crash(worker) => self.workers[worker].is_dead = true,
            Step::LeaseEnds(lock) => {
                if let Some((worker, _)) = self.locks[lock].take() {
                    self.workers[worker].number = self.fresh();
                }
            }
            Step::EntryEnds(worker) => self.entries[worker] = None,
        }
    }

    /// Time passes, in which each live client removes ended waits from its entry.
    fn pause(&mut self) {
        for worker in 0..THREADS {
            let published = self.entries[worker].as_ref().and_then(|entry| entry.wait);
            if published.is_some() && published != self.workers[worker].wait && !self.workers[worker].is_dead
            {
                self.entries[worker] = Some(self.entry(worker));
            }
        }
    }

    /// The same world, with its numbers replaced by their order of appearance: worlds that differ only in
    /// their numbers behave alike and need one exploration.
    fn form(mut self) -> World {
        let mut given = HashMap::new();
        let mut rename = |number: &mut u64| {
            let next = given.len() as u64 + 1;
            *number = *given.entry(*number).or_insert(next);
        };
        for worker in &mut self.workers {
            rename(&mut worker.number);
            worker.wait.iter_mut().for_each(|(id, _)| rename(id));
        }
        self.locks.iter_mut().flatten().for_each(|(_, number)| rename(number));
        for entry in self.entries.iter_mut().flatten() {
            entry.wait.iter_mut().for_each(|(id, _)| rename(id));
            entry.holds.iter_mut().flatten().for_each(&mut rename);
        }
        self.last = given.len() as u64;
        self
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for worker in 0..THREADS {
            for lock in 0..LOCKS {
                let each =
                    [Step::Acquire(worker, lock), Step::Wait(worker, lock), Step::Release(worker, lock)];
                steps.extend(each);
            }
            let each = [Step::Write(worker), Step::TimeOut(worker), Step::Grant(worker), Step::Crash(worker)];
            steps.extend(each);
            steps.extend([Step::WriteCut(worker), Step::EntryEnds(worker)]);
        }
        steps.extend((0..LOCKS).map(Step::LeaseEnds));
        steps.retain(|step| self.can(*step));
        steps
    }

    /// Whether the cycle exists. A dead worker still waits as its entry says, because its hold exists until
    /// its lease ends.
    fn has(&self, ring: &[Link]) -> bool {
        let waits = |worker: usize, wait: (u64, usize)| {
            let published = || self.entries[worker].as_ref().and_then(|entry| entry.wait);
            let Worker { wait: own, is_dead, .. } = self.workers[worker];
            own == Some(wait) || is_dead && published() == Some(wait)
        };
        ring.iter().zip(ring.iter().cycle().skip(1)).all(|(link, next)| {
            let (by, number) = (next.wait.thread.id as usize, link.holder.number());
            let lock: usize = link.wait.key.parse().unwrap();
            waits(link.wait.thread.id as usize, (link.wait.record.id, lock))
                && self.locks[lock] == Some((by, number))
        })
    }

    fn tells_all(&self) -> bool {
        (0..THREADS).all(|worker| self.entries[worker] == Some(self.entry(worker)))
    }
}

/// Chooses between the ways that a run can go. Each run takes another way, until none is left.
#[derive(Default)]
struct Ways {
    chosen: Vec<(usize, usize)>,
    at: usize,
}

impl Ways {
    fn choose(&mut self, among: usize) -> usize {
        if self.at == self.chosen.len() {
            self.chosen.push((0, among));
        }
        let (way, _) = self.chosen[self.at];
        self.at += 1;
        way
    }

    /// Whether there is another way.
    fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((way, among)) = self.chosen.pop() {
            if way + 1 < among {
                self.chosen.push((way + 1, among));
                return true;
            }
        }
        false
    }
}

/// A reading by the first worker, while the world goes on.
struct Reading<'a> {
    clients: &'a [ClientId; THREADS],
    world: &'a mut World,
    past: &'a mut Vec<World>,
    ways: &'a mut Ways,
    steps_left: &'a mut usize,
    own: Entry,
    locks: [Option<Option<(usize, u64)>>; LOCKS],
    entries: [Option<Option<Entry>>; THREADS],
}

impl<'a> Reading<'a> {
    fn new(
        clients: &'a [ClientId; THREADS],
        (world, past): (&'a mut World, &'a mut Vec<World>),
        ways: &'a mut Ways,
        steps_left: &'a mut usize,
    ) -> Reading<'a> {
        let own = world.entry(0);
        let (locks, entries) = ([None; LOCKS], [const { None }; THREADS]);
        Reading { clients, world, past, ways, steps_left, own, locks, entries }
    }

    fn world_goes_on(&mut self) {
        if *self.steps_left == 0 {
            return;
        }
        let steps = self.world.steps();
        let way = self.ways.choose(steps.len() + 1);
        if way > 0 {
            *self.steps_left -= 1;
            self.world.go(steps[way - 1]);
            self.past.push(self.world.clone());
        }
    }

    fn entry(&mut self, worker: usize) -> Option<Entry> {
        if worker == 0 {
            return Some(self.own.clone());
        }
        if self.entries[worker].is_none() {
            self.world_goes_on();
            self.entries[worker] = Some(self.world.entries[worker].clone());
        }
        self.entries[worker].clone().flatten()
    }

    fn of_client(&self, client: ClientId) -> usize {
        self.clients.iter().position(|one| *one == client).unwrap()
    }

    fn wait(&self, worker: usize, (id, lock): (u64, usize)) -> Wait {
        let thread = Thread { client: self.clients[worker], id: worker as u64 };
        graph::tests::wait(thread, id, &lock.to_string(), 0)
    }
}

impl View for Reading<'_> {
    fn holders(&mut self, wait: &Wait) -> Vec<Owner> {
        let lock: usize = wait.key.parse().unwrap();
        if self.locks[lock].is_none() {
            self.world_goes_on();
            self.locks[lock] = Some(self.world.locks[lock]);
        }
        let held = self.locks[lock].flatten();
        held.map(|(by, number)| Owner::new(self.clients[by], number)).into_iter().collect()
    }

    fn keepers_of(&mut self, holder: Owner, key: &str) -> (Vec<Thread>, bool) {
        let (worker, lock) = (self.of_client(holder.client()), key.parse::<usize>().unwrap());
        let is_its = self.entry(worker).is_some_and(|entry| entry.holds[lock] == Some(holder.number()));
        let thread = is_its.then_some(Thread { client: holder.client(), id: worker as u64 });
        (thread.into_iter().collect(), true)
    }

    fn wait_of(&mut self, thread: Thread) -> Option<Wait> {
        let worker = self.of_client(thread.client);
        let wait = self.entry(worker)?.wait?;
        Some(self.wait(worker, wait))
    }
}

/// Searches as the engine does. Returns the reported cycle, and the worlds that existed meanwhile.
fn search(
    begin: &World,
    clients: &[ClientId; THREADS],
    ways: &mut Ways,
    most: usize,
) -> (Option<Vec<Link>>, Vec<World>) {
    let (mut world, mut past, mut steps_left) = (begin.clone(), vec![begin.clone()], most);
    let fault = begin.fault;
    let own = world.entry(0);
    let mut first = Reading::new(clients, (&mut world, &mut past), ways, &mut steps_left);
    let Some(wait) = own.wait else { return (None, past) };
    let origin = first.wait(0, wait);
    let Some(ring) = ring_of(&mut first, &origin) else { return (None, past) };
    if fault == Fault::OneReading {
        return (Some(ring), past);
    }
    first.world_goes_on();
    if fault != Fault::NoPause {
        world.pause();
    }
    let mut holds = Reading::new(clients, (&mut world, &mut past), ways, &mut steps_left);
    let is_held = are_held(&mut holds, &ring);
    let mut waits = Reading::new(clients, (&mut world, &mut past), ways, &mut steps_left);
    let is_there = is_held && are_waited_for(&mut waits, &ring);
    (is_there.then_some(ring), past)
}

/// A world in which `members` threads hold a lock each, and the first `waiting` of them wait for the next
/// thread's lock. The entries show all that. If all threads wait, there is a cycle.
fn chain(members: usize, waiting: usize, fault: Fault) -> World {
    let mut world = World::new(fault);
    (0..members).for_each(|at| world.go(Step::Acquire(at, at)));
    (0..waiting).for_each(|at| world.go(Step::Wait(at, (at + 1) % members)));
    (0..THREADS).for_each(|at| world.go(Step::Write(at)));
    world
}

/// All worlds that at most `steps` steps can reach, each once.
fn after(world: World, steps: usize) -> Vec<World> {
    let first = world.form();
    let (mut met, mut all, mut last) = (HashSet::from([first.clone()]), vec![first], 0);
    for _ in 0..steps {
        let end = all.len();
        for at in last..end {
            for step in all[at].steps() {
                let mut next = all[at].clone();
                next.go(step);
                let next = next.form();
                if met.insert(next.clone()) {
                    all.push(next);
                }
            }
        }
        last = end;
    }
    all
}

/// A reported cycle that never existed, and the worlds since the search began.
type FalseRing = (Vec<Link>, Vec<World>);

/// Searches all these worlds in all ways. Returns the number of searches, the number of reported cycles, and
/// a false report if there was one.
fn search_all(worlds: &[World], most: usize) -> (u64, u64, Option<FalseRing>) {
    let clients: [ClientId; THREADS] = std::array::from_fn(|_| ClientId::random());
    let (mut searches, mut reports) = (0, 0);
    for world in worlds {
        let mut ways = Ways::default();
        loop {
            let (found, past) = search(world, &clients, &mut ways, most);
            searches += 1;
            let stood = past.iter().all(|world| world.tells_all())
                && search(world, &clients, &mut Ways::default(), 0)
                    .0
                    .is_some_and(|ring| past.iter().all(|world| world.has(&ring)));
            assert!(found.is_some() || !stood, "a lasting cycle was not found: {past:?}");
            if let Some(ring) = found {
                reports += 1;
                if !past.iter().any(|world| world.has(&ring)) {
                    return (searches, reports, Some((ring, past)));
                }
            }
            if !ways.next() {
                break;
            }
        }
    }
    (searches, reports, None)
}

#[test]
fn lasting_deadlocks_are_reported_and_no_false_ones() {
    let mut all = (0, 0);
    for (members, waiting) in [(2, 1), (2, 2), (3, 2), (3, 3)] {
        for (before, during) in [(0, 3), (1, 2), (2, 1)] {
            let worlds = after(chain(members, waiting, Fault::None), before);
            let (searches, reports, wrong) = search_all(&worlds, during);
            assert!(wrong.is_none(), "{wrong:?}");
            all = (all.0 + searches, all.1 + reports);
        }
    }
    assert!(all.0 > 50_000 && all.1 > 1_000, "{all:?}");
}

/// Worker 1 has published its wait for the lock of worker 0, the searcher; then come up to five steps. In one
/// of these worlds that wait was granted, but the entry still names it, and worker 0 waits for worker 1.
fn published_and_granted(fault: Fault) -> Vec<World> {
    let mut world = World::new(fault);
    let published =
        [Step::Acquire(0, 0), Step::Acquire(1, 1), Step::Wait(1, 0), Step::Write(0), Step::Write(1)];
    published.into_iter().for_each(|step| world.go(step));
    after(world, 5)
}

#[test]
fn a_granted_wait_is_not_part_of_a_cycle() {
    let worlds = published_and_granted(Fault::None);
    let (searches, reports, wrong) = search_all(&worlds, 1);
    assert!(wrong.is_none(), "{wrong:?}");
    assert!(searches > 10_000 && reports > 100, "{searches} searches, {reports} reports");
    let at_once = search_all(&published_and_granted(Fault::NoPause), 0);
    assert!(at_once.2.is_some(), "{} searches", at_once.0);
}

#[test]
fn a_search_without_pause_or_second_reading_reports_false_deadlocks() {
    let one_reading = search_all(&[chain(3, 2, Fault::OneReading)], 3);
    assert!(one_reading.2.is_some(), "{} searches", one_reading.0);
    let at_once = search_all(&after(chain(2, 2, Fault::NoPause), 1), 2);
    assert!(at_once.2.is_some(), "{} searches", at_once.0);
}
