//! The store of one server. The module of a lock's kind makes each request and reads its reply.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::config::ServerOptions;
use crate::error::{Error, Result};
use crate::ident::{LockName, Owner};
use crate::inspect::Inspection;
use crate::observe::reporter::Reporter;
use crate::seam::capabilities::{Batches, CachedCheck, ConnectionWatch, HoldCaching, WaitQueues};
use crate::seam::hub::Hub;
use crate::seam::subscription::{Subscription, count_of_all};
use crate::seam::{
    Answer, Attempt, Capabilities, Claim, Counting, Failure, Handoff, Inspect, Kind, Pending, Release, Sink,
    Snapshot, Store, named,
};
use crate::stores::redis::about::{About, agree_on_format, probe, scripts_refused};
use crate::stores::redis::acks::Acks;
use crate::stores::redis::address::{RedisAddress, Target};
use crate::stores::redis::conn::connections::{Connections, maintenance};
use crate::stores::redis::keys;
use crate::stores::redis::kinds::kind::{
    RedisCall, RedisKind, RedisServer, needs_release, release_reply, unsupported,
};
use crate::stores::redis::kinds::{self, replies};
use crate::stores::redis::pubsub::{self, RedisPubSub, SubscribeMode};
use crate::stores::redis::reply::{self, Tagged, tagged};
use crate::stores::redis::script::Command;
use crate::stores::redis::sentinel::monitor::SentinelMonitor;
use crate::stores::redis::show;
use crate::sync::{Mutex, OnceLock, Waker};
use crate::time::{Clock, Moment};

pub(crate) struct RedisStore {
    pub(super) server: RedisServer,
    monitor: Option<SentinelMonitor>,
    /// Whether one script may use the keys of several locks, which is impossible in a cluster.
    pub(super) has_all_keys: bool,
    may_store_format: bool,
    /// Whether the server had a format number after the first request for it. Empty before that.
    had_format: OnceLock<bool>,
    /// The error of the last write of this client's directory entry, if the writer did not wait for it.
    pub(super) failed_entry: Arc<Mutex<Option<Error>>>,
}

impl RedisStore {
    /// Connects, and checks the server. Does not store the format number; [`RedisStore::note_format`] does.
    pub(crate) fn connect(options: &ServerOptions, reporter: Arc<Reporter>) -> Result<RedisStore> {
        let store = RedisStore::unconnected(options, reporter)?;
        store.server.connections.connect_first()?;
        let deadline = Clock::System.after(options.command_timeout);
        let probed = store.agree(false, Some(probe()), deadline);
        if let Some(reply) = probed.map_err(|failure| failure.into_error().during("connect"))? {
            reply::accepted(reply).map_err(|error| scripts_refused(&error))?;
        }
        Ok(store)
    }

    pub(crate) fn unconnected(options: &ServerOptions, reporter: Arc<Reporter>) -> Result<RedisStore> {
        let address = Arc::new(RedisAddress::renewable(options)?);
        let (pool_size, timeout) = (options.pool_size, options.command_timeout);
        let connections = Connections::new(Arc::clone(&address), pool_size, timeout, maintenance())?;
        let monitor = match &address.target {
            Target::Place(_) => None,
            Target::Master(sentinels) => Some(SentinelMonitor::start(sentinels)?),
        };
        let store = RedisStore::new(connections, options, &reporter, &[pubsub::PLAIN], monitor.is_some());
        Ok(RedisStore { monitor, has_all_keys: true, may_store_format: options.notes, ..store })
    }

    /// With `has_replicas` (Sentinels, a cluster) each grant waits for a replica, unless `options` forbid it.
    pub(super) fn new(
        connections: Connections,
        options: &ServerOptions,
        reporter: &Arc<Reporter>,
        modes: &'static [SubscribeMode],
        has_replicas: bool,
    ) -> RedisStore {
        let (address, connections) = (Arc::clone(&connections.address), Arc::new(connections));
        let place = address.target.to_string();
        let protocol = RedisPubSub { address, silence: pubsub::SILENCE, modes };
        let subscriber = Hub::new(protocol, Some(Arc::clone(reporter)), options.unsubscribe_delay);
        let copies = options.copies(has_replicas);
        let acks = copies.map(|wanted| Acks::new(&connections, wanted, reporter, &place));
        let weak = Arc::downgrade(&subscriber);
        connections.ledger.on_demotion(move || {
            if let Some(subscriber) = weak.upgrade() {
                subscriber.state.lock().own.hang_up();
            }
        });
        let server = RedisServer { connections, subscriber, acks, queues_refused: Arc::default() };
        RedisStore {
            server,
            monitor: None,
            has_all_keys: false,
            may_store_format: false,
            had_format: OnceLock::default(),
            failed_entry: Arc::default(),
        }
    }

    pub(super) fn agree(
        &self,
        notes: bool,
        first: Option<Command>,
        deadline: Moment,
    ) -> Answer<Option<Value>> {
        let notes = notes && self.may_store_format;
        let (is_there, reply) = agree_on_format(&self.server.connections, (notes, false), first, deadline)?;
        self.had_format.get_or_init(|| is_there);
        Ok(reply)
    }

    /// Stores the format number if the server had none. Not a part of `connect`, so that a caller with
    /// several servers can check all of them before it changes one.
    pub(crate) fn note_format(&self, deadline: Moment) -> Answer<()> {
        if self.had_format.get() == Some(&false) {
            self.agree(true, None, deadline).map(drop)
        } else {
            Ok(())
        }
    }

    pub(super) fn agree_once(&self, deadline: Moment) -> Answer<()> {
        if self.had_format.get().is_some() { Ok(()) } else { self.agree(true, None, deadline).map(drop) }
    }

    pub(super) fn until(&self, deadline: Moment) -> RedisCall<'_> {
        RedisCall { server: &self.server, deadline }
    }

    pub(super) fn close_by(&self, deadline: Moment) {
        self.server.subscriber.close();
        self.server.connections.close(deadline);
        if let Some(monitor) = &self.monitor {
            monitor.close();
        }
    }

    pub(crate) fn about(&self, deadline: Moment) -> Result<About> {
        About::of(&self.server.connections, deadline)
    }

    /// Host and port of a URL, the path of its socket, or its master's name, without any password.
    pub(crate) fn place(options: &ServerOptions) -> Result<String> {
        Ok(RedisAddress::new(options)?.target.to_string())
    }

    /// Sends each claim's request on the connection for renewals. Refuses a claim if `ask` has no request.
    fn batch<T>(
        &self,
        claims: &[Claim],
        deadline: Moment,
        ask: impl Fn(&dyn RedisKind, &Claim) -> Option<Command>,
        read: fn(&Tagged) -> Answer<T>,
    ) -> Vec<Answer<T>> {
        let commands: Vec<_> = claims.iter().map(|claim| ask(kinds::of(claim.kind), claim)).collect();
        let is_sent: Vec<bool> = commands.iter().map(Option::is_some).collect();
        let commands = commands.into_iter().flatten().collect();
        let mut replies = self.server.connections.batch(commands, deadline).into_iter();
        let answers = claims.iter().zip(is_sent).map(|(claim, is_sent)| {
            let reply = if is_sent { replies.next() } else { None };
            let result = reply.unwrap_or_else(|| Err(unsupported("this kind of lock has no such request")));
            named(result.and_then(|reply| read(&tagged(reply)?)), "renew", claim.name.given())
        });
        answers.collect()
    }
}

impl Store for RedisStore {
    fn capabilities(self: Arc<Self>) -> Capabilities {
        Capabilities {
            can_expire_in: true,
            queues: Kind::is_in_order,
            cleaned_up_at_a_time: if self.has_all_keys { RedisStore::ended_at_a_time } else { |_| 1 },
            batches: Some(self.clone()),
            connections: Some(self.clone()),
            wait_queues: Some(self.clone()),
            hold_caching: Some(self.clone()),
            directory: Some(self.clone()),
            ..Capabilities::default()
        }
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        self.begin_attempt(claim, count, deadline).wait()
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        self.begin_release(claim, left, deadline).wait()
    }

    fn release_later(&self, claim: &Claim, deadline: Moment, done: Sink) {
        if !needs_release(claim.kind) {
            return done.answer(self.release_or_leave(claim, deadline));
        }
        let (server, kind) = (&self.server, kinds::of(claim.kind));
        let (own_listeners, refused) =
            (kind.own_listeners(server, claim), Arc::clone(&server.queues_refused));
        let (name, releasing) = (Arc::clone(&claim.name), done.releasing());
        let forgetting = kind.forgetting(claim);
        let take = move |outcome: Answer<Value>| {
            let result =
                outcome.and_then(|reply| kind.released(&release_reply(reply, &refused)?, own_listeners));
            let forgetting = forgetting.filter(|_| result.is_ok());
            done.answer(named(result, "unlock", name.given()));
            forgetting
        };
        let removal = if claim.waits { kind.leaving(claim) } else { kind.removal(claim, 0) };
        server.connections.post(removal, deadline, releasing, take);
    }

    fn hand_off(&self, from: &Claim, to: &Claim, deadline: Moment) -> Option<Box<dyn Pending>> {
        let command = kinds::of(from.kind).hand_off(from, to)?;
        let (acks, wants_fence, claim) = (self.server.acks.clone(), to.wants_fence, to.clone());
        let read = move |reply| {
            let handed = replies::handed(&tagged(reply)?, wants_fence)?;
            // If replicas do not acknowledge the hand-off, its outcome is unknown: both threads take new
            // owner numbers, and a clean-up ends the hold.
            if let (Handoff::Granted { .. }, Some(acks)) = (&handed, acks) {
                acks.wait_for_copies(&kinds::of(claim.kind).grant(&claim), deadline)
                    .map_err(Failure::Unknown)?;
            }
            Ok(handed)
        };
        // If the hand-off cannot be sent, the caller releases the lock, and the release reports the error.
        self.begin("lock", to, command, deadline, read).ok()
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        self.batch(claims, deadline, |kind, claim| kind.renewal(claim), replies::renewed)
    }

    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        self.end_all(claims, deadline)
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        let result = kinds::of(claim.kind).expire_in(&self.until(deadline), claim, rest);
        named(result, "unlock", claim.name.given())
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        named(kinds::of(kind).force(&self.until(deadline), name), "force_unlock", name.given())
    }

    fn count(&self, claim: &Claim, what: &Counting, deadline: Moment) -> Answer<Option<i64>> {
        let result = kinds::of(claim.kind).count(&self.until(deadline), claim, what);
        named(result, "count", claim.name.given())
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        let listen = |channel: String| self.server.subscriber.listen(&channel, waker);
        Subscription::all(kinds::for_each_channel(claim, listen)?)
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        let subscriber = &self.server.subscriber;
        if subscriber.is_idle() {
            return None; // the usual case, in which no channel's name is built
        }
        count_of_all(kinds::for_each_channel(claim, |channel| subscriber.message_count(|| Some(channel)))?)
    }

    fn poll_completions(&self) -> bool {
        self.server.connections.shared.poll_completions()
    }

    fn close(&self) {
        self.close_by(Moment::NEVER);
    }
}

impl Inspect for RedisStore {
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        let result = kinds::of(kind).inspect(&self.until(by), name, owner);
        named(result.map_err(Failure::of_reading), "inspect", name.given())
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        let result = show::describe(&self.server.connections, name, deadline);
        named(result.map_err(Failure::of_reading), "inspect", name.given())
    }
}

impl WaitQueues for RedisStore {
    fn is_refused(&self) -> bool {
        self.server.queues_refused.stands(|| Clock::System.now())
    }

    fn leave_wait_queue(&self, claim: &Claim, deadline: Moment) {
        if let Some(command) = kinds::of(claim.kind).leaving_queue(claim) {
            let connections = &self.server.connections;
            // If the command fails, the client stops listening, so that releases skip it in the queue.
            let channel = kinds::of(claim.kind).turn_channel(claim);
            let subscriber = Arc::clone(&self.server.subscriber);
            let take = move |outcome: Answer<Value>| {
                if !matches!(outcome.map(reply::accepted), Ok(Ok(_))) {
                    channel.iter().for_each(|channel| subscriber.end_soon(channel));
                }
                None
            };
            // `None`: not sent again after NOSCRIPT, because the client may be in the queue again by then.
            connections.post(command, deadline, None, take);
        }
    }

    fn end_release_watch(&self, claim: &Claim) {
        if let Some(channel) = kinds::of(claim.kind).channel(claim) {
            self.server.subscriber.end_soon(&channel);
        }
    }
}

impl ConnectionWatch for RedisStore {
    fn hung_up(&self) -> Option<bool> {
        Some(self.server.connections.hung_up())
    }
}

impl HoldCaching for RedisStore {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        let channel = keys::turn_channel(claim.name.key(), claim.owner.client());
        self.server.subscriber.listen(&channel, waker)
    }

    fn check_holds(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<CachedCheck>> {
        let check = |kind: &dyn RedisKind, claim: &Claim| {
            kind.check_cached(claim, kind.own_listeners(&self.server, claim))
        };
        self.batch(claims, deadline, check, replies::checked)
    }
}
