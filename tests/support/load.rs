//! Threads of several clients that take locks all the time, while a test disturbs the servers.

use super::history::History;
use super::{eventually, now, shout};
use leasehold::crossbeam_channel::after;
use leasehold::{Error, LockClient};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const HELD: Duration = Duration::from_millis(2);
/// Longest wait: as long as tests allow for a switch, during which nobody has the lock.
const WAIT: Duration = super::sentinel::LIMIT;
/// After the switch, every lock is granted again within this.
const SERVED: Duration = Duration::from_secs(20);

struct Subject {
    name: String,
    history: History,
    grants: Mutex<Vec<Instant>>,
    /// A resource behind the fence: the largest token so far, and the number of refused writes.
    newest: AtomicU64,
    refused: AtomicU64,
}

struct Shared {
    subjects: Vec<Subject>,
    stop: AtomicBool,
    /// Number of errors of each kind, and errors that must not occur.
    errors: Mutex<BTreeMap<String, usize>>,
    wrong: Mutex<Vec<String>>,
}

/// Threads that take and release fenced locks until stopped.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
pub struct Outcome {
    pub grants: usize,
    /// Overlapping holds of different owners, over all locks.
    pub overlaps: usize,
    pub tokens: usize,
    pub refused: u64,
    pub errors: BTreeMap<String, usize>,
}

impl Load {
    pub fn start(clients: &[LockClient], locks: usize) -> Load {
        let subject = |number| Subject {
            name: format!("load:{number}:{}", super::fresh("lock")),
            history: History::new(),
            grants: Mutex::default(),
            newest: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        };
        let shared = Arc::new(Shared {
            subjects: (0..locks).map(subject).collect(),
            stop: AtomicBool::new(false),
            errors: Mutex::default(),
            wrong: Mutex::default(),
        });
        let mut threads = Vec::new();
        for client in clients {
            for at in 0..locks * 2 {
                let (shared, client) = (Arc::clone(&shared), client.clone());
                let work = move || shared.work(&client, &shared.subjects[at % locks]);
                threads.push(std::thread::Builder::new().spawn(work).expect("a thread can be started"));
            }
        }
        let load = Load { shared, threads };
        load.await_grants(now());
        load
    }

    /// Waits until every lock has been granted after `since`; returns how long the last one took.
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

    pub fn longest_gap(&self, since: Instant) -> Duration {
        let gap = |subject: &Subject| {
            let grants = subject.grants.lock();
            let from = grants.partition_point(|at| *at < since).saturating_sub(1);
            grants[from..].windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
        };
        self.shared.subjects.iter().map(gap).max().unwrap_or_default()
    }

    /// Ends the threads; panics if an error occurred that must not.
    #[track_caller]
    pub fn stop(self) -> Outcome {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().expect("a thread of the load panicked");
        }
        let wrong = self.shared.wrong.lock();
        assert!(wrong.is_empty(), "{} errors that are neither retryable nor a loss: {wrong:#?}", wrong.len());
        let mut outcome = Outcome {
            grants: 0,
            overlaps: 0,
            tokens: 0,
            refused: 0,
            errors: self.shared.errors.lock().clone(),
        };
        for subject in &self.shared.subjects {
            outcome.grants += subject.history.grants();
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
    fn work(&self, client: &LockClient, subject: &Subject) {
        let lock = client.get_fenced_lock(&subject.name);
        while !self.stop.load(Ordering::SeqCst) {
            let guard = match lock.try_acquire_for(WAIT) {
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
            let fence = guard.fencing_token().expect("a fenced lock's guard has one").get();
            let open = subject.history.acquired(guard.owner(), Some(fence));
            subject.grants.lock().push(acquired);
            after(HELD).recv().expect("the time comes");
            if subject.newest.fetch_max(fence, Ordering::SeqCst) > fence {
                subject.refused.fetch_add(1, Ordering::SeqCst);
            }
            // The hold counts at most for the promised time.
            subject.history.ends(open, now().min(promised));
            if let Err(error) = guard.unlock() {
                self.met(&error);
            }
        }
    }

    fn met(&self, error: &Error) {
        let text = format!("{:?} during {}", error.kind(), error.action());
        *self.errors.lock().entry(text).or_default() += 1;
        if !super::may_pass(error) && !error.is_lost() && !error.outcome_unknown() {
            self.wrong.lock().push(format!("{error:?}"));
        }
    }
}
