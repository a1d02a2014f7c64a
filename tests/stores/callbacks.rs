//! Observers and callbacks that call the client during an event: no call breaks, hangs or leaves a hold.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};

use leasehold::{Event, Fault, Observer, Result};

use crate::support::prelude::*;

const NAME: &str = "orders";
/// The first renewal is due after a third of this lease; the rest is a reserve for busy machines.
const LEASE: Duration = ms(2_000);

type CallBack = (&'static str, fn(&LockClient, &RedisLock) -> Result<()>);

/// Calls that an observer makes inside a client call, where all are refused. The observer stops at the first
/// call that is not refused, so calls that could wait for ever come last.
const IN_A_CALL: &[CallBack] = &[
    ("try_lock", |_, lock| lock.try_lock().map(drop)),
    ("try_acquire_owned", |_, lock| lock.try_acquire_owned().map(drop)),
    ("try_lock_for", |_, lock| lock.try_lock_for(ms(1)).map(drop)),
    ("unlock", |_, lock| lock.unlock()),
    ("force_unlock", |_, lock| lock.force_unlock().map(drop)),
    ("is_locked", |_, lock| lock.is_locked().map(drop)),
    ("hold_count", |_, lock| lock.hold_count().map(drop)),
    ("multi_lock", |client, lock| client.get_multi_lock([lock, &client.get_lock("b")]).try_lock().map(drop)),
    ("read lock", |client, _| client.get_read_write_lock("rw").read().try_lock().map(drop)),
    ("semaphore", |client, _| client.get_semaphore("slots").try_set_permits(1).map(drop)),
    ("latch", |client, _| client.get_count_down_latch("latch").count_down().map(drop)),
    ("condition", |_, lock| lock.condition("c").notify_one().map(drop)),
    ("inspect", |client, lock| client.inspect(lock.name()).map(drop)),
    ("list", |client, _| client.list("*").next().transpose().map(drop)),
    ("leader", |client, _| client.leader("leader").map(drop)),
    ("run_once", |client, lock| client.run_once(lock.name(), ms(1), ms(9), |_| ()).map(drop)),
    ("shutdown", |client, _| client.shutdown()),
    ("with_lock", |client, lock| client.with_lock(lock.name(), |_| ())),
    ("lock", |_, lock| lock.lock()),
];

const LATER: &[CallBack] = &[
    ("try_lock_for", |_, lock| if lock.try_lock_for(ms(1))? { lock.unlock() } else { Ok(()) }),
    ("is_locked", |_, lock| lock.is_locked().map(drop)),
    ("inspect", |client, lock| client.inspect(lock.name()).map(drop)),
];

/// An event, whether it came inside a client call, and the error (if any) of each call by the observer.
#[derive(Debug)]
struct Told {
    event: String,
    is_in_a_call: bool,
    answers: Vec<(&'static str, Option<ErrorKind>)>,
}

struct CallsBack {
    client: Arc<OnceLock<LockClient>>,
    told: Sender<Told>,
}

impl Observer for CallsBack {
    fn event(&self, event: &Event<'_>) {
        thread_local! {
            static IS_CALLING: Cell<bool> = const { Cell::new(false) };
        }
        let Some(client) = self.client.get() else { return };
        if IS_CALLING.replace(true) {
            return;
        }
        let is_in_a_call = thread::current().name().is_none_or(|name| !name.starts_with("leasehold-"));
        let lock = client.get_lock(NAME);
        let mut answers = Vec::new();
        for (what, ask) in if is_in_a_call { IN_A_CALL } else { LATER } {
            let kind = ask(client, &lock).err().map(|error| error.kind());
            answers.push((*what, kind));
            if is_in_a_call && kind != Some(ErrorKind::WouldDeadlock) {
                break; // the test will fail by this answer; a later call could wait for ever
            }
        }
        IS_CALLING.set(false);
        let event = match event {
            Event::Request { op, .. } => format!("Request {op}"),
            other => format!("{other:?}").split([' ', '{']).next().unwrap_or_default().to_owned(),
        };
        self.told.send(Told { event, is_in_a_call, answers }).ok();
    }
}

fn called_back() -> (MemoryStore, LockClient, LockClient, Receiver<Told>) {
    let store = MemoryStore::new();
    let (sender, told) = unbounded();
    let cell = Arc::new(OnceLock::new());
    let observer = CallsBack { client: Arc::clone(&cell), told: sender };
    let builder = ClientBuilder::default().lease(LEASE).retry_timeout(Duration::ZERO).observer(observer);
    let client = builder.build_in_memory(&store).unwrap();
    assert!(cell.set(client.clone()).is_ok());
    let other = LockClient::in_memory_with(&store);
    (store, client, other, told)
}

#[test]
fn client_calls_by_an_observer_inside_a_call_are_refused() {
    let (store, client, other, told) = called_back();
    let (lock, others) = (client.get_lock(NAME), other.get_lock(NAME));
    let mut all: Vec<Told> = Vec::new();
    let mut until = |event: &str| {
        while all.last().is_none_or(|last| last.event != event) {
            all.push(receive(&told, LONG).unwrap_or_else(|_| panic!("{event} was not reported")));
        }
    };
    let holds = |lock: &RedisLock| {
        assert_eq!(lock.hold_count().unwrap(), 1);
        assert!(!elsewhere(|| others.try_lock().unwrap()));
    };
    lock.lock().unwrap();
    holds(&lock);
    until("Acquired");
    lock.unlock().unwrap();
    until("Released");
    let held = others.acquire_owned().unwrap();
    assert!(!lock.try_lock().unwrap());
    assert!(!lock.try_lock_for(ms(20)).unwrap());
    until("Waiting");
    until("GaveUp");
    let wait = |lock: &RedisLock| {
        let lock = lock.clone();
        let waiter = call(move || {
            let guard = lock.acquire().unwrap();
            assert_eq!(lock.hold_count().unwrap(), 1);
            guard.unlock().unwrap();
        });
        assert!(eventually(LONG, || client.stats().waiters == 1));
        waiter
    };
    let waiter = wait(&lock);
    held.unlock().unwrap();
    waiter.join();
    let guard = lock.acquire().unwrap();
    let waiter = wait(&lock);
    guard.unlock().unwrap();
    waiter.join();
    until("HandedOff");
    store.fail_client(&client, Fault::AnswerLost).unwrap();
    assert!(lock.try_lock().unwrap_err().outcome_unknown());
    until("UnknownOutcome");
    store.heal();
    assert!(lock.try_lock_for(LONG).unwrap(), "the late grant was not undone");
    until("Renewed");
    store.fail_client(&client, Fault::Refused).unwrap();
    until("RenewalFailed");
    store.heal();
    drop(lock.unlock()); // fails if a stall of the machine has ended the hold
    let guard = client.get_lock("dropped").acquire().unwrap();
    store.fail_client(&client, Fault::Refused).unwrap();
    drop(guard);
    until("ReleaseFailed");
    store.heal();
    elsewhere(|| client.get_lock("left").lock().unwrap());
    until("Abandoned");
    until("Lost");
    client.shutdown().unwrap();
    assert!(others.try_lock_for(LONG).unwrap());
    all.extend(told.try_iter());

    let mut seen = BTreeSet::new();
    for Told { event, is_in_a_call, answers } in &all {
        seen.insert((&**event, *is_in_a_call));
        if *is_in_a_call {
            let refused = answers.iter().all(|(_, kind)| *kind == Some(ErrorKind::WouldDeadlock));
            assert!(refused && answers.len() == IN_A_CALL.len(), "{event}: {answers:?}");
        } else {
            let is_refused = |kind: &Option<ErrorKind>| *kind == Some(ErrorKind::WouldDeadlock);
            assert!(!answers.iter().any(|(_, kind)| is_refused(kind)), "{event}: {answers:?}");
        }
    }
    for event in ["Request acquire", "Acquired", "Waiting", "GaveUp", "UnknownOutcome", "HandedOff"] {
        assert!(seen.contains(&(event, true)), "{event} within a call: {seen:?}");
    }
    for event in ["Request release", "Released", "Request hand_off"] {
        assert!(seen.contains(&(event, true)), "{event} within a call: {seen:?}");
    }
    for event in ["Renewed", "RenewalFailed", "ReleaseFailed", "Abandoned", "Lost", "Request renew"] {
        assert!(seen.contains(&(event, false)), "{event} on the callback thread: {seen:?}");
    }
}

/// An observer that drops the thread's outer guard when the thread sends a re-entry's request.
struct DropsOuter;

thread_local! {
    static OUTER: RefCell<Option<Guard>> = const { RefCell::new(None) };
}

impl Observer for DropsOuter {
    fn event(&self, event: &Event<'_>) {
        if matches!(event, Event::Request { op: "acquire", .. }) {
            drop(OUTER.take());
        }
    }
}

#[test]
fn an_observer_can_drop_the_outer_guard_during_a_reentry() {
    let store = MemoryStore::new();
    let client = ClientBuilder::default().observer(DropsOuter).build_in_memory(&store).unwrap();
    let other = LockClient::in_memory_with(&store);
    let lock = client.get_lock(NAME);
    let outer = lock.acquire().unwrap();
    OUTER.replace(Some(outer));
    let inner = lock.acquire().unwrap();
    assert!(OUTER.take().is_none(), "the observer dropped the guard");
    inner.check().unwrap();
    assert_eq!(lock.hold_count().unwrap(), 1);
    assert!(!other.get_lock(NAME).try_lock().unwrap());
    inner.unlock().unwrap();
    assert!(other.get_lock(NAME).try_lock().unwrap());
}

/// An observer that takes the guard from the first field, if any, and sends the result of its unlock.
struct Unlocks(Arc<Mutex<Option<OwnedGuard>>>, Sender<Result<()>>);

impl Observer for Unlocks {
    fn event(&self, _: &Event<'_>) {
        let guard = self.0.lock().unwrap().take();
        if let Some(guard) = guard {
            self.1.send(guard.unlock()).unwrap();
        }
    }
}

#[test]
fn a_guard_that_an_observer_unlocks_is_released() {
    let store = MemoryStore::new();
    let (place, (sender, unlocked)) = (Arc::new(Mutex::new(None)), unbounded());
    let observer = Unlocks(Arc::clone(&place), sender);
    let client = ClientBuilder::default().observer(observer).build_in_memory(&store).unwrap();
    let other = LockClient::in_memory_with(&store);
    let guard = client.get_lock(NAME).acquire_owned().unwrap();
    *place.lock().unwrap() = Some(guard);
    client.get_lock("another").acquire().unwrap().unlock().unwrap();
    fails(receive(&unlocked, LONG).unwrap(), ErrorKind::WouldDeadlock);
    assert!(other.get_lock(NAME).try_lock_for(LONG).unwrap());
}

#[test]
fn dropping_a_leader_inside_an_observer_does_not_hang() {
    type Place = Arc<Mutex<Option<leasehold::Leader>>>;
    struct Drops(Place, Sender<()>, Receiver<()>);
    impl Observer for Drops {
        fn event(&self, event: &Event<'_>) {
            if matches!(event, Event::Acquired { kind: "fenced", .. }) {
                self.2.recv_timeout(LONG).ok(); // until the test has stored its leader
                drop(self.0.lock().unwrap().take());
                self.1.send(()).ok();
            }
        }
    }
    let store = MemoryStore::new();
    let (place, (sender, dropped), (go, may_go)) = (Place::default(), unbounded(), bounded(1));
    let observer = Drops(Arc::clone(&place), sender, may_go);
    let client = ClientBuilder::default().observer(observer).build_in_memory(&store).unwrap();
    let leader = client.leader("leader").unwrap();
    let events = leader.events().clone();
    *place.lock().unwrap() = Some(leader);
    go.send(()).unwrap();
    receive(&dropped, LONG).expect("the drop waited for its own thread");
    assert!(eventually(LONG, || events.recv_timeout(ms(1)).is_err_and(|error| error.is_disconnected())));
    let other = LockClient::in_memory_with(&store);
    assert!(other.get_fenced_lock("leader").try_lock_for(LONG).unwrap());
}

#[cfg(feature = "metrics")]
#[test]
fn client_calls_inside_the_group_names_function_are_refused() {
    let cell: Arc<OnceLock<LockClient>> = Arc::default();
    let (sender, asked) = unbounded();
    let metrics = leasehold::Metrics::new().group_names({
        let cell = Arc::clone(&cell);
        move |name| {
            if let Some(client) = cell.get() {
                sender.send(client.get_lock(name).try_lock().map(drop)).ok();
            }
            "all".to_owned()
        }
    });
    let client = ClientBuilder::default().observer(metrics).build_in_memory(&MemoryStore::new()).unwrap();
    assert!(cell.set(client.clone()).is_ok());
    client.get_lock(NAME).acquire().unwrap().unlock().unwrap();
    let asked: Vec<_> = asked.try_iter().collect();
    let refused =
        |answer: &Result<()>| matches!(answer, Err(error) if error.kind() == ErrorKind::WouldDeadlock);
    assert!(!asked.is_empty() && asked.iter().all(refused), "{asked:?}");
}
