//! An observer receives the events of a client's locks.

use leasehold::{Event, GaveUpReason, Loss, Observer, Owner};

use crate::support::observer::observe;
use crate::support::prelude::*;

#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    Acquired { name: String, owner: Owner, waited: Duration, attempts: u32 },
    Released { name: String, owner: Owner, held: Duration },
    Lost(Loss),
    Abandoned { name: String, owner: Owner },
    Trouble(String),
}

fn seen(event: &Event<'_>) -> Option<Seen> {
    Some(match *event {
        Event::Acquired { name, owner, waited, attempts, .. } => {
            Seen::Acquired { name: name.to_owned(), owner, waited, attempts }
        }
        Event::Released { name, owner, held, .. } => Seen::Released { name: name.to_owned(), owner, held },
        Event::ReleaseFailed { name, error, .. } => Seen::Trouble(format!("release of {name}: {error}")),
        Event::RenewalFailed { name, error, .. } => Seen::Trouble(format!("renewal of {name}: {error}")),
        Event::Lost { loss, .. } => Seen::Lost(loss.clone()),
        Event::Abandoned { name, owner, .. } => Seen::Abandoned { name: name.to_owned(), owner },
        _ => return None,
    })
}

pub(crate) fn watches() -> (impl Observer, Receiver<Seen>) {
    observe(seen)
}

contract!(observers_see_grants_and_releases_but_not_reentries, |store| {
    let (teller, seen) = watches();
    let client = store.client_with(|options| options.observer(teller));
    for kind in &store.kinds {
        let lock = (kind.make)(&client, &fresh(kind.label));
        let begun = now();
        let guard = lock.acquire().unwrap();
        let inner = kind.traits.reentrant.then(|| lock.acquire().unwrap());
        match seen.try_recv().expect("the grant was not reported before the return") {
            Seen::Acquired { name, owner, waited, attempts } => {
                assert_eq!((name.as_str(), owner, attempts), (lock.name(), guard.owner(), 1));
                assert!(waited <= begun.elapsed());
            }
            other => panic!("{other:?}"),
        }
        drop(inner);
        let owner = guard.owner();
        drop(guard);
        match receive(&seen, SLACK).expect("the release was not reported") {
            Seen::Released { name, owner: by, held } => {
                assert_eq!((name.as_str(), by), (lock.name(), owner));
                assert!(held <= begun.elapsed());
            }
            other => panic!("{other:?}"),
        }
        lock.lock().unwrap();
        lock.unlock().unwrap();
        lock.acquire_owned().unwrap().unlock().unwrap();
        let rest: Vec<_> = seen.try_iter().collect();
        assert!(
            matches!(
                rest.as_slice(),
                [Seen::Acquired { .. }, Seen::Released { .. }, Seen::Acquired { .. }, Seen::Released { .. }]
            ),
            "{rest:?}"
        );
    }
});

contract!(the_time_and_the_attempts_of_a_wait_are_observed, |store| {
    let (teller, seen) = watches();
    let (client, stranger) = (store.client_with(|options| options.observer(teller)), store.client());
    let name = fresh("wait");
    let held = Holding::take(&stranger.get_lock(&name));
    let begun = now();
    let waiter = Waiter::start(turn(client.get_lock(&name)));
    // The call may first wait for a connection, so the measurement begins once the waiter is counted.
    assert!(eventually(LONG, || client.stats().waiters == 1));
    let asleep = now();
    assert!(eventually(LONG, || asleep.elapsed() >= ms(20)));
    held.release();
    waiter.returns_within(LONG);
    let Seen::Acquired { waited, attempts, .. } = seen.recv().unwrap() else { panic!("no grant") };
    assert!(waited >= ms(20) && waited <= begun.elapsed(), "{waited:?}");
    // Nine attempts are enough even for a Redlock, where each of five subscriptions causes one. On a store
    // without wake-ups each poll is an attempt, and one poll per 5 ms is allowed.
    let polls = if store.kinds[0].traits.wakes { 0 } else { u32::try_from(waited.as_millis() / 5).unwrap() };
    assert!((2..=9 + polls).contains(&attempts), "waiting is not polling: {attempts} attempts in {waited:?}");
});

contract!(a_loss_is_observed_once, |store| {
    let (teller, seen) = watches();
    let (client, operator) =
        (store.client_with(|options| options.observer(teller).lease(RENEWED)), store.client());
    let name = fresh("lost");
    let guard = client.get_lock(&name).acquire().unwrap();
    assert!(matches!(seen.recv().unwrap(), Seen::Acquired { .. }));
    assert!(operator.get_lock(&name).force_unlock().unwrap());
    let expected = |reason, owner| move |seen: Seen| matches!(seen, Seen::Lost(loss) if loss.reason == reason && loss.owner == owner);
    assert!(expected(LossReason::Gone, guard.owner())(receive(&seen, RENEWED / 3 + SLACK).unwrap()));
    assert!(guard.unlock().is_err());
    let leased = client.get_lock(&name).acquire_with(&leased(ms(60))).unwrap().unwrap();
    assert!(matches!(seen.recv().unwrap(), Seen::Acquired { .. }));
    assert!(expected(LossReason::Expired, leased.owner())(
        receive(&seen, ms(60) + RENEWED / 3 + SLACK).unwrap()
    ));
    drop(leased);
    throughout(ms(200), || seen.is_empty());
});

contract!(a_thread_that_ends_while_it_holds_is_reported_once, |store| {
    // The lease is longer than a busy machine needs between the grant and the end of the thread.
    let lease = ms(2_000);
    let (teller, seen) = watches();
    let client = store.client_with(|options| options.observer(teller).lease(lease));
    let name = fresh("abandoned");
    for take in [
        |lock: &leasehold::RedisLock| lock.lock(),
        |lock: &leasehold::RedisLock| lock.lock_with_lease(ms(2_000)),
    ] {
        let lock = client.get_lock(&name);
        let owner = elsewhere(|| {
            take(&lock).unwrap();
            client.current_owner()
        });
        let ended = now();
        assert!(matches!(seen.recv().unwrap(), Seen::Acquired { owner: by, .. } if by == owner));
        let told = receive(&seen, lease + SLACK).expect("the thread's end was not reported");
        assert_eq!(told, Seen::Abandoned { name: name.clone(), owner });
        assert!(ended.elapsed() <= lease + slack_since(ended));
        let told = receive(&seen, lease + SLACK).expect("the loss was not reported");
        assert!(matches!(&told, Seen::Lost(loss) if loss.owner == owner), "{told:?}");
        crate::support::comes_true_within(store.freed_within(lease) + SLACK, || !lock.is_locked().unwrap());
        assert!(seen.is_empty(), "{:?}", seen.try_recv());
    }
});

contract!(a_panicking_observer_harms_nothing, |store| {
    let was_told = Arc::new(AtomicBool::new(false));
    let tells = Arc::clone(&was_told);
    let panics = move |event: &Event<'_>| {
        if seen(event).is_some() {
            tells.store(true, Ordering::SeqCst);
            quiet_panic()
        }
    };
    let client = store.client_with(|options| options.observer(panics).lease(RENEWED));
    let lock = client.get_lock(fresh("panics"));
    lock.lock().unwrap();
    assert!(was_told.load(Ordering::SeqCst));
    assert_eq!(lock.hold_count().unwrap(), 1);
    lock.unlock().unwrap();
    drop(lock.acquire().unwrap());
    elsewhere(|| lock.lock_with_lease(ms(100)).unwrap());
    let lost = lock.acquire().unwrap();
    store.client().get_lock(lock.name()).force_unlock().unwrap();
    receive(&lost.lost(), RENEWED / 3 + SLACK).unwrap();
    drop(lost);
    let guard = lock.acquire().unwrap();
    throughout(RENEWED + ms(200), || guard.check().is_ok());
    guard.unlock().unwrap();
});

contract!(the_end_of_max_hold_is_observed, |store| {
    let (teller, seen) = watches();
    let client = store.client_with(|options| options.observer(teller));
    let taken = now();
    // No call asks about the hold and no renewal is due earlier, so the end of `max_hold` causes the report.
    client.lock_builder(fresh("most")).max_hold(ms(300)).build().lock().unwrap();
    let lost = loop {
        match receive(&seen, ms(300) + SLACK * 2).unwrap() {
            Seen::Lost(loss) => break loss,
            _earlier => {}
        }
    };
    assert_eq!(lost.reason, LossReason::HeldTooLong);
    assert!(taken.elapsed() < ms(300) + slack_since(taken), "{:?}", taken.elapsed());
});

fn in_words(event: &Event<'_>) -> Option<String> {
    Some(match event {
        Event::Waiting { name, kind, .. } => format!("waiting {kind} {name}"),
        Event::Acquired { name, kind, .. } => format!("acquired {kind} {name}"),
        Event::HandedOff { name, kind, is_local, .. } => {
            format!("handed off {kind} {name} {}", if *is_local { "here" } else { "elsewhere" })
        }
        Event::GaveUp { name, kind, reason: GaveUpReason::Failed(_), .. } => {
            format!("gave up {kind} {name} Failed")
        }
        Event::GaveUp { name, kind, reason, .. } => format!("gave up {kind} {name} {reason:?}"),
        Event::Renewed { holds, .. } => format!("renewed {holds}"),
        Event::Released { name, kind, .. } => format!("released {kind} {name}"),
        Event::Lost { loss, kind, .. } => format!("lost {kind} {} {:?}", loss.name, loss.reason),
        _ => return None,
    })
}

contract!(an_unsuccessful_wait_is_reported_with_its_reason, |store| {
    let (events, seen) = observe(in_words);
    let (client, stranger) = (store.client_with(|options| options.observer(events)), store.client());
    let name = fresh("gives up");
    let held = Holding::take(&stranger.get_lock(&name));
    let lock = client.get_lock(&name);
    assert!(!lock.try_lock().unwrap());
    assert!(!lock.try_lock_for(ms(50)).unwrap());
    let interrupt = Interrupt::new();
    let (waiting, by) = (lock.clone(), interrupt.clone());
    let waiter = Waiter::start(move || {
        let options = AcquireOptions::new().interrupt(&by);
        waiting.acquire_with(&options).map(|guard| guard.is_some())
    });
    let asleep = format!("waiting lock {name}");
    let seen_asleep = || receive(&seen, LONG).unwrap();
    assert_eq!(seen_asleep(), format!("gave up lock {name} Busy"));
    assert_eq!(seen_asleep(), asleep);
    assert_eq!(seen_asleep(), format!("gave up lock {name} TimedOut"));
    assert_eq!(seen_asleep(), asleep);
    interrupt.interrupt();
    assert!(waiter.returns_within(LONG).0.is_err());
    assert_eq!(seen_asleep(), format!("gave up lock {name} Interrupted"));
    assert!(seen.is_empty());
    held.release();
});

contract!(acquire_renew_and_release_requests_are_reported, |store| {
    let (observer, asked) = observe(|event| match event {
        Event::Request { op, error: None, .. } => Some(*op),
        Event::Request { op, error, .. } => panic!("{op}: {error:?}"),
        _ => None,
    });
    let client = store.client_with(|options| options.observer(observer).lease(RENEWED));
    let all = || asked.try_iter().collect::<Vec<_>>();
    let lock = client.get_lock(fresh("requests"));
    let guard = lock.acquire().unwrap();
    lock.lock().unwrap(); // a re-entry sends a request too
    assert_eq!(all(), ["acquire", "acquire"]);
    lock.unlock().unwrap();
    assert_eq!(all(), ["release"]);
    assert_eq!(receive(&asked, LONG), Ok("renew"));
    // A dropped guard does not wait for its release, so renewals may be reported first.
    drop(guard);
    while receive(&asked, LONG).unwrap() != "release" {}
    let held = Holding::take(&store.client().get_lock(lock.name()));
    assert!(!lock.try_lock().unwrap());
    while receive(&asked, LONG).unwrap() != "acquire" {}
    held.release();
});

contract!(a_blocked_observer_does_not_stop_renewals, |store| {
    let (sender, renewed) = unbounded();
    let (free, blocked) = unbounded::<()>();
    let blocks = move |event: &Event<'_>| {
        if let Event::Renewed { holds: 1, .. } = event {
            sender.send(()).ok();
            blocked.recv().ok();
        }
    };
    let client = store.client_with(|options| options.observer(blocks).lease(RENEWED));
    let guard = client.get_lock(fresh("blocks")).acquire().unwrap();
    assert_eq!(receive(&renewed, LONG), Ok(()));
    throughout(RENEWED * 2, || guard.check().is_ok());
    drop(free);
    guard.unlock().unwrap();
});

contract!(client_stats_count_grants_waits_renewals_and_lost_holds, |store| {
    let (client, stranger) = (store.client_with(|options| options.lease(RENEWED)), store.client());
    let (free, waited_for) = (fresh("free"), fresh("waited for"));
    for _ in 0..3 {
        client.get_lock(&free).acquire().unwrap().unlock().unwrap();
    }
    let before = client.stats();
    assert_eq!((before.grants, before.holds, before.waits, before.waiters), (3, 0, 0, 0));
    assert_eq!((before.gave_up, before.lost(), before.shortest_window), (0, 0, None));
    assert!(client.contended(20).is_empty());
    let held = Holding::take(&stranger.get_lock(&waited_for));
    assert!(!client.get_lock(&waited_for).try_lock().unwrap());
    held.release();
    // A waiter is counted before it sleeps, and needs no wake-up if the lock is free by then. So the test
    // repeats waits until a waiter was woken.
    let mut waited = 0;
    let is_woken = || {
        let held = Holding::take(&stranger.get_lock(&waited_for));
        let waiter = Waiter::start(turn(client.get_lock(&waited_for)));
        assert!(eventually(LONG, || client.stats().waiters == 1));
        held.release();
        waiter.returns_within(LONG);
        waited += 1;
        let after = client.stats();
        after.woken_by_message + after.woken_locally + after.woken_by_time > 0
    };
    assert!(eventually(LONG, is_woken), "{:?}", client.stats());
    let after = client.stats();
    assert_eq!((after.grants, after.waits, after.waiters, after.gave_up), (3 + waited, waited, 0, 1));
    let contended = client.contended(20);
    let [only] = contended.as_slice() else { panic!("{contended:?}") };
    assert_eq!((only.name.as_str(), only.waits, only.overcount), (waited_for.as_str(), waited, 0));
    let guard = client.get_lock(&free).acquire().unwrap();
    assert!(eventually(LONG, || client.stats().renewals > 0));
    let stats = client.stats();
    assert_eq!((stats.holds, stats.grants), (1, 4 + waited));
    assert!(stats.shortest_window.is_some_and(|left| left <= RENEWED));
    assert!(stranger.get_lock(&free).force_unlock().unwrap());
    guard.unlock().unwrap_err();
    let stats = client.stats();
    assert_eq!((stats.holds, stats.holds_lost, stats.lost_gone, stats.lost()), (0, 0, 1, 1));
});

#[test]
fn hand_off_events_distinguish_local_from_remote_releases() {
    for (is_local, place) in [(true, "here"), (false, "elsewhere")] {
        let (events, seen) = observe(in_words);
        let memory = MemoryStore::new();
        let client = LockClient::builder().observer(events).build_in_memory(&memory).unwrap();
        let other = LockClient::builder().build_in_memory(&memory).unwrap();
        let held = Holding::take(&if is_local { &client } else { &other }.get_lock("a"));
        let waiter = Waiter::start(turn(client.get_lock("a")));
        held.release();
        waiter.returns_within(LONG);
        let seen: Vec<_> = seen.try_iter().filter(|event| event.starts_with("handed off")).collect();
        assert_eq!(seen, [format!("handed off lock a {place}")]);
    }
}
