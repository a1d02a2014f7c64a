//! Each kind of lock has the capabilities that its store declares (`Traits` in `harness.rs`), and no others.

use super::harness::Sessions;
use crate::support::prelude::*;

contract!(a_kind_is_reentrant_only_if_the_store_declares_it, |store| {
    for (kind, name, [client]) in store.each() {
        let lock = (kind.make)(&client, &name);
        assert_eq!(lock.hold_count().unwrap(), 0, "{}", kind.label);
        lock.lock().unwrap();
        assert_eq!(lock.try_lock().unwrap(), kind.traits.reentrant, "{}", kind.label);
        if kind.traits.reentrant {
            lock.lock().unwrap();
            assert_eq!(lock.hold_count().unwrap(), 3, "{}", kind.label);
            lock.unlock().unwrap();
            lock.unlock().unwrap();
        } else {
            let begun = now();
            assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::WouldDeadlock, "{}", kind.label);
            assert!(begun.elapsed() < slack_since(begun));
            assert_eq!(lock.hold_count().unwrap(), 1, "{}", kind.label);
        }
        elsewhere(|| {
            assert!(lock.is_locked().unwrap() && !lock.try_lock().unwrap(), "{}", kind.label);
            assert!(!lock.is_held_by_current_thread().unwrap(), "{}", kind.label);
            assert_eq!(lock.hold_count().unwrap(), 0, "{}", kind.label);
        });
        lock.unlock().unwrap();
        assert_eq!((lock.is_locked().unwrap(), lock.hold_count().unwrap()), (false, 0), "{}", kind.label);
    }
});

contract!(a_release_wakes_other_clients_if_the_kind_supports_it, |store| {
    for (kind, name, [client, other]) in store.each() {
        let (lock, waiting) = ((kind.make)(&client, &name), (kind.make)(&other, &name));
        let begun = now();
        let rounds: Vec<Duration> = (0..11)
            .map(|_| {
                lock.lock().unwrap();
                let waiter = Waiter::start(turn(waiting.clone()));
                let before = now();
                lock.unlock().unwrap();
                let (had, _) = waiter.returns_within(kind.traits.polls_within + SLACK);
                had.duration_since(before)
            })
            .collect();
        let worst = *rounds.iter().max().unwrap();
        if kind.traits.wakes {
            let stalled_a_round = stalled_since(begun) / 11;
            assert!(median(rounds.clone()) <= ms(50) + stalled_a_round, "{}: {rounds:?}", kind.label);
            assert!(worst <= ms(50) + slack_since(begun), "{}: {rounds:?}", kind.label);
        } else {
            // A round ends with the waiter's next poll, which may come soon by chance. All rounds together
            // still last longer than wake-ups would take.
            assert!(worst <= kind.traits.polls_within + slack_since(begun), "{}: {rounds:?}", kind.label);
            assert!(rounds.iter().sum::<Duration>() >= ms(30), "{}: {rounds:?}", kind.label);
        }
    }
});

contract!(a_later_caller_overtakes_waiters_only_on_unfair_kinds, |store| {
    for kind in &store.kinds {
        let (name, clients) = store.clients::<3>(kind.label);
        let [held, waiting, late] = clients.each_ref().map(|client| (kind.make)(client, &name));
        let late_client = &clients[2];
        // On an unfair kind, overtaking usually happens in the first few of the 300 rounds. On a fair kind,
        // ten rounds suffice to show that overtaking does not happen.
        let rounds = if kind.traits.fair { 10 } else { 300 };
        let got_in_front = (0..rounds).any(|_| {
            held.lock().unwrap();
            let (go, gone) = bounded::<()>(0);
            let waiter = Waiter::on(waiting.clone(), move |waiting| {
                let guard = waiting.acquire().unwrap();
                gone.recv().ok(); // the waiter holds the lock until the later caller has tried
                guard.unlock().unwrap();
            });
            if kind.traits.fair {
                comes_true_within(LONG, || late_client.inspect(&name).unwrap().waiting == 1);
            }
            held.unlock().unwrap();
            let got_in_front = late.try_lock().unwrap();
            if got_in_front {
                late.unlock().unwrap();
            }
            drop(go);
            waiter.returns_within(LONG);
            got_in_front
        });
        assert_eq!(got_in_front, !kind.traits.fair, "{}", kind.label);
    }
});

contract!(holds_survive_server_restarts_only_if_the_store_declares_it, |store| {
    let (before, restart) = (store.restartable)();
    let name = fresh("restart");
    let client = before.client();
    let guard = client.get_fenced_lock(&name).acquire().unwrap();
    let after = restart();
    let rival = after.client();
    assert_eq!(rival.get_lock(&name).is_locked().unwrap(), store.survives_restart);
    if store.survives_restart {
        assert!(!rival.get_lock(&name).try_lock().unwrap());
        assert!(rival.get_fenced_lock(&name).try_lock_and_get_token(ms(0)).unwrap().is_none());
        guard.check().unwrap();
        let fence = guard.fencing_token();
        guard.unlock().unwrap();
        assert!(rival.get_fenced_lock(&name).acquire().unwrap().fencing_token() > fence);
    } else {
        assert!(rival.get_fenced_lock(&name).acquire().unwrap().fencing_token() > guard.fencing_token());
    }
});

contract!(holds_outlive_connections_only_if_the_store_declares_it, |store| {
    let (make, binds) = match store.sessions {
        Sessions::None => return,
        Sessions::Outlived(make) => (make, false),
        #[cfg(feature = "zookeeper")]
        Sessions::Bind(make) => (make, true),
    };
    let (own, end) = make();
    let (client, name) = (own.client(), fresh("sessions"));
    let guard = client.get_lock(&name).acquire().unwrap();
    let rival = own.client();
    let lost = guard.lost();
    end();
    if binds {
        receive(&lost, LONG).expect("the loss is reported");
        assert!(rival.get_lock(&name).try_lock_for(LONG).unwrap());
        assert!(guard.unlock().unwrap_err().is_lost());
        assert!(rival.get_lock(&name).is_held_by_current_thread().unwrap());
    } else {
        // Some clients notice the end of a connection late, so the test watches the hold for a while.
        throughout(ms(1_200), || guard.check().is_ok());
        assert!(!rival.get_lock(&name).try_lock_for(ms(50)).unwrap());
        guard.unlock().unwrap();
        assert!(rival.get_lock(&name).try_lock_for(LONG).unwrap());
    }
});
