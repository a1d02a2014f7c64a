//! The steps in which Redisson differs from our clients.
//!
//! A Redisson waiter sleeps until a message, or until the lease that the server reported has ended. A message
//! that comes during a request causes another request. A request may overtake an earlier one, since Redisson
//! has a pool of connections.
//!
//! The model leaves out two faults of Redisson. Its threads never change their owner ids, so a late request
//! may end a later hold, or add a level; in the model a thread stops after a lost or late request. Its
//! threads count on a hold until they release it; in the model only until the requested lease has ended.

use super::{Phase, Request, World};
use crate::foreign::{Foreign, Part, unlock_id};
use crate::kinds::{Answer, Call, Kind, Op, Who};
use crate::server::Reply;

impl<'a> World<'a> {
    /// Adds Redisson's requests to this world: the client [`crate::kinds::FOREIGN`] sends them.
    #[must_use]
    pub fn beside(self, foreign: &'a Foreign) -> World<'a> {
        World { foreign: Some(foreign), ..self }
    }

    fn foreign(&self) -> &'a Foreign {
        self.foreign.expect("it was overheard")
    }

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

    /// The lowest id for a release of this owner that no request on its way and no key has. Redisson uses
    /// random ids, but low ones lead to fewer states.
    pub(super) fn next_unlock(&self, owner: usize) -> u8 {
        let is_free = |unlock: &u8| {
            let of_one = |request: &Request| request.who.owner == owner && request.unlock == *unlock;
            let id = unlock_id(*unlock);
            !self.requests.iter().any(of_one) && !self.server.keys.keys().any(|key| key.ends_with(&id))
        };
        (1..).find(is_free).expect("few releases are on their way")
    }

    /// Deletes the outcome of an answered release, as Redisson does.
    pub(super) fn forgets(&mut self, release: &Request) {
        self.send(release.who.owner, Op::Forget, None, false);
        self.requests.last_mut().expect("it was sent").unlock = release.unlock;
    }

    /// Whether Redisson's waiter has sent a request to leave the queue. The waiter does nothing until the
    /// request arrives.
    pub(super) fn is_leaving(&self, owner: usize) -> bool {
        let is_leave = |request: &Request| request.who.owner == owner && request.op == Op::Leave;
        self.owners[owner].who.is_foreign() && self.requests.iter().any(is_leave)
    }

    /// Processes the answer "busy". A waiter that just subscribed, or got a message, attempts once more
    /// before it sleeps.
    pub(super) fn foreign_is_to_wait(&mut self, owner: usize, left_ms: Option<u64>) {
        let now = self.server.now_ms();
        let owner = &mut self.owners[owner];
        let asks_again = !owner.releases || owner.heard;
        (owner.has_asked, owner.releases, owner.heard) = (true, true, false);
        let until_ms = left_ms.map(|left| now + left);
        owner.phase = if asks_again { Phase::Wants } else { Phase::Sleeps { until_ms } };
    }

    /// Processes a lost or late request: the caller gets an error.
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

    /// Whether a Redisson waiter leaves the queue of a free lock by this request. Redisson then notifies
    /// nobody, so the next waiters find the lock free only when they renew their places.
    pub(super) fn passes_nothing_on(&self, request: &Request) -> bool {
        request.who.is_foreign() && request.op == Op::Leave && Kind::is_free(&self.server)
    }

    /// Notes a message for a subscribed owner. Redisson reacts only to the messages `0` and `1`.
    pub(super) fn foreign_hears(&mut self, owner: usize, channel: &str, message: &str) {
        let is_its = self.channel(&self.owners[owner].who, false) == channel;
        let owner = &mut self.owners[owner];
        owner.heard |=
            is_its && owner.releases && owner.phase != Phase::Dead && ["0", "1"].contains(&message);
    }

    pub(super) fn foreign_is_too_late(&mut self, owner: usize) {
        self.send(owner, Op::Release(0), None, false);
        self.end_cycle(owner, true);
    }

    /// Processes the end of a wait without a grant. Only a fair lock has a queue to leave.
    pub(super) fn foreign_leaves(&mut self, owner: usize) {
        if self.kind == Kind::Fair {
            self.send(owner, Op::Leave, None, false);
        }
    }
}
