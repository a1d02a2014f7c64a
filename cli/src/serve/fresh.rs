//! Values that are read from the store when they are asked for, and then reused for a second or longer.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::{Error, ErrorKind, LockClient};

use crate::clock::Moment;

const FRESH: Duration = Duration::from_secs(1);
/// The store counts as silent if a request takes longer than this.
const SILENCE: Duration = Duration::from_secs(2);

pub(crate) struct Fresh<T>(Arc<Shared<T>>);

struct Shared<T> {
    state: Mutex<State<T>>,
    is_wanted: Condvar,
    is_made: Condvar,
}

struct State<T> {
    is_wanted: bool,
    running: Option<(Moment, u64)>,
    made: Option<Made<T>>,
    failure: Option<(ErrorKind, Moment)>,
    tried: Option<(Moment, Duration)>,
    made_total: u64,
    failed_total: u64,
}

struct Made<T> {
    value: Arc<T>,
    /// When reading of the value began, since the value is as old as its oldest part.
    since: Moment,
}

pub(crate) struct Seen<T> {
    pub(crate) last: Option<(Arc<T>, Duration)>,
    pub(crate) failure: Option<Trouble>,
    pub(crate) running: Option<(Duration, u64)>,
    pub(crate) made_total: u64,
    pub(crate) failed_total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) kind: ErrorKind,
    pub(crate) lasting: Duration,
}

impl<T> Seen<T> {
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let silent = self.running.map(|(lasting, _)| lasting).filter(|lasting| *lasting >= SILENCE);
        self.failure.or(silent.map(|lasting| Trouble { kind: ErrorKind::TimedOut, lasting }))
    }
}

impl Trouble {
    /// A description that every visitor of the page may see: without addresses or text from the store.
    pub(crate) fn words(self) -> &'static str {
        match self.kind {
            ErrorKind::Unreachable | ErrorKind::TimedOut => "the store does not answer",
            ErrorKind::Authentication | ErrorKind::NoPermission => {
                "the store refuses the user of this program"
            }
            ErrorKind::Unsupported => "the store has no lists",
            _ => "the store cannot be used",
        }
    }
}

pub(crate) type Progress<'a> = &'a dyn Fn(u64);

impl Fresh<()> {
    pub(crate) fn health(client: &LockClient, name: &str) -> io::Result<Fresh<()>> {
        let (client, name) = (client.clone(), name.to_owned());
        Fresh::start("health", move |_| client.inspect(&name).map(|_| ((), FRESH)), |_| {})
    }
}

impl<T: Send + Sync + 'static> Fresh<T> {
    pub(crate) fn start(
        name: &str,
        mut make: impl FnMut(Progress<'_>) -> Result<(T, Duration), Error> + Send + 'static,
        mut outcome: impl FnMut(Option<&Error>) + Send + 'static,
    ) -> io::Result<Fresh<T>> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                is_wanted: false,
                running: None,
                made: None,
                failure: None,
                tried: None,
                made_total: 0,
                failed_total: 0,
            }),
            is_wanted: Condvar::new(),
            is_made: Condvar::new(),
        });
        let fresh = Fresh(Arc::clone(&shared));
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            loop {
                let since = shared.wait_until_wanted();
                let made = make(&|done| shared.lock().running = Some((since, done)));
                outcome(made.as_ref().err());
                shared.finish(since, made);
            }
        })?;
        Ok(fresh)
    }

    pub(crate) fn want(&self) {
        self.get(Duration::ZERO);
    }

    /// The newest value. If it is no longer fresh, first waits until the store has been read again, but at
    /// most for `wait`.
    pub(crate) fn get(&self, wait: Duration) -> Seen<T> {
        let end = Moment::now().plus(wait);
        let mut state = self.0.lock();
        let before = state.tried;
        if !state.is_fresh(Moment::now()) {
            state.is_wanted = true;
            self.0.is_wanted.notify_one();
            while state.tried == before {
                let left = end.since(Moment::now());
                if left.is_zero() {
                    break;
                }
                state = self.0.is_made.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        state.seen(Moment::now())
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until_wanted(&self) -> Moment {
        let mut state = self.lock();
        while !state.is_wanted {
            state = self.is_wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_wanted = false;
        let now = Moment::now();
        state.running = Some((now, 0));
        now
    }

    fn finish(&self, since: Moment, made: Result<(T, Duration), Error>) {
        let now = Moment::now();
        let mut state = self.lock();
        state.running = None;
        state.is_wanted = false; // this value also serves callers that asked during the computation
        match made {
            Ok((value, fresh)) => {
                // A value that takes long to compute is computed less often.
                state.tried = Some((now, fresh.max(now.since(since)).max(FRESH)));
                state.made = Some(Made { value: Arc::new(value), since });
                state.failure = None;
                state.made_total += 1;
            }
            Err(error) => {
                let first = state.failure.map_or(since, |(_, first)| first);
                state.failure = Some((error.kind(), first));
                state.failed_total += 1;
                // After a failure the next attempt comes soon, even if the failure took long.
                state.tried = Some((now, FRESH));
            }
        }
        drop(state);
        self.is_made.notify_all();
    }
}

impl<T> State<T> {
    fn is_fresh(&self, now: Moment) -> bool {
        self.tried.is_some_and(|(at, fresh)| now.since(at) < fresh)
    }

    fn seen(&self, now: Moment) -> Seen<T> {
        Seen {
            last: self.made.as_ref().map(|made| (Arc::clone(&made.value), now.since(made.since))),
            failure: self.failure.map(|(kind, since)| Trouble { kind, lasting: now.since(since) }),
            running: self.running.map(|(since, done)| (now.since(since), done)),
            made_total: self.made_total,
            failed_total: self.failed_total,
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold::crossbeam_channel::bounded;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_value_is_reused_for_the_time_returned_with_it() {
        let fresh = Fresh::start("test", |_| Ok(((), LONG)), |_| {}).unwrap();
        assert!(fresh.get(LONG).last.is_some());
        let state = fresh.0.lock();
        let (at, _) = state.tried.unwrap();
        assert!(state.is_fresh(at.plus(LONG / 2)) && !state.is_fresh(at.plus(LONG)));
    }

    #[test]
    fn get_returns_the_progress_of_the_running_computation() {
        let (go, may_go) = bounded::<()>(0);
        let make = move |progress: Progress<'_>| {
            progress(7);
            may_go.recv().ok();
            Ok(((), FRESH))
        };
        let fresh = Fresh::start("test", make, |_| {}).unwrap();
        fresh.want();
        while fresh.get(Duration::ZERO).running.is_none_or(|(_, done)| done < 7) {
            std::thread::yield_now();
        }
        drop(go); // lets the maker's thread continue
    }
}
