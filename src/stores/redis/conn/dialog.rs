//! Requests over a connection that one thread has alone.

use redis::Value;

use crate::error::{Error, ErrorKind};
use crate::seam::Failure;
use crate::stores::redis::conn::connection::Connection;
use crate::stores::redis::conn::ledger::{Ledger, SentScript};
use crate::stores::redis::reply::fitness;
use crate::stores::redis::script::Command;
use crate::time::Moment;

pub(crate) struct Dialog<'a> {
    pub(super) connection: &'a mut Connection,
    pub(super) deadline: Moment,
    pub(super) asking: bool,
    pub(super) broken: bool,
    pub(super) ledger: &'a Ledger,
}

impl Dialog<'_> {
    pub(crate) fn say(&mut self, commands: &[Command]) -> std::result::Result<Vec<Value>, Failure> {
        let mut replies = Vec::with_capacity(commands.len());
        self.collect(commands, &mut replies)?;
        replies.into_iter().map(|reply| reply.ok_or_else(no_reply)).collect()
    }

    /// Like [`say`](Self::say), but keeps the replies that came before a failure: one place for each request
    /// up to the last answered one, `None` where the answer is missing.
    pub(crate) fn collect(
        &mut self,
        commands: &[Command],
        replies: &mut Vec<Option<Value>>,
    ) -> std::result::Result<(), Failure> {
        self.exchange(commands, |reply| replies.push(Some(reply)))?;
        // The server ran nothing of a script that it did not know: sent once more with its body.
        let (mut places, mut again) = (Vec::new(), Vec::new());
        for (place, command) in replies.iter_mut().zip(commands) {
            if let Some(command) = place.as_ref().and_then(|reply| command.again_after(reply)) {
                *place = None;
                places.push(place);
                again.push(command);
            }
        }
        if again.is_empty() {
            return Ok(());
        }
        let mut places = places.into_iter();
        self.exchange(&again, |reply| {
            if let Some(place) = places.next() {
                *place = Some(reply);
            }
        })
    }

    fn exchange(
        &mut self,
        commands: &[Command],
        mut take: impl FnMut(Value),
    ) -> std::result::Result<(), Failure> {
        let mut bytes = Vec::with_capacity(256 * commands.len());
        for command in commands {
            if self.asking {
                Command::new("ASKING").pack_into(&mut bytes);
            }
            command.pack_into(&mut bytes);
        }
        let forgotten = self.ledger.forgotten();
        // Reset once all replies are read: a late reply would be taken for the next request's.
        let was_broken = std::mem::replace(&mut self.broken, true);
        debug_assert!(!was_broken, "a broken connection was used");
        if let Err(error) = self.connection.send(&bytes, self.deadline) {
            // The last request was not sent whole; if it was the only one, it was not carried out.
            return Err(if commands.len() == 1 && !self.asking {
                Failure::Refused(error)
            } else {
                Failure::Unknown(error)
            });
        }
        for command in commands {
            if self.asking {
                // A refusal shows in the next reply.
                self.connection.receive(self.deadline).map_err(Failure::Unknown)?;
            }
            let reply = self.connection.receive(self.deadline).map_err(Failure::Unknown)?;
            if let Some(script) = command.script() {
                let sent = SentScript { script, forgotten };
                self.ledger.note_script(&mut self.connection.origin, sent, &reply);
            }
            if self.ledger.note(&mut self.connection.origin, fitness(&reply)) {
                self.ledger.tell_demoted();
            }
            take(reply);
        }
        self.broken = false;
        Ok(())
    }
}

pub(super) fn no_reply() -> Failure {
    Failure::Unknown(Error::new(ErrorKind::Protocol, "request", "no reply was read"))
}
