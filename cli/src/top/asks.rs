//! The thread that sends `top`'s requests to the store, so that no key press waits for an answer.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use leasehold::{Deadlock, Error, Inspection, ListCost, ListedLock, LockClient, ObjectKind};

use crate::clock::Moment;
use crate::cycles;
use crate::show;

const MOST_LOCKS: usize = 10_000;
/// Lists lack some kinds of waiters, so every fifth poll without a visible waiter searches for deadlocks.
const UNASKED: u64 = 5;
const MOST_TOKENS: usize = 64;

pub(crate) struct Poll {
    pub(crate) locks: Vec<ListedLock>,
    pub(crate) found: u64,
    pub(crate) waiting: u64,
    pub(crate) fences: HashMap<String, u64>,
    pub(crate) deadlocks: Vec<Deadlock>,
    pub(crate) cost: ListCost,
    pub(crate) took: Duration,
    pub(crate) since: Moment,
}

pub(crate) enum Answer {
    Polled(Poll),
    Failed(Error),
    Asked(Box<Inspection>),
    Said(String),
}

pub(crate) enum Ask {
    Poll,
    Question(String),
    Force(Box<Inspection>),
}

pub(crate) struct Asks {
    pub(crate) answers: Receiver<Answer>,
    asks: Sender<Ask>,
    visible: Arc<Mutex<Vec<String>>>,
}

impl Asks {
    pub(crate) fn start(client: &LockClient, pattern: &str, interval: Duration) -> io::Result<Asks> {
        let (asks, asked) = unbounded();
        // The channel holds one answer, so the thread below blocks after one more poll until `top` takes it.
        let (answer, answers) = bounded(1);
        let visible = Arc::<Mutex<Vec<String>>>::default();
        let mut thread = Thread {
            client: client.clone(),
            pattern: pattern.to_owned(),
            visible: Arc::clone(&visible),
            polls: 0,
            fences: HashMap::new(),
        };
        std::thread::Builder::new().name("asks".to_owned()).spawn(move || {
            let mut due = Moment::now();
            loop {
                let ask = match asked.recv_timeout(due.since(Moment::now())) {
                    Ok(ask) => ask,
                    Err(RecvTimeoutError::Timeout) => Ask::Poll,
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let forced = matches!(ask, Ask::Force(_));
                if answer.send(thread.answer(ask)).is_err() {
                    return;
                }
                // After a forced release the next poll is due at once, so that the screen shows the outcome.
                let now = Moment::now();
                due = if forced { now } else { due.max(now.minus(interval)).plus(interval) };
            }
        })?;
        Ok(Asks { answers, asks, visible })
    }

    pub(crate) fn visible(&self, names: Vec<String>) {
        *self.visible.lock().unwrap_or_else(PoisonError::into_inner) = names;
    }

    pub(crate) fn ask(&self, ask: Ask) {
        self.asks.send(ask).ok(); // fails if the thread has ended, which its closed channel of answers shows
    }
}

struct Thread {
    client: LockClient,
    pattern: String,
    visible: Arc<Mutex<Vec<String>>>,
    polls: u64,
    fences: HashMap<String, (Hold, Option<u64>)>,
}

/// A hold whose fencing token was read: its owner, and how long it had lasted then. If a later poll shows a
/// shorter time, the hold is a new one.
type Hold = (String, Option<Duration>);

impl Thread {
    fn answer(&mut self, ask: Ask) -> Answer {
        let answered = match ask {
            Ask::Poll => self.poll().map(Answer::Polled),
            Ask::Question(name) => self.client.inspect(&name).map(|seen| Answer::Asked(Box::new(seen))),
            Ask::Force(seen) => {
                show::evict(&self.client, &seen).map(|forced| Answer::Said(forced.words(&seen)))
            }
        };
        answered.unwrap_or_else(Answer::Failed)
    }

    fn poll(&mut self) -> Result<Poll, Error> {
        let since = Moment::now();
        let (mut kept, mut found, mut waiting) = (Vec::new(), 0_u64, 0_u64);
        let mut locks = self.client.list(&self.pattern);
        for lock in locks.by_ref() {
            let lock = lock?;
            found += 1;
            waiting += lock.waiting;
            if kept.len() < MOST_LOCKS {
                kept.push(lock);
            }
        }
        let mut cost = locks.cost();
        let fences = self.fences(&kept, &mut cost)?;
        self.polls += 1;
        let is_asked = waiting > 0 || found > 1 && self.polls.is_multiple_of(UNASKED);
        let deadlocks = if is_asked { cycles::seen(&self.client) } else { Vec::new() };
        let took = Moment::now().since(since);
        Ok(Poll { locks: kept, found, waiting, fences, deadlocks, cost, took, since })
    }

    fn fences(&mut self, locks: &[ListedLock], cost: &mut ListCost) -> Result<HashMap<String, u64>, Error> {
        let visible = self.visible.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut before = std::mem::take(&mut self.fences);
        let by_name: HashMap<&str, &ListedLock> =
            locks.iter().map(|lock| (lock.name.as_str(), lock)).collect();
        for name in visible.iter().take(MOST_TOKENS) {
            // On etcd and ZooKeeper all locks are fair locks with tokens, so fair locks count too.
            let is_fenced =
                |lock: &&&ListedLock| matches!(lock.kind, ObjectKind::FencedLock | ObjectKind::FairLock);
            let lock = by_name.get(name.as_str()).filter(is_fenced);
            let Some(holder) = lock.and_then(|lock| lock.holders.first()) else { continue };
            let known = before.remove(name).filter(|((owner, held_for), _)| {
                *owner == holder.owner && held_for.is_some() && *held_for <= holder.held_for
            });
            let fence = match known {
                Some((_, fence)) => fence,
                None => {
                    cost.requests += 1;
                    let seen = self.client.inspect(name)?;
                    let is_same = seen.holders.first().is_some_and(|now| now.owner == holder.owner);
                    seen.fencing_token.filter(|_| is_same).map(|fence| fence.get())
                }
            };
            self.fences.insert(name.clone(), ((holder.owner.clone(), holder.held_for), fence));
        }
        Ok(self.fences.iter().filter_map(|(name, (_, fence))| Some((name.clone(), (*fence)?))).collect())
    }
}
