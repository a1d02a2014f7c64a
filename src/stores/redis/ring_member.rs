//! One server as a ring's node: attempts and looks that run only under a mark.

use crate::error::{Error, ErrorKind};
use crate::seam::ring_member::{MARK_KEY, Marked, Probe, RingMember};
use crate::seam::{Answer, Attempt, Claim, Failure, named};
use crate::stores::redis::keys;
use crate::stores::redis::kinds::kind::expected;
use crate::stores::redis::kinds::{self, replies};
use crate::stores::redis::reply::{Expected, Tagged, decoded, tagged, ttl};
use crate::stores::redis::script::{Command, LOOK, RING_LOOK, RING_MARK};
use crate::stores::redis::store::RedisStore;
use crate::time::Moment;

impl RedisStore {
    fn ask_under<T>(
        &self,
        command: &Command,
        deadline: Moment,
        read: impl FnOnce(&Tagged) -> Answer<T>,
    ) -> Answer<Marked<T>> {
        self.agree_once(deadline)?;
        marked(&tagged(self.server.connections.call(command, deadline)?, Expected::Nothing)?, read)
    }
}

/// The reply of a guarded script.
fn marked<T>(reply: &Tagged, read: impl FnOnce(&Tagged) -> Answer<T>) -> Answer<Marked<T>> {
    if reply.tag() == b"other" {
        return decoded(reply.text(1)).map(|mark| Marked::Other(mark.unwrap_or_default()));
    }
    read(reply).map(Marked::Under)
}

impl RingMember for RedisStore {
    fn bears(&self, mark: &str, deadline: Moment) -> Answer<Marked<()>> {
        self.agree(false, None, deadline)?;
        let command = RING_MARK.on(&[MARK_KEY]).arg(mark).arg(mark);
        let outcome = self.ask_under(&command, deadline, |_marked| Ok(()));
        named(outcome.map_err(Failure::of_reading), "ring", MARK_KEY)
    }

    fn set_mark(&self, expected: &str, new: &str, deadline: Moment) -> Answer<Marked<()>> {
        self.agree(true, None, deadline)?;
        let command = RING_MARK.on(&[MARK_KEY]).arg(expected).arg(new);
        // Repeating it changes nothing, and nobody relies on a mark that was not confirmed.
        let outcome = self.ask_under(&command, deadline, |_marked| Ok(()));
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
        let kind = kinds::of(claim.kind);
        let Some(guarded) = kind.guarded() else {
            let error = Error::new(ErrorKind::Unsupported, "lock", "a ring counts nothing");
            return Err(Failure::Refused(error.on(claim.name.given())));
        };
        let command = kind.acquisition(claim, 1, self.server.connections.link());
        let command = command.under(guarded, mark, fence);
        let call = self.until(deadline);
        let outcome = call.ask(&command, expected(claim.kind)).and_then(|reply| {
            marked(&reply, |reply| {
                call.confirmed(|| kind.grant(claim), replies::attempted(reply, claim.wants_fence)?)
            })
        });
        named(outcome, "lock", claim.name.given())
    }

    fn probe_under(&self, mark: &str, claim: &Claim, deadline: Moment) -> Answer<Marked<Probe>> {
        let lock = claim.name.key();
        let counter = claim.wants_fence.then(|| keys::fence_counter(lock));
        let command = match &counter {
            Some(counter) => LOOK.on(&[lock, counter]),
            None => LOOK.on(&[lock]),
        };
        let outcome = self.ask_under(&command.under(&RING_LOOK, mark, 0), deadline, |reply| {
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
