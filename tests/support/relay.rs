//! A relay between clients and a server on 127.0.0.1 that applies a test's rule to each piece of bytes. For
//! RESP there is [`proxy`](super::proxy).

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};

use parking_lot::Mutex;

pub use super::proxy::Direction;

/// The fate of a piece.
pub enum Act {
    Pass,
    /// Passes these bytes on instead.
    Replace(Vec<u8>),
    Lose,
    HangUp,
    /// Sends these bytes back, and hangs up on the sender.
    Answer(Vec<u8>),
}

pub struct Piece<'a> {
    /// Number of the connection, from 0.
    pub connection: usize,
    pub direction: Direction,
    pub bytes: &'a [u8],
}

/// Lives until the process ends; a connection ends with its client.
#[derive(Clone)]
pub struct Relay(Arc<State>);

struct State {
    port: u16,
    upstream: AtomicU16,
    refuses: AtomicBool,
    accepted: AtomicUsize,
    /// Nothing passes on connections with lower numbers, not even their ends.
    frozen: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
    act: Judge,
}

type Judge = Box<dyn Fn(&Relay, &Piece<'_>) -> Act + Send + Sync>;

impl Relay {
    pub fn to(upstream: u16) -> Relay {
        Relay::with("127.0.0.1", upstream, |_, _| Act::Pass)
    }

    /// Listens on a port of `host`; `act` decides about each piece.
    pub fn with(
        host: &str,
        upstream: u16,
        act: impl Fn(&Relay, &Piece<'_>) -> Act + Send + Sync + 'static,
    ) -> Relay {
        let listener = TcpListener::bind((host, 0)).expect("a free port");
        let relay = Relay(Arc::new(State {
            port: listener.local_addr().expect("it is bound").port(),
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
                    from.write_all(&answer).ok(); // it may have hung up
                    true
                }
            };
            if is_over {
                break;
            }
        }
        if !is_frozen() {
            // Either may have ended.
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

    /// New connections lead to another server.
    pub fn lead_to(&self, port: u16) {
        self.0.upstream.store(port, Ordering::SeqCst);
    }

    /// Hangs up on new clients, or no longer.
    pub fn refuse(&self, refuses: bool) {
        self.0.refuses.store(refuses, Ordering::SeqCst);
    }

    /// Ends all connections; new ones are served.
    pub fn cut(&self) {
        self.0.open.lock().drain(..).for_each(|end| drop(end.shutdown(Shutdown::Both)));
    }

    /// Freezes the open connections, without telling either side.
    pub fn freeze(&self) {
        self.0.frozen.store(self.accepted(), Ordering::SeqCst);
    }
}
