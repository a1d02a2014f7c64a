//! A relay between clients and a server on 127.0.0.1. A test's rule decides what happens to each piece of
//! bytes. Tests of Redis use [`proxy`](super::proxy) instead.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};

use parking_lot::Mutex;

pub use super::proxy::Direction;

pub enum Act {
    Pass,
    /// Passes on these bytes instead of the piece.
    Replace(Vec<u8>),
    Lose,
    HangUp,
    /// Sends these bytes to the piece's sender, and closes the connection.
    Answer(Vec<u8>),
}

pub struct Piece<'a> {
    /// The number of the connection, counted from 0.
    pub connection: usize,
    pub direction: Direction,
    pub bytes: &'a [u8],
}

/// A relay, which runs until the process ends. A connection ends with its client or server.
#[derive(Clone)]
pub struct Relay(Arc<State>);

struct State {
    port: u16,
    upstream: AtomicU16,
    refuses: AtomicBool,
    accepted: AtomicUsize,
    /// All connections with lower numbers are frozen: nothing passes, and their ends are not passed on.
    frozen: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
    act: Judge,
}

type Judge = Box<dyn Fn(&Relay, &Piece<'_>) -> Act + Send + Sync>;

impl Relay {
    pub fn to(upstream: u16) -> Relay {
        Relay::with("127.0.0.1", upstream, |_, _| Act::Pass)
    }

    /// Starts a relay on a port of `host`. `act` decides about each piece.
    pub fn with(
        host: &str,
        upstream: u16,
        act: impl Fn(&Relay, &Piece<'_>) -> Act + Send + Sync + 'static,
    ) -> Relay {
        let listener = TcpListener::bind((host, 0)).expect("a free port");
        let relay = Relay(Arc::new(State {
            port: listener.local_addr().expect("the listener is bound").port(),
            upstream: upstream.into(),
            refuses: AtomicBool::default(),
            accepted: AtomicUsize::default(),
            frozen: AtomicUsize::default(),
            open: Mutex::default(),
            act: Box::new(act),
        }));
        let accepting = relay.clone();
        drop(super::start(move || listener.incoming().flatten().for_each(|client| accepting.link(&client))));
        relay
    }

    fn link(&self, client: &TcpStream) {
        if self.0.refuses.load(Ordering::SeqCst) {
            return;
        }
        let connection = self.0.accepted.fetch_add(1, Ordering::SeqCst);
        let upstream = self.0.upstream.load(Ordering::SeqCst);
        let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else { return };
        let end = |of: &TcpStream| of.try_clone().expect("a socket can be shared");
        self.0.open.lock().extend([end(client), end(&server)]);
        for (direction, from, to) in
            [(Direction::ToServer, client, &server), (Direction::ToClient, &server, client)]
        {
            let (relay, from, to) = (self.clone(), end(from), end(to));
            drop(super::start(move || relay.pass(connection, direction, from, to)));
        }
    }

    fn pass(&self, connection: usize, direction: Direction, mut from: TcpStream, mut to: TcpStream) {
        let is_frozen = || connection < self.0.frozen.load(Ordering::SeqCst);
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let bytes = &buffer[..count];
            let is_over = match (self.0.act)(self, &Piece { connection, direction, bytes }) {
                _ if is_frozen() => false,
                Act::Pass => to.write_all(bytes).is_err(),
                Act::Replace(bytes) => to.write_all(&bytes).is_err(),
                Act::Lose => false,
                Act::HangUp => true,
                Act::Answer(answer) => {
                    from.write_all(&answer).ok(); // fails if the client has hung up
                    true
                }
            };
            if is_over {
                break;
            }
        }
        if !is_frozen() {
            [from, to].iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
        }
    }

    pub fn port(&self) -> u16 {
        self.0.port
    }

    pub fn url(&self, url: &str, port: u16) -> String {
        url.replace(&format!(":{port}"), &format!(":{}", self.0.port))
    }

    pub fn accepted(&self) -> usize {
        self.0.accepted.load(Ordering::SeqCst)
    }

    /// Connects new connections to another server.
    pub fn lead_to(&self, port: u16) {
        self.0.upstream.store(port, Ordering::SeqCst);
    }

    /// Closes new connections at once (`true`), or serves them (`false`).
    pub fn refuse(&self, refuses: bool) {
        self.0.refuses.store(refuses, Ordering::SeqCst);
    }

    /// Closes all connections. New ones are served.
    pub fn cut(&self) {
        self.0.open.lock().drain(..).for_each(|end| drop(end.shutdown(Shutdown::Both)));
    }

    /// Freezes the open connections: nothing passes any more, and neither side notices.
    pub fn freeze(&self) {
        self.0.frozen.store(self.accepted(), Ordering::SeqCst);
    }
}
