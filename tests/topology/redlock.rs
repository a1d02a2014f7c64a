//! Redlock on servers that are killed, stopped, emptied, or have their clocks moved: its promises, its costs,
//! and the one case with two holders, in which only the resource can reject the older one.
//!
//! `LEASEHOLD_ROUNDS` (by default 2) is how often servers fail in the last test.

use std::collections::BTreeMap;

use leasehold::{Event, Observer, RedlockNode};
use parking_lot::{Mutex, MutexGuard};

use crate::support::epilogue::not_given_back;
use crate::support::load::{Load, Use};
use crate::support::observer::observe;
use crate::support::prelude::*;
use crate::support::proxy::{Command, Do, Proxy};
use crate::support::server::{Port, RedisServer, default_server};
use crate::support::{calls, random};

/// The lease and the node time-out are long, so that a server on a busy machine does not seem to hang.
const LEASE: Duration = ms(4000);
const NODE_TIMEOUT: Duration = ms(400);

/// Lets one test of this file run at a time, because each uses several servers and some measure times.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    watch_for_stalls();
    RUNNING.lock()
}

struct Nodes {
    servers: Vec<RedisServer>,
}

impl Nodes {
    fn start(number: usize) -> Option<Nodes> {
        let binary = default_server()?;
        Some(Nodes { servers: (0..number).map(|_| RedisServer::builder(&binary).start()).collect() })
    }

    fn with_movable_clocks() -> Option<Nodes> {
        let binary = default_server()?;
        let start = |_| RedisServer::builder(&binary).movable_clock().start();
        Some(Nodes { servers: (0..5).map(start).collect() })
    }

    fn urls(&self) -> Vec<String> {
        self.servers.iter().map(RedisServer::url).collect()
    }

    fn builder(&self) -> ClientBuilder {
        builder().redlock(self.urls())
    }

    fn client(&self) -> LockClient {
        self.builder().build().unwrap()
    }

    /// The owner that each of these servers has in the lock's key.
    fn holders(&self, key: &str, running: &[usize]) -> Vec<Option<String>> {
        let of = |server: &RedisServer| {
            let fields: BTreeMap<String, u64> =
                redis::cmd("HGETALL").arg(key).query(&mut server.admin()).unwrap();
            fields.into_keys().next()
        };
        running.iter().map(|at| of(&self.servers[*at])).collect()
    }

    /// Acquires the lock again and again until all five servers grant it.
    fn all_take_part(&self, lock: &RedisLock) {
        comes_true_within(LONG, || {
            let guard = lock.acquire().unwrap();
            let all = self.all_agree(lock.name(), &[0, 1, 2, 3, 4]);
            guard.unlock().unwrap();
            all
        });
    }

    /// Whether all these servers have the same owner in the lock's key.
    fn all_agree(&self, key: &str, running: &[usize]) -> bool {
        let holders = self.holders(key, running);
        holders.iter().all(|holder| holder.is_some() && *holder == holders[0])
    }

    /// Waits until a release has removed the lock's key on these servers. An expiry does not count.
    #[track_caller]
    fn is_given_back(&self, key: &str, running: &[usize]) {
        comes_true_within(LONG, || {
            running.iter().all(|at| not_given_back(&self.servers[*at], [key]).is_empty())
        });
    }

    #[track_caller]
    fn assert_nothing_left(&self, key: &str) {
        let all: Vec<usize> = (0..self.servers.len()).collect();
        self.is_given_back(key, &all);
    }

    /// Kills a server and starts it without its data, which it writes to no disk.
    fn restart_empty(&mut self, at: usize) {
        self.servers[at].restart();
    }
}

fn builder() -> ClientBuilder {
    LockClient::builder().lease(LEASE).node_timeout(NODE_TIMEOUT).retry_timeout(ms(2000))
}

fn teller() -> (impl Observer, Receiver<String>) {
    observe(|event| match event {
        Event::Warning { text, .. } => Some(format!("warning: {text}")),
        Event::Lost { loss, .. } => Some(format!("lost: {:?}", loss.reason)),
        _ => None,
    })
}

#[track_caller]
fn is_told(told: &Receiver<String>, part: &str) {
    let mut heard = Vec::new();
    loop {
        match told.recv_timeout(LONG) {
            Ok(text) if text.contains(part) => return,
            Ok(text) => heard.push(text),
            Err(_) => panic!("not reported: {part}; but {heard:?}"),
        }
    }
}

fn takes_and_gives_back(lock: &RedisLock) {
    lock.acquire().unwrap().unlock().unwrap();
}

/// The outcome of a try. If servers do not answer in time, since the machine stalls, tries again.
#[track_caller]
fn tries(lock: &RedisLock) -> bool {
    let mut got = None;
    comes_true_within(LONG, || match lock.try_lock() {
        Ok(answer) => got.insert(answer) == &answer,
        Err(error) => {
            assert!(error.is_retryable(), "{error}");
            false
        }
    });
    got.unwrap()
}

fn about(name: &str) -> impl Fn(&Command) -> bool + Send + 'static + use<> {
    crate::support::proxy::script_with(name.to_owned())
}

#[test]
fn fewer_than_three_servers_are_refused_before_any_request() {
    for urls in [&[][..], &["redis://127.0.0.1:1"], &["redis://127.0.0.1:1", "redis://127.0.0.1:2"]] {
        fails_saying(
            LockClient::redlock(urls.iter().copied()),
            ErrorKind::InvalidInput,
            "no safer than a lock on one",
        );
    }
}

test_on!(two_urls_of_one_server_are_refused, alone(), Nodes::start(3), |nodes| {
    let [first, second, _] = &nodes.servers[..] else { panic!() };
    for twin in [
        first.url(),
        first.unix_url(),
        first.url().replace("127.0.0.1", "localhost"),
        format!("{}3", first.url()),
    ] {
        let error = fails(
            builder().redlock([first.url(), second.url(), twin.clone()]).build(),
            ErrorKind::InvalidInput,
        );
        assert!(error.to_string().contains("are one server"), "{twin}: {error}");
    }
    builder().redlock(nodes.urls()).build().unwrap();
});

test_on!(redlock_refuses_a_cluster_member_as_a_server, alone(), Nodes::start(2), |nodes| {
    let member = RedisServer::builder(nodes.servers[0].binary()).config("cluster-enabled yes").start();
    let urls = [nodes.servers[0].url(), nodes.servers[1].url(), member.url()];
    let error =
        fails_saying(builder().redlock(urls).build(), ErrorKind::Unsupported, "a member of a cluster");
    assert!(error.to_string().contains(&member.port().to_string()), "{error}");
});

test_on!(redlock_warns_about_servers_even_in_number_or_with_replicas, alone(), Nodes::start(4), |nodes| {
    let of = format!("replicaof 127.0.0.1 {}", nodes.servers[2].port());
    let _replica = RedisServer::builder(nodes.servers[0].binary()).config(&of).start();
    comes_true_within(LONG, || {
        let info: String =
            redis::cmd("INFO").arg("replication").query(&mut nodes.servers[2].admin()).unwrap();
        info.contains("connected_slaves:1")
    });
    let (teller, told) = teller();
    let client = nodes.builder().observer(teller).build().unwrap();
    is_told(&told, "no more servers than on 3");
    is_told(&told, "the server has replicas");
    takes_and_gives_back(&client.get_lock(fresh("warned")));
});

test_on!(redlock_sends_each_server_one_request_per_acquire_or_release, alone(), Nodes::start(5), |nodes| {
    // The time-outs are long, so that the client asks no slow server twice.
    let client = nodes.builder().node_timeout(LONG).lease(LONG * 4).build().unwrap();
    let lock = client.get_lock(fresh("counted"));
    // The first use loads the scripts and opens all connections, so these requests are not counted below.
    takes_and_gives_back(&lock);
    let asked = || -> Vec<u64> {
        let verbs = ["eval", "evalsha", "info", "hello", "ping"];
        nodes.servers.iter().map(|server| calls(&mut server.admin(), &verbs)).collect()
    };
    let before = asked();
    (0..50).for_each(|_| takes_and_gives_back(&lock));
    let each: Vec<u64> = asked().iter().zip(before).map(|(after, before)| after - before).collect();
    // 50 acquires, 50 releases, and the INFO command that reads the count.
    assert_eq!(each, [101; 5]);
});

test_on!(a_list_shows_each_lock_once_despite_one_failed_server, alone(), Nodes::start(3), |mut nodes| {
    let (client, other) = (nodes.client(), nodes.client());
    let listed = |pattern: &str| {
        let locks: Result<Vec<_>, _> = other.list(pattern).collect();
        locks.map(|locks| {
            let mut names: Vec<String> = locks.into_iter().map(|lock| lock.name).collect();
            names.sort_unstable();
            names
        })
    };
    // A list asks server 0 first and server 2 last, and must be complete although either lacks the data.
    for at in [0, 2] {
        let series = fresh("listed");
        let (names, pattern): (Vec<_>, _) =
            ((0..5).map(|n| format!("{series}:{n}")).collect(), format!("{series}:*"));
        let guards: Vec<_> =
            names.iter().map(|name| client.get_lock(name).acquire_owned().unwrap()).collect();
        assert_eq!(listed(&pattern).unwrap(), names);
        nodes.restart_empty(at);
        comes_true_within(LONG, || listed(&pattern).is_ok_and(|listed| listed == names));
        nodes.servers[at].kill();
        comes_true_within(LONG, || listed(&pattern).is_ok_and(|listed| listed == names));
        nodes.servers[at].restart();
        guards.into_iter().for_each(|guard| guard.unlock().unwrap());
        let name = fresh("again");
        comes_true_within(LONG, || {
            let guard = client.get_lock(&name).acquire_owned().unwrap();
            let all_have_it = nodes.all_agree(&name, &[0, 1, 2]);
            guard.unlock().unwrap();
            all_have_it
        });
    }
    for at in [0, 1] {
        nodes.servers[at].kill();
    }
    comes_true_within(LONG, || listed("*").is_err_and(|error| error.kind() == ErrorKind::Unreachable));
});

test_on!(a_lock_survives_two_dead_servers_of_five, alone(), Nodes::start(5), |mut nodes| {
    let (client, other) = (nodes.client(), nodes.client());
    for dead in 1..=2 {
        let name = fresh("outlives");
        let guard = client.get_lock(&name).acquire_owned().unwrap();
        nodes.servers[dead].kill();
        // The span exceeds the lease, so the client must have renewed the hold at the remaining servers.
        throughout(LEASE + LEASE / 4, || guard.state() != HoldState::Lost);
        guard.check().unwrap();
        assert!(!tries(&other.get_lock(&name)));
        guard.unlock().unwrap();
        assert!(tries(&other.get_lock(&name)));
        other.get_lock(&name).unlock().unwrap();
        let running: Vec<usize> = (0..5).filter(|at| nodes.servers[*at].is_running()).collect();
        nodes.is_given_back(&name, &running);
    }
    nodes.servers[1].restart();
    nodes.servers[2].restart();
    let name = fresh("again");
    takes_and_gives_back(&client.get_lock(&name));
    nodes.all_take_part(&client.get_lock(&name));
    nodes.assert_nothing_left(&name);
});

test_on!(a_hanging_minority_costs_only_the_first_acquire_a_timeout, alone(), Nodes::start(5), |nodes| {
    // A tenth of the lease also limits a request. With this lease the node time-out (400 ms) is shorter.
    let client = nodes.builder().lease(Duration::from_secs(10)).build().unwrap();
    let lock = client.get_lock(fresh("hangs"));
    takes_and_gives_back(&lock);
    for hanging in [vec![0], vec![1, 2]] {
        hanging.iter().for_each(|at| nodes.servers[*at].stop());
        let begun = now();
        lock.lock().unwrap();
        let first = begun.elapsed();
        lock.unlock().unwrap();
        assert!(first <= NODE_TIMEOUT + slack_since(begun), "{first:?} with {} hanging", hanging.len());
        let begun = now();
        let later: Vec<Duration> = (0..20)
            .map(|_| {
                let before = now();
                takes_and_gives_back(&lock);
                before.elapsed()
            })
            .collect();
        let worst = *later.iter().max().unwrap();
        assert!(median(later) < NODE_TIMEOUT && worst < slack_since(begun), "worst {worst:?}");
        shout(&format!(
            "COUNTED {} of 5 hanging: the first acquire took {first:?}, the worst of 20 after it {worst:?}",
            hanging.len()
        ));
        hanging.iter().for_each(|at| nodes.servers[*at].cont());
        nodes.all_take_part(&lock);
    }
    nodes.assert_nothing_left(lock.name());
});

test_on!(calls_fail_within_their_timeouts_without_a_majority, alone(), Nodes::start(5), |mut nodes| {
    // The lease is long, so that no leftover grant expires during the test.
    let client = nodes.builder().lease(Duration::from_secs(60)).build().unwrap();
    let name = fresh("too-few");
    let lock = client.get_lock(&name);
    takes_and_gives_back(&lock);
    nodes.servers[0].kill();
    nodes.servers[1].kill();
    nodes.servers[2].stop();
    let begun = now();
    let error = lock.try_lock().unwrap_err();
    assert!(begun.elapsed() <= 3 * NODE_TIMEOUT + slack_since(begun), "{:?}", begun.elapsed());
    assert!(error.is_retryable(), "{error}");
    let text = error.to_string();
    assert!(text.contains("2 of 5 servers answered, but 3 are needed"), "{text}");
    for server in &nodes.servers {
        assert!(text.contains(&format!("127.0.0.1:{}: ", server.port())), "{text}");
    }
    let begun = now();
    let error = lock.lock().unwrap_err();
    assert!(error.is_retryable(), "{error}");
    // The client's retry time-out is two seconds.
    assert!(begun.elapsed() <= ms(2000) + 2 * NODE_TIMEOUT + slack_since(begun), "{:?}", begun.elapsed());
    assert!(client.get_lock(&name).is_locked().unwrap_err().is_retryable());
    nodes.is_given_back(&name, &[3, 4]);
    nodes.servers[2].cont();
    comes_true_within(LONG, || matches!(lock.try_lock(), Ok(true)));
    lock.unlock().unwrap();
});

test_on!(a_minority_that_is_down_at_first_joins_later, alone(), Nodes::start(5), |mut nodes| {
    nodes.servers[3].kill();
    nodes.servers[4].kill();
    let (teller, told) = teller();
    let client = nodes.builder().observer(teller).build().unwrap();
    is_told(&told, "cannot be used yet");
    let name = fresh("joins");
    takes_and_gives_back(&client.get_lock(&name));
    nodes.servers[3].restart();
    nodes.servers[4].restart();
    nodes.all_take_part(&client.get_lock(&name));
});

test_on!(a_minority_that_refuses_the_client_at_first_joins_later, alone(), Nodes::start(5), |nodes| {
    let set = |at: usize, command: &[&str]| {
        redis::cmd(command[0]).arg(&command[1..]).exec(&mut nodes.servers[at].admin()).unwrap();
    };
    set(4, &["REPLICAOF", "127.0.0.1", &nodes.servers[0].port().to_string()]);
    let mut fourth = nodes.servers[3].admin();
    let mut ask = |word: &str| {
        redis::cmd("CONFIG").arg("SET").arg("requirepass").arg(word).exec(&mut fourth).unwrap();
    };
    ask("another");
    let (teller, told) = teller();
    // The lease is long, so that no hold expires while a busy machine checks five servers.
    let client = nodes.builder().lease(LONG).observer(teller).build().unwrap();
    is_told(&told, "cannot be used yet");
    let name = fresh("odd");
    takes_and_gives_back(&client.get_lock(&name));
    set(4, &["REPLICAOF", "NO", "ONE"]);
    ask("");
    nodes.all_take_part(&client.get_lock(&name));
    for at in 0..3 {
        set(at, &["CONFIG", "SET", "requirepass", "another"]);
    }
    fails(nodes.builder().build(), ErrorKind::Authentication);
});

test_on!(a_minority_that_hangs_at_first_joins_later, alone(), Nodes::start(5), |nodes| {
    let limit = LONG * 3;
    [1, 3].iter().for_each(|at: &usize| nodes.servers[*at].stop());
    let begun = now();
    let client = nodes.builder().lease(LONG).connect_timeout(limit).build().unwrap();
    let took = begun.elapsed();
    takes_and_gives_back(&client.get_lock(fresh("hang")));
    assert!(took < limit / 3 + slack_since(begun), "{took:?}");
    shout(&format!("COUNTED 2 of 5 hanging: connected after {took:?}"));
    [1, 3].iter().for_each(|at: &usize| nodes.servers[*at].cont());
    let name = fresh("joined");
    nodes.all_take_part(&client.get_lock(&name));
});

test_on!(building_a_client_without_a_majority_fails, alone(), Nodes::start(1), |nodes| {
    let closed = [Port::claim(), Port::claim()].map(|port| port.number());
    let urls = closed.iter().map(|port| format!("redis://me:S3CR3T@127.0.0.1:{port}")).chain(nodes.urls());
    let error = fails(builder().redlock(urls).build(), ErrorKind::Unreachable);
    let text = format!("{error} {error:?}");
    assert!(text.contains("1 of 3 servers answered, but 2 are needed") && !text.contains("S3CR3T"), "{text}");
    assert!(closed.iter().all(|port| text.contains(&port.to_string())), "{text}");
});

test_on!(each_redlock_node_can_map_names_to_its_own_keys, alone(), Nodes::start(3), |nodes| {
    let urls = nodes.urls();
    let given = [
        RedlockNode::new(&urls[0]),
        RedlockNode::new(&urls[1]).map_names(|key| format!("here:{key}")),
        RedlockNode::new(&urls[2]).map_names(|key| key.to_uppercase()),
    ];
    let client = builder().key_prefix("p:").redlock(given).build().unwrap();
    let guard = client.get_lock("stock").acquire().unwrap();
    for (at, key) in ["p:stock", "here:p:stock", "P:STOCK"].iter().enumerate() {
        assert_eq!(nodes.holders(key, &[at]), [Some(guard.owner().to_string())], "{key}");
    }
    guard.unlock().unwrap();
    let stranger = client.clone();
    elsewhere(move || takes_and_gives_back(&stranger.get_lock("stock")));
});

test_on!(a_dropped_guard_releases_its_lock_despite_flushed_scripts, alone(), Nodes::start(3), |nodes| {
    let seen = crate::support::observer::Seen::default();
    let client = nodes.builder().node_timeout(LONG).observer(seen.clone()).build().unwrap();
    let lock = client.get_lock(fresh("scripts"));
    for forgetful in [1, 3] {
        drop(lock.acquire().unwrap()); // so that the client knows that the server has the script
        let guard = lock.acquire().unwrap();
        for server in &nodes.servers[..forgetful] {
            redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.admin()).unwrap();
        }
        drop(guard);
        lock.acquire().unwrap().unlock().unwrap();
    }
    assert_eq!(client.stats().releases_failed, 0, "{:?}", seen.events());
});

test_on!(a_hold_survives_two_servers_that_lost_their_data, alone(), Nodes::start(5), |mut nodes| {
    let (teller, told) = teller();
    let client = nodes.builder().observer(teller).build().unwrap();
    let other = nodes.client();
    let name = fresh("forgotten");
    let guard = client.get_lock(&name).acquire_owned().unwrap();
    nodes.restart_empty(0);
    nodes.restart_empty(1);
    throughout(LEASE + LEASE / 4, || guard.check().is_ok());
    assert!(!tries(&other.get_lock(&name)));
    (0..3).for_each(|at| nodes.servers[at].kill());
    (0..3).for_each(|at| nodes.servers[at].restart());
    is_told(&told, "lost: Gone");
    assert!(guard.check().is_err());
    nodes.is_given_back(&name, &[0, 1, 2, 3, 4]);
    takes_and_gives_back(&other.get_lock(&name));
    assert!(guard.unlock().unwrap_err().is_lost());
});

/// A short lease, for tests that wait for renewals or for longer than the lease.
const BRIEF: Duration = ms(3000);

/// Waits until a restored hold counts: for two renewals, as the first may have begun before the restore.
fn until_it_counts(guard: &leasehold::OwnedGuard) {
    for _ in 0..2 {
        crate::support::await_renewal(|| guard.remaining());
    }
}

test_on!(a_returning_server_gets_the_hold_restored, alone(), Nodes::start(3), |nodes| {
    let client = nodes.builder().lease(BRIEF).build().unwrap();
    let name = fresh("leader");
    let guard = client.get_lock(&name).acquire_owned().unwrap();
    for away in [0, 1, 2] {
        nodes.servers[away].stop();
        throughout(BRIEF + BRIEF / 4, || guard.check().is_ok());
        nodes.servers[away].cont();
        comes_true_within(LONG, || nodes.all_agree(&name, &[0, 1, 2]));
        until_it_counts(&guard);
    }
    guard.check().unwrap();
    guard.unlock().unwrap();
    nodes.assert_nothing_left(&name);
});

test_on!(emptying_five_redlock_servers_in_turn_loses_no_hold, alone(), Nodes::start(5), |mut nodes| {
    let client = nodes.builder().lease(BRIEF).build().unwrap();
    let names: Vec<String> = (0..9).map(|_| fresh("leader")).collect();
    let guards: Vec<_> = names.iter().map(|name| client.get_lock(name).acquire_owned().unwrap()).collect();
    let reentered = fresh("levels");
    let lock = client.get_lock(&reentered);
    lock.lock().unwrap();
    lock.lock().unwrap();
    let (busy, stop) = (fresh("busy"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let ends = Raise(&stop);
        for _ in 0..3 {
            let (client, busy, stop) = (nodes.builder().lease(BRIEF).build().unwrap(), &busy, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    if let Ok(Some(guard)) = client.get_lock(busy).try_acquire_for(ms(200)) {
                        drop(guard.unlock());
                    }
                }
            });
        }
        for at in 0..5 {
            nodes.restart_empty(at);
            comes_true_within(LONG, || names.iter().all(|name| nodes.all_agree(name, &[0, 1, 2, 3, 4])));
            guards.iter().for_each(until_it_counts);
            guards.iter().for_each(|guard| guard.check().unwrap());
        }
        drop(ends);
    });
    comes_true_within(LONG, || {
        let counts = nodes.servers.iter().map(|server| -> BTreeMap<String, u64> {
            redis::cmd("HGETALL").arg(&reentered).query(&mut server.admin()).unwrap()
        });
        counts.map(|count| count.into_values().next()).all(|count| count == Some(2))
    });
    lock.unlock().unwrap();
    lock.unlock().unwrap();
    guards.into_iter().for_each(|guard| guard.unlock().unwrap());
    names.iter().chain([&reentered, &busy]).for_each(|name| nodes.assert_nothing_left(name));
});

test_on!(a_hold_force_unlocked_during_a_restore_stays_lost, alone(), Nodes::start(3), |mut nodes| {
    let (teller, told) = teller();
    let client = nodes.builder().lease(BRIEF).observer(teller).build().unwrap();
    let operator = nodes.client();
    for _ in 0..3 {
        let name = fresh("forced");
        let guard = client.get_lock(&name).acquire_owned().unwrap();
        nodes.restart_empty(2);
        comes_true_within(LONG, || matches!(operator.get_lock(&name).force_unlock(), Ok(true)));
        is_told(&told, "lost: Gone");
        assert!(guard.check().is_err());
        nodes.assert_nothing_left(&name);
        throughout(BRIEF / 2, || nodes.holders(&name, &[0, 1, 2]).iter().all(Option::is_none));
        assert!(guard.unlock().unwrap_err().is_lost());
    }
});

test_on!(jumping_clocks_of_two_servers_lose_no_hold, alone(), Nodes::with_movable_clocks(), |nodes| {
    let (client, other) = (nodes.client(), nodes.client());
    for offset_s in [40, -3600] {
        for jumping in [&[0][..], &[1, 2]] {
            let name = fresh("jumps");
            let guard = client.get_lock(&name).acquire_owned().unwrap();
            jumping.iter().for_each(|at| nodes.servers[*at].move_clock(offset_s));
            if offset_s > 0 {
                comes_true_within(LONG, || nodes.holders(&name, jumping).iter().all(Option::is_none));
            }
            // At least one renewal comes within this time.
            throughout(LEASE / 2, || guard.check().is_ok());
            assert!(!tries(&other.get_lock(&name)));
            guard.unlock().unwrap();
            takes_and_gives_back(&other.get_lock(&name));
            jumping.iter().for_each(|at| nodes.servers[*at].move_clock(0));
            nodes.assert_nothing_left(&name);
        }
    }
});

// Two clients hold the lock: servers a, b and c grant, c loses its data, and c, d and e grant again. Neither
// servers nor clients can prevent that, so the resource refuses the older holder by its fence.
test_on!(fences_refuse_the_older_of_two_holders, alone(), Nodes::start(5), |mut nodes| {
    let lease = Duration::from_secs(30);
    let name = fresh("two-holders");
    let reaching = |away: [usize; 2], nodes: &Nodes| {
        let proxies: BTreeMap<usize, Proxy> =
            away.iter().map(|at| (*at, Proxy::before(&nodes.servers[*at]))).collect();
        let urls = (0..5).map(|at| proxies.get(&at).map_or_else(|| nodes.servers[at].url(), Proxy::url));
        let client = builder().lease(lease).redlock(urls).build().unwrap();
        for proxy in proxies.values() {
            proxy.refuse();
            proxy.kill(crate::support::proxy::Which::All, crate::support::proxy::Then::Reset);
        }
        (client, proxies)
    };
    let (one, _cut) = reaching([3, 4], &nodes);
    let (other, _cut_too) = reaching([0, 1], &nodes);
    let first = one.get_fenced_lock(&name).try_acquire_for(LONG).unwrap().unwrap();
    assert_eq!(nodes.holders(&name, &[0, 1, 2, 3, 4]).iter().flatten().count(), 3);
    assert!(
        !tries(&other.get_fenced_lock(&name)),
        "a second holder, although server c has the first one's grant"
    );
    nodes.restart_empty(2);
    let second = other.get_fenced_lock(&name).try_acquire_for(LONG).unwrap().unwrap();
    first.check().unwrap();
    second.check().unwrap();
    let (old, new) = (first.fencing_token().unwrap(), second.fencing_token().unwrap());
    assert!(new > old, "{new} after {old}");
    let mut newest_seen = None;
    let mut writes = |fence| {
        let is_taken = newest_seen.is_none_or(|seen| fence >= seen);
        newest_seen = newest_seen.max(Some(fence));
        is_taken
    };
    assert!(writes(old));
    assert!(writes(new));
    assert!(!writes(old), "the older fence is refused");
    second.unlock().unwrap();
});

/// Five servers, the first `number` of them behind proxies, and a client whose leases outlast the test.
fn behind_proxies(number: usize) -> Option<(Nodes, Vec<Proxy>, LockClient)> {
    let nodes = Nodes::start(5)?;
    let proxies: Vec<Proxy> = nodes.servers[..number].iter().map(Proxy::before).collect();
    let urls = proxies.iter().map(Proxy::url).chain(nodes.urls().split_off(number));
    let client = builder().lease(Duration::from_secs(60)).redlock(urls).build().unwrap();
    takes_and_gives_back(&client.get_lock("warm-up"));
    Some((nodes, proxies, client))
}

test_on!(a_late_grant_of_a_majority_is_undone, alone(), behind_proxies(3), |(nodes, proxies, client)| {
    let name = fresh("late");
    let faults: Vec<_> = proxies.iter().map(|proxy| proxy.next(about(&name), Do::HoldRequest)).collect();
    let begun = now();
    let error = client.get_lock(&name).try_lock().unwrap_err();
    assert!(begun.elapsed() <= NODE_TIMEOUT + slack_since(begun), "{:?}", begun.elapsed());
    assert!(!error.outcome_unknown(), "the client undoes the grants itself: {error}");
    // Now the delayed requests reach the servers, which grant the free lock.
    faults.iter().for_each(crate::support::proxy::Fault::release);
    faults.iter().for_each(|fault| fault.wait_for(1, LONG));
    let granted_twice = |server: &RedisServer| calls(&mut server.admin(), &["hset"]) == 2;
    comes_true_within(LONG, || nodes.servers[..3].iter().all(granted_twice));
    nodes.assert_nothing_left(&name);
});

#[test]
fn a_grant_of_one_server_after_the_release_is_undone() {
    let _alone = alone();
    let Some((nodes, proxies, client)) = behind_proxies(1) else { return };
    let name = fresh("later");
    let fault = proxies[0].next(about(&name), Do::HoldRequest);
    takes_and_gives_back(&client.get_lock(&name));
    fault.release();
    fault.wait_for(1, LONG);
    comes_true_within(LONG, || calls(&mut nodes.servers[0].admin(), &["hset"]) == 2);
    nodes.assert_nothing_left(&name);
}

#[test]
fn a_late_grant_does_not_touch_the_next_hold() {
    let _alone = alone();
    let Some((nodes, proxies, client)) = behind_proxies(3) else { return };
    let name = fresh("late");
    let faults: Vec<_> = proxies.iter().map(|proxy| proxy.next(about(&name), Do::HoldRequest)).collect();
    let lock = client.get_lock(&name);
    lock.try_lock().unwrap_err();
    faults.iter().for_each(|fault| fault.wait_for(1, LONG));
    // The thread's new hold has another owner number, so the late grants are no grants of this hold.
    comes_true_within(LONG, || matches!(lock.try_lock(), Ok(true)));
    faults.iter().for_each(crate::support::proxy::Fault::release);
    throughout(ms(500), || lock.is_held_by_current_thread().unwrap());
    lock.unlock().unwrap();
    nodes.assert_nothing_left(&name);
}

test_on!(a_late_release_does_not_end_the_next_hold, alone(), Nodes::start(3), |nodes| {
    let proxy = Proxy::before(&nodes.servers[0]);
    let urls = [proxy.url(), nodes.servers[1].url(), nodes.servers[2].url()];
    let client = builder().lease(Duration::from_secs(20)).redlock(urls).build().unwrap();
    let name = fresh("late-release");
    let lock = client.get_lock(&name);
    lock.lock().unwrap();
    let before = client.current_owner();
    let fault = proxy.next(about(&name), Do::HoldRequest);
    lock.unlock().unwrap();
    assert_ne!(client.current_owner(), before, "the number is still in use");
    fault.release();
    // The server that gets the late release may still have the earlier hold, so the thread tries until all
    // servers have the new one.
    let all_agree = || nodes.all_agree(&name, &[0, 1, 2]);
    comes_true_within(LONG, || {
        lock.lock().unwrap();
        let held = all_agree();
        if !held {
            lock.unlock().unwrap();
        }
        held
    });
    throughout(ms(500), all_agree);
    lock.unlock().unwrap();
    nodes.assert_nothing_left(&name);
});

test_on!(competing_redlock_clients_all_acquire_and_leave_no_grant, alone(), Nodes::start(5), |nodes| {
    let name = fresh("split");
    let inside = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            let (client, name, inside) = (nodes.client(), &name, &inside);
            scope.spawn(move || {
                let lock = client.get_lock(name);
                for _ in 0..20 {
                    lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    lock.unlock().unwrap();
                }
            });
        }
    });
    nodes.assert_nothing_left(&name);
});

test_on!(a_scheduled_job_still_runs_despite_split_votes, alone(), Nodes::start(5), |nodes| {
    let client = nodes.builder().retry_timeout(LONG).build().unwrap();
    let tick = |name: &str| client.run_once(name, LEASE, LEASE, |_| ()).unwrap();
    let hold = |name: &str, holders: [&str; 5]| {
        for (server, holder) in nodes.servers.iter().zip(holders) {
            let () = redis::cmd("HSET").arg(name).arg(holder).arg(1).query(&mut server.admin()).unwrap();
            let () = redis::cmd("PEXPIRE").arg(name).arg(60_000).query(&mut server.admin()).unwrap();
        }
    };
    let (held, split) = (fresh("held"), fresh("split"));
    let [a, b, c] = ["a", "b", "c"].map(|digit| format!("{0}-0000-4000-8000-{0}0000:1", digit.repeat(8)));
    let [a, b, c] = [&*a, &*b, &*c];
    hold(&held, [a, b, a, c, a]);
    assert_eq!(tick(&held), None, "another owner holds the lock");
    hold(&split, [a, b, a, c, b]);
    std::thread::scope(|scope| {
        let ticking = scope.spawn(|| tick(&split));
        throughout(ms(300), || !ticking.is_finished());
        for server in &nodes.servers {
            let () = redis::cmd("DEL").arg(&split).query(&mut server.admin()).unwrap();
        }
        assert_eq!(ticking.join().unwrap(), Some(()));
    });
});

#[test]
fn grants_never_overlap_while_servers_die_hang_and_lose_data() {
    const GRANTS_A_ROUND: usize = 1_000;
    const LEASE: Duration = ms(1500);
    let _alone = alone();
    let Some(mut nodes) = Nodes::start(5) else { return };
    let rounds = crate::rounds();
    let locks: Vec<String> = (0..4).map(|_| fresh("history")).collect();
    let clients = [(); 4].map(|()| nodes.builder().lease(LEASE).build().unwrap());
    let fenced = |client: &LockClient, _, name: &str| RedisLock::clone(&client.get_fenced_lock(name));
    let begun = now();
    let load = Load::start(&clients, &locks, 1, Use { make: fenced, drops: false });
    for round in 0..rounds {
        let first = random() as usize % 5;
        let victims: Vec<usize> = (0..1 + round % 2).map(|more| (first + more) % 5).collect();
        match (round + random() as usize) % 2 {
            0 => victims.iter().for_each(|at| nodes.servers[*at].kill()),
            _ => victims.iter().for_each(|at| nodes.servers[*at].stop()),
        }
        // A Redlock is safe only if a server that lost its data stays away for the longest lease.
        let_pass(LEASE, "a server that forgot is away");
        for at in victims {
            if nodes.servers[at].is_running() {
                nodes.servers[at].cont();
            } else {
                nodes.restart_empty(at);
            }
        }
        let_pass(LEASE / 2, "all is well for a while");
    }
    comes_true_within(Duration::from_secs(90), || load.grants() >= GRANTS_A_ROUND * rounds);
    let outcome = load.stop();
    shout(&format!(
        "COUNTED {} grants in {:?}, {rounds} rounds of trouble, {} calls failed",
        outcome.grants,
        begun.elapsed(),
        outcome.errors.values().sum::<usize>()
    ));
    assert_eq!((outcome.overlaps, outcome.tokens), (0, 0), "{outcome:?}");
    assert!(outcome.least >= 100, "{outcome:?}");
    locks.iter().for_each(|lock| nodes.assert_nothing_left(lock));
}
