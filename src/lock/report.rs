//! Telling the program: the observer, loss callbacks, and the one thread they run on.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::observe::Observer;
use crate::sync::channel::{Sender, unbounded};
use crate::sync::{Mutex, thread};

type Job = Box<dyn FnOnce() + Send>;

/// Runs user code where it cannot hurt: never on the watchdog or the subscriber's reader.
pub(crate) struct Reporter {
    observers: Vec<Arc<dyn Observer>>,
    state: Mutex<State>,
}

enum State {
    NotStarted,
    Running(Sender<Job>),
    Closed,
}

impl Reporter {
    pub(crate) fn new(observer: Option<Arc<dyn Observer>>) -> Reporter {
        let mut observers: Vec<_> = observer.into_iter().collect();
        if let Some(logging) = crate::observe::logging() {
            observers.push(logging);
        }
        Reporter { observers, state: Mutex::new(State::NotStarted) }
    }

    /// Tells the observers on the calling thread.
    pub(crate) fn tell(&self, about: impl Fn(&dyn Observer)) {
        for observer in &self.observers {
            run(|| about(observer.as_ref()));
        }
    }

    /// Tells the observers on the callback thread.
    pub(crate) fn tell_later(&self, about: impl Fn(&dyn Observer) + Send + 'static) {
        if !self.observers.is_empty() {
            let observers = self.observers.clone();
            self.run_later(move || {
                for observer in observers {
                    run(|| about(observer.as_ref()));
                }
            });
        }
    }

    /// Runs `job` on the callback thread, which the first job starts. After [`close`](Self::close), and where no
    /// thread can be had, it runs here.
    pub(crate) fn run_later(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        if matches!(*state, State::NotStarted) {
            let (sender, jobs) = unbounded::<Job>();
            let started = thread::Builder::new()
                .name("leasehold-calls".to_owned())
                .spawn(move || jobs.iter().for_each(run));
            *state = if started.is_ok() { State::Running(sender) } else { State::Closed };
        }
        let sender = match &*state {
            State::Running(sender) => Some(sender.clone()),
            State::NotStarted | State::Closed => None,
        };
        drop(state);
        match sender {
            Some(sender) => {
                if let Err(unsent) = sender.send(Box::new(job)) {
                    run(unsent.into_inner());
                }
            }
            None => run(job),
        }
    }

    /// Lets the callback thread finish what is queued and end.
    pub(crate) fn close(&self) {
        *self.state.lock() = State::Closed;
    }
}

/// A callback that panics must not take the thread, or the caller's `Drop`, with it. The panic's own message has been
/// printed by the panic hook.
fn run(job: impl FnOnce()) {
    drop(catch_unwind(AssertUnwindSafe(job)));
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").finish_non_exhaustive()
    }
}
