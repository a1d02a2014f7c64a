//! The server's command that deletes a key only if it has a certain value.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::stores::redis::script::Command;

/// The single command of the server's that deletes a key only if it has a certain value; `NONE`: WATCH and
/// MULTI do it. Only used where scripts may not be.
#[derive(Debug)]
pub(crate) struct CompareAndDelete(AtomicU8);

impl CompareAndDelete {
    /// Valkey 9's, then Redis 8.4's; which it is, is found out once.
    const COMMANDS: [&str; 2] = ["DELIFEQ", "DELEX"];

    pub(crate) fn new() -> CompareAndDelete {
        CompareAndDelete(AtomicU8::new(0))
    }

    pub(crate) fn command(&self) -> Option<&'static str> {
        Self::COMMANDS.get(usize::from(self.0.load(Ordering::Relaxed))).copied()
    }

    pub(crate) fn rule_out(&self, command: &str) {
        if let Some(index) = Self::COMMANDS.iter().position(|other| *other == command) {
            self.0.fetch_max(u8::try_from(index + 1).unwrap_or(u8::MAX), Ordering::Relaxed);
        }
    }

    pub(crate) fn on(name: &str, lock: &str, token: &str) -> Command {
        let command = Command::new(name).arg(lock);
        if name == "DELEX" { command.arg("IFEQ").arg(token) } else { command.arg(token) }
    }
}
