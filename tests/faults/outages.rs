//! Outages with many holds: which holds are kept, which losses are reported, and how many requests are sent.

use super::world::{KEPT, R, T, World, about, play};
use crate::support::observer::{Event, Seen};
use crate::support::prelude::*;
use crate::support::proxy::{Command, Do, Then};

struct Outage {
    holds: usize,
    lease: Duration,
    round_trip: Duration,
    left: Duration,
}

#[derive(Debug)]
#[expect(dead_code, reason = "shown")]
struct Outcome {
    stopped: Duration,
    /// How long the machine stalled after the outage.
    stalled: Duration,
    /// How many holds had enough time left after the outage: half a second, four round trips, and stalls.
    with_time: usize,
    with_time_kept: usize,
    kept: usize,
    connections: u64,
    failures_reported: usize,
    most_reports_of_one: usize,
}

impl Outage {
    fn acquire(&self, client: &LockClient) -> Vec<OwnedGuard> {
        const THREADS: usize = 16;
        let begun = now();
        let take = &|number: usize| {
            let turn = self.lease.mul_f64(0.3 * number as f64 / self.holds as f64);
            let_pass(turn.saturating_sub(begun.elapsed()), "its turn");
            client.get_lock(format!("held-{number}")).acquire_owned().unwrap()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let mine = (0..self.holds).filter(move |number| number % THREADS == thread);
                    scope.spawn(move || mine.map(take).collect::<Vec<_>>())
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn play(&self, world: &World) -> Outcome {
        let seen = Seen::default();
        let client = world
            .builder()
            .lease(self.lease)
            .command_timeout(ms(1_000).min(self.lease / 5))
            .observer(seen.clone())
            .build()
            .unwrap();
        world.proxy.delay_replies(self.round_trip);
        let guards = self.acquire(&client);
        let before = world.proxy.accepted();
        let began = now();
        world.server.stop();
        // The outage ends when half of the holds have just enough time left, so that both outcomes occur.
        let median = || {
            let mut left: Vec<Duration> = guards.iter().map(OwnedGuard::remaining).collect();
            left.sort();
            left[left.len() / 2]
        };
        while median() > self.left {
            let_pass(ms(5), "the outage");
        }
        world.server.cont();
        let back = now();
        let left: Vec<Duration> = guards.iter().map(OwnedGuard::remaining).collect();
        let connections = world.proxy.accepted() - before;
        // This loop records the machine's stalls, because `enough` allows for those before a hold's end.
        let mut stood_still = Vec::new();
        let last = left.iter().max().copied().unwrap_or_default();
        while back.elapsed() <= last {
            let_pass(ms(20), "between two checks of the machine");
            stood_still.push((back.elapsed(), stalled_since(back)));
        }
        let enough = |left: Duration| {
            let until_its_end = stood_still.iter().find(|(at, _)| *at >= left).or(stood_still.last());
            ms(500) + 4 * self.round_trip + until_its_end.map_or(Duration::ZERO, |(_, stalled)| *stalled)
        };
        let standing_still = stalled_since(back);
        let kept: Vec<bool> = guards.iter().map(|guard| guard.check().is_ok()).collect();
        let timed = left.iter().zip(&kept).filter(|(left, _)| **left > enough(**left));
        let with_time: Vec<bool> = timed.map(|(_, kept)| *kept).collect();
        let mut told: Vec<String> = seen
            .events()
            .into_iter()
            .filter_map(|event| match event {
                Event::RenewalFailed(name, _) => Some(name),
                _ => None,
            })
            .collect();
        told.sort();
        let outcome = Outcome {
            stopped: back - began,
            stalled: standing_still,
            with_time: with_time.len(),
            with_time_kept: with_time.iter().filter(|kept| **kept).count(),
            kept: kept.iter().filter(|kept| **kept).count(),
            connections,
            failures_reported: told.len(),
            most_reports_of_one: told.chunk_by(|one, other| one == other).map(<[_]>::len).max().unwrap_or(0),
        };
        world.proxy.delay_replies(Duration::ZERO);
        client.shutdown().unwrap();
        drop(guards);
        outcome
    }
}

scenario!(holds_with_half_a_second_left_survive_an_outage, |world| {
    for round_trip in [Duration::ZERO, ms(20)] {
        let outage = Outage { holds: 1_000, lease: ms(15_000), round_trip, left: ms(700) };
        let outcome = outage.play(world);
        assert!(outcome.with_time > 0 || outcome.stalled > ms(300), "{outcome:?}");
        assert_eq!(outcome.with_time_kept, outcome.with_time, "{outcome:?}");
        // The client tries to connect five times a second, and one try was under way at the beginning.
        let seconds = outcome.stopped.as_secs_f64().ceil() as u64;
        assert!(outcome.connections <= 5 * seconds + 1, "{outcome:?}");
        assert!(outcome.most_reports_of_one <= 5, "{outcome:?}");
    }
});

/// Prints the outage figures of `docs/figures/measured.md`, only on request, because each takes a minute.
#[test]
fn the_outage_figures_are_printed_if_requested() {
    if std::env::var_os("LEASEHOLD_OUTAGE_FIGURES").is_none() {
        return;
    }
    alone_within(Duration::from_secs(900), || {
        let Some(binary) = default_server() else { return };
        play(RedisServer::builder(&binary).start(), |world| {
            for holds in [2_000, 10_000] {
                for round_trip in [Duration::ZERO, ms(20)] {
                    let (lease, left) = (ms(30_000), ms(2_000));
                    let outcome = Outage { holds, lease, round_trip, left }.play(world);
                    crate::support::shout(&format!("MEASURED {holds} holds at {round_trip:?}: {outcome:?}"));
                }
            }
        });
    });
}

/// The maximum delay between the end of a hold's window and the report of its loss.
const SOON: Duration = ms(60);

fn assert_loss_reported_at_end(lock: &leasehold::RedisLock, lease: Duration, meanwhile: impl FnOnce()) {
    let asked = now();
    let guard = lock.acquire_with(&leased(lease)).unwrap().unwrap();
    let (lost, had) = (guard.lost(), now());
    meanwhile();
    let waiting = call(move || (lost.recv_timeout(Duration::from_secs(20)), now()));
    let ((loss, told), _): ((_, Instant), _) = waiting.outcome();
    assert_eq!(loss.unwrap().reason, LossReason::Expired);
    assert!(told.duration_since(asked) >= lease - lease / 100, "the loss was reported too early");
    let late = told.duration_since(had).saturating_sub(lease - lease / 100);
    assert!(late <= SOON + stalled_since(had), "the loss was reported {late:?} after the end");
    drop(guard);
}

scenario!(a_loss_is_reported_while_requests_hang, |world| {
    let client = world.builder().lease(ms(3_000)).command_timeout(ms(2_500)).build().unwrap();
    let renewed = client.get_lock("renewed").acquire_owned().unwrap();
    // The renewal of `renewed` is due after a second, and hangs because the server is stopped.
    assert_loss_reported_at_end(&client.get_lock("ends"), ms(1_500), || world.server.stop());
    world.server.cont();
    drop((renewed, client));
    // The try of `doubt` times out after a second, and its clean-up hangs too.
    let client = world.builder().lease(ms(30_000)).command_timeout(ms(1_000)).build().unwrap();
    assert_loss_reported_at_end(&client.get_lock("ends"), ms(1_500), || {
        world.proxy.each(about("doubt"), Do::DropRequest(Then::Silent));
        let client = client.clone();
        drop(call(move || client.get_lock("doubt").try_lock()));
    });
});

scenario!(a_late_renewal_prolongs_no_later_hold, |world| {
    // The next hold's lease is shorter than the lease that a late renewal sets, so such a renewal shows.
    let (client, lease) = (world.builder().lease(KEPT).build().unwrap(), KEPT / 2);
    let lock = client.get_lock("under-way");
    for is_repeated in [false, true] {
        let guard = lock.acquire().unwrap();
        let fault = world.proxy.next(about("under-way"), Do::HoldRequest);
        fault.wait_for(1, LONG);
        if is_repeated {
            throughout(T + R, || guard.check().is_ok());
        }
        let begun = now();
        guard.unlock().unwrap();
        let second = lock.acquire_with(&leased(lease)).unwrap().unwrap();
        if !is_repeated {
            within(begun, T / 2, "a release and an acquire");
        }
        let (before, most) = (world.scripts_run(), i64::try_from(lease.as_millis()).unwrap());
        fault.release();
        assert!(eventually(LONG, || world.scripts_run() > before), "the late request does not arrive");
        throughout(ms(100), || {
            world.assert_held("under-way", second.owner(), 1);
            world.ttl("under-way") <= most
        });
        second.unlock().unwrap();
        assert!(world.is_free("under-way"));
    }
});

scenario!(a_waiter_gives_up_without_waiting_for_the_store, |world| {
    let builder = world.builder().lease(Duration::from_secs(60)).command_timeout(2 * LONG);
    let (client, other) = (builder.build().unwrap(), world.direct());
    let fair = client.get_fair_lock("fair");
    let held = other.get_fair_lock("fair").acquire_owned().unwrap();
    let leaves = |command: &Command| command.args.iter().any(|arg| arg == b"leave");
    let waiting = || other.inspect("fair").unwrap().waiting;
    let interrupt = Interrupt::new();
    let (number, begun) = (client.current_owner(), now());
    for is_interrupted in [false, true] {
        let held_back = world.proxy.next(leaves, Do::HoldRequest);
        if is_interrupted {
            let (fair, wait) = (fair.clone(), interrupt.clone());
            let waiter = call(move || fair.lock_interruptibly(&wait));
            assert!(eventually(LONG, || waiting() == 1));
            interrupt.interrupt();
            assert!(waiter.join().is_err());
        } else {
            assert!(fair.try_acquire_for(ms(1_000)).unwrap().is_none());
        }
        held_back.wait_for(1, LONG);
        assert_eq!(waiting(), 1, "the store has not been asked yet");
        held_back.release();
        assert!(eventually(LONG, || waiting() == 0));
    }
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    held.unlock().unwrap();
    let guard = fair.acquire().unwrap();
    assert_eq!(guard.owner(), number, "no request is in doubt");
    guard.unlock().unwrap();
    client.shutdown().unwrap();
});

scenario!(a_lost_request_to_leave_the_queue_is_repeated, |world| {
    let builder = world.builder().lease(Duration::from_secs(60)).command_timeout(ms(500));
    let (client, other) = (builder.build().unwrap(), world.direct());
    let fair = client.get_fair_lock("fair");
    let held = other.get_fair_lock("fair").acquire_owned().unwrap();
    let leaves = |command: &Command| command.args.iter().any(|arg| arg == b"leave");
    let number = client.current_owner();
    let lost = world.proxy.next(leaves, Do::DropRequest(Then::Reset));
    assert!(fair.try_acquire_for(ms(1_000)).unwrap().is_none());
    lost.wait_for(1, LONG);
    // Without the repetition the queue place would last for `PLACE_LASTS`, six seconds.
    comes_true_within(ms(3_000), || other.inspect("fair").unwrap().waiting == 0);
    assert!(eventually(LONG, || client.current_owner() != number), "the number is still in use");
    held.unlock().unwrap();
    fair.acquire().unwrap().unlock().unwrap();
    client.shutdown().unwrap();
});
