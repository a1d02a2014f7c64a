//! A real Redis server, with which tests compare the model.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_proof::server::Reply;
use redis::{Connection, Value};

/// A process that is killed on drop.
pub struct Program(pub Child);

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts the server. Returns it, a connection through a socket in `folder`, and the server's TCP port.
pub fn start(folder: &Path) -> (Program, Connection, u16) {
    // Another process may take the chosen port first, so several ports are tried.
    (0..10).find_map(|_| start_on_a_port(folder)).expect("a server with a port of its own")
}

#[allow(clippy::disallowed_methods, reason = "nothing says when a program listens but that it does")]
fn start_on_a_port(folder: &Path) -> Option<(Program, Connection, u16)> {
    let program = std::env::var("LEASEHOLD_TEST_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let socket = folder.join("socket");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = free.expect("a free port").port();
    let child = Command::new(&program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--hz", "100", "--dir"])
        .arg(folder)
        .arg("--unixsocket")
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("{program} cannot be started ({error}); ./check tools installs a server")
        });
    let mut program = Program(child);
    let client = redis::Client::open(format!("unix://{}", socket.display())).expect("a URL");
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match client.get_connection() {
            Ok(connection) => return Some((program, connection, port)),
            Err(error) => assert!(Instant::now() < until, "the server does not listen: {error}"),
        }
        if program.0.try_wait().is_ok_and(|ended| ended.is_some()) {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Numbers that depend on the seed alone (xorshift64*, Vigna 2016).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }

    pub fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

/// A server's answer, in the model's form.
pub fn reply(value: &Value) -> Reply {
    match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Number(*number),
        Value::BulkString(bytes) => Reply::Text(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Reply::Status(text.clone()),
        Value::Okay => Reply::Status("OK".to_owned()),
        Value::Array(items) => match items.as_slice() {
            [Value::BulkString(mark), Value::BulkString(text)] if mark == b"an error" => {
                Reply::Error(String::from_utf8_lossy(text).into_owned())
            }
            [Value::BulkString(mark), Value::BulkString(text)] if mark == b"a status" => {
                Reply::Status(String::from_utf8_lossy(text).into_owned())
            }
            items => Reply::Array(items.iter().map(reply).collect()),
        },
        other => panic!("no answer of a script: {other:?}"),
    }
}
