//! Rules that matter only where events come in a rare order.

use std::sync::Weak;

use super::*;
use crate::directory::{ClientInfo, LockUse};
use crate::engine::batch::{LevelRelease, leave_all};
use crate::engine::core::Core;
use crate::engine::deadlock::graph::{self, Thread};
use crate::ident::ClientId;
use crate::observe::event::Event;
use crate::park::take_time;
use crate::seam::ListensFor;
use crate::seam::directory::{Directory, Entry};

#[test]
fn a_writer_with_a_new_owner_number_gets_no_read_lock() {
    let second = Duration::from_secs(1);
    let (store, clock, engine, name) = standing(scripted());
    let writing = acquire_as(Kind::Write, &engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    // Retires the number, as an unanswered request about another lock would.
    ThreadMarker::current().retire(writing.hold.owner().number());
    let until = engine.clock.after(second);
    let attempts = store.attempts.count();
    // If the read waited for its own thread's write, it would time out here.
    store.attempts.say(move || {
        clock.advance(second * 2);
        busy()
    });
    let error = acquire_as(Kind::Read, &engine, &name, until, Lease::Renewed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldDeadlock);
    assert_eq!(store.attempts.count(), attempts);
    // A try never waits, so it returns `None` instead of an error.
    assert!(acquire_as(Kind::Read, &engine, &name, ONCE, Lease::Renewed).unwrap().is_none());
    release(&engine, &writing).unwrap();
    assert!(acquire_as(Kind::Read, &engine, &name, until, Lease::Renewed).unwrap().is_some());
}

#[test]
fn no_client_stands_back_for_others_that_had_their_turn() {
    let channel = Arc::new(Channel::new("a", true));
    let (store, clock, engine, name) =
        standing(Scripted { channel: Some(Arc::clone(&channel)), ..scripted() });
    let mine = lock(&engine, &name);
    release(&engine, &mine).unwrap();
    // The release is noted during the first attempt. With one other listener a waiter pauses only before it.
    let core = Arc::clone(&engine.core);
    store.attempts.say(move || {
        core.registry.note_released(&mine.hold, Others::Listen(1), core.clock.now());
        channel.notify();
        busy()
    });
    let (told, is_told) = bounded(1);
    let again = thread::scope(|scope| {
        scope.spawn(|| told.send(acquire(&engine, &name, FOREVER, Lease::Renewed).map(drop)).unwrap());
        // If the thread wrongly lets another client go first, moving the clock ends its pause.
        let again = is_told.recv_timeout(Duration::from_secs(10));
        clock.advance(Duration::from_millis(10));
        again
    });
    again.expect("it let a client go first that had its turn already").unwrap();
}

/// The timer stands still, because it would notice the hold's end first.
#[test]
fn a_late_renewal_revives_nothing_and_is_undone() {
    let (store, clock, engine, name) = standing(scripted());
    let lease = engine.options.lease;
    let writing = acquire_as(Kind::Write, &engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    let clocked = engine.clock.clone();
    store.renewals.before(move || take_time(&clocked, lease * 4 / 5));
    clock.advance(lease / 2);
    assert_eq!(store.renewals.count(), 1, "the renewal was not sent");
    engine.stand_still(true);
    // A moment after the old window, and before the end of the window that the renewal would have opened.
    clock.advance(lease * 7 / 10);
    let standing = writing.hold.standing(clock.now());
    assert_eq!(standing, hold::Standing::Lost(LossReason::Expired));
    // The thread has a new number: the store would grant this read under the old one, and soon free it.
    assert!(acquire_as(Kind::Read, &engine, &name, ONCE, Lease::Renewed).unwrap().is_none());
    engine.stand_still(false);
    clock.advance(Duration::from_secs(1));
    assert!(store.is_free());
    assert!(acquire_as(Kind::Read, &engine, &name, ONCE, Lease::Renewed).unwrap().is_some());
}

#[test]
fn a_waiter_that_panics_during_its_hand_off_frees_the_lock() {
    let (store, engine, name) = running(scripted());
    let mine = lock(&engine, &name);
    store.handoffs.say(|| std::panic::resume_unwind(Box::new("as a test has it")));
    let waited = while_another_waits(&engine, &name, || drop_guard(&engine, &mine));
    assert!(waited.is_err(), "the waiter did not panic");
    comes_about("the release", || store.is_free());
}

#[test]
fn a_hand_off_of_a_lost_lock_reports_the_loss() {
    let (store, engine, name) = running(notifying());
    let mine = lock(&engine, &name);
    let lost = mine.hold.loss_channel();
    store.forget();
    store.handoffs.say(|| Ok(Handoff::Lost));
    let mut released = Ok(());
    let waited = while_another_waits(&engine, &name, || released = release(&engine, &mine));
    assert_eq!(released.unwrap_err().not_held(), Some(&NotHeld::Expired));
    assert_eq!(lost.try_recv().unwrap().reason, LossReason::Gone);
    assert!(waited.unwrap().unwrap(), "the next waiter did not acquire the lock");
}

/// The clock stands still during the pause. Meanwhile another thread of the process can take the lock.
#[test]
fn a_pause_after_a_late_hand_off_blocks_no_other_thread() {
    let lease = Duration::from_secs(8);
    let (store, clock, engine, name) = standing(scripted());
    let mine = lock(&engine, &name);
    let (seen, later) = (Arc::clone(&store), clock.clone());
    store.handoffs.say(move || {
        seen.forget();
        later.advance(lease);
        Ok(Handoff::Granted { fence: None })
    });
    let again = thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire(&engine, &name, FOREVER, Lease::Fixed(lease)).unwrap().unwrap());
        comes_about("the other thread's sleep", || sleeps(&engine, &name));
        drop_guard(&engine, &mine);
        let until = Clock::System.after(Duration::from_secs(10));
        let attempt = || acquire(&engine, &name, ONCE, Lease::Renewed).unwrap();
        let mut again = attempt();
        while again.is_none() && Clock::System.now() < until {
            again = attempt();
        }
        again.iter().for_each(|again| release(&engine, again).unwrap());
        clock.advance(Duration::from_millis(100));
        release(&engine, &waiter.join().unwrap()).unwrap();
        again
    });
    assert!(again.is_some(), "the lock stayed busy during the pause");
}

#[test]
fn unanswered_releases_of_a_multi_lock_share_one_retry_timeout() {
    let patience = Duration::from_secs(3_600);
    let options = Options { retry_timeout: patience, ..Options::default() };
    let (store, clock, engine, name) = standing_with(options, scripted());
    let group = [name, named("b")].map(|name| {
        let held = acquire(&engine, &name, ONCE, Lease::Fixed(patience * 10)).unwrap().unwrap();
        LevelRelease { engine: Arc::clone(&engine), hold: held.hold, level: Some(held.level) }
    });
    // Both releases are sent. Repeating the first takes the whole retry time, so the second is not repeated.
    let later = clock.clone();
    store.releases.say(in_doubt);
    store.releases.say(in_doubt);
    store.releases.say(move || {
        later.advance(patience);
        in_doubt()
    });
    store.releases.say(in_doubt);
    engine.stand_still(true);
    engine.ends_badly();
    let end_pause = || clock.advance(Duration::from_millis(20));
    let released = while_called(|| leave_all("unlock", group.into()), end_pause);
    assert!(released.unwrap_err().outcome_unknown());
    assert_eq!(store.releases.left(), 1, "the second release was repeated too");
}

#[test]
fn a_shutdown_past_its_timeout_sends_no_further_request() {
    let (store, clock, engine, name) = standing(scripted());
    let _held = lock(&engine, &name);
    let timeout = engine.options.command_timeout;
    // Connecting takes the whole time-out, so the client never sends this release, and counts it as refused.
    store.releases.say(move || {
        clock.advance(timeout);
        refused()
    });
    assert_eq!(engine.shutdown().unwrap_err().kind(), refusal().kind());
    assert_eq!(store.cleanups.count(), 1);
}

/// The store may carry out the attempt after a clean-up that found nothing, or that was refused.
#[test]
fn an_unanswered_attempt_is_cleaned_up_until_its_lease_ends() {
    for refuses in [false, true] {
        let (store, clock, engine, name) = standing(scripted());
        if refuses {
            store.releases.always(refused);
        }
        let hour = Duration::from_secs(3600);
        store.attempts.say(in_doubt);
        let error = acquire(&engine, &name, ONCE, Lease::Fixed(hour)).unwrap_err();
        assert!(error.outcome_unknown(), "{error}");
        clock.advance(hour / 2);
        let cleanups = store.cleanups.count();
        clock.advance(Duration::from_secs(70));
        assert!(store.cleanups.count() > cleanups, "the clean-ups stopped while a grant may still come");
        clock.advance(hour);
        let cleanups = store.cleanups.count();
        clock.advance(Duration::from_secs(60));
        assert_eq!(store.cleanups.count(), cleanups, "the clean-ups go on after the end of the lease");
    }
}

#[test]
fn a_second_shutdown_repeats_failed_releases() {
    let (store, _clock, engine, name) = standing(scripted());
    lock(&engine, &name);
    store.releases.say(|| Failure::refused(Error::new(ErrorKind::NoPermission, "request", "not you")));
    assert_eq!(engine.shutdown().unwrap_err().kind(), ErrorKind::NoPermission);
    assert!(store.holder().is_some() && !store.closed.load(Ordering::SeqCst));
    let (asks, is_begun, go_on) = gate();
    store.releases.before(asks);
    thread::scope(|scope| {
        let first = scope.spawn(|| engine.shutdown());
        is_begun.recv_timeout(Duration::from_secs(10)).expect("the shutdown did not begin");
        let (done, is_done) = bounded(1);
        let engine = &engine;
        scope.spawn(move || done.send(engine.shutdown()).unwrap());
        assert!(is_done.recv_timeout(Duration::from_millis(100)).is_err(), "the second one did not wait");
        go_on.send(()).unwrap();
        first.join().unwrap().unwrap();
        is_done.recv().unwrap().unwrap();
    });
    assert!(store.closed.load(Ordering::SeqCst));
}

struct Unmoved;

impl Observer for Unmoved {
    fn event(&self, _event: &Event<'_>) {}
}

/// An observer runs on the thread of a call. A `shutdown` from there would wait for that call to end, and so
/// for itself.
#[test]
fn a_shutdown_inside_a_call_is_refused() {
    let store = Arc::new(scripted());
    let (engine, name) = (observed(&store, Unmoved), named("a"));
    let refused = AtomicUsize::new(0);
    engine.reporter.report(|_| {
        assert_eq!(engine.shutdown().unwrap_err().kind(), ErrorKind::WouldDeadlock);
        refused.fetch_add(1, Ordering::SeqCst);
    });
    assert!(refused.load(Ordering::SeqCst) > 0);
    let granted = lock(&engine, &name);
    release(&engine, &granted).unwrap();
}

/// Joins the local queue of a lock as if this thread slept there.
fn asleep(engine: &Engine, name: &Arc<LockName>) -> QueuePlace {
    let place = engine.registry.local(Kind::Mutex, name).join(false);
    assert_eq!(place.sleep(sleeper(engine), None, false), Some((true, true)));
    place
}

/// A thread whose guard was dropped holds nothing, even if its next wait begins before the release ends. A
/// waiter whose hold is entered does not wait any more, even if it is still in the queue.
#[test]
fn no_deadlock_includes_a_granted_wait_or_a_releasing_holder() {
    let (_store, engine, name) = running(scripted());
    let held = acquire(&engine, &name, ONCE, Lease::Renewed).unwrap().unwrap();
    let awaited = named("b");
    let place = asleep(&engine, &awaited);
    let stuck = || engine.registry.stuck((engine.clock.now(), 0), Duration::ZERO, &[]).waits.len();
    assert_eq!(stuck(), 1);
    let granted = acquire(&engine, &awaited, ONCE, Lease::Renewed).unwrap().unwrap();
    assert_eq!(stuck(), 0, "a thread that was granted the lock counts as stuck");
    release(&engine, &granted).unwrap();
    assert_eq!(stuck(), 1);
    assert!(held.hold.begin_return());
    assert_eq!(stuck(), 0);
    drop(place);
}

/// Until a wait has lasted long enough, the client's directory entry need not list holds.
#[test]
fn the_deadlock_search_lists_holds_only_after_a_long_wait() {
    let least = Duration::from_secs(1);
    let (_store, clock, engine, name) = standing(scripted());
    let held = lock(&engine, &name);
    let place = thread::scope(|scope| scope.spawn(|| asleep(&engine, &name)).join().unwrap());
    let (begun, under) = (clock.now(), [claim(Kind::Mutex, "b", least).owner]);
    let stuck = || {
        let stuck = engine.registry.stuck((clock.now(), 0), least, &under);
        ((stuck.waits.len(), stuck.holds.len(), stuck.under.len()), stuck.next)
    };
    assert_eq!(stuck(), ((0, 0, 0), begun.plus(least)));
    clock.advance(least);
    assert_eq!(stuck(), ((1, 1, 1), Moment::NEVER));
    drop(place);
    release(&engine, &held).unwrap();
}

fn observed(store: &Arc<Scripted>, observer: impl Observer) -> Running {
    let store: Arc<dyn Store> = Arc::clone(store) as _;
    Running::observed(Options::default(), Clock::System, store, Some(Arc::new(observer)))
}

/// Without an attempt the new head would sleep for an hour, because this store sends no messages.
#[test]
fn a_waiter_that_becomes_first_attempts_before_it_sleeps() {
    let (store, name) = (Arc::new(scripted()), named("a"));
    let (asks, is_asked, goes_on) = gate();
    store.attempts.say(move || {
        asks();
        Failure::refused(Error::new(ErrorKind::WrongType, "lock", "it is something else"))
    });
    let (ends, has_ended) = bounded(1);
    let engine = observed(&store, move |event: &Event<'_>| {
        if let Event::Waiting { .. } = event {
            goes_on.send(()).unwrap();
            has_ended.recv().unwrap();
        }
    });
    let (gets, got) = bounded(1);
    thread::scope(|scope| {
        let refused = scope.spawn(|| {
            let error = acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap_err();
            ends.send(()).unwrap();
            error
        });
        is_asked.recv().unwrap();
        scope.spawn(|| gets.send(acquire(&engine, &name, FOREVER, Lease::Renewed).is_ok()).unwrap());
        let got = got.recv_timeout(Duration::from_secs(10));
        drop(engine.shutdown()); // wakes the waiter, if it sleeps
        assert_eq!(got, Ok(true));
        assert_eq!(refused.join().unwrap().kind(), ErrorKind::WrongType);
    });
}

/// A hand-off to a waiter whose observer is slow would not be read in time.
#[test]
fn observers_see_a_wait_before_the_lock_can_be_handed_over() {
    let ((waits, is_waiting), (goes_on, may_go_on)) = (bounded(1), bounded::<()>(1));
    let engine = observed(&Arc::new(scripted()), move |event: &Event<'_>| {
        if let Event::Waiting { .. } = event {
            waits.send(()).unwrap();
            may_go_on.recv().unwrap();
        }
    });
    let name = named("a");
    let held = lock(&engine, &name);
    let is_offered = || held.hold.local.state().queue.tickets.iter().any(|one| one.waiter.offer.is_some());
    let offered = thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire(&engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap());
        is_waiting.recv().unwrap();
        let offered = is_offered();
        goes_on.send(()).unwrap();
        release(&engine, &held).unwrap();
        release(&engine, &waiter.join().unwrap()).unwrap();
        offered
    });
    assert!(!offered);
}

/// If an observer ran before the hold exists, the grant's owner number could be retired meanwhile, and a
/// clean-up would end the grant.
#[test]
fn observers_see_a_grant_after_its_hold_exists() {
    let (store, core) = (Arc::new(scripted()), Arc::new(std::sync::OnceLock::<Weak<Core>>::new()));
    let (seen, (sees, saw)) = (Arc::clone(&core), bounded(8));
    let engine = observed(&store, move |event: &Event<'_>| {
        if let Event::Request { op: "acquire", .. } = event {
            sees.send(seen.get().unwrap().upgrade().unwrap().registry.holds().len()).unwrap();
        }
    });
    core.set(Arc::downgrade(&engine.core)).unwrap();
    let granted = lock(&engine, &named("a"));
    assert_eq!(saw.try_recv(), Ok(1));
    release(&engine, &granted).unwrap();
}

/// A renewal of a thread's read hold also prolongs its write hold in the store. So the client must end an
/// expired write hold itself, even while an observer handles the grant of the read hold.
#[test]
fn an_expired_write_hold_is_cleaned_up_while_an_observer_runs() {
    let (store, clock, lease) = (Arc::new(scripted()), ManualClock::new(), Duration::from_secs(1));
    let (reads, (ends, has_ended)) = (Arc::new(AtomicBool::new(false)), bounded(1));
    let (seen, later, is_reading) = (Arc::clone(&store), clock.clone(), Arc::clone(&reads));
    let observer = move |event: &Event<'_>| {
        let is_acquire = matches!(event, Event::Request { op: "acquire", .. });
        if is_acquire && is_reading.swap(false, Ordering::SeqCst) {
            later.advance(lease);
            comes_about("the end of the write lock", || seen.cleanups.count() > 0);
            ends.send(()).unwrap();
        }
    };
    let (time, open) = (Clock::Manual(clock), Arc::clone(&store) as Arc<dyn Store>);
    let engine = Running::observed(Options::default(), time, open, Some(Arc::new(observer)));
    let name = named("a");
    acquire_as(Kind::Write, &engine, &name, FOREVER, Lease::Fixed(lease)).unwrap().unwrap();
    reads.store(true, Ordering::SeqCst);
    let reading = acquire_as(Kind::Read, &engine, &name, FOREVER, Lease::Renewed).unwrap().unwrap();
    assert_eq!(has_ended.try_recv(), Ok(()), "the store still holds the write lock");
    release(&engine, &reading).unwrap();
}

/// A reader that lets writers go first has no place in the store's queue, so it has none to leave.
#[test]
fn writers_first_keeps_readers_out_of_the_store_queue() {
    for writers_first in [false, true] {
        let store = MemoryStore::new();
        let [client, other] = [(); 2].map(|()| crate::LockClient::in_memory_with(&store));
        let lock = |client: &crate::LockClient| {
            let lock = client.get_read_write_lock("a");
            if writers_first { lock.writers_first() } else { lock }
        };
        let (writing, reading) = (lock(&other).write().acquire_owned().unwrap(), lock(&client));
        let local = reading.read().engine.registry.local(Kind::Read, &named("a"));
        thread::scope(|scope| {
            scope.spawn(|| drop(reading.read().acquire().unwrap()));
            let sleeps = || local.state().queue.tickets.iter().any(|ticket| ticket.waiter.sleeper.is_some());
            comes_about("the reader's wait", sleeps);
            assert_eq!(local.state().queued, !writers_first);
            writing.unlock().unwrap();
        });
    }
}

/// The clock stands still, so only the session's message can make the timer check the hold.
#[test]
fn holds_are_lost_as_soon_as_their_session_ends() {
    let session = Arc::new(SessionEnd(AtomicU64::new(u64::MAX)));
    let bound: Arc<dyn Bound> = Arc::clone(&session) as _;
    let (store, clock, engine, name) =
        standing(Scripted { has_sessions: true, session: Some(bound), ..scripted() });
    let _held = lock(&engine, &name);
    session.0.store(clock.now().nanos(), Ordering::SeqCst);
    let timer = store.attached.lock().clone().unwrap();
    timer.bounds_ended();
    comes_about("the loss", || engine.stats().lost_expired == 1);
}

/// No thread can release the hold of a leaked guard.
#[test]
fn an_expired_leaked_guard_leaves_no_hold() {
    let (_store, clock, engine, name) = standing(scripted());
    let lease = Lease::Fixed(Duration::from_secs(1));
    let local = engine.registry.local(Kind::Mutex, &name);
    let call = AcquireCall::new("lock", Kind::Mutex, (&name, &local), FOREVER);
    engine.acquire(&AcquireCall { lease, ..call }).unwrap().unwrap();
    clock.advance(Duration::from_secs(2));
    let stats = engine.stats();
    assert_eq!((stats.lost_expired, stats.holds_lost), (1, 0));
}

/// The grant to the other thread took the client out of the wait queue, so the waiter must ask again.
#[test]
fn a_waiter_for_many_permits_asks_again_after_another_grant() {
    let channel = Arc::new(Channel::new("a", true));
    let (store, _clock, engine, name) =
        standing(Scripted { channel: Some(Arc::clone(&channel)), ..scripted() });
    let local = engine.registry.local(Kind::Semaphore, &name);
    let take = |units| {
        let call = AcquireCall::new("acquire", Kind::Semaphore, (&name, &local), FOREVER);
        engine.acquire(&AcquireCall { units, ..call }).map(|granted| granted.is_some())
    };
    let ((asks, is_asked), notified) = (bounded(1), Arc::clone(&channel));
    let (takes, taken) = bounded(1);
    thread::scope(|scope| {
        store.attempts.say(busy);
        let take = &take;
        scope.spawn(move || takes.send(take(3)).unwrap());
        comes_about("the large request's subscription", || channel.listeners() == 1);
        store.attempts.say(move || {
            notified.notify();
            is_asked.recv().unwrap();
            Ok(Attempt::InWaitQueue { retry_after: None, listens_for: ListensFor::OwnTurn, watches: false })
        });
        store.attempts.say(move || {
            asks.send(()).unwrap();
            busy()
        });
        store.attempts.say(granted);
        store.attempts.say(granted);
        assert!(take(1).unwrap());
        let taken = taken.recv_timeout(Duration::from_secs(10));
        drop(engine.shutdown()); // wakes the waiter, if it sleeps
        assert!(taken.expect("the waiter did not ask again").unwrap());
    });
}

/// This store cannot hand off. Even if the release takes long, the waiter leaves at once.
#[test]
fn an_interrupted_waiter_leaves_during_a_release_without_hand_off() {
    let (store, engine, name) = running(scripted());
    let interrupt = Interrupt::new();
    let mine = lock(&engine, &name);
    let ((asks, is_released, go_on), (tells, told)) = (gate(), bounded(1));
    store.releases.before(asks);
    thread::scope(|scope| {
        scope.spawn(|| tells.send(wait(&engine, &name, &interrupt).map(drop)).unwrap());
        comes_about("the other thread's sleep", || sleeps(&engine, &name));
        scope.spawn(|| release(&engine, &mine).unwrap());
        is_released.recv().unwrap();
        interrupt.interrupt();
        let ended = told.recv_timeout(Duration::from_secs(10));
        go_on.send(()).unwrap();
        assert!(ended.expect("the interrupted waiter did not return").unwrap_err().is_interrupted());
    });
}

/// The watchdog must remove the wait from the client's entry.
#[test]
fn the_end_of_a_wait_updates_the_directory_of_clients() {
    let (store, engine, name) = running(scripted());
    let interrupt = Interrupt::new();
    let lease = Duration::from_secs(30);
    let claim = engine.claim(&engine.store.capabilities, (Kind::Mutex, &name), 7, lease);
    engine.stand_still(true);
    store.give(claim.owner);
    let own = named("b");
    let due = || engine.finder_due.load(Ordering::SeqCst);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let held = acquire(&engine, &own, FOREVER, Lease::Renewed).unwrap();
            wait(&engine, &name, &interrupt).map(drop).unwrap_err();
            drop(held);
        });
        let publishes = || engine.registry.stuck((engine.clock.now(), 0), Duration::ZERO, &[]);
        comes_about("the wait", || publishes().waits.len() == 1);
        assert_ne!(due(), 0);
        interrupt.interrupt();
        waiter.join().unwrap();
    });
    assert_eq!(due(), 0);
    engine.stand_still(false);
}

#[test]
fn expired_holds_are_not_chosen_for_renewal() {
    let (_store, clock, engine, name) = standing(scripted());
    let held = lock(&engine, &name);
    assert_eq!(engine.registry.renewed(clock.now()).len(), 1);
    assert!(engine.registry.renewed(held.hold.until()).is_empty());
}

/// Slow clean-ups are always due. The watchdog must still search for deadlocks and write the entry.
#[test]
fn slow_clean_ups_leave_time_for_renewals_and_deadlock_searches() {
    let lease = Duration::from_secs(9);
    let options = Options { lease, ..Options::default() };
    let (store, clock, engine, name) = standing_with(options, Scripted { has_directory: true, ..scripted() });
    let held = lock(&engine, &name);
    for number in 0..30 {
        store.attempts.say(in_doubt);
        let other = named(&format!("in doubt {number}"));
        acquire(&engine, &other, ONCE, Lease::Fixed(lease * 10)).unwrap_err();
    }
    for _ in 0..300 {
        let clock = engine.clock.clone();
        store.cleanups.say(move || {
            take_time(&clock, Duration::from_millis(100));
            in_doubt()
        });
    }
    let polls = store.polls.load(Ordering::SeqCst);
    while store.cleanups.left() > 0 {
        clock.advance(Duration::from_millis(50));
        assert!(!matches!(held.hold.standing(clock.now()), hold::Standing::Lost(_)));
    }
    assert!(store.renewals.count() >= 7, "{} renewals in half a minute", store.renewals.count());
    let polls = store.polls.load(Ordering::SeqCst) - polls;
    assert!(polls >= 7, "{polls} rounds in half a minute");
    let entry =
        engine.store.capabilities.directory.as_ref().unwrap().read(&[engine.id], Moment::NEVER).unwrap();
    assert!(entry.found[0].is_some());
}

struct EndsWait<'a>(&'a Interrupt);

impl Drop for EndsWait<'_> {
    fn drop(&mut self) {
        self.0.interrupt();
    }
}

/// While a thread that holds something waits for the lock `a`, runs `meanwhile`.
fn during_a_wait(options: Options, store: Scripted, meanwhile: impl FnOnce(&Engine, &Scripted)) {
    let store = Arc::new(store);
    let engine = Running::start(options, Clock::System, Arc::clone(&store) as Arc<dyn Store>);
    let (interrupt, mine, awaited) = (Interrupt::new(), named("b"), named("a"));
    let claim = (Kind::Mutex, &awaited);
    store.give(engine.claim(&engine.store.capabilities, claim, 7, Duration::from_secs(60)).owner);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let held = acquire(&engine, &mine, FOREVER, Lease::Renewed).unwrap();
            wait(&engine, &awaited, &interrupt).map(drop).unwrap_err();
            drop(held);
        });
        let ends = EndsWait(&interrupt); // also if the test fails
        comes_about("the wait", || !engine.stuck(engine.clock.now()).waits.is_empty());
        meanwhile(&engine, &store);
        drop(ends);
        waiter.join().unwrap();
    });
}

/// This store has no entries, so the watchdog must not try again and again to write one.
#[test]
fn the_watchdog_sleeps_during_a_wait_on_a_store_without_directory() {
    let options = Options { detect_deadlocks_after: Duration::from_millis(100), ..Options::default() };
    during_a_wait(options, scripted(), |engine, store| {
        let before = store.polls.load(Ordering::SeqCst);
        take_time(&engine.clock, Duration::from_millis(500));
        let rounds = store.polls.load(Ordering::SeqCst) - before;
        assert!(rounds < 20, "{rounds} rounds in half a second");
    });
}

/// Of two clients in a deadlock, the one that searches last must find the other's wait. So each client awaits
/// the write of its own wait before it searches.
#[test]
fn the_client_awaits_only_directory_writes_that_name_a_wait() {
    let options = Options { detect_deadlocks_after: Duration::from_millis(100), ..Options::default() };
    let store = Scripted { has_directory: true, ..scripted() };
    during_a_wait(options, store, |engine, store| {
        let named_waits = || {
            let entries = store.entries.lock();
            let names_a_wait = |text: &str| {
                let entry = ClientInfo::read(engine.id, text, Duration::ZERO).unwrap();
                entry.uses.iter().any(|one| one.published.is_some())
            };
            entries.iter().map(|(text, is_awaited)| (names_a_wait(text), *is_awaited)).collect::<Vec<_>>()
        };
        comes_about("the entry", || named_waits().iter().any(|(names_a_wait, _)| *names_a_wait));
        let entries = named_waits();
        assert!(entries.iter().all(|(names_a_wait, is_awaited)| is_awaited == names_a_wait), "{entries:?}");
    });
}

/// How many deadlocks are found if so many clients wait for each other in a cycle.
fn found_among(clients: usize) -> usize {
    let (store, lease) = (MemoryStore::new(), Duration::from_secs(3_600));
    let open: Arc<dyn Store> = Arc::new(store.open());
    let (engine, others) = (Running::start(Options::default(), Clock::System, open), store.open());
    let key = |at: usize| format!("lock {}", at % clients);
    for at in 0..clients {
        let client = ClientId::random();
        let claim = Claim::new(Kind::Mutex, &named(&key(at)), Owner::new(client, 1), lease);
        others.attempt(&claim, 1, FOREVER).unwrap();
        let hold = LockUse { by: Some(1), ..LockUse::new(&key(at), 1, "", Duration::ZERO) };
        let wait = graph::tests::wait(Thread { client, id: 1 }, 1, &key(at + 1), 1);
        let uses = vec![hold, graph::tests::own_wait(wait).shown];
        let text = ClientInfo { uses, ..ClientInfo::here(client, None) }.written(lease);
        others.write(Entry { client, text: &text, lease, is_awaited: true }, FOREVER).unwrap();
    }
    engine.deadlocks().unwrap().len()
}

#[test]
fn a_search_for_all_deadlocks_visits_a_limited_number_of_threads() {
    assert_eq!([256, 257].map(found_among), [1, 0]);
}
