//! Processes that use a store's locks for a while, and the checkers' verdict.
//!
//! `LEASEHOLD_HISTORY_SECONDS` (20) is the time for each store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use crate::judge::{judge, program};
use crate::support::history::checker::check;
use crate::support::history::operations::{Doing, Operation, write};
use crate::support::prelude::*;
use crate::support::{Process, random, reexecuted, test_name};
use crate::trouble::World;
use crate::worker::{
    GO, Kind, LATCH, LOCKS, Line, Orders, WAITING, connect, mono, nanos, wait_as_a_crowd, work,
};

const ORDERS: &str = "LEASEHOLD_HISTORIES_ORDERS";
const CROWD: &str = "LEASEHOLD_HISTORIES_CROWD";
const WORKERS: usize = 4;
const KILLED_WAITERS: &str = "a dozen waiters killed";

/// Rough and calm times alternate. When rough, faults come at most 120 ms apart; when calm, up to four
/// seconds, in which locks change hands far more often.
const ROUGH: Duration = Duration::from_secs(20);
const CALM: Duration = Duration::from_secs(40);

fn is_calm(elapsed: Duration) -> bool {
    elapsed.as_secs() % (ROUGH + CALM).as_secs() >= ROUGH.as_secs()
}

fn run() -> Duration {
    let seconds = std::env::var("LEASEHOLD_HISTORY_SECONDS");
    Duration::from_secs(seconds.map_or(20, |seconds| seconds.parse().expect("a number of seconds")))
}

#[test]
fn two_processes_never_hold_at_once_on_redis() {
    history("Redis", World::redis);
}

macro_rules! on {
    ($($name:ident: $store:literal, $world:ident;)*) => {
        $(#[test]
        fn $name() {
            history($store, World::$world);
        })*
    };
}

on! {
    two_processes_never_hold_at_once_across_planned_switchovers: "Redis, switched", switched;
    two_processes_never_hold_at_once_with_sentinels: "Sentinel", sentinel;
    two_processes_never_hold_at_once_on_a_cluster: "Cluster", cluster;
    two_processes_never_hold_at_once_with_redlock: "Redlock", redlock;
    two_processes_never_hold_at_once_on_postgres: "PostgreSQL", postgres;
    two_processes_never_hold_at_once_on_etcd: "etcd", etcd;
    two_processes_never_hold_at_once_on_zookeeper: "ZooKeeper", zookeeper;
}

fn history(store: &str, world: fn() -> Option<World>) {
    if let Ok(orders) = std::env::var(ORDERS) {
        let orders = serde_json::from_str(&orders).unwrap();
        return if std::env::var_os(CROWD).is_some() { wait_as_a_crowd(&orders) } else { work(&orders) };
    }
    // The checkers need time in proportion to the number of operations.
    alone_within(run() * 3 + LONG * 20, || {
        let Some(world) = world() else { return };
        let told = Trouble::new(world).go(store);
        shout(&told);
    });
}

fn kinds(client: &LockClient, lease: Duration) -> Vec<Kind> {
    let probe = "kinds";
    let fails = [
        (Kind::Plain, client.get_lock(probe).is_locked().err()),
        (Kind::Kept, client.lock_builder("kinds-kept").cached().build().try_acquire().err()),
        (Kind::Fenced, client.get_fenced_lock(probe).try_acquire().err()),
        (Kind::Fair, client.get_fair_lock(probe).is_locked().err()),
        (Kind::ReadWrite, client.get_read_write_lock(probe).read().is_locked().err()),
        (Kind::Semaphore, client.get_expirable_semaphore(probe).available_permits().err()),
        (Kind::Latch, client.get_count_down_latch(probe).count().err()),
        (Kind::Job, client.run_once("kinds-job", ms(1), lease, |_| ()).err()),
    ];
    let mut kinds = Vec::new();
    for (kind, error) in fails {
        match error {
            None => kinds.push(kind),
            Some(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{kind:?}: {error}"),
        }
    }
    kinds
}

struct Trouble {
    world: World,
    orders: Orders,
    workers: Vec<Process>,
    stopped: Vec<(u32, u64)>,
    killed: BTreeSet<u32>,
    strikes: BTreeMap<&'static str, usize>,
    _folder: tempfile::TempDir,
}

impl Trouble {
    fn new(world: World) -> Trouble {
        let folder = tempfile::tempdir().unwrap();
        let mut orders = Orders {
            urls: world.urls(0),
            folder: folder.path().display().to_string(),
            end: 0,
            lease: world.lease(),
            command_timeout: world.command_timeout(),
            kinds: Vec::new(),
            names_last: world.lease() * 4,
            number: 0,
            calls_back: false,
        };
        let client = connect(&orders);
        orders.kinds = kinds(&client, orders.lease);
        // The test creates all latches that the workers may use, because a missing latch counts as 0.
        if orders.kinds.contains(&Kind::Latch) {
            let (begin, end) = (mono(), mono() + nanos(run() + LONG));
            for time in (begin..end).step_by(usize::try_from(nanos(orders.names_last)).unwrap()) {
                for lock in 0..LOCKS {
                    let name = orders.name(Kind::Latch, lock, time);
                    assert!(client.get_count_down_latch(&name).try_set_count(LATCH).unwrap());
                }
            }
        }
        orders.end = mono() + nanos(run());
        let (stopped, killed, strikes) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        Trouble { world, orders, workers: Vec::new(), stopped, killed, strikes, _folder: folder }
    }

    fn go(mut self, store: &str) -> String {
        (0..WORKERS).for_each(|_| self.start_worker());
        let folder = self.orders.folder.clone();
        assert!(eventually(LONG, || lines(Path::new(&folder), 0).len() > 20), "no worker works");
        let (begun, mut struck) = (now(), 0);
        // A long run goes on until it has killed a crowd that waits, not only crowds that still connect.
        let lacks = |all: &Self| run() >= ROUGH && !all.strikes.contains_key(KILLED_WAITERS);
        while begun.elapsed() < run() || lacks(&self) {
            let most = if is_calm(begun.elapsed()) { 4_000 } else { 100 };
            let_pass(ms(20 + random() % most), "between two strikes");
            self.resume(mono());
            self.nobody_has_failed();
            // At the beginning each arm of the `match` below is chosen at least once, and later at random.
            let dice = [2, 9, 0, 9, 3].get(struck).copied();
            let dice = dice.unwrap_or_else(|| {
                if lacks(&self) && random().is_multiple_of(2) { 3 } else { random() % 10 }
            });
            struck += 1;
            let what = match dice {
                0 | 1 => self.stop_worker(),
                2 => self.kill_worker(),
                3 => self.kill_waiters(),
                _ => Some(self.world.strike()),
            };
            if let Some(what) = what {
                *self.strikes.entry(what).or_default() += 1;
            }
        }
        self.resume(u64::MAX);
        let idle = |lines: &[Line]| lines.iter().filter(|line| matches!(line, Line::Idle)).count();
        let all = self.workers.len();
        let are_idle = eventually(LONG * 2, || idle(&lines(Path::new(&folder), self.killed.len())) >= all);
        self.nobody_has_failed();
        assert!(are_idle, "a call hangs");
        self.nothing_is_left(&operations(&lines(Path::new(&folder), self.killed.len())));
        std::fs::write(Path::new(&folder).join(GO), "").unwrap();
        for worker in std::mem::take(&mut self.workers) {
            let (good, text) = worker.ends_within(LONG);
            assert!(good, "a worker failed, or hangs:\n{text}");
        }
        self.judge(store)
    }

    fn nobody_has_failed(&self) {
        for worker in &self.workers {
            let text = worker.output();
            assert!(!text.contains("panicked") && !text.contains("test result"), "a worker failed:\n{text}");
        }
    }

    fn start_worker(&mut self) {
        self.orders.number += 1;
        self.orders.urls = self.world.urls(self.orders.number);
        self.orders.calls_back = self.orders.number.is_multiple_of(3);
        let orders = serde_json::to_string(&self.orders).unwrap();
        self.workers.push(reexecuted(&test_name(), &[(ORDERS, &orders)]));
    }

    fn victim(&self) -> Option<usize> {
        let is_stopped = |worker: &Process| self.stopped.iter().any(|(pid, _)| *pid == worker.pid());
        let running: Vec<usize> =
            (0..self.workers.len()).filter(|at| !is_stopped(&self.workers[*at])).collect();
        (running.len() > 1).then(|| running[random() as usize % running.len()])
    }

    fn stop_worker(&mut self) -> Option<&'static str> {
        let worker = &self.workers[self.victim()?];
        worker.signal("STOP");
        let lease = self.orders.lease;
        let span = lease + lease / 2 + ms(random() % 1000);
        self.stopped.push((worker.pid(), mono() + nanos(span)));
        Some("worker stopped for longer than a lease")
    }

    fn kill_worker(&mut self) -> Option<&'static str> {
        let at = self.victim()?;
        let worker = self.workers.swap_remove(at);
        self.killed.insert(worker.pid());
        drop(worker); // kills the process
        self.start_worker();
        Some("worker killed")
    }

    /// Starts a process with a dozen waiting clients, and kills it, even if some are still connecting.
    fn kill_waiters(&mut self) -> Option<&'static str> {
        let orders = serde_json::to_string(&self.orders).unwrap();
        let crowd = reexecuted(&test_name(), &[(ORDERS, &orders), (CROWD, "yes")]);
        let wait = eventually(LONG, || crowd.output().contains(WAITING));
        assert!(!crowd.output().contains("panicked"), "waiters failed: {}", crowd.output());
        let_pass(ms(50), "while they join");
        drop(crowd); // kills the process
        Some(if wait { KILLED_WAITERS } else { "a dozen clients killed while they connected" })
    }

    fn resume(&mut self, until: u64) {
        let (due, later): (Vec<_>, Vec<_>) = self.stopped.iter().partition(|(_, at)| *at <= until);
        self.stopped = later;
        let is_due = |worker: &&Process| due.iter().any(|(pid, _)| *pid == worker.pid());
        self.workers.iter().filter(is_due).for_each(|worker| worker.signal("CONT"));
    }

    fn judge(self, store: &str) -> String {
        let lines = lines(Path::new(&self.orders.folder), self.killed.len());
        let mut lost = 0;
        for line in &lines {
            match line {
                Line::Failed(error, allowed) => assert!(*allowed, "a call failed: {error}"),
                Line::Lost(_) => lost += 1,
                _ => {}
            }
        }
        let operations = operations(&lines);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("target/check/history-{store}.jsonl"));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        write(&file, &operations);
        let found = check(&operations);
        let judged = program().map(|program| judge(&program, &file));
        if let Some(verdict) = &judged {
            assert_eq!(verdict.operations, operations.len());
            let refused: BTreeSet<String> = found.keys().cloned().collect();
            assert!(
                verdict.undecided.is_empty() && verdict.illegal == refused,
                "{verdict:?}, but ours: {found:#?}"
            );
        }
        assert!(found.is_empty(), "the checkers refuse: {found:#?} in {}", file.display());
        let of = |f| operations.iter().filter(|operation| operation.f == f).count();
        let grants = of(Doing::Acquire);
        let steps = of(Doing::CountDown) + of(Doing::Count);
        assert!(grants as u64 >= 5 * run().as_secs(), "only {grants} grants");
        let met = self.strikes.len() >= 3 && !self.killed.is_empty();
        assert!(met, "the faults affected no process: {:?}", self.strikes);
        let faults: usize = self.strikes.values().sum();
        let locks = operations.iter().map(|operation| &operation.lock).collect::<BTreeSet<_>>().len();
        let by = if judged.is_some() { "both" } else { "ours alone" };
        let kinds: Vec<String> = self.orders.kinds.iter().map(|kind| format!("{kind:?}")).collect();
        page(
            store,
            &[
                format!("{} s", run().as_secs()),
                kinds.join(", "),
                grants.to_string(),
                (operations.len() - grants).to_string(),
                locks.to_string(),
                faults.to_string(),
                lost.to_string(),
                by.to_owned(),
            ],
        );
        format!(
            "COUNTED {store}: {grants} grants, {steps} steps of latches, {} operations on {locks} locks, judged by {by}; {faults} faults {:?}; \
             {lost} losses told; no violation, nothing left",
            operations.len(),
            self.strikes,
        )
    }

    /// Asserts that all locks are free once the leases of killed processes have ended.
    fn nothing_is_left(&self, operations: &[Operation]) {
        let client = connect(&self.orders);
        let names: BTreeSet<&str> = operations.iter().map(|operation| operation.lock.as_str()).collect();
        let is_free = |name: &str| match name.split('-').next() {
            Some("Plain" | "Kept" | "Fenced" | "Job") => client.get_lock(name).is_locked().map(|held| !held),
            Some("Fair") => client.get_fair_lock(name).is_locked().map(|held| !held),
            Some("ReadWrite") => {
                let lock = client.get_read_write_lock(name);
                lock.read().is_locked().and_then(|read| Ok(!read && !lock.write().is_locked()?))
            }
            Some("Semaphore") => {
                let all = i64::from(crate::worker::UNITS);
                client.get_expirable_semaphore(name).available_permits().map(|left| left == all)
            }
            _ => Ok(true),
        };
        let (begun, most) = (now(), self.orders.lease * 2 + LONG / 3);
        for name in names {
            // All names share the time `most`, since thousands of them are queried one after the other. A
            // query without an answer is repeated.
            let mut answer = Ok(false);
            let is_known = eventually(most.saturating_sub(begun.elapsed()) + LONG, || {
                let is_due = begun.elapsed() >= most;
                answer = is_free(name);
                matches!(answer, Ok(true)) || is_due && answer.is_ok()
            });
            assert!(
                is_known && matches!(answer, Ok(true)),
                "left behind: {name}: {answer:?}, {:?}",
                client.inspect(name)
            );
        }
    }
}

/// The lines of all workers, each worker's in order. Workers that were killed or still run may have left
/// their last line unfinished: at most `unfinished` or [`WORKERS`] of them, whichever is more.
fn lines(folder: &Path, unfinished: usize) -> Vec<Line> {
    let mut all = Vec::new();
    let mut torn = 0;
    for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let text = std::fs::read_to_string(file).unwrap();
        let (whole, last) = text.rsplit_once('\n').unwrap_or(("", &text));
        torn += usize::from(!last.is_empty());
        all.extend(whole.lines().map(|line| serde_json::from_str::<Line>(line).expect("a line")));
    }
    assert!(torn <= unfinished.max(WORKERS), "{torn} unfinished lines");
    all
}

/// The client id of an owner, without its fifteenth character, which changes when the client learns whether
/// it may use the wait queue.
fn client_of(owner: &str) -> String {
    owner.chars().take(36).enumerate().filter(|(at, _)| *at != 14).map(|(_, letter)| letter).collect()
}

fn operations(lines: &[Line]) -> Vec<Operation> {
    let mut shut_down: BTreeMap<String, u64> = BTreeMap::new();
    for line in lines {
        if let Line::ShutsDown(client, at) = line {
            shut_down.insert(client_of(client), *at);
        }
    }
    let mut all = Vec::new();
    let mut asked: BTreeMap<u64, &Operation> = BTreeMap::new();
    // Each hold, the first moment at which it may have ended, and the time of the unlock's answer, if any.
    let mut holds: BTreeMap<u64, (Operation, u64, Option<u64>)> = BTreeMap::new();
    for line in lines {
        match line {
            Line::Did(operation, until) => {
                let ends = shut_down.get(&client_of(&operation.owner)).copied().unwrap_or(u64::MAX);
                // A client that shuts down releases a lock that is granted meanwhile, so this is no hold.
                if operation.ret.is_some_and(|ret| ret >= ends) {
                    continue;
                }
                asked.remove(&operation.hold);
                all.push(operation.clone());
                if let Some(until) = until {
                    holds.insert(operation.hold, (operation.clone(), (*until).min(ends), None));
                }
            }
            Line::Asks(operation) => drop(asked.insert(operation.hold, operation)),
            Line::Refused(operation) => drop(asked.remove(operation)),
            Line::Until(hold, until) => {
                if let Some((operation, end, _)) = holds.get_mut(hold) {
                    let ends = shut_down.get(&client_of(&operation.owner)).copied().unwrap_or(u64::MAX);
                    *end = (*end).max((*until).min(ends));
                }
            }
            Line::Unlocks(hold, at) => {
                if let Some((_, end, _)) = holds.get_mut(hold) {
                    *end = (*end).min(*at);
                }
            }
            Line::Unlocked(hold, at) => {
                if let Some((_, _, by)) = holds.get_mut(hold) {
                    *by = Some(*at);
                }
            }
            Line::Lost(_) | Line::ShutsDown(..) | Line::Failed(..) | Line::Idle => {}
        }
    }
    for (operation, call, ret) in holds.into_values() {
        all.push(Operation { f: Doing::End, fence: None, value: None, call, ret, ..operation });
    }
    all.extend(asked.into_values().cloned());
    all
}

const FIGURES: &str = "docs/figures/histories.md";

/// If `LEASEHOLD_BLESS` is set, writes the store's row into [`FIGURES`].
fn page(store: &str, cells: &[String]) {
    if std::env::var_os("LEASEHOLD_BLESS").is_none() {
        return;
    }
    let say = |program: &[&str]| {
        let (good, text) = crate::support::run(program, |command| command);
        assert!(good, "{program:?}: {text}");
        text.trim().to_owned()
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FIGURES);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut row = format!(
        "| {store} | {} | {} |",
        say(&["date", "-u", "+%F"]),
        say(&["git", "rev-parse", "--short", "HEAD"])
    );
    cells.iter().for_each(|cell| write!(row, " {cell} |").unwrap());
    let mut lines: Vec<&str> = text.lines().collect();
    let begins = format!("| {store} |");
    match lines.iter_mut().find(|line| line.starts_with(&begins)) {
        Some(old) => *old = &row,
        None => lines.push(&row),
    }
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
}
