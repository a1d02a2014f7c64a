//! One server as a kind of lock sees it: the target of its requests, and the client's settings.

use std::sync::Arc;

use crate::config::Replicas;
use crate::refused::Refused;
use crate::seam::Answer;
use crate::stores::redis::compare_and_delete::CompareAndDelete;
use crate::stores::redis::conn::connections::Connections;
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
