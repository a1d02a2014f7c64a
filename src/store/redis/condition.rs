//! Conditions: who waits, in order; who of them is alive; who was notified and has not noticed yet.
//!
//! Java's `newCondition` throws, so the keys are ours alone. Waiters join while they hold the lock, and those who notify
//! hold it too, so none is notified before it waits; and a notification that its waiter does not live to notice, or
//! leaves behind, goes to the next.

use super::keys::{self, Part};
use super::mutex::{self, Outcome};
use super::reply::Expected;
use super::script::{Request, SIGNAL_ATTEMPT, SIGNAL_CHANGE, Script};
use super::semaphore::counted;
use super::wire::Wire;
use crate::lock::store::{Attempt, Claim, Counting, PLACE_LASTS};
use crate::time::{Moment, millis};

pub(super) fn attempt(wire: &Wire, claim: &Claim, by: Moment) -> Outcome<Attempt> {
    let request = on(&SIGNAL_ATTEMPT, claim).arg(claim.owner).arg(millis(PLACE_LASTS));
    let request = request.arg(channels(claim.name.key()));
    mutex::attempted(&mutex::tagged(wire.call(&request, by)?, Expected::Nothing)?, false)
}

pub(super) fn count(wire: &Wire, claim: &Claim, what: &Counting, by: Moment) -> Outcome<Option<i64>> {
    let what = match what {
        Counting::Notify { all: false } => "one",
        Counting::Notify { all: true } => "all",
        _ => "enlist",
    };
    counted(wire.call(&change(claim, what), by)?)
}

pub(super) fn leaving(claim: &Claim) -> Request {
    change(claim, "leave")
}

/// Where a waiter listens.
pub(super) fn channel(claim: &Claim) -> String {
    format!("{}{}", channels(claim.name.key()), claim.owner)
}

fn change(claim: &Claim, what: &str) -> Request {
    let request = on(&SIGNAL_CHANGE, claim).arg(what).arg(claim.owner);
    request.arg(millis(PLACE_LASTS)).arg(channels(claim.name.key()))
}

fn on(script: &'static Script, claim: &Claim) -> Request {
    let parts = [Part::ConditionQueue, Part::ConditionHeartbeats, Part::ConditionNotified];
    let keys = parts.map(|part| keys::before(part, claim.name.key()));
    let [queue, heartbeats, notified] = &keys;
    script.on(&[queue, heartbeats, notified])
}

fn channels(condition: &str) -> String {
    keys::before(Part::ConditionChannel, condition) + ":"
}
