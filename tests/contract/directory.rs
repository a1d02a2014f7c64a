//! The directory of clients: holders and waiters by host, process and thread, and lists of locks and clients.

use leasehold::{Inspection, Result};

use super::harness::{Need, Store};
use crate::support::prelude::*;

fn quick(store: &Store, label: &str) -> LockClient {
    store.client_with(|options| options.lease(Duration::from_secs(3)).label(label))
}

fn shown(client: &LockClient, name: &str, is_it: impl Fn(&Inspection) -> bool) -> Inspection {
    let mut seen = client.inspect(name).unwrap();
    let found = eventually(LONG, || {
        seen = client.inspect(name).unwrap();
        is_it(&seen)
    });
    assert!(found, "{seen}\n{seen:?}");
    seen
}

fn named<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn_scoped(scope, work).unwrap().join().unwrap()
    })
}

contract!(the_directory_shows_where_and_how_long_locks_are_held, needs(Directory), |store| {
    let (client, other) = (quick(store, "nightly\u{1b}[31m"), store.client());
    for kind in &store.kinds {
        let name = fresh(kind.label);
        named("holding thread", || {
            let held = (kind.make)(&client, &name).acquire().unwrap();
            let seen = shown(&other, &name, |seen| {
                seen.holders.first().is_some_and(|one| one.held_for.is_some())
                    && seen.holders[0]
                        .location
                        .as_ref()
                        .is_some_and(|place| !place.thread.is_empty() && !place.program.is_empty())
            });
            let place = seen.holders[0].location.as_ref().unwrap();
            assert_eq!((place.pid, &*place.thread), (std::process::id(), "holding thread"), "{}", kind.label);
            assert!(!place.host.is_empty(), "{place:?}");
            assert!(place.program.contains("contract"), "{place:?}");
            assert_eq!(
                place.label.as_deref(),
                Some("nightly[31m"),
                "the control characters were not removed"
            );
            assert!(seen.holders[0].held_for.unwrap() < LONG, "{seen}");
            assert!(!seen.holders[0].by_this_client);
            held.unlock().unwrap();
        });
    }
});

contract!(a_waiter_is_shown_with_its_process_and_thread, needs(Directory), |store| {
    let (holding, waiting, other) = (store.client(), quick(store, "waiting"), store.client());
    // A waiter for a spin lock joins no wait queue, so an inspection does not show it.
    for kind in store.kinds.iter().filter(|kind| kind.label != "spin_lock") {
        let name = fresh(kind.label);
        let held = Holding::take(&(kind.make)(&holding, &name));
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("waiting thread".to_owned());
            let waiter = thread
                .spawn_scoped(scope, || (kind.make)(&waiting, &name).acquire().unwrap().unlock().unwrap())
                .unwrap();
            let seen = shown(&other, &name, |seen| {
                seen.waiters
                    .first()
                    .and_then(|one| one.location.as_ref())
                    .is_some_and(|place| !place.thread.is_empty() && place.label.is_some())
                    && seen.waiters[0].waiting_for.is_some()
            });
            let waiter_seen = &seen.waiters[0];
            let place = waiter_seen.location.as_ref().unwrap();
            assert_eq!((place.pid, &*place.thread), (std::process::id(), "waiting thread"), "{}", kind.label);
            assert_eq!(place.label.as_deref(), Some("waiting"));
            assert!(waiter_seen.owner.starts_with(&waiting.id().to_string()) && !waiter_seen.by_this_client);
            held.release();
            waiter.join().unwrap();
        });
    }
});

contract!(waiters_for_permits_and_read_locks_are_shown, needs(Directory), |store| {
    let (holding, waiting, other) = (store.client(), quick(store, "waiting"), store.client());
    let seen_to_wait = |name: &str, thread: &str| {
        let threads = |seen: &Inspection| {
            let places = seen.waiters.iter().filter_map(|one| one.location.as_ref());
            places.map(|place| (place.pid, place.thread.clone())).collect::<Vec<_>>()
        };
        let seen = shown(&other, name, |seen| threads(seen) == [(std::process::id(), thread.to_owned())]);
        assert_eq!((seen.waiting, seen.waiters[0].by_this_client), (1, false), "{seen}");
    };
    if !store.lacks.contains(&Need::Counting) {
        let name = fresh("permits");
        let (one, another) = (holding.get_semaphore(&name), waiting.get_semaphore(&name));
        one.try_set_permits(1).unwrap();
        let permit = one.acquire(1).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| named("permit thread", || drop(another.acquire(1).unwrap())));
            seen_to_wait(&name, "permit thread");
            drop(permit);
            waiter.join().unwrap();
        });
    }
    if !store.lacks.contains(&Need::ReadWrite) {
        let name = fresh("halves");
        let writing = Holding::take(holding.get_read_write_lock(&name).write());
        std::thread::scope(|scope| {
            let read = || waiting.get_read_write_lock(&name).read().acquire().unwrap().unlock().unwrap();
            let waiter = scope.spawn(move || named("reading thread", read));
            seen_to_wait(&name, "reading thread");
            writing.release();
            waiter.join().unwrap();
        });
    }
});

contract!(clients_are_listed_with_what_they_hold_and_wait_for, needs(Directory), |store| {
    let (holding, waiting, other) = (quick(store, "holding"), quick(store, "waiting"), store.client());
    let name = fresh("listed");
    let guard = holding.get_lock(&name).acquire_owned().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.get_lock(&name).acquire().unwrap().unlock().unwrap());
        let uses = |id| {
            let clients: Vec<_> = other.clients().collect::<Result<_>>().unwrap();
            let client = clients.into_iter().find(|client| client.id == id)?;
            assert_eq!((client.pid, client.by_this_client), (std::process::id(), false));
            assert!(client.written_ago < LONG && client.age >= client.written_ago);
            assert!(!client.version.is_empty());
            let one = client.uses.into_iter().find(|one| one.name == name)?;
            assert!(one.lasted < LONG);
            Some((client.label, one.is_waiting))
        };
        assert!(eventually(LONG, || {
            let of = |label: &str, waits: bool| Some((Some(label.to_owned()), waits));
            uses(holding.id()) == of("holding", false) && uses(waiting.id()) == of("waiting", true)
        }));
        guard.unlock().unwrap();
        waiter.join().unwrap();
    });
});

contract!(a_client_with_directory_off_publishes_nothing_about_itself, needs(Directory), |store| {
    let off = store.client_with(|options| options.lease(Duration::from_secs(9)).directory(false));
    let (on, other) = (quick(store, "on"), store.client());
    let (silent, telling) = (fresh("silent"), fresh("telling"));
    let guard = off.get_lock(&silent).acquire().unwrap();
    let second = on.get_lock(&telling).acquire().unwrap();
    let program = |seen: &Inspection| seen.holders[0].location.as_ref().map(|place| place.program.clone());
    shown(&other, &telling, |seen| program(seen).is_some_and(|program| !program.is_empty()));
    // A client writes its directory entry when it renews, so after this renewal `off` would have one.
    crate::support::await_renewal(|| guard.remaining());
    let seen = other.inspect(&silent).unwrap();
    assert_eq!(program(&seen), store.rows_say_who.then(String::new), "{seen}");
    assert!(other.clients().all(|client| client.unwrap().id != off.id()));
    guard.unlock().unwrap();
    second.unlock().unwrap();
});

contract!(a_shut_down_client_is_no_longer_listed, needs(Directory), |store| {
    // The lease outlasts the test, so only the shutdown can remove the entry.
    let (client, other) = (store.client(), store.client());
    let is_listed = || other.clients().any(|client_seen| client_seen.unwrap().id == client.id());
    let guard = client.get_lock(fresh("short")).acquire_owned().unwrap();
    assert!(eventually(LONG, is_listed));
    guard.unlock().unwrap();
    client.shutdown().unwrap();
    assert!(!is_listed());
    fails(client.clients().next().unwrap(), ErrorKind::ShutDown);
    fails(client.list("*").next().unwrap(), ErrorKind::ShutDown);
});

contract!(held_locks_are_listed_by_pattern, needs(Directory), |store| {
    let (client, other, series) = (store.client(), store.client(), fresh("series"));
    let mut held = Vec::new();
    for kind in &store.kinds {
        let name = format!("{series}:{}", kind.label);
        held.push((kind.label, name.clone(), Holding::take(&(kind.make)(&client, &name))));
    }
    let listed = |pattern: &str| {
        let mut locks = other.list(pattern);
        let mut names: Vec<String> = locks.by_ref().map(|lock| lock.unwrap().name).collect();
        assert!(locks.cost().requests > 0 && locks.cost().keys >= u64::try_from(names.len()).unwrap());
        assert!(locks.next().is_none());
        names.sort_unstable();
        names.dedup();
        names
    };
    let mut names: Vec<String> = held.iter().map(|(_, name, _)| name.clone()).collect();
    names.sort_unstable();
    assert_eq!(listed(&format!("{series}:*")), names);
    assert_eq!(listed(&format!("{series}:lo[a-d]k")), [format!("{series}:lock")]);
    assert_eq!(listed(&format!("{series}:loc")), [""; 0]);
    for lock in other.list(format!("{series}:*")) {
        let lock = lock.unwrap();
        let (label, name, holding) = held.iter().find(|(_, name, _)| *name == lock.name).unwrap();
        let seen = other.inspect(name).unwrap();
        assert_eq!((&lock.kind, lock.holders.len()), (&seen.kind, 1), "{label}");
        assert_eq!(lock.holders[0].owner, holding.owner().to_string(), "{label}");
        assert!(lock.remaining.is_some_and(|left| !left.is_zero()), "{label}");
    }
    for (_, _, holding) in held {
        holding.release();
    }
    assert_eq!(listed(&format!("{series}:*")), [""; 0]);
});

contract!(lists_omit_the_key_prefix_and_take_its_characters_literally, needs(Directory), |store| {
    let series = fresh("prefix");
    let (one, other) = (format!("{series}[a]:"), format!("{series}a:"));
    let with_prefix = |prefix: &str| store.client_with(|options| options.key_prefix(prefix));
    let clients = [&one, &other].map(|prefix| with_prefix(prefix));
    let guards = [("x", &clients[0]), ("y", &clients[1])]
        .map(|(name, client)| client.get_lock(name).acquire().unwrap());
    let listed = |client: &LockClient| {
        let names = client.list("*").map(|lock| lock.unwrap().name);
        names.collect::<Vec<String>>()
    };
    assert_eq!(clients.each_ref().map(listed), [["x"], ["y"]]);
    guards.into_iter().for_each(|guard| guard.unlock().unwrap());
});
