//! An observer that records its calls.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use leasehold::crossbeam_channel::{Receiver, unbounded};
use leasehold::{Deadlock, Error, Loss, Observer};
use parking_lot::Mutex;

use super::{LONG, eventually, now};

/// An event that an observer recorded. Errors are recorded as texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Acquired(String),
    Released(String),
    ReleaseFailed(String, String),
    RenewalFailed(String, String),
    Lost(Loss),
    Abandoned(String),
    NoWakeups(String),
    WakeupsBack,
    Warning(String),
}

#[derive(Clone, Default)]
pub struct Seen(Arc<Mutex<Vec<(Instant, Event)>>>);

impl Seen {
    fn add(&self, event: Event) {
        self.0.lock().push((now(), event));
    }

    pub fn events(&self) -> Vec<Event> {
        self.0.lock().iter().map(|(_, event)| event.clone()).collect()
    }

    pub fn count(&self, pick: impl Fn(&Event) -> bool) -> usize {
        self.events().iter().filter(|event| pick(event)).count()
    }

    pub fn losses(&self) -> usize {
        self.count(|event| matches!(event, Event::Lost(_)))
    }

    #[track_caller]
    pub fn wait_for(&self, what: &str, pick: impl Fn(&Event) -> bool) {
        assert!(eventually(LONG, || self.count(&pick) > 0), "{what} was not reported: {:?}", self.events());
    }
}

impl Observer for Seen {
    fn event(&self, event: &leasehold::Event<'_>) {
        use leasehold::Event as Told;
        self.add(match *event {
            Told::Acquired { name, .. } => Event::Acquired(name.to_owned()),
            Told::Released { name, .. } => Event::Released(name.to_owned()),
            Told::ReleaseFailed { name, error, .. } => Event::ReleaseFailed(name.to_owned(), texts(error)),
            Told::RenewalFailed { name, error, .. } => Event::RenewalFailed(name.to_owned(), texts(error)),
            Told::Lost { loss, .. } => Event::Lost(loss.clone()),
            Told::Abandoned { name, .. } => Event::Abandoned(name.to_owned()),
            Told::WakeupsDown { error, .. } => Event::NoWakeups(texts(error)),
            Told::WakeupsUp => Event::WakeupsBack,
            Told::Warning { text, .. } => Event::Warning(text.to_owned()),
            _ => return,
        });
    }
}

/// An observer that sends what `pick` returns for an event (nothing if `None`), and the receiver.
pub fn observe<T: Send + 'static>(
    pick: impl Fn(&leasehold::Event<'_>) -> Option<T> + Send + Sync + 'static,
) -> (impl Observer, Receiver<T>) {
    let (sender, told) = unbounded();
    let observer = move |event: &leasehold::Event<'_>| {
        if let Some(seen) = pick(event) {
            sender.send(seen).ok(); // fails if the test has ended
        }
    };
    (observer, told)
}

/// An observer of deadlocks, and its receiver. A message says whether the deadlock begins or ends, which
/// deadlock it is, and when by `clock`.
pub fn deadlocks<T: Send + 'static>(clock: fn() -> T) -> (impl Observer, Receiver<(bool, Deadlock, T)>) {
    observe(move |event| match event {
        leasehold::Event::Deadlock { deadlock, .. } => Some((true, (*deadlock).clone(), clock())),
        leasehold::Event::DeadlockOver { deadlock, .. } => Some((false, (*deadlock).clone(), clock())),
        _ => None,
    })
}

/// An observer that adds the number of attempts of each grant to `sum`.
pub fn attempts(sum: &Arc<AtomicU32>) -> impl Observer + use<> {
    let sum = Arc::clone(sum);
    move |event: &leasehold::Event<'_>| {
        if let leasehold::Event::Acquired { attempts, .. } = event {
            sum.fetch_add(*attempts, Ordering::SeqCst);
        }
    }
}

/// The `Display` and `Debug` texts of an error and of all its causes.
pub fn texts(error: &Error) -> String {
    let mut texts = format!("{error} | {error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        texts += &format!(" | {error} | {error:?}");
        cause = error.source();
    }
    texts
}
