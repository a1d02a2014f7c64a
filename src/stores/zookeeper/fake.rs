//! A simulated server. It grants each connection a session, and the test decides each reply.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};

use crate::config::ServerOptions;
use crate::sync::thread;

pub(super) const ID: i64 = 1;
/// The request type that closes the session. Such a request has no path.
const CLOSE: i32 = -11;

pub(super) enum Reply {
    /// Success, with these bytes after the header.
    Done(Vec<u8>),
    /// An event that the children of the node at this path have changed, then success with these bytes.
    DoneAfterEvent(&'static str, Vec<u8>),
    Code(i32),
    HangsUp,
    Never,
}

/// The request's type, as a number of the protocol, and its path.
pub(super) struct Request {
    pub(super) operation: i32,
    pub(super) path: String,
    /// Whether the request sets a watch.
    pub(super) watches: bool,
}

pub(super) struct Server {
    pub(super) options: ServerOptions,
    /// The session that each connection asked for; zero for a new one.
    pub(super) greetings: Receiver<i64>,
}

impl Server {
    /// Starts a server that serves one connection after the other, until the process ends.
    pub(super) fn start(
        session: Duration,
        mut reply: impl FnMut(&Request) -> Reply + Send + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("zk://{}", listener.local_addr().unwrap());
        let (sender, greetings) = unbounded();
        let serve = move || {
            for mut client in listener.incoming().flatten() {
                let Some(greeting) = frame(&mut client) else { continue };
                client.write_all(&welcome(session)).unwrap();
                sender.send(i64::from_be_bytes(greeting[16..24].try_into().unwrap())).ok();
                serve_client(&mut client, &mut reply);
            }
        };
        drop(thread::Builder::new().spawn(serve).unwrap());
        Server { options: ServerOptions { url, ..ServerOptions::default() }, greetings }
    }
}

fn serve_client(client: &mut TcpStream, reply: &mut impl FnMut(&Request) -> Reply) {
    while let Some(request) = frame(client) {
        let (number, rest) = request.split_first_chunk::<4>().unwrap();
        let (operation, rest) = rest.split_first_chunk::<4>().unwrap();
        if i32::from_be_bytes(*operation) == CLOSE {
            break;
        }
        let (length, rest) = rest.split_first_chunk::<4>().unwrap();
        let (path, rest) = rest.split_at(usize::try_from(i32::from_be_bytes(*length)).unwrap());
        let path = String::from_utf8(path.to_vec()).unwrap();
        let request = Request { operation: i32::from_be_bytes(*operation), path, watches: rest == [1] };
        let (code, body) = match reply(&request) {
            Reply::Done(body) => (0, body),
            Reply::DoneAfterEvent(path, body) => {
                let children_changed = [4, 3].map(i32::to_be_bytes).concat();
                let event = [&[255; 4], [0; 12].as_slice(), &children_changed, &text(path)].concat();
                let length = i32::try_from(event.len()).unwrap().to_be_bytes();
                client.write_all(&[length.as_slice(), &event].concat()).unwrap();
                (0, body)
            }
            Reply::Code(code) => (code, Vec::new()),
            Reply::HangsUp => break,
            Reply::Never => continue,
        };
        let fields = [number.as_slice(), &[0; 8], &i32::to_be_bytes(code), &body].concat();
        let length = i32::try_from(fields.len()).unwrap().to_be_bytes();
        if client.write_all(&[length.as_slice(), &fields].concat()).is_err() {
            break;
        }
    }
    drop(client.shutdown(Shutdown::Both));
}

pub(super) fn welcome(session: Duration) -> Vec<u8> {
    let timeout = i32::try_from(session.as_millis()).unwrap().to_be_bytes();
    [&[0, 0, 0, 36, 0, 0, 0, 0], timeout.as_slice(), &ID.to_be_bytes(), &[0, 0, 0, 16], &[7; 16]].concat()
}

/// The next message; `None` if the connection has ended.
pub(super) fn frame(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    client.read_exact(&mut length).ok()?;
    let mut bytes = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
    client.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

pub(super) fn text(text: &str) -> Vec<u8> {
    [&i32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}
