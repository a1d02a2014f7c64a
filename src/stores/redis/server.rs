//! One server as a kind of lock sees it.

use std::sync::Arc;

use crate::config::Replicas;
use crate::ident::LockName;
use crate::refused::Refused;
use crate::seam::{Answer, Pending, named};
use crate::stores::redis::conn::connections::{Connections, Started};
use crate::stores::redis::pubsub::subscriber::Subscriber;
use crate::stores::redis::reply::{Expected, Tagged, tagged};
use crate::stores::redis::script::Command;
use crate::time::{Clock, Moment};

/// The parts of the store that a kind needs.
#[derive(Debug)]
pub(crate) struct RedisServer {
    pub(crate) connections: Connections,
    pub(crate) subscriber: Arc<Subscriber>,
    pub(crate) scripts: bool,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) compare_and_delete: CompareAndDelete,
    pub(crate) line_rights: LineRights,
}

/// Whether the user may notify queues of waiting clients; shared by the members of a cluster. A reply to a
/// release may say that the user may not. After a while the client uses queues again, until another reply
/// says so.
#[derive(Debug, Clone, Default)]
pub(crate) struct LineRights {
    pub(crate) refused: Arc<Refused>,
}

impl LineRights {
    pub(crate) fn learn(&self, reply: &Tagged) {
        if reply.ends_with(b"unlined") {
            self.refused.note(Clock::System.now());
        }
    }

    pub(crate) fn are_refused(&self) -> bool {
        self.refused.stands(|| Clock::System.now())
    }
}

/// One call of the seam.
pub(crate) struct RedisCall<'a> {
    pub(crate) server: &'a RedisServer,
    pub(crate) deadline: Moment,
}

impl RedisCall<'_> {
    pub(crate) fn ask(&self, command: &Command, expected: Expected) -> Answer<Tagged> {
        tagged(self.server.connections.call(command, self.deadline)?, expected)
    }
}

/// The server's single command that deletes a key only if it has a certain value; without one, WATCH and
/// MULTI do it. Used only where scripts may not be.
#[derive(Debug, Default)]
pub(crate) struct CompareAndDelete {
    /// For each command, whether the server refused it lately.
    refused: [Refused; 2],
}

impl CompareAndDelete {
    /// Valkey 9's, then Redis 8.4's; the server's refusals say which one it has.
    const COMMANDS: [&str; 2] = ["DELIFEQ", "DELEX"];

    pub(crate) fn command(&self) -> Option<&'static str> {
        let commands = Self::COMMANDS.into_iter().zip(&self.refused);
        commands.filter(|(_, refused)| !refused.stands(|| Clock::System.now())).map(|(name, _)| name).next()
    }

    pub(crate) fn rule_out(&self, command: &str) {
        let commands = Self::COMMANDS.into_iter().zip(&self.refused);
        for (_, refused) in commands.filter(|(name, _)| *name == command) {
            refused.note(Clock::System.now());
        }
    }

    pub(crate) fn on(name: &str, lock: &str, token: &str) -> Command {
        let command = Command::new(name).arg(lock);
        if name == "DELEX" { command.arg("IFEQ").arg(token) } else { command.arg(token) }
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
    F: FnOnce(redis::Value) -> Answer<T> + Send,
{
    fn wait(self: Box<Self>) -> Answer<T> {
        named(self.started.wait().and_then(self.read), self.action, self.name.given())
    }
}
