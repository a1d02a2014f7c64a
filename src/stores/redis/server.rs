//! One server as a kind of lock sees it.

use std::sync::Arc;

use redis::Value;

use crate::ident::LockName;
use crate::refused::Refused;
use crate::seam::{Answer, Pending, named};
use crate::stores::redis::acks::Acks;
use crate::stores::redis::conn::connections::{Connections, Started};
use crate::stores::redis::pubsub::Subscriber;
use crate::stores::redis::reply::{Expected, Tagged, tagged};
use crate::stores::redis::script::Command;
use crate::time::{Clock, Moment};

/// The parts of the store that a kind needs.
pub(crate) struct RedisServer {
    pub(crate) connections: Arc<Connections>,
    pub(crate) subscriber: Arc<Subscriber>,
    /// For grants that need copies elsewhere.
    pub(crate) acks: Option<Arc<Acks>>,
    pub(crate) queue_rights: QueueRights,
}

/// Whether the user may notify queues of waiting clients; shared by the members of a cluster. A reply to a
/// release may say that the user may not. After a while the client uses queues again, until another reply
/// says so.
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
    pub(crate) fn ask(&self, command: Command, expected: Expected) -> Answer<Tagged> {
        tagged(self.server.connections.call(command, self.deadline)?, expected)
    }
}

/// A request on its way, and the meaning of its reply.
pub(super) struct Underway<F> {
    pub(super) started: Started,
    pub(super) read: F,
    pub(super) action: &'static str,
    pub(super) name: Arc<LockName>,
}

impl<T, F> Pending<T> for Underway<F>
where
    F: FnOnce(Value) -> Answer<T> + Send,
{
    fn wait(self: Box<Self>) -> Answer<T> {
        named(self.started.wait().and_then(self.read), self.action, self.name.given())
    }
}
