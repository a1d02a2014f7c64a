//! The members of a cluster: the member of each slot, and a store for each member.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use scheduled_thread_pool::ScheduledThreadPool;

use crate::config::{ClusterPubSub, ServerOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::reporter::Reporter;
use crate::refused::Refused;
use crate::seam::subscription::Subscription;
use crate::secrets::Renewable;
use crate::stores::redis::about::{probe, scripts_refused};
use crate::stores::redis::address::RedisAddress;
use crate::stores::redis::cluster::slots::{MOST_MEMBERS, SlotMap};
use crate::stores::redis::cluster::wakeups::ClusterWakeups;
use crate::stores::redis::conn::connection::Endpoint;
use crate::stores::redis::conn::connections::{Connections, maintenance};
use crate::stores::redis::conn::handshake::Role;
use crate::stores::redis::pubsub::{self, SubscribeMode, Subscriber};
use crate::stores::redis::reply::{self, is_temporary};
use crate::stores::redis::script::{Command, Prefix};
use crate::stores::redis::store::RedisStore;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment};

/// Minimum time between two reloads of the slot map by any thread.
const CHECK_GAP: Duration = Duration::from_millis(100);
const SHORTEST_ASK: Duration = Duration::from_millis(250);
/// The longest time of a reload. After that, the request uses the map as it is.
pub(super) const MAX_RELOAD: Duration = Duration::from_secs(1);

pub(super) struct ClusterNode {
    pub(super) endpoint: Endpoint,
    pub(super) store: RedisStore,
    /// A store that sends ASKING before each request, for slots still moving here. Made on first use.
    asking: Mutex<Option<Arc<RedisStore>>>,
}

pub(super) struct Topology {
    pub(super) settings: Settings,
    seeds: Vec<Endpoint>,
    map: Mutex<Arc<SlotMap>>,
    nodes: Mutex<HashMap<Endpoint, Arc<ClusterNode>>>,
    /// Set after a failure that an outdated map may have caused.
    is_doubted: AtomicBool,
    /// Locked by the thread that reloads the map.
    reload: Mutex<Reloads>,
    pub(super) wakeups: Arc<ClusterWakeups>,
}

pub(super) struct Settings {
    options: ServerOptions,
    address: Arc<RedisAddress>,
    reporter: Arc<Reporter>,
    threads: Arc<ScheduledThreadPool>,
    ways: &'static [SubscribeMode],
    publish_prefix: Option<Prefix>,
    pub(super) queues_refused: Arc<Refused>,
}

struct Reloads {
    not_before: Moment,
    /// The member that the next reload asks first: a redirect named it, or it sent the last changed map.
    first: Option<Endpoint>,
    /// The number of reloads without a change. Each one begins with another member, because a member that is
    /// cut off keeps reporting the old map.
    futile: usize,
}

impl Topology {
    pub(super) fn connect(options: &ServerOptions, reporter: &Arc<Reporter>) -> Result<Topology> {
        let addresses = RedisAddress::cluster(options)?;
        let seeds: Vec<_> = addresses.iter().filter_map(RedisAddress::endpoint).collect();
        let any = |options: &ServerOptions| {
            let address = RedisAddress::cluster(options)?.into_iter().next();
            address.ok_or_else(|| Error::invalid("connect", "the URL names no server"))
        };
        let (renewal, address) = Renewable::new(options, any)?;
        let address = Arc::new(RedisAddress { renewal: Some(renewal), ..RedisAddress::clone(&address) });
        let deadline = Clock::System.after(options.connect_timeout);
        let wanted = options.cluster_pub_sub;
        let (answered, (map, is_sharded)) = first_of(&seeds, deadline, |seed, deadline| {
            let commands =
                [Command::new("CLUSTER").arg("SLOTS"), Command::new("PUBSUB").arg("SHARDNUMSUB"), probe()];
            let mut replies = ask(&address, seed, &commands, deadline)?.into_iter();
            let map = read_slots(&SlotMap::new(), replies.next(), seed)?;
            // A server that refuses SHARDNUMSUB counts as one without sharded channels, as in Redisson.
            let probed = replies.next().map(reply::accepted);
            let is_sharded = matches!(probed, Some(Ok(_)));
            if let Some(Err(error)) = &probed {
                let refusal = reply::refusal(error);
                // A temporary error does not show whether there are sharded channels, so connecting fails.
                if is_temporary(&refusal) {
                    return Err(refusal.during("connect"));
                }
            }
            if let (Some(Err(error)), ClusterPubSub::Sharded | ClusterPubSub::Both) = (&probed, wanted)
                && error.details().is_some_and(|text| text.to_lowercase().starts_with("unknown"))
            {
                let words = "the server knows no sharded channels, which came with Redis 7";
                return Err(Error::new(ErrorKind::Unsupported, "connect", words));
            }
            if let Some(reply) = replies.next() {
                reply::accepted(reply).map_err(|error| scripts_refused(&error))?;
            }
            Ok((map, is_sharded))
        })?;
        let (ways, publish_prefix): (&'static [SubscribeMode], _) = match wanted {
            ClusterPubSub::Auto if is_sharded => (&[pubsub::SHARDED], Some(Prefix::PublishSharded)),
            ClusterPubSub::Sharded => (&[pubsub::SHARDED], Some(Prefix::PublishSharded)),
            ClusterPubSub::Both => (&[pubsub::SHARDED, pubsub::PLAIN], Some(Prefix::PublishBoth)),
            ClusterPubSub::Auto | ClusterPubSub::Plain => (&[pubsub::PLAIN], None),
        };
        let topology = Topology {
            settings: Settings {
                options: options.clone(),
                address,
                reporter: Arc::clone(reporter),
                threads: maintenance(),
                ways,
                publish_prefix,
                queues_refused: Arc::default(),
            },
            seeds,
            map: Mutex::new(Arc::new(SlotMap::new())),
            nodes: Mutex::default(),
            is_doubted: AtomicBool::new(false),
            reload: Mutex::new(Reloads { not_before: Clock::System.now(), first: Some(answered), futile: 0 }),
            wakeups: ClusterWakeups::new(),
        };
        topology.install(map);
        Ok(topology)
    }

    pub(super) fn primary(&self, slot: u16, deadline: Moment) -> Result<Arc<ClusterNode>> {
        self.reload_if_doubted(deadline);
        let map = Arc::clone(&self.map.lock());
        match map.primary(slot) {
            Some(endpoint) => self.node(endpoint),
            None => {
                self.doubt();
                let words = format!("no known member of the cluster has slot {slot}");
                Err(Error::new(ErrorKind::Busy, "request", words))
            }
        }
    }

    pub(super) fn node(&self, endpoint: &Endpoint) -> Result<Arc<ClusterNode>> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(endpoint) {
            return Ok(Arc::clone(node));
        }
        Error::when(nodes.len() > MOST_MEMBERS, ErrorKind::Protocol, "request", || {
            format!("more than {MOST_MEMBERS} members of the cluster have been named")
        })?;
        let store = self.settings.store(endpoint, false)?;
        let node = Arc::new(ClusterNode { endpoint: endpoint.clone(), store, asking: Mutex::new(None) });
        nodes.insert(endpoint.clone(), Arc::clone(&node));
        Ok(node)
    }

    pub(super) fn asking(&self, node: &ClusterNode) -> Result<Arc<RedisStore>> {
        let mut asking = node.asking.lock();
        if let Some(store) = &*asking {
            return Ok(Arc::clone(store));
        }
        let store = Arc::new(self.settings.store(&node.endpoint, true)?);
        *asking = Some(Arc::clone(&store));
        Ok(store)
    }

    pub(super) fn doubt(&self) {
        self.is_doubted.store(true, Ordering::SeqCst);
    }

    /// Notes a slot that moved to this member. The next request reloads the map, as more may have moved.
    pub(super) fn moved(&self, endpoint: &Endpoint) {
        self.doubt();
        if let Some(mut reload) = self.reload.try_lock() {
            // The new member of a slot learns of the move first, so the reload asks this member first.
            reload.first = Some(endpoint.clone());
        }
    }

    /// Reloads the slot map if it may be outdated. Meanwhile members redirect requests that use the old map.
    fn reload_if_doubted(&self, deadline: Moment) {
        if !self.is_doubted.load(Ordering::SeqCst) {
            return;
        }
        let Some(mut reload) = self.reload.try_lock() else { return };
        let now = Clock::System.now();
        if now < reload.not_before {
            return;
        }
        // The flag is cleared before the reload, so that a doubt during the reload causes another reload.
        self.is_doubted.store(false, Ordering::SeqCst);
        let known = Arc::clone(&self.map.lock());
        let mut order: Vec<Endpoint> = known.members.to_vec();
        order.extend(self.seeds.iter().filter(|seed| !known.members.contains(seed)).cloned());
        let turn = reload.futile.checked_rem(order.len()).unwrap_or(0);
        order.rotate_left(turn);
        if let Some(at) = order.iter().position(|endpoint| reload.first.as_ref() == Some(endpoint)) {
            order.swap(0, at);
        }
        let deadline = deadline.min(now.plus(MAX_RELOAD));
        let commands = [Command::new("CLUSTER").arg("SLOTS")];
        let found = first_of(&order, deadline, |endpoint, deadline| {
            let reply = ask(&self.settings.address, endpoint, &commands, deadline)?.into_iter().next();
            read_slots(&known, reply, endpoint)
        });
        match found {
            Ok((answered, map)) if !map.is_same(&known) => {
                reload.first = Some(answered);
                self.install(map);
            }
            Ok(_) => {
                reload.first = None;
                reload.futile += 1;
            }
            Err(_) => self.doubt(), // the next request tries again; this one uses the known map
        }
        reload.not_before = Clock::System.after(CHECK_GAP);
    }

    fn install(&self, map: SlotMap) {
        *self.map.lock() = Arc::new(map);
        let latest = || {
            let map = Arc::clone(&self.map.lock());
            self.nodes.lock().retain(|endpoint, _| map.is_primary(endpoint));
            map
        };
        self.wakeups.follow(latest, |endpoint| self.subscriber(endpoint));
    }

    pub(super) fn listen(&self, channel: &str, waker: &Waker) -> Option<Subscription> {
        self.wakeups.listen(channel, waker, |endpoint| self.subscriber(endpoint))
    }

    fn subscriber(&self, endpoint: &Endpoint) -> Option<Arc<Subscriber>> {
        Some(Arc::clone(&self.node(endpoint).ok()?.store.server.subscriber))
    }

    pub(super) fn primaries(&self) -> Vec<Endpoint> {
        let map = Arc::clone(&self.map.lock());
        map.members.iter().filter(|endpoint| map.is_primary(endpoint)).cloned().collect()
    }

    pub(super) fn nodes(&self) -> Vec<Arc<ClusterNode>> {
        self.nodes.lock().values().cloned().collect()
    }
}

impl ClusterNode {
    pub(super) fn asking(&self) -> Option<Arc<RedisStore>> {
        self.asking.lock().clone()
    }
}

impl Settings {
    fn store(&self, endpoint: &Endpoint, asking: bool) -> Result<RedisStore> {
        let options = &self.options;
        let address = self.address.at(endpoint, Role::ClusterPrimary);
        let address = Arc::new(address.ok_or_else(|| Error::invalid("connect", "no host and port"))?);
        let pool_size = if asking { 1 } else { options.pool_size };
        let threads = Arc::clone(&self.threads);
        let mut connections =
            Connections::new(Arc::clone(&address), pool_size, options.command_timeout, threads)?;
        (connections.asking, connections.publish_prefix) = (asking, self.publish_prefix);
        let mut store = RedisStore::new(connections, options, &self.reporter, self.ways, true);
        store.server.queues_refused = Arc::clone(&self.queues_refused);
        Ok(store)
    }
}

/// Asks one member after the other. Each has an equal share of the time, but at least [`SHORTEST_ASK`].
fn first_of<T>(
    endpoints: &[Endpoint],
    deadline: Moment,
    ask: impl Fn(&Endpoint, Moment) -> Result<T>,
) -> Result<(Endpoint, T)> {
    let mut worst: Option<Error> = None;
    for (at, endpoint) in endpoints.iter().enumerate() {
        let now = Clock::System.now();
        let share = deadline.since(now) / u32::try_from(endpoints.len() - at).unwrap_or(u32::MAX);
        match ask(endpoint, deadline.min(now.plus(share.max(SHORTEST_ASK)))) {
            Ok(value) => return Ok((endpoint.clone(), value)),
            Err(error) => worst = Some(error.or_answer(worst)),
        }
    }
    let nobody = || Error::new(ErrorKind::Unreachable, "connect", "no member of the cluster answered");
    Err(worst.unwrap_or_else(nobody))
}

fn ask(
    address: &RedisAddress,
    endpoint: &Endpoint,
    commands: &[Command],
    deadline: Moment,
) -> Result<Vec<Value>> {
    let address = address.at(endpoint, Role::ClusterMember);
    let address = address.ok_or_else(|| Error::invalid("connect", "no host and port"))?;
    let mut connection = address.open(deadline)?;
    let mut bytes = Vec::new();
    commands.iter().for_each(|command| command.pack_into(&mut bytes));
    let connecting = |error: Error| error.during("connect");
    connection.send(&bytes, deadline).map_err(connecting)?;
    commands.iter().map(|_| connection.receive(deadline).map_err(connecting)).collect()
}

fn read_slots(known: &SlotMap, reply: Option<Value>, asked: &Endpoint) -> Result<SlotMap> {
    let reply = reply::done(reply.unwrap_or(Value::Nil)).map_err(|error| error.during("connect"))?;
    known.updated(&reply, &asked.host)
}
