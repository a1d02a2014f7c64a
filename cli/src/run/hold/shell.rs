//! The process for which a lock is kept, and signals to it and its descendants.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};

use crate::run::family::{self, Member};

const CHECK_EVERY: Duration = Duration::from_millis(100);

/// A process, identified by pid and start time, so that no later process with the same pid is taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shell {
    pub(super) pid: i32,
    pub(super) began: u64,
}

impl Shell {
    pub(super) fn of(pid: i32) -> Option<Shell> {
        let member = Member::of(pid).filter(|member| !member.is_dead)?;
        Some(Shell { pid, began: member.began })
    }

    /// The shell that called this program (its `$$`). `Err`: why it is unknown.
    ///
    /// A substitution (`$(…)`) or a pipeline runs in a copy of the shell, which ends with the substitution.
    /// Copies have the shell's memory addresses, so the topmost ancestor with these addresses is the shell.
    pub(super) fn that_calls() -> Result<Shell, String> {
        let parent = getppid().map(|pid| pid.as_raw_nonzero().get()).and_then(Member::of);
        let mut found =
            parent.ok_or("the calling process is not in this container: name a process with --pid")?;
        while let Some(above) = Member::of(found.parent).filter(|above| is_copy(&found, above)) {
            found = above;
        }
        // In `$(…)` the shell reads the pipe that this program writes. A caller that writes to the same pipe
        // is a program in between, such as `timeout`, and would end before the shell.
        let own = output_of("self");
        let is_pipe = own.as_ref().is_some_and(|link| link.to_string_lossy().starts_with("pipe:"));
        if is_pipe && own == output_of(&found.pid.to_string()) {
            return Err(format!(
                "process {} may end before the work does: say with --pid for which process the lock is kept, as in --pid $$",
                found.pid
            ));
        }
        Ok(Shell { pid: found.pid, began: found.began })
    }

    pub(super) fn is_alive(self) -> bool {
        Shell::of(self.pid) == Some(self)
    }

    pub(super) fn wait_for_end(self) {
        let Ok(process) = self.open() else {
            while self.is_alive() {
                std::thread::park_timeout(CHECK_EVERY);
            }
            return;
        };
        if let Some(process) = process {
            while poll(&mut [PollFd::new(&process, PollFlags::IN)], None) == Err(Errno::INTR) {}
        }
    }

    fn open(self) -> Result<Option<OwnedFd>, Errno> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            // Another process may have got the pid before the open, so the start time is compared afterwards.
            Ok(process) => Ok(Some(process).filter(|_| self.is_alive())),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Signals the shell before its descendants, so that a script does not start its next command when the
    /// current one dies.
    pub(super) fn signal(self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        if !self.is_alive() {
            return;
        }
        let mut below = family::descendants(self.pid);
        match self.open() {
            Ok(Some(process)) => drop(pidfd_send_signal(process.as_fd(), signal)),
            Ok(None) => return,
            Err(_) => drop(Pid::from_raw(self.pid).map(|pid| rustix::process::kill_process(pid, signal))),
        }
        // A second search finds processes that the shell started just before it got the signal.
        for member in family::descendants(self.pid) {
            if !below.iter().any(|known| known.pid == member.pid) {
                below.push(member);
            }
        }
        below.iter().for_each(|member| member.signal(signal));
    }
}

fn is_copy(one: &Member, above: &Member) -> bool {
    let file = |pid: i32, name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
    let same = |what: fn(PathBuf) -> Option<Vec<u8>>, name: &str| {
        let found = what(file(one.pid, name));
        found.is_some() && found == what(file(above.pid, name))
    };
    one.memory == above.memory
        && same(|path| std::fs::read(path).ok(), "cmdline")
        && same(|path| Some(std::fs::read_link(path).ok()?.into_os_string().into_encoded_bytes()), "exe")
}

fn output_of(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/fd/1")).ok()
}
