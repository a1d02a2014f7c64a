//! The bytes that remain allocated after many locks were used, and those that one cycle allocates. This
//! program's allocator counts them, because the process size includes memory that the allocator keeps.

use std::ops::Range;

use leasehold::{Event, Observer};

use crate::support::heap::{Counting, allocated_by_this_thread, live_bytes};
use crate::support::prelude::*;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: i64 = 1 << 20;
/// The maximum number of bytes that may remain allocated when all leases are over.
const LEFT: i64 = 2 * MIB;
const CROWD: usize = 10_000;

fn leave_to_run_out(client: &LockClient, names: Range<usize>, lease: Duration) {
    for n in names {
        client.get_lock(format!("left-{n}")).try_lock_for_with_lease(Duration::ZERO, lease).unwrap();
    }
}

/// The number of expired holds that a client remembers, to explain a failed `unlock`.
const LAPSED: usize = 1_024;
/// This many holds expire before a test counts bytes, so the client already remembers `LAPSED` holds.
const REMEMBERED: usize = 2_000;

#[track_caller]
fn assert_given_back(before: i64, within: Duration, what: &str) {
    let mut left = 0;
    let is_given_back = eventually(within, || {
        left = live_bytes() - before;
        left <= LEFT
    });
    assert!(is_given_back, "{left} bytes more than before {what}");
}

scenario!(ten_thousand_expired_leases_leave_no_memory_allocated, |world| {
    let builder = world.builder_to(&world.server.url()).lease(ms(3_000)).command_timeout(LONG);
    let client = builder.build().unwrap();
    leave_to_run_out(&client, 0..REMEMBERED, ms(2_000));
    let_pass(ms(2_500), "these leases, and what follows them");
    let before = live_bytes();
    // On a busy machine the first leases expire before the last lock is acquired, so the memory for all
    // leases is calculated from a twentieth of them.
    let (some, last) = (REMEMBERED + CROWD / 20, REMEMBERED + CROWD);
    leave_to_run_out(&client, REMEMBERED..some, ms(5_000));
    let most = 20 * (live_bytes() - before);
    assert!(most > 2 * LEFT, "all of them would take only {most} bytes");
    leave_to_run_out(&client, some..last, ms(5_000));
    assert_given_back(before, ms(5_000) + LONG, "the leases");
});

/// In each round old holds end and new ones begin. At the end the client's maps must free all slots.
#[test]
fn rounds_of_expired_leases_leave_no_memory_allocated() {
    alone(|| {
        for rounds in [47, 49, 51, 53] {
            let clock = ManualClock::new();
            let client = LockClient::in_memory_with(&MemoryStore::with_clock(clock.clone()));
            leave_to_run_out(&client, 0..REMEMBERED, ms(1_000));
            clock.advance(ms(60_000));
            let before = live_bytes();
            let at_a_time = REMEMBERED / 4;
            for round in 2..2 + rounds {
                leave_to_run_out(&client, round * at_a_time..(round + 1) * at_a_time, ms(20_000));
                clock.advance(ms(1_000));
                // The leases of 20 rounds run at a time. The client must remove ended ones each round.
                let kept = u64::try_from(20 * at_a_time + LAPSED).unwrap();
                assert!(eventually(LONG, || {
                    let stats = client.stats();
                    stats.holds + stats.holds_lost <= kept
                }));
            }
            let most = live_bytes() - before;
            assert!(most > 2 * LEFT, "only {most} bytes were allocated");
            clock.advance(ms(60_000));
            assert_given_back(before, LONG, "the leases");
        }
    });
}

/// The most bytes that an uncontended acquire and release may allocate (figures: docs/performance.md).
const MOST_BYTES: u64 = 3 << 10;

scenario!(an_uncontended_acquire_and_release_allocate_little_memory, |world| {
    let client = world.builder_to(&world.server.url()).command_timeout(LONG).build().unwrap();
    let lock = client.get_lock("cycle");
    let waited_for = || {
        lock.lock().unwrap();
        lock.unlock().unwrap();
    };
    let dropped = || drop(lock.acquire().unwrap());
    for (way, most, cycle) in [("lock and unlock", 16, &waited_for as &dyn Fn()), ("a guard", 22, &dropped)] {
        let cycles = 500;
        // The first cycles allocate buffers that later cycles reuse, so the first cycles are not counted.
        (0..cycles).for_each(|_| cycle());
        let before = allocated_by_this_thread();
        (0..cycles).for_each(|_| cycle());
        let after = allocated_by_this_thread();
        let (times, bytes) = ((after.0 - before.0) / cycles, (after.1 - before.1) / cycles);
        shout(&format!("COUNTED {way}: {times} allocations and {bytes} bytes a cycle"));
        assert!(times <= most && bytes <= MOST_BYTES, "{way}: {times}, {bytes} bytes");
    }
});

struct Blocked(Mutex<Option<Receiver<()>>>);

impl Blocked {
    fn new() -> (Blocked, Sender<()>) {
        let (free, blocked) = bounded(0);
        (Blocked(Mutex::new(Some(blocked))), free)
    }

    fn block(&self) {
        let first = self.0.lock().take();
        if let Some(free) = first {
            assert!(free.recv().is_err(), "the channel ends with its sender");
        }
    }
}

impl Observer for Blocked {
    fn event(&self, event: &Event<'_>) {
        if let Event::RenewalFailed { .. } | Event::Lost { .. } = event {
            self.block();
        }
    }
}

scenario!(an_outage_leaves_no_memory_allocated, |world| {
    let (blocked, free) = Blocked::new();
    let lease = ms(6_000);
    let builder = world.builder_to(&world.server.url()).lease(lease).command_timeout(ms(1_000));
    let client = builder.observer(blocked).build().unwrap();
    let before = live_bytes();
    let guards: Vec<OwnedGuard> =
        (0..CROWD).map(|n| client.get_lock(format!("held-{n}")).acquire_owned().unwrap()).collect();
    let most = live_bytes() - before;
    assert!(most > 2 * LEFT, "only {most} bytes were allocated");
    world.server.stop();
    // All renewals fail, and the observer blocks at the first failure, so all other reports wait.
    assert!(eventually(lease + LONG, || guards.iter().all(|guard| guard.check().is_err())));
    world.server.cont();
    drop((guards, free));
    assert_given_back(before, lease + LONG, "the outage");
    drop(client);
});
