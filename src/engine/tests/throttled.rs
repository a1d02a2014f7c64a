//! Waiters of what is shared, whom messages wake with the wake probability.

use super::*;

const LIMIT: Duration = Duration::from_secs(1);
/// The time that an ask takes of late.
const ASK: Duration = Duration::from_millis(50);

/// A waiter finds the lock busy `after` the call, and a message comes before it knows. All its asks before
/// were in vain, so that a message is hardly ever reason to ask. The clock stands from then on. Whether the
/// waiter asks all the same.
fn asks_at_a_message(queues_all: bool, after: Duration) -> bool {
    let channel = Arc::new(Channel::new("a", true));
    let asked = Subscription::new(Arc::clone(&channel), Arc::new(Standing), &Waker::default());
    (0..60).for_each(|_| asked.note_asked(false, ASK));
    let store = Arc::new(Odd { channel: Some(Arc::clone(&channel)), queues_all, ..Odd::default() });
    let clock = ManualClock::new();
    let (engine, name) = (engine(&store, &Clock::Manual(clock.clone())), name());
    let ((is_told, told), later) = (bounded(1), clock.clone());
    store.attempting.lock().push_back(Box::new(move || {
        later.advance(after);
        channel.take(b"0");
        is_told.send(()).unwrap();
        Ok(Attempt::Busy { retry_after: None })
    }));
    let limit = WaitLimit::Deadline(engine.clock.after(LIMIT));
    let (ends, ended) = bounded(1);
    let asks = thread::scope(|scope| {
        let wait = || ends.send(acquire_as(Kind::Write, &engine, &name, limit, Lease::Renewed)).unwrap();
        thread::Builder::new().spawn_scoped(scope, wait).unwrap();
        told.recv_timeout(Duration::from_secs(10)).unwrap();
        let ended = ended.recv_timeout(Duration::from_secs(10));
        // For one that sleeps on.
        clock.advance(LIMIT);
        ended.is_ok_and(|granted| granted.unwrap().is_some())
    });
    drop(engine.shutdown());
    asks
}

#[test]
fn an_ending_timed_wait_asks_after_a_message() {
    assert!(asks_at_a_message(false, LIMIT - ASK / 2));
}

#[test]
fn a_store_queues_message_is_never_throttled() {
    assert!(asks_at_a_message(true, Duration::ZERO));
}
