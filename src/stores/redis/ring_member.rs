//! One server as a ring's node: attempts and looks that run only under a mark.

use redis::Value;

use crate::seam::ring_member::{MARK_KEY, Marked, Probe, RingMember};
use crate::seam::{Answer, Attempt, Claim, Failure, named};
use crate::stores::redis::keys;
use crate::stores::redis::reply::{Expected, Tagged, decoded, tagged, ttl};
use crate::stores::redis::script::{CHECK, Command, RING_MARK};
use crate::stores::redis::store::RedisStore;
use crate::time::Moment;

impl RedisStore {
    fn ask_under<T>(
        &self,
        command: Command,
        deadline: Moment,
        read: impl FnOnce(&Tagged) -> Answer<T>,
    ) -> Answer<Marked<T>> {
        self.agree_once(deadline)?;
        self.ask(command, deadline, |reply| marked(reply, |reply| read(&tagged(reply, Expected::Nothing)?)))
    }
}

/// The reply of a guarded script.
fn marked<T>(reply: Value, read: impl FnOnce(Value) -> Answer<T>) -> Answer<Marked<T>> {
    match &reply {
        Value::Array(parts) if parts.first() == Some(&Value::BulkString(b"other".to_vec())) => {
            let mark = tagged(reply, Expected::Nothing)?.text(1);
            decoded(mark).map(|mark| Marked::Other(mark.unwrap_or_default()))
        }
        _ => read(reply).map(Marked::Under),
    }
}

impl RingMember for RedisStore {
    fn bears(&self, mark: &str, deadline: Moment) -> Answer<Marked<()>> {
        self.agree(false, None, deadline)?;
        let command = RING_MARK.on(&[MARK_KEY]).arg(mark).arg(mark);
        let outcome = self.ask_under(command, deadline, |_marked| Ok(()));
        named(outcome.map_err(Failure::of_reading), "ring", MARK_KEY)
    }

    fn set_mark(&self, expected: &str, new: &str, deadline: Moment) -> Answer<Marked<()>> {
        self.agree(true, None, deadline)?;
        let command = RING_MARK.on(&[MARK_KEY]).arg(expected).arg(new);
        // Repeating it changes nothing, and nobody relies on a mark that was not confirmed.
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
        let lock = claim.name.key();
        let counter = claim.wants_fence.then(|| keys::fence_counter(lock));
        let command = match &counter {
            Some(counter) => CHECK.on(&[lock, counter]),
            None => CHECK.on(&[lock]),
        };
        let outcome = self.ask_under(command.under(mark, 0), deadline, |reply| {
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
