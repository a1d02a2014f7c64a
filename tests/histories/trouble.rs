//! The stores, and faults that lose nothing that a store acknowledged.
//!
//! Faults that lose acknowledged data (the kill of a server without a file, an unplanned failover of Redis)
//! let two owners hold a lock. They are in `tests/topology`.

use crate::support::cluster::Cluster;
use crate::support::etcd::Etcd;
use crate::support::postgres::PostgresServer;
use crate::support::prelude::*;
use crate::support::proxy::{Direction, Proxy, Which};
use crate::support::random;
use crate::support::sentinel::SentinelSet;
use crate::support::zookeeper::{Relay, Sessions, ZooKeeper};

pub(crate) enum World {
    /// One server, which writes each change to a file before it answers, and a proxy as a slow link to it.
    Redis(RedisServer, Proxy),
    /// A master and a replica behind one address, the index of the master, and the proxy with that address.
    Switched(Vec<RedisServer>, usize, Proxy),
    Sentinel(SentinelSet),
    Cluster(Cluster),
    /// Three servers, and holds on them that last for the whole test. `Leaders` is dropped first, because its
    /// client still needs the servers.
    Redlock(Leaders, Vec<RedisServer>),
    Postgres(PostgresServer),
    Etcd(Vec<Etcd>),
    ZooKeeper(ZooKeeper, Relay),
}

const LINK: Duration = ms(20);

impl World {
    pub(crate) fn redis() -> Option<World> {
        let server = RedisServer::builder(&default_server()?).append_only("always").start();
        let proxy = Proxy::before(&server);
        proxy.delay_requests(LINK);
        proxy.delay_replies(LINK);
        Some(World::Redis(server, proxy))
    }

    pub(crate) fn switched() -> Option<World> {
        let binary = default_server()?;
        let start = || RedisServer::builder(&binary).config("repl-diskless-sync-delay 0").start();
        let servers = vec![start(), start()];
        let port = servers[0].port().to_string();
        redis::cmd("REPLICAOF").arg("127.0.0.1").arg(port).exec(&mut servers[1].admin()).unwrap();
        let proxy = Proxy::before(&servers[0]);
        let world = World::Switched(servers, 0, proxy);
        world.replica_follows();
        Some(world)
    }

    fn replica_follows(&self) {
        let World::Switched(servers, master, _) = self else { return };
        let follows = eventually(LONG, || {
            let mut replica = servers[1 - master].admin();
            let told: String = redis::cmd("INFO").arg("replication").query(&mut replica).unwrap();
            told.contains("role:slave") && told.contains("master_link_status:up")
        });
        assert!(follows, "the replica does not follow");
    }

    pub(crate) fn sentinel() -> Option<World> {
        Some(World::Sentinel(SentinelSet::start(&default_server()?)))
    }

    pub(crate) fn cluster() -> Option<World> {
        Cluster::start_for_failovers().map(World::Cluster)
    }

    pub(crate) fn redlock() -> Option<World> {
        let binary = default_server()?;
        let servers: Vec<_> = (0..3).map(|_| RedisServer::builder(&binary).start()).collect();
        Some(World::Redlock(Leaders::of(&servers), servers))
    }

    pub(crate) fn postgres() -> Option<World> {
        PostgresServer::start().map(World::Postgres)
    }

    pub(crate) fn etcd() -> Option<World> {
        Etcd::start_cluster(3).map(World::Etcd)
    }

    pub(crate) fn zookeeper() -> Option<World> {
        let server = ZooKeeper::start(Sessions { tick_ms: 300, least_ms: 3_000, most_ms: 60_000 })?;
        let relay = Relay::before(&server);
        Some(World::ZooKeeper(server, relay))
    }

    /// The URLs for the worker with this number. Every second worker uses the slow link or the relay, if any.
    pub(crate) fn urls(&self, worker: u64) -> Vec<String> {
        let is_direct = worker.is_multiple_of(2);
        match self {
            World::Redis(server, _) if is_direct => vec![server.url()],
            World::Redis(_, proxy) => vec![proxy.url()],
            World::Switched(_, _, proxy) => vec![proxy.url()],
            World::Sentinel(set) => vec![set.url()],
            World::Cluster(cluster) => vec![cluster.url()],
            World::Redlock(_, servers) => servers.iter().map(RedisServer::url).collect(),
            World::Postgres(server) => vec![server.url()],
            World::Etcd(members) => {
                let places: Vec<String> = members.iter().map(Etcd::place).collect();
                vec![format!("etcd://{}", places.join(","))]
            }
            World::ZooKeeper(server, _) if is_direct => vec![server.url()],
            World::ZooKeeper(_, relay) => vec![relay.url()],
        }
    }

    pub(crate) fn lease(&self) -> Duration {
        match self {
            World::Etcd(_) | World::ZooKeeper(..) => ms(3_000),
            _ => ms(1_000),
        }
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.lease() / 4
    }

    pub(crate) fn strike(&mut self) -> &'static str {
        let (lease, dice) = (self.lease(), random());
        match self {
            World::Switched(servers, master, proxy) => {
                if dice % 3 != 0 {
                    return strikes_connections(&servers[*master], dice);
                }
                let new = 1 - *master;
                redis::cmd("FAILOVER").exec(&mut servers[*master].admin()).unwrap();
                let is_master = eventually(LONG, || {
                    let told: String =
                        redis::cmd("INFO").arg("replication").query(&mut servers[new].admin()).unwrap();
                    told.contains("role:master")
                });
                assert!(is_master, "no failover");
                proxy.leads_to(&servers[new]);
                *master = new;
                self.replica_follows();
                "planned switchover"
            }
            World::Redis(server, proxy) => match dice % 12 {
                11 => {
                    // Open connections stay, and new ones are refused for longer than a lease.
                    let mut admin = server.admin();
                    let told: String = redis::cmd("INFO").arg("clients").query(&mut admin).unwrap();
                    let open = told.lines().find_map(|line| line.strip_prefix("connected_clients:")).unwrap();
                    let mut limit = |most: &str| {
                        redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(most).exec(&mut admin).unwrap();
                    };
                    limit(open.trim());
                    let_pass(lease + lease / 4, "while there is no room for connections");
                    limit("10000");
                    "no room for connections"
                }
                0 | 1 => stands_still(lease / 3, || server.stop(), || server.cont()),
                2 => {
                    server.restart();
                    "server killed and started again"
                }
                3 => {
                    proxy.hold(Direction::ToServer, Which::Subscribers);
                    proxy.hold(Direction::ToClient, Which::Subscribers);
                    let_pass(lease + lease / 4, "while the subscribers of the slow link stall");
                    proxy.resume();
                    "subscribers stalled"
                }
                _ => strikes_connections(server, dice),
            },
            World::Sentinel(set) => {
                let server = &set.servers[set.master()];
                match dice % 6 {
                    0 => stands_still(lease / 3, || server.stop(), || server.cont()),
                    _ => strikes_connections(server, dice),
                }
            }
            World::Cluster(cluster) => {
                let primaries: Vec<usize> =
                    (0..cluster.members.len()).filter(|at| cluster.is_primary(*at)).collect();
                let primary = primaries[random() as usize % primaries.len()];
                match dice % 10 {
                    0 => {
                        let server = &cluster.members[primary];
                        stands_still(lease / 4, || server.stop(), || server.cont())
                    }
                    1 => {
                        let replica = cluster.replica_of(primary);
                        drop(cluster.on(replica, &["CLUSTER", "FAILOVER"]));
                        "planned failover"
                    }
                    _ => strikes_connections(&cluster.members[primary], dice),
                }
            }
            World::Redlock(leaders, servers) => {
                let at = random() as usize % servers.len();
                let what = match dice % 6 {
                    0 => stands_still(lease + lease / 4, || servers[at].stop(), || servers[at].cont()),
                    1 => {
                        // The killed server has lost its data. Redlock's promise requires that this server
                        // stays away until all earlier leases have ended.
                        servers[leaders.next].kill();
                        let_pass(LEADS + LEADS / 4, "while a server that forgets is away");
                        servers[leaders.next].restart();
                        leaders.next = (leaders.next + 1) % servers.len();
                        "server started again empty"
                    }
                    _ => strikes_connections(&servers[at], dice),
                };
                leaders.stand(servers);
                what
            }
            World::Postgres(server) => match dice % 12 {
                0 | 1 => {
                    crate::support::signal(server.pid(), "STOP");
                    let_pass(lease / 3, "while the server stands still");
                    crate::support::signal(server.pid(), "CONT");
                    "server stood still"
                }
                2 => {
                    server.restart();
                    "server killed and started again"
                }
                _ => {
                    let others = "select pg_terminate_backend(pid) from pg_stat_activity
                        where backend_type = 'client backend' and pid <> pg_backend_pid() and random() < 0.5";
                    drop(server.admin().batch_execute(others));
                    "connections cut"
                }
            },
            World::Etcd(members) => {
                let at = random() as usize % members.len();
                let member = &mut members[at];
                if dice.is_multiple_of(3) {
                    member.restart();
                    "server killed and started again"
                } else {
                    stands_still(lease / 3, || member.stop(), || member.cont())
                }
            }
            World::ZooKeeper(server, relay) => match dice % 12 {
                0 => {
                    server.launch_again();
                    "server killed and started again"
                }
                1 | 2 => stands_still(lease / 6, || server.signal("STOP"), || server.signal("CONT")),
                _ => {
                    relay.cut();
                    "connections cut"
                }
            },
        }
    }
}

/// The lease of [`Leaders`]. No lease in this test is longer.
const LEADS: Duration = ms(3_000);

/// Holds on a Redlock that must survive the failure of any single server.
pub(crate) struct Leaders {
    client: LockClient,
    holds: Vec<OwnedGuard>,
    next: usize,
    watched: Instant,
}

impl Leaders {
    fn of(servers: &[RedisServer]) -> Leaders {
        watch_for_stalls();
        let builder = LockClient::builder().lease(LEADS).node_timeout(LEADS / 10).retry_timeout(LONG);
        let client = builder.redlock(servers.iter().map(RedisServer::url)).build().unwrap();
        let holds =
            (0..9).map(|at| client.get_lock(format!("leader-{at}")).acquire_owned().unwrap()).collect();
        Leaders { client, holds, next: 0, watched: now() }
    }

    /// Waits until every server has every hold again. The next fault then meets no server without a hold.
    fn stand(&mut self, servers: &[RedisServer]) {
        let owners = |name: &str, server: &RedisServer| -> Vec<String> {
            redis::cmd("HKEYS").arg(name).query(&mut server.admin()).unwrap()
        };
        let given_back = eventually(LONG, || {
            let are_led = |server: &RedisServer| {
                self.holds.iter().all(|hold| owners(hold.name(), server).contains(&hold.owner().to_string()))
            };
            servers.iter().all(are_led)
        });
        // A hold counts on the restarted server only after a renewal has confirmed it there.
        let_pass(LEADS / 2, "until the next renewal");
        for hold in &mut self.holds {
            let is_excused = stalled_since(self.watched) > LEADS / 4;
            assert!(hold.check().is_ok() || is_excused, "a leader was lost: {:?}", hold.check());
            assert!(given_back || is_excused, "a server did not get {} back", hold.name());
            if hold.check().is_err() {
                *hold = self.client.get_lock(hold.name()).acquire_owned().unwrap();
            }
        }
        self.watched = now();
    }
}

fn stands_still(span: Duration, stop: impl FnOnce(), cont: impl FnOnce()) -> &'static str {
    stop();
    let_pass(span, "while the server stands still");
    cont();
    "server stood still"
}

fn strikes_connections(server: &RedisServer, dice: u64) -> &'static str {
    let (words, what): (&[&str], _) = match (dice >> 32) % 5 {
        0 => (&["SCRIPT", "FLUSH"], "scripts forgotten"),
        1 | 2 => (&["CLIENT", "KILL", "TYPE", "pubsub"], "subscribers cut"),
        _ => (&["CLIENT", "KILL", "TYPE", "normal"], "connections cut"),
    };
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut server.admin()).unwrap();
    what
}
