//! What a store must offer to be put through the contracts, and the stores that are.

use std::sync::OnceLock;
use std::time::Duration;

use leasehold::{ClientBuilder, LockClient, MemoryStore, NamedLock, Result};

use super::tools::watch_for_stalls;
pub(crate) use crate::support::fresh;
use crate::support::server::{RedisServer, matrix};

/// What a kind of lock can do on a store. Contracts assert both the yes and the no.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    /// A thread that holds it may take it again.
    pub(crate) reentrant: bool,
    /// Its grants have a fence.
    pub(crate) fenced: bool,
    /// A release wakes waiters in other clients; otherwise they poll, at most this far apart.
    pub(crate) wakes: bool,
    pub(crate) polls_within: Duration,
}

/// A kind of lock: how it is made from a client, and what it can do.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) label: &'static str,
    pub(crate) make: fn(&LockClient, &str) -> NamedLock,
    pub(crate) traits: Traits,
}

type Open = Box<dyn Fn(ClientBuilder) -> Result<LockClient> + Send + Sync>;

/// Kills a place where locks are kept, and starts it again.
type Restart = Box<dyn FnOnce() -> Store>;

/// A store under test: any number of clients on one place where locks are kept.
pub(crate) struct Store {
    pub(crate) kinds: [Kind; 3],
    /// What is held is still held after the place was killed and started again.
    pub(crate) survives_restart: bool,
    /// Makes a place of its own, and what kills and starts that again.
    pub(crate) restartable: fn() -> (Store, Restart),
    open: Open,
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

    pub(crate) fn build(&self, options: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Result<LockClient> {
        (self.open)(options(LockClient::builder().lease(Duration::from_secs(20))))
    }
}

/// Both stores so far can do the same.
fn usual_kinds() -> [Kind; 3] {
    watch_for_stalls(); // from a test's beginning
    let poll = Duration::from_millis(1_200);
    let mutex = Traits { reentrant: true, fenced: false, wakes: true, polls_within: poll };
    let fenced = Traits { fenced: true, ..mutex };
    let token =
        Traits { reentrant: false, fenced: false, wakes: false, polls_within: Duration::from_millis(100) };
    [
        Kind { label: "lock", make: |client, name| client.lock(name), traits: mutex },
        Kind {
            label: "fenced_lock",
            make: |client, name| NamedLock::clone(&client.fenced_lock(name)),
            traits: fenced,
        },
        Kind { label: "token_lock", make: |client, name| client.token_lock(name), traits: token },
    ]
}

/// The memory store.
pub(crate) fn memory() -> Store {
    let store = MemoryStore::new();
    Store {
        kinds: usual_kinds(),
        survives_restart: false,
        restartable: || (memory(), Box::new(memory)),
        open: Box::new(move |options| options.build_in_memory(&store)),
    }
}

/// A Redis that this program started for itself; all its tests share it, by names of their own. It ends with the
/// program.
pub(crate) fn redis() -> Option<Store> {
    static SERVER: OnceLock<Option<RedisServer>> = OnceLock::new();
    let server = SERVER.get_or_init(|| Some(RedisServer::builder(matrix().first()?).start())).as_ref();
    if server.is_none() {
        crate::support::missing("no redis-server and no valkey-server");
    }
    let url = server?.url();
    Some(redis_with(Box::new(move |options| options.url(&url).build())))
}

fn redis_with(open: Open) -> Store {
    Store {
        kinds: usual_kinds(),
        survives_restart: true,
        restartable: || {
            // What it acknowledged is in its file, so it is there again after a kill.
            let mut server = RedisServer::builder(&matrix()[0]).append_only("always").start();
            let url = server.url();
            let before = redis_with(Box::new(move |options| options.url(&url).build()));
            let restart = move || {
                server.restart();
                redis_with(Box::new(move |options| options.url(&server.url()).build()))
            };
            (before, Box::new(restart))
        },
        open,
    }
}
