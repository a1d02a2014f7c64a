//! The waiters, the keys in front of them, and the notification that those have gone.
//!
//! One thread per client reads one watch: on the key that this client's only waiter stands behind, so that a
//! release is reported to one waiter of all; where several wait, on all keys below the prefix. If leases may
//! end early, the keys of holds are watched with them. Where a lock is kept until others ask for it, the watch
//! also reports keys that are put: in that lock's line, or in all if more is watched than this one. The gateway
//! takes no further keys for a watch that
//! stands, and of several at once it may lose some. When a watch stands, it is asked whether the keys in
//! front are still there. (A watch could start from an earlier revision on, but the server reports past
//! changes up to 100 ms late.)
//!
//! Long because the one watch is on whatever anybody wants watched, and who comes or goes may have to have it
//! replaced.

use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, Result};
use crate::ident::Owner;
use crate::observe::reporter::Reporter;
use crate::park::ServiceWaker;
use crate::room::CrowdMap;
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::seam::{Claim, Failure};
use crate::stores::etcd::early::{End, Holds};
use crate::stores::etcd::http::Connection;
use crate::stores::etcd::members::{Members, Transport, refusal, refusal_in, unreadable};
use crate::stores::etcd::message::{self, BATCH, Done, Front, KeyLine, get, number, txn};
use crate::stores::etcd::recalls::Recalls;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, MutexGuard, Waker};
use crate::time::{Clock, Moment, random_between};
use crate::wire::Wire;

/// The silence after which the watch is opened anew: a member that was cut off says nothing either.
const SILENCE: Duration = Duration::from_secs(10);
/// Waits between connects: at least, at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long [`Watch::close`] waits.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// The longest line that is kept while the rest of it is on its way.
const LONGEST_LINE: usize = 16 * 1024 * 1024;

/// The lock and the owner that wants it.
pub(super) type Id = (Box<str>, Owner);

pub(super) struct Watch {
    members: Arc<Members>,
    /// For the thread's question.
    wire: Transport,
    reporter: Arc<Reporter>,
    state: Mutex<WatchState>,
    /// Signalled when there is something to watch, when somebody leaves, and on closing.
    changed: Condvar,
    /// For handing itself out as a channel's source.
    me: Weak<Watch>,
}

#[derive(Default)]
struct WatchState {
    closed: bool,
    waiters: CrowdMap<Id, Watcher>,
    /// The holds to watch, where leases may end early; else none.
    holds: Option<Holds>,
    watchdog: Option<ServiceWaker>,
    /// The thread sleeps until somebody signals.
    is_idle: bool,
    /// How often a watch was given up for another.
    renewals: u64,
    /// The locks that are kept here until others ask for them.
    recalls: Recalls,
    /// What the watch is on.
    scope: Option<Scope>,
    /// It stands: keys that go from now on are reported.
    is_up: bool,
    connection: Option<Arc<Wire>>,
    thread: Option<JoinHandle<()>>,
    /// The observer was notified that wake-ups are not coming.
    told_down: bool,
}

struct Watcher {
    /// Told when there is reason to look again.
    channel: Arc<Channel>,
    place: Option<WatchPlace>,
    /// A key was asked for, so it may be there or come.
    has_asked: bool,
    /// The key in front, until it is known to have gone.
    front: Option<Front>,
}

/// A key that was put and not yet found to be the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WatchPlace {
    pub(super) created: i64,
    pub(super) lease: i64,
}

/// What a watch reports.
#[derive(Debug, PartialEq, Eq)]
enum Scope {
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

/// Why a watch ended.
enum Ended {
    /// The client was shut down, or nothing is to be watched any more.
    Unneeded,
    /// There is more to watch, or it was silent; nothing is wrong, as far as is known.
    Anew,
    Failed(Error),
}

impl Watch {
    pub(super) fn new(members: Arc<Members>, reporter: Arc<Reporter>) -> Arc<Watch> {
        Arc::new_cyclic(|me| Watch {
            wire: Transport::new(Arc::clone(&members), 1),
            members,
            reporter,
            state: Mutex::default(),
            changed: Condvar::new(),
            me: me.clone(),
        })
    }

    /// Has `waker` woken when there is reason to look again.
    pub(super) fn listen(&self, id: Id, waker: &Waker) -> Option<Subscription> {
        let me = self.me.upgrade()?;
        let mut state = self.state.lock();
        let channel = (!state.closed).then(|| Arc::clone(&state.waiter(id).channel))?;
        Some(Subscription::new(channel, me, waker))
    }

    /// How often there was reason to, if it is reported.
    pub(super) fn message_count(&self, id: Id) -> Option<u64> {
        let mut state = self.state.lock();
        let channel = &state.waiter(id).channel;
        channel.is_up().then(|| channel.message_count())
    }

    /// A key is about to be asked for.
    pub(super) fn asks(&self, id: &Id) {
        if let Some(waiter) = self.state.lock().waiters.get_mut(id) {
            waiter.has_asked = true;
        }
    }

    /// Whether one is known to have come, and to have left before it asked for a key.
    pub(super) fn left_early(&self, id: &Id) -> bool {
        let mut state = self.state.lock();
        let is_early = state.waiters.get(id).is_some_and(|waiter| !waiter.has_asked);
        if is_early {
            state.waiters.remove(id);
        }
        is_early
    }

    /// The place of a waiter, and the key in front of it.
    pub(super) fn place(&self, id: &Id) -> Option<(WatchPlace, Option<Front>)> {
        let state = self.state.lock();
        let waiter = state.waiters.get(id)?;
        Some((waiter.place?, waiter.front.clone()))
    }

    /// Has a waiter notified when the key in front has gone. `true`: it may have gone since it was seen, and
    /// nobody will report it. Never waits for the server: the thread connects.
    pub(super) fn follow(&self, id: Id, place: WatchPlace, front: Front) -> bool {
        let mut state = self.state.lock();
        let waiter = state.waiter(id);
        waiter.place = Some(place);
        waiter.has_asked = true;
        if waiter.front.as_ref() == Some(&front) {
            return false;
        }
        waiter.front = Some(front);
        if state.closed {
            return false;
        }
        if state.is_wide() {
            return state.is_up;
        }
        self.begin_anew(&mut state);
        false
    }

    /// Has another watch opened, for more is to be watched.
    fn begin_anew(&self, state: &mut WatchState) {
        state.renewals += 1;
        if let Some(connection) = state.connection.take() {
            connection.shutdown();
        }
        self.changed.notify_all();
        self.run_thread(state);
    }

    /// Has `waker` woken when somebody comes to wait for a lock that this client keeps. Never waits for the
    /// server.
    pub(super) fn hear(&self, line: KeyLine, waker: &Waker) -> Option<Subscription> {
        let me = self.me.upgrade()?;
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        let channel = state.recalls.channel(line);
        if !state.is_covered(Clock::System.now()) {
            self.begin_anew(&mut state);
        } else if state.is_up && !channel.is_up() {
            channel.set_up(true); // else when the watch stands
        }
        let listening = Subscription::new(channel, me, waker);
        drop(state);
        Some(listening)
    }

    /// A lock is about to be asked for by this key, to be kept.
    pub(super) fn keeps(&self, line: &KeyLine, key: &str) {
        self.state.lock().recalls.keeps(line, key);
    }

    /// Others wait for a lock that is to be kept.
    pub(super) fn wanted(&self, line: &KeyLine) {
        let channel = self.state.lock().recalls.wanted(line);
        channel.into_iter().for_each(|channel| channel.notify());
    }

    /// A key was put: whoever keeps the lock of its line is asked for that.
    fn put(&self, key: &str) {
        let channel = self.state.lock().recalls.put(key);
        channel.into_iter().for_each(|channel| channel.notify());
    }

    fn run_thread(&self, state: &mut WatchState) {
        if state.thread.is_none()
            && let Some(me) = self.me.upgrade()
            && let Err(error) = start(me, state)
        {
            self.tell_down(state, error);
        }
    }

    /// From now on holds are watched too.
    pub(super) fn watch_holds(&self) {
        self.state.lock().holds = Some(Holds::default());
    }

    pub(super) fn attach(&self, watchdog: ServiceWaker) {
        self.state.lock().watchdog = Some(watchdog);
    }

    /// A lock was granted by this key. Never waits for the server.
    pub(super) fn holds(&self, key: String, created: i64) {
        let mut state = self.state.lock();
        let Some(holds) = &mut state.holds else { return };
        holds.add(key, created, Clock::System.now());
        if std::mem::take(&mut state.is_idle) {
            self.changed.notify_all();
        }
        if !state.closed {
            self.run_thread(&mut state);
        }
    }

    /// Forgets holds that are over.
    pub(super) fn sweep(&self) {
        if let Some(holds) = &mut self.state.lock().holds {
            holds.sweep();
        }
    }

    /// The handle that ends the hold just granted by this key.
    pub(super) fn end_of(&self, key: &str) -> Option<Arc<End>> {
        self.state.lock().holds.as_mut()?.end(key)
    }

    /// The hold with this key is about to be given up.
    pub(super) fn gives_up(&self, key: &str) {
        if let Some(holds) = &mut self.state.lock().holds {
            holds.remove(key);
        }
    }

    /// A key is not there any more that was created when `is_it` says so: its holder is notified.
    fn lost(&self, key: &str, is_it: impl FnOnce(i64) -> bool) {
        let mut state = self.state.lock();
        if state.holds.as_mut().is_some_and(|holds| holds.lose(key, is_it))
            && let Some(watchdog) = &state.watchdog
        {
            watchdog.bounds_ended();
        }
    }

    /// A key has gone: who stands behind it is to look.
    pub(super) fn gone(&self, key: &str) {
        let mut told = Vec::new();
        for waiter in self.state.lock().waiters.values_mut() {
            if waiter.front.take_if(|front| front.key == key).is_some() {
                told.push(Arc::clone(&waiter.channel));
            }
        }
        told.iter().for_each(|channel| channel.notify());
    }

    /// One does not wait any more, or has lost the place.
    pub(super) fn leave(&self, id: &Id, for_good: bool) {
        let mut state = self.state.lock();
        if for_good {
            if state.waiters.remove(id).is_none() {
                return; // nor did it wait
            }
        } else if let Some(waiter) = state.waiters.get_mut(id) {
            (waiter.place, waiter.front) = (None, None);
        }
        self.changed.notify_all();
    }

    /// Lets those who wait leave, hangs up and lets the thread end. Waits for all that, but not for ever, and
    /// not for the thread if it is the caller.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        let deadline = Clock::System.after(LAST_WAIT);
        // They have been notified; each takes its key away.
        while state.waiters.values().any(|waiter| waiter.place.is_some()) {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        state.closed = true;
        self.wire.close();
        if let Some(connection) = state.connection.take() {
            connection.shutdown();
        }
        let watching = state.thread.take();
        self.changed.notify_all();
        let Some(watching) = watching.filter(|watching| watching.thread().id() != thread::current().id())
        else {
            return;
        };
        while !watching.is_finished() {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                return;
            }
            // The thread signals as its last act; a little later it has ended.
            self.changed.wait_for(&mut state, left.min(Duration::from_millis(1)));
        }
        drop(state);
        drop(watching.join());
    }

    fn tell_down(&self, state: &mut WatchState, error: Error) {
        if !std::mem::replace(&mut state.told_down, true) {
            self.reporter.wakeups(Some(error));
        }
    }

    // ---- the thread

    fn run(&self) {
        let mut back_off = BACK_OFF.0;
        while self.is_needed() {
            match self.watch(&mut back_off) {
                Ended::Failed(error) => self.failed(error, &mut back_off),
                Ended::Unneeded | Ended::Anew => {}
            }
        }
    }

    /// Waits until there is something to watch; `false`: the client was shut down.
    fn is_needed(&self) -> bool {
        let mut state = self.state.lock();
        while !state.closed {
            let now = Clock::System.now();
            if state.wanted(now).is_some() {
                return true;
            }
            match state.next_settles(now) {
                Some(next) => drop(self.changed.wait_for(&mut state, next.since(now))),
                None => {
                    state.is_idle = true;
                    self.changed.wait(&mut state);
                    state.is_idle = false;
                }
            }
        }
        false
    }

    /// Has all who wait look for themselves, and lets some time pass, so that a cluster in trouble is not
    /// stormed.
    fn failed(&self, error: Error, back_off: &mut Duration) {
        let mut state = self.state.lock();
        if !state.closed && !state.waiters.is_empty() {
            self.tell_down(&mut state, error);
        }
        let channels: Vec<_> = state.channels().cloned().collect();
        MutexGuard::unlocked(&mut state, || {
            channels.iter().filter(|channel| channel.is_up()).for_each(|channel| channel.set_up(false));
        });
        let until = Clock::System.after(random_between((*back_off, *back_off * 2)));
        *back_off = (*back_off * 2).min(BACK_OFF.1);
        while !state.closed {
            let left = until.since(Clock::System.now());
            if left.is_zero() {
                return;
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    /// Watches until there is a reason not to.
    fn watch(&self, back_off: &mut Duration) -> Ended {
        let before = self.state.lock().renewals;
        let read = self.open().and_then(|opened| match opened {
            Some(connection) => self.read(connection, back_off),
            None => Ok(Ended::Unneeded),
        });
        let mut state = self.state.lock();
        (state.connection, state.scope, state.is_up) = (None, None, false);
        match read {
            Ok(ended) => ended,
            // This client itself hung up, because there is more to watch.
            Err(_) if state.renewals != before => Ended::Anew,
            Err(error) => Ended::Failed(error.during("watch")),
        }
    }

    /// Connects and asks for a watch; `None`: there is nothing to watch any more.
    fn open(&self) -> Result<Option<Connection>> {
        let deadline = Clock::System.after(self.members.address.connect_timeout);
        let connected = self.members.connect(deadline)?;
        let (mut connection, member) = (connected.connection, connected.member);
        let ask = {
            let mut state = self.state.lock();
            if state.closed {
                return Err(Error::new(ErrorKind::ShutDown, "watch", "the client was shut down"));
            }
            let Some(scope) = state.wanted(Clock::System.now()) else { return Ok(None) };
            state.connection = Some(connection.wire());
            let all = || message::all(&self.members.address.prefix);
            let (ask, with_puts) = match &scope {
                Scope::Key(key) => (json!({ "key": key }), false),
                Scope::Line(line) => (line.range(), true),
                Scope::All { with_puts } => (all(), *with_puts),
            };
            state.scope = Some(scope);
            (ask, if with_puts { json!([]) } else { json!(["NOPUT"]) })
        };
        let (ask, filters) = ask;
        let (key, end) = (ask.get("key"), ask.get("range_end"));
        let asked = json!({ "create_request": { "key": key, "range_end": end, "filters": filters } });
        // A member that has lost its leader ends the watch then, instead of standing still.
        let extra = "Grpc-Metadata-hasleader: true\r\n";
        let request = self.members.request(member, "/v3/watch", &asked.to_string(), extra);
        let broken = |error: io::Error| {
            let words = "the watch could not be opened";
            Error::new(ErrorKind::Unreachable, "watch", words).with_source(error)
        };
        connection.send(&request, deadline).map_err(broken)?;
        match connection.receive_begun(deadline).map_err(broken)? {
            None => Ok(Some(connection)),
            Some(response) => Err(refusal(&response).into_error()),
        }
    }

    fn read(&self, mut connection: Connection, back_off: &mut Duration) -> Result<Ended> {
        let mut rest = Vec::new();
        let mut silent_at = Clock::System.after(SILENCE);
        loop {
            let now = Clock::System.now();
            // A hold that is to be watched from then on.
            let next = self.state.lock().next_settles(now).unwrap_or(Moment::NEVER);
            match connection.chunk(silent_at.min(next)) {
                Ok(Some(chunk)) => {
                    // A part of a line is no word: else a member that drips is waited for without an end.
                    if self.take(&mut rest, &chunk, back_off)? {
                        silent_at = Clock::System.after(SILENCE);
                    }
                }
                Ok(None) => {
                    let words = "the server ended the watch";
                    return Err(Error::new(ErrorKind::Unreachable, "watch", words));
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    if Clock::System.now() >= silent_at {
                        return Ok(Ended::Anew);
                    }
                }
                Err(error) => {
                    let words = "the connection broke";
                    return Err(Error::new(ErrorKind::Unreachable, "watch", words).with_source(error));
                }
            }
            let (state, now) = (self.state.lock(), Clock::System.now());
            if state.closed || state.wanted(now).is_none() {
                return Ok(Ended::Unneeded);
            }
            if !state.is_covered(now) {
                return Ok(Ended::Anew);
            }
        }
    }

    /// From now on it is notified when keys go; some may have gone before.
    fn stands(&self) -> Result<()> {
        let (fronts, lines, down): (Vec<Front>, Vec<KeyLine>, Vec<Arc<Channel>>) = {
            let mut state = self.state.lock();
            state.is_up = true;
            if std::mem::take(&mut state.told_down) {
                self.reporter.wakeups(None);
            }
            let held = state.holds.iter().flat_map(|holds| holds.fronts(Clock::System.now()));
            (
                state.fronts().cloned().chain(held).collect(),
                state.recalls.all().map(|(line, _)| line.clone()).collect(),
                state.channels().filter(|channel| !channel.is_up()).cloned().collect(),
            )
        };
        down.iter().for_each(|channel| channel.set_up(true));
        self.look_at_lines(&lines)?;
        for fronts in fronts.chunks(BATCH) {
            let deadline = Clock::System.after(self.members.address.connect_timeout);
            let looks: Vec<Value> = fronts.iter().map(|front| get(&front.key)).collect();
            let answer = self.wire.call("/v3/kv/txn", &txn(&[], &looks, &[]), deadline);
            let done = Done::read(&answer.map_err(Failure::into_error)?);
            for (at, front) in fronts.iter().enumerate() {
                if done.found_front(at)?.as_ref() != Some(front) {
                    self.lost(&front.key, |created| created == front.created);
                    self.gone(&front.key);
                }
            }
        }
        Ok(())
    }

    /// Asks for what is kept here where others have come to wait before the watch stood.
    fn look_at_lines(&self, lines: &[KeyLine]) -> Result<()> {
        for lines in lines.chunks(BATCH) {
            let deadline = Clock::System.after(self.members.address.connect_timeout);
            let looks: Vec<Value> = lines.iter().map(|line| line.last(None)).collect();
            let answer = self.wire.call("/v3/kv/txn", &txn(&[], &looks, &[]), deadline);
            let done = Done::read(&answer.map_err(Failure::into_error)?);
            for (at, line) in lines.iter().enumerate() {
                let last = done.found_front(at)?;
                if last.is_some_and(|last| self.state.lock().recalls.is_other(line, &last)) {
                    self.wanted(line);
                }
            }
        }
        Ok(())
    }

    /// Acts on the lines that are whole with the next chunk; whether there was one.
    fn take(&self, rest: &mut Vec<u8>, chunk: &[u8], back_off: &mut Duration) -> Result<bool> {
        // The bytes there already have no end of a line: they are not looked at again with each chunk.
        let whole = chunk.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| rest.len() + end + 1);
        rest.extend_from_slice(chunk);
        let lines: Vec<u8> = rest.drain(..whole).collect();
        if rest.len() > LONGEST_LINE {
            return Err(unreadable().during("watch"));
        }
        for line in lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let line: Value = serde_json::from_slice(line)
                .map_err(|error| unreadable().during("watch").with_source(error))?;
            if let Some(refusal) = refusal_in(&line) {
                return Err(refusal.into_error().during("watch"));
            }
            let is = |field: &str| line.pointer(&format!("/result/{field}")).and_then(Value::as_bool);
            if is("canceled") == Some(true) {
                let reason =
                    line.pointer("/result/cancel_reason").and_then(Value::as_str).unwrap_or("no reason");
                // So is one with a token that has ended; the waiters' next requests get a new one for all.
                let is_right = reason.contains("permission denied");
                let kind = if is_right { ErrorKind::NoPermission } else { ErrorKind::Unreachable };
                return Err(Error::new(kind, "watch", format!("the server ended the watch: {reason}")));
            }
            if is("created") == Some(true) {
                *back_off = BACK_OFF.0;
                self.stands()?;
            }
            let events = line.pointer("/result/events").and_then(Value::as_array);
            for event in events.into_iter().flatten() {
                let Some(pair) = event.get("kv") else { continue };
                let Some(key) = pair.get("key").and_then(Value::as_str) else { continue };
                // The type of an event that is a put is left out.
                if event.get("type").and_then(Value::as_str) != Some("DELETE") {
                    self.put(key);
                    continue;
                }
                // The key may have been put again since.
                let revision = number(pair, "mod_revision").unwrap_or(0);
                self.lost(key, |created| created < revision);
                self.gone(key);
            }
        }
        Ok(whole > 0)
    }
}

/// A waiter leaves by giving up its place; nothing else ends with the last listener but that a lock is kept.
impl ChannelSource for Watch {
    fn left(&self, channel: &Arc<Channel>) {
        self.state.lock().recalls.left(channel);
    }
}

impl WatchState {
    fn waiter(&mut self, id: Id) -> &mut Watcher {
        let is_up = !self.told_down;
        self.waiters.entry(id).or_insert_with_key(|(name, _)| Watcher {
            channel: Arc::new(Channel::new(name, is_up)),
            place: None,
            has_asked: false,
            front: None,
        })
    }

    /// The keys to watch.
    fn targets(&self, now: Moment) -> impl Iterator<Item = &str> {
        let holds = self.holds.iter().flat_map(move |holds| holds.settled(now)).map(|(key, _)| key);
        self.fronts().map(|front| front.key.as_str()).chain(holds)
    }

    /// What is to be watched; `None`: nothing.
    fn wanted(&self, now: Moment) -> Option<Scope> {
        let mut targets = self.targets(now);
        let first = targets.next();
        match (self.recalls.only(), first) {
            (Some(line), None) => Some(Scope::Line(line.clone())),
            (Some(line), Some(first))
                if Recalls::is_in(line, first) && targets.all(|key| Recalls::is_in(line, key)) =>
            {
                Some(Scope::Line(line.clone()))
            }
            _ if !self.recalls.is_empty() => Some(Scope::All { with_puts: true }),
            (_, Some(first)) if targets.all(|other| other == first) => Some(Scope::Key(first.to_owned())),
            (_, Some(_)) => Some(Scope::All { with_puts: false }),
            (_, None) => None,
        }
    }

    /// Whether the watch reports all that is to be watched, or will when it stands.
    fn is_covered(&self, now: Moment) -> bool {
        let wanted = self.wanted(now);
        wanted.is_none_or(|wanted| self.scope.as_ref().is_some_and(|scope| scope.covers(&wanted)))
    }

    fn is_wide(&self) -> bool {
        self.scope.as_ref().is_some_and(Scope::is_wide)
    }

    /// When a hold is to be watched as well for which the watch would have to be another.
    fn next_settles(&self, now: Moment) -> Option<Moment> {
        self.holds.as_ref().filter(|_| !self.is_wide())?.next_settles(now)
    }

    fn channels(&self) -> impl Iterator<Item = &Arc<Channel>> {
        self.waiters
            .values()
            .map(|waiter| &waiter.channel)
            .chain(self.recalls.all().map(|(_, channel)| channel))
    }

    fn fronts(&self) -> impl Iterator<Item = &Front> {
        self.waiters.values().filter_map(|waiter| waiter.front.as_ref())
    }
}

fn start(watch: Arc<Watch>, state: &mut WatchState) -> Result<()> {
    let watching = thread::Builder::new()
        .name("leasehold-hub".to_owned())
        .spawn(move || {
            watch.run();
            watch.changed.notify_all();
        })
        .map_err(|error| {
            Error::new(ErrorKind::Resource, "watch", "the system could not start a thread").with_source(error)
        })?;
    state.thread = Some(watching);
    Ok(())
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

pub(super) fn id(claim: &Claim) -> Id {
    (claim.name.key().into(), claim.owner)
}
