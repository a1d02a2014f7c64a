//! The server's command that deletes a key only if it has a certain value.

use crate::refused::Refused;
use crate::stores::redis::script::Command;
use crate::time::Clock;

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
