//! The turn of a client at a lock that others stand in line for: its dropped guards cost no request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use leasehold::{Event, LockClient, Observer, RedisLock};

use super::world::{World, scenario};
use crate::support::{LONG, eventually, ms};

/// Counts the grants, those for which nothing was asked, and the releases.
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

/// One thread for each lock, which takes it and drops the guard at once, until `is_over`. Panics if two had
/// it at a time.
fn contend(locks: &[RedisLock], is_over: impl FnOnce() -> bool) -> bool {
    let (inside, twice, stop) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let is_over = thread::scope(|scope| {
        for lock in locks {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.acquire().unwrap();
                    twice.fetch_add(inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
        let is_over = is_over();
        stop.store(true, Ordering::SeqCst);
        is_over
    });
    assert_eq!(twice.load(Ordering::SeqCst), 0, "held twice");
    is_over
}

#[test]
fn threads_that_come_back_at_once_have_the_lock_again_without_a_request_in_every_client() {
    scenario(|world| {
        let (clients, grants) = clients(world);
        let locks: Vec<_> =
            clients.iter().flat_map(|client| [client.lock("hot"), client.lock("hot")]).collect();
        let have_turns = || grants.iter().all(|grants| grants.unasked() > 500);
        let had_turns = contend(&locks, || eventually(LONG, have_turns));
        let of = |grants: &Grants| format!("{} of {}", grants.unasked(), grants.all());
        assert!(had_turns, "unasked: {:?}", grants.iter().map(of).collect::<Vec<_>>());
        assert!(eventually(LONG, || grants.iter().all(|grants| grants.released() == grants.all())));
        // Nobody asks about it or ends a client: what is kept is given back all the same.
        assert!(eventually(LONG, || world.is_free("hot")));
        drop(locks);
    });
}

#[test]
fn without_turns_each_grant_is_asked_for() {
    scenario(|world| {
        let (clients, grants) = clients(world);
        let locks: Vec<_> =
            clients.iter().map(|client| client.lock_with("ordered").turn(false).build()).collect();
        assert!(contend(&locks, || eventually(LONG, || grants.iter().all(|grants| grants.all() > 200))));
        assert_eq!(grants.iter().map(Grants::unasked).sum::<usize>(), 0);
        assert!(eventually(LONG, || world.is_free("ordered")));
        drop((locks, clients));
    });
}

#[test]
fn a_client_that_ends_in_its_turn_leaves_the_lock_free() {
    scenario(|world| {
        for _ in 0..20 {
            let (other, client) = (world.client(), world.client());
            let lock = other.lock("ending");
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        drop(lock.acquire().unwrap());
                    }
                });
                let own = client.lock("ending");
                while client.stats().grants < 200 {
                    drop(own.acquire().unwrap());
                }
                client.shutdown().unwrap();
                stop.store(true, Ordering::SeqCst);
            });
            other.shutdown().unwrap();
            // Nobody's lease has to end for that.
            assert!(eventually(ms(500), || world.is_free("ending")));
        }
    });
}
