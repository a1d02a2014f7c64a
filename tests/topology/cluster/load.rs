//! Clients that use a few locks of a cluster as fast as they can, and checks that nothing of them remains.

use crate::support::cluster::Cluster;
use crate::support::epilogue::threads;
use crate::support::load::{Load, Use};
use crate::support::observer::Seen;
use crate::support::prelude::*;

/// The connect time-out, long enough for a busy machine. A stopped member delays a client by this time.
const CONNECT: Duration = ms(2000);
/// The lease (longer than a failover), the command time-out, and the interval of safety polls plus slack.
pub(crate) const L: Duration = ms(12_000);
pub(crate) const T: Duration = ms(500);
pub(crate) const POLL: Duration = ms(1450);
const NAME: &str = "cluster-load";

pub(crate) fn builder(cluster: &Cluster) -> ClientBuilder {
    LockClient::builder()
        .url(cluster.url())
        .lease(L)
        .command_timeout(T)
        .connect_timeout(CONNECT)
        .unsubscribe_delay(ms(200))
        .client_name(NAME)
}

/// Starts three clients with three threads each, which use fenced, plain, fair and write locks. If no answer
/// comes within `command_timeout`, a request has an unknown outcome.
pub(crate) fn start(cluster: &Cluster, names: &[String], command_timeout: Duration) -> (Load, Seen) {
    let seen = Seen::default();
    let client = |()| {
        let options = builder(cluster).command_timeout(command_timeout).connect_timeout(command_timeout);
        options.observer(seen.clone()).build().unwrap()
    };
    (Load::start(&[(); 3].map(client), names, 3, Use { make: kind, drops: true }), seen)
}

/// Ends the load. Panics if a lock had two holders or fewer than ten grants, a fence did not grow, or a call
/// failed, other than an unlock of unknown outcome. Returns the numbers of grants and of such unlocks.
#[track_caller]
pub(crate) fn end(load: Load) -> (usize, usize) {
    let mut outcome = load.stop();
    let mut unknown = 0;
    outcome.errors.retain(|error, count| {
        let is_unknown = error.ends_with("during unlock of unknown outcome");
        unknown += usize::from(is_unknown) * *count;
        !is_unknown
    });
    assert!(outcome.errors.is_empty(), "{outcome:?}");
    assert_eq!((outcome.overlaps, outcome.tokens, outcome.refused), (0, 0, 0), "{outcome:?}");
    assert!(outcome.least >= 10, "{outcome:?}");
    (outcome.grants, unknown)
}

fn kind(client: &LockClient, at: usize, name: &str) -> RedisLock {
    match at % 4 {
        0 => RedisLock::clone(&client.get_fenced_lock(name)),
        1 => client.get_lock(name),
        2 => client.get_fair_lock(name),
        _ => client.get_read_write_lock(name).write().clone(),
    }
}

/// In a separate process, starts a cluster, runs `body`, and checks that nothing remains.
pub(crate) fn on_cluster(body: impl FnOnce(&Cluster)) {
    alone_within(LONG * 6, || {
        watch_for_stalls();
        let Some(cluster) = Cluster::start() else { return };
        body(&cluster);
        assert_all_was_given_back(&cluster);
    });
}

/// As [`assert_nothing_is_left`], but stricter, for tests that released every hold and lost no answer: a key
/// that only its expiry would remove counts as left.
#[track_caller]
pub(crate) fn assert_all_was_given_back(cluster: &Cluster) {
    for index in 0..cluster.members.len() {
        for key in cluster.ask::<Vec<String>>(index, &["KEYS", "*"]) {
            cluster.ask::<u32>(cluster.primary_of(&key), &["PERSIST", &key]);
        }
    }
    assert_nothing_is_left(cluster);
}

/// Panics if a thread, connection, subscription or key remains, once all clients are gone. A key may remain
/// until its lease ends, as after a fault.
#[track_caller]
pub(crate) fn assert_nothing_is_left(cluster: &Cluster) {
    let mut left = Vec::new();
    let clean = eventually(L + LONG, || {
        left.clear();
        left.extend(threads().into_iter().flatten().map(|name| format!("thread {name}")));
        for index in 0..cluster.members.len() {
            let clients: String = cluster.ask(index, &["CLIENT", "LIST"]);
            let ours = clients.lines().filter(|line| line.contains(&format!("name={NAME} ")));
            left.extend(ours.map(str::to_owned));
            for kind in ["CHANNELS", "SHARDCHANNELS"] {
                left.extend(cluster.ask::<Vec<String>>(index, &["PUBSUB", kind]));
            }
            let keys: Vec<String> = cluster.ask(index, &["KEYS", "*"]);
            for key in keys {
                let stays = ["redisson_lock_token:", "test:", "leasehold_client:format"];
                if !stays.iter().any(|stays| key.starts_with(stays)) {
                    left.push(format!("key {key}"));
                }
            }
        }
        left.is_empty()
    });
    assert!(clean, "left behind:\n{}", left.join("\n"));
}
