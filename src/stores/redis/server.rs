//! One server as a kind of lock sees it, and grants that count only when replicas have acknowledged them.

use std::sync::Arc;

use redis::Value;

use crate::config::Replicas;
use crate::error::{Error, ErrorKind};
use crate::ident::LockName;
use crate::refused::Refused;
use crate::seam::{Answer, Failure, Pending, named};
use crate::stores::redis::conn::connections::{Connections, Started};
use crate::stores::redis::conn::dialog::Dialog;
use crate::stores::redis::pubsub::Subscriber;
use crate::stores::redis::reply::{Expected, Tagged, accepted, refusal, tagged, unexpected};
use crate::stores::redis::script::Command;
use crate::time::{Clock, Moment, millis};

/// The parts of the store that a kind needs.
pub(crate) struct RedisServer {
    pub(crate) connections: Connections,
    pub(crate) subscriber: Arc<Subscriber>,
    pub(crate) scripts: bool,
    pub(crate) replicas: Option<Replicas>,
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

    /// Asks for a hold; `undo`: it counts only when it has reached the required replicas.
    pub(crate) fn ask_for_hold(
        &self,
        command: Command,
        undo: Option<Command>,
        expected: Expected,
    ) -> Answer<Tagged> {
        match self.server.replicas.zip(undo) {
            Some((replicas, undo)) => {
                replicas.ask(&self.server.connections, command, undo, expected, self.deadline)
            }
            None => self.ask(&command, expected),
        }
    }
}

impl Replicas {
    /// Asks for a lock by a script, whose grant `undo` undoes.
    pub(super) fn ask(
        self,
        connections: &Connections,
        command: Command,
        undo: Command,
        expected: Expected,
        deadline: Moment,
    ) -> Answer<Tagged> {
        let (command, undo) = (connections.as_published(command), connections.as_published(undo));
        let is_granted =
            |reply: &Value| Tagged::new(reply.clone()).is_ok_and(|reply| reply.tag() == b"granted");
        let undo = |dialog: &mut Dialog<'_>| {
            let reply = dialog.say(std::slice::from_ref(&undo))?.pop().unwrap_or(Value::Nil);
            Ok(tagged(reply, expected)?.tag() == b"freed")
        };
        let replies = connections.dialog(deadline, |dialog| {
            // With its body if the server may not know the script: else the WAIT would be repeated.
            let command = dialog.whole(&command).unwrap_or(command);
            self.attempt(dialog, vec![command], is_granted, undo)
        })?;
        tagged(replies.into_iter().next().unwrap_or(Value::Nil), expected)
    }

    /// Asks for a lock by the first of `commands`. A grant must also reach the replicas; else `undo` undoes
    /// it over the same connection. Returns all replies. WAIT concerns what its own connection wrote, so it
    /// follows the grant there, and blocks that connection.
    pub(super) fn attempt(
        self,
        dialog: &mut Dialog<'_>,
        mut commands: Vec<Command>,
        is_granted: impl FnOnce(&Value) -> bool,
        undo: impl FnOnce(&mut Dialog<'_>) -> Answer<bool>,
    ) -> Answer<Vec<Value>> {
        let wait = || Command::new("WAIT").arg(self.count).arg(millis(self.within));
        commands.push(wait());
        let said = dialog.say_and_count(&commands)?;
        let mut replies = said.replies;
        let waited = replies.pop();
        if !replies.first().is_some_and(is_granted) {
            return Ok(replies);
        }
        // A script that the server did not know was sent again, after the WAIT.
        let waited = if said.sent_again { dialog.say(&[wait()])?.pop() } else { waited };
        let error = match waited.map(accepted) {
            Some(Ok(Value::Int(count))) if count >= self.count.into() => return Ok(replies),
            Some(Ok(Value::Int(count))) => {
                let (wanted, within) = (self.count, self.within);
                let words = format!("{count} of {wanted} replicas acknowledged it within {within:?}");
                Error::new(ErrorKind::Busy, "lock", words)
            }
            Some(Err(error)) => refusal(&error, Expected::Nothing),
            other => unexpected(&other.and_then(Result::ok).unwrap_or(Value::Nil)),
        };
        match undo(dialog) {
            Ok(true) => Err(Failure::Refused(error)),
            Ok(false) | Err(_) => Err(Failure::Unknown(error)),
        }
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
