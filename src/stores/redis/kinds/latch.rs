//! The latch: granted to everybody while its count is zero. A waiter that passes it takes nothing.

use crate::ident::{LockName, Owner};
use crate::seam::Answer;
use crate::seam::{Claim, Counting, Release, Snapshot};
use crate::stores::redis::cluster::slots::keeps_its_slot;
use crate::stores::redis::keys;
use crate::stores::redis::kinds::counter::Counter;
use crate::stores::redis::kinds::kind::{Deferrable, RedisKind, no_holder};
use crate::stores::redis::kinds::replies::{self, NOTHING_HELD};
use crate::stores::redis::reply::{Expected, Tagged};
use crate::stores::redis::script::{Command, LATCH_ATTEMPT};
use crate::stores::redis::server::{LineRights, RedisCall};

/// The count-down latch.
pub(super) struct LatchKind;

impl RedisKind for LatchKind {
    /// Its channel has the name in braces, whatever braces the name has.
    fn fits_cluster(&self, key: &str) -> bool {
        keeps_its_slot(key) && !key.contains('{')
    }

    fn expected(&self) -> Expected {
        Expected::Nothing
    }

    fn awaits_replicas(&self) -> bool {
        false
    }

    fn deferrable(&self) -> Deferrable {
        Deferrable::Neither
    }

    fn channel(&self, claim: &Claim) -> Option<String> {
        Some(keys::latch_channel(claim.name.key()))
    }

    fn acquisition(&self, claim: &Claim, _count: u32, _link: u32) -> Command {
        LATCH_ATTEMPT.on(&[claim.name.key()])
    }

    /// Nothing was taken that could be given back, so this only asks.
    fn removal(&self, claim: &Claim, _left: u32) -> Command {
        LATCH_ATTEMPT.on(&[claim.name.key()])
    }

    fn renewal(&self, _claim: &Claim) -> Option<Command> {
        None
    }

    fn released(&self, reply: &Tagged, _own_listeners: i64, _rights: &LineRights) -> Answer<Release> {
        replies::attempted(reply, false).map(|_open_or_not| NOTHING_HELD)
    }

    fn release(&self, _call: &RedisCall<'_>, _claim: &Claim, _left: u32) -> Answer<Release> {
        Ok(NOTHING_HELD)
    }

    fn count(&self, call: &RedisCall<'_>, claim: &Claim, what: &Counting) -> Answer<Option<i64>> {
        let channel = keys::latch_channel(claim.name.key());
        Counter { channel, out: None, is_latch: true }.count(call, claim, what)
    }

    fn inspect(&self, _call: &RedisCall<'_>, _name: &LockName, _owner: Owner) -> Answer<Option<Snapshot>> {
        no_holder()
    }

    fn force(&self, _call: &RedisCall<'_>, _name: &LockName) -> Answer<bool> {
        no_holder()
    }
}
