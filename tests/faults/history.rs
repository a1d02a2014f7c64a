//! Many processes on few locks while workers are killed and stopped, connections cut and scripts forgotten;
//! and afterwards, from what all of them wrote down, whether two ever held a lock at once. Promises P1–P3.
//!
//! Every second worker is behind a slow link (20 ms each way), whose subscriber connection stalls now and
//! then. In each worker some threads take turns with few locks, one collects many locks and keeps them, one
//! leaves leases to run out, and the client is shut down under all of them again and again.
//!
//! `LEASEHOLD_HISTORY_SECONDS` says for how long (20); `./check soak` has it run for longer.
//!
//! A holder claims the time it was promised: from the return of its acquire to the beginning of its unlock,
//! or to the end of the window that `remaining()` had told it, whichever is first. That also goes for holders
//! that were killed or stopped in between: the server must keep their locks for that long.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{Error, ErrorKind, Guard, LockClient};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::world::{OWN, World, play};
use crate::support::history::{Claim, check};
use crate::support::proxy::{Direction, Which};
use crate::support::server::{RedisServer, default_server};
use crate::support::{
    LONG, Process, alone_within, eventually, leased, let_pass, ms, now, random, reexecuted,
};

const LEASE: Duration = ms(1000);
const TIMEOUT: Duration = ms(300);
/// How long a request or a reply takes on the slow link.
const LINK: Duration = ms(20);
const WORKERS: usize = 4;
const THREADS: usize = 3;
/// Few locks that many want, then many that are collected, then those whose leases are left to run out.
const LOCKS: usize = 3;
const COLLECTED: usize = 300;
const LEFT: usize = 50;
/// As many locks one thread holds at a time.
const COLLECTION: usize = 60;

/// How long the trouble lasts.
fn run() -> Duration {
    let seconds = std::env::var("LEASEHOLD_HISTORY_SECONDS");
    Duration::from_secs(seconds.map_or(20, |seconds| seconds.parse().expect("a number of seconds")))
}

/// The name of a lock by its number.
fn name(lock: usize) -> String {
    format!("history-{lock}")
}

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
    /// This client is about to be shut down, which gives back all that it holds.
    ShutsDown(String),
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
    /// The holds that were left to run out, by lock: the claim, and the fence.
    left: BTreeMap<usize, (u64, u64)>,
}

impl Worker {
    fn note(&mut self, t: u64, id: u64, what: What) {
        let mut line = serde_json::to_string(&Line { t, pid: self.pid, id, what }).unwrap();
        line.push('\n');
        self.file.write_all(line.as_bytes()).unwrap();
    }

    fn failed(&mut self, id: u64, error: &Error) {
        // Connections are killed all the time; a stopped process finds its holds lost.
        let allowed = crate::support::may_pass(error) || error.is_lost() || error.outcome_unknown();
        self.note(mono(), id, What::Failed { error: crate::support::observer::texts(error), allowed });
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

    /// Whether the turn ended so because the client was shut down under it.
    fn ended_by_shutdown(&mut self, id: u64, error: &Error) {
        if error.kind() != ErrorKind::ShutDown {
            self.failed(id, error);
        }
    }

    fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// One turn with one lock.
    fn turn(&mut self, client: &LockClient) {
        let lock = random() as usize % LOCKS;
        let fenced = client.get_fenced_lock(name(lock));
        let taken = match random() % 4 {
            0 => fenced.acquire_with(&leased(LEASE).wait(ms(500))),
            1 => fenced.try_acquire_for(ms(500)),
            _ => fenced.acquire().map(Some),
        };
        let id = self.next_id();
        match taken {
            Ok(Some(guard)) => self.hold(lock, id, guard, &fenced),
            Ok(None) => {}
            Err(error) => self.ended_by_shutdown(id, &error),
        }
    }

    /// Takes what it can get of many locks, keeps all for a while, and gives them back.
    fn collect(&mut self, client: &LockClient) {
        let mut held: Vec<(u64, Guard)> = Vec::new();
        let first = random() as usize % COLLECTED;
        for at in first..first + COLLECTION {
            let lock = LOCKS + at % COLLECTED;
            let id = self.next_id();
            match client.get_fenced_lock(name(lock)).try_acquire() {
                Ok(Some(guard)) => {
                    self.claims(lock, id, &guard);
                    held.push((id, guard));
                }
                Ok(None) => {}
                Err(error) => {
                    self.ended_by_shutdown(id, &error);
                    break;
                }
            }
        }
        let_pass(ms(random() % 1500), "it keeps them");
        for (id, guard) in &held {
            self.still_claims(*id, guard);
        }
        for (id, guard) in held {
            self.unlock(id, guard);
        }
    }

    /// Takes a lock for a moment and never gives it back: it ends with its lease.
    fn leave(&mut self, client: &LockClient) {
        let lock = LOCKS + COLLECTED + random() as usize % LEFT;
        let id = self.next_id();
        match client.get_fenced_lock(name(lock)).acquire_with(&leased(ms(100 + random() % 400)).wait(ms(50)))
        {
            Ok(Some(guard)) => {
                let fence = guard.fencing_token().unwrap().get();
                match self.left.insert(lock, (id, fence)) {
                    // A re-entry into what it has left: the same hold lasts longer.
                    Some((first, same)) if same == fence => {
                        self.left.insert(lock, (first, fence));
                        self.still_claims(first, &guard);
                    }
                    _ => self.claims(lock, id, &guard),
                }
                let _left = ManuallyDrop::new(guard);
            }
            Ok(None) => {}
            Err(error) => self.ended_by_shutdown(id, &error),
        }
    }

    /// Until when a hold is promised; whether it stands. The time is read first, what remains second: if
    /// something remains, the hold stood at that time.
    fn promised(guard: &Guard) -> (u64, u64, bool) {
        let t = mono();
        let remaining = guard.remaining();
        (t, t + u64::try_from(remaining.as_nanos()).unwrap(), !remaining.is_zero())
    }

    /// Notes a hold that has just begun.
    fn claims(&mut self, lock: usize, id: u64, guard: &Guard) {
        let (t, until, stands) = Worker::promised(guard);
        let fence = guard.fencing_token().unwrap().get();
        if stands {
            self.note(t, id, What::Holds { lock, owner: guard.owner().to_string(), fence, until });
        }
    }

    /// Notes whether the hold stands still.
    fn still_claims(&mut self, id: u64, guard: &Guard) {
        let (t, until, stands) = Worker::promised(guard);
        self.note(t, id, if stands { What::Until(until) } else { What::Lost });
    }

    fn unlock(&mut self, id: u64, guard: Guard) {
        self.note(mono(), id, What::Unlocks);
        match guard.unlock() {
            Ok(()) => self.note(mono(), id, What::Unlocked),
            Err(error) => self.ended_by_shutdown(id, &error),
        }
    }

    fn hold(&mut self, lock: usize, id: u64, guard: Guard, again: &leasehold::RedisLock) {
        self.claims(lock, id, &guard);
        let fence = guard.fencing_token().unwrap().get();
        let nested =
            random().is_multiple_of(4).then(|| again.try_acquire()).transpose().ok().flatten().flatten();
        let read = self.ask(READ, lock, &[fence]);
        let_pass(ms(random() % 20), "it works");
        self.still_claims(id, &guard);
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
        self.unlock(id, guard);
    }
}

/// A client; the server may be standing still at this moment.
fn connect(url: &str) -> LockClient {
    let mut client = None;
    let connected = eventually(LONG, || {
        let builder = LockClient::builder().url(url).lease(LEASE).command_timeout(TIMEOUT);
        client = builder.connect_timeout(TIMEOUT).retry_timeout(LONG).build().ok();
        client.is_some()
    });
    assert!(connected, "no connection to {url}");
    client.unwrap()
}

/// A worker process: some threads, until the time is over.
fn work(folder: &str, url: &str, store: &str, end: u64) {
    let over = Path::new(folder).join(OVER);
    let goes_on = || mono() < end && !over.exists();
    let path = Path::new(folder).join(format!("{}.jsonl", std::process::id()));
    let file = File::options().create(true).append(true).open(path).unwrap();
    let client = Mutex::new(connect(url));
    let worker = |thread: usize| Worker {
        file: file.try_clone().unwrap(),
        store: redis::Client::open(store).unwrap(),
        next: (thread as u64) << 32,
        pid: std::process::id(),
        left: BTreeMap::new(),
    };
    let mut keeper = worker(THREADS + 2);
    let turns: [fn(&mut Worker, &LockClient); 3] = [Worker::turn, Worker::collect, Worker::leave];
    std::thread::scope(|scope| {
        for thread in 0..THREADS + 2 {
            let (mut worker, client, goes_on) = (worker(thread), &client, &goes_on);
            let turn = turns[(thread + 1).saturating_sub(THREADS)];
            scope.spawn(move || {
                while goes_on() {
                    let client = client.lock().clone();
                    turn(&mut worker, &client);
                }
            });
        }
        while goes_on() {
            let_pass(ms(1000 + random() % 2000), "until the next shutdown");
            let old = std::mem::replace(&mut *client.lock(), connect(url));
            keeper.note(mono(), 0, What::ShutsDown(old.id().to_string()));
            drop(old.shutdown());
        }
    });
    // The last of the trouble may meet its last clean-up.
    drop(client.into_inner().shutdown());
}

// ---- the trouble

struct Trouble {
    workers: Vec<Process>,
    /// Stopped workers, and when they go on.
    stopped: Vec<(u32, u64)>,
    killed: BTreeSet<u32>,
    stops: usize,
    strikes: usize,
    started: usize,
}

impl Trouble {
    /// Every second one is behind the slow link.
    fn start_worker(&mut self, orders: &[String; 2]) {
        let order = &orders[self.started % 2];
        self.started += 1;
        self.workers.push(reexecuted(TEST, &[(WORK, order)]));
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

    fn strike(&mut self, world: &World, orders: &[String; 2]) {
        world.does(&["SCRIPT", "FLUSH"]);
        // Each kind of trouble comes soon, and then by chance.
        let what = [2, 0, 3, 6, 5, 2, 4].get(self.strikes).copied().unwrap_or_else(|| random() % 7);
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
                    self.start_worker(orders);
                }
            }
            3 => {
                world.server.stop();
                let_pass(LEASE / 3, "while the server stands still");
                world.server.cont();
            }
            4 => world.does(&["CLIENT", "KILL", "TYPE", "pubsub"]),
            6 => {
                // Neither SUBSCRIBE nor a message passes for longer than a lease.
                world.proxy.hold(Direction::ToServer, Which::Subscribers);
                world.proxy.hold(Direction::ToClient, Which::Subscribers);
                let_pass(LEASE + LEASE / 2, "while the subscribers of the slow link stall");
                world.proxy.resume();
            }
            _ => world.does(&["CLIENT", "KILL", "TYPE", "normal"]),
        }
    }
}

const TEST: &str = "history::no_two_processes_ever_hold_a_lock_at_once_whatever_is_done_to_them";
const WORK: &str = "LEASEHOLD_HISTORY_WORK";
/// The file that tells the workers that no more trouble comes: one that ended by itself before could not be
/// stopped.
const OVER: &str = "over";

#[test]
fn no_two_processes_ever_hold_a_lock_at_once_whatever_is_done_to_them() {
    if let Ok(orders) = std::env::var(WORK) {
        let mut orders = orders.split('|');
        let mut next = || orders.next().unwrap();
        return work(next(), next(), next(), next().parse().unwrap());
    }
    let body = |world: &mut World| {
        let folder = tempfile::tempdir().unwrap();
        let begun = now();
        let end = mono() + u64::try_from((run() + LONG).as_nanos()).unwrap();
        let direct = world.server.url();
        let orders = [&direct, &world.proxy.url()]
            .map(|url| format!("{}|{url}|{direct}|{end}", folder.path().display()));
        world.proxy.delay_requests(LINK);
        world.proxy.delay_replies(LINK);
        let mut trouble = Trouble {
            workers: Vec::new(),
            stopped: Vec::new(),
            killed: BTreeSet::new(),
            stops: 0,
            strikes: 0,
            started: 0,
        };
        (0..WORKERS).for_each(|_| trouble.start_worker(&orders));
        assert!(eventually(LONG, || read(folder.path()).len() > 10), "nobody works");
        while begun.elapsed() < run() {
            let_pass(ms(100 + random() % 300), "between two strikes");
            trouble.resume(mono());
            trouble.strike(world, &orders);
        }
        trouble.resume(u64::MAX);
        File::create(folder.path().join(OVER)).unwrap();
        for worker in trouble.workers {
            let (good, text) = worker.ends_within(LONG);
            assert!(good, "a worker failed:\n{text}");
        }
        judge(world, &read(folder.path()), &trouble.killed, trouble.stops);
    };
    // Judging what was noted takes its time too, the more was noted, the more.
    alone_within(run() * 2 + LONG * 6, || {
        let Some(binary) = default_server() else { return };
        play(RedisServer::builder(&binary).start(), body);
    });
}

/// All lines that were written, in order of time. The unfinished line of a killed worker does not count.
fn read(folder: &Path) -> Vec<Line> {
    let files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let texts = files.iter().map(|file| std::fs::read_to_string(file).unwrap());
    let mut lines: Vec<Line> = texts
        .flat_map(|text| text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<_>>())
        .collect();
    lines.sort_by_key(|line| line.t);
    lines
}

/// The client that an owner belongs to.
fn client_of(owner: &str) -> &str {
    owner.split_once(':').map_or(owner, |(client, _)| client)
}

fn judge(world: &World, lines: &[Line], killed: &BTreeSet<u32>, stops: usize) {
    let mut claims: BTreeMap<(u32, u64), (usize, Claim)> = BTreeMap::new();
    let mut shut_down = BTreeSet::new();
    let (mut ended, mut lost, mut refused, mut written) = (BTreeSet::new(), BTreeSet::new(), 0, 0);
    let at = |nanos: u64| Duration::from_nanos(nanos);
    for line in lines {
        let id = (line.pid, line.id);
        match &line.what {
            // A client that is being shut down gives back what it gets.
            What::Holds { owner, .. } if shut_down.contains(client_of(owner)) => {}
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
                if let Some((_, claim)) = claims.get_mut(&id)
                    && !shut_down.contains(client_of(&claim.owner))
                {
                    claim.end = claim.end.max(Some(at(*until)));
                }
            }
            What::Unlocks => {
                if let Some((_, claim)) = claims.get_mut(&id) {
                    claim.end = claim.end.min(Some(at(line.t)));
                }
                ended.insert(id);
            }
            What::ShutsDown(client) => {
                let of_client = claims.values_mut().filter(|(_, claim)| client_of(&claim.owner) == client);
                of_client.for_each(|(_, claim)| claim.end = claim.end.min(Some(at(line.t))));
                shut_down.insert(client.clone());
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
    let mut of_locks = vec![Vec::new(); LOCKS + COLLECTED + LEFT];
    for (lock, claim) in claims.values() {
        of_locks[*lock].push(claim.clone());
    }
    for (lock, of_lock) in of_locks.iter().enumerate() {
        found.extend(check(of_lock).into_iter().map(|violation| format!("lock {lock}: {violation}")));
    }
    for lock in 0..LOCKS {
        // No update was lost behind the fence: as many as were taken, also by those who died before saying
        // so.
        let value: Option<u64> = world.run(&["GET", &format!("{OWN}value-{lock}")]);
        let writes: u64 = world.run(&["SCARD", &format!("{OWN}writes-{lock}")]);
        assert_eq!(value.unwrap_or(0), writes, "lock {lock}: updates were lost");
    }
    assert!(found.is_empty(), "{} violations in {} claims:\n{}", found.len(), claims.len(), found.join("\n"));
    let died_holding = claims
        .iter()
        .filter(|(id, (lock, _))| *lock < LOCKS + COLLECTED && killed.contains(&id.0) && !ended.contains(*id))
        .count();
    let some = |from: usize, to: usize| of_locks[from..to].iter().map(Vec::len).sum::<usize>();
    let (collected, left) = (some(LOCKS, LOCKS + COLLECTED), some(LOCKS + COLLECTED, of_locks.len()));
    let told = format!(
        "COUNTED {} holds ({collected} of many at a time, {left} left to run out), {written} writes taken and {refused} refused, {} losses told, {stops} stops, {} kills, \
         {died_holding} of them while holding",
        claims.len(),
        lost.len(),
        killed.len(),
    );
    crate::support::shout(&told);
    // A run in which nothing happened shows nothing.
    let few = claims.len() - collected - left;
    assert!(few >= 200 && collected >= 200 && left >= 100, "only {few}, {collected} and {left} holds");
    assert!(stops >= 1 && !killed.is_empty() && died_holding + lost.len() >= 1, "the trouble met nobody");
    assert!(written >= 200, "only {written} writes");
}
