//! Multi-locks: the number of their requests, and what they leave when the server does not answer.

use super::world::{ENTRIES, L, T, World, about, releases};
use crate::support::prelude::*;
use crate::support::proxy::{Do, Then, Which};

/// A lease so long that within a test it does not expire, and its renewal is not due.
const LEASE: Duration = Duration::from_secs(20);

fn client(world: &World) -> LockClient {
    world.builder().lease(LEASE).command_timeout(ms(2_000)).build().unwrap()
}

fn requests(world: &World) -> usize {
    world.proxy.count(|command| !command.contains(ENTRIES))
}

scenario!(a_multi_lock_takes_one_request_to_acquire_or_release, |world| {
    let client = client(world);
    let locks: [RedisLock; 4] = [
        client.get_lock("a"),
        client.get_fenced_lock("b").into(),
        client.get_lock("c"),
        client.get_fenced_lock("d").into(),
    ];
    let multi = client.get_multi_lock(locks);
    multi.acquire().unwrap().unlock().unwrap(); // opens the connection
    for _ in 0..3 {
        let before = requests(world);
        let guard = multi.acquire().unwrap();
        assert_eq!(requests(world), before + 1);
        for name in ["a", "b", "c", "d"] {
            assert_eq!(world.fields(name).len(), 1, "{name}");
            assert!(world.ttl(name) > 15_000);
        }
        guard.unlock().unwrap();
        assert_eq!(requests(world), before + 2);
        assert!(world.lock_keys().is_empty());
    }
    let other = world.direct();
    let held = other.get_lock("d").acquire().unwrap();
    let before = requests(world);
    assert!(!multi.try_lock().unwrap());
    assert_eq!(requests(world), before + 1);
    assert_eq!(world.lock_keys(), ["d"]);
    held.unlock().unwrap();
    let held = client.get_lock("a").acquire_owned().unwrap();
    let before = requests(world);
    assert!(!multi.try_lock().unwrap());
    assert_eq!(requests(world), before);
    held.unlock().unwrap();
});

scenario!(a_multi_lock_of_several_kinds_or_clients_acquires_in_parallel, |world| {
    let one = client(world);
    let (first, second) = (client(world), client(world));
    let kinds: [RedisLock; 4] = [
        one.get_lock("mutex"),
        one.get_fair_lock("fair"),
        one.get_read_write_lock("read").read().clone(),
        one.get_read_write_lock("write").write_fenced().into(),
    ];
    let delay = ms(150);
    for multi in [
        one.get_multi_lock(kinds),
        one.get_multi_lock([first.get_lock("a"), second.get_lock("b"), one.get_lock("c")]),
    ] {
        let count = multi.names().count();
        for _ in 0..2 {
            multi.acquire().unwrap().unlock().unwrap(); // opens the connection and loads the scripts
        }
        world.proxy.delay_requests(delay);
        let before = requests(world);
        let begun = now();
        let guard = multi.acquire().unwrap();
        let had = begun.elapsed();
        assert_eq!(requests(world), before + count);
        guard.unlock().unwrap();
        let all = own_time_since(begun);
        assert_eq!(requests(world), before + 2 * count);
        world.proxy.delay_requests(Duration::ZERO);
        assert!(had >= delay, "{had:?}");
        // In sequence, the acquires and the releases would take `2 * count` delays.
        assert!(all < delay * u32::try_from(2 * count - 1).unwrap(), "{had:?}, {all:?}");
    }
});

scenario!(an_unanswered_multi_lock_grant_leaves_no_lock_held, |world| {
    let client = world.client();
    let multi = client.get_multi_lock([client.get_lock("lost-a"), client.get_fenced_lock("lost-b").into()]);
    for then in [Then::Close, Then::Silent] {
        let fault = world.proxy.next(about("lost-a"), Do::SwallowReply(then));
        let error = multi.try_lock().unwrap_err();
        assert!(error.outcome_unknown(), "{error}");
        assert_eq!(fault.hits(), 1);
        world.all_are_given_back(L);
        let fault = world.proxy.next(about("lost-a"), Do::SwallowReply(then));
        let guard = multi.acquire_with(&leased(LEASE)).unwrap().unwrap();
        assert_eq!(fault.hits(), 1);
        for name in ["lost-a", "lost-b"] {
            assert!(eventually(LONG, || world.fields(name).into_values().eq(["1".to_owned()])), "{name}");
        }
        guard.check().unwrap();
        guard.unlock().unwrap();
        world.all_are_given_back(L);
    }
});

scenario!(an_unanswered_multi_lock_release_is_repeated, |world| {
    let client = world.client();
    let multi = client.get_multi_lock([
        client.get_lock("gone-a"),
        client.get_lock("gone-b"),
        client.get_lock("gone-c"),
    ]);
    for how in [Do::SwallowReply(Then::Close), Do::DropRequest(Then::Close), Do::SwallowReply(Then::Silent)] {
        multi.lock_with_lease(LEASE).unwrap();
        let fault = world.proxy.next(releases("gone-b"), how.clone());
        multi.unlock().unwrap_or_else(|error| panic!("{how:?}: {error}"));
        assert_eq!(fault.hits(), 1, "{how:?}");
        assert!(world.lock_keys().is_empty(), "{how:?}");
    }
});

scenario!(a_multi_lock_with_another_programs_key_acquires_nothing, |world| {
    let client = client(world);
    let multi =
        client.get_multi_lock([client.get_lock("k-1"), client.get_lock("k-2"), client.get_lock("k-3")]);
    world.does(&["SET", "k-2", "something"]);
    for error in
        [multi.try_lock().unwrap_err(), multi.lock().unwrap_err(), multi.try_lock_for(ms(100)).unwrap_err()]
    {
        assert_eq!((error.kind(), error.lock_name()), (ErrorKind::WrongType, Some("k-2")), "{error}");
        assert!(eventually(LONG, || world.lock_keys() == ["k-2"]), "{:?}", world.lock_keys());
    }
    world.does(&["DEL", "k-2"]);
    multi.acquire().unwrap().unlock().unwrap();
});

scenario!(a_multi_lock_lease_does_not_expire_counters_or_queues, |world| {
    let client = client(world);
    let fenced = client.get_fenced_lock("f");
    let locks = || [RedisLock::from(&fenced), client.get_fair_lock("q"), client.get_lock("m")];
    let multi = client.get_multi_lock(locks());
    for contended in [false, true] {
        // After a wait for `q`, the last in key order, another script sets the leases: `contended` tests it.
        let other = world.direct();
        let holding = contended.then(|| other.get_fair_lock("q").acquire_owned().unwrap());
        let taking = call_on(multi.clone(), move |multi| {
            multi.try_acquire_owned_for(LONG).map(|group| group.unwrap())
        });
        if let Some(holding) = holding {
            assert!(eventually(LONG, || world.run::<i64>(&["LLEN", "redisson_lock_queue:{q}"]) == 1));
            holding.unlock().unwrap();
        }
        taking.returns_within(now(), LONG, "taking the group").unwrap().unlock().unwrap();
        let leased = multi.acquire_with(&leased(ms(2_500)).wait(LONG)).unwrap().unwrap();
        let fence = leased.fencing_token().unwrap();
        assert_eq!(world.ttl("redisson_lock_token:{f}"), -1);
        let other = world.direct();
        let waiting = call(move || other.get_fair_lock("q").try_acquire_owned_for(LONG));
        let queue = ["redisson_lock_queue:{q}", "redisson_lock_timeout:{q}"];
        assert!(eventually(LONG, || queue.iter().all(|key| world.run::<i64>(&["EXISTS", key]) == 1)));
        let got = waiting.returns_within(now(), LONG, "the fair lock after the lease").unwrap();
        got.unwrap().unlock().unwrap();
        assert!(leased.check().is_err());
        drop(leased);
        assert_eq!(world.ttl("redisson_lock_token:{f}"), -1, "the counter has no end");
        assert!(fenced.acquire().unwrap().fencing_token() > Some(fence));
    }
});

scenario!(a_multi_lock_try_times_out_on_a_silent_server, |world| {
    let client = world.client();
    let multi = client.get_multi_lock([
        client.get_lock("slow-a"),
        client.get_lock("slow-b"),
        client.get_fair_lock("slow-c"),
    ]);
    multi.acquire().unwrap().unlock().unwrap();
    world.proxy.delay_replies(LONG);
    assert!(in_time(ms(300) + 2 * T, "the group", || multi.try_lock_for(ms(300)).is_err()));
    world.proxy.delay_replies(Duration::ZERO);
    world.proxy.kill(Which::All, Then::Close);
    world.all_are_given_back(LONG);
    multi.acquire().unwrap().unlock().unwrap();
});

scenario!(a_multi_lock_releases_other_locks_despite_an_overwritten_key, |world| {
    let client = client(world);
    for broken in ["a", "b", "c"] {
        let multi = client.get_multi_lock(["a", "b", "c"].map(|name| client.get_lock(name)));
        let guard = multi.acquire().unwrap();
        let () = world.run(&["SET", broken, "something else", "PX", "60000"]);
        let error = guard.unlock().unwrap_err();
        assert_eq!(error.lock_name(), Some(broken), "{error}");
        assert_eq!(world.lock_keys(), [broken]);
        let () = world.run(&["DEL", broken]);
    }
});
