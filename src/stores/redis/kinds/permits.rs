//! The semaphore with leases: permits with ids, each of which ends by itself.

use crate::ident::{LockName, Owner};
use crate::seam::Answer;
use crate::seam::{Claim, Counting, Release, Snapshot};
use crate::stores::redis::keys;
use crate::stores::redis::kinds::counter::Counter;
use crate::stores::redis::kinds::kind::{Deferrable, RedisKind, no_holder};
use crate::stores::redis::kinds::replies;
use crate::stores::redis::reply::Expected;
use crate::stores::redis::script::{
    Command, PERMITS_ACQUIRE, PERMITS_BY_ID, PERMITS_COUNT, PERMITS_RELEASE, PERMITS_RENEW, Script,
};
use crate::stores::redis::server::{RedisCall, RedisServer};
use crate::time::millis;

/// The semaphore with leases.
pub(super) struct PermitsKind;

impl RedisKind for PermitsKind {
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
        with_ids(on(&PERMITS_ACQUIRE, claim).arg(millis(claim.lease)), claim)
    }

    fn removal(&self, claim: &Claim, _left: u32) -> Command {
        with_ids(on(&PERMITS_RELEASE, claim), claim)
    }

    fn renewal(&self, claim: &Claim) -> Option<Command> {
        let out = keys::permits_out(claim.name.key());
        Some(with_ids(PERMITS_RENEW.on(&[&out]).arg(millis(claim.lease)), claim))
    }

    fn own_listeners(&self, server: &RedisServer, claim: &Claim) -> i64 {
        i64::from(server.subscriber.message_count(|| self.channel(claim)).is_some())
    }

    fn count(&self, call: &RedisCall<'_>, claim: &Claim, what: &Counting) -> Answer<Option<i64>> {
        let ask = |which: &str| on(&PERMITS_COUNT, claim).arg(which);
        let command = match what {
            Counting::Ask => ask("free"),
            Counting::AskOut => ask("out"),
            Counting::AskAll => ask("all"),
            Counting::GiveBackAll(ids) => by_id(claim, "give_back", 0, ids),
            Counting::Lease(id, lease) => by_id(claim, "lease", millis(*lease), std::slice::from_ref(id)),
            Counting::AskLease(id) => by_id(claim, "ask", 0, std::slice::from_ref(id)),
            Counting::GiveBack(id) => {
                let command = on(&PERMITS_RELEASE, claim).arg(&id[..]);
                let released = replies::released(&call.ask(&command, Expected::Nothing)?, 0)?;
                return Ok(Some(i64::from(matches!(released, Release::Freed { .. }))));
            }
            Counting::SetUp { .. }
            | Counting::Add(_)
            | Counting::AddIfSetUp(_)
            | Counting::SetTo(_)
            | Counting::Drain
            | Counting::CountDown
            | Counting::Delete
            | Counting::Notify { .. }
            | Counting::Enlist
            | Counting::Forget => {
                let key = claim.name.key();
                let (channel, out) = (keys::permits_channel(key), Some(keys::permits_out(key)));
                return Counter { channel, out, is_latch: false }.count(call, claim, what);
            }
        };
        replies::counted(&call.ask(&command, Expected::Nothing)?)
    }

    fn inspect(&self, _call: &RedisCall<'_>, _name: &LockName, _owner: Owner) -> Answer<Option<Snapshot>> {
        no_holder()
    }

    fn force(&self, _call: &RedisCall<'_>, _name: &LockName) -> Answer<bool> {
        no_holder()
    }
}

fn on(script: &'static Script, claim: &Claim) -> Command {
    let key = claim.name.key();
    script.on(&[key, &keys::permits_out(key)]).arg(keys::permits_channel(key))
}

fn with_ids(command: Command, claim: &Claim) -> Command {
    (0..claim.units).fold(command, |command, index| command.arg(&claim.owner.permit(index)[..]))
}

fn by_id(claim: &Claim, what: &str, lease_ms: u64, ids: &[[u8; 16]]) -> Command {
    let command = on(&PERMITS_BY_ID, claim).arg(what).arg(lease_ms);
    ids.iter().fold(command, |command, id| command.arg(&id[..]))
}
