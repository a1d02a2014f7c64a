//! A fake server that misbehaves on request.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redis::{Parser, Value};

use crate::config::ServerOptions;

#[derive(Clone, Copy)]
pub(super) enum Act {
    Say(&'static str),
    /// Sends the text slowly, one byte at a time.
    Drip(&'static str),
    /// Sends the text, and then bytes without end.
    Flood(&'static str),
    Nothing,
    HangUp,
    /// Sends the text, and then closes the connection.
    Last(&'static str),
}

pub(super) const GREETING: Act = Act::Say(
    "*6\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nrole\r\n$6\r\nmaster\r\n",
);

pub(super) struct Fake {
    folder: tempfile::TempDir,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    ended: AtomicBool,
    connects: AtomicUsize,
    commands: AtomicUsize,
    flooded: AtomicUsize,
}

impl Fake {
    /// Starts a server that answers each command as `act` says; `act` gets it in lower case, such as
    /// `evalsha …`. HELLO, the probe for scripts and the format number are answered as a good server would.
    pub(super) fn start(act: impl Fn(&str) -> Act + Send + Sync + 'static) -> Fake {
        Fake::start_raw(move |command| match command {
            "hello" => GREETING,
            _ if command.starts_with("eval return 1") => Act::Say(":1\r\n"),
            "get leasehold_client:format" => Act::Say("$18\r\nleasehold format 1\r\n"),
            _ => act(command),
        })
    }

    pub(super) fn start_raw(act: impl Fn(&str) -> Act + Send + Sync + 'static) -> Fake {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("r.sock")).unwrap();
        let (state, act) = (Arc::new(State::default()), Arc::new(act));
        let shared = Arc::clone(&state);
        let serve = move || {
            for socket in listener.incoming().map_while(Result::ok) {
                if shared.ended.load(Ordering::SeqCst) {
                    return;
                }
                shared.connects.fetch_add(1, Ordering::SeqCst);
                let (state, act) = (Arc::clone(&shared), Arc::clone(&act));
                std::thread::Builder::new().spawn(move || talk(socket, &state, &*act)).unwrap();
            }
        };
        std::thread::Builder::new().spawn(serve).unwrap();
        Fake { folder, state }
    }

    pub(super) fn options(&self) -> ServerOptions {
        let url = format!("redis+unix://{}/r.sock", self.folder.path().display());
        let command_timeout = Duration::from_secs(1);
        ServerOptions { url, command_timeout, ..ServerOptions::default() }
    }

    pub(super) fn connects(&self) -> usize {
        self.state.connects.load(Ordering::SeqCst)
    }

    /// The number of bytes of floods that the client's socket accepted.
    pub(super) fn flooded(&self) -> usize {
        self.state.flooded.load(Ordering::SeqCst)
    }

    /// The number of commands received, including HELLO and the probe.
    pub(super) fn commands(&self) -> usize {
        self.state.commands.load(Ordering::SeqCst)
    }
}

fn talk(mut socket: UnixStream, state: &State, act: &(impl Fn(&str) -> Act + ?Sized)) {
    let mut reader = socket.try_clone().unwrap();
    let mut parser = Parser::new();
    while let Ok(Value::Array(words)) = parser.parse_value(&mut reader) {
        state.commands.fetch_add(1, Ordering::SeqCst);
        let words: Vec<String> = words
            .iter()
            .map(|word| match word {
                Value::BulkString(word) => String::from_utf8_lossy(word).to_lowercase(),
                _ => String::new(),
            })
            .collect();
        let sent = match act(&words.join(" ")) {
            Act::Say(bytes) => socket.write_all(bytes.as_bytes()),
            Act::Drip(bytes) => bytes.bytes().try_for_each(|byte| {
                let (_never, nothing) = crossbeam_channel::bounded::<()>(0);
                assert!(nothing.recv_timeout(Duration::from_millis(200)).is_err());
                socket.write_all(&[byte])
            }),
            Act::Flood(begin) => {
                drop(socket.write_all(begin.as_bytes()));
                while let Ok(written) = socket.write(&[b'1'; 4096]) {
                    state.flooded.fetch_add(written, Ordering::SeqCst);
                }
                return;
            }
            Act::Nothing => Ok(()),
            Act::HangUp => return,
            Act::Last(bytes) => {
                drop(socket.write_all(bytes.as_bytes()));
                return;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        drop(UnixStream::connect(self.folder.path().join("r.sock")));
    }
}
