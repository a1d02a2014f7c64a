//! The keys of which a client needs events: keys in front of waiters, keys of holds that may end early, and
//! queues of cached locks, in which a new key is a recall (another client wants the lock).

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::park::ServiceWaker;
use crate::seam::hub::{Hub, HubChannel, HubState};
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::stores::etcd::early::Holds;
use crate::stores::etcd::members::{Members, Transport};
use crate::stores::etcd::message::{Front, KeyLine, OWNERS};
use crate::sync::Waker;
use crate::time::{Clock, Moment};
use crate::wire::Wire;

/// The watch of a client, with a channel for each waiter, named by the waiter's key, and for each cached
/// lock, named by the lock's queue.
pub(super) type Watch = Hub<EtcdWatch>;
pub(super) type WatchHub = HubState<EtcdWatch>;

pub(super) struct EtcdWatch {
    pub(super) members: Arc<Members>,
    pub(super) wire: Transport,
}

#[derive(Default)]
pub(super) struct EtcdNote {
    pub(super) waiter: Waiter,
    pub(super) kept: Option<Kept>,
}

#[derive(Default)]
pub(super) struct WatchState {
    /// The client's holds, if their leases may end early.
    pub(super) holds: Holds,
    pub(super) watchdog: Option<ServiceWaker>,
    pub(super) is_idle: bool,
    pub(super) reopened: u64,
    pub(super) scope: Option<Scope>,
    pub(super) is_up: bool,
    pub(super) connection: Option<Arc<Wire>>,
}

#[derive(Default)]
pub(super) struct Waiter {
    pub(super) place: Option<WatchPlace>,
    /// Whether a request for the key was sent, so that the key may exist.
    pub(super) has_asked: bool,
    /// The key in front of the waiter's key, until it is deleted.
    pub(super) front: Option<Front>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WatchPlace {
    pub(super) created: i64,
    pub(super) lease: i64,
}

/// The queue of a lock that this client caches: a new key in it is a recall.
pub(super) struct Kept {
    pub(super) line: KeyLine,
    /// The client's own key in this queue, which is no recall.
    pub(super) own: Option<String>,
}

impl Kept {
    pub(super) fn has(&self, key: &str) -> bool {
        STANDARD.decode(key).is_ok_and(|key| key.starts_with(self.line.text().as_bytes()))
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Key(String),
    Line(KeyLine),
    /// All keys below the prefix that are deleted; with `with_puts` also those that are put.
    All {
        with_puts: bool,
    },
}

impl Scope {
    fn is_wide(&self) -> bool {
        matches!(self, Scope::All { .. })
    }

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
    fn targets(&self, now: Moment) -> impl Iterator<Item = &str> {
        let holds = self.own.holds.settled(now).map(|(key, _)| key);
        self.fronts().map(|front| front.key.as_str()).chain(holds)
    }

    /// The smallest scope with all keys to watch; `None` if there are none.
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

    /// Whether the watch covers all that is needed, or will once it is open.
    pub(super) fn is_covered(&self, now: Moment) -> bool {
        let wanted = self.wanted(now);
        wanted.is_none_or(|wanted| self.own.scope.as_ref().is_some_and(|scope| scope.covers(&wanted)))
    }

    pub(super) fn is_wide(&self) -> bool {
        self.own.scope.as_ref().is_some_and(Scope::is_wide)
    }

    /// When the next hold becomes old enough to be watched. `None`: none will, or the watch covers all keys.
    pub(super) fn next_settles(&self, now: Moment) -> Option<Moment> {
        if self.is_wide() { None } else { self.own.holds.next_settles(now) }
    }

    pub(super) fn fronts(&self) -> impl Iterator<Item = &Front> {
        self.channels.values().filter_map(|entry| entry.note.waiter.front.as_ref())
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &Kept> {
        self.channels.values().filter_map(|entry| entry.note.kept.as_ref())
    }
}

/// How long [`Watch::end`] waits for waiters to leave.
const LAST_WAIT: Duration = Duration::from_secs(1);

impl Watch {
    /// Registers a waiter: `waker` is woken when the waiter should repeat its attempt. `None` after shutdown.
    pub(super) fn wait_at(self: &Arc<Self>, key: &str, waker: &Waker) -> Option<Subscription> {
        self.state.lock().waiter(key);
        self.listen(key, waker)
    }

    /// The number of wake-ups of the waiter so far; `None` between a failed watch and the next one, because
    /// wake-ups may be missing then.
    pub(super) fn count_at(&self, key: &str) -> Option<u64> {
        let mut state = self.state.lock();
        let channel = &state.waiter(key).channel;
        channel.is_up().then(|| channel.message_count())
    }

    /// Notes that a request for the key is about to be sent.
    pub(super) fn asks(&self, key: &str) {
        if let Some(entry) = self.state.lock().channels.get_mut(key) {
            entry.note.waiter.has_asked = true;
        }
    }

    /// Removes a waiter that has sent no request. Returns `false` if there is none, or a request was sent.
    pub(super) fn left_early(&self, key: &str) -> bool {
        let mut state = self.state.lock();
        let is_early = state.channels.get(key).is_some_and(|entry| !entry.note.waiter.has_asked);
        is_early && state.end(key).is_some()
    }

    pub(super) fn place(&self, key: &str) -> Option<(WatchPlace, Option<Front>)> {
        let state = self.state.lock();
        let waiter = &state.channels.get(key)?.note.waiter;
        Some((waiter.place?, waiter.front.clone()))
    }

    /// Makes the deletion of `front` wake the waiter. Does not wait until the watch covers `front`. Returns
    /// `true` if `front` may have been deleted already without an event, so the caller must read the queue
    /// again.
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

    pub(super) fn gone(&self, key: &str) {
        for entry in self.state.lock().channels.values_mut() {
            if entry.note.waiter.front.take_if(|front| front.key == key).is_some() {
                entry.channel.notify();
            }
        }
    }

    /// Notes that the waiter stops waiting (`for_good`), or that its key is gone.
    pub(super) fn leave(&self, key: &str, for_good: bool) {
        let mut state = self.state.lock();
        if for_good {
            if state.end(key).is_none() {
                return; // no waiter had this key
            }
        } else if let Some(entry) = state.channels.get_mut(key) {
            (entry.note.waiter.place, entry.note.waiter.front) = (None, None);
        }
        self.changed.notify_all();
    }

    /// Waits up to [`LAST_WAIT`] until all waiters have left, and closes the watch.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        let deadline = Clock::System.after(LAST_WAIT);
        while state.channels.values().any(|entry| entry.note.waiter.place.is_some()) {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        drop(state);
        self.protocol.wire.pool.close();
        self.close();
    }
}

impl WatchHub {
    /// The waiter's channel. A new channel counts as up before the watch is open, because the waiter has no
    /// key in front yet whose deletion could be missed.
    fn waiter(&mut self, key: &str) -> &mut HubChannel<EtcdNote> {
        let is_up = !self.is_down_reported;
        self.enter(key, is_up)
    }
}

impl Watch {
    /// Wakes `waker` when another client waits for a lock that this client caches. `None` after shutdown.
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
            channel.set_up(true); // if the watch is not open yet, `opened` does this
        }
        Some(listening)
    }

    /// Notes the client's own key before it is put, so that the put does not count as a recall.
    pub(super) fn caches(&self, line: &KeyLine, key: &str) {
        let mut state = self.state.lock();
        if let Some(kept) = state.channels.get_mut(line.text()).and_then(|entry| entry.note.kept.as_mut()) {
            kept.own = Some(key.to_owned());
        }
    }

    pub(super) fn wanted(&self, line: &KeyLine) {
        if let Some(entry) = self.state.lock().channels.get(line.text()) {
            entry.channel.notify();
        }
    }

    /// Wakes the listener of the cached lock in whose queue another client put this key.
    pub(super) fn put(&self, key: &str) {
        if let Some(channel) = self.state.lock().recalled_by(key) {
            channel.notify();
        }
    }
}

impl WatchHub {
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

    fn hub() -> Arc<Watch> {
        let options = ServerOptions { url: "etcd://127.0.0.1:1".to_owned(), ..ServerOptions::default() };
        watch(Arc::new(Members::new(&options).unwrap()), Arc::new(Reporter::new(None)))
    }

    fn key(line: &KeyLine) -> String {
        line.key(Owner::new(ClientId::random(), 7))
    }

    #[test]
    fn only_a_key_of_another_client_recalls_a_cached_etcd_lock() {
        let hub = hub();
        let (line, other) = (KeyLine::new("leasehold/", "a/b"), KeyLine::new("leasehold/", "a"));
        let (own, theirs) = (key(&line), key(&line));
        hub.put(&theirs); // nobody listens, so the put is ignored
        let listening = hub.hear(line.clone(), &Waker::default()).unwrap();
        hub.caches(&line, &own);
        hub.caches(&other, &own);
        let recalls = |key: &str| hub.state.lock().recalled_by(key).is_some();
        assert!(!recalls(&own) && recalls(&theirs));
        assert!(!recalls(&key(&other)), "a waiter for another lock was heard as a recall");
        assert!(!recalls("no base 64"));
        let has = |key: &str| hub.state.lock().lines().all(|kept| kept.has(key));
        assert!(has(&own) && !has(&key(&other)));
        let second = hub.hear(other, &Waker::default()).unwrap();
        drop(listening);
        assert!(!recalls(&theirs), "no holder listens any more");
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
    fn the_next_key_of_the_caching_client_is_no_recall() {
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
