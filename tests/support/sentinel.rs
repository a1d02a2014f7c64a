//! A master, two replicas, and three Sentinels that watch them.

use super::server::{Builder, RedisServer, ServerBinary};
use super::talk::{Server, answering};
use super::{eventually, now};
use parking_lot::Mutex;
use redis::{FromRedisValue, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const MASTER: &str = "locks";
/// How many milliseconds the master is silent before each Sentinel takes it for dead. The last Sentinel
/// waits longer, because all three might otherwise stand for election at once and delay the failover.
const DOWN_AFTER_MS: [u32; 3] = [700, 700, 1500];
/// The time after which a planned failover has promoted a replica, or the Sentinels have abandoned it.
const PROMOTED_WITHIN: Duration = Duration::from_secs(4);
/// The limit of a failover: three tilts. A Sentinel that has not run for 2 s does nothing for 30 s (a tilt).
pub const LIMIT: Duration = Duration::from_secs(90);

/// A master, two replicas and three Sentinels. All six processes end on drop.
pub struct SentinelSet {
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
}

impl SentinelSet {
    pub fn start(binary: &ServerBinary) -> SentinelSet {
        SentinelSet::start_with(binary, |server| server, |sentinel| sentinel)
    }

    /// As [`start`](Self::start), with additional settings of the data servers and of the Sentinels.
    pub fn start_with(
        binary: &ServerBinary,
        server: impl Fn(Builder) -> Builder,
        sentinel: impl Fn(Builder) -> Builder,
    ) -> SentinelSet {
        SentinelSet::launch(binary, &server, &sentinel, false)
    }

    pub fn start_tls(binary: &ServerBinary) -> SentinelSet {
        let secured = |builder: Builder| builder.config("tls-replication yes");
        SentinelSet::launch(binary, &secured, &secured, true)
    }

    fn launch(
        binary: &ServerBinary,
        server: &dyn Fn(Builder) -> Builder,
        sentinel: &dyn Fn(Builder) -> Builder,
        tls: bool,
    ) -> SentinelSet {
        let plain = RedisServer::builder(binary)
            .config("repl-diskless-sync-delay 0")
            .config("repl-ping-replica-period 1")
            .config("repl-timeout 5");
        let first = server(if tls { plain.clone().tls() } else { plain.clone() }).start();
        let secured = |builder: Builder| if tls { builder.tls_of(&first) } else { builder };
        let replica = || {
            let of = format!("replicaof 127.0.0.1 {}", first.port());
            server(secured(plain.clone())).config(&of).start()
        };
        let watch = |down_after_ms: u32| {
            let watching = secured(RedisServer::builder(binary).sentinel())
                .config(&format!("sentinel monitor {MASTER} 127.0.0.1 {} 2", first.port()))
                .config(&format!("sentinel down-after-milliseconds {MASTER} {down_after_ms}"))
                .config(&format!("sentinel failover-timeout {MASTER} 3000"))
                .config(&format!("sentinel parallel-syncs {MASTER} 2"));
            let watching = sentinel(watching).start();
            // Sentinels promote only replicas that they checked within the last five ping periods. While the
            // master is down they check once a second, so a much shorter period would prevent failovers.
            let quick = ["DEBUG", "info-period", "200", "ping-period", "500", "ask-period", "100"];
            redis::cmd("SENTINEL").arg(&quick).exec(&mut watching.admin()).unwrap();
            watching
        };
        let (replicas, sentinels) = ([replica(), replica()], DOWN_AFTER_MS.map(watch).into());
        let servers = std::iter::once(first).chain(replicas).collect();
        let set = SentinelSet { servers, sentinels };
        set.await_health();
        set
    }

    /// Makes the Sentinels patient, for tests in which a busy machine must not cause a failover.
    pub fn patient(self) -> SentinelSet {
        for sentinel in &self.sentinels {
            let _: Value = ask(sentinel, &["SENTINEL", "SET", MASTER, "down-after-milliseconds", "15000"]);
        }
        self
    }

    pub fn url(&self) -> String {
        self.url_with("", "")
    }

    /// The URL with a login (`user:password@`) and a database (`/1`).
    pub fn url_with(&self, login: &str, database: &str) -> String {
        let is_tls = self.sentinels[0].url().starts_with("rediss");
        let scheme = if is_tls { "rediss-sentinel" } else { "redis-sentinel" };
        let places: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("{scheme}://{login}{}/{MASTER}{database}", places.join(","))
    }

    /// The index of the master, as the first Sentinel says.
    pub fn master(&self) -> usize {
        self.named_by(0)
    }

    pub fn named_by(&self, sentinel: usize) -> usize {
        let (_, port): (String, u16) =
            ask(&self.sentinels[sentinel], &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
        self.servers.iter().position(|server| server.port() == port).expect("one of ours")
    }

    /// Waits until all Sentinels name the same new master, and its own role is master. Returns its index.
    #[track_caller]
    pub fn await_switch(&self, old: usize) -> usize {
        let mut new = old;
        let switched = eventually(LIMIT, || {
            new = self.named_by(0);
            new != old
                && (1..self.sentinels.len()).all(|sentinel| self.named_by(sentinel) == new)
                && is_master(&self.servers[new])
        });
        assert!(switched, "no failover:\n{}", self.sentinels[0].log());
        new
    }

    /// Requests planned failovers until the master has changed. Returns the time of the last request.
    #[track_caller]
    pub fn fail_over(&self) -> Instant {
        let old = self.master();
        let mut asked = now();
        let switched = eventually(LIMIT, || {
            asked = now();
            let words = ["FAILOVER", MASTER];
            let taken_up = redis::cmd("SENTINEL").arg(&words).exec(&mut self.sentinels[0].admin());
            // The Sentinels refuse a failover soon after another, or abandon one, so requests are repeated.
            taken_up.is_ok() && eventually(PROMOTED_WITHIN, || self.master() != old)
        });
        assert!(switched, "the Sentinels make no failover:\n{}", self.sentinels[0].log());
        asked
    }

    /// Restarts killed servers, makes each server but the master its replica, and awaits a healthy set.
    #[track_caller]
    pub fn heal(&mut self) {
        let master = self.master();
        let port = self.servers[master].port().to_string();
        for (at, server) in self.servers.iter_mut().enumerate() {
            if !server.is_running() {
                server.restart();
            }
            if at != master {
                redis::cmd("REPLICAOF").arg("127.0.0.1").arg(&port).exec(&mut server.admin()).unwrap();
            }
        }
        self.await_health();
    }

    /// Waits until the Sentinels know each other and both replicas, whose links to the master are up.
    #[track_caller]
    pub fn await_health(&self) {
        let mut why = String::new();
        let healthy = eventually(LIMIT, || {
            why = self.ailment().unwrap_or_default();
            why.is_empty()
        });
        assert!(healthy, "{why}\n{}", self.sentinels[0].log());
    }

    /// Stops the replicas and cuts their links, so that they miss what the master receives from now on.
    pub fn cut_off_the_master(&self) {
        let master = self.master();
        self.await_replicas();
        self.replicas(master).for_each(RedisServer::stop);
        redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", "replica"])
            .exec(&mut self.servers[master].admin())
            .unwrap();
    }

    pub fn replicas(&self, master: usize) -> impl Iterator<Item = &RedisServer> {
        self.servers.iter().enumerate().filter(move |(at, _)| *at != master).map(|(_, server)| server)
    }

    /// Waits until the replicas have all data that the master has at the call.
    #[track_caller]
    pub fn await_replicas(&self) {
        let mut admin = self.servers[self.master()].admin();
        let all = self.servers.len() - 1;
        redis::cmd("SET").arg(&["test:replicated", "1", "PX", "1"]).exec(&mut admin).unwrap();
        // WAIT counts only the writes of its own connection, so the SET above uses this connection too.
        let count: usize = redis::cmd("WAIT").arg(all).arg(5000).query(&mut admin).unwrap();
        assert_eq!(count, all, "the replicas lag");
    }

    fn ailment(&self) -> Option<String> {
        for sentinel in &self.sentinels {
            let fields: std::collections::HashMap<String, String> =
                ask(sentinel, &["SENTINEL", "MASTER", MASTER]);
            if fields["flags"] != "master" || fields["num-other-sentinels"] != "2" {
                return Some(format!("the master is {fields:?}"));
            }
            let replicas: Vec<std::collections::HashMap<String, String>> =
                ask(sentinel, &["SENTINEL", "REPLICAS", MASTER]);
            let well = replicas
                .iter()
                .filter(|replica| replica["flags"] == "slave" && replica["master-link-status"] == "ok");
            if well.count() != self.servers.len() - 1 {
                return Some(format!("the replicas are {replicas:?}"));
            }
        }
        let info: String = ask(&self.servers[self.master()], &["INFO", "replication"]);
        (info.matches("state=online").count() != self.servers.len() - 1).then_some(info)
    }
}

fn ask<T: FromRedisValue>(server: &RedisServer, words: &[&str]) -> T {
    redis::cmd(words[0]).arg(&words[1..]).query(&mut server.admin()).unwrap()
}

pub fn is_master(server: &RedisServer) -> bool {
    let role: Vec<Value> = ask(server, &["ROLE"]);
    role.first() == Some(&Value::BulkString(b"master".to_vec()))
}

/// A server that answers like a Sentinel, with what a test sets.
pub struct FakeSentinel {
    server: Server,
    answer: Arc<Mutex<Said>>,
}

struct Said {
    epoch: u64,
    master: u16,
    is_silent: bool,
}

impl FakeSentinel {
    /// Starts a server which says that failover number `epoch` made the server at this port the master.
    pub fn start(epoch: u64, master: u16) -> FakeSentinel {
        let answer = Arc::new(Mutex::new(Said { epoch, master, is_silent: false }));
        let says = Arc::clone(&answer);
        FakeSentinel { server: answering(move |words| says.lock().answer(words)), answer }
    }

    pub fn says(&self, epoch: u64, master: u16) {
        *self.answer.lock() = Said { epoch, master, is_silent: false };
    }

    pub fn falls_silent(&self) {
        self.answer.lock().is_silent = true;
    }

    pub fn place(&self) -> String {
        self.server.address.to_string()
    }
}

impl Said {
    fn answer(&self, words: &str) -> String {
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        match words.to_lowercase().split(' ').collect::<Vec<_>>()[..] {
            ["sentinel", "get-master-addr-by-name", _] if self.is_silent => String::new(),
            ["sentinel", "get-master-addr-by-name", _] => {
                format!("*2\r\n{}{}", bulk("127.0.0.1"), bulk(&self.master.to_string()))
            }
            ["sentinel", "master", _] => {
                format!("*2\r\n{}{}", bulk("config-epoch"), bulk(&self.epoch.to_string()))
            }
            ["subscribe", channel] => format!(">3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(channel)),
            _ => "+OK\r\n".to_owned(),
        }
    }
}
