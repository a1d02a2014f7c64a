//! A kind of lock on Redis: its requests, how to read their replies, and where its waiters listen.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ident::{LockName, Owner};
use crate::seam::capabilities::SAFETY_POLL;
use crate::seam::{Answer, Attempt, Claim, Counting, Failure, Release, Snapshot};
use crate::stores::redis::cluster::slots::keeps_its_slot;
use crate::stores::redis::kinds::replies;
use crate::stores::redis::reply::{Expected, Tagged};
use crate::stores::redis::script::{Command, EXPIRE_IN, Script};
use crate::stores::redis::server::{LineRights, RedisCall, RedisServer};
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

/// Default methods fit most kinds.
pub(crate) trait RedisKind: Sync {
    /// Whether a busy attempt joins a queue on the server.
    fn queues(&self) -> bool {
        false
    }

    /// The shortest and the longest sleep of a waiter that no message wakes.
    fn poll_every(&self) -> (Duration, Duration) {
        SAFETY_POLL
    }

    /// Kinds without scripts have [`renew_without_scripts`](Self::renew_without_scripts).
    fn needs_scripts(&self) -> bool {
        true
    }

    /// Whether all keys of this lock are in one slot of a cluster.
    fn fits_cluster(&self, key: &str) -> bool {
        keeps_its_slot(key)
    }

    /// The expected type of the key, for a refusal's words.
    fn expected(&self) -> Expected {
        Expected::Hash
    }

    /// Whether a grant counts only when it has reached the required replicas.
    fn awaits_replicas(&self) -> bool {
        true
    }

    fn deferrable(&self) -> Deferrable;

    /// Whether the scripts for several plain locks (see `several`) take and release this kind too.
    fn is_batched(&self) -> bool {
        false
    }

    /// The channel of all releases, or of this waiter alone; `None`: waiters get no messages, and poll.
    fn channel(&self, claim: &Claim) -> Option<String>;

    /// The channel that tells the client that it is next in the queue; `None`: there is no queue.
    fn turn_channel(&self, claim: &Claim) -> Option<String> {
        let _ = claim;
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
    fn forgetting(&self, claim: &Claim) -> Option<Command> {
        let _ = claim;
        None
    }

    /// The end of the client's place in the queue; `None`: there is no queue.
    fn leaving_line(&self, claim: &Claim) -> Option<Command> {
        let _ = claim;
        None
    }

    /// The check of a cached hold. `own_listeners`: how many listeners for its release are this client's.
    /// `None`: this kind is not cached.
    fn look_kept(&self, claim: &Claim, own_listeners: i64) -> Option<Command> {
        let _ = (claim, own_listeners);
        None
    }

    /// Passes the lock on in one step; `None`: a lock of this kind is released, and asked for again.
    fn hand_off(&self, from: &Claim, to: &Claim) -> Option<Command> {
        let _ = (from, to);
        None
    }

    /// The script of [`acquisition`](Self::acquisition) behind a ring's guard; `None`: not for rings.
    fn guarded(&self) -> Option<&'static Script> {
        None
    }

    /// `own_listeners`: how many of the notified clients are this one. `rights` learns what the reply says
    /// about the queue.
    fn released(&self, reply: &Tagged, own_listeners: i64, rights: &LineRights) -> Answer<Release> {
        let _ = rights;
        replies::released(reply, own_listeners)
    }

    /// How many of the clients that a release notifies are this one; zero where the reply counts none.
    fn own_listeners(&self, server: &RedisServer, claim: &Claim) -> i64 {
        let _ = (server, claim);
        0
    }

    fn attempt(&self, call: &RedisCall<'_>, claim: &Claim, count: u32) -> Answer<Attempt> {
        let command = self.acquisition(claim, count, call.server.connections.link());
        // A re-entry makes no hold that a replica could forget.
        let reply = match call.server.replicas.filter(|_| count == 1 && self.awaits_replicas()) {
            Some(replicas) => {
                let undo = self.removal(claim, 0);
                replicas.ask(&call.server.connections, command, undo, self.expected(), call.deadline)?
            }
            None => call.ask(&command, self.expected())?,
        };
        replies::attempted(&reply, claim.wants_fence)
    }

    fn release(&self, call: &RedisCall<'_>, claim: &Claim, left: u32) -> Answer<Release> {
        let command = self.removal(claim, left);
        let reply = call.ask(&command, self.expected())?;
        self.released(&reply, self.own_listeners(call.server, claim), &call.server.line_rights)
    }

    /// A renewal where scripts may not be used.
    fn renew_without_scripts(&self, call: &RedisCall<'_>, claim: &Claim) -> Answer<bool> {
        let _ = (call, claim);
        Err(unsupported("this kind of lock needs scripts"))
    }

    /// `false`: the owner does not hold it.
    fn expire_in(&self, call: &RedisCall<'_>, claim: &Claim, rest: Duration) -> Answer<bool> {
        let command = EXPIRE_IN.on(&[claim.name.key()]).arg(claim.owner).arg(millis(rest).max(1));
        replies::renewed(&call.ask(&command, Expected::Hash)?)
    }

    fn count(&self, call: &RedisCall<'_>, claim: &Claim, what: &Counting) -> Answer<Option<i64>> {
        let _ = (call, claim, what);
        Err(unsupported("this kind of lock counts nothing"))
    }

    fn inspect(&self, call: &RedisCall<'_>, name: &LockName, owner: Owner) -> Answer<Option<Snapshot>>;

    /// `false`: there is none.
    fn force(&self, call: &RedisCall<'_>, name: &LockName) -> Answer<bool>;
}

pub(super) fn unsupported(words: &'static str) -> Failure {
    Failure::Refused(Error::new(ErrorKind::Unsupported, "request", words))
}

/// For kinds without a holder.
pub(super) fn no_holder<T>() -> Answer<T> {
    Err(unsupported("what is counted has no holder"))
}
