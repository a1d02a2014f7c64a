//! Deadlocks of real processes, each of which runs this test program.

use std::path::PathBuf;

use leasehold::Deadlock;
use serde::{Deserialize, Serialize};

use crate::support::observer::deadlocks;
use crate::support::prelude::*;
use crate::support::running::Start;
use crate::support::{Process, instant_of, mono, reexecuted, test_name};

const ORDERS: &str = "LEASEHOLD_DEADLOCK_ORDERS";

/// The time within which a deadlock is reported and, where requested, broken.
const WITHIN: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Orders {
    url: String,
    folder: PathBuf,
    process: usize,
    end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum End {
    /// Both processes give up once both got a report.
    GivenUp,
    /// The clients break the deadlock.
    Broken,
    Killed,
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

const LEASE: Duration = Duration::from_secs(3);

impl Orders {
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

    fn meets(&self, what: &str) {
        let both = || (0..2).all(|process| self.file(what, process).exists());
        assert!(eventually(LONG * 3, both), "not both processes wrote {what}");
    }

    fn client(&self) -> (LockClient, Receiver<(bool, Deadlock, Duration)>) {
        let (observer, told) = deadlocks(mono);
        let builder = LockClient::builder().url(&self.url).observer(observer);
        let builder = builder.break_deadlocks(self.end == End::Broken).command_timeout(LONG);
        let lease = if self.end == End::Killed && self.process == 1 { LEASE } else { LONG };
        (builder.lease(lease).build().unwrap(), told)
    }

    fn take_both(&self) {
        let (client, told) = self.client();
        let end = self.end;
        let name = |at: usize| format!("{end:?}:{}", ["a", "b"][at]);
        let (own, other) = (name(self.process), name(1 - self.process));
        let held = client.get_lock(&own).acquire().unwrap();
        self.says("holds", &());
        self.meets("holds");
        let mut took = Took { began: mono(), ..Took::default() };
        let interrupt = Interrupt::new();
        let got = std::thread::scope(|scope| {
            scope.spawn(|| {
                // If the other process breaks the deadlock, this one may get no report: the limit is short.
                let limit = if end == End::Broken { WITHIN * 2 } else { LONG * 2 };
                let Ok((is_begin, deadlock, at)) = told.recv_timeout(limit) else {
                    assert!(end == End::Broken, "the deadlock was not reported");
                    return;
                };
                assert!(is_begin && deadlock.is_certain, "{deadlock}");
                took.pids = deadlock.steps.iter().map(|step| step.location.pid).collect();
                took.told = Some(at);
                self.says("told", &());
                if end == End::GivenUp {
                    self.meets("told");
                    interrupt.interrupt();
                }
            });
            let options = AcquireOptions::new().interrupt(&interrupt);
            let got = client.get_lock(&other).acquire_with(&options).map(Option::unwrap);
            // The time is read here: the scope may end much later, as the thread above waits for a report.
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
            let (is_begin, deadlock, at) =
                told.recv_timeout(LONG).expect("the deadlock's end was not reported");
            assert!(!is_begin, "{deadlock}");
            took.over = Some(at);
        }
        client.shutdown().unwrap();
        self.says("took", &took);
    }
}

/// A deadlock of two processes is reported, and broken where requested, within three seconds. If it is
/// broken, one process acquires. If one is killed, the deadlock is reported as over after its lease.
pub(crate) fn two_processes_deadlock_is_reported_and_broken(store: &str, start: Start) {
    if let Ok(orders) = std::env::var(ORDERS) {
        return serde_json::from_str::<Orders>(&orders).unwrap().take_both();
    }
    let Some(server) = start() else { return };
    watch_for_stalls();
    let test = &test_name();
    thread::scope(|scope| {
        for end in [End::GivenUp, End::Broken, End::Killed] {
            let url = &server.url;
            scope.spawn(move || both_take(store, url, end, test));
        }
    });
}

fn both_take(store: &str, url: &str, end: End, test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let orders =
        [0, 1].map(|process| Orders { url: url.to_owned(), folder: folder.path().to_owned(), process, end });
    let mut processes: Vec<Process> = orders.iter().map(|orders| orders.start(test)).collect();
    let mut pids: Vec<u32> = processes.iter().map(Process::pid).collect();
    let mut killed = None;
    if end == End::Killed {
        let are_told = || (0..2).all(|process| orders[0].file("told", process).exists());
        let output = || processes.iter().map(Process::output).collect::<String>();
        assert!(eventually(LONG * 3, are_told), "{}", output());
        killed = Some(mono());
        drop(processes.pop());
    }
    let living = processes.len();
    for process in processes {
        let (good, text) = process.ends_within(LONG * 4);
        assert!(good, "{text}");
    }
    let said = |process| std::fs::read(orders[0].file("took", process)).unwrap();
    let took: Vec<Took> =
        (0..living).map(|process| serde_json::from_slice(&said(process)).unwrap()).collect();
    let began = took.iter().map(|took| took.began).max().unwrap();
    let stalled = stalled_since(instant_of(began));
    let told = took.iter().filter_map(|took| took.told).min().unwrap().saturating_sub(began);
    assert!(told <= WITHIN + SLACK + stalled, "{store}: reported after {told:?}");
    pids.sort_unstable();
    for took in took.iter().filter(|took| took.told.is_some()) {
        let mut seen = took.pids.clone();
        seen.sort_unstable();
        assert_eq!(seen, pids, "{store}: the report names other processes");
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
            let woken = got.saturating_sub(*broken);
            assert!(woken <= SLACK + stalled, "{store}: the other went on {woken:?} later");
            figures = format!("{figures}, broken after {ended:?}, the other went on {woken:?} later");
        }
        End::Killed => {
            let (Some(killed), Some(got), Some(over)) = (killed, took[0].got, took[0].over) else {
                panic!("{store}: the other has the lock, and it is over: {took:?}")
            };
            let (freed, over) = (got.saturating_sub(killed), over.saturating_sub(got));
            // On etcd a lease is up to a second longer, and etcd looks for ended leases every half second.
            assert!(freed <= LEASE + ms(1_500) + SLACK + stalled, "{store}: free after {freed:?}");
            assert!(over <= ms(1_000) + SLACK + stalled, "{store}: over {over:?} later");
            figures = format!("{figures}, killed, free after {freed:?}, told to be over {over:?} later");
        }
    }
    shout(&format!("MEASURED {store}, two processes, {end:?}: {figures}"));
}
