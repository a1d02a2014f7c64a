//! The read-write lock: two halves of one hash, and for each read hold a marker by which Redisson
//! distinguishes the living readers from the dead. Writers that are to come before readers are in a key that
//! Redisson does not know.

use crate::ident::{LockName, Owner};
use crate::seam::Answer;
use crate::seam::{Claim, PLACE_LASTS, Release, Snapshot};
use crate::stores::redis::keys::{self, Part};
use crate::stores::redis::kinds::kind::{Deferrable, RedisKind};
use crate::stores::redis::kinds::replies;
use crate::stores::redis::reply::{Expected, Tagged};
use crate::stores::redis::script::{
    Command, RENEW, RING_RW_ACQUIRE, RW_ACQUIRE, RW_FORCE, RW_INSPECT, RW_RELEASE, RW_RENEW, Script,
};
use crate::stores::redis::server::{LineRights, RedisCall};
use crate::time::millis;

/// The half that many may hold, and the half that one may.
pub(super) enum RwHalf {
    Read,
    Write,
}

impl RwHalf {
    fn word(&self) -> &'static str {
        match self {
            RwHalf::Read => "read",
            RwHalf::Write => "write",
        }
    }
}

impl RedisKind for RwHalf {
    fn deferrable(&self) -> Deferrable {
        Deferrable::AttemptsAndReleases
    }

    fn channel(&self, claim: &Claim) -> Option<String> {
        Some(keys::rw_channel(claim.name.key()))
    }

    fn acquisition(&self, claim: &Claim, count: u32, _link: u32) -> Command {
        let lock = claim.name.key();
        let marker = format!("{}{count}", markers(&claim.name, claim.owner));
        let (waiting, counter) = (waiting(claim), keys::fence_counter(lock));
        let keys = [lock, &marker, waiting.as_deref().unwrap_or(lock), &counter];
        let keys = if claim.wants_fence { &keys[..] } else { &keys[..3] };
        let command = RW_ACQUIRE.on(keys).arg(self.word()).arg(claim.owner);
        let alive_ms = if claim.waits { millis(PLACE_LASTS) } else { 0 };
        command.arg(count).arg(millis(claim.lease)).arg(alive_ms)
    }

    fn removal(&self, claim: &Claim, left: u32) -> Command {
        let lock = claim.name.key();
        let command = RW_RELEASE.on(&[lock]).arg(self.word()).arg(claim.owner).arg(left);
        let command = command.arg(millis(claim.lease)).arg(keys::in_braces(lock));
        command.arg(waiting(claim).unwrap_or_default()).arg(keys::in_parts(Part::RwChannel, lock))
    }

    fn renewal(&self, claim: &Claim) -> Option<Command> {
        let (lock, lease_ms) = (claim.name.key(), millis(claim.lease));
        Some(match self {
            RwHalf::Read => {
                let command = RW_RENEW.on(&[lock]).arg(claim.owner).arg(lease_ms);
                command.arg(markers(&claim.name, claim.owner))
            }
            RwHalf::Write => RENEW.on(&[lock]).arg(format!("{}:write", claim.owner)).arg(lease_ms),
        })
    }

    fn guarded(&self) -> Option<&'static Script> {
        Some(&RING_RW_ACQUIRE)
    }

    fn released(&self, reply: &Tagged, own_listeners: i64, _rights: &LineRights) -> Answer<Release> {
        Ok(match replies::released(reply, own_listeners)? {
            Release::NotHeld { holder } => Release::NotHeld { holder: holder.map(holder_of) },
            other => other,
        })
    }

    fn inspect(&self, call: &RedisCall<'_>, name: &LockName, owner: Owner) -> Answer<Option<Snapshot>> {
        let command = RW_INSPECT.on(&[name.key()]).arg(self.word()).arg(owner).arg(markers(name, owner));
        let reply = call.ask(&command, Expected::Hash)?;
        let snapshot = replies::inspected(&reply)?;
        Ok(snapshot.map(|snapshot| Snapshot { holder: holder_of(snapshot.holder), ..snapshot }))
    }

    fn force(&self, call: &RedisCall<'_>, name: &LockName) -> Answer<bool> {
        let lock = name.key();
        let command = RW_FORCE.on(&[lock]).arg(self.word()).arg(keys::rw_channel(lock));
        replies::forced(&call.ask(&command, Expected::Hash)?)
    }
}

/// The key of the writers that come before readers, if the claim goes by that.
fn waiting(claim: &Claim) -> Option<String> {
    claim.writers_first.then(|| keys::before(Part::RwWaiting, claim.name.key()))
}

/// The holder of either half, as users are shown it: the field of a writer has an ending.
fn holder_of(field: String) -> String {
    field.strip_suffix(":write").map(str::to_owned).unwrap_or(field)
}

/// The beginning of the markers of an owner's read holds; 1, 2, … follow.
fn markers(name: &LockName, owner: Owner) -> String {
    keys::rw_markers(name.key(), owner)
}
