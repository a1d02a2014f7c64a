//! The read-write lock: one hash for both halves, and a marker key for each level of a read hold, by which
//! Redisson recognizes expired readers. Waiting writers with `writers_first` are in a key of this crate.

use crate::ident::{LockName, Owner};
use crate::inspect::Mode;
use crate::seam::{Answer, Claim, PLACE_LASTS, Snapshot};
use crate::stores::redis::keys::{self, Part};
use crate::stores::redis::kinds::kind::{RedisCall, RedisKind};
use crate::stores::redis::kinds::mutex::queue_mode;
use crate::stores::redis::kinds::replies;
use crate::stores::redis::script::{
    Command, RENEW, RW_ACQUIRE, RW_FORCE, RW_HEAR, RW_INSPECT, RW_LEAVE, RW_RELEASE, RW_RENEW,
};
use crate::time::millis;

pub(super) struct RwKind(pub(super) Mode);

fn word(half: Mode) -> &'static str {
    match half {
        Mode::Read => "read",
        Mode::Write => "write",
    }
}

impl RedisKind for RwKind {
    fn channel(&self, claim: &Claim) -> Option<String> {
        Some(keys::rw_channel(claim.name.key()))
    }

    /// Only writers have a wait queue, because readers are granted the lock together.
    fn turn_channel(&self, claim: &Claim) -> Option<String> {
        (self.0 == Mode::Write).then(|| keys::turn_channel(claim.name.key(), claim.owner.client()))
    }

    fn leaving_queue(&self, claim: &Claim) -> Option<Command> {
        let lock = claim.name.key();
        let command = RW_LEAVE.on(&[lock]).arg(claim.owner.client().to_string());
        Some(match self.0 {
            Mode::Read => command,
            Mode::Write => command.arg(keys::rw_channel(lock)),
        })
    }

    fn acquisition(&self, claim: &Claim, count: u32, link: u32) -> Command {
        let lock = claim.name.key();
        let marker = format!("{}{count}", markers(&claim.name, claim.owner));
        let (waiting, counter) = (waiting(claim), keys::fence_counter(lock));
        let keys = [lock, &marker, waiting.as_deref().unwrap_or(lock), &counter];
        let keys = if claim.wants_fence { &keys[..] } else { &keys[..3] };
        let command = RW_ACQUIRE.on(keys).arg(word(self.0)).arg(claim.owner);
        let alive_ms = if claim.waits { millis(PLACE_LASTS) } else { 0 };
        let command = command.arg(count).arg(millis(claim.lease)).arg(alive_ms);
        command.arg(&*queue_mode(claim, link)).arg(millis(claim.waited))
    }

    fn removal(&self, claim: &Claim, left: u32) -> Command {
        let lock = claim.name.key();
        let command = RW_RELEASE.on(&[lock]).arg(word(self.0)).arg(claim.owner).arg(left);
        let command = command.arg(millis(claim.lease)).arg(keys::in_braces(lock));
        command.arg(waiting(claim).unwrap_or_default()).arg(keys::in_parts(Part::RwChannel, lock))
    }

    fn renewal(&self, claim: &Claim) -> Option<Command> {
        let script = if self.0 == Mode::Read { &RW_RENEW } else { &RENEW };
        let command = self.with_field(script.on(&[claim.name.key()]), claim).arg(millis(claim.lease));
        Some(match self.0 {
            Mode::Read => command.arg(markers(&claim.name, claim.owner)),
            Mode::Write => command,
        })
    }

    fn check_cached(&self, claim: &Claim, _own_listeners: i64) -> Option<Command> {
        Some(self.with_field(RW_HEAR.on(&[claim.name.key()]), claim).arg(millis(PLACE_LASTS)))
    }

    fn with_field(&self, command: Command, claim: &Claim) -> Command {
        match self.0 {
            Mode::Read => command.arg(claim.owner),
            Mode::Write => command.arg(format!("{}:write", claim.owner)),
        }
    }

    fn inspect(&self, call: &RedisCall<'_>, name: &LockName, owner: Owner) -> Answer<Option<Snapshot>> {
        let command = RW_INSPECT.on(&[name.key()]).arg(word(self.0)).arg(owner).arg(markers(name, owner));
        replies::inspected(&call.ask(command)?)
    }

    fn force(&self, call: &RedisCall<'_>, name: &LockName) -> Answer<bool> {
        let lock = name.key();
        let command = RW_FORCE.on(&[lock]).arg(word(self.0)).arg(keys::rw_channel(lock));
        replies::forced(&call.ask(command)?)
    }
}

fn waiting(claim: &Claim) -> Option<String> {
    claim.writers_first.then(|| keys::before(Part::RwWaiting, claim.name.key()))
}

fn markers(name: &LockName, owner: Owner) -> String {
    keys::rw_markers(name.key(), owner)
}
