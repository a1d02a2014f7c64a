//! Reports to the program: observers, loss callbacks, and the one thread that runs them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::config::debug_fields;
use crate::error::Error;
use crate::observe::Observer;
use crate::observe::event::Event;
use crate::observe::event::Loss;
use crate::observe::stats::Counters;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::channel::{Sender, unbounded};
use crate::sync::{Mutex, thread, thread_local};
use crate::time::{Clock, Moment};

type CallbackJob = Box<dyn FnOnce() + Send>;

pub(crate) type OnLost = Box<dyn FnOnce(&Loss) + Send>;

/// Runs the program's observers and callbacks so that they delay neither renewals nor reading messages.
pub(crate) struct Reporter {
    observers: Vec<Arc<dyn Observer>>,
    has_own: bool,
    pub(crate) counters: Counters,
    state: Mutex<CallbackThread>,
    news: Arc<DroppableReports>,
    /// How many subscriptions are down. If any is, releases by other clients may wake no waiter here.
    subscriptions_down: AtomicUsize,
    /// Events that observers have not received yet: `Some` is a `WakeupsDown`, `None` a `WakeupsUp`.
    unheard: Arc<Mutex<VecDeque<Option<Error>>>>,
    unneeded: Arc<Mutex<UnneededCallbacks>>,
}

/// Loss callbacks of released holds: they will never run, and wait to be dropped; see `drop_later`.
#[derive(Default)]
struct UnneededCallbacks {
    callbacks: Vec<OnLost>,
    has_job: bool,
}

/// Counts of the reports (of renewals and releases) that may be dropped while callbacks do not keep up.
#[derive(Default)]
struct DroppableReports {
    waiting: AtomicUsize,
    dropped: AtomicU64,
}

const MOST_NEWS: usize = 1024;

/// From this many queued `WakeupsDown` and `WakeupsUp` on, a new event and its opposite at the queue's end
/// cancel each other.
const MOST_UNHEARD: usize = 16;

const MOST_UNNEEDED: usize = 1024;

thread_local! {
    /// The addresses of reporters that run program code on this thread during a call, innermost last.
    static RUNS_HERE: RefCell<Vec<usize>> = RefCell::default();
}

enum CallbackThread {
    NotStarted,
    Running(Sender<CallbackJob>),
    Closed,
}

impl Reporter {
    pub(crate) fn new(observer: Option<Arc<dyn Observer>>) -> Reporter {
        let has_own = observer.is_some();
        let mut observers: Vec<_> = observer.into_iter().collect();
        if let Some(logging) = crate::observe::logging() {
            observers.push(logging);
        }
        Reporter {
            observers,
            has_own,
            counters: Counters::default(),
            state: Mutex::new(CallbackThread::NotStarted),
            news: Arc::default(),
            unneeded: Arc::default(),
            subscriptions_down: AtomicUsize::new(0),
            unheard: Arc::default(),
        }
    }

    pub(crate) fn is_observed(&self) -> bool {
        !self.observers.is_empty()
    }

    pub(crate) fn warn_if_unheard(&self, text: impl FnOnce() -> String) {
        if !self.has_own && !crate::observe::is_logged() {
            drop(writeln!(std::io::stderr(), "leasehold: {}", text()));
        }
    }

    /// Whether this thread runs an observer or a callback inside this client's own code. That code may be at
    /// any step, so the observer must not call the client.
    pub(crate) fn is_telling_here(&self) -> bool {
        let here = std::ptr::from_ref(self).addr();
        // An ending thread may have no thread-local storage. `run_here` then notes nothing: `false`.
        RUNS_HERE.try_with(|running| running.borrow().contains(&here)).unwrap_or(false)
    }

    /// Runs the program's code on this thread, for which `is_telling_here` is true meanwhile.
    fn run_here(&self, job: impl FnOnce()) {
        let here = std::ptr::from_ref(self).addr();
        let is_noted = RUNS_HERE.try_with(|running| running.borrow_mut().push(here)).is_ok();
        run(job);
        if is_noted {
            RUNS_HERE.try_with(|running| running.borrow_mut().pop()).ok();
        }
    }

    /// Returns a value whose drop reports the request, so that the caller can act on the answer first. `None`
    /// without observers.
    pub(crate) fn request_report(
        &self,
        op: &'static str,
        sent: Moment,
        clock: &Clock,
        error: Option<&Error>,
    ) -> Option<RequestReport<'_>> {
        self.is_observed().then(|| RequestReport {
            reporter: self,
            op,
            took: clock.now().since(sent),
            error: error.map(Error::copy),
        })
    }

    /// Reports, on the calling thread, a request that was sent at `sent` and has just ended.
    pub(crate) fn report_request(
        &self,
        op: &'static str,
        sent: Moment,
        clock: &Clock,
        error: Option<&Error>,
    ) {
        drop(self.request_report(op, sent, clock, error));
    }

    /// As [`report_request`](Self::report_request), but by [`observe_news`](Self::observe_news).
    pub(crate) fn observe_request(
        &self,
        op: &'static str,
        sent: Moment,
        clock: &Clock,
        error: Option<&Error>,
    ) {
        if self.is_observed() {
            let (took, error) = (clock.now().since(sent), error.map(Error::copy));
            self.observe_news(move |observer| {
                observer.event(&Event::Request { op, took, error: error.as_ref() });
            });
        }
    }

    /// Notifies the observers on the calling thread.
    pub(crate) fn report(&self, about: impl Fn(&dyn Observer)) {
        for observer in &self.observers {
            self.run_here(|| about(observer.as_ref()));
        }
    }

    /// Makes a report on the callback thread. If too many reports wait, the new one is dropped and counted. A
    /// new thread reports the first drop, since the callback thread may be stuck; `CallbacksCaughtUp` reports
    /// the number of drops.
    pub(crate) fn observe_news(&self, about: impl Fn(&dyn Observer) + Send + 'static) {
        if self.observers.is_empty() {
            return;
        }
        let news = Arc::clone(&self.news);
        if news.waiting.fetch_add(1, Ordering::SeqCst) >= MOST_NEWS {
            news.waiting.fetch_sub(1, Ordering::SeqCst);
            if news.dropped.fetch_add(1, Ordering::SeqCst) == 0 {
                let observers = self.observers.clone();
                let notify =
                    move || report_to(&observers, |observer| observer.event(&Event::CallbacksDelayed));
                // If no thread can be started, only `CallbacksCaughtUp` reports the drops, afterwards.
                drop(thread::Builder::new().name("leasehold-news".to_owned()).spawn(notify));
            }
            return;
        }
        let observers = self.observers.clone();
        self.run_later(move || {
            report_to(&observers, about);
            let waiting = news.waiting.fetch_sub(1, Ordering::SeqCst) - 1;
            if waiting <= MOST_NEWS / 2 && news.dropped.load(Ordering::SeqCst) > 0 {
                let dropped = news.dropped.swap(0, Ordering::SeqCst);
                report_to(&observers, |observer| observer.event(&Event::CallbacksCaughtUp { dropped }));
            }
        });
    }

    /// Notifies the observers on the callback thread, however many reports wait; for losses and rare events.
    pub(crate) fn observe_later(&self, about: impl Fn(&dyn Observer) + Send + 'static) {
        if !self.observers.is_empty() {
            let observers = self.observers.clone();
            self.run_later(move || report_to(&observers, about));
        }
    }

    /// Reports that a subscription is down, with the reason, or up again (`None`). The reporter counts the
    /// subscriptions that are down, so each change must be reported once.
    pub(crate) fn wakeups(&self, down: Option<Error>) {
        match down {
            Some(_) => self.subscriptions_down.fetch_add(1, Ordering::SeqCst),
            None => self.subscriptions_down.fetch_sub(1, Ordering::SeqCst),
        };
        if self.observers.is_empty() {
            return;
        }
        let mut unheard = self.unheard.lock();
        let has_job = !unheard.is_empty();
        let is_opposite = unheard.back().is_some_and(|last| last.is_some() != down.is_some());
        if is_opposite && unheard.len() >= MOST_UNHEARD {
            unheard.pop_back();
        } else {
            unheard.push_back(down);
        }
        drop(unheard);
        if !has_job {
            let (unheard, observers) = (Arc::clone(&self.unheard), self.observers.clone());
            self.run_later(move || {
                loop {
                    // A statement of its own, so that the mutex is free while the program's code runs.
                    let next = unheard.lock().pop_front();
                    let Some(down) = next else { return };
                    let event = down.as_ref().map_or(Event::WakeupsUp, |error| Event::WakeupsDown { error });
                    report_to(&observers, |observer| observer.event(&event));
                }
            });
        }
    }

    pub(crate) fn can_wake(&self) -> bool {
        self.subscriptions_down.load(Ordering::SeqCst) == 0
    }

    /// Runs `job` on the callback thread, which the first job starts. After [`close`](Self::close), and where
    /// no thread can be started, runs `job` on the calling thread.
    pub(crate) fn run_later(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        if matches!(*state, CallbackThread::NotStarted) {
            let (sender, jobs) = unbounded::<CallbackJob>();
            let started = thread::Builder::new()
                .name("leasehold-calls".to_owned())
                .spawn(move || jobs.iter().for_each(run));
            *state = if started.is_ok() { CallbackThread::Running(sender) } else { CallbackThread::Closed };
        }
        let sender = match &*state {
            CallbackThread::Running(sender) => Some(sender.clone()),
            CallbackThread::NotStarted | CallbackThread::Closed => None,
        };
        drop(state);
        match sender {
            Some(sender) => {
                if let Err(unsent) = sender.send(Box::new(job)) {
                    self.run_here(unsent.into_inner());
                }
            }
            None => self.run_here(job),
        }
    }

    /// Drops, on the callback thread, a loss callback that will not run. The callback may own the client,
    /// whose end waits for the thread that reads replies: if that thread dropped the callback, it would wait
    /// for itself. If too many callbacks wait, the callback thread may be stuck, so a new thread drops all.
    pub(crate) fn drop_later(&self, callback: OnLost) {
        let (is_first, too_many) = {
            let mut unneeded = self.unneeded.lock();
            unneeded.callbacks.push(callback);
            let is_too_many = unneeded.callbacks.len() > MOST_UNNEEDED;
            let too_many = is_too_many.then(|| std::mem::take(&mut unneeded.callbacks));
            (!std::mem::replace(&mut unneeded.has_job, true), too_many)
        };
        if is_first {
            let unneeded = Arc::clone(&self.unneeded);
            self.run_later(move || {
                let mut asked = unneeded.lock();
                asked.has_job = false;
                let callbacks = std::mem::take(&mut asked.callbacks);
                drop(asked); // a dropped callback may end a hold, and so lock this mutex
                drop_all(callbacks);
            });
        }
        if let Some(callbacks) = too_many {
            // If no thread can be started, the callbacks are dropped here.
            let work = move || drop_all(callbacks);
            drop(thread::Builder::new().name("leasehold-drops".to_owned()).spawn(work));
        }
    }

    /// Lets the callback thread finish what is queued and end.
    pub(crate) fn close(&self) {
        *self.state.lock() = CallbackThread::Closed;
    }
}

pub(crate) struct RequestReport<'a> {
    reporter: &'a Reporter,
    op: &'static str,
    took: Duration,
    error: Option<Error>,
}

impl Drop for RequestReport<'_> {
    fn drop(&mut self) {
        let event = Event::Request { op: self.op, took: self.took, error: self.error.as_ref() };
        self.reporter.report(|observer| observer.event(&event));
    }
}

fn report_to(observers: &[Arc<dyn Observer>], about: impl Fn(&dyn Observer)) {
    observers.iter().for_each(|observer| run(|| about(observer.as_ref())));
}

/// Runs the program's code and catches its panic, which the panic hook has printed.
fn run(job: impl FnOnce()) {
    drop(catch_unwind(AssertUnwindSafe(job)));
}

/// Drops each callback separately, so that a panic in one drop does not prevent the other drops.
fn drop_all(callbacks: Vec<OnLost>) {
    callbacks.into_iter().for_each(|callback| run(|| drop(callback)));
}

debug_fields!(Reporter, |_|);

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests {
    use crossbeam_channel::{Sender, unbounded};

    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::ident::{ClientId, Owner};
    use crate::observe::{Loss, LossReason};

    #[derive(Debug, PartialEq)]
    enum Reported {
        Failure,
        Loss,
        Behind(Option<u64>),
    }

    struct RecordingObserver(Sender<Reported>);

    impl Observer for RecordingObserver {
        fn event(&self, event: &Event<'_>) {
            let reported = match *event {
                Event::RenewalFailed { .. } => Reported::Failure,
                Event::Lost { .. } => Reported::Loss,
                Event::CallbacksDelayed => Reported::Behind(None),
                Event::CallbacksCaughtUp { dropped, .. } => Reported::Behind(Some(dropped)),
                _ => return,
            };
            self.0.send(reported).unwrap();
        }
    }

    struct WakeupsObserver(Sender<bool>);

    impl Observer for WakeupsObserver {
        fn event(&self, event: &Event<'_>) {
            self.0.send(matches!(event, Event::WakeupsUp)).unwrap();
        }
    }

    #[test]
    fn queued_subscription_reports_are_bounded() {
        let down = || Some(Error::new(ErrorKind::Unreachable, "subscribe", "no answer"));
        for ends_down in [false, true] {
            let (sender, reported) = unbounded();
            let reporter = Reporter::new(Some(Arc::new(WakeupsObserver(sender))));
            let (free, blocked) = unbounded::<()>();
            reporter.run_later(move || assert!(blocked.recv().is_err()));
            for _ in 0..1_000 {
                reporter.wakeups(down());
                reporter.wakeups(None);
            }
            if ends_down {
                reporter.wakeups(down());
            }
            assert!(reporter.unheard.lock().len() <= MOST_UNHEARD);
            assert_eq!(reporter.can_wake(), !ends_down);
            drop(free);
            // `close` ends the callback thread. Then no sender is left, so `reported.iter()` ends.
            reporter.close();
            drop(reporter);
            let heard: Vec<bool> = reported.iter().collect();
            assert!(heard.len() <= MOST_UNHEARD && heard.last() == Some(&!ends_down), "{heard:?}");
        }
    }

    #[test]
    fn observer_code_on_the_calling_thread_is_recognised() {
        let reporter = Arc::new(Reporter::new(Some(Arc::new(WakeupsObserver(unbounded().0)))));
        let other = Reporter::new(None);
        let asks = |reporter: &Arc<Reporter>| {
            let ((sender, told), reporter) = (unbounded(), Arc::clone(reporter));
            (told, move || sender.send(reporter.is_telling_here()).unwrap())
        };
        let (told, ask) = asks(&reporter);
        reporter.report(|_| {
            ask();
            assert!(!other.is_telling_here());
            reporter.report(|_| ask());
        });
        ask();
        // With the feature `tracing` the logging observer answers too, so there may be more than three.
        let mut told: Vec<_> = told.try_iter().collect();
        assert!(told.len() >= 3);
        told.dedup();
        assert_eq!(told, [true, false]);
        reporter.report(|_| panic!("told on purpose"));
        assert!(!reporter.is_telling_here());
        let (told, ask) = asks(&reporter);
        reporter.observe_news(move |_| ask());
        let (also, ask) = asks(&reporter);
        reporter.observe_later(move |_| ask());
        let (job, ask) = asks(&reporter);
        reporter.run_later(ask);
        assert_eq!([told.recv(), also.recv(), job.recv()], [Ok(false), Ok(false), Ok(false)]);
        // `close` ends the callback thread, so `run_later` runs the job on this thread.
        reporter.close();
        let (told, ask) = asks(&reporter);
        reporter.run_later(ask);
        assert_eq!(told.recv(), Ok(true));
    }

    #[test]
    fn no_loss_report_is_dropped_while_a_callback_blocks() {
        let (sender, reported) = unbounded();
        let reporter = Reporter::new(Some(Arc::new(RecordingObserver(sender))));
        let (free, blocked) = unbounded::<()>();
        reporter.run_later(move || assert!(blocked.recv().is_err()));
        let (news, losses) = (10_000, 2_000);
        let owner = Owner::new(ClientId::random(), 1);
        for n in 0..news {
            let error = Error::new(ErrorKind::TimedOut, "renew", "no answer");
            reporter.observe_news(move |observer| {
                let remaining = std::time::Duration::ZERO;
                observer.event(&Event::RenewalFailed {
                    name: "a",
                    kind: "lock",
                    owner,
                    error: &error,
                    remaining,
                });
            });
            if n % (news / losses) == 0 {
                let loss = Loss { name: "a".to_owned(), owner, reason: LossReason::Expired };
                reporter.observe_later(move |observer| {
                    let (held, overdue) = (std::time::Duration::ZERO, std::time::Duration::ZERO);
                    let (loss, kind) = (&loss, "lock");
                    observer.event(&Event::Lost { loss, kind, held, overdue, is_abandoned: false })
                });
            }
        }
        assert_eq!(reported.recv().unwrap(), Reported::Behind(None));
        drop(free);
        reporter.close();
        let reported: Vec<_> = reported.iter().take(MOST_NEWS + losses + 1).collect();
        let count = |wanted: &Reported| reported.iter().filter(|reported| *reported == wanted).count();
        assert_eq!((count(&Reported::Failure), count(&Reported::Loss)), (MOST_NEWS, losses));
        assert_eq!(count(&Reported::Behind(Some((news - MOST_NEWS) as u64))), 1);
    }
}
