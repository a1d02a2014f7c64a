//! The first process in the queue is stopped or killed at the release. After each of a hundred releases the
//! second client acquires the lock at its next safety poll at the latest.

use super::line::queued_clients;
use super::world::{World, scenario};
use crate::support::prelude::*;
use crate::support::{Process, reexecuted, test_name};

/// A lease that outlasts the test, so only a notification or a poll can end a wait.
const LEASE: Duration = Duration::from_secs(60);
/// The longest wait after a release: until the next safety poll, and for the poll's request.
const PROMISED: Duration = ms(1450);
const NAMES: usize = 10;
const ROUNDS: usize = 10;
/// An environment variable that makes this program the first process in the queue. Its value has the server's
/// URL, the first round, and the round after the last.
const FIRST: &str = "LEASEHOLD_FIRST_IN_LINE";

fn name(round: usize, number: usize) -> String {
    format!("first-{round}-{number}")
}

fn works_as_first_in_queue() -> bool {
    let Ok(told) = std::env::var(FIRST) else { return false };
    let mut words = told.split(' ');
    let url = words.next().unwrap();
    let [from, to] = [(); 2].map(|()| words.next().unwrap().parse::<usize>().unwrap());
    let client = LockClient::builder().url(url).lease(LEASE).directory(false).build().unwrap();
    side_by_side(0..NAMES, |number| {
        for round in from..to {
            client.get_lock(name(round, number)).acquire().unwrap().unlock().unwrap();
        }
    });
    true
}

fn start(world: &World, rounds: std::ops::Range<usize>) -> Process {
    let told = format!("{} {} {}", world.server.url(), rounds.start, rounds.end);
    reexecuted(&test_name(), &[(FIRST, &told)])
}

fn await_queued(world: &World, round: usize, count: usize) {
    for number in 0..NAMES {
        let name = name(round, number);
        let stand = || {
            queued_clients(world, &name) == count
                && listening_clients(&name, "NUMSUB", |command| world.run(command)) == count
        };
        assert!(eventually(LONG, stand), "{count} wait in the queue of {name}");
    }
}

fn round(
    world: &World,
    waiter: &LockClient,
    round: usize,
    held: Vec<OwnedGuard>,
    fail: impl FnOnce(),
) -> Vec<Duration> {
    await_queued(world, round, 1);
    let waiting: Vec<_> = (0..NAMES).map(|number| call(turn(waiter.get_lock(name(round, number))))).collect();
    await_queued(world, round, 2);
    fail();
    let released: Vec<Instant> = held
        .into_iter()
        .map(|held| {
            let released = now();
            held.unlock().unwrap();
            released
        })
        .collect();
    let free = |(waiting, released): (crate::support::Call<Instant>, Instant)| {
        let took = waiting.outcome().0.saturating_duration_since(released);
        took.saturating_sub(stalled_since(released))
    };
    waiting.into_iter().zip(released).map(free).collect()
}

fn assert_served(what: &str, took: Vec<Duration>) {
    assert_eq!(took.len(), NAMES * ROUNDS);
    let (middle, most) = (median(took.clone()), took.iter().max().copied().unwrap_or_default());
    shout(&format!(
        "MEASURED behind a first in line that is {what}: {middle:?} at the middle, {most:?} at most"
    ));
    assert!(most <= PROMISED, "{took:?}");
}

fn hold(holder: &LockClient, round: usize) -> Vec<OwnedGuard> {
    (0..NAMES).map(|number| holder.get_lock(name(round, number)).acquire_owned().unwrap()).collect()
}

#[test]
fn a_stopped_first_process_delays_others_one_poll_at_most() {
    if works_as_first_in_queue() {
        return;
    }
    scenario(|world| {
        let client = || world.builder_to(&world.server.url()).lease(LEASE).build().unwrap();
        let (holder, waiter) = (client(), client());
        let held: Vec<_> = (0..ROUNDS).map(|round| hold(&holder, round)).collect();
        let first = start(world, 0..ROUNDS);
        let mut took = Vec::new();
        for (number, held) in held.into_iter().enumerate() {
            took.extend(round(world, &waiter, number, held, || first.signal("STOP")));
            first.signal("CONT");
        }
        let (good, text) = first.ends_within(LONG);
        assert!(good, "{text}");
        assert_served("stopped", took);
    });
}

#[test]
fn a_killed_first_process_delays_others_one_poll_at_most() {
    if works_as_first_in_queue() {
        return;
    }
    scenario(|world| {
        let client = || world.builder_to(&world.server.url()).lease(LEASE).build().unwrap();
        let (holder, waiter) = (client(), client());
        let mut took = Vec::new();
        for number in 0..ROUNDS {
            let held = hold(&holder, number);
            let first = start(world, number..number + 1);
            took.extend(round(world, &waiter, number, held, || first.signal("KILL")));
        }
        assert_served("killed", took);
    });
}

const DOZEN: &str = "LEASEHOLD_DOZEN_IN_LINE";

fn is_the_dozen() -> bool {
    let Ok(told) = std::env::var(DOZEN) else { return false };
    let (url, name) = told.split_once(' ').unwrap();
    side_by_side(0..12, |_| {
        let client = LockClient::builder().url(url).lease(LEASE).directory(false).build().unwrap();
        client.get_lock(name).acquire().unwrap().unlock().unwrap();
    });
    true
}

/// A live client queues behind killed ones. If the lock is released soon, the live client acquires it at
/// once; if the release comes later, the queue has dropped the killed ones.
#[test]
fn killed_waiters_delay_no_live_waiter_and_leave_the_queue() {
    if is_the_dozen() {
        return;
    }
    scenario(|world| {
        let client = || world.builder_to(&world.server.url()).lease(LEASE).build().unwrap();
        let (holder, waiter) = (client(), client());
        let mut took = Vec::new();
        for round in 0..4 {
            let name = format!("dozen-{round}");
            let held = holder.get_lock(&name).acquire().unwrap();
            let dozen = reexecuted(&test_name(), &[(DOZEN, &format!("{} {name}", world.server.url()))]);
            assert!(
                eventually(LONG, || queued_clients(world, &name) == 12),
                "{} clients wait",
                queued_clients(world, &name)
            );
            let waiting = call(turn(waiter.get_lock(&name)));
            assert!(eventually(LONG, || queued_clients(world, &name) == 13));
            dozen.signal("KILL");
            let _killed = dozen.ends_within(LONG);
            if round == 0 {
                let begun = now();
                assert!(
                    eventually(LONG, || queued_clients(world, &name) == 1),
                    "{} clients wait",
                    queued_clients(world, &name)
                );
                shout(&format!("MEASURED a dozen dead are forgotten after {:?}", begun.elapsed()));
                assert!(begun.elapsed() < ms(9_000) + stalled_since(begun));
            }
            let released = now();
            held.unlock().unwrap();
            let had = waiting.outcome().0;
            took.push(had.saturating_duration_since(released).saturating_sub(stalled_since(released)));
        }
        shout(&format!("MEASURED behind a dozen that were killed: {took:?}"));
        assert!(median(took.clone()) < ms(50), "{took:?}");
        assert!(took.iter().all(|took| *took < ms(500)), "{took:?}");
    });
}
