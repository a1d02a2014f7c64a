//! Deadlocks between threads of one client or of several are found, reported, and broken on request. Clients
//! find each other's waits in the *directory*, in which each client lists its holds and waits.

use std::sync::Barrier;
use std::thread::JoinHandle;

use leasehold::{Deadlock, ReadWriteLock, Result};

use super::harness::{Kind, Need, Store};
use crate::support::observer::deadlocks;
use crate::support::prelude::*;

const TOLD_WITHIN: Duration = Duration::from_secs(3);

pub(super) struct Member {
    pub(super) client: LockClient,
    pub(super) told: Receiver<(bool, Deadlock, Instant)>,
}

impl Member {
    /// A member whose client searches for a deadlock after a wait of a second, which is the default.
    fn new(store: &Store, breaks: bool) -> Member {
        Member::looking_after(store, Duration::from_secs(1), breaks)
    }

    fn quick(store: &Store) -> Member {
        Member::looking_after(store, ms(200), false)
    }

    pub(super) fn quick_to_break(store: &Store) -> Member {
        Member::looking_after(store, ms(200), true)
    }

    fn looking_after(store: &Store, wait: Duration, breaks: bool) -> Member {
        let (observer, told) = deadlocks(now);
        let client = store.client_with(|options| {
            let options = options.lease(Duration::from_secs(30)).detect_deadlocks_after(wait);
            options.break_deadlocks(breaks).observer(observer)
        });
        Member { client, told }
    }

    #[track_caller]
    pub(super) fn next(&self, is_begin: bool) -> (Deadlock, Instant) {
        let (begins, deadlock, at) = self.told.recv_timeout(LONG).expect("the deadlock was not reported");
        assert_eq!(begins, is_begin, "{deadlock}");
        (deadlock, at)
    }

    pub(super) fn lock(&self, name: &str) -> RedisLock {
        self.client.get_lock(name)
    }

    pub(super) fn is_told_nothing(&self) -> bool {
        self.told.try_recv().is_err()
    }
}

pub(super) type Release = Box<dyn FnOnce() -> Result<()>>;

/// Threads that each hold some locks. When the test calls `begin`, each waits for a further lock until it
/// acquires the lock or is interrupted.
pub(super) struct Threads {
    running: Vec<JoinHandle<Result<()>>>,
    gate: Arc<Barrier>,
    interrupt: Interrupt,
}

impl Threads {
    pub(super) fn of(count: usize) -> Threads {
        Threads { running: Vec::new(), gate: Arc::new(Barrier::new(count + 1)), interrupt: Interrupt::new() }
    }

    /// Starts one thread for each list of locks. The thread holds all locks of its list except the last, for
    /// which it waits after `begin`.
    pub(super) fn holding<L: Into<Vec<RedisLock>>>(lists: impl IntoIterator<Item = L>) -> Threads {
        let lists: Vec<Vec<_>> = lists.into_iter().map(Into::into).collect();
        let mut threads = Threads::of(lists.len());
        threads.add_each(lists);
        threads
    }

    pub(super) fn add_each<L: Into<Vec<RedisLock>>>(&mut self, lists: impl IntoIterator<Item = L>) {
        for list in lists {
            let mut locks: Vec<RedisLock> = list.into();
            let wanted = locks.pop().unwrap();
            self.add(wanted, move || {
                let held = locks.iter().map(RedisLock::acquire).collect::<Result<Vec<_>>>()?;
                Ok(Box::new(|| held.into_iter().try_for_each(Guard::unlock)))
            });
        }
    }

    pub(super) fn add(&mut self, wanted: RedisLock, hold: impl FnOnce() -> Result<Release> + Send + 'static) {
        let (gate, interrupt) = (Arc::clone(&self.gate), self.interrupt.clone());
        self.running.push(crate::support::start(move || {
            let release = hold()?;
            gate.wait();
            let got = wanted.acquire_with(&AcquireOptions::new().interrupt(&interrupt)).map(drop);
            release()?;
            got
        }));
    }

    pub(super) fn begin(&self) -> Instant {
        self.gate.wait();
        now()
    }

    pub(super) fn is_any_over(&self) -> bool {
        self.running.iter().any(JoinHandle::is_finished)
    }

    /// Asserts that each thread acquired the last lock of its list.
    fn succeed(self) {
        self.running.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    }

    /// Interrupts all threads. Returns how many of them had acquired the last lock of their list.
    pub(super) fn end(self) -> usize {
        self.interrupt.interrupt();
        let mut got = 0;
        for thread in self.running {
            match thread.join().unwrap() {
                Ok(()) => got += 1,
                Err(error) => assert!(error.is_interrupted(), "{error}"),
            }
        }
        got
    }
}

fn names(deadlock: &Deadlock) -> Vec<(String, String)> {
    let mut names: Vec<_> =
        deadlock.steps.iter().map(|step| (step.holds.clone(), step.waits_for.clone())).collect();
    names.sort();
    names
}

/// The steps (lock held, lock awaited) of two threads: one holds `a` and wants `b`, the other the reverse.
fn names_of_two(a: &str, b: &str) -> Vec<(String, String)> {
    let mut names = vec![(a.to_owned(), b.to_owned()), (b.to_owned(), a.to_owned())];
    names.sort();
    names
}

/// Asserts that each member is notified of the deadlock of two threads over `a` and `b`.
#[track_caller]
pub(super) fn are_told(members: &[&Member], a: &str, b: &str) -> Vec<(Deadlock, Instant)> {
    let told: Vec<_> = members.iter().map(|member| member.next(true)).collect();
    for (deadlock, _) in &told {
        assert_eq!(names(deadlock), names_of_two(a, b), "{deadlock}");
    }
    told
}

contract!(a_deadlock_is_reported_within_three_seconds_then_its_end, needs(Directory), |store| {
    side_by_side(&store.kinds, |kind| told_and_over(store, kind));
});

fn told_and_over(store: &Store, kind: &Kind) {
    let (a, b) = (fresh(kind.label), fresh(kind.label));
    let members = [(); 2].map(|()| Member::new(store, false));
    let lock = |member: usize, name: &str| (kind.make)(&members[member].client, name);
    let threads = Threads::holding([[lock(0, &a), lock(0, &b)], [lock(1, &b), lock(1, &a)]]);
    let begun = threads.begin();
    let told = are_told(&members.each_ref(), &a, &b);
    let first = told.iter().map(|(_, at)| *at).min().unwrap();
    let took = first.duration_since(begun);
    assert!(took <= TOLD_WITHIN + slack_since(begun), "{} was reported after {took:?}", kind.label);
    let expected = names_of_two(&a, &b);
    for ((deadlock, _), member) in told.iter().zip(&members) {
        assert!(deadlock.is_certain && deadlock.steps.len() == 2, "{deadlock}");
        assert_eq!(deadlock.steps.iter().filter(|step| step.is_youngest).count(), 1);
        let own = deadlock.steps.iter().filter(|step| step.by_this_client);
        assert_eq!(own.count(), 1);
        let is_here = |step: &leasehold::DeadlockStep| step.location.pid == std::process::id();
        assert!(deadlock.steps.iter().all(is_here), "{deadlock}");
        let asked = member.client.deadlocks().unwrap();
        assert_eq!(asked.iter().filter(|ring| names(ring) == expected).count(), 1, "{asked:?}");
    }
    assert!(threads.end() < 2);
    for member in &members {
        member.next(false);
        let asked = member.client.deadlocks().unwrap();
        assert!(asked.iter().all(|ring| names(ring) != expected), "{asked:?}");
        assert!(member.is_told_nothing(), "a deadlock was reported twice");
        assert_eq!(member.client.stats().deadlocks, 1);
    }
}

contract!(a_deadlock_is_broken_within_three_seconds, needs(Directory), |store| {
    let (a, b) = (fresh("a"), fresh("b"));
    let [one, other] = [(); 2].map(|()| Member::new(store, true));
    let threads = Threads::holding([[one.lock(&a), one.lock(&b)], [other.lock(&b), other.lock(&a)]]);
    let begun = threads.begin();
    let ended: Vec<_> = threads.running.into_iter().map(|thread| (thread.join().unwrap(), now())).collect();
    let took = ended.iter().map(|(_, at)| at.duration_since(begun)).max().unwrap();
    assert!(took <= TOLD_WITHIN + slack_since(begun), "it took {took:?}");
    let (broken, went_on): (Vec<_>, Vec<_>) =
        ended.into_iter().map(|(ended, _)| ended).partition(Result::is_err);
    assert_eq!((broken.len(), went_on.len()), (1, 1), "{broken:?} {went_on:?}");
    assert!(matches!(went_on[..], [Ok(())]), "the other thread did not go on");
    let error = fails(broken.into_iter().next().unwrap(), ErrorKind::Deadlock);
    let text = error.to_string();
    assert!(
        text.contains(&a) && text.contains(&b) && text.contains("2 threads wait for each other"),
        "{text}"
    );
    assert!(!error.is_retryable() && !error.outcome_unknown());
});

/// Whether the member's entry in the directory shows its wait, so that other clients can find a cycle.
fn is_known_to_wait(member: &Member) -> bool {
    let info = member.client.clients().map(Result::unwrap).find(|info| info.id == member.client.id());
    info.is_some_and(|info| info.uses.iter().any(|one| one.is_waiting && one.lasted > ms(300)))
}

// The multi-lock's wait for `b` is the youngest of the cycle, so the client ends this wait.
contract!(a_broken_multi_lock_wait_keeps_a_hold_acquired_before, needs(Directory), |store| {
    let (a, b, c) = (fresh("a"), fresh("b"), fresh("c"));
    let (one, many) = (Member::quick_to_break(store), Member::quick_to_break(store));
    let held = many.lock(&a).acquire().unwrap();
    let thread = Threads::holding([[one.lock(&b), one.lock(&a)]]);
    thread.begin();
    assert!(eventually(LONG, || is_known_to_wait(&one)));
    let both = many.client.get_multi_lock([many.lock(&b), many.lock(&c)]);
    fails(both.try_acquire_for(LONG).map(drop), ErrorKind::Deadlock);
    assert!(!one.lock(&c).is_locked().unwrap(), "the multi-lock did not release what it had");
    held.check().unwrap();
    held.unlock().unwrap();
    thread.succeed();
});

contract!(a_condition_reacquisition_in_a_deadlock_is_not_broken, needs(Directory), |store| {
    if store.lacks.contains(&Need::Counting) {
        return;
    }
    let (a, waited) = (fresh("a"), fresh("waited"));
    let (again, other) = (Member::quick_to_break(store), Member::quick_to_break(store));
    let (gives_up, interrupt) = (Arc::new(Barrier::new(2)), Interrupt::new());
    let thread = {
        let (first, lock) = (again.lock(&a), again.lock(&waited));
        let (gives_up, interrupt) = (Arc::clone(&gives_up), interrupt.clone());
        crate::support::start(move || {
            let _held = first.acquire()?;
            let mut guard = lock.acquire()?;
            gives_up.wait();
            // After this interrupt the thread must reacquire `waited`, whose holder waits for `a`. The
            // reacquisition is the cycle's youngest wait, but cannot be broken, so the other wait is broken.
            let ended = lock.condition("c").wait_interruptibly(&mut guard, &interrupt);
            assert!(ended.unwrap_err().is_interrupted());
            guard.check()
        })
    };
    gives_up.wait();
    let held = other.lock(&waited).acquire().unwrap();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(eventually(LONG, || is_known_to_wait(&other)));
            interrupt.interrupt();
        });
        other.lock(&a).acquire().map(drop).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
    held.unlock().unwrap();
    thread.join().unwrap().unwrap();
});

contract!(a_deadlock_stays_if_its_youngest_wait_is_unbreakable, needs(Directory), |store| {
    let (a, b) = (fresh("a"), fresh("b"));
    let (breaks, other) = (Member::quick_to_break(store), Member::quick(store));
    let interrupt = Interrupt::new();
    let held = other.lock(&b).acquire().unwrap();
    let older = Threads::holding([[breaks.lock(&a), breaks.lock(&b)]]);
    older.begin();
    assert!(eventually(LONG, || is_known_to_wait(&breaks)));
    let (lock, options) = (other.lock(&a), AcquireOptions::new().wait(LONG * 4).interrupt(&interrupt));
    let ends = std::thread::scope(|scope| {
        scope.spawn(|| {
            let told = [other.next(true).0, breaks.next(true).0];
            // The next search, within this time, must neither end a wait nor report the deadlock again.
            throughout(ms(2_200), || !older.is_any_over() && other.is_told_nothing());
            interrupt.interrupt();
            told
        });
        lock.acquire_with(&options).map(drop)
    });
    assert!(ends.unwrap_err().is_interrupted());
    held.unlock().unwrap();
    assert!(older.end() <= 1);
});

contract!(a_cycle_of_eight_clients_is_reported_by_each, needs(Directory), |store| {
    side_by_side([3, 8], |count| ring_of(store, count));
});

fn ring_of(store: &Store, count: usize) {
    let names_of: Vec<String> = (0..count).map(|at| fresh(&format!("ring{at}"))).collect();
    let members: Vec<Member> = (0..count).map(|_| Member::quick(store)).collect();
    let wants = members
        .iter()
        .enumerate()
        .map(|(at, member)| [at, at + 1].map(|at| member.lock(&names_of[at % count])));
    let threads = Threads::holding(wants);
    threads.begin();
    for member in &members {
        let (deadlock, _) = member.next(true);
        assert_eq!(deadlock.steps.len(), count, "{deadlock}");
    }
    threads.end();
}

contract!(a_deadlock_within_one_client_is_reported, needs(Directory), |store| {
    let (a, b) = (fresh("a"), fresh("b"));
    let member = Member::quick(store);
    let threads = Threads::holding([[&a, &b], [&b, &a]].map(|names| names.map(|name| member.lock(name))));
    let begun = threads.begin();
    let (deadlock, at) = member.next(true);
    assert!(at.duration_since(begun) <= TOLD_WITHIN + slack_since(begun));
    assert!(deadlock.steps.len() == 2 && deadlock.steps.iter().all(|step| step.by_this_client), "{deadlock}");
    threads.end();
    member.next(false);
    assert!(member.is_told_nothing());
});

// A running thread holds `b`. An owned guard, which any thread can drop, holds `c`. So both waits can end.
contract!(a_wait_for_a_running_thread_is_no_deadlock, needs(Directory), |store| {
    let (a, b, c) = (fresh("a"), fresh("b"), fresh("c"));
    let (waiting, holding) = (Member::quick(store), Member::quick(store));
    let held = holding.lock(&b).acquire().unwrap();
    let owned = waiting.lock(&c).acquire_owned().unwrap();
    let threads =
        Threads::holding([[a, b], [fresh("d"), c]].map(|names| names.map(|name| waiting.lock(&name))));
    threads.begin();
    throughout(ms(2_500), || waiting.is_told_nothing() && holding.is_told_nothing());
    assert_eq!(threads.end(), 0);
    held.unlock().unwrap();
    owned.unlock().unwrap();
});

contract!(an_ended_wait_is_not_part_of_a_deadlock, needs(Directory), |store| {
    let (a, b) = (fresh("a"), fresh("b"));
    let (early, late) = (Member::quick(store), Member::quick(store));
    let first = early.lock(&a).acquire().unwrap();
    let held = late.lock(&b).acquire().unwrap();
    // This wait lasts long enough to be listed in the directory, but ends before the next wait begins.
    assert!(early.lock(&b).try_acquire_for(ms(900)).unwrap().is_none());
    assert!(late.lock(&a).try_acquire_for(ms(900)).unwrap().is_none());
    assert!(early.is_told_nothing() && late.is_told_nothing());
    drop((first, held));
});

contract!(a_multi_lock_wait_is_part_of_a_deadlock, needs(Directory), |store| {
    for is_owned in [false, true] {
        let (one, many) = (Member::quick(store), Member::quick(store));
        let (first, second) = (fresh("a"), fresh("b"));
        // A multi-lock acquires in the order of names, so `both` holds `first` while it waits for `second`.
        let (held, interrupt) = (one.lock(&second).acquire().unwrap(), Interrupt::new());
        let both = many.client.get_multi_lock([many.lock(&second), many.lock(&first)]);
        let taking = crate::support::start({
            let options = AcquireOptions::new().wait(LONG).interrupt(&interrupt);
            move || {
                if is_owned {
                    both.acquire_owned_with(&options).map(drop)
                } else {
                    both.acquire_with(&options).map(drop)
                }
            }
        });
        let wanted = one.lock(&first);
        assert!(eventually(LONG, || wanted.is_locked().unwrap()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (deadlock, _) = many.next(true);
                assert_eq!(deadlock.steps.len(), 2, "{deadlock}");
                interrupt.interrupt();
            });
            wanted.acquire().unwrap().unlock().unwrap();
        });
        assert!(taking.join().unwrap().unwrap_err().is_interrupted());
        held.unlock().unwrap();
    }
});

contract!(a_cycle_through_a_read_hold_is_found, needs(Directory), |store| {
    if store.lacks.contains(&Need::ReadWrite) {
        return;
    }
    let (halves, lock) = (fresh("halves"), fresh("lock"));
    let (reader, writer, other) = (Member::quick(store), Member::quick(store), store.client());
    let reads_too = other.get_read_write_lock(&halves).read().acquire_owned().unwrap();
    let read = reader.client.get_read_write_lock(&halves).read().clone();
    let write = writer.client.get_read_write_lock(&halves).write().clone();
    let threads = Threads::holding([[read, reader.lock(&lock)], [writer.lock(&lock), write]]);
    threads.begin();
    are_told(&[&reader, &writer], &halves, &lock);
    reads_too.unlock().unwrap();
    threads.end();
});

// The waiting writer blocks the second reader, and the first reader's hold blocks the writer.
contract!(a_cycle_through_a_reader_behind_a_writer_is_found, needs(Directory), |store| {
    if !store.lacks.contains(&Need::ReadWrite) {
        finds_the_cycle(store, ReadWriteLock::writers_first);
        finds_the_cycle(store, |lock| lock); // here a writer blocks readers only after a long wait
    }
});

fn finds_the_cycle(store: &Store, how: fn(ReadWriteLock) -> ReadWriteLock) {
    let (halves, lock) = (fresh("halves"), fresh("lock"));
    let (reads, behind, writer) = (Member::quick(store), Member::quick(store), Member::quick(store));
    let first = |member: &Member| how(member.client.get_read_write_lock(&halves));
    let threads = Threads::holding([
        [first(&reads).read().clone(), reads.lock(&lock)],
        [behind.lock(&lock), first(&behind).read().clone()],
    ]);
    let probe = first(&writer).read().clone();
    assert!(eventually(LONG, || probe.is_locked().unwrap()));
    let third = Threads::holding([[first(&writer).write().clone()]]);
    third.begin();
    let lets_in = || probe.try_acquire().unwrap().map(|guard| guard.unlock().unwrap()).is_some();
    assert!(eventually(LONG, || !elsewhere(lets_in)), "the writer does not wait");
    threads.begin();
    are_told(&[&reads, &behind], &halves, &lock);
    third.interrupt.interrupt();
    threads.end();
    third.end();
}

contract!(a_cycle_through_fair_and_write_locks_is_found, needs(Directory), |store| {
    if store.lacks.contains(&Need::ReadWrite) || store.lacks.contains(&Need::Fair) {
        return;
    }
    let (fair, halves) = (fresh("fair"), fresh("halves"));
    let [one, other] = [(); 2].map(|()| Member::quick(store));
    let write = |member: &Member| member.client.get_read_write_lock(&halves).write().clone();
    let fairly = |member: &Member| member.client.get_fair_lock(&fair);
    let threads = Threads::holding([[fairly(&one), write(&one)], [write(&other), fairly(&other)]]);
    let begun = threads.begin();
    for (deadlock, at) in are_told(&[&one, &other], &fair, &halves) {
        let mut kinds: Vec<&str> = deadlock.steps.iter().map(|step| &*step.kind).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, ["fair", "write"], "{deadlock}");
        assert!(at.duration_since(begun) <= TOLD_WITHIN + slack_since(begun));
    }
    assert!(threads.end() < 2);
    [one, other].iter().for_each(|member| drop(member.next(false)));
});

contract!(an_owned_guard_in_another_thread_makes_no_cycle, needs(Directory), |store| {
    let (a, b) = (fresh("a"), fresh("b"));
    let (one, other) = (Member::quick(store), Member::quick(store));
    let lock = one.lock(&a);
    let guard = elsewhere(move || lock.acquire_owned().unwrap());
    let waiter = Threads::holding([[other.lock(&b), other.lock(&a)]]);
    waiter.begin();
    throughout(ms(2_500), || one.is_told_nothing() && other.is_told_nothing());
    drop(guard);
    waiter.succeed();
});

const BROKEN_WITHIN: Duration = Duration::from_secs(8);

/// A thread of `older` holds all locks in `own` and waits for a lock of `younger`. Then `younger` waits for
/// the last lock in `own`. Asserts that this wait, which began later, is broken.
#[track_caller]
fn is_broken_for(younger: &Member, older: &Member, own: &[String]) {
    let other = fresh("other");
    let held = younger.lock(&other).acquire().unwrap();
    let locks: Vec<_> = own.iter().chain([&other]).map(|name| older.lock(name)).collect();
    let waits = Threads::holding([locks]);
    waits.begin();
    let_pass(ms(1_500), "the other wait is the older by far, and has been looked at");
    let begun = now();
    let wanted = younger.lock(own.last().unwrap());
    let got = wanted.try_acquire_for(LONG).map(|got| got.map(drop));
    let took = begun.elapsed();
    assert!(matches!(&got, Err(error) if error.kind() == ErrorKind::Deadlock), "{got:?} after {took:?}");
    assert!(took <= BROKEN_WITHIN + slack_since(begun), "it took {took:?}");
    held.unlock().unwrap();
    waits.succeed();
}

// A directory entry with 500 long names fits only into a large text column of a database.
contract!(a_deadlock_with_five_hundred_locks_is_broken, needs(Directory), |store| {
    let (one, many) = (Member::new(store, true), Member::new(store, true));
    let own: Vec<String> =
        (0..500).map(|at| format!("{}:{}", fresh(&format!("own{at}")), "x".repeat(50))).collect();
    is_broken_for(&one, &many, &own);
});

contract!(a_deadlock_through_names_of_a_thousand_bytes_is_broken, needs(Directory), |store| {
    let (one, other) = (Member::new(store, true), Member::new(store, true));
    is_broken_for(&one, &other, &[format!("{}:{}", fresh("long"), "x".repeat(1_000))]);
});

contract!(a_deadlocked_timed_wait_is_broken_before_its_limit, needs(Directory), |store| {
    let (one, other) = (Member::new(store, true), Member::new(store, true));
    let (a, b) = (fresh("a"), fresh("b"));
    let held = one.lock(&b).acquire().unwrap();
    let waits = Threads::holding([[other.lock(&a), other.lock(&b)]]);
    waits.begin();
    assert!(eventually(LONG, || is_known_to_wait(&other)));
    assert!(one.lock(&a).try_acquire_for(ms(300)).unwrap().is_none());
    let (begun, limit) = (now(), 2 * LONG);
    fails(one.lock(&a).try_acquire_for(limit).map(drop), ErrorKind::Deadlock);
    assert!(begun.elapsed() < limit);
    held.unlock().unwrap();
    waits.succeed();
});
