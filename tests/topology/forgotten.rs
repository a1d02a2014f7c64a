//! Unplanned failovers while replicas lag behind a busy master: which grants does the new master not know?
//!
//! The replicas are stopped for a while. Then the master is killed, and the replicas resume. They drop their
//! link to the master before they read what it sent meanwhile, so they do not know the grants of that time.
//! Clients with default options run beside clients that wait for no replica.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::rounds;
use crate::support::cluster::Cluster;
use crate::support::prelude::*;
use crate::support::sentinel::{LIMIT, SentinelSet};

/// How many of its last grants each thread holds and checks, since failovers forget only the last ones.
const LOOKED_AT: usize = 400;
/// While the replicas lag, clients that wait for no replica must be granted this many locks.
const MISSED: usize = 600;

/// Stopped replicas. When they resume, they drop their link before they read what they missed.
struct Lag<'a>(Vec<(&'a RedisServer, redis::Connection)>);

impl<'a> Lag<'a> {
    fn begin(replicas: impl Iterator<Item = &'a RedisServer>) -> Lag<'a> {
        let mut all: Vec<_> = replicas.map(|replica| (replica, replica.admin())).collect();
        for (replica, admin) in &mut all {
            replica.stop();
            let drop_link = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "master"]).get_packed_command();
            admin.send_packed_command(&drop_link).unwrap();
        }
        Lag(all)
    }

    fn end(self) {
        self.0.iter().for_each(|(replica, _)| replica.cont());
    }
}

/// Counters of one kind of client: its grants, and those of them that a new master did not know.
#[derive(Default)]
struct Mode {
    grants: AtomicUsize,
    forgotten: AtomicUsize,
}

/// Threads that lock new names as fast as they can, and keep their last holds.
struct Load {
    careful: Mode,
    careless: Mode,
    rests: AtomicBool,
    ended: AtomicBool,
    /// The number of paused threads.
    resting: AtomicUsize,
    /// The number of the round. Paused threads continue when it changes.
    round: AtomicUsize,
}

const THREADS: usize = 2;

impl Load {
    fn run(
        options: impl Fn() -> ClientBuilder,
        tag: &(impl Fn(usize) -> String + Sync),
        body: impl FnOnce(&Load),
    ) {
        let load = Load {
            careful: Mode::default(),
            careless: Mode::default(),
            rests: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            resting: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
        };
        let clients = [options().build().unwrap(), options().without_replicas().build().unwrap()];
        let rival = options().without_replicas().build().unwrap();
        let (load, rival) = (&load, &rival);
        std::thread::scope(|scope| {
            for (client, mode) in clients.iter().zip([&load.careful, &load.careless]) {
                for _ in 0..THREADS {
                    scope.spawn(move || load.work(client, rival, mode, tag));
                }
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| body(load)));
            load.ended.store(true, Ordering::SeqCst);
            outcome.unwrap_or_else(|panic| resume_unwind(panic));
        });
    }

    fn work(&self, client: &LockClient, rival: &LockClient, mode: &Mode, tag: &impl Fn(usize) -> String) {
        let mut held: VecDeque<Guard> = VecDeque::new();
        while !self.ended.load(Ordering::SeqCst) {
            let round = self.round.load(Ordering::SeqCst);
            let lock = client.get_lock(format!("{}:{}", tag(round), fresh("lock")));
            if let Ok(guard) = lock.acquire() {
                mode.grants.fetch_add(1, Ordering::SeqCst);
                held.push_back(guard);
            }
            if held.len() > LOOKED_AT {
                held.pop_front();
            }
            if self.rests.load(Ordering::SeqCst) {
                // Nobody has released these locks, so if the rival acquires one, the lock has two owners.
                let is_had = |guard: &&Guard| {
                    let (lock, mut is_had) = (rival.get_lock(guard.name()), false);
                    let answers = || lock.try_lock().map(|granted| is_had = granted).is_ok();
                    assert!(eventually(LIMIT, answers), "no answer");
                    is_had
                };
                mode.forgotten.fetch_add(held.iter().filter(is_had).count(), Ordering::SeqCst);
                held.clear();
                self.resting.fetch_add(1, Ordering::SeqCst);
                let goes_on =
                    || self.ended.load(Ordering::SeqCst) || self.round.load(Ordering::SeqCst) != round;
                assert!(eventually(LIMIT, goes_on), "no next round");
            }
        }
    }

    /// Makes the replicas miss grants, kills the master, and counts the grants that the next master does not
    /// know.
    fn round<'a>(
        &self,
        replicas: impl Iterator<Item = &'a RedisServer>,
        kill: impl FnOnce(Lag<'a>),
        serves: impl FnOnce(),
    ) {
        let grown = |mode: &Mode, from: usize, by: usize| {
            eventually(LONG, || mode.grants.load(Ordering::SeqCst) >= from + by)
        };
        let count = |mode: &Mode| mode.grants.load(Ordering::SeqCst);
        let (careful, careless) = (count(&self.careful), count(&self.careless));
        assert!(grown(&self.careful, careful, 50) && grown(&self.careless, careless, 50), "no grants");
        let lag = Lag::begin(replicas);
        assert!(grown(&self.careless, count(&self.careless), MISSED), "no grants while replicas lag");
        kill(lag);
        serves();
        self.rests.store(true, Ordering::SeqCst);
        assert!(eventually(LIMIT, || self.resting.load(Ordering::SeqCst) == 2 * THREADS), "a thread hangs");
        self.rests.store(false, Ordering::SeqCst);
        self.resting.store(0, Ordering::SeqCst);
    }

    fn next_round(&self) {
        self.round.fetch_add(1, Ordering::SeqCst);
    }

    fn report(&self, what: &str) {
        let text = |mode: &Mode| {
            let (grants, forgotten) = (&mode.grants, &mode.forgotten);
            format!(
                "{} grants, {} of them with two owners",
                grants.load(Ordering::SeqCst),
                forgotten.load(Ordering::SeqCst)
            )
        };
        shout(&format!(
            "MEASURED {what}, {} unplanned failovers with lagging replicas: by default {}; without_replicas() {}",
            rounds(),
            text(&self.careful),
            text(&self.careless)
        ));
        assert_eq!(self.careful.forgotten.load(Ordering::SeqCst), 0, "two clients held the lock");
        assert!(self.careless.forgotten.load(Ordering::SeqCst) > 0, "no failover forgot anything");
    }
}

fn options(url: &str) -> ClientBuilder {
    LockClient::builder()
        .url(url)
        .lease(Duration::from_secs(60))
        .connect_timeout(ms(2000))
        .retry_timeout(LIMIT)
}

#[test]
fn sentinel_failovers_lose_no_lock_by_default() {
    alone_within(Duration::from_secs(60) + (LIMIT + LONG) * rounds() as u32, || {
        let Some(binary) = default_server() else { return };
        let mut set = SentinelSet::start(&binary);
        let url = set.url();
        Load::run(
            || options(&url),
            &|_| "forgotten".to_owned(),
            |load| {
                for _ in 0..rounds() {
                    let old = set.master();
                    set.await_replicas();
                    let pid = set.servers[old].pid();
                    load.round(
                        set.replicas(old),
                        |lag| {
                            crate::support::signal(pid, "KILL");
                            lag.end();
                        },
                        || _ = set.await_switch(old),
                    );
                    set.servers[old].kill();
                    set.heal();
                    load.next_round();
                }
                load.report("Sentinels");
            },
        );
    });
}

#[test]
fn cluster_failovers_lose_no_lock_by_default() {
    alone_within(Duration::from_secs(60) + (LIMIT + LONG) * rounds() as u32, || {
        let Some(mut cluster) = Cluster::start_for_failovers() else { return };
        let url = cluster.url();
        let tags: Vec<String> = (0..3).map(|at| format!("{{{}}}", cluster.name_on(at, "tag"))).collect();
        Load::run(
            || options(&url),
            &|round| tags[round % 3].clone(),
            |load| {
                for round in 0..rounds() {
                    let primary = cluster.primary_of(&tags[round % 3]);
                    let replica = cluster.replica_of(primary);
                    let pid = cluster.members[primary].pid();
                    let promoted = || cluster.is_primary(replica);
                    load.round(
                        std::iter::once(&cluster.members[replica]),
                        |lag| {
                            crate::support::signal(pid, "KILL");
                            lag.end();
                        },
                        || assert!(eventually(LIMIT, promoted), "the replica is not promoted"),
                    );
                    cluster.members[primary].kill();
                    cluster.members[primary].restart();
                    // A loading server answers INFO, but not what `wait_until_whole` asks, so INFO is first.
                    let follows = || {
                        let text: String = cluster.ask(primary, &["INFO", "replication"]);
                        text.contains("role:slave") && text.contains("master_link_status:up")
                    };
                    assert!(eventually(LIMIT, follows), "the replica does not follow the new primary");
                    cluster.wait_until_whole();
                    load.next_round();
                }
                load.report("a cluster");
            },
        );
    });
}
