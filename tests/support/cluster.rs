//! A private Redis Cluster on 127.0.0.1: three primaries with a replica each.

use super::eventually;
use super::server::{Port, RedisServer, default_server};
use redis::{FromRedisValue, Value};
use std::fmt::Write as _;
use std::time::Duration;

const AGREE: Duration = Duration::from_secs(30);
/// The cluster-node-timeout in milliseconds while members join, and in tests of failovers.
const SOON: &str = "1000";
/// The cluster-node-timeout in all other tests. It is so long that a busy machine causes no failover.
const LATE: &str = "15000";
const SHARDS: usize = 3;
const SLOTS: usize = 16_384;

/// A private Redis Cluster. Dropping it ends the processes that it started, and no others.
pub struct Cluster {
    /// First the primaries, then their replicas in the same order.
    pub members: Vec<RedisServer>,
    buses: Vec<Port>,
    /// The TLS ports, and the server whose certificates all members use; `None` without TLS.
    tls: Option<(Vec<Port>, RedisServer)>,
}

impl Cluster {
    /// Returns `None`, after [`super::missing`], if neither Redis 7 nor Valkey is installed.
    #[track_caller]
    pub fn start() -> Option<Cluster> {
        Cluster::start_with(&[])
    }

    #[track_caller]
    pub fn start_with(config: &[&str]) -> Option<Cluster> {
        Cluster::start_as(config, false).inspect(Cluster::be_patient)
    }

    #[track_caller]
    pub fn start_tls() -> Option<Cluster> {
        Cluster::start_as(&[], true).inspect(Cluster::be_patient)
    }

    /// Starts a cluster in which a replica replaces its primary after a second without an answer.
    #[track_caller]
    pub fn start_for_failovers() -> Option<Cluster> {
        Cluster::start_as(&[], false)
    }

    fn be_patient(&self) {
        for index in 0..self.members.len() {
            self.on(index, &["CONFIG", "SET", "cluster-node-timeout", LATE]);
        }
    }

    fn start_as(config: &[&str], tls: bool) -> Option<Cluster> {
        let binary = default_server()?;
        if binary.version() < (7, 0, 0) && !binary.is_valkey() {
            super::missing("no Redis 7 and no Valkey: an older one names no free port for its cluster bus");
            return None;
        }
        let buses: Vec<Port> = (0..2 * SHARDS).map(|_| Port::claim()).collect();
        let tls = tls.then(|| {
            let ports: Vec<Port> = buses.iter().map(|_| Port::claim()).collect();
            (ports, RedisServer::builder(&binary).tls().start())
        });
        let start = |(index, bus): (usize, &Port)| {
            let mut builder = RedisServer::builder(&binary)
                .config("cluster-enabled yes")
                .config("cluster-announce-ip 127.0.0.1")
                .config(&format!("cluster-port {}", bus.number()))
                .config(&format!("cluster-node-timeout {SOON}"))
                // A replica can be elected however long it was cut off, and a new replica gets the data at
                // once.
                .config("cluster-replica-validity-factor 0")
                .config("repl-diskless-sync-delay 0");
            for line in config {
                builder = builder.config(line);
            }
            if let Some((ports, server)) = &tls {
                let folder = server.folder().display();
                builder = builder
                    .config(&format!("tls-port {}", ports[index].number()))
                    .config("tls-cluster yes\ntls-replication yes\ntls-auth-clients no")
                    .config(&format!("tls-ca-cert-file {folder}/ca.crt"))
                    .config(&format!("tls-cert-file {folder}/server.crt\ntls-key-file {folder}/server.key"));
            }
            builder.start()
        };
        let members = buses.iter().enumerate().map(start).collect();
        let cluster = Cluster { members, buses, tls };
        cluster.join();
        Some(cluster)
    }

    fn join(&self) {
        for index in 0..self.members.len() {
            self.on(index, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < SHARDS {
                let bound = |shard: usize| SLOTS * shard / SHARDS;
                let (first, last) = (bound(index).to_string(), (bound(index + 1) - 1).to_string());
                self.on(index, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
            if index > 0 {
                let (port, bus) = (self.port(index).to_string(), self.buses[index].number().to_string());
                self.on(0, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        let all_known = |index: usize| self.info(index, "cluster_known_nodes") == (2 * SHARDS).to_string();
        self.all_agree("know each other", all_known);
        for shard in 0..SHARDS {
            let primary = self.id(shard);
            // REPLICATE fails until the handshake with the primary has ended.
            let replicates = || {
                let mut admin = self.members[SHARDS + shard].admin();
                redis::cmd("CLUSTER").arg("REPLICATE").arg(&primary).exec(&mut admin).is_ok()
            };
            assert!(eventually(AGREE, replicates), "no replica of member {shard}");
        }
        self.wait_until_whole();
    }

    /// Waits until all members see a primary for each slot, and each replica is connected to its primary.
    #[track_caller]
    pub fn wait_until_whole(&self) {
        self.all_agree("agree that all is well", |index| {
            self.info(index, "cluster_state") == "ok"
                && self.info(index, "cluster_slots_pfail") == "0"
                && self.info(index, "cluster_slots_fail") == "0"
        });
        let linked = |index: usize| {
            let text: String = self.ask(index, &["INFO", "replication"]);
            if text.contains("role:slave") {
                return text.contains("master_link_status:up");
            }
            text.contains("state=online")
        };
        self.all_agree("follow each other", linked);
    }

    #[track_caller]
    fn all_agree(&self, what: &str, yes: impl Fn(usize) -> bool) {
        let mut agree = 0; // at the end all members must agree in one round
        let all = || {
            agree += (agree..self.members.len()).take_while(|index| yes(*index)).count();
            agree == self.members.len() && (0..agree).all(&yes)
        };
        let state = |index: usize| self.ask::<String>(index, &["CLUSTER", "NODES"]);
        assert!(eventually(AGREE, all), "the members do not {what}:\n{}", state(0));
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss-cluster" } else { "redis-cluster" };
        let mut url = format!("{scheme}://");
        for index in 0..self.members.len() {
            write!(url, "{}127.0.0.1:{}", if index == 0 { "" } else { "," }, self.port(index)).unwrap();
        }
        url
    }

    pub fn port(&self, index: usize) -> u16 {
        match &self.tls {
            Some((ports, _)) => ports[index].number(),
            None => self.members[index].port(),
        }
    }

    /// The certificate authority of the members (PEM), if they speak TLS.
    pub fn ca(&self) -> Option<std::path::PathBuf> {
        self.tls.as_ref().map(|(_, server)| server.ca())
    }

    pub fn on(&self, index: usize, command: &[&str]) -> Value {
        let mut admin = self.members[index].admin();
        let mut cmd = redis::cmd(command[0]);
        command[1..].iter().for_each(|arg| {
            cmd.arg(arg);
        });
        cmd.query(&mut admin).unwrap_or_else(|error| panic!("{command:?} on member {index}: {error}"))
    }

    pub fn ask<T: FromRedisValue>(&self, index: usize, command: &[&str]) -> T {
        redis::from_redis_value(self.on(index, command)).expect("the reply that was expected")
    }

    pub fn id(&self, index: usize) -> String {
        self.ask(index, &["CLUSTER", "MYID"])
    }

    fn info(&self, index: usize, field: &str) -> String {
        let text: String = self.ask(index, &["CLUSTER", "INFO"]);
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    }

    pub fn slot(&self, key: &str) -> u16 {
        self.ask(self.running(), &["CLUSTER", "KEYSLOT", key])
    }

    fn running(&self) -> usize {
        (0..self.members.len()).find(|index| self.members[*index].is_running()).expect("a member runs")
    }

    pub fn is_primary(&self, index: usize) -> bool {
        let text: String = self.ask(index, &["INFO", "replication"]);
        text.contains("role:master")
    }

    /// The index of the member that serves the key's slot, as a running member says.
    pub fn primary_of(&self, key: &str) -> usize {
        self.primary_seen_by(self.running(), key)
    }

    pub fn primary_seen_by(&self, index: usize, key: &str) -> usize {
        let slot = i64::from(self.slot(key));
        type Range = (i64, i64, (String, u16));
        let ranges: Vec<Vec<Value>> = self.ask(index, &["CLUSTER", "SLOTS"]);
        let port = ranges.into_iter().find_map(|mut range| {
            range.truncate(3);
            let (first, last, (_, port)): Range = {
                let mut parts = range.into_iter();
                let first = redis::from_redis_value(parts.next()?).ok()?;
                let last = redis::from_redis_value(parts.next()?).ok()?;
                let Value::Array(mut member) = parts.next()? else { return None };
                member.truncate(2);
                (first, last, redis::from_redis_value(Value::Array(member)).ok()?)
            };
            (first..=last).contains(&slot).then_some(port)
        });
        let port = port.expect("a member has the slot");
        self.with_port(port)
    }

    fn with_port(&self, port: u16) -> usize {
        let either = |index: &usize| self.port(*index) == port || self.members[*index].port() == port;
        (0..self.members.len()).find(either).expect("a member's port")
    }

    pub fn replica_of(&self, primary: usize) -> usize {
        let text: String = self.ask(primary, &["INFO", "replication"]);
        let line = text.lines().find(|line| line.starts_with("slave0:")).expect("the member has a replica");
        let port = line.split(',').find_map(|part| part.strip_prefix("port=")).expect("a port");
        let port: u16 = port.parse().expect("a number");
        self.with_port(port)
    }

    pub fn scripts_run(&self, index: usize) -> u64 {
        super::calls(&mut self.members[index].admin(), &["eval", "evalsha"])
    }

    pub fn name_on(&self, primary: usize, label: &str) -> String {
        loop {
            let name = super::fresh(label);
            if self.primary_of(&name) == primary {
                return name;
            }
        }
    }

    pub fn restart(&mut self) {
        self.members.iter_mut().for_each(RedisServer::kill);
        self.members.iter_mut().for_each(RedisServer::restart);
        self.wait_until_whole();
        self.be_patient();
    }
}
