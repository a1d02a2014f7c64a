//! Wake-ups that are lost, that wake too many waiters, or that wake one in vain.

use std::net::TcpListener;

use super::world::{KEPT, L, P, T, World, scenario_on};
use crate::support::observer::{Event, Seen};
use crate::support::prelude::*;
use crate::support::proxy::{Command, Direction, Do, Which, verb};
use crate::support::stalls::stalled_between;

scenario!(killed_subscriptions_do_not_strand_waiters, |world| {
    let turns = Arc::new(Mutex::new(Vec::new()));
    let clients: Vec<_> = (0..3).map(|_| world.client()).collect();
    let first = world.direct().get_lock("chain").acquire().unwrap();
    let threads: Vec<_> = (0..9)
        .map(|number| {
            let (lock, turns) = (clients[number % 3].get_lock("chain"), Arc::clone(&turns));
            start(move || {
                let guard = lock.acquire().unwrap();
                let taken = now();
                let_pass(ms(20), "a subscription may be killed within the hold or outside");
                let released = now();
                guard.unlock().unwrap();
                turns.lock().push((taken, released));
            })
        })
        .collect();
    world.await_subscription("chain");
    world.does(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let begun = now();
    first.unlock().unwrap();
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        let_pass(ms(7), "between two kills");
        world.does(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut turns = turns.lock().clone();
    turns.sort_unstable();
    assert_eq!(turns.len(), 9);
    let mut free_since = begun;
    for (taken, released) in turns {
        let gap = taken.saturating_duration_since(free_since);
        assert!(
            gap <= P + SLACK + stalled_between(free_since, taken),
            "the lock was free for {gap:?} although it was waited for"
        );
        free_since = released;
    }
});

scenario!(a_release_that_precedes_the_subscription_is_noticed, |world| {
    let other = world.direct();
    for held_back in [Do::HoldRequest, Do::HoldReply] {
        let client = world.client();
        let held = other.get_lock("between").acquire().unwrap();
        let fault = world.proxy.next(verb("SUBSCRIBE"), held_back.clone());
        let waiter = call(turn(client.get_lock("between")));
        fault.wait_for(1, LONG);
        held.unlock().unwrap();
        fault.release();
        let stands = now();
        waiter.returns_within(stands, ms(50), "noticing the release");
    }
});

scenario!(a_waiter_that_misses_the_message_acquires_within_one_poll, |world| {
    let (client, other) = (world.client(), world.direct());
    for is_half_open in [false, true] {
        let held = other.get_lock("lost").acquire().unwrap();
        let waiter = call(turn(client.get_lock("lost")));
        world.await_subscription("lost");
        if is_half_open {
            world.proxy.hold(Direction::ToClient, Which::Subscribers);
            world.proxy.hold(Direction::ToServer, Which::Subscribers);
        } else {
            world.proxy.drop_messages(true);
        }
        let unlocked = now();
        held.unlock().unwrap();
        waiter.returns_within(unlocked, P, "taking over");
        assert!(world.proxy.messages_dropped() >= 1);
        world.proxy.drop_messages(false);
    }
    world.proxy.resume();
});

#[test]
fn waiters_without_subscriptions_poll() {
    let user = |builder: crate::support::server::Builder| {
        builder.user("mute on >pw ~* resetchannels +@all -subscribe")
    };
    scenario_on(user, |world| {
        let seen = Seen::default();
        let builder = world.builder().username("mute").password("pw").observer(seen.clone());
        let client = builder.build().unwrap();
        let other = world.direct();
        for _ in 0..2 {
            let held = other.get_lock("mute").acquire().unwrap();
            let waiter = call(turn(client.get_lock("mute")));
            seen.wait_for("the lack of wake-ups", |event| matches!(event, Event::NoWakeups(_)));
            assert!(!waiter.is_over());
            let unlocked = now();
            held.unlock().unwrap();
            waiter.returns_within(unlocked, P, "taking over");
        }
        let told = seen.count(|event| matches!(event, Event::NoWakeups(_)));
        assert_eq!(told, 1, "{:?}", seen.events());
    });
}

scenario!(a_waiter_polls_a_lock_without_expiry, |world| {
    let client = world.client();
    world.does(&["HSET", "endless", "somebody:1", "1"]);
    let lock = client.get_lock("endless");
    assert_eq!(lock.remaining_lease().unwrap(), Some(Duration::MAX));
    assert!(!lock.try_lock().unwrap());
    let begun = now();
    assert!(!lock.try_lock_for(ms(300)).unwrap());
    assert!(begun.elapsed() >= ms(300));
    within(begun, ms(300) + T, "a wait");
    let waiter = call(turn(lock));
    world.await_subscription("endless");
    world.does(&["DEL", "endless"]);
    let deleted = now();
    waiter.returns_within(deleted, P, "taking over");
});

scenario!(a_thousand_waiters_use_few_connections_and_are_all_served, |world| {
    const WAITERS: usize = 1000;
    const POOL: u32 = 4;
    let client = world.builder_to(&world.server.url()).pool_size(POOL).build().unwrap();
    let other = world.direct();
    let held = other.get_lock("crowd").acquire().unwrap();
    let before = connections(world);
    let (sender, served) = unbounded();
    let threads: Vec<_> = (0..WAITERS)
        .map(|_| {
            let (lock, sender) = (client.get_lock("crowd"), sender.clone());
            start(move || {
                let guard = lock.acquire().unwrap();
                sender.send(guard.owner()).unwrap();
                guard.unlock().unwrap();
            })
        })
        .collect();
    world.await_subscription("crowd");
    let_pass(P, "so that every waiter that would poll has polled");
    let most = POOL as usize + 2;
    assert!(
        connections(world) <= before + most,
        "{} connections before, then {}",
        before,
        connections(world)
    );
    let asked = world.scripts_run();
    let_pass(P, "a whole poll interval of all of them");
    let polls = world.scripts_run() - asked;
    assert!(polls <= 10, "{polls} scripts while everybody waits");
    let begun = world.scripts_run();
    held.unlock().unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(served.try_iter().count(), WAITERS);
    assert!(connections(world) <= before + most);
    let scripts = usize::try_from(world.scripts_run() - begun).unwrap();
    assert!(scripts <= 4 * WAITERS + 100, "{scripts} scripts for {WAITERS} grants");
    world.is_given_back("crowd", L);
});

fn connections(world: &World) -> usize {
    let list: String = world.run(&["CLIENT", "LIST"]);
    list.lines().count() - 1
}

scenario!(waiters_send_few_connection_attempts_to_a_killed_server, |world| {
    const WAITERS: usize = 200;
    let client = world.builder_to(&world.server.url()).retry_timeout(LONG).build().unwrap();
    let other = world.direct();
    let held = other.get_lock("herd").acquire().unwrap();
    let waiters: Vec<_> = (0..WAITERS).map(|_| call(turn(client.get_lock("herd")))).collect();
    world.await_subscription("herd");
    world.server.kill();
    drop((held, other)); // there is no server to which they could be released
    let listener = TcpListener::bind((world.server.address(), world.server.port())).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (mut came, begun) = (0, now());
    while begun.elapsed() < Duration::from_secs(2) {
        match listener.accept() {
            Ok(_) => came += 1,
            Err(_) => let_pass(ms(1), "between two checks"),
        }
    }
    drop(listener);
    assert!((1..=100).contains(&came), "{came} connections in two seconds");
    world.server.restart();
    waiters.into_iter().for_each(|waiter| _ = waiter.outcome());
    world.is_given_back("herd", L);
});

scenario!(an_unread_subscriber_connection_delays_no_lock_call, |world| {
    const WAITERS: usize = 120;
    const LENGTH: usize = 60_000;
    /// The time limit of a call: far below a write's time-out, and far above the delays of a busy machine.
    const AT_ONCE: Duration = ms(750);
    let write_limit = Duration::from_secs(5);
    let client = world.builder().lease(3 * LONG).command_timeout(write_limit).build().unwrap();
    let other = world.direct();
    let held: Vec<_> = (0..WAITERS)
        .map(|number| {
            let lock = other.get_lock(format!("{number}:{}", "x".repeat(LENGTH)));
            lock.acquire_with(&leased(3 * LONG)).unwrap().unwrap()
        })
        .collect();
    let busy = other.get_lock("busy").acquire_with(&leased(3 * LONG)).unwrap().unwrap();
    let awaited = other.get_lock("awaited").acquire_with(&leased(3 * LONG)).unwrap().unwrap();
    let first = call(turn(client.get_lock("awaited")));
    world.await_subscription("awaited");
    world.proxy.stop_reading(Which::Subscribers);
    let waiters: Vec<_> = held.iter().map(|guard| call(turn(client.get_lock(guard.name())))).collect();
    // The channels' names, 7 MB in all, exceed all buffers, so the client cannot send all its SUBSCRIBEs.
    let is_theirs = |command: &Command| command.args.iter().any(|arg| arg.len() >= LENGTH);
    let mut cycles = 0;
    while cycles < 20 || world.proxy.count(is_theirs) < WAITERS {
        cycles += 1;
        let begun = now();
        let guard = client.get_lock("free").acquire().unwrap();
        guard.unlock().unwrap();
        within(begun, AT_ONCE, "a free lock");
        assert!(!in_time(AT_ONCE, "the try on a busy lock", || client
            .get_lock("busy")
            .try_lock_for(ms(1))
            .unwrap()));
        assert!(cycles < 10_000, "the waiters do not ask");
    }
    world.proxy.resume();
    drop((held, awaited));
    let resumed = now();
    for waiter in waiters.into_iter().chain([first]) {
        waiter.returns_within(resumed, 2 * LONG, "taking over");
    }
    busy.unlock().unwrap();
});

/// The number of attempts in vain for each grant, while each client acquires the only permit `each` times.
fn attempts_in_vain(world: &World, clients: &[LockClient], each: usize) -> f64 {
    let first = world.direct();
    first.get_semaphore("crowd").try_set_permits(1).unwrap();
    let before = world.scripts_run();
    let waiters: Vec<_> = clients
        .iter()
        .map(|client| {
            let semaphore = client.get_semaphore("crowd");
            call(move || (0..each).try_for_each(|_| semaphore.acquire(1)?.unlock()))
        })
        .collect();
    for waiter in waiters {
        waiter.outcome_within(10 * LONG).0.unwrap();
    }
    // A grant needs two scripts: the attempt that acquires, and the release. All other scripts are in vain.
    let in_vain = (world.scripts_run() - before) as f64 / (clients.len() * each) as f64 - 2.0;
    assert_eq!(first.get_semaphore("crowd").available_permits().unwrap(), 1);
    assert!(first.get_semaphore("crowd").delete().unwrap());
    in_vain
}

scenario!(forty_clients_waiting_for_permits_send_few_failing_requests, |world| {
    const CLIENTS: usize = 40;
    // The long time-out prevents repeated requests on a busy machine.
    let patient = || world.builder_to(&world.server.url()).lease(KEPT).command_timeout(LONG).build().unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(|_| patient()).collect();
    let in_vain = attempts_in_vain(world, &clients, 60);
    println!("MEASURED {in_vain:.1} attempts in vain for each permit");
    // Each acquire needs one attempt in vain, which joins the queue. If each release woke all clients, there
    // would be about 39 for each permit.
    assert!(in_vain < 4.0, "{in_vain} failed attempts for each permit, of {CLIENTS} waiters");
});
