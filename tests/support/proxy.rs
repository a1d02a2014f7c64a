//! A TCP proxy in front of one server, which understands RESP (the protocol of Redis).
//!
//! The proxy pairs each command of a connection with its reply, in order, so a test can name a reply to lose:
//! that to "the next EVALSHA that names this lock". Like a network, the proxy delays bytes, holds them back,
//! loses all from some point on, or ends the connection. Only [`Proxy::drop_messages`], [`Do::GarbleReply`]
//! and [`Fault::repeat`] do what TCP never does: lose, change or repeat a part of a stream.
//!
//! | what a test controls or sees | by |
//! | --- | --- |
//! | one command or its reply, picked by a closure | [`Proxy::next`], [`Proxy::each`] with a [`Do`] |
//! | everything in one direction, per kind of connection | [`Proxy::hold`], [`Proxy::resume`] |
//! | slow links | [`Proxy::delay_requests`], [`Proxy::delay_replies`], [`Proxy::drip`] |
//! | connections | [`Proxy::kill`], [`Proxy::refuse`], [`Proxy::accept`], [`Proxy::ignore`] |
//! | what was sent | [`Proxy::commands`], [`Fault::hits`] |
//!
//! Other protocols, such as TLS, pass unchanged. Functions that pick commands have no effect on them.

mod engine;
mod resp;

use super::server::{Port, RedisServer};
use engine::{FaultState, Pick, Rule, Shared, State};
use parking_lot::{Condvar, Mutex};
use resp::{frame_length, packed};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const OWN_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The number of the connection, counted from 0 in the order of acceptance.
    pub connection: u64,
    pub args: Vec<Vec<u8>>,
}

impl Command {
    pub fn verb(&self) -> String {
        self.args.first().map(|verb| String::from_utf8_lossy(verb).to_ascii_uppercase()).unwrap_or_default()
    }

    pub fn is_script(&self) -> bool {
        matches!(self.verb().as_str(), "EVAL" | "EVALSHA" | "FCALL")
    }

    /// Whether an argument contains these bytes. A script's text is not searched: it may contain any word.
    pub fn contains(&self, bytes: impl AsRef<[u8]>) -> bool {
        let bytes = bytes.as_ref();
        let is_text = |at: usize| at == 1 && self.verb() == "EVAL";
        let mut arguments = self.args.iter().enumerate().filter(|(at, _)| !is_text(*at));
        arguments.any(|(_, arg)| arg.windows(bytes.len()).any(|part| part == bytes))
    }

    fn subscribes(&self) -> bool {
        matches!(self.verb().as_str(), "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE")
    }

    fn replies(&self) -> usize {
        match self.verb().as_str() {
            "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "PUNSUBSCRIBE" | "SUNSUBSCRIBE" => {
                (self.args.len() - 1).max(1)
            }
            _ => 1,
        }
    }
}

/// Selects commands that run a script with these bytes in an argument (key, channel, owner or SHA-1).
pub fn script_with(bytes: impl Into<Vec<u8>>) -> impl Fn(&Command) -> bool + Send + 'static {
    let bytes = bytes.into();
    move |command| command.is_script() && command.contains(&bytes)
}

pub fn verb(verb: &'static str) -> impl Fn(&Command) -> bool + Send + 'static {
    move |command| command.verb() == verb
}

/// What happens to the connection when a fault has hit a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The connection stays open, but no more bytes pass in either direction.
    Silent,
    /// The connection is closed in order (FIN).
    Close,
    /// The connection is aborted (RST).
    Reset,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Do {
    /// The server runs the command. Its reply and all later bytes are lost.
    SwallowReply(Then),
    /// Passes this many bytes of the reply, and loses the rest.
    CutReply(usize, Then),
    /// These bytes replace the reply.
    GarbleReply(Vec<u8>),
    /// Delays the reply, and all later ones on this connection.
    DelayReply(Duration),
    /// Holds back the reply, and all later ones on this connection, until [`Fault::release`].
    HoldReply,
    /// Holds back the command, and all later ones on this connection, until [`Fault::release`]. Then the
    /// server gets them, even if the client is gone.
    HoldRequest,
    /// The server never receives the command.
    DropRequest(Then),
    /// Only counts and records the command.
    Watch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    All,
    /// The connections that have sent SUBSCRIBE or a variant of it.
    Subscribers,
    Others,
    /// The connection with this [`Command::connection`].
    One(u64),
}

/// A running proxy. Dropping it ends all its connections and threads.
pub struct Proxy {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// A fault that a test has requested. Dropping this value does not cancel the fault.
pub struct Fault {
    shared: Arc<Shared>,
    id: usize,
}

impl Fault {
    /// How many commands the fault has hit so far. If the fault concerns the reply, a command is hit when its
    /// reply arrives.
    pub fn hits(&self) -> usize {
        self.shared.state.lock().faults[self.id].hits
    }

    #[track_caller]
    pub fn wait_for(&self, hits: usize, limit: Duration) {
        let bitten = self.shared.wait(limit, |state| state.faults[self.id].hits >= hits);
        assert!(bitten, "the fault affected {} messages in {limit:?}, not {hits}", self.hits());
    }

    /// Passes on what the fault holds back, and holds back nothing from now on.
    pub fn release(&self) {
        self.shared.change(|state| state.faults[self.id].released = true);
    }

    /// Lets the fault hit no more commands.
    pub fn cancel(&self) {
        self.shared.change(|state| state.rules.retain(|rule| rule.fault != self.id));
    }

    pub fn commands(&self) -> Vec<Command> {
        self.shared.state.lock().faults[self.id].commands.clone()
    }

    /// Repeats the `nth` command that the fault hit, and returns the server's reply. No network repeats a
    /// request, but some clients and proxies do.
    pub fn repeat(&self, nth: usize) -> Vec<u8> {
        let command = self.commands().swap_remove(nth);
        let mut server = TcpStream::connect(self.shared.upstream()).expect("the server answers");
        server.set_read_timeout(Some(OWN_LIMIT)).expect("a timeout");
        server.write_all(&packed(&command.args)).expect("the server reads");
        let (mut reply, mut chunk) = (Vec::new(), [0; 4096]);
        while frame_length(&reply).expect("RESP").is_none() {
            let count = server.read(&mut chunk).expect("the server answers");
            assert!(count > 0, "the server hung up");
            reply.extend_from_slice(&chunk[..count]);
        }
        reply
    }
}

impl Proxy {
    /// Starts a proxy on a free port of 127.0.0.1, for the server at `upstream`.
    pub fn to(upstream: impl Into<SocketAddr>) -> Proxy {
        let (port, listener) = loop {
            let port = Port::claim();
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())) {
                break (port, listener);
            }
        };
        let state = Mutex::new(State { listening: true, ..State::default() });
        let shared =
            Arc::new(Shared { upstream: Mutex::new(upstream.into()), port, state, changed: Condvar::new() });
        let acceptor = thread("proxy-accept", {
            let shared = Arc::clone(&shared);
            move || shared.accept_loop(listener)
        });
        Proxy { shared, acceptor: Some(acceptor) }
    }

    /// As [`Proxy::to`], for a server that does not speak RESP.
    pub fn plain(upstream: impl Into<SocketAddr>) -> Proxy {
        let proxy = Proxy::to(upstream);
        proxy.shared.change(|state| state.plain = true);
        proxy
    }

    pub fn before(server: &RedisServer) -> Proxy {
        Proxy::to((server.address(), server.port()))
    }

    /// Connects new connections to another server, and keeps the open ones, as a virtual address does.
    pub fn leads_to(&self, server: &RedisServer) {
        *self.shared.upstream.lock() = (server.address(), server.port()).into();
    }

    pub fn port(&self) -> u16 {
        self.shared.port.number()
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// Applies `act` to the next command that `pick` selects and that no earlier fault selects.
    pub fn next(&self, pick: impl Fn(&Command) -> bool + Send + 'static, act: Do) -> Fault {
        self.add(Box::new(pick), act, Some(1))
    }

    /// As [`Proxy::next`], for each such command until the fault is cancelled.
    pub fn each(&self, pick: impl Fn(&Command) -> bool + Send + 'static, act: Do) -> Fault {
        self.add(Box::new(pick), act, None)
    }

    fn add(&self, pick: Pick, act: Do, left: Option<usize>) -> Fault {
        let id = self.shared.change(|state| {
            let fault = state.faults.len();
            state.faults.push(FaultState::default());
            state.rules.push(Rule { fault, pick, act, left });
            fault
        });
        Fault { shared: Arc::clone(&self.shared), id }
    }

    /// Holds back all bytes in this direction, and also the ends of connections. One held direction makes a
    /// half-open link, both make a partition.
    pub fn hold(&self, direction: Direction, which: Which) {
        self.shared.change(|state| state.holds.push((direction, which)));
    }

    /// Stops reading from these clients, after at most one more piece. The system's buffers then fill up, as
    /// if the server hung.
    pub fn stop_reading(&self, which: Which) {
        self.shared.change(|state| state.deaf = Some(which));
    }

    /// Passes on all that [`Proxy::hold`] held back, and reads from all clients again.
    pub fn resume(&self) {
        self.shared.change(|state| {
            state.holds.clear();
            state.deaf = None;
        });
    }

    /// Delays each reply and message; zero ends the delay.
    pub fn delay_replies(&self, delay: Duration) {
        self.shared.change(|state| state.reply_delay = delay);
    }

    /// Delays each command; zero ends the delay.
    pub fn delay_requests(&self, delay: Duration) {
        self.shared.change(|state| state.request_delay = delay);
    }

    /// Sends replies in pieces of this many bytes, with pauses between them; `None` ends this.
    pub fn drip(&self, pieces: Option<(usize, Duration)>) {
        self.shared.change(|state| state.drip = pieces);
    }

    /// Loses published messages and keeps connections open, as no network does, but perhaps a broker.
    pub fn drop_messages(&self, on: bool) {
        self.shared.change(|state| state.drop_messages = on);
    }

    pub fn messages_dropped(&self) -> usize {
        self.shared.state.lock().messages_dropped
    }

    /// Refuses new connections, and keeps open ones. Returns once this is in effect.
    pub fn refuse(&self) {
        self.shared.change(|state| state.refuse = true);
        self.shared.wake_acceptor();
        assert!(self.shared.wait(OWN_LIMIT, |state| !state.listening), "the proxy went on listening");
    }

    /// Accepts new connections without serving them, as an overloaded proxy does, and keeps open ones.
    pub fn ignore(&self) {
        self.shared.change(|state| state.ignored = Some(Vec::new()));
    }

    /// Accepts new connections again after [`Proxy::refuse`]. Returns once this is in effect.
    pub fn accept(&self) {
        self.shared.change(|state| state.refuse = false);
        assert!(self.shared.wait(OWN_LIMIT, |state| state.listening), "the proxy does not listen");
    }

    /// Applies `then` to the clients' ends of these connections. Returns their number.
    pub fn kill(&self, which: Which, then: Then) -> usize {
        self.shared.change(|state| {
            let ids: Vec<u64> =
                state.links.iter().filter(|(id, link)| link.is(**id, which)).map(|(id, _)| *id).collect();
            ids.iter().for_each(|id| state.end(*id, then));
            ids.len()
        })
    }

    pub fn connections(&self) -> usize {
        self.shared.state.lock().links.len()
    }

    pub fn accepted(&self) -> u64 {
        self.shared.state.lock().accepted
    }

    pub fn commands(&self) -> Vec<Command> {
        self.shared.state.lock().log.clone()
    }

    pub fn count(&self, pick: impl Fn(&Command) -> bool) -> usize {
        self.shared.state.lock().log.iter().filter(|command| pick(command)).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.change(|state| {
            state.stop = true;
            state
                .links
                .keys()
                .copied()
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|id| state.end(id, Then::Close));
        });
        self.shared.wake_acceptor();
        let threads: Vec<_> = self.acceptor.take().into_iter().collect();
        join(threads);
        // The thread that accepts has ended, so no more threads are added.
        let threads = std::mem::take(&mut self.shared.state.lock().threads);
        join(threads);
    }
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            super::shout("a thread of the proxy panicked");
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).expect("a thread")
}
