//! Deadlocks of real processes, each of which runs this test program.
//!
//! `LEASEHOLD_DEADLOCK_SECONDS` (10) is the time of each random program; from 60 on there are 200 of them
//! instead of 20, 50 at a time.

use std::path::{Path, PathBuf};

use leasehold::{Deadlock, Event, Observer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::deadlock_log::{Figures, Log, Notes, Player, Report};
use crate::support::etcd::{Etcd, say_missing};
use crate::support::observer::deadlocks;
use crate::support::postgres::PostgresServer;
use crate::support::prelude::*;
use crate::support::zookeeper::{CALM, ZooKeeper};
use crate::support::{Process, instant_of, mono, random, reexecuted, test_name};

const ORDERS: &str = "LEASEHOLD_DEADLOCK_ORDERS";

/// A deadlock is reported, and broken where requested, within this.
const WITHIN: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Orders {
    url: String,
    folder: PathBuf,
    process: usize,
    what: What,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum What {
    Programs(usize, Duration),
    Takes(End),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum End {
    /// Both processes give up after their reports.
    GivenUp,
    /// The clients break it.
    Broken,
    Killed,
}

const LEASE: Duration = Duration::from_secs(3);

impl Orders {
    fn here() -> Option<Orders> {
        Some(serde_json::from_str(&std::env::var(ORDERS).ok()?).unwrap())
    }

    fn start(&self, test: &str) -> Process {
        reexecuted(test, &[(ORDERS, &serde_json::to_string(self).unwrap())])
    }

    fn file(&self, what: &str, process: usize) -> PathBuf {
        self.folder.join(format!("{what}-{process}"))
    }

    fn says(&self, what: &str, value: &impl Serialize) {
        let file = self.file(what, self.process);
        let written = file.with_extension("new");
        std::fs::write(&written, serde_json::to_vec(value).unwrap()).unwrap();
        std::fs::rename(written, file).unwrap();
    }

    fn meets(&self, what: &str, processes: usize) {
        let all = || (0..processes).all(|process| self.file(what, process).exists());
        assert!(eventually(LONG * 3, all), "{what} was not said by all");
    }

    fn work(&self) {
        match self.what {
            What::Programs(programs, lasts) => self.take_part(programs, lasts),
            What::Takes(end) => self.take_both(end),
        }
    }
}

fn said<T: DeserializeOwned>(folder: &Path, what: &str, process: usize) -> T {
    let file = folder.join(format!("{what}-{process}"));
    serde_json::from_slice(&std::fs::read(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"))).unwrap()
}

fn end_well(processes: Vec<Process>, limit: Duration) {
    for process in processes {
        let (good, text) = process.ends_within(limit);
        assert!(good, "{text}");
    }
}

const PROCESSES: usize = 6;
const NAMES: usize = 5;

const TOGETHER: usize = 5;

/// A longer wait must be accounted for.
const LONG_WAIT: Duration = Duration::from_secs(5);

struct Noting(Vec<Arc<Notes>>, usize);

impl Observer for Noting {
    fn event(&self, event: &Event<'_>) {
        if let Event::Deadlock { deadlock, .. } = event
            && deadlock.is_certain
        {
            let program = deadlock.steps[0].holds.split(':').nth(1).expect("program:NUMBER:NAME");
            self.0[program.parse::<usize>().unwrap()].report(Report::new(self.1, deadlock));
        }
    }
}

fn lock_of(client: &LockClient, at: usize, name: &str) -> RedisLock {
    match at % 4 {
        0 => client.get_lock(name),
        1 => client.get_fair_lock(name),
        2 => client.get_read_write_lock(name).write().clone(),
        _ => RedisLock::clone(&client.get_fenced_lock(name)),
    }
}

impl Orders {
    fn take_part(&self, programs: usize, lasts: Duration) {
        let process = self.process;
        let notes: Vec<Arc<Notes>> = (0..programs).map(|_| Arc::default()).collect();
        let clients: Vec<LockClient> = (0..programs.div_ceil(TOGETHER))
            .map(|_| {
                let builder = LockClient::builder().url(&self.url).label(process.to_string());
                let builder = builder.observer(Noting(notes.clone(), process));
                builder.command_timeout(LONG).build().unwrap()
            })
            .collect();
        self.says("connected", &());
        self.meets("connected", PROCESSES);
        let interrupt = Interrupt::new();
        std::thread::scope(|scope| {
            for (program, notes) in notes.iter().enumerate() {
                let (client, interrupt) = (&clients[program / TOGETHER], &interrupt);
                scope.spawn(move || {
                    let names: Vec<String> = (0..NAMES).map(|at| format!("program:{program}:{at}")).collect();
                    let make = &|client: &LockClient, at: usize| lock_of(client, at, &names[at]);
                    let player = Player { client, notes, process, names: &names, make, interrupt };
                    while !interrupt.is_interrupted() {
                        // Sometimes a process runs for long with its locks, while others wait.
                        let work = if random().is_multiple_of(6) { 7_000 } else { random() % 300 };
                        player.take_some(ms(6_000 + random() % 3_000), ms(work));
                    }
                });
            }
            let_pass(lasts, "the programs run");
            interrupt.interrupt();
        });
        // All reports are made by then.
        clients.iter().for_each(|client| client.shutdown().unwrap());
        let_pass(ms(100), "what is told, is told on threads of the clients");
        let logs: Vec<Log> = notes.iter().map(|notes| notes.log()).collect();
        self.says("log", &logs);
    }
}

fn programs_side_by_side(programs: usize, lasts: Duration) -> Option<Figures> {
    let server = RedisServer::start_default()?;
    let (folder, test) = (tempfile::tempdir().unwrap(), test_name());
    let orders = |process| Orders {
        url: server.url(),
        folder: folder.path().to_owned(),
        process,
        what: What::Programs(programs, lasts),
    };
    let processes: Vec<Process> = (0..PROCESSES).map(|process| orders(process).start(&test)).collect();
    end_well(processes, lasts + LONG * 4);
    let mut logs: Vec<Log> = (0..programs).map(|_| Log::default()).collect();
    for process in 0..PROCESSES {
        let its: Vec<Log> = said(folder.path(), "log", process);
        logs.iter_mut().zip(its).for_each(|(log, its)| log.add(its));
    }
    let mut all = Figures::default();
    for log in &logs {
        let mut figures = log.check(WITHIN);
        log.check_long_waits(LONG_WAIT, WITHIN, &mut figures);
        all.add(figures);
    }
    Some(all)
}

/// Every long wait is on a reported cycle, leads to one, or to a running process; and nothing else is
/// reported.
#[test]
fn random_processes_report_exactly_their_deadlocks() {
    if let Some(orders) = Orders::here() {
        return orders.work();
    }
    watch_for_stalls();
    let seconds = std::env::var("LEASEHOLD_DEADLOCK_SECONDS");
    let seconds = seconds.map_or(10, |seconds| seconds.parse().expect("a number of seconds"));
    let (least, programs) = if seconds < 60 { (1, 20) } else { (4, 50) };
    let has_happened = |all: &Figures| all.due > 5 && all.on_ring > 5 && all.before_running > 0;
    let (mut all, mut rounds) = (Figures::default(), 0);
    // Chance decides which sorts of waits a round has.
    while rounds < least || !has_happened(&all) && rounds < least + 4 {
        let Some(figures) = programs_side_by_side(programs, Duration::from_secs(seconds)) else { return };
        all.add(figures);
        rounds += 1;
    }
    assert!(has_happened(&all), "hardly anything happened: {all:?}");
    let longest = all.told_after.iter().max().copied().unwrap_or_default();
    let Figures { rings, due, reports, on_ring, before_ring, before_running, changing, .. } = all;
    shout(&format!(
        "MEASURED {PROCESSES} processes, {rounds} x {programs} programs, {seconds} s each: {rings} rings, {due} of them for longer than {WITHIN:?}; \
         {reports} reports, none false, the first of a ring after {:?} (median) and {longest:?} at most; waits longer than \
         {LONG_WAIT:?}: {on_ring} on a ring that was told, {before_ring} before one, {before_running} before a process that ran, \
         {changing} that changed and ended",
        median(all.told_after),
    ));
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Took {
    began: Duration,
    told: Option<Duration>,
    over: Option<Duration>,
    got: Option<Duration>,
    broken: Option<Duration>,
    pids: Vec<u32>,
}

impl Orders {
    fn client(&self, end: End) -> (LockClient, Receiver<(bool, Deadlock, Duration)>) {
        let (observer, told) = deadlocks(mono);
        let builder = LockClient::builder().url(&self.url).observer(observer);
        let builder = builder.break_deadlocks(end == End::Broken).command_timeout(LONG);
        let builder = if self.url.starts_with("postgres") { builder.create_schema(true) } else { builder };
        let lease = if end == End::Killed && self.process == 1 { LEASE } else { LONG };
        (builder.lease(lease).build().unwrap(), told)
    }

    fn take_both(&self, end: End) {
        let (client, told) = self.client(end);
        let name = |at: usize| format!("{end:?}:{}", ["a", "b"][at]);
        let (own, other) = (name(self.process), name(1 - self.process));
        let held = client.get_lock(&own).acquire().unwrap();
        self.says("holds", &());
        self.meets("holds", 2);
        let mut took = Took { began: mono(), ..Took::default() };
        let interrupt = Interrupt::new();
        let got = std::thread::scope(|scope| {
            scope.spawn(|| {
                // If a break ends the cycle, the surviving process may not have searched by then.
                let limit = if end == End::Broken { WITHIN * 2 } else { LONG * 2 };
                let Ok((is_begin, deadlock, at)) = told.recv_timeout(limit) else {
                    assert!(end == End::Broken, "it is told");
                    return;
                };
                assert!(is_begin && deadlock.is_certain, "{deadlock}");
                took.pids = deadlock.steps.iter().map(|step| step.location.pid).collect();
                took.told = Some(at);
                self.says("told", &());
                if end == End::GivenUp {
                    self.meets("told", 2);
                    interrupt.interrupt();
                }
            });
            let options = AcquireOptions::new().interrupt(&interrupt);
            let got = client.get_lock(&other).acquire_with(&options).map(Option::unwrap);
            // The time is read here, since the thread above may wait longer for missing reports.
            (got, mono())
        });
        match got {
            (Ok(guard), at) => {
                took.got = Some(at);
                guard.unlock().unwrap();
            }
            (Err(error), at) if error.kind() == ErrorKind::Deadlock => took.broken = Some(at),
            (Err(error), _) => assert!(error.is_interrupted(), "{error}"),
        }
        held.unlock().unwrap();
        if took.told.is_some() {
            let (is_begin, deadlock, at) = told.recv_timeout(LONG).expect("it is told to be over");
            assert!(!is_begin, "{deadlock}");
            took.over = Some(at);
        }
        client.shutdown().unwrap();
        self.says("took", &took);
    }
}

fn in_opposite_orders(store: &str, url: &str) {
    let test = test_name();
    std::thread::scope(|scope| {
        for end in [End::GivenUp, End::Broken, End::Killed] {
            let test = test.clone();
            scope.spawn(move || both_take(store, url, end, &test));
        }
    });
}

fn both_take(store: &str, url: &str, end: End, test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let orders = |process| Orders {
        url: url.to_owned(),
        folder: folder.path().to_owned(),
        process,
        what: What::Takes(end),
    };
    let mut processes: Vec<Process> = (0..2).map(|process| orders(process).start(test)).collect();
    let mut pids: Vec<u32> = processes.iter().map(Process::pid).collect();
    let mut killed = None;
    if end == End::Killed {
        let is_told =
            eventually(LONG * 3, || (0..2).all(|at| folder.path().join(format!("told-{at}")).exists()));
        assert!(is_told, "{}", processes.iter().map(Process::output).collect::<String>());
        killed = Some(mono());
        drop(processes.pop());
    }
    let living = processes.len();
    end_well(processes, LONG * 4);
    let took: Vec<Took> = (0..living).map(|process| said(folder.path(), "took", process)).collect();
    let began = took.iter().map(|took| took.began).max().unwrap();
    let stalled = stalled_since(instant_of(began));
    let told = took.iter().filter_map(|took| took.told).min().unwrap().saturating_sub(began);
    assert!(told <= WITHIN + SLACK + stalled, "{store}: told after {told:?}");
    pids.sort_unstable();
    for took in took.iter().filter(|took| took.told.is_some()) {
        let mut seen = took.pids.clone();
        seen.sort_unstable();
        assert_eq!(seen, pids, "{store}: the processes are named");
    }
    let mut figures = format!("told after {told:?}");
    match end {
        End::GivenUp => {}
        End::Broken => {
            let broken: Vec<Duration> = took.iter().filter_map(|took| took.broken).collect();
            let got: Vec<Duration> = took.iter().filter_map(|took| took.got).collect();
            let ([broken], [got]) = (&broken[..], &got[..]) else {
                panic!("{store}: one ends and the other goes on: {took:?}")
            };
            let ended = broken.saturating_sub(began);
            assert!(ended <= WITHIN + SLACK + stalled, "{store}: broken after {ended:?}");
            // The victim releases at once, which wakes the other.
            let woken = got.saturating_sub(*broken);
            assert!(woken <= SLACK + stalled, "{store}: the other went on {woken:?} later");
            figures = format!("{figures}, broken after {ended:?}, the other went on {woken:?} later");
        }
        End::Killed => {
            let (Some(killed), Some(got), Some(over)) = (killed, took[0].got, took[0].over) else {
                panic!("{store}: the other has the lock, and it is over: {took:?}")
            };
            let (freed, over) = (got.saturating_sub(killed), over.saturating_sub(got));
            // etcd rounds leases up to whole seconds, and adds one.
            assert!(freed <= LEASE + ms(1_500) + SLACK + stalled, "{store}: free after {freed:?}");
            assert!(over <= ms(1_000) + SLACK + stalled, "{store}: over {over:?} later");
            figures = format!("{figures}, killed, free after {freed:?}, told to be over {over:?} later");
        }
    }
    shout(&format!("MEASURED {store}, two processes, {end:?}: {figures}"));
}

/// Each test shows for a store: a deadlock of two processes is reported within three seconds; broken as soon,
/// if requested, with the other process woken; and reported as over when a killed process's lease has ended.
macro_rules! in_opposite_orders {
    ($($store:ident: $start:expr;)+) => { $(
        mod $store {
            use super::*;

            #[test]
            fn two_processes_deadlock_is_reported_and_broken() {
                if let Some(orders) = Orders::here() {
                    return orders.work();
                }
                let Some(server) = $start else { return };
                watch_for_stalls();
                in_opposite_orders(stringify!($store), &server.url());
            }
        }
    )+ };
}

fn etcd() -> Option<Etcd> {
    let server = Etcd::start();
    if server.is_none() {
        say_missing();
    }
    server
}

in_opposite_orders!(
    redis: RedisServer::start_default();
    postgres: PostgresServer::start();
    etcd: etcd();
    zookeeper: ZooKeeper::start(CALM);
);
