//! The steps in which Redisson differs from clients of ours.
//!
//! It waits for a message or for the end of the lease that it was told of. A message that comes while it asks
//! is kept, and sends it round once more. Each request may overtake the one before, on another connection of
//! its pool.
//!
//! Faults of its own are left out. A thread of its keeps its owner for good, so what comes late under that
//! owner may end a later hold, or add a level to it: here the thread does no more after a request that was
//! lost or late. And it believes in a hold until it releases it: here it does so until the lease has ended
//! that it asked for.

use super::{Phase, Request, World};
use crate::foreign::{Foreign, Part, unlock_id};
use crate::kinds::{Answer, Call, Kind, Op, Who};
use crate::server::Reply;

impl<'a> World<'a> {
    /// With Redisson as those owners' client that are of [`crate::kinds::FOREIGN`].
    #[must_use]
    pub fn beside(self, foreign: &'a Foreign) -> World<'a> {
        World { foreign: Some(foreign), ..self }
    }

    fn foreign(&self) -> &'a Foreign {
        self.foreign.expect("it was overheard")
    }

    /// The script that a request calls, of ours or of Redisson's.
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

    /// A number that this release, or what it leaves, has for itself.
    pub(super) fn next_unlock(&self, owner: usize) -> u8 {
        let is_free = |unlock: &u8| {
            let of_one = |request: &Request| request.who.owner == owner && request.unlock == *unlock;
            let id = unlock_id(*unlock);
            !self.requests.iter().any(of_one) && !self.server.keys.keys().any(|key| key.ends_with(&id))
        };
        (1..).find(is_free).expect("few releases are on their way")
    }

    /// Once it has the answer of a release.
    pub(super) fn forgets(&mut self, release: &Request) {
        self.send(release.who.owner, Op::Forget, None, false);
        self.requests.last_mut().expect("it was sent").unlock = release.unlock;
    }

    /// Whether it gives up its place still, which it waits for before it does anything else.
    pub(super) fn is_leaving(&self, owner: usize) -> bool {
        let is_leave = |request: &Request| request.who.owner == owner && request.op == Op::Leave;
        self.owners[owner].who.is_foreign() && self.requests.iter().any(is_leave)
    }

    /// It listens before it sleeps, and asks again after it began to.
    pub(super) fn foreign_is_to_wait(&mut self, owner: usize, left_ms: Option<u64>) {
        let now = self.server.now_ms();
        let owner = &mut self.owners[owner];
        let asks_again = !owner.releases || owner.heard;
        (owner.has_asked, owner.releases, owner.heard) = (true, true, false);
        let until_ms = left_ms.map(|left| now + left);
        owner.phase = if asks_again { Phase::Wants } else { Phase::Sleeps { until_ms } };
    }

    /// Its caller gets an error, and so does whoever releases too late.
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

    /// It gives up a place in front of a free lock, and tells nobody: those behind it find out when they keep
    /// their places.
    pub(super) fn passes_nothing_on(&self, request: &Request) -> bool {
        request.who.is_foreign() && request.op == Op::Leave && Kind::is_free(&self.server)
    }

    /// Only the one who waits for it listens to it, and to these two.
    pub(super) fn foreign_hears(&mut self, owner: usize, channel: &str, message: &str) {
        let is_its = self.channel(&self.owners[owner].who, false) == channel;
        let owner = &mut self.owners[owner];
        owner.heard |=
            is_its && owner.releases && owner.phase != Phase::Dead && ["0", "1"].contains(&message);
    }

    /// Its request for a lock was answered when it could not count on it any more: its caller gives it back.
    pub(super) fn foreign_is_too_late(&mut self, owner: usize) {
        self.send(owner, Op::Release(0), None, false);
        self.end_cycle(owner, true);
    }

    /// Places in the queue of a fair lock are given up. A plain waiter just goes.
    pub(super) fn foreign_leaves(&mut self, owner: usize) {
        if self.kind == Kind::Fair {
            self.send(owner, Op::Leave, None, false);
        }
    }
}
