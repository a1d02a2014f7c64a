//! Networks that swallow, delay or garble requests and replies.

use super::world::{KEPT, L, PATIENCE, R, T, about, await_renewal, releases};
use crate::support::epilogue::assert_every_hash_has_a_ttl;
use crate::support::history::History;
use crate::support::observer::Event;
use crate::support::prelude::*;
use crate::support::proxy::{Direction, Do, Which};

scenario!(every_call_ends_in_time_on_a_silent_network, |world| {
    let (client, seen) = world.watched();
    let other = world.direct();
    let kept = client.get_lock("kept").acquire().unwrap();
    let given_back = client.get_lock("given-back").acquire().unwrap();
    let dropped = client.get_lock("dropped").acquire().unwrap();
    let (tell, told) = bounded(1);
    kept.on_lost(move |_loss| tell.send(now()).unwrap());
    world.proxy.hold(Direction::ToServer, Which::All);
    world.proxy.hold(Direction::ToClient, Which::All);
    let cut = now();
    let on = |name: &'static str| client.get_lock(name);
    let calls = [
        (T, "try_lock", call_on(on("a"), move |lock| lock.try_lock().map(drop))),
        (ms(300) + T, "try_lock_for", call_on(on("b"), move |lock| lock.try_lock_for(ms(300)).map(drop))),
        (T + PATIENCE + T, "lock", call_on(on("c"), move |lock| lock.lock())),
        (T, "is_locked", call_on(on("kept"), move |lock| lock.is_locked().map(drop))),
        (T, "force_unlock", call_on(on("d"), move |lock| lock.force_unlock().map(drop))),
    ];
    in_time(T, "dropping a guard", || drop(dropped));
    let begun = now();
    // The unlock fails at the latest when the hold's window ends, since the hold is lost then.
    let error = given_back.unlock().unwrap_err();
    within(begun, L + T, "an unlock");
    assert!(crate::support::may_pass(&error) || error.is_lost(), "{error}");
    for (promised, what, call) in calls {
        let error = call.returns_within(cut, promised, what).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable), "{what}: {error}");
    }
    let lost = told.recv_timeout(L).unwrap().saturating_duration_since(cut);
    assert!(lost <= L + SLACK + stalled_since(cut), "the loss was reported after {lost:?}");
    assert!(kept.check().is_err());
    seen.wait_for("the loss", |event| matches!(event, Event::Lost(loss) if loss.name == "kept"));
    let theirs = other.get_lock("kept").acquire().unwrap();
    world.proxy.resume();
    throughout(2 * T, || {
        world.fields("kept") == [(theirs.owner().to_string(), "1".to_owned())].into()
            && kept.state() == HoldState::Lost
    });
    assert_every_hash_has_a_ttl(&world.server);
    theirs.check().unwrap();
    assert!(kept.unlock().unwrap_err().is_lost());
    theirs.unlock().unwrap();
    // A late grant to a caller that has given up ends with its lease at the latest.
    comes_within(now(), L, "the end of all", || world.lock_keys().is_empty());
    client.get_lock("a").lock().unwrap();
    world.assert_held_by("a", &client, 1);
    client.get_lock("a").unlock().unwrap();
});

scenario!(a_fair_wait_ends_in_time_on_a_silent_network, |world| {
    let (wait, timeout) = (ms(1_500), ms(1_500));
    let client = world.builder().command_timeout(timeout).connect_timeout(timeout).build().unwrap();
    let held = world.direct().get_fair_lock("queued").acquire_with(&leased(LONG)).unwrap().unwrap();
    let begun = now();
    let waiting = call_on(client.get_fair_lock("queued"), move |lock| lock.try_lock_for(wait));
    let is_queued = || world.run::<i64>(&["LLEN", "redisson_lock_queue:{queued}"]) == 1;
    assert!(eventually(LONG, is_queued), "the waiter is not in the queue");
    world.proxy.hold(Direction::ToServer, Which::All);
    fails(waiting.returns_within(begun, wait + timeout, "a timed wait"), ErrorKind::TimedOut);
    world.proxy.resume();
    comes_within(now(), L, "the end of its place", || !is_queued());
    held.unlock().unwrap();
});

scenario!(a_network_silence_shorter_than_the_lease_loses_no_hold, |world| {
    let (client, seen) = world.watched_keeping();
    let guard = client.get_lock("short-cut").acquire().unwrap();
    world.proxy.hold(Direction::ToServer, Which::All);
    world.proxy.hold(Direction::ToClient, Which::All);
    assert!(eventually(LONG, || matches!(guard.state(), HoldState::AtRisk { .. })));
    let HoldState::AtRisk { until } = guard.state() else { panic!("{:?}", guard.state()) };
    assert!(until > now() && until <= now() + KEPT);
    world.proxy.resume();
    assert!(eventually(LONG, || guard.state() == HoldState::Held), "{:?}", guard.state());
    await_renewal(&guard);
    guard.unlock().unwrap();
    assert_eq!(seen.losses(), 0);
});

scenario!(locks_on_a_slow_link_exclude_and_lose_no_hold, |world| {
    world.proxy.delay_requests(ms(60));
    world.proxy.delay_replies(ms(60));
    let clients = [world.client(), world.client()];
    let kept = clients[0].get_lock("kept").acquire().unwrap();
    let history = History::new();
    std::thread::scope(|scope| {
        for client in clients.iter().chain(&clients) {
            scope.spawn(|| {
                for _ in 0..3 {
                    let guard = client.get_lock("shared").acquire().unwrap();
                    let open = history.acquired(guard.owner(), None);
                    guard.check().unwrap();
                    history.released(open);
                    guard.unlock().unwrap();
                }
            });
        }
    });
    history.assert_good(12);
    throughout(L, || kept.check().is_ok());
    kept.unlock().unwrap();
});

scenario!(a_reply_arriving_bytewise_times_out_like_a_missing_one, |world| {
    let limit = 4 * T;
    let client = world.builder().command_timeout(limit).retry_timeout(LONG).build().unwrap();
    client.get_lock("drip").acquire().unwrap().unlock().unwrap();
    world.proxy.drip(Some((1, T)));
    let error = in_time(limit, "a try whose reply drips", || client.get_lock("drip").try_lock().unwrap_err());
    assert!(error.outcome_unknown() && error.kind() == ErrorKind::TimedOut, "{error}");
    world.proxy.drip(None);
    // The client dropped the connection: no later request reads the rest of the slow reply.
    for _ in 0..20 {
        client.get_lock("drip").lock().unwrap();
        assert_eq!(client.get_lock("drip").hold_count().unwrap(), 1);
        client.get_lock("drip").unlock().unwrap();
        assert_eq!(client.get_lock("drip").hold_count().unwrap(), 0);
    }
});

scenario!(garbage_replies_give_typed_errors_and_lose_no_hold, |world| {
    let garbage: [&[u8]; 8] = [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"*-7\r\n",
        b"*1\r\n$-2\r\n",
        b":1\r\n",
        b"+granted\r\n",
        b"*1\r\n$7\r\nunheard\r\n",
        b"\xff\xfe\xfd\xfc\r\n\r\n",
    ];
    let client = || world.builder().command_timeout(LONG).lease(KEPT).build().unwrap();
    for (number, bytes) in garbage.into_iter().enumerate() {
        let client = client();
        let (name, what) = (format!("garbled-{number}"), String::from_utf8_lossy(bytes));
        let lock = client.get_lock(&name);
        let fault = world.proxy.next(about(&name), Do::GarbleReply(bytes.to_vec()));
        let error = in_time(T, "a try that is answered by garbage", || lock.try_lock().unwrap_err());
        assert_eq!((fault.hits(), error.kind()), (1, ErrorKind::Protocol), "{what:?}: {error}");
        assert!(error.outcome_unknown(), "{what:?}: {error}");
        world.is_given_back(&name, L);
        lock.lock().unwrap();
        world.proxy.next(releases(&name), Do::GarbleReply(bytes.to_vec()));
        if let Err(error) = lock.unlock() {
            assert!(error.outcome_unknown() && error.kind() == ErrorKind::Protocol, "{what:?}: {error}");
        }
        world.is_given_back(&name, L);
    }
    let renewed: Vec<_> = (garbage.into_iter().enumerate())
        .map(|(number, bytes)| {
            let (client, name) = (client(), format!("garbled-{number}"));
            let guard = client.get_lock(&name).acquire().unwrap();
            let fault = world.proxy.next(about(&name), Do::GarbleReply(bytes.to_vec()));
            (client, guard, fault)
        })
        .collect();
    for (_, guard, fault) in &renewed {
        fault.wait_for(1, LONG);
        await_renewal(guard);
    }
    throughout(R, || renewed.iter().all(|(_, guard, _)| guard.check().is_ok()));
    renewed.into_iter().for_each(|(_, guard, _)| guard.unlock().unwrap());
});
