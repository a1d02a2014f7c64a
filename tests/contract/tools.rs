//! Threads that hold or wait, and the passing of time: order comes from channels and conditions, never from sleeping.
#![allow(dead_code, reason = "shared by several test programs, each of which uses its part")]

use std::fs;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, RecvTimeoutError, Sender, after, bounded};
use leasehold::{Owner, RedisLock};

pub(crate) use crate::support::now;
pub(crate) use crate::support::stalls::{about_to_end, stalled_since};

/// How much later than promised something may be seen on a busy two-core machine.
pub(crate) const SLACK: Duration = Duration::from_millis(250);

/// After this a test gives up on something that should have come long ago.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The lease of holds that are to be seen renewed: a renewal that is late for want of a processor still comes in time.
pub(crate) const RENEWED: Duration = ms(3_000);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Between two looks.
fn nap(span: Duration) {
    after(span).recv().expect("a timer fires");
}

/// Starts the meter.
pub(crate) fn watch_for_stalls() {
    stalled_since(now());
}

/// By how much something that began at `start` may be late.
pub(crate) fn slack_since(start: Instant) -> Duration {
    SLACK + stalled_since(start)
}

/// What comes by the channel within `limit`, not counting the time for which the machine stood still. Waited for is longer:
/// only when it has come is known how long those who sent it were kept waiting.
pub(crate) fn receive<T>(from: &Receiver<T>, limit: Duration) -> Result<T, RecvTimeoutError> {
    let start = now();
    let received = from.recv_timeout(limit + PATIENCE);
    let took = start.elapsed();
    if took <= limit + stalled_since(start) { received } else { Err(RecvTimeoutError::Timeout) }
}

/// Waits until `condition` holds, and says how long that took; fails if that was longer than `limit`, not counting the time
/// for which the machine stood still.
#[track_caller]
pub(crate) fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) -> Duration {
    let start = now();
    loop {
        let holds = condition();
        let took = start.elapsed();
        if holds {
            let stalled = stalled_since(start);
            assert!(
                took <= limit + stalled,
                "this took {took:?}, not {limit:?}; the machine stood still for {stalled:?}"
            );
            return took;
        }
        assert!(took < limit + PATIENCE, "this has not come about within {limit:?}");
        nap(ms(2));
    }
}

/// Looks for `span`, and fails as soon as `condition` does not hold.
#[track_caller]
pub(crate) fn throughout(span: Duration, mut condition: impl FnMut() -> bool) {
    let start = now();
    loop {
        let holds = condition();
        // A look that ends later says nothing about the span.
        let is_over = start.elapsed() >= span;
        assert!(
            holds || is_over,
            "this did not stay so: it changed after {:?} of {span:?}; the machine stood still for {:?} of that",
            start.elapsed(),
            stalled_since(start)
        );
        if is_over {
            return;
        }
        nap(ms(5));
    }
}

/// Lets real time pass; `reason` says why no condition can be waited for.
pub(crate) fn let_pass(span: Duration, reason: &str) {
    assert!(!reason.is_empty());
    nap(span);
}

/// Runs `work` on another thread, to its end.
pub(crate) fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Panics without the panic hook's message, where the panic is part of the test.
pub(crate) fn quiet_panic() -> ! {
    std::panic::resume_unwind(Box::new("meant to panic"))
}

fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::Builder::new().spawn(work).expect("a thread can be started")
}

/// Another thread that holds a lock until it is told to release it, or until this is dropped.
pub(crate) struct Holding {
    owner: Owner,
    release: Sender<()>,
    thread: Option<JoinHandle<Instant>>,
}

impl Holding {
    /// Returns once the lock is held.
    #[track_caller]
    pub(crate) fn take(lock: &RedisLock) -> Holding {
        Holding::take_with(lock, |lock| lock.acquire().expect("the lock can be taken"))
    }

    #[track_caller]
    pub(crate) fn take_with(
        lock: &RedisLock,
        take: impl FnOnce(&RedisLock) -> leasehold::Guard + Send + 'static,
    ) -> Holding {
        let (held, is_held) = bounded(1);
        let (release, told) = bounded::<()>(1);
        let lock = lock.clone();
        let thread = spawn(move || {
            let guard = take(&lock);
            held.send(guard.owner()).expect("the test waits for this");
            told.recv().ok(); // told to, or dropped: both end it
            let at = now();
            guard.unlock().expect("the hold stood until its release");
            at
        });
        let owner = is_held.recv_timeout(PATIENCE).expect("the lock is taken by the other thread");
        Holding { owner, release, thread: Some(thread) }
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Releases; returns when it is done, with the moment just before.
    #[track_caller]
    pub(crate) fn release(mut self) -> Instant {
        self.release.send(()).expect("the holding thread waits for this");
        self.thread.take().expect("released once").join().expect("the lock was released")
    }
}

/// Another thread that is in a call which waits.
pub(crate) struct Waiter<T> {
    task: PathBuf,
    outcome: Receiver<(T, Instant)>,
    early: Option<(T, Instant)>,
}

impl<T: Send + 'static> Waiter<T> {
    /// Returns once the thread is asleep in `call`, or `call` has returned. To wait for a server's answer is no sleep.
    #[track_caller]
    pub(crate) fn start(call: impl FnOnce() -> T + Send + 'static) -> Waiter<T> {
        let mut waiter = Waiter::begin(call);
        waiter.settle();
        waiter
    }

    /// Returns once the thread runs.
    #[track_caller]
    pub(crate) fn begin(call: impl FnOnce() -> T + Send + 'static) -> Waiter<T> {
        let (tell, told) = bounded(1);
        let (sender, outcome) = bounded(1);
        drop(spawn(move || {
            tell.send(fs::read_link("/proc/thread-self")).expect("the test waits for this");
            let value = call();
            let at = now();
            about_to_end();
            sender.send((value, at)).ok(); // the test may have failed by now
        }));
        let task = told.recv_timeout(PATIENCE).expect("the thread starts").unwrap_or_default();
        Waiter { task: PathBuf::from("/proc").join(task), outcome, early: None }
    }

    /// Waits until the thread sleeps: asleep, and not once awake in between, for 20 ms. Or until its call returned.
    #[track_caller]
    pub(crate) fn settle(&mut self) {
        let begun = now();
        let mut last = (None, begun);
        loop {
            assert!(begun.elapsed() < PATIENCE, "the thread does not come to rest");
            if self.is_over() {
                return;
            }
            let sleeps = self.sleeps();
            if sleeps.is_none() || sleeps != last.0 {
                last = (sleeps, now());
            } else if last.1.elapsed() >= ms(20) {
                return;
            }
            nap(ms(1));
        }
    }

    /// How often the thread has gone to sleep, if it is asleep, and not in wait of what a server answers. Where the system
    /// does not tell, always asleep.
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

    /// Whether the call has returned.
    pub(crate) fn is_over(&mut self) -> bool {
        if self.early.is_none() {
            self.early = self.outcome.try_recv().ok();
        }
        self.early.is_some()
    }

    /// What the call returned, and when; fails if it does not return within `limit` from now.
    #[track_caller]
    pub(crate) fn returns_within(self, limit: Duration) -> (T, Instant) {
        if let Some(early) = self.early {
            return early;
        }
        let start = now();
        match self.outcome.recv_timeout(limit + PATIENCE) {
            Ok((value, at)) => {
                let (took, stalled) = (at.saturating_duration_since(start), stalled_since(start));
                assert!(took <= limit + stalled, "the call returned after {took:?}, not within {limit:?}");
                (value, at)
            }
            Err(RecvTimeoutError::Timeout) => panic!("the call has not returned within {limit:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the call panicked"),
        }
    }
}

/// The middle one.
pub(crate) fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans[spans.len() / 2]
}

/// Runs the calling test again in a process of its own, where no other test's threads are, and `body` there.
pub(crate) fn alone(body: impl FnOnce()) {
    const ALONE: &str = "LEASEHOLD_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let name = thread::current().name().expect("a test's thread has its name").to_owned();
    let program = std::env::current_exe().expect("this program");
    let program = program.to_str().expect("a path in Unicode");
    let again = [program, name.as_str(), "--exact", "--nocapture"];
    let (good, text) = crate::support::run(&again, |command| command.env(ALONE, "1"));
    assert!(good && text.contains("1 passed"), "{name} alone failed:\n{text}");
}

/// How many threads this process has.
pub(crate) fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("Linux shows the threads").count()
}
