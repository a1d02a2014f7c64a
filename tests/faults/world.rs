//! Runs each test in a process with a server and a proxy, and checks at its end that nothing remains.

use std::collections::BTreeMap;

use leasehold::Owner;
use redis::FromRedisValue;

use crate::support::channel;
use crate::support::epilogue::{Baseline, assert_every_hash_has_a_ttl, not_given_back, threads};
use crate::support::observer::Seen;
use crate::support::prelude::*;
use crate::support::proxy::{Command, Do, Fault, Proxy, Then, Which};
use crate::support::server::{Builder, RedisServer, default_server};

/// L, R, T and P of `docs/guarantees.md`: lease, time between renewals, command time-out, safety poll.
pub(crate) const L: Duration = ms(1500);
pub(crate) const R: Duration = ms(500);
pub(crate) const T: Duration = ms(400);
pub(crate) const P: Duration = ms(1200);
/// A lease that outlasts a failed renewal and its repetition, also on a busy machine.
pub(crate) const KEPT: Duration = ms(6000);
pub(crate) const PATIENCE: Duration = ms(3000);
/// The connect time-out. It is long, because no promise depends on it.
pub(crate) const CONNECT: Duration = ms(15_000);

/// The prefix of keys that a test keeps beside its locks.
pub(crate) const OWN: &str = "test:";

pub(crate) struct World {
    pub(crate) proxy: Proxy,
    pub(crate) server: RedisServer,
}

macro_rules! scenario {
    ($name:ident, |$world:ident| $body:expr) => {
        #[test]
        fn $name() {
            crate::world::scenario(|$world: &mut crate::world::World| $body);
        }
    };
}

#[track_caller]
pub(crate) fn scenario(body: impl FnOnce(&mut World)) {
    scenario_on(|builder| builder, body);
}

#[track_caller]
pub(crate) fn scenario_on(configure: impl FnOnce(Builder) -> Builder, body: impl FnOnce(&mut World)) {
    alone(|| {
        let Some(binary) = default_server() else { return };
        play(configure(RedisServer::builder(&binary)).start(), body);
    });
}

/// Runs `body` with this server, and then checks that nothing remains. Call it within [`alone`].
pub(crate) fn play(server: RedisServer, body: impl FnOnce(&mut World)) {
    play_with_leases(2 * L, server, body);
}

/// As [`play`], for tests in which a late request may acquire a lock, with a lease of at most `longest`.
pub(crate) fn play_with_leases(longest: Duration, server: RedisServer, body: impl FnOnce(&mut World)) {
    watch_for_stalls();
    let mut world = World { proxy: Proxy::before(&server), server };
    world.warm_up();
    assert!(eventually(LONG, || threads().is_none_or(|threads| threads.is_empty())), "{:?}", threads());
    let baseline = Baseline::take(&world.server).alone();
    body(&mut world);
    // The client itself must close its connections: check that before the proxy closes any.
    let mut open = 0;
    let closed = eventually(LONG, || {
        open = world.open_connections();
        open == 0
    });
    assert!(closed, "{open} connections are still open, threads {:?}", threads());
    world.proxy.kill(Which::All, Then::Close);
    baseline.assert_clean(&world.server);
    let mut left = Vec::new();
    let clean = eventually(longest + SLACK, || {
        assert_every_hash_has_a_ttl(&world.server);
        left = world.lock_keys();
        left.retain(|key| !world.is_expiring_queue(key));
        left.is_empty()
    });
    assert!(clean, "keys that outlive their lease: {left:?}");
}

pub(crate) const ENTRIES: &str = "leasehold_client:";

impl World {
    /// Loads the scripts of plain, token and fenced locks, so that no fault hits a call answered NOSCRIPT.
    fn warm_up(&self) {
        let Ok(client) = LockClient::builder().url(self.server.unix_url()).lease(ms(300)).build() else {
            return;
        };
        let locks = [client.get_lock("warm-up"), client.get_token_lock("warm-up-token")];
        // On a busy machine this short lease may expire before its renewal, so a failed round is repeated.
        let renewed = eventually(LONG, || {
            let guards = [locks[0].acquire().unwrap(), locks[1].acquire().unwrap()];
            let least = || guards[0].remaining().min(guards[1].remaining());
            let mut last = least();
            let renewed = eventually(ms(300), || least() > std::mem::replace(&mut last, least()));
            renewed && guards.into_iter().all(|guard| guard.unlock().is_ok())
        });
        assert!(renewed, "no renewal");
        for lock in &locks {
            assert!(!lock.is_locked().unwrap());
            assert!(!lock.force_unlock().unwrap());
        }
        client.get_fenced_lock("warm-up").acquire_with(&leased(LONG)).unwrap().unwrap().unlock().unwrap();
        self.does(&["DEL", "redisson_lock_token:{warm-up}"]);
    }

    /// The number of connections to the proxy whose two ends are open.
    pub(crate) fn open_connections(&self) -> usize {
        let Ok(table) = std::fs::read_to_string("/proc/self/net/tcp") else { return 0 };
        let (port, established) = (format!(":{:04X}", self.proxy.port()), "01");
        let is_open = |line: &&str| {
            let mut fields = line.split_whitespace().skip(2);
            fields.next().is_some_and(|remote| remote.ends_with(&port)) && fields.next() == Some(established)
        };
        table.lines().filter(is_open).count()
    }

    pub(crate) fn builder(&self) -> ClientBuilder {
        self.builder_to(&self.proxy.url())
    }

    pub(crate) fn builder_to(&self, url: &str) -> ClientBuilder {
        LockClient::builder()
            .url(url)
            .lease(L)
            .command_timeout(T)
            .connect_timeout(CONNECT)
            .retry_timeout(PATIENCE)
            .unsubscribe_delay(Duration::ZERO)
            .pool_size(4)
    }

    pub(crate) fn client(&self) -> LockClient {
        self.builder().build().unwrap()
    }

    /// Pairs each fault with a new client and a new lock.
    pub(crate) fn each(
        &self,
        faults: impl IntoIterator<Item = Do>,
        label: &str,
    ) -> impl Iterator<Item = (Do, LockClient, RedisLock)> {
        faults.into_iter().enumerate().map(move |(number, how)| {
            let client = self.client();
            let lock = client.get_lock(format!("{label}-{number}"));
            (how, client, lock)
        })
    }

    pub(crate) fn watched(&self) -> (LockClient, Seen) {
        let seen = Seen::default();
        (self.builder().observer(seen.clone()).build().unwrap(), seen)
    }

    pub(crate) fn watched_keeping(&self) -> (LockClient, Seen) {
        let seen = Seen::default();
        (self.builder().lease(KEPT).observer(seen.clone()).build().unwrap(), seen)
    }

    pub(crate) fn direct(&self) -> LockClient {
        self.builder_to(&self.server.url()).build().unwrap()
    }

    #[track_caller]
    pub(crate) fn run<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.server.admin()).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    #[track_caller]
    pub(crate) fn does(&self, words: &[&str]) {
        self.run::<redis::Value>(words);
    }

    pub(crate) fn fields(&self, name: &str) -> BTreeMap<String, String> {
        self.run(&["HGETALL", name])
    }

    /// Panics unless one owner of this client holds the lock, with this count and an expiry. The owner need
    /// not be the thread's `current_owner`, which is the owner of the thread's next hold.
    #[track_caller]
    pub(crate) fn assert_held_by(&self, name: &str, client: &LockClient, count: u32) {
        let fields = self.fields(name);
        let is_it = |(owner, held): (&String, &String)| is_of(owner, client) && *held == count.to_string();
        assert!(fields.len() == 1 && fields.iter().all(is_it), "{fields:?}, not {count} of {}", client.id());
        assert!(self.ttl(name) > 0, "TTL {}", self.ttl(name));
    }

    #[track_caller]
    pub(crate) fn assert_held(&self, name: &str, owner: Owner, count: u32) {
        assert_eq!(self.fields(name), [(owner.to_string(), count.to_string())].into());
        assert!(self.ttl(name) > 0, "TTL {}", self.ttl(name));
    }

    #[track_caller]
    pub(crate) fn stays_held(&self, span: Duration, name: &str, owner: Owner, count: u32) {
        throughout(span, || {
            self.assert_held(name, owner, count);
            true
        });
    }

    /// Passes on the request that the fault holds back, and waits until the server has run it.
    #[track_caller]
    pub(crate) fn arrives(&self, fault: &Fault) {
        fault.wait_for(1, LONG);
        let before = self.scripts_run();
        fault.release();
        assert!(eventually(LONG, || self.scripts_run() > before), "the late request does not arrive");
    }

    /// The key's PTTL in milliseconds; -2 without a key, and -1 for a key without expiry.
    pub(crate) fn ttl(&self, name: &str) -> i64 {
        self.run(&["PTTL", name])
    }

    pub(crate) fn is_free(&self, name: &str) -> bool {
        self.run::<i64>(&["EXISTS", name]) == 0
    }

    /// All keys except fences' counters (they stay), directory entries (they expire), and the test's own.
    pub(crate) fn lock_keys(&self) -> Vec<String> {
        let keys: Vec<String> = self.run(&["KEYS", "*"]);
        let stays = |key: &String| {
            ["redisson_lock_token:", ENTRIES, OWN].iter().any(|prefix| key.starts_with(prefix))
        };
        keys.into_iter().filter(|key| !stays(key)).collect()
    }

    /// Whether the key is a wait queue that expires within a minute. Until then a queue may contain killed
    /// clients, and clients whose request to leave was lost.
    fn is_expiring_queue(&self, key: &str) -> bool {
        key.starts_with("leasehold_lock_queue:")
            && (-2..=60_000).contains(&self.run::<i64>(&["PTTL", key]))
            && self.run::<i64>(&["PTTL", key]) != -1
    }

    /// Panics unless a release frees the lock within `promised`. An expiry does not count.
    #[track_caller]
    pub(crate) fn is_given_back(&self, name: &str, promised: Duration) {
        self.are_given_back(promised, || vec![name.to_owned()]);
    }

    #[track_caller]
    pub(crate) fn all_are_given_back(&self, promised: Duration) {
        self.are_given_back(promised, || self.lock_keys());
    }

    #[track_caller]
    fn are_given_back(&self, promised: Duration, keys: impl Fn() -> Vec<String>) {
        let begun = now();
        let mut left = Vec::new();
        let given_back = eventually(promised + LONG, || {
            let keys = keys();
            let found = not_given_back(&self.server, keys.iter().map(String::as_str));
            left = found.into_iter().map(str::to_owned).collect();
            left.is_empty()
        });
        assert!(given_back, "not released: {left:?}");
        within(begun, promised, "giving it back");
    }

    #[track_caller]
    pub(crate) fn await_subscription(&self, name: &str) {
        let subscribed = || listening_clients(name, "NUMSUB", |command| self.run(command)) > 0;
        assert!(eventually(LONG, subscribed), "no client listens for {name}");
    }

    pub(crate) fn scripts_run(&self) -> u64 {
        let text: String = self.run(&["INFO", "commandstats"]);
        let calls = |line: &str| -> Option<u64> {
            let rest =
                line.strip_prefix("cmdstat_evalsha:").or_else(|| line.strip_prefix("cmdstat_eval:"))?;
            rest.strip_prefix("calls=")?.split(',').next()?.parse().ok()
        };
        text.lines().filter_map(calls).sum()
    }
}

/// Whether the owner belongs to this client. The id's fifteenth character is not compared, because it changes
/// when the client may no longer use the wait queue.
fn is_of(owner: &str, client: &LockClient) -> bool {
    let id = client.id().to_string();
    owner.get(..14) == id.get(..14) && owner.get(15..36) == id.get(15..) && owner.get(36..37) == Some(":")
}

#[track_caller]
pub(crate) fn await_renewal(guard: &Guard) {
    crate::support::await_renewal(|| guard.remaining());
    guard.check().unwrap();
}

pub(crate) fn about(name: &str) -> impl Fn(&Command) -> bool + Send + use<> + 'static {
    let name = name.to_owned();
    move |command| command.is_script() && command.contains(&name)
}

/// How a connection may end after a fault.
pub(crate) const ENDS: [Then; 3] = [Then::Silent, Then::Close, Then::Reset];

/// All ways to lose a reply, whole or in part, each with all ways in which the connection may end.
pub(crate) fn ways() -> Vec<Do> {
    ENDS.into_iter().flat_map(|then| [Do::SwallowReply(then), Do::CutReply(3, then)]).collect()
}

pub(crate) fn releases(name: &str) -> impl Fn(&Command) -> bool + Send + use<> + 'static {
    let channel = channel(name);
    move |command| command.is_script() && command.contains(&channel)
}

pub(crate) fn no_releases(name: &str) -> impl Fn(&Command) -> bool + Send + use<> + 'static {
    let (about, releases) = (about(name), releases(name));
    move |command| about(command) && !releases(command)
}
