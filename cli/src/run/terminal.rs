//! The terminal: the command's group has it while it runs, as if the shell had started the command alone.

use std::fs::{File, OpenOptions};
use std::io::IsTerminal;

use nix::unistd::{getpgid, getpgrp, getppid, getsid};
use rustix::process::Pid;
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

    /// Hands it to a command that talks to people. In a pipeline the others may need it; the command gets it
    /// when it asks.
    pub(super) fn offer(&mut self, group: Pid) {
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            self.give(group);
        }
    }

    /// Hands it over, if it is this process's. Whether the command has it now.
    pub(super) fn give(&mut self, group: Pid) -> bool {
        if let Some(tty) = self.tty.as_ref().filter(|_| self.is_own()) {
            self.given = tcsetpgrp(tty, group).is_ok();
        }
        self.owner() == Some(group)
    }

    /// Takes it back from the command; whether the command had it.
    pub(super) fn take_back(&mut self, group: Pid) -> bool {
        let had = self.given && self.owner() == Some(group);
        if let (Some(tty), Some(own)) = (self.tty.as_ref().filter(|_| had), own_group()) {
            // A terminal that hung up is nobody's.
            tcsetpgrp(tty, own).ok();
        }
        self.given = false;
        had
    }

    /// Whether it is of this process's group.
    fn is_own(&self) -> bool {
        own_group().is_some_and(|own| self.owner() == Some(own))
    }

    fn owner(&self) -> Option<Pid> {
        self.tty.as_ref().and_then(|tty| tcgetpgrp(tty).ok())
    }
}

/// This process's group. The leader of a group may be outside of this process's container: then the group has
/// no number here, and neither a terminal nor a shell in here knows it.
fn own_group() -> Option<Pid> {
    Pid::from_raw(getpgrp().as_raw())
}

/// Whether the terminal's Ctrl-C is for this process.
pub(crate) fn is_foreground() -> bool {
    Terminal::open().is_own()
}

/// Whether a shell is there that can continue this process once it has stopped.
pub(super) fn has_job_control() -> bool {
    let (parent, own) = (getppid(), getpgrp());
    // In a container, a parent, a session or a group of outside is 0, which is no number: two of them may
    // differ.
    let is_known = parent.as_raw() > 0 && own.as_raw() > 0;
    let same_session = matches!((getsid(None), getsid(Some(parent))), (Ok(own), Ok(other)) if own == other && own.as_raw() > 0);
    is_known && same_session && getpgid(Some(parent)).is_ok_and(|group| group != own)
}
