//! The semaphore: permits that nobody owns. A request that took some is remembered, so that it can be
//! repeated and undone.

use crate::ident::{LockName, Owner};
use crate::seam::Answer;
use crate::seam::{Claim, Counting, REQUEST_LASTS, Release, Snapshot};
use crate::stores::redis::keys;
use crate::stores::redis::kinds::counter::{self, Counter, request_key};
use crate::stores::redis::kinds::kind::{Deferrable, RedisKind, no_holder};
use crate::stores::redis::kinds::replies;
use crate::stores::redis::reply::Expected;
use crate::stores::redis::script::{Command, SEMAPHORE_ACQUIRE, SEMAPHORE_RELEASE};
use crate::stores::redis::server::{RedisCall, RedisServer};
use crate::time::millis;

/// The semaphore without leases.
pub(super) struct SemaphoreKind;

impl RedisKind for SemaphoreKind {
    fn expected(&self) -> Expected {
        Expected::Nothing
    }

    fn awaits_replicas(&self) -> bool {
        false
    }

    fn deferrable(&self) -> Deferrable {
        Deferrable::Releases
    }

    fn channel(&self, claim: &Claim) -> Option<String> {
        Some(keys::permits_channel(claim.name.key()))
    }

    fn acquisition(&self, claim: &Claim, _count: u32, _link: u32) -> Command {
        let keys = [claim.name.key(), &request_key(claim)];
        SEMAPHORE_ACQUIRE.on(&keys).arg(claim.units).arg(millis(REQUEST_LASTS))
    }

    fn removal(&self, claim: &Claim, _left: u32) -> Command {
        let key = claim.name.key();
        let way = if claim.is_granted { "release" } else { "undo" };
        let command = SEMAPHORE_RELEASE.on(&[key, &request_key(claim)]);
        command.arg(claim.units).arg(millis(REQUEST_LASTS)).arg(way).arg(keys::permits_channel(key))
    }

    fn renewal(&self, _claim: &Claim) -> Option<Command> {
        None
    }

    fn forgetting(&self, claim: &Claim) -> Option<Command> {
        Some(counter::forgetting(claim))
    }

    fn own_listeners(&self, server: &RedisServer, claim: &Claim) -> i64 {
        i64::from(server.subscriber.message_count(|| self.channel(claim)).is_some())
    }

    fn release(&self, call: &RedisCall<'_>, claim: &Claim, left: u32) -> Answer<Release> {
        let command = self.removal(claim, left);
        let released = replies::released(
            &call.ask(&command, Expected::Nothing)?,
            self.own_listeners(call.server, claim),
        )?;
        counter::forget(call, claim);
        Ok(released)
    }

    fn count(&self, call: &RedisCall<'_>, claim: &Claim, what: &Counting) -> Answer<Option<i64>> {
        let channel = keys::permits_channel(claim.name.key());
        Counter { channel, out: None, is_latch: false }.count(call, claim, what)
    }

    fn inspect(&self, _call: &RedisCall<'_>, _name: &LockName, _owner: Owner) -> Answer<Option<Snapshot>> {
        no_holder()
    }

    fn force(&self, _call: &RedisCall<'_>, _name: &LockName) -> Answer<bool> {
        no_holder()
    }
}
