//! The things that a store must offer to be put through the contracts.

use std::time::Duration;

use leasehold::{ClientBuilder, ErrorKind, LockClient, RedisLock, Result};

pub(crate) use crate::support::fresh;
use crate::support::watch_for_stalls;

/// Capabilities of a kind of lock on a store. Contracts assert both the yes and the no.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    /// A thread that holds it may take it again.
    pub(crate) reentrant: bool,
    /// Its grants have a fence.
    pub(crate) fenced: bool,
    /// A waiter is served before all that come later, of any client.
    pub(crate) fair: bool,
    /// A release wakes waiters in other clients; otherwise they poll, at most this far apart.
    pub(crate) wakes: bool,
    pub(crate) polls_within: Duration,
}

/// A kind of lock: how it is made from a client, and what it can do.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) label: &'static str,
    pub(crate) make: fn(&LockClient, &str) -> RedisLock,
    pub(crate) traits: Traits,
}

pub(crate) type Open = Box<dyn Fn(ClientBuilder) -> Result<LockClient> + Send + Sync>;

/// The feature that a contract is about, if not every store has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Fair,
    ReadWrite,
    RunOnce,
    Token,
    Counting,
    /// A directory of clients, and lists of locks.
    Directory,
    /// Locks that a client keeps until others ask for them.
    Keeping,
}

impl Need {
    /// Runs the contract on a store. Without its server the test is skipped, loudly, and fails in CI.
    pub(crate) fn on(self, store: fn() -> Option<Store>, contract: fn(&Store)) {
        if let Some(store) = store() {
            self.of(&store, contract);
        }
    }

    /// Runs the contract; on a store that lacks this, shows instead that it says so before anything happens.
    fn of(self, store: &Store, contract: fn(&Store)) {
        if !store.lacks.contains(&self) {
            return contract(store);
        }
        let client = store.client();
        let refused = match self {
            Need::Nothing => panic!("no store lacks nothing"),
            Need::Fair => client.get_fair_lock("lacking").try_lock().map(drop),
            Need::ReadWrite => client.get_read_write_lock("lacking").read().try_lock().map(drop),
            Need::Token => client.get_token_lock("lacking").try_lock().map(drop),
            Need::Keeping => client.lock_builder("lacking").cached().build().try_lock().map(drop),
            Need::Counting => client.get_semaphore("lacking").try_acquire(1).map(drop),
            Need::Directory => {
                assert_eq!(client.list("*").next().unwrap().unwrap_err().kind(), ErrorKind::Unsupported);
                client.clients().next().unwrap().map(drop)
            }
            Need::RunOnce => {
                let second = Duration::from_secs(1);
                client.run_once("lacking", second, second, |_| panic!("the job was run")).map(drop)
            }
        };
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported, "{self:?}");
    }
}

/// Kills a place where locks are kept, and starts it again.
pub(crate) type Restart = Box<dyn FnOnce() -> Store>;

/// Ends the sessions of all clients, as an operator or a broken network does.
pub(crate) type EndSessions = Box<dyn FnOnce()>;

/// The fate of a hold when its client's session, or connections, are ended.
#[derive(Clone, Copy)]
pub(crate) enum Sessions {
    /// There are none that could be ended.
    None,
    /// It is kept: the client comes back over others. Makes a place of its own, and what ends the sessions
    /// there.
    Outlived(fn() -> (Store, EndSessions)),
    /// It is lost, which its holder is told.
    #[cfg(feature = "zookeeper")]
    Bind(fn() -> (Store, EndSessions)),
}

/// A store under test: any number of clients on one place where locks are kept.
pub(crate) struct Store {
    pub(crate) kinds: Vec<Kind>,
    /// For how long after its end a lease that nobody renews may still hold a lock; zero where leases are
    /// exact.
    pub(crate) late: Duration,
    /// A hold is still there after the place was killed and started again.
    pub(crate) survives_restart: bool,
    /// Makes a place of its own, and what kills and starts that again.
    pub(crate) restartable: fn() -> (Store, Restart),
    pub(crate) sessions: Sessions,
    /// Features that this store lacks, and says so.
    pub(crate) lacks: &'static [Need],
    /// Whether each lock's row or node says where its holder is, directory or not.
    pub(crate) rows_say_who: bool,
    pub(crate) open: Open,
}

impl Store {
    /// A client on this store with a lease that no test outlasts by accident.
    pub(crate) fn client(&self) -> LockClient {
        self.client_with(|options| options)
    }

    /// A client whose renewed holds have this lease.
    pub(crate) fn client_with_lease(&self, lease: Duration) -> LockClient {
        self.client_with(|options| options.lease(lease))
    }

    pub(crate) fn client_with(&self, options: impl FnOnce(ClientBuilder) -> ClientBuilder) -> LockClient {
        self.build(options).expect("a client can be made")
    }

    /// Within which time a hold with this lease is over in the store.
    pub(crate) fn freed_within(&self, lease: Duration) -> Duration {
        lease + self.late
    }

    pub(crate) fn build(&self, options: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Result<LockClient> {
        // An answer that a busy machine makes late is no fault of a lock, and a late connection none either:
        // contracts about time-outs name their own.
        let patient = Duration::from_secs(15);
        let builder = LockClient::builder().lease(Duration::from_secs(20));
        let builder = builder.command_timeout(patient).connect_timeout(patient);
        (self.open)(options(builder))
    }
}

/// The kinds of Redis and the memory store: token locks poll, the others are woken.
pub(crate) fn usual_kinds() -> Vec<Kind> {
    kinds(true, Duration::from_millis(1_200), (false, Duration::from_millis(100)))
}

/// The kinds of databases: all wait in the same way, and none keeps the order of arrival.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn kinds_alike(wakes: bool, polls_within: Duration) -> Vec<Kind> {
    let mut kinds = kinds(wakes, polls_within, (wakes, polls_within));
    kinds.retain(|kind| ["lock", "fenced_lock", "token_lock"].contains(&kind.label));
    kinds
}

fn kinds(wakes: bool, polls_within: Duration, token: (bool, Duration)) -> Vec<Kind> {
    watch_for_stalls(); // from a test's beginning
    let mutex = Traits { reentrant: true, fenced: false, fair: false, wakes, polls_within };
    let fenced = Traits { fenced: true, ..mutex };
    let fair = Traits { fair: true, ..mutex };
    // The longest of its sleeps.
    let spin = Traits { wakes: false, polls_within: Duration::from_millis(128), ..mutex };
    let token = Traits { reentrant: false, wakes: token.0, polls_within: token.1, ..mutex };
    vec![
        Kind { label: "lock", make: |client, name| client.get_lock(name), traits: mutex },
        Kind {
            label: "fenced_lock",
            make: |client, name| RedisLock::clone(&client.get_fenced_lock(name)),
            traits: fenced,
        },
        Kind { label: "fair_lock", make: |client, name| client.get_fair_lock(name), traits: fair },
        Kind {
            label: "write_lock",
            make: |client, name| client.get_read_write_lock(name).write().clone(),
            traits: mutex,
        },
        Kind { label: "spin_lock", make: |client, name| client.get_spin_lock(name), traits: spin },
        Kind { label: "token_lock", make: |client, name| client.get_token_lock(name), traits: token },
    ]
}

/// The kinds of a store that has a queue of its own for all its locks; it has no token locks.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) fn queueing_kinds() -> Vec<Kind> {
    let mut kinds = usual_kinds();
    kinds.retain(|kind| !["token_lock", "spin_lock"].contains(&kind.label));
    kinds.iter_mut().for_each(|kind| kind.traits.fair = true);
    kinds
}
