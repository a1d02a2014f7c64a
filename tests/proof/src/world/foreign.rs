//! The steps in which Redisson differs from our clients.
//!
//! Redisson waits for a message, or for the end of the lease that it was told. A message during a request is
//! kept, and causes another request. Each request may overtake the one before, on another connection of its
//! pool.
//!
//! Redisson's own faults are left out. Its thread keeps its owner for good, so a late request under that
//! owner may end a later hold, or add a level: here the thread stops after a lost or late request. And it
//! believes in a hold until it releases it: here only until the requested lease has ended.

use super::{Phase, Request, World};
use crate::foreign::{Foreign, Part, unlock_id};
use crate::kinds::{Answer, Call, Kind, Op, Who};
use crate::server::Reply;

impl<'a> World<'a> {
    /// The same, with Redisson as the client of the owners of [`crate::kinds::FOREIGN`].
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

    /// The number that belongs to this release and its remains.
    pub(super) fn next_unlock(&self, owner: usize) -> u8 {
        let is_free = |unlock: &u8| {
            let of_one = |request: &Request| request.who.owner == owner && request.unlock == *unlock;
            let id = unlock_id(*unlock);
            !self.requests.iter().any(of_one) && !self.server.keys.keys().any(|key| key.ends_with(&id))
        };
        (1..).find(is_free).expect("few releases are on their way")
    }

    /// After the answer to a release.
    pub(super) fn forgets(&mut self, release: &Request) {
        self.send(release.who.owner, Op::Forget, None, false);
        self.requests.last_mut().expect("it was sent").unlock = release.unlock;
    }

    /// Whether the waiter is still giving up its place, which precedes everything else.
    pub(super) fn is_leaving(&self, owner: usize) -> bool {
        let is_leave = |request: &Request| request.who.owner == owner && request.op == Op::Leave;
        self.owners[owner].who.is_foreign() && self.requests.iter().any(is_leave)
    }

    /// Listens before it sleeps, and asks again after it began to listen.
    pub(super) fn foreign_is_to_wait(&mut self, owner: usize, left_ms: Option<u64>) {
        let now = self.server.now_ms();
        let owner = &mut self.owners[owner];
        let asks_again = !owner.releases || owner.heard;
        (owner.has_asked, owner.releases, owner.heard) = (true, true, false);
        let until_ms = left_ms.map(|left| now + left);
        owner.phase = if asks_again { Phase::Wants } else { Phase::Sleeps { until_ms } };
    }

    /// Its caller gets an error, as does a late release.
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

    /// A foreign waiter gives up a place before a free lock and notifies nobody: those behind find out when
    /// they renew their places.
    pub(super) fn passes_nothing_on(&self, request: &Request) -> bool {
        request.who.is_foreign() && request.op == Op::Leave && Kind::is_free(&self.server)
    }

    /// Only the waiting owner listens to its channel, and to these two.
    pub(super) fn foreign_hears(&mut self, owner: usize, channel: &str, message: &str) {
        let is_its = self.channel(&self.owners[owner].who, false) == channel;
        let owner = &mut self.owners[owner];
        owner.heard |=
            is_its && owner.releases && owner.phase != Phase::Dead && ["0", "1"].contains(&message);
    }

    /// Its attempt was answered too late to count on: its caller releases.
    pub(super) fn foreign_is_too_late(&mut self, owner: usize) {
        self.send(owner, Op::Release(0), None, false);
        self.end_cycle(owner, true);
    }

    /// Gives up places in a fair lock's queue; a plain waiter just leaves.
    pub(super) fn foreign_leaves(&mut self, owner: usize) {
        if self.kind == Kind::Fair {
            self.send(owner, Op::Leave, None, false);
        }
    }
}
