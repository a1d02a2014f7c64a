//! One server as a ring's node: attempts and looks that run only under a mark.

use crate::error::{Error, ErrorKind};
use crate::seam::ring_member::{Look, MARK_KEY, Marked, RingMember};
use crate::seam::{Answer, Attempt, Claim, Kind};
use crate::stores::redis::kinds::mutex::{decoded, tagged};
use crate::stores::redis::reply::{Expected, Failure, Tagged, answer, ttl};
use crate::stores::redis::script::{
    Command, LOOK, RING_ACQUIRE, RING_FAIR_ACQUIRE, RING_LOOK, RING_MARK, RING_RW_ACQUIRE, RING_TOKEN_ACQUIRE,
};
use crate::stores::redis::{RedisStore, fair, keys, mutex, rw, token};
use crate::time::Moment;

type Outcome<T> = std::result::Result<T, Failure>;

impl RedisStore {
    fn ask_under<T>(
        &self,
        command: &Command,
        deadline: Moment,
        read: impl FnOnce(&Tagged) -> Outcome<T>,
    ) -> Outcome<Marked<T>> {
        marked(&tagged(self.connections.call(command, deadline)?, Expected::Nothing)?, read)
    }
}

/// The reply of a guarded script.
fn marked<T>(reply: &Tagged, read: impl FnOnce(&Tagged) -> Outcome<T>) -> Outcome<Marked<T>> {
    if reply.tag() == b"other" {
        return decoded(reply.text(1)).map(|mark| Marked::Other(mark.unwrap_or_default()));
    }
    read(reply).map(Marked::Under)
}

impl RingMember for RedisStore {
    fn set_mark(&self, expected: &str, new: &str, deadline: Moment) -> Answer<Marked<()>> {
        let command = RING_MARK.on(&[MARK_KEY]).arg(expected).arg(new);
        // Repeating it changes nothing, and nobody relies on a mark that was not confirmed.
        let outcome = self.ask_under(&command, deadline, |_marked| Ok(()));
        answer(outcome.map_err(Failure::of_reading), "ring", MARK_KEY)
    }

    fn attempt_under(
        &self,
        mark: &str,
        claim: &Claim,
        fence: u64,
        deadline: Moment,
    ) -> Answer<Marked<Attempt>> {
        let (command, guarded) = match claim.kind {
            Kind::Mutex | Kind::Fenced => (mutex::acquisition(claim, 1), &RING_ACQUIRE),
            Kind::Fair => (fair::acquisition(claim, 1), &RING_FAIR_ACQUIRE),
            Kind::Read | Kind::Write => (rw::acquisition(claim, 1), &RING_RW_ACQUIRE),
            Kind::Token => (token::acquisition(claim), &RING_TOKEN_ACQUIRE),
            Kind::Semaphore | Kind::Permits | Kind::Latch | Kind::Signal => {
                let words = "a ring counts nothing";
                return Answer::Refused(
                    Error::new(ErrorKind::Unsupported, "lock", words).on(claim.name.given()),
                );
            }
        };
        let expected = if claim.kind.is_token() { Expected::Token } else { Expected::Hash };
        let command = command.under(guarded, mark, fence);
        let reply = match self.replicas {
            Some(replicas) => {
                replicas.ask(&self.connections, command, self.removal(claim), expected, deadline)
            }
            None => self.connections.call(&command, deadline).and_then(|reply| tagged(reply, expected)),
        };
        let outcome =
            reply.and_then(|reply| marked(&reply, |reply| mutex::attempted(reply, claim.wants_fence)));
        answer(outcome, "lock", claim.name.given())
    }

    fn look_under(&self, mark: &str, claim: &Claim, deadline: Moment) -> Answer<Marked<Look>> {
        let lock = claim.name.key();
        let counter = claim.wants_fence.then(|| keys::fence_counter(lock));
        let command = match &counter {
            Some(counter) => LOOK.on(&[lock, counter]),
            None => LOOK.on(&[lock]),
        };
        let outcome = self.ask_under(&command.under(&RING_LOOK, mark, 0), deadline, |reply| {
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
