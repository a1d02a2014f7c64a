//! The processes that this program starts, and their messages over sockets, one message a line. The first
//! argument of such a process is its role, the second the [`Part`] as JSON.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::args::OnLost;
use crate::clock::Moment;
use crate::run::helper;
use crate::run::hold::{keeper, lookout};
use crate::run::signals::Inherited;
use crate::say::{Exit, Say};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Part {
    Helper(HelperArgs),
    Become(BecomeArgs),
    Keep(KeepArgs),
    Lookout(LookoutArgs),
}

pub(crate) fn part() -> Option<Exit> {
    let mut words = std::env::args_os().skip(1);
    let (role, part) = (words.next()?, words.next()?);
    let part: Part = serde_json::from_str(part.to_str()?).ok().filter(|part: &Part| role == part.role())?;
    // Linux would list this process as `exe`, because it was started from /proc/self/exe. On other systems
    // the write fails, and is not needed.
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
    fn role(&self) -> &'static str {
        match self {
            Part::Helper(_) => "helper",
            Part::Become(_) => "become",
            Part::Keep(_) => "keep",
            Part::Lookout(_) => "lookout",
        }
    }

    pub(super) fn program(self) -> io::Result<Command> {
        // `/proc/self/exe` works even if the program's file was replaced meanwhile.
        let own = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
        let mut command = Command::new(own);
        command.arg0("leasehold").arg(self.role()).arg(serde_json::to_string(&self)?);
        Ok(command)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HelperArgs {
    pub(crate) say: Say,
    pub(crate) grace: Duration,
    pub(crate) margin: Duration,
    pub(crate) on_lost: OnLost,
    pub(crate) inherited: Inherited,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BecomeArgs {
    pub(crate) say: Say,
    pub(crate) parent: u32,
    pub(crate) inherited: Inherited,
    pub(crate) cgroup: Option<PathBuf>,
}

/// The keeper's arguments. The process list shows them, so the options of `hold`, which may contain a
/// password, are sent over the socket instead.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct KeepArgs {
    /// The lock's name, only for people who read the process list.
    pub(crate) name: String,
    pub(crate) pid: i32,
    pub(crate) began: u64,
    pub(crate) place: PathBuf,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LookoutArgs {
    pub(crate) pid: i32,
    pub(crate) began: u64,
    pub(crate) place: PathBuf,
    pub(crate) signal: i32,
    pub(crate) before: Duration,
}

/// Orders that the process with the lock sends to its helper or lookout. If that process dies, the socket
/// ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// The lock is held until this instant at least. A later `Until` extends that, and `Gone` ends it.
    Until(Moment),
    Gone,
    /// The supervisor sent TERM to the command, so the processes that the command started must end with it.
    Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Report {
    Started(i32),
    Failed(i32),
    Late,
    Stopped(i32),
    Ending,
    Exited(i32),
    Signaled(i32),
    /// The helper could not observe the command's end, so it killed the command.
    Unwatched,
    Survivor(i32),
}

pub(super) fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(format!("{}\n", serde_json::to_string(message)?).as_bytes())
}

pub(super) fn receive<M: DeserializeOwned>(stream: UnixStream, mut each: impl FnMut(M) -> bool) {
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        if serde_json::from_str(&line).is_ok_and(|message| !each(message)) {
            return;
        }
    }
}
