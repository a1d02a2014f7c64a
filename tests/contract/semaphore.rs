//! A semaphore never grants more permits than were set, and wakes every waiter whose request can be granted.

use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use leasehold::ObjectKind;

use crate::support::prelude::*;

contract!(a_second_setting_of_the_permits_is_refused, needs(Counting), |store| {
    let [semaphore, other] = store.two("sem", |client, name| client.get_semaphore(name));
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    assert!(semaphore.try_set_permits(3).unwrap());
    assert!(!other.try_set_permits(5).unwrap());
    assert_eq!(other.available_permits().unwrap(), 3);
    assert!(semaphore.delete().unwrap());
    assert!(!semaphore.delete().unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 0);
});

contract!(using_a_semaphore_that_was_never_set_up_fails, needs(Counting), |store| {
    let (name, [client]) = store.clients("unset");
    let (plain, leasing) = (client.get_semaphore(&name), client.get_expirable_semaphore(&name));
    let waiting = AcquireOptions::new().wait(LONG);
    let is_none = |permit: Option<leasehold::Permit>| permit.is_none();
    type Call<'a> = Box<dyn Fn() -> leasehold::Result<bool> + 'a>;
    let calls: [(&str, Call<'_>); 8] = [
        ("acquire", Box::new(|| plain.acquire(1).map(|_| false))),
        ("try_acquire", Box::new(|| plain.try_acquire(1).map(is_none))),
        ("try_acquire_for", Box::new(|| plain.try_acquire_for(1, LONG).map(is_none))),
        ("acquire_with", Box::new(|| plain.acquire_with(1, &waiting).map(is_none))),
        ("acquire", Box::new(|| leasing.acquire().map(|_| false))),
        ("try_acquire", Box::new(|| leasing.try_acquire().map(is_none))),
        ("try_acquire_for", Box::new(|| leasing.try_acquire_for(LONG).map(is_none))),
        ("acquire_with", Box::new(|| leasing.acquire_with(2, &waiting).map(is_none))),
    ];
    for (action, call) in &calls {
        let error = call().unwrap_err();
        assert_eq!((error.kind(), error.action()), (ErrorKind::NotSetUp, *action), "{error}");
        assert_eq!(error.lock_name(), Some(&*name));
        assert!(error.to_string().contains("call try_set_permits first"), "{error}");
        assert!(!error.is_retryable() && !error.outcome_unknown(), "{error}");
    }
    assert!(plain.try_set_permits(1).unwrap());
    let permit = plain.acquire(1).unwrap();
    assert!(plain.try_acquire(1).unwrap().is_none());
    permit.unlock().unwrap();
    plain.delete().unwrap();
    assert!(leasing.try_set_permits(0).unwrap());
    assert!(leasing.try_acquire().unwrap().is_none());
});

contract!(waits_for_permits_fail_when_the_semaphore_is_deleted, needs(Counting), |store| {
    let [lock, other] = store.two("deleted", |client, name| client.get_semaphore(name));
    lock.try_set_permits(0).unwrap();
    let waiter = Waiter::on(other.clone(), move |semaphore| semaphore.acquire(1).map(drop));
    assert!(lock.delete().unwrap());
    let (answer, _) = waiter.returns_within(ms(1_200) + SLACK * 4);
    fails(answer, ErrorKind::NotSetUp);
});

contract!(no_more_permits_are_granted_than_exist, needs(Counting), |store| {
    let [lock, other] = store.two("sem", |client, name| client.get_semaphore(name));
    lock.try_set_permits(3).unwrap();
    let two = lock.acquire(2).unwrap();
    assert!(other.try_acquire(2).unwrap().is_none());
    let one = other.try_acquire(1).unwrap().unwrap();
    assert!(lock.try_acquire(1).unwrap().is_none());
    two.unlock().unwrap();
    assert_eq!(other.available_permits().unwrap(), 2);
    one.unlock().unwrap();
    assert_eq!(other.available_permits().unwrap(), 3);
});

contract!(adding_and_draining_permits_changes_the_available_count, needs(Counting), |store| {
    let semaphore = store.client().get_semaphore(fresh("sem"));
    semaphore.try_set_permits(2).unwrap();
    assert_eq!(semaphore.add_permits(3).unwrap(), 5);
    assert_eq!(semaphore.add_permits(-4).unwrap(), 1);
    assert_eq!(semaphore.add_permits(-2).unwrap(), -1);
    assert!(semaphore.try_acquire(1).unwrap().is_none());
    assert_eq!(semaphore.add_permits(4).unwrap(), 3);
    assert_eq!(semaphore.drain_permits().unwrap(), 3);
    assert_eq!(semaphore.available_permits().unwrap(), 0);
});

// In Redisson, a waiter for three permits consumes the message for a waiter for one. Our waiters must not.
contract!(a_large_request_does_not_block_a_small_one, needs(Counting), |store| {
    let [lock, other] = store.two("sem", |client, name| client.get_semaphore(name));
    lock.try_set_permits(1).unwrap();
    let permit = lock.acquire(1).unwrap();
    let greedy = Waiter::on(other.clone(), move |semaphore| semaphore.acquire(3).unwrap().unlock().unwrap());
    let modest = Waiter::on(other.clone(), move |semaphore| semaphore.acquire(1).unwrap());
    let freed = now();
    drop(permit);
    let _permit = modest.woken_since(freed);
    assert!(!greedy.is_over());
    let added = now();
    assert_eq!(lock.add_permits(3).unwrap(), 3);
    greedy.woken_since(added);
});

contract!(permit_waits_end_by_timeout_or_interrupt, needs(Counting), |store| {
    let semaphore = store.client().get_semaphore(fresh("sem"));
    semaphore.try_set_permits(0).unwrap();
    let begun = now();
    assert!(semaphore.try_acquire_for(1, ms(60)).unwrap().is_none());
    assert!(begun.elapsed() >= ms(60) && begun.elapsed() < ms(60) + slack_since(begun));
    let interrupt = Interrupt::new();
    let waiter = Waiter::on((semaphore.clone(), interrupt.clone()), move |(semaphore, interrupt)| {
        semaphore.acquire_with(1, &AcquireOptions::new().interrupt(&interrupt))
    });
    interrupt.interrupt();
    assert!(waiter.returns_within(SLACK * 2).0.unwrap_err().is_interrupted());
    semaphore.add_permits(1).unwrap();
    assert!(semaphore.try_acquire(1).unwrap().is_some(), "a waiter that gave up took permits");
});

contract!(zero_permits_are_refused, needs(Counting), |store| {
    let client = store.client();
    fails(client.get_semaphore("none").acquire(0), ErrorKind::InvalidInput);
    let semaphore = client.get_expirable_semaphore("none");
    fails(semaphore.acquire_with(0, &AcquireOptions::new().wait(ms(1))), ErrorKind::InvalidInput);
    fails(semaphore.release("no id"), ErrorKind::InvalidInput);
});

contract!(a_permit_without_an_explicit_lease_is_renewed, needs(Counting), |store| {
    let client = store.client_with_lease(RENEWED);
    let name = fresh("permits");
    let semaphore = client.get_expirable_semaphore(&name);
    semaphore.try_set_permits(1).unwrap();
    let permit = semaphore.acquire().unwrap();
    let other = store.client().get_expirable_semaphore(&name);
    throughout(RENEWED + ms(200), || other.try_acquire().unwrap().is_none());
    permit.check().unwrap();
    permit.unlock().unwrap();
    assert_eq!(other.available_permits().unwrap(), 1);
});

contract!(a_permit_can_be_released_by_its_id, needs(Counting), |store| {
    let (client, operator) = (store.client_with_lease(ms(3_000)), store.client());
    let name = fresh("permits");
    let semaphore = client.get_expirable_semaphore(&name);
    semaphore.try_set_permits(1).unwrap();
    let permit = semaphore.acquire().unwrap();
    let ids = permit.ids();
    assert_eq!((ids.len(), ids[0].len()), (1, 32));
    let lost = permit.lost();
    let foreign = operator.get_expirable_semaphore(&name);
    assert!(foreign.release(&ids[0]).unwrap());
    assert!(!foreign.release(&ids[0]).unwrap());
    assert_eq!(foreign.available_permits().unwrap(), 1);
    assert_eq!(receive(&lost, ms(1_000) + SLACK).unwrap().reason, LossReason::Gone);
});

contract!(several_permits_are_acquired_all_or_none, needs(Counting), |store| {
    let semaphore = store.client().get_expirable_semaphore(fresh("permits"));
    semaphore.try_set_permits(3).unwrap();
    let two = semaphore.acquire_with(2, &AcquireOptions::new().wait(ms(1))).unwrap().unwrap();
    let mut ids = two.ids();
    ids.dedup();
    assert_eq!(ids.len(), 2);
    assert!(semaphore.acquire_with(2, &AcquireOptions::new().wait(ms(1))).unwrap().is_none());
    assert_eq!(semaphore.available_permits().unwrap(), 1);
    two.unlock().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 3);
});

contract!(a_semaphore_set_up_with_a_lease_ends_with_that_lease, needs(Counting), |store| {
    let semaphore = store.client().get_semaphore(fresh("sem"));
    assert!(semaphore.try_set_permits_with_lease(2, ms(2_000)).unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 2);
    comes_true_within(ms(2_000) + SLACK, || semaphore.available_permits().unwrap() == 0);
    assert!(semaphore.try_set_permits(1).unwrap());
});

contract!(releasing_permits_does_not_recreate_a_deleted_semaphore, needs(Counting), |store| {
    let (name, [client, operator]) = store.clients("deleted");
    let semaphore = client.get_semaphore(&name);
    semaphore.try_set_permits(3).unwrap();
    let (unlocked, dropped) = (semaphore.acquire(1).unwrap(), semaphore.acquire(1).unwrap());
    assert!(operator.get_semaphore(&name).delete().unwrap());
    unlocked.unlock().unwrap();
    drop(dropped);
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    assert!(semaphore.try_set_permits(1).unwrap(), "the semaphore was set up again");
    let name = fresh("deleted");
    let semaphore = client.get_expirable_semaphore(&name);
    semaphore.try_set_permits(3).unwrap();
    let (unlocked, over) =
        (semaphore.acquire().unwrap(), semaphore.acquire_with(1, &leased(ms(30))).unwrap().unwrap());
    assert!(operator.get_expirable_semaphore(&name).delete().unwrap());
    drop(unlocked.unlock()); // the hold is lost or has already expired
    comes_true_within(SLACK, || over.state() == HoldState::Lost);
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    assert!(semaphore.try_set_permits(1).unwrap(), "the semaphore was set up again");
});

contract!(releasing_without_an_acquire_adds_permits, needs(Counting), |store| {
    let semaphore = store.client().get_semaphore(fresh("given"));
    semaphore.release(2).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 2);
    semaphore.acquire(2).unwrap().unlock().unwrap();
    assert!(!semaphore.try_set_permits(9).unwrap());
    semaphore.acquire(2).unwrap().forget();
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    semaphore.release(1).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 1, "a release did not create the semaphore");
});

contract!(javas_maximum_permit_count_can_be_acquired, needs(Counting), |store| {
    const MOST: u32 = i32::MAX.unsigned_abs();
    let (name, [client, other]) = store.clients("max");
    assert!(client.get_semaphore(&name).try_set_permits(MOST).unwrap());
    let all = client.get_semaphore(&name).acquire(MOST).unwrap();
    let waiter = Waiter::on(other.get_semaphore(&name), move |semaphore| {
        semaphore.acquire(1).unwrap().unlock().unwrap()
    });
    all.unlock().unwrap();
    waiter.returns_within(SLACK * 4);
    assert_eq!(other.get_semaphore(&name).available_permits().unwrap(), i64::from(MOST));
});

contract!(the_id_of_an_expired_permit_releases_nothing, needs(Counting), |store| {
    let semaphore = store.client().get_expirable_semaphore(fresh("over"));
    semaphore.try_set_permits(1).unwrap();
    let permit = semaphore.acquire_with(1, &leased(ms(30))).unwrap().unwrap();
    let id = permit.ids().remove(0);
    let begun = now();
    comes_true_within(SLACK, || permit.state() == HoldState::Lost && begun.elapsed() > ms(35));
    assert!(!semaphore.release(&id).unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 1, "the expired permit did not come back once");
});

contract!(many_threads_never_hold_too_many_permits, needs(Counting), |store| {
    let (name, clients) = store.clients::<3>("crowd");
    clients[0].get_semaphore(&name).try_set_permits(3).unwrap();
    let (inside, begun) = (AtomicU32::new(0), now());
    side_by_side(0..12, |number| {
        let semaphore = clients[number % 3].get_semaphore(&name);
        let units = 1 + number as u32 % 2;
        for _ in 0..15 {
            let permit = semaphore.try_acquire_for(units, LONG).unwrap().unwrap();
            assert!(inside.fetch_add(units, Ordering::SeqCst) + units <= 3);
            inside.fetch_sub(units, Ordering::SeqCst);
            drop(permit);
        }
    });
    comes_true_within(SLACK, || clients[1].get_semaphore(&name).available_permits().unwrap() == 3);
    // If wake-ups were often lost, many of the 180 acquires would wait up to a second for a safety poll.
    assert!(begun.elapsed() < Duration::from_secs(3) + slack_since(begun), "{:?}", begun.elapsed());
});

contract!(inspection_follows_permits_taken_and_returned, needs(Counting), |store| {
    let (name, [client, other]) = store.clients("shown");
    let semaphore = client.get_semaphore(&name);
    semaphore.try_set_permits(2).unwrap();
    let permit = semaphore.acquire(1).unwrap();
    let seen = other.inspect(&name).unwrap();
    // In Redis a semaphore and a latch are just a number. They look alike, unless it is 0 or a client waits.
    assert!(matches!(seen.kind, ObjectKind::Semaphore | ObjectKind::Counter), "{seen}");
    assert_eq!((seen.count, seen.permits_out, seen.remaining), (Some(1), 0, Some(Duration::MAX)));
    let last = semaphore.acquire(1).unwrap();
    let seen = other.inspect(&name).unwrap();
    assert_eq!((&seen.kind, seen.count), (&ObjectKind::Semaphore, Some(0)));
    assert!(seen.to_string().contains("0 to be had"), "{seen}");
    permit.unlock().unwrap();
    last.unlock().unwrap();
    assert_eq!(other.inspect(&name).unwrap().count, Some(2));
});

contract!(inspection_shows_leased_permits_until_they_end, needs(Counting), |store| {
    let (name, [client, other]) = store.clients("shown");
    client.get_expirable_semaphore(&name).try_set_permits(3).unwrap();
    let long = client.get_expirable_semaphore(&name).acquire_with(1, &leased(ms(20_000))).unwrap().unwrap();
    let short = other.get_expirable_semaphore(&name).acquire_with(1, &leased(ms(5_000))).unwrap().unwrap();
    let seen = client.inspect(&name).unwrap();
    assert_eq!(
        (&seen.kind, seen.count, seen.permits_out),
        (&ObjectKind::ExpirableSemaphore, Some(1), 2),
        "{seen}"
    );
    let out: Vec<_> = seen.permits.iter().map(|permit| (permit.id.clone(), permit.by_this_client)).collect();
    let expected = [(short.ids().remove(0), false), (long.ids().remove(0), true)];
    assert_eq!(out, expected, "the permits are not ordered by their ends");
    assert!(seen.permits.iter().all(|permit| permit.remaining <= ms(20_000)), "{seen}");
    short.unlock().unwrap();
    long.unlock().unwrap();
    let over = client.get_expirable_semaphore(&name).acquire_with(1, &leased(ms(2_000))).unwrap().unwrap();
    assert_eq!(other.inspect(&name).unwrap().permits_out, 1);
    comes_true_within(LONG, || other.inspect(&name).unwrap().permits_out == 0);
    assert_eq!(other.inspect(&name).unwrap().count, Some(3));
    drop(over);
});

contract!(release_if_exists_makes_no_semaphore, needs(Counting), |store| {
    let [semaphore, other] = store.two("sem", |client, name| client.get_semaphore(name));
    assert!(!semaphore.release_if_exists(3).unwrap());
    assert!(semaphore.try_set_permits(1).unwrap(), "release_if_exists created the semaphore");
    let waiter = Waiter::on(other.clone(), move |semaphore| semaphore.acquire(3).unwrap().forget());
    let added = now();
    assert!(semaphore.release_if_exists(2).unwrap());
    waiter.woken_since(added);
    assert_eq!(semaphore.available_permits().unwrap(), 0);
});

contract!(several_permits_return_when_their_lease_ends, needs(Counting), |store| {
    let [semaphore, other] = store.two("permits", |client, name| client.get_expirable_semaphore(name));
    semaphore.try_set_permits(3).unwrap();
    let lease = ms(2_000); // long enough for several requests
    let taken = now();
    let leased = semaphore.acquire_with(2, &leased(lease)).unwrap().unwrap();
    let once = AcquireOptions::new().wait(Duration::ZERO);
    assert!(semaphore.acquire_with(2, &once).unwrap().is_none());
    fails(semaphore.acquire_with(1_001, &once), ErrorKind::InvalidInput);
    let many = vec!["0".repeat(32); 1_001];
    fails(semaphore.release_many(&many), ErrorKind::InvalidInput);
    assert!(semaphore.acquire_with(2, &AcquireOptions::new().wait(ms(1)).lease(ms(300))).unwrap().is_none());
    let waiter = Waiter::on(other.clone(), move |semaphore| {
        semaphore.acquire_with(3, &AcquireOptions::new()).unwrap().unwrap()
    });
    let (all, returned) = waiter.returns_within(lease + SLACK * 4);
    let after = returned.duration_since(taken);
    assert!(after >= lease - ms(5) && after < lease + ms(50) + slack_since(taken), "{after:?}");
    assert_eq!((all.ids().len(), leased.state()), (3, HoldState::Lost));
    assert!(leased.unlock().is_err());
    assert_eq!(other.available_permits().unwrap(), 0);
    let interrupt = Interrupt::new();
    let waiter = Waiter::on((semaphore.clone(), interrupt.clone()), move |(semaphore, interrupt)| {
        semaphore.acquire_with(1, &AcquireOptions::new().interrupt(&interrupt))
    });
    interrupt.interrupt();
    assert!(waiter.returns_within(SLACK * 2).0.unwrap_err().is_interrupted());
    all.unlock().unwrap();
    assert_eq!(semaphore.acquire_with(3, &once).unwrap().unwrap().ids().len(), 3);
});

contract!(permits_are_released_by_id_all_or_none, needs(Counting), |store| {
    let [semaphore, foreign] = store.two("permits", |client, name| client.get_expirable_semaphore(name));
    semaphore.try_set_permits(4).unwrap();
    let three = semaphore.acquire_with(3, &AcquireOptions::new()).unwrap().unwrap();
    let short = semaphore.acquire_with(1, &leased(ms(20))).unwrap().unwrap();
    let ids = three.ids();
    let unknown = "0".repeat(32);
    assert!(!foreign.release_many(&[ids[0].as_str(), &unknown]).unwrap());
    comes_true_within(SLACK, || foreign.remaining_lease(&short.ids()[0]).unwrap().is_none());
    assert!(!foreign.release_many(&[ids[0].clone(), short.ids()[0].clone()]).unwrap());
    assert_eq!((foreign.acquired_permits().unwrap(), foreign.available_permits().unwrap()), (3, 1));
    assert!(foreign.release_many(&[&ids[0], &ids[1], &ids[0]]).unwrap());
    assert_eq!((foreign.acquired_permits().unwrap(), foreign.available_permits().unwrap()), (1, 3));
    assert!(!foreign.release_many(&ids).unwrap());
    fails(foreign.release_many(&[""; 0]), ErrorKind::InvalidInput);
    fails(foreign.release_many(&["no id"]), ErrorKind::InvalidInput);
    assert!(three.unlock().is_err());
    assert_eq!(foreign.available_permits().unwrap(), 4, "the other permits were not released");
});

contract!(leases_of_permits_are_read_and_changed_by_id, needs(Counting), |store| {
    let [semaphore, foreign] = store.two("permits", |client, name| client.get_expirable_semaphore(name));
    semaphore.try_set_permits(1).unwrap();
    let permit = semaphore.acquire_with(1, &leased(ms(60_000))).unwrap().unwrap();
    let id = permit.ids().remove(0);
    let left = || foreign.remaining_lease(&id).unwrap();
    let seconds = Duration::from_secs;
    assert!(left().unwrap() > seconds(50) && left().unwrap() <= seconds(60));
    assert!(foreign.update_lease_time(&id, seconds(600)).unwrap());
    assert!(left().unwrap() > seconds(590));
    let waiter = Waiter::on(foreign.clone(), move |foreign| foreign.acquire().unwrap());
    let cut = now();
    assert!(foreign.update_lease_time(&id, ms(50)).unwrap());
    // An expired permit causes no message, so the waiter may find the permit only by its safety poll.
    let (_, returned) = waiter.returns_within(ms(1_300) + SLACK);
    assert!(returned.duration_since(cut) >= ms(49));
    assert_eq!(left(), None);
    assert!(!foreign.update_lease_time(&id, seconds(1)).unwrap());
    fails(foreign.update_lease_time(&id, Duration::ZERO), ErrorKind::InvalidInput);
    fails(foreign.update_lease_time("", seconds(1)), ErrorKind::InvalidInput);
    fails(foreign.remaining_lease("?"), ErrorKind::InvalidInput);
});

contract!(the_permit_count_can_change_while_permits_are_held, needs(Counting), |store| {
    let [semaphore, other] = store.two("permits", |client, name| client.get_expirable_semaphore(name));
    let counts = || {
        let foreign = other.clone();
        let (all, out) = (foreign.permits().unwrap(), foreign.acquired_permits().unwrap());
        (all, out, foreign.available_permits().unwrap())
    };
    assert_eq!(counts(), (0, 0, 0));
    assert_eq!(semaphore.set_permits(2).unwrap(), 2);
    assert!(!semaphore.try_set_permits(9).unwrap());
    let two = semaphore.acquire_with(2, &AcquireOptions::new()).unwrap().unwrap();
    assert_eq!(counts(), (2, 2, 0));
    let waiter = Waiter::on(other.clone(), move |foreign| foreign.acquire().unwrap());
    let raised = now();
    assert_eq!(semaphore.set_permits(5).unwrap(), 3);
    let third = waiter.woken_since(raised);
    assert_eq!(counts(), (5, 3, 2));
    assert_eq!(semaphore.set_permits(1).unwrap(), -2);
    assert_eq!(counts(), (1, 3, -2));
    two.unlock().unwrap();
    assert_eq!(counts(), (1, 1, 0));
    assert!(semaphore.try_acquire().unwrap().is_none());
    third.unlock().unwrap();
    assert_eq!(counts(), (1, 0, 1));
});

// A notified client that stalls for a few milliseconds loses its turn, so stalls excuse a wrong order.
contract!(returned_permits_go_to_waiters_in_order, needs(Counting), |store| {
    let name = fresh("order");
    let holder = store.client().get_semaphore(&name);
    holder.try_set_permits(1).unwrap();
    let held = holder.acquire(1).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = (0..6)
        .map(|at| {
            let (semaphore, order) = (store.client().get_semaphore(&name), Arc::clone(&order));
            let waiter = Waiter::start(move || {
                let permit = semaphore.acquire(1).unwrap();
                order.lock().unwrap().push(at);
                permit.unlock().unwrap();
            });
            waiter.settle();
            waiter
        })
        .collect();
    let begun = now();
    held.unlock().unwrap();
    all_return(waiters, SLACK * 4);
    let order = order.lock().unwrap();
    assert!(order.is_sorted() || stalled_since(begun) > ms(5), "{order:?}");
});
