//! The workloads, and the clients that run each.

use crate::load::Kind;

pub struct Workload {
    pub id: &'static str,
    pub title: &'static str,
    pub kind: Kind,
    pub processes: usize,
    pub threads: usize,
    pub keys: usize,
    pub peers: &'static [&'static str],
}

/// The clients that can wait and release.
const LOCKS: &[&str] = &[
    "leasehold",
    "leasehold-lock",
    "redisson",
    "redsync",
    "rueidislock",
    "rslock",
    "redlock",
    "redis-py",
    "article",
];
/// The same and the limit, which cannot wait.
const ALL: &[&str] = &[
    "raw",
    "leasehold",
    "leasehold-lock",
    "redisson",
    "redsync",
    "rueidislock",
    "rslock",
    "redlock",
    "redis-py",
    "article",
];
/// The clients that renew many locks in batches.
const RENEWING: &[&str] = &["leasehold-lock", "redisson"];
/// The clients that support a thousand waiters.
const WAITING: &[&str] = &["leasehold-lock", "redisson", "redsync", "rueidislock"];

const fn cycles(
    id: &'static str,
    title: &'static str,
    processes: usize,
    threads: usize,
    keys: usize,
) -> Workload {
    let peers = if threads == keys { ALL } else { LOCKS };
    Workload { id, title, kind: Kind::Cycles, processes, threads, keys, peers }
}

pub const WORKLOADS: &[Workload] = &[
    cycles("one", "1 thread, 1 key", 1, 1, 1),
    cycles("own16", "16 threads, each its own key", 1, 16, 16),
    cycles("own64", "64 threads, each its own key", 1, 64, 64),
    cycles("key8", "8 threads, one key", 1, 8, 1),
    cycles("key64", "64 threads, one key", 1, 64, 1),
    cycles("procs4x2", "4 processes × 2 threads, one key", 4, 2, 1),
    cycles("procs4x8", "4 processes × 8 threads, one key", 4, 8, 1),
    cycles("procs16x1", "16 processes × 1 thread, one key", 16, 1, 1),
    cycles("procs64x1", "64 processes × 1 thread, one key", 64, 1, 1),
    Workload {
        id: "handoff",
        title: "unlock in one process → acquired in another",
        kind: Kind::Handoff,
        processes: 2,
        threads: 1,
        keys: 1,
        peers: LOCKS,
    },
    Workload {
        id: "held",
        title: "10,000 locks held",
        kind: Kind::Held,
        processes: 1,
        threads: 1,
        keys: 10_000,
        peers: RENEWING,
    },
    Workload {
        id: "waiters",
        title: "1,000 threads waiting for one lock",
        kind: Kind::Waiters,
        // Beside one with one thread, which holds the lock at first.
        processes: 1,
        threads: 1000,
        keys: 1,
        peers: WAITING,
    },
];

impl Workload {
    /// Whether the threads want the same lock.
    pub fn contended(&self) -> bool {
        self.processes * self.threads > self.keys
    }
}
