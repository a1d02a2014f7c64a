//! One server as a ring's node: attempts and looks that run only under a mark.

use super::mutex::{decoded, tagged};
use super::reply::{Expected, Failure, Tagged, answer, ttl};
use super::script::{
    LOOK, RING_ACQUIRE, RING_FAIR_ACQUIRE, RING_LOOK, RING_MARK, RING_RW_ACQUIRE, RING_TOKEN_ACQUIRE, Request,
};
use super::{RedisStore, fair, keys, mutex, rw, token};
use crate::error::{Error, ErrorKind};
use crate::lock::member::{Look, MARK_KEY, Marked, Member};
use crate::lock::store::{Answer, Attempt, Claim, Kind};
use crate::time::Moment;

type Outcome<T> = std::result::Result<T, Failure>;

impl RedisStore {
    fn ask_under<T>(
        &self,
        request: &Request,
        by: Moment,
        read: impl FnOnce(&Tagged) -> Outcome<T>,
    ) -> Outcome<Marked<T>> {
        marked(&tagged(self.wire.call(request, by)?, Expected::Nothing)?, read)
    }
}

/// The reply of a guarded script.
fn marked<T>(reply: &Tagged, read: impl FnOnce(&Tagged) -> Outcome<T>) -> Outcome<Marked<T>> {
    if reply.tag() == b"other" {
        return decoded(reply.text(1)).map(|mark| Marked::Other(mark.unwrap_or_default()));
    }
    read(reply).map(Marked::Under)
}

impl Member for RedisStore {
    fn set_mark(&self, expected: &str, new: &str, by: Moment) -> Answer<Marked<()>> {
        let request = RING_MARK.on(&[MARK_KEY]).arg(expected).arg(new);
        // Repeating it changes nothing, and nobody relies on a mark that was not confirmed.
        let outcome = self.ask_under(&request, by, |_marked| Ok(()));
        answer(outcome.map_err(Failure::of_reading), "ring", MARK_KEY)
    }

    fn attempt_under(
        &self,
        mark: &str,
        claim: &Claim,
        wants_fence: bool,
        fence: u64,
        by: Moment,
    ) -> Answer<Marked<Attempt>> {
        let (request, guarded) = match claim.kind {
            Kind::Mutex | Kind::Fenced => (mutex::acquisition(claim, 1, wants_fence), &RING_ACQUIRE),
            Kind::Fair => (fair::acquisition(claim, 1, wants_fence), &RING_FAIR_ACQUIRE),
            Kind::Read | Kind::Write => (rw::acquisition(claim, 1, wants_fence), &RING_RW_ACQUIRE),
            Kind::Token => (token::acquisition(claim), &RING_TOKEN_ACQUIRE),
            Kind::Semaphore | Kind::Permits | Kind::Latch | Kind::Signal => {
                let words = "a ring counts nothing";
                return Answer::Refused(
                    Error::new(ErrorKind::Unsupported, "lock", words).on(claim.name.given()),
                );
            }
        };
        let expected = if claim.kind.is_token() { Expected::Token } else { Expected::Hash };
        let request = request.under(guarded, mark, fence);
        let reply = match self.replicas {
            Some(replicas) => replicas.ask(&self.wire, request, self.removal(claim), expected, by),
            None => self.wire.call(&request, by).and_then(|reply| tagged(reply, expected)),
        };
        let outcome = reply.and_then(|reply| marked(&reply, |reply| mutex::attempted(reply, wants_fence)));
        answer(outcome, "lock", claim.name.given())
    }

    fn look_under(&self, mark: &str, claim: &Claim, wants_fence: bool, by: Moment) -> Answer<Marked<Look>> {
        let lock = claim.name.key();
        let counter = wants_fence.then(|| keys::fence_counter(lock));
        let request = match &counter {
            Some(counter) => LOOK.on(&[lock, counter]),
            None => LOOK.on(&[lock]),
        };
        let outcome = self.ask_under(&request.under(&RING_LOOK, mark, 0), by, |reply| {
            decoded(match reply.tag() {
                b"free" => reply.text(1).map(|fence| Look::Free {
                    fence: fence.and_then(|fence| fence.parse().ok()).unwrap_or(0),
                }),
                b"busy" => reply.number(1).map(|ttl_ms| Look::Busy { retry_after: ttl(ttl_ms) }),
                _ => Err(reply.unexpected()),
            })
        });
        answer(outcome.map_err(Failure::of_reading), "lock", claim.name.given())
    }
}
