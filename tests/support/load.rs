//! Threads of several clients that use locks without pause while a test disturbs the servers.

use super::history::History;
use super::observer::texts;
use super::{LONG, eventually, let_pass, now, random, shout, start};
use leasehold::{Error, FencingToken, LockClient, RedisLock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread waits for a lock: as long as a failover may take, during which nobody gets one.
const WAIT: Duration = super::sentinel::LIMIT;
/// After a failover, every lock must be granted again within this time.
const SERVED: Duration = Duration::from_secs(20);

struct Subject {
    name: String,
    history: History,
    grants: Mutex<Vec<Instant>>,
    /// The largest token that the protected resource has seen. `refused` counts the writes with smaller ones.
    newest: AtomicU64,
    refused: AtomicU64,
}

#[derive(Clone, Copy)]
pub struct Use {
    /// Makes a handle of the lock with this number and name.
    pub make: fn(&LockClient, usize, &str) -> RedisLock,
    /// Whether a random half of the guards is dropped, without a wait for the answer, instead of unlocked.
    pub drops: bool,
}

struct Shared {
    subjects: Vec<Subject>,
    stop: AtomicBool,
    /// How often each error occurred, and the last error.
    errors: Mutex<(BTreeMap<String, usize>, String)>,
    /// Errors that must not occur.
    wrong: Mutex<Vec<String>>,
}

/// Running threads that acquire and release random locks of a list.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
pub struct Outcome {
    pub grants: usize,
    /// The number of grants of the lock with the fewest.
    pub least: usize,
    /// The number of faults in the histories, such as holds that overlapped, without faults of tokens.
    pub overlaps: usize,
    pub tokens: usize,
    pub refused: u64,
    pub errors: BTreeMap<String, usize>,
    pub last_error: String,
}

impl Load {
    pub fn start(clients: &[LockClient], names: &[String], threads_each: usize, way: Use) -> Load {
        let subject = |name: &String| Subject {
            name: name.clone(),
            history: History::new(),
            grants: Mutex::default(),
            newest: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        };
        let shared = Arc::new(Shared {
            subjects: names.iter().map(subject).collect(),
            stop: AtomicBool::new(false),
            errors: Mutex::default(),
            wrong: Mutex::default(),
        });
        let threads = clients.iter().flat_map(|client| std::iter::repeat_n(client, threads_each));
        let threads = threads.map(|client| {
            let (shared, client) = (Arc::clone(&shared), client.clone());
            start(move || shared.work(&client, way))
        });
        let load = Load { threads: threads.collect(), shared };
        load.await_grants(now());
        load
    }

    /// Waits until each lock was granted after `since`, and returns how long that took.
    #[track_caller]
    pub fn await_grants(&self, since: Instant) -> Duration {
        let first = |subject: &Subject| {
            let grants = subject.grants.lock();
            let at = grants.partition_point(|at| *at <= since);
            grants.get(at).map(|at| at.saturating_duration_since(since))
        };
        let all = || self.shared.subjects.iter().map(first).collect::<Option<Vec<_>>>();
        let served = eventually(SERVED, || all().is_some());
        assert!(served, "no grants, errors {:?}", self.shared.errors.lock());
        all().and_then(|all| all.into_iter().max()).unwrap_or_default()
    }

    #[track_caller]
    pub fn await_grant(&self, name: &str) {
        let (subject, after) = (self.subject(name), now());
        let granted = || subject.grants.lock().last().is_some_and(|at| *at > after);
        assert!(eventually(LONG, granted), "no thread gets {name}: {:?}", self.shared.errors.lock());
    }

    pub fn grants(&self) -> usize {
        self.shared.subjects.iter().map(|subject| subject.history.grants()).sum()
    }

    fn subject(&self, name: &str) -> &Subject {
        self.shared.subjects.iter().find(|subject| subject.name == name).expect("a lock of this load")
    }

    /// The longest time, from `since` on, between two successive grants of one of these locks.
    pub fn longest_gap(&self, names: &[String], since: Instant) -> Duration {
        let gap = |name: &String| {
            let grants = self.subject(name).grants.lock();
            let from = grants.partition_point(|at| *at < since);
            let before = std::iter::once(&since).chain(&grants[from..]);
            let gaps = before.zip(&grants[from..]).map(|(before, at)| *at - *before);
            gaps.max().unwrap_or_default()
        };
        names.iter().map(gap).max().unwrap_or_default()
    }

    /// Ends the threads, and panics if a forbidden error occurred.
    #[track_caller]
    pub fn stop(self) -> Outcome {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().expect("a thread of the load panicked");
        }
        let wrong = self.shared.wrong.lock();
        assert!(wrong.is_empty(), "{} errors that are neither retryable nor a loss: {wrong:#?}", wrong.len());
        let (errors, last_error) = self.shared.errors.lock().clone();
        let grants = || self.shared.subjects.iter().map(|subject| subject.history.grants());
        let (all, least) = (grants().sum(), grants().min().unwrap_or_default());
        let mut outcome =
            Outcome { grants: all, least, overlaps: 0, tokens: 0, refused: 0, errors, last_error };
        for subject in &self.shared.subjects {
            outcome.refused += subject.refused.load(Ordering::SeqCst);
            for found in subject.history.findings() {
                shout(&format!("{}: {found}", subject.name));
                let is_token = found.starts_with("token");
                *(if is_token { &mut outcome.tokens } else { &mut outcome.overlaps }) += 1;
            }
        }
        outcome
    }
}

impl Shared {
    fn work(&self, client: &LockClient, way: Use) {
        while !self.stop.load(Ordering::SeqCst) {
            let at = random() as usize % self.subjects.len();
            let subject = &self.subjects[at];
            let guard = match (way.make)(client, at, &subject.name).try_acquire_for(WAIT) {
                Ok(Some(guard)) => guard,
                Ok(None) => {
                    self.wrong.lock().push(format!("{} was not to be had within {WAIT:?}", subject.name));
                    return;
                }
                Err(error) => {
                    self.met(&error);
                    continue;
                }
            };
            let acquired = now();
            let promised = acquired + guard.remaining();
            let fence = guard.fencing_token().map(FencingToken::get);
            let open = subject.history.acquired(guard.owner(), fence);
            subject.grants.lock().push(acquired);
            let_pass(Duration::from_micros(random() % 4_000), "it works");
            if let Some(fence) = fence
                && subject.newest.fetch_max(fence, Ordering::SeqCst) > fence
            {
                subject.refused.fetch_add(1, Ordering::SeqCst);
            }
            subject.history.ends(open, now().min(promised));
            if way.drops && random().is_multiple_of(2) {
                drop(guard);
            } else if let Err(error) = guard.unlock() {
                self.met(&error);
            }
        }
    }

    fn met(&self, error: &Error) {
        let doubt = if error.outcome_unknown() { " of unknown outcome" } else { "" };
        let text = format!("{:?} during {}{doubt}", error.kind(), error.action());
        let mut errors = self.errors.lock();
        *errors.0.entry(text).or_default() += 1;
        errors.1 = texts(error);
        if !super::may_pass(error) && !error.is_lost() && !error.outcome_unknown() {
            self.wrong.lock().push(texts(error));
        }
    }
}
