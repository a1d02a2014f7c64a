//! Gives the terminal to the command's group while the command runs, as if the shell had started only the
//! command.

use std::fs::{File, OpenOptions};
use std::io::IsTerminal;

use nix::unistd::{getpgid, getpgrp, getppid, getsid};
use rustix::process::Pid;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

pub(super) struct Terminal {
    tty: Option<File>,
    given: bool,
}

impl Terminal {
    pub(super) fn open() -> Terminal {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok();
        Terminal { tty, given: false }
    }

    /// Gives the terminal to a command whose input and output are the terminal. In a pipeline other programs
    /// may need the terminal, so there a command gets it only after the command was stopped for using it.
    pub(super) fn offer(&mut self, group: Pid) {
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            self.give(group);
        }
    }

    pub(super) fn give(&mut self, group: Pid) -> bool {
        if let Some(tty) = self.tty.as_ref().filter(|_| self.is_own()) {
            self.given = tcsetpgrp(tty, group).is_ok();
        }
        self.owner() == Some(group)
    }

    pub(super) fn take_back(&mut self, group: Pid) -> bool {
        let had = self.given && self.owner() == Some(group);
        if let (Some(tty), Some(own)) = (self.tty.as_ref().filter(|_| had), own_group()) {
            // This fails if the terminal has hung up.
            tcsetpgrp(tty, own).ok();
        }
        self.given = false;
        had
    }

    fn is_own(&self) -> bool {
        own_group().is_some_and(|own| self.owner() == Some(own))
    }

    fn owner(&self) -> Option<Pid> {
        self.tty.as_ref().and_then(|tty| tcgetpgrp(tty).ok())
    }
}

/// This process's group. `None`: its leader is outside this container, so it has no number here.
fn own_group() -> Option<Pid> {
    Pid::from_raw(getpgrp().as_raw())
}

pub(crate) fn is_foreground() -> bool {
    Terminal::open().is_own()
}

pub(super) fn has_job_control() -> bool {
    let (parent, own) = (getppid(), getpgrp());
    // A parent, session or group outside the container reads as 0, which identifies nothing.
    let is_known = parent.as_raw() > 0 && own.as_raw() > 0;
    let same_session = matches!((getsid(None), getsid(Some(parent))), (Ok(own), Ok(other)) if own == other && own.as_raw() > 0);
    is_known && same_session && getpgid(Some(parent)).is_ok_and(|group| group != own)
}
