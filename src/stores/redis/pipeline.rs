//! Requests that are answered later, serve several locks, or depend on a ring's mark (`seam/ring_member.rs`).

use std::sync::Arc;

use redis::Value;

use crate::ident::{FencingToken, LockName};
use crate::seam::capabilities::Batches;
use crate::seam::ring_member::{MARK_KEY, Marked, Probe, RingMember};
use crate::seam::{Answer, Attempt, Claim, Failure, Kind, Pending, QueueMode, Release, named, ready};
use crate::stores::redis::acks::Grant;
use crate::stores::redis::keys;
use crate::stores::redis::kinds::kind::{fenced, needs_copies, needs_release, release_reply};
use crate::stores::redis::kinds::replies::NOTHING_HELD;
use crate::stores::redis::kinds::{self, replies};
use crate::stores::redis::reply::{NOT_HELD, Tagged, decoded, tagged, ttl};
use crate::stores::redis::script::{ACQUIRE_ALL, CHECK, Command, RELEASE_ALL, RING_MARK};
use crate::stores::redis::store::RedisStore;
use crate::time::{Moment, millis};

/// Maximum number of claims in one script, which takes the server about a millisecond.
const TOGETHER: usize = 100;

impl RedisStore {
    /// The request of an attempt, and a function that reads its reply and, if needed, waits for replicas.
    fn attempting(
        &self,
        claim: &Claim,
        count: u32,
        deadline: Moment,
    ) -> (Command, impl FnOnce(Value) -> Answer<Attempt> + Send + 'static) {
        let yielding;
        let claim = if self.server.connections.asking && claim.queue_mode != QueueMode::Barges {
            // The lock's queue may still be on the slot's old server, so this claim must not begin one here.
            yielding = Claim { queue_mode: QueueMode::Yields, ..claim.clone() };
            &yielding
        } else {
            claim
        };
        let (kind, wants_fence) = (kinds::of(claim.kind), claim.wants_fence);
        let acks = self.server.acks.clone().filter(|_| needs_copies(claim, count));
        let acks = acks.map(|acks| (acks, claim.clone()));
        let read = move |reply| {
            let attempt = replies::attempted(&tagged(reply)?, wants_fence)?;
            if let (Some((acks, claim)), Attempt::Granted { .. }) = (acks, &attempt) {
                acks.confirm(&kind.grant(&claim), deadline)?;
            }
            Ok(attempt)
        };
        (kind.acquisition(claim, count, self.server.connections.ledger.link()), read)
    }

    fn ask<T>(&self, command: Command, deadline: Moment, read: impl FnOnce(Value) -> Answer<T>) -> Answer<T> {
        self.server.connections.call(command, deadline).and_then(read)
    }

    /// Sends a request, and returns its pending answer. `Refused` if nothing was sent.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        action: &'static str,
        claim: &Claim,
        command: Command,
        deadline: Moment,
        read: impl FnOnce(Value) -> Answer<T> + Send + 'static,
    ) -> Answer<Box<dyn Pending<T>>> {
        let begun = named(self.server.connections.start(command, deadline), action, claim.name.given())?;
        let name = Arc::clone(&claim.name);
        Ok(Box::new(move || named(begun().and_then(read), action, name.given())))
    }

    pub(super) fn end_all(&self, claims: &[Claim], deadline: Moment) -> Vec<Answer<Release>> {
        let is_grouped = |claim: &Claim| self.has_all_keys && claims.len() > 1 && claim.kind.has_queue();
        let (grouped, alone): (Vec<_>, Vec<_>) =
            claims.iter().enumerate().partition(|(_, claim)| is_grouped(claim));
        let requests: Vec<&[(usize, &Claim)]> = grouped.chunks(TOGETHER).chain(alone.chunks(1)).collect();
        let command = |group: &&[(usize, &Claim)]| match group {
            [(_, claim)] if !is_grouped(claim) => kinds::of(claim.kind).leaving(claim),
            group => removals(group.iter().map(|(_, claim)| *claim)),
        };
        let replies = self.server.connections.batch(requests.iter().map(command).collect(), deadline);
        let read = |group: &[(usize, &Claim)], reply: Value| {
            let reply = release_reply(reply, &self.server.queues_refused)?;
            match group {
                [(_, claim)] if !is_grouped(claim) => Ok(vec![kinds::of(claim.kind).released(&reply, 1)?]),
                group => all_released(&reply, &vec![1; group.len()]),
            }
        };
        let mut outcomes = Vec::with_capacity(claims.len());
        for (group, reply) in requests.iter().zip(replies) {
            let released = match reply.and_then(|reply| read(group, reply)) {
                Ok(released) => released.into_iter().map(Ok).collect(),
                Err(failure) => failure.each(group.len()),
            };
            for ((at, claim), release) in group.iter().zip(released) {
                outcomes.push((*at, named(release, "unlock", claim.name.given())));
            }
        }
        outcomes.sort_unstable_by_key(|(at, _)| *at);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    pub(super) fn ended_at_a_time(kind: Kind) -> u32 {
        if kind.has_queue() { TOGETHER as u32 } else { 1 }
    }
    fn ask_under<T>(
        &self,
        command: Command,
        deadline: Moment,
        read: impl FnOnce(&Tagged) -> Answer<T>,
    ) -> Answer<Marked<T>> {
        self.agree_once(deadline)?;
        self.ask(command, deadline, |reply| marked(reply, |reply| read(&tagged(reply)?)))
    }
}

fn marked<T>(reply: Value, read: impl FnOnce(Value) -> Answer<T>) -> Answer<Marked<T>> {
    match &reply {
        Value::Array(parts) if parts.first() == Some(&Value::BulkString(b"other".to_vec())) => {
            let mark = tagged(reply)?.text(1);
            decoded(mark).map(|mark| Marked::Other(mark.unwrap_or_default()))
        }
        _ => read(reply).map(Marked::Under),
    }
}

impl RingMember for RedisStore {
    fn set_mark(&self, expected: &str, new: &str, deadline: Moment) -> Answer<Marked<()>> {
        self.agree(expected != new, None, deadline)?;
        let command = RING_MARK.on(&[MARK_KEY]).arg(expected).arg(new);
        // A lost answer counts as refused: a mark can be set again, and the ring uses only confirmed marks.
        let outcome = self.ask_under(command, deadline, |_marked| Ok(()));
        named(outcome.map_err(Failure::of_reading), "ring", MARK_KEY)
    }

    fn attempt_under(
        &self,
        mark: &str,
        claim: &Claim,
        fence: u64,
        deadline: Moment,
    ) -> Answer<Marked<Attempt>> {
        self.agree_once(deadline)?;
        let (command, read) = self.attempting(claim, 1, deadline);
        let outcome = self.ask(command.under(mark, fence), deadline, |reply| marked(reply, read));
        named(outcome, "lock", claim.name.given())
    }

    fn probe_under(&self, mark: &str, claim: &Claim, deadline: Moment) -> Answer<Marked<Probe>> {
        let outcome = self.ask_under(fenced(&CHECK, claim).under(mark, 0), deadline, |reply| {
            decoded(match reply.tag() {
                b"free" => reply.text(1).map(|fence| Probe::Free {
                    fence: fence.and_then(|fence| fence.parse().ok()).unwrap_or(0),
                }),
                b"busy" => reply.number(1).map(|ttl_ms| Probe::Busy { retry_after: ttl(ttl_ms) }),
                _ => Err(reply.unexpected()),
            })
        });
        named(outcome.map_err(Failure::of_reading), "lock", claim.name.given())
    }
}

fn acquisitions(claims: &[Claim], or_none: bool) -> Command {
    let counters: Vec<Option<String>> =
        claims.iter().map(|claim| claim.wants_fence.then(|| keys::fence_counter(claim.name.key()))).collect();
    let locks = claims.iter().map(|claim| claim.name.key());
    let all: Vec<&str> = locks.chain(counters.iter().flatten().map(String::as_str)).collect();
    let mut command = ACQUIRE_ALL.on(&all).arg(u32::from(or_none)).arg(claims.len());
    let mut last = claims.len();
    for (claim, counter) in claims.iter().zip(&counters) {
        let number = counter.as_ref().map_or(0, |_| {
            last += 1;
            last
        });
        command = command.arg(claim.owner).arg(millis(claim.lease)).arg(number);
    }
    command
}

fn acquired(reply: &Tagged) -> Answer<Vec<Option<FencingToken>>> {
    let fence = |text: Option<String>| match text.as_deref() {
        None | Some("") => Ok(None),
        Some(number) => number.parse().map(|number| Some(FencingToken::new(number))),
    };
    decoded(match reply.tag() {
        b"granted" => (1..=reply.len())
            .map(|index| fence(reply.text(index)?).map_err(|_not_a_number| reply.unexpected()))
            .collect(),
        _ => Err(reply.unexpected()),
    })
}

fn removals<'a>(claims: impl Iterator<Item = &'a Claim> + Clone) -> Command {
    let locks: Vec<&str> = claims.clone().map(|claim| claim.name.key()).collect();
    claims.fold(RELEASE_ALL.on(&locks), |command, claim| {
        command.arg(claim.owner).arg(keys::channel(claim.name.key()))
    })
}

/// Reads the reply to a release of several locks. `own_listeners`: for each lock, 1 if its release notified
/// this client too, else 0.
fn all_released(reply: &Tagged, own_listeners: &[i64]) -> Answer<Vec<Release>> {
    let release = |(index, own): (usize, &i64)| {
        Ok(match reply.number(index + 1)? {
            NOT_HELD => Release::NotHeld { holder: None },
            listeners => replies::freed(listeners, *own),
        })
    };
    decoded(match reply.tag() {
        b"freed" => own_listeners.iter().enumerate().map(release).collect(),
        _ => Err(reply.unexpected()),
    })
}

fn or_failed<T: Send + 'static>(begun: Answer<Box<dyn Pending<T>>>) -> Box<dyn Pending<T>> {
    begun.unwrap_or_else(|failure| ready(Err(failure)))
}

impl Batches for RedisStore {
    fn begin_attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Box<dyn Pending<Attempt>> {
        let (command, read) = self.attempting(claim, count, deadline);
        or_failed(self.begin("lock", claim, command, deadline, read))
    }

    fn begin_release(&self, claim: &Claim, left: u32, deadline: Moment) -> Box<dyn Pending<Release>> {
        if !needs_release(claim.kind) {
            return ready(Ok(NOTHING_HELD));
        }
        let kind = kinds::of(claim.kind);
        let own_listeners = kind.own_listeners(&self.server, claim);
        let (refused, connections) =
            (Arc::clone(&self.server.queues_refused), Arc::clone(&self.server.connections));
        let forgetting = kind.forgetting(claim);
        let read = move |reply| {
            let released = kind.released(&release_reply(reply, &refused)?, own_listeners)?;
            forgetting.into_iter().for_each(|command| connections.post(command, deadline, None, |_| None));
            Ok(released)
        };
        or_failed(self.begin("unlock", claim, kind.removal(claim, left), deadline, read))
    }

    fn group(&self, kind: Kind, _name: &LockName) -> Option<u32> {
        kind.has_queue().then_some(0)
    }

    fn begin_attempts(
        &self,
        claims: &[Claim],
        or_none: bool,
        deadline: Moment,
    ) -> Box<dyn Pending<Vec<Option<FencingToken>>>> {
        let Some(first) = claims.first() else { return ready(Ok(Vec::new())) };
        let (acks, undo) = (self.server.acks.clone(), removals(claims.iter()));
        let grant = kinds::of(first.kind).grant(first);
        let read = move |reply| {
            let fences = acquired(&tagged(reply)?)?;
            match acks {
                Some(acks) if !fences.is_empty() => {
                    // One server made all the grants, so one WAIT confirms them all.
                    acks.confirm(&Grant { undo, ..grant }, deadline).map(|()| fences)
                }
                _ => Ok(fences),
            }
        };
        or_failed(self.begin("lock", first, acquisitions(claims, or_none), deadline, read))
    }

    fn begin_releases(&self, claims: &[Claim], deadline: Moment) -> Box<dyn Pending<Vec<Release>>> {
        let Some(first) = claims.first() else { return ready(Ok(Vec::new())) };
        let own_listeners = |claim: &Claim| kinds::of(claim.kind).own_listeners(&self.server, claim);
        let own_listeners: Vec<i64> = claims.iter().map(own_listeners).collect();
        let refused = Arc::clone(&self.server.queues_refused);
        let read = move |reply| all_released(&release_reply(reply, &refused)?, &own_listeners);
        or_failed(self.begin("unlock", first, removals(claims.iter()), deadline, read))
    }
}
