//! Lost, late and unanswered hand-offs: requests that release a lock to a waiting thread of the same client.

use super::world::{ENDS, PATIENCE, T, World, about, ways};
use crate::support::prelude::*;
use crate::support::proxy::Do;

const LEASE: Duration = Duration::from_secs(10);

struct Next {
    taken: Receiver<leasehold::Owner>,
    go_on: Sender<()>,
    ended: Call<leasehold::Result<()>>,
}

impl Next {
    fn waits_for(client: &LockClient, lock: &RedisLock) -> Next {
        let (tell, taken) = bounded(1);
        let (go_on, told) = bounded::<()>(1);
        let lock = lock.clone();
        let ended = call(move || {
            let guard = lock.acquire_with(&leased(LEASE))?.unwrap();
            tell.send(guard.owner()).expect("the test waits for this");
            told.recv().expect("the test tells");
            guard.unlock()
        });
        assert!(eventually(LONG, || client.stats().waiters == 1), "the other thread does not wait");
        Next { taken, go_on, ended }
    }

    /// Asserts that the waiter holds the lock alone, even if late requests arrive, and then lets it release.
    fn has_its_turn(self, world: &World, name: &str, what: &str) {
        let owner = self
            .taken
            .recv_timeout(LONG)
            .unwrap_or_else(|_| panic!("{what}: the waiter did not get the lock"));
        world.stays_held(T + T / 2, name, owner, 1);
        self.go_on.send(()).unwrap();
        self.ended.outcome().0.unwrap();
        assert!(eventually(LONG, || world.is_free(name)), "{what}");
    }
}

fn faults() -> Vec<Do> {
    ways().into_iter().chain(ENDS.map(Do::DropRequest)).chain([Do::DelayReply(2 * T)]).collect()
}

scenario!(an_unanswered_unlock_leaves_the_next_thread_sole_holder, |world| passed_on(world, "unlock"));

scenario!(an_unanswered_guard_drop_leaves_the_next_thread_sole_holder, |world| passed_on(world, "drop"));

fn passed_on(world: &World, way: &str) {
    for (how, client, lock) in world.each(faults(), way) {
        let what = format!("{way}, {how:?}");
        let first = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        let next = Next::waits_for(&client, &lock);
        let fault = world.proxy.next(about(lock.name()), how);
        in_time(PATIENCE + T, &what, || end(way, first));
        next.has_its_turn(world, lock.name(), &what);
        assert_eq!(fault.hits(), 1, "{what}");
    }
}

scenario!(a_hand_off_request_arriving_late_ends_no_later_hold, |world| {
    for way in ["unlock", "drop"] {
        let client = world.client();
        let lock = client.get_lock(way);
        let first = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        let next = Next::waits_for(&client, &lock);
        let fault = world.proxy.next(about(way), Do::HoldRequest);
        end(way, first);
        next.has_its_turn(world, way, way);
        let again = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        world.arrives(&fault);
        throughout(2 * T, || {
            world.assert_held(way, again.owner(), 1);
            again.check().is_ok()
        });
        again.unlock().unwrap();
        assert!(world.is_free(way), "{way}");
    }
});

scenario!(a_lock_handed_to_a_departing_waiter_becomes_free, |world| {
    let client = world.client();
    let lock = client.get_lock("given-up");
    for round in 0..20 {
        let first = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        let waiters: Vec<_> = (0..4)
            .map(|number| {
                let lock = lock.clone();
                call(move || {
                    let wait = ms(20 + 2 * number);
                    let taken = lock.acquire_with(&leased(LEASE).wait(wait))?;
                    match taken {
                        Some(guard) => guard.unlock().map(|()| true),
                        None => Ok(false),
                    }
                })
            })
            .collect();
        let_pass(ms(20), "until the first of them gives up");
        end(["drop", "unlock"][round % 2], first);
        for waiter in waiters {
            waiter.outcome().0.unwrap();
        }
        world.is_given_back("given-up", T);
    }
});
