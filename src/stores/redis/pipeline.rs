//! Requests of one server's store whose replies are read later, and those for several locks at a time.

use std::sync::Arc;

use redis::Value;

use crate::ident::{FencingToken, LockName};
use crate::seam::capabilities::Batches;
use crate::seam::{Answer, Answered, Attempt, Claim, Kind, Pending, Release, Store, named};
use crate::stores::redis::acks::Grant;
use crate::stores::redis::kinds::kind::{expected, is_given_back, needs_copies};
use crate::stores::redis::kinds::replies::NOTHING_HELD;
use crate::stores::redis::kinds::{self, replies};
use crate::stores::redis::reply::{Expected, tagged};
use crate::stores::redis::script::Command;
use crate::stores::redis::server::Underway;
use crate::stores::redis::several;
use crate::stores::redis::store::RedisStore;
use crate::time::Moment;

impl RedisStore {
    /// The request of an attempt, and the meaning of its reply: a grant counts once it is on the copies that it
    /// needs.
    pub(super) fn attempting(
        &self,
        claim: &Claim,
        count: u32,
        deadline: Moment,
    ) -> (Command, impl FnOnce(Value) -> Answer<Attempt> + Send + 'static) {
        let kind = kinds::of(claim.kind);
        let (expected, wants_fence) = (expected(claim.kind), claim.wants_fence);
        let acks = self.server.acks.clone().filter(|_| needs_copies(claim, count));
        let acks = acks.map(|acks| (acks, claim.clone()));
        let read = move |reply| {
            let attempt = replies::attempted(&tagged(reply, expected)?, wants_fence)?;
            if let (Some((acks, claim)), Attempt::Granted { .. }) = (acks, &attempt) {
                acks.confirm(&kind.grant(&claim), deadline)?;
            }
            Ok(attempt)
        };
        (kind.acquisition(claim, count, self.server.connections.link()), read)
    }

    pub(super) fn releasing(
        &self,
        claim: &Claim,
        left: u32,
        deadline: Moment,
    ) -> (Command, impl FnOnce(Value) -> Answer<Release> + Send + 'static) {
        let (kind, expected) = (kinds::of(claim.kind), expected(claim.kind));
        let own_listeners = kind.own_listeners(&self.server, claim);
        let (rights, connections) = (self.server.queue_rights.clone(), Arc::clone(&self.server.connections));
        let forgetting = kind.forgetting(claim);
        let read = move |reply| {
            let released = kind.released(&tagged(reply, expected)?, own_listeners, &rights)?;
            forgetting.into_iter().for_each(|command| connections.post(command, deadline, None, |_| None));
            Ok(released)
        };
        (kind.removal(claim, left), read)
    }

    pub(super) fn ask<T>(
        &self,
        command: Command,
        deadline: Moment,
        read: impl FnOnce(Value) -> Answer<T>,
    ) -> Answer<T> {
        self.server.connections.call(command, deadline).and_then(read)
    }

    pub(super) fn begin<T: Send + 'static>(
        &self,
        action: &'static str,
        claim: &Claim,
        command: Command,
        deadline: Moment,
        read: impl FnOnce(Value) -> Answer<T> + Send + 'static,
    ) -> Box<dyn Pending<T>> {
        let connections = &self.server.connections;
        if connections.is_asking() {
            let result = self.ask(command, deadline, read);
            return Box::new(Answered(named(result, action, claim.name.given())));
        }
        match connections.start(command, deadline) {
            Ok(started) => Box::new(Underway { started, read, action, name: Arc::clone(&claim.name) }),
            Err(failure) => Box::new(Answered(named(Err(failure), action, claim.name.given()))),
        }
    }
}

impl Batches for RedisStore {
    fn begin_attempt(&self, claim: &Claim, count: u32, deadline: Moment) -> Box<dyn Pending<Attempt>> {
        if self.server.connections.is_asking() {
            return Box::new(Answered(self.attempt(claim, count, deadline)));
        }
        let (command, read) = self.attempting(claim, count, deadline);
        self.begin("lock", claim, command, deadline, read)
    }

    fn begin_release(&self, claim: &Claim, left: u32, deadline: Moment) -> Box<dyn Pending<Release>> {
        if !is_given_back(claim.kind) {
            return Box::new(Answered(Ok(NOTHING_HELD)));
        }
        let (command, read) = self.releasing(claim, left, deadline);
        self.begin("unlock", claim, command, deadline, read)
    }

    fn group(&self, kind: Kind, _name: &LockName) -> Option<u32> {
        // One server: the slot does not matter.
        several::is_batched(kind).then_some(0)
    }

    fn begin_attempts(
        &self,
        claims: &[Claim],
        or_none: bool,
        deadline: Moment,
    ) -> Box<dyn Pending<Vec<Option<FencingToken>>>> {
        let Some(first) = claims.first() else { return Box::new(Answered(Ok(Vec::new()))) };
        let (acks, undo) = (self.server.acks.clone(), several::removals(claims.iter()));
        let grant = kinds::of(first.kind).grant(first);
        let read = move |reply| {
            let fences = several::acquired(&tagged(reply, Expected::Hash)?)?;
            match acks {
                Some(acks) if !fences.is_empty() => {
                    // All grants came from one server, so one WAIT confirms all.
                    acks.confirm(&Grant { undo, ..grant }, deadline).map(|()| fences)
                }
                _ => Ok(fences),
            }
        };
        self.begin("lock", first, several::acquisitions(claims, or_none), deadline, read)
    }

    fn begin_releases(&self, claims: &[Claim], deadline: Moment) -> Box<dyn Pending<Vec<Release>>> {
        let Some(first) = claims.first() else { return Box::new(Answered(Ok(Vec::new()))) };
        let own_listeners = |claim: &Claim| kinds::of(claim.kind).own_listeners(&self.server, claim);
        let own_listeners: Vec<i64> = claims.iter().map(own_listeners).collect();
        let rights = self.server.queue_rights.clone();
        let read =
            move |reply| several::all_released(&tagged(reply, Expected::Hash)?, &own_listeners, &rights);
        self.begin("unlock", first, several::removals(claims.iter()), deadline, read)
    }
}
