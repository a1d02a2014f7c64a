//! A server for one test, and ways to inspect it that do not use the code under test.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use redis::{Parser, Value};

use crate::config::ServerOptions;
use crate::ident::{ClientId, Owner, unbound_number};
use crate::observe::event::Event;
use crate::observe::reporter::Reporter;
use crate::seam::{Claim, Kind, Store};
use crate::stores::redis::RedisStore;
use crate::stores::redis::about::format_key;
use crate::tests::Open;
pub(super) use crate::tests::{Attempted, Released, Said, eventually, name};
use crate::time::{Clock, Moment};

/// A server on a Unix socket in its own folder. Stopped on drop.
pub(super) struct Server {
    process: Child,
    folder: tempfile::TempDir,
}

impl Server {
    /// Kills the server, runs `meanwhile`, and starts an empty server on the same socket.
    pub(super) fn restart(mut self, meanwhile: impl FnOnce()) -> Server {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        meanwhile();
        self.process = launch(&self.folder, &[]);
        eventually(|| UnixStream::connect(self.socket()).is_ok());
        self
    }

    pub(super) fn start(settings: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let process = launch(&folder, settings);
        let server = Server { process, folder };
        eventually(|| UnixStream::connect(server.socket()).is_ok());
        server
    }

    /// Starts a server that also listens on a free TCP port. `port_setting` is the server's option for it,
    /// such as `--tls-port`. If another process takes the port first, tries another port.
    pub(super) fn start_on_port(port_setting: &str, settings: &[&str]) -> (Server, u16) {
        for _ in 0..20 {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let folder = tempfile::tempdir().unwrap();
            let process = launch(&folder, &[&[port_setting, &port.to_string()], settings].concat());
            let mut server = Server { process, folder };
            let mut has_ended = false;
            eventually(|| {
                has_ended = server.process.try_wait().unwrap().is_some();
                has_ended || UnixStream::connect(server.socket()).is_ok()
            });
            if !has_ended {
                return (server, port);
            }
        }
        panic!("the server does not start");
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join("r.sock")
    }

    pub(super) fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub(super) fn options(&self) -> ServerOptions {
        ServerOptions { url: self.url(), ..ServerOptions::default() }
    }

    pub(super) fn store(&self) -> Opened {
        open(&self.options())
    }

    /// Makes the user `lk`, whose only rights are `rules`. Returns the options to connect as `lk`.
    pub(super) fn user(&self, rules: &str) -> ServerOptions {
        let setuser = format!("ACL SETUSER lk reset on >S3CR3T resetchannels {rules}");
        assert_eq!(self.run(&setuser.split(' ').collect::<Vec<_>>()), Value::Okay);
        let [username, password] = ["lk", "S3CR3T"].map(|text| Some(text.to_owned()));
        ServerOptions { username, password, ..self.options() }
    }

    /// Runs a command as the default user. An error reply is returned like any other.
    pub(super) fn run(&self, command: &[&str]) -> Value {
        let mut socket = UnixStream::connect(self.socket()).unwrap();
        let mut cmd = redis::Cmd::new();
        command.iter().for_each(|arg| {
            cmd.arg(arg);
        });
        socket.write_all(&cmd.get_packed_command()).unwrap();
        Parser::new().parse_value(&mut socket).unwrap()
    }

    pub(super) fn number(&self, command: &[&str]) -> i64 {
        redis::from_redis_value(self.run(command)).unwrap()
    }

    pub(super) fn text(&self, command: &[&str]) -> Option<String> {
        redis::from_redis_value(self.run(command)).unwrap()
    }

    /// The names of all keys on the server, sorted, except `format_key()`.
    pub(super) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = redis::from_redis_value(self.run(&["KEYS", "*"])).unwrap();
        keys.retain(|key| *key != format_key());
        keys.sort();
        keys
    }
}

/// Starts the program in `LEASEHOLD_TEST_SERVER`, or else `redis-server` from the PATH.
fn launch(folder: &tempfile::TempDir, settings: &[&str]) -> Child {
    let program = std::env::var_os("LEASEHOLD_TEST_SERVER").unwrap_or_else(|| "redis-server".into());
    Command::new(program)
        .args(["--port", "0", "--unixsocket", "r.sock", "--save", "", "--appendonly", "no"])
        .args(settings)
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("these tests need a redis-server on the PATH")
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

pub(super) type Opened = Open<Box<RedisStore>>;

pub(super) fn open(options: &ServerOptions) -> Opened {
    reporting(options, Arc::new(Reporter::new(None)))
}

pub(super) fn reporting(options: &ServerOptions, reporter: Arc<Reporter>) -> Opened {
    Open(Box::new(RedisStore::connect(options, reporter).unwrap()))
}

/// The error of a failed connect.
pub(super) fn no_store(options: &ServerOptions) -> crate::Error {
    RedisStore::connect(options, Arc::new(Reporter::new(None))).err().unwrap()
}

pub(super) fn served() -> (Server, Opened) {
    let server = Server::start(&[]);
    let store = server.store();
    (server, store)
}

/// Waits for this time. Used to check that nothing happens.
pub(super) fn let_pass(time: Duration) {
    let (_never, nothing) = bounded::<()>(0);
    assert!(nothing.recv_timeout(time).is_err());
}

pub(super) fn soon() -> Moment {
    Clock::System.after(Duration::from_secs(10))
}

pub(super) fn owner() -> Owner {
    Owner::new(ClientId::random(), unbound_number())
}

pub(super) fn claim(kind: Kind, key: &str, lease_ms: u64) -> Claim {
    let claim = crate::tests::claim(kind, key, Duration::from_millis(lease_ms));
    Claim { waits: true, wants_fence: kind == Kind::Fenced, ..claim }
}

/// Makes the attempt, which must be granted, and returns the claim.
pub(super) fn take(store: &RedisStore, claim: Claim) -> Claim {
    store.attempt(&claim, 1, soon()).granted();
    claim
}

/// A reporter that sends `false` when notifications stop arriving, and `true` when they arrive again.
pub(super) fn wakeups() -> (Arc<Reporter>, Receiver<bool>) {
    let (sender, told) = crossbeam_channel::unbounded();
    let observer = move |event: &Event<'_>| {
        if let Event::WakeupsDown { .. } | Event::WakeupsUp = event {
            sender.send(matches!(event, Event::WakeupsUp)).unwrap();
        }
    };
    (Arc::new(Reporter::new(Some(Arc::new(observer)))), told)
}
