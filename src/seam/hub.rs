//! The hub of one client at one server: the channels it listens to, and the thread that serves them.
//!
//! A store's [`WakeupProtocol`] opens connections, subscribes, and reads messages. The hub does what is the
//! same for all stores: it manages listeners and channels, pauses between connections, reports an outage
//! once, and starts and ends the thread. No caller waits for a server.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::reporter::Reporter;
use crate::seam::subscription::{Channel, ChannelSource, Subscription};
use crate::shrink::CrowdMap;
use crate::sync::{Condvar, Mutex, Waker};
use crate::time::{Clock, Moment, random_between};

/// Shortest and longest pause between connection attempts. Each pause has a random part, so that clients do
/// not all reconnect to a restarted server at once.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long [`Hub::close`] waits for the thread to end; the thread may be connecting.
const LAST_WAIT: Duration = Duration::from_secs(1);

pub(crate) trait WakeupProtocol: Send + Sync + Sized + 'static {
    type Note: Default + Send;
    type State: Default + Send;

    /// Waits until there is a channel, connects, and wakes listeners until the connection ends. `Ok`: the hub
    /// was closed, or needs another connection. Runs on the hub's thread.
    fn serve(&self, hub: &Arc<Hub<Self>>) -> Result<()>;

    /// Called after a change of subscriptions or `close`, on any thread, which holds no mutex. Must not wait.
    fn changed(&self, _hub: &Hub<Self>) {}
}

pub(crate) struct Hub<P: WakeupProtocol> {
    pub(crate) protocol: P,
    /// `None`: outages are not reported.
    reporter: Option<Arc<Reporter>>,
    pub(crate) linger: Duration,
    pub(crate) state: Mutex<HubState<P>>,
    /// Signalled by a change of subscriptions, by closing, and by the thread's end.
    pub(crate) changed: Condvar,
}

pub(crate) struct HubState<P: WakeupProtocol> {
    pub(crate) closed: bool,
    pub(crate) channels: CrowdMap<Box<str>, HubChannel<P::Note>>,
    pub(crate) own: P::State,
    /// Subscriptions that began or ended, of which the server does not know yet.
    news: Vec<News>,
    is_served: bool,
    /// The pause before the next connection attempt, if the present connection fails.
    pause: Duration,
    thread: Option<JoinHandle<()>>,
    /// Whether an outage was reported, and its end was not reported yet.
    pub(crate) is_down_reported: bool,
}

pub(crate) struct HubChannel<N> {
    pub(crate) channel: Arc<Channel>,
    pub(crate) note: N,
    /// When to subscribe again after the server refused this subscription.
    pub(crate) refused: Option<Moment>,
    pub(crate) idle_since: Option<Moment>,
    pub(crate) lingers: bool,
}

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
            is_down_reported: false,
        };
        Arc::new(Hub { protocol, reporter, linger, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Wakes `waker` at each message on `channel`, until the result is dropped. `None`: the hub is closed.
    pub(crate) fn listen(self: &Arc<Self>, channel: &str, waker: &Waker) -> Option<Subscription> {
        let listening = self.listen_for(channel, waker, Arc::clone(self) as Arc<dyn ChannelSource>);
        self.wake();
        listening
    }

    /// As [`listen`](Self::listen), but a dropped subscription notifies `source`, which in turn calls the
    /// hub's [`ChannelSource::left`]. The caller of this method unlocks its mutexes, then calls `wake`.
    pub(crate) fn listen_for(
        self: &Arc<Self>,
        channel: &str,
        waker: &Waker,
        source: Arc<dyn ChannelSource>,
    ) -> Option<Subscription> {
        let mut state = self.state.lock();
        let listening = state.join(channel, waker, source)?;
        self.run_thread(&mut state);
        Some(listening)
    }

    pub(crate) fn message_count<T: AsRef<str>>(&self, channel: impl FnOnce() -> Option<T>) -> Option<u64> {
        let state = self.state.lock();
        if state.channels.is_empty() {
            return None; // usual, and saves building the channel's name
        }
        let channel = &state.channels.get(channel()?.as_ref())?.channel;
        channel.is_up().then(|| channel.message_count())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().channels.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Sends new and ended subscriptions to the server; without a connection, the next connection sends them.
    pub(crate) fn wake(&self) {
        let state = self.state.lock();
        let (is_served, has_news) = (state.is_served, state.closed || !state.news.is_empty());
        drop(state);
        if has_news {
            self.protocol.changed(self);
        }
        if has_news || !is_served {
            self.changed.notify_all();
        }
    }

    /// Makes the thread end, without waiting for its end.
    pub(crate) fn dismiss(&self) {
        self.state.lock().closed = true;
        self.wake();
    }

    /// Makes the thread end, and waits for [`LAST_WAIT`] at most, unless called on that thread.
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
            // Short waits, because the thread signals only once, a moment before it is finished.
            self.changed.wait_for(&mut state, left.min(Duration::from_millis(1)));
        }
        drop(state);
        drop(thread.join());
    }

    pub(crate) fn report_down(&self, state: &mut HubState<P>, error: Error) {
        if let Some(reporter) = &self.reporter
            && !std::mem::replace(&mut state.is_down_reported, true)
        {
            reporter.wakeups(Some(error));
        }
    }

    pub(crate) fn report_up(&self, state: &mut HubState<P>) {
        if std::mem::take(&mut state.is_down_reported) {
            self.reporter.iter().for_each(|reporter| reporter.wakeups(None));
        }
    }

    pub(crate) fn run_thread(self: &Arc<Self>, state: &mut HubState<P>) {
        if state.thread.is_some() {
            return;
        }
        let hub = Arc::clone(self);
        let run = move || {
            while !hub.is_closed() {
                let served = hub.protocol.serve(&hub);
                hub.connection_ended(served.err());
            }
            hub.changed.notify_all();
        };
        match thread::Builder::new().name("leasehold-hub".to_owned()).spawn(run) {
            Ok(thread) => state.thread = Some(thread),
            Err(error) => {
                let words = "the system could not start a thread";
                self.report_down(
                    state,
                    Error::new(ErrorKind::Resource, "subscribe", words).with_source(error),
                );
            }
        }
    }

    /// Waits until there is a channel. `false`: the hub was closed.
    pub(crate) fn wait_for_channels(&self) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.channels.is_empty() {
            self.changed.wait(&mut state);
        }
        !state.closed
    }

    /// The connection has ended: marks all channels as down, so that listeners poll. After an error, also
    /// pauses before the next connection attempt.
    fn connection_ended(&self, error: Option<Error>) {
        let mut state = self.state.lock();
        (state.is_served, state.news) = (false, Vec::new());
        state.sweep(self.linger, Clock::System.now());
        state.set_down();
        let Some(error) = error.filter(|_| !state.closed) else { return };
        if !state.channels.is_empty() {
            self.report_down(&mut state, error);
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
    /// As [`Hub::listen_for`], but does not start the thread.
    pub(crate) fn join(
        &mut self,
        channel: &str,
        waker: &Waker,
        source: Arc<dyn ChannelSource>,
    ) -> Option<Subscription> {
        if self.closed {
            return None;
        }
        // `sweep` and `left` take the same mutex, so they cannot end the channel before this listener counts.
        let entry = self.enter(channel, false);
        (entry.idle_since, entry.lingers) = (None, true);
        Some(Subscription::new(Arc::clone(&entry.channel), source, waker))
    }

    /// The channel with this name. If there is none, creates it, `up` or down.
    pub(crate) fn enter(&mut self, name: &str, up: bool) -> &mut HubChannel<P::Note> {
        let (is_served, news) = (self.is_served, &mut self.news);
        self.channels.entry(name.into()).or_insert_with(|| {
            let channel = Arc::new(Channel::new(name, up));
            news.extend(is_served.then(|| News::Came(Arc::clone(&channel))));
            HubChannel::new(channel)
        })
    }

    pub(crate) fn adopt(&mut self, channel: Arc<Channel>, idle_since: Option<Moment>) {
        self.came(&channel);
        let name = channel.channel().into();
        self.channels.insert(name, HubChannel { idle_since, ..HubChannel::new(channel) });
    }

    pub(crate) fn came(&mut self, channel: &Arc<Channel>) {
        if self.is_served {
            self.news.push(News::Came(Arc::clone(channel)));
        }
    }

    pub(crate) fn end(&mut self, name: &str) -> Option<HubChannel<P::Note>> {
        let entry = self.channels.remove(name)?;
        if self.is_served && entry.refused.is_none() {
            self.news.push(News::Went(Arc::clone(&entry.channel)));
        }
        Some(entry)
    }

    /// Called for a new connection, before it subscribes: makes it subscribe to all channels.
    pub(crate) fn begin(&mut self) {
        self.is_served = true;
        self.channels.values_mut().for_each(|entry| entry.refused = None);
        self.news = self.channels.values().map(|entry| News::Came(Arc::clone(&entry.channel))).collect();
    }

    pub(crate) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Called when the connection works: after the next failure the pauses begin with the shortest again.
    pub(crate) fn stands(&mut self) {
        self.pause = PAUSES.0;
    }

    /// Ends channels without listeners: after `linger`, or at once if they are refused or do not linger.
    pub(crate) fn sweep(&mut self, linger: Duration, now: Moment) {
        let over = self.channels.iter().filter(|(_, entry)| entry.is_over(linger, now));
        let over: Vec<_> = over.map(|(name, _)| name.clone()).collect();
        over.iter().for_each(|name| drop(self.end(name)));
    }

    /// Marks all channels as down. The caller has the mutex, so no thread confirms a subscription meanwhile.
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
}

impl<P: WakeupProtocol> ChannelSource for Hub<P> {
    fn left(&self, channel: &Arc<Channel>) {
        let mut state = self.state.lock();
        let now = Clock::System.now();
        let Some(entry) = state.channels.get_mut(channel.channel()) else { return };
        // Since the listener left, another may have joined, or a new channel may have the same name.
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

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    /// A protocol that fails this number of times, and then subscribes to everything.
    struct Failing(Mutex<u32>);

    impl WakeupProtocol for Failing {
        type Note = ();
        type State = Vec<String>;

        fn serve(&self, hub: &Arc<Hub<Failing>>) -> Result<()> {
            if !hub.wait_for_channels() {
                return Ok(());
            }
            let left = self.0.lock().checked_sub(1);
            if let Some(left) = left {
                *self.0.lock() = left;
                return Err(Error::new(ErrorKind::Unreachable, "subscribe", "as the test says"));
            }
            let mut state = hub.state.lock();
            state.begin();
            state.stands();
            while !state.closed {
                for news in state.take_news() {
                    let (sign, channel) = match &news {
                        News::Came(channel) => ('+', channel),
                        News::Went(channel) => ('-', channel),
                    };
                    channel.set_up(sign == '+');
                    state.own.push(format!("{sign}{}", channel.channel()));
                }
                hub.report_up(&mut state);
                hub.changed.wait(&mut state);
            }
            Ok(())
        }
    }

    fn hub(failures: u32, linger: Duration) -> (Arc<Hub<Failing>>, Arc<Reporter>) {
        let reporter = Arc::new(Reporter::new(None));
        (Hub::new(Failing(Mutex::new(failures)), Some(Arc::clone(&reporter)), linger), reporter)
    }

    fn until_up(listening: &Subscription, waker: &Waker) {
        let end = Clock::System.after(LONG);
        while !listening.is_up() {
            assert!(Clock::System.now() < end, "the subscription is never set up");
            waker.sleep(Some(LONG));
        }
    }

    #[test]
    fn an_outage_and_its_end_are_reported_once() {
        let (hub, reporter) = hub(3, LONG);
        let waker = Waker::default();
        let listening = hub.listen("a", &waker).unwrap();
        until_up(&listening, &waker);
        assert_eq!(*hub.protocol.0.lock(), 0);
        drop(hub.state.lock());
        assert!(reporter.can_wake(), "not every report `down` has a report `up`");
        hub.close();
        assert!(!listening.is_up() && waker.take(), "the end of the hub did not wake its waiters");
        assert!(hub.listen("a", &waker).is_none());
    }

    #[test]
    fn a_new_connection_resets_the_reconnect_pause() {
        let (hub, _reporter) = hub(3, LONG);
        let waker = Waker::default();
        let listening = hub.listen("a", &waker).unwrap();
        until_up(&listening, &waker);
        assert_eq!(hub.state.lock().pause, PAUSES.0);
        hub.close();
    }

    #[test]
    fn subscribe_and_unsubscribe_reach_the_server_in_order() {
        let (hub, _reporter) = hub(0, Duration::ZERO);
        let waker = Waker::default();
        for _ in 0..50 {
            for name in ["a", "b"] {
                let listening = hub.listen(name, &waker).unwrap();
                until_up(&listening, &waker);
            }
        }
        let is_through = || hub.state.lock().own.len() == 200;
        let end = Clock::System.after(LONG);
        while !is_through() && Clock::System.now() < end {
            hub.changed.wait_for(&mut hub.state.lock(), Duration::from_millis(1));
        }
        let all = ["+a", "-a", "+b", "-b"].repeat(50);
        assert_eq!(hub.state.lock().own, all);
        hub.close();
    }

    #[test]
    fn ending_an_old_channel_keeps_its_namesake_subscribed() {
        let (hub, _reporter) = hub(0, Duration::ZERO);
        let waker = Waker::default();
        drop(hub.listen("a", &waker));
        assert!(hub.is_idle(), "no listener is left");
        // As in etcd's store, a channel exists before its first listener joins.
        hub.state.lock().enter("a", true);
        hub.left(&Arc::new(Channel::new("a", true)));
        assert!(!hub.is_idle());
        hub.close();
    }

    #[test]
    fn a_hub_channel_lingers_after_its_last_listener() {
        let (hub, _reporter) = hub(0, LONG);
        let waker = Waker::default();
        drop(hub.listen("a", &waker));
        let sweep = |after| hub.state.lock().sweep(LONG, Clock::System.after(after));
        sweep(LONG / 2);
        assert!(!hub.is_idle());
        let listening = hub.listen("a", &waker);
        sweep(LONG * 2);
        assert!(!hub.is_idle());
        drop(listening);
        sweep(LONG * 2);
        assert!(hub.is_idle());
        hub.close();
    }
}
