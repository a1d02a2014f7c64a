//! `sync` on shuttle, which may switch threads at every use of these types.
//!
//! Shuttle has no time. Here time stands still until a test's thread calls [`move_time`], which ends the
//! waits whose limit has passed.
//!
//! The file is long because it implements the interfaces of parking_lot, crossbeam and time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as Plain, PoisonError};
use std::time::Duration;

pub(crate) use shuttle::sync::atomic;
pub(crate) use shuttle::{thread, thread_local};

/// A switch point, like each use of shuttle's own types: here shuttle may run another thread.
fn point() {
    thread::sleep(Duration::ZERO);
}

pub(crate) fn toss() -> bool {
    use shuttle::rand::Rng;
    shuttle::rand::thread_rng().r#gen()
}

/// One wait of one thread. Only the first wake-up counts.
pub(crate) struct ModelWaiter {
    woken: AtomicBool,
    bell: shuttle::sync::mpsc::Sender<()>,
}

type ModelWaiters = Vec<Arc<ModelWaiter>>;

impl ModelWaiter {
    fn new() -> (Arc<ModelWaiter>, impl FnOnce()) {
        let (bell, rung) = shuttle::sync::mpsc::channel();
        let wait = move || rung.recv().unwrap();
        (Arc::new(ModelWaiter { woken: AtomicBool::new(false), bell }), wait)
    }

    fn wake(&self) -> bool {
        let is_first = !self.woken.swap(true, Ordering::SeqCst);
        if is_first && !thread::panicking() {
            self.bell.send(()).unwrap_or_default(); // the receiver may have stopped waiting
        }
        is_first
    }
}

fn forget(waiters: &mut ModelWaiters, waiter: &Arc<ModelWaiter>) {
    waiters.retain(|other| !Arc::ptr_eq(other, waiter));
}

#[derive(Default)]
struct ModelTime {
    now: u64,
    timers: Vec<(u64, Arc<ModelWaiter>)>,
}

std::thread_local! {
    /// Thread-local, so that each test has its own: shuttle runs all threads of a model in the test's thread.
    static TIME: RefCell<ModelTime> = RefCell::default();
}

pub(crate) fn restart_time() {
    TIME.with(|time| *time.borrow_mut() = ModelTime { now: 1, timers: Vec::new() });
}

pub(crate) fn now() -> u64 {
    TIME.with(|time| time.borrow().now)
}

pub(crate) fn move_time(span: Duration) {
    point();
    let due: ModelWaiters = TIME.with(|time| {
        let mut time = time.borrow_mut();
        time.now += nanos(span);
        let now = time.now;
        time.timers.extract_if(.., |(at, _)| *at <= now).map(|(_, waiter)| waiter).collect()
    });
    due.iter().for_each(|waiter| _ = waiter.wake());
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn deadline(limit: Duration) -> u64 {
    now().saturating_add(nanos(limit))
}

fn set_timer(at: u64, waiter: &Arc<ModelWaiter>) {
    TIME.with(|time| time.borrow_mut().timers.push((at, Arc::clone(waiter))));
}

fn unset_timer(waiter: &Arc<ModelWaiter>) {
    TIME.with(|time| time.borrow_mut().timers.retain(|(_, other)| !Arc::ptr_eq(other, waiter)));
}

#[derive(Default)]
pub(crate) struct Mutex<T> {
    inner: shuttle::sync::Mutex<T>,
    limited: Plain<ModelWaiters>,
}

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` while the mutex is released for a wait.
    inner: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex { inner: shuttle::sync::Mutex::new(value), limited: Plain::new(Vec::new()) }
    }

    fn locked(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, inner: Some(self.locked()) }
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock().ok()?;
        Some(MutexGuard { mutex: self, inner: Some(inner) })
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.try_lock().is_none()
    }

    pub(crate) fn try_lock_for(&self, limit: Duration) -> Option<MutexGuard<'_, T>> {
        let until = deadline(limit);
        loop {
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
            if now() >= until {
                return None;
            }
            let (waiter, wait) = ModelWaiter::new();
            self.limited.lock().unwrap().push(Arc::clone(&waiter));
            set_timer(until, &waiter);
            wait();
            unset_timer(&waiter);
            forget(&mut self.limited.lock().unwrap(), &waiter);
        }
    }
}

impl<'a, T> MutexGuard<'a, T> {
    pub(crate) fn unlocked<R>(guard: &mut MutexGuard<'a, T>, f: impl FnOnce() -> R) -> R {
        guard.let_go();
        let result = f();
        guard.inner = Some(guard.mutex.locked());
        result
    }

    fn let_go(&mut self) {
        self.inner = None;
        if !thread::panicking() {
            let limited = std::mem::take(&mut *self.mutex.limited.lock().unwrap());
            limited.iter().for_each(|waiter| _ = waiter.wake());
        }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().unwrap()
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

#[derive(Default)]
pub(crate) struct Condvar {
    waiters: Plain<VecDeque<Arc<ModelWaiter>>>,
}

impl Condvar {
    pub(crate) const fn new() -> Condvar {
        Condvar { waiters: Plain::new(VecDeque::new()) }
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_until(guard, None);
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) {
        self.wait_until(guard, Some(deadline(limit)));
    }

    fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Option<u64>) {
        if until.is_some_and(|until| now() >= until) {
            return;
        }
        let (waiter, wait) = ModelWaiter::new();
        self.waiters.lock().unwrap().push_back(Arc::clone(&waiter));
        if let Some(until) = until {
            set_timer(until, &waiter);
        }
        MutexGuard::unlocked(guard, || {
            wait();
            unset_timer(&waiter);
            self.waiters.lock().unwrap().retain(|other| !Arc::ptr_eq(other, &waiter));
        });
    }

    pub(crate) fn notify_one(&self) {
        point();
        loop {
            let Some(first) = self.waiters.lock().unwrap().pop_front() else { return };
            if first.wake() {
                return;
            }
        }
    }

    pub(crate) fn notify_all(&self) {
        point();
        let all = std::mem::take(&mut *self.waiters.lock().unwrap());
        all.iter().for_each(|waiter| _ = waiter.wake());
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}

/// A cell that is set once. Setting it is no switch point, so no thread sees it half set.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    inner: std::sync::OnceLock<T>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock { inner: std::sync::OnceLock::new() }
    }
}

impl<T> OnceLock<T> {
    pub(crate) fn get(&self) -> Option<&T> {
        point();
        self.inner.get()
    }

    pub(crate) fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        point();
        self.inner.get_or_init(init)
    }
}

macro_rules! select {
    ($(recv($source:expr) -> _ => $then:expr,)+) => {{
        let sources: &[&dyn $crate::sync::channel::Source] = &[$(&$source),+];
        let at = $crate::sync::channel::pick(sources);
        sources.iter().nth(at).into_iter().for_each(|source| source.consume());
        let mut arm = 0..;
        loop {
            $(if arm.next() == Some(at) { break $then; })+
        }
    }};
}
pub(crate) use select;

pub(crate) mod channel {
    use super::*;

    pub(crate) use super::select;
    pub(crate) use crossbeam_channel::{RecvTimeoutError, SendError, TryRecvError, TrySendError};

    struct ChannelState<T> {
        queue: VecDeque<T>,
        room: usize,
        senders: usize,
        receivers: usize,
        /// When a timer channel becomes ready.
        rings_at: Option<u64>,
        waiters: ModelWaiters,
    }

    type ChannelShared<T> = Arc<Plain<ChannelState<T>>>;

    pub(crate) struct Sender<T>(ChannelShared<T>);
    pub(crate) struct Receiver<T>(ChannelShared<T>);

    fn channel<T>(room: usize) -> (Sender<T>, Receiver<T>) {
        let state = ChannelState {
            queue: VecDeque::new(),
            room,
            senders: 1,
            receivers: 1,
            rings_at: None,
            waiters: Vec::new(),
        };
        let shared = Arc::new(Plain::new(state));
        (Sender(Arc::clone(&shared)), Receiver(shared))
    }

    pub(crate) fn bounded<T>(room: usize) -> (Sender<T>, Receiver<T>) {
        channel(room)
    }

    pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
        channel(usize::MAX)
    }

    pub(crate) fn never<T>() -> Receiver<T> {
        let receiver = channel(0).1;
        receiver.0.lock().unwrap().senders = 1; // so the channel never counts as disconnected
        receiver
    }

    pub(crate) fn after(limit: Duration) -> Receiver<()> {
        let receiver = never();
        receiver.0.lock().unwrap().rings_at = Some(deadline(limit));
        receiver
    }

    impl<T> Sender<T> {
        pub(crate) fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
            point();
            let waiters = {
                let mut state = self.0.lock().unwrap();
                if state.receivers == 0 {
                    return Err(TrySendError::Disconnected(value));
                }
                if state.queue.len() >= state.room {
                    return Err(TrySendError::Full(value));
                }
                state.queue.push_back(value);
                std::mem::take(&mut state.waiters)
            };
            waiters.iter().for_each(|waiter| _ = waiter.wake());
            Ok(())
        }

        pub(crate) fn send(&self, value: T) -> Result<(), SendError<T>> {
            self.try_send(value).map_err(|unsent| SendError(unsent.into_inner()))
        }

        pub(crate) fn is_empty(&self) -> bool {
            point();
            self.0.lock().unwrap().queue.is_empty()
        }
    }

    impl<T> Receiver<T> {
        pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
            point();
            self.take()
        }

        pub(crate) fn recv_timeout(&self, limit: Duration) -> Result<T, RecvTimeoutError> {
            match pick(&[self, &after(limit)]) {
                0 => self.take().map_err(|_gone| RecvTimeoutError::Disconnected),
                _ => Err(RecvTimeoutError::Timeout),
            }
        }

        pub(crate) fn iter(&self) -> impl Iterator<Item = T> {
            std::iter::from_fn(|| {
                pick(&[self]);
                self.take().ok()
            })
        }

        fn take(&self) -> Result<T, TryRecvError> {
            let mut state = self.0.lock().unwrap();
            match state.queue.pop_front() {
                Some(value) => Ok(value),
                None if state.senders == 0 => Err(TryRecvError::Disconnected),
                None => Err(TryRecvError::Empty),
            }
        }
    }

    impl<T> Clone for Sender<T> {
        fn clone(&self) -> Sender<T> {
            self.0.lock().unwrap().senders += 1;
            Sender(Arc::clone(&self.0))
        }
    }

    impl<T> Drop for Sender<T> {
        fn drop(&mut self) {
            let waiters = {
                let Ok(mut state) = self.0.lock() else { return };
                state.senders -= 1;
                if state.senders > 0 {
                    return;
                }
                std::mem::take(&mut state.waiters)
            };
            waiters.iter().for_each(|waiter| _ = waiter.wake());
        }
    }

    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            if let Ok(mut state) = self.0.lock() {
                state.receivers -= 1;
                let unread = std::mem::take(&mut state.queue);
                drop(state);
                drop(unread);
            }
        }
    }

    impl<T> fmt::Debug for Sender<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Sender")
        }
    }

    impl<T> fmt::Debug for Receiver<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Receiver")
        }
    }

    pub(crate) trait Source {
        fn is_ready(&self) -> bool;
        fn enrol(&self, waiter: &Arc<ModelWaiter>);
        fn strike(&self, waiter: &Arc<ModelWaiter>);
        fn consume(&self);
    }

    impl<T> Source for Receiver<T> {
        fn is_ready(&self) -> bool {
            let state = self.0.lock().unwrap();
            !state.queue.is_empty() || state.senders == 0 || state.rings_at.is_some_and(|at| now() >= at)
        }

        fn enrol(&self, waiter: &Arc<ModelWaiter>) {
            let mut state = self.0.lock().unwrap();
            state.waiters.push(Arc::clone(waiter));
            if let Some(at) = state.rings_at {
                set_timer(at, waiter);
            }
        }

        fn strike(&self, waiter: &Arc<ModelWaiter>) {
            forget(&mut self.0.lock().unwrap().waiters, waiter);
            unset_timer(waiter);
        }

        fn consume(&self) {
            drop(self.take());
        }
    }

    impl<S: Source + ?Sized> Source for &S {
        fn is_ready(&self) -> bool {
            (**self).is_ready()
        }

        fn enrol(&self, waiter: &Arc<ModelWaiter>) {
            (**self).enrol(waiter);
        }

        fn strike(&self, waiter: &Arc<ModelWaiter>) {
            (**self).strike(waiter);
        }

        fn consume(&self) {
            (**self).consume();
        }
    }

    /// Waits until a source is ready; among several, shuttle chooses.
    pub(crate) fn pick(sources: &[&dyn Source]) -> usize {
        point();
        loop {
            let ready: Vec<usize> = (0..sources.len()).filter(|at| sources[*at].is_ready()).collect();
            if let Some((last, others)) = ready.split_last() {
                return others.iter().copied().find(|_| toss()).unwrap_or(*last);
            }
            let (waiter, wait) = ModelWaiter::new();
            sources.iter().for_each(|source| source.enrol(&waiter));
            wait();
            sources.iter().for_each(|source| source.strike(&waiter));
        }
    }
}

/// Number of schedules of each sort in [`check`]; the long test (`LEASEHOLD_SCHEDULES`) runs more.
const SCHEDULES: usize = 300;

/// Runs `body` under many schedules: random ones, and ones with few, well-placed switches (PCT).
///
/// Deadlocks and endless schedules fail.
pub(crate) fn check(body: impl Fn() + Send + Sync + 'static) {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    let body = Arc::new(body);
    let run = |scheduler: Box<dyn shuttle::scheduler::Scheduler + Send>| {
        let mut config = shuttle::Config::new();
        config.stack_size = 256 * 1024;
        config.max_steps = shuttle::MaxSteps::FailAfter(50_000);
        config.silence_warnings = true;
        let body = Arc::clone(&body);
        shuttle::Runner::new(scheduler, config).run(move || {
            restart_time();
            body();
        })
    };
    let schedules = std::env::var("LEASEHOLD_SCHEDULES").map_or(SCHEDULES, |count| count.parse().unwrap());
    let random = run(Box::new(RandomScheduler::new(schedules)));
    let changes = run(Box::new(PctScheduler::new(3, schedules)));
    assert_eq!(random + changes, 2 * schedules);
    println!("{random} schedules at random, {changes} by PCT");
}

pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> std::io::Result<thread::ScopedJoinHandle<'scope, T>> {
    Ok(scope.spawn(body))
}

pub(crate) fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new().spawn(body).unwrap()
}
