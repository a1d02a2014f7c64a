//! An interrupt ends a wait at once. The wait leaves neither a hold nor a place in the queue behind.

use crate::support::prelude::*;

contract!(an_interrupt_ends_a_wait, |store| {
    for (kind, name, [client, stranger]) in store.each() {
        for holder in [&client, &stranger] {
            let held = Holding::take(&(kind.make)(holder, &name));
            let lock = (kind.make)(&client, &name);
            let interrupt = Interrupt::new();
            let waiter = Waiter::on((lock.clone(), interrupt.clone()), move |(lock, interrupt)| {
                lock.lock_interruptibly(&interrupt)
            });
            assert!(!waiter.is_over());
            let before = now();
            interrupt.interrupt();
            let (result, ended) = waiter.returns_within(LONG);
            let error = result.unwrap_err();
            assert!(error.is_interrupted() && error.kind() == ErrorKind::Interrupted, "{error}");
            assert!(!error.is_lost() && !error.is_not_held() && !error.is_retryable());
            assert_eq!((error.lock_name(), error.action()), (Some(lock.name()), "lock_interruptibly"));
            assert!(
                ended.duration_since(before) <= slack_since(before),
                "{:?}",
                ended.duration_since(before)
            );
            held.release();
        }
    }
});

contract!(an_interrupted_wait_leaves_nothing_held_or_renewed, |store| {
    let name = fresh("nothing");
    let (client, stranger) = (store.client_with_lease(ms(3_000)), store.client());
    for holder in [&client, &stranger] {
        let held = Holding::take(&holder.get_lock(&name));
        let lock = client.get_lock(&name);
        let interrupt = Interrupt::new();
        let waiter = Waiter::on((lock.clone(), interrupt.clone()), move |(lock, interrupt)| {
            let ended =
                lock.acquire_with(&AcquireOptions::new().interrupt(&interrupt)).map(drop).unwrap_err();
            (ended.is_interrupted(), lock.hold_count().unwrap())
        });
        interrupt.interrupt();
        assert_eq!(waiter.returns_within(LONG).0, (true, 0));
        held.release();
        // The watch is longer than a third of the lease, so a renewal of a hold left behind would show too.
        throughout(ms(1_200), || !lock.is_locked().unwrap());
    }
});

contract!(an_interrupted_waiter_does_not_delay_the_next_waiter, |store| {
    let (name, [client, stranger]) = store.clients("place");
    for holder in [&client, &stranger] {
        let held = Holding::take(&holder.get_lock(&name));
        let interrupt = Interrupt::new();
        let [first, second] = [(); 2].map(|()| {
            let (lock, interrupt) = (client.get_lock(&name), interrupt.clone());
            Waiter::start(move || lock.lock_interruptibly(&interrupt).is_err())
        });
        let next = Waiter::start(turn(client.get_lock(&name)));
        interrupt.interrupt();
        assert!(first.returns_within(SLACK).0 && second.returns_within(SLACK).0);
        let released = held.release();
        let (had, _) = next.returns_within(LONG);
        assert!(had.duration_since(released) <= ms(50) + slack_since(released));
    }
});

contract!(an_interrupted_call_does_not_acquire_even_a_free_lock, |store| {
    for (kind, name, [client, stranger]) in store.each() {
        let lock = (kind.make)(&client, &name);
        let interrupt = Interrupt::new();
        interrupt.interrupt();
        assert!(interrupt.is_interrupted());
        assert!(lock.lock_interruptibly(&interrupt).unwrap_err().is_interrupted());
        assert!(
            lock.acquire_with(&AcquireOptions::new().interrupt(&interrupt)).unwrap_err().is_interrupted()
        );
        assert!(!lock.is_locked().unwrap());
        let held = Holding::take(&(kind.make)(&stranger, &name));
        let begun = now();
        assert!(lock.lock_interruptibly(&interrupt).unwrap_err().is_interrupted());
        assert!(begun.elapsed() < slack_since(begun));
        held.release();
        assert!(lock.try_lock().unwrap());
        // As in Java, `lock_interruptibly` checks the interrupt even before it re-enters.
        assert!(lock.lock_interruptibly(&interrupt).unwrap_err().is_interrupted(), "{}", kind.label);
        assert_eq!(lock.hold_count().unwrap(), 1, "{}", kind.label);
        lock.unlock().unwrap();
    }
});
