//! Requests whose connection ends or whose reply is lost, before, during or after they run on the server.
//! Most holds have an explicit lease, so that no renewal comes in between.

use super::world::{ENDS, KEPT, L, PATIENCE, R, T, about, no_releases, releases, ways};
use crate::support::prelude::*;
use crate::support::proxy::{Command, Direction, Do, Then, Which};

const LEASE: Duration = Duration::from_secs(10);

scenario!(callers_do_not_notice_dead_idle_connections, |world| {
    let client = world.client();
    let lock = client.get_lock("idle");
    for then in [Then::Close, Then::Reset] {
        lock.lock().unwrap();
        assert!(world.proxy.kill(Which::All, then) > 0);
        lock.unlock().unwrap();
        assert!(world.is_free("idle"));
        world.proxy.kill(Which::All, then);
        lock.lock().unwrap();
        world.assert_held_by("idle", &client, 1);
        lock.unlock().unwrap();
    }
});

scenario!(a_request_that_never_reached_the_server_is_repeated, |world| {
    let client = world.client();
    let lock = client.get_lock("dropped");
    for then in ENDS {
        let fault = world.proxy.next(about("dropped"), Do::DropRequest(then));
        lock.lock_with_lease(LEASE).unwrap();
        assert_eq!(fault.hits(), 1, "{then:?}");
        world.assert_held_by("dropped", &client, 1);
        let fault = world.proxy.next(releases("dropped"), Do::DropRequest(then));
        lock.unlock().unwrap();
        assert_eq!(fault.hits(), 1, "{then:?}");
        assert!(world.is_free("dropped"), "{then:?}");
    }
});

scenario!(a_try_is_sent_once_even_if_its_connection_breaks, |world| {
    let client = world.client();
    for (number, how) in ways().into_iter().enumerate() {
        let name = format!("once-{number}");
        world.proxy.next(about(&name), how.clone());
        let error = client.get_lock(&name).try_lock().unwrap_err();
        assert!(error.outcome_unknown(), "{how:?}: {error}");
        world.is_given_back(&name, L);
        assert_eq!(world.proxy.count(no_releases(&name)), 1, "{how:?}: the request was repeated");
    }
    let unhurried = world.builder().command_timeout(LONG).build().unwrap();
    unhurried.get_lock("plain").lock_with_lease(LEASE).unwrap();
    unhurried.get_lock("plain").unlock().unwrap();
    assert_eq!(world.proxy.count(about("plain")), 2);
});

scenario!(a_reentry_with_a_lost_reply_counts_once, |world| {
    for (how, client, lock) in world.each(ways(), "nested") {
        lock.lock_with_lease(LEASE).unwrap();
        let owner = client.current_owner();
        let fault = world.proxy.next(about(lock.name()), how.clone());
        lock.lock_with_lease(LEASE).unwrap();
        assert_eq!(fault.hits(), 1, "{how:?}");
        world.assert_held(lock.name(), owner, 2);
        lock.unlock().unwrap();
        world.assert_held(lock.name(), owner, 1);
        assert!(!elsewhere(|| lock.try_lock().unwrap()), "{how:?}");
        lock.unlock().unwrap();
        assert!(world.is_free(lock.name()), "{how:?}");
    }
});

// If another owner is granted the lock meanwhile, the late answer to the re-entry must not count as a level.
scenario!(a_reentry_answered_after_the_hold_expired_is_no_grant, |world| {
    let client = world.builder().command_timeout(LONG).build().unwrap();
    let other = world.direct().get_lock("nested");
    let fault = world.proxy.next(|command| is_level(command, "nested", 2), Do::HoldReply);
    let (had, is_had) = bounded(1);
    let nested = call_on(client.get_lock("nested"), move |lock| {
        let outer = lock.acquire_with(&leased(L)).unwrap().unwrap();
        let inner = lock.acquire_with(&leased(L).wait(L)).map(|inner| inner.is_some());
        had.send(outer.check().is_err_and(|error| error.is_lost())).unwrap();
        let again = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        (inner, again.owner(), again.unlock())
    });
    fault.wait_for(1, LONG);
    let theirs = other.acquire_with(&leased(LEASE)).unwrap().unwrap();
    fault.release();
    assert!(is_had.recv_timeout(LONG).unwrap(), "the call did not notice that the outer level is lost");
    throughout(T, || {
        world.assert_held("nested", theirs.owner(), 1);
        theirs.check().is_ok()
    });
    theirs.unlock().unwrap();
    let (inner, owner, unlocked) = nested.outcome().0;
    assert!(!inner.unwrap(), "the call reported a grant to {owner} during another's hold");
    unlocked.unwrap();
    assert!(world.is_free("nested"));
});

scenario!(the_client_undoes_a_reentry_grant_that_arrives_too_late, |world| {
    let client = world.builder().command_timeout(LONG).build().unwrap();
    let fault = world.proxy.next(|command| is_level(command, "longer", 2), Do::HoldReply);
    let nested = call_on(client.get_lock("longer"), move |lock| {
        let outer = lock.acquire_with(&leased(L)).unwrap().unwrap();
        let begun = now();
        lock.lock_with_lease(10 * L).unwrap();
        let (waited, count) = (begun.elapsed(), lock.hold_count().unwrap());
        let lost = outer.check().unwrap_err().is_lost();
        lock.unlock().unwrap();
        drop(outer);
        (waited, count, lost)
    });
    fault.wait_for(1, LONG);
    let_pass(L + SLACK, "until the window of the outer level has ended");
    fault.release();
    let (waited, count, lost) = nested.outcome().0;
    assert!(waited < 5 * L, "the thread waited for its own late grant: {waited:?}");
    assert_eq!((count, lost), (1, true), "the call made a new hold, and the old one is lost");
    comes_within(now(), T, "the end of both", || world.is_free("longer"));
});

fn is_level(command: &Command, name: &str, count: u32) -> bool {
    no_releases(name)(command) && command.args.iter().any(|arg| *arg == count.to_string().as_bytes())
}

scenario!(a_downgrade_with_a_lost_reply_fails_without_waiting, |world| {
    let client = world.client();
    let lock = client.get_read_write_lock("downgrade");
    for how in ways() {
        lock.write().lock_with_lease(LEASE).unwrap();
        world.proxy.next(about("downgrade"), how.clone());
        let begun = now();
        let error = lock.read().lock_with_lease(LEASE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldDeadlock, "{how:?}: {error}");
        within(begun, T + R, "the refusal");
        lock.write().unlock().unwrap();
        world.is_given_back("downgrade", L);
    }
    lock.write().lock().unwrap();
    lock.read().lock().unwrap();
    lock.write().unlock().unwrap();
    lock.read().unlock().unwrap();
    assert!(world.is_free("downgrade"));
});

scenario!(a_failed_reentry_leaves_the_outer_hold, |world| {
    for (how, _client, lock) in world.each(ways(), "inner") {
        let outer = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        world.proxy.next(about(lock.name()), how.clone());
        let error = in_time(T, "a nested try", || {
            lock.acquire_with(&leased(LEASE).wait(Duration::ZERO)).unwrap_err()
        });
        assert!(error.outcome_unknown(), "{how:?}: {error}");
        assert_eq!(outer.state(), HoldState::Held, "{how:?}");
        // The server may count one level or two now. One unlock frees the lock in both cases.
        outer.unlock().unwrap();
        assert!(world.is_free(lock.name()), "{how:?}");
    }
});

scenario!(a_release_with_a_lost_reply_frees_the_lock, |world| {
    let other = world.direct();
    for (how, _client, lock) in world.each(ways(), "release") {
        lock.lock_with_lease(LEASE).unwrap();
        let fault = world.proxy.next(releases(lock.name()), how.clone());
        let outcome = in_time(PATIENCE + T, "an unlock", || lock.unlock());
        assert_eq!(fault.hits(), 1, "{how:?}");
        assert!(outcome.as_ref().map_or_else(leasehold::Error::outcome_unknown, |()| true), "{outcome:?}");
        in_time(ms(50), "the next owner's turn", || other.get_lock(lock.name()).lock().unwrap());
        // Late repetitions of the first release must not touch the new owner's hold.
        throughout(T, || world.fields(lock.name()).len() == 1);
        world.assert_held_by(lock.name(), &other, 1);
        other.get_lock(lock.name()).unlock().unwrap();
    }
});

scenario!(an_inner_unlock_with_a_lost_reply_counts_once, |world| {
    for (how, client, lock) in world.each(ways(), "partial") {
        (0..3).for_each(|_| lock.lock_with_lease(LEASE).unwrap());
        let owner = lock.hold_count().map(|_| client.current_owner()).unwrap();
        let fault = world.proxy.next(releases(lock.name()), how.clone());
        lock.unlock().unwrap();
        assert_eq!(fault.hits(), 1, "{how:?}");
        world.assert_held(lock.name(), owner, 2);
        lock.unlock().unwrap();
        world.assert_held(lock.name(), owner, 1);
        lock.unlock().unwrap();
        assert!(world.is_free(lock.name()), "{how:?}");
        assert!(lock.unlock().unwrap_err().is_not_held(), "{how:?}");
    }
});

scenario!(hold_count_excludes_a_dropped_guard_whose_release_fails, |world| {
    let client = world.client();
    let (fenced, rw) = (client.get_fenced_lock("test:counted"), client.get_read_write_lock("counted-rw"));
    let fair = client.get_fair_lock("counted-fair");
    let locks = [&client.get_lock("counted"), &fenced, rw.read(), rw.write(), &fair];
    for lock in locks {
        for then in [Then::Close, Then::Reset] {
            let what = format!("{} {then:?}", lock.name());
            // Until the client's clean-up arrives, the server still counts the dropped guard's level or hold,
            // so the client must not rely on the server's count alone.
            let outer = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
            let inner = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
            let fault = world.proxy.next(about(lock.name()), Do::DropRequest(then));
            drop(inner);
            fault.wait_for(1, LONG);
            assert_eq!((lock.hold_count().unwrap(), outer.state()), (1, HoldState::Held), "{what}");
            drop(outer);
            for _ in 0..20 {
                let guard = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
                let fault = world.proxy.next(about(lock.name()), Do::DropRequest(then));
                drop(guard);
                // The fault ends the shared connection, so a query on it may fail.
                for count in (0..3).filter_map(|_| lock.hold_count().ok()) {
                    assert_eq!(count, 0, "{what}");
                }
                assert!(!lock.is_held_by_current_thread().unwrap_or(false), "{what}");
                fault.wait_for(1, LONG);
            }
        }
    }
});

scenario!(an_unanswered_release_of_a_dropped_guard_frees_the_lock, |world| {
    for (how, _client, lock) in world.each(ways(), "dropped") {
        let guard = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        let fault = world.proxy.next(releases(lock.name()), how.clone());
        let begun = now();
        drop(guard);
        within(begun, T, "dropping a guard");
        comes_within(begun, T, "the release", || world.is_free(lock.name()));
        fault.wait_for(1, LONG);
        let again = lock.acquire_with(&leased(LEASE)).unwrap().unwrap();
        throughout(2 * T, || {
            world.fields(lock.name()) == [(again.owner().to_string(), "1".to_owned())].into()
        });
        again.unlock().unwrap();
        assert!(world.is_free(lock.name()), "{how:?}");
    }
});

scenario!(a_renewal_with_a_lost_reply_is_repeated_in_time, |world| {
    let holds: Vec<_> = (ways().into_iter().enumerate())
        .map(|(number, how)| {
            let (client, seen) = world.watched_keeping();
            let guard = client.get_lock(format!("renewal-{number}")).acquire().unwrap();
            let fault = world.proxy.next(about(guard.name()), how.clone());
            (how, client, seen, guard, fault)
        })
        .collect();
    throughout(KEPT + R, || {
        holds.iter().all(|(_, _, _, guard, _)| guard.check().is_ok() && !world.is_free(guard.name()))
    });
    for (how, _client, seen, guard, fault) in holds {
        assert_eq!(fault.hits(), 1, "{how:?}");
        world.assert_held(guard.name(), guard.owner(), 1);
        guard.unlock().unwrap();
        assert_eq!(seen.losses(), 0, "{how:?}: {:?}", seen.events());
    }
});

scenario!(a_window_never_outlasts_the_lease_in_redis, |world| {
    let client = world.client();
    let late = ms(120);
    world.proxy.delay_replies(late);
    let guard = client.get_lock("window").acquire().unwrap();
    let remaining = guard.remaining();
    assert!(remaining <= L - late, "{remaining:?} of {L:?} although the reply took {late:?}");
    let mut renewed = 0;
    let mut last = remaining;
    throughout(3 * L, || {
        let asked = now();
        let remaining = guard.remaining();
        let ttl = world.ttl("window");
        let key = Duration::from_millis(u64::try_from(ttl).unwrap()) + asked.elapsed() + ms(1);
        renewed += usize::from(remaining > last);
        last = remaining;
        remaining <= key && remaining <= L - late
    });
    assert!(renewed >= 3, "renewed {renewed} times");
    guard.unlock().unwrap();
});

scenario!(a_renewal_answered_after_the_loss_revives_no_hold, |world| {
    let (client, seen) = world.watched();
    let guard = client.get_lock("late").acquire().unwrap();
    // The server runs the renewals and so keeps the key, but no answer reaches the client.
    world.proxy.hold(Direction::ToClient, Which::All);
    let cut = now();
    comes_within(cut, L, "the end of the window", || guard.check().is_err());
    assert_eq!(guard.state(), HoldState::Lost);
    world.proxy.resume();
    throughout(R, || guard.state() == HoldState::Lost && guard.remaining().is_zero());
    assert_eq!(guard.unlock().unwrap_err().not_held(), Some(&leasehold::NotHeld::Expired));
    world.is_given_back("late", L);
    assert_eq!(seen.losses(), 1);
});

scenario!(a_failed_wait_whose_replies_are_blocked_leaves_no_lock, |world| {
    let client = world.client();
    client.get_lock("asymmetric").try_lock_for(ms(0)).unwrap();
    client.get_lock("asymmetric").unlock().unwrap();
    world.proxy.hold(Direction::ToClient, Which::All);
    let error = in_time(2 * T, "a wait of T", || client.get_lock("asymmetric").try_lock_for(T).unwrap_err());
    assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable), "{error}");
    world.proxy.resume();
    world.is_given_back("asymmetric", L);
    client.get_lock("asymmetric").lock().unwrap();
    world.assert_held_by("asymmetric", &client, 1);
    client.get_lock("asymmetric").unlock().unwrap();
});

scenario!(withdrawing_a_leader_returns_the_error_of_its_failed_release, |world| {
    let client = world.client();
    let leader = client.leader("lead").unwrap();
    comes_within(now(), T, "the election", || leader.term().is_some());
    let fault = world.proxy.each(releases("lead"), Do::DropRequest(Then::Close));
    let begun = now();
    let error = leader.withdraw().unwrap_err();
    assert!(crate::support::may_pass(&error) || error.outcome_unknown(), "{error}");
    within(begun, L + T, "withdrawing");
    fault.cancel();
    world.is_given_back("lead", L);
});
