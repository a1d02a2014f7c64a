//! The hub of a client's wake-ups at one server: its channels, and the one thread that serves them.
//!
//! A store's [`WakeupProtocol`] opens connections, subscribes and reads messages. The hub keeps what all
//! stores share: who listens to which channel, how long a channel outlasts its listeners, the pauses between
//! connections, the single report of an outage, and the thread's start and end. No caller waits for a server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::reporter::Reporter;
use crate::room::CrowdMap;
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, Waker};
use crate::time::{Clock, Moment, random_between};

/// Pauses between connections: at least, at most. Each is prolonged by a random part of itself, so that
/// clients of a server that was down do not come back together.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long [`Hub::close`] waits for the thread, which may be connecting.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// A store's protocol for wake-ups.
pub(crate) trait WakeupProtocol: Send + Sync + Sized + 'static {
    /// The protocol's part of a channel's state.
    type Note: Default + Send;
    /// The protocol's part of the hub's state.
    type State: Default + Send;

    /// Waits until there is something to listen to, connects, and wakes listeners until the connection ends.
    /// `Ok`: the connection is to be replaced, or the hub was closed. Runs on the hub's thread.
    fn serve(&self, hub: &Arc<Hub<Self>>) -> Result<()>;

    /// There is news, or the hub was closed. Runs on any thread, without the hub's lock, and never waits.
    fn changed(&self, _hub: &Hub<Self>) {}
}

pub(crate) struct Hub<P: WakeupProtocol> {
    pub(crate) protocol: P,
    /// `None`: outages are not reported.
    reporter: Option<Arc<Reporter>>,
    /// How long a channel that nobody listens to stays.
    pub(crate) linger: Duration,
    pub(crate) state: Mutex<HubState<P>>,
    /// Signalled when there is news, on closing, and when the thread has ended.
    pub(crate) changed: Condvar,
}

pub(crate) struct HubState<P: WakeupProtocol> {
    pub(crate) closed: bool,
    pub(crate) channels: CrowdMap<Box<str>, HubChannel<P::Note>>,
    pub(crate) own: P::State,
    /// Not yet known to the server that is connected.
    news: Vec<News>,
    /// There is a connection for the news.
    is_served: bool,
    /// Before the next connection, if this one fails.
    pause: Duration,
    thread: Option<JoinHandle<()>>,
    /// The observer was notified that wake-ups are not coming.
    pub(crate) told_down: bool,
}

pub(crate) struct HubChannel<N> {
    pub(crate) channel: Arc<Channel>,
    pub(crate) note: N,
    /// The server refused this subscription; when to ask again.
    pub(crate) refused: Option<Moment>,
    /// Since when nobody listens.
    idle_since: Option<Moment>,
    /// Whether it outlasts its last listener.
    pub(crate) lingers: bool,
}

/// A change of the channels that the server has yet to hear of.
pub(crate) enum News {
    Came(Arc<Channel>),
    Went(Arc<Channel>),
}

impl<P: WakeupProtocol> Hub<P> {
    pub(crate) fn new(protocol: P, reporter: Option<Arc<Reporter>>, linger: Duration) -> Arc<Hub<P>> {
        let state = HubState {
            closed: false,
            channels: CrowdMap::default(),
            own: P::State::default(),
            news: Vec::new(),
            is_served: false,
            pause: PAUSES.0,
            thread: None,
            told_down: false,
        };
        Arc::new(Hub { protocol, reporter, linger, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Has `waker` woken at each message on `channel`. `None`: the hub is closed.
    pub(crate) fn listen(self: &Arc<Self>, channel: &str, waker: &Waker) -> Option<Subscription> {
        let listening = self.listen_for(channel, waker, Arc::clone(self) as Arc<dyn ChannelSource>);
        self.wake();
        listening
    }

    /// The same, on behalf of `source`, which passes leaving listeners on to [`ChannelSource::left`]. The
    /// caller then calls [`wake`](Self::wake).
    pub(crate) fn listen_for(
        self: &Arc<Self>,
        channel: &str,
        waker: &Waker,
        source: Arc<dyn ChannelSource>,
    ) -> Option<Subscription> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        self.run_thread(&mut state);
        // Joined under the lock that `sweep` and `left` also take: a channel that has just been joined is not
        // ended.
        let entry = state.enter(channel);
        (entry.idle_since, entry.lingers) = (None, true);
        Some(Subscription::new(Arc::clone(&entry.channel), source, waker))
    }

    /// How many messages were counted on `channel`, if there is one and a subscription stands.
    pub(crate) fn message_count<T: AsRef<str>>(&self, channel: impl FnOnce() -> Option<T>) -> Option<u64> {
        let state = self.state.lock();
        if state.channels.is_empty() {
            return None; // as mostly, and the name need not be made
        }
        let channel = &state.channels.get(channel()?.as_ref())?.channel;
        channel.is_up().then(|| channel.message_count())
    }

    /// Whether it listens to nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().channels.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Has the news, if there is any, carried to the server.
    pub(crate) fn wake(&self) {
        let state = self.state.lock();
        let is_news = state.closed || !state.is_served || !state.news.is_empty();
        drop(state);
        if is_news {
            self.changed.notify_all();
            self.protocol.changed(self);
        }
    }

    /// Hangs up and lets the thread end, without waiting for it.
    pub(crate) fn dismiss(&self) {
        self.state.lock().closed = true;
        self.wake();
    }

    /// Hangs up and lets the thread end. Waits for it, but not for ever, and not if it is the caller.
    pub(crate) fn close(&self) {
        self.dismiss();
        let mut state = self.state.lock();
        state.set_down();
        let thread = state.thread.take();
        let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) else {
            return;
        };
        let deadline = Clock::System.after(LAST_WAIT);
        while !thread.is_finished() {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                return;
            }
            // The thread signals as its last act; a little later it has ended.
            self.changed.wait_for(&mut state, left.min(Duration::from_millis(1)));
        }
        drop(state);
        drop(thread.join());
    }

    pub(crate) fn tell_down(&self, state: &mut HubState<P>, error: Error) {
        if let Some(reporter) = &self.reporter
            && !std::mem::replace(&mut state.told_down, true)
        {
            reporter.wakeups(Some(error));
        }
    }

    pub(crate) fn tell_up(&self, state: &mut HubState<P>) {
        if std::mem::take(&mut state.told_down) {
            self.reporter.iter().for_each(|reporter| reporter.wakeups(None));
        }
    }

    // ---- the thread

    pub(crate) fn run_thread(self: &Arc<Self>, state: &mut HubState<P>) {
        if state.thread.is_some() {
            return;
        }
        let hub = Arc::clone(self);
        let run = move || {
            while !hub.is_closed() {
                let served = hub.protocol.serve(&hub);
                hub.fell_silent(served.err());
            }
            hub.changed.notify_all();
        };
        match thread::Builder::new().name("leasehold-hub".to_owned()).spawn(run) {
            Ok(thread) => state.thread = Some(thread),
            Err(error) => {
                let words = "the system could not start a thread";
                self.tell_down(state, Error::new(ErrorKind::Resource, "subscribe", words).with_source(error));
            }
        }
    }

    /// Waits until there is a channel; `false`: the hub was closed.
    pub(crate) fn wait_for_channels(&self) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.channels.is_empty() {
            self.changed.wait(&mut state);
        }
        !state.closed
    }

    /// Has all listeners look for themselves. After an error some time passes, so that a server in trouble is
    /// not stormed.
    fn fell_silent(&self, error: Option<Error>) {
        let mut state = self.state.lock();
        (state.is_served, state.news) = (false, Vec::new());
        state.sweep(self.linger, Clock::System.now());
        state.set_down();
        let Some(error) = error.filter(|_| !state.closed) else { return };
        if !state.channels.is_empty() {
            self.tell_down(&mut state, error);
        }
        let until = Clock::System.after(random_between((state.pause, state.pause * 2)));
        state.pause = (state.pause * 2).min(PAUSES.1);
        while !state.closed {
            let left = until.since(Clock::System.now());
            if left.is_zero() {
                return;
            }
            self.changed.wait_for(&mut state, left);
        }
    }
}

impl<P: WakeupProtocol> HubState<P> {
    /// The channel of this name, which is new if there is none.
    pub(crate) fn enter(&mut self, name: &str) -> &mut HubChannel<P::Note> {
        let (is_served, news) = (self.is_served, &mut self.news);
        self.channels.entry(name.into()).or_insert_with(|| {
            let channel = Arc::new(Channel::new(name, false));
            news.extend(is_served.then(|| News::Came(Arc::clone(&channel))));
            HubChannel::new(channel)
        })
    }

    pub(crate) fn adopt(&mut self, channel: Arc<Channel>, idle_since: Option<Moment>) {
        self.came(&channel);
        let name = channel.channel().into();
        self.channels.insert(name, HubChannel { idle_since, ..HubChannel::new(channel) });
    }

    /// The server is to be asked for this channel.
    pub(crate) fn came(&mut self, channel: &Arc<Channel>) {
        if self.is_served {
            self.news.push(News::Came(Arc::clone(channel)));
        }
    }

    /// Ends a channel.
    pub(crate) fn end(&mut self, name: &str) -> Option<HubChannel<P::Note>> {
        let entry = self.channels.remove(name)?;
        if self.is_served && entry.refused.is_none() {
            self.news.push(News::Went(Arc::clone(&entry.channel)));
        }
        Some(entry)
    }

    /// There is a new connection, to which all channels are news.
    pub(crate) fn begin(&mut self) {
        self.is_served = true;
        self.channels.values_mut().for_each(|entry| entry.refused = None);
        self.news = self.channels.values().map(|entry| News::Came(Arc::clone(&entry.channel))).collect();
    }

    pub(crate) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// The connection is of use: after the next failure the pauses begin anew.
    pub(crate) fn stands(&mut self) {
        self.pause = PAUSES.0;
    }

    /// Ends the channels that nobody has listened to for `linger`; refused ones, and those that do not
    /// linger, at once.
    pub(crate) fn sweep(&mut self, linger: Duration, now: Moment) {
        let over = self.channels.iter().filter(|(_, entry)| entry.is_over(linger, now));
        let over: Vec<_> = over.map(|(name, _)| name.clone()).collect();
        over.iter().for_each(|name| drop(self.end(name)));
    }

    /// Under the lock: a confirmation that is being read must not come in between.
    fn set_down(&self) {
        let up = self.channels.values().filter(|entry| entry.channel.is_up());
        up.for_each(|entry| entry.channel.set_up(false));
    }
}

impl<N: Default> HubChannel<N> {
    fn new(channel: Arc<Channel>) -> HubChannel<N> {
        HubChannel { channel, note: N::default(), refused: None, idle_since: None, lingers: true }
    }
}

impl<N> HubChannel<N> {
    pub(crate) fn is_over(&self, linger: Duration, now: Moment) -> bool {
        let is_due = |since| self.refused.is_some() || !self.lingers || now.since(since) >= linger;
        self.channel.listeners() == 0 && self.idle_since.is_some_and(is_due)
    }

    pub(crate) fn idle_since(&self) -> Option<Moment> {
        self.idle_since
    }
}

impl<P: WakeupProtocol> ChannelSource for Hub<P> {
    fn left(&self, channel: &Arc<Channel>) {
        let mut state = self.state.lock();
        let now = Clock::System.now();
        let Some(entry) = state.channels.get_mut(channel.channel()) else { return };
        // Somebody may have joined since the listener left, even a new channel of this name.
        if !Arc::ptr_eq(&entry.channel, channel) || channel.listeners() > 0 {
            return;
        }
        entry.idle_since = Some(now);
        if entry.is_over(self.linger, now) {
            state.end(channel.channel());
            drop(state);
            self.wake();
        }
    }
}

impl<P: WakeupProtocol> fmt::Debug for Hub<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}
