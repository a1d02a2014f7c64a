//! With `--topology`: the servers that keep the locks of leasehold's rows, and the kill of one of them.
//!
//! The stock stays on the Redis of the URL, so that only the locks are affected.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use leasehold::{ClientBuilder, LockClient, Ring, RingNode};
use redis::FromRedisValue;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::worker::LEASE;

/// The environment variable that names the server program; `./demo` sets it.
const PROGRAM: &str = "LEASEHOLD_DEMO_SERVER";
const CONFIG: &str = "server.conf";
const START_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Topology {
    /// One server that keeps its data in a file; it is killed and started again
    Single,
    /// Five servers of which a lock needs three; one that has the lock is killed
    Redlock,
    /// A master, two replicas and three Sentinels; the master is killed
    Sentinel,
    /// Three primaries with a replica each; the primary that has the lock is killed
    Cluster,
    /// Three servers over which names are spread; the server that has the lock is killed and given up
    Ring,
}

impl Topology {
    /// Starts the servers of this topology: first those that keep locks, then Sentinels.
    fn start(self) -> Result<Vec<Server>> {
        let several = |count| (0..count).map(|_| Server::start(&[])).collect();
        match self {
            Topology::Single => several(1),
            Topology::Sentinel => watched_master(),
            Topology::Cluster => cluster(),
            Topology::Redlock => several(5),
            Topology::Ring => several(3),
        }
    }

    /// What happens in the run with the killed server.
    pub(crate) fn story(self) -> &'static str {
        match self {
            Topology::Single => {
                "the lock's server was killed -9 and started again with its file: nothing was granted meanwhile"
            }
            Topology::Redlock => {
                "one of five servers was killed -9; a majority still has the lock, and grants go on"
            }
            Topology::Sentinel => {
                "the master was killed -9 and a replica took its place. A grant that the replica had not heard of is \
                 forgotten, and another may be granted beside it: the fence refuses what comes later"
            }
            Topology::Cluster => {
                "the lock's primary was killed -9 and its replica took its place. A grant that the replica had not \
                 heard of is forgotten, and another may be granted beside it: the fence refuses what comes later"
            }
            Topology::Ring => {
                "the lock's server was killed -9; one lease later all were told of a ring without it. A ring has no \
                 replicas: a holder may go on till its lease ends, and the fence refuses what comes later"
            }
        }
    }
}

/// How a worker's client reaches the servers that keep the locks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Locks {
    Url(String),
    Redlock(Vec<String>),
    Ring(Nodes),
}

/// The ring's nodes; `epoch` counts the versions of this list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Nodes {
    epoch: u64,
    urls: Vec<String>,
    /// The URL of the node that was given up.
    lost: Option<String>,
}

impl Nodes {
    fn ring(&self) -> Ring {
        let ring = Ring::new(self.urls.iter().map(String::as_str)).epoch(self.epoch);
        let Some(lost) = &self.lost else { return ring };
        let stay = self.urls.iter().map(RingNode::new);
        ring.moving_from(stay.chain([RingNode::new(lost).lost()]))
    }

    pub(crate) fn tell(&self, client: &LockClient) -> Result<()> {
        Ok(client.change_ring(self.ring())?)
    }
}

impl Locks {
    pub(crate) fn connect(&self, options: ClientBuilder) -> Result<LockClient> {
        Ok(match self {
            Locks::Url(url) => options.url(url).build()?,
            Locks::Redlock(urls) => options.redlock(urls).build()?,
            Locks::Ring(nodes) => options.ring(nodes.ring()).build()?,
        })
    }
}

/// The servers of one run; dropping it ends them and removes their data.
pub(crate) struct Servers {
    topology: Topology,
    /// The servers that keep locks, and after them the Sentinels, if there are any.
    servers: Vec<Server>,
    struck: Option<usize>,
}

impl Servers {
    pub(crate) fn start(topology: Topology) -> Result<Servers> {
        Ok(Servers { topology, servers: topology.start()?, struck: None })
    }

    fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    pub(crate) fn locks(&self) -> Result<Locks> {
        let mut urls = self.urls();
        Ok(match self.topology {
            Topology::Single => Locks::Url(urls.pop().ok_or("no server was started")?),
            Topology::Redlock => Locks::Redlock(urls),
            Topology::Sentinel => {
                let sentinels: Vec<_> = self.servers.iter().skip(1 + REPLICAS).map(Server::place).collect();
                Locks::Url(format!("redis-sentinel://{}/{MASTER}", sentinels.join(",")))
            }
            Topology::Cluster => {
                let members: Vec<_> = self.servers.iter().map(Server::place).collect();
                Locks::Url(format!("redis-cluster://{}", members.join(",")))
            }
            Topology::Ring => Locks::Ring(Nodes { epoch: 1, urls, lost: None }),
        })
    }

    /// Kills the server that has the lock, found by the lock's counter of fencing tokens. Returns how long to
    /// wait before [`mend`](Self::mend).
    pub(crate) fn strike(&mut self, lock: &str) -> Result<Duration> {
        let counter = format!("redisson_lock_token:{lock}");
        // In `servers` the replicas come after the masters, so the first server with the counter is a master.
        let has_it = |server: &Server| server.ask::<bool>(&["EXISTS", &counter]).unwrap_or(false);
        let struck = self.servers.iter().position(has_it).ok_or("no server has the lock")?;
        self.servers.get(struck).ok_or("there is no such server")?.kill()?;
        self.struck = Some(struck);
        Ok(match self.topology {
            Topology::Single => LEASE / 2,
            // After this time every hold on the killed server has expired.
            Topology::Ring => LEASE,
            // A Redlock needs no repair; Sentinels and clusters promote a replica by themselves.
            Topology::Redlock | Topology::Sentinel | Topology::Cluster => Duration::ZERO,
        })
    }

    /// Restarts the killed server of `Single`. On a ring, returns the node list without the killed node.
    pub(crate) fn mend(&mut self) -> Result<Option<Nodes>> {
        let struck = self.struck.ok_or("no server was struck")?;
        match self.topology {
            Topology::Single => {
                self.servers.get_mut(struck).ok_or("there is no such server")?.launch()?;
                Ok(None)
            }
            Topology::Ring => {
                let mut urls = self.urls();
                let lost = Some(urls.remove(struck));
                Ok(Some(Nodes { epoch: 2, urls, lost }))
            }
            Topology::Redlock | Topology::Sentinel | Topology::Cluster => Ok(None),
        }
    }
}

const MASTER: &str = "locks";
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;

/// A master, its replicas, and Sentinels. On return the Sentinels know the replicas and each other.
fn watched_master() -> Result<Vec<Server>> {
    let master = Server::start(&[])?;
    let port = master.port.to_string();
    let mut servers = vec![master];
    for _ in 0..REPLICAS {
        servers.push(Server::start(&["--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", &port])?);
    }
    let watched = format!(
        "sentinel monitor {MASTER} 127.0.0.1 {port} 2\nsentinel down-after-milliseconds {MASTER} 700\n\
         sentinel failover-timeout {MASTER} 5000\n"
    );
    for _ in 0..SENTINELS {
        servers.push(Server::start_sentinel(&watched)?);
    }
    for sentinel in servers.iter().skip(1 + REPLICAS) {
        until_agreed(|| {
            let state: std::collections::HashMap<String, String> =
                sentinel.ask(&["SENTINEL", "MASTER", MASTER])?;
            let has = |field: &str, count: usize| state.get(field) == Some(&count.to_string());
            Ok(has("num-slaves", REPLICAS) && has("num-other-sentinels", SENTINELS - 1))
        })?;
    }
    Ok(servers)
}

const SHARDS: usize = 3;
const SLOTS: usize = 16_384;

/// Primaries, then a replica of each in the same order. On return the cluster is up and all links work.
fn cluster() -> Result<Vec<Server>> {
    let config = "cluster-enabled yes\ncluster-node-timeout 1000\ncluster-replica-validity-factor 0\n\
                  repl-diskless-sync-delay 0\n";
    let mut servers = Vec::new();
    for _ in 0..2 * SHARDS {
        servers.push(Server::start_with(config, KEPT.to_vec())?);
    }
    let (primaries, replicas) = servers.split_at(SHARDS);
    let first = primaries.first().ok_or("no server was started")?;
    for (number, server) in servers.iter().enumerate() {
        server.ask::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
        let (port, bus) = (server.port.to_string(), server.bus.to_string());
        first.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
    }
    for (number, primary) in primaries.iter().enumerate() {
        let (first, end) = (SLOTS * number / SHARDS, SLOTS * (number + 1) / SHARDS);
        primary.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(end - 1).to_string()])?;
    }
    for server in &servers {
        let known = format!("cluster_known_nodes:{}", servers.len());
        until_agreed(|| server.says(&["CLUSTER", "INFO"], &known))?;
    }
    for (primary, replica) in primaries.iter().zip(replicas) {
        let id: String = primary.ask(&["CLUSTER", "MYID"])?;
        // A replica refuses this until its handshake with the primary has ended, so the request is repeated.
        until_agreed(|| Ok(replica.ask::<()>(&["CLUSTER", "REPLICATE", &id]).is_ok()))?;
    }
    for server in &servers {
        until_agreed(|| server.says(&["CLUSTER", "INFO"], "cluster_state:ok"))?;
    }
    for replica in replicas {
        until_agreed(|| replica.says(&["INFO", "replication"], "master_link_status:up"))?;
    }
    Ok(servers)
}

fn until_agreed(mut agreed: impl FnMut() -> Result<bool>) -> Result<()> {
    let from = Instant::now();
    while !agreed()? {
        if from.elapsed() > START_LIMIT {
            return Err("the servers for the locks do not find each other".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A Redis server that the demo starts, under a shell that ends the server when this process ends in any way.
struct Server {
    port: u16,
    /// The port for messages within a cluster. Its default, `port` + 10,000, may exceed the highest port.
    bus: u16,
    folder: PathBuf,
    arguments: Vec<String>,
    shell: Child,
    pid: Pid,
}

/// Options by which the server writes each change to its file before it answers.
const KEPT: [&str; 6] = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

/// A shell script that starts the server, prints its pid, and ends the server at the end of its own input.
const LAUNCHER: &str = "\"$@\" </dev/null >/dev/null 2>&1 & echo $!; read -r _; kill -9 $! 2>/dev/null; wait";

impl Server {
    /// Starts a server that keeps its data in a file; `more` are further arguments.
    fn start(more: &[&str]) -> Result<Server> {
        Server::start_with("", [&KEPT, more].concat())
    }

    fn start_sentinel(config: &str) -> Result<Server> {
        Server::start_with(config, vec!["--sentinel"])
    }

    /// Starts a server on free ports. If another process takes a port first, the server ends at once, or
    /// another server answers. So this tries up to three pairs of ports, each with a longer time limit.
    fn start_with(config: &str, arguments: Vec<&str>) -> Result<Server> {
        for limit in [START_LIMIT / 4, START_LIMIT / 2] {
            if let Ok(server) = Server::try_start(config, &arguments, limit) {
                return Ok(server);
            }
        }
        Server::try_start(config, &arguments, START_LIMIT)
    }

    fn try_start(config: &str, arguments: &[&str], limit: Duration) -> Result<Server> {
        let folder = std::env::temp_dir().join(format!("leasehold-demo-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder)?;
        let [port, bus] = free_ports()?;
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let of_cluster =
            if config.contains("cluster-enabled") { format!("cluster-port {bus}\n") } else { String::new() };
        // A Sentinel rewrites its configuration file, so its settings must be there, not in arguments.
        let file = format!("bind 127.0.0.1\nport {port}\ndir {}\n{of_cluster}{config}", folder.display());
        let written = std::fs::write(folder.join(CONFIG), file).map_err(Into::into);
        let started = written.and_then(|()| keep(&folder, &arguments));
        if started.is_err() {
            std::fs::remove_dir_all(&folder)?;
        }
        let (shell, pid) = started?;
        let mut server = Server { port, bus, folder, arguments, shell, pid };
        server.wait_until_up(limit)?;
        Ok(server)
    }

    fn ask<T: FromRedisValue>(&self, command: &[&str]) -> Result<T> {
        let mut connection = redis::Client::open(self.url())?.get_connection_with_timeout(START_LIMIT)?;
        let (name, arguments) = command.split_first().ok_or("no command")?;
        Ok(redis::cmd(name).arg(arguments).query(&mut connection)?)
    }

    fn says(&self, command: &[&str], words: &str) -> Result<bool> {
        Ok(self.ask::<String>(command)?.contains(words))
    }

    fn place(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn url(&self) -> String {
        format!("redis://{}", self.place())
    }

    /// Starts the server again with its data.
    fn launch(&mut self) -> Result<()> {
        self.end()?;
        (self.shell, self.pid) = keep(&self.folder, &self.arguments)?;
        self.wait_until_up(START_LIMIT)
    }

    /// Waits until the server answers; returns an error if another process's server answers on the port.
    fn wait_until_up(&mut self, limit: Duration) -> Result<()> {
        let (from, client) = (Instant::now(), redis::Client::open(self.url())?);
        let ours = format!("process_id:{}\r\n", self.pid.as_raw_nonzero());
        loop {
            let answer = client.get_connection_with_timeout(limit).and_then(|mut connection| {
                redis::cmd("PING").exec(&mut connection)?;
                redis::cmd("INFO").arg("server").query::<String>(&mut connection)
            });
            match answer {
                Ok(server) if server.contains(&ours) => return Ok(()),
                Ok(_) => return Err(format!("another server answers on port {}", self.port).into()),
                Err(_) if from.elapsed() > limit => {
                    return Err("a server for the locks did not start".into());
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn kill(&self) -> Result<()> {
        Ok(kill_process(self.pid, Signal::KILL)?)
    }

    fn end(&mut self) -> Result<()> {
        drop(self.shell.stdin.take());
        self.shell.wait()?;
        Ok(())
    }
}

/// Two free ports. Both are bound until both are known, so that they differ.
fn free_ports() -> Result<[u16; 2]> {
    let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (one, other) = (free()?, free()?);
    Ok([one.local_addr()?.port(), other.local_addr()?.port()])
}

fn keep(folder: &Path, arguments: &[String]) -> Result<(Child, Pid)> {
    let program = std::env::var_os(PROGRAM).unwrap_or_else(|| "redis-server".into());
    let mut shell = Command::new("sh")
        .args(["-c", LAUNCHER, "sh"])
        .arg(program)
        .arg(folder.join(CONFIG))
        .args(arguments)
        // In its own process group, the server gets no Ctrl-C, so it outlives the workers.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let said = shell.stdout.take().ok_or("the shell was started without pipes")?;
    let mut pid = String::new();
    BufReader::new(said).read_line(&mut pid)?;
    let pid = Pid::from_raw(pid.trim().parse()?).ok_or("the shell named no process")?;
    Ok((shell, pid))
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            eprintln!("stock: the server on port {} could not be ended: {e}", self.port);
        }
        if let Err(e) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("stock: {} could not be removed: {e}", self.folder.display());
        }
    }
}
