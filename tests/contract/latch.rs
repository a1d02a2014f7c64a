//! A latch opens for all waiters when its count reaches zero.

use leasehold::{Interrupt, ObjectKind};

use crate::support::{LONG, SLACK, Waiter, comes_true_within, fresh, ms, now, slack_since, throughout};

contract!(a_latch_that_was_never_set_up_is_open, needs(Counting), |store| {
    let latch = store.client().get_count_down_latch(fresh("latch"));
    latch.wait().unwrap();
    assert!(latch.wait_for(ms(0)).unwrap());
    assert_eq!(latch.count().unwrap(), 0);
    assert_eq!(latch.count_down().unwrap(), 0);
});

contract!(the_last_count_down_opens_the_latch_for_all_waiters, needs(Counting), |store| {
    let (name, clients) = store.clients::<2>("latch");
    let latch = store.client().get_count_down_latch(&name);
    assert!(latch.try_set_count(3).unwrap());
    assert!(!latch.try_set_count(9).unwrap());
    let waiters: Vec<_> = (0..6)
        .map(|at| {
            let latch = clients[at % 2].get_count_down_latch(&name);
            Waiter::start(move || latch.wait().unwrap())
        })
        .collect();
    assert_eq!(latch.count_down().unwrap(), 2);
    assert_eq!(clients[0].get_count_down_latch(&name).count_down().unwrap(), 1);
    throughout(ms(30), || waiters.iter().all(|waiter| !waiter.is_over()));
    let opened = now();
    assert_eq!(latch.count_down().unwrap(), 0);
    for waiter in waiters {
        waiter.woken_since(opened);
    }
});

contract!(a_latch_count_never_goes_below_zero, needs(Counting), |store| {
    let latch = store.client().get_count_down_latch(fresh("latch"));
    latch.try_set_count(1).unwrap();
    assert_eq!(latch.count_down().unwrap(), 0);
    assert_eq!(latch.count_down().unwrap(), 0);
    assert_eq!(latch.count().unwrap(), 0);
    assert!(latch.try_set_count(1).unwrap());
});

contract!(latch_waits_end_by_timeout_or_interrupt, needs(Counting), |store| {
    let latch = store.client().get_count_down_latch(fresh("latch"));
    latch.try_set_count(1).unwrap();
    let begun = now();
    assert!(!latch.wait_for(ms(60)).unwrap());
    assert!(begun.elapsed() >= ms(60) && begun.elapsed() < ms(60) + slack_since(begun));
    let interrupt = Interrupt::new();
    let waiter = Waiter::on((latch.clone(), interrupt.clone()), move |(latch, interrupt)| {
        latch.wait_interruptibly(&interrupt)
    });
    interrupt.interrupt();
    assert!(waiter.returns_within(SLACK * 2).0.unwrap_err().is_interrupted());
    assert_eq!(latch.count().unwrap(), 1);
});

// In Redisson, waiters stay asleep when somebody deletes the latch. Here the deletion wakes them.
contract!(a_latch_that_is_deleted_opens, needs(Counting), |store| {
    let [lock, other] = store.two("latch", |client, name| client.get_count_down_latch(name));
    lock.try_set_count(5).unwrap();
    let waiter = Waiter::on(other.clone(), move |latch| latch.wait().unwrap());
    let deleted = now();
    assert!(lock.delete().unwrap());
    waiter.woken_since(deleted);
});

contract!(a_latch_can_be_set_up_again_once_open, needs(Counting), |store| {
    let latch = store.client().get_count_down_latch(fresh("latch"));
    for _ in 0..3 {
        assert!(latch.try_set_count(1).unwrap());
        assert!(!latch.wait_for(ms(5)).unwrap());
        latch.count_down().unwrap();
        assert!(latch.wait_for(ms(5)).unwrap());
    }
});

contract!(a_latch_set_up_with_zero_is_open, needs(Counting), |store| {
    let latch = store.client().get_count_down_latch(fresh("latch"));
    assert!(latch.try_set_count(0).unwrap());
    latch.wait().unwrap();
    assert!(!latch.delete().unwrap(), "a latch whose count is zero still exists");
    assert!(latch.try_set_count(0).unwrap());
    assert!(latch.try_set_count(2).unwrap());
    assert!(!latch.try_set_count(0).unwrap());
    assert_eq!(latch.count().unwrap(), 2);
});

contract!(a_latch_is_shown_with_its_count, needs(Counting), |store| {
    let (name, [client, other]) = store.clients("latch");
    let latch = client.get_count_down_latch(&name);
    latch.try_set_count(2).unwrap();
    let seen = other.inspect(&name).unwrap();
    // A store that keeps only a number can tell a latch from a semaphore only while somebody waits.
    assert!(matches!(seen.kind, ObjectKind::CountDownLatch | ObjectKind::Counter), "{seen}");
    assert_eq!((seen.count, seen.is_held()), (Some(2), false));
    let waiter = Waiter::on(latch.clone(), move |latch| latch.wait().unwrap());
    comes_true_within(LONG, || other.inspect(&name).unwrap().kind == ObjectKind::CountDownLatch);
    latch.count_down().unwrap();
    let seen = other.inspect(&name).unwrap();
    assert_eq!((seen.count, seen.listeners), (Some(1), Some(1)), "{seen}");
    assert!(seen.to_string().contains("1 to go"), "{seen}");
    latch.count_down().unwrap();
    waiter.returns_within(SLACK * 4);
    assert_eq!(other.inspect(&name).unwrap().kind, ObjectKind::Absent);
});
