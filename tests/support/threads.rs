//! Threads of a test that hold a lock, wait for one, or make a long call. Tests order them without sleeps.

use std::fs;
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use leasehold::{AcquireOptions, Interrupt, LockClient, Owner, RedisLock};

use super::stalls::{about_to_end, stalled_since};
use super::{LONG, SLACK, eventually, let_pass, ms, now, slack_since};

/// Runs `work` on another thread, and returns its result.
pub fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Runs `work` with each value, in a thread of its own. Returns when all have ended.
pub fn side_by_side<V: Send>(values: impl IntoIterator<Item = V>, work: impl Fn(V) + Sync) {
    let work = &work;
    thread::scope(|scope| {
        for value in values {
            scope.spawn(move || work(value));
        }
    });
}

/// Panics without a message on standard error, for tests in which a thread must panic.
pub fn quiet_panic() -> ! {
    std::panic::resume_unwind(Box::new("meant to panic"))
}

pub fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::Builder::new().spawn(work).expect("a thread can be started")
}

/// Makes two threads deadlock: each holds one of these locks and waits for the other, until `is_seen` is true
/// or a time limit ends. Returns whether `is_seen` was true.
pub fn deadlocked(client: &LockClient, names: [&str; 2], is_seen: impl FnMut() -> bool) -> bool {
    let (meet, interrupt) = (Barrier::new(2), Interrupt::new());
    thread::scope(|scope| {
        for (own, other) in [(names[0], names[1]), (names[1], names[0])] {
            let (meet, interrupt) = (&meet, &interrupt);
            scope.spawn(move || {
                let _held = client.get_lock(own).acquire().unwrap();
                meet.wait();
                client.get_lock(other).acquire_with(&AcquireOptions::new().interrupt(interrupt)).map(drop)
            });
        }
        let is_seen = eventually(LONG, is_seen);
        interrupt.interrupt();
        is_seen
    })
}

pub struct Call<T> {
    outcome: Receiver<(T, Instant)>,
}

pub fn call<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Call<T> {
    let (sender, outcome) = bounded(1);
    drop(start(move || {
        let value = work();
        let at = now();
        about_to_end();
        sender.send((value, at)).ok(); // fails if the test has failed
    }));
    Call { outcome }
}

impl<T> Call<T> {
    #[track_caller]
    pub fn join(self) -> T {
        self.outcome().0
    }

    #[track_caller]
    pub fn outcome(self) -> (T, Instant) {
        self.outcome_within(LONG)
    }

    #[track_caller]
    pub fn outcome_within(self, limit: Duration) -> (T, Instant) {
        match self.outcome.recv_timeout(limit) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => panic!("the call has not returned within {limit:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the call panicked"),
        }
    }

    /// The call's result. Panics if it came later than `promised`, [`SLACK`] and all stalls after `start`.
    #[track_caller]
    pub fn returns_within(self, start: Instant, promised: Duration, what: &str) -> T {
        let (value, at) = self.outcome();
        let (took, stalled) = (at.saturating_duration_since(start), stalled_since(start));
        assert!(
            took <= promised + SLACK + stalled,
            "{what} took {took:?}, promised are {promised:?} (the machine itself stalled {stalled:?})"
        );
        value
    }

    pub fn is_over(&self) -> bool {
        !self.is_open()
    }

    pub fn is_open(&self) -> bool {
        self.outcome.is_empty()
    }
}

pub fn call_on<V: Send + 'static, T: Send + 'static>(
    value: V,
    work: impl FnOnce(V) -> T + Send + 'static,
) -> Call<T> {
    call(move || work(value))
}

pub fn turn(lock: RedisLock) -> impl FnOnce() -> Instant + Send + 'static {
    move || {
        let guard = lock.acquire().unwrap();
        let had = now();
        guard.unlock().unwrap();
        had
    }
}

/// Ends a hold: by `unlock` if `by` is "unlock", and otherwise by a drop of the guard.
#[track_caller]
pub fn end(by: &str, guard: leasehold::Guard) {
    if by == "unlock" { guard.unlock().unwrap() } else { drop(guard) }
}

/// A thread that holds a lock until this value is released or dropped.
pub struct Holding {
    owner: Owner,
    release: Sender<()>,
    thread: Option<JoinHandle<Instant>>,
}

impl Holding {
    /// Starts the thread, and returns once it holds the lock.
    #[track_caller]
    pub fn take(lock: &RedisLock) -> Holding {
        Holding::take_with(lock, |lock| lock.acquire().expect("the lock can be taken"))
    }

    #[track_caller]
    pub fn take_with(
        lock: &RedisLock,
        take: impl FnOnce(&RedisLock) -> leasehold::Guard + Send + 'static,
    ) -> Holding {
        let (held, is_held) = bounded(1);
        let (release, told) = bounded::<()>(1);
        let lock = lock.clone();
        let thread = start(move || {
            let guard = take(&lock);
            held.send(guard.owner()).expect("the test receives the owner");
            told.recv().ok(); // a message or the dropped sender ends the hold
            let at = now();
            guard.unlock().expect("the hold stood until its release");
            at
        });
        let owner = is_held.recv_timeout(LONG).expect("the other thread has the lock");
        Holding { owner, release, thread: Some(thread) }
    }

    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Releases the lock and waits for the answer. Returns the time just before the release.
    #[track_caller]
    pub fn release(mut self) -> Instant {
        self.release.send(()).expect("the holding thread waits for the message");
        self.thread.take().expect("released once").join().expect("the lock was released")
    }
}

/// A [`Call`] whose thread sleeps until something wakes it.
pub struct Waiter<T> {
    call: Call<T>,
    task: PathBuf,
}

/// Asserts that each waiter returns within `limit` after the waiters before it in the list.
#[track_caller]
pub fn all_return<T: Send + 'static>(waiters: impl IntoIterator<Item = Waiter<T>>, limit: Duration) {
    for waiter in waiters {
        waiter.returns_within(limit);
    }
}

/// How long a thread must sleep to count as waiting. Windows does not show sleeps, so there each thread
/// counts as waiting after this time.
const REST: Duration = if cfg!(windows) { ms(300) } else { ms(20) };

impl<T: Send + 'static> Waiter<T> {
    /// Starts a thread, and returns once the thread has ended, or waits for something other than a server.
    #[track_caller]
    pub fn start(work: impl FnOnce() -> T + Send + 'static) -> Waiter<T> {
        let waiter = Waiter::begin(work);
        waiter.settle();
        waiter
    }

    #[track_caller]
    pub fn on<V: Send + 'static>(value: V, work: impl FnOnce(V) -> T + Send + 'static) -> Waiter<T> {
        Waiter::start(move || work(value))
    }

    /// Starts a thread, and returns once it runs.
    #[track_caller]
    pub fn begin(work: impl FnOnce() -> T + Send + 'static) -> Waiter<T> {
        let (sender, link) = bounded(1);
        let call = call(move || {
            sender.send(fs::read_link("/proc/thread-self")).expect("the test receives the thread's link");
            work()
        });
        let task = link.recv_timeout(LONG).expect("the thread starts").unwrap_or_default();
        Waiter { call, task: PathBuf::from("/proc").join(task) }
    }

    /// Waits until the thread has slept for [`REST`] without waking, or fifteen times, or its call is over.
    #[track_caller]
    pub fn settle(&self) {
        let begun = now();
        let (mut last, mut first) = ((None, begun), None);
        loop {
            assert!(begun.elapsed() < LONG, "the thread does not go to sleep");
            if self.is_over() {
                return;
            }
            let sleeps = self.sleeps();
            first = first.or(sleeps);
            // A thread that polls every few milliseconds, as on SQLite, never sleeps for `REST`, so fifteen
            // sleeps count as well.
            if let (Some(first), Some(sleeps)) = (first, sleeps)
                && sleeps >= first + 15
            {
                return;
            }
            if sleeps.is_none() || sleeps != last.0 {
                last = (sleeps, now());
            } else if last.1.elapsed() >= REST {
                return;
            }
            let_pass(ms(1), "between two checks");
        }
    }

    /// How often the thread has gone to sleep; `None` if it does not sleep now, or waits for a server. On a
    /// system that does not show this, the thread counts as asleep.
    fn sleeps(&self) -> Option<u64> {
        #[cfg(target_os = "linux")]
        if let Ok(call) = fs::read_to_string(self.task.join("syscall"))
            && call.split(' ').next() != Some(libc::SYS_futex.to_string().as_str())
        {
            return None;
        }
        let Ok(status) = fs::read_to_string(self.task.join("status")) else { return Some(0) };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let is_asleep = field("State:")?.trim().starts_with('S');
        let count = field("voluntary_ctxt_switches:")?.trim().parse().ok()?;
        is_asleep.then_some(count)
    }

    pub fn is_over(&self) -> bool {
        self.call.is_over()
    }

    /// The call's result. Panics unless the call returned within 50 ms plus [`slack_since`] after `since`: a
    /// poll would come later.
    #[track_caller]
    pub fn woken_since(self, since: Instant) -> T {
        let (value, returned) = self.returns_within(LONG);
        let (took, most) = (returned.duration_since(since), ms(50) + slack_since(since));
        assert!(took < most, "the call returned after {took:?}, not within {most:?}");
        value
    }

    /// The call's result, and when it returned. Panics if that is later than `limit` plus all stalls.
    #[track_caller]
    pub fn returns_within(self, limit: Duration) -> (T, Instant) {
        let start = now();
        let (value, at) = self.call.outcome_within(limit + LONG);
        let (took, stalled) = (at.saturating_duration_since(start), stalled_since(start));
        assert!(took <= limit + stalled, "the call returned after {took:?}, not within {limit:?}");
        (value, at)
    }
}
