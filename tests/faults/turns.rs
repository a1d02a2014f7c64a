//! Time slices: while other clients wait, a client that is served may reuse the lock without requests.

use leasehold::{Event, Observer};

use super::world::{World, scenario};
use crate::support::caching::cached;
use crate::support::prelude::*;
use crate::support::{reexecuted, test_name};

/// Counters of grants, of grants without a request, and of releases.
#[derive(Clone, Default)]
struct Grants(Arc<[AtomicUsize; 3]>);

impl Observer for Grants {
    fn event(&self, event: &Event<'_>) {
        if let Event::Acquired { attempts, .. } = event {
            self.0[0].fetch_add(1, Ordering::SeqCst);
            self.0[1].fetch_add(usize::from(*attempts == 0), Ordering::SeqCst);
        }
        self.0[2].fetch_add(usize::from(matches!(event, Event::Released { .. })), Ordering::SeqCst);
    }
}

impl Grants {
    fn all(&self) -> usize {
        self.0[0].load(Ordering::SeqCst)
    }

    fn released(&self) -> usize {
        self.0[2].load(Ordering::SeqCst)
    }

    fn unasked(&self) -> usize {
        self.0[1].load(Ordering::SeqCst)
    }
}

fn clients(world: &World) -> (Vec<LockClient>, Vec<Grants>) {
    let client = || {
        let grants = Grants::default();
        let builder = world.builder_to(&world.server.url()).observer(grants.clone());
        (builder.build().unwrap(), grants)
    };
    (0..2).map(|_| client()).unzip()
}

fn contend(cycle: fn(&RedisLock, &dyn Fn()), locks: &[RedisLock], is_over: impl FnOnce() -> bool) -> bool {
    let (inside, twice, stop) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let is_over = thread::scope(|scope| {
        let _end = Raise(&stop);
        for lock in locks {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    cycle(lock, &|| {
                        twice.fetch_add(inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            });
        }
        is_over()
    });
    assert_eq!(twice.load(Ordering::SeqCst), 0, "two threads held the lock");
    is_over
}

fn by_guard(lock: &RedisLock, work: &dyn Fn()) {
    let _guard = lock.acquire().unwrap();
    work();
}

fn by_unlock(lock: &RedisLock, work: &dyn Fn()) {
    lock.lock().unwrap();
    work();
    lock.unlock().unwrap();
}

scenario!(contending_clients_reacquire_a_lock_without_a_request, |world| {
    let (clients, grants) = clients(world);
    let locks: Vec<_> =
        clients.iter().flat_map(|client| [client.get_lock("hot"), client.get_lock("hot")]).collect();
    let have_turns = || grants.iter().all(|grants| grants.unasked() > 500);
    let had_turns = contend(by_guard, &locks, || eventually(LONG, have_turns));
    let of = |grants: &Grants| format!("{} of {}", grants.unasked(), grants.all());
    assert!(had_turns, "unasked: {:?}", grants.iter().map(of).collect::<Vec<_>>());
    assert!(eventually(LONG, || grants.iter().all(|grants| grants.released() == grants.all())));
    // The cached lock is released although no client asks for it and its client lives.
    assert!(eventually(LONG, || world.is_free("hot")));
    drop(locks);
});

scenario!(a_contended_cached_lock_is_reacquired_without_a_request, |world| {
    let (clients, grants) = clients(world);
    let kept = |client: &LockClient| client.lock_builder("hot").cached().build();
    let locks: Vec<_> = clients.iter().map(kept).collect();
    // `unasked` is read first, because the counts grow meanwhile and it must not exceed `all`.
    let of = |one: &Grants| {
        let unasked = one.unasked();
        [one.all().saturating_sub(unasked), unasked]
    };
    let mut before = Vec::new();
    let had_turns = contend(by_unlock, &locks, || {
        // By then each client was recalled too often and pauses `cached`, so only time slices save requests.
        let ask = || grants.iter().all(|one| of(one)[0] > 300);
        let have_asked = eventually(LONG, ask);
        before = grants.iter().map(of).collect();
        let has_turns = |(one, before): (&Grants, &[usize; 2])| {
            let [asked, unasked] = of(one);
            unasked.saturating_sub(before[1]) > 500 + 5 * asked.saturating_sub(before[0])
        };
        have_asked && eventually(LONG, || grants.iter().zip(&before).all(has_turns))
    });
    assert!(had_turns, "asked and not: {before:?}, {:?}", grants.iter().map(of).collect::<Vec<_>>());
    drop((locks, clients)); // one client still caches the lock, since nobody recalls it now
    assert!(eventually(LONG, || world.is_free("hot")));
});

scenario!(a_client_that_shuts_down_under_contention_frees_the_lock, |world| {
    for _ in 0..20 {
        let (other, client) = (world.client(), world.client());
        let lock = other.get_lock("ending");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    drop(lock.acquire().unwrap());
                }
            });
            let own = client.get_lock("ending");
            while client.stats().grants < 200 {
                drop(own.acquire().unwrap());
            }
            client.shutdown().unwrap();
            stop.store(true, Ordering::SeqCst);
        });
        other.shutdown().unwrap();
        assert!(eventually(ms(500), || world.is_free("ending")));
    }
});

/// An environment variable that makes this program the process that exits. Its value has the server's URL and
/// the way to exit.
const EXITS: &str = "LEASEHOLD_EXITS";

/// If `EXITS` is set, exits just after the release of a lock that the client caches.
fn exits() {
    let Ok(told) = std::env::var(EXITS) else { return };
    let (url, how) = told.split_once(' ').unwrap();
    let client = LockClient::builder().url(url).lease(LONG).build().unwrap();
    match how {
        "turn" => {
            // The client caches the lock when it expects this thread to reacquire soon, while others wait.
            let (lock, begun) = (client.get_lock("hot"), now());
            while begun.elapsed() < ms(300) {
                drop(lock.acquire().unwrap());
            }
            std::process::exit(0);
        }
        "keep" => {
            drop(cached(&client, &LockClient::connect(url).unwrap(), "stock"));
            std::process::exit(0);
        }
        _ => {
            // An exit in the process's first thread, which the crate knows by the name `main`, must free the
            // cached locks of all threads.
            let ends = thread::Builder::new().name("main".to_owned()).spawn({
                let url = url.to_owned();
                move || {
                    let client = LockClient::builder().url(&url).lease(LONG).build().unwrap();
                    let other = LockClient::connect(&url).unwrap();
                    let threads = ["stock", "orders"].map(|name| {
                        let (client, other) = (client.clone(), other.clone());
                        let (kept, is_kept) = std::sync::mpsc::channel();
                        drop(start(move || {
                            drop(cached(&client, &other, name));
                            kept.send(()).unwrap();
                            thread::park();
                        }));
                        is_kept
                    });
                    threads.iter().for_each(|is_kept| is_kept.recv().unwrap());
                    drop(cached(&client, &other, "own"));
                    std::process::exit(0);
                }
            });
            ends.unwrap().join().unwrap();
        }
    }
}

/// With musl, `exit` runs no destructors of thread-locals, and so frees no cached lock.
#[cfg(not(target_env = "musl"))]
#[test]
fn a_process_exit_frees_cached_locks() {
    exits();
    scenario(|world| {
        let (clients, _) = clients(world);
        let locks: Vec<_> = clients.iter().map(|client| client.get_lock("hot")).collect();
        for _ in 0..9 {
            let mut exited = now();
            contend(by_guard, &locks, || {
                let process = reexecuted(&test_name(), &[(EXITS, &format!("{} turn", world.server.url()))]);
                let (is_well, _) = process.ends_within(LONG);
                exited = now();
                is_well
            });
            let took = exited.elapsed();
            assert!(took <= ms(2_000) + slack_since(exited), "the lock was held for {took:?} after the exit");
        }
        for (how, names) in [("keep", &["stock"][..]), ("main", &["stock", "orders", "own"])] {
            for _ in 0..3 {
                let process = reexecuted(&test_name(), &[(EXITS, &format!("{} {how}", world.server.url()))]);
                assert!(process.ends_within(LONG).0);
                assert!(names.iter().all(|name| world.is_free(name)), "{how}: {names:?}");
            }
        }
    });
}
