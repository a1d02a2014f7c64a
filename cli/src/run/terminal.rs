//! The terminal: the command's group has it while it runs, as if the shell had started the command alone.

use std::fs::{File, OpenOptions};
use std::io::IsTerminal;

use rustix::process::{Pid, getpgid, getpgrp, getppid, getsid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal, if there is one.
pub(super) struct Terminal {
    tty: Option<File>,
    /// It is the command's.
    given: bool,
}

impl Terminal {
    pub(super) fn open() -> Terminal {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok();
        Terminal { tty, given: false }
    }

    /// Hands it to a command that talks to people. In a pipeline the others may need it; the command gets it when it asks.
    pub(super) fn offer(&mut self, group: Pid) {
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            self.give(group);
        }
    }

    /// Hands it over, if it is this process's. Whether the command has it now.
    pub(super) fn give(&mut self, group: Pid) -> bool {
        if let Some(tty) = self.tty.as_ref().filter(|_| self.owner() == Some(getpgrp())) {
            self.given = tcsetpgrp(tty, group).is_ok();
        }
        self.owner() == Some(group)
    }

    /// Takes it back from the command; whether the command had it.
    pub(super) fn take_back(&mut self, group: Pid) -> bool {
        let had = self.given && self.owner() == Some(group);
        if let Some(tty) = self.tty.as_ref().filter(|_| had) {
            // A terminal that hung up is nobody's.
            tcsetpgrp(tty, getpgrp()).ok();
        }
        self.given = false;
        had
    }

    fn owner(&self) -> Option<Pid> {
        self.tty.as_ref().and_then(|tty| tcgetpgrp(tty).ok())
    }
}

/// Whether the terminal's Ctrl-C is for this process.
pub(crate) fn is_foreground() -> bool {
    Terminal::open().owner() == Some(getpgrp())
}

/// Whether a shell is there that can continue this process once it has stopped.
pub(super) fn has_job_control() -> bool {
    let Some(parent) = getppid() else { return false };
    let same_session = matches!((getsid(None), getsid(Some(parent))), (Ok(own), Ok(other)) if own == other);
    same_session && getpgid(Some(parent)).is_ok_and(|group| group != getpgrp())
}
