//! A number in a string key, as Redisson keeps it: the common part of semaphores, those with leases too, and
//! latches.
//!
//! A number cannot be set to what it shall be, as a hold count can, so each change is made under the id of
//! its request and is not made again for [`REQUEST_LASTS`].

use crate::seam::Answer;
use crate::seam::{Claim, Counting, REQUEST_LASTS};
use crate::stores::redis::keys;
use crate::stores::redis::kinds::kind::unsupported;
use crate::stores::redis::kinds::replies;
use crate::stores::redis::reply::Expected;
use crate::stores::redis::script::{COUNTER, Command};
use crate::stores::redis::server::RedisCall;
use crate::time::millis;

/// A number, by what belongs to it.
pub(super) struct Counter {
    pub(super) channel: String,
    /// The permits that are out. A kind without them leaves it out: a user's rights need not go further.
    pub(super) out: Option<String>,
    /// Whether a change counts as one of a latch.
    pub(super) is_latch: bool,
}

impl Counter {
    /// Asks about the number, or changes it.
    pub(super) fn count(&self, call: &RedisCall<'_>, claim: &Claim, what: &Counting) -> Answer<Option<i64>> {
        let (word, amount, lease) = match what {
            Counting::Ask => ("ask", 0, None),
            Counting::SetUp { to, lease } => ("set_up", i64::from(*to), *lease),
            Counting::Add(amount) => ("add", *amount, None),
            Counting::AddIfSetUp(amount) => ("add_if_set_up", *amount, None),
            Counting::SetTo(count) => ("set_to", i64::from(*count), None),
            Counting::Drain => ("drain", 0, None),
            Counting::CountDown => ("count_down", 0, None),
            Counting::Delete => ("delete", 0, None),
            Counting::Forget => {
                forget(call, claim);
                return Ok(None);
            }
            Counting::AskOut
            | Counting::AskAll
            | Counting::GiveBack(_)
            | Counting::GiveBackAll(_)
            | Counting::Lease(..)
            | Counting::AskLease(_) => return Err(unsupported("these permits have no ids")),
            Counting::Notify { .. } | Counting::Enlist => {
                return Err(unsupported("a counter notifies nobody"));
            }
        };
        let command = request_key(claim);
        let keys: Vec<&str> = [claim.name.key(), &command].into_iter().chain(self.out.as_deref()).collect();
        let command = COUNTER.on(&keys).arg(word).arg(amount).arg(lease.map_or(0, millis));
        let command = command.arg(millis(REQUEST_LASTS)).arg(u8::from(self.is_latch)).arg(&*self.channel);
        replies::counted(&call.ask(&command, Expected::Nothing)?)
    }
}

/// Has the server forget a request that was answered and will not be sent again.
pub(super) fn forget(call: &RedisCall<'_>, claim: &Claim) {
    call.server.connections.post(forgetting(claim), call.deadline, None, drop);
}

pub(super) fn forgetting(claim: &Claim) -> Command {
    Command::new("DEL").arg(request_key(claim))
}

/// The key of the result of a request.
pub(super) fn request_key(claim: &Claim) -> String {
    keys::command(claim.name.key(), &claim.owner.to_string())
}
