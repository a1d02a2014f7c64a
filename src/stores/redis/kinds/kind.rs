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

/// Whether a grant must be released. Latches and conditions hold nothing.
pub(crate) fn needs_release(kind: Kind) -> bool {
    !kind.is_counted() || kind.has_permits()
}

/// Whether a grant waits for replicas. A re-entry does not: its first grant has waited. Counted kinds do not.
pub(crate) fn needs_copies(claim: &Claim, count: u32) -> bool {
    count == 1 && !claim.kind.is_counted()
}

pub(crate) struct RedisServer {
    pub(crate) connections: Arc<Connections>,
    pub(crate) subscriber: Arc<Subscriber>,
    pub(crate) acks: Option<Arc<Acks>>,
    /// Set for a while after a release has shown that the user may not notify wait queues. The client then
    /// uses no wait queues. All members of a cluster share this value.
    pub(crate) queues_refused: Arc<Refused>,
}

/// Reads the reply to a release, and notes in `queues_refused` if the user may not notify the wait queue.
pub(crate) fn release_reply(reply: Value, queues_refused: &Refused) -> Answer<Tagged> {
    let reply = tagged(reply)?;
    if reply.tag() == b"freed" && reply.ends_with(b"denied") {
        queues_refused.note(Clock::System.now());
    }
    Ok(reply)
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
    /// The channel of this waiter alone (fair locks, conditions), or that for releases or changes of a count.
    /// `None`: waiters poll.
    fn channel(&self, claim: &Claim) -> Option<String>;

    /// The channel on which a client learns that it is next in the wait queue. `None` for kinds without one.
    fn turn_channel(&self, _claim: &Claim) -> Option<String> {
        None
    }

    /// One attempt. `link`: how slow the network is, see [`crate::hosts::link`].
    fn acquisition(&self, claim: &Claim, count: u32, link: u32) -> Command;

    fn removal(&self, claim: &Claim, left: u32) -> Command;

    /// Ends the owner's hold, and its place in a queue.
    fn leaving(&self, claim: &Claim) -> Command {
        self.removal(claim, 0)
    }

    fn renewal(&self, claim: &Claim) -> Option<Command> {
        Some(RENEW.on(&[claim.name.key()]).arg(claim.owner).arg(millis(claim.lease)))
    }

    /// Deletes the server's record of the claim's request, once the release was answered. `None`: no need to.
    fn forgetting(&self, _claim: &Claim) -> Option<Command> {
        None
    }

    /// Ends the client's place in the wait queue. `None` for kinds without one.
    fn leaving_queue(&self, _claim: &Claim) -> Option<Command> {
        None
    }

    /// Asks whether other clients wait for a lock whose hold is cached, or has an `on_contended` callback.
    /// `own_listeners`: how many listeners of the release channel are this client's. `None` for kinds that
    /// have neither caching nor callbacks.
    fn check_cached(&self, _claim: &Claim, _own_listeners: i64) -> Option<Command> {
        None
    }

    /// Makes `to` the owner in one step. `None` for kinds without hand-off: the lock is then released.
    fn hand_off(&self, _from: &Claim, _to: &Claim) -> Option<Command> {
        None
    }

    /// Reads the reply to a release. `own_listeners`: 1 if the release notified this client too, else 0.
    fn released(&self, reply: &Tagged, own_listeners: i64) -> Answer<Release> {
        replies::released(reply, own_listeners)
    }

    /// 1 if this client itself listens to the release channel; 0 if not, or if releases count no listeners.
    fn own_listeners(&self, server: &RedisServer, claim: &Claim) -> i64 {
        let counts_listeners = claim.kind.has_queue() || claim.kind.has_permits();
        i64::from(counts_listeners && server.subscriber.message_count(|| self.channel(claim)).is_some())
    }

    /// Adds the name of the owner's field in the lock's hash.
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

pub(crate) fn fenced(script: &'static Script, claim: &Claim) -> Command {
    let lock = claim.name.key();
    if claim.wants_fence { script.on(&[lock, &keys::fence_counter(lock)]) } else { script.on(&[lock]) }
}

pub(crate) fn unsupported(words: &'static str) -> Failure {
    Failure::Refused(Error::new(ErrorKind::Unsupported, "request", words))
}
