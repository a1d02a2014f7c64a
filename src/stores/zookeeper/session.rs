//! The session: one connection at a time to one of the servers, for the requests and watches of all threads.
//!
//! One thread connects and reads. Any thread writes, one at a time, and never while it holds the mutex.
//! Replies come in the order of the requests. When a connection ends, requests without a reply fail *before*
//! the next connection is made: a caller whose outcome is unknown asks again as a new owner, whom the old
//! request cannot affect. A second thread, in `keep`, keeps the session alive.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::reporter::Reporter;
use crate::park::ServiceWaker;
use crate::seam::subscription::Channel;
use crate::secrets::Renewable;
use crate::shrink::CrowdMap;
use crate::stores::zookeeper::address::ZooKeeperAddress;
use crate::stores::zookeeper::answer::{NoReply, Replied, ZooKeeperReply};
use crate::stores::zookeeper::jute::{self, Header, Operation, code};
use crate::stores::zookeeper::life::Life;
use crate::stores::zookeeper::link;
use crate::stores::zookeeper::places::NodePlaces;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::channel::{Receiver, bounded};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, Outbox};
use crate::time::{Clock, Moment};
use crate::wire::Wire;

/// The longest time that [`Session::close`] waits for the server's reply, and then for its threads to end.
const LAST_WAIT: Duration = Duration::from_secs(1);
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

pub(super) struct Session {
    pub(super) address: Arc<ZooKeeperAddress>,
    /// Login and certificates, which are read again from their files.
    renewal: Arc<Renewable<ZooKeeperAddress>>,
    pub(super) places: NodePlaces,
    reporter: Arc<Reporter>,
    connect_timeout: Duration,
    timeout: Duration,
    pub(super) state: Mutex<SessionState>,
    changed: Condvar,
    pub(super) kept: Condvar,
    /// When the thread that keeps the session alive (`keep`) checks it next, as `Moment::nanos`. The maximum
    /// during a check, so that each deadline set meanwhile is earlier, and wakes the thread.
    pub(super) next_check: AtomicU64,
    pub(super) me: Weak<Session>,
}

#[derive(Default)]
pub(super) struct SessionState {
    pub(super) closed: bool,
    wanted: bool,
    pub(super) stream: Option<Arc<Wire>>,
    pub(super) life: Option<Arc<Life>>,
    pub(super) pending: VecDeque<PendingReply>,
    out: Outbox,
    pub(super) last_number: i32,
    last_transaction: i64,
    watches: CrowdMap<Box<str>, Vec<Arc<Channel>>>,
    pub(super) last_beat: Option<Moment>,
    /// The number of failed attempts to connect since the last connection; `trouble` says why.
    failures: usize,
    trouble: Option<Error>,
    is_down_reported: bool,
    pub(super) watchdog: Option<ServiceWaker>,
    threads: Vec<JoinHandle<()>>,
}

pub(super) struct PendingReply {
    number: i32,
    pub(super) sent: Moment,
    is_write: bool,
    asks_the_leader: bool,
    done: OnReply,
}

/// The reading thread calls this function, which must therefore not wait.
pub(super) type OnReply = Box<dyn FnOnce(Replied) + Send>;

impl Session {
    pub(super) fn open(
        options: &ServerOptions,
        timeout: Duration,
        reporter: Arc<Reporter>,
    ) -> Result<Arc<Session>> {
        let connect_timeout = options.connect_timeout;
        let (renewal, address) = Renewable::new(options, ZooKeeperAddress::new)?;
        let session = Arc::new_cyclic(|me| Session {
            address,
            renewal,
            places: NodePlaces::default(),
            reporter,
            connect_timeout,
            timeout,
            state: Mutex::new(SessionState { wanted: true, ..SessionState::default() }),
            changed: Condvar::new(),
            kept: Condvar::new(),
            next_check: AtomicU64::new(u64::MAX),
            me: me.clone(),
        });
        let started = session.start_thread("leasehold-zk", Session::run);
        let started = started.and_then(|()| session.start_thread("leasehold-zk-keep", Session::keep));
        let opened = started.and_then(|()| session.first_connection());
        if opened.is_err() {
            session.close(Duration::ZERO);
        }
        opened.map(|()| session)
    }

    fn start_thread(self: &Arc<Session>, name: &str, work: fn(&Session)) -> Result<()> {
        let me = Arc::clone(self);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || work(&me));
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::Resource, "connect", "the session's threads could not be started")
                .with_source(error)
        })?;
        self.state.lock().threads.push(thread);
        Ok(())
    }

    fn first_connection(&self) -> Result<()> {
        let deadline = Clock::System.after(self.connect_timeout);
        let mut state = self.state.lock();
        while state.stream.is_none() {
            let left = deadline.since(Clock::System.now());
            if left.is_zero() || state.failures >= self.address.count() {
                return Err(state.unreachable());
            }
            self.changed.wait_for(&mut state, left);
        }
        Ok(())
    }

    pub(super) fn timeout(&self) -> Duration {
        self.state.lock().life.as_ref().map_or(self.timeout, |life| life.timeout)
    }

    pub(super) fn call(&self, request: &Operation<'_>, deadline: Moment) -> Replied {
        let told = self.ask(request, deadline);
        Session::told(&told, request, deadline)
    }

    pub(super) fn call_all(&self, requests: &[Operation<'_>], deadline: Moment) -> Vec<Replied> {
        let told: Vec<_> = requests.iter().map(|request| self.ask(request, deadline)).collect();
        told.iter().zip(requests).map(|(told, request)| Session::told(told, request, deadline)).collect()
    }

    fn ask(&self, request: &Operation<'_>, deadline: Moment) -> Receiver<Replied> {
        let (tell, told) = bounded(1);
        self.post(request, deadline, Box::new(move |outcome| drop(tell.try_send(outcome))));
        told
    }

    fn told(told: &Receiver<Replied>, request: &Operation<'_>, deadline: Moment) -> Replied {
        told.recv_timeout(deadline.since(Clock::System.now())).unwrap_or_else(|_none| {
            let error = Error::new(ErrorKind::TimedOut, "read", "the server did not answer in time");
            Err(NoReply::new(error, request.is_write()))
        })
    }

    /// Sends a request. Without a connection, waits for one until `deadline`.
    pub(super) fn post(&self, request: &Operation<'_>, deadline: Moment, done: OnReply) {
        let mut state = self.state.lock();
        let error = loop {
            if state.closed {
                break Error::new(ErrorKind::ShutDown, "use", "the client was shut down");
            }
            if state.stream.is_some() {
                state.send(request, done);
                drop(state);
                return self.flush();
            }
            let left = deadline.since(Clock::System.now());
            if left.is_zero() {
                break state.unreachable();
            }
            state.wanted = true;
            self.changed.notify_all();
            self.changed.wait_for(&mut state, left);
        };
        drop(state);
        done(Err(NoReply::refused(error)));
    }

    /// Writes what the socket accepts at once. The reading thread writes the rest.
    pub(super) fn flush(&self) {
        let mut state = self.state.lock();
        let written =
            Outbox::flush(&mut state, |state| (state.stream.as_ref(), &mut state.out), Wire::write_now);
        if written.is_err()
            && let Some(stream) = &state.stream
        {
            stream.shutdown(); // the reading thread notices this
        }
    }

    /// Makes the next event of the node at `path` notify `topic`. Callers then set the server's watch.
    pub(super) fn watch(&self, path: &str, topic: &Arc<Channel>) {
        let mut state = self.state.lock();
        let watchers = state.watches.entry(path.into()).or_default();
        if !watchers.iter().any(|other| Arc::ptr_eq(other, topic)) {
            watchers.push(Arc::clone(topic));
        }
    }

    pub(super) fn unwatch(&self, path: &str, topic: &Arc<Channel>) {
        let mut state = self.state.lock();
        if let Some(watchers) = state.watches.get_mut(path) {
            watchers.retain(|other| !Arc::ptr_eq(other, topic));
            if watchers.is_empty() {
                state.watches.remove(path);
            }
        }
    }

    /// Makes the thread in `keep` check the session and the leases by `moment`. Callers first make the change
    /// that the thread is to see.
    pub(super) fn look_by(&self, moment: Moment) {
        if moment.nanos() < self.next_check.load(Ordering::SeqCst) {
            let _state = self.state.lock(); // now the thread sleeps, or has yet to read the data
            self.kept.notify_all();
        }
    }

    /// Ends the session, which frees its locks at once. Then ends the threads.
    pub(super) fn close(&self, patience: Duration) {
        let (tell, told) = bounded(1);
        let mut state = self.state.lock();
        let says_so = !state.closed && state.stream.is_some();
        if says_so {
            state.send(&Operation::Close, Box::new(move |outcome| drop(tell.try_send(outcome))));
        }
        state.closed = true;
        let threads = std::mem::take(&mut state.threads);
        self.changed.notify_all();
        self.kept.notify_all();
        drop(state);
        if says_so {
            self.flush();
            // Without an answer, the session ends by its time-out.
            drop(told.recv_timeout(patience.min(LAST_WAIT)));
        }
        let mut state = self.state.lock();
        if let Some(stream) = &state.stream {
            stream.shutdown();
        }
        let deadline = Clock::System.after(LAST_WAIT);
        let own = thread::current().id();
        let others = || threads.iter().filter(|thread| thread.thread().id() != own);
        while others().any(|thread| !thread.is_finished()) && Clock::System.now() < deadline {
            self.changed.wait_for(&mut state, Duration::from_millis(1));
        }
    }

    fn run(&self) {
        let mut server = self.address.any_host();
        let mut pause = PAUSE.0;
        loop {
            let Some((life, last_transaction)) = self.until_wanted() else { return };
            let at = server % self.address.count();
            server = at + 1;
            // A silent server may use only a share of the time, so that others can be tried.
            let share = u32::try_from(self.address.count()).unwrap_or(u32::MAX).clamp(1, 3);
            let soon = life.as_ref().map_or(Duration::MAX, |life| life.timeout / 3);
            let deadline = Clock::System.after(self.connect_timeout.min(soon) / share);
            let greeted = Clock::System.now();
            let asked = (life.as_deref(), last_transaction, self.timeout);
            let connect = |renewed: &_, _| link::connect(renewed, at, asked, deadline);
            let address = self.address.servers.addresses().nth(at).unwrap_or_default();
            match self.renewal.with(&address, deadline, connect) {
                Ok(None) => life.iter().for_each(|life| self.expire(life)),
                Ok(Some((stream, granted))) => {
                    let life = life.unwrap_or_else(|| Arc::new(granted));
                    life.connected(greeted, Clock::System.now());
                    pause = PAUSE.0;
                    if let Some(stream) = self.connected(stream, &life) {
                        let error = self.read_on(&stream, &life);
                        self.disconnected(error);
                    }
                }
                Err(error) => {
                    let mut state = self.state.lock();
                    // `trouble` prefers a server's answer to a connection error of the same round.
                    let is_first = state.failures.is_multiple_of(self.address.count());
                    let before = state.trouble.take().filter(|_| !is_first);
                    state.failures += 1;
                    state.trouble = Some(error.or_answer(before));
                    self.changed.notify_all();
                    if state.failures.is_multiple_of(self.address.count()) && !state.closed {
                        self.changed.wait_for(&mut state, pause);
                        pause = (pause * 2).min(PAUSE.1);
                    }
                }
            }
        }
    }

    /// Sleeps until a connection is needed, for a request or to keep a session alive. Returns this session,
    /// if there is one, and the last transaction seen; `None` if closed.
    fn until_wanted(&self) -> Option<(Option<Arc<Life>>, i64)> {
        let mut state = self.state.lock();
        while !state.closed && state.life.is_none() && !state.wanted {
            self.changed.wait(&mut state);
        }
        (!state.closed).then(|| (state.life.clone(), state.last_transaction))
    }

    fn connected(&self, stream: Wire, life: &Arc<Life>) -> Option<Arc<Wire>> {
        let stream = Arc::new(stream);
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        state.stream = Some(Arc::clone(&stream));
        state.out.reset();
        state.life = Some(Arc::clone(life));
        state.last_beat = Some(Clock::System.now());
        state.wanted = false;
        state.failures = 0;
        state.trouble = None;
        if std::mem::take(&mut state.is_down_reported) {
            self.reporter.wakeups(None);
        }
        self.changed.notify_all();
        self.kept.notify_all();
        Some(stream)
    }

    fn read_on(&self, stream: &Wire, life: &Arc<Life>) -> Error {
        let mut from = io::BufReader::new(stream);
        loop {
            let done = link::read_reply(&mut from).and_then(|frame| self.take(&frame, life));
            if let Err(error) = done {
                return error;
            }
        }
    }

    fn take(&self, frame: &[u8], life: &Arc<Life>) -> Result<()> {
        let (header, body) = Header::read(frame)?;
        if header.number == jute::WATCH_EVENT {
            let path = jute::watched_path(body)?;
            let told = self.state.lock().watches.remove(path.as_str());
            told.iter().flatten().for_each(|topic| topic.notify());
            return Ok(());
        }
        let (pending, is_more_to_write) = {
            let mut state = self.state.lock();
            state.last_transaction = state.last_transaction.max(header.transaction);
            (state.pending.pop_front(), !state.out.is_empty())
        };
        if is_more_to_write {
            self.flush();
        }
        let Some(pending) = pending.filter(|pending| pending.number == header.number) else {
            return Err(Error::new(
                ErrorKind::Protocol,
                "read",
                "the server answered a request that was not sent",
            ));
        };
        let outcome = match header.error {
            0 => Ok(ZooKeeperReply { body: body.to_vec(), life: Arc::clone(life) }),
            code => Err(NoReply::Code(code)),
        };
        let is_over = header.error == code::SESSION_EXPIRED;
        let is_elsewhere = header.error == code::SESSION_MOVED;
        // A refused request is no sign of life, because it may not have reached the leader.
        if pending.asks_the_leader && header.error == 0 {
            life.answered(pending.sent, Clock::System.now());
        }
        (pending.done)(outcome);
        if is_over {
            self.expire(life);
        }
        let words = "the session has ended, or moved to another connection";
        Error::when(is_over || is_elsewhere, ErrorKind::Unreachable, "read", || words)
    }

    fn disconnected(&self, error: Error) {
        let mut state = self.state.lock();
        if let Some(stream) = state.stream.take() {
            stream.shutdown();
        }
        let pending = std::mem::take(&mut state.pending);
        state.out.clear();
        state.watches.clear();
        let waits = !state.closed;
        if waits && !std::mem::replace(&mut state.is_down_reported, true) {
            let told = error.copy();
            self.reporter.wakeups(Some(told));
        }
        drop(state);
        for pending in pending {
            (pending.done)(Err(NoReply::new(error.copy(), pending.is_write)));
        }
        self.state.lock().trouble = Some(error);
        self.kept.notify_all();
        if waits {
            // The watches ended with the connection. Woken waiters ask again, and set new watches.
            self.places.wake_all();
        }
    }

    /// The servers have ended the session. Notifies holders; waiters join the queue again, at its end.
    fn expire(&self, life: &Arc<Life>) {
        life.end();
        let watchdog = {
            let mut state = self.state.lock();
            if state.life.as_ref().is_some_and(|own| Arc::ptr_eq(own, life)) {
                state.life = None;
                state.last_transaction = 0;
            }
            state.watchdog.clone()
        };
        if let Some(watchdog) = watchdog {
            watchdog.bounds_ended();
        }
        self.places.wake_all();
    }
}

impl SessionState {
    /// Adds a request, which the next [`flush`](Session::flush) sends. Without a connection, refuses it.
    pub(super) fn send(&mut self, request: &Operation<'_>, done: OnReply) {
        if self.stream.is_none() {
            return done(Err(NoReply::refused(self.unreachable())));
        }
        // Numbers stay positive, because negative ones mark messages that answer no request.
        self.last_number = self.last_number.checked_add(1).unwrap_or(1);
        let number = self.last_number;
        let sent = Clock::System.now();
        let (is_write, asks_the_leader) = (request.is_write(), request.asks_the_leader());
        self.pending.push_back(PendingReply { number, sent, is_write, asks_the_leader, done });
        self.out.extend(request.frame(number));
    }

    fn unreachable(&self) -> Error {
        self.trouble.as_ref().map_or_else(
            || Error::new(ErrorKind::TimedOut, "connect", "no server could be connected to in time"),
            Error::copy,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::stores::zookeeper::fake::{frame, welcome};

    const SESSION: Duration = Duration::from_secs(600);

    /// A server that accepts a client, reads nothing until a signal, and then answers everything.
    fn server(go: Receiver<()>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = move || {
            let mut client = listener.accept().unwrap().0;
            frame(&mut client).unwrap();
            client.write_all(&welcome(SESSION)).unwrap();
            assert!(go.recv().is_ok(), "the test has failed");
            while let Some(request) = frame(&mut client) {
                let mut reply = vec![0, 0, 0, 16];
                reply.extend(&request[..4]);
                reply.extend([0; 12]);
                client.write_all(&reply).unwrap();
            }
        };
        thread::Builder::new().spawn(serve).unwrap();
        port
    }

    #[test]
    fn a_slow_reading_server_gets_every_byte() {
        const REQUESTS: usize = 300;
        let (tell, go) = bounded(1);
        let options =
            ServerOptions { url: format!("zk://127.0.0.1:{}", server(go)), ..ServerOptions::default() };
        let options = ServerOptions { connect_timeout: SESSION, ..options };
        let session = Session::open(&options, SESSION, Arc::new(Reporter::new(None))).unwrap();
        let (sender, outcomes) = bounded(REQUESTS);
        let path = format!("/{}", "x".repeat(100_000));
        let begun = Clock::System.now();
        for _ in 0..REQUESTS {
            let sender = sender.clone();
            let done = Box::new(move |outcome: Replied| sender.send(outcome.is_ok()).unwrap());
            session.post(&Operation::Delete(&path), begun.plus(SESSION), done);
            // `timeout` locks the mutex, which a blocked write must not hold.
            assert_eq!(session.timeout(), SESSION);
        }
        assert!(!session.state.lock().out.is_empty(), "the server read the whole request");
        tell.send(()).unwrap();
        for _ in 0..REQUESTS {
            assert!(outcomes.recv_timeout(SESSION).unwrap());
        }
        session.close(Duration::ZERO);
    }
}
