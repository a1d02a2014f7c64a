//! Several clients of one process that use a few locks as fast as they can, and record their holds.

use std::collections::BTreeMap;
use std::thread::JoinHandle;

use leasehold::Error;

use crate::support::cluster::Cluster;
use crate::support::epilogue::threads;
use crate::support::history::History;
use crate::support::observer::{Seen, texts};
use crate::support::prelude::*;
use crate::support::random;

/// Connect time-out: long enough for a busy machine, and the longest delay by a frozen member.
const CONNECT: Duration = ms(2000);
/// Lease, command time-out, safety poll with slack. The lease outlasts a failover on a busy machine.
pub(crate) const L: Duration = ms(12_000);
pub(crate) const T: Duration = ms(500);
pub(crate) const POLL: Duration = ms(1450);
/// The name tells the library's connections from the tests'.
const NAME: &str = "cluster-load";

pub(crate) fn builder(cluster: &Cluster) -> ClientBuilder {
    LockClient::builder()
        .url(cluster.url())
        .lease(L)
        .command_timeout(T)
        .connect_timeout(CONNECT)
        .unsubscribe_delay(ms(200))
        .client_name(NAME)
}

pub(crate) fn rounds() -> usize {
    std::env::var("LEASEHOLD_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(2)
}

/// One lock's history, and a resource that refuses writes with an older fence.
struct Record {
    history: History,
    grants: Mutex<Vec<Instant>>,
    newest: AtomicU64,
    stale: AtomicU64,
}

pub(crate) struct Total {
    pub(crate) grants: usize,
    pub(crate) unknown: u64,
}

pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    records: Arc<BTreeMap<String, Record>>,
    errors: Arc<Mutex<Vec<String>>>,
    unknown: Arc<AtomicU64>,
    pub(crate) seen: Seen,
    workers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts three clients with three threads each, which use locks of all kinds in turn. A request without
    /// an answer in `command_timeout` has an unknown outcome.
    pub(crate) fn start(cluster: &Cluster, names: &[String], command_timeout: Duration) -> Load {
        let record = || Record {
            history: History::new(),
            grants: Mutex::default(),
            newest: AtomicU64::new(0),
            stale: AtomicU64::new(0),
        };
        let mut load = Load {
            stop: Arc::default(),
            records: Arc::new(names.iter().map(|name| (name.clone(), record())).collect()),
            errors: Arc::default(),
            unknown: Arc::default(),
            seen: Seen::default(),
            workers: Vec::new(),
        };
        for _ in 0..3 {
            let options = builder(cluster).command_timeout(command_timeout).connect_timeout(command_timeout);
            let client = options.observer(load.seen.clone()).build().unwrap();
            for _ in 0..3 {
                let (client, names) = (client.clone(), names.to_vec());
                let (stop, records) = (Arc::clone(&load.stop), Arc::clone(&load.records));
                let (errors, unknown) = (Arc::clone(&load.errors), Arc::clone(&load.unknown));
                load.workers.push(start(move || {
                    while !stop.load(Ordering::SeqCst) {
                        let at = random() as usize % names.len();
                        match turn(&kind(&client, at, &names[at]), &records[&names[at]]) {
                            Ok(()) => {}
                            Err(error) if error.action() == "unlock" && error.outcome_unknown() => {
                                unknown.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(error) => errors.lock().push(texts(&error)),
                        }
                    }
                }));
            }
        }
        load
    }

    pub(crate) fn longest_gap(&self, name: &str, from: Instant) -> Duration {
        let grants = self.records[name].grants.lock();
        let since: Vec<Instant> = grants.iter().copied().filter(|at| *at >= from).collect();
        let mut before = from;
        let gaps = since.into_iter().map(|at| at - std::mem::replace(&mut before, at));
        gaps.max().unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn await_grant(&self, name: &str) {
        let after = now();
        let granted = || self.records[name].grants.lock().last().is_some_and(|at| *at > after);
        assert!(eventually(LONG, granted), "nobody gets {name} any more: {:?}", self.errors.lock());
    }

    /// Ends the load; panics if a lock was held twice, a fence did not grow, or a call failed. Returns the
    /// number of unlocks of unknown outcome.
    #[track_caller]
    pub(crate) fn end(mut self) -> Total {
        self.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.join().unwrap();
        }
        let errors = std::mem::take(&mut *self.errors.lock());
        assert!(errors.is_empty(), "{} errors:\n{}", errors.len(), errors.join("\n"));
        for record in self.records.values() {
            record.history.assert_good(10);
            assert_eq!(record.stale.load(Ordering::SeqCst), 0, "writes with an old fence");
        }
        let grants = self.records.values().map(|record| record.grants.lock().len()).sum();
        Total { grants, unknown: self.unknown.load(Ordering::SeqCst) }
    }
}

fn kind(client: &LockClient, at: usize, name: &str) -> RedisLock {
    match at % 4 {
        0 => RedisLock::clone(&client.get_fenced_lock(name)),
        1 => client.get_lock(name),
        2 => client.get_fair_lock(name),
        _ => client.get_read_write_lock(name).write().clone(),
    }
}

fn turn(lock: &RedisLock, record: &Record) -> Result<(), Error> {
    let guard = lock.acquire()?;
    let (at, remaining) = (now(), guard.remaining());
    record.grants.lock().push(at);
    let fence = guard.fencing_token().map(leasehold::FencingToken::get);
    let open = record.history.acquired(guard.owner(), fence);
    if let Some(fence) = fence
        && record.newest.fetch_max(fence, Ordering::SeqCst) > fence
    {
        record.stale.fetch_add(1, Ordering::SeqCst);
    }
    let pause = Duration::from_micros(random() % 3000);
    let _never: bool = eventually(pause, || false);
    record.history.ends(open, now().min(at + remaining));
    // Half of the guards are dropped, which does not wait.
    if random().is_multiple_of(2) {
        drop(guard);
        return Ok(());
    }
    guard.unlock()
}

/// Runs `body` in a process with a cluster; nothing may be left.
pub(crate) fn on_cluster(body: impl FnOnce(&Cluster)) {
    alone_within(LONG * 6, || {
        watch_for_stalls();
        let Some(cluster) = Cluster::start() else { return };
        body(&cluster);
        assert_all_was_given_back(&cluster);
    });
}

/// As above, where each hold was released and no answer lost: no key may be left to expire.
#[track_caller]
pub(crate) fn assert_all_was_given_back(cluster: &Cluster) {
    for index in 0..cluster.members.len() {
        for key in cluster.ask::<Vec<String>>(index, &["KEYS", "*"]) {
            cluster.ask::<u32>(cluster.primary_of(&key), &["PERSIST", &key]);
        }
    }
    assert_nothing_is_left(cluster);
}

/// Panics if the library has left a thread, connection, subscription or key when all clients are gone. After
/// a fault a key may stay until its lease ends.
#[track_caller]
pub(crate) fn assert_nothing_is_left(cluster: &Cluster) {
    let mut left = Vec::new();
    let clean = eventually(L + LONG, || {
        left.clear();
        left.extend(threads().into_iter().flatten().map(|name| format!("thread {name}")));
        for index in 0..cluster.members.len() {
            let clients: String = cluster.ask(index, &["CLIENT", "LIST"]);
            let ours = clients.lines().filter(|line| line.contains(&format!("name={NAME} ")));
            left.extend(ours.map(str::to_owned));
            for kind in ["CHANNELS", "SHARDCHANNELS"] {
                left.extend(cluster.ask::<Vec<String>>(index, &["PUBSUB", kind]));
            }
            let keys: Vec<String> = cluster.ask(index, &["KEYS", "*"]);
            for key in keys {
                let stays = ["redisson_lock_token:", "test:", "leasehold_client:format"];
                if !stays.iter().any(|stays| key.starts_with(stays)) {
                    left.push(format!("key {key}"));
                }
            }
        }
        left.is_empty()
    });
    assert!(clean, "left behind:\n{}", left.join("\n"));
}
