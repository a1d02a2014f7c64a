//! Tests of the memory store, mostly of the order of readers and writers, with a manual clock.

use std::time::Duration;

use crate::seam::capabilities::WaitQueues;
use crate::seam::{Attempt, Claim, Kind, QueueMode, Release, Store};
use crate::stores::memory::{MemoryAccess, MemoryStore};
use crate::time::{ManualClock, Moment};
use crate::{Interrupt, LockClient};

const SHORT: Duration = Duration::from_millis(49);

fn waits(kind: Kind) -> Claim {
    let claim = crate::tests::claim(kind, "a", Duration::from_secs(30));
    Claim { waits: true, queue_mode: QueueMode::Waits, ..claim }
}

fn store() -> (ManualClock, MemoryAccess) {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone()).open();
    (clock, store)
}

fn is_granted(store: &MemoryAccess, claim: &Claim) -> bool {
    matches!(store.attempt(claim, 1, Moment::NEVER), Ok(Attempt::Granted { .. }))
}

fn release(store: &MemoryAccess, claim: &Claim) {
    assert!(matches!(store.release(claim, 0, Moment::NEVER), Ok(Release::Freed { .. })));
}

#[test]
fn a_writer_in_memory_holds_readers_back_after_fifty_milliseconds() {
    let (clock, store) = store();
    let (reader, writer) = (waits(Kind::Read), waits(Kind::Write));
    assert!(is_granted(&store, &reader) && !is_granted(&store, &writer));
    clock.advance(SHORT);
    assert!(is_granted(&store, &waits(Kind::Read)), "readers overlap");
    clock.advance(Duration::from_millis(1));
    let late = waits(Kind::Read);
    assert!(!is_granted(&store, &late));
    let reads_already = Claim { waited: Duration::MAX, ..waits(Kind::Read) };
    assert!(is_granted(&store, &reads_already));
    store.leave_wait_queue(&writer, Moment::NEVER);
    assert!(is_granted(&store, &late));
    // The writer's attempt below is its last, so its place expires.
    assert!(!is_granted(&store, &writer));
    clock.advance(Duration::from_secs(6));
    assert!(is_granted(&store, &waits(Kind::Read)));
}

#[test]
fn readers_and_writers_in_memory_take_turns() {
    let (clock, store) = store();
    let (writer, next) = (waits(Kind::Write), waits(Kind::Write));
    let readers = [waits(Kind::Read), waits(Kind::Read)];
    assert!(is_granted(&store, &writer));
    assert!(readers.iter().all(|reader| !is_granted(&store, reader)));
    assert!(!is_granted(&store, &next));
    clock.advance(SHORT * 2);
    release(&store, &writer);
    assert!(!is_granted(&store, &by_queue(&next)), "the waiting readers come first");
    clock.advance(Duration::from_millis(1));
    let waited = |reader: &Claim| Claim { waited: SHORT * 3, ..reader.clone() };
    assert!(is_granted(&store, &waited(&readers[0])));
    assert!(!is_granted(&store, &waits(Kind::Read)), "this reader came later");
    release(&store, &readers[0]);
    assert!(!is_granted(&store, &by_queue(&next)), "another waiting reader comes first");
    assert!(is_granted(&store, &waited(&readers[1])));
    release(&store, &readers[1]);
    assert!(!is_granted(&store, &waits(Kind::Read)) && is_granted(&store, &by_queue(&next)));
}

#[test]
fn a_released_lock_in_memory_is_not_listed() {
    let store = MemoryStore::new();
    let client = LockClient::in_memory_with(&store);
    let guard = client.get_lock("a").acquire().unwrap();
    assert_eq!(client.list("*").count(), 1);
    guard.unlock().unwrap();
    assert_eq!(client.list("*").count(), 0);
    assert!(!store.forget("a"));
}

fn by_queue(claim: &Claim) -> Claim {
    Claim { queue_mode: QueueMode::InWaitQueue, ..claim.clone() }
}

#[test]
fn permits_in_memory_are_reserved_for_the_first_waiter() {
    let (clock, store) = store();
    let holder = waits(Kind::Semaphore);
    let what = crate::seam::Counting::SetUp { to: 1, lease: None };
    assert!(store.count(&waits(Kind::Semaphore), &what, Moment::NEVER).is_ok());
    assert!(is_granted(&store, &holder));
    let (first, second) = (waits(Kind::Semaphore), waits(Kind::Semaphore));
    for claim in [&first, &second] {
        assert!(!is_granted(&store, claim));
        clock.advance(Duration::from_millis(1));
    }
    release(&store, &holder);
    assert!(!is_granted(&store, &by_queue(&second)) && !is_granted(&store, &waits(Kind::Semaphore)));
    assert!(is_granted(&store, &by_queue(&first)));
}

/// A thread that reads may read again while a writer waits, even as another owner. Otherwise the thread and
/// the writer would wait for each other.
#[test]
fn a_reader_gets_an_owned_read_guard_past_a_waiting_writer() {
    let store = MemoryStore::new();
    let [lock, writing, late] = [(); 3].map(|()| LockClient::in_memory_with(&store).get_read_write_lock("a"));
    let reading = lock.read().acquire().unwrap();
    let interrupt = Interrupt::new();
    std::thread::scope(|scope| {
        scope.spawn(|| writing.write().lock_interruptibly(&interrupt));
        while late.read().try_acquire_owned_for(Duration::ZERO).unwrap().is_some() {}
        let owned = lock.read().try_acquire_owned_for(Duration::from_secs(30)).unwrap();
        owned.expect("this thread reads").unlock().unwrap();
        interrupt.interrupt();
    });
    drop(reading);
}
