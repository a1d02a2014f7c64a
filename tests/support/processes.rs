//! Tests with several processes, for every store: the test program starts itself again as workers, which
//! report.
//! ```ignore
//! #[test]
//! fn four_processes_incrementing_under_the_lock_lose_no_increment() {
//!     if let Some(worker) = Worker::here() {
//!         return worker.work(connect);
//!     }
//!     count_across_processes(&server.url());
//! }
//! ```

use super::stalls::{own_time_since, stalled_since};
use super::{Process, eventually, median, now, reexecuted, test_name};
use leasehold::LockClient;
use std::path::{Path, PathBuf};
use std::time::Duration;

const WORKER: &str = "LEASEHOLD_TEST_WORKER";
const PROCESSES: usize = 4;
const THREADS: usize = 4;
const NAME: &str = "across processes";

/// The number to which processes count together: 500, or `LEASEHOLD_COUNT`, which workers inherit.
pub fn increments() -> u64 {
    std::env::var("LEASEHOLD_COUNT")
        .map_or(500, |number| number.parse().expect("LEASEHOLD_COUNT is a number"))
}

pub const LEASE: Duration = Duration::from_millis(3_000);

/// This process, if a test started it as a worker.
pub struct Worker {
    role: String,
    folder: PathBuf,
    url: String,
}

impl Worker {
    pub fn here() -> Option<Worker> {
        let told = std::env::var(WORKER).ok()?;
        let mut parts = told.splitn(3, '|');
        let mut next = || parts.next().unwrap().to_owned();
        Some(Worker { role: next(), folder: next().into(), url: next() })
    }

    pub fn work(&self, connect: impl Fn(&str, Duration) -> leasehold::Result<LockClient>) {
        match self.role.as_str() {
            // The lease is long, so that no hold expires on a busy machine.
            "count" => self.count(&connect(&self.url, Duration::from_secs(60)).unwrap()),
            "hold" => self.hold(&connect(&self.url, LEASE).unwrap()),
            role => panic!("{role}?"),
        }
    }

    /// Increments a number in a file, which only the lock protects from lost increments.
    fn count(&self, client: &LockClient) {
        let (file, increments) = (self.folder.join("counter"), increments());
        let counted: u64 = std::thread::scope(|scope| {
            let thread = || {
                let lock = client.get_lock(NAME);
                let mut counted = 0;
                loop {
                    let guard = lock.acquire().unwrap();
                    let number: u64 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
                    if number >= increments {
                        guard.unlock().unwrap();
                        return counted;
                    }
                    std::fs::write(&file, (number + 1).to_string()).unwrap();
                    counted += 1;
                    guard.unlock().unwrap();
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(thread)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        std::fs::write(self.folder.join(format!("counted-{}", std::process::id())), counted.to_string())
            .unwrap();
    }

    fn hold(&self, client: &LockClient) {
        let _guard = client.get_lock(NAME).acquire().unwrap();
        std::fs::write(self.folder.join("held"), "").unwrap();
        loop {
            std::thread::park();
        }
    }
}

pub fn connect(url: &str, lease: Duration) -> leasehold::Result<LockClient> {
    LockClient::builder().url(url).lease(lease).build()
}

fn worker(role: &str, folder: &Path, url: &str) -> Process {
    reexecuted(&test_name(), &[(WORKER, &format!("{role}|{}|{url}", folder.display()))])
}

/// Starts four processes of four threads, which count to [`increments`] under one lock. Returns how long they
/// took. Panics if an increment is lost.
pub fn count_across_processes(url: &str) -> Duration {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("counter"), "0").unwrap();
    let start = now();
    let processes: Vec<_> = (0..PROCESSES).map(|_| worker("count", folder.path(), url)).collect();
    let limit = Duration::from_secs(60) + Duration::from_millis(30 * increments());
    for process in processes {
        let (good, text) = process.ends_within(limit);
        assert!(good, "a worker failed or did not end:\n{text}");
    }
    let files = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
    let mine = files.filter(|file| file.file_name().unwrap().to_str().unwrap().starts_with("counted-"));
    let counted: Vec<u64> =
        mine.map(|file| std::fs::read_to_string(file).unwrap().parse().unwrap()).collect();
    assert_eq!(counted.len(), PROCESSES);
    assert_eq!(counted.iter().sum::<u64>(), increments(), "increments were lost: {counted:?}");
    start.elapsed()
}

/// Kills a process that holds the lock, and returns how long the lock stayed held. Panics if that exceeds
/// `limit` by more than 1.5 s and the machine's stalls.
pub fn a_killed_holder_frees_within(limit: Duration, url: &str, client: &LockClient) -> Duration {
    let folder = tempfile::tempdir().unwrap();
    let holder = worker("hold", folder.path(), url);
    let held = eventually(Duration::from_secs(30), || folder.path().join("held").exists());
    assert!(held, "{}", holder.output());
    let lock = client.get_lock(NAME);
    assert!(!lock.try_lock().unwrap());
    let killed = now();
    drop(holder); // kills the process
    assert!(lock.try_lock_for(limit + Duration::from_secs(5)).unwrap(), "the killed process's lock is held");
    let took = killed.elapsed();
    lock.unlock().unwrap();
    assert!(took <= limit + Duration::from_millis(1_500) + stalled_since(killed), "{took:?}");
    took
}

/// Asserts that locks work without delay while other clients hold and await a lock of another name.
pub fn other_names_are_not_delayed(connect: impl Fn() -> LockClient) {
    let (holder, other) = (connect(), connect());
    let visit = |kind, round| {
        let lock = other.get_lock(format!("{kind}-{}", round % OTHER_NAMES));
        let start = now();
        lock.lock()?;
        lock.unlock()?;
        Ok(own_time_since(start))
    };
    let alone: leasehold::Result<Vec<Duration>> =
        (0..OTHER_VISITS).map(|round| visit("alone", round)).collect();
    let _held = holder.get_lock("held").acquire().unwrap();
    let interrupt = leasehold::Interrupt::new();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| connect()).collect();
        for waiter in &waiters {
            let lock = waiter.get_lock("held");
            scope.spawn(|| {
                let lock = lock;
                assert!(lock.lock_interruptibly(&interrupt).unwrap_err().is_interrupted());
            });
        }
        let beside: leasehold::Result<Vec<Duration>> =
            (0..OTHER_VISITS).map(|round| visit("beside", round)).collect();
        // The waiters end before an assertion can fail, because the scope would wait for them for ever.
        interrupt.interrupt();
        none_was_delayed(alone.unwrap(), beside.unwrap());
    });
}

/// The number of other names, and how often they are used in all.
pub const OTHER_NAMES: usize = 6;
pub const OTHER_VISITS: usize = 30;

/// Panics if locks were slower while a lock of another name was held and awaited. A lock that had to wait for
/// that lock would be late each time, even at its quickest. A slow disk delays only single uses, and so does
/// not change the median.
pub fn none_was_delayed(alone: Vec<Duration>, beside: Vec<Duration>) {
    let bound = Duration::from_millis(50) + 3 * median(alone.clone());
    for name in 0..OTHER_NAMES {
        let quickest = beside.iter().skip(name).step_by(OTHER_NAMES).min().expect("each name has a time");
        assert!(*quickest <= bound, "name {name}: {beside:?}, alone {alone:?}");
    }
    assert!(median(beside.clone()) <= bound, "{beside:?}, alone {alone:?}");
}
