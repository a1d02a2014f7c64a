//! One Redis (or Valkey) server, or the one that Sentinels say is the master; or, in `cluster`, many.
//!
//! `mutex` and `token` say what is asked and what the answers mean; `wire` carries requests, mostly over its `lane`s,
//! and `hub` and its `reader` wake-ups, all over connections made by `handshake` on the sockets of `link`. Where they go
//! is in `address`; with Sentinels, `sentinel` finds out each time, and `lookout` notices when it changes.
//!
//! Long because it is a list: each question of the seam, answered for each kind of lock.

mod address;
mod cluster;
mod condition;
mod fair;
mod handshake;
mod hub;
mod keys;
mod lane;
mod link;
mod lookout;
mod member;
mod mutex;
mod reader;
mod replicas;
mod replies;
mod reply;
mod rw;
mod script;
mod semaphore;
mod sentinel;
mod show;
mod tell;
mod token;
mod wire;

#[cfg(leasehold_shuttle)]
#[cfg(test)]
mod model;
#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::config::{RedisOptions, Replicas};
use crate::error::{Error, ErrorKind, Result};
use crate::ident::{Fence, LockName, Owner};
use crate::inspection::Inspection;
use crate::lock::queue::Wish;
use crate::lock::report::Reporter;
use crate::lock::store::{
    Answer, Attempt, Claim, Counting, HandOver, Kind, Known, Pending, Release, Sink, Snapshot, Store,
};
use crate::lock::topic::Listening;
use crate::sync::Waker;
use crate::time::{Clock, Moment};
use address::{Address, Target};
use cluster::ClusterStore;
use hub::Hub;
use lookout::Lookout;
use reply::{Expected, Failure, answer};
use script::Request;
use tell::Tell;
use token::CompareAndDelete;
use wire::{Started, Wire, maintenance};

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
    wire: Wire,
    hub: Arc<Hub>,
    /// With Sentinels only.
    lookout: Option<Lookout>,
    /// Whether scripts may be used.
    scripts: bool,
    tell: Tell,
    /// What a grant must have reached.
    replicas: Option<Replicas>,
    compare_and_delete: CompareAndDelete,
}

impl RedisStore {
    /// Connects and checks that the server can keep locks.
    pub(crate) fn connect(options: &RedisOptions, reporter: Arc<Reporter>) -> Result<RedisStore> {
        let store = RedisStore::unconnected(options, reporter)?;
        store.wire.connect_first()?;
        if options.scripts {
            let reply = store.wire.call(&probe(), Clock::System.after(options.command_timeout));
            let reply = reply.map_err(|failure| failure.into_error().during("connect"))?;
            reply::accepted(reply).map_err(|error| scripts_refused(&error))?;
        }
        Ok(store)
    }

    /// Connects when it is first asked for something.
    pub(crate) fn unconnected(options: &RedisOptions, reporter: Arc<Reporter>) -> Result<RedisStore> {
        let address = Arc::new(Address::new(options)?);
        let (pool_size, timeout) = (options.pool_size, options.command_timeout);
        let wire = Wire::new(Arc::clone(&address), pool_size, timeout, maintenance())?;
        let lookout = match &address.target {
            Target::Place(_) => None,
            Target::Master(sentinels) => Some(Lookout::start(sentinels)?),
        };
        let hub = Hub::new(address, reporter, options.linger, hub::SILENCE, &[hub::PLAIN]);
        let store = RedisStore::new(wire, hub, options.scripts, Tell::Alone, options.replicas);
        Ok(RedisStore { lookout, ..store })
    }

    fn new(wire: Wire, hub: Arc<Hub>, scripts: bool, tell: Tell, replicas: Option<Replicas>) -> RedisStore {
        let compare_and_delete = CompareAndDelete::new();
        RedisStore { wire, hub, lookout: None, scripts, tell, replicas, compare_and_delete }
    }

    /// As [`Store::hand_over`], but waits for the answer.
    fn hand_over_now(&self, from: &Claim, to: &Claim, wants_fence: bool, by: Moment) -> Answer<HandOver> {
        answer(mutex::hand_over_now(&self.wire, from, to, wants_fence, by), "lock", to.name.given())
    }

    /// As [`Store::close`], until `by` at most.
    fn close_by(&self, by: Moment) {
        self.hub.close();
        self.wire.close(by);
        if let Some(lookout) = &self.lookout {
            lookout.close();
        }
    }

    /// Which server this is, and what it is part of.
    pub(crate) fn about(&self, by: Moment) -> Result<About> {
        let reply = self.wire.call(&Request::new("INFO"), by).map_err(Failure::into_error)?;
        let reply = reply::accepted(reply).map_err(|error| reply::refusal(&error, Expected::Nothing))?;
        match reply {
            redis::Value::BulkString(text) => Ok(About::read(&String::from_utf8_lossy(&text))),
            other => Err(reply::unexpected(&other)),
        }
    }

    /// Host and port of a URL, or the socket's path: what may be shown of it.
    pub(crate) fn place(options: &RedisOptions) -> Result<String> {
        Ok(Address::new(options)?.target.to_string())
    }

    /// One request for each claim, on the connection for renewals.
    fn batch<T>(
        &self,
        claims: &[Claim],
        action: &'static str,
        by: Moment,
        ask: impl Fn(&Claim) -> Request,
        read: impl Fn(redis::Value, Expected) -> std::result::Result<T, Failure>,
    ) -> Vec<Answer<T>> {
        let requests: Vec<_> = claims.iter().map(ask).collect();
        let replies = self.wire.batch(&requests, by);
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
        request: Request,
        by: Moment,
        read: impl FnOnce(redis::Value) -> std::result::Result<T, Failure> + Send + 'static,
    ) -> Box<dyn Pending<T>> {
        if self.wire.is_asking() {
            let result = self.wire.call(&request, by).and_then(read);
            return Box::new(Known(answer(result, action, claim.name.given())));
        }
        match self.wire.start(request, by) {
            Ok(started) => Box::new(Underway { started, read, action, name: Arc::clone(&claim.name) }),
            Err(failure) => Box::new(Known(answer(Err(failure), action, claim.name.given()))),
        }
    }

    /// How many of those who hear of the lock are this client itself.
    fn own_listeners(&self, claim: &Claim) -> i64 {
        i64::from(self.heard(claim).is_some())
    }

    /// Has the owner hold nothing.
    fn removal(&self, claim: &Claim) -> Request {
        match claim.kind {
            Kind::Mutex | Kind::Fenced => mutex::removal(claim, 0, self.tell),
            Kind::Fair => fair::removal(claim, 0),
            Kind::Read | Kind::Write => rw::removal(claim, 0, self.tell),
            Kind::Semaphore | Kind::Permits | Kind::Latch | Kind::Signal => semaphore::removal(claim),
            Kind::Token => token::removal(claim),
        }
    }

    fn renew_one(&self, claim: &Claim, by: Moment) -> Answer<bool> {
        answer(token::renew(&self.wire, self.scripts, claim, by), "renew", claim.name.given())
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
fn acquisition(claim: &Claim, count: u32, wants_fence: bool) -> Option<Request> {
    match claim.kind {
        Kind::Mutex | Kind::Fenced => Some(mutex::acquisition(claim, count, wants_fence)),
        Kind::Read | Kind::Write => Some(rw::acquisition(claim, count, wants_fence)),
        Kind::Fair => Some(fair::acquisition(claim, count, wants_fence)),
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
fn probe() -> Request {
    Request::new("EVAL").arg("return 1").arg(0_u32)
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
    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        if self.scripts || kind.is_token() {
            return Ok(());
        }
        let words = "this client is set not to use scripts, which all but token locks need";
        Err(Error::new(ErrorKind::Unsupported, "lock", words).on(name.given()))
    }

    fn attempt(&self, claim: &Claim, count: u32, wants_fence: bool, by: Moment) -> Answer<Attempt> {
        // A re-entry makes no hold that a replica could forget.
        let replicas = self.replicas.filter(|_| count == 1);
        if let Some(request) = acquisition(claim, count, wants_fence) {
            let reply = match replicas {
                Some(replicas) => replicas.ask(&self.wire, request, self.removal(claim), Expected::Hash, by),
                None => mutex::run(&self.wire, &request, by),
            };
            let result = reply.and_then(|reply| mutex::attempted(&reply, wants_fence));
            return answer(result, "lock", claim.name.given());
        }
        let result = match claim.kind {
            Kind::Semaphore | Kind::Permits | Kind::Latch => semaphore::attempt(&self.wire, claim, by),
            Kind::Signal => condition::attempt(&self.wire, claim, by),
            _token => token::attempt(&self.wire, self.scripts, replicas, claim, count, by),
        };
        answer(result, "lock", claim.name.given())
    }

    fn queues(&self, kind: Kind) -> bool {
        queues(kind)
    }

    fn release(&self, claim: &Claim, left: u32, by: Moment) -> Answer<Release> {
        let result = match claim.kind {
            Kind::Mutex | Kind::Fenced => {
                self.wire.call(&mutex::removal(claim, left, self.tell), by).and_then(|reply| {
                    mutex::released(&mutex::tagged(reply, Expected::Hash)?, self.own_listeners(claim))
                })
            }
            Kind::Read | Kind::Write => rw::release(&self.wire, claim, left, self.tell, by),
            Kind::Semaphore | Kind::Permits => semaphore::release(&self.wire, claim, by),
            Kind::Latch | Kind::Signal => Ok(NOTHING_HELD),
            Kind::Fair => fair::release(&self.wire, claim, left, by),
            Kind::Token => token::release(&self.wire, self.scripts, &self.compare_and_delete, claim, by),
        };
        answer(result, "unlock", claim.name.given())
    }

    fn begin_attempt(
        &self,
        claim: &Claim,
        count: u32,
        wants_fence: bool,
        by: Moment,
    ) -> Box<dyn Pending<Attempt>> {
        match acquisition(claim, count, wants_fence) {
            Some(request) if self.replicas.is_none() => {
                let read = move |reply| mutex::attempted(&mutex::tagged(reply, Expected::Hash)?, wants_fence);
                self.begin("lock", claim, request, by, read)
            }
            _ => Box::new(Known(self.attempt(claim, count, wants_fence, by))),
        }
    }

    fn begin_release(&self, claim: &Claim, left: u32, by: Moment) -> Box<dyn Pending<Release>> {
        let (request, own_listeners) = match claim.kind {
            Kind::Mutex | Kind::Fenced => (mutex::removal(claim, left, self.tell), self.own_listeners(claim)),
            Kind::Read | Kind::Write => (rw::removal(claim, left, self.tell), 0),
            Kind::Fair => (fair::removal(claim, left), 0),
            _ => return Box::new(Known(self.release(claim, left, by))),
        };
        let read = move |reply| mutex::released(&mutex::tagged(reply, Expected::Hash)?, own_listeners);
        self.begin("unlock", claim, request, by, read)
    }

    fn together(&self, kind: Kind, _name: &LockName) -> Option<u32> {
        // One server: whatever slot a name would be in.
        (is_mutex(kind) && self.scripts && self.replicas.is_none()).then_some(0)
    }

    fn begin_attempts(
        &self,
        wishes: &[Wish],
        or_none: bool,
        by: Moment,
    ) -> Box<dyn Pending<Vec<Option<Fence>>>> {
        let Some(first) = wishes.first() else { return Box::new(Known(Answer::Done(Vec::new()))) };
        let read = |reply| mutex::acquired(&mutex::tagged(reply, Expected::Hash)?);
        self.begin("lock", &first.claim, mutex::acquisitions(wishes, or_none), by, read)
    }

    fn begin_releases(&self, claims: &[Claim], by: Moment) -> Box<dyn Pending<Vec<Release>>> {
        let Some(first) = claims.first() else { return Box::new(Known(Answer::Done(Vec::new()))) };
        let own_listeners: Vec<i64> = claims.iter().map(|claim| self.own_listeners(claim)).collect();
        let read = move |reply| mutex::all_released(&mutex::tagged(reply, Expected::Hash)?, &own_listeners);
        self.begin("unlock", first, mutex::removals(claims), by, read)
    }

    fn release_later(&self, claim: &Claim, by: Moment, done: Sink) {
        // Attempts that wait for replicas take other connections, and could overtake it.
        if claim.kind.is_token() || self.replicas.is_some() {
            return done(self.release(claim, 0, by));
        }
        if matches!(claim.kind, Kind::Latch | Kind::Signal) {
            return done(Answer::Done(NOTHING_HELD));
        }
        let own_listeners = if claim.kind.is_handed_over() { self.own_listeners(claim) } else { 0 };
        let name = Arc::clone(&claim.name);
        let take = move |outcome: lane::Outcome| {
            let result = outcome
                .and_then(|reply| mutex::released(&mutex::tagged(reply, Expected::Hash)?, own_listeners));
            let is_answered = result.is_ok();
            done(answer(result, "unlock", name.given()));
            is_answered
        };
        if claim.kind == Kind::Semaphore {
            self.wire.post_then(&self.removal(claim), &semaphore::forgetting(claim), by, take);
        } else {
            self.wire.post(
                &self.removal(claim),
                by,
                Box::new(move |outcome| {
                    take(outcome);
                }),
            );
        }
    }

    fn hand_over(&self, from: &Claim, to: &Claim, wants_fence: bool, by: Moment) -> Option<Box<dyn Pending>> {
        if !from.kind.is_handed_over() || self.replicas.is_some() {
            return None;
        }
        // What cannot be sent is released the plain way, which says why.
        let started = mutex::hand_over(&self.wire, from, to, wants_fence, by).ok()?;
        let read = move |reply| mutex::handed(reply, wants_fence);
        Some(Box::new(Underway { started, read, action: "lock", name: Arc::clone(&to.name) }))
    }

    fn tend(&self) -> bool {
        self.wire.tend()
    }

    fn hung_up(&self) -> Option<bool> {
        Some(self.wire.hung_up())
    }

    fn renew(&self, claims: &[Claim], by: Moment) -> Vec<Answer<bool>> {
        if !self.scripts {
            return claims.iter().map(|claim| self.renew_one(claim, by)).collect();
        }
        self.batch(
            claims,
            "renew",
            by,
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

    fn abandon(&self, claims: &[Claim], by: Moment) -> Vec<Answer<Release>> {
        if !self.scripts {
            return claims.iter().map(|claim| self.release(claim, 0, by)).collect();
        }
        self.batch(
            claims,
            "unlock",
            by,
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

    fn count(&self, claim: &Claim, what: &Counting, by: Moment) -> Answer<Option<i64>> {
        let result = if claim.kind == Kind::Signal {
            condition::count(&self.wire, claim, what, by)
        } else {
            semaphore::count(&self.wire, claim, what, by)
        };
        answer(result, "count", claim.name.given())
    }

    fn forget(&self, claim: &Claim, by: Moment) {
        semaphore::forget(&self.wire, claim, by);
    }

    fn can_expire_in(&self) -> bool {
        true
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, by: Moment) -> Answer<bool> {
        if claim.kind.is_token() {
            return Answer::Refused(Error::new(ErrorKind::Unsupported, "unlock", "not with a token lock"));
        }
        answer(mutex::expire_in(&self.wire, claim, rest, by), "unlock", claim.name.given())
    }

    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        let result = match kind {
            Kind::Mutex | Kind::Fenced | Kind::Fair => mutex::inspect(&self.wire, name, owner, by),
            Kind::Read | Kind::Write => rw::inspect(&self.wire, kind, name, owner, by),
            Kind::Semaphore | Kind::Permits | Kind::Latch | Kind::Signal => return uncountable(name),
            Kind::Token => token::inspect(&self.wire, name, owner, by),
        };
        answer(result.map_err(Failure::of_reading), "inspect", name.given())
    }

    fn describe(&self, name: &LockName, by: Moment) -> Answer<Inspection> {
        answer(show::describe(&self.wire, name, by).map_err(Failure::of_reading), "inspect", name.given())
    }

    fn force(&self, kind: Kind, name: &LockName, by: Moment) -> Answer<bool> {
        let result = match kind {
            Kind::Mutex | Kind::Fenced => mutex::force(&self.wire, name, self.tell, by),
            Kind::Read | Kind::Write => rw::force(&self.wire, kind, name, self.tell, by),
            Kind::Semaphore | Kind::Permits | Kind::Latch | Kind::Signal => return uncountable(name),
            Kind::Fair => fair::force(&self.wire, name, by),
            Kind::Token => token::force(&self.wire, name, by),
        };
        answer(result, "force_unlock", name.given())
    }

    fn poll_every(&self, kind: Kind) -> (Duration, Duration) {
        poll_every(kind)
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Listening> {
        if claim.kind.is_token() {
            return None;
        }
        self.hub.listen(&channel(claim), waker)
    }

    fn heard(&self, claim: &Claim) -> Option<u64> {
        if claim.kind.is_token() {
            return None;
        }
        self.hub.heard(|| channel(claim))
    }

    fn close(&self) {
        self.close_by(Moment::NEVER);
    }
}
