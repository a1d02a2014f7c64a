//! A process that uses locks of all kinds of its store, and records what it did.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;

use leasehold::{Error, Event, Observer};
use serde::{Deserialize, Serialize};

use crate::support::history::operations::{Doing, Model, Operation};
use crate::support::observer::texts;
use crate::support::prelude::*;
use crate::support::random;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) urls: Vec<String>,
    pub(crate) folder: String,
    /// The end of the work, as a time of [`mono`].
    pub(crate) end: u64,
    pub(crate) lease: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) kinds: Vec<Kind>,
    /// How long a name is used: longer than any stop of a process, so that others often still use the name
    /// when the process goes on.
    pub(crate) names_last: Duration,
    pub(crate) number: u64,
    /// Whether the worker's client has the observer [`CallsBack`].
    pub(crate) calls_back: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Plain,
    /// A plain lock that its client caches (`lock_builder(name).cached()`).
    Kept,
    Fenced,
    Fair,
    ReadWrite,
    Semaphore,
    Latch,
    /// A job of `run_once`. Its lock is held while the job runs, and perhaps a moment longer.
    Job,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Line {
    /// An operation is complete. If it was a grant, the time is the promised end of its hold.
    Did(Operation, Option<u64>),
    /// An operation that begins no hold is about to be sent. If no later line tells its outcome, it may have
    /// happened or not.
    Asks(Operation),
    Refused(u64),
    /// The hold with this number still exists, and is promised until this time.
    Until(u64, u64),
    /// The worker is about to call unlock for the hold with this number, at this time.
    Unlocks(u64, u64),
    Unlocked(u64, u64),
    Lost(u64),
    /// The client with this id is about to shut down, at this time, which releases its holds.
    ShutsDown(String, u64),
    Failed(String, bool),
    /// This worker has stopped using locks, but its client still exists.
    Idle,
}

pub(crate) const THREADS: usize = 4;
/// How many locks of each kind are in use at a time. After [`Orders::names_last`] the locks get new names,
/// since a long history of one name takes too long to check.
pub(crate) const LOCKS: u64 = 8;
/// The units of a semaphore, and the first count of a latch. Workers stop counting down at `RESERVE`, so that
/// concurrent count-downs never find the count at zero.
pub(crate) const UNITS: u32 = 3;
pub(crate) const LATCH: u32 = 500;
const RESERVE: i64 = 100;
const MOST_WAITED: Duration = ms(400);

pub(crate) fn mono() -> u64 {
    nanos(crate::support::mono())
}

pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap()
}

impl Orders {
    pub(crate) fn name(&self, kind: Kind, lock: u64, time: u64) -> String {
        format!("{kind:?}-{lock}-{}", time / nanos(self.names_last))
    }
}

/// The name of a file. When it appears in a worker's folder, the worker ends.
pub(crate) const GO: &str = "go";

pub(crate) fn connect(orders: &Orders) -> LockClient {
    let mut client = Err(String::new());
    let connected = eventually(LONG, || {
        let mut builder = LockClient::builder().lease(orders.lease).retry_timeout(LONG);
        let calls_back = orders.calls_back.then(CallsBack::default);
        if let Some(observer) = &calls_back {
            builder = builder.observer(observer.clone());
        }
        if orders.urls[0].starts_with("postgres") {
            builder = builder.create_schema(true);
        }
        let built = match orders.urls.as_slice() {
            [url] => builder.url(url).command_timeout(orders.command_timeout).build(),
            urls => {
                builder.redlock(urls.iter().map(String::as_str)).node_timeout(orders.command_timeout).build()
            }
        };
        if let (Some(observer), Ok(client)) = (&calls_back, &built) {
            observer.client.set(client.clone()).expect("the client is set once");
        }
        client = built.map_err(|error| texts(&error));
        client.is_ok()
    });
    assert!(connected, "no connection to {:?}: {:?}", orders.urls, client.err());
    client.unwrap()
}

/// An observer that for one event in eight tries to acquire a plain lock, on the thread that reports the
/// event. The try may succeed or be refused, but must disturb no other thread.
#[derive(Clone, Default)]
struct CallsBack {
    client: Arc<OnceLock<LockClient>>,
}

impl Observer for CallsBack {
    fn event(&self, event: &Event<'_>) {
        let name = match event {
            Event::Waiting { name, .. } | Event::Acquired { name, .. } | Event::Released { name, .. } => {
                *name
            }
            Event::Request { .. } => "Plain-called-back",
            _ => return,
        };
        let (true, Some(client)) =
            (name.starts_with("Plain") && random().is_multiple_of(8), self.client.get())
        else {
            return;
        };
        match client.get_lock(name).try_acquire() {
            Ok(taken) => drop(taken),
            Err(error) => {
                let may_be = error.kind() == ErrorKind::WouldDeadlock
                    || error.kind() == ErrorKind::ShutDown
                    || error.is_retryable()
                    || error.is_lost()
                    || error.outcome_unknown();
                assert!(may_be, "the observer's call: {}", texts(&error));
            }
        }
    }
}

pub(crate) const WAITING: &str = "a dozen wait";

/// Runs a dozen clients that wait for locks, and hold those that they acquire, until the process is killed.
pub(crate) fn wait_as_a_crowd(orders: &Orders) {
    let clients: Vec<_> = (0..12).map(|_| connect(orders)).collect();
    shout(WAITING);
    std::thread::scope(|scope| {
        for (at, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                let at = u64::try_from(at).unwrap();
                let is_kept = at.is_multiple_of(2) && orders.kinds.contains(&Kind::Kept);
                let kind = if is_kept { Kind::Kept } else { Kind::Plain };
                loop {
                    let name = orders.name(kind, at % LOCKS, mono());
                    if let Ok(Some(guard)) = client.get_lock(&name).try_acquire_for(LONG) {
                        let_pass(orders.lease / 4, "the crowd's hold");
                        drop(guard);
                    }
                }
            });
        }
    });
}

struct Worker<'a> {
    orders: &'a Orders,
    file: &'a File,
    next: &'a AtomicU64,
}

pub(crate) fn work(orders: &Orders) {
    let path = Path::new(&orders.folder).join(format!("{}.jsonl", std::process::id()));
    let file = File::options().create(true).append(true).open(path).unwrap();
    let next = AtomicU64::new(orders.number << 32);
    let client = Mutex::new(connect(orders));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let worker = Worker { orders, file: &file, next: &next };
            let client = &client;
            scope.spawn(move || {
                while mono() < orders.end {
                    let client = client.lock().clone();
                    worker.turn(&client);
                }
            });
        }
        let keeper = Worker { orders, file: &file, next: &next };
        while mono() < orders.end {
            let_pass(ms(2_000 + random() % 3_000), "until the next shutdown");
            let new = connect(orders);
            let old = std::mem::replace(&mut *client.lock(), new);
            keeper.note(&Line::ShutsDown(old.id().to_string(), mono()));
            drop(old.shutdown()); // may fail because of a fault
        }
    });
    // The client shuts down only after the test's checks, which must not find holds ended by the shutdown.
    Worker { orders, file: &file, next: &next }.note(&Line::Idle);
    // The wait has a limit, so that the process also ends if the test is gone.
    let _has_told = eventually(LONG * 3, || Path::new(&orders.folder).join(GO).exists());
    drop(client.into_inner().shutdown());
}

impl Worker<'_> {
    fn note(&self, line: &Line) {
        let mut text = serde_json::to_string(line).unwrap();
        text.push('\n');
        let mut file = self.file;
        file.write_all(text.as_bytes()).unwrap();
    }

    /// Records a failed call, and whether cut connections or stopped processes can explain the error.
    fn failed(&self, error: &Error) {
        if error.kind() != ErrorKind::ShutDown {
            let allowed = crate::support::may_pass(error) || error.is_lost() || error.outcome_unknown();
            self.note(&Line::Failed(texts(error), allowed));
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn turn(&self, client: &LockClient) {
        let kind = self.orders.kinds[random() as usize % self.orders.kinds.len()];
        let name = self.orders.name(kind, random() % LOCKS, mono());
        let operation = |model, mode: &str| {
            let mut made = Operation::new(&name, model, Doing::Acquire, self.number(), (mono(), None));
            made.mode = mode.to_owned();
            made
        };
        match kind {
            Kind::Plain | Kind::Kept => {
                let builder = client.lock_builder(&name);
                let lock = if kind == Kind::Kept { builder.cached() } else { builder }.build();
                if random().is_multiple_of(8) {
                    self.reuse_at_once(&lock);
                } else {
                    self.lock(&lock, operation(Model::Mutex, ""), true);
                }
            }
            Kind::Fair => self.lock(&client.get_fair_lock(&name), operation(Model::Mutex, ""), true),
            Kind::Fenced => self.fenced(client, operation(Model::Mutex, "")),
            Kind::ReadWrite => {
                let lock = client.get_read_write_lock(&name);
                if random().is_multiple_of(4) {
                    self.lock(lock.write(), operation(Model::ReadWrite, "write"), true);
                } else {
                    self.lock(lock.read(), operation(Model::ReadWrite, "read"), false);
                }
            }
            Kind::Semaphore => self.semaphore(client, operation(Model::Semaphore, "")),
            Kind::Latch => self.latch(client, &name),
            Kind::Job => self.job(client, operation(Model::Mutex, "")),
        }
    }

    fn lock(&self, lock: &RedisLock, made: Operation, is_seen_free: bool) {
        let taken = match random() % 4 {
            0 => lock.acquire_with(&leased(self.orders.lease).wait(MOST_WAITED)),
            1 => lock.try_acquire(),
            _ => lock.try_acquire_for(MOST_WAITED),
        };
        self.hold(taken, made, |guard| {
            lock.try_acquire().ok().flatten().map(|again| (again.owner() == guard.owner(), again))
        });
        if is_seen_free && random().is_multiple_of(4) {
            self.look(lock);
        }
    }

    /// Acquires and releases a lock several times without a pause, so that its client caches the hold.
    fn reuse_at_once(&self, lock: &RedisLock) {
        for _ in 0..20 {
            let time = (mono(), None);
            let made = Operation::new(lock.name(), Model::Mutex, Doing::Acquire, self.number(), time);
            let taken = lock.try_acquire_for(MOST_WAITED);
            self.hold_for(Some(Duration::ZERO), taken, made, |_| None::<(bool, Guard)>);
        }
    }

    /// Records that the lock was seen free. A held lock proves nothing: its holder may have been killed.
    fn look(&self, lock: &RedisLock) {
        let mode = lock.name().starts_with("ReadWrite");
        let model = if mode { Model::ReadWrite } else { Model::Mutex };
        let call = mono();
        match lock.is_locked() {
            Ok(false) => {
                let time = (call, Some(mono()));
                self.note(&Line::Did(
                    Operation::new(lock.name(), model, Doing::Free, self.number(), time),
                    None,
                ));
            }
            Ok(true) => {}
            Err(error) => self.failed(&error),
        }
    }

    fn fenced(&self, client: &LockClient, made: Operation) {
        let lock = client.get_fenced_lock(&made.lock);
        let taken = match random() % 3 {
            0 => lock.acquire_with(&leased(self.orders.lease).wait(MOST_WAITED)),
            _ => lock.try_acquire_for(MOST_WAITED),
        };
        self.hold(taken, made, |_| None::<(bool, Guard)>);
    }

    fn semaphore(&self, client: &LockClient, mut made: Operation) {
        let semaphore = client.get_expirable_semaphore(&made.lock);
        if let Err(error) = semaphore.try_set_permits(UNITS) {
            return self.failed(&error);
        }
        let units = 1 + u32::try_from(random() % 2).unwrap();
        (made.units, made.limit, made.call) = (i64::from(units), i64::from(UNITS), mono());
        let (name, limit) = (made.lock.clone(), made.limit);
        let taken = semaphore.acquire_with(units, &AcquireOptions::new().wait(MOST_WAITED));
        let taken = taken.map(|permit| permit.map(OwnedGuard::from));
        self.hold(taken, made, |_| None::<(bool, OwnedGuard)>);
        if random().is_multiple_of(4) {
            let call = mono();
            match semaphore.available_permits() {
                Ok(value) => {
                    let mut look = Operation::new(
                        &name,
                        Model::Semaphore,
                        Doing::Available,
                        self.number(),
                        (call, Some(mono())),
                    );
                    (look.limit, look.value) = (limit, Some(value));
                    self.note(&Line::Did(look, None));
                }
                Err(error) => self.failed(&error),
            }
        }
    }

    /// Runs a job by `run_once`, and records it as a hold that ends when the job returns, or a moment later.
    fn job(&self, client: &LockClient, mut made: Operation) {
        let (name, hold) = (made.lock.clone(), made.hold);
        let at_least = ms(1 + random() % 20);
        let ran = client.run_once(&name, at_least, self.orders.lease, |guard| {
            let now = mono();
            let left = OwnedGuard::remaining(guard);
            if left.is_zero() {
                return false;
            }
            (made.owner, made.fence, made.ret) = (guard.owner().to_string(), guard.token(), Some(now));
            self.note(&Line::Did(made, Some(now + nanos(left))));
            let_pass(ms(random() % 10), "the job runs");
            self.note(&Line::Unlocks(hold, mono()));
            true
        });
        match ran {
            Ok(Some(true)) => self.note(&Line::Unlocked(hold, mono())),
            Ok(_) => {}
            Err(error) => self.failed(&error),
        }
    }

    fn latch(&self, client: &LockClient, name: &str) {
        let latch = client.get_count_down_latch(name);
        let asked = |f| {
            let made = Operation::new(name, Model::Latch, f, self.number(), (mono(), None));
            Operation { limit: i64::from(LATCH), ..made }
        };
        let answered = |made: Operation, left| {
            self.note(&Line::Did(Operation { ret: Some(mono()), value: Some(left), ..made }, None));
        };
        let made = asked(Doing::Count);
        let left = match latch.count() {
            Ok(left) => left,
            Err(error) => return self.failed(&error),
        };
        answered(made, left);
        if left <= RESERVE {
            return;
        }
        let made = asked(Doing::CountDown);
        // This line is written first, because the process may be killed before the answer.
        self.note(&Line::Asks(made.clone()));
        match latch.count_down() {
            Ok(left) => answered(made, left),
            Err(error) => {
                if !error.outcome_unknown() {
                    self.note(&Line::Refused(made.hold));
                }
                self.failed(&error);
            }
        }
    }

    /// Records a re-entry, or a new hold if the first was lost before the re-entry (`is_same` is then false).
    fn entered(&self, mut made: Operation, is_same: bool, guard: &impl Held) {
        let now = mono();
        let left = guard.remaining();
        made.ret = Some(now);
        if is_same && guard.stands() {
            (made.f, made.fence, made.ret) = (Doing::Reenter, None, Some(mono()));
            self.note(&Line::Did(made, None));
        } else if !is_same && !left.is_zero() {
            (made.hold, made.owner, made.fence) = (made.hold | INNER, guard.owner(), guard.token());
            self.note(&Line::Did(made, Some(now + nanos(left))));
        }
    }

    /// Holds a granted lock for a moment. `again` re-enters it, and says whether the hold has the same owner.
    fn hold<G: Held, H: Held>(
        &self,
        taken: leasehold::Result<Option<G>>,
        made: Operation,
        again: impl FnOnce(&G) -> Option<(bool, H)>,
    ) {
        self.hold_for(None, taken, made, again);
    }

    fn hold_for<G: Held, H: Held>(
        &self,
        span: Option<Duration>,
        taken: leasehold::Result<Option<G>>,
        mut made: Operation,
        again: impl FnOnce(&G) -> Option<(bool, H)>,
    ) {
        let guard = match taken {
            Ok(Some(guard)) => guard,
            Ok(None) => return,
            Err(error) => return self.failed(&error),
        };
        let hold = made.hold;
        // The clock is read first: if time remains afterwards, the hold existed at the time read.
        let promised = |guard: &G| {
            let now = mono();
            (now, Some(guard.remaining()).filter(|left| !left.is_zero()).map(|left| now + nanos(left)))
        };
        let (ret, until) = promised(&guard);
        if let Some(until) = until {
            (made.owner, made.fence, made.ret) = (guard.owner(), guard.token(), Some(ret));
            let nested = made.clone();
            self.note(&Line::Did(made, Some(until)));
            let call = mono();
            let inner = random().is_multiple_of(4).then(|| again(&guard)).flatten();
            if let Some((is_same, inner)) = &inner {
                self.entered(Operation { call, ..nested }, *is_same, inner);
            }
            // Some holds last long enough for renewals.
            let (pieces, piece) = match (span, random() % 200) {
                (Some(span), _) => (1, span),
                (None, 0) => (1 + random() % 8, self.orders.lease / 3),
                (None, _) => (1, ms(random() % 4)),
            };
            for _ in 0..pieces {
                let_pass(piece, "the work under the lock");
                if let (_, Some(until)) = promised(&guard) {
                    self.note(&Line::Until(hold, until));
                }
            }
            if let Some((false, inner)) = inner {
                self.note(&Line::Unlocks(hold | INNER, mono()));
                drop(inner);
            }
            match promised(&guard) {
                (_, Some(until)) => self.note(&Line::Until(hold, until)),
                (_, None) => self.note(&Line::Lost(hold)),
            }
            self.note(&Line::Unlocks(hold, mono()));
            match guard.unlocks() {
                Ok(()) => self.note(&Line::Unlocked(hold, mono())),
                Err(error) => self.failed(&error),
            }
        }
    }
}

const INNER: u64 = 1 << 62;

trait Held {
    fn owner(&self) -> String;
    fn token(&self) -> Option<u64>;
    fn remaining(&self) -> Duration;
    fn stands(&self) -> bool;
    fn unlocks(self) -> leasehold::Result<()>;
}

macro_rules! held {
    ($guard:ty, $unlock:expr) => {
        impl Held for $guard {
            fn owner(&self) -> String {
                <$guard>::owner(self).to_string()
            }

            fn token(&self) -> Option<u64> {
                self.fencing_token().map(leasehold::FencingToken::get)
            }

            fn remaining(&self) -> Duration {
                <$guard>::remaining(self)
            }

            fn stands(&self) -> bool {
                self.state() == HoldState::Held
            }

            fn unlocks(self) -> leasehold::Result<()> {
                $unlock(self)
            }
        }
    };
}

/// Ends a hold, half of the time by dropping the guard, which may cache the hold. If the release of a dropped
/// guard fails, no operation records that, and the lock is free when the lease ends.
fn end(guard: Guard) -> leasehold::Result<()> {
    if random().is_multiple_of(2) {
        drop(guard);
        return Ok(());
    }
    guard.unlock()
}

held!(Guard, end);
// Owned guards call `unlock`, because permits of a failed release would stay taken unnoticed.
held!(OwnedGuard, OwnedGuard::unlock);
