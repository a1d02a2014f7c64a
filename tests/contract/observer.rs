//! Being told what happens to the locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::crossbeam_channel::{Receiver, Sender, unbounded};
use leasehold::{Error, Loss, LossReason, Observer, Owner};

use super::harness::{Store, fresh};
use crate::support::{
    Holding, RENEWED, SLACK, Waiter, elsewhere, ms, now, quiet_panic, receive, slack_since, throughout,
};

contracts!(
    grants_and_releases_are_observed_and_reentries_are_not,
    the_time_and_the_attempts_of_a_wait_are_observed,
    attempts_that_got_nothing_are_not_observed_as_grants,
    a_loss_is_observed_once,
    the_end_of_a_longest_hold_is_observed_when_it_comes,
    a_thread_that_ended_with_the_lock_is_observed_once,
    a_panicking_observer_harms_nothing,
);

#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    Acquired { name: String, owner: Owner, waited: Duration, attempts: u32 },
    Released { name: String, owner: Owner, held: Duration },
    Lost(Loss),
    Abandoned { name: String, owner: Owner },
    Trouble(String),
}

/// Sends on what it is told.
pub(crate) struct Teller(Sender<Seen>);

impl Teller {
    pub(crate) fn new() -> (Teller, Receiver<Seen>) {
        let (sender, seen) = unbounded();
        (Teller(sender), seen)
    }

    fn tell(&self, seen: Seen) {
        self.0.send(seen).ok();
    }
}

impl Observer for Teller {
    fn acquired(&self, name: &str, owner: Owner, waited: Duration, attempts: u32) {
        self.tell(Seen::Acquired { name: name.to_owned(), owner, waited, attempts });
    }
    fn released(&self, name: &str, owner: Owner, held: Duration) {
        self.tell(Seen::Released { name: name.to_owned(), owner, held });
    }
    fn release_failed(&self, name: &str, error: &Error) {
        self.tell(Seen::Trouble(format!("release of {name}: {error}")));
    }
    fn renewal_failed(&self, name: &str, error: &Error, _: Duration) {
        self.tell(Seen::Trouble(format!("renewal of {name}: {error}")));
    }
    fn lost(&self, loss: &Loss) {
        self.tell(Seen::Lost(loss.clone()));
    }
    fn abandoned(&self, name: &str, owner: Owner) {
        self.tell(Seen::Abandoned { name: name.to_owned(), owner });
    }
}

fn grants_and_releases_are_observed_and_reentries_are_not(store: &Store) {
    let (teller, seen) = Teller::new();
    let client = store.client_with(|options| options.observer(teller));
    for kind in &store.kinds {
        let lock = (kind.make)(&client, &fresh(kind.label));
        let begun = now();
        let guard = lock.acquire().unwrap();
        let inner = kind.traits.reentrant.then(|| lock.acquire().unwrap());
        match seen.try_recv().expect("told before the call returns") {
            Seen::Acquired { name, owner, waited, attempts } => {
                assert_eq!((name.as_str(), owner, attempts), (lock.name(), guard.owner(), 1));
                assert!(waited <= begun.elapsed());
            }
            other => panic!("{other:?}"),
        }
        drop(inner);
        let owner = guard.owner();
        drop(guard);
        match receive(&seen, SLACK).expect("told of the release") {
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
}

fn the_time_and_the_attempts_of_a_wait_are_observed(store: &Store) {
    let (teller, seen) = Teller::new();
    let (client, stranger) = (store.client_with(|options| options.observer(teller)), store.client());
    let name = fresh("wait");
    let held = Holding::take(&stranger.lock(&name));
    let lock = client.lock(&name);
    let begun = now();
    let waiter = Waiter::start(move || lock.lock().and_then(|()| lock.unlock()));
    held.release();
    waiter.returns_within(crate::support::LONG).0.unwrap();
    let Seen::Acquired { waited, attempts, .. } = seen.recv().unwrap() else { panic!("not told first") };
    // It was seen asleep for 20 ms.
    assert!(waited >= ms(20) && waited <= begun.elapsed(), "{waited:?}");
    // Each of up to five subscriptions that comes up is a reason to look. In a store that wakes nobody, so is each poll.
    let polls = if store.kinds[0].traits.wakes { 0 } else { u32::try_from(waited.as_millis() / 5).unwrap() };
    assert!((2..=9 + polls).contains(&attempts), "waiting is not polling: {attempts} attempts in {waited:?}");
}

fn attempts_that_got_nothing_are_not_observed_as_grants(store: &Store) {
    let (teller, seen) = Teller::new();
    let (client, stranger) = (store.client_with(|options| options.observer(teller)), store.client());
    let name = fresh("busy");
    let held = Holding::take(&stranger.lock(&name));
    assert!(!client.lock(&name).try_lock().unwrap());
    assert!(!client.lock(&name).try_lock_for(ms(20)).unwrap());
    assert!(client.lock(&name).unlock().is_err());
    assert!(client.lock(&name).lock_with_lease(Duration::ZERO).is_err());
    held.release();
    assert!(seen.is_empty(), "{:?}", seen.try_recv());
}

fn a_loss_is_observed_once(store: &Store) {
    let (teller, seen) = Teller::new();
    let (client, operator) =
        (store.client_with(|options| options.observer(teller).lease(RENEWED)), store.client());
    let name = fresh("lost");
    let guard = client.lock(&name).acquire().unwrap();
    assert!(matches!(seen.recv().unwrap(), Seen::Acquired { .. }));
    assert!(operator.lock(&name).force_unlock().unwrap());
    let expected = |reason, owner| move |seen: Seen| matches!(seen, Seen::Lost(loss) if loss.reason == reason && loss.owner == owner);
    assert!(expected(LossReason::Gone, guard.owner())(receive(&seen, RENEWED / 3 + SLACK).unwrap()));
    assert!(guard.unlock().is_err());
    let leased = client.lock(&name).acquire_with_lease(ms(60)).unwrap();
    assert!(matches!(seen.recv().unwrap(), Seen::Acquired { .. }));
    // Nobody asks: the watchdog's next look tells, a third of the client's lease later at most.
    assert!(expected(LossReason::Expired, leased.owner())(
        receive(&seen, ms(60) + RENEWED / 3 + SLACK).unwrap()
    ));
    drop(leased);
    throughout(ms(200), || seen.is_empty());
}

fn a_thread_that_ended_with_the_lock_is_observed_once(store: &Store) {
    let lease = ms(400);
    let (teller, seen) = Teller::new();
    let client = store.client_with(|options| options.observer(teller).lease(lease));
    let name = fresh("abandoned");
    for take in [
        |lock: &leasehold::RedisLock| lock.lock(),
        |lock: &leasehold::RedisLock| lock.lock_with_lease(ms(400)),
    ] {
        let lock = client.lock(&name);
        let owner = elsewhere(|| {
            take(&lock).unwrap();
            client.current_owner()
        });
        let ended = now();
        assert!(matches!(seen.recv().unwrap(), Seen::Acquired { owner: by, .. } if by == owner));
        let told = receive(&seen, lease + SLACK).expect("told of the thread's end");
        assert_eq!(told, Seen::Abandoned { name: name.clone(), owner });
        assert!(ended.elapsed() <= lease + slack_since(ended));
        // Its hold then ends as any that is not renewed, and that is the last of it.
        let told = receive(&seen, lease + SLACK).expect("told of the loss");
        assert!(matches!(&told, Seen::Lost(loss) if loss.owner == owner), "{told:?}");
        crate::support::comes_true_within(store.freed_within(lease) + SLACK, || !lock.is_locked().unwrap());
        assert!(seen.is_empty(), "{:?}", seen.try_recv());
    }
}

fn a_panicking_observer_harms_nothing(store: &Store) {
    struct Panics(Arc<AtomicBool>);
    impl Panics {
        fn now(&self) -> ! {
            self.0.store(true, Ordering::SeqCst);
            quiet_panic()
        }
    }
    impl Observer for Panics {
        fn acquired(&self, _: &str, _: Owner, _: Duration, _: u32) {
            self.now();
        }
        fn released(&self, _: &str, _: Owner, _: Duration) {
            self.now();
        }
        fn lost(&self, _: &Loss) {
            self.now();
        }
        fn abandoned(&self, _: &str, _: Owner) {
            self.now();
        }
    }
    let was_told = Arc::new(AtomicBool::new(false));
    let client = store.client_with(|options| options.observer(Panics(Arc::clone(&was_told))).lease(RENEWED));
    let lock = client.lock(&fresh("panics"));
    lock.lock().unwrap();
    assert!(was_told.load(Ordering::SeqCst));
    assert_eq!(lock.hold_count().unwrap(), 1);
    lock.unlock().unwrap();
    drop(lock.acquire().unwrap());
    elsewhere(|| lock.lock_with_lease(ms(100)).unwrap());
    let lost = lock.acquire().unwrap();
    store.client().lock(lock.name()).force_unlock().unwrap();
    receive(&lost.lost(), RENEWED / 3 + SLACK).unwrap();
    drop(lost);
    // Watchdog and callbacks go on.
    let guard = lock.acquire().unwrap();
    throughout(RENEWED + ms(200), || guard.check().is_ok());
    guard.unlock().unwrap();
}

fn the_end_of_a_longest_hold_is_observed_when_it_comes(store: &Store) {
    let (teller, seen) = Teller::new();
    let client = store.client_with(|options| options.observer(teller));
    let taken = now();
    // Nobody else asks for its end, and no renewal is due before: its lease is all that it may be held.
    client.lock_with(&fresh("most")).max_hold(ms(300)).build().lock().unwrap();
    let lost = loop {
        match receive(&seen, ms(300) + SLACK * 2).unwrap() {
            Seen::Lost(loss) => break loss,
            _earlier => {}
        }
    };
    assert_eq!(lost.reason, LossReason::HeldTooLong);
    assert!(taken.elapsed() < ms(300) + slack_since(taken), "{:?}", taken.elapsed());
}
