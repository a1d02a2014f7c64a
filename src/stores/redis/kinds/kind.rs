//! A kind of lock on Redis: its requests, how their replies are read, and where its waiters listen.

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
    /// An attempt is [`acquisition`](RedisKind::acquisition) and a release [`removal`](RedisKind::removal),
    /// and no more.
    AttemptsAndReleases,
    /// A release is [`removal`](RedisKind::removal), and no more but for
    /// [`forgetting`](RedisKind::forgetting).
    Releases,
    Neither,
}

/// A kind of lock on Redis. The methods with a body fit most kinds.
pub(crate) trait RedisKind: Sync {
    // ---- properties

    /// Whether a busy attempt stands in a queue on the server from then on.
    fn queues(&self) -> bool {
        false
    }

    /// How long a waiter may sleep without being woken: at least, at most.
    fn poll_every(&self) -> (Duration, Duration) {
        SAFETY_POLL
    }

    /// Whether its requests are scripts. A kind without them has
    /// [`renew_without_scripts`](Self::renew_without_scripts).
    fn needs_scripts(&self) -> bool {
        true
    }

    /// Whether all that belongs to this key is in one slot of a cluster.
    fn fits_cluster(&self, key: &str) -> bool {
        keeps_its_slot(key)
    }

    /// The value that the key should have, for the words of a refusal.
    fn expected(&self) -> Expected {
        Expected::Hash
    }

    /// Whether a grant counts only when it has reached the replicas that the client's options name.
    fn awaits_replicas(&self) -> bool {
        true
    }

    /// Requests that need not be waited for.
    fn deferrable(&self) -> Deferrable;

    /// Whether the scripts for several plain locks (see `several`) take and release it too.
    fn is_batched(&self) -> bool {
        false
    }

    /// The channel on which each release is told, or to this waiter alone; `None`: it is sent no messages,
    /// and polls.
    fn channel(&self, claim: &Claim) -> Option<String>;

    /// The channel on which its client is told that it is next in the lock's line; `None`: there is no line.
    fn turn_channel(&self, claim: &Claim) -> Option<String> {
        let _ = claim;
        None
    }

    // ---- requests

    /// One attempt, over a [link](crate::stores::redis::conn::ledger::Ledger::link).
    fn acquisition(&self, claim: &Claim, count: u32, link: u32) -> Command;

    /// A release that leaves the owner the count `left`.
    fn removal(&self, claim: &Claim, left: u32) -> Command;

    /// The end of all that the owner has here: its hold, and its place in a queue.
    fn leaving(&self, claim: &Claim) -> Command {
        self.removal(claim, 0)
    }

    /// A renewal; `None`: nothing of this kind has a lease.
    fn renewal(&self, claim: &Claim) -> Option<Command>;

    /// A request after an answered release: the server need not remember that release any more.
    fn forgetting(&self, claim: &Claim) -> Option<Command> {
        let _ = claim;
        None
    }

    /// The end of its client's place in the lock's line; `None`: there is no line.
    fn leaving_line(&self, claim: &Claim) -> Option<Command> {
        let _ = claim;
        None
    }

    /// A look at a hold that is kept until others ask for it; so many of those who listen for its release are
    /// this client. `None`: this kind is not kept.
    fn look_kept(&self, claim: &Claim, own_listeners: i64) -> Option<Command> {
        let _ = (claim, own_listeners);
        None
    }

    /// A change of owner in one step; `None`: a lock of this kind is released, and asked for again.
    fn hand_off(&self, from: &Claim, to: &Claim) -> Option<Command> {
        let _ = (from, to);
        None
    }

    /// The script of [`acquisition`](Self::acquisition) behind a ring's guard; `None`: a ring cannot keep
    /// this kind.
    fn guarded(&self) -> Option<&'static Script> {
        None
    }

    // ---- replies

    /// The reply to a removal. `own_listeners`: how many of the clients that were notified are this one.
    /// `rights` learn what it says of the lock's line.
    fn released(&self, reply: &Tagged, own_listeners: i64, rights: &LineRights) -> Answer<Release> {
        let _ = rights;
        replies::released(reply, own_listeners)
    }

    /// How many of the clients that a release notifies are this one; zero where the reply counts none.
    fn own_listeners(&self, server: &RedisServer, claim: &Claim) -> i64 {
        let _ = (server, claim);
        0
    }

    // ---- all of it, with the wait for the reply

    /// Asks once.
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

    /// Has the owner keep the count `left`.
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

    /// Has the hold end when `rest` has passed; `false`: the owner does not hold it.
    fn expire_in(&self, call: &RedisCall<'_>, claim: &Claim, rest: Duration) -> Answer<bool> {
        let command = EXPIRE_IN.on(&[claim.name.key()]).arg(claim.owner).arg(millis(rest).max(1));
        replies::renewed(&call.ask(&command, Expected::Hash)?)
    }

    /// Asks about, or changes, a count.
    fn count(&self, call: &RedisCall<'_>, claim: &Claim, what: &Counting) -> Answer<Option<i64>> {
        let _ = (call, claim, what);
        Err(unsupported("this kind of lock counts nothing"))
    }

    /// Shows a holder.
    fn inspect(&self, call: &RedisCall<'_>, name: &LockName, owner: Owner) -> Answer<Option<Snapshot>>;

    /// Ends a hold of any owner; `false`: there is none.
    fn force(&self, call: &RedisCall<'_>, name: &LockName) -> Answer<bool>;
}

pub(super) fn unsupported(words: &'static str) -> Failure {
    Failure::Refused(Error::new(ErrorKind::Unsupported, "request", words))
}

/// The refusal of [`inspect`](RedisKind::inspect) and [`force`](RedisKind::force) for kinds without a holder.
pub(super) fn no_holder<T>() -> Answer<T> {
    Err(unsupported("what is counted has no holder"))
}
