//! The stage of every test here: one process, one server, one proxy, and the check that nothing is left behind.
#![allow(dead_code, reason = "shared with tests/history.rs, which uses a part")]

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs::File;
use std::process::Child;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, RecvTimeoutError, after, bounded};
use leasehold::{ClientBuilder, Error, LockClient, Loss, Observer, Owner};
use parking_lot::Mutex;
use redis::FromRedisValue;

use crate::support::epilogue::{Baseline, assert_every_hash_has_a_ttl, not_given_back, threads};
use crate::support::proxy::{Command, Proxy, Then, Which};
use crate::support::server::{Builder, RedisServer, default_server};
pub(crate) use crate::support::stalls::{about_to_end, stalled_since};
use crate::support::{eventually, now, shout, signal, spawn};

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Lease, time between renewals, command time-out, safety poll, scheduling slack.
pub(crate) const L: Duration = ms(1500);
pub(crate) const R: Duration = ms(500);
pub(crate) const T: Duration = ms(400);
pub(crate) const P: Duration = ms(1200);
pub(crate) const EPSILON: Duration = ms(250);
/// How long calls without a deadline keep trying.
pub(crate) const PATIENCE: Duration = ms(3000);
/// How long connecting may take where there is no request that waits for it: generous, since no promise is about it.
pub(crate) const CONNECT: Duration = ms(15_000);
/// What should have happened long ago.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Keys that a test keeps beside its locks begin so.
pub(crate) const OWN: &str = "test:";

// ---- the stage

pub(crate) struct World {
    pub(crate) proxy: Proxy,
    pub(crate) server: RedisServer,
}

/// Runs `body` alone in a process, with a server as it comes.
#[track_caller]
pub(crate) fn scenario(body: impl FnOnce(&mut World)) {
    scenario_on(|builder| builder, body);
}

/// Runs `body` alone in a process, with a server configured for it.
#[track_caller]
pub(crate) fn scenario_on(configure: impl FnOnce(Builder) -> Builder, body: impl FnOnce(&mut World)) {
    alone(|| {
        let Some(binary) = default_server() else { return };
        play(configure(RedisServer::builder(&binary)).start(), body);
    });
}

/// Runs `body` with this server, then checks that nothing is left. For use within [`alone`].
pub(crate) fn play(server: RedisServer, body: impl FnOnce(&mut World)) {
    stalled_since(now());
    let mut world = World { proxy: Proxy::before(&server), server };
    world.warm_up();
    assert!(eventually(LONG, || threads().is_none_or(|threads| threads.is_empty())), "{:?}", threads());
    let baseline = Baseline::take(&world.server).alone();
    body(&mut world);
    // A connection that a fault made a black hole never ends at the proxy: so first the library's own ends.
    let mut open = 0;
    let closed = eventually(LONG, || {
        open = world.open_connections();
        open == 0
    });
    assert!(closed, "{open} connections are still open, threads {:?}", threads());
    world.proxy.kill(Which::All, Then::Close);
    baseline.assert_clean(&world.server);
    let mut left = Vec::new();
    let clean = eventually(2 * L + EPSILON, || {
        assert_every_hash_has_a_ttl(&world.server);
        left = world.lock_keys();
        left.is_empty()
    });
    assert!(clean, "keys that outlive their lease: {left:?}");
}

/// Runs the calling test again, in a process where no other test's threads are, and `body` there.
#[track_caller]
pub(crate) fn alone(body: impl FnOnce()) {
    alone_within(Duration::from_secs(120), body);
}

/// The same for a test that may take longer.
#[track_caller]
pub(crate) fn alone_within(limit: Duration, body: impl FnOnce()) {
    const ALONE: &str = "LEASEHOLD_FAULTS_ALONE";
    let name = thread::current().name().expect("a test's thread has its name").to_owned();
    if std::env::var(ALONE).as_ref() == Ok(&name) {
        stalled_since(now()); // what was before the first call is not known
        return body();
    }
    let process = reexecuted(&name, &[(ALONE, &name)]);
    let (good, text) = process.ends_within(limit);
    // What the harness writes before a test has no end of line.
    for line in text.lines().map(|line| line.rsplit_once(" ... ").map_or(line, |(_, rest)| rest)) {
        if ["SKIPPED ", "COUNTED ", "MEASURED "].iter().any(|begin| line.starts_with(begin)) {
            shout(line);
        }
    }
    assert!(good && text.contains("1 passed"), "{name} failed:\n{text}");
}

/// This program once more, to run one of its tests with some variables set.
pub(crate) fn reexecuted(test: &str, variables: &[(&str, &str)]) -> Process {
    let program = std::env::current_exe().unwrap();
    let program = [program.to_str().unwrap(), test, "--exact", "--nocapture", "--test-threads=1"];
    let output = tempfile::NamedTempFile::new().unwrap();
    // Both outputs go to one file; each write goes to its end.
    let append = || File::options().append(true).open(output.path()).unwrap();
    let child =
        spawn(&program, |command| command.envs(variables.iter().copied()).stdout(append()).stderr(append()));
    Process { child: Some(child), output }
}

/// A process that was started; dropping it kills it.
pub(crate) struct Process {
    child: Option<Child>,
    output: tempfile::NamedTempFile,
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.output.path()).unwrap()).into_owned()
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Whether it succeeded, and what it wrote. Killed when it takes longer.
    pub(crate) fn ends_within(mut self, limit: Duration) -> (bool, String) {
        let mut status = None;
        let child = self.child.as_mut().expect("it runs");
        eventually_quietly(limit, || {
            status = child.try_wait().expect("a child can be asked");
            status.is_some()
        });
        if status.is_some() {
            self.child = None;
        }
        (status.is_some_and(|status| status.success()), self.output())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill()); // an error means that it has just ended
            drop(child.wait());
        }
    }
}

/// [`eventually`] for an outcome that is looked at afterwards.
fn eventually_quietly(limit: Duration, cond: impl FnMut() -> bool) {
    let _came: bool = eventually(limit, cond);
}

impl World {
    /// Has the server learn all scripts, so that a fault meant for one finds it run, and not merely unknown. A server
    /// that does not serve clients needs none.
    fn warm_up(&self) {
        let Ok(client) = LockClient::builder().url(&self.server.unix_url()).lease(ms(300)).build() else {
            return;
        };
        let locks = [client.lock("warm-up"), client.token_lock("warm-up-token")];
        // On a busy machine a lease this short may end before its renewal; then once more.
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
        client.fenced_lock("warm-up").acquire().unwrap().unlock().unwrap();
        self.does(&["DEL", "redisson_lock_token:{warm-up}"]);
    }

    /// How many connections to the proxy are open as far as this process knows, neither closed by it nor by the proxy.
    pub(crate) fn open_connections(&self) -> usize {
        let Ok(table) = std::fs::read_to_string("/proc/self/net/tcp") else { return 0 };
        let (port, established) = (format!(":{:04X}", self.proxy.port()), "01");
        let is_open = |line: &&str| {
            let mut fields = line.split_whitespace().skip(2);
            fields.next().is_some_and(|remote| remote.ends_with(&port)) && fields.next() == Some(established)
        };
        table.lines().filter(is_open).count()
    }

    /// A client through the proxy.
    pub(crate) fn builder(&self) -> ClientBuilder {
        self.builder_to(&self.proxy.url())
    }

    pub(crate) fn builder_to(&self, url: &str) -> ClientBuilder {
        LockClient::builder()
            .url(url)
            .lease(L)
            .command_timeout(T)
            .connect_timeout(CONNECT)
            .patience(PATIENCE)
            .linger(Duration::ZERO)
            .pool_size(4)
    }

    pub(crate) fn client(&self) -> LockClient {
        self.builder().build().unwrap()
    }

    /// A client through the proxy, and what its observer sees.
    pub(crate) fn watched(&self) -> (LockClient, Seen) {
        let seen = Seen::default();
        (self.builder().observer(seen.clone()).build().unwrap(), seen)
    }

    /// A client that the proxy's faults do not meet.
    pub(crate) fn direct(&self) -> LockClient {
        self.builder_to(&self.server.url()).build().unwrap()
    }

    /// Has the server do something, past proxy and rights.
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

    /// The owners in a lock's hash with their counts.
    pub(crate) fn fields(&self, name: &str) -> BTreeMap<String, String> {
        self.run(&["HGETALL", name])
    }

    /// Panics unless exactly one owner has the lock, one of this client's, with this count, and the lock has an end.
    ///
    /// Not the thread's `current_owner`: that is its next hold's, and a connection that breaks makes it another.
    #[track_caller]
    pub(crate) fn assert_held_by(&self, name: &str, client: &LockClient, count: u32) {
        let fields = self.fields(name);
        let is_it = |(owner, held): (&String, &String)| {
            owner.starts_with(&format!("{}:", client.id())) && *held == count.to_string()
        };
        assert!(fields.len() == 1 && fields.iter().all(is_it), "{fields:?}, not {count} of {}", client.id());
        assert!(self.ttl(name) > 0, "TTL {}", self.ttl(name));
    }

    /// Panics unless exactly this owner has the lock, with this count, and the lock has an end.
    #[track_caller]
    pub(crate) fn assert_held(&self, name: &str, owner: Owner, count: u32) {
        assert_eq!(self.fields(name), [(owner.to_string(), count.to_string())].into());
        assert!(self.ttl(name) > 0, "TTL {}", self.ttl(name));
    }

    /// PTTL: -2 where there is no key, -1 where it has no end.
    pub(crate) fn ttl(&self, name: &str) -> i64 {
        self.run(&["PTTL", name])
    }

    pub(crate) fn is_free(&self, name: &str) -> bool {
        self.run::<i64>(&["EXISTS", name]) == 0
    }

    /// All keys that are neither a fence's counter, which stays, nor the test's own.
    pub(crate) fn lock_keys(&self) -> Vec<String> {
        let keys: Vec<String> = self.run(&["KEYS", "*"]);
        let stays = |key: &String| key.starts_with("redisson_lock_token:") || key.starts_with(OWN);
        keys.into_iter().filter(|key| !stays(key)).collect()
    }

    /// Panics unless the lock is given back within this time from now; the end of its lease does not do.
    #[track_caller]
    pub(crate) fn is_given_back(&self, name: &str, promised: Duration) {
        self.are_given_back(promised, || vec![name.to_owned()]);
    }

    /// The same of all locks.
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
        assert!(given_back, "not given back: {left:?}");
        within(begun, promised, "giving it back");
    }

    /// Waits until somebody is subscribed to the lock's channel.
    #[track_caller]
    pub(crate) fn await_subscription(&self, name: &str) {
        let channel = channel(name);
        let subscribed = || self.run::<(String, i64)>(&["PUBSUB", "NUMSUB", &channel]).1 > 0;
        assert!(eventually(LONG, subscribed), "nobody subscribes to {channel}");
    }

    /// How often the server has run scripts, as it counts itself.
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

/// Where a lock's releases are announced, as in Redisson.
pub(crate) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// Picks every script about a lock.
pub(crate) fn about(name: &str) -> impl Fn(&Command) -> bool + Send + use<> + 'static {
    let name = name.to_owned();
    move |command| command.is_script() && command.contains(&name)
}

/// Picks the releases of a lock, which say where to announce them.
pub(crate) fn releases(name: &str) -> impl Fn(&Command) -> bool + Send + use<> + 'static {
    let channel = channel(name);
    move |command| command.is_script() && command.contains(&channel)
}

/// Picks the scripts about a lock that are no releases.
pub(crate) fn no_releases(name: &str) -> impl Fn(&Command) -> bool + Send + use<> + 'static {
    let (about, releases) = (about(name), releases(name));
    move |command| about(command) && !releases(command)
}

// ---- time

/// Lets real time pass; `reason` says why no condition can be waited for.
pub(crate) fn let_pass(span: Duration, reason: &str) {
    assert!(!reason.is_empty());
    after(span).recv().expect("the time comes");
}

/// Looks for `span`, and fails as soon as `condition` does not hold.
#[track_caller]
pub(crate) fn throughout(span: Duration, mut condition: impl FnMut() -> bool) {
    let start = now();
    loop {
        assert!(condition(), "this did not stay so: it changed after {:?} of {span:?}", start.elapsed());
        if start.elapsed() >= span {
            return;
        }
        let_pass(ms(5), "between two looks");
    }
}

/// Panics unless what began at `start` has taken no longer than promised, with ε for scheduling.
#[track_caller]
pub(crate) fn within(start: Instant, promised: Duration, what: &str) {
    let (took, stalled) = (start.elapsed(), stalled_since(start));
    assert!(
        took <= promised + EPSILON + stalled,
        "{what} took {took:?}, promised are {promised:?} and {EPSILON:?} (the machine itself stalled {stalled:?})"
    );
}

/// Like [`within`] for something that may come by itself: waits for it.
#[track_caller]
pub(crate) fn comes_within(start: Instant, promised: Duration, what: &str, cond: impl FnMut() -> bool) {
    let came = eventually(promised + EPSILON + LONG, cond);
    within(start, promised, what);
    assert!(came, "{what} did not come");
}

// ---- threads

pub(crate) fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::Builder::new().spawn(work).expect("a thread can be started")
}

/// Runs `work` on another thread, to its end.
pub(crate) fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// A call that goes on in another thread.
pub(crate) struct Call<T> {
    outcome: Receiver<(T, Instant)>,
}

pub(crate) fn call<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Call<T> {
    let (sender, outcome) = bounded(1);
    drop(start(move || {
        let value = work();
        let at = now();
        about_to_end();
        sender.send((value, at)).ok(); // the test may have failed by now
    }));
    Call { outcome }
}

impl<T> Call<T> {
    /// What it returned, and when.
    #[track_caller]
    pub(crate) fn outcome(self) -> (T, Instant) {
        match self.outcome.recv_timeout(LONG) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => panic!("the call has not returned"),
            Err(RecvTimeoutError::Disconnected) => panic!("the call panicked"),
        }
    }

    /// What it returned; panics when that was later than `promised` after `start`, with ε.
    #[track_caller]
    pub(crate) fn returns_within(self, start: Instant, promised: Duration, what: &str) -> T {
        let (value, at) = self.outcome();
        let (took, stalled) = (at.saturating_duration_since(start), stalled_since(start));
        assert!(
            took <= promised + EPSILON + stalled,
            "{what} took {took:?}, promised are {promised:?} (the machine itself stalled {stalled:?})"
        );
        value
    }

    pub(crate) fn is_over(&self) -> bool {
        !self.outcome.is_empty()
    }
}

/// Panics without the panic hook's message, where the panic is part of the test.
pub(crate) fn quiet_panic() -> ! {
    std::panic::resume_unwind(Box::new("meant to panic"))
}

// ---- what is told

/// What an observer was told, with every error as all its texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Acquired(String),
    Released(String),
    ReleaseFailed(String, String),
    RenewalFailed(String, String),
    Lost(Loss),
    Abandoned(String),
    NoWakeups(String),
    WakeupsBack,
}

/// An observer that remembers.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<(Instant, Event)>>>);

impl Seen {
    fn add(&self, event: Event) {
        self.0.lock().push((now(), event));
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.0.lock().iter().map(|(_, event)| event.clone()).collect()
    }

    pub(crate) fn count(&self, pick: impl Fn(&Event) -> bool) -> usize {
        self.events().iter().filter(|event| pick(event)).count()
    }

    pub(crate) fn losses(&self) -> usize {
        self.count(|event| matches!(event, Event::Lost(_)))
    }

    /// Waits for such an event.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, pick: impl Fn(&Event) -> bool) {
        assert!(eventually(LONG, || self.count(&pick) > 0), "{what} was not told: {:?}", self.events());
    }
}

impl Observer for Seen {
    fn acquired(&self, name: &str, _owner: Owner, _waited: Duration, _attempts: u32) {
        self.add(Event::Acquired(name.to_owned()));
    }
    fn released(&self, name: &str, _owner: Owner, _held: Duration) {
        self.add(Event::Released(name.to_owned()));
    }
    fn release_failed(&self, name: &str, error: &Error) {
        self.add(Event::ReleaseFailed(name.to_owned(), texts(error)));
    }
    fn renewal_failed(&self, name: &str, error: &Error, _remaining: Duration) {
        self.add(Event::RenewalFailed(name.to_owned(), texts(error)));
    }
    fn lost(&self, loss: &Loss) {
        self.add(Event::Lost(loss.clone()));
    }
    fn abandoned(&self, name: &str, _owner: Owner) {
        self.add(Event::Abandoned(name.to_owned()));
    }
    fn wakeups(&self, down: Option<&Error>) {
        self.add(down.map_or(Event::WakeupsBack, |error| Event::NoWakeups(texts(error))));
    }
}

/// Everything an error says: its text, its debug text, and those of all its causes.
pub(crate) fn texts(error: &Error) -> String {
    let mut texts = format!("{error} | {error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        texts += &format!(" | {error} | {error:?}");
        cause = error.source();
    }
    texts
}
