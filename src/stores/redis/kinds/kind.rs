//! A kind of lock on Redis: its requests, the meaning of their replies, and the channels of its waiters.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::error::{Error, ErrorKind};
use crate::ident::{LockName, Owner};
use crate::refused::Refused;
use crate::seam::{Answer, Claim, Counting, Failure, Kind, Release, Snapshot};
use crate::stores::redis::acks::{Acks, Grant};
use crate::stores::redis::conn::connections::Connections;
use crate::stores::redis::keys;
use crate::stores::redis::kinds::replies;
use crate::stores::redis::pubsub::Subscriber;
use crate::stores::redis::reply::{Tagged, tagged};
use crate::stores::redis::script::{Command, EXPIRE_IN, INSPECT, RENEW, Script};
use crate::time::{Clock, Moment, millis};

/// Whether a grant is released later; false for a latch, and for a condition's notification.
pub(crate) fn is_given_back(kind: Kind) -> bool {
    !kind.is_counted() || kind.has_permits()
}

pub(crate) fn is_batched(kind: Kind) -> bool {
    kind.has_queue()
}

/// Whether a grant may need copies on replicas. A re-entry makes no new hold that a failover could lose.
pub(crate) fn needs_copies(claim: &Claim, count: u32) -> bool {
    count == 1 && !claim.kind.is_counted()
}

pub(crate) struct RedisServer {
    pub(crate) connections: Arc<Connections>,
    pub(crate) subscriber: Arc<Subscriber>,
    pub(crate) acks: Option<Arc<Acks>>,
    pub(crate) queue_rights: QueueRights,
}

/// Whether the user may notify wait queues; shared by the members of a cluster. The reply to a release may
/// say that the user may not. After a while the client tries queues again, until another reply says so.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueueRights {
    pub(crate) refused: Arc<Refused>,
}

impl QueueRights {
    pub(crate) fn learn(&self, reply: &Tagged) {
        if reply.ends_with(b"denied") {
            self.refused.note(Clock::System.now());
        }
    }

    pub(crate) fn are_refused(&self) -> bool {
        self.refused.stands(|| Clock::System.now())
    }
}

pub(crate) struct RedisCall<'a> {
    pub(crate) server: &'a RedisServer,
    pub(crate) deadline: Moment,
}

impl RedisCall<'_> {
    pub(crate) fn ask(&self, command: Command) -> Answer<Tagged> {
        tagged(self.server.connections.call(command, self.deadline)?)
    }
}

pub(crate) trait RedisKind: Sync {
    /// The channel of all releases, or of this waiter alone; `None`: waiters get no messages, and poll.
    fn channel(&self, claim: &Claim) -> Option<String>;

    /// The channel that notifies the client that it is next in the wait queue; `None`: no wait queue.
    fn turn_channel(&self, _claim: &Claim) -> Option<String> {
        None
    }

    /// One attempt, over a [link](crate::stores::redis::conn::ledger::Ledger::link).
    fn acquisition(&self, claim: &Claim, count: u32, link: u32) -> Command;

    fn removal(&self, claim: &Claim, left: u32) -> Command;

    /// Ends the owner's hold and its place in a queue.
    fn leaving(&self, claim: &Claim) -> Command {
        self.removal(claim, 0)
    }

    fn renewal(&self, claim: &Claim) -> Option<Command> {
        Some(RENEW.on(&[claim.name.key()]).arg(claim.owner).arg(millis(claim.lease)))
    }

    /// Sent after the answer to a release: the server may forget its record of that release.
    fn forgetting(&self, _claim: &Claim) -> Option<Command> {
        None
    }

    /// Ends the client's place in the wait queue; `None`: no wait queue.
    fn leaving_queue(&self, _claim: &Claim) -> Option<Command> {
        None
    }

    /// The check of a cached hold, or of a hold that listens for other clients. `own_listeners`: how many
    /// listeners for its release are this client's. `None`: this kind has no such holds.
    fn check_cached(&self, _claim: &Claim, _own_listeners: i64) -> Option<Command> {
        None
    }

    /// Hands the lock over in one step; `None`: the lock is released, and the next owner asks for it.
    fn hand_off(&self, _from: &Claim, _to: &Claim) -> Option<Command> {
        None
    }

    /// `own_listeners`: how many of the notified clients are this client. `rights` learns what the reply says
    /// about the wait queue.
    fn released(&self, reply: &Tagged, own_listeners: i64, rights: &QueueRights) -> Answer<Release> {
        rights.learn(reply);
        replies::released(reply, own_listeners)
    }

    /// How many of the clients that a release notifies are this one; zero if the reply does not count them.
    fn own_listeners(&self, server: &RedisServer, claim: &Claim) -> i64 {
        let is_counted = claim.kind.has_queue() || claim.kind.has_permits();
        i64::from(is_counted && server.subscriber.message_count(|| self.channel(claim)).is_some())
    }

    /// Adds the hash field of the owner's hold.
    fn with_field(&self, command: Command, claim: &Claim) -> Command {
        command.arg(claim.owner)
    }

    fn grant(&self, claim: &Claim) -> Grant {
        Grant {
            lock: Arc::clone(&claim.name),
            check: self.with_field(Command::new("HEXISTS").arg(claim.name.key()), claim),
            expected: Value::Int(1),
            undo: self.removal(claim, 0),
        }
    }

    fn expire_in(&self, call: &RedisCall<'_>, claim: &Claim, rest: Duration) -> Answer<bool> {
        let command = EXPIRE_IN.on(&[claim.name.key()]).arg(claim.owner).arg(millis(rest).max(1));
        replies::renewed(&call.ask(command)?)
    }

    fn count(&self, _call: &RedisCall<'_>, _claim: &Claim, _what: &Counting) -> Answer<Option<i64>> {
        Err(unsupported("this kind of lock counts nothing"))
    }

    fn inspect(&self, call: &RedisCall<'_>, name: &LockName, owner: Owner) -> Answer<Option<Snapshot>> {
        let command = INSPECT.on(&[name.key()]).arg(owner);
        replies::inspected(&call.ask(command)?)
    }

    fn force(&self, call: &RedisCall<'_>, name: &LockName) -> Answer<bool>;
}

/// A script on the lock, and on its fence counter if the claim wants a fence.
pub(crate) fn fenced(script: &'static Script, claim: &Claim) -> Command {
    let lock = claim.name.key();
    if claim.wants_fence { script.on(&[lock, &keys::fence_counter(lock)]) } else { script.on(&[lock]) }
}

pub(super) fn unsupported(words: &'static str) -> Failure {
    Failure::Refused(Error::new(ErrorKind::Unsupported, "request", words))
}
