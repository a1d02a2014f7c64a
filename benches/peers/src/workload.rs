//! The workloads, and the lock libraries (*peers*) that run each.

use std::time::Duration;

use crate::load::{Kind, Sort};

pub struct Workload {
    pub id: &'static str,
    pub title: &'static str,
    pub kind: Kind,
    pub sort: Sort,
    pub processes: usize,
    pub threads: usize,
    pub keys: usize,
    /// Microseconds of work between lock and unlock.
    pub work_us: u64,
    /// Additional milliseconds of a round trip to the server.
    pub link_ms: u64,
    pub peers: &'static [&'static str],
    /// The cores that the server and the drivers are pinned to, if they are.
    pub cores: Option<Cores>,
}

/// The cores to which a driver and its server are pinned. Without pinning, chance decides whether they share
/// a core, and the rate differs by a factor of up to six.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// Server and driver share one core.
    One,
    /// Server and driver have a core each.
    Two,
}

/// The peers that are compared when threads wait for a busy lock.
const LOCKS: &[&str] = &[
    "leasehold",
    "leasehold-lock",
    "leasehold-keep",
    "redisson",
    "redsync",
    "rueidislock",
    "rslock",
    "redlock",
    "rlock",
    "redis-py",
    "article",
];
/// The peers that are compared when nobody waits: also the limits (`raw`, `wire`), which cannot wait.
const ALL: &[&str] = &[
    "raw",
    "wire",
    "leasehold",
    "leasehold-lock",
    "leasehold-keep",
    "redisson",
    "redsync",
    "rueidislock",
    "rslock",
    "rslock-threads",
    "redlock",
    "rlock",
    "redis-py",
    "article",
];
/// The peers in Rust that are compared with work inside the critical section, and with 500 processes.
const RUST: &[&str] = &["leasehold", "leasehold-lock", "leasehold-keep", "rslock", "rlock"];
/// The peers that are compared over a slow link.
const OVER_A_LINK: &[&str] =
    &["leasehold", "leasehold-lock", "leasehold-keep", "redisson", "redsync", "rueidislock", "rslock"];
/// The peers that are compared while they renew thousands of locks.
const RENEWING: &[&str] = &["leasehold-lock", "redisson"];
/// The peers that have read-write locks and semaphores.
const SHARING: &[&str] = &["leasehold", "redisson"];
/// The peers that are compared with a thousand waiting threads.
const WAITING: &[&str] = &["leasehold-lock", "redisson", "redsync", "rueidislock"];

const fn cycles(
    id: &'static str,
    title: &'static str,
    processes: usize,
    threads: usize,
    keys: usize,
) -> Workload {
    let peers = if processes * threads == keys { ALL } else { LOCKS };
    Workload {
        id,
        title,
        kind: Kind::Cycles,
        sort: Sort::Plain,
        processes,
        threads,
        keys,
        work_us: 0,
        link_ms: 0,
        peers,
        cores: None,
    }
}

const fn alone(id: &'static str, title: &'static str, cores: Cores) -> Workload {
    Workload { cores: Some(cores), ..cycles(id, title, 1, 1, 1) }
}

const fn shared(id: &'static str, title: &'static str, processes: usize, sort: Sort) -> Workload {
    Workload { sort, peers: SHARING, ..cycles(id, title, processes, 1, 1) }
}

const fn working(id: &'static str, title: &'static str, processes: usize) -> Workload {
    Workload { work_us: 50, peers: RUST, ..cycles(id, title, processes, 1, 1) }
}

const fn far(id: &'static str, title: &'static str, link_ms: u64, near: Workload) -> Workload {
    Workload { id, title, link_ms, peers: OVER_A_LINK, cores: None, ..near }
}

const HANDOFF: Workload = Workload {
    kind: Kind::Handoff,
    peers: LOCKS,
    ..cycles("handoff", "unlock in one process → acquired in another", 2, 1, 1)
};

pub const WORKLOADS: &[Workload] = &[
    alone("one", "1 thread, 1 key, one core", Cores::One),
    alone("one2", "1 thread, 1 key, two cores", Cores::Two),
    cycles("own16", "16 threads, each its own key", 1, 16, 16),
    cycles("own64", "64 threads, each its own key", 1, 64, 64),
    cycles("key8", "8 threads, one key", 1, 8, 1),
    cycles("key64", "64 threads, one key", 1, 64, 1),
    cycles("procs4x2", "4 processes × 2 threads, one key", 4, 2, 1),
    cycles("procs4x8", "4 processes × 8 threads, one key", 4, 8, 1),
    cycles("procs16x1", "16 processes × 1 thread, one key", 16, 1, 1),
    cycles("procs64x1", "64 processes × 1 thread, one key", 64, 1, 1),
    Workload { peers: RUST, ..cycles("procs500x1", "500 processes × 1 thread, one key", 500, 1, 1) },
    working("work16", "16 processes × 1 thread, one key, 50 µs of work inside", 16),
    working("work64", "64 processes × 1 thread, one key, 50 µs of work inside", 64),
    shared("permits16", "16 processes × 1 thread, a semaphore of 4 permits", 16, Sort::Permits),
    shared("permits64", "64 processes × 1 thread, a semaphore of 4 permits", 64, Sort::Permits),
    shared("rw16", "16 processes × 1 thread, a read-write lock, 1 of 10 writes", 16, Sort::ReadWrite),
    shared("rw64", "64 processes × 1 thread, a read-write lock, 1 of 10 writes", 64, Sort::ReadWrite),
    HANDOFF,
    Workload {
        id: "crowd500",
        title: "500 clients waiting for one lock",
        kind: Kind::Crowd,
        sort: Sort::Plain,
        // The process of the waiters. A further process holds the lock at first.
        processes: 1,
        threads: 500,
        keys: 1,
        work_us: 0,
        link_ms: 0,
        peers: LOCKS,
        cores: None,
    },
    Workload {
        id: "held",
        title: "10,000 locks held",
        kind: Kind::Held,
        sort: Sort::Plain,
        processes: 1,
        threads: 1,
        keys: 10_000,
        work_us: 0,
        link_ms: 0,
        peers: RENEWING,
        cores: None,
    },
    Workload {
        id: "waiters",
        title: "1,000 threads waiting for one lock",
        kind: Kind::Waiters,
        sort: Sort::Plain,
        // The process of the waiters. A further process, with one thread, holds the lock at first.
        processes: 1,
        threads: 1000,
        keys: 1,
        work_us: 0,
        link_ms: 0,
        peers: WAITING,
        cores: None,
    },
    far("far1-one", "1 ms away: 1 thread, 1 key", 1, cycles("", "", 1, 1, 1)),
    far("far1-own64", "1 ms away: 64 threads, each its own key", 1, cycles("", "", 1, 64, 64)),
    far("far1-procs4", "1 ms away: 4 processes × 1 thread, one key", 1, cycles("", "", 4, 1, 1)),
    far("far1-procs12", "1 ms away: 12 processes × 1 thread, one key", 1, cycles("", "", 12, 1, 1)),
    far("far1-handoff", "1 ms away: unlock in one process → acquired in another", 1, HANDOFF),
    far("far20-one", "20 ms away: 1 thread, 1 key", 20, cycles("", "", 1, 1, 1)),
    far("far20-own64", "20 ms away: 64 threads, each its own key", 20, cycles("", "", 1, 64, 64)),
    far("far20-procs4", "20 ms away: 4 processes × 1 thread, one key", 20, cycles("", "", 4, 1, 1)),
    far("far20-procs12", "20 ms away: 12 processes × 1 thread, one key", 20, cycles("", "", 12, 1, 1)),
    far("far20-handoff", "20 ms away: unlock in one process → acquired in another", 20, HANDOFF),
    far("far60-procs4", "60 ms away: 4 processes × 1 thread, one key", 60, cycles("", "", 4, 1, 1)),
    far("far60-procs12", "60 ms away: 12 processes × 1 thread, one key", 60, cycles("", "", 12, 1, 1)),
];

/// The size of this peer's crowd, if it is smaller than the others', and the reason.
pub fn smaller_crowd(peer: &str) -> Option<(usize, &'static str)> {
    match peer {
        "redisson" => Some((50, "each client has 25 connections and about 50 threads")),
        _ => None,
    }
}

impl Workload {
    pub fn link(&self) -> Duration {
        Duration::from_millis(self.link_ms)
    }

    /// How long a run lasts at least: enough for ten acquires of each process, at two round trips each.
    pub fn least_seconds(&self) -> f64 {
        20.0 * self.link().as_secs_f64() * self.processes as f64
    }

    /// Whether several threads use the same lock.
    pub fn contended(&self) -> bool {
        self.processes * self.threads > self.keys
    }
}
