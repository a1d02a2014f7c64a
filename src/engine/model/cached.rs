//! Holds that a client caches after their last level: for a time slice, and until a recall.

use super::*;
use crate::engine::acquire::call::LockConfig;
use crate::engine::hold::LocalLock;

/// Threads drop guards and reuse the hold within time slices, while other calls interfere and time passes.
/// One thread at a time has the lock, and each thread gets it.
#[test]
fn time_slices_leave_no_waiter_asleep() {
    for (threads_each, trouble) in [(1, 0), (2, 1)] {
        check(move || turns(threads_each, trouble));
    }
}

fn turns(threads_each: usize, trouble: usize) {
    let crowd =
        Crowd::start(threads_each, trouble, Exchange { has_queue: true, ..Exchange::default() }, |client| {
            (0..2).for_each(|_| client.turn());
            // Releases the cached hold. Time may stand still by now, so nothing else would release it.
            drop(client.lock().is_locked());
        });
    // Six short steps end a time slice (2 ms). With faults, requests get lost, so steps must end time-outs.
    let step = Duration::from_micros(if trouble > 0 { 400_000 } else { 350 });
    crowd.pass_time(step, 60);
    assert_eq!(crowd.end(trouble > 0), 2 * threads_each * 2, "each thread got each lock it asked for");
}

/// One or two clients on one server, and their threads, which all use one lock.
struct Crowd {
    world: Arc<World>,
    ended: Arc<AtomicUsize>,
    stores: Vec<Arc<Far>>,
    clients: Vec<(Client, Arc<LocalLock>)>,
    threads: Vec<thread::JoinHandle<()>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Crowd {
    fn start(each: usize, trouble: usize, exchange: Exchange, work: fn(&Client)) -> Crowd {
        Crowd::of(2, each, trouble, exchange, work)
    }

    fn of(clients: usize, each: usize, trouble: usize, exchange: Exchange, work: fn(&Client)) -> Crowd {
        let (world, exchange, ended) = (World::new(), Arc::new(exchange), Arc::new(AtomicUsize::new(0)));
        let (stores, readers): (Vec<_>, Vec<_>) =
            (0..clients).map(|_| Far::new(&world, &exchange, trouble)).unzip();
        let (mut clients, mut threads) = (Vec::new(), Vec::new());
        for store in &stores {
            let client = world.client_on(Arc::<Far>::clone(store));
            // Keeps the local lock alive between two holds, as a user's lock value would.
            let local = client.engine.registry.local(Kind::Mutex, &name());
            local.state().caching.count_on_return();
            for _ in 0..each {
                let (client, ended) = (client.clone(), Arc::clone(&ended));
                threads.push(spawn(move || {
                    work(&client);
                    ended.fetch_add(1, Ordering::SeqCst);
                }));
            }
            clients.push((client, local));
        }
        Crowd { world, ended, stores, clients, threads, readers }
    }

    fn pass_time(&self, step: Duration, steps: usize) {
        let is_over = || self.ended.load(Ordering::SeqCst) == self.threads.len();
        pass_time(&self.world.clock, step, steps, is_over);
    }

    /// Waits for the threads, and ends the clients; returns the number of grants. Once the threads have ended
    /// no time passes, so a client could not repeat a lost request: none gets lost any more.
    fn end(self, had_trouble: bool) -> usize {
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.stores.iter().for_each(|store| store.trouble.store(0, Ordering::SeqCst));
        for (client, local) in self.clients {
            client.engine.shutdown().unwrap();
            assert!(!local.state().holds.iter().any(|own| own.is_cached()));
        }
        let is_free = || !self.world.client().lock().is_locked().unwrap();
        assert!(had_trouble || is_free(), "the lock stays held until its lease ends");
        self.readers.into_iter().for_each(|reading| reading.join().unwrap());
        self.world.grants.load(Ordering::SeqCst)
    }
}

impl Client {
    fn turn(&self) {
        let lock = self.lock();
        if toss() && toss() {
            drop(lock.is_locked());
        }
        let options = AcquireOptions::new();
        let options = if toss() && toss() { options.lease(SHORT * 300_000) } else { options };
        let guard = lock.acquire_with(&options).unwrap().unwrap();
        self.work();
        is_known_or_in_doubt(end(guard, toss() && toss()));
    }
}

/// Clients cache the hold after most uses, until the other client asks for the lock. One thread at a time
/// has the lock. Time stands still, so a recall alone must free the cached hold; time passes only if
/// requests, answers and recalls may get lost.
#[test]
fn caching_until_a_recall_leaves_no_waiter_asleep() {
    for (threads_each, trouble) in [(1, 0), (2, 0), (2, 1)] {
        check(move || until_recall(threads_each, trouble));
    }
}

fn until_recall(threads_each: usize, trouble: usize) {
    let exchange = Exchange { loses_recalls: trouble > 0, ..Exchange::default() };
    let work = if threads_each == 1 { cached_cycles::<3> } else { cached_cycles::<2> };
    let crowd = Crowd::start(threads_each, trouble, exchange, work);
    if trouble > 0 {
        crowd.pass_time(Duration::from_millis(700), 60);
    }
    let grants = crowd.end(trouble > 0);
    assert_eq!(grants, 2 * threads_each * (4 - threads_each), "each thread got each lock it asked for");
}

/// A client sends itself no recall. So a thread that waits must itself release a hold that is cached for
/// another thread of the client.
#[test]
fn no_thread_waits_for_a_hold_that_its_client_caches() {
    check(|| {
        let crowd = Crowd::of(1, 2, 0, Exchange::default(), cached_cycles::<3>);
        assert_eq!(crowd.end(false), 6);
    });
}

/// Some grants say that other clients are in the wait queue, so holds are cached for time slices too.
#[test]
fn caching_beside_a_wait_queue_leaves_no_waiter_asleep() {
    for threads_each in [1, 2] {
        check(move || {
            let exchange = Exchange { has_queue: true, ..Exchange::default() };
            let crowd = Crowd::start(threads_each, 0, exchange, |client| {
                (0..2).for_each(|_| client.cached_cycle());
                drop(client.lock().is_locked());
            });
            crowd.pass_time(Duration::from_micros(350), 200);
            assert_eq!(crowd.end(false), 4 * threads_each, "each thread got each lock it asked for");
        });
    }
}

fn cached_cycles<const COUNT: usize>(client: &Client) {
    (0..COUNT).for_each(|_| client.cached_cycle());
}

impl Client {
    fn cached_cycle(&self) {
        let keep = toss() || toss();
        let lock = self.lock().with_config(LockConfig { cached: keep, ..LockConfig::default() });
        let guard = lock.acquire().unwrap();
        self.work();
        if toss() && toss() {
            drop(lock.is_locked());
        }
        if let Err(error) = end(guard, toss()) {
            assert!(error.outcome_unknown() || error.not_held().is_some(), "{error:?}");
        }
    }
}
