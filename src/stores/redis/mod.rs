//! One Redis (or Valkey) server, or the one that Sentinels say is the master; or, in `cluster`, many.
//!
//! `mutex` and `token` say what is asked and what the answers mean; `connections` carries requests, mostly over its `shared`s,
//! and `subscriber` and its `reader` wake-ups, all over connections made by `handshake` on the sockets of `connection`. Where they go
//! is in `address`; with Sentinels, `sentinel` finds out each time, and `monitor` notices when it changes.
//!
//! Long because it is a list: each question of the seam, answered for each kind of lock.

mod address;
mod cluster;
mod conn;
mod keys;
mod kinds;
mod place;
mod pubsub;
mod replicas;
mod reply;
mod ring_member;
mod script;
mod sentinel;
mod show;

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::config::{RedisOptions, Replicas};
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{Fence, LockName, Owner};
use crate::inspect::Inspection;
use crate::observe::reporter::Reporter;
use crate::seam::capabilities::{Batches, Capabilities, ConnectionWatch, Pipeline};
use crate::seam::inspection::Inspect;
use crate::seam::subscription::Subscription;
use crate::seam::{
    Answer, Answered, Attempt, Claim, Counting, Handoff, Kind, Outcome, Pending, Release, Sink, Snapshot,
    Store,
};
use crate::sync::Waker;
use crate::time::{Clock, Moment};
use address::{RedisAddress, Target};
use cluster::ClusterStore;
use conn::connections::{Connections, Started, maintenance};
use kinds::token::CompareAndDelete;
use kinds::{condition, fair, mutex, rw, semaphore, token};
use pubsub::publish::PublishMode;
use pubsub::subscriber::{self, Subscriber};
use reply::{Expected, Failure, answer};
use script::Command;
use sentinel::monitor::SentinelMonitor;

/// Opens the store that the URL names.
pub(crate) fn open(options: &RedisOptions, reporter: &Arc<Reporter>) -> Result<Arc<dyn Store>> {
    let scheme = options.url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    Ok(match scheme.as_str() {
        "redis-cluster" | "rediss-cluster" => ClusterStore::connect(options, reporter)?,
        _ => Arc::new(RedisStore::connect(options, Arc::clone(reporter))?),
    })
}

/// Keeps locks on one server.
#[derive(Debug)]
pub(crate) struct RedisStore {
    connections: Connections,
    subscriber: Arc<Subscriber>,
    /// With Sentinels only.
    monitor: Option<SentinelMonitor>,
    /// Whether scripts may be used.
    scripts: bool,
    publish_mode: PublishMode,
    /// What a grant must have reached.
    replicas: Option<Replicas>,
    compare_and_delete: CompareAndDelete,
}

impl RedisStore {
    /// Connects and checks that the server can keep locks.
    pub(crate) fn connect(options: &RedisOptions, reporter: Arc<Reporter>) -> Result<RedisStore> {
        let store = RedisStore::unconnected(options, reporter)?;
        store.connections.connect_first()?;
        if options.scripts {
            let reply = store.connections.call(&probe(), Clock::System.after(options.command_timeout));
            let reply = reply.map_err(|failure| failure.into_error().during("connect"))?;
            reply::accepted(reply).map_err(|error| scripts_refused(&error))?;
        }
        Ok(store)
    }

    /// Connects when it is first asked for something.
    pub(crate) fn unconnected(options: &RedisOptions, reporter: Arc<Reporter>) -> Result<RedisStore> {
        let address = Arc::new(RedisAddress::new(options)?);
        let (pool_size, timeout) = (options.pool_size, options.command_timeout);
        let connections = Connections::new(Arc::clone(&address), pool_size, timeout, maintenance())?;
        let monitor = match &address.target {
            Target::Place(_) => None,
            Target::Master(sentinels) => Some(SentinelMonitor::start(sentinels)?),
        };
        let subscriber =
            pubsub::subscriber(address, reporter, options.linger, subscriber::SILENCE, &[subscriber::PLAIN]);
        let store =
            RedisStore::new(connections, subscriber, options.scripts, PublishMode::Alone, options.replicas);
        Ok(RedisStore { monitor, ..store })
    }

    fn new(
        connections: Connections,
        subscriber: Arc<Subscriber>,
        scripts: bool,
        publish_mode: PublishMode,
        replicas: Option<Replicas>,
    ) -> RedisStore {
        let compare_and_delete = CompareAndDelete::new();
        RedisStore {
            connections,
            subscriber,
            monitor: None,
            scripts,
            publish_mode,
            replicas,
            compare_and_delete,
        }
    }

    /// As [`Store::hand_off`], but waits for the answer.
    fn hand_off_now(&self, from: &Claim, to: &Claim, deadline: Moment) -> Answer<Handoff> {
        answer(mutex::hand_off_now(&self.connections, from, to, deadline), "lock", to.name.given())
    }

    /// As [`Store::close`], until `deadline` at most.
    fn close_by(&self, deadline: Moment) {
        self.subscriber.close();
        self.connections.close(deadline);
        if let Some(monitor) = &self.monitor {
            monitor.close();
        }
    }

    /// Which server this is, and what it is part of.
    pub(crate) fn about(&self, deadline: Moment) -> Result<About> {
        let reply = self.connections.call(&Command::new("INFO"), deadline).map_err(Failure::into_error)?;
        let reply = reply::accepted(reply).map_err(|error| reply::refusal(&error, Expected::Nothing))?;
        match reply {
            redis::Value::BulkString(text) => Ok(About::read(&String::from_utf8_lossy(&text))),
            other => Err(reply::unexpected(&other)),
        }
    }

    /// Host and port of a URL, or the socket's path: what may be shown of it.
    pub(crate) fn place(options: &RedisOptions) -> Result<String> {
        Ok(RedisAddress::new(options)?.target.to_string())
    }

    /// One request for each claim, on the connection for renewals.
    fn batch<T>(
        &self,
        claims: &[Claim],
        action: &'static str,
        deadline: Moment,
        ask: impl Fn(&Claim) -> Command,
        read: impl Fn(redis::Value, Expected) -> std::result::Result<T, Failure>,
    ) -> Vec<Answer<T>> {
        let commands: Vec<_> = claims.iter().map(ask).collect();
        let replies = self.connections.batch(&commands, deadline);
        let answers = claims.iter().zip(replies).map(|(claim, reply)| {
            let expected = if claim.kind.is_token() { Expected::Token } else { Expected::Hash };
            answer(reply.and_then(|reply| read(reply, expected)), action, claim.name.given())
        });
        answers.collect()
    }

    /// Sends a request whose reply somebody waits for later.
    fn begin<T: Send + 'static>(
        &self,
        action: &'static str,
        claim: &Claim,
        command: Command,
        deadline: Moment,
        read: impl FnOnce(redis::Value) -> std::result::Result<T, Failure> + Send + 'static,
    ) -> Box<dyn Pending<T>> {
        if self.connections.is_asking() {
            let result = self.connections.call(&command, deadline).and_then(read);
            return Box::new(Answered(answer(result, action, claim.name.given())));
        }
        match self.connections.start(command, deadline) {
            Ok(started) => Box::new(Underway { started, read, action, name: Arc::clone(&claim.name) }),
            Err(failure) => Box::new(Answered(answer(Err(failure), action, claim.name.given()))),
        }
    }

    /// How many of those who hear of the lock are this client itself.
    fn own_listeners(&self, claim: &Claim) -> i64 {
        i64::from(self.message_count(claim).is_some())
    }

    /// Has the owner hold nothing.
    fn removal(&self, claim: &Claim) -> Command {
        match claim.kind {
            Kind::Mutex | Kind::Fenced => mutex::removal(claim, 0, self.publish_mode),
            Kind::Fair => fair::removal(claim, 0),
            Kind::Read | Kind::Write => rw::removal(claim, 0, self.publish_mode),
            Kind::Semaphore | Kind::Permits | Kind::Latch | Kind::Signal => semaphore::removal(claim),
            Kind::Token => token::removal(claim),
        }
    }

    fn renew_one(&self, claim: &Claim, deadline: Moment) -> Answer<bool> {
        answer(token::renew(&self.connections, self.scripts, claim, deadline), "renew", claim.name.given())
    }
}

/// A latch that is open, and a notification, once noticed, are nobody's.
const NOTHING_HELD: Release = Release::Freed { others: 0 };

fn uncountable<T>(name: &LockName) -> Answer<T> {
    let words = "what is counted has no holder";
    Answer::Refused(Error::new(ErrorKind::Unsupported, "inspect", words).on(name.given()))
}

/// Where whoever waits under this claim listens.
fn channel(claim: &Claim) -> String {
    match claim.kind {
        Kind::Fair => fair::channel(claim),
        Kind::Read | Kind::Write => keys::rw_channel(claim.name.key()),
        Kind::Semaphore | Kind::Permits | Kind::Latch => semaphore::channel(claim),
        Kind::Signal => condition::channel(claim),
        Kind::Mutex | Kind::Fenced | Kind::Token => keys::channel(claim.name.key()),
    }
}

fn is_mutex(kind: Kind) -> bool {
    matches!(kind, Kind::Mutex | Kind::Fenced)
}

/// The request of an attempt, for kinds that it is all of.
fn acquisition(claim: &Claim, count: u32) -> Option<Command> {
    match claim.kind {
        Kind::Mutex | Kind::Fenced => Some(mutex::acquisition(claim, count)),
        Kind::Read | Kind::Write => Some(rw::acquisition(claim, count)),
        Kind::Fair => Some(fair::acquisition(claim, count)),
        Kind::Token | Kind::Semaphore | Kind::Permits | Kind::Latch | Kind::Signal => None,
    }
}

/// A request that was sent, and what its reply means.
struct Underway<F> {
    started: Started,
    read: F,
    action: &'static str,
    name: Arc<LockName>,
}

impl<T, F> Pending<T> for Underway<F>
where
    F: FnOnce(redis::Value) -> std::result::Result<T, Failure> + Send,
{
    fn wait(self: Box<Self>) -> Answer<T> {
        answer(self.started.wait().and_then(self.read), self.action, self.name.given())
    }
}

/// What a server says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct About {
    /// A random text that each start of a server draws anew.
    pub(crate) run_id: Option<String>,
    pub(crate) is_cluster_member: bool,
    pub(crate) replicas: u32,
}

impl About {
    fn read(info: &str) -> About {
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        About {
            run_id: field("run_id").map(str::to_owned),
            is_cluster_member: field("cluster_enabled") == Some("1"),
            replicas: field("connected_slaves").and_then(|number| number.parse().ok()).unwrap_or(0),
        }
    }
}

fn queues(kind: Kind) -> bool {
    matches!(kind, Kind::Fair | Kind::Signal)
}

fn poll_every(kind: Kind) -> (Duration, Duration) {
    let (least, most) = if kind.is_token() { (50, 100) } else { (1000, 1200) };
    (Duration::from_millis(least), Duration::from_millis(most))
}

/// Asks whether scripts may be used.
fn probe() -> Command {
    Command::new("EVAL").arg("return 1").arg(0_u32)
}

fn scripts_refused(error: &redis::ServerError) -> Error {
    let refused = reply::refusal(error, Expected::Nothing).during("connect");
    match refused.kind() {
        ErrorKind::NoPermission | ErrorKind::Unsupported | ErrorKind::Refused => Error::new(
            refused.kind(),
            "connect",
            "the server does not let this user run scripts, which all but token locks need (see without_scripts)",
        )
        .with_source(refused),
        _ => refused,
    }
}

impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            can_expire_in: true,
            queues,
            poll_every,
            pipeline: Some(self),
            batches: Some(self),
            connections: Some(self),
            ..Capabilities::default()
        }
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        if self.scripts || kind.is_token() {
            return Ok(());
        }
        let words = "this client is set not to use scripts, which all but token locks need";
        Err(Error::new(ErrorKind::Unsupported, "lock", words).on(name.given()))
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        // A re-entry makes no hold that a replica could forget.
        let replicas = self.replicas.filter(|_| count == 1);
        if let Some(command) = acquisition(claim, count) {
            let reply = match replicas {
                Some(replicas) => {
                    replicas.ask(&self.connections, command, self.removal(claim), Expected::Hash, deadline)
                }
                None => mutex::run(&self.connections, &command, deadline),
            };
            let result = reply.and_then(|reply| mutex::attempted(&reply, claim.wants_fence));
            return answer(result, "lock", claim.name.given());
        }
        let result = match claim.kind {
            Kind::Semaphore | Kind::Permits | Kind::Latch => {
                semaphore::attempt(&self.connections, claim, deadline)
            }
            Kind::Signal => condition::attempt(&self.connections, claim, deadline),
            _token => token::attempt(&self.connections, self.scripts, replicas, claim, count, deadline),
        };
        answer(result, "lock", claim.name.given())
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        let result = match claim.kind {
            Kind::Mutex | Kind::Fenced => self
                .connections
                .call(&mutex::removal(claim, left, self.publish_mode), deadline)
                .and_then(|reply| {
                    mutex::released(&mutex::tagged(reply, Expected::Hash)?, self.own_listeners(claim))
                }),
            Kind::Read | Kind::Write => {
                rw::release(&self.connections, claim, left, self.publish_mode, deadline)
            }
            Kind::Semaphore | Kind::Permits => semaphore::release(&self.connections, claim, deadline),
            Kind::Latch | Kind::Signal => Ok(NOTHING_HELD),
            Kind::Fair => fair::release(&self.connections, claim, left, deadline),
            Kind::Token => {
                token::release(&self.connections, self.scripts, &self.compare_and_delete, claim, deadline)
            }
        };
        answer(result, "unlock", claim.name.given())
    }

    fn release_later(&self, claim: &Claim, deadline: Moment, done: Sink) {
        // Attempts that wait for replicas take other connections, and could overtake it.
        if claim.kind.is_token() || self.replicas.is_some() {
            return done(self.release(claim, 0, deadline));
        }
        if matches!(claim.kind, Kind::Latch | Kind::Signal) {
            return done(Answer::Done(NOTHING_HELD));
        }
        let own_listeners = if claim.kind.is_handed_off() { self.own_listeners(claim) } else { 0 };
        let name = Arc::clone(&claim.name);
        let take = move |outcome: Outcome<redis::Value>| {
            let result = outcome
                .and_then(|reply| mutex::released(&mutex::tagged(reply, Expected::Hash)?, own_listeners));
            let is_answered = result.is_ok();
            done(answer(result, "unlock", name.given()));
            is_answered
        };
        if claim.kind == Kind::Semaphore {
            self.connections.post_then(&self.removal(claim), &semaphore::forgetting(claim), deadline, take);
        } else {
            self.connections.post(
                &self.removal(claim),
                deadline,
                Box::new(move |outcome| {
                    take(outcome);
                }),
            );
        }
    }

    fn hand_off(&self, from: &Claim, to: &Claim, deadline: Moment) -> Option<Box<dyn Pending>> {
        if !from.kind.is_handed_off() || self.replicas.is_some() {
            return None;
        }
        // What cannot be sent is released the plain way, which says why.
        let started = mutex::hand_off(&self.connections, from, to, deadline).ok()?;
        let wants_fence = to.wants_fence;
        let read = move |reply| mutex::handed(reply, wants_fence);
        Some(Box::new(Underway { started, read, action: "lock", name: Arc::clone(&to.name) }))
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        if !self.scripts {
            return claims.iter().map(|claim| self.renew_one(claim, deadline)).collect();
        }
        self.batch(
            claims,
            "renew",
            deadline,
            |claim| match claim.kind {
                Kind::Mutex | Kind::Fenced | Kind::Fair => mutex::renewal(claim),
                Kind::Read | Kind::Write => rw::renewal(claim),
                // The latter are never renewed.
                Kind::Permits | Kind::Semaphore | Kind::Latch | Kind::Signal => semaphore::renewal(claim),
                Kind::Token => token::renewal(claim),
            },
            mutex::renewed,
        )
    }

    fn abandon(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        if !self.scripts {
            return claims.iter().map(|claim| self.release(claim, 0, deadline)).collect();
        }
        self.batch(
            claims,
            "unlock",
            deadline,
            |claim| match claim.kind {
                Kind::Fair => fair::leaving(claim),
                Kind::Signal => condition::leaving(claim),
                _ => self.removal(claim),
            },
            |reply, expected| match (mutex::tagged(reply, expected)?, expected) {
                (reply, _) if matches!(reply.tag(), b"count" | b"granted" | b"busy") => Ok(NOTHING_HELD),
                (reply, Expected::Token) => token::freed(&reply),
                (reply, _) => mutex::released(&reply, 1),
            },
        )
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        if claim.kind.is_token() {
            return Answer::Refused(Error::new(ErrorKind::Unsupported, "unlock", "not with a token lock"));
        }
        answer(mutex::expire_in(&self.connections, claim, rest, deadline), "unlock", claim.name.given())
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        let result = match kind {
            Kind::Mutex | Kind::Fenced => mutex::force(&self.connections, name, self.publish_mode, deadline),
            Kind::Read | Kind::Write => rw::force(&self.connections, kind, name, self.publish_mode, deadline),
            Kind::Semaphore | Kind::Permits | Kind::Latch | Kind::Signal => return uncountable(name),
            Kind::Fair => fair::force(&self.connections, name, deadline),
            Kind::Token => token::force(&self.connections, name, deadline),
        };
        answer(result, "force_unlock", name.given())
    }

    fn count(&self, claim: &Claim, what: &Counting, deadline: Moment) -> Answer<Option<i64>> {
        if *what == Counting::Forget {
            semaphore::forget(&self.connections, claim, deadline);
            return Answer::Done(None);
        }
        let result = if claim.kind == Kind::Signal {
            condition::count(&self.connections, claim, what, deadline)
        } else {
            semaphore::count(&self.connections, claim, what, deadline)
        };
        answer(result, "count", claim.name.given())
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        if claim.kind.is_token() {
            return None;
        }
        self.subscriber.listen(&channel(claim), waker)
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        if claim.kind.is_token() {
            return None;
        }
        self.subscriber.message_count(|| channel(claim))
    }

    fn poll_completions(&self) -> bool {
        self.connections.poll_completions()
    }

    fn close(&self) {
        self.close_by(Moment::NEVER);
    }
}

impl Inspect for RedisStore {
    fn inspect(
        &self,
        kind: Kind,
        name: &LockName,
        owner: Owner,
        deadline: Moment,
    ) -> Answer<Option<Snapshot>> {
        let result = match kind {
            Kind::Mutex | Kind::Fenced | Kind::Fair => {
                mutex::inspect(&self.connections, name, owner, deadline)
            }
            Kind::Read | Kind::Write => rw::inspect(&self.connections, kind, name, owner, deadline),
            Kind::Semaphore | Kind::Permits | Kind::Latch | Kind::Signal => return uncountable(name),
            Kind::Token => token::inspect(&self.connections, name, owner, deadline),
        };
        answer(result.map_err(Failure::of_reading), "inspect", name.given())
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        answer(
            show::describe(&self.connections, name, deadline).map_err(Failure::of_reading),
            "inspect",
            name.given(),
        )
    }
}

impl Pipeline for RedisStore {
    fn begin_attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Box<dyn Pending<Attempt>> {
        match acquisition(claim, count) {
            Some(command) if self.replicas.is_none() => {
                let wants_fence = claim.wants_fence;
                let read = move |reply| mutex::attempted(&mutex::tagged(reply, Expected::Hash)?, wants_fence);
                self.begin("lock", claim, command, deadline, read)
            }
            _ => Box::new(Answered(self.attempt(claim, count, deadline))),
        }
    }

    fn begin_release(&self, claim: &Claim, left: u32, deadline: Moment) -> Box<dyn Pending<Release>> {
        let (command, own_listeners) = match claim.kind {
            Kind::Mutex | Kind::Fenced => {
                (mutex::removal(claim, left, self.publish_mode), self.own_listeners(claim))
            }
            Kind::Read | Kind::Write => (rw::removal(claim, left, self.publish_mode), 0),
            Kind::Fair => (fair::removal(claim, left), 0),
            _ => return Box::new(Answered(self.release(claim, left, deadline))),
        };
        let read = move |reply| mutex::released(&mutex::tagged(reply, Expected::Hash)?, own_listeners);
        self.begin("unlock", claim, command, deadline, read)
    }
}

impl Batches for RedisStore {
    fn group(&self, kind: Kind, _name: &LockName) -> Option<u32> {
        // One server: whatever slot a name would be in.
        (is_mutex(kind) && self.scripts && self.replicas.is_none()).then_some(0)
    }

    fn begin_attempts(
        &self,
        claims: &[Claim],
        or_none: bool,
        deadline: Moment,
    ) -> Box<dyn Pending<Vec<Option<Fence>>>> {
        let Some(first) = claims.first() else { return Box::new(Answered(Answer::Done(Vec::new()))) };
        let read = |reply| mutex::acquired(&mutex::tagged(reply, Expected::Hash)?);
        self.begin("lock", first, mutex::acquisitions(claims, or_none), deadline, read)
    }

    fn begin_releases(&self, claims: &[Claim], deadline: Moment) -> Box<dyn Pending<Vec<Release>>> {
        let Some(first) = claims.first() else { return Box::new(Answered(Answer::Done(Vec::new()))) };
        let own_listeners: Vec<i64> = claims.iter().map(|claim| self.own_listeners(claim)).collect();
        let read = move |reply| mutex::all_released(&mutex::tagged(reply, Expected::Hash)?, &own_listeners);
        self.begin("unlock", first, mutex::removals(claims), deadline, read)
    }
}

impl ConnectionWatch for RedisStore {
    fn hung_up(&self) -> Option<bool> {
        Some(self.connections.hung_up())
    }
}
