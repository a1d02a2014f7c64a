//! The steps in which Redisson differs from our clients.
//!
//! Redisson waits for a message, or until the lease that the server reported has ended. A message that comes
//! during a request causes another request. Each request may overtake the one before, since Redisson has a
//! pool of connections.
//!
//! Redisson's own faults are left out. A Redisson thread never changes its owner id, so a late request may end
//! a later hold, or add a level; here the thread stops after a lost or late request. Redisson also counts on a
//! hold until it releases the lock; here it does so only until the requested lease has ended.

use super::{Phase, Request, World};
use crate::foreign::{Foreign, Part, unlock_id};
use crate::kinds::{Answer, Call, Kind, Op, Who};
use crate::server::Reply;

impl<'a> World<'a> {
    /// This world, in which Redisson is the client [`crate::kinds::FOREIGN`].
    #[must_use]
    pub fn beside(self, foreign: &'a Foreign) -> World<'a> {
        World { foreign: Some(foreign), ..self }
    }

    fn foreign(&self) -> &'a Foreign {
        self.foreign.expect("it was overheard")
    }

    /// The script of a request, ours or Redisson's.
    pub(super) fn call(&self, request: &Request) -> Call {
        if request.who.is_foreign() {
            let now_ms = request.sent_us / 1000;
            return self.foreign().call(self.kind, request.op, &request.who, now_ms, request.unlock);
        }
        self.kind.call(request.op, &request.who, request.to.as_ref(), request.waited_ms)
    }

    pub(super) fn read(&self, request: &Request, reply: &Reply) -> Result<Answer, String> {
        if request.who.is_foreign() {
            return Foreign::read(Part::of(self.kind, &request.who), request.op, reply);
        }
        self.kind.read(request.op, reply)
    }

    pub(super) fn channel(&self, who: &Who, own_turn: bool) -> String {
        if who.is_foreign() {
            self.foreign().channel(self.kind, who)
        } else {
            self.kind.channel(who, own_turn)
        }
    }

    /// The id for the next release: one that no request on its way and no stored record of an earlier release
    /// uses.
    pub(super) fn next_unlock(&self, owner: usize) -> u8 {
        let is_free = |unlock: &u8| {
            let of_one = |request: &Request| request.who.owner == owner && request.unlock == *unlock;
            let id = unlock_id(*unlock);
            !self.requests.iter().any(of_one) && !self.server.keys.keys().any(|key| key.ends_with(&id))
        };
        (1..).find(is_free).expect("few releases are on their way")
    }

    /// After the answer to a release, Redisson deletes the record of its outcome.
    pub(super) fn forgets(&mut self, release: &Request) {
        self.send(release.who.owner, Op::Forget, None, false);
        self.requests.last_mut().expect("it was sent").unlock = release.unlock;
    }

    /// Whether the waiter's request to leave the queue is on its way. Meanwhile the waiter does nothing else.
    pub(super) fn is_leaving(&self, owner: usize) -> bool {
        let is_leave = |request: &Request| request.who.owner == owner && request.op == Op::Leave;
        self.owners[owner].who.is_foreign() && self.requests.iter().any(is_leave)
    }

    /// The waiter subscribes, then attempts once more, and only then sleeps.
    pub(super) fn foreign_is_to_wait(&mut self, owner: usize, left_ms: Option<u64>) {
        let now = self.server.now_ms();
        let owner = &mut self.owners[owner];
        let asks_again = !owner.releases || owner.heard;
        (owner.has_asked, owner.releases, owner.heard) = (true, true, false);
        let until_ms = left_ms.map(|left| now + left);
        owner.phase = if asks_again { Phase::Wants } else { Phase::Sleeps { until_ms } };
    }

    /// A request was lost or came late: the caller gets an error.
    pub(super) fn foreign_knows_nothing(&mut self, request: &Request) {
        let owner = request.who.owner;
        match self.owners[owner].phase {
            Phase::Extends { until_us, levels } => {
                self.owners[owner].phase = Phase::Holds { until_us, levels };
                self.owners[owner].cycles = 1;
            }
            _ => self.end_cycle(owner, true),
        }
    }

    /// Whether this request leaves the queue of a free lock. Redisson then notifies nobody, so the waiters
    /// behind find the lock free only when they renew their places.
    pub(super) fn passes_nothing_on(&self, request: &Request) -> bool {
        request.who.is_foreign() && request.op == Op::Leave && Kind::is_free(&self.server)
    }

    /// Records a message for a waiting owner, if the message is one of the two that Redisson acts on.
    pub(super) fn foreign_hears(&mut self, owner: usize, channel: &str, message: &str) {
        let is_its = self.channel(&self.owners[owner].who, false) == channel;
        let owner = &mut self.owners[owner];
        owner.heard |=
            is_its && owner.releases && owner.phase != Phase::Dead && ["0", "1"].contains(&message);
    }

    /// The attempt was answered too late for its lease, so the caller releases the lock.
    pub(super) fn foreign_is_too_late(&mut self, owner: usize) {
        self.send(owner, Op::Release(0), None, false);
        self.end_cycle(owner, true);
    }

    /// The waiter gives up. In a fair lock's queue it removes its place; a plain waiter has no place.
    pub(super) fn foreign_leaves(&mut self, owner: usize) {
        if self.kind == Kind::Fair {
            self.send(owner, Op::Leave, None, false);
        }
    }
}
