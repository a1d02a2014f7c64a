//! Redlock: one lock held on a majority of several independent stores.
//!
//! `votes` combines answers, `node` knows which servers can be asked, `connect` connects, `monitor` is the
//! thread for work that no caller waits for, `restores` returns holds to servers that lost them, `directory`
//! lists locks and clients. An acquire or release goes to all usable servers before the first answer is
//! read; renewals and inspections ask one server after the other. A server that does not answer in time gets
//! no further request until it answers the monitor, so callers wait only once for a dead server.
//!
//! An owner is `client:number`. Invariant: while a request under an owner number may still arrive at a
//! server, no other hold uses that number. Otherwise a late release could delete the new hold's key on that
//! server, and cost the hold its majority. The monitor raises the lowest usable number
//! (`first_unspent_number`), and `Engine::next_number` reads it for each new number.

mod connect;
mod directory;
mod monitor;
mod node;
mod restores;
mod votes;

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::ident::{ClientId, LockName, Owner};
use crate::inspect::{Inspection, ObjectKind};
use crate::seam::capabilities::{ConnectionWatch, Majority, SPLIT_PAUSE, any_hung_up};
use crate::seam::subscription::{Subscription, count_of_several};
use crate::seam::{
    Answer, Attempt, Capabilities, Claim, Failure, Inspect, Kind, OpenStore, Pending, Release, Sink,
    Snapshot, Store, granted_too_late, ready,
};
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, Waker, at_once};
use crate::time::{Clock, Moment, random_between};
use monitor::{NodeMonitor, PendingRelease, batch_timeout};
pub(crate) use node::{Voter, VotingNode};
use votes::{Votes, majority, not_held, say_attempt, say_release, validity};

const SHORTEST_NODE_TIMEOUT: Duration = Duration::from_millis(10);

pub(crate) struct Redlock {
    monitor: Arc<NodeMonitor>,
    /// The owners that got only a minority, and the end of each one's pause. If owners who each got some
    /// servers tried again at once, none might get a majority again.
    pauses: Mutex<Vec<(Owner, Arc<LockName>, Moment)>>,
}

impl Redlock {
    fn members(&self) -> impl Iterator<Item = &Voter> {
        self.monitor.nodes.iter().filter_map(|node| node.member.get())
    }

    fn node_by(&self, lease: Duration, deadline: Moment) -> Moment {
        // At least 10 ms: healthy nodes may need more than a tenth of a short lease, and would seem silent.
        let timeout = self.monitor.node_timeout.min((lease / 10).max(SHORTEST_NODE_TIMEOUT));
        deadline.min(Clock::System.after(timeout))
    }

    fn node_until(&self, deadline: Moment) -> Moment {
        deadline.min(Clock::System.after(self.monitor.node_timeout))
    }

    fn ask<T: 'static>(
        &self,
        claim: &Claim,
        deadline: Moment,
        begin: impl Fn(&OpenStore, &Claim, Moment) -> Box<dyn Pending<T>>,
    ) -> Votes<T> {
        let answers = self.ask_those(claim, deadline, |_| true, begin);
        Votes(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    fn ask_those<T: 'static>(
        &self,
        claim: &Claim,
        deadline: Moment,
        which: impl Fn(usize) -> bool,
        begin: impl Fn(&OpenStore, &Claim, Moment) -> Box<dyn Pending<T>>,
    ) -> Vec<(usize, Answer<T>)> {
        let nodes = self.monitor.nodes.iter().enumerate().filter(|(at, _)| which(*at));
        let begun: Vec<_> = nodes
            .map(|(at, node)| {
                let begin = |store: &OpenStore| {
                    Ok(begin(store, &node.claim(claim)?, self.node_by(claim.lease, deadline)))
                };
                (at, node, node.ready().and_then(begin))
            })
            .collect();
        // The answers are read in reverse order: once the last node has answered, usually all have, so this
        // thread wakes once.
        let answers = begun.into_iter().rev().map(|(at, node, begun)| match begun {
            Ok(pending) => (at, self.monitor.noted(node, claim, pending.wait())),
            Err(error) => (at, Err(Failure::Refused(error))),
        });
        let mut answers: Vec<_> = answers.collect();
        answers.reverse();
        answers
    }

    /// Replaces answers by "not held" if their servers do not count for the claim (see `restores`) now, or
    /// did not when the request was sent (`before`).
    fn counted<T>(
        &self,
        claim: &Claim,
        votes: Votes<T>,
        before: &[usize],
        not_held: impl Fn() -> T,
    ) -> Votes<T> {
        votes.discounted(before, &not_held).discounted(&self.monitor.restores.uncounted(claim), &not_held)
    }

    fn one<T>(
        &self,
        node: &VotingNode,
        name: &LockName,
        deadline: Moment,
        ask: impl Fn(&OpenStore, &LockName, Moment) -> Answer<T>,
    ) -> Answer<T> {
        let store = node.ready().map_err(Failure::Refused)?;
        let renamed = node.renamed(name).map_err(Failure::Refused)?;
        ask(store, renamed.as_ref().unwrap_or(name), self.node_until(deadline))
    }

    fn each<T>(
        &self,
        name: &LockName,
        deadline: Moment,
        ask: impl Fn(&OpenStore, &LockName, Moment) -> Answer<T>,
    ) -> Votes<T> {
        Votes(self.monitor.nodes.iter().map(|node| self.one(node, name, deadline, &ask)).collect())
    }

    fn views(
        &self,
        kind: Kind,
        name: &LockName,
        owner: Owner,
        by: Moment,
    ) -> Answer<Votes<Option<Snapshot>>> {
        let votes = self.each(name, by, |store, name, by| store.inspect(kind, name, owner, by));
        if votes.done().count() >= votes.majority() {
            return Ok(votes);
        }
        let say = |seen: &Option<Snapshot>| if seen.is_some() { "held" } else { "free" }.to_owned();
        Err(Failure::Refused(votes.error("inspect", &self.monitor.places(), say)))
    }

    /// Asks the nodes one after the other, each about all claims, and returns the votes for each claim.
    fn batch<T>(
        &self,
        claims: &[Claim],
        deadline: Moment,
        ask: impl Fn(&OpenStore, &[Claim], Moment) -> Vec<Answer<T>>,
    ) -> Vec<Votes<T>> {
        let mut votes: Vec<Votes<T>> = claims.iter().map(|_| Votes(Vec::new())).collect();
        let Some(lease) = claims.iter().map(|claim| claim.lease).min() else { return votes };
        let timeout = batch_timeout(self.monitor.node_timeout, claims.len())
            .min((lease / 10).max(SHORTEST_NODE_TIMEOUT));
        for node in &self.monitor.nodes {
            let asked = node.ready().and_then(|store| {
                let renamed = claims.iter().map(|claim| node.claim(claim)).collect::<Result<Vec<_>>>()?;
                Ok(ask(store, &renamed, deadline.min(Clock::System.after(timeout))))
            });
            match asked {
                Ok(answers) => {
                    for ((vote, answer), claim) in votes.iter_mut().zip(answers).zip(claims) {
                        vote.0.push(self.monitor.noted(node, claim, answer));
                    }
                }
                Err(error) => votes.iter_mut().for_each(|vote| vote.0.push(Failure::refused(error.copy()))),
            }
        }
        votes
    }

    /// Releases the grants of an attempt without a majority. Returns whether there were any.
    fn undo(&self, claim: &Claim, votes: &Votes<Attempt>, deadline: Moment) -> bool {
        let has = |at: usize| matches!(votes.0.get(at), Some(Ok(Attempt::Granted { .. })));
        let answers =
            self.ask_those(claim, deadline, has, |store, claim, by| store.begin_release(claim, 0, by));
        for (at, _) in answers.iter().filter(|(_, answer)| answer.is_err()) {
            self.monitor.clean_up_where(claim, |other, _| other == *at);
        }
        !answers.is_empty()
    }

    /// Decides the outcome of a first acquire. If no majority granted the lock in time, releases the grants.
    fn first(
        &self,
        claim: &Claim,
        votes: &Votes<Attempt>,
        sent: Moment,
        deadline: Moment,
    ) -> Answer<Attempt> {
        // A server that did not answer may still grant the request. Such a grant is removed: without a
        // majority there is no hold, and a hold with a majority does not need it.
        self.monitor.clean_up_where(claim, |at, _| matches!(votes.0.get(at), Some(Err(Failure::Unknown(_)))));
        let granted = votes.granted();
        let took = Clock::System.now().since(sent);
        if granted >= votes.majority() && validity(claim.lease, took).is_some() {
            return Ok(Attempt::granted(votes.fencing_token()));
        }
        let got_some = self.undo(claim, votes, deadline);
        if granted >= votes.majority() {
            return Err(Failure::Refused(granted_too_late("lock", claim.lease, took).on(claim.name.given())));
        }
        let busy = votes.count(|attempt| matches!(attempt, Attempt::Busy { .. }));
        if granted + busy < votes.majority() {
            let name = claim.name.given();
            let answer = votes.too_few("lock", &self.monitor.places(), false, say_attempt);
            // Requests of unknown outcome are cleaned up (see above), so the acquire counts as refused.
            return answer.map_err(|failure| Failure::Refused(failure.into_read_error().on(name)));
        }
        let retry_after = votes.retry_after();
        if !got_some || !claim.waits {
            return Ok(Attempt::Busy { retry_after });
        }
        let pause = random_between(SPLIT_PAUSE);
        let until = Clock::System.after(pause);
        self.pauses.lock().push((claim.owner, Arc::clone(&claim.name), until));
        Ok(Attempt::Busy { retry_after: Some(pause) })
    }
}

impl Store for Redlock {
    fn capabilities(self: Arc<Self>) -> Capabilities {
        let of_any_redis = self.members().next().map(|member| member.store.capabilities.clone());
        let Capabilities { can_expire_in, poll_every, .. } = of_any_redis.unwrap_or_default();
        Capabilities {
            can_expire_in,
            poll_every,
            majority: Some(self.clone()),
            connections: Some(self.clone()),
            directory: Some(self.clone()),
            ..Capabilities::default()
        }
    }

    fn check_name(&self, kind: Kind, name: &LockName) -> Result<()> {
        let words = "Redlock cannot keep this kind of lock: several servers have no common order of arrival and no common count";
        Error::when(!kind.is_one_record(), ErrorKind::Unsupported, "lock", || words)
            .map_err(|error| error.on(name.given()))?;
        for node in &self.monitor.nodes {
            let renamed = node.renamed(name)?;
            if let Some(member) = node.member.get() {
                member.store.check_name(kind, renamed.as_ref().unwrap_or(name))?;
            }
        }
        Ok(())
    }

    fn attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Answer<Attempt> {
        let sent = Clock::System.now();
        let before = self.monitor.restores.uncounted(claim);
        let votes =
            self.ask(claim, deadline, |store, claim, deadline| store.begin_attempt(claim, count, deadline));
        if count == 1 {
            return self.first(claim, &votes, sent, deadline);
        }
        let votes = self.counted(claim, votes, &before, || Attempt::Lost);
        let granted = votes.granted();
        if granted >= votes.majority() && validity(claim.lease, Clock::System.now().since(sent)).is_some() {
            self.monitor.confirmed(claim, sent, &[]);
            return Ok(Attempt::granted(votes.fencing_token()));
        }
        if votes.count(|attempt| !matches!(attempt, Attempt::Granted { .. })) >= votes.veto() {
            return Ok(Attempt::Lost);
        }
        // Nothing is undone: the request names an absolute count, so the owner may repeat it.
        votes.too_few("lock", &self.monitor.places(), granted > 0, say_attempt)
    }

    fn release(&self, claim: &Claim, left: u32, deadline: Moment) -> Answer<Release> {
        let before =
            if left == 0 { self.monitor.over(claim) } else { self.monitor.restores.uncounted(claim) };
        let votes =
            self.ask(claim, deadline, |store, claim, deadline| store.begin_release(claim, left, deadline));
        let votes = self.counted(claim, votes, &before, not_held);
        self.monitor.released(claim, left, &votes)
    }

    fn release_later(&self, claim: &Claim, deadline: Moment, done: Sink) {
        if claim.waits {
            return done.answer(self.release_or_leave(claim, deadline));
        }
        // No caller waits, so each server gets the whole deadline, not the shorter node time-out.
        let releasing = done.releasing();
        let gathering = PendingRelease::new(&self.monitor, claim, self.monitor.over(claim), done);
        for (at, node) in self.monitor.nodes.iter().enumerate() {
            match node.ready().and_then(|store| Ok((store, node.claim(claim)?))) {
                Ok((store, claim)) => {
                    let gathering = Arc::clone(&gathering);
                    let take = Sink::new(move |answer| gathering.take(at, answer));
                    store.release_later(&claim, deadline, take.of(releasing.clone()));
                }
                Err(error) => gathering.take(at, Err(Failure::Refused(error))),
            }
        }
    }

    fn renew(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<bool>> {
        let begun = Clock::System.now();
        let restores = &self.monitor.restores;
        let before: Vec<Vec<usize>> = claims.iter().map(|claim| restores.uncounted(claim)).collect();
        let votes = self.batch(claims, deadline, |store, claims, deadline| store.renew(claims, deadline));
        let answers = votes.into_iter().zip(claims).zip(before).map(|((votes, claim), before)| {
            let lacking = votes.nodes_where(|held| !held);
            let votes = self.counted(claim, votes, &before, || false);
            let is_held = votes.are_for("renew", &self.monitor.places())?;
            if is_held {
                self.monitor.confirmed(claim, begun, &lacking);
            } else {
                self.monitor.over(claim);
                // Without this clean-up the minority that still has the hold would block other clients for a
                // lease.
                self.monitor.clean_up_where(claim, |at, _| !lacking.contains(&at));
            }
            Ok(is_held)
        });
        answers.collect()
    }

    fn clean_up(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        claims.iter().for_each(|claim| drop(self.monitor.over(claim)));
        let votes = self.batch(claims, deadline, |store, claims, deadline| store.clean_up(claims, deadline));
        let answers = votes.into_iter().map(|votes| {
            let freed = votes.count(|release| matches!(release, Release::Freed { .. }));
            if freed == votes.0.len() {
                return Ok(Release::Freed { others: votes.others() });
            }
            if votes.done().count() >= votes.majority() {
                // The answer is not "freed": a request of unknown outcome may still run, so the engine cleans
                // up again.
                return Ok(Release::NotHeld { holder: votes.other_holder() });
            }
            votes.too_few("unlock", &self.monitor.places(), freed > 0, say_release)
        });
        answers.collect()
    }

    fn expire_in(&self, claim: &Claim, rest: Duration, deadline: Moment) -> Answer<bool> {
        let before = self.monitor.over(claim);
        let votes =
            self.ask(claim, deadline, |store, claim, deadline| ready(store.expire_in(claim, rest, deadline)));
        self.counted(claim, votes, &before, || false).are_for("unlock", &self.monitor.places())
    }

    fn force(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        // If the servers were freed one after the other, the monitor could restore the hold on the first
        // ones before the last is freed, and a majority would remain.
        let force = |node: &_| self.one(node, name, deadline, |store, name, by| store.force(kind, name, by));
        let forced = at_once(&self.monitor.nodes, force);
        let panicked = || Error::new(ErrorKind::Resource, "force_unlock", "a thread ended early");
        let panicked = || Err(Failure::Unknown(panicked().with_unknown_outcome()));
        let votes = Votes(forced.into_iter().map(|forced| forced.unwrap_or_else(panicked)).collect());
        let freed = votes.count(|freed| *freed);
        if votes.done().count() < votes.majority() {
            let say = |freed: &bool| if *freed { "freed" } else { "free" }.to_owned();
            return votes.too_few("force_unlock", &self.monitor.places(), freed > 0, say);
        }
        Ok(freed > 0)
    }

    fn listen(&self, claim: &Claim, waker: &Waker) -> Option<Subscription> {
        let parts = self.monitor.nodes.iter().filter_map(|node| {
            let claim = node.claim(claim).ok()?;
            node.member.get()?.store.listen(&claim, waker)
        });
        let parts: Vec<Subscription> = parts.collect();
        (!parts.is_empty()).then(|| Subscription::several(parts, majority(self.monitor.nodes.len())))
    }

    fn message_count(&self, claim: &Claim) -> Option<u64> {
        let counts = self.monitor.nodes.iter().filter_map(|node| {
            let claim = node.claim(claim).ok()?;
            node.member.get()?.store.message_count(&claim)
        });
        let counts: Vec<u64> = counts.collect();
        let is_enough = counts.len() >= majority(self.monitor.nodes.len());
        is_enough.then(|| count_of_several(counts.into_iter()))
    }

    fn poll_completions(&self) -> bool {
        self.members().filter(|member| member.store.poll_completions()).count() > 0
    }

    fn close(&self) {
        self.monitor.service.stop();
        self.members().for_each(|member| member.store.close());
    }
}

impl Inspect for Redlock {
    fn inspect(&self, kind: Kind, name: &LockName, owner: Owner, by: Moment) -> Answer<Option<Snapshot>> {
        Ok(self.views(kind, name, owner, by)?.view())
    }

    /// Inspects the lock: its owners if a majority of the servers names the same, and the shortest remaining
    /// time that the servers of this majority report. Without such a majority, the lock counts as absent.
    fn describe(&self, name: &LockName, deadline: Moment) -> Answer<Inspection> {
        let votes = self.each(name, deadline, |store, name, by| store.describe(name, by));
        if votes.done().count() < votes.majority() {
            let say = |seen: &Inspection| if seen.is_held() { "held" } else { "free" }.to_owned();
            return votes.too_few("inspect", &self.monitor.places(), false, say).map_err(Failure::of_reading);
        }
        let owners = |seen: &Inspection| seen.holders.iter().map(|one| one.owner.clone()).collect::<Vec<_>>();
        for seen in votes.done() {
            let alike: Vec<_> = votes.done().filter(|other| owners(other) == owners(seen)).collect();
            if alike.len() >= votes.majority() {
                return Ok(Inspection {
                    name: name.given().to_owned(),
                    remaining: alike.iter().filter_map(|other| other.remaining).min(),
                    fencing_token: votes.done().filter_map(|other| other.fencing_token).max(),
                    writers_wait: votes.count(|other| other.writers_wait) >= votes.majority(),
                    ..seen.clone()
                });
            }
        }
        Ok(Inspection::new(name.given(), ObjectKind::Absent))
    }
}

impl Majority for Redlock {
    fn first_unspent_number(&self) -> u64 {
        self.monitor.unspent_from.load(Ordering::SeqCst)
    }

    fn ended_meanwhile(&self, claim: &Claim) {
        self.monitor.ended_meanwhile(claim);
    }

    fn held_off(&self, claim: &Claim) -> Option<Duration> {
        let mut pauses = self.pauses.lock();
        if pauses.is_empty() || !claim.waits {
            return None;
        }
        let now = Clock::System.now();
        pauses.retain(|(_, _, until)| *until > now);
        let its = pauses.iter().find(|(owner, name, _)| *owner == claim.owner && *name == claim.name);
        its.map(|(_, _, until)| until.since(now))
    }

    fn is_split(&self, kind: Kind, name: &LockName, deadline: Moment) -> Answer<bool> {
        let nobody = Owner::new(ClientId::random(), 0);
        Ok(self.views(kind, name, nobody, deadline)?.holder().is_none())
    }
}

impl ConnectionWatch for Redlock {
    fn hung_up(&self) -> Option<bool> {
        let hung_up = any_hung_up(self.members().map(|member| &member.store.capabilities));
        hung_up.max(Some(self.monitor.renew_early.swap(false, Ordering::SeqCst)))
    }
}

#[cfg(not(leasehold_shuttle))]
#[cfg(test)]
mod tests;
