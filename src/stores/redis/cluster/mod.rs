//! A Redis Cluster, in which each lock is on the member that has the slot of its name.
//!
//! `slots` computes a name's slot, `topology` knows each slot's member, and `wakeups` moves channels with
//! their slots. Each member is used like a single server. A member without the slot changes nothing and names
//! the right member, to which the request is then sent. A request without an answer is not sent again.
//!
//! This file is long because each method of the store trait must find the member of its slot.

mod directory;
pub(super) mod slots;
mod topology;
mod wakeups;

use std::sync::{Arc, Weak};
use std::time::Duration;

use self::slots::{keeps_its_slot, slot};
use self::topology::{ClusterNode, Topology};
use crate::config::ServerOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::Host;
use crate::ident::{FencingToken, LockName, Owner};
use crate::inspect::Inspection;
use crate::observe::reporter::Reporter;
use crate::refused::Refused;
use crate::seam::capabilities::{Batches, CachedCheck, ConnectionWatch, HoldCaching, WaitQueues};
use crate::seam::subscription::{Subscription, count_of_all};
use crate::seam::{
    Answer, Attempt, Capabilities, Claim, Counting, Failure, Inspect, Kind, Pending, Release, Sink, Snapshot,
    Store, ask_groups, ready,
};
use crate::shrink::CrowdMap;
use crate::stores::redis::about::{agree_on_format, format_key};
use crate::stores::redis::conn::connection::Endpoint;
use crate::stores::redis::keys;
use crate::stores::redis::kinds;
use crate::stores::redis::kinds::kind::needs_release;
use crate::stores::redis::reply::{Redirect, is_split};
use crate::stores::redis::store::RedisStore;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Waker};
use crate::time::{Clock, Moment};

/// Maximum number of redirects for one request. A slot that moves causes fewer.
const MOST_REDIRECTS: usize = 4;

/// How long the client waits until it asks a silent member for the format number (`seam/format.rs`) again.
const FORMAT_AGAIN: Duration = Duration::from_secs(2);

pub(crate) struct ClusterStore {
    topology: Topology,
    unread: UnreadReleases,
    command_timeout: Duration,
    notes: bool,
    has_agreed: AtomicBool,
    /// Set for [`FORMAT_AGAIN`] by a request for the format number, so that other threads do not ask too.
    format_is_away: Refused,
    /// The store itself, for functions that run after the caller has returned.
    me: Weak<ClusterStore>,
}

/// The locks with an unanswered release for which no thread waits. Later requests about them, except batches,
/// go to the release's member, even if the slot has moved. Otherwise an attempt could reach the new member
/// before the release, and be granted as a re-entry of the hold that the release then deletes.
#[derive(Default)]
struct UnreadReleases(Mutex<CrowdMap<Box<str>, SentRelease>>);

struct SentRelease {
    number: u64,
    node: Arc<ClusterNode>,
}

#[derive(Clone)]
struct SlotPlace {
    node: Arc<ClusterNode>,
    /// Whether ASKING must precede the request, because the slot is still moving to this member.
    asking: bool,
}

impl ClusterStore {
    pub(super) fn connect(options: &ServerOptions, reporter: &Arc<Reporter>) -> Result<Arc<ClusterStore>> {
        let topology = Topology::connect(options, reporter)?;
        let store = Arc::new_cyclic(|me| ClusterStore {
            topology,
            unread: UnreadReleases::default(),
            command_timeout: options.command_timeout,
            notes: options.notes,
            has_agreed: AtomicBool::new(false),
            format_is_away: Refused::default(),
            me: me.clone(),
        });
        store.agree("connect").inspect_err(|_| store.close())?;
        Ok(store)
    }

    /// Refuses a stored format number other than this version's. If none is stored, stores this version's,
    /// unless `notes` is false. If the member with the number does not answer, the client starts anyway, and
    /// asks again before later attempts.
    fn agree(&self, action: &'static str) -> Result<()> {
        if self.has_agreed.load(Ordering::Relaxed) || self.format_is_away.stands(|| Clock::System.now()) {
            return Ok(());
        }
        self.format_is_away.note_for(Clock::System.now(), FORMAT_AGAIN);
        let (key, deadline) = (LockName::reserved(format_key()), Clock::System.after(topology::MAX_RELOAD));
        match self.ask(action, &key, deadline, |member| {
            agree_on_format(&member.server.connections, (self.notes, true), None, deadline)
        }) {
            Err(Failure::Refused(error)) if error.kind() == ErrorKind::IncompatibleFormat => {
                self.format_is_away.note_for(Clock::System.now(), Duration::ZERO);
                return Err(error);
            }
            Ok(_) => self.has_agreed.store(true, Ordering::Relaxed),
            Err(_) => {}
        }
        Ok(())
    }

    #[cfg(all(test, unix))]
    pub(super) fn doubt(&self) {
        self.topology.doubt();
    }

    fn place(&self, action: &'static str, name: &LockName, deadline: Moment) -> Answer<SlotPlace> {
        let node = match self.unread.node(name) {
            Some(node) => Ok(node),
            None => self.topology.primary(slot(name.key()), deadline),
        };
        let refused = |error: Error| Failure::Refused(error.during(action).on(name.given()));
        Ok(SlotPlace { node: node.map_err(refused)?, asking: false })
    }

    fn ask<T>(
        &self,
        action: &'static str,
        name: &LockName,
        deadline: Moment,
        send: impl Fn(&RedisStore) -> Answer<T>,
    ) -> Answer<T> {
        let place = self.place(action, name, deadline)?;
        let answer = self.send(&place, &send);
        self.follow(place, answer, send)
    }

    fn follow<T>(
        &self,
        mut place: SlotPlace,
        mut answer: Answer<T>,
        send: impl Fn(&RedisStore) -> Answer<T>,
    ) -> Answer<T> {
        for _ in 0..MOST_REDIRECTS {
            let Some(next) = self.redirected(&place, &answer) else { break };
            place = next;
            answer = self.send(&place, &send);
        }
        self.noted(answer)
    }

    fn begin<T: Send + 'static>(
        &self,
        action: &'static str,
        name: &LockName,
        deadline: Moment,
        begin: impl Fn(&RedisStore) -> Box<dyn Pending<T>> + Send + 'static,
    ) -> Box<dyn Pending<T>> {
        let place = match self.place(action, name, deadline) {
            Ok(place) => place,
            Err(failure) => return ready(Err(failure)),
        };
        let pending = begin(&place.node.store);
        match self.me.upgrade() {
            Some(store) => Box::new(move || store.follow(place, pending.wait(), |store| begin(store).wait())),
            None => pending,
        }
    }

    fn send<T>(&self, place: &SlotPlace, send: impl Fn(&RedisStore) -> Answer<T>) -> Answer<T> {
        if place.asking {
            let asking = self.topology.asking(&place.node).map_err(Failure::Refused)?;
            send(&asking)
        } else {
            send(&place.node.store)
        }
    }

    fn redirected<T>(&self, from: &SlotPlace, answer: &Answer<T>) -> Option<SlotPlace> {
        let Err(Failure::Refused(error)) = answer else { return None };
        let redirect = Redirect::of(error)?;
        let host = match &*redirect.host {
            "" => from.node.endpoint.host.clone(),
            host => Host::named(host),
        };
        let endpoint = Endpoint { host, port: redirect.port };
        if !redirect.asking {
            self.topology.moved(&endpoint);
        }
        let node = self.topology.node(&endpoint).ok()?;
        Some(SlotPlace { node, asking: redirect.asking })
    }

    /// If an outdated map may have caused the failure, marks the map, so that the next request reloads it.
    fn noted<T>(&self, answer: Answer<T>) -> Answer<T> {
        use ErrorKind::{Busy, ReadOnly, TimedOut, Unreachable};
        match answer {
            Err(Failure::Refused(error)) if Redirect::of(&error).is_some() => {
                self.topology.doubt();
                let moving = Error::new(Busy, "request", "the cluster is moving the lock").with_source(error);
                Err(Failure::Refused(moving))
            }
            // The script failed half-way, at a moved key that is not in KEYS: the outcome is unknown.
            Err(Failure::Refused(error)) if is_split(&error) => {
                Err(Failure::Unknown(error.with_unknown_outcome()))
            }
            Err(failure) if matches!(failure.error().kind(), Unreachable | TimedOut | ReadOnly | Busy) => {
                self.topology.doubt();
                Err(failure)
            }
            other => other,
        }
    }

    /// Asks all members at the same time, so that a silent one does not delay the claims on others.
    fn ask_all<T: Send>(
        &self,
        claims: &[Claim],
        deadline: Moment,
        send: impl Fn(&RedisStore, &[Claim]) -> Vec<Answer<T>> + Sync,
    ) -> Vec<Answer<T>> {
        // Not `place`, which sends a request to the member with an unanswered release of the same lock: a
        // batch uses another connection, so it would not arrive behind the release.
        let primary = |claim: &Claim| match self.topology.primary(slot(claim.name.key()), deadline) {
            Ok(node) => (Some(SlotPlace { node, asking: false }), None),
            Err(error) => (None, Some(Failure::refused(error))),
        };
        let (mut places, mut answers): (Vec<_>, Vec<_>) = claims.iter().map(primary).unzip();
        for round in 0..=MOST_REDIRECTS {
            let asked = ask_groups(claims, &places, |place, claims| {
                let answers = self.send(place, |store| Ok(send(store, claims)));
                answers.unwrap_or_else(|failure| failure.each(claims.len()))
            });
            for ((place, answer), asked) in places.iter_mut().zip(&mut answers).zip(asked) {
                let from = place.take().filter(|_| round < MOST_REDIRECTS);
                if let Some(asked) = asked {
                    *place = from.and_then(|from| self.redirected(&from, &asked));
                    *answer = Some(asked);
                }
            }
            if places.iter().all(Option::is_none) {
                break;
            }
        }
        let missing =
            || Err(Failure::Unknown(Error::new(ErrorKind::Protocol, "request", "no answer was read")));
        answers.into_iter().map(|answer| self.noted(answer.unwrap_or_else(missing))).collect()
    }

    /// Sends a release without waiting. The thread that reads the answer follows redirects.
    fn post(&self, node: &Arc<ClusterNode>, claim: &Claim, deadline: Moment, redirects: usize, done: Sink) {
        let number = self.unread.add(&claim.name, node);
        let (me, node_there, posted) = (self.me.clone(), Arc::clone(node), claim.clone());
        let releasing = done.releasing();
        let take = Sink::new(move |answer| {
            let Some(store) = me.upgrade() else { return done.answer(answer) };
            let from = SlotPlace { node: node_there, asking: false };
            let next = if redirects > 0 { store.redirected(&from, &answer) } else { None };
            let answer = match next {
                // The release goes over the shared connection, so that it arrives before later requests.
                Some(SlotPlace { node, asking: false }) => {
                    return store.post(&node, &posted, deadline, redirects - 1, done);
                }
                Some(place) => store.send(&place, |store| store.release_or_leave(&posted, deadline)),
                None => answer,
            };
            store.unread.remove(&posted.name, number);
            done.answer(store.noted(answer));
        });
        node.store.release_later(claim, deadline, take.of(releasing));
    }
}

impl PartialEq for SlotPlace {
    fn eq(&self, other: &SlotPlace) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.asking == other.asking
    }
}

impl UnreadReleases {
    fn node(&self, name: &LockName) -> Option<Arc<ClusterNode>> {
        self.0.lock().get(name.key()).map(|sent| Arc::clone(&sent.node))
    }

    fn add(&self, name: &LockName, node: &Arc<ClusterNode>) -> u64 {
        let mut unread = self.0.lock();
        let number = unread.get(name.key()).map_or(0, |last| last.number + 1);
        unread.insert(name.key().into(), SentRelease { number, node: Arc::clone(node) });
        number
    }

    /// Removes the release, unless a later release of the same lock is registered.
    fn remove(&self, name: &LockName, number: u64) {
        let mut unread = self.0.lock();
        if unread.get(name.key()).is_some_and(|last| last.number == number) {
            unread.remove(name.key());
        }
    }

    fn nodes(&self) -> Vec<Arc<ClusterNode>> {
        self.0.lock().values().map(|sent| Arc::clone(&sent.node)).collect()
    }
}

impl Store for ClusterStore {
    fn capabilities(self: Arc<Self>) -> Capabilities {
        Capabilities {
            can_expire_in: true,
            queues: Kind::is_in_order,
            batches: Some(self.clone()),
            connections: Some(self.clone()),
            wait_queues: Some(self.clone()),
            hold_caching: Some(self.clone()),
            directory: Some(self.clone()),
            ..Capabilities::default()
        }
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        // A latch's channel is `…{name}`: if the name has braces too, the channel has another slot.
        let has_own_braces = kind == Kind::Latch && name.key().contains('{');
        if kind.is_token() || keeps_its_slot(name.key()) && !has_own_braces {
            return Ok(());
        }
        let words = "in a cluster a name must have no braces, or some text between its first { and the next \
            }: otherwise the lock's further keys would be on other members";
        Err(Error::invalid("lock", words).on(name.given()))
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        self.agree("lock").map_err(Failure::Refused)?;
        self.ask("lock", &claim.name, deadline, |store| store.attempt(claim, count, deadline))
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        self.ask("unlock", &claim.name, deadline, |store| store.release(claim, left, deadline))
    }

    fn release_later(&self, claim: &Claim, deadline: Moment, done: Sink) {
        if !needs_release(claim.kind) {
            return done.answer(self.release_or_leave(claim, deadline));
        }
        match self.place("unlock", &claim.name, deadline) {
            Ok(place) => self.post(&place.node, claim, deadline, MOST_REDIRECTS, done),
            Err(failure) => done.answer(Err(failure)),
        }
    }

    fn hand_off(&self, from: &Claim, to: &Claim, deadline: Moment) -> Option<Box<dyn Pending>> {
        let place = self.place("lock", &from.name, deadline).ok()?;
        let (pending, store) = (place.node.store.hand_off(from, to, deadline)?, self.me.upgrade()?);
        // A redirected hand-off is not sent again: the engine then releases the lock.
        Some(Box::new(move || store.noted(pending.wait())))
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        self.ask_all(claims, deadline, |store, claims| store.renew(claims, deadline))
    }

    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        self.ask_all(claims, deadline, |store, claims| store.clean_up(claims, deadline))
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        self.ask("unlock", &claim.name, deadline, |store| store.expire_in(claim, rest, deadline))
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        self.ask("force_unlock", name, deadline, |store| store.force(kind, name, deadline))
    }

    fn count(&self, claim: &Claim, what: &Counting, deadline: Moment) -> Answer<Option<i64>> {
        if *what == Counting::Forget {
            // A redirect is not followed: if the slot has moved, the record of the change expires.
            if let Ok(place) = self.place("count", &claim.name, deadline) {
                drop(place.node.store.count(claim, what, deadline));
            }
            return Ok(None);
        }
        self.ask("count", &claim.name, deadline, |store| store.count(claim, what, deadline))
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        Subscription::all(kinds::for_each_channel(claim, |channel| self.topology.listen(&channel, waker))?)
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        count_of_all(kinds::for_each_channel(claim, |channel| self.topology.wakeups.message_count(&channel))?)
    }

    fn poll_completions(&self) -> bool {
        let mut nodes = self.topology.nodes();
        nodes.extend(self.unread.nodes());
        nodes.iter().filter(|node| node.store.poll_completions()).count() > 0
    }

    fn close(&self) {
        let mut nodes = self.topology.nodes();
        nodes.extend(self.unread.nodes());
        nodes.iter().for_each(|node| node.store.server.subscriber.dismiss());
        // All members share one deadline, so that the waits for silent members do not add up.
        let deadline = Clock::System.after(self.command_timeout);
        for node in nodes {
            node.store.close_by(deadline);
            if let Some(asking) = node.asking() {
                asking.close_by(deadline);
            }
        }
    }
}

impl Inspect for ClusterStore {
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        self.ask("inspect", name, by, |store| store.inspect(kind, name, owner, by))
            .map_err(Failure::of_reading)
    }

    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        self.ask("inspect", name, deadline, |store| store.describe(name, deadline))
            .map_err(Failure::of_reading)
    }
}

impl Batches for ClusterStore {
    fn begin_attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Box<dyn Pending<Attempt>> {
        let sent = claim.clone();
        let begin = move |store: &RedisStore| store.begin_attempt(&sent, count, deadline);
        self.begin("lock", &claim.name, deadline, begin)
    }

    fn begin_release(&self, claim: &Claim, left: u32, deadline: Moment) -> Box<dyn Pending<Release>> {
        let sent = claim.clone();
        self.begin("unlock", &claim.name, deadline, move |store| store.begin_release(&sent, left, deadline))
    }

    fn group(&self, kind: Kind, name: &LockName) -> Option<u32> {
        kind.has_queue().then(|| u32::from(slot(name.key())))
    }

    fn begin_attempts(
        &self,
        claims: &[Claim],
        or_none: bool,
        deadline: Moment,
    ) -> Box<dyn Pending<Vec<Option<FencingToken>>>> {
        let Some(first) = claims.first() else { return ready(Ok(Vec::new())) };
        let sent = claims.to_vec();
        self.begin("lock", &first.name, deadline, move |store| store.begin_attempts(&sent, or_none, deadline))
    }

    fn begin_releases(&self, claims: &[Claim], deadline: Moment) -> Box<dyn Pending<Vec<Release>>> {
        let Some(first) = claims.first() else { return ready(Ok(Vec::new())) };
        let sent = claims.to_vec();
        self.begin("unlock", &first.name, deadline, move |store| store.begin_releases(&sent, deadline))
    }
}

impl WaitQueues for ClusterStore {
    fn is_refused(&self) -> bool {
        self.topology.settings.queues_refused.stands(|| Clock::System.now())
    }

    /// Leaves the wait queue on the slot's last known member. A place on any other member expires by itself.
    fn leave_wait_queue(&self, claim: &Claim, deadline: Moment) {
        if let Ok(place) = self.place("lock", &claim.name, deadline) {
            place.node.store.leave_wait_queue(claim, deadline);
        }
    }

    fn end_release_watch(&self, claim: &Claim) {
        if let Some(channel) = kinds::of(claim.kind).channel(claim) {
            self.topology.wakeups.end_soon(&channel);
        }
    }
}

impl ConnectionWatch for ClusterStore {
    fn hung_up(&self) -> Option<bool> {
        Some(self.topology.nodes().iter().filter(|node| node.store.hung_up() == Some(true)).count() > 0)
    }
}

impl HoldCaching for ClusterStore {
    fn hear(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        self.topology.listen(&keys::turn_channel(claim.name.key(), claim.owner.client()), waker)
    }

    fn check_holds(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<CachedCheck>> {
        self.ask_all(claims, deadline, |store, claims| store.check_holds(claims, deadline))
    }
}
