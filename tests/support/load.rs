//! Locks taken all the time by threads of several clients, while a test does what it does to the servers.

use super::history::{Claim, History, check};
use super::{eventually, now, shout};
use leasehold::crossbeam_channel::after;
use leasehold::{Error, LockClient};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread holds a lock at a time.
const HELD: Duration = Duration::from_millis(2);
/// How long it waits for one: as long as the tests let a switch take, in which nobody has it.
const WAIT: Duration = super::sentinel::LIMIT;
/// By when every lock is granted again once there is a master.
const SERVED: Duration = Duration::from_secs(20);

/// One lock, for which all threads compete.
struct Subject {
    name: String,
    history: History,
    /// When it was granted.
    grants: Mutex<Vec<Instant>>,
    /// The state of a store behind the fence: the largest token so far, and how many writes it refused.
    newest: AtomicU64,
    refused: AtomicU64,
}

struct Shared {
    subjects: Vec<Subject>,
    stop: AtomicBool,
    /// How often each kind of error was met, and those that should not have been.
    errors: Mutex<BTreeMap<String, usize>>,
    wrong: Mutex<Vec<String>>,
}

/// Threads that take fenced locks and release them, until this is stopped.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The outcome.
#[derive(Debug)]
pub struct Outcome {
    pub grants: usize,
    /// Pairs of holds of different owners that overlapped, over all locks.
    pub overlaps: usize,
    /// Tokens that did not grow.
    pub tokens: usize,
    /// Writes that the fence refused.
    pub refused: u64,
    pub errors: BTreeMap<String, usize>,
}

impl Load {
    /// Two threads of each client for each of `locks` locks.
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

    /// Waits until every lock has been granted after `since`; returns how long after that the last of them
    /// was, for the first time.
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

    /// The longest time without any grant of the same lock, from `since` on.
    pub fn longest_gap(&self, since: Instant) -> Duration {
        let gap = |subject: &Subject| {
            let grants = subject.grants.lock();
            let from = grants.partition_point(|at| *at < since).saturating_sub(1);
            grants[from..].windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
        };
        self.shared.subjects.iter().map(gap).max().unwrap_or_default()
    }

    /// Ends the threads; panics if there was an error that nobody should meet.
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
            let claims: Vec<Claim> = subject.history.claims();
            outcome.grants += claims.len();
            outcome.refused += subject.refused.load(Ordering::SeqCst);
            for violation in check(&claims) {
                shout(&format!("{}: {violation}", subject.name));
                match violation {
                    super::history::Violation::Overlap(..) => outcome.overlaps += 1,
                    super::history::Violation::Token(..) => outcome.tokens += 1,
                    super::history::Violation::Backwards(claim) => panic!("nonsense: {claim}"),
                }
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
            // The promised time, and no more of it than was used.
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
