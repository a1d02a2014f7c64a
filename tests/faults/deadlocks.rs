//! The cost of deadlock searches, and searches without permissions or after a holder's death.

use std::sync::Barrier;

use leasehold::{Backoff, Event, Observer};

use super::world::{ENTRIES, World};
use crate::support::observer::observe;
use crate::support::prelude::*;
use crate::support::proxy::{Command, Do};

/// Whether a deadlock search asks by this command who holds a lock. Only the search's script has one key and
/// one argument, where the argument is an owner with the number 0.
fn asks_about_lock(command: &Command) -> bool {
    command.verb() == "EVALSHA" && command.args.len() == 5 && command.contains(":0")
}

fn reads_entry(command: &Command) -> bool {
    command.contains(ENTRIES) && !matches!(&*command.verb(), "SET" | "DEL")
}

fn reads(world: &World) -> usize {
    world.proxy.count(|command| asks_about_lock(command) || reads_entry(command))
}

fn entry(world: &World, client: &LockClient) -> String {
    let entry: Option<String> = world.run(&["GET", &format!("{ENTRIES}{}", client.id())]);
    entry.unwrap_or_default()
}

fn client(world: &World) -> LockClient {
    world.builder().lease(Duration::from_secs(30)).command_timeout(Duration::from_secs(3)).build().unwrap()
}

scenario!(only_waiting_threads_with_holds_cause_deadlock_searches, |world| {
    let (client, other) = (client(world), world.direct());
    let busy = other.get_lock("busy").acquire_owned().unwrap();
    // These calls load the script that reads directory entries, so that its loading is not counted below.
    assert!(eventually(LONG, || other.inspect("busy").unwrap().holders[0].location.is_some()));
    drop(client.inspect("busy").unwrap());
    let idle = reads(world);
    assert!(client.get_lock("busy").try_acquire_for(ms(2_500)).unwrap().is_none());
    assert_eq!(reads(world), idle);
    let own = client.get_lock("own").acquire().unwrap();
    let begun = now();
    assert!(client.get_lock("busy").try_acquire_for(ms(700)).unwrap().is_none());
    assert!(begun.elapsed() > ms(1_000) || reads(world) == idle);
    assert!(!entry(world, &client).contains("\nwait="), "{}", entry(world, &client));
    let before = reads(world);
    let interrupt = Interrupt::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let told = || entry(world, &client).contains("\nwait=");
            assert!(eventually(LONG, told), "{}", entry(world, &client));
            assert!(eventually(LONG, || reads(world) > before + 1));
            interrupt.interrupt();
        });
        let ended = client.get_lock("busy").lock_interruptibly(&interrupt);
        assert!(ended.unwrap_err().is_interrupted());
        assert!(eventually(LONG, || !entry(world, &client).contains("\nwait=")));
    });
    assert!(
        reads(world) - before <= 4,
        "more than two searches, each of one lock and one client: {}",
        reads(world) - before
    );
    own.unlock().unwrap();
    busy.unlock().unwrap();
    client.shutdown().unwrap();
    other.shutdown().unwrap();
});

scenario!(an_interrupted_wait_does_not_await_the_directory_update, |world| {
    let builder = world.builder().lease(Duration::from_secs(30)).command_timeout(2 * LONG);
    let (client, other) = (builder.build().unwrap(), world.direct());
    let busy = other.get_lock("busy").acquire_owned().unwrap();
    let interrupt = Interrupt::new();
    let waiter = {
        let (client, interrupt) = (client.clone(), interrupt.clone());
        call(move || {
            let _own = client.get_lock("own").acquire().unwrap();
            client.get_lock("busy").lock_interruptibly(&interrupt).unwrap_err()
        })
    };
    assert!(eventually(LONG, || entry(world, &client).contains("\nwait=")));
    let writes = |command: &Command| command.verb() == "SET" && command.contains(ENTRIES);
    let held = world.proxy.each(writes, Do::HoldRequest);
    interrupt.interrupt();
    assert!(waiter.join().is_interrupted());
    held.wait_for(1, LONG);
    assert!(entry(world, &client).contains("\nwait="), "the entry is not written yet");
    held.release();
    assert!(eventually(LONG, || !entry(world, &client).contains("\nwait=")));
    busy.unlock().unwrap();
    client.shutdown().unwrap();
});

scenario!(a_deadlock_search_stops_after_64_clients_and_warns, |world| {
    const LONG_CHAIN: usize = 70;
    let others: Vec<LockClient> = (1..LONG_CHAIN)
        .map(|_| {
            let builder = LockClient::builder().url(world.server.url()).pool_size(2);
            builder.detect_deadlocks_after(ms(100)).build().unwrap()
        })
        .collect();
    let interrupt = Interrupt::new();
    let (meet, name) = (Arc::new(Barrier::new(LONG_CHAIN)), |at: usize| format!("chain:{at}"));
    let waiting: Vec<_> = others
        .iter()
        .enumerate()
        .map(|(at, client)| {
            let (client, meet, interrupt) = (client.clone(), Arc::clone(&meet), interrupt.clone());
            let (own, next) = (name(at + 1), name(at + 2));
            call(move || {
                let _own = client.get_lock(&own).acquire().unwrap();
                meet.wait();
                assert!(
                    at + 2 == LONG_CHAIN || client.get_lock(&next).lock_interruptibly(&interrupt).is_err()
                );
                while !interrupt.is_interrupted() {
                    std::thread::park_timeout(ms(20));
                }
            })
        })
        .collect();
    meet.wait();
    // The client below holds the chain's first lock. It begins to wait only when the other clients' waits are
    // in the directory, so its search meets more than 64 clients.
    let published = || {
        let keys: Vec<String> = world.run(&["KEYS", &format!("{ENTRIES}*-*")]);
        let entries: Vec<String> =
            keys.iter().map(|key| world.run::<Option<String>>(&["GET", key]).unwrap_or_default()).collect();
        entries.iter().filter(|entry| entry.contains("\nwait=")).count() == LONG_CHAIN - 2
    };
    assert!(eventually(LONG, published));
    let (observer, warned) = observe(|event| match event {
        Event::Warning { text, .. } => Some((*text).to_owned()),
        _ => None,
    });
    let builder = world.builder().lease(Duration::from_secs(30)).command_timeout(Duration::from_secs(3));
    let client = builder.observer(observer).build().unwrap();
    let (before, begun) = (reads(world), now());
    let (own, next, ends) = (client.get_lock(name(0)), client.get_lock(name(1)), interrupt.clone());
    let waiter = call(move || {
        let _own = own.acquire().unwrap();
        next.lock_interruptibly(&ends).is_err()
    });
    // The first search begins after a second, lasts over two, and warns at its end. A search reads at most
    // 64 locks and 64 entries. On a busy machine further searches may begin before `count` is read.
    let text = warned.recv_timeout(LONG).unwrap();
    let count = reads(world) - before;
    let searches = begun.elapsed().saturating_sub(ms(1_000)).as_millis().div_ceil(2_000).max(1);
    assert!(
        (100..=128 * searches).contains(&(count as u128)),
        "{count} reads by at most {searches} searches"
    );
    assert!(text.contains("more than 64 clients"), "{text}");
    interrupt.interrupt();
    assert!(waiter.join());
    waiting.into_iter().for_each(|waiting| waiting.join());
});

scenario!(searches_of_one_client_send_under_fifty_requests_per_second, |world| {
    const THREADS: usize = 1_000;
    let (client, other) = (client(world), LockClient::connect(world.server.url()).unwrap());
    let held: Vec<_> =
        (0..THREADS).map(|at| other.get_lock(format!("busy:{at}")).acquire_owned().unwrap()).collect();
    let (interrupt, holding) = (Interrupt::new(), Arc::new(AtomicUsize::new(0)));
    let wait = |at: usize| {
        let (client, interrupt, holding) = (client.clone(), interrupt.clone(), Arc::clone(&holding));
        start(move || {
            let _own = client.get_lock(format!("own:{at}")).acquire().unwrap();
            holding.fetch_add(1, Ordering::SeqCst);
            let busy = client.lock_builder(format!("busy:{at}")).spin(Backoff::constant(LONG)).build();
            assert!(busy.lock_interruptibly(&interrupt).is_err());
        })
    };
    let mut waiting = Vec::new();
    while waiting.len() < THREADS {
        // The waits start in groups, because all at once would overload the server and the proxy.
        waiting.extend((waiting.len()..waiting.len() + 25).map(wait));
        assert!(eventually(LONG, || holding.load(Ordering::SeqCst) == waiting.len()));
    }
    assert!(eventually(LONG, || reads(world) > 0));
    let own = |command: &Command| {
        asks_about_lock(command)
            || reads_entry(command)
            || command.verb() == "SET" && command.contains(ENTRIES)
    };
    let (begun, before) = (now(), world.proxy.count(own));
    let_pass(Duration::from_secs(4), "searches are spread over the seconds");
    let (count, took) = (world.proxy.count(own) - before, begun.elapsed().as_secs_f64());
    assert!(count as f64 <= 50.0 * took, "{count} requests in {took} s");
    assert!(count as f64 >= 10.0 * took, "{count} requests in {took} s: too few");
    interrupt.interrupt();
    waiting.into_iter().for_each(|waiting| waiting.join().unwrap());
    drop(held);
});

#[test]
fn a_deadlock_of_forty_clients_is_broken() {
    const CLIENTS: usize = 40;
    let Some(server) = RedisServer::start_default() else { return };
    let gate = Arc::new(Barrier::new(CLIENTS));
    let waiting: Vec<_> = (0..CLIENTS)
        .map(|at| {
            let builder = LockClient::builder().url(server.url()).pool_size(2).break_deadlocks(true);
            let (client, gate) = (builder.build().unwrap(), Arc::clone(&gate));
            call(move || {
                let _own = client.get_lock(format!("ring:{at}")).acquire().unwrap();
                gate.wait();
                client.get_lock(format!("ring:{}", (at + 1) % CLIENTS)).acquire().map(drop)
            })
        })
        .collect();
    let ended: Vec<_> = waiting.into_iter().map(|waiting| waiting.join()).collect();
    let broken: Vec<_> = ended.iter().filter_map(|ended| ended.as_ref().err()).collect();
    assert!(matches!(broken[..], [error] if error.kind() == ErrorKind::Deadlock), "{broken:?}");
}

fn reports() -> (impl Observer, Receiver<&'static str>) {
    observe(|event| match event {
        Event::Deadlock { .. } => Some("deadlock"),
        Event::DeadlockOver { .. } => Some("over"),
        Event::Warning { text, .. } => {
            text.contains("deadlocks with other processes cannot be seen").then_some("blind")
        }
        _ => None,
    })
}

test_on!(
    a_deadlock_search_that_cannot_see_other_clients_warns_once,
    RedisServer::start_default(),
    |server| {
        let rules = "on >secret ~* resetkeys ~app:* ~leasehold_lock_*:{app:* ~redisson_lock_*:{app:* ~{app:* &* +@all";
        let words = [&["ACL", "SETUSER", "narrow"][..], &rules.split(' ').collect::<Vec<_>>()].concat();
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut server.admin()).unwrap();
        let other = LockClient::connect(server.url()).unwrap();
        let busy = other.get_lock("app:busy").acquire_owned().unwrap();
        for (url, directory) in [(server.url(), false), (server.url_as("narrow", "secret"), true)] {
            let (observer, told) = reports();
            let builder = LockClient::builder().url(&url).directory(directory).observer(observer);
            let client = builder.detect_deadlocks_after(ms(50)).build().unwrap();
            let _own = client.get_lock("app:own").acquire().unwrap();
            let waits = || assert!(client.get_lock("app:busy").try_acquire_for(ms(2_300)).unwrap().is_none());
            waits();
            assert_eq!(told.recv_timeout(LONG), Ok("blind"));
            waits();
            assert!(told.is_empty(), "{:?}", told.try_iter().collect::<Vec<_>>());
        }
        busy.unlock().unwrap();
    }
);

/// The client `dies` is stopped, as if its process were dead, so only the end of its lease ends the deadlock.
#[test]
fn a_deadlock_with_a_dead_holder_ends_with_its_lease() {
    let store = MemoryStore::new();
    let builder = |lease| LockClient::builder().lease(lease).detect_deadlocks_after(ms(50));
    let (observer, told) = reports();
    let survivor = builder(Duration::from_secs(30)).observer(observer).build_in_memory(&store).unwrap();
    let dies = builder(ms(4_000)).build_in_memory(&store).unwrap();
    let own = survivor.get_lock("survivor's").acquire().unwrap();
    let interrupt = Interrupt::new();
    let dead = {
        let (dies, interrupt) = (dies.clone(), interrupt.clone());
        call(move || {
            let _own = dies.get_lock("dead's").acquire().unwrap();
            assert!(dies.get_lock("survivor's").lock_interruptibly(&interrupt).is_err());
        })
    };
    // A search finds `dead`'s wait only if the directory entry of `dies` has a `WaitRecord`. A client adds
    // this record by its own first search, so its first entry may lack it.
    let says = || survivor.clients().flatten().any(|client| format!("{client:?}").contains("WaitRecord"));
    assert!(eventually(LONG, says));
    let stopped = store.pause_client(&dies).unwrap();
    survivor.get_lock("dead's").acquire().unwrap().unlock().unwrap();
    assert_eq!(told.recv_timeout(LONG), Ok("deadlock"));
    assert_eq!(told.recv_timeout(LONG), Ok("over"));
    drop(stopped);
    interrupt.interrupt();
    dead.join();
    own.unlock().unwrap();
}
