//! Stores under test, what they declare about themselves, and the code that runs a contract on a store.

use leasehold::Result;

use crate::support::prelude::*;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    pub(crate) reentrant: bool,
    pub(crate) fenced: bool,
    /// Whether waiters are served in order of arrival, whichever client they use.
    pub(crate) fair: bool,
    /// Whether a release notifies waiters in other clients. If not, they poll at least every `polls_within`.
    pub(crate) wakes: bool,
    pub(crate) polls_within: Duration,
}

#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) label: &'static str,
    pub(crate) make: fn(&LockClient, &str) -> RedisLock,
    pub(crate) traits: Traits,
}

pub(crate) type Open = Box<dyn Fn(ClientBuilder) -> Result<LockClient> + Send + Sync>;

/// A feature that a contract needs and that some stores lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Fair,
    ReadWrite,
    RunOnce,
    Token,
    Counting,
    Directory,
    Keeping,
    Hearing,
}

impl Need {
    /// Runs the contract on a store; without a server for the store the test is skipped, or fails in CI.
    pub(crate) fn on(self, store: fn() -> Option<Store>, contract: fn(&Store)) {
        if let Some(store) = store() {
            self.of(&store, contract);
        }
    }

    /// Runs the contract. If the store lacks the feature, asserts instead that a request for it is refused.
    fn of(self, store: &Store, contract: fn(&Store)) {
        if !store.lacks.contains(&self) {
            return contract(store);
        }
        let client = store.client();
        let refused = match self {
            Need::Nothing => panic!("a store cannot lack `Nothing`"),
            Need::Fair => client.get_fair_lock("lacking").try_lock().map(drop),
            Need::ReadWrite => client.get_read_write_lock("lacking").read().try_lock().map(drop),
            Need::Token => client.get_token_lock("lacking").try_lock().map(drop),
            Need::Keeping => client.lock_builder("lacking").cached().build().try_lock().map(drop),
            Need::Hearing => {
                let guard = client.get_lock("lacking").acquire().unwrap();
                fails(guard.is_contended(), ErrorKind::Unsupported);
                guard.on_contended(|| panic!("a callback came though the store supports none"))
            }
            Need::Counting => client.get_semaphore("lacking").try_acquire(1).map(drop),
            Need::Directory => {
                fails(client.list("*").next().unwrap(), ErrorKind::Unsupported);
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

pub(crate) type Restart = Box<dyn FnOnce() -> Store>;

/// Ends the sessions of all clients, on ZooKeeper only the first client's, as a broken network would.
pub(crate) type EndSessions = Box<dyn FnOnce()>;

/// What happens to a hold when the sessions or connections of its client end.
#[derive(Clone, Copy)]
pub(crate) enum Sessions {
    /// The store has no sessions.
    None,
    /// The hold stays, because the client reconnects. The function makes a store, and a function that ends
    /// its sessions.
    Outlived(fn() -> (Store, EndSessions)),
    /// The hold is lost, and its holder is notified. The function is as for `Outlived`.
    #[cfg(feature = "zookeeper")]
    Bind(fn() -> (Store, EndSessions)),
}

/// A store under test: how to make its clients, and what it declares about itself.
pub(crate) struct Store {
    pub(crate) kinds: Vec<Kind>,
    /// How long after a lease's end the lock may still be busy; zero if the store ends leases exactly.
    pub(crate) late: Duration,
    /// Whether a hold outlasts a kill and a restart of the store's server.
    pub(crate) survives_restart: bool,
    /// Makes a separate store, and a function that kills and restarts its server.
    pub(crate) restartable: fn() -> (Store, Restart),
    pub(crate) sessions: Sessions,
    pub(crate) lacks: &'static [Need],
    /// Whether the lock's row or node in the store says who holds it, even without entries in the directory.
    pub(crate) rows_say_who: bool,
    pub(crate) open: Open,
}

impl Store {
    pub(crate) fn client(&self) -> LockClient {
        self.client_with(|options| options)
    }

    pub(crate) fn client_with_lease(&self, lease: Duration) -> LockClient {
        self.client_with(|options| options.lease(lease))
    }

    pub(crate) fn client_with(&self, options: impl FnOnce(ClientBuilder) -> ClientBuilder) -> LockClient {
        self.build(options).expect("a client can be made")
    }

    pub(crate) fn clients<const N: usize>(&self, label: &str) -> (String, [LockClient; N]) {
        (fresh(label), [(); N].map(|()| self.client()))
    }

    /// Each kind of lock of this store, with a new name and `N` clients.
    pub(crate) fn each<const N: usize>(&self) -> impl Iterator<Item = (&Kind, String, [LockClient; N])> {
        self.kinds.iter().map(|kind| {
            let (name, clients) = self.clients(kind.label);
            (kind, name, clients)
        })
    }

    /// Two handles of one lock with a new name, of two clients.
    pub(crate) fn two<T>(&self, label: &str, make: impl Fn(&LockClient, &str) -> T) -> [T; 2] {
        let name = fresh(label);
        [(); 2].map(|()| make(&self.client(), &name))
    }

    pub(crate) fn freed_within(&self, lease: Duration) -> Duration {
        lease + self.late
    }

    pub(crate) fn build(&self, options: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Result<LockClient> {
        // The time-outs are long, because a late answer on a busy machine must not fail a contract.
        let patient = Duration::from_secs(15);
        let builder = LockClient::builder().lease(Duration::from_secs(20));
        let builder = builder.command_timeout(patient).connect_timeout(patient);
        (self.open)(options(builder))
    }
}

/// The kinds of lock of Redis and of the memory store. Waiters for spin and token locks poll; the store
/// notifies the waiters for all others.
pub(crate) fn usual_kinds() -> Vec<Kind> {
    kinds(true, Duration::from_millis(1_200), (false, Duration::from_millis(100)))
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn kinds_alike(wakes: bool, polls_within: Duration) -> Vec<Kind> {
    let mut kinds = kinds(wakes, polls_within, (wakes, polls_within));
    kinds.retain(|kind| ["lock", "fenced_lock", "token_lock"].contains(&kind.label));
    kinds
}

fn kinds(wakes: bool, polls_within: Duration, token: (bool, Duration)) -> Vec<Kind> {
    watch_for_stalls(); // counts stalls from the beginning of the test
    let mutex = Traits { reentrant: true, fenced: false, fair: false, wakes, polls_within };
    let fenced = Traits { fenced: true, ..mutex };
    let fair = Traits { fair: true, ..mutex };
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

/// The kinds of a store in which waiters queue: all are fair, and token and spin locks are missing.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) fn queueing_kinds() -> Vec<Kind> {
    let mut kinds = usual_kinds();
    kinds.retain(|kind| !["token_lock", "spin_lock"].contains(&kind.label));
    kinds.iter_mut().for_each(|kind| kind.traits.fair = true);
    kinds
}
