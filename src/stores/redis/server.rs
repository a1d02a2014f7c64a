//! One server as a kind of lock sees it: the target of its requests, and the client's settings.

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
    /// Whether scripts may be used.
    pub(crate) scripts: bool,
    /// The replicas that a grant must have reached.
    pub(crate) replicas: Option<Replicas>,
    pub(crate) compare_and_delete: CompareAndDelete,
    pub(crate) line_rights: LineRights,
}

/// Whether the user may tell the lines of waiting clients; the members of a cluster share it. Each reply to a
/// release may say that it may not, and is read with this. After a while the client goes by the lines again,
/// until a release says so once more.
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

/// One call of the seam: the server, and until when it may take.
pub(crate) struct RedisCall<'a> {
    pub(crate) server: &'a RedisServer,
    pub(crate) deadline: Moment,
}

impl RedisCall<'_> {
    /// Runs a script, and waits for its reply.
    pub(crate) fn ask(&self, command: &Command, expected: Expected) -> Answer<Tagged> {
        tagged(self.server.connections.call(command, self.deadline)?, expected)
    }
}

/// The single command of the server's that deletes a key only if it has a certain value; `NONE`: WATCH and
/// MULTI do it. Only used where scripts may not be.
#[derive(Debug, Default)]
pub(crate) struct CompareAndDelete {
    /// Of each of the commands, whether the server refused it lately.
    refused: [Refused; 2],
}

impl CompareAndDelete {
    /// Valkey 9's, then Redis 8.4's; which it is, the server's refusals say.
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

/// A request that was sent, and what its reply means.
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
