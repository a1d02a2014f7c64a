//! The processes that this program starts of itself. Each has its role as the first argument, and its [`Part`] as the second, as
//! JSON.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::args::OnLost;
use crate::exit::Exit;
use crate::run::helper;
use crate::run::hold::{keeper, lookout};
use crate::run::inherited::Inherited;
use crate::say::Say;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Part {
    /// Runs the command for the process that holds the lock, and ends it in time.
    Helper(HelperArgs),
    Become(BecomeArgs),
    Keep(KeepArgs),
    /// Sends the shell its signal when the lock is not kept.
    Lookout(LookoutArgs),
}

/// Does what the first two arguments say, if they are one of these parts.
pub(crate) fn part() -> Option<Exit> {
    let mut words = std::env::args_os().skip(1);
    let (role, part) = (words.next()?, words.next()?);
    let part: Part = serde_json::from_str(part.to_str()?).ok().filter(|part: &Part| role == part.role())?;
    // Started by way of /proc, they would be `exe` in lists of processes. Elsewhere there is no such file.
    std::fs::write("/proc/self/comm", "leasehold").ok();
    let command: Vec<OsString> = words.collect();
    Some(match part {
        Part::Helper(args) => helper::helper(&args, &command),
        Part::Become(args) => helper::become_command(&args, &command),
        Part::Keep(args) => keeper::keep(&args),
        Part::Lookout(args) => lookout::lookout(&args),
    })
}

impl Part {
    /// For those who look at the list of processes.
    fn role(&self) -> &'static str {
        match self {
            Part::Helper(_) => "helper",
            Part::Become(_) => "become",
            Part::Keep(_) => "keep",
            Part::Lookout(_) => "lookout",
        }
    }

    /// This program as this part, before it is started.
    pub(super) fn program(self) -> std::io::Result<Command> {
        // Also when the program's file has been replaced meanwhile.
        let own = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
        let mut command = Command::new(own);
        command.arg0("leasehold").arg(self.role()).arg(serde_json::to_string(&self)?);
        Ok(command)
    }
}

/// Written by `run`, read by its helper.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HelperArgs {
    pub(crate) say: Say,
    pub(crate) grace: Duration,
    pub(crate) margin: Duration,
    pub(crate) on_lost: OnLost,
    pub(crate) inherited: Inherited,
}

/// Written by the helper, read by the process that becomes the command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BecomeArgs {
    pub(crate) say: Say,
    pub(crate) parent: u32,
    pub(crate) inherited: Inherited,
    pub(crate) cgroup: Option<PathBuf>,
}

/// Written by `hold`, read by the process that keeps the lock. The rest comes over its socket, since the
/// command that was typed may hold a password.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct KeepArgs {
    /// For those who look at the list of processes.
    pub(crate) name: String,
    /// The process for which the lock is kept, and when it began.
    pub(crate) pid: i32,
    pub(crate) began: u64,
    /// The file of its socket.
    pub(crate) place: PathBuf,
}

/// Written by the process that keeps the lock, read by its lookout.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LookoutArgs {
    pub(crate) pid: i32,
    pub(crate) began: u64,
    pub(crate) place: PathBuf,
    pub(crate) signal: i32,
    /// How long before the end of the lock's time the signal is sent.
    pub(crate) before: Duration,
}
