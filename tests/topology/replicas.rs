//! Grants that replicas must acknowledge (`require_replicas`), and that are undone without acknowledgement.

use leasehold::{Event, Observer};

use crate::support::prelude::*;
use crate::support::sentinel::{LIMIT, SentinelSet};
use crate::support::server::{RedisServer, ServerBinary, default_server, matrix};

const ACK_TIMEOUT: Duration = ms(150);
/// How late a call may return on a busy machine; well below the command time-out.
const LATE: Duration = ms(1_000);

struct Servers {
    master: RedisServer,
    replicas: Vec<RedisServer>,
}

impl Servers {
    fn start(replicas: usize) -> Option<Servers> {
        Some(Servers::start_of(&default_server()?, replicas, &[]))
    }

    fn start_of(binary: &ServerBinary, replicas: usize, config: &[&str]) -> Servers {
        stalled_since(now()); // the stall meter measures from here on
        let plain = RedisServer::builder(binary)
            .config("repl-diskless-sync-delay 0")
            .config("repl-ping-replica-period 1");
        let master = config.iter().fold(plain, |builder, line| builder.config(line)).start();
        let mut servers = Servers { master, replicas: Vec::new() };
        (0..replicas).for_each(|_| servers.add_replica());
        servers
    }

    fn add_replica(&mut self) {
        let of = format!("replicaof 127.0.0.1 {}", self.master.port());
        self.replicas.push(RedisServer::builder(self.master.binary()).config(&of).start());
        // The test awaits an acknowledgement, since a replica that counts as "online" may still be loading.
        let there = || have_all(&self.master, self.replicas.len());
        assert!(eventually(LONG, there), "the replica acknowledges nothing");
    }

    fn options(&self) -> ClientBuilder {
        LockClient::builder().url(self.master.url())
    }

    fn master_says(&self, words: &[&str]) -> String {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut self.master.admin()).unwrap()
    }
}

/// Whether `replicas` replicas acknowledge the latest write within a second.
fn have_all(master: &RedisServer, replicas: usize) -> bool {
    let mut wrote = redis::pipe();
    wrote.cmd("SET").arg("probe").arg(1).arg("PX").arg(10).ignore();
    wrote.cmd("WAIT").arg(replicas).arg(1000);
    let (count,): (usize,) = wrote.query(&mut master.admin()).unwrap();
    count == replicas
}

fn exists(server: &RedisServer, key: &str) -> bool {
    redis::cmd("EXISTS").arg(key).query(&mut server.admin()).unwrap()
}

fn kinds(client: &LockClient, name: &str) -> Vec<RedisLock> {
    let (read, write) = (format!("{name}:read"), format!("{name}:write"));
    vec![
        client.get_lock(format!("{name}:lock")),
        RedisLock::clone(&client.get_fenced_lock(format!("{name}:fenced"))),
        RedisLock::clone(&client.get_fair_lock(format!("{name}:fair"))),
        RedisLock::clone(client.get_read_write_lock(&read).read()),
        RedisLock::clone(client.get_read_write_lock(&write).write()),
        client.get_token_lock(format!("{name}:token")),
    ]
}

test_on!(a_grant_on_too_few_replicas_is_undone, Servers::start(1), |servers| {
    let client = servers.options().require_replicas(2, ACK_TIMEOUT).build().unwrap();
    for lock in &kinds(&client, "short") {
        let begun = now();
        let error = lock.try_lock().unwrap_err();
        assert!(begun.elapsed() >= ACK_TIMEOUT);
        within(begun, ACK_TIMEOUT + LATE, "being refused");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.is_retryable() && !error.outcome_unknown(), "{error:?}");
        assert!(error.to_string().contains(" of 2 replicas"), "{error}");
        assert!(!exists(&servers.master, lock.name()), "{} was left behind", lock.name());
        let begun = now();
        assert!(lock.try_lock_for(ms(400)).is_err());
        within(begun, ms(400) + ACK_TIMEOUT + LATE, "a wait that ends without replicas");
    }
});

/// From Redis 7.2 on, WAIT returns at once if its connection wrote nothing, so the client writes first.
#[test]
fn no_server_version_grants_while_the_required_replica_is_stopped() {
    for binary in matrix() {
        let servers = Servers::start_of(binary, 1, &[]);
        let client = servers.options().require_replicas(1, ACK_TIMEOUT).build().unwrap();
        let names: Vec<String> = (0..8).map(|number| format!("stopped:{number}")).collect();
        let all_at_once = || {
            let attempt = |name: &String| client.get_lock(name).try_lock();
            std::thread::scope(|scope| {
                let calls: Vec<_> = names.iter().map(|name| scope.spawn(move || attempt(name))).collect();
                calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
            })
        };
        client.get_lock("known").lock().unwrap();
        servers.replicas[0].stop();
        servers.master_says(&["SCRIPT", "FLUSH"]);
        for outcome in all_at_once() {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{}: {error}", binary.name);
            assert!(error.to_string().contains(" of 1 replicas"), "{}: {error}", binary.name);
            assert!(!error.outcome_unknown(), "{}: {error:?}", binary.name);
        }
        names.iter().for_each(|name| assert!(!exists(&servers.master, name), "{}: {name}", binary.name));
        servers.replicas[0].cont();
        assert!(eventually(LONG, || have_all(&servers.master, 1)));
        for (outcome, name) in all_at_once().into_iter().zip(&names) {
            assert!(outcome.unwrap(), "{}: {name}", binary.name);
            assert!(exists(&servers.replicas[0], name), "{}: {name}", binary.name);
        }
    }
}

test_on!(a_try_on_a_busy_lock_waits_for_no_replica, Servers::start(1), |servers| {
    let client = servers.options().require_replicas(1, ms(2000)).build().unwrap();
    let other = servers.options().build().unwrap();
    let held = other.get_lock("busy").acquire().unwrap();
    servers.replicas[0].stop();
    let begun = now();
    assert!(!client.get_lock("busy").try_lock().unwrap());
    within(begun, ms(1000), "an answer of busy");
    drop(held);
});

test_on!(a_lock_handed_over_locally_is_on_the_replica, Servers::start(1), |servers| {
    let client = servers.options().require_replicas(1, ms(2000)).build().unwrap();
    let replica = &servers.replicas[0];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let lock = client.get_lock("handed");
                for _ in 0..50 {
                    let guard = lock.acquire().unwrap();
                    let (name, owner) = (lock.name(), guard.owner().to_string());
                    let on_replica: bool =
                        redis::cmd("HEXISTS").arg(name).arg(owner).query(&mut replica.admin()).unwrap();
                    assert!(on_replica);
                }
            });
        }
    });
});

/// When the call returns, a durable grant is on the server's disk, and if required on a replica's.
#[test]
fn durable_grants_wait_for_the_append_only_file() {
    for binary in matrix() {
        let on = ["appendonly yes", "appendfsync always"];
        let servers = Servers::start_of(binary, 1, &on);
        let build = |local, replicas| servers.options().durable(local, replicas).build();
        if !binary.is_valkey() && binary.version() < (7, 2, 0) {
            fails_saying(build(1, 0), ErrorKind::Unsupported, "Redis 7.2");
            continue;
        }
        let client = build(1, 0).unwrap();
        for lock in kinds(&client, "durable") {
            assert!(lock.try_lock().unwrap(), "{}", lock.name());
            lock.unlock().unwrap();
        }
        // The replica writes no append-only file, so it acknowledges no grant as durable.
        let error = build(1, 1).unwrap().get_lock("durable").try_lock().unwrap_err();
        assert!(error.to_string().contains("0 of 1 of its replicas"), "{error}");
        assert_eq!((error.kind(), error.outcome_unknown()), (ErrorKind::Busy, false));
        assert!(!exists(&servers.master, "durable"));
        let mut replica = servers.replicas[0].admin();
        redis::cmd("CONFIG").arg(&["SET", "appendonly", "yes"]).exec(&mut replica).unwrap();
        let both = build(1, 1).unwrap().get_lock("durable");
        assert!(eventually(LONG, || both.try_lock().is_ok_and(|is_granted| is_granted)));
        servers.master_says(&["CONFIG", "SET", "appendonly", "no"]);
        fails_saying(client.get_lock("durable:off").try_lock(), ErrorKind::Unsupported, "append-only file");
        assert!(!exists(&servers.master, "durable:off"));
    }
}

#[test]
fn with_sentinels_a_grant_waits_for_one_replica_by_default() {
    alone_within(LIMIT * 4, || {
        let Some(binary) = default_server() else { return };
        let set = SentinelSet::start(&binary);
        let (events, told) = unbounded();
        let build = || LockClient::builder().url(set.url()).command_timeout(ms(900));
        let client = build().observer(ReplicaEvents(events)).build().unwrap();
        let careless = build().without_replicas().build().unwrap();
        let master = set.master();
        for lock in kinds(&client, "default") {
            assert!(lock.try_lock().unwrap());
            let has = |replica: &RedisServer| exists(replica, lock.name());
            assert!(set.replicas(master).any(has), "{}", lock.name());
            lock.unlock().unwrap();
        }
        set.replicas(master).for_each(RedisServer::stop);
        let lock = client.get_lock("stopped");
        let error = lock.try_lock().unwrap_err();
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        assert!(error.to_string().contains("without_replicas()"), "{error}");
        assert!(careless.get_lock("stopped").try_lock().unwrap());
        careless.get_lock("stopped").unlock().unwrap();
        assert!(told.is_empty());
        // The master drops replicas that do not answer. Without replicas a grant waits for none.
        let alone = || lock.try_lock().is_ok_and(|granted| granted);
        assert!(eventually(LONG, alone), "the master has replicas still");
        lock.unlock().unwrap();
        (0..20).for_each(|_| drop(lock.acquire().unwrap()));
        assert_eq!(told.recv_timeout(LONG), Ok(false));
        set.replicas(master).for_each(RedisServer::cont);
        let is_back = || {
            drop(lock.acquire());
            !told.is_empty()
        };
        assert!(eventually(LONG, is_back), "the return of the replicas was not reported");
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [true], "each change is reported once");
    });
}

struct ReplicaEvents(Sender<bool>);

impl Observer for ReplicaEvents {
    fn event(&self, event: &Event<'_>) {
        if let Event::NoReplica { .. } | Event::ReplicaBack { .. } = event {
            self.0.send(matches!(event, Event::ReplicaBack { .. })).unwrap();
        }
    }
}
