//! Conditions: the waiters, in order; those of them alive; those notified that have not noticed yet.
//!
//! Java's `newCondition` throws, so the keys are ours alone. Waiters join while they hold the lock, and those
//! who notify hold it too, so none is notified before it waits; and a notification that its waiter does not
//! live to notice, or leaves behind, goes to the next.

use crate::ident::{LockName, Owner};
use crate::seam::Answer;
use crate::seam::{Claim, Counting, PLACE_LASTS, Release, Snapshot};
use crate::stores::redis::keys::{self, Part};
use crate::stores::redis::kinds::kind::{Deferrable, RedisKind, no_holder, unsupported};
use crate::stores::redis::kinds::replies::{self, NOTHING_HELD};
use crate::stores::redis::reply::{Expected, Tagged};
use crate::stores::redis::script::{Command, SIGNAL_ATTEMPT, SIGNAL_CHANGE, Script};
use crate::stores::redis::server::{LineRights, RedisCall};
use crate::time::millis;

/// The notifications of a condition.
pub(super) struct ConditionKind;

impl RedisKind for ConditionKind {
    fn queues(&self) -> bool {
        true
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

    /// Each waiter has a channel of its own.
    fn channel(&self, claim: &Claim) -> Option<String> {
        Some(format!("{}{}", channels(claim.name.key()), claim.owner))
    }

    fn acquisition(&self, claim: &Claim, _count: u32, _link: u32) -> Command {
        let command = on(&SIGNAL_ATTEMPT, claim).arg(claim.owner).arg(millis(PLACE_LASTS));
        command.arg(channels(claim.name.key()))
    }

    fn removal(&self, claim: &Claim, _left: u32) -> Command {
        change(claim, "leave")
    }

    fn renewal(&self, _claim: &Claim) -> Option<Command> {
        None
    }

    /// A notification, once noticed, is nobody's.
    fn released(&self, reply: &Tagged, _own_listeners: i64, _rights: &LineRights) -> Answer<Release> {
        replies::counted(reply).map(|_notified| NOTHING_HELD)
    }

    fn release(&self, _call: &RedisCall<'_>, _claim: &Claim, _left: u32) -> Answer<Release> {
        Ok(NOTHING_HELD)
    }

    fn count(&self, call: &RedisCall<'_>, claim: &Claim, what: &Counting) -> Answer<Option<i64>> {
        let what = match what {
            Counting::Notify { all: false } => "one",
            Counting::Notify { all: true } => "all",
            Counting::Enlist => "enlist",
            _other => return Err(unsupported("a condition has no number")),
        };
        replies::counted(&call.ask(&change(claim, what), Expected::Nothing)?)
    }

    fn inspect(&self, _call: &RedisCall<'_>, _name: &LockName, _owner: Owner) -> Answer<Option<Snapshot>> {
        no_holder()
    }

    fn force(&self, _call: &RedisCall<'_>, _name: &LockName) -> Answer<bool> {
        no_holder()
    }
}

fn change(claim: &Claim, what: &str) -> Command {
    let command = on(&SIGNAL_CHANGE, claim).arg(what).arg(claim.owner);
    command.arg(millis(PLACE_LASTS)).arg(channels(claim.name.key()))
}

fn on(script: &'static Script, claim: &Claim) -> Command {
    let parts = [Part::ConditionQueue, Part::ConditionHeartbeats, Part::ConditionNotified];
    let keys = parts.map(|part| keys::before(part, claim.name.key()));
    let [queue, heartbeats, notified] = &keys;
    script.on(&[queue, heartbeats, notified])
}

fn channels(condition: &str) -> String {
    keys::before(Part::ConditionChannel, condition) + ":"
}
