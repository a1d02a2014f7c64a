//! When a client ends, its holds are released, its waiters are notified, and none of its threads remain.

use leasehold::Result;

use super::input::every_call;
use crate::support::prelude::*;

contract!(shutdown_releases_all_held_locks, |store| {
    let (name, [client, stranger]) = store.clients("held");
    let names: Vec<_> = (0..5).map(|index| format!("{name}-{index}")).collect();
    client.get_lock(&names[0]).lock().unwrap();
    (0..2).for_each(|_| client.get_lock(&names[1]).lock().unwrap());
    let guard = client.get_fenced_lock(&names[2]).acquire().unwrap();
    // On most stores the last kind is the token lock, which differs most from a plain lock.
    let other = store.kinds.last().unwrap().make;
    let owned = other(&client, &names[3]).acquire_owned().unwrap();
    elsewhere(|| client.get_lock(&names[4]).lock_with_lease(ms(60_000)).unwrap());
    let kind = |index: usize| {
        if index == 3 { other(&stranger, &names[3]) } else { stranger.get_lock(&names[index]) }
    };
    assert!((0..5).all(|index| kind(index).is_locked().unwrap()));
    client.shutdown().unwrap();
    for index in 0..5 {
        assert!(!kind(index).is_locked().unwrap(), "{index}");
    }
    let successor = stranger.get_fenced_lock(&names[2]).acquire().unwrap();
    drop((guard, owned));
    successor.check().unwrap();
    assert!(stranger.get_lock(&names[2]).is_held_by_current_thread().unwrap());
    successor.unlock().unwrap();
});

contract!(shutdown_is_reported_to_the_holders, |store| {
    let client = store.client();
    let guard = client.get_lock(fresh("told")).acquire().unwrap();
    let lost = guard.lost();
    let (tell, told) = unbounded();
    guard.on_lost(move |loss| tell.send(loss.reason).unwrap());
    client.shutdown().unwrap();
    assert_eq!(receive(&lost, SLACK).unwrap().reason, LossReason::ShutDown);
    assert_eq!(receive(&told, SLACK).unwrap(), LossReason::ShutDown);
    assert_eq!(guard.state(), HoldState::Lost);
    assert!(guard.check().unwrap_err().is_lost());
    assert!(guard.remaining().is_zero());
    fails(guard.unlock(), ErrorKind::ShutDown);
});

contract!(shutdown_ends_every_wait, |store| {
    for kind in &store.kinds {
        let (client, stranger) = (store.client(), store.client());
        let (elsewhere_held, own) = (fresh(kind.label), fresh(kind.label));
        let held = Holding::take(&(kind.make)(&stranger, &elsewhere_held));
        let guard = (kind.make)(&client, &own).acquire_owned().unwrap();
        // Of the waiters for the stranger's lock, the first sends requests. All other waiters sleep in this
        // process. The shutdown must end both sorts of wait.
        let waits: [fn(&RedisLock) -> Result<()>; 5] = [
            |lock| lock.lock(),
            |lock| lock.try_lock_for(LONG * 6).map(drop),
            |lock| lock.lock_interruptibly(&Interrupt::new()),
            |lock| lock.acquire_with(&AcquireOptions::new().deadline(now() + LONG * 6)).map(drop),
            |lock| lock.acquire_owned().map(drop),
        ];
        let waiters: Vec<_> = [&elsewhere_held, &own]
            .into_iter()
            .flat_map(|name| waits.map(|wait| ((kind.make)(&client, name), wait)))
            .map(|(lock, wait)| Waiter::start(move || wait(&lock)))
            .collect();
        client.shutdown().unwrap();
        let shut = now();
        for waiter in waiters {
            let (result, ended) = waiter.returns_within(LONG);
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ShutDown, "{}: {error}", kind.label);
            assert!(ended.saturating_duration_since(shut) <= slack_since(shut), "{}", kind.label);
        }
        drop(guard);
        held.release();
        assert!(!(kind.make)(&stranger, &elsewhere_held).is_locked().unwrap());
        assert!(!(kind.make)(&stranger, &own).is_locked().unwrap());
    }
});

contract!(every_call_after_shutdown_reports_the_shutdown, |store| {
    let (name, [client]) = store.clients("after");
    let (held, clone) = (client.get_lock(&name), client.clone());
    held.lock().unwrap();
    client.shutdown().unwrap();
    let begun = now();
    let new = store.kinds.iter().map(|kind| (kind.make)(&clone, &name));
    for lock in std::iter::once(held).chain(new) {
        for (action, result) in every_call(&lock) {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ShutDown, "{action}: {error}");
            assert!(!error.is_retryable());
        }
    }
    fails(clone.with_lock(&name, |_| ()), ErrorKind::ShutDown);
    assert!(begun.elapsed() < slack_since(begun));
    assert_eq!(clone.id(), client.id());
    assert_eq!(clone.current_owner().client(), client.id());
});

contract!(shutdown_is_repeatable_and_affects_one_client_only, |store| {
    let (client, other) = (store.client_with_lease(RENEWED), store.client_with_lease(RENEWED));
    let guard = other.get_lock(fresh("other")).acquire().unwrap();
    client.shutdown().unwrap();
    client.shutdown().unwrap();
    client.clone().shutdown().unwrap();
    throughout(RENEWED + ms(200), || guard.check().is_ok());
    guard.unlock().unwrap();
});

// A grant that arrives during the shutdown may stay until its lease ends, so the test waits for that.
contract!(shutdown_in_the_middle_of_work_leaves_no_lock_held, |store| {
    let lease = ms(300);
    for _ in 0..4 {
        let (client, stranger) = (store.client_with_lease(lease), store.client());
        let names = [fresh("work"), fresh("work")];
        let (tell, told) = unbounded();
        thread::scope(|scope| {
            for worker in 0..6 {
                let (lock, tell) = (client.get_lock(&names[worker % 2]), tell.clone());
                scope.spawn(move || {
                    let mut rounds = 0;
                    let error = loop {
                        let guard = match lock.acquire() {
                            Ok(guard) => guard,
                            Err(error) => break error,
                        };
                        rounds += 1;
                        if rounds == 10 {
                            tell.send(()).unwrap();
                        }
                        // On a busy machine a hold may be lost, so the loop goes on after a loss.
                        if let Err(error) = guard.unlock() {
                            let is_over = error.kind() == ErrorKind::ShutDown || error.is_lost();
                            assert!(is_over || error.outcome_unknown(), "{error}");
                        }
                    };
                    assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
                });
            }
            let all_worked = (0..6).all(|_| receive(&told, LONG).is_ok());
            // If the assertion failed before the shutdown, the scope would wait forever for the workers.
            let shut_down = client.shutdown();
            assert!(all_worked, "a worker was granted no lock");
            shut_down.unwrap();
        });
        for name in &names {
            comes_true_within(store.freed_within(lease) + SLACK, || {
                !stranger.get_lock(name).is_locked().unwrap()
            });
        }
    }
});

contract!(shutdown_from_a_callback_returns, |store| {
    let (client, operator) = (store.client_with_lease(ms(1_000)), store.client());
    let name = fresh("callback");
    let guard = client.get_lock(&name).acquire().unwrap();
    let (tell, told) = unbounded();
    guard.on_lost({
        let client = client.clone();
        move |_| tell.send(client.shutdown()).unwrap()
    });
    assert!(operator.get_lock(&name).force_unlock().unwrap());
    receive(&told, LONG).expect("the shutdown in the callback did not return").unwrap();
    fails(client.get_lock(&name).try_lock(), ErrorKind::ShutDown);
});

contract!(dropping_the_last_clone_of_a_client_releases_its_locks, |store| {
    let (name, [stranger]) = store.clients("dropped");
    let client = store.client();
    let lock = client.get_lock(&name);
    lock.lock().unwrap();
    drop(client);
    assert!(stranger.get_lock(&name).is_locked().unwrap(), "the lock value keeps its client alive");
    drop(lock);
    comes_true_within(SLACK, || !stranger.get_lock(&name).is_locked().unwrap());
});

contract!(locks_and_guards_keep_their_client_alive, |store| {
    let stranger = store.client();
    let names = [fresh("kept"), fresh("kept")];
    let guard = store.client_with_lease(RENEWED).get_lock(&names[0]).acquire().unwrap();
    let owned = store.client_with_lease(RENEWED).get_lock(&names[1]).acquire_owned().unwrap();
    throughout(RENEWED + ms(200), || {
        let is_kept = names.iter().all(|name| stranger.get_lock(name).is_locked().unwrap());
        is_kept && guard.check().is_ok() && owned.check().is_ok()
    });
    guard.unlock().unwrap();
    drop(owned);
    for name in &names {
        comes_true_within(SLACK, || !stranger.get_lock(name).is_locked().unwrap());
    }
});

fn count_threads() -> Option<usize> {
    if cfg!(windows) {
        return None; // wine adds threads of its own
    }
    std::fs::read_dir("/proc/self/task").ok().map(Iterator::count)
}

contract!(a_client_leaves_no_thread_behind, |store| {
    alone(|| {
        // The first client of a store may start threads that all later clients share.
        store.client().shutdown().unwrap();
        let before = count_threads();
        for drop_only in [false, true] {
            let clients = [store.client_with_lease(RENEWED), store.client()];
            let name = fresh("threads");
            for client in &clients {
                // A wait, a loss and a hold make the client start its threads, except its cache thread.
                let held = Holding::take(&client.get_lock(&name));
                assert!(!client.get_lock(&name).try_lock_for(ms(50)).unwrap());
                assert!(!clients[1].get_lock(&name).try_lock_for(ms(50)).unwrap());
                held.release();
                let lost = client.get_lock(&name).acquire_with(&leased(ms(50))).unwrap().unwrap();
                let (tell, told) = unbounded();
                lost.on_lost(move |_| tell.send(()).unwrap());
                receive(&told, ms(50) + SLACK).unwrap();
            }
            assert!(count_threads() > before || before.is_none());
            let begun = now();
            if !drop_only {
                clients.iter().for_each(|client| client.shutdown().unwrap());
            }
            drop(clients);
            assert!(begun.elapsed() <= slack_since(begun) * 2, "the end is bounded: {:?}", begun.elapsed());
            comes_true_within(SLACK, || count_threads() <= before);
        }
    });
});
