//! A kind of lock on Redis: its requests, how to read their replies, and where its waiters listen.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::error::{Error, ErrorKind};
use crate::ident::{LockName, Owner};
use crate::seam::{Answer, Attempt, Claim, Counting, Failure, Kind, Release, Snapshot};
use crate::stores::redis::acks::Grant;
use crate::stores::redis::kinds::replies::{self, NOTHING_HELD};
use crate::stores::redis::reply::{Expected, Tagged};
use crate::stores::redis::script::{Command, EXPIRE_IN, Script};
use crate::stores::redis::server::{QueueRights, RedisCall, RedisServer};
use crate::time::millis;

/// Requests of a kind that can be sent now and answered later, in order with others on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deferrable {
    /// An attempt is just [`acquisition`](RedisKind::acquisition), a release just
    /// [`removal`](RedisKind::removal).
    AttemptsAndReleases,
    /// A release is [`removal`](RedisKind::removal), followed at most by
    /// [`forgetting`](RedisKind::forgetting).
    Releases,
    Neither,
}

pub(crate) fn deferrable(kind: Kind) -> Deferrable {
    match kind {
        Kind::Mutex | Kind::Fenced | Kind::Fair | Kind::Read | Kind::Write => Deferrable::AttemptsAndReleases,
        Kind::Semaphore | Kind::Permits => Deferrable::Releases,
        Kind::Token | Kind::Latch | Kind::Signal => Deferrable::Neither,
    }
}

/// The expected type of the key, for a refusal's words.
pub(crate) fn expected(kind: Kind) -> Expected {
    match kind {
        kind if kind.is_token() => Expected::Token,
        kind if kind.is_counted() => Expected::Nothing,
        _ => Expected::Hash,
    }
}

/// Whether a grant may have to be on replicas. A re-entry makes no hold that a replica could forget.
pub(crate) fn needs_copies(claim: &Claim, count: u32) -> bool {
    count == 1 && !claim.kind.is_counted()
}

/// Default methods fit most kinds.
pub(crate) trait RedisKind: Sync {
    /// The channel of all releases, or of this waiter alone; `None`: waiters get no messages, and poll.
    fn channel(&self, claim: &Claim) -> Option<String>;

    /// The channel that tells the client that it is next in the queue; `None`: there is no queue.
    fn turn_channel(&self, _claim: &Claim) -> Option<String> {
        None
    }

    /// One attempt, over a [link](crate::stores::redis::conn::ledger::Ledger::link).
    fn acquisition(&self, claim: &Claim, count: u32, link: u32) -> Command;

    fn removal(&self, claim: &Claim, left: u32) -> Command;

    /// The end of the owner's hold and of its place in a queue.
    fn leaving(&self, claim: &Claim) -> Command {
        self.removal(claim, 0)
    }

    /// `None`: this kind has no leases.
    fn renewal(&self, claim: &Claim) -> Option<Command>;

    /// Sent after a release was answered: the server need not remember that release any more.
    fn forgetting(&self, _claim: &Claim) -> Option<Command> {
        None
    }

    /// The end of the client's place in the queue; `None`: there is no queue.
    fn leaving_queue(&self, _claim: &Claim) -> Option<Command> {
        None
    }

    /// The check of a cached hold, or of one that hears of others. `own_listeners`: how many listeners for its
    /// release are this client's. `None`: this kind is neither.
    fn check_cached(&self, _claim: &Claim, _own_listeners: i64) -> Option<Command> {
        None
    }

    /// Passes the lock on in one step; `None`: a lock of this kind is released, and asked for again.
    fn hand_off(&self, _from: &Claim, _to: &Claim) -> Option<Command> {
        None
    }

    /// The script of [`acquisition`](Self::acquisition) behind a ring's guard; `None`: not for rings.
    fn guarded(&self) -> Option<&'static Script> {
        None
    }

    /// `own_listeners`: how many of the notified clients are this one. `rights` learns what the reply says
    /// about the queue.
    fn released(&self, reply: &Tagged, own_listeners: i64, rights: &QueueRights) -> Answer<Release> {
        rights.learn(reply);
        replies::released(reply, own_listeners)
    }

    /// How many of the clients that a release notifies are this one; zero where the reply counts none.
    fn own_listeners(&self, server: &RedisServer, claim: &Claim) -> i64 {
        let is_counted = claim.kind.has_queue() || deferrable(claim.kind) == Deferrable::Releases;
        i64::from(is_counted && server.subscriber.message_count(|| self.channel(claim)).is_some())
    }

    fn attempt(&self, call: &RedisCall<'_>, claim: &Claim, count: u32) -> Answer<Attempt> {
        let command = self.acquisition(claim, count, call.server.connections.link());
        let attempt = replies::attempted(&call.ask(&command, expected(claim.kind))?, claim.wants_fence)?;
        if needs_copies(claim, count) { call.confirmed(|| self.grant(claim), attempt) } else { Ok(attempt) }
    }

    /// The claim's grant, for those that need copies.
    fn grant(&self, claim: &Claim) -> Grant {
        Grant {
            lock: Arc::clone(&claim.name),
            check: Command::new("HEXISTS").arg(claim.name.key()).arg(claim.owner),
            expected: Value::Int(1),
            undo: self.removal(claim, 0),
            scriptless: None,
        }
    }

    fn release(&self, call: &RedisCall<'_>, claim: &Claim, left: u32) -> Answer<Release> {
        // A latch and a condition's notification are not given back.
        if claim.kind.is_counted() && deferrable(claim.kind) == Deferrable::Neither {
            return Ok(NOTHING_HELD);
        }
        let reply = call.ask(&self.removal(claim, left), expected(claim.kind))?;
        let listeners = self.own_listeners(call.server, claim);
        let released = self.released(&reply, listeners, &call.server.queue_rights)?;
        if let Some(forgetting) = self.forgetting(claim) {
            call.server.connections.post(forgetting, call.deadline, None, drop);
        }
        Ok(released)
    }

    /// A renewal where scripts may not be used.
    fn renew_without_scripts(&self, _call: &RedisCall<'_>, _claim: &Claim) -> Answer<bool> {
        Err(unsupported("this kind of lock needs scripts"))
    }

    /// `false`: the owner does not hold it.
    fn expire_in(&self, call: &RedisCall<'_>, claim: &Claim, rest: Duration) -> Answer<bool> {
        let command = EXPIRE_IN.on(&[claim.name.key()]).arg(claim.owner).arg(millis(rest).max(1));
        replies::renewed(&call.ask(&command, Expected::Hash)?)
    }

    fn count(&self, _call: &RedisCall<'_>, _claim: &Claim, _what: &Counting) -> Answer<Option<i64>> {
        Err(unsupported("this kind of lock counts nothing"))
    }

    fn inspect(&self, _call: &RedisCall<'_>, _name: &LockName, _owner: Owner) -> Answer<Option<Snapshot>> {
        Err(unsupported(NO_HOLDER))
    }

    /// `false`: there is none.
    fn force(&self, _call: &RedisCall<'_>, _name: &LockName) -> Answer<bool> {
        Err(unsupported(NO_HOLDER))
    }
}

const NO_HOLDER: &str = "what is counted has no holder";

pub(super) fn unsupported(words: &'static str) -> Failure {
    Failure::Refused(Error::new(ErrorKind::Unsupported, "request", words))
}
