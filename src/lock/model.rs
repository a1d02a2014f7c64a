//! Everything above the stores, as it is, under shuttle's schedules: waiting, the queue, hand-overs, registration,
//! giving up, and the watchdog. Run by `./check model`.
//!
//! Time stands still unless a test moves it, and never as far as the safety poll: a thread whose wake-up is lost sleeps
//! for good, and shuttle says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::config::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{LockName, Owner};
use crate::lock::engine::Engine;
use crate::lock::interrupt::Interrupt;
use crate::lock::named::NamedLock;
use crate::lock::report::Reporter;
use crate::lock::store::{Answer, Attempt, Claim, HandOver, Kind, Pending, Release, Snapshot, Store};
use crate::lock::topic::{Listening, Source, Topic};
use crate::store::memory::{MemoryAccess, MemoryStore};
use crate::sync::channel::{Sender, unbounded};
use crate::sync::model::{check, spawn, toss};
use crate::sync::{Mutex, thread};
use crate::time::{Clock, ManualClock, Moment};

const NAME: &str = "a";

/// One server, its clock, and who is inside the lock.
struct World {
    clock: ManualClock,
    server: MemoryStore,
    inside: AtomicUsize,
    grants: AtomicUsize,
}

impl World {
    fn new() -> Arc<World> {
        let clock = ManualClock::new();
        let server = MemoryStore::with_clock(clock.clone());
        Arc::new(World { clock, server, inside: AtomicUsize::new(0), grants: AtomicUsize::new(0) })
    }

    fn client(self: &Arc<World>) -> Client {
        self.client_on(Arc::new(self.server.open()))
    }

    fn client_on(self: &Arc<World>, store: Arc<dyn Store>) -> Client {
        let clock = Clock::Manual(self.clock.clone());
        let reporter = Arc::new(Reporter::new(None));
        let engine = Arc::new(Engine::start(Options::default(), clock, store, reporter).unwrap());
        Client { world: Arc::clone(self), engine }
    }
}

#[derive(Clone)]
struct Client {
    world: Arc<World>,
    engine: Arc<Engine>,
}

impl Client {
    fn lock(&self) -> NamedLock {
        NamedLock::new(&self.engine, Kind::Mutex, NAME)
    }

    /// To be called with the lock: is alone there for a while.
    fn work(&self) {
        let others = self.world.inside.fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "two own the lock");
        thread::sleep(Duration::ZERO); // a point
        self.world.inside.fetch_sub(1, Ordering::SeqCst);
        self.world.grants.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes the lock and gives it back, waiting for that or not.
    fn cycle(&self, waits_for_release: bool) {
        let guard = self.lock().acquire().unwrap();
        self.work();
        if waits_for_release { guard.unlock().unwrap() } else { drop(guard) }
    }

    /// Nothing is left of anybody.
    fn end(self) {
        assert!(!self.lock().is_locked().unwrap());
        assert!(self.engine.table.holds().is_empty());
        assert_eq!(self.engine.table.waiting(Kind::Mutex, &name()), 0);
        self.engine.shutdown().unwrap();
    }
}

fn name() -> Arc<LockName> {
    Arc::new(LockName::new(&Arc::from(NAME), NAME.to_owned()).unwrap())
}

#[test]
fn all_who_wait_in_one_process_get_the_lock_one_at_a_time() {
    check(|| {
        let world = World::new();
        let client = world.client();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let client = client.clone();
                spawn(move || (0..2).for_each(|_| client.cycle(toss())))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(world.grants.load(Ordering::SeqCst), 6);
        client.end();
    });
}
