//! Conditions: who waits, in order; who of them is alive; who was notified and has not noticed yet.
//!
//! Java's `newCondition` throws, so the keys are ours alone. Waiters join while they hold the lock, and those who notify
//! hold it too, so none is notified before it waits; and a notification that its waiter does not live to notice, or
//! leaves behind, goes to the next.

use crate::seam::{Attempt, Claim, Counting, PLACE_LASTS};
use crate::stores::redis::conn::connections::Connections;
use crate::stores::redis::keys::{self, Part};
use crate::stores::redis::kinds::mutex::{self, Outcome};
use crate::stores::redis::kinds::semaphore::counted;
use crate::stores::redis::reply::Expected;
use crate::stores::redis::script::{Command, SIGNAL_ATTEMPT, SIGNAL_CHANGE, Script};
use crate::time::{Moment, millis};

pub(crate) fn attempt(connections: &Connections, claim: &Claim, deadline: Moment) -> Outcome<Attempt> {
    let command = on(&SIGNAL_ATTEMPT, claim).arg(claim.owner).arg(millis(PLACE_LASTS));
    let command = command.arg(channels(claim.name.key()));
    mutex::attempted(&mutex::tagged(connections.call(&command, deadline)?, Expected::Nothing)?, false)
}

pub(crate) fn count(
    connections: &Connections,
    claim: &Claim,
    what: &Counting,
    deadline: Moment,
) -> Outcome<Option<i64>> {
    let what = match what {
        Counting::Notify { all: false } => "one",
        Counting::Notify { all: true } => "all",
        _ => "enlist",
    };
    counted(connections.call(&change(claim, what), deadline)?)
}

pub(crate) fn leaving(claim: &Claim) -> Command {
    change(claim, "leave")
}

/// Where a waiter listens.
pub(crate) fn channel(claim: &Claim) -> String {
    format!("{}{}", channels(claim.name.key()), claim.owner)
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
