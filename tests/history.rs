//! Many processes on few locks while workers are killed and stopped, connections cut and scripts forgotten; and
//! afterwards, from what all of them wrote down, whether two ever held a lock at once. Promises P1–P3.
//!
//! What a holder claims is what it was promised: from the return of its acquire to the beginning of its unlock, or
//! to the end of the window that `remaining()` had told it, whichever is first. That also goes for holders that were
//! killed or stopped in between: the server must keep their locks for that long.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers too"
)]

mod support;
#[path = "faults/tools.rs"]
mod tools;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{Error, Guard, LockClient};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use support::history::{Claim, check};
use support::{eventually, now, random};
use tools::{LONG, OWN, Process, World, let_pass, ms, reexecuted, scenario};

/// How long the trouble lasts.
const RUN: Duration = Duration::from_secs(20);
const LEASE: Duration = ms(1000);
const TIMEOUT: Duration = ms(300);
const WORKERS: usize = 3;
const THREADS: usize = 3;
const LOCKS: usize = 3;

/// Nanoseconds of the clock that all processes of this machine share.
fn mono() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

/// One line of a worker's file.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    t: u64,
    pid: u32,
    /// Of the hold, together with `pid`.
    id: u64,
    what: What,
}

#[derive(Debug, Serialize, Deserialize)]
enum What {
    /// The lock is held, promised until then.
    Holds { lock: usize, owner: String, fence: u64, until: u64 },
    /// It is still held, promised until then.
    Until(u64),
    /// The unlock begins.
    Unlocks,
    /// The holder was told that it had lost it.
    Lost,
    /// The fenced store took or refused a write.
    Wrote(bool),
    /// An unlock succeeded.
    Unlocked,
    /// A call failed; whether it may fail so.
    Failed { error: String, allowed: bool },
}

// ---- the workers

/// Reads under a fence, and shuts out older ones; -1: this one is older.
const READ: &str = "if tonumber(ARGV[1]) < tonumber(redis.call('get', KEYS[2]) or '0') then return -1 end
    redis.call('set', KEYS[2], ARGV[1]) return tonumber(redis.call('get', KEYS[1]) or '0')";
/// Writes under a fence, and remembers whose writes were taken: one that is asked for again is one write.
const WRITE: &str = "if tonumber(ARGV[1]) < tonumber(redis.call('get', KEYS[2]) or '0') then return 0 end
    redis.call('set', KEYS[1], ARGV[2]) redis.call('sadd', KEYS[3], ARGV[3]) return 1";

struct Worker {
    file: File,
    store: redis::Client,
    next: u64,
    pid: u32,
}

impl Worker {
    fn note(&mut self, t: u64, id: u64, what: What) {
        let mut line = serde_json::to_string(&Line { t, pid: self.pid, id, what }).unwrap();
        line.push('\n');
        self.file.write_all(line.as_bytes()).unwrap();
    }

    fn failed(&mut self, id: u64, error: &Error) {
        // Connections are killed all the time; a stopped process finds its holds lost.
        let allowed = error.is_retryable() || error.is_lost() || error.outcome_unknown();
        self.note(mono(), id, What::Failed { error: tools::texts(error), allowed });
    }

    /// A command of the fenced store, which has connections of its own, and is asked until it answers.
    fn ask(&self, script: &str, lock: usize, arguments: &[u64]) -> i64 {
        let keys = ["value", "newest", "writes"].map(|what| format!("{OWN}{what}-{lock}"));
        let mut answer = None;
        let answered = eventually(LONG, || {
            let Ok(mut connection) = self.store.get_connection_with_timeout(TIMEOUT) else { return false };
            let mut command = redis::cmd("EVAL");
            answer = command.arg(script).arg(3).arg(&keys).arg(arguments).query(&mut connection).ok();
            answer.is_some()
        });
        assert!(answered, "the fenced store does not answer");
        answer.unwrap()
    }

    /// One turn with one lock.
    fn turn(&mut self, client: &LockClient) {
        let lock = random() as usize % LOCKS;
        let fenced = client.fenced_lock(&format!("history-{lock}"));
        let taken = match random() % 4 {
            0 => fenced.try_acquire_for_with_lease(ms(500), LEASE),
            1 => fenced.try_acquire_for(ms(500)),
            _ => fenced.acquire().map(Some),
        };
        self.next += 1;
        let id = self.next;
        match taken {
            Ok(Some(guard)) => self.hold(lock, id, guard, &fenced),
            Ok(None) => {}
            Err(error) => self.failed(id, &error),
        }
    }

    fn hold(&mut self, lock: usize, id: u64, guard: Guard, again: &leasehold::NamedLock) {
        // The time first, what remains second: if something remains, the hold stood at that time.
        let promised = || {
            let t = mono();
            let remaining = guard.remaining();
            (t, t + u64::try_from(remaining.as_nanos()).unwrap(), !remaining.is_zero())
        };
        let fence = guard.fence().unwrap().get();
        let (t, until, stands) = promised();
        if stands {
            self.note(t, id, What::Holds { lock, owner: guard.owner().to_string(), fence, until });
        }
        let nested =
            random().is_multiple_of(4).then(|| again.try_acquire()).transpose().ok().flatten().flatten();
        let read = self.ask(READ, lock, &[fence]);
        let_pass(ms(random() % 20), "it works");
        let (t, until, stands) = promised();
        if stands {
            self.note(t, id, What::Until(until));
        } else {
            self.note(t, id, What::Lost);
        }
        // Without a look at the guard: it is the store that refuses what comes late.
        if let Ok(read) = u64::try_from(read) {
            let taken = self.ask(WRITE, lock, &[fence, read + 1, u64::from(self.pid) << 40 | id]) == 1;
            self.note(mono(), id, What::Wrote(taken));
        } else {
            self.note(mono(), id, What::Wrote(false));
        }
        if guard.check().is_err() {
            self.note(mono(), id, What::Lost);
        }
        drop(nested);
        self.note(mono(), id, What::Unlocks);
        match guard.unlock() {
            Ok(()) => self.note(mono(), id, What::Unlocked),
            Err(error) => self.failed(id, &error),
        }
    }
}

/// A worker process: some threads, until the time is over.
fn work(folder: &str, url: &str, end: u64) {
    let path = Path::new(folder).join(format!("{}.jsonl", std::process::id()));
    let file = File::options().create(true).append(true).open(path).unwrap();
    // The server may be standing still at this moment.
    let mut client = None;
    let connected = eventually(LONG, || {
        let builder = LockClient::builder().url(url).lease(LEASE).command_timeout(TIMEOUT);
        client = builder.connect_timeout(TIMEOUT).patience(LONG).build().ok();
        client.is_some()
    });
    assert!(connected, "no connection to {url}");
    let client = client.unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (file, client) = (file.try_clone().unwrap(), &client);
            let store = redis::Client::open(url).unwrap();
            scope.spawn(move || {
                let mut worker = Worker { file, store, next: (thread as u64) << 32, pid: std::process::id() };
                while mono() < end {
                    worker.turn(client);
                }
            });
        }
    });
    // The last of the trouble may meet its last clean-up.
    drop(client.shutdown());
}

// ---- the trouble

struct Trouble {
    workers: Vec<Process>,
    /// Stopped workers, and when they go on.
    stopped: Vec<(u32, u64)>,
    killed: BTreeSet<u32>,
    stops: usize,
    strikes: usize,
}

impl Trouble {
    fn start_worker(&mut self, variables: &[(&str, &str)]) {
        self.workers.push(reexecuted(TEST, variables));
    }

    /// A worker that runs.
    fn victim(&self) -> Option<usize> {
        let running: Vec<usize> = (0..self.workers.len())
            .filter(|at| self.stopped.iter().all(|(pid, _)| *pid != self.workers[*at].pid()))
            .collect();
        // One is always left to run.
        (running.len() > 1).then(|| running[random() as usize % running.len()])
    }

    fn resume(&mut self, until: u64) {
        let (due, later): (Vec<_>, Vec<_>) = self.stopped.iter().partition(|(_, at)| *at <= until);
        self.stopped = later;
        for worker in &self.workers {
            if due.iter().any(|(pid, _)| *pid == worker.pid()) {
                worker.signal("CONT");
            }
        }
    }

    fn strike(&mut self, world: &World, variables: &[(&str, &str)]) {
        world.does(&["SCRIPT", "FLUSH"]);
        // Each kind of trouble comes soon, and then by chance.
        let what = [2, 0, 3, 5, 2, 4].get(self.strikes).copied().unwrap_or_else(|| random() % 6);
        self.strikes += 1;
        match what {
            0 | 1 => {
                if let Some(at) = self.victim() {
                    let worker = &self.workers[at];
                    worker.signal("STOP");
                    self.stops += 1;
                    let span = LEASE + LEASE / 2 + ms(random() % 1000);
                    self.stopped.push((worker.pid(), mono() + u64::try_from(span.as_nanos()).unwrap()));
                }
            }
            2 => {
                if let Some(at) = self.victim() {
                    let worker = self.workers.swap_remove(at);
                    self.killed.insert(worker.pid());
                    drop(worker); // SIGKILL
                    self.start_worker(variables);
                }
            }
            3 => {
                world.server.stop();
                let_pass(LEASE / 3, "while the server stands still");
                world.server.cont();
            }
            4 => world.does(&["CLIENT", "KILL", "TYPE", "pubsub"]),
            _ => world.does(&["CLIENT", "KILL", "TYPE", "normal"]),
        }
    }
}

const TEST: &str = "no_two_processes_ever_hold_a_lock_at_once_whatever_is_done_to_them";
const WORK: &str = "LEASEHOLD_HISTORY_WORK";

#[test]
fn no_two_processes_ever_hold_a_lock_at_once_whatever_is_done_to_them() {
    if let Ok(orders) = std::env::var(WORK) {
        let mut orders = orders.split('|');
        let mut next = || orders.next().unwrap();
        return work(next(), next(), next().parse().unwrap());
    }
    scenario(|world| {
        let folder = tempfile::tempdir().unwrap();
        let begun = now();
        let end = mono() + u64::try_from(RUN.as_nanos()).unwrap();
        let orders = format!("{}|{}|{end}", folder.path().display(), world.server.url());
        let variables = [(WORK, orders.as_str())];
        let mut trouble = Trouble {
            workers: Vec::new(),
            stopped: Vec::new(),
            killed: BTreeSet::new(),
            stops: 0,
            strikes: 0,
        };
        (0..WORKERS).for_each(|_| trouble.start_worker(&variables));
        assert!(eventually(LONG, || read(folder.path()).len() > 10), "nobody works");
        while begun.elapsed() < RUN {
            let_pass(ms(100 + random() % 300), "between two strikes");
            trouble.resume(mono());
            trouble.strike(world, &variables);
        }
        trouble.resume(u64::MAX);
        for worker in trouble.workers {
            let (good, text) = worker.ends_within(LONG);
            assert!(good, "a worker failed:\n{text}");
        }
        judge(world, &read(folder.path()), &trouble.killed, trouble.stops);
    });
}

/// All lines that were written, in order of time. What a killed worker was just writing is no line.
fn read(folder: &Path) -> Vec<Line> {
    let files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let texts = files.iter().map(|file| std::fs::read_to_string(file).unwrap());
    let mut lines: Vec<Line> = texts
        .flat_map(|text| text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<_>>())
        .collect();
    lines.sort_by_key(|line| line.t);
    lines
}

fn judge(world: &World, lines: &[Line], killed: &BTreeSet<u32>, stops: usize) {
    let mut claims: BTreeMap<(u32, u64), (usize, Claim)> = BTreeMap::new();
    let (mut ended, mut lost, mut refused, mut written) = (BTreeSet::new(), BTreeSet::new(), 0, 0);
    let at = |nanos: u64| Duration::from_nanos(nanos);
    for line in lines {
        let id = (line.pid, line.id);
        match &line.what {
            What::Holds { lock, owner, fence, until } => {
                let claim = Claim {
                    owner: owner.clone(),
                    token: Some(*fence),
                    acquired: at(line.t),
                    end: Some(at(*until)),
                };
                claims.insert(id, (*lock, claim));
            }
            What::Until(until) => {
                if let Some((_, claim)) = claims.get_mut(&id) {
                    claim.end = claim.end.max(Some(at(*until)));
                }
            }
            What::Unlocks => {
                if let Some((_, claim)) = claims.get_mut(&id) {
                    claim.end = claim.end.min(Some(at(line.t)));
                }
                ended.insert(id);
            }
            What::Lost => drop(lost.insert(id)),
            What::Wrote(taken) => *(if *taken { &mut written } else { &mut refused }) += 1,
            What::Unlocked => {
                assert!(!lost.contains(&id), "an unlock succeeded after the loss was told: {line:?}")
            }
            What::Failed { error, allowed } => assert!(*allowed, "a call failed: {error}"),
        }
    }
    let mut found = Vec::new();
    for lock in 0..LOCKS {
        let of_lock: Vec<Claim> =
            claims.values().filter(|(of, _)| *of == lock).map(|(_, claim)| claim.clone()).collect();
        found.extend(check(&of_lock).into_iter().map(|violation| format!("lock {lock}: {violation}")));
        // No update was lost behind the fence: as many as were taken, also by those who died before saying so.
        let value: Option<u64> = world.run(&["GET", &format!("{OWN}value-{lock}")]);
        let writes: u64 = world.run(&["SCARD", &format!("{OWN}writes-{lock}")]);
        assert_eq!(value.unwrap_or(0), writes, "lock {lock}: updates were lost");
    }
    assert!(found.is_empty(), "{} violations in {} claims:\n{}", found.len(), claims.len(), found.join("\n"));
    let died_holding = claims.keys().filter(|id| killed.contains(&id.0) && !ended.contains(*id)).count();
    let told = format!(
        "COUNTED {} holds, {written} writes taken and {refused} refused, {} losses told, {stops} stops, {} kills, \
         {died_holding} of them while holding",
        claims.len(),
        lost.len(),
        killed.len(),
    );
    support::shout(&told);
    // A run in which nothing happened shows nothing.
    assert!(claims.len() >= 200, "only {} holds", claims.len());
    assert!(stops >= 1 && !killed.is_empty() && died_holding + lost.len() >= 1, "the trouble met nobody");
    assert!(written >= 200, "only {written} writes");
}
