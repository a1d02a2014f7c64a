//! Every error that a user can provoke, with its text, as `docs/errors.txt` lists.
//!
//! `LEASEHOLD_BLESS=1 cargo test --all-features --test meta errors` rewrites the list. Read its diff as a new
//! user: does the text say what is wrong, and what to do?

use std::error::Error as _;
use std::io::{Read, Write};
use std::path::Path;

use leasehold::{Backoff, Error, Fault, MAX_NAME_LEN, Result, Ring, RingNode, fencing};

use crate::support::prelude::*;
use crate::support::talk::{Server, answering, talking};

struct List {
    text: String,
    /// Texts that vary between runs, and what replaces them.
    varying: Vec<(String, &'static str)>,
}

impl List {
    fn section(&mut self, title: &str) {
        self.text.push_str(&format!("\n## {title}\n\n"));
    }

    #[track_caller]
    fn add<T>(&mut self, call: &str, result: Result<T>) {
        let error = result.err().unwrap_or_else(|| panic!("{call} did not fail"));
        self.add_error(call, &error);
    }

    fn add_error(&mut self, call: &str, error: &Error) {
        let text = self.plain(&error.to_string());
        self.text.push_str(&format!("{call}\n    {:?}: {text}\n", error.kind()));
    }

    fn plain(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (varies, shown) in &self.varying {
            text = text.replace(varies, shown);
        }
        // An owner is `UUID:NUMBER`, and differs in each run.
        let is_owner =
            |word: &str| word.len() >= 36 && word.bytes().take(36).filter(|byte| *byte == b'-').count() == 4;
        let words = text.split(' ').map(|word| if is_owner(word) { "OWNER" } else { word });
        words.collect::<Vec<_>>().join(" ")
    }
}

const MS: Duration = Duration::from_millis(1);

/// Options with time-outs that suffice for every answer and refusal on a busy machine.
fn options() -> ClientBuilder {
    LockClient::builder().connect_timeout(LONG).command_timeout(LONG).retry_timeout(Duration::ZERO)
}

fn hasty() -> ClientBuilder {
    options().connect_timeout(200 * MS).command_timeout(200 * MS)
}

fn making_a_client(list: &mut List) {
    list.section("Making a client");
    let url = || options().url("redis://127.0.0.1:6379");
    let mut add =
        |call: &str, result: Result<LockClient>| list.add(&format!("ClientBuilder::{call}"), result);
    add("build() without url()", options().build());
    add("lease(0)", url().lease(Duration::ZERO).build());
    add("lease(99 ms)", url().lease(99 * MS).build());
    add("lease(101 years)", url().lease(Duration::from_secs(101 * 366 * 24 * 3600)).build());
    add("command_timeout(0)", url().command_timeout(Duration::ZERO).build());
    add("connect_timeout(0)", url().connect_timeout(Duration::ZERO).build());
    add("connect_timeout(Duration::MAX)", url().connect_timeout(Duration::MAX).build());
    add("pool_size(0)", url().pool_size(0).build());
    add("pool_size(u32::MAX)", url().pool_size(u32::MAX).build());
    add("client_name(\"my app\")", url().client_name("my app").build());
    add("database(-1)", url().database(-1).build());
    add("require_replicas(0, 100 ms)", url().require_replicas(0, 100 * MS).build());
    add("require_replicas(1, 0)", url().require_replicas(1, Duration::ZERO).build());
    add("durable(2, 0)", url().durable(2, 0).build());
    add("durable(0, 0)", url().durable(0, 0).build());
    add(
        "require_replicas(1, 5 s) with a command_timeout of 200 ms",
        url().command_timeout(200 * MS).require_replicas(1, 5000 * MS).build(),
    );
    add("allowed_hosts([\"cache:6379\"])", url().allowed_hosts(["cache:6379"]).build());
    add("sentinel_password(…) with a redis:// URL", url().sentinel_password("secret").build());
    add("tls_ca(…) with a redis:// URL", url().tls_ca("/no/such/file").build());
    add("tls_identity(…) with a redis:// URL", url().tls_identity("/no/such/file", "/no/such/key").build());
    let tls = || options().url("rediss://127.0.0.1:6379");
    add("tls_ca() of a missing file", tls().tls_ca("/no/such/file").build());
    add("tls_identity() of missing files", tls().tls_identity("/no/such/a", "/no/such/b").build());
    add("table(\"a b\") with a sqlite:// URL", options().url("sqlite:///tmp/x").table("a b").build());
    add("database(1) with a sqlite:// URL", options().url("sqlite:///tmp/x").database(1).build());
    add("session_locks() with a sqlite:// URL", options().url("sqlite:///tmp/x").session_locks().build());
    let two = ["redis://127.0.0.1:1", "redis://127.0.0.1:2"];
    let three = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"];
    add("redlock() with two servers", options().redlock(two).build());
    add("redlock() together with url()", url().redlock(three).build());
    add("redlock() together with ring()", options().redlock(three).ring(Ring::new(two)).build());
    add("redlock() with servers of which none can be reached", options().redlock(three).build());
    add("redlock() with postgres:// URLs", options().redlock(["postgres://a/b"; 3]).build());
    add("node_timeout() without redlock()", url().node_timeout(MS).build());
    add("node_timeout(0) with redlock()", options().redlock(three).node_timeout(Duration::ZERO).build());
    add("ring() together with url()", url().ring(Ring::new(two)).build());
    add("ring() with no node", options().ring(Ring::new(Vec::<RingNode>::new())).build());
    add("ring() with an epoch of 0", options().ring(Ring::new(two).epoch(0)).build());
    add("ring() with the same node twice", options().ring(Ring::new([two[0], two[0]])).build());
    let weightless = RingNode::new(two[0]).weight(0);
    add("ring() with a node of weight 0", options().ring(Ring::new([weightless])).build());
    let unnamed = RingNode::new(two[0]).label("");
    add("ring() with a node whose label is empty", options().ring(Ring::new([unnamed])).build());
    let lost = RingNode::new(two[0]).lost();
    add("ring() with a node that is marked lost()", options().ring(Ring::new([lost])).build());
    add("ring() with a redis-cluster:// URL", options().ring(Ring::new(["redis-cluster://a"])).build());
    add("ring() with servers of which none can be reached", options().ring(Ring::new(two)).build());
    let late = url().url("redis://127.0.0.1:1").connect_lazily().build().unwrap();
    list.add(
        "lock() of a client that connects lazily, when no server listens",
        late.get_lock("orders").lock(),
    );
    list.add(
        "LockClient::connect_lazily(\"localhost:6379\")",
        LockClient::connect_lazily("localhost:6379").map(drop),
    );
}

/// Runs this program again once for each variable, and lists the error that it prints.
fn environment(list: &mut List) {
    list.section("ClientBuilder::from_env");
    for (name, value) in [
        ("LEASEHOLD_URL", ""),
        ("LEASEHOLD_URL", "localhost:6379"),
        ("LEASEHOLD_LEASE", "30 seconds"),
        ("LEASEHOLD_LEASE", "10ms"),
        ("LEASEHOLD_COMMAND_TIMEOUT", "soon"),
        ("LEASEHOLD_CONNECT_TIMEOUT", "0s"),
        ("LEASEHOLD_RETRY_TIMEOUT", "1 minute"),
        ("LEASEHOLD_URL_FILE", "/no/such/file"),
        ("LEASEHOLD_RING", "localhost:6379"),
        ("LEASEHOLD_RING_EPOCH", "2"),
        ("LEASEHOLD_TLS_CERT", "/no/such/file"),
        ("LEASEHOLD_DATABASE", "locks"),
        ("LEASEHOLD_DIRECTORY", "maybe"),
        ("LEASEHOLD_CLUSTER_PUB_SUB", "all"),
    ] {
        let command = test_command("errors::helper_process_that_builds_a_client_from_the_environment");
        let mut again = std::process::Command::new(&command[0]);
        again.args(&command[1..]);
        let out = again.env(INSIDE, "1").env(name, value).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        let said = text.lines().find_map(|line| line.split_once(SAYS)).map(|(_, said)| said);
        let said = said.unwrap_or_else(|| panic!("{name}={value}: {text}"));
        list.text.push_str(&format!("ClientBuilder::from_env() with {name}={value:?}\n    {said}\n"));
    }
}

const INSIDE: &str = "LEASEHOLD_TEST_INSIDE";
const SAYS: &str = "it says: ";

#[test]
fn helper_process_that_builds_a_client_from_the_environment() {
    if std::env::var_os(INSIDE).is_some() {
        let error = ClientBuilder::from_env().and_then(ClientBuilder::build).unwrap_err();
        println!("{SAYS}{:?}: {error}", error.kind());
    }
}

fn faults(list: &mut List) {
    list.section("Faults of the memory store");
    let store = MemoryStore::with_clock(ManualClock::new());
    let client = LockClient::in_memory_with(&store);
    for fault in [Fault::Refused, Fault::RequestLost, Fault::AnswerLost] {
        store.fail(fault);
        list.add(
            &format!("try_lock() after MemoryStore::fail(Fault::{fault:?})"),
            client.get_lock("orders").try_lock(),
        );
    }
    store.heal();
    store.slow_down(Duration::from_secs(5));
    list.add("try_lock() after MemoryStore::slow_down(5 s)", client.get_lock("orders").try_lock());
    let elsewhere = LockClient::in_memory();
    list.add("MemoryStore::pause_client() with a client of another store", store.pause_client(&elsewhere));
}

fn urls(list: &mut List) {
    list.section("URLs");
    let urls = "\
        localhost localhost:6379 [::1]:6379 cache.example:6379 localhost:26379 localhost:5432 \
        localhost:2379 secret user:secret@localhost:6379 http://localhost:6379 redis:/// \
        redis://localhost:99999 redis://localhost:port redis://localhost/first \
        redis://user:se/cret@localhost rediss://localhost/#insecure redis-sentinel://localhost \
        redis-cluster://localhost/1 redis-cluster:// postgres:///shop postgres://user:p@ss@localhost/shop \
        postgres://localhost:port/shop postgres://localhost/shop?sslmode=maybe \
        postgres://localhost/shop?sslmode=verify-ca postgres://localhost/shop?sslcert=/no/such/file \
        postgres://localhost/shop?channel_binding=require mysql://localhost mysql://localhost:port/shop \
        mysql://localhost/shop?ssl-mode=maybe sqlite:// etcd:// etcd://:secret@localhost zk:// \
        zk://localhost:port redis://127.0.0.1:1 rediss://127.0.0.1:1 redis://host.invalid \
        redis+unix:///no/such/socket redis-sentinel://127.0.0.1:1/mymaster redis-cluster://127.0.0.1:1 \
        postgres://user@127.0.0.1:1/shop mysql://user@127.0.0.1:1/shop sqlite:///no/such/folder/file \
        etcd://127.0.0.1:1 zk://127.0.0.1:1";
    for url in urls.split(' ') {
        let mistake = match url {
            _ if url.contains("127.0.0.1:1") => ", where no server listens",
            _ if url.ends_with("=verify-ca") => ", without certificate authorities",
            _ => "",
        };
        list.add(&format!("ClientBuilder::url({url:?}){mistake}"), options().url(url).build());
    }
}

fn arguments(list: &mut List) {
    list.section("Names, leases and other arguments");
    let client = LockClient::in_memory();
    let lock = client.get_lock("orders");
    let second = 1000 * MS;
    list.add("lock() of a lock whose name is empty", client.get_lock("").lock());
    list.add(
        "lock() of a lock whose name has 64 KiB and a byte",
        client.get_lock("x".repeat(MAX_NAME_LEN + 1)).lock(),
    );
    list.add(
        "lock() of a lock whose name is that of a fair lock's queue",
        client.get_lock("redisson_lock_queue:{orders}").lock(),
    );
    list.add(
        "lock() of a lock whose name is that of a semaphore's permits",
        client.get_lock("{orders}:timeout").lock(),
    );
    list.add("lock_with_lease(0)", lock.lock_with_lease(Duration::ZERO));
    list.add("lock_with_lease(Duration::MAX)", lock.lock_with_lease(Duration::MAX));
    list.add(
        "lock() of a lock with max_hold(0)",
        client.lock_builder("orders").max_hold(Duration::ZERO).build().lock(),
    );
    let backoff = Backoff::exponential(2 * second, second);
    list.add(
        "lock() of a spin lock whose longest back-off is below its first",
        client.lock_builder("orders").spin(backoff).build().lock(),
    );
    list.add("run_once() with at_least 0", client.run_once("orders", Duration::ZERO, second, |_| ()));
    list.add(
        "run_once() with at_least 2 s and at_most 1 s",
        client.run_once("orders", 2 * second, second, |_| ()),
    );
    list.add(
        "lock() of a multi-lock without locks",
        client.get_multi_lock(Vec::<leasehold::RedisLock>::new()).lock(),
    );
    let twice = [client.get_lock("orders"), client.get_lock("orders")];
    list.add("lock() of a multi-lock that has the same lock twice", client.get_multi_lock(twice).lock());
    lock.lock().unwrap();
    list.add("Condition::notify_one() of a condition whose name is empty", lock.condition("").notify_one());
    lock.unlock().unwrap();
    list.add("Semaphore::acquire(0)", client.get_semaphore("slots").acquire(0));
    let permits = client.get_expirable_semaphore("slots");
    list.add("ExpirableSemaphore::acquire_with(1001, …)", permits.acquire_with(1001, &AcquireOptions::new()));
    list.add("Semaphore::acquire() before try_set_permits()", client.get_semaphore("slots").acquire(1));
    let leased = AcquireOptions::new().lease(second);
    list.add(
        "Semaphore::acquire_with() with a lease",
        client.get_semaphore("slots").acquire_with(1, &leased),
    );
    list.add("ExpirableSemaphore::release(\"7\")", permits.release("7"));
    list.add("ExpirableSemaphore::release_many() of no permits", permits.release_many(&Vec::<String>::new()));
    let id = "0".repeat(32);
    list.add("ExpirableSemaphore::update_lease_time(…, 0)", permits.update_lease_time(&id, Duration::ZERO));
    list.add(
        "LockClient::change_ring() of a client that uses no ring",
        client.change_ring(Ring::new(["redis://127.0.0.1"])),
    );
    let fence = client.get_fenced_lock("orders").acquire().unwrap().fencing_token().unwrap();
    list.add("fencing::write_file(\"/\", …)", fencing::write_file(Path::new("/"), fence, b""));
}

fn holding(list: &mut List) {
    list.section("Holding locks");
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let (client, other) = (LockClient::in_memory_with(&store), LockClient::in_memory_with(&store));
    let lock = client.get_lock("orders");
    list.add("unlock() of a lock that nobody holds", lock.unlock());
    let guard = other.get_lock("orders").acquire().unwrap();
    list.add("unlock() of a lock that another owner holds", lock.unlock());
    let interrupt = Interrupt::new();
    interrupt.interrupt();
    list.add(
        "lock_interruptibly() of a busy lock, when the wait is interrupted",
        lock.lock_interruptibly(&interrupt),
    );
    guard.unlock().unwrap();
    lock.lock_with_lease(1000 * MS).unwrap();
    clock.advance(2000 * MS);
    list.add("unlock() of a lock whose lease has run out", lock.unlock());
    let guard = lock.acquire_with(&leased(1000 * MS)).unwrap().unwrap();
    clock.advance(2000 * MS);
    list.add("Guard::check() after the lease has run out", guard.check());
    list.add("Guard::unlock() after the lease has run out", guard.unlock());
    let guard = lock.acquire().unwrap();
    other.get_lock("orders").force_unlock().unwrap();
    assert!(!lock.is_held_by_current_thread().unwrap());
    list.add("Guard::check() after another client's force_unlock()", guard.check());
    drop(guard);
    let most = client.lock_builder("orders").max_hold(1000 * MS).build();
    let guard = most.acquire().unwrap();
    clock.advance(2000 * MS);
    list.add("Guard::check() after the time of max_hold", guard.check());
    drop(guard);
    let strict = client.lock_builder("orders").non_reentrant().build();
    strict.lock().unwrap();
    list.add("lock() of a non_reentrant() lock that this thread holds", strict.lock());
    strict.unlock().unwrap();
    strict.lock().unwrap();
    list.add("acquire_owned() of a lock that this thread holds", lock.acquire_owned());
    strict.unlock().unwrap();
    lock.lock().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let other = lock.clone();
    let task = runtime.spawn(async move { (other.lock(), other.unlock()) });
    let (locked, unlocked) = runtime.block_on(task).unwrap();
    list.add("lock() of a lock that another tokio task of this thread holds", locked);
    list.add("unlock() of a lock that another tokio task of this thread holds", unlocked);
    lock.unlock().unwrap();
    let token = client.get_token_lock("token");
    token.lock().unwrap();
    list.add("lock() of a token lock that this thread holds", token.lock());
    list.add(
        "lock() of a plain lock whose name is that of a held token lock",
        client.get_lock("token").lock(),
    );
    token.unlock().unwrap();
    let rw = client.get_read_write_lock("ledger");
    rw.read().lock().unwrap();
    list.add("lock() of a write lock by a thread that holds the read lock", rw.write().lock());
    rw.read().unlock().unwrap();
    rw.write().lock().unwrap();
    list.add(
        "acquire_owned() of a read lock by a thread that holds the write lock",
        rw.read().acquire_owned(),
    );
    rw.write().unlock().unwrap();
    let condition = lock.condition("ready");
    list.add("Condition::notify_one() by a thread that does not hold the lock", condition.notify_one());
    let mut lost = lock.acquire_with(&leased(1000 * MS)).unwrap().unwrap();
    clock.advance(2000 * MS);
    list.add("Condition::wait() with a guard whose lease has run out", condition.wait(&mut lost));
    drop(lost);
    let mut others = client.get_lock("stock").acquire().unwrap();
    list.add("Condition::wait() with a guard of another lock", condition.wait(&mut others));
    let mut guard = lock.acquire().unwrap();
    let inner = lock.acquire().unwrap();
    list.add("Condition::wait() by a thread that has two guards of the lock", condition.wait(&mut guard));
    drop(inner);
    client.shutdown().unwrap();
    list.add("Guard::check() after shutdown()", guard.check());
    list.add("lock() after shutdown()", lock.lock());
}

fn greeting(version: &str, mode: &str, role: &str) -> String {
    let fields = ["server", "redis", "version", version, "mode", mode, "role", role];
    let items: String = fields.iter().map(|text| format!("${}\r\n{text}\r\n", text.len())).collect();
    format!("*{}\r\n{items}", fields.len())
}

fn servers(list: &mut List) {
    list.section("Connecting to servers that cannot be used");
    let mut connecting = |how: &str, answer: fn(&str) -> String| {
        let server = answering(answer);
        let address = server.address.to_string();
        list.varying = vec![(address.clone(), "HOST:PORT")];
        let login = if how.contains("login") { "user:secret@" } else { "" };
        let options = if how == "connect(), when the server does not answer" { hasty() } else { options() };
        let result = options.url(format!("redis://{login}{address}")).build();
        assert!(result.as_ref().is_err_and(|error| !format!("{error:?}").contains("secret")), "{how}");
        list.add(how, result);
    };
    connecting("connect(), when the server does not know the command HELLO", |_| {
        "-ERR unknown command `HELLO`, with args\r\n".into()
    });
    connecting("connect(), when the server is Redis 5", |_| greeting("5.0.7", "standalone", "master"));
    connecting("connect() with a redis:// URL, when the server is a Sentinel", |_| {
        greeting("7.0.0", "sentinel", "master")
    });
    connecting("connect(), when the server is a replica", |_| greeting("7.0.0", "standalone", "replica"));
    connecting("connect() without a password, when the server answers -NOAUTH", |_| {
        "-NOAUTH Authentication required.\r\n".into()
    });
    connecting("connect() with a login that the server answers by -WRONGPASS", |_| {
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n".into()
    });
    connecting("connect() with a login that the server answers by -DENIED", |_| {
        "-DENIED Redis is running in protected mode\r\n".into()
    });
    connecting("connect(), when the server answers -ERR max number of clients", |_| {
        "-ERR max number of clients reached\r\n".into()
    });
    connecting("connect() with a login, when the server has no passwords", |command| {
        let refused = "-ERR AUTH <password> called without any password configured for the default user.\r\n";
        if command.starts_with("AUTH") { refused.into() } else { greeting("7.0.0", "standalone", "master") }
    });
    connecting("connect() with a login that the server answers by -ERR something else", |_| {
        "-ERR something else\r\n".into()
    });
    connecting("connect(), when the server answers -LOADING", |_| {
        "-LOADING Redis is loading the dataset in memory\r\n".into()
    });
    connecting("connect(), when the user may not run scripts", |command| match command.split(' ').next() {
        Some("HELLO") => greeting("7.0.0", "standalone", "master"),
        Some("AUTH" | "SELECT") => "+OK\r\n".into(),
        _ => "-NOPERM this user has no permissions to run the 'evalsha' command\r\n".into(),
    });
    connecting("connect(), when the server answers HELLO by +what", |_| "+what\r\n".into());
    connecting("connect(), when the server does not answer", |_| String::new());
    let server = talking(|mut stream| {
        stream.read_exact(&mut [0; 1]).ok();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok();
    });
    let address = server.address.to_string();
    list.varying = vec![(address.clone(), "HOST:PORT")];
    for scheme in ["redis", "rediss", "redis-sentinel", "redis-cluster", "postgres", "mysql", "etcd", "zk"] {
        let path = if ["postgres", "mysql"].contains(&scheme) { "/shop" } else { "" };
        let path = if scheme == "redis-sentinel" { "/mymaster" } else { path };
        // A MySQL server speaks first, so MySQL's client waits for a web server until its time-out.
        let options = if scheme == "mysql" { hasty() } else { options() };
        let result = options.url(format!("{scheme}://{address}{path}")).build();
        list.add(&format!("connect() with a URL {scheme}://…, when the server is a web server"), result);
    }

    list.section("Requests that Redis refuses");
    for (how, refusal) in [
        ("-NOPERM", "-NOPERM this user has no permissions to run the 'evalsha' command\r\n"),
        ("-WRONGTYPE", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
        ("-OOM", "-OOM command not allowed when used memory > 'maxmemory'.\r\n"),
        ("-READONLY", "-READONLY You can't write against a read only replica.\r\n"),
        ("-LOADING", "-LOADING Redis is loading the dataset in memory\r\n"),
        ("-BUSY", "-BUSY Redis is busy running a script.\r\n"),
        (
            "-MASTERDOWN",
            "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
        ),
        (
            "-MISCONF",
            "-MISCONF Redis is configured to save RDB snapshots, but it is unable to persist to disk.\r\n",
        ),
        ("-NOREPLICAS", "-NOREPLICAS Not enough good replicas to write.\r\n"),
        ("-CLUSTERDOWN", "-CLUSTERDOWN The cluster is down\r\n"),
        ("-TRYAGAIN", "-TRYAGAIN Multiple keys request during rehashing of slot\r\n"),
        ("-NOSCRIPT", "-NOSCRIPT No matching script.\r\n"),
        ("-MOVED", "-MOVED 3999 10.0.0.7:6379\r\n"),
        ("-CROSSSLOT", "-CROSSSLOT Keys in request don't hash to the same slot\r\n"),
        ("-ERR value is not an integer", "-ERR value is not an integer or out of range\r\n"),
        ("-ERR something else", "-ERR something else\r\n"),
        ("+OK", "+OK\r\n"),
        ("nothing", ""),
    ] {
        list.add_error(&format!("try_lock(), when the server answers {how}"), &refused_in_use(refusal));
    }
}

/// The error of `try_lock` on a server that accepts the client and loads its scripts, and answers each script
/// that names the lock with `refusal`.
fn refused_in_use(refusal: &'static str) -> Error {
    use std::sync::{Mutex, OnceLock};
    // `answering` takes a plain function, which cannot capture the refusal, so the refusal is in a static.
    static SAYS: Mutex<&'static str> = Mutex::new("");
    static SERVER: OnceLock<Server> = OnceLock::new();
    let server = SERVER.get_or_init(|| {
        answering(|command| match command.split(' ').next() {
            Some("HELLO") => greeting("7.0.0", "standalone", "master"),
            Some("EVALSHA" | "EVAL") if command.contains("orders") => SAYS.lock().unwrap().to_string(),
            Some("EVALSHA" | "EVAL") => ":0\r\n".into(),
            _ => "+OK\r\n".into(),
        })
    });
    let options = options().command_timeout(if refusal.is_empty() { 1_000 * MS } else { LONG });
    let client = options.url(format!("redis://{}", server.address)).build().unwrap();
    *SAYS.lock().unwrap() = refusal;
    client.get_lock("orders").try_lock().unwrap_err()
}

#[test]
fn docs_errors_txt_lists_every_error_users_can_provoke() {
    let head = "Errors that a user can provoke: the call and its situation, then kind and text. Written by\n\
                 LEASEHOLD_BLESS=1 cargo test --all-features --test meta errors\n";
    let mut list = List { text: head.to_owned(), varying: Vec::new() };
    making_a_client(&mut list);
    environment(&mut list);
    faults(&mut list);
    urls(&mut list);
    arguments(&mut list);
    holding(&mut list);
    servers(&mut list);
    crate::docs::is_listed("docs/errors.txt", &list.text);
}

#[test]
fn the_error_for_a_short_lease_names_the_minimum() {
    let too_short = |lease| options().lease(lease).url("redis://127.0.0.1").build().unwrap_err().to_string();
    for lease in [Duration::ZERO, Duration::from_nanos(1), MS, 99 * MS] {
        assert!(too_short(lease).ends_with("the least is 100ms"), "{}", too_short(lease));
    }
    let lock = LockClient::in_memory().get_lock("orders");
    let error = fails(lock.lock_with_lease(Duration::ZERO), ErrorKind::InvalidInput);
    assert!(error.to_string().ends_with("the least is 1ms") && error.source().is_none(), "{error}");
}
