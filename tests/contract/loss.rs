//! The holder of a lost hold is notified of the loss once, and the hold stays lost.

use leasehold::crossbeam_channel::{RecvTimeoutError, TryRecvError, select};

use crate::support::prelude::*;

contract!(check_fails_at_once_when_the_hold_window_ends, |store| {
    let lock = store.client().get_lock(fresh("window"));
    let lease = ms(1_000);
    let before = now();
    let guard = lock.acquire_with(&leased(lease)).unwrap().unwrap();
    let taken = now();
    assert_eq!(guard.state(), HoldState::Held);
    // The window opens between the two clock readings and is 1 % shorter than the lease.
    let (earliest, latest) = (before + lease * 99 / 100, taken + lease * 99 / 100);
    throughout(earliest.saturating_duration_since(now() + ms(25)), || guard.check().is_ok());
    comes_true_within(lease + SLACK, || now() > latest);
    let error = guard.check().unwrap_err();
    assert!(error.is_lost() && !error.is_not_held() && !error.is_retryable(), "{error}");
    assert_eq!((error.action(), error.lock_name()), ("check", Some(lock.name())));
    assert_eq!(guard.state(), HoldState::Lost);
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(guard.unlock().unwrap_err().is_lost());
});

contract!(each_loss_callback_runs_once, |store| {
    let (client, operator) = (store.client_with_lease(RENEWED), store.client());
    let name = fresh("callbacks");
    let guard = client.get_lock(&name).acquire().unwrap();
    let inner = client.get_lock(&name).acquire().unwrap();
    let (tell, told) = unbounded();
    for (who, guard) in [(0, &guard), (1, &guard), (2, &inner)] {
        let tell = tell.clone();
        guard.on_lost(move |loss| tell.send((who, loss.clone())).unwrap());
    }
    assert!(operator.get_lock(&name).force_unlock().unwrap());
    let mut losses: Vec<_> = (0..3).map(|_| receive(&told, RENEWED / 3 + SLACK).unwrap()).collect();
    losses.sort_by_key(|(who, _)| *who);
    for (place, (who, loss)) in losses.into_iter().enumerate() {
        assert_eq!((place, loss.reason, loss.owner), (who, LossReason::Gone, guard.owner()));
    }
    let late = tell.clone();
    guard.on_lost(move |loss| late.send((3, loss.clone())).unwrap());
    assert_eq!(receive(&told, SLACK).unwrap().0, 3);
    assert!(guard.check().is_err() && inner.unlock().is_err() && guard.unlock().is_err());
    throughout(ms(300), || told.is_empty());
});

contract!(other_callbacks_run_after_one_panics, |store| {
    let client = store.client_with_lease(RENEWED);
    let guard = client.get_lock(fresh("panics")).acquire_with(&leased(ms(100))).unwrap().unwrap();
    let (tell, told) = unbounded();
    guard.on_lost(|_| crate::support::quiet_panic());
    guard.on_lost(move |_| tell.send(()).unwrap());
    receive(&told, ms(100) + SLACK).unwrap();
    let other = client.get_lock(fresh("panics")).acquire().unwrap();
    throughout(RENEWED + ms(200), || other.check().is_ok());
    other.unlock().unwrap();
});

contract!(a_callback_can_use_its_client, |store| {
    let client = store.client_with_lease(RENEWED);
    let lock = client.get_lock(fresh("uses"));
    let guard = lock.acquire_with(&leased(ms(100))).unwrap().unwrap();
    let (tell, told) = unbounded();
    guard.on_lost({
        let (client, lock) = (client.clone(), lock.clone());
        move |loss| {
            let again = lock.acquire().and_then(|guard| {
                let count = lock.hold_count()?;
                guard.unlock().map(|()| count)
            });
            let other = client.with_lock(fresh("uses"), |guard| guard.owner() != loss.owner);
            tell.send((again, other)).unwrap();
        }
    });
    let (again, other) = receive(&told, crate::support::LONG).expect("the callback returns");
    assert_eq!(again.unwrap(), 1);
    assert!(other.unwrap());
    assert!(guard.unlock().unwrap_err().is_lost());
});

contract!(a_callback_is_not_run_after_a_release, |store| {
    let client = store.client_with_lease(RENEWED);
    let called = Arc::new(AtomicUsize::new(0));
    let lock = client.get_lock(fresh("released"));
    for unlock in [true, false] {
        for lease in [None, Some(RENEWED)] {
            let guard = match lease {
                Some(lease) => lock.acquire_with(&leased(lease)).unwrap().unwrap(),
                None => lock.acquire().unwrap(),
            };
            let called = Arc::clone(&called);
            guard.on_lost(move |_| {
                called.fetch_add(1, Ordering::SeqCst);
            });
            if unlock { guard.unlock().unwrap() } else { drop(guard) }
        }
    }
    throughout(RENEWED + SLACK, || called.load(Ordering::SeqCst) == 0);
});

contract!(the_loss_channel_delivers_the_loss_and_closes, |store| {
    let (client, operator) = (store.client_with_lease(RENEWED), store.client());
    let name = fresh("channel");
    let guard = client.get_lock(&name).acquire().unwrap();
    let (early, other) = (guard.lost(), guard.lost());
    assert_eq!(early.try_recv(), Err(TryRecvError::Empty));
    assert!(operator.get_lock(&name).force_unlock().unwrap());
    select! {
        recv(early) -> loss => assert_eq!(loss.unwrap().reason, LossReason::Gone),
        default(LONG) => panic!("the loss was not reported"),
    }
    assert_eq!(receive(&early, SLACK), Err(RecvTimeoutError::Disconnected), "the loss was reported twice");
    assert_eq!(receive(&other, SLACK).unwrap().owner, guard.owner());
    let late = guard.lost();
    assert_eq!(receive(&late, SLACK).unwrap().reason, LossReason::Gone);
    assert_eq!(receive(&late, SLACK), Err(RecvTimeoutError::Disconnected));
});

contract!(the_loss_channel_closes_without_a_loss_after_release, |store| {
    let lock = store.client().get_lock(fresh("channel"));
    let (unlocked, dropped) = {
        let guard = lock.acquire().unwrap();
        let lost = guard.lost();
        guard.unlock().unwrap();
        (lost, lock.acquire().unwrap().lost())
    };
    for lost in [unlocked, dropped] {
        comes_true_within(SLACK, || lost.try_recv() == Err(TryRecvError::Disconnected));
    }
    let owned = lock.acquire_owned().unwrap();
    let lost = owned.lost();
    elsewhere(move || drop(owned));
    comes_true_within(SLACK, || lost.try_recv() == Err(TryRecvError::Disconnected));
});

contract!(the_loss_channel_reports_the_end_of_an_explicit_lease, |store| {
    // The lease ends long before the next round of renewals, so the client must notice the end without one.
    let lock = store.client().get_lock(fresh("leased"));
    let asked = now(); // before the request, since the window opens when the request is sent
    let guard = lock.acquire_with(&leased(ms(200))).unwrap().unwrap();
    let loss = receive(&guard.lost(), ms(200) + SLACK).unwrap();
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(asked.elapsed() >= ms(190), "{:?}", asked.elapsed());
});

contract!(is_held_by_current_thread_reveals_a_lost_hold, |store| {
    let (client, operator) = (store.client(), store.client());
    for kind in &store.kinds {
        let name = fresh(kind.label);
        let lock = (kind.make)(&client, &name);
        let guard = lock.acquire().unwrap();
        let lost = guard.lost();
        assert!((kind.make)(&operator, &name).force_unlock().unwrap());
        // The lease is long, so only a question to the store can reveal the loss.
        assert!(guard.check().is_ok());
        assert!(!lock.is_held_by_current_thread().unwrap());
        assert_eq!(guard.state(), HoldState::Lost);
        assert!(guard.check().unwrap_err().is_lost());
        assert_eq!(receive(&lost, SLACK).unwrap().reason, LossReason::Gone);
    }
});

contract!(a_hold_count_query_reveals_a_lost_hold, |store| {
    let [lock, operator] = store.two("count", |client, name| client.get_lock(name));
    let guard = lock.acquire().unwrap();
    assert!(operator.force_unlock().unwrap());
    let held = Holding::take(&operator);
    assert_eq!(lock.hold_count().unwrap(), 0);
    assert_eq!(guard.state(), HoldState::Lost);
    assert!(guard.unlock().unwrap_err().is_lost());
    held.release();
});

contract!(locking_after_a_loss_is_a_new_hold, |store| {
    let (client, operator) = (store.client(), store.client());
    for kind in &store.kinds {
        let name = fresh(kind.label);
        let lock = (kind.make)(&client, &name);
        // Way 0: the lease expires. Way 1: an operator forces the release, and the client does not notice.
        // Way 2: the client notices the forced release.
        for way in 0..3 {
            let old =
                lock.acquire_with(&leased(if way == 0 { ms(80) } else { ms(15_000) })).unwrap().unwrap();
            let dropped = kind.traits.reentrant.then(|| lock.acquire_with(&leased(ms(60))).unwrap().unwrap());
            if way > 0 {
                assert!((kind.make)(&operator, &name).force_unlock().unwrap());
            }
            if way == 2 {
                assert!(!lock.is_held_by_current_thread().unwrap());
            }
            comes_true_within(store.freed_within(ms(80)) + SLACK, || !lock.is_locked().unwrap());
            let new = lock.acquire().unwrap();
            assert_eq!(lock.hold_count().unwrap(), 1, "{} {way}", kind.label);
            assert_ne!(new.owner(), old.owner(), "the new hold has the old owner number");
            assert_eq!(kind.traits.fenced, new.fencing_token() > old.fencing_token(), "{} {way}", kind.label);
            assert_eq!((old.state(), new.state()), (HoldState::Lost, HoldState::Held));
            drop(dropped);
            assert!(old.unlock().unwrap_err().is_lost());
            assert_eq!(lock.hold_count().unwrap(), 1, "{} {way}", kind.label);
            elsewhere(|| assert!(!lock.try_lock().unwrap()));
            new.check().unwrap();
            new.unlock().unwrap();
            assert!(!lock.is_locked().unwrap());
        }
    }
});

contract!(a_reentry_after_a_forced_release_begins_a_new_hold, |store| {
    let [lock, operator] = store.two("forced", |client, name| client.get_lock(name));
    let guard = lock.acquire().unwrap();
    assert!(operator.force_unlock().unwrap());
    assert!(lock.try_lock().unwrap());
    assert_eq!((guard.state(), lock.hold_count().unwrap()), (HoldState::Lost, 1));
    lock.unlock().unwrap();
    assert!(guard.unlock().unwrap_err().is_lost());
    assert!(!operator.is_locked().unwrap());
});

contract!(a_reentry_notices_that_another_owner_took_the_lock, |store| {
    let [lock, stranger] = store.two("silent", |client, name| client.get_lock(name));
    let guard = lock.acquire().unwrap();
    assert!(stranger.force_unlock().unwrap());
    let held = Holding::take(&stranger);
    assert!(!lock.try_lock().unwrap());
    assert_eq!(guard.state(), HoldState::Lost);
    held.release();
    assert!(lock.try_lock().unwrap());
    let_pass(ms(20), "so that anything the old guard may do late would be seen");
    drop(guard);
    assert_eq!(lock.hold_count().unwrap(), 1);
    lock.unlock().unwrap();
});
