//! The keys that a client's watch reports, and those that it is on: the keys in front of waiters, and the lines of
//! locks that this client keeps until others ask for them, who ask by putting a key.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::Result;
use crate::park::ServiceWaker;
use crate::seam::hub::{Hub, HubChannel, HubState};
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::stores::etcd::early::Holds;
use crate::stores::etcd::members::{Members, Transport};
use crate::stores::etcd::message::{Front, KeyLine, OWNERS};
use crate::sync::Waker;
use crate::time::{Clock, Moment};
use crate::wire::Wire;

/// The channels are those of waiters, by their keys, and those of kept locks, by their lines.
pub(super) type Watch = Hub<EtcdWatch>;
pub(super) type WatchHub = HubState<EtcdWatch>;

pub(super) struct EtcdWatch {
    pub(super) members: Arc<Members>,
    /// For the thread's questions.
    pub(super) wire: Transport,
}

#[derive(Default)]
pub(super) struct EtcdNote {
    pub(super) waiter: Waiter,
    pub(super) kept: Option<Kept>,
}

#[derive(Default)]
pub(super) struct WatchState {
    /// The holds to watch, where leases may end early; else none.
    pub(super) holds: Option<Holds>,
    pub(super) watchdog: Option<ServiceWaker>,
    /// The thread sleeps until somebody signals.
    pub(super) is_idle: bool,
    /// How often a watch was given up for another.
    pub(super) renewals: u64,
    /// The keys that the watch is on.
    pub(super) scope: Option<Scope>,
    /// It stands: keys that go from now on are reported.
    pub(super) is_up: bool,
    pub(super) connection: Option<Arc<Wire>>,
}

#[derive(Default)]
pub(super) struct Waiter {
    pub(super) place: Option<WatchPlace>,
    /// A key was asked for, so it may be there or come.
    pub(super) has_asked: bool,
    /// The key in front, until it is known to have gone.
    pub(super) front: Option<Front>,
}

/// A key that was put and not yet found to be the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WatchPlace {
    pub(super) created: i64,
    pub(super) lease: i64,
}

/// A line in which a key that is put asks this client for the lock.
pub(super) struct Kept {
    pub(super) line: KeyLine,
    /// The key by which this client holds it, or asks for it.
    pub(super) own: Option<String>,
}

impl Kept {
    /// Whether a key is one of the line.
    pub(super) fn has(&self, key: &str) -> bool {
        STANDARD.decode(key).is_ok_and(|key| key.starts_with(self.line.text().as_bytes()))
    }
}

/// A report of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// That this key goes.
    Key(String),
    /// That keys of this line come or go.
    Line(KeyLine),
    /// That keys go; and, if it says so, that they come.
    All { with_puts: bool },
}

impl Scope {
    fn is_wide(&self) -> bool {
        matches!(self, Scope::All { .. })
    }

    /// Whether it reports what the other does.
    fn covers(&self, other: &Scope) -> bool {
        match self {
            Scope::All { with_puts: true } => true,
            Scope::All { with_puts: false } => {
                matches!(other, Scope::Key(_) | Scope::All { with_puts: false })
            }
            Scope::Key(_) | Scope::Line(_) => self == other,
        }
    }
}

impl WatchHub {
    /// The keys to watch.
    fn targets(&self, now: Moment) -> impl Iterator<Item = &str> {
        let holds = self.own.holds.iter().flat_map(move |holds| holds.settled(now)).map(|(key, _)| key);
        self.fronts().map(|front| front.key.as_str()).chain(holds)
    }

    /// The keys to be watched; `None`: none.
    pub(super) fn wanted(&self, now: Moment) -> Option<Scope> {
        let mut lines = self.lines();
        let (line, is_only) = (lines.next(), lines.next().is_none());
        if let Some(kept) = line {
            let is_enough = is_only && self.targets(now).all(|key| kept.has(key));
            return Some(if is_enough {
                Scope::Line(kept.line.clone())
            } else {
                Scope::All { with_puts: true }
            });
        }
        let mut targets = self.targets(now);
        let first = targets.next()?;
        let is_one = targets.all(|other| other == first);
        Some(if is_one { Scope::Key(first.to_owned()) } else { Scope::All { with_puts: false } })
    }

    /// Whether the watch reports all that is to be watched, or will when it stands.
    pub(super) fn is_covered(&self, now: Moment) -> bool {
        let wanted = self.wanted(now);
        wanted.is_none_or(|wanted| self.own.scope.as_ref().is_some_and(|scope| scope.covers(&wanted)))
    }

    pub(super) fn is_wide(&self) -> bool {
        self.own.scope.as_ref().is_some_and(Scope::is_wide)
    }

    /// When a hold is to be watched as well for which the watch would have to be another.
    pub(super) fn next_settles(&self, now: Moment) -> Option<Moment> {
        self.own.holds.as_ref().filter(|_| !self.is_wide())?.next_settles(now)
    }

    pub(super) fn fronts(&self) -> impl Iterator<Item = &Front> {
        self.channels.values().filter_map(|entry| entry.note.waiter.front.as_ref())
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &Kept> {
        self.channels.values().filter_map(|entry| entry.note.kept.as_ref())
    }
}

/// How long [`Watch::end`] waits for those who wait.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// A waiter is known by its key.
impl Watch {
    /// Has `waker` woken when there is reason to look again.
    pub(super) fn wait_at(self: &Arc<Self>, key: &str, waker: &Waker) -> Option<Subscription> {
        self.state.lock().waiter(key);
        self.listen(key, waker)
    }

    /// How often there was reason to, if it is reported.
    pub(super) fn count_at(&self, key: &str) -> Option<u64> {
        let mut state = self.state.lock();
        let channel = &state.waiter(key).channel;
        channel.is_up().then(|| channel.message_count())
    }

    /// A key is about to be asked for.
    pub(super) fn asks(&self, key: &str) {
        if let Some(entry) = self.state.lock().channels.get_mut(key) {
            entry.note.waiter.has_asked = true;
        }
    }

    /// Whether one is known to have come, and to have left before it asked for a key.
    pub(super) fn left_early(&self, key: &str) -> bool {
        let mut state = self.state.lock();
        let is_early = state.channels.get(key).is_some_and(|entry| !entry.note.waiter.has_asked);
        is_early && state.end(key).is_some()
    }

    /// The place of a waiter, and the key in front of it.
    pub(super) fn place(&self, key: &str) -> Option<(WatchPlace, Option<Front>)> {
        let state = self.state.lock();
        let waiter = &state.channels.get(key)?.note.waiter;
        Some((waiter.place?, waiter.front.clone()))
    }

    /// Has a waiter notified when the key in front has gone. `true`: it may have gone since it was seen, and
    /// nobody will report it. Never waits for the server.
    pub(super) fn follow(self: &Arc<Self>, key: &str, place: WatchPlace, front: Front) -> bool {
        let mut state = self.state.lock();
        let waiter = &mut state.waiter(key).note.waiter;
        (waiter.place, waiter.has_asked) = (Some(place), true);
        if waiter.front.as_ref() == Some(&front) {
            return false;
        }
        waiter.front = Some(front);
        if state.closed {
            return false;
        }
        if state.is_wide() {
            return state.own.is_up;
        }
        self.begin_anew(&mut state);
        false
    }

    /// A key has gone: who stands behind it is to look.
    pub(super) fn gone(&self, key: &str) {
        for entry in self.state.lock().channels.values_mut() {
            if entry.note.waiter.front.take_if(|front| front.key == key).is_some() {
                entry.channel.notify();
            }
        }
    }

    /// One does not wait any more, or has lost the place.
    pub(super) fn leave(&self, key: &str, for_good: bool) {
        let mut state = self.state.lock();
        if for_good {
            if state.end(key).is_none() {
                return; // nor did it wait
            }
        } else if let Some(entry) = state.channels.get_mut(key) {
            (entry.note.waiter.place, entry.note.waiter.front) = (None, None);
        }
        self.changed.notify_all();
    }

    /// Lets those who wait leave, and closes. Waits for that, but not for ever.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        let deadline = Clock::System.after(LAST_WAIT);
        // They have been notified; each takes its key away.
        while state.channels.values().any(|entry| entry.note.waiter.place.is_some()) {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        drop(state);
        self.protocol.wire.close();
        self.close();
    }
}

impl WatchHub {
    /// Up from the beginning: while nobody is in front there is nothing to miss.
    fn waiter(&mut self, key: &str) -> &mut HubChannel<EtcdNote> {
        let is_up = !self.is_down_reported;
        self.enter(key, is_up)
    }
}

impl Watch {
    /// Has `waker` woken when somebody comes to wait for a lock that this client keeps. Never waits for the
    /// server.
    pub(super) fn hear(self: &Arc<Self>, line: KeyLine, waker: &Waker) -> Option<Subscription> {
        let mut state = self.state.lock();
        let source = Arc::clone(self) as Arc<dyn ChannelSource>;
        let listening = state.join(line.text(), waker, source)?;
        let entry = state.enter(line.text(), false);
        entry.lingers = false;
        entry.note.kept.get_or_insert(Kept { line, own: None });
        let channel = Arc::clone(&entry.channel);
        if !state.is_covered(Clock::System.now()) {
            self.begin_anew(&mut state);
        } else if state.own.is_up && !channel.is_up() {
            channel.set_up(true); // else when the watch stands
        }
        Some(listening)
    }

    /// A lock is about to be asked for by this key, to be kept: that it comes is no recall.
    pub(super) fn caches(&self, line: &KeyLine, key: &str) {
        let mut state = self.state.lock();
        if let Some(kept) = state.channels.get_mut(line.text()).and_then(|entry| entry.note.kept.as_mut()) {
            kept.own = Some(key.to_owned());
        }
    }

    /// Others wait for a lock that is to be kept.
    pub(super) fn wanted(&self, line: &KeyLine) {
        if let Some(entry) = self.state.lock().channels.get(line.text()) {
            entry.channel.notify();
        }
    }

    /// A key was put: whoever keeps the lock of its line is asked for that.
    pub(super) fn put(&self, key: &str) {
        if let Some(channel) = self.state.lock().recalled_by(key) {
            channel.notify();
        }
    }

    /// Asks for what is kept here where others have come to wait before the watch stood.
    pub(super) fn check_queues(&self, lines: &[KeyLine]) -> Result<()> {
        self.look_at(
            lines,
            |line| line.last(None),
            |_line, last| {
                last.iter().for_each(|last| self.put(&last.key));
            },
        )
    }
}

impl WatchHub {
    /// The channel of the lock that is wanted by a key, if this client keeps that.
    fn recalled_by(&self, key: &str) -> Option<&Arc<Channel>> {
        let text = String::from_utf8(STANDARD.decode(key).ok()?).ok()?;
        let (lock, _owner) = text.rsplit_once(OWNERS)?;
        let entry = self.channels.get(format!("{lock}{OWNERS}").as_str())?;
        let kept = entry.note.kept.as_ref()?;
        (kept.own.as_deref() != Some(key)).then_some(&entry.channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServerOptions;
    use crate::ident::{ClientId, Owner};
    use crate::observe::reporter::Reporter;
    use crate::stores::etcd::members::Members;
    use crate::stores::etcd::watch::watch;

    /// A client's, of a cluster of which no member answers.
    fn hub() -> Arc<Watch> {
        let options = ServerOptions { url: "etcd://127.0.0.1:1".to_owned(), ..ServerOptions::default() };
        watch(Arc::new(Members::new(&options).unwrap()), Arc::new(Reporter::new(None)))
    }

    fn key(line: &KeyLine) -> String {
        line.key(Owner::new(ClientId::random(), 7))
    }

    #[test]
    fn anothers_key_recalls_a_cached_lock() {
        let hub = hub();
        let (line, other) = (KeyLine::new("leasehold/", "a/b"), KeyLine::new("leasehold/", "a"));
        let (own, theirs) = (key(&line), key(&line));
        hub.put(&theirs); // nobody listens
        let listening = hub.hear(line.clone(), &Waker::default()).unwrap();
        hub.caches(&line, &own);
        hub.caches(&other, &own);
        let recalls = |key: &str| hub.state.lock().recalled_by(key).is_some();
        assert!(!recalls(&own) && recalls(&theirs));
        assert!(!recalls(&key(&other)), "of another lock");
        assert!(!recalls("no base 64"));
        let has = |key: &str| hub.state.lock().lines().all(|kept| kept.has(key));
        assert!(has(&own) && !has(&key(&other)));
        let second = hub.hear(other, &Waker::default()).unwrap();
        drop(listening);
        assert!(!recalls(&theirs), "nobody listens any more");
        drop(second);
        assert!(hub.is_idle());
        hub.end();
    }

    #[test]
    fn a_watch_on_one_queue_does_not_cover_another() {
        let [one, other] = ["a", "b"].map(|name| KeyLine::new("leasehold/", name));
        let key = key(&one);
        for (scope, others) in [
            (Scope::Line(one.clone()), Scope::Line(other)),
            (Scope::Key(key.clone()), Scope::Key("another".to_owned())),
            (Scope::Line(one), Scope::Key(key)),
        ] {
            assert!(scope.covers(&scope) && !scope.covers(&others), "{scope:?} {others:?}");
        }
    }

    #[test]
    fn the_next_holds_key_is_no_recall() {
        let hub = hub();
        let line = KeyLine::new("leasehold/", "a/b");
        let (first, next) = (key(&line), key(&line));
        let _listening = hub.hear(line.clone(), &Waker::default()).unwrap();
        hub.caches(&line, &first);
        hub.caches(&line, &next);
        let recalls = |key: &str| hub.state.lock().recalled_by(key).is_some();
        assert!(!recalls(&next) && recalls(&first));
        hub.end();
    }
}
