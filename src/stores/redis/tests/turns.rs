//! Tests of wait queues of readers, writers and permits: how scripts change keys, and which messages they
//! send.

use super::prelude::*;
use crate::stores::redis::store::RedisStore;
use crate::stores::redis::tests::kinds::list;
use crate::stores::redis::tests::wait_queue::NEXT;
use crate::stores::redis::tests::wait_queue::WAIT_QUEUE;
use crate::stores::redis::tests::wait_queue::by;
use crate::stores::redis::tests::wait_queue::client;
use crate::stores::redis::tests::wait_queue::message;

const READERS: &str = "leasehold_rwlock_readers:{k}";
/// Longer than 50 ms, after which a waiting writer holds new readers back.
const LONG_MS: u64 = 100;

/// A claim of a new client that has waited for this long.
fn waits(kind: Kind, waited_ms: u64) -> Claim {
    Claim { queue_mode: QueueMode::Waits, waited: Duration::from_millis(waited_ms), ..of(kind) }
}

/// Makes an attempt, which must lead to the wait queue. Returns whether the client is first there.
fn stands(store: &RedisStore, claim: &Claim) -> bool {
    match store.attempt(claim, 1, soon()).done() {
        Attempt::InWaitQueue { watches, .. } => watches,
        other => panic!("not in the wait queue but {other:?}"),
    }
}

/// Extends a writer's reservation, so that it outlasts delays of a busy machine.
fn keep_for(server: &Server, claim: &Claim) {
    server.run(&["SET", NEXT, &client(claim), "PX", "640"]);
}

/// Gives waiting readers 20 ms * 2^`link` to enter (see `readers.lua`): a busy machine may need over 20 ms.
fn expect_for_long(server: &Server) {
    server.run(&["ZADD", READERS, "6", "link"]);
}

#[test]
fn a_long_waiting_writer_holds_later_readers_back() {
    let (server, store) = served();
    let (reader, late, writer) = (waits(Kind::Read, 0), waits(Kind::Read, 0), waits(Kind::Write, LONG_MS));
    store.attempt(&reader, 1, soon()).granted();
    assert_eq!(server.keys().len(), 2, "nobody waits");
    assert!(stands(&store, &writer));
    assert!((30_000..=60_000).contains(&server.number(&["PTTL", WAIT_QUEUE])));
    assert_eq!(busy(&store, &late), None);
    assert!((1..=6_000).contains(&server.number(&["PTTL", READERS])));
    store.attempt(&reader, 2, soon()).granted();
    let beside = take(&store, Claim { waited: Duration::MAX, ..again(&reader) });
    freed(&store, &beside);
    let mut messages = Messages::of(&server, "redisson_rwlock:{k}");
    store.leave_wait_queue(&writer, soon());
    store.attempt(&late, 1, soon()).granted();
    assert_eq!(messages.payloads(), ["1"], "no message told the readers that the writer left");

    // A writer that died or hangs blocks no client, once its place has expired.
    let silent = waits(Kind::Write, LONG_MS);
    assert!(stands(&store, &silent));
    assert_eq!(busy(&store, &again(&late)), None);
    let score = server.number(&["ZSCORE", WAIT_QUEUE, &client(&silent)]);
    let ago = (now_ms(&server) / 1_000 - 7).rem_euclid(100);
    server.run(&["ZADD", WAIT_QUEUE, &(score - score % 100 + ago).to_string(), &client(&silent)]);
    store.attempt(&again(&late), 1, soon()).granted();
    assert_eq!(server.number(&["EXISTS", WAIT_QUEUE]), 0);
}

#[test]
fn readers_and_writers_take_turns() {
    let (server, store) = served();
    let (writer, next) = (waits(Kind::Write, 0), waits(Kind::Write, LONG_MS));
    let readers = [waits(Kind::Read, 0), waits(Kind::Read, 0)];
    store.attempt(&writer, 1, soon()).granted();
    readers.iter().for_each(|reader| assert!(busy(&store, reader).is_some()));
    assert!(stands(&store, &next));
    expect_for_long(&server);
    let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
    let mut releases = Messages::of(&server, "redisson_rwlock:{k}");
    freed(&store, &writer);
    assert_eq!(messages.take(), [message(&next, "standby")]);
    assert_eq!(releases.payloads(), ["1", "0"]);
    assert!(stands(&store, &by(&next, QueueMode::InWaitQueue)), "the waiting readers come first");

    let phase = server.number(&["ZSCORE", READERS, "phase"]);
    while now_ms(&server) <= phase {}
    let waited = |reader: &Claim| Claim { waited: Duration::from_secs(1), ..reader.clone() };
    store.attempt(&waited(&readers[0]), 1, soon()).granted();
    assert_eq!(busy(&store, &waits(Kind::Read, 0)), None, "this reader came later");
    freed(&store, &readers[0]);
    assert_eq!(messages.take(), [], "another waiting reader comes first");
    store.attempt(&waited(&readers[1]), 1, soon()).granted();
    freed(&store, &readers[1]);
    assert_eq!(messages.take(), [message(&next, "next")]);
    assert_eq!(releases.payloads(), ["0", "0"], "Redisson's waiters got another message");
    keep_for(&server, &next);
    assert!(busy(&store, &waits(Kind::Read, 0)).is_some(), "the lock is not reserved for the writer");
    store.attempt(&by(&next, QueueMode::IsNext), 1, soon()).granted();
    assert_eq!(server.number(&["EXISTS", WAIT_QUEUE, NEXT]), 0);
}

#[test]
fn readers_that_stopped_attempting_delay_a_writer_only_once() {
    let (server, store) = served();
    let (writer, next) = (waits(Kind::Write, 0), waits(Kind::Write, LONG_MS));
    store.attempt(&writer, 1, soon()).granted();
    assert!(busy(&store, &waits(Kind::Read, 0)).is_some());
    assert!(stands(&store, &next));
    let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
    freed(&store, &writer);
    assert_eq!(messages.take(), [message(&next, "standby")]);
    store.attempt(&by(&writer, QueueMode::Barges), 1, soon()).granted();
    freed(&store, &writer);
    assert_eq!(messages.take(), [message(&next, "next")]);
    server.run(&["DEL", NEXT]);
    let late = take(&store, waits(Kind::Read, 0));
    assert!(stands(&store, &by(&next, QueueMode::Waits)));
    freed(&store, &late);
    assert_eq!(messages.take(), [message(&next, "next")]);
}

#[test]
fn a_writer_woken_for_a_busy_lock_keeps_its_place() {
    let (server, store) = served();
    let (first, second, reader) =
        (waits(Kind::Write, 200), waits(Kind::Write, LONG_MS), waits(Kind::Read, 0));
    store.attempt(&reader, 1, soon()).granted();
    assert!(stands(&store, &first) && !stands(&store, &second));
    let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
    freed(&store, &reader);
    assert_eq!(messages.take(), [message(&first, "next"), message(&second, "standby")]);
    server.run(&["DEL", NEXT]);
    store.attempt(&by(&waits(Kind::Write, 0), QueueMode::Barges), 1, soon()).granted();
    assert!(stands(&store, &by(&first, QueueMode::IsNext)));
    assert_eq!(list(&server, &["ZRANGE", WAIT_QUEUE, "0", "-1"]), [client(&first), client(&second)]);
}

#[test]
fn releasing_n_permits_notifies_n_clients() {
    let (server, store) = served();
    set_up(&store, Kind::Semaphore, 2);
    let holder = take(&store, Claim { units: 2, is_granted: true, ..waits(Kind::Semaphore, 0) });
    let [first, second, third] = [300, 200, 100].map(|waited| waits(Kind::Semaphore, waited));
    assert!(stands(&store, &first) && !stands(&store, &second) && !stands(&store, &third));
    let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
    let mut releases = Messages::of(&server, "redisson_sc:{k}");
    freed(&store, &holder);
    let told = [message(&first, "next"), message(&second, "next"), message(&third, "standby")];
    assert_eq!(messages.take(), told);
    assert_eq!(releases.payloads(), ["2"], "Redisson's waiters got another message");
    for claim in [&first, &second] {
        server.run(&["ZADD", NEXT, &(now_ms(&server) + 60_000).to_string(), &client(claim)]);
    }
    server.run(&["PEXPIRE", NEXT, "60000"]);
    assert!(!stands(&store, &waits(Kind::Semaphore, 0)), "a permit was not reserved");
    store.attempt(&by(&first, QueueMode::IsNext), 1, soon()).granted();
    assert!(stands(&store, &by(&third, QueueMode::InWaitQueue)));
    store.attempt(&by(&second, QueueMode::IsNext), 1, soon()).granted();
    assert_eq!(count(&store, &of(Kind::Semaphore), &Counting::Ask), Some(0));
    assert_eq!(messages.take(), []);
    assert_eq!(count(&store, &of(Kind::Semaphore), &Counting::Add(1)), Some(1));
    assert_eq!(messages.take().first(), Some(&message(&third, "next")));
}

#[test]
fn permits_too_few_for_the_first_waiter_go_to_later_ones() {
    for kind in [Kind::Semaphore, Kind::Permits] {
        let (server, store) = served();
        set_up(&store, kind, 1);
        let holder = take(&store, Claim { is_granted: true, ..waits(kind, 0) });
        let greedy = Claim { units: 3, ..waits(kind, 300) };
        let (modest, last) = (waits(kind, 200), waits(kind, 100));
        assert!(stands(&store, &greedy) && !stands(&store, &modest) && !stands(&store, &last));
        let mut messages = Messages::of(&server, "leasehold_wake:{k}:");
        freed(&store, &holder);
        assert_eq!(messages.take(), [message(&greedy, "next"), message(&modest, "standby")]);
        assert!(stands(&store, &by(&greedy, QueueMode::IsNext)), "the first client lost its reservation");
        assert_eq!(messages.take().first(), Some(&message(&modest, "next")));
        store.leave_wait_queue(&modest, soon());
        server.run(&["PING"]);
        assert!(matches!(
            store.release(&again(&holder), 0, soon()).done(),
            Release::NotHeld { .. } | Release::Freed { .. }
        ));
        let told = messages.take();
        assert!(told.contains(&message(&greedy, "next")), "{told:?}");
    }
}
